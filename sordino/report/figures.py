"""Figures for papers, from the same facts as the pages: PDF, PNG or SVG, text kept as text, colours that everyone can
tell apart.

Needs matplotlib (the `plots` extra). No global state: figures are made, saved and dropped, so a notebook's own settings
stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, TypeVar

from sordino.errors import ConfigError
from sordino.metrics.headlines import HEADLINES, MEASURED, Headline
from sordino.metrics.measures import headline, last_scored, scores
from sordino.metrics.rows import RoundRow
from sordino.report.comparison_page import ComparisonFacts, CurvePoint, gather
from sordino.report.palette import DASHES, LIGHT, SERIES
from sordino.report.run_facts import RunFacts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from sordino.results.comparison import Comparison

Shown = TypeVar("Shown", RunFacts, ComparisonFacts)
WIDTH, HEIGHT = 3.4, 2.5  # inches: one column
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
    """What the run is judged by with the clients' band, over bytes and device compute, epsilon, traffic and the
    partition of one run.
    """
    available()
    return _save(facts, RUN, out, kind, _headline(facts))


def of_comparison(facts: ComparisonFacts, out: Path, kind: str = "pdf") -> list[Path]:
    """What the runs are judged by over rounds, bytes, device compute and epsilon, one line or point per method."""
    available()
    return _save(facts, COMPARISON, out, kind, HEADLINES[facts.metric])


def draw_comparison(compared: Comparison, out: Path, kind: str = "pdf") -> list[Path]:
    """Draws the figures of a comparison."""
    return of_comparison(gather(compared), out, kind)


def available() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError(
            "figures need matplotlib",
            why="it is not installed; pages and tables do not need it",
            fix='pip install "sordino[plots]"',
            code="no-matplotlib",
        ) from None


def _save(
    facts: Shown, drawings: Mapping[str, Callable[[Shown, Axes], bool]], out: Path, kind: str, judged: Headline
) -> list[Path]:
    """A figure of the score is named for the measure that it shows: accuracy-bytes, mean-absolute-error-bytes."""
    import matplotlib
    from matplotlib.figure import Figure

    if kind not in UNDATED:
        raise ConfigError(
            f"figures cannot be saved as {kind!r}", fix=f"use one of {', '.join(UNDATED)}", code="unknown-figure-kind"
        )
    out.mkdir(parents=True, exist_ok=True)
    written = []
    with matplotlib.rc_context(STYLE):
        for name, draw in drawings.items():
            figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
            if draw(facts, figure.subplots()):  # False: there is nothing to draw
                path = out / f"{name.replace(SCORE, judged.name.replace('_', '-'))}.{kind}"
                figure.savefig(path, metadata=UNDATED[kind], dpi=300)
                written.append(path)
    return written


class PlotLine(TypedDict):
    color: str
    linestyle: tuple[int, tuple[int, ...]] | str


def line(i: int) -> PlotLine:
    """Colour and dashes of the i-th line, as on the page."""
    dash = DASHES[(i + i // len(SERIES)) % len(DASHES)]
    return {"color": LIGHT[SERIES[i % len(SERIES)]], "linestyle": (0, dash) if dash else "solid"}


# one run --------------------------------------------------------------------------------------------------------------


def _score(facts: RunFacts, axes: Axes) -> bool:
    judged = _headline(facts)
    rows, scale = scores(facts.metrics, judged.name), judged.scale
    if not rows:
        return False
    axes.plot([row.round for row, _ in rows], [scale * score for _, score in rows], label=facts.model, **line(0))
    seen = [(row.round, row.clients) for row, _ in rows if row.clients is not None]
    if seen:
        x, mean, std = [t for t, _ in seen], [scale * c.mean for _, c in seen], [scale * c.std for _, c in seen]
        low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
        ceiling = 100 if judged.percent else math.inf
        low, high = [max(0.0, v) for v in low], [min(ceiling, v) for v in high]
        axes.fill_between(x, low, high, color=LIGHT["c2"], alpha=0.18, linewidth=0, label="clients, mean ± std")
        axes.plot(x, [scale * c.worst_tenth for _, c in seen], label="worst 10 % of clients", **line(1))
    _name(axes, "round", judged.axis)
    return True


def _headline(facts: RunFacts) -> Headline:
    """What the last evaluated round is judged by."""
    last = last_scored(facts.metrics)
    return HEADLINES[headline([] if last is None else [last])]


def _epsilon(facts: RunFacts, axes: Axes) -> bool:
    for i, curve in enumerate(facts.epsilon):
        axes.plot(*zip(*curve.points, strict=True), label=f"{curve.unit}, {curve.by}: {curve.standing}", **line(i))
        if curve.nominal:
            spent, label = zip(*curve.nominal, strict=True), "nominal: proves nothing"
            axes.plot(*spent, label=label, color=LIGHT["warn"], linestyle=(0, (1, 2)), marker="x", markersize=4)
    axes.set_ylim(bottom=0)
    _name(axes, "round", f"ε at δ = {facts.delta:g}")
    return bool(facts.epsilon)


def _whole(facts: RunFacts) -> list[RoundRow]:
    """What came before the first round, as a round 0, and all rounds."""
    return [*([] if facts.before is None else [facts.before]), *facts.metrics]


def _against(facts: RunFacts, axes: Axes, cost: Callable[[RoundRow], float | None], unit: float, label: str) -> bool:
    """The score against what was spent, the preparation in front."""
    rows, judged = _whole(facts), _headline(facts)
    spent = [known / unit for row in rows if (known := cost(row)) is not None]
    if last_scored(facts.metrics) is None or len(spent) < len(rows):
        return False
    until = dict(zip((row.round for row in rows), accumulate(spent), strict=True))
    points = [(until[row.round], judged.scale * score) for row, score in scores(rows, judged.name)]
    axes.plot(*zip(*points, strict=True), label=facts.model, **line(0))
    axes.set_xlim(left=0)
    _name(axes, label, judged.axis, legend=False)
    return True


def _sent(row: RoundRow) -> float | None:
    return None if row.bytes_down is None or row.bytes_up is None else row.bytes


def _traffic(facts: RunFacts, axes: Axes) -> bool:
    rows = _whole(facts)
    if any(_sent(row) is None for row in rows):  # of a hidden cohort nobody is told
        return False
    both = ("down", [row.bytes_down or 0 for row in rows]), ("up", [row.bytes_up or 0 for row in rows])
    for i, (name, sizes) in enumerate(both):
        axes.plot([row.round for row in rows], [total / 1e6 for total in accumulate(sizes)], label=name, **line(i))
    _name(axes, "round", "MB sent")
    return bool(rows)


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


# a comparison ---------------------------------------------------------------------------------------------------------


def _curves(
    facts: ComparisonFacts, axes: Axes, read: Callable[[CurvePoint], float | None], unit: float, label: str
) -> bool:
    scale, drawn = HEADLINES[facts.metric].scale, False
    for i, method in enumerate(facts.methods):
        x = [known / unit for p in method.curve if (known := read(p)) is not None]
        if len(x) < len(method.curve):
            continue
        drawn = drawn or bool(x)
        mean, std = [scale * (p.mean or 0.0) for p in method.curve], [scale * (p.std or 0.0) for p in method.curve]
        axes.plot(x, mean, label=method.label, **line(i))
        low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=line(i)["color"], alpha=0.15, linewidth=0)
    _name(axes, label, _axis(facts))
    return drawn


def _axis(facts: ComparisonFacts) -> str:
    """Label of the score's axis, with the model where it is not the global one."""
    axis = HEADLINES[facts.metric].axis
    return axis if facts.measured_by == MEASURED["global"] else f"{axis}\n{facts.measured_by}"


