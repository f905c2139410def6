"""Properties (laws) that `sordino check` tests on a user's own code other than algorithms: partitions, cohorts, sources
of data, losses, metrics, callbacks, models and training functions.

Which of these a class is follows from its base class; for a function the user says it (--kind).
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from sordino import keys, tree
from sordino.algorithms.fedavg import Server
from sordino.algorithms.trainer import Trainer
from sordino.checks import models
from sordino.checks.trial import require
from sordino.config import filled
from sordino.data.label_kinds import LabelKind, Numbers, SeveralLabels
from sordino.data.sources import RowSource, load
from sordino.metrics.scores import OwnMetric, number_of
from sordino.partition import Scheme
from sordino.partition.row_numbers import checked
from sordino.privacy.noise.sources import Counter
from sordino.privacy.readers.function_reader import FunctionReader
from sordino.runs.play import Callback
from sordino.sampling import Cohort, check_promises, each_once
from sordino.tasks.losses import Loss, not_per_example
from sordino.types import Examples, Grant, Params

ROWS, CLASSES, PEOPLE, ROUNDS = 240, 4, 12, 8
REPEATED = "draw from what it is given (rng, key or seed), and keep nothing between calls"


@dataclass(frozen=True)
class PartTrial:
    """One part of a user's own, such as a loss or a partition, under test by `sordino check`."""

    name: str  # module:Class
    made: Any  # a class or a function
    file: Path
    options: Mapping[str, object]
    inputs: tuple[int, ...] = (1, 8, 8)  # shape of an example for a model; the digits by default

    def built(self) -> Any:
        """Builds the user's class anew, each time with other states of the random generators, as in another process."""
        torch.manual_seed(random.randrange(10**6))
        np.random.seed(random.randrange(10**6))
        return self.made if inspect.isfunction(self.made) else filled(self.made, self.options, self.name)


class PartKind(NamedTuple):
    """Kind of a user's own code, such as a loss or a partition: its base class, the setting that selects it, and the
    properties (laws) that it must have.
    """

    base: type
    setting: str
    laws: Mapping[str, tuple[str, Callable[[PartTrial], None]]]
    made: Callable[[PartTrial], object] = PartTrial.built
    says: str = "it can be made with its arguments"


# partitions -----------------------------------------------------------------------------------------------------------


def _labels() -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.random.default_rng(1).integers(CLASSES, size=ROWS)


def _groups() -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.arange(ROWS) % PEOPLE


def _assigned(trial: PartTrial, labels: Any) -> Any:
    return checked(trial.built().assign(labels, _groups(), np.random.default_rng(7)), ROWS)


def covers(trial: PartTrial) -> None:
    labels, before = _labels(), _labels()
    _assigned(trial, labels)
    require(np.array_equal(labels, before), "it changes the labels that it is shown", "work on a copy")


def partition_repeats(trial: PartTrial) -> None:
    one, other = (_assigned(trial, _labels()) for _ in range(2))
    same = np.array_equal(one.numbers, other.numbers) and np.array_equal(one.starts, other.starts)
    require(same, "the same seed gives another partition", REPEATED)


def partition_blind(trial: PartTrial) -> None:
    if trial.built().reads_labels:
        return
    one, other = _assigned(trial, _labels()), _assigned(trial, np.zeros(ROWS, np.int64))
    require(
        np.array_equal(one.numbers, other.numbers) and np.array_equal(one.starts, other.starts),
        "it says reads_labels = False, and other labels give another partition",
        "do not use the labels, or leave reads_labels = False out",
    )


# cohorts --------------------------------------------------------------------------------------------------------------


def promises(trial: PartTrial) -> None:
    check_promises(trial.built())


def draws(trial: PartTrial) -> None:
    cohort, key = trial.built(), keys.root(3)
    for t in range(ROUNDS):
        each_once(cohort.draw(t, PEOPLE, key), PEOPLE)


def cohort_repeats(trial: PartTrial) -> None:
    key = keys.root(3)
    one, other = trial.built(), trial.built()
    forth = [list(one.draw(t, PEOPLE, key)) for t in range(ROUNDS)]
    back = [list(other.draw(t, PEOPLE, key)) for t in reversed(range(ROUNDS))]
    require(forth == back[::-1], "the same round and key draw other clients the second time", REPEATED)


