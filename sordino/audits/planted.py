"""Readers and uplinks (which noise gradients and uploads) with planted canaries: some rows of a client have gradients
of the attacker's choice, or a client sends an upload of its choice. Clip, noise, weights and sum are the run's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from sordino import tree
from sordino.audits.noise_sources import Silent
from sordino.keys import Key
from sordino.privacy.noise import GaussianNoise
from sordino.privacy.readers import taken
from sordino.privacy.readers.class_sums import ClassSums, SumShard, clipped
from sordino.privacy.readers.convex_stable import ConvexStable, StableShard
from sordino.privacy.readers.episodes import CellGradient, CellShard, NoisyEpisode
from sordino.privacy.readers.noisy_gradient import NoisyGradient, NoisyShard
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.channels import Channel, OpenedSum, Uploads
from sordino.privacy.uplink.fixed_point import Ints
from sordino.privacy.uplink.privunit import OneDirection
from sordino.privacy.uplink.secure_stages import SecureStage
from sordino.privacy.uplink.stages import Noise, Stage, clip_factor
from sordino.tree import Tree
from sordino.types import (
    Episode,
    EpisodeLoss,
    Examples,
    Grant,
    LocalWork,
    Losses,
    NoiseSource,
    Params,
    Reader,
    Received,
    Shard,
    Task,
)

Through = Callable[[NoiseSource], NoiseSource]  # wraps the source of noise of the gates


def unchanged(source: NoiseSource) -> NoiseSource:
    return source


def _settings(gate: Any) -> dict[str, Any]:
    return {one.name: vars(gate)[one.name] for one in fields(gate)}


@dataclass(frozen=True)
class Planted(Reader):
    """Base class for reading a client's examples together with canaries. `planted`: for each client the gradient
    vectors of its canaries, [canaries, coordinates], zero for an absent canary; they replace those of its last rows or
    cells."""

    planted: Mapping[int, Tensor] = field(default_factory=dict)
    through: Through = unchanged
    sure: bool = False  # every canary is in every sample

    @classmethod
    def of(cls, reader: Reader, planted: Mapping[int, Tensor], through: Through, sure: bool = False) -> Self:
        return cls(**_settings(reader), planted=planted, through=through, sure=sure)

    def canaries_of(self, grant: Grant) -> tuple[Tensor, Grant]:
        """A client's canaries; and its permission for the round, with the replay's noise source in it."""
        rows = self.planted.get(grant.client, torch.zeros(0, 1))
        return rows, replace(grant, source=self.through(grant.source), pool=None)


# gradients of examples ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlantedReader(Planted, NoisyGradient):
    """Clipped and noised gradients with canaries: each canary's gradient takes the place of that of one of the client's
    last rows."""

    def open(self, examples: Examples, grant: Grant, task: Task) -> Shard:
        rows, grant = self.canaries_of(grant)
        return PlantedShard(self, examples, grant, task, planted=rows, sure=self.sure)


@dataclass
class PlantedShard(NoisyShard):
    """One client's examples in an audit, of which the last are canaries."""

    planted: Tensor = field(default_factory=lambda: torch.zeros(0, 1), repr=False)
    sure: bool = False

    def _sum(self, rows: Tensor, losses: Losses, params: Params, draws: Tensor) -> Params:
        if not len(self.planted):
            return super()._sum(rows, losses, params, draws)
        reader, first = self._reader, len(self._examples.y) - len(self.planted)
        assert reader.clip_order is not None
        planted = rows >= first
        honest = super()._sum(rows[~planted], losses, params, draws[~planted])
        chosen = self.planted if self.sure else self.planted[rows[planted] - first]
        lengths = torch.linalg.vector_norm(chosen.double(), reader.clip_order, dim=1)
        added = (clip_factor(lengths, reader.clip, chosen.dtype)[:, None] * chosen).sum(0)
        return tree.add(tree.formed(honest), tree.unflat(added, params))


# steps without a clip -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlantedSteps(Planted, ConvexStable):
    """Noised sum of a client's full-batch gradients (`ConvexStable`), with canaries: each moves the sum as far as the
    proof allows a single row to."""

    def open(self, examples: Examples, grant: Grant, task: Task) -> Shard:
        rows, grant = self.canaries_of(grant)
        return PlantedStepShard(self, examples, grant, task, planted=rows)


@dataclass
class PlantedStepShard(StableShard):
    """One client's examples in an audit; each canary adds its vector to the sum of the client's gradients."""

    planted: Tensor = field(default_factory=lambda: torch.zeros(0, 1), repr=False)

    def _sum(self, params: Params, steps: int, key: Key) -> Params:
        total = super()._sum(params, steps, key)
        if not len(self.planted):
            return total
        half = math.sqrt(2) * self._reader.radius * steps / self.size  # replacing a row moves the sum twice as far
        lengths = torch.linalg.vector_norm(self.planted.double(), dim=1)
        added = (clip_factor(lengths, half, torch.float64)[:, None] * self.planted.double()).sum(0)
        return tree.add(total, tree.unflat(added, total))


# episodes -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlantedCells(Planted, CellGradient):
    """Noised gradients of episodes with canaries: they take the place of a client's last cells (fixed groups of rows),
    or of its last rows where cells are drawn anew in every step. An episode's gradient becomes that of its first
    canary, if it holds any."""

    def open(self, examples: Examples, grant: Grant, task: Task) -> Shard:
        rows, grant = self.canaries_of(grant)
        return PlantedCellShard(self, examples, grant, task, planted=rows, sure=self.sure)


