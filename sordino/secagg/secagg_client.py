"""Client side of secure aggregation; module `masked` describes the protocol and its guarantees."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from sordino.errors import LayoutMismatch
from sordino.secagg import masks
from sordino.secagg.session import SERVER, KeyAdvertisement, MessageKind, Record, Session, abort, point

Integers: TypeAlias = NDArray[np.integer[Any]]


class Participants:
    """The clients of one process or site in one round, a `Participant` for each."""

    def __init__(self, session: Session, clients: Iterable[int]) -> None:
        self._each = {k: Participant(session, k) for k in sorted(clients)}

    def __contains__(self, client: int) -> bool:
        return client in self._each

    def messages(
        self, step: str, who: Sequence[int], sent: Sequence[bytes], words: Iterable[tuple[int, Integers]] = ()
    ) -> Iterator[tuple[int, Callable[[], bytes]]]:
        """Functions that compute each client's next message from what the server sent to it; masked uploads come from
        `words`, as they arrive."""
        if step == "inbox":
            boxes = dict(zip(who, sent, strict=True))
            return ((k, partial(self._each[k].masked, boxes[k], each)) for k, each in words)
        if step == "round":
            return ((k, self._each[k].advertise) for k in sorted(who))
        take = Participant.share if step == "roster" else Participant.unmask
        return ((k, partial(take, self._each[k], sent[0])) for k in sorted(who))


class Participant:
    """One client in one round. It draws its own keys and takes each step once, so none of its secrets serves a second
    round; a client whose step fails takes no further part.
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
