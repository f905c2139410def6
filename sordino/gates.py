"""The words a TOML file may use for the two gates.

[read]    name = "noisy_gradient", clip = 1.0, law = "gaussian", multiplier = 1.1
[uplink]  client = [{name = "clip", radius = 1.0}, {name = "noise"}], server = []
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from sordino.compression.block_sum import BlockSum
from sordino.compression.sensing import Sensing
from sordino.config import build, check_keys
from sordino.privacy.as_published import OwnNorm, UpdateLevel, UserLevel
from sordino.privacy.episodes import CellGradient
from sordino.privacy.layers import ClipLayers
from sordino.privacy.mechanisms import GaussianNoise, LaplaceNoise
from sordino.privacy.median_clip import MedianClip
from sordino.privacy.readers import NoisyGradient, Open, Sampling
from sordino.privacy.stages import Clip, Noise, Stage, Weigh
from sordino.types import Neighbours, Reader
from sordino.uplink import Uplink

Law = Literal["gaussian", "gaussian_classic", "laplace"]
LAWS: dict[str, GaussianNoise | LaplaceNoise] = {
    "gaussian": GaussianNoise(),
    "gaussian_classic": GaussianNoise("classic"),
    "laplace": LaplaceNoise(),
}


def noisy_gradient(
    clip: float,
    law: Law = "gaussian",
    clip_order: Literal[1, 2] | None = None,
    sampling: Sampling = "full",
    rate: float = 1.0,
    neighbours: Neighbours = "replace",
    multiplier: float | None = None,
) -> NoisyGradient:
    return NoisyGradient(clip, LAWS[law], clip_order, sampling, rate, neighbours, multiplier)


def noise(law: Law = "gaussian", neighbours: Neighbours = "replace", multiplier: float | None = None) -> Noise:
    return Noise(LAWS[law], neighbours, multiplier)


def cells(
    clip: float,
    cells: int = 10,
    sampling: Literal["poisson", "fresh"] = "poisson",
    rate: float = 0.2,
    multiplier: float | None = None,
) -> CellGradient:
    return CellGradient(clip, cells, sampling, rate, multiplier=multiplier)


READERS: dict[str, Callable[..., Reader]] = {
    "open": Open,
    "noisy_gradient": noisy_gradient,
    "cells": cells,
    "median_clip": MedianClip,
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
}


def reader(table: Mapping[str, Any]) -> Reader:
    return build(table, READERS, "read")


def uplink(table: Mapping[str, Any]) -> Uplink:
    check_keys(table, ("client", "server", "denominator"), "[uplink]")
    return Uplink(
        client=tuple(build(stage, STAGES, "uplink.client") for stage in table.get("client", [])),
        server=tuple(build(stage, STAGES, "uplink.server") for stage in table.get("server", [])),
        denominator=table.get("denominator"),
    )
