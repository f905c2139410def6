"""Stages of an uplink that bound, weight and protect a client's upload. Each has a client half and a server half.

A stage computes the bound that it leaves (`bound`) from public numbers alone, and `encode` keeps it; nobody types a
sensitivity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import torch

from sordino import tree
from sordino.accounting.claims import check_neighbours
from sordino.accounting.events import check_multiplier
from sordino.errors import ConfigError, Range, UnsoundGuarantee, WireError, check_range
from sordino.privacy.noise import GaussianNoise, IntegerNoiseLaw, NoiseLaw
from sordino.privacy.noise.sources import TABLE_ERROR
from sordino.tree import Tree
from sordino.types import Bound, Grant, Neighbours, NoiseSource, Params, Tensor

SLACK = 1 + 1e-6  # a clip to C lands at C/SLACK, so that float32 rounding cannot carry it above C
SHORTEST = 1e-30  # radius of a clip; at 1e-42 rounded coordinates are 1.4 times as long


@dataclass(frozen=True)
class Stage:
    """One stage of the uplink. By default uploads pass unchanged, with weight 1, and so do their sums."""

    def bound(self, bound: Bound, coordinates: int) -> Bound:
        return bound

    def weight(self, size: int, largest: int, precision: float = 1.0) -> float:
        return 1.0

    def encode(self, x: Tree, bound: Bound, grant: Grant) -> Tree:
        return x

    def shape(self, x: Tree) -> Tree:
        return x

    def decode(self, y: Tree, like: Tree) -> Tree:
        """Undoes `encode` on a sum: from the sum `y` of encoded uploads to the sum of uploads. `like`: the structure of
        the result."""
        return y

    @property
    def aggregate_only(self) -> bool:
        return False

    @property
    def takes_integers(self) -> bool:
        """True where the stage may come after `Quantise`, or at a server that adds integers."""
        return False

    # what is decided round by round, from public numbers that go down with the model ----------------------------------

    @property
    def reads_each(self) -> bool:
        """True where the server's half of the stage needs each upload by itself, not only their sum."""
        return False

    @property
    def learns(self) -> bool:
        return False

    def begin(self, x: Tree, model: Params) -> Tree:
        """Public values with which an adaptive stage starts, such as clip radii, from the structure of its uploads and
        the first model."""
        return ()

    def at(self, t: int, public: Tree) -> Stage:
        """The stage in round t, with the public values of that round, such as adaptive clip radii."""
        return self

    def learn(self, mean: Tree, like: Tree, std: float, each: Sequence[Tree]) -> Tree:
        """Public values for the next round, such as adaptive clip radii, from this round's release. `mean`: the noised
        mean before `decode`; `std`: deviation of its noise per coordinate."""
        return ()


def check_sent(t: int, what: str, numbers: Sequence[float], least: float, most: float) -> None:
    """Refuses public values of an adaptive stage, such as clip radii, that lie outside the range for which the bound
    holds. The server sends them with the model."""
    if not all(least <= number <= most for number in numbers):
        raise WireError(
            f"the server sends {what} of {', '.join(f'{number:g}' for number in numbers)} in round {t + 1}",
            why=f"the noise is sized for values from {least:g} to {most:g}",
            fix="the server must keep to the experiment",
            code="learned-beyond-plan",
        )