def planned(trial: PartTrial) -> None:
    cohort, key = trial.built(), keys.root(3)
    turns = list(cohort.participations(ROUNDS, PEOPLE))
    require(
        len(turns) == PEOPLE, f"participations has {len(turns)} entries for {PEOPLE} clients", "one for each client"
    )
    whole = all(isinstance(n, int | np.integer) and 0 <= n <= ROUNDS for n in turns)
    require(
        whole, "a client is planned for a part of a round, or for more than there are", "whole numbers, 0 to rounds"
    )
    size = cohort.expected(PEOPLE)
    require(0 < size <= PEOPLE, f"the expected size is {size} of {PEOPLE}", "give the size that is planned")
    taken = [k for t in range(ROUNDS) for k in cohort.draw(t, PEOPLE, key)]
    never = next((k for k in set(taken) if turns[k] == 0), None)
    require(never is None, f"client {never} is drawn and planned for no round", "plan every round that it may be in")


# sources of data ------------------------------------------------------------------------------------------------------


def _loaded(trial: PartTrial) -> Any:
    """Rows of a user's data source. The kind of label is guessed from the labels, since no experiment declares
    it here.
    """
    source = trial.built()
    y = np.asarray(source.rows(5).y)
    outcome: LabelKind | None = None
    if y.ndim == 2:
        outcome = SeveralLabels(y.shape[1])
    elif y.dtype.kind == "f" and len(y):
        outcome = Numbers(float(y.min()), float(y.max()))
    return load(source, trial.name, "none", 0.3, 5, outcome=outcome)


def gives_rows(trial: PartTrial) -> None:
    _loaded(trial)


def source_repeats(trial: PartTrial) -> None:
    require(_loaded(trial).fingerprint() == _loaded(trial).fingerprint(), "the same seed gives other rows", REPEATED)


def within_reach(trial: PartTrial) -> None:
    source = trial.built()
    if source.reach is None:
        return
    (low, high), x = source.reach, np.asarray(source.rows(5).x)
    require(low < high, f"reach = {source.reach} is not a range", "give (lowest, highest)")
    beyond = float(((x < low) | (x > high)).mean())
    require(beyond < 0.01, f"{beyond:.0%} of the values lie beyond reach = {source.reach}", "declare a wider range")


# losses and metrics ---------------------------------------------------------------------------------------------------


def _outputs() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(2)
    return torch.randn(6, CLASSES, generator=draw), torch.arange(6) % CLASSES


def per_example(trial: PartTrial) -> None:
    loss, (output, label) = trial.built(), _outputs()
    found = loss(output, label)
    if not isinstance(found, torch.Tensor) or tuple(found.shape) != (6,):
        raise not_per_example(trial.name, found)
    each = torch.cat([loss(output[i : i + 1], label[i : i + 1]) for i in range(6)])
    require(
        torch.allclose(found, each, rtol=1e-4, atol=1e-6),
        "the loss of an example is another one beside other examples",
        "compute each loss from its own output and label alone",
    )


def has_gradient(trial: PartTrial) -> None:
    output, label = _outputs()
    output.requires_grad_()
    (found,) = torch.autograd.grad(trial.built()(output, label).sum(), output)
    require(bool(found.isfinite().all()), "its gradient is not finite", "avoid divisions by 0 and logarithms of 0")
    require(bool(found.any()), "its gradient is 0 everywhere", "return something that follows from the output")


def is_number(trial: PartTrial) -> None:
    number_of(trial.name, trial.built()(*_outputs()))


def whatever_order(trial: PartTrial) -> None:
    (logits, labels), metric = _outputs(), trial.built()
    one, other = (number_of(trial.name, metric(logits[o], labels[o])) for o in (slice(None), torch.randperm(6)))
    require(abs(one - other) < 1e-4, "another order of the rows gives another number", "let no row's place matter")


# callbacks ------------------------------------------------------------------------------------------------------------


def listens(trial: PartTrial) -> None:
    callback = trial.built()
    for t in range(2):
        callback.on_round({"round": t + 1, "model_norm": 1.0})  # all that a hidden cohort with real noise shows
    callback.on_end({"rounds": 2, "guarantees": []})


TRAINED_ROWS = 40
NETWORK = "model.name"  # the setting that names its network


