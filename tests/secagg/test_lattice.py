"""Lattice encryption: BFV exact, CKKS within its bound, nothing opens what is not a sum, and who adds cannot open."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from sordino.errors import (
    BackendUnavailable,
    HeadroomExceeded,
    IntegrityError,
    MalformedCiphertext,
    NoSecretKey,
    ServerHoldsKey,
)
from sordino.privacy.uplink.fixed_point import Layout
from sordino.secagg import lattice
from sordino.secagg.lattice import (
    CKKS_ERROR,
    LatticePublic,
    LatticeSecret,
    generate,
    read_public,
    read_secret,
)
from sordino.secagg.sealed import Sealed, unpack
from tests.secagg.lattice_keys import BOTH, LAYOUT, WIDE, refused, secret


def drawn(count: int, size: int, layout: Layout, seed: int = 0) -> np.ndarray:
    """Contributions, the extreme values among them."""
    top = layout.offset - 1
    values = np.random.default_rng(seed).integers(-top, top + 1, (count, size))
    values[:, :3] = [-top, 0, top]
    return values


def times(public, message: Sealed, count: int) -> Sealed:
    """A message added `count` times."""
    total = None
    for bit in bin(count)[2:]:
        total = total and public.add([total, total])
        if bit == "1":
            total = public.add([total, message]) if total else message
    return total


# ---------------------------------------------------------------- sums
@pytest.mark.one_fast
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
    assert "bfv with 24 bits and 12 headroom bits adds up at most 512" in str(raised.value)
    unread = Sealed(replace(public.header(0, 5, WIDE), count=513), b"not even a ciphertext")
    with refused(HeadroomExceeded, "plaintext-overflow"):
        public.add([unread])
    with refused(HeadroomExceeded, "plaintext-overflow"):
        secret("bfv").open(unread)


def test_without_the_refusal_513_would_wrap() -> None:
    class Careless(LatticePublic):
        def check(self, layout: Layout, count: int) -> None:
            pass

    key = secret("bfv")
    twin = Careless(key.public.ring, key.public.pack(), key.public._context)
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


@pytest.mark.slow
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


@pytest.mark.one_fast
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


def test_noise_in_a_ckks_sum_is_not_the_noise_that_was_drawn() -> None:
    """Rounding makes errors of it that depend on what was drawn: some numbers come up twice as often as others, which
    tells neighbours apart however wide the noise is. Beside them is the noise of an encryption, here one step wide.
    """
    seal = pytest.importorskip("tenseal.sealapi")
    public, layout, first = secret("ckks").public, Layout(32, 31), 10**9
    encoder, steps = seal.CKKSEncoder(public._context.seal_context().data), layout.offset - 1

    def opened(drawn: int) -> float:
        plain = seal.Plaintext()
        encoder.encode([float(public.most(layout)), drawn / steps, *[0.0] * 4094], public.ring.scale, plain)
        return encoder.decode_double(plain)[1] * steps - first

    seen, drawn = np.arange(50, 250)[:, None], np.arange(300)
    often = norm.pdf(seen, np.array([opened(first + k) for k in drawn.tolist()])).sum(1)
    assert often.max() > 2 * often.min()
    assert norm.pdf(seen, drawn).sum(1) == pytest.approx(1.0)  # the control: noise in whole steps, as it was drawn


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
    public, whole = fields(key.public.pack()), fields(lattice.write(key._context, secret=True))
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
    for whole in (secret(scheme).pack(), lattice.write(secret(scheme)._context, secret=True)):
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


# ---------------------------------------------------------------- what is installed
def test_without_tenseal_nothing_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = secret("bfv").public.pack()
    monkeypatch.setitem(sys.modules, "tenseal", None)
    for attempt in (lambda: generate("bfv"), lambda: read_public(packed)):
        with refused(BackendUnavailable, "backend-unavailable") as raised:
            attempt()
        assert "tenseal" in str(raised.value)
