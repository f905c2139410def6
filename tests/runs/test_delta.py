"""The delta of a receipt is the one that was granted, to the last digit: what real noise lacks of the law that is
priced is taken out of it before the noise is planned."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from sordino import config, tree
from sordino.accounting import statement
from sordino.accounting.facts import delta_text
from sordino.algorithms.fedavg import Client, FedAvg, Server
from sordino.budget.plan import Budget
from sordino.config import Experiment, Privacy
from sordino.errors import UnsoundGuarantee
from sordino.keys import Key
from sordino.planning import phase
from sordino.planning.planner import Planner
from sordino.receipts.receipt import lifetime
from sordino.receipts.verify import verify
from sordino.runs.run import start
from sordino.runs.simulation import simulated
from sordino.types import Shard, Task

OWN = "tests.runs.test_delta:KeepsItsHead"
CENTRAL = {"client": [{"name": "clip", "radius": 1.0}], "server": [{"name": "noise", "neighbours": "zero_out"}]}
POISSON = {"cohort": {"name": "poisson", "rate": 0.5}}
MECHANISMS: dict[str, tuple[str, dict[str, Any]]] = {
    "exact": ("example", {"algorithm": {"name": "gaussian_gdp", "clip": 1.0, "lr": 0.5}}),
    "several reads": ("example", {"algorithm": {"name": "noisy_steps", "clip": 1.0, "lr": 0.5, "local_steps": 3}}),
    "laplace": ("example", {"algorithm": {"name": "laplace", "clip": 1.0, "lr": 0.5}}),
    "sampled": ("example", {"algorithm": {"name": "gaussian_sampled", "clip": 1.0, "rate": 0.1, "lr": 0.5}}),
    "central": ("client", {"algorithm": {"name": "fedavg"}, "uplink": CENTRAL}),
    "hidden": ("client", {"algorithm": {"name": "fedavg"}, "uplink": CENTRAL, **POISSON}),
}
FAST = ("exact", "hidden")
EVERY = [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in MECHANISMS]


def real(name: str, **privacy: Any) -> Experiment:
    table = {
        "rounds": 2,
        "data": {"source": "digits", "train": 200},
        "partition": {"scheme": "iid", "clients": 8},
        "privacy": {"epsilon": 4.0, "delta": 1.2345678e-6, "noise": "system", **privacy},
        "engine": {"executor": "loop"},
    }
    return config.validate(table | MECHANISMS[name][1])


@pytest.mark.one_fast
@pytest.mark.parametrize("name", EVERY)
def test_the_delta_of_a_receipt_is_the_one_that_was_granted(name: str, tmp_path: Path) -> None:
    unit, experiment = MECHANISMS[name][0], real(name)
    receipt = start(experiment, tmp_path / "run").receipt
    rows = [row for row in receipt.guarantees if row.finite and row.unit == unit]
    assert rows
    for row in rows:
        assert row.delta == experiment.privacy.delta
        assert row.epsilon <= 4.0
        assert row.event is not None
    assert verify(tmp_path / "run") == []
    claims = [claim for claim in simulated(experiment).setup.offers if claim[1] is None]
    assert claims
    budget = simulated(experiment).setup.whole.budget
    assert budget is not None
    assert 0 < budget.lacking < budget.delta


class OnlyBias(NamedTuple):
    bias: Tensor


@dataclass(frozen=True)
class KeepsItsHead(FedAvg):
    """Clients share the last of their leaves; what else they learn from noised gradients stays with them."""

    def zero(self, task: Task, down: Server) -> Any:
        return OnlyBias(torch.zeros_like([*down.x.values()][-1]))

    def local(self, task: Task, down: Server, c: Client, shard: Shard, key: Key) -> Any:
        up, state = super().local(task, down, c, shard, key)
        return OnlyBias([*up.delta.values()][-1]), state


def test_a_method_that_sends_a_part_lacks_as_much_as_one_that_sends_all() -> None:
    """All parameters are noised at each step, and what is sent follows from all of them: as it was, a plan counted the
    numbers that are sent, here a 65th, so that delta was larger than it said."""
    reader = {"name": "noisy_gradient", "clip": 1.0, "sampling": "full"}
    made, whole = ({"name": name, "local_steps": 3, "batch_size": "full"} for name in (OWN, "fedavg"))
    one, other = (
        simulated(real("exact").model_copy(update={"algorithm": method, "read": reader})).setup
        for method in (made, whole)
    )
    assert tree.size(one.algorithm.zero(one.task, one.algorithm.broadcast(one.algorithm.init(one.task, 0)))) == 10
    assert one.priced.drift == other.priced.drift > 0


def test_a_plan_that_leaves_nothing_for_it_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: noise that is planned for all of delta spends more than the epsilon at this delta."""
    monkeypatch.setattr(Budget, "ideal", property(lambda self: self.delta))
    (row, *_) = [row for row in start(real("exact"), tmp_path / "run").receipt.guarantees if row.finite]
    assert row.delta == 1.2345678e-6
    assert row.epsilon > 4.0


