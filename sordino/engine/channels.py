"""How the uploads of a secure sum become their sum. In simulation all halves of the protocol are played in one process,
through the bytes that would travel.

The server's half has public keys only, and the holder's half is handed one sum a round. `probe` encrypts one client a
round and adds the integers of the others in clear: the same sum for a fraction of the time, to be told apart from
`full` wherever costs are printed.
"""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from sordino.errors import ConfigError, EmptyRound, SecAggAborted, ServerHoldsKey, UnsoundGuarantee
from sordino.privacy.uplink.secure_stages import Aggregated, Encrypted, SecureStage
from sordino.secure.layout import Ints, Layout
from sordino.secure.sealed import Public, Sealed, Secret, unpack

Uploads = Iterable[tuple[int, Ints]]


class Opened(NamedTuple):
    total: Ints
    who: list[int]
    bytes_up: int
    payload: int  # bytes of one upload
    seconds: dict[str, float]  # of the processor, by part
    saturated: int  # values at the end of the range
    aborted: str = ""  # why nothing was opened


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
        seconds, watch = _stopwatch()
        own = [] if noise is None else _pieces(noise, self._layout)
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
        if len(who) < self._stage.least(len(cohort)):
            why = (
                f"{len(who)} uploads came, the key holder opens nothing of fewer than {self._stage.least(len(cohort))}"
            )
            return Opened(np.zeros(size, np.int64), [], up, sizes[-1], seconds, beyond, why)
        with watch("open"):
            total = holder.open(server.total()) + clear if who or own else clear
        return Opened(total, who, up, sizes[-1], seconds, beyond)


def check_cohort(stage: SecureStage, layout: Layout, clients: int) -> None:
    """So many clients, the most that a round can have, can be added and are enough to open a sum."""
    if isinstance(stage, Encrypted) and stage.scheme != "paillier":
        from sordino.secure import lattice

        {"bfv": lattice.BfvPublic, "ckks": lattice.CkksPublic}[stage.scheme](b"", None).check(layout, clients)
    layout.check(clients)
    if clients < stage.least(clients):
        raise ConfigError(
            f"a round has at most {clients} clients, and a sum of fewer than {stage.least(clients)} is not opened",
            why="every round would be broken off",
            fix="take more clients, or a smaller threshold",
            code="cohort-below-threshold",
        )


class Adder:
    """All that the server has: a public key, and a running sum that it cannot read."""

    def __init__(self, public: Public) -> None:
        if isinstance(public, Secret):
            raise ServerHoldsKey(
                "the server was given a secret key",
                why="who adds the ciphertexts must not be able to open one of them",
                fix="give it the public half",
                code="server-holds-key",
            )
        self._public, self._sum = public, list[Sealed]()

    def check(self, layout: Layout, count: int) -> None:
        """Before anything is encrypted."""
        self._public.check(layout, count)

    def take(self, message: bytes, expected: Any) -> None:
        self._sum = [self._public.add([*self._sum, unpack(message, expected)])]

    def total(self) -> Sealed:
        if not self._sum:
            raise EmptyRound(
                "there is no upload to open", why="nobody took part", fix="a larger cohort", code="empty-round"
            )
        return self._sum[0]


class Masks:
    """The server opens the sum of those who stayed."""

    def __init__(self, stage: Aggregated, layout: Layout, run: str) -> None:
        self._stage, self._layout, self._run = stage, layout, run

    def sum(self, t: int, uploads: Uploads, cohort: Sequence[int], size: int, noise: Ints | None) -> Opened:
        from sordino.secure.secagg import Session, run_round

        layout, beyond, nothing = self._layout, 0, np.zeros(size, np.int64)
        layout.check(len(cohort))
        # more than an upload has bits for: its share of noise may be outside
        top = ((1 << layout.width) - 1) // max(1, len(cohort))

        def words() -> Iterator[tuple[int, Ints]]:
            nonlocal beyond
            for k, values in uploads:
                beyond += _at_the_end(values, layout)
                yield k, values + top // 2

        least = self._stage.least(len(cohort))
        if len(cohort) < least:
            why = f"{len(cohort)} clients began the round, {least} must stay to its end"
            return Opened(nothing, [], 0, 0, {}, 0, why)
        # all halves are played here on one model: what tells it apart from others is the run and the round
        model = hashlib.sha256(f"{self._run}/{t}".encode()).digest()
        session = Session(self._run, t, size, layout.width, top, least, model)
        try:
            found = run_round(session, cohort, words())
        except SecAggAborted as error:
            return Opened(nothing, [], 0, 0, {}, beyond, f"{error.what}: {error.why}")
        total = found.sum.astype(np.int64) - len(found.survivors) * (top // 2)
        up = list(found.bytes_up.values())
        return Opened(total, sorted(found.survivors), sum(up), max(up), dict(found.seconds), beyond)


def _paillier(stage: Encrypted) -> Secret:
    from sordino.secure import paillier

    return paillier.generate(stage.key_bits, stage.testing)


def _lattice(scheme: str, stage: Encrypted) -> Secret:
    from sordino.secure import lattice

    return lattice.generate(scheme)


GENERATE: dict[str, Callable[[Encrypted], Secret]] = {
    "paillier": _paillier,
    "bfv": partial(_lattice, "bfv"),
    "ckks": partial(_lattice, "ckks"),
}


def channel(stage: SecureStage, layout: Layout, run: str) -> Channel:
    if isinstance(stage, Encrypted):
        return Ciphertexts(stage, layout)
    assert isinstance(stage, Aggregated)
    return Masks(stage, layout, run)


def _pieces(noise: Ints, layout: Layout) -> list[Ints]:
    """Noise that is larger than an upload may be, as several contributions."""
    most = layout.offset - 1
    count = max(1, -(-int(np.abs(noise).max(initial=0)) // most))
    if count > layout.most:
        raise UnsoundGuarantee(
            f"noise of up to {np.abs(noise).max():.3g} steps in slots of {layout.width} bits",
            why="it must fit beside the uploads, or a sum wraps around",
            fix="give the layout more headroom bits",
            code="no-room-for-noise",
        )
    return [(noise + i) // count for i in range(count)]  # they differ by 1 at most, and add up to it


def _at_the_end(values: Ints, layout: Layout) -> int:
    return int(np.count_nonzero(np.abs(values) >= layout.offset - 1))


def _stopwatch() -> tuple[dict[str, float], Any]:
    seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def watch(part: str) -> Iterator[None]:
        begin = time.process_time()
        yield
        seconds[part] += time.process_time() - begin

    return seconds, watch
