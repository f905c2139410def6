"""Compare methods fairly: equal data, partition, cohorts, initial weights and evaluation, several seeds, never the best
round.

Every (method, seed) is an ordinary run in a folder of its own, so a comparison can be stopped and goes on where it was.
A sweep is a comparison too: one method per value.
"""

from __future__ import annotations

import re
import shlex
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sordino import config
from sordino.accounting.claims import Subject
from sordino.accounting.statement import Guarantee
from sordino.branches import part
from sordino.config import Experiment
from sordino.errors import COUNT, ConfigError, RunError, check_range
from sordino.ledger.files import atomic_write
from sordino.metrics.measures import Metrics, in_front
from sordino.planning.methods import Methods
from sordino.receipts.folder import RunFolder
from sordino.receipts.receipt import opened
from sordino.results import frame
from sordino.results.comparison_table import Method, Row, snippet, table
from sordino.results.sweeps import Composed, Notes, Setting, choosing, composed, grid
from sordino.runs.play import Ended, Progress
from sordino.runs.run import resume, start
from sordino.runs.simulation import settle
from sordino.tasks.personalise import ways

# tables that must be equal; also the share of stragglers, while their treatment is part of the method
EQUAL = ("data", "partition", "model", "cohort", "rounds", "chaos", "evaluation")

if TYPE_CHECKING:
    import pandas


Watch = Callable[[Progress], None]


class NextRun(NamedTuple):
    """The run that a comparison computes next, and the time left."""

    method: str
    seed: int
    number: int  # from 1
    many: int
    left: float | None  # seconds, of this run and all after it; None: no run has been timed

    def __str__(self) -> str:
        return f"run {self.number} of {self.many}: {self.method}, seed {self.seed}"


Follow = Callable[[NextRun], AbstractContextManager[Watch | None]]  # what is run now -> who watches its rounds


