"""Schema of a table: the possible values of its columns, in a TOML file confirmed by a person, so that no row decides
the shape of a model.

    [columns]
    age = { kind = "number", range = [0, 110] }              # values outside are clipped to the range
    ward = { kind = "levels", levels = ["A", "B", "rest"], other = "rest" }  # other takes unknown levels
    smokes = { kind = "boolean" }                            # true, false, 1 or 0
    weight = { kind = "number", range = [2, 300], outside = "refuse", missing = 70 }  # else a value outside is moved;
                                                             # "move": even where there are many
    note = { kind = "text", buckets = 4096, length = 32 }  # the first 32 words; or words = ["pain", "fever"]; or tokens
                                                             # with tokenizer = "bytes", or "folder/tokenizer.json"
    doctor = { kind = "ignored" }
    visit_id = { kind = "key" }                              # names the row; rows = 5: at most five rows have the same
    clinic = { kind = "group", names = ["North", "South"] }  # names may be left out
    outcome = { kind = "label", classes = ["ill", "well"] }  # or range = [0, 120], of a number that is predicted

`missing` is the value for missing cells of the column under `data.missing = "fill"`. `draft = true` marks a file that
was inferred from the rows and is not confirmed yet.
"""

from __future__ import annotations

import hashlib
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from sordino.errors import DataError, extra

TAKES: Mapping[str, tuple[str, ...]] = {  # kind of column -> its settings
    "number": ("range", "outside", "missing"),
    "levels": ("levels", "other", "missing"),
    "boolean": ("missing",),
    "text": ("words", "buckets", "tokenizer", "length", "missing"),
    "ignored": (),
    "key": ("rows",),
    "group": ("names",),
    "label": ("classes", "range"),
}
BOOLEANS = {"true": 1.0, "1": 1.0, "1.0": 1.0, "false": 0.0, "0": 0.0, "0.0": 0.0}
# kind of column -> the name of its list, and the least length of that
LISTS = {"levels": ("levels", 1), "label": ("classes", 2), "group": ("names", 1)}


FEATURES = ("number", "levels", "boolean", "text")
MOST_TOKENS = 2**20  # largest number of listed words, or of buckets
MOST_ROWS = 1000  # largest number of rows of one person
BYTES = "bytes"  # a tokenizer that was not trained on any text
UNPAID = "a vocabulary that is learned from rows reveals the words in them, and no budget pays for that"


@dataclass(frozen=True)
class Column:
    """One column of a table, as its schema declares it."""

    kind: str
    low: float = 0.0  # of numbers
    high: float = 0.0
    words: tuple[str, ...] = ()  # levels, classes or names, as a file spells them
    other: str | None = None
    strict: bool = False  # a number outside the range is refused
    # outside = "move" was declared: many values may be outside. Not in the digest: the default moves them, too
    moved: bool = field(default=False, repr=False)
    missing: str | None = None  # value for a missing cell, as a file spells it

    @property
    def width(self) -> int:
        """Number of model inputs for the column."""
        return len(self.words) if self.kind == "levels" else 1

    @property
    def scale(self) -> tuple[float, float]:
        """The middle of the declared range and half its width; the model's input is (value - middle) / half."""
        if self.kind == "number":
            return (self.low + self.high) / 2, (self.high - self.low) / 2
        return (0.5, 0.5) if self.kind == "boolean" else (0.0, 1.0)


@dataclass(frozen=True)
class TextColumn(Column):
    """Free text, of which a model sees the first words. `words` lists the words that it distinguishes; without a list
    words are hashed into buckets.
    """

    length: int = 0
    buckets: int = 0  # number of hash buckets for words, where there is no list

    @property
    def width(self) -> int:
        return self.length

    @property
    def tokens(self) -> int:
        """Number of different tokens: the listed words or the buckets, one token for no word, and with a list one for
        other words.
        """
        return len(self.words) + 2 if self.words else self.buckets + 1


@dataclass(frozen=True)
class TokenColumn(TextColumn):
    """Text of which a model sees the first tokens, in their order."""

    tokenizer: str = BYTES  # or the content of a tokenizer.json, which may name no file

    @property
    def vocabulary(self) -> int:
        """The number of different tokens that the tokenizer can give."""
        return 256 if self.tokenizer == BYTES else 1 + max(loaded(self.tokenizer).get_vocab().values())

    @property
    def tokens(self) -> int:
        return self.vocabulary + 1

    def ids(self, text: str) -> Sequence[int]:
        """The tokens of a text as numbers, from 0 on."""
        return text.encode() if self.tokenizer == BYTES else loaded(self.tokenizer).encode(text).ids


@cache
def loaded(tokenizer: str) -> Any:
    """The tokenizer of Hugging Face's `tokenizers` from the content of its tokenizer.json, without its padding and
    truncation: a text is read by itself.
    """
    otherwise = f"; or set tokenizer = {BYTES!r}, which needs no package"
    with extra("language", "tokenizer.json", "missing-data-extra", DataError, otherwise):
        from tokenizers import Tokenizer
    try:
        made = Tokenizer.from_str(tokenizer)
    except Exception as error:  # it raises no narrower one
        raise ValueError(f"it is no tokenizer: {error}") from None
    made.no_padding()
    made.no_truncation()
    return made


