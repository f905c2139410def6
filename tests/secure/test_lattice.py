"""Lattice encryption: BFV exact, CKKS within its bound, nothing opens what is not a sum, and who adds cannot open."""

from __future__ import annotations

import importlib.util
import math
import struct
import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from sordino.errors import (
    BackendUnavailable,
    ConfigError,
    DomainError,
    EmptyRound,
    HeadroomExceeded,
    IntegrityError,
    KeyMismatch,
    LayoutMismatch,
    MalformedCiphertext,
    NoSecretKey,
    RoundMismatch,
    ServerHoldsKey,
    SordinoError,
    WeakKey,
)
from sordino.secure import rings
from sordino.secure.lattice import (
    CKKS_ERROR,
    BfvPublic,
    LatticeSecret,
    generate,
    read_public,
    read_secret,
)
from sordino.secure.layout import Layout
from sordino.secure.sealed import Sealed, unpack

tenseal = pytest.importorskip("tenseal")

LAYOUT = Layout()
WIDE = Layout(headroom=12)  # its slots would have room for more than BFV's plaintext has
BOTH = pytest.mark.parametrize("scheme", ["bfv", "ckks"])


@cache
def secret(scheme: str, number: int = 0) -> LatticeSecret:
    return generate(scheme)


def drawn(count: int, size: int, layout: Layout, seed: int = 0) -> np.ndarray:
    """Contributions, the extreme values among them."""
    top = layout.offset - 1
    values = np.random.default_rng(seed).integers(-top, top + 1, (count, size))
    values[:, :3] = [-top, 0, top]
    return values


@contextmanager
def refused(error: type[SordinoError], code: str):
    with pytest.raises(error) as raised:
        yield raised
    assert raised.value.code == code


def times(public, message: Sealed, count: int) -> Sealed:
    """A message added `count` times."""
    total = None
    for bit in bin(count)[2:]:
        total = total and public.add([total, total])
        if bit == "1":
            total = public.add([total, message]) if total else message
    return total


# ---------------------------------------------------------------- sums


@pytest.mark.parametrize("count", [1, 50, 256, 512])
def test_bfv_sums_are_exact(count: int) -> None:
    key, distinct = secret("bfv"), min(count, 32)
    values = drawn(distinct, 4000, WIDE)
    messages = [key.public.encrypt(row, 3, WIDE) for row in values]
    total = key.public.add(messages[i % distinct] for i in range(count))
    assert (key.open(total) == sum(values[i % distinct] for i in range(count))).all()
    assert total.header.count == count


def test_a_sum_of_sums_over_several_ciphertexts_and_the_wire() -> None:
    key, values = secret("bfv"), drawn(6, 9000, LAYOUT)
    public = read_public(key.public.pack())
    messages = [public.encrypt(row, 1, LAYOUT) for row in values]
    arrived = [unpack(m.pack(), public.header(1, 9000, LAYOUT)) for m in messages]
    total = public.add([public.add(arrived[:2]), public.add(arrived[2:])])
    assert (read_secret(key.pack()).open(total) == values.sum(axis=0)).all()


@pytest.mark.parametrize("size", [0, 1, 4095, 4096])
@BOTH
def test_every_length_comes_back(scheme: str, size: int) -> None:
    key, values = secret(scheme), np.arange(size) - 7
    assert (key.open(key.public.encrypt(values, 0, LAYOUT)) == values).all()


def test_513_at_24_bits_are_refused_before_anything_is_encrypted_or_added() -> None:
    public = secret("bfv").public
    assert public.most(WIDE) == 512
    public.check(WIDE, 512)
    with refused(HeadroomExceeded, "plaintext-overflow") as raised:
        public.check(WIDE, 513)
    assert "k=513 > 512 for b=24" in str(raised.value)
    unread = Sealed(replace(public.header(0, 5, WIDE), count=513), b"not even a ciphertext")
    with refused(HeadroomExceeded, "plaintext-overflow"):
        public.add([unread])
    with refused(HeadroomExceeded, "plaintext-overflow"):
        secret("bfv").open(unread)


