"""Pages of the tables: `README.md` and `table.md` in each folder, and the table of headlines on the page above them."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from tables import OTHERS, Claim, Row, Run, Table

from sordino.ledger.files import atomic_write

T = TypeVar("T")
NOTHING = "-"


def write(table: Table) -> None:
    """The pages of a folder, from the runs that are kept."""
    if table.sheet.row:  # without rows a program writes it
        atomic_write(table.folder / "table.md", (measured(table, whole=True) + "\n").encode())
    _put(table.folder / "README.md", table.name, block(table))


def write_headlines(root: Path, tables: Sequence[Table]) -> None:
    """The first table of the page that the folders lie under."""
    _put(root / "README.md", "", headlines(tables))


def _put(page: Path, name: str, text: str) -> None:
    if page.exists():
        # whole at once: another `reproduce` at work on the table reads it, too
        atomic_write(page, with_block(page.read_text(encoding="utf-8"), name, text).encode())


def marks(name: str) -> tuple[str, str]:
    return f"<!-- written by: {command(name)} -->\n", f"<!-- end of {name or 'headlines'} -->\n"


def command(name: str) -> str:
    return f"python experiments/reproduce.py {name or '--rewrite'}"


def with_block(page: str, name: str, text: str) -> str:
    """The page with this text between the marks of `name`; a page without them stays as it is."""
    first, last = marks(name)
    inner = re.compile(f"(?<={re.escape(first)}).*?(?={re.escape(last)})", re.DOTALL)
    return inner.sub(lambda _: text, page)


def headlines(tables: Sequence[Table]) -> str:
    """One line for each headline of a source: what it says, how it is here, and the gap where both are numbers."""
    chosen = [(table, claim) for table in tables for claim in table.sheet.claim if claim.headline]
    lines = [
        [
            f"[{table.sheet.paper}]({table.name}/README.md)",
            claim.asks,
            claim.published,
            shown(table, claim),
            gap(table, claim),
            table.sheet.size,
            claim.why or NOTHING,
        ]
        for table, claim in sorted(chosen, key=lambda one: one[0].sheet.paper)
    ]
    return _lines(["source", "headline", "published", "ours", "gap", "size", "why"], lines) + "\n"


def block(table: Table) -> str:
    """The source, what is asked of the rows, one line for each row that has been run, what programs found, and how to
    run it.
    """
    sheet = table.sheet
    others = {head.capitalize(): getattr(sheet, head) for head in OTHERS}
    opening = " ".join(f"{head}: {text}." for head, text in {"Source": sheet.source, **others}.items() if text)
    asked = [[claim.asks, claim.published, shown(table, claim), claim.why or NOTHING] for claim in sheet.claim]
    claims = _lines(["what is asked", "published", "ours", "why"], asked)
    parts = [opening, claims, measured(table), *_programs(table), _ending(table)]
    return "\n\n".join(filter(None, parts)) + "\n"


def found(table: Table, claim: Claim) -> list[list[float]]:
    """For each row of a claim its means of the last rounds, or its differences from `minus`, seed by seed."""
    by = {
        row.name: {run.seed: value for run in table.of(row) if (value := run.measure(claim.of)) is not None}
        for row in table.sheet.row
    }
    if not claim.minus:
        return [[*by[name].values()] for name in claim.rows]
    return [
        [
            mine - by[other][seed] if claim.of == "accuracy" else 100 * (mine / by[other][seed] - 1)
            for seed, mine in by[name].items()
            if seed in by[other]
        ]
        for name, other in zip(claim.rows, one_each(claim.minus, claim.rows), strict=True)
    ]


def shown(table: Table, claim: Claim) -> str:
    """The rows of a claim with their numbers of seeds."""
    signed = "+" if claim.minus else ""
    return "; ".join(
        f"{signed * (not told.startswith('-'))}{told} (n = {len(values)})"
        if (told := spread(values, 1)) != NOTHING
        else "not run"
        for values in found(table, claim)
    )


def gap(table: Table, claim: Claim) -> str:
    """Ours minus the published number, one for all rows or one each, in points; where the source has no number, there
    is no gap.
    """
    try:
        published = [float(word) for word in claim.published.split("; ")]
    except ValueError:
        return NOTHING
    each = zip(found(table, claim), one_each(published, claim.rows), strict=True)
    return "; ".join(f"{statistics.mean(values) - told:+.1f}" if values else NOTHING for values, told in each)


def one_each(given: Sequence[T], rows: Sequence[str]) -> Sequence[T]:
    """One for each row, where one may be given for all."""
    return [*given] * len(rows) if len(given) == 1 else given


def measured(table: Table, whole: bool = False) -> str:
    """One line for each row that has been run. `whole`: with the columns that only `table.md` has."""
    lines = [_cells(table, row, runs, whole) for row in table.sheet.row if (runs := table.of(row))]
    return _lines([*lines[0]], [[*line.values()] for line in lines]) if lines else ""


def _cells(table: Table, row: Row, runs: Sequence[Run], whole: bool) -> dict[str, str]:
    sheet = table.sheet
    cells = {"row": row.name, "n": str(len(runs))}
    for head in OTHERS:
        if getattr(sheet, head):
            cells[head] = " / ".join(f"{value:.2f}" for value in getattr(row, head)) or NOTHING
    cells["ours"] = spread(run.final for run in runs)
    if sheet.last > 1:
        cells[f"ours, mean of last {sheet.last}"] = spread(run.last for run in runs)
    cells |= _promise(runs)
    if sheet.tune is not None:
        chosen = sorted({f"{run.tuned:g}" for run in runs if run.tuned is not None})
        cells[f"tuned {sheet.tune.key}"] = "; ".join(chosen) or NOTHING
    if sheet.targets:
        cells |= _costs(runs, sheet.targets)
    if whole:
        cells["loss"] = spread(run.loss for run in runs)
        for name in sorted({name for run in table.runs for name in run.own}):
            cells[name] = spread(run.own.get(name) for run in runs)
        if any(other.published_loss for other in sheet.row):
            cells["published loss"] = NOTHING if row.published_loss is None else str(row.published_loss)
        cells |= _sent(row, runs) if sheet.traffic else {}
        return cells | _origin(runs) if any(run.commit for run in table.runs) else cells
    if any(run.seconds is not None for run in table.runs):
        about, timed = table.minutes(row), any(run.seconds is not None for run in runs)
        cells["minutes a run"] = NOTHING if about is None else f"{about:.1f}" if timed else f"about {about:g}"
        cells["minutes a run"] += " (GPU)" * any(run.accelerator for run in runs)
    if any(other.why for other in sheet.row if table.of(other)):
        cells["why"] = row.why or NOTHING
    return cells


def _promise(runs: Sequence[Run]) -> dict[str, str]:
    """Epsilon from the least to the largest seed, rounded up, and of whom: early runs did not keep their neighbours."""
    finite = [run.epsilon for run in runs if not isinstance(run.epsilon, str)]
    ends = [f"{math.ceil(value * 1000 - 1e-6) / 1000:.3f}" for value in ((min(finite), max(finite)) if finite else ())]
    told = [*dict.fromkeys(ends), *["inf"] * (len(finite) < len(runs))]
    neighbours = {f"{run.neighbours}, {run.delta:g}" for run in runs if run.neighbours is not None and run.delta}
    return {
        "epsilon": " to ".join(told),
        "of one, against": "; ".join(sorted({run.subject for run in runs})),
        "neighbours, delta": "; ".join(sorted(neighbours if finite else ())) or NOTHING,
        "status": "; ".join(sorted({run.status for run in runs})),
    }


def _costs(runs: Sequence[Run], targets: Sequence[float]) -> dict[str, str]:
    """MB before round 1, device TFLOP of all rounds, and per target its round and the MB sent by then, means over the
    seeds that reached it.
    """
    cells = {
        "MB before round 1": f"{statistics.mean(run.before for run in runs) / 1e6:.1f}",
        "device TFLOP": f"{statistics.mean(run.flops for run in runs) / 1e12:.3f}",
    }
    for i, target in enumerate(targets):
        hits = [hit for run in runs if (hit := run.reached[i]) is not None]
        missed = f" ({len(hits)} of {len(runs)})" if len(hits) < len(runs) else ""
        round_, sent = (statistics.mean(hit[part] for hit in hits) if hits else 0.0 for part in (0, 1))
        told = f"{round_:.1f}, {sent / 1e6:.1f} MB{missed}" if hits else "not reached"
        cells[f"{target:.0%} at round, sent by then"] = told
    return cells


def _sent(row: Row, runs: Sequence[Run]) -> dict[str, str]:
    """The other models that were evaluated, the model's norm, and what a client that is always there sends."""
    also = [f"{name} {spread(run.also.get(name) for run in runs)}" for name in runs[0].also]
    sent = [run.slot_gib for run in runs if run.slot_gib is not None]
    return {
        "beside it": "; ".join(also) or NOTHING,
        "model norm": spread(run.norm for run in runs),
        "GiB up per slot": f"{statistics.mean(sent):.4f}" if sent else NOTHING,
        "published GiB": NOTHING if row.slot_gib is None else str(row.slot_gib),
    }


