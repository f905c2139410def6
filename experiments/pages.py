"""Pages of the tables: `table.md` in each folder, and the block of each in README.md."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence

from tables import OTHERS, Claim, Row, Run, Table

NOTHING = "-"


def write(table: Table) -> None:
    """Both places, from the runs that are kept."""
    if table.sheet.row:  # without rows a program writes it
        (table.folder / "table.md").write_text(measured(table, whole=True) + "\n", encoding="utf-8")
    page = table.folder.parent / "README.md"
    if page.exists():
        page.write_text(with_block(page.read_text(encoding="utf-8"), table), encoding="utf-8")


def marks(name: str) -> tuple[str, str]:
    return f"<!-- written by: {command(name)} -->\n", f"<!-- end of {name} -->\n"


def command(name: str) -> str:
    return f"python experiments/reproduce.py {name}"


def with_block(text: str, table: Table) -> str:
    """The page with this table's block as its runs say it; a page without its marks stays as it is."""
    first, last = marks(table.name)
    inner = re.compile(f"(?<={re.escape(first)}).*?(?={re.escape(last)})", re.DOTALL)
    return inner.sub(lambda _: block(table), text)


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


def shown(table: Table, claim: Claim) -> str:
    """The rows of a claim: means of the last rounds, or differences seed by seed, over the seeds that both have."""
    by = {row.name: {run.seed: run.last for run in table.of(row)} for row in table.sheet.row}
    cells = []
    for name in claim.rows:
        mine, other = by[name], by[claim.minus] if claim.minus else {}
        both = [mine[seed] - other[seed] for seed in sorted(mine.keys() & other.keys())]
        if not mine or (claim.minus and not both):
            cells.append("not run")
        elif claim.minus:
            apart = spread(both, 1)
            cells.append(f"{'' if apart.startswith('-') else '+'}{apart} (n = {len(both)})")
        else:
            cells.append(spread(mine.values(), 1))
    return "; ".join(cells)


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
    """Epsilon from the least to the largest seed, with whom it is about: early runs did not keep their neighbours."""
    finite = [run.epsilon for run in runs if not isinstance(run.epsilon, str)]
    ends = [f"{value:.3f}" for value in ((min(finite), max(finite)) if finite else ())]
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
        told += [f"`{command(table.name)}` {missing(table)}.", f"All columns: [table.md]({table.name}/table.md)."]
        told += [f"A run takes about {lasting(about)} on one core."] if (about := table.sheet.minutes) else []
    for one in table.sheet.program:
        place = f"{table.name}/{one.writes}"
        told.append(f"`{one.file}` writes [{place}]({place}) in about {lasting(one.minutes)}, where it is missing.")
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
