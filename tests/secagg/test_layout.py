"""Numbers as slots, slots as large integers, and messages: laws, closed forms, and what must be refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.errors import (
    ConfigError,
    DomainError,
    HeadroomExceeded,
    IntegrityError,
    KeyMismatch,
    LayoutMismatch,
    MalformedCiphertext,
    NonFiniteUpdate,
    RoundMismatch,
    SecureError,
)
from sordino.privacy.uplink.fixed_point import Layout
from sordino.secagg.big_integers import integers, pack, slots, unpack
from sordino.secagg.sealed import Sealed, SealedHeader, joined
from sordino.secagg.sealed import unpack as read

LAYOUT = Layout()
TOP = LAYOUT.offset - 1  # the largest signed value


@st.composite
def contributions(draw: st.DrawFn) -> tuple[Layout, int, np.ndarray]:
    """A layout, slots of an integer, and a matrix with one contribution a row."""
    layout = Layout(draw(st.integers(2, 32)), draw(st.integers(1, 32)))
    size, count = draw(st.integers(0, 12)), draw(st.integers(1, min(5, layout.most)))
    value = st.integers(1 - layout.offset, layout.offset - 1)
    rows = draw(st.lists(st.lists(value, min_size=size, max_size=size), min_size=count, max_size=count))
    return layout, draw(st.integers(2, 7)), np.array(rows, np.int64).reshape(count, size)


def added(layout: Layout, width: int, rows: np.ndarray) -> list[int]:
    return [sum(numbers) for numbers in zip(*(pack(row, width, layout) for row in rows), strict=True)]


# fixed point


@pytest.mark.parametrize(
    ("bits", "headroom", "most"), [(24, 8, 256), (16, 6, 64), (20, 12, 4096), (16, 16, 65537), (24, 1, 2)]
)
def test_the_contributions_that_fit_are_counted_exactly(bits: int, headroom: int, most: int) -> None:
    layout = Layout(bits, headroom)
    largest = (1 << bits) - 1
    assert layout.most == most
    assert most * largest < 1 << layout.width <= (most + 1) * largest
    layout.check(most)
    with pytest.raises(
        HeadroomExceeded, match=f"{bits} bits and {headroom} headroom bits a slot adds up at most {most}"
    ):
        layout.check(most + 1)


def test_the_ends_of_the_range_and_zero_come_back() -> None:
    layout = Layout(reach=2.5)
    ints, beyond = layout.encode(np.array([-2.5, 0.0, 2.5]))
    assert ints.tolist() == [-TOP, 0, TOP]
    assert beyond == 0
    assert layout.decode(ints).tolist() == [-2.5, 0.0, 2.5]


def test_what_is_beyond_the_range_is_cut_and_counted() -> None:
    ints, beyond = LAYOUT.encode(np.array([-3.0, 0.5, 1.0, 1.0001]))
    assert (ints[0], ints[3], beyond) == (-TOP, TOP, 2)


@pytest.mark.slow
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=20), st.integers(2, 32))
def test_rounding_is_to_the_nearest_step(values: list[float], bits: int) -> None:
    layout = Layout(bits, 4)
    ints, _ = layout.encode(np.array(values))
    assert np.abs(layout.decode(ints) - values).max() <= 0.5 / layout.scale * (1 + 1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_numbers_without_a_fixed_point_name_client_and_place(bad: float) -> None:
    with pytest.raises(NonFiniteUpdate, match=f"client 7 uploads the value {bad} at index 2"):
        LAYOUT.encode(np.array([0.0, 1.0, bad, bad]), who=7)


@pytest.mark.parametrize(
    "fields",
    [
        {"bits": 1},
        {"bits": 33},
        {"headroom": 0},
        {"headroom": 33},
        {"reach": 0.0},
        {"reach": -1.0},
        {"reach": np.inf},
        {"reach": 1e-310},
    ],
)
def test_impossible_layouts_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        replace(LAYOUT, **fields)


# packing


def test_slots_and_integers_for_a_hundred_thousand_values() -> None:
    assert [slots(bits, 32) for bits in (2048, 3072)] == [63, 95]
    assert [integers(100_000, count) for count in (63, 95)] == [1613, 1064]
    assert [[integers(size, count) for count in (63, 95)] for size in (28_938, 34_538)] == [[467, 308], [558, 368]]


@given(st.integers(64, 8192), st.integers(3, 64))
def test_a_full_integer_stays_below_every_modulus(bits: int, width: int) -> None:
    count = slots(bits, width)
    assert (1 << count * width) <= 1 << (bits - 1) < (1 << (count + 1) * width)


def test_the_integer_is_the_one_that_is_written_down() -> None:
    layout = Layout(4, 4)  # offset 8
    assert [hex(number) for number in pack(np.array([1, -7, 0]), 3, layout)] == ["0x10901", "0x80801"]


@pytest.mark.slow
@given(contributions())
def test_a_sum_of_integers_is_the_sums_of_the_values(case: tuple[Layout, int, np.ndarray]) -> None:
    layout, width, rows = case
    total = added(layout, width, rows)
    assert len(total) == integers(rows.shape[1], width)
    assert unpack(total, len(rows), rows.shape[1], width, layout).tolist() == rows.sum(axis=0).tolist()


@pytest.mark.parametrize("value", [TOP, -TOP, 0])
def test_as_many_as_fit_are_exact_at_the_extremes(value: int) -> None:
    one = pack(np.full(7, value), 5, LAYOUT)
    assert unpack([number * 256 for number in one], 256, 7, 5, LAYOUT).tolist() == [256 * value] * 7


@pytest.mark.parametrize("bits", [2, 24, 32])
def test_noise_that_takes_all_the_room_of_the_widest_slots_comes_back(bits: int) -> None:
    """Of an empty round, which leaves the most: a header of 32 bits can tell how much."""
    layout = Layout(bits, 32)
    expected, most = replace(HEADER, layout=layout), layout.most
    drawn = np.array([1, -1, 0]) * (most * (layout.offset - 1))
    found = read(Sealed(replace(expected, count=most), b"").pack(), expected).header.count
    assert unpack(pack(drawn, 3, layout, most), found, 3, 3, layout).tolist() == drawn.tolist()


def test_the_largest_slot_is_the_largest_sum_and_one_more_corrupts_its_neighbour() -> None:
    """256 x (2^24 - 1) = 4,294,967,040. Values below 2^23 reach 2^24 - 1 with the offset."""
    largest, small = (1 << 24) - 1, 5
    number = 1 | largest << 32 | small << 64

    def read_off(times: int, slot: int) -> int:
        return number * times >> 32 * slot & 0xFFFFFFFF

    assert read_off(256, 1) == 4_294_967_040
    assert read_off(256, 2) == 256 * small
    assert read_off(257, 2) == 257 * small + 1, "a twin that does not count lets the carry through"
    with pytest.raises(HeadroomExceeded):
        unpack([number * 257], 257, 2, 3, LAYOUT)


@pytest.mark.slow
@given(contributions(), st.integers(-2, 2).filter(bool))
def test_another_count_is_noticed(case: tuple[Layout, int, np.ndarray], shift: int) -> None:
    layout, width, rows = case
    count = len(rows) + shift
    if rows.shape[1] == 0 or count > layout.most:
        return
    with pytest.raises(IntegrityError) as refused:
        unpack(added(layout, width, rows), count, rows.shape[1], width, layout)
    assert refused.value.code == ("guard-mismatch" if count > 0 else "nothing-added")


def test_every_sign_of_a_foreign_integer_is_noticed() -> None:
    values = np.array([3, -4, 5])
    one = pack(values, 3, LAYOUT)  # guard 3 -4 | guard 5 padding
    cases = {
        "plaintext-count": one[:1],
        "plaintext-too-large": [one[0], one[1] + (1 << 96)],
        "guard-mismatch": [one[0], one[1] + 1],
        "padding-mismatch": [one[0], one[1] + (1 << 64)],
        "slot-out-of-range": [one[0] + (1 << 56), one[1]],
    }
    for code, numbers in cases.items():
        with pytest.raises(IntegrityError) as refused:
            unpack(numbers, 1, 3, 3, LAYOUT)
        assert refused.value.code == code
    with pytest.raises(IntegrityError) as refused:
        unpack([0], 0, 2, 3, LAYOUT)
    assert refused.value.code == "nothing-added"
    assert unpack(one, 1, 3, 3, LAYOUT).tolist() == values.tolist()


def test_random_integers_do_not_pass() -> None:
    """False alarms: 200 integers pass with a chance below 200 x 2^-32 = 5e-8."""
    rng = np.random.default_rng(4)
    for _ in range(200):
        number = int.from_bytes(rng.bytes(95 * 4), "little")
        with pytest.raises(IntegrityError):
            unpack([number], 10, 94, 95, LAYOUT)


@pytest.mark.parametrize("value", [TOP + 1, -TOP - 1, np.iinfo(np.int64).min, np.iinfo(np.int64).max])
def test_values_beyond_a_slot_are_refused(value: int) -> None:
    with pytest.raises(DomainError, match=f"{value} at index 1") as refused:
        pack(np.array([0, value]), 4, LAYOUT)
    assert refused.value.code == "beyond-slot"


# messages

HEADER = SealedHeader("paillier", bytes(range(16)), 3, 10, LAYOUT, 95)


@given(st.binary(max_size=40), st.integers(1, 256))
def test_a_message_survives_its_bytes(body: bytes, count: int) -> None:
    message = Sealed(replace(HEADER, count=count), body)
    assert read(message.pack(), HEADER) == message


@settings(max_examples=80)
@given(st.integers(0, len(Sealed(HEADER, b"12345678").pack()) - 1))
def test_a_message_that_was_cut_is_malformed(length: int) -> None:
    with pytest.raises(MalformedCiphertext):
        read(Sealed(HEADER, b"12345678").pack()[:length], HEADER)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedCiphertext):
        read(data, HEADER)


OTHERS = [
    ({"scheme": "bfv"}, MalformedCiphertext, "malformed-ciphertext"),
    ({"key": bytes(16)}, KeyMismatch, "key-mismatch"),
    ({"round": 4}, RoundMismatch, "round-mismatch"),
    ({"size": 11}, LayoutMismatch, "layout-mismatch"),
    ({"slots": 63}, LayoutMismatch, "layout-mismatch"),
    ({"layout": Layout(20, 12)}, LayoutMismatch, "layout-mismatch"),
    ({"layout": Layout(reach=2.0)}, LayoutMismatch, "layout-mismatch"),
]


@pytest.mark.parametrize(("fields", "error", "code"), OTHERS)
def test_a_message_for_something_else_is_refused_read_and_added(
    fields: dict[str, Any], error: type[SecureError], code: str
) -> None:
    other = replace(HEADER, **fields)
    with pytest.raises(error) as refused:
        read(Sealed(other, b"").pack(), HEADER)
    assert refused.value.code == code
    with pytest.raises(error):
        joined([HEADER, other])


def test_a_header_with_an_impossible_layout_is_malformed() -> None:
    data = bytearray(Sealed(HEADER, b"").pack())
    data[data.index(24)] = 40  # bits
    with pytest.raises(MalformedCiphertext):
        read(bytes(data), HEADER)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=6))
def test_joining_adds_the_counts_up_to_what_fits(counts: list[int]) -> None:
    headers = [replace(HEADER, count=count) for count in counts]
    if sum(counts) <= LAYOUT.most:
        assert joined(headers) == replace(HEADER, count=sum(counts))
    else:
        with pytest.raises(HeadroomExceeded, match=f"{sum(counts)} uploads are too many"):
            joined(headers)


def test_a_message_that_says_too_many_is_refused() -> None:
    with pytest.raises(HeadroomExceeded):
        read(Sealed(replace(HEADER, count=257), b"").pack(), HEADER)
