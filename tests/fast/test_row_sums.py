"""One row moves a sum by what it adds, whatever the other rows are: sums before real noise are in float64."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from sordino.fast import row_sums
from sordino.fast.factored import Product, dense
from sordino.fast.row_sums import ROWS, RowSum, of_positions, wide
from sordino.privacy.noise import GaussianNoise
from sordino.privacy.noise.sources import Counter, SystemNoise
from sordino.privacy.readers.class_sums import class_sums
from sordino.privacy.readers.episodes import CellGradient, NoisyEpisode
from sordino.privacy.readers.layer_gradients import Elementwise, Lookup, OuterProduct, Positions, Side
from sordino.privacy.readers.per_example_gradients import slow_sum
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.coordinate_laplace import ClipCoordinates, CoordinateLaplace
from sordino.privacy.uplink.stages import Clip, Noise, Stage
from sordino.types import Examples, Grant, Params, Task

COUNT, LARGE = 30_000, 8192  # a power of two, around which the sum of the first rows lies
PLAIN = {"weight": torch.ones(COUNT), "bias": torch.ones(COUNT)}


def rows(first: float) -> Tensor:
    """Numbers up to 1/2, that add up to `first` beyond a power of two, and then go up and down by little more and
    little less than half a step of float32 there: below the power, all of these are added exactly.
    """
    step, many = LARGE * 2.0**-23, 2 * LARGE
    up, down = 0.0625 + 0.505 * step, -0.0625 - 0.495 * step
    return torch.cat([torch.tensor([first]), torch.full((many,), 0.5), torch.tensor([up, down]).repeat(COUNT)])[:COUNT]


def kept(side: Side) -> Params:
    return side.weighted(PLAIN, None, slice(None))


def linear(v: Tensor) -> Tensor:
    return kept(OuterProduct(v[:, None], torch.ones(COUNT, 1), False))["weight"]


def biased(v: Tensor) -> Tensor:
    return kept(OuterProduct(torch.ones(COUNT, 1), v[:, None], True))["bias"]


def own_weights_of_a_bias(v: Tensor) -> Tensor:
    side = OuterProduct(torch.ones(COUNT, 1), v[:, None], True)
    return side.weighted({"weight": PLAIN["weight"], "bias": PLAIN["weight"].clone()}, None, slice(None))["bias"]


def positions(v: Tensor, wide: int = 3) -> Params:
    """Of a gradient of wide^3 numbers each row moves one."""
    a = torch.nn.functional.pad(v[:, None, None], (0, 0, 0, wide * wide - 1))
    g = torch.nn.functional.pad(torch.ones(COUNT, 1, 1), (0, 0, 0, wide - 1))
    side = Positions(a, g, torch.Size((wide, 1, wide, wide)), True)
    assert (side.each is None) == (wide > 1)
    return kept(side)


def ways() -> dict[str, Callable[[Tensor], Tensor]]:
    return {
        "a linear layer": linear,
        "its bias": biased,
        "a bias with weights of its own": own_weights_of_a_bias,
        "positions, multiplied together": lambda v: positions(v)["weight"],
        "positions, one by one": lambda v: positions(v, 1)["weight"],
        "the bias of positions": lambda v: kept(
            Positions(torch.ones(COUNT, 1, 1), v[:, None, None], torch.Size((1, 1)), True)
        )["bias"],
        "a norm": lambda v: kept(Elementwise({"weight": v[:, None]}))["weight"],
        "words": lambda v: kept(
            Lookup(torch.zeros(COUNT, 1, dtype=torch.long), v[:, None, None], torch.nn.Embedding(1, 1))
        )["weight"],
        "one after another": lambda v: slow_sum(
            lambda params, x, y, keys: x @ params["w"],
            {"w": torch.zeros(1)},
            Examples(v[:, None], torch.zeros(COUNT)),
            torch.zeros(COUNT, dtype=torch.long),
            1.0,
            2,
        )["w"],
    }


def moved(way: Callable[[Tensor], Tensor], seen: Callable[[Tensor], Tensor]) -> float:
    """Change of a sum as the first row changes from -1/2 to 1/2."""
    return float((seen(way(rows(0.5))) - seen(way(rows(-0.5)))).norm())


@pytest.mark.parametrize("way", ways().values(), ids=ways())
def test_a_row_moves_what_is_noised_by_what_it_adds(way: Callable[[Tensor], Tensor]) -> None:
    # real noise that is small: 40 deviations are far below what float32 moves
    noised = partial(GaussianNoise().add, scale=1e-4, source=SystemNoise())
    assert moved(way, noised) == pytest.approx(1.0, abs=40 * 1e-4 * 2**0.5)
    assert moved(way, wide) == pytest.approx(1.0, abs=1e-6)
    assert way(rows(0.5)).dtype == torch.float32  # in which seeded noise is drawn


def test_a_sum_in_float32_moves_by_more() -> None:
    """The broken twin: rows added in float32, one after the other, as a library may do it with one thread."""
    assert moved(lambda v: torch.from_numpy(np.cumsum(v.numpy())[-1:]), dense) > 2


def test_positions_are_added_few_at_a_time() -> None:
    seen: list[int] = []

    def of(g: Tensor, a: Tensor) -> Tensor:
        seen.append(len(g))
        return torch.einsum("not,nit->oi", g, a)

    g = torch.ones(100, 1, ROWS)
    assert float(of_positions(of, g, g).wide()) == 100 * ROWS
    assert max(seen) ** 2 * ROWS <= 3 << 20
    assert sum(seen) == 100


def test_a_product_is_added_in_float64() -> None:
    left, right = torch.full((3 * ROWS, 2), 0.1), torch.full((3 * ROWS, 1), 3.0)
    assert wide(Product(left, right)).dtype == torch.float64
    assert torch.equal(wide(Product(left, right)), wide(RowSum(lambda a, b: a.t() @ b, left, right)))
    assert wide(Product(left)).dtype == torch.float32  # no sum that noise is added to


# sums of many terms in float64, where one term may be missing ---------------------------------------------------------

STEP = 2.0**-44  # of float64 below 512; above, tensors of three of them are rounded, all in one direction
TERMS = torch.tensor([0.75] * 682 + [3 * STEP] * 200)  # without the first one they stay below 512


def added(v: Tensor, client: Stage, server: Stage) -> Tensor:
    total: Tensor = Uplink((client,), (server,)).sum(enumerate(v[:, None]), torch.zeros(1)).total
    return total


def uploads(v: Tensor) -> Tensor:
    return added(v, Clip(1.0), Noise(neighbours="zero_out"))


def as_published(v: Tensor) -> Tensor:
    return added(v, ClipCoordinates(1.0), CoordinateLaplace(1.0))


def alone(v: Tensor) -> Tensor:
    """Gradients of rows of which one may be missing: each in a pass of its own."""
    params, none = {"w": torch.zeros(1)}, torch.zeros(len(v))
    rows = Examples(v[:, None], none)
    return wide(slow_sum(lambda p, x, y, keys: x @ p["w"], params, rows, none.long(), 1.0, 2, solo=True)["w"])


def of_a_class(v: Tensor) -> Tensor:
    return class_sums(lambda x: x.double(), Examples(v[:, None], torch.zeros(len(v), dtype=torch.long)), 1)[0]


def cells(v: Tensor) -> Tensor:
    """Gradients of cells of two equal examples, with next to no noise."""
    own = list(enumerate(Examples(one.expand(2, 1), torch.zeros(2, dtype=torch.long)) for one in v.double()))
    grant = Grant(0, 2 * len(v), 2 * len(v), Counter(0), 1e-18)
    task = SimpleNamespace(still=lambda *asked, params: nullcontext())
    episode = NoisyEpisode(CellGradient(1.0, cells=1, rate=1.0), own, grant, cast("Task", task), 0, 0)
    return episode.grad(lambda p, support, query, keys: (query.x @ p["w"]).sum(), {"w": torch.zeros(1).double()})["w"]


@pytest.mark.parametrize("plain", [1, row_sums.PLAIN])
@pytest.mark.parametrize("way", [uploads, as_published, alone, of_a_class, cells])
def test_a_term_moves_a_sum_by_its_own_length_wherever_the_sum_is(
    way: Callable[[Tensor], Tensor], plain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_sums, "PLAIN", plain)
    first = 0.75
    change = float(way(torch.cat([torch.tensor([first]), TERMS])) - way(TERMS))
    assert abs(change - first) <= 2 * STEP
    # the broken twin: float64 alone, one after another
    twin = float(np.cumsum([first, *TERMS.tolist()])[-1] - np.cumsum(TERMS.double().numpy())[-1])
    assert twin - first == pytest.approx(200 * STEP, rel=0.02)
