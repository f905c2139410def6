"""Paillier's cryptosystem: with the public key ciphertexts can be added, only the secret key decrypts the sum
(Paillier, EUROCRYPT 1999).

c = (1 + m n) rho mod n^2, where the blinding rho is h^(n alpha) for a short random alpha (Damgard, Jurik and Nielsen,
IJIS 2010), by a table of powers. The secret key computes the same number modulo p^2 and q^2, at 0.6 of the cost.

Assumptions: decisional composite residuosity, and that short exponents of h^n cannot be told from full ones; h follows
from n by a hash, so that the id of a key stands for all of it. Ciphertexts are malleable and prove nothing about their
sender. Not constant in time: decrypt sums where nobody times you closely.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final

from sordino.errors import MalformedCiphertext, SecureError, WeakKey
from sordino.privacy.uplink.fixed_point import Ints, Layout
from sordino.secagg.big_integers import (
    FixedBase,
    chinese,
    integers,
    is_prime,
    pack,
    random_prime,
    short_exponents,
    slots,
    unpack,
)
from sordino.secagg.sealed import Sealed, SealedHeader, joined
from sordino.secagg.sealed import gmpy2 as gmp

SCHEME: Final = "paillier"
STRONG: Final = (3072, 4096)  # 128 bits of security and more
FOR_TESTS: Final = 2048  # 112 bits
_PUBLIC, _SECRET = b"SRPK", b"SRSK"

Blinding = Callable[[int], list[int]]  # that many fresh blindings


@dataclass(frozen=True, repr=False)
class PaillierPublic:
    """A public Paillier key n, which encrypts, and adds ciphertexts."""

    n: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", gmp().mpz(self.n))

    def __repr__(self) -> str:
        return f"PaillierPublic({self.bits} bits, {self.id.hex()})"

    @property
    def bits(self) -> int:
        return self.n.bit_length()

    @cached_property
    def id(self) -> bytes:
        return hashlib.sha256(self.n.to_bytes(self.bits // 8, "big")).digest()[:16]

    @cached_property
    def square(self) -> int:
        return self.n * self.n

    @cached_property
    def hs(self) -> int:
        """Base h^n of the blinding, for h = -x^2 and x a hash of n: whoever makes a key cannot choose h."""
        seed = b"sordino paillier " + self.n.to_bytes(self.bits // 8, "big")
        x = int.from_bytes(hashlib.shake_256(seed).digest(self.bits // 8 + 16), "big")
        return pow(-x * x % self.n, self.n, self.square)

    def header(self, round: int, size: int, layout: Layout) -> SealedHeader:
        return SealedHeader(SCHEME, self.id, round, size, layout, slots(self.bits, layout.width))

    def most(self, layout: Layout) -> int:
        """Largest number of contributions whose sum fits the layout."""
        return layout.most

    def check(self, layout: Layout, count: int) -> None:
        layout.check(count)

    def encrypt(
        self, values: Ints, round: int, layout: Layout, blinding: Blinding | None = None, *, count: int = 1
    ) -> Sealed:
        """Encrypt the values of one contribution, or of the sum of `count`. Clients that share the secret key pass its
        faster `blinding`."""
        header = replace(self.header(round, len(values), layout), count=count)
        return self._sealed(header, self.seal(pack(values, header.slots, layout, count), blinding or self.djn))

    def add(self, messages: Iterable[Sealed]) -> Sealed:
        """Homomorphic sum of encrypted messages, one or more."""
        messages = list(messages)
        header = self._joined([message.header for message in messages])
        totals = [gmp().mpz(1)] * integers(header.size, header.slots)
        for message in messages:
            totals = [
                total * number % self.square for total, number in zip(totals, self._numbers(message), strict=True)
            ]
        if not self._units(totals):  # a product is a unit if and only if its factors are
            culprit = next(index for index, message in enumerate(messages) if not self._units(self._numbers(message)))
            raise _shared(f"message {culprit}")
        return self._sealed(header, totals)

    def seal(self, plain: Sequence[int], blinding: Blinding) -> list[int]:
        """Ciphertexts of integers from 0 up to n - 1."""
        return [
            (1 + self.n * number) * blind % self.square
            for number, blind in zip(plain, blinding(len(plain)), strict=True)
        ]

    def djn(self, count: int) -> list[int]:
        return self._powers_of_hs.powers(short_exponents(self.bits, count))

    def read(self, message: Sealed) -> list[int]:
        """Ciphertexts of a message under this key, each of them checked."""
        self._joined([message.header])
        numbers = self._numbers(message)
        if not self._units(numbers):
            raise _shared("a message")
        return numbers

    def pack(self) -> bytes:
        return _PUBLIC + self.n.to_bytes(self.bits // 8, "big")

    @cached_property
    def _powers_of_hs(self) -> FixedBase:
        return FixedBase(self.hs, self.square, self.bits // 16)

    def _joined(self, headers: Sequence[SealedHeader]) -> SealedHeader:
        """Header of the sum; refused, before any arithmetic, unless all messages are encrypted under this key and fit
        together."""
        header = self.header(headers[0].round, headers[0].size, headers[0].layout)
        return joined([replace(header, count=0), *headers])

    def _numbers(self, message: Sealed) -> list[int]:
        length, count = self.bits // 4, integers(message.header.size, message.header.slots)
        if len(message.body) != length * count:
            raise MalformedCiphertext(
                f"{len(message.body)} bytes of ciphertexts came",
                why=f"{message.header.size} values need {count} ciphertexts of {length} bytes each",
                fix="ignore the message",
                code="ciphertext-length",
            )
        read = partial(gmp().mpz.from_bytes, byteorder="big")
        numbers = [read(message.body[start : start + length]) for start in range(0, len(message.body), length)]
        for index, number in enumerate(numbers):
            if not 0 < number < self.square:
                raise MalformedCiphertext(
                    f"ciphertext {index} is {'0' if number == 0 else 'not below n^2'}",
                    why="a ciphertext must lie between 0 and n^2",
                    fix="ignore the message",
                    code="ciphertext-out-of-range",
                )
        return numbers

    def _units(self, numbers: Sequence[int]) -> bool:
        """True where all numbers are coprime to n, which holds where their product is."""
        product = gmp().mpz(1)
        for number in numbers:
            product = product * number % self.n
        return bool(gmp().gcd(product, self.n) == 1)

    def _sealed(self, header: SealedHeader, numbers: Iterable[int]) -> Sealed:
        return Sealed(header, b"".join(number.to_bytes(self.bits // 4, "big") for number in numbers))


@dataclass(frozen=True, repr=False)
class PaillierSecret:
    """A secret Paillier key, p and q, which decrypts sums."""

    p: int
    q: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", gmp().mpz(self.p))
        object.__setattr__(self, "q", gmp().mpz(self.q))

    def __repr__(self) -> str:
        return f"PaillierSecret({self.public.bits} bits, {self.public.id.hex()})"

    @cached_property
    def public(self) -> PaillierPublic:
        return PaillierPublic(self.p * self.q)

    def open(self, total: Sealed) -> Ints:
        header = total.header
        plain = self.unseal(self.public.read(total))
        return unpack(plain, header.count, header.size, header.slots, header.layout)

    def unseal(self, numbers: Sequence[int]) -> list[int]:
        """Plaintexts of ciphertexts, as integers."""
        return chinese(
            self._logarithms(numbers, self.p, self.q), self._logarithms(numbers, self.q, self.p), self.p, self.q
        )

    def encrypt(self, values: Ints, round: int, layout: Layout) -> Sealed:
        """Encrypts values as the public key does, but faster, with the secret key."""
        return self.public.encrypt(values, round, layout, self.djn)

    def djn(self, count: int) -> list[int]:
        """Random blinding factors as the public key makes them, but faster: modulo p^2 and q^2."""
        exponents = short_exponents(self.public.bits, count)
        left, right = self._halves_of_hs
        return chinese(left.powers(exponents), right.powers(exponents), left.modulus, right.modulus)

    def pack(self) -> bytes:
        length = self.public.bits // 16
        return _SECRET + self.p.to_bytes(length, "big") + self.q.to_bytes(length, "big")

    @cached_property
    def _halves_of_hs(self) -> tuple[FixedBase, FixedBase]:
        hs, width = self.public.hs, self.public.bits // 16
        return FixedBase(hs, self.p * self.p, width), FixedBase(hs, self.q * self.q, width)

    def _logarithms(self, numbers: Sequence[int], p: int, q: int) -> list[int]:
        """The plaintexts modulo p: c^(p-1) = 1 - m q p modulo p^2, since the blinding drops out."""
        scale = gmp().invert(-q, p)
        powers = gmp().powmod_base_list(list(numbers), p - 1, p * p)
        return [(power - 1) // p * scale % p for power in powers]


def generate(bits: int = 3072, testing: bool = False) -> PaillierSecret:
    """A new secret Paillier key with a modulus of `bits` bits; `testing` allows 2048."""
    _strong(bits, testing)
    return _generated(bits)


def read_public(data: bytes, testing: bool = False) -> PaillierPublic:
    if data[:4] != _PUBLIC:
        raise _no_key("it does not begin like a public key")
    key = PaillierPublic(int.from_bytes(data[4:], "big"))
    _strong(key.bits, testing)
    if len(data) != 4 + key.bits // 8 or key.n % 2 == 0:
        raise _no_key("its number is not a product of two odd primes")
    return key


def read_secret(data: bytes, testing: bool = False) -> PaillierSecret:
    if data[:4] != _SECRET:
        raise _no_key("it does not begin like a secret key")
    middle = 2 + len(data) // 2
    key = PaillierSecret(int.from_bytes(data[4:middle], "big"), int.from_bytes(data[middle:], "big"))
    _strong(key.public.bits, testing)
    primes = is_prime(key.p) and is_prime(key.q)
    if len(data) != 4 + key.public.bits // 8 or not primes or not _fit(key.p, key.q):
        raise _no_key("its numbers are not two primes that make a key")
    return key


def _generated(bits: int) -> PaillierSecret:
    while True:
        p, q = random_prime(bits // 2), random_prime(bits // 2)
        if _fit(p, q):
            return PaillierSecret(p, q)


def _fit(p: int, q: int) -> bool:
    even = p.bit_length() == q.bit_length() and (p * q).bit_length() == 2 * p.bit_length()
    blum = p != q and p % 4 == 3 and q % 4 == 3 and math.gcd(p - 1, q - 1) == 2
    return even and blum and math.gcd(p * q, (p - 1) * (q - 1)) == 1


def _strong(bits: int, testing: bool) -> None:
    if bits not in (FOR_TESTS, *STRONG):
        raise WeakKey(
            f"a Paillier key of {bits} bits",
            why=f"keys have {STRONG[0]} or {STRONG[1]} bits, or {FOR_TESTS} for tests",
            fix=f"use {STRONG[0]}",
            code="key-bits",
        )
    if bits == FOR_TESTS and not testing:
        raise WeakKey(
            f"a Paillier key of {bits} bits outside tests",
            why="it has 112 bits of security, but 128 are promised",
            fix=f"use {STRONG[0]}, or set testing = true if this is a test",
            code="key-for-tests-only",
        )


def _shared(what: str) -> MalformedCiphertext:
    return MalformedCiphertext(
        f"{what} holds a number that shares a factor with n",
        why="no honest encryption has such a number, and it would reveal the secret key",
        fix="ignore the message, and ask who made it",
        code="ciphertext-not-coprime",
    )


def _no_key(why: str) -> SecureError:
    return SecureError(
        "these bytes are not a Paillier key", why=why, fix="give the bytes that `pack` wrote", code="malformed-key"
    )
