"""What the last layer sees: the module's own input there, with the gradients that autograd finds, in every precision
and for any network.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sordino import keys
from sordino.errors import ConfigError
from sordino.fast.factored import dense
from sordino.tasks.nets import NETS, vgg16
from sordino.tasks.quadratic import Quadratic
from sordino.tasks.supervised import Classification
from sordino.tasks.written_out_backward import Chain, Conv, Linear
from sordino.types import Params

CLASSES, SIDE, CHANNELS, N = 4, 16, 3, 6
DRAWS = keys.bits(keys.root(9), N)


class Own(nn.Module):
    """Somebody's network, with the head not where it was written."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(7, CLASSES)
        self.body = nn.Linear(CHANNELS * SIDE * SIDE, 7)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.drop(torch.tanh(self.body(x.flatten(1)))))
        return out


def pooled() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(CHANNELS, 5, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d((4, 3)),
        nn.Flatten(),
        nn.Linear(60, 6),
        nn.ReLU(),
        nn.Linear(6, CLASSES),
    )


def repeated() -> nn.Module:
    """As in VGG16 on small images: one pixel, shown forty-nine times."""
    return nn.Sequential(
        nn.Conv2d(CHANNELS, 5, 3, 2, 1),
        nn.ReLU(),
        nn.MaxPool2d(8),
        nn.AdaptiveAvgPool2d(7),
        nn.Flatten(),
        nn.Linear(245, 6),
        nn.ReLU(),
        nn.Linear(6, CLASSES),
    )


SHAPE = (CHANNELS, SIDE, SIDE)
MADE: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: NETS["mlp"](SHAPE, CLASSES, hidden=20),
    "cnn": lambda: NETS["cnn"](SHAPE, CLASSES),
    "cnn_wide": lambda: NETS["cnn_wide"](SHAPE, CLASSES),
    "cnn_norm": lambda: NETS["cnn_norm"](SHAPE, CLASSES),
    "adaptive pooling": pooled,
    "a repeated pixel": repeated,
    "own": Own,
}
SEEN = {"mlp": 20, "cnn": 50, "cnn_wide": 192, "cnn_norm": 64, "adaptive pooling": 6, "a repeated pixel": 6, "own": 7}


def task_of(net: nn.Module, **more: Any) -> Classification:
    middle = (0.4,) * CHANNELS
    return Classification(net, name="net", shape=(SIDE, SIDE, CHANNELS), mean=middle, std=middle, image=True, **more)


def rows(n: int = N, seed: int = 3) -> Tensor:
    pixels = keys.integers(keys.root(seed), n * SIDE * SIDE * CHANNELS, 256).to(torch.uint8)
    return pixels.reshape(n, SIDE, SIDE, CHANNELS)


def params_of(task: Classification, dtype: torch.dtype) -> Params:
    return {name: value.to(dtype) for name, value in task.init(keys.root(5)).items()}


def by_autograd(task: Classification, params: Params, x: Tensor, draws: Tensor | None) -> Tensor:
    """What goes into the last linear layer, heard by a hook in the module itself."""
    net, seen = task._net, []
    layers = [m for m in net.modules() if isinstance(m, nn.Linear)]
    last = next((m for m in layers if m.out_features == CLASSES), layers[-1])
    net.train(draws is not None)
    for dropout in task._dropouts:
        dropout.keys = draws
    handle = last.register_forward_hook(lambda m, args, out: seen.append(args[0]))
    scaled = ((x.double() / 255 - 0.4) / 0.4).to(next(iter(params.values())).dtype).permute(0, 3, 1, 2)
    torch.func.functional_call(net, params, (scaled,))
    handle.remove()
    return seen[0]  # type: ignore[no-any-return]


def gradients(z: Tensor, leaves: Params) -> list[Tensor]:
    """Of a number in which every feature has a weight of its own, and matters more than linearly."""
    weight = torch.linspace(-1, 2, z.numel(), dtype=z.dtype).reshape(z.shape)
    found = torch.autograd.grad((weight * z + z**2 / 2).sum(), list(leaves.values()), allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(leaves.values(), found, strict=True)]