def test_without_the_refusal_513_would_wrap() -> None:
    class Careless(BfvPublic):
        def check(self, layout: Layout, count: int) -> None:
            pass

    key = secret("bfv")
    twin = Careless(key.public.pack(), key.public._context)
    top = WIDE.offset - 1
    total = times(twin, twin.encrypt(np.array([top, -top, 1]), 0, WIDE), 513)
    assert 513 * top == 4_303_355_391
    assert LatticeSecret(twin, key._context).open(total).tolist() == [-4_286_734_850, 4_286_734_850, 513]


def test_the_layouts_own_headroom_counts_too() -> None:
    public = secret("bfv").public
    message = public.encrypt(np.ones(3, np.int64), 0, LAYOUT)
    full = Sealed(replace(message.header, count=LAYOUT.most), message.body)
    with refused(HeadroomExceeded, "headroom-exceeded"):
        public.add([full, message])


def random_sums(key: LatticeSecret, sums: int, layout: Layout):
    """(count, opened, true) of sums of random messages of a pool."""
    rng, values = np.random.default_rng(5), drawn(24, 4095, layout)
    pool = [key.public.encrypt(row, 0, layout) for row in values]
    for _ in range(sums):
        chosen = rng.integers(len(pool), size=rng.integers(1, 9))
        yield len(chosen), key.open(key.public.add(pool[i] for i in chosen)), values[chosen].sum(axis=0)


MANY = pytest.mark.parametrize("sums", [40, pytest.param(1000, marks=pytest.mark.slow)])


@MANY
def test_many_bfv_sums_are_exact(sums: int) -> None:
    assert all((opened == true).all() for _, opened, true in random_sums(secret("bfv"), sums, LAYOUT))


@MANY
def test_the_error_of_ckks_is_within_the_bound(sums: int) -> None:
    fine = Layout(bits=32, headroom=9)  # its grid is finer than the error
    steps = fine.offset - 1
    worst = [
        np.abs(opened - true).max() / steps / math.sqrt(count)
        for count, opened, true in random_sums(secret("ckks"), sums, fine)
    ]
    assert max(worst) <= CKKS_ERROR
    assert max(worst) > CKKS_ERROR / 20  # the bound says something: a twentieth of it would be broken


@pytest.mark.parametrize("count", [2, 50, 512])
def test_ckks_on_the_grid_of_24_bits(count: int) -> None:
    key, layout = secret("ckks"), Layout(headroom=9)
    (row,) = drawn(1, 4095, layout)
    distinct = [key.public.encrypt(row, 0, layout) for _ in range(min(count, 32))]
    off = np.abs(key.open(key.public.add(distinct[i % len(distinct)] for i in range(count))) - count * row)
    repeats = math.ceil(count / len(distinct))  # the same noise twice adds up faster than fresh noise
    steps = math.floor(CKKS_ERROR * math.sqrt(count * repeats) * (layout.offset - 1) + 0.5)
    assert off.max() <= steps
    assert np.mean(off) < 0.7
    if count == 2:
        assert steps == 0


# ---------------------------------------------------------------- keys


def fields(message: bytes) -> dict[int, bytes]:
    """The length-delimited fields of a protocol buffer."""
    found, at = {}, 0

    def varint() -> int:
        nonlocal at
        number = shift = 0
        while True:
            byte, at = message[at], at + 1
            number |= (byte & 127) << shift
            if byte < 128:
                return number
            shift += 7

    while at < len(message):
        tag = varint()
        if tag & 7 == 2:
            length = varint()
            found[tag >> 3] = message[at : at + length]
            at += length
        elif tag & 7 == 1:
            at += 8
        else:
            varint()
    return found


PRIVATE, RELIN, GALOIS = 3, 4, 5  # field numbers of TenSEAL's context, and of its public part


@BOTH
def test_the_public_half_holds_no_secret_and_cannot_decrypt(scheme: str) -> None:
    key = secret(scheme)
    public, whole = fields(key.public.pack()), fields(rings.write(key._context, secret=True))
    assert PRIVATE not in public
    assert not {RELIN, GALOIS} & set(fields(public[2]))
    hidden = fields(whole[PRIVATE])[1]  # the negative control: the same search finds the key where it is
    assert len(hidden) > 1000
    for start in range(0, len(hidden) - 64, 997):
        assert hidden[start : start + 64] not in key.public.pack()
    read = read_public(key.public.pack())
    assert not read._context.is_private()
    assert not read._context.has_secret_key()
    with pytest.raises(ValueError, match="Secret key"):
        read._context.secret_key()
    (vector,) = read.vectors(read.encrypt(np.ones(3, np.int64), 0, LAYOUT))
    with pytest.raises(ValueError, match="secret_key"):
        vector.decrypt()


