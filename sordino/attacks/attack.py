"""The interface of an attack on a run: what it is called, what the attacker sees, and what it reaches with that.

An attack is one file in `methods/`, which gives its class its name; nothing else lists it. It gets a view, which holds
what the attacker sees and nothing more. Only the judge of its kind (`reconstruction`, `shares`, `membership`) gets the
truth, so an attack cannot cheat. Every attack is held against two others: the best guess of somebody who saw nothing,
and itself on the same run without any protection, on which it must succeed. An attack that fails there says nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sordino.accounting.claims import Adversary
from sordino.results.attack_file import AttackFinding, Verdict

if TYPE_CHECKING:
    from sordino.attacks.attacked_run import AttackedRun

BLIND = "it fails on the same run without protection, too: so it shows nothing here"


@dataclass(frozen=True)
class Attack(ABC):
    """One way to get at data of a run. Its docstring's first sentence says what it does."""

    sees: ClassVar[Adversary]  # the weakest attacker who can do it
    costly: ClassVar[bool] = False  # does it play whole runs, or a round many times? Then it waits to be asked for
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
        """What it does, in a sentence."""
        return " ".join((cls.__doc__ or "").split("\n\n")[0].split())

    @abstractmethod
    def unfit(self, run: AttackedRun) -> str:
        """Why it cannot be tried on this run; nothing where it can."""

    def untried(self, run: AttackedRun, why: str) -> AttackFinding:
        """What is known before it is tried."""
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
        """What it reaches."""


MEANT = {  # what others call attacks, and what they are here
    "membership": "loss_threshold or lira",
    "inversion": "dlg, idlg or inverting_gradients",
    "reconstruction": "dlg, idlg or inverting_gradients",
    "property": "brightness",
    "poisoning": "label_flip, sign_flip or scaling",
}


def judged(value: float, baseline: float, control: float | None, margin: float) -> tuple[Verdict, str]:
    """The verdict on a figure of which more is worse for whoever is attacked. `margin`: what counts as more than a
    guess.
    """
    if control is not None and control < baseline + margin:
        return "no power", BLIND
    if value >= baseline + margin:
        return "reached", "the attacker gets more than a guess"
    if control is None:
        return "stopped", "no better than a guess; what it does to the run without protection is not known"
    return "stopped", "no better than a guess, while it succeeds on the run without protection"


def registered(known: Sequence[str] | None = None) -> dict[str, type[Attack]]:
    """The attacks by name: those that are asked for, or all that need no whole runs of their own."""
    from sordino.attacks.methods import ATTACKS
    from sordino.errors import ConfigError

    if known is None:
        return {name: kind for name, kind in ATTACKS.items() if not kind.costly}
    for name in known:
        if name not in ATTACKS:
            raise ConfigError(
                f"there is no attack called {name!r}",
                why=f"known are {', '.join(ATTACKS)}",
                fix=(f"choose {MEANT[name]}: " if name in MEANT else "")
                + "`sordino attack --list` says what each of them does",
                code="unknown-attack",
            )
    return {name: ATTACKS[name] for name in known}
