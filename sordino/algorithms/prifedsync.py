"""PriFedSync on PFLDyn with prototypes. Zheng et al., "Federated f-differential privacy", AISTATS 2021, as run by Li,
Xiao and Chen 2024.

`update_level` noises the whole update once per round, layer by layer, and proves nothing. `step_level` is closest to
the original: every step clips the gradients of a few small episodes and noises their sum; this is a private mechanism,
whose cost for an example is computed without amplification.
"""

from __future__ import annotations

from typing import Literal

from sordino.algorithms.pfl_dyn import BY_STEPS, PFLDyn
from sordino.algorithms.preset import preset
from sordino.privacy.readers.episodes import CellGradient
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.as_published import UpdateLevel


@preset(PFLDyn(), fixed=BY_STEPS)
def prifedsync(
    base: PFLDyn,
    level: Literal["update_level", "step_level"] = "update_level",
    clip: float = 1.0,
    sigma: float = 0.45,
    scope: Literal["layer", "whole"] = "layer",
    episodes: int = 5,
    cohort_rate: float = 0.1,
    *,
    local_steps: int,
    batch_size: int,
) -> PFLDyn:
    """PFLDyn (personalised FedDyn) with noise of standard deviation 2 clip sigma / batch_size on clipped updates
    (`update_level`), or of sigma clip / episodes on clipped gradients at every local step (`step_level`).
    """
    if level == "step_level":
        # a changed example turns its episode around: sigma * clip is half as many times that
        return base.behind(CellGradient(clip, episodes, "fresh", multiplier=sigma / 2))
    noise = UpdateLevel(sigma=sigma, clip=clip, scope=scope, batch=batch_size, steps=local_steps, rate=cohort_rate)
    return base.behind(uplink=Uplink(client=(noise,)))