@dataclass(frozen=True)
class Clip(Stage):
    """A clip that scales the whole upload, all fields as one vector, into the ball of radius `radius`.

    Guarantees: norm <= radius for every input; a non-finite upload becomes exactly zero. Radii: 1e-30 to 1e30.
    Proof: the factor is min(1, radius/(norm*SLACK)), or 0 where the upload's dtype cannot hold it; the norm is taken in
    float64.
    """

    radius: float
    order: Literal[1, 2] = 2
    # the radius times what the client's budget buys: under one central noise everybody then spends its own
    personal: bool = False

    def __post_init__(self) -> None:
        why = "float32 has too few digits to keep a bound of much smaller numbers, and no sums of much larger ones"
        check_range("the radius of a clip", self.radius, Range(least=SHORTEST, most=1e30), "clip-not-positive", why=why)
        if self.order not in (1, 2):
            raise ConfigError(
                f"the order of the clip is {self.order}",
                why="the norm is the 1-norm (order 1) or the 2-norm (order 2)",
                fix="set order = 1 or order = 2",
                code="clip-order",
            )

    def bound(self, bound: Bound, coordinates: int) -> Bound:
        if self.order == 1:
            return Bound(l1=min(bound.l1, self.radius), l2=min(bound.l2, self.radius))  # ||x||_2 <= ||x||_1
        return Bound(l1=min(bound.l1, self.radius * math.sqrt(coordinates)), l2=min(bound.l2, self.radius))

    def encode(self, x: Tree, bound: Bound, grant: Grant) -> Tree:
        x, radius = tree.formed(x), self.radius * grant.reach if self.personal else self.radius
        norm = tree.norm(x, self.order)
        return tree.map(lambda leaf: shorter(leaf.nan_to_num(0.0, 0.0, 0.0), clip_factor(norm, radius, leaf.dtype)), x)


def slack(dtype: torch.dtype) -> float:
    """The factor by which a clip stays below its radius, so that rounding cannot carry it above: more in half precision
    than SLACK.
    """
    return max(SLACK, 1 + 4 * torch.finfo(dtype).eps)


def clip_factor(norm: Tensor, radius: float, dtype: torch.dtype) -> Tensor:
    """The factor min(1, radius/norm) in `dtype`, 0 where the norm is not finite; a norm of 0 is allowed."""
    factor = torch.clamp(radius / (norm * slack(dtype)).clamp_min(torch.finfo(norm.dtype).tiny), max=1.0)
    factor = torch.where(torch.isfinite(norm), factor, 0.0).to(dtype)
    # a subnormal factor has lost the digits that keep the bound
    return torch.where(factor < torch.finfo(dtype).tiny, 0.0, factor)


def shorter(leaf: Tensor, factor: Tensor | float) -> Tensor:
    y = leaf * factor  # in half precision many small numbers may all be rounded up: to twice what they are
    return y if torch.finfo(y.dtype).bits > 16 else torch.where(y.abs() < torch.finfo(y.dtype).tiny, 0.0, y)


@dataclass(frozen=True)
class Weigh(Stage):
    """A public weight of at most 1, which keeps the bound: n_k / max n, or a client's precision over the largest."""

    by: Literal["examples", "precision"] = "examples"

    def weight(self, size: int, largest: int, precision: float = 1.0) -> float:
        return size / largest if self.by == "examples" else precision

    def encode(self, x: Tree, bound: Bound, grant: Grant) -> Tree:
        weight = self.weight(grant.size, grant.largest, grant.precision)
        return x if weight == 1.0 else tree.scale(weight, x)


