"""Who pays in which round of a run: counts that equal the ledger's, caps that hold, noise for whoever paid least."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sordino import config
from sordino.accounting.gaussian_dp import delta_of, epsilon_of, mu_of
from sordino.accounting.statement import statement
from sordino.budget.plan import Price
from sordino.engine.server import FederatedServer
from sordino.errors import LedgerError
from sordino.ledger.ledger import EVERYONE
from sordino.receipts.receipt import TUNING
from sordino.round import one_round
from sordino.runs.run import resume, start
from sordino.runs.simulation import Simulation, simulated
from tests.budget.charged import experiment
from tests.laws.traces import killed_at

GDP = {"name": "gaussian_gdp"}


def spend(parts: Simulation) -> tuple[FederatedServer, list[list[int]]]:
    """Reserve every round as a run would, and compute nothing."""
    federation = parts.federation(":memory:", "run")
    granted = []
    for t in range(parts.setup.experiment.rounds):
        drawn = federation.cohort.draw(t, federation.population, federation.key)
        turnout = federation.stragglers.split(drawn, t, federation.key)
        now = federation.open(t)
        granted.append([*federation.reserve(now, federation.prices(now, turnout.active, False)).granted])
    return federation, granted


def counts(granted: list[list[int]], clients: int) -> list[int]:
    return [sum(k in who for who in granted) for k in range(clients)]


def paid(federation: FederatedServer, client: int) -> list[tuple[int, ...]]:
    entries = federation.ledger.entries()
    found = [entry.charges.get(EVERYONE, entry.charges.get(str(client))) for entry in entries]
    return [charge for charge in found if charge is not None]


def check_caps(federation: FederatedServer) -> None:
    cap = federation.plan.cap
    assert cap is not None
    for k in range(federation.population):
        own = paid(federation, k)
        assert sum(charge[0] for charge in own) <= cap[0]
        assert len(own) == federation.participations.get(federation.payer(k), 0) <= federation.plan.participations[k]


def test_round_robin_counts_equal_the_ledger() -> None:
    parts = simulated(
        experiment(GDP, rounds=7, partition={"scheme": "iid", "clients": 10}, cohort={"name": "round_robin", "size": 3})
    )
    federation, granted = spend(parts)
    assert counts(granted, 10) == [3] + [2] * 9 == list(parts.setup.plan.participations)
    assert [len(paid(federation, k)) for k in range(10)] == [3] + [2] * 9
    check_caps(federation)
    cap = federation.plan.cap
    assert cap is not None
    for k in range(10):  # everybody's budget is spent to the last unit, whatever its number of turns
        assert federation.ledger.remaining(str(k)) == (0,)
    refused = federation.ledger.reserve("run/7", {"0": (1,)}, b"")
    assert refused == frozenset()


@pytest.mark.parametrize("schedule", ["uniform", "linear_front", "linear_back", "adaptive"])
@pytest.mark.parametrize(
    "cohort", [{"name": "everyone"}, {"name": "random", "size": 3, "t_plan": 3}, {"name": "round_robin", "size": 2}]
)
def test_nobody_ever_exceeds_a_cap(schedule: str, cohort: dict[str, Any]) -> None:
    privacy = {"epsilon": 4.0, "schedule": {"name": schedule}}
    federation, _ = spend(simulated(experiment(GDP, rounds=9, cohort=cohort, privacy=privacy)))
    check_caps(federation)


@pytest.mark.parametrize(("schedule", "status"), [("linear_back", "proved"), ("adaptive", "conditional")])
def test_spending_that_follows_from_releases_is_not_called_proved(schedule: str, status: str) -> None:
    privacy = {"epsilon": 4.0, "schedule": {"name": schedule}}
    federation, _ = spend(simulated(experiment(GDP, rounds=9, privacy=privacy)))
    rows = [row for row in statement([e.note for e in federation.entries()], 5, 1e-5) if row.unit == "example"]
    assert {row.status for row in rows} == {status}
    assert all(("epsilon 4" in "".join(row.because)) == (status == "conditional") for row in rows)


def test_what_holds_in_any_case_is_said_of_the_unit_that_pays() -> None:
    """An example that is replaced may turn its client's upload around: the sum moves by twice what the noise was made
    for, and the client's own epsilon does not hold for it."""
    uplink = {"client": [{"name": "clip", "radius": 1.0}], "server": [{"name": "noise", "neighbours": "zero_out"}]}
    privacy = {"epsilon": 4.0, "schedule": {"name": "adaptive"}}
    federation, _ = spend(simulated(experiment({"name": "fedavg"}, rounds=9, uplink=uplink, privacy=privacy)))
    found = statement([entry.note for entry in federation.entries()], 5, 1e-5)
    rows = [row for row in found if row.adversary == "public"]
    assert [(row.unit, row.neighbours) for row in rows] == [("example", "replace"), ("client", "zero_out")]
    for row in rows:
        assert [reason for reason in row.because if "per client (zero_out) always holds" in reason]
    assert rows[0].epsilon > 4 > rows[1].epsilon
    assert epsilon_of(2 * mu_of(4.0, 1e-5), 1e-5) > 8  # so much may be lost of an example


