"""Phases of a run as they are planned: methods, cohorts, prices and privacy accounts, from an experiment and the public
numbers of the data. No row is needed, so the server, every site and whoever verifies a receipt compute the same plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias, TypeVar

from sordino import budget, keys, user_code
from sordino.accounting.claims import Policy
from sordino.accounting.facts import FORMAT
from sordino.accounting.pricing import Pricing
from sordino.accounting.statement import lacking
from sordino.algorithms.algorithm import AnyAlgorithm
from sordino.algorithms.optional import FitsData, PublicFacts, RequestsClients
from sordino.algorithms.phases import Phase
from sordino.algorithms.preset import adapting
from sordino.budget import SCHEDULES, Adaptive, Schedule
from sordino.budget.plan import Budget, Plan
from sordino.config import Experiment, build, resolved_table
from sordino.errors import UnsoundGuarantee, damaged
from sordino.ledger.books import of_phase
from sordino.ledger.ledger import EqualCaps, Ledger, LedgerScope
from sordino.planning import AGREEMENT_FILE, PUT_BACK, Agreement, PublicNumbers
from sordino.planning.accounts import Accounts
from sordino.planning.methods import Methods, reads_plainly
from sordino.planning.prices import PriceRequest, check_reads, check_secure, shared
from sordino.privacy.uplink.robust import check_robust
from sordino.sampling import Cohort, Everyone
from sordino.sampling.draws import Stragglers
from sordino.tasks.personalise import ways
from sordino.types import Offer

SHARED = 0.25  # of delta: what runs that share a ledger set aside for real noise, so that their caps are the same
CHOOSES = "no release decides whom a round asks, or whether there is one"
Members: TypeAlias = tuple[int, ...] | None  # a site's own clients; None: all clients
A = TypeVar("A", bound=Accounts)


@dataclass(frozen=True)
class PlannedRun:
    """Settings of a run and public numbers of its clients' data, which all phases share."""

    experiment: Experiment
    public: PublicNumbers
    agreed: Mapping[str, int] | None = None  # numbers in an upload, by phase; None: those of the model

    @cached_property
    def methods(self) -> Methods:
        return Methods(self.experiment)

    @cached_property
    def phases(self) -> tuple[PlannedPhase, ...]:
        """All phases in their order; the last one is the training."""
        return tuple(PlannedPhase(self, i) for i in range(len(self.methods.phases)))

    @cached_property
    def budget(self) -> Budget | None:
        """Privacy budget of the clients, for all phases together."""
        privacy = self.experiment.privacy
        if privacy.epsilon is None:
            return None
        aside = 0.0 if privacy.ledger is None else SHARED * privacy.delta
        made: dict[str, Callable[..., Schedule | Adaptive]] = dict(SCHEDULES)
        schedule = build(privacy.schedule, made, "privacy.schedule")
        if not isinstance(privacy.epsilon, dict):
            return Budget(privacy.epsilon, privacy.delta, schedule, None, self.lacks(privacy.epsilon), aside)
        people, key = len(self.public.sizes), keys.root(self.experiment.seed)
        each = budget.personal(
            resolved_table(self.experiment, privacy.epsilon), people, key, self.public.clients
        ).tolist()
        return Budget(max(each), privacy.delta, schedule, each, self.lacks(max(each)), aside)

    def lacks(self, epsilon: float, before: float = 0.0) -> float:
        """The part of delta to set aside because real noise deviates from the ideal law that prices a budget; 0 for
        seeded noise. `before`: the deviation of earlier releases, in total variation.
        """
        if not self.experiment.privacy.real:
            return 0.0
        sized = (one.priced for one in self.phases if any(typed is None for _, typed in one.offers))
        drift = math.fsum(one.drift for one in sized)
        return lacking(epsilon, before + drift) * (1 + 1e-5)  # a little more than the statement will take off

    @cached_property
    def conditions(self) -> tuple[str, ...]:
        """Extra conditions of all guarantees of a run in which earlier releases decide how often a client is asked: a
        statement counts the rounds that there were."""
        if not any(isinstance(one.chosen, RequestsClients) or (one.prepares and one.rounds > 1) for one in self.phases):
            return ()
        pays = next((one.plan.offer for one in self.phases if one.plan.budget and one.plan.offer), None)
        if pays is None or self.budget is None:
            return (CHOOSES,)
        who = pays.subject
        whole = f"epsilon {self.budget.epsilon} per {who.unit} ({who.neighbours})"
        return (f"{CHOOSES}; the whole budget, {whole}, pays for every round that there may be",)

    def agreement(self, dataset: str) -> Agreement:
        """Content of agreement.json: sizes and names of the clients, shape of the data and length of an upload, all
        public. `dataset`: the digest that identifies the data."""
        coordinates = {phase.phase: phase.coordinates for phase in self.phases}
        return Agreement(format=FORMAT, dataset=dataset, public=self.public, coordinates=coordinates)

    @cached_property
    def parts(self) -> dict[int, tuple[float, Pricing | None]]:
        """The portion of the shared budget and the pricing of each phase, by its index; empty where one phase has the
        whole budget.
        """
        if len(self.phases) == 1 or self.budget is None:
            return {}
        alone = self.experiment.privacy.ledger is None
        return shared([phase.priced for phase in self.phases], self.methods.portions, self.budget, alone)


