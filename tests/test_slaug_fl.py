"""SlaugFL's collaborative phase and its selective data collection, in closed form, beside naive code, and beside
FedAvg; so too its baselines.
"""

from __future__ import annotations

import math
from collections import Counter as Count
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import slaug_runs
import torch
import torch.nn.functional as F
from laws.test_executors import CLOSE, apart
from laws.traces import Killed, die_after, differences, finished, trace
from torch import Tensor

from sordino import config, keys, tree
from sordino.algorithms.algorithm import Known
from sordino.algorithms.fedavg import Client, FedAvg
from sordino.algorithms.fedgen import FedGen
from sordino.algorithms.local_sgd import LocalSgd
from sordino.algorithms.moon import Moon
from sordino.algorithms.slaug.generator import Anchor, Made, Recipe
from sordino.algorithms.slaug.prepare import Ask, Asking, Prototype, Ranked, Train
from sordino.algorithms.slaug.prepare import Up as Trained
from sordino.algorithms.slaug.training import Server, SlaugFL, Up
from sordino.algorithms.vhl import VHL
from sordino.engine.site import Site
from sordino.errors import SordinoError
from sordino.generators import features, nets
from sordino.privacy.noise.sources import Counter
from sordino.privacy.readers.open import Open, OpenShard
from sordino.runs.run import resume, start
from sordino.runs.simulation import simulated
from sordino.tasks import selection
from sordino.tasks.build import build_net
from sordino.tasks.classification import Classification
from sordino.tasks.contrast import model_contrast, separation, supervised_contrast
from sordino.tasks.drawn import all_alike
from sordino.tasks.selection import distances, nearest, ranked, requests, skill
from sordino.types import Examples, Grant, Params, Received, Terms

DOUBLE = torch.float64
KEY = keys.root(3)


def task(classes: int = 4, heads: int = 1, augment: str = "none") -> Classification:
    net = build_net("cnn_norm", (1, 8, 8), classes * heads, {})
    return Classification(
        net, name="cnn_norm", shape=(8, 8, 1), mean=(0.3,), std=(0.4,), image=True, augment=augment, labels=classes
    )


def images(n: int, classes: int = 4, seed: int = 0) -> Examples:
    x = (255 * keys.uniform(keys.root(seed), n * 64)).to(torch.uint8).reshape(n, 8, 8, 1)
    return Examples(x, keys.integers(keys.root(seed + 100), n, classes))


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


def shard(own: Examples, public: Examples | None, made: Any, **grant: Any) -> Any:
    n = len(own.y)
    return Open().open(own, Grant(0, n, n, Counter(0), public=public, **grant), made)


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
    monkeypatch.setattr(LocalSgd, "walk", lambda self, start, eta, velocity=None: Steps(start, taken))
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

    def __call__(self, direction: Params) -> None:
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


# FedAvg, bit for bit --------------------------------------------------------------------------------------------------

RUN = slaug_runs.RUN | {"name": "run", "evaluation": {"every": 1}}
SGD = {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4, "local_epochs": 2, "batch_size": 16, "lr_decay": 0.99}
SLAUG = {**SGD, "name": "slaug_fl", "prepare_epochs": 1, "keep": 6, "gan_epochs": 1}


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
    monkeypatch.setattr(SlaugFL, "equip", lambda *given: nothing)
    folder = run(tmp_path / "none", {**SLAUG, "synthetic": 0.0, "separation": 0.0})
    assert (folder / "model.safetensors").read_bytes() == fedavg
    also = run(tmp_path / "also", SLAUG)  # nothing drawn: no prototypes either
    assert (also / "model.safetensors").read_bytes() == fedavg


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


def test_a_client_draws_once_in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[int, Any, Examples]] = []
    real = SlaugFL.equip

    def counted(self: SlaugFL, made: Any, handed: Any, size: int, key: Any) -> Examples:
        found = real(self, made, handed, size, key)
        drawn.append((size, keys.word(key), found))
        return found

    served: Count[int] = Count()
    called = Site.__call__

    def serving(self: Site, t: int, down: Any, terms: Mapping[int, Terms]) -> Any:
        if self.handed is not None:
            served.update(list(terms))
        return called(self, t, down, terms)

    monkeypatch.setattr(SlaugFL, "equip", counted)
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


# momentum -------------------------------------------------------------------------------------------------------------


