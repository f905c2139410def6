"""What of the data is public: declared columns, how inputs are scaled; and what a receipt says where rows decided."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Literal

from sordino import user_code
from sordino.config import Data
from sordino.data import schema
from sordino.data.dataset import CLASSES, COLOURS, DRAWN, STRATIFIED, Stats
from sordino.data.row_source import RowSource
from sordino.data.schema import TableSchema
from sordino.data.table_names import is_one_file
from sordino.errors import ConfigError, UnsoundGuarantee

LEARNED = "learned"  # data.schema: from the rows
COUNTED = "how many classes there are was learned from the labels of all rows"
INVENTED = ("quadratic", "synthetic")  # nobody's data
SHIPPED = "digits"  # rows that lie in the package

COLUMNS = "types and levels of the table's columns were learned from all rows: one row can change the model's shape"
DRAFTED = "the table's schema is a draft made from the rows, which nobody has confirmed"
PLACES = "which rows are held back for tests follows from their places in the file, which are taken as public"
DEALT = "who holds which rows follows from their places among all rows, which are taken as public"
PARTITION = "who holds which examples was drawn from all labels: the partition is taken as public"
RESERVED = (
    "which examples are used, and which the server keeps, was drawn from all labels: the choice is taken as public"
)

# what is drawn from secret labels; that rows lie at certain places is no secret
CHOSEN = (STRATIFIED, DRAWN, PARTITION, RESERVED)

SEVERAL = "an example is one row: whoever has several rows ({} tells whose they are) is not protected as a whole by it"

SCALING = "inputs are scaled by the mean and deviation of all training data, whose release is not accounted for"

Scaling = Literal["fixed", "channel", "pixel", "none"]


def declared(data: Data, private: bool) -> TableSchema | None:
    """The schema of a table; None where its rows are learned from, and for other data.

    `private`: real people are to be protected, so nothing may be learned in silence.
    """
    if data.source != "tabular" or data.schema == LEARNED:
        return None
    if data.schema is None:
        if private:
            raise UnsoundGuarantee(
                "a table without a schema, with real noise",
                why="columns, levels and classes would be learned from the rows: a value that only one row has would "
                "change the model's shape, and no noise hides that",
                fix=f"run `{_drafting(data)}`, confirm what it wrote, and set data.schema to that file; or set "
                f'data.schema = "{LEARNED}", which claims nothing',
                code="table-without-schema",
            )
        return None
    found = schema.read(data.schema)
    if found.draft and private:
        raise UnsoundGuarantee(
            f"the schema {data.schema} is still a draft, with real noise",
            why="a draft is made from the rows, so the model's shape and scale would tell what some row holds",
            fix="confirm every range, level and class from what you know of the columns, then delete `draft = true`",
            code="schema-is-a-draft",
        )
    return found


def scaling(data: Data, found: TableSchema | None, own: RowSource | None = None) -> Scaling:
    """How inputs are scaled: by public numbers, unless the experiment asks for statistics, or a table, or a source of
    somebody's own, declares no ranges.
    """
    if data.source in INVENTED:
        return "none"
    if own is not None:
        if data.standardise == "fixed" and own.reach is None:
            raise ConfigError(
                f'data.standardise = "fixed" with data.source = {data.source!r}',
                why="this scaling needs numbers that somebody declared, and this source declares none",
                fix='give its class `reach = (lowest, highest)`, or set data.standardise = "channel" or "none"',
                code="no-such-scaling",
            )
        return data.standardise or ("channel" if own.reach is None else "fixed")
    if data.standardise == "none":
        raise ConfigError(
            f'data.standardise = "none" with data.source = {data.source!r}',
            why="only rows of a source of your own are taken as they are",
            fix='set data.standardise = "fixed" or "channel", or leave it out',
            code="no-such-scaling",
        )
    if data.source != "tabular":
        return data.standardise or "fixed"
    if data.standardise == "pixel":
        raise ConfigError(
            'data.standardise = "pixel" with data.source = "tabular"',
            why="a table has columns, not pixels",
            fix='set data.standardise = "channel", or leave it out',
            code="no-such-scaling",
        )
    if found is not None:
        return data.standardise or "fixed"
    if data.standardise == "fixed":
        raise ConfigError(
            'data.standardise = "fixed" for a table without a schema',
            why="this scaling needs ranges that somebody declared, and there are none",
            fix=f'give a data.schema (`{_drafting(data)}` writes a draft), or set data.standardise = "channel"',
            code="no-such-scaling",
        )
    return "channel"


def declared_scale(
    data: Data, kind: str, shape: tuple[int, ...], found: TableSchema | None, reach: tuple[float, float] | None
) -> Stats:
    """Mean and deviation that scale inputs, from what is declared alone: of a table `found`, of rows of a user's own
    `reach`.
    """
    check_announced(data)
    if found is not None:
        each = [one.scale for one in found.features.values() for _ in range(one.width)]
        return tuple(middle for middle, _ in each), tuple(half for _, half in each)
    if data.source in INVENTED or data.standardise == "none":
        middle, half = 0.0, 1.0
    elif kind == "image" and (reach is not None or not user_code.is_own(data.source)):
        middle, half = 0.5, 0.5
    elif reach is not None:
        middle, half = (reach[0] + reach[1]) / 2, (reach[1] - reach[0]) / 2 or 1.0
    else:
        raise _announces(SCALING)
    return (middle,) * shape[-1], (half,) * shape[-1]


def check_announced(data: Data, learned: tuple[str, ...] = ()) -> None:
    """Refuses, before anything leaves a site, what would tell more of its rows than how many they are. `learned`: what
    is known to have been read off rows; without it the experiment itself may say so.
    """
    said = list(learned)
    if data.standardise in ("channel", "pixel"):
        said.append(SCALING)
    if data.source == "tabular" and data.schema in (None, LEARNED):
        said.append(COLUMNS)
    if data.source in ("folder", "images"):
        said += [why for told, why in ((data.classes, CLASSES), (data.colours, COLOURS)) if told is None]
    if said:
        raise _announces("; ".join(dict.fromkeys(said)))


def _announces(what: str) -> UnsoundGuarantee:
    return UnsoundGuarantee(
        f"what sites tell each other would be made of their rows: {what}",
        why="a site announces what is declared, and how many rows it has; the mean with a row and the mean without it "
        "give the row back, to everybody who reads both files",
        fix="declare it: of a table a schema, of images data.classes and data.colours, of a source of your own classes "
        'and reach; and leave data.standardise out, or set it to "fixed"',
        code="announces-rows",
    )


def check_own(data: Data, own: RowSource, classes: bool) -> None:
    """Refuses rows of somebody's own, of which nothing is declared, where there is real noise. `classes`: is one of
    several predicted? Of other labels [task] says what they can be.
    """
    unsaid = [] if own.classes is not None or not classes else ["classes"]
    if own.reach is None and data.standardise is None:
        unsaid.append("reach")
    if unsaid:
        raise UnsoundGuarantee(
            f"data.source = {data.source!r} declares no {' and no '.join(unsaid)}, with real noise",
            why="how many classes there are, or how values are scaled, would be learned from the rows, and no noise "
            "hides that",
            fix="declare them in the source: classes = 2, reach = (0.0, 1.0); values beyond are moved to the nearer "
            "end",
            code="own-data-undeclared",
        )


def learned(data: Data, found: TableSchema | None) -> tuple[str, ...]:
    """What was read off a table's rows before any noise."""
    if data.source != "tabular":
        return ()
    if found is None:
        return COLUMNS, CLASSES
    return (DRAFTED,) if found.draft else ()


