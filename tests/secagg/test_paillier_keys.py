"""Paillier keys: as specified, never the same, shown to nobody; and the powers that they blind with."""

from __future__ import annotations

import hashlib
import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.errors import (
    BackendUnavailable,
    SecureError,
    WeakKey,
)
from sordino.secagg import paillier
from sordino.secagg.big_integers import FixedBase, chinese, is_prime
from sordino.secagg.paillier import generate, read_public, read_secret
from tests.secagg.paillier_keys import real, tiny

pytest.importorskip("gmpy2")


# keys
@pytest.mark.parametrize("bits", [2048, pytest.param(3072, marks=pytest.mark.slow)])
def test_a_key_is_as_specified(bits: int) -> None:
    secret = real(bits)
    p, q, n = secret.p, secret.q, secret.public.n
    assert n == p * q
    assert n.bit_length() == bits
    assert p != q
    for prime in (p, q):
        assert prime.bit_length() == bits // 2
        assert prime >> (bits // 2 - 2) == 3
        assert prime % 4 == 3
        assert pow(2, int(prime) - 1, int(prime)) == 1  # Fermat, by Python
    assert math.gcd(p - 1, q - 1) == 2
    assert math.gcd(n, (p - 1) * (q - 1)) == 1
    assert secret.public.id == hashlib.sha256(int(n).to_bytes(bits // 8, "big")).digest()[:16]


def test_keys_are_never_the_same() -> None:
    assert len({paillier._generated(128).public.n for _ in range(20)}) == 20


@pytest.mark.parametrize(
    ("p", "q", "fit"),
    [(23, 31, True), (31, 31, False), (23, 29, False), (19, 31, False), (19, 23, False), (23, 47, False)],
    ids=["good", "equal", "1 modulo 4", "gcd 6", "product too short", "unequal lengths"],
)
def test_only_fitting_primes_make_a_key(p: int, q: int, fit: bool) -> None:
    assert paillier._fit(p, q) is fit


def test_primes_are_primes() -> None:
    sieve = [n for n in range(2, 2000) if all(n % d for d in range(2, math.isqrt(n) + 1))]
    assert [n for n in range(2, 2000) if is_prime(n)] == sieve
    for pseudoprime in (561, 3_215_031_751, 3_825_123_056_546_413_051, 318_665_857_834_031_151_167_461):
        assert not is_prime(pseudoprime), (
            "a strong pseudoprime to the first 4, 9 and 12 prime bases, and a Carmichael number"
        )


@pytest.mark.parametrize("bits", [0, 512, 1024, 2047, 2049, 3071, 8192])
def test_sizes_that_are_not_offered_are_refused(bits: int) -> None:
    for testing in (False, True):
        with pytest.raises(WeakKey, match=f"{bits} bits") as refused:
            generate(bits, testing)
        assert refused.value.code == "key-bits"


def test_keys_for_tests_are_refused_elsewhere() -> None:
    secret = real(2048)
    for attempt in (
        lambda: generate(2048),
        lambda: read_public(secret.public.pack()),
        lambda: read_secret(secret.pack()),
    ):
        with pytest.raises(WeakKey, match="2048 bits") as refused:
            attempt()
        assert refused.value.code == "key-for-tests-only"
    with pytest.raises(WeakKey):
        read_public(tiny().public.pack(), testing=True)


@pytest.mark.slow
def test_keys_survive_their_bytes() -> None:
    secret = real(3072)
    assert len(secret.public.pack()) == len(secret.pack()) == 4 + 3072 // 8
    public, again = read_public(secret.public.pack()), read_secret(secret.pack())
    assert (public, public.id, public.hs) == (secret.public, secret.public.id, secret.public.hs)
    assert (again, again.public.id) == (secret, secret.public.id)
    assert again != real(2048)


def test_bytes_that_are_no_key_are_refused() -> None:
    key = real(2048)
    p, secret, public = int(key.p), key.pack(), key.public.pack()
    near = (int(key.q) - 4 * step for step in range(1, 1000))
    composite = next(number for number in near if paillier._fit(p, number) and not is_prime(number))
    low, high = (3 << 998 | 3).to_bytes(131, "big"), (3 << 1046 | 3).to_bytes(131, "big")  # 2,048 bits in all
    secrets = {
        "malformed-key": [
            b"",
            public,
            secret[:4] + p.to_bytes(128, "big") * 2,
            secret[:132] + composite.to_bytes(128, "big"),
            b"SRSK" + b"\0" + secret[4:132] + b"\0" + secret[132:],
            b"SRSK" + low + high,
        ],
        "key-bits": [secret[:4], secret[:-1], secret + b"\0"],
    }
    publics = {
        "malformed-key": [b"", secret, public[:4] + b"\0" + public[4:], public[:-1] + bytes([public[-1] ^ 1])],
        "key-bits": [public[:4], public[:-1], public + b"\0"],
    }
    for read, cases in ((read_secret, secrets), (read_public, publics)):
        for code, broken in cases.items():
            for data in broken:
                with pytest.raises(SecureError) as refused:
                    read(data, testing=True)
                assert refused.value.code == code
                assert str(p) not in str(refused.value)


def test_nothing_printed_shows_a_secret() -> None:
    secret = real(2048)
    for text in (repr(secret), str(secret), f"{[secret]}", repr(secret.public)):
        assert secret.public.id.hex() in text
        for number in (secret.p, secret.q):
            assert str(number)[:12] not in text
            assert f"{number:x}"[:12] not in text


def test_only_the_secret_key_decrypts() -> None:
    assert not hasattr(tiny().public, "open")
    assert not hasattr(tiny().public, "unseal")


def test_without_gmpy2_there_is_no_silent_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gmpy2", None)
    with pytest.raises(BackendUnavailable, match="gmpy2") as refused:
        generate()
    assert refused.value.code == "backend-unavailable"


# arithmetic
@settings(max_examples=30)
@given(
    st.integers(2, 2**200), st.integers(3, 2**200).map(lambda n: n | 1), st.lists(st.integers(0, 2**24 - 1), min_size=1)
)
def test_a_table_gives_the_powers(base: int, modulus: int, exponents: list[int]) -> None:
    columns = np.array([list(exponent.to_bytes(3, "little")) for exponent in exponents], np.uint8).T
    expected = [pow(base, exponent, modulus) for exponent in exponents]
    assert FixedBase(base, modulus, 3).powers(columns) == expected


@given(st.integers(0, 34 * 45 - 1))
def test_remainders_tell_the_number(number: int) -> None:
    assert chinese([number % 34], [number % 45], 34, 45) == [number]
