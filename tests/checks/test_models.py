"""`sordino check` on a model, and on broken twins of it: each is caught by the law that it breaks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sordino.checks import check
from tests.helpers.command_line import Said

HEAD = """
import random, numpy as np, torch
from torch import nn
class Net(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.first, self.last = nn.Linear(4, width), nn.Linear(width, 3)
        self.seen, self.kept = 0, None
    def forward(self, x):
        z = torch.relu(self.first(x))
"""
MODELS = {
    "a model": ("return self.last(z)", ""),
    "with dropout": ("return self.last(nn.functional.dropout(z, 0.5, self.training))", ""),
    "beside the others": ("return self.last(z - z.mean(0))", "per example"),
    "beside the others in training": ("return self.last(z - z.mean(0) if self.training else z)", "per example"),
    "by another generator": ("return self.last(z * float(np.random.rand()))", "draws"),
    "by chance as it predicts": ("return self.last(nn.functional.dropout(z, 0.5, True))", "draws"),
    "with a counter": ("self.seen += 1\n        return self.last(z)", "functional"),
    "with the weights of before": (
        "old, self.kept = self.kept, self.last.weight.detach().clone()\n"
        "        return self.last(z) + (0 if old is None else z @ old.T)",
        "functional",
    ),
    "with an idle layer": ("return z[:, :3]", "gradient"),
    "with a root of 0": ("return self.last(z).mul(0).sqrt() + self.last(z)", "gradient"),
    "with gradients of other rows": ("return self.last(z + z.mean(0) - z.mean(0).detach())", "adds up"),
    "with no answer for each row": ("return self.last(z).flatten()", "made"),
}


@pytest.mark.one_fast
@pytest.mark.parametrize("name", MODELS)
def test_a_law_is_broken_by_its_twin(name: str, tmp_path: Path) -> None:
    text, broken = MODELS[name]
    (tmp_path / "mine_net.py").write_text(f"{HEAD}        {text}\n")
    report = check(tmp_path / "mine_net.py", inputs=(4,))
    assert report.broken[:1] == ([broken] if broken else []), report.verdicts
    assert report.setting == "model.name"


@pytest.mark.one_fast
@pytest.mark.parametrize(("text", "broken"), [("z.cumsum(1)", []), ("z + z.mean(1, keepdim=True)", ["per example"])])
def test_a_language_model_looks_back_only(text: str, broken: list[str], tmp_path: Path) -> None:
    (tmp_path / "mine_net.py").write_text(
        "from torch import nn\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.words, self.last = nn.Embedding(8, 6), nn.Linear(6, 7)\n    def forward(self, x):\n"
        f"        z = self.words(x.long())\n        return self.last({text})\n"
    )
    assert check(tmp_path / "mine_net.py", inputs=(5,)).broken == broken


def test_what_does_not_fit_says_how_to_tell_the_shape(cli: Callable[..., Said], tmp_path: Path) -> None:
    (tmp_path / "mine_net.py").write_text(f"{HEAD}        return self.last(z)\n")
    refused = check(tmp_path / "mine_net.py").verdicts[0]
    assert (refused.verdict, "--inputs 30" in refused.fix) == ("broken", True)
    assert cli("check", tmp_path / "mine_net.py", "--inputs", "4", "--set", "width=3").code == 0
    assert cli("check", tmp_path / "mine_net.py", "--inputs", "four").code == 2


def test_a_layer_that_norms_a_batch_and_draws_of_the_system_are_told(tmp_path: Path) -> None:
    made = HEAD.replace("self.seen", "self.norm = nn.BatchNorm1d(width)\n        self.seen", 1)
    (tmp_path / "mine_net.py").write_text(f"{made}        return self.last(self.norm(z))\n")
    assert "BatchNorm1d" in check(tmp_path / "mine_net.py", inputs=(4,)).verdicts[0].why
    drawn = HEAD.replace(
        "self.seen", "self.first.weight.data[0, 0] = random.SystemRandom().random()\n        self.seen", 1
    )
    (tmp_path / "mine_net.py").write_text(f"{drawn}        return self.last(z)\n")
    assert check(tmp_path / "mine_net.py", inputs=(4,)).broken == ["repeats"]


def test_a_function_that_makes_a_model_and_one_with_images(tmp_path: Path) -> None:
    text = "from torch import nn\ndef net(width=3):\n    return nn.Sequential(nn.Conv2d(3, width, 3), nn.Flatten(), nn.Linear(width * 9, 1))\n"
    (tmp_path / "mine_net.py").write_text(text)
    assert check(tmp_path / "mine_net.py", "net", ["width=2"], kind="model", inputs=(3, 5, 5)).broken == []
