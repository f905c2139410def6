"""audit.json: findings of an audit of a trained run. Reading it needs no tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from sordino.accounting.claims import Status, Subject, standing
from sordino.accounting.facts import Epsilon, Fact
from sordino.ledger.files import atomic_write
from sordino.receipts.folder import RunFolder
from sordino.receipts.run_files import LeftInRun

TrainedVerdict = Literal[
    "holds", "VIOLATED", "no power", "proves nothing", "not attacked", "nothing to audit: infinity is claimed"
]
NEEDS = {
    "at_least": "that the noise of each canary's direction is independent of the others', and of the promised kind",
    "at_least_by_coins": "fair and independent coins, nothing else",
}
ANEW = "audit the run again: `sordino audit RUN --trained` writes the file anew"


class ReplayedCanaries(Fact):
    """Lower bounds on epsilon for one guarantee, from guesses about canaries in replays of the run."""

    canaries: int
    right: int  # guesses
    at_least: Epsilon  # where canaries are independent
    at_delta: float
    claimed_there: Epsilon
    at_least_by_coins: Epsilon  # at the guarantee's delta, under any dependence between canaries

    def refutes(self, claimed: float) -> bool:
        return self.at_least > self.claimed_there or self.at_least_by_coins > claimed


class AuditPower(Fact):
    """Power of an audit, which is tried on broken twins: copies of the run with too little noise behind the same claim.
    `caught`: the factor by which the noise of the refuted twin was too small; `missed`: those of the others.
    """

    caught: float | None = None
    missed: tuple[float, ...] = ()
    twin: ReplayedCanaries | None = None  # the last one that was tried


class AuditedPromise(Subject):
    """Guarantee of a whole run, and lower bounds on its epsilon. `played` is missing where no canary can be placed."""

    budget: Epsilon | None = None  # of the clients that it is about, where each has its own
    claimed: Epsilon
    delta: float
    status: Status
    releases: int  # that count about one canary, at most
    replays: int
    prepared: bool = False  # were canaries in the phases before the training, too?
    verdict: TrainedVerdict
    why: str
    played: ReplayedCanaries | None = None
    power: AuditPower = AuditPower()

    @property
    def in_figures(self) -> tuple[str, ...]:
        """Texts of a row: unit, adversary, claim, the two lower bounds, and the number of right guesses."""
        claimed = f"{self.claimed:.3g}, {standing(self.status, True)}, at {self.delta:g}"
        played = self.played
        who = f"{self.unit}, {self.neighbours}" + ("" if self.budget is None else f"\nbudget {self.budget:g}")
        if played is None:
            return who, self.adversary, claimed, "", "", ""
        if played.at_delta != self.delta:
            claimed += f"\n{played.claimed_there:.3g} at {played.at_delta:g}"
        share = f" ({played.at_least / played.claimed_there:.0%})" if played.claimed_there else ""
        at_least = f"{played.at_least:.3g} at {played.at_delta:g}{share}"
        by_coins = f"{played.at_least_by_coins:.3g} at {self.delta:g}"
        return who, self.adversary, claimed, at_least, by_coins, f"{played.right} of {played.canaries}"

    @property
    def noticed(self) -> str:
        """Power of the audit in a sentence; empty where it is unknown."""
        caught, twin = self.power.caught, self.power.twin
        if caught is None or twin is None:
            return ""
        missed = ", / ".join(f"{weak:g}" for weak in self.power.missed)
        return (
            f"Power: a broken twin with noise / {caught:g} behind the same claim was caught"
            f"{f' (noise / {missed} was not)' if missed else ''}: it loses at least {twin.at_least:.3g} at "
            f"{twin.at_delta:g}, with {twin.right} of {twin.canaries} right."
        )


COLUMNS = ("unit", "against", "claimed", "at least", "by coins alone", "right guesses", "verdict")


class TrainedAudit(LeftInRun):
    """Content of audit.json: the audit of one trained run."""

    format: int = 1
    algorithm: str
    rounds: int
    verdict: TrainedVerdict  # the worst one of all guarantees
    promises: tuple[AuditedPromise, ...]
    unprotected: tuple[str, ...]  # units and adversaries of whom infinity is claimed
    needs: dict[str, str] = NEEDS
    not_looked_at: tuple[str, ...]
    wrong: float  # probability that a true guarantee is refuted
    simulated: bool = True
    seed: int

    @property
    def meaning(self) -> str:
        """Explanation of the bounds and of their error probability, to stand below the table of promises."""
        return (
            f"Each promise is of the whole run of {self.rounds} rounds. Each verdict is wrong with probability "
            f"{self.wrong:.0e} at most. At least: needs {NEEDS['at_least']}. By coins alone: needs "
            f"{NEEDS['at_least_by_coins']}."
        )


def write(found: TrainedAudit, folder: Path) -> Path:
    """Write audit.json into the run's folder."""
    path = RunFolder(folder).audit_file
    atomic_write(path, (found.model_dump_json(exclude_none=True, indent=1) + "\n").encode())
    return path


def read_audit(folder: Path) -> TrainedAudit | None:
    """Read audit.json of a run; None where it is absent."""
    run = RunFolder(folder)
    return run.found(run.audit_file, TrainedAudit, ANEW)