def walked(rule: LocalSgd, start: Tensor, curve: Tensor, steps: int) -> Tensor:
    """Down a quadratic with these curvatures."""
    walk = rule.walk({"w": start}, rule.lr)
    for _ in range(steps):
        walk({"w": curve * tree.formed(walk.y)["w"]})
    return tree.formed(walk.y)["w"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_momentum_on_a_quadratic(decay: float) -> None:
    start, curve = torch.tensor([1.0, -2.0], dtype=DOUBLE), torch.tensor([0.5, 3.0], dtype=DOUBLE)
    rule = FedAvg(lr=0.1, momentum=0.9, weight_decay=decay)
    w, v = start, torch.zeros(2, dtype=DOUBLE)
    for _ in range(6):
        v = 0.9 * v + curve * w + decay * w
        w = w - 0.1 * v
    assert torch.allclose(walked(rule, start, curve, 6), w, rtol=1e-12)
    sgd = torch.optim.SGD([p := start.clone().requires_grad_()], lr=0.1, momentum=0.9, weight_decay=decay)
    for _ in range(6):
        p.grad = curve * p.detach()
        sgd.step()
    assert torch.allclose(w, p.detach(), rtol=1e-12)
    assert not torch.allclose(walked(replace(rule, momentum=0.0), start, curve, 6), w)


def test_momentum_of_nothing_is_the_old_step_bit_for_bit() -> None:
    start, curve = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0])
    before = {"w": start}
    y = before
    for _ in range(5):
        y = tree.descend(y, 0.1, {"w": curve * tree.formed(y)["w"]}, before)
    assert torch.equal(walked(FedAvg(lr=0.1), start, curve, 5), tree.formed(y)["w"])
    assert start.tolist() == [1.0, -2.0]


def test_momentum_starts_afresh_in_every_round() -> None:
    """Two rounds of one client are two runs of one round, not one run of both."""
    start, curve = torch.tensor([1.0, -2.0], dtype=DOUBLE), torch.tensor([0.5, 3.0], dtype=DOUBLE)
    rule = FedAvg(lr=0.1, momentum=0.9)
    made, down, rows = task(), FedAvg().init(task(), 1), images(8)
    settings: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "batch_size": 4}
    algorithm, client = FedAvg(**settings), Client(torch.tensor(0))
    first, client = algorithm.local(made, down, client, shard(rows, None, made), KEY)
    again, _ = algorithm.local(made, down, client, shard(rows, None, made), KEY)
    assert torch.equal(tree.flat(tree.formed(first)), tree.flat(tree.formed(again)))
    once = walked(rule, walked(rule, start, curve, 3), curve, 3)
    assert not torch.allclose(once, walked(rule, start, curve, 6))


# who knows a class best -----------------------------------------------------------------------------------------------


class Says:
    """A task whose model says what it is told to: `params["says"]` has logits for every example."""

    labels = 2

    def predict(self, params: Params, x: Tensor) -> Tensor:
        return params["says"][x[:, 0].long()]


def says(chosen: list[int], sure: float = 3.0) -> Params:
    return {"says": sure * F.one_hot(torch.tensor(chosen), 2).float()}


def test_f1_and_recall_on_a_hand_made_table() -> None:
    """Four examples of class 0, two of class 1. Who calls everything 0 has full recall there, and a worse F1 than who
    knows.
    """
    probe = Examples(torch.arange(6.0)[:, None], torch.tensor([0, 0, 0, 0, 1, 1]))
    everything = skill(Says(), says([0] * 6), probe)  # type: ignore[arg-type]
    knows = skill(Says(), says([0, 0, 0, 1, 1, 1]), probe)  # type: ignore[arg-type]
    assert everything.recall.tolist() == [1.0, 0.0]
    assert knows.recall.tolist() == [0.75, 1.0]
    assert everything.f1.tolist() == pytest.approx([2 * 4 / (4 + 6), 0.0])
    assert knows.f1.tolist() == pytest.approx([2 * 3 / (4 + 3), 2 * 2 / (2 + 3)])
    p = 1 / (1 + math.exp(-3))
    assert knows.confidence.tolist() == pytest.approx([(3 * p + (1 - p)) / 4, p], rel=1e-6)
    recall, f1, sure = (torch.stack(pair) for pair in zip(everything, knows, strict=True))
    assert ranked(recall, sure)[0].tolist() == [0, 1]  # by recall the first device wins class 0
    assert ranked(f1, sure)[0].tolist() == [1, 1]
    nobody = skill(Says(), says([0] * 4), Examples(probe.x[:4], probe.y[:4]))  # type: ignore[arg-type]
    assert nobody.f1.tolist() == [1.0, 0.0]  # a class that is not there and that nobody names: 0, not a division by it


