"""A table of published numbers, as its folder declares it.

`rows.toml` says where the numbers come from, what each row changes in the experiment beside it, what is asked of the
rows, and which programs measure what no run can; `results.jsonl` holds one line for each finished run.
"""

from __future__ import annotations

import difflib
import json
import statistics
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from sordino.config.wording import wrong
from sordino.errors import ConfigError, RunError

ROWS, RESULTS, TUNING = "rows.toml", "results.jsonl", "tuning.jsonl"


class _Declared(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class PublishedRow(_Declared):
    """One row: what it changes in the experiment, for how many seeds, and what others found."""

    name: str
    set: tuple[str, ...]
    seeds: int = Field(ge=1)
    published: tuple[float, ...] = ()  # printed in the source
    yardstick: tuple[float, ...] = ()  # found by another implementation
    why: str = ""  # what explains a difference
    minutes: float | None = Field(None, gt=0)  # about, one run on one core
    slot_gib: float | None = None  # printed in the source: GiB that a client in all rounds sends


class PublishedClaim(_Declared):
    """What is asked, the published number, and the rows that show how it is here: as they are, or beside `minus`."""

    asks: str
    published: str = "-"
    rows: tuple[str, ...] = Field(min_length=1)
    minus: str = ""  # a row that each of them is compared with, seed by seed
    why: str = ""


class TableProgram(_Declared):
    """A program of the folder that writes a file beside it, for what is no accuracy of a run."""

    file: str
    writes: str
    shows: str
    minutes: float = Field(gt=0)  # about, on one core
    images: str = ""  # the data set whose folder it is given


class QuickRow(_Declared):
    """The row that shows in seconds that a table can be run, and how it is cut for that."""

    row: str
    set: tuple[str, ...]


class TunedStep(_Declared):
    """One setting that each row chooses for itself, with a seed that no row is judged by."""

    key: str
    values: tuple[float, ...] = Field(min_length=1)
    seed: int


class _Sheet(_Declared):
    source: str
    published: str = ""
    yardstick: str = ""
    experiment: str | None = None
    minutes: float | None = Field(None, gt=0)
    last: int = Field(10, ge=1)
    targets: tuple[float, ...] = ()
    traffic: bool = False
    quick: QuickRow | None = None
    tune: TunedStep | None = None
    row: tuple[PublishedRow, ...] = ()
    claim: tuple[PublishedClaim, ...] = ()
    program: tuple[TableProgram, ...] = ()


class MeasuredRun(_Declared):
    """What one finished run is kept by. Early lines lack what was not asked then."""

    name: str
    seed: int
    final: float
    last: float
    loss: float | None = None
    epsilon: float | str
    status: str
    subject: str
    groups: tuple[dict[str, Any], ...] = ()
    bytes_up: int
    slot_gib: float | None = None
    curve: tuple[tuple[int, float], ...] = ()
    norm: float | None = None
    also: dict[str, float] = {}
    before: int = 0
    flops: float = 0
    reached: tuple[tuple[int, int] | None, ...] = ()
    neighbours: str | None = None
    delta: float | None = None
    tuned: float | None = None
    seconds: float | None = None
    set: tuple[str, ...] | None = None  # what its row changed when it was run


@dataclass(frozen=True)
class PublishedTable:
    """A folder: what was published, and what was run."""

    folder: Path
    sheet: _Sheet
    runs: tuple[MeasuredRun, ...]
    tuning: tuple[MeasuredRun, ...]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def rows(self) -> tuple[PublishedRow, ...]:
        return self.sheet.row

    def of(self, row: PublishedRow) -> list[MeasuredRun]:
        return [run for run in self.runs if run.name == row.name]

    def row(self, name: str) -> PublishedRow:
        found = next((row for row in self.rows if row.name == name), None)
        if found is None:
            names = [row.name for row in self.rows]
            near = difflib.get_close_matches(name, names, n=1)
            raise ConfigError(
                f"{self.name} has no row {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
                why=f"its rows are: {'; '.join(names) or 'none'}",
                fix=f"`sordino reproduce {self.name} --dry-run` shows them",
                code="unknown-row",
            )
        return found

    def experiment(self) -> Path:
        """The experiment that every row changes."""
        if self.sheet.experiment is not None:
            return self.folder / self.sheet.experiment
        found = [path for path in sorted(self.folder.glob("*.toml")) if path.name != ROWS]
        if len(found) != 1:
            raise ConfigError(
                f"{self.folder} holds {len(found)} experiments beside {ROWS}, not one",
                fix=f"name it there: experiment = {found[0].name if found else 'FILE.toml'!r}",
                code="which-experiment",
            )
        return found[0]

    def quick(self) -> tuple[PublishedRow, tuple[str, ...]] | None:
        """The row that is run to see that this table can be run, and how it is cut; None where no rows are."""
        told = self.sheet.quick
        return None if told is None else (next(row for row in self.rows if row.name == told.row), told.set)

    def minutes(self, row: PublishedRow) -> float | None:
        """How long a run of it takes on one core: measured, or about; None where nobody knows."""
        noted = [run.seconds for run in self.of(row) if run.seconds is not None]
        return statistics.mean(noted) / 60 if noted else row.minutes if row.minutes is not None else self.sheet.minutes

    def left(self) -> float | None:
        """Minutes until nothing is missing; None where it is not known of every row."""
        each = [self.minutes(row) for row, _ in (*self.missing(), *self.untuned())]
        known = [minutes for minutes in each if minutes is not None]
        return None if len(known) < len(each) else sum(known)

    def unwritten(self) -> list[TableProgram]:
        """The programs whose file is not there."""
        return [program for program in self.sheet.program if not (self.folder / program.writes).exists()]

    def missing(self) -> list[tuple[PublishedRow, int]]:
        """What is still to be run: every row has its first seed before one has its second."""
        done = {(run.name, run.seed) for run in self.runs}
        most = max((row.seeds for row in self.rows), default=0)
        return [(r, s) for s in range(most) for r in self.rows if s < r.seeds and (r.name, s) not in done]

    def untuned(self) -> list[tuple[PublishedRow, float]]:
        """Rows and values that are still to be tried before a row can choose its own."""
        tune = self.sheet.tune
        tried = {(run.name, run.tuned) for run in self.tuning}
        wanted = {row.name for row, _ in self.missing()}
        return [
            (row, value)
            for row in self.rows
            if tune is not None and row.name in wanted and not self._settled(row)
            for value in tune.values
            if (row.name, value) not in tried
        ]

    def tuned(self, row: PublishedRow) -> float | None:
        """The value that was best with the tuning seed; None of a row that chooses none."""
        tried = [run for run in self.tuning if run.name == row.name]
        return max(tried, key=lambda run: run.last).tuned if self.sheet.tune is not None and tried else None

    def _settled(self, row: PublishedRow) -> bool:
        """The row says itself what others choose."""
        return self.sheet.tune is not None and any(word.startswith(f"{self.sheet.tune.key}=") for word in row.set)


def read(folder: Path) -> PublishedTable:
    """The table of a folder. What it declares wrongly is refused by name."""
    try:
        told = tomllib.loads((folder / ROWS).read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{folder / ROWS} is not valid TOML: {error}", fix="put texts in quotes", code="bad-toml"
        ) from None
    try:
        sheet = _Sheet.model_validate(told)
    except pydantic.ValidationError as error:
        keys: dict[str, tuple[str, ...]] = {name: tuple(_Sheet.model_fields) for name in told}
        nested: dict[str, type[BaseModel]] = {"row": PublishedRow, "quick": QuickRow, "tune": TunedStep}
        nested |= {"claim": PublishedClaim, "program": TableProgram}
        keys |= {place: tuple(model.model_fields) for place, model in nested.items()}
        raise wrong(error, str(folder / ROWS), keys) from None
    _check(folder / ROWS, sheet)
    runs, tuning = _runs(folder / RESULTS), _runs(folder / TUNING)
    _once(folder / RESULTS, [(run.name, f"seed {run.seed}") for run in runs])
    _same(folder / RESULTS, runs, sheet.row)
    _once(folder / TUNING, [(run.name, f"{run.tuned:g}" if run.tuned is not None else "") for run in tuning])
    return PublishedTable(folder, sheet, runs, tuning)


def _check(file: Path, sheet: _Sheet) -> None:
    names = [row.name for row in sheet.row]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"{file} has two rows called {twice!r}", fix="rename one of them", code="row-twice")
    if not names and not sheet.program:
        raise ConfigError(
            f"{file} has no row",
            why="a table is measured by runs, or by a program of its own",
            fix="write a [[row]], or a [[program]] with the file that it writes",
            code="empty-table",
        )
    if names and sheet.quick is None:
        raise ConfigError(f"{file} has no quick row", fix='write quick = { row = "...", set = [...] }', code="no-quick")
    quick = () if sheet.quick is None else (("quick.row", sheet.quick.row, "that is quick to run"),)
    said = [(f"the claim {claim.asks!r}", row) for claim in sheet.claim for row in (*claim.rows, claim.minus) if row]
    for where, name, which in (*quick, *((where, row, "that shows it") for where, row in said)):
        if name not in names:
            raise ConfigError(
                f"{file}: {where} = {name!r} is no row", fix=f"name a row of this table {which}", code="unknown-row"
            )
    for what, told in (("published", sheet.published), ("yardstick", sheet.yardstick)):
        given = next((row.name for row in sheet.row if (row.published if what == "published" else row.yardstick)), None)
        if given is not None and not told:
            raise ConfigError(
                f"{file}: the row {given!r} has a number under {what}, and nothing says where it is from",
                why="a number without its source cannot be checked",
                fix=f'write {what} = "..." at the top of the file: which table of which paper, and what is measured',
                code="number-without-source",
            )


