"""Client-side noise on one full-batch step: laplace, gaussian_simple, gaussian_gdp, gaussian_sampled, whole_update,
noisy_steps, convex_stable.

One full-batch step with per-record clipped gradients and noise on the uploaded parameters. Noise of scale eta*2C/n on
the parameters is the same law as noise of scale 2C/n on the averaged gradient followed by the step, so each method is
FedAvg with a noisy reader: eta does not change the privacy. Sensitivity and classic composition: Dwork and Roth 2014;
exact composition: Dong, Roth and Su 2022; sampling: Abadi et al. 2016.

Deviations: clients are sampled round-robin, each a number of times that is known beforehand;
`gaussian_sampled(variant="published")` reproduces a public experiment whose fixed subset has no amplification, and is
labelled nominal; there the noise follows the current step size, not the first.
"""

from __future__ import annotations

from typing import Literal

from sordino.algorithms.fedavg import FedAvg
from sordino.algorithms.preset import preset
from sordino.errors import UnsoundGuarantee
from sordino.privacy.noise import LAWS, GaussianNoise, LaplaceNoise, LawName
from sordino.privacy.readers.convex_stable import ConvexStable
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.stages import Clip, Noise, Weigh
from sordino.types import Neighbours

ONE_STEP = FedAvg(lr_decay_per="participation", local_steps=1, batch_size="full")
# the gate takes these steps itself, at one step size; nothing that a client does to its own steps would reach them
STEPS_OF_THE_GATE = (
    "local_epochs", "batch_size", "lr_decay", "lr_decay_per", "weight_decay", "momentum", "most_grad",
)  # fmt: skip


@preset(ONE_STEP)
def laplace(base: FedAvg, clip: float = 50.0, multiplier: float | None = None) -> FedAvg:
    """One full-batch step with an L1 clip and Laplace noise; the epsilons of a client's rounds add up."""
    return one_step(base).behind(NoisyGradient(clip, LaplaceNoise(), multiplier=multiplier))


@preset(ONE_STEP)
def gaussian_simple(base: FedAvg, clip: float = 10.0, checked: bool = False) -> FedAvg:
    """One full-batch step with an L2 clip and Gaussian noise by the textbook formula; (epsilon, delta) pairs add up.
    Correct and far from tight. `checked`: an epsilon above 1 is allowed where the exact curve confirms the formula.
    """
    return one_step(base).behind(NoisyGradient(clip, GaussianNoise("classic_checked" if checked else "classic")))


@preset(ONE_STEP)
def gaussian_gdp(base: FedAvg, clip: float = 10.0, multiplier: float | None = None) -> FedAvg:
    """One full-batch step with an L2 clip and Gaussian noise by exact composition: the least noise for a given
    (epsilon, delta).
    """
    return one_step(base).behind(NoisyGradient(clip, GaussianNoise(), multiplier=multiplier))


@preset(ONE_STEP)
def gaussian_sampled(
    base: FedAvg,
    clip: float = 10.0,
    rate: float = 0.01,
    variant: Literal["rigorous", "published"] = "rigorous",
    multiplier: float | None = None,
) -> FedAvg:
    """One noised step on a secret Poisson sample of the records in every round (rigorous), or on one subset drawn once
    (published).
    """
    read = NoisyGradient(
        clip, GaussianNoise(), sampling="poisson", rate=rate, neighbours="zero_out", multiplier=multiplier
    )
    if variant == "published":
        read = NoisyGradient(clip, GaussianNoise(), sampling="fixed_subset", rate=rate, multiplier=multiplier)
    return one_step(base).behind(read)


@preset(FedAvg())
def whole_update(
    base: FedAvg,
    radius: float = 1.0,
    noise: LawName = "gaussian",
    neighbours: Neighbours = "replace",
    multiplier: float | None = None,
) -> FedAvg:
    """FedAvg whose whole updates are clipped and noised, after any local training, so the unit is all of a client's
    data.
    """
    law = LAWS[noise]
    return base.behind(uplink=Uplink((Clip(radius, law.order), Noise(law, neighbours, multiplier), Weigh())))


@preset(FedAvg(lr_decay_per="participation", local_steps=5, batch_size="full"))
def noisy_steps(base: FedAvg, clip: float = 10.0, multiplier: float | None = None) -> FedAvg:
    """FedAvg with noise at every local step: E full-batch steps cost E releases; with fixed batches, one release per
    epoch.
    """
    sampling: Literal["full", "fixed_batches"] = "full" if base.batch_size == "full" else "fixed_batches"
    return base.behind(NoisyGradient(clip, GaussianNoise(), sampling=sampling, multiplier=multiplier))


@preset(FedAvg(local_steps=5, batch_size="full"), fixed=STEPS_OF_THE_GATE)
def convex_stable(base: FedAvg, radius: float = 4.0, multiplier: float | None = None) -> FedAvg:
    """Logistic regression without clipping: E full-batch steps, one noise at the end (model = {name = "logistic",
    radius = ...}).
    """
    return base.behind(ConvexStable(radius, base.lr, multiplier))


def one_step(base: FedAvg) -> FedAvg:
    """Refuses every schedule but one full-batch step from the received model: the sensitivity bound 2C/n holds for no
    other.

    Weight decay and a bound on the step are applied to the noised gradient, at the received weights, so they cost no
    privacy.
    """
    times, what = (base.work.epochs, "epochs") if base.work.steps is None else (base.work.steps, "steps")
    if times != 1:
        raise UnsoundGuarantee(
            f"{times} local {what} per round, with noise for one step",
            why="after the first step, the runs with and without a record have different weights, and nothing "
            "cancels any more: the true sensitivity is up to |D| times larger, for a client with |D| records",
            fix="use whole_update (it bounds the whole update), noisy_steps (it pays for every step), or "
            "convex_stable (logistic regression without clipping)",
            code="one-step-only",
        )
    if base.batch_size != "full":
        raise UnsoundGuarantee(
            f"batches of {base.batch_size}, with noise for one step",
            why="a record is in one batch only, but the batches after it start from weights that this record has "
            "changed",
            fix='set batch_size = "full", or use noisy_steps with local_epochs and batch_size',
            code="full-batch-only",
        )
    if base.momentum:
        raise UnsoundGuarantee(
            f"momentum {base.momentum} at the client",
            why="the momentum buffer of a client keeps gradients without noise, and carries them from one round "
            "into the next",
            fix="use plain SGD at the client; momentum at the server costs nothing",
            code="client-momentum",
        )
    return base
