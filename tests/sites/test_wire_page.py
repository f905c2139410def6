"""docs/wire.md is the wire: its numbers and names are those of the program, and a parser that was written from the page
alone reads what the program writes.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sordino import tree
from sordino.engine import wire
from sordino.engine.commands import Answer, Command, Round
from sordino.secagg import masks, sealed
from sordino.sites import connecting, grpc_line
from sordino.sites import grpc_server as rpc
from sordino.sites import join as joining
from sordino.sites import serve as serving
from sordino.transport import message, request_handler
from sordino.transport.message import Heading, Signer
from sordino.types import Terms
from tests.helpers import forged_messages

MODULES = connecting, grpc_line, joining, message, rpc, serving, request_handler, wire  # in which limits stand
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "wire.md").read_text(encoding="utf-8")
KEY = Ed25519PrivateKey.generate()


# the parser, from the page alone --------------------------------------------------------------------------------------


def signed_message_of(data: bytes, key: Ed25519PublicKey) -> tuple[dict[str, Any], list[bytes]]:
    (length,) = struct.unpack_from("<I", data)
    head, signature, rest = data[4 : 4 + length], data[4 + length : 68 + length], data[68 + length :]
    key.verify(signature, b"sordino message 1\n" + head)
    told, bodies, total = json.loads(head), [], hashlib.sha256()
    assert sum(told["sizes"]) == len(rest)
    for size in told["sizes"]:
        bodies.append(rest[:size])
        total.update(struct.pack("<Q", size) + rest[:size])
        rest = rest[size:]
    assert total.hexdigest() == told["digest"]
    return told, bodies


def message_of(data: bytes, tensors: list[tuple[str, str, list[int]]]) -> tuple[dict[str, Any], dict[str, Any]]:
    assert hashlib.sha256(data[:-32]).digest() == data[-32:]
    magic, version, length = struct.unpack_from("<4sHI", data)
    assert (magic, version) == (b"SRDN", 1)
    header = json.loads(data[10 : 10 + length])
    assert header["schema"] == hashlib.sha256(json.dumps([list(one) for one in tensors]).encode()).hexdigest()
    at, found = 10 + length, {}
    for name, dtype, shape in tensors:
        found[name] = np.frombuffer(data, dtype, int(np.prod(shape)), at).reshape(shape)
        at += found[name].nbytes
    assert at + 32 == len(data)
    return header, found


def test_a_parser_from_the_page_reads_a_message_and_what_is_in_it() -> None:
    sent = {"w": torch.arange(6, dtype=torch.float32).reshape(2, 3), "x": torch.tensor([1.5, 2.5], dtype=torch.float64)}
    body = wire.encode(wire.Header("run-1", "ab" * 32, 4, -1, "down"), sent)
    command = Round(4, {7: Terms(largest=9, multiplier=1.25)})
    own = Signer("server", "run-1", "ab" * 32, "cd" * 32, KEY)
    written = own.write("hospital-a", 2, asdict(command), [body, b"more"], ledger="12:" + "0" * 64)
    head, bodies = signed_message_of(written, KEY.public_key())
    assert (head["run"], head["stage"], head["sender"], head["to"]) == ("run-1", 2, "server", "hospital-a")
    assert head["said"]["do"] == "round"
    assert head["said"]["terms"]["7"]["multiplier"] == 1.25
    assert bodies == [body, b"more"]
    header, tensors = message_of(bodies[0], [("w", "<f4", [2, 3]), ("x", "<f8", [2])])
    assert (header["round"], header["sender"], header["kind"]) == (4, -1, "down")
    assert all(np.array_equal(tensors[name], sent[name].numpy()) for name in sent)
    for other in (
        written[:80] + bytes([written[80] ^ 1]) + written[81:],
        written.replace(b"hospital-a", b"hospital-b"),
    ):
        with pytest.raises((InvalidSignature, ValueError)):
            signed_message_of(other, KEY.public_key())


def test_the_proof_of_a_fetch_is_what_the_page_says() -> None:
    challenge = bytes(range(32))
    assert grpc_line.claim("run-1", "hospital-a", challenge) == b"\n".join(
        [b"sordino fetch 1", b"run-1", b"hospital-a", challenge.hex().encode()]
    )
    assert '"sordino fetch 1" || 0x0a || run || 0x0a || name || 0x0a || challenge in hexadecimal' in PAGE
    assert grpc_line.HEAD.format == "<qQ"
    assert f"/{grpc_line.SERVICE}/{grpc_line.FETCH}" in PAGE
    assert f"/{grpc_line.SERVICE}/{grpc_line.ANSWER}" in PAGE
    assert f'"{grpc_line.LATE.decode()}"' in PAGE
    assert f"`{grpc_line.NAME}`" in PAGE


def test_the_tensors_of_a_method_have_the_names_of_the_page(tmp_path: Path) -> None:
    with forged_messages.serving("gaussian_gdp", tmp_path) as server:
        phase = server.phase
        assert phase.experiment.model["name"] == "logistic"
        down = phase.algorithm.broadcast(phase.state("server"))
        there, back = (
            [name for name, _ in tree.named(each)] for each in (down, phase.algorithm.zero(phase.task, down))
        )
    (told,) = re.findall(r"of `gaussian_gdp` with .*? a broadcast has (.*?), an upload (.*?)\. In", PAGE)
    assert [re.findall(r"`([\w/.]+)`", names) for names in told] == [there, back]


# names and numbers ----------------------------------------------------------------------------------------------------

LIMITS = re.findall(r"\| (\d+) \| `([\w.]+):(\w+)` \|", PAGE)


@pytest.mark.parametrize(("value", "module", "name"), LIMITS, ids=[row[2] for row in LIMITS])
def test_every_limit_is_that_of_the_program(value: str, module: str, name: str) -> None:
    assert sys.modules[module] in MODULES
    assert getattr(sys.modules[module], name) == int(value)


def test_no_limit_is_forgotten() -> None:
    assert len(LIMITS) == len(re.findall(r"^\| .* \| `sordino\.", PAGE, re.MULTILINE)) >= 15


def rows(before: str) -> dict[str, set[str]]:
    """The names in the first column of a table, and those in the second."""
    table = PAGE.partition(before)[2].partition("\n\n")[0]
    found = re.findall(r"^\|([^|]*)\|([^|]*)\|", table, re.MULTILINE)
    return {name: set(re.findall(r"`(\w+)`", keys)) for first, keys in found for name in re.findall(r"`(\w+)`", first)}


@pytest.mark.parametrize(
    ("union", "before"),
    [(Command, "The server asks:\n\n"), (Answer, "where nobody may read one upload, else 0.\n\n")],
)
def test_commands_and_answers_have_the_keys_of_the_page(union: Any, before: str) -> None:
    told = rows(before)
    told.pop("do")
    if union is Command:
        told |= {"keep": {"step"}, "restore": {"step", "place"}}
        assert "`keep` (`step`), `restore` (`step`, `place`) are for processes of one run" in PAGE
    program = {
        next(one.default for one in fields(kind) if one.name == "do"): {
            one.name for one in fields(kind) if one.name != "do"
        }
        for kind in get_args(union)
    }
    assert told == program


def test_the_keys_of_heads_terms_and_headers_are_there() -> None:
    head = rows("The head is a JSON object of `length` bytes:\n\n")
    assert head.keys() - {"key"} == {one.name for one in fields(Heading)}
    for name in (*(one.name for one in fields(Terms)), *(one.name for one in fields(wire.Header)), "schema"):
        assert f"`{name}`" in PAGE, name
    assert f'"{masks.MAGIC.decode()}"' in PAGE
    assert f'"{sealed.MAGIC.decode()}"' in PAGE
    for dtype in wire._DTYPES.values():
        assert f"`{dtype}`" in PAGE


def test_the_codes_are_raised_where_messages_and_tensors_are_read() -> None:
    section = PAGE.partition("Codes of a message")[2]
    codes = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", section))
    places = ("transport/message.py", "transport/request_handler.py", "engine/wire.py", "engine/commands.py")
    source = "".join((ROOT / "sordino" / place).read_text() for place in places)
    for code in codes:
        what = code.removeprefix("other-").removeprefix("foreign-")
        assert f'"{code}"' in source or f'"{what}"' in source, code
    assert len(codes) == 22
