"""Sums per class behind a clip and noise: what one example can move, what a budget buys, and what is told of counts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from privacy.doubles import Still, linear
from torch import Tensor

from sordino import keys, tree
from sordino.budget.plan import Budget, draft
from sordino.budget.schedules import SCHEDULES
from sordino.errors import PrivacyError, SordinoError
from sordino.privacy.noise.sources import Counter
from sordino.privacy.readers.class_sums import ROWS, ClassSums, class_sums
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.privacy.readers.open import Open
from sordino.tasks.quadratic import Quadratic
from sordino.types import Examples, Grant, Shard, Work

CLASSES, DIM, Z = 3, 4, 1.7
DOUBLE = torch.float64
TASK = Quadratic(2)


def seen(x: Tensor) -> Tensor:
    """The statistic: an example's own row."""
    return x


def opened(reader: Any, rows: Examples, source: Any = None, **grant: Any) -> Shard:
    given_ = Grant(0, len(rows.y), len(rows.y), source or Still(), Z, **grant)
    return reader.open(rows, given_, TASK)  # type: ignore[no-any-return]


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


# what is released -----------------------------------------------------------------------------------------------------


def many(n: int = 2 * ROWS + 7) -> Examples:
    x = keys.normal(keys.root(4), n * DIM).reshape(n, DIM)
    return Examples(0.1 * x, keys.integers(keys.root(5), n, CLASSES))


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
    """8000 draws: a standard deviation within 4 %, 5 standard errors (false alarms below 1e-6)."""
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
    work, key = Work(1, None, None), keys.root(0)
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
    claims = ClassSums(1.0, multiplier=0.7).claims(Work(1, None, None), 5, 3.0)
    assert {claim.event.noise_multiplier for claim in claims} == {0.7}  # type: ignore[union-attr]
    assert {claim.neighbours for claim in claims} == {"add_remove"}


# noise beside public rows ---------------------------------------------------------------------------------------------

PARAMS = {"w": torch.zeros(DIM, dtype=DOUBLE)}


def keyed(params: Any, x: Tensor, y: Tensor, draws: Tensor) -> Tensor:
    """Gradients that the keys of examples reach into, as a dropout's do."""
    return linear(params, x, y, draws) * torch.where(draws % 2 == 0, 1.0, -1.0)


READINGS = {
    "full": (NoisyGradient(0.5), Work(3, None, None)),
    "poisson": (NoisyGradient(0.5, sampling="poisson", rate=0.5, neighbours="add_remove"), Work(None, 4, None)),
    "fixed_batches": (NoisyGradient(0.5, sampling="fixed_batches"), Work(2, None, 4)),
}


def public(n: int = 7) -> Examples:
    return Examples(100.0 + torch.arange(n * DIM, dtype=DOUBLE).reshape(n, DIM), torch.zeros(n, dtype=torch.int64))


