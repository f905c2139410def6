"""LC-FL, LDP-FL and CDP-FL; Paillier-FL and other encrypted variants. Sun, Ding and Cheng, Computer Science (China)
51(6A), 230600211, 2024.

FedAvg on images with randomised pixels (local), with Laplace noise on the average (central), or both; or on encrypted
uploads. `published` keeps the constants of the paper and says what they are worth; `rigorous` keeps the structure: one
client-level budget for the sum of clipped updates of a hidden cohort.

Deviations: weights are n_i / n, where the paper prints n / n_i, with which k equal clients would make the model
k^2 times as large in a round; coordinates are clipped to 0.1, where the paper has no clip, without which noise sized
for one coordinate bounds nothing. Local work is 10 steps of 64, a client answers once in a run, and by default one
raised flag puts noise on the whole sum.
"""

from __future__ import annotations

from typing import Literal

from sordino.algorithms.fedavg import FedAvg
from sordino.algorithms.preset import preset
from sordino.privacy.noise import LAWS, LawName
from sordino.privacy.readers.responses import Responses
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.coordinate_laplace import ClipCoordinates, CoordinateLaplace, Flag
from sordino.privacy.uplink.secure_stages import Aggregated, Encrypted
from sordino.privacy.uplink.stages import Clip, Noise, Weigh

Variant = Literal["published", "rigorous"]
Per = Literal["value", "image"]
Keys = Literal["shared", "authority"]
Mode = Literal["full", "probe"]
TEN_STEPS = FedAvg(local_steps=10, batch_size=64)


@preset(TEN_STEPS)
def lc_fl(
    base: FedAvg,
    variant: Variant = "published",
    local_epsilon: float = 5.0,
    central_epsilon: float = 10.0,
    beta: float | None = None,
    max_abs: float | None = 0.1,
    wants: float = 0.5,
    flip: float = 0.5,
    noise_target: Literal["aggregate_any", "per_client"] = "aggregate_any",
    clip: float = 0.5,
    law: LawName = "gaussian",
    per: Per = "value",
    label_epsilon: float | None = None,
    local_delta: float = 0.0,
    multiplier: float | None = None,
) -> FedAvg:
    """FedAvg with randomised response of images against the server, and noise on the average against all others.
    Variant `rigorous` takes `local_epsilon` and `per` (an image, labels included), and [privacy] epsilon protects whole
    clients.
    """
    answers = base.behind(Responses(local_epsilon, per, label_epsilon, local_delta))
    if variant == "rigorous":
        return answers.behind(uplink=central(clip, law, multiplier))
    noise = CoordinateLaplace(max_abs or 0.1, central_epsilon, beta, True, flip, noise_target)
    return answers.behind(uplink=published(noise, max_abs, Flag(wants)))


@preset(TEN_STEPS)
def ldp_fl(
    base: FedAvg,
    local_epsilon: float = 5.0,
    per: Per = "value",
    label_epsilon: float | None = None,
    local_delta: float = 0.0,
) -> FedAvg:
    """FedAvg on images that each client has randomised (local differential privacy by randomised response)."""
    return base.behind(Responses(local_epsilon, per, label_epsilon, local_delta))


@preset(TEN_STEPS)
def cdp_fl(
    base: FedAvg,
    variant: Variant = "published",
    central_epsilon: float = 10.0,
    beta: float | None = None,
    max_abs: float | None = 0.1,
    clip: float = 0.5,
    law: LawName = "gaussian",
    multiplier: float | None = None,
) -> FedAvg:
    """FedAvg with central noise: Laplace noise on the average, as published, or (variant `rigorous`) noise on the sum
    of clipped updates.
    """
    if variant == "rigorous":
        return base.behind(uplink=central(clip, law, multiplier))
    return base.behind(uplink=published(CoordinateLaplace(max_abs or 0.1, central_epsilon, beta), max_abs))


@preset(TEN_STEPS)
def paillier_fl(base: FedAvg, keys: Keys = "shared", mode: Mode = "full", key_bits: int = 3072) -> FedAvg:
    """FedAvg under Paillier encryption: the server adds ciphertexts that it cannot read."""
    return base.behind(uplink=Uplink((Weigh(), Encrypted("paillier", key_bits, keys, mode=mode))))


@preset(TEN_STEPS)
def lattice_fl(
    base: FedAvg, scheme: Literal["bfv", "ckks"] = "bfv", keys: Keys = "shared", mode: Mode = "full"
) -> FedAvg:
    """FedAvg under lattice encryption: BFV (exact sums) or CKKS (sums with a bounded error)."""
    return base.behind(uplink=Uplink((Weigh(), Encrypted(scheme, keys=keys, mode=mode))))


@preset(TEN_STEPS)
def secagg_fl(base: FedAvg, threshold: int | None = None) -> FedAvg:
    """FedAvg under secure aggregation: clients mask their uploads, and the masks cancel in the sum."""
    return base.behind(uplink=Uplink((Weigh(), Aggregated(threshold))))


def central(clip: float, law: LawName, multiplier: float | None) -> Uplink:
    """Uplink of clipped updates with noise on their sum, which protects whole clients; for a hidden cohort."""
    return Uplink((Clip(clip, LAWS[law].order),), (Noise(LAWS[law], "zero_out", multiplier),))


def published(noise: CoordinateLaplace, max_abs: float | None, *flag: Flag) -> Uplink:
    """Uplink of the paper: the weighted average under Laplace noise; coordinates are clipped to `max_abs` unless it is
    None.
    """
    clip = () if max_abs is None else (ClipCoordinates(max_abs),)
    return Uplink((*clip, Weigh(), *flag), (noise,))
