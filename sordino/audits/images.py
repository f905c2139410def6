"""One value of an image, or all of them, against the other extreme: how often an answer is the one or the other.

Many made-up images are answered for at once, each a trial of its own, through the reader's own `prepare`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from sordino.audits.noise_sources import Rare, Weak
from sordino.audits.pairs import Pair, Release
from sordino.privacy.readers.responses import Responses
from sordino.types import Examples, NoiseSource, Unit

ROWS = 2000
SIDE = 4  # of the made-up images: what is answered for one value does not depend on the others
WORDS: dict[Unit, str] = {
    "pixel": "a black value against a white one",
    "image": "a black image against a white one",
    "example": "a black image of one class against a white one of another",
}


def pair(reader: Responses, unit: Unit) -> Pair:
    """The neighbours of an image. `reader` is fitted: an epsilon for an image stays cut over as many values as real
    images have.
    """
    each = replace(reader, epsilon=reader.each, of="value", delta=0.0, side=None)

    def release(white: bool) -> Release:
        x = torch.zeros(ROWS, SIDE, SIDE, 1, dtype=torch.uint8)
        x[:, 0, 0, 0] = 255 * white
        if unit != "pixel":
            x[:] = 255 * white
        y = torch.full((ROWS,), int(white and unit == "example"), dtype=torch.int64)

        def seen(source: NoiseSource) -> Tensor:
            coins = Rare(source.inner, source.factor) if isinstance(source, Weak) else source
            answers = each.prepare(Examples(x, y), coins)
            values = answers.x.flatten(1).double() / 255
            told = answers.y.double()[:, None] if unit == "example" else values[:, :0]
            return torch.cat([values[:, :1] if unit == "pixel" else values, told], 1)

        return seen

    return Pair(WORDS[unit], release(False), release(True), score=_extremes)


def _extremes(seen: Tensor) -> Tensor:
    """How many answers are exactly the one extreme, less those that are the other."""
    return ((seen == 1).double() - (seen == 0).double()).sum(1)
