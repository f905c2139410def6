"""Readers and uplinks with planted canaries: some rows of a client have gradients of the attacker's choice, or a client
sends an upload of its choice. Clip, noise, weights and sum are the run's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from sordino import tree
from sordino.audits.noise_sources import Silent
from sordino.privacy.noise.distributions import GaussianNoise
from sordino.privacy.readers.beside_public import taken
from sordino.privacy.readers.class_sums import ClassSums, SumShard, clipped
from sordino.privacy.readers.noisy_gradient import NoisyGradient, NoisyShard
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.privunit import OneDirection
from sordino.privacy.uplink.stages import Noise, Stage, clip_factor
from sordino.tree import Tree
from sordino.types import Examples, Grant, Losses, NoiseSource, Params, Received, Shard, Task

Through = Callable[[NoiseSource], NoiseSource]  # wraps the source of noise of the gates


def unchanged(source: NoiseSource) -> NoiseSource:
    return source


def _settings(gate: Any) -> dict[str, Any]:
    return {one.name: vars(gate)[one.name] for one in fields(gate)}


# examples -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlantedReader(NoisyGradient):
    """The reader of a run in which some clients hold canaries in place of their last rows. `planted`: the gradients of
    these, [canaries, numbers], zero for an absent canary.
    """

    planted: Mapping[int, Tensor] = field(default_factory=dict)
    through: Through = unchanged
    sure: bool = False  # every canary is in every sample

    @classmethod
    def of(cls, reader: NoisyGradient, planted: Mapping[int, Tensor], through: Through, sure: bool) -> PlantedReader:
        return cls(**_settings(reader), planted=planted, through=through, sure=sure)

    def open(self, examples: Examples, grant: Grant, task: Task) -> Shard:
        grant = replace(grant, source=self.through(grant.source), pool=None)
        rows = self.planted.get(grant.client, torch.zeros(0, 1))
        return PlantedShard(self, examples, grant, task, planted=rows, sure=self.sure)


@dataclass
class PlantedShard(NoisyShard):
    """One client's examples, of which the last are canaries."""

    planted: Tensor = field(default_factory=lambda: torch.zeros(0, 1), repr=False)
    sure: bool = False

    def _sum(self, rows: Tensor, losses: Losses, params: Params, draws: Tensor) -> Params:
        if not len(self.planted):
            return super()._sum(rows, losses, params, draws)
        reader, first = self._reader, len(self._examples.y) - len(self.planted)
        assert reader.clip_order is not None
        mine = rows >= first
        honest = super()._sum(rows[~mine], losses, params, draws[~mine])
        chosen = self.planted if self.sure else self.planted[rows[mine] - first]
        lengths = torch.linalg.vector_norm(chosen.double(), reader.clip_order, dim=1)
        added = (clip_factor(lengths, reader.clip, chosen.dtype)[:, None] * chosen).sum(0)
        return tree.add(tree.formed(honest), tree.unflat(added, params))


# sums per class -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlantedSums(ClassSums):
    """The reader of sums per class in a run in which some clients hold canaries in place of their last rows. `planted`:
    the statistics of each canary as one row over all classes, zero outside the canary's own class.
    """

    planted: Mapping[int, Tensor] = field(default_factory=dict)
    through: Through = unchanged

    @classmethod
    def of(cls, reader: ClassSums, planted: Mapping[int, Tensor], through: Through) -> PlantedSums:
        return cls(**_settings(reader), planted=planted, through=through)

    def open(self, examples: Examples, grant: Grant, task: Task) -> Shard:
        grant = replace(grant, source=self.through(grant.source))
        rows = self.planted.get(grant.client, torch.zeros(0, 1))
        first = len(examples.y) - len(rows)
        return PlantedSumShard(self, taken(examples, torch.arange(first)), grant, task, planted=rows)


@dataclass
class PlantedSumShard(SumShard):
    """One client's examples, with canaries beside them."""

    planted: Tensor = field(default_factory=lambda: torch.zeros(0, 1), repr=False)

    def _sums(self, of: Callable[[Tensor], Tensor], classes: int) -> tuple[Tensor, Tensor]:
        sums, counts = super()._sums(of, classes)
        if not len(self.planted):
            return sums, counts
        added = clipped(self.planted, self._reader.clip).reshape(len(self.planted), *sums.shape)
        return sums + added.sum(0), counts + added.ne(0).any(2).sum(0)


# clients --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlantedUplink(Uplink):
    """The uplink of a run in which some clients are canaries and send a vector of the attacker's choice."""

    planted: Mapping[int, Tensor] = field(default_factory=dict)
    through: Through = unchanged

    @classmethod
    def of(cls, uplink: Uplink, planted: Mapping[int, Tensor], through: Through) -> PlantedUplink:
        # noise on a grid is drawn from coins, and a random direction has none, so the scale is what is changed
        if uplink.grid is not None or isinstance(uplink.noise(), OneDirection):
            level = float(through(Silent(1.0)).noisy(GaussianNoise(), torch.zeros(()), 1.0))
            uplink = replace(uplink, client=_louder(uplink.client, level), server=_louder(uplink.server, level))
        return cls(**_settings(uplink), planted=planted, through=through)

    def encode(self, upload: Tree, grant: Grant) -> Tree:
        chosen = self.planted.get(grant.client)
        sent = upload if chosen is None else tree.unflat(chosen, upload)
        return super().encode(sent, replace(grant, source=self.through(grant.source)))

    def receive(
        self,
        uploads: Any,
        zero: Any,
        weights: Any,
        expected: float,
        multiplier: Any,
        source: NoiseSource,
        **more: Any,
    ) -> Received[Any]:
        return super().receive(uploads, zero, weights, expected, multiplier, self.through(source), **more)


def _louder(stages: tuple[Stage, ...], level: float) -> tuple[Stage, ...]:
    """The stages with noise multiplied by `level`; for level 0 without noise stages."""
    kept = [stage for stage in stages if level > 0 or not isinstance(stage, Noise)]
    return tuple(replace(stage, louder=level * stage.louder) if isinstance(stage, Noise) else stage for stage in kept)
