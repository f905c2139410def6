"""Three strangers walk from an empty folder to what they came for, each step a process of its own: a student with a
method, a hospital with four files, a privacy engineer who believes nothing. `pytest -s` prints what each step took.

A verb starts a fresh interpreter when it is first typed; later it is a fork that has imported everything.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.laws import warm

ROOT = Path(__file__).parents[2]
CIFAR = ROOT.parent / "shared" / "data" / "cifar10"
pytestmark = pytest.mark.slow


TYPED: set[str] = set()  # verbs that have been started afresh


@dataclass(frozen=True)
class Walk:
    """A folder, and somebody who types commands in it."""

    place: Path

    def __call__(self, *words: str, code: int = 0) -> str:
        """What a command said. No step may end otherwise than it should, and none in a traceback."""
        began = time.perf_counter()
        module, *rest = words if words[0] == "mypy" else ("sordino", *words)
        verb = " ".join(words[: 2 if words[0] in ("data", "identity", "privacy") else 1])
        fork = module == "sordino" and verb in TYPED
        TYPED.add(verb)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        with tempfile.TemporaryFile() as said:
            process = (warm.Process if fork else subprocess.Popen)(
                [sys.executable, "-m", module, *rest], cwd=self.place, env=environment, stdout=said, stderr=said
            )
            ended = process.wait(300)
            said.seek(0)
            text = said.read().decode()
        print(f"{time.perf_counter() - began:6.1f} s  {' '.join(words)}")
        assert ended == code, (words, text[-4000:])
        assert "Traceback" not in text
        return text

    def write(self, name: str, text: str) -> None:
        (self.place / name).write_text(text, encoding="utf-8")


# a student ------------------------------------------------------------------------------------------------------------

HEAVY_BALL = '''"""FedAvg whose clients remember the direction of their last round."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sordino import tree
from sordino.algorithms.fedavg import FedAvg, Up
from sordino.keys import Key
from sordino.types import Params, Shard, Task


class Remembered(NamedTuple):
    step: Params
    participations: Tensor


@dataclass(frozen=True)
class HeavyBall(FedAvg):
    share: float = 0.3

    def init_client(self, task: Task) -> Remembered:
        return Remembered(tree.zeros_like(task.init(0)), torch.tensor(0))

    def local(self, task: Task, down, client: Remembered, shard: Shard, key: Key):
        up, later = super().local(task, down, client, shard, key)
        step = tree.axpy(self.share, client.step, up.delta)
        return Up(step), Remembered(step, later.participations)
