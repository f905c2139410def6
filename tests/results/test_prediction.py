"""A model is used without its run: what the bundle predicts is what the run has measured, and what plain PyTorch gives."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import sordino
from sordino import keys, user_code
from sordino.data.dataset import apart
from sordino.errors import ConfigError, DataError, RunError, SordinoError
from sordino.receipts.verify import examine, verify
from sordino.results.prediction import EXACT
from sordino.runs.simulation import simulated
from tests.data.tables import DECLARED, Row, saved, table
from tests.helpers.command_line import Said

OWN = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.base = nn.Linear(8, width).requires_grad_(False)
        self.register_buffer("shift", torch.randn(width))
        self.head = nn.Linear(width, 3)
    def forward(self, x):
        return self.head(torch.relu(self.base(x) + self.shift))
"""
RUN: dict[str, Any] = {
    "rounds": 2,
    "partition": {"scheme": "natural"},
    "algorithm": {"name": "gaussian_gdp", "clip": 1.0, "lr": 1.0},
    "privacy": {"epsilon": 8.0, "delta": 1e-2, "noise": "system"},
    "model": {"name": "own_bundled:Net", "options": {"width": 5}},
}


PLAIN: dict[str, Any] = {
    "partition": {"scheme": "natural"},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "model": {"name": "logistic"},
    "privacy": {},
}


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A private run on a table, with a user's own class that has a frozen base and a buffer."""
    place = tmp_path_factory.mktemp("clinic")
    (place / "own_bundled.py").write_text(OWN)
    (place / "schema.toml").write_text(DECLARED)
    path = saved(place, rows_of())
    data = {"source": "tabular", "path": str(path), "label": "outcome", "group": "clinic"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(place), *sys.path])
        sordino.run({**RUN, "data": {**data, "schema": str(place / "schema.toml")}}, out=place / "run")
        yield place
        sys.modules.pop("own_bundled", None)


@pytest.fixture
def run(clinic: Path, tmp_path: Path) -> Path:
    shutil.copytree(clinic / "run", tmp_path / "run")
    return tmp_path / "run"


def held_back(rows: list[Row]) -> list[Row]:
    """The rows that the run was tested on, found by other means."""
    coins = keys.word(keys.fold(keys.root(0), "held back"))
    return [rows[at] for at in apart([len(rows)], None, 0.2, coins)[1]]


def rows_of() -> list[Row]:
    rows = table(60)
    for i, row in enumerate(rows):
        row["ward"] = ("A", "B", "unheard of")[i % 3]
    return rows


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(SordinoError) as caught:
        call()
    return caught.value.code


# what it predicts -----------------------------------------------------------------------------------------------------


def test_the_bundle_is_as_good_as_the_run_has_measured(clinic: Path, tmp_path: Path) -> None:
    tests = saved(tmp_path, held_back(rows_of()))
    found = sordino.predict(clinic / "run", tests, score=True, with_code=True)
    assert EXACT in found.notes
    assert EXACT not in sordino.predict(clinic / "run", tests, with_code=True).notes
    assert found.accuracy == sordino.open_run(clinic / "run").accuracy
    assert set(found.labels) <= {"well", "ill", "worse"}


def test_plain_pytorch_gives_the_same(clinic: Path) -> None:
    """Read with json and safetensors alone: the frozen base, the buffer and the numbers to scale by are all there."""
    told = json.loads((clinic / "run/model.json").read_text())
    net = user_code.load("own_bundled:Net", "model")(**told["model"]["options"])
    net.load_state_dict(load_file(clinic / "run" / told["weights"]), strict=True)
    rows, inputs = rows_of(), []
    for row in rows:
        x: list[float] = []
        for column in told["inputs"]["columns"]:
            value = row[column["name"]]
            if column["kind"] == "number":
                low, high = column["range"]
                x.append(min(max(value, low), high))
            elif column["kind"] == "boolean":
                x.append(value == "true")
            else:
                value = value if value in column["levels"] else column["other"]
                x += [level == value for level in column["levels"]]
        inputs.append(x)
    mean, deviation = torch.tensor(told["inputs"]["mean"]), torch.tensor(told["inputs"]["deviation"])
    with torch.no_grad():
        wanted = net((torch.tensor(inputs, dtype=torch.float32) - mean) / deviation).softmax(1)
    found = sordino.predict(clinic / "run", rows, with_code=True)
    assert np.allclose(found.probabilities, wanted.numpy(), atol=1e-6)
    assert found.labels == [told["classes"][place] for place in wanted.argmax(1).tolist()]


