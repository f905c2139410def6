"""A frozen base with an adapter of `peft`, trained under a promise: the program of test_adapters.py, in an environment
that has peft. It prints what it saw as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from adapted import Adapted
from safetensors.torch import load_file
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import sordino
from sordino import keys
from sordino.errors import SordinoError
from sordino.privacy.readers.per_example_gradients import one_by_one
from sordino.receipts.verify import examine
from sordino.tasks.language import LanguageModel, NextTokenLoss
from sordino.tasks.network import InputSettings
from sordino.types import Examples

LENGTH = 12
BASES = {
    "llama": lambda: LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
            max_position_embeddings=64,
        )
    ),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=256, n_positions=64, n_embd=16, n_layer=1, n_head=2, attn_pdrop=0.0, bos_token_id=None,
            eos_token_id=None,
        )
    ),
}  # fmt: skip


class Frozen(Adapted):
    """Broken twin: the adapter is frozen, and something else is trained, so that there is something to do."""

    def __init__(self, base: str) -> None:
        super().__init__(base)
        for name, p in self.net.named_parameters():
            p.requires_grad_("lm_head" in name and "lora" not in name)


class Off(Adapted):
    """Broken twin: the pass goes by the adapter."""

    def __init__(self, base: str) -> None:
        super().__init__(base)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layer = self.net.base_model.model.lm_head if hasattr(self.net.base_model.model, "lm_head") else None
        assert layer is not None
        words = self.net.get_input_embeddings()((x.long() - 1).clamp_min(0))
        return self.scale * nn.functional.linear(words, layer.weight)  # type: ignore[no-any-return]


def experiment(base: str, net: type[nn.Module] = Adapted) -> dict[str, Any]:
    return {
        "data": {"source": "tabular", "path": "notes.csv", "schema": "notes.toml", "group": "clinic"},
        "task": {"name": "next_token"},
        "model": {"name": f"{net.__module__}:{net.__name__}", "options": {"base": base}},
        "algorithm": {"name": "gaussian_gdp", "lr": 0.5, "clip": 1.0},
        "privacy": {"epsilon": 50.0, "delta": 1e-3},
        "rounds": 2,
    }


def by_rule(base: str) -> dict[str, bool]:
    """Whether no gradient of one text is formed, and the sum is that of gradients taken one by one."""
    inputs = InputSettings("mine", (LENGTH,), (0.0,) * LENGTH, (1.0,) * LENGTH, keeps=True)
    task = LanguageModel(Adapted(base), inputs, NextTokenLoss(), 256)
    params = {name: value + 0.02 * torch.randn_like(value) for name, value in task.init(0).items()}
    texts = torch.tensor([[1 + (7 * k + 3 * at) % 256 for at in range(LENGTH)] for k in range(3)]).float()
    texts[1, 5:] = 0
    batch, draws = Examples(texts, torch.zeros(3, dtype=torch.int64)), keys.bits(keys.root(1), 3)
    found = task.clipped_sum(task.losses, params, batch, draws, 0.1, 2)
    slow = one_by_one(task.losses, params, batch, draws, 0.1, 2)
    same = all(torch.allclose(found[name] * 1.0, slow[name], atol=1e-6) for name in slow)
    return {"ruled": task._ruled(task.losses, params), "same": same}


def code(make: Any) -> str:
    try:
        make()
    except SordinoError as error:
        return error.code
    return ""


def story(base: str) -> dict[str, Any]:
    torch.manual_seed(1)
    BASES[base]().save_pretrained(base)
    run = sordino.run(experiment(base), out=f"runs/{base}")
    before, after = Adapted(base).state_dict(), load_file(f"runs/{base}/model.safetensors")
    moved = [name for name, value in after.items() if not torch.equal(value, before[name])]
    adapter = sum(value.numel() for name, value in after.items() if "lora" in name)
    # plain transformers, with the weights that the run left, and its own loss
    net = Adapted(base).eval()
    net.load_state_dict(after)
    text = "no fever"
    ids = torch.tensor([[*text.encode()]])
    theirs = float(net.net(input_ids=ids, labels=ids).loss)
    merged = float(net.net.merge_and_unload()(input_ids=ids, labels=ids).loss)
    ours = next(iter(sordino.predict(run.folder, [{"note": text}], with_code=True).rows))["predicted"]
    example = next(row for row in run.receipt.guarantees if row.unit == "example")
    return {
        "moved": moved,
        "adapter": adapter,
        "sent": run.metrics[-1].bytes_up,
        "losses": [ours, theirs, merged],
        "epsilon": example.epsilon,
        "wrong": examine(run.folder, code=True).wrong,
        **by_rule(base),
        "frozen": code(lambda: sordino.run(experiment(base, Frozen), out=f"runs/{base}-frozen")),
        "off": code(lambda: sordino.run(experiment(base, Off), out=f"runs/{base}-off")),
    }


if __name__ == "__main__":
    sys.modules["adapted_run"] = sys.modules["__main__"]
    Frozen.__module__ = Off.__module__ = "adapted_run"
    print(json.dumps(story(sys.argv[1])))
