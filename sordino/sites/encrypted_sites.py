"""The server's half of encrypted sums between sites: it adds ciphertexts, and asks the key holder, a peer of its own,
to open one sum a round. It passes the holder's public key on to the sites, which have its digest from the holder
itself.

Noise of the server goes into the sum as a ciphertext, before the holder opens it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sordino.algorithms.algorithm import AnyAlgorithm
from sordino.engine.commands import Command, Encrypt, OpenSum, Publish
from sordino.engine.executor import Answers
from sordino.engine.secure_sum import words_of
from sordino.errors import SecureError, SordinoError, UnsoundGuarantee
from sordino.privacy.uplink.channels import Opened, Stopwatch, SumAtSites
from sordino.privacy.uplink.fixed_point import Ints
from sordino.privacy.uplink.secure_stages import Encrypted
from sordino.runs.setup import Whole
from sordino.sites.remote_sites import RemoteSites
from sordino.transport.message import Letter
from sordino.transport.run_events import RunEvent
from sordino.transport.sites import SOON
from sordino.tree import Tree
from sordino.types import Task, Terms

HOLDER = "key-holder"  # the name of the peer that has the key
INTEGERS = np.dtype("<i8")  # of an opened sum


def held(whole: Whole, stage: int) -> Encrypted | None:
    """The encrypted sum of a phase that a key holder opens; None where the phase has none."""
    secure = whole.phases[stage].algorithm.uplink.secure if 0 <= stage < len(whole.phases) else None
    return secure if isinstance(secure, Encrypted) and secure.keys == "authority" else None


@dataclass
class EncryptedSites(RemoteSites):
    """Sites whose clients encrypt their uploads, and the key holder, who has no clients."""

    algorithm: AnyAlgorithm = field(kw_only=True)
    task: Task = field(kw_only=True)
    key: bytes = b""  # the public key, once the holder has given it out

    def __post_init__(self) -> None:
        if HOLDER in self.members:
            raise UnsoundGuarantee(
                f"a site with the name {HOLDER}",
                why="the key holder must not own any of the uploads that it decrypts",
                fix="give the site another name in the agreement",
                code="key-holder-has-clients",
            )
        self.members = {**self.members, HOLDER: []}
        super().__post_init__()

    def __call__(self, t: int, down: Tree, terms: Mapping[int, Terms]) -> Answers:
        return Answers(sum=EncryptedSum(self, t, down, terms))

    def gather(self) -> None:
        """Waits for the key holder first: without it no sum of this round would be opened."""
        told = False
        while not (HOLDER in self._ready and self._free(HOLDER)):
            if self.stopped():
                raise KeyboardInterrupt
            self._introduce(HOLDER)
            self._wait(time.monotonic() + SOON)
            if HOLDER not in self._ready and not told:
                self.note(RunEvent(event="missing", site=HOLDER))
                told = True
        super().gather()

    def _among(self, terms: Mapping[int, Terms]) -> int:
        return len(terms)

    def _introduce(self, peer: str) -> None:
        if self.key or peer == HOLDER:
            super()._introduce(peer)

    def _first_letters(self, peer: str) -> Sequence[tuple[Command, Sequence[bytes]]]:
        first = super()._first_letters(peer)
        return [first[0], (Publish(), ())] if peer == HOLDER else [*first, (Encrypt(), [self.key])]

    def _settled(self, ticket: int, found: Letter | SordinoError) -> None:
        if self._out[ticket].peer == HOLDER and isinstance(found, Letter) and not self.key and found.bodies:
            self.key = bytes(found.bodies[0])
        super()._settled(ticket, found)


class EncryptedSum(SumAtSites):
    """One encrypted round."""

    def __init__(self, sites: EncryptedSites, t: int, down: Tree, terms: Mapping[int, Terms]) -> None:
        self._sites, self._t, self._down, self._terms = sites, t, down, terms
        self.watch = Stopwatch()
        self._size = words_of(sites.algorithm, sites.task, t, down)

    def open(self, noise: Ints | None) -> Opened:
        uplink = self._sites.algorithm.uplink
        assert isinstance(uplink.secure, Encrypted)
        assert uplink.grid is not None
        sums = uplink.secure.sums
        adding = sums.channel(uplink.secure, uplink.grid.layout, self._sites.header(self._t).run)
        public = sums.public_key(uplink.secure, self._sites.key)
        return adding.add(self._t, public, self, len(self._terms), self._size, noise)

    def uploads(self) -> Iterator[tuple[int, bytes]]:
        return ((k, bytes(one)) for k, one in self._sites.collected(self._t, self._down, self._terms))

    def decrypt(self, total: bytes, count: int) -> Ints | str:
        answers = self._sites.exchange({HOLDER: (OpenSum(self._t, count), [total])})
        if HOLDER not in answers:
            return f"the {HOLDER} has not opened the sum"
        body = b"".join(answers[HOLDER].bodies)
        if len(body) != self._size * INTEGERS.itemsize:
            return f"the answer of the {HOLDER} is not a sum of this size"
        return np.frombuffer(body, INTEGERS).astype(np.int64)

    def absent(self, client: int, error: SecureError) -> None:
        why = f"client {self._sites.called(client)} counts as absent: {error.what}"
        self._sites.note(RunEvent(event="dropped", round=self._t + 1, why=why))
