"""`sordino check` on parts that are no algorithm, and on broken twins of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sordino.checks import check

HEAD = """
from dataclasses import dataclass
import numpy as np, torch, torch.nn.functional as F
from sordino.sampling import Cohort, alike
from sordino.data.sources import RowSource, SourceRows
from sordino.metrics.scores import OwnMetric
from sordino.partition import Scheme
from sordino.runs.play import Callback
from sordino.tasks.losses import Loss
"""
SCHEME = "class Mine(Scheme):\n    reads_labels = False\n    def assign(self, labels, group, rng):\n        "
COHORT = """
class Mine(Cohort):
    def participations(self, rounds, population): return alike(rounds, population)
    def expected(self, population): return 2.0
    def draw(self, round_index, population, key): return """
SOURCE = "class Mine(RowSource):\n    classes, reach = 2, (0.0, 1.0)\n    def rows(self, seed):\n        "
LOSS = "class Mine(Loss):\n    def __call__(self, output, label): return "
METRIC = "class Mine(OwnMetric):\n    def __call__(self, logits, labels): return "
PEEK = """
from dataclasses import dataclass
from sordino.algorithms.fedavg import FedAvg


@dataclass(frozen=True)
class Peek(FedAvg):
    def local(self, task, down, c, shard, key):
        for batch in shard.batches(self.work, key):
            batch.x
        return super().local(task, down, c, shard, key)
"""
PARTS = {
    "a partition": (SCHEME + "return [np.arange(0, len(labels), 2), np.arange(1, len(labels), 2)]", ""),
    "rows twice": (SCHEME + "return [np.arange(5), np.arange(5)]", "covers"),
    "a partition by chance": (SCHEME + "return [np.random.permutation(len(labels))[:5]]", "repeats"),
    "a partition that peeks": (SCHEME + "return [np.flatnonzero(labels == 1)]", "blind"),
    "a cohort": (COHORT + "[0, 1]", ""),
    "a cohort in an array": (COHORT + "np.arange(2)", ""),
    "a cohort by chance": (COHORT + "np.random.permutation(population)[:2].tolist()", "repeats"),
    "a client twice": (COHORT + "[0, 0]", "draws"),
    "a part of a round": (
        COHORT + "[0]\n    def participations(self, r, population): return [1.5] * population",
        "planned",
    ),
    "a cohort that claims": (COHORT + "[0]\n    hidden = True", "promises"),
    "a source": (SOURCE + "return SourceRows(np.random.default_rng(seed).random((50, 2)), np.arange(50) % 2)", ""),
    "a source of numbers": (SOURCE + "return SourceRows(np.zeros((50, 2)), np.linspace(-1, 1, 50))", ""),
    "a source of marks": (SOURCE + "return SourceRows(np.zeros((50, 2)), np.eye(50, 3))", ""),
    "a source by chance": (SOURCE + "return SourceRows(np.random.random((50, 2)), np.arange(50) % 2)", "repeats"),
    "beyond its reach": (SOURCE + "return SourceRows(np.full((50, 2), 9.0), np.arange(50) % 2)", "reach"),
    "other lengths": (SOURCE + "return SourceRows(np.zeros((50, 2)), np.arange(4))", "rows"),
    "a loss": (LOSS + "F.cross_entropy(output, label, reduction='none')", ""),
    "a mean loss": (LOSS + "F.cross_entropy(output, label)", "per example"),
    "a mixing loss": (LOSS + "F.cross_entropy(output - output.mean(0), label, reduction='none')", "per example"),
    "a metric": (METRIC + "float((logits.argmax(1) == labels).float().mean())", ""),
    "a metric of places": (METRIC + "float(logits[0, 0] + 1000 * torch.rand(()))", "order"),
    "no number": (METRIC + "logits", "number"),
    "a callback": ("class Mine(Callback):\n    def on_round(self, row): row['round']", ""),
    "a callback that wants more": ("class Mine(Callback):\n    def on_round(self, row): row['accuracy']", "listens"),
}


@pytest.mark.one_fast
@pytest.mark.parametrize("name", PARTS)
def test_a_law_is_broken_by_its_twin_alone(name: str, tmp_path: Path) -> None:
    text, broken = PARTS[name]
    file = tmp_path / "mine_part.py"
    file.write_text(HEAD + text + "\n")
    report = check(file)
    assert report.broken[:1] == ([broken] if broken else []), report.verdicts


def test_of_a_function_somebody_says_what_it_is_and_errors_are_told_with_their_line(tmp_path: Path) -> None:
    file = tmp_path / "mine_loss.py"
    file.write_text("def mine(output, label):\n    return output.no_such_thing\n")
    report = check(file, "mine", kind="loss")
    assert report.setting == "loss"
    assert "line 2, in mine" in report.verdicts[1].why


def test_who_asks_a_batch_for_its_rows_is_told_that_it_is_sealed(tmp_path: Path) -> None:
    file = tmp_path / "mine_peek.py"
    file.write_text(PEEK)
    (verdict,) = [verdict for verdict in check(file).verdicts if "batch is sealed" in verdict.why]
    assert "it has no x, and gives gradients, never rows (line 10, in local)" in verdict.why


STEP = "    for p in model.parameters():\n        p.data += rows.x.mean()"
TRAINERS = {
    "a step": (f"{STEP}\n    return model", ""),
    "nothing returned": (STEP, "trains"),
    "nothing trained": ("    return model", "trains"),
    "no number": ("    return {n: v / 0 for n, v in model.state_dict().items()}", "trains"),
    "by chance": (f"{STEP} * secrets.randbelow(10**9)\n    return model", "repeats"),
    "a memory": (f"    seen.append(rows)\n{STEP} * len(seen)\n    return model", "forgets"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINERS)
def test_a_law_of_trainers_is_broken_by_its_twin_alone(name: str, tmp_path: Path) -> None:
    body, broken = TRAINERS[name]
    file = tmp_path / "mine_trainer.py"
    file.write_text(f"import secrets\n\nseen = []\n\n\ndef train(model, rows, round):\n{body}\n")
    report = check(file, "train", kind="trainer")
    assert report.setting == "algorithm.of"
    assert report.broken[:1] == ([broken] if broken else []), report.verdicts


@pytest.mark.slow
def test_a_trainer_is_tried_with_its_own_network(tmp_path: Path) -> None:
    file = tmp_path / "mine_trainer.py"
    file.write_text(
        "from torch import nn\n\n\nclass Net(nn.Sequential):\n    def __init__(self):\n"
        "        super().__init__(nn.Linear(30, 2))\n\n\n"
        "def train(model, rows, round):\n    assert rows.x.shape == (40, 30)\n    model[0].bias.data += 1\n    return model\n"
    )
    report = check(file, "train", ["model.name=mine_trainer:Net"], kind="trainer", inputs=(30,))
    assert report.broken == [], report.verdicts
