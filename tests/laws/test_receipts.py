"""What a receipt says of every algorithm, and that an edited one is noticed."""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from sordino.accounting.composition import read_notes
from sordino.accounting.events import NonPrivate, leaves
from sordino.errors import LedgerError
from sordino.receipts import receipt_schema
from sordino.receipts.receipt import opened
from sordino.receipts.verify import verify
from tests.laws.cases import BY_NAME, CLIENTS, Case
from tests.laws.traces import differences, trace
from tests.laws.tried import Base, by_name
from tests.verifier.test_receipts import verify as stranger

SHAPE = Draft202012Validator(receipt_schema())


# receipt --------------------------------------------------------------------------------------------------------------
@pytest.mark.one_fast
@by_name
def test_the_receipt_has_a_row_for_everybody_and_promises_only_what_events_prove(case: Case, base: Base) -> None:
    receipt = json.loads((base.folder(case) / "privacy.json").read_text())
    assert not list(SHAPE.iter_errors(receipt))
    rows = {(row["unit"], row["adversary"]): row for row in receipt["guarantees"]}
    units = ("example", "client", *(["cell"] if case.protects == "cell" else []), *(["pixel", "image"] * case.answers))
    assert set(rows) == {(u, a) for u in units for a in ("server", "participants", "public")}
    assert len(receipt["guarantees"]) == len(rows)
    finite = {subject for subject, row in rows.items() if row["epsilon"] != "inf"}
    assert finite == case.finite()
    granted = case.privacy.get("epsilon", 0.0)
    budget = granted["linspace"][1] if isinstance(granted, dict) else granted  # the largest, where budgets are personal
    _, federation = opened(base.folder(case))
    with federation.ledger as ledger:
        claims = read_notes((entry.note for entry in ledger.entries()), CLIENTS)
    spoken = {c for releases in claims.values() for release in releases for c in release}
    noised = any(c.status != "none" for c in spoken)
    assert any("seeded generator" in line for line in receipt["assumptions"]) == noised  # no word of noise without any
    assert any("clipped gradients" in line for line in receipt["assumptions"]) == noised
    for subject, row in rows.items():
        by = next((r.split()[3] for r in row["because"] if r.startswith("implied by the")), row["unit"])
        about = [c for c in spoken if (c.unit, c.adversary) == (by, row["adversary"])]
        bare = any(isinstance(leaf, NonPrivate) for c in about for leaf in leaves(c.event))
        assert (subject in finite) == (not bare)
        sees = row["adversary"] == "server" and federation.algorithm.uplink.central  # no number is printed
        empty = "nominal" if row["unit"] == case.printed and not sees else "none"
        assert row["status"] == (case.status if subject in finite else empty)
        assert ("nominal_epsilon" in row) == (row["status"] == "nominal")
        assert row["because"] or subject in finite  # an infinity says why
        if f"implied by the {by} row (group privacy)" in row["because"]:
            assert row["epsilon"] > 2 * rows[by, row["adversary"]]["epsilon"]  # two steps, at a smaller delta
        elif subject in finite and case.status == "proved":
            assert 0 < row["epsilon"] <= (budget or math.inf) * (1 + 1e-9)  # where noise is typed, nothing was granted
    if case.status == "nominal":
        assert all(rows[subject]["epsilon"] > budget for subject in finite)  # the printed budget was not what it cost


@pytest.mark.one_fast
@by_name
def test_an_untouched_receipt_verifies(case: Case, base: Base) -> None:
    assert verify(base.folder(case)) == []
    assert differences(base.trace(case), trace(base.folder(case))) == []  # looking changes nothing


@pytest.mark.one_fast
@by_name
def test_a_program_that_shares_no_code_finds_the_same(case: Case, base: Base) -> None:
    said = stranger.examine(base.folder(case), None, None)
    assert (said.wrong, said.unseen) == ([], [])


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    receipt = json.loads((folder / "privacy.json").read_text())
    change(receipt)
    (folder / "privacy.json").write_text(json.dumps(receipt))


def edit_text(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def put_back(folder: Path) -> None:
    for part in folder.glob("ledger.sqlite*"):
        part.unlink()
    shutil.copy(folder / "ledger.old", folder / "ledger.sqlite")


def write_in_ledger(folder: Path) -> None:
    with sqlite3.connect(folder / "ledger.sqlite") as db:
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            db.execute(f"DROP TRIGGER {name}")
        db.execute("UPDATE record SET body = replace(CAST(body AS TEXT), 'charges', 'Charges') WHERE sequence = 1")
    db.close()


TAMPERINGS: dict[str, Callable[[Path], None]] = {
    "epsilon": lambda f: edit(f, lambda r: r["guarantees"][-1].update(epsilon=0.1)),
    "status": lambda f: edit(f, lambda r: r["guarantees"][-1].update(status="conditional")),
    "delta": lambda f: edit(f, lambda r: r["guarantees"][0].update(delta=1e-12)),
    "neighbours": lambda f: edit(f, lambda r: r["guarantees"][0].update(neighbours="something")),
    "reasons": lambda f: edit(f, lambda r: r["guarantees"][-1].update(because=["nothing to see"])),
    "row gone": lambda f: edit(f, lambda r: r["guarantees"].pop()),
    "row twice": lambda f: edit(f, lambda r: r["guarantees"].append({**r["guarantees"][-1], "epsilon": 0.1})),
    "not simulated": lambda f: edit(f, lambda r: r.update(simulated=False)),
    "assumption gone": lambda f: edit(f, lambda r: r["assumptions"].pop(0)),
    "rounds": lambda f: edit(f, lambda r: r.update(rounds=r["rounds"] - 1)),
    "a number nobody printed": lambda f: edit(f, lambda r: r["guarantees"][0].update(nominal_epsilon=0.001)),
    "words nobody said": lambda f: edit(f, lambda r: r.update(seal="approved")),
    "other head": lambda f: edit(f, lambda r: r.update(ledger_head="00" * 32)),
    "ledger rolled back": put_back,
    "ledger edited": write_in_ledger,
    "step size edited": lambda f: edit_text(f / "experiment.toml", "lr = ", "lr = 1"),
    "seed edited": lambda f: edit_text(f / "experiment.toml", "seed = 0", "seed = 3"),
    "another run": lambda f: edit_text(f / "environment.json", '"run": "', '"run": "0'),
}


@pytest.mark.parametrize("tampering", TAMPERINGS)
@pytest.mark.parametrize(
    "name", ["gaussian_gdp", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fedavg", "central"))]
)
def test_a_tampered_receipt_does_not(name: str, tampering: str, base: Base, tmp_path: Path) -> None:
    folder = shutil.copytree(base.folder(BY_NAME[name]), tmp_path / "run")
    if tampering == "step size edited" and "lr = " not in (folder / "experiment.toml").read_text():
        edit_text(folder / "experiment.toml", "[algorithm]", "[algorithm]\nlr = 0.7")
    else:
        TAMPERINGS[tampering](folder)
    try:
        wrong = verify(folder)
    except LedgerError as error:
        wrong = [error.code]
    assert wrong
