"""Interface of an attack on a run, the registry of attacks by name, and all attacks on one run (`assault`).

An attack is a class in `methods/`, which has a file for each family; there is no other list of attacks. An attack gets
a view that holds only what the attacker sees. Only the judge of its kind (`reconstruction`, `methods/members`,
`methods/malicious_clients`) gets the ground truth, so an attack cannot cheat. Every attack is compared with two
controls: the best guess without any observation, and the same attack on the same run without protection, where it must
succeed. An attack that fails there shows nothing.

attack.json has the results. It holds images of the training data, which the owner of a simulation has anyway. Runs
whose noise protects real people are refused: attack the same experiment with seeded noise instead.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from sordino.accounting.claims import Adversary
from sordino.attacks.attacked_run import AttackedRun, AttackSettings
from sordino.audits.replay import check_allowed
from sordino.config import Experiment
from sordino.errors import ConfigError, Range, RunError, check_range
from sordino.ledger.files import atomic_write
from sordino.ledger.ledger import Ledger, of_run
from sordino.receipts.folder import RunFolder
from sordino.receipts.private import key_of_data
from sordino.results.findings import UNPOISONED, UNSEEN, AttackFinding, AttackResults, Verdict
from sordino.runs.simulation import settle, simulated

BLIND = "it fails on the same run without protection, too: so it shows nothing here"


@dataclass(frozen=True)
class Attack(ABC):
    """Base class of attacks. The first sentence of an attack's docstring describes it to users."""

    sees: ClassVar[Adversary]  # the weakest adversary that can run it
    costly: ClassVar[bool] = False  # it trains whole runs, or a round many times: run only where it is named
    names: ClassVar[dict[str, type[Attack]]] = {}

    def __init_subclass__(cls, name: str = "", **others: object) -> None:
        super().__init_subclass__(**others)
        if name:
            Attack.names[name] = cls

    @classmethod
    def called(cls) -> str:
        return next(name for name, kind in Attack.names.items() if kind is cls)

    @classmethod
    def what(cls) -> str:
        """The attack's description in one sentence."""
        return " ".join((cls.__doc__ or "").split("\n\n")[0].split())

    @abstractmethod
    def unfit(self, run: AttackedRun) -> str:
        """Reason why the attack does not fit this run; empty if it does."""

    def untried(self, run: AttackedRun, why: str) -> AttackFinding:
        """The finding for an attack that is not run, for the reason `why`."""
        by = run.by or type(self).sees
        return AttackFinding(
            attack=self.called(),
            what=self.what(),
            sees=by,
            verdict="not tried",
            why=why,
            promises=run.against(by),
        )

    @abstractmethod
    def play(self, run: AttackedRun) -> AttackFinding:
        """Runs the attack and its controls; returns the finding."""


MEANT = {  # usual names of kinds of attacks, and the attacks of that kind
    "membership": "loss_threshold or lira",
    "inversion": "dlg, idlg or inverting_gradients",
    "reconstruction": "dlg, idlg or inverting_gradients",
    "property": "brightness",
    "poisoning": "label_flip, sign_flip or scaling",
}


def judged(value: float, baseline: float, control: float | None, margin: float) -> tuple[Verdict, str]:
    """The verdict on a figure of which larger values are worse for the attacked clients: the attack succeeds if it
    exceeds the blind guess (`baseline`) by `margin`. An attack that fails even without protection (`control`) shows
    nothing.
    """
    if control is not None and control < baseline + margin:
        return "no power", BLIND
    if value >= baseline + margin:
        return "reached", "the attacker gets more than a guess"
    if control is None:
        return "stopped", "no better than a guess; its success on the run without protection is not known"
    return "stopped", "no better than a guess, while it succeeds on the run without protection"


def registered(known: Sequence[str] | None = None) -> dict[str, type[Attack]]:
    """Attacks by name: the named ones, or all except costly ones."""
    from sordino.attacks.methods import ATTACKS

    if known is None:
        return {name: kind for name, kind in ATTACKS.items() if not kind.costly}
    for name in known:
        if name not in ATTACKS:
            raise ConfigError(
                f"unknown attack: {name!r}",
                why=f"attacks are {', '.join(ATTACKS)}",
                fix=(f"choose {MEANT[name]}: " if name in MEANT else "")
                + "`sordino attack --list` describes each of them",
                code="unknown-attack",
            )
    return {name: ATTACKS[name] for name in known}


def assault(
    experiment: Experiment,
    folder: Path | None = None,
    names: Sequence[str] | None = None,
    asked: AttackSettings | None = None,
    by: Adversary | None = None,
    tell: Callable[[str], object] = lambda what: None,
) -> AttackResults:
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
    return AttackResults(
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
    files = RunFolder(folder)
    with Ledger.as_founded(files.ledger) as ledger:
        digests = [entry.digest for entry in of_run(ledger, files.environment.run)]
    if whole.digest.hex() not in digests:
        raise RunError(
            f"a replay of round {run.asked.round} does not reproduce the release of the run in {folder}",
            why="the data, the library or the machine differ from those of the run",
            fix="attack its experiment instead: `sordino attack RUN/experiment.toml`",
            code="replay-differs",
        )
    return "A replay of the whole round gave the very bytes that the run's ledger holds a digest of."


def write(found: AttackResults, folder: Path) -> Path:
    """Write attack.json into the run's folder, readable by its owner alone."""
    check_allowed(RunFolder(folder).experiment, folder)
    atomic_write(RunFolder(folder).attack_file, json.dumps(found.to_json()).encode(), private=True)
    return RunFolder(folder).attack_file
