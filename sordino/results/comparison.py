"""Compare methods fairly: equal data, partition, cohorts, initial weights and evaluation, several seeds, never the best
round.

Every (method, seed) is an ordinary run in a folder of its own, so a comparison can be stopped and goes on where it was.
A sweep is a comparison too: one method per value.
"""

from __future__ import annotations

import re
import shlex
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from sordino import config
from sordino.accounting.statement import Guarantee, Key
from sordino.branches import part
from sordino.config import Experiment
from sordino.errors import ConfigError, RunError
from sordino.ledger.files import atomic_write
from sordino.metrics.headlines import HEADLINES
from sordino.metrics.measures import (
    Measure,
    Metrics,
    at_bytes,
    at_round,
    bytes_to,
    final,
    headline,
    last_ten,
    mean_std,
    paired_p,
    rounds_to,
    traffic,
    worst_tenth,
)
from sordino.metrics.preparation_cost import before, in_front
from sordino.planning.methods import Methods
from sordino.receipts.folder import RunFolder
from sordino.receipts.receipt import opened
from sordino.results.comparison_table import Measured, Row, snippet
from sordino.results.frames import frame
from sordino.results.pace import Follow, Pace, Watch
from sordino.results.preparation import label_of
from sordino.results.sweeps import Composed, Notes, Setting, choosing, composed, grid
from sordino.runs.play import Ended
from sordino.runs.run import resume, start
from sordino.runs.simulation import settle
from sordino.tasks.personalise import ways

# and the share of stragglers: what becomes of them is the method's
EQUAL = ("data", "partition", "model", "cohort", "rounds", "chaos", "evaluation")

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Method:
    """All seeds of one experiment."""

    name: str
    runs: Sequence[Metrics]  # of each seed; what it prepared is a round 0
    promise: Sequence[Guarantee]  # each of the seed that promises least
    experiment: Experiment = Experiment()  # of the first seed, as it was run
    ledgers: tuple[Notes, ...] = ()  # what each seed's ledger says

    @property
    def simulated(self) -> bool:
        return not self.experiment.privacy.real

    @property
    def measured_by(self) -> str:
        """The way in which it is measured."""
        return ", then ".join(dict.fromkeys(row.measured for run in self.runs for row in run if row.loss is not None))

    def values(self, of: Measure) -> list[float]:
        return [value for run in self.runs if (value := of(run)) is not None]


@dataclass(frozen=True, repr=False)
class Comparison:
    """What `sordino.compare` returns: the methods, and every way to look at them."""

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
        """What choosing among these methods on the same data tells at most, row by row."""
        delta = min(method.experiment.privacy.delta for method in self.methods)
        return composed(list(zip(*(method.ledgers for method in self.methods), strict=True)), delta)

    @property
    def choosing(self) -> list[str]:
        """What must be said with the table: tuning is not accounted for, and what it would cost."""
        said = choosing(self.search, len(self.methods), len(self.methods[0].runs), self.sweep)
        target, constant = self.table[0].target, max(_constant(run) for m in self.methods for run in m.runs)
        if target > constant:
            return said
        return [
            *said,
            f"The target of {target:.1%} is no better than a constant answer ({constant:.1%}), so rounds and bytes to "
            "it say nothing: train longer, or give a --target.",
        ]

    def frame(self) -> pandas.DataFrame:
        """The table as a pandas data frame."""
        return frame([row.flat() for row in self.table], instead="`.table`")

    def report(self, out: Path | None = None) -> Path:
        """Write the page: comparison.html beside the runs, or elsewhere."""
        write: Callable[[Comparison, Path], Path] = part("pages", "comparison")
        return write(self, self.folder / "comparison.html" if out is None else out)

    def figures(self, kind: str = "pdf", out: Path | None = None) -> list[Path]:
        """Figures for a paper (needs the `plots` extra)."""
        draw: Callable[[Comparison, Path, str], list[Path]] = part("figures", "comparison")
        return draw(self, self.folder / "figures" if out is None else out, kind)

    def __repr__(self) -> str:
        names = ", ".join(method.name for method in self.methods)
        return f"Comparison of {names} over {len(self.methods[0].runs)} seeds in {self.folder}"

    def _repr_html_(self) -> str:
        return snippet(self.table, self.choosing)


def check_words(words: Sequence[object]) -> None:
    """What Python may hand over."""
    for word in words:
        if not isinstance(word, str | Path | Mapping):
            raise ConfigError(
                f"an object of type {type(word).__name__} cannot be compared",
                why="a comparison takes experiment files or tables, so that it can be repeated",
                fix='give paths, tables and changes: sordino.compare("a.toml", {"name": "b"}, "lr=0.01,0.1")',
                code="not-an-experiment-file",
            )


def as_files(experiments: Sequence[str | Path | Mapping[str, object]], out: Path) -> list[Path]:
    """Experiments as files: a table is written beside the runs, so that the comparison can be made again."""
    return [
        _written(one, out / "experiments", number) if isinstance(one, Mapping) else Path(one)
        for number, one in enumerate(experiments, 1)
    ]


