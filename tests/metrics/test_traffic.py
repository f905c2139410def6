"""Formula (18) of SlaugFL against the messages it counts and the published ratios, and what it makes of published
savings.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.metrics import RoundRow
from sordino.metrics.measures import bytes_to, rounds_to
from sordino.synthesis.slaug.messages import Sizes

CIFAR10_S1 = Sizes(100, 10, 300, 10, 11_173_962, 1_594_988, 512)
CIFAR10_S2 = CIFAR10_S1._replace(generator=682_499)
CIFAR100_S1 = Sizes(100, 10, 300, 100, 11_271_432, 15_949_880, 512)  # a head for real and one for synthetic classes
CIFAR100_S2 = CIFAR100_S1._replace(generator=1_690_115)
MIO_TCD = Sizes(100, 20, 200, 11, 11_180_118, 1_595_098, 512)


@pytest.mark.parametrize(
    ("sizes", "percent"),
    [
        (CIFAR10_S1, 1.950),
        (CIFAR10_S2, 1.814),
        (CIFAR100_S1._replace(model=11_220_132), 4.492),
        (CIFAR100_S1, 4.479),  # the published maximum, 4.48%, needs 200 outputs
        (CIFAR100_S2, 2.371),
        (MIO_TCD, 1.479),
        (MIO_TCD._replace(devices=10, chosen=2), 1.479),
    ],
)
def test_the_published_ratio(sizes: Sizes, percent: float) -> None:
    assert round(100 * sizes.ratio, 3) == percent


counts = st.integers(1, 30)


@given(counts, counts, counts, counts, counts, counts, counts)
def test_the_formula_counts_every_message_once(m: int, k: int, t: int, c: int, d_m: int, d_g: int, d_p: int) -> None:
    sizes = Sizes(m, k, t, c, d_m, d_g, d_p)
    slaug = fedavg = 0
    for _device in range(m):
        slaug += d_m + d_g  # its own model up, the generator down
    for _label in range(c):
        slaug += d_p  # from the device that was chosen for it
    for _round in range(t):
        for _chosen in range(k):
            slaug += 2 * (d_m + c * d_p)
            fedavg += 2 * d_m
    assert sizes.parameters == slaug - fedavg
    assert sizes.charged(sizes.rounds) == pytest.approx(slaug / (2 * k * d_m))
    once = c * d_p / fedavg  # the prototypes that the published ratio leaves out
    assert sizes.ratio + once == pytest.approx((slaug - fedavg) / fedavg)


def test_the_preparation_costs_rounds_before_the_first_one() -> None:
    upfront = [round(s.upfront, 1) for s in (CIFAR10_S1, CIFAR10_S2, CIFAR100_S1, CIFAR100_S2, MIO_TCD)]
    assert upfront == [5.7, 5.3, 12.1, 5.7, 2.9]


def saving(rounds: float, against: float) -> float:
    """The part of the other's rounds that is not needed."""
    return 1 - rounds / against


@pytest.mark.parametrize(
    ("sizes", "rounds", "against", "published", "charged"),
    [
        (CIFAR10_S1, 38.33, 80.67, 52.49, 45.4),  # rounds to 30%, against VHL
        (CIFAR100_S2, 86.00, 134.33, 35.98, 31.4),  # rounds to 45%, against FedProx
    ],
)
def test_a_published_saving_shrinks_when_all_is_charged(
    sizes: Sizes, rounds: float, against: float, published: float, charged: float
) -> None:
    assert round(100 * saving(rounds, against), 2) == published
    assert round(100 * saving(sizes.charged(rounds), against), 1) == charged


def test_few_rounds_become_twice_as_many() -> None:
    assert [round(MIO_TCD.charged(t), 1) for t in (4, 6)] == [6.9, 8.9]


def run(*accuracies: float | None) -> list[RoundRow]:
    """Rounds of 10 bytes down and 7 up; a round without an accuracy was not evaluated."""
    return [
        RoundRow(round=t, bytes_down=10, bytes_up=7, accuracy=a, loss=None if a is None else 1.0)
        for t, a in enumerate(accuracies, 1)
    ]


def test_to_a_target_all_that_was_sent_until_then_counts() -> None:
    rows = run(None, 0.2, None, 0.5, 0.4, 0.9)
    assert (rounds_to(0.5)(rows), bytes_to(0.5)(rows)) == (4, 4 * 17)
    assert rounds_to(0.45)(rows) == 4  # the first time, though it falls below again
    assert (rounds_to(0.0)(rows), bytes_to(0.0)(rows)) == (2, 2 * 17)  # as soon as it was looked at


@pytest.mark.parametrize("rows", [run(0.2, 0.3), run(None, None), []])
def test_a_target_that_was_not_reached_is_none_and_not_the_end(rows: list[RoundRow]) -> None:
    assert rounds_to(0.5)(rows) is None
    assert bytes_to(0.5)(rows) is None
