"""Secure sums between sites: which of them are possible there, and the server's half of each.

Masked: the server collects the clients' messages of each step, passes on shares that it cannot decrypt, and unmasks
the sum of the clients that stayed. A client that is silent at a step has dropped out. Each client binds its keys to the
digest of the broadcast that this site received, and to the whole list of members, so clients that were sent other
models or other lists cannot even read each other. `secagg.masked` describes the protocol and its guarantees, and
against which server they hold.

Encrypted: the server adds ciphertexts, and asks the key holder, a peer of its own, to decrypt one sum a round. It
passes the holder's public key on to the sites, which have its digest from the holder itself. Noise of the server goes
into the sum as a ciphertext, before the holder decrypts it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from sordino.algorithms.algorithm import AnyAlgorithm
from sordino.algorithms.optional import PerClientMessages
from sordino.engine import wire
from sordino.engine.commands import Answered, Command, Encrypt, Mask, OpenSum, Publish, Round, read_answer
from sordino.engine.executor import Answers, check_one_broadcast, words_of
from sordino.errors import ConfigError, SecureError, SordinoError, UnsoundGuarantee, WireError
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.channels import Messages, OpenedSum, Step, Stopwatch, SumAtSites
from sordino.privacy.uplink.fixed_point import Ints
from sordino.privacy.uplink.secure_stages import Aggregated, Encrypted
from sordino.runs.setup import PhaseSetup, RunSetup
from sordino.sampling.draws import Stragglers
from sordino.sites.agreement_file import SitesAgreement
from sordino.sites.remote_sites import RemoteSites
from sordino.transport.message import Message
from sordino.transport.run_events import RunEvent
from sordino.transport.sites import SOON, Replies
from sordino.tree import Tree
from sordino.types import Task, Terms


def kind_of_sites(setup: PhaseSetup) -> Callable[..., RemoteSites]:
    """Class that represents the sites of a phase, depending on the secure sum of its uplink."""
    uplink = setup.algorithm.uplink
    check_between_sites(uplink, setup.stragglers, setup.policy.hidden)
    if uplink.secure is None:
        return RemoteSites
    kind = EncryptedSites if isinstance(uplink.secure, Encrypted) else MaskedSites
    return partial(kind, algorithm=setup.algorithm, task=setup.task)


def peers_of(whole: RunSetup, agreed: SitesAgreement) -> list[str]:
    """Names of all that answer the server in this run: the sites, and the key holder if there is one."""
    holder = any(held(whole, stage) is not None for stage in range(len(whole.phases)))
    return [*agreed.sites, *([HOLDER] if holder else [])]


def check_between_sites(uplink: Uplink, stragglers: Stragglers, hidden: bool) -> None:
    """Refuses options of a secure sum that only a simulation can have, such as one key for all clients."""
    secure = uplink.secure
    if secure is None:
        return
    if isinstance(secure, Encrypted) and secure.keys != "authority":
        raise UnsoundGuarantee(
            f'keys = "{secure.keys}" between sites',
            why="all sites would have to agree on one secret key without the server, and it would open every upload "
            "of every other site",
            fix='use keys = "authority" with a key holder, or secagg, which has none',
            code="shared-key-between-sites",
        )
    if secure.mode != "full":
        raise UnsoundGuarantee(
            'mode = "probe" between sites',
            why="all uploads but one would be sent unencrypted",
            fix='use mode = "full"',
            code="probe-between-sites",
        )
    if stragglers.leaves_out:
        raise ConfigError(
            "rehearsed faults in a secure sum between sites",
            why="late or lost clients would have to be left out of a sum that is only opened as a whole",
            fix='use no [chaos] and no stragglers with policy = "late": real sites are late by themselves',
            code="rehearsed-between-sites",
        )
    if hidden and uplink.central:
        raise UnsoundGuarantee(
            "a secure sum over a hidden cohort, between sites",
            why="real sites can fall silent, and all parties see whether enough of the drawn sites stay to the end",
            fix="use a visible cohort",
            code="broken-rounds-tell",
        )
    if uplink.grid is not None and uplink.grid.strict:
        raise UnsoundGuarantee(
            "strict = true in the quantise stage, between sites",
            why="the number of a client's values outside the range would have to be reported, and no noise covers it",
            fix="leave strict out, and set a larger range or clip the uploads",
            code="strict-between-sites",
        )


def check_elsewhere(whole: RunSetup) -> None:
    """Refuses secure sums in a run whose messages another program carries."""
    if any(phase.algorithm.uplink.secure is not None for phase in whole.phases):
        raise ConfigError(
            "a secure sum inside another program",
            why="it may start a new process for each message, which has forgotten the masks of the round, and it knows "
            "no key holder",
            fix="add uploads securely between `sordino serve` and `sordino join`, or leave secagg and bfv out",
            code="secure-sum-elsewhere",
        )


@dataclass
class MaskedSites(RemoteSites):
    """Sites whose clients mask their uploads."""

    algorithm: AnyAlgorithm = field(kw_only=True)
    task: Task = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_broadcast(isinstance(self.algorithm, PerClientMessages))

    def __call__(self, t: int, down: Tree, terms: Mapping[int, Terms]) -> Answers:
        return Answers(sum=MaskedSum(self, t, down, terms))


class MaskedSum(SumAtSites):
    """One round of secure aggregation by masks, from the first message to each site to the unmasked sum."""

    def __init__(self, sites: MaskedSites, t: int, down: Tree, terms: Mapping[int, Terms]) -> None:
        self._sites, self._t, self._terms = sites, t, terms
        self._size = words_of(sites.algorithm, sites.task, t, down)
        self._message = wire.encode(sites.header(t), down)
        self._there: dict[str, list[int]] = {}  # who has taken every step until now, by site

    def open(self, noise: Ints | None) -> OpenedSum:
        uplink, run = self._sites.algorithm.uplink, self._sites.header(self._t).run
        assert isinstance(uplink.secure, Aggregated)
        assert uplink.grid is not None
        masks = uplink.secure.sums.channel(uplink.secure, uplink.grid.layout, run)
        model = hashlib.sha256(self._message).digest()
        found = masks.open(self._t, len(self._terms), self._size, model, lambda session: self._take_step, noise)
        self._sites.have_answered(self._t, found.who)
        return found

    def _take_step(self, step: Step, messages: Messages, receive: Callable[[int, bytes], None]) -> None:
        """Runs a step with the clients still in the round: passes on the messages that came in time; clients without a
        valid one have dropped out.
        """
        if step == "round":
            self._there = self._sites.asked(self._terms)
            self._sites.have_been_asked(self._t, self._there)
            first = self._first_messages(self._there)
            answers = self._sites.exchange(first, self._enough, others=self._latecomers)
        else:
            commands: dict[str, tuple[Command, Sequence[bytes]]] = {
                peer: (Mask(self._t, step, who), messages(who)) for peer, who in self._there.items()
            }
            answers = self._sites.exchange(commands)
        there: dict[str, list[int]] = {}
        for peer, message in answers.items():
            answer = read_answer(message.head.said)
            clients = answer.clients if isinstance(answer, Answered) else []
            for k, body in zip(clients, message.bodies, strict=False):
                try:
                    if k not in self._there[peer]:
                        raise WireError("a message of another client", fix="ignore it", code="other-sender")
                    receive(k, bytes(body))
                except SordinoError as error:
                    why = f"client {self._sites.called(k)} of {peer} drops out: {error.what}"
                    self._sites.note(RunEvent(event="dropped", site=peer, round=self._t + 1, why=why))
                else:
                    there.setdefault(peer, []).append(k)
        self._there = there

    def _first_messages(self, there: Mapping[str, Sequence[int]]) -> dict[str, tuple[Command, Sequence[bytes]]]:
        return {
            peer: (Round(self._t, {k: self._terms[k] for k in who}, among=len(self._terms)), [self._message])
            for peer, who in there.items()
        }

    def _latecomers(self) -> dict[str, tuple[Command, Sequence[bytes]]]:
        found = self._sites.latecomers(self._terms, self._there)
        self._there |= found
        if found:
            self._sites.have_been_asked(self._t, found)
        return self._first_messages(found)

    def _enough(self, answers: Replies) -> bool:
        counts = (len(message.bodies) for message in answers.values())
        return self._sites.suffices(self._t, sum(counts), len(self._terms))


HOLDER = "key-holder"  # the name of the peer that has the key
INTEGERS = np.dtype("<i8")  # of an opened sum


def held(whole: RunSetup, stage: int) -> Encrypted | None:
    """The encryption stage of a phase's uplink, if a separate key holder decrypts its sums; otherwise None."""
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
        """Waits for the key holder first: without it no sum of this round would be decrypted."""
        warned = False
        while not (HOLDER in self._ready and self._free(HOLDER)):
            if self.stopped():
                raise KeyboardInterrupt
            self._introduce(HOLDER)
            self._wait(time.monotonic() + SOON)
            if HOLDER not in self._ready and not warned:
                self.note(RunEvent(event="missing", site=HOLDER))
                warned = True
        super().gather()

    def _among(self, terms: Mapping[int, Terms]) -> int:
        return len(terms)

    def _introduce(self, peer: str) -> None:
        if self.key or peer == HOLDER:
            super()._introduce(peer)

    def _first_messages(self, peer: str) -> Sequence[tuple[Command, Sequence[bytes]]]:
        first = super()._first_messages(peer)
        return [first[0], (Publish(), ())] if peer == HOLDER else [*first, (Encrypt(), [self.key])]

    def _settled(self, ticket: int, found: Message | SordinoError) -> None:
        if self._out[ticket].peer == HOLDER and isinstance(found, Message) and not self.key and found.bodies:
            self.key = bytes(found.bodies[0])
        super()._settled(ticket, found)


class EncryptedSum(SumAtSites):
    """One round of an encrypted sum: the sites encrypt uploads, the server adds them, and the key holder decrypts the
    sum.
    """

    def __init__(self, sites: EncryptedSites, t: int, down: Tree, terms: Mapping[int, Terms]) -> None:
        self._sites, self._t, self._down, self._terms = sites, t, down, terms
        self.watch = Stopwatch()
        self._size = words_of(sites.algorithm, sites.task, t, down)

    def open(self, noise: Ints | None) -> OpenedSum:
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
        answers = self._sites.exchange({HOLDER: (OpenSum(self._t, count, self._size), [total])})
        if HOLDER not in answers:
            return f"the {HOLDER} has not opened the sum"
        body = b"".join(answers[HOLDER].bodies)
        if len(body) != self._size * INTEGERS.itemsize:
            return f"the answer of the {HOLDER} is not a sum of this size"
        return np.frombuffer(body, INTEGERS).astype(np.int64)

    def absent(self, client: int, error: SecureError) -> None:
        why = f"client {self._sites.called(client)} counts as absent: {error.what}"
        self._sites.note(RunEvent(event="dropped", round=self._t + 1, why=why))
