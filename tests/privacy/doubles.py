"""Test doubles at the gates' public seams: a source of noise that is silent, and losses whose gradients are chosen
freely.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sordino import keys
from sordino.engine import wire
from sordino.engine.commands import Round
from sordino.engine.server import FederatedServer
from sordino.engine.site import Site
from sordino.types import Drawable, NoiseSource, Params, Terms


@dataclass(frozen=True)
class Still:
    """Adds `level` noise scales to every coordinate: 0 is a noise-free release, 1 shows the scale that is really used."""

    level: float = 0.0
    key: int = 7
    name: str = "still"

    def child(self, *parts: int | str) -> NoiseSource:
        return Still(self.level, keys.word(keys.fold(self.key, *parts)))

    def noisy(self, law: Drawable, values: Tensor, scale: float) -> Tensor:
        return values + self.level * scale

    def coins(self, count: int, probability: float) -> Tensor:
        return keys.coin(self.key, count, probability)

    def words(self, count: int) -> Tensor:
        return keys.bits(self.key, count)


@dataclass(frozen=True)
class Coupled(Still):
    """The same keys for the last rows, however many come before them: what independent secret keys allow to assume."""

    def child(self, *parts: int | str) -> NoiseSource:
        return self

    def words(self, count: int) -> Tensor:
        return keys.bits(keys.root(5), 50)[-count:]


def linear(params: Params, x: Tensor, y: Tensor, keys: Tensor) -> Tensor:
    """The gradient of example i is row i of x, whatever the parameters are."""
    return (x * torch.cat([p.reshape(-1) for p in params.values()])).sum(1)


def messages(
    clients: Site, federation: FederatedServer, t: int, down: Any, terms: Mapping[int, Terms]
) -> dict[int, bytes]:
    """What clients in another process would send, all of it before the server reads the first."""
    command, message = Round(t, dict(terms)), wire.encode(federation.inbox.header(t, -1), down)
    return dict(zip(sorted(terms), clients.obey(command, [message]), strict=True))
