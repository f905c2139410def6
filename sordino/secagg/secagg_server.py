"""Server side of secure aggregation; module `masked` describes the protocol and its guarantees."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from sordino.errors import IntegrityError, WireError
from sordino.privacy.uplink.channels import TakeStep
from sordino.secagg import masks
from sordino.secagg.session import SERVER, KeyAdvertisement, MessageKind, Record, Session, abort, point

IGNORE: Final = "ignore it; without a message that counts, the client has dropped out"


class Aggregator:
    """The server in one round: a running sum under masks, public keys, sealed shares that it cannot open and passes on,
    and at the end the shares that open the sum.

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
