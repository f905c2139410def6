"""What a client of a secure sum refuses, whatever its server asks; and what would be open if it did not."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sordino.errors import (
    ConfigError,
    SecAggAborted,
)
from sordino.secagg import masks
from sordino.secagg.mask_protocol import Aggregator, Participant
from sordino.secagg.masks import SERVER, MessageKind, Session, point
from tests.secagg.play import MODEL, OTHER_MODEL, SIX, Play, clear, refused, top_byte, words


def test_clients_check_the_threshold_themselves() -> None:
    play = Play(SIX, list(range(6)))
    first = play.clients[0]
    _, records = SIX.unpack(play.roster, MessageKind.ROSTER)
    refused("secagg-too-few", SecAggAborted, lambda: first.share(SIX.pack(MessageKind.ROSTER, SERVER, records[:3])))
    play = Play(SIX, list(range(6))).share()
    _, records = SIX.unpack(play.inboxes[0], MessageKind.INBOX)
    short = SIX.pack(MessageKind.INBOX, SERVER, records[:2])
    refused("secagg-too-few", SecAggAborted, lambda: play.clients[0].masked(short, words(SIX, [0])[0]))


LONG = replace(SIX, size=28_938)


def test_a_masked_upload_is_uniform() -> None:
    # p > 1e-4 in one of two rounds: false alarm 1e-8 for each list below
    vectors, sent, stripped = words(LONG, list(range(6))), [], []
    for _ in range(2):
        play = Play(LONG, list(range(6))).share().upload(vectors, absent={5}).ask().answer()
        upload = masks.read(LONG.unpack(play.uploads[2], MessageKind.MASKED)[1][0][0], 32)
        sent.append(top_byte(upload[:-1]))
        # all that the server learns of this client from everything it is sent in the round is the seed: the pairs still
        # hide the words
        rows = [
            (point(who), tuple(part for *_, part in LONG.unpack(data, MessageKind.ANSWER)[1]))
            for who, data in play.answers.items()
        ]
        seed = masks.reconstruct(rows, LONG.threshold)[2]
        assert seed == play.clients[2]._seed
        masks.blend(upload, seed, np.subtract)
        stripped.append(top_byte(upload[:-1]))
        assert play.server.open().tolist() == clear(vectors, [0, 1, 2, 3, 4])
    assert max(sent) > 1e-4
    assert max(stripped) > 1e-4
    assert top_byte(vectors[2]) < 1e-100  # the negative control: words without masks


def test_two_uploads_of_one_vector_have_nothing_in_common() -> None:
    vectors = words(SIX, list(range(6)))
    one, other = (
        masks.read(
            SIX.unpack(Play(SIX, list(range(6))).share().upload(vectors).uploads[0], MessageKind.MASKED)[1][0][0], 32
        )
        for _ in range(2)
    )
    assert (one != other).sum() >= 35  # of 41; false alarm below 1e-50


# ---------------------------------------------------------------- never both shares of one peer
def forged(play: Play, survivors: set[int], dropped: set[int]) -> bytes:
    return play.session.pack(
        MessageKind.REQUEST, SERVER, [(who, True) for who in survivors] + [(who, False) for who in dropped]
    )


@pytest.mark.parametrize(
    ("survivors", "dropped", "code"),
    [
        ({0, 1, 2, 3, 4, 5}, {5}, "secagg-both-shares"),
        ({1, 2, 3, 4, 5}, {0}, "secagg-called-dropped"),
        ({0, 1, 2}, {3, 4, 5}, "secagg-too-few"),
        ({0, 1, 2, 3, 4}, set(), "secagg-request"),
        ({0, 1, 2, 3, 4, 5, 6}, set(), "secagg-request"),
    ],
)
def test_a_client_refuses_a_request_that_could_open_an_upload(
    survivors: set[int], dropped: set[int], code: str
) -> None:
    play = Play(SIX, list(range(6))).share().upload(words(SIX, list(range(6))))
    refused(code, SecAggAborted, lambda: play.clients[0].unmask(forged(play, survivors, dropped)))
    # nor does it answer anything afterwards
    refused("secagg-step", SecAggAborted, lambda: play.clients[0].unmask(play.ask().request))


def test_a_client_answers_once() -> None:
    play = Play(SIX, list(range(6))).share().upload(words(SIX, list(range(6))), absent={5}).ask()
    play.clients[0].unmask(play.request)
    refused("secagg-step", SecAggAborted, lambda: play.clients[0].unmask(forged(play, set(range(6)), set())))
    twice = SIX.pack(MessageKind.REQUEST, SERVER, [*SIX.unpack(play.request, MessageKind.REQUEST)[1], (5, False)])
    refused("secagg-request", SecAggAborted, lambda: play.clients[1].unmask(twice))


class AnswersEverything(Participant):
    """The broken twin: it forgets that it has answered."""

    def unmask(self, request: bytes) -> bytes:
        self._due = MessageKind.REQUEST
        return super().unmask(request)


def opened(play: Play, victim: int) -> np.ndarray:
    """What a server can do that gets both shares of the victim: first it is a survivor, then it has dropped out."""
    others, secrets = sorted(play.clients.keys() - {victim}), []
    for request in (forged(play, set(play.clients), set()), forged(play, set(others), {victim})):
        answers = {who: play.session.unpack(play.clients[who].unmask(request), MessageKind.ANSWER)[1] for who in others}
        rows = [
            (point(who), tuple(part for peer, _, part in answer if peer == victim)) for who, answer in answers.items()
        ]
        secrets += masks.reconstruct(rows, play.session.threshold)
    seed, key = secrets
    return lifted(play, victim, seed, X25519PrivateKey.from_private_bytes(key))


def lifted(play: Play, victim: int, seed: bytes, key: X25519PrivateKey) -> np.ndarray:
    upload = masks.read(play.session.unpack(play.uploads[victim], MessageKind.MASKED)[1][0][0], 32)
    masks.blend(upload, seed, np.subtract)
    context, adverts = hashlib.sha256(play.roster).digest(), play.session.unpack(play.roster, MessageKind.ROSTER)[1]
    for who, _, _, mask in adverts:
        if who != victim:
            pair = masks.pair_key(key, mask, context, who, victim)
            masks.blend(upload, pair, np.subtract if who > victim else np.add)
    return upload[:-1]


def test_both_shares_would_open_an_upload_and_honest_clients_never_give_them() -> None:
    vectors = words(SIX, list(range(6)))
    play = Play(SIX, list(range(6)), AnswersEverything).share().upload(vectors)
    assert (opened(play, 3) == vectors[3]).all()
    honest = Play(SIX, list(range(6))).share().upload(vectors)
    refused("secagg-step", SecAggAborted, lambda: opened(honest, 3))


def test_no_threshold_lets_two_halves_open_an_upload() -> None:
    # told different stories, two halves of the clients would give away both shares: a threshold of more than half
    # leaves no two such halves
    low = replace(SIX, threshold=3)
    server = Aggregator(low)
    adverts = [Participant(low, who).advertise() for who in range(6)]
    for advert in adverts:
        server.receive(advert)
    refused("secagg-low-threshold", ConfigError, server.roster)
    client = Participant(low, 9)
    records = [(who, *low.unpack(data, MessageKind.ADVERT)[1][0]) for who, data in enumerate(adverts)]
    records.append((9, *low.unpack(client.advertise(), MessageKind.ADVERT)[1][0]))
    refused("secagg-low-threshold", ConfigError, lambda: client.share(low.pack(MessageKind.ROSTER, SERVER, records)))


# ---------------------------------------------------------------- keys serve one round
class KeepsItsKeys(Participant):
    """The broken twin: the mask key of a client is the same in each round."""

    kept: ClassVar[dict[int, X25519PrivateKey]] = {}

    def __init__(self, session: Session, who: int) -> None:
        super().__init__(session, who)
        self._mask = self.kept.setdefault(who, self._mask)


@pytest.mark.parametrize(("kind", "opens"), [(KeepsItsKeys, True), (Participant, False)])
def test_a_key_that_served_two_rounds_would_open_an_upload(kind: type[Participant], opens: bool) -> None:
    # in the first round client 3 drops out and the server restores its mask key; in the second it survives and the
    # server restores its seed
    vectors, known = words(SIX, list(range(6))), []
    for round, absent in ((1, {3}), (2, frozenset())):
        play = Play(replace(SIX, round=round), list(range(6)), kind).share().upload(vectors, absent).ask().answer()
        rows = [
            (point(who), tuple(part for *_, part in play.session.unpack(data, MessageKind.ANSWER)[1]))
            for who, data in play.answers.items()
        ]
        known.append(masks.reconstruct(rows, 4)[3])
    key, seed = known
    assert (lifted(play, 3, seed, X25519PrivateKey.from_private_bytes(key)) == vectors[3]).all() == opens


def test_a_client_takes_each_step_once_and_in_order() -> None:
    play = Play(SIX, list(range(6)))
    client = play.clients[0]
    refused("secagg-step", SecAggAborted, client.advertise)
    refused("secagg-step", SecAggAborted, lambda: client.unmask(b""))
    play.share()
    refused("secagg-step", SecAggAborted, lambda: client.share(play.roster))
    play.upload(words(SIX, list(range(6))))
    refused("secagg-step", SecAggAborted, lambda: client.masked(play.inboxes[0], words(SIX, [0])[0]))
    adverts = {Participant(SIX, 0).advertise()[-96:][start : start + 32] for start in (32, 64) for _ in range(20)}
    assert len(adverts) == 40  # two fresh keys each time


def test_a_server_that_hides_the_other_model_makes_clients_unable_to_read_each_other() -> None:
    # client 5 received another model, and each side is shown a roster in which everybody agrees with it
    clients = {who: Participant(SIX, who) for who in range(5)} | {5: Participant(replace(SIX, model=OTHER_MODEL), 5)}
    keys = {who: SIX.unpack(client.advertise(), MessageKind.ADVERT)[1][0][1:] for who, client in clients.items()}
    shared: dict[int, dict[int, bytes]] = {}
    for who, client in clients.items():
        digest = OTHER_MODEL if who == 5 else MODEL
        roster = SIX.pack(MessageKind.ROSTER, SERVER, [(peer, digest, *pair) for peer, pair in keys.items()])
        shared[who] = dict(SIX.unpack(client.share(roster), MessageKind.SHARES)[1])
    for who in (0, 5):
        inbox = SIX.pack(MessageKind.INBOX, SERVER, [(peer, box[who]) for peer, box in shared.items() if peer != who])
        refused("secagg-unsealed", SecAggAborted, partial(clients[who].masked, inbox, words(SIX, [who])[who]))


def test_a_client_refuses_a_roster_or_an_inbox_that_is_wrong() -> None:
    def roster(change: Callable[[list[tuple[object, ...]]], list[tuple[object, ...]]]) -> None:
        play = Play(SIX, list(range(6)))
        records = change(SIX.unpack(play.roster, MessageKind.ROSTER)[1])
        play.clients[0].share(SIX.pack(MessageKind.ROSTER, SERVER, records))

    refused("secagg-roster", SecAggAborted, lambda: roster(lambda records: records[1:]))
    refused("secagg-roster", SecAggAborted, lambda: roster(lambda records: [*records, records[5]]))
    refused("secagg-roster", SecAggAborted, lambda: roster(lambda records: [(0, *records[1][1:]), *records[1:]]))
    refused(
        "secagg-weak-point", SecAggAborted, lambda: roster(lambda records: [*records, (7, MODEL, bytes(32), bytes(32))])
    )

    def inbox(change: Callable[[list[tuple[int, bytes]]], list[tuple[int, bytes]]]) -> None:
        play = Play(SIX, list(range(6))).share()
        records = change(SIX.unpack(play.inboxes[0], MessageKind.INBOX)[1])
        play.clients[0].masked(SIX.pack(MessageKind.INBOX, SERVER, records), words(SIX, [0])[0])

    refused("secagg-inbox", SecAggAborted, lambda: inbox(lambda records: [*records, records[0]]))
    refused("secagg-inbox", SecAggAborted, lambda: inbox(lambda records: [*records[1:], (9, records[0][1])]))
    refused("secagg-inbox", SecAggAborted, lambda: inbox(lambda records: [*records[1:], (0, records[0][1])]))
    refused("secagg-unsealed", SecAggAborted, lambda: inbox(lambda records: [(1, records[1][1]), *records[1:]]))
