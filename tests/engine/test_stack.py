"""Clients of equal shape in one call: what the loop does, for any client code; and their first layer told by
coefficients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sordino import config, keys, tree
from sordino.algorithms.fedavg import Client, FedAvg, Server, Up
from sordino.engine import site as clients
from sordino.engine import stack
from sordino.fast.factored import ClientRows, Moved, Part, Product, Scaled, Span, Zero, dense, take
from sordino.fast.row_sums import RunningSum
from sordino.keys import Key
from sordino.privacy.noise.sources import Counter
from sordino.runs.simulation import Simulation, simulated
from sordino.tasks.supervised import Classification
from sordino.tasks.written_out_backward import Chain
from sordino.types import Examples, Grant, Params, Shard, Task, Terms

CLOSE = 1e-5  # of the way the model went
ALIKE = {
    "few rows": 36,
    "many rows": 6,
}  # clients; digits have 64 inputs, so that few rows span less than the layer holds


def made(executor: str, algorithm: dict[str, Any], many: int = 36, **tables: Any) -> Simulation:
    table = {
        "rounds": 3,
        "partition": {"scheme": "iid", "clients": many},
        "cohort": {"name": "round_robin", "size": 4},
        "algorithm": {"lr": 0.3, "local_epochs": 2, "batch_size": 16} | algorithm,
        "model": {"name": "mlp", "hidden": 128},
        "privacy": {},
        "engine": {"executor": executor, "precision": "fp32"},
    }
    return simulated(config.validate(table | tables))


def trained(parts: Simulation, rounds: int = 3) -> list[Tensor]:
    """The uploads of three rounds, each round starting where the last one's mean led."""
    server, who, found = parts.setup.state("server"), parts.site("run"), []
    for t in range(rounds):
        cohort = [(4 * t + i) % len(parts.setup.public.sizes) for i in range(4)]
        terms = {k: replace(effort(k), largest=parts.setup.public.largest) for k in cohort}
        down = parts.setup.algorithm.broadcast(server)
        uploads = [tree.map(dense, up) for _, up in who(t, down, terms).uploads]
        found += [tree.flat(up) for up in uploads]
        server = server._replace(x=tree.axpy(0.25, uploads[0][0], server.x))
    return found


def effort(k: int) -> Terms:
    return Terms(epochs=(None, None, 1, None, None)[k % 5], part=0.4 if k % 7 == 3 else None)


def apart(a: list[Tensor], b: list[Tensor]) -> float:
    return max(float((x - y).norm() / x.norm()) for x, y in zip(a, b, strict=True))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the stacks that were run."""
    seen: list[int] = []

    def counted(algorithm: Any, task: Any, down: Any, members: Any, counts: bool) -> Any:
        seen.append(len(members))
        return stack.together(algorithm, task, down, members, counts)

    monkeypatch.setattr(clients, "together", counted)
    return seen


@pytest.mark.one_fast
@pytest.mark.parametrize("many", ALIKE.values(), ids=list(ALIKE))
@pytest.mark.parametrize("name", ["fedavg", "fedprox", "scaffold"])
def test_a_stack_uploads_what_the_loop_uploads(name: str, many: int, calls: list[int]) -> None:
    algorithm = {"name": name, "lr_decay": 0.9, "lr_decay_per": "participation"}
    alone = trained(made("loop", algorithm, many))
    assert not calls
    stacked = trained(made("stack", algorithm, many))
    assert max(calls) >= 2
    assert apart(alone, stacked) < CLOSE


@pytest.mark.one_fast
@pytest.mark.parametrize(
    "work", [{"local_epochs": 2}, {"local_epochs": None, "local_steps": 7}], ids=["epochs", "steps"]
)
@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_clients_of_other_sizes_are_stacked_too(name: str, work: dict[str, Any], calls: list[int]) -> None:
    algorithm = {"name": name, "momentum": 0.5 if name == "fedavg" else 0.0, "batch_size": 5} | work
    split = {"scheme": "dirichlet", "clients": 36, "alpha": 2.0}
    alone = trained(made("loop", algorithm, partition=split))
    assert not calls
    parts = made("stack", algorithm, partition=split)
    assert len(set(parts.setup.public.sizes)) > 10
    stacked = trained(parts)
    assert max(calls) >= 2
    assert apart(alone, stacked) < CLOSE


@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_first_layers_are_told_by_coefficients_where_rows_are_few(model: str) -> None:
    task = made("loop", {"name": "fedavg"}, model={"name": model}).setup.task
    assert isinstance(task, Classification)
    x, y = torch.zeros(20, 8, 8, 1, dtype=torch.uint8), torch.zeros(20, dtype=torch.int64)
    assert isinstance(task.ready(x, y, whole=True)[0], ClientRows) == (model == "mlp")
    assert isinstance(task.ready(x, y)[0], Tensor)


@pytest.mark.slow
def test_convolutions_go_one_client_at_a_time_here_and_could_go_together(
    calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"name": "cnn_norm"}
    alone = trained(made("stack", {"name": "fedavg"}, model=model), rounds=1)
    assert not calls  # on a processor one client's convolutions fill it
    monkeypatch.setattr(Classification, "stacks", lambda self, n: 4)
    stacked = trained(made("stack", {"name": "fedavg"}, model=model), rounds=1)
    assert calls
    assert apart(alone, stacked) < CLOSE


# any client code ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clipping(FedAvg):
    """Looks at a norm: inside a stack it must be one client's."""

    def direction(self, g: Params, y: Params, x: Params) -> Params:
        norm = torch.sqrt(sum((leaf**2).sum() for leaf in g.values()))  # type: ignore[arg-type]
        return tree.scale(torch.clamp(0.1 / norm, max=1.0), g)


