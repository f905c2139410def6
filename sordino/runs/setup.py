"""The rules of a run, phase by phase: what everybody computes alike from an experiment and the public numbers of the
data. No row is needed, so the server, every site and whoever verifies a receipt come to the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TypeAlias

import torch

from sordino import keys, tree, user_code
from sordino.accounting.pricing import Pricing
from sordino.algorithms.algorithm import AnyAlgorithm, Home, Known
from sordino.algorithms.learning import adapting
from sordino.algorithms.phases import Phase
from sordino.budget import client_budgets
from sordino.budget.plan import Budget, Plan
from sordino.budget.schedules import SCHEDULES, Adaptive, Schedule
from sordino.config import Engine, Experiment, build, filled, resolved_table
from sordino.engine.client_states import States, shape_of
from sordino.engine.server import Federation
from sordino.engine.wire import Header
from sordino.errors import ConfigError
from sordino.ledger.ledger import Charter, Each, Ledger
from sordino.ledger.op import of_phase
from sordino.privacy.uplink.robust import check_robust
from sordino.runs.agreement import Agreement, PublicNumbers, of_an_upload
from sordino.runs.phases import Methods, decided, reads_plainly
from sordino.runs.prices import PriceRequest, check_reads, lacking_delta, shared
from sordino.runs.public_inputs import shown_rows
from sordino.runs.refusals import check_network, check_secure
from sordino.sampling.kinds import Cohort, Everyone
from sordino.sampling.stragglers import Stragglers
from sordino.tasks.build import Architecture
from sordino.tasks.own_loss import LossFunction, loss_named
from sordino.tasks.personalise import ways
from sordino.tree import Tree
from sordino.types import Offer, Task

Members: TypeAlias = tuple[int, ...] | None  # a site's own clients; None: everybody


@dataclass(frozen=True)
class Whole:
    """What all phases of a run share."""

    experiment: Experiment
    public: PublicNumbers
    agreed: Mapping[str, int] | None = None  # numbers in an upload, by phase, where no model is built

    @cached_property
    def methods(self) -> Methods:
        return Methods(self.experiment)

    @cached_property
    def phases(self) -> tuple[Setup, ...]:
        """All phases in their order; the last one is the training."""
        return tuple(Setup(self, i) for i in range(len(self.methods.phases)))

    @property
    def hides_cohorts(self) -> bool:
        """Is there a phase whose cohort nobody may know?"""
        return any(phase.cohort.hidden for phase in self.phases)

    @cached_property
    def task(self) -> Task:
        """The model and its losses."""
        return self.built_task()

    def built_task(self) -> Task:
        """The same task in memory of its own, for another thread."""
        from sordino.tasks.quadratic import Quadratic
        from sordino.tasks.supervised import HowRun

        experiment, public, training = self.experiment, self.public, self.methods.training
        if experiment.data.source == "quadratic":
            return Quadratic(public.shape[0] // 2)
        loss = self._loss
        net = self.architecture.built(keys.word(keys.fold(keys.root(experiment.seed), "model")))
        how = HowRun(
            name=self.architecture.name,
            shape=public.shape,
            mean=public.mean,
            std=public.std,
            image=public.kind == "image",
            precision=torch.bfloat16 if decided(experiment.engine, training).precision == "bf16" else torch.float32,
            augment=experiment.data.augment,
            keeps=self.architecture.is_own and not experiment.model.get("reset", False),
        )
        return self.methods.problem.built(net, how, loss, public.called_classes)

    @property
    def _loss(self) -> LossFunction | None:
        """A loss of somebody's own; None for cross-entropy."""
        table = self.experiment.loss
        if table is None:
            return None
        if any(phase.sets_loss for phase in self.methods.phases):
            raise ConfigError(
                f"loss = {table.get('name')!r} with algorithm = {self.experiment.algorithm.get('name')!r}",
                why="this algorithm trains with a loss of its own, so yours would change nothing, or half of it",
                fix="leave the loss out, or choose another algorithm",
                code="loss-of-the-algorithm",
            )
        rest = {key: value for key, value in table.items() if key != "name"}
        return loss_named(table, lambda made: filled(made, rest, "[loss]"))

    @cached_property
    def architecture(self) -> Architecture:
        """What the model is built from."""
        table, public, training = self.experiment.model, self.public, self.methods.training
        own, name, reset = table.get("options", {}), str(table.get("name")), table.get("reset")
        if not isinstance(own, dict):
            raise ConfigError(
                f"model.options = {own!r}",
                why="it must be a table with the arguments of your class",
                fix="set for example model.options = {width = 64}",
                code="wrong-type",
            )
        if reset is not None and not (isinstance(reset, bool) and user_code.is_own(name)):
            raise ConfigError(
                f"model.reset = {reset!r} with model.name = {name!r}",
                why="it says, true or false, whether the initial values of a class of your own are drawn anew; those "
                "of a built-in network always are",
                fix="leave it out, or set model.reset = true with a class of your own",
                code="no-reset",
            )
        shape, image = public.shape, public.kind == "image"
        return Architecture(
            name,
            {key: value for key, value in table.items() if key not in ("name", "options", "reset")} | own,
            (shape[-1], *shape[:-1]) if image else shape,
            self.methods.problem.outputs(public.named) * training.heads,
            training.projection,
        )

    @cached_property
    def budget(self) -> Budget | None:
        """What the clients grant, for all phases together."""
        privacy = self.experiment.privacy
        if privacy.epsilon is None:
            return None
        lacks = partial(lacking_delta, [phase.priced for phase in self.phases], privacy)
        made: dict[str, Callable[..., Schedule | Adaptive]] = dict(SCHEDULES)
        schedule = build(privacy.schedule, made, "privacy.schedule")
        if not isinstance(privacy.epsilon, dict):
            return Budget(privacy.epsilon, privacy.delta, schedule, None, lacks(privacy.epsilon))
        people, key = len(self.public.sizes), keys.root(self.experiment.seed)
        each = client_budgets.personal(
            resolved_table(self.experiment, privacy.epsilon), people, key, self.public.clients
        ).tolist()
        return Budget(max(each), privacy.delta, schedule, each, lacks(max(each)))

    def agreement(self, dataset: str) -> Agreement:
        """What is public of all this; `dataset`: the digest that stands for the data."""
        return Agreement(dataset, self.public, {phase.phase: phase.coordinates for phase in self.phases})

    @cached_property
    def parts(self) -> dict[int, tuple[float, Pricing | None]]:
        """The parts of one budget that phases have, and their prices; nothing where one phase has all of it."""
        if len(self.phases) == 1 or self.budget is None:
            return {}
        alone = self.experiment.privacy.ledger is None
        return shared([phase.priced for phase in self.phases], self.methods.portions, self.budget, alone)


