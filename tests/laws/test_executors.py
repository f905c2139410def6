"""Every executor plays the same rounds: the same ledger, and the same model up to the rounding of larger sums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

from sordino import tree
from sordino.algorithms.local_sgd import Walk
from sordino.engine import stack
from sordino.ledger.ledger import Entry
from sordino.privacy.readers.per_example_gradients import Sides
from sordino.privacy.uplink import privunit
from sordino.runs.run import start
from sordino.runs.simulation import simulated
from tests.laws.cases import CASES, Case
from tests.laws.traces import finished, parts_of, started

CLOSE = 1e-5  # of the way the model went


@pytest.fixture(autouse=True)
def fine_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """PrivUnit answers in steps, and an update that is rounded in another way may take the next one: here they are too
    fine for that to show.
    """
    monkeypatch.setattr(privunit, "STEP", 2.0**-40)


def paid(entry: Entry) -> tuple[Any, ...]:
    """What an operation reserved and where it ended; its digest is of bits that another order of additions rounds
    otherwise.
    """
    return entry.op, entry.charges, entry.note, entry.plan, entry.state


def apart(a: Path, b: Path) -> float:
    """Distance of two models, measured by how far the first one went."""
    begun = started(parts_of(a))
    files = [safetensors.torch.load_file(folder / "model.safetensors") for folder in (a, b)]
    start_, one, other = (tree.flat({name: held[name] for name in begun}).double() for held in (begun, *files))
    return float((one - other).norm() / (one - start_).norm())


QUICK = ("fedavg", "scaffold", "gaussian_gdp", "noisy_steps")
by_case = pytest.mark.parametrize(
    "case", [pytest.param(c, id=c.name, marks=[] if c.name in QUICK else [pytest.mark.slow]) for c in CASES]
)


@pytest.mark.one_fast
@by_case
def test_clients_that_share_a_pass_train_the_same_model(case: Case, tmp_path: Path) -> None:
    alone = finished(case.experiment(), tmp_path / "loop")
    pooled = finished(case.experiment(engine={"executor": "pooled"}), tmp_path / "pooled")
    assert [paid(entry) for entry in alone.ledger] == [paid(entry) for entry in pooled.ledger]
    assert apart(tmp_path / "loop", tmp_path / "pooled") < CLOSE


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c.name, marks=[] if c.name == "fedavg" else [pytest.mark.slow]) for c in CASES]
)
def test_clients_of_one_shape_train_the_same_model_in_one_call(case: Case, tmp_path: Path) -> None:
    same = {
        "partition": {"scheme": "iid", "clients": 6},
        "cohort": case.cohort | ({"size": 3} if "size" in case.cohort else {}),
    }
    alone = finished(case.experiment(**same), tmp_path / "loop")
    stacked = finished(case.experiment(**same, engine={"executor": "stack"}), tmp_path / "stack")
    assert [paid(entry) for entry in alone.ledger] == [paid(entry) for entry in stacked.ledger]
    assert apart(tmp_path / "loop", tmp_path / "stack") < CLOSE


@pytest.mark.one_fast
@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c.name, marks=[] if c.name in QUICK else [pytest.mark.slow]) for c in CASES]
)
def test_clients_of_any_size_train_the_same_model_in_one_call(case: Case, tmp_path: Path) -> None:
    same = {
        "partition": {"scheme": "dirichlet", "clients": 24, "alpha": 3.0},
        "cohort": case.cohort | ({"size": 12} if "size" in case.cohort else {}),
    }
    alone = finished(case.experiment(**same), tmp_path / "loop")
    stacked = finished(case.experiment(**same, engine={"executor": "stack"}), tmp_path / "stack")
    assert [paid(entry) for entry in alone.ledger] == [paid(entry) for entry in stacked.ledger]
    assert apart(tmp_path / "loop", tmp_path / "stack") < CLOSE


@pytest.mark.slow
def test_the_law_catches_a_step_that_is_none_of_the_client_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever walks on where it has no batch goes further under momentum. A trial keeps such clients apart, and whoever
    does not believe it finds them moved."""
    case = Case("fedavg", {"name": "fedavg", "momentum": 0.5, "batch_size": 4})
    same = {"partition": {"scheme": "dirichlet", "clients": 24, "alpha": 3.0}, "cohort": {"name": "everyone"}}
    finished(case.experiment(**same), tmp_path / "loop")
    finished(case.experiment(**same, engine={"executor": "stack"}), tmp_path / "stack")
    assert apart(tmp_path / "loop", tmp_path / "stack") < CLOSE
    walked = Walk.__call__
    monkeypatch.setattr(Walk, "__call__", lambda self, direction, live=None: walked(self, direction))
    finished(case.experiment(**same, engine={"executor": "stack"}), tmp_path / "kept apart")
    assert apart(tmp_path / "loop", tmp_path / "kept apart") < CLOSE
    monkeypatch.setattr(stack, "_agree", lambda *asked: True)
    finished(case.experiment(**same, engine={"executor": "stack"}), tmp_path / "wrong")
    assert apart(tmp_path / "loop", tmp_path / "wrong") > CLOSE


def test_the_law_catches_a_pool_that_mixes_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in CASES if case.name == "gaussian_gdp")
    whole = Sides.sum

    def shifted(self: Sides, params: Any, rows: slice = slice(None)) -> Any:
        return whole(self, params, slice(max(0, (rows.start or 0) - 1), rows.stop))  # an example of the client before

    finished(case.experiment(), tmp_path / "loop")
    monkeypatch.setattr(Sides, "sum", shifted)
    start(case.experiment(engine={"executor": "pooled"}), tmp_path / "pooled")
    assert apart(tmp_path / "loop", tmp_path / "pooled") > CLOSE


def test_pools_do_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One pass for the cohort of a noised full-batch step, not one per client."""
    case = next(case for case in CASES if case.name == "gaussian_gdp")
    parts = simulated(case.experiment(engine={"executor": "pooled"}))
    whole, passes = type(parts.setup.task).pooled, []

    def counted(self: Any, *arguments: Any) -> Any:
        passes.append(len(arguments[1]))
        return whole(self, *arguments)

    monkeypatch.setattr(type(parts.setup.task), "pooled", counted)
    start(case.experiment(engine={"executor": "pooled"}), tmp_path / "run")
    assert len(passes) == case.experiment().rounds  # cohorts of two clients
