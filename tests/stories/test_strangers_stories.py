"""A training loop of a stranger made private: a Transformers `Trainer`, killed, continued, verified without sordino."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant

from sordino.ledger.ledger import State
from tests.adapters.environments import made, verified_elsewhere
from tests.adapters.test_private_uplink import row, states
from tests.repository.following import ROOT

pytestmark = pytest.mark.slow
ROUNDS, MULTIPLIER, DELTA = 4, 2.0, 1e-3
PLAIN = """rounds = 4
model = { name = "task:Tokens" }
algorithm = { name = "trainer", of = "task:train" }
partition = { scheme = "iid", clients = 3 }
cohort = { name = "everyone" }
"""
PRIVATE = f"""
[uplink]
client = [{{ name = "clip", radius = 3.0 }}, "weigh"]
server = [{{ name = "noise", neighbours = "zero_out", multiplier = {MULTIPLIER} }}]
[privacy]
delta = {DELTA}
"""
TASK = """import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        self.bert = BertForSequenceClassification(
            BertConfig(vocab_size=17, max_position_embeddings=8, num_labels=10, **size)
        )

    def words(self, x):
        return (8 * x.mean(-1).flatten(1) + 8).round().clamp(0, 16).long()

    def forward(self, x):
        return self.bert(input_ids=self.words(x)).logits


def train(model, rows, round):
    found = [{"input_ids": words, "labels": y} for words, y in zip(model.words(rows.x), rows.y, strict=True)]
    asked = TrainingArguments(
        output_dir="hf", num_train_epochs=1, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True,
        logging_strategy="no",
    )
    Trainer(model=model.bert, args=asked, train_dataset=found).train()
    return model
"""


def begun(python: Path, place: Path, *arguments: str) -> subprocess.Popen[str]:
    there = {**os.environ, "PYTHONPATH": os.pathsep.join([str(place), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    log = (place / "log").open("a")
    command = [str(python), "-m", "sordino", *arguments]
    return subprocess.Popen(command, cwd=place, env=there, stdout=log, stderr=log, text=True, start_new_session=True)


def rows(run: Path) -> list[dict[str, Any]]:
    metrics = run / "metrics.jsonl"
    return [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []


def test_a_transformers_loop_is_killed_continued_and_verified_elsewhere(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    python = made("accelerate", "accelerate", tmp_path_factory) / "python"
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "plain.toml").write_text(PLAIN)
    (tmp_path / "private.toml").write_text(PLAIN + PRIVATE)
    log, run = tmp_path / "log", tmp_path / "private"
    assert begun(python, tmp_path, "run", "plain.toml", "--out", "plain").wait(300) == 0, log.read_text()[-2000:]
    process, until = begun(python, tmp_path, "run", "private.toml", "--out", "private"), time.monotonic() + 200
    while not rows(run):
        assert process.poll() is None, log.read_text()[-2000:]
        assert time.monotonic() < until
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert len(rows(run)) < ROUNDS
    assert begun(python, tmp_path, "resume", "private").wait(300) == 0, log.read_text()[-2000:]
    assert [one["round"] for one in rows(run)] == [*range(1, ROUNDS + 1)]
    paid = states(run)
    assert paid.count(State.PUBLISHED) == ROUNDS
    assert begun(python, tmp_path, "resume", "private").wait(300) == 0, log.read_text()[-2000:]
    assert states(run) == paid  # all rounds are played: nothing more is spent
    event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(MULTIPLIER), ROUNDS)
    theirs = float(PLDAccountant(value_discretization_interval=1e-3).compose(event).get_epsilon(DELTA))
    ours = float(row(run, "public")["epsilon"])
    assert ours == pytest.approx(theirs, rel=0.01)
    verified_elsewhere(run, tmp_path / "elsewhere")
    lines = sum(bool(line) for line in PRIVATE.splitlines())
    assert lines <= 15
    print(f"Transformers: {lines} lines, epsilon {ours:.4f}, of dp-accounting {theirs:.4f}")
