"""LoRA on a frozen base: the model of the guide, trained under a promise for each text, in an environment with peft."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.adapters.environments import made
from tests.repository.following import DOCS, ROOT, blocks
from tests.runs.test_language import notes

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made("peft", "peft", tmp_path_factory) / "python"


@pytest.mark.parametrize("base", ["llama", "gpt2"])
def test_only_the_adapter_is_trained_and_sent(base: str, python: Path, tmp_path: Path) -> None:
    notes(tmp_path)
    page = (DOCS / "guide" / "language.md").read_text()
    (told,) = (block.body for block in blocks(page) if block.told.get("file") == "adapted.py")
    (tmp_path / "adapted.py").write_text(told)
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
