"""`sordino audit`: attack the guarantees of an experiment: its mechanisms alone, or a replay of the whole run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from sordino.cli import Json, Screen, Verbose, experiment_and_changes, say
from sordino.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from sordino.audits.gates import AttackedPromise, Audit
    from sordino.config import Experiment
    from sordino.results.findings import TrainedAudit

STYLES = {"holds": "green", "caught": "green", "VIOLATED": "bold red", "escaped": "bold red"}
ENDS = {"VIOLATED": 4, "escaped": 2, "no power": 2}  # other verdicts are no failure
SAYS = {
    "holds": "No claim was refuted: this attack did no better than the claims allow. Faults that are smaller than it "
    "would notice may exist; more --trials find smaller ones.",
    "holds in part": "No claim was refuted, but [bold]the run as a whole is not protected[/]: a phase of it claims "
    "infinity.",
    "VIOLATED": "[bold red]Refuted:[/] the privacy loss is larger than claimed.",
    "proves nothing": "Nothing is proved here: the claimed number is what its publication prints. Where the attack "
    "never errs, more --trials find more.",
    "not attacked": "Not every claim could be attacked: this audit has no worst case for it.",
    "caught": "Caught: with {short:.0%} less noise behind the same claims the attack refutes them.",
    "escaped": "[bold red]Not caught:[/] these claims are too small for so few trials to notice {short:.0%} less "
    "noise. Give more --trials.",
}


def audit(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[EXPERIMENT.toml | RUN | ALGORITHM] [key=value ...]",
            help="The experiment or run to attack; without one, the default experiment.",
        ),
    ] = None,
    trials: Annotated[int | None, typer.Option(help="Number of releases of each neighbour. [default: 30000]")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0,
    system: Annotated[
        bool, typer.Option("--system", help="Noise from the operating system, which no seed repeats.")
    ] = False,
    twin: Annotated[
        bool,
        typer.Option("--twin", help="Attack a broken twin, with less noise behind the same claim: it must be caught."),
    ] = False,
    short: Annotated[
        float | None, typer.Option(help="With --twin: share of the noise to leave out. [default: 0.3]")
    ] = None,
    trained: Annotated[
        bool,
        typer.Option("--trained", help="Attack the trained run: replay all of it, with canaries and broken twins."),
    ] = False,
    canaries: Annotated[int | None, typer.Option(help="With --trained: number of canaries. [default: 1000]")] = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Attack the guarantees of an experiment on worst-case neighbours. Exit code 4 where a claim is refuted.

    Nothing is trained, except with --trained: the experiment's own reader and uplink release made-up gradients and
    uploads, and a proved lower bound on their privacy loss is compared with the claim.
    """
    from sordino.audits import gates as attacks

    name, changes = experiment_and_changes(what or [])
    experiment = attacks.experiment_of(name, changes)
    if short is not None and not twin:
        raise ConfigError(
            "--short without --twin",
            why="it sets how much noise a broken twin lacks, and no twin is attacked",
            fix="add --twin, or leave out --short",
            code="short-without-twin",
        )
    if trained:
        _check_alone(trials is not None, system, twin)
        folder = attacks.unchanged_run(name, bool(changes))
        _trained(experiment, folder, canaries, seed, as_json)
        return
    with Console(stderr=True, quiet=as_json).status("reading") as status:
        found = attacks.audit(
            experiment,
            attacks.TRIALS if trials is None else trials,
            seed,
            system,
            twin,
            lambda subject: status.update(f"attacking ({subject})"),
            attacks.SHORT if short is None else short,
        )
    if as_json:
        say(found.to_json())
    else:
        _show(found)
    if found.verdict in ENDS:
        raise typer.Exit(ENDS[found.verdict])


def _check_alone(trials: bool, system: bool, twin: bool) -> None:
    """Refuse --trials, --system and --twin beside --trained, where they have no meaning."""
    for option, given in (("--trials", trials), ("--system", system), ("--twin", twin)):
        if given:
            raise ConfigError(
                f"{option} beside --trained",
                why="it is for attacks on single releases; a replay has canaries, seeded noise and broken twins anyway",
                fix=f"leave out {option}, or --trained; --canaries sets the effort of a replay",
                code="not-with-trained",
            )


