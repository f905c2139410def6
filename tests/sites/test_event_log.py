"""events.jsonl: what happened between sites, once and in order; and nothing of a hidden cohort where others may read."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, get_args

import pytest
from rich.console import Console

from sordino.errors import RunError
from sordino.ledger.files import append_line
from sordino.receipts.folder import RunFolder
from sordino.receipts.signature import generate
from sordino.runs.listing import events, public_events, sites
from sordino.sites import commands as deploying
from sordino.sites import event_log
from sordino.sites.connecting import Standing
from sordino.sites.event_log import EventLog
from sordino.transport.run_events import OF_NOBODY, RunEvent, What
from tests.helpers.command_line import spoken
from tests.helpers.in_process import InProcess

SECRET = RunEvent(
    event="answered", site="secret-site", sites=("secret-site",), round=3, count=1, of=2, why="secret words"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "private").mkdir(mode=0o700)
    return tmp_path


def test_what_is_written_is_read_again_with_its_time(folder: Path) -> None:
    heard: list[RunEvent] = []
    log = EventLog(folder, real=False, hidden=False, hears=heard.append)
    for what in get_args(What):
        log(SECRET.beside(event=what))
    assert events(RunFolder(folder)) == public_events(RunFolder(folder)) == heard
    assert [event.event for event in heard] == list(get_args(What))
    assert all(event.at.endswith("Z") and event.words for event in heard)
    assert sorted(event.at for event in heard) == [event.at for event in heard]


@pytest.mark.parametrize("real", [True, False])
def test_no_reason_that_another_wrote_makes_the_log_unreadable_or_huge(real: bool, folder: Path) -> None:
    """A site refuses in a JSON of a mebibyte, which can say half a surrogate; the dashboard showed nothing any more."""
    log = EventLog(folder, real=real, hidden=False)
    for why in ("half of a \ud800", "x" * (1 << 20), "whole"):
        log(SECRET.beside(event="refused", why=why))
    found = [event.why for event in events(RunFolder(folder))]
    assert (found[0], found[2]) == ("half of a ?", "whole")
    assert all(len(one) <= event_log.LONGEST for one in found)


def test_many_threads_write_whole_lines(folder: Path) -> None:
    log = EventLog(folder, real=False, hidden=False)
    threads = [threading.Thread(target=lambda i=i: [log(SECRET.beside(round=i)) for _ in range(50)]) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(event.round or 0 for event in events(RunFolder(folder))) == sorted(list(range(4)) * 50)


def test_a_line_that_a_kill_cut_short_is_dropped(folder: Path) -> None:
    log = EventLog(folder, real=False, hidden=False)
    log(SECRET)
    with open(folder / "events.jsonl", "a") as file:
        file.write('{"at": "2026-01')
    assert len(events(RunFolder(folder))) == 1
    log(SECRET)
    assert len(events(RunFolder(folder))) == 2


def test_with_real_noise_the_whole_is_for_its_owner_alone(folder: Path) -> None:
    log = EventLog(folder, real=True, hidden=False)
    log(SECRET)
    assert [event.why for event in events(RunFolder(folder))] == ["secret words"]
    assert [event.why for event in public_events(RunFolder(folder))] == [""]
    assert (folder / "private" / "events.jsonl").stat().st_mode & 0o777 == 0o600


def test_of_a_hidden_cohort_nothing_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EventLog(folder, real=True, hidden=True)
    for what in get_args(What):
        log(SECRET.beside(event=what))
    assert {event.event for event in public_events(RunFolder(folder))} == {"started", "stopped", "over"}
    assert len(events(RunFolder(folder))) == len(get_args(What))
    # the broken twin: somebody thinks that who answered may be told
    monkeypatch.setattr(event_log, "OF_NOBODY", OF_NOBODY | {"answered"})
    EventLog(folder, real=True, hidden=True)(SECRET)
    assert "answered" in {event.event for event in public_events(RunFolder(folder))}


def test_a_log_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    heard: list[RunEvent] = []
    EventLog(tmp_path / "missing", real=True, hidden=False, hears=heard.append)(SECRET)
    assert len(heard) == 1


def test_why_a_process_ended_is_written(folder: Path) -> None:
    with pytest.raises(RunError), EventLog(folder, real=False, hidden=False).kept(["a", "b"]):
        raise RunError("the disk is full")
    first, last = events(RunFolder(folder))
    assert (first.event, first.sites, last.event, last.why) == ("started", ("a", "b"), "stopped", "the disk is full")


def test_who_comes_and_goes_is_seen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "LOOK", 0.001)
    there, carrier, seen = frozenset[str](), InProcess({}), threading.Event()
    monkeypatch.setattr(carrier, "peers", lambda: there)
    log = EventLog(folder, real=False, hidden=False, hears=lambda event: seen.set())
    with log.watching(carrier):
        for now in ({"a"}, {"a", "b"}, {"b"}):
            there = frozenset(now)
            assert seen.wait(10)
            seen.clear()
    told = [(event.event, event.site) for event in events(RunFolder(folder))]
    assert told == [("connected", "a"), ("connected", "b"), ("cut off", "a")]


def test_a_site_writes_down_where_it_stands_once(folder: Path) -> None:
    said: list[tuple[Standing, str]] = []
    log = EventLog(folder, real=False, hidden=False)
    say = log.standing(lambda standing, why: said.append((standing, why)))
    turns: list[tuple[Standing, str]] = [
        ("waiting", ""),
        ("working", ""),
        ("waiting", ""),
        ("cut off", "x"),
        ("cut off", "x"),
        ("waiting", ""),
    ]
    for turn in turns:
        say(*turn)
    assert said == turns
    assert [event.event for event in events(RunFolder(folder))] == ["connected", "cut off", "connected"]


def test_how_sites_stand_follows_from_events() -> None:
    def at(*told: RunEvent, alive: bool = True) -> dict[str, tuple[str, int, int]]:
        return {site: (now.words, now.asked, now.answered) for site, now in sites(told, alive).items()}

    begin = [RunEvent(event="started", sites=("a", "b")), RunEvent(event="connected", site="a", at="t")]
    asked = RunEvent(event="asked", sites=("a",), round=2)
    assert at(*begin) == {"a": ("connected", 0, 0), "b": ("not there yet", 0, 0)}
    assert at(*begin, asked)["a"] == ("connected", 2, 0)
    assert at(*begin, asked, RunEvent(event="cut off", site="a", at="t"))["a"] == ("not connected", 2, 0)
    assert at(*begin, asked, *begin)["a"] == ("connected", 2, 0)
    assert at(*begin, asked, begin[0])["a"] == ("not there yet", 2, 0)  # the server was killed and has begun anew
    assert at(*begin, alive=False)["a"] == ("not connected", 0, 0)


def test_a_line_that_was_cut_short_goes_when_the_next_one_is_written(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    for before, after in ((b"", b""), (b"1\n2\n", b"1\n2\n"), (b"1\n2", b"1\n"), (b"1", b"")):
        file.write_bytes(before)
        append_line(file, "new")
        assert file.read_bytes() == after + b"new\n"


def test_a_terminal_that_goes_away_ends_nothing() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError("gone")

    deploying._noting(Console(file=Gone()))("somebody came")
    deploying._standing(Console(file=Gone()))("cut off", "")


def test_what_strangers_cause_fills_no_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty lines at once, then one a minute that says how many there were. What sites do is told in full."""
    clock, heard = [0.0], list[RunEvent]()
    monkeypatch.setattr(event_log.time, "monotonic", lambda: clock[0])
    log = EventLog(folder, real=True, hidden=False, hears=heard.append)
    for i in range(10_000):
        clock[0] = i / 100  # a hundred seconds
        log(RunEvent(event="turned away", why=f"ipv4:192.0.2.{i % 250}: no"))
    log(RunEvent(event="answered", site="a", round=1))
    assert len(heard) == event_log.FEW + 1 + 1
    assert sum(event.more + 1 for event in heard[:-1]) == 6001  # the rest is in the next line
    clock[0] += 60
    log(RunEvent(event="displaced", site="a"))
    assert heard[-1].words.endswith("(and 3999 more that are not listed)")
    assert (folder / "private" / "events.jsonl").stat().st_size < 10_000
    shown = public_events(RunFolder(folder))
    assert {"answered", "turned away"} <= {event.event for event in shown}
    assert not any("192.0.2" in event.words for event in shown)  # addresses are private


