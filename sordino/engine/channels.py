"""How the uploads of a secure sum become their sum. In simulation all halves of the protocol are played in one process,
through the bytes that would travel.

The server's half has public keys only, and the holder's half is handed one sum a round. `probe` encrypts one client a
round and adds the integers of the others in clear: the same sum for a fraction of the time, to be told apart from
`full` wherever costs are printed.
"""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sordino.errors import EmptyRound, KeyMismatch, SecAggAborted, ServerHoldsKey, UnsoundGuarantee
from sordino.privacy.uplink.secure_stages import Aggregated, Encrypted, SecureStage
from sordino.secagg.layout import Ints, Layout
from sordino.secagg.sealed import Public, Sealed, Secret, unpack

if TYPE_CHECKING:
    from sordino.secagg.session import Session

Uploads = Iterable[tuple[int, Ints]]


class Opened(NamedTuple):
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


class Channel(Protocol):
    def sum(self, t: int, uploads: Uploads, cohort: Sequence[int], size: int, noise: Ints | None) -> Opened:
        """The sum of round t; `cohort` are those who began it, `noise` what the server adds."""
        ...


class Ciphertexts:
    """The server adds what it cannot read; the key holder opens the sum."""

    def __init__(self, stage: Encrypted, layout: Layout) -> None:
        self._stage, self._layout = stage, layout

    @cached_property
    def _holder(self) -> Secret:
        return GENERATE[self._stage.scheme](self._stage)

    def sum(self, t: int, uploads: Uploads, cohort: Sequence[int], size: int, noise: Ints | None) -> Opened:
        seconds, watch = stopwatch()
        own = [] if noise is None else pieces(noise, self._layout)
        with watch("keys"):
            holder = self._holder
        server, shared = Adder(holder.public), self._stage.keys == "shared"
        encrypt = holder.encrypt if shared else holder.public.encrypt  # who has the whole key may be faster
        server.check(self._layout, len(cohort) + len(own))
        who, clear, sizes, beyond = list[int](), np.zeros(size, np.int64), [0], 0
        for k, values in uploads:
            beyond += _at_the_end(values, self._layout)
            if who and self._stage.mode == "probe":
                clear += values
            else:
                with watch("encrypt"):
                    message = encrypt(values, t, self._layout).pack()
                sizes.append(len(message))
                with watch("add"):
                    server.take(message, holder.public.header(t, size, self._layout))
            who.append(k)
        for piece in own:
            with watch("encrypt"):
                message = holder.public.encrypt(piece, t, self._layout).pack()
            with watch("add"):
                server.take(message, holder.public.header(t, size, self._layout))
        up = sum(sizes) if self._stage.mode == "full" else sizes[-1] * len(who)
        if why := too_few(self._stage, len(who), len(cohort)):
            return Opened(np.zeros(size, np.int64), [], up, sizes[-1], seconds, beyond, why)
        with watch("open"):
            total = holder.open(server.total()) + clear if who or own else clear
        return Opened(total, who, up, sizes[-1], seconds, beyond)


def too_few(stage: Encrypted, came: int, began: int) -> str:
    """Why so few uploads are not opened; nothing where they are enough."""
    least = stage.least(began)
    return "" if came >= least else f"{came} uploads came, the key holder opens nothing of fewer than {least}"


class Adder:
    """All that the server has: a public key, and a running sum that it cannot read."""

    def __init__(self, public: Public) -> None:
        if isinstance(public, Secret):
            raise ServerHoldsKey(
                "the server was given a secret key",
                why="the server adds the ciphertexts, so it must not be able to open any of them",
                fix="give the server only the public key",
                code="server-holds-key",
            )
        self._public, self._sum = public, list[Sealed]()

    def check(self, layout: Layout, count: int) -> None:
        """Before anything is encrypted."""
        self._public.check(layout, count)

    def take(self, message: bytes, expected: Any) -> None:
        self._sum = [self._public.add([*self._sum, unpack(message, expected)])]

    def add(self, values: Ints, t: int, layout: Layout) -> None:
        """What the server itself adds."""
        self.take(self._public.encrypt(values, t, layout).pack(), self._public.header(t, len(values), layout))

    def total(self) -> Sealed:
        if not self._sum:
            raise EmptyRound(
                "there is no upload to open",
                why="no client took part in this round",
                fix="use a larger cohort",
                code="empty-round",
            )
        return self._sum[0]


