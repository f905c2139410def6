"""Episodes: a loss over two sets of examples at once, such as queries against prototypes. It has no gradient of a
single example to clip, so it is clipped and noised here.

`draw` gives two disjoint batches, redrawn until the support holds every class of the query (Li, Xiao and Chen 2024).
`CellGradient` protects cells, which are fixed groups of a client's examples: an episode within a cell depends on no
other example, so its clipped gradient protects the cell as an example's clipped gradient protects the example.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch

from sordino import keys, tree
from sordino.accounting.claims import is_real
from sordino.accounting.events import NonPrivate
from sordino.device import here
from sordino.errors import COUNT, FRACTION, ConfigError, DataError, PrivacyError, check_range
from sordino.keys import Key
from sordino.privacy.noise import GaussianNoise
from sordino.privacy.readers import ClippedReader, GuardedShard, check_reservation, check_unread, gradient, taken
from sordino.privacy.uplink.stages import Clip
from sordino.types import (
    Bound,
    Claim,
    Episode,
    EpisodeLoss,
    Examples,
    Grant,
    LocalWork,
    Neighbours,
    Params,
    Shard,
    Task,
    Tensor,
    Unit,
)

TRIES = 100
ONE_EPISODE = "an example is in at most one episode of a step"
FIXED = (
    "each client's examples are divided once into {} cells, by their public number; one that counts for nothing leaves "
    "the others as they were dealt"
)
IN_CELL = "the noise covers cells"


def draw(labels: Tensor, each: int, key: Key) -> tuple[Tensor, Tensor]:
    """Row indices of a support batch and of a query batch, `each` rows long; each has half of the rows where there are
    too few. It redraws up to TRIES times until the support holds every class of the query.
    """
    what, each = labels.cpu().numpy(), min(each, len(labels) // 2)
    for attempts in (range(1), range(1, 16), range(16, TRIES)):
        orders = keys.order([keys.word(keys.fold(key, attempt)) for attempt in attempts], len(labels))
        support, query = orders[:, :each], orders[:, each : 2 * each]
        every = np.arange(len(attempts))[:, None]
        held = np.zeros((len(attempts), int(what.max(initial=0)) + 1), dtype=bool)
        held[every, what[support]] = True
        good = held[every, what[query]].all(1)
        if good.any():
            break
    first = int(good.argmax()) if good.any() else -1
    return here(torch.from_numpy(support[first])), here(torch.from_numpy(query[first]))


def _enough(labels: Tensor) -> bool:
    return len(labels) > 1 and bool((labels != labels[0]).any())


def check_rows(labels: Tensor, client: int) -> None:
    if not _enough(labels):
        raise DataError(
            f"client {client} has {len(labels)} examples of {len(torch.unique(labels))} classes",
            why="an episode needs at least two examples of at least two classes",
            fix="leave this client out, or partition so that every client holds at least two classes",
            code="no-episode",
        )


@dataclass(frozen=True)
class OpenEpisode:
    """One episode, a support batch and a query batch of examples, with exact gradients: no clip, no noise."""

    _support: Examples = field(repr=False)
    _query: Examples = field(repr=False)
    _draws: Tensor = field(repr=False)

    def grad(self, loss: EpisodeLoss, params: Params) -> Params:
        from sordino.fast.graphs import owner_of, replayed  # not before: who only prices noise takes no gradient

        def slopes(params: Params, x: Tensor, y: Tensor, asked: Tensor, answers: Tensor, draws: Tensor) -> Params:
            rows = Examples(x, y), Examples(asked, answers)
            return gradient(lambda leaves: loss(leaves, *rows, draws), params)

        return replayed(owner_of(loss), "episode", slopes, params, *self._support, *self._query, self._draws)


def opened(examples: Examples, effort: LocalWork, grant: Grant, key: Key) -> Iterator[Episode]:
    """One open episode for each step; `batch_size` is the size of the support and of the query. A client that cannot
    form an episode is refused; under noise, where that must not show, it gets no episodes, and so sends the model that
    it received.
    """
    if grant.multiplier is None and not is_real(grant.source.name):  # noise as published has no multiplier
        check_rows(examples.y, grant.client)
    elif not _enough(examples.y):
        return
    labels = examples.y.cpu()
    for step in range(effort.count(len(labels))):
        own_key = keys.fold(key, "episode", step)
        support, query = draw(labels, effort.batch(len(examples.y)), own_key)
        rows = torch.cat([support, query])
        yield OpenEpisode(taken(examples, support), taken(examples, query), keys.bits(own_key, len(rows)))


@dataclass(frozen=True)
class CellGradient(ClippedReader):
    """Clipped and noised gradients of episodes, each drawn within a cell (a fixed group of a client's examples): (sum
    of the cells' clipped gradients + noise) / public number, at every step.

    sampling
        poisson   `cells` fixed cells; each takes part in a step with probability `rate`, redrawn and kept secret; the
                  sum is divided by rate * cells. Neighbours: zero_out of a cell; changing an example counts twice.
        fresh     2 * batch_size examples drawn for the step and dealt into `cells` episodes, without amplification.
                  Neighbours: replace of an example.

    Guarantees: the mechanism's event per step, for one cell (fresh: one example) of a client, against everybody who
    sees what the client sends. Proof: a cell's episode reads nothing but the cell; the other summands are the same and
    cancel; triangle inequality.
    """

    clip: float
    cells: int = 10
    sampling: Literal["poisson", "fresh"] = "poisson"
    rate: float = 0.2
    mechanism: GaussianNoise = GaussianNoise()
    multiplier: float | None = None  # None: the plan decides from the budget
    gives = ("episodes",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("cells", self.cells, COUNT, "rate-out-of-range")
        check_range("rate", self.rate, FRACTION, "rate-out-of-range")

    @property
    def unit(self) -> Unit:
        return "example" if self.sampling == "fresh" else "cell"

    @property
    def neighbours(self) -> Neighbours:
        return "replace" if self.sampling == "fresh" else "zero_out"

    @property
    def sampled(self) -> float | None:
        return None if self.sampling == "fresh" else self.rate

    @property
    def because(self) -> tuple[str, ...]:
        return (ONE_EPISODE,) if self.sampling == "fresh" else (FIXED.format(self.cells),)

    def claims(self, work: LocalWork, size: int, multiplier: float | None) -> list[Claim]:
        cells = super().claims(work, size, multiplier)
        if self.sampling == "fresh":
            return cells
        return cells + Claim.to_everyone("example", "replace", NonPrivate(IN_CELL), "none", (IN_CELL,))

    @property
    def sensitivity(self) -> float:
        """Sensitivity of the sum: clip where a cell is counted or not, 2 * clip where one example may reverse its
        episode's gradient.
        """
        return self.clip if self.sampling == "poisson" else 2 * self.clip

    @property
    def denominator(self) -> float:
        """The public number that the noisy sum is divided by."""
        return self.cells * (self.rate if self.sampling == "poisson" else 1)

    def reads(self, work: LocalWork, size: int) -> int:
        return work.count(size)

    def check(self, work: LocalWork, task: Task) -> None:
        super().check(work, task)
        if work.steps is None:
            raise ConfigError(
                "episodes need a number of steps",
                why="every step must be paid for before the round starts",
                fix="set algorithm.local_steps",
                code="episodes-need-steps",
            )

    def open(self, examples: Examples, grant: Grant, task: Task) -> Shard:
        return CellShard(self, examples, grant, task)


@dataclass
class CellShard(GuardedShard[CellGradient]):
    """One client's examples, divided into cells (fixed groups), during one round."""

    _opened: bool = False

    def refused(self, what: str) -> PrivacyError:
        return PrivacyError(
            f"the algorithm asks for {what}, but the reader gives episodes",
            why="the promise of this reader covers episodes within cells and nothing else",
            fix="ask for shard.episodes, or use another reader",
            code="episodes-only",
        )

    def episodes(self, work: LocalWork, key: Key) -> Iterator[Episode]:
        effort = work if self._grant.epochs is None else LocalWork(None, self._grant.epochs, work.batch_size)
        reads = self._reader.reads(effort, self.size)
        check_reservation(self._opened, reads, self._grant.reads, "episodes")
        self._opened = True
        for step in range(reads):
            own_key = keys.fold(key, "episode", step)
            cells = [(i, taken(self._examples, rows)) for i, rows in self._cells(effort, step, own_key)]
            yield NoisyEpisode(self._reader, cells, self._grant, self._task, step, own_key)

    def _cells(self, work: LocalWork, step: int, key: Key) -> Iterator[tuple[int, Tensor]]:
        """The cells (groups of examples) chosen for this step, each with its number and its rows. Draws within a cell
        depend on its number only, not on which others were chosen.
        """
        reader, n = self._reader, self.size
        if reader.sampling == "fresh":
            order, chosen = keys.permutation(key, n)[: 2 * work.batch(n)], list(range(reader.cells))
        else:
            order = keys.permutation(keys.fold(keys.root(self._grant.client), "cells"), n)  # the same in every round
            coins = self._grant.source.child("sample", step).coins(reader.cells, reader.rate)
            chosen = torch.nonzero(coins).flatten().tolist()
        parts = torch.tensor_split(order, reader.cells)
        return ((i, parts[i][parts[i] < len(self._examples.y)]) for i in chosen)


@dataclass
class NoisyEpisode:
    """Episode of one cell after the other, whose gradients are clipped and noised."""

    _reader: CellGradient
    _cells: list[tuple[int, Examples]] = field(repr=False)
    _grant: Grant
    _task: Task = field(repr=False)
    _step: int
    _key: Key
    _read: bool = False

    def grad(self, loss: EpisodeLoss, params: Params) -> Params:
        """The noisy sum of clipped gradients, one per cell (group of examples) chosen for this step, divided by a
        public number.
        """
        from sordino.fast.row_sums import RunningSum

        check_unread(self._read, "an episode", "call grad once per episode")
        self._read = True
        reader, clip = self._reader, Clip(self._reader.clip)
        total = {name: RunningSum(torch.zeros_like(p, dtype=torch.float64)) for name, p in params.items()}
        with self._task.still(loss, params=params):
            for number, cell in self._cells:
                for name, g in clip.encode(self._of(cell, number, loss, params), Bound(), self._grant).items():
                    total[name].add(g)
        scale = reader.used(self._grant.multiplier) * reader.sensitivity
        source = self._grant.source.child("read", self._step)
        noisy = {n: reader.mechanism.add(each.sum(), scale, source.child(n)) for n, each in total.items()}
        return {name: (value / reader.denominator).to(params[name].dtype) for name, value in noisy.items()}

    def _of(self, cell: Examples, number: int, loss: EpisodeLoss, params: Params) -> Params:
        """The gradient of an episode (support and query) drawn from one cell of the client's examples; zero where the
        cell has fewer than two.
        """
        if len(cell.y) < 2:
            return tree.zeros_like(params)
        cell_key = keys.fold(self._key, "cell", number)
        support, query = draw(cell.y, len(cell.y) // 2, cell_key)
        draws = keys.bits(cell_key, len(support) + len(query))
        return OpenEpisode(taken(cell, support), taken(cell, query), draws).grad(loss, params)
