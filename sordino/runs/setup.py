"""From an experiment to its parts. Deterministic, so a client process builds exactly what the server's process built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sordino import user_code
from sordino.budget import client_budgets
from sordino.budget.plan import Budget, Plan, draft, shared_currency
from sordino.budget.plans_by_budget import draft_personal
from sordino.budget.schedules import SCHEDULES, Adaptive, Schedule
from sordino.cohorts.by_budget import Personal, ThresholdPublished
from sordino.cohorts.kinds import alike
from sordino.config import Experiment, Privacy, build
from sordino.engine.checkpoint import Loaded
from sordino.engine.client import Clients
from sordino.engine.client_states import States, template
from sordino.engine.secure_sum import check_gate
from sordino.engine.server import Federation
from sordino.engine.shards import Prepared, Shards
from sordino.engine.wire import Header
from sordino.errors import DataError, UnsoundGuarantee
from sordino.evaluate.accuracy import Evaluator
from sordino.evaluate.evaluation import Evaluation, check, check_models, ways
from sordino.ledger.ledger import Charter, Each, Ledger
from sordino.ledger.pricing import Pricing
from sordino.ledger.published_sampling import nominal_multiplier
from sordino.privacy.noise.sources import for_run
from sordino.privacy.readers.covered import check_apart
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.privacy.uplink.stages import Weigh
from sordino.runs.agreement import Agreement
from sordino.runs.phases import Composition
from sordino.runs.refusals import check_delta, check_everybody_has_data, check_secure
from sordino.types import Examples, NoiseSource, Offer, Params

TRUSTED = "{} is somebody's own program, which is trusted not to keep or send what it is shown"
SCALING = "inputs are scaled by the mean and deviation of all training data, whose release is not accounted for"


def settle(experiment: Experiment) -> Experiment:
    """The default budget belongs to private algorithms: `sordino run algorithm=fedavg` is not asked to drop it."""
    if "privacy" in experiment.model_fields_set:
        return experiment
    parts = Parts(experiment)
    gates = [other.algorithm for other in (*parts.preparation, parts)]
    private = any(gate.read.offer() is not None or gate.uplink.noise() is not None for gate in gates)
    return experiment if private else experiment.model_copy(update={"privacy": Privacy()})


@dataclass(frozen=True)
class Parts(Composition):
    # the promise ----------------------------------------------------------------------------------------------------

    @cached_property
    def plan(self) -> Plan:
        """Prices every exposure; refuses, before any data is read, what could not keep its promise."""
        check_everybody_has_data(self.sizes)
        plan, rounds, delta = self._drafted, self.rounds, self.experiment.privacy.delta
        slow, chaos, network = self.experiment.stragglers, self.experiment.chaos, self.experiment.engine.network
        faults = slow.share + chaos.drop + chaos.slow > 0 or network.timeout_s is not None
        check_secure(self.algorithm.uplink, plan, self.cohort, rounds, delta, self.coordinates, faults)
        return plan

    @cached_property
    def _drafted(self) -> Plan:
        algorithm, privacy, population = self.algorithm, self.experiment.privacy, len(self.sizes)
        asked = algorithm.wants
        if (gives := algorithm.read.gives or asked) != asked:
            raise UnsoundGuarantee(
                f"an algorithm of {asked} with a reader of {gives}",
                why="the reader's promise covers nothing else",
                fix='read = {name = "cells", ...}' if asked == "episodes" else 'read = {name = "noisy_gradient", ...}',
                code="reader-does-not-give",
            )
        if self.agreed is None:
            algorithm.read.check(algorithm.work, self.task)
        algorithm.uplink.bound(self.coordinates)
        most = population if self.cohort.hidden else self.cohort.expected(population)
        check_gate(algorithm.uplink, algorithm.reads_each, most)
        _ = self.stragglers
        offers = self.offers
        if offers and self.agreed is None:  # also where clients are protected: they share the network of this process
            check_apart(self.task)
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
        if len(offers) > 1 and any(offer.everyone_pays for offer, _ in offers):
            raise UnsoundGuarantee(
                "two private gates under a hidden cohort",
                why="what clients pay for their examples follows from who was drawn and how many they hold, "
                "and neither may show where the cohort is hidden",
                fix="a cohort that everybody sees, or one of the two gates",
                code="two-gates-hidden",
            )
        exposures, budget = self.exposures, self.budget
        if algorithm.uplink.personal and budget is not None and isinstance(budget.schedule, Adaptive):
            raise UnsoundGuarantee(
                "personal clips with an adaptive schedule",
                why="all of them are in proportion to the least noise that the plan holds, which must be known before the first round",
                fix='schedule = {name = "uniform"}, or another that is fixed in advance',
                code="personal-schedule",
            )
        published = None
        if isinstance(algorithm.read, NoisyGradient) and algorithm.read.sampling == "fixed_subset" and budget:
            published = nominal_multiplier(budget.epsilon, budget.delta, algorithm.read.rate, max(exposures))
        reads = {"example": self.reads}
        if not self._sharing_a_budget:
            return draft(offers, budget, exposures, reads, published)
        portion, currency = self._sharing_a_budget.get(self.stage % len(self._phases), (0.0, None))
        return draft(offers, budget if portion else None, exposures, reads, published, portion, currency)

    @cached_property
    def offers(self) -> list[tuple[Offer, float | None]]:
        """What the gates could promise, with the multipliers that are typed into them."""
        algorithm, population = self.algorithm, len(self.sizes)
        found: list[tuple[Offer, float | None]] = []
        if (reader := algorithm.read.offer()) is not None:
            found.append((reader, algorithm.read.multiplier))
        uplink = algorithm.uplink.offer(self.cohort.expected(population) / population, self.cohort.hidden)
        if uplink is not None and (noise := algorithm.uplink.noise()) is not None:
            found.append((uplink, noise.multiplier))
        return found

    @cached_property
    def exposures(self) -> Sequence[int]:
        """Rounds that each client is planned to pay for."""
        if any(offer.everyone_pays for offer, _ in self.offers):  # in every round, whoever is drawn
            return alike(self.rounds, len(self.sizes))
        return self.cohort.exposures(self.rounds, len(self.sizes))

    @cached_property
    def reads(self) -> Sequence[int]:
        """Noisy reads of every client in one round."""
        algorithm = self.algorithm
        sizes, where = np.unique(np.asarray(self.sizes), return_inverse=True)
        return np.array([algorithm.read.reads(algorithm.work, size) for size in sizes.tolist()])[where].data

    @property
    def _asks(self) -> tuple[Offer, int]:
        """What a phase wants to be priced, and the most releases that a client of it is planned to pay for."""
        offer = next(offer for offer, typed in self.offers if typed is None)
        each = 1 if offer.unit == "client" else max(self.reads)
        return offer, max(1, max(self.exposures) * each)

    @cached_property
    def _sharing_a_budget(self) -> dict[int, tuple[float, Pricing | None]]:
        """The phases that are priced by one budget, with their parts of it and their prices; nothing where one phase
        has all of it.
        """
        if len(self._phases) == 1 or self.experiment.privacy.epsilon is None:
            return {}
        stages = [*self.preparation, self._at(-1)]
        priced = [i for i, other in enumerate(stages) if any(typed is None for _, typed in other.offers)]
        if not priced:
            return {}
        asked = [stages[i]._asks for i in priced]
        units = {offer.unit for offer, _ in asked}
        if any(typed is not None and offer.unit in units for other in stages for offer, typed in other.offers):
            raise UnsoundGuarantee(
                "a typed multiplier beside phases that a budget prices",
                why="what it spends of the same promise is not in the budget, so the whole would exceed it",
                fix="leave the multiplier out, or type one in every phase and give no epsilon",
                code="typed-beside-priced",
            )
        assert self.budget is not None
        if len({(offer.unit, offer.neighbours, offer.adversary) for offer, _ in asked}) > 1:
            raise UnsoundGuarantee(
                "phases of different promises want to be priced by one budget",
                why="what is spent about one unit, or against one adversary, does not add up with what is spent about another",
                fix="type the multiplier of one of them, or leave the gate out that was put in its training",
                code="two-promises-one-budget",
            )
        if len(priced) > 1 and any(offer.mechanism.calibration != "exact" for offer, _ in asked):
            raise UnsoundGuarantee(
                "phases of different noise want to be priced by one budget",
                why="only Gaussian noise of exact calibration adds up over phases",
                fix='calibration = "exact", and Gaussian noise in every phase',
                code="two-noises-one-budget",
            )
        if isinstance(self.budget.schedule, Adaptive):
            raise UnsoundGuarantee(
                "an adaptive schedule over phases",
                why="it prices a round by what is left of the budget, of which other phases have their parts",
                fix='schedule = {name = "uniform"}, or another that is fixed in advance',
                code="adaptive-over-phases",
            )
        if len(priced) == 1:
            return {priced[0]: (1.0, None)}
        weights = [self._shares[i] for i in priced]
        portions = [weight / sum(weights) for weight in weights]
        prices = shared_currency(asked, portions, self.budget, alone=self.experiment.privacy.ledger is None)
        return {i: (part, price) for i, part, price in zip(priced, portions, prices, strict=True)}

    @cached_property
    def budget(self) -> Budget | None:
        privacy = self.experiment.privacy
        if privacy.epsilon is None:
            return None
        made: dict[str, Callable[..., Schedule | Adaptive]] = dict(SCHEDULES)
        schedule = build(privacy.schedule, made, "privacy.schedule")
        if not isinstance(privacy.epsilon, dict):
            return Budget(privacy.epsilon, privacy.delta, schedule)
        each = client_budgets.personal(privacy.epsilon, len(self.sizes), self.key).tolist()
        return Budget(max(each), privacy.delta, schedule, each)

    @cached_property
    def promising(self) -> Plan:
        """The plan of a phase that spends the budget, or at least promises something: what a ledger that all phases
        share is founded for.
        """
        plans = [other.plan for other in (self._at(-1), *self.preparation)]
        spends = next((plan for plan in plans if plan.budget is not None), None)
        return spends or next((plan for plan in plans if plan.offer is not None), self.plan)

    def charter(self) -> Charter:
        plan, delta = self.plan if len(self._phases) == 1 else self.promising, self.experiment.privacy.delta
        promise = (plan.offer.unit, plan.offer.neighbours, plan.offer.adversary) if plan.offer else ("none",) * 3
        return Charter(self.fingerprint, *promise, delta, plan.currency)

    def agreement(self) -> Agreement:
        """What is public of all this."""
        data, phases = self.dataset, (*self.preparation, self)
        return Agreement(
            dataset=self.fingerprint,
            kind=data.kind,
            shape=data.shape,
            classes=data.classes,
            named=self.named.classes,
            sizes=tuple(self.sizes) if self.experiment.privacy.public_sizes else (1,) * len(self.sizes),
            coordinates={mine.phase: mine.coordinates for mine in phases},
            assumed=self.assumed,
            void=self.void,
            note=data.note,
            names=data.names,
        )

    @property
    def assumed(self) -> tuple[str, ...]:
        """What every number rests on, because of how the data were read."""
        if self.agreed is not None:
            return self.agreed.assumed
        scaled = (SCALING,) if self.scaled_by_rows else ()
        named = [str(table.get("name")) for table in (self.experiment.algorithm, self.experiment.model)]
        trusted = tuple(TRUSTED.format(name) for name in named if user_code.is_own(name))
        return (*scaled, *self.drawn_from_labels, *(() if self._real else self.learned_from_rows), *trusted)

    @property
    def void(self) -> tuple[str, ...]:
        """Why nothing that is claimed holds; empty where it does."""
        if self.agreed is not None:
            return self.agreed.void
        return self.learned_from_rows if self._real else ()

    # the two sides --------------------------------------------------------------------------------------------------

    def federation(self, ledger: Path | str, run: str) -> Federation:
        plan, people = self.plan if len(self._phases) == 1 else self.promising, len(self.sizes)
        cap, shared = plan.cap, plan.offer is not None and plan.offer.everyone_pays and not plan.individual
        own = plan.budget is not None and plan.budget.personal is not None and not shared
        each = Each(people, cap) if cap is not None and not shared and not own else None
        caps = {str(k): limit for k in range(people) if (limit := plan.cap_of(k)) is not None} if own else None
        return Federation(
            algorithm=self.algorithm,
            home=self.home,
            cohort=self.cohort,
            stragglers=self.stragglers,
            plan=self.plan,
            ledger=Ledger.open(ledger, self.charter(), caps, total=cap if shared else None, each=each),
            sizes=self.sizes,
            key=self.phase_key,
            noise=self.experiment.privacy.noise,
            run=f"{run}.{self.phase}" if self.prepares else run,
            config=self.experiment.digest(),
            coordinates=self.coordinates,
            void=self.void,
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

        def once(client: int) -> NoiseSource:
            return for_run(self.experiment.privacy.noise, self.key, secret, client)

        rows, tested = self.shares
        which = range(len(rows)) if which is None else which
        shards: Mapping[int, Examples] = Shards(self.named.train, rows, which)
        tests = Shards(self.named.test, tested, which)
        if self.algorithm.read.redraw is not None:
            shards = Prepared(shards, self.algorithm.read, once)
        states = self.states(None) if states is None else states
        return Clients(self.algorithm, self.task, shards, header, states, tests, handed, self.key, self.sharing)

    @property
    def ways(self) -> tuple[str, ...]:
        """In which clients make a model their own; none where all use the same."""
        return ways(self.algorithm, self.experiment.evaluation.personal)

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