@dataclass(frozen=True)
class PlannedPhase:
    """One phase of a run: its method, its cohort, and its guarantee."""

    whole: PlannedRun
    stage: int  # of the phases; the last one is the training

    @property
    def experiment(self) -> Experiment:
        return self.whole.experiment

    @property
    def public(self) -> PublicNumbers:
        return self.whole.public

    @property
    def preparation(self) -> tuple[PlannedPhase, ...]:
        """The phases before the training."""
        return self.whole.phases[:-1]

    @property
    def prepares(self) -> bool:
        """True for a phase before the training."""
        return self.stage < len(self.whole.phases) - 1

    @property
    def phase(self) -> str:
        """The name of a phase of the preparation; empty for the training."""
        return self.chosen.name if isinstance(self.chosen, Phase) else ""

    def run_of(self, run: str) -> str:
        """Name of this phase of a run, in messages and in the ledger."""
        return of_phase(run, self.phase)

    @property
    def key(self) -> int:
        """The root key of the run's random draws."""
        return keys.root(self.experiment.seed)

    @property
    def phase_key(self) -> int:
        """The key of this phase's random draws: no two phases draw the same noise."""
        return keys.word(keys.fold(self.key, "phase", self.phase)) if self.prepares else self.key

    @property
    def rounds(self) -> int:
        return self.chosen.rounds if isinstance(self.chosen, Phase) else self.experiment.rounds

    # the method -------------------------------------------------------------------------------------------------------

    @property
    def chosen(self) -> AnyAlgorithm:
        """The algorithm of this phase as the experiment chooses it, before it is fitted to the data."""
        return self.whole.methods.phases[self.stage]

    @cached_property
    def method(self) -> AnyAlgorithm:
        """The method, with its clip and noise (reader and uplink), fitted to the shape of the data and the model."""
        algorithm, public = self.chosen, self.public
        read = algorithm.read.fitted(public.shape, public.named)
        algorithm = algorithm.behind(read=read) if read is not algorithm.read else algorithm
        if algorithm.uplink.per_coordinate is not None:
            fewest = 1 if self.policy.hidden else int(self.cohort.expected(len(public.sizes)))
            least = fewest * min(public.sizes) / public.largest
            algorithm = algorithm.behind(uplink=algorithm.uplink.fitted(self._coordinates(algorithm), least))
        known = PublicFacts(public.shape, public.named, public.sizes, self.key)
        return algorithm.fitted(known) if isinstance(algorithm, FitsData) else algorithm

    @cached_property
    def algorithm(self) -> AnyAlgorithm:
        """The method, wrapped (`Adapting`) if a stage of its uplink adapts from round to round."""
        return adapting(self.method)

    @property
    def ways(self) -> tuple[str, ...]:
        """The ways in which clients personalise a model; none where all use the same model."""
        return ways(self.algorithm, self.experiment.evaluation.personal)

    @property
    def cohort(self) -> Cohort:
        return Everyone() if self.prepares else self.whole.methods.cohort

    @cached_property
    def policy(self) -> Policy:
        return Policy(self.experiment.privacy.noise, self.cohort.hidden, self.chosen.uplink.secure is not None)

    @cached_property
    def stragglers(self) -> Stragglers:
        slow, chaos = self.experiment.stragglers, self.experiment.chaos
        whole = reads_plainly(self.chosen)  # what is noised step by step is planned step by step
        share = 0.0 if self.prepares else slow.share  # a preparation waits
        return Stragglers(
            share, slow.policy, self.algorithm.work.epochs, whole, (chaos.drop, chaos.slow), self.policy.hidden
        )

    @cached_property
    def coordinates(self) -> int:
        """Length of one upload as a vector, before compression."""
        return self._coordinates(self.algorithm)

    @property
    def parameters(self) -> int:
        """Number of model parameters; the size of an upload if the model itself is not available."""
        return self.coordinates

    def _coordinates(self, algorithm: AnyAlgorithm) -> int:
        """Length of one upload as a vector, from the agreement: a user's own model may not be available."""
        assert self.whole.agreed is not None
        if self.phase not in self.whole.agreed:
            raise damaged(
                Path(AGREEMENT_FILE), f"it has no number of coordinates for the phase {self.phase!r}", PUT_BACK
            )
        return self.whole.agreed[self.phase]

    def check_model(self) -> None:
        """Refuses a model that the method cannot train, where the model is available; without one it does nothing."""

    # the guarantee ----------------------------------------------------------------------------------------------------

    @cached_property
    def offers(self) -> list[tuple[Offer, float | None]]:
        """Noise mechanisms of this phase (on gradients and on uploads), each with the multiplier that the user set
        (None: the budget decides)."""
        algorithm, population = self.algorithm, len(self.public.sizes)
        offers: list[tuple[Offer, float | None]] = []
        if (reader := algorithm.read.offer()) is not None:
            offers.append((reader, algorithm.read.multiplier))
        uplink = algorithm.uplink.offer(self.cohort.expected(population) / population, self.policy.hidden)
        if uplink is not None and (noise := algorithm.uplink.noise()) is not None:
            offers.append((uplink, noise.multiplier))
        return offers

    @cached_property
    def priced(self) -> PriceRequest:
        """Facts about this phase from which its prices (noise multipliers and ledger charges) are computed."""
        what = self.algorithm, self.cohort, self.experiment.privacy, self.offers
        return PriceRequest(*what, self.public.sizes, self.coordinates, self.rounds)

    @cached_property
    def plan(self) -> Plan:
        """The noise multiplier and ledger charge of every planned participation; settings whose guarantee would not
        hold are refused before any data are read."""
        experiment, delta = self.experiment, self.experiment.privacy.delta
        check_reads(self.algorithm)
        self.check_model()
        if isinstance(self.chosen, RequestsClients) and (self.policy.hidden or self.cohort.personal):
            raise UnsoundGuarantee(
                f"{type(self.chosen).__name__} chooses its clients itself, in a hidden cohort",
                why="the guarantee of a hidden cohort rests on independent coins that nobody sees, and no coin is "
                "tossed for a client that is chosen",
                fix='use a visible cohort, such as cohort = "everyone": then each client pays for its own rounds',
                code="requests-without-coins",
            )
        _ = self.stragglers
        method, most = self.method, self.cohort.expected(len(self.public.sizes))
        check_robust(method.uplink.robust, most, method.takes_mean and not method.reads_each, self.policy.hidden)
        self.priced.check()
        part = self.whole.parts.get(self.stage, (0.0, None)) if self.whole.parts else None
        plan = self.priced.plan(self.whole.budget, part)
        slow, chaos, engine = experiment.stragglers, experiment.chaos, experiment.engine
        faults = slow.share + chaos.drop + chaos.slow > 0 or engine.network.timeout_s is not None
        check_secure(self.algorithm.uplink, plan, self.cohort, self.rounds, delta, self.coordinates, faults)
        if self.policy.hidden and plan.everyone_pays and (engine.network.timeout_s or engine.deadline_s):
            raise UnsoundGuarantee(
                "engine.network.timeout_s or engine.deadline_s, with noise on the sum of a hidden cohort",
                why="clients share lines and processes: one client more makes others late, and leaves them out of the "
                "sum, which then moves by more than one clip, or ends the run",
                fix="leave both out, or use a visible cohort; [stragglers] and [chaos] lose clients by coins of "
                "their own",
                code="timeout-tells",
            )
        return plan

    @cached_property
    def promising(self) -> Plan:
        """The plan that gives the shared ledger its subject and each client's cap: that of a phase with a budget, else
        of one with a guarantee, else of this one.
        """
        plans = [phase.plan for phase in (self.whole.phases[-1], *self.preparation)]
        spends = next((plan for plan in plans if plan.budget is not None), None)
        return spends or next((plan for plan in plans if plan.offer is not None), self.plan)

    def accounts(
        self,
        made: Callable[..., A],
        dataset: str,
        ledger: Path | str,
        run: str,
        only: Members = None,
        reading: bool = False,
    ) -> A:
        """Privacy accounts of this phase on its ledger, of all clients or of a site's (`only`). `made`: the class,
        `Accounts` or a subclass; `dataset`: the digest that identifies the data; `reading`: open the ledger for reading
        only.
        """
        plan, people, delta = self.promising, len(self.public.sizes), self.experiment.privacy.delta
        scope = LedgerScope(dataset, plan.offer and plan.offer.subject, delta, plan.currency, self.public.clients)
        cap, together = plan.cap, plan.one_price
        own = plan.budget is not None and plan.budget.personal is not None and not together
        each = EqualCaps(people, cap) if cap is not None and not together and not own else None
        caps = {str(k): limit for k in range(people) if (limit := plan.cap_of(k)) is not None} if own else None
        return made(
            algorithm=self.algorithm,
            called=self.public.called,
            cohort=self.cohort,
            stragglers=self.stragglers,
            plan=self.plan,
            ledger=Ledger.open(ledger, scope, caps, cap if together else None, each, reading),
            sizes=self.public.sizes,
            key=self.phase_key,
            policy=self.policy,
            run=self.run_of(run),
            config=self.experiment.digest(),
            coordinates=self.coordinates,
            void=self.public.void,
            own_code=shown_rows(self.experiment),
            conditions=self.whole.conditions,
            before=tuple(phase.run_of(run) for phase in self.preparation[: self.stage]),
            only=only,
        )


def shown_rows(made: Experiment) -> tuple[str, ...]:
    """Names of user code that can see rows of data: sources, networks, losses, parts of a method, readers and uplinks.
    Only names are read, so a process that imports none of it gets the same result."""
    shown = made.data.source, made.algorithm, made.model, made.loss, made.read, made.uplink
    return tuple(name for name in dict.fromkeys(user_code.named(shown)) if name != user_code.ROWS)
