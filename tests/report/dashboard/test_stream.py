"""The stream: every event once, in order, whatever breaks in between, and the page as it stands."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from sordino.metrics import RoundRow
from sordino.report.dashboard import run_state as watching
from sordino.report.dashboard.page import Cursor, Listener, cursor, of_event
from sordino.report.dashboard.run_state import RunMoment, WatchedRun
from sordino.sites.event_log import EventLog
from sordino.transport.run_events import RunEvent

EVENTS = tuple(RunEvent(event="answered", site=f"site-{i}", round=i, at=f"2026-01-01T00:00:{i:02}Z") for i in range(7))
ROWS = tuple(RoundRow(round=i + 1, bytes_down=i, bytes_up=2 * i) for i in range(5))


@pytest.fixture
def run(simulated: Path) -> WatchedRun:
    return WatchedRun(simulated)


def heard(told: Listener, run: WatchedRun, now: RunMoment) -> list[tuple[str, str, Any]]:
    """Messages as a browser takes them in: id, name, data."""
    messages = []
    for block in "".join(told.more(run, now)).split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        messages.append((fields["id"], fields["event"], json.loads(fields["data"])))
    return messages


def of(name: str, messages: list[tuple[str, str, Any]]) -> list[Any]:
    return [data for _, event, data in messages if event == name]


def standing(events: int, rows: int) -> RunMoment:
    return RunMoment("running", ROWS[:rows], EVENTS[:events])


def test_every_event_comes_once_and_in_order_wherever_the_connection_breaks(run: WatchedRun) -> None:
    """The law of the stream: at any message a browser may come again with the last id that it has seen."""
    whole = heard(Listener(Cursor()), run, standing(7, 5))
    events = [of_event(event) for event in EVENTS]
    assert of("event", whole) == events
    assert "round 5 of" in of("state", whole)[-1]["status"]
    for broken in range(len(whole)):
        before = whole[: broken + 1]
        after = heard(Listener(Cursor.read(before[-1][0])), run, standing(7, 5))
        assert of("event", before + after) == events
        assert "round 5 of" in of("state", before + after)[-1]["status"]
        assert not of("anew", after)


def test_a_run_that_grows_is_told_bit_by_bit(run: WatchedRun) -> None:
    told, found = Listener(Cursor()), []
    for events, rows in ((0, 0), (2, 0), (2, 1), (7, 5), (7, 5)):
        found += heard(told, run, standing(events, rows))
    assert of("event", found) == [of_event(event) for event in EVENTS]
    assert [part["status"] for part in of("state", found) if "charts" in part][1:] == [
        part["status"] for part in of("state", found)[-2:]
    ]
    assert heard(told, run, standing(7, 5)) == []  # and nothing is said where nothing has changed


def test_a_run_that_took_rounds_back_is_drawn_again(run: WatchedRun) -> None:
    """A resumed run goes on from its checkpoint: with fewer rows, or with another one in the same place."""
    other = (*ROWS[:2], ROWS[2].beside(bytes_up=99))
    for now in (RunMoment("running", ROWS[:2], EVENTS), RunMoment("running", other, EVENTS)):
        told = Listener(cursor(standing(7, 3)))
        heard(told, run, standing(7, 3))
        (state,) = of("state", heard(told, run, now))
        assert {"cards", "charts"} <= set(state)


def test_other_events_are_told_anew(run: WatchedRun) -> None:
    told = Listener(cursor(standing(7, 3)))
    now = RunMoment("running", ROWS[:3], EVENTS[:6])
    found = heard(told, run, now)
    assert found[0][1] == "anew"
    assert of("event", found) == [of_event(event) for event in EVENTS[:6]]


@pytest.mark.parametrize(
    "strange", ["", "x", "1.1", "9" * 30 + ".00000000", "1.00000000", "-1.00000000", "1.0000000g\n"]
)
def test_an_id_that_nobody_gave_begins_at_the_beginning(strange: str, run: WatchedRun) -> None:
    found = heard(Listener(Cursor.read(strange)), run, standing(7, 5))
    assert of("event", found) == [of_event(event) for event in EVENTS]


def test_what_a_site_says_stays_text_and_ends_no_message(run: WatchedRun) -> None:
    hostile = "<script>alert(1)</script>\n\nevent: state\ndata: {}\n\n"
    now = RunMoment("running", (), (RunEvent(event="refused", site="site-1", why=hostile),))
    (line,) = of("event", found := heard(Listener(Cursor()), run, now))
    assert [name for _, name, _ in found] == ["event", "state"]
    assert "<script" not in line["line"]
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\n\nevent: state" in line["line"]


def test_the_files_of_a_run_are_the_stream(tmp_path: Path, simulated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the log to the browser, while it is written."""
    import shutil

    monkeypatch.setattr(watching, "EVERY", 0.0)
    folder = Path(shutil.copytree(simulated, tmp_path / "run"))
    log, watched, told, found = (
        EventLog(folder, real=False, hidden=False),
        WatchedRun(folder),
        Listener(Cursor()),
        list[Any](),
    )
    for i in itertools.count():
        while watched.look() != watched.look():
            pass
        found += of("event", heard(told, watched, watched.look()))
        if i == 5:
            break
        watched._next = 0.0
        log(RunEvent(event="connected", site=f"site-{i}"))
    assert [f"site-{i} is connected" in line["line"] for i, line in enumerate(found)] == [True] * 5
