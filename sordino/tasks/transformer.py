"""A small transformer that reads texts of tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino.errors import DataError, Range, check_range


class AttentionBlock(nn.Module):
    """Transformer block: causal self-attention, then a two-layer perceptron at each position, each behind a norm and
    beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.attention, self.joined = (
            nn.LayerNorm(width),
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )
        self.norm_after, self.wide, self.narrow = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        asked, known, values = self.attention(self.norm(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        fit = (asked @ known.mT / (width // self.heads) ** 0.5).masked_fill(later, float("-inf"))
        x = x + self.joined((fit.softmax(-1) @ values).transpose(1, 2).reshape(n, length, width))
        out: Tensor = x + self.narrow(F.gelu(self.wide(self.norm_after(x))))
        return out


class Transformer(nn.Module):
    """A decoder as in GPT-2, without dropout and with untied output weights.

    `each`: outputs at every position of a text; else one output for the text, at its last token.
    """

    def __init__(self, tokens: int, length: int, outputs: int, width: int, layers: int, heads: int, each: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(AttentionBlock(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, outputs)
        self.each = each

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.long().clamp(0, self.words.num_embeddings - 1)
        places = torch.arange(x.shape[1], device=x.device).expand_as(tokens)
        z = self.norm(self.blocks(self.words(tokens) + self.places(places)))
        if not self.each:
            last = ((tokens > 0).sum(1) - 1).clamp_min(0)
            z = z.gather(1, last[:, None, None].expand(-1, 1, z.shape[2]))[:, 0]
        out: Tensor = self.head(z)
        return out


def transformer(
    shape: tuple[int, ...], classes: int, tokens: int | None = None, width: int = 64, layers: int = 2, heads: int = 4
) -> nn.Module:
    """A small decoder as in GPT-2. Without `tokens` it predicts the next token of a text, with `tokens` its class."""
    for name, given in (("width", width), ("layers", layers), ("heads", heads), ("tokens", tokens)):
        if given is not None:
            check_range(f"model.{name}", given, Range(least=1), "text-model-size")
    if len(shape) != 1 or width % heads:
        raise DataError(
            f"the model 'transformer' with width {width} and {heads} heads does not fit examples of "
            f"{'x'.join(map(str, shape))}",
            why="it reads the tokens of a text, and each head has an equal part of the width",
            fix="choose a model for images" if len(shape) != 1 else "set model.width to a multiple of model.heads",
            code="model-does-not-fit",
        )
    return Transformer(tokens or classes + 1, shape[0], classes, width, layers, heads, each=tokens is None)
