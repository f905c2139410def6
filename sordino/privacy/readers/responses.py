"""Randomised response, local privacy for images: every value is randomised once, before training sees it. Sun, Ding and
Cheng, Computer Science (China) 51(6A), 2024.

Guarantees: whatever is done with the answers, the probabilities of a result under two images that differ in one value
differ by a factor of at most e^epsilon, and under any two images by that factor for every value in which they differ:
`epsilon` = 5 for each of 784 values is 3,920 for an image. Labels stay exact unless `label_epsilon` is set, and then an
example is protected as a whole. `of`: `epsilon` is for each value, or for the whole image, divided evenly over its
values (by exact composition where `delta` allows it).

Answers that are drawn once in a run and used in every round (`DrawnOnce`) are paid once; answers drawn again in every
round are paid in every round. Zero is grey: test images are neither rounded nor randomised. The published text calls
its scheme locally private for one value; its claim for a user's data is the number for an image here.

The mechanism, for grey levels and labels, is that of Warner (1965); k-ary: Kairouz, Bonawitz and Ramage, ICML 2016.
A value out of k is kept with probability p = e^epsilon / (k - 1 + e^epsilon), else replaced by one of the k - 1 others,
all equally likely. Equivalently, in one step: with probability g = k / (k - 1 + e^epsilon) a uniform value out of all
k, else the value itself.

Guarantees: epsilon for ONE value, pure, for every pair of inputs. An image is as many values as it has pixels and
channels, so its cost is that of their composition; `composed_delta` gives it without a gap. Proof for the program: one
64-bit word per value, whose high half decides whether to replace and whose low half by what. Both are whole numbers,
the least likely value is counted as it is, and the threshold is rounded up: the ratio of two outputs' probabilities is
at most e^epsilon. The price of that is a law that differs from the ideal one by at most k / 2^32 in total variation per
value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import numpy as np
import torch

from sordino.accounting.events import DrawnOnce, Event, NonPrivate, Repeat, Response, Together
from sordino.errors import BELOW_ONE, COUNT, POSITIVE, ConfigError, DomainError, Range, UnsoundGuarantee, check_range
from sordino.privacy.readers.open import Open
from sordino.types import Claim, Examples, LocalWork, NoiseSource, Task, Tensor

Rounding = Literal["nearest", "ceil"]
GREYS = 21
MOST = 1 << 16
HALF = 1 << 32
BLOCK = 1 << 20  # words drawn together: 8 MB
NUDGE = 1 + 1e-12  # more than what floating point can take off a threshold

# whole steps in n / d, without floating point
ROUNDINGS: Mapping[str, Callable[[Any, int], Any]] = {
    "nearest": lambda n, d: (2 * n + d) // (2 * d),  # ties upwards
    "ceil": lambda n, d: (n + d - 1) // d,
}


# levels ---------------------------------------------------------------------------------------------------------------


def levels(pixels: Tensor, k: int = GREYS, rounding: Rounding = "nearest") -> Tensor:
    """The level of each byte as uint8, where bytes 0 to 255 stand for -1 to 1 and k levels are evenly spaced. For 21
    levels it is (40 v + 255) // 510.
    """
    _check_bytes(pixels)
    table = _rule(rounding)(np.arange(256) * (_check_levels(k, 256) - 1), 255).astype(np.uint8)
    return torch.from_numpy(table[pixels.cpu().numpy()]).to(pixels.device)


def from_float(x: Tensor, k: int = GREYS, rounding: Rounding = "nearest") -> Tensor:
    """The level of each number in [-1, 1] as uint8; numbers are rounded to four decimals first."""
    rule = _rule(rounding)
    if not x.is_floating_point():
        raise _wrong_type(x, "floating-point numbers in [-1, 1]")
    outside = ~(x.abs() <= 1)  # NaN included
    if outside.any():
        raise DomainError(
            f"a pixel has the value {x[outside][0].item()}, at index {torch.nonzero(outside)[0].tolist()}",
            why="the levels divide the range from -1 to 1",
            fix="scale the images to [-1, 1] first: 2 * v / 255 - 1 for a byte v",
            code="pixel-out-of-range",
        )
    steps = np.floor(10_000 * (x.double().cpu().numpy() + 1) + 0.5).astype(np.int64)
    return torch.from_numpy(rule(steps * (_check_levels(k, 256) - 1), 20_000).astype(np.uint8)).to(x.device)


def values(index: Tensor, k: int = GREYS, low: float = -1.0, high: float = 1.0) -> Tensor:
    """Grey value of each level, evenly from `low` to `high`, as float32. On the scale of bytes, 0 to 255, the values of
    21 levels are exact.
    """
    steps = np.arange(_check_levels(k))
    table = (low * (k - 1 - steps) + high * steps) / (k - 1)
    return torch.from_numpy(table.astype(np.float32)[index.cpu().numpy()]).to(index.device)


def pooled(images: Tensor, side: int = 7) -> Tensor:
    """Images of bytes [n, h, w, c] averaged to [n, side, side, c], as numbers in [-1, 1]. With fewer values each has
    more of the budget.
    """
    _check_bytes(images)
    small = torch.nn.functional.adaptive_avg_pool2d(images.movedim(-1, 1).float(), side)
    return (small.movedim(1, -1) * (2 / 255) - 1).clamp(-1, 1)


def enlarged(features: Tensor, height: int, width: int) -> Tensor:
    """Averaged images at their original size again, each value repeated."""
    return torch.nn.functional.interpolate(features.movedim(-1, 1), (height, width)).movedim(1, -1)


# the response ---------------------------------------------------------------------------------------------------------


def keep_probability(epsilon: float, k: int = GREYS) -> float:
    return 1 / (1 + (_check_levels(k) - 1) * math.exp(-_check_epsilon(epsilon)))


def flip_probability(epsilon: float, k: int = GREYS) -> float:
    """The probability that the answer is one particular value other than the true one."""
    return keep_probability(epsilon, k) * math.exp(-epsilon)


def respond(index: Tensor, epsilon: float, k: int, source: NoiseSource) -> Tensor:
    """Randomised responses to values from 0 to k - 1, each at the cost of `epsilon`."""
    last = threshold(epsilon, k) - 1
    fits = not index.is_floating_point() and k - 1 <= torch.iinfo(index.dtype).max
    if not fits or (index.numel() and not 0 <= int(index.min()) <= int(index.max()) < k):
        raise DomainError(
            f"values of type {str(index.dtype).removeprefix('torch.')}, which are not all whole numbers from 0 "
            f"to {k - 1}, or cannot be",
            why=f"the response is one of {k} values",
            fix=f"number the values from 0 to {k - 1}",
            code="level-out-of-range",
        )
    given = index.cpu().numpy().reshape(-1)
    answers = given.copy()
    for number, start in enumerate(range(0, len(given), BLOCK)):
        part = answers[start : start + BLOCK]
        words = source.child("block", number).words(len(part)).cpu().numpy().view(np.uint64)
        replaced = np.flatnonzero(words >> np.uint64(32) <= np.uint64(last))
        part[replaced] = (words[replaced] & np.uint64(HALF - 1)) * np.uint64(k) >> np.uint64(32)
    return torch.from_numpy(answers.reshape(index.shape)).to(index.device)


def threshold(epsilon: float, k: int = GREYS) -> int:
    """Number of the 2^32 high halves of a random word at which the value is replaced: the smallest number, at least 1,
    that keeps the guarantee even for the least likely replacement."""
    rarest = HALF // _check_levels(k) / HALF
    odds = math.exp(-_check_epsilon(epsilon))
    replaced = odds / (odds - rarest * math.expm1(-epsilon))
    return min(HALF, max(1, math.ceil(HALF * NUDGE * replaced)))


# its price ------------------------------------------------------------------------------------------------------------


def composed_delta(epsilon: float, count: int, total: float, k: int = GREYS) -> float:
    """The delta at epsilon `total` of `count` independent responses of `epsilon` each, where all values may differ. It
    is exact but for rounding, which is added.

    The privacy loss of one response is epsilon, -epsilon or 0, so the loss of many is a multiple of epsilon, and its
    distribution is a power of a polynomial.
    """
    kept, flipped = keep_probability(epsilon, k), flip_probability(epsilon, k)
    one = np.zeros(2 * _check_count(count) + 1)
    one[[0, 1, -1]] = (k - 2) * flipped, kept, flipped
    law = np.fft.irfft(np.fft.rfft(one) ** count, len(one))[1 : count + 1]
    over = epsilon * np.arange(1, count + 1) - total
    return float(law[over > 0] @ -np.expm1(-over[over > 0])) + 1e-14 * count


@cache
def split_evenly(epsilon: float, count: int, delta: float = 0.0, k: int = GREYS) -> float:
    """The epsilon of each of `count` responses that together cost `epsilon` at `delta`: an equal share, or more where a
    delta allows it.
    """
    least = _check_epsilon(epsilon) / _check_count(count)
    check_range("delta", delta, BELOW_ONE, "response-delta", fix="use for instance 1e-5")
    if delta == 0:
        return least
    most = 2 * least
    while composed_delta(most, count, epsilon, k) <= delta:
        least, most = most, 2 * most
    while most - least > 1e-9 * most:
        middle = (least + most) / 2
        fits = composed_delta(middle, count, epsilon, k) <= delta
        least, most = (middle, most) if fits else (least, middle)
    return least


# refusals -------------------------------------------------------------------------------------------------------------


def _check_epsilon(epsilon: float) -> float:
    fix = "5 keeps nine grey values of ten, 1 keeps one of eight"
    check_range("epsilon of the randomised response", epsilon, POSITIVE, "response-epsilon", fix=fix)
    return epsilon


def _check_levels(k: int, most: int = MOST) -> int:
    allowed = Range(least=2, most=most, whole=True)
    check_range(
        "levels", k, allowed, "response-levels", why="it is the number of values that a response can have", fix="use 21"
    )
    return k


def _check_count(count: int) -> int:
    check_range("the number of values that share one budget", count, COUNT, "response-count")
    return count


def _rule(rounding: str) -> Callable[[Any, int], Any]:
    if rounding not in ROUNDINGS:
        raise ConfigError(f"rounding is {rounding!r}", fix=f"one of {', '.join(ROUNDINGS)}", code="response-rounding")
    return ROUNDINGS[rounding]


def _check_bytes(pixels: Tensor) -> None:
    if pixels.dtype != torch.uint8:
        raise _wrong_type(pixels, "bytes from 0 to 255")


def _wrong_type(x: Tensor, wanted: str) -> DomainError:
    return DomainError(
        f"the pixels have type {str(x.dtype).removeprefix('torch.')}",
        why=f"these levels are defined for {wanted}",
        fix="use the images as they were loaded, before they are normalised",
        code="pixel-wrong-type",
    )


LABELS = "labels are used as they are"
AS_RESIZED = "a pixel is a value of an image as data.side leaves it: one of a larger image may be part of several"
GIVEN = "the label is given, and how many images a client holds is public"


@dataclass(frozen=True)
class Responses(Open):
    """Randomised response on every value of an image, before training sees it: local privacy."""

    epsilon: float = 5.0
    of: Literal["value", "image"] = "value"
    label_epsilon: float | None = None
    delta: float = 0.0  # of the image's guarantee, where epsilon is its
    levels: int = 21
    rounding: Literal["nearest", "ceil"] = "nearest"
    side: int | None = None  # images are averaged to so many values a side first
    redraw: Literal["run", "round"] = "run"
    _values: int = 0  # of one image, known once the data are
    _classes: int = 0

    def __post_init__(self) -> None:
        for epsilon in (self.epsilon, self.label_epsilon):
            if epsilon is not None:
                keep_probability(epsilon, self.levels)  # refuses what is not an epsilon
        if self.delta and self.of == "value":
            raise ConfigError(
                f"delta = {self.delta} with an epsilon for each value",
                why="a single randomised response has an epsilon only, its delta is 0",
                fix='leave delta out, or set of = "image": then the values of an image share one epsilon and delta',
                code="delta-of-a-response",
            )

    def fitted(self, shape: tuple[int, ...], classes: int) -> Responses:
        """A copy for this number of classes and for images [h, w, c], among whose values its epsilon is divided; data
        that it cannot randomise are refused.
        """
        if len(shape) != 3:
            raise DomainError(
                f"randomised response on examples of shape {'x'.join(map(str, shape))}",
                why="its levels are the grey values of images",
                fix='use image data, such as data.source = "images" or "digits"',
                code="response-not-images",
            )
        if self.side is not None:
            why = f"each side of an image of {shape[0]} x {shape[1]} is reduced to this number of values"
            allowed, fix = Range(least=1, most=min(shape[:2])), f"set side to a number from 1 to {min(shape[:2])}"
            check_range("side", self.side, allowed, "response-side", why=why, fix=fix)
        if self.side is not None and any(length % self.side for length in shape[:2]):
            raise UnsoundGuarantee(
                f"side = {self.side} does not divide images of {shape[0]} x {shape[1]}",
                why="where windows overlap, one pixel enters several answers, but the promise counts one",
                fix=f"set a side that divides {shape[0]} and {shape[1]}",
                code="response-windows-overlap",
            )
        count = shape[0] * shape[1] * shape[2] if self.side is None else self.side**2 * shape[2]
        return replace(self, _values=count, _classes=classes)

    @property
    def each(self) -> float:
        """Epsilon of the response for one value."""
        return self.epsilon if self.of == "value" else split_evenly(self.epsilon, self._values, self.delta, self.levels)

    def claims(self, work: LocalWork, size: int, multiplier: float | None) -> list[Claim]:
        value = Response(self.each, self.levels)
        image: Event = Repeat(value, self._values)
        made = (
            Claim.to_everyone("pixel", "replace", self._drawn("value", value), "proved", (AS_RESIZED,)),
            Claim.to_everyone("image", "replace", self._drawn("image", image), "proved", (GIVEN,)),
            Claim.to_everyone("example", "replace", NonPrivate(LABELS), "none", (LABELS,))
            if self.label_epsilon is None
            else Claim.to_everyone("example", "replace", self._drawn("example", self._with_label(image)), "proved", ()),
        )
        return [claim for alike in zip(*made, strict=True) for claim in alike]  # adversary by adversary

    def _with_label(self, image: Event) -> Event:
        assert self.label_epsilon is not None
        return Together((image, Response(self.label_epsilon, self._classes)))

    def _drawn(self, what: str, event: Event) -> Event:
        return DrawnOnce(f"responses of {what}", event) if self.redraw == "run" else event

    def prepare(self, examples: Examples, source: NoiseSource) -> Examples:
        """Images after randomised response on each value; labels, too, where `label_epsilon` is set."""
        x, (h, w) = examples.x, examples.x.shape[1:3]
        index = levels(x, self.levels, self.rounding) if self.side is None else self._small(x)
        answers = values(respond(index, self.each, self.levels, source.child("values")), self.levels, 0.0, 255.0)
        if self.side is not None:
            answers = enlarged(answers, h, w)
        y = examples.y
        if self.label_epsilon is not None:
            y = respond(y, self.label_epsilon, self._classes, source.child("labels"))
        return Examples(answers.round().to(torch.uint8), y)  # to whole bytes, which no level shares with another

    def _small(self, x: Tensor) -> Tensor:
        assert self.side is not None
        return from_float(pooled(x, self.side), self.levels, self.rounding)

    def check(self, work: LocalWork, task: Task) -> None:
        _check_levels(self.levels, 256)  # of bytes
        _ = self.each  # refuses what is not a delta
