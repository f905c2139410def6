"""The page of a comparison: its table, curves over seeds, guarantees in words, and the cost of choosing a method."""

from __future__ import annotations

import json
import math
import os
import platform
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from sordino.accounting.claims import Unit
from sordino.accounting.facts import Fact, Number, delta_text, epsilon_text
from sordino.accounting.statement import strongest
from sordino.accounting.words import Described, described
from sordino.ledger.files import atomic_write
from sordino.metrics import HEADLINES, MEASURED, Metric
from sordino.metrics.measures import Point, curve, headline
from sordino.report.charts import Axis, Line, LinePoint, Lines, ScatterPoint, lines, points
from sordino.report.frame import promises, self_contained, top
from sordino.report.run_facts import COMPUTED, EPSILON, EVALUATOR, ROUND, SENT, score_axis, written
from sordino.report.run_page import configuration
from sordino.results.comparison_table import Row, caption, measured_by, shaped, sources
from sordino.results.markup import Html, folded, joined, scrolled, section, tag
from sordino.version import __version__

if TYPE_CHECKING:
    from sordino.results.comparison import Comparison

SIMULATIONS = (
    "Simulations: the noise came from seeds. The numbers describe what the same runs promise with real noise; these "
    "runs themselves protect nobody."
)
SHOWS_SCORES = (
    f"{EVALUATOR}: not to be shared. Some of these runs have real noise, and no epsilon covers the scores on this page."
)
UNSAID = ("name", "seed", "engine")  # settings that are no difference between methods


class MethodFacts(Fact):
    """Facts about one method for the page: its curve, its guarantees, and the settings in which it differs."""

    name: str
    label: str  # of its line: the name, and the models that are scored where methods differ in it
    curve: tuple[Point, ...]
    guarantees: tuple[Described, ...]
    differs: str
    experiment: str


class Tradeoff(Described):
    """A method's score beside its guaranteed epsilon, if finite."""

    name: str
    score: float
    std: float | None


class ComparisonFacts(Fact):
    """Everything that the page and the figures of a comparison show."""

    title: str
    lead: str
    notice: str  # shown on top: it must not be overlooked
    metric: Metric
    seeds: int
    caption: str
    measured_by: str  # the models that all scores are of; where methods differ in it, their labels say so
    candidates: tuple[str, ...]
    prepared: bool
    table: tuple[tuple[str, ...], ...]
    methods: tuple[MethodFacts, ...]
    points: tuple[Tradeoff, ...]
    choosing: tuple[str, ...]
    equal: tuple[tuple[str, str], ...]
    command: str
    environment: dict[str, str | int | None]


Setting = BaseModel | Mapping[str, object] | Number | str | None  # of an experiment


def gather(compared: Comparison) -> ComparisonFacts:
    """Facts of a comparison for its page and figures."""
    from sordino.results.comparison import EQUAL  # a page of one run needs no runs

    table, methods = compared.table, compared.methods
    first = methods[0].experiment
    metric = headline([row for m in methods for run in m.runs for row in run])
    seeds, promised = len(methods[0].runs), [described(m.promise, m.simulated) for m in methods]
    whose, written_out = measured_by(table), [m.experiment.toml() for m in methods]
    each = zip(table, methods, promised, written_out, _differences(written_out), strict=True)
    return ComparisonFacts(
        title=" · ".join(m.name for m in methods),
        lead=f"{len(methods)} methods, {_count(seeds, 'seed')} each, {_count(first.rounds, 'round')} on "
        f"{first.data.source}. "
        + ("Accuracies are" if metric == "accuracy" else f"{HEADLINES[metric].full.capitalize()} is")
        + " on test data, at the end of the runs.",
        notice=SHOWS_SCORES
        if any(not m.simulated for m in methods)
        else SIMULATIONS
        if any(strongest(m.promise) for m in methods)
        else "",
        metric=metric,
        seeds=seeds,
        caption=caption(table),
        measured_by=whose or "measured as each line says",
        candidates=tuple(sources(table)),
        prepared=any(row.measured["before"].mean for row in table),
        table=tuple(map(tuple, shaped(table))),
        methods=tuple(
            MethodFacts(
                name=m.name,
                label=m.name if whose is not None else f"{m.name} ({row.measured_by})",
                curve=tuple(curve(m.runs, metric)),
                guarantees=guarantees,
                differs=differs,
                experiment=toml,
            )
            for row, m, guarantees, toml, differs in each
        ),
        points=tuple(
            point for row, guarantees in zip(table, promised, strict=True) for point in _points(row, guarantees)
        ),
        choosing=tuple(compared.choosing),
        equal=tuple((name, _said(getattr(first, name))) for name in EQUAL),
        command=compared.command,
        environment={
            "sordino": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "cores": os.cpu_count(),
        },
    )


