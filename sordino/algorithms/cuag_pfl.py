"""CUAG-PFL: PFLDyn + block sums + noise. Li, Xiao and Chen, Chinese Journal of Computers 2024, algorithms 1 to 4.

Deviations: the scale of the published noise depends on the data and proves nothing, which every result made with it
says; `local_client`, `central_client` and `local_sample` have the same structure and guarantees that hold. Compression
rates come from the last update that the server reconstructed, as the one of least norm; the server's correction term g
is that of `pfl_dyn`.
"""

from __future__ import annotations

from typing import Literal

from sordino.algorithms.pfl_dyn import BY_STEPS, PFLDyn
from sordino.algorithms.preset import preset
from sordino.errors import UnsoundGuarantee
from sordino.privacy.noise import GaussianNoise
from sordino.privacy.readers.episodes import CellGradient
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.as_published import OneFieldAsPublished, OwnNorm
from sordino.privacy.uplink.compression import BlockSum, Rule, Share
from sordino.privacy.uplink.sensing import Reconstruction, Sensing
from sordino.privacy.uplink.stages import ClipLayers, Noise, OneField, Stage

Variant = Literal["published", "no_noise", "local_client", "central_client", "local_sample"]


@preset(PFLDyn(), fixed=BY_STEPS)
def cuag_pfl(
    base: PFLDyn,
    variant: Variant = "central_client",
    mu: float | tuple[float, float] = 0.25,
    sigma: float | None = None,
    clip: float | None = None,
    shares: Literal["equal", "energy"] = "energy",
    adapt: float | None = None,
    cells: int = 10,
    cell_rate: float = 0.2,
    matrix: Literal["block_sum", "gaussian", "bernoulli"] = "block_sum",
    rate: float | Literal["dynamic"] = "dynamic",
    most: float = 0.5,
    least: float = 0.2,
    rule: Rule = "published",
    share: Share = "norm_of_whole",
    reconstruct: Reconstruction = "minnorm",
    variance_as_std: bool = False,
    cohort_rate: float = 0.1,
    multiplier: float | None = None,
    *,
    local_steps: int,
    batch_size: int,
) -> PFLDyn:
    """PFLDyn (personalised FedDyn) with uploads compressed layer by layer. Noise, by variant: on each upload
    (`local_client`, `published`), on their sum (`central_client`), on gradients of episodes (`local_sample`), or none.

    Only variant `published` uses `mu`, `sigma`, `cohort_rate` and `variance_as_std`; only `local_sample` uses `cells`.
    `clip` None means 1 where a bound is needed, else no clip.
    """
    rates = (rate, most, least, rule, share)
    fewer: Stage = BlockSum(*rates) if matrix == "block_sum" else Sensing(*rates, kind=matrix, reconstruct=reconstruct)
    own = OwnNorm(mu, sigma, clip, "layer", batch_size, local_steps, cohort_rate, variance_as_std=variance_as_std)
    layers = ClipLayers(1.0 if clip is None else clip, shares, adapt)
    gates: dict[Variant, tuple[tuple[Stage, ...], tuple[Stage, ...]]] = {
        "published": ((fewer, own), ()),
        "no_noise": ((fewer,), ()),
        "local_client": ((fewer, layers, Noise(GaussianNoise(), "replace", multiplier)), ()),
        "central_client": ((fewer, layers), (Noise(GaussianNoise(), "zero_out", multiplier),)),
        "local_sample": ((fewer,), ()),
    }
    client, server = gates[variant]
    if base.server_state == "oracle" and variant not in ("published", "no_noise"):
        raise UnsoundGuarantee(
            f'server_state = "oracle" with variant = "{variant}"',
            why="the server would receive the exact change of every client's state, beside the upload that the "
            "noise protects",
            fix='set server_state = "scaled" or "leaky", or variant = "published"',
            code="oracle-leaks",
        )
    if base.server_state == "oracle":
        client = tuple(
            (OneFieldAsPublished if isinstance(stage, OwnNorm) else OneField)(stage, "delta") for stage in client
        )
    if variant == "local_sample":
        base = base.behind(CellGradient(1.0 if clip is None else clip, cells, rate=cell_rate, multiplier=multiplier))
    return base.behind(uplink=Uplink(client, server))
