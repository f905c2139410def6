"""Interfaces of secure sums, for stages of the uplink and for rounds; the optional subpackage `secagg`
implements them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

from sordino.errors import SecureError
from sordino.privacy.uplink.fixed_point import Ints, Layout

if TYPE_CHECKING:
    from sordino.privacy.uplink.secure_stages import Aggregated, Encrypted

Uploads = Iterable[tuple[int, Ints]]
S = TypeVar("S", contravariant=True)  # the stage of a secure sum


class OpenedSum(NamedTuple):
    """Result of a secure sum: the total over the clients `who`; `who` is empty where no sum was decrypted or
    unmasked.
    """

    total: Ints
    who: list[int]
    bytes_up: int
    payload: int  # bytes of one upload
    seconds: dict[str, float]  # of the processor, by part
    saturated: int | None  # values at the end of the range; None where only the clients know
    aborted: str = ""  # why nothing was opened


class SumAtSites(ABC):
    """Secure sum of a round whose clients run their half of the protocol at their sites."""

    @abstractmethod
    def open(self, noise: Ints | None) -> OpenedSum:
        """Ends the protocol and returns the sum in clear; `noise`: integers that the server adds before the sum is
        decrypted or unmasked.
        """


Step = Literal["round", "roster", "inbox", "request"]
Messages = Callable[[Sequence[int]], Sequence[bytes]]  # one for all these clients, or one for each


class TakeStep(Protocol):
    """Function that runs one step of secure aggregation by masks, with all clients that took the steps before, here or
    at sites. Each client's message is passed to `receive`.
    """

    def __call__(self, step: Step, messages: Messages, receive: Callable[[int, bytes], None]) -> None: ...


class Channel(Protocol):
    """Secure sum (masked or encrypted) with all parties of the protocol in one process."""

    def sum(self, t: int, uploads: Uploads, cohort: Sequence[int], size: int, noise: Ints | None) -> OpenedSum:
        """Runs the protocol of round t, and returns the sum in clear. `cohort`: clients that began the round; `size`:
        integers of an upload; `noise`: integers that the server adds.
        """
        ...


class MaskedChannel(Channel, Protocol):
    """Secure sum by masks that cancel, whose clients may be at sites."""

    def open(
        self, t: int, among: int, size: int, model: bytes, clients: Callable[[Any], TakeStep], noise: Ints | None
    ) -> OpenedSum:
        """Runs the protocol of round t, which `among` clients began, and returns the unmasked sum. `size`: integers of
        an upload; `model`: digest of the broadcast; `clients`: makes, for a session of the protocol, the function that
        runs its steps; `noise`: integers that the server adds.
        """
        ...


class EncryptedPeers(Protocol):
    """Clients and key holder of an encrypted round, in this process or at sites."""

    watch: Stopwatch

    def uploads(self) -> Iterable[tuple[int, bytes | None]]: ...  # None: added in clear, which only a probe does
    def absent(self, client: int, error: SecureError) -> None: ...  # its message does not count
    def decrypt(self, total: bytes, count: int) -> Ints | str: ...  # the sum of so many uploads, or why not


class EncryptedChannel(Channel, Protocol):
    """Secure sum of encrypted uploads, whose clients and key holder may be at sites."""

    def add(self, t: int, public: Any, peers: EncryptedPeers, began: int, size: int, noise: Ints | None) -> OpenedSum:
        """Runs the protocol of round t, which `began` clients began, and returns the decrypted sum. `public`: public
        key of the key holder, of the stage's scheme; `size`: integers of an upload; `noise`: integers that the server
        adds.
        """
        ...


class CiphertextHeader(Protocol):
    """Header of a message of ciphertexts."""

    @property
    def count(self) -> int: ...  # of uploads in it


class Ciphertext(Protocol):
    """Ciphertexts of an upload, or of a sum."""

    @property
    def header(self) -> CiphertextHeader: ...
    def pack(self) -> bytes: ...


class PublicKey(Protocol):
    """Public half of a key: clients encrypt under it, and the server checks ciphertexts by it."""

    def encrypt(self, values: Ints, round: int, layout: Layout) -> Ciphertext: ...  # signed integers of a Layout
    def check(self, layout: Layout, count: int) -> None: ...  # so many messages can be added
    def header(self, round: int, size: int, layout: Layout) -> CiphertextHeader: ...  # that a message must have
    def pack(self) -> bytes: ...


class SecretKey(Protocol):
    """Secret half of an encryption key, which decrypts sums."""

    @property
    def public(self) -> PublicKey: ...
    def open(self, total: Any) -> Ints: ...  # a ciphertext of the key's own scheme
    def pack(self) -> bytes: ...


class SecureSums(Protocol[S]):
    """Interface of a module that implements secure sums of one kind, masked or encrypted; optional subpackages have
    them."""

    def needs(self, stage: S, /) -> None: ...  # refuses where a package is missing
    def channel(self, stage: S, layout: Layout, run: str, /) -> Channel: ...


class MaskedSums(SecureSums["Aggregated"], Protocol):
    """Interface of secure sums by masks."""

    def channel(self, stage: Aggregated, layout: Layout, run: str, /) -> MaskedChannel: ...


class EncryptedSums(SecureSums["Encrypted"], Protocol):
    """Interface of secure sums by encryption."""

    @property
    def GENERATE(self) -> Mapping[str, Callable[[Encrypted], SecretKey]]: ...  # by scheme
    # so many uploads can be added, and noise that may be so many steps, of the server or in each upload (`own`)
    def check(self, stage: Encrypted, layout: Layout, count: int, noise: float = 0.0, own: bool = False, /) -> None: ...
    def channel(self, stage: Encrypted, layout: Layout, run: str, /) -> EncryptedChannel: ...
    def public_key(self, stage: Encrypted, data: bytes, /) -> PublicKey: ...
    def secret_key(self, stage: Encrypted, data: bytes, /) -> SecretKey: ...
    def unpack(self, data: bytes, expected: Any, /) -> Ciphertext: ...  # with the header of a key of the stage


class Stopwatch:
    """CPU seconds of this process, by part of the work."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        begin = time.process_time()
        yield
        self.seconds[part] = self.seconds.get(part, 0.0) + time.process_time() - begin