def test_ties_go_to_the_surer_then_to_the_lower_number() -> None:
    score = torch.tensor([[0.5, 0.9], [0.9, 0.9], [0.9, 0.1], [0.9, 0.9]], dtype=DOUBLE)
    sure = torch.tensor([[1.0, 0.2], [0.3, 0.2], [0.7, 1.0], [0.3, 0.8]], dtype=DOUBLE)
    assert ranked(score, sure).T.tolist() == [[2, 1, 3, 0], [3, 0, 1, 2]]


@dataclass(frozen=True)
class World:
    """What a server of these tests has."""

    task: Any
    sizes: Sequence[int] = (5, 5, 5, 5)
    key: int = 9
    probe: Examples | None = None
    candidates: Examples | None = None


ANCHORS: list[list[Anchor]] = []


@dataclass(frozen=True)
class Noting(Recipe):
    """Makes nothing, and notes what of."""

    def make(self, home: Any, anchors: Sequence[Anchor]) -> Made:
        ANCHORS.append(list(anchors))
        return self.template()


ORDER = torch.tensor([[2, 2, 1, 0], [1, 0, 2, 3], [0, 1, 3, 1]])  # ranks x classes: devices


def asking(prototypes: int | None = None) -> tuple[Ask, Asking]:
    made = task()
    ask = Ask(recipe=Noting(keep=2), prototypes=prototypes).fitted(Known((8, 8, 1), 4, (5, 5, 5, 5), 9))
    table = torch.zeros(4, 4, dtype=DOUBLE)
    kept = tree.map(
        lambda leaf: torch.arange(12.0).reshape(3, 4, *[1] * leaf.dim()).expand(3, 4, *leaf.shape), made.init(0)
    )
    before = Ranked(made.init(0), table, table, ORDER, kept, torch.tensor(True))
    return ask, ask.begin(made, KEY, before, World(made))


def answered(ask: Ask, s: Asking, declines: set[int] = frozenset(), silent: set[int] = frozenset()) -> Asking:  # type: ignore[assignment]
    """A round in which these devices decline and those say nothing. An answer's mean has the device in every place."""
    ups = []
    for k in ask.asks(s):
        label = ask.told(ask.broadcast(s), k).label
        assert label.shape == (1,)
        width = s.prototypes.shape[1]
        images_ = 0.0 if k in declines else 3.0
        if k not in silent:
            ups.append(Prototype(label, torch.full((width,), k * images_), torch.tensor([images_])))
    return ask.update(s, Received(ups[0] if ups else None, 1.0, lambda: ups), World(task()))


def asked(ask: Ask, s: Asking) -> dict[int, int]:
    """Which class is asked of which device."""
    down = ask.broadcast(s)
    found = {k: int(ask.told(down, k).label) for k in ask.asks(s)}
    assert len(found) == len(ask.asks(s))  # nobody twice
    return found


def test_who_declines_or_is_silent_is_followed_by_the_next() -> None:
    ANCHORS.clear()
    ask, s = asking()
    assert asked(ask, s) == {2: 0, 1: 2, 0: 3}  # device 2 won classes 0 and 1: one of them a round
    s = answered(ask, s, declines={2})
    assert asked(ask, s) == {1: 0, 2: 1}  # the runner-up of class 0; now device 2 for class 1
    s = answered(ask, s, declines={1}, silent={2})
    assert asked(ask, s) == {0: 0}  # class 1 waits: device 0 is asked for class 0
    s = answered(ask, s, declines={0})
    assert asked(ask, s) == {0: 1}  # nobody is left for class 0
    assert not ask.over(s)
    s = answered(ask, s)
    assert ask.over(s)
    assert ask.asks(s) == []
    assert s.state.tolist() == [2, 1, 1, 1]
    (anchors,) = ANCHORS
    assert [(a.label, float(a.mean[0])) for a in anchors] == [(1, 0.0), (2, 1.0), (3, 0.0)]
    # through the model of the device that answered: [rank, class] of what the server kept
    assert [float(next(iter(a.model.values())).flatten()[0]) for a in anchors] == [1 * 4 + 1, 0 * 4 + 2, 0 * 4 + 3]


def test_nobody_at_all() -> None:
    ANCHORS.clear()
    ask, s = asking()
    for _ in range(20):
        if ask.over(s):
            break
        s = answered(ask, s, silent={0, 1, 2, 3})
    assert s.state.tolist() == [2] * 4
    assert ANCHORS == [[]]


def test_fewer_prototypes_than_classes() -> None:
    ask, s = asking(2)
    assert len(s.slots) == 2
    assert len(set(s.slots.tolist())) == 2
    chosen = {tuple(requests(4, 2, keys.root(k))[0].tolist()) for k in range(20)}
    assert len(chosen) == 6  # any two of four
    while not ask.over(s):
        s = answered(ask, s)
    assert s.state.tolist() == [1, 1]


