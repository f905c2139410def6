"""Rounds, one after another, from where a checkpoint stands: played, kept and told. A phase of the preparation and the
training are played alike.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sordino import tree
from sordino.algorithms.optional import Estimates
from sordino.engine import checkpoint
from sordino.engine.executor import Clients, Executor
from sordino.engine.server import Federation
from sordino.errors import LedgerError, NonFiniteModel
from sordino.metrics.rows import RoundRow, Secure
from sordino.privacy.uplink import Summed
from sordino.round import Outcome, one_round
from sordino.runs.metric_files import Rows
from sordino.runs.setup import Setup
from sordino.tree import Tree
from sordino.types import Terms


class Standing(NamedTuple):
    """Where a phase stands after a round."""

    server: Tree
    t: int
    stalled: bool = False


@dataclass
class PlayedPhase:
    """One phase of a run: its rules, its clients, its books, and where they are kept."""

    setup: Setup
    federation: Federation
    execute: Executor
    place: Path  # of the run, or of this phase in it
    metrics: Rows
    tell: Callable[[int, Outcome], RoundRow]  # writes the row of a round
    row: RoundRow = field(init=False)  # of the last one
    seconds: float = 0.0  # of the last one, by the clock
    _stalled: bool = False

    def play(
        self,
        at: Standing,
        more: Callable[[Standing], bool],
        watch: Callable[[Standing, Outcome], None],
        crash: int | None = None,
    ) -> Standing:
        """Plays to the end, or for as long as `more` rounds are asked for. `crash` rehearses: the process is killed in
        that round, once it is reserved.
        """
        while more(at):
            execute = PowerCut() if at.t + 1 == crash else self.execute
            begin = time.monotonic()
            outcome = one_round(self.federation, at.server, at.t, execute, at.stalled, self._keep(at.t))
            at, self.seconds = Standing(outcome.server, at.t + 1, self._stalled), time.monotonic() - begin
            watch(at, outcome)
        return at

    def _keep(self, t: int) -> Callable[[Outcome, bytes], None]:
        experiment = self.setup.experiment
        # noise from the system cannot be drawn again: there every round is kept; so is every round of a preparation,
        # which are few and long
        often = experiment.privacy.real or self.setup.prepares
        every = 1 if often else experiment.engine.checkpoint_every

        def keep(outcome: Outcome, release: bytes) -> None:
            """What a crash goes on from: this round's row of metrics and, where one is due, a checkpoint."""
            if not tree.finite(outcome.server):
                raise NonFiniteModel(
                    f"the model is no longer finite after round {t + 1}",
                    why="the step size or the noise is too large for this model",
                    fix=f"lower algorithm.lr; the last good model is in {self.place / 'checkpoints'}",
                    code="model-not-finite",
                )
            self.row = self.tell(t, outcome)
            self._stalled = outcome.received is not None and self.federation.stalled(outcome.received)
            if (t + 1) % every == 0 or t + 1 == self.setup.rounds:
                now: dict[str, checkpoint.JSON] = {
                    "stalled": self._stalled,
                    "ledger_head": self.federation.ledger.head(),
                    "release": release.hex(),
                }
                self._save(t + 1, outcome.server, now)

        return keep

    def _save(self, t: int, server: Tree, now: Mapping[str, checkpoint.JSON]) -> None:
        """Client states first, then the server's: a run stands where its server stands."""
        rows = self.metrics.sync()
        trees = {"server": server, **self.execute.keep(t)}
        checkpoint.save(self.place / "checkpoints", t, trees, {**now, **rows})


def row_of(setup: Setup, t: int, outcome: Outcome) -> RoundRow:
    return RoundRow(
        phase=setup.phase,
        round=t,
        active=len(outcome.active),
        answered=len(outcome.answered),
        bytes_down=outcome.bytes_down,
        bytes_up=outcome.bytes_up,
        payload=outcome.payload,
        lost=outcome.lost,
        secure=Secure(**outcome.secure).beside(cpu_seconds=None) if outcome.secure else None,
        device_flops=computed(setup, outcome),
    )


def stands(federation: Federation, loaded: checkpoint.Loaded, folder: Path) -> Standing:
    """Where a checkpoint says that a phase stands, once the ledger agrees."""
    if not federation.ledger.descends_from(loaded.meta["ledger_head"]):
        raise LedgerError(
            f"the ledger of {folder} does not know what this run has spent",
            why="it is an older copy, or another file: going on would give spent budget back",
            fix="put the newest ledger back in its place",
            code="ledger-rolled-back",
        )
    federation.replay(loaded.step)
    if loaded.meta["release"]:  # else that round was lost
        federation.store(loaded.step - 1, bytes.fromhex(loaded.meta["release"]))  # where the crash came between the two
        federation.publish(loaded.step - 1)
    return Standing(loaded.trees["server"], loaded.step, loaded.meta["stalled"])


class PowerCut(Clients):
    """Clients on a machine that loses power."""

    def __call__(self, t: int, down: Tree, terms: Mapping[int, Terms]) -> Summed:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("nobody survives this")


def computed(setup: Setup, outcome: Outcome) -> float | None:
    """What the devices of a round computed together, from public numbers; nothing of what an algorithm of somebody's
    own does not tell.
    """
    estimates = Estimates.of(setup.algorithm)
    if not setup.task.flops or not setup.experiment.privacy.public_sizes or estimates.passes(1) is None:
        return None
    passes = [estimates.passes(setup.public.sizes[k]) for k in outcome.answered]
    return setup.task.flops * sum(told for told in passes if told is not None)
