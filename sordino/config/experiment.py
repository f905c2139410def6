"""One experiment, one TOML file. Command line over file over default; an unknown key is an error with the nearest name.

Tables that choose something (`[algorithm] name = "fedprox"`) take exactly the parameters of what they choose: the
callable's signature is the schema, so an algorithm file is all there is to write.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import inspect
import json
import operator
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar, get_type_hints

import tomli_w
from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError, create_model

from sordino import user_code
from sordino.accounting.claims import check_neighbours
from sordino.accounting.policy import is_real
from sordino.config import data_sources
from sordino.config.data_section import Data
from sordino.config.engine_section import OF_A_PROCESS, Engine, Network
from sordino.config.reading import parsed, read
from sordino.config.section import Section
from sordino.config.wording import check_keys, nearest, unknown, wrong
from sordino.errors import COUNT, ConfigError, Range, check_range

T = TypeVar("T")
Table = dict[str, Any]


class Privacy(Section):
    # a number for all clients, or a rule for personal budgets; none: no budget, private algorithms need a multiplier
    epsilon: float | Table | None = None
    delta: float = 1e-5  # the chance that the promise fails: below 1 / number of protected units
    schedule: Table = {"name": "uniform"}  # how a budget is spread over the rounds in which a client takes part
    noise: Literal["counter", "system"] = "counter"  # counter: a seeded simulation; system: real noise, for real people
    ledger: str | None = None  # the path of a ledger that several runs share; none: one in the run folder
    public_sizes: bool = True  # whether the number of examples of each client may be known to everybody

    @property
    def real(self) -> bool:
        """Noise that protects people, not one that a seed can repeat."""
        return is_real(self.noise)


class Slow(Section):
    share: float = 0.0  # the share of the clients of a round that are slow
    policy: Literal["drop", "keep", "late"] = "drop"  # drop: no answer; keep: less work; late: too late


class Chaos(Section):
    """Rehearsed faults: after its budget was reserved, a client of the round may never answer, or answer too late."""

    drop: float = 0.0  # the probability that it never answers
    slow: float = 0.0  # the probability that it answers too late


class EvaluationSettings(Section):
    every: int = 1  # evaluate after every so many rounds
    # names of server models to evaluate; the first gives the headline accuracy. Empty: the model that clients get
    models: list[str] = []
    # ways to personalise: own, plain, finetune, proto; the first gives the headline. Empty: as the algorithm does
    personal: list[str] = []
    # of the server's model, beside accuracy, on all test examples together; none: accuracy and loss alone
    scores: list[Literal["auroc", "f1", "calibration_error", "confusion", "rmse", "r2"]] = []
    # functions of your own, module:function, of all logits and labels; each gives one number
    metrics: list[str] = []
    final: int = 10  # this many last rounds are always evaluated: their mean is a headline number


class Experiment(Section):
    """The whole of a run. The digest leaves out `[engine]`, which is how, and where anybody's files lie."""

    name: str = "digits"  # what the run is called in folders and tables; without it, the name of the file
    seed: int = 0  # of everything that is random in a simulation
    rounds: int = 40  # how often the server asks clients and changes the model
    data: Data = Data()  # which examples there are
    # which client holds which examples
    partition: Table = {"scheme": "dirichlet", "clients": 20, "alpha": 0.5}
    # what is predicted: classes, and what each of them weighs
    task: Table = {"name": "classification"}
    model: Table = {"name": "logistic"}  # the network that is trained; `module:Class` names one of your own
    # in place of cross-entropy: module:function, or the class of a loss, of your own
    loss: Table | None = None
    cohort: Table = {"name": "everyone"}  # which clients take part in a round
    # the training method; `module:Class` names one of your own
    algorithm: Table = {"name": "gaussian_gdp", "clip": 1.0, "lr": 2.0}
    read: Table | None = None  # gate 1, how client code may look at examples; none: the one of the algorithm
    uplink: Table | list[Any] | None = None  # gate 2, what the server sees of uploads; none: that of the algorithm
    candidates: Table | None = None  # images that the server draws from a public source
    privacy: Privacy = Privacy(epsilon=8.0)  # how much may be lost, and which noise protects
    stragglers: Slow = Slow()  # clients that are slow, and what becomes of their work
    chaos: Chaos = Chaos()  # faults that are rehearsed
    evaluation: EvaluationSettings = EvaluationSettings()  # what is measured, and when
    # what is told of each round, and of the end: module:Class of your own, or tables with a name and its arguments
    callbacks: list[str | Table] = []
    engine: Engine = Engine()  # how a run is computed, which changes no promise
    _start: Path | None = PrivateAttr(default=None)  # of a run: where relative paths lead from (see `paths`)

    def digest(self) -> str:
        """The name of what is played, wherever files lie, however they are written and whoever computes or watches."""
        what = self.model_dump(mode="json", exclude={"engine", "callbacks"})
        del what["privacy"]["ledger"]
        for place in ("path", "separator", "decimal", "encoding"):
            del what["data"][place]
        if what["data"]["schema"] not in (None, "learned"):
            what["data"]["schema"] = "declared"
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()

    def toml(self) -> str:
        return tomli_w.dumps(_without_none(self.model_dump(mode="json")))


