"""Evidence for documents about a run: its receipt, ledger, experiment and agreement, compared with each other.

Neither data nor model nor code of a user's own is needed, so any machine will do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sordino.accounting.claims import standing
from sordino.accounting.events import said
from sordino.accounting.facts import delta_text
from sordino.accounting.statement import Guarantee, strongest
from sordino.accounting.words import CHANGE, Described, belief, described, epsilon_text, merged, percent, subject
from sordino.config import Experiment
from sordino.errors import LedgerError
from sordino.planning.agreement import Agreement, PublicNumbers
from sordino.receipts.folder import RunFolder
from sordino.receipts.run_files import Environment, Receipt
from sordino.receipts.verify import Verdict, examine

NO_NOISE = "NOT PRIVATE: no noise was drawn. This run protects nobody."
STAMP = "SIMULATION: the noise came from a seed and can be repeated. This run protects nobody."
BROKEN = "THIS RECEIPT DOES NOT HOLD: files of the run do not agree with each other."
FORGED = (
    "that ledger, receipt and files were not forged together: against this a site signs its receipt",
    "which program wrote the files, and that it really drew the noise",
)
COLUMNS = (
    "protected", "against", "epsilon", "delta", "hidden change", "status", "accountant", "a 1% guess can become",
)  # fmt: skip


class Evidence(NamedTuple):
    """The facts that a document about a run may state."""

    receipt: Receipt
    experiment: Experiment
    public: PublicNumbers
    environment: Environment
    verdict: Verdict

    @property
    def simulated(self) -> bool:
        return self.receipt.simulated

    @property
    def stamps(self) -> list[str]:
        """Warnings on top of every document."""
        return [BROKEN] * bool(self.verdict.wrong) + [STAMP if self.noised else NO_NOISE] * self.simulated

    @property
    def noised(self) -> bool:
        """True where any noise was drawn."""
        return any(row.status != "none" for row in self.receipt.guarantees) or self.receipt.budget is not None

    @property
    def rows(self) -> tuple[Described, ...]:
        return described(self.receipt.guarantees, self.simulated)

    @property
    def strongest(self) -> Guarantee | None:
        return strongest(self.receipt.guarantees)

    @property
    def examples(self) -> str:
        """Number of examples in words, where it is public."""
        return f"{sum(self.public.sizes):,}" if self.experiment.privacy.public_sizes else "an undisclosed number of"

    @property
    def setting(self) -> str:
        """Algorithm, data, rounds and model of the run, in a sentence."""
        of = f"{len(self.public.sizes)} clients with {self.examples} examples"
        kind = "images" if self.public.kind == "image" else "rows of a table"
        cohort = self.experiment.cohort.get("name", "all")
        return (
            f"{self.experiment.algorithm['name']} on {kind}: {of}, {self.receipt.rounds} of "
            f"{self.experiment.rounds} rounds, cohort {cohort}, model {self.experiment.model['name']}"
        )

    @property
    def noise(self) -> list[str]:
        """Each kind of noise behind the strongest guarantee, and how often it was drawn for the busiest client."""
        row = self.strongest or next(iter(self.receipt.guarantees), None)
        return [] if row is None or row.event is None else said(row.event)


def gather(folder: Path, key: Path | None, code: bool, anyway: bool) -> Evidence:
    """Verify a run folder, or a copy of its public files, and collect its facts. A receipt that does not hold is
    refused, unless `anyway` is set: then the document says so.
    """
    verdict, run = examine(folder, key, code), RunFolder(folder)
    if verdict.wrong and not anyway:
        raise LedgerError(
            f"no document can be made of {folder}: the receipt does not hold",
            why="; ".join(verdict.wrong),
            fix="ask the sender for the files that the run wrote, or add --anyway: then the document "
            "says on its top that the receipt does not hold",
            code="receipt-does-not-hold",
        )
    return Evidence(run.receipt(sealed=False), run.experiment, Agreement.read(folder).public, run.environment, verdict)


def table(found: Evidence) -> list[tuple[str, ...]]:
    """One row for each guarantee, under COLUMNS."""
    return [
        (
            f"one {row.unit}",
            subject(by),
            epsilon_text(row.epsilon) if row.nominal_epsilon is None else _both(row),
            delta_text(row.delta),
            f"{row.neighbours}: {CHANGE[row.neighbours]}",
            standing(row.status, found.simulated),
            row.accountant,
            _sure(row, found.simulated),
        )
        for row, by in merged(found.receipt.guarantees)
    ]


def _sure(row: Guarantee, simulated: bool) -> str:
    posterior = belief(row.epsilon, row.delta).posterior
    return "certain" if posterior == 1.0 else percent(posterior) + (" (with real noise)" if simulated else "")


def _both(row: Guarantee) -> str:
    return f"{epsilon_text(row.epsilon)} holds; {row.nominal_epsilon:.3g} is printed and proves nothing"


def line(row: Guarantee, by: Sequence[str], simulated: bool) -> str:
    """A guarantee in a line: epsilon, delta, unit, neighbours, adversaries and status."""
    return (
        f"epsilon {epsilon_text(row.epsilon)} at delta {delta_text(row.delta)} for one {row.unit} ({row.neighbours}) "
        f"against {', '.join(by)}: {standing(row.status, simulated)}"
    )
