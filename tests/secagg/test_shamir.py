"""Secrets in shares: enough of them restore every secret, one fewer restores nothing, and what is wrong with them is
noticed.

Secrets are drawn from the operating system, so nothing here can be seeded; the rates of false alarm are stated.
"""

from __future__ import annotations

import os
import secrets
from itertools import combinations
from random import Random

import pytest
from scipy import stats

from sordino.errors import IntegrityError, SecAggAborted
from sordino.secagg import masks
from sordino.secagg.masks import PRIME, SHARE_BYTES, Row

HIDDEN = [bytes(32), b"\xff" * 32, b"\x01" + bytes(31), os.urandom(32)]


def at_zero(pairs: list[tuple[int, int]]) -> int:
    """Another implementation: Newton's divided differences instead of Lagrange's weights."""
    points, table = [x for x, _ in pairs], [y for _, y in pairs]
    for step in range(1, len(pairs)):
        for i in range(len(pairs) - 1, step - 1, -1):
            table[i] = (table[i] - table[i - 1]) * pow(points[i] - points[i - step], -1, PRIME) % PRIME
    value = 0
    for x, difference in zip(reversed(points), reversed(table), strict=True):
        value = (value * -x + difference) % PRIME
    return value


def newton(rows: list[tuple[int, Row]]) -> list[int]:
    count = len(rows[0][1])
    return [at_zero([(x, int.from_bytes(row[i], "little")) for x, row in rows]) for i in range(count)]


@pytest.mark.parametrize("count", range(1, 8))
def test_every_choice_of_enough_rows_restores_every_secret(count: int) -> None:
    points = Random(count).sample(range(1, 1 << 32), count)
    for threshold in range(1, count + 1):
        rows = list(zip(points, masks.share(HIDDEN, points, threshold), strict=True))
        for chosen in combinations(rows, threshold):
            assert masks.reconstruct(chosen, threshold) == HIDDEN
            assert newton(list(chosen)) == [int.from_bytes(secret, "little") for secret in HIDDEN]
        assert masks.reconstruct(rows[::-1], threshold) == HIDDEN


def test_fifty_clients() -> None:
    points, many = list(range(1, 51)), [os.urandom(32) for _ in range(20)]
    rows = list(zip(points, masks.share(many, points, 34), strict=True))
    assert masks.reconstruct(Random(1).sample(rows, 34), 34) == many


def restored_by_one_fewer() -> int:
    points = [1, 2, 3, 4, 5]
    rows = list(zip(points, masks.share(HIDDEN, points, 4), strict=True))
    return sum(
        value == int.from_bytes(secret, "little") for value, secret in zip(newton(rows[:3]), HIDDEN, strict=True)
    )


def coefficients(pairs: list[tuple[int, int]]) -> list[int]:
    """The polynomial through these points, constant first."""
    total = [0] * len(pairs)
    for x, y in pairs:
        basis, scale = [1], y
        for other, _ in pairs:
            if other != x:
                basis = [(a - other * b) % PRIME for a, b in zip([0, *basis], [*basis, 0], strict=True)]
                scale = scale * pow(x - other, -1, PRIME) % PRIME
        total = [(one + scale * part) % PRIME for one, part in zip(total, basis, strict=True)]
    return total


def coefficients_of_each_secret() -> set[int]:
    points = [1, 2, 3, 4, 5]
    rows = masks.share(HIDDEN, points, 5)
    return {
        coefficient
        for i in range(len(HIDDEN))
        for coefficient in coefficients(
            [(x, int.from_bytes(row[i], "little")) for x, row in zip(points, rows, strict=True)]
        )[1:]
    }


def test_every_coefficient_of_every_secret_is_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    # a polynomial with zeros in the middle gives its secret to two rows; false alarm below 2^-510
    drawn = coefficients_of_each_secret()
    assert len(drawn) == 4 * len(HIDDEN)
    assert min(min(drawn), PRIME - max(drawn)) > 1 << 400
    real = iter([secrets.randbelow(PRIME), *[0] * 3] * len(HIDDEN))
    monkeypatch.setattr(secrets, "randbelow", lambda _: next(real))  # the broken twin: only the first is drawn
    assert 0 in coefficients_of_each_secret()


def test_one_row_fewer_restores_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # false alarm: 4 / 2^521
    assert restored_by_one_fewer() == 0
    monkeypatch.setattr(secrets, "randbelow", lambda _: 0)  # the broken twin: a polynomial of too low a degree
    assert restored_by_one_fewer() == len(HIDDEN)


def uniform(secret: bytes) -> float:
    """p-value of the top byte of the 521 bits, of the shares of one point, 2 of 2 needed."""
    held = masks.share([secret] * 4096, [1, 2], 2)[0]
    tops = [int.from_bytes(part, "little") >> 513 for part in held]
    return float(stats.chisquare([tops.count(byte) for byte in range(256)]).pvalue)


def test_a_share_is_uniform_whatever_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    # two tries each: false alarm 2e-8 in all
    for secret in (bytes(32), b"\xff" * 32):
        assert max(uniform(secret), uniform(secret)) > 1e-4
    short = secrets.randbelow
    monkeypatch.setattr(
        secrets, "randbelow", lambda _: short(1 << 256)
    )  # the broken twin: coefficients as short as the secret
    assert uniform(bytes(32)) < 1e-100


def test_two_sharings_of_one_secret_differ() -> None:
    one, other = (masks.share(HIDDEN, [1, 2, 3], 2) for _ in range(2))
    assert all(a != b for left, right in zip(one, other, strict=True) for a, b in zip(left, right, strict=True))


def spoiled(rows: list[tuple[int, Row]]) -> dict[str, list[tuple[int, Row]]]:
    (point, row), *rest = rows
    return {
        "share-repeated": [rows[1], *rest],
        "share-missing": rest[:1],
        "share-unequal": [(point, row[1:]), *rest],
        "share-malformed": [(point, (PRIME.to_bytes(SHARE_BYTES, "little"), *row[1:])), *rest],
    }


@pytest.mark.parametrize("code", ["share-repeated", "share-missing", "share-unequal", "share-malformed"])
def test_unusable_shares_are_refused(code: str) -> None:
    rows = list(zip([1, 2, 3], masks.share(HIDDEN, [1, 2, 3], 2), strict=True))
    with pytest.raises(SecAggAborted) as refusal:
        masks.reconstruct(spoiled(rows)[code], 2)
    assert refusal.value.code == code
    short = [(1, (*rows[0][1][:-1], rows[0][1][-1][1:])), rows[1]]
    with pytest.raises(SecAggAborted, match="66 bytes"):
        masks.reconstruct(short, 2)


def test_shares_of_different_secrets_are_noticed() -> None:
    # false alarm: 2^-265
    one, other = (masks.share(HIDDEN, [1, 2, 3], 3) for _ in range(2))
    with pytest.raises(IntegrityError) as refusal:
        masks.reconstruct([(1, other[0]), (2, one[1]), (3, one[2])], 3)
    assert refusal.value.code == "share-altered"


def test_a_share_that_is_altered_on_purpose_shifts_the_secret() -> None:
    # the limit that the module states: sharing is linear, and at the points 1, 2, 3 the first share counts threefold
    (row, *rest), hidden = masks.share([bytes(32)], [1, 2, 3], 3), 1
    altered = (int.from_bytes(row[0], "little") + hidden) % PRIME
    rows = [(1, (altered.to_bytes(SHARE_BYTES, "little"),)), *zip([2, 3], rest, strict=True)]
    assert masks.reconstruct(rows, 3) == [(3).to_bytes(32, "little")]
