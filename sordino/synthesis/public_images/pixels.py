"""Operations on uint8 images, channels last, with torch alone: size, colour, position, blur."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from sordino import keys
from sordino.data.dataset import Array

GREY = (0.299, 0.587, 0.114)  # luma of ITU-R BT.601
Shape = tuple[int, int, int]


def fit(images: Array, shape: Shape) -> Array:
    """Images [n, h, w, c] converted to the given size and number of channels."""
    if images.shape[1:] == shape:
        return np.ascontiguousarray(images)
    return to_bytes(resized(recoloured(to_float(images), shape[2]), shape))


def to_float(images: Array) -> Tensor:
    """Images as float32 [n, c, h, w] from 0 to 1."""
    return torch.from_numpy(np.array(images, np.uint8)).permute(0, 3, 1, 2).float() / 255


def to_bytes(images: Tensor) -> Array:
    return (images * 255).round().clamp(0, 255).byte().permute(0, 2, 3, 1).contiguous().numpy()


def recoloured(images: Tensor, channels: int) -> Tensor:
    if images.shape[1] == channels:
        return images
    if channels == 3:
        return images[:, :1].repeat(1, 3, 1, 1)
    return (images[:, :3] * torch.tensor(GREY)[:, None, None]).sum(1, keepdim=True)


def resized(images: Tensor, shape: Shape) -> Tensor:
    if images.shape[2:] == shape[:2]:
        return images
    return torch.nn.functional.interpolate(images, shape[:2], mode="bilinear", antialias=True)


def is_blank(image: Array) -> bool:
    """True for an image of a single colour, which a safety filter returns in place of a blocked one."""
    return bool((image == image[0, 0]).all())


def moved(images: Tensor, key: int) -> Tensor:
    """The images, each rotated by up to 15 degrees, sheared, scaled by up to a sixth and shifted by up to a tenth, with
    margins as in MNIST (a figure of 20 pixels in a frame of 28).
    """
    u = keys.uniform(key, 5 * len(images)).float().reshape(5, -1) * 2 - 1
    angle, shear, grow = u[0] * (math.pi / 12), u[1] * 0.15, 1.4 * torch.exp(u[2] * math.log(7 / 6))
    cos, sin = torch.cos(angle) * grow, torch.sin(angle) * grow
    rows = [torch.stack([cos, shear - sin, u[3] * 0.2], 1), torch.stack([sin, cos, u[4] * 0.2], 1)]
    grid = torch.nn.functional.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    return torch.nn.functional.grid_sample(images, grid, align_corners=False)


def shifted(images: Tensor, strength: float, key: int) -> Tensor:
    """The images as if taken by another camera: lower contrast, rotated hue, blur and noise, the same for all images.
    Strength 0 changes nothing.
    """
    grey = images.mean((1, 2, 3), keepdim=True)
    images = grey + (images - grey) * 0.75**strength + 0.04 * strength
    if images.shape[1] == 3:
        images = _turned(images, 0.6 * strength)
    near = torch.nn.functional.avg_pool2d(torch.nn.functional.pad(images, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    images = torch.lerp(images, near, 0.5 * min(strength, 2.0))
    noise = torch.randn(images.shape, generator=keys.generator(key))
    return (images + 0.03 * strength * noise).clamp(0, 1)


def _turned(images: Tensor, angle: float) -> Tensor:
    """Colours rotated about the grey axis (Rodrigues)."""
    cos, third = math.cos(angle), (1 - math.cos(angle)) / 3
    side = math.sin(angle) / math.sqrt(3)
    a, b, c = cos + third, third - side, third + side
    turn = torch.tensor([[a, b, c], [c, a, b], [b, c, a]])
    return torch.einsum("ij,njhw->nihw", turn, images)