def _written(table: Mapping[str, object], folder: Path, number: int) -> Path:
    name = str(table.get("name", f"experiment-{number}"))
    made = config.load({"name": name, **table})  # refuses what is none
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
    """Run what is missing, then gather. Ctrl-C waits for the end of a round; called again, it goes on from there."""
    if seeds < 1:
        raise ConfigError(
            f"seeds is {seeds}", why="it must be at least 1", fix="set for example seeds = 3", code="out-of-range"
        )
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
    pace = Pace(follow, [experiment.name for experiment in experiments for _ in range(seeds)])
    methods = [_method(experiment, seeds, out, pace) for experiment in experiments]
    words = [*map(str, files), *overrides, "--seeds", str(seeds), "--out", str(out)]
    words += [] if target is None else ["--target", str(target)]
    return Comparison(methods, out, f"sordino compare {shlex.join(words)}", target, len(settings) > 1)


def _named(experiment: Experiment, setting: Setting) -> Experiment:
    name = f"{experiment.name} {setting.label}".strip()
    return experiment.model_copy(update={"name": name}) if setting.label else experiment


def _method(experiment: Experiment, seeds: int, out: Path, pace: Pace) -> Method:
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
    """Row by row the weakest: where cohorts are drawn, one seed may call on a client more often than another."""
    weakest: dict[Key, Guarantee] = {}
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
        mine = [entry.note for entry in federation.entries()]
    finally:
        federation.ledger.close()
    return Notes(mine, len(parts.public.sizes))


def _run(experiment: Experiment, folder: Path, watch: Watch) -> Ended:
    there = RunFolder(folder)
    if not there.experiment_file.exists():
        return start(experiment, folder, watch)
    if there.experiment.digest() != experiment.digest():
        raise RunError(
            f"{folder} holds a run with another configuration",
            why="the experiment file was changed since then, and old and new results must not be mixed in one table",
            fix="remove that folder, or give another --out",
            code="stale-comparison",
        )
    return resume(folder, watch)


def check_equal(experiments: Sequence[Experiment]) -> None:
    """What must be the same for a difference to mean anything."""
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
        pairs["evaluation"] = _unasked(first), _unasked(other)
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
    """In which ways clients make the model their own: as asked, else as the method does."""
    return ways(Methods(experiment).training, experiment.evaluation.personal)


def _unasked(experiment: Experiment) -> object:
    """[evaluation] without the ways, which are compared as they are and not as they are asked for."""
    return experiment.evaluation.model_copy(update={"personal": []})


def _said(found: Sequence[str]) -> str:
    return f"by clients' models ({', '.join(found)})" if found else "by the server's model"


def _constant(run: Metrics) -> float:
    """What always answering the most frequent class reaches; 0 where there are no classes."""
    return next((row.majority for row in reversed(run) if row.majority is not None), 0.0)


def table(methods: Sequence[Method], target: float | None = None) -> list[Row]:
    """One row per method. The target defaults to what the weakest method reaches at its end, so that all can reach
    it.
    """
    metric = headline([row for m in methods for run in m.runs for row in run])
    if target is None:
        ends = [statistics.fmean(values) for m in methods if (values := m.values(last_ten))]
        weakest = min if HEADLINES[metric].higher else max
        target = weakest(ends) if ends else 0.0
    rounds = max((row.round for m in methods for run in m.runs for row in run), default=0)
    cheapest = min((traffic(run) for m in methods for run in m.runs), default=0.0)
    measures: dict[str, Measure] = {
        "final": final,
        "last_ten": last_ten,
        "worst_tenth": worst_tenth,
        "at_half": at_round(rounds // 2),
        "at_equal_bytes": at_bytes(cheapest),
        "rounds_to_target": rounds_to(target),
        "bytes_to_target": bytes_to(target),
        "bytes": traffic,
        "before": before,
    }
    return [
        Row(
            method=method.name,
            n=len(method.runs),
            target=target,
            metric=metric,
            measured={name: _over_seeds(method.values(measure)) for name, measure in measures.items()},
            measured_by=method.measured_by,
            p_against_first=_p_against(methods[0], method),
            candidates=label_of(method.experiment),
            guarantees=tuple(method.promise),
            simulated=method.simulated,
        )
        for method in methods
    ]


def _over_seeds(values: Sequence[float]) -> Measured:
    """Of those seeds that have a value: a target may not be reached by every one."""
    mean, std = mean_std(values)
    return Measured(mean=mean, std=std, n=len(values))


def _p_against(first: Method, method: Method) -> float | None:
    ours, theirs = method.values(last_ten), first.values(last_ten)
    alike = method.measured_by == first.measured_by  # a model of each client's own is no better global model
    return None if method is first or not alike or len(ours) != len(theirs) else paired_p(ours, theirs)