def test_a_receipt_says_that_no_release_may_end_a_run(tmp_path: Path) -> None:
    """Whoever goes on to a second round only where the first one has told little loses more than delta."""
    mu, delta = 1.0, 1e-5
    first, both = (epsilon_of(math.sqrt(rounds) * mu, delta) for rounds in (1, 2))
    losses, step = np.linspace(-8.0, first, 2001, retstep=True)  # after which it goes on: a loss is N(mu^2 / 2, mu^2)
    density = np.exp(-((losses - mu**2 / 2) ** 2) / (2 * mu**2)) / math.sqrt(2 * math.pi * mu**2)
    later = [delta_of(both - loss, mu) for loss in losses.tolist()]
    assert delta + float(np.dot(density, later)) * float(step) > 1.5 * delta
    assert TUNING in start(experiment(GDP), tmp_path / "run").receipt.assumptions
    assert "when a run ends" in TUNING


def test_who_is_drawn_more_often_than_planned_abstains() -> None:
    parts = simulated(experiment(GDP, rounds=12, cohort={"name": "random", "size": 3, "t_plan": 5}))
    federation, granted = spend(parts)
    drawn = counts([parts.setup.cohort.draw(t, 5, parts.setup.key) for t in range(12)], 5)
    assert max(drawn) > 5  # some were
    assert counts(granted, 5) == [min(5, times) for times in drawn]
    check_caps(federation)


def test_the_published_selection_abstains_where_it_would_overspend() -> None:
    """1/f no whole number: the first block comes round more often than R f times; its last turns are not granted."""
    parts = simulated(
        experiment(
            GDP,
            rounds=10,
            partition={"scheme": "iid", "clients": 10},
            cohort={"name": "round_robin_peer", "fraction": 0.3},
        )
    )
    federation, granted = spend(parts)
    turns = counts([parts.setup.cohort.draw(t, 10, parts.setup.key) for t in range(10)], 10)
    assert turns == [4] * 3 + [3] * 6 + [0]
    assert counts(granted, 10) == [min(3, t) for t in turns]
    check_caps(federation)


def test_the_dropped_pay_nothing_and_the_late_pay() -> None:
    """The same clients are slow under both policies; who is late has computed, so it has spent."""
    changes = {"rounds": 6, "cohort": {"name": "everyone"}}
    alone, dropped = spend(simulated(experiment(GDP, **changes, stragglers={"share": 0.4, "policy": "drop"})))
    late, all_of_them = spend(simulated(experiment(GDP, **changes, stragglers={"share": 0.4, "policy": "late"})))
    assert [len(who) for who in dropped] == [3] * 6
    assert all_of_them == [[0, 1, 2, 3, 4]] * 6
    for k in range(5):
        assert len(paid(alone, k)) == sum(k in who for who in dropped) < 6
        assert len(paid(late, k)) == 6


CENTRAL = {"client": [{"name": "clip", "radius": 1.0}], "server": [{"name": "noise", "neighbours": "zero_out"}]}


