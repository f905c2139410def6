"""Session of secure aggregation: the parameters on which both sides agree beforehand, and the messages they exchange: a
header of fixed size, then records of one size.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

from sordino.errors import (
    ConfigError,
    HeadroomExceeded,
    LayoutMismatch,
    MalformedCiphertext,
    Range,
    RoundMismatch,
    SecAggAborted,
    check_range,
)
from sordino.secagg.masks import KEY_BYTES, SEAL_BYTES, SHARE_BYTES

MAGIC: Final = b"SRDA"
VERSION: Final = 1
SERVER: Final = (1 << 32) - 1  # as a sender; clients have smaller numbers
_HEAD = struct.Struct("<4sBBI16sQQBQI")  # all little-endian


class MessageKind(IntEnum):
    ADVERT = 1  # model, channel key, mask key
    ROSTER = 2  # of every client: number, advert
    SHARES = 3  # to whom, sealed shares
    INBOX = 4  # from whom, sealed shares
    MASKED = 5  # the words
    REQUEST = 6  # of whom, whether survivor
    ANSWER = 7  # of whom, whether survivor, share


_SEALED = struct.Struct(f"<I{2 * SHARE_BYTES + SEAL_BYTES}s")
_RECORD: Final = {
    MessageKind.ADVERT: struct.Struct(f"<32s{KEY_BYTES}s{KEY_BYTES}s"),
    MessageKind.ROSTER: struct.Struct(f"<I32s{KEY_BYTES}s{KEY_BYTES}s"),
    MessageKind.SHARES: _SEALED,
    MessageKind.INBOX: _SEALED,
    MessageKind.REQUEST: struct.Struct("<I?"),
    MessageKind.ANSWER: struct.Struct(f"<I?{SHARE_BYTES}s"),
}
_SINGLE: Final = {MessageKind.ADVERT, MessageKind.MASKED}
Record = tuple[Any, ...]


class KeyAdvertisement(NamedTuple):
    model: bytes
    channel: bytes
    mask: bytes


def point(who: int) -> int:
    """Point at which a client's share is taken: never 0, where the polynomial's value is the secret."""
    return who + 1


def two_thirds(count: int) -> int:
    """The usual threshold: more than two thirds of the clients."""
    return 2 * count // 3 + 1


@dataclass(frozen=True)
class Session:
    """Public parameters of secure aggregation in one round, the same for all participants but for `model`, the digest
    of the model that each received.
    """

    run: str
    round: int
    size: int  # words of an upload
    width: int  # bits of a word; sums are modulo 2^width
    top: int  # the largest word that a client uploads
    threshold: int  # clients whose help opens the sum
    model: bytes  # SHA-256

    def __post_init__(self) -> None:
        ranges = {
            "round": (0, (1 << 64) - 1),
            "size": (1, 1 << 40),
            "width": (1, 64),
            "top": (1, (1 << min(64, max(1, self.width))) - 1),
            "threshold": (2, SERVER),  # the sum of one is an upload
        }
        for name, (least, most) in ranges.items():
            value = getattr(self, name)
            allowed = Range(least=least, most=most, whole=True)
            check_range(name, value, allowed, "secagg-out-of-range")
        if len(self.model) != 32:
            raise ConfigError(
                f"the digest of the model has {len(self.model)} bytes",
                why="a SHA-256 digest has 32 bytes",
                fix="give the SHA-256 digest of the model",
                code="secagg-digest",
            )

    @property
    def word(self) -> int:
        """Number of bytes of one integer of a masked upload in a message."""
        return -(-self.width // 8)

    def check(self, count: int) -> None:
        """Refuses a round of `count` clients if their sum could wrap around, or if the answers of half of them could
        reveal a single upload.
        """
        if count * self.top >= 1 << self.width:
            raise HeadroomExceeded(
                f"{count} uploads are too many: at most {((1 << self.width) - 1) // self.top} words up to "
                f"{self.top} can be added in {self.width} bits",
                why="the sum would wrap around to a wrong value",
                fix="use more bits for a word, or fewer clients",
                code="secagg-headroom",
            )
        if not count < 2 * self.threshold:
            raise ConfigError(
                f"the threshold is {self.threshold} of {count} clients",
                why="with half of the clients or fewer, a server could tell two groups different things, and open an "
                "upload with the answers of both",
                fix=f"set more than half of the clients; {two_thirds(count)} is usual",
                code="secagg-low-threshold",
            )

    def check_model(self, who: int, advert: KeyAdvertisement) -> None:
        if advert.model != self.model:
            raise abort(
                f"client {who} has another model: {advert.model.hex()[:16]}, not {self.model.hex()[:16]}",
                "uploads for different models must not be added: a server could send one client another model to "
                "learn its upload",
                code="secagg-model",
            )

    def check_enough(self, count: int) -> None:
        if count < self.threshold:
            raise abort(
                f"only {count} clients are left, but the threshold is {self.threshold}",
                "a sum of fewer clients cannot and must not be opened",
                code="secagg-too-few",
            )

    def pack(self, kind: MessageKind, sender: int, records: list[Record]) -> bytes:
        record = self._record(kind)
        return self._head(kind, sender) + b"".join(record.pack(*fields) for fields in records)

    def unpack(self, data: bytes, kind: MessageKind) -> tuple[int, list[Record]]:
        """Sender and records of a message; refused unless it is of this round, of this kind and of the right length."""
        if len(data) < _HEAD.size:
            raise _malformed(f"{len(data)} bytes came, a header alone has {_HEAD.size}")
        magic, version, found, sender, run, round, *shape = _HEAD.unpack_from(data)
        if magic != MAGIC or version != VERSION:
            raise _malformed("it does not begin like a message of secure aggregation")
        if (run, round) != (self._run, self.round):
            raise RoundMismatch(
                f"a message of round {round} came, but round {self.round} of the run {self.run!r} is expected",
                why="an upload counts only in its own round",
                fix="ignore this message",
                code="secagg-round",
            )
        if tuple(shape) != self._shape:
            raise LayoutMismatch(
                f"a message for (size, width, top, threshold) = {tuple(shape)} came, but {self._shape} is expected",
                why="only uploads of the same form can be added",
                fix="give all clients the same experiment",
                code="secagg-layout",
            )
        if found != kind:
            raise SecAggAborted(
                f"a message of kind {found} came, but {kind.name.lower()} ({kind.value}) is expected",
                why="each step of the round is taken once, in order",
                fix="ignore this message; a client that sends it too late counts as dropped out",
                code="secagg-order",
            )
        record, length = self._record(kind), len(data) - _HEAD.size
        if length % record.size or (kind in _SINGLE and length != record.size):
            raise _malformed(f"{length} bytes follow the header, in records of {record.size}")
        return sender, list(record.iter_unpack(memoryview(data)[_HEAD.size :]))

    @property
    def _run(self) -> bytes:
        return hashlib.sha256(self.run.encode()).digest()[:16]

    @property
    def _shape(self) -> tuple[int, int, int, int]:
        return self.size, self.width, self.top, self.threshold

    def _head(self, kind: MessageKind, sender: int) -> bytes:
        return _HEAD.pack(MAGIC, VERSION, kind, sender, self._run, self.round, *self._shape)

    def _record(self, kind: MessageKind) -> struct.Struct:
        # the upload ends with a guard word
        return struct.Struct(f"<{(self.size + 1) * self.word}s") if kind is MessageKind.MASKED else _RECORD[kind]


def _malformed(why: str) -> MalformedCiphertext:
    return MalformedCiphertext(
        "a message is not one of secure aggregation", why=why, fix="ignore this message", code="secagg-malformed"
    )


def abort(what: str, why: str, *, fix: str = "", code: str) -> SecAggAborted:
    return SecAggAborted(
        what, why=why, fix=fix or "run the round again; nothing was opened and the model is unchanged", code=code
    )
