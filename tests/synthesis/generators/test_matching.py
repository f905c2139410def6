"""Mean matching: what it is zero for, whom it trains, and which sign keeps images apart."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sordino import keys
from sordino.errors import ConfigError, DataError
from sordino.synthesis.generators import GeneratorShape, draw, init
from sordino.synthesis.generators.training import (
    ClassTarget,
    MatchingSettings,
    discrepancy,
    diversity,
    train_matching,
    visited,
)

KEY = keys.root(12)
SHAPE = GeneratorShape("weak", 4, 16, 16, 1)


class Extractor(nn.Module):
    """Random features, with a norm in eval mode as a device's model might have one, and a counter of its passes."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 5, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 12))
        for name, p in self.named_parameters():
            p.data = torch.randn(p.shape, generator=keys.generator(keys.fold(KEY, seed, name))) / p[0].numel() ** 0.5
        self.eval()
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        assert bool((x >= 0).all())
        assert bool((x <= 1).all())
        self.passes += 1
        z: Tensor = self.body(x)
        return z


ONE, TWO = Extractor(1), Extractor(2)


def targets(*extractors: Extractor) -> list[ClassTarget]:
    """Of every class, the features of one picture."""
    found = []
    for c in range(4):
        picture = keys.uniform(keys.fold(KEY, "picture", c), 256).float().reshape(1, 1, 16, 16) * (c + 1) / 4
        extract = extractors[c % len(extractors)]
        found.append(ClassTarget(c, extract(picture)[0].detach(), extract))
    return found


def test_zero_where_the_means_are_equal() -> None:
    x = keys.uniform(KEY, 12 * 256).reshape(12, 1, 16, 16).float()
    y = torch.tensor([0, 1, 2] * 4)
    own = [ClassTarget(c, ONE(x[y == c]).mean(0).detach(), ONE) for c in range(3)]
    assert float(discrepancy(x, y, own).detach()) < 1e-9
    moved = [own[0], own[1], own[2]._replace(mean=own[2].mean + 0.5)]
    assert abs(float(discrepancy(x, y, moved).detach()) - 12 * 0.25) < 1e-4  # squares, summed over dimensions
    # several prototypes of a class are several terms; classes that the batch does not show are none
    assert abs(float(discrepancy(x, y, [*moved, moved[2], ClassTarget(7, own[0].mean, ONE)]).detach()) - 6) < 1e-4


def test_each_class_is_seen_through_its_own_extractor_once() -> None:
    x, y = keys.uniform(KEY, 8 * 256).reshape(8, 1, 16, 16).float(), torch.arange(8) % 4
    mixed = targets(ONE, TWO)
    ONE.passes = TWO.passes = 0
    found = float(discrepancy(x, y, mixed).detach())
    assert (ONE.passes, TWO.passes) == (1, 1)
    by_hand = sum(
        float((p.extract(x[y == p.label]).mean(0) - p.mean).square().sum().detach()) for p in mixed
    )  # one pass per class
    assert abs(found - by_hand) < 1e-4 * by_hand
    swapped = [p._replace(extract=TWO if p.extract is ONE else ONE) for p in mixed]
    assert abs(float(discrepancy(x, y, swapped).detach()) - by_hand) > 0.01 * by_hand


@pytest.mark.slow
def test_only_the_generator_learns() -> None:
    before = [{k: v.clone() for k, v in e.state_dict().items()} for e in (ONE, TWO)]
    global_state = torch.get_rng_state()
    settings = MatchingSettings(steps=5, batch=16)
    one, again = (
        train_matching(SHAPE, targets(ONE, TWO), settings, KEY),
        train_matching(SHAPE, targets(ONE, TWO), settings, KEY),
    )
    assert torch.equal(global_state, torch.get_rng_state())
    assert all(torch.equal(one.state[k], again.state[k]) for k in one.state)
    start = init(SHAPE, keys.fold(KEY, "generator"))
    assert all(not torch.equal(one.state[k], v) for k, v in start.items() if v.numel() > 1)
    for extractor, kept in zip((ONE, TWO), before, strict=True):
        assert all(p.grad is None for p in extractor.parameters())
        assert all(torch.equal(v, kept[k]) for k, v in extractor.state_dict().items())