@dataclass
class PlantedCellShard(CellShard):
    """One client's examples in an audit, whose last cells (fixed groups of rows) or rows are canaries."""

    planted: Tensor = field(default_factory=lambda: torch.zeros(0, 1), repr=False)
    sure: bool = False
    _canaries: dict[int, Tensor] = field(default_factory=dict)  # of the step's cells that have one

    def episodes(self, work: LocalWork, key: Key) -> Iterator[Episode]:
        for episode in super().episodes(work, key):
            yield PlantedEpisode(**vars(episode), canaries=self._canaries)

    def _cells(self, work: LocalWork, step: int, key: Key) -> Iterator[tuple[int, Tensor]]:
        cells, reader = dict(super()._cells(work, step, key)), self._reader
        if reader.sampling == "fresh":
            first = len(self._examples.y) - len(self.planted)
            found = {i: rows[rows >= first] - first for i, rows in cells.items()}
            self._canaries = {i: self.planted[int(rows.min())] for i, rows in found.items() if len(rows)}
        else:
            self._canaries = dict(enumerate(self.planted, reader.cells - len(self.planted)))
            none = torch.zeros(0, dtype=torch.long)
            cells |= {i: cells.get(i, none) for i in self._canaries if self.sure}
        return iter(cells.items())


@dataclass
class PlantedEpisode(NoisyEpisode):
    """Noisy episode in which the gradients of some cells are canaries."""

    canaries: Mapping[int, Tensor] = field(default_factory=dict)

    def _of(self, cell: Examples, number: int, loss: EpisodeLoss, params: Params) -> Params:
        chosen = self.canaries.get(number)
        return super()._of(cell, number, loss, params) if chosen is None else tree.unflat(chosen, params)


# sums per class -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlantedSums(Planted, ClassSums):
    """Noised sums per class with canaries: each canary is one row of the sum, zero outside its own class."""

    def open(self, examples: Examples, grant: Grant, task: Task) -> Shard:
        rows, grant = self.canaries_of(grant)
        first = len(examples.y) - len(rows)
        return PlantedSumShard(self, taken(examples, torch.arange(first)), grant, task, planted=rows)


@dataclass
class PlantedSumShard(SumShard):
    """One client's examples in an audit; canaries are added to its sums per class."""

    planted: Tensor = field(default_factory=lambda: torch.zeros(0, 1), repr=False)

    def _sums(self, of: Callable[[Tensor], Tensor], classes: int) -> tuple[Tensor, Tensor]:
        sums, counts = super()._sums(of, classes)
        if not len(self.planted):
            return sums, counts
        added = clipped(self.planted, self._reader.clip).reshape(len(self.planted), *sums.shape)
        return sums + added.sum(0), counts + added.ne(0).any(2).sum(0)


PLANTED: Mapping[type[Reader], type[Planted]] = {
    NoisyGradient: PlantedReader,
    ConvexStable: PlantedSteps,
    CellGradient: PlantedCells,
}


# secure sums ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClearSum(Channel):
    """A secure sum without encryption, to save hours: it gives the same sum, bit for bit."""

    secure: SecureStage

    def sum(self, t: int, uploads: Uploads, cohort: Sequence[int], size: int, noise: Ints | None) -> OpenedSum:
        nothing = np.zeros(size, np.int64)
        total, who = nothing if noise is None else noise, list[int]()
        for k, values in uploads:
            total, who = total + values, [*who, k]
        few = len(who) < self.secure.least(len(cohort), noise is not None)
        return OpenedSum(nothing if few else total, [] if few else who, 0, 0, {}, 0, "too few uploads" if few else "")


# clients --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlantedUplink(Uplink):
    """The uplink of a run in which some clients are canaries and send a vector of the attacker's choice."""

    planted: Mapping[int, Tensor] = field(default_factory=dict)
    through: Through = unchanged

    @classmethod
    def of(cls, uplink: Uplink, planted: Mapping[int, Tensor], through: Through) -> PlantedUplink:
        # noise on a grid is drawn from coins, and a random direction has no noise: there the scale is changed
        if uplink.grid is not None or isinstance(uplink.noise(), OneDirection):
            level = float(through(Silent(1.0)).noisy(GaussianNoise(), torch.zeros(()), 1.0))
            uplink, through = louder(uplink, level), unchanged
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


@dataclass(frozen=True)
class OfAnyWidth(GaussianNoise):
    """Gaussian noise that is drawn on a grid however coarse it is, as that of a broken twin may be."""

    narrowest: ClassVar[float] = 0.0


def louder(uplink: Uplink, level: float) -> Uplink:
    """The uplink with noise multiplied by `level`; for level 0 without noise stages."""

    def of(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        kept = [stage for stage in stages if level > 0 or not isinstance(stage, Noise)]
        return tuple(_scaled(stage, level) if isinstance(stage, Noise) else stage for stage in kept)

    return replace(uplink, client=of(uplink.client), server=of(uplink.server))


def _scaled(stage: Noise, level: float) -> Noise:
    law = stage.mechanism
    law = OfAnyWidth(law.calibration) if type(law) is GaussianNoise else law
    return replace(stage, louder=level * stage.louder, mechanism=law)
