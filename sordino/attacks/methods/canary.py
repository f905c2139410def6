"""Nasr et al., S&P 2021 and USENIX Security 2023: the white-box game.

Deviations: the canary is noise with a label at random, one of a client's few images; the other side holds another image
in its place, or none where that is the promise.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordino import tree
from sordino.attacks.attack import Attack
from sordino.attacks.attacked_run import AttackedRun
from sordino.attacks.membership import TwoSides, told
from sordino.attacks.one_release import CanaryGame, game
from sordino.audits.lower_bounds import Outputs, tuned
from sordino.results.attack_file import AttackFinding, BesideGuess

WRONG = 1e-4  # how likely this refutes a true promise
NO_UPLOAD = "no single upload can be read"


@dataclass(frozen=True)
class Canary(Attack, name="canary"):
    """Asks of one client's upload, again and again, whether one image was in it that the attacker chose."""

    sees = "server"

    def unfit(self, run: AttackedRun) -> str:
        if run.without_images:
            return run.without_images
        return "" if run.seen.each and (run.by or "server") == "server" else NO_UPLOAD

    def play(self, run: AttackedRun) -> AttackFinding:
        trials = run.asked.trials
        seen = self._sides(game(run, bare=False), trials)
        # without noise few releases show all that there is to see
        few = max(50, trials // 10)
        control = seen if not run.protected else self._sides(game(run, bare=True), few) if run.has_control else None
        bound = next((held for held in run.of_round if held.unit == "example" and held.adversary == "server"), None)
        finite = bound is not None and bound.status in ("proved", "conditional")
        found = told(self.untried(run, ""), seen, control, bound if finite else None)
        if bound is None or not finite:
            return found
        least = max(0.0, tuned(Outputs(seen.others, seen.members), {bound.delta: bound.epsilon}, WRONG).epsilon)
        lost = BesideGuess(
            name=f"epsilon of this one round, at least (claimed {bound.epsilon:.3g})", value=least, baseline=0.0
        )
        found = found.beside(measured=(*found.measured, lost))
        if least > bound.epsilon:
            return found.beside(verdict="broken", why="more is lost than is claimed")
        return found

    def _sides(self, played: CanaryGame, trials: int) -> TwoSides:
        towards = tree.flat(played.towards()).double()
        towards = -towards / towards.square().sum().clamp_min(1e-300)

        def scores(with_: bool) -> Tensor:
            return torch.stack([tree.flat(played.release(with_, i)).double() @ towards for i in range(trials)])

        return TwoSides(scores(True), scores(False))
