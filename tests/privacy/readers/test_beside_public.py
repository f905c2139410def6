"""Public rows beside clipped ones: they change nothing of what is noised, and every batch has its part of them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from sordino import keys, tree
from sordino.errors import PrivacyError, SordinoError
from sordino.privacy.noise.sources import Counter
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.privacy.readers.open import Open
from sordino.types import Examples, Grant, LocalWork, Shard
from tests.privacy.doubles import linear
from tests.privacy.readers.few_examples import DIM, DOUBLE, TASK, Z, many, opened

# noise beside public rows ---------------------------------------------------------------------------------------------
PARAMS = {"w": torch.zeros(DIM, dtype=DOUBLE)}


def keyed(params: Any, x: Tensor, y: Tensor, draws: Tensor) -> Tensor:
    """Gradients that the keys of examples reach into, as a dropout's do."""
    return linear(params, x, y, draws) * torch.where(draws % 2 == 0, 1.0, -1.0)


READINGS = {
    "full": (NoisyGradient(0.5), LocalWork(3, None, None)),
    "poisson": (NoisyGradient(0.5, sampling="poisson", rate=0.5, neighbours="zero_out"), LocalWork(None, 4, None)),
    "fixed_batches": (NoisyGradient(0.5, sampling="fixed_batches"), LocalWork(2, None, 4)),
}


def public(n: int = 7) -> Examples:
    return Examples(100.0 + torch.arange(n * DIM, dtype=DOUBLE).reshape(n, DIM), torch.zeros(n, dtype=torch.int64))


