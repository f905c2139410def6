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
from typing import Any

from sordino.errors import ConfigError
from sordino.report.palette import DASHES, LIGHT, SERIES

Facts = Mapping[str, Any]
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


def of_run(facts: Facts, out: Path, kind: str = "pdf") -> list[Path]:
    """Accuracy with the clients' band, over bytes and device compute, epsilon, traffic and the partition of one run."""
    available()
    return _save(facts, RUN, out, kind)


def of_comparison(facts: Facts, out: Path, kind: str = "pdf") -> list[Path]:
    """Accuracy over rounds, bytes, device compute and epsilon, one line or point per method."""
    available()
    return _save(facts, COMPARISON, out, kind)


def available() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError(
            "figures need matplotlib",
            why="it is not installed; pages and tables do without it",
            fix='pip install "sordino[plots]"',
            code="no-matplotlib",
        ) from None


def _save(facts: Facts, drawings: Mapping[str, Callable[[Facts, Any], bool]], out: Path, kind: str) -> list[Path]:
    import matplotlib
    from matplotlib.figure import Figure

    if kind not in UNDATED:
        raise ConfigError(f"no figure is a {kind!r}", fix=f"one of: {', '.join(UNDATED)}", code="unknown-figure-kind")
    out.mkdir(parents=True, exist_ok=True)
    written = []
    with matplotlib.rc_context(STYLE):
        for name, draw in drawings.items():
            figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
            if draw(facts, figure.subplots()):  # False: there is nothing to draw
                path = out / f"{name}.{kind}"
                figure.savefig(path, metadata=UNDATED[kind], dpi=300)
                written.append(path)
    return written


