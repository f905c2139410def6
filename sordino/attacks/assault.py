"""All attacks on one run, and the file that they leave: attack.json.

The file holds images of the training data. A simulation's owner has them anyway. Where noise protects real people
nothing is attacked and nothing is written: whoever wants to know attacks the same experiment with seeded noise.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from sordino.attacks.attack import AttackFinding, registered
from sordino.attacks.attacked_run import AttackedRun, AttackSettings
from sordino.attacks.replay import Replay
from sordino.config import Experiment
from sordino.engine.checkpoint import atomic_write
from sordino.errors import PrivacyError, RunError
from sordino.ledger.claims import Adversary
from sordino.ledger.facts import Fact
from sordino.ledger.ledger import Ledger, of_run
from sordino.ledger.notes import SYSTEM
from sordino.runs.folder import RunFolder
from sordino.runs.private import key_of_data
from sordino.runs.simulation import settle, simulated

FORMAT = 1
WARNING = "This file holds images of the training data. It is for whoever owns them, and for nobody else."
UNSEEN = (
    "attackers who send something false",
    "attackers who see several rounds together",
    "how long things take",
    "attacks that nobody has written down yet",
)


class Assault(Fact):
    """What attackers reached of one run: the content of attack.json."""

    warning: str = WARNING
    format: int = FORMAT
    algorithm: str
    experiment: str  # its digest
    round: int
    clients: tuple[int, ...]
    images: int  # that each attacked client holds in the attacked round; 0: all that it has
    seed: int
    simulated: bool
    replay: str  # how far the round is known to be the one that was played
    found: tuple[AttackFinding, ...]
    not_looked_at: tuple[str, ...] = UNSEEN

    def to_json(self) -> dict[str, object]:
        """The file stands by itself: it says what never changes, too."""
        return self.model_dump(mode="json", exclude_none=True)

    @property
    def setting(self) -> str:
        """What was attacked, in a sentence."""
        many = f"{self.images} of its images" if self.images else "all of its images"
        who = ", ".join(map(str, self.clients))
        return f"Listened to was round {self.round}, in which each attacked client ({who}) holds {many}. {self.replay}"

    def having(self, *verdicts: str) -> list[AttackFinding]:
        return [one for one in self.found if one.verdict in verdicts]


def check_allowed(experiment: Experiment, folder: Path | None = None) -> None:
    """Refuses runs of real people: nothing of their data may be drawn, or written down."""
    between = folder is not None and bool(RunFolder(folder).environment.site)
    if experiment.privacy.noise == SYSTEM or between:
        raise PrivacyError(
            "this run protects real people, and is not attacked",
            why="attacks draw images of the training data and keep them in a file; between sites nobody has these data",
            fix="attack the same experiment as a simulation, on data that you may show: `sordino attack "
            "EXPERIMENT.toml privacy.noise=counter`",
            code="attack-on-real-run",
        )


def assault(
    experiment: Experiment,
    folder: Path | None = None,
    names: Sequence[str] | None = None,
    asked: AttackSettings | None = None,
    by: Adversary | None = None,
    tell: Callable[[str], object] = lambda what: None,
) -> Assault:
    """Attacks an experiment, or the run in a folder, which is replayed."""
    asked, attacks = asked or AttackSettings(), registered(names)
    check_allowed(experiment, folder)
    key = b"" if folder is None else key_of_data(folder, experiment.privacy.ledger)
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
    )


def _replayed(run: AttackedRun, folder: Path | None) -> str:
    """What the attacked round is, and how far it is known to be the one that was played."""
    if folder is None:
        return "It is the round that the experiment would play."
    whole = Replay(run.simulation).until(run.asked.round - 1).round()
    mine = RunFolder(folder)
    with Ledger.as_founded(mine.ledger) as ledger:
        told = [entry.digest for entry in of_run(ledger, mine.environment.run)]
    if whole.digest.hex() not in told:
        raise RunError(
            f"a replay of round {run.asked.round} does not give what the run in {folder} has released",
            why="the data, the library or the machine are not those that it was made with",
            fix="attack its experiment instead: `sordino attack RUN/experiment.toml`",
            code="replay-differs",
        )
    return "A replay of the whole round gave the very bytes that the run's ledger holds a digest of."


def write(found: Assault, folder: Path) -> Path:
    """attack.json in the run's folder, for its owner alone."""
    check_allowed(RunFolder(folder).experiment, folder)
    atomic_write(RunFolder(folder).attack_file, json.dumps(found.to_json()).encode(), private=True)
    return RunFolder(folder).attack_file
