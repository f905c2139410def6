"""How a published table is written: `table.md` in its folder, and its block in the folder's README."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence

from sordino.results.published.tables import MeasuredRun, PublishedRow, PublishedTable, spread

NOTHING = "-"


def write(table: PublishedTable) -> None:
    """Both places, from the runs that are kept."""
    (table.folder / "table.md").write_text(everything(table), encoding="utf-8")
    page = table.folder.parent / "README.md"
    if page.exists():
        text = page.read_text(encoding="utf-8")
        if (told := with_block(text, table)) != text:
            page.write_text(told, encoding="utf-8")


def marks(name: str) -> tuple[str, str]:
    return f"<!-- written by: sordino reproduce {name} -->\n", f"<!-- end of {name} -->\n"


def with_block(text: str, table: PublishedTable) -> str:
    """The page with this table's block as its runs say it; a page without its marks stays as it is."""
    first, last = marks(table.name)
    inner = re.compile(f"(?<={re.escape(first)}).*?(?={re.escape(last)})", re.DOTALL)
    return inner.sub(lambda _: block(table), text)


def block(table: PublishedTable) -> str:
    """Published, ours, why: one line for each row that has been run."""
    sheet, rows, heads = table.sheet, [row for row in table.rows if table.of(row)], _others_told(table)
    told = (f"{head.capitalize()}: {text}." for head, text in heads.items())
    explained, timed = any(row.why for row in rows), any(run.seconds is not None for run in table.runs)
    columns = ["row", "n", *heads, "ours", f"ours, mean of last {sheet.last}", "epsilon", "of one, against", "status"]
    columns += [*_tuned_head(table), *_cost_heads(sheet.targets), *["minutes a run"] * timed, *["why"] * explained]
    opening = " ".join((f"Source: {sheet.source}.", *told))
    if not rows:
        return f"{opening}\n\nNothing of it has been run yet. {_ending(table)}\n"
    lines = [opening, "", _line(columns), "|" + "---|" * len(columns)]
    for row in rows:
        runs = table.of(row)
        facts = [row.name, str(len(runs)), *(others(row, head) for head in heads)]
        facts += [spread([run.final for run in runs]), spread([run.last for run in runs]), *_promise(runs)]
        facts += _tuned(table, runs)
        facts += _costs(runs, sheet.targets) if sheet.targets else []
        facts += [minutes(table, row)] * timed + [row.why or NOTHING] * explained
        lines.append(_line(facts))
    return "\n".join([*lines, "", _ending(table)]) + "\n"


def _ending(table: PublishedTable) -> str:
    left = len(table.missing()) + len(table.untuned())
    about = "" if table.sheet.minutes is None else f" A run takes about {table.sheet.minutes:g} minutes on one core."
    found = f"runs the {left} runs that are missing" if left else "finds nothing missing"
    return f"`sordino reproduce {table.name}` {found}. All columns: [table.md]({table.name}/table.md).{about}"


def _others_told(table: PublishedTable) -> dict[str, str]:
    """Whose numbers stand beside ours, and where they are from."""
    told = {"published": table.sheet.published, "yardstick": table.sheet.yardstick}
    return {head: text for head, text in told.items() if text}


def minutes(table: PublishedTable, row: PublishedRow) -> str:
    """How long one run takes: measured, or about, or not known."""
    noted = [run.seconds for run in table.of(row) if run.seconds is not None]
    if noted:
        return f"{statistics.mean(noted) / 60:.1f}"
    about = row.minutes if row.minutes is not None else table.sheet.minutes
    return NOTHING if about is None else f"about {about:g}"


def others(row: PublishedRow, head: str) -> str:
    numbers = row.published if head == "published" else row.yardstick
    return " / ".join(f"{value:.2f}" for value in numbers) or NOTHING


def _promise(runs: Sequence[MeasuredRun]) -> tuple[str, str, str]:
    epsilon = runs[0].epsilon
    return epsilon if isinstance(epsilon, str) else f"{epsilon:.3f}", runs[0].subject, runs[0].status


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def everything(table: PublishedTable) -> str:
    """All columns, one line for each row that has been run."""
    sheet, beside = table.sheet, _others_told(table)
    heads = ["row", "n", "final accuracy", f"mean of last {sheet.last}", "loss", *beside]
    heads += ["epsilon", "of one, against", "status"]
    heads += _tuned_head(table)
    heads += ["beside it", "model norm", "GiB up per slot", "published GiB"] if sheet.traffic else []
    heads += _cost_heads(sheet.targets)
    lines = [_line(heads), "|" + "---|" * len(heads)]
    for row in table.rows:
        runs = table.of(row)
        if not runs:
            continue
        losses = [run.loss for run in runs if run.loss is not None]
        facts = [row.name, str(len(runs)), spread([run.final for run in runs]), spread([run.last for run in runs])]
        facts += [spread(losses) if losses else NOTHING, *(others(row, head) for head in beside)]
        facts += _promise(runs)
        facts += _tuned(table, runs)
        facts += _sent(row, runs) if sheet.traffic else []
        facts += _costs(runs, sheet.targets) if sheet.targets else []
        lines.append(_line(facts))
    return "\n".join(lines) + "\n"


def _sent(row: PublishedRow, runs: Sequence[MeasuredRun]) -> list[str]:
    """The other models that were evaluated, the model's norm, and what a client that is always there sends."""
    also = "; ".join(f"{name} {value:.2f}" for name, value in runs[0].also.items()) or NOTHING
    norms = [run.norm for run in runs if run.norm is not None]
    sent = [run.slot_gib for run in runs if run.slot_gib is not None]
    told = NOTHING if row.slot_gib is None else str(row.slot_gib)
    return [also, spread(norms) if norms else NOTHING, f"{statistics.mean(sent):.4f}" if sent else NOTHING, told]


def _tuned_head(table: PublishedTable) -> list[str]:
    return [] if table.sheet.tune is None else [f"tuned {table.sheet.tune.key}"]


def _tuned(table: PublishedTable, runs: Sequence[MeasuredRun]) -> list[str]:
    return [] if table.sheet.tune is None else [NOTHING if runs[0].tuned is None else f"{runs[0].tuned:g}"]


def _cost_heads(targets: Sequence[float]) -> list[str]:
    reached = [f"{target:.0%} at round, sent by then" for target in targets]
    return ["MB before round 1", "device TFLOP", *reached] if targets else []


def _costs(runs: Sequence[MeasuredRun], targets: Sequence[float]) -> list[str]:
    """MB before round 1, device TFLOP of all rounds, and per target its round and the MB sent by then, means over the
    seeds that reached it.
    """
    cells = [
        f"{statistics.mean(run.before for run in runs) / 1e6:.1f}",
        f"{statistics.mean(run.flops for run in runs) / 1e12:.3f}",
    ]
    for i in range(len(targets)):
        hits = [hit for run in runs if (hit := run.reached[i]) is not None]
        missed = f" ({len(hits)} of {len(runs)})" if len(hits) < len(runs) else ""
        round_, sent = (statistics.mean(hit[part] for hit in hits) if hits else 0.0 for part in (0, 1))
        cells.append(f"{round_:.1f}, {sent / 1e6:.1f} MB{missed}" if hits else "not reached")
    return cells