HIDDEN = {
    "cohort": {"name": "poisson", "rate": 0.2},
    "uplink": CENTRAL,
    "privacy": {"epsilon": 8.0, "delta": 1e-3, "schedule": {"name": "linear_front"}},
    "rounds": 12,
}


FEDAVG = {"name": "fedavg", "local_steps": 1, "batch_size": "full"}


def test_in_a_hidden_cohort_everybody_pays_in_every_round() -> None:
    parts = simulated(experiment(FEDAVG, **HIDDEN))
    federation, granted = spend(parts)
    assert [] in granted  # also in a round that drew nobody
    assert all(list(entry.charges) == [EVERYONE] for entry in federation.ledger.entries())
    assert [len(paid(federation, k)) for k in range(5)] == [12] * 5
    check_caps(federation)


def multipliers_used(made: config.Experiment) -> Iterator[tuple[float, dict[int, Price | None]]]:
    """Of the central noise, beside the prices of the round; nothing is written, so no receipt has to be composed."""
    from sordino.privacy.uplink import Uplink

    noise, prices = [], []
    receive, reserve = Uplink.receive, FederatedServer.reserve

    def heard(self: Any, *arguments: Any, **named: Any) -> Any:
        noise.append(arguments[4])
        return receive(self, *arguments, **named)

    def asked(self: Any, now: Any, price: Any) -> Any:
        prices.append(dict(price))
        return reserve(self, now, price)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Uplink, "receive", heard)
        patch.setattr(FederatedServer, "reserve", asked)
        parts = simulated(made)
        federation, clients, server = (
            parts.federation(":memory:", "run"),
            parts.site("run"),
            parts.setup.state("server"),
        )
        for t in range(made.rounds):
            server = one_round(federation, server, t, clients).server
    yield from zip(noise, prices, strict=True)


def test_central_noise_is_sized_for_the_one_who_paid_least() -> None:
    """In a visible cohort the clients of a round may have different shares: the smallest one decides the noise."""
    uplink = {"client": [{"name": "clip", "radius": 1.0}], "server": [{"name": "noise", "neighbours": "zero_out"}]}
    privacy = {"epsilon": 8.0, "delta": 1e-3, "schedule": {"name": "geometric", "ratio": 2.0}}
    made = experiment(FEDAVG, uplink=uplink, privacy=privacy)
    mixed = 0
    for used, prices in multipliers_used(made):
        asked = [price.multiplier for price in prices.values() if price is not None]
        assert used == max(asked)
        mixed += asked[0] < max(asked)
    assert mixed  # the first client's price would have been too little


@pytest.mark.parametrize("schedule", [pytest.param("linear_front", marks=pytest.mark.slow), "adaptive"])
def test_a_round_that_draws_nobody_is_released_with_noise(schedule: str) -> None:
    """Whether anybody was drawn must not show; the last round too, when the whole budget is spent."""
    changes = HIDDEN | {"privacy": {"epsilon": 8.0, "delta": 1e-3, "schedule": {"name": schedule}}, "rounds": 3}
    seed = next(
        seed
        for seed in itertools.count()
        if not simulated(experiment(FEDAVG, **changes, seed=seed)).setup.cohort.draw(
            2, 5, simulated(experiment(FEDAVG, seed=seed)).setup.key
        )
    )
    used = list(multipliers_used(experiment(FEDAVG, **changes, seed=seed)))
    assert len(used) == 3
    assert used[-1][1] == {}  # nobody
    assert all(noise is not None and noise > 0 for noise, _ in used)


@pytest.mark.parametrize("uplink", [None, CENTRAL | {"server": [{"name": "noise", "neighbours": "zero_out"}]}])
def test_when_everybody_abstains_the_model_stays(uplink: dict[str, Any] | None, tmp_path: Path) -> None:
    import safetensors.torch
    import torch

    made = experiment(
        GDP if uplink is None else FEDAVG,
        privacy={"epsilon": 8.0, "delta": 1e-5},
        stragglers={"share": 1.0, "policy": "drop"},
        **({} if uplink is None else {"uplink": uplink}),
    )
    result = start(made, tmp_path / "run")
    assert [row.answered for row in result.metrics] == [0] * 4
    found = safetensors.torch.load_file(tmp_path / "run" / "model.safetensors")
    first = simulated(made).setup.state("server").x
    assert all(torch.equal(found[name], first[name]) for name in first)
    assert result.receipt.budget.spent_share.max == 0