@pytest.mark.parametrize("verb", ["serve", "join"])
def test_with_json_each_event_is_a_line_of_json_as_in_the_log(
    verb: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a service a program reads standard error: all events, those too for which a terminal has a bar."""

    def happens(hears: Callable[[RunEvent], None]) -> NoReturn:
        log = EventLog(folder, real=False, hidden=False, hears=hears)
        for what in ("started", "asked", "waiting", "failed"):
            log(SECRET.beside(event=what))
        raise RunError("enough", code="enough")

    monkeypatch.setattr("sordino.sites.serve.serve", lambda options, watch, hears, invited: happens(hears))
    monkeypatch.setattr("sordino.sites.join.proposed", lambda options: options)
    monkeypatch.setattr("sordino.sites.join.join", lambda asked, consent, stop, say, hears: happens(hears))
    generate(folder / "key")
    (folder / "study.toml").write_text("rounds = 1\n")
    one = ["--identity", folder / "key", folder / "study.toml"]
    options = ["--list", "x", "--agreement", "x"] if verb == "serve" else ["--data", "x", "--name", "a"]
    said = spoken(capsys, monkeypatch, verb, *one, *options, "--json")
    written = (folder / "events.jsonl").read_text().splitlines()
    lines = said.err.splitlines()
    assert lines[: len(written)] == written
    assert [json.loads(line)["event"] for line in written] == ["started", "asked", "waiting", "failed"]
    quiet = spoken(capsys, monkeypatch, verb, *one, *options, "--json", "--quiet")
    assert not any(line in quiet.err for line in (folder / "events.jsonl").read_text().splitlines())
    people = spoken(capsys, monkeypatch, verb, *one, *options)
    assert "warning: " in people.err
    assert '{"' not in people.err


def test_what_another_side_says_moves_no_cursor() -> None:
    terminal = io.StringIO()
    refused = RunEvent(event="refused", site="a", why="\x1b[2J\x1b[Hround 20/20 \u202edone")
    deploying._noting(Console(file=terminal, width=200))(refused.words)
    assert terminal.getvalue().endswith("a: ?[2J?[Hround 20/20 ?done\n")
