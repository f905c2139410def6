"""Secure aggregation: the exact sum of who is left, whoever leaves and when; nothing below the threshold; nothing that
opens one upload.

Keys come from the operating system, so nothing here can be seeded; every statistical test states its rate of false
alarm and has a negative control.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from random import Random

import numpy as np
import pytest

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
from sordino.privacy.uplink.channels import OpenedSum
from sordino.privacy.uplink.fixed_point import Layout
from sordino.privacy.uplink.secure_stages import Aggregated
from sordino.secagg import masks
from sordino.secagg.mask_protocol import Aggregator, Participant
from sordino.secagg.masked import Masks
from sordino.secagg.masks import SERVER, MessageKind, Session, two_thirds
from tests.secagg.play import MODEL, OTHER_MODEL, SIX, Play, clear, refused, run_round, words


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


@pytest.mark.slow
def test_the_sum_over_the_survivors_is_exact_whoever_drops_out_and_when() -> None:
    sums_are_exact(range(100))


@pytest.mark.slow
def test_the_sum_is_exact_two_thousand_times() -> None:
    sums_are_exact(range(100, 2100))


@pytest.mark.one_fast
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


# ---------------------------------------------------------------- one model for all
def with_model(play: Play, who: int, model: bytes) -> bytes:
    _, records = SIX.unpack(play.roster, MessageKind.ROSTER)
    return SIX.pack(
        MessageKind.ROSTER, SERVER, [(i, model if i == who else digest, *keys) for i, digest, *keys in records]
    )


def test_a_server_that_invents_all_other_clients_opens_an_upload() -> None:
    """The limit that the module and the threat model state: members are whoever the server says they are."""
    vectors = words(SIX, [*range(6)])
    invented = {who: vectors[who] * 0 for who in range(1, 6)}
    assert clear(vectors, [0]) == run_round(SIX, range(6), {0: vectors[0]} | invented).sum.tolist()


def test_different_models_in_a_round_are_refused() -> None:
    stranger = Participant(replace(SIX, model=OTHER_MODEL), 5)
    server = Aggregator(SIX)
    message = refused("secagg-model", SecAggAborted, lambda: server.receive(stranger.advertise()))
    assert OTHER_MODEL.hex()[:16] in str(message)
    assert MODEL.hex()[:16] in str(message)
    play = Play(SIX, list(range(6)))
    refused("secagg-model", SecAggAborted, lambda: play.clients[0].share(with_model(play, 5, OTHER_MODEL)))
    refused("secagg-roster", SecAggAborted, lambda: play.clients[1].share(with_model(play, 1, OTHER_MODEL)))


# ---------------------------------------------------------------- no sum wraps around
def test_no_sum_wraps_around() -> None:
    SIX.check(7)
    wide = replace(SIX, threshold=200)
    wide.check(256)
    assert "257 uploads are too many: at most 256" in str(
        refused("secagg-headroom", HeadroomExceeded, lambda: wide.check(257))
    )
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
Guarded = Callable[[Participant, np.ndarray], masks.Words]


class CountsTwice(Participant):
    """The broken twin: its guard says 2."""

    def _guarded(self, values: np.ndarray, honest: Guarded = Participant._guarded) -> masks.Words:
        guarded = honest(self, values)
        guarded[-1] = 2
        return guarded


def test_the_guard_notices_what_is_no_sum() -> None:
    vectors = words(SIX, list(range(6)))
    play = Play(SIX, list(range(6)))
    play.clients[2].__class__ = CountsTwice
    play.share().upload(vectors).ask().answer()
    assert "check word of the sum is 7" in str(refused("secagg-guard", IntegrityError, play.server.open))


def test_a_simulation_uses_nothing_of_a_sum_that_fails_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """As between sites: the round is broken off, and its model stays."""
    channel, values = Masks(Aggregated(), Layout(), "run"), np.arange(10)

    def found() -> OpenedSum:
        return channel.sum(0, ((k, values) for k in range(4)), range(4), 10, None)

    assert (found().who, found().total.tolist()) == ([0, 1, 2, 3], (4 * values).tolist())  # the control
    monkeypatch.setattr(Participant, "_guarded", CountsTwice._guarded)
    assert found().aborted.startswith("the check word of the sum is 8")
    assert (found().who, found().total.tolist()) == ([], [0] * 10)


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
            shifted = (int.from_bytes(part, "little") + 8) % masks.PRIME
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


@pytest.mark.slow
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
