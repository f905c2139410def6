"""Worst-case neighbours of one example: a gradient or statistic far beyond the clip, against its opposite or against
none; and of an image under randomised response: a black one against a white one.

The rows are constructed so that only example j changes coordinate j: one release attacks every example at once, each
through coordinates of its own. The reader is the experiment's own; the attacker chooses the gradients, as a malicious
model could.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from sordino import tree
from sordino.audits.lower_bounds import FAR, Pair, Release
from sordino.audits.noise_sources import Rare, Silent, Weak
from sordino.errors import DataError
from sordino.privacy.readers import taken
from sordino.privacy.readers.class_sums import ClassSums
from sordino.privacy.readers.episodes import CellGradient
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.privacy.readers.responses import Responses
from sordino.tasks.quadratic import Quadratic
from sordino.types import Examples, Grant, LocalWork, Neighbours, NoiseSource, Params, Shard, Task, Unit

ROWS = 200  # examples of the synthetic client
READS = 4  # most noisy reads of one round: later ones show the same
WIDTH = 4  # coordinates of a statistic
IMAGES = 2000  # synthetic images
SIDE = 4  # pixels of their side: the answer for one value does not depend on the others
Attacked = NoisyGradient | CellGradient | ClassSums
WORDS: dict[Neighbours, str] = {
    "replace": "a gradient of any length against its opposite",
    "zero_out": "a gradient of any length against none",
}
SHOWN: dict[Unit, str] = {
    "pixel": "a black value against a white one",
    "image": "a black image against a white one",
    "example": "a black image of one class against a white one of another",
}


def fewer(reader: Attacked, work: LocalWork, size: int) -> LocalWork:
    """A client's work in one round, cut to at most READS steps that read data with noise."""
    if isinstance(reader, ClassSums):
        return work  # it is read once
    reads = min(READS, reader.reads(work, size))
    if isinstance(reader, CellGradient):
        return LocalWork(None, 1 if reader.sampling == "fresh" else reads, 4 * reader.cells)
    return replace(work, epochs=reads) if reader.sampling == "fixed_batches" else LocalWork(None, reads, None)


def rows(reader: Attacked) -> int:
    """Number of rows in the attack, enough to fill every sample: whole episodes in each cell, several examples in a
    subset."""
    if isinstance(reader, CellGradient):
        return (4 if reader.sampling == "poisson" else 8) * reader.cells
    if isinstance(reader, NoisyGradient) and reader.sampling == "fixed_subset":
        return min(1000, math.ceil(ROWS / reader.rate))
    return ROWS


def pair(reader: Attacked, work: LocalWork, client: int, multiplier: float | None) -> Pair:
    if isinstance(reader, ClassSums):
        return statistics(reader, multiplier)
    if isinstance(reader, CellGradient):
        return cells(reader, work, client, multiplier)
    return gradients(reader, work, client, multiplier)


# gradients ------------------------------------------------------------------------------------------------------------


def gradients(reader: NoisyGradient, work: LocalWork, client: int, multiplier: float | None) -> Pair:
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
    read = (here(Silent()) != release(against)(Silent())).any(1)  # the rows of a subset, or a batch, are public
    return Pair(
        WORDS[reader.neighbours],
        lambda source: release(against)(source)[read],
        lambda source: here(source)[read],
        rate=1.0 if reader.neighbours == "replace" else reader.sampled or 1.0,
    )


def _linear(params: Params, x: Tensor, y: Tensor, draws: Tensor) -> Tensor:
    """A loss whose gradient for example i is row i of x, so that the attacker chooses gradients by choosing rows."""
    return (x * params["w"]).sum(1)


# episodes -------------------------------------------------------------------------------------------------------------


def cells(reader: CellGradient, work: LocalWork, client: int, multiplier: float | None) -> Pair:
    size, hidden = rows(reader), reader.sampling == "poisson"
    single = FAR * max(1.0, reader.clip) * torch.eye(size, dtype=torch.float64)

    def release(values: Tensor) -> Release:
        def seen(source: NoiseSource) -> Tensor:
            shard = _opened(reader, values, size, client, multiplier, source)
            params = {"w": torch.zeros(size, dtype=torch.float64)}
            return torch.stack([episode.grad(_episode, params)["w"] for episode in shard.episodes(work, 1)])

        return seen

    if hidden:
        # which examples lie in which cell is public: noiseless sampling of one cell shows them
        here, absent = release(single), release(0 * single)
        masks = torch.stack([here(Silent(only=cell)) != 0 for cell in range(reader.cells)]).flatten(1)
        attack = "a cell whose episode has a gradient of any length against none"
        return Pair(
            attack, lambda source: absent(source).flatten() * masks, lambda source: here(source).flatten() * masks
        )
    alone = _one_each(single, lambda values: release(values)(Silent())[0])
    chosen = torch.zeros(size, 1).index_fill(0, torch.tensor(alone), 1.0) * single
    here, turned = release(chosen), release(-chosen)
    attack = "an example that turns its episode around"
    return Pair(attack, lambda source: turned(source).T[alone], lambda source: here(source).T[alone])


