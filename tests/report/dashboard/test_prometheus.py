"""Metrics: in the format of Prometheus, true to the files, and no more than everybody may see."""

from __future__ import annotations

import http.client
import json
import math
import re
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from sordino.receipts.folder import RunFolder
from sordino.receipts.receipt import spending
from sordino.report.dashboard import METRICS, Dashboard, new_token
from sordino.report.dashboard.run_state import MEANINGS, RunMoment, WatchedRun, metrics
from sordino.runs.listing import events, sites
from sordino.sites.event_log import EventLog
from sordino.transport.run_events import RunEvent
from tests.report.dashboard.test_page import HOSTILE, as_if_others_were_drawn

LINE = re.compile(r'(sordino_[a-z_]+)(\{(?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)+\})? (\S+)')


def told(text: str) -> dict[str, float]:
    """Series by name and labels. Every family is told once, with its meaning and its type, as the format wants it."""
    found, families = dict[str, float](), list[str]()
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            families.append(line.split()[2])
        elif line.startswith("# TYPE "):
            assert line == f"# TYPE {families[-1]} gauge"
        else:
            one = LINE.fullmatch(line)
            assert one is not None, line
            assert one[1] == families[-1]
            assert one[1] + (one[2] or "") not in found
            found[one[1] + (one[2] or "")] = float(one[3])
    assert len(set(families)) == len(families)
    assert set(families) <= MEANINGS.keys()
    return found


def seen(folder: Path, evaluator: bool = False) -> str:
    run = WatchedRun(folder, evaluator)
    return metrics(run, run.look()._replace(spending=spending(folder)))


def between(folder: Path, place: Path, **environment: object) -> Path:
    """A copy of a run that lies at a server, or at a site."""
    made = Path(shutil.copytree(folder, place))
    file = made / "environment.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | environment))
    return made


def test_a_finished_run_is_told_as_its_receipt_has_it(simulated: Path) -> None:
    found, receipt = told(text := seen(simulated)), RunFolder(simulated).receipt()
    assert (found["sordino_running"], found["sordino_readable"]) == (0, 1)
    rounds = "done", "planned", "counted"
    assert [found[f"sordino_rounds_{name}"] for name in rounds] == [3, 3, 3]
    rows = {name: value for name, value in found.items() if name.startswith("sordino_epsilon")}
    assert sorted(rows.values()) == sorted(row.epsilon for row in receipt.guarantees)  # to the last digit
    assert math.inf in rows.values()
    for word in ("unit", "neighbours", "adversary", "delta", "status"):
        assert all(f'{word}="' in name for name in rows)
    assert 'status="proved (simulation)"' in text
    assert receipt.budget is not None
    assert found["sordino_budget_left_ratio"] == pytest.approx(1 - receipt.budget.spent_share.max)
    assert not any(
        name.startswith(("sordino_sites", "sordino_server", "sordino_round_")) for name in found
    )  # in a simulation there are none


def test_neither_scores_nor_single_clients_are_told(simulated: Path) -> None:
    text, last = seen(simulated), RunFolder(simulated).metrics()[-1]
    assert not re.search(r"accuracy|loss|score|client=|bytes", text)
    assert f"{last.accuracy:.12g}" not in text


def test_a_server_tells_who_is_there_and_whether_a_round_waits(simulated: Path, tmp_path: Path) -> None:
    folder = between(simulated, tmp_path / "run", site="server")
    log = EventLog(folder, real=False, hidden=False)
    for event in (
        RunEvent(event="started", sites=("a", "b", HOSTILE)),
        RunEvent(event="connected", site="a"),
        RunEvent(event="connected", site=HOSTILE),
        RunEvent(event="asked", sites=("a", "b"), round=2),
        RunEvent(event="waiting", round=2, count=1, of=2, needed=2),
    ):
        log(event)
    with RunFolder(folder).locked():
        found = told(text := seen(folder))
    assert (found["sordino_sites_agreed"], found["sordino_sites_connected"]) == (3, 2)
    assert (found["sordino_running"], found["sordino_round_waiting"]) == (1, 1)
    assert "script" not in text
    assert told(seen(folder))["sordino_round_waiting"] == 0  # whoever is gone waits for nobody


@pytest.mark.parametrize(
    ("after", "waits"),
    [
        ([], 1),
        ([RunEvent(event="answered", site="b", round=2)], 1),  # how many are enough is known to the server alone
        ([RunEvent(event="asked", sites=("c",), round=2)], 1),
        ([RunEvent(event="asked", sites=("a",), round=3)], 0),
        ([RunEvent(event="deadline", round=2)], 0),
        ([RunEvent(event="started", sites=("a",))], 0),
    ],
)
def test_a_round_waits_until_another_thing_has_happened(simulated: Path, after: Sequence[RunEvent], waits: int) -> None:
    before = RunEvent(event="asked", sites=("a", "b"), round=2), RunEvent(event="waiting", round=2)
    now = RunMoment("running", events=[*before, *after], sites=sites(before, True))
    assert told(metrics(WatchedRun(simulated), now))["sordino_round_waiting"] == waits


def test_a_site_tells_of_itself_alone(simulated: Path, tmp_path: Path) -> None:
    folder = between(simulated, tmp_path / "run", site="hospital-a", clients=[0])
    log = EventLog(folder, real=False, hidden=False)
    log(RunEvent(event="started"))
    log(RunEvent(event="connected"))
    with RunFolder(folder).locked():
        found = told(seen(folder))
    assert found["sordino_server_connected"] == 1
    assert not any(name.startswith(("sordino_sites", "sordino_round_waiting")) for name in found)


def test_what_was_spent_says_how_many_rounds_it_is_about(simulated: Path) -> None:
    """Spending is computed aside, so the rounds can be ahead of it; an alert must not compare the two."""
    now = WatchedRun(simulated).look()._replace(spending=spending(simulated).beside(rounds=1))
    found = told(metrics(WatchedRun(simulated), now))
    assert (found["sordino_rounds_done"], found["sordino_rounds_counted"]) == (3, 1)


def test_what_cannot_be_read_is_said(simulated: Path) -> None:
    now = WatchedRun(simulated).look()
    assert told(metrics(WatchedRun(simulated), now._replace(trouble="damaged")))["sordino_readable"] == 0


@pytest.mark.slow
def test_metrics_do_not_tell_who_was_drawn(hidden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = as_if_others_were_drawn(hidden, tmp_path / "run")
    found = told(seen(hidden))
    assert seen(hidden) == seen(other)
    assert not any(name.startswith(("sordino_sites", "sordino_round_waiting")) for name in found)
    assert found["sordino_rounds_done"] == 4
    # the broken twin counts the sites of the private log
    monkeypatch.setattr("sordino.report.dashboard.run_state.public_events", events)
    monkeypatch.setattr(WatchedRun, "hides", False)
    assert "sordino_sites_connected" in seen(hidden)


@pytest.mark.slow
def test_an_evaluators_dashboard_hands_on_no_more_than_any_other(hidden: Path) -> None:
    token = new_token()
    with Dashboard(WatchedRun(hidden, evaluator=True), "127.0.0.1:0", token=token) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        line.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
        found = line.getresponse()
        text = found.read().decode()
        server.shutdown()
    assert (found.status, found.headers["Content-Type"]) == (200, METRICS)
    assert "sordino_rounds_done 4\n" in text
    assert "sordino_sites" not in text
    assert "sordino_sites" in metrics(server.run, server.run.look())  # which the evaluator may see
