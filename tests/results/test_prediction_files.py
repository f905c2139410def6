"""Files are read for a prediction as they were for the training: gaps are filled alike, and letters can be named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import sordino
from sordino.errors import SordinoError
from tests.data.tables import saved
from tests.helpers.command_line import Said

SCHEMA = """
[columns]
town = { kind = "levels", levels = ["Köln", "Bonn"], missing = "Bonn" }
dose = { kind = "number", range = [0, 10], missing = 1.5 }
old = { kind = "boolean", missing = true }
died = { kind = "label", classes = ["0", "1"] }
"""
GAPS = ({"town": ""}, {"dose": ""}, {"old": ""})
ROW = {"town": "Köln", "dose": 3, "old": "false", "died": 1}
FILLED = [ROW | change for change in ({"town": "Bonn"}, {"dose": 1.5}, {"old": "true"})]


def trained(folder: Path, missing: str) -> Path:
    rows = [ROW | {"dose": i % 7, "town": "Köln" if i % 3 else "Bonn", "died": i % 2} for i in range(40)]
    rows[5] |= {"dose": ""} if missing == "fill" else {}
    (folder / "schema.toml").write_text(SCHEMA, encoding="utf-8")
    told = {
        "rounds": 1,
        "data": {
            "source": "tabular", "path": str(saved(folder, rows)), "label": "died", "missing": missing,
            "schema": str(folder / "schema.toml"),
        },
        "partition": {"scheme": "iid", "clients": 2},
        "model": {"name": "logistic"},
        "algorithm": {"name": "fedavg"},
        "privacy": {},
    }  # fmt: skip
    return sordino.run(told, out=folder / "run").folder


def test_a_gap_is_filled_as_in_training(tmp_path: Path, cli: Callable[..., Said]) -> None:
    run = trained(tmp_path, "fill")
    empty = saved(tmp_path, [ROW | change for change in GAPS], "empty.csv")
    full = saved(tmp_path, FILLED, "full.csv")
    assert sordino.predict(run, empty).to_csv() == sordino.predict(run, full).to_csv()
    said = cli("predict", run, tmp_path / "visits.csv", "--score")  # the very table that it was trained on
    assert (said.code, "of 40 rows" in said.err) == (0, True)


def test_where_training_refused_gaps_a_prediction_does(tmp_path: Path) -> None:
    run = trained(tmp_path, "refuse")
    assert "missing" not in json.dumps(json.loads((run / "model.json").read_text()))
    with pytest.raises(SordinoError) as refused:
        sordino.predict(run, saved(tmp_path, [ROW | GAPS[1]], "empty.csv"))
    assert refused.value.code == "missing-values"


def test_the_fix_for_an_encoding_can_be_followed(tmp_path: Path, cli: Callable[..., Said]) -> None:
    run = trained(tmp_path, "refuse")
    file, same = tmp_path / "old.csv", saved(tmp_path, [ROW, ROW | {"town": "Bonn"}], "new.csv")
    file.write_text(same.read_text(encoding="utf-8"), encoding="cp1252")
    refused = cli("predict", run, file)
    assert (refused.code, "--encoding cp1252" in refused.err) == (3, True)
    assert cli("predict", run, file, "--encoding", "cp1252").out == cli("predict", run, same).out
    assert np.array_equal(
        [*sordino.predict(run, file, encoding="cp1252").rows], [*sordino.predict(run, same).rows]
    )  # and in Python
    assert "one of: utf-8" in cli("predict", run, file, "--encoding", "cp9999").err


def test_numbers_in_another_unit_are_noted(tmp_path: Path, cli: Callable[..., Said]) -> None:
    run = trained(tmp_path, "refuse")
    said = cli("predict", run, saved(tmp_path, [ROW | {"dose": 900}, ROW, ROW | {"dose": 3000}], "grams.csv"))
    assert said.code == 0
    assert "dose: 2 of 3 values lie outside [0, 10]" in " ".join(said.err.split())
    assert "outside" not in cli("predict", run, saved(tmp_path, [ROW], "fine.csv")).err
