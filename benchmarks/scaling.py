"""How time and memory grow: python benchmarks/scaling.py [cohort clients private million model] [--repeats 3].

    cohort    clients per round, of 1000, each one epoch of 60 images             MLP 784-200-10
    clients   registered clients, 100 a round, each one step on 4 small images    MLP 64-200-10
    private   the same with noise at every client                                 MLP 64-200-10
    million   clients per round, of 1,000,000, as in `clients`                    MLP 64-200-10
    model     hidden units, 20 clients a round as in `cohort`                     MLP 784-H-10

Every point is a process of its own. A series ends where a point takes more than a minute.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # also where this file is started by its path: other packages have a `benchmarks`

from benchmarks.rounds import machine, markdown  # noqa: E402
from benchmarks.workloads import WORKLOADS, Workload  # noqa: E402

PATIENCE = 60.0  # seconds for one point, its start included
W2, W3 = WORKLOADS["w2"], WORKLOADS["w3"]
SMALL: Any = {"shape": (8, 8, 1), "examples": 4}


@dataclass(frozen=True)
class Point:
    workload: Workload
    scheme: str = "iid"
    hidden: int = 200


SERIES: dict[str, tuple[list[int], Callable[[int], Point]]] = {
    "cohort": ([10, 30, 100, 300, 1000], lambda n: Point(replace(W2, cohort=n))),
    "clients": ([10**3, 10**4, 10**5, 10**6], lambda n: Point(replace(W2, **SMALL, clients=n, batch=4, steps=1))),
    "private": ([10**3, 10**4, 10**5, 10**6], lambda n: Point(replace(W3, **SMALL, clients=n))),
    "million": (
        [10**2, 10**3, 10**4],
        lambda n: Point(replace(W2, **SMALL, clients=10**6, batch=4, steps=1, cohort=n)),
    ),
    "model": ([50, 200, 800, 3200], lambda n: Point(replace(W2, cohort=20), hidden=n)),
}
COLUMNS = ["start s", "round CPU s", "round wall s", "peak MB", "of torch + data", "bytes per idle client"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[*SERIES], help=" ".join(SERIES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--figure", type=Path, help="also draw it, as PNG, SVG or PDF (needs the `plots` extra)")
    parser.add_argument("--point", help=argparse.SUPPRESS)  # JSON: be the process that measures it
    asked = parser.parse_args()
    if asked.point:
        print(json.dumps(measure(asked.repeats, **json.loads(asked.point))))
        return
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    series: dict[str, dict[int, dict[str, float]]] = {}
    for name in asked.names:
        sizes, make = SERIES[name]
        rows, measured, stopped = list[list[str]](), list[dict[str, float]](), ""
        for size in sizes:
            found = at(make(size), asked.repeats)
            if isinstance(found, str):
                stopped = f"{name} {size:,}: {found}; the series ends here"
                break
            measured.append(found)
            series.setdefault(name, {})[size] = found
            rows.append([f"{size:,}", *cells(found), per_client(measured)])
        print(markdown([name, *COLUMNS], rows), stopped, sep="\n", flush=True)
    if asked.figure:
        draw(series, asked.figure)


def draw(series: dict[str, dict[int, dict[str, float]]], place: Path) -> None:
    """Time above, memory below, both axes logarithmic: a straight line of slope 1 is in proportion, a level one does
    not grow.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, len(series), figsize=(3.2 * len(series), 5.2), squeeze=False, sharey="row")
    for column, (name, points) in enumerate(series.items()):
        sizes = list(points)
        axes[0][column].loglog(sizes, [points[n]["cpu"] for n in sizes], "o-")
        axes[1][column].loglog(sizes, [points[n]["peak"] / 1024 for n in sizes], "s-", color="tab:orange")
        axes[0][column].set_title(name)
        axes[1][column].set_xlabel(
            {"model": "hidden units", "cohort": "clients a round"}.get(name, "registered clients")
        )
    axes[0][0].set_ylabel("CPU seconds a round")
    axes[1][0].set_ylabel("peak MB")
    figure.tight_layout()
    figure.savefig(place, dpi=130)


def at(point: Point, repeats: int) -> dict[str, float] | str:
    """What was measured, or why nothing was."""
    told = json.dumps(asdict(point))
    command = [sys.executable, str(Path(__file__)), "--repeats", str(repeats), "--point", told]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return f"more than {PATIENCE:.0f} s"
    if said.returncode:
        return " ".join(said.stderr.strip().splitlines()[-3:])
    found: dict[str, float] = json.loads(said.stdout)
    return found


def measure(repeats: int, workload: dict[str, Any], scheme: str, hidden: int) -> dict[str, float]:
    import torch

    from benchmarks import meter
    from benchmarks.sides.sordino_rounds import prepared
    from benchmarks.workloads import data

    torch.set_num_threads(1)
    w = Workload(**workload | {"shape": tuple(workload["shape"])})
    held = data(w)
    base = meter.fresh_peak()
    from sordino.fast import keep_freed_memory
    from sordino.round import one_round

    keep_freed_memory()
    imported, began = meter.fresh_peak(), time.perf_counter()
    tables = {
        "partition": {"scheme": scheme, "clients": w.clients},
        "model": {"name": "mlp", "hidden": hidden},
        "privacy": {"delta": 1e-8},  # below one over the largest population
    }
    parts = prepared(w, held, **tables)
    with tempfile.TemporaryDirectory() as folder:
        federation, clients = parts.federation(Path(folder) / "ledger.sqlite", "bench"), parts.site("bench")
        server, taken = parts.setup.state("server"), []
        start = time.perf_counter() - began
        peak = meter.peak()
        ctypes.CDLL(None).malloc_trim(0)  # what was freed is no client's
        idle = meter.fresh_peak() - imported
        for t in range(repeats + 1):
            before = meter.clocks()
            server = one_round(federation, server, t, clients).server
            taken.append([now - then for now, then in zip(meter.clocks(), before, strict=True)])
        peak = max(peak, meter.peak())
    cpu, wall = (statistics.median(column) for column in zip(*taken[1:], strict=True))  # the first warms up
    return {"start": start, "cpu": cpu, "wall": wall, "peak": peak, "base": base, "idle": idle, "clients": w.clients}


def cells(found: dict[str, float]) -> list[str]:
    return [
        f"{found['start']:.2f}",
        f"{found['cpu']:.3f}",
        f"{found['wall']:.3f}",
        f"{found['peak'] / 1024:.0f}",
        f"{found['peak'] / found['base']:.2f}x",
    ]


def per_client(measured: list[dict[str, float]]) -> str:
    """What each client more than in the first point of the series took, before anybody trained."""
    first, last = measured[0], measured[-1]
    more = last["clients"] - first["clients"]
    return f"{(last['idle'] - first['idle']) * 1024 / more:,.0f}" if more else ""


if __name__ == "__main__":
    main()
