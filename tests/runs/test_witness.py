"""An older copy of a run that is put back in its place draws no round again: what has left is noted elsewhere, too."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from sordino import open_run, tree
from sordino.config import Experiment
from sordino.engine.server import FederatedServer
from sordino.engine.site import Site
from sordino.errors import LedgerError, RunError
from sordino.ledger.ledger import Ledger, State
from sordino.receipts import documents
from sordino.receipts.folder import RunFolder
from sordino.receipts.newest import place_of
from sordino.receipts.receipt import UNKNOWN_RUN, lifetime, spending
from sordino.receipts.verify import verify
from sordino.runs import witness
from sordino.runs.listing import listed
from sordino.runs.play import Progress
from sordino.runs.run import resume, start
from sordino.runs.witness import MISSING, UNWRITABLE
from tests.helpers.executors import answers_of
from tests.laws.cases import BY_NAME
from tests.laws.traces import Killed, die_after, put_back

CASE = BY_NAME["gaussian_gdp"]
ROUNDS = 5


def real(**more: Any) -> Experiment:
    return CASE.experiment(
        privacy=CASE.privacy | {"noise": "system"} | more, cohort={"name": "everyone"}, rounds=ROUNDS
    )


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@contextmanager
def watching() -> Iterator[Mapping[int, set[bytes]]]:
    """What client 0 sends in each round, whenever it is asked."""
    sent: dict[int, set[bytes]] = defaultdict(set)
    whole = Site.__call__

    def called(self: Site, t: int, *rest: Any) -> Iterator[Any]:
        for client, upload in whole(self, t, *rest).uploads:
            if client == 0:
                sent[t].add(b"".join(leaf.numpy().tobytes() for leaf in tree.leaves(upload)))
            yield client, upload

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Site, "__call__", answers_of(called))
        yield sent


def stopped(folder: Path, at: int, copy: Path) -> None:
    """A run that has stopped after some rounds, and a copy of it."""
    with pytest.raises(Killed):
        start(real(), folder, die_after(at))
    shutil.copytree(folder, copy)


def refused(folder: Path) -> str:
    with pytest.raises((LedgerError, RunError)) as refusal:
        resume(folder)
    assert refusal.value.fix
    return refusal.value.code


def test_no_epsilon_is_read_from_an_older_copy(tmp_path: Path) -> None:
    """A stopped run has gone on and was killed; then the folder of the stop is put back, whose receipt holds by itself:
    nobody prints its two rounds as all that was lost.
    """
    run, copy = tmp_path / "run", tmp_path / "copy"
    readers: list[Callable[[], Any]] = [
        lambda: RunFolder(run).receipt(),
        lambda: spending(run),
        lambda: lifetime(run / "ledger.sqlite"),
    ]

    def shown() -> Any:
        return open_run(run).rounds

    def stops(step: Progress) -> None:
        if step.round == 2:
            raise KeyboardInterrupt

    start(real(), run, stops)
    shutil.copytree(run, copy)
    before = [read().guarantees[0].epsilon for read in readers]  # the control
    with pytest.raises(Killed):
        resume(run, die_after(4))
    put_back(copy, run)
    for read in (*readers, shown):
        with pytest.raises(LedgerError) as refusal:
            read()
        assert refusal.value.code == "ledger-rolled-back"
    with pytest.raises(LedgerError) as refusal:
        documents.gather(run, None, code=False, anyway=False)
    assert "is an older copy" in refusal.value.why
    (row,) = (row for row in listed(tmp_path) if row.folder == "run")
    assert row.guarantee is None
    resume(run, stops, moved=True)
    assert all(read().guarantees[0].epsilon > old for read, old in zip(readers, before, strict=True))


@pytest.mark.slow
def test_an_older_copy_that_is_put_back_releases_no_round_again(tmp_path: Path) -> None:
    """The inode of every file is what it was. It stops; as spent it goes on, and its rounds are lost and paid."""
    run, copy = tmp_path / "run", tmp_path / "copy"
    with watching() as sent:
        stopped(run, 2, copy)
        with pytest.raises(Killed):
            resume(run, die_after(4))
        put_back(copy, run)
        assert refused(run) == "ledger-rolled-back"
        assert refused(run) == "ledger-rolled-back"
        ended = resume(run, moved=True)
    assert {t: len(drawn) for t, drawn in sent.items()} == dict.fromkeys(range(ROUNDS), 1)
    assert [row.lost for row in ended.metrics] == [False, False, True, True, False]
    assert any("2 rounds have left since the copy" in note for note in ended.notes)
    rows = [row for row in ended.receipt.guarantees if row.finite]
    assert {row.releases for row in rows} == {ROUNDS}
    assert verify(run) == []
    assert resume(run).receipt.guarantees == ended.receipt.guarantees


def test_a_copy_that_goes_on_beside_the_original_stops_both(tmp_path: Path) -> None:
    """It says that it has moved, which is not true: what one of them has drawn, the other one does not draw."""
    run, copy = tmp_path / "run", tmp_path / "copy"

    def beside(step: Progress) -> None:
        if step.round == 3:
            resume(copy, moved=True)

    with watching() as sent:
        stopped(run, 2, copy)
        with pytest.raises(LedgerError) as refusal:
            resume(run, beside)
        assert refusal.value.code == "released-elsewhere"
        assert refused(run) == "ledger-rolled-back"
    assert {len(drawn) for drawn in sent.values()} == {1}


MOMENTS: Mapping[str, Any] = {
    "reserved": (FederatedServer, "reserve"),
    "drawn": (Ledger, "drawn"),
    "noted": (witness, "append_line"),
    "synced": (witness, "sync"),
    "begun": (FederatedServer, "begin"),
    "computed": (FederatedServer, "receive"),
    "published": (FederatedServer, "publish"),
}


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("before", [False, True])
def test_killed_anywhere_a_run_that_is_put_back_draws_nothing_again(moment: str, before: bool, tmp_path: Path) -> None:
    """In round 3 of 5, after which a copy from before it, or one from the moment of the kill, is put back."""
    run, copy, later = tmp_path / "run", tmp_path / "copy", tmp_path / "later"
    owner, name = MOMENTS[moment]
    with watching() as sent:
        stopped(run, 2, copy)
        whole: Callable[..., Any] = getattr(owner, name)

        def dying(*arguments: Any, **named: Any) -> Any:
            if before:
                raise Killed
            whole(*arguments, **named)
            raise Killed

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, dying)
            with pytest.raises(Killed):
                resume(run)
        shutil.copytree(run, later)
        resume(run)
        for older in (later, copy):
            put_back(older, run)
            with suppress(LedgerError):
                resume(run)
            resume(run, moved=True)
            assert verify(run) == []
    assert {len(drawn) for drawn in sent.values()} == {1}


def test_a_line_that_a_kill_cut_short_is_no_line(tmp_path: Path) -> None:
    run = tmp_path / "run"
    stopped(run, 2, tmp_path / "copy")
    file = place_of(RunFolder(run))
    whole = file.read_text()
    file.write_text(whole + whole.splitlines()[-1][:50])
    assert [row.lost for row in resume(run).metrics] == [False] * ROUNDS
    assert len(file.read_text().splitlines()) == ROUNDS
    file.write_text("{}\n" + whole)
    assert refused(run) == "run-file-damaged"


@pytest.mark.slow
def test_a_receipt_says_where_nobody_would_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state folder is gone, or cannot be written: the run goes on."""
    run = tmp_path / "run"
    stopped(run, 2, tmp_path / "copy")
    shutil.rmtree(tmp_path / "state")
    ended = resume(run)
    assert MISSING in ended.receipt.assumptions
    assert verify(run) == []
    put_back(tmp_path / "copy", run)  # what was left in the folder is noted anew
    assert refused(run) == "ledger-rolled-back"
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    ended = start(real(), tmp_path / "other")
    assert UNWRITABLE in ended.receipt.assumptions
    assert verify(tmp_path / "other") == []
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))  # the control
    whole = start(real(), tmp_path / "third").receipt.assumptions
    assert not {MISSING, UNWRITABLE} & set(whole)


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 1])
def test_a_copy_from_before_the_first_release_says_that_nobody_would_notice(at: int, tmp_path: Path) -> None:
    """It is put back where the state folder is another one: its ledger knows of no release, and that may be false."""
    run, copy = tmp_path / "run", tmp_path / "copy"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FederatedServer, "reserve", dies)
        with pytest.raises(Killed):
            start(real(), run)
    if at:
        with pytest.raises(Killed):
            resume(run, die_after(at))
    shutil.copytree(run, copy)
    assert MISSING not in resume(run).receipt.assumptions  # the control
    put_back(copy, run)
    shutil.rmtree(tmp_path / "state")
    assert MISSING in resume(run).receipt.assumptions
    assert MISSING in resume(run).receipt.assumptions
    assert verify(run) == []


