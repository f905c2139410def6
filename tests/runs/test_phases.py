"""A run that prepares before it trains: the same bytes however it is stopped and wherever its clients live, books of
every phase under its own name, and messages as long as the schemas say.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from sordino import keys
from sordino.accounting.composition import parsed
from sordino.algorithms import all_algorithms
from sordino.engine.site import Site
from sordino.ledger.ledger import State
from sordino.planning.accounts import Accounts
from sordino.planning.phase import PlannedPhase
from sordino.privacy.noise import GaussianNoise
from sordino.privacy.noise.sources import for_client, for_round
from sordino.receipts import seal
from sordino.receipts.receipt import opened
from sordino.receipts.verify import _replayed, verify
from sordino.runs.run import start
from sordino.runs.simulation import simulated
from sordino.synthesis.slaug.prepare import Ask, Train
from sordino.synthesis.slaug.training import SlaugFL
from sordino.types import Terms
from tests.helpers.prepared_runs import CLIENTS, ROUNDS, rows_of, tiny


# books ----------------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_every_phase_is_in_the_books_under_its_own_name(once: Path) -> None:
    setup, federation = opened(once)
    with federation.ledger as ledger:
        entries = list(ledger.entries())
        mine = list(federation.entries())
    run, rows = federation.run, rows_of(once)
    asked = sum(row["phase"] == "ask" for row in rows)
    assert asked > 1  # somebody declined, or two classes wanted the same device
    wanted = [f"{run}.train/0", *(f"{run}.ask/{t}" for t in range(asked)), *(f"{run}/{t}" for t in range(ROUNDS))]
    assert [entry.op for entry in entries] == wanted
    assert mine == entries  # the receipt speaks of all of them
    assert {entry.state for entry in entries} == {State.PUBLISHED}
    assert len({entry.digest for entry in entries}) == len(entries)
    who = [sorted(k for group in parsed(entry.note).releases for k in group["clients"]) for entry in entries]
    assert who[0] == list(range(CLIENTS))
    assert [len(each) for each in who[1 : 1 + asked]] == [row["active"] for row in rows if row["phase"] == "ask"]
    receipt = json.loads((once / "privacy.json").read_text())
    assert receipt["rounds"] == len(entries)
    assert {row["epsilon"] for row in receipt["guarantees"]} == {"inf"}
    assert verify(once) == []
    assert setup.plan is not None


@pytest.mark.slow
def test_a_receipt_without_the_preparation_is_caught(once: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = PlannedPhase.accounts

    def forgetful(self: PlannedPhase, *given: Any) -> Accounts:
        made = real(self, *given)
        made.before = ()
        return made

    monkeypatch.setattr(PlannedPhase, "accounts", forgetful)
    assert any(line.startswith("rounds") for line in verify(once))


@pytest.mark.slow
def test_a_release_of_the_preparation_that_is_not_planned_is_named(once: Path) -> None:
    setup, federation = opened(once)
    with federation.ledger as ledger:
        entries = list(ledger.entries())
    assert _replayed(setup, federation, entries) == []
    note = json.loads(entries[0].note)
    note["releases"][0]["clients"] = note["releases"][0]["clients"][1:]
    wrong = _replayed(setup, federation, [entries[0]._replace(note=json.dumps(note)), *entries[1:]])
    assert [line.startswith(entries[0].op) for line in wrong] == [True]


def test_one_row_per_round(once: Path) -> None:
    rows = rows_of(once)
    asked = sum(row["phase"] == "ask" for row in rows)
    wanted = [("train", 1), *(("ask", t) for t in range(1, asked + 1)), ("public_tensors", 0)]
    assert [(row["phase"], row["round"]) for row in rows] == wanted


def test_no_two_phases_draw_the_same() -> None:
    """Nothing that a round draws from, noise of the server, noise of a client, order of data, is drawn from in another
    phase.
    """
    parts = simulated(tiny())
    drawn = []
    for each in (*parts.preparation, parts):
        for t in range(3):
            key = each.setup.phase_key
            found = [for_round("counter", key, t), *(for_client(for_round("counter", key, t), k) for k in range(3))]
            drawn += [tuple(source.noisy(GaussianNoise(), torch.zeros(4), 1.0).tolist()) for source in found]
            drawn.append((keys.word(keys.fold(key, "round", t)),))
    assert len(set(drawn)) == len(drawn) == 3 * 3 * 5
    assert parts.setup.phase_key == parts.setup.key  # the training draws what it would draw without a preparation


@pytest.mark.slow
def test_the_keys_of_the_phases_are_those_that_clients_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []
    real = Site.__call__

    def noting(self: Site, t: int, down: Any, terms: Mapping[int, Terms]) -> Any:
        seen.append((self.header(t, 0).run.partition(".")[2], keys.word(keys.fold(self.key, "round", t))))
        return real(self, t, down, terms)

    monkeypatch.setattr(Site, "__call__", noting)
    start(tiny(rounds=1), tmp_path / "run")
    assert {phase for phase, _ in seen} == {"train", "ask", ""}
    assert len({key for _, key in seen}) == len(seen)


class Counted(NamedTuple):
    """Numbers in what went over the wire, by direction, and messages with their envelopes."""

    down: int
    up: int


def test_the_phases_are_what_the_names_say() -> None:
    parts = simulated(tiny())
    assert [each.setup.phase for each in parts.preparation] == ["train", "ask"]
    assert [type(each.setup.algorithm) for each in parts.preparation] == [Train, Ask]
    assert isinstance(parts.setup.algorithm, SlaugFL)
    assert not parts.setup.prepares
    assert "slaug_fl" in all_algorithms()


@pytest.mark.slow
def test_what_the_server_found_before_the_training_belongs_to_the_receipt(once: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(once, tmp_path / "run"))
    tables = sorted(run.glob("preparation/*/*.jsonl"))
    assert tables
    assert verify(run) == []
    for table in tables:
        whole = table.read_bytes()
        table.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
        assert verify(run) == [f"{table.relative_to(run)}: it is not the file of the receipt"]
        table.write_bytes(whole)
    (tables[0].parent / "more.jsonl").write_text("{}")
    assert verify(run) == [f"{tables[0].parent.relative_to(run)}/more.jsonl: the receipt does not know it"]


def test_a_receipt_that_leaves_the_tables_out_does_not_hold(once: Path) -> None:
    told = seal.claimed(once)
    files = {name: value for name, value in told["files"].items() if "/" not in name}
    left_out = told["files"].keys() - files.keys()
    assert left_out
    assert seal.wrong(once, {**told, "files": files}) == [
        f"{name}: the receipt does not know it" for name in sorted(left_out)
    ]


def test_a_file_of_the_receipt_that_is_a_folder_is_not_absent(once: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(once, tmp_path / "run"))
    (run / "model.json").unlink()
    (run / "model.json").mkdir()
    assert verify(run) == ["model.json: it is not the file of the receipt"]
    assert seal.absent(run, seal.claimed(run)) == []
