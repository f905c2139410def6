"""The protocols of secure sums, as those use them who play a round. The implementations are a branch's (`secagg`)."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, Protocol

from sordino.errors import SecureError
from sordino.privacy.uplink.layout import Ints, Layout
from sordino.privacy.uplink.secure_stages import SecureStage

Uploads = Iterable[tuple[int, Ints]]


class Opened(NamedTuple):
    """Opened sum; `who` is empty where it was not opened."""

    total: Ints
    who: list[int]
    bytes_up: int
    payload: int  # bytes of one upload
    seconds: dict[str, float]  # of the processor, by part
    saturated: int | None  # values at the end of the range; None where only the clients know
    aborted: str = ""  # why nothing was opened


class SumAtSites(ABC):
    """The sum of a round whose clients live elsewhere: their halves of the protocol are where they are."""

    @abstractmethod
    def open(self, noise: Ints | None) -> Opened:
        """Plays the protocol to its end; `noise` is what the server adds before the sum is opened."""


Step = Literal["round", "roster", "inbox", "request"]
Messages = Callable[[Sequence[int]], Sequence[bytes]]  # one for all these clients, or one for each


class TakeStep(Protocol):
    """Takes a step of a masked round with the clients that have taken every step before, in this process or at sites,
    and hands on the message of each.
    """

    def __call__(self, step: Step, messages: Messages, receive: Callable[[int, bytes], None]) -> None: ...


class Channel(Protocol):
    """A secure sum with all halves of the protocol in one process."""

    def sum(self, t: int, uploads: Uploads, cohort: Sequence[int], size: int, noise: Ints | None) -> Opened:
        """The sum of round t; `cohort` are those who began it, `noise` what the server adds."""
        ...


class MaskedChannel(Channel, Protocol):
    """A masked sum, whose clients may be at sites."""

    def open(self, t: int, among: int, size: int, model: bytes, clients: Callable[[Any], TakeStep]) -> Opened:
        """The sum of round t, which so many clients begin; `model` is the digest of the broadcast."""
        ...


class EncryptedPeers(Protocol):
    """Clients and key holder of an encrypted round, in this process or at sites."""

    watch: Stopwatch

    def uploads(self) -> Iterable[tuple[int, bytes | None]]: ...  # None: added in clear, which only a probe does
    def absent(self, client: int, error: SecureError) -> None: ...  # its message does not count
    def decrypt(self, total: bytes, count: int) -> Ints | str: ...  # the sum of so many uploads, or why not


class EncryptedChannel(Channel, Protocol):
    """An encrypted sum, whose clients and key holder may be at sites."""

    def add(self, t: int, public: Any, peers: EncryptedPeers, began: int, size: int, noise: Ints | None) -> Opened:
        """The sum of round t, which so many clients began; `public` is the key holder's, of the stage's scheme."""
        ...


def channel(stage: SecureStage, layout: Layout, run: str) -> Channel:
    found: Channel = stage.sums.channel(stage, layout, run)
    return found


class CiphertextHeader(Protocol):
    """Head of a message of ciphertexts."""

    @property
    def count(self) -> int: ...  # of uploads in it


class Ciphertext(Protocol):
    """Ciphertexts of an upload, or of a sum."""

    @property
    def header(self) -> CiphertextHeader: ...
    def pack(self) -> bytes: ...


class PublicKey(Protocol):
    """Public half of a key."""

    def encrypt(self, values: Ints, round: int, layout: Layout) -> Ciphertext: ...  # signed integers of a Layout
    def check(self, layout: Layout, count: int) -> None: ...  # so many messages can be added
    def header(self, round: int, size: int, layout: Layout) -> CiphertextHeader: ...  # that a message must have
    def pack(self) -> bytes: ...


class SecretKey(Protocol):
    """Secret half of a key, which opens sums."""

    @property
    def public(self) -> PublicKey: ...
    def open(self, total: Ciphertext) -> Ints: ...
    def pack(self) -> bytes: ...


class Stopwatch:
    """Seconds of the processor, by part of the work."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        begin = time.process_time()
        yield
        self.seconds[part] = self.seconds.get(part, 0.0) + time.process_time() - begin
