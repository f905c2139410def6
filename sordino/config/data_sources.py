"""Sources of data, and which keys of [data] each one needs and takes; a key of another source is refused, never
ignored."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from sordino import user_code
from sordino.errors import ConfigError


class DataSource(NamedTuple):
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
DATA, HELD_BACK = "data", "held back"
SLICES = ("train", "test", "probe")
IMAGES = ("standardise", "augment", "side", *SLICES)
SOURCES = {
    "digits": DataSource(
        "1,797 real 8x8 images of handwritten digits, shipped with sordino", (), ("test_fraction",), IMAGES
    ),
    "folder": DataSource(
        "images in one folder per class, as photographs are kept",
        ("path",),
        ("test_fraction", "fraction", "at_least", "side", "classes", "colours"),
        IMAGES,
        draws=DATA,
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
        draws=DATA,
    ),
    "quadratic": DataSource(
        "clients whose best model is known in closed form: a test bed", (), ("clients", "dim", "heterogeneity"), ()
    ),
}

OWN = DataSource("rows of a class of your own", (), ("options", "standardise", "test_fraction"), ("augment", *SLICES))
ALL = {**SOURCES, "module:Class": OWN}


def of(source: str) -> DataSource:
    """The data source of this name."""
    return OWN if user_code.is_own(source) else SOURCES[source]


def keys(source: object) -> set[str]:
    """Keys of [data] that this source takes; if the source is missing or unknown, the keys of all sources."""
    if isinstance(source, str) and (source in SOURCES or user_code.is_own(source)):
        known: Collection[DataSource] = [of(source)]
    else:
        known = ALL.values()
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


def check(given: Mapping[str, object]) -> None:
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
    strange = [key for key in given if key not in ("source", *keys(source))]
    if not strange:
        return
    others = [name for name in ALL if keys(name) >= {*strange}]
    named = ", ".join(f"data.{key}" for key in strange)
    if strange == ["fraction"] and "train" in keys(source):
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
