"""Edits of receipts, ledgers and files: of 1,000 random ones the verifier refuses at least 999."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sordino.receipts.signature import generate, sign
from sordino.runs.run import start
from tests.helpers.planned_receipts import some
from tests.laws.cases import BY_NAME
from tests.verifier.test_receipts import epsilons, verify

Json = Any
Edit = Callable[[Path, random.Random, list[Path]], None]


def numbers(part: Json, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to all numbers in a JSON value."""
    inner = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    found = [way] if isinstance(part, int | float) and not isinstance(part, bool) else []
    return found + [one for name, value in inner for one in numbers(value, (*way, name))]


def words(part: Json, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    return ([way] if isinstance(part, str) else []) + [one for name, v in inner for one in words(v, (*way, name))]


def at(part: Json, way: tuple[Any, ...]) -> Json:
    for name in way:
        part = part[name]
    return part


def put(part: Json, way: tuple[Any, ...], value: Json) -> None:
    at(part, way[:-1])[way[-1]] = value


def records(run: Path) -> list[Json]:
    with sqlite3.connect(run / "ledger.sqlite") as base:
        return [json.loads(body) for (body,) in base.execute("SELECT body FROM record ORDER BY sequence")]


def written(run: Path, told: list[Json]) -> None:
    """The ledger anew, with a chain that holds, and the receipt sealed in it."""
    head = bytes(32)
    with sqlite3.connect(run / "ledger.sqlite") as base:
        base.execute("DROP TRIGGER record_delete")
        base.execute("DELETE FROM record")
        for i, record in enumerate(told):
            body = json.dumps(record, sort_keys=True, separators=(",", ":")).encode()
            head = hashlib.sha256(head + body).digest()
            base.execute("INSERT INTO record VALUES (?, ?, ?)", (i, head, body))
        base.execute("CREATE TRIGGER record_delete BEFORE DELETE ON record BEGIN SELECT RAISE(ABORT, 'fixed'); END")
    receipt = json.loads((run / "privacy.json").read_text())
    (run / "privacy.json").write_text(json.dumps(receipt | {"ledger_head": head.hex()}, indent=2))


def sealed(run: Path, receipt: Json) -> None:
    """The receipt in place of the run's, as its ledger would have sealed it."""
    said = {name: value for name, value in receipt.items() if name != "ledger_head"}
    digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
    (run / "privacy.json").write_text(json.dumps(receipt))
    written(run, [*(one for one in records(run) if one["kind"] != "sealed"), {"kind": "sealed", "digest": digest}])


# edits: each changes one thing of a run's folder ----------------------------------------------------------------------


def of_a_number(run: Path, rng: random.Random, others: list[Path]) -> None:
    told = json.loads((run / "privacy.json").read_text())
    way = rng.choice(numbers(told))
    put(told, way, at(told, way) * 2 + 1)
    (run / "privacy.json").write_text(json.dumps(told, indent=2))


def of_a_word(run: Path, rng: random.Random, others: list[Path]) -> None:
    told = json.loads((run / "privacy.json").read_text())
    way = rng.choice(words(told))
    put(told, way, at(told, way)[:-1] + "x")
    (run / "privacy.json").write_text(json.dumps(told, indent=2))


def of_a_row(run: Path, rng: random.Random, others: list[Path]) -> None:
    """A row is left out, stated twice, or stands where another one stood."""
    told = json.loads((run / "privacy.json").read_text())
    rows = told["guarantees"]
    i, j = rng.sample(range(len(rows)), 2)
    rng.choice([lambda: rows.pop(i), lambda: rows.append(rows[i]), lambda: rows.insert(i, rows.pop(j))])()
    (run / "privacy.json").write_text(json.dumps(told, indent=2))


def of_a_sealed_row(run: Path, rng: random.Random, others: list[Path]) -> None:
    """A row is left out or stated twice, and the ledger has sealed that."""
    told = json.loads((run / "privacy.json").read_text())
    rows = told["guarantees"]
    i = rng.randrange(len(rows))
    rng.choice([lambda: rows.pop(i), lambda: rows.append(rows[i])])()
    sealed(run, told)


def of_a_sealed_number(run: Path, rng: random.Random, others: list[Path]) -> None:
    """A number of the guarantees, and the ledger has sealed that."""
    told = json.loads((run / "privacy.json").read_text())
    rows = [row for row in told["guarantees"] if row["epsilon"] != "inf"]
    row = rng.choice(rows)
    way = rng.choice([way for way in numbers(row) if not str(way[0]).startswith("nominal")])
    before = at(row, way)
    put(row, way, before + rng.choice([1, 7]) if isinstance(before, int) else before * rng.choice([0.5, 0.99, 1.01, 2]))
    sealed(run, told)


def of_a_sealed_infinity(run: Path, rng: random.Random, others: list[Path]) -> None:
    """A promise where the ledger has none."""
    told = json.loads((run / "privacy.json").read_text())
    row = rng.choice([row for row in told["guarantees"] if row["epsilon"] == "inf"])
    row["epsilon"] = 8.0
    sealed(run, told)


def of_a_sealed_status(run: Path, rng: random.Random, others: list[Path]) -> None:
    told = json.loads((run / "privacy.json").read_text())
    row = rng.choice([row for row in told["guarantees"] if row["epsilon"] != "inf"])
    row["status"] = rng.choice([one for one in ("proved", "conditional", "nominal", "none") if one != row["status"]])
    sealed(run, told)


def of_a_byte_of_the_chain(run: Path, rng: random.Random, others: list[Path]) -> None:
    with sqlite3.connect(run / "ledger.sqlite") as base:
        base.execute("DROP TRIGGER record_update")
        i, body = rng.choice(base.execute("SELECT sequence, body FROM record").fetchall())
        place = rng.randrange(len(body))
        base.execute(
            "UPDATE record SET body = ? WHERE sequence = ?", (body[:place] + b"7" + body[place + 1 :] + b" ", i)
        )


def of_a_line_of_the_chain(run: Path, rng: random.Random, others: list[Path]) -> None:
    """A line is left out, or two change places, and the chain is made anew."""
    told = records(run)
    i = rng.randrange(len(told) - 1)
    if rng.random() < 0.5:
        del told[i if told[i]["kind"] in ("scope", "reserved", "stored") else 0]
    else:
        i = rng.choice(
            [i for i in range(len(told) - 1) if {told[i]["kind"], told[i + 1]["kind"]} & {"scope", "stored"}]
        )
        told[i], told[i + 1] = told[i + 1], told[i]
    written(run, told)


def of_a_charge(run: Path, rng: random.Random, others: list[Path]) -> None:
    """A charge above every cap, or below zero, and the chain is made anew."""
    told = records(run)
    paid = [one for one in told if one["kind"] == "reserved" and one["charges"]]
    group = rng.choice(rng.choice(paid)["charges"])
    group[0][0] = rng.choice([-1, 10**30])
    written(run, told)


def of_a_claim(run: Path, rng: random.Random, others: list[Path]) -> None:
    """Noise, status or change of all claims of one release, and the chain is made anew."""
    told = records(run)
    one = rng.choice([one for one in told if one["kind"] == "reserved"])
    note = json.loads(one["note"])
    claims = [claim for group in note["releases"] for claim in group["claims"] if claim["status"] != "none"]
    for claim in claims:
        for way in numbers(claim["event"]):
            value = at(claim["event"], way)
            less = 3 if way[-1] == "levels" else value * 0.5 if isinstance(value, float) else max(1, value // 2)
            put(claim["event"], way, less)
    written(run, [{**each, "note": json.dumps(note)} if each is one else each for each in told])


def of_the_source_of_noise(run: Path, rng: random.Random, others: list[Path]) -> None:
    told = records(run)
    receipt = json.loads((run / "privacy.json").read_text())
    for one in told:
        if one["kind"] == "reserved":
            one["note"] = json.dumps(
                json.loads(one["note"]) | {"noise": "system" if receipt["simulated"] else "counter"}
            )
    written(run, told)


def of_the_ledger(run: Path, rng: random.Random, others: list[Path]) -> None:
    shutil.copy(rng.choice(others) / "ledger.sqlite", run / "ledger.sqlite")


def of_another_run(run: Path, rng: random.Random, others: list[Path]) -> None:
    """Receipt, ledger and all else of another run, beside this one's environment."""
    mine = (run / "environment.json").read_bytes()
    shutil.copytree(rng.choice(others), run, dirs_exist_ok=True)
    (run / "environment.json").write_bytes(mine)


def of_a_file(run: Path, rng: random.Random, others: list[Path]) -> None:
    name = rng.choice(["model.safetensors", "agreement.json", "metrics.jsonl", "model.json", "report.html"])
    (run / name).write_bytes((run / name).read_bytes() + b"1" if (run / name).exists() else b"{}")


def of_the_signature(run: Path, rng: random.Random, others: list[Path]) -> None:
    told = json.loads((run / "privacy.sig").read_text())
    name = rng.choice(["public_key", "signature"])  # `envelope` is for other programs
    place = rng.randrange(len(told[name]))
    digit = rng.choice([one for one in "0123456789abcdef" if one != told[name][place]])
    (run / "privacy.sig").write_text(json.dumps(told | {name: told[name][:place] + digit + told[name][place + 1 :]}))


EDITS: list[Edit] = [
    of_a_number, of_a_word, of_a_row, of_a_sealed_row, of_a_sealed_number, of_a_sealed_infinity, of_a_sealed_status,
    of_a_byte_of_the_chain, of_a_line_of_the_chain, of_a_charge, of_a_claim, of_the_source_of_noise, of_the_ledger,
    of_another_run, of_a_file, of_the_signature,
]  # fmt: skip


def refused(run: Path) -> bool:
    try:
        said = verify.examine(run, None, None)
    except Exception:
        return True
    return bool(said.wrong or said.unseen)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Receipts with finite and infinite rows, in which every edit finds something to change."""
    place, chosen = tmp_path_factory.mktemp("runs"), []
    generate(place / "key")
    for run in some(place / "all", 30, first=500, sampled=0.0):
        rows = json.loads((run / "privacy.json").read_text())["guarantees"]
        paid = any(one["kind"] == "reserved" and one["charges"] and one["charges"][0][1] for one in records(run))
        capped = records(run)[0].get("each") or records(run)[0]["caps"]
        if paid and capped and {row["epsilon"] == "inf" for row in rows} == {True, False}:
            assert not refused(run)
            chosen.append(run)
    assert len(chosen) >= 5
    return chosen


def passing(runs: list[Path], count: int, place: Path, edits: list[Edit] = EDITS) -> list[str]:
    """What passes of random single edits."""
    signer = runs[0].parents[1] / "key"
    rng, passed = random.Random(7), []
    for i in range(count):
        edit, original = edits[i % len(edits)], rng.choice(runs)
        run = Path(shutil.copytree(original, place / "edited"))
        if edit is of_the_signature:
            sign(run, signer)
            assert not refused(run)
        edit(run, rng, [other for other in runs if other != original])
        if not refused(run):
            passed.append(f"{i}: {edit.__name__} in {original.name}")
        shutil.rmtree(run)
    return passed


@pytest.mark.slow
def test_every_kind_of_edit_is_refused(runs: list[Path], tmp_path: Path) -> None:
    assert passing(runs, len(EDITS), tmp_path) == []


@pytest.mark.slow
def test_of_a_thousand_edits_one_passes_at_most(runs: list[Path], tmp_path: Path) -> None:
    assert len(passing(runs, 1000, tmp_path)) <= 1


@pytest.mark.slow
def test_a_verifier_that_trusts_printed_numbers_lets_edits_pass(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: it checks chain, seal, files and signature, and takes the rows as they are."""
    monkeypatch.setattr(verify.Verdict, "rows", lambda *told, **more: None)
    edits = [of_a_sealed_row, of_a_sealed_number, of_a_sealed_infinity, of_a_sealed_status, of_a_claim]
    assert len(passing(runs, 2 * len(edits), tmp_path, edits)) == 2 * len(edits)
    assert passing(runs, 4, tmp_path, [of_a_number, of_a_byte_of_the_chain, of_a_file, of_the_signature]) == []


def missed(run: Path) -> bool:
    """True where the verifier says that something is not there, or another thing than in the ledger."""
    try:
        return bool(verify.examine(run, None, None).wrong)
    except epsilons.Wrong:
        return True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "left"), [("slaug_fl_rigorous_b", "phases"), ("pdp_prox_bounds", "groups"), ("pdp_prox_bounds", "budget")]
)
def test_a_part_of_a_receipt_that_is_left_out_is_missed(name: str, left: str, tmp_path: Path) -> None:
    """Phases, and what clients with budgets of their own have spent; the ledger has sealed the rest."""
    run = tmp_path / "run"
    start(BY_NAME[name].experiment(), run)
    told = json.loads((run / "privacy.json").read_text())
    sealed(run, told)
    assert not refused(run)
    if left == "phases":
        assert len(told["phases"]) > 1
        made = [told | {"phases": told["phases"][:1]}, {part: told[part] for part in told if part != left}]
    else:
        groups = {part: told["budget"][part] for part in told["budget"] if part != "groups"}
        made = [told | {"budget": groups if left == "groups" else None}]
    for receipt in made:
        sealed(run, receipt)
        assert missed(run)
