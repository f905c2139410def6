"""PrivUnit: local privacy for a whole update by its direction alone (Bhowmick, Duchi, Freudiger, Kapoor and Rogers,
arXiv:1812.00984).

For a unit vector v the answer is V / m, where V is uniform on the cap {<V, v> >= gamma} of the sphere with probability
p, else uniform on the rest of the sphere, and m = E<V, v>. So its mean is v, and its length is always 1/m, which
reveals nothing about v.

Guarantees: epsilon, pure, for any two inputs. Proof: the density is p / cap on the cap and (1-p) / (1-cap) elsewhere,
cap being the cap's part of the sphere, and the quotient of the two is e^epsilon. That is a proof about real numbers.
Here V is computed in float64 and released in steps of STEP / sqrt(d), so that the low bits do not reveal v; rounding
errors change a step with a probability below FLOAT_ERROR per coordinate, which costs (1 + e^epsilon) times as much of
delta; with real noise every row counts it. The noise is drawn from 64-bit words and not by `NoiseSource.noisy`, whose
own grid would remain visible through a rotation.

As a noise stage: epsilon = 1/multiplier for everything a client holds, against everybody: the length of an update is
never sent, and an update of length 0 has a random direction. The expected answer is the clip radius times the
direction of the update.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, NamedTuple

import torch

from sordino import tree
from sordino.accounting import events
from sordino.accounting.pricing import NoisePricing, Pure
from sordino.errors import SEVERAL, Range, check_range
from sordino.privacy.uplink.stages import Noise
from sordino.tree import Tree
from sordino.types import Bound, NoiseSource, Tensor

STEP = 2.0**-12
FLOAT_ERROR = 1e-10  # errors of some 1e-15 against STEP, with room
MOST = 16.0  # beyond, a cap has too few of the words of 52 bits: a delta of 2e-7 is lost here, 2e-4 at 24, 0.9 at 36


class SphereCap(NamedTuple):
    """The cap of the sphere from which an answer is drawn with probability p."""

    dimension: int
    epsilon: float
    p: float  # probability of the cap
    gamma: float  # where it begins
    part: float  # of the sphere
    length: float  # of an answer: 1/m


@cache
def parameters(dimension: int, epsilon: float) -> SphereCap:
    """The spherical cap of PrivUnit for this dimension and epsilon whose answer is shortest, so that it has the least
    variance.
    """
    check_range(
        "the dimension of PrivUnit",
        dimension,
        SEVERAL,
        "privunit-dimension",
        why="PrivUnit draws from a part of a sphere, which needs at least two dimensions",
    )
    _check_epsilon(epsilon)
    from scipy.optimize import minimize_scalar

    def log_length(odds: float) -> float:
        return math.log(cap_at(dimension, epsilon, odds).length)

    found = minimize_scalar(log_length, bounds=(0.0, epsilon), method="bounded", options={"xatol": 1e-6 * epsilon})
    return cap_at(dimension, epsilon, float(found.x))


def _check_epsilon(epsilon: float) -> None:
    why = "beyond, the random words are too coarse for the small part of the sphere from which answers are drawn"
    fix = "spend less in a round, or use Gaussian noise"
    check_range("epsilon of PrivUnit", epsilon, Range(above=0, most=MOST), "privunit-epsilon", why=why, fix=fix)


def cap_at(dimension: int, epsilon: float, odds: float) -> SphereCap:
    """The spherical cap that the answer hits with the log-odds `odds` (0 to epsilon). A uniform direction hits it with
    the log-odds odds - epsilon, so that densities inside and outside differ by a factor of e^epsilon."""
    from scipy.special import betainccinv, betaincinv, betaln, log_expit

    half = (dimension - 1) / 2
    part = math.exp(log_expit(odds - epsilon))
    square = float(betainccinv(0.5, half, 2 * part))
    rest = float(betaincinv(half, 0.5, 2 * part))  # 1 - square, which would cancel where the cap is tiny
    log_m = half * math.log(rest) - math.log(dimension - 1) - betaln(0.5, half)
    log_m += log_expit(odds) - log_expit(odds - epsilon) + math.log(-math.expm1(-epsilon))
    return SphereCap(dimension, epsilon, math.exp(log_expit(odds)), math.sqrt(square), part, math.exp(-log_m))


def privunit(vector: Tensor, cap: SphereCap, source: NoiseSource) -> Tensor:
    """A random answer that leans towards the direction of `vector` [..., d], in float64. A vector that is zero or not
    finite is replaced by a random direction.
    """
    from scipy.special import betainccinv

    given = vector.double().reshape(-1, cap.dimension)
    v = _unit(given / given.abs().amax(1, keepdim=True))
    fallback = _unit(_normal(given.shape, source.child("direction")))
    v = torch.where(torch.isfinite(v).all(1, keepdim=True), v, fallback)
    coin, place = _uniform(2 * len(v), source.child("cap")).view(2, -1)
    # `u` is the part of the sphere that lies higher than V; the component along v is where that is so
    u = torch.where(coin < cap.p, place * cap.part, cap.part + place * (1 - cap.part))
    tail = 2 * torch.minimum(u, 1 - u)
    found = torch.from_numpy(betainccinv(0.5, (cap.dimension - 1) / 2, tail.cpu().numpy()))
    square = found.to(tail.device).unsqueeze(1)
    along = square.sqrt() * torch.sign(0.5 - u).unsqueeze(1)
    noise = _normal(v.shape, source.child("rest"))
    across = _unit(noise - (noise * v).sum(1, keepdim=True) * v)
    drawn = along * v + (1 - square).sqrt() * across
    step = STEP / math.sqrt(cap.dimension)
    rounded: Tensor = (drawn / step).round() * (step * cap.length)
    return rounded.view(vector.shape)


def _unit(rows: Tensor) -> Tensor:
    scaled: Tensor = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return scaled


def _uniform(count: int, source: NoiseSource) -> Tensor:
    """Uniform numbers in (0, 1), of 52 bits."""
    return ((source.words(count) >> 12 & (1 << 52) - 1).double() + 0.5) * 2.0**-52


def _normal(shape: torch.Size, source: NoiseSource) -> Tensor:
    drawn: Tensor = torch.special.ndtri(_uniform(shape.numel(), source))
    return drawn.view(shape)


@dataclass(frozen=True)
class PureDirection:
    """The price of one random direction: in composition any pure mechanism costs at most as much as a binary randomised
    response of the same epsilon (Kairouz, Oh and Viswanath, ICML 2015).
    """

    order: ClassVar[int] = 2
    spread: ClassVar[float] = 1.0
    pricing: ClassVar[NoisePricing] = Pure()

    def event(self, multiplier: float) -> events.Event:
        _check_epsilon(1 / multiplier)
        return events.Response(1 / multiplier, 2)


@dataclass(frozen=True)
class OneDirection(Noise):
    """PrivUnit as a noise stage: replaces each update by a random direction that leans towards its own, always of the
    same length. A clip must come before it.
    """

    mechanism: PureDirection = PureDirection()  # type: ignore[assignment]
    error: ClassVar[float] = FLOAT_ERROR

    def std(self, bound: Bound, multiplier: float, coordinates: int) -> float:
        self.sensitivity(bound)
        return bound.l2 * parameters(coordinates, 1 / multiplier).length / math.sqrt(coordinates)

    def release(self, x: Tree, bound: Bound, multiplier: float, source: NoiseSource) -> Tree:
        self.sensitivity(bound)
        flat = tree.flat(x).double()
        cap = parameters(len(flat), 1 / (multiplier * self.louder))
        answer = privunit(flat, cap, source.child("direction")).reshape(-1)
        return tree.unflat(bound.l2 * answer, tree.map(lambda leaf: leaf.double(), x))