def _one_each(single: Tensor, quiet: Callable[[Tensor], Tensor]) -> list[int]:
    """Examples that each have an episode to themselves, so that no two are clipped together."""
    alone: list[int] = []
    for row in range(len(single)):
        tried = torch.zeros(len(single), dtype=torch.bool).index_fill(0, torch.tensor([*alone, row]), True)
        moved = quiet(single * tried[:, None])[tried]
        if row == 0:
            reach = float(moved)  # effect of an example that is alone in its episode
        if float(moved.min()) > 0.9 * reach:
            alone.append(row)
    return alone


def _episode(params: Params, support: Examples, query: Examples, draws: Tensor) -> Tensor:
    """A loss whose gradient for an episode is the sum of the episode's rows, so that the attacker chooses gradients by
    choosing rows."""
    return ((support.x.sum(0) + query.x.sum(0)) * params["w"]).sum()


# statistics -----------------------------------------------------------------------------------------------------------


def statistics(reader: ClassSums, multiplier: float | None) -> Pair:
    """Neighbours for sums per class: one attacked example of each class, present or absent. Each class has a second
    example in the opposite direction, half as long, which exposes an implementation that clips sums instead of rows."""
    towards = torch.full((ROWS, WIDTH), FAR * max(1.0, reader.clip), dtype=torch.float64)
    examples = Examples(torch.cat([2 * towards, -towards]), torch.arange(ROWS).repeat(2))
    return class_sums(reader, examples, torch.arange(ROWS), lambda x: x, Quadratic(WIDTH), multiplier)


def class_sums(
    reader: ClassSums,
    examples: Examples,
    targets: Tensor,
    of: Callable[[Tensor], Tensor],
    task: Task,
    multiplier: float | None,
) -> Pair:
    """Audit pair for released sums per class: the data with and without the attacked examples. `targets`: their row
    numbers, one for each class. Each class has noise of its own, so one release attacks all targets independently.
    `examples.x` may be features already, with `of` the identity.
    """
    labels, size, classes = examples.y[targets], len(examples.y), int(examples.y.max()) + 1
    apart = len(set(labels.tolist()))
    if apart < len(labels):
        raise DataError(
            f"{len(labels)} target examples, but of only {apart} different classes",
            why="the attack tests the promise for one example at a time: two examples of the same class would "
            "change the same sum",
            fix="choose one example of each class",
            code="targets-share-a-class",
        )
    kept = torch.ones(size, dtype=torch.bool).index_fill(0, targets, False)

    def release(rows: Examples) -> Release:
        def seen(source: NoiseSource) -> Tensor:
            shard = reader.open(rows, Grant(0, size, size, source, multiplier), task)
            sums, counts = shard.by_class(of, classes)
            columns = torch.cat([sums, counts[:, None]], 1) if reader.count else sums
            return columns[labels]

        return seen

    return Pair(
        "an example in its class's sum, or not", release(taken(examples, kept.nonzero()[:, 0])), release(examples)
    )


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


# answers for images ---------------------------------------------------------------------------------------------------


def answers(reader: Responses, unit: Unit) -> Pair:
    """Neighbours of an image under randomised response, with many synthetic images in one release. The epsilon for an
    image stays divided among as many values as a real image has."""
    each = replace(reader, epsilon=reader.each, of="value", delta=0.0, side=None)

    def release(white: bool) -> Release:
        x = torch.zeros(IMAGES, SIDE, SIDE, 1, dtype=torch.uint8)
        x[:, 0, 0, 0] = 255 * white
        if unit != "pixel":
            x[:] = 255 * white
        y = torch.full((IMAGES,), int(white and unit == "example"), dtype=torch.int64)

        def seen(source: NoiseSource) -> Tensor:
            coins = Rare(source.inner, source.factor) if isinstance(source, Weak) else source
            answers = each.prepare(Examples(x, y), coins)
            values = answers.x.flatten(1).double() / 255
            label = answers.y.double()[:, None] if unit == "example" else values[:, :0]
            return torch.cat([values[:, :1] if unit == "pixel" else values, label], 1)

        return seen

    return Pair(SHOWN[unit], release(False), release(True), score=_extremes)


def _extremes(seen: Tensor) -> Tensor:
    """Test statistic for randomised response: number of answers with the largest value, minus that with the
    smallest.
    """
    return ((seen == 1).double() - (seen == 0).double()).sum(1)
