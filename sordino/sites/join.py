"""`sordino join`: one site of a run. It decides by itself, from the plan it is shown, the invitation and its own data,
whether it takes part, and pays from its own ledger for every answer. It opens no port: the site connects to the
server."""

from __future__ import annotations

import hmac
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from rich.console import Console
from rich.table import Table

from sordino.accounting.statement import Guarantee, beside_scores
from sordino.accounting.words import described, in_short, merged, subject
from sordino.cli import foreign
from sordino.cli.tables import guarantees
from sordino.config import Experiment
from sordino.engine import wire
from sordino.errors import ConfigError, LedgerError, RunError, UnsoundGuarantee
from sordino.fast import keep_freed_memory
from sordino.metrics import bytes_text
from sordino.metrics.evaluation import check_shared
from sordino.planning.planner import Planner
from sordino.receipts import Receipt, private
from sordino.receipts.folder import RunFolder
from sordino.receipts.newest import place_for
from sordino.receipts.receipt import LATE
from sordino.runs.new_folder import create_folder, environment_of
from sordino.runs.setup import PhaseSetup, RunSetup
from sordino.runs.witness import needed
from sordino.sites import agreement_file
from sordino.sites.agreement_file import Invitation
from sordino.sites.connecting import InvitedOptions, Says, attend_for
from sordino.sites.event_log import EventLog
from sordino.sites.identity import fingerprint
from sordino.sites.membership import Membership
from sordino.sites.own_data import OwnData
from sordino.sites.serve import AGREEMENT, INVITATION, settled
from sordino.transport.run_events import RunEvent
from sordino.transport.tls import of_site

TAKEN_IN = 1 << 30  # bytes of the longest message that a site accepts: a model, or the tensors for all clients


@dataclass(frozen=True, kw_only=True)
class JoinOptions(InvitedOptions):
    """Start options of a site."""

    data: Path
    name: str
    max_epsilon: float | None = None
    shares_scores: bool = False
    key_digest: str = ""  # digest of the key holder's public key, from the holder itself
    moved: bool = False  # true: this folder has taken the place of the one that joined


@dataclass(frozen=True)
class Proposed:
    """Run that a site is asked to take part in, with all numbers computed by the site itself."""

    options: JoinOptions
    invitation: Invitation

    @property
    def client(self) -> int:
        """Number of this client in the agreement of the sites."""
        names = [client.name for client in self.invitation.agreement.clients]
        if self.options.name not in names:
            raise ConfigError(
                f"{self.options.name!r} is not a client of this run",
                why=f"the agreement names {', '.join(names)}",
                fix="--name must be the name that was announced",
                code="unknown-client",
            )
        return names.index(self.options.name)

    @property
    def site(self) -> str:
        """Site of this client."""
        return self.invitation.agreement.clients[self.client].site

    @cached_property
    def experiment(self) -> Experiment:
        """Experiment with this site's own settings, such as the path of its data."""
        experiment = settled(self.invitation.experiment, self.options.rehearsal)
        own: dict[str, object] = {"path": str(self.options.data)}
        if self.invitation.fields.table_schema:
            own["schema"] = str(self.folder / "schema.toml")
        return experiment.model_copy(update={"data": experiment.data.model_copy(update=own)})

    @cached_property
    def whole(self) -> RunSetup:
        invitation = self.invitation
        return RunSetup(self.experiment, invitation.agreement.public(self.experiment, invitation.declared))

    @cached_property
    def data(self) -> OwnData:
        """Rows of this site."""
        key = data_key(self.options.identity)
        return OwnData(self.experiment, self.options.data, key, self.invitation.declared)

    @property
    def folder(self) -> Path:
        return self.options.folder_in(self.invitation.fields.run, self.options.name)

    @cached_property
    def guarantees(self) -> list[Guarantee]:
        """Privacy guarantees for this client over the whole run, as its own ledger will state them."""
        whole = self.whole
        planner = Planner(whole.phases[-1], (self.client,))
        planner.check_noise()
        rows = planner.guarantees
        return beside_scores(rows, self.experiment.privacy.delta) if self.options.shares_scores else rows

    @cached_property
    def at_stake(self) -> list[Guarantee]:
        """Worst case for the units that noise protects: their guarantees against every adversary if the server uses up
        this client's whole budget."""
        plan = self.whole.phases[-1].promising
        if plan.offer is None:
            return []
        paid, budget = plan.offer.subject.unit, 0.0 if plan.budget is None else plan.budget.of(self.client)
        promised = {claim.unit for phase in self.whole.phases for claim in phase.priced.promises}
        held = {row.unit for row in self.guarantees if row.finite} & promised | {paid}
        rows = [row for row in self.guarantees if row.unit in held]
        return [row.beside(epsilon=max(row.epsilon, budget)) if row.unit == paid else row for row in rows]

    @property
    def worst(self) -> Guarantee | None:
        """Guarantee against the adversary who can learn most; None where no noise covers anything."""
        return max(self.at_stake, key=lambda row: row.epsilon, default=None)

    @property
    def at_most(self) -> str:
        return in_short(self.worst, not self.experiment.privacy.real) if self.worst else ""

    @property
    def epsilon(self) -> float:
        return math.inf if self.worst is None else self.worst.epsilon

    def check(self) -> None:
        """Refuses what this site does not allow: sharing scores that would reveal training examples, or a plan above
        its cap."""
        if self.options.shares_scores:
            check_shared(self.whole.phases[-1].ways)
        most = self.options.max_epsilon
        if most is not None and not self.epsilon <= most:
            raise UnsoundGuarantee(
                f"the plan costs this client more than --max-epsilon {most:g}",
                why="in the whole run it may spend " + (self.at_most or "an unbounded epsilon"),
                fix="ask for a plan with a smaller budget or fewer rounds, or allow more. No cap allows an infinite "
                "row: leave --max-epsilon out if you accept it",
                code="above-own-cap",
            )


