"""PDP-Prox and PDP-SGD: FedProx with a personal privacy budget for every client. "Consideration of FedProx in Privacy
Protection", Electronics 12(20), 2023, Algorithm 3.

`mechanism` chooses the clip and the noise (comments in `_gates` name the cohorts that fit each one); budgets are set in
[privacy] epsilon = {groups = ...}.

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
from sordino.privacy.noise import GaussianNoise
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.stages import Clip, Noise, Weigh
from sordino.types import Neighbours

Mechanism = Literal["bounds", "local", "rates", "threshold", "published"]
Weights = Literal["precision", "uniform"]


@preset(FedProx(lr=0.01, mu=1.0))
def pdp_prox(
    base: FedProx,
    mechanism: Mechanism = "bounds",
    clip: float = 1.0,
    neighbours: Neighbours | None = None,
    weights: Weights = "precision",
    literal: bool = False,
) -> FedProx:
    """FedProx with clipped updates and noise that fit each client's own budget. Only mechanism `local` uses `weights`,
    only `published` uses `literal`.
    """
    if literal and mechanism != "published":
        raise UnsoundGuarantee(
            f'literal = true with mechanism = "{mechanism}"',
            why="only the published mechanism can be taken literally",
            fix='set mechanism = "published", or leave literal out',
            code="literal-without-published",
        )
    return base.behind(uplink=_gates(mechanism, clip, neighbours, weights, literal))


def _gates(mechanism: Mechanism, clip: float, neighbours: Neighbours | None, weights: Weights, literal: bool) -> Uplink:
    """The uplink (clip, weights and noise) of a mechanism; comments name the cohorts that fit each one."""

    def noise(usual: Neighbours, louder: float = 1.0) -> Noise:
        return Noise(GaussianNoise(), neighbours or usual, louder=louder)

    if (
        mechanism == "bounds"
    ):  # round_robin, random, everyone: one noise for all; a clip is what its budget buys under it
        return Uplink((Clip(clip, personal=True),), (noise("zero_out"),))
    if mechanism == "local":  # the same: each client has its own noise, and the server only weighs
        weighed = (Weigh("precision"),) if weights == "precision" else ()
        return Uplink((Clip(clip), noise("replace"), *weighed))
    if mechanism == "published":  # threshold_published
        return Uplink((Clip(1.0 if literal else clip), noise("zero_out", clip if literal else 1.0)))
    return Uplink((Clip(clip),), (noise("zero_out"),))  # by_budget (`rates`), threshold