def test_diversity_falls_as_images_part() -> None:
    r1, r2 = keys.normal(KEY, 40).reshape(2, 20), keys.normal(keys.root(2), 40).reshape(2, 20)
    x1 = keys.uniform(KEY, 512).reshape(2, 1, 16, 16)
    near, far = x1 + 0.1, x1 + 0.3
    assert diversity(x1, far, r1, r2) < diversity(x1, near, r1, r2)
    assert diversity(x1, far, r1, r2, "literal") > diversity(x1, near, r1, r2, "literal")
    ratio = 0.1 / float((r1 - r2).abs().mean())
    assert abs(float(diversity(x1, near, r1, r2)) - 1 / (ratio + 1e-5)) < 1e-6
    for sign, way in (("reciprocal", -1), ("literal", 1)):
        x2 = near.clone().requires_grad_()
        (g,) = torch.autograd.grad(diversity(x1, x2, r1, r2, sign), [x2])
        assert (torch.sign(g) == way).all()  # x2 is above x1: down the gradient means further away, or nearer
    assert diversity(x1, x1, r1, r2) == pytest.approx(1e5)  # equal images are no division by zero


def test_labels_of_a_step() -> None:
    few = visited(torch.tensor([2, 5, 9]), 10, KEY)
    assert sorted(few.bincount()[[2, 5, 9]].tolist()) == [3, 3, 4]
    many = visited(torch.arange(100), 32, KEY)
    assert sorted(many.bincount()[many.bincount() > 0].tolist()) == [2] * 16
    seen = torch.cat([visited(torch.arange(100), 32, keys.fold(KEY, i)) for i in range(60)])
    assert len(set(seen.tolist())) == 100  # missed by one class with probability 100 * 0.84^60 = 0.003; fixed key


@pytest.mark.slow
def test_diversity_weighs_what_it_should() -> None:
    def first(weight: float | None) -> dict[str, float]:
        return dict(
            train_matching(SHAPE, targets(ONE), MatchingSettings(steps=1, batch=16, diversity=weight), KEY).log[0]
        )

    auto, none, two = first(None), first(0.0), first(2.0)
    assert none["loss"] == pytest.approx(none["discrepancy"])
    assert two["loss"] == pytest.approx(two["discrepancy"] + 2 * two["diversity"])
    assert auto["loss"] == pytest.approx(auto["discrepancy"] * (1 + 0.03 * auto["diversity"]))


@pytest.mark.slow
def test_it_stops_where_nothing_is_gained() -> None:
    stopped = train_matching(SHAPE, targets(ONE), MatchingSettings(steps=60, batch=8, lr=0.0, plateau=5), KEY)
    assert [row["step"] for row in stopped.log][:1] == [5]
    assert stopped.log[-1]["step"] < 60
    learning = train_matching(SHAPE, targets(ONE), MatchingSettings(steps=20, batch=8, lr=1e-3, plateau=5), KEY)
    assert [row["step"] for row in learning.log] == [5, 10, 15, 20]


def spread(state: dict[str, Tensor]) -> float:
    """Mean deviation of a pixel over images of a class, in -1..1."""
    labels = torch.arange(4).repeat_interleave(32)
    x = draw(SHAPE, state, labels, KEY).float() / 127.5 - 1
    return float(x.reshape(4, 32, -1).std(1).mean())


@pytest.mark.slow
def test_the_sign_decides_between_collapse_and_variety() -> None:
    matched = []
    for sign, weight in (("reciprocal", None), ("literal", 5_000.0)):
        settings = MatchingSettings(steps=60, batch=32, lr=2e-3, diversity=weight, sign=sign)  # type: ignore[arg-type]
        made = train_matching(SHAPE, targets(ONE, TWO), settings, KEY)
        matched.append(spread(made.state))
    assert matched[0] > 0.2
    assert matched[1] < 0.01


def test_several_generators() -> None:
    shape = GeneratorShape("small", 4, 8, 16, 1, split=2)
    made = train_matching(shape, targets(ONE)[:2], MatchingSettings(steps=2, batch=8), KEY)
    start = init(shape, keys.fold(KEY, "generator"))
    same = {k: torch.equal(made.state[k], v) for k, v in start.items() if k.endswith("weight")}
    assert all(equal == k.startswith("1.") for k, equal in same.items())  # the second one's classes have no prototype


def test_no_prototypes() -> None:
    with pytest.raises(DataError) as refused:
        train_matching(SHAPE, [], MatchingSettings(), KEY)
    assert refused.value.code == "no-prototypes"


def test_an_extractor_that_lets_no_gradient_through() -> None:
    blind = [p._replace(extract=lambda x: ONE(x).detach()) for p in targets(ONE)]
    with pytest.raises(ConfigError) as refused:
        train_matching(SHAPE, blind, MatchingSettings(steps=1), KEY)
    assert refused.value.code == "extractor-without-gradient"
