"""`sordino audit`: attack what an experiment promises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from sordino.cli.options import Json, Verbose
from sordino.cli.screen import Screen, say
from sordino.cli.words import experiment_and_changes

if TYPE_CHECKING:
    from rich.table import Table

    from sordino.attacks.audit import AttackedPromise, Audit

STYLES = {"holds": "green", "caught": "green", "VIOLATED": "bold red", "escaped": "bold red"}
ENDS = {"VIOLATED": 4, "escaped": 2}  # other verdicts are no failure
SAYS = {
    "holds": "No claim was refuted: this attack did not do better than was claimed.",
    "holds in part": "No claim was refuted, but [bold]the run as a whole is not protected[/]: a phase of it claims "
    "infinity.",
    "VIOLATED": "[bold red]Refuted:[/] more is lost than is claimed.",
    "proves nothing": "Nothing is proved here: the number claimed is what its source prints. Where the attack never "
    "errs, more --trials find more.",
    "not attacked": "Not every claim could be attacked: this audit knows no worst case for it.",
    "caught": "Caught: with 30% less noise behind the same claims the attack refutes them.",
    "escaped": "[bold red]Not caught:[/] these claims are so small that so few trials cannot tell 30% less noise. "
    "Give more --trials.",
}


def audit(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[EXPERIMENT.toml | RUN | ALGORITHM] [key=value ...]",
            help="Whose promises to attack; without one, those of the default experiment.",
        ),
    ] = None,
    trials: Annotated[int | None, typer.Option(help="Releases of either neighbour. [default: 30000]")] = None,
    seed: Annotated[int, typer.Option(help="Of the noise.")] = 0,
    system: Annotated[
        bool, typer.Option("--system", help="Noise from the operating system, which no seed repeats.")
    ] = False,
    twin: Annotated[
        bool, typer.Option("--twin", help="Attack a broken twin, with 30% less noise: it must be caught.")
    ] = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Attack the promises of an experiment on worst-case neighbours. Exit code 4 where a claim is refuted.

    Nothing is trained: the experiment's own gates release made-up uploads and gradients, and a proved lower bound on
    what that loses is held against the claim.
    """
    from sordino.attacks import audit as attacks

    experiment = attacks.experiment_of(*experiment_and_changes(what or []))
    with Console(stderr=True, quiet=as_json).status("reading") as status:
        found = attacks.audit(
            experiment,
            attacks.TRIALS if trials is None else trials,
            seed,
            system,
            twin,
            lambda subject: status.update(f"attacking ({subject})"),
        )
    if as_json:
        say(found.to_json())
    else:
        _show(found)
    if found.verdict in ENDS:
        raise typer.Exit(ENDS[found.verdict])


def _show(found: Audit) -> None:
    from sordino.attacks.audit import EMPTY, UNSEEN

    console = Screen()
    for phase in found.phases if len(found.phases) > 1 else ():
        bare = phase in found.unprotected
        console.print(f"phase {escape(phase)}:{f' {EMPTY}' if bare else ''}", highlight=False)
        if mine := [one for one in found.subjects if one.phase == phase]:
            console.print(_table(mine, found.simulated))
    if not found.subjects:
        console.print(f"{escape(found.algorithm)}: {found.verdict}.")
        return
    if len(found.phases) == 1:
        console.print(_table(found.subjects, found.simulated))
    console.print(
        f"{SAYS[found.verdict]} Each bound is wrong with probability {1 - found.subjects[0].confidence:.0e} at most.",
        highlight=False,
    )
    console.print(f"[dim]Not looked at: {'; '.join(UNSEEN)}.[/dim]", highlight=False)


def _table(subjects: list[AttackedPromise], simulated: bool) -> Table:
    from rich.table import Table

    table = Table()
    for column in ("unit", "against", "attack", "claimed, once", "at least", "trials", "verdict"):
        table.add_column(column)
    for one in subjects:
        style = STYLES.get(one.verdict, "yellow")
        table.add_row(
            f"{one.unit}, {one.neighbours}",
            one.adversary,
            one.attack or "none is known for this reader",
            *_numbers(one, simulated),
            f"{one.trials:,}" if one.attack else "",
            f"[{style}]{one.verdict}[/]",
        )
    return table


def _numbers(one: AttackedPromise, simulated: bool) -> tuple[str, str]:
    """The claim of one exposure and the bound; at another delta too, where they are compared there."""
    from sordino.ledger.claims import standing

    claimed = f"{one.claimed:.3g}, {standing(one.status, simulated)}, at {one.delta:g}"
    if one.at_delta != one.delta:
        claimed += f"\n{one.claimed_there:.3g} at {one.at_delta:g}"
    return claimed, f"{one.at_least:.3g} at {one.at_delta:g}" if one.attack else ""