def test_a_statement_that_adds_it_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: delta as it was printed, which was more than was granted."""
    start(real("exact"), tmp_path / "run")
    assert verify(tmp_path / "run") == []
    whole = statement._worst

    def added(costs: Any, delta: float, neighbours: Any) -> tuple[int, float, float]:
        place, _, _ = whole(costs, delta, neighbours)
        epsilon = statement._epsilon(costs[place], delta, neighbours)
        return place, delta, delta + statement.lacking(epsilon, costs[place].drift)

    monkeypatch.setattr(statement, "_worst", added)
    assert any("delta" in line or "epsilon" in line for line in verify(tmp_path / "run"))


def test_a_machine_whose_tables_would_use_up_more_begins_no_run_with_real_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(np, "longdouble", np.float64)  # as on Windows
    with pytest.raises(UnsoundGuarantee) as refusal:
        start(real("exact"), tmp_path / "run")
    assert refusal.value.code == "noise-needs-long-numbers"
    assert not (tmp_path / "run").exists()
    assert start(real("exact", noise="counter"), tmp_path / "simulation").receipt.simulated


def test_a_delta_that_the_tables_use_up_is_refused() -> None:
    """A large model, many rounds, a large epsilon."""
    many = real("exact", epsilon=20.0)
    with pytest.raises(UnsoundGuarantee) as refused:
        _ = simulated(many).setup.plan
    assert refused.value.code == "noise-lacks-delta"
    assert simulated(real("exact", epsilon=20.0, noise="counter")).setup.plan.cap is not None


@pytest.mark.one_fast
@pytest.mark.parametrize("name", EVERY)
def test_runs_on_a_shared_ledger_keep_their_delta_too(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All set the same part aside, so that their caps are the same; the twin leaves none, as it was."""
    unit = MECHANISMS[name][0]

    def stated(place: str) -> Any:
        receipt = start(real(name, ledger=str(tmp_path / f"{place}.sqlite")), tmp_path / place).receipt
        return next(row for row in receipt.guarantees if row.finite and row.unit == unit)

    assert stated("run").epsilon <= 4.0
    whole = lifetime(tmp_path / "run.sqlite").guarantees
    assert {row.delta for row in whole if row.finite and row.unit == unit} == {1.2345678e-6}
    monkeypatch.setattr(phase, "SHARED", 0.0)
    monkeypatch.setattr(phase.PlannedRun, "lacks", lambda *given: 0.0)
    if name != "laplace":  # whose epsilon is the same at every delta
        assert stated("twin").epsilon > 4.0


@pytest.mark.slow
def test_a_ledger_has_no_room_for_more_noise_than_its_runs_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of two runs fits, and both together do not. A seeded run needs no room."""
    shared = str(tmp_path / "shared.sqlite")
    first = real("exact", ledger=shared)
    whole = simulated(first).setup.whole
    lacks = whole.lacks(4.0)
    monkeypatch.setattr(phase, "SHARED", 1.5 * lacks / first.privacy.delta)
    start(first, tmp_path / "one")
    other = first.model_copy(update={"algorithm": first.algorithm | {"lr": 0.1}})
    with pytest.raises(UnsoundGuarantee) as refused:
        start(other, tmp_path / "two")
    assert refused.value.code == "noise-lacks-delta"
    assert not (tmp_path / "two").exists()
    start(other.model_copy(update={"privacy": other.privacy.model_copy(update={"noise": "counter"})}), tmp_path / "two")


@pytest.mark.parametrize("multiplier", [0.4, 0.5])
def test_typed_noise_that_needs_a_larger_delta_is_refused(multiplier: float, tmp_path: Path) -> None:
    """As it was, epsilon 20 at delta 0.01 was "proved" about 1,440 examples, and at 0.4 nothing was left."""
    table = {"algorithm": {"name": "gaussian_gdp", "clip": 1.0, "lr": 0.5, "multiplier": multiplier}, "rounds": 3}
    made = real("exact").model_copy(update={"privacy": Privacy(delta=1e-5, noise="system"), **table})
    with pytest.raises(UnsoundGuarantee) as refused:
        start(made, tmp_path / "run")
    assert refused.value.code == "noise-lacks-delta"
    assert not (tmp_path / "run").exists()
    with pytest.MonkeyPatch.context() as patch:  # the twin
        patch.setattr(Planner, "check_noise", lambda self: None)
        (row, *_) = start(made, tmp_path / "run").receipt.guarantees
        assert row.delta > 1 / 1440 or not row.finite


def test_typed_noise_is_judged_by_the_unit_that_it_protects(tmp_path: Path) -> None:
    """The row of an example follows from that of its client in two steps, and needs a larger delta, which it states."""
    gates = {**CENTRAL, "server": [{"name": "noise", "neighbours": "zero_out", "multiplier": 0.7}]}
    made = real("central").model_copy(update={"uplink": gates, "privacy": Privacy(delta=1e-5, noise="system")})
    rows = {row.unit: row for row in start(made, tmp_path / "run").receipt.guarantees if row.adversary == "public"}
    assert rows["client"].delta == 1e-5
    assert rows["example"].delta > 1e-5 or not rows["example"].finite


@pytest.mark.parametrize(
    ("delta", "text"),
    [(1e-5, "1e-05"), (1.0000040267469276e-05, "1.01e-05"), (0.0, "0"), (1.23e-4, "0.000123"), (9.999e-6, "1e-05")],
)
def test_a_delta_is_never_printed_smaller(delta: float, text: str) -> None:
    assert delta_text(delta) == text
    assert float(text) >= delta
