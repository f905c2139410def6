"""The plan: exposures known before training, integer shares that never exceed a cap, and who pays in which round.

The formulas of shares, of Gaussian DP and of the Renyi loss are written anew here; the rounds are played without
training.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from sordino import config
from sordino.budget.plan import Budget, Plan, Price, draft
from sordino.budget.schedules import Adaptive, Explicit, Geometric, LinearBack, LinearFront, Schedule, Uniform
from sordino.engine.server import Federation
from sordino.errors import LedgerError, UnsoundGuarantee
from sordino.ledger.currency import UNIT
from sordino.ledger.ledger import EVERYONE
from sordino.ledger.pricing import Renyi
from sordino.privacy.noise.laws import GaussianNoise, LaplaceNoise
from sordino.round import one_round
from sordino.runs.run import start
from sordino.runs.simulation import Simulation, simulated
from sordino.types import Offer

quick = settings(deadline=None, derandomize=True, max_examples=60)

LAWS: dict[str, Offer] = {
    "pure": Offer("example", "replace", "server", LaplaceNoise(), False),
    "classic": Offer("example", "replace", "server", GaussianNoise("classic"), False),
    "exact": Offer("example", "replace", "server", GaussianNoise(), False),
    "renyi": Offer("example", "add_remove", "server", GaussianNoise(), False, rate=0.1),
}
# the share of exposure j = 1..T, as printed in the source
SHARES: dict[str, tuple[Schedule, Callable[[int, int], Fraction]]] = {
    "uniform": (Uniform(), lambda j, t: Fraction(1, t)),
    "linear_front": (LinearFront(), lambda j, t: Fraction(2 * (t - j + 1), t * (t + 1))),
    "linear_back": (LinearBack(), lambda j, t: Fraction(2 * j, t * (t + 1))),
    "geometric": (Geometric(0.5), lambda j, t: Fraction(1, 2 ** (j - 1)) * Fraction(1, 2) / (1 - Fraction(1, 2**t))),
    "list": (
        Explicit(tuple(range(1, 31))),
        lambda j, t: Fraction(2 * j, t * (t + 1)),  # the weights 1, 2, ... of those that are used
    ),
}


def plan_of(
    law: str, epsilon: float, delta: float, schedule: Schedule | Adaptive, times: list[int], reads: int = 1
) -> Plan:
    return draft([(LAWS[law], None)], Budget(epsilon, delta, schedule), times, {"example": [reads] * len(times)})


def charges(plan: Plan, client: int) -> list[Price]:
    priced = [plan.price(client, j, plan.currency.zero()) for j in range(plan.exposures[client])]
    assert plan.price(client, plan.exposures[client], plan.currency.zero()) is None  # one more is refused
    return [price for price in priced if price is not None]


# shares and prices ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("law", "schedule"), [pair for pair in itertools.product(LAWS, SHARES) if pair != ("renyi", "uniform")]
)
def test_shares_are_exact_and_fill_the_cap_to_the_last_unit(law: str, schedule: str) -> None:
    made, share = SHARES[schedule]
    # at the 30th halving a delta of 1e-5 has no whole unit left, and the exposure is refused
    times = [1, 2, 4, 7, 30] if law != "classic" else [1, 2, 4, 7]
    plan = plan_of(law, 0.8, 1e-5, made, times)
    assert plan.cap is not None
    for client, t in enumerate(times):
        priced = charges(plan, client)
        for part, cap in enumerate(plan.cap):
            paid = [price.charge[part] for price in priced]
            assert sum(paid) == cap
            assert all(abs(p - cap * share(j, t)) <= 1 + cap * Fraction(1, 10**14) for j, p in enumerate(paid, 1))


def test_the_numbers_of_the_source() -> None:
    def shares(schedule: Schedule) -> list[float]:
        return [price.charge[0] / UNIT for price in charges(plan_of("pure", 1.0, 1e-5, schedule, [4]), 0)]

    assert shares(Geometric(0.5)) == pytest.approx([8 / 15, 4 / 15, 2 / 15, 1 / 15], abs=1e-11)
    assert shares(LinearFront()) == pytest.approx([0.4, 0.3, 0.2, 0.1], abs=1e-11)

    def multiplier(law: str, epsilon: float, times: int) -> float:
        return charges(plan_of(law, epsilon, 1e-5, Uniform(), [times]), 0)[0].multiplier

    assert multiplier("exact", 1.0, 1) == pytest.approx(3.730632, rel=1e-6)
    assert multiplier("exact", 10.0, 20) == pytest.approx(2.2356, rel=2e-5)
    assert multiplier("classic", 10.0, 20) == pytest.approx(10.856077, rel=1e-6)  # 0.5 and 5e-7 a time
    assert multiplier("pure", 30.0, 20) * 2 * 0.1 * 50 / 600 == pytest.approx(0.01111111, rel=1e-6)
    equal = Explicit((1.0,) * 20)  # listed, so that it is priced release by release in Renyi loss
    sampled = draft([(LAWS["renyi"]._replace(rate=0.01), None)], Budget(1.0, 1e-5, equal), [20], {"example": [1]})
    assert charges(sampled, 0)[0].multiplier == pytest.approx(1.0322, rel=1e-4)


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Balle and Wang 2018, by scipy."""
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu)))


