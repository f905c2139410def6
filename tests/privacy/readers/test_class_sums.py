"""Sums per class behind a clip and noise: what one example can move, what a budget buys, and what is told of counts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sordino import keys
from sordino.budget import SCHEDULES
from sordino.budget.plan import Budget, draft
from sordino.errors import PrivacyError
from sordino.privacy.noise.sources import Counter
from sordino.privacy.readers.class_sums import ClassSums, class_sums
from sordino.privacy.readers.open import Open
from sordino.types import Examples, Grant, LocalWork
from tests.privacy.doubles import Still
from tests.privacy.readers.few_examples import CLASSES, DIM, DOUBLE, TASK, Z, many, opened


def seen(x: Tensor) -> Tensor:
    """The statistic: an example's own row."""
    return x


def told(reader: Any, rows: Examples, source: Any = None) -> Tensor:
    """All that is released, in the units in which it is noised."""
    sums, counts = opened(reader, rows, source).by_class(seen, CLASSES)
    told_counts = counts * reader.count * reader.clip if reader.count else counts.new_zeros(0)
    return torch.cat([sums.flatten(), told_counts])


def examples(rows: list[list[float]], labels: list[int]) -> Examples:
    return Examples(torch.tensor(rows, dtype=DOUBLE).reshape(-1, DIM), torch.tensor(labels, dtype=torch.int64))


# sensitivity ----------------------------------------------------------------------------------------------------------
numbers = st.sampled_from([0.0, -0.0, 1e-300, 0.3, -1.0, 7.0, 1e30, -1e300, math.inf, -math.inf, math.nan])


row = st.lists(numbers | st.floats(-3, 3), min_size=DIM, max_size=DIM)


sets = st.lists(st.tuples(row, st.integers(0, CLASSES - 1)), min_size=1, max_size=6)


tried = settings(deadline=None, derandomize=True, max_examples=80)


def moved(reader: Any, pairs: list[tuple[list[float], int]]) -> float:
    """How far what is released moves when the last example goes; in units of what noise was sized for. Not a number is
    infinitely far.
    """
    rows, labels = [r for r, _ in pairs], [y for _, y in pairs]
    size = float((told(reader, examples(rows, labels), Still(1.0)) - told(reader, examples(rows, labels))).max()) / Z
    with_, without = (told(reader, examples(rows[:n], labels[:n])) for n in (len(rows), len(rows) - 1))
    found = float((with_ - without).norm()) / size
    return math.inf if math.isnan(found) else found


READERS = [ClassSums(1.0), ClassSums(0.5, count=0.3), ClassSums(2.0, count=3.0)]


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS, ids=lambda r: f"clip {r.clip}, count {r.count}")
def test_one_example_moves_it_no_further_than_the_noise_is_sized_for(reader: ClassSums) -> None:
    worst: list[float] = []

    @tried
    @given(sets)
    def law(pairs: list[tuple[list[float], int]]) -> None:
        worst.append(moved(reader, pairs))
        assert worst[-1] <= 1 + 1e-9

    law()
    assert max(worst) > 0.99  # and some move it by exactly that
    assert reader.sensitivity == pytest.approx(reader.clip * math.hypot(1, reader.count))


@dataclass(frozen=True)
class ClipForgotten(ClassSums):
    """Broken twin: plain sums, and the noise of clipped ones."""

    def open(self, examples: Examples, grant: Grant, task: Any) -> Any:
        return Unclipped(self, examples, grant)


class Unclipped:
    def __init__(self, reader: ClassSums, rows: Examples, grant: Grant) -> None:
        self.reader, self.rows, self.grant = reader, rows, grant

    def by_class(self, of: Any, classes: int) -> tuple[Tensor, Tensor]:
        sums, counts = class_sums(of, self.rows, classes)
        scale = Z * self.reader.sensitivity
        return self.reader.mechanism.add(sums, scale, self.grant.source), counts


@dataclass(frozen=True)
class CountForgotten(ClassSums):
    """Broken twin: the noise is sized for the sums alone."""

    @property
    def sensitivity(self) -> float:
        return self.clip


@pytest.mark.parametrize("twin", [ClipForgotten(1.0), CountForgotten(1.0, count=1.0)], ids=["clip", "count"])
def test_the_law_catches_a_broken_twin(twin: ClassSums) -> None:
    assert moved(twin, [([0.3, 0, 0, 0], 0), ([7.0, 0, 0, 0], 1)]) > 1.1


