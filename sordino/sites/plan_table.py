"""Plan that a site is shown before it takes part: messages that leave it, and epsilon against each adversary."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sordino.accounting.words import described, merged, subject
from sordino.cli.tables import guarantees
from sordino.engine import wire
from sordino.metrics.rows import bytes_text
from sordino.runs.setup import Setup
from sordino.sites.identity import fingerprint
from sordino.sites.join import Proposed

PROVES_NOTHING = "whose published size proves nothing"


def plan(console: Console, asked: Proposed) -> None:
    """Print the plan, worked out at this site from the experiment and the agreement in the invitation."""
    told, whole, rows = asked.invitation.told, asked.whole, asked.guarantees
    console.print(f"[bold]{escape(asked.options.name)}[/bold] is asked to take part in run {told.run}.")
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, said in (
        ("server", f"{asked.options.address or told.server}, with the key {fingerprint(asked.invitation.server_key)}"),
        ("method", ", then ".join(_method(phase) for phase in whole.phases)),
        ("clients", f"{len(whole.public.sizes)} of {len(asked.invitation.agreement.sites)} sites"),
    ):
        table.add_row(f"[dim]{name}[/dim]", escape(said))
    console.print(table)
    console.print("\n[bold]What leaves this site[/bold]")
    for phase in whole.phases:
        console.print(f"  · {_leaves(phase, asked.client)}", highlight=False)
    console.print(f"  · {_scores(asked)}", highlight=False)
    console.print(
        "  · nothing else. No row is sent as it is, and every message goes to this server alone; what the server and "
        "others can learn from the messages is in the table.\n",
        highlight=False,
    )
    simulated = not asked.experiment.privacy.real
    console.print(guarantees(rows, simulated))
    for row in described(rows, simulated):
        console.print(f"[dim]· {escape(row.words)}[/dim]", highlight=False)
    for line in (*whole.public.assumed, *whole.public.void):
        console.print(f"[dim]· {escape(line)}[/dim]", highlight=False)
    most = asked.options.max_epsilon
    each = f" per {asked.worst.unit}" if asked.worst else ""
    allowed = "" if most is None else f" (this site allows {most:g}{each})"
    cost = f"at most {asked.worst.in_short}" if asked.worst else "more than any epsilon says: no noise covers it"
    console.print(f"\nThe whole run would cost this client [bold]{escape(cost)}[/bold]{allowed}.")
    for held, by in merged([row for row in asked.at_stake if row.status == "conditional"]):
        only_if = f"Against {subject(by)} this is conditional. It rests on: {'; '.join(held.because)}."
        console.print(escape(only_if), highlight=False)


def _scores(asked: Proposed) -> str:
    if not asked.options.shares_scores:
        return "no scores: the server gets no test scores of this site"
    return "scores: this site's exact test scores; no noise covers them"


def _method(phase: Setup) -> str:
    name = phase.phase or str(phase.experiment.algorithm.get("name"))
    return f"{name} ({phase.rounds} rounds)"


def _leaves(phase: Setup, client: int) -> str:
    """Description of the messages that leave a site in a phase, in a sentence."""
    algorithm = phase.algorithm
    down = algorithm.broadcast(phase.state("server"))
    size = wire.payload_bytes(wire.schema(algorithm.uplink.at(0, down).shape(algorithm.zero(phase.task, down))))
    often = phase.rounds if phase.plan.pricing is None else phase.plan.participations[client]
    when = f"in the phase {phase.phase}" if phase.phase else "in the training"
    times = "once" if often == 1 else f"up to {often} times"
    if phase.prepares and phase.plan.pricing is None:
        times = "as often as the server needs"
    return f"{when}, {times}: a message of {bytes_text(size)}, {_protected(phase, client)}"


def _protected(phase: Setup, client: int) -> str:
    """Description of the protection of a message at the site; noise is mentioned even where it proves nothing."""
    uplink, read = phase.algorithm.uplink, phase.algorithm.read
    claims = read.claims(phase.algorithm.work, phase.public.sizes[client], 1.0)
    found = []
    if read.redraw is not None:
        exact = [reason for claim in claims if claim.status == "none" for reason in claim.because]
        found.append(", but ".join(("computed from examples that were randomised here", *dict.fromkeys(exact))))
    elif read.offer() is not None:
        found.append("computed from answers to which noise was added here")
    elif any(claim.status == "nominal" for claim in claims):
        found.append(f"computed from answers to which noise was added here, {PROVES_NOTHING}")
    if uplink.shared:
        found.append("cut to a bounded length, with a share of noise that is drawn here; only the sum has all of it")
    elif uplink.noise() is not None:
        found.append(
            "cut to a bounded length here; the server adds noise to the sum of all clients"
            if uplink.central
            else "cut to a bounded length, with noise that is drawn here"
        )
    elif uplink.as_published is not None:
        found.append(f"with noise that is drawn here, {PROVES_NOTHING}")
    elif (noise := uplink.per_coordinate) is not None:
        found.append("the server adds noise to the sum of all clients" + " where a flag asks for it" * noise.flagged)
    if phase.policy.secure:
        found.append("masked or encrypted, so that the server reads nothing but the sum")
    return "; ".join(found) or "as it was computed: no noise covers it"