@pytest.mark.parametrize("count", [5, 7, 12])
def test_more_prototypes_than_classes_are_runners_ups(count: int) -> None:
    ANCHORS.clear()
    ask, s = asking(count)
    for i, (label, place) in enumerate(zip(s.slots.tolist(), s.place.tolist(), strict=True)):
        assert place == s.slots[:i].tolist().count(label)
    while not ask.over(s):
        assert len(set(asked(ask, s).values())) == len(asked(ask, s))
        s = answered(ask, s)
    (anchors,) = ANCHORS
    assert len(anchors) == count
    for slot, anchor in enumerate(anchors):  # each the answer of the device that was asked for it
        assert float(anchor.mean[0]) == ORDER[int(s.place[slot]), anchor.label]
        assert float(next(iter(anchor.model.values())).flatten()[0]) == 4 * int(s.place[slot]) + anchor.label


def test_who_declines_is_not_followed_by_a_device_that_has_been_asked_for_the_same_class() -> None:
    ask, s = asking(8)  # of every class the first two ranks
    assert s.place.tolist() == [0] * 4 + [1] * 4
    seen: set[tuple[int, int]] = set()
    while not ask.over(s):
        now = set(asked(ask, s).items())
        assert not now & seen  # nobody is asked twice for a class
        seen |= now
        s = answered(ask, s, declines={0, 2})
    wanted = {
        (int(s.order[place, label]), int(label))
        for label, place, state in zip(s.slots, s.place, s.state, strict=True)
        if state == 1
    }
    assert wanted == {(k, c) for c in range(4) for k in ORDER[:, c].tolist() if k in (1, 3)}


@pytest.mark.parametrize("count", [-1, 13])
def test_more_than_there_are_ranks_are_refused(count: int) -> None:
    with pytest.raises(SordinoError) as refusal:
        asking(count)
    assert refusal.value.code == "prototypes-out-of-range"


def test_a_bad_device_is_a_silent_one() -> None:
    """A model of NaN, or of a device that there is not; an answer of infinity."""
    made, probe = task(), images(40)
    home, train = World(made, probe=probe), Train(clients=4)
    s = train.begin(made, KEY, None, home)
    ups = [Trained(made.init(k + 50), torch.tensor(k)) for k in (3, 0, 2)]
    nan = tree.map(lambda leaf: leaf * torch.nan, made.init(1))
    bad = [
        Trained(nan, torch.tensor(1)),
        Trained(made.init(9), torch.tensor(-1)),
        Trained(made.init(9), torch.tensor(4)),
    ]
    without, after = (train.update(s, Received(ups[0], 1.0, lambda sent=sent: sent), home) for sent in (ups, ups + bad))  # type: ignore[misc]
    assert [torch.equal(a, b) for a, b in zip(tree.leaves(without), tree.leaves(after), strict=True)].count(False) == 0

    ask, state = asking()
    wishes = asked(ask, state)
    one, other = list(wishes.items())[:2]
    honest = Prototype(torch.tensor([one[1]]), torch.ones(state.prototypes.shape[1]), torch.tensor([1.0]))
    wild = Prototype(torch.tensor([other[1]]), torch.full_like(honest.total, torch.inf), torch.tensor([1.0]))
    silent, shouting = (
        ask.update(state, Received(honest, 1.0, lambda sent=sent: sent), home) for sent in ([honest], [honest, wild])
    )  # type: ignore[misc]
    assert [torch.equal(a, b) for a, b in zip(tree.leaves(silent), tree.leaves(shouting), strict=True)].count(
        False
    ) == 0
    assert int((shouting.state == 1).sum()) == 1


def test_silent_devices_rank_last_and_keep_their_numbers() -> None:
    """Models come from devices 0, 2 and 3; device 3's is the start, the others know nothing."""
    made, n = task(), 40
    probe = images(n)
    home, train = World(made, probe=probe), Train(clients=4)
    s = train.begin(made, KEY, None, home)
    ups = [Trained(made.init(k + 50), torch.tensor(k)) for k in (3, 0, 2)]
    after = train.update(s, Received(ups[0], 1.0, lambda: ups), home)
    assert train.over(after)
    assert after.recall.shape == s.recall.shape  # as a checkpoint expects
    for k, up in zip((3, 0, 2), ups, strict=True):
        wanted = skill(made, tree.add(s.x, up.delta), probe)
        assert torch.equal(after.f1[k], wanted.f1)
        assert torch.equal(after.recall[k], wanted.recall)
    assert not after.f1[1].any()
    assert all(sorted(column) == [0, 2, 3] for column in after.order.T.tolist())
    for label in range(4):
        for place in range(3):
            up = next(up for up in ups if int(up.device) == after.order[place, label])
            model = tree.add(s.x, up.delta)
            assert all(torch.equal(after.models[name][place, label], model[name]) for name in model)
    with pytest.raises(SordinoError) as refusal:
        train.update(s, Received(ups[0], 1.0, lambda: ups[:2]), home)
    assert refusal.value.code == "too-few-devices-answered"


