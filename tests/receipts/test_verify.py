"""What a verifier replays: only rounds that the experiment plans are its rounds."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import sordino
from sordino import config
from sordino.accounting import accountants, composition
from sordino.accounting.accountants import LIMITS
from sordino.accounting.composition import parsed
from sordino.accounting.gaussian_dp import epsilon_of
from sordino.algorithms.fedavg import FedAvg
from sordino.errors import RunError, SordinoError
from sordino.ledger import storage
from sordino.planning.accounts import Accounts
from sordino.receipts import seal
from sordino.receipts import verify as verification
from sordino.receipts.folder import UNCOMPARED, RunFolder
from sordino.receipts.receipt import _of_all, bind_page, opened, receipt, write_receipt
from sordino.receipts.verify import examine, verify
from sordino.runs import listing
from sordino.runs.play import Progress
from sordino.runs.run import resume, start
from sordino.runs.simulation import simulated
from tests.helpers.command_line import Said
from tests.laws.cases import BY_NAME
from tests.laws.traces import killed_at

CASE = BY_NAME["gaussian_gdp"]
REAL = CASE.privacy | {"noise": "system"}
LOCAL = ("whole_update", "fedavg", "dp_sgd")


def test_a_file_that_was_not_passed_on_is_named_and_is_no_disagreement(tmp_path: Path) -> None:
    start(CASE.experiment(privacy=REAL), tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    found = examine(tmp_path / "run")
    assert found.wrong == []
    assert any("model.safetensors" in line for line in found.unseen)
    assert not bind_page(tmp_path / "run")  # a page seals nothing where something is missing


@pytest.mark.one_fast
@pytest.mark.parametrize("noise", ["system", "counter"])
@pytest.mark.parametrize("name", ["gaussian_gdp", *(pytest.param(n, marks=pytest.mark.slow) for n in LOCAL)])
def test_a_receipt_holds_where_coins_draw_and_only_the_drawn_pay(name: str, noise: str, tmp_path: Path) -> None:
    """As it was, the verifier looked for rounds that all pay for, in every cohort of hidden coins."""
    case = BY_NAME[name]
    made = case.experiment(privacy=case.privacy | {"noise": noise}, cohort={"name": "poisson", "rate": 0.5})
    start(made, tmp_path / "run")
    assert verify(tmp_path / "run") == []
    setup, federation = opened(tmp_path / "run")
    with federation.ledger as ledger:
        entries = list(ledger.entries())
    assert not federation.plan.everyone_pays
    assert len({json.dumps(parsed(entry.note).releases) for entry in entries}) > 1
    if noise == "counter":  # coins of a seed are tossed again: who did not take part is named
        swapped = [one._replace(note=other.note) for one, other in zip(entries, reversed(entries), strict=True)]
        assert verification._replayed(setup, federation, swapped) != []


@pytest.mark.slow
@pytest.mark.parametrize("name", LOCAL)
def test_receipts_between_sites_hold_where_coins_draw_and_only_the_drawn_pay(name: str, tmp_path: Path) -> None:
    from tests.helpers.between_sites import Federated  # which needs the branch `sites`

    case = BY_NAME[name]
    made = case.experiment(privacy=case.privacy | {"noise": "system"}, cohort={"name": "poisson", "rate": 0.5})
    played = Federated(made, tmp_path)
    played.play()
    assert verify(played.folder) == []
    for site in played.agreed.sites:
        played.member(site).receipt()
        played.stop(site)
        assert verify(tmp_path / site) == [], site


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


def test_noise_that_is_not_that_of_the_experiment_is_named(tmp_path: Path) -> None:
    """A simulation's release in a ledger that was written anew, under an experiment that says real noise."""
    start(CASE.experiment(privacy=REAL), tmp_path / "run")
    setup, federation = opened(tmp_path / "run")
    with federation.ledger as ledger:
        entries = list(ledger.entries())
    assert verification._edited(setup.experiment, entries) == []
    note = json.loads(entries[0].note)
    other = [entries[0]._replace(note=json.dumps({**note, "noise": "counter"})), *entries[1:]]
    assert ["its noise was 'counter'" in line for line in verification._edited(setup.experiment, other)] == [True]