RANGES = {  # of numbers that anybody may set; of those that follow from data and method, whoever knows these says more
    "rounds": Range(least=1, most=10**5, whole=True),
    "seed": Range(least=0, below=2**63, whole=True),
    "data.clients": Range(least=1, most=10**6, whole=True),
    "data.side": Range(least=1, most=4096, whole=True),
    "data.dim": Range(least=1, most=10**6, whole=True),
    "evaluation.every": COUNT,
    "evaluation.final": Range(least=0, whole=True),
    "engine.workers": Range(least=1, most=1024, whole=True),
    "engine.threads": Range(least=1, most=256, whole=True),
    "engine.checkpoint_every": COUNT,
}
CHOOSERS = {
    "partition": "scheme",
    "model": "name",
    "cohort": "name",
    "algorithm": "name",
    "data": "source",
    "candidates": "source",
    "loss": "name",
    "task": "name",
}


def load(
    source: Path | Mapping[str, object] | None,
    overrides: Iterable[str] = (),
    settings: Mapping[str, object] | None = None,
) -> Experiment:
    """The experiment of a TOML file, of a table like one, or the default one; with `key=value` overrides and `{key:
    value}` settings.
    """
    table: Table = {}
    if source is not None:
        table = read(source, Experiment.model_fields) if isinstance(source, Path) else copy.deepcopy(dict(source))
        table.setdefault("name", source.stem if isinstance(source, Path) else "experiment")
        table.setdefault("privacy", {})  # a file says itself whether it has a budget; it does not get the default's
        if isinstance(table["privacy"], dict):  # else `validate` says what is wrong with it
            table["privacy"].setdefault("epsilon", None)
    # what chooses comes first, so that no parameter is lost because of its place on the command line
    changes = [*map(parsed, overrides), *(settings or {}).items()]
    for path, value in sorted(changes, key=lambda change: change[0].strip() not in CHOOSERS):
        _set(table, path, value)
    return validate(table)


def validate(table: Table) -> Experiment:
    for key in table.keys() - Experiment.model_fields.keys():
        raise unknown(key, Experiment.model_fields, "the experiment", places(key))
    if "partition" not in table and data_sources.has_natural_clients(table.get("data")):
        table = {**table, "partition": {"scheme": "natural"}}
    try:
        experiment = Experiment.model_validate(table)
    except ValidationError as error:
        raise wrong(error, "the experiment", {place: _fields(place) for place in Experiment.model_fields}) from None
    for place, allowed in RANGES.items():
        value: Any = operator.attrgetter(place)(experiment)
        if value is not None and value != "auto":
            check_range(place, value, allowed, "out-of-range")
    data_sources.check(experiment.data.model_dump(exclude_defaults=True))
    _check_network(experiment.engine.network)
    _check_device(experiment.engine)
    if experiment.engine.deadline_s is not None and not experiment.engine.client_processes:
        raise ConfigError(
            f"engine.deadline_s with engine.executor = {experiment.engine.executor!r}",
            why="only a client process can be stopped when it takes too long",
            fix='set engine.executor = "processes", or leave the deadline out',
            code="deadline-needs-processes",
        )
    return experiment


def _check_network(network: Network) -> None:
    for name, allowed in OF_A_PROCESS.items():
        told = getattr(network, name)
        if told == []:
            raise ConfigError(
                f"engine.network.{name} is an empty list",
                why="a list has a number for each client process, in turn",
                fix="write numbers into it, or leave the setting out",
                code="network-out-of-range",
            )
        for value in told if isinstance(told, list) else [told] * (told is not None):
            check_range(f"engine.network.{name}", value, allowed, "network-out-of-range")


def _check_device(engine: Engine) -> None:
    """Refuses several threads on one accelerator, and several processes on one that was named."""
    if engine.device == "cpu":
        return
    if not engine.one_process:
        if ":" in engine.device:
            raise ConfigError(
                f"engine.device = {engine.device!r} with engine.executor = {engine.executor!r}",
                why="each of several processes takes the accelerator of its own number: the first of a machine takes "
                "cuda:0, the second one cuda:1",
                fix='set engine.device = "cuda"; which ones it may take, the variable CUDA_VISIBLE_DEVICES says',
                code="device-of-many",
            )
        return
    if engine.workers not in ("auto", 1):
        raise ConfigError(
            f"engine.workers = {engine.workers} with engine.device = {engine.device!r}",
            why="one process of one thread computes on an accelerator, which is busy with it",
            fix='leave engine.workers out, or set engine.executor = "processes"',
            code="device-of-one-process",
        )


