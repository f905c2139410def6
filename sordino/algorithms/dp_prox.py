"""DP-Prox, DP-FedAvg and their central-data baseline DP-SGD. "Consideration of FedProx in Privacy Protection",
Electronics 12(20), 2023, Algorithms 1 and 2.

FedProx, its updates clipped as whole vectors and summed, one Gaussian vector per round on the sum (McMahan et al., ICLR
2018; Geyer et al., 2017). A device is the unit. The proximal term and partial work use no data of other clients and
cost no privacy; DP-FedAvg is DP-Prox with mu = 0, its stragglers are dropped by [stragglers] policy = "drop".

Deviations: `rigorous` (default) draws a hidden Poisson cohort and divides by its expected size; `published` divides by
those who answered and accounts for a cohort of fixed size as if it were a Poisson sample. That proves nothing, and an
audit refutes it: what it prints is `nominal`. `noise_placement = "per_client"` is the other reading of Algorithm 2, in
which each upload keeps its promise alone, and `variant` changes nothing.
"""

from __future__ import annotations

from typing import Literal

from sordino.algorithms.fedavg import FedAvg
from sordino.algorithms.fedprox import FedProx
from sordino.algorithms.preset import preset
from sordino.privacy.noise import GaussianNoise
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.stages import Clip, Noise
from sordino.types import Neighbours

Variant = Literal["rigorous", "published"]
Placement = Literal["once", "per_client"]
AS_POISSON = (
    "as published: a cohort of fixed size is accounted for as a Poisson sample, "
    "and the sum is divided by the number of clients that answered"
)


@preset(FedProx(lr=0.01, mu=1.0))
def dp_prox(
    base: FedProx,
    clip: float = 1.0,
    variant: Variant = "rigorous",
    noise_placement: Placement = "once",
    neighbours: Neighbours = "zero_out",
    multiplier: float | None = None,
) -> FedProx:
    """FedProx with client-level privacy: clipped updates, and noise on their sum in every round. `neighbours` =
    "replace" fits visible cohorts.
    """
    return base.behind(uplink=central(clip, variant, noise_placement, neighbours, multiplier))


@preset(FedAvg(lr=0.01))
def dp_fedavg(
    base: FedAvg,
    clip: float = 1.0,
    variant: Variant = "rigorous",
    noise_placement: Placement = "once",
    neighbours: Neighbours = "zero_out",
    multiplier: float | None = None,
) -> FedAvg:
    """FedAvg with client-level privacy: clipped updates, and noise on their sum in every round."""
    return base.behind(uplink=central(clip, variant, noise_placement, neighbours, multiplier))


@preset(FedAvg(local_steps=1, batch_size="full"), fixed=("local_steps", "local_epochs", "batch_size"))
def dp_sgd(base: FedAvg, clip: float = 1.0, rate: float = 0.01, multiplier: float | None = None) -> FedAvg:
    """One noised step a round on a Poisson sample of the records; the unit is a record. On central data: partition =
    {scheme = "iid", clients = 1}.
    """
    return base.behind(
        NoisyGradient(
            clip, GaussianNoise(), sampling="poisson", rate=rate, neighbours="zero_out", multiplier=multiplier
        )
    )


def central(
    clip: float, variant: Variant, placement: Placement, neighbours: Neighbours, multiplier: float | None
) -> Uplink:
    """Uplink that clips updates and adds one noise to their sum, or (placement "per_client") a draw of noise to each
    upload.

    With a draw for each upload the standard deviation of the summed noise grows with the square root of the cohort's
    size.
    """
    noise = Noise(GaussianNoise(), neighbours, multiplier)
    if placement == "per_client":
        return Uplink(client=(Clip(clip), noise))
    if variant == "published":
        return Uplink(client=(Clip(clip),), server=(noise,), denominator="received", published=AS_POISSON)
    return Uplink(client=(Clip(clip),), server=(noise,))