@pytest.mark.parametrize("how", ["union", "half", 3])
@pytest.mark.parametrize("name", READINGS)
def test_public_rows_change_nothing_of_what_is_clipped_and_noised(name: str, how: Any) -> None:
    """Bit for bit the gradients of the same shard without them, with noise, sample and draws."""
    reader, work = READINGS[name]
    rows = many(10)
    plain = reader.open(rows, Grant(0, 10, 10, Counter(8), Z), TASK)
    alone = [batch.grad(keyed, PARAMS)["w"] for batch in plain.batches(work, keys.root(5))]
    grant = Grant(0, 10, 10, Counter(8), Z, public=public(), reads=reader.reads(work, 10))
    steps = list(reader.open(rows, grant, TASK).mixed(work, keys.root(5), how))
    beside = [step.batch.grad(keyed, PARAMS)["w"] for step in steps]
    assert len(alone) == len(beside) > 1
    for a, b in zip(alone, beside, strict=True):
        assert torch.equal(tree.formed(a), tree.formed(b))
    each = {"union": work.batch(10), "half": max(1, work.batch(10) // 2), 3: 3}[how]
    assert {len(step.public.y) for step in steps} == {each}
    drawn = torch.cat([step.public.x for step in steps])[: 7 * (each * len(steps) // 7)]
    shown = {float(x) for x in drawn[:, 0]}
    assert shown == {float(x) for x in public().x[:, 0]} or len(drawn) < 7  # all of them in turn


def test_the_twin_with_another_draw_is_told_apart() -> None:
    reader, work = READINGS["poisson"]
    rows = many(10)
    one, other = (
        [b.grad(linear, PARAMS)["w"] for b in reader.open(rows, Grant(0, 10, 10, Counter(s), Z), TASK).batches(work, 1)]
        for s in (8, 9)
    )
    assert not any(torch.equal(tree.formed(a), tree.formed(b)) for a, b in zip(one, other, strict=True))


def test_beside_noise_no_loss_may_look_at_both() -> None:
    reader, work = READINGS["full"]
    grant = Grant(0, 10, 10, Counter(8), Z, public=public(), reads=reader.reads(work, 10))
    step = next(reader.open(many(10), grant, TASK).mixed(work, keys.root(5), "union"))
    with pytest.raises(SordinoError) as refusal:
        step.joint(lambda params, own, others, draws: params["w"].sum(), PARAMS)
    assert refusal.value.code == "joint-loss"


def test_the_noise_beside_public_rows_is_paid_for() -> None:
    reader, work = READINGS["full"]
    grant = Grant(0, 10, 10, Counter(8), Z, public=public(), reads=1)
    with pytest.raises(PrivacyError) as refusal:
        list(reader.open(many(10), grant, TASK).mixed(work, keys.root(5), "union"))
    assert refusal.value.code == "read-beyond-reservation"


# beside an open reader ------------------------------------------------------------------------------------------------


def joined(shard: Shard, work: Work, how: Any) -> list[tuple[list[float], list[float], list[int]]]:
    """Of every step: its own rows, public rows, and the keys of both, as a loss sees them."""
    seen_: list[tuple[list[float], list[float], list[int]]] = []

    def loss(params: Any, own: Examples, others: Examples, draws: Tensor) -> Tensor:
        seen_.append((own.x[:, 0].tolist(), others.x[:, 0].tolist(), draws.tolist()))
        return params["w"].sum()

    for step in shard.mixed(work, keys.root(5), how):
        step.joint(loss, PARAMS)
    return seen_


def numbered(n: int, public_: int, **grant: Any) -> Shard:
    own = Examples(torch.arange(n, dtype=DOUBLE)[:, None].expand(n, DIM), torch.zeros(n, dtype=torch.int64))
    return opened(Open(), own, public=public(public_), **grant)


@pytest.mark.parametrize(("n", "beside", "batch"), [(10, 10, 4), (3, 20, 4), (9, 1, 2), (5, 5, None)])
def test_a_pile_shows_every_row_once_per_epoch(n: int, beside: int, batch: int | None) -> None:
    work = Work(3, None, batch)
    steps = joined(numbered(n, beside), work, "union")
    size = min(batch or n + beside, n + beside)
    each = math.ceil((n + beside) / size)
    assert len(steps) == 3 * each
    orders = []
    for epoch in range(3):
        part = steps[epoch * each : (epoch + 1) * each]
        assert sorted(x for own, _, _ in part for x in own) == list(range(n))
        assert sorted(x for _, others, _ in part for x in others) == public(beside).x[:, 0].tolist()
        assert [len(own) + len(others) for own, others, _ in part[:-1]] == [size] * (each - 1)
        orders.append([(own, others) for own, others, _ in part])
    if batch is not None:
        assert orders[0] != orders[1]  # reshuffled
    drawn = [draw for _, _, draws in steps for draw in draws]
    assert len(set(drawn)) == len(drawn) == 3 * (n + beside)  # a key of its own for every row of every step


@pytest.mark.parametrize("batch", [4, 5, None])
def test_half_of_every_batch_is_public_and_steps_are_as_many_as_without(batch: int | None) -> None:
    n, work = 10, Work(3, None, batch)
    plain = list(numbered(n, 8).batches(work, keys.root(5)))
    steps = joined(numbered(n, 8), work, "half")
    assert len(steps) == len(plain) == work.count(n)
    half = max(1, work.batch(n) // 2)
    assert {len(others) for _, others, _ in steps} == {half}
    assert {len(own) for own, _, _ in steps} <= {half, n % half or half}
    shown = [x for _, others, _ in steps for x in others]
    assert {shown.count(x) for x in set(shown)} <= {len(shown) // 8, len(shown) // 8 + 1}  # in turn


@pytest.mark.parametrize("grant", [{"epochs": 2}, {"part": 0.5}], ids=["epochs", "part"])
@pytest.mark.parametrize("how", ["union", "half", 3])
def test_a_straggler_does_its_part_of_the_steps(grant: dict[str, Any], how: Any) -> None:
    whole, work = numbered(10, 10), Work(4, None, 4)
    share = 0.5
    wanted = math.ceil(share * work.count(10)) if how != "union" or "part" in grant else 2 * math.ceil(20 / 4)
    found = joined(numbered(10, 10, **grant), work, how)
    assert len(found) == wanted
    assert len(joined(whole, work, how)) > len(found)


def test_an_empty_batch_has_no_gradient() -> None:
    """In a pile with many public rows some batches hold none of the client's own."""
    steps = list(numbered(1, 15).mixed(Work(1, None, 4), keys.root(5), "union"))
    found = [float(step.batch.grad(linear, PARAMS)["w"].abs().sum()) for step in steps]
    assert all(math.isfinite(x) for x in found)
    assert len(steps) == 4


def test_a_part_and_the_others_are_the_whole() -> None:
    shard = numbered(10, 1)
    for share in (0.0, 0.3, 0.7, 1.0):
        parts = shard.split(share, keys.root(2))
        rows = [part.sum(lambda x, y: x[:, 0]).tolist() for part in parts]
        assert [len(part) for part in rows] == [round(share * 10), 10 - round(share * 10)]
        assert sorted(rows[0] + rows[1]) == list(range(10))
        assert rows == [sorted(part) for part in rows]
    one, other = (shard.split(0.5, keys.root(k))[0].sum(lambda x, y: x[:, 0]).tolist() for k in (2, 3))
    assert one != other
    assert one == numbered(10, 1).split(0.5, keys.root(2))[0].sum(lambda x, y: x[:, 0]).tolist()
