"""UDP. Wei et al., "User-level privacy-preserving federated learning", IEEE TMC 2022, as compared in Li, Xiao and Chen 2024: FedAvg + clip to a median norm + noise.

Deviations: the median is that of the round before; the update is clipped, not the model. As published it proves nothing, and says so.
"""

from __future__ import annotations

from typing import Literal

from sordino.algorithms.fedavg import FedAvg
from sordino.privacy.as_published import UserLevel
from sordino.uplink import Uplink


def udp(
    epsilon: float = 10.0,
    delta: float = 1e-5,
    clip: float | None = None,
    first: float = 1.0,
    per: Literal["records", "batch"] = "records",
    horizon: int | None = None,
    cohort_rate: float = 0.1,
    lr: float = 0.1,
    lr_decay: float = 0.997,
    local_steps: int = 25,
    batch_size: int = 50,
    weight_decay: float = 1e-3,
    most_grad: float | None = 10.0,
) -> FedAvg:
    """FedAvg + clip + noise. `epsilon` is what the paper states, no budget; `horizon` the rounds for which one constant noise is computed."""
    noise = UserLevel(epsilon, delta, clip, first, per, batch_size, cohort_rate, horizon)
    return FedAvg(
        lr,
        None,
        local_steps,
        batch_size,
        lr_decay,
        weight_decay=weight_decay,
        most_grad=most_grad,
        uplink=Uplink(client=(noise,)),
    )
