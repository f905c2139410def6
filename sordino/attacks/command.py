"""`sordino attack`: attacks on a run, with their results as figures and pictures."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from sordino.cli import Json, Screen, Verbose, experiment_and_changes, say

if TYPE_CHECKING:
    from sordino.results.findings import AttackResults


class Attacker(StrEnum):
    """Adversary of a guarantee whose attacks are run."""

    server = "server"
    participants = "participants"
    public = "public"


STYLES = {"broken": "bold red", "reached": "bold red", "stopped": "green", "no power": "yellow", "not tried": "dim"}


def attack(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN | EXPERIMENT.toml | ALGORITHM] [key=value ...]",
            help="The run to attack; without one, the default experiment. A run's folder gets attack.json.",
        ),
    ] = None,
    attacks: Annotated[
        list[str] | None,
        typer.Option(
            "--attack",
            "-a",
            metavar="NAME",
            help="Attack to run; repeatable. Default: all except those that train whole runs.",
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the attacks, and attack nothing.")] = False,
    round_: Annotated[int, typer.Option("--round", min=1, help="The round that attackers observe.")] = 1,
    images: Annotated[
        int,
        typer.Option(min=0, help="Images of each attacked client; few are easier to attack. 0: all that it has."),
    ] = 4,
    victims: Annotated[int, typer.Option(min=1, help="Number of attacked clients.")] = 2,
    shadows: Annotated[int, typer.Option(min=2, help="Shadow models of LiRA.")] = 8,
    attackers: Annotated[
        float, typer.Option(min=0, max=1, help="Share of malicious clients, in attacks that have them.")
    ] = 0.2,
    seed: Annotated[int, typer.Option(help="Seed of the attackers' randomness.")] = 0,
    by: Annotated[
        Attacker | None, typer.Option(help="Adversary; by default the weakest that can run each attack.")
    ] = None,
    pictures: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also write the pictures there, as PNG.")
    ] = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Attack a run, or the run of an experiment, and measure what attackers learn about its data.

    Each attack is compared with a guess without any observation, and with itself on the same run without protection.
    The result holds images of the training data. Runs with real noise are refused.
    """
    from sordino.attacks.attack import assault, write
    from sordino.attacks.attacked_run import AttackSettings
    from sordino.audits.gates import experiment_of, unchanged_run

    if list_:
        from sordino.attacks.methods import ATTACKS

        rows: list[dict[str, str | bool]] = [
            {"attack": name, "sees": kind.sees, "what": kind.what(), "costly": kind.costly}
            for name, kind in ATTACKS.items()
        ]
        say(rows) if as_json else _listed(rows)
        return
    name, changes = experiment_and_changes(what or [])
    experiment = experiment_of(name, changes)
    folder = unchanged_run(name, bool(changes))
    asked = AttackSettings(round_, images, victims, shadows, seed=seed, attackers=attackers)
    with Console(stderr=True, quiet=as_json).status("reading") as status:
        found = assault(
            experiment,
            folder,
            attacks,
            asked,
            None if by is None else by.value,
            lambda subject: status.update(f"attacking ({subject})"),
        )
    written = [] if folder is None else [write(found, folder)]
    if pictures is not None:
        from sordino.results.findings import drawn

        written += drawn(found, pictures)
    if as_json:
        say(found.to_json())
    else:
        _show(found)
        for path in written:
            Screen().print(f"written: {path}", highlight=False, soft_wrap=True, markup=False)
    if found.having("broken"):
        raise typer.Exit(4)


def _listed(rows: list[dict[str, str | bool]]) -> None:
    from rich.table import Table

    table = Table("attack", "adversary", "description", "runs")
    for one in rows:
        when = "only if named: it trains whole runs" if one["costly"] else "always"
        table.add_row(str(one["attack"]), f"the {one['sees']}", escape(str(one["what"])), when)
    Screen().print(table)


def _show(found: AttackResults) -> None:
    from rich.table import Table

    from sordino.accounting.words import in_short
    from sordino.results.findings import figures

    console = Screen(highlight=False)
    for heads in dict.fromkeys(one.heads for one in found.found):
        table = Table("attack", "by", "figure", "reached", *heads, "verdict")
        for one in (one for one in found.found if one.heads == heads):
            rows = [(figure.name, *figures(figure)) for figure in one.measured] or [("",) * 4]
            verdict = f"[{STYLES[one.verdict]}]{one.verdict}[/]"
            for i, row in enumerate(rows):
                table.add_row(one.attack if not i else "", one.sees if not i else "", *row, verdict if not i else "")
        console.print(table)
    for one in found.found:
        console.print(f"{one.attack}: {escape(one.why)}.")
    for held in dict.fromkeys(in_short(held, found.simulated) for one in found.found for held in one.promises):
        console.print(f"Promised: {held}.")
    console.print(found.setting)
    if any(one.pictures for one in found.found):
        console.print("[bold]The result holds images of the training data.[/]")
    console.print(f"[dim]Not looked at: {'; '.join(found.not_looked_at)}.[/dim]")
