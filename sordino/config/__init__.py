"""Settings of an experiment: read from TOML and checked.

Its tables and keys, the readers and uplink stages that it may name, and the errors for wrong settings.

The command line overrides the file, and the file the defaults; an unknown key is an error that names the nearest known
one.

Relative paths start at the folder in which the run was started, also when it is read later or from elsewhere. The run
folder stores the way to that folder as a relative path: both can be moved together, and no absolute path is disclosed.

Sources of data: which keys of [data] each one needs and takes; a key of another source is refused, never ignored.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from sordino import user_code
from sordino.config.reading import CHOOSERS as CHOOSERS
from sordino.config.reading import build as build
from sordino.config.reading import check_ranges, parsed, read, unknown, wrong
from sordino.config.reading import filled as filled
from sordino.config.reading import parameters as parameters
from sordino.config.settings import Chaos as Chaos
from sordino.config.settings import Data as Data
from sordino.config.settings import Engine as Engine
from sordino.config.settings import EvaluationSettings as EvaluationSettings
from sordino.config.settings import Experiment as Experiment
from sordino.config.settings import Network as Network
from sordino.config.settings import Privacy as Privacy
from sordino.config.settings import Section as Section
from sordino.config.settings import SlowClients as SlowClients
from sordino.config.settings import Table as Table
from sordino.errors import ConfigError


class DataSource(NamedTuple):
    """Source of data: its description, and the keys of [data] that it needs and takes."""

    what: str
    needs: tuple[str, ...]  # keys of [data] without which it cannot be loaded
    loads: tuple[str, ...]  # keys that its loader takes, by the same names
    then: tuple[str, ...]  # keys of what is done with it when it is loaded
    # what its loader draws from the seed of the run, if it draws: it gets a key for that alone
    draws: str | None = None

    @property
    def takes(self) -> tuple[str, ...]:
        return (*self.loads, *(key for key in self.then if key not in self.loads))

    def to_json(self) -> dict[str, object]:
        return {"what": self.what, "needs": self.needs, "takes": self.takes}


# rows may themselves be made with numbers from a small seed, so what draws them and what holds them back are two keys
DATA_SEED, HELD_BACK = "data", "held back"
SLICES = ("train", "test", "probe")
IMAGES = ("standardise", "augment", "side", *SLICES)
DATA_SOURCES = {
    "digits": DataSource(
        "1,797 real 8x8 images of handwritten digits, shipped with sordino", (), ("test_fraction",), IMAGES
    ),
    "folder": DataSource(
        "images in one folder per class, as photographs are kept",
        ("path",),
        ("test_fraction", "fraction", "at_least", "side", "classes", "colours"),
        IMAGES,
        draws=DATA_SEED,
    ),
    "images": DataSource(
        "images in the parquet format of the Hugging Face hub: a folder, or a hub id",
        ("path",),
        ("label", "download", "merge", "standardise", "classes", "colours"),
        ("test_fraction", *IMAGES),
    ),
    "tabular": DataSource(
        "tables, CSV or parquet: one, or a file for each client",
        ("path", "label"),
        ("group", "key", "schema", "standardise", "test_fraction", "missing", "separator", "decimal", "encoding"),
        SLICES,
        draws=HELD_BACK,
    ),
    "synthetic": DataSource(
        "synthetic(alpha, beta): devices with linear truths of their own",
        (),
        ("alpha", "beta", "clients", "iid", "largest", "test_fraction"),
        SLICES,
        draws=DATA_SEED,
    ),
    "quadratic": DataSource(
        "clients whose best model is known in closed form: a test bed", (), ("clients", "dim", "heterogeneity"), ()
    ),
}

OWN_SOURCE = DataSource(
    "rows of a class of your own", (), ("options", "standardise", "test_fraction"), ("augment", *SLICES)
)
ALL_SOURCES = {**DATA_SOURCES, "module:Class": OWN_SOURCE}


def data_source(source: str) -> DataSource:
    """The data source of this name."""
    return OWN_SOURCE if user_code.is_own(source) else DATA_SOURCES[source]


def data_keys(source: object) -> set[str]:
    """Keys of [data] that this source takes; if the source is missing or unknown, the keys of all sources."""
    if isinstance(source, str) and (source in DATA_SOURCES or user_code.is_own(source)):
        known: Collection[DataSource] = [data_source(source)]
    else:
        known = ALL_SOURCES.values()
    return {key for one in known for key in (*one.needs, *one.takes)}


def has_natural_clients(data: object) -> bool:
    """True where [data] tells which client each row belongs to: by a column that names the client, or by one file for
    each client.
    """
    from sordino.data import is_one_file

    if not isinstance(data, Mapping) or data.get("source") != "tabular":
        return False
    path = data.get("path")
    if isinstance(path, str) and user_code.is_lent(path):
        return data.get("group") is not None
    return data.get("group") is not None or (path is not None and not is_one_file(path))


def check_data(given: Mapping[str, object]) -> None:
    """Refuses keys of [data] that the chosen source does not take. `given`: the keys of [data] that differ from their
    defaults."""
    source = str(given.get("source", "digits"))
    if isinstance(given.get("path"), list) and source != "tabular":
        raise ConfigError(
            f"data.path = {given['path']!r} with data.source = {source!r}",
            why="only tables can be a list of files",
            fix="give one path, or set data.source=tabular",
            code="setting-of-another-source",
        )
    strange = [key for key in given if key not in ("source", *data_keys(source))]
    if not strange:
        return
    others = [name for name in ALL_SOURCES if data_keys(name) >= {*strange}]
    named = ", ".join(f"data.{key}" for key in strange)
    if strange == ["fraction"] and "train" in data_keys(source):
        named, others = "data.fraction", []
        part = "data.train = N and data.test = N take so many of its examples"
    else:
        part = ""
    raise ConfigError(
        f"{named} with data.source = {source!r}",
        why=f"{source!r} has no such setting, so it would change nothing",
        fix=part
        or (f"set data.source={' or '.join(others)}, or leave {named} out" if others else f"leave {named} out"),
        code="setting-of-another-source",
    )


def load(
    source: Path | Mapping[str, object] | None,
    overrides: Iterable[str] = (),
    settings: Mapping[str, object] | None = None,
) -> Experiment:
    """The experiment of a TOML file, of a table of the same form, or the default one; with `key=value` overrides and
    `{key: value}` settings.
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
    if "partition" not in table and has_natural_clients(table.get("data")):
        table = {**table, "partition": {"scheme": "natural"}}
    try:
        experiment = Experiment.model_validate(table)
    except ValidationError as error:
        raise wrong(error, "the experiment", {place: _fields(place) for place in Experiment.model_fields}) from None
    check_ranges(experiment)
    check_data(experiment.data.model_dump(exclude_defaults=True))
    _check_device(experiment.engine)
    if experiment.engine.deadline_s is not None and not experiment.engine.client_processes:
        raise ConfigError(
            f"engine.deadline_s with engine.executor = {experiment.engine.executor!r}",
            why="only a client process can be stopped when it takes too long",
            fix='set engine.executor = "processes", or leave the deadline out',
            code="deadline-needs-processes",
        )
    return experiment


