"""`sordino data`: sources of data, partitions among clients, and pictures of them. Nothing is trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from sordino.cli import (
    CommandGroup,
    Encoding,
    Json,
    Screen,
    Verb,
    What,
    experiment_and_changes,
    note,
    say,
    titled,
    write,
)
from sordino.errors import DataError, extra

if TYPE_CHECKING:
    from rich.table import Table

    from sordino.config import Experiment
    from sordino.data.tabular import TableFacts
    from sordino.runs.population import Population

app = CommandGroup(help="Data, and how they are divided among clients.", no_args_is_help=True)


FEW = 3  # examples: a client that can hardly learn
# size of a screen: of more clients the middle is cut, of more classes the most frequent are shown
ROWS, COLUMNS = 40, 12


def _experiment(words: list[str]) -> Experiment:
    from sordino import config

    file, changes = experiment_and_changes(words)
    return config.load(Path(file) if file is not None else None, changes)


@app.command("list", cls=Verb)
def list_(what: What = None, as_json: Json = False) -> None:
    """List the sources of data and the settings of each; with an experiment, describe its data."""
    if what:
        from sordino.runs.population import Population

        population = Population(_experiment(what))
        facts, held = _facts(population), _table_facts(population)
        remarks = population.dataset.remarks
        if as_json:
            schema_values = (
                {} if held is None else held._asdict() | {"columns": [one._asdict() for one in held.columns]}
            )
            say(facts | schema_values | ({"outside": remarks} if remarks else {}))
            return
        out = Screen()
        out.print(_two_columns("Data", {name: _said(value) for name, value in facts.items()}))
        if held is not None:
            for table in (_files(held), _columns(held)):
                out.print(table)
            note(out, [*held.remarks, *remarks])
        return
    from sordino.config import ALL_SOURCES

    if as_json:
        say({name: source.to_json() for name, source in ALL_SOURCES.items()})
        return
    table = titled("Sources of data", "data.source", "what", "needs", "takes", left=4)
    for name, source in ALL_SOURCES.items():
        keys = (", ".join(f"data.{key}" for key in named) for named in (source.needs, source.takes))
        table.add_row(f"[bold]{name}[/bold]", source.what, *keys)
    Screen().print(table)


@app.command(cls=Verb)
def schema(
    tables: Annotated[list[str], typer.Argument(metavar="TABLE...", help="CSV or parquet files, or a folder of them.")],
    label: Annotated[str, typer.Option(help="Column to predict.")],
    group: Annotated[str | None, typer.Option(help="Column that names the client.")] = None,
    key: Annotated[str | None, typer.Option(help="Column that identifies the row or its person.")] = None,
    out: Annotated[Path | None, typer.Option(help="Output file; never overwritten.")] = None,
    separator: Annotated[str | None, typer.Option(help="Separator of cells: , ; | or a tab.")] = None,
    decimal: Annotated[str | None, typer.Option(help="Decimal mark: . or ,")] = None,
    encoding: Encoding = None,
) -> None:
    """Draft the schema of a table: the values its columns can hold, for you to confirm from what you know of them."""
    from sordino import config

    options = {"separator": separator, "decimal": decimal, "encoding": encoding}
    given = {name: value for name, value in options.items() if value is not None}
    with extra("data", "tables", "missing-data-extra", DataError):
        from sordino.data.inferred_columns import draft
        from sordino.data.table_files import GivenDialect

    how = config.validate({"data": {"source": "tabular", **given}}).data  # refuses a wrong separator, for example
    written = GivenDialect(how.separator, how.decimal, how.encoding)
    text = draft(tables[0] if len(tables) == 1 else tables, label, group, key, written)
    if out is None:
        typer.echo(text, nl=False)
        return
    write(out, text, new=True)
    typer.echo(f"{out} is a draft: confirm every line, then delete `draft = true`")


@app.command(cls=Verb)
def partition(
    what: What = None,
    everybody: Annotated[bool, typer.Option("--all", help="List every client.")] = False,
    as_json: Json = False,
) -> None:
    """Show how examples are divided among clients: sizes, labels and differences."""
    from sordino.runs.population import Population

    found = _portrait(Population(_experiment(what or [])))
    if as_json:
        say(found)
        return
    out = Screen()
    out.print(_two_columns(f"Partition: {found['scheme']}", _differences(found)))
    out.print(_clients(found, everybody))
    note(out, _warnings(found))


@app.command(cls=Verb)
def plot(
    what: What = None,
    out: Annotated[Path, typer.Option(help="SVG file of the picture.")] = Path("partition.svg"),
) -> None:
    """Draw how examples are divided among clients: clients across, labels up."""
    from sordino.branches import part
    from sordino.ledger.files import atomic_write
    from sordino.runs.population import Population

    if out.suffix != ".svg":
        raise DataError(
            f"{out} does not end in .svg",
            why="pictures of partitions are always SVG files",
            fix="use --out NAME.svg",
            code="not-an-svg",
        )
    svg = part("figures", "partition")
    population = Population(_experiment(what or []))
    title = f"Who holds what: {population.dataset.name}, {_scheme(population)}"
    names = population.dataset.class_names or ["all"]
    atomic_write(out, svg(_counts(population), title, names, population.clients).encode())
    typer.echo(str(out))


# what is said ---------------------------------------------------------------------------------------------------------


def _facts(population: Population) -> dict[str, Any]:
    import numpy as np

    from sordino.runs.backend import source_of

    data, source = population.dataset, source_of(population.experiment)
    group = data.train.group
    return {
        "name": data.name,
        "source": population.experiment.data.source,
        "kind": data.kind,
        "shape": list(data.shape),
        "classes": data.classes,
        "train": len(data.train.y),
        "test": len(data.test.y),
        "natural_clients": None if group is None else len(np.unique(group)),
        "fingerprint": data.fingerprint(),
        "note": data.note,
        **({"candidates": source.label} if source is not None and source.label else {}),
    }


def _table_facts(population: Population) -> TableFacts | None:
    """Facts about each column of a table; None where the data are not files of a table."""
    if population.experiment.data.source != "tabular":
        return None
    from sordino.data.tabular import overview

    return overview(**population.source.settings)


def _files(held: TableFacts) -> Table:
    table = titled("Files", "file", "rows", "written with", left=3)
    for file in held.files:
        table.add_row(escape(file["name"]), f"{file['rows']:,}", file["written"] or "-")
    return table


def _columns(held: TableFacts) -> Table:
    table = titled("Columns, for your eyes only", "column", "kind", "can be", "holds", "empty", "outside", left=6)
    for one in held.columns:
        counts = (f"{count:,}" if count else "" for count in (one.empty, one.outside))
        table.add_row(escape(one.name), one.kind, escape(one.can_be), escape(one.holds), *counts)
    return table


def _counts(population: Population) -> Any:

    from sordino.partition.row_numbers import table

    return table(population.counted, population.shares[0], max(population.dataset.classes, 1))


def _scheme(population: Population) -> str:
    chosen = {key: value for key, value in population.experiment.partition.items() if key not in ("scheme", "clients")}
    settings = ", ".join(f"{key} {value}" for key, value in chosen.items())
    return str(population.experiment.partition["scheme"]) + (f" ({settings})" if settings else "")


def _portrait(population: Population) -> dict[str, Any]:
    import numpy as np

    from sordino.partition.row_numbers import summary

    rows, tests = population.shares
    labels, classes = population.counted, population.dataset.classes
    numbers = summary(labels, rows, max(classes, 1))
    smallest = int(np.argmin([len(held) for held in rows]))
    clients = [
        {
            "client": population.clients[k] if population.clients else k,
            "train": int(held.sum()),
            "test": len(tests[k]),
            "labels": held.tolist() if classes else None,
        }
        for k, held in enumerate(_counts(population))
    ]
    return {
        "data": population.dataset.name,
        "scheme": _scheme(population),
        "classes": classes,
        "summary": numbers,
        "smallest": clients[smallest]["client"],
        "without_test": [client["client"] for client in clients if not client["test"]],
        "unused": len(labels) - int(numbers["examples"]),
        "remarks": population.remarks,
        "clients": clients,
    }


def _differences(found: dict[str, Any]) -> dict[str, str]:
    n, classes = found["summary"], found["classes"]
    values = {
        "clients": f"{n['clients']:,}",
        "examples for training": f"{n['examples']:,}" + (f" ({found['unused']:,} unused)" if found["unused"] else ""),
        "examples of a client": f"{n['size_min']:,} to {n['size_max']:,}, median {n['size_median']:,.0f}",
        "smallest client": f"{found['smallest']}, with {n['size_min']:,} examples",
    }
    if classes:
        values |= {
            "labels of a client": f"{n['classes_per_client']:.1f} of {classes}, as many as "
            f"{n['effective_classes']:.1f} equally frequent ones",
            "difference from all": f"{n['total_variation']:.2f} (total variation of labels: 0 alike, 1 nothing in "
            "common)",
        }
    return values


def _warnings(found: dict[str, Any]) -> list[str]:
    few = [client["client"] for client in found["clients"] if 0 < client["train"] <= FEW]
    empty = [client["client"] for client in found["clients"] if not client["train"]]
    lines = {
        "hold no training examples": empty,
        f"hold {FEW} training examples or fewer": few,
        "have no test examples, so their own accuracy cannot be said": found["without_test"],
    }
    return [
        *found["remarks"],
        *(
            f"{len(who)} of {len(found['clients'])} clients {what}: "
            f"{', '.join(map(str, who[:8]))}{', ...' if len(who) > 8 else ''}"
            for what, who in lines.items()
            if who
        ),
    ]


def _clients(found: dict[str, Any], everybody: bool) -> Table:
    rows, classes = found["clients"], found["classes"]
    wide = 0 < classes <= COLUMNS
    labels = [str(c) for c in range(classes)] if wide else ["most frequent labels"] * (classes > 0)
    table = titled("Examples of each client", "client", "train", "test", *labels, left=0)
    cut = not everybody and len(rows) > ROWS
    if cut:  # the extremes say more than the first few
        ranked = sorted(rows, key=lambda row: int(row["train"]))
        table.title = (
            f"The {ROWS // 4} smallest, the middle and the largest of {len(rows):,} clients (--all shows every one)"
        )
        middle = len(rows) // 2 - ROWS // 8
        picked = [ranked[: ROWS // 4], ranked[middle : middle + ROWS // 4], ranked[-ROWS // 4 :]]
    else:
        picked = [rows]
    for block in picked:
        for row in block:
            name = escape(str(row["client"]))
            table.add_row(name, *(f"{row[key]:,}" for key in ("train", "test")), *_labels(row["labels"], wide))
        table.add_section()
    return table


def _labels(held: list[int] | None, wide: bool) -> list[str]:
    if held is None:
        return []
    if wide:
        return [f"{count:,}" if count else "[dim]·[/dim]" for count in held]
    ranked = sorted(((count, label) for label, count in enumerate(held) if count), key=lambda pair: (-pair[0], pair[1]))
    more = f" and {len(ranked) - 6} more" if len(ranked) > 6 else ""
    return [", ".join(f"{label}: {count:,}" for count, label in ranked[:6]) + more]


def _said(value: Any) -> str:
    if isinstance(value, list):
        return " x ".join(map(str, value))
    return "none" if value in (None, "") else f"{value:,}" if isinstance(value, int) else str(value)


def _two_columns(title: str, rows: dict[str, str]) -> Table:
    table = titled(title, "what", "", left=2)
    for name, value in rows.items():
        table.add_row(name.replace("_", " "), escape(value))
    return table
