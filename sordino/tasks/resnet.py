"""ResNet18 for small images (He et al., CVPR 2016): a 3x3 stem without pooling, four stages of two basic blocks, mean
pool, linear head.

The network is a `Sequential` whose last module is the head, so that features can be taken before it. It uses GroupNorm;
or BatchNorm, as in the paper, in runs without a privacy guarantee.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from sordino.errors import ConfigError

Norm = Literal["group", "batch", "none"]
STAGES = ((1, 1), (2, 2), (4, 2), (8, 2))  # times the width, and the stride of the first block


def _convolution(inputs: int, outputs: int, side: int, stride: int, norm: Norm, groups: int) -> nn.Sequential:
    """A convolution followed by its norm, or with a bias where there is no norm."""
    convolution = nn.Conv2d(inputs, outputs, side, stride, padding=side // 2, bias=norm == "none")
    if norm == "none":
        return nn.Sequential(convolution)
    return nn.Sequential(convolution, nn.GroupNorm(groups, outputs) if norm == "group" else nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """Residual block: two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where the shapes differ."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm, groups: int) -> None:
        super().__init__()
        self.first = _convolution(inputs, outputs, 3, stride, norm, groups)
        self.second = _convolution(outputs, outputs, 3, 1, norm, groups)
        same = stride == 1 and inputs == outputs
        self.short = nn.Identity() if same else _convolution(inputs, outputs, 1, stride, norm, groups)

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.second(torch.relu(self.first(x)))
        return torch.relu(inner + self.short(x))


def resnet18(
    shape: tuple[int, ...], classes: int, norm: Norm = "group", groups: int = 32, width: int = 64
) -> nn.Sequential:
    """ResNet-18 (He et al., CVPR 2016) for images of 32x32: 3x3 stem, no max-pooling, GroupNorm or (in runs without a
    privacy guarantee) BatchNorm, 11,173,962 parameters for 10 classes.
    """
    if norm not in get_args(Norm):
        raise ConfigError(
            f"resnet18 has no norm {norm!r}",
            fix='set norm = "group" or "none"; "batch" only in a run without any guarantee',
            code="resnet-norm",
        )
    layers: list[nn.Module] = [*_convolution(shape[0], width, 3, 1, norm, groups), nn.ReLU()]
    inputs = width
    for times, stride in STAGES:
        layers += [
            Block(inputs, times * width, stride, norm, groups),
            Block(times * width, times * width, 1, norm, groups),
        ]
        inputs = times * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))
