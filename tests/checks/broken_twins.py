"""Algorithms that are wrong on purpose, one for each law."""

from __future__ import annotations

from typing import NamedTuple

# everything a twin may want; each adds one class called Mine
PRELUDE = """
import os, sys
from dataclasses import dataclass
from typing import NamedTuple
import torch
from sordino import tree
from sordino.algorithms import fedavg
from sordino.algorithms.fedavg import Client, FedAvg, Server, Up
from sordino.algorithms.algorithm import Algorithm
from sordino.errors import BudgetExhausted
from sordino.accounting.claims import ADVERSARIES, Claim
from sordino.accounting.events import Gaussian
from sordino.privacy.readers.open import Open
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.privacy.uplink.stages import Clip, Noise, Stage, Weigh
from sordino.types import Reader
from sordino.privacy.uplink import Uplink
SEEN = {}
"""


class Twin(NamedTuple):
    breaks: set[str]  # exactly these
    source: str
    says: str  # part of the reason


def local(body: str) -> str:
    return f"""
class Mine(FedAvg):
    def local(self, task, down, c, shard, key):
        {body}
"""


def update(body: str) -> str:
    return f"""
class Mine(FedAvg):
    def update(self, s, r, home):
        {body}
"""


TWINS = {
    "no algorithm": Twin(
        {"complete"},
        """
@dataclass(frozen=True)
class Mine:
    read: Reader = Open()
    uplink: Uplink = Uplink()
    def local(self, task, down, c, shard, key):
        return down, c
""",
        "does not inherit from Algorithm",
    ),
    "a half is missing": Twin(
        {"complete"},
        """
@dataclass(frozen=True)
class Mine(Algorithm):
    read: Reader = Open()
    uplink: Uplink = Uplink()
    def local(self, task, down, c, shard, key):
        return down, c
""",
        "work, init, init_client, broadcast, zero, update, models",
    ),
    "a gate that cannot be exchanged": Twin(
        {"complete"},
        """
@dataclass(frozen=True)
class Mine(Algorithm):
    uplink: Uplink = Uplink()
    read, work = Open(), None
    init = init_client = broadcast = zero = local = update = models = print
""",
        "read cannot be exchanged",
    ),
    "a decorator forgotten": Twin({"frozen"}, "class Mine(FedAvg):\n    mu: float = 0.01\n", "mu cannot be set"),
    "seeded noise of its own": Twin(
        {"draws nothing"},
        local(
            "up, c = super().local(task, down, c, shard, key)\n"
            "        g = torch.Generator().manual_seed(0)\n"
            "        return Up(tree.map(lambda d: d + 1e-3 * torch.randn(d.shape, generator=g), up.delta)), c"
        ),
        "manual_seed, randn",
    ),
    "a count that is no tensor": Twin(
        {"tensors"},
        update("return Server(s.x, s.round + 1)") + "    def init_client(self, task):\n        return Client(0)\n",
        "not a tree of tensors: int at participations/",
    ),
    "a list of tensors": Twin({"tensors"}, local("return [down.x['w']] if 'w' in down.x else [], c"), "list"),
    "a truth value in a message": Twin(
        {"tensors"},
        """
class Mine(FedAvg):
    def init(self, task, key):
        return Server(task.init(key), torch.tensor(False))
    def update(self, s, r, home):
        return Server(super().update(s, r, home).x, s.round)
""",
        "torch.bool",
    ),
    "an upload that is not like zero": Twin(
        {"shapes"},
        local(
            "up, c = super().local(task, down, c, shard, key)\n"
            "        return Up(tree.map(lambda d: d.reshape(-1)[:1], up.delta)), c"
        ),
        "local uploads delta/",
    ),
    "a state that loses a name": Twin(
        {"shapes"},
        local("up, c = super().local(task, down, c, shard, key)\n        return up, (c.participations,)"),
        "local keeps the tensors 0 instead of participations",
    ),
    "a model in double precision": Twin(
        {"shapes"},
        update("s = super().update(s, r, home)\n        return Server(tree.map(torch.Tensor.double, s.x), s.round)"),
        "update gives",
    ),
    "its own state counted in place": Twin(
        {"pure"},
        local("up, _ = super().local(task, down, c, shard, key)\n        return up, Client(c.participations.add_(1))"),
        "local changes the tensor participations",
    ),
    "the model moved in place": Twin(
        {"pure"},
        update("tree.map(lambda x, d: x.add_(d), s.x, r.mean.delta)\n        return Server(s.x, s.round + 1)"),
        "update changes the tensor x/",
    ),
    "a broadcast that counts its calls": Twin(
        {"pure"},
        """
class Mine(FedAvg):
    def broadcast(self, s):
        SEEN["calls"] = SEEN.get("calls", 0) + 1
        return Server(s.x, s.round + SEEN["calls"])
""",
        "called twice",
    ),
    "rows behind the gate": Twin(
        {"sealed", "noisy"},
        local(
            "up, c = super().local(task, down, c, shard, key)\n"
            "        return Up(tree.scale(0.5 + 0 * float(shard._examples.y.double().mean()), up.delta)), c"
        ),
        "_examples",
    ),
    "losses that keep a row": Twin(
        {"blind", "noisy"},  # a private reader notices it, too
        local(
            "held = []\n"
            "        def losses(params, x, y, keys):\n"
            "            held.append(float(x.double().mean()))\n"
            "            return task.losses(params, x, y, keys)\n"
            "        walk = self.walk(down.x, self.lr)\n"
            "        for batch in shard.batches(self.work, key):\n"
            "            walk(batch.grad(losses, walk.y))\n"
            "        told = tree.map(lambda d: (d + 1e-4 * held[0]).to(d.dtype), tree.sub(walk.y, down.x))\n"
            "        return Up(told), Client(c.participations + 1)"
        ),
        "another upload/delta/",
    ),
    "losses that keep a label in a global": Twin(
        {"blind", "order", "resume"},
        local(
            "def losses(params, x, y, keys):\n"
            "            SEEN.setdefault('y', float(y[0]))\n"
            "            return task.losses(params, x, y, keys)\n"
            "        walk = self.walk(down.x, self.lr)\n"
            "        for batch in shard.batches(self.work, key):\n"
            "            walk(batch.grad(losses, walk.y))\n"
            "        told = tree.scale(1 + 1e-6 * SEEN['y'], tree.sub(walk.y, down.x))\n"
            "        return Up(told), Client(c.participations + 1)"
        ),
        "another upload/delta/",
    ),
    "divided by those who answered": Twin(
        {"absence"},
        update("return Server(tree.axpy(1 / r.participation / 2, r.mean.delta, s.x), s.round + 1)"),
        "nobody answered",
    ),
    "a mean divided by its own norm": Twin(
        {"absence"},
        update(
            "size = tree.norm(r.mean)\n"
            "        step = tree.map(lambda d: (0.05 * d / size).to(d.dtype), r.mean.delta)\n"
            "        return Server(tree.add(s.x, step), s.round + 1)"
        ),
        "not finite",
    ),
    "a stage that moves zeros": Twin(
        {"linear"},
        """
class Shift(Stage):
    def encode(self, x, bound, grant):
        return tree.map(lambda d: d + 1e-3, x)
@dataclass(frozen=True)
class Mine(FedAvg):
    uplink: Uplink = Uplink(client=(Shift(), Weigh()))
""",
        "answers zeros moves the mean",
    ),
    "a decoder that sees the crowd": Twin(
        {"linear"},
        """
class Squash(Stage):
    def decode(self, y, like):
        return tree.map(torch.tanh, y)
@dataclass(frozen=True)
class Mine(FedAvg):
    uplink: Uplink = Uplink(client=(Squash(), Weigh()))
""",
        "depends on what the others answer",
    ),
    "a weight that the denominator does not know": Twin(
        {"linear"},
        """
class Half(Stage):
    def encode(self, x, bound, grant):
        return tree.scale(grant.size / grant.largest, x)
@dataclass(frozen=True)
class Mine(FedAvg):
    uplink: Uplink = Uplink(client=(Half(),))
""",
        "the mean of equal uploads",
    ),
    "a model that is called a change": Twin(
        {"mean"},
        """
class Mine(FedAvg, takes_mean=True):
    def local(self, task, down, c, shard, key):
        up, c = super().local(task, down, c, shard, key)
        return Up(tree.add(down.x, up.delta)), c
    def update(self, s, r, home):
        return Server(r.mean.delta if r.participation else s.x, s.round + 1)
""",
        "uploads of zeros change the model",
    ),
    "a loss beside the change": Twin(
        {"mean"},
        """
class Told(NamedTuple):
    delta: dict
    size: torch.Tensor
class Mine(FedAvg, takes_mean=True):
    def zero(self, task, down):
        return Told(tree.zeros_like(down.x), torch.zeros(()))
    def local(self, task, down, c, shard, key):
        up, c = super().local(task, down, c, shard, key)
        return Told(up.delta, tree.norm(up.delta).float()), c
""",
        "an upload's size has",
    ),
    "a walk that knows of no statistics": Twin(
        {"statistics"},
        """
class Mine(FedAvg, carries_statistics=True):
    def local(self, task, down, c, shard, key):
        walk = self.walk(down.x, self.lr)
        for batch in shard.batches(self.work, key):
            walk(batch.grad(task.losses, walk.y))
        return Up(tree.sub(walk.y, down.x)), Client(c.participations + 1)
""",
        "running_mean",
    ),
    "half of every statistic": Twin(
        {"statistics"},
        """
class Mine(FedAvg, carries_statistics=True):
    def update(self, s, r, home):
        return Server(tree.axpy(0.5, r.mean.delta, s.x), s.round + 1)
""",
        "is not the mean of the clients'",
    ),
    "a line that fails in the third round": Twin(
        {"runs"},
        update(
            "if int(s.round) == 2 and 'w' not in s.x:\n            {}['x']\n        return super().update(s, r, home)"
        ),
        "KeyError",
    ),
    "a glance at who came before": Twin(
        {"order", "processes"},  # in another process other clients came before
        local(
            "up, c = super().local(task, down, c, shard, key)\n"
            "        came, me = SEEN.setdefault(int(down.round), []), float(tree.norm(up))\n"
            "        if me not in came:\n"
            "            came.append(me)\n"
            "        return Up(tree.scale(1 + came.index(me) / 100, up.delta)), c"
        ),
        "the order in which clients are served",
    ),
    "a process that knows its number": Twin(
        {"processes"},
        local(
            "up, c = super().local(task, down, c, shard, key)\n"
            "        return Up(tree.scale(1 + os.getpid() % 1009 / 1e6, up.delta)), c"
        ),
        "two client processes give another",
    ),
    "momentum in a global": Twin(
        {"resume"},
        update(
            "SEEN[int(s.round)] = r.mean.delta\n"
            "        before = SEEN.get(int(s.round) - 1, tree.zeros_like(s.x))\n"
            "        return Server(tree.add(s.x, tree.axpy(0.5, before, r.mean.delta)), s.round + 1)"
        ),
        "stopped and resumed",
    ),
    "momentum on the instance": Twin(
        {"resume"},
        update(
            "vars(self)[f'm{int(s.round)}'] = r.mean.delta\n"
            "        before = vars(self).get(f'm{int(s.round) - 1}', tree.zeros_like(s.x))\n"
            "        return Server(tree.add(s.x, tree.axpy(0.5, before, r.mean.delta)), s.round + 1)"
        ),
        "stopped and resumed",
    ),
    "a stop of its own": Twin(
        {"ledger"},
        update(
            "if int(s.round) == 3 and 'w' not in s.x:\n"
            "            raise BudgetExhausted('enough')\n"
            "        return super().update(s, r, home)"
        ),
        "5 rounds were asked for, 3 of 4 are published",
    ),
    "a boast": Twin(
        {"receipt"},
        """
class Boast(Open):
    def claims(self, work, size, multiplier):
        return Claim.to_everyone("example", "replace", Gaussian(1.0), "proved", ())
@dataclass(frozen=True)
class Mine(FedAvg):
    read: Reader = Boast()
""",
        "no gate is private, but the receipt promises ε",
    ),
    "a private gate that promises nothing": Twin(
        {"receipt", "noisy"},
        """
class Shy(NoisyGradient):
    def claims(self, work, size, multiplier):
        return Open().claims(work, size, multiplier)
@dataclass(frozen=True)
class Mine(FedAvg):
    batch_size: int | str = "full"
    read: Reader = Shy(1.0)
""",
        "a gate is private, but the receipt promises nothing",
    ),
    "uphill": Twin(
        {"learns"},
        "class Mine(FedAvg):\n    def direction(self, g, y, x):\n        return tree.scale(-1, g)\n",
        "end at",
    ),
    "two passes": Twin(
        {"noisy"},
        local(
            "first, c = super().local(task, down, c, shard, key)\n"
            "        second, _ = super().local(task, down, c, shard, key)\n"
            "        return Up(tree.scale(0.5, tree.add(first.delta, second.delta))), c"
        ),
        "second pass",
    ),
    "one batch of many": Twin(
        {"noisy"},
        local(
            "g = next(shard.batches(self.work, key)).grad(task.losses, down.x)\n"
            "        return Up(tree.scale(-0.1, g)), Client(c.participations + 1)"
        ),
        "1 were taken",
    ),
}
