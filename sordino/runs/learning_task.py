"""[task] of an experiment: what is predicted, and whether the rest of the experiment can work with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sordino import user_code
from sordino.algorithms.algorithm import AnyAlgorithm
from sordino.config import Experiment, build
from sordino.data.schema import Column, TextColumn
from sordino.errors import ConfigError
from sordino.tasks.problems import PROBLEMS, Problem


def problem_of(experiment: Experiment) -> Problem:
    """What is predicted; it refuses data that do not hold it."""
    found = build(experiment.task, dict(PROBLEMS), "task")
    name, data = experiment.task["name"], experiment.data
    if found.needs_task_loss and data.source == "quadratic":
        raise _no(name, 'data.source = "quadratic"', "quadratics are a task of their own, without labels", OTHER_DATA)
    if found.needs_task_loss and experiment.partition.get("anonymous", False):
        raise _no(
            name,
            "partition.anonymous = true",
            "every client then numbers its classes by itself, so that what is said of a class means nothing",
            "leave one of both out",
        )
    if found.outcome is None:
        return found
    if data.source != "tabular" and not user_code.is_own(data.source):
        raise _no(name, f"data.source = {data.source!r}", "its labels are classes", OTHER_DATA)
    if found.columns and data.label is not None:
        raise _no(name, f"data.label = {data.label!r}", "task.labels names the columns", "leave data.label out")
    for key in ("probe", "train", "test"):
        if getattr(data, key) is not None:
            raise _no(name, f"data.{key}", "examples are set aside class by class, and there are none", "leave it out")
    if experiment.candidates is not None:
        raise _no(name, "[candidates]", "candidates are images of a class", "leave them out")
    if "proto" in experiment.evaluation.personal:
        raise _no(name, 'evaluation.personal = ["proto"]', "a prototype is the mean of a class", "choose another way")
    return found


OTHER_DATA = 'choose a table (data.source = "tabular") or data of your own, or leave [task] out'


def check_learns(problem: Problem, experiment: Experiment, phases: Sequence[AnyAlgorithm]) -> None:
    """Refuses methods that would ignore the task."""
    if (needed := problem.needs_task_loss) and any(phase.sets_loss for phase in phases):
        raise ConfigError(
            f"{needed} with algorithm = {experiment.algorithm.get('name')!r}",
            why="this algorithm computes plain cross-entropy from labels by itself, so the task would change nothing, "
            "or half of it",
            fix="choose an algorithm that trains with the loss of the task, such as fedavg, scaffold or gaussian_gdp",
            code="task-needs-task-loss",
        )


def check_scheme(problem: Problem, experiment: Experiment, reads_labels: bool) -> None:
    """Refuses to deal out examples by classes that there are not."""
    if problem.outcome is not None and reads_labels:
        raise _no(
            experiment.task["name"],
            f"partition.scheme = {experiment.partition.get('scheme')!r}",
            "this scheme divides classes, and there are none",
            'set partition = {scheme = "iid", clients = 8}, or name the clients\' column in data.group',
        )


def check_words(experiment: Experiment, columns: Mapping[str, Column]) -> None:
    """Refuses a model that reads words as quantities, or quantities as words."""
    name, texts = experiment.model.get("name"), [one for one in columns.values() if isinstance(one, TextColumn)]
    if not columns or user_code.is_own(str(name)) or (not texts and name != "text"):
        return
    if name != "text" or len(texts) < len(columns):
        others = [column for column, said in columns.items() if not isinstance(said, TextColumn)]
        raise ConfigError(
            f"model = {name!r} for " + (f"the column {others[0]}" if name == "text" else "a column of text"),
            why="the words of a text are numbers of words, which no other built-in model can read; and the model "
            "'text' reads nothing else",
            fix='set model = {name = "text", tokens = N} and let the schema ignore all other columns; or write a '
            "model of your own that takes both apart",
            code="words-are-no-quantities",
        )
    wanted = max(one.tokens for one in texts)
    if experiment.model.get("tokens") != wanted:
        raise ConfigError(
            f"model.tokens = {experiment.model.get('tokens')!r}",
            why=f"the schema declares texts whose words are numbers below {wanted}: with buckets one more than these, "
            "with a list of words two more",
            fix=f"set model.tokens = {wanted}",
            code="tokens-do-not-fit",
        )


def _no(task: object, other: str, why: str, fix: str) -> ConfigError:
    return ConfigError(f"task = {task!r} with {other}", why=why, fix=fix, code="task-does-not-fit")