def _over_epsilon(facts: ComparisonFacts, axes: Axes) -> bool:
    names = [method.name for method in facts.methods]
    nominal: list[tuple[float, float]] = []
    for p in facts.points:
        scale = HEADLINES[facts.metric].scale
        colour, y = line(names.index(p.name))["color"], scale * p.y
        bar = None if p.std is None else scale * p.std
        marker = "o" if p.unit == "example" else "s"
        axes.errorbar([p.x], [y], yerr=bar, fmt=marker, color=colour, label=f"{p.name} (per {p.unit})")
        if p.nominal is not None:
            nominal.append((p.nominal, y))
            axes.plot([p.nominal, p.x], [y, y], color=LIGHT["warn"], linestyle=(0, (1, 2)), linewidth=1)
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
    _name(axes, "ε", _axis(facts))
    return bool(facts.points)


def _name(axes: Axes, x: str, y: str, legend: bool = True) -> None:
    from matplotlib.ticker import MaxNLocator

    if x == "round" and isinstance(locator := axes.xaxis.get_major_locator(), MaxNLocator):
        locator.set_params(integer=True)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if legend and axes.get_legend_handles_labels()[0]:
        axes.legend()


SCORE = "score"  # of a figure's name: what the runs are judged by
SENT = "MB sent, both directions"
COMPUTED = "TFLOP computed by devices"
RUN: Mapping[str, Callable[[RunFacts, Axes], bool]] = {
    SCORE: _score,
    f"{SCORE}-bytes": lambda facts, axes: _against(facts, axes, _sent, 1e6, SENT),
    f"{SCORE}-compute": lambda facts, axes: _against(facts, axes, lambda row: row.device_flops, 1e12, COMPUTED),
    "epsilon": _epsilon,
    "traffic": _traffic,
    "partition": _partition,
}
COMPARISON: Mapping[str, Callable[[ComparisonFacts, Axes], bool]] = {
    f"{SCORE}-rounds": lambda facts, axes: _curves(facts, axes, lambda point: point.round, 1, "round"),
    f"{SCORE}-bytes": lambda facts, axes: _curves(facts, axes, lambda point: point.bytes, 1e6, SENT),
    f"{SCORE}-compute": lambda facts, axes: _curves(facts, axes, lambda point: point.flops, 1e12, COMPUTED),
    f"{SCORE}-epsilon": _over_epsilon,
}
