"""Randomised response: exact tables, the law that the program draws from, its price, and two misreadings of it that
must not pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, getcontext
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sordino.data.dataset import area
from sordino.errors import ConfigError, DomainError, SordinoError
from sordino.privacy.noise.sources import Counter, SystemNoise
from sordino.privacy.readers import responses
from sordino.types import LocalWork, NoiseSource

K, DRAWS = 21, 10**6
BYTES = torch.arange(256, dtype=torch.uint8)
NEAREST = [7, 13, 12, 13, 13, 13, 12, 13, 13, 13, 12, 13, 13, 13, 12, 13, 13, 13, 12, 13, 7]
CEIL = [1, 12, 13, 13, 13, 12, 13, 13, 13, 12, 13, 13, 13, 12, 13, 13, 13, 12, 13, 13, 13]
Respond = Callable[[Tensor, float, int, NoiseSource], Tensor]


# levels ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rounding", "counts", "digits"), [("nearest", NEAREST, math.floor), ("ceil", CEIL, math.ceil)]
)
def test_every_byte_has_its_level(rounding: Any, counts: list[int], digits: Callable[[Fraction], int]) -> None:
    found = responses.levels(BYTES, rounding=rounding)
    assert torch.bincount(found.long(), minlength=K).tolist() == counts
    half = Fraction(1, 2) if rounding == "nearest" else 0
    assert found.tolist() == [digits(Fraction(20 * v, 255) + half) for v in range(256)]
    # the same through numbers in [-1, 1] with four decimals
    floats = 2 * BYTES.double() / 255 - 1
    assert torch.equal(responses.from_float(floats, rounding=rounding), found)
    assert torch.equal(responses.from_float(floats.float(), rounding=rounding), found)


@pytest.mark.parametrize("k", [2, 3, 8, 21, 100, 256])
def test_other_numbers_of_levels_follow_the_same_rule(k: int) -> None:
    found = responses.levels(BYTES, k)
    assert found.tolist() == [math.floor(Fraction((k - 1) * v, 255) + Fraction(1, 2)) for v in range(256)]
    assert responses.values(found, k).sub(2 * BYTES.double() / 255 - 1).abs().max() <= 1 / (k - 1) + 1e-6


def test_ties_of_numbers_go_up_and_what_rounding_adds_does_not_count() -> None:
    assert responses.from_float(torch.tensor([-1.0, -0.95, -0.05, 0.05, 0.1 + 0.2, 1.0])).tolist() == [
        0,
        1,
        10,
        11,
        13,
        20,
    ]
    assert responses.from_float(torch.tensor([0.3, 0.30004, 0.3002]), rounding="ceil").tolist() == [13, 13, 14]


def test_levels_stand_for_tenths_and_for_exact_greys() -> None:
    index = torch.arange(K)
    assert responses.values(index).tolist() == [float(np.float32(i / 10)) for i in range(-10, 11)]
    assert responses.values(index, K, 0, 255).tolist() == [12.75 * i for i in range(K)]
    assert responses.values(index, K, 0, 1).tolist() == [float(np.float32(i / 20)) for i in range(K)]


@pytest.mark.parametrize("side", [28, 32])
def test_pooling_averages_and_enlarging_repeats(side: int) -> None:
    images = torch.randint(0, 256, (3, side, side, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    small = responses.pooled(images)
    assert small.shape == (3, 7, 7, 3)
    cut = [(i * side // 7, -(-(i + 1) * side // 7)) for i in range(7)]
    for i, (top, bottom) in enumerate(cut):
        for j, (left, right) in enumerate(cut):
            mean = 2 * images[:, top:bottom, left:right].double().mean((1, 2)) / 255 - 1
            assert torch.allclose(small[:, i, j].double(), mean, atol=1e-6)
    large = responses.enlarged(small, side, side)
    assert large.shape == images.shape
    if side == 28:
        assert torch.equal(large, small.repeat_interleave(4, 1).repeat_interleave(4, 2))
    assert responses.from_float(responses.pooled(torch.full((1, 8, 8, 1), 255, dtype=torch.uint8))).min() == 20


# the response ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "p", "q"),
    [
        (0.1, 0.052364936, 0.047381753),
        (1, 0.119651735, 0.044017413),
        (2, 0.269781334, 0.036510933),
        (5, 0.881244434, 0.005937778),
        (10, 0.999092825, 0.000045359),
    ],
)
def test_the_published_probabilities(epsilon: float, p: float, q: float) -> None:
    assert responses.keep_probability(epsilon) == pytest.approx(p, abs=1e-9)
    assert responses.flip_probability(epsilon) == pytest.approx(q, abs=1e-9)
    assert responses.threshold(epsilon) / 2**32 == pytest.approx(21 * q, abs=2e-8)


def drawn_from_all(index: Tensor, epsilon: float, k: int, source: NoiseSource) -> Tensor:
    """Broken twin: the replacement is drawn from all k with probability 1 - p, so p + (1-p)/k are kept: epsilon 5.0552."""
    kept = source.child("coin").coins(len(index), responses.keep_probability(epsilon, k))
    return torch.where(kept, index, _any(index, k, source).to(index.dtype))


def kept_by_the_proof(index: Tensor, epsilon: float, k: int, source: NoiseSource) -> Tensor:
    """Broken twin: 1/(e^epsilon + 20) taken as the probability of a change: epsilon 8.1162."""
    changed = source.child("coin").coins(len(index), 1 / (math.exp(epsilon) + k - 1))
    return torch.where(changed, (index + 1 + _any(index, k - 1, source).to(index.dtype)) % k, index)


def _any(index: Tensor, k: int, source: NoiseSource) -> Tensor:
    return (source.child("other").words(len(index)) >> 1 & (1 << 62) - 1) % k


def tables(respond: Respond, inputs: tuple[int, ...], epsilon: float = 5.0) -> list[np.ndarray[Any, Any]]:
    told = [respond(torch.full((DRAWS,), r, dtype=torch.uint8), epsilon, K, Counter(1000 + r)) for r in inputs]
    return [torch.bincount(t.long(), minlength=K).numpy() for t in told]


def follows_the_law(respond: Respond) -> bool:
    """All 21 frequencies of two inputs within 4 standard errors, the largest log ratio within 0.05 of 5.

    Seeds are fixed; over seeds a true law fails in about 0.3% of cases: 42 bounds of 4, and the log ratio's two large
    terms have a standard deviation of 0.013.
    """
    p, q = responses.keep_probability(5), responses.flip_probability(5)
    found = tables(respond, (3, 14))
    for r, table in zip((3, 14), found, strict=True):
        law = np.where(np.arange(K) == r, p, q)
        if (np.abs(table / DRAWS - law) > 4 * np.sqrt(law * (1 - law) / DRAWS)).any():
            return False
    return bool(abs(np.abs(np.log(found[0] / found[1])).max() - 5) <= 0.05)


def test_a_million_answers_follow_the_law() -> None:
    assert follows_the_law(responses.respond)


@pytest.mark.slow
@pytest.mark.parametrize(("twin", "epsilon"), [(drawn_from_all, 5.0552), (kept_by_the_proof, 8.1162)])
def test_two_misreadings_do_not(twin: Respond, epsilon: float) -> None:
    assert not follows_the_law(twin)
    found = tables(twin, (3, 14))
    assert np.abs(np.log(found[0] / found[1])).max() == pytest.approx(
        epsilon, abs=0.1
    )  # and are what they are said to be


def test_the_mean_shrinks_towards_grey() -> None:
    shrunk = responses.keep_probability(5) - responses.flip_probability(5)
    assert shrunk == pytest.approx(0.875307, abs=1e-6)
    told = responses.values(responses.respond(torch.full((DRAWS,), 3, dtype=torch.uint8), 5.0, K, Counter(7)))
    # the standard deviation of an answer is 0.26, so 0.002 is 7 standard errors
    assert told.double().mean().item() == pytest.approx(-0.7 * shrunk, abs=0.002)


def law(epsilon: float, k: int) -> list[list[Fraction]]:
    """P[answer j | value i] of the program: high halves below the threshold replace, low halves choose."""
    replace = Fraction(responses.threshold(epsilon, k), 2**32)
    edges = [-(-j * 2**32 // k) for j in range(k + 1)]  # the least low half that leads to j
    part = [replace * Fraction(edges[j + 1] - edges[j], 2**32) for j in range(k)]
    return [[part[j] + (1 - replace) * (i == j) for j in range(k)] for i in range(k)]


@pytest.mark.parametrize("k", [2, 10, 21])
@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1, 5, 10, 15])
def test_no_pair_of_values_is_told_apart_by_more_than_epsilon(epsilon: float, k: int) -> None:
    getcontext().prec = 50
    table = law(epsilon, k)
    assert all(sum(row) == 1 for row in table)
    most = max(table[a][j] / table[b][j] for a in range(k) for b in range(k) for j in range(k))
    exact = (Decimal(most.numerator) / Decimal(most.denominator)).ln()
    # never more than promised, and little less: the threshold is a whole number
    assert exact <= Decimal(epsilon)
    assert float(exact) == pytest.approx(epsilon, abs=1e-8 + 2 / responses.threshold(epsilon, k))


def test_a_huge_budget_still_replaces_one_in_2_to_the_32() -> None:
    assert responses.threshold(800.0) == responses.threshold(50.0) == 1
    assert torch.equal(responses.respond(BYTES[:21], 800.0, K, Counter(1)), BYTES[:21])


def test_a_threshold_of_one_less_breaks_the_promise() -> None:
    """Broken twin of the law above."""
    assert all(
        responses.threshold(eps, K) / 2**32 >= K * responses.flip_probability(eps) for eps in (0.1, 1.0, 5.0, 10.0)
    )
    replace = Fraction(responses.threshold(5.0, K) - 1, 2**32)
    rarest = replace * Fraction(2**32 // K, 2**32)
    assert math.log((1 - replace + rarest) / rarest) > 5


class Told:
    """A source that says what it is told."""

    name = "told"

    def __init__(self, words: list[tuple[int, int]]) -> None:
        self._words = np.array([(high << 32) + low for high, low in words], np.uint64)

    def child(self, *parts: int | str) -> Told:
        return self

    def words(self, count: int) -> Tensor:
        return torch.from_numpy(self._words[:count].view(np.int64))


def test_the_program_draws_from_that_law() -> None:
    limit, top = responses.threshold(5.0, K), 2**32 - 1
    edge = -(-7 * 2**32 // K)
    words = [(limit - 1, 0), (limit, 0), (0, edge - 1), (0, edge), (0, top), (top, top)]
    told = responses.respond(torch.full((6,), 13, dtype=torch.uint8), 5.0, K, Told(words))  # type: ignore[arg-type]
    assert told.tolist() == [0, 13, 6, 7, 20, 13]


def test_answers_are_the_same_for_the_same_key_and_blocks_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    given = torch.zeros((30, 10, 10), dtype=torch.uint8)
    once, again, other = (responses.respond(given, 0.1, K, Counter(key)) for key in (1, 1, 2))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    assert not given.any()  # the caller's own are left alone
    monkeypatch.setattr(responses, "BLOCK", 1000)
    first, second, _ = responses.respond(given, 0.1, K, Counter(1)).view(3, 1000)
    assert (first == second).double().mean() < 0.2  # 1/21 by chance; one stream for all blocks would make it 1
    assert responses.respond(given[:0], 0.1, K, Counter(1)).shape == (0, 10, 10)


def test_the_operating_system_s_answers_differ_each_time() -> None:
    given = torch.full((10_000,), 4, dtype=torch.uint8)
    one, two = responses.respond(given, 5.0, K, SystemNoise()), responses.respond(given, 5.0, K, SystemNoise())
    assert not torch.equal(one, two)
    assert abs((one == 4).double().mean().item() - 0.8812) < 5 * 0.00324  # false alarm 6e-7


def test_labels_are_answered_for_in_their_own_type() -> None:
    y = torch.arange(10).repeat(10_000)
    told = responses.respond(y, 2.0, 10, Counter(5))
    p = math.exp(2) / (9 + math.exp(2))
    assert told.dtype == y.dtype
    assert (told == y).double().mean().item() == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / len(y)))


# its price ------------------------------------------------------------------------------------------------------------

PUBLISHED = [(5, 784, 0.1253), (10, 784, 0.2185), (10, 49, 0.7318), (5, 49, 0.4392)]


@pytest.mark.parametrize(("total", "count", "each"), PUBLISHED)
def test_a_budget_over_many_values(total: float, count: int, each: float) -> None:
    found = responses.split_evenly(total, count, 1e-5)
    assert found == pytest.approx(each, rel=0.01)
    assert responses.composed_delta(found, count, total) <= 1e-5 < responses.composed_delta(found * 1.001, count, total)
    assert responses.split_evenly(total, count) == total / count < found


def test_the_price_agrees_with_another_accountant() -> None:
    """dp-accounting rounds losses up to a grid of 1e-4, so it may say a little more, never less."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    for total, count, _ in PUBLISHED[2:]:
        each = responses.split_evenly(total, count, 1e-5)
        one = pld.from_randomized_response(K * responses.flip_probability(each), K)
        theirs = one.self_compose(count).get_epsilon_for_delta(1e-5)
        assert total * (1 - 1e-6) <= theirs <= total * 1.002


