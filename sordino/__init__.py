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
    from sordino.audits.gates import Audit
    from sordino.receipts.verify import Verdict
    from sordino.results import Result
    from sordino.results.comparison import Comparison
    from sordino.results.findings import TrainedAudit
    from sordino.results.prediction import Predicted
    from sordino.runs.forecast import Compared
    from sordino.runs.play import Ended

__all__ = [
    "__version__",
    "audit",
    "audit_trained",
    "compare",
    "open_run",
    "plan",
    "predict",
    "resume",
    "run",
    "verify",
]


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

    Change it as on the command line, `"rounds=10"`, or in Python, `rounds=10, **{"algorithm.lr": 0.1}`. `model` and
    other parts may be classes of yours, `data` a data frame or arrays, `train` a training function,
    `train(model, rows, round)`. `out` is the run folder (default: runs/DATE-NAME), `prepared` the folder of a run whose
    preparation is reused, `progress` shows a progress display, `track` names trackers (tensorboard, mlflow, wandb,
    trackio).
    """
    from sordino import config
    from sordino.runs.run import fresh_folder, start
    from sordino.user_code import lent

    plain, objects = _without_objects(settings)
    with lent(objects):
        made = config.load(_source(experiment), overrides, plain)
        folder = fresh_folder(made.name) if out is None else Path(out)
        taken = None if prepared is None else Path(prepared)
        return _followed(lambda watch: start(made, folder, watch, prepared=taken), progress, track, objects)


def resume(folder: str | Path, progress: bool = False, track: Sequence[str] = (), **objects: Any) -> Result:
    """Continues a run that was stopped or killed. `objects`: the Python objects that the run was begun with, such as
    `model=Net, data=frame`.
    """
    from sordino.config import session
    from sordino.runs.run import resume as continue_
    from sordino.user_code import lent

    again = session.objects(objects)
    with lent(again):
        return _followed(lambda watch: continue_(Path(folder), watch), progress, track, again)


def plan(experiment: str | Path | Mapping[str, Any] | None = None, *overrides: str, **settings: Any) -> Compared:
    """Plan a run: guarantees, traffic, time, and alternatives at the same guarantee. Nothing is trained or written."""
    from sordino.runs.forecast import compare as forecast
    from sordino.user_code import lent

    plain, objects = _without_objects(settings)
    with lent(objects):
        return forecast(_source(experiment), overrides, plain)


def verify(folder: str | Path, key: str | Path | None = None, code: bool = False) -> Verdict:
    """Recomputes the receipt of a run from its ledger, without any data. `wrong` of the verdict lists what does not
    agree.

    `key`: the public key that must have signed the receipt. A user's own algorithm is imported only with `code`.
    """
    from sordino.receipts.verify import examine

    return examine(Path(folder), None if key is None else Path(key), code)


def audit(
    experiment: str | Path | Mapping[str, Any] | None = None,
    *overrides: str,
    trials: int | None = None,
    noise_seed: int = 0,
    system: bool = False,
    twin: bool = False,
    short: float | None = None,
    **settings: Any,
) -> Audit:
    """Attacks the privacy guarantee of an experiment, a run folder or a named algorithm, on worst-case neighbours.

    Nothing is trained. `trials`: releases of each neighbour (30,000); `system`: noise that no seed repeats; `twin`:
    attack a copy with too little noise behind the same claim, which the attack must catch; `short`: the share of noise
    that it lacks (0.3).
    """
    from sordino.branches import part
    from sordino.user_code import lent

    attacks = part("audits", "gates")

    plain, objects = _without_objects(settings)
    with lent(objects):
        made = attacks.experiment_of(experiment, overrides, plain)
        draws, lacks = attacks.TRIALS if trials is None else trials, attacks.SHORT if short is None else short
        found: Audit = attacks.audit(made, draws, noise_seed, system, twin, short=lacks)
        return found


def audit_trained(
    experiment: str | Path | Mapping[str, Any] | None = None,
    *overrides: str,
    canaries: int | None = None,
    seed: int = 0,
    **settings: Any,
) -> TrainedAudit:
    """Attacks the training of an experiment, or of the run in a folder: the whole run is replayed with canaries.

    `canaries`: examples or clients whose membership is guessed (1,000); `seed`: of the coins that put canaries in or
    leave them out.
    """
    from sordino.branches import part
    from sordino.user_code import lent

    attacks, trained = part("audits", "gates"), part("audits", "trained")

    plain, objects = _without_objects(settings)
    with lent(objects):
        made = attacks.experiment_of(experiment, overrides, plain)
        folder = attacks.unchanged_run(experiment, bool(overrides or settings))
        many = trained.CANARIES if canaries is None else canaries
        found: TrainedAudit = trained.audit_trained(made, folder, many, seed)
        return found


def compare(
    *experiments: str | Path | Mapping[str, Any],
    seeds: int = 3,
    out: str | Path = "runs/compare",
    target: float | None = None,
) -> Comparison:
    """Runs experiments over the same seeds: `sordino.compare("a.toml", "b.toml")`, or a sweep,
    `compare("a.toml", "lr=0.01,0.1")`.

    An experiment is a file or a table with the same keys and a `name`, which may hold objects as `run` takes them; a
    table is written into `out` first, so that the comparison can be made again.
    """
    from sordino.config import session
    from sordino.results.comparison import as_files, check_words
    from sordino.results.comparison import compare as compare_
    from sordino.user_code import lent

    check_words(experiments)
    tables, objects = session.named_in_all(
        [word for word in experiments if not isinstance(word, str) or "=" not in word]
    )
    changes = [word for word in experiments if isinstance(word, str) and "=" in word]
    with lent(objects):
        return compare_(as_files(tables, Path(out)), seeds, Path(out), changes, target)


def open_run(folder: str | Path, **objects: Any) -> Result:
    """A run that lies on disk: finished, stopped, or still going on in another process. `objects`: the Python objects
    that the run was begun with.
    """
    from sordino.config import session
    from sordino.results import open_run as open_

    return open_(folder, session.objects(objects))


def predict(
    folder: str | Path,
    rows: object,
    *,
    score: bool = False,
    with_code: bool = False,
    own: object = None,
    encoding: str | None = None,
    **objects: Any,
) -> Predicted:
    """Uses the model of a run on new examples: a file or folder, a list of dictionaries, a data frame, or an array of
    raw inputs.

    `score`: `rows` hold the true classes too, and predictions are compared with them. `with_code`: import a user's own
    model class. `own`: labelled rows of one client, on which the model is personalised first, as the clients of the run
    do. `encoding`: character encoding of files, where their first line does not show it. `objects`: the Python objects
    that the run was begun with.
    """
    from sordino.config import session
    from sordino.results.prediction import predict as predict_
    from sordino.user_code import lent

    with lent(session.objects(objects)):
        return predict_(Path(folder), rows, score, with_code, own, encoding)


def _source(experiment: str | Path | Mapping[str, Any] | None) -> Path | Mapping[str, Any] | None:
    return Path(experiment) if isinstance(experiment, str | Path) else experiment


def _without_objects(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, object]]:
    """Settings as a file would hold them, and the Python objects that names in them stand for."""
    from sordino.config import session

    plain = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in settings.items()}
    return session.named(plain)


def _followed(go: Callable[[Any], Ended], shown: bool, track: Sequence[str], objects: Mapping[str, object]) -> Result:
    from rich.console import Console

    from sordino.cli.progress import progress
    from sordino.results import Result
    from sordino.runs.trackers import tracked

    with progress(Console(stderr=True, quiet=not shown)) as watch:
        ended = tracked(go, track, watch)
    return Result(ended.folder, ended.notes, ended.interrupted, objects)
