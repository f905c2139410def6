"""One round as the ledger names it."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

HANDED = "handed"  # the phase of the one message to everybody before the first round
TRAINING = "training"
Way: TypeAlias = Literal["down", "up"]  # of a message


class Op(NamedTuple):
    """One round of one phase of a run: RUN/t, in a preparation RUN.PHASE/t.

    >>> str(Op("2f1c", "train", 0)), Op.of("2f1c/7")
    ('2f1c.train/0', Op(run='2f1c', phase='', round=7))
    """

    run: str
    phase: str  # nothing: the training
    round: int

    def __str__(self) -> str:
        return of_round(self.name, self.round)

    @property
    def name(self) -> str:
        """The phase among all phases of all runs."""
        return of_phase(self.run, self.phase)

    @classmethod
    def of(cls, text: str) -> Op:
        name, _, t = text.rpartition("/")
        run, _, phase = name.partition(".")
        return cls(run, phase, int(t) if t.isdecimal() else -1)  # -1: somebody else's operation, and no round


def of_round(name: str, t: int) -> str:
    """The operation of round t of a phase; `name`: that of the phase among all phases of all runs."""
    return f"{name}/{t}"


def of_phase(run: str, phase: str) -> str:
    """The name of a phase among all phases of all runs."""
    return f"{run}.{phase}" if phase else run