@dataclass(frozen=True)
class MaskedWords:
    """How the integers of one round become words under masks: server and clients come to the same."""

    stage: Aggregated
    layout: Layout
    among: int  # clients that begin the round

    def session(self, run: str, t: int, size: int, model: bytes) -> Session:
        """`model`: the digest of what goes down."""
        from sordino.secagg.session import Session

        self.layout.check(self.among)
        return Session(run, t, size, self.layout.width, self._top, self.stage.least(self.among), model)

    def words(self, values: Ints) -> Ints:
        return values + self._top // 2

    def integers(self, words: NDArray[np.uint64], count: int) -> Ints:
        """The sum of so many uploads."""
        return words.astype(np.int64) - count * (self._top // 2)

    @property
    def too_few(self) -> str:
        """Why such a round is not even begun; nothing where it is."""
        least = self.stage.least(self.among)
        return "" if self.among >= least else f"{self.among} clients began the round, {least} must stay to its end"

    @property
    def _top(self) -> int:
        # more than an upload has bits for: its share of noise may be outside
        return ((1 << self.layout.width) - 1) // max(1, self.among)


class Masks:
    """The server opens the sum of those who stayed."""

    def __init__(self, stage: Aggregated, layout: Layout, run: str) -> None:
        self._stage, self._layout, self._run = stage, layout, run

    def sum(self, t: int, uploads: Uploads, cohort: Sequence[int], size: int, noise: Ints | None) -> Opened:
        from sordino.secagg.secagg import run_round

        beyond, nothing, masked = 0, np.zeros(size, np.int64), MaskedWords(self._stage, self._layout, len(cohort))

        def words() -> Iterator[tuple[int, Ints]]:
            nonlocal beyond
            for k, values in uploads:
                beyond += _at_the_end(values, self._layout)
                yield k, masked.words(values)

        if masked.too_few:
            return Opened(nothing, [], 0, 0, {}, 0, masked.too_few)
        # all halves are played here on one model: what tells it apart from others is the run and the round
        model = hashlib.sha256(f"{self._run}/{t}".encode()).digest()
        try:
            found = run_round(masked.session(self._run, t, size, model), cohort, words())
        except SecAggAborted as error:
            return Opened(nothing, [], 0, 0, {}, beyond, f"{error.what}: {error.why}")
        total = masked.integers(found.sum, len(found.survivors))
        up = list(found.bytes_up.values())
        return Opened(total, sorted(found.survivors), sum(up), max(up), dict(found.seconds), beyond)


def _paillier(stage: Encrypted) -> Secret:
    from sordino.secagg import paillier

    return paillier.generate(stage.key_bits, stage.testing)


def _lattice(scheme: str, stage: Encrypted) -> Secret:
    from sordino.secagg import lattice

    return lattice.generate(scheme)


GENERATE: dict[str, Callable[[Encrypted], Secret]] = {
    "paillier": _paillier,
    "bfv": partial(_lattice, "bfv"),
    "ckks": partial(_lattice, "ckks"),
}


def public_key(stage: Encrypted, data: bytes) -> Public:
    """The public key in these bytes, of the scheme that the experiment says."""
    if stage.scheme == "paillier":
        from sordino.secagg import paillier

        return paillier.read_public(data, stage.testing)
    from sordino.secagg import lattice

    found = lattice.read_public(data)
    if found.ring.name != stage.scheme:
        raise KeyMismatch(
            f"a key of {found.ring.name}, where {stage.scheme} is expected",
            why="uploads under two schemes cannot be added",
            fix="server, sites and key holder must have begun the same experiment",
            code="key-of-another-scheme",
        )
    return found


def secret_key(stage: Encrypted, data: bytes) -> Secret:
    """The secret key in these bytes."""
    if stage.scheme == "paillier":
        from sordino.secagg import paillier

        return paillier.read_secret(data, stage.testing)
    from sordino.secagg import lattice

    return lattice.read_secret(data)


def channel(stage: SecureStage, layout: Layout, run: str) -> Channel:
    if isinstance(stage, Encrypted):
        return Ciphertexts(stage, layout)
    assert isinstance(stage, Aggregated)
    return Masks(stage, layout, run)


def pieces(noise: Ints, layout: Layout) -> list[Ints]:
    """Noise that is larger than an upload may be, as several contributions."""
    most = layout.offset - 1
    count = max(1, -(-int(np.abs(noise).max(initial=0)) // most))
    if count > layout.most:
        raise UnsoundGuarantee(
            f"noise of up to {np.abs(noise).max():.3g} steps does not fit into slots of {layout.width} bits",
            why="uploads and noise share a slot, and a sum that is too large would wrap around to a wrong value",
            fix="set more headroom bits in the quantise stage",
            code="no-room-for-noise",
        )
    return [(noise + i) // count for i in range(count)]  # they differ by 1 at most, and add up to it


def _at_the_end(values: Ints, layout: Layout) -> int:
    return int(np.count_nonzero(np.abs(values) >= layout.offset - 1))


def stopwatch() -> tuple[dict[str, float], Any]:
    seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def watch(part: str) -> Iterator[None]:
        begin = time.process_time()
        yield
        seconds[part] += time.process_time() - begin

    return seconds, watch
