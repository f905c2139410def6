"""sordino, by its own `one_round`: prices, a ledger on disk, digests, noise, sum, update. Evaluation and checkpoints
are left out, as on every side.

Options: `precision`, `executor` and `workers`, as in the table [engine].
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.meter import Meter
from benchmarks.workloads import CLASSES, HELD_OUT, Data, Workload, network

MODELS = {"cnn": "cnn_wide", "mlp": "mlp"}


def main() -> None:
    meter = Meter()
    import sordino  # after what memory is measured against
    from sordino.device import on
    from sordino.fast import keep_freed_memory
    from sordino.round import one_round

    w = meter.w
    engine = {name: meter.options[name] for name in ("precision", "executor", "workers") if name in meter.options}
    stack = ExitStack()
    meter.leaving(stack.close)
    stack.enter_context(on(w.device))
    parts = prepared(w, meter.data, engine=engine | {"device": w.device})
    keep_freed_memory()  # as every run does
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    federation = parts.federation(folder / "ledger.sqlite", "bench")
    clients = parts.executor(folder, folder, "bench", None, None, stack)  # threads and forks as in a run
    server = parts.setup.state("server")
    start = zip(server.x, network(w).parameters(), strict=True)
    server = server._replace(x={name: value.detach().clone() for name, value in start})
    turn = iter(range(10**9))

    def step() -> None:
        nonlocal server
        server = one_round(federation, server, next(turn), clients).server

    meter.drive(step, lambda: list(server.x.values()), f"sordino {sordino.__version__}")


def prepared(w: Workload, data: Data, **tables: Any) -> Any:
    """The experiment that is this workload, with `tables` in place of its own."""
    from sordino import config
    from sordino.data.dataset import Dataset, Split
    from sordino.runs.population import Population
    from sordino.runs.simulation import Simulation

    population = Population(config.validate(table(w) | tables))
    half, owner = (0.5,) * w.shape[-1], np.arange(w.clients).repeat(w.sizes)
    x, y, held_x, held_y = (part.cpu().numpy() for part in data)
    train = Split(x, y, owner)
    test = Split(held_x, held_y, np.arange(HELD_OUT) % w.clients)
    vars(population)["dataset"] = Dataset("pixels", "image", CLASSES, train, test, half, half)  # in place of a loader
    return Simulation.of(population)


def table(w: Workload) -> dict[str, Any]:
    effort: dict[str, Any] = {"lr": w.lr, "batch_size": w.batch or "full"}
    effort |= {"local_epochs": 1} if w.spread else {"local_steps": w.steps}
    if w.method:
        half = (w.batch or w.examples) // 2
        algorithm: dict[str, Any] = {"name": w.method, "lr": w.lr, "local_steps": w.steps, "batch_size": half}
    elif w.clip is None:
        algorithm = {"name": "fedavg", **effort}
    else:
        name = "gaussian_gdp" if w.steps == 1 else "noisy_steps"
        algorithm = {"name": name, "clip": w.clip, "multiplier": w.multiplier, **effort}
    return {
        "partition": {"scheme": "natural"},
        "model": {"name": MODELS[w.model]},
        "cohort": {"name": "round_robin", "size": w.cohort},
        "algorithm": algorithm,
        "privacy": {},
        "rounds": 10_000,
    }


if __name__ == "__main__":
    main()