def page(compared: Comparison, out: Path) -> Path:
    """Write the page of a comparison."""
    return write(gather(compared), out)


def write(facts: ComparisonFacts, out: Path) -> Path:
    out.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(out, text(facts).encode(), private=facts.notice == SHOWS_SCORES)
    return out


def text(facts: ComparisonFacts) -> str:
    """The page as HTML."""
    columns, *rows = facts.table
    words = columns[1:] if columns[1:2] == (facts.methods[0].name,) else ("promise",)
    return self_contained(
        f"sordino: {facts.title}",
        top(facts.title, facts.lead, facts.notice, *facts.candidates),
        section("Result", scrolled(facts.caption, columns, rows, words, whole=True)),
        section("Learning", tag("div", *map(lines, charts(facts)), class_="grid")),
        section(
            f"{HEADLINES[facts.metric].words.capitalize()} and privacy",
            tag(
                "div", *(_tradeoff(facts, unit) for unit in dict.fromkeys(p.unit for p in facts.points)), class_="grid"
            ),
        )
        if facts.points
        else "",
        section("Privacy guarantees of each method", *_guarantees(facts)),
        section("Choosing among them", *(tag("p", sentence) for sentence in facts.choosing)),
        section("Settings held equal", *_equal(facts)),
        section(
            "Do it again",
            tag("p", "This command makes the comparison again; finished runs are not repeated:"),
            tag("pre", facts.command, tabindex="0"),
            *(configuration(f"Configuration of {m.name}, seed 0", m.experiment) for m in facts.methods),
            folded("Environment", tag("pre", json.dumps(facts.environment, indent=2), tabindex="0")),
        ),
    )


def charts(facts: ComparisonFacts) -> list[Lines]:
    """The score of all methods over rounds, bytes and device compute; then the clients that are served worst."""
    judged = HEADLINES[facts.metric]
    band = f" Band: ± one standard deviation over {facts.seeds} seeds." if facts.seeds > 1 else ""
    ends = [m.curve[-1] for m in facts.methods if m.curve]
    prepared = ", from before the first round on" if facts.prepared else ""
    unknown = " It is not known for every method." if any(end.flops is None for end in ends) else ""
    sent, computed = [end.bytes for end in ends], [end.flops for end in ends]
    about = "Of all devices, counted from public sizes."
    drawn: tuple[tuple[str, str, Axis, Callable[[Point], float | None]], ...] = (
        ("over rounds", f"{facts.measured_by}, mean over seeds.", ROUND, lambda p: p.round),
        ("over bytes sent", f"Both directions, as serialised{prepared}.", _far(SENT, sent), lambda p: p.bytes),
        ("over device compute", f"{about}{unknown}", _far(COMPUTED, computed), lambda p: p.flops),
    )
    axis = score_axis(
        judged, judged.axis if facts.measured_by == MEASURED["global"] else f"{judged.axis}\n{facts.measured_by}"
    )
    found = [
        Lines(f"Test {judged.full} {over}", about[0].upper() + about[1:] + band, x, axis, _means(facts, read))
        for over, about, x, read in drawn
    ]
    worst = [
        Line(
            m.label,
            [LinePoint(p.round, p.worst, p.worst_std, _seeds(p, facts)) for p in m.curve if p.worst is not None],
        )
        for m in facts.methods
    ]
    about = f"Mean {judged.words} of the tenth of the clients that is served worst.{band}"
    return [*found, Lines("Worst 10% of clients", about, ROUND, axis, worst)]


def _means(facts: ComparisonFacts, read: Callable[[Point], float | None]) -> list[Line]:
    return [
        Line(
            m.label,
            [
                LinePoint(x, p.mean, p.std, _seeds(p, facts))
                for p in m.curve
                if p.mean is not None and (x := read(p)) is not None
            ],
        )
        for m in facts.methods
    ]