@dataclass(frozen=True)
class Setup:
    """One phase of a run: its method, its model, who takes part, what it promises."""

    whole: Whole
    stage: int  # of the phases; the last one is the training

    @property
    def experiment(self) -> Experiment:
        return self.whole.experiment

    @property
    def public(self) -> PublicNumbers:
        return self.whole.public

    @property
    def task(self) -> Task:
        return self.whole.task

    @property
    def preparation(self) -> tuple[Setup, ...]:
        """The phases before the training."""
        return self.whole.phases[:-1]

    @property
    def prepares(self) -> bool:
        """Is this a phase before the training?"""
        return self.stage < len(self.whole.phases) - 1

    @property
    def phase(self) -> str:
        """The name of a phase of the preparation, nothing for the training."""
        return self.chosen.name if isinstance(self.chosen, Phase) else ""

    def run_of(self, run: str) -> str:
        """The name that this phase of a run has on the wire and in the ledger."""
        return of_phase(run, self.phase)

    @property
    def key(self) -> int:
        """The key of the run."""
        return keys.root(self.experiment.seed)

    @property
    def phase_key(self) -> int:
        """The key of this phase's draws: two phases never draw the same noise."""
        return keys.word(keys.fold(self.key, "phase", self.phase)) if self.prepares else self.key

    @property
    def rounds(self) -> int:
        return self.chosen.rounds if isinstance(self.chosen, Phase) else self.experiment.rounds

    def over(self, server: Tree) -> bool:
        """Has a phase of the preparation found what it prepares?"""
        return isinstance(self.algorithm, Phase) and self.algorithm.over(server)

    def result(self, server: Tree) -> Tree:
        """What the next phase, or the training, begins from."""
        return self.algorithm.result(server) if isinstance(self.algorithm, Phase) else server

    def header(self, run: str) -> Callable[[int, int], Header]:
        """What a message of this phase must say: (round, sender; -1 the server)."""
        phase, config = self.run_of(run), self.experiment.digest()
        return lambda t, sender: Header(phase, config, t, sender, "down" if sender < 0 else "up")

    # the method -------------------------------------------------------------------------------------------------------

    @property
    def chosen(self) -> AnyAlgorithm:
        """The method as the experiment chooses it."""
        return self.whole.methods.phases[self.stage]

    @cached_property
    def method(self) -> AnyAlgorithm:
        """The same, with what it and its gates must know of the data and the model."""
        algorithm, public = self.chosen, self.public
        read = algorithm.read.fitted(public.shape, public.named)
        algorithm = algorithm.behind(read=read) if read is not algorithm.read else algorithm
        if algorithm.uplink.per_coordinate is not None:
            fewest = 1 if self.cohort.hidden else int(self.cohort.expected(len(public.sizes)))
            least = fewest * min(public.sizes) / public.largest
            algorithm = algorithm.behind(uplink=algorithm.uplink.fitted(self._coordinates(algorithm), least))
        return algorithm.fitted(Known(public.shape, public.named, public.sizes, self.key))

    @cached_property
    def algorithm(self) -> AnyAlgorithm:
        """The same, with what its uplink learns from round to round."""
        return adapting(self.method)

    @property
    def ways(self) -> tuple[str, ...]:
        """The ways in which clients make a model their own; none where all use the same."""
        return ways(self.algorithm.personalises, self.experiment.evaluation.personal)

    @property
    def engine(self) -> Engine:
        """[engine] with every `auto` decided."""
        return decided(self.experiment.engine, self.chosen)

    @property
    def sharing(self) -> str:
        """Which clients of one process share a pass."""
        executor, plainly = self.engine.executor, reads_plainly(self.chosen)
        if executor == "ranks":
            return "stack" if plainly else "pooled"
        return executor if executor == "pooled" or (executor == "stack" and plainly) else "loop"

    @property
    def cohort(self) -> Cohort:
        return Everyone() if self.prepares else self.whole.methods.cohort

    @cached_property
    def stragglers(self) -> Stragglers:
        slow, chaos = self.experiment.stragglers, self.experiment.chaos
        whole = reads_plainly(self.chosen)  # what is noised step by step is planned step by step
        share = 0.0 if self.prepares else slow.share  # a preparation waits
        return Stragglers(
            share, slow.policy, self.algorithm.work.epochs, whole, (chaos.drop, chaos.slow), self.cohort.hidden
        )

    @cached_property
    def coordinates(self) -> int:
        """Numbers in one upload, before compression."""
        return self._coordinates(self.algorithm)

    def _coordinates(self, algorithm: AnyAlgorithm) -> int:
        if self.whole.agreed is not None:  # the model may be somebody's own, and not here
            return of_an_upload(self.whole.agreed, self.phase)
        return tree.size(algorithm.zero(self.task, algorithm.broadcast(algorithm.init(self.task, 0))))

    def states(self, folder: Path | None = None, trees: Mapping[str, Tree] | None = None) -> States:
        """What clients keep, as it stands in a checkpoint; beyond what memory should hold it lies in the folder."""
        return States(self.algorithm.init_client(self.task), folder).restore(trees or {})

    def state(self, name: str) -> Tree:
        """The shape of a tree in a checkpoint, by name."""
        if name.partition("/")[0] == "server":
            return self.algorithm.init(self.task, self.key)
        return shape_of(name, self.algorithm.init_client(self.task))

    # the promise ------------------------------------------------------------------------------------------------------

    @cached_property
    def offers(self) -> list[tuple[Offer, float | None]]:
        """What the gates could promise, with the multipliers that are typed into them."""
        algorithm, population = self.algorithm, len(self.public.sizes)
        offers: list[tuple[Offer, float | None]] = []
        if (reader := algorithm.read.offer()) is not None:
            offers.append((reader, algorithm.read.multiplier))
        uplink = algorithm.uplink.offer(self.cohort.expected(population) / population, self.cohort.hidden)
        if uplink is not None and (noise := algorithm.uplink.noise()) is not None:
            offers.append((uplink, noise.multiplier))
        return offers

    @cached_property
    def priced(self) -> PriceRequest:
        """What is to be priced of this phase."""
        what = self.algorithm, self.cohort, self.experiment.privacy, self.offers
        return PriceRequest(*what, self.public.sizes, self.coordinates, self.rounds)

    @cached_property
    def plan(self) -> Plan:
        """The price of every exposure; refuses, before any data is read, what could not keep its promise."""
        experiment, delta = self.experiment, self.experiment.privacy.delta
        check_reads(self.algorithm)
        if self.whole.agreed is None:  # where the model is
            self.algorithm.read.check(self.algorithm.work, self.task)
            check_network(self.method, self.task, bool(self.offers))
        _ = self.stragglers
        method, most = self.method, self.cohort.expected(len(self.public.sizes))
        check_robust(method.uplink.robust, most, method.takes_mean and not method.reads_each, self.cohort.hidden)
        self.priced.check()
        part = self.whole.parts.get(self.stage, (0.0, None)) if self.whole.parts else None
        plan = self.priced.plan(self.whole.budget, part)
        slow, chaos, network = experiment.stragglers, experiment.chaos, experiment.engine.network
        faults = slow.share + chaos.drop + chaos.slow > 0 or network.timeout_s is not None
        check_secure(self.algorithm.uplink, plan, self.cohort, self.rounds, delta, self.coordinates, faults)
        return plan

    @cached_property
    def promising(self) -> Plan:
        """The plan of a phase that spends the budget, or at least promises something: what a ledger that all phases
        share is founded for.
        """
        plans = [phase.plan for phase in (self.whole.phases[-1], *self.preparation)]
        spends = next((plan for plan in plans if plan.budget is not None), None)
        return spends or next((plan for plan in plans if plan.offer is not None), self.plan)

    def federation(
        self, home: Home, dataset: str, ledger: Path | str, run: str, only: Members = None, reading: bool = False
    ) -> Federation:
        """The server's side of this phase on its ledger, or a site's books: `only` its clients. `dataset`: the digest
        that stands for the data. `reading`: to look.
        """
        plan, people, delta = self.promising, len(self.public.sizes), self.experiment.privacy.delta
        promise = (plan.offer.unit, plan.offer.neighbours, plan.offer.adversary) if plan.offer else ("none",) * 3
        charter = Charter(dataset, *promise, delta, plan.currency, self.public.clients)
        cap, together = plan.cap, plan.offer is not None and plan.offer.everyone_pays and not plan.individual
        own = plan.budget is not None and plan.budget.personal is not None and not together
        each = Each(people, cap) if cap is not None and not together and not own else None
        caps = {str(k): limit for k in range(people) if (limit := plan.cap_of(k)) is not None} if own else None
        return Federation(
            algorithm=self.algorithm,
            home=home,
            called=self.public.called,
            cohort=self.cohort,
            stragglers=self.stragglers,
            plan=self.plan,
            ledger=Ledger.open(ledger, charter, caps, cap if together else None, each, reading),
            sizes=self.public.sizes,
            key=self.phase_key,
            noise=self.experiment.privacy.noise,
            run=self.run_of(run),
            config=self.experiment.digest(),
            coordinates=self.coordinates,
            void=self.public.void,
            own_code=shown_rows(self.experiment),
            before=tuple(phase.run_of(run) for phase in self.preparation[: self.stage]),
            only=only,
        )