'''
STUDY = """
name = "{name}"
rounds = 2
[data]
source = "images"
path = "{cifar}"
train = 300
test = 100
[partition]
scheme = "dirichlet"
clients = 4
alpha = 0.5
[model]
name = "cnn"
[algorithm]
name = "{algorithm}"
"""


def test_a_student_compares_a_method_with_memory_on_real_images(tmp_path: Path) -> None:
    if not CIFAR.is_dir():
        pytest.skip("the images of CIFAR-10 are not beside the project")
    types = Walk(tmp_path)
    types.write("heavy.py", HEAVY_BALL)
    types("check", "heavy.py")
    for name, algorithm in (("fedavg", "fedavg"), ("heavy", "heavy:HeavyBall")):
        types.write(f"{name}.toml", STUDY.format(name=name, algorithm=algorithm, cifar=CIFAR))
    types("run", "heavy.toml", "--dry-run")
    assert not (tmp_path / "runs").exists()
    found = json.loads(types("compare", "fedavg.toml", "heavy.toml", "--seeds", "2", "--json", "-q"))
    assert {row["method"] for row in found} == {"fedavg", "heavy"}
    types(
        "compare", "fedavg.toml", "heavy.toml", "--seeds", "2", "--format", "html", "--figures", "pdf"
    )  # from what ran
    made = {file.suffix for file in (tmp_path / "runs" / "compare").rglob("*") if file.is_file()}
    assert {".html", ".pdf"} <= made
    types.write("wrong.py", HEAVY_BALL.replace("client.step, up", "client.stride, up"))
    types.write("wrong.toml", STUDY.format(name="wrong", algorithm="wrong:HeavyBall", cifar=CIFAR))
    said = types("run", "wrong.toml", code=2)  # a mistake of one's own is told as one's own
    assert "wrong.py, line" in said
    assert "stride" in said


# a hospital -----------------------------------------------------------------------------------------------------------

NET = """from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)
"""
HOSPITAL = """
name = "visits"
rounds = 8
[data]
source = "tabular"
path = "clinics"
label = "outcome"
schema = "schema.toml"
missing = "fill"
[model]
name = "net:Net"
[algorithm]
name = "gaussian_gdp"
clip = 1.0
lr = 1.0
[privacy]
epsilon = 4.0
noise = "system"
"""


def clinics(place: Path) -> None:
    """Four files as spreadsheets write them: semicolons, decimal commas, letters of Windows, gaps."""
    place.mkdir()
    draw = random.Random(0)
    for name in ("Nord", "Ost", "Süd", "West"):
        lines = ["age;pressure;smoker;ward;outcome"]
        for _ in range(draw.randint(60, 120)):
            age, smokes = draw.randint(20, 90), draw.random() < 0.3
            pressure = draw.gauss(110 + age / 3, 12)
            ill = age / 90 + pressure / 200 + 0.4 * smokes + draw.gauss(0, 0.2) > 1.4
            gap = draw.random() < 0.03
            cells = ["" if gap else str(age), f"{pressure:.1f}".replace(".", ","), "ja" if smokes else "nein"]
            lines.append(";".join([*cells, draw.choice(["Käfer", "Löwe"]), "krank" if ill else "gesund"]))
        (place / f"{name}.csv").write_bytes("\n".join(lines).encode("cp1252"))


def test_a_hospital_goes_from_four_files_to_predictions_and_a_signed_page(tmp_path: Path) -> None:
    types = Walk(tmp_path)
    clinics(tmp_path / "clinics")
    types.write("net.py", NET)
    types.write("visits.toml", HOSPITAL)
    said = types("data", "schema", "clinics", "--label", "outcome", "--out", "schema.toml", code=3)
    assert "encoding" in said  # the first line has no such letter, so nobody guesses
    types("data", "schema", "clinics", "--label", "outcome", "--encoding", "cp1252", "--out", "schema.toml")
    types.write("visits.toml", HOSPITAL.replace('missing = "fill"', 'missing = "fill"\nencoding = "cp1252"'))
    assert "(schema-is-a-draft)" in types("run", "visits.toml", code=4)
    schema = (tmp_path / "schema.toml").read_text(encoding="utf-8")
    confirmed = "\n".join(line for line in schema.splitlines() if line != "draft = true")
    types.write("schema.toml", confirmed)
    assert "(missing-values)" in types("run", "visits.toml", code=3)  # for `age` nothing was declared
    types.write("schema.toml", confirmed.replace('age = { kind = "number",', 'age = { kind = "number", missing = 50,'))
    assert "Süd" in types("data", "partition", "visits.toml")
    types("run", "visits.toml", "--out", "runs/visits")
    new = (tmp_path / "clinics" / "Nord.csv").read_bytes().split(b"\n")[:4]
    (tmp_path / "new.csv").write_bytes(
        b"\n".join(
            line.rpartition(b";")[0].replace(b"K\xe4fer", b"K\xc3\xa4fer").replace(b"L\xf6we", b"L\xc3\xb6we")
            for line in new
        )
    )
    said = types("predict", "runs/visits", "new.csv", "--with-code")
    assert "gesund" in said or "krank" in said
    assert "Süd" in types("privacy", "spent", "runs/visits", "--by-client")
    types("identity", "new", "officer")
    types("privacy", "sign", "runs/visits", "--key", "officer")
    assert "holds" in types("privacy", "verify", "runs/visits", "--key", "officer.pub")
    if shutil.which("chromium"):
        types("privacy", "export", "runs/visits", "--as", "annex", "--out", "annex.pdf")
        assert (tmp_path / "annex.pdf").read_bytes().startswith(b"%PDF")
    types("privacy", "export", "runs/visits", "--as", "annex", "--out", "annex.html")
    assert "38%" in (tmp_path / "annex.html").read_text(encoding="utf-8")  # a guess of 1%, at most


# a privacy engineer ---------------------------------------------------------------------------------------------------

SMALL: Sequence[str] = ("rounds=4", "partition.clients=4", "data.train=200", "data.test=60", "evaluation.every=4")


def test_a_privacy_engineer_believes_what_can_be_recomputed_and_nothing_else(tmp_path: Path) -> None:
    types = Walk(tmp_path)
    planned = json.loads(types("privacy", "plan", "privacy.epsilon=2", *SMALL, "--json"))
    assert planned
    types("run", "privacy.epsilon=2", "privacy.noise=system", *SMALL, "--out", "runs/real", "-q")
    types("run", "algorithm=fedavg", *SMALL, "--out", "runs/open", "-q")

    def copied(name: str) -> Path:
        return Path(shutil.copytree(tmp_path / "runs" / "real", tmp_path / name))

    for number, (old, new) in enumerate((('"epsilon": 2.0', '"epsilon": 0.2'), ('"proved"', '"conditional"'))):
        receipt = copied(f"forged-{number}") / "privacy.json"
        text = receipt.read_text()
        assert old in text
        receipt.write_text(text.replace(old, new, 1))
        types("privacy", "verify", f"forged-{number}", code=5)
    shutil.copy(tmp_path / "runs/open/model.safetensors", copied("another-model"))
    assert "model.safetensors" in types("privacy", "verify", "another-model", code=5)
    # elsewhere: what may be shown, and neither data nor code
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("privacy.json", "ledger.sqlite", "experiment.toml", "agreement.json", "environment.json"):
        shutil.copy(tmp_path / "runs" / "real" / name, elsewhere)
    assert "holds" in types("privacy", "verify", "elsewhere")
    for kind, end in (("annex", "html"), ("registry", "yaml"), ("card", "md")):
        types("privacy", "export", "elsewhere", "--as", kind, "--out", f"it.{end}")
        assert "example" in (tmp_path / f"it.{end}").read_text(encoding="utf-8")
    types("audit", "privacy.epsilon=2", *SMALL, "--trials", "2000")


# somebody's own program -----------------------------------------------------------------------------------------------

PROGRAM = """from pathlib import Path

import sordino


def accuracy(place: Path) -> float | None:
    result = sordino.run({"rounds": 1, "privacy": {"epsilon": 8.0}}, out=place, quiet=True)
    reveal_type(result.accuracy)
    return sordino.open_run(place).accuracy
"""


def test_a_foreign_file_that_uses_sordino_passes_the_strict_type_checker(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    types = Walk(tmp_path)
    types.write("program.py", PROGRAM)
    said = types("mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "program.py")
    assert "float" in said  # and it is no Any
    types.write("program.py", PROGRAM.replace("-> float | None", "-> str"))
    types("mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "program.py", code=1)  # the control
