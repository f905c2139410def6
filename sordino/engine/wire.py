"""Messages between server and clients: raw buffers in a shape that the receiver already knows.

    "SRDN" | u16 version | u32 header length | header | tensors | SHA-256 of all before it

All numbers are little-endian, the header is canonical JSON, tensors are raw in C order. Names, dtypes, shapes and
classes are never taken from a message: the receiver's own template gives them, and so the only possible length, which
is compared before a byte is decoded. The SHA-256 at the end detects damage; anyone can recompute it, so it does not
authenticate. Who may send is decided by the transport (TLS, registered keys). Values are not judged here: NaN and
infinity pass, and the clip gives them zero weight, because whether a message is accepted must not depend on a client's
data.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

import numpy as np
import torch

from sordino import tree
from sordino.device import here
from sordino.errors import WireError
from sordino.tree import Tree

if TYPE_CHECKING:
    from torch import Tensor


T = TypeVar("T")

MAGIC: Final = b"SRDN"
VERSION: Final = 1
MAX_ENTRIES: Final = 64 * 1024  # bytes of ledger entries in one message
MAX_HEADER: Final = 128 * 1024

_PREFIX = struct.Struct("<4sHI")
_SEAL = hashlib.sha256().digest_size
_DTYPES = {
    "torch.float32": "<f4",
    "torch.float64": "<f8",
    "torch.int64": "<i8",
    "torch.int32": "<i4",
    "torch.uint8": "|u1",
}


def _whole(value: object, low: int, high: int) -> bool:
    return type(value) is int and low <= value < high  # `type is`: True is not a round


def _matches(pattern: str) -> Callable[[Any], bool]:
    return lambda value: type(value) is str and re.fullmatch(pattern, value) is not None


_LEGAL: dict[str, Callable[[Any], bool]] = {
    "run": _matches(r"[A-Za-z0-9._-]{1,64}"),
    "config": _matches(r"[0-9a-f]{8,128}"),
    "round": lambda value: _whole(value, 0, 2**31),
    "sender": lambda value: _whole(value, -1, 2**63),
    "kind": lambda value: value in ("down", "up"),
    "entries": _matches("[^\ud800-\udfff]*"),  # lone surrogates have no UTF-8
}


@dataclass(frozen=True)
class Header:
    """Header of a message, validated by its constructor."""

    run: str  # at most 64 of A-Z a-z 0-9 . _ -
    config: str  # hex digest of the experiment
    round: int
    sender: int  # client id, -1 for the server
    kind: Literal["down", "up"]
    entries: str = ""  # public ledger entries as JSON text; carried, not read here

    def __post_init__(self) -> None:
        for name, legal in _LEGAL.items():
            if not legal(getattr(self, name)):
                raise _malformed(f"{name} is {getattr(self, name)!r:.80}")
        if len(self.entries.encode()) > MAX_ENTRIES:
            raise WireError(
                f"the ledger entries take {len(self.entries.encode())} bytes, which is too long for one message",
                why=f"a message carries at most {MAX_ENTRIES} bytes of them",
                fix="send the entries in several rounds",
                code="entries-too-long",
            )


class Field(NamedTuple):
    """Name, type and shape of one tensor."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class Schema(NamedTuple):
    """The tensors of a message, in their order."""

    fields: tuple[Field, ...]


def schema(template: Tree) -> Schema:
    """Names, dtypes and shapes of the tensors in messages shaped like `template`, in their order."""
    fields = tuple(Field(name, leaf.dtype, tuple(leaf.shape)) for name, leaf in tree.named(template))
    for field in fields:
        if str(field.dtype) not in _DTYPES:
            raise WireError(
                f"{field.name} has dtype {field.dtype}, which a message cannot carry",
                fix=f"convert it to one of {', '.join(_DTYPES)}",
                code="unsupported-dtype",
            )
    if len({field.name for field in fields}) < len(fields):
        raise WireError(
            "two tensors have the same name",
            why='the name of a tensor joins the keys on the way to it with "/", so two tensors can get the same name',
            fix='do not use "/" in the keys of a dict',
            code="ambiguous-names",
        )
    return Schema(fields)


def payload_bytes(fields: Schema) -> int:
    return sum(_bytes(field) for field in fields.fields)


def size(header: Header, fields: Schema) -> int:
    """The length of the encoded message, without building it."""
    return _PREFIX.size + len(_header_bytes(header, fields)) + payload_bytes(fields) + _SEAL


def sizes(header: Header, fields: Schema) -> Callable[[int], int]:
    """Length of a message as a function of its sender, for messages whose header is otherwise `header`."""
    rest = size(header, fields) - len(str(header.sender))
    return lambda sender: rest + len(str(sender))


def digest(data: bytes | memoryview) -> bytes:
    return hashlib.sha256(data).digest()


def encode(header: Header, payload: Tree) -> bytes:
    fields = schema(payload)
    text = _header_bytes(header, fields)
    parts = [_PREFIX.pack(MAGIC, VERSION, len(text)), text, *map(_buffer, tree.leaves(payload))]
    seal = hashlib.sha256()
    for part in parts:
        seal.update(part)
    return b"".join([*parts, seal.digest()])


