"""Secure aggregation: the exact sum of who is left, whoever leaves and when; nothing below the threshold; nothing that
opens one upload.

Keys come from the operating system, so nothing here can be seeded; every statistical test states its rate of false
alarm and has a negative control.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from random import Random
from typing import ClassVar

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from sordino.errors import (
    ConfigError,
    HeadroomExceeded,
    IntegrityError,
    LayoutMismatch,
    MalformedCiphertext,
    RoundMismatch,
    SecAggAborted,
    SecureError,
    SordinoError,
)
from sordino.secure import masks, shamir
from sordino.secure.layout import Layout
from sordino.secure.secagg import Aggregator, Participant, Session, run_round, two_thirds
from sordino.secure.session import SERVER, MessageKind, point

MODEL, OTHER_MODEL = (hashlib.sha256(name).digest() for name in (b"model", b"another model"))
SIX = Session(run="a run", round=3, size=40, width=32, top=(1 << 24) - 1, threshold=4, model=MODEL)

Vectors = dict[int, np.ndarray]


def words(session: Session, clients: list[int], seed: int = 0) -> Vectors:
    draw = np.random.default_rng(seed)
    return {who: draw.integers(0, session.top, session.size, dtype=np.uint64, endpoint=True) for who in clients}


def clear(vectors: Vectors, who: list[int] | tuple[int, ...], width: int = 32) -> list[int]:
    """Python's integers, which do not wrap."""
    return [sum(int(vectors[i][word]) for i in who) % (1 << width) for word in range(len(vectors[who[0]]))]


def refused(code: str, kind: type[SordinoError], step: Callable[[], object]) -> SordinoError:
    with pytest.raises(kind) as refusal:
        step()
    assert refusal.value.code == code
    assert refusal.value.why
    return refusal.value


class Play:
    """A round step by step; the server that plays it remembers whatever reached it."""

    def __init__(self, session: Session, clients: list[int], kind: type[Participant] = Participant) -> None:
        self.session, self.server = session, Aggregator(session)
        self.clients = {who: kind(session, who) for who in clients}
        for client in self.clients.values():
            self.server.receive(client.advertise())
        self.roster = self.server.roster()

    def share(self, absent: set[int] = frozenset()) -> Play:
        for who in self.clients.keys() - absent:
            self.server.receive(self.clients[who].share(self.roster))
        self.inboxes = self.server.inboxes()
        return self

    def upload(self, vectors: Vectors, absent: set[int] = frozenset()) -> Play:
        self.uploads = {
            who: self.clients[who].masked(box, vectors[who]) for who, box in self.inboxes.items() if who not in absent
        }
        for upload in self.uploads.values():
            self.server.receive(upload)
        return self

    def ask(self) -> Play:
        self.request = self.server.request()
        return self

    def answer(self, absent: set[int] = frozenset()) -> Play:
        self.answers = {who: self.clients[who].unmask(self.request) for who in set(self.server.survivors) - absent}
        for answer in self.answers.values():
            self.server.receive(answer)
        return self


# ---------------------------------------------------------------- the sum


