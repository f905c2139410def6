"""What a run can predict: each task from its settings to predictions, and each algorithm with each task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import sordino
from sordino import config
from sordino.algorithms import all_algorithms
from sordino.cli.program import app
from sordino.errors import DataError, SordinoError
from sordino.receipts.documents import card, gather
from sordino.receipts.folder import RunFolder
from sordino.sites.own_data import OwnData
from sordino.tasks import nets
from tests.helpers.between_sites import Federated, model_of

SCHEMA = """[columns]
age = { kind = "number", range = [0, 110] }
ward = { kind = "levels", levels = ["A", "B"] }
clinic = { kind = "group", names = ["c0", "c1", "c2"] }
"""
OF_LABEL = {
    "classification": 'ill = { kind = "label", classes = ["0", "1"] }',
    "regression": 'stay = { kind = "label", range = [0, 30] }',
    "counts": 'visits = { kind = "label", range = [0, 20] }',
    "multi_label": 'ill = { kind = "label", range = [0, 1] }\ncold = { kind = "label", range = [0, 1] }',
}
LABELS = ("ill", "stay", "visits", "cold")
TASKS: dict[str, dict[str, Any]] = {
    "classification": {"class_weights": {"0": 1.0, "1": 3.0}},
    "regression": {"range": [0, 30]},
    "counts": {"most": 20},
    "multi_label": {"labels": ["ill", "cold"]},
}
LABEL = {"classification": "ill", "regression": "stay", "counts": "visits"}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows, and a schema for each task."""
    folder, draw = tmp_path_factory.mktemp("tasks"), np.random.default_rng(3)
    age, ward = draw.uniform(20, 90, 90), draw.integers(0, 2, 90)
    stay = np.clip(0.2 * age + 5 * ward + draw.normal(0, 1, 90), 0, 40)
    visits = draw.poisson(np.exp(0.03 * (age - 40)))
    ill, cold = (age + draw.normal(0, 9, 90) > 60).astype(int), (ward + draw.normal(0, 0.3, 90) > 0.5).astype(int)
    rows = zip(age, ward, range(90), ill, stay, visits, cold, strict=True)
    lines = [f"{a:.1f},{'AB'[w]},c{k % 3},{i},{s:.2f},{v},{c}" for a, w, k, i, s, v, c in rows]
    (folder / "visits.csv").write_text("\n".join(["age,ward,clinic,ill,stay,visits,cold", *lines]) + "\n")
    for task, said in OF_LABEL.items():
        rest = "".join(f'{name} = {{ kind = "ignored" }}\n' for name in LABELS if f"{name} =" not in said)
        (folder / f"{task}.toml").write_text(SCHEMA + said + "\n" + rest)
    return folder


def asked(table: Path, task: str, **settings: Any) -> dict[str, Any]:
    label = {"label": LABEL[task]} if task in LABEL else {}
    data = {"source": "tabular", "path": str(table / "visits.csv"), "schema": str(table / f"{task}.toml"), **label}
    made = {"task": {"name": task, **TASKS[task]}, "data": {**data, "group": "clinic"}, "rounds": 4, **settings}
    return {"algorithm": {"name": "fedavg", "lr": 0.2, "local_epochs": 5, "batch_size": 10}, "privacy": {}, **made}


JUDGED = {
    "classification": "accuracy",
    "regression": "mean_absolute_error",
    "counts": "mean_absolute_error",
    "multi_label": "label_accuracy",
}


@pytest.mark.one_fast
@pytest.mark.parametrize("task", TASKS)
def test_a_task_goes_from_its_settings_to_predictions(task: str, table: Path, tmp_path: Path) -> None:
    run = sordino.run(asked(table, task), out=tmp_path / "run")
    assert run.score is not None
    judged, value = run.score
    row = run.metrics[-1]
    constant = row.constant
    assert constant is not None
    assert judged.name == JUDGED[task]
    assert judged.reaches(value, constant)  # it has learned something
    assert (run.accuracy is not None) == (task == "classification")
    assert judged.in_words(value) in repr(run)
    found = sordino.predict(run.folder, table / "visits.csv", score=True)
    assert found.scored is not None
    assert len(list(found.rows)) == len(found) == 90
    assert ("accuracy" in "\n".join(found.lines())) == (task in ("classification", "multi_label"))
    bundle = json.loads((run.folder / "model.json").read_text())
    assert bundle["task"] == task
    page = run.report(tmp_path / "page.html").read_text()
    assert f"Test {judged.words}" in page
    if task != "classification":
        assert judged.better in page


