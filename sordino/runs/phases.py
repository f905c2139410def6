"""What is done with what everybody holds: the phases of a run, and of each its algorithm, its task and who takes part."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import torch

from sordino import keys, tree
from sordino.algorithms import ALGORITHMS
from sordino.algorithms.algorithm import Algorithm, Known, own_algorithm
from sordino.algorithms.learning import adapting
from sordino.algorithms.phases import Phase, Phased
from sordino.cohorts.by_budget import COHORTS
from sordino.cohorts.kinds import Cohort, Everyone
from sordino.cohorts.stragglers import Stragglers
from sordino.config import Engine, build, gates
from sordino.engine.choose_executor import decide
from sordino.errors import ConfigError
from sordino.privacy.readers.open import Open
from sordino.runs.data import Holdings
from sordino.runs.home import ServersHome
from sordino.tasks.build import build_net, fits
from sordino.tasks.classification import Classification
from sordino.tasks.nets import projected
from sordino.tasks.quadratic import Quadratic
from sordino.types import Task

SHARED = (
    "dataset",
    "_loaded",
    "_reserved",
    "source",
    "_asked",
    "_made_candidates",
    "fingerprint",
    "declared",
    "shares",
    "scheme",
    "named",
    "sizes",
    "largest",
    "task",
    "_made",
    "_phases",
)


@dataclass(frozen=True)
class Composition(Holdings):
    stage: int = -1  # of the phases; the last one is the training

    @cached_property
    def preparation(self) -> list[Self]:
        """The phases before the training, on the same data."""
        return [self._at(i) for i in range(len(self._phases) - 1)]

    def _at(self, stage: int) -> Self:
        other = replace(self, stage=stage)
        _ = self.dataset, self.task, self._made_candidates
        other.__dict__.update({name: value for name, value in self.__dict__.items() if name in SHARED})
        return other

    @property
    def prepares(self) -> bool:
        return self.stage not in (-1, len(self._phases) - 1)

    @property
    def phase(self) -> str:
        """The name of a phase of the preparation, nothing for the training."""
        return self.chosen.name if isinstance(self.chosen, Phase) else ""

    @property
    def phase_key(self) -> int:
        """Of the draws of one phase: two phases never draw the same noise."""
        return keys.word(keys.fold(self.key, "phase", self.phase)) if self.prepares else self.key

    @property
    def rounds(self) -> int:
        return self.chosen.rounds if isinstance(self.chosen, Phase) else self.experiment.rounds

    def over(self, server: Any) -> bool:
        """Has a phase of the preparation found what it prepares?"""
        return isinstance(self.algorithm, Phase) and self.algorithm.over(server)

    def result(self, server: Any) -> Any:
        """What the next phase, or the training, begins from."""
        return self.algorithm.result(server) if isinstance(self.algorithm, Phase) else server

    @property
    def engine(self) -> Engine:
        """[engine] with every `auto` decided."""
        given = self.experiment.engine
        executor, precision = decide(given.executor, given.precision, not self._plain_reads)
        return given.model_copy(update={"executor": executor, "precision": precision})

    @property
    def sharing(self) -> str:
        """Which clients of one process share a pass."""
        executor = self.engine.executor
        if executor == "ranks":
            return "stack" if self._plain_reads else "pooled"
        return executor if executor == "pooled" or (executor == "stack" and self._plain_reads) else "loop"

    @property
    def _plain_reads(self) -> bool:
        return type(self.chosen.read).open is Open.open  # a reader that opens otherwise may tell clients apart

    @cached_property
    def task(self) -> Task:
        augment = self.experiment.data.augment
        if self.dataset.classes == 0:
            return Quadratic(self.dataset.shape[0] // 2)
        options = {k: v for k, v in self.experiment.model.items() if k not in ("name", "options")}
        own = self.experiment.model.get("options", {})
        if not isinstance(own, dict):
            raise ConfigError(f"model.options = {own!r}", why="it is a table of arguments", code="wrong-type")
        options |= own
        name, shape = str(self.experiment.model.get("name")), self.dataset.shape
        image, classes, heads = self.dataset.kind == "image", self.named.classes, self._phases[-1].heads
        inputs = (shape[-1], *shape[:-1]) if image else shape
        with torch.random.fork_rng(devices=[]):
            # a user's class may draw buffers or bare parameters: the same ones in every process
            torch.default_generator.manual_seed(keys.word(keys.fold(self.key, "model")))
            net = build_net(name, inputs, classes * heads, options)
            if width := self._phases[-1].projection:
                net = projected(net, width)
        fits(net, name, inputs, classes * heads)
        return Classification(
            net,
            name=name,
            shape=shape,
            mean=self.dataset.mean,
            std=self.dataset.std,
            image=image,
            precision=torch.bfloat16 if self.engine.precision == "bf16" else torch.float32,
            augment=augment,
            labels=classes,
        )

    @cached_property
    def algorithm(self) -> Algorithm[Any, Any, Any, Any]:
        """The method, with what its uplink learns from round to round."""
        return adapting(self.method)

    @cached_property
    def method(self) -> Algorithm[Any, Any, Any, Any]:
        """The algorithm as its file says it, with what it and its gates must know of the data and the model."""
        algorithm = self.chosen
        read = algorithm.read.fitted(self.dataset.shape, self.named.classes)
        algorithm = algorithm.behind(read=read) if read is not algorithm.read else algorithm
        if algorithm.uplink.per_coordinate is not None:
            fewest = 1 if self.cohort.hidden else int(self.cohort.expected(len(self.sizes)))
            least = fewest * min(self.sizes) / self.largest
            algorithm = algorithm.behind(uplink=algorithm.uplink.fitted(self._coordinates(algorithm), least))
        return algorithm.fitted(Known(self.dataset.shape, self.named.classes, self.sizes, self.key))

    @cached_property
    def home(self) -> ServersHome:
        """The server's own data."""
        mine = (lambda: self.probe, lambda: self.tested, lambda: self.candidates, lambda: self.story)
        return ServersHome(self.task, self.key, self.sizes, *mine)

    @property
    def chosen(self) -> Algorithm[Any, Any, Any, Any]:
        return self._phases[self.stage]

    @cached_property
    def _made(self) -> Algorithm[Any, Any, Any, Any] | Phased:
        """As its file makes it: an algorithm, or a sequence of them."""
        table, choices = self.experiment.algorithm, dict(ALGORITHMS)
        if ":" in (name := str(table.get("name"))):
            choices[name] = own_algorithm(name)
        made: Algorithm[Any, Any, Any, Any] | Phased = build(table, choices, "algorithm")
        return made

    @property
    def _shares(self) -> tuple[float, ...]:
        """Of a budget, by phase."""
        if not isinstance(self._made, Phased):
            return (1.0,)
        first = self._made.shares or (0.0,) * len(self._made.preparation)
        return (*first, 1 - sum(first))

    @cached_property
    def _phases(self) -> tuple[Algorithm[Any, Any, Any, Any], ...]:
        made = self._made
        before, algorithm = (made.preparation, made.training) if isinstance(made, Phased) else ((), made)
        if self.experiment.read is not None:
            algorithm = algorithm.behind(read=gates.reader(self.experiment.read))
        if self.experiment.uplink is not None:
            algorithm = algorithm.behind(uplink=gates.uplink(self.experiment.uplink))
        return (*before, algorithm)

    @cached_property
    def cohort(self) -> Cohort:
        if self.prepares:
            return Everyone()
        return build(self.experiment.cohort, COHORTS, "cohort")

    @cached_property
    def stragglers(self) -> Stragglers:
        slow, chaos = self.experiment.stragglers, self.experiment.chaos
        whole = self._plain_reads  # what is noised step by step is planned step by step
        share = 0.0 if self.prepares else slow.share  # a preparation waits
        return Stragglers(
            share, slow.policy, self.algorithm.work.epochs, whole, (chaos.drop, chaos.slow), self.cohort.hidden
        )

    @cached_property
    def coordinates(self) -> int:
        """Of one upload, before compression."""
        return self._coordinates(self.algorithm)

    def _coordinates(self, algorithm: Algorithm[Any, Any, Any, Any]) -> int:
        if self.agreed is not None:  # the model may be somebody's own, and not here
            return self.agreed.of_an_upload(self.phase)
        return tree.size(algorithm.zero(self.task, algorithm.broadcast(algorithm.init(self.task, 0))))
