"""A budget over phases: the plan is what the receipt says, and no phase spends more than its share."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import sordino
from sordino import config
from sordino.accounting.accountants import epsilon_by
from sordino.accounting.claims import UNIT
from sordino.accounting.events import Gaussian, Poisson, Repeat, Together
from sordino.accounting.pricing import Counted, Renyi, best_order, budget_at, counted_phases
from sordino.receipts.verify import verify
from sordino.runs.forecast import Forecast
from sordino.runs.run import start
from sordino.runs.simulation import simulated
from tests.helpers.prepared_runs import CLIENTS, TINY, tiny

# one budget -----------------------------------------------------------------------------------------------------------
PRIVATE = {"privacy": {"epsilon": 8.0, "delta": 1e-4}}


@pytest.mark.parametrize(
    "variant", [*(pytest.param(v, marks=pytest.mark.slow) for v in ("rigorous_a", "rigorous_b")), "dp_proto_only"]
)
@pytest.mark.slow
def test_a_plan_of_phases_is_what_the_receipt_says(variant: str, tmp_path: Path) -> None:
    experiment = tiny(
        algorithm={**TINY["algorithm"], "variant": variant}, cohort={"name": "round_robin", "size": CLIENTS}, **PRIVATE
    )
    ended = start(experiment, tmp_path / "run")
    said = {(g.unit, g.adversary): g.epsilon for g in ended.receipt.guarantees}
    planned = {(g.unit, g.adversary): g.epsilon for g in Forecast(simulated(experiment)).planner.guarantees}
    assert said.keys() == planned.keys()
    for subject, epsilon in said.items():
        if epsilon == math.inf:
            assert planned[subject] == math.inf
        else:  # not everybody is asked for a prototype twice
            assert epsilon <= planned[subject] * (1 + 1e-9) <= 8.0 * (1 + 1e-6)
            assert variant == "rigorous_a" or planned[subject] == pytest.approx(epsilon, rel=1e-9)
    assert said["example", "server"] == math.inf if variant == "dp_proto_only" else said["example", "server"] < 8
    assert verify(tmp_path / "run") == []
    last, delta = sordino.open_run(tmp_path / "run").rounds.iloc[-1], 1e-4
    shown = {name: value for name, value in last.items() if str(name).startswith("epsilon_")}
    assert sorted(shown.values()) == pytest.approx(sorted(epsilon for epsilon in said.values() if epsilon < math.inf))
    assert last["delta"] == delta if shown else "delta" not in last


def test_a_phase_spends_its_share_and_no_more(tmp_path: Path) -> None:
    """On a ledger for several runs, the charges of both phases are under one cap, in one currency; with another share
    the noises trade places.
    """
    noises = []
    for share in (0.2, 0.8):
        table = {**TINY["algorithm"], "variant": "rigorous_b", "share": share}
        privacy = {**PRIVATE["privacy"], "ledger": str(tmp_path / "shared.sqlite")}
        experiment = tiny(algorithm=table, cohort={"name": "round_robin", "size": CLIENTS}, privacy=privacy)
        parts = simulated(experiment)
        before, after = parts.preparation[0].setup.plan, parts.setup.plan
        first, later = before.price(0, 0, before.currency.zero()), after.price(0, 0, after.currency.zero())
        assert first is not None
        assert later is not None
        assert before.currency == after.currency
        assert before.cap == after.cap
        assert before.cap is not None
        assert first.charge[0] == pytest.approx(share * before.cap[0], rel=1e-6)
        whole = first.charge[0] + sum(
            after.price(0, t, after.currency.zero()).charge[0] for t in range(experiment.rounds)
        )  # type: ignore[union-attr]
        assert whole <= before.cap[0]
        noises.append((first.multiplier, later.multiplier))
    assert noises[0][0] > noises[1][0]
    assert noises[0][1] < noises[1][1]


@pytest.mark.slow
@pytest.mark.parametrize("variant", [pytest.param("rigorous_a", marks=pytest.mark.slow), "rigorous_b"])
def test_phases_on_a_ledger_of_their_own_fill_the_budget_together(variant: str) -> None:
    """Composed by privacy loss, without the slack of a single Renyi order; a phase has its own count, and leaves
    nothing over for another.
    """
    table = {**TINY["algorithm"], "variant": variant}
    parts = simulated(tiny(algorithm=table, rounds=20, **PRIVATE))
    plans = [mine.setup.plan for mine in (*parts.preparation, parts)]
    assert [plan.pricing.place for plan in plans if isinstance(plan.pricing, Counted)] == list(range(len(plans)))
    assert len({plan.currency for plan in plans}) == 1
    assert len({plan.cap for plan in plans}) == 1
    most = [max(p.participations) * max(p.reads) for p in plans]
    rates = [p.offer.rate for p in plans]  # type: ignore[union-attr]

    def spent(times: list[int], louder: float = 1.0) -> float:
        noises = [p.pricing.planned * louder for p in plans]  # type: ignore[union-attr]
        events = (Repeat(Poisson(q, Gaussian(z)), n) for q, z, n in zip(rates, noises, times, strict=True))
        return epsilon_by("pld", Together(tuple(events)), 1e-4, "zero_out")

    assert 0.99 * 8.0 < spent(most) <= 8.0
    assert spent([2 * most[0], *most[1:]]) > 8.0  # what the count of releases is there to stop
    assert spent(most, louder=0.97) > 8.0
    for place, plan in enumerate(plans):
        assert plan.cap is not None
        charge = plan.price(0, 0, plan.currency.zero()).charge  # type: ignore[union-attr]
        assert [part > 0 for part in charge] == [i == place for i in range(len(plans))]
        others = tuple(0 if i == place else limit for i, limit in enumerate(plan.cap))
        assert plan.currency.fits(others, plan.cap)
        one_more = tuple(limit + UNIT if i == place else 0 for i, limit in enumerate(plan.cap))
        assert not plan.currency.fits(one_more, plan.cap)  # however little the others have spent


@pytest.mark.slow
def test_without_counting_phases_would_need_more_noise() -> None:
    """Beside the Renyi filter of a ledger for several runs."""
    phases = ((1.0, 1, 0.2), (0.1, 200, 0.8))
    found = counted_phases(phases, 4.0, 1e-5)
    order = best_order(0.1, 4.0, 1e-5, 200).order
    filtered = [Renyi(q, order).multiplier((part * budget_at(order, 4.0, 1e-5) / n,)) for q, n, part in phases]
    assert all(0.8 * z < mine.planned < 0.97 * z for mine, z in zip(found, filtered, strict=True))


@pytest.mark.slow
def test_a_promise_about_clients_after_a_preparation_is_priced_by_itself() -> None:
    """One phase asks for the whole budget: as if it were alone, though its cohort is hidden and nobody reads single
    examples.
    """
    table = {
        "cohort": {"name": "poisson", "rate": 0.5},
        "uplink": {
            "client": [{"name": "clip", "radius": 1.0}],
            "server": [{"name": "noise", "neighbours": "zero_out"}],
        },
        **PRIVATE,
    }
    after = simulated(config.validate(TINY | table)).setup.plan
    alone = simulated(config.validate(TINY | table | {"algorithm": {"name": "fedavg"}})).setup.plan
    assert after.price(0, 0, after.currency.zero()) == alone.price(0, 0, alone.currency.zero())
