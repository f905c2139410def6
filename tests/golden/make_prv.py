"""Makes prv.json: epsilon of the Poisson-sampled Gaussian by Opacus's PRV accountant (Gopi, Lee & Wutschitz 2021).

    python tests/golden/make_prv.py

An accountant independent of the one the library uses: it convolves another discretisation, and comes with a lower and
an upper bound on the truth. The grid covers MNIST-like record sampling, client sampling in federations, and long runs.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

from opacus.accountants import PRVAccountant  # type: ignore[import-untyped]

# (noise multiplier, sampling rate, steps, delta): 34 rows
CASES = [
    *((z, 0.01, 1000, 1e-5) for z in (0.8, 1.0, 1.5, 2.0, 4.0)),
    *((z, 0.004, 14062, 1e-5) for z in (0.7, 1.1, 1.3, 2.0)),  # 256 of 60,000 records, 60 epochs
    *((z, 0.2, 100, 1e-5) for z in (1.0, 2.0, 4.0, 8.0)),  # 20 of 100 clients, 100 rounds
    *((z, 0.05, 400, 1e-6) for z in (0.9, 1.5, 3.0, 6.0)),
    *((z, 0.001, 20000, 1e-6) for z in (0.6, 0.8, 1.0, 1.5)),
    *((z, 0.5, 20, 1e-5) for z in (1.5, 3.0, 6.0)),
    *((z, 0.9, 10, 1e-5) for z in (2.0, 4.0)),
    *((1.0, q, 500, 1e-5) for q in (0.003, 0.02, 0.06)),
    *((1.2, 0.01, steps, 1e-7) for steps in (1, 10, 100, 3000)),
    (0.5, 0.01, 50, 1e-5),
]
EPSILON_ERROR = 0.01


def bounds(noise_multiplier: float, rate: float, steps: int, delta: float) -> dict[str, float]:
    accountant = PRVAccountant()
    accountant.history = [(noise_multiplier, rate, steps)]
    delta_error = delta / 1000
    dprv = accountant._get_dprv(eps_error=EPSILON_ERROR, delta_error=delta_error)
    low, middle, high = dprv.compute_epsilon(delta, delta_error, EPSILON_ERROR)
    row = {"noise_multiplier": noise_multiplier, "rate": rate, "steps": steps, "delta": delta}
    return row | {"lower": float(low), "estimate": float(middle), "upper": float(high)}


if __name__ == "__main__":
    golden = {
        "script": "tests/golden/make_prv.py",
        "oracle": f"opacus {version('opacus')} PRVAccountant, eps_error {EPSILON_ERROR}, delta_error delta/1000",
        "cases": [bounds(*case) for case in CASES],
    }
    Path(__file__).with_name("prv.json").write_text(json.dumps(golden, indent=1) + "\n")
