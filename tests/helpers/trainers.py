"""Training functions as a user writes them: `train(model, rows, round)`."""

from __future__ import annotations

import os

import torch
import torch.nn.functional as F
from torch import nn

from sordino.types import Examples

LR, STEPS = 0.5, 3


def sgd(model: nn.Module, rows: Examples, round: int) -> nn.Module:
    """What FedAvg does in `STEPS` steps on all rows. Without an optimiser of torch, which takes a new process seconds."""
    weights = [value for value in model.parameters() if value.requires_grad]
    for _ in range(STEPS):
        gradient = torch.autograd.grad(F.cross_entropy(model(rows.x), rows.y), weights)
        for value, slope in zip(weights, gradient, strict=True):
            value.data -= LR * slope
    return model


_SEEN: list[Examples] = []


def remembers(model: nn.Module, rows: Examples, round: int) -> nn.Module:
    """Broken twin of `sgd`: it goes on with the rows of the client before."""
    mixed = Examples(*map(torch.cat, zip(rows, *_SEEN[-1:], strict=True)))
    _SEEN.append(Examples(rows.x.clone(), rows.y.clone()))
    return sgd(model, mixed, round)


def draws(model: nn.Module, rows: Examples, round: int) -> nn.Module:
    """Draws from the global generators, as training in other libraries does."""
    order = torch.randperm(len(rows.y))[: len(rows.y) // 2 + 1]
    return sgd(model, Examples(rows.x[order], rows.y[order]), round)


def fails(model: nn.Module, rows: Examples, round: int) -> nn.Module:
    raise ValueError("it fails")


def reads(model: nn.Module, rows: Examples, round: int) -> nn.Module:
    """Reads its standard input a little: what is left is for the client after it."""
    if said := os.read(0, 3):
        raise ValueError(f"it read {said!r}")
    return sgd(model, rows, round)


def ends(model: nn.Module, rows: Examples, round: int) -> nn.Module:
    os._exit(3)