def test_a_row_that_is_no_number_counts_as_the_origin() -> None:
    honest = examples([[1.0, 0, 0, 0], [0, 0.5, 0, 0]], [0, 1])
    for bad in (math.nan, math.inf, -math.inf):
        rows = examples([[1.0, 0, 0, 0], [0, 0.5, 0, 0], [bad, 1.0, 1.0, 1.0]], [0, 1, 1])
        assert torch.equal(told(ClassSums(1.0), rows), told(ClassSums(1.0), honest))
        counted = told(ClassSums(1.0, count=1.0), rows)[-CLASSES:]
        assert counted.tolist() == [1.0, 2.0, 0.0]  # and still as an example


def by_hand(rows: Examples, clip: float | None = None) -> tuple[Tensor, Tensor]:
    sums, counts = torch.zeros(CLASSES, DIM, dtype=DOUBLE), torch.zeros(CLASSES, dtype=DOUBLE)
    for x, y in zip(rows.x.double(), rows.y.tolist(), strict=True):
        sums[y] += x if clip is None or x.norm() <= clip else x * clip / x.norm()
        counts[y] += 1
    return sums, counts


def test_openly_they_are_sums_and_counts() -> None:
    rows = many()
    for found, wanted in zip(opened(Open(), rows).by_class(seen, CLASSES), by_hand(rows), strict=True):
        assert torch.allclose(found, wanted, rtol=1e-12)
    nobody = Examples(torch.zeros(0, DIM), torch.zeros(0, dtype=torch.int64))
    sums, counts = opened(Open(), nobody).by_class(seen, CLASSES)
    assert sums.shape == (CLASSES, DIM)
    assert not counts.any()


def test_without_noise_they_are_clipped_sums_and_counts() -> None:
    rows = many()
    sums, counts = opened(ClassSums(0.15, count=0.5), rows).by_class(seen, CLASSES)
    wanted, how_many = by_hand(rows, 0.15)
    assert torch.allclose(sums, wanted, atol=1e-4)  # the clip keeps a distance of a millionth
    assert torch.allclose(counts, how_many, rtol=1e-12)
    assert not torch.allclose(wanted, by_hand(rows)[0], rtol=1e-2)  # the clip bites


def test_where_nobody_counts_nothing_is_told_of_counts() -> None:
    rows = many(9)
    one = opened(ClassSums(1.0), rows, Still(1.0)).by_class(seen, CLASSES)[1]
    assert bool(one.isnan().all())


def test_the_noise_has_the_size_of_the_multiplier() -> None:
    """8000 draws: a standard deviation within 4%, 5 standard errors (false alarms below 1e-6)."""
    wide = Examples(torch.zeros(1, 2000, dtype=DOUBLE), torch.tensor([0]))
    for reader, own in ((ClassSums(2.0), Z), (ClassSums(2.0, count=1.0), Z), (ClassSums(2.0, multiplier=0.4), 0.4)):
        sums, counts = opened(reader, wide, Counter(3)).by_class(seen, 4)
        wanted = own * 2.0 * math.hypot(1, reader.count)
        assert float(sums.std()) == pytest.approx(wanted, rel=0.04)
        assert float(sums.std()) != pytest.approx(wanted * 1.1, rel=0.04)  # negative control
        other = opened(reader, wide, Counter(4)).by_class(seen, 4)[0]
        assert not torch.equal(sums, other)
        assert counts.shape == (4,)


def test_counts_are_in_examples_whatever_their_loudness() -> None:
    """The noise of one count is that of one coordinate, divided by how loudly examples are counted."""
    rows = Examples(torch.zeros(50, DIM, dtype=DOUBLE), torch.zeros(50, dtype=torch.int64))
    for loud in (0.2, 1.0, 4.0):
        noisy = opened(ClassSums(2.0, count=loud), rows, Still(1.0)).by_class(seen, CLASSES)[1]
        assert noisy[0] - 50 == pytest.approx(Z * math.hypot(1, loud) / loud)


def test_one_question_per_round() -> None:
    shard = opened(ClassSums(1.0), many(5))
    shard.by_class(seen, CLASSES)
    with pytest.raises(PrivacyError) as refusal:
        shard.by_class(seen, CLASSES)
    assert refusal.value.code == "read-beyond-reservation"