def _origin(runs: Sequence[Run]) -> dict[str, str]:
    """The commits that a row was run from, and the accelerators; early runs kept neither."""
    told = {"commit": [run.commit for run in runs], "accelerator": [run.accelerator for run in runs]}
    return {head: "; ".join(sorted({name or NOTHING for name in names})) for head, names in told.items()}


def _programs(table: Table) -> list[str]:
    """What programs measured: their files, but for the table of a folder without rows."""
    parts = []
    for one in table.sheet.program:
        file = table.folder / one.writes
        text = file.read_text(encoding="utf-8").strip() if table.sheet.row and file.exists() else ""
        parts += [f"{one.shows} (`{one.file}`){':' if text else '.'}", *[text] * bool(text)]
    return parts


def _ending(table: Table) -> str:
    told = []
    if table.sheet.row:
        told += [f"`{command(table.name)}` {missing(table)}.", "All columns: [table.md](table.md)."]
        told += [f"A run takes about {lasting(about)} on one core."] if (about := table.sheet.minutes) else []
    for one in table.sheet.program:
        told.append(
            f"`{one.file}` writes [{one.writes}]({one.writes}) in about {lasting(one.minutes)}, where it is missing."
        )
    return " ".join(told)


def missing(table: Table) -> str:
    """What is left to be run, and how long it takes, if that is known."""
    left, minutes = len(table.missing()) + len(table.untuned()), table.left()
    about = f", about {lasting(minutes)} on one core" if minutes else ""
    return f"runs what is missing: {left} of its runs{about}" if left else "finds nothing missing"


def lasting(minutes: float) -> str:
    if minutes >= 120:
        return f"{minutes / 60:.1f} hours"
    minutes = round(minutes, None if minutes > 10 else 1)
    return f"{60 * minutes:.0f} seconds" if minutes < 1 else "1 minute" if minutes == 1 else f"{minutes:g} minutes"


def spread(given: Iterable[float | None], digits: int = 2) -> str:
    """Mean and standard deviation over the seeds that have a value."""
    values = [value for value in given if value is not None]
    if not values:
        return NOTHING
    mean = statistics.mean(values)
    form = f".{digits}f" if abs(mean) < 1e6 else ".1e"  # the loss of a model that diverged
    return f"{mean:{form}}" + (f" ± {statistics.stdev(values):{form}}" if len(values) > 1 else "")


def _lines(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows)) if rows else ""