@BOTH
def test_a_secret_key_is_refused_where_a_public_one_is_expected(scheme: str) -> None:
    for whole in (secret(scheme).pack(), rings.write(secret(scheme)._context, secret=True)):
        with refused(ServerHoldsKey, "secret-key-as-public"):
            read_public(whole)


@BOTH
def test_a_public_key_opens_nothing(scheme: str) -> None:
    with refused(NoSecretKey, "no-secret-key"):
        read_secret(secret(scheme).public.pack())


@BOTH
def test_keys_survive_the_way(scheme: str) -> None:
    key = secret(scheme)
    copy = read_secret(key.pack())
    assert copy.public.id == key.public.id == read_public(key.public.pack()).id
    assert type(copy) is type(key)
    assert type(copy.public) is type(key.public)
    assert copy.open(key.public.encrypt(np.array([5, -6]), 0, LAYOUT)).tolist() == [5, -6]
    assert secret(scheme, 1).public.id != key.public.id


def test_halves_of_two_keys_are_noticed() -> None:
    first, second = secret("bfv"), secret("bfv", 1)
    with refused(IntegrityError, "lattice-guard"):
        read_secret(LatticeSecret(second.public, first._context).pack())
    with refused(MalformedCiphertext, "malformed-lattice"):
        read_secret(LatticeSecret(secret("ckks").public, first._context).pack())
    with refused(MalformedCiphertext, "malformed-lattice"):
        read_secret(first.pack()[:8] + first.public.pack() + first.public.pack())


def test_parameters_have_128_bits_of_security() -> None:
    most = {4096: 109, 8192: 218}  # Homomorphic Encryption Standard (2018), table 1, ternary secret
    for ring in (rings.BFV, rings.CKKS):
        assert sum(ring.moduli) <= most[ring.degree]
    t = rings.BFV.plain
    assert t % (2 * rings.BFV.degree) == 1
    assert all(t % divisor for divisor in range(2, math.isqrt(t) + 1))


def other_parameters():
    kind, new = tenseal.SCHEME_TYPE, tenseal.context
    yield new(kind.BFV, 4096, rings.BFV.plain, [54, 54], n_threads=1)
    yield new(kind.BFV, 4096, 1032193, [36, 36, 37], n_threads=1)
    yield new(kind.CKKS, 8192, 0, [60, 40, 60], n_threads=1)
    scaled = new(kind.CKKS, 8192, 0, [60, 40, 40], n_threads=1)
    scaled.global_scale = 2.0**20
    yield scaled


def test_keys_of_other_parameters_are_refused() -> None:
    for context in other_parameters():
        with refused(WeakKey, "lattice-parameters"):
            read_public(rings.write(context, secret=False))
    keyless = secret("bfv")._context.serialize(
        save_public_key=False, save_secret_key=False, save_galois_keys=False, save_relin_keys=False
    )
    with refused(WeakKey, "lattice-parameters"):
        read_public(keyless)


@pytest.mark.parametrize("data", [b"", b"nonsense", b"SRDK", bytes(5 << 20)], ids=["none", "words", "mark", "long"])
def test_bytes_that_are_no_key(data: bytes) -> None:
    if data.startswith(b"SRDK"):
        with refused(MalformedCiphertext, "malformed-lattice"):
            read_secret(data)
    else:
        with refused(MalformedCiphertext, "malformed-lattice"):
            read_public(data)


# ---------------------------------------------------------------- what does not fit together


@BOTH
def test_another_key_is_noticed_by_the_header_and_by_the_guard(scheme: str) -> None:
    mine, other = secret(scheme), secret(scheme, 1)
    foreign = other.public.encrypt(np.arange(100), 0, LAYOUT)
    with refused(KeyMismatch, "key-mismatch"):
        mine.open(foreign)
    with refused(KeyMismatch, "key-mismatch"):
        mine.public.add([mine.public.encrypt(np.arange(100), 0, LAYOUT), foreign])
    lying = Sealed(replace(foreign.header, key=mine.public.id), foreign.body)
    with refused(IntegrityError, "lattice-guard"):
        mine.open(lying)


