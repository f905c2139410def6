"""Counter keys: the published mixer, the same numbers however they are asked for, and the laws of the draws.

Statistical tests have fixed seeds and false-alarm rates of 1e-6 or less for a fresh one; each has a negative control.
"""

from __future__ import annotations

import hashlib
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sordino import keys

MASK = (1 << 64) - 1
words = st.integers(0, MASK)
quick = settings(deadline=None, derandomize=True, max_examples=60)


def splitmix(state: int) -> int:
    """One output of SplitMix64 as printed by Steele, Lea and Flood."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_the_root_is_the_published_generator() -> None:
    # the first outputs of the reference implementation (Vigna, splitmix64.c) for the seed 1234567
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    gamma = 0x9E3779B97F4A7C15
    assert [keys.root(1234567 + i * gamma) for i in range(4)] == published
    assert [splitmix(1234567 + i * gamma) for i in range(4)] == published


def signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


@quick
@given(st.lists(words, min_size=1, max_size=4), st.lists(words | st.text(max_size=5), min_size=1, max_size=3))
def test_a_tensor_of_keys_draws_what_each_key_draws(several: list[int], parts: list[int | str]) -> None:
    stacked = torch.tensor([signed(key) for key in several])
    folded, one_by_one = keys.fold(stacked, *parts), [keys.fold(key, *parts) for key in several]
    assert isinstance(folded, torch.Tensor)
    assert folded.tolist() == [signed(keys.word(key)) for key in one_by_one]
    for draw in (keys.bits, keys.uniform, keys.normal, keys.laplace, keys.permutation):
        together = draw(folded, 7)
        for row, key in zip(together, one_by_one, strict=True):
            assert torch.equal(row, draw(key, 7))


@quick
@given(words, st.integers(1, 30), st.integers(1, 30))
def test_a_longer_draw_begins_like_a_shorter_one(key: int, count: int, more: int) -> None:
    assert torch.equal(keys.bits(key, count + more)[:count], keys.bits(key, count))


@quick
@given(words)
def test_bits_are_the_mixer_applied_to_a_counter(key: int) -> None:
    gamma = 0x9E3779B97F4A7C15

    def mix(z: int) -> int:
        return splitmix((z - gamma) & MASK)

    assert keys.bits(key, 5).tolist() == [signed(mix(mix((key + (i + 1) * gamma) & MASK))) for i in range(5)]


def test_folding_is_a_path_and_not_a_set() -> None:
    key = keys.root(0)
    paths: list[tuple[int | str, ...]] = [
        ("a", 1),
        (1, "a"),
        ("a",),
        (1,),
        ("1",),
        ("a", 1, 0),
        (0, "a", 1),
        ("a", "1"),
        ("",),
        (),
        (-1,),
        (2**63,),
    ]
    folded = [keys.fold(key, *path) for path in paths]
    assert len(set(map(keys.word, folded))) == len(paths)
    assert keys.fold(keys.fold(key, "a"), 1) == keys.fold(key, "a", 1)


@pytest.mark.slow
def test_no_two_of_many_keys_draw_the_same() -> None:
    """50,000 first words of keys that differ in one small number; a collision has probability 1e-10."""
    places = product(range(2), ("noise", "client", "cohort", "read"), range(50), range(125))
    folded = torch.tensor([signed(keys.word(keys.fold(keys.root(s), name, t, k))) for s, name, t, k in places])
    first = set(keys.bits(folded, 1).flatten().tolist())
    assert len(first) == 50_000
    assert len({word >> 32 for word in first}) > 49_990  # the high half is as good as a whole word


@pytest.mark.slow
def test_the_law_of_the_draws() -> None:
    """Kolmogorov-Smirnov on 100,000 draws, rejected below p = 1e-6."""
    key, n = keys.root(3), 100_000
    drawn = {
        "uniform": (keys.uniform(keys.fold(key, "u"), n), stats.uniform),
        "normal": (keys.normal(keys.fold(key, "n"), n), stats.norm),
        "laplace": (keys.laplace(keys.fold(key, "l"), n), stats.laplace),
    }
    for values, law in drawn.values():
        assert values.dtype == torch.float64
        assert torch.isfinite(values).all()
        assert stats.kstest(values.numpy(), law.cdf).pvalue > 1e-6
        assert stats.kstest(1.1 * values.numpy(), law.cdf).pvalue < 1e-6
    u = drawn["uniform"][0]
    assert u.min() > 0
    assert u.max() < 1


def test_neighbouring_keys_are_independent() -> None:
    """|z| < 6 for the correlation of 50,000 draws of k and k+1, and of rounds t and t+1: false alarm 4e-9."""
    key, n = keys.root(4), 50_000
    pairs = [(7, 8), (keys.fold(key, "noise", 1), keys.fold(key, "noise", 2)), (keys.root(0), keys.root(1))]
    for a, b in pairs:
        x, y = keys.normal(a, n), keys.normal(b, n)
        assert abs(float((x * y).mean())) * n**0.5 < 6
    x = keys.normal(pairs[0][0], n)
    assert abs(float((x * (x + 20 * keys.normal(3, n)) / 20).mean())) * n**0.5 > 6  # control: a correlation of 0.05


def test_every_order_is_as_likely() -> None:
    """Chi-squared over the 24 orders of 4 things in 24,000 permutations, p > 1e-6."""
    orders = keys.permutation(keys.bits(keys.root(5), 24_000), 4)
    assert torch.equal(orders.sort(1).values, torch.arange(4).expand(24_000, 4))
    number = (orders * torch.tensor([64, 16, 4, 1])).sum(1)
    counts = np.array([count for count in number.bincount().tolist() if count])
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 1e-6
    biased = counts + np.arange(24) * 12
    assert stats.chisquare(biased * counts.sum() / biased.sum()).pvalue < 1e-6


@quick
@given(words, st.integers(1, 1000))
def test_integers_stay_below(key: int, below: int) -> None:
    drawn = keys.integers(key, 50, below)
    assert drawn.dtype == torch.int64
    assert 0 <= int(drawn.min()) <= int(drawn.max()) < below


def test_coins_land_as_often_as_they_should() -> None:
    n = 100_000
    for p in (0.0, 0.01, 0.5, 1.0):
        z = (float(keys.coin(keys.root(6), n, p).sum()) - n * p) / max(1.0, (n * p * (1 - p)) ** 0.5)
        assert abs(z) < 6  # false alarm 2e-9 each
    assert keys.integers(keys.root(7), n, 3).bincount().tolist() == pytest.approx(
        [n / 3] * 3, abs=6 * (n * 2 / 9) ** 0.5
    )


def test_a_plain_key_is_needed_where_a_generator_wants_one() -> None:
    assert keys.word(5) == 5
    with pytest.raises(AssertionError):
        keys.word(torch.tensor([5]))


def test_a_generator_is_the_mersenne_twister_of_its_key() -> None:
    """The state is written word for word: numpy's generator from the same words gives the same numbers, and two keys
    never share a stream.
    """
    key = keys.root(11)
    words = np.frombuffer(hashlib.shake_128(key.to_bytes(8, "little")).digest(2496), dtype="<u4")
    other = np.random.RandomState()
    other.set_state(("MT19937", words, 624))
    drawn = torch.randint(0, 2**31, (500,), generator=keys.generator(key), dtype=torch.int64)
    pairs = other.randint(0, 2**32, 1000, dtype=np.uint32).reshape(500, 2)  # a high and a low word, modulo the range
    assert drawn.tolist() == [int(low) % 2**31 for _, low in pairs]
    first = [torch.randn(3, generator=keys.generator(keys.fold(key, i))).tolist() for i in range(2000)]
    assert len({tuple(row) for row in first}) == 2000
    seeds = [torch.Generator().manual_seed(i << 32) for i in range(2)]  # control: a seed keeps its low 32 bits only
    assert torch.equal(*(torch.randn(3, generator=g) for g in seeds))


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 200), max_size=8))
def test_a_place_of_a_sequence_needs_none_of_the_others(key: int, places: list[int]) -> None:
    alone = keys.uniform(keys.at(key, places), 1).reshape(-1)
    assert alone.tolist() == keys.uniform(key, 201)[places].tolist()
