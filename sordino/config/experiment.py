"""One experiment, one TOML file. Command line over file over default; an unknown key is an error with the nearest name.

Tables that choose something (`[algorithm] name = "fedprox"`) take exactly the parameters of what they choose: the
callable's signature is the schema, so an algorithm file is all there is to write.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import tomllib
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar, get_type_hints

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from sordino import user_code
from sordino.config import data_sources
from sordino.config.wording import check_keys, nearest, sweep, wrong
from sordino.errors import ConfigError, Range, UnsoundGuarantee, check_range

T = TypeVar("T")
Table = dict[str, Any]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


# by public numbers; by mean and deviation of each channel (of a table: column), or of each pixel
Scale = Literal["fixed", "channel", "pixel"]

# pydantic warns that the field `schema` hides a method of its own, which is deprecated and which nothing here calls
warnings.filterwarnings("ignore", r'Field name "schema" in "Data" shadows', UserWarning)


class Data(Section):
    source: Literal["digits", "images", "folder", "tabular", "quadratic", "synthetic"] = "digits"
    path: str | None = None  # a directory or file; for images also a hub id
    label: str | None = None  # of a table: the column to predict
    group: str | None = None  # of a table: the column that names the client
    key: str | None = None  # of a table: the column that names the row, and alone decides whether it is held back
    schema: str | None = None  # type: ignore[assignment]  # of a table: the file that declares it, or "learned"
    download: bool = False  # allow the hub (needs the `hub` extra)
    # what is held back where the source has no test set of its own; 0.2, synthetic 0.1
    test_fraction: float | None = None
    # of images: training and test images together; each client holds back `test_fraction` of its own
    merge: bool = False
    standardise: Scale | None = None  # fixed, to [-1, 1]; or by mean and deviation; none: fixed, where ranges are known
    augment: Literal["none", "crop_flip"] = "none"  # of images: training batches are cut (4 pixels off) and mirrored
    side: int | None = None  # of images: every one is made so many pixels wide and high; folders have 32
    fraction: float = 1.0  # of folders: so much of every class is taken, at least `at_least` images
    at_least: int = 20
    train: int | None = None  # so many training examples, in the proportions of the classes
    test: int | None = None  # and test examples
    # labelled examples of each class that the server keeps, before clients get theirs: so many, or a share below 1
    probe: int | float | None = None
    clients: int | None = None  # of quadratics (10) and synthetic devices (30)
    dim: int = 10  # of quadratics
    heterogeneity: float = 1.0  # of quadratics
    alpha: float = 1.0  # of synthetic devices: how much their truths differ
    beta: float = 1.0  # and their inputs
    iid: bool = False  # synthetic devices that are all alike
    largest: int | None = None  # examples of a synthetic device at most


class Privacy(Section):
    # for all clients, or a rule of `budgets`; None: private algorithms then need a typed multiplier
    epsilon: float | Table | None = None
    delta: float = 1e-5
    schedule: Table = {"name": "uniform"}
    noise: Literal["counter", "system"] = "counter"  # counter: seeded simulation; system: protects real people
    ledger: str | None = None  # a ledger shared by several runs; default: one in the run folder
    public_sizes: bool = True  # the number of examples of each client is public


class Slow(Section):
    share: float = 0.0
    policy: Literal["drop", "keep", "late"] = "drop"


class Chaos(Section):
    """Rehearsed faults, after a round was reserved: how likely an active client never answers, or answers too late."""

    drop: float = 0.0
    slow: float = 0.0


class EvaluationSettings(Section):
    every: int = 1
    models: list[str] = []  # of those the server holds, the headline first; none: the one it hands out
    # how clients make it their own, the headline first: own, plain, finetune, proto; none: as the algorithm says
    personal: list[str] = []
    final: int = 10  # the last rounds are always evaluated: their mean is a headline number


class Network(Section):
    """The network between the server and its client processes. Only time is added; with a timeout, a client that is
    silent misses the round.
    """

    latency_ms: float = Field(default=0.0, ge=0)  # each way
    down_mbit: float | None = Field(default=None, gt=0)  # megabits per second, to a client process
    up_mbit: float | None = Field(default=None, gt=0)  # and from it
    compute: float = Field(default=1.0, ge=1)  # times slower than this machine
    timeout_s: float | None = Field(default=None, gt=0)  # of a round


class Engine(Section):
    executor: Literal["auto", "loop", "stack", "pooled", "processes", "ranks"] = "auto"
    # of training; sums, clipping, noise and evaluation are fp32 or wider
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    workers: int = 2
    threads: int = 1  # torch threads per process
    deadline_s: float | None = Field(default=None, gt=0)  # of `processes`: the work of one client takes no longer
    checkpoint_every: int = 1
    cache: str | None = None  # a directory for candidates that are dear to make; none: one of the user's own
    network: Network = Network()


class Experiment(Section):
    """The whole of a run. `[engine]` is how, everything else is what: the digest leaves `[engine]` out."""

    name: str = "digits"
    seed: int = 0
    rounds: int = 40
    data: Data = Data()
    partition: Table = {"scheme": "dirichlet", "clients": 20, "alpha": 0.5}
    model: Table = {"name": "logistic"}
    cohort: Table = {"name": "everyone"}
    algorithm: Table = {"name": "gaussian_gdp", "clip": 1.0, "lr": 2.0}
    read: Table | None = None
    uplink: Table | list[Any] | None = None
    candidates: Table | None = None  # images that the server draws from a public source
    privacy: Privacy = Privacy(epsilon=8.0)
    stragglers: Slow = Slow()
    chaos: Chaos = Chaos()
    evaluation: EvaluationSettings = EvaluationSettings()
    engine: Engine = Engine()

    def digest(self) -> str:
        what = self.model_dump(mode="json", exclude={"engine"})
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()

    def toml(self) -> str:
        return tomli_w.dumps(_without_none(self.model_dump(mode="json")))


LOWEST = {
    "rounds": 1,
    "seed": 0,
    "evaluation.every": 1,
    "evaluation.final": 0,
    "engine.workers": 1,
    "engine.threads": 1,
    "engine.checkpoint_every": 1,
}
CHOOSERS = {
    "partition": "scheme",
    "model": "name",
    "cohort": "name",
    "algorithm": "name",
    "data": "source",
    "candidates": "source",
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
        table = _read(source) if isinstance(source, Path) else copy.deepcopy(dict(source))
        table.setdefault("name", source.stem if isinstance(source, Path) else "experiment")
        table.setdefault(
            "privacy", {}
        )  # a file says itself whether it has a budget; the default's does not leak into it
        if isinstance(table["privacy"], dict):  # else `validate` says what is wrong with it
            table["privacy"].setdefault("epsilon", None)
    # what chooses comes first, so that no parameter is lost because of its place on the command line
    changes = [*map(_parsed, overrides), *(settings or {}).items()]
    for path, value in sorted(changes, key=lambda change: change[0].strip() not in CHOOSERS):
        _set(table, path, value)
    return validate(table)


def validate(table: Table) -> Experiment:
    if isinstance(table.get("privacy"), dict) and (total := {"total_eps", "total_epsilon"} & table["privacy"].keys()):
        raise UnsoundGuarantee(
            f"privacy.{total.pop()}",
            why="epsilons about different units, under different neighbours or against different adversaries do "
            "not add up to anything",
            fix="privacy.epsilon is the budget of the one gate that it sizes; the receipt has a row for every "
            "other promise",
            code="total-epsilon",
        )
    check_keys(table, Experiment.model_fields, "the experiment")
    try:
        experiment = Experiment.model_validate(table)
    except ValidationError as error:
        raise wrong(error, "the experiment", {place: _fields(place) for place in Experiment.model_fields}) from None
    for place, low in LOWEST.items():
        value: Any = experiment
        for part in place.split("."):
            value = getattr(value, part)
        check_range(place, value, Range(least=low), "out-of-range")
    data_sources.check(experiment.data.source, experiment.data.model_dump(exclude_defaults=True))
    if experiment.engine.deadline_s is not None and experiment.engine.executor != "processes":
        raise ConfigError(
            f"engine.deadline_s with engine.executor = {experiment.engine.executor!r}",
            why="only a process of its own can be given up",
            fix='engine.executor = "processes", or leave the deadline out',
            code="deadline-needs-processes",
        )
    return experiment


def build(table: Mapping[str, object], choices: Mapping[str, Callable[..., T]], where: str, key: str = "name") -> T:
    """What a choosing table chooses, made with the rest of the table as arguments."""
    rest = {field: tuple(value) if isinstance(value, list) else value for field, value in table.items()}
    name = rest.pop(key, None)
    if not isinstance(name, str) or name not in choices:
        raise ConfigError(
            f"[{where}] {key} = {name!r} is not known", fix=nearest(str(name), choices), code="unknown-choice"
        )
    if rest and not parameters(choices[name]):
        takers = [other for other in choices if rest.keys() <= parameters(choices[other]).keys()]
        raise ConfigError(
            f"[{where}] {name} has no key {next(iter(rest))!r}",
            why=f"{name} takes no settings",
            fix=f"choose one that does: {where}.{key}={' or '.join(takers)}" if takers else "leave it out",
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
    try:
        values = _model(made).model_validate(table)
    except ValidationError as error:
        raise wrong(error, where, {}) from None
    return made(**{field: getattr(values, field) for field in fields if field in table})


@lru_cache(maxsize=256)
def _model(made: Callable[..., object]) -> type[BaseModel]:
    strict = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    model: type[BaseModel] = create_model("Table", __config__=strict, **parameters(made))  # type: ignore[call-overload]
    return model


def parameters(made: Callable[..., object]) -> dict[str, tuple[Any, Any]]:
    """The parameters that a table may set: name -> (type, default). Gates have tables of their own; what begins with
    `_` is the engine's to set.
    """
    hints = get_type_hints(made)
    found = {}
    for name, parameter in inspect.signature(made).parameters.items():
        if name not in ("read", "uplink") and not name.startswith("_"):
            default = ... if parameter.default is inspect.Parameter.empty else parameter.default
            found[name] = (hints[name], default)
    return found


def _read(path: Path) -> Table:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"no experiment file {path}",
            fix=f"a setting is written {path}=VALUE"
            if str(path) in Experiment.model_fields
            else "`sordino run` without a file runs the default one",
            code="no-file",
        ) from None
    except IsADirectoryError:
        run = (path / "experiment.toml").is_file()
        raise ConfigError(
            f"{path} is a {'run ' * run}folder, not an experiment file",
            fix=f"the experiment of that run is {path / 'experiment.toml'}" if run else "name a file in TOML",
            code="no-file",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read {path}", why=str(error), fix="give a text file in TOML", code="unreadable-file"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{path} is not valid TOML: {error}", fix="texts need quotes, tables a [header]", code="bad-toml"
        ) from None


def _parsed(override: str) -> tuple[str, Any]:
    path, equals, text = override.partition("=")
    if not equals or not path:
        raise ConfigError(
            f"{override!r} is not key=value", fix="for example rounds=20 or algorithm.lr=0.05", code="bad-override"
        )
    try:
        return path, tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return path, _word(override, text)


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
            raise ConfigError(f"{path} = {value!r}: {parent} is not a table", code="bad-override")
        table = step
    table[last] = value


def _word(override: str, text: str) -> str:
    """A bare word is a text; several numbers are a sweep, which one run cannot be."""
    if text.lstrip().startswith(("{", "[", '"', "'")):
        raise ConfigError(
            f"{override!r} is not valid TOML",
            why="a bracket or a quote that opens has to close, and texts inside brackets need quotes of their own",
            fix="""quote the whole for the shell: 'algorithm={name = "fedavg", lr = 0.1}'""",
            code="bad-override",
        )
    try:
        several = len(tomllib.loads(f"v = [{text}]")["v"]) > 1
    except tomllib.TOMLDecodeError:
        return text
    if several:
        raise ConfigError(f"{override!r} has several values", why=SWEEP, fix=sweep(override), code="sweep-in-a-run")
    return text


SWEEP = "one run has one value of everything; a sweep is a comparison of several runs"


def _owner(table: Table, key: str) -> list[str]:
    """A bare key that only the chosen algorithm knows belongs to it: lr=0.1 is algorithm.lr=0.1."""
    from sordino.algorithms import ALGORITHMS

    chosen = table.get("algorithm", Experiment.model_fields["algorithm"].default)
    name = chosen.get("name") if isinstance(chosen, dict) else None
    made = user_code.load(name, "algorithm") if isinstance(name, str) and ":" in name else ALGORITHMS.get(str(name))
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


def _fields(place: str) -> Iterable[str]:
    return list(getattr(Experiment.model_fields[place].annotation, "model_fields", {}))


def _without_none(value: object) -> Any:
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return [_without_none(v) for v in value] if isinstance(value, list) else value