@pytest.mark.slow
def test_a_preparation_with_lost_devices_is_resumed_like_any(tmp_path: Path) -> None:
    many = {"rounds": 3, "partition": {"scheme": "dirichlet", "clients": 8, "alpha": 0.5}, "chaos": {"drop": 0.3}}
    once = finished(config.validate(RUN | many | {"algorithm": SLAUG}), tmp_path / "once")
    with pytest.raises(Killed):
        start(config.validate(RUN | many | {"algorithm": SLAUG}), tmp_path / "again", die_after(1))
    resume(tmp_path / "again")
    assert differences(once, trace(tmp_path / "again")) == []


# the filter -----------------------------------------------------------------------------------------------------------


def test_the_filter_keeps_exactly_the_nearest() -> None:
    far = torch.tensor([0.5, 0.1, 0.9, 0.1, 0.3, 0.7, 0.1])
    assert nearest(far, 3).tolist() == [1, 3, 6]
    assert nearest(far, 4).tolist() == [1, 3, 4, 6]
    assert nearest(far, 2).tolist() == [1, 3]  # of equals the first
    assert nearest(far, 99).tolist() == list(range(7))


def test_candidates_are_chosen_through_the_model_of_whoever_answered() -> None:
    made, candidates = task(), images(60, seed=7)
    models = [made.init(70), made.init(71)]
    only = [candidates.x[torch.nonzero(candidates.y == c)[2]] for c in (0, 1)]
    anchors = [Anchor(c, made.features(models[c], only[c])[0], made, models[c]) for c in (0, 1)]
    recipe = Recipe(keep=5)
    recipe = recipe.fitted(Known((8, 8, 1), 4, (5,), 9))
    found = recipe.chosen(candidates, anchors, KEY)
    for c in (0, 1):
        rows = torch.nonzero(candidates.y == c).flatten()
        z = made.features(models[c], candidates.x[rows])
        wanted = [(1 - F.cosine_similarity(z[i], anchors[c].mean, 0).item(), int(r)) for i, r in enumerate(rows)]
        assert found[c].tolist() == sorted(r for _, r in sorted(wanted)[:5])
        far = distances(anchors[c].seen(candidates.x[rows]), anchors[c].mean)
        # the prototype of a single image is that image's feature: at no distance from itself, and at some from the
        # others
        assert float(far[2]) == pytest.approx(0, abs=1e-7)
        assert int((far < 1e-4).sum()) == 1
    for c in (2, 3):  # without a prototype: random ones of the class
        assert len(found[c]) == 5
        assert set(candidates.y[found[c]].tolist()) == {c}
    assert found[2].tolist() != sorted(torch.nonzero(candidates.y == 2).flatten().tolist())[:5]


def test_two_prototypes_of_a_class_are_merged_by_their_distances_or_their_means() -> None:
    made, candidates = task(), images(60, seed=7)
    models = [made.init(70), made.init(71)]
    anchors = [Anchor(0, made.features(m, candidates.x[i : i + 1])[0], made, m) for i, m in enumerate(models)]
    rows = torch.nonzero(candidates.y == 0).flatten()
    seen = [made.features(m, candidates.x[rows]) for m in models]
    apart = [distances(z, a.mean) for z, a in zip(seen, anchors, strict=True)]
    wanted = {
        "mean_distance": (apart[0] + apart[1]) / 2,
        "mean": distances(seen[0], (anchors[0].mean + anchors[1].mean) / 2),
    }
    found = {}
    for merge, far in wanted.items():
        recipe = replace(Recipe(keep=4, merge=merge), shape=nets.GeneratorShape("small", 4, 8, 8, 1))  # type: ignore[arg-type]
        found[merge] = recipe.chosen(candidates, anchors, KEY)[0].tolist()
        assert found[merge] == rows[far.argsort()[:4].sort().values].tolist()
    assert selection.some(9, 4, KEY).unique().numel() == 4


# baselines in closed form ---------------------------------------------------------------------------------------------


