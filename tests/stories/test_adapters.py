"""LoRA on a frozen base: the model of the guide, trained under a promise for each text, in an environment with peft."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

from sordino import keys, user_code
from sordino.privacy.readers.per_example_gradients import one_by_one
from sordino.tasks.network import InputSettings
from sordino.tasks.supervised import Classification
from sordino.types import Examples
from tests.adapters.environments import made
from tests.repository.following import DOCS, ROOT, blocks
from tests.runs.test_language import notes

pytestmark = pytest.mark.slow


def told(name: str) -> str:
    """A file of the guide's page."""
    page = (DOCS / "guide" / "language.md").read_text()
    (body,) = (block.body for block in blocks(page) if block.told.get("file") == name)
    return body


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made("peft", "peft", tmp_path_factory) / "python"


@pytest.mark.parametrize("base", ["llama", "gpt2"])
def test_only_the_adapter_is_trained_and_sent(base: str, python: Path, tmp_path: Path) -> None:
    notes(tmp_path)
    (tmp_path / "adapted.py").write_text(told("adapted.py"))
    program = Path(__file__).with_name("adapted_run.py")
    there = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(program.parent), str(ROOT)])}
    ran = subprocess.run([python, program, base], cwd=tmp_path, env=there, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["moved"]
    assert all("lora_" in name for name in found["moved"])
    assert found["sent"] < 2 * (4 * found["adapter"] + 4096)  # of two clients, with what frames a message
    ours, theirs, merged = found["losses"]  # the weights that were left are of use elsewhere
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert ours == pytest.approx(merged, rel=1e-3)
    assert found["epsilon"] <= 50
    assert found["wrong"] == []
    assert found["ruled"]
    assert found["same"]
    assert (found["frozen"], found["off"]) == ("frozen-adapter", "unused-parameter")


def test_an_encoder_needs_no_gradient_of_each_text_and_no_padding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    (tmp_path / "encoder.py").write_text(told("encoder.py"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(2)
    net = user_code.load("encoder:Encoder", "model")(width=16).double()
    inputs = InputSettings("mine", (8,), (0.0,) * 8, (1.0,) * 8, keeps=True)
    task = Classification(net, **inputs._asdict())
    params, draws = task.init(0), keys.bits(keys.root(1), 2)
    assert task._recorder.supported
    assert task._rules_hold(task.losses, params)
    texts = torch.tensor([[97, 98, 99, 0, 0, 0, 0, 0], [100, 7, 5, 3, 9, 8, 1, 2]]).double()
    batch = Examples(texts, torch.tensor([0, 1]))
    sums = task.clipped_sum(task.losses, params, batch, draws, 0.1, 2)
    slow = one_by_one(task.losses, params, batch, draws, 0.1, 2)
    assert all(torch.allclose(sums[name] * 1.0, slow[name], atol=1e-9) for name in slow)
    assert torch.allclose(net(texts[:1, :3]), net(texts)[:1], atol=1e-9)
