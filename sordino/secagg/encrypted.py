"""Encrypted sums: the server adds ciphertexts, which it cannot read, and a key holder decrypts one sum a round. In a
simulation clients and key holder are in the same process, and the bytes are those that would travel.

The server's half has public keys only, and the holder's half receives one sum a round. `probe` encrypts one client a
round and adds the integers of the others in clear: the same sum for a fraction of the time, to be told apart from
`full` wherever costs are printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from sordino.errors import (
    EmptyRound,
    IntegrityError,
    KeyMismatch,
    MalformedCiphertext,
    SecureError,
    ServerHoldsKey,
    UnsoundGuarantee,
)
from sordino.privacy.uplink.channels import EncryptedChannel, EncryptedPeers, OpenedSum, Stopwatch, Uploads
from sordino.privacy.uplink.fixed_point import Ints, Layout
from sordino.privacy.uplink.secure_stages import Encrypted
from sordino.secagg import lattice, paillier, sealed
from sordino.secagg.sealed import Public, Sealed, SealedHeader, Secret
from sordino.secagg.sealed import unpack as unpack


def needs(stage: Encrypted) -> None:
    """Refuse the scheme if the package that it needs is missing."""
    (sealed.gmpy2 if stage.scheme == "paillier" else sealed.tenseal)()


def check(stage: Encrypted, layout: Layout, count: int, noise: float = 0.0, own: bool = False) -> None:
    """Refuses more uploads than can be added under the scheme, or noise beside them that may be as many steps; `own`:
    in each upload.
    """
    most = layout.most
    if stage.scheme != "paillier":
        public = lattice.LatticePublic(lattice.RINGS[stage.scheme], b"", None)
        public.check(layout, count)
        most = public.most(layout)
    if noise:
        check_fits(noise, layout, 1 if own else most - count)


class Ciphertexts:
    """Encrypted sum: the server adds ciphertexts, the key holder decrypts their sum."""

    def __init__(self, stage: Encrypted, layout: Layout) -> None:
        self._stage, self._layout = stage, layout

    @cached_property
    def _holder(self) -> Secret:
        return GENERATE[self._stage.scheme](self._stage)

    def sum(self, t: int, uploads: Uploads, cohort: Sequence[int], size: int, noise: Ints | None) -> OpenedSum:
        """Encrypted sum over clients in this process, which also holds the key."""
        watch = Stopwatch()
        with watch("keys"):
            holder = self._holder
        here = PeersHere(self._stage, self._layout, holder, t, uploads, np.zeros(size, np.int64), watch)
        found = self.add(t, holder.public, here, len(cohort), size, noise)
        each = found.payload * len(found.who)
        return found._replace(saturated=here.beyond, bytes_up=found.bytes_up if self._stage.mode == "full" else each)

    def add(
        self, t: int, public: Public, peers: EncryptedPeers, began: int, size: int, noise: Ints | None
    ) -> OpenedSum:
        """Add the uploads of a round and let the key holder decrypt the sum; clients and key holder may be in this
        process or at sites.
        """
        own, watch = noise is not None, peers.watch
        server, expected = Adder(public), public.header(t, size, self._layout)
        server.check(self._layout, began + own)
        # noise counts as `room` contributions, however large it is: the key holder sees the number of contributions
        room = public.most(self._layout) - began
        if noise is not None:
            check_fits(np.abs(noise).max(initial=0), self._layout, room)
        who, sizes = list[int](), [0]
        for k, message in peers.uploads():
            try:
                if message is not None:
                    with watch("add"):
                        server.take(message, expected)
                    sizes.append(len(message))
            except SecureError as error:
                peers.absent(k, error)
            else:
                who.append(k)
        nothing = OpenedSum(np.zeros(size, np.int64), [], sum(sizes), sizes[-1], watch.seconds, None)
        if why := too_few(self._stage, len(who), began, own):
            return nothing._replace(aborted=why)
        if noise is not None:
            with watch("encrypt"):
                sealed = public.encrypt(noise, t, self._layout, count=room).pack()
            with watch("add"):
                server.take(sealed, replace(expected, count=room))
        opened = peers.decrypt(server.total().pack(), len(who))
        return nothing._replace(aborted=opened) if isinstance(opened, str) else nothing._replace(total=opened, who=who)


@dataclass
class PeersHere:
    """Clients and key holder of an encrypted round in this process."""

    stage: Encrypted
    layout: Layout
    holder: Secret
    t: int
    integers: Uploads
    clear: Ints  # the sum of uploads that are not encrypted
    watch: Stopwatch
    beyond: int = 0  # values at the end of the range

    def uploads(self) -> Iterator[tuple[int, bytes | None]]:
        # who has the whole key may be faster
        encrypt = self.holder.encrypt if self.stage.keys == "shared" else self.holder.public.encrypt
        for i, (k, values) in enumerate(self.integers):
            self.beyond += self.layout.at_the_end(values)
            if self.stage.mode == "probe" and i:
                self.clear += values
                yield k, None
                continue
            with self.watch("encrypt"):
                message = encrypt(values, self.t, self.layout).pack()
            yield k, message

    def absent(self, client: int, error: SecureError) -> None:
        raise error

    def decrypt(self, total: bytes, count: int) -> Ints | str:
        expected = self.holder.public.header(self.t, len(self.clear), self.layout)
        try:
            with self.watch("open"):
                return self.holder.open(unpack(total, expected)) + self.clear
        except IntegrityError as error:
            return f"{error.what}: {error.why}"


def channel(stage: Encrypted, layout: Layout, run: str) -> EncryptedChannel:
    return Ciphertexts(stage, layout)


def too_few(stage: Encrypted, came: int, began: int, noised: bool) -> str:
    """Reason not to decrypt a sum of `came` uploads, of the `began` clients that began the round; empty where they are
    enough. `noised`: the server's noise is in the sum.
    """
    least = stage.least(began, noised)
    return "" if came >= least else f"{came} uploads came, the key holder opens nothing of fewer than {least}"


class Adder:
    """Server of one round of an encrypted sum: a public key, and a running sum that it cannot read."""

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
        """Refuses more uploads than the key can add, before anything is encrypted."""
        self._public.check(layout, count)

    def take(self, message: bytes, expected: SealedHeader) -> None:
        found = unpack(message, expected)
        if found.header.count != expected.count:
            raise MalformedCiphertext(
                f"a message of {found.header.count} uploads came, expected {expected.count}",
                why="it would take the room of others in the sum, and of the noise",
                fix="ignore the message",
                code="ciphertext-count",
            )
        self._sum = [self._public.add([*self._sum, found])]

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
    """Public key in these bytes; refused where it is of another scheme than the experiment's."""
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
    """Secret key in these bytes."""
    if stage.scheme == "paillier":
        return paillier.read_secret(data, stage.testing)
    return lattice.read_secret(data)


def check_fits(noise: float, layout: Layout, room: int) -> None:
    """Refuses noise that is larger, in steps, than `room` uploads add up to."""
    if noise > room * (layout.offset - 1):
        raise UnsoundGuarantee(
            f"noise of up to {noise:.3g} steps does not fit beside the uploads into slots of {layout.width} bits",
            why="uploads and noise share a slot, and a sum that is too large would wrap around to a wrong value",
            fix="set more headroom bits in quantise, fewer bits under bfv, or a larger range where clients add noise",
            code="no-room-for-noise",
        )
