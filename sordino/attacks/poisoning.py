"""Poisoning: attacks by malicious clients, and their judge, which replays the whole run with and without them.

Three models are compared on the test examples: that of the run without attackers, that of the attacked run with its own
aggregation, and that of the attacked run with the plain mean, which must get worse: an attack without effect there
shows nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from sordino import tree
from sordino.accounting.claims import Adversary
from sordino.attacks.attack import Attack
from sordino.attacks.attacked_run import AttackedRun
from sordino.attacks.poisoned import MaliciousView, Manipulations
from sordino.results.findings import AttackFinding, BesideGuess, Verdict
from sordino.tree import Tree
from sordino.types import Examples, Params

POINTS = 2.0  # of accuracy that count as harm
OFTEN = 10.0  # percent more triggers obeyed that count as harm
HEADS = ("no attackers", "plain mean")
NO_SINGLE = "its uploads are encoded or masked in a way that this attack cannot forge"


@dataclass(frozen=True)
class Poisoning(Attack):
    """Base class of attacks by malicious clients."""

    sees: ClassVar[Adversary] = "participants"
    costly: ClassVar[bool] = True

    def rows(self, own: Examples, classes: int) -> Examples:
        """The rows that an attacker trains on: its own, which some attacks manipulate."""
        return own

    @abstractmethod
    def sent(self, upload: Tree, moment: MaliciousView, run: AttackedRun) -> Tree:
        """The upload that an attacker sends in place of its honest one."""

    def unfit(self, run: AttackedRun) -> str:
        if run.without_classes:
            return run.without_classes
        return NO_SINGLE if run.setup.policy.secure else ""

    def lies(self, run: AttackedRun) -> Manipulations:
        classes = run.setup.public.classes
        return Manipulations(
            lambda client, own: self.rows(own, classes), lambda upload, moment: self.sent(upload, moment, run)
        )

    def play(self, run: AttackedRun) -> AttackFinding:
        lies = self.lies(run)
        own = run.poisoned(lies, plain=False)
        plain = run.poisoned(lies, plain=True) if run.setup.algorithm.uplink.robust else own
        clean, clean_plain = run.undisturbed
        reached, control, without = (accuracy(run, model) for model in (own, plain, clean))
        lost = BesideGuess(
            name="accuracy lost",
            unit="points",
            value=without - reached,
            baseline=0.0,
            control=accuracy(run, clean_plain) - control,
        )
        measured = (
            BesideGuess(name="accuracy", unit="%", value=reached, baseline=without, control=control),
            *self.beside(run, own, clean, plain),
        )
        found = self.untried(run, "").beside(promises=(), heads=HEADS, whole=True)
        verdict, why = self.judged(lost, measured)
        many = f"{len(run.liars)} of {len(run.setup.public.sizes)} clients attack; "
        return found.beside(verdict=verdict, why=many + why, measured=(lost, *measured))

    def beside(self, run: AttackedRun, own: Params, clean: Params, plain: Params) -> tuple[BesideGuess, ...]:
        """Further figures beside accuracy, for the attacked run, the run without attackers, and the plain mean."""
        return ()

    def judged(self, lost: BesideGuess, more: tuple[BesideGuess, ...]) -> tuple[Verdict, str]:
        return harm(lost, POINTS, "points of accuracy")


def harm(figure: BesideGuess, least: float, unit: str) -> tuple[Verdict, str]:
    """The verdict on a `figure` that grows with harm: the attack succeeds if the run's own grows by more than
    `least`."""
    control = figure.control
    assert control is not None
    if control - figure.baseline <= least:
        return "no power", f"it moves the plain mean by no more than {least:g} {unit}, so it shows nothing here"
    if figure.value - figure.baseline > least:
        return "reached", f"the run loses more than {least:g} {unit}"
    return "stopped", f"the run loses no more than {least:g} {unit}, while the plain mean loses more"


def accuracy(run: AttackedRun, model: Params, on: Examples | None = None) -> float:
    """Accuracy in percent, on all test examples or on those given (`on`)."""
    return 100 * float(run.setup.task.score(model, on or run.tested)["accuracy"].double().mean())


def boosted(upload: Tree, moment: MaliciousView) -> Tree:
    """The upload scaled up so that the attackers together determine the plain mean."""
    return tree.scale(moment.boost, upload)
