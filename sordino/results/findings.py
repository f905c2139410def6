"""Findings of an audit of a trained run (audit.json) and of attacks on a run (attack.json), with figures, images as
bytes, and the guarantees they are compared with. Reading them needs no tensor.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from sordino.accounting.claims import Adversary, Status, Subject, standing
from sordino.accounting.facts import FORMAT, Epsilon, Fact, Format, Number, at_least_text, epsilon_text
from sordino.accounting.statement import Promised
from sordino.ledger.files import atomic_write
from sordino.receipts import LeftInRun
from sordino.receipts.folder import RunFolder
from sordino.results.markup import Pixels, png

TrainedVerdict = Literal[
    "holds", "VIOLATED", "no power", "proves nothing", "not attacked", "nothing to audit: infinity is claimed"
]
NEEDS = {
    "at_least": "that the noise of each canary's direction is independent of the others', and of the promised kind",
    "at_least_by_coins": "fair and independent coins, nothing else",
}
AUDIT_AGAIN = "audit the run again: `sordino audit RUN --trained` writes the file anew"


class ReplayedCanaries(Fact):
    """Lower bounds on epsilon for one guarantee, from guesses about canaries in replays of the run."""

    canaries: int
    right: int  # guesses
    at_least: Epsilon  # where canaries are independent
    at_delta: float
    claimed_there: Epsilon
    at_least_by_coins: Epsilon  # at the guarantee's delta, under any dependence between canaries

    def refutes(self, claimed: float) -> bool:
        return self.at_least > self.claimed_there or self.at_least_by_coins > claimed


class AuditPower(Fact):
    """Power of an audit: which broken twins it noticed, that is, copies of the run with too little noise behind the
    same claim. `caught`: the factor by which noise was too small in the twin that the audit refuted; `missed`: the
    factors in twins that it did not refute.
    """

    caught: float | None = None
    missed: tuple[float, ...] = ()
    twin: ReplayedCanaries | None = None  # the last one that was tried


class AuditedPromise(Subject):
    """Guarantee of a whole run, and lower bounds on its epsilon. `played` is missing where no canary can be placed."""

    budget: Epsilon | None = None  # of the clients that it is about, where each has its own
    claimed: Epsilon
    delta: float
    status: Status
    releases: int  # that count about one canary, at most
    replays: int
    prepared: bool = False  # were canaries in the phases before the training, too?
    verdict: TrainedVerdict
    why: str
    played: ReplayedCanaries | None = None
    power: AuditPower = AuditPower()

    @property
    def in_figures(self) -> tuple[str, ...]:
        """Texts of a row: unit, adversary, claim, the two lower bounds, and the number of right guesses."""
        claimed = f"{epsilon_text(self.claimed)}, {standing(self.status, True)}, at {self.delta:g}"
        played = self.played
        who = f"{self.unit}, {self.neighbours}" + ("" if self.budget is None else f"\nbudget {self.budget:g}")
        if played is None:
            return who, self.adversary, claimed, "", "", ""
        if played.at_delta != self.delta:
            claimed += f"\n{epsilon_text(played.claimed_there)} at {played.at_delta:g}"
        share = f" ({played.at_least / played.claimed_there:.0%})" if played.claimed_there else ""
        at_least = f"{at_least_text(played.at_least)} at {played.at_delta:g}{share}"
        by_coins = f"{at_least_text(played.at_least_by_coins)} at {self.delta:g}"
        return who, self.adversary, claimed, at_least, by_coins, f"{played.right} of {played.canaries}"

    @property
    def noticed(self) -> str:
        """Power of the audit in a sentence; empty where it is unknown."""
        caught, twin = self.power.caught, self.power.twin
        if caught is None or twin is None:
            return ""
        missed = ", / ".join(f"{weak:g}" for weak in self.power.missed)
        return (
            f"Power: a broken twin with noise / {caught:g} behind the same claim was caught"
            f"{f' (noise / {missed} was not)' if missed else ''}: it loses at least {at_least_text(twin.at_least)} at "
            f"{twin.at_delta:g}, with {twin.right} of {twin.canaries} right."
        )


COLUMNS = ("unit", "against", "claimed", "at least", "by coins alone", "right guesses", "verdict")


class TrainedAudit(LeftInRun):
    """Content of audit.json: the audit of one trained run."""

    format: int = 1
    algorithm: str
    rounds: int
    verdict: TrainedVerdict  # the worst one of all guarantees
    promises: tuple[AuditedPromise, ...]
    unprotected: tuple[str, ...]  # units and adversaries of whom infinity is claimed
    needs: dict[str, str] = NEEDS
    not_looked_at: tuple[str, ...]
    wrong: float  # probability that a true guarantee is refuted
    simulated: bool = True
    seed: int

    @property
    def meaning(self) -> str:
        """Explanation of the bounds and of their error probability, to stand below the table of promises."""
        return (
            f"Each promise is of the whole run of {self.rounds} rounds. Each verdict is wrong with probability "
            f"{self.wrong:.0e} at most. At least: needs {NEEDS['at_least']}. By coins alone: needs "
            f"{NEEDS['at_least_by_coins']}."
        )


def write(found: TrainedAudit, folder: Path) -> Path:
    """Write audit.json into the run's folder."""
    path = RunFolder(folder).audit_file
    atomic_write(path, (found.model_dump_json(exclude_none=True, indent=1) + "\n").encode())
    return path


