"""What a verifier replays: only rounds that the experiment plans are its rounds."""

from __future__ import annotations

import json
from pathlib import Path

from sordino.runs import verify as verification
from sordino.runs.folder import RunFolder
from sordino.runs.receipt import bind_page, opened, receipt
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


def test_beside_an_exact_bound_the_others_need_not_be_told_and_are_checked_where_they_are(tmp_path: Path) -> None:
    start(CASE.experiment(privacy=REAL), tmp_path / "run")
    told = json.loads((tmp_path / "run" / "privacy.json").read_text())
    setup, federation = opened(tmp_path / "run")
    with federation.ledger:
        every = receipt(setup, federation, RunFolder(tmp_path / "run").environment, every=True).to_json()
    bounds = [set(row["accountants"]) for row in told["guarantees"] if row["accountant"] == "gdp"]
    assert bounds
    assert all(found == {"gdp"} for found in bounds)
    assert verification._guarantees(every, told) == []
    assert verification._guarantees(every, every) == []  # as older versions wrote it
    row = next(row for row in told["guarantees"] if row["accountant"] == "gdp")
    for lie in ({}, {"pld": row["epsilon"]}, {"gdp": row["epsilon"], "pld": row["epsilon"] / 2}):
        row["accountants"] = lie
        assert len(verification._guarantees(every, told)) == 1


def test_an_accountant_that_comes_out_below_an_exact_one_is_named() -> None:
    subject = {"unit": "client", "neighbours": "replace", "adversary": "server"}

    def found(**epsilons: float | str) -> list[str]:
        return verification._contradicted({"guarantees": [{**subject, "accountants": epsilons}]})

    assert found(gdp=1.0, rdp=1.2, pld=1.0 - 1e-9) == []
    assert found(rdp=1.2, pld=1.0) == []  # neither claims to be exact
    assert found(none="inf") == []
    assert len(found(gdp=1.0, rdp=1.2, pld=0.9)) == 1
