"""Sizes, first weights and drawing of the image generators."""

from __future__ import annotations

import pytest
import torch

from sordino import keys
from sordino.errors import ConfigError
from sordino.synthesis import generators
from sordino.synthesis.generators import GeneratorShape, discriminator, draw, generator, init, parameters

KEY = keys.root(4)
SHAPES = [
    GeneratorShape("small", 10, 64, 16, 1),
    GeneratorShape("weak", 4, 20, 16, 3),
    GeneratorShape("strong", 3, 110),
    GeneratorShape("small", 6, 20, 16, 1, split=2),
]


def steep(shape: GeneratorShape) -> dict[str, torch.Tensor]:
    """A generator as contrasty as a trained one: at the start all its images are grey."""
    last = max((name for name in init(shape, KEY) if "body" in name and name.endswith("weight")), key=len)
    return {name: v * (300 if name == last or v.dim() == 4 else 1) for name, v in init(shape, KEY).items()}


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        (GeneratorShape("strong", 10, 110), 1_594_988),
        (GeneratorShape("strong", 11, 110), 1_595_098),
        (GeneratorShape("strong", 100, 110, split=10), 15_949_880),
        (GeneratorShape("weak", 10, 100), 682_499),
        (GeneratorShape("weak", 100, 256), 1_690_115),
    ],
)
def test_published_sizes(shape: GeneratorShape, size: int) -> None:
    assert parameters(shape) == size
    if size > 10**7:
        return  # seconds of drawing weights that say nothing new
    state = init(shape, KEY)
    running = [name for name in state if "running" in name]
    assert sum(v.numel() for v in state.values()) - sum(state[name].numel() for name in running) == size
    assert running


@pytest.mark.slow
def test_discriminators() -> None:
    full = discriminator(GeneratorShape("strong", 10, 110))
    assert sum(p.numel() for p in full.parameters()) == 1_663_867
    for side in (8, 16, 28, 32):
        net = discriminator(GeneratorShape("small", 10, 64, side, 1)).eval()
        net.drop_by(torch.Generator())
        assert net.label.in_features == net.body(torch.zeros(2, 1, side, side, device="meta")).shape[1]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.kind)
def test_a_state_is_a_function_of_its_key(shape: GeneratorShape) -> None:
    before = torch.get_rng_state()
    state, again, other = init(shape, KEY), init(shape, KEY), init(shape, keys.root(5))
    draw(shape, state, torch.zeros(2, dtype=torch.int64), KEY)
    assert torch.equal(before, torch.get_rng_state())  # nothing comes from the global generator
    assert {v.dtype for v in state.values()} == {torch.float32}
    assert all(torch.equal(state[k], again[k]) for k in state)
    assert any(not torch.equal(state[k], other[k]) for k in state)
    for name, module in generator(shape).named_modules():
        if isinstance(module, torch.nn.Conv2d | torch.nn.ConvTranspose2d | torch.nn.Linear):
            weight = state[f"{name}.weight"]
            # 6 standard errors of the mean and of the deviation: about 1e-8 each
            assert abs(float(weight.mean())) < 6 * 0.02 / weight.numel() ** 0.5
            assert abs(float(weight.std()) / 0.02 - 1) < 6 / (2 * weight.numel()) ** 0.5
            assert float(state.get(f"{name}.bias", torch.zeros(1)).abs().max()) == 0


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.kind)
@pytest.mark.parametrize("rescale", ["fixed", "minmax"])
@pytest.mark.slow
def test_an_image_knows_its_key_place_and_label_only(shape: GeneratorShape, rescale: str) -> None:
    state, labels = steep(shape), keys.integers(KEY, 270, shape.classes)
    images = draw(shape, state, labels, keys.root(6), rescale)  # type: ignore[arg-type]
    assert images.shape == (270, shape.side, shape.side, shape.channels)
    assert images.dtype == torch.uint8
    assert float(images.float().std()) > 20
    few = draw(shape, state, labels[:5], keys.root(6), rescale)  # type: ignore[arg-type]
    assert torch.equal(few, images[:5])
    elsewhere = labels[:5].clone()
    elsewhere[1:] = 0
    assert torch.equal(draw(shape, state, elsewhere, keys.root(6), rescale)[0], images[0])  # type: ignore[arg-type]
    other_label = (labels + 1) % shape.classes
    assert not torch.equal(draw(shape, state, other_label[:5], keys.root(6), rescale), few)  # type: ignore[arg-type]
    assert not torch.equal(draw(shape, state, labels[:5], keys.root(7), rescale), few)  # type: ignore[arg-type]
    assert len(draw(shape, state, labels[:0], KEY)) == 0
    if rescale == "minmax":
        assert images.flatten(1).amin(1).eq(0).all()
        assert images.flatten(1).amax(1).eq(255).all()


def test_batches_are_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = SHAPES[0]
    labels = torch.arange(20) % 10
    whole = draw(shape, steep(shape), labels, KEY)
    monkeypatch.setattr(generators, "DRAWN_AT_ONCE", 7)
    assert torch.equal(draw(shape, steep(shape), labels, KEY), whole)


def test_several_generators_own_consecutive_classes() -> None:
    shape = GeneratorShape("small", 6, 20, 16, 1, split=3)
    state, labels = steep(shape), torch.tensor([5, 0, 3, 1, 2, 4, 0])
    together = draw(shape, state, labels, KEY)
    for part in range(3):
        own = {name.split(".", 1)[1]: v for name, v in state.items() if name.startswith(f"{part}.")}
        alone = draw(shape.one(), own, labels % 2, KEY)
        mine = labels // 2 == part
        assert torch.equal(together[mine], alone[mine])
        assert not torch.equal(together[~mine], alone[~mine])


def test_fixed_scale() -> None:
    shape = GeneratorShape("weak", 2, 8, 16, 1)
    state = {k: torch.zeros_like(v) if "body" in k else v for k, v in init(shape, KEY).items()}
    for value, wanted in (
        (0.0, 128),
        (50.0, 255),
        (-50.0, 0),
        (0.5, round((torch.tensor(0.5).tanh().item() + 1) * 127.5)),
    ):
        last = max(name for name in state if name.endswith("bias") and "body" in name and state[name].numel() == 1)
        images = draw(shape, state | {last: torch.full((1,), value)}, torch.tensor([0]), KEY)
        assert images.eq(wanted).all()


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"kind": "strong", "side": 16}, "generator-side"),
        ({"kind": "small", "side": 18}, "generator-side"),
    ],
)
def test_shapes_that_cannot_be(settings: dict[str, object], code: str) -> None:
    with pytest.raises(ConfigError) as refused:
        GeneratorShape(**({"kind": "weak", "classes": 10, "noise": 64} | settings))  # type: ignore[arg-type]
    assert refused.value.code == code
