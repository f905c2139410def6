"""Masks: streams of a counter, keys as in RFC 5869, and words in as few bytes as hold them."""

from __future__ import annotations

import hmac
import os
import struct

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from sordino.secagg import masks
from tests.secagg.play import top_byte


# ---------------------------------------------------------------- masks
def stream(key: bytes, count: int, width: int = 32) -> masks.Words:
    drawn = masks.zeros(count, width)
    masks.blend(drawn, key)
    masks.cut(drawn, width)
    return drawn


@pytest.mark.parametrize("count", [1, 3, 4, 28_939, (1 << 14) - 1, 1 << 14, (1 << 14) + 1, 40_001])
def test_a_stream_is_the_block_cipher_of_a_counter(count: int) -> None:
    # AES of 0, 1, 2, ... in big-endian blocks, over the joints between the chunks too
    key = os.urandom(32)
    blocks = b"".join(struct.pack(">QQ", 0, block) for block in range(-(-count * 8 // 16)))
    expected = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(blocks)
    assert stream(key, count).tobytes() == expected[: 4 * count]
    assert stream(key, count, 64).tobytes() == expected[: 8 * count]
    gone = stream(key, count)
    masks.blend(gone, key, np.subtract)
    assert not gone.any()


def test_keys_are_derived_as_in_rfc_5869() -> None:
    secret, context = os.urandom(32), os.urandom(32)
    extracted = hmac.digest(context, secret, "sha256")
    expected = hmac.digest(extracted, b"mask" + struct.pack("<II", 3, 7) + b"\1", "sha256")
    assert masks.derive(secret, context, b"mask", 3, 7) == expected
    assert (
        len({masks.derive(secret, context, label, *who) for label in (b"mask", b"share") for who in ((3, 7), (7, 3))})
        == 4
    )


def folded(key: bytes) -> int:
    return int(np.bitwise_xor.reduce(np.frombuffer(key, "<u4")))


def test_seeds_that_agree_in_32_folded_bits_give_different_streams() -> None:
    # false alarm 2^-32 for each equal word
    one = os.urandom(32)
    other = bytes(byte ^ 0x5A for byte in one)  # an even number of equal changes cancels
    assert one != other
    assert folded(one) == folded(other)
    assert (stream(one, 1000) == stream(other, 1000)).sum() <= 2

    def weak(key: bytes) -> np.ndarray:  # the broken twin
        return np.random.RandomState(folded(key)).randint(0, 1 << 32, 1000, dtype=np.uint64)

    assert (weak(one) == weak(other)).all()


def test_the_largest_word_of_32_bits_occurs() -> None:
    # a fixed key, found by trying, whose stream has it early
    key = (10_865).to_bytes(32, "little")
    assert int(stream(key, 65_347)[65_346]) == (1 << 32) - 1


def every_value(values: np.ndarray) -> float:
    return float(stats.chisquare(np.bincount(values, minlength=256)).pvalue)


def test_a_stream_is_uniform_up_to_its_top_value() -> None:
    # p > 1e-4 in one of two streams: false alarm 1e-8; a value that is missing by chance: 256 exp(-390)
    drawn = [stream(os.urandom(32), 100_000, 8) for _ in range(2)]
    assert all(each.min() == 0 and each.max() == 255 for each in drawn)
    assert max(every_value(each) for each in drawn) > 1e-4
    assert top_byte(stream(bytes(32), 28_938)) > 1e-4  # a fixed stream: no false alarm
    without_top = np.random.default_rng(0).integers(0, 255, 100_000)  # the broken twin
    assert every_value(without_top) < 1e-30


@pytest.mark.parametrize("width", [1, 8, 9, 24, 31, 32, 33, 40, 63, 64])
def test_words_travel_in_as_few_bytes_as_hold_them(width: int) -> None:
    drawn = stream(os.urandom(32), 501, width)
    data = masks.written(drawn, width)
    assert len(data) == 501 * -(-width // 8)
    assert (masks.read(data, width) == drawn).all()
    assert int(drawn.max()) < 1 << width


# ---------------------------------------------------------------- keys of a pair, and what is sealed with them
def test_a_pair_shares_another_mask_in_every_round() -> None:
    """`context` is the digest of the round's list of members: a second list under the same keys meets other masks."""
    one, other = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    public, contexts = one.public_key().public_bytes_raw(), (os.urandom(32), os.urandom(32))
    first, second = (masks.pair_key(other, public, context, 3, 7) for context in contexts)
    assert first != second
    assert first == masks.pair_key(one, other.public_key().public_bytes_raw(), contexts[0], 7, 3)


def test_equal_messages_are_sealed_differently() -> None:
    # false alarm 2^-96: a nonce that came twice under one key would open AES-GCM
    key = os.urandom(32)
    sealed = [masks.seal(key, b"share") for _ in range(2)]
    assert sealed[0][:12] != sealed[1][:12]
    assert [masks.unseal(key, message, 1) for message in sealed] == [b"share"] * 2
