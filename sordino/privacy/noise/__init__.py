"""Noise laws: the norm of their sensitivity, the event that accounts for them, their pricing, and their samples.

A new law is a subclass of `NoiseLaw` and, where settings shall name it, a row in LAWS. Its pricing may never charge
less than its event costs. Real noise is drawn in steps of a fine grid from a table (`sources`); on integers, as secure
sums need them, it is drawn in whole steps, at the same cost.

Proof of the cost on integers: an integer with rounded Laplace noise is the integer with Laplace noise, rounded (the
discrete Laplace law would do for one release, but costs more in compositions). So is an integer with Gaussian noise, of
which the discrete Gaussian with a variance larger by 1/12 is within 0.021 / n^4 in total variation, n steps to a
deviation (proof: ADR 004): at FINE steps 1e-16 a coordinate, whatever is composed. With fewer steps it is refused.

Noise on the integers is drawn digit by digit (Canonne, Kamath and Steinke, NeurIPS 2020, arXiv 2004.00010):

A geometric number's binary digits are independent: digit j is 1 with probability q / (1 + q), q = exp(-2^j / scale). So
its law is drawn digit by digit, without logarithms and without rejection; a sign makes it two-sided. The Gaussian
accepts a Laplace number y with probability exp(-(|y| / sigma - 1)^2 / 2).

Guarantees: each coordinate is within TABLE_ERROR of its law. Proof: a digit or sign compares 64 random bits with a
threshold less than 2^-64 too low, at most 48 of them, and the digits left out would be 0 but for exp(-45): 3e-18
together. An acceptance compares 53 random bits with a double; its chance is off by less than 6e-16 (2^-53 for the bits,
five roundings of 2^-53 in the double), and more than half of the candidates are accepted: 2 (6e-16 + 3e-18). A sum of t
discrete Gaussians is not quite one, but its distance is below 10 sum_k exp(-2 pi^2 sigma^2 k / (k + 1)) (Kairouz, Liu
and Steinke, ICML 2021). Constant time is not claimed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.accounting import events
from sordino.accounting.pricing import Classic, Discrete, Exact, NoisePricing, Pure
from sordino.errors import Range, UnsoundGuarantee, check_range
from sordino.types import NoiseSource, Tensor

Floats: TypeAlias = NDArray[np.float64]
MANY, FIRST_BITS = 1 << 15, 18  # words that are looked up by so many of their first bits
FINE = 4096  # steps in a deviation
PRICINGS: Mapping[str, NoisePricing] = {
    "exact": Exact(),
    "classic": Classic(),
    "classic_checked": Classic(checked=True),
}


@dataclass(frozen=True)
class Steps:
    """A continuous noise law in steps of a grid: P[floor(noise) = k] as cumulative 64-bit thresholds, and the shape of
    the density within a step."""

    thresholds: NDArray[np.uint64]
    lowest: int
    slope: Callable[[Any], Any]  # of -log density at the centre of step k: below 0.0023
    bend: Callable[[Any], Any]  # half the second derivative of -log density there: below 3e-8

    @classmethod
    def of(cls, weights: NDArray[Any], slope: Callable[[Any], Any], bend: Callable[[Any], Any]) -> Self:
        """The discretised law whose grid steps -n to n - 1 have these 2 n weights, given in extended precision."""
        # np.longdouble: extended precision keeps the running sum exact to about 1e-19 before it is cut to 64 bits
        total = np.cumsum(weights)
        upper = np.floor(total[:-1] / total[-1] * np.longdouble(2) ** 64)
        thresholds = np.minimum(upper, np.longdouble(2**64 - 1)).astype(np.uint64)
        return cls(thresholds, -len(weights) // 2, slope, bend)

    def __call__(self, words: NDArray[np.uint64], more: NDArray[np.uint64], fraction: Floats) -> Floats:
        """The change of each value in whole grid steps, from two random words: the noise's integer part, plus 1 where
        its fractional part and that of the value (`fraction`, in steps) add up to 1 or more."""
        drawn = self._places(words) + self.lowest
        uniform = (more >> np.uint64(11)).view(np.int64) * 2.0**-53
        above = fraction - uniform
        over = above > 0
        # the law inside a step is so nearly even that the fraction alone mostly says whether it carries
        near = np.flatnonzero(np.abs(above) < self._uneven)
        over[near] = uniform[near] < self.carry(drawn[near], fraction[near])
        return (drawn + over).astype(np.float64)

    @cached_property
    def _uneven(self) -> float:
        """Upper bound on the difference between the probability of a carry (`carry`) and the value's `fraction`."""
        k = np.arange(self.lowest, self.lowest + len(self.thresholds) + 1)
        return float(np.max(np.abs(self.slope(k)) + self.bend(k))) / 4

    def _places(self, words: NDArray[np.uint64]) -> NDArray[Any]:
        """Index of the grid step for each random word: the number of thresholds up to it."""
        if len(words) < MANY and "_by_first_bits" not in vars(self):
            return np.searchsorted(self.thresholds, words, side="right")
        places = self._by_first_bits[(words >> np.uint64(64 - FIRST_BITS)).view(np.int64)]
        others = np.flatnonzero(places < 0)
        sought, found = words[others], ~places[others]
        found += self._ends[found] <= sought
        wide = np.flatnonzero(self._ends[found] <= sought)  # more than two places begin with these bits
        found[wide] = np.searchsorted(self.thresholds, sought[wide], side="right")
        places[others] = found
        return places

    @cached_property
    def _ends(self) -> NDArray[np.uint64]:
        """The first random word behind each grid step; for the last step, the largest word."""
        return np.append(self.thresholds, np.uint64(2**64 - 1))

    @cached_property
    def _by_first_bits(self) -> NDArray[np.int32]:
        """Look-up table from the first bits of a random word to its grid step. Where words with these bits fall into
        several steps, it holds ~k (negative) for the first of these, k.
        """
        least = np.arange(1 << FIRST_BITS, dtype=np.uint64) << np.uint64(64 - FIRST_BITS)
        most = least + np.uint64((1 << 64 - FIRST_BITS) - 1)
        first, last = (np.searchsorted(self.thresholds, words, side="right") for words in (least, most))
        return np.where(first == last, first, ~first).astype(np.int32)

    def carry(self, k: NDArray[np.int64], fraction: Floats) -> Floats:
        """Probability that noise with whole part k carries over into the next step: that its fractional part plus
        `fraction` is at least 1.
        """
        a, q = self.slope(k), self.bend(k)
        # the integral of e^(-at - qt^2) about the centre, as a polynomial: a < 0.0023 and q < 3e-8, so what is left out
        # is below 1e-16
        square = a * a
        c2, c3, c4 = (square / 2 - q) / 3, a * (q - square / 6) / 4, square * (square / 24 - q / 2) / 5

        def below(t: Floats | float) -> Any:
            return t * (1 + t * (-a / 2 + t * (c2 + t * (c3 + t * c4))))

        found: Floats = (below(0.5) - below(0.5 - fraction)) / (below(0.5) - below(-0.5))
        return found