def _once(file: Path, runs: Sequence[tuple[str, str]]) -> None:
    """A run that is kept twice would count as two."""
    if twice := next((run for run in runs if runs.count(run) > 1), None):
        raise RunError(
            f"{file} holds {twice[0]!r}, {twice[1]}, twice",
            why="one run would be counted as two",
            fix="remove one of the lines",
            code="run-twice",
        )


def _same(file: Path, runs: Sequence[MeasuredRun], rows: Sequence[PublishedRow]) -> None:
    """A run of other settings says nothing of its row."""
    now = {row.name: row.set for row in rows}
    if other := next((run for run in runs if run.set is not None and run.set != now.get(run.name, run.set)), None):
        raise RunError(
            f"{file}: {other.name!r}, seed {other.seed}, was run with other settings than its row has now",
            why=f"then {' '.join(other.set or ())}, now {' '.join(now[other.name])}",
            fix="remove the lines of this row, so that it is run again, or give the row another name",
            code="row-changed",
        )


def _runs(file: Path) -> tuple[MeasuredRun, ...]:
    if not file.exists():
        return ()
    found = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            found.append(MeasuredRun.model_validate_json(line))
        except pydantic.ValidationError as error:
            raise RunError(
                f"{file}, line {number} is not a finished run",
                why=error.errors()[0]["msg"],
                fix="remove the line; its run is then repeated",
                code="bad-result",
            ) from None
    return tuple(found)


