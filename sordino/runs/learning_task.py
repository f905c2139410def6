"""Columns and clients of the data: can the task and the model of the experiment work with them?"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

from sordino import user_code
from sordino.config import Experiment
from sordino.data.schema import Column, TextColumn
from sordino.errors import ConfigError
from sordino.planning.methods import unfit
from sordino.tasks.problems import Problem


def check_scheme(problem: Problem, experiment: Experiment, reads_labels: bool) -> None:
    """Refuses to deal out examples by classes that there are not."""
    if problem.outcome is not None and reads_labels:
        raise unfit(
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
