"""What the page of a comparison shows: the table, curves over seeds, promises in words, and what choosing among them
costs.
"""

from __future__ import annotations

import json
import math
import os
import platform
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import BaseModel

from sordino.accounting.claims import Status, Unit
from sordino.accounting.facts import Epsilon, Fact, Number
from sordino.accounting.statement import Guarantee, strongest
from sordino.accounting.words import Described, described
from sordino.ledger.files import atomic_write
from sordino.metrics.headlines import HEADLINES, Metric
from sordino.metrics.measures import Metrics, Point, curve, headline
from sordino.metrics.preparation_cost import flops_until
from sordino.report import still
from sordino.report.run_facts import EVALUATOR
from sordino.report.run_page import assemble
from sordino.results.comparison_table import Row, caption, measured_by, shaped, sources
from sordino.version import __version__

if TYPE_CHECKING:
    from sordino.results.comparison import Comparison

SIMULATIONS = (
    "Simulations: the noise came from seeds. The numbers describe what the same runs promise with real noise; these "
    "runs themselves protect nobody."
)
SHOWS_SCORES = (
    f"{EVALUATOR}: not to be shared. Some of these runs protect somebody, and no epsilon covers the scores on this "
    "page."
)
UNSAID = ("name", "seed", "engine")  # how a run is done, or told apart


class Side(NamedTuple):
    """One method of a comparison."""

    name: str
    runs: Sequence[Metrics]  # seed by seed; a round 0 is what came before the first one
    promise: Sequence[Guarantee]
    experiment: str  # TOML
    simulated: bool


class CurvePoint(Point):
    flops: float | None  # that devices had computed by then


class MethodFacts(Fact):
    """What the page shows of one method."""

    name: str
    label: str  # of its line: the name, and whose answers are scored where methods differ in it
    curve: tuple[CurvePoint, ...]
    guarantees: tuple[Described, ...]
    differs: str
    experiment: str


class Tradeoff(Fact):
    """An accuracy against a finite epsilon."""

    name: str
    unit: Unit
    by: str
    x: float
    nominal: Epsilon | None
    delta: float
    status: Status
    y: float
    std: float | None
    standing: str  # the status, as it is shown


class Machine(Fact):
    sordino: str
    python: str
    platform: str
    cores: int | None


class ComparisonFacts(Fact):
    """All that the page and the figures of a comparison show."""

    title: str
    lead: str
    notice: str  # what must not be overlooked
    metric: Metric
    seeds: int
    caption: str
    measured_by: str  # whose answers all scores are of; of methods that differ, their labels say it
    candidates: tuple[str, ...]
    prepared: bool
    table: tuple[tuple[str, ...], ...]
    methods: tuple[MethodFacts, ...]
    points: tuple[Tradeoff, ...]
    choosing: tuple[str, ...]
    equal: tuple[tuple[str, str], ...]
    command: str
    environment: Machine


Setting = BaseModel | Mapping[str, object] | Number | str | None  # of an experiment


def gather(compared: Comparison) -> ComparisonFacts:
    """All that the page and the figures of a comparison show."""
    from sordino.results.comparison import EQUAL  # a page of one run needs no runs

    table, first = compared.table, compared.methods[0].experiment
    sides = [Side(m.name, m.runs, m.promise, m.experiment.toml(), m.simulated) for m in compared.methods]
    equal = {name: getattr(first, name) for name in EQUAL}
    metric = headline([row for side in sides for run in side.runs for row in run])
    seeds, promised = len(sides[0].runs), [described(side.promise, side.simulated) for side in sides]
    whose = measured_by(table)
    both = zip(sides, promised, _differences(sides), strict=True)
    return ComparisonFacts(
        title=" · ".join(side.name for side in sides),
        lead=f"{len(sides)} methods, {_count(seeds, 'seed')} each, {_count(first.rounds, 'round')} on "
        f"{first.data.source}. "
        + ("Accuracies are" if metric == "accuracy" else f"{HEADLINES[metric].full.capitalize()} is")
        + " on test data, at the end of the runs.",
        notice=SHOWS_SCORES
        if any(not side.simulated for side in sides)
        else SIMULATIONS
        if any(strongest(side.promise) for side in sides)
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
                name=side.name,
                label=side.name if whose is not None else f"{side.name} ({row.measured_by})",
                curve=_curve(side.runs, metric),
                guarantees=said,
                differs=differs,
                experiment=side.experiment,
            )
            for row, (side, said, differs) in zip(table, both, strict=True)
        ),
        points=tuple(point for row, said in zip(table, promised, strict=True) for point in _points(row, said)),
        choosing=tuple(compared.choosing),
        equal=tuple((name, _said(value)) for name, value in equal.items()),
        command=compared.command,
        environment=Machine(
            sordino=__version__,
            python=platform.python_version(),
            platform=platform.platform(),
            cores=os.cpu_count(),
        ),
    )


def page(compared: Comparison, out: Path) -> Path:
    """Writes the page of a comparison."""
    return write(gather(compared), out)


def write(facts: ComparisonFacts, out: Path) -> Path:
    out.parent.mkdir(parents=True, exist_ok=True)
    text = assemble(f"sordino: {facts.title}", facts, still.of_comparison(facts), "web/comparison.js")
    atomic_write(out, text.encode(), private=facts.notice == SHOWS_SCORES)
    return out


def _curve(runs: Sequence[Metrics], metric: Metric) -> tuple[CurvePoint, ...]:
    computed = flops_until(runs)
    return tuple(CurvePoint(**dict(point), flops=computed.get(point.round)) for point in curve(runs, metric))


def _points(row: Row, guarantees: Sequence[Described]) -> list[Tradeoff]:
    """Accuracy against each finite epsilon; of several adversaries the first stands for its unit, the strongest."""
    if row.measured["last_ten"].mean is None:
        return []
    found: dict[Unit, Tradeoff] = {}
    for g in guarantees:
        if g.epsilon != math.inf:
            point = Tradeoff(
                name=row.method,
                unit=g.unit,
                by=g.by,
                x=g.epsilon,
                nominal=g.nominal_epsilon,
                delta=g.delta,
                status=g.status,
                y=row.measured["last_ten"].mean,
                std=row.measured["last_ten"].std,
                standing=g.standing,
            )
            found.setdefault(g.unit, point)
    return list(found.values())


def _differences(sides: Sequence[Side]) -> list[str]:
    tables = [tomllib.loads(side.experiment) for side in sides]
    names = [name for name in dict.fromkeys(n for t in tables for n in t) if name not in UNSAID]
    unlike = [name for name in names if any(t.get(name) != tables[0].get(name) for t in tables)]
    return ["; ".join(f"{name}: {_said(t[name])}" for name in unlike if name in t) for t in tables]


def _said(value: Setting) -> str:
    told = value.model_dump(mode="json", exclude_none=True) if isinstance(value, BaseModel) else value
    if isinstance(told, Mapping):
        return ", ".join(f"{key} = {json.dumps(part)}" for key, part in told.items())
    return json.dumps(told)


def _count(n: Setting, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"
