"""Client-side noise on one full-batch step: laplace, gaussian_simple, gaussian_gdp, gaussian_sampled, whole_update,
noisy_steps, convex_stable.

One full-batch step with per-record clipped gradients and noise on the uploaded parameters. Noise of scale eta*2C/n on
the parameters is the same law as noise of scale 2C/n on the averaged gradient followed by the step, so each method is
FedAvg with a noisy reader: eta does not change the privacy. Sensitivity and classic composition: Dwork and Roth 2014;
exact composition: Dong, Roth and Su 2022; sampling: Abadi et al. 2016.

Deviations: clients taken round-robin with exact exposure counts per client; `gaussian_sampled(variant="published")`
reproduces a public experiment whose fixed subset has no amplification, and is labelled nominal; there the noise follows
the current step size, not the first.
"""

from __future__ import annotations

from typing import Literal

from sordino.algorithms.fedavg import FedAvg
from sordino.errors import UnsoundGuarantee
from sordino.privacy.noise.laws import GaussianNoise, LaplaceNoise
from sordino.privacy.readers.convex_stable import ConvexStable
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.stages import Clip, Noise, Weigh
from sordino.types import Neighbours, Reader

Batch = int | Literal["full"]
Decay = Literal["round", "participation"]


def laplace(
    clip: float = 50.0,
    lr: float = 0.1,
    lr_decay: float = 1.0,
    lr_decay_per: Decay = "participation",
    local_steps: int = 1,
    batch_size: Batch = "full",
    momentum: float = 0.0,
    multiplier: float | None = None,
) -> FedAvg:
    """L1 clip, Laplace noise; epsilons of a client's exposures add up."""
    read = NoisyGradient(clip, LaplaceNoise(), multiplier=multiplier)
    return _one_step(read, lr, lr_decay, lr_decay_per, local_steps, batch_size, momentum)


def gaussian_simple(
    clip: float = 10.0,
    lr: float = 0.1,
    lr_decay: float = 1.0,
    lr_decay_per: Decay = "participation",
    local_steps: int = 1,
    batch_size: Batch = "full",
    momentum: float = 0.0,
    checked: bool = False,
) -> FedAvg:
    """L2 clip, Gaussian noise by the textbook formula; (epsilon, delta) pairs add up. Correct and far from tight."""
    read = NoisyGradient(clip, GaussianNoise("classic_checked" if checked else "classic"))
    return _one_step(read, lr, lr_decay, lr_decay_per, local_steps, batch_size, momentum)


def gaussian_gdp(
    clip: float = 10.0,
    lr: float = 0.1,
    lr_decay: float = 1.0,
    lr_decay_per: Decay = "participation",
    local_steps: int = 1,
    batch_size: Batch = "full",
    momentum: float = 0.0,
    multiplier: float | None = None,
) -> FedAvg:
    """L2 clip, Gaussian noise by exact composition: the least noise for a given (epsilon, delta)."""
    read = NoisyGradient(clip, GaussianNoise(), multiplier=multiplier)
    return _one_step(read, lr, lr_decay, lr_decay_per, local_steps, batch_size, momentum)


def gaussian_sampled(
    clip: float = 10.0,
    rate: float = 0.01,
    variant: Literal["rigorous", "published"] = "rigorous",
    lr: float = 0.1,
    lr_decay: float = 1.0,
    lr_decay_per: Decay = "participation",
    multiplier: float | None = None,
) -> FedAvg:
    """A secret Poisson sample of the records at every exposure (rigorous), or one subset drawn once (published)."""
    if variant == "published":
        read = NoisyGradient(clip, GaussianNoise(), sampling="fixed_subset", rate=rate, multiplier=multiplier)
    else:
        read = NoisyGradient(
            clip, GaussianNoise(), sampling="poisson", rate=rate, neighbours="add_remove", multiplier=multiplier
        )
    return _one_step(read, lr, lr_decay, lr_decay_per, 1, "full", 0.0)


def whole_update(
    radius: float = 1.0,
    noise: Literal["gaussian", "laplace"] = "gaussian",
    neighbours: Neighbours = "replace",
    lr: float = 0.1,
    lr_decay: float = 1.0,
    lr_decay_per: Decay = "round",
    local_epochs: int | None = None,
    local_steps: int | None = None,
    batch_size: Batch = 10,
    multiplier: float | None = None,
) -> FedAvg:
    """Any local training; the whole update is clipped and noised, so the unit is all of a client's data."""
    mechanism = LaplaceNoise() if noise == "laplace" else GaussianNoise()
    order: Literal[1, 2] = 1 if noise == "laplace" else 2
    uplink = Uplink(client=(Clip(radius, order), Noise(mechanism, neighbours, multiplier), Weigh()))
    return FedAvg(lr, local_epochs, local_steps, batch_size, lr_decay, lr_decay_per, uplink=uplink)


def noisy_steps(
    clip: float = 10.0,
    lr: float = 0.1,
    lr_decay: float = 1.0,
    lr_decay_per: Decay = "participation",
    local_steps: int | None = None,
    local_epochs: int | None = None,
    batch_size: Batch = "full",
    multiplier: float | None = None,
) -> FedAvg:
    """Every local step is noised: E full-batch steps cost E exposures; fixed batches cost one exposure per epoch."""
    sampling: Literal["full", "fixed_batches"] = "full" if batch_size == "full" else "fixed_batches"
    steps = local_steps if local_steps is not None or local_epochs is not None else 5
    read = NoisyGradient(clip, GaussianNoise(), sampling=sampling, multiplier=multiplier)
    return FedAvg(lr, local_epochs, steps, batch_size, lr_decay, lr_decay_per, read=read)


def convex_stable(
    radius: float = 4.0,
    local_steps: int = 5,
    lr: float = 0.1,
    multiplier: float | None = None,
) -> FedAvg:
    """Logistic regression without clipping: E full-batch steps, one noise at the end (model = {name = "logistic",
    radius = ...}).
    """
    return FedAvg(lr, None, local_steps, "full", read=ConvexStable(radius, lr, multiplier))


def _one_step(
    read: Reader, lr: float, decay: float, per: Decay, local_steps: int, batch_size: Batch, momentum: float
) -> FedAvg:
    """The bound 2C/n holds for exactly one full-batch step from the received model."""
    if local_steps != 1:
        raise UnsoundGuarantee(
            f"{local_steps} local steps under a one-step bound",
            why="after the first step the runs with and without a record stand at different weights and nothing cancels: "
            "the true sensitivity is up to |D| times larger",
            fix="use whole_update (bound the whole update), noisy_steps (pay for every step), "
            "or convex_stable (logistic regression without clipping)",
            code="one-step-only",
        )
    if batch_size != "full":
        raise UnsoundGuarantee(
            f"batches of {batch_size} under a one-step bound",
            why="a record touches one batch, but the next batch starts from weights that already differ",
            fix='batch_size = "full", or noisy_steps with local_epochs and batch_size',
            code="full-batch-only",
        )
    if momentum:
        raise UnsoundGuarantee(
            f"momentum {momentum} at the client",
            why="a momentum buffer carries un-noised gradients from one exposure into the next",
            fix="use plain SGD at the client; momentum at the server costs nothing",
            code="client-momentum",
        )
    return FedAvg(lr, None, 1, "full", decay, per, read=read)
