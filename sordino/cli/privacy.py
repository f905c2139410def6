"""`sordino privacy`: plan before, look at what was spent, believe nothing unverified."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sordino.cli.options import Json

app = typer.Typer(help="Budgets and guarantees: plan, spent, verify.", no_args_is_help=True)


class UnitChoice(StrEnum):
    client = "client"
    example = "example"


@app.command()
def plan(
    epsilon: Annotated[float, typer.Option(help="What may be lost in total.")],
    delta: Annotated[float, typer.Option(help="Below 1 / number of protected units.")] = 1e-5,
    unit: Annotated[UnitChoice, typer.Option(help="What is protected.")] = UnitChoice.client,
    clients: Annotated[int, typer.Option(help="In the federation.")] = 1000,
    cohort: Annotated[int, typer.Option(help="Expected clients per round.")] = 100,
    rounds: int = 100,
    parameters: Annotated[int, typer.Option(help="Of the model.")] = 21_840,
    records: Annotated[int, typer.Option(help="Per client.")] = 600,
    clip: Annotated[float, typer.Option(help="Norm of an update (client) or a gradient (example).")] = 1.0,
    as_json: Json = False,
) -> None:
    """Which noise a budget takes, and what else it would buy, before any training."""
    from sordino.planning import Question, answer

    question = Question(epsilon, delta, unit.value, clients, cohort, rounds, parameters, records, clip)
    answers = [a.to_json() for a in answer(question)]
    if as_json:
        typer.echo(json.dumps({"question": asdict(question), "answer": answers[0], "alternatives": answers[1:]}))
        return
    from sordino.report.tables import plan as table

    console = Console()
    console.print(table(answers))
    first = answers[0]
    console.print(
        f"Promise: ({epsilon:g}, {delta:g}) for one {unit.value}, neighbours {first['neighbours']}, against {first['adversary']}; "
        f"status proved, accountant {first['accountant']}."
    )
    console.print(
        f"Clip at {clip:g}, noise of standard deviation {first['noise_std']:.4g} on every coordinate of the sum. The ratios do not depend on the clip: "
        "set it to the typical norm of a public or synthetic pilot (--clip)."
    )
    console.print(
        "To run it: sordino run " + " ".join(f'"{part}"' for part in first["run"]),
        soft_wrap=True,
        highlight=False,
        markup=False,
    )
    if first["noise_to_signal"] > 1:
        console.print(
            "[red]The noise in the mean exceeds the largest possible signal: more clients, fewer rounds or a larger epsilon.[/red]"
        )


@app.command()
def spent(
    folder: Path,
    by_client: Annotated[bool, typer.Option("--by-client", help="One line per client.")] = False,
    as_json: Json = False,
) -> None:
    """What a run has spent, to whom; read from its ledger."""
    from sordino.receipt import spending
    from sordino.report.tables import guarantees
    from sordino.report.tables import spending as spending_table

    found = spending(folder)
    if as_json:
        typer.echo(json.dumps(found))
        return
    console = Console()
    console.print(guarantees(found))
    if by_client:
        console.print(spending_table(found["by_client"]))


@app.command()
def verify(folder: Path, as_json: Json = False) -> None:
    """Recompute the receipt from the ledger. Exit code 5 where they disagree."""
    from sordino.receipt import verify as check

    wrong = check(folder)
    if as_json:
        typer.echo(json.dumps({"holds": not wrong, "disagreements": wrong}))
    elif wrong:
        Console(stderr=True).print(
            "[bold red]the receipt does not hold[/bold red]", *[f"\n  · {line}" for line in wrong]
        )
    else:
        Console().print(
            "[green]The receipt holds:[/green] chain intact, every epsilon recomputed from the ledger, configuration unchanged."
        )
    if wrong:
        raise typer.Exit(5)
