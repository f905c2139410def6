"""sordino: private federated learning with honest guarantees.

import sordino
result = sordino.run("experiment.toml", rounds=10)     # or sordino.run() for the default on real digits
result.accuracy, result.promise                        # and result.rounds, .clients, .privacy: data frames
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.version import __version__

if TYPE_CHECKING:
    from sordino.results.comparison import Comparison
    from sordino.results.one_run import Result
    from sordino.results.prediction import Prediction
    from sordino.runs.play import Ended

__all__ = ["__version__", "compare", "open_run", "predict", "resume", "run"]


def run(
    experiment: str | Path | Mapping[str, Any] | None = None,
    *overrides: str,
    out: str | Path | None = None,
    prepared: str | Path | None = None,
    progress: bool = False,
    track: Sequence[str] = (),
    **settings: Any,
) -> Result:
    """Runs an experiment: a TOML file, a table with the same keys, or the default one.

    Change it as on the command line, `"rounds=10"`, or in Python, `rounds=10, **{"algorithm.lr": 0.1}`. `out` is the
    run folder (default: runs/DATE-NAME), `prepared` a run whose preparation is taken over, `progress` shows how far it
    is, `track` names trackers (tensorboard, mlflow, wandb, trackio).
    """
    from sordino import config
    from sordino.runs.run import fresh_folder, start

    source = Path(experiment) if isinstance(experiment, str | Path) else experiment
    plain = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in settings.items()}
    made = config.load(source, overrides, plain)
    folder = fresh_folder(made.name) if out is None else Path(out)
    taken = None if prepared is None else Path(prepared)
    return _followed(lambda watch: start(made, folder, watch, prepared=taken), progress, track)


def resume(folder: str | Path, progress: bool = False, track: Sequence[str] = ()) -> Result:
    """Continues a run that was stopped or killed."""
    from sordino.runs.run import resume as continue_

    return _followed(lambda watch: continue_(Path(folder), watch), progress, track)


def compare(
    *experiments: str | Path, seeds: int = 3, out: str | Path = "runs/compare", target: float | None = None
) -> Comparison:
    """Runs experiment files over the same seeds: `sordino.compare("a.toml", "b.toml")`, or a sweep,
    `compare("a.toml", "lr=0.01,0.1")`.
    """
    from sordino.results.comparison import check_words
    from sordino.results.comparison import compare as compare_

    check_words(experiments)
    files = [Path(word) for word in experiments if isinstance(word, Path) or "=" not in word]
    changes = [word for word in experiments if isinstance(word, str) and "=" in word]
    return compare_(files, seeds, Path(out), changes, target)


def open_run(folder: str | Path) -> Result:
    """A run that lies on disk: finished, stopped, or still going on in another process."""
    from sordino.results.one_run import open_run as open_

    return open_(folder)


def predict(folder: str | Path, rows: object, *, score: bool = False, with_code: bool = False) -> Prediction:
    """Uses the model of a run on new examples: a file or folder, a list of dictionaries, a data frame, or an array of
    raw inputs.

    `score`: the true classes are there too, and are compared. `with_code`: import a model class of somebody's own.
    """
    from sordino.results.prediction import predict as predict_

    return predict_(Path(folder), rows, score, with_code)


def _followed(go: Callable[[Any], Ended], shown: bool, track: Sequence[str]) -> Result:
    from rich.console import Console

    from sordino.cli.progress import progress
    from sordino.results.one_run import Result
    from sordino.runs.trackers import tracked

    with progress(Console(stderr=True, quiet=not shown)) as watch:
        ended = tracked(go, track, watch)
    return Result(ended.folder, ended.notes, ended.interrupted)