@dataclass(frozen=True)
class KeyColumn(Column):
    """A column whose value says to whom a row belongs, such as a patient's number: several rows may share it."""

    rows: int = 1  # most rows with one value


@dataclass(frozen=True)
class TableSchema:
    """The columns of a table, in the order of the features."""

    columns: Mapping[str, Column]  # features come in this order, whatever the order of the file
    draft: bool = False

    @property
    def digest(self) -> str:
        """A digest of the declarations, independent of the file's formatting."""
        return hashlib.sha256(repr(list(self.columns.items())).encode()).hexdigest()

    @property
    def features(self) -> dict[str, Column]:
        """The columns that are inputs of a model, in their order."""
        return {name: column for name, column in self.columns.items() if column.kind in FEATURES}

    def rows_per_key(self, key: str | None) -> int:
        """The largest number of rows with the same value of the column `key`, as declared; else 1."""
        column = self.columns.get(key or "")
        return column.rows if isinstance(column, KeyColumn) else 1

    def named(self, kind: str) -> str | None:
        """The name of the column of this kind, of which there is one at most; None if there is none."""
        return next((name for name, column in self.columns.items() if column.kind == kind), None)


def read(path: str | Path) -> TableSchema:
    """The schema from a TOML file."""
    file = Path(path).expanduser()
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DataError(
            f"there is no schema file {file}",
            fix="write a draft with `sordino data schema TABLE --label COLUMN --out FILE`, then check and confirm it",
            code="missing-schema",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"cannot read the schema {file}", why=str(error), fix="give a text file in TOML", code="bad-schema"
        ) from None
    try:
        return parsed(text)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{file} is not a valid schema",
            why=str(error),
            fix='correct it; the page "Your own data and model" of the documentation describes schemas',
            code="bad-schema",
        ) from None


def parsed(text: str) -> TableSchema:
    """The schema from TOML text. Raises a ValueError that says what is wrong with it."""
    table = tomllib.loads(text)
    if unknown := sorted(table.keys() - {"columns", "draft"}):
        raise ValueError(f"it has no key {unknown[0]!r}: only the table [columns], and draft")
    tables, draft = table.get("columns"), table.get("draft", False)
    if not isinstance(tables, dict) or not tables:
        raise ValueError("it has no table [columns]")
    if not isinstance(draft, bool):
        raise ValueError(f"draft = {draft!r} is neither true nor false")
    columns = {name: _column(name, entry) for name, entry in tables.items()}
    for kind in ("label", "group", "key"):
        several = [name for name, column in columns.items() if column.kind == kind]
        marks = kind == "label" and all((columns[name].low, columns[name].high) == (0, 1) for name in several)
        if len(several) > 1 and not marks:
            raise ValueError(f"{' and '.join(several)}: only one column can be the {kind}")
    if not any(column.kind in FEATURES for column in columns.values()):
        raise ValueError("no column is a feature: number, levels, boolean or text")
    return TableSchema(columns, draft)


def check_roles(roles: Mapping[str, str | None]) -> None:
    """Refuses a column with two roles, except a key that is also the group: then each person is a client, and all its
    rows are for training or all for testing.
    """
    given = {role: name for role, name in roles.items() if name is not None}
    if given.get("group") == given.get("key"):
        given.pop("key", None)
    for role, name in given.items():
        if others := [other for other in given if other != role and given[other] == name]:
            raise DataError(
                f"column {name} is both the {role} and the {others[0]}",
                why="a column has one role: what is predicted (label), who holds the row (group), or what names the "
                "row (key)",
                fix=f"choose another column as data.{role} or data.{others[0]}, or leave data.{others[-1]} out",
                code="one-column-two-roles",
            )