class SiteResult(NamedTuple):
    """Receipt of a site that leaves a run, and whether the run is over."""

    receipt: Receipt
    over: bool


def proposed(options: JoinOptions) -> Proposed:
    return Proposed(options, agreement_file.read_invitation(options.invitation, options.with_code))


def join(
    asked: Proposed,
    consent: Callable[[Proposed], bool],
    stop: Callable[[], bool],
    say: Says = lambda s, why: None,
    hears: Callable[[RunEvent], None] = lambda event: None,
) -> SiteResult | None:
    """Take part until the run is over or somebody stops it; None where the site declined. `consent`: asked before the
    site joins for the first time; `hears`: receives each event.
    """
    if asked.options.certificates is not None:
        of_site(asked.options.certificates, asked.site).read()  # errors in them come before the question for consent
    with membership(asked, consent, hears) as found:
        if found is None:
            return None
        member, log = found
        attend_for(member, asked.invitation, asked.site, asked.options, stop, log.standing(say), TAKEN_IN)
        log(RunEvent(event="over" if member.was_over else "stopped"))
        return SiteResult(member.receipt(), member.was_over)


@contextmanager
def membership(
    asked: Proposed, consent: Callable[[Proposed], bool], hears: Callable[[RunEvent], None] = lambda event: None
) -> Iterator[tuple[Membership, EventLog] | None]:
    """The site's part of a run, with its folder locked; created the first time, if the site consents. None where it
    declined. `hears`: receives each event.
    """
    asked.check()
    options, folder, known = asked.options, asked.folder, RunFolder(asked.folder).exists
    if known:
        _check_same(asked)
    else:
        _check_first(asked)
        if not consent(asked):
            yield None
            return
    data = asked.data
    data.check(asked.invitation.agreement, asked.client)
    whole = asked.whole
    if not known:
        _create_folder(asked, whole, data)
    torch.set_num_threads(whole.experiment.engine.threads)
    keep_freed_memory()
    signer = asked.invitation.signer(asked.site, whole.experiment.digest(), options.identity)
    log = EventLog.of(folder, whole, hears)
    with RunFolder(folder).locked(), log.kept():
        member = Membership(
            folder,
            whole,
            {asked.client: data.trained},
            {asked.client: data.tested},
            signer,
            options.key_digest,
            options.moved,
            log,
        )
        if member.accounts.lost:
            log(RunEvent(event="lost", count=len(member.accounts.lost)))
        try:
            yield member, log
        finally:
            member.close()


def data_key(identity: Ed25519PrivateKey) -> bytes:
    """Key of the digest that stands for a site's data: without the identity nobody can test guesses of its rows."""
    return hmac.digest(identity.private_bytes_raw(), b"sordino data", "sha256")


def answers_key(asked: Proposed) -> bytes:
    """Secret from which this site draws what it randomises once in a run. It follows from the identity and from what
    was accepted: in place of a lost folder, another one draws the same answers, since second ones would be unpaid.
    """
    invitation = asked.invitation
    accepted = "/".join((invitation.fields.run, invitation.experiment.digest(), invitation.agreement.digest))
    return hmac.digest(asked.options.identity.private_bytes_raw(), f"sordino answers/{accepted}".encode(), "sha256")