class NoiseLaw(ABC):
    """Base class of noise that is added to every coordinate, independently, at scale multiplier * sensitivity."""

    order: ClassVar[Literal[1, 2]]  # the norm of the sensitivity
    spread: ClassVar[float]  # standard deviation over scale

    @property
    @abstractmethod
    def pricing(self) -> NoisePricing:
        """The conversion of a budget into noise multipliers, and of multipliers into costs."""

    @abstractmethod
    def event(self, multiplier: float) -> events.Event:
        """The privacy event of one release with this noise, by which the ledger accounts for it."""

    @abstractmethod
    def standard(self, shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        """Samples of scale 1, drawn on the CPU, for simulation."""

    @abstractmethod
    def in_steps(self, scale: float) -> Steps:
        """The law in steps of a fine grid, thousands of them to one unit of scale, for real noise. It is within 1e-14
        of the continuous law in total variation.
        """

    def add(self, values: Tensor, scale: float, source: NoiseSource) -> Tensor:
        """The values with noise of this scale added."""
        return source.noisy(self, values, scale)

    @property
    def shared(self) -> IntegerNoiseLaw | None:
        """The law for distributed noise, which clients add in integer shares; it has a pricing of its own. None if the
        sum of shares of this law is not known."""
        return None


class IntegerNoiseLaw(NoiseLaw):
    """Base class of noise laws that can also be drawn as integers, for secure sums. A law of your own must set
    `narrowest`: the smallest scale, in steps, at which integer noise costs no more than its event."""

    narrowest: ClassVar[float] = math.inf

    @abstractmethod
    def whole(self, source: NoiseSource, count: int, scale: float) -> Ints:
        """Integer noise, at the privacy cost of the continuous law."""

    def add(self, values: Tensor, scale: float, source: NoiseSource) -> Tensor:
        if values.is_floating_point():
            return super().add(values, scale, source)
        self.check_steps(scale)
        noise = torch.from_numpy(self.whole(source, values.numel(), scale))
        return values + noise.view(values.shape).to(values.device)

    def check_steps(self, scale: float) -> None:
        if scale < self.narrowest:
            raise UnsoundGuarantee(
                f"the noise has a scale of {scale:.3g} steps of the grid",
                why=f"below {self.narrowest:g} steps it may cost more than the noise that is priced",
                fix='set more bits or a smaller range in the quantise stage, or use law = "laplace" or noise in '
                "shares; a law of your own sets `narrowest`",
                code="noise-too-narrow",
            )


@dataclass(frozen=True)
class GaussianNoise(IntegerNoiseLaw):
    """Gaussian noise N(0, (multiplier * sensitivity)^2) on every coordinate; the sensitivity is in the 2-norm.

    `exact` calibrates by Gaussian DP (Dong, Roth and Su 2022; Balle and Wang 2018); `classic` by sqrt(2
    ln(1.25/delta))/epsilon, proved for epsilon < 1 only (Dwork and Roth 2014), refused above; `classic_checked` accepts
    it above 1 where the exact inequality holds.
    """

    calibration: Literal["exact", "classic", "classic_checked"] = "exact"
    narrowest: ClassVar[float] = FINE
    rounding: ClassVar[float] = 1 / 12  # what rounding to whole steps adds to a variance
    order: ClassVar[Literal[1, 2]] = 2
    spread: ClassVar[float] = 1.0

    @property
    def pricing(self) -> NoisePricing:
        return PRICINGS[self.calibration]

    @property
    def shared(self) -> IntegerNoiseLaw:
        return SharedGaussianNoise()

    def event(self, multiplier: float) -> events.Event:
        return events.Gaussian(multiplier)

    def standard(self, shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype, device="cpu")

    def in_steps(self, scale: float) -> Steps:
        return _gaussian_steps(scale)

    def whole(self, source: NoiseSource, count: int, scale: float) -> Ints:
        return discrete_gaussian(source, count, math.sqrt(scale**2 + self.rounding))


@dataclass(frozen=True)
class SharedGaussianNoise(GaussianNoise):
    """Discrete Gaussian noise on a coarse grid, as the sum of clients' shares: it has the Renyi divergences of the
    continuous law, but not its curve of epsilon and delta."""

    rounding: ClassVar[float] = 0.0
    narrowest: ClassVar[float] = 0.0

    pricing = Discrete()

    def event(self, multiplier: float) -> events.Event:
        return events.DiscreteGaussian(multiplier)


@dataclass(frozen=True)
class LaplaceNoise(IntegerNoiseLaw):
    """Laplace noise of scale multiplier * sensitivity on every coordinate; the sensitivity is in the 1-norm. It
    gives pure epsilon = 1/multiplier.
    """

    narrowest: ClassVar[float] = 0.0
    order: ClassVar[Literal[1, 2]] = 1
    spread: ClassVar[float] = math.sqrt(2)

    pricing = Pure()

    def event(self, multiplier: float) -> events.Event:
        return events.Laplace(multiplier)

    def standard(self, shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        # the difference of two exponential variables
        drawn = torch.empty((2, *shape), dtype=dtype, device="cpu").exponential_(generator=generator)
        return drawn[0].sub_(drawn[1])

    def in_steps(self, scale: float) -> Steps:
        return _laplace_steps(scale)

    def whole(self, source: NoiseSource, count: int, scale: float) -> Ints:
        return rounded_laplace(source, count, scale)


@lru_cache(maxsize=8)
def _gaussian_steps(std: float) -> Steps:
    """Gaussian noise in grid steps: P[k <= N(0, std^2) < k+1], the density at the centre, corrected for its curvature
    across the step (terms beyond std^-6 are below 1e-19).
    """
    half = math.ceil(9.2 * std)  # the tail beyond 9.2 standard deviations is 4e-20
    h = 1 / np.longdouble(std)
    x2 = ((np.arange(-half, half, dtype=np.longdouble) + 0.5) * h) ** 2
    curve = 1 + h**2 / 24 * (x2 - 1) + h**4 / 1920 * (x2**2 - 6 * x2 + 3)
    return Steps.of(np.exp(-x2 / 2) * curve, lambda k: (k + 0.5) / std**2, lambda k: 0.5 / std**2)


@lru_cache(maxsize=8)
def _laplace_steps(scale: float) -> Steps:
    """Laplace noise in grid steps: P[k <= Laplace(scale) < k+1], geometric on either side of zero."""
    half = math.ceil(44 * scale)  # the tail beyond 44 scales is 8e-20
    steps = np.arange(-half, half, dtype=np.longdouble) + 0.5
    weights = np.exp(-np.abs(steps) / np.longdouble(scale))
    return Steps.of(weights, lambda k: np.sign(k + 0.5) / scale, lambda k: 0.0)


# the laws that settings name
LAWS: Mapping[str, NoiseLaw] = {
    "gaussian": GaussianNoise(),
    "gaussian_classic": GaussianNoise("classic"),
    "laplace": LaplaceNoise(),
}
if TYPE_CHECKING:
    LawName: TypeAlias = str
else:
    LawName = Literal[tuple(LAWS)]


_MOST: Final = 2.0**40  # steps: 45 times that is an exact double
_TAIL: Final = 45  # scales
Ints = NDArray[np.int64]


def discrete_laplace(source: NoiseSource, count: int, scale: float) -> Ints:
    """Draws two-sided geometric noise on the integers. Its variance is 2 q / (1 - q)^2 for q = exp(-1 / scale), a
    little below 2 scale^2.
    """
    _check(scale)
    drawn = _geometric(source, count, scale)
    # -1 - g for a geometric g is the negative half: P[x < 0] = q / (1 + q), the chance of digit 0
    negative = _words(source.child("sign"), count) < _threshold(0, scale)
    return np.where(negative, ~drawn, drawn)


def rounded_laplace(source: NoiseSource, count: int, scale: float) -> Ints:
    """Draws Laplace noise that is rounded to whole steps: 0 with probability 1 - exp(-1 / (2 scale)), else a geometric
    number of steps to either side. On integers it costs what the continuous noise costs, in every composition, as
    rounding comes after it.
    """
    _check(scale)
    size = 1 + _geometric(source, count, scale)
    negative = _words(source.child("sign"), count) < np.uint64(1 << 63)
    away = _words(source.child("away"), count) < _away(scale)
    return np.where(away, np.where(negative, -size, size), 0)


def _geometric(source: NoiseSource, count: int, scale: float) -> Ints:
    drawn = np.zeros(count, np.int64)
    for digit in range(max(1, math.ceil(math.log2(_TAIL * scale)))):
        ones = _words(source.child("digit", digit), count) < _threshold(digit, scale)
        drawn |= ones.astype(np.int64) << digit
    return drawn


def discrete_gaussian(source: NoiseSource, count: int, sigma: float) -> Ints:
    """Draws discrete Gaussian noise on the integers. Its variance is below sigma^2, by less than a millionth of it
    for sigma >= 1.
    """
    _check(sigma)
    kept: list[Ints] = []
    missing, attempt = count, 0
    while missing > 0:
        tries = missing + missing * 2 // 5 + 64  # three quarters are accepted if sigma is not small
        found = _attempt(source.child("attempt", attempt), tries, sigma)[:missing]
        kept.append(found)
        missing, attempt = missing - len(found), attempt + 1
    return np.concatenate([np.zeros(0, np.int64), *kept])


def _attempt(source: NoiseSource, tries: int, sigma: float) -> Ints:
    drawn = discrete_laplace(source, tries, sigma)
    chance = np.exp(-0.5 * (np.abs(drawn) / sigma - 1) ** 2)
    return drawn[(_words(source.child("accept"), tries) >> np.uint64(11)) * 2.0**-53 < chance]


@lru_cache(maxsize=256)
def _threshold(digit: int, scale: float) -> np.uint64:
    """The chance of a binary digit 1, 2^64 q / (1 + q) for q = exp(-2^digit / scale), as a threshold below 2^63."""
    with localcontext(prec=50):
        q = (-(Decimal(2) ** digit) / Decimal(scale)).exp()
        return np.uint64(int(q / (1 + q) * 2**64))


@lru_cache(maxsize=256)
def _away(scale: float) -> np.uint64:
    """The chance 2^64 exp(-1 / (2 scale)) that Laplace noise is not rounded to 0, as a 64-bit threshold."""
    with localcontext(prec=50):
        return np.uint64(int((-1 / (2 * Decimal(scale))).exp() * 2**64))


def _words(source: NoiseSource, count: int) -> NDArray[np.uint64]:
    return source.words(count).cpu().numpy().view(np.uint64)


def _check(scale: float) -> None:
    check_range(
        "the scale of integer noise, in steps,",
        scale,
        Range(above=0, most=_MOST),
        "integer-noise-scale",
        error=UnsoundGuarantee,
        fix="set other bits or another range in the quantise stage",
    )