def test_new_rows_need_the_features_and_nothing_else(clinic: Path, tmp_path: Path) -> None:
    """In any order, from a file, from dictionaries, from a data frame, as texts or as numbers."""
    rows = rows_of()[:7]
    bare = [{name: row[name] for name in ("smokes", "status", "age", "place", "ward")} for row in rows]
    truths = [row | {"smokes": row["smokes"] == "true"} for row in bare]
    pandas = pytest.importorskip("pandas", reason="the frames extra is not installed")
    wanted = sordino.predict(clinic / "run", rows, with_code=True)
    for given in (saved(tmp_path, bare), bare, truths, pandas.DataFrame(bare)):
        found = sordino.predict(clinic / "run", given, with_code=True)
        assert np.array_equal(found.probabilities, wanted.probabilities)
    assert wanted.to_frame().to_csv(index=False) == wanted.to_csv()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"status": "unknown"}, "status = 'unknown' is not a level"),
        ({"age": "old"}, "age = 'old' is not a number"),
        ({"age": ""}, "column age has no value (row 4 after the header)"),
        ({"smokes": "perhaps"}, "smokes = 'perhaps' is neither"),
    ],
)
def test_a_cell_that_does_not_fit_is_named(clinic: Path, tmp_path: Path, change: Row, said: str) -> None:
    rows = rows_of()[:5]
    rows[3] |= change
    with pytest.raises(DataError, match="row 4 after the header") as refusal:
        sordino.predict(clinic / "run", saved(tmp_path, rows), with_code=True)
    assert said in refusal.value.what


def test_what_cannot_be_read_is_refused(clinic: Path, tmp_path: Path) -> None:
    rows, run = rows_of()[:4], clinic / "run"
    fewer = [{k: v for k, v in row.items() if k != "ward"} for row in rows]
    assert code_of(lambda: sordino.predict(run, saved(tmp_path, fewer), with_code=True)) == "missing-column"
    assert code_of(lambda: sordino.predict(run, tmp_path / "none.csv", with_code=True)) == "missing-file"
    assert code_of(lambda: sordino.predict(run, [{"age": [1]}, {"age": "x"}], with_code=True)) == "unreadable-rows"
    assert code_of(lambda: sordino.predict(run, np.zeros((2, 5)), with_code=True)) == "rows-do-not-fit"
    rows[1]["outcome"] = "dead"
    assert code_of(lambda: sordino.predict(run, rows, score=True, with_code=True)) == "unknown-class"
    assert len(sordino.predict(run, rows, with_code=True)) == 4  # nobody asked for a score


# what is believed -----------------------------------------------------------------------------------------------------


def test_an_edited_bundle_is_noticed(run: Path) -> None:
    assert verify(run) == []
    told = (run / "model.json").read_text()
    (run / "model.json").write_text(told.replace("60.0", "61.0", 1))
    assert any(line.startswith("model.json") for line in verify(run))
    assert code_of(lambda: sordino.predict(run, rows_of(), with_code=True)) == "edited-bundle"
    (run / "model.json").unlink()  # what was not passed on is named, and no disagreement
    assert any(line.startswith("model.json") for line in examine(run, code=True).unseen)


def test_two_files_are_all_that_it_takes(clinic: Path, tmp_path: Path) -> None:
    for name in ("model.json", "model.safetensors"):
        shutil.copy(clinic / "run" / name, tmp_path)
    alone = sordino.predict(tmp_path, rows_of(), with_code=True)
    assert alone.to_csv() == sordino.predict(clinic / "run", rows_of(), with_code=True).to_csv()


@pytest.mark.parametrize("damage", ["{", "[]", '{"guarantees": 1}'])
def test_a_damaged_receipt_beside_a_bundle_is_told(run: Path, damage: str) -> None:
    (run / "privacy.json").write_text(damage)
    assert code_of(lambda: sordino.predict(run, rows_of(), with_code=True)) == "run-file-damaged"


@pytest.mark.parametrize("damage", ["{", '{"format": 1}', "[" * 10_000, "mean"])
def test_a_damaged_bundle_is_told(clinic: Path, tmp_path: Path, damage: str) -> None:
    shutil.copy(clinic / "run/model.safetensors", tmp_path)
    whole = json.loads((clinic / "run/model.json").read_text())
    whole["inputs"]["mean"] = whole["inputs"]["mean"][:3]
    (tmp_path / "model.json").write_text(json.dumps(whole) if damage == "mean" else damage)
    assert code_of(lambda: sordino.predict(tmp_path, [], with_code=True)) == "run-file-damaged"