def _trained(experiment: Experiment, folder: Path | None, canaries: int | None, seed: int, as_json: bool) -> None:
    from sordino.audits.trained import CANARIES, audit_trained
    from sordino.results.findings import write

    with Console(stderr=True, quiet=as_json).status("reading") as status:
        many = CANARIES if canaries is None else canaries
        found = audit_trained(
            experiment, folder, many, seed, lambda subject: status.update(f"playing the run again ({subject})")
        )
    written = None if folder is None else write(found, folder)
    if as_json:
        say(found.to_json())
    else:
        _show_trained(found)
        if written is not None:
            Screen().print(f"written: {written}", highlight=False, soft_wrap=True, markup=False)
    if found.verdict in ENDS:
        raise typer.Exit(ENDS[found.verdict])


def _show_trained(found: TrainedAudit) -> None:
    from rich.table import Table

    from sordino.results.findings import COLUMNS

    console = Screen(highlight=False)
    if not found.promises:
        console.print(f"{escape(found.algorithm)}: {found.verdict}.")
        return
    table = Table(*COLUMNS)
    for one in found.promises:
        table.add_row(*one.in_figures, f"[{STYLES.get(one.verdict, 'yellow')}]{one.verdict}[/]")
    console.print(table)
    for one in found.promises:
        console.print(f"{one.unit}, {one.neighbours}: {escape(one.why)}. {one.noticed}".rstrip())
    console.print(found.meaning)
    if found.unprotected:
        console.print(f"Infinity is claimed of: {'; '.join(found.unprotected)}.")
    console.print(f"[dim]Not looked at: {'; '.join(found.not_looked_at)}.[/dim]")


def _show(found: Audit) -> None:
    from sordino.audits.gates import EMPTY, UNSEEN

    console = Screen()
    for phase in found.phases if len(found.phases) > 1 else ():
        bare = phase in found.unprotected
        console.print(f"phase {escape(phase)}:{f' {EMPTY}' if bare else ''}", highlight=False)
        if subjects := [one for one in found.subjects if one.phase == phase]:
            console.print(_table(subjects, found.simulated))
    if not found.subjects:
        console.print(f"{escape(found.algorithm)}: {found.verdict}.")
        return
    if len(found.phases) == 1:
        console.print(_table(found.subjects, found.simulated))
    console.print(
        f"{SAYS[found.verdict].format(short=found.short)} Each bound is wrong with probability "
        f"{1 - found.subjects[0].confidence:.0e} at most.",
        highlight=False,
    )
    console.print(f"[dim]Not looked at: {'; '.join(UNSEEN)}.[/dim]", highlight=False)


def _table(subjects: list[AttackedPromise], simulated: bool) -> Table:
    from rich.table import Table

    table = Table()
    for column in ("unit", "against", "attack", "claimed, once", "at least", "trials", "would notice", "verdict"):
        table.add_column(column)
    for one in subjects:
        style = STYLES.get(one.verdict, "yellow")
        table.add_row(
            f"{one.unit}, {one.neighbours}",
            one.adversary,
            one.attack or "none for this reader",
            *_numbers(one, simulated),
            f"{one.trials:,}" if one.attack else "",
            one.power,
            f"[{style}]{one.verdict}[/]",
        )
    return table


def _numbers(one: AttackedPromise, simulated: bool) -> tuple[str, str]:
    """Texts of the claim and of the lower bound for one participation; where they are compared at another delta, the
    claim there, too.
    """
    from sordino.accounting.claims import standing
    from sordino.accounting.facts import at_least_text, epsilon_text

    claimed = f"{epsilon_text(one.claimed)}, {standing(one.status, simulated)}, at {one.delta:g}"
    if one.at_delta != one.delta:
        claimed += f"\n{epsilon_text(one.claimed_there)} at {one.at_delta:g}"
    return claimed, f"{at_least_text(one.at_least)} at {one.at_delta:g}" if one.attack else ""
