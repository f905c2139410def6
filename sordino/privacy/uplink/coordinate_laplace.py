"""Central noise as published in LC-FL: Laplace noise sized for one coordinate, switched by flags. Sun, Ding and Cheng,
Computer Science (China) 51(6A), 2024.

    ClipCoordinates    every coordinate into [-radius, radius]
    Flag               a coin of each client, sent in clear: does it want central noise?
    CoordinateLaplace  the server makes some 0 flags 1 and adds Laplace(2 radius max w / epsilon) to every coordinate of
                       the mean: once if any flag is 1 now (aggregate_any), or to each such upload before it is weighted
                       (per_client); for a sum of integers, max w is that of all clients

What holds: epsilon per coordinate and round is d * epsilon for a whole model of d coordinates, with public weights;
that is the claim. Without a clip nothing is bounded. Flags are independent of the data and protect nothing: a round
released without noise is an exact sum, so any flag that can leave the noise out voids the guarantee, however unlikely
that is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

from sordino import tree
from sordino.accounting.claims import Status
from sordino.accounting.events import Event, Laplace, NonPrivate
from sordino.errors import POSITIVE, PROBABILITY, ConfigError, Rule, UnsoundGuarantee, check_range
from sordino.privacy.noise import LaplaceNoise
from sordino.privacy.uplink.stages import Clip, ClipLayers, Stage, Weigh, slack
from sordino.tree import Tree
from sordino.types import Bound, Grant, NoiseSource, Tensor

if TYPE_CHECKING:
    from sordino.privacy.uplink.rules import UplinkStages

UNBOUNDED = "coordinates are not clipped: one client can move the sum without limit"
FLAGGED = (
    "flags decide whether noise is added: a round without it is an exact sum, and the next model shows which one it was"
)
PER_COORDINATE = (
    "as published the noise is sized for one coordinate: a whole model costs as many times more as it has coordinates"
)
OF_ONE_UPLOAD = "each upload has noise that is sized for the mean of all: too little for one of them"
PUBLIC_WEIGHTS = "the number of examples of each client is public"


class Flagged(NamedTuple):
    """An upload, and the client's flag beside it."""

    x: Tree
    flag: Tensor


@dataclass(frozen=True)
class ClipCoordinates(Stage):
    """A clip of every coordinate to `radius`; what is not finite becomes 0."""

    radius: float = 0.1

    def __post_init__(self) -> None:
        Clip(self.radius)  # refuses what is not a radius

    def bound(self, bound: Bound, coordinates: int) -> Bound:
        return Bound(
            l1=min(bound.l1, self.radius * coordinates), l2=min(bound.l2, self.radius * math.sqrt(coordinates))
        )

    def encode(self, x: Tree, bound: Bound, grant: Grant) -> Tree:
        def cut(leaf: Tensor) -> Tensor:
            numbers = torch.where(torch.isfinite(leaf), leaf, 0.0)
            limit = self.radius / slack(numbers.dtype)
            return numbers.clamp(-limit, limit)

        return tree.map(cut, tree.formed(x))


@dataclass(frozen=True)
class Flag(Stage):
    """Adds one number to the upload, a flag for wanting central noise: 1 with probability `wants`."""

    wants: float = 0.5

    def __post_init__(self) -> None:
        check_range("wants", self.wants, PROBABILITY, "probability-out-of-range")

    def bound(self, bound: Bound, coordinates: int) -> Bound:
        return Bound(l1=bound.l1 + 1, l2=math.hypot(bound.l2, 1))  # the flag is part of what the server admits

    def encode(self, x: Tree, bound: Bound, grant: Grant) -> Tree:
        return Flagged(x, grant.source.child("flag").coins(1, self.wants).float())

    def shape(self, x: Tree) -> Tree:
        return Flagged(x, torch.zeros(1))

    def decode(self, y: Tree, like: Tree) -> Tree:
        return y.x