def decode(data: bytes | memoryview, expected: Header, template: T, signed: bool = False) -> tuple[Header, T]:
    """Header of a message, and a tree like `template` with its own memory; refused where the header differs from
    `expected` in anything but `entries`. `signed`: the bytes already match a digest that their sender signed, so the
    SHA-256 at the end is not computed again.
    """
    view, fields = memoryview(data).cast("B"), schema(template)
    start = _check_envelope(view, fields)
    if not signed:
        _check_seal(view)
    header = _parse(bytes(view[_PREFIX.size : start]), fields)
    _check_addressee(header, expected)
    values = []
    for field in fields.fields:
        found = np.ndarray(field.shape, _DTYPES[str(field.dtype)], view, start)
        values.append(here(torch.from_numpy(found.astype(found.dtype.newbyteorder("=")))))  # astype copies
        start += _bytes(field)
    return header, tree.like(template, values)


def _check_envelope(view: memoryview, fields: Schema) -> int:
    """Offset of the tensors, after every length has been compared with the only possible one."""
    rest = payload_bytes(fields) + _SEAL
    if len(view) < _PREFIX.size + rest:
        raise _damage("message-cut", f"{len(view)} bytes came, at least {_PREFIX.size + rest} are needed")
    magic, version, length = _PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise WireError("these bytes are not a sordino message", fix="check who sent them", code="not-a-message")
    if version != VERSION:
        raise WireError(
            f"the message has format {version}, but this version of sordino reads format {VERSION}",
            fix="install the same version of sordino on both sides",
            code="foreign-version",
        )
    if length > MAX_HEADER:
        raise _damage("header-too-long", f"it claims a header of {length} bytes, {MAX_HEADER} are allowed")
    if len(view) != _PREFIX.size + length + rest:
        raise _damage("wrong-length", f"{len(view)} bytes came, {_PREFIX.size + length + rest} were to be expected")
    return _PREFIX.size + int(length)


def _check_seal(view: memoryview) -> None:
    if digest(view[:-_SEAL]) != view[-_SEAL:]:
        raise _damage("message-damaged", "its SHA-256 does not match")


def _check_schema(claimed: object, fields: Schema) -> None:
    if claimed != _schema_digest(fields):
        raise WireError(
            "the message carries other tensors than expected",
            why="their names, dtypes, shapes or order differ",
            fix="run the same experiment and version of sordino on both sides",
            code="foreign-schema",
        )


def _check_addressee(header: Header, expected: Header) -> None:
    for name in ("run", "config", "round", "sender", "kind"):
        found, wanted = getattr(header, name), getattr(expected, name)
        if found != wanted:
            raise WireError(
                f"a message with {name} {found} came where {name} {wanted} was expected",
                why="the sender runs another experiment: at least one setting differs, perhaps only the seed"
                if name == "config"
                else "",
                fix="give both sides the same experiment file"
                if name == "config"
                else "ignore this message: it belongs to another run, round or sender",
                code=f"foreign-{name}",
            )


def _parse(raw: bytes, fields: Schema) -> Header:
    try:
        found = json.loads(raw.decode())
    except (ValueError, RecursionError) as error:  # bad UTF-8, bad JSON, 5,000-digit integers; deep nesting
        raise _malformed("it is not JSON") from error
    if type(found) is not dict or found.keys() != {*_LEGAL, "schema"}:
        raise _malformed("it does not have exactly the keys of a header")
    _check_schema(found.pop("schema"), fields)
    header = Header(**found)
    if _header_bytes(header, fields) != raw:  # one text per header: no duplicate keys, spaces or other spellings
        raise _malformed("it is JSON, but not written in the one form that is allowed")
    return header


def _header_bytes(header: Header, fields: Schema) -> bytes:
    content = {**asdict(header), "schema": _schema_digest(fields)}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    if len(text) > MAX_HEADER:
        raise WireError(
            f"the header takes {len(text)} bytes, but at most {MAX_HEADER} are allowed",
            why="the ledger entries in it grow when they are quoted as JSON",
            fix="send the entries in several rounds",
            code="entries-too-long",
        )
    return text


def _schema_digest(fields: Schema) -> str:
    rows = [[field.name, _DTYPES[str(field.dtype)], field.shape] for field in fields.fields]
    return digest(json.dumps(rows).encode()).hex()


def _buffer(leaf: Tensor) -> Any:  # a flat array: bytes.join and hashlib read its memory without a copy
    return np.ascontiguousarray(leaf.detach().cpu().numpy(), dtype=_DTYPES[str(leaf.dtype)]).reshape(-1)


def _bytes(field: Field) -> int:
    return torch.Size(field.shape).numel() * field.dtype.itemsize


def _malformed(why: str) -> WireError:
    return WireError(
        "the header of a message is malformed", why=why, fix="ignore this message", code="header-malformed"
    )


def _damage(code: str, why: str) -> WireError:
    return WireError("a message is damaged", why=why, fix="ask the sender to send it again", code=code)