def _drafting(data: Data) -> str:
    """The command that drafts the schema."""
    roles = {role: getattr(data, role) for role in ("label", "group", "key")}
    named = [f"--{role} {shlex.quote(name)}" for role, name in roles.items() if name is not None]
    where = "data.csv" if isinstance(data.path, str) and user_code.is_lent(data.path) else data.path  # once written
    paths = where if isinstance(where, list) else [str(where)]
    out = f"{Path(paths[0]).stem}.schema.toml" if is_one_file(where) else "draft.schema.toml"
    return " ".join(["sordino data schema", *map(shlex.quote, paths), *named, "--out", shlex.quote(out)])


def check_dropped(data: Data, sizes_are_public: bool, natural: bool) -> None:
    """Refuses to leave out rows that lack a value, where real noise could not hide it."""
    if data.source != "tabular" or data.missing != "drop" or (natural and not sizes_are_public):
        return
    raise UnsoundGuarantee(
        'data.missing = "drop", with real noise',
        why="whether a row lacks a value would decide how many rows its client has, and that is told to everybody"
        if sizes_are_public
        else "a row that lacks a value would move other rows to other clients",
        fix='set data.missing = "fill", with missing = VALUE for columns of the schema, so that each row stays; or, '
        "where whole clients are protected, privacy.public_sizes = false with natural clients",
        code="rows-dropped",
    )
