"""Methods of a run, one for each phase, as its experiment chooses them before anything is known of the data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from sordino import user_code
from sordino.algorithms import algorithm_named, all_algorithms
from sordino.algorithms.algorithm import AnyAlgorithm, own_algorithm
from sordino.algorithms.optional import OwnLoss
from sordino.algorithms.phases import Phased
from sordino.branches import when_used
from sordino.config import Experiment, build
from sordino.errors import ConfigError
from sordino.privacy.readers.open import Open
from sordino.sampling import Cohort, check_promises
from sordino.sampling.by_budget import COHORTS
from sordino.tasks import PROBLEMS, Problem


@dataclass(frozen=True)
class Methods:
    """The algorithm of every phase of an experiment; the last one is the training."""

    experiment: Experiment

    @cached_property
    def problem(self) -> Problem:
        """The learning problem of the experiment; refused where the methods cannot learn it."""
        found = problem_of(self.experiment)
        if (needed := found.needs_task_loss) and any(isinstance(phase, OwnLoss) for phase in self.phases):
            raise ConfigError(
                f"{needed} with algorithm = {self.experiment.algorithm.get('name')!r}",
                why="this algorithm computes plain cross-entropy from labels by itself, so the task would change "
                "nothing, or only a part of it",
                fix="choose an algorithm that trains with the loss of the task, such as fedavg, scaffold or "
                "gaussian_gdp",
                code="task-needs-task-loss",
            )
        return found

    @cached_property
    def _made(self) -> AnyAlgorithm | Phased:
        """Algorithm of the experiment, or for a method with a preparation its sequence of phases."""
        table, name = self.experiment.algorithm, str(self.experiment.algorithm.get("name"))
        found = own_algorithm(name) if ":" in name else algorithm_named(name)
        choices = all_algorithms() if found is None else {name: found}  # for look-up and suggestions in errors
        return build(table, choices, "algorithm")

    @cached_property
    def phases(self) -> tuple[AnyAlgorithm, ...]:
        """The algorithms of all phases, each with its clip and noise for gradients (reader) and for uploads
        (uplink)."""
        made = self._made
        before, algorithm = (made.preparation, made.training) if isinstance(made, Phased) else ((), made)
        if self.experiment.read is not None or self.experiment.uplink is not None:
            with when_used("torch"):  # a plan from public numbers computes nothing with it
                from sordino.config import gates  # imported late: most methods have their own
        if self.experiment.read is not None:
            algorithm = algorithm.behind(read=gates.reader(self.experiment.read))
        if self.experiment.uplink is not None:
            algorithm = algorithm.behind(uplink=gates.uplink(self.experiment.uplink))
        algorithm.uplink.offer(1.0, self.cohort.hidden)  # refuses what cannot be guaranteed, before data are read
        return (*before, algorithm)

    @cached_property
    def cohort(self) -> Cohort:
        """Sampler of the clients that take part in the training."""
        found = build(self.experiment.cohort, COHORTS, "cohort", own=Cohort)
        if type(found) not in COHORTS.values():
            check_promises(found)
        return found

    @property
    def training(self) -> AnyAlgorithm:
        return self.phases[-1]

    def needs(self) -> None:
        """Refuses a run if a package that its secure sums use is missing."""
        for algorithm in self.phases:
            if algorithm.uplink.secure is not None:
                algorithm.uplink.secure.needs()

    @property
    def portions(self) -> tuple[float, ...]:
        """The part of the budget that each phase asks for."""
        if not isinstance(self._made, Phased):
            return (1.0,)
        first = self._made.shares or (0.0,) * len(self._made.preparation)
        return (*first, 1 - sum(first))


def reads_plainly(algorithm: AnyAlgorithm) -> bool:
    """True if the algorithm gets examples unchanged, without clip and noise, so that reading is the same for all
    clients."""
    return type(algorithm.read).open is Open.open


def problem_of(experiment: Experiment) -> Problem:
    """The learning problem of an experiment; refused where the data do not have its labels."""
    found = build(experiment.task, dict(PROBLEMS), "task")
    name, data = experiment.task["name"], experiment.data
    if found.needs_task_loss and data.source == "quadratic":
        raise unfit(name, 'data.source = "quadratic"', "quadratics are a task of their own, without labels", OTHER_DATA)
    if found.needs_task_loss and experiment.partition.get("anonymous", False):
        raise unfit(
            name,
            "partition.anonymous = true",
            "every client then numbers its classes by itself, so that what is said of a class means nothing",
            "leave one of both out",
        )
    if found.outcome is None:
        return found
    if data.source != "tabular" and not user_code.is_own(data.source):
        raise unfit(name, f"data.source = {data.source!r}", "its labels are classes", OTHER_DATA)
    if found.columns is not None and data.label is not None:
        why = "task.labels names the columns" if found.columns else "what is predicted stands in the text itself"
        raise unfit(name, f"data.label = {data.label!r}", why, "leave data.label out")
    for key in ("probe", "train", "test"):
        if getattr(data, key) is not None:
            raise unfit(
                name, f"data.{key}", "examples are set aside class by class, and there are none", "leave it out"
            )
    if experiment.candidates is not None:
        raise unfit(name, "[candidates]", "candidates are images of a class", "leave them out")
    if "proto" in experiment.evaluation.personal:
        raise unfit(name, 'evaluation.personal = ["proto"]', "a prototype is the mean of a class", "choose another way")
    return found


OTHER_DATA = 'choose a table (data.source = "tabular") or data of your own, or leave [task] out'


def unfit(task: object, other: str, why: str, fix: str) -> ConfigError:
    return ConfigError(f"task = {task!r} with {other}", why=why, fix=fix, code="task-does-not-fit")