def read_audit(folder: Path) -> TrainedAudit | None:
    """Read audit.json of a run; None where it is absent."""
    run = RunFolder(folder)
    return run.found(run.audit_file, TrainedAudit, AUDIT_AGAIN)


Verdict = Literal["broken", "reached", "stopped", "no power", "not tried"]
SIDE = 64  # of an image in a picture, about
GAP = 4
ATTACK_AGAIN = "attack the run again: `sordino attack RUN` writes the file anew"
WARNING = "This file holds images of the training data. It is for whoever owns them, and for nobody else."
UNPOISONED = "attackers who send something false"
UNSEEN = (
    UNPOISONED,
    "attackers who see several rounds together",
    "how long things take",
    "attacks that nobody has written down yet",
)


class BesideGuess(Fact):
    """One measure that an attack reached, beside the same measure of a guess and of the run without protection."""

    name: str
    unit: str = ""
    value: Number
    baseline: Number  # by a guess
    control: Number | None = None  # of the same attack on the same run without protection; None where there is no such
    low: Number | None = None  # of an interval around the value, at `level`
    high: Number | None = None
    level: float | None = None


class PictureRow(Fact):
    """Images side by side: a caption and their bytes."""

    caption: str
    shape: tuple[int, int, int, int]  # [n, height, width, 1 or 3]
    pixels: str  # base64


class Roc(Fact):
    """ROC curve of an attack on membership: points (false positive rate, true positive rate), and the guarantee that
    bounds them.
    """

    points: tuple[tuple[float, float], ...]  # (false alarms, found)
    control: tuple[tuple[float, float], ...] = ()
    bound: Promised | None = None  # of the release that was attacked: found <= e^epsilon alarms + delta


class AttackFinding(Fact):
    """Result of one attack."""

    attack: str
    what: str  # it does, in a sentence
    sees: Adversary
    verdict: Verdict
    why: str  # of the verdict, in a sentence
    measured: tuple[BesideGuess, ...] = ()  # the headline first
    pictures: tuple[PictureRow, ...] = ()
    roc: Roc | None = None
    promises: tuple[Promised, ...] = ()  # that the run makes against this attacker
    heads: tuple[str, str] = ("guess", "without protection")  # headings of the columns beside each figure
    whole: bool = False  # true: the attack replays the whole run; false: it observes one round


class AttackResults(LeftInRun):
    """Content of attack.json: the results of all attacks on one run."""

    warning: str = WARNING
    format: Format = FORMAT
    algorithm: str
    round: int
    clients: tuple[int, ...]
    images: int  # that each attacked client holds in the attacked round; 0: all that it has
    seed: int
    simulated: bool
    replay: str  # how far it is verified that the replayed round equals that of the run
    found: tuple[AttackFinding, ...]
    not_looked_at: tuple[str, ...] = UNSEEN

    @property
    def setting(self) -> str:
        """The attacked clients, round and examples, in a sentence."""
        if self.found and all(one.whole or one.verdict == "not tried" for one in self.found):
            return "The whole run was played with attackers among its clients, and without."
        many = f"{self.images} of its examples" if self.images else "all of its examples"
        who = ", ".join(map(str, self.clients))
        return f"Listened to was round {self.round}, in which each attacked client ({who}) holds {many}. {self.replay}"

    def having(self, *verdicts: str) -> list[AttackFinding]:
        return [one for one in self.found if one.verdict in verdicts]


def pixels(row: PictureRow) -> Pixels:
    return np.frombuffer(base64.b64decode(row.pixels), np.uint8).reshape(row.shape)


def sheet(rows: Sequence[PictureRow]) -> Pixels:
    """One image of rows of images on white, with red, green, blue and opacity."""
    each = [pixels(row) for row in rows]
    scale = max(1, SIDE // each[0].shape[2])
    tall, wide = scale * each[0].shape[1] + GAP, scale * each[0].shape[2] + GAP
    most = max(len(images) for images in each)
    made = np.full((tall * len(each) + GAP, wide * most + GAP, 4), 255, np.uint8)
    for i, images in enumerate(each):
        for j, image in enumerate(images):
            large = image.repeat(scale, 0).repeat(scale, 1)
            top, left = GAP + i * tall, GAP + j * wide
            made[top : top + len(large), left : left + large.shape[1], :3] = large
    return made


def drawn(found: AttackResults, folder: Path) -> list[Path]:
    """Write one PNG for each attack with images: original, reconstruction, without protection, guess, from top to
    bottom.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for one in found.found:
        if one.pictures:
            path = folder / f"{one.attack}.png"
            atomic_write(path, png(sheet(one.pictures)), private=True)
            written.append(path)
    return written


def read_attacks(folder: Path) -> AttackResults | None:
    """Read attack.json of a run; None where it is absent."""
    run = RunFolder(folder)
    return run.found(run.attack_file, AttackResults, ATTACK_AGAIN)


def figures(one: BesideGuess) -> tuple[str, str, str]:
    """One measure as three texts: the value that was reached, that of a guess, and that of the run without
    protection.
    """
    unit = f" {one.unit}" if one.unit else ""
    ends = "" if one.low is None or one.high is None else f" ({one.low:.3g} to {one.high:.3g}, {one.level or 0:.0%})"
    control = "unknown" if one.control is None else f"{one.control:.3g}{unit}"
    return f"{one.value:.3g}{unit}{ends}", f"{one.baseline:.3g}{unit}", control
