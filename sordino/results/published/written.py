"""How a published table is written: `table.md` in its folder, and its block in the folder's README."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence

from sordino.results.published.tables import MeasuredRun, PublishedClaim, PublishedRow, PublishedTable, spread

NOTHING = "-"
PROMISED = ("epsilon", "of one, against", "neighbours, delta", "status")


def write(table: PublishedTable) -> None:
    """Both places, from the runs that are kept."""
    if table.rows:  # without rows a program writes it
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
    """What is asked of the rows, and published, ours, why for each row that has been run."""
    sheet, rows, heads = table.sheet, [row for row in table.rows if table.of(row)], _others_told(table)
    opening = " ".join((f"Source: {sheet.source}.", *(f"{head.capitalize()}: {text}." for head, text in heads.items())))
    if table.rows and not rows:
        return f"{opening}\n\nNothing of it has been run yet. {_ending(table)}\n"
    parts = [opening, _claims(table), _measured(table, rows, heads), *_programs(table), _ending(table)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _measured(table: PublishedTable, rows: Sequence[PublishedRow], heads: Iterable[str]) -> str:
    sheet = table.sheet
    explained, timed = any(row.why for row in rows), any(run.seconds is not None for run in table.runs)
    columns = ["row", "n", *heads, "ours", *_last_head(table), *PROMISED]
    columns += [*_tuned_head(table), *_cost_heads(sheet.targets), *["minutes a run"] * timed, *["why"] * explained]
    lines = [columns, ["---"] * len(columns)]
    for row in rows:
        runs = table.of(row)
        facts = [row.name, str(len(runs)), *(others(row, head) for head in heads)]
        facts += [spread([run.final for run in runs]), *_last(table, runs), *_promise(runs)]
        facts += _tuned(table, runs)
        facts += _costs(runs, sheet.targets) if sheet.targets else []
        facts += [minutes(table, row)] * timed + [row.why or NOTHING] * explained
        lines.append(facts)
    return "\n".join(map(_line, lines)) if rows else ""


def _claims(table: PublishedTable) -> str:
    """What is asked of the rows, and how they are here."""
    claims = table.sheet.claim
    lines = [["what is asked", "published", "ours", "why"], ["---"] * 4]
    lines += [[claim.asks, claim.published, shown(table, claim), claim.why or NOTHING] for claim in claims]
    return "\n".join(map(_line, lines)) if claims else ""


def shown(table: PublishedTable, claim: PublishedClaim) -> str:
    """The rows of a claim: means of the last rounds, or differences seed by seed, over the seeds that both have."""
    by = {row.name: {run.seed: run.last for run in table.of(row)} for row in table.rows}
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
            cells.append(spread(list(mine.values()), 1))
    return "; ".join(cells)


def _ending(table: PublishedTable) -> str:
    left, told = len(table.missing()) + len(table.untuned()), []
    if table.rows:
        does = f"runs the {so_many(left)} missing{in_all(table)}" if left else "finds nothing missing"
        told += [f"`sordino reproduce {table.name}` {does}.", f"All columns: [table.md]({table.name}/table.md)."]
        told += [f"A run takes about {lasting(about)} on one core."] if (about := table.sheet.minutes) else []
    for one in table.sheet.program:
        place = f"{table.name}/{one.writes}"
        told.append(f"`{one.file}` writes [{place}]({place}) in about {lasting(one.minutes)}, where it is missing.")
    return " ".join(told)


def _programs(table: PublishedTable) -> list[str]:
    """What programs measured: their files, but for the table of a folder without rows."""
    parts = []
    for one in table.sheet.program:
        file = table.folder / one.writes
        text = file.read_text(encoding="utf-8").strip() if table.rows and file.exists() else ""
        parts += [f"{one.shows} (`{one.file}`){':' if text else '.'}", *[text] * bool(text)]
    return parts


def so_many(many: int) -> str:
    return "1 run that is" if many == 1 else f"{many} runs that are"


def in_all(table: PublishedTable) -> str:
    """How long what is missing takes, if it is known."""
    left = table.left()
    return f", about {lasting(left)} on one core" if left else ""


def lasting(minutes: float) -> str:
    if minutes >= 120:
        return f"{minutes / 60:.1f} hours"
    minutes = round(minutes, None if minutes > 10 else 1)
    return f"{60 * minutes:.0f} seconds" if minutes < 1 else "1 minute" if minutes == 1 else f"{minutes:g} minutes"


def _others_told(table: PublishedTable) -> dict[str, str]:
    """Whose numbers stand beside ours, and where they are from."""
    told = {"published": table.sheet.published, "yardstick": table.sheet.yardstick}
    return {head: text for head, text in told.items() if text}


def minutes(table: PublishedTable, row: PublishedRow) -> str:
    about = table.minutes(row)
    measured = any(run.seconds is not None for run in table.of(row))
    return NOTHING if about is None else f"{about:.1f}" if measured else f"about {about:g}"


def others(row: PublishedRow, head: str) -> str:
    numbers = row.published if head == "published" else row.yardstick
    return " / ".join(f"{value:.2f}" for value in numbers) or NOTHING


def _last_head(table: PublishedTable) -> list[str]:
    """The mean of the last rounds, where they are more than the final one."""
    return [f"ours, mean of last {table.sheet.last}"] * (table.sheet.last > 1)


def _last(table: PublishedTable, runs: Sequence[MeasuredRun]) -> list[str]:
    return [spread([run.last for run in runs])] * (table.sheet.last > 1)


def _promise(runs: Sequence[MeasuredRun]) -> list[str]:
    """Epsilon from the least to the largest seed, with whom it is about: early runs did not keep their neighbours."""
    finite = [run.epsilon for run in runs if not isinstance(run.epsilon, str)]
    ends = [f"{value:.3f}" for value in ((min(finite), max(finite)) if finite else ())]
    told = [*dict.fromkeys(ends), *["inf"] * (len(finite) < len(runs))]
    neighbours = {f"{run.neighbours}, {run.delta:g}" for run in runs if run.neighbours is not None and run.delta}
    of, status = ({getattr(run, what) for run in runs} for what in ("subject", "status"))
    cells = (of, neighbours if finite else (), status)
    return [" to ".join(told), *("; ".join(sorted(cell)) or NOTHING for cell in cells)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def everything(table: PublishedTable) -> str:
    """All columns, one line for each row that has been run."""
    sheet, beside = table.sheet, _others_told(table)
    heads = ["row", "n", "final accuracy", f"mean of last {sheet.last}", "loss", *beside, *PROMISED]
    heads += _tuned_head(table)
    heads += ["beside it", "model norm", "GiB up per slot", "published GiB"] if sheet.traffic else []
    heads += _cost_heads(sheet.targets)
    lines = [_line(heads), _line(["---"] * len(heads))]
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
    found = {name: [run.also[name] for run in runs if name in run.also] for name in runs[0].also}
    also = "; ".join(f"{name} {spread(values)}" for name, values in found.items()) or NOTHING
    norms = [run.norm for run in runs if run.norm is not None]
    sent = [run.slot_gib for run in runs if run.slot_gib is not None]
    told = NOTHING if row.slot_gib is None else str(row.slot_gib)
    return [also, spread(norms) if norms else NOTHING, f"{statistics.mean(sent):.4f}" if sent else NOTHING, told]


def _tuned_head(table: PublishedTable) -> list[str]:
    return [] if table.sheet.tune is None else [f"tuned {table.sheet.tune.key}"]


def _tuned(table: PublishedTable, runs: Sequence[MeasuredRun]) -> list[str]:
    chosen = sorted({f"{run.tuned:g}" for run in runs if run.tuned is not None})
    return [] if table.sheet.tune is None else ["; ".join(chosen) or NOTHING]


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