def test_the_limits_of_an_exact_epsilon_need_not_be_told_and_no_other_bound_may_be_added(tmp_path: Path) -> None:
    start(CASE.experiment(privacy=REAL), tmp_path / "run")
    told = json.loads((tmp_path / "run" / "privacy.json").read_text())
    setup, federation = opened(tmp_path / "run")
    with federation.ledger:
        every = receipt(setup, federation, RunFolder(tmp_path / "run").environment, check=True).to_json()
    limits = [row["accountants"] for row in every["guarantees"] if row["accountant"] == "gdp"]
    assert all(bounds[LIMITS[0]] < bounds["gdp"] < bounds[LIMITS[1]] for bounds in limits)
    bounds = [set(row["accountants"]) for row in told["guarantees"] if row["accountant"] == "gdp"]
    assert bounds
    assert all(found == {"gdp"} for found in bounds)
    assert verification._guarantees(every, told) == []
    assert verification._guarantees(every, every) == []
    row = next(row for row in told["guarantees"] if row["accountant"] == "gdp")
    for little in (1e-6, -1e-6):
        row["epsilon"] *= 1 + little
        assert len(verification._guarantees(every, told)) == 1
        row["epsilon"] /= 1 + little
    for lie in ({}, {"pld": row["epsilon"]}, {"gdp": row["epsilon"], "pld": row["epsilon"] / 2}):
        row["accountants"] = lie
        assert len(verification._guarantees(every, told)) == 1


def test_a_sentence_among_the_guarantees_is_no_row_and_no_receipt_holds_with_it() -> None:
    """Whoever seals a receipt again can put "epsilon 0.1" among its rows, which no program compares with anything."""
    again: dict[str, Any] = {"guarantees": []}
    assert verification._guarantees(again, {"guarantees": []}) == []
    for beside in ("one client, against anyone: epsilon 0.1, proved", ["epsilon", 0.1], 0.1, None):
        said = verification._guarantees(again, {"guarantees": [beside]})
        assert said == ["a guarantee is stated twice, or is no row"]


def test_a_value_of_another_type_is_another_value() -> None:
    """As it was, 0 was taken for false, and a number too long for a float ended in a traceback."""
    assert verification._same([1, 2.0, False, "inf"], [1, 2.0 + 1e-12, False, "inf"])
    for a, b in ((False, 0), (1, True), (1.0, True), (1, 1.0), (8.0, 10**400), (8.0, math.nan), ("inf", math.inf)):
        assert not verification._same(a, b)
        assert not verification._same({"a": [b]}, {"a": [a]})


@pytest.mark.parametrize("forged", ["NaN", "Infinity", "1e999", "-1"])
def test_a_receipt_with_what_is_no_epsilon_is_damaged_for_whoever_lists_runs(tmp_path: Path, forged: str) -> None:
    start(CASE.experiment(privacy=REAL), tmp_path / "run")
    file = RunFolder(tmp_path / "run").receipt_file
    told = json.loads(file.read_text())
    made = file.read_text().replace(f'"epsilon": {told["budget"]["epsilon"]}', f'"epsilon": {forged}')
    file.write_text(made)
    (found,) = listing.listed(tmp_path)
    assert found.state == "damaged"
    with pytest.raises(SordinoError, match=r"privacy\.json"):
        RunFolder(tmp_path / "run").receipt()


def test_an_accountant_that_comes_out_below_an_exact_one_is_named() -> None:
    subject = {"unit": "client", "neighbours": "replace", "adversary": "server"}

    def found(**epsilons: float | str) -> list[str]:
        return verification._contradicted({"guarantees": [{**subject, "accountants": epsilons}]})

    assert found(gdp=1.0, rdp=1.2, pld=1.0 - 1e-9) == []
    assert found(rdp=1.2, pld=1.0) == []  # neither claims to be exact
    assert found(none="inf") == []
    assert len(found(gdp=1.0, rdp=1.2, pld=0.9)) == 1
    low, high = LIMITS
    assert found(**{"gdp": 1.0, low: 0.99, high: 1.01}) == []
    assert len(found(**{"gdp": 1.0, low: 1.01, high: 1.03})) == 1
    assert len(found(**{"gdp": 1.0, low: 0.97, high: 0.99})) == 1


