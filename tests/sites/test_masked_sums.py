"""Masked sums between sites: the simulation's bits, nothing in clear on the way, and whoever is silent, false or back
from a crash at any step opens nothing that the simulation would not open.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from sordino.algorithms.optional import PerClientMessages
from sordino.config import Experiment
from sordino.engine.commands import Answered, Command, Mask, Round, read_answer
from sordino.errors import UnsoundGuarantee
from sordino.ledger.ledger import State
from sordino.privacy.uplink.secure_stages import Aggregated
from sordino.runs.run import start
from sordino.runs.simulation import simulated
from sordino.secagg import masked, masks
from sordino.secagg.mask_protocol import Aggregator
from sordino.secagg.masks import KeyAdvertisement
from sordino.sites import secure_sums
from sordino.sites.remote_sites import RemoteSites
from sordino.sites.secure_sums import MaskedSites
from sordino.sites.site_accounts import SiteAccounts
from tests.helpers.between_sites import SERVER, Federated, ledger_of, model_of
from tests.helpers.masked_words import Words, watched_sums, written_down
from tests.helpers.scripted_messages import Meets, Play, code, silent, step_of
from tests.laws.cases import BY_NAME
from tests.sites.test_faults import Unreliable, killed_at_server
from tests.stories.secure_sums.sums import SHARES, Table, made, rows

WITH_TWIN = [pytest.param(False, id="sound"), pytest.param(True, id="broken twin", marks=pytest.mark.slow)]
STEPS = ("round", "roster", "inbox", "request")
ONE_ROUND = partial(made, "weigh", "secagg", rounds=1)
FIVE = [f"site-{k}" for k in range(5)]


# the simulation's bits ------------------------------------------------------------------------------------------------
CENTRAL: Table = {
    "uplink": {"client": [{"name": "clip", "radius": 0.5}, "secagg"], "server": [{"name": "noise", "neighbours": "zero_out"}]},
    "privacy": {"epsilon": 8.0, "delta": 1e-3},
}  # fmt: skip
LC_FL: Table = {"uplink": {"client": ["clip_coordinates", "weigh", "secagg"], "server": ["coordinate_laplace"]}}
PLAYED = {
    "shares": made(**SHARES, rounds=1),
    "two clients at a site": made("weigh", "secagg", algorithm={"name": "scaffold"}),
    "noise of the server": made(**CENTRAL),
    "lc_fl": BY_NAME["lc_fl"].experiment(**LC_FL),
    "too few": made("weigh", "secagg", cohort={"name": "poisson", "rate": 0.3}, rounds=4),
}


@pytest.mark.one_fast
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if i < 2 else pytest.mark.slow) for i, n in enumerate(PLAYED)]
)
def test_masks_between_sites_train_what_the_simulation_trains(name: str, tmp_path: Path) -> None:
    start(PLAYED[name], tmp_path / "loop")
    between = Federated(PLAYED[name], tmp_path, per_site=2 if name.startswith("two") else 1)
    between.play()
    assert model_of(between.folder) == model_of(tmp_path / "loop")
    assert ledger_of(between.folder) == ledger_of(tmp_path / "loop")
    for ours, theirs in zip(rows(between.folder), rows(tmp_path / "loop"), strict=True):
        assert {k: ours.get(k) for k in ("answered", "bytes_up", "bytes_down", "payload")} == {
            k: theirs.get(k) for k in ("answered", "bytes_up", "bytes_down", "payload")
        }
        assert ours["secure"] == {k: v for k, v in theirs["secure"].items() if k != "saturated"}  # nobody counts them


# nothing in clear -----------------------------------------------------------------------------------------------------
class Played(NamedTuple):
    play: Play
    words: Words


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """A run of one round, over and asked again by many tests."""
    with pytest.MonkeyPatch.context() as patched:
        words, play = written_down(patched), Play(ONE_ROUND(), tmp_path_factory.mktemp("played") / "between", patched)
        assert play.play()[0]["answered"] == 5
    return Played(play, words)


def test_no_message_from_a_site_holds_its_words(played: Played) -> None:
    assert len(played.words) == 5
    assert played.play.found_in_clear(list(played.words.values())) == 0


@pytest.mark.slow
def test_words_without_masks_are_found(playing: Callable[[Experiment], Play], monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken twin of the test before."""
    words, play = written_down(monkeypatch), playing(ONE_ROUND())
    monkeypatch.setattr(masks, "blend", lambda *_: None)
    assert play.play()[0]["answered"] == 5
    assert play.found_in_clear(list(words.values())) == 5