def test_each_part_is_asked_once_instead_of_the_whole_under_a_noise_of_its_own() -> None:
    rows = many(60)
    shard = opened(ClassSums(100.0, count=1.0), rows)
    parts = shard.split(0.7, keys.root(0))
    sums, counts = zip(*(part.by_class(seen, CLASSES) for part in parts), strict=True)
    whole = opened(ClassSums(100.0, count=1.0), rows).by_class(seen, CLASSES)
    assert torch.allclose(sums[0] + sums[1], whole[0])  # every example in one of them
    assert torch.allclose(counts[0] + counts[1], whole[1])
    assert 30 <= float(counts[0].sum()) <= 54  # 42 by 60 coins: within 3.4 standard deviations, for this key
    for asked in (*parts, shard):
        with pytest.raises(PrivacyError) as refusal:
            asked.by_class(seen, CLASSES)
        assert refusal.value.code == "read-beyond-reservation"
    with pytest.raises(PrivacyError):
        shard.split(0.7, keys.root(1))
    noisy = opened(ClassSums(100.0), examples([], []), Counter(3)).split(0.7, keys.root(0))
    first, second = (part.by_class(seen, CLASSES)[0] for part in noisy)
    assert not torch.isclose(first, second).any()  # else their difference would be without noise


def test_a_coin_is_its_examples_own() -> None:
    """Which of the others are in a part does not change when the last one goes."""
    rows = many(40)

    def first(n: int) -> tuple[Tensor, Tensor]:
        shard = opened(ClassSums(100.0, count=1.0), Examples(rows.x[:n], rows.y[:n]))
        return shard.split(0.5, keys.root(0))[0].by_class(seen, CLASSES)  # type: ignore[no-any-return]

    for n in range(2, 40):
        (sums, counts), (before, fewer) = first(n), first(n - 1)
        moved_by = (counts - fewer).sum()
        assert float(moved_by) in (0.0, 1.0)
        assert float((sums - before).norm()) <= float(moved_by) * float(rows.x[n - 1].norm()) * (1 + 1e-6)


@pytest.mark.parametrize("name", ["batches", "episodes", "mixed", "sum"])
def test_nothing_else_is_answered(name: str) -> None:
    shard = opened(ClassSums(1.0), many(5))
    work, key = LocalWork(1, None, None), keys.root(0)
    asked: dict[str, tuple[Any, ...]] = {
        "batches": (work, key),
        "episodes": (work, key),
        "mixed": (work, key, "union"),
        "sum": (seen,),
    }
    with pytest.raises(PrivacyError) as refusal:
        getattr(shard, name)(*asked[name])
    assert refusal.value.code == "sums-only"


# what a budget buys ---------------------------------------------------------------------------------------------------
TABLE = {1.0: 3.73, 2.0: 1.99, 4.0: 1.08, 8.0: 0.60}  # sigma over sensitivity at delta 1e-5


@pytest.mark.parametrize(("epsilon", "sigma"), TABLE.items())
@pytest.mark.parametrize("reader", [ClassSums(1.0), ClassSums(3.0, count=0.5)], ids=["sums", "sums and counts"])
def test_sigma_of_a_budget(epsilon: float, sigma: float, reader: ClassSums) -> None:
    """One release of the analytic Gaussian mechanism. The table has three digits."""
    plan = draft([(reader.offer(), None)], Budget(epsilon, 1e-5, SCHEDULES["uniform"]()), [1], {"example": [1]}, None)
    price = plan.price(0, 0, plan.currency.zero())
    assert price is not None
    rows = Examples(torch.zeros(1, DIM, dtype=DOUBLE), torch.tensor([0]))
    grant = Grant(0, 1, 1, Still(1.0), price.multiplier)
    added = reader.open(rows, grant, TASK).by_class(seen, CLASSES)[0]
    assert float(added.max()) / reader.sensitivity == pytest.approx(sigma, rel=0.01)
    assert condition(price.multiplier, epsilon) == pytest.approx(1e-5, rel=1e-2)


def condition(sigma: float, epsilon: float) -> float:
    """The delta of a Gaussian of sensitivity 1 (Balle and Wang, ICML 2018, theorem 8)."""

    def phi(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    half = 1 / (2 * sigma)
    return phi(half - epsilon * sigma) - math.exp(epsilon) * phi(-half - epsilon * sigma)


def test_a_multiplier_of_its_own_goes_before_the_budget() -> None:
    claims = ClassSums(1.0, multiplier=0.7).claims(LocalWork(1, None, None), 5, 3.0)
    assert {claim.event.noise_multiplier for claim in claims} == {0.7}  # type: ignore[union-attr]
    assert {claim.neighbours for claim in claims} == {"zero_out"}