def test_the_price_of_a_few_values_by_counting() -> None:
    p, q = responses.keep_probability(0.8, 4), responses.flip_probability(0.8, 4)
    for total in (0.0, 0.5, 1.5, 3.0):
        delta = 0.0
        for outcome in np.ndindex(4, 4, 4):  # values 0 0 0 against 1 1 1
            a = math.prod(p if r == 0 else q for r in outcome)
            b = math.prod(p if r == 1 else q for r in outcome)
            delta += max(0.0, a - math.exp(total) * b)
        assert responses.composed_delta(0.8, 3, total, 4) == pytest.approx(delta, abs=1e-12)


@pytest.mark.parametrize(("total", "count"), [(5, 784), (50, 784), (300, 784), (10, 3072)])
def test_rounding_is_paid_for(total: float, count: int) -> None:
    """Against the power by repeated multiplication, whose terms are all positive: what the transform is off by is less
    than what is added.
    """
    p, q = responses.keep_probability(0.2), responses.flip_probability(0.2)
    one, law, left = np.array([q, 19 * q, p]), np.ones(1), count
    while left:
        law, one, left = np.convolve(law, one) if left % 2 else law, np.convolve(one, one), left // 2
    loss = 0.2 * np.arange(-count, count + 1)
    exact = float(law @ -np.expm1(np.minimum(total - loss, 0)))
    assert exact <= responses.composed_delta(0.2, count, total) <= exact + 2e-14 * count


