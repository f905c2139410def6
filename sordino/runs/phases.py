"""The methods of a run, one after another: what its file chooses, before anything is known of the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from sordino.algorithms import ALGORITHMS
from sordino.algorithms.algorithm import AnyAlgorithm, own_algorithm
from sordino.algorithms.phases import Phased
from sordino.config import Engine, Experiment, build, gates
from sordino.engine.choose_executor import decide
from sordino.errors import ConfigError
from sordino.privacy.readers.open import Open
from sordino.tasks.problems import PROBLEMS, Problem


@dataclass(frozen=True)
class Methods:
    """The algorithm of every phase of an experiment; the last one is the training."""

    experiment: Experiment

    @cached_property
    def problem(self) -> Problem:
        """What is predicted."""
        found = build(self.experiment.task, dict(PROBLEMS), "task")
        check_learns(found, self.experiment, self.phases)
        return found

    @cached_property
    def _made(self) -> AnyAlgorithm | Phased:
        """As its file makes it: an algorithm, or a sequence of them."""
        table, choices = self.experiment.algorithm, dict(ALGORITHMS)
        if ":" in (name := str(table.get("name"))):
            choices[name] = own_algorithm(name)
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
        return (*before, algorithm)

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
    executor, precision = decide(given.executor, given.precision, not reads_plainly(algorithm))
    return given.model_copy(update={"executor": executor, "precision": precision})


def reads_plainly(algorithm: AnyAlgorithm) -> bool:
    """Does its reader open examples as they are? One that opens them otherwise may tell clients apart."""
    return type(algorithm.read).open is Open.open


def check_learns(problem: Problem, experiment: Experiment, phases: Sequence[AnyAlgorithm]) -> None:
    """Refuses what would ignore the task, or could not work with it."""
    needed, source = problem.needs_task_loss, experiment.data.source
    if needed and any(phase.sets_loss for phase in phases):
        raise ConfigError(
            f"{needed} with algorithm = {experiment.algorithm.get('name')!r}",
            why="this algorithm computes plain cross-entropy from labels by itself, so the task would change nothing, "
            "or half of it",
            fix="choose an algorithm that trains with the loss of the task, such as fedavg, scaffold or gaussian_gdp",
            code="task-needs-task-loss",
        )
    if needed and experiment.partition.get("anonymous", False):
        raise ConfigError(
            f"{needed} with partition.anonymous = true",
            why="every client then numbers its classes by itself, so that what is said of a class means nothing",
            fix="leave one of both out",
            code="task-of-anonymous-classes",
        )
    if needed and source == "quadratic":
        raise ConfigError(
            f"{needed} with data.source = {source!r}",
            why="quadratics are a task of their own, without labels",
            fix="choose other data, or leave [task] out",
            code="task-of-quadratics",
        )