def _check_device(engine: Engine) -> None:
    """Refuses several threads on one accelerator, and several processes on one that was named."""
    if engine.device == "cpu":
        return
    if not engine.one_process:
        if ":" in engine.device:
            raise ConfigError(
                f"engine.device = {engine.device!r} with engine.executor = {engine.executor!r}",
                why="each process takes an accelerator of its own: the first on a machine cuda:0, the second cuda:1",
                fix='set engine.device = "cuda", and choose the accelerators with the variable CUDA_VISIBLE_DEVICES',
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
    table[last] = copy.deepcopy(value)  # what is set in it later is not set in a user's own table


def _owner(table: Table, key: str) -> list[str]:
    """["algorithm"] if a bare key is a parameter of the chosen algorithm, so that lr=0.1 means algorithm.lr=0.1; else
    []. A key that other tables have too is refused.
    """
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
    """Keys that a table of the experiment accepts or was given; for [data], those of the chosen source."""
    given = table.get(place)
    if place == "data":  # of other sources nobody speaks
        return data_keys(given.get("source", "digits") if isinstance(given, dict) else "digits")
    return [*_fields(place), *(given if isinstance(given, dict) else ())]


def places(key: str) -> list[str]:
    """Full names that a setting given without its table may have: epsilon means privacy.epsilon."""
    return [f"{place}.{key}" for place in Experiment.model_fields if key in _fields(place)]


def _fields(place: str) -> Iterable[str]:
    return list(getattr(Experiment.model_fields[place].annotation, "model_fields", {}))


PATHS = ("path", "file", "schema", "ledger", "cache")  # keys that name a file or a folder, in whatever table


def start_of(folder: Path) -> str:
    """Path from the run's folder to the working directory, in which the run is started."""
    return os.path.relpath(Path.cwd(), Path(os.path.realpath(folder.parent), folder.name))


def resolved(experiment: Experiment, folder: Path, start: str) -> Experiment:
    """A run's experiment, with its relative paths adapted to the present working directory. Its digest stays
    the same.
    """
    place = Path(os.path.realpath(Path(os.path.realpath(folder), start)))
    if place == Path.cwd():
        return experiment
    changed: dict[str, Any] = {}
    for name in ("data", "privacy", "engine"):
        section = getattr(experiment, name)
        paths = {key: getattr(section, key) for key in PATHS if getattr(section, key, None) is not None}
        if name == "data" and section.download and not Path(place, str(section.path)).exists():
            paths.pop("path", None)  # the name of a data set on the hub
        if paths:
            changed[name] = section.model_copy(update=_resolved(paths, place))
    found = experiment.model_copy(update=changed)
    found._start = place
    return found


def resolved_table(experiment: Experiment, table: Mapping[str, Any]) -> dict[str, Any]:
    """A table of an experiment, with its relative paths adapted to the present working directory."""
    return dict(table) if experiment._start is None else _resolved(table, experiment._start)


def _resolved(table: Mapping[str, Any], place: Path) -> dict[str, Any]:
    return {
        key: _path(value, place) if key in PATHS else _resolved(value, place) if isinstance(value, Mapping) else value
        for key, value in table.items()
    }


def _path(value: Any, place: Path) -> Any:
    if isinstance(value, list | tuple):
        return [_path(one, place) for one in value]
    if not isinstance(value, str) or value in ("", "learned") or value.startswith("~") or user_code.is_lent(value):
        return value
    return os.path.normpath(place / value)
