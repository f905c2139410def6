"""DP-Prox, DP-FedAvg and their central-data baseline DP-SGD. "Consideration of FedProx in Privacy Protection",
Electronics 12(20), 2023, Algorithms 1 and 2.

FedProx, its updates clipped as whole vectors and summed, one Gaussian vector per round on the sum (McMahan et al., ICLR
2018; Geyer et al., 2017). A device is the unit. The proximal term and partial work read no data of others and cost
nothing; DP-FedAvg is DP-Prox with mu = 0, its stragglers are dropped by [stragglers] policy = "drop".

Deviations: `rigorous` (default) draws a hidden Poisson cohort and divides by its expected size; `published` divides by
those who answered and accounts for a cohort of fixed size as if it were a Poisson sample, which is said with every
number; `noise_placement = "per_client"` is the other reading of Algorithm 2.
"""

from __future__ import annotations

from typing import Literal

from sordino.algorithms.fedavg import FedAvg
from sordino.algorithms.fedprox import FedProx
from sordino.privacy.noise.laws import GaussianNoise
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.stages import Clip, Noise
from sordino.types import Neighbours

AS_POISSON = "as published: a cohort of fixed size is accounted for as a Poisson sample, and the sum is divided by the number of clients that answered"


def dp_prox(
    clip: float = 1.0,
    mu: float = 1.0,
    variant: Literal["rigorous", "published"] = "rigorous",
    noise_placement: Literal["once", "per_client"] = "once",
    neighbours: Neighbours = "add_remove",
    multiplier: float | None = None,
    lr: float = 0.01,
    local_epochs: int | None = None,
    local_steps: int | None = None,
    batch_size: int | Literal["full"] = 10,
) -> FedProx:
    """FedProx + clip + one noise per round. `neighbours` = "zero_out" or "replace" fits cohorts that everybody sees."""
    uplink = central(clip, variant, noise_placement, neighbours, multiplier)
    return FedProx(lr, local_epochs, local_steps, batch_size, uplink=uplink, mu=mu)


def dp_fedavg(
    clip: float = 1.0,
    variant: Literal["rigorous", "published"] = "rigorous",
    noise_placement: Literal["once", "per_client"] = "once",
    neighbours: Neighbours = "add_remove",
    multiplier: float | None = None,
    lr: float = 0.01,
    local_epochs: int | None = None,
    local_steps: int | None = None,
    batch_size: int | Literal["full"] = 10,
) -> FedAvg:
    """FedAvg + clip + one noise per round."""
    uplink = central(clip, variant, noise_placement, neighbours, multiplier)
    return FedAvg(lr, local_epochs, local_steps, batch_size, uplink=uplink)


def dp_sgd(clip: float = 1.0, rate: float = 0.01, lr: float = 0.1, multiplier: float | None = None) -> FedAvg:
    """One noised step a round on a Poisson sample of the records; the unit is a record. On central data: partition =
    {scheme = "iid", clients = 1}.
    """
    read = NoisyGradient(
        clip, GaussianNoise(), sampling="poisson", rate=rate, neighbours="add_remove", multiplier=multiplier
    )
    return FedAvg(lr, None, 1, "full", read=read)


def central(
    clip: float, variant: str, noise_placement: str, neighbours: Neighbours, multiplier: float | None
) -> Uplink:
    noise = Noise(GaussianNoise(), neighbours, multiplier)
    if (
        noise_placement == "per_client"
    ):  # a draw for each upload, so that the deviation of the sum grows with the square root of the cohort
        return Uplink(client=(Clip(clip), Noise(GaussianNoise(), "zero_out", multiplier)))
    if variant == "published":
        return Uplink(client=(Clip(clip),), server=(noise,), denominator="received", published=AS_POISSON)
    return Uplink(client=(Clip(clip),), server=(noise,))
