"""How alike two images are: PSNR, SSIM (Wang, Bovik, Sheikh and Simoncelli, IEEE Transactions on Image Processing
2004), and whether the right one is found among others.

Images are [n, c, h, w] between 0 and 1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

WINDOW, SPREAD = 11, 1.5  # of the Gaussian that SSIM looks through; smaller images get the largest odd window that fits
STEADY = (0.01**2, 0.03**2)


def psnr(a: Tensor, b: Tensor) -> Tensor:
    """The peak signal-to-noise ratio of each image in decibels; infinite for equal images."""
    return -10 * torch.log10(((a.double() - b.double()) ** 2).flatten(1).mean(1))


def ssim(a: Tensor, b: Tensor) -> Tensor:
    """The structural similarity of each image: the mean over its channels and all places where the window fits, 1
    for equal images.
    """
    count = len(a)
    a, b = a.double().flatten(0, 1)[:, None], b.double().flatten(0, 1)[:, None]  # a channel is an image of its own
    side = min(WINDOW, *(s - (s + 1) % 2 for s in a.shape[-2:]))
    bell = torch.exp(-((torch.arange(side).double() - side // 2) ** 2) / (2 * SPREAD**2))
    window = torch.outer(bell, bell)[None, None] / bell.sum() ** 2
    means = [F.conv2d(x, window) for x in (a, b)]
    (aa, bb, ab) = (F.conv2d(x * y, window) for x, y in ((a, a), (b, b), (a, b)))
    (light, contrast), (ma, mb) = STEADY, means
    top = (2 * ma * mb + light) * (2 * (ab - ma * mb) + contrast)
    bottom = (ma**2 + mb**2 + light) * (aa - ma**2 + bb - mb**2 + contrast)
    found: Tensor = (top / bottom).reshape(count, -1).mean(1)
    return found


def ranks(made: Tensor, truth: Tensor, others: Tensor) -> Tensor:
    """The place of each true image among it and `others`, by pixel distance to what was made of it: 1 is the
    nearest, a tie counts half.
    """
    flat, rest = made.double().flatten(1), others.double().flatten(1)
    own: Tensor = torch.linalg.vector_norm(flat - truth.double().flatten(1), dim=1, keepdim=True)
    far: Tensor = torch.cdist(flat, rest, compute_mode="donot_use_mm_for_euclid_dist")
    return 1 + (far < own).double().sum(1) + (far == own).double().sum(1) / 2
