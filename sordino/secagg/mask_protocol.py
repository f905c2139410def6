"""Both sides of secure aggregation by masks; module `masked` describes the protocol and its guarantees."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from sordino.errors import IntegrityError, LayoutMismatch, WireError
from sordino.privacy.uplink.channels import TakeStep
from sordino.secagg import masks
from sordino.secagg.masks import SERVER, KeyAdvertisement, MessageKind, Record, Session, abort, point

Integers: TypeAlias = NDArray[np.integer[Any]]


class Participants:
    """The clients of one process or site in one round of secure aggregation, a `Participant` for each."""

    def __init__(self, session: Session, clients: Iterable[int]) -> None:
        self._each = {k: Participant(session, k) for k in sorted(clients)}

    def __contains__(self, client: int) -> bool:
        return client in self._each

    def messages(
        self, step: str, who: Sequence[int], sent: Sequence[bytes], words: Iterable[tuple[int, Integers]] = ()
    ) -> Iterator[tuple[int, Callable[[], bytes]]]:
        """Each client with a function that computes its next message of the protocol, from what the server `sent` to
        it. `words`: in the upload step, the integers of each client's upload, as they become ready.
        """
        if step == "inbox":
            boxes = dict(zip(who, sent, strict=True))
            return ((k, partial(self._each[k].masked, boxes[k], each)) for k, each in words)
        if step == "round":
            return ((k, self._each[k].advertise) for k in sorted(who))
        take = Participant.share if step == "roster" else Participant.unmask
        return ((k, partial(take, self._each[k], sent[0])) for k in sorted(who))


class Participant:
    """One client in one round of secure aggregation. It draws its own keys and takes each step once, so none of its
    secrets serves a second round; a client whose step fails takes no further part.
    """

    def __init__(self, session: Session, who: int) -> None:
        assert 0 <= who < SERVER
        self._session, self._who = session, who
        self._channel, self._mask = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        self._seed = os.urandom(masks.SECRET_BYTES)
        self._due: MessageKind | None = MessageKind.ADVERT
        self._roster: dict[int, KeyAdvertisement] = {}
        self._context = b""
        self._held: dict[int, masks.Row] = {}  # shares of (seed, mask key) of each peer that shared

    def advertise(self) -> bytes:
        self._take(MessageKind.ADVERT)
        self._due = MessageKind.ROSTER
        return self._session.pack(MessageKind.ADVERT, self._who, [self._advert()])

    def share(self, roster: bytes) -> bytes:
        self._take(MessageKind.ROSTER)
        _, records = self._session.unpack(roster, MessageKind.ROSTER)
        self._roster = {who: KeyAdvertisement(*fields) for who, *fields in records}
        if len(self._roster) != len(records) or self._roster.get(self._who) != self._advert():
            raise abort(
                "the list of members from the server is wrong",
                f"client {self._who} is not in it with its own keys, or a client is in it twice",
                code="secagg-roster",
            )
        for who, advert in self._roster.items():
            self._session.check_model(who, advert)
        self._session.check(len(records))
        self._session.check_enough(len(records))
        self._context = hashlib.sha256(roster).digest()
        rows = masks.share(
            [self._seed, self._mask.private_bytes_raw()], [point(who) for who in self._roster], self._session.threshold
        )
        given = dict(zip(self._roster, rows, strict=True))
        self._held = {self._who: given.pop(self._who)}
        sealed: list[Record] = [
            (peer, masks.seal(self._lock(self._who, peer), b"".join(row))) for peer, row in given.items()
        ]
        self._due = MessageKind.INBOX
        return self._session.pack(MessageKind.SHARES, self._who, sealed)

    def masked(self, inbox: bytes, words: Integers) -> bytes:
        """Masked upload: `words`, integers from 0 to `top`, with the masks added that are shared with every client in
        the inbox.
        """
        self._take(MessageKind.INBOX)
        _, records = self._session.unpack(inbox, MessageKind.INBOX)
        peers = {sender for sender, _ in records}
        if len(peers) != len(records) or not peers <= self._roster.keys() - {self._who}:
            raise abort(
                "the shares that the server passed on are wrong",
                "a client sent two, or is not in the list of members",
                code="secagg-inbox",
            )
        self._session.check_enough(len(peers) + 1)
        for sender, sealed in records:
            row = masks.unseal(self._lock(sender, self._who), sealed, sender)
            self._held[sender] = (row[: masks.SHARE_BYTES], row[masks.SHARE_BYTES :])
        total = self._guarded(words)
        masks.blend(total, self._seed)
        for peer in peers:
            key = masks.pair_key(self._mask, self._roster[peer].mask, self._context, self._who, peer)
            masks.blend(total, key, np.add if peer > self._who else np.subtract)
        masks.cut(total, self._session.width)
        self._due = MessageKind.REQUEST
        return self._session.pack(MessageKind.MASKED, self._who, [(masks.written(total, self._session.width),)])

    def unmask(self, request: bytes) -> bytes:
        """Shares that the server requests: of the seed of a survivor, or of the mask key of a client that dropped out,
        never both of one peer.
        """
        self._take(MessageKind.REQUEST)
        _, records = self._session.unpack(request, MessageKind.REQUEST)
        survivors = {who for who, survived in records if survived}
        dropped = {who for who, survived in records if not survived}
        if both := survivors & dropped:
            raise abort(
                f"the server asked for both shares of client {min(both)}",
                "with both of them the upload of this client could be opened",
                code="secagg-both-shares",
            )
        if self._who in dropped:
            raise abort(
                f"the server says that client {self._who} dropped out",
                "but its upload was sent, and the key that is asked for would open it",
                code="secagg-called-dropped",
            )
        if len(records) != len(self._held) or survivors | dropped != self._held.keys():
            raise abort(
                "the server's request does not name each client exactly once",
                f"{len(self._held)} clients have shared their secrets",
                code="secagg-request",
            )
        self._session.check_enough(len(survivors))
        answers: list[Record] = [(who, survived, self._held[who][0 if survived else 1]) for who, survived in records]
        return self._session.pack(MessageKind.ANSWER, self._who, answers)

    def _take(self, step: MessageKind) -> None:
        if self._due is not step:
            raise abort(
                f"client {self._who} got a message of kind {step.name.lower()} at the wrong time",
                "a client takes each step of the round once, in order",
                code="secagg-step",
            )
        self._due = None

    def _advert(self) -> KeyAdvertisement:
        keys = (key.public_key().public_bytes_raw() for key in (self._channel, self._mask))
        return KeyAdvertisement(self._session.model, *keys)

    def _lock(self, sender: int, receiver: int) -> bytes:
        peer = self._roster[receiver if sender == self._who else sender]
        return masks.derive(masks.agree(self._channel, peer.channel), self._context, b"share", sender, receiver)

    def _guarded(self, words: Integers) -> masks.Words:
        size, top = self._session.size, self._session.top
        if words.shape != (size,) or words.dtype.kind not in "iu":
            raise LayoutMismatch(
                f"client {self._who} uploads {words.dtype} of shape {words.shape}",
                why=f"expected {size} integers",
                fix="encode the values with the layout of the run",
                code="secagg-words",
            )
        low, high = int(words.min()), int(words.max())
        if low < 0 or high > top:
            raise LayoutMismatch(
                f"client {self._who} uploads words from {low} to {high}",
                why=f"they must be from 0 to {top}: beyond that the sum could wrap around to a wrong value",
                fix="encode the values with the layout of the run",
                code="secagg-word-range",
            )
        guarded = masks.zeros(size + 1, self._session.width)
        guarded[:size], guarded[size] = words, 1
        return guarded


IGNORE: Final = "ignore it; without a message that counts, the client has dropped out"


class Aggregator:
    """The server in one round of secure aggregation: a running sum under masks, public keys, encrypted shares that it
    cannot decrypt and passes on, and at the end the shares that unmask the sum.

    A refused message changes nothing, and its sender may count as dropped out; too few clients end the round.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._due: MessageKind | None = MessageKind.ADVERT
        self._heard: set[int] = set()  # in this step
        self._awaited: set[int] | None = None
        self._adverts: dict[int, KeyAdvertisement] = {}
        self._context = b""
        self._inboxes: dict[int, list[Record]] = defaultdict(list)
        self._total = masks.zeros(session.size + 1, session.width)
        self._request: list[tuple[int, bool]] = []
        self._answers: dict[int, masks.Row] = {}
        self.sent: dict[int, int] = defaultdict(int)  # bytes of each client

    def play(self, take: TakeStep) -> None:
        """Run all steps of the protocol, until the sum is unmasked."""
        take("round", lambda who: [], self.receive_from)
        roster = self.roster()
        take("roster", lambda who: [roster], self.receive_from)
        boxes = self.inboxes()
        take("inbox", lambda who: [boxes[k] for k in who], self.receive_from)
        request = self.request()
        take("request", lambda who: [request], self.receive_from)

    def receive_from(self, client: int, data: bytes) -> None:
        """Receives a message over this client's connection; refused where it names another sender."""
        if self._read(data)[1] != client:
            raise WireError("a message of another client", fix="ignore it", code="other-sender")
        self.sent[client] += len(data)
        self.receive(data)

    def receive(self, data: bytes) -> None:
        due, sender, records = self._read(data)
        if sender in self._heard:
            raise abort(
                f"client {sender} sends its {due.name.lower()} twice",
                "only the first one counts",
                fix=IGNORE,
                code="secagg-twice",
            )
        if self._awaited is not None and sender not in self._awaited:
            raise abort(
                f"client {sender} was not asked for a message",
                "it took no part in the step before",
                fix=IGNORE,
                code="secagg-stranger",
            )
        take = {
            MessageKind.ADVERT: self._advert,
            MessageKind.SHARES: self._shares,
            MessageKind.MASKED: self._masked,
            MessageKind.ANSWER: self._answer,
        }
        take[due](sender, records)
        self._heard.add(sender)

    def _read(self, data: bytes) -> tuple[MessageKind, int, list[Record]]:
        if self._due is None:
            raise abort(
                "the round is over", "a message came after the end of the round", fix=IGNORE, code="secagg-over"
            )
        return (self._due, *self._session.unpack(data, self._due))

    def roster(self) -> bytes:
        """Ends the step in which clients advertise their public keys; returns the roster of these keys, which all these
        clients receive."""
        self._session.check(len(self._heard))
        heard = self._close(MessageKind.ADVERT, MessageKind.SHARES)
        message = self._session.pack(MessageKind.ROSTER, SERVER, [(who, *self._adverts[who]) for who in heard])
        self._context = hashlib.sha256(message).digest()
        return message

    def inboxes(self) -> dict[int, bytes]:
        """Ends the step in which clients send shares of their secrets; returns the shares for each of these clients."""
        heard = self._close(MessageKind.SHARES, MessageKind.MASKED)
        boxes = {who: self._session.pack(MessageKind.INBOX, SERVER, self._inboxes[who]) for who in heard}
        self._inboxes.clear()
        return boxes

    def request(self) -> bytes:
        """Ends the step in which clients upload; returns the request for shares, which all these clients receive."""
        shared = self._awaited or set()
        survivors = self._close(MessageKind.MASKED, MessageKind.ANSWER)
        self._request = [(who, who in survivors) for who in sorted(shared)]
        return self._session.pack(MessageKind.REQUEST, SERVER, list(self._request))

    @property
    def survivors(self) -> tuple[int, ...]:
        return tuple(who for who, survived in self._request if survived)

    def open(self) -> NDArray[np.uint64]:
        """Ends the round; returns the unmasked sums over the survivors."""
        helpers = self._close(MessageKind.ANSWER, None)
        rows = [(point(who), self._answers[who]) for who in helpers]
        for (who, survived), secret in zip(
            self._request, masks.reconstruct(rows, self._session.threshold), strict=True
        ):
            if survived:
                masks.blend(self._total, secret, np.subtract)
            else:
                self._forget(who, X25519PrivateKey.from_private_bytes(secret))
        masks.cut(self._total, self._session.width)
        if self._total[-1] != len(self.survivors):
            raise _untrue(
                f"the check word of the sum is {int(self._total[-1])}, but {len(self.survivors)} clients uploaded",
                code="secagg-guard",
            )
        return self._total[:-1].astype(np.uint64)

    def _forget(self, dropped: int, key: X25519PrivateKey) -> None:
        """Removes the pairwise masks between the survivors and a client that never uploaded."""
        if key.public_key().public_bytes_raw() != self._adverts[dropped].mask:
            raise _untrue(f"the shares give another mask key than that of client {dropped}", code="secagg-wrong-key")
        for survivor in self.survivors:
            pair = masks.pair_key(key, self._adverts[survivor].mask, self._context, survivor, dropped)
            masks.blend(self._total, pair, np.subtract if dropped > survivor else np.add)

    def _close(self, step: MessageKind, then: MessageKind | None) -> list[int]:
        if self._due is not step:
            raise abort(
                f"the server cannot end the step of {step.name.lower()}",
                "the server takes each step of the round once, in order",
                code="secagg-server-step",
            )
        heard = sorted(self._heard)
        self._due, self._awaited, self._heard = None, self._heard, set()
        self._session.check_enough(len(heard))
        self._due = then
        return heard

    def _advert(self, sender: int, records: list[Record]) -> None:
        advert = KeyAdvertisement(*records[0])
        if sender == SERVER:
            raise abort(
                f"a client uses the number {SERVER}",
                "this is the number of the server",
                fix=IGNORE,
                code="secagg-number",
            )
        self._session.check_model(sender, advert)
        self._adverts[sender] = advert

    def _shares(self, sender: int, records: list[Record]) -> None:
        if [peer for peer, _ in records] != [peer for peer in sorted(self._adverts) if peer != sender]:
            raise abort(
                f"client {sender} did not send exactly one share to each other client",
                "each client must be able to help when another one drops out",
                fix=IGNORE,
                code="secagg-shares",
            )
        for peer, sealed in records:
            self._inboxes[peer].append((sender, sealed))

    def _masked(self, sender: int, records: list[Record]) -> None:
        self._total += masks.read(records[0][0], self._session.width)

    def _answer(self, sender: int, records: list[Record]) -> None:
        if [(who, survived) for who, survived, _ in records] != self._request:
            raise abort(
                f"client {sender} sent a share twice, or left one out",
                "each share that was asked for is given once",
                fix=IGNORE,
                code="secagg-answer",
            )
        self._answers[sender] = tuple(part for _, _, part in records)


def _untrue(what: str, *, code: str) -> IntegrityError:
    return IntegrityError(
        what,
        why="an upload or a share was not made as the protocol says",
        fix="run the round again; this sum is thrown away and the model is unchanged",
        code=code,
    )