def test_a_picture_is_worth_thousands() -> None:
    """784 pixels at 5 each: 3,920 without a delta, 3,624 with 1e-5."""
    assert responses.composed_delta(5.0, 784, 3920.0) < 1e-10
    assert responses.composed_delta(5.0, 784, 3619.0) > 1e-5 > responses.composed_delta(5.0, 784, 3630.0)


def test_a_pixel_is_one_of_the_image_as_it_was_resized() -> None:
    """One pixel of 8 x 8 moves the answers of four among 5 x 5: the claim says which pixel it is about."""
    images = (255 * np.eye(64, dtype=np.uint8)).reshape(64, 8, 8, 1)
    small = torch.from_numpy(area(np.concatenate([images, 0 * images[:1]]), 5))
    index = responses.levels(small).flatten(1)
    assert int((index[:-1] != index[-1]).sum(1).max()) == 4
    reader = responses.Responses(5.0).fitted((5, 5, 1), 10)
    told = {claim.unit: claim.because for claim in reader.claims(LocalWork(1, None, None), 4, None)}
    assert told["pixel"] == (responses.AS_RESIZED,)


def test_one_value_takes_it_all_and_tiny_deltas_buy_nothing() -> None:
    assert responses.split_evenly(2.0, 1) == 2.0
    one = responses.split_evenly(2.0, 1, 0.1)
    assert responses.keep_probability(one) - math.exp(2) * responses.flip_probability(one) == pytest.approx(
        0.1, rel=1e-6
    )
    assert responses.split_evenly(2.0, 10, 1e-300) == pytest.approx(0.2, rel=1e-8)


