"""Preparation of a run (its phases before the training), from its folder: devices that were asked, candidate images
that were kept, examples drawn by the generator that was sent out, and the cost.

Reading opens no ledger and takes no lock. Wrongly labelled candidates are known in simulations alone, whose source put
them there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino import keys
from sordino.accounting.facts import Fact
from sordino.algorithms.optional import PublicTensors
from sordino.algorithms.phases import AskedDevice, Facts, Phase, PhaseMessages, RunNumbers
from sordino.config import Experiment
from sordino.data.dataset import Candidates
from sordino.engine import checkpoint, wire
from sordino.errors import SordinoError
from sordino.ledger.books import PUBLIC_TENSORS
from sordino.metrics import RoundRow
from sordino.metrics.measures import Cost, MessageBytes, PlainRound, charged, messages
from sordino.planning import Agreement
from sordino.receipts.folder import RunFolder
from sordino.receipts.receipt import some_of
from sordino.results.markup import Pixels, strip
from sordino.runs.backend import ServerData, source_of
from sordino.runs.setup import PhaseSetup, RunSetup
from sordino.runs.simulation import simulated
from sordino.types import Formula

AGAIN = ("public_split", "sklearn_digits", "procedural", "folder")  # sources whose candidates cost little to make again
DEAR = ("openai_chat", "transformers")  # writers of prompts that are not asked again
CLASSES = 12  # whose images a page shows: of more, so many at even distances
PICTURES = 7  # of each kind and class, at most
ROOM = 600_000  # numbers in all pictures of a page together


Wrong = NDArray[np.bool_]  # which candidates show another class than they say
Picked = NDArray[np.int64]  # numbers of candidates


class OfClass(Fact):
    """One class of a preparation: the devices that were asked for it, and its candidates (public images)."""

    name: str
    asked: tuple[AskedDevice, ...]  # devices, and the server's measure of how well each knows the class
    candidates: int | None
    kept: int
    valid_kept: float | None
    valid: float | None


class ClassPictures(Fact):
    """Pictures of one class, as data URIs."""

    name: str
    drawn: str = ""
    kept: str = ""
    rejected: str = ""


class Gallery(Fact):
    """Pictures of candidate images, class by class."""

    rows: tuple[ClassPictures, ...]
    classes: int
    each: int
    side: int


class Preparation(Fact):
    """Facts about a preparation: its candidate images and what became of them, its messages and its cost."""

    label: str  # remark to stand beside every result
    source: str  # of candidates
    simulated: bool
    unread: str  # why nothing is known of its phases
    unknown: str  # reason why wrong candidates are not marked
    rank: str
    classes: tuple[OfClass, ...]
    messages: tuple[MessageBytes, ...]
    cost: Cost
    gallery: Gallery | None


def label_of(experiment: Experiment) -> str:
    """Warning to print beside every result where public images of the run (candidates) are not, or not known to be,
    those of a text-to-image model; else empty."""
    source = source_of(experiment)
    return "" if source is None else source.label


def gather(
    folder: Path,
    setup: PhaseSetup | None = None,
    home: ServerData | None = None,
    pictures: bool = True,
    rounds: Sequence[RoundRow] | None = None,
) -> Preparation | None:
    """Collect the facts of a preparation; None where there was none. `pictures`: include images; `rounds`: rows of the
    training that may be shown; None: all that this user may see.
    """
    run = RunFolder(folder)
    preparation = run.prepared()
    if not preparation and not run.preparation.is_dir():
        return None
    if setup is None and run.environment.site:  # the rows are elsewhere
        whole = RunSetup(run.experiment, Agreement.read(folder).public)
        setup, home = whole.phases[-1], ServerData(whole)
    elif setup is None:
        simulation = simulated(run.experiment)
        setup, home = simulation.setup, simulation.home
    phases = [one.algorithm for one in setup.preparation if isinstance(one.algorithm, Phase)]
    (facts, unread), metrics = _facts(run, setup), run.metrics() if rounds is None else rounds
    pretended = not setup.experiment.privacy.real
    candidates, absent = _candidates(setup.experiment, home)
    wrong = _wrong(candidates) if pretended else None
    if candidates is not None and wrong is None:
        absent = "their source does not know" if pretended else "only a simulation may look that up"
    plain, formula = _plain(run, setup), _formula(phases, setup, len(metrics))
    table = setup.experiment.candidates or {}
    return Preparation(
        label=label_of(setup.experiment),
        source=table.get("source", ""),
        simulated=pretended,
        unread=unread,
        unknown="" if wrong is not None else absent,
        rank=next((phase.says.ranks_by for phase in phases), ""),
        classes=_classes(setup, facts, candidates, wrong),
        messages=tuple(messages(preparation, metrics, plain, formula, _says(phases))),
        cost=charged(preparation, metrics, plain, formula),
        gallery=_gallery(run, setup, candidates, facts, wrong) if pictures else None,
    )


def _says(phases: Sequence[Phase[Any, Any, Any, Any]]) -> dict[str, tuple[str, str]]:
    """Description of each phase's messages: those to the clients and those to the server."""
    last = phases[-1].says if phases else PhaseMessages()
    return {phase.name: (phase.says.down, phase.says.up) for phase in phases} | {PUBLIC_TENSORS: (last.hands, "")}


