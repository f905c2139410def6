"""DP-SCAFFOLD. Noble, Bellet and Dieuleveut, "Differentially private federated learning on heterogeneous data", AISTATS
2022: SCAFFOLD whose gradients are clipped and noised.

The control variates are made of noised iterates and cost nothing more. `rigorous` samples each step's records in secret
and clips whole gradients, which is accounted for exactly; `published` is the set-up of Li, Xiao and Chen 2024, whose
clip is the median norm of each parameter: it proves nothing.

Deviations: no warm start.
"""

from __future__ import annotations

from typing import Literal

from sordino.algorithms.preset import preset
from sordino.algorithms.scaffold import Scaffold
from sordino.privacy.noise import GaussianNoise
from sordino.privacy.readers.median_clip import MedianClip
from sordino.privacy.readers.noisy_gradient import NoisyGradient


@preset(Scaffold(lr_decay=0.997, local_steps=25, batch_size=50, weight_decay=1e-3, most_grad=10.0))
def dp_scaffold(
    base: Scaffold,
    variant: Literal["rigorous", "published"] = "rigorous",
    clip: float = 1.0,
    rate: float = 0.1,
    sigma: float = 1.0,
    cohort_rate: float = 0.1,
    multiplier: float | None = None,
    *,
    batch_size: int,
) -> Scaffold:
    """SCAFFOLD with clipped gradients and noise at every local step. Variant `rigorous` takes `clip`, `rate` (of a
    client's records per step) and `multiplier`; variant `published` takes `sigma` and `batch_size`.
    """
    if variant == "published":
        return base.behind(MedianClip(sigma, cohort_rate))
    sampled = NoisyGradient(clip, GaussianNoise(), None, "poisson", rate, "zero_out", multiplier)
    return base.having(batch_size="full").behind(sampled)