def dies(*arguments: Any) -> None:
    raise Killed


@pytest.mark.one_fast
@pytest.mark.parametrize("how", ["gone", "full"])
def test_a_state_folder_that_fails_on_the_way_is_told(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken away in round 2, or not to be written there for once: the run goes on, and later rounds are noted."""
    append, file = witness.append_line, list[Path]()

    def fails(place: Path, *rest: Any) -> None:
        file.append(place)
        if len(file) == 3 and how == "full":
            place.write_text(place.read_text() + "half a li")
            raise OSError(28, "No space left on device")
        append(place, *rest)

    def away(step: Progress) -> None:
        if step.round == 2 and how == "gone":
            shutil.rmtree(tmp_path / "state")

    monkeypatch.setattr(witness, "append_line", fails)
    ended = start(real(), tmp_path / "run", away)
    assert (MISSING if how == "gone" else UNWRITABLE) in ended.receipt.assumptions
    assert len(file[-1].read_text().splitlines()) == ROUNDS - (2 if how == "gone" else 1)
    assert verify(tmp_path / "run") == []


@pytest.mark.slow
def test_noise_that_no_budget_pays_for_is_not_drawn_again_either(tmp_path: Path) -> None:
    """Noise as published: its multiplier is no offer to a budget, and its rows are finite in a simulation."""
    run, copy, case = tmp_path / "run", tmp_path / "copy", BY_NAME["cdp_fl"]
    made = case.experiment(privacy={"noise": "system"}, algorithm=case.algorithm | {"central_epsilon": 1e-3})
    with pytest.raises(Killed):
        start(made, run, die_after(1))
    shutil.copytree(run, copy)
    ended = resume(run)
    assert all(row.finite for row in ended.receipt.guarantees if (row.unit, row.adversary) == ("client", "public"))
    put_back(copy, run)
    assert refused(run) == "ledger-rolled-back"


def test_noise_that_comes_again_needs_no_witness(tmp_path: Path) -> None:
    """A seeded run, and a real one that promises nothing."""
    start(CASE.experiment(), tmp_path / "seeded")
    open_ = BY_NAME["fedavg"].experiment(privacy={"noise": "system"})
    start(open_, tmp_path / "open")
    assert not (tmp_path / "state").exists()


def test_what_is_noted_is_for_the_users_eyes_alone(tmp_path: Path) -> None:
    start(real(), tmp_path / "run")
    file = place_of(RunFolder(tmp_path / "run"))
    assert file.is_relative_to(tmp_path / "state" / "sordino")
    assert [oct(path.stat().st_mode & 0o777) for path in (file, file.parent)] == ["0o600", "0o700"]


def test_what_is_noted_first_lies_on_the_disk_with_its_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(witness, "sync", synced.append)
    start(real(), tmp_path / "run")
    file = place_of(RunFolder(tmp_path / "run"))
    assert synced[:4] == [file, *list(file.parents)[:3]]
    assert set(synced[4:]) == {file}  # the folders are there by then


def test_an_older_copy_of_a_shared_ledger_gives_no_budget_back(tmp_path: Path) -> None:
    """Three runs on one ledger, which is for two rounds of each client. After the first one a copy is made, and put
    back after the second one: the third finds out, and as spent nothing is left for it.
    """
    ledger = tmp_path / "shared.sqlite"
    made = CASE.experiment(
        privacy=CASE.privacy | {"noise": "system", "ledger": str(ledger)}, cohort={"name": "everyone"}, rounds=2
    )
    with pytest.raises(Killed):
        start(made, tmp_path / "first", die_after(1))
    shutil.copy(ledger, tmp_path / "copy.sqlite")
    start(made, tmp_path / "second")
    ledger.write_bytes((tmp_path / "copy.sqlite").read_bytes())
    for left in (Path(f"{ledger}-wal"), Path(f"{ledger}-shm")):
        left.unlink(missing_ok=True)
    with pytest.raises(LedgerError) as refusal:
        start(made, tmp_path / "third")
    assert refusal.value.code == "ledger-rolled-back"
    with pytest.raises(LedgerError) as refusal:
        lifetime(ledger)
    assert refusal.value.code == "ledger-rolled-back"
    ended = resume(tmp_path / "third", moved=True)
    assert UNKNOWN_RUN not in lifetime(ledger).assumptions
    next(place_of(RunFolder(tmp_path / "first")).parent.iterdir()).unlink()
    assert UNKNOWN_RUN in lifetime(ledger).assumptions
    assert [row.answered for row in ended.metrics] == [0, 0]
    with Ledger.as_founded(ledger) as books:
        second = RunFolder(tmp_path / "second").environment.run
        assert books.state(f"{second}/0") is State.DRAWN
        assert all(left is not None and max(left) <= 1 for left in map(books.remaining, books.balances()))


def test_two_copies_of_a_shared_ledger_do_not_pay_for_two_runs_at_once(tmp_path: Path) -> None:
    """Both begin before either has released anything. On one ledger they go on beside each other."""
    files = [tmp_path / "shared.sqlite", tmp_path / "copy.sqlite"]
    made = (CASE.privacy | {"noise": "system", "ledger": str(file)} for file in files)
    one, other = (CASE.experiment(privacy=privacy, rounds=2) for privacy in made)
    whole = witness.ReleasedOperation.of

    def beside(second: Experiment, name: str) -> str:
        """The second run is about to note its first round, and the first one releases a round before it does."""
        first, begun = tmp_path / f"{name}-first", list[None]()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FederatedServer, "reserve", dies)
            with pytest.raises(Killed):
                start(one, first)
        for kind in ("", ".key"):
            shutil.copy(f"{files[0]}{kind}", f"{files[1]}{kind}")

        def of(*about: Any) -> Any:
            if not begun:
                begun.append(None)
                with pytest.raises(Killed):
                    resume(first, die_after(1))
            return whole(*about)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(witness.ReleasedOperation, "of", of)
            try:
                start(second, tmp_path / name)
            except LedgerError as error:
                return error.code
        return ""

    assert beside(other, "other") == "ledger-rolled-back"
    assert RunFolder(tmp_path / "other").metrics() == []
    shutil.rmtree(tmp_path / "state")
    assert beside(one, "one") == ""  # the control


def test_a_home_that_nobody_has_is_no_reason_to_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert place_of_home(tmp_path) == tmp_path / "home" / ".local" / "state" / "sordino" / "ledgers"
    assert "XDG_STATE_HOME" not in os.environ


def place_of_home(tmp_path: Path) -> Path:
    start(real(), tmp_path / "run")
    return place_of(RunFolder(tmp_path / "run")).parents[1]