def place() -> Path:
    """The folder of tables: `experiments` where one is, or in the clone that this package is run from."""
    for root in (Path(), Path(__file__).parents[3]):
        if any((root / "experiments").glob(f"*/{ROWS}")):
            return root / "experiments"
    raise ConfigError(
        "the tables are not here",
        why="they belong to the source of sordino, and an installed package does not hold them",
        fix="get the source (`git clone`, or the source archive of this version), and run this in its folder",
        code="no-tables",
    )


def every(root: Path) -> list[PublishedTable]:
    return [read(file.parent) for file in sorted(root.glob(f"*/{ROWS}"))]


def named(root: Path, name: str) -> PublishedTable:
    """The table of that name."""
    names = [file.parent.name for file in sorted(root.glob(f"*/{ROWS}"))]
    if name not in names:
        raise ConfigError(f"there is no table {name!r}", fix=f"one of: {', '.join(names)}", code="unknown-table")
    return read(root / name)


def keep(file: Path, run: MeasuredRun) -> None:
    """Writes a finished run behind the others."""
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(run.model_dump(exclude_unset=True)) + "\n")


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Mean and standard deviation over seeds."""
    mean, wide = statistics.mean(values), len(values) > 1
    form = f".{digits}f" if abs(mean) < 1e6 else ".1e"  # the loss of a model that diverged
    return f"{mean:{form}}" + (f" ± {statistics.stdev(values):{form}}" if wide else "")
