"""Tables of published numbers, as their folders declare them.

`rows.toml` says where the numbers come from, what each row changes in its experiment, what is asked of the rows, and
which programs measure what no run can. `results.jsonl` holds one line for each finished run, and `tuning.jsonl` one for
each step size that was tried.
"""

from __future__ import annotations

import json
import statistics
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from sordino.errors import ConfigError

ROWS, RESULTS, TUNING = "rows.toml", "results.jsonl", "tuning.jsonl"
OTHERS = ("published", "yardstick")  # whose numbers may stand beside ours


class Declared(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Row(Declared):
    """One row: what it changes in the experiment, for how many seeds, and what others found."""

    name: str
    set: tuple[str, ...]
    seeds: int = Field(ge=1)
    published: tuple[float, ...] = ()  # printed in the source
    yardstick: tuple[float, ...] = ()  # found by another implementation
    why: str = ""  # what explains a difference
    minutes: float | None = Field(None, gt=0)  # about, one run on one core
    slot_gib: float | None = None  # printed in the source: GiB that a client in all rounds sends
    published_loss: float | None = None  # printed in the source


class Claim(Declared):
    """What is asked, the published number, and the rows that show how it is here: as they are, or beside `minus`."""

    asks: str
    published: str = "-"
    rows: tuple[str, ...] = Field(min_length=1)
    minus: tuple[str, ...] = ()  # the rows that they are compared with, seed by seed: one for all, or one each
    why: str = ""
    headline: bool = False  # it stands in the table at the top of README.md
    of: Literal["accuracy", "uplink", "rounds"] = "accuracy"  # uplink: GiB of a client in all rounds; rounds: to the
    # first target, of the seeds that reach it. Differences of these two are in %


class Program(Declared):
    """A program of the folder that writes a file beside it, for what is no accuracy of a run."""

    file: str
    writes: str
    shows: str
    minutes: float = Field(gt=0)  # about, on one core
    images: str = ""  # the data set whose folder it is given


class Quick(Declared):
    """The row that shows in seconds that a table can be run, and how it is cut for that."""

    row: str
    set: tuple[str, ...]


class Tune(Declared):
    """One setting that each row chooses for itself, with a seed that no row is judged by."""

    key: str
    values: tuple[float, ...] = Field(min_length=1)
    seed: int


class Sheet(Declared):
    """The whole of `rows.toml`."""

    source: str
    paper: str = ""  # short names for the table of headlines: of the source,
    size: str = ""  # and of how large the runs are
    published: str = ""
    yardstick: str = ""
    experiment: str = ""
    minutes: float | None = Field(None, gt=0)
    last: int = Field(10, ge=1)
    targets: tuple[float, ...] = ()
    traffic: bool = False
    quick: Quick | None = None
    tune: Tune | None = None
    row: tuple[Row, ...] = ()
    claim: tuple[Claim, ...] = ()
    program: tuple[Program, ...] = ()

    @pydantic.model_validator(mode="after")
    def _check(self) -> Sheet:
        names = Counter(row.name for row in self.row)
        meant = [name for claim in self.claim for name in (*claim.rows, *claim.minus)]
        meant += [self.quick.row] if self.quick is not None else []
        wrong = [f"two rows are called {name!r}" for name, many in names.items() if many > 1]
        wrong += [f"{name!r} is no row of this table" for name in meant if name not in names]
        wrong += [
            f"a row has a number under {what}, and nothing says where it is from: write {what} = '...' at the top"
            for what in OTHERS
            if not getattr(self, what) and any(getattr(row, what) for row in self.row)
        ]
        wrong += [
            f"{claim.asks!r} has {len(claim.rows)} rows and {len(claim.minus)} to compare them with"
            for claim in self.claim
            if len(claim.minus) not in (0, 1, len(claim.rows))
        ]
        if any(claim.of == "rounds" for claim in self.claim) and not self.targets:
            wrong.append("a claim of rounds needs targets = [...] at the top")
        if any(claim.headline for claim in self.claim) and not (self.paper and self.size):
            wrong.append("a headline needs a paper = '...' and a size = '...' at the top")
        if names and (self.quick is None or not self.experiment):
            wrong.append("rows need an experiment = '...' and a quick = {row = '...', set = [...]}")
        if not names and not self.program:
            wrong.append("a table needs a [[row]], or a [[program]] that measures it")
        if wrong:
            raise ValueError("; ".join(wrong))
        return self


class Run(Declared):
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
    own: dict[str, float] = {}  # metrics of the table's own, of the last evaluated round
    before: int = 0
    flops: float = 0
    reached: tuple[tuple[int, int] | None, ...] = ()
    neighbours: str | None = None
    delta: float | None = None
    tuned: float | None = None
    seconds: float | None = None
    set: tuple[str, ...] | None = None  # what its row changed when it was run
    commit: str | None = None  # of the repository it was run from
    accelerator: str | None = None  # and the torch that used it; None: the processor

    def measure(self, of: str) -> float | None:
        """What a claim speaks of, if this run has it."""
        if of == "rounds":
            return self.reached[0][0] if self.reached and self.reached[0] else None
        return self.slot_gib if of == "uplink" else self.last


@dataclass(frozen=True)
class Table:
    """A folder: what was published, and what was run."""

    folder: Path
    sheet: Sheet
    runs: tuple[Run, ...]
    tuning: tuple[Run, ...]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def experiment(self) -> Path:
        """The experiment that every row changes."""
        return self.folder / self.sheet.experiment

    def of(self, row: Row) -> list[Run]:
        return [run for run in self.runs if run.name == row.name]

    def row(self, name: str) -> Row:
        found = {row.name: row for row in self.sheet.row}
        if name not in found:
            raise ConfigError(f"{self.name} has no row {name!r}", fix=f"one of: {'; '.join(found)}")
        return found[name]

    def minutes(self, row: Row) -> float | None:
        """How long a run of it takes on one core: measured, or about; None where it is not known."""
        noted = [run.seconds for run in self.of(row) if run.seconds is not None]
        return statistics.mean(noted) / 60 if noted else row.minutes if row.minutes is not None else self.sheet.minutes

    def left(self) -> float | None:
        """Minutes until nothing is missing; None where it is not known of every row."""
        each = [self.minutes(row) for row, _ in (*self.missing(), *self.untuned())]
        known = [minutes for minutes in each if minutes is not None]
        return None if len(known) < len(each) else sum(known)

    def unwritten(self) -> list[Program]:
        """The programs whose file is not there."""
        return [program for program in self.sheet.program if not (self.folder / program.writes).exists()]

    def missing(self) -> list[tuple[Row, int]]:
        """Runs that are still to be made: every row has its first seed before one has its second."""
        done = {(run.name, run.seed) for run in self.runs}
        most = max((row.seeds for row in self.sheet.row), default=0)
        return [(r, s) for s in range(most) for r in self.sheet.row if s < r.seeds and (r.name, s) not in done]

    def untuned(self) -> list[tuple[Row, float]]:
        """Rows and values that are still to be tried before a row can choose its own. A row whose `set` gives the value
        chooses none.
        """
        if (tune := self.sheet.tune) is None:
            return []
        tried = {(run.name, run.tuned) for run in self.tuning}
        wanted = {row.name for row, _ in self.missing()}
        return [
            (row, value)
            for row in self.sheet.row
            if row.name in wanted and not any(word.startswith(f"{tune.key}=") for word in row.set)
            for value in tune.values
            if (row.name, value) not in tried
        ]

    def tuned(self, row: Row) -> float | None:
        """The value that was best with the tuning seed; None of a row that chooses none."""
        tried = [run for run in self.tuning if run.name == row.name]
        return max(tried, key=lambda run: run.last).tuned if tried else None


def read(folder: Path) -> Table:
    """The table of a folder. What stands wrongly in its files is refused by name."""
    try:
        told = tomllib.loads((folder / ROWS).read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{folder / ROWS} is not valid TOML: {error}") from None
    sheet = _valid(Sheet.model_validate, told, str(folder / ROWS))
    runs, tuning = _runs(folder / RESULTS, "seed"), _runs(folder / TUNING, "tuned")
    now = {row.name: row.set for row in sheet.row}
    if other := next((run for run in runs if run.set is not None and run.set != now.get(run.name, run.set)), None):
        raise ConfigError(
            f"{folder / RESULTS}: {other.name!r}, seed {other.seed}, was run with other settings than its row has now",
            why=f"then {' '.join(other.set or ())}, now {' '.join(now[other.name])}",
            fix="remove the lines of this row, so that it is run again, or give the row another name",
        )
    return Table(folder, sheet, runs, tuning)


T = TypeVar("T")


def _valid(parse: Callable[..., T], told: object, where: str) -> T:
    try:
        return parse(told)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{where}: {f'{place}: ' if place else ''}{first['msg']}", fix="mend it there") from None


def _runs(file: Path, by: str) -> tuple[Run, ...]:
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    found = tuple(_valid(Run.model_validate_json, line, f"{file}, line {i}") for i, line in enumerate(lines, 1))
    for (name, value), many in Counter((run.name, getattr(run, by)) for run in found).items():
        if many > 1:
            raise ConfigError(f"{file} holds {name!r}, {by} {value}, twice", fix="remove one of the lines")
    return found


def keep(file: Path, run: Run) -> None:
    """Writes a finished run behind the others."""
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(run.model_dump(exclude_unset=True)) + "\n")