def _create_folder(asked: Proposed, whole: RunSetup, data: OwnData) -> None:
    fields, agreed = asked.invitation.fields, asked.invitation.agreement
    scores = asked.options.shares_scores
    environment = environment_of(whole.experiment, run=fields.run)
    environment = environment.beside(site=asked.site, clients=(asked.client,), shares_scores=scores)
    more = {
        AGREEMENT: agreed.toml(),
        INVITATION: asked.invitation.toml(),
        **({"schema.toml": fields.table_schema} if fields.table_schema else {}),
    }
    agreement = whole.agreement(data.commitment)
    create_folder(asked.folder, whole.phases[-1], agreement, environment, b"", more=more, secret=answers_key(asked))


def _check_first(asked: Proposed) -> None:
    """Refuse to join a run a second time: another folder would have a ledger that knows nothing of what was spent."""
    run, needs = asked.invitation.fields.run, needed(asked.whole.phases[-1])
    if needs and not asked.options.moved and os.path.exists(place_for(run, asked.site)):
        raise LedgerError(
            f"{asked.site} has joined this run before, in another folder than {asked.folder}",
            why="a second folder would spend the budget of the first one again",
            fix="give the --out that it joined with; if that folder is lost, --moved continues without it: the rounds "
            "that it answered then count as lost, and stay paid for",
            code="joined-before",
        )


def _check_same(asked: Proposed) -> None:
    """Refuse to resume with anything that differs from what this site accepted when it joined."""
    if asked.experiment.privacy.real:
        private.check_place(asked.folder, asked.options.moved)
    before, now = agreement_file.read_invitation(asked.folder / INVITATION, with_code=True), asked.invitation
    environment = RunFolder(asked.folder).environment
    for what, there, here in (
        ("run", before.fields.run, now.fields.run),
        ("experiment", before.experiment.digest(), now.experiment.digest()),
        ("agreement", before.agreement.digest, now.agreement.digest),
        ("key of the server", before.fields.server_key, now.fields.server_key),
        ("client", environment.clients, (asked.client,)),
        ("answer to whether it shares scores", environment.shares_scores, asked.options.shares_scores),
    ):
        if there != here:
            raise RunError(
                f"the {what} differs from the one in {asked.folder}, with which this site joined",
                why="what a site has accepted does not change during a run",
                fix="use the invitation and the name that this site joined with, or another --out",
                code="other-invitation",
            )


PROVES_NOTHING = "whose published size proves nothing"


def plan(console: Console, asked: Proposed) -> None:
    """Print the plan, worked out at this site from the experiment and the agreement in the invitation."""
    fields, whole, rows = asked.invitation.fields, asked.whole, asked.guarantees
    console.print(f"[bold]{foreign(asked.options.name)}[/bold] is asked to take part in run {fields.run}.")
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    address = "".join((asked.options.address or fields.server).split())  # without blanks it cannot fake a fingerprint
    for name, value in (
        ("server", f"{address}, with the key {fingerprint(asked.invitation.server_key)}"),
        ("method", ", then ".join(_method(phase) for phase in whole.phases)),
        ("clients", f"{len(whole.public.sizes)} of {len(asked.invitation.agreement.sites)} sites"),
    ):
        table.add_row(f"[dim]{name}[/dim]", foreign(value))
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
        console.print(f"[dim]· {foreign(row.words)}[/dim]", highlight=False)
    for line in (*whole.public.assumed, *whole.public.void, *(LATE,) * whole.hides_cohorts):
        console.print(f"[dim]· {foreign(line)}[/dim]", highlight=False)
    most = asked.options.max_epsilon
    each = f" per {asked.worst.unit}" if asked.worst else ""
    allowed = "" if most is None else f" (this site allows {most:g}{each})"
    unpriced = "what its table says" if any(row.finite for row in rows) else "more than any epsilon says"
    cost = f"at most {asked.at_most}" if asked.at_most else f"{unpriced}: no noise that a budget pays for covers it"
    console.print(f"\nThe whole run would cost this client [bold]{foreign(cost)}[/bold]{allowed}.")
    for held, by in merged([row for row in asked.at_stake if row.status == "conditional"]):
        only_if = f"Against {subject(by)} this is conditional. It rests on: {'; '.join(held.because)}."
        console.print(foreign(only_if), highlight=False)


def _scores(asked: Proposed) -> str:
    if not asked.options.shares_scores:
        return "no scores: the server gets no test scores of this site"
    return "scores: this site's exact test scores; no noise covers them"


def _method(phase: PhaseSetup) -> str:
    name = phase.phase or str(phase.experiment.algorithm.get("name"))
    return f"{name} ({phase.rounds} rounds)"


def _leaves(phase: PhaseSetup, client: int) -> str:
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


def _protected(phase: PhaseSetup, client: int) -> str:
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
