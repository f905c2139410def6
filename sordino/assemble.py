"""From an experiment to its parts. Deterministic, so a client process builds exactly what the server's process built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sordino import budgets, gates, keys, own, tree
from sordino.algorithms import ALGORITHMS
from sordino.config import Engine, Experiment, Privacy, build
from sordino.engine.adapting import Adapting
from sordino.engine.checkpoint import Loaded
from sordino.engine.client import Clients
from sordino.engine.cohort import Cohort, Everyone, alike
from sordino.engine.federation import Federation
from sordino.engine.machine import decide
from sordino.engine.personal import COHORTS, Personal, ThresholdPublished
from sordino.engine.secure_sum import check_gate
from sordino.engine.shards import Prepared, Shards
from sordino.engine.store import States, template
from sordino.engine.stragglers import Stragglers
from sordino.engine.wire import Header
from sordino.errors import ConfigError, DataError, UnsoundGuarantee
from sordino.evaluate.accuracy import Evaluator
from sordino.evaluate.evaluation import Evaluation, check, check_models
from sordino.holdings import Holdings
from sordino.ledger.ledger import Charter, Each, Ledger
from sordino.ledger.published import nominal_multiplier
from sordino.ledger.schedules import SCHEDULES, Adaptive, Schedule
from sordino.personal_plans import draft_personal
from sordino.phases import Phased
from sordino.plan import Budget, Plan, draft
from sordino.privacy.open_reader import Open
from sordino.privacy.readers import NoisyGradient
from sordino.privacy.sources import for_run
from sordino.privacy.stages import Weigh
from sordino.soundness import check_delta, check_everybody_has_data, check_secure
from sordino.tasks.nets import projected
from sordino.tasks.quadratic import Quadratic
from sordino.tasks.task import Classification, build_net, fits
from sordino.types import Examples, Offer, Params, Task

SHARED = ("dataset", "_loaded", "_reserved", "source", "drawn", "shares", "scheme", "named", "sizes", "largest", "task", "_phases")


def settle(experiment: Experiment) -> Experiment:
    """The default budget belongs to private algorithms: `sordino run algorithm=fedavg` is not asked to drop it."""
    if "privacy" in experiment.model_fields_set:
        return experiment
    algorithm = Parts(experiment).algorithm
    private = algorithm.read.offer() is not None or algorithm.uplink.noise() is not None
    return experiment if private else experiment.model_copy(update={"privacy": Privacy()})


@dataclass(frozen=True)
class Parts(Holdings):
    stage: int = -1  # of the phases; the last one is the training

    @cached_property
    def preparation(self) -> list[Parts]:
        """The phases before the training, on the same data."""
        return [self._at(i) for i in range(len(self._phases) - 1)]

    def _at(self, stage: int) -> Parts:
        other = replace(self, stage=stage)
        _ = self.dataset, self.task
        other.__dict__.update({name: value for name, value in self.__dict__.items() if name in SHARED})
        return other

    @property
    def prepares(self) -> bool:
        return self.stage not in (-1, len(self._phases) - 1)

    @property
    def phase(self) -> str:
        """The name of a phase of the preparation, nothing for the training."""
        return str(self._chosen.name) if self.prepares else ""

    @property
    def phase_key(self) -> int:
        """Of the draws of one phase: two phases never draw the same noise."""
        return keys.word(keys.fold(self.key, "phase", self.phase)) if self.prepares else self.key

    @property
    def rounds(self) -> int:
        return int(self._chosen.rounds) if self.prepares else self.experiment.rounds

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
        return type(self._chosen.read).open is Open.open  # a reader that opens otherwise may tell clients apart

    @cached_property
    def task(self) -> Task:
        augment = self.experiment.data.augment
        if augment != "none" and self.dataset.kind != "image":
            raise ConfigError(
                f"data.augment = {augment!r} with data.source = {self.experiment.data.source!r}",
                why="only images can be cut and mirrored",
                fix="leave data.augment out",
                code="nothing-to-augment",
            )
        if self.dataset.classes == 0:
            return Quadratic(self.dataset.shape[0] // 2)
        options = {k: v for k, v in self.experiment.model.items() if k not in ("name", "options")}
        own = self.experiment.model.get("options", {})
        if not isinstance(own, dict):
            raise ConfigError(f"model.options = {own!r}", why="it is a table of arguments", code="wrong-type")
        options |= own
        name, shape = str(self.experiment.model.get("name")), self.dataset.shape
        image, classes, heads = self.dataset.kind == "image", self.named.classes, getattr(self._phases[-1], "heads", 1)
        inputs = (shape[-1], *shape[:-1]) if image else shape
        with torch.random.fork_rng(devices=[]):
            # a user's class may draw buffers or bare parameters: the same ones in every process
            torch.manual_seed(keys.word(keys.fold(self.key, "model")))
            net = build_net(name, inputs, classes * heads, options)
            if width := getattr(self._phases[-1], "projection", 0):
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
    def algorithm(self) -> Any:
        """With what its gates must know of the data and the model."""
        algorithm = self._chosen
        if hasattr(algorithm.read, "fitted"):
            algorithm = replace(algorithm, read=algorithm.read.fitted(self.dataset.shape, self.named.classes))
        if algorithm.uplink.coordinates is not None:
            fewest = 1 if self.cohort.hidden else int(self.cohort.expected(len(self.sizes)))
            least = fewest * min(self.sizes) / self.largest
            algorithm = replace(algorithm, uplink=algorithm.uplink.fitted(_coordinates(algorithm, self.task), least))
        if hasattr(algorithm, "sized"):
            algorithm = algorithm.sized(self.dataset.shape, self.named.classes)
        if hasattr(algorithm, "_given"):
            algorithm = replace(algorithm, _given=self)
        return Adapting(algorithm) if algorithm.uplink.learns else algorithm

    @property
    def _chosen(self) -> Any:
        return self._phases[self.stage]

    @cached_property
    def _phases(self) -> tuple[Any, ...]:
        table, choices = self.experiment.algorithm, dict(ALGORITHMS)
        if ":" in (name := str(table.get("name"))):
            choices[name] = own.algorithm(name)
        made = build(table, choices, "algorithm")
        before, algorithm = (made.preparation, made.training) if isinstance(made, Phased) else ((), made)
        if self.experiment.read is not None:
            algorithm = replace(algorithm, read=gates.reader(self.experiment.read))
        if self.experiment.uplink is not None:
            algorithm = replace(algorithm, uplink=gates.uplink(self.experiment.uplink))
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
        return Stragglers(slow.share, slow.policy, self.algorithm.work.epochs, whole, (chaos.drop, chaos.slow))

    @cached_property
    def coordinates(self) -> int:
        """Of one upload, before compression."""
        return _coordinates(self.algorithm, self.task)

    # the promise ----------------------------------------------------------------------------------------------------

    @cached_property
    def plan(self) -> Plan:
        """Prices every exposure; refuses, before any data is read, what could not keep its promise."""
        check_everybody_has_data(self.sizes)
        plan, rounds, delta = self._drafted, self.rounds, self.experiment.privacy.delta
        check_secure(self.algorithm.uplink, plan, self.cohort, rounds, delta, self.coordinates)
        return plan

    @cached_property
    def _drafted(self) -> Plan:
        algorithm, privacy, population = self.algorithm, self.experiment.privacy, len(self.sizes)
        asked = "episodes" if getattr(algorithm, "episodic", False) else "batches"
        if (gives := getattr(algorithm.read, "gives", asked)) != asked:
            raise UnsoundGuarantee(
                f"an algorithm of {asked} with a reader of {gives}",
                why="the reader's promise covers nothing else",
                fix='read = {name = "cells", ...}' if asked == "episodes" else 'read = {name = "noisy_gradient", ...}',
                code="reader-does-not-give",
            )
        algorithm.read.check(algorithm.work, self.task)
        algorithm.uplink.bound(self.coordinates)
        most = population if self.cohort.hidden else self.cohort.expected(population)
        check_gate(algorithm.uplink, getattr(algorithm, "reads_each", False), most)
        _ = self.stragglers
        reader, uplink = (
            algorithm.read.offer(),
            algorithm.uplink.offer(self.cohort.expected(population) / population, self.cohort.hidden),
        )
        offers: list[tuple[Offer, float | None]] = []
        if reader is not None:
            offers.append((reader, algorithm.read.multiplier))
        if uplink is not None:
            offers.append((uplink, algorithm.uplink.noise().multiplier))
        weighed = any(isinstance(stage, Weigh) for stage in algorithm.uplink.client)
        for offer, _ in offers:
            check_delta(offer, privacy, population, sum(self.sizes), weighed)
        noise = algorithm.uplink.noise()
        if noise is not None and noise.louder != 1 and not isinstance(self.cohort, ThresholdPublished):
            raise UnsoundGuarantee(
                f"noise of {noise.louder:g} times what its price buys",
                why="only the published mechanism, whose budgets are not proved, may be read by the letter",
                fix='cohort = {name = "threshold_published"}, or literal = false',
                code="literal-needs-its-cohort",
            )
        if isinstance(self.cohort, Personal):
            return draft_personal(self.cohort, offers, self.budget, self.rounds, population)
        exposures, budget = self.cohort.exposures(self.rounds, population), self.budget
        if any(offer.everyone_pays for offer, _ in offers):  # in every round, whoever is drawn
            exposures = alike(self.rounds, population)
        if algorithm.uplink.personal and budget is not None and isinstance(budget.schedule, Adaptive):
            raise UnsoundGuarantee(
                "personal clips with an adaptive schedule",
                why="all of them are in proportion to the least noise that the plan holds, which must be known before the first round",
                fix='schedule = {name = "uniform"}, or another that is fixed in advance',
                code="personal-schedule",
            )
        sizes, where = np.unique(np.asarray(self.sizes), return_inverse=True)
        reads = np.array([algorithm.read.reads(algorithm.work, size) for size in sizes.tolist()])[where].data
        published = None
        if isinstance(algorithm.read, NoisyGradient) and algorithm.read.sampling == "fixed_subset" and budget:
            published = nominal_multiplier(budget.epsilon, budget.delta, algorithm.read.rate, max(exposures))
        return draft(offers, budget, exposures, {"example": reads}, published)

    @cached_property
    def budget(self) -> Budget | None:
        privacy = self.experiment.privacy
        if privacy.epsilon is None:
            return None
        made: dict[str, Callable[..., Schedule | Adaptive]] = dict(SCHEDULES)
        schedule = build(privacy.schedule, made, "privacy.schedule")
        if not isinstance(privacy.epsilon, dict):
            return Budget(privacy.epsilon, privacy.delta, schedule)
        each = budgets.personal(privacy.epsilon, len(self.sizes), self.key).tolist()
        return Budget(max(each), privacy.delta, schedule, each)

    def charter(self) -> Charter:
        offer, delta = self.plan.offer, self.experiment.privacy.delta
        promise = (offer.unit, offer.neighbours, offer.adversary) if offer else ("none", "none", "none")
        return Charter(self.dataset.fingerprint(), *promise, delta, self.plan.currency)

    # the two sides --------------------------------------------------------------------------------------------------

    def federation(self, ledger: Path | str, run: str) -> Federation:
        plan, people = self.plan, len(self.sizes)
        cap, shared = plan.cap, plan.offer is not None and plan.offer.everyone_pays and not plan.individual
        own = plan.budget is not None and plan.budget.personal is not None and not shared
        each = Each(people, cap) if cap is not None and not shared and not own else None
        caps = {str(k): limit for k in range(people) if (limit := plan.cap_of(k)) is not None} if own else None
        return Federation(
            algorithm=self.algorithm,
            cohort=self.cohort,
            stragglers=self.stragglers,
            plan=self.plan,
            ledger=Ledger.open(ledger, self.charter(), caps, total=cap if shared else None, each=each),
            sizes=self.sizes,
            key=self.phase_key,
            noise=self.experiment.privacy.noise,
            run=f"{run}.{self.phase}" if self.prepares else run,
            config=self.experiment.digest(),
            before=tuple(f"{run}.{other.phase}" for other in self.preparation[: self.stage % len(self._phases)]),
        )

    def states(self, folder: Path | None, loaded: Loaded | None = None) -> States:
        """What clients keep; beyond what memory should hold it lies in the folder."""
        return States(self.algorithm.init_client(self.task), folder).restore(loaded.trees if loaded else {})

    def clients(
        self,
        run: str,
        which: range | None = None,
        states: States | None = None,
        secret: bytes | None = None,
        handed: Params | None = None,
    ) -> Clients:
        config, run = self.experiment.digest(), f"{run}.{self.phase}" if self.prepares else run

        def header(t: int, sender: int) -> Header:
            return Header(run, config, t, sender, 0, "down" if sender < 0 else "up")

        rows, tested = self.shares
        which = range(len(rows)) if which is None else which
        shards: Mapping[int, Examples] = Shards(self.named.train, rows, which)
        tests = Shards(self.named.test, tested, which)
        if hasattr(self.algorithm.read, "prepare"):
            shards = Prepared(shards, self.algorithm.read, lambda client: for_run(self.key, secret, client))
        states = self.states(None) if states is None else states
        return Clients(self.algorithm, self.task, shards, header, states, tests, handed, self.key, self.sharing)

    def evaluation(self) -> Evaluation:
        test, given = self.named.test, self.experiment.evaluation
        examples = Examples(torch.from_numpy(np.asarray(test.x)), torch.from_numpy(np.asarray(test.y)))
        evaluator = Evaluator(self.task, examples, self.shares[1])
        check(given.personal)
        if given.models:
            check_models(given.models, self.algorithm.models(self.state("server")))
        return Evaluation(self.algorithm, evaluator, tuple(given.models), tuple(given.personal))

    def state(self, name: str) -> Any:
        """The shape of a tree in a checkpoint, by name."""
        kind = name.partition("/")[0]
        if kind == "server":
            return self.algorithm.init(self.task, self.key)
        if kind == "clients":
            return self.algorithm.init_client(self.task)
        if kind == "states":
            return template(int(name.partition("/")[2]), self.algorithm.init_client(self.task))
        raise DataError(f"a checkpoint holds {name!r}, which this version does not know", code="unknown-state")


def _coordinates(algorithm: Any, task: Task) -> int:
    return tree.size(algorithm.zero(algorithm.broadcast(algorithm.init(task, 0))))
