"""Gradients of cells: which rows come together, what the mean of many draws is, how much noise it carries and what it
claims to cost.

The losses are linear, so that an episode's gradient is the sum of the rows it read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from sordino import keys
from sordino.accounting.composition import note, two_steps
from sordino.accounting.events import Gaussian, Poisson, Repeat
from sordino.accounting.statement import statement
from sordino.algorithms.prifedsync import prifedsync
from sordino.errors import ConfigError
from sordino.privacy.readers.episodes import CellGradient, CellShard
from sordino.tasks.quadratic import Quadratic
from sordino.types import Examples, Grant, LocalWork, NoiseSource, Params
from tests.privacy.doubles import Still

N, CELLS, CLIP, Z = 40, 5, 0.8, 3.0
NET = Quadratic(2)
ONES = Examples(torch.eye(N, dtype=torch.float64), torch.arange(N) % 2)
READER = CellGradient(1e9, CELLS, rate=0.5, multiplier=1e-12)


def added(params: Params, support: Examples, query: Examples, draws: Tensor) -> Tensor:
    assert len(draws) == len(support.y) + len(query.y)
    return (params["w"] * (support.x.sum(0) + query.x.sum(0))).sum()


def read(
    reader: CellGradient,
    examples: Examples,
    source: NoiseSource,
    steps: int = 1,
    key: int = 1,
    loss: Callable[..., Tensor] = added,
    client: int = 0,
    batch: int | None = None,
    size: int = N,
) -> Tensor:
    """One noisy gradient a step."""
    grant = Grant(client, size, size, source, None, reads=steps)
    zero = {"w": torch.zeros(examples.x.shape[1], dtype=torch.float64)}
    episodes = reader.open(examples, grant, NET).episodes(LocalWork(None, steps, batch), keys.root(key))
    return torch.stack([episode.grad(loss, zero)["w"] for episode in episodes])


def groups(signatures: Tensor) -> set[frozenset[int]]:
    """Rows that were always read together."""
    found: dict[tuple[float, ...], set[int]] = {}
    for row, signature in enumerate(signatures.T.tolist()):
        found.setdefault(tuple(signature), set()).add(row)
    return {frozenset(rows) for rows in found.values()}


# cells ----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_cells_are_disjoint_and_the_same_in_every_round() -> None:
    """Of 40 steps with coins of 1/2 two cells agree by chance with 2^-40; the sets are compared over rounds with other
    keys and coins.
    """
    rounds = [read(READER, ONES, Still(0, key=t), steps=40, key=t) > 0 for t in range(3)]
    each = [groups(seen) for seen in rounds]
    assert each[0] == each[1] == each[2] == groups(torch.cat(rounds))
    assert sorted(map(len, each[0])) == [N // CELLS] * CELLS
    assert sum(map(len, each[0])) == N
    assert not torch.equal(rounds[0], rounds[1])  # which of them come is drawn afresh
    assert len({tuple(step) for step in rounds[0].tolist()}) > 10
    assert groups(read(READER, ONES, Still(0), steps=40, client=7) > 0) != each[0]


@pytest.mark.slow
def test_an_example_that_is_not_there_leaves_the_others_in_their_cells() -> None:
    """The number that they are dealt by is public. The twin deals by the rows at hand, and moves those behind it."""
    fewer, moved = Examples(ONES.x[:-1], ONES.y[:-1]), False
    for client in range(5):
        dealt = groups(read(READER, ONES, Still(0), steps=40, client=client) > 0)
        others = {cell for cell in dealt if N - 1 not in cell}
        assert len(others) == CELLS - 1
        assert others <= groups(read(READER, fewer, Still(0), steps=40, client=client) > 0)
        moved |= not others <= groups(read(READER, fewer, Still(0), steps=40, client=client, size=N - 1) > 0)
    assert moved


def test_fresh_episodes_are_dealt_for_every_step() -> None:
    reader = CellGradient(1e9, CELLS, "fresh", multiplier=1e-12)
    seen = read(reader, ONES, Still(0), steps=30, batch=10) * CELLS
    assert set(seen.round().flatten().tolist()) == {0, 1}  # an example is in at most one episode of a step
    assert ((seen > 0.5).sum(1) == 20).all()
    assert len(groups(seen.round())) > CELLS
    alone = read(replace(reader, clip=1.0), ONES, Still(0), steps=1, batch=10) * CELLS
    assert float(alone.max()) == pytest.approx(1 / math.sqrt(20 / CELLS), rel=1e-5)  # each is clipped by itself


# the mean -------------------------------------------------------------------------------------------------------------


def few() -> Examples:
    return Examples(keys.normal(keys.root(3), N * 3).view(N, 3) + 0.3, torch.arange(N) % 2)


def cell_sums(examples: Examples) -> Tensor:
    together = groups(read(READER, ONES, Still(0), steps=40) > 0)
    return torch.stack([examples.x[sorted(rows)].sum(0) for rows in together])


@pytest.mark.slow
def test_the_mean_of_many_draws_is_the_mean_of_the_clipped_cells() -> None:
    """Five standard errors per coordinate: a false alarm in 500,000. Control: the mean without the clip is far outside."""
    steps, rate, data = 2000, 0.3, few()
    reader = CellGradient(CLIP, CELLS, rate=rate, multiplier=1e-12)
    found = read(reader, data, Still(0), steps=steps)
    sums = cell_sums(data)
    clipped = sums * (CLIP / sums.norm(dim=1, keepdim=True)).clamp_max(1.0)
    assert int((sums.norm(dim=1) > CLIP).sum()) >= 3  # it bites
    error = 5 * (clipped.square().sum(0) * (1 - rate) / rate / steps).sqrt() / CELLS
    assert bool(((found.mean(0) - clipped.mean(0)).abs() <= error).all())
    assert bool(((found.mean(0) - sums.mean(0)).abs() > error).any())
    assert float((found * rate * CELLS).norm(dim=1).max()) <= CELLS * CLIP


@pytest.mark.parametrize("sampling", ["poisson", "fresh"])
def test_the_size_of_the_noise(sampling: Any) -> None:
    """One deviation in every coordinate: multiplier * clip / (rate * cells), and 2 multiplier * clip / cells where an
    example turns its episode around.
    """
    reader, data = CellGradient(CLIP, CELLS, sampling, rate=0.3, multiplier=Z), few()
    loud, still = (read(reader, data, Still(level), steps=6, batch=10) for level in (1, 0))
    wanted = Z * CLIP / (0.3 * CELLS) if sampling == "poisson" else Z * 2 * CLIP / CELLS
    assert torch.allclose(loud - still, torch.full_like(still, wanted), rtol=1e-12, atol=1e-12)
    grant = Grant(0, N, N, Still(1), 2 * Z)  # the plan's multiplier where none is typed
    priced = replace(reader, multiplier=None).open(data, grant, NET).episodes(LocalWork(None, 1, 10), keys.root(1))
    first = next(iter(priced)).grad(added, {"w": torch.zeros(3, dtype=torch.float64)})["w"]
    assert torch.allclose(first - still[0], torch.full_like(first, 2 * wanted), rtol=1e-12, atol=1e-12)


# what one example can do ----------------------------------------------------------------------------------------------


def turned(params: Params, support: Examples, query: Examples, draws: Tensor) -> Tensor:
    """An episode that one marked row turns around."""
    marked = bool((torch.cat([support.x, query.x])[:, 0] > 0.5).any())
    return (params["w"] * (1e3 if marked else -1e3)).sum()


def rows(marked: int, n: int = 20) -> Examples:
    x = torch.zeros(n, 2, dtype=torch.float64)
    x[:marked, 0] = 1
    return Examples(x, torch.arange(n) % 2)


def moved(reader: CellGradient, a: Examples, b: Examples) -> float:
    """How far the sum goes between two data sets, in units of the sensitivity that the noise is sized for."""
    scale = read(reader, a, Still(1), batch=10) - read(
        reader, a, Still(0), batch=10
    )  # multiplier * sensitivity / denominator
    assert reader.multiplier is not None
    unit = float(scale.abs().max()) / reader.multiplier
    gap = read(reader, a, Still(0), batch=10, loss=turned) - read(reader, b, Still(0), batch=10, loss=turned)
    return float(gap.norm()) / unit


def test_an_example_that_changes_turns_its_fresh_episode_around_and_no_more() -> None:
    reader = CellGradient(CLIP, 2, "fresh", multiplier=1.0)
    assert moved(reader, rows(1), rows(0)) == pytest.approx(1.0, rel=1e-5)
    assert moved(reader, rows(0), rows(0)) == 0


def test_a_cell_that_goes_moves_the_sum_by_one_clip() -> None:
    """Every coin lands heads: what is added up is as many clips as there are cells."""
    one, two = (CellGradient(CLIP, cells, rate=1.0, multiplier=1.0) for cells in (1, 2))
    sums = [read(r, rows(0), Still(0), loss=turned) * r.cells for r in (one, two)]
    assert float((sums[1] - sums[0]).norm()) == pytest.approx(CLIP, rel=1e-5)
    assert two.sensitivity == CLIP


def test_an_example_that_changes_turns_its_cell_around() -> None:
    """Twice what a cell's coming or going does: its price is that of two steps of the cell's claim."""
    reader = CellGradient(CLIP, 2, rate=1.0, multiplier=1.0)
    assert moved(reader, rows(1), rows(0)) == pytest.approx(2.0, rel=1e-5)
    claims = reader.claims(LocalWork(None, 1, None), 20, None)
    assert {(c.unit, c.neighbours, c.status) for c in claims} == {
        ("cell", "zero_out", "proved"),
        ("example", "replace", "none"),
    }
    rows_ = statement([note([("*", claims)])], 1, 1e-5)
    of = {(row.unit, row.adversary): row for row in rows_}
    cell, example = of["cell", "server"], of["example", "server"]
    assert (example.neighbours, example.status) == ("replace", "proved")
    assert example.epsilon == two_steps(cell.event, 1e-5, "zero_out") > 2 * cell.epsilon


@dataclass(frozen=True)
class Heads(Still):
    """Chooses the cells it is told."""

    chosen: tuple[int, ...] = ()

    def child(self, *parts: int | str) -> NoiseSource:
        return self

    def coins(self, count: int, probability: float) -> Tensor:
        return torch.isin(torch.arange(count), torch.tensor(self.chosen))


def split(params: Params, support: Examples, query: Examples, draws: Tensor) -> Tensor:
    """Which rows are asked, and with which keys."""
    told = (query.x[:, 0].double() * torch.arange(1, len(query.y) + 1)).sum() + (draws % 97).double().mean()
    return (params["w"] * told * 1e-3).sum()


def test_what_a_cell_computes_does_not_tell_which_others_were_chosen() -> None:
    """The summands of cells 3 and 7 are the same with and without cell 0: a coin that shifted the others' splits would
    show (a broken twin does).
    """
    reader, x = CellGradient(1e6, 8, rate=0.2, multiplier=1.0), torch.arange(160, dtype=torch.float64)[:, None]
    data = Examples(x.expand(-1, 2), torch.arange(160) % 2)

    def total(*chosen: int) -> Tensor:
        grant = Grant(0, 160, 160, Heads(0, chosen=chosen), 1.0)
        (episode,) = reader.open(data, grant, NET).episodes(LocalWork(None, 1, None), keys.root(1))
        return episode.grad(split, {"w": torch.zeros(3, dtype=torch.float64)})["w"]

    alone, others = total(0), total(3, 7)
    assert torch.allclose(total(0, 3, 7), alone + others, rtol=1e-12)
    assert not torch.allclose(total(3), total(7))  # the split matters

    def numbered(self: Any, work: LocalWork, step: int, key: Any) -> Any:
        return enumerate(cell for _, cell in whole(self, work, step, key))

    whole = CellShard._cells
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CellShard, "_cells", numbered)
        assert not torch.allclose(total(0, 3, 7), total(0) + total(3, 7), rtol=1e-6)


# the claim ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "neighbours", "event"),
    [("poisson", "zero_out", Repeat(Poisson(0.3, Gaussian(Z)), 7)), ("fresh", "replace", Repeat(Gaussian(Z), 7))],
)
def test_claims_and_offers(sampling: Any, neighbours: str, event: Any) -> None:
    reader, work = CellGradient(CLIP, CELLS, sampling, rate=0.3), LocalWork(None, 7, 10)
    unit = "cell" if sampling == "poisson" else "example"
    claims = [c for c in reader.claims(work, N, Z) if c.unit == unit]
    assert [c.adversary for c in claims] == ["server", "participants", "public"]
    for claim in claims:
        assert (claim.neighbours, claim.status, claim.event) == (neighbours, "proved", event)
        assert claim.because
    offer = reader.offer()
    assert offer is not None
    assert dict(offer.subject) == {"unit": unit, "neighbours": neighbours, "adversary": "server"}
    assert offer.rate == (0.3 if sampling == "poisson" else 1.0)
    assert reader.reads(work, N) == 7
    assert reader.claims(LocalWork(None, 1, 10), N, Z)[0].event in (event.event,)


def test_cells_need_a_number_of_steps() -> None:
    READER.check(LocalWork(None, 3, 10), NET)
    with pytest.raises(ConfigError) as refusal:
        READER.check(LocalWork(2, None, 10), NET)
    assert refusal.value.code == "episodes-need-steps"


def test_prifedsync_at_the_level_of_steps_has_the_noise_it_prints() -> None:
    """sigma C / E per step (Zheng et al.): the multiplier is half as large, because an example moves the sum by 2 C."""
    read_ = prifedsync("step_level", clip=CLIP, sigma=0.45, episodes=CELLS).read
    assert isinstance(read_, CellGradient)
    loud, still = (read(read_, few(), Still(level), batch=10) for level in (1, 0))
    assert torch.allclose(loud - still, torch.full_like(still, 0.45 * CLIP / CELLS), rtol=1e-12, atol=1e-12)
    assert read_.claims(LocalWork(None, 1, 10), N, None)[0].event == Gaussian(0.225)