@dataclass(frozen=True)
class CoordinateLaplace(Stage):
    """Laplace noise at the server, sized for one coordinate, as published."""

    radius: float = 0.1  # that every coordinate was clipped to
    epsilon: float = 10.0  # of one coordinate in one round
    beta: float | None = None  # the scale of the noise in the mean, in place of epsilon
    flagged: bool = False  # do the uploads carry flags?
    flip: float = 0.5  # how likely a 0 flag becomes 1 at the server
    target: Literal["aggregate_any", "per_client"] = "aggregate_any"
    _bound: float = math.inf  # of one client's upload, in the 1-norm
    _least: float = 1.0  # weight of a whole cohort
    _grid: bool = False  # of integers: rounding and the end of their range take less from light uploads than weights do

    def __post_init__(self) -> None:
        for name, value in (("epsilon", self.epsilon), ("beta", self.beta)):
            if value is not None:
                check_range(name, value, POSITIVE, "not-positive")
        Clip(self.radius)  # refuses what is not a radius
        check_range("flip", self.flip, PROBABILITY, "probability-out-of-range")

    @property
    def reads_each(self) -> bool:
        return self.target == "per_client"

    def fitted(self, bound: float, least: float, grid: bool = False) -> CoordinateLaplace:
        return replace(self, _bound=bound, _least=least, _grid=grid)

    def promise(self) -> tuple[Event, Status, tuple[str, ...]]:
        """The event, the status and the reasons of one round's claim against adversaries who see the model."""
        if not math.isfinite(self._bound):
            return NonPrivate(UNBOUNDED), "none", (UNBOUNDED,)
        if self.flagged:
            return NonPrivate(FLAGGED), "none", (FLAGGED, PER_COORDINATE)
        if self.target == "per_client":
            return NonPrivate(OF_ONE_UPLOAD), "none", (OF_ONE_UPLOAD, PER_COORDINATE)
        scale = 2 * self.radius / self.epsilon if self.beta is None else self.beta * self._least
        return Laplace(scale / (2 * self._bound)), "conditional", (PER_COORDINATE, PUBLIC_WEIGHTS)

    def _scale(self, weights: Sequence[float]) -> float:
        """Scale of the noise in a sum of uploads with these weights; no less where part of a cohort is missing."""
        if self.beta is None:
            return 2 * self.radius * (1.0 if self._grid else max(weights)) / self.epsilon
        return self.beta * max(math.fsum(weights), self._least)

    def room(self, clients: int, steps: float) -> float:
        """The grid steps that the noise of such a cohort may take, but with a probability below e^-50 a coordinate."""
        return 51 * self._scale([1.0] * clients) * steps  # no weight is above 1

    def release(
        self, total: object, weights: Sequence[float], uploads: Sequence[object], steps: float, source: NoiseSource
    ) -> Tree:
        """The noisy sum of uploads; `steps`: fixed-point steps per unit."""
        scale = self._scale(weights) * steps
        if self.target == "per_client":
            for i, (weight, upload) in enumerate(zip(weights, uploads, strict=True)):
                flag = source.child("flag", i)
                if self._wanted(upload, 1, flag):
                    total = _noised(total, scale * weight / math.fsum(weights), flag)
            return total
        return _noised(total, scale, source) if self._wanted(total, len(weights), source.child("flags")) else total

    def _wanted(self, x: Tree, clients: int, source: NoiseSource) -> bool:
        """True if noise is to be added: a flag is 1, after random flips of 0 flags, or uploads have no flags."""
        return not self.flagged or bool(x.flag > 0) or bool(source.coins(clients, self.flip).any())


def _noised(x: object, scale: float, source: NoiseSource) -> Tree:
    if isinstance(x, Flagged):
        return x._replace(x=_noised(x.x, scale, source))
    law = LaplaceNoise()
    return tree.like(x, [law.add(leaf.double(), scale, source.child(name)) for name, leaf in tree.named(x)])


def _weighs_first(stages: UplinkStages) -> bool:
    """True where a clip comes after a weight, so that a light client may add as much as a heavy one."""
    weighed = next((i for i, stage in enumerate(stages.client) if isinstance(stage, Weigh)), len(stages.client))
    return any(isinstance(stage, Clip | ClipLayers | ClipCoordinates) for stage in stages.client[weighed:])


PER_COORDINATE_RULES: tuple[Rule[UplinkStages], ...] = (
    Rule(
        lambda stages: (
            (stages.per_coordinate is not None and stages.per_coordinate.flagged)
            != any(isinstance(stage, Flag) for stage in stages.client)
        ),
        ConfigError,
        "only one half of the flags is set up",
        'flags have two halves: the stage "flag" at the clients, and flagged = true in the noise of the server',
        'put "flag" into client = [...] and flagged = true into the noise, or leave both out',
        "flags-need-both-halves",
    ),
    Rule(
        lambda stages: stages.per_coordinate is not None and _weighs_first(stages),
        UnsoundGuarantee,
        "a clip behind the weights, under noise as published",
        "the noise is only as wide as the largest weight of a round, and behind a clip that comes last a client of a "
        "tenth of this weight adds as much as one of all of it",
        "put weigh behind the clip",
        "weight-before-clip",
    ),
)
