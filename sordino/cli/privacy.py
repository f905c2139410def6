"""`sordino privacy`: plan a budget, show what a run has spent, verify and sign receipts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from sordino.branches import loading, when_used
from sordino.cli import (
    CommandGroup,
    Json,
    PlanCode,
    Screen,
    SignedBy,
    Verb,
    Verbose,
    experiment_and_changes,
    foreign,
    say,
)
from sordino.errors import ConfigError

if TYPE_CHECKING:
    from sordino.planning.planner import SmallestFederation

app = CommandGroup(help="Budgets, guarantees and receipts.", no_args_is_help=True)


def _unit(value: str | None) -> str | None:
    if value not in (None, "client", "example"):
        raise ConfigError(
            f"--unit is {value!r}",
            why="this plan knows client and example. A person with several rows is protected as a whole where each is "
            "a client; a guarantee about examples is also stated for persons where the schema has rows = 5 beside the "
            "key",
            fix="for persons, use --unit client, and name the column of the person in data.group and in data.key",
            code="wrong-usage",
        )
    return value


@app.command(cls=Verb)
def plan(
    context: typer.Context,
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[EXPERIMENT.toml] [key=value ...]",
            help="An experiment file; its settings replace the options below.",
        ),
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Total budget; prints the noise that it needs.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise / sensitivity; prints its epsilon.")] = None,
    delta: Annotated[
        float | None, typer.Option(help="Delta, below 1 / number of protected units. [default: 1e-5]")
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(metavar="<client|example>", callback=_unit, help="Protected unit. [default: client]"),
    ] = None,
    clients: Annotated[int | None, typer.Option(help="Clients in the federation. [default: 1000]")] = None,
    cohort: Annotated[int | None, typer.Option(help="Expected clients per round. [default: 100]")] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds. [default: 100]")] = None,
    parameters: Annotated[int | None, typer.Option(help="Parameters of the model. [default: 21840]")] = None,
    records: Annotated[int | None, typer.Option(help="Records per client. [default: 600]")] = None,
    clip: Annotated[
        float | None, typer.Option(help="Largest norm of an update (client) or a gradient (example). [default: 1]")
    ] = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Compute noise from a budget, or a budget from noise, with alternatives, before any training.

    With an experiment: its guarantee, traffic and time. Nothing is trained and nothing written.
    """
    options = {name: value for name, value in context.params.items() if name not in ("what", "as_json")}
    given = {name: value for name, value in options.items() if value is not None}
    if what:
        _plan_experiment(what, list(given), as_json)
    elif not given:
        raise ConfigError(
            "there is nothing to plan",
            why="a plan begins with a budget, with a noise multiplier, or with an experiment",
            fix="write --epsilon 8, --noise-multiplier 1, or the name of an experiment file",
            code="wrong-usage",
        )
    else:
        _plan_numbers(given, as_json)


def _plan_numbers(given: dict[str, Any], as_json: bool) -> None:
    with when_used("torch"):
        from sordino.cli import plan_tables as planned
        from sordino.planning import calculator

    question = calculator.ask(**given)
    with loading():  # scipy
        answers = calculator.answer(question)
    ratio, found = answers[0].noise_to_signal, calculator.enough_for(question)
    if as_json:
        say(
            {
                "question": {**asdict(question), "noise_multiplier": given.get("noise_multiplier")},
                "answer": answers[0].to_json(),
                "alternatives": [answer.to_json() for answer in answers[1:]],
                **_verdict(ratio, found, question.delta),
            }
        )
        return
    console = Screen()
    planned.numbers(console, answers, given.get("noise_multiplier"))
    planned.verdict(console, ratio, found, question.delta)