def test_a_prediction_is_what_the_network_says_in_the_unit_of_the_label(table: Path, tmp_path: Path) -> None:
    """By hand, from the files alone: 15 + 15 z for a range of 0 to 30."""
    from safetensors.numpy import load_file

    run = sordino.run(asked(table, "regression"), out=tmp_path / "run")
    assert "tabular-regression" in card(gather(run.folder, None, code=False, anyway=False))
    weights = load_file(run.folder / "model.safetensors")
    (w,), (b,) = (value for name, value in sorted(weights.items(), key=lambda one: -one[1].ndim))
    x = np.array([(40 - 55) / 55, 0.0, 1.0])  # age, ward A, ward B
    found = list(sordino.predict(run.folder, [{"age": 40.0, "ward": "B"}]).rows)
    assert found[0]["predicted"] == pytest.approx(float(np.clip(15 + 15 * (w @ x + b), 0, 30)), rel=1e-5)


def test_one_row_beyond_the_declared_range_counts_as_its_end(table: Path, tmp_path: Path) -> None:
    """Neighbours: a label of a million instead of 30 changes no byte of the model."""
    lines = (table / "visits.csv").read_text().splitlines()
    models = []
    for told in ("30", "1000000"):
        cells = lines[1].split(",")
        cells[4] = told
        (tmp_path / "visits.csv").write_text("\n".join([lines[0], ",".join(cells), *lines[2:]]) + "\n")
        made = asked(table, "regression", rounds=1)
        made["data"]["path"] = str(tmp_path / "visits.csv")
        models.append((sordino.run(made, out=tmp_path / told).folder / "model.safetensors").read_bytes())
    assert models[0] == models[1]


@pytest.mark.one_fast
@pytest.mark.parametrize("task", ["regression", "multi_label"])
def test_what_is_held_is_told_without_classes(task: str, table: Path) -> None:
    made = asked(table, task)
    (table / "run.toml").write_text(config.load(made).toml())
    for verb in (["data", "partition"], ["data", "list"], ["data", "plot", "--out", str(table / "p.svg")]):
        ended = CliRunner().invoke(app, [*verb, str(table / "run.toml")])
        assert ended.exit_code == 0, (verb, ended.output)


def test_a_draft_says_the_range_of_a_label_with_many_numbers(table: Path) -> None:
    from sordino.data import inferred_columns, schema

    found = schema.parsed(inferred_columns.draft(str(table / "visits.csv"), "stay", "clinic"))
    assert (found.columns["stay"].kind, found.columns["stay"].words) == ("label", ())
    assert found.columns["stay"].low >= 0
    assert found.columns["stay"].high >= 20


@pytest.mark.parametrize("task", [pytest.param(t, marks=[pytest.mark.slow] * (t != "regression")) for t in TASKS])
def test_sites_learn_a_task_as_the_simulation_does(task: str, table: Path, tmp_path: Path) -> None:
    """The task goes to every site with the experiment; classes that there are not are no part of the agreement."""
    made = config.load(asked(table, task, rounds=2))
    own = OwnData(made, table / "visits.csv", b"key")
    assert (own.announced("all").data.classes == 0) == (task != "classification")
    run = sordino.run(asked(table, task, rounds=2) | {"engine": {"executor": "loop"}}, out=tmp_path / "loop")
    between = Federated(made, tmp_path, shares_scores=True)
    between.play()
    assert model_of(between.folder) == model_of(run.folder)
    assert {file.read_bytes() for file in tmp_path.glob("*/model.json")} == {(run.folder / "model.json").read_bytes()}
    row = RunFolder(between.folder).metrics()[-1]
    assert row.headline is not None
    assert run.score is not None
    assert row.headline[0] == run.score[0]
    assert row.headline[1] == pytest.approx(run.score[1], rel=0.05)


# text -----------------------------------------------------------------------------------------------------------------
WORDS = {"hash": ("buckets = 64", 65), "list": ('words = ["pain", "fever", "well"]', 5)}


