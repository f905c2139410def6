"""Everything a user can write wrongly: refused by the documented exit code, in words, before anything is left behind.

Each row is what somebody types or has on disk, the exit code, and the name of the refusal. Whatever it is, the answer
fits a screen, says why or what to do, shows no traceback, and no run folder exists afterwards.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
from PIL import Image

from sordino import config
from sordino.config import load, validate
from sordino.errors import ConfigError
from sordino.receipts.folder import RunFolder
from sordino.runs.run import start
from tests.helpers.command_line import Said
from tests.laws.cases import CASES, Case


def folder_of_images(side: int, broken: bool = False) -> Callable[[Path], None]:
    """A black image of each class, many times, as the hub stores them."""

    def make(here: Path) -> None:
        encoded = io.BytesIO()
        Image.new("L", (side, side)).save(encoded, "PNG")
        rows = [{"bytes": encoded.getvalue(), "path": None}] * 24
        if broken:
            rows = [*rows[:-1], {"bytes": b"no image", "path": None}]
        (here / "data").mkdir()
        for split in ("train", "test"):
            pq.write_table(pa.table({"image": rows, "label": [0, 1] * 12}), here / "data" / f"{split}.parquet")

    return make


def table(text: str) -> Callable[[Path], Any]:
    return lambda here: (here / "data.csv").write_text(text)


MODULES = """
import torch
from torch import nn
class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10))
    def forward(self, x): return self.net(x)
