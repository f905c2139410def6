"""SlaugFL's collaborative phase and its selective data collection, in closed form, beside naive code, and beside
FedAvg; so too its baselines.
"""

from __future__ import annotations

import math
from collections import Counter as Count
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sordino import config, keys, tree
from sordino.algorithms.fedavg import Client, FedAvg
from sordino.algorithms.local_sgd import LocalSgd
from sordino.engine.site import Site
from sordino.privacy.noise.sources import Counter
from sordino.runs.run import start
from sordino.runs.simulation import simulated
from sordino.synthesis.slaug.training import Server, SlaugFL, Up, all_alike
from sordino.tasks.losses import separation
from sordino.tasks.supervised import Classification
from sordino.types import Examples, Grant, Params, Received, Terms
from tests.laws.test_executors import CLOSE, apart
from tests.synthesis.slaug.images import DOUBLE, KEY, RUN, SGD, SLAUG, World, images, shard, task


# the separation loss --------------------------------------------------------------------------------------------------
def test_separation_in_closed_form() -> None:
    for classes, beta in ((10, 0.5), (4, 0.1)):
        prototypes, known = 3.0 * torch.eye(classes, dtype=DOUBLE), torch.ones(classes, dtype=torch.bool)
        value = separation(7.0 * prototypes, torch.arange(classes), prototypes, known, beta)
        wanted = -math.log(math.exp(1 / beta) / (math.exp(1 / beta) + classes - 1))
        assert float(value) == pytest.approx(wanted, abs=1e-6)
        if classes == 10:
            assert round(float(value), 4) == 0.7966


def test_separation_looks_at_directions_and_leaves_prototypes_alone() -> None:
    z = keys.normal(KEY, 15).reshape(3, 5).requires_grad_()
    prototypes = keys.normal(keys.root(4), 20).reshape(4, 5).requires_grad_()
    known, labels = torch.tensor([True, True, False, True]), torch.tensor([0, 3, 2])
    value = separation(z, labels, prototypes, known, 0.5)
    assert torch.allclose(value, separation(100 * z, labels, prototypes, known, 0.5))
    found = torch.autograd.grad(value, [z, prototypes], allow_unused=True)
    assert found[1] is None
    assert bool((found[0][:2].abs().sum(1) > 0).all())
    assert not found[0][2].any()  # its own prototype is unknown: it has no say
    # and an unknown prototype has no part in the others' softmax
    some = torch.tensor([0, 1, 3])
    among = separation(z[:2], torch.tensor([0, 2]), prototypes[some], torch.ones(3, dtype=torch.bool), 0.5)
    assert torch.allclose(value, among)
    assert not separation(z, labels, prototypes, torch.zeros(4, dtype=torch.bool), 0.5).item()


# the loss of a batch --------------------------------------------------------------------------------------------------
class Batch(NamedTuple):
    """Everything that SlaugFL's loss of one batch is made of."""

    task: Classification
    params: Params
    own: Examples
    public: Examples
    down: Server
    draws: Tensor


def batch(heads: int = 1, known: int = 4, augment: str = "none", own: int = 6, public: int = 5) -> Batch:
    made = task(heads=heads, augment=augment)
    prototypes = keys.normal(keys.root(6), 4 * made.width).reshape(4, -1).float()
    seen = (torch.arange(4) < known).to(torch.uint8)
    down = Server(made.init(1), prototypes, seen, torch.tensor(3))
    return Batch(made, made.init(1), images(own), images(public, seed=1), down, keys.bits(KEY, own + public))


def loss(algorithm: SlaugFL, b: Batch) -> Tensor:
    return algorithm.loss(b.task, b.down, b.params, b.own, b.public, b.draws)


def cross_entropy(b: Batch, which: Examples, shift: int = 0) -> Tensor:
    return F.cross_entropy(b.task.predict(b.params, which.x), which.y + shift)


@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0])
def test_the_loss_is_the_sum_of_its_parts(weight: float) -> None:
    b = batch()
    plain = SlaugFL(synthetic=weight, separation=0.0)
    both = cross_entropy(b, b.own) + weight * cross_entropy(b, b.public)
    assert torch.allclose(loss(plain, b), both)
    pulled = loss(replace(plain, separation=2.0), b) - both
    z = b.task.features(b.params, b.own.x)
    rows = [z[b.own.y == c].mean(0) for c in sorted(set(b.own.y.tolist()))]  # plainly, class by class
    cosines = torch.stack([F.cosine_similarity(row[None], b.down.prototypes) for row in rows]) / 0.5
    naive = [torch.logsumexp(row, 0) - row[c] for row, c in zip(cosines, sorted(set(b.own.y.tolist())), strict=True)]
    assert torch.allclose(pulled, 2 * torch.stack(naive).mean(), atol=1e-5)


