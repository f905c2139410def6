"""Receipts of random experiments without a training: every round is planned, reserved, stored and sealed as in a run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
from pathlib import Path
from typing import Any

from sordino.accounting.facts import FORMAT
from sordino.config import Experiment
from sordino.errors import SordinoError
from sordino.planning import Agreement, PublicNumbers
from sordino.planning.accounts import Accounts
from sordino.planning.phase import PlannedRun
from sordino.receipts import Environment
from sordino.receipts.folder import RunFolder
from sordino.receipts.receipt import write_receipt
from sordino.version import __version__
from tests.laws.cases import BY_NAME

# experiments whose noise is not on a secret sample are planned in milliseconds, the others in seconds
QUICK = (
    "gaussian_gdp", "gaussian_gdp_adaptive", "gaussian_simple", "laplace", "noisy_steps", "noisy_steps_batches",
    "convex_stable", "whole_update", "central_visible", "dp_fedavg", "pdp_prox_bounds", "pdp_prox_local", "privunit",
    "cuag_pfl_local_client", "ldp_fl", "lc_fl", "cdp_fl", "fedavg", "scaffold",
    "cuag_pfl_published", "udp", "prifedsync", "dp_prox_published", "dp_scaffold_published",
)  # fmt: skip
SAMPLED = (
    "dp_sgd", "gaussian_sampled", "gaussian_sampled_published", "central", "dp_prox", "cuag_pfl_central_client",
    "cuag_pfl_local_sample", "pdp_prox_rates", "pdp_prox_threshold", "pdp_prox_published", "dp_scaffold",
)  # fmt: skip


def drawn(seed: int, sampled: float = 0.1) -> tuple[Experiment, PublicNumbers]:
    """A random experiment, and random public numbers. `sampled`: the share of experiments with secret samples."""
    rng = random.Random(seed)
    case = BY_NAME[rng.choice(SAMPLED if rng.random() < sampled else QUICK)]
    clients = rng.randint(3, 9)
    budget: dict[str, Any] = {"noise": rng.choice(["system", "counter"]), "delta": 10.0 ** -rng.randint(3, 7)}
    if "epsilon" in case.privacy:
        personal = isinstance(case.privacy["epsilon"], dict)
        high = 0.9 if case.name == "gaussian_simple" else 12.0
        one = round(rng.uniform(0.3, high), 3)
        budget["epsilon"] = {"linspace": [one, 3 * one], "levels": rng.randint(2, 3)} if personal else one
        if not personal and "schedule" not in case.privacy and rng.random() < 0.4:
            budget["schedule"] = rng.choice([{"name": "linear_front"}, {"name": "geometric", "ratio": 0.5}])
    cohorts = [{"name": "everyone"}, {"name": "round_robin", "size": 2}, {"name": "random", "size": rng.randint(2, 3)}]
    visible = case.cohort["name"] in {one["name"] for one in cohorts}
    experiment = case.experiment(
        rounds=rng.randint(1, 6),
        seed=seed,
        partition={"scheme": "iid", "clients": clients},
        privacy=case.privacy | budget,
        cohort=rng.choice(cohorts) if visible else case.cohort,
        stragglers={"share": 0.4} if visible and rng.random() < 0.2 else {},
    )
    sizes = [rng.choice([40, 40, 60, 90]) for _ in range(clients)]
    rows = rng.choice([1, 1, 1, 2, 5])
    return experiment, PublicNumbers(
        kind="image", shape=(8, 8, 1), classes=10, named=10, rows_per_key=rows, sizes=tuple(sizes)
    )


def planned(folder: Path, experiment: Experiment, public: PublicNumbers, site: tuple[int, ...] | None = None) -> Path:
    """The folder of a run as it is when the run ends, but for what a training would add. `site`: it is that of a site
    with these clients.
    """
    whole = PlannedRun(experiment, public, dict.fromkeys(("", "prepare", "gan", "augment"), 500))
    training, mine = whole.phases[-1], RunFolder(folder)
    folder.mkdir(parents=True)
    mine.experiment_file.write_text(experiment.toml())
    run = hashlib.sha256(folder.name.encode()).hexdigest()[:16]
    about: dict[str, Any] = {} if site is None else {"site": "a", "clients": site, "shares_scores": True}
    environment = Environment(format=FORMAT, run=run, config=experiment.digest(), sordino=__version__, **about)
    mine.environment_file.write_text(json.dumps(environment.to_json()))
    coordinates = {phase.phase: 500 for phase in whole.phases}
    Agreement(format=FORMAT, dataset="ab" * 32, public=public, coordinates=coordinates).write(folder)
    mine.model_file.write_bytes(run.encode())
    mine.metrics_file.write_text("")
    for phase in whole.phases:
        books = phase.accounts(Accounts, "ab" * 32, mine.own_ledger, run, site)
        with books.ledger:
            for t in range(phase.rounds):
                now = books.open(t)
                active = books.stragglers.split(books.draw(now), t, books.key).active
                now = books.reserve(now, books.prices(now, [k for k in active if k in books.members], False))
                books.begin(now)
                books.publish(t, f"round {t}".encode())
            if phase is training:
                write_receipt(folder, training, books)
    return folder


def some(
    folder: Path, count: int, first: int = 0, sampled: float = 0.1, site: tuple[int, ...] | None = None
) -> list[Path]:
    """Folders of this many random experiments; what is refused before its first round is no experiment."""
    made: list[Path] = []
    seed = first
    while len(made) < count:
        with contextlib.suppress(SordinoError):
            made.append(planned(folder / str(seed), *drawn(seed, sampled), site))
        seed += 1
    return made
