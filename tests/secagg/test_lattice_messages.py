"""What is no ciphertext, no key or of another round is refused before anything is added or opened."""

from __future__ import annotations

import math
import struct
from dataclasses import replace

import numpy as np
import pytest

from sordino.errors import (
    BackendUnavailable,
    DomainError,
    EmptyRound,
    IntegrityError,
    KeyMismatch,
    LayoutMismatch,
    MalformedCiphertext,
    RoundMismatch,
    WeakKey,
)
from sordino.privacy.uplink.fixed_point import Layout
from sordino.secagg import lattice
from sordino.secagg.lattice import (
    read_public,
    read_secret,
)
from sordino.secagg.sealed import Sealed
from tests.secagg.lattice_keys import BOTH, LAYOUT, WIDE, refused, secret

tenseal = pytest.importorskip("tenseal")


def test_parameters_have_128_bits_of_security() -> None:
    most = {4096: 109, 8192: 218}  # Homomorphic Encryption Standard (2018), table 1, ternary secret
    for ring in (lattice.BFV, lattice.CKKS):
        assert sum(ring.moduli) <= most[ring.degree]
    t = lattice.BFV.plain
    assert t % (2 * lattice.BFV.degree) == 1
    assert all(t % divisor for divisor in range(2, math.isqrt(t) + 1))


def other_parameters():
    kind, new = tenseal.SCHEME_TYPE, tenseal.context
    yield new(kind.BFV, 4096, lattice.BFV.plain, [54, 54], n_threads=1)
    yield new(kind.BFV, 4096, 1032193, [36, 36, 37], n_threads=1)
    yield new(kind.CKKS, 8192, 0, [60, 40, 60], n_threads=1)
    scaled = new(kind.CKKS, 8192, 0, [60, 40, 40], n_threads=1)
    scaled.global_scale = 2.0**20
    yield scaled


def test_keys_of_other_parameters_are_refused() -> None:
    for context in other_parameters():
        with refused(WeakKey, "lattice-parameters"):
            read_public(lattice.write(context, secret=False))
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
    found = np.array(lattice.decrypt(vector, mine._context))[1:]  # what a twin that checks nothing would hand out
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
    loud = lattice.encrypt(lattice.CKKS, secret("ckks").public._context, [1.0, 1.5] + [0.0] * 4094)
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
    roomy = lattice.fresh(lattice.BFV)  # with the keys of products
    roomy.auto_relin = False
    square = tenseal.bfv_vector(roomy, [1] * 4096).mul_([2] * 4096)
    square.mul_(square.copy())  # three polynomials
    for ring, vector in ((lattice.CKKS, lower), (lattice.CKKS, scaled), (lattice.BFV, square)):
        data = vector.serialize()
        start = data.index(b"\x5e\xa1\x10")  # SEAL's own header
        part = data[start : start + int.from_bytes(data[start + 8 : start + 16], "little")]
        with refused(MalformedCiphertext, "malformed-lattice"):
            lattice.load(ring, secret(ring.name).public._context, part)


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
            lattice.load(lattice.BFV, public._context, part)
        else:
            with refused(MalformedCiphertext, "malformed-lattice") as raised:
                lattice.load(lattice.BFV, public._context, part)
            assert "another form" in str(raised.value)


def test_an_unknown_envelope_is_not_guessed_at() -> None:
    class Renewed:
        def serialize(self) -> bytes:
            return bytes(100_000)

    with refused(BackendUnavailable, "tenseal-envelope"):
        lattice.bare(lattice.BFV, Renewed())