@dataclass(frozen=True)
class Noise(Stage):
    """Noise in proportion to the proved bound. Among the client stages it protects against the server, among the server
    stages against everyone who sees only sums.

    Requires: a finite bound in the mechanism's norm. Guarantees: the mechanism's event at `multiplier` for the stated
    neighbours. Proof: sensitivity of one client's contribution is 2*bound (replace: any two points of the ball) or
    bound (zero_out).
    """

    mechanism: NoiseLaw = GaussianNoise()
    neighbours: Neighbours = "replace"
    multiplier: float | None = None  # None: the plan decides from the budget
    louder: float = 1.0  # than the multiplier says, and accounted for as it is: a published unit mismatch
    error: ClassVar[float] = TABLE_ERROR  # of real noise on one coordinate, in total variation

    def __post_init__(self) -> None:
        check_neighbours(self.neighbours)
        check_multiplier(self.multiplier, "leave the stage out, or give a multiplier above 0")

    @property
    def takes_integers(self) -> bool:
        return isinstance(self.mechanism, IntegerNoiseLaw)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the noise's guarantee, part of every claim."""
        return ()

    def sensitivity(self, bound: Bound) -> float:
        limit = bound.of(self.mechanism.order)
        if not math.isfinite(limit):
            raise UnsoundGuarantee(
                f"{type(self.mechanism).__name__} comes after no clip, so its input has no bound",
                why="without a bound one client can move the sum without limit, and no amount of noise hides it",
                fix="put a clip before the noise in the uplink",
                code="unbounded-sensitivity",
            )
        return 2 * limit if self.neighbours == "replace" else limit

    def std(self, bound: Bound, multiplier: float, coordinates: int) -> float:
        """The standard deviation of the noise in one coordinate."""
        return multiplier * self.mechanism.spread * self.sensitivity(bound)

    def room(self, bound: Bound, multiplier: float) -> float:
        """The grid steps that the noise may take, but with a probability below e^-50 a coordinate."""
        return (12 if self.mechanism.order == 2 else 36) * self.std(bound, multiplier * self.louder, 1)

    def check_width(self, bound: Bound, multiplier: float) -> None:
        """Refuses noise on integers whose scale is so few grid steps that it would cost more than it is priced at."""
        if isinstance(self.mechanism, IntegerNoiseLaw):
            self.mechanism.check_steps(multiplier * self.louder * self.sensitivity(bound))

    def release(self, x: Tree, bound: Bound, multiplier: float, source: NoiseSource) -> Tree:
        scale = multiplier * self.louder * self.sensitivity(bound)
        return tree.like(x, [self.mechanism.add(leaf, scale, source.child(name)) for name, leaf in tree.named(x)])

    def encode(self, x: Tree, bound: Bound, grant: Grant) -> Tree:
        multiplier = self.multiplier if self.multiplier is not None else grant.multiplier
        assert multiplier is not None, "the plan prices every noise stage before a round"
        noisy = self.release(x, bound, multiplier, grant.source)
        return tree.map(lambda y, leaf: y.to(leaf.dtype), noisy, x)


def private(stages: Sequence[Stage]) -> list[Noise]:
    return [stage for stage in stages if isinstance(stage, Noise)]


@dataclass(frozen=True)
class OneField(Stage):
    """Applies a stage to one field of an upload. It bounds nothing of the upload as a whole, as other fields stay."""

    stage: Stage
    field: str

    def bound(self, bound: Bound, coordinates: int) -> Bound:
        return Bound()

    def encode(self, x: object, bound: Bound, grant: Grant) -> Tree:
        return self._with(x, self.stage.encode(getattr(x, self.field), bound, grant))

    def shape(self, x: object) -> Tree:
        return self._with(x, self.stage.shape(getattr(x, self.field)))

    def decode(self, y: object, like: object) -> Tree:
        return self._with(y, self.stage.decode(getattr(y, self.field), getattr(like, self.field)))

    @property
    def learns(self) -> bool:
        return self.stage.learns

    def begin(self, x: object, model: Params) -> Tree:
        return self.stage.begin(getattr(x, self.field), model)

    def at(self, t: int, public: Tree) -> Self:
        return replace(self, stage=self.stage.at(t, public))

    def learn(self, mean: object, like: object, std: float, each: Sequence[object]) -> Tree:
        parts = [getattr(upload, self.field) for upload in each]
        return self.stage.learn(getattr(mean, self.field), getattr(like, self.field), std, parts)

    def weight(self, size: int, largest: int, precision: float = 1.0) -> float:
        if (weight := self.stage.weight(size, largest, precision)) != 1:
            raise ConfigError(
                "a weight for one field of an upload only",
                why="the whole sum is divided by one number, so all fields must have the same weight",
                fix="put the weight on the whole upload",
                code="weight-of-a-field",
            )
        return weight

    def _with(self, x: Tree, value: Tree) -> Any:
        return x._replace(**{self.field: value})