def _column(name: str, entry: Any) -> Column:
    kind = entry.get("kind") if isinstance(entry, dict) else None
    if not isinstance(kind, str) or kind not in TAKES:
        raise ValueError(f"{name}: its kind is {kind!r}, and must be one of {', '.join(TAKES)}")
    if unknown := sorted(entry.keys() - {"kind", *TAKES[kind]}):
        takes = ", ".join(TAKES[kind]) or "nothing more"
        raise ValueError(f"{name}: {unknown[0]!r} says nothing of kind {kind!r}, which takes {takes}")
    if kind == "number":
        low, high = _range(name, entry.get("range"))
        outside, gap = entry.get("outside", "move"), entry.get("missing")
        if outside not in ("move", "refuse"):
            raise ValueError(f'{name}: outside = {outside!r} is neither "move" nor "refuse"')
        if gap is not None and not (type(gap) in (int, float) and low <= gap <= high):
            raise ValueError(f"{name}: missing = {gap!r} is not a number in its range")
        return Column(
            kind,
            low,
            high,
            strict=outside == "refuse",
            moved="outside" in entry,
            missing=None if gap is None else repr(gap),
        )
    if kind == "text":
        return _text_column(name, entry)
    if kind == "boolean":
        gap = _text(entry.get("missing")) if "missing" in entry else None
        if "missing" in entry and gap not in BOOLEANS:
            raise ValueError(f"{name}: missing = {entry['missing']!r} is neither true nor false")
        return Column(kind, missing=gap)
    if kind == "key" and "rows" in entry:
        if not (type(rows := entry["rows"]) is int and 1 <= rows <= MOST_ROWS):
            raise ValueError(f"{name}: rows = {rows!r} is not a whole number from 1 to {MOST_ROWS}")
        return KeyColumn(kind, rows=rows)
    if kind == "label" and "range" in entry:
        if "classes" in entry:
            raise ValueError(f"{name}: a label has classes, or a range, and not both")
        return Column(kind, *_range(name, entry["range"]))
    if kind not in LISTS or (kind == "group" and "names" not in entry):
        return Column(kind)
    listed, least = LISTS[kind]
    words = _words(name, listed, entry.get(listed), least)
    other = entry.get("other")
    if other is not None and (other := _text(other)) not in words:
        raise ValueError(f"{name}: other = {other!r} is not among its levels")
    gap = entry.get("missing")
    if gap is not None and (gap := _text(gap)) not in words:
        raise ValueError(f"{name}: missing = {gap!r} is not among its levels")
    return Column(kind, words=words, other=other, missing=gap)


def _text_column(name: str, entry: Mapping[str, Any]) -> TextColumn:
    words, buckets, length, gap = (entry.get(key) for key in ("words", "buckets", "length", "missing"))
    tokenizer = entry.get("tokenizer")
    if isinstance(words, str):
        raise ValueError(f"{name}: words = {words!r}: {UNPAID}. List the words, or set buckets = 4096")
    if tokenizer is not None and tokenizer != BYTES and not str(tokenizer).endswith(".json"):
        wanted = f'Set "{BYTES}", or a tokenizer.json that was trained on public text'
        raise ValueError(f"{name}: tokenizer = {tokenizer!r}: {UNPAID}. {wanted}")
    if sum(one is not None for one in (words, buckets, tokenizer)) != 1:
        raise ValueError(f"{name}: a text needs one of a list of words, a number of buckets, and a tokenizer")
    if buckets is not None and not (type(buckets) is int and 1 <= buckets <= MOST_TOKENS):
        raise ValueError(f"{name}: buckets = {buckets!r} is not a whole number from 1 to {MOST_TOKENS}")
    if not (type(length) is int and 1 <= length <= 4096):
        raise ValueError(f"{name}: length = {length!r} is not a whole number of words from 1 to 4096")
    if gap is not None and not isinstance(gap, str):
        raise ValueError(f"{name}: missing = {gap!r} is not a text")
    if tokenizer is not None:
        return TokenColumn("text", missing=gap, length=length, tokenizer=_tokenizer(name, tokenizer))
    listed = () if words is None else _words(name, "words", words, 1)
    return TextColumn("text", words=listed, missing=gap, length=length, buckets=buckets or 0)


def _tokenizer(name: str, given: object) -> str:
    """Content of the named tokenizer file, once it has been tried on a text; or `BYTES`."""
    if given == BYTES:
        return BYTES
    try:
        content = Path(str(given)).expanduser().read_text(encoding="utf-8")
        known = len(loaded(content).get_vocab())
    except DataError:  # the package is missing
        raise
    except (OSError, ValueError) as error:
        raise ValueError(f"{name}: tokenizer = {given!r} cannot be read: {error}") from None
    if not 1 <= known <= MOST_TOKENS:
        raise ValueError(f"{name}: tokenizer = {given!r} has {known} tokens, and must have 1 to {MOST_TOKENS}")
    return content


def _range(name: str, ends: Any) -> tuple[float, float]:
    fits = isinstance(ends, list) and len(ends) == 2 and all(type(end) in (int, float) for end in ends)
    if not fits or not (math.isfinite(ends[0]) and math.isfinite(ends[1]) and ends[0] < ends[1]):
        raise ValueError(
            f"{name}: range = {ends!r} is not [lowest, highest], two numbers of which the first is smaller"
        )
    return float(ends[0]), float(ends[1])


def _words(name: str, listed: str, given: object, least: int) -> tuple[str, ...]:
    words = tuple(map(_text, given)) if isinstance(given, list) else ()
    if len(words) < least or None in words or len(set(words)) < len(words):
        raise ValueError(
            f"{name}: {listed} = {given!r} is not a list of {least} or more different words or whole numbers"
        )
    return tuple(word for word in words if word is not None)


def _text(word: object) -> str | None:
    """Text that a cell must have to equal a value of the schema; None if that is no text, whole number or boolean."""
    if isinstance(word, bool):
        return "true" if word else "false"
    return str(word) if isinstance(word, str | int) else None
