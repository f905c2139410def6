"""What a verifier replays: only rounds that the experiment plans are its rounds."""

from __future__ import annotations

from pathlib import Path

from sordino.runs import verify as verification
from sordino.runs.receipt import bind_page, opened
from sordino.runs.run import start
from sordino.runs.verify import examine
from tests.laws.cases import BY_NAME

CASE = BY_NAME["gaussian_gdp"]
REAL = CASE.privacy | {"noise": "system"}


def test_a_file_that_was_not_passed_on_is_named_and_is_no_disagreement(tmp_path: Path) -> None:
    start(CASE.experiment(privacy=REAL), tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    found = examine(tmp_path / "run")
    assert found.wrong == []
    assert any("model.safetensors" in line for line in found.unseen)
    assert not bind_page(tmp_path / "run")  # a page seals nothing where something is missing


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
