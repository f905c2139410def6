"""Training loops of other libraries, under a client-level guarantee: each learns the digits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import sordino
from sordino.types import Examples

CENTRAL: dict[str, Any] = {
    "client": [{"name": "clip", "radius": 3.0}, "weigh"],
    "server": [{"name": "noise", "neighbours": "zero_out"}],
}


class Linear(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 10))


def accuracy(folder: Path, train: Any, **more: Any) -> float:
    """Accuracy of a small run without noise, and under noise a client's row that is finite."""
    settings = {"partition": {"scheme": "iid", "clients": 3}, "model": Linear, "rounds": 3, **more}
    budget = {"uplink": CENTRAL, "privacy": {"epsilon": 8.0, "delta": 1e-3}}
    noised = sordino.run(train=train, out=folder / "noised", **settings | budget | {"rounds": 1})
    rows = {(row.unit, row.adversary): row for row in noised.receipt.guarantees}
    assert rows["client", "public"].finite
    assert not rows["client", "server"].finite
    found = sordino.run(train=train, out=folder / "plain", privacy={}, **settings).accuracy
    assert found is not None
    return found


@pytest.mark.slow
def test_numpy(tmp_path: Path) -> None:
    """Softmax regression by hand: arrays in, arrays out."""

    def train(model: nn.Module, rows: Examples, round: int) -> dict[str, Any]:
        w, b = (value.numpy().astype(float) for value in model.state_dict().values())
        x, y = rows.x.flatten(1).numpy(), np.eye(10)[rows.y.numpy()]
        for _ in range(20):
            p = np.exp(x @ w.T + b)
            slope = (p / p.sum(1, keepdims=True) - y) / len(x)
            w, b = w - 0.5 * slope.T @ x, b - 0.5 * slope.sum(0)
        return {"1.weight": w, "1.bias": b}

    assert accuracy(tmp_path, train, rounds=2, partition={"scheme": "iid", "clients": 2}) > 0.8


@pytest.mark.slow
def test_scikit_learn(tmp_path: Path) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model", reason="scikit-learn is not installed")

    def train(model: nn.Module, rows: Examples, round: int) -> dict[str, Any]:
        x, y = rows.x.flatten(1).double().numpy(), rows.y.numpy()
        own = linear_model.SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.01)
        own.partial_fit(x[:1], y[:1], classes=np.arange(10))
        own.coef_, own.intercept_ = (value.double().numpy() for value in model.state_dict().values())
        own.partial_fit(x, y)
        return {"1.weight": own.coef_, "1.bias": own.intercept_}

    assert accuracy(tmp_path, train) > 0.8


@pytest.mark.slow
def test_jax(tmp_path: Path) -> None:
    """Imported in the function: a process that has started JAX's threads cannot be forked."""
    pytest.importorskip("jax", reason="JAX is not installed")

    def train(model: nn.Module, rows: Examples, round: int) -> dict[str, Any]:
        import jax

        x, y = rows.x.flatten(1).numpy(), rows.y.numpy()

        def loss(weights: dict[str, Any]) -> Any:
            logits = x @ weights["1.weight"].T + weights["1.bias"]
            return -jax.nn.log_softmax(logits)[np.arange(len(y)), y].mean()

        slope, weights = jax.jit(jax.grad(loss)), {name: value.numpy() for name, value in model.state_dict().items()}
        for _ in range(20):
            weights = jax.tree.map(lambda w, g: w - 0.5 * g, weights, slope(weights))
        return weights

    assert accuracy(tmp_path, train) > 0.8


@pytest.mark.slow
def test_lightning(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning", reason="Lightning is not installed")

    def train(model: nn.Module, rows: Examples, round: int) -> nn.Module:
        class Fit(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.net = model

            def training_step(self, batch: Any, index: int) -> Any:
                return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

            def configure_optimizers(self) -> Any:
                return torch.optim.Adam(self.parameters(), lr=1e-2)

        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*rows), batch_size=16, shuffle=True)
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        lightning.Trainer(max_epochs=1, accelerator="cpu", enable_model_summary=False, **quiet).fit(Fit(), loader)
        return model

    assert accuracy(tmp_path, train) > 0.7


class Tokens(nn.Module):
    """A tiny BERT, made from a configuration, that reads the 8 rows of a digit, by their brightness, as words."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import BertConfig, BertForSequenceClassification

        size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        config = BertConfig(vocab_size=17, max_position_embeddings=8, num_labels=10, **size)
        self.bert = BertForSequenceClassification(config)

    @staticmethod
    def words(x: torch.Tensor) -> torch.Tensor:
        return (8 * x.mean(-1).flatten(1) + 8).round().clamp(0, 16).long()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.bert(input_ids=self.words(x)).logits
        return logits


@pytest.mark.slow
def test_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="Transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate, which Transformers' Trainer needs, is not installed")

    def train(model: Tokens, rows: Examples, round: int) -> nn.Module:
        found = [{"input_ids": words, "labels": y} for words, y in zip(model.words(rows.x), rows.y, strict=True)]
        quiet = {
            "report_to": [],
            "save_strategy": "no",
            "disable_tqdm": True,
            "logging_strategy": "no",
            "log_level": "error",
        }
        asked = transformers.TrainingArguments(
            output_dir=str(tmp_path / "hf"), num_train_epochs=2, learning_rate=1e-2, use_cpu=True, **quiet
        )
        transformers.Trainer(model=model.bert, args=asked, train_dataset=found).train()
        return model

    assert accuracy(tmp_path, train, model=Tokens, rounds=4) > 0.2
