"""What a run did before its first round, from its folder: whom it asked, which candidates it kept, what its generator
draws, what that cost.

SlaugFL, IEEE Transactions on Mobile Computing, 2024, sections 6 to 9. No ledger is opened and no lock taken. Which
candidates show another class than they say is looked up in simulations alone, where the source put them there itself:
nobody else could know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from sordino import config, keys, tree
from sordino.algorithms.slaug.prepare import Train
from sordino.algorithms.slaug.training import Calibrated
from sordino.config import Experiment
from sordino.engine import checkpoint, wire
from sordino.errors import SordinoError
from sordino.evaluate.preparation_cost import Plain, charged, messages
from sordino.evaluate.traffic import Sizes
from sordino.generators import nets
from sordino.public_images import Candidates
from sordino.report.pictures import strip
from sordino.runs.folder import HANDED, read_environment, read_metrics, read_preparation
from sordino.runs.home import ServersHome, source_of
from sordino.runs.receipt import some_of
from sordino.runs.setup import Setup
from sordino.runs.simulation import simulated

AGAIN = ("public_split", "sklearn_digits", "procedural", "folder")  # sources whose candidates cost little to make again
DEAR = ("openai_chat", "transformers")  # who wrote prompts and is not asked again
CLASSES = 12  # whose images a page shows: of more, so many at even distances
PICTURES = 7  # of each kind and class, at most
ROOM = 600_000  # numbers in all pictures of a page together


def label_of(experiment: Experiment) -> str:
    """What must be said beside every result of an experiment with candidates; nothing where there are none, or real
    text-to-image ones.
    """
    source = source_of(experiment)
    return "" if source is None else source.label


def gather(
    folder: Path,
    setup: Setup | None = None,
    home: ServersHome | None = None,
    pictures: bool = True,
    rounds: Sequence[dict[str, Any]] | None = None,
) -> dict[str, Any] | None:
    """None where nothing came before the first round. `rounds`: of the training, as they may be shown; None: as this
    user may see them."""
    preparation = read_preparation(folder)
    if not preparation and not (folder / "preparation").is_dir():
        return None
    if setup is None:
        simulation = simulated(config.load(folder / "experiment.toml"))
        setup, home = simulation.setup, simulation.home
    (states, unread), metrics = _states(folder, setup), read_metrics(folder) if rounds is None else rounds
    pretended = setup.experiment.privacy.noise == "counter"
    candidates, absent = _candidates(setup.experiment, home)
    wrong = _wrong(candidates) if pretended else None
    if candidates is not None and wrong is None:
        absent = "their source does not tell" if pretended else "only a simulation may look that up"
    kept = next((state.kept for state in reversed(states.values()) if hasattr(state, "kept")), None)
    plain, sizes = _plain(folder, setup), _sizes(setup, len(metrics))
    table = setup.experiment.candidates or {}
    return {
        "label": label_of(setup.experiment),
        "source": table.get("source", ""),
        "simulated": pretended,
        "unread": unread,  # why nothing is known of its phases
        "unknown": "" if wrong is not None else absent,  # why nobody says which candidates are wrong
        "rank": _rank(setup),
        "classes": _classes(setup, states, candidates, kept, wrong),
        "messages": messages(preparation, metrics, plain, sizes),
        "cost": charged(preparation, metrics, plain, sizes),
        "gallery": _gallery(folder, setup, candidates, kept, wrong) if pictures else None,
    }


def _states(folder: Path, setup: Setup) -> tuple[dict[str, Any], str]:
    """The server's state at the end of each phase that is over; or why it cannot be read: the bytes it cost are told
    all the same.
    """
    found = {}
    for mine in setup.preparation:
        try:
            loaded = checkpoint.load(folder / "preparation" / mine.phase / "checkpoints", mine.state)
        except SordinoError as error:
            return {}, error.what
        if loaded is not None and mine.over(loaded.trees["server"]):
            found[mine.phase] = loaded.trees["server"]
    return found, ""


def _candidates(experiment: Experiment, home: ServersHome | None) -> tuple[Candidates | None, str]:
    """Made again, or why not: a folder may be gone, and drawing with a large model takes hours."""
    if source_of(experiment) is None:
        return None, "there are no candidates"
    if home is None:
        return None, "the data are not looked at for this page"
    table = experiment.candidates or {}
    if table["source"] not in AGAIN or table.get("prompts", {}).get("name") in DEAR:
        return None, "their images are not drawn again for a page"
    try:
        return home.drawn, ""
    except SordinoError as error:
        return None, error.what


def _wrong(candidates: Candidates | None) -> np.ndarray[Any, Any] | None:
    if candidates is None or "wrong" not in candidates.manifest:
        return None
    mask = np.zeros(len(candidates.y), bool)
    mask[candidates.manifest["wrong"]] = True
    return mask


# whom it asked, what it kept ------------------------------------------------------------------------------------------


def _classes(
    setup: Setup,
    states: Mapping[str, Any],
    candidates: Candidates | None,
    kept: Tensor | None,
    wrong: np.ndarray[Any, Any] | None,
) -> list[dict[str, Any]]:
    rows = []
    for label, name in enumerate(setup.public.class_names):
        chosen = _chosen(kept, label)
        every = None if candidates is None else np.flatnonzero(candidates.y == label)
        rows.append(
            {
                "name": name,
                "asked": _asked(states, label),
                "candidates": None if every is None else len(every),
                "kept": len(chosen),
                "valid_kept": _valid(chosen, wrong),
                "valid": None if every is None else _valid(every, wrong),
            }
        )
    return rows


def _chosen(kept: Tensor | None, label: int) -> np.ndarray[Any, Any]:
    rows = np.zeros(0, np.int64) if kept is None else kept[label].numpy()
    return rows[rows >= 0]


def _valid(rows: np.ndarray[Any, Any], wrong: np.ndarray[Any, Any] | None) -> float | None:
    return None if wrong is None or not len(rows) else 1 - float(wrong[rows].mean())


def _asked(states: Mapping[str, Any], label: int) -> list[dict[str, Any]]:
    """Devices in the order in which they were asked for a class: by rank, whatever slot was waiting."""
    if "train" not in states or "ask" not in states:
        return []
    ranked, asking = states["train"], states["ask"]
    mine = asking.slots == label
    if not bool(mine.any()):
        return []
    answered = set(asking.place[mine & (asking.state == 1)].tolist())
    devices = asking.order[: int(asking.place[mine].max()) + 1, label].tolist()
    return [
        {
            "device": k,
            "answered": rank in answered,
            "f1": float(ranked.f1[k, label]),
            "recall": float(ranked.recall[k, label]),
        }
        for rank, k in enumerate(devices)
    ]


# what it cost ---------------------------------------------------------------------------------------------------------


def _plain(folder: Path, setup: Setup) -> Plain:
    run = read_environment(folder)["run"]
    header = wire.Header(run, setup.experiment.digest(), 0, -1, 0, "down")
    return Plain(wire.size(header, wire.schema(setup.task.init(0))), _chosen_clients(setup))


def _chosen_clients(setup: Setup) -> int:
    return max(1, round(setup.cohort.expected(len(setup.public.sizes))))


def _rank(setup: Setup) -> str:
    """By what devices are ranked, where they are."""
    first = setup.preparation[0].method if setup.preparation else None
    return first.rank if isinstance(first, Train) else ""


def _sizes(setup: Setup, rounds: int) -> Sizes | None:
    """What formula (18) counts; nothing where devices send no models, of which it knows."""
    training = setup.method
    if not any(mine.phase == "train" for mine in setup.preparation) or not isinstance(training, Calibrated):
        return None
    return Sizes(
        devices=len(setup.public.sizes),
        chosen=_chosen_clients(setup),
        rounds=rounds or setup.experiment.rounds,
        classes=setup.task.labels,
        model=tree.size(setup.task.init(0)),
        generator=nets.parameters(training.drawn_by),
        prototype=setup.task.width,
    )


# what it looks like ---------------------------------------------------------------------------------------------------


def _gallery(
    folder: Path,
    setup: Setup,
    candidates: Candidates | None,
    kept: Tensor | None,
    wrong: np.ndarray[Any, Any] | None,
) -> dict[str, Any] | None:
    """Per class some candidates that were kept, some that were not, and some images of the generator."""
    if setup.public.kind != "image" or not setup.preparation:
        return None
    names = setup.public.class_names
    shown = some_of(len(names), CLASSES)
    side, width, channels = setup.public.shape
    each = max(3, min(PICTURES, ROOM // (3 * len(shown) * side * width * channels)))
    x, y = _drawn(folder, setup, each * len(names))
    rows = []
    for label in shown:
        strips = {"drawn": strip(x[y == label][:each])} if (y == label).any() else {}
        if candidates is not None and kept is not None and bool((kept >= 0).any()):
            chosen = _chosen(kept, label)
            others = np.setdiff1d(np.flatnonzero(candidates.y == label), chosen)
            for kind, found in (("kept", _spread(chosen, each)), ("rejected", _spread(others, each))):
                if len(found):
                    strips[kind] = strip(candidates.x[found], [] if wrong is None else wrong[found].tolist())
        rows.append({"name": names[label], **strips})
    return {"rows": rows, "classes": len(names), "each": each, "side": side} if any(len(r) > 1 for r in rows) else None


def _spread(rows: Sequence[int] | np.ndarray[Any, Any], most: int) -> np.ndarray[Any, Any]:
    """At even distances."""
    return np.asarray(rows)[list(some_of(len(rows), most))]


def _drawn(folder: Path, setup: Setup, count: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """What a client of so many examples would draw from what was handed out; nothing where that is still to come."""
    place = folder / HANDED
    if not place.exists():
        return np.zeros((0, *setup.public.shape), np.uint8), np.zeros(0, np.int64)
    handed = checkpoint.tensors(place)
    made = setup.algorithm.equip(setup.task, handed, count, keys.fold(setup.key, "pictures of a report"))
    if made is None:
        return np.zeros((0, *setup.public.shape), np.uint8), np.zeros(0, np.int64)
    return made.x.numpy(), made.y.numpy()
