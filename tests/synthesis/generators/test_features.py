"""FedGen's generator beside the same network of torch modules."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sordino import keys
from sordino.synthesis import fedgen as features
from sordino.synthesis.generators import GeneratorState

KEY = keys.root(15)


@pytest.mark.parametrize(("classes", "noise", "size"), [(10, 100, 320_512), (100, 256, 446_464)])
def test_published_sizes(classes: int, noise: int, size: int) -> None:
    state = features.feature_generator(classes, noise, 512, KEY)
    assert sum(value.numel() for value in features.trainable(state).values()) == size
    assert {v.dtype for v in state.values()} == {torch.float32}


def torch_twin(state: GeneratorState) -> nn.Sequential:
    hidden, inputs = state["first.weight"].shape
    net = nn.Sequential(
        nn.Linear(inputs, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, len(state["last.bias"]))
    )
    names = [f"{i}.{part}" for i in (0, 3) for part in ("weight", "bias")]
    own = [f"{layer}.{part}" for layer in ("first", "last") for part in ("weight", "bias")]
    pairs = dict(zip(names, own, strict=True))
    pairs |= {"1.weight": "norm.weight", "1.bias": "norm.bias"}
    pairs |= {"1.running_mean": "norm.mean", "1.running_var": "norm.variance"}
    net.load_state_dict({k: state[v] for k, v in pairs.items()} | {"1.num_batches_tracked": torch.tensor(0)})
    return net


def test_it_is_the_network_of_modules() -> None:
    state = features.feature_generator(5, 8, 6, KEY, hidden=16)
    state |= {"norm.bias": torch.linspace(-1, 1, 16), "norm.weight": torch.linspace(0.5, 2, 16)}
    kept = {k: v.clone() for k, v in state.items()}
    net, y = torch_twin(state), torch.arange(20) % 5
    for step in range(3):
        epsilon = keys.uniform(keys.fold(KEY, step), 160).reshape(20, 8).float()
        wanted = net.train()(torch.cat([epsilon, F.one_hot(y, 5).float()], 1))
        z, moved = features.training_forward(state, epsilon, y)
        assert torch.allclose(z, wanted, atol=1e-5)
        assert not torch.allclose(features.generated(state, epsilon, y), z, atol=1e-2)
        state = state | moved
        assert all(torch.equal(kept[k], v) for k, v in features.trainable(state).items())
    norm = net[1]
    assert isinstance(norm, nn.BatchNorm1d)
    assert torch.allclose(state["norm.mean"], norm.running_mean, atol=1e-6)  # type: ignore[arg-type]
    assert torch.allclose(state["norm.variance"], norm.running_var, atol=1e-6)  # type: ignore[arg-type]
    wanted = net.eval()(torch.cat([epsilon, F.one_hot(y, 5).float()], 1))
    assert torch.allclose(features.generated(state, epsilon, y), wanted, atol=1e-5)


def test_gradients_reach_what_is_trained() -> None:
    state = features.feature_generator(5, 8, 6, KEY, hidden=16)
    leaves = {k: v.clone().requires_grad_() for k, v in features.trainable(state).items()}
    z, moved = features.training_forward(
        state | leaves, keys.uniform(KEY, 160).reshape(20, 8).float(), torch.arange(20) % 5
    )
    found = torch.autograd.grad(z.square().sum(), list(leaves.values()))
    moving = [name for name, g in zip(leaves, found, strict=True) if float(g.abs().max()) > 1e-4]
    assert set(leaves) - set(moving) <= {"first.bias"}  # the batch norm takes a shift away
    assert not any(v.requires_grad for v in moved.values())


def test_a_function_of_the_key() -> None:
    before = torch.get_rng_state()
    one, again, other = (features.feature_generator(3, 4, 5, key) for key in (KEY, KEY, keys.root(1)))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(one[k], again[k]) for k in one)
    assert not torch.equal(one["first.weight"], other["first.weight"])