def test_whoever_only_looks_needs_no_ledger_to_write_to(
    tmp_path: Path, cli: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive on a disk that is mounted to be read, or a run of somebody else."""
    start(CASE.experiment(privacy=REAL), tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}

    def archived(opens: Callable[..., Any]) -> Callable[..., Any]:
        def refused(place: Path | None, *given: Any) -> Any:
            if place is not None:
                raise PermissionError(13, "Permission denied")
            return opens(place, *given)

        return refused

    for opens in (storage.open_database, storage.turnstile):
        monkeypatch.setattr(f"sordino.ledger.ledger.{opens.__name__}", archived(opens))
    for words in (("verify",), ("spent",), ("spent", "--json"), ("export", "--as", "card", "--out", tmp_path / "c.md")):
        found = cli("privacy", words[0], tmp_path / "run", *words[1:])
        assert found.code == 0, found
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before
    assert cli("report", tmp_path / "run").code == 5  # a page is bound to its receipt in the ledger
    assert examine(tmp_path / "run").wrong == []  # and none is left that is not


def test_a_run_of_somebody_else_does_not_hide_the_others(
    tmp_path: Path, cli: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("closed", "mine", "private"):
        start(CASE.experiment(privacy=REAL), tmp_path / name)
    looked: Any = listing.RunFolder.metrics

    def metrics(run: RunFolder) -> Any:
        if run.path.name == "private":
            raise PermissionError(13, "Permission denied", str(run.private))
        return looked(run)

    monkeypatch.setattr(listing.RunFolder, "metrics", metrics)
    monkeypatch.setattr(os, "access", lambda path, how: Path(path).name != "closed")
    states = {row["folder"]: row["state"] for row in json.loads(cli("list", tmp_path, "--json").out)}
    assert states == {"closed": "unreadable", "mine": "finished", "private": "unreadable"}
    assert "unreadable" in cli("list", tmp_path).out


@pytest.mark.parametrize(("times", "limit"), [(0.99, LIMITS[0]), (1.01, LIMITS[1])])
def test_a_receipt_does_not_hold_where_what_is_called_exact_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: float, limit: str
) -> None:
    """The program that verifies makes the same mistake as the one that wrote the receipt: an epsilon that is too small,
    or too large."""
    monkeypatch.setattr(accountants, "epsilon_of", lambda mu, delta: times * epsilon_of(mu, delta))
    for cached in (composition.bounded, composition.least):
        cached.cache_clear()
    try:
        start(CASE.experiment(privacy=REAL), tmp_path / "run")
        wrong = examine(tmp_path / "run").wrong
    finally:
        for cached in (composition.bounded, composition.least):
            cached.cache_clear()
    assert wrong
    assert all(f"{limit} gives" in line for line in wrong)


@dataclass(frozen=True)
class Mine(FedAvg):
    """An author's algorithm, whose code a verifier does not run."""


OWN = {"name": f"{__name__}:Mine", "lr": 0.5, "local_steps": 1, "batch_size": "full"}


def resealed(folder: Path, **lies: object) -> Path:
    """A receipt that says something else, sealed by whoever has its ledger."""
    told = seal.claimed(folder) | lies
    with opened(folder, reading=False)[1].ledger as ledger:
        ledger.seal(seal.digest(told))
        told["ledger_head"] = ledger.head()
    RunFolder(folder).receipt_file.write_text(json.dumps(told))
    return folder


def test_without_the_authors_code_what_the_files_tell_is_held_against_the_receipt(tmp_path: Path) -> None:
    """A simulation stays one. As it was, nothing but the epsilons was looked at."""
    made = CASE.experiment(algorithm=OWN, read={"name": "noisy_gradient", "clip": 1.0})
    run = start(made, tmp_path / "run").folder
    assert examine(run).wrong == []
    lies = {"simulated": False, "clients": 1000, "rounds": 99, "assumptions": []}
    for name, value in lies.items():
        forged = resealed(shutil.copytree(run, tmp_path / name), **{name: value})
        wrong = examine(forged).wrong
        assert wrong
        assert all(line.startswith(name) for line in wrong)


def test_a_number_that_an_authors_code_prints_is_not_looked_at_without_it(tmp_path: Path) -> None:
    """As it was, such an honest receipt did not hold."""
    made = CASE.experiment(algorithm=OWN, privacy={}, uplink={"client": [{"name": "update_level"}]})
    run = start(made, tmp_path / "run").folder
    assert any(row.nominal_epsilon for row in RunFolder(run).receipt().guarantees)
    found = examine(run)
    assert found.wrong == []
    assert "numbers that are only printed" in found.unseen[0]
    assert examine(run, code=True).wrong == []


def test_a_receipt_of_a_run_that_went_on_is_called_that_in_one_line(tmp_path: Path) -> None:
    """Stopped, gone on and killed: nothing is wrong, and the receipt of the stop is not that of the ledger: nobody
    prints its epsilon."""

    def stop(step: Progress) -> None:
        if step.round == 2:
            raise KeyboardInterrupt

    assert start(BY_NAME["gaussian_gdp"].experiment(rounds=5), tmp_path / "run", stop).interrupted
    assert verify(tmp_path / "run") == []
    assert "ε" in listing.listed(tmp_path)[0].promise
    with killed_at("published", 3):
        resume(tmp_path / "run")
    assert listing.listed(tmp_path)[0].promise == listing.look(RunFolder(tmp_path / "run")).promise == ""
    assert sordino.open_run(tmp_path / "run").promise.startswith("no receipt yet")
    with pytest.raises(RunError, match="has gone on since"):
        RunFolder(tmp_path / "run").receipt()
    assert not bind_page(tmp_path / "run")  # a page of what was spent since belongs to no receipt of the stop
    (line,) = verify(tmp_path / "run")
    assert line.startswith("the run goes on: this receipt is of round 2, and the ledger knows 4 rounds")
    claimed = json.loads((tmp_path / "run" / "privacy.json").read_text())
    claimed["guarantees"][0]["epsilon"] = 0.001  # edited, it is no receipt of an earlier round
    (tmp_path / "run" / "privacy.json").write_text(json.dumps(claimed))
    assert "the ledger knows no such receipt" in verify(tmp_path / "run")[0]


def test_a_receipt_without_its_ledger_is_printed_as_one_that_nothing_was_compared_with(tmp_path: Path) -> None:
    """Where a ledger lies, an edited receipt is refused; without one whoever prints it says that it may be edited."""
    ended = start(BY_NAME["gaussian_gdp"].experiment(), tmp_path / "run")
    before = listing.listed(tmp_path)[0].promise
    assert before == sordino.open_run(tmp_path / "run").promise
    assert UNCOMPARED not in before
    for one in tmp_path.glob("run/ledger.sqlite*"):
        one.unlink()
    assert RunFolder(tmp_path / "run").receipt().assumptions == (*ended.receipt.assumptions, UNCOMPARED)
    assert listing.listed(tmp_path)[0].promise == sordino.open_run(tmp_path / "run").promise
    assert listing.look(RunFolder(tmp_path / "run")).promise == f"{before}; {UNCOMPARED}"


def test_a_ledger_that_leaves_clients_out_is_not_what_the_experiment_plans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who takes part in a visible cohort follows from the experiment. A chain made anew without half of these rounds
    is found; believed, it would halve epsilon.
    """
    said = Accounts._said

    def fewer(self: Accounts, *asked: Any) -> Any:
        return [(clients[:1], claims) for clients, claims in said(self, *asked)]

    with monkeypatch.context() as patch:
        patch.setattr(Accounts, "_said", fewer)
        start(CASE.experiment(privacy=REAL), tmp_path / "forged")
    assert any("who took part" in line for line in verify(tmp_path / "forged"))


def test_what_a_paper_s_formula_prints_is_for_the_client_with_the_fewest_rows(tmp_path: Path) -> None:
    shares = {"scheme": "quantity", "clients": 5, "beta": 0.5, "min_size": 20}
    made = BY_NAME["prifedsync"].experiment(partition=shares)
    start(made, tmp_path / "run")
    setup = simulated(made).setup
    formula = setup.algorithm.uplink.as_published
    assert formula is not None
    few, many = (
        formula.stated(made.rounds, made.privacy.delta, size).epsilon
        for size in (min(setup.public.sizes), max(setup.public.sizes))
    )
    rows = json.loads((tmp_path / "run" / "privacy.json").read_text())["guarantees"]
    assert {row["nominal_epsilon"] for row in rows if row["status"] == "nominal"} == {few}
    assert few > 2 * many


@pytest.mark.parametrize("everyone", [False, True])
def test_clients_that_took_no_part_are_counted_beside_those_who_did(everyone: bool) -> None:
    paid = [3.0] if everyone else [3.0, 3.0, 5.0]
    assert _of_all(paid, 0.0, 10, everyone) == ({3.0: 10, 0.0: 0} if everyone else {3.0: 2, 5.0: 1, 0.0: 7})
    assert _of_all(paid, 3.0, 10, everyone).total() == 10  # type: ignore[attr-defined]


@pytest.mark.one_fast
@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"guarantees": []}', '{"guarantees": [], "files": 3}', "[" * 100_000]
)
def test_a_page_beside_an_unreadable_receipt_is_deleted(text: str, tmp_path: Path) -> None:
    """Nobody knows what it shows, so the new receipt must not vouch for it."""
    start(CASE.experiment(privacy=REAL, rounds=1), tmp_path / "run")
    mine = RunFolder(tmp_path / "run")
    mine.page_file.write_text("a page")
    assert bind_page(mine.path)
    setup, federation = opened(mine.path, reading=False)
    with federation.ledger:
        assert mine.page_file.name in write_receipt(mine.path, setup, federation).files  # the control
        mine.receipt_file.write_text(text)
        assert mine.page_file.name not in write_receipt(mine.path, setup, federation).files
    assert not mine.page_file.exists()


def test_verify_imports_somebodys_algorithm_where_it_is_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Callable[..., Said]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "theirs.py").write_text(
        "from dataclasses import dataclass\nfrom sordino.algorithms.fedavg import FedAvg\n"
        "@dataclass(frozen=True)\nclass Mine(FedAvg):\n    pass\n"
    )
    start(config.load({"rounds": 1, "algorithm": {"name": "theirs:Mine", "lr": 0.1}}), tmp_path / "run")
    for asked, imported in (((), False), (("--with-code",), True)):
        monkeypatch.delitem(sys.modules, "theirs", raising=False)
        told = json.loads(cli("privacy", "verify", tmp_path / "run", *asked, "--json").out)
        assert told["holds"]
        assert ("theirs" in sys.modules) is imported
        assert any("--with-code" in line for line in told["not_looked_at"]) is not imported
