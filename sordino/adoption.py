"""A preparation that another run has made, taken over: what comes after it can be tried in many ways without paying for it again in time.

It is the same release. Its ledger entries come with it, charges too, so the receipt of the new run says what both phases lose. Runs that share a preparation on
ledgers of their own know nothing of each other's training, as all such runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sordino import config, tree
from sordino.assemble import Parts
from sordino.engine import checkpoint
from sordino.engine.checkpoint import atomic_write
from sordino.errors import RunError
from sordino.folder import PREPARATION, check_is_run
from sordino.ledger.ledger import State
from sordino.receipt import opened

DEPENDS = ("seed", "data", "partition", "model", "candidates")  # tables that every preparation looks at


def source_of(parts: Parts, folder: Path) -> Parts:
    """Of the run whose preparation shall be taken over; refuses one that is not over, or is not what this experiment would make."""
    check_is_run(folder)
    other = Parts(config.load(folder / "experiment.toml"))
    if not parts.preparation or not other.preparation:
        raise RunError(
            f"there is no preparation to take from {folder}",
            why="its algorithm makes none" if parts.preparation else "this experiment makes none",
            fix="leave --prepared out",
            code="nothing-prepared",
        )
    differs = [name for name, (mine, its) in _compared(parts, other).items() if mine != its]
    if differs:
        raise RunError(
            f"{folder} has prepared something else",
            why=f"not the same here: {', '.join(differs)}",
            fix="change back what differs, or leave --prepared out and prepare again",
            code="prepared-otherwise",
        )
    for mine in other.preparation:
        loaded = checkpoint.load(folder / "preparation" / mine.phase / "checkpoints", mine.state)
        if loaded is None or not mine.algorithm.over(loaded.trees["server"]):
            raise RunError(
                f"{folder} is still preparing",
                why=f"its phase {mine.phase} is not over",
                fix=f"`sordino resume {folder}` finishes it",
                code="still-preparing",
            )
    return other


def _compared(parts: Parts, other: Parts) -> dict[str, tuple[Any, Any]]:
    both = parts, other
    tables = [each.experiment.model_dump(mode="json", include={*DEPENDS}) for each in both]
    found: dict[str, tuple[Any, Any]] = {f"[{name}]": (tables[0][name], tables[1][name]) for name in DEPENDS}
    found["how the preparation is done"] = _of_each(both, lambda one: [repr(p.algorithm) for p in one.preparation])
    found["the outputs of the model"] = _of_each(both, lambda one: tree.size(one.task.init(0)))
    found["what a budget leaves for it"] = _of_each(
        both, lambda one: [(repr(p.plan.pricing), p.plan.portion, p.plan.fixed) for p in one.preparation]
    )
    found["privacy.noise"] = _of_each(both, lambda one: one.experiment.privacy.noise)
    found["engine.precision"] = _of_each(both, lambda one: one.engine.precision)
    return found


def _of_each(both: tuple[Parts, Parts], of: Any) -> tuple[Any, Any]:
    return of(both[0]), of(both[1])


def adopt(parts: Parts, folder: Path, run: str, ledger: Path, source: Path) -> None:
    """Phase by phase into a new run folder: first the ledger, then the rows, then the checkpoint by which the phase is over. Cut short, it is done again."""
    places = {mine.phase: folder / "preparation" / mine.phase / "checkpoints" for mine in parts.preparation}
    if all(checkpoint.latest(place) is not None for place in places.values()):
        return
    _, theirs = opened(source)
    with theirs.ledger:
        entries = theirs.entries()
    rows = (source / PREPARATION).read_bytes()
    for mine in parts.preparation:
        if checkpoint.latest(places[mine.phase]) is not None:
            continue
        loaded = checkpoint.load(source / "preparation" / mine.phase / "checkpoints", mine.state)
        assert loaded is not None, "looked at before the folder was made"
        with (federation := mine.federation(ledger, run)).ledger as book:
            for entry in entries:
                before, _, t = entry.op.rpartition("/")
                if not before.endswith(f".{mine.phase}"):
                    continue
                assert entry.state is State.PUBLISHED
                assert entry.digest is not None
                op = federation.op(int(t))
                book.reserve(op, entry.charges, bytes.fromhex(entry.plan), entry.note)
                book.drawn(op)
                book.stored(op, bytes.fromhex(entry.digest))
                book.published(op)
            head = book.head()
        atomic_write(folder / PREPARATION, rows[: loaded.meta["metrics_bytes"]])
        server = {"server": loaded.trees["server"]}  # what clients kept is for phases to come, and there is none
        checkpoint.save(places[mine.phase], loaded.step, server, {**loaded.meta, "ledger_head": head})