def notes(folder: Path, said: str) -> dict[str, Any]:
    """An experiment on notes, of which the sick ones speak of pain."""
    draw = np.random.default_rng(4)
    told = ["no pain, but Fever" if sick else "feels well today" for sick in draw.integers(0, 2, 60)]
    rows = [f"{text!r},c{k % 2},{'ill' if 'pain' in text else 'ok'}".replace("'", '"') for k, text in enumerate(told)]
    (folder / "notes.csv").write_text("\n".join(["note,clinic,outcome", *rows]) + "\n")
    (folder / "notes.toml").write_text(
        f'[columns]\nnote = {{ kind = "text", {said}, length = 6 }}\nclinic = {{ kind = "group" }}\n'
        'outcome = { kind = "label", classes = ["ill", "ok"] }\n'
    )
    data = {"source": "tabular", "path": str(folder / "notes.csv"), "schema": str(folder / "notes.toml")}
    return {
        "data": {**data, "label": "outcome", "group": "clinic"},
        "rounds": 3,
        "model": {"name": "text", "tokens": 65, "width": 8},
    }


@pytest.mark.one_fast
@pytest.mark.parametrize("way", WORDS)
@pytest.mark.parametrize("method", ["fedavg", pytest.param("gaussian_gdp", marks=pytest.mark.slow)])
def test_a_text_is_learned_from_declared_words(way: str, method: str, tmp_path: Path) -> None:
    said, count = WORDS[way]
    made = notes(tmp_path, said)
    made["model"]["tokens"] = count
    made["algorithm"] = {"name": method, "lr": 2.0} | ({"local_epochs": 10} if method == "fedavg" else {"clip": 1.0})
    made["privacy"] = {} if method == "fedavg" else {"epsilon": 50.0, "delta": 1e-3}
    run = sordino.run(made, out=tmp_path / "run")
    if method == "fedavg":
        assert run.accuracy == 1
    found = sordino.predict(run.folder, [{"note": "PAIN, pain and fever"}, {"note": "all is well, well"}])
    assert [row["predicted"] for row in found.rows] == ["ill", "ok"] or method != "fedavg"


@pytest.mark.slow
def test_numbers_stand_beside_a_text(tmp_path: Path) -> None:
    """Who is ill follows from a word and an age together; the words alone, or the age alone, tell half of it."""
    draw = np.random.default_rng(5)
    rows = [(("fever" if sick else "well"), age) for sick, age in zip(*draw.integers(0, 2, (2, 80)), strict=True)]
    lines = [
        f'{"ABC"[k % 3]},"{word} today",{20 + 60 * old},c{k % 2},{word}{old}' for k, (word, old) in enumerate(rows)
    ]
    (tmp_path / "n.csv").write_text("\n".join(["ward,note,age,clinic,outcome", *lines]) + "\n")
    (tmp_path / "n.toml").write_text(
        '[columns]\nward = { kind = "levels", levels = ["A", "B", "C"] }\nnote = { kind = "text", buckets = 64, length = 4 }\n'
        'age = { kind = "number", range = [0, 100] }\nclinic = { kind = "group" }\n'
        'outcome = { kind = "label", classes = ["fever0", "fever1", "well0", "well1"] }\n'
    )
    data = {
        "source": "tabular",
        "path": str(tmp_path / "n.csv"),
        "schema": str(tmp_path / "n.toml"),
        "label": "outcome",
    }
    asked = {"data": {**data, "group": "clinic"}, "privacy": {}, "rounds": 10}
    asked["algorithm"] = {"name": "fedavg", "lr": 2.0, "local_epochs": 5}
    codes = []
    for model in ({"name": "mlp"}, {"name": "text", "tokens": 65}, {"name": "text", "tokens": 65, "texts": [[1, 4]]}):
        with pytest.raises(SordinoError) as refused:
            sordino.run({**asked, "model": model}, out=tmp_path / "run")
        assert 'set model = {name = "text", tokens = 65, texts = [[3, 4]]}' in refused.value.fix
        codes.append(refused.value.code)
    assert codes == ["words-are-no-quantities", "texts-do-not-fit", "texts-do-not-fit"]
    run = sordino.run({**asked, "model": {"name": "text", "tokens": 65, "texts": [[3, 4]]}}, out=tmp_path / "run")
    assert run.accuracy == 1
    found = sordino.predict(
        run.folder, [{"ward": "A", "note": "fever", "age": 80}, {"ward": "B", "note": "well", "age": 20}]
    )
    assert [row["predicted"] for row in found.rows] == ["fever1", "well0"]


