"""LC-FL, LDP-FL and CDP-FL; Paillier-FL and its kin. Sun, Ding and Cheng, Computer Science (China) 51(6A), 230600211,
2024.

FedAvg on images whose pixels answered at random (local), whose average has Laplace noise (central), or both; or on
uploads that nobody reads. `published` keeps the constants of the paper and says what they are worth; `rigorous` keeps
the structure: one client-level budget for the sum of clipped updates of a hidden cohort.

Deviations: the paper prints weights of n / n_i, with which the model grows n times a round, for n_i / n; it has no
clip, without which noise sized for one coordinate is sized for nothing: 0.1 here. Local work is 10 steps of 64, a
client answers once in a run, and a part of the flags decides for the whole sum.
"""

from __future__ import annotations

from typing import Literal

from sordino.algorithms.fedavg import FedAvg
from sordino.privacy.noise.laws import GaussianNoise, LaplaceNoise
from sordino.privacy.readers.open import Open
from sordino.privacy.readers.responses import Responses
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.coordinate_laplace import ClipCoordinates, CoordinateLaplace, Flag
from sordino.privacy.uplink.secure_stages import Aggregated, Encrypted
from sordino.privacy.uplink.stages import Clip, Noise, Weigh
from sordino.types import Reader

Target = Literal["aggregate_any", "per_client"]
Batch = int | Literal["full"]


def lc_fl(
    variant: Literal["published", "rigorous"] = "published",
    local_epsilon: float = 5.0,
    central_epsilon: float = 10.0,
    beta: float | None = None,
    max_abs: float | None = 0.1,
    wants: float = 0.5,
    flip: float = 0.5,
    noise_target: Target = "aggregate_any",
    clip: float = 0.5,
    law: Literal["gaussian", "laplace"] = "gaussian",
    per: Literal["value", "image"] = "value",
    label_epsilon: float | None = None,
    local_delta: float = 0.0,
    multiplier: float | None = None,
    lr: float = 0.1,
    local_epochs: int | None = None,
    local_steps: int | None = None,
    batch_size: Batch = 64,
) -> FedAvg:
    """Answers against the server, noise against everybody else. Rigorous: `local_epsilon` `per` image, with labels, and
    [privacy] epsilon for whole clients.
    """
    read = Responses(local_epsilon, per, label_epsilon, local_delta)
    if variant == "rigorous":
        return _fedavg(read, central(clip, law, multiplier), lr, local_epochs, local_steps, batch_size)
    noise = CoordinateLaplace(max_abs or 0.1, central_epsilon, beta, True, flip, noise_target)
    return _fedavg(read, _published(noise, max_abs, Flag(wants)), lr, local_epochs, local_steps, batch_size)


def ldp_fl(
    local_epsilon: float = 5.0,
    per: Literal["value", "image"] = "value",
    label_epsilon: float | None = None,
    local_delta: float = 0.0,
    lr: float = 0.1,
    local_epochs: int | None = None,
    local_steps: int | None = None,
    batch_size: Batch = 64,
) -> FedAvg:
    """FedAvg on answers."""
    read = Responses(local_epsilon, per, label_epsilon, local_delta)
    return _fedavg(read, Uplink(), lr, local_epochs, local_steps, batch_size)


def cdp_fl(
    variant: Literal["published", "rigorous"] = "published",
    central_epsilon: float = 10.0,
    beta: float | None = None,
    max_abs: float | None = 0.1,
    clip: float = 0.5,
    law: Literal["gaussian", "laplace"] = "gaussian",
    multiplier: float | None = None,
    lr: float = 0.1,
    local_epochs: int | None = None,
    local_steps: int | None = None,
    batch_size: Batch = 64,
) -> FedAvg:
    """FedAvg whose average is noised."""
    if variant == "rigorous":
        return _fedavg(Open(), central(clip, law, multiplier), lr, local_epochs, local_steps, batch_size)
    noise = CoordinateLaplace(max_abs or 0.1, central_epsilon, beta)
    return _fedavg(Open(), _published(noise, max_abs), lr, local_epochs, local_steps, batch_size)


def paillier_fl(
    keys: Literal["shared", "authority", "threshold"] = "shared",
    mode: Literal["full", "probe"] = "full",
    key_bits: int = 3072,
    lr: float = 0.1,
    local_epochs: int | None = None,
    local_steps: int | None = None,
    batch_size: Batch = 64,
) -> FedAvg:
    """FedAvg under Paillier's scheme: the server multiplies what it cannot read."""
    uplink = Uplink((Weigh(), Encrypted("paillier", key_bits, keys, mode=mode)))
    return _fedavg(Open(), uplink, lr, local_epochs, local_steps, batch_size)


def lattice_fl(
    scheme: Literal["bfv", "ckks"] = "bfv",
    keys: Literal["shared", "authority", "threshold"] = "shared",
    mode: Literal["full", "probe"] = "full",
    lr: float = 0.1,
    local_epochs: int | None = None,
    local_steps: int | None = None,
    batch_size: Batch = 64,
) -> FedAvg:
    """FedAvg under BFV (exact) or CKKS (bounded error)."""
    uplink = Uplink((Weigh(), Encrypted(scheme, keys=keys, mode=mode)))
    return _fedavg(Open(), uplink, lr, local_epochs, local_steps, batch_size)


def secagg_fl(
    threshold: int | None = None,
    lr: float = 0.1,
    local_epochs: int | None = None,
    local_steps: int | None = None,
    batch_size: Batch = 64,
) -> FedAvg:
    """FedAvg under masks that cancel in the sum."""
    return _fedavg(Open(), Uplink((Weigh(), Aggregated(threshold))), lr, local_epochs, local_steps, batch_size)


def central(clip: float, law: str, multiplier: float | None) -> Uplink:
    """Of whole clients, in a hidden cohort."""
    if law == "laplace":
        return Uplink((Clip(clip, 1),), (Noise(LaplaceNoise(), "add_remove", multiplier),))
    return Uplink((Clip(clip),), (Noise(GaussianNoise(), "add_remove", multiplier),))


def _published(noise: CoordinateLaplace, max_abs: float | None, *flag: Flag) -> Uplink:
    clip = () if max_abs is None else (ClipCoordinates(max_abs),)
    return Uplink((*clip, Weigh(), *flag), (noise,))


def _fedavg(
    read: Reader,
    uplink: Uplink,
    lr: float,
    local_epochs: int | None,
    local_steps: int | None,
    batch_size: Batch,
) -> FedAvg:
    steps = 10 if local_epochs is None and local_steps is None else local_steps
    return FedAvg(lr, local_epochs, steps, batch_size, read=read, uplink=uplink)