def renyi_loss(rate: float, z: float, order: int) -> float:
    """Mironov, Talwar and Zhang 2019, by summation."""
    terms = [
        math.comb(order, j) * (1 - rate) ** (order - j) * rate**j * math.exp(j * (j - 1) / (2 * z * z))
        for j in range(order + 1)
    ]
    return math.log(math.fsum(terms)) / (order - 1)


@quick
@given(
    st.floats(0.05, 20.0),
    st.sampled_from([1e-3, 1e-5, 1e-8]),
    st.integers(1, 25),
    st.integers(1, 5),
    st.sampled_from(sorted(SHARES)),
)
def test_what_a_client_is_charged_is_what_its_noise_costs(
    epsilon: float, delta: float, times: int, reads: int, schedule: str
) -> None:
    """All exposures and reads of one client, composed anew, stay within the budget and use it up."""
    made, _ = SHARES[schedule]
    gauss = [p.multiplier for p in charges(plan_of("exact", epsilon, delta, made, [times], reads), 0)]
    mu = math.sqrt(reads * math.fsum(1 / z**2 for z in gauss))
    assert gaussian_delta(epsilon, mu) <= delta * (1 + 1e-9)
    assert gaussian_delta(epsilon, mu * 1.001) > delta
    laplace = [p.multiplier for p in charges(plan_of("pure", epsilon, delta, made, [times], reads), 0)]
    assert epsilon * (1 - 1e-9) <= reads * math.fsum(1 / b for b in laplace) <= epsilon


@pytest.mark.parametrize(
    ("epsilon", "times", "reads"),
    [(8.0, 5, 1), *(pytest.param(*p, marks=pytest.mark.slow) for p in ((1.0, 20, 1), (4.0, 50, 3)))],
)
def test_sampled_noise_stays_within_its_budget(epsilon: float, times: int, reads: int) -> None:
    plan = plan_of("renyi", epsilon, 1e-5, LinearFront(), [times], reads)
    assert isinstance(plan.pricing, Renyi)
    order = plan.pricing.order
    loss = reads * math.fsum(renyi_loss(0.1, p.multiplier, order) for p in charges(plan, 0))
    total = loss + math.log1p(-1 / order) - math.log(1e-5 * order) / (order - 1)  # Canonne, Kamath and Steinke 2020
    assert epsilon * 0.999 < total <= epsilon