def test_places_of_words_beyond_a_row_are_refused() -> None:
    assert nets.text((5,), 2, 9, texts=[(1, 4)])(torch.zeros(2, 5)).shape == (2, 2)
    for wrong in ((1, 5), (-1, 2), (0, 0)):
        with pytest.raises(DataError) as refused:
            nets.text((5,), 2, 9, texts=[wrong])
        assert refused.value.code == "model-does-not-fit"


def test_each_word_has_a_place_that_no_row_decides() -> None:
    from sordino.data.columns import tokens
    from sordino.data.schema import TextColumn

    listed = TextColumn("text", words=("pain", "fever"), length=4)
    assert tokens(["Fever! pain none", "", "a b pain d e"], listed).tolist() == [[3, 2, 1, 0], [0] * 4, [1, 1, 2, 1]]
    hashed = TextColumn("text", length=2, buckets=7)
    (alone,), beside = tokens(["pain"], hashed), tokens(["fever", "pain"], hashed)
    assert alone.tolist() == beside[1].tolist()
    assert 1 <= alone[0] <= 7
    assert alone[1] == 0


@pytest.mark.parametrize(
    ("said", "model", "code"),
    [
        ('words = "learned"', {"name": "text", "tokens": 65}, "bad-schema"),
        ("buckets = 0", {"name": "text", "tokens": 1}, "bad-schema"),
        ("buckets = 64", {"name": "text", "tokens": 64}, "tokens-do-not-fit"),
        ("buckets = 64", {"name": "logistic"}, "words-are-no-quantities"),
    ],
)
def test_words_that_do_not_fit_are_refused(said: str, model: dict[str, Any], code: str, tmp_path: Path) -> None:
    made = {**notes(tmp_path, said), "model": model, "algorithm": {"name": "fedavg"}, "privacy": {}}
    with pytest.raises(SordinoError) as refused:
        sordino.run(made, out=tmp_path / "run")
    assert refused.value.code == code


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "by label": ("regression", {"partition": {"scheme": "dirichlet", "clients": 3, "alpha": 1.0}}, "task-does-not-fit"),
    "prototypes": ("regression", {"evaluation": {"personal": ["proto"]}}, "task-does-not-fit"),
    "a score of classes": ("counts", {"evaluation": {"scores": ["confusion"]}}, "score-of-another-task"),
    "a method with its own loss": ("multi_label", {"algorithm": {"name": "moon"}}, "task-needs-task-loss"),
    "another range than the schema's": (
        "regression",
        {"task": {"name": "regression", "range": [0, 31]}},
        "schema-disagrees",
    ),
    "a class where the schema says a number": ("regression", {"task": {"name": "classification"}}, "schema-disagrees"),
    "images": ("regression", {"data": {"source": "digits"}, "partition": {"scheme": "iid", "clients": 3}}, "task-does-not-fit"),
    "a count that is none": ("counts", {"data": "stay"}, "row-does-not-fit"),
    "a mark that is none": ("multi_label", {"task": {"name": "multi_label", "labels": ["ill", "visits"]}}, "row-does-not-fit"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_a_task_is_refused(case: str, table: Path, tmp_path: Path) -> None:
    task, settings, code = REFUSED[case]
    made = {**asked(table, task), **settings}
    if code == "row-does-not-fit":  # without a schema the cell is what is wrong
        made["data"] = {"source": "tabular", "path": str(table / "visits.csv"), "group": "clinic"}
        made["data"] |= {"label": settings["data"]} if "data" in settings else {}
    with pytest.raises(SordinoError) as refused:
        sordino.run(made, out=tmp_path / "run")
    assert refused.value.code == code
    assert refused.value.why
    assert refused.value.fix


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_every_algorithm_runs_or_says_why_not(task: str, table: Path, tmp_path: Path) -> None:
    ran, codes, unsaid = [], set(), []
    for name in all_algorithms():
        for privacy in ({}, {"epsilon": 8.0, "delta": 1e-3}):
            made = asked(table, task, rounds=1, algorithm={"name": name}, privacy=privacy)
            try:
                sordino.run(made, out=tmp_path / f"{name}{len(privacy)}")
            except SordinoError as error:
                codes.add(error.code)
                unsaid += [] if error.why else [error]
            else:
                ran.append(name)
    assert {"fedavg", "scaffold", "gaussian_gdp", "fedprox"} <= {*ran}
    assert "task-needs-task-loss" in codes
    assert unsaid == []
    assert not {"moon", "fedgen", "vhl", "pfl_dyn", "slaug_fl"} & {*ran}
