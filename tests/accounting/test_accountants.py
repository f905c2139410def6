"""Accountants against closed forms, other implementations, and deliberately broken twins."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.accounting import events
from sordino.accounting.accountants import _losses, _reduce, best, bounds, epsilon_by
from sordino.accounting.events import (
    DiscreteGaussian,
    Event,
    Gaussian,
    Laplace,
    NoAccess,
    NonPrivate,
    Poisson,
    Repeat,
    Together,
    amplified,
)
from sordino.accounting.gaussian_dp import epsilon_of
from sordino.errors import InvalidBudget, PrivacyError, UnsoundGuarantee, UnsupportedEvent
from tests.accounting.priced import PRV, by, sampled, slow, to_dp_event

INTEGERS = tuple(range(2, 257))


FEW_ORDERS = (1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # enough for laws that hold at any orders


# ---------------------------------------------------------------------------------------------- known numbers
@pytest.mark.one_fast
@pytest.mark.parametrize(
    ("rate", "z", "steps", "improved", "basic"),
    [(1.0, 1.0, 1, 4.75273, 5.30259), (0.01, 1.0, 1000, 2.10775, 2.53835), (0.2, 2.0, 100, 5.55518, 6.18068)],
)
def test_renyi_at_integer_orders(rate: float, z: float, steps: int, improved: float, basic: float) -> None:
    event = Repeat(Poisson(rate, Gaussian(z)), steps)
    assert epsilon_by("rdp", event, 1e-5, "zero_out", orders=INTEGERS) == pytest.approx(improved, abs=1e-5)
    rho = [steps * renyi(a, rate, z) for a in INTEGERS]
    assert min(r + math.log(1e5) / (a - 1) for a, r in zip(INTEGERS, rho, strict=True)) == pytest.approx(
        basic, abs=1e-5
    )
    mine = min(r + math.log1p(-1 / a) - math.log(1e-5 * a) / (a - 1) for a, r in zip(INTEGERS, rho, strict=True))
    assert mine == pytest.approx(improved, abs=1e-5)


@pytest.mark.one_fast
@pytest.mark.parametrize("rate", [0.1, 1.0, *(pytest.param(rate, marks=slow) for rate in (1e-4, 0.5, 0.999))])
@pytest.mark.parametrize("scale", [1.0, *(pytest.param(scale, marks=slow) for scale in (0.3, 2.3456, 60.0))])
@pytest.mark.parametrize(
    "law",
    [(Gaussian, pld.from_gaussian_mechanism), (Laplace, pld.from_laplace_mechanism)],
    ids=["gaussian", "laplace"],
)
def test_losses_are_those_of_dp_accounting_to_the_bit(law: Any, scale: float, rate: float) -> None:
    (event, known), grid, asked = law, 2.0**-6, np.linspace(-2, 8, 1001)
    theirs = known(scale, sampling_prob=rate, value_discretization_interval=grid)
    twin = known(scale, sampling_prob=rate * (1 - 1e-9), value_discretization_interval=grid)
    mine = [event(scale).loss(pld, grid, rate, added=added) for added in (False, True)]
    apart = [pld.PrivacyLossDistribution(pmf) for pmf in (theirs._pmf_remove, theirs._pmf_add)]
    found = [each.self_compose(3).get_delta_for_epsilon(asked).tolist() for each in (*mine, *apart, twin)]
    assert found[:2] == found[2:4]
    assert found[4] not in found[:2]


def renyi(order: int, rate: float, z: float) -> float:
    """Mironov, Talwar & Zhang 2019 at an integer order, summed exactly as printed."""
    if rate == 1:
        return order / (2 * z * z)
    total = math.fsum(
        math.comb(order, j) * (1 - rate) ** (order - j) * rate**j * math.exp(j * (j - 1) / (2 * z * z) - order * 2)
        if j * (j - 1) / (2 * z * z) - order * 2 < 700 else math.inf
        for j in range(order + 1)
    )  # fmt: skip
    return (math.log(total) + order * 2) / (order - 1) if 0 < total < math.inf else math.inf


def test_renyi_of_order_two_in_closed_form() -> None:
    assert renyi(2, 0.01, 1.0) == pytest.approx(math.log1p(1e-4 * (math.e - 1)), rel=1e-9)
    assert math.log1p(1e-4 * (math.e - 1)) == pytest.approx(1.718134e-4, rel=1e-6)


@pytest.mark.one_fast
@pytest.mark.parametrize(
    "events",
    [
        (Gaussian(1.3),),
        (Repeat(Poisson(0.1, Gaussian(0.8)), 20), Gaussian(2.0)),
        (Repeat(Laplace(3.0), 4), Repeat(Poisson(0.3, Laplace(1.0)), 5)),
    ],
    ids=["gaussian", "sampled", "laplace"],
)
def test_loss_distributions_are_those_of_the_accountant_of_dp_accounting(events: tuple[Event, ...]) -> None:
    """On the same grid, whatever it is; the twin that forgets to sample is not."""
    from dp_accounting.pld import PLDAccountant

    step = 2.0**-10
    theirs = PLDAccountant(value_discretization_interval=step)
    for event in events:
        theirs.compose(to_dp_event(event))
    for delta in (1e-6, 1e-3):
        each = (_losses(_reduce(Together(events), "zero_out"), step, added) for added in (False, True))
        ours = max(one.get_epsilon_for_delta(delta) for one in each)
        assert ours == pytest.approx(theirs.get_epsilon(delta), rel=1e-9)
    bare = Together(
        tuple(
            Repeat(e.event.event, e.count) if isinstance(e, Repeat) and isinstance(e.event, Poisson) else e
            for e in events
        )
    )
    unsampled = _losses(_reduce(bare, "zero_out"), step).get_epsilon_for_delta(1e-3)
    assert (unsampled > 1.2 * theirs.get_epsilon(1e-3)) == (bare != Together(events))


@pytest.mark.parametrize(
    ("releases", "mu", "delta"),
    [(1000, 1.05, 1e-12), *(pytest.param(*p, marks=slow) for p in ((10**4, 3.0, 1e-11), (10**5, 3.16, 1e-12)))],
)
def test_no_epsilon_of_composed_losses_is_below_the_exact_one(releases: int, mu: float, delta: float) -> None:
    """The sample leaves somebody out with a chance of 1e-12: all but `releases` times that of what the unsampled noise
    loses is lost."""
    event = Repeat(Poisson(1 - 1e-12, Gaussian(math.sqrt(releases) / mu)), releases)
    assert best(event, delta, "zero_out").epsilon >= epsilon_of(mu, delta * (1 + 1e-5))


@pytest.mark.slow
def test_loss_distributions_lie_below_renyi() -> None:
    assert by("pld", Repeat(Poisson(0.01, Gaussian(1.0)), 1000), 1e-5) == pytest.approx(1.828, abs=1e-3)
    assert by("pld", Repeat(Poisson(0.2, Gaussian(2.0)), 100), 1e-5) == pytest.approx(5.023, abs=1e-3)


@pytest.mark.parametrize(
    ("nominal", "true"),
    [(5, 0.749), (30, 5.604), *(pytest.param(*p, marks=slow) for p in ((1, 0.130), (10, 1.607), (20, 3.503)))],
)
def test_twenty_classic_participations_cost_less_than_their_label(nominal: float, true: float) -> None:
    z = math.sqrt(2 * math.log(1.25 / 5e-7)) / (nominal / 20)
    assert best(Repeat(Gaussian(z), 20), 1e-5, "replace").epsilon == pytest.approx(true, abs=6e-4)


def test_an_average_of_twenty_models_hides_more() -> None:
    z = math.sqrt(2 * math.log(1.25 / 5e-7)) / 0.5
    assert by("gdp", Repeat(Gaussian(z * math.sqrt(20)), 20), 1e-5, "replace") == pytest.approx(0.312, abs=5e-4)


@pytest.mark.parametrize(("pure", "renyi_value"), [(10, 9.35), (25, 24.31), (50, 49.31), (75, 74.31), (100, 99.31)])
def test_laplace_pure_and_renyi(pure: float, renyi_value: float) -> None:
    event = Repeat(Laplace(20 / pure), 20)
    assert by("pure", event, 1e-5, "replace") == pytest.approx(pure, rel=1e-12)
    assert epsilon_by("rdp", event, 1e-5, "replace", orders=INTEGERS) == pytest.approx(renyi_value, abs=6e-3)
    assert [b.accountant for b in bounds(event, 0.0, "replace")] == ["pure"]


@given(st.floats(0.05, 5.0), st.floats(1e-9, 1e-2))
@settings(max_examples=3, deadline=None)
def test_one_laplace_draw_in_closed_form(epsilon: float, delta: float) -> None:
    exact = max(0.0, epsilon + 2 * math.log1p(-delta))  # delta = 1 - e^((eps' - eps)/2)
    assert by("pld", Laplace(1 / epsilon), delta, "zero_out") == pytest.approx(exact, abs=1e-3 * epsilon)
    assert by("pld", Laplace(1 / epsilon), delta, "zero_out") >= exact - 1e-9


@pytest.mark.slow
@pytest.mark.parametrize(("a", "b"), [(0.3, 2.0), (1.0, 1.0)])
def test_laplace_worst_vector_puts_its_length_on_one_coordinate(a: float, b: float) -> None:
    # why one scalar event may stand for a vector with a bounded 1-norm
    for delta in (1e-9, 0.3):
        split, whole = Together((Laplace(1 / a), Laplace(1 / b))), Laplace(1 / (a + b))
        assert by("pld", split, delta) <= by("pld", whole, delta) + 1e-4
        assert by("rdp", split, delta) <= by("rdp", whole, delta) + 1e-9


def test_sampled_laplace() -> None:
    assert amplified(1.0, 0.1) == pytest.approx(math.log(1 + 0.1 * (math.e - 1)), rel=1e-12)
    assert amplified(1000.0, 0.1) == pytest.approx(1000 + math.log(0.1), rel=1e-12)  # no overflow
    assert amplified(2.5, 1.0) == pytest.approx(2.5, rel=1e-12)
    event = Poisson(0.1, Laplace(1.0))
    assert by("pure", event, 1e-5) == pytest.approx(amplified(1.0, 0.1), rel=1e-12)
    assert by("pld", event, 1e-12) == pytest.approx(amplified(1.0, 0.1), rel=1e-3)
    assert by("pld", Repeat(event, 50), 1e-5) < by("pure", Repeat(event, 50), 1e-5)


# --------------------------------------------------------------------------------------------------- the laws
KINDS: dict[str, Event] = {
    "gaussian": Gaussian(3.0),
    "laplace": Laplace(4.0),
    "sampled gaussian": Poisson(0.1, Gaussian(1.5)),
    "sampled laplace": Poisson(0.1, Laplace(1.0)),
    "gaussians on one sample": Poisson(0.1, Together((Gaussian(2.0), Repeat(Gaussian(3.0), 2)))),
    "everybody sampled": Poisson(1.0, Gaussian(2.0)),
    "both noises": Together((Gaussian(3.0), Laplace(4.0))),
    "nothing": NoAccess(),
}


DEAR = {"gaussians on one sample", "everybody sampled", "both noises"}  # built from the other kinds


@pytest.mark.parametrize("event", [pytest.param(e, id=k, marks=[slow] * (k in DEAR)) for k, e in KINDS.items()])
@pytest.mark.slow
def test_every_kind_has_two_opinions_and_composition_is_counting(event: Event) -> None:
    once = bounds(event, 1e-5, "zero_out")
    assert len({b.accountant for b in once}) >= 2
    written_out, counted = Together((event,) * 6), Repeat(Repeat(event, 2), 3)
    assert bounds(written_out, 1e-5, "zero_out") == bounds(counted, 1e-5, "zero_out")
    assert all(b.epsilon >= 0 for b in once)


@pytest.mark.parametrize("event", [e for k, e in KINDS.items() if k != "sampled laplace"])
def test_counting_equals_composing_n_times(event: Event) -> None:
    from dp_accounting.rdp import RdpAccountant

    orders = (1.5, *range(2, 40))
    accountant = RdpAccountant(orders)
    for _ in range(7):
        accountant.compose(to_dp_event(event))
    counted = epsilon_by("rdp", Repeat(event, 7), 1e-5, "zero_out", orders=orders)
    assert counted == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-9)


def test_gaussians_add_up_to_one_gaussian() -> None:
    parts = Together((Gaussian(3.0), Repeat(Gaussian(4.0), 2), NoAccess()))
    z = (1 / 9 + 2 / 16) ** -0.5
    for name in ("gdp", "rdp", "pld"):
        assert by(name, parts, 1e-6) == pytest.approx(by(name, Gaussian(z), 1e-6), rel=1e-9)


@pytest.mark.parametrize("hole", [Gaussian(0.0), Laplace(0.0), NonPrivate("raw"), Gaussian(1e-320)])
def test_no_noise_is_infinite_wherever_it_hides(hole: Event) -> None:
    for event in (hole, Together((Gaussian(5.0), hole)), Poisson(0.01, hole), Repeat(Poisson(1.0, hole), 3)):
        assert best(event, 1e-5, "zero_out").epsilon == math.inf
        assert all(b.epsilon == math.inf for b in bounds(event, 1e-5, "zero_out"))
        assert epsilon_by("rdp", event, 1e-5, "zero_out") == math.inf


@pytest.mark.slow
def test_a_tiny_loss_is_not_called_zero() -> None:
    # at these deltas the total variation distance alone exceeds delta, so epsilon = 0 would be false
    for event, delta, distance in (
        (Gaussian(1e4), 1e-12, math.erf(0.5e-4 / math.sqrt(2))),
        (Poisson(1e-4, Gaussian(1.0)), 1e-6, 1e-4 * math.erf(0.5 / math.sqrt(2))),
        (Poisson(1e-7, Gaussian(2.0)), 1e-10, 1e-7 * math.erf(0.25 / math.sqrt(2))),
    ):
        assert distance > delta
        assert all(b.epsilon > 0 for b in bounds(event, delta, "zero_out"))


@pytest.mark.parametrize("noise", [1e-5, pytest.param(1 / 699, marks=slow), pytest.param(1e300, marks=slow)])
def test_huge_and_tiny_noise_are_charged_without_overflow(noise: float) -> None:
    for event in (Gaussian(noise), Laplace(noise), Poisson(1e-9, Gaussian(noise)), Poisson(0.01, Laplace(noise))):
        assert all(0 <= b.epsilon < math.inf for b in bounds(event, 1e-5, "zero_out"))


@pytest.mark.parametrize("name", ["rdp", pytest.param("pld", marks=slow)])
def test_monotone_in_steps_rate_and_noise(name: str) -> None:
    def cost(event: Event, delta: float = 1e-5) -> float:
        return epsilon_by(name, event, delta, "zero_out", orders=FEW_ORDERS)

    for values in (
        [cost(Repeat(Poisson(0.05, Gaussian(1.2)), steps)) for steps in (1, 40, 2000)],
        [cost(Repeat(Poisson(q, Gaussian(1.2)), 100)) for q in (0.001, 0.1, 0.5, 1.0)],
        [cost(Repeat(Poisson(0.05, Gaussian(1 / s)), 100)) for s in (0.1, 0.5, 1.0)],
        [cost(Repeat(Gaussian(4.0), 30), delta) for delta in (1e-3, 1e-5, 1e-9)],
    ):
        assert values == sorted(values)
        assert values[0] < values[-1]


@pytest.mark.slow
def test_a_sampled_discrete_gaussian_is_known_at_whole_orders_alone() -> None:
    """There the moments of both laws agree; between two of them nothing is known, and nothing is counted as free."""
    for rate, z, rounds in ((0.1, 1.0, 50), (0.01, 0.7, 1000), (0.5, 4.0, 10)):
        found = epsilon_by("rdp", Repeat(Poisson(rate, DiscreteGaussian(z)), rounds), 1e-5, "zero_out")
        continuous = Repeat(Poisson(rate, Gaussian(z)), rounds)
        assert found == pytest.approx(epsilon_by("rdp", continuous, 1e-5, "zero_out", orders=INTEGERS), rel=1e-12)
        assert found >= epsilon_by("rdp", continuous, 1e-5, "zero_out")


def test_refusals() -> None:
    half = Poisson(0.5, Gaussian(1.0))
    for neighbours in ("replace", "zero_out"):
        assert best(Gaussian(1.0), 1e-5, neighbours).epsilon == pytest.approx(4.37718, abs=1e-5)
        assert best(Poisson(0.5, NonPrivate("raw")), 1e-5, neighbours).epsilon == math.inf
    with pytest.raises(UnsupportedEvent) as caught:
        bounds(Repeat(half, 3), 1e-5, "replace")
    assert caught.value.code == "poisson-needs-zero-out"
    for inside in (Together((Gaussian(1.0), Laplace(1.0))), half, Repeat(Laplace(1.0), 2)):
        with pytest.raises(UnsupportedEvent) as caught:
            bounds(Poisson(0.1, inside), 1e-5, "zero_out")
        assert caught.value.code == "sampled-event-not-supported"
    with pytest.raises(UnsoundGuarantee) as caught:
        bounds(half, 1e-5, "siblings")
    assert caught.value.code == "unknown-neighbours"
    for accountant, event in (("gdp", half), ("rdp", Poisson(0.1, Laplace(1.0))), ("gut feeling", half)):
        with pytest.raises(UnsupportedEvent) as caught:
            epsilon_by(accountant, event, 1e-5, "zero_out")
        assert caught.value.code == "accountant-does-not-apply"
    for delta in (-1e-5, 1.0, math.nan, True):
        with pytest.raises(InvalidBudget) as budget:
            bounds(half, delta, "zero_out")
        assert budget.value.code == "delta-out-of-range"
    assert issubclass(UnsupportedEvent, PrivacyError)


# ----------------------------------------------------------------------------- other accountants, broken twins
@slow  # importing the other implementation takes longer than all the rest of this file
def test_renyi_equals_opacus_at_the_same_orders() -> None:
    analysis = pytest.importorskip("opacus.accountants.analysis.rdp")
    for row in PRV[::12]:
        rdp = analysis.compute_rdp(
            q=row["rate"], noise_multiplier=row["noise_multiplier"], steps=row["steps"], orders=list(INTEGERS)
        )
        theirs, _ = analysis.get_privacy_spent(orders=list(INTEGERS), rdp=rdp, delta=row["delta"])
        ours = epsilon_by("rdp", sampled(row), row["delta"], "zero_out", orders=INTEGERS)
        assert ours == pytest.approx(theirs, rel=1e-6)


@slow
def test_renyi_above_loss_distribution_above_exact_on_60_points() -> None:
    rng = np.random.default_rng(4)
    for _ in range(60):
        z, q, delta = 10 ** rng.uniform(-0.3, 1), 10 ** rng.uniform(-3, 0), 10 ** rng.uniform(-9, -3)
        steps = int(10 ** rng.uniform(0, 3.5))
        event = Repeat(Poisson(q, Gaussian(z)), steps)
        pld = epsilon_by("pld", event, delta, "zero_out")
        assert epsilon_by("rdp", event, delta, "zero_out", orders=FEW_ORDERS) >= pld * (1 - 1e-6)
        exact = epsilon_of(math.sqrt(steps) / (10 * z), delta)
        plain = Repeat(Gaussian(10 * z), steps)
        assert by("gdp", plain, delta, "replace") == pytest.approx(exact, rel=1e-9)
        assert all(b.epsilon >= exact * (1 - 1e-6) for b in bounds(plain, delta, "replace", orders=FEW_ORDERS))


@pytest.mark.parametrize(
    ("z", "delta"), [(1.0, 1e-5), *(pytest.param(*p, marks=slow) for p in ((3.0, 1e-6), (0.7, 1e-9)))]
)
def test_two_steps_of_a_client_row_bound_replacing_an_example(z: float, delta: float) -> None:
    from sordino.accounting.composition import two_steps

    # the exact answer is known for a Gaussian: replacing is one step of twice the sensitivity, mu = 2/z
    claimed = two_steps(Gaussian(z), delta, "zero_out")
    assert claimed >= epsilon_of(2 / z, delta)
    assert claimed < 2.5 * epsilon_of(2 / z, delta)
    assert claimed > 2 * epsilon_of(1 / z, delta)  # the broken twin that forgets the smaller delta


@pytest.mark.slow
def test_millions_of_releases_are_priced_at_once() -> None:
    """A loss distribution of ten million releases takes minutes; Renyi divergences are sums. No dearer by more than a
    tenth where both can be asked.
    """
    event = Repeat(Poisson(0.05, Gaussian(20.0)), 100_000)
    both = [epsilon_by(name, event, 1e-5, "zero_out") for name in ("pld", "rdp")]
    assert both[0] <= both[1] <= 1.1 * both[0]
    many = Repeat(Poisson(0.05, Gaussian(200.0)), 10_000_000)
    assert [bound.accountant for bound in bounds(many, 1e-5, "zero_out")] == ["rdp"]


@pytest.mark.one_fast
@pytest.mark.parametrize(("noise", "count", "delta"), [(0.4, 1, 1e-9), (3.0, 40, 1e-5), (200.0, 2, 0.05)])
def test_of_plain_gaussians_no_accountant_is_below_the_exact_one(noise: float, count: int, delta: float) -> None:
    """So `best` asks no other one."""
    event = Repeat(Gaussian(noise), count)
    assert best(event, delta, "replace") == min(bounds(event, delta, "replace"), key=lambda bound: bound.epsilon)


@dataclass(frozen=True)
class Geometric(Event):
    """A mechanism that no accountant knows."""

    epsilon: float

    def settled(self, neighbours: str) -> Iterator[tuple[Event | None, int]]:
        yield self, 1

    def pure(self, rate: float = 1.0) -> float:
        return amplified(self.epsilon, rate)


def test_a_new_event_is_composed_by_what_it_says_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(events._NAMES, Geometric, "geometric")  # its row
    [alone] = bounds(Geometric(0.5), 1e-5, "replace")
    assert (alone.accountant, alone.epsilon) == ("pure", pytest.approx(0.5))
    [mixed] = bounds(Together((Geometric(0.5), Laplace(4.0), Laplace(4.0))), 1e-5, "replace")
    assert (mixed.accountant, mixed.epsilon) == ("pure", pytest.approx(1.0))
    assert math.isinf(best(Together((Geometric(0.5), Gaussian(1.0))), 1e-5, "replace").epsilon)  # nothing is proved
    assert math.isinf(best(Event(), 1e-5, "replace").epsilon)  # what says nothing is unprotected