def sums_are_exact(trials: range) -> None:
    for trial in trials:
        draw = Random(trial)
        count = draw.randint(2, 7)
        clients = draw.sample(range(1 << 31), count)
        threshold = draw.randint(max(2, count // 2 + 1), count)
        gone = draw.sample(clients, draw.randint(0, count - threshold))
        before, after, late = (set(gone[i::3]) for i in range(3))
        width = draw.choice([32, 32, 13, 40, 64])
        top = ((1 << width) - 1) // count
        session = Session("run", trial, draw.randint(1, 9), width, top, threshold, MODEL)
        vectors = words(session, clients, trial)
        vectors[clients[0]][:] = top  # the largest there is
        play = Play(session, clients).share(absent=before).upload(vectors, absent=after).ask().answer(absent=late)
        uploads = [
            masks.read(session.unpack(sent, MessageKind.MASKED)[1][0][0], width) for sent in play.uploads.values()
        ]
        assert max(int(upload.max()) for upload in uploads) < 1 << width
        total = play.server.open()
        assert play.server.survivors == tuple(sorted(set(clients) - before - after))
        assert total.tolist() == clear(vectors, play.server.survivors, width)


def test_the_sum_over_the_survivors_is_exact_whoever_drops_out_and_when() -> None:
    sums_are_exact(range(100))


@pytest.mark.slow
def test_the_sum_is_exact_two_thousand_times() -> None:
    sums_are_exact(range(100, 2100))


@pytest.mark.parametrize("width", [25, 32, 33, 40, 64])
def test_three_drop_outs_leave_the_same_bits_as_nobody_else_there(width: int) -> None:
    session = replace(SIX, width=width, top=((1 << width) - 1) // 10, size=700, threshold=7)
    vectors = words(session, list(range(10)))
    lost = {2, 5, 9}
    left = [who for who in vectors if who not in lost]
    with_three = run_round(session, vectors, vectors, lost)
    without = run_round(session, left, {who: vectors[who] for who in left})
    assert with_three.survivors == without.survivors == tuple(left)
    assert with_three.sum.tobytes() == without.sum.tobytes()
    assert with_three.sum.tolist() == clear(vectors, left, width)
    assert (run_round(session, vectors, vectors).sum - with_three.sum).tolist() == clear(vectors, sorted(lost), width)


def test_the_layout_of_a_run_comes_back_as_signed_sums() -> None:
    layout, clients = Layout(bits=24, headroom=8, reach=1.0), list(range(5))
    session = replace(SIX, size=300, width=layout.width, top=(1 << layout.bits) - 1)
    real = {who: np.random.default_rng(who).uniform(-1, 1, 300) for who in clients}
    signed = {who: layout.encode(values)[0] for who, values in real.items()}
    result = run_round(session, clients, {who: each + layout.offset for who, each in signed.items()})
    total = result.sum.astype(np.int64) - len(result.survivors) * layout.offset
    assert (total == sum(signed.values())).all()
    assert np.abs(layout.decode(total) - sum(real.values())).max() <= 5 / (2 * layout.scale) * (1 + 1e-9)


def test_vectors_are_used_as_they_come_and_counted() -> None:
    seen: list[int] = []

    def lazily() -> Iterator[tuple[int, np.ndarray]]:
        for who, vector in vectors.items():
            seen.append(who)
            yield who, vector
            vector[:] = 0  # the buffer may be used again at once

    vectors = words(SIX, [4, 0, 8, 2, 6])
    expected = clear(vectors, [4, 0, 8, 2])
    result = run_round(SIX, range(0, 10, 2), lazily(), {6})
    assert seen == [4, 0, 8, 2, 6]
    assert result.sum.tolist() == expected
    assert set(result.seconds) == {"advertise", "share", "mask", "unmask", "open"}
    assert result.survivors == (0, 2, 4, 8)
    head = 55
    advert, shares, upload, answer = (
        head + 96,
        head + 4 * (4 + 12 + 2 * 66 + 16),
        head + 41 * 4,
        head + 5 * (4 + 1 + 66),
    )
    assert result.bytes_up == dict.fromkeys((0, 2, 4, 8), advert + shares + upload + answer) | {6: advert + shares}


def test_two_thirds() -> None:
    assert [two_thirds(count) for count in (2, 3, 6, 10, 50)] == [2, 3, 5, 7, 34]


# ---------------------------------------------------------------- fewer than the threshold


def test_too_few_end_the_round_at_every_step_and_nothing_is_opened() -> None:
    vectors = words(SIX, list(range(6)))

    def adverts() -> Aggregator:
        server = Aggregator(SIX)
        for who in range(3):
            server.receive(Participant(SIX, who).advertise())
        refused("secagg-too-few", SecAggAborted, server.roster)
        return server

    def shares() -> Aggregator:
        play = Play(SIX, list(range(6)))
        refused("secagg-too-few", SecAggAborted, lambda: play.share(absent={0, 1, 2}))
        return play.server

    def uploads() -> Aggregator:
        play = Play(SIX, list(range(6))).share().upload(vectors, absent={0, 1, 2})
        refused("secagg-too-few", SecAggAborted, play.server.request)
        return play.server

    def answers() -> Aggregator:
        play = Play(SIX, list(range(6))).share().upload(vectors).ask().answer(absent={0, 1, 2})
        masked = play.server._total.copy()
        refused("secagg-too-few", SecAggAborted, play.server.open)
        assert (play.server._total == masked).all()
        return play.server

    for server in (adverts(), shares(), uploads(), answers()):
        for step in (server.roster, server.inboxes, server.request, server.open):
            refused("secagg-server-step", SecAggAborted, step)
        refused("secagg-over", SecAggAborted, partial(server.receive, b""))
        assert not server.survivors or server._total[:-1].tolist() != clear(vectors, server.survivors)


def test_clients_check_the_threshold_themselves() -> None:
    play = Play(SIX, list(range(6)))
    first = play.clients[0]
    _, records = SIX.unpack(play.roster, MessageKind.ROSTER)
    refused("secagg-too-few", SecAggAborted, lambda: first.share(SIX.pack(MessageKind.ROSTER, SERVER, records[:3])))
    play = Play(SIX, list(range(6))).share()
    _, records = SIX.unpack(play.inboxes[0], MessageKind.INBOX)
    short = SIX.pack(MessageKind.INBOX, SERVER, records[:2])
    refused("secagg-too-few", SecAggAborted, lambda: play.clients[0].masked(short, words(SIX, [0])[0]))


# ---------------------------------------------------------------- what one upload looks like


def top_byte(values: np.ndarray) -> float:
    """p-value of a chi-square test over the 256 top bytes of 32-bit words."""
    return float(stats.chisquare(np.bincount(values.astype(np.uint32) >> 24, minlength=256)).pvalue)


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
        seed = shamir.reconstruct(rows, LONG.threshold)[2]
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
        secrets += shamir.reconstruct(rows, play.session.threshold)
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
        known.append(shamir.reconstruct(rows, 4)[3])
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


# ---------------------------------------------------------------- one model for all


def with_model(play: Play, who: int, model: bytes) -> bytes:
    _, records = SIX.unpack(play.roster, MessageKind.ROSTER)
    return SIX.pack(
        MessageKind.ROSTER, SERVER, [(i, model if i == who else digest, *keys) for i, digest, *keys in records]
    )


def test_different_models_in_a_round_are_refused() -> None:
    stranger = Participant(replace(SIX, model=OTHER_MODEL), 5)
    server = Aggregator(SIX)
    message = refused("secagg-model", SecAggAborted, lambda: server.receive(stranger.advertise()))
    assert OTHER_MODEL.hex()[:16] in str(message)
    assert MODEL.hex()[:16] in str(message)
    play = Play(SIX, list(range(6)))
    refused("secagg-model", SecAggAborted, lambda: play.clients[0].share(with_model(play, 5, OTHER_MODEL)))
    refused("secagg-roster", SecAggAborted, lambda: play.clients[1].share(with_model(play, 1, OTHER_MODEL)))


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


# ---------------------------------------------------------------- no sum wraps around


def test_no_sum_wraps_around() -> None:
    SIX.check(7)
    wide = replace(SIX, threshold=200)
    wide.check(256)
    assert "k=257 > 256" in str(refused("secagg-headroom", HeadroomExceeded, lambda: wide.check(257)))
    edge = replace(wide, top=1 << 24)
    edge.check(255)
    refused("secagg-headroom", HeadroomExceeded, lambda: edge.check(256))  # 2^32 itself is one too many
    full = replace(SIX, top=(1 << 32) - 1)
    server = Aggregator(full)
    clients = [Participant(full, who) for who in range(4)]
    for client in clients:
        server.receive(client.advertise())
    refused("secagg-headroom", HeadroomExceeded, server.roster)
    with pytest.raises(HeadroomExceeded):
        run_round(full, range(4), words(full, list(range(4))))


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (np.full(40, 1 << 24), "secagg-word-range"),
        (np.full(40, -1), "secagg-word-range"),
        (np.zeros(39, np.int64), "secagg-words"),
        (np.zeros((40, 1), np.int64), "secagg-words"),
        (np.zeros(40, np.float32), "secagg-words"),
    ],
)
def test_words_out_of_range_are_not_uploaded(bad: np.ndarray, code: str) -> None:
    vectors = words(SIX, list(range(6)))
    refused(code, LayoutMismatch, lambda: run_round(SIX, range(6), vectors | {3: bad}))


# ---------------------------------------------------------------- what is not honest


class CountsTwice(Participant):
    """The broken twin: its guard says 2."""

    def _guarded(self, values: np.ndarray) -> masks.Words:
        guarded = super()._guarded(values)
        guarded[-1] = 2
        return guarded


def test_the_guard_notices_what_is_no_sum() -> None:
    vectors = words(SIX, list(range(6)))
    play = Play(SIX, list(range(6)))
    play.clients[2].__class__ = CountsTwice
    play.share().upload(vectors).ask().answer()
    assert "guard is 7" in str(refused("secagg-guard", IntegrityError, play.server.open))


@pytest.mark.parametrize(("absent", "code"), [(frozenset(), "secagg-guard"), (frozenset({5}), "secagg-wrong-key")])
def test_altered_shares_are_noticed(absent: set[int], code: str) -> None:
    # false alarm: 2^-32, where the guard of a wrong stream happens to fit
    play = Play(SIX, list(range(6))).share().upload(words(SIX, list(range(6))), absent).ask()
    for who in play.server.survivors:
        answer = play.clients[who].unmask(play.request)
        _, records = SIX.unpack(answer, MessageKind.ANSWER)
        if who == 0:
            # at the points 1 to 4 the first share counts fourfold: the secret is 32 too large, which is another seed,
            # and another key once its three low bits are cleared as X25519 has it
            *rest, (peer, survived, part) = records
            shifted = (int.from_bytes(part, "little") + 8) % shamir.PRIME
            answer = SIX.pack(MessageKind.ANSWER, 0, [*rest, (peer, survived, shifted.to_bytes(66, "little"))])
        play.server.receive(answer)
    refused(code, IntegrityError, play.server.open)


def test_the_server_refuses_messages_that_do_not_count_and_goes_on() -> None:
    vectors, everybody = words(SIX, list(range(6))), list(range(6))
    server = Aggregator(SIX)
    clients = {who: Participant(SIX, who) for who in everybody}
    for client in clients.values():
        advert = client.advertise()
        server.receive(advert)
    refused("secagg-twice", SecAggAborted, lambda: server.receive(advert))
    fields = SIX.unpack(advert, MessageKind.ADVERT)[1]
    refused("secagg-number", SecAggAborted, lambda: server.receive(SIX.pack(MessageKind.ADVERT, SERVER, fields)))
    roster = server.roster()
    refused("secagg-order", SecAggAborted, lambda: server.receive(Participant(SIX, 9).advertise()))
    for client in clients.values():
        shares = client.share(roster)
        _, records = SIX.unpack(shares, MessageKind.SHARES)
        for wrong in (records[1:], [records[0], *records], records[::-1]):
            refused(
                "secagg-shares",
                SecAggAborted,
                partial(server.receive, SIX.pack(MessageKind.SHARES, client._who, wrong)),
            )
        refused("secagg-stranger", SecAggAborted, partial(server.receive, SIX.pack(MessageKind.SHARES, 9, records)))
        server.receive(shares)
    inboxes = server.inboxes()
    for who in (0, 1, 2, 3, 4):
        upload = clients[who].masked(inboxes[who], vectors[who])
        server.receive(upload)
        refused("secagg-twice", SecAggAborted, partial(server.receive, upload))
    request = server.request()
    late = clients[5].masked(inboxes[5], vectors[5])
    refused("secagg-order", SecAggAborted, lambda: server.receive(late))
    refused("secagg-called-dropped", SecAggAborted, lambda: clients[5].unmask(request))
    for who in (0, 1, 2, 3, 4):
        answer = clients[who].unmask(request)
        _, records = SIX.unpack(answer, MessageKind.ANSWER)
        for wrong in (records[1:], [records[0], *records], records[::-1]):  # missing, repeated, misplaced
            refused("secagg-answer", SecAggAborted, partial(server.receive, SIX.pack(MessageKind.ANSWER, who, wrong)))
        server.receive(answer)
    assert server.open().tolist() == clear(vectors, [0, 1, 2, 3, 4])


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


def test_messages_of_another_round_layout_or_length_are_refused() -> None:
    advert, server = Participant(SIX, 0).advertise(), Aggregator(SIX)

    def other(**changes: object) -> bytes:
        return Participant(replace(SIX, **changes), 0).advertise()

    refused("secagg-round", RoundMismatch, lambda: server.receive(other(round=4)))
    refused("secagg-round", RoundMismatch, lambda: server.receive(other(run="another run")))
    for change in ({"size": 41}, {"width": 33}, {"top": 7}, {"threshold": 5}):
        refused("secagg-layout", LayoutMismatch, partial(server.receive, other(**change)))
    for length in range(len(advert)):
        refused("secagg-malformed", MalformedCiphertext, partial(server.receive, advert[:length]))
    for wrong in (advert + b"\0", advert + advert[-96:], b"X" + advert[1:], advert[:4] + b"\2" + advert[5:]):
        refused("secagg-malformed", MalformedCiphertext, partial(server.receive, wrong))
    refused("secagg-order", SecAggAborted, lambda: server.receive(advert[:5] + b"\xff" + advert[6:]))
    server.receive(advert)


def test_bytes_that_were_played_with_raise_nothing_but_refusals() -> None:
    draw, vectors = Random(0), words(SIX, list(range(6)))
    play = Play(SIX, list(range(6))).share().upload(vectors).ask()
    for data in (play.roster, play.inboxes[0], play.uploads[0], play.request):
        for _ in range(60):
            altered = bytearray(data)
            for _ in range(draw.randint(1, 4)):
                altered[draw.randrange(len(altered))] = draw.randrange(256)
            for kind in MessageKind:
                with suppress(SecureError):
                    SIX.unpack(bytes(altered), kind)
            fresh = Play(SIX, list(range(6)))
            for step in (fresh.clients[0].share, fresh.clients[1].unmask, fresh.server.receive):
                with suppress(SordinoError):
                    step(bytes(altered))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        *(
            ({field: value}, "secagg-out-of-range")
            for field, value in [
                ("round", -1),
                ("size", 0),
                ("width", 0),
                ("width", 65),
                ("top", 0),
                ("top", 1 << 32),
                ("threshold", 1),
            ]
        ),
        ({"model": b"short"}, "secagg-digest"),
    ],
)
def test_impossible_sessions_are_refused(change: dict[str, object], code: str) -> None:
    refused(code, ConfigError, lambda: replace(SIX, **change))


