"""Metrics of a run for Prometheus, at `/metrics` of the dashboard.

A monitoring system keeps numbers for long and shows them to many, so these are fewer than the page has: no score, no
number of a single client, and with real noise only what everybody may see, whoever asks. Where a number would tell too
much it is left out, and never 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter

from sordino.accounting.claims import Subject, standing
from sordino.accounting.facts import delta_text
from sordino.report.dashboard.run_state import RunMoment, WatchedRun
from sordino.transport.run_events import RunEvent

MEANINGS = {
    "sordino_running": "1 while a process works on the run",
    "sordino_readable": "0 where a file of the run cannot be read: all other numbers may then be old",
    "sordino_rounds_planned": "Rounds of the experiment",
    "sordino_rounds_done": "Rounds that are over",
    "sordino_round_waiting": "1 while a round waits because too few clients have answered",
    "sordino_sites_agreed": "Sites of the agreement",
    "sordino_sites_connected": "Sites that are connected to the server",
    "sordino_server_connected": "1 while this site is connected to the server",
    "sordino_rounds_counted": "Rounds that epsilon and budget are about: the ledger is read less often than the rest",
    "sordino_epsilon": "Epsilon of all releases in these rounds; +Inf: nothing is promised",
    "sordino_budget_left_ratio": "Part of its budget that is left to the client that has spent most",
}


def metrics(run: WatchedRun, now: RunMoment) -> str:
    """The metrics of a run in the text format of Prometheus. All of them are gauges."""
    lines = list[str]()
    for name, rows in groupby(_found(run, now), key=itemgetter(0)):
        lines += [f"# HELP {name} {MEANINGS[name]}", f"# TYPE {name} gauge"]
        for _, labels, value in rows:
            told = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
            lines.append(f"{name}{{{told}}} {_number(value)}" if told else f"{name} {_number(value)}")
    return "\n".join(lines) + "\n"


def _found(run: WatchedRun, now: RunMoment) -> Iterator[tuple[str, dict[str, str], float]]:
    yield "sordino_running", {}, now.state == "running"
    yield "sordino_readable", {}, not now.trouble
    yield "sordino_rounds_planned", {}, run.run.experiment.rounds
    if not (run.hides and run.of_site):
        yield "sordino_rounds_done", {}, now.round
    if now.sites is not None and run.of_site:
        yield "sordino_server_connected", {}, any(site.connected for site in now.sites.values())
    elif now.sites is not None:
        yield "sordino_round_waiting", {}, now.state == "running" and _waits(now.events)
        yield "sordino_sites_agreed", {}, len({client.site for client in run.clients} | now.sites.keys())
        yield "sordino_sites_connected", {}, sum(site.connected for site in now.sites.values())
    if now.spending is None:
        return
    yield "sordino_rounds_counted", {}, now.spending.rounds
    for row in now.spending.guarantees:
        labels = {
            **row.model_dump(include=set(Subject.model_fields)),
            "delta": delta_text(row.delta),
            "status": standing(row.status, now.spending.simulated),
        }
        yield "sordino_epsilon", labels, row.epsilon
    if (budget := now.spending.budget) is not None:
        yield "sordino_budget_left_ratio", {}, 1 - budget.spent_share.max


def _waits(events: Sequence[RunEvent]) -> bool:
    """True where the newest round waits for more answers."""
    waiting = None
    for event in events:
        place = event.phase, event.round
        if event.event == "waiting":
            waiting = place
        elif event.event in ("started", "deadline", "closing") or (event.event == "asked" and place != waiting):
            waiting = None
    return waiting is not None


def _number(value: float) -> str:
    """All digits of a number: an epsilon that was rounded down would say too little."""
    return {"inf": "+Inf", "nan": "NaN"}.get(said := repr(float(value)).removesuffix(".0"), said)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
