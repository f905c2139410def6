"""All attacks on one run, and their results in attack.json.

The file holds images of the training data, which the owner of a simulation has anyway. Runs whose noise protects real
people are refused: attack the same experiment with seeded noise instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from sordino.accounting.claims import Adversary
from sordino.attacks.attack import registered
from sordino.attacks.attacked_run import AttackedRun, AttackSettings
from sordino.audits.replay import check_allowed
from sordino.config import Experiment
from sordino.errors import Range, RunError, check_range
from sordino.ledger.files import atomic_write
from sordino.ledger.ledger import Ledger, of_run
from sordino.receipts.folder import RunFolder
from sordino.receipts.private import key_of_data
from sordino.results.findings import UNPOISONED, UNSEEN, Assault
from sordino.runs.simulation import settle, simulated


def assault(
    experiment: Experiment,
    folder: Path | None = None,
    names: Sequence[str] | None = None,
    asked: AttackSettings | None = None,
    by: Adversary | None = None,
    tell: Callable[[str], object] = lambda what: None,
) -> Assault:
    """Attack an experiment, or a finished run in a folder, which is replayed. `names`: of the attacks; `by`: the
    adversary, in place of each attack's own; `tell`: called with the name of each attack before it runs.
    """
    asked, attacks = asked or AttackSettings(), registered(names)
    check_allowed(experiment, folder)
    played = experiment.rounds if folder is None else len(RunFolder(folder).public_metrics())
    why = f"attackers observe one round, and the run {'would play' if folder is None else 'has played'} {played}"
    check_range("--round", asked.round, Range(least=1, most=played, whole=True), "no-such-round", why=why)
    key = b"" if folder is None else key_of_data(folder)
    run = AttackedRun(simulated(settle(experiment), key), asked, by)
    found = []
    for name, kind in attacks.items():
        tell(name)
        attack = kind()
        why = attack.unfit(run)
        found.append(attack.untried(run, why) if why else attack.play(run))
    return Assault(
        algorithm=str(experiment.algorithm.get("name")),
        experiment=experiment.digest(),
        round=asked.round,
        clients=run.clients,
        images=asked.images,
        seed=asked.seed,
        simulated=True,
        replay=_replayed(run, folder),
        found=tuple(found),
        not_looked_at=tuple(what for what in UNSEEN if what != UNPOISONED or not any(one.whole for one in found)),
    )


def _replayed(run: AttackedRun, folder: Path | None) -> str:
    """A sentence on how far it is verified that the replayed round equals that of the run."""
    if folder is None:
        return "It is the round that the experiment would play."
    whole = run.rounds(bare=False).round()
    mine = RunFolder(folder)
    with Ledger.as_founded(mine.ledger) as ledger:
        told = [entry.digest for entry in of_run(ledger, mine.environment.run)]
    if whole.digest.hex() not in told:
        raise RunError(
            f"a replay of round {run.asked.round} does not reproduce the release of the run in {folder}",
            why="the data, the library or the machine differ from those of the run",
            fix="attack its experiment instead: `sordino attack RUN/experiment.toml`",
            code="replay-differs",
        )
    return "A replay of the whole round gave the very bytes that the run's ledger holds a digest of."


def write(found: Assault, folder: Path) -> Path:
    """Write attack.json into the run's folder, readable by its owner alone."""
    check_allowed(RunFolder(folder).experiment, folder)
    atomic_write(RunFolder(folder).attack_file, json.dumps(found.to_json()).encode(), private=True)
    return RunFolder(folder).attack_file
