"""Randomised response, local privacy for images: every value is randomised once, before training sees it. Sun, Ding and
Cheng, Computer Science (China) 51(6A), 2024.

Guarantees: whatever is done with the answers, the probabilities of a result under two images that differ in one value
differ by a factor of at most e^epsilon, and under any two images by that factor for every value in which they differ:
`epsilon` = 5 for each of 784 values is 3,920 for an image. Labels stay exact unless `label_epsilon` is set, and then an
example is protected as a whole. `of`: `epsilon` is for each value, or for the whole image, divided evenly over its
values (by exact composition where `delta` allows it).

Answers that are drawn once in a run and used in every round (`Once`) are paid once; answers drawn again in every round
are paid in every round. Zero is grey: test images are neither rounded nor randomised. The published text calls its
scheme locally private for one value; its claim for a user's data is the number for an image here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

from sordino.accounting.events import Event, NonPrivate, Once, Repeat, Response, Together
from sordino.errors import ConfigError, DomainError, UnsoundGuarantee
from sordino.privacy.noise import randomised_response as rr
from sordino.privacy.readers.open import Open
from sordino.types import Claim, Examples, LocalWork, NoiseSource, Task, Tensor

LABELS = "labels are used as they are"
GIVEN = "the label is given, and how many images a client holds is public"


@dataclass(frozen=True)
class Responses(Open):
    """Reader with local privacy: randomised response on every value of an image, before training sees it."""

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
                rr.keep_probability(epsilon, self.levels)  # refuses what is not an epsilon
        if self.delta and self.of == "value":
            raise ConfigError(
                f"delta = {self.delta} with an epsilon for each value",
                why="a single randomised response has an epsilon only, its delta is 0",
                fix='leave delta out, or set of = "image": then the values of an image share one epsilon and delta',
                code="delta-of-a-response",
            )

    def fitted(self, shape: tuple[int, ...], classes: int) -> Responses:
        """Copy of this reader that is fitted to images [h, w, c] and to so many classes, with which its epsilon is
        divided; refuses data that it cannot randomise.
        """
        if len(shape) != 3:
            raise DomainError(
                f"randomised response on examples of shape {'x'.join(map(str, shape))}",
                why="its levels are the grey values of images",
                fix='use image data, such as data.source = "images" or "digits"',
                code="response-not-images",
            )
        if self.side is not None and not 1 <= self.side <= min(shape[:2]):
            raise ConfigError(
                f"side is {self.side}",
                why=f"each side of an image of {shape[0]} x {shape[1]} is reduced to this number of values",
                fix=f"set side to a number from 1 to {min(shape[:2])}",
                code="response-side",
            )
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
        return (
            self.epsilon if self.of == "value" else rr.split_evenly(self.epsilon, self._values, self.delta, self.levels)
        )

    def claims(self, work: LocalWork, size: int, multiplier: float | None) -> list[Claim]:
        value = Response(self.each, self.levels)
        image: Event = Repeat(value, self._values)
        made = (
            Claim.to_everyone("pixel", "replace", self._drawn("value", value), "proved", ()),
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
        return Once(f"responses of {what}", event) if self.redraw == "run" else event

    def prepare(self, examples: Examples, source: NoiseSource) -> Examples:
        """Images after randomised response on each value; labels, too, where `label_epsilon` is set."""
        x, (h, w) = examples.x, examples.x.shape[1:3]
        index = rr.levels(x, self.levels, self.rounding) if self.side is None else self._small(x)
        answers = rr.values(rr.respond(index, self.each, self.levels, source.child("values")), self.levels, 0.0, 255.0)
        if self.side is not None:
            answers = rr.enlarged(answers, h, w)
        y = examples.y
        if self.label_epsilon is not None:
            y = rr.respond(y, self.label_epsilon, self._classes, source.child("labels"))
        return Examples(answers.round().to(torch.uint8), y)  # to whole bytes, which no level shares with another

    def _small(self, x: Tensor) -> Tensor:
        assert self.side is not None
        return rr.from_float(rr.pooled(x, self.side), self.levels, self.rounding)

    def check(self, work: LocalWork, task: Task) -> None:
        if self.levels > 256:
            raise ConfigError(
                f"levels is {self.levels}",
                why="images are bytes, which have 256 different values",
                fix="set levels to at most 256",
                code="response-levels",
            )
        _ = self.each  # refuses what is not a delta
