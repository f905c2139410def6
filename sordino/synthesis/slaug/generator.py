"""Generator of SlaugFL's server (IEEE Transactions on Mobile Computing, 2024), from the candidates (public images)
nearest to the prototypes (scenario 1), or from prototypes alone (scenario 2); and selective data collection: ranking of
devices by class, and of candidates by distance to prototypes.

Of devices, `recall` alone, as published, is maximised by a model that assigns everything to one class; `f1` counts its
precision too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from sordino import keys
from sordino.accounting.events import Json
from sordino.algorithms.optional import Home, PublicFacts
from sordino.errors import ConfigError
from sordino.keys import Key
from sordino.privacy.uplink import Uplink
from sordino.synthesis import generators
from sordino.synthesis.generators import GeneratorShape, training
from sordino.types import Examples, Params, Task

Rank = Literal["f1", "recall"]
ROWS = 256


class ClassScores(NamedTuple):
    """Scores of one model on labelled examples, class by class."""

    recall: Tensor
    f1: Tensor
    confidence: Tensor  # mean probability of the class on its examples


def skill(task: Task, params: Params, probe: Examples) -> ClassScores:
    logits = torch.cat([task.predict(params, rows) for rows in torch.split(probe.x, ROWS)])[:, : task.labels]
    chosen, sure = logits.argmax(1), logits.softmax(1)
    own = torch.bincount(probe.y, minlength=task.labels).double()
    right = torch.bincount(probe.y[chosen == probe.y], minlength=task.labels).double()
    predicted = torch.bincount(chosen, minlength=task.labels).double()
    given = torch.zeros(task.labels, dtype=torch.float64).index_add(
        0, probe.y, sure.gather(1, probe.y[:, None])[:, 0].double()
    )
    return ClassScores(right / own.clamp_min(1), 2 * right / (own + predicted).clamp_min(1), given / own.clamp_min(1))


def ranked(score: Tensor, confidence: Tensor) -> Tensor:
    """Device numbers [devices, classes], for each class from best to worst, by score, then confidence, then number."""
    order = torch.arange(len(score)).expand(score.shape[1], -1)
    for column in (confidence, score):  # stable sorts, the least important first
        order = order.gather(1, column.T.gather(1, order).argsort(dim=1, descending=True, stable=True))
    return order.T.contiguous()


def distances(z: Tensor, prototype: Tensor) -> Tensor:
    """Cosine distance, 1 - cosine, of features to a prototype."""
    return 1 - torch.nn.functional.cosine_similarity(z.double(), prototype.double()[None], dim=1)


def nearest(distance: Tensor, keep: int) -> Tensor:
    """Indices of the `keep` smallest values, in rising order; all where there are fewer."""
    return distance.argsort(stable=True)[:keep].sort().values


def some(count: int, most: int, key: Key) -> Tensor:
    """Sample without replacement: `most` random numbers below `count`, or all of them if there are fewer."""
    return keys.permutation(key, count)[:most]


def requests(classes: int, count: int, key: Key) -> tuple[Tensor, Tensor]:
    """Class of each of `count` prototypes to request, and the rank of the device to ask first. With fewer than one for
    each class, random classes are left out; additional ones go to the next-best devices of random classes."""
    mixed = keys.permutation(keys.fold(key, "slots"), classes)
    if count <= classes:
        chosen = torch.arange(classes) if count == classes else mixed[:count].sort().values
        return chosen, torch.zeros(count, dtype=torch.int64)
    more = mixed.repeat(-(-count // classes))[: count - classes]
    again = torch.tensor([1 + int((more[:i] == label).sum()) for i, label in enumerate(more.tolist())])
    return torch.cat([torch.arange(classes), more]), torch.cat([torch.zeros(classes, dtype=torch.int64), again])


ABSENT = -1.0
PLAIN = Uplink(client=())
HANDS = "the generator, to all clients"


class Anchor(NamedTuple):
    """A class prototype, with the model that computed its features."""

    label: int
    mean: Tensor
    task: Task
    model: Params
    project: Tensor | None = None  # projection to fewer dimensions, if any
    client: int = -1  # its client, where that is known

    def seen(self, x: Tensor) -> Tensor:
        """Features of uint8 images."""
        with torch.no_grad():
            return self._last(torch.cat([self.task.features(self.model, rows, None) for rows in torch.split(x, ROWS)]))

    def looks(self, x: Tensor) -> Tensor:
        """Features of images in 0..1 [n, c, h, w], differentiable with respect to the images."""
        return self._last(self.task.look(self.model, x))

    def _last(self, z: Tensor) -> Tensor:
        if self.project is None:
            return z
        return torch.nn.functional.normalize(z @ self.project.to(z.dtype), dim=1)


Kind = Literal["auto", "strong", "weak", "small"]


def generator_shape(kind: Kind, scenario: int, shape: tuple[int, ...], classes: int) -> GeneratorShape:
    """Shape of the generator: as published for colour images of 32 x 32, small for others.

    Many classes share several strong generators of ten each.
    """
    if len(shape) != 3:
        raise ConfigError(
            "this algorithm generates images, and its clients have none",
            why="the examples of these clients are rows of a table",
            fix='use image data, such as data.source = "digits", or another algorithm',
            code="nothing-to-draw",
        )
    side, _, channels = shape
    if kind == "auto":
        kind = "small" if (side, channels) != (32, 3) else "strong" if scenario == 1 else "weak"
    if kind == "strong":
        return GeneratorShape(
            "strong", classes, 110, side, channels, split=classes // 10 if classes % 10 == 0 and classes > 10 else 1
        )
    return GeneratorShape(kind, classes, 64 if kind == "small" else 100 if classes < 100 else 256, side, channels)


class TrainedGenerator(NamedTuple):
    """A trained generator, and the candidates that it learned from."""

    generator: Params
    kept: Tensor  # [classes, keep]: numbers of candidates, -1 beyond
    learned: Tensor  # [classes]: 1 for classes that it learned; prototypes alone teach it their own
    # [rows, columns] of its training, ABSENT where there is no value: losses are never below 0
    log: Tensor


@dataclass(frozen=True)
class Recipe:
    """Settings of the generator's training."""

    kind: Kind = "auto"
    scenario: Literal[1, 2] = 1
    keep: int = 1000  # candidates of a class
    merge: Literal["mean_distance", "mean"] = "mean_distance"  # of several prototypes of a class
    gan: training.AcganSettings = training.AcganSettings()
    match: training.MatchingSettings = training.MatchingSettings()
    threshold: float | None = None  # cosine distance beyond which a candidate is left out, however few there are
    published_diversity: bool = False  # 5,000, and 10,000 from a hundred classes on
    shape: GeneratorShape = GeneratorShape("small", 10, 64, 16)

    def fitted(self, known: PublicFacts) -> Recipe:
        classes = known.classes
        made = replace(self, shape=generator_shape(self.kind, self.scenario, known.shape, classes))
        if self.published_diversity:
            made = replace(made, match=replace(self.match, diversity=5e3 if classes < 100 else 1e4))
        return made

    def check(self, home: Home) -> None:
        # drawn here, so that errors come before the run
        if self.scenario == 1 and home.candidates is None:
            raise ConfigError(
                "scenario 1 without candidates",
                why="in scenario 1 the generator is trained on candidates, and the server has none",
                fix='add a [candidates] table, for example with source = "public_split", or set scenario = 2',
                code="no-candidates",
            )

    def warnings(self, story: Json | None) -> list[str]:
        """Warnings about classes with fewer candidates (public images) than are to be kept."""
        few = [n for n in story["counts"].values() if n < self.keep] if story and self.scenario == 1 else []
        if not few:
            return []
        return [
            f"{len(few)} classes have fewer candidates than keep = {self.keep} (at least {min(few)}): "
            "all of them are kept"
        ]

    def template(self) -> TrainedGenerator:
        """An empty result with the tensor shapes of the finished generator."""
        classes = self.shape.classes
        return TrainedGenerator(
            generators.init(self.shape, 0),
            torch.full((classes, self.keep), -1),
            torch.ones(classes, dtype=torch.uint8),
            self.logged(()),
        )

    @property
    def columns(self) -> tuple[str, ...]:
        return training.ACGAN_LOGGED if self.scenario == 1 else training.MATCHING_LOGGED

    def logged(self, log: Sequence[Mapping[str, float]]) -> Tensor:
        rows = self.gan.epochs * self.shape.split if self.scenario == 1 else -(-self.match.steps // self.match.plateau)
        found = torch.full((rows, len(self.columns)), ABSENT, dtype=torch.float64)
        for i, row in enumerate(log):
            found[i] = torch.tensor([row.get(name, ABSENT) for name in self.columns])
        return found

    def tables(self, made: TrainedGenerator) -> dict[str, list[dict[str, object]]]:
        """Tables of the generator's training and of the candidates (public images) that it learned from."""
        rows = [zip(self.columns, row, strict=True) for row in made.log.tolist()]
        log = [{name: value for name, value in row if value != ABSENT} for row in rows]
        kept = [{"class": c, "candidates": row} for c, row in enumerate(chosen(made.kept))]
        return {"generator": [row for row in log if row], **({"kept": kept} if self.scenario == 1 else {})}

    def make(self, home: Home, anchors: Sequence[Anchor]) -> TrainedGenerator:
        key = keys.fold(home.key, "generator")
        empty = self.template()
        if self.scenario == 2:
            merged = self._merged(anchors) if self.merge == "mean" else anchors
            prototypes = [training.ClassTarget(a.label, a.mean, partial(Anchor.looks, a)) for a in merged]
            learned = torch.zeros(self.shape.classes, dtype=torch.uint8)
            learned[[a.label for a in merged]] = 1
            matched = training.train_matching(self.shape, prototypes, self.match, key)
            return TrainedGenerator(matched.state, empty.kept, learned, self.logged(matched.log))
        candidates = home.candidates
        assert candidates is not None, "checked before the run"
        chosen = self.chosen(candidates, anchors, key)
        kept = empty.kept
        for label, rows in chosen.items():
            kept[label, : len(rows)] = rows
        rows = torch.cat(list(chosen.values()))
        known = {a.label: a for a in anchors}

        def score(images: Tensor, labels: Tensor) -> float:
            """Mean probability of the right class on generated images, by the model of the best device for each
            class.
            """
            sure = []
            for label, anchor in known.items():
                of_label = images[labels == label]
                logits = anchor.task.predict(anchor.model, of_label)[:, : anchor.task.labels]
                sure.append(logits.softmax(1)[:, label].mean())
            return float(torch.stack(sure).mean()) if sure else 0.0

        # without a score the last state is kept
        judge = score if anchors and all(a.project is None for a in anchors) else None
        made = training.train_acgan(self.shape, candidates.x[rows], candidates.y[rows], self.gan, key, judge)
        return TrainedGenerator(made.state, kept, empty.learned, self.logged(made.log))

    def chosen(self, candidates: Examples, anchors: Sequence[Anchor], key: Key) -> dict[int, Tensor]:
        """The candidates (public images) nearest to the prototypes of each class; random ones for a class without
        prototypes.
        """
        found = {}
        for label in range(self.shape.classes):
            rows = torch.nonzero(candidates.y == label).flatten()
            of_label = [a for a in (self._merged(anchors) if self.merge == "mean" else anchors) if a.label == label]
            if of_label:
                far = torch.stack([distances(a.seen(candidates.x[rows]), a.mean) for a in of_label]).mean(0)
                near = nearest(far, self.keep)
                found[label] = rows[near if self.threshold is None else near[far[near] <= self.threshold]]
            else:
                found[label] = rows[some(len(rows), self.keep, keys.fold(key, "any", label))]
        return found

    def _merged(self, anchors: Sequence[Anchor]) -> list[Anchor]:
        """Prototypes averaged by class, as published; each keeps only the feature extractor of its best device."""
        by: dict[int, list[Anchor]] = {}
        for anchor in anchors:
            by.setdefault(anchor.label, []).append(anchor)
        return [own[0]._replace(mean=torch.stack([a.mean for a in own]).mean(0)) for own in by.values()]


# shared by the phases -------------------------------------------------------------------------------------------------


class Broadcast(NamedTuple):
    """Model that is sent to every client of a round."""

    x: Params


def seen(task: Task, params: Params, x: Tensor, matrix: Tensor | None) -> Tensor:
    """Features of images without gradient; if a projection matrix is given, projected and scaled to length 1."""
    with torch.no_grad():
        z = task.features(params, x, None)
        return z if matrix is None else torch.nn.functional.normalize(z @ matrix.to(z.dtype), dim=1)


def chosen(kept: Tensor) -> list[list[int]]:
    """Indices of the candidates (public images) that are kept, class by class."""
    return [[i for i in row if i >= 0] for row in kept.tolist()]


class Projects(Protocol):
    """A phase that sends features in reduced dimension."""

    @property
    def project(self) -> int: ...
    @property
    def known(self) -> PublicFacts | None: ...


def dimensions(phase: Projects, task: Task) -> int:
    """Number of dimensions of the sent features, at most that of the network's features."""
    return min(phase.project or task.width, task.width)


def projected_by(phase: Projects, task: Task) -> Tensor:
    """Random projection drawn from the run's key alone, so that it is the same for all clients and independent
    of data.
    """
    assert phase.known is not None, "an algorithm is fitted before it runs"
    return projection(task.width, phase.project, keys.fold(phase.known.key, "projection"))


def projection(width: int, to: int, key: Key) -> Tensor:
    """A random matrix with orthonormal columns [width, to]."""
    found, _ = torch.linalg.qr(keys.normal(key, width * width).view(width, width))
    columns: Tensor = found[:, : min(to, width)]
    return columns.float()
