"""The page: what is known of a run now, as HTML that says it without any script. The parts that change have names, and
the stream brings them anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from sordino.accounting.belief import subject
from sordino.accounting.claims import standing
from sordino.accounting.events import Json
from sordino.accounting.statement import Guarantee, strongest
from sordino.accounting.words import described, merged
from sordino.metrics.evaluation import measured_by
from sordino.metrics.headlines import in_words
from sordino.metrics.measures import last_scored
from sordino.metrics.rows import RoundRow
from sordino.receipts.run_files import OfClient, Spending
from sordino.report import palette
from sordino.report.dashboard.facts import Now, Watched
from sordino.report.markup import Html, joined, table, tag
from sordino.report.run_page import SCRIPTS, STYLES, in_script, together
from sordino.report.still import promises
from sordino.results.tables import bytes_text
from sordino.runs.watched import SiteNow
from sordino.transport.events import OF_ROUNDS, RunEvent

POINTS = 2000  # rounds that a page begins with; of more, so many at even distances
TOLD = 100  # events that a page begins with: the newest
LAST = 10  # rounds that are told in a table where no script runs
STATES = {"killed": "its process ended without saying so", "stopped": "it can go on from here"}


# the whole ------------------------------------------------------------------------------------------------------------


def page(run: Watched, now: Now, cursor: str) -> str:
    """All of it, as it stands."""
    experiment = run.run.experiment
    algorithm, clients = experiment.algorithm["name"], len(run.whole.public.sizes)
    site = run.run.environment.site
    where = (
        f"{site}, one site of it" if run.of_site else "between sites, as its server has it" if site else "in one place"
    )
    parts, training = regions(run, now), run.whole.phases[-1]
    facts = {
        "model": measured_by(now.rows, training.algorithm, training.ways, experiment.evaluation.models),
        "rows": [of_round(row) for row in _some(now.rows)],
        "cursor": cursor,
        "colours": palette.SERIES,
        "dashes": palette.DASHES,
        "headlines": in_words(),
    }
    named = ("sites", "Who is connected"), ("spent", "What can still be learned, by whom")
    sections = {name: _section(name, title, _region("div", name, parts)) for name, title in named}
    body = (
        tag("h1", experiment.name),
        tag("p", f"{algorithm} on {experiment.data.source}: {clients} clients; {where}.", class_="lead"),
        _notice(run),
        tag("p", parts["status"], id="status", class_="status", role="status", aria_live="polite"),
        tag("p", "", id="line", class_="note", role="alert"),
        _region("dl", "cards", parts, class_="cards"),
        sections["sites"] if site else "",
        _section("curves", "Learning", tag("div", id="charts", class_="grid"), tag("noscript", _last(now.rows))),
        sections["spent"],
        _section("events", "What happened", _events(now.events)) if site else "",
    )
    head = (
        Html('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        Html('<meta name="color-scheme" content="light dark">'),
        tag("title", f"sordino: {experiment.name}"),
        Html('<link rel="icon" href="data:,"><link rel="stylesheet" href="page.css">'),
    )
    whole = (
        tag("head", *head),
        tag(
            "body",
            tag("main", *body, id="main"),
            tag("script", Html(in_script(facts)), id="facts", type="application/json"),
            tag("script", src="page.js"),
        ),
    )
    return f"<!doctype html>\n{tag('html', *whole, lang='en')}\n"


@cache
def style() -> str:
    return f"{palette.css()}\n{together(*STYLES)}"


@cache
def script() -> str:
    return together(*SCRIPTS, "web/curves.js", "web/live.js")


def of_round(row: RoundRow) -> Json:
    """What the charts need of a round. Clients one by one are too many."""
    return row.beside(clients=row.clients and row.clients.beside(each=None), also={}).to_json()


def _some(rows: Sequence[RoundRow]) -> Sequence[RoundRow]:
    """Traffic adds up over rounds, so one that stands for several has the bytes of all of them."""
    if len(rows) <= POINTS:
        return rows
    found, before = list[RoundRow](), 0
    for i in range(1, POINTS + 1):
        end = i * len(rows) // POINTS
        part, before = rows[before:end], end
        last = part[-1]
        if last.bytes_down is not None and last.bytes_up is not None:
            last = last.beside(
                bytes_down=sum(row.bytes_down or 0 for row in part), bytes_up=sum(row.bytes_up or 0 for row in part)
            )
        found.append(last)
    return found


# the parts that change ------------------------------------------------------------------------------------------------


def regions(run: Watched, now: Now) -> dict[str, Html]:
    """What is inside of each part, by its name."""
    return {
        "status": _status(run, now),
        "cards": _cards(run, now),
        "sites": _sites(run, now.sites),
        "spent": _spent(run, now),
    }


def _status(run: Watched, now: Now) -> Html:
    said = [STATES[now.state]] if now.state in STATES else []
    if now.rows:
        said.append(f"round {now.round} of {run.run.experiment.rounds}")
    elif now.before is not None:
        said.append(f"before round 1: {now.before.phase} {now.before.round}")
    if now.state == "running" and now.sites:
        there = sum(site.connected for site in now.sites.values())
        waits = [name for name, site in now.sites.items() if site.asked > site.answered and site.connected]
        if run.of_site:
            said.append("connected to the server" if there else "not connected to the server")
        else:
            said.append(f"{there} of {len(now.sites)} sites connected")
            said += [f"waiting for {', '.join(waits)}"] if waits else []
    badge = tag("span", now.state, class_=f"badge {now.state.replace(' ', '-')}")
    return joined([badge, " ", "; ".join(said), "." if said else "", _trouble(now)])


def _trouble(now: Now) -> str:
    return f" {now.trouble}." if now.trouble else ""


def _cards(run: Watched, now: Now) -> Html:
    rounds, last = run.run.experiment.rounds, last_scored(now.rows)
    cards: list[tuple[str, str, str]] = []
    if now.rows or not (run.hides and run.of_site):
        cards.append(("round", f"{now.round} of {rounds}", ""))
    if last is not None and (found := last.headline) is not None:
        judged, value = found
        shown = f"{value:.1%}" if judged.percent else f"{value:.4g}"
        cards.append((f"test {judged.full}", shown, f"{last.measured}, after round {last.round}"))
    if now.spending is not None:
        row = strongest(now.spending.guarantees)
        if row is None:
            cards.append(("epsilon", "∞", "nothing is promised"))
        else:
            price = f"{standing(row.status, now.spending.simulated)}, {_after(now.spending)}"
            cards.append((f"ε per {row.unit}, against {_by(row, now.spending)}", f"{row.epsilon:.3g}", price))
    if now.rows and all(row.bytes_up is not None for row in now.rows):
        down, up = sum(row.bytes_down or 0 for row in now.rows), sum(row.bytes_up or 0 for row in now.rows)
        cards.append(("sent down", bytes_text(down), f"{bytes_text(up)} up"))
    if now.sites and not run.of_site:
        there = sum(site.connected for site in now.sites.values())
        cards.append(("sites connected", f"{there} of {len(now.sites)}", ""))
    return joined(
        tag("div", tag("dt", name), tag("dd", value, tag("small", small) if small else ""))
        for name, value, small in cards
    )


def _by(row: Guarantee, spending: Spending) -> str:
    """Everybody against whom this promise holds, as the report names them."""
    return next(subject(by) for one, by in merged(spending.guarantees) if one.subject == row.subject)


def _sites(run: Watched, sites: Mapping[str, SiteNow] | None) -> Html:
    if sites is None:
        return tag("p", "Who is connected is not told: in a hidden cohort it would tell who cannot have answered.")
    members: dict[str, list[str]] = {}
    for client in run.clients:
        members.setdefault(client.site, []).append(client.name)
    if run.of_site:
        own = run.run.environment.site
        here = sites.get("", SiteNow())
        rows = [(own, ", ".join(members.get(own, [])), here.words, _clock(here.since), _round(here.answered))]
        return _table("The connection to the server", ("site", "clients", "standing", "since", "answered"), rows)
    listed = [
        (name, ", ".join(members.get(name, [])), now.words, _clock(now.since), _round(now.asked), _round(now.answered))
        for name in dict.fromkeys((*members, *sites))
        for now in (sites.get(name, SiteNow()),)
    ]
    return _table("Sites", ("site", "clients", "standing", "since", "last asked", "last answered"), listed)


def _round(t: int) -> str:
    return f"round {t}" if t else ""


def _clock(at: str) -> Html:
    return tag("time", f"{at[11:19]} UTC", datetime=at) if at else Html("")


def _spent(run: Watched, now: Now) -> Html:
    if now.spending is None:
        return tag("p", "The ledger is being read." if not now.trouble else now.trouble)
    rows = promises(described(now.spending.guarantees, now.spending.simulated))
    whose = "this site's ledger" if run.of_site else "the ledger"
    lead = f"By {whose}, {_after(now.spending)}:"
    return joined([tag("p", lead), rows, _by_client(run, now.spending)])


def _after(spending: Spending) -> str:
    return f"after {spending.rounds} release{'s' if spending.rounds != 1 else ''}"


def _by_client(run: Watched, spending: Spending) -> Html:
    clients = [client for client in spending.by_client if client.granted]
    if not clients:
        return Html("")
    listed = [(_client(run, one), _share(one), _granted(one), one.exposures or 0) for one in clients]
    some = "" if len(clients) == spending.clients else f", {len(clients)} of {spending.clients}"
    return tag(
        "details",
        tag("summary", f"Client by client{some}"),
        _table("Spent of what each client granted", ("client", "spent", "of epsilon", "exposures"), listed),
    )


def _client(run: Watched, one: OfClient) -> str:
    if one.client >= len(run.clients):
        return one.name or str(one.client)
    client = run.clients[one.client]
    return client.name if client.name == client.site else f"{client.name} at {client.site}"


def _share(one: OfClient) -> str:
    pairs = zip(one.spent, one.granted or (), strict=True)
    return f"{max((part / limit for part, limit in pairs if limit), default=0.0):.0%}"


def _granted(one: OfClient) -> str:
    return "" if one.epsilon is None else f"{one.epsilon:g}"


def of_event(event: RunEvent) -> dict[str, str]:
    """The line of an event, and the list that it belongs to."""
    return {"list": "rounds" if event.event in OF_ROUNDS else "events", "line": happened(event)}


def happened(event: RunEvent) -> Html:
    """One event, as a line."""
    return tag("li", _clock(event.at), " ", event.words, class_=event.event.replace(" ", "-"))


def _events(events: Sequence[RunEvent]) -> Html:
    """Rounds have a list of their own: they are many, and would hide what happens once."""

    def listed(name: str, label: str, some: Sequence[RunEvent]) -> Html:
        lines = [happened(event) for event in reversed(some[-TOLD:])]
        return tag("ol", *lines, id=name, class_="events scroll", tabindex="0", aria_label=label)

    once = [event for event in events if event.event not in OF_ROUNDS]
    often = [event for event in events if event.event in OF_ROUNDS]
    rounds = listed("rounds", "Who was asked and answered, newest first", often)
    fold = tag("details", tag("summary", "Who was asked and answered, round by round"), rounds)
    return joined([listed("events", "What happened, newest first", once), fold])


# pieces ---------------------------------------------------------------------------------------------------------------


def _notice(run: Watched) -> Html:
    if run.real and not run.evaluator:
        text = "This page holds what may be shown of this run. Scores are for its evaluator only (--evaluator)."
    elif run.real:
        text = "For the evaluator only: no epsilon covers the scores and the words of sites on this page."
    else:
        text = "The noise of this run comes from a seed: nobody is protected by it."
    return tag("p", text, class_="notice")


def _section(name: str, title: str, *inside: str) -> Html:
    return tag("section", tag("h2", title, id=f"about-{name}"), *inside, aria_labelledby=f"about-{name}")


def _region(name: str, region: str, parts: Mapping[str, Html], **attributes: str) -> Html:
    return tag(name, parts[region], id=region, **attributes)


def _last(rows: Sequence[RoundRow]) -> Html:
    """The newest rounds in numbers, where no script draws them."""
    listed = [(row.round, row.told, _size(row.bytes_down), _size(row.bytes_up)) for row in reversed(rows[-LAST:])]
    return _table("The last rounds", ("round", "score", "down", "up"), listed)


def _size(sent: int | None) -> str:
    return "" if sent is None else bytes_text(sent)


def _table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str | int]]) -> Html:
    made = table(caption, columns, rows, class_="wide")
    return tag("div", made, class_="scroll", tabindex="0", role="region", aria_label=caption)
