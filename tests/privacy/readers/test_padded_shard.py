"""Rows that are nobody's change nothing: a client among larger ones takes the steps that it takes alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sordino import keys, tree
from sordino.privacy.noise.sources import Counter
from sordino.privacy.readers.open import Open, OpenShard
from sordino.privacy.readers.padded_shard import PaddedShard
from sordino.tasks.supervised import Classification
from sordino.types import Examples, Grant, LocalWork, Params

WIDTH = 12
NETS = {
    "rows that span less than the first layer": lambda: nn.Sequential(
        nn.Linear(WIDTH, 40), nn.ReLU(), nn.Linear(40, 3)
    ),
    "rows that span more": lambda: nn.Sequential(nn.Linear(WIDTH, 3)),
}


def task_of(net: nn.Module) -> Classification:
    return Classification(net, name="net", shape=(WIDTH,), mean=(0.0,) * WIDTH, std=(1.0,) * WIDTH, image=False)


def both(task: Classification, rows: int, more: int, work: LocalWork) -> tuple[OpenShard, PaddedShard]:
    x, y = keys.uniform(keys.root(1), rows * WIDTH).reshape(rows, WIDTH).float(), torch.arange(rows) % 3
    grant = Grant(0, rows, rows + more, Counter(1))
    noise = 1e6 * torch.ones(more, WIDTH)  # what stands there is seen by nobody
    padded = Examples(torch.cat([x, noise]), torch.cat([y, torch.zeros(more, dtype=torch.int64)]))
    alone = OpenShard(Examples(x, y), grant, task)
    return alone, PaddedShard(Open(), padded, grant, task, rows=torch.tensor(rows), fewest=rows)


def far(a: Params, b: Params) -> float:
    return float((tree.flat(a) - tree.flat(b)).abs().max())


@pytest.mark.parametrize("net", NETS)
@settings(deadline=None, max_examples=25)
@given(
    rows=st.integers(1, 9),
    more=st.integers(0, 9),
    size=st.one_of(st.none(), st.integers(1, 6)),
    many=st.integers(1, 7),
    counted=st.sampled_from(["epochs", "steps"]),
)
def test_the_steps_are_those_of_the_client_alone(
    net: str, rows: int, more: int, size: int | None, many: int, counted: str
) -> None:
    work = LocalWork(many, None, size) if counted == "epochs" else LocalWork(None, many, size)
    task, key = task_of(NETS[net]()), torch.tensor(keys.signed(keys.root(7)))
    alone, padded = both(task, rows, more, work)
    params = task.init(keys.root(2))
    wanted = [batch.grad(task.losses, params) for batch in alone.batches(work, key)]
    told = [(step, step.live) for step in padded.batches(work, key)]
    steps = [step for step, _ in told]
    live = [step for step, mine in told if mine is None or mine]  # None: sure of every client of the stack
    assert len(live) == len(wanted) == work.count(rows)
    assert all(far(step.grad(task.losses, params), g) < 1e-5 for step, g in zip(live, wanted, strict=True))
    shares = [(step in live, step._share) for step in steps if step._share is not None]
    assert all(float(share.sum()) == pytest.approx(float(own)) for own, share in shares)


def test_what_only_one_client_can_answer_ends_the_stack() -> None:
    """The engine hears of it and asks each client alone."""
    task = task_of(NETS["rows that span more"]())
    _, padded = both(task, 3, 2, LocalWork(1, None, 2))
    with pytest.raises(RuntimeError, match="different sizes"):
        padded.size  # noqa: B018
    part = replace(padded, _grant=replace(padded._grant, part=0.5))
    with pytest.raises(RuntimeError, match="a part"):
        next(part.batches(LocalWork(1, None, 2), keys.root(1)))
    with pytest.raises(RuntimeError, match="asks for a sum per class"):
        padded.by_class(lambda x: x, 2)
    with pytest.raises(RuntimeError, match="live"):
        list(padded.batches(LocalWork(1, None, 2), torch.tensor(1)))
    with pytest.raises(RuntimeError, match="loss"):
        next(padded.batches(LocalWork(1, None, 2), torch.tensor(1))).grad(lambda *given: torch.zeros(()), task.init(1))
