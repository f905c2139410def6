"""The page: true to the files, the same to everybody who may not know more, alive in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sordino.receipts.folder import RunFolder
from sordino.receipts.receipt import spending
from sordino.report.dashboard import Dashboard
from sordino.report.dashboard import page as pages
from sordino.report.dashboard.page import page
from sordino.report.dashboard.run_state import WatchedRun
from sordino.runs.listing import events
from sordino.sites.event_log import EventLog
from sordino.transport.run_events import RunEvent
from tests.helpers.browser import opened
from tests.report.dashboard.conftest import go_on

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"


def shown(folder: Path, evaluator: bool = False) -> str:
    """The page, with what was spent on it."""
    run = WatchedRun(folder, evaluator)
    run.look()
    worker = run.spent._busy
    assert worker is not None
    worker.join()
    run._next = 0.0
    return page(run, run.look(), "0.00000000")


def test_without_a_script_it_says_how_the_run_stands(simulated: Path) -> None:
    text, run = shown(simulated), RunFolder(simulated)
    last = run.metrics()[-1]
    assert "round 3 of 3" in text
    assert f"{last.accuracy:.1%}" in text
    assert f'<span class="badge">ε {spending(simulated).guarantees[0].epsilon:.3g}</span>' in text
    assert "ε per example (replace), against" in text
    assert "protects nobody" in text
    assert "Connected sites" not in text  # in a simulation nobody is
    assert text.count('role="status"') == 1


def test_a_site_called_script_is_text(tmp_path: Path, simulated: Path) -> None:
    folder = Path(shutil.copytree(simulated, tmp_path / "run"))
    environment = json.loads((folder / "environment.json").read_text())
    (folder / "environment.json").write_text(json.dumps(environment | {"site": "server"}))
    log = EventLog(folder, real=False, hidden=False)
    for event in (
        RunEvent(event="started", sites=(HOSTILE,)),
        RunEvent(event="connected", site=HOSTILE),
        RunEvent(event="refused", site=HOSTILE, why=HOSTILE),
    ):
        log(event)
    text = shown(folder)
    assert text.count("alert(1)") >= 3
    assert "<script>alert" not in text
    assert "<img" not in text


def test_what_was_spent_is_read_and_nothing_is_touched(simulated: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in simulated.iterdir()}
    assert spending(simulated).guarantees
    assert {path: path.stat().st_mtime_ns for path in simulated.iterdir()} == before


def test_a_damaged_file_is_said_and_ends_nothing(tmp_path: Path, simulated: Path) -> None:
    folder = Path(shutil.copytree(simulated, tmp_path / "run"))
    (folder / "metrics.jsonl").write_text('{"round": "one"}\n')
    run = WatchedRun(folder)
    assert "damaged" in page(run, run.look(), "0.00000000")


# a hidden cohort ------------------------------------------------------------------------------------------------------


def as_if_others_were_drawn(folder: Path, place: Path) -> Path:
    """The same run to everybody who may not know: but another site answered, and at other times."""
    other = Path(shutil.copytree(folder, place))
    for name in ("events.jsonl", "metrics.jsonl"):
        file = other / "private" / name
        text = file.read_text().replace("site-1", "site-x").replace("site-2", "site-1").replace("site-x", "site-2")
        file.write_text(re.sub(r'"(active|answered|bytes_up|bytes_down)": [0-9]+', r'"\1": 7', text))
    return other


@pytest.mark.slow
def test_who_was_drawn_changes_nothing_that_others_see(hidden: Path, tmp_path: Path) -> None:
    other = as_if_others_were_drawn(hidden, tmp_path / "run")
    assert any(event.event == "answered" for event in events(RunFolder(hidden)))
    told = shown(hidden)
    assert told == shown(other)
    assert "round 4 of 4" in told
    assert "site-" not in re.sub(r'"sites": \[.*?\]', "", told).partition("Privacy guarantees")[0]
    # the broken twin: what the evaluator sees does depend on it
    assert shown(hidden, evaluator=True) != shown(other, evaluator=True)


@pytest.mark.slow
def test_a_page_that_reads_the_private_folder_is_noticed(
    hidden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broken twin of the reader: it looks where it may not."""
    other = as_if_others_were_drawn(hidden, tmp_path / "run")
    monkeypatch.setattr("sordino.report.dashboard.run_state.public_events", events)
    assert shown(hidden) != shown(other)


# in a browser ---------------------------------------------------------------------------------------------------------

PROBE = """
const tell = async () => {
  document.body.style.width = "400px"; // a phone
  dispatchEvent(new Event("resize"));
  await new Promise(done => setTimeout(done, 300));
  console.info("SEEN " + JSON.stringify({
    status: document.getElementById("status").textContent, cards: document.getElementById("cards").textContent,
    plots: document.querySelectorAll(".plot").length, inked: [...document.querySelectorAll(".plot")].filter(p => p.querySelector("polyline")).length,
    unlabelled: [...document.querySelectorAll(".plot, [role=region], ol")].filter(p => !p.getAttribute("aria-label")).length,
    events: [...document.querySelectorAll("#events li")].map(li => li.textContent), fits: document.body.scrollWidth <= 400,
    asked: performance.getEntriesByType("resource").map(e => e.name), rounds: document.querySelectorAll("#charts figure:first-child tr[data-at]").length,
  }));
};
setTimeout(tell, 800);
new MutationObserver(() => setTimeout(tell, 500)).observe(document.getElementById("status"), { childList: true, subtree: true });
"""


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_a_live_run_in_a_browser(
    theme: str, simulated: Path, live: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new round and a new site appear without loading anything again, and nobody else is asked for anything."""
    folder = live(simulated)
    environment = json.loads((folder / "environment.json").read_text())
    (folder / "environment.json").write_text(json.dumps(environment | {"site": "server"}))
    log = EventLog(folder, real=False, hidden=False)
    log(RunEvent(event="started", sites=("hospital-a", HOSTILE)))
    with_probe = pages.script() + PROBE
    monkeypatch.setattr(pages, "script", lambda: with_probe)
    seen: list[dict[str, Any]] = []
    with Dashboard(WatchedRun(folder), "127.0.0.1:0") as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        with opened(server.link, tmp_path, theme) as console:
            for line in console:
                assert line.startswith("SEEN "), line  # whatever else a console says is an error
                seen.append(json.loads(line[5:]))
                if len(seen) == 1:
                    log(RunEvent(event="connected", site="hospital-a"))
                    go_on(folder)
                if "round 3 of 3" in seen[-1]["status"] and "1 of 2 sites" in seen[-1]["status"]:
                    break
        server.shutdown()
    first, last = seen[0], seen[-1]
    assert "round 2 of 3" in first["status"]
    assert (first["rounds"], last["rounds"]) == (2, 3)
    assert last["plots"] == last["inked"] == 2
    assert last["unlabelled"] == 0
    assert last["fits"]
    assert "hospital-a is connected" in last["events"][0]
    assert len([name for name in last["asked"] if not name.endswith("/stream")]) <= 4  # nothing was loaded again
    assert all(name.startswith(server.link) for name in last["asked"])


@pytest.mark.slow
def test_a_page_that_asks_somebody_else_is_noticed(
    simulated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broken twin: the browser does not let it, and the console says so."""
    foreign = pages.script() + '\nfetch("https://192.0.2.1/").catch(() => 0);'
    monkeypatch.setattr(pages, "script", lambda: foreign)
    with Dashboard(WatchedRun(simulated), "127.0.0.1:0") as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        with opened(server.link, tmp_path) as console:
            assert "Content Security Policy" in next(console)
        server.shutdown()