class Narrow(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(7, 10)
    def forward(self, x): return self.net(x.flatten(1))
class Outputs(Narrow):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(64, 3)
class Empty(nn.Module):
    def forward(self, x): return torch.zeros(len(x), 10)
class Needs(nn.Module):
    def __init__(self, width): super().__init__()
class Stumbles(nn.Module):
    def __init__(self):
        super().__init__()
        raise KeyError("weights")
class Crashes(Narrow):
    def forward(self, x): return x.no_such_method()
class Talks(Narrow):
    def forward(self, x): return "ten classes"
def function(): return None
"""

GDP = "algorithm=gaussian_gdp"
CSV = "label,x\n" + "".join(f"{i % 2},{i}\n" for i in range(60))
TABULAR = ("data.source=tabular", "data.path=data.csv", "data.label=label", "partition=iid", "partition.clients=3")
IMAGES = ("data.source=images", "data.path=data", "partition=iid", "partition.clients=2")
FOLDER = ("data.source=folder", "data.path=pictures")
SYNTHETIC = ("data.source=synthetic", "partition=natural")


class Wrong(NamedTuple):
    arguments: tuple[str, ...]
    exit: int
    code: str
    says: str = ""  # part of the answer
    before: Callable[[Path], Any] | None = None  # what lies on disk


def toml(text: str) -> Callable[[Path], Any]:
    return lambda here: (here / "e.toml").write_text(text)


def module(text: str = MODULES) -> Callable[[Path], Any]:
    return lambda here: (here / "mine.py").write_text(text)


def _made(file: Path) -> Path:
    file.touch()
    return file


WRONG: dict[str, Wrong] = {
    # words
    "unknown key": Wrong(("round=3",), 2, "unknown-key", "did you mean 'rounds'"),
    "unknown key of a section": Wrong(("privacy.epsilom=3",), 2, "unknown-key", "did you mean 'epsilon'"),
    "unknown section": Wrong(("privcy.epsilon=3",), 2, "unknown-key", "did you mean 'privacy'"),
    "unknown key of an algorithm": Wrong(("algorithm.learning_rate=1",), 2, "unknown-key", "lr"),
    "unknown algorithm": Wrong(("algorithm=fedavgg",), 2, "unknown-choice", "did you mean 'fedavg'"),
    "unknown cohort": Wrong(("cohort=robin",), 2, "unknown-choice", "round_robin"),
    "unknown scheme": Wrong(("partition=dirichle",), 2, "unknown-choice", "did you mean 'dirichlet'"),
    "unknown schedule": Wrong(('privacy.schedule={name="unifrom"}',), 2, "unknown-choice", "did you mean 'uniform'"),
    "unknown model": Wrong(("model=logistics",), 2, "unknown-model", "logistic"),
    "unknown source": Wrong(("data=digit",), 2, "wrong-type", "digits"),
    "unknown law of a gate": Wrong(
        ('read={name="noisy_gradient", clip=1.0, law="normal"}',), 2, "wrong-type", "gaussian"
    ),
    "unknown stage": Wrong(
        ('uplink={client=[{name="clipp", radius=1.0}]}',), 2, "unknown-choice", "did you mean 'clip'"
    ),
    "unknown half of the uplink": Wrong(("uplink={clients=[]}",), 2, "unknown-key", "did you mean 'client'"),
    "a choice without a name": Wrong(("cohort={size=3}",), 2, "unknown-choice"),
    "a choice that is a number": Wrong(("algorithm={name=3}",), 2, "unknown-choice"),
    "parameter missing": Wrong(("cohort=round_robin",), 2, "wrong-type", "size"),
    # overrides and files
    "no equals sign": Wrong(("--set", "rounds"), 2, "bad-override", "rounds=20"),
    "no key": Wrong(("=3",), 2, "bad-override"),
    "an empty part": Wrong(("privacy..epsilon=3",), 2, "unknown-key"),
    "through a number": Wrong(("rounds.x=3",), 2, "wrong-type", "rounds"),
    "no file": Wrong(("missing.toml",), 2, "no-file"),
    "a folder as file": Wrong((".",), 2, "no-file", "folder"),
    "toml": Wrong(("e.toml",), 2, "bad-toml", "line 1", toml("rounds = = 3")),
    "not text": Wrong(
        ("e.toml",), 2, "unreadable-file", "", lambda here: (here / "e.toml").write_bytes(b"\xff\xfe\x00")
    ),
    "a section that is a number": Wrong(("e.toml",), 2, "wrong-type", "privacy", toml("privacy = 3")),
    "a section that is a list": Wrong(("e.toml",), 2, "wrong-type", "privacy", toml("privacy = [1]")),
    "a choice that is no table": Wrong(("e.toml",), 2, "wrong-type", "algorithm", toml('algorithm = "fedavg"')),
    "two files": Wrong(("a.toml", "b.toml"), 2, "", "one experiment"),
    # types and ranges
    "text for a number": Wrong(("rounds=many",), 2, "wrong-type", "rounds"),
    "half a round": Wrong(("rounds=2.5",), 2, "wrong-type", "rounds"),
    "truth for a number": Wrong(("rounds=true",), 2, "wrong-type", "rounds"),
    "no rounds": Wrong(("rounds=0",), 2, "out-of-range", "at least 1"),
    "negative seed": Wrong(("seed=-1",), 2, "out-of-range"),
    "no workers": Wrong(("engine.workers=0",), 2, "out-of-range"),
    "never evaluated": Wrong(("evaluation.every=0",), 2, "out-of-range"),
    "negative epochs of evaluation": Wrong(("evaluation.final=-1",), 2, "out-of-range"),
    "rounds without end": Wrong(("rounds=9223372036854775807",), 2, "out-of-range", "at most 100,000"),
    "rounds of the memory": Wrong(("rounds=1000000000",), 2, "out-of-range", "at most 100,000"),
    "clients without end": Wrong(("data=synthetic", "data.clients=2147483648"), 2, "out-of-range", "at most 1,000,000"),
    "dimensions without end": Wrong(("data=quadratic", "data.dim=1000000000"), 2, "out-of-range", "at most"),
    "an image of a wall": Wrong(("data.side=1000000",), 2, "out-of-range", "at most 4,096"),
    "a seed of more than 64 bits": Wrong(("seed=99999999999999999999",), 2, "out-of-range"),
    "workers without end": Wrong(("engine.workers=1000000",), 2, "out-of-range", "at most 1,024"),
    "threads without end": Wrong(("engine.threads=20000",), 2, "out-of-range", "at most 256"),
    "a delta below every number": Wrong((GDP, "privacy.delta=1e-320"), 4, "delta-out-of-range", "at least 1e-100"),
    "brackets without end": Wrong(("e.toml",), 2, "bad-toml", "deep", toml("a = " + "[" * 3000 + "]" * 3000)),
    "tables without end": Wrong(("e.toml",), 2, "bad-toml", "deep", toml(f"{'a.' * 3000}b = 1")),
    "a word of brackets": Wrong(("partition.alpha=" + "[" * 3000,), 2, "bad-override"),
    "a device": Wrong(("/dev/zero",), 2, "unreadable-file", "a device"),
    "a file without end": Wrong(
        ("e.toml",), 2, "unreadable-file", "larger", lambda here: os.truncate(_made(here / "e.toml"), 1 << 40)
    ),
    "unknown executor": Wrong(("engine.executor=threads",), 2, "wrong-type"),
    "text for a step": Wrong(('algorithm.lr="big"',), 2, "wrong-type", "lr"),
    "infinite step": Wrong(("algorithm.lr=inf",), 2, "wrong-type", "lr"),
    "negative step": Wrong(("algorithm.lr=-1.0",), 2, "not-positive", "above 0"),
    "negative clip": Wrong(("algorithm.clip=-1.0",), 2, "clip-not-positive"),
    "text for a batch": Wrong(("algorithm=fedavg", "algorithm.batch_size=half"), 2, "wrong-type", "batch_size"),
    "sampling rate": Wrong(("algorithm=gaussian_sampled", "algorithm.rate=1.5"), 2, "rate-out-of-range"),
    "cohort rate": Wrong(("cohort=poisson", "cohort.rate=0"), 2, "rate-out-of-range"),
    "cohort too large": Wrong(("cohort=round_robin", "cohort.size=21"), 2, "cohort-larger-than-population", "20"),
    "empty cohort": Wrong(("cohort=random", "cohort.size=0"), 2, "cohort-empty"),
    "straggler share": Wrong(("stragglers.share=1.5",), 2, "share-out-of-range"),
    "nothing to keep": Wrong(("stragglers.share=0.5", "stragglers.policy=keep"), 2, "no-partial-work"),
    # budgets
    "negative epsilon": Wrong((GDP, "privacy.epsilon=-1"), 4, "epsilon-not-positive"),
    "no epsilon": Wrong((GDP, "privacy.epsilon=0"), 4, "epsilon-not-positive"),
    "infinite epsilon": Wrong(
        (GDP, "privacy.epsilon=inf"), 2, "wrong-type", "finite number fix for example privacy.epsilon=0.5"
    ),
    "nan epsilon": Wrong((GDP, "privacy.epsilon=nan"), 2, "wrong-type", "finite"),
    "text for epsilon": Wrong((GDP, "privacy.epsilon=strong"), 2, "wrong-type", "epsilon"),
    "no delta": Wrong((GDP, "privacy.delta=0"), 4, "delta-out-of-range", "only Laplace noise"),
    "delta of one": Wrong((GDP, "privacy.delta=1"), 4, "delta-out-of-range"),
    "delta above 1/N": Wrong((GDP, "privacy.delta=0.01"), 4, "delta-too-large", "below"),
    "delta above 1/K": Wrong(("algorithm=whole_update", "privacy.delta=0.06"), 4, "delta-too-large", "1/20"),
    "budget for nothing": Wrong(("algorithm=fedavg", "privacy.epsilon=1"), 4, "budget-without-mechanism"),
    "budget for noise of its own": Wrong(
        ("algorithm=prifedsync", "algorithm.level=step_level", "model=mlp"),
        4,
        "budget-without-mechanism",
        "the default experiment has one",
    ),
    "features of pixels, hidden cohort": Wrong(
        ("algorithm=cuag_pfl", "cohort={name='poisson', rate=0.5}"), 2, "no-features-to-learn", "model=mlp"
    ),
    "private without budget": Wrong((GDP, "privacy={}"), 4, "mechanism-without-budget"),
    "textbook formula": Wrong(("algorithm=gaussian_simple", "rounds=2"), 4, "classic-gaussian-needs-small-epsilon"),
    "schedule too short": Wrong((GDP, 'privacy.schedule={name="list", values=[1, 2]}'), 4, "shares-too-few"),
    "schedule too much": Wrong(
        (GDP, "rounds=2", 'privacy.schedule={name="list", values=[8, 8], absolute=true}'), 4, "shares-exceed-the-budget"
    ),
    "negative share": Wrong((GDP, 'privacy.schedule={name="list", values=[1, -1]}'), 4, "shares-not-a-budget"),
    "unknown noise": Wrong(("privacy.noise=dice",), 2, "wrong-type", "counter"),
    # data
    "more clients than examples": Wrong(("partition=iid", "partition.clients=5000"), 3, "", "5000"),
    "no clients": Wrong(("partition=iid", "partition.clients=0"), 3, ""),
    "negative clients": Wrong(("partition=iid", "partition.clients=-3"), 3, ""),
    "alpha": Wrong(("partition.alpha=0",), 3, "", "alpha"),
    "no natural clients": Wrong(("partition=natural",), 3, "no-group"),
    "test fraction": Wrong(("data.test_fraction=1.5",), 2, "out-of-range"),
    "unknown way of personalisation": Wrong(
        ('evaluation.personal=["fine_tune"]',), 2, "wrong-type", "did you mean 'finetune'"
    ),
    "no test fraction": Wrong(("data.test_fraction=0.0",), 2, "out-of-range"),
    "fraction of a folder": Wrong((*FOLDER, "data.fraction=1.5"), 2, "out-of-range", "data.fraction is 1.5"),
    "fraction that is no number": Wrong((*FOLDER, "data.fraction=nan"), 2, "wrong-type", "data.fraction=0.5"),
    "no image of a class": Wrong((*FOLDER, "data.at_least=0"), 2, "out-of-range", "data.at_least is 0"),
    "no pixel": Wrong((*FOLDER, "data.side=0"), 2, "out-of-range", "data.side is 0"),
    "negative alpha": Wrong((*SYNTHETIC, "data.alpha=-1.0"), 2, "out-of-range", "data.alpha is -1.0"),
    "infinite beta": Wrong((*SYNTHETIC, "data.beta=inf"), 2, "wrong-type", "data.beta=0.5"),
    "devices of one example": Wrong((*SYNTHETIC, "data.largest=1"), 2, "out-of-range", "data.largest is 1"),
    "no device": Wrong((*SYNTHETIC, "data.clients=0"), 2, "out-of-range", "data.clients is 0"),
    "no dimension": Wrong(("data.source=quadratic", "data.dim=0"), 2, "out-of-range", "data.dim is 0"),
    "negative heterogeneity": Wrong(
        ("data.source=quadratic", "data.heterogeneity=-1.0"), 2, "out-of-range", "data.heterogeneity is -1.0"
    ),
    "no path": Wrong(("data.source=images",), 2, "missing-key", "data.path"),
    "missing file": Wrong(TABULAR, 3, "", "data.csv"),
    "missing folder": Wrong(IMAGES, 3, "", "data"),
    "no such column": Wrong((*TABULAR, "data.label=colour"), 3, "", "colour", table(CSV)),
    "corrupt table": Wrong(TABULAR, 3, "", "", lambda here: (here / "data.csv").write_bytes(bytes(range(256)))),
    "empty table": Wrong(TABULAR, 3, "", "", table("")),
    "infinite feature": Wrong(TABULAR, 3, "", "", table(CSV + "0,inf\n")),
    "corrupt images": Wrong(IMAGES, 3, "", "row 23", folder_of_images(8, broken=True)),
    "image too small for the model": Wrong(
        (*IMAGES, "model=cnn"), 3, "model-does-not-fit", "16x16", folder_of_images(8)
    ),
    "digits too small for the model": Wrong(("model=cnn",), 3, "model-does-not-fit"),
    # models
    "model option": Wrong(("model=mlp", "model.width=3"), 2, "model-options", "width"),
    "model option of a wrong type": Wrong(("model=mlp", "model.hidden=many"), 2, "model-options"),
    "model option out of range": Wrong(("model=mlp", "model.hidden=-5"), 2, "model-options"),
    "groups do not divide": Wrong(("model=cnn_norm", "model.groups=3"), 2, "model-options"),
    "dropout of one": Wrong(
        (*IMAGES, "model=cnn", "model.dropout=1.0"), 2, "dropout-out-of-range", "", folder_of_images(16)
    ),
    "a radius of one": Wrong(("model.radius=1.0",), 2, "radius-out-of-range"),
    "options that are no table": Wrong(("model.options=3",), 2, "wrong-type", "model.options"),
    "no such module": Wrong(("model.name=nowhere:Net",), 2, "own-import", "nowhere"),
    "no such class": Wrong(("model.name=mine:Nothing",), 2, "own-import", "Nothing", module()),
    "module with a mistake": Wrong(("model.name=mine:Net",), 2, "own-import", "", module("def (")),
    "module that fails": Wrong(("model.name=mine:Net",), 2, "own-import", "", module("1 / 0")),
    "a function": Wrong(("model.name=mine:function",), 2, "model-not-a-module", "", module()),
    "arguments missing": Wrong(("model.name=mine:Needs",), 2, "model-options", "width", module()),
    "constructor fails": Wrong(("model.name=mine:Stumbles",), 2, "model-options", "", module()),
    "batch norm": Wrong(("model.name=mine:Normed",), 4, "batch-norm", "GroupNorm", module()),
    "wrong width": Wrong(("model.name=mine:Narrow",), 3, "model-does-not-fit", "", module()),
    "wrong outputs": Wrong(("model.name=mine:Outputs",), 3, "model-outputs", "10 are needed", module()),
    "nothing to train": Wrong(("model.name=mine:Empty",), 2, "model-without-parameters", "", module()),
    "forward fails": Wrong(("model.name=mine:Crashes",), 2, "own-code", "in forward", module()),
    "features of pixels": Wrong(("algorithm=pfl_dyn",), 2, "no-features-to-learn", "the same at any noise"),
    "features of pixels, with noise": Wrong(("algorithm=prifedsync",), 2, "no-features-to-learn", "model=mlp"),
    "output is no tensor": Wrong(("model.name=mine:Talks",), 3, "model-outputs", "", module()),
}


@pytest.mark.one_fast
@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_refused_in_words_and_leaves_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Callable[..., Said]
) -> None:
    wrong = WRONG[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "200")
    if wrong.before is not None:
        wrong.before(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    said = cli("run", *wrong.arguments, "--out", "run")
    sys.modules.pop("mine", None)
    assert said.code == wrong.exit, said.err
    text = " ".join(said.err.split())
    assert "Traceback" not in text
    assert len(said.err.splitlines()) <= 24
    assert f"({wrong.code})" in text or not wrong.code
    assert wrong.says in text
    assert " why " in text or " fix " in text or "Usage" in text
    assert said.out == ""
    assert [path for path in sorted(tmp_path.rglob("*")) if "__pycache__" not in path.parts] == before


# reading and writing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_written_reads_back_the_same(case: Case, tmp_path: Path) -> None:
    made = case.experiment()
    (tmp_path / "other-name.toml").write_text(made.toml())
    again = load(tmp_path / "other-name.toml")
    assert again.digest() == made.digest()
    assert again == made


def test_the_experiment_of_a_run_folder_is_the_experiment(tmp_path: Path) -> None:
    made = load(None, ["rounds=1", "partition=iid", "partition.clients=3"])
    start(made, tmp_path / "run")
    again = load(tmp_path / "run" / "experiment.toml")
    assert again.digest() == made.digest()
    start(again, tmp_path / "again")
    one, other = (RunFolder(tmp_path / name).receipt() for name in ("run", "again"))
    # the ledger's head holds a digest of the data under a key of each run's own
    assert one == other.beside(ledger_head=one.ledger_head)
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_the_digest_is_of_what_is_computed_and_not_of_how() -> None:
    plain = validate({})
    assert validate({"engine": {"executor": "processes", "workers": 7}}).digest() == plain.digest()
    for change in ({"seed": 1}, {"rounds": 41}, {"privacy": {"epsilon": 7.0}}, {"algorithm": {"name": "fedavg"}}):
        assert validate(change).digest() != plain.digest()


def test_the_command_line_comes_before_the_file_and_the_file_before_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        tomli_w.dumps({"rounds": 7, "algorithm": {"name": "laplace", "clip": 3.0}, "privacy": {"epsilon": 2.0}})
    )
    made = load(file, ["algorithm.lr=0.5", "seed=4"])
    assert (made.name, made.rounds, made.seed) == ("mine", 7, 4)
    assert made.algorithm == {"name": "laplace", "clip": 3.0, "lr": 0.5}
    assert made.model == config.Experiment().model
    assert load(file, ["rounds=9"]).rounds == 9
    assert load(file, ["algorithm=fedavg"]).algorithm == {"name": "fedavg"}  # chosen afresh
    assert load(file, ["algorithm.name=gaussian_gdp"]).algorithm == {"name": "gaussian_gdp", "clip": 3.0}
    file.write_text("rounds = 7\n")
    assert load(file).privacy.epsilon is None  # a file that says nothing about privacy has no budget
    assert load(None).privacy.epsilon is not None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("algorithm.lr=1e-3", 1e-3),
        ("algorithm.lr=-2", -2),
        ("algorithm.lr=true", True),
        ("algorithm.lr=word", "word"),
        ('algorithm.lr="1"', "1"),
        ("algorithm.lr=[1, 2]", [1, 2]),
        ("algorithm.lr=a=b", "a=b"),
        ("algorithm.lr=", ""),
        ("algorithm.lr={x = 1}", {"x": 1}),
    ],
)
def test_overrides_are_read_like_toml_and_bare_words_are_text(text: str, value: Any) -> None:
    assert load(None, [text]).algorithm["lr"] == value


def test_every_refusal_names_what_is_close() -> None:
    with pytest.raises(ConfigError) as refusal:
        validate({"evaluation": {"evry": 3}})
    assert "did you mean 'every'" in refusal.value.fix
    with pytest.raises(ConfigError) as refusal:
        validate({"zzzz": 3})
    assert "one of:" in refusal.value.fix
    assert "rounds" in refusal.value.fix


def test_a_setting_within_a_given_table_is_not_written_into_it() -> None:
    given = {"every": 2}
    found = config.load(None, [], {"evaluation": given, "evaluation.final": 3})
    assert (found.evaluation.every, found.evaluation.final, given) == (2, 3, {"every": 2})
