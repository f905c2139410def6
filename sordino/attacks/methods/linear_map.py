"""Ridge regression from features to images, fitted on images from elsewhere .

Deviations: none; it is the plainest learned inverse.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.attacks.attacked_run import MeanView
from sordino.attacks.prototype_inversion import PrototypeInversion


@dataclass(frozen=True)
class LinearMap(PrototypeInversion, name="linear_map"):
    """Maps a mean of features to an image by a linear map that was fitted on the attacker's images."""

    def draw(self, view: MeanView) -> Tensor:
        with torch.no_grad():
            features = view.looks(view.elsewhere)
        return fitted(features, view.elsewhere, view.mean[None])[0]


def fitted(features: Tensor, images: Tensor, prototypes: Tensor, ridge: float = 1e-3) -> Tensor:
    """Images from features by ridge regression on the attacker's own sample; `ridge` is a share of the mean variance
    of a feature.
    """
    z, x, centre = features.double(), images.double().flatten(1), features.double().mean(0)
    seen = (z - centre).T @ (z - centre) / len(z)
    weight = ridge * seen.diagonal().mean() * torch.eye(len(seen), dtype=seen.dtype)
    turned: Tensor = torch.linalg.solve(seen + weight, (z - centre).T @ (x - x.mean(0)) / len(z))
    made = x.mean(0) + (prototypes.double() - centre) @ turned
    return made.clamp(0, 1).float().reshape(len(prototypes), *images.shape[1:])
