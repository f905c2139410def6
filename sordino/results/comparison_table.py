"""Table of a comparison, as text, CSV or LaTeX: means over seeds with standard deviation and n. Bytes include what was
sent before the first round.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table

from sordino.accounting.events import Json
from sordino.accounting.facts import Fact
from sordino.accounting.statement import Guarantee
from sordino.config import Experiment
from sordino.metrics import HEADLINES, Metric, bytes_text
from sordino.metrics.measures import (
    Measure,
    Metrics,
    at_bytes,
    at_round,
    before,
    bytes_to,
    final,
    headline,
    last_ten,
    mean_std,
    paired_p,
    rounds_to,
    traffic,
    worst_tenth,
)
from sordino.results import markup
from sordino.results.preparation_facts import label_of
from sordino.results.sweeps import Notes
from sordino.runs.listing import promise


class Measured(Fact):
    """One measure over seeds: mean, deviation, and the number of seeds with a value."""

    mean: float | None
    std: float | None
    n: int


class Row(Fact):
    """One method: its measures over seeds, and its guarantees."""

    method: str
    n: int
    target: float
    metric: Metric
    measured: Mapping[str, Measured]
    measured_by: str  # the models that were scored
    p_against_first: float | None
    candidates: str
    guarantees: tuple[Guarantee, ...]
    simulated: bool

    @property
    def promise(self) -> str:
        return promise(self.guarantees, self.simulated)

    def flat(self) -> dict[str, str | float | None]:
        """Raw numbers, under a name for every mean, deviation (`_std`) and count (`_n`)."""
        found: dict[str, str | float | None] = {
            "method": self.method,
            "n": self.n,
            "measured_by": self.measured_by,
            "target": self.target,
        }
        for name, over in self.measured.items():
            found |= {name: over.mean, f"{name}_std": over.std, f"{name}_n": over.n}
        return found | {"p_against_first": self.p_against_first, "candidates": self.candidates}

    def to_json(self) -> Json:
        return {
            **self.flat(),
            "promise": self.promise,
            "simulated": self.simulated,
            "guarantees": [row.to_json() for row in self.guarantees],
        }


@dataclass(frozen=True)
class Method:
    """One method of a comparison: the runs of its experiment under all seeds."""

    name: str
    runs: Sequence[Metrics]  # of each seed; what it prepared is a round 0
    promise: Sequence[Guarantee]  # each of the seed that guarantees least
    experiment: Experiment = Experiment()  # of the first seed, as it was run
    ledgers: tuple[Notes, ...] = ()  # releases in each seed's ledger

    @property
    def simulated(self) -> bool:
        return not self.experiment.privacy.real

    @property
    def measured_by(self) -> str:
        """Models that the scores were measured on, such as global or personal ones; several where rounds differ."""
        return ", then ".join(dict.fromkeys(row.measured for run in self.runs for row in run if row.loss is not None))

    def values(self, of: Measure) -> list[float]:
        return [value for run in self.runs if (value := of(run)) is not None]


def table(methods: Sequence[Method], target: float | None = None) -> list[Row]:
    """One row per method. The default target is the final score of the weakest method, so that all can reach it."""
    metric = headline([row for m in methods for run in m.runs for row in run])
    if target is None:
        ends = [statistics.fmean(values) for m in methods if (values := m.values(last_ten))]
        weakest = min if HEADLINES[metric].higher else max
        target = weakest(ends) if ends else 0.0
    rounds = max((row.round for m in methods for run in m.runs for row in run), default=0)
    cheapest = min((traffic(run) for m in methods for run in m.runs), default=0.0)
    measures: dict[str, Measure] = {
        "final": final,
        "last_ten": last_ten,
        "worst_tenth": worst_tenth,
        "at_half": at_round(rounds // 2),
        "at_equal_bytes": at_bytes(cheapest),
        "rounds_to_target": rounds_to(target),
        "bytes_to_target": bytes_to(target),
        "bytes": traffic,
        "before": before,
    }
    return [
        Row(
            method=method.name,
            n=len(method.runs),
            target=target,
            metric=metric,
            measured={name: _over_seeds(method.values(measure)) for name, measure in measures.items()},
            measured_by=method.measured_by,
            p_against_first=_p_against(methods[0], method),
            candidates=label_of(method.experiment),
            guarantees=tuple(method.promise),
            simulated=method.simulated,
        )
        for method in methods
    ]


def _over_seeds(values: Sequence[float]) -> Measured:
    """Mean and deviation over the seeds that have a value: some may never reach a target."""
    mean, std = mean_std(values)
    return Measured(mean=mean, std=std, n=len(values))


def _p_against(first: Method, method: Method) -> float | None:
    ours, theirs = method.values(last_ten), first.values(last_ten)
    alike = method.measured_by == first.measured_by  # a model of each client's own is not a better global model
    return None if method is first or not alike or len(ours) != len(theirs) else paired_p(ours, theirs)


COLUMNS: dict[str, tuple[str, Callable[[float], str] | None]] = {  # None: as the headline is written
    "final": ("final", None),
    "last_ten": ("last 10", None),
    "worst_tenth": ("worst 10%", None),
    "at_half": ("half-way", None),
    "at_equal_bytes": ("at equal bytes", None),
    "rounds_to_target": ("rounds to target", lambda v: f"{v:.1f}"),
    "bytes_to_target": ("bytes to target", bytes_text),
    "bytes": ("bytes", bytes_text),
    "before": ("of them before round 1", bytes_text),
}
MISSING = {
    "rounds_to_target": "not reached",
    "bytes_to_target": "not reached",
    "at_half": "not evaluated yet",
    "at_equal_bytes": "not evaluated yet",
}


def columns(rows: Sequence[Row]) -> list[str]:
    """Names of the columns; bytes before round 1 are left out where there were none."""
    return [name for name in COLUMNS if name != "before" or any(row.measured[name].mean for row in rows)]


def cell(row: Row, name: str) -> str:
    """Text of mean ± std, and the number of seeds without a value."""
    over, missing = row.measured[name], MISSING.get(name, "not known")
    write = COLUMNS[name][1] or HEADLINES[row.metric].bare
    if over.mean is None:
        return missing
    text = write(over.mean) if over.std in (None, 0.0) else f"{write(over.mean)} ± {write(over.std or 0.0)}"
    lacking = row.n - over.n
    return f"{text} ({missing}: {lacking} of {row.n})" if lacking else text


def lines(rows: Sequence[Row]) -> list[list[str]]:
    names, several = columns(rows), measured_by(rows) is None
    head = [
        "method",
        "n",
        *(["measured by"] * several),
        *(COLUMNS[name][0] for name in names),
        "p against the first",
        "promise",
    ]
    body = [
        [
            row.method,
            str(row.n),
            *([row.measured_by] * several),
            *(cell(row, name) for name in names),
            "" if row.p_against_first is None else f"{row.p_against_first:.3g}",
            row.promise,
        ]
        for row in rows
    ]
    return [head, *body]


def measured_by(rows: Sequence[Row]) -> str | None:
    """Models that all scores were measured on; None where methods differ in this."""
    found = {row.measured_by for row in rows}
    return found.pop() if len(found) == 1 else None


def caption(rows: Sequence[Row]) -> str:
    judged = HEADLINES[rows[0].metric]
    unit = "%" if judged.percent else ""
    what = "accuracies in %" if judged.name == "accuracy" else judged.full + (" in %" if judged.percent else "")
    whose = measured_by(rows)
    by = "measured as each row says, no p between ways" if whose is None else f"measured by {whose}"
    return (
        f"target {judged.bare(rows[0].target)}{unit}; {what}, {by}; mean ± standard deviation over seeds; "
        "last 10: mean of the last ten rounds measured, or of all where there are fewer; p: paired t-test of it"
    )


def sources(rows: Sequence[Row]) -> list[str]:
    """Warnings about public images (candidates) that are not, or not known to be, those of a text-to-image model, one
    for each method that trains on such."""
    return [f"{row.method}: {row.candidates}" for row in rows if row.candidates]


def shaped(rows: Sequence[Row]) -> list[list[str]]:
    """The table, transposed where methods are few: side by side they fit a terminal and a page."""
    table = lines(rows)
    return [list(column) for column in zip(*table, strict=True)] if len(rows) <= 5 else table


def text(rows: Sequence[Row]) -> Table:
    head, *body = shaped(rows)
    table = Table(title="\n".join([caption(rows), *map(escape, sources(rows))]), title_justify="left")
    for column in head:
        table.add_column(column)
    for line in body:
        table.add_row(*line)
    return table


def as_csv(rows: Sequence[Row]) -> str:
    """Raw numbers as CSV, one column per mean, deviation and count."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*rows[0].flat(), "promise"])
    for row in rows:
        values = ["" if value is None else value for value in row.flat().values()]
        writer.writerow([*values, row.promise])
    return out.getvalue()


def as_latex(rows: Sequence[Row]) -> str:
    escapes = str.maketrans(
        {"%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#", "±": r"$\pm$", "ε": r"$\varepsilon$", "δ": r"$\delta$"}
    )
    head, *body = ([value.translate(escapes) for value in line] for line in lines(rows))
    rule = r"\hline"
    middle = [" & ".join(line) + r" \\" for line in body]
    return (
        "\n".join(
            [
                *(f"% {source_line}" for source_line in (caption(rows), *sources(rows))),
                rf"\begin{{tabular}}{{l{'r' * (len(head) - 2)}l}}",
                " & ".join(head) + r" \\",
                rule,
                *middle,
                r"\end{tabular}",
            ]
        )
        + "\n"
    )


FORMATS: dict[str, Callable[[Sequence[Row]], str]] = {"csv": as_csv, "latex": as_latex}


def snippet(table: Sequence[Row], notes: Sequence[str]) -> str:
    """HTML of the table for a notebook, with the sentences that must accompany it."""
    head, *body = lines(table)
    paragraphs = (markup.tag("p", text) for text in (*sources(table), *notes))
    return markup.joined((markup.table(caption(table), head, body), *paragraphs))
