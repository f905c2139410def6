"""Ridge regression from features to images, fitted on images from elsewhere (see `attacks.inversion`).

Deviations: none; it is the plainest learned inverse.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.attacks.attacked_run import MeanView
from sordino.attacks.inversion import by_learning
from sordino.attacks.prototype_inversion import PrototypeInversion


@dataclass(frozen=True)
class LinearMap(PrototypeInversion, name="linear_map"):
    """Maps a mean of features back to an image by a linear map that it learned on images of its own."""

    def draw(self, view: MeanView) -> Tensor:
        with torch.no_grad():
            features = view.looks(view.elsewhere)
        return by_learning(features, view.elsewhere, view.mean[None])[0]
