"""Encrypted sums between sites: the simulation's bits, nothing in clear on the way, a key holder that opens one sum of
enough uploads a round, and sites that encrypt under no other key than the holder's.
"""

from __future__ import annotations

import hashlib
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest

from sordino.config import Experiment
from sordino.engine.commands import Begin, Command, Encrypt, End, OpenSum, Publish, Refused, Round, Store, read_answer
from sordino.engine.executor import flat
from sordino.errors import RunError, SordinoError
from sordino.privacy.uplink.fixed_point import Layout
from sordino.receipts.folder import RunFolder
from sordino.runs.run import start
from sordino.runs.setup import RunSetup
from sordino.runs.simulation import simulated
from sordino.secagg import encrypted, lattice
from sordino.secagg.sealed import Secret
from sordino.sites import key_holder, membership
from sordino.sites.agreement_file import invite
from sordino.sites.connecting import InvitedOptions
from sordino.sites.key_holder import KeyHolder, hold
from sordino.sites.secure_sums import HOLDER, kind_of_sites
from sordino.transport import request_handler
from tests.helpers.between_sites import SERVER, Federated, ledger_of, model_of
from tests.helpers.in_process import InProcess
from tests.helpers.scripted_messages import Play, code, silent
from tests.stories.secure_sums.sums import CLIP, TEST_KEY, Table, key_for_tests, made, rows

AUTHORITY: Table = {"keys": "authority", "at_least": 4}
BFV: Table = {"name": "bfv", **AUTHORITY}
NOISED: Table = {
    "uplink": {"client": [CLIP, BFV], "server": [{"name": "noise", "neighbours": "zero_out"}]},
    "privacy": {"epsilon": 8.0, "delta": 1e-3},
}
HIDDEN: Table = {
    "partition": {"scheme": "iid", "clients": 60},
    "cohort": {"name": "poisson", "rate": 0.5},
    "uplink": {"client": [{"name": "clip", "radius": 0.5}, {"name": "noise_share", "survivors": 8}, "secagg"]},
    "privacy": {"epsilon": 8.0, "delta": 1e-3},
}
STEEP: Table = {"rounds": 4, "model": {"name": "mlp"}, "algorithm": {"lr": 1.0, "local_steps": 20}}
FIVE = [f"site-{k}" for k in range(5)]


@lru_cache
def lattice_key() -> Secret:
    return lattice.generate("bfv")


@pytest.fixture(autouse=True)
def one_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are made once for all of these tests, each of which is on a machine that has opened nothing yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setitem(encrypted.GENERATE, "bfv", lambda stage: lattice_key())
    monkeypatch.setitem(encrypted.GENERATE, "paillier", lambda stage: key_for_tests())


class Played(NamedTuple):
    play: Play
    integers: list[np.ndarray]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """A run of one round, over and asked again by many tests."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(encrypted.GENERATE, "bfv", lambda stage: lattice_key())
        play = Play(one_round(), tmp_path_factory.mktemp("played") / "between", patched)
        integers = written_down(patched)
        play.play()
    return Played(play, integers)


def holder_in(play: Play, folder: Path) -> KeyHolder:
    """The key holder, as it comes back from this folder."""
    whole = RunSetup(play.between.experiment, play.between.agreed.public(play.between.experiment, None))
    return KeyHolder(folder, whole, play.between.signer(HOLDER))


def one_round(**tables: Any) -> Experiment:
    return made("weigh", BFV, rounds=1, **tables)


@pytest.mark.parametrize(
    "experiment",
    [
        pytest.param(made(**NOISED, rounds=1), id="noise of the server"),
        *(
            pytest.param(made("weigh", *stages, **tables), id=name, marks=pytest.mark.slow)
            for name, stages, tables in (
                ("bfv", [BFV], {}),
                ("paillier", [{**TEST_KEY, **AUTHORITY}], {}),
                ("rates that change", [{"name": "block_sum", "rate": "dynamic"}, BFV], STEEP),
            )
        ),
    ],
)
def test_ciphers_between_sites_train_what_the_simulation_trains(experiment: Experiment, tmp_path: Path) -> None:
    start(experiment, tmp_path / "loop")
    between = Federated(experiment, tmp_path, per_site=2)
    between.play()
    assert model_of(between.folder) == model_of(tmp_path / "loop")
    assert ledger_of(between.folder) == ledger_of(tmp_path / "loop")
    assert {row["answered"] for row in rows(between.folder)} == {5}


def written_down(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """The integers of every client before they are encrypted."""
    seen: list[np.ndarray] = []

    def watched(upload: Any) -> Any:
        seen.append(flat(upload))
        return seen[-1]

    monkeypatch.setattr(request_handler, "flat", watched)
    return seen


@pytest.mark.slow
def test_no_message_from_a_site_holds_its_integers(played: Played) -> None:
    assert len(played.integers) == 5
    assert played.play.found_in_clear(played.integers) == 0


@pytest.mark.slow
def test_integers_that_are_not_encrypted_are_found(
    playing: Callable[[Experiment], Play], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broken twin of the test before."""
    seen = written_down(monkeypatch)

    def in_clear(self: request_handler.RequestHandler, site: Any, asked: Any, command: Round) -> Iterator[bytes]:
        for _, upload in site.uploads(command, asked.messages):
            yield request_handler.flat(upload).tobytes()

    monkeypatch.setattr(request_handler.RequestHandler, "_uploads", in_clear)
    play = playing(one_round())
    assert play.play()[0]["answered"] == 0  # what is no ciphertext does not count
    assert play.found_in_clear(seen) == 5