def _changes(trial: PartTrial, *clients: int, process: Literal["fresh", "shared"] = "fresh") -> Iterator[Params]:
    """The change of the network that each of these clients uploads, one after another."""
    task = models.task_of(replace(trial, name=str(trial.options.get(NETWORK, "logistic")), options={}))
    method, down = Trainer(trial.name, FunctionReader(process)), Server(task.init(0), torch.tensor(1))
    for k in clients:
        labels = torch.arange(TRAINED_ROWS) % max(2, task.classes)
        rows = Examples(models.rows_of(trial.inputs, k, TRAINED_ROWS), labels)
        shard = method.read.open(rows, Grant(k, TRAINED_ROWS, TRAINED_ROWS, Counter(0)), task)
        yield method.local(task, down, (), shard, keys.fold(keys.root(1), k))[0].delta


def trains(trial: PartTrial) -> None:
    for change in _changes(trial, 0):
        require(tree.finite(change), "it returns numbers that are not finite", "lower the step size")
        fix = "train in place, or return the values that were trained; look for parameters that are frozen or detached"
        require(any(bool(part.any()) for part in change.values()), "the network that it returns has not changed", fix)


def repeats(trial: PartTrial) -> None:
    (one,), (other,) = (list(_changes(trial, 0)) for _ in range(2))
    fix = "draw from Python's, NumPy's or torch's global generator, which are seeded; not from the clock or the system"
    require(not tree.norm(tree.sub(one, other)), "the same rows and seeds give another network", fix)


def forgets(trial: PartTrial) -> None:
    (alone,) = _changes(trial, 1)  # first: what this process remembers, its forks remember, too
    _, behind = _changes(trial, 0, 1, process="shared")
    fix = "keep nothing between calls; where that cannot be helped, leave read.process at fresh"
    require(not tree.norm(tree.sub(alone, behind)), "a client gets another network behind another client", fix)


MODEL = PartKind(
    torch.nn.Module,
    "model.name",
    models.LAWS,
    models.takes_rows,
    "it can be made with its arguments, and takes examples of its shape",
)
KINDS = (
    PartKind(
        Scheme,
        "partition.scheme",
        {
            "covers": ("every row is at most one client's", covers),
            "repeats": ("the same seed gives the same partition", partition_repeats),
            "blind": ("what it says it does not read decides nothing", partition_blind),
        },
    ),
    PartKind(
        Cohort,
        "cohort",
        {
            "promises": ("it claims no amplification that is not known to hold", promises),
            "draws": ("a round draws clients that exist, each once", draws),
            "repeats": ("the same round and key draw the same clients", cohort_repeats),
            "planned": ("who may be drawn is planned for", planned),
        },
    ),
    PartKind(
        RowSource,
        "data.source",
        {
            "rows": ("its arrays fit each other", gives_rows),
            "repeats": ("the same seed gives the same rows", source_repeats),
            "reach": ("values lie in the declared range", within_reach),
        },
    ),
    PartKind(
        Loss,
        "loss",
        {
            "per example": ("one number for each example, from that example alone", per_example),
            "gradient": ("its gradient is finite and not 0", has_gradient),
        },
    ),
    PartKind(
        OwnMetric,
        "evaluation.metrics",
        {
            "number": ("one finite number", is_number),
            "order": ("the order of the rows changes nothing", whatever_order),
        },
    ),
    PartKind(
        FunctionType,
        "algorithm.of",
        {
            "trains": ("it returns the network, changed and finite", trains),
            "repeats": ("the same rows and seeds give the same network", repeats),
            "forgets": ("nothing of one client reaches the next", forgets),
        },
        lambda trial: trial.made,
        "it is a function",
    ),
    PartKind(Callback, "callbacks", {"listens": ("it takes the barest row and receipt", listens)}),
    MODEL,
)
# what a function may be
FUNCTIONS = {"loss": Loss, "metric": OwnMetric, "model": torch.nn.Module, "trainer": FunctionType}


def kind_of(made: Any, chosen: str | None) -> PartKind | None:
    """The kind of a user's own code, such as loss, metric or partition: a class has that of its base class, a function
    the one that the user `chosen` (--kind). None for an algorithm.
    """
    base = FUNCTIONS.get(str(chosen))
    if inspect.isfunction(made):
        return next((kind for kind in KINDS if kind.base is base), None)
    return next((kind for kind in KINDS if isinstance(made, type) and issubclass(made, kind.base)), None)
