"""Output of `sordino privacy plan`: the guarantee, alternatives side by side, and a verdict on the noise."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sordino.accounting.facts import epsilon_text
from sordino.accounting.words import in_short
from sordino.cli.tables import STATUS_STYLE, guarantees
from sordino.metrics import bytes_text
from sordino.planning.calculator import Answer
from sordino.planning.planner import LOUD, NO_WAY, QUIET, PlanRow, SmallestFederation, warning, ways_out

if TYPE_CHECKING:
    from sordino.runs.forecast import Compared, Planned

WIDE = 105  # columns of a terminal from which every fact gets a column of its own


def _multiplier(row: PlanRow) -> str:
    return "-" if row.noise_multiplier is None else epsilon_text(row.noise_multiplier, 4)


def numbers(console: Console, answers: Sequence[Answer], given: float | None) -> None:
    """Print a plan without data. `given`: the noise multiplier, where epsilon was computed from it."""
    first = answers[0]
    q, made = first.question, first.promise
    promise = f"epsilon {epsilon_text(q.epsilon, 4)} at delta {q.delta:g}"
    whom = f"for one {made.unit} ({made.neighbours}), against {made.adversary}"
    needed = f"a noise multiplier of {epsilon_text(first.noise_multiplier, 4)}"
    if given is None:
        console.print(f"[bold]{promise}[/bold], {whom}, takes [bold]{needed}[/bold].")
    else:
        console.print(f"A noise multiplier of [bold]{given:g}[/bold] buys [bold]{promise}[/bold], {whom}.")
    console.print(
        f"[dim]That is noise of deviation {first.noise_std:.4g} on every coordinate of a sum of vectors clipped at "
        f"{q.clip:g} (--clip; set it to the typical norm of a public pilot, no ratio below depends on it). Status "
        f"{made.status}, accountant {made.accountant}.[/dim]"
    )
    console.print(table(answers, "What the promise costs", console.width))
    commands(console, answers)
    console.print(
        "[dim]MB: parameters of 4 bytes, down and up. After run, name an EXPERIMENT.toml with your data and model; "
        "without one, these train on the bundled digits, where they fit. `sordino privacy plan EXPERIMENT.toml` also "
        "knows the exact bytes and the minutes.[/dim]"
    )


def experiment(console: Console, found: Compared) -> None:
    """Print the plan of an experiment: facts, guarantees and alternatives."""
    facts(console, found.rows[0], found.timing, found.simulated)
    console.print(guarantees(found.guarantees, found.simulated))
    if len(found.rows) > 1:
        console.print(table(found.rows, "What else the same budget would buy", console.width))
        commands(console, found.rows)
    elif found.rows[0].promise:
        console.print(
            "[dim]A typed noise has no alternatives: set privacy.epsilon to see what else would keep it.[/dim]"
        )
    for what, why in found.impossible:
        console.print(f"[dim]not possible here: {escape(what)} ({escape(why)})[/dim]")


def facts(console: Console, row: Planned, timing: str, simulated: bool) -> None:
    grid = Table(show_header=False, box=box.SIMPLE, pad_edge=False)
    for name, value in _facts(row, timing, simulated):
        grid.add_row(f"[bold]{name}[/bold]", value)
    console.print(grid)


def _facts(row: Planned, timing: str, simulated: bool) -> Iterator[tuple[str, str]]:
    yield (
        "experiment",
        f"{row.clients:,} clients with {row.examples:,} examples, {row.cohort:g} expected in each of {row.rounds:,} "
        f"rounds, {row.parameters:,} parameters in an upload",
    )
    if (made := row.promise) is None:
        yield "promise", "[red]none[/red] that is paid for: the rows below say what holds"
    else:
        style, summary = STATUS_STYLE[made.status], in_short(made, simulated)
        yield "promise", f"[{style}]{summary}[/{style}], accountant {escape(made.accountant)}"
        yield (
            "noise",
            f"multiplier {_multiplier(row)} for the busiest client, with {row.participations:,} participations",
        )
    if made is not None and row.noise_to_signal is not None:
        signal = "gradients that add up to" if made.unit != "client" else "a mean update of"
        yield (
            "in the mean",
            f"noise of norm {row.noise_norm:.3g} over {signal} at most {row.largest_signal:.3g}: "
            f"{_ratio(row.noise_to_signal)} times the signal",
        )
    each = row.bytes_per_message
    yield (
        "traffic",
        f"{bytes_text(row.bytes_down)} down and {bytes_text(row.bytes_up)} up; the busiest client "
        f"{bytes_text(row.bytes_busiest_client)}, in messages of {bytes_text(each.down)} and {bytes_text(each.up)}",
    )
    yield "time", f"about {_duration(row.minutes or 0.0)} on this machine [dim]({timing})[/dim]"


def table(rows: Sequence[PlanRow], title: str, width: int) -> Table:
    made = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    columns = WIDE_COLUMNS if width >= WIDE else NARROW_COLUMNS
    timed = any(row.minutes is not None for row in rows)
    shown = {name: cell for name, cell in columns.items() if timed or name != "min"}
    made.add_column("", justify="right", no_wrap=True)
    for name in shown:
        words = name.startswith(("against", "neighbours"))
        made.add_column(name, justify="left" if words or name == "set-up" else "right", no_wrap=words)
    for number, row in enumerate(rows):
        made.add_row(str(number), *(cell(row) for cell in shown.values()), end_section=width < WIDE)
    return made


Cell = Callable[[PlanRow], str]
WIDE_COLUMNS: dict[str, Cell] = {
    "set-up": lambda row: escape(row.what),
    "against": lambda row: row.promise.adversary if row.promise else "",
    "neighbours": lambda row: row.promise.neighbours if row.promise else "",
    "clients": lambda row: f"{row.clients:,}",
    "cohort": lambda row: f"{row.cohort:,g}",
    "rounds": lambda row: f"{row.rounds:,}",
    "noise multiplier": _multiplier,
    "noise / largest signal": lambda row: _ratio(row.noise_to_signal),
    "MB": lambda row: _short(row.bytes / 1e6),
    "min": lambda row: "-" if row.minutes is None else "<0.1" if row.minutes < 0.1 else _short(row.minutes),
}
NARROW_COLUMNS: dict[str, Cell] = {
    "set-up": WIDE_COLUMNS["set-up"],
    "against,\nneighbours": lambda row: f"{row.promise.adversary}\n{row.promise.neighbours}" if row.promise else "",
    "clients,\ncohort": lambda row: f"{row.clients:,}\n{row.cohort:,g}",
    "rounds": WIDE_COLUMNS["rounds"],
    "noise\nmult.": WIDE_COLUMNS["noise multiplier"],
    "noise /\nsignal": WIDE_COLUMNS["noise / largest signal"],
    "MB": WIDE_COLUMNS["MB"],
    "min": WIDE_COLUMNS["min"],
}


def commands(console: Console, rows: Sequence[PlanRow]) -> None:
    console.print("To run one of them:")
    for number, row in enumerate(rows):
        line = " ".join(["sordino run", *map(_quoted, row.run)])
        console.print(f"{number:>2}  {line}", soft_wrap=True, highlight=False, markup=False)


def _quoted(word: str) -> str:
    """Quote a word for a shell; in double quotes where possible, because the TOML inside has single ones."""
    if re.fullmatch(r"[\w./=:+-]+", word):
        return word
    return shlex.quote(word) if re.search(r'["$`\\!]', word) else f'"{word}"'


def _ratio(value: float | None) -> str:
    if value is None:
        return "unknown"
    style = "green" if value < QUIET else "yellow" if value <= LOUD else "red"
    return f"[{style}]{value:.3g}[/{style}]"


def _duration(minutes: float) -> str:
    return f"{max(1.0, 60 * minutes):.0f} s" if minutes < 2 else f"{minutes:.0f} min"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def verdict(console: Console, ratio: float | None, found: Sequence[SmallestFederation], delta: float) -> None:
    """Print whether noise hides the signal, and in what federation it would not."""
    if ratio is None:
        return
    ways = ways_out(list(found), delta)
    if text := warning(ratio, ways or [NO_WAY]):
        console.print(f"[red]{text}[/red]")
    elif ways:
        console.print(
            f"[yellow]The noise in a round's mean is {ratio:.3g} times the largest signal. {' '.join(ways)}[/yellow]"
        )
