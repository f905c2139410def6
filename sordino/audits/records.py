"""One example's worst case: a gradient, or a statistic, far beyond the clip against its opposite, against none, or
against the example's absence.

The rows are made up, so that example j alone moves coordinate j: one release attacks every example at once, each
through numbers that no other one reaches. The reader is the experiment's own; gradients are chosen by the attacker, as
a bad model could choose them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from sordino import tree
from sordino.audits import sums
from sordino.audits.noise_sources import Silent
from sordino.audits.pairs import FAR, Pair, Release
from sordino.privacy.readers.class_sums import ClassSums
from sordino.privacy.readers.episodes import CellGradient
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.tasks.quadratic import Quadratic
from sordino.types import Examples, Grant, Neighbours, NoiseSource, Params, Shard, Work

ROWS = 200  # examples of the made-up client
READS = 4  # of one round, at most: later ones cost as much and show the same
WIDTH = 4  # of a statistic
Attacked = NoisyGradient | CellGradient | ClassSums
WORDS: dict[Neighbours, str] = {
    "replace": "a gradient of any length against its opposite",
    "zero_out": "a gradient of any length against none",
}


def fewer(reader: Attacked, work: Work, size: int) -> Work:
    """The work of one round, cut to READS noisy reads."""
    if isinstance(reader, ClassSums):
        return work  # it is read once
    reads = min(READS, reader.reads(work, size))
    if isinstance(reader, CellGradient):
        return Work(None, 1 if reader.sampling == "fresh" else reads, 4 * reader.cells)
    return replace(work, epochs=reads) if reader.sampling == "fixed_batches" else Work(None, reads, None)


def rows(reader: Attacked) -> int:
    """A number of rows at which everybody is read: whole episodes in a cell, several examples in a subset."""
    if isinstance(reader, CellGradient):
        return (4 if reader.sampling == "poisson" else 8) * reader.cells
    if isinstance(reader, NoisyGradient) and reader.sampling == "fixed_subset":
        return min(1000, math.ceil(ROWS / reader.rate))
    return ROWS


def pair(reader: Attacked, work: Work, client: int, multiplier: float | None) -> Pair:
    if isinstance(reader, ClassSums):
        return statistics(reader, multiplier)
    if isinstance(reader, CellGradient):
        return cells(reader, work, client, multiplier)
    return gradients(reader, work, client, multiplier)


# gradients ------------------------------------------------------------------------------------------------------------


def gradients(reader: NoisyGradient, work: Work, client: int, multiplier: float | None) -> Pair:
    size = rows(reader)
    towards = FAR * max(1.0, reader.clip) * torch.eye(size, dtype=torch.float64)
    against = {"replace": -towards, "zero_out": 0 * towards}[reader.neighbours]

    def release(values: Tensor) -> Release:
        def seen(source: NoiseSource) -> Tensor:
            shard = _opened(reader, values, size, client, multiplier, source)
            params = {"w": torch.zeros(size, dtype=torch.float64)}
            reads = [tree.formed(batch.grad(_linear, params))["w"] for batch in shard.batches(work, 1)]
            return torch.stack(reads, 1)

        return seen

    here = release(towards)
    read = (here(Silent()) != release(against)(Silent())).any(1)  # who is in a subset, or a batch, is public
    return Pair(
        WORDS[reader.neighbours],
        lambda source: release(against)(source)[read],
        lambda source: here(source)[read],
        rate=1.0 if reader.neighbours == "replace" else reader.sampled or 1.0,
    )


def _linear(params: Params, x: Tensor, y: Tensor, draws: Tensor) -> Tensor:
    """The gradient of example i is row i of x."""
    return (x * params["w"]).sum(1)


# episodes -------------------------------------------------------------------------------------------------------------


def cells(reader: CellGradient, work: Work, client: int, multiplier: float | None) -> Pair:
    size, hidden = rows(reader), reader.sampling == "poisson"
    single = FAR * max(1.0, reader.clip) * torch.eye(size, dtype=torch.float64)

    def release(values: Tensor) -> Release:
        def seen(source: NoiseSource) -> Tensor:
            shard = _opened(reader, values, size, client, multiplier, source)
            params = {"w": torch.zeros(size, dtype=torch.float64)}
            return torch.stack([episode.grad(_episode, params)["w"] for episode in shard.episodes(work, 1)])

        return seen

    if hidden:
        # which examples lie in which cell is public: coins that choose one cell show them
        here, absent = release(single), release(0 * single)
        masks = torch.stack([here(Silent(only=cell)) != 0 for cell in range(reader.cells)]).flatten(1)
        told = "a cell whose episode has a gradient of any length against none"
        return Pair(
            told, lambda source: absent(source).flatten() * masks, lambda source: here(source).flatten() * masks
        )
    alone = _one_each(single, lambda values: release(values)(Silent())[0])
    chosen = torch.zeros(size, 1).index_fill(0, torch.tensor(alone), 1.0) * single
    here, turned = release(chosen), release(-chosen)
    told = "an example that turns its episode around"
    return Pair(told, lambda source: turned(source).T[alone], lambda source: here(source).T[alone])


def _one_each(single: Tensor, quiet: Callable[[Tensor], Tensor]) -> list[int]:
    """Examples no two of which share an episode, and with it a clip."""
    alone: list[int] = []
    for row in range(len(single)):
        tried = torch.zeros(len(single), dtype=torch.bool).index_fill(0, torch.tensor([*alone, row]), True)
        moved = quiet(single * tried[:, None])[tried]
        if row == 0:
            reach = float(moved)  # of an example that has its episode for itself
        if float(moved.min()) > 0.9 * reach:
            alone.append(row)
    return alone


def _episode(params: Params, support: Examples, query: Examples, draws: Tensor) -> Tensor:
    """The gradient of an episode is the sum of its rows."""
    return ((support.x.sum(0) + query.x.sum(0)) * params["w"]).sum()


# statistics -----------------------------------------------------------------------------------------------------------


def statistics(reader: ClassSums, multiplier: float | None) -> Pair:
    """One example of each class, counted or not. Another one of the class, half as long, points the other way:
    where sums are clipped and not rows, one example turns them around.
    """
    towards = torch.full((ROWS, WIDTH), FAR * max(1.0, reader.clip), dtype=torch.float64)
    examples = Examples(torch.cat([2 * towards, -towards]), torch.arange(ROWS).repeat(2))
    return sums.pair(reader, examples, torch.arange(ROWS), lambda x: x, Quadratic(WIDTH), multiplier)


def _opened(
    reader: NoisyGradient | CellGradient,
    values: Tensor,
    size: int,
    client: int,
    multiplier: float | None,
    source: NoiseSource,
) -> Shard:
    return reader.open(
        Examples(values, torch.zeros(len(values), dtype=torch.long)),
        Grant(client, size, size, source, multiplier),
        Quadratic(size),
    )