def test_somebodys_model_is_not_imported_unasked(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_bundled.py").write_text("raise SystemExit('somebody ran me')")
    monkeypatch.delitem(sys.modules, "own_bundled", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert code_of(lambda: sordino.predict(run, rows_of())) == "own-model-needs-code"
    assert "own_bundled" not in sys.modules
    with pytest.raises(ConfigError, match="somebody ran me"):
        sordino.predict(run, rows_of(), with_code=True)


def test_a_run_without_a_bundle_is_told(run: Path, tmp_path: Path) -> None:
    (run / "model.json").unlink()
    (run / "privacy.json").unlink()
    assert code_of(lambda: sordino.predict(run, [])) == "no-bundle"
    (run / "model.safetensors").unlink()
    assert code_of(lambda: sordino.predict(run, [])) == "no-model"
    with pytest.raises(RunError):
        sordino.predict(tmp_path / "nowhere", [])


# who may read it ------------------------------------------------------------------------------------------------------


@pytest.mark.one_fast
@pytest.mark.parametrize("more", [{"schema": "learned"}, {"standardise": "channel"}])
def test_what_rows_have_decided_stays_private_under_real_noise(clinic: Path, tmp_path: Path, more: Any) -> None:
    """No epsilon covers levels or means of secret rows, so nobody but the owner finds them, and the owner predicts."""
    data = {"source": "tabular", "path": str(clinic / "visits.csv"), "label": "outcome", "group": "clinic"}
    if "schema" not in more:
        data["schema"] = str(clinic / "schema.toml")
    real = {**RUN, "model": {"name": "logistic"}, "data": {**data, **more}}
    sordino.run(real, "rounds=1", out=tmp_path / "run")
    assert not (tmp_path / "run/model.json").exists()
    assert verify(tmp_path / "run") == []
    assert len(sordino.predict(tmp_path / "run", rows_of())) == 60
    assert (tmp_path / "run/private/model.json").stat().st_mode & 0o077 == 0
    shutil.rmtree(tmp_path / "run/private")
    assert code_of(lambda: sordino.predict(tmp_path / "run", rows_of())) == "no-bundle"


def test_a_simulation_keeps_nothing_back(clinic: Path, tmp_path: Path) -> None:
    """It protects nobody: levels and means that it has learned are its result, and known levels are asked for."""
    data = {"source": "tabular", "path": str(clinic / "visits.csv"), "label": "outcome", "group": "clinic"}
    sordino.run({"rounds": 1, "data": data, **PLAIN}, out=tmp_path / "run")
    columns = json.loads((tmp_path / "run/model.json").read_text())["inputs"]["columns"]
    assert [(c["name"], c["kind"], c.get("levels")) for c in columns[:4]] == [
        ("place", "number", None),
        ("age", "number", None),
        ("ward", "levels", ["A", "B", "unheard of"]),
        ("status", "levels", ["negative", "positive"]),
    ]
    tests = saved(tmp_path, held_back(rows_of()))
    found = sordino.predict(tmp_path / "run", tests, score=True)
    assert found.accuracy == sordino.open_run(tmp_path / "run").accuracy
    rows = [row | {"ward": "C"} for row in rows_of()]
    assert code_of(lambda: sordino.predict(tmp_path / "run", rows)) == "row-does-not-fit"


# images ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits") / "run"
    few = {"scheme": "iid", "clients": 2}
    data = {"source": "digits", "train": 100, "test": 50}
    pfl = {"name": "pfl_dyn", "local_steps": 2}
    sordino.run({"rounds": 1, "algorithm": pfl, "model": {"name": "mlp"}, "data": data, "partition": few}, out=folder)
    return folder


def test_images_come_from_arrays_and_from_files(digits: Path, tmp_path: Path) -> None:
    experiment = sordino.open_run(digits)._run.experiment
    test = simulated(experiment).population.dataset.test
    for at in range(6):
        folder = tmp_path / str(test.y[at])
        folder.mkdir(exist_ok=True)
        Image.fromarray(test.x[at, :, :, 0]).save(folder / f"{at}.png")
    arrays = sordino.predict(digits, test.x[:6])
    files = sordino.predict(digits, tmp_path, score=True)
    by_place = dict(zip(files.names, files.labels, strict=True))
    assert by_place == {f"{test.y[at]}/{at}.png": label for at, label in enumerate(arrays.labels)}
    assert files.accuracy == np.mean([int(a) == b for a, b in zip(arrays.labels, test.y[:6], strict=True)])
    assert any("sends out" in note for note in arrays.notes)  # a model that every client makes its own
    assert code_of(lambda: sordino.predict(digits, test.x[:6].astype(float))) == "rows-do-not-fit"
    Image.new("RGB", (8, 8), (200, 10, 10)).save(tmp_path / "red.png")
    assert code_of(lambda: sordino.predict(digits, tmp_path / "red.png")) == "mixed-pixel-formats"
    Image.new("L", (9, 9)).save(tmp_path / "large.png")
    assert code_of(lambda: sordino.predict(digits, tmp_path / "large.png")) == "mixed-image-sizes"
    (tmp_path / "empty").mkdir()
    assert code_of(lambda: sordino.predict(digits, tmp_path / "empty")) == "no-images"


# the command line -----------------------------------------------------------------------------------------------------


def test_the_command_line_says_the_same(cli: Callable[..., Said], clinic: Path, tmp_path: Path) -> None:
    rows = saved(tmp_path, rows_of())
    wanted = sordino.predict(clinic / "run", rows, score=True, with_code=True)
    asked = ("predict", clinic / "run", rows, "--with-code")
    assert cli(*asked).out == wanted.to_csv()
    told = json.loads(cli(*asked, "--score", "--json", "--out", tmp_path / "found.csv").out)
    assert told["accuracy"] == wanted.accuracy
    assert told["classes"] == ["well", "ill", "worse"]
    assert (tmp_path / "found.csv").read_text() == wanted.to_csv()
    assert json.loads(cli(*asked, "--json").out)["predictions"] == list(wanted.rows)
    assert "accuracy" in cli(*asked, "--score").err


# a client's own model -------------------------------------------------------------------------------------------------
PERSONAL: dict[str, dict[str, Any]] = {
    "finetune": {"algorithm": {"name": "fedavg", "lr": 0.1}, "evaluation": {"personal": ["plain", "finetune"]}},
    "proto": {"algorithm": {"name": "fedavg", "lr": 0.1}, "evaluation": {"personal": ["proto"]}},
    "ditto": {"algorithm": {"name": "ditto"}},
    "shared": {"algorithm": {"name": "fedavg", "lr": 0.1}},
}


@pytest.mark.one_fast
@pytest.mark.parametrize("way", PERSONAL)
def test_a_clients_rows_make_the_model_its_own_as_in_the_run(clinic: Path, tmp_path: Path, way: str) -> None:
    """From the files of the run and the rows of each client, with the accuracy that the run has measured; from another
    client's rows it is another model. What a client keeps for itself is not in the run, so it is refused.
    """
    rows = [{**row, "clinic": "North" if row["age"] > 40 else "South"} for row in rows_of()]
    path = saved(tmp_path, rows)
    data = {"source": "tabular", "path": str(path), "label": "outcome", "group": "clinic"}
    model = {"name": "mlp", "hidden": 4}
    asked = {"rounds": 2, "data": {**data, "schema": str(clinic / "schema.toml")}, "model": model, "privacy": {}}
    result = sordino.run({**asked, **PERSONAL[way]}, out=tmp_path / "run")
    tested = held_back(rows)
    mine = {name: [row for row in rows if row not in tested and row["clinic"] == name] for name in ("South", "North")}
    if way in ("ditto", "shared"):
        assert code_of(lambda: sordino.predict(tmp_path / "run", tested, own=mine["North"])) == "not-personalised"
        return
    found = {}
    for name, held in mine.items():
        theirs = [row for row in tested if row["clinic"] == name]
        found[name] = sordino.predict(tmp_path / "run", theirs, own=held, score=True)
        assert f"from {len(held)} rows" in found[name].notes[0]
    last = result.metrics[-1]
    assert last.clients is not None
    assert last.clients.each is not None
    if way == "proto":  # of finetune the run shows the mean alone, as it stands beside the headline
        assert dict(zip(mine, last.clients.each, strict=True)) == {k: one.accuracy for k, one in found.items()}
    right = sum(one.accuracy * len(one) for one in found.values()) / len(tested)
    told = last.accuracy if way == "proto" else last.also["global, finetune"].accuracy
    assert right == pytest.approx(told)
    foreign = sordino.predict(tmp_path / "run", tested, own=mine["South"])
    assert not np.allclose(
        foreign.probabilities, sordino.predict(tmp_path / "run", tested, own=mine["North"]).probabilities
    )