def agree(task: Classification, dtype: torch.dtype, draws: Tensor | None, tolerance: float) -> bool:
    """Features and gradients are those of autograd. In 32 bits a unit near 0 may be on here and off there, which depends
    on the processor: then they must be on other images.
    """
    return any(
        agree_on(rows(seed=seed), task, dtype, draws, tolerance)
        for seed in ((3, 4, 5) if dtype == torch.float32 else (3,))
    )


def agree_on(x: Tensor, task: Classification, dtype: torch.dtype, draws: Tensor | None, tolerance: float) -> bool:
    params = params_of(task, dtype)
    ours, plain = ({k: v.clone().requires_grad_() for k, v in params.items()} for _ in range(2))
    z, wanted = task.features(ours, x, draws), by_autograd(task, plain, x, draws)
    assert (z.dtype, z.shape) == (dtype, wanted.shape)
    pairs = [(z, wanted), *zip(gradients(z, ours), gradients(wanted, plain), strict=True)]
    return all(float((a - b).detach().norm()) <= tolerance * (1 + float(b.detach().norm())) for a, b in pairs)


@pytest.mark.parametrize("draws", [DRAWS, None], ids=["training", "evaluation"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MADE)
def test_gradients_are_those_of_the_module(name: str, dtype: torch.dtype, draws: Tensor | None) -> None:
    task = task_of(MADE[name]())
    assert (task._chain is None) == (name == "own")
    assert agree(task, dtype, draws, 1e-5)
    params = params_of(task, dtype)
    z = task.features(params, rows())
    assert z.shape == (N, SEEN[name])
    assert torch.allclose(task.head(params, z), task.predict(params, rows()), rtol=1e-5, atol=1e-6)
    assert task.classes == CLASSES
    # dropout is on with keys and off without
    drops = name in ("cnn", "own")
    assert torch.equal(task.features(params, rows(), DRAWS), z) != drops


def test_a_layer_that_forgets_its_bias_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken twins of the written-out backward pass: the same check must catch each."""
    for link in (Linear, Conv):
        whole = link.weights

        def lazy(self: Any, p: Params, kept: Any, g: Tensor, deeper: bool, whole: Any = whole) -> tuple[Tensor, Any]:
            back, found = whole(self, p, kept, g, deeper)
            return back, found | {self.bias: torch.zeros_like(p[self.bias])}

        task = task_of(MADE["cnn_wide"]())
        assert agree(task, torch.float64, None, 1e-5)
        with monkeypatch.context() as patched:
            patched.setattr(link, "weights", lazy)
            assert not agree(task, torch.float64, None, 1e-5)


@pytest.mark.parametrize("name", ["cnn_wide", "adaptive pooling", "a repeated pixel"])
def test_bf16_is_rounding_in_training_and_stays_out_of_evaluation(name: str) -> None:
    task = task_of(MADE[name](), precision=torch.bfloat16)
    assert task.precision == torch.bfloat16
    assert agree(task, torch.float32, DRAWS, 0.2)  # a unit near 0 may be on here and off there
    assert not agree(task, torch.float32, DRAWS, 1e-5)  # control: it was bf16 that computed it
    assert agree(task, torch.float32, None, 1e-5)
    # and with the head on top it is the step that training takes in bf16
    params, x, y = params_of(task, torch.float32), rows(), torch.arange(N) % CLASSES
    leaves = {k: v.clone().requires_grad_() for k, v in params.items()}
    value = nn.functional.cross_entropy(task.head(leaves, task.features(leaves, x, DRAWS)), y)
    ours = torch.autograd.grad(value, list(leaves.values()))
    step = task.gradient(params, *task.ready(x, y), lambda: DRAWS)
    for a, b in zip(ours, step.values(), strict=True):
        assert float((dense(b) - a).norm()) <= 5e-2 * float(a.norm())


def test_the_graph_is_given_back_when_the_features_are() -> None:
    """No cycle keeps a batch's activations until the garbage collector comes."""
    task = task_of(MADE["cnn_wide"]())
    params = {k: v.requires_grad_() for k, v in params_of(task, torch.float32).items()}
    gc.disable()
    try:
        z = task.features(params, rows())
        node = z.grad_fn
        kept = weakref.ref(node.kept[0] if hasattr(node, "kept") else node.next_functions[0][0].kept[0])  # type: ignore[union-attr]
        assert kept() is not None
        del z, node
        assert kept() is None
    finally:
        gc.enable()


class Last(nn.Module):
    """Ends with something else than its linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(CHANNELS * SIDE * SIDE, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x.flatten(1)).tanh()
        return out


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(CHANNELS * SIDE * SIDE, CLASSES)
        self.second = nn.Linear(CLASSES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.second(self.first(x.flatten(1))))
        return out


@pytest.mark.parametrize("net", [Last, Twice, lambda: nn.Sequential(nn.Conv2d(CHANNELS, CLASSES, SIDE), nn.Flatten())])
def test_a_model_without_a_linear_head_is_refused(net: Callable[[], nn.Module]) -> None:
    task = task_of(net())
    with pytest.raises(ConfigError) as refused:
        task.features(params_of(task, torch.float32), rows())
    assert refused.value.code == "model-without-head"
    assert task.classes == CLASSES


def test_quadratics_have_no_features() -> None:
    for ask in (lambda task: task.classes, lambda task: task.features({}, torch.zeros(1, 4))):
        with pytest.raises(ConfigError) as refused:
            ask(Quadratic(2))
        assert refused.value.code == "model-without-head"


# the published sizes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "classes", "size"),
    [
        ("cnn_wide", 10, 797_962),
        ("cnn_wide", 100, 815_332),
        ("cnn_wide", 3, 796_611),
        ("cnn_wide", 5, 796_997),
        ("cnn_wide", 7, 797_383),
        ("vgg16", 10, 134_301_514),
        ("vgg16", 100, 134_670_244),
    ],
)
def test_models_have_the_published_sizes(name: str, classes: int, size: int) -> None:
    with torch.device("meta"):
        net = NETS[name]((3, 32, 32), classes)
    tensors = [p.numel() for p in net.parameters()]
    assert sum(tensors) == size
    assert len(tensors) == {"cnn_wide": 10, "vgg16": 32}[name]
    assert net(torch.zeros(2, 3, 32, 32, device="meta")).shape == (2, classes)
    assert Chain.of(net, (32, 32, 3)) is not None
    if name == "vgg16":
        assert net(torch.zeros(1, 3, 224, 224, device="meta")).shape == (1, classes)


@pytest.mark.slow
def test_vgg16_goes_the_written_out_way() -> None:
    net = vgg16((3, 32, 32), 10)
    task = Classification(net, name="vgg16", shape=(32, 32, 3), mean=(0.4,) * 3, std=(0.4,) * 3, image=True)
    x, y = rows(2)[:1].repeat(1, 2, 2, 1), torch.tensor([3])
    assert task._chain is not None
    # as it starts, signals vanish on the way up, and with them every digit of the first layers' gradients
    params = {name: p.detach() * (6**0.5 if p.dim() == 4 else 1) for name, p in net.named_parameters()}
    found = task.gradient(params, *task.ready(x, y), lambda: DRAWS[:1])
    leaves = {name: p.requires_grad_() for name, p in params.items()}
    wanted = torch.autograd.grad(task.losses(leaves, x, y, DRAWS[:1]).mean(), list(leaves.values()))
    for (name, g), w in zip(found.items(), wanted, strict=True):
        assert float((g + 0 - w).norm()) <= 1e-3 * float(w.norm()), name
    assert task.features(params, x).shape == (1, 4096)


class Bare(nn.Module):
    """One layer, and something before it that has nothing to learn."""

    def __init__(self) -> None:
        super().__init__()
        self.only = nn.Linear(SIDE * SIDE * CHANNELS, 3)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.only(torch.tanh(x.flatten(1)))
        return z


def test_features_that_are_the_example_are_not_learned() -> None:
    shape = (CHANNELS, SIDE, SIDE)
    assert not task_of(NETS["logistic"](shape, 3)).learns_features
    assert not task_of(Bare()).learns_features
    assert task_of(NETS["mlp"](shape, 3)).learns_features


def test_a_width_that_is_first_asked_for_under_vmap_changes_nothing() -> None:
    """A task in another thread is asked for the first time there: under vmap the chain's own way back has no place."""
    fresh, asked = (task_of(pooled()) for _ in range(2))
    assert asked.width == 6
    params = params_of(asked, torch.float32)

    def told(task: Classification) -> Tensor:
        return torch.func.vmap(lambda row: task.features(params, row[None])[0] * task.width)(rows())

    assert torch.equal(told(fresh), told(asked))