@BOTH
def test_without_a_guard_another_key_gives_random_numbers(scheme: str) -> None:
    mine, other, values = secret(scheme), secret(scheme, 1), np.arange(1, 4096)
    foreign = other.public.encrypt(values, 0, LAYOUT)
    (vector,) = mine.public.vectors(foreign)
    found = np.array(rings.decrypt(vector, mine._context))[1:]  # what a twin that checks nothing would hand out
    assert np.isfinite(found).all()
    assert np.mean(np.abs(found) > LAYOUT.offset) > 0.9
    assert not (found == values).any()


@BOTH
def test_other_rounds_sizes_and_layouts_are_refused(scheme: str) -> None:
    public = secret(scheme).public
    first = public.encrypt(np.arange(9), 1, LAYOUT)
    for error, other in (
        (RoundMismatch, public.encrypt(np.arange(9), 2, LAYOUT)),
        (LayoutMismatch, public.encrypt(np.arange(8), 1, LAYOUT)),
        (LayoutMismatch, public.encrypt(np.arange(9), 1, WIDE)),
    ):
        with pytest.raises(error):
            public.add([first, other])
    with pytest.raises(MalformedCiphertext):
        secret("ckks" if scheme == "bfv" else "bfv").open(first)


@BOTH
def test_headers_that_lie_are_noticed(scheme: str) -> None:
    key = secret(scheme)
    honest = key.public.encrypt(np.full(4095, 8_000_000), 0, LAYOUT)
    for code, lie in (
        ("lattice-guard", {"count": 2}),
        ("lattice-padding", {"size": 4000}),
    ):
        with refused(IntegrityError, code):
            key.open(Sealed(replace(honest.header, **lie), honest.body))


def test_a_contribution_beyond_its_range_is_noticed() -> None:
    key = secret("bfv")
    honest = key.public.encrypt(np.full(9, 8_000_000), 0, LAYOUT)
    with refused(IntegrityError, "lattice-range"):
        key.open(Sealed(replace(honest.header, layout=Layout(bits=16)), honest.body))
    loud = rings.encrypt(rings.CKKS, secret("ckks").public._context, [1.0, 1.5] + [0.0] * 4094)
    message = secret("ckks").public._sealed(secret("ckks").public.header(0, 9, LAYOUT), [loud])
    with refused(IntegrityError, "lattice-range"):
        secret("ckks").open(message)


@BOTH
def test_values_beyond_the_layout_are_not_encrypted(scheme: str) -> None:
    with refused(DomainError, "beyond-plaintext"):
        secret(scheme).public.encrypt(np.array([0, -LAYOUT.offset]), 0, LAYOUT)


def test_nothing_is_not_a_sum() -> None:
    with refused(EmptyRound, "nothing-to-add"):
        secret("bfv").public.add([])


@BOTH
def test_two_encryptions_of_the_same_differ(scheme: str) -> None:
    public = secret(scheme).public
    assert public.encrypt(np.arange(9), 0, LAYOUT).body != public.encrypt(np.arange(9), 0, LAYOUT).body


# ---------------------------------------------------------------- bytes


def with_length(part: bytes) -> bytes:
    return struct.pack("<I", len(part)) + part


@BOTH
def test_bodies_that_are_no_ciphertexts(scheme: str) -> None:
    key = secret(scheme)
    honest = key.public.encrypt(np.arange(5000), 0, LAYOUT)  # two ciphertexts
    body = honest.body
    length = int.from_bytes(body[:4], "little")
    first, rest = body[4 : 4 + length], body[4 + length :]
    ring = key.public.ring
    bad = {
        "nothing": b"",
        "one of two": with_length(first),
        "three of two": body + with_length(first),
        "cut": body[:-1],
        "longer": body + b"x",
        "a length of 4 GB": b"\xff\xff\xff\xff" + body[4:],
        "too long": with_length(first + bytes(ring.longest)) + rest,
        "trailing bytes in a ciphertext": with_length(first + b"x") + rest,
        "too short": with_length(first[:100]) + rest,
        "cut, and saying so": with_length(first[:8] + (length - 8).to_bytes(8, "little") + first[16:-8]) + rest,
        "zeros": with_length(bytes(length)) + rest,
        "TenSEAL's envelope with sizes of its choice": with_length(b"\x0a\x02\x88\x27\x12\x00\x00\x00" + first) + rest,
    }
    for name, body in bad.items():
        with refused(MalformedCiphertext, "malformed-lattice"):
            key.open(Sealed(honest.header, body))
            pytest.fail(name)


