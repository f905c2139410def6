"""White-box distinguishing game on one client's upload, which is released many times: Nasr et al., S&P 2021 and USENIX
Security 2023.

Deviations: the canary is noise with a label at random, one of a client's few images; the other side holds another image
in its place, or none where the guarantee is about removing an example (zero_out).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino import keys, tree
from sordino.accounting.facts import epsilon_text
from sordino.attacks.attack import Attack
from sordino.attacks.attacked_run import AttackedRun, pictures
from sordino.attacks.member_inference import MemberScores, with_verdict
from sordino.attacks.reconstruction import gradient
from sordino.audits.lower_bounds import Outputs, tuned
from sordino.audits.replay import RecordedRound, Rounds
from sordino.privacy.readers.beside_public import taken
from sordino.results.findings import AttackFinding, BesideGuess
from sordino.types import Examples, Params

WRONG = 1e-4  # probability that this refutes a true guarantee
NO_UPLOAD = "no single upload can be read"


@dataclass(frozen=True)
class Canary(Attack, name="canary"):
    """Tells releases of one client's upload with a chosen image from releases without it."""

    sees = "server"

    def unfit(self, run: AttackedRun) -> str:
        if run.without_images:
            return run.without_images
        return "" if run.seen.each and (run.by or "server") == "server" else NO_UPLOAD

    def play(self, run: AttackedRun) -> AttackFinding:
        trials = run.asked.trials
        few = max(50, trials // 10)  # releases without noise, which show all that there is to see
        seen, control = run.beside_control(lambda bare: self._sides(game(run, bare), few if bare else trials))
        bound = next((held for held in run.of_round if held.unit == "example" and held.adversary == "server"), None)
        finite = bound is not None and bound.status in ("proved", "conditional")
        found = with_verdict(self.untried(run, ""), seen, control, bound if finite else None)
        if bound is None or not finite:
            return found
        least = max(0.0, tuned(Outputs(seen.others, seen.members), {bound.delta: bound.epsilon}, WRONG).epsilon)
        lost = BesideGuess(
            name=f"epsilon of this one round, at least (claimed {epsilon_text(bound.epsilon)})",
            value=least,
            baseline=0.0,
        )
        found = found.beside(measured=(*found.measured, lost))
        if least > bound.epsilon:
            return found.beside(verdict="broken", why="more is lost than is claimed")
        return found

    def _sides(self, played: CanaryGame, trials: int) -> MemberScores:
        towards = tree.flat(played.towards()).double()
        towards = -towards / towards.square().sum().clamp_min(1e-300)

        def scores(with_: bool) -> Tensor:
            return torch.stack([tree.flat(played.release(with_, i)).double() @ towards for i in range(trials)])

        return MemberScores(scores(True), scores(False))


@dataclass(frozen=True)
class CanaryGame:
    """The distinguishing game with and without the canary, under the run's clip and noise or without protection."""

    rounds: Rounds  # that stand before the attacked one
    heard: RecordedRound  # its messages
    client: int
    sides: tuple[Examples, Examples]  # the client's rows without the canary, and with it
    canary: Examples
    key: keys.Key

    def release(self, with_: bool, number: int) -> Params:
        """The change of the model in another release of the upload, with or without the canary and with fresh noise."""
        site, rows = self.rounds.site, self.sides[with_]
        draw = keys.word(keys.fold(self.key, "release", int(with_), number))
        before, agreed = site.state(self.client), len(self.sides[True].y)  # the same, whether the canary counts or not
        again = replace(site, shards={self.client: rows}, sizes={self.client: agreed}, key=draw)
        terms = {self.client: self.heard.terms[self.client]}
        ((_, upload),) = again.each(self.rounds.t, self.heard.down, terms)
        site.states[self.client] = before  # the next release starts where this one did
        change = self.rounds.change_of(self.rounds.t, upload, self.heard.down, self.client, agreed)
        assert change is not None
        return change

    def towards(self) -> Params:
        """The gradient of the canary, by which its presence changes the upload."""
        task, params = self.rounds.simulation.setup.task, self.heard.before
        shares = F.one_hot(self.canary.y, task.classes).float()
        found = gradient(task, params, pictures(self.canary.x), shares)
        return {name: slope.detach() for name, slope in zip(params, found, strict=True)}


def game(run: AttackedRun, bare: bool) -> CanaryGame:
    """The game on the first attacked client, whose first image becomes noise with a random label. `bare`: without
    protection.
    """
    client, key = run.clients[0], keys.fold(run.key, "canary")
    rows = run.rows[client]
    first = taken(rows, torch.tensor([0]))
    noise = (256 * keys.uniform(key, first.x.numel())).to(first.x.dtype).reshape(first.x.shape)
    label = keys.integers(keys.fold(key, "label"), 1, run.setup.task.classes)
    canary = first._replace(x=noise, y=label.to(first.y.dtype))
    rest = taken(rows, torch.arange(1, len(rows.y)))
    with_ = rows._replace(x=torch.cat([canary.x, rest.x]), y=torch.cat([canary.y, rest.y]))
    removed = any(held.unit == "example" and held.neighbours == "zero_out" for held in run.of_round)
    without = rest if removed and len(rest.y) else rows
    heard = run.bare if bare else run.seen
    assert heard is not None
    return CanaryGame(run.rounds(bare, run.changed), heard, client, (without, with_), canary, key)
