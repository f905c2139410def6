"""The delta of a receipt is the one that was granted, to the last digit: what real noise lacks of the law that is
priced is taken out of it before the noise is planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sordino import config
from sordino.accounting import statement
from sordino.accounting.facts import delta_text
from sordino.budget.plan import Budget
from sordino.config import Experiment
from sordino.errors import UnsoundGuarantee
from sordino.receipts.verify import verify
from sordino.runs.run import start
from sordino.runs.simulation import simulated

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


def test_a_delta_that_the_tables_use_up_is_refused() -> None:
    """A large model, many rounds, a large epsilon."""
    many = real("exact", epsilon=20.0)
    with pytest.raises(UnsoundGuarantee) as refused:
        _ = simulated(many).setup.plan
    assert refused.value.code == "noise-lacks-delta"
    assert simulated(real("exact", epsilon=20.0, noise="counter")).setup.plan.cap is not None


@pytest.mark.parametrize(
    ("delta", "text"),
    [(1e-5, "1e-05"), (1.0000040267469276e-05, "1.01e-05"), (0.0, "0"), (1.23e-4, "0.000123"), (9.999e-6, "1e-05")],
)
def test_a_delta_is_never_printed_smaller(delta: float, text: str) -> None:
    assert delta_text(delta) == text
    assert float(text) >= delta
