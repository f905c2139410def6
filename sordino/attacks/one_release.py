"""One client's upload of the attacked round, released again and again with other noise: with a canary among its images,
and without.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from sordino import keys
from sordino.attacks.attacked_run import AttackedRun, pictures
from sordino.attacks.matching import gradient
from sordino.audits.replay import Heard, Rounds
from sordino.privacy.readers.beside_public import taken
from sordino.types import Examples, Params


@dataclass(frozen=True)
class CanaryGame:
    """Both sides of the game, behind the run's gates or without them."""

    rounds: Rounds  # that stand before the attacked one
    heard: Heard  # what was said in it
    client: int
    sides: tuple[Examples, Examples]  # the client's rows without the canary, and with it
    canary: Examples
    key: keys.Key

    def release(self, with_: bool, number: int) -> Params:
        """The change of the model that the upload tells, under noise of its own."""
        site, rows = self.rounds.site, self.sides[with_]
        draw = keys.word(keys.fold(self.key, "release", int(with_), number))
        before, agreed = site.state(self.client), len(self.sides[True].y)  # the same, whether the canary counts or not
        again = replace(site, shards={self.client: rows}, sizes={self.client: agreed}, key=draw)
        terms = {self.client: self.heard.terms[self.client]}
        ((_, upload),) = again.each(self.rounds.t, self.heard.down, terms)
        site.states[self.client] = before  # the next release starts where this one did
        change = self.rounds.told(self.rounds.t, upload, self.heard.down, self.client, agreed)
        assert change is not None
        return change

    def towards(self) -> Params:
        """The gradient of the canary: what its presence adds."""
        task, params = self.rounds.simulation.setup.task, self.heard.before
        shares = F.one_hot(self.canary.y, task.classes).float()
        found = gradient(task, params, pictures(self.canary.x), shares)
        return {name: slope.detach() for name, slope in zip(params, found, strict=True)}


def game(run: AttackedRun, bare: bool) -> CanaryGame:
    """The first attacked client, with an image of noise and a label at random in the place of its first one."""
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