def line(i: int) -> dict[str, Any]:
    """Colour and dashes of the i-th line, as on the page."""
    dash = DASHES[(i + i // len(SERIES)) % len(DASHES)]
    return {"color": LIGHT[SERIES[i % len(SERIES)]], "linestyle": (0, dash) if dash else "solid"}


# one run --------------------------------------------------------------------------------------------------------------


def _accuracy(facts: Facts, axes: Any) -> bool:
    rows = [row for row in facts["metrics"] if "loss" in row]
    if not rows:
        return False
    metric = "accuracy" if "accuracy" in rows[-1] else "loss"
    scale = 100 if metric == "accuracy" else 1
    axes.plot([r["round"] for r in rows], [scale * r[metric] for r in rows], label=facts["model"], **line(0))
    seen = [row for row in rows if "clients" in row]
    if seen:
        x, mean, std, worst = (
            [r["round"] for r in seen],
            *([scale * r["clients"][name] for r in seen] for name in ("mean", "std", "worst_tenth")),
        )
        low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
        ceiling = 100 if metric == "accuracy" else math.inf
        low, high = [max(0.0, v) for v in low], [min(ceiling, v) for v in high]
        axes.fill_between(x, low, high, color=LIGHT["c2"], alpha=0.18, linewidth=0, label="clients, mean ± std")
        axes.plot(x, worst, label="worst 10 % of clients", **line(1))
    _name(axes, "round", f"test {metric}" + (" (%)" if metric == "accuracy" else ""))
    return True


def _epsilon(facts: Facts, axes: Any) -> bool:
    for i, curve in enumerate(facts["epsilon"]):
        status = "holds" if curve["status"] == "nominal" else curve["status"]
        axes.plot(*zip(*curve["points"], strict=True), label=f"{curve['unit']}, {curve['by']} ({status})", **line(i))
        if curve["nominal"]:
            style = {"color": LIGHT["warn"], "linestyle": (0, (1, 2)), "marker": "x", "markersize": 4}
            axes.plot(*zip(*curve["nominal"], strict=True), label="nominal: proves nothing", **style)
    axes.set_ylim(bottom=0)
    _name(axes, "round", f"ε at δ = {facts['delta']:g}")
    return bool(facts["epsilon"])


def _before(facts: Facts) -> list[Facts]:
    """What came before the first round, as a round 0."""
    return [] if facts.get("before") is None else [facts["before"]]


def _against(facts: Facts, axes: Any, names: tuple[str, ...], unit: float, label: str) -> bool:
    """Accuracy against what was spent, the preparation in front."""
    rows = [*_before(facts), *facts["metrics"]]
    scored = [row for row in rows if "loss" in row]
    if not scored or not all(name in row for row in rows for name in names):
        return False
    metric = "accuracy" if "accuracy" in scored[-1] else "loss"
    scale = 100 if metric == "accuracy" else 1
    spent = accumulate(sum(row[name] for name in names) / unit for row in rows)
    points = [(x, scale * row[metric]) for x, row in zip(spent, rows, strict=True) if metric in row]
    axes.plot(*zip(*points, strict=True), label=facts["model"], **line(0))
    axes.set_xlim(left=0)
    _name(axes, label, f"test {metric}" + (" (%)" if metric == "accuracy" else ""), legend=False)
    return True


def _traffic(facts: Facts, axes: Any) -> bool:
    rows = facts["metrics"]
    rows = [*_before(facts), *rows]
    for i, (key, name) in enumerate((("bytes_down", "down"), ("bytes_up", "up"))):
        sums = [total / 1e6 for total in accumulate(row[key] for row in rows)]
        axes.plot([row["round"] for row in rows], sums, label=name, **line(i))
    _name(axes, "round", "MB sent")
    return bool(rows)


def _partition(facts: Facts, axes: Any) -> bool:
    counts = facts["partition"]
    classes, top = len(counts[0]), max(map(max, counts))
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


def _curves(facts: Facts, axes: Any, axis: str, unit: float, label: str) -> bool:
    scale = 100 if facts["metric"] == "accuracy" else 1
    known = [method for method in facts["methods"] if all(p.get(axis) is not None for p in method["curve"])]
    for i, method in enumerate(facts["methods"]):
        if method not in known:
            continue
        points = method["curve"]
        x, mean = [p[axis] / unit for p in points], [scale * p["mean"] for p in points]
        axes.plot(x, mean, label=method["name"], **line(i))
        std = [scale * (p["std"] or 0.0) for p in points]
        low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=line(i)["color"], alpha=0.15, linewidth=0)
    _name(axes, label, f"test {facts['metric']}" + (" (%)" if scale == 100 else ""))
    return any(method["curve"] for method in known)


def _over_epsilon(facts: Facts, axes: Any) -> bool:
    names = [method["name"] for method in facts["methods"]]
    nominal = []
    for p in facts["points"]:
        colour, y = line(names.index(p["name"]))["color"], 100 * p["y"]
        bar = None if p["std"] is None else 100 * p["std"]
        marker = "o" if p["unit"] == "example" else "s"
        axes.errorbar([p["x"]], [y], yerr=bar, fmt=marker, color=colour, label=f"{p['name']} (per {p['unit']})")
        if p["nominal"] is not None:
            nominal.append((p["nominal"], y))
            axes.plot([p["nominal"], p["x"]], [y, y], color=LIGHT["warn"], linestyle=(0, (1, 2)), linewidth=1)
    if nominal:
        axes.plot(*zip(*nominal, strict=True), "x", color=LIGHT["warn"], label="nominal: proves nothing")
    if facts["points"]:
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        axes.set_xlim(low / 1.3, high * 1.3)
        axes.set_xticks(
            [m * 10.0**k for k in range(-3, 4) for m in (1, 2, 5) if low / 1.3 <= m * 10.0**k <= high * 1.3]
        )
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
    _name(axes, "ε", "test accuracy (%)")
    return bool(facts["points"])


def _name(axes: Any, x: str, y: str, legend: bool = True) -> None:
    if x == "round":
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if legend and axes.get_legend_handles_labels()[0]:
        axes.legend()


SENT = "MB sent, both directions"
COMPUTED = "TFLOP computed by devices"
RUN: Mapping[str, Callable[[Facts, Any], bool]] = {
    "accuracy": _accuracy,
    "accuracy-bytes": lambda facts, axes: _against(facts, axes, ("bytes_down", "bytes_up"), 1e6, SENT),
    "accuracy-compute": lambda facts, axes: _against(facts, axes, ("device_flops",), 1e12, COMPUTED),
    "epsilon": _epsilon,
    "traffic": _traffic,
    "partition": _partition,
}
COMPARISON: Mapping[str, Callable[[Facts, Any], bool]] = {
    "accuracy-rounds": lambda facts, axes: _curves(facts, axes, "round", 1, "round"),
    "accuracy-bytes": lambda facts, axes: _curves(facts, axes, "bytes", 1e6, SENT),
    "accuracy-compute": lambda facts, axes: _curves(facts, axes, "flops", 1e12, COMPUTED),
    "accuracy-epsilon": _over_epsilon,
}
