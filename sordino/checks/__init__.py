"""Checks of algorithms, models, losses and other parts of a user's own, by `sordino check`.

A law is a property that such a part must have: a function that raises `Broken` with a reason and a fix where it does
not hold. The first laws read the class, the next ones call its methods one by one, the last ones run small federations.
A law is skipped if one that it depends on is broken.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import io
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sordino import user_code
from sordino.checks.federations import ends, learns, ledger, noisy, order, processes, receipt, resumes
from sordino.checks.halves import (
    absence,
    blind,
    complete,
    draws_nothing,
    frozen,
    linear,
    mean,
    pure,
    sealed,
    shapes,
    statistics,
    tensors,
)
from sordino.checks.parts import FUNCTIONS, MODEL, PartTrial, kind_of
from sordino.checks.trial import ROUNDS, Broken, Trial
from sordino.config import Experiment
from sordino.config.reading import parsed
from sordino.errors import ConfigError, SordinoError

SETTABLE = ("algorithm", "model")


class Law(NamedTuple):
    """Property that a part must have, and the test of it."""

    says: str
    holds: Callable[[Any], object]  # or raises
    ground: tuple[str, ...] = ()  # laws without which this one cannot be tried


class LawVerdict(NamedTuple):
    """Verdict on one property of a part: whether it has it, and if not, why and what to do."""

    law: str
    says: str
    verdict: Literal["holds", "broken", "not tried"]
    why: str
    fix: str


class Report(NamedTuple):
    """Verdicts on all properties of one part."""

    algorithm: str  # as an experiment names it, or another part
    verdicts: list[LawVerdict]
    setting: str = "algorithm"  # where an experiment names it

    @property
    def broken(self) -> list[str]:
        return [v.law for v in self.verdicts if v.verdict == "broken"]


HALVES, WHOLE = ("complete",), ("complete", "tensors", "shapes")
RUNS = (*WHOLE, "runs")
LAWS: dict[str, Law] = {
    "complete": Law("all required methods are there, and reader and uplink are fields", complete),
    "frozen": Law("its parameters are fields and never change", frozen, HALVES),
    "draws nothing": Law("it calls no random generator", draws_nothing),
    "tensors": Law("messages and states are the same bits after serialisation and a checkpoint", tensors, HALVES),
    "shapes": Law("uploads have the form of zero, states of init, models of the task", shapes, (*HALVES, "tensors")),
    "pure": Law("equal inputs give equal outputs, and inputs are not changed", pure, WHOLE),
    "sealed": Law("it sees examples through gradients alone", sealed, WHOLE),
    "blind": Law("other rows with the same gradients change no upload", blind, (*WHOLE, "sealed")),
    "absence": Law("a round without answers leaves a finite model", absence, WHOLE),
    "linear": Law("a client that uploads zeros has no effect beyond its share of the mean", linear, WHOLE),
    "mean": Law("a method that declares `takes_mean` uploads changes, and zeros change no model", mean, WHOLE),
    "statistics": Law("a method that declares `carries_statistics` averages clients' statistics", statistics, WHOLE),
    "runs": Law(f"a federation of 5 clients runs its {ROUNDS} rounds", ends, WHOLE),
    "order": Law("the order of clients changes nothing", order, RUNS),
    "processes": Law("stacks and client processes give the same bytes as a loop", processes, RUNS),
    "resume": Law("a stopped and resumed run equals an uninterrupted one, byte for byte", resumes, RUNS),
    "ledger": Law("every round has one published entry", ledger, RUNS),
    "receipt": Law("the receipt verifies and promises no more than the gates", receipt, RUNS),
    "learns": Law("the loss falls on quadratics", learns, WHOLE),
    "noisy": Law("with a private reader, every reserved gradient is read, and epsilon is finite", noisy, RUNS),
}


def check(
    file: Path,
    name: str | None = None,
    words: Iterable[str] = (),
    watch: Callable[[str], None] = lambda law: None,
    kind: str | None = None,
    inputs: tuple[int, ...] | None = None,
) -> Report:
    """Tests an algorithm, or another part of the user's own, in `file`: for each property that it must have (a law),
    whether it holds. `words`: key=value settings of [algorithm] or [model], or arguments of the part. `kind`: what a
    function is: loss, metric, model or trainer. `inputs`: shape of one example for a model or a trainer."""
    given = tuple(words)
    _check_words(given)
    if not file.is_file() or file.suffix != ".py":
        raise ConfigError(
            f"there is no Python file {file}",
            fix="give the path of the .py file that holds your algorithm",
            code="no-algorithm-file",
        )
    path = file.resolve()
    with _importing_from(path), tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(io.StringIO()):
        made = _class(path, name, kind)
        named = f"{path.stem}:{made.__name__}"
        if (part := kind_of(made, kind)) is not None:
            options = dict(map(parsed, given))
            laws = {"made": Law(part.says, part.made)}
            laws |= {law: Law(says, holds, ("made",)) for law, (says, holds) in part.laws.items()}
            on_trial = PartTrial(named, made, path, options, *([] if inputs is None else [inputs]))
            return Report(named, list(_judged(laws, on_trial, watch)), part.setting)
        trial = Trial(named, made, path, given, Path(place))
        return Report(trial.name, list(_judged(LAWS, trial, watch)))


def _check_words(given: Iterable[str]) -> None:
    for word in given:
        table, dot, _ = word.partition("=")[0].partition(".")
        if table not in SETTABLE if dot else table in Experiment.model_fields:
            raise ConfigError(
                f"{word!r} cannot be set in `sordino check`",
                why="the check brings its own data, cohorts and rounds",
                fix="set only parameters of the algorithm or the model, for example algorithm.lr=0.05",
                code="not-for-a-check",
            )


@contextlib.contextmanager
def _importing_from(path: Path) -> Iterator[None]:
    """Context manager: modules beside this file can be imported inside it."""
    before = sys.path.copy()
    with contextlib.chdir(path.parent):
        sys.path.insert(0, str(path.parent))
        try:
            yield
        finally:
            sys.path[:] = before
            if _origin(sys.modules.get(path.stem)) == path:
                del sys.modules[path.stem]


def _origin(module: object) -> Path:
    return Path(getattr(module, "__file__", None) or "")


def _judged(laws: Mapping[str, Law], trial: Trial | PartTrial, watch: Callable[[str], None]) -> Iterator[LawVerdict]:
    sound: set[str] = set()
    for name, law in laws.items():
        lacking = [ground for ground in law.ground if ground not in sound]
        if lacking:
            yield LawVerdict(name, law.says, "not tried", f"the law {lacking[0]!r} must hold first", "")
            continue
        watch(name)
        why, fix = _tried(law, trial)
        if not why:
            sound.add(name)
        yield LawVerdict(name, law.says, "broken" if why else "holds", why, fix)


def _tried(law: Law, trial: Trial | PartTrial) -> tuple[str, str]:
    try:
        law.holds(trial)
    except Broken as broken:
        return broken.why, broken.fix
    except SordinoError as error:
        return "; ".join(part for part in (error.what, error.why) if part), error.fix
    except (Exception, SystemExit) as error:  # a user's program: any error in it is reported with its place
        frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == trial.file]
        where = f" (line {frames[-1].lineno}, in {frames[-1].name})" if frames else ""
        return (
            f"{type(error).__name__}: {str(error).partition(chr(10))[0]}{where}",
            "correct the line, then check again",
        )
    return "", ""


def _class(path: Path, name: str | None, kind: str | None = None) -> Any:
    """The class or function `name` in the file; without a name, the only candidate in it."""
    held = {k: v for k, v in vars(_module(path)).items() if getattr(v, "__module__", "") == path.stem}
    classes = {k: v for k, v in held.items() if inspect.isclass(v) or (kind in FUNCTIONS and inspect.isfunction(v))}
    likely = [k for k, v in classes.items() if _is_part(v, kind) or hasattr(v, "local") or hasattr(v, "update")]
    likely = likely or [k for k, v in classes.items() if kind_of(v, kind) is MODEL]  # else it may be a piece of one
    wanted = name if name is not None or len(likely) != 1 else likely[0]
    if wanted in classes:
        return classes[wanted]
    raise ConfigError(
        f"{path.name} has no class {name}" if name else f"it is not clear which class of {path.name} to check",
        why=f"it has {', '.join(likely)}" if likely else "no class in it has a method called local or update",
        fix="name one with --class"
        if likely
        else "write a subclass of FedAvg; FedProx (sordino/algorithms/fedprox.py) is an example",
        code="which-class",
    )


def _is_part(made: Any, kind: str | None) -> bool:
    return kind_of(made, kind) not in (None, MODEL)


def _module(path: Path) -> Any:
    """Import the module anew under its own name, as a run does."""
    found = _origin(sys.modules.get(path.stem))
    if path.stem not in sys.modules and path.stem.isidentifier():
        spec = importlib.util.find_spec(path.stem)
        found = Path(spec.origin or "") if spec is not None else found
    if found != path:
        raise ConfigError(
            f"Python cannot import {path.name} under this name",
            why="another module has the same name, or the name is not allowed in Python",
            fix="rename the file: use letters, digits and _, and no name of a Python module or package",
            code="module-name",
        )
    sys.modules.pop(path.stem, None)
    try:
        return importlib.import_module(path.stem)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"cannot import {path.name}: {user_code.described(error)}",
            fix="correct the file, then check again",
            code="algorithm-import",
        ) from error
