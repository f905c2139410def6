"""ACGAN's discriminator (Odena, Olah and Shlens, ICML 2017): 1.66 million parameters on 3x32x32 images of ten classes,
a short one up to 16x16.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sordino.synthesis.generators import streams
from sordino.synthesis.generators.nets import norm
from sordino.synthesis.generators.shape import GeneratorShape


class Halved(nn.Module):
    """Dropout of one half, by random bits from the stream of its training."""

    source: torch.Generator

    def forward(self, x: Tensor) -> Tensor:
        drawn = streams.words(self.source, -(-x.numel() // 8)).to(x.device)
        kept = drawn.view(torch.int8)[: x.numel()].as_strided(x.shape, x.stride()) >= 0
        return x * kept.to(x.dtype).mul_(2)


class Discriminator(nn.Module):
    """A network that tells real from made images (a logit), and classes (logits)."""

    def __init__(self, shape: GeneratorShape) -> None:
        super().__init__()
        widths = (16, 32, 64, 128, 256, 512) if shape.side > 16 else (16, 32, 64)
        layers: list[nn.Module] = []
        inputs, side = shape.channels, shape.side
        for i, width in enumerate(widths):
            stride = 2 if i % 2 == 0 else 1
            normed = [norm(width, running=False)] if i else []
            layers += [nn.Conv2d(inputs, width, 3, stride, 1, bias=False), *normed, nn.LeakyReLU(0.2), Halved()]
            inputs, side = width, -(-side // stride)
        self.body = nn.Sequential(*layers, nn.Flatten())
        self.real, self.label = nn.Linear(inputs * side**2, 1), nn.Linear(inputs * side**2, shape.classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.body(x)
        return self.real(z).flatten(), self.label(z)

    def drop_by(self, source: torch.Generator) -> None:
        for module in self.modules():
            if isinstance(module, Halved):
                module.source = source


def discriminator(shape: GeneratorShape) -> Discriminator:
    with torch.device("meta"):
        return Discriminator(shape)
