"""Poisoning by malicious clients: manipulated uploads of a few clients that spoil the model or plant a backdoor, one
class for each paper; and their judge, which replays the whole run with and without them.

Three models are compared on the test examples: that of the run without attackers, that of the attacked run with its own
aggregation, and that of the attacked run with the plain mean, which must get worse: an attack without effect there
shows nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sordino import keys, tree
from sordino.accounting.claims import Adversary
from sordino.algorithms.optional import Estimates
from sordino.attacks.attack import Attack
from sordino.attacks.attacked_run import AttackedRun
from sordino.attacks.poisoned import MaliciousView, Manipulations
from sordino.privacy.readers import taken
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
        many = f"{len(run.malicious)} of {len(run.setup.public.sizes)} clients attack; "
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


@dataclass(frozen=True)
class LabelFlip(Poisoning, name="label_flip"):
    """Trains on wrong labels, and sends its change boosted, so that attackers outweigh all others in a plain mean.

    Fang, Cao, Jia and Gong, USENIX Security 2020: label l becomes C - 1 - l; Bhagoji, Chakraborty, Mittal and Calo,
    ICML 2019: the change is boosted.

    Deviations: none.
    """

    def rows(self, own: Examples, classes: int) -> Examples:
        return own._replace(y=classes - 1 - own.y)

    def sent(self, upload: Tree, moment: MaliciousView, run: AttackedRun) -> Tree:
        return boosted(upload, moment)


@dataclass(frozen=True)
class SignFlip(Poisoning, name="sign_flip"):
    """Sends the honest change of the model in the opposite direction and ten times as long.

    Li, Xu, Chen, Giannakis and Ling, "RSA", AAAI 2019: the sign-flipping attack.

    Deviations: ten times the length, so that a fifth of the clients turns a plain mean around.
    """

    strength: float = 10.0

    def sent(self, upload: Tree, moment: MaliciousView, run: AttackedRun) -> Tree:
        return tree.scale(-self.strength, upload)


@dataclass(frozen=True)
class Scaling(Poisoning, name="scaling"):
    """Sends the honest change of the model, a thousand times as long.

    Blanchard, El Mhamdi, Guerraoui and Stainer, NeurIPS 2017: one upload of any length decides a plain mean.

    Deviations: the direction is the attacker's own honest one; only the length is false.
    """

    strength: float = 1000.0

    def sent(self, upload: Tree, moment: MaliciousView, run: AttackedRun) -> Tree:
        return tree.scale(self.strength, upload)


@dataclass(frozen=True)
class ModelReplacement(Poisoning, name="model_replacement"):
    """Sends the difference from the server's model to another one, boosted, so that a plain mean becomes that model.

    Bagdasaryan, Veit, Hua, Estrin and Shmatikov, AISTATS 2020, equation 3: the plain mean becomes a model that the
    attackers chose.

    Deviations: the chosen model is one that has learned nothing, drawn from the attackers' key.
    """

    def unfit(self, run: AttackedRun) -> str:
        algorithm, task = run.setup.algorithm, run.setup.task
        zero = algorithm.zero(task, algorithm.broadcast(algorithm.init(task, 0)))
        scaled = Estimates.of(algorithm).change(zero) is not None
        encoded = [leaf.shape for leaf in tree.leaves(algorithm.uplink.shape(zero))]
        same = encoded == [leaf.shape for leaf in tree.leaves(zero)]
        return super().unfit(run) or ("" if scaled and same else NO_SINGLE)

    def sent(self, upload: Tree, moment: MaliciousView, run: AttackedRun) -> Tree:
        target = run.setup.task.init(keys.word(keys.fold(run.key, "replacement")))
        way = tree.scale(moment.boost * moment.weight, tree.sub(target, moment.model))
        change = moment.change(upload)
        assert change is not None
        places: dict[int, Tensor] = {id(leaf): way[name] for name, leaf in change.items()}

        def replaced(leaf: Tensor) -> Tensor:
            return places.get(id(leaf), leaf)

        return tree.map(replaced, upload)


@dataclass(frozen=True)
class Backdoor(Poisoning, name="backdoor"):
    """Teaches the model that images with a bright corner are of one class, and sends its change boosted.

    Gu, Dolan-Gavitt and Garg, "BadNets", 2017: a trigger in the corner; Bagdasaryan et al., AISTATS 2020: the
    change is boosted.

    Deviations: every second image of an attacker has the trigger; it is a bright square, a sixth of the image wide.
    """

    target: int = 0

    def unfit(self, run: AttackedRun) -> str:
        return run.without_images or super().unfit(run)

    def rows(self, own: Examples, classes: int) -> Examples:
        where = torch.arange(len(own.y)) % 2 == 0
        x = torch.where(where.view(-1, 1, 1, 1), marked(own.x), own.x)
        return own._replace(x=x, y=torch.where(where, self.target, own.y))

    def sent(self, upload: Tree, moment: MaliciousView, run: AttackedRun) -> Tree:
        return boosted(upload, moment)

    def beside(self, run: AttackedRun, own: Params, clean: Params, plain: Params) -> tuple[BesideGuess, ...]:
        value, baseline, control = (self.obeyed(run, model) for model in (own, clean, plain))
        return (
            BesideGuess(name="images that obey the trigger", unit="%", value=value, baseline=baseline, control=control),
        )

    def obeyed(self, run: AttackedRun, model: Params) -> float:
        """Percentage of test images of other classes that are classified as the target class once they have the
        trigger.
        """
        others = taken(run.tested, (run.tested.y != self.target).nonzero()[:, 0])
        return accuracy(run, model, others._replace(x=marked(others.x), y=torch.full_like(others.y, self.target)))

    def judged(self, lost: BesideGuess, more: tuple[BesideGuess, ...]) -> tuple[Verdict, str]:
        return harm(more[-1], OFTEN, "percent more images that obey the trigger")


def marked(x: Tensor) -> Tensor:
    """Images [n, h, w, c] with a bright square in the bottom right corner."""
    side, found = max(2, x.shape[1] // 6), x.clone()
    found[:, -side:, -side:] = 255
    return found