@BOTH
def test_a_flipped_bit_is_refused_or_changes_nothing(scheme: str) -> None:
    key, values, rng = secret(scheme), np.arange(4095) * 1000, np.random.default_rng(2)
    honest = key.public.encrypt(values, 0, LAYOUT)
    noticed = 0
    for position in [*range(4, 24), *rng.integers(24, len(honest.body), 60)]:
        body = bytearray(honest.body)
        body[position] ^= 1 << rng.integers(8)
        try:
            opened = key.open(Sealed(honest.header, bytes(body)))
        except (MalformedCiphertext, IntegrityError):
            noticed += 1
        else:
            assert (opened == values).all()  # a bit that means nothing to the format
    assert noticed > 60


def test_a_ciphertext_of_another_form_is_refused() -> None:
    key = secret("ckks")
    context, slots = key.public._context, [1.0] * 4096
    lower = tenseal.ckks_vector(context, slots).mul_([0.5] * 4096)  # of the next level
    scaled = tenseal.ckks_vector(context, slots, scale=2.0**30)
    roomy = rings.fresh(rings.BFV)  # with the keys of products
    roomy.auto_relin = False
    square = tenseal.bfv_vector(roomy, [1] * 4096).mul_([2] * 4096)
    square.mul_(square.copy())  # three polynomials
    for ring, vector in ((rings.CKKS, lower), (rings.CKKS, scaled), (rings.BFV, square)):
        data = vector.serialize()
        start = data.index(b"\x5e\xa1\x10")  # SEAL's own header
        part = data[start : start + int.from_bytes(data[start + 8 : start + 16], "little")]
        with refused(MalformedCiphertext, "malformed-lattice"):
            rings.load(ring, secret(ring.name).public._context, part)


def framed(content: bytes, version: bytes) -> bytes:
    """SEAL's frame of an object that is not compressed."""
    return struct.pack("<HB2sBHQ", 0xA15E, 16, version, 0, 0, 16 + len(content)) + content


def test_a_plaintext_in_the_form_of_a_ciphertext_is_refused() -> None:
    public = secret("bfv").public
    honest = public.encrypt(np.ones(1, np.int64), 0, LAYOUT)
    (like,), version = public.vectors(honest), honest.body[7:9]
    level = like.ciphertext()[0].parms_id()
    for mask, hidden in ((0, False), (1, True)):  # c = (1 everywhere, mask): a 0 there hides nothing
        numbers = np.repeat(np.array([1, mask], "<u8"), 2 * 4096)
        head = struct.pack("<4Q?QQQdQ", *level, False, 2, 4096, 2, 1.0, 1)
        part = framed(head + framed(struct.pack("<Q", numbers.size) + numbers.tobytes(), version), version)
        if hidden:  # the negative control: but for that it would be read
            rings.load(rings.BFV, public._context, part)
        else:
            with refused(MalformedCiphertext, "malformed-lattice") as raised:
                rings.load(rings.BFV, public._context, part)
            assert "another form" in str(raised.value)


def test_an_unknown_envelope_is_not_guessed_at() -> None:
    class Renewed:
        def serialize(self) -> bytes:
            return bytes(100_000)

    with refused(BackendUnavailable, "tenseal-envelope"):
        rings.bare(rings.BFV, Renewed())


# ---------------------------------------------------------------- what is installed


def test_without_tenseal_nothing_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = secret("bfv").public.pack()
    monkeypatch.setitem(sys.modules, "tenseal", None)
    for attempt in (lambda: generate("bfv"), lambda: read_public(packed)):
        with refused(BackendUnavailable, "backend-unavailable") as raised:
            attempt()
        assert "tenseal" in str(raised.value)


@pytest.mark.skipif(importlib.util.find_spec("openfhe") is not None, reason="openfhe is installed")
def test_an_unknown_scheme() -> None:
    with refused(ConfigError, "unknown-lattice-scheme"):
        generate("rot13")
