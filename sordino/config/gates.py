"""Names that a TOML file may use for the reader and the stages of the uplink, in [read] and [uplink].

[read]    name = "noisy_gradient", clip = 1.0, law = "gaussian", multiplier = 1.1
[uplink]  client = [{name = "clip", radius = 1.0}, {name = "noise"}], server = []

A stage without settings may be written as its name alone. An uplink given as a list has stages at clients only: uplink
= ["weigh", "paillier"].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from sordino.config import Table, build
from sordino.config.reading import check_keys
from sordino.errors import ConfigError
from sordino.privacy.noise import LAWS, LawName
from sordino.privacy.readers.episodes import CellGradient
from sordino.privacy.readers.function_reader import FunctionReader
from sordino.privacy.readers.median_clip import MedianClip
from sordino.privacy.readers.noisy_gradient import NoisyGradient, Sampling
from sordino.privacy.readers.open import Open
from sordino.privacy.readers.responses import Responses
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.as_published import OwnNorm, UpdateLevel, UserLevel
from sordino.privacy.uplink.compression import BlockSum
from sordino.privacy.uplink.coordinate_laplace import ClipCoordinates, CoordinateLaplace, Flag
from sordino.privacy.uplink.fixed_point import Layout, Quantise
from sordino.privacy.uplink.privunit import OneDirection
from sordino.privacy.uplink.robust import CoordinateMedian, Krum, NearestMixing, NormBound, TrimmedMean
from sordino.privacy.uplink.secure_stages import Aggregated, Encrypted, NoiseShare
from sordino.privacy.uplink.sensing import Sensing
from sordino.privacy.uplink.stages import Clip, ClipLayers, Noise, Stage, Weigh
from sordino.types import Neighbours, Reader


def noisy_gradient(
    clip: float,
    law: LawName = "gaussian",
    clip_order: Literal[1, 2] | None = None,
    sampling: Sampling = "full",
    rate: float | None = None,
    neighbours: Neighbours = "replace",
    multiplier: float | None = None,
) -> NoisyGradient:
    """Per-example gradients, clipped and summed with noise."""
    if rate is None and sampling in ("poisson", "fixed_subset"):
        raise ConfigError(
            f"read.sampling = {sampling!r} without read.rate",
            why="the rate is the share of a client's examples that each step draws; batch_size does not say it",
            fix="set for example read.rate = 0.1",
            code="sample-needs-rate",
        )
    return NoisyGradient(clip, LAWS[law], clip_order, sampling, 1.0 if rate is None else rate, neighbours, multiplier)


def noise(law: LawName = "gaussian", neighbours: Neighbours = "replace", multiplier: float | None = None) -> Noise:
    """Noise on every upload (under `client`), or on the sum of uploads (under `server`)."""
    return Noise(LAWS[law], neighbours, multiplier)


def cells(
    clip: float,
    cells: int = 10,
    sampling: Literal["poisson", "fresh"] = "poisson",
    rate: float = 0.2,
    multiplier: float | None = None,
) -> CellGradient:
    """Clipped and noised gradients of episodes, for losses over two sets of examples (support and query). It protects a
    cell, a fixed group of a client's examples; with `sampling = "fresh"`, cells drawn anew in each step, one example.
    """
    return CellGradient(clip, cells, sampling, rate, multiplier=multiplier)


def noise_share(
    survivors: int, law: LawName = "gaussian", neighbours: Neighbours = "zero_out", multiplier: float | None = None
) -> NoiseShare:
    """Noise divided among clients under secure aggregation: any `survivors` shares but one add up to all of it."""
    return NoiseShare(LAWS[law], neighbours, multiplier, survivors=survivors)


def privunit(neighbours: Neighbours = "replace", multiplier: float | None = None) -> OneDirection:
    """PrivUnit: a randomised direction of the upload, under pure local privacy (Bhowmick et al., 2018)."""
    return OneDirection(neighbours=neighbours, multiplier=multiplier)


def quantise(bits: int = 24, headroom: int = 8, range: float = 1.0, strict: bool = False) -> Quantise:
    """Fixed-point integers for masked and encrypted sums: `bits` per number, `headroom` bits for adding clients, values
    up to `range`. `strict`: a run stops where more than one value in a thousand is beyond.
    """
    return Quantise(Layout(bits, headroom, range), strict)


def encrypted(scheme: Literal["paillier", "bfv", "ckks"]) -> Callable[..., Encrypted]:
    def stage(
        keys: Literal["shared", "authority"] = "shared",
        mode: Literal["full", "probe"] = "full",
        at_least: int = 10,
        key_bits: int = 3072,
        testing: bool = False,
    ) -> Encrypted:
        """Homomorphic encryption of uploads; the server adds ciphertexts, and the key holder decrypts the sum."""
        return Encrypted(scheme, key_bits, keys, at_least, mode, testing)

    return stage


READERS: dict[str, Callable[..., Reader]] = {
    "open": Open,
    "noisy_gradient": noisy_gradient,
    "cells": cells,
    "median_clip": MedianClip,
    "responses": Responses,
    "function": FunctionReader,
}
STAGES: dict[str, Callable[..., Stage]] = {
    "clip": Clip,
    "weigh": Weigh,
    "noise": noise,
    "block_sum": BlockSum,
    "sensing": Sensing,
    "clip_layers": ClipLayers,
    "own_norm": OwnNorm,
    "update_level": UpdateLevel,
    "user_level": UserLevel,
    "clip_coordinates": ClipCoordinates,
    "flag": Flag,
    "coordinate_laplace": CoordinateLaplace,
    "quantise": quantise,
    "noise_share": noise_share,
    "privunit": privunit,
    "paillier": encrypted("paillier"),
    "bfv": encrypted("bfv"),
    "ckks": encrypted("ckks"),
    "secagg": Aggregated,
    "median": CoordinateMedian,
    "trimmed_mean": TrimmedMean,
    "krum": Krum,
    "nnm": NearestMixing,
    "norm_bound": NormBound,
}


def reader(table: Mapping[str, object]) -> Reader:
    return build(table, READERS, "read")


def uplink(table: Table | list[Any]) -> Uplink:
    table = {"client": table} if isinstance(table, list) else table
    check_keys(table, ("client", "server", "denominator"), "[uplink]")
    return Uplink(
        client=_stages(table.get("client", []), "uplink.client"),
        server=_stages(table.get("server", []), "uplink.server"),
        denominator=table.get("denominator"),
    )


def _stages(given: object, where: str) -> tuple[Stage, ...]:
    if not isinstance(given, list) or not all(isinstance(stage, str | Mapping) for stage in given):
        raise ConfigError(
            f"{where} = {given!r}",
            why="it must be a list of stages; a stage is a name, or a table with a name",
            fix=f'for example {where} = ["weigh"], or {where} = [{{name = "clip", radius = 1.0}}]',
            code="wrong-type",
        )
    return tuple(build({"name": one} if isinstance(one, str) else one, STAGES, where) for one in given)