def test_a_batch_may_lack_either_part() -> None:
    algorithm = SlaugFL(synthetic=0.5)
    alone = batch(public=0, known=0)
    assert torch.allclose(loss(algorithm, alone), cross_entropy(alone, alone.own))
    drawn = batch(own=0, known=4)
    assert torch.allclose(loss(algorithm, drawn), 0.5 * cross_entropy(drawn, drawn.public))


def test_shifted_labels_are_classes_of_their_own() -> None:
    b = batch(heads=2)
    assert b.task.classes == 8
    assert b.task.labels == 4
    shifted = SlaugFL(label_mode="shifted", separation=0.0)
    assert shifted.heads == 2
    assert torch.allclose(loss(shifted, b), cross_entropy(b, b.own) + 0.5 * cross_entropy(b, b.public, 4))
    shared = loss(replace(shifted, label_mode="shared"), b)
    assert not torch.allclose(shared, loss(shifted, b), atol=1e-3)
    # for prototypes a drawn image is of its class all the same
    together = replace(shifted, proto_scope="local+syn", separation=1.0)
    z, y = b.task.features(b.params, torch.cat([b.own.x, b.public.x])), torch.cat([b.own.y, b.public.y])
    there = y.unique()
    means = torch.stack([z[y == c].mean(0) for c in there])
    pulled = separation(means, there, b.down.prototypes, b.down.known.bool(), 0.5)
    assert torch.allclose(loss(together, b) - loss(shifted, b), pulled, atol=1e-5)


def test_shifted_models_are_tested_by_their_own_classes_and_by_all() -> None:
    made = task(heads=2)
    params, rows = made.init(2), images(200)
    every = made.predict(params, rows.x)
    scores = made.score(params, rows)
    assert made.metrics == ("accuracy", "loss", "accuracy_of_all_outputs")
    assert torch.equal(scores["accuracy"] > 0, every[:, :4].argmax(1) == rows.y)
    assert torch.equal(scores["accuracy_of_all_outputs"] > 0, every.argmax(1) % 4 == rows.y)
    assert not torch.equal(scores["accuracy"], scores["accuracy_of_all_outputs"])


def test_only_real_images_are_cut_and_mirrored() -> None:
    b = batch(augment="crop_flip")
    whole = torch.cat([b.own.x, b.public.x])
    as_they_are = b.task.features(b.params, whole)
    z = b.task.features(b.params, whole, b.draws, plain=5)
    assert torch.allclose(z[6:], as_they_are[6:], atol=1e-6)
    assert (z[:6] - as_they_are[:6]).abs().amax(1).count_nonzero() >= 5  # a crop may fall where the image was
    assert not torch.allclose(b.task.features(b.params, whole, b.draws)[6:], as_they_are[6:], atol=1e-3)
    # as the loss sees them
    algorithm = SlaugFL(separation=0.0)
    drawn = b._replace(own=images(0), draws=b.draws[6:])
    assert torch.allclose(loss(algorithm, drawn), 0.5 * cross_entropy(b, b.public))
    assert not torch.allclose(loss(algorithm, b) - 0.5 * cross_entropy(b, b.public), cross_entropy(b, b.own), atol=1e-3)


@pytest.mark.parametrize("known", [0, 4])
def test_losses_of_single_examples_add_up_to_the_loss_of_the_batch(known: int) -> None:
    """`sample` asks for gradients apart; in one full batch these are those of one loss with each feature against the
    prototypes.
    """
    b = batch(known=known)
    algorithm = SlaugFL(proto_scope="sample", batch_size="full", lr=0.1)
    up, _ = algorithm.local(b.task, b.down, Client(torch.tensor(0)), shard(b.own, b.public, b.task), KEY)
    leaves = {name: value.clone().requires_grad_() for name, value in b.down.x.items()}
    z = b.task.features(leaves, b.own.x)
    total = F.cross_entropy(b.task.head(leaves, z), b.own.y)
    total = total + 0.5 * F.cross_entropy(b.task.head(leaves, b.task.features(leaves, b.public.x)), b.public.y)
    total = total + separation(z, b.own.y, b.down.prototypes, b.down.known.bool(), 0.5)
    wanted = dict(zip(leaves, torch.autograd.grad(total, list(leaves.values())), strict=True))
    moved = tree.formed(up.delta)
    assert all(torch.allclose(moved[name], -0.1 * wanted[name], atol=1e-6) for name in leaves)


