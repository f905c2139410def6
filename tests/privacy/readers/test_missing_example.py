"""An example that is missing moves a noisy sum by its clip, whatever weights a server sends.

How many rows go through a network together decides how each is rounded. Weights that are orthogonal to all rows, and
large, make every logit a rounding error: there one row less changed the gradients of all others.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from sordino import keys, tree
from sordino.fast.row_sums import wide
from sordino.privacy.noise.distributions import GaussianNoise
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.tasks import nets
from sordino.tasks.supervised import Classification
from sordino.types import Drawable, Examples, Grant, LocalWork, NoiseSource, Params
from tests.privacy.doubles import Coupled

WIDTH, ROWS, CLASSES = 784, 192, 10
READER = NoisyGradient(1.0, GaussianNoise(), neighbours="zero_out", multiplier=1.0)


@dataclass(frozen=True)
class Real(Coupled):
    """Named as real noise is, so that all is computed as beside real noise; it adds none, and no float64 is lost."""

    name: str = "system"

    def child(self, *parts: int | str) -> NoiseSource:
        return self

    def noisy(self, law: Drawable, values: Tensor, scale: float) -> Tensor:
        return wide(values)

    def words(self, count: int) -> Tensor:
        return keys.bits(keys.root(5), ROWS)[-count:]


class Bare(nn.Module):
    """A layer that no rule covers: its gradients are computed one for each example."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDTH, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight


def hostile(name: str) -> tuple[Classification, Params, Examples]:
    """A network, the rows of a client, and large weights for which the logits of all of them are rounding errors."""
    task = Classification(
        nets.mlp((WIDTH,), CLASSES) if name == "chain" else Bare(),
        name=name, shape=(WIDTH,), mean=(0.0,), std=(1.0,), image=False,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(ROWS, WIDTH, generator=generator)
    params = dict(task.init(0))
    last = [key for key, value in params.items() if value.dim() == 2][-1]
    seen = (task.features(params, x, None) if name == "chain" else x).double()
    space, _ = torch.linalg.qr(seen.T)
    large = torch.randn(CLASSES, seen.shape[1], dtype=torch.float64, generator=generator) * 1e8
    large = (large - (large @ space) @ space.T).float()
    params[last] = large if name == "chain" else large.T.contiguous()
    return task, params, Examples(x, torch.randint(0, CLASSES, (ROWS,), generator=generator))


def moved(name: str, source: NoiseSource) -> float:
    """The largest change of a sum of 64, 128 or 192 rows, in clips, when the first one is missing."""
    task, params, rows = hostile(name)

    def total(some: slice, size: int) -> Tensor:
        shard = READER.open(Examples(rows.x[some], rows.y[some]), Grant(0, size, size, source, 1.0), task)
        (batch,) = shard.batches(LocalWork(None, 1, None), keys.root(1))
        return tree.flat(batch.grad(task.losses, params)).double() * size

    sizes = (ROWS // 3, 2 * ROWS // 3, ROWS)
    return max(float((total(slice(n), n) - total(slice(1, n), n)).norm()) for n in sizes)


@pytest.mark.parametrize("name", ["chain", "bare"])
def test_one_example_less_moves_a_sum_by_its_clip(name: str) -> None:
    assert moved(name, Real()) <= 1 + 1e-4
    assert moved(name, Real(name="counter")) > 2  # together with the others, as in a simulation
