"""PriFedSync on PFLDyn with prototypes. Zheng et al., "Federated f-differential privacy", AISTATS 2021, as run by Li,
Xiao and Chen 2024.

`update_level` noises the whole update once per round, layer by layer, and proves nothing. `step_level` is closest to
the original: every step clips the gradients of a few small episodes and noises their sum; that is a mechanism, whose
price for an example is told without amplification.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from sordino.algorithms.pfl_dyn import PFLDyn, ServerState
from sordino.privacy.readers.episodes import CellGradient
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.as_published import UpdateLevel


def prifedsync(
    level: Literal["update_level", "step_level"] = "update_level",
    clip: float = 1.0,
    sigma: float = 0.45,
    scope: Literal["layer", "whole"] = "layer",
    episodes: int = 5,
    lr: float = 0.1,
    lr_decay: float = 0.997,
    local_steps: int = 25,
    batch_size: int = 50,
    alpha: float = 0.1,
    server_state: ServerState = "scaled",
    keep: float = 0.9,
    weight_decay: float = 1e-3,
    cohort_rate: float = 0.1,
) -> PFLDyn:
    """PFLDyn + clip + noise of 2 clip sigma / batch_size (update_level) or of sigma clip / episodes at every step
    (step_level).
    """
    made = PFLDyn(
        lr,
        local_steps=local_steps,
        batch_size=batch_size,
        lr_decay=lr_decay,
        weight_decay=weight_decay,
        alpha=alpha,
        server_state=server_state,
        keep=keep,
    )
    if level == "step_level":
        # a changed example turns its episode around: sigma * clip is half as many times that
        return replace(made, read=CellGradient(clip, episodes, "fresh", multiplier=sigma / 2))
    noise = UpdateLevel(sigma=sigma, clip=clip, scope=scope, batch=batch_size, steps=local_steps, rate=cohort_rate)
    return replace(made, uplink=Uplink(client=(noise,)))