def _seeds(point: Point, facts: ComparisonFacts) -> str:
    """Remark on the number of seeds that reached this point; empty where all did."""
    return "" if point.n == facts.seeds else f" ({_count(point.n, 'seed')})"


def _far(axis: Axis, ends: Sequence[float | None]) -> Axis:
    """The axis, made logarithmic where the largest value is more than ten times the smallest."""
    known = [end for end in ends if end]
    return axis._replace(log=bool(known) and max(known) > 10 * min(known))


def _tradeoff(facts: ComparisonFacts, unit: Unit) -> Html:
    judged = HEADLINES[facts.metric]
    shown, write, names = [p for p in facts.points if p.unit == unit], written(judged), [m.name for m in facts.methods]
    columns = (
        "method", "against", "neighbours", "epsilon that holds", "nominal epsilon", "delta", "status",
        f"{judged.words}, mean of last 10", "± std",
    )  # fmt: skip
    rows = [
        (
            p.name,
            p.by,
            p.neighbours,
            epsilon_text(p.epsilon),
            "" if p.nominal_epsilon is None else epsilon_text(p.nominal_epsilon),
            delta_text(p.delta),
            p.standing,
            write(p.score),
            "" if p.std is None else write(p.std),
        )
        for p in shown
    ]
    return points(
        f"{judged.words.capitalize()} and epsilon per {unit}",
        "Filled: an epsilon that holds. Red cross: the epsilon of a published formula, which proves nothing; the "
        "dotted line leads to what holds. Methods without a finite epsilon are not drawn.",
        Axis(f"epsilon per {unit}", EPSILON),
        score_axis(judged),
        [ScatterPoint(p.name, names.index(p.name), p.epsilon, p.score, p.std, p.nominal_epsilon) for p in shown],
        (columns, rows),
    )


def _guarantees(facts: ComparisonFacts) -> list[Html]:
    """Guarantees in words; methods with the same guarantees share one list."""
    alike: dict[tuple[tuple[str, str], ...], list[MethodFacts]] = {}
    for m in facts.methods:
        alike.setdefault(tuple((g.status, g.words) for g in m.guarantees), []).append(m)
    return [
        joined([tag("h3", " · ".join(m.name for m in same)), promises(same[0].guarantees)]) for same in alike.values()
    ]


def _equal(facts: ComparisonFacts) -> list[Html]:
    text = (
        "Equal for all methods, seed by seed: the data, their partition among clients, client sampling, the initial "
        "weights and the evaluation. No row is a best round, and nothing was chosen on test data."
    )
    unlike = [(m.name, m.differs) for m in facts.methods]
    return [
        tag("p", text),
        scrolled("Settings held equal", ("equal for all", "value"), facts.equal, ("value",), whole=True),
        tag("p", "Settings that differ:"),
        scrolled("Settings that differ", ("method", "settings"), unlike, ("settings",), whole=True),
    ]


def _points(row: Row, guarantees: Sequence[Described]) -> list[Tradeoff]:
    """Score against epsilon, one point for each unit with a finite epsilon: of its strongest adversary, which is listed
    first.
    """
    over = row.measured["last_ten"]
    if over.mean is None:
        return []
    found: dict[Unit, Tradeoff] = {}
    for g in guarantees:
        if g.epsilon != math.inf:
            found.setdefault(g.unit, Tradeoff(**dict(g), name=row.method, score=over.mean, std=over.std))
    return list(found.values())


def _differences(experiments: Sequence[str]) -> list[str]:
    tables = [tomllib.loads(toml) for toml in experiments]
    names = [name for name in dict.fromkeys(n for t in tables for n in t) if name not in UNSAID]
    unlike = [name for name in names if any(t.get(name) != tables[0].get(name) for t in tables)]
    return ["; ".join(f"{name}: {_said(t[name])}" for name in unlike if name in t) for t in tables]


def _said(value: Setting) -> str:
    plain = value.model_dump(mode="json", exclude_none=True) if isinstance(value, BaseModel) else value
    if isinstance(plain, Mapping):
        return ", ".join(f"{key} = {json.dumps(part)}" for key, part in plain.items())
    return json.dumps(plain)


def _count(n: Setting, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"