# the key --------------------------------------------------------------------------------------------------------------
@pytest.mark.one_fast
@pytest.mark.parametrize("broken", [False, True], ids=["", "broken twin"])
def test_a_site_encrypts_under_no_key_but_the_holders(
    broken: bool, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that hands out a key of its own would read every upload. The twin believes it."""
    site, mine = played.play.sites[FIVE[0]], lattice.generate("bfv").public.pack()
    if broken:
        monkeypatch.setattr(membership, "pinned", lambda key, digest: key)
    for key, digest in ((mine, site.key_digest), (lattice_key().public.pack(), "")):
        monkeypatch.setattr(site, "key_digest", digest)
        answer = played.play.asks(FIVE[0], Encrypt(), [key])
        assert answer.head.said["do"] == "done" if broken else code(answer) == "other-public-key"


def test_the_secret_stays_with_its_holder(played: Played) -> None:
    folder = played.play.between.place / HOLDER
    assert stat.S_IMODE((folder / "secret.key").stat().st_mode) == 0o600
    secret = (folder / "secret.key").read_bytes()[-200:]
    assert all(secret not in one.answer for one in played.play.road.sent)
    (public,) = played.play.asks(HOLDER, Publish(), []).bodies
    assert bytes(public) == lattice_key().public.pack()
    assert holder_in(played.play, folder).digest == hashlib.sha256(public).hexdigest()  # after a restart, too


# what is opened -------------------------------------------------------------------------------------------------------
def test_the_holder_opens_no_sum_of_too_few_and_none_of_another_round(played: Played) -> None:
    asked, told = played.play.first(HOLDER, OpenSum), list[str]()
    holder = played.play.between.holder
    assert holder is not None
    holder.note = told.append
    (total,) = played.play.bodies(asked)
    (upload,) = played.play.between.signer(SERVER).read(played.play.first(FIVE[0], Round).answer).bodies
    for command, message, why in (
        (OpenSum(0, 5), bytes(upload), "sum-of-too-few"),  # one upload, and a number that is not true
        (OpenSum(0, 3), total, "sum-of-too-few"),
        (OpenSum(1, 5), total, "no-such-sum"),
        (OpenSum(-1, 5), total, "no-such-sum"),
        (OpenSum(0, 5), b"no ciphertext", "malformed-ciphertext"),
    ):
        assert code(played.play.asks(HOLDER, command, [message])) == why
    assert code(played.play.asks(HOLDER, Begin(), [total])) == "other-messages"
    assert code(played.play.asks(HOLDER, Store(), [total])) == "not-for-key-holders"
    assert code(played.play.asks(HOLDER, Store(), [total])) == "not-for-key-holders"
    assert len(told) == len(set(told)) >= 6  # the forger is not the only one who knows, and the same is told once
    assert "a key holder is asked to hand" in told[-1]


def test_a_second_sum_of_a_round_is_not_opened_not_even_after_a_restart(
    played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The difference of two sums would be one upload."""
    (total,) = played.play.bodies(played.play.first(HOLDER, OpenSum))
    uploads = [
        played.play.between.signer(SERVER).read(played.play.first(site, Round).answer).bodies[0] for site in FIVE
    ]
    public, adder = lattice_key().public, encrypted.Adder(lattice_key().public)
    for upload in uploads[1:]:
        adder.take(bytes(upload), public.header(0, 650, Layout()))
    other, folder = adder.total().pack(), tmp_path / "copy"
    assert code(played.play.asks(HOLDER, OpenSum(0, 4), [other])) == "opened-before"
    shutil.copytree(played.play.between.place / HOLDER, folder)
    forgets = holder_in(played.play, folder)
    message = played.play.between.signer(SERVER).write(HOLDER, 0, asdict(OpenSum(0, 4)), [other])
    read = played.play.between.signer(SERVER).read
    begun(played.play, forgets)
    assert code(read(forgets.answer(message))) == "opened-before"
    again = read(played.play.first(HOLDER, OpenSum).answer)
    assert list(map(bytes, again.bodies)) == list(map(bytes, played.play.asks(HOLDER, OpenSum(0, 5), [total]).bodies))
    (folder / "opened.json").unlink()  # an older copy that was put back: the user's state folder knows
    begun(played.play, knows := holder_in(played.play, folder))
    assert code(read(knows.answer(message))) == "opened-before"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    (folder / "opened.json").unlink(missing_ok=True)
    old = holder_in(played.play, folder)  # only the server knows how far it had come
    assert code(read(old.answer(message))) == "begin-first"
    assert begun(played.play, old, again.signed) == "key-holder-rolled-back"
    assert old.head.behind is not None
    assert code(read(old.answer(message))) == "begin-first"
    forgets = holder_in(played.play, folder)  # control: a server that hides what it was signed has it opened
    begun(played.play, forgets)
    assert read(forgets.answer(message)).bodies


def test_a_holder_signs_no_sum_that_its_full_disk_did_not_take(
    played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart it would be behind its own signature."""
    shutil.copytree(played.play.between.place / HOLDER, folder := tmp_path / "copy")
    place = (holder := holder_in(played.play, folder)).place
    monkeypatch.setattr(key_holder, "atomic_write", Mock(side_effect=RunError("disk full")))
    with pytest.raises(RunError, match="disk full"):
        holder._once("0/1", 64 * "2")
    assert holder.place == place != ""


def begun(play: Play, holder: KeyHolder, signed: bytes = b"") -> str:
    """Begins with the holder: it is shown what it says now, or this head. The code of a refusal."""
    signer = play.between.signer(SERVER)
    first = signer.read(holder.answer(signer.write(HOLDER, 0, asdict(Begin()))))
    again = signer.write(HOLDER, 0, asdict(Begin(answered=True)), [signed or first.signed])
    answer = read_answer(signer.read(holder.answer(again)).head.said)
    return answer.code if isinstance(answer, Refused) else ""


def test_a_holder_that_was_started_again_opens_nothing_before_it_was_shown_what_it_has_signed(
    played: Played, tmp_path: Path
) -> None:
    """And its owner is told where the server never shows it. The control: who has opened nothing has signed nothing."""
    (total,) = played.play.bodies(played.play.first(HOLDER, OpenSum))
    shutil.copytree(played.play.between.place / HOLDER, folder := tmp_path / "copy")
    signer, told = played.play.between.signer(SERVER), list[str]()
    begin, opens = (
        signer.write(HOLDER, 0, asdict(command), bodies)
        for command, bodies in ((Begin(), []), (OpenSum(0, 5), [total]))
    )
    holder = holder_in(played.play, folder)
    holder.note = told.append
    for many in (0, 1, 2):
        assert code(signer.read(holder.answer(opens))) == "begin-first"
        assert len(told) == (many == 2)
        holder.answer(begin)
    assert "has not received `begin`" in told[0]
    assert begun(played.play, holder) == ""
    assert signer.read(holder.answer(opens)).bodies


@pytest.mark.slow
def test_a_holder_that_is_started_again_in_the_middle_of_a_run_goes_on(playing: Callable[[Experiment], Play]) -> None:
    play = playing(made("weigh", BFV, rounds=2))
    came = list[str]()

    def meets(to: str, command: Command, message: bytes) -> bytes:
        if to == HOLDER:
            came.append(command.do)
        if isinstance(command, OpenSum) and command.t == 1 and came.count("open") == 2:
            play.between.holder = holder_in(play, play.between.place / HOLDER)
        return message

    play.meets = meets
    assert [row["answered"] for row in play.play()] == [5, 5]
    assert came[came.index("open") :][:5] == ["open", "open", "begin", "publish", "open"]


def test_a_holder_that_was_told_the_end_knows_it_after_a_restart(played: Played, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(played.play.between.place / HOLDER, folder)
    before = holder_in(played.play, folder)
    assert not before.was_over
    before.answer(played.play.between.signer(SERVER).write(HOLDER, 0, asdict(End(0)), []))
    after = holder_in(played.play, folder)
    assert after.was_over
    assert not after.over  # a server that does not know that it was told tells it again


def test_a_restarted_site_sends_the_ciphertext_that_it_sent(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = played.play.first(FIVE[1], Round)
    monkeypatch.setitem(played.play.sites, FIVE[1], played.play.between.member(FIVE[1]))
    before = played.play.between.signer(SERVER).read(asked.answer).bodies
    assert list(map(bytes, before)) == list(map(bytes, played.play.hears(FIVE[1], asked.message).bodies))
    played.play.between.stop(FIVE[1])


@pytest.mark.slow
def test_without_enough_uploads_or_without_the_holder_nothing_is_opened(playing: Callable[[Experiment], Play]) -> None:
    play = playing(made("weigh", BFV, rounds=3))
    script = silent({(0, "round"): {FIVE[0]}, (1, "round"): set(FIVE[:2])})
    play.meets = lambda to, command, message: (
        None if isinstance(command, OpenSum) and command.t == 2 else script(to, command, message)
    )
    found = play.play()
    assert [row["answered"] for row in found] == [4, 0, 0]
    assert [row["secure"].get("aborted", "")[:20] for row in found] == [
        "",
        "3 uploads came, the ",
        "the key-holder has n",
    ]


def test_two_holders_of_one_key_do_not_run_beside_each_other(
    playing: Callable[[Experiment], Play], tmp_path: Path
) -> None:
    """Each would know only the sums that it has opened itself."""
    between, folder, file = playing(made("weigh", BFV, rounds=1)).between, tmp_path / "holder", tmp_path / "run.toml"
    folder.mkdir()
    invitation = invite(between.run, "localhost:9", between.keys[SERVER], between.experiment, between.agreed).toml()
    file.write_text(invitation)
    asked = InvitedOptions(invitation=file, identity=between.keys[HOLDER], folder=folder, rehearsal=True)
    with RunFolder(folder).locked(), pytest.raises(RunError) as refusal:
        hold(asked, lambda: True, lambda standing, why: None, lambda text: None)
    assert refusal.value.code == "run-in-use"
    assert not hold(asked, lambda: True, lambda standing, why: None, lambda text: None)  # stopped, and not over


def test_a_server_that_waits_for_the_holder_stops_when_it_is_asked(
    playing: Callable[[Experiment], Play], tmp_path: Path
) -> None:
    side = playing(made("weigh", BFV, rounds=1)).between.half(InProcess({}))  # nobody is there
    asked = iter([False, False, True])
    side.post.stopped = lambda: next(asked)
    with ExitStack() as stack, pytest.raises(KeyboardInterrupt):
        side.executor(tmp_path, tmp_path, "run", None, None, stack).gather()


# what is refused ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("why", "stage", "tables"),
    [
        ("shared-key-between-sites", "bfv", {}),
        ("shared-key-between-sites", "ckks", {}),
        ("probe-between-sites", {**BFV, "mode": "probe"}, {}),
        ("rehearsed-between-sites", BFV, {"chaos": {"drop": 0.1}}),
        ("rehearsed-between-sites", "secagg", {"stragglers": {"share": 0.2, "policy": "late"}}),
        ("strict-between-sites", "strict", {}),
        ("broken-rounds-tell", "secagg", HIDDEN),
    ],
)
def test_what_only_a_simulation_can_do_is_refused(why: str, stage: Any, tables: Table) -> None:
    stages = [{"name": "quantise", "strict": True}, "secagg"] if stage == "strict" else [stage]
    tables = {"uplink": {"client": ["weigh", *stages]}} | tables
    with pytest.raises(SordinoError) as refusal:
        kind_of_sites(simulated(made(**tables)).setup)
    assert refusal.value.code == why
    assert refusal.value.fix


def test_a_run_without_ciphers_needs_no_key_holder(playing: Callable[[Experiment], Play], tmp_path: Path) -> None:
    play = playing(made("weigh", "secagg"))
    with pytest.raises(RunError) as refusal:
        KeyHolder(
            tmp_path / "nobody",
            RunSetup(play.between.experiment, play.between.agreed.public(play.between.experiment, None)),
            play.between.signer("site-0"),
        )
    assert refusal.value.code == "no-key-needed"


def test_no_site_holds_the_key(played: Played) -> None:
    setup = played.play.between.half(played.play.road).setup
    with pytest.raises(SordinoError) as refusal:
        kind_of_sites(setup)(
            played.play.road, played.play.between.signer(SERVER), 0, {HOLDER: [0]}, setup.header("run"), secure=None
        )
    assert refusal.value.code == "key-holder-has-clients"
