"""What a verifier replays: only rounds that the experiment plans are its rounds."""

from __future__ import annotations

from pathlib import Path

from sordino.runs import verify as verification
from sordino.runs.receipt import opened
from sordino.runs.run import start
from tests.laws.cases import BY_NAME

CASE = BY_NAME["gaussian_gdp"]
REAL = CASE.privacy | {"noise": "system"}


def test_what_is_no_round_is_planned_by_nobody(tmp_path: Path) -> None:
    """An entry of this run that names no round: any number would make a plan of it."""
    start(CASE.experiment(privacy=REAL, cohort={"name": "everyone"}), tmp_path / "run")
    setup, federation = opened(tmp_path / "run")
    with federation.ledger as ledger:
        entries = list(ledger.entries())
    assert verification._replayed(setup, federation, entries) == []
    for name in ("last", "-1", ""):
        other = [*entries[:-1], entries[-1]._replace(op=f"{federation.run}/{name}")]
        assert len(verification._replayed(setup, federation, other)) == 1
