"""List the runs in a folder, from their files alone: no data is loaded, nothing is recomputed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from sordino.accounting.claims import standing
from sordino.accounting.events import Json
from sordino.accounting.facts import delta_text
from sordino.accounting.statement import Guarantee, strongest
from sordino.errors import RunError, SordinoError
from sordino.metrics.measures import last_scored
from sordino.receipts.folder import RunFolder, no_folder
from sordino.receipts.run_files import Receipt


class Listed(NamedTuple):
    """Summary of one run: state, rounds, score and strongest guarantee."""

    folder: str
    algorithm: str = ""
    rounds: int = 0  # done
    planned: int = 0
    state: Literal["finished", "resumable", "damaged", "unreadable"] = "damaged"
    accuracy: float | None = None  # of the last round that was scored
    loss: float | None = None
    score: str = ""  # what it is judged by, in words
    simulated: bool | None = None  # where there is a receipt
    promise: str = ""  # the strongest finite row, with its subject; of a run that cannot be read, why
    guarantee: Guarantee | None = None  # that row
    data: str = ""  # where its rows come from

    def to_json(self) -> Json:
        row = None if self.guarantee is None else self.guarantee.to_json()
        return {**self._asdict(), "guarantee": row}

    def words(self) -> dict[str, str]:
        """Columns of the table, as text."""
        unknown = self.state in ("damaged", "unreadable")
        return {
            "folder": self.folder,
            "algorithm": self.algorithm,
            "rounds": "" if unknown else f"{self.rounds}/{self.planned}",
            "state": self.state,
            "score": self.score,
            "promise": self.promise,
        }


def listed(place: Path) -> list[Listed]:
    if not place.is_dir():
        raise RunError(
            f"{place} is not a folder",
            why=no_folder(place),
            fix="`sordino list FOLDER` shows the runs in a folder; `sordino show RUN` one run",
            code="no-folder",
        )
    folders = [path for path in sorted(place.iterdir()) if path.is_dir()]
    found = [path for one in folders for path in (one, *([] if _closed(one) else sorted(one.glob("seed-*"))))]
    return [
        _one(path, str(path.relative_to(place))) for path in found if _closed(path) or RunFolder(path).begun
    ]  # with those of a comparison


def adding_up(found: Sequence[Listed]) -> list[str]:
    """Warnings about runs that read the same data: their privacy costs add up."""
    real = Counter(one.data for one in found if one.data and one.simulated is False and one.guarantee is not None)
    return [
        f"{count} runs with real noise read the same data ({data}): what they cost adds up, and no row shows the sum. "
        "One ledger for all (privacy.ledger) keeps count."
        for data, count in real.items()
        if count > 1
    ]


def _closed(path: Path) -> bool:
    """True for a folder that this user may not read."""
    return path.is_dir() and not os.access(path, os.R_OK | os.X_OK)


def _one(folder: Path, name: str) -> Listed:
    mine = RunFolder(folder)
    if _closed(folder):
        return Listed(name, state="unreadable", promise="you may not read it")
    try:
        mine.check()
        experiment, rows = mine.experiment, mine.metrics()
        receipt = mine.receipt() if mine.receipt_file.exists() else None
    except SordinoError as error:
        return Listed(name, promise=f"{error.what}: {error.why}")
    except PermissionError as error:
        return Listed(name, state="unreadable", promise=f"{error.filename}: {error.strerror}")
    last = last_scored(rows)
    source, path = experiment.data.source, experiment.data.path
    return Listed(
        name,
        str(experiment.algorithm.get("name", "")),
        len(rows),
        experiment.rounds,
        "finished" if receipt and len(rows) >= experiment.rounds else "resumable",
        None if last is None else last.accuracy,
        None if last is None else last.loss,
        "" if last is None else last.in_words,
        None if receipt is None else receipt.simulated,
        "" if receipt is None else promised(receipt),
        None if receipt is None else strongest(receipt.guarantees),
        source if path is None else f"{source} {path}",
    )


def promised(receipt: Receipt) -> str:
    return promise(receipt.guarantees, receipt.simulated)


def promise(rows: Sequence[Guarantee], simulated: bool) -> str:
    """The strongest guarantee as one line: epsilon, unit, adversary, delta and status."""
    row = strongest(rows)
    if row is None:
        printed = next((row.nominal_epsilon for row in rows if row.nominal_epsilon is not None), None)
        return "nothing promised" + ("" if printed is None else f"; nominal {printed:.3g} proves nothing")
    text = f"ε {row.epsilon:.3g} per {row.unit}, against {row.adversary}, δ {delta_text(row.delta)}, "
    if row.nominal_epsilon is not None:
        return text + f"{standing('holds', simulated)}; nominal {row.nominal_epsilon:.3g} proves nothing"
    return text + standing(row.status, simulated)