def test_model_contrast_is_a_softmax_of_two() -> None:
    z, near, far = (keys.normal(keys.root(k), 15).reshape(3, 5).requires_grad_() for k in (1, 2, 3))
    value = model_contrast(z, near, far, 0.5)
    for i in range(3):
        a, b = (F.cosine_similarity(z[i], other[i], 0).item() / 0.5 for other in (near, far))
        assert value[i].item() == pytest.approx(-math.log(math.exp(a) / (math.exp(a) + math.exp(b))))
    found = torch.autograd.grad(value.sum(), [z, near, far], allow_unused=True)
    assert found[0].abs().sum() > 0
    assert found[1] is None
    assert found[2] is None
    assert torch.allclose(model_contrast(z, near, near, 0.5), torch.full((3,), math.log(2), dtype=DOUBLE))


def test_moon_is_far_from_its_own_last_model_from_its_second_time_on() -> None:
    made, rows = task(), images(7)
    moon = Moon(mu=2.0, head=False, batch_size="full", lr=0.1)
    down, nobody = moon.init(made, 1), Client(torch.tensor(0))
    for epochs in (3, 1):  # after a step it has left the shared model, and still nothing pulls
        first, client = replace(moon, local_epochs=epochs).local(
            made, down, moon.init_client(made), shard(rows, None, made), KEY
        )
        fedavg = FedAvg(batch_size="full", lr=0.1, local_epochs=epochs)
        plain, _ = fedavg.local(made, down, nobody, shard(rows, None, made), KEY)  # type: ignore[arg-type]
        assert torch.allclose(tree.flat(tree.formed(first)), tree.flat(tree.formed(plain)), atol=1e-7)
    last = tree.add(down.x, first.delta)
    assert all(torch.allclose(client.last[name], tree.formed(last)[name], atol=1e-6) for name in client.last)
    second, client = moon.local(made, down, client, shard(rows, None, made), KEY)
    assert int(client.participations) == 2
    leaves = {name: value.clone().requires_grad_() for name, value in down.x.items()}
    z = made.features(leaves, rows.x)
    total = F.cross_entropy(made.head(leaves, z), rows.y)
    near, far = made.features(down.x, rows.x), made.features(tree.formed(last), rows.x)
    cosines = torch.stack([F.cosine_similarity(z, other.detach(), 1) / 0.5 for other in (near, far)], 1)
    total = total + 2.0 * F.cross_entropy(cosines, torch.zeros(7, dtype=torch.int64))
    wanted = torch.autograd.grad(total, list(leaves.values()))
    moved = tree.formed(second.delta)
    assert all(torch.allclose(moved[n], -0.1 * g, atol=1e-6) for n, g in zip(leaves, wanted, strict=True))
    assert not torch.allclose(tree.flat(moved), tree.flat(tree.formed(first.delta)), atol=1e-5)


def naive_supcon(z: Tensor, labels: list[int], temperature: float) -> float:
    """A double loop (Khosla et al., NeurIPS 2020, equation 2)."""
    unit = [row / row.norm() for row in z]
    total = 0.0
    for i, anchor in enumerate(unit):
        below = math.fsum(math.exp(float(anchor @ unit[a]) / temperature) for a in range(len(unit)) if a != i)
        same = [j for j in range(len(unit)) if j != i and labels[j] == labels[i]]
        found = [-math.log(math.exp(float(anchor @ unit[j]) / temperature) / below) for j in same]
        total += math.fsum(found) / len(found) if found else 0.0
    return total / len(unit)


@pytest.mark.parametrize("labels", [[0, 1, 0, 2, 1, 0], [0, 1, 2, 3, 4, 5], [1] * 6])
def test_supervised_contrast_is_the_double_loop(labels: list[int]) -> None:
    z = keys.normal(KEY, 24).reshape(6, 4)
    for temperature in (0.07, 0.5):
        value = supervised_contrast(z, torch.tensor(labels), temperature)
        assert float(value) == pytest.approx(naive_supcon(z, labels, temperature), abs=1e-9)
    z.requires_grad_()
    (g,) = torch.autograd.grad(supervised_contrast(z, torch.tensor(labels), 0.07), [z])
    assert bool(g.isfinite().all())


@pytest.mark.parametrize("pulls", [True, False])
def test_vhl_in_closed_form(pulls: bool) -> None:
    made = task(heads=2)
    params, own, noise = made.init(1), images(5), images(6, seed=9)
    vhl = VHL(noise_weight=0.7, pull=1.3, among_noise=0.2, temperature=0.5)
    assert vhl.heads == 2
    value = vhl._loss(made, pulls, params, own, noise, keys.bits(KEY, 11))
    wanted = F.cross_entropy(made.predict(params, own.x), own.y)
    wanted = wanted + 0.7 * F.cross_entropy(made.predict(params, noise.x), noise.y + 4)  # classes of their own
    if pulls:
        z, w = made.features(params, own.x), made.features(params, noise.x)
        both = naive_supcon(torch.cat([z, w]).double(), [*own.y.tolist(), *noise.y.tolist()], 0.5)
        wanted = wanted + 1.3 * both + 0.2 * naive_supcon(w.double(), noise.y.tolist(), 0.5)
    assert float(value) == pytest.approx(float(wanted), rel=1e-5)