@dataclass(frozen=True)
class ClipLayers(Stage):
    """A clip of every layer to a radius of its own. Put it right before the noise.

    The joint release of all layers costs as much as one Gaussian vector. Layer l is clipped to C_l and scaled to norm
    sqrt(a_l), with shares a_l >= 0 that add up to 1; the noise that follows is then C_l sigma / sqrt(a_l) in the
    layer's own units. The shares are equal, or those with the least noise energy, in proportion to C_l sqrt(m_l).

    Guarantees: the 2-norm of the encoded upload is at most 1. Proof: its square is at most the sum of a_l. Radii are
    public: typed, or computed from released means.

    adapt: factor from the estimated norm of a layer's last mean without its noise to its next radius, kept between
    `least` and `most`; None: radii stay.
    """

    radius: float
    shares: Literal["equal", "energy"] = "equal"
    adapt: float | None = None
    least: float = 1e-3
    most: float = 1e3
    _each: tuple[float, ...] = ()  # this round's radii

    def __post_init__(self) -> None:
        for number in (self.radius, self.least, self.most, 1.0 if self.adapt is None else self.adapt):
            Clip(number)  # refuses what is not a radius
        if not 1e-30 < self.least <= self.most:
            raise ConfigError(
                f"least is {self.least} and most is {self.most}",
                why="the smallest radius must be above 1e-30, and at most as large as the largest",
                fix="choose `least` above 1e-30, and `most` not below `least`",
                code="radius-out-of-range",
            )

    def bound(self, bound: Bound, coordinates: int) -> Bound:
        return Bound(l1=math.sqrt(coordinates), l2=1.0)

    def encode(self, x: Tree, bound: Bound, grant: Grant) -> Tree:
        leaves, found = tree.leaves(x), []
        for leaf, (radius, share) in zip(leaves, self._layers(x), strict=True):
            factor = clip_factor(torch.linalg.vector_norm(leaf.double()), radius, leaf.dtype)
            found.append(shorter(shorter(torch.where(leaf.isfinite(), leaf, 0.0), factor), math.sqrt(share) / radius))
        return tree.like(x, found)

    def decode(self, y: Tree, like: Tree) -> Tree:
        pairs = zip(tree.leaves(y), self._layers(like), strict=True)
        return tree.like(y, [leaf * (radius / math.sqrt(share)) for leaf, (radius, share) in pairs])

    def _layers(self, x: Tree) -> list[tuple[float, float]]:
        """Clip radius of each layer, and its share of the squared bound (all shares add up to 1)."""
        leaves = tree.leaves(x)
        radii = self._each or (self.radius,) * len(leaves)
        parts = [radius * math.sqrt(leaf.numel()) for radius, leaf in zip(radii, leaves, strict=True)]
        parts = parts if self.shares == "energy" else [1.0] * len(leaves)
        whole = math.fsum(parts) or 1.0
        # rounded down, so that they cannot add up to more than 1
        return [(radius, part / whole * (1 - 1e-12)) for radius, part in zip(radii, parts, strict=True)]

    # radii that go down with the model --------------------------------------------------------------------------------

    @property
    def learns(self) -> bool:
        return self.adapt is not None

    def begin(self, x: Tree, model: Params) -> Tree:
        return torch.full((len(tree.leaves(x)),), self.radius, dtype=torch.float64) if self.learns else ()

    def at(self, t: int, public: Tree) -> Stage:
        if not self.learns:
            return self
        radii = tuple(public.tolist())
        check_sent(t, "radii of layers", radii, min(self.least, self.radius), max(self.most, self.radius))
        return replace(self, _each=radii)

    def learn(self, mean: Tree, like: Tree, std: float, each: Sequence[Tree]) -> Tree:
        if self.adapt is None:
            return ()
        layers = zip(tree.leaves(mean), self._layers(like), strict=True)
        return torch.tensor([self._next(leaf, std, *layer) for leaf, layer in layers], dtype=torch.float64)

    def _next(self, mean: Tensor, std: float, radius: float, share: float) -> float:
        """The next radius, from the estimated norm of the mean without its noise. It stays where the noise hides that
        norm, as in an empty round, and changes by a factor of at most 2.
        """
        assert self.adapt is not None
        noise = mean.numel() * std**2
        beneath = float((mean.double() ** 2).sum()) - noise
        if not beneath > noise * math.sqrt(2 / max(1, mean.numel())):
            return radius
        wanted = self.adapt * math.sqrt(beneath / share) * radius
        return min(max(wanted, radius / 2, self.least), 2 * radius, self.most)