def test_batches_of_one_kind_are_no_accident_that_a_sample_scope_dies_of() -> None:
    """One own image beside many: most batches hold none of it, some hold nothing else."""
    b = batch(own=1, public=15)
    algorithm = SlaugFL(proto_scope="sample", batch_size=1, local_epochs=1, lr=0.1)
    up, _ = algorithm.local(b.task, b.down, Client(torch.tensor(0)), shard(b.own, b.public, b.task), KEY)
    assert tree.finite(tree.formed(up))


@pytest.mark.parametrize(("match", "steps"), [(True, 2 * 3), (False, 2 * 6)])
def test_match_steps_takes_as_many_steps_as_fedavg(match: bool, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    b = batch(own=12, public=12)
    taken: list[int] = []
    monkeypatch.setattr(LocalSgd, "walk", lambda self, start, eta, *more, **others: Steps(start, taken))
    settings: dict[str, Any] = {"local_epochs": 2, "batch_size": 4}
    algorithm = SlaugFL(match_steps=match, **settings)
    algorithm.local(b.task, b.down, Client(torch.tensor(0)), shard(b.own, b.public, b.task), KEY)
    assert len(taken) == steps
    assert algorithm.passes(12) == pytest.approx((24 if match else 48) + 12 / 3)
    taken.clear()
    FedAvg(**settings).local(b.task, b.down, Client(torch.tensor(0)), shard(b.own, None, b.task), KEY)  # type: ignore[arg-type]
    assert len(taken) == 2 * 3


class Steps:
    """A walk that counts."""

    velocity = None

    def __init__(self, start: Params, taken: list[int]) -> None:
        self.y, self._taken = start, taken

    def __call__(self, direction: Params, live: torch.Tensor | None = None) -> None:
        self._taken.append(1)


# prototypes -----------------------------------------------------------------------------------------------------------
def uploads(sizes: Sequence[int], made: Classification) -> tuple[list[Up], list[Examples]]:
    """Of clients whose models are all alike, with drawn images of their own."""
    down = SlaugFL().init(made, 1)
    sets = [images(n, seed=20 + i)._replace(y=all_alike(n, 4, KEY)[:n]) for i, n in enumerate(sizes)]
    algorithm = SlaugFL(lr=1e-30, synthetic=0.0, separation=0.0)
    found = [
        algorithm.local(made, down, Client(torch.tensor(0)), shard(images(n, seed=40 + i), own, made), KEY)[0]
        for i, (n, own) in enumerate(zip(sizes, sets, strict=True))
    ]
    return found, sets


def test_prototypes_are_the_means_of_all_drawn_images() -> None:
    made, sizes = task(), [6, 13, 9]
    ups, sets = uploads(sizes, made)
    algorithm = SlaugFL()
    state = algorithm.init(made, 1)
    zero, weights = algorithm.zero(made, state), [algorithm.uplink.weight(n, max(sizes)) for n in sizes]
    grants = [Grant(k, n, max(sizes), Counter(0)) for k, n in enumerate(sizes)]
    sent = {k: algorithm.uplink.encode(up, grant) for k, (up, grant) in enumerate(zip(ups, grants, strict=True))}
    received = algorithm.uplink.receive(sent, zero, weights, 1.0, None, Counter(0))
    after = algorithm.update(state, received, World(made))
    x, y = torch.cat([s.x for s in sets]), torch.cat([s.y for s in sets])
    z = made.features(state.x, x)
    for c in range(4):
        assert torch.allclose(after.prototypes[c], z[y == c].mean(0), atol=1e-5)
    plain = torch.stack(
        [torch.stack([made.features(state.x, s.x)[s.y == c].mean(0) for s in sets]).mean(0) for c in range(4)]
    )
    assert not torch.allclose(after.prototypes, plain, atol=1e-4)  # control: a mean of means is another thing
    assert after.known.tolist() == [1] * 4
    assert int(after.round) == 1


def test_a_class_that_nobody_drew_keeps_its_prototype() -> None:
    made, algorithm = task(), SlaugFL()
    state = algorithm.init(made, 1)._replace(prototypes=torch.full((4, made.width), 5.0))
    counts = torch.tensor([0.5, 0.0, 0.0, 1.5])
    mean = Up(tree.zeros_like(state.x), counts[:, None] * torch.arange(made.width), counts)
    after = algorithm.update(state, Received(mean, 1.0, list), World(made))
    assert after.known.tolist() == [1, 0, 0, 1]
    assert torch.allclose(after.prototypes[0], torch.arange(made.width).float())
    assert torch.equal(after.prototypes[1], state.prototypes[1])
    later = algorithm.update(
        after, Received(mean._replace(counts=counts * 0, sums=mean.sums * 0), 1.0, list), World(made)
    )
    assert torch.equal(later.prototypes, after.prototypes)
    assert torch.equal(later.known, after.known)


def run(folder: Path, algorithm: dict[str, Any], **changes: Any) -> Path:
    start(config.validate(RUN | changes | {"algorithm": algorithm}), folder)
    return folder


@pytest.fixture(scope="module")
def fedavg(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = run(tmp_path_factory.mktemp("fedavg") / "run", {**SGD, "name": "fedavg"})
    return (folder / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_without_drawn_images_it_is_fedavg(fedavg: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit: the same first model, cohorts and order of data, whatever the preparation drew."""
    nothing = Examples(torch.zeros(0, 8, 8, 1, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64))
    monkeypatch.setattr(SlaugFL, "public_examples", lambda *given: nothing)
    folder = run(tmp_path / "none", {**SLAUG, "synthetic": 0.0, "separation": 0.0})
    assert (folder / "model.safetensors").read_bytes() == fedavg
    also = run(tmp_path / "also", SLAUG)  # nothing drawn: no prototypes either
    assert (also / "model.safetensors").read_bytes() == fedavg


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [{"name": "moon", "mu": 0.0, "head": False}, {"name": "fedgen", "strength": 0.0}, {"name": "fedprox", "mu": 0.0}],
    ids=lambda table: str(table["name"]),
)
def test_a_baseline_without_its_term_is_fedavg(algorithm: dict[str, Any], fedavg: bytes, tmp_path: Path) -> None:
    assert (run(tmp_path / "run", SGD | algorithm) / "model.safetensors").read_bytes() == fedavg


@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "moon", "mu": 1.0, "head": False},
        {"name": "fedgen", "strength": 1.0, "updates": 2},
        SLAUG | {"synthetic": 0.0, "separation": 0.0},  # batches of both sets are other batches
    ],
    ids=lambda table: str(table["name"]),
)
@pytest.mark.slow
def test_with_its_term_it_is_not(algorithm: dict[str, Any], fedavg: bytes, tmp_path: Path) -> None:
    assert (run(tmp_path / "run", SGD | algorithm) / "model.safetensors").read_bytes() != fedavg


# drawn once, all classes alike ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("n", "classes"), [(10, 10), (37, 10), (3, 10), (1, 2), (200, 7)])
def test_drawn_labels_are_balanced(n: int, classes: int) -> None:
    counts = torch.bincount(all_alike(n, classes, KEY), minlength=classes)
    assert int(counts.sum()) == max(n, classes)
    assert int(counts.max() - counts.min()) <= 1
    assert int(counts.min()) >= 1
    if n > classes and n % classes:
        others = {tuple(torch.bincount(all_alike(n, classes, keys.root(k))).tolist()) for k in range(8)}
        assert len(others) > 1  # the rest goes to random classes


@pytest.mark.slow
def test_a_client_draws_once_in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[int, Any, Examples]] = []
    real = SlaugFL.public_examples

    def counted(self: SlaugFL, made: Any, tensors: Any, size: int, key: Any) -> Examples:
        found = real(self, made, tensors, size, key)
        drawn.append((size, keys.word(key), found))
        return found

    served: Count[int] = Count()
    called = Site.__call__

    def serving(self: Site, t: int, down: Any, terms: Mapping[int, Terms]) -> Any:
        if self.public_tensors is not None:
            served.update(list(terms))
        return called(self, t, down, terms)

    monkeypatch.setattr(SlaugFL, "public_examples", counted)
    monkeypatch.setattr(Site, "__call__", serving)
    folder = run(tmp_path / "run", SLAUG, rounds=4)
    assert max(served.values()) > 1
    assert len(drawn) == len(served)
    assert len({key for _, key, _ in drawn}) == len(drawn)  # each its own
    parts = simulated(config.load(folder / "experiment.toml"))
    assert sorted(size for size, _, _ in drawn) == sorted(parts.setup.public.sizes[k] for k in served)
    for size, _, found in drawn:
        assert found.x.dtype == torch.uint8
        counts = torch.bincount(found.y, minlength=10)
        assert int(counts.sum()) == max(size, 10)
        assert int(counts.max() - counts.min()) <= 1


@pytest.mark.slow
def test_neighbours_in_a_stack_keep_their_own_images(tmp_path: Path) -> None:
    """Clients of equal size on a small dense network, where an executor may train several in one call."""
    same = {"partition": {"scheme": "iid", "clients": 4}, "model": {"name": "mlp", "hidden": 8}}
    for name, algorithm in {"slaug": SLAUG, "vhl": {**SGD, "name": "vhl", "per_class": 2, "width": 4}}.items():
        loop = run(tmp_path / f"{name}-loop", algorithm, **same)
        stack = run(tmp_path / f"{name}-stack", algorithm, **same, engine={"executor": "stack"})
        assert apart(loop, stack) < CLOSE