def test_real_images_are_pulled_to_noise_and_noise_is_not_pulled_to_them() -> None:
    made = task(heads=2)
    params, own, noise = made.init(1), images(5), images(6, seed=9)
    vhl = VHL(noise_weight=0.0, pull=1.0, among_noise=0.0, temperature=0.5)
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    found = torch.autograd.grad(vhl._loss(made, True, leaves, own, noise, keys.bits(KEY, 11)), list(leaves.values()))
    z, w = made.features(leaves, own.x), made.features(params, noise.x)
    total = F.cross_entropy(made.head(leaves, z), own.y)
    total = total + supervised_contrast(torch.cat([z, w]), torch.cat([own.y, noise.y]), 0.5)
    wanted = torch.autograd.grad(total, list(leaves.values()))
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found, wanted, strict=True))


def test_vhl_pulls_in_its_first_epochs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made, pulled = task(heads=2), []

    def noting(self: VHL, task: Any, pulls: bool, params: Params, *rest: Any) -> Tensor:
        pulled.append(pulls)
        return next(iter(params.values())).sum() * 0

    monkeypatch.setattr(VHL, "_loss", noting)
    vhl = VHL(local_epochs=4, batch_size=4, noise_batch=3, pull_epochs=2)
    down = vhl.init(made, 1)
    vhl.local(made, down, Client(torch.tensor(0)), shard(images(10), images(9), made), KEY)
    assert pulled == [True] * 6 + [False] * 6
    assert vhl.passes(10) == 4 * 10 + 12 * 3


def test_everybody_holds_the_same_noise_images() -> None:
    vhl = VHL(per_class=2, source="random_conv", width=4).fitted(Known((8, 8, 1), 3, (5,), 9))
    handed = vhl.handed(None, World(task()))
    assert handed is not None
    assert tree.size(handed) == 1  # a seed goes down, not a set
    one, other = (vhl.equip(task(), handed, size, key) for size, key in ((5, 1), (50, 2)))
    assert torch.equal(one.x, other.x)
    assert torch.bincount(one.y).tolist() == [2, 2, 2]
    another = vhl.handed(None, World(task(), key=10))
    assert not torch.equal(vhl.equip(task(), another, 5, 1).x, one.x)  # a run's own


def fedgen(heads: int = 1) -> tuple[FedGen, Classification, features.GeneratorState]:
    made = task(heads=heads)
    algorithm = FedGen(noise=6, hidden=8, batch_size="full", lr=0.1, strength=3.0, decay=0.5)
    generator = features.init(4, 6, made.width, KEY, hidden=8)
    return algorithm, made, generator


def test_fedgens_client_loss_beside_a_naive_one() -> None:
    algorithm, made, generator = fedgen()
    params, own, draws = made.init(1), images(5), keys.bits(KEY, 5)
    value = algorithm._losses(made, generator, 0.7, params, own.x, own.y, draws)
    epsilon, any_label = features.wanted(draws, 6, 4)
    assert value.shape == (5,)
    for i in range(5):
        row = slice(i, i + 1)
        logits = made.predict(params, own.x[row])
        invented = made.head(params, features.forward(generator, epsilon[row], any_label[row]))
        says_ = made.head(params, features.forward(generator, epsilon[row], own.y[row])).softmax(1)[0]
        thinks = logits.softmax(1)[0]
        near = sum(float(p) * (math.log(float(p)) - math.log(float(q))) for p, q in zip(says_, thinks, strict=True))
        learned = -math.log(float(invented.softmax(1)[0, any_label[i]]))
        plain = -math.log(float(thinks[own.y[i]]))
        assert float(value[i]) == pytest.approx(plain + 0.7 * (learned + near), rel=1e-4)
    assert float(features.wanted(keys.bits(KEY, 400), 6, 4)[1].float().mean()) == pytest.approx(1.5, abs=0.3)


