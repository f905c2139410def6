"""Encrypted sums: the server adds what it cannot read, and a key holder opens one sum a round. In simulation all halves
are played in one process, through the bytes that would travel.

The server's half has public keys only, and the holder's half is handed one sum a round. `probe` encrypts one client a
round and adds the integers of the others in clear: the same sum for a fraction of the time, to be told apart from
`full` wherever costs are printed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from sordino.engine.channels import Opened, Uploads, stopwatch
from sordino.errors import EmptyRound, KeyMismatch, ServerHoldsKey, UnsoundGuarantee
from sordino.privacy.uplink.layout import Ints, Layout
from sordino.privacy.uplink.secure_stages import Encrypted
from sordino.secagg import extras, lattice, paillier
from sordino.secagg.sealed import Public, Sealed, Secret, unpack


def needs(stage: Encrypted) -> None:
    """Refuses where the package of the scheme is missing."""
    (extras.gmpy2 if stage.scheme == "paillier" else extras.tenseal)()


def check(stage: Encrypted, layout: Layout, count: int) -> None:
    """So many uploads can be added under the scheme."""
    if stage.scheme != "paillier":
        {"bfv": lattice.BfvPublic, "ckks": lattice.CkksPublic}[stage.scheme](b"", None).check(layout, count)


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
            beyond += self._layout.at_the_end(values)
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


def channel(stage: Encrypted, layout: Layout, run: str) -> Ciphertexts:
    return Ciphertexts(stage, layout)


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


GENERATE: dict[str, Callable[[Encrypted], Secret]] = {
    "paillier": lambda stage: paillier.generate(stage.key_bits, stage.testing),
    "bfv": lambda stage: lattice.generate("bfv"),
    "ckks": lambda stage: lattice.generate("ckks"),
}


def public_key(stage: Encrypted, data: bytes) -> Public:
    """The public key in these bytes, of the scheme that the experiment says."""
    if stage.scheme == "paillier":
        return paillier.read_public(data, stage.testing)
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
        return paillier.read_secret(data, stage.testing)
    return lattice.read_secret(data)


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
