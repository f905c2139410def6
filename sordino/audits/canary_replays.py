"""Canary scores for each guarantee: which kind of canary attacks it, and its scores over all replays and phases.

Canary images attack randomised response: their values, or whole images, are black or white by a coin, and the attacker
reads all answers that clients train on, in every round of a replay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from sordino import keys
from sordino.accounting.claims import Subject
from sordino.audits.canaries import SHARE, Canaries, CanaryClients, CanaryDirections, CanaryExamples, CanaryRowsOfSums
from sordino.audits.canary_rounds import CanaryRounds, CanaryScores
from sordino.audits.noise_sources import Rare
from sordino.audits.replay import BEGINNING, Changed, PhaseStart, Replay, raw
from sordino.engine.client_states import PreparedShards
from sordino.privacy.noise.sources import Counter, for_run
from sordino.privacy.readers.class_sums import ClassSums
from sordino.privacy.readers.responses import Responses
from sordino.runs.simulation import Simulation
from sordino.types import Examples, Grant, Shard, Task


@dataclass(frozen=True)
class RecordedResponses(Responses):
    """Randomised response as in the run, which also records the answers for canary images. `images`: for each client
    with canaries, how many of its last rows are canary images."""

    images: Mapping[int, int] = field(default_factory=dict)
    heard: list[tuple[int, Examples]] = field(default_factory=list, compare=False)

    def open(self, examples: Examples, grant: Grant, task: Task) -> Shard:
        if many := self.images.get(grant.client, 0):
            self.heard.append((grant.client, Examples(examples.x[-many:], examples.y[-many:])))
        return super().open(examples, grant, task)


@dataclass(frozen=True)
class CanaryImages(Canaries):
    """Canaries in images, at many clients: each value of some of their images is a canary, or each of these images."""

    def unfit(self) -> str:
        if not isinstance(self.gates.read, Responses):
            return "canaries cannot be placed behind this reader"
        low, high = self.sides
        if bool((low.x == high.x).flatten(1)[:, self.places].any()):
            return "one value changes no response: too many values are averaged"
        return "" if self.owners else "no client has two rows"

    @property
    def reader(self) -> Responses:
        reader = self.gates.read
        assert isinstance(reader, Responses)
        return reader

    @property
    def each_value(self) -> bool:
        """True if every value of a canary image is a canary."""
        return self.subject.unit == "pixel"

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.simulation.setup.public.shape)

    @cached_property
    def places(self) -> Tensor:
        """Positions in a flattened image of the pixels that are canaries, one for each value that randomised response
        answers.
        """
        h, w, c = self.shape
        side = self.reader.side
        grid = torch.arange(h * w * c).reshape(h, w, c)
        return (grid if side is None else grid[:: h // side, :: w // side]).flatten()

    @cached_property
    def sides(self) -> tuple[Examples, Examples]:
        """Answers of randomised response without its randomness: for an absent canary image, and for a present one."""
        image = torch.zeros(1, *self.shape, dtype=torch.uint8)
        black = Examples(image, torch.zeros(1, dtype=torch.int64))
        spots = self.places if self.each_value else slice(None)
        white = image.flatten(1).index_fill(1, torch.arange(image.numel())[spots], 255).reshape(image.shape)
        true = Rare(Counter(0), float("inf"))
        return self.reader.prepare(black, true), self.reader.prepare(Examples(white, black.y + 1), true)

    @cached_property
    def images(self) -> dict[int, int]:
        """Number of canary images of each client."""
        sizes = self.simulation.setup.public.sizes
        room = {k: int(SHARE * size) for k, size in enumerate(sizes) if size > 1}
        wanted, found = -(-self.wanted // self.of_one), dict[int, int]()
        while sum(found.values()) < wanted and (free := [k for k in room if found.get(k, 0) < room[k]]):
            found |= {k: found.get(k, 0) + 1 for k in free[: wanted - sum(found.values())]}
        return dict(sorted(found.items()))

    @property
    def of_one(self) -> int:
        """Number of canaries in one image: one for each of its values, or 1 where the whole image is the canary."""
        return len(self.places) if self.each_value else 1

    @cached_property
    def owners(self) -> list[int]:
        return [k for k, many in self.images.items() for _ in range(many * self.of_one)]

    def planted(self, coins: Tensor) -> dict[int, Examples]:
        """Canary images of each client, black or white as the coins decide."""
        found, start = dict[int, Examples](), 0
        for k, many in self.images.items():
            own_coins = coins[start : start + many * self.of_one].reshape(many, self.of_one)
            x = torch.zeros(many, math.prod(self.shape), dtype=torch.uint8)
            if self.each_value:
                x[:, self.places] = 255 * own_coins.to(torch.uint8)
            else:
                x[own_coins[:, 0]] = 255
            # the label is given, unless it is answered too
            y = own_coins[:, 0].long() if self.subject.unit == "example" else torch.zeros(many, dtype=torch.int64)
            found[k] = Examples(x.reshape(many, *self.shape), y)
            start += many * self.of_one
        return found

    def likelier(self, answers: Examples) -> Tensor:
        """Log likelihood ratio of present against absent for each canary, given the randomised answers."""
        low, high = self.sides
        values = answers.x.flatten(1)[:, self.places].int()
        signs = [(values == side.x.flatten(1)[:, self.places].int()).double() for side in (high, low)]
        each = self.reader.each * (signs[0] - signs[1])
        if self.each_value:
            return each.flatten()
        whole = each.sum(1)
        if self.subject.unit == "example" and (label := self.reader.label_epsilon) is not None:
            whole += label * ((answers.y == 1).double() - (answers.y == 0).double())
        return whole


class CanaryImageRounds(Replay):
    """Training rounds with canary images. `weak`: factor by which the responses' epsilon exceeds the claimed one, in a
    twin that must be caught.
    """

    def __init__(self, canaries: CanaryImages, number: int, weak: float, start: PhaseStart) -> None:
        key = keys.word(keys.fold(canaries.key, "replay", number))
        self.coins = keys.coin(keys.fold(canaries.key, "coins", number), len(canaries.owners), 0.5).bool()
        self._canaries, reader = canaries, canaries.reader
        planted = canaries.planted(self.coins)

        def change(k: int, rows: Examples) -> Examples:
            if k not in planted:
                return rows
            own = planted[k]
            first = len(rows.y) - len(own.y)
            return Examples(torch.cat([rows.x[:first], own.x]), torch.cat([rows.y[:first], own.y]))

        super().__init__(canaries.simulation, key=key, start=start)
        label = None if reader.label_epsilon is None else weak * reader.label_epsilon
        loud = replace(reader, epsilon=weak * reader.each, of="value", delta=0.0, label_epsilon=label)
        self._read = RecordedResponses(**vars(loud), images=canaries.images)
        rows = Changed(raw(self.simulation), change)
        shards = PreparedShards(rows, self._read, lambda k: for_run("counter", key, None, k))
        self.site = replace(self.site, algorithm=self.algorithm.behind(read=self._read), shards=shards, sharing="loop")

    def scores(self) -> CanaryScores:
        """The probability that each canary was present, by all answers that were read."""
        canaries, known = self._canaries, dict[int, list[Examples]]()
        while not self.over:
            self.round()
        for k, answers in self._read.heard:
            if not any(torch.equal(answers.x, one.x) and torch.equal(answers.y, one.y) for one in known.get(k, [])):
                known.setdefault(k, []).append(answers)
        total = [
            torch.stack([canaries.likelier(one) for one in known[k]]).sum(0)
            if k in known
            else torch.zeros(many * canaries.of_one).double()
            for k, many in canaries.images.items()
        ]
        there = torch.tensor([k in known for k in canaries.owners]).double()
        return CanaryScores(torch.sigmoid(torch.cat(total)) * there, there, there)


ROWS = ("example", "cell", "image", "pixel")  # units that a client holds several of


def placed(simulation: Simulation, subject: Subject, wanted: int, key: keys.Key) -> Canaries:
    kind: type[Canaries] = CanaryClients
    if subject.unit in ROWS:
        answered = isinstance(simulation.setup.algorithm.read, Responses)
        kind = CanaryImages if answered else CanaryExamples
    return kind(simulation, subject, wanted, key)


class ScoredCanaries(NamedTuple):
    """Canaries of all replays that took part in any release: their scores, and for each one its total
    weight in the releases.
    """

    scores: Tensor
    there: Tensor  # was it present?
    weight: Tensor
    rounds: Tensor  # number of those in which it took part
    owners: Tensor  # the client that each is, or that holds it

    def of(self, chosen: Tensor) -> ScoredCanaries:
        """Scores and weights of the chosen canaries alone."""
        return ScoredCanaries(*(each[chosen] for each in self))


def scores(
    canaries: Canaries, weak: float, early: Sequence[CanaryDirections] = (), start: PhaseStart = BEGINNING
) -> ScoredCanaries:
    """Score of each canary of all replays over all phases. `start`: the start of the training if the phases before it
    have no canaries.
    """
    found = []
    for number in range(canaries.replays):
        seen, coins = replayed(canaries, number, weak, early, start)
        every = ScoredCanaries(seen.each, coins, seen.weight, seen.rounds, torch.tensor(canaries.owners))
        found.append(every.of(seen.exposed))
    return ScoredCanaries(*map(torch.cat, zip(*found, strict=True)))


def replayed(
    canaries: Canaries, number: int, weak: float, early: Sequence[CanaryDirections], start: PhaseStart
) -> tuple[CanaryScores, Tensor]:
    """Scores of the canaries in one replay, and the coins that decided which of them are present. `weak`: factor by
    which the noise is too small.
    """
    if isinstance(canaries, CanaryImages):
        images = CanaryImageRounds(canaries, number, weak, start)
        return images.scores(), images.coins
    assert isinstance(canaries, CanaryDirections)
    phases = list[CanaryScores]()
    for here in early:
        phase = CanaryRounds(here, number, weak, start)
        phases.append(phase.scores())
        start = phase.end
    rounds = CanaryRounds(canaries, number, weak, start)
    return rounds.scores().beside(phases), rounds.coins


def earlier(canaries: Canaries) -> list[CanaryDirections]:
    """The same canaries in the phases before the training; empty if any of these phases cannot hold them."""
    found = list[CanaryDirections]()
    if not isinstance(canaries, CanaryDirections):
        return found
    for phase in canaries.simulation.preparation:
        here = replace(canaries, simulation=phase)
        if isinstance(canaries, CanaryExamples) and isinstance(phase.setup.algorithm.read, ClassSums):
            here = CanaryRowsOfSums(phase, canaries.subject, canaries.wanted, canaries.key)
        found.append(here)
    return [] if any(here.unfit() for here in found) else found


class Replays:
    """Replays of the run with canaries at all clients, run once for each factor by which noise is made too small."""

    def __init__(self, canaries: Canaries, start: PhaseStart) -> None:
        self.canaries, self._start, self.unfit = canaries, start, canaries.unfit()
        self._played: dict[float, ScoredCanaries] = {}

    def room(self, members: Sequence[int] | None) -> int:
        """Number of canaries at these clients, over all replays; None: at all clients."""
        owners, chosen = self.canaries.owners, None if members is None else set(members)
        return self.canaries.replays * sum(chosen is None or k in chosen for k in owners)

    @cached_property
    def early(self) -> list[CanaryDirections]:
        return [] if self.unfit else earlier(self.canaries)

    def scored(self, weak: float, members: Sequence[int] | None) -> ScoredCanaries:
        if weak not in self._played:
            self._played[weak] = scores(self.canaries, weak, self.early, self._start)
        found = self._played[weak]
        return found if members is None else found.of(torch.isin(found.owners, torch.tensor(members)))