# ---------------------------------------------------------------- masks


def stream(key: bytes, count: int, width: int = 32) -> masks.Words:
    drawn = masks.zeros(count, width)
    masks.blend(drawn, key)
    masks.cut(drawn, width)
    return drawn


@pytest.mark.parametrize("count", [1, 3, 4, 28_939, (1 << 14) - 1, 1 << 14, (1 << 14) + 1, 40_001])
def test_a_stream_is_the_block_cipher_of_a_counter(count: int) -> None:
    # AES of 0, 1, 2, ... in big-endian blocks, over the joints between the chunks too
    key = os.urandom(32)
    blocks = b"".join(struct.pack(">QQ", 0, block) for block in range(-(-count * 8 // 16)))
    expected = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(blocks)
    assert stream(key, count).tobytes() == expected[: 4 * count]
    assert stream(key, count, 64).tobytes() == expected[: 8 * count]
    gone = stream(key, count)
    masks.blend(gone, key, np.subtract)
    assert not gone.any()


def test_keys_are_derived_as_in_rfc_5869() -> None:
    secret, context = os.urandom(32), os.urandom(32)
    extracted = hmac.digest(context, secret, "sha256")
    expected = hmac.digest(extracted, b"mask" + struct.pack("<II", 3, 7) + b"\1", "sha256")
    assert masks.derive(secret, context, b"mask", 3, 7) == expected
    assert (
        len({masks.derive(secret, context, label, *who) for label in (b"mask", b"share") for who in ((3, 7), (7, 3))})
        == 4
    )


def folded(key: bytes) -> int:
    return int(np.bitwise_xor.reduce(np.frombuffer(key, "<u4")))


def test_seeds_that_agree_in_32_folded_bits_give_different_streams() -> None:
    # false alarm 2^-32 for each equal word
    one = os.urandom(32)
    other = bytes(byte ^ 0x5A for byte in one)  # an even number of equal changes cancels
    assert one != other
    assert folded(one) == folded(other)
    assert (stream(one, 1000) == stream(other, 1000)).sum() <= 2

    def weak(key: bytes) -> np.ndarray:  # the broken twin
        return np.random.RandomState(folded(key)).randint(0, 1 << 32, 1000, dtype=np.uint64)

    assert (weak(one) == weak(other)).all()


def test_the_largest_word_of_32_bits_occurs() -> None:
    # a fixed key, found by trying, whose stream has it early
    key = (10_865).to_bytes(32, "little")
    assert int(stream(key, 65_347)[65_346]) == (1 << 32) - 1


def every_value(values: np.ndarray) -> float:
    return float(stats.chisquare(np.bincount(values, minlength=256)).pvalue)


def test_a_stream_is_uniform_up_to_its_top_value() -> None:
    # p > 1e-4 in one of two streams: false alarm 1e-8; a value that is missing by chance: 256 exp(-390)
    drawn = [stream(os.urandom(32), 100_000, 8) for _ in range(2)]
    assert all(each.min() == 0 and each.max() == 255 for each in drawn)
    assert max(every_value(each) for each in drawn) > 1e-4
    assert top_byte(stream(bytes(32), 28_938)) > 1e-4  # a fixed stream: no false alarm
    without_top = np.random.default_rng(0).integers(0, 255, 100_000)  # the broken twin
    assert every_value(without_top) < 1e-30


@pytest.mark.parametrize("width", [1, 8, 9, 24, 31, 32, 33, 40, 63, 64])
def test_words_travel_in_as_few_bytes_as_hold_them(width: int) -> None:
    drawn = stream(os.urandom(32), 501, width)
    data = masks.written(drawn, width)
    assert len(data) == 501 * -(-width // 8)
    assert (masks.read(data, width) == drawn).all()
    assert int(drawn.max()) < 1 << width
