"""[task] of an experiment: what is predicted, and whether the rest of the experiment can work with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

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
    model, texts = experiment.model, {name: one for name, one in columns.items() if isinstance(one, TextColumn)}
    name = str(model.get("name"))
    if not columns or user_code.is_own(name) or (not texts and name != "text"):
        return
    if not texts:
        raise ConfigError(
            "model = 'text' for a table without a text",
            why="it reads words, as the schema declares them",
            fix="choose logistic or mlp, or declare a column of text",
            code="words-are-no-quantities",
        )
    tokens, starts = max(one.tokens for one in texts.values()), _starts(columns)
    places = None if len(texts) == len(columns) else [[starts[one], texts[one].length] for one in texts]
    wanted = f'model = {{name = "text", tokens = {tokens}{"" if places is None else f", texts = {places}"}}}'
    if name != "text":
        raise ConfigError(
            f"model = {name!r} for a column of text",
            why="the words of a text are numbers of words, which no other built-in model can read",
            fix=f"set {wanted}; or write a model of your own that takes them apart",
            code="words-are-no-quantities",
        )
    if (told := model.get("texts")) != places:
        raise ConfigError(
            f"model.texts = {told!r}",
            why="it says where the words of a text are among the inputs ([first, length] of each), and the schema "
            "declares them at other places",
            fix=f"set {wanted}",
            code="texts-do-not-fit",
        )
    if model.get("tokens") != tokens:
        raise ConfigError(
            f"model.tokens = {model.get('tokens')!r}",
            why=f"the schema declares texts whose words are numbers below {tokens}: with buckets one more than these, "
            "with a list of words two more",
            fix=f"set {wanted}",
            code="tokens-do-not-fit",
        )


def _starts(columns: Mapping[str, Column]) -> dict[str, int]:
    """The first input of each column."""
    ends = accumulate((column.width for column in columns.values()), initial=0)
    return dict(zip(columns, ends, strict=False))


def _no(task: object, other: str, why: str, fix: str) -> ConfigError:
    return ConfigError(f"task = {task!r} with {other}", why=why, fix=fix, code="task-does-not-fit")
