"""MOON, VHL and FedGen beside closed forms and naive code."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sordino import keys, tree
from sordino.algorithms.fedavg import Client, FedAvg
from sordino.algorithms.moon import Moon
from sordino.algorithms.optional import PublicFacts
from sordino.privacy.readers.open import OpenShard
from sordino.synthesis import fedgen as gen
from sordino.synthesis.fedgen import FedGen
from sordino.synthesis.generators import GeneratorState
from sordino.synthesis.vhl import VHL
from sordino.tasks.losses import model_contrast, supervised_contrast
from sordino.tasks.supervised import Classification
from sordino.types import Params, Received
from tests.synthesis.slaug.images import DOUBLE, KEY, World, images, shard, task


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
    vhl = VHL(per_class=2, source="random_conv", width=4).fitted(PublicFacts((8, 8, 1), 3, (5,), 9))
    tensors = vhl.public_tensors(None, World(task()))
    assert tensors is not None
    assert tree.size(tensors) == 1  # a seed goes down, not a set
    one, other = (vhl.public_examples(task(), tensors, size, key) for size, key in ((5, 1), (50, 2)))
    assert torch.equal(one.x, other.x)
    assert torch.bincount(one.y).tolist() == [2, 2, 2]
    another = vhl.public_tensors(None, World(task(), key=10))
    assert not torch.equal(vhl.public_examples(task(), another, 5, 1).x, one.x)  # a run's own


def fedgen(heads: int = 1) -> tuple[FedGen, Classification, GeneratorState]:
    made = task(heads=heads)
    algorithm = FedGen(noise=6, hidden=8, batch_size="full", lr=0.1, strength=3.0, decay=0.5)
    generator = gen.feature_generator(4, 6, made.width, KEY, hidden=8)
    return algorithm, made, generator


def test_fedgens_client_loss_beside_a_naive_one() -> None:
    algorithm, made, generator = fedgen()
    params, own, draws = made.init(1), images(5), keys.bits(KEY, 5)
    value = algorithm._losses(made, generator, 0.7, params, own.x, own.y, draws)
    epsilon, any_label = gen.wanted(draws, 6, 4)
    assert value.shape == (5,)
    for i in range(5):
        row = slice(i, i + 1)
        logits = made.predict(params, own.x[row])
        invented = made.head(params, gen.generated(generator, epsilon[row], any_label[row]))
        says_ = made.head(params, gen.generated(generator, epsilon[row], own.y[row])).softmax(1)[0]
        thinks = logits.softmax(1)[0]
        near = sum(float(p) * (math.log(float(p)) - math.log(float(q))) for p, q in zip(says_, thinks, strict=True))
        learned = -math.log(float(invented.softmax(1)[0, any_label[i]]))
        plain = -math.log(float(thinks[own.y[i]]))
        assert float(value[i]) == pytest.approx(plain + 0.7 * (learned + near), rel=1e-4)
    assert float(gen.wanted(keys.bits(KEY, 400), 6, 4)[1].float().mean()) == pytest.approx(1.5, abs=0.3)


def test_what_the_generator_says_is_no_leaf_of_the_clients_loss() -> None:
    """The head learns from invented features; what it says of those of a batch's own labels is a fixed target."""
    algorithm, made, generator = fedgen()
    params, own, draws = made.init(1), images(5), keys.bits(KEY, 5)
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    value = algorithm._losses(made, generator, 1.0, leaves, own.x, own.y, draws).mean()
    found = torch.autograd.grad(value, list(leaves.values()))
    epsilon, any_label = gen.wanted(draws, 6, 4)
    logits = made.head(leaves, made.features(leaves, own.x))
    target = made.head(params, gen.generated(generator, epsilon, own.y)).softmax(1)
    total = F.cross_entropy(logits, own.y)
    total = total + F.cross_entropy(made.head(leaves, gen.generated(generator, epsilon, any_label)), any_label)
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


@pytest.mark.slow
def test_fedgens_server_steps_down_the_naive_loss() -> None:
    """Two heads with other counts: one step of Adam by the gradient of the loops."""
    _, made, generator = fedgen()
    models = [made.init(5), made.init(6)]
    heads = [partial(made.head, params) for params in models]
    counts = torch.tensor([[3.0, 0.0, 1.0, 1.0], [1.0, 0.0, 7.0, 0.0]])
    method = gen.FedGen(noise=6, updates=1, generator_batch=6, generator_lr=0.01, generator_decay=0.1)
    after = method.distilled(generator, heads, counts, 0, KEY)
    epsilon, place = gen.wanted(keys.bits(keys.fold(keys.fold(KEY, 0), 0), 6), 6, 2)
    y = torch.tensor([0, 2])[place]  # of which some device has more than one: classes 1 and 3 are not asked for
    leaves = {name: value.clone().requires_grad_() for name, value in gen.trainable(generator).items()}
    z, _ = gen.training_forward(leaves | {name: generator[name] for name in gen.STATISTICS}, epsilon, y)
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


@pytest.mark.slow
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
