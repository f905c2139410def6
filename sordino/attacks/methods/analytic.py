"""Phong, Aono, Hayashi, Wang and Moriai, IEEE TIFS 2018, section 3; Geiping et al., NeurIPS 2020, proposition 3.1.

Deviations: with several images each unit of the layer gives a mixture of those that it reacts to. A mixture on which
several units agree is one image alone; then come the most plausible mixtures. None is drawn twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.attacks.attacked_run import AttackedRun, UpdateView
from sordino.attacks.matching import variation
from sordino.attacks.reconstruction import Reconstruction
from sordino.types import Params

ALIKE = 1e-3  # mean square distance of two drawn images, at least
REACTS = 1e-6  # share of the largest slope below which a unit saw nothing
SAME = 1e-6  # mean square distance below which two units saw the same


@dataclass(frozen=True)
class Analytic(Reconstruction, name="analytic"):
    """Reads images off the gradient of a linear layer that sees pixels: the weights' gradient over the bias's."""

    def unfit(self, run: AttackedRun) -> str:
        return super().unfit(run) or (
            ""
            if first_linear(run.seen.before, run.setup.public.shape)
            else "the first layer of the model is not linear in all pixels"
        )

    def draw(self, view: UpdateView) -> Tensor:
        channels, height, width = view.elsewhere.shape[1:]
        found = first_linear(view.before, (height, width, channels))
        assert found is not None
        weight, bias = (view.gradient[name].double() for name in found)
        alive = bias.abs() > REACTS * bias.abs().max()
        mixtures = view.task.image(inputs(weight[alive], bias[alive]).reshape(-1, channels, height, width).float())
        return chosen(mixtures, bias[alive].abs().float(), view.images)


def first_linear(params: Params, shape: tuple[int, ...]) -> tuple[str, str] | None:
    """Names of weights and biases of the first layer, where it has an input for every value of an image."""
    name = next(iter(params))
    bias = f"{name.removesuffix('weight')}bias"
    sees = name.endswith("weight") and params[name].dim() == 2 and params[name].shape[1] == math.prod(shape)
    return (name, bias) if sees and bias in params else None


def inputs(weight: Tensor, bias: Tensor) -> Tensor:
    """Input of each unit: exact where it saw one image, since dL/dW = dL/db x and dL/db is a number."""
    return weight / bias[:, None]


def chosen(mixtures: Tensor, strength: Tensor, many: int) -> Tensor:
    """The likeliest images, none twice: those on which units agree; then those in the range of pixels, smooth, and from
    a unit that reacts.
    """
    flat = mixtures.flatten(1)
    agree = (torch.cdist(flat, flat) ** 2 / flat.shape[1] < SAME).sum(1)
    outside = ((mixtures - mixtures.clamp(0, 1)) ** 2).flatten(1).mean(1)
    rough = torch.stack([variation(one[None].clamp(0, 1)) for one in mixtures])
    worth = outside + 0.01 * rough + 0.05 * (1 - strength / strength.max().clamp_min(1e-30))
    found: list[Tensor] = []
    worth = worth - 1e3 * (agree - 1).clamp_max(3)
    for i in torch.argsort(worth).tolist():
        image = mixtures[i].clamp(0, 1)
        if all(float(((image - other) ** 2).mean()) > ALIKE for other in found):
            found.append(image)
        if len(found) == many:
            break
    return torch.stack(found) if found else mixtures[:0]  # no unit saw anything