# refusals -------------------------------------------------------------------------------------------------------------

INDEX = torch.zeros(3, dtype=torch.uint8)
BAD: dict[str, tuple[type[SordinoError], str, str, Callable[[], Any]]] = {
    **{
        f"epsilon {epsilon}": (ConfigError, "response-epsilon", str(epsilon), partial(responses.respond, INDEX, epsilon, K, Counter(1)))
        for epsilon in (0.0, -1.0, math.nan, math.inf)
    },
    "no budget to split": (ConfigError, "response-epsilon", "0.0", lambda: responses.split_evenly(0.0, 5)),
    "one level": (ConfigError, "response-levels", "levels is 1", lambda: responses.respond(INDEX, 1.0, 1, Counter(1))),
    "more levels than bytes": (ConfigError, "response-levels", "257", lambda: responses.levels(BYTES, 257)),
    "no values": (ConfigError, "response-count", "share one budget is 0", lambda: responses.split_evenly(1.0, 0)),
    "delta of one": (ConfigError, "response-delta", "1.0", lambda: responses.split_evenly(1.0, 5, 1.0)),
    "delta nan": (ConfigError, "response-delta", "nan", lambda: responses.split_evenly(1.0, 5, math.nan)),
    "rounding": (ConfigError, "response-rounding", "'down'", lambda: responses.levels(BYTES, rounding="down")),  # type: ignore[arg-type]
    "too bright": (DomainError, "pixel-out-of-range", "1.5, at index [1]", lambda: responses.from_float(torch.tensor([0, 1.5]))),
    "nan": (DomainError, "pixel-out-of-range", "nan", lambda: responses.from_float(torch.tensor([math.nan]))),
    "floats for bytes": (DomainError, "pixel-wrong-type", "float32", lambda: responses.levels(torch.zeros(2))),
    "bytes for floats": (DomainError, "pixel-wrong-type", "uint8", lambda: responses.from_float(BYTES)),
    "floats to pool": (DomainError, "pixel-wrong-type", "float32", lambda: responses.pooled(torch.zeros(1, 8, 8, 1))),
    "level 21 of 21": (DomainError, "level-out-of-range", "0 to 20", lambda: responses.respond(INDEX + 21, 1.0, K, Counter(1))),
    "level -1": (DomainError, "level-out-of-range", "0 to 20", lambda: responses.respond(INDEX.long() - 1, 1.0, K, Counter(1))),
    "levels as floats": (DomainError, "level-out-of-range", "float32", lambda: responses.respond(INDEX.float(), 1.0, K, Counter(1))),
    "bytes cannot hold 1000": (DomainError, "level-out-of-range", "uint8", lambda: responses.respond(INDEX, 1.0, 1000, Counter(1))),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused_and_that_it_is_named(name: str) -> None:
    kind, code, named, call = BAD[name]
    with pytest.raises(kind) as refusal:
        call()
    assert refusal.value.code == code
    assert named in str(refusal.value)