def test_a_shared_ledger_serves_two_runs_and_no_more(tmp_path: Path) -> None:
    """The second run finds the budget spent: everybody abstains, now and when the spending is counted anew."""
    privacy = {"epsilon": 4.0, "ledger": str(tmp_path / "shared.sqlite")}
    first = start(experiment(GDP, privacy=privacy), tmp_path / "first")
    second = start(experiment({**GDP, "lr": 0.2}, privacy=privacy), tmp_path / "second")
    assert [row.answered for row in first.metrics] == [2] * 4
    assert [row.answered for row in second.metrics] == [0] * 4
    assert second.receipt.budget.participations_used.max == 0
    from sordino.receipts.verify import verify

    assert verify(tmp_path / "first") == []  # what another run spends later does not unmake a receipt
    assert verify(tmp_path / "second") == []


@pytest.mark.slow
def test_a_run_whose_budget_is_spent_keeps_its_last_round(tmp_path: Path) -> None:
    """However rare checkpoints are, as when it is stopped: another run took a part of a ledger that both share."""
    privacy = {**HIDDEN["privacy"], "ledger": str(tmp_path / "shared.sqlite")}
    with killed_at("published", 4):
        start(experiment(FEDAVG, **{**HIDDEN, "privacy": privacy}), tmp_path / "first")
    given = {**HIDDEN, "privacy": privacy, "engine": {"checkpoint_every": 50}}
    second = start(experiment({**FEDAVG, "lr": 0.2}, **given), tmp_path / "second")
    assert 0 < len(second.metrics) < 12
    (kept,) = (tmp_path / "second" / "checkpoints").iterdir()
    assert kept.name == f"round-{len(second.metrics):06}.ckpt"
    assert resume(tmp_path / "second").metrics == second.metrics  # still spent


@pytest.mark.parametrize("change", [{"seed": 1}, {"partition": {"scheme": "iid", "clients": 2}}])
def test_a_shared_ledger_is_of_clients_who_hold_the_same_rows(change: dict[str, Any], tmp_path: Path) -> None:
    """Client 3 of one run is client 3 of the next: else the sum is of two people's losses, and below that of either."""
    privacy = {"epsilon": 4.0, "ledger": str(tmp_path / "shared.sqlite")}
    start(experiment(GDP, privacy=privacy), tmp_path / "first")
    before = (tmp_path / "shared.sqlite").read_bytes()
    with pytest.raises(LedgerError) as refusal:
        start(experiment(GDP, privacy=privacy, **change), tmp_path / "second")
    assert refusal.value.code == "ledger-foreign"
    assert not (tmp_path / "second").exists()
    assert (tmp_path / "shared.sqlite").read_bytes() == before


def test_pure_noise_keeps_its_promise_at_delta_0() -> None:
    federation, _ = spend(simulated(experiment({"name": "laplace"}, privacy={"epsilon": 8.0, "delta": 0.0})))
    (row, *_) = statement([entry.note for entry in federation.entries()], federation.population, 0.0)
    assert row.epsilon == pytest.approx(8.0)
    assert row.delta == 0


@pytest.mark.parametrize("name", ["laplace", "gaussian_simple", "gaussian_gdp"])
def test_the_step_size_costs_nothing(name: str) -> None:
    """Noise on the parameters is noise on the gradient, scaled with it: halving eta leaves every claim as it was."""

    def claims(lr: float) -> object:
        parts = simulated(
            config.load(None, [f"algorithm={{name='{name}', lr={lr}}}", "privacy={epsilon=4.0}", "rounds=20"])
        )
        price = parts.setup.plan.price(0, 0, parts.setup.plan.currency.zero())
        assert price is not None
        return price, parts.setup.algorithm.read.claims(parts.setup.algorithm.work, 60, price.multiplier)

    assert claims(0.1) == claims(0.05)