class TimeLeft:
    """Stopwatch of consecutive runs, which estimates the time left. It counts only rounds that are computed now:
    nothing of a finished run, and of a resumed one what was still missing.
    """

    def __init__(self, follow: Follow, methods: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._follow, self._methods, self._clock = follow, methods, clock  # methods: one name for each run
        self._number = 0
        self._seconds: dict[str, float] = {}  # that were measured, of each method
        self._played: dict[str, float] = {}  # in how many runs

    @property
    def _left(self) -> float | None:
        """Seconds that are left. A method that has not been timed is assumed to take the mean time of the others."""
        each = {name: seconds / self._played[name] for name, seconds in self._seconds.items()}
        if not each:
            return None
        usual = statistics.fmean(each.values())
        return sum(each.get(name, usual) for name in self._methods[self._number :])

    @contextmanager
    def __call__(self, seed: int) -> Iterator[Watch]:
        method, played, begun = self._methods[self._number], 0.0, self._clock()
        asked = NextRun(method, seed, self._number + 1, len(self._methods), self._left)
        with self._follow(asked) as watch:

            def counted(step: Progress) -> None:
                nonlocal played
                if not step.metrics.phase:
                    played += 1 / step.rounds
                if watch is not None:
                    watch(step)

            yield counted
        self._number += 1
        if played:
            self._seconds[method] = self._seconds.get(method, 0.0) + self._clock() - begun
            self._played[method] = self._played.get(method, 0.0) + played


@dataclass(frozen=True, repr=False)
class Comparison:
    """Result of `sordino.compare`: the methods, as a table, a data frame, a page or figures."""

    methods: list[Method]
    folder: Path
    command: str  # that makes it again
    target: float | None = None
    sweep: bool = False

    @cached_property
    def table(self) -> list[Row]:
        """One row per method: means over seeds, deviations and how many seeds are behind them."""
        return table(self.methods, self.target)

    @cached_property
    def search(self) -> list[Composed]:
        """Upper bounds on the privacy loss of choosing among these methods on the same data."""
        delta = min(method.experiment.privacy.delta for method in self.methods)
        return composed(list(zip(*(method.ledgers for method in self.methods), strict=True)), delta)

    @property
    def choosing(self) -> list[str]:
        """Sentences to print with the table: the privacy cost of choosing, and a target that is too low to compare."""
        sentences = choosing(self.search, len(self.methods), len(self.methods[0].runs), self.sweep)
        if self.others:
            few = ", ".join(self.others[:3]) + (", ..." if len(self.others) > 3 else "")
            sentences.append(
                f"Not counted: {len(self.others)} other runs in {self.folder}, finished or not ({few}). Where they "
                "belong to the same search, what they cost adds to it."
            )
        target, constant = self.table[0].target, max(_constant(run) for m in self.methods for run in m.runs)
        if target > constant:
            return sentences
        return [
            *sentences,
            f"The target of {target:.1%} is no better than a constant answer ({constant:.1%}), so rounds and bytes to "
            "it say nothing: train longer, or give a --target.",
        ]

    @property
    def others(self) -> list[str]:
        """Runs in the folder that are not of this comparison, such as those of a method that was dropped from it."""
        folders = {f"{_folder(method.name)}/seed-{i}" for method in self.methods for i in range(len(method.runs))}
        begun = sorted(path for path in self.folder.glob("*/seed-*") if RunFolder(path).begun)
        return [found for path in begun if (found := f"{path.parent.name}/{path.name}") not in folders]

    def frame(self) -> pandas.DataFrame:
        """The table as a pandas data frame."""
        return frame([row.flat() for row in self.table], instead="`.table`")

    def report(self, out: Path | None = None) -> Path:
        """Write the page of the comparison to `out`; by default to comparison.html beside the runs."""
        write: Callable[[Comparison, Path], Path] = part("pages", "comparison")
        return write(self, self.folder / "comparison.html" if out is None else out)

    def figures(self, kind: str = "pdf", out: Path | None = None) -> list[Path]:
        """Write figures for a paper (needs the `plots` extra)."""
        draw: Callable[[Comparison, Path, str], list[Path]] = part("figures", "comparison")
        return draw(self, self.folder / "figures" if out is None else out, kind)

    def __repr__(self) -> str:
        names = ", ".join(method.name for method in self.methods)
        return f"Comparison of {names} over {len(self.methods[0].runs)} seeds in {self.folder}"

    def _repr_html_(self) -> str:
        return snippet(self.table, self.choosing)


def check_words(words: Sequence[object]) -> None:
    """Refuse arguments of a comparison that are neither paths, tables nor changes such as "rounds=3"."""
    for word in words:
        if not isinstance(word, str | Path | Mapping):
            raise ConfigError(
                f"an object of type {type(word).__name__} cannot be compared",
                why="a comparison takes experiment files or tables, so that it can be repeated",
                fix='give paths, tables and changes: sordino.compare("a.toml", {"name": "b"}, "lr=0.01,0.1")',
                code="not-an-experiment-file",
            )


def as_files(experiments: Sequence[str | Path | Mapping[str, object]], out: Path) -> list[Path]:
    """Paths of experiments; one that is given as a table is written beside the runs, so that the comparison can be made
    again.
    """
    return [
        _written(one, out / "experiments", number) if isinstance(one, Mapping) else Path(one)
        for number, one in enumerate(experiments, 1)
    ]


def _written(table: Mapping[str, object], folder: Path, number: int) -> Path:
    name = str(table.get("name", f"experiment-{number}"))
    whole = {key: value for key, value in table.items() if "." not in key}
    changes = {key: value for key, value in table.items() if "." in key}
    made = config.load({"name": name, **whole}, settings=changes)  # refuses what is none
    path = folder / f"{_folder(name)}.toml"
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(path, made.toml().encode())
    return path


def compare(
    files: Sequence[Path],
    seeds: int,
    out: Path,
    overrides: Sequence[str] = (),
    target: float | None = None,
    follow: Follow = lambda _: nullcontext(),
) -> Comparison:
    """Computes the missing runs, then collects all. Ctrl-C waits for the end of a round; the next call goes on."""
    check_range("seeds", seeds, COUNT, "out-of-range", fix="set for example seeds = 3")
    settings = grid(overrides)
    experiments = [_named(config.load(path, s.overrides), s) for path in files for s in settings]
    if len(experiments) < 2:
        raise ConfigError(
            f"{len(experiments)} experiment{'s' * (not experiments)} to compare",
            why="a comparison needs at least two",
            fix="give another file, or several values of a setting: sordino compare A.toml --set lr=0.01,0.1",
            code="too-few-to-compare",
        )
    check_equal(experiments)
    pace = TimeLeft(follow, [experiment.name for experiment in experiments for _ in range(seeds)])
    methods = [_method(experiment, seeds, out, pace) for experiment in experiments]
    words = [*map(str, files), *overrides, "--seeds", str(seeds), "--out", str(out)]
    words += [] if target is None else ["--target", str(target)]
    return Comparison(methods, out, f"sordino compare {shlex.join(words)}", target, len(settings) > 1)


def _named(experiment: Experiment, setting: Setting) -> Experiment:
    name = f"{experiment.name} {setting.label}".strip()
    return experiment.model_copy(update={"name": name}) if setting.label else experiment


def _method(experiment: Experiment, seeds: int, out: Path, pace: TimeLeft) -> Method:
    made: list[tuple[Experiment, Path, Ended]] = []
    for seed in range(seeds):
        folder = out / _folder(experiment.name) / f"seed-{seed}"
        seeded = settle(experiment.model_copy(update={"seed": seed}))
        with pace(seed) as watch:
            ended = _run(seeded, folder, watch)
        if ended.interrupted:
            raise KeyboardInterrupt
        made.append((seeded, folder, ended))
    return Method(
        experiment.name,
        [[*in_front(run.prepared()), *run.metrics()] for run in (RunFolder(folder) for _, folder, _ in made)],
        _least([ended.receipt.guarantees for *_, ended in made]),
        made[0][0],
        tuple(_notes(folder) for _, folder, _ in made),
    )


def _least(promises: Sequence[Sequence[Guarantee]]) -> list[Guarantee]:
    """For each unit and adversary the weakest guarantee over seeds: where cohorts are random, a client may take part
    more often under one seed than under another.
    """
    weakest: dict[Subject, Guarantee] = {}
    for row in (row for promise in promises for row in promise):
        if row.subject not in weakest or row.epsilon > weakest[row.subject].epsilon:
            weakest[row.subject] = row
    return list(weakest.values())


def _folder(name: str) -> str:
    """A name as one safe path component."""
    return re.sub(r"[^\w.=+, -]+", "_", name).strip(". ") or "_"


def _notes(folder: Path) -> Notes:
    parts, federation = opened(folder)
    try:
        notes = [entry.released for entry in federation.entries()]
    finally:
        federation.ledger.close()
    return Notes(notes, len(parts.public.sizes), parts.public.rows_per_key)


def _run(experiment: Experiment, folder: Path, watch: Watch) -> Ended:
    there = RunFolder(folder)
    if not there.experiment_file.exists():
        return start(experiment, folder, watch)
    if there.experiment.digest() != experiment.digest():
        raise RunError(
            f"{folder} holds a run with another configuration",
            why="the experiment file has changed since, and old and new results must not be mixed in one table",
            fix="give another --out, or remove that folder; with real noise keep it, since what it cost adds up",
            code="stale-comparison",
        )
    return resume(folder, watch)


def check_equal(experiments: Sequence[Experiment]) -> None:
    """Refuse experiments that differ in anything but the method."""
    first = experiments[0]
    for other in experiments[1:]:
        one, another = _ways(first), _ways(other)
        if one != another:
            raise ConfigError(
                f"{first.name} and {other.name} are measured in different ways: {_said(one)}, and {_said(another)}",
                why="a model that each client has made its own is tested on this client's examples alone, which is "
                "easier: then this could be the reason for a difference in accuracy",
                fix="""say how to measure for all: sordino compare ... 'evaluation.personal=["plain"]' compares the """
                """global models, 'evaluation.personal=["own"]' what each method gives its clients; both on each """
                "client's examples",
                code="unequal-comparison",
            )
        pairs = {section: (getattr(first, section), getattr(other, section)) for section in EQUAL}
        # methods are compared by the ways of personalisation that take effect, which are equal
        judged = first.evaluation.model_copy(update={"personal": other.evaluation.personal})
        pairs["evaluation"] = judged, other.evaluation
        pairs["stragglers.share"] = first.stragglers.share, other.stragglers.share
        for section, (one, another) in pairs.items():
            if one != another:
                raise ConfigError(
                    f"{first.name} and {other.name} differ in {section}",
                    why="then this could be the reason for a difference in accuracy",
                    fix=f"make [{section}] equal in both, or set it for all: sordino compare ... {section}=...; to try "
                    "several of them, make a comparison for each, with an --out of its own",
                    code="unequal-comparison",
                )
    folders = [_folder(experiment.name) for experiment in experiments]
    if len(set(folders)) < len(folders):
        raise ConfigError(
            f"two experiments are called {sorted(folders)}",
            fix='give each experiment its own name = "..."',
            code="same-name",
        )


def _ways(experiment: Experiment) -> tuple[str, ...]:
    """The ways in which clients personalise the model: those asked for, else the method's own."""
    return ways(Methods(experiment).training, experiment.evaluation.personal)


def _said(found: Sequence[str]) -> str:
    return f"by clients' models ({', '.join(found)})" if found else "by the server's model"


def _constant(run: Metrics) -> float:
    """Accuracy of always predicting the most frequent class; 0 where there are no classes."""
    return next((row.majority for row in reversed(run) if row.majority is not None), 0.0)
