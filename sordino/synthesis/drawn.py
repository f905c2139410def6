"""Images that a generator draws, as examples: they say nothing of anybody's, so whoever holds the generator may look at
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import torch

from sordino import keys
from sordino.keys import Key
from sordino.synthesis.generators.noise_images import Source, noise_set
from sordino.synthesis.generators.shape import GeneratorShape
from sordino.types import Examples

if TYPE_CHECKING:
    from torch import Tensor


def generated(
    shape: GeneratorShape,
    state: Mapping[str, Tensor],
    labels: Tensor,
    key: Key,
    rescale: Literal["fixed", "minmax"] = "fixed",
) -> Examples:
    from sordino.synthesis.generators import nets

    return Examples(nets.draw(shape, dict(state), labels, key, rescale), labels)


def all_alike(number: int, classes: int, key: Key) -> Tensor:
    """Labels for a number of images: equally many of each class, at least one, and random classes for the rest."""
    labels = torch.arange(classes).repeat_interleave(max(1, number // classes))
    rest = number % classes if number >= classes else 0
    return torch.cat([labels, keys.permutation(key, classes)[:rest]])


def noise_examples(
    classes: int, per_class: int, side: int, channels: int, key: int, source: Source, width: int
) -> Examples:
    """Images of pure noise with labels, the same for everybody and so made once in a process."""
    return _made(classes, per_class, side, channels, key, source, width, torch.get_default_device())


@lru_cache(maxsize=2)
def _made(
    classes: int, per_class: int, side: int, channels: int, key: int, source: Source, width: int, device: torch.device
) -> Examples:
    return Examples(*noise_set(classes, per_class, side, channels, key, source, width=width))


def pictures(x: Tensor, y: Tensor) -> Examples:
    """The images that everybody was handed, as examples."""
    return Examples(x, y)