def test_a_site_sends_no_upload_in_clear(played: Played) -> None:
    """Neither the server's half carries one, nor does a site answer a server that asks for one."""
    play = played.play
    first = play.first(FIVE[0], Round)
    assert isinstance(first.command, Round)
    asked = play.asks(FIVE[0], Round(1, first.command.terms), play.bodies(first))
    assert code(asked) == "other-uploads"
    header = play.between.half(play.road).setup.header("run")
    clear = RemoteSites(play.road, play.between.signer(SERVER), 0, {}, lambda t: header(t, -1), secure=Aggregated())
    with pytest.raises(UnsoundGuarantee) as refusal:
        clear(0, (), {})
    assert refusal.value.code == "clear-uploads"


# who drops out --------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_whoever_is_silent_at_a_step_has_dropped_out_there(
    playing: Callable[[Experiment], Play], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every step one, then two of five are silent; four must stay: the sum of the others, or nothing at all."""
    one = {(t, step): {FIVE[t]} for t, step in enumerate(STEPS)}
    two = {(t + 4, step): set(FIVE[t : t + 2]) for t, step in enumerate(STEPS)}
    play = playing(made("weigh", "secagg", rounds=9, evaluation={"every": 1, "final": 0}))
    play.meets = silent(one | two)
    words, opened = written_down(monkeypatch), watched_sums(monkeypatch)
    found = play.play()
    stayed = [row["answered"] for row in found]
    assert stayed == [4, 4, 4, 5, 0, 0, 0, 0, 5]  # who has sent its words before it falls silent is in the sum
    assert [bool(row["secure"].get("aborted")) for row in found] == [False] * 4 + [True] * 4 + [False]
    for (t, who), words_of_all in opened.items():
        assert np.array_equal(words_of_all, sum(words[t, k] for k in who))
    assert [len(who) for _, who in opened] == [4, 4, 4, 5, 5]
    norms = [row["model_norm"] for row in found]
    assert [now == before for now, before in zip(norms[1:], norms, strict=False)] == [False] * 3 + [True] * 4 + [False]
    assert [entry.state for entry in ledger_of(play.between.folder)] == [State.PUBLISHED] * 9


@pytest.mark.parametrize("broken", WITH_TWIN)
def test_no_sum_with_too_few_shares_of_noise_is_opened(
    broken: bool, playing: Callable[[Experiment], Play], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four shares are one noise: with four of five the sum is opened, with three it is not. The twin forgets that."""
    if broken:
        monkeypatch.setattr(Aggregated, "least", lambda self, cohort: max(2, cohort // 2 + 1))
    lost = {(0, "inbox"): {FIVE[1]}, (1, "inbox"): {FIVE[1], FIVE[3]}}
    play = playing(made(**SHARES))
    play.meets = silent(lost)
    assert [row["answered"] for row in play.play()] == ([4, 3] if broken else [4, 0])


# a server that lies ---------------------------------------------------------------------------------------------------
def other_broadcast(play: Play, *victims: str) -> Meets:
    """A server that sends some sites another model, with its own signature."""

    def meets(to: str, command: Command, message: bytes) -> bytes:
        if to not in victims or not isinstance(command, Round):
            return message
        head, bodies, _ = play.between.signer(to).read(message)
        body = bytearray(bodies[0])
        body[-33 - 8] ^= 1  # a bit of a number
        body[-32:] = hashlib.sha256(body[:-32]).digest()
        return play.between.signer(SERVER).write(to, 0, head.said, [bytes(body)], ledger=head.ledger)

    return meets


@pytest.mark.parametrize("broken", WITH_TWIN)
def test_another_broadcast_for_some_sites_opens_nothing(
    broken: bool, playing: Callable[[Experiment], Play], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin takes one digest for all that is received in a round."""
    if broken:
        alike = SimpleNamespace(sha256=lambda message: hashlib.sha256(b"a model"))
        monkeypatch.setattr(masked, "hashlib", alike)
        monkeypatch.setattr(secure_sums, "hashlib", alike)
    words, play = written_down(monkeypatch), playing(ONE_ROUND())
    play.meets = other_broadcast(play, *FIVE[:2])
    assert play.play()[0]["answered"] == (5 if broken else 0)
    assert len(words) == (5 if broken else 0)
    assert any("another model" in note for note in play.between.notes) != broken


def test_a_server_that_hides_its_lie_is_noticed_by_the_clients(
    playing: Callable[[Experiment], Play], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It believes every digest, and tells each site that all others have its own: nobody can read anybody."""
    monkeypatch.setattr(Aggregator, "_advert", _believing)
    words, play = written_down(monkeypatch), playing(ONE_ROUND())
    told: dict[str, bytes] = {}

    def meets(to: str, command: Command, message: bytes) -> bytes:
        message = other_broadcast(play, FIVE[0])(to, command, message)
        head, bodies, _ = play.between.signer(to).read(message)
        if isinstance(command, Round):
            told[to] = hashlib.sha256(bodies[0]).digest()
        if step_of(command) != "roster":
            return message
        roster = bytes(bodies[0])
        for digest in told.values():
            roster = roster.replace(digest, told[to])
        return play.between.signer(SERVER).write(to, 0, head.said, [roster], ledger=head.ledger)

    play.meets = meets
    row = play.play()[0]
    assert row["answered"] == 0
    assert row["secure"]["aborted"]
    assert len(words) == 5  # all came so far, and none could read the shares that the others had sealed
    assert any("different lists of members" in note for note in play.between.notes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "named"),
    [(0, "c0"), (4, "c4"), (5, "5"), (-1, "-1")],
    ids=["in its message", "in its answer, too", "or of nobody", "or of less than nobody"],
)
def test_no_site_speaks_for_the_clients_of_another(
    number: int, named: str, playing: Callable[[Experiment], Play], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site sends an advert of another's client, under its own client's number, the other's or one that nobody has,
    before the other site does.
    """
    play = playing(made("weigh", "secagg", rounds=1))
    begins = masked.MaskedRound.first

    def falsely(self: masked.MaskedRound, asked: Any) -> Any:
        answer, bodies = begins(self, asked)
        if answer.clients == [0]:
            return Answered([number]), [bodies[0][:6] + (4).to_bytes(4, "little") + bodies[0][10:]]
        return answer, bodies

    monkeypatch.setattr(masked.MaskedRound, "first", falsely)
    assert play.play()[0]["answered"] == 4
    assert any(
        f"client {named} of site-0 drops out: a message of another client" in note for note in play.between.notes
    )


BAD: tuple[Callable[[bytes], bytes], ...] = (
    lambda message: b"",
    lambda message: message[:-1],
    lambda message: message + message,
    lambda message: message[:5] + bytes([message[5] % 7 + 1]) + message[6:],  # of another step
    lambda message: message[:10] + bytes(16) + message[26:],  # of another run
)


@pytest.mark.slow
def test_who_sends_what_does_not_count_has_dropped_out(
    playing: Callable[[Experiment], Play], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kind of bad message at every step: the others go on, and the sum is theirs."""
    plan = [(step, bad) for step in STEPS for bad in BAD]
    play = playing(made("weigh", "secagg", rounds=len(plan)))
    words, opened, gives = written_down(monkeypatch), watched_sums(monkeypatch), masked.MaskedRound._gives

    def badly(self: masked.MaskedRound, step: str, asked: Any, found: Any) -> Any:
        answer, bodies = gives(self, step, asked, found)
        due, bad = plan[self.place[1]]
        return answer, [bad(bodies[0])] if answer.clients == [2] and step == due else bodies

    monkeypatch.setattr(masked.MaskedRound, "_gives", badly)
    assert [row["answered"] for row in play.play()] == [5 if step == "request" else 4 for step, _ in plan]
    for (t, who), total in opened.items():
        assert np.array_equal(total, sum(words[t, k] for k in who))


def _believing(self: Any, sender: int, records: list[Any]) -> None:
    self._adverts[sender] = KeyAdvertisement(*records[0])


# again, and otherwise -------------------------------------------------------------------------------------------------
def test_a_message_that_comes_again_gets_the_same_bytes(played: Played) -> None:
    """At any step and after all of them; the same step with another content is refused."""
    play = played.play
    for one in [one for one in play.road.sent if step_of(one.command)]:
        answered = play.between.signer(SERVER).read(one.answer)
        assert list(map(bytes, answered.bodies)) == list(map(bytes, play.hears(one.to, one.message).bodies))
        (body,) = play.bodies(one)
        other = play.asks(one.to, one.command, [body[:-1] + bytes([body[-1] ^ 1])])
        assert code(other) == "other-content"
    entries = ledger_of(play.between.place / FIVE[0])
    assert [entry.state for entry in entries] == [State.PUBLISHED]


@pytest.mark.one_fast
@pytest.mark.parametrize("step", [pytest.param("roster", marks=pytest.mark.slow), "inbox", "request"])
def test_a_restarted_site_has_dropped_out_and_masks_nothing_twice(
    step: str, playing: Callable[[Experiment], Play], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = written_down(monkeypatch)
    play = playing(made("weigh", "secagg", rounds=2))

    def meets(to: str, command: Command, message: bytes) -> bytes:
        if to == FIVE[2] and isinstance(command, Mask) and (command.t, command.step) == (0, step):
            play.between.members[to].close()
            play.between.member(to)
        return message

    play.meets = meets
    left = step == "request"  # its words had left
    assert [row["answered"] for row in play.play()] == [5 if left else 4, 5]
    assert any("its keys are gone" in note for note in play.between.notes)
    assert len(words) == (10 if left else 9)


@pytest.mark.parametrize("broken", [False, True], ids=["", "broken twin"])
def test_a_round_whose_words_have_left_is_not_begun_again(
    broken: bool, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart the first message finds the round in the store. The twin keeps nothing, and pays from a ledger
    that forgets: it would mask the same operation under fresh keys.
    """
    play, site = played.play, FIVE[0]
    first = play.first(site, Round)
    member = play.between.member(site)
    monkeypatch.setitem(play.sites, site, member)
    if broken:
        monkeypatch.setattr(member.replies, "find", lambda *_: None)
        monkeypatch.setattr(member, "pay", lambda asked, command: command)
    answer = play.hears(site, first.message)
    play.between.stop(site)
    assert read_answer(answer.head.said) == Answered([0] if broken else [])
    assert len(answer.bodies) == int(broken)


@pytest.mark.slow
@pytest.mark.parametrize("uplink", ["secagg", None], ids=["masked", "plain"])
def test_a_round_that_left_just_before_a_crash_is_not_played_again_much_later(
    uplink: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The site died when its answer was durable and its ledger did not know yet. Four rounds later its store has
    forgotten the round, and a server asks for it again.
    """
    play = Play(made("weigh", *([uplink] if uplink else []), rounds=5), tmp_path, monkeypatch)
    monkeypatch.setattr(SiteAccounts, "release", lambda *_: None)
    play.play()
    first = play.first(FIVE[0], Round)
    monkeypatch.setitem(play.sites, FIVE[0], play.between.member(FIVE[0]))
    assert code(play.hears(FIVE[0], first.message)) == "answered-before"
    play.between.stop(FIVE[0])


@pytest.mark.slow
def test_messages_that_are_lost_or_come_twice_change_nothing(tmp_path: Path) -> None:
    """Every step is sent until it is answered, and taken once."""
    experiment = made("weigh", "secagg", rounds=2)
    start(experiment, tmp_path / "loop")
    between = Federated(experiment, tmp_path, carried=Unreliable)
    between.play()
    assert model_of(between.folder) == model_of(tmp_path / "loop")
    assert [row["answered"] for row in rows(between.folder)] == [5, 5]


@pytest.mark.slow
@pytest.mark.parametrize("point", ["reserved", "computed"])
def test_server_and_sites_that_all_die_open_no_round_twice(point: str, tmp_path: Path) -> None:
    """Before any words have left the round is played anew; afterwards it is over, and what it cost stays spent."""
    between = Federated(made("weigh", "secagg", rounds=3), tmp_path)
    with killed_at_server(point, 1):
        between.play()
    between.play()
    assert [row["answered"] for row in rows(between.folder)] == [5, 5 if point == "reserved" else 0, 5]
    assert [entry.state for entry in ledger_of(tmp_path / FIVE[0])] == [State.PUBLISHED] * 3


def test_masks_need_one_broadcast_for_all(played: Played) -> None:
    """Where every client is told something of its own, no digest says that all were told the same."""
    setup = simulated(BY_NAME["slaug_fl"].experiment()).setup.preparation[0]
    assert isinstance(setup.algorithm, PerClientMessages)
    with pytest.raises(UnsoundGuarantee) as refusal:
        MaskedSites(
            played.play.road,
            played.play.between.signer(SERVER),
            0,
            {},
            lambda t: setup.header("run")(t, -1),
            secure=Aggregated(),
            algorithm=setup.algorithm,
            task=setup.task,
        )
    assert refusal.value.code == "masks-need-one-broadcast"