def test_what_the_generator_says_is_no_leaf_of_the_clients_loss() -> None:
    """The head learns from invented features; what it says of those of a batch's own labels is a fixed target."""
    algorithm, made, generator = fedgen()
    params, own, draws = made.init(1), images(5), keys.bits(KEY, 5)
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    value = algorithm._losses(made, generator, 1.0, leaves, own.x, own.y, draws).mean()
    found = torch.autograd.grad(value, list(leaves.values()))
    epsilon, any_label = features.wanted(draws, 6, 4)
    logits = made.head(leaves, made.features(leaves, own.x))
    target = made.head(params, features.forward(generator, epsilon, own.y)).softmax(1)
    total = F.cross_entropy(logits, own.y)
    total = total + F.cross_entropy(made.head(leaves, features.forward(generator, epsilon, any_label)), any_label)
    total = total + (target * (target.log() - logits.log_softmax(1))).sum(1).mean()
    wanted = torch.autograd.grad(total, list(leaves.values()))
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found, wanted, strict=True))


def naive_generator_loss(
    heads: Sequence[Callable[[Tensor], Tensor]], counts: Tensor, z: Tensor, epsilon: Tensor, y: Tensor
) -> Tensor:
    """L = sum_k mean_i a_k,y_i CE + exp(-mean_ij meansq |e_i - e_j| meanabs |z_i - z_j|), every sum a loop."""
    total, n = z.new_zeros(()), len(y)
    for k, head in enumerate(heads):
        for i in range(n):
            share = counts[k, y[i]] / counts[:, y[i]].sum()
            total = total - share * head(z[i : i + 1]).log_softmax(1)[0, y[i]] / n
    apart = z.new_zeros(())
    for i in range(n):
        for j in range(n):
            apart = apart + ((epsilon[i] - epsilon[j]) ** 2).mean() * (z[i] - z[j]).abs().mean()
    return total + torch.exp(-apart / n**2)


def test_fedgens_server_steps_down_the_naive_loss() -> None:
    """Two heads with other counts: one step of Adam by the gradient of the loops."""
    _, made, generator = fedgen()
    models = [made.init(5), made.init(6)]
    heads = [partial(made.head, params) for params in models]
    counts = torch.tensor([[3.0, 0.0, 1.0, 1.0], [1.0, 0.0, 7.0, 0.0]])
    settings = features.FeatureSettings(updates=1, batch=6, lr=0.01, weight_decay=0.1)
    after = features.distil(generator, heads, counts, 6, settings, KEY)
    epsilon, place = features.wanted(keys.bits(keys.fold(KEY, 0), 6), 6, 2)
    y = torch.tensor([0, 2])[place]  # of which some device has more than one: classes 1 and 3 are not asked for
    leaves = {name: value.clone().requires_grad_() for name, value in features.trainable(generator).items()}
    z, _ = features.training_forward(leaves | {name: generator[name] for name in features.STATISTICS}, epsilon, y)
    value = naive_generator_loss(heads, counts, z, epsilon, y)
    adam = torch.optim.Adam(list(leaves.values()), 0.01, weight_decay=0.1)
    for p, g in zip(leaves.values(), torch.autograd.grad(value, list(leaves.values())), strict=True):
        p.grad = g
    adam.step()
    for name, value_ in leaves.items():
        if (
            name != "first.bias"
        ):  # the norm takes a shift away: its gradient is rounding, which Adam makes a whole step of
            assert torch.allclose(after[name], value_.detach(), atol=1e-4), name
            assert not torch.allclose(after[name], generator[name], atol=1e-3), name


def test_fedgen_begins_in_its_second_round_and_fades() -> None:
    algorithm, made, _ = fedgen()
    state = algorithm.init(made, 1)
    rows = images(9)
    up, client = algorithm.local(made, state, Client(torch.tensor(0)), shard(rows, None, made), KEY)
    plain, _ = FedAvg(batch_size="full", lr=0.1).local(
        made, state, Client(torch.tensor(0)), shard(rows, None, made), KEY
    )  # type: ignore[arg-type]
    assert torch.equal(tree.flat(tree.formed(up.delta)), tree.flat(tree.formed(plain.delta)))
    assert up.counts.tolist() == torch.bincount(rows.y, minlength=4).tolist()
    later = state._replace(round=torch.tensor(1))
    helped, _ = algorithm.local(made, later, client, shard(rows, None, made), KEY)
    assert not torch.allclose(tree.flat(tree.formed(helped.delta)), tree.flat(tree.formed(up.delta)), atol=1e-4)
    assert algorithm._weight(later) == 3.0 * 0.5
    assert algorithm._weight(state._replace(round=torch.tensor(99))) == algorithm.least
    after = algorithm.update(state, Received(up, 1.0, lambda: [up]), World(made))
    assert not torch.equal(after.generator["last.weight"], state.generator["last.weight"])
    assert isinstance(shard(rows, None, made), OpenShard)