@dataclass(frozen=True)
class InPlace(FedAvg):
    """Walks in a copy's own memory, from its first step on."""

    def local(self, task: Task, down: Server, c: Client, shard: Shard, key: Key) -> tuple[Up, Client]:
        y = {name: value.clone() for name, value in down.x.items()}
        for batch in shard.batches(self.work, key):
            g = batch.grad(task.losses, y)
            for name, leaf in y.items():
                leaf -= self.lr * g[name]
        return Up(tree.sub(y, down.x)), Client(c.participations + 1)


@dataclass(frozen=True)
class Looking(FedAvg):
    """Keeps where it was after its first step, and goes on."""

    def local(self, task: Task, down: Server, c: Client, shard: Shard, key: Key) -> tuple[Up, Client]:
        y, first = down.x, None
        for batch in shard.batches(self.work, key):
            y = tree.descend(y, self.lr, batch.grad(task.losses, y), down.x)
            first = tree.sub(y, down.x) if first is None else first
        return Up(tree.axpy(0.5, first, tree.sub(y, down.x))), Client(c.participations + 1)


@dataclass(frozen=True)
class Drawing(FedAvg):
    """Draws numbers of its own from the key it is given."""

    def local(self, task: Task, down: Server, c: Client, shard: Shard, key: Key) -> tuple[Up, Client]:
        up, c = super().local(task, down, c, shard, key)
        noise = keys.uniform(keys.fold(key, "mine"), 128).float()
        return up._replace(delta={n: v + noise if v.shape == (128,) else v for n, v in up.delta.items()}), c


@dataclass(frozen=True)
class Branching(FedAvg):
    """Decides by a value, which no stack can do."""

    def direction(self, g: Params, y: Params, x: Params) -> Params:
        return g if float(next(iter(g.values())).norm()) > 0 else y


@dataclass(frozen=True)
class Failing(FedAvg):
    def direction(self, g: Params, y: Params, x: Params) -> Params:
        raise RuntimeError("of its own")