def build(
    table: Mapping[str, object],
    choices: Mapping[str, Callable[..., T]],
    where: str,
    key: str = "name",
    own: type[T] | None = None,
) -> T:
    """What a choosing table chooses, made with the rest of the table as arguments. `own`: what somebody's own class
    must be a subclass of.
    """
    rest = {field: tuple(value) if isinstance(value, list) else value for field, value in table.items()}
    name = rest.pop(key, None)
    if own is not None and isinstance(name, str) and user_code.is_own(name):
        return filled(user_code.of_kind(name, where, own), rest, f"[{where}] {name}")
    if not isinstance(name, str) or name not in choices:
        raise ConfigError(
            f"[{where}] {key} = {name!r} is not known", fix=nearest(str(name), choices), code="unknown-choice"
        )
    if rest and not parameters(choices[name]):
        takers = [other for other in choices if rest.keys() <= parameters(choices[other]).keys()]
        raise ConfigError(
            f"[{where}] {name} has no key {next(iter(rest))!r}",
            why=f"{name} takes no settings",
            fix=(f"choose it without: {where}={name}" if where in CHOOSERS else "leave it out")
            + (f"; or one that takes it: {where}.{key}={' or '.join(takers)}" if takers else ""),
            code="unknown-key",
        )
    return filled(choices[name], rest, f"[{where}] {name}")


def filled(made: Callable[..., T], table: Mapping[str, object], where: str) -> T:
    """The value that a class or function makes with a table as its arguments."""
    fields = parameters(made)
    if table.keys() - fields.keys():
        from sordino.algorithms.preset import Preset

        if isinstance(made, Preset):
            made.refuse_fixed(table)
    check_keys(table, fields, where)
    if table.get("neighbours") is not None:
        check_neighbours(table["neighbours"])
    try:
        values = _model(made).model_validate(table)
    except ValidationError as error:
        raise wrong(error, where, {}) from None
    return made(**{field: getattr(values, field) for field in fields if field in table})


@lru_cache(maxsize=256)
def _model(made: Callable[..., object]) -> type[BaseModel]:
    strict = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())
    model: type[BaseModel] = create_model("Table", __config__=strict, **parameters(made))  # type: ignore[call-overload]
    return model


def parameters(made: Callable[..., object]) -> dict[str, tuple[Any, Any]]:
    """The parameters that a table may set: name -> (type, default). Gates have tables of their own; what begins with
    `_` is the engine's to set.
    """
    # a class without fields says them in its constructor
    written = inspect.isclass(made) and inspect.isfunction(made.__init__) and not dataclasses.is_dataclass(made)
    hints = get_type_hints(made) | (get_type_hints(made.__init__) if written else {})
    found = {}
    for name, parameter in inspect.signature(made).parameters.items():
        if name not in ("read", "uplink") and not name.startswith("_"):
            default = ... if parameter.default is inspect.Parameter.empty else parameter.default
            found[name] = (hints.get(name, Any), default)
    return found


def _set(table: Table, path: str, value: object) -> None:
    *parents, last = path.strip().split(".")
    if not parents and last in CHOOSERS and isinstance(value, str):
        table[last] = {CHOOSERS[last]: value}  # algorithm=fedprox chooses afresh, with its own defaults
        return
    if not parents and last not in Experiment.model_fields:
        parents = _owner(table, last)
    for parent in parents:
        if parent not in table and parent in Experiment.model_fields:
            default = Experiment.model_fields[parent].get_default()
            table[parent] = dict(default) if isinstance(default, dict) else {}
            if parent == "privacy":
                table[parent] = {"epsilon": default.epsilon}
        step = table.setdefault(parent, {})
        if not isinstance(step, dict):
            raise ConfigError(
                f"{path} = {value!r}: {parent} is not a table", fix=f"leave {path} out", code="bad-override"
            )
        table = step
    table[last] = copy.deepcopy(value)  # what is set in it later is not set in somebody's own table


def _owner(table: Table, key: str) -> list[str]:
    """A bare key that only the chosen algorithm knows belongs to it: lr=0.1 is algorithm.lr=0.1."""
    from sordino.algorithms import algorithm_named

    chosen = table.get("algorithm", Experiment.model_fields["algorithm"].default)
    name = chosen.get("name") if isinstance(chosen, dict) else None
    made = user_code.load(name, "algorithm") if isinstance(name, str) and ":" in name else algorithm_named(str(name))
    if made is None or key not in parameters(made):
        return []
    others = [place for place in Experiment.model_fields if place != "algorithm" and key in _section(table, place)]
    if others:
        raise ConfigError(
            f"{key} could be {' or '.join(f'{place}.{key}' for place in ['algorithm', *others])}",
            fix=f"write algorithm.{key}=...",
            code="ambiguous-key",
        )
    return ["algorithm"]


def _section(table: Table, place: str) -> Iterable[str]:
    """The keys that a section has, or was given."""
    given = table.get(place)
    if place == "data":  # of other sources nobody speaks
        return data_sources.keys(given.get("source", "digits") if isinstance(given, dict) else "digits")
    return [*_fields(place), *(given if isinstance(given, dict) else ())]


def places(key: str) -> list[str]:
    """Where a bare key may belong: epsilon is privacy.epsilon."""
    return [f"{place}.{key}" for place in Experiment.model_fields if key in _fields(place)]


def _fields(place: str) -> Iterable[str]:
    return list(getattr(Experiment.model_fields[place].annotation, "model_fields", {}))


def _without_none(value: object) -> Any:
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return [_without_none(v) for v in value] if isinstance(value, list) else value
