"""Interface of an attack on a run, and the registry of attacks by name.

An attack is a class in `methods/`, which has a file for each family; there is no other list of attacks. An attack gets
a view that holds only what the attacker sees. Only the judge of its kind (`reconstruction`, `member_inference`,
`poisoning`) gets the ground truth, so an attack cannot cheat. Every attack is compared with two controls: the best
guess without any observation, and the same attack on the same run without protection, where it must succeed. An attack
that fails there shows nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sordino.accounting.claims import Adversary
from sordino.results.findings import AttackFinding, Verdict

if TYPE_CHECKING:
    from sordino.attacks.attacked_run import AttackedRun

BLIND = "it fails on the same run without protection, too: so it shows nothing here"


@dataclass(frozen=True)
class Attack(ABC):
    """Base class of attacks. The first sentence of an attack's docstring describes it to users."""

    sees: ClassVar[Adversary]  # the weakest adversary that can run it
    costly: ClassVar[bool] = False  # it trains whole runs, or a round many times: run only where it is named
    names: ClassVar[dict[str, type[Attack]]] = {}

    def __init_subclass__(cls, name: str = "", **others: object) -> None:
        super().__init_subclass__(**others)
        if name:
            Attack.names[name] = cls

    @classmethod
    def called(cls) -> str:
        return next(name for name, kind in Attack.names.items() if kind is cls)

    @classmethod
    def what(cls) -> str:
        """The attack's description in one sentence."""
        return " ".join((cls.__doc__ or "").split("\n\n")[0].split())

    @abstractmethod
    def unfit(self, run: AttackedRun) -> str:
        """Reason why the attack does not fit this run; empty if it does."""

    def untried(self, run: AttackedRun, why: str) -> AttackFinding:
        """The finding for an attack that is not run, for the reason `why`."""
        by = run.by or type(self).sees
        return AttackFinding(
            attack=self.called(),
            what=self.what(),
            sees=by,
            verdict="not tried",
            why=why,
            promises=run.against(by),
        )

    @abstractmethod
    def play(self, run: AttackedRun) -> AttackFinding:
        """Runs the attack and its controls; returns the finding."""


MEANT = {  # usual names of kinds of attacks, and the attacks of that kind
    "membership": "loss_threshold or lira",
    "inversion": "dlg, idlg or inverting_gradients",
    "reconstruction": "dlg, idlg or inverting_gradients",
    "property": "brightness",
    "poisoning": "label_flip, sign_flip or scaling",
}


def judged(value: float, baseline: float, control: float | None, margin: float) -> tuple[Verdict, str]:
    """The verdict on a figure of which larger values are worse for the attacked clients: the attack succeeds if it
    exceeds the blind guess (`baseline`) by `margin`. Where it does not even do so without protection (`control`), it
    shows nothing.
    """
    if control is not None and control < baseline + margin:
        return "no power", BLIND
    if value >= baseline + margin:
        return "reached", "the attacker gets more than a guess"
    if control is None:
        return "stopped", "no better than a guess; its success on the run without protection is not known"
    return "stopped", "no better than a guess, while it succeeds on the run without protection"


def registered(known: Sequence[str] | None = None) -> dict[str, type[Attack]]:
    """Attacks by name: the named ones, or all except costly ones."""
    from sordino.attacks.methods import ATTACKS
    from sordino.errors import ConfigError

    if known is None:
        return {name: kind for name, kind in ATTACKS.items() if not kind.costly}
    for name in known:
        if name not in ATTACKS:
            raise ConfigError(
                f"unknown attack: {name!r}",
                why=f"attacks are {', '.join(ATTACKS)}",
                fix=(f"choose {MEANT[name]}: " if name in MEANT else "")
                + "`sordino attack --list` describes each of them",
                code="unknown-attack",
            )
    return {name: ATTACKS[name] for name in known}
