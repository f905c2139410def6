"""What a page says where no script runs: in a mail gateway, in a printer's preview, for a reader that is careful.

The same facts as in the charts, as words, tables and plain pictures. Where scripts run, charts take its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from sordino.accounting.belief import epsilon_text
from sordino.accounting.words import Described
from sordino.metrics.headlines import HEADLINES
from sordino.metrics.measures import headline, last_scored, scores
from sordino.metrics.rows import RoundRow
from sordino.report import attackers, audit_section, palette
from sordino.report.markup import Html, joined, listed, table, tag
from sordino.report.run_facts import RunFacts
from sordino.results.tables import bytes_text

SHOWN = 24  # lines of a table; of more, so many at even distances
POINTS = 200  # of a curve
WIDTH, HEIGHT, LEFT, BOTTOM = 640, 220, 60, 190

if TYPE_CHECKING:
    from sordino.report.comparison_page import ComparisonFacts

T = TypeVar("T")
Line = tuple[str, Sequence[tuple[float, float]]]  # its name and its points


def of_run(facts: RunFacts) -> Html:
    """The report of one run."""
    return joined(
        [
            *_top(facts.name, facts.lead, facts.notice, *facts.warnings),
            _section("What can still be learned, by whom", promises(facts.guarantees)),
            _listed("Phase by phase", facts.by_phase),
            _listed("What this rests on", facts.assumptions),
            Html("") if facts.audit is None else audit_section.section(facts.audit),
            Html("") if facts.attackers is None else attackers.section(facts.attackers),
            _section("Learning", *_learning(facts)),
            _section("Privacy spent", *_privacy(facts)),
            _section("Do it again", tag("pre", "\n".join(facts.commands))),
        ]
    )


def of_comparison(facts: ComparisonFacts) -> Html:
    """The report of a comparison."""
    columns, *rows = facts.table
    judged = HEADLINES[facts.metric]
    score = _score(judged.percent)
    curves = [(m.label, [(p.round, p.mean) for p in m.curve if p.mean is not None]) for m in facts.methods]
    return joined(
        [
            *_top(facts.title, facts.lead, facts.notice, *facts.candidates),
            _section("Result", _scrolled(facts.caption, columns, rows)),
            _section(
                "Learning",
                chart(f"Test {judged.full} over rounds ({facts.measured_by}), mean over seeds", curves, score),
            ),
            _section(
                "What each method promises",
                *(part for m in facts.methods for part in (tag("h3", m.name), promises(m.guarantees))),
            ),
            _listed("Choosing among them", facts.choosing),
            _section("What was held equal", _scrolled("Settings", ("setting", "value"), facts.equal)),
            _section("Do it again", tag("pre", facts.command)),
        ]
    )


def promises(rows: Sequence[Described]) -> Html:
    """Each promise in a box, with what it means to somebody who is 1 % sure."""
    return tag(
        "ul",
        *(
            tag(
                "li",
                *_badges(row),
                row.words,
                tag("p", row.belief, class_="belief"),
                class_=f"{row.status} {row.grade}".strip(),
            )
            for row in rows
        ),
        class_="promises",
    )


def _badges(row: Described) -> Sequence[Html]:
    said = f"ε {epsilon_text(row.epsilon)}"
    if row.nominal_epsilon is not None:
        printed = f"nominal ε {epsilon_text(row.nominal_epsilon)}: proves nothing"
        first = tag("span", printed, class_="badge unproved")
        return first, tag("span", f"holds: {said}, {row.strength}", class_="badge")
    strength = row.strength if row.status == "none" else f"{row.standing}, {row.strength}"
    return tag("span", said, class_="badge"), tag("span", strength, class_="badge")


def _learning(facts: RunFacts) -> list[Html]:
    last = last_scored(facts.metrics)
    if last is None:
        return [tag("p", "How well the model does is for the evaluator of this run only.")]
    judged = HEADLINES[headline([last])]
    score = _score(judged.percent)
    rows = scores(facts.metrics, judged.name)
    told = [(row.round, row.clients) for row, _ in rows if row.clients is not None]
    lines: list[Line] = [
        (facts.model, [(row.round, value) for row, value in rows]),
        ("mean over clients", [(t, clients.mean) for t, clients in told]),
        ("worst 10 % of clients", [(t, clients.worst_tenth) for t, clients in told]),
    ]
    counted = [
        (row.round, score(value), _size(row.bytes_down), _size(row.bytes_up)) for row, value in _some(rows, SHOWN)
    ]
    named = _scrolled(
        f"{len(counted)} of {len(rows)} evaluated rounds",
        ("round", f"test {judged.full}", "sent down", "sent up"),
        counted,
    )
    return [chart(f"Test {judged.full} over rounds", lines, score), named, *_beside(rows[-1][0])]


def _beside(last: RoundRow) -> list[Html]:
    """Scores beside the headline, where they were asked for."""
    found, counts = last.scores, last.confusion
    made = [_scrolled("Scores on all test examples", ("score", "value"), [(n, f"{v:.4f}") for n, v in found])]
    made = made if found else []
    if counts is not None:
        columns = ("true class", *(f"predicted {c}" for c in range(len(counts))))
        made.append(_scrolled("Test examples by class", columns, [(c, *row) for c, row in enumerate(counts)]))
    return made


def _privacy(facts: RunFacts) -> list[Html]:
    curves: list[Line] = [
        (f"one {line.unit}, against {line.by}: {line.standing}", line.points) for line in facts.epsilon
    ]
    made = [chart(f"Epsilon that holds, over rounds, at delta {facts.delta:.3g}", curves, lambda v: f"{v:.3g}", 0.0)]
    granted = [(one, one.granted) for one in facts.by_client if one.granted]
    if granted:
        rows = [
            (facts.called(one.client), _number(one.examples), _number(one.exposures), _share(one.spent, limits))
            for one, limits in _some(granted, SHOWN)
        ]
        title = f"Spent of what each client granted, in {facts.currency}; {len(rows)} of {facts.clients} clients"
        made.append(_scrolled(title, ("client", "examples", "exposures", "spent"), rows))
    return made if curves else [tag("p", "Nothing with a finite epsilon was released."), *made[1:]]


def chart(title: str, lines: Sequence[Line], write: Callable[[float], str], least: float | None = None) -> Html:
    """Lines over one axis, drawn here."""
    kept = [(name, _some(points, POINTS)) for name, points in lines if points]
    values = [y for _, points in kept for _, y in points if math.isfinite(y)]
    if not values:
        return Html("")
    low, high = min(values) if least is None else least, max(values)
    low, high = (low, high) if high > low else (low - 1, high + 1)
    first, last = min(x for _, p in kept for x, _ in p), max(x for _, p in kept for x, _ in p)
    across = (WIDTH - LEFT - 10) / ((last - first) or 1)
    up = (BOTTOM - 10) / (high - low)

    def place(x: float, y: float) -> str:
        return f"{LEFT + (x - first) * across:.1f},{BOTTOM - (y - low) * up:.1f}"

    parts = [_rule(BOTTOM - 180 * part, write(low + (high - low) * part)) for part in (0.0, 0.5, 1.0)]
    keys = []
    for i, (name, points) in enumerate(kept):
        look = {
            "stroke": f"var(--{palette.SERIES[i % len(palette.SERIES)]})",
            "stroke_dasharray": " ".join(map(str, palette.DASHES[i % len(palette.DASHES)])) or "none",
            "stroke_width": "2",
            "fill": "none",
        }
        drawn = [place(x, y) for x, y in points if math.isfinite(y)]
        parts.append(tag("polyline", points=" ".join(drawn if len(drawn) > 1 else drawn * 2), **look))
        key = tag("svg", tag("path", d="M0,4H24", **look), width="24", height="8", aria_hidden="true")
        keys.append(tag("li", key, " ", name))
    for x, anchor in ((first, "start"), (last, "end")):
        spot = f"{LEFT + (x - first) * across:.1f}"
        parts.append(tag("text", f"round {x:g}", x=spot, y=str(BOTTOM + 18), text_anchor=anchor))
    picture = tag("svg", *parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=title, style="max-width:100%")
    return tag(
        "figure", tag("figcaption", title), tag("div", picture, class_="plot"), tag("ul", *keys, class_="legend")
    )


def _rule(y: float, text: str) -> Html:
    line = tag("path", d=f"M{LEFT},{y:g}H{WIDTH - 10}", stroke="var(--line)")
    return joined([line, tag("text", text, x=str(LEFT - 6), y=f"{y + 4:g}", text_anchor="end")])


# pieces ---------------------------------------------------------------------------------------------------------------


def _top(title: str, lead: str, *notices: str) -> list[Html]:
    said = [tag("p", notice, class_="notice") for notice in notices if notice]
    return [tag("h1", title), tag("p", lead, class_="lead"), *said]


def _section(title: str, *inside: str) -> Html:
    return tag("section", tag("h2", title), *inside)


def _listed(title: str, lines: Sequence[str]) -> Html:
    return _section(title, listed(lines, class_="plain")) if lines else Html("")


def _scrolled(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str | int]]) -> Html:
    return tag("div", table(caption, columns, rows, class_="wide"), class_="scroll whole")


def _some(things: Sequence[T], most: int) -> list[T]:
    """So many at even distances, with the last one."""
    if len(things) <= most:
        return list(things)
    return [things[(i + 1) * len(things) // most - 1] for i in range(most)]


def _score(share: bool) -> Callable[[float], str]:
    return (lambda v: f"{v:.1%}") if share else (lambda v: f"{v:.4g}")


def _size(sent: int | None) -> str:
    return "" if sent is None else bytes_text(sent)


def _number(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


def _share(spent: Sequence[float], granted: Sequence[float]) -> str:
    return f"{max(part / limit for part, limit in zip(spent, granted, strict=True)):.0%}"
