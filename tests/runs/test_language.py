"""A language model under a promise for each text: trained, verified and used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sordino
from sordino import config
from sordino.errors import SordinoError
from sordino.receipts.documents import card, gather
from sordino.receipts.verify import examine
from sordino.runs.run import start
from tests.data.test_tokens import FILE
from tests.helpers.between_sites import Federated, ledger_of, model_of

LENGTH = 12
TEXT = f'kind = "text", tokenizer = "bytes", length = {LENGTH}'
CLASSES = 'kind = "label", classes = ["ill", "well"]'
SMALL = {"name": "transformer", "width": 8, "layers": 1, "heads": 2}


def notes(folder: Path, task: str = "next_token", text: str = TEXT, more: str = "") -> dict[str, Any]:
    """An experiment on 120 short notes of two clinics."""
    told = ["has a fever", "no fever"]
    lines = [f"{told[row % 3 % 2]},c{row % 2},{'well' if row % 3 % 2 else 'ill'},{row}" for row in range(120)]
    (folder / "notes.csv").write_text("\n".join(["note,clinic,outcome,age", *lines]) + "\n")
    label = CLASSES if task == "classification" else 'kind = "ignored"'
    (folder / "notes.toml").write_text(
        f'[columns]\nnote = {{ {text} }}\nclinic = {{ kind = "group", names = ["c0", "c1"] }}\n'
        f"outcome = {{ {label} }}\n" + (more or 'age = { kind = "ignored" }\n')
    )
    data = {"source": "tabular", "path": str(folder / "notes.csv"), "schema": str(folder / "notes.toml")}
    data |= {"group": "clinic"} | ({"label": "outcome"} if task == "classification" else {})
    return {
        "data": data,
        "task": {"name": task},
        "model": SMALL if task == "next_token" else {**SMALL, "tokens": 257},
        "algorithm": {"name": "gaussian_gdp", "lr": 2.0, "clip": 1.0},
        "privacy": {"epsilon": 50.0, "delta": 1e-3},
        "rounds": 4,
    }


@pytest.mark.slow
def test_a_text_is_the_unit_of_the_promise(tmp_path: Path) -> None:
    run = sordino.run(notes(tmp_path), out=tmp_path / "run")
    rows = run.metrics
    assert rows[-1].loss is not None
    assert rows[0].loss is not None
    assert rows[-1].loss < rows[0].loss
    assert examine(run.folder).wrong == []
    example = next(row for row in run.receipt.guarantees if row.unit == "example")
    assert example.epsilon is not None
    assert example.epsilon <= 50.0
    assert any("an example is one row with the text in it" in said for said in run.receipt.assumptions)
    written = card(gather(run.folder, None, code=False, anyway=False))
    assert "text-generation" in written
    assert "tabular" not in written
    assert "on texts" in written
    found = sordino.predict(run.folder, [{"note": "no fever"}, {"note": "qzwx%$#@"}, {"note": "x"}])
    usual, strange, nothing = [row["predicted"] for row in found.rows]
    assert usual < strange  # the mean surprise of its letters
    assert nothing == 0
    scored = sordino.predict(run.folder, tmp_path / "notes.csv", score=True)
    assert 0 < scored.described["loss"] < 6


def test_a_model_whose_tokenizer_was_changed_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="Hugging Face's tokenizers is not installed")
    run = sordino.run({**notes(tmp_path), "rounds": 1}, out=tmp_path / "run")
    told = json.loads((run.folder / "model.json").read_text())
    for changed in ("{}", json.dumps(FILE)):
        told["inputs"]["columns"][0]["tokenizer"] = changed
        (run.folder / "model.json").write_text(json.dumps(told))
        with pytest.raises(SordinoError):
            sordino.predict(run.folder, [{"note": "no fever"}])


@pytest.mark.slow
def test_a_class_is_predicted_from_a_text_in_its_order(tmp_path: Path) -> None:
    made = notes(tmp_path, "classification")
    open_run = {"algorithm": {"name": "fedavg", "lr": 0.5, "local_epochs": 8}, "privacy": {}, "rounds": 2}
    run = sordino.run({**made, **open_run}, out=tmp_path / "run")
    assert run.accuracy == 1
    found = sordino.predict(run.folder, [{"note": "no fever"}, {"note": "has a fever"}])
    assert [row["predicted"] for row in found.rows] == ["well", "ill"]


@pytest.mark.parametrize(
    ("changes", "said", "code"),
    [
        ({"task": {"name": "next_token", "vocabulary": 300}}, {}, "schema-disagrees"),
        ({}, {"text": 'kind = "text", buckets = 256, length = 12'}, "schema-disagrees"),
        ({}, {"more": 'age = { kind = "number", range = [0, 120] }\n'}, "schema-disagrees"),
        ({"model": {"name": "text", "tokens": 257}}, {}, "words-are-no-quantities"),
        ({"model": {"name": "transformer", "tokens": 257}}, {}, "tokens-do-not-fit"),
        ({"algorithm": {"name": "moon"}, "privacy": {}}, {}, "task-needs-task-loss"),
        ({"data": {"label": "outcome"}}, {}, "task-does-not-fit"),
        ({"data": {"schema": None}, "privacy": {}, "algorithm": {"name": "fedavg"}}, {}, "schema-disagrees"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], said: dict[str, str], code: str, tmp_path: Path) -> None:
    made = notes(tmp_path, **said)
    data = {key: value for key, value in {**made["data"], **changes.get("data", {})}.items() if value is not None}
    with pytest.raises(SordinoError) as refused:
        sordino.run({**made, **changes, "data": data}, out=tmp_path / "run")
    assert refused.value.code == code


@pytest.mark.slow
def test_texts_in_memory_are_tokens_already(tmp_path: Path) -> None:
    """Each text counts upwards from its first token: whoever knows a token knows the next."""
    x = np.array([[1 + (first + at) % 7 if at < 5 else 0 for at in range(6)] for first in range(60)])
    made = {"task": {"name": "next_token", "vocabulary": 7}, "model": SMALL, "rounds": 2}
    made |= {"partition": {"scheme": "iid", "clients": 2}}
    learned = {"algorithm": {"name": "fedavg", "lr": 1.0, "local_epochs": 10}, "privacy": {}}
    rows = {"x": x, "y": np.zeros(60, int)}
    run = sordino.run(data=rows, **made, **learned, out=tmp_path / "open")
    assert run.accuracy is not None
    assert run.accuracy > 0.9
    real = {"algorithm": {"name": "gaussian_gdp"}, "privacy": {"noise": "system", "epsilon": 1.0, "delta": 1e-4}}
    run = sordino.run(data=rows, **made, **real, out=tmp_path / "real")
    assert "proved" in run.promise
    for wrong in ({"data.standardise": "channel"}, {"task": {"name": "next_token", "vocabulary": 6}}):
        with pytest.raises(SordinoError) as refused:
            sordino.run(data=rows, **{**made, **learned, **wrong}, out=tmp_path / "wrong")
        assert refused.value.code == ("no-such-scaling" if "task" not in wrong else "own-rows-unfit")


class TwoHeads(nn.Module):
    """A network whose second head no loss of the library sees."""

    def __init__(self) -> None:
        super().__init__()
        self.flat, self.head, self.other = nn.Flatten(), nn.Linear(64, 10), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.flat(x))  # type: ignore[no-any-return]


def with_both(model: nn.Module, rows: Any, round: int) -> nn.Module:
    flat = rows.x.flatten(1)
    loss = nn.functional.cross_entropy(model.head(flat) + model.other(flat), rows.y)  # type: ignore[operator]
    step = torch.optim.SGD(model.parameters(), lr=0.1)
    loss.backward()
    step.step()
    return model


@pytest.mark.slow
def test_a_parameter_that_nothing_trains_is_refused_before_round_one(tmp_path: Path) -> None:
    made: dict[str, Any] = {"model": TwoHeads, "rounds": 1, "partition": {"scheme": "iid", "clients": 2}}
    for method, privacy in (("fedavg", {}), ("gaussian_gdp", {"epsilon": 1.0, "delta": 1e-5})):
        with pytest.raises(SordinoError) as refused:
            sordino.run(**made, algorithm={"name": method}, privacy=privacy, out=tmp_path / "refused")
        assert refused.value.code == "unused-parameter"
        assert "other" in refused.value.what
        assert not (tmp_path / "refused").exists()
    # somebody's own training may well use it
    assert sordino.run(**made, train=with_both, privacy={}, out=tmp_path / "run").accuracy is not None


@pytest.mark.slow
def test_sites_train_what_the_simulation_trains(tmp_path: Path) -> None:
    made = notes(tmp_path)
    made |= {"rounds": 2, "partition": {"scheme": "natural"}, "engine": {"executor": "loop"}}
    experiment = config.load(made)
    start(experiment, tmp_path / "loop")
    between = Federated(experiment, tmp_path / "sites")
    between.play()
    assert model_of(between.folder) == model_of(tmp_path / "loop")
    assert ledger_of(between.folder) == ledger_of(tmp_path / "loop")
    assert (between.folder / "model.json").read_bytes() == (tmp_path / "loop" / "model.json").read_bytes()
