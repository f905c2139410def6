"""Page of the dashboard: a run as it stands, complete without any script. A browser with scripts keeps it current from
an event stream, which replaces parts of the page by name and sends each event once, in order. After a break the browser
names the last event that it has, and gets the rest.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from sordino.accounting.claims import standing
from sordino.accounting.facts import delta_text, epsilon_text
from sordino.accounting.statement import strongest
from sordino.accounting.words import described, merged, subject
from sordino.metrics import RoundRow, bytes_text
from sordino.metrics.evaluation import measured_by
from sordino.metrics.measures import last_scored
from sordino.receipts import OfClient, Spending
from sordino.report import frame, run_facts
from sordino.report.charts import lines
from sordino.report.dashboard.run_state import RunMoment, WatchedRun
from sordino.report.frame import promises
from sordino.results.markup import Html, cards, folded, joined, note, scrolled, tag
from sordino.runs.listing import SiteNow
from sordino.transport.run_events import OF_ROUNDS, RunEvent

TOLD = 100  # events on a new page: the newest
STATES = {"killed": "its process ended without saying so", "stopped": "it can go on from here"}


def page(run: WatchedRun, now: RunMoment, cursor: str) -> str:
    """The whole page of a run as it stands."""
    experiment = run.run.experiment
    algorithm, clients = experiment.algorithm["name"], len(run.whole.public.sizes)
    site = run.run.environment.site
    where = (
        f"{site}, one site of it" if run.of_site else "between sites, as its server has it" if site else "in one place"
    )
    parts = regions(run, now)
    body = (
        frame.top(
            experiment.name, f"{algorithm} on {experiment.data.source}: {clients} clients; {where}.", _notice(run)
        ),
        tag("p", parts["status"], id="status", class_="status", role="status", aria_live="polite"),
        tag("p", "", id="line", class_="note", role="alert"),
        _region("dl", "cards", parts, class_="cards"),
        _section("sites", "Connected sites", _region("div", "sites", parts)) if site else "",
        _section("curves", "Learning", _region("div", "charts", parts, class_="grid")),
        _section("spent", "Privacy guarantees, by unit and adversary", _region("div", "spent", parts)),
        _section("events", "Events", _events(now.events)) if site else "",
    )
    head = tag("meta", name="color-scheme", content="light dark"), tag("link", rel="stylesheet", href="page.css")
    return frame.document(
        f"sordino: {experiment.name}", head, body, tag("script", src="page.js"), data_cursor=str(cursor)
    )


@cache
def script() -> str:
    return frame.source("page.js", "live.js")


# parts that change ----------------------------------------------------------------------------------------------------


def regions(run: WatchedRun, now: RunMoment) -> dict[str, Html]:
    """The HTML of each changing part, by its name."""
    return {
        "status": _status(run, now),
        "cards": _cards(run, now),
        "charts": _charts(run, now.rows),
        "sites": _sites(run, now.sites),
        "spent": _spent(run, now),
    }


def _status(run: WatchedRun, now: RunMoment) -> Html:
    parts = [STATES[now.state]] if now.state in STATES else []
    if now.rows:
        parts.append(f"round {now.round} of {run.run.experiment.rounds}")
    elif now.before is not None:
        parts.append(f"before round 1: {now.before.phase} {now.before.round}")
    if now.state == "running" and now.sites:
        there = sum(site.connected for site in now.sites.values())
        waits = [name for name, site in now.sites.items() if site.asked > site.answered and site.connected]
        if run.of_site:
            parts.append("connected to the server" if there else "not connected to the server")
        else:
            parts.append(f"{there} of {len(now.sites)} sites connected")
            parts += [f"waiting for {', '.join(waits)}"] if waits else []
    badge = tag("span", now.state, class_=f"badge {now.state.replace(' ', '-')}")
    return joined([badge, " ", "; ".join(parts), "." if parts else "", f" {now.trouble}." if now.trouble else ""])


def _cards(run: WatchedRun, now: RunMoment) -> Html:
    rounds, last = run.run.experiment.rounds, last_scored(now.rows)
    found: list[tuple[str, str, str]] = []
    if now.rows or not (run.hides and run.of_site):
        found.append(("round", f"{now.round} of {rounds}", ""))
    if last is not None and last.headline is not None:
        judged, value = last.headline
        shown = run_facts.written(judged)(value)
        found.append((f"test {judged.full}", shown, f"{last.measured}, after round {last.round}"))
    if now.spending is not None:
        row = strongest(now.spending.guarantees)
        if row is None:
            found.append(("epsilon", "∞", "nothing is promised"))
        else:
            held = standing(row.status, now.spending.simulated)
            price = f"{held}, δ {delta_text(row.delta)}, {_after(now.spending)}"
            by = next(by for one, by in merged(now.spending.guarantees) if one.subject == row.subject)
            found.append(
                (f"ε per {row.unit} ({row.neighbours}), against {subject(by)}", epsilon_text(row.epsilon), price)
            )
    if now.rows and all(row.bytes_up is not None for row in now.rows):
        down, up = sum(row.bytes_down or 0 for row in now.rows), sum(row.bytes_up or 0 for row in now.rows)
        found.append(("sent down", bytes_text(down), f"{bytes_text(up)} up"))
    if now.sites and not run.of_site:
        there = sum(site.connected for site in now.sites.values())
        found.append(("sites connected", f"{there} of {len(now.sites)}", ""))
    return cards(found)


def _charts(run: WatchedRun, rows: Sequence[RoundRow]) -> Html:
    """The score and the traffic over rounds, where whoever reads the page may know them."""
    training = run.whole.phases[-1]
    model = measured_by(rows, training.algorithm, training.ways, run.run.experiment.evaluation.models)
    traffic = run_facts.traffic(rows)
    drawn = joined([lines(run_facts.score(model, rows)), lines(traffic) if traffic is not None else ""])
    return drawn or note("There is nothing to draw yet, or nothing that may be shown.")


def _sites(run: WatchedRun, sites: Mapping[str, SiteNow] | None) -> Html:
    if sites is None:
        return tag(
            "p",
            "Connected sites are not listed: in a hidden cohort the list would tell which ones cannot have answered.",
        )
    members: dict[str, list[str]] = {}
    for client in run.clients:
        members.setdefault(client.site, []).append(client.name)
    if run.of_site:
        own = run.run.environment.site
        here = sites.get("", SiteNow())
        rows = [(own, ", ".join(members.get(own, [])), here.words, _clock(here.since), _round(here.answered))]
        return scrolled("The connection to the server", ("site", "clients", "standing", "since", "answered"), rows)
    listed = [
        (name, ", ".join(members.get(name, [])), now.words, _clock(now.since), _round(now.asked), _round(now.answered))
        for name in dict.fromkeys((*members, *sites))
        for now in (sites.get(name, SiteNow()),)
    ]
    return scrolled("Sites", ("site", "clients", "standing", "since", "last asked", "last answered"), listed)


def _round(t: int) -> str:
    return f"round {t}" if t else ""


def _clock(at: str) -> Html:
    return tag("time", f"{at[11:19]} UTC", datetime=at) if at else Html("")


def _spent(run: WatchedRun, now: RunMoment) -> Html:
    if now.spending is None:
        return tag("p", "The ledger is being read." if not now.trouble else now.trouble)
    rows = promises(described(now.spending.guarantees, now.spending.simulated))
    whose = "this site's ledger" if run.of_site else "the ledger"
    lead = f"By {whose}, {_after(now.spending)}:"
    return joined([tag("p", lead), rows, _by_client(run, now.spending)])


def _after(spending: Spending) -> str:
    return f"after {spending.rounds} release{'s' if spending.rounds != 1 else ''}"


def _by_client(run: WatchedRun, spending: Spending) -> Html:
    clients = [client for client in spending.by_client if client.granted]
    if not clients:
        return Html("")
    listed = [
        (
            _client(run, of),
            f"{of.spent_share:.0%}",
            "" if of.epsilon is None else f"{of.epsilon:g}",
            of.participations or 0,
        )
        for of in clients
    ]
    some = "" if len(clients) == spending.clients else f", {len(clients)} of {spending.clients}"
    columns = "client", "spent", "of epsilon", "participations"
    count = "" if spending.budget is None else spending.budget.caveat(spending.guarantees)
    return folded(f"Client by client{some}", scrolled(f"Spent of what each client granted{count}", columns, listed))


def _client(run: WatchedRun, one: OfClient) -> str:
    if one.client >= len(run.clients):
        return one.name or str(one.client)
    client = run.clients[one.client]
    return client.name if client.name == client.site else f"{client.name} at {client.site}"


def of_event(event: RunEvent) -> dict[str, str]:
    """An event as HTML, under the name of the list on the page that it is added to."""
    return {"list": "rounds" if event.event in OF_ROUNDS else "events", "line": happened(event)}


def happened(event: RunEvent) -> Html:
    """HTML of one event, as a line."""
    return tag("li", _clock(event.at), " ", event.words, class_=event.event.replace(" ", "-"))


def _events(events: Sequence[RunEvent]) -> Html:
    """Events of a run; those of rounds in a list of their own, because they are many and would hide what happens
    once.
    """

    def listed(name: str, label: str, some: Sequence[RunEvent]) -> Html:
        lines = [happened(event) for event in reversed(some[-TOLD:])]
        return tag("ol", *lines, id=name, class_="events scroll", tabindex="0", aria_label=label)

    once = [event for event in events if event.event not in OF_ROUNDS]
    often = [event for event in events if event.event in OF_ROUNDS]
    rounds = listed("rounds", "Requests and answers, newest first", often)
    return joined(
        [listed("events", "Events, newest first", once), folded("Requests and answers, round by round", rounds)]
    )


# pieces ---------------------------------------------------------------------------------------------------------------


def _notice(run: WatchedRun) -> str:
    if run.real and not run.evaluator:
        return "This page holds what may be shown of this run. Scores are for its evaluator only (--evaluator)."
    if run.real:
        return "For the evaluator only: no epsilon covers the scores and the words of sites on this page."
    return "A simulation: the noise of this run comes from a seed, and protects nobody."


def _section(name: str, title: str, *inside: str) -> Html:
    return tag("section", tag("h2", title, id=f"about-{name}"), *inside, aria_labelledby=f"about-{name}")


def _region(name: str, region: str, parts: Mapping[str, Html], **attributes: str) -> Html:
    return tag(name, parts[region], id=region, **attributes)


AGAIN = 2000  # ms until a browser connects again


class Cursor(NamedTuple):
    """Position of a browser in the event stream: how many events it has, and a digest of the last one."""

    events: int = 0
    digest: int = 0

    def __str__(self) -> str:
        return f"{self.events}.{self.digest:08x}"

    @classmethod
    def read(cls, text: str) -> Cursor:
        """The cursor that a text holds; the beginning where it holds none."""
        found = re.fullmatch(r"([0-9]{1,9})\.([0-9a-f]{8})", text)
        return cls() if found is None else cls(int(found[1]), int(found[2], 16))


def cursor(now: RunMoment, events: int | None = None) -> Cursor:
    """The cursor after so many events; by default after all of them."""
    events = len(now.events) if events is None else events
    last = now.events[:events][-1:]
    return Cursor(events, zlib.crc32(json.dumps(last[0].to_json()).encode()) if last else 0)


class Listener:
    """One browser that reads the event stream, and what it has been sent."""

    def __init__(self, at: Cursor) -> None:
        self.at = at
        self._regions: dict[str, str] = {}
        self._seen: RunMoment | None = None

    def more(self, run: WatchedRun, now: RunMoment) -> Iterator[str]:
        """The messages that this browser lacks. Where the events that it has are not those of the run, it starts from
        the beginning.
        """
        if now is self._seen:
            return
        self._seen = now
        if cursor(now, self.at.events) != self.at or self.at.events > len(now.events):
            self.at = Cursor()
            yield message("anew", None, self.at)
        for i in range(self.at.events, len(now.events)):
            self.at = cursor(now, i + 1)
            yield message("event", of_event(now.events[i]), self.at)
        parts: dict[str, str] = {**regions(run, now)}
        if changed := {name: part for name, part in parts.items() if part != self._regions.get(name)}:
            self._regions = parts
            yield message("state", changed, self.at)


def message(name: str, content: object, at: Cursor) -> str:
    """One message of the stream. JSON has no line breaks, so no content can end a message."""
    return f"id: {at}\nevent: {name}\ndata: {json.dumps(content)}\n\n"
