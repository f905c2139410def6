"""PDP-Prox and PDP-SGD: FedProx under a budget for every client. "Consideration of FedProx in Privacy Protection",
Electronics 12(20), 2023, Algorithm 3.

The mechanism is a choice of gates; the cohort that fits it is in the comment, budgets are in [privacy] epsilon =
{groups = ...}.

Deviations: as printed, Algorithm 3 uploads the update without its noise and clips to 1 instead of C: there is nothing
to reproduce. `published` is Algorithm 3 with these slips repaired, under [cohort] name = "threshold_published", whose
claims about budgets are not proved; the receipt says what holds. `literal` keeps the clip to 1 under noise for C. The
other mechanisms keep every budget (Boenisch et al. 2023 for `rates`, Jorgensen et al. 2015 for `threshold`). PDP-SGD is
mu = 0 with [stragglers] policy = "drop".
"""

from __future__ import annotations

from typing import Literal

from sordino.algorithms.fedprox import FedProx
from sordino.algorithms.preset import preset
from sordino.errors import UnsoundGuarantee
from sordino.privacy.noise.laws import GaussianNoise
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.stages import Clip, Noise, Weigh
from sordino.types import Neighbours

Mechanism = Literal["bounds", "local", "rates", "threshold", "published"]


@preset(FedProx(lr=0.01, mu=1.0))
def pdp_prox(
    base: FedProx,
    mechanism: Mechanism = "bounds",
    clip: float = 1.0,
    neighbours: Neighbours | None = None,
    weights: Literal["precision", "uniform"] = "precision",
    literal: bool = False,
    returns: Literal["noisy", "printed"] = "noisy",
) -> FedProx:
    """FedProx + what a client's own budget buys. `weights` are those of `local`; `literal` and `returns` belong to
    `published`.
    """
    if returns == "printed":
        raise UnsoundGuarantee(
            "the update as Algorithm 3 returns it",
            why="the line adds noise to one variable and returns another: the upload has no noise at all",
            fix='returns = "noisy"',
            code="un-noised-update",
        )
    if literal and mechanism != "published":
        raise UnsoundGuarantee(
            f'literal = true with mechanism = "{mechanism}"',
            why="only the published mechanism has a literal reading",
            fix='mechanism = "published", or leave literal out',
            code="literal-without-published",
        )
    return base.behind(uplink=_GATES[mechanism](clip, neighbours, weights, literal))


def _bounds(clip: float, neighbours: Neighbours | None, weights: str, literal: bool) -> Uplink:
    # cohort: round_robin, random, everyone. One noise for all; each client's clip is what its own budget buys under it
    return Uplink(client=(Clip(clip, personal=True),), server=(Noise(GaussianNoise(), neighbours or "zero_out"),))


def _local(clip: float, neighbours: Neighbours | None, weights: str, literal: bool) -> Uplink:
    # cohort: round_robin, random, everyone. Each client its own noise; the server only weighs
    stages = Clip(clip), Noise(GaussianNoise(), neighbours or "replace")
    return Uplink(client=(*stages, Weigh("precision")) if weights == "precision" else stages)


def _hidden(clip: float, neighbours: Neighbours | None, weights: str, literal: bool) -> Uplink:
    # cohort: by_budget (`rates`) or threshold
    return Uplink(client=(Clip(clip),), server=(Noise(GaussianNoise(), neighbours or "add_remove"),))


def _published(clip: float, neighbours: Neighbours | None, weights: str, literal: bool) -> Uplink:
    # cohort: threshold_published
    noise = Noise(GaussianNoise(), neighbours or "zero_out", louder=clip if literal else 1.0)
    return Uplink(client=(Clip(1.0 if literal else clip), noise))


_GATES = {"bounds": _bounds, "local": _local, "rates": _hidden, "threshold": _hidden, "published": _published}
