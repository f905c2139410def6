"""Augmentation: random changes of training images. Each change is a function of one key per image, so it is the same in
a loop, in a stack of clients and in another process.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sordino import keys
from sordino.fast.factored import take

PAD = 4


def crop_flip(x: Tensor, draws: Tensor) -> Tensor:
    """A random window of each image [n, c, h, w] after 4 zeros were put on each side, mirrored in half of the cases.

    Zero is the mean of the data: images come here standardised.
    """
    n, c, h, w = x.shape
    u = keys.uniform(keys.fold(draws, "augment"), 3)
    down, right = (u[:, :2] * (2 * PAD + 1)).long().unbind(1)
    columns = torch.where(u[:, 2:] < 0.5, torch.arange(w - 1, -1, -1), torch.arange(w)) + right[:, None]
    padded = torch.nn.functional.pad(x.movedim(1, -1), (0, 0, PAD, PAD, PAD, PAD))
    row = torch.arange(n)[:, None] * padded.shape[1] + down[:, None] + torch.arange(h)
    where = row[:, :, None] * padded.shape[2] + columns[:, None]
    found = take(padded.reshape(-1, c), where.flatten())
    # in channels-last memory, as they came
    return found.view(n, 1, h, w) if c == 1 else found.view(n, h, w, c).movedim(-1, 1)


AUGMENT: dict[str, Callable[[Tensor, Tensor], Tensor] | None] = {"none": None, "crop_flip": crop_flip}
