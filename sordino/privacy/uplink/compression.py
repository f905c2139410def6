"""Compression of layers: rates from their norms, and block sums.

Rates (Li, Xiao and Chen, Chinese Journal of Computers 2024, algorithm 2). The published rule is V-shaped in a layer's
share of the whole norm: small layers are kept at the largest rate, although the text wants to compress them most. The
rule `monotone` follows the text.

Block sums (algorithm 3): a layer of I numbers is compressed to m sums of runs of consecutive numbers. The matrix is
0/1 with disjoint rows, known to both sides from (I, m): only the sums are sent, and the matrix is never formed. Rows
are orthogonal, so the minimum-norm reconstruction is each sum spread evenly over its run; it commutes with the mean,
so the server applies it once, to the sum of all uploads.

Guarantees: the 2-norm grows by at most the square root of the longest run, the 1-norm not at all. Proof: a run of z
numbers with 2-norm s sums to at most s sqrt(z); runs are disjoint. As printed the rule breaks for tiny layers (m = 0);
here every layer keeps at least one number.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, NamedTuple, Self

import torch

from sordino import tree
from sordino.errors import FRACTION, ConfigError, check_range
from sordino.privacy.uplink.stages import Stage, check_sent
from sordino.tree import Tree
from sordino.types import Bound, Grant, Params, Tensor

Rule = Literal["published", "monotone"]
Share = Literal["norm_of_whole", "sum_of_norms"]


def check_ends(least: float, most: float) -> None:
    tenths = all(math.isclose(10 * end, round(10 * end)) for end in (least, most))
    if not (0 < least <= most <= 1 and tenths):
        raise ConfigError(
            f"least is {least} and most is {most}",
            why="both are shares of the numbers that are kept, in tenths, and least must not be above most",
            fix="set for example least = 0.2, most = 0.5",
            code="rate-out-of-range",
        )


def rate(share: float, most: float = 0.5, least: float = 0.2, rule: Rule = "published") -> float:
    """The compression rate, in tenths, of a layer with this share of the norm: the share of its numbers that is kept.
    Rounding is Python's, half to even on the binary number, as published.
    """
    check_ends(least, most)
    if rule == "monotone":
        found = round(share, 1)
    elif share < least:
        found = round(most - round(share, 2), 1)
    else:
        found = min(round(share, 1), most)
    return min(max(found, least), most)


def rates(
    norms: Sequence[float],
    most: float = 0.5,
    least: float = 0.2,
    rule: Rule = "published",
    share: Share = "norm_of_whole",
) -> list[float]:
    """The compression rate of every layer; the largest one for all where all norms are 0."""
    whole = math.fsum(norms) if share == "sum_of_norms" else math.hypot(*norms)
    return [rate(norm / whole, most, least, rule) if whole else most for norm in norms]


@dataclass(frozen=True)
class LayerByLayer(Stage, ABC):
    """Base of all compressions of single layers, with their rates.

    rate: one for every layer and round, or "dynamic": from the norms of the model's layers at first, then from those of
    the last update that the server rebuilt. Dynamic rates go down with the model, in tenths. The bound holds for rates
    from `least` to `most`, and others are refused, since a server that sends the model could send any rate.
    """

    rate: float | Literal["dynamic"] = 0.5
    most: float = 0.5  # of dynamic rates
    least: float = 0.2
    rule: Rule = "published"
    share: Share = "norm_of_whole"
    _each: tuple[float, ...] = ()  # of this round's layers

    def __post_init__(self) -> None:
        if self.rate == "dynamic":
            check_ends(self.least, self.most)
        else:
            why = "it is the share of the numbers that is kept"
            check_range(
                "a compression rate", self.rate, FRACTION, "rate-out-of-range", why=why, fix="set for example 0.3"
            )

    @abstractmethod
    def measured(self, layer: Tensor, rate: float) -> Tensor: ...

    @abstractmethod
    def kept(self, layer: Tensor, rate: float) -> int:
        """Number of coordinates that are kept of a layer."""

    @abstractmethod
    def rebuilt(self, y: Tensor, like: Tensor, rate: float) -> Tensor: ...

    def encode(self, x: Tree, bound: Bound, grant: Grant) -> Tree:
        pairs = zip(tree.leaves(x), self._rates(x), strict=True)
        return tree.like(x, [self.measured(leaf, rate) for leaf, rate in pairs])

    def shape(self, x: Tree) -> Tree:
        pairs = zip(tree.leaves(x), self._rates(x), strict=True)
        return tree.like(x, [leaf.new_zeros(self.kept(leaf, rate)) for leaf, rate in pairs])

    def decode(self, y: Tree, like: Tree) -> Tree:
        pairs = zip(tree.leaves(y), tree.leaves(like), self._rates(like), strict=True)
        return tree.like(like, [self.rebuilt(leaf, template, rate) for leaf, template, rate in pairs])

    @property
    def _least(self) -> float:
        return self.least if self.rate == "dynamic" else self.rate

    def _rates(self, x: Tree) -> Sequence[float]:
        return self._each or [self.most if self.rate == "dynamic" else self.rate] * len(tree.leaves(x))

    # from round to round ----------------------------------------------------------------------------------------------

    @property
    def learns(self) -> bool:
        return self.rate == "dynamic"

    def begin(self, x: Tree, model: Params) -> Tree:
        return self._chosen([model.get(name.rpartition("/")[2], leaf) for name, leaf in tree.named(x)])

    def at(self, t: int, public: Tree) -> Self:
        if not self.learns:
            return self
        rates = tuple(tenths / 10 for tenths in public.tolist())
        check_sent(t, "compression rates", rates, round(10 * self.least) / 10, round(10 * self.most) / 10)
        return replace(self, _each=rates)

    def learn(self, mean: Tree, like: Tree, std: float, each: Sequence[Tree]) -> Tree:
        return self._chosen(tree.leaves(self.decode(mean, like)))

    def _chosen(self, layers: Sequence[Tensor]) -> Tree:
        if not self.learns:
            return ()
        norms = [float(torch.linalg.vector_norm(layer.double())) for layer in layers]
        if not all(map(math.isfinite, norms)):  # the model is lost, and the run says so
            norms = [0.0] * len(norms)
        found = rates(norms, self.most, self.least, self.rule, self.share)
        return torch.tensor([round(10 * rate) for rate in found], dtype=torch.uint8)


class Runs(NamedTuple):
    """Division of a layer into runs (blocks of consecutive numbers): `longer` of them have `each + 1` numbers, the
    others have `each`.
    """

    many: int
    each: int
    longer: int

    @property
    def longest(self) -> int:
        return self.each + (self.longer > 0)

    def lengths(self) -> Tensor:
        return torch.tensor([self.each + 1] * self.longer + [self.each] * (self.many - self.longer))


@cache
def runs(size: int, rate: float) -> Runs:
    """The division into runs of a layer with `size` numbers: as many runs as the share `rate` of the numbers, at least
    one.
    """
    tenths = round(10 * rate)
    kept = (tenths * size) // 10 if math.isclose(10 * rate, tenths) else math.floor(rate * size + 1e-9)
    count = max(1, kept)
    each = size // count
    return Runs(count, each, size - each * count)


def sums(x: Tensor, rate: float) -> Tensor:
    """A layer compressed to the sums of its runs (blocks of consecutive numbers); `rate`: number of runs, as a share of
    the layer's numbers.
    """
    flat, found = x.reshape(-1), runs(x.numel(), rate)
    cut = found.longer * (found.each + 1)
    long, short = flat[:cut].view(found.longer, found.each + 1), flat[cut:].view(-1, found.each)
    return torch.cat([long.sum(1), short.sum(1)])


def spread(y: Tensor, like: Tensor, rate: float) -> Tensor:
    """The layer with the smallest 2-norm, in the shape of `like`, whose runs (blocks of consecutive numbers) have the
    sums `y`.
    """
    found = runs(like.numel(), rate)
    cut = found.longer
    long = (y[:cut] / (found.each + 1))[:, None].expand(-1, found.each + 1)
    short = (y[cut:] / found.each)[:, None].expand(-1, found.each)
    return torch.cat([long.reshape(-1), short.reshape(-1)]).view(like.shape)


@dataclass(frozen=True)
class BlockSum(LayerByLayer):
    """Compression to the sums of consecutive numbers. Put the clip after it: bounding what is sent costs less noise
    than bounding the numbers that are added.
    """

    def bound(self, bound: Bound, coordinates: int) -> Bound:
        # the longest run of any layer: m = floor(rate I) >= 1 leaves runs below 2/rate, and a layer that is smaller
        # than 1/rate is one run
        longest = math.ceil(2 / self._least)
        return Bound(l1=bound.l1, l2=min(bound.l2 * math.sqrt(longest), bound.l1))

    def measured(self, layer: Tensor, rate: float) -> Tensor:
        return sums(layer, rate)

    def kept(self, layer: Tensor, rate: float) -> int:
        return runs(layer.numel(), rate).many

    def rebuilt(self, y: Tensor, like: Tensor, rate: float) -> Tensor:
        return spread(y, like, rate)