def _facts(run: RunFolder, setup: PhaseSetup) -> tuple[Facts, str]:
    """Results of the finished phases, or the reason why they cannot be read. The bytes sent are reported in both
    cases."""
    facts = Facts()
    for phase in setup.preparation:
        try:
            loaded = checkpoint.load(run.of_phase(phase.phase).checkpoints, phase.state)
        except SordinoError as error:
            return Facts(), error.what
        if loaded is not None and isinstance(phase.algorithm, Phase) and phase.over(loaded.trees["server"]):
            facts = phase.algorithm.facts(loaded.trees["server"], facts)
    return facts, ""


def _candidates(experiment: Experiment, home: ServerData | None) -> tuple[Candidates | None, str]:
    """Make the candidates (public images) again, or return the reason why not: a folder may be gone, and drawing with a
    large model takes hours.
    """
    if source_of(experiment) is None:
        return None, "there are no candidates"
    if home is None:
        return None, "this page is made without reading the data"
    table = experiment.candidates or {}
    if table["source"] not in AGAIN or table.get("prompts", {}).get("name") in DEAR:
        return None, "their images are not drawn again for a page"
    try:
        return home.drawn, ""
    except SordinoError as error:
        return None, error.what


def _wrong(candidates: Candidates | None) -> Wrong | None:
    if candidates is None or "wrong" not in candidates.manifest:
        return None
    mask = np.zeros(len(candidates.y), bool)
    mask[candidates.manifest["wrong"]] = True
    return mask


# whom it asked, what it kept ------------------------------------------------------------------------------------------


def _classes(
    setup: PhaseSetup, facts: Facts, candidates: Candidates | None, wrong: Wrong | None
) -> tuple[OfClass, ...]:
    rows = []
    for label, name in enumerate(setup.public.class_names):
        chosen = _chosen(facts, label)
        every = None if candidates is None else np.flatnonzero(candidates.y == label)
        asked = facts.asked[label] if facts.asked else ()
        rows.append(
            OfClass(
                name=name,
                asked=tuple(asked),
                candidates=None if every is None else len(every),
                kept=len(chosen),
                valid_kept=_valid(chosen, wrong),
                valid=None if every is None else _valid(every, wrong),
            )
        )
    return tuple(rows)


def _chosen(facts: Facts, label: int) -> Picked:
    return np.asarray(facts.kept[label] if facts.kept else [], np.int64)


def _valid(rows: Picked, wrong: Wrong | None) -> float | None:
    return None if wrong is None or not len(rows) else 1 - float(wrong[rows].mean())


# what it cost ---------------------------------------------------------------------------------------------------------


def _plain(run: RunFolder, setup: PhaseSetup) -> PlainRound:
    header = wire.Header(run.environment.run, setup.experiment.digest(), 0, -1, "down")
    return PlainRound(wire.size(header, wire.schema(setup.task.init(0))), _chosen_clients(setup))


def _chosen_clients(setup: PhaseSetup) -> int:
    return max(1, round(setup.cohort.expected(len(setup.public.sizes))))


def _formula(phases: Sequence[Phase[Any, Any, Any, Any]], setup: PhaseSetup, rounds: int) -> Formula | None:
    public = RunNumbers(
        devices=len(setup.public.sizes),
        chosen=_chosen_clients(setup),
        rounds=rounds or setup.experiment.rounds,
        classes=setup.task.labels,
        model=setup.parameters,
        width=setup.task.width,
    )
    found = (phase.counted(setup.method, public) for phase in phases)
    return next((formula for formula in found if formula is not None), None)


# what it looks like ---------------------------------------------------------------------------------------------------


def _gallery(
    run: RunFolder, setup: PhaseSetup, candidates: Candidates | None, facts: Facts, wrong: Wrong | None
) -> Gallery | None:
    """Images of each class: candidates (public images) that were kept, candidates that were not, and images of the
    generator.
    """
    if setup.public.kind != "image" or not setup.preparation:
        return None
    names = setup.public.class_names
    shown = some_of(len(names), CLASSES)
    side, width, channels = setup.public.shape
    each = max(3, min(PICTURES, ROOM // (3 * len(shown) * side * width * channels)))
    x, y = _drawn(run, setup, each * len(names))

    def pictured(rows: Picked) -> str:
        if candidates is None or not any(facts.kept) or not len(rows):
            return ""
        found = rows[list(some_of(len(rows), each))]  # at even distances
        return strip(candidates.x[found], [] if wrong is None else wrong[found].tolist())

    rows = []
    for label in shown:
        chosen = _chosen(facts, label)
        every = np.zeros(0, np.int64) if candidates is None else np.flatnonzero(candidates.y == label)
        rows.append(
            ClassPictures(
                name=names[label],
                drawn=strip(x[y == label][:each]) if (y == label).any() else "",
                kept=pictured(chosen),
                rejected=pictured(np.setdiff1d(every, chosen)),
            )
        )
    if not any(row.drawn or row.kept or row.rejected for row in rows):
        return None
    return Gallery(rows=tuple(rows), classes=len(names), each=each, side=side)


def _drawn(run: RunFolder, setup: PhaseSetup, count: int) -> tuple[Pixels, NDArray[np.int64]]:
    """Examples that a client of this size would draw from the tensors that clients receive before round 1; none before
    they were sent."""
    nothing = np.zeros((0, *setup.public.shape), np.uint8), np.zeros(0, np.int64)
    if not run.tensors_file.exists():
        return nothing
    public_tensors = checkpoint.tensors(run.tensors_file)
    made = PublicTensors.of(setup.algorithm).public_examples(
        setup.task, public_tensors, count, keys.fold(setup.key, "pictures of a report")
    )
    return nothing if made is None else (made.x.cpu().numpy(), made.y.cpu().numpy())