def _plan_experiment(words: list[str], options: list[str], as_json: bool) -> None:
    if options:
        raise ConfigError(
            f"--{options[0].replace('_', '-')} cannot be combined with an experiment",
            why="the experiment already says these numbers",
            fix="change the experiment instead, for example rounds=50 or privacy.epsilon=3",
            code="two-questions",
        )
    file, overrides = experiment_and_changes(words)
    with Console(stderr=True, quiet=as_json).status("rehearsing the rounds, calibrating the alternatives"):
        with when_used("torch"):
            from sordino.cli import plan_tables as planned
            from sordino.runs.forecast import compare

        with loading():
            found = compare(Path(file) if file is not None else None, overrides)
    if as_json:
        say({**found.to_json(), **_verdict(found.ratio, found.enough, found.delta)})
        return
    console = Screen()
    planned.experiment(console, found)
    planned.verdict(console, found.ratio, found.enough, found.delta)


def _verdict(ratio: float | None, found: Sequence[SmallestFederation], delta: float) -> dict[str, Any]:
    from sordino.planning.planner import NO_WAY, warning, ways_out

    ways = ways_out(found, delta) or [NO_WAY]
    return {
        "warning": None if ratio is None else warning(ratio, ways),
        "enough": [way._asdict() for way in found],
    }


@app.command()
def spent(
    place: Annotated[Path, typer.Argument(metavar="RUN|LEDGER", help="A run folder, or a ledger that runs share.")],
    by_client: Annotated[bool, typer.Option("--by-client", help="One line per client.")] = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show the privacy spent by a run, from its ledger; for a ledger, by all runs on it together."""
    from sordino.cli.tables import groups, guarantees
    from sordino.cli.tables import spending as spending_table
    from sordino.receipts import Lifetime, Spending

    with loading():  # a hundred thousand clients are as many values that all stay
        with when_used("torch"):
            from sordino.receipts.receipt import lifetime, spending

        account: Lifetime | Spending = lifetime(place) if place.is_file() else spending(place)
    if as_json:
        say(account.to_json())
        return
    console = Screen()
    console.print(guarantees(account.guarantees, account.simulated, account.phases))
    if isinstance(account, Lifetime):
        for line in (*account.assumptions, *(f"{run.run}: {run.releases} releases" for run in account.runs)):
            console.print(f"[dim]· {escape(line)}[/dim]", highlight=False, soft_wrap=True)
    if account.budget is not None and account.budget.groups:
        console.print(groups(account.budget, account.simulated))
    if by_client:
        count = "" if account.budget is None else account.budget.caveat(account.guarantees)
        console.print(spending_table(account.by_client, account.currency + count))


@app.command()
def verify(
    folder: Path,
    key: SignedBy = None,
    with_code: PlanCode = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Recompute the receipt from the ledger, without any data. Exit code 5 where they disagree."""
    with when_used("torch"):
        from sordino.receipts.verify import examine

    wrong, unseen, agreed = examine(folder, key, with_code)
    if as_json:
        say({"holds": not wrong, "agrees": agreed, "disagreements": wrong, "not_looked_at": unseen})
    elif wrong:
        lines = "".join(f"\n  · {foreign(line)}" for line in wrong)
        Screen(stderr=True).print(f"[bold red]the receipt does not hold[/bold red]{lines}", highlight=False)
    else:
        console = Screen()
        console.print(f"[green]The receipt holds:[/green] {escape('; '.join(agreed))}.", highlight=False)
        for line in unseen:
            console.print(f"[dim]Not looked at: {escape(line)}.[/dim]", highlight=False)
    if wrong:
        raise typer.Exit(5)


@app.command()
def schema() -> None:
    """Print the JSON Schema of privacy.json: every field with its type and meaning, for programs that read receipts."""
    from sordino.receipts import receipt_schema

    typer.echo(json.dumps(receipt_schema(), indent=2))


@app.command()
def sign(
    folder: Path, key: Annotated[Path, typer.Option(help="Private key of the site, made by `sordino identity new`.")]
) -> None:
    """Sign a receipt, so that no one without the key can replace receipt and ledger together."""
    from sordino.receipts.signature import sign as signed

    typer.echo(str(signed(folder, key)))
