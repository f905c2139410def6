"""Makes opake.json: epsilon of Gaussian noise, on Poisson samples and composed, by opake-accounting.

    pip install opake-accounting && python tests/golden/make_opake.py

A second accountant beside dp-accounting, on which ours rest: privacy loss distributions of its own, in Rust. Its Python
package cannot be imported before CPython 3.13, so its compiled module is loaded by itself.
"""

from __future__ import annotations

import importlib.util
import json
from importlib.metadata import PackageNotFoundError, files, version
from pathlib import Path
from typing import Any

Case = tuple[list[tuple[float, float, int]], float]  # (noise multiplier, sampling rate, count) of each part, and delta
GRID = 1e-4
CASES: list[Case] = [
    *(
        ([(z, 1.0, count)], delta)
        for z, count in ((0.7, 1), (1.0, 3), (4.0, 50), (20.0, 400))
        for delta in (1e-3, 1e-6)
    ),
    *(
        ([(z, q, count)], 1e-5)
        for z, q, count in ((0.8, 0.01, 1000), (1.1, 0.004, 3000), (2.0, 0.2, 100), (3.0, 0.5, 20))
    ),
    *(([(1.0, q, 200)], delta) for q in (0.003, 0.06) for delta in (1e-4, 1e-7)),
    ([(1.2, 0.01, 500), (0.9, 0.05, 20)], 1e-5),
    ([(2.0, 0.1, 100), (5.0, 1.0, 10)], 1e-5),
    ([(1.5, 0.02, 300), (3.0, 0.3, 30), (8.0, 1.0, 4)], 1e-6),
]


def opake() -> Any | None:
    """The compiled module of opake-accounting; None where it is not installed."""
    try:
        [place] = [file for file in files("opake-accounting") or () if file.name.startswith("opake_accounting.abi3")]
    except (PackageNotFoundError, ValueError):
        return None
    spec = importlib.util.spec_from_file_location("opake_accounting", Path(str(place.locate())))
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def epsilon(library: Any, case: Case) -> float:
    """Epsilon of all parts together, by that library."""
    parts, delta = case
    grid = library.DiscretizationConfig(discretization=GRID)
    total = library.identity_pld(grid)
    for z, rate, count in parts:
        one = library.gaussian_pld(z, grid)
        total = total.compose((one if rate == 1 else library.poisson_pld(one, rate)).self_compose(count))
    return float(total.epsilon_at(delta))


if __name__ == "__main__":
    found = opake()
    golden = {
        "script": "tests/golden/make_opake.py",
        "oracle": f"opake-accounting {version('opake-accounting')}, grid {GRID}",
        "cases": [
            {"parts": parts, "delta": delta, "epsilon": epsilon(found, (parts, delta))} for parts, delta in CASES
        ],
    }
    Path(__file__).with_name("opake.json").write_text(json.dumps(golden, indent=1) + "\n")