@pytest.mark.one_fast
@pytest.mark.parametrize("mine", [Clipping, InPlace, Looking, Drawing, Branching])
def test_code_of_ones_own_stacks_or_is_left_to_the_loop(
    mine: type, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {}
    for way in ("plain", "loop", "stack"):
        with monkeypatch.context() as patch:
            if way == "plain":  # every row an image, every weight a tensor
                patch.setattr(Chain, "spans", lambda self, n: False)
            parts = made("stack" if way == "stack" else "loop", {"name": "fedavg"})
            parts.__dict__["algorithm"] = mine(lr=0.3, local_epochs=2, batch_size=16)
            found[way] = trained(parts)
    assert apart(found["plain"], found["loop"]) < CLOSE
    assert apart(found["plain"], found["stack"]) < CLOSE
    assert calls


def test_what_cannot_be_stacked_is_left_to_the_loop_in_every_round_anew(calls: list[int]) -> None:
    """A run that goes on after a crash has forgotten what failed before it, and must compute the same bits."""
    parts = made("stack", {"name": "fedavg"})
    parts.__dict__["algorithm"] = Branching(lr=0.3, local_epochs=2, batch_size=16)
    whole, again = trained(parts), trained(parts, rounds=1)
    assert torch.equal(whole[0], again[0])
    assert parts.site("run").sharing == "stack"
    assert len(calls) > 3  # tried in every round


def test_an_error_of_its_own_comes_up() -> None:
    parts = made("stack", {"name": "fedavg"})
    vars(parts.setup)["algorithm"] = Failing()
    with pytest.raises(RuntimeError, match="of its own"):
        trained(parts)


def test_a_stack_that_gives_everybody_the_same_order_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = trained(made("loop", {"name": "fedavg"}))
    whole = stack.together

    def same(algorithm: Any, task: Any, down: Any, members: list[stack.Member], counts: bool) -> Any:
        return whole(algorithm, task, down, [m._replace(key=members[0].key) for m in members], counts)

    monkeypatch.setattr(clients, "together", same)
    assert apart(alone, trained(made("stack", {"name": "fedavg"}))) > CLOSE


# matrices that are not formed -----------------------------------------------------------------------------------------

IN, OUT, N = 7, 5, 6
whole_or_part = st.sampled_from([slice(None), slice(0, 2), slice(2, 5), torch.tensor([5, 0, 3])])


def numbers(seed: int, *shape: int) -> Tensor:
    return keys.normal(keys.root(seed), torch.Size(shape).numel()).reshape(shape)


@given(whole_or_part, whole_or_part, st.integers(0, 99), st.floats(-2, 2))
def test_spans_add_and_scale_as_their_matrices_do(a: Any, b: Any, seed: int, factor: float) -> None:
    rows, start = ClientRows(numbers(seed, N, IN)), numbers(seed + 1, OUT, IN)

    def span(index: Any, salt: int) -> Span:
        return Span(rows, numbers(seed + salt, len(rows.x[index]), OUT), index)

    p, q = span(a, 2), span(b, 3)
    moved = tree.descend(start, factor, p, start)
    assert isinstance(moved, Moved)
    close(moved, start - factor * dense(p))
    close(tree.sub(moved, start), -factor * dense(p))
    close(tree.axpy(factor, p, q), factor * dense(p) + dense(q))
    close(tree.axpy(factor, p, start), factor * dense(p) + start)
    close(tree.axpy(factor, q, moved), factor * dense(q) + dense(moved))
    close(tree.scale(factor, p), factor * dense(p))
    before = dense(moved)
    close(tree.descend(moved, factor, q, start), before - factor * dense(q))
    before = dense(moved)
    close(tree.descend(moved, factor, numbers(seed, OUT, IN), start), before - factor * numbers(seed, OUT, IN))
    left, right = numbers(seed, 3, OUT), numbers(seed + 5, 3, IN)
    close(tree.descend(moved, factor, Product(left, right), start), before - factor * left.T @ right)
    assert dense(p).shape == p.shape


def test_a_tensor_less_itself_adds_nothing() -> None:
    x, g = numbers(1, OUT, IN), Span(ClientRows(numbers(2, N, IN)), numbers(3, N, OUT))
    nothing = tree.sub({"w": x}, {"w": x})
    assert isinstance(nothing["w"], Zero)
    assert dense(nothing["w"]).abs().sum() == 0
    assert tree.axpy(0.3, nothing, {"w": g})["w"] is g
    assert tree.scale(2.0, nothing)["w"].shape == x.shape


@given(st.integers(0, 99), st.floats(-2, 2))
def test_a_step_put_off_is_the_step(seed: int, factor: float) -> None:
    start, g, other = (numbers(seed + i, OUT, IN) for i in range(3))
    step = Scaled(g, 0.25)
    moved = tree.descend(start, factor, step, start)
    close(tree.sub(moved, start), -factor * g / 4)
    close(tree.axpy(factor, step, other), factor * g / 4 + other)
    before = dense(moved).clone()
    close(before, start - factor * g / 4)
    close(tree.descend(moved, factor, step, start), before - factor * g / 4)
    total = RunningSum(torch.zeros(OUT, IN, dtype=torch.float64))
    total.add(tree.scale(factor, step))
    close(total.sum(), factor * g / 4)


@given(whole_or_part, st.integers(0, 99))
def test_rows_see_moved_weights_as_images_do(index: Any, seed: int) -> None:
    rows, start, bias = ClientRows(numbers(seed, N, IN)), numbers(seed + 1, OUT, IN), numbers(seed + 2, OUT)
    way = Span(rows, numbers(seed + 3, N, OUT))
    elsewhere = Moved(start, Span(ClientRows(rows.x), way.c))
    for weight in (
        start,
        Moved(start, way),
        Moved(start + 1, way),
        start + 1,
        elsewhere,
        Moved(start, Scaled(start, 0.3)),
    ):
        close(rows.times(weight, bias, index), rows.x[index] @ dense(weight).T + bias)


def test_parts_are_cut_like_tensors() -> None:
    rows = ClientRows(numbers(1, N, IN))
    for index in (slice(1, None), torch.tensor([4, 2, 0, 1])):
        part: Part = rows[index][1:3]
        assert torch.equal(part.taken(), rows.x[index][1:3])


@given(st.integers(1, 4), st.sampled_from([1, 5, 10_000]))
def test_a_total_of_spans_is_the_sum_of_their_matrices(count: int, bunch: int) -> None:
    spans = [Span(ClientRows(numbers(i, N, IN)), numbers(i + 9, N, OUT)) for i in range(count)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sordino.fast.row_sums.BUNCH", bunch)
        total = RunningSum(torch.zeros(OUT, IN, dtype=torch.float64))
        for span in spans:
            total.add(span)
        total.add(numbers(77, OUT, IN))
        close(total.sum(), torch.stack([dense(s) for s in spans]).sum(0) + numbers(77, OUT, IN))
        close(total.sum(), torch.stack([dense(s) for s in spans]).sum(0) + numbers(77, OUT, IN))


def test_what_rows_remember_ends_when_the_start_is_written_to() -> None:
    rows, start = ClientRows(numbers(1, N, IN)), numbers(2, OUT, IN)
    weight = Moved(start, Span(rows, numbers(3, N, OUT)))
    close(rows.times(weight, None, slice(0, 2)), rows.x[:2] @ dense(weight).T)
    start.add_(1.0)
    close(rows.times(weight, None, slice(0, 2)), rows.x[:2] @ dense(weight).T)


def test_states_of_other_kinds_are_not_stacked() -> None:
    examples, grant = Examples(torch.zeros(4, 2), torch.zeros(4)), Grant(0, 4, 4, Counter(0))

    def member(state: Any) -> stack.Member:
        return stack.Member(0, examples, state, grant, 1)

    one = member({"a": torch.zeros(2), "n": torch.tensor(1)})
    assert stack.alike(one, member({"a": torch.ones(2), "n": torch.tensor(1)}))
    for state in (
        {"a": torch.zeros(2), "n": torch.tensor(2)},
        {"a": torch.zeros(3), "n": torch.tensor(1)},
        {"a": torch.zeros(2, dtype=torch.float64), "n": torch.tensor(1)},
        {"b": torch.zeros(2), "n": torch.tensor(1)},
        {"a": torch.zeros(2)},
    ):
        assert not stack.alike(one, member(state))


@pytest.mark.parametrize("in_dims", [(0, 0), (None, 0), (0, None)])
def test_rows_are_taken_alike_in_a_stack(in_dims: tuple[int | None, int | None]) -> None:
    x, rows = numbers(1, 3, N, 2, 2), torch.stack([keys.permutation(keys.root(i), N)[:4] for i in range(3)])
    given = tuple(value if dim == 0 else value[0] for value, dim in zip((x, rows), in_dims, strict=True))
    found = torch.vmap(take, in_dims)(*given)
    for i in range(3):
        assert torch.equal(found[i], (x[i] if in_dims[0] == 0 else x[0])[rows[i] if in_dims[1] == 0 else rows[0]])


def close(found: Any, wanted: Tensor) -> None:
    assert torch.allclose(dense(found), wanted, rtol=1e-9, atol=1e-9)


def test_every_function_sees_the_matrix() -> None:
    seen: list[Callable[[Any], Any]] = [torch.sum, lambda x: x + 1, lambda x: x.T, lambda x: (x @ x.T)[0], abs]
    span = Span(ClientRows(numbers(1, N, IN)), numbers(2, N, OUT))
    for function in seen:
        close(function(span), function(dense(span)))