@pytest.mark.parametrize("how", ["union", "half", 3])
@pytest.mark.parametrize("name", READINGS)
def test_public_rows_change_nothing_of_what_is_clipped_and_noised(name: str, how: Any) -> None:
    """Bit for bit the gradients of the same shard without them, with noise, sample and draws."""
    reader, work = READINGS[name]
    rows = many(10)
    plain = reader.open(rows, Grant(0, 10, 10, Counter(8), Z), TASK)
    alone = [batch.grad(keyed, PARAMS)["w"] for batch in plain.batches(work, keys.root(5))]
    grant = Grant(0, 10, 10, Counter(8), Z, public=public(), reads=reader.reads(work, 10))
    steps = list(reader.open(rows, grant, TASK).mixed(work, keys.root(5), how))
    beside = [step.batch.grad(keyed, PARAMS)["w"] for step in steps]
    assert len(alone) == len(beside) > 1
    for a, b in zip(alone, beside, strict=True):
        assert torch.equal(tree.formed(a), tree.formed(b))
    each = {"union": work.batch(10), "half": max(1, work.batch(10) // 2), 3: 3}[how]
    assert {len(step.public.y) for step in steps} == {each}
    drawn = torch.cat([step.public.x for step in steps])[: 7 * (each * len(steps) // 7)]
    shown = {float(x) for x in drawn[:, 0]}
    assert shown == {float(x) for x in public().x[:, 0]} or len(drawn) < 7  # all of them in turn


def test_the_twin_with_another_draw_is_told_apart() -> None:
    reader, work = READINGS["poisson"]
    rows = many(10)
    one, other = (
        [b.grad(linear, PARAMS)["w"] for b in reader.open(rows, Grant(0, 10, 10, Counter(s), Z), TASK).batches(work, 1)]
        for s in (8, 9)
    )
    assert not any(torch.equal(tree.formed(a), tree.formed(b)) for a, b in zip(one, other, strict=True))


def test_beside_noise_no_loss_may_look_at_both() -> None:
    reader, work = READINGS["full"]
    grant = Grant(0, 10, 10, Counter(8), Z, public=public(), reads=reader.reads(work, 10))
    step = next(reader.open(many(10), grant, TASK).mixed(work, keys.root(5), "union"))
    with pytest.raises(SordinoError) as refusal:
        step.joint(lambda params, own, others, draws: params["w"].sum(), PARAMS)
    assert refusal.value.code == "joint-loss"


def test_the_noise_beside_public_rows_is_paid_for() -> None:
    reader, work = READINGS["full"]
    grant = Grant(0, 10, 10, Counter(8), Z, public=public(), reads=1)
    with pytest.raises(PrivacyError) as refusal:
        list(reader.open(many(10), grant, TASK).mixed(work, keys.root(5), "union"))
    assert refusal.value.code == "read-beyond-reservation"


# beside an open reader ------------------------------------------------------------------------------------------------
def joined(shard: Shard, work: LocalWork, how: Any) -> list[tuple[list[float], list[float], list[int]]]:
    """Of every step: its own rows, public rows, and the keys of both, as a loss sees them."""
    seen_: list[tuple[list[float], list[float], list[int]]] = []

    def loss(params: Any, own: Examples, others: Examples, draws: Tensor) -> Tensor:
        seen_.append((own.x[:, 0].tolist(), others.x[:, 0].tolist(), draws.tolist()))
        return params["w"].sum()

    for step in shard.mixed(work, keys.root(5), how):
        step.joint(loss, PARAMS)
    return seen_


def numbered(n: int, public_: int, **grant: Any) -> Shard:
    own = Examples(torch.arange(n, dtype=DOUBLE)[:, None].expand(n, DIM), torch.zeros(n, dtype=torch.int64))
    return opened(Open(), own, public=public(public_), **grant)


@pytest.mark.parametrize(("n", "beside", "batch"), [(10, 10, 4), (3, 20, 4), (9, 1, 2), (5, 5, None)])
def test_a_pile_shows_every_row_once_per_epoch(n: int, beside: int, batch: int | None) -> None:
    work = LocalWork(3, None, batch)
    steps = joined(numbered(n, beside), work, "union")
    size = min(batch or n + beside, n + beside)
    each = math.ceil((n + beside) / size)
    assert len(steps) == 3 * each
    orders = []
    for epoch in range(3):
        part = steps[epoch * each : (epoch + 1) * each]
        assert sorted(x for own, _, _ in part for x in own) == list(range(n))
        assert sorted(x for _, others, _ in part for x in others) == public(beside).x[:, 0].tolist()
        assert [len(own) + len(others) for own, others, _ in part[:-1]] == [size] * (each - 1)
        orders.append([(own, others) for own, others, _ in part])
    if batch is not None:
        assert orders[0] != orders[1]  # reshuffled
    drawn = [draw for _, _, draws in steps for draw in draws]
    assert len(set(drawn)) == len(drawn) == 3 * (n + beside)  # a key of its own for every row of every step


@pytest.mark.parametrize("batch", [4, 5, None])
def test_half_of_every_batch_is_public_and_steps_are_as_many_as_without(batch: int | None) -> None:
    n, work = 10, LocalWork(3, None, batch)
    plain = list(numbered(n, 8).batches(work, keys.root(5)))
    steps = joined(numbered(n, 8), work, "half")
    assert len(steps) == len(plain) == work.count(n)
    half = max(1, work.batch(n) // 2)
    assert {len(others) for _, others, _ in steps} == {half}
    assert {len(own) for own, _, _ in steps} <= {half, n % half or half}
    shown = [x for _, others, _ in steps for x in others]
    assert {shown.count(x) for x in set(shown)} <= {len(shown) // 8, len(shown) // 8 + 1}  # in turn


@pytest.mark.parametrize("grant", [{"epochs": 2}, {"part": 0.5}], ids=["epochs", "part"])
@pytest.mark.parametrize("how", ["union", "half", 3])
def test_a_straggler_does_its_part_of_the_steps(grant: dict[str, Any], how: Any) -> None:
    whole, work = numbered(10, 10), LocalWork(4, None, 4)
    share = 0.5
    wanted = math.ceil(share * work.count(10)) if how != "union" or "part" in grant else 2 * math.ceil(20 / 4)
    found = joined(numbered(10, 10, **grant), work, how)
    assert len(found) == wanted
    assert len(joined(whole, work, how)) > len(found)


def test_an_empty_batch_has_no_gradient() -> None:
    """In a pile with many public rows some batches hold none of the client's own."""
    steps = list(numbered(1, 15).mixed(LocalWork(1, None, 4), keys.root(5), "union"))
    found = [float(step.batch.grad(linear, PARAMS)["w"].abs().sum()) for step in steps]
    assert all(math.isfinite(x) for x in found)
    assert len(steps) == 4


def test_a_part_and_the_others_are_the_whole() -> None:
    shard = numbered(10, 1)
    for share in (0.0, 0.3, 0.7, 1.0):
        parts = shard.split(share, keys.root(2))
        rows = [part.sum(lambda x, y: x[:, 0]).tolist() for part in parts]
        assert [len(part) for part in rows] == [round(share * 10), 10 - round(share * 10)]
        assert sorted(rows[0] + rows[1]) == list(range(10))
        assert rows == [sorted(part) for part in rows]
    one, other = (shard.split(0.5, keys.root(k))[0].sum(lambda x, y: x[:, 0]).tolist() for k in (2, 3))
    assert one != other
    assert one == numbered(10, 1).split(0.5, keys.root(2))[0].sum(lambda x, y: x[:, 0]).tolist()
