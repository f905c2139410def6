"""The wire refuses everything but the one expected message, cheaply (laws, hostile bytes, broken twins)."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino import tree
from sordino.engine import wire
from sordino.engine.wire import Header, decode, encode, payload_bytes, schema, size
from sordino.errors import WireError
from tests.engine.wired import header, raw, update


# --- what is accepted comes back bit for bit ---
def test_a_good_message_survives_bit_for_bit() -> None:
    nan_with_payload = struct.unpack("<f", struct.pack("<I", 0x7FC12345))[0]
    bits = torch.tensor([0x7FC12345, 0xFFA00001 - 2**32, 0x80000000 - 2**32, 1], dtype=torch.int32)
    payload = {
        "f4": bits.view(torch.float32),  # a NaN with a payload, a signalling NaN, -0.0, the least subnormal
        "f8": torch.tensor([-0.0, float("inf"), 5e-324], dtype=torch.float64),
        "i8": torch.tensor(-(2**63)),
        "i4": torch.arange(6, dtype=torch.int32).reshape(2, 3).T,  # not contiguous
        "u1": torch.arange(3, dtype=torch.uint8),
        "empty": torch.zeros(0, 4),
        "parameter": torch.nn.Parameter(torch.full((1, 2, 1), nan_with_payload)),
    }
    data = encode(header(), payload)
    found, received = decode(data, header(entries="other"), payload)
    assert found == header()
    detached = {name: leaf.detach() for name, leaf in payload.items()}
    assert raw(received) == raw(detached)
    for leaf in tree.leaves(received):
        assert leaf.is_contiguous()
        leaf.zero_()  # writable, its own memory
    assert raw(decode(memoryview(data), header(), payload)[1]) == raw(detached)
    assert data == encode(found, detached), "one state has one encoding"


DTYPES = [getattr(torch, name.removeprefix("torch.")) for name in wire._DTYPES]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3)), max_size=5),
    st.randoms(use_true_random=False),
)
def test_any_bits_of_any_schema_survive(leaves: list[tuple[torch.dtype, list[int]]], source: random.Random) -> None:
    payload = tuple(
        torch.frombuffer(
            bytearray(source.randbytes(torch.Size(shape).numel() * dtype.itemsize) or bytes(8)), dtype=dtype
        )[: torch.Size(shape).numel()].reshape(shape)
        for dtype, shape in leaves
    )
    data = encode(header(), payload)
    assert len(data) == size(header(), schema(payload))
    assert raw(decode(data, header(), tree.zeros_like(payload))[1]) == raw(payload)


HEADERS = st.builds(
    lambda run, config, number, sender, kind, entries: Header(run, config, number, sender, kind, entries),
    st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True),
    st.from_regex(r"[0-9a-f]{64}", fullmatch=True),
    st.integers(0, 2**31 - 1),
    st.integers(-1, 2**63 - 1),
    st.sampled_from(["down", "up"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=300),
)


@settings(max_examples=40, deadline=None)
@given(HEADERS)
def test_any_legal_header_survives(sent: Header) -> None:
    survives(sent)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(HEADERS)
def test_any_of_many_legal_headers_survives(sent: Header) -> None:
    survives(sent)


def survives(sent: Header) -> None:
    data = encode(sent, update())
    assert len(data) == size(sent, schema(update()))
    assert decode(data, sent, update())[0] == sent


def test_the_overhead_is_a_few_hundred_bytes() -> None:
    bare = header(entries="")
    assert size(bare, schema(update())) - payload_bytes(schema(update())) < 400


def test_the_sender_refuses_what_no_receiver_would_take() -> None:
    cases: list[tuple[str, Callable[[], object]]] = [
        ("unsupported-dtype", lambda: schema({"x": torch.ones(2, dtype=torch.bool)})),
        ("ambiguous-names", lambda: schema({"a/b": torch.ones(2), "a": {"b": torch.ones(2)}})),
        ("entries-too-long", lambda: header(entries="é" * (wire.MAX_ENTRIES // 2 + 1))),
        ("entries-too-long", lambda: encode(header(entries="\x00" * wire.MAX_ENTRIES), update())),
        ("header-malformed", lambda: header(run="")),
        ("header-malformed", lambda: header(round=True)),
        ("header-malformed", lambda: header(entries="\ud800")),
    ]
    for code, attempt in cases:
        with pytest.raises(WireError) as refusal:
            attempt()
        assert refusal.value.code == code
    assert decode(encode(header(entries="e" * wire.MAX_ENTRIES), update()), header(), update())


def test_the_digest_is_sha256() -> None:
    # FIPS 180-2, appendix B.1
    assert wire.digest(b"abc").hex() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
