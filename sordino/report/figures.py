"""Figures for papers as PDF, PNG or SVG, drawn with matplotlib from the charts of the pages. Text stays text.

Needs the `plots` extra. No global state of matplotlib is changed: a notebook's own settings stay as they are.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from sordino.accounting.facts import delta_text
from sordino.errors import ConfigError, extra
from sordino.ledger.files import atomic_write
from sordino.metrics import HEADLINES, Headline
from sordino.report import run_facts
from sordino.report.charts import Line, Lines
from sordino.report.comparison_page import ComparisonFacts, charts, gather
from sordino.report.frame import LIGHT, SERIES, dashes
from sordino.report.run_facts import EVALUATOR, RunFacts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from sordino.results.comparison import Comparison

Shown = TypeVar("Shown", RunFacts, ComparisonFacts)
WIDTH, HEIGHT = 3.4, 2.5  # inches: one column
COLUMNS = 42  # letters of a legend in it
STYLE = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": LIGHT["soft"],
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LIGHT["line"],
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "lines.linewidth": 1.5,
    "pdf.fonttype": 42,  # text stays text: searchable, and editors accept it
    "svg.fonttype": "none",
    "text.parse_math": False,  # a dollar in a name is a dollar
    "svg.hashsalt": "sordino",  # the same facts give the same file
}
UNDATED = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}


def of_run(facts: RunFacts, out: Path, kind: str = "pdf") -> list[Path]:
    """Figures of one run: score over rounds, bytes and compute, epsilon, traffic and partition."""
    available()
    return _save(facts, RUN, out, kind, run_facts.judged_by(facts.metrics))


def of_comparison(facts: ComparisonFacts, out: Path, kind: str) -> list[Path]:
    """Figures of a comparison: score over rounds, bytes, compute and epsilon, one line or point per method."""
    available()
    return _save(facts, COMPARISON, out, kind, HEADLINES[facts.metric])


def draw_comparison(compared: Comparison, out: Path, kind: str = "pdf") -> list[Path]:
    """Figures of a comparison that has just been made."""
    return of_comparison(gather(compared), out, kind)


def available() -> None:
    with extra("plots", "figures", "no-matplotlib", otherwise="; pages and tables do not need it"):
        import matplotlib  # noqa: F401


def _save(
    facts: Shown, drawings: Mapping[str, Callable[[Shown, Axes], bool]], out: Path, kind: str, judged: Headline
) -> list[Path]:
    """Draw and save figures. A figure of the score is named for its measure: accuracy-bytes,
    mean-absolute-error-bytes. An evaluator's figures say so by their names, and their owner alone can read them.
    """
    import matplotlib
    from matplotlib.figure import Figure

    if kind not in UNDATED:
        raise ConfigError(
            f"figures cannot be saved as {kind!r}", fix=f"use one of {', '.join(UNDATED)}", code="unknown-figure-kind"
        )
    out.mkdir(parents=True, exist_ok=True)
    written, own = [], facts.notice.startswith(EVALUATOR)
    with matplotlib.rc_context(STYLE):
        for name, draw in drawings.items():
            figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
            if draw(facts, figure.subplots()):  # False: there is nothing to draw
                measure = name.replace(SCORE, judged.name.replace("_", "-"))
                path = out / f"{'evaluator-only-' * own}{measure}.{kind}"
                figure.savefig(drawn := BytesIO(), format=kind, metadata=UNDATED[kind], dpi=300)
                atomic_write(path, drawn.getvalue(), private=own)
                written.append(path)
    return written


class PlotLine(TypedDict):
    """Style of a line, as matplotlib takes it."""

    color: str
    linestyle: tuple[int, tuple[int, ...]] | str


def line(i: int) -> PlotLine:
    """Colour and dashes of the i-th line, as on the page."""
    dash = dashes(i)
    return {"color": LIGHT[SERIES[i % len(SERIES)]], "linestyle": (0, dash) if dash else "solid"}


def draw_lines(charts: Sequence[Lines | None], axes: Axes, named: bool = False) -> bool:
    """Draw the lines of several charts, with their bands, on the same axes; False where there is nothing to draw. A
    single line has no legend, unless it must be `named`.
    """
    shown = [chart for chart in charts if chart is not None and any(one.points for one in chart.lines)]
    for chart in shown:
        for i, one in enumerate(chart.lines):
            if one.points:
                _draw_line(one, chart, None if chart.unproved else i, axes)
    if shown:
        first = shown[0]
        if first.y.zero:
            axes.set_ylim(bottom=0)
        if first.x.zero:
            axes.set_xlim(left=0)
        several = sum(bool(one.points) for chart in shown for one in chart.lines) > 1
        _name(axes, first.x.paper or first.x.label, first.y.paper or first.y.label, legend=several or named)
    return bool(shown)


def _draw_line(one: Line, chart: Lines, i: int | None, axes: Axes) -> None:
    x, y = [spot.x / chart.x.unit for spot in one.points], [spot.y / chart.y.unit for spot in one.points]
    if i is None:
        style: dict[str, Any] = {"color": LIGHT["warn"], "linestyle": (0, (1, 2)), "marker": "x", "markersize": 4}
        axes.plot(x, y, label="nominal: proves nothing", **style)
        return
    axes.plot(x, y, label=one.label, **line(i))
    if any(spot.spread is not None for spot in one.points):
        most = chart.y.most / chart.y.unit
        around = [(spot.spread or 0.0) / chart.y.unit for spot in one.points]
        low = [m - s if math.isinf(most) else max(0.0, m - s) for m, s in zip(y, around, strict=True)]
        high = [min(most, m + s) for m, s in zip(y, around, strict=True)]
        axes.fill_between(x, low, high, color=line(i)["color"], alpha=0.16, linewidth=0)


def _partition(facts: RunFacts, axes: Axes) -> bool:
    counts = facts.partition or ((),)
    classes, top = len(counts[0]), max((max(row, default=0) for row in counts), default=0)
    if classes < 2 or not top:
        return False
    points = [(k, j, count) for k, row in enumerate(counts) for j, count in enumerate(row) if count]
    # the widest bubble fills its cell
    room = 72 * min((WIDTH - 0.7) / len(counts), (HEIGHT - 0.6) / classes)
    sizes = [max(0.2, room**2 * count / top) for *_, count in points]
    axes.scatter([k for k, *_ in points], [j for _, j, _ in points], s=sizes, color=LIGHT["c0"], linewidths=0)
    axes.set_yticks(range(0, classes, math.ceil(classes / 12)))
    axes.set_title(f"area: examples, at most {top}", fontsize=7, color=LIGHT["soft"])
    _name(axes, "client", "class", legend=False)
    return True


def _over_epsilon(facts: ComparisonFacts, axes: Axes) -> bool:
    names = [method.name for method in facts.methods]
    scale = HEADLINES[facts.metric].scale
    nominal: list[tuple[float, float]] = []
    for p in facts.points:
        colour, y = line(names.index(p.name))["color"], scale * p.score
        bar = None if p.std is None else scale * p.std
        marker = "o" if p.unit == "example" else "s"
        of_whom = f"{p.name} (per {p.unit}, {p.neighbours}, against {p.by}, δ {delta_text(p.delta)}, {p.standing})"
        axes.errorbar([p.epsilon], [y], yerr=bar, fmt=marker, color=colour, label=of_whom)
        if p.nominal_epsilon is not None:
            nominal.append((p.nominal_epsilon, y))
            across = [p.nominal_epsilon, p.epsilon]
            axes.plot(across, [y, y], color=LIGHT["warn"], linestyle=(0, (1, 2)), linewidth=1)
    if nominal:
        axes.plot(*zip(*nominal, strict=True), "x", color=LIGHT["warn"], label="nominal: proves nothing")
    if facts.points:
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        axes.set_xlim(low / 1.3, high * 1.3)
        ticks = [m * 10.0**k for k in range(-3, 4) for m in (1, 2, 5)]
        axes.set_xticks([tick for tick in ticks if low / 1.3 <= tick <= high * 1.3])
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
    axis = charts(facts)[0].y.paper
    _name(axes, "ε", axis)
    return bool(facts.points)


def _name(axes: Axes, x: str, y: str, legend: bool = True) -> None:
    from matplotlib.ticker import MaxNLocator

    if x == "round" and isinstance(locator := axes.xaxis.get_major_locator(), MaxNLocator):
        locator.set_params(integer=True)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if legend and axes.get_legend_handles_labels()[0]:
        for text in axes.legend().get_texts():  # what is cut off at the margin could be the status of an epsilon
            text.set_text(textwrap.fill(text.get_text(), COLUMNS, break_long_words=False, break_on_hyphens=False))


SCORE = "score"  # of a figure's name: the measure of the runs
RUN: Mapping[str, Callable[[RunFacts, Axes], bool]] = {
    SCORE: lambda facts, axes: draw_lines([run_facts.score(facts.model, facts.metrics)], axes),
    f"{SCORE}-bytes": lambda facts, axes: draw_lines([run_facts.score_over_bytes(facts)], axes),
    f"{SCORE}-compute": lambda facts, axes: draw_lines([run_facts.score_over_compute(facts)], axes),
    "epsilon": lambda facts, axes: draw_lines(run_facts.epsilons(facts), axes, named=True),
    "traffic": lambda facts, axes: draw_lines([run_facts.traffic(run_facts.whole(facts))], axes),
    "partition": _partition,
}
COMPARISON: Mapping[str, Callable[[ComparisonFacts, Axes], bool]] = {
    f"{SCORE}-rounds": lambda facts, axes: draw_lines(charts(facts)[0:1], axes),
    f"{SCORE}-bytes": lambda facts, axes: draw_lines(charts(facts)[1:2], axes),
    f"{SCORE}-compute": lambda facts, axes: draw_lines(charts(facts)[2:3], axes),
    f"{SCORE}-epsilon": _over_epsilon,
}