@pytest.mark.parametrize("rounds", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_fixed_plan_of_sampled_releases_counts_them(rounds: int) -> None:
    """Accounted as a whole it takes less noise than release by release, and every client pays with whole releases of
    its own plan.
    """

    def of(schedule: Schedule, times: list[int]) -> Plan:
        offer = LAWS["renyi"]._replace(rate=0.5)
        return draft([(offer, None)], Budget(8.0, 1e-3, schedule), times, {"example": [1] * len(times)})

    plan = of(Uniform(), [rounds, rounds // 2])
    one_by_one = of(Explicit((1.0,) * rounds), [rounds])
    assert plan.cap == (rounds * UNIT,)
    assert [price.charge for price in charges(plan, 0)] == [(UNIT,)] * rounds
    assert [price.charge for price in charges(plan, 1)] == [(2 * UNIT,)] * (
        rounds // 2
    )  # its turns are all it was granted
    z = {price.multiplier for client in (0, 1) for price in charges(plan, client)}
    assert len(z) == 1
    assert 0.5 * charges(one_by_one, 0)[0].multiplier < z.pop() < charges(one_by_one, 0)[0].multiplier


def test_the_step_size_does_not_change_the_price() -> None:
    prices = []
    for lr in (0.1, 0.05):
        parts = simulated(experiment({"name": "gaussian_gdp", "lr": lr}))
        prices.append([parts.setup.plan.price(k, 0, (0,)) for k in range(5)])
    assert prices[0] == prices[1]


def test_what_cannot_be_priced_is_refused_before_the_first_round() -> None:
    """Clients 3 and 4 have one exposure: their share alone is above what the textbook formula is proved for."""
    parts = simulated(experiment({"name": "gaussian_simple"}, privacy={"epsilon": 1.5}))
    assert sorted(set(parts.setup.cohort.exposures(4, 5))) == [1, 2]
    with pytest.raises(UnsoundGuarantee):
        _ = parts.setup.plan


# adaptive -------------------------------------------------------------------------------------------------------------


@quick
@given(
    st.lists(st.booleans(), min_size=1, max_size=40),
    st.sampled_from(["pure", "exact"]),
    st.floats(0.1, 1.0),
    st.floats(0.0, 5.0),
    st.floats(0.01, 0.1),
)
def test_adaptive_spending_never_exceeds_the_cap(
    stalls: list[bool], law: str, start: float, growth: float, floor: float
) -> None:
    times = len(stalls)
    plan = plan_of(law, 3.0, 1e-5, Adaptive(start, growth, floor), [times])
    assert plan.cap is not None
    spent: tuple[int, ...] = (0,)
    last: tuple[int, ...] | None = None
    for j, stalled in enumerate(stalls):
        price = plan.price(0, j, spent, stalled, last)
        assert price is not None  # the floor keeps something for everyone to come
        if last is not None:
            assert price.charge[0] <= last[0] * (1 + growth * stalled) + 2
        last, spent = price.charge, (spent[0] + price.charge[0],)
        assert spent[0] <= plan.cap[0]
    assert plan.price(0, times, spent, True, last) is None


def test_adaptive_spending_grows_after_a_stall_and_only_then() -> None:
    plan = plan_of("pure", 1.0, 1e-5, Adaptive(0.5, 0.5, 0.1), [10])
    paid: list[int] = []
    for j in range(4):
        price = plan.price(0, j, (sum(paid),), j == 2, (paid[-1],) if paid else None)
        assert price is not None
        paid.append(price.charge[0])
    assert [p / UNIT for p in paid] == pytest.approx([0.05, 0.05, 0.075, 0.075], abs=1e-11)


# rounds without training ----------------------------------------------------------------------------------------------


def experiment(algorithm: dict[str, Any], **changes: Any) -> config.Experiment:
    table = {
        "rounds": 4,
        "partition": {"scheme": "iid", "clients": 5},
        "cohort": {"name": "round_robin", "size": 2},
        "algorithm": algorithm,
        "privacy": {"epsilon": 4.0, "delta": 1e-5},
        "evaluation": {"every": 100, "final": 1},
    }
    return config.validate(table | changes)


GDP = {"name": "gaussian_gdp"}


def spend(parts: Simulation) -> tuple[Federation, list[list[int]]]:
    """Reserve every round as a run would, and compute nothing."""
    federation = parts.federation(":memory:", "run")
    granted = []
    for t in range(parts.setup.experiment.rounds):
        drawn = federation.cohort.draw(t, federation.population, federation.key)
        crew = federation.stragglers.split(drawn, t, federation.key)
        granted.append(federation.reserve(t, federation.prices(crew.active, False)))
    return federation, granted


def counts(granted: list[list[int]], clients: int) -> list[int]:
    return [sum(k in who for who in granted) for k in range(clients)]


def paid(federation: Federation, client: int) -> list[tuple[int, ...]]:
    entries = federation.ledger.entries()
    found = [entry.charges.get(EVERYONE, entry.charges.get(str(client))) for entry in entries]
    return [charge for charge in found if charge is not None]


def check_caps(federation: Federation) -> None:
    cap = federation.plan.cap
    assert cap is not None
    for k in range(federation.population):
        own = paid(federation, k)
        assert sum(charge[0] for charge in own) <= cap[0]
        assert len(own) == federation.exposures.get(federation.payer(k), 0) <= federation.plan.exposures[k]


def test_round_robin_counts_equal_the_ledger() -> None:
    parts = simulated(
        experiment(GDP, rounds=7, partition={"scheme": "iid", "clients": 10}, cohort={"name": "round_robin", "size": 3})
    )
    federation, granted = spend(parts)
    assert counts(granted, 10) == [3] + [2] * 9 == list(parts.setup.plan.exposures)
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


CENTRAL = {"client": [{"name": "clip", "radius": 1.0}], "server": [{"name": "noise", "neighbours": "add_remove"}]}
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
    receive, reserve = Uplink.receive, Federation.reserve

    def heard(self: Any, *arguments: Any) -> Any:
        noise.append(arguments[4])
        return receive(self, *arguments)

    def asked(self: Any, t: int, price: Any) -> Any:
        prices.append(dict(price))
        return reserve(self, t, price)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Uplink, "receive", heard)
        patch.setattr(Federation, "reserve", asked)
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
    assert second.receipt.budget.exposures_used.max == 0
    from sordino.runs.verify import verify

    assert verify(tmp_path / "first") == []  # what another run spends later does not unmake a receipt
    assert verify(tmp_path / "second") == []


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
