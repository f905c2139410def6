"""The methods of a run, one after another: what its file chooses, before anything is known of the data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from sordino.algorithms import algorithm_named, all_algorithms
from sordino.algorithms.algorithm import AnyAlgorithm, own_algorithm
from sordino.algorithms.phases import Phased
from sordino.config import Engine, Experiment, build, gates
from sordino.device import CPU
from sordino.engine.choose_executor import cores, decide, device_of, processes_of
from sordino.privacy.readers.open import Open
from sordino.runs.learning_task import check_learns, problem_of
from sordino.sampling.by_budget import COHORTS
from sordino.sampling.kinds import Cohort, check_promises
from sordino.tasks.problems import Problem


@dataclass(frozen=True)
class Methods:
    """The algorithm of every phase of an experiment; the last one is the training."""

    experiment: Experiment

    @cached_property
    def problem(self) -> Problem:
        """What is predicted."""
        found = problem_of(self.experiment)
        check_learns(found, self.experiment, self.phases)
        return found

    @cached_property
    def _made(self) -> AnyAlgorithm | Phased:
        """As its file makes it: an algorithm, or a sequence of them."""
        table, name = self.experiment.algorithm, str(self.experiment.algorithm.get("name"))
        found = own_algorithm(name) if ":" in name else algorithm_named(name)
        choices = all_algorithms() if found is None else {name: found}  # what could have been meant
        made: AnyAlgorithm | Phased = build(table, choices, "algorithm")
        return made

    @cached_property
    def phases(self) -> tuple[AnyAlgorithm, ...]:
        """Each behind its gates."""
        made = self._made
        before, algorithm = (made.preparation, made.training) if isinstance(made, Phased) else ((), made)
        if self.experiment.read is not None:
            algorithm = algorithm.behind(read=gates.reader(self.experiment.read))
        if self.experiment.uplink is not None:
            algorithm = algorithm.behind(uplink=gates.uplink(self.experiment.uplink))
        algorithm.uplink.offer(1.0, self.cohort.hidden)  # what it cannot promise is refused before data are read
        return (*before, algorithm)

    @cached_property
    def cohort(self) -> Cohort:
        """Who takes part in the training."""
        found = build(self.experiment.cohort, COHORTS, "cohort", own=Cohort)
        if type(found) not in COHORTS.values():
            check_promises(found)
        return found

    @property
    def training(self) -> AnyAlgorithm:
        return self.phases[-1]

    @property
    def portions(self) -> tuple[float, ...]:
        """The part of the budget that each phase asks for."""
        if not isinstance(self._made, Phased):
            return (1.0,)
        first = self._made.shares or (0.0,) * len(self._made.preparation)
        return (*first, 1 - sum(first))


def decided(given: Engine, algorithm: AnyAlgorithm) -> Engine:
    """[engine] with every `auto` decided."""
    device = device_of("auto") if given.device == "auto" else given.device
    executor, precision = decide(given.executor, given.precision, not reads_plainly(algorithm), device)
    several = cores() if device == CPU else 1
    if executor == "processes":
        several = processes_of(device)
    workers = given.workers if given.workers != "auto" else several
    found = {"device": device, "executor": executor, "precision": precision, "workers": workers}
    return given.model_copy(update=found)


def reads_plainly(algorithm: AnyAlgorithm) -> bool:
    """Does its reader open examples as they are? One that opens them otherwise may tell clients apart."""
    return type(algorithm.read).open is Open.open
