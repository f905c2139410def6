"""Training of a generator on class prototypes alone: SlaugFL's second scenario (IEEE Transactions on Mobile Computing,
2024).

Images of a class, seen through the extractor that the class's prototype came from, should have that prototype as their
mean: a maximum mean discrepancy with a linear kernel. Means alone would give a single image per class, so images of one
label must also differ in proportion to their noise (Mao et al., "Mode seeking generative adversarial networks", CVPR
2019): 1/(ratio + 1e-5) is made small. The formula as printed makes the ratio itself small, which rewards equal images;
`sign = "literal"` implements that and shows the collapse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from sordino import keys
from sordino.errors import ConfigError, DataError
from sordino.synthesis import generators
from sordino.synthesis.generators import BETAS, GeneratorShape, Trained

Extract: TypeAlias = Callable[[Tensor], Tensor]
AUTO = 0.03  # of the discrepancy before any step
LOGGED = ("step", "loss", "discrepancy", "diversity")


class ClassTarget(NamedTuple):
    """Prototype of a class: its mean feature by `extract`, which maps images [n, c, h, w] in 0..1 to features [n, d]. A
    class may have several.
    """

    label: int
    mean: Tensor
    extract: Extract


@dataclass(frozen=True)
class MatchingSettings:
    """Settings of a generator's training. `diversity` is the weight of the diversity loss; None: 0.03 of the
    discrepancy at the first step. Training stops once `plateau` steps lower the mean loss by less than `gain`.
    """

    steps: int = 10_000
    batch: int = 64
    lr: float = 2e-4
    diversity: float | None = None
    sign: Literal["reciprocal", "literal"] = "reciprocal"
    plateau: int = 1_000
    gain: float = 0.01


SIGNS: dict[str, Callable[[Tensor], Tensor]] = {"reciprocal": lambda ratio: 1 / (ratio + 1e-5), "literal": lambda r: r}


def diversity(x1: Tensor, x2: Tensor, r1: Tensor, r2: Tensor, sign: str = "reciprocal") -> Tensor:
    """Diversity loss for images `x1`, `x2` of the same labels, drawn from noise `r1`, `r2`: small if images differ in
    proportion to their noise. `sign`: "literal" is the formula as printed, which rewards equal images.
    """
    return SIGNS[sign]((x1 - x2).abs().mean() / (r1 - r2).abs().mean())


def discrepancy(x: Tensor, labels: Tensor, prototypes: Sequence[ClassTarget]) -> Tensor:
    """Sum of squared distances between prototypes and the mean features of their classes in a batch of images in 0..1;
    one pass per extractor.
    """
    owners: dict[Extract, list[ClassTarget]] = {}
    for one in prototypes:
        owners.setdefault(one.extract, []).append(one)
    present = set(labels.tolist())
    total = x.new_zeros(())
    for extract, own in owners.items():
        classes = [one.label for one in own if one.label in present]
        if not classes:
            continue
        at = torch.nonzero(torch.isin(labels, torch.tensor(classes))).flatten()
        z, seen = extract(x[at]), labels[at]
        if x.requires_grad and not z.requires_grad:
            raise ConfigError(
                "the features of an extractor have no gradient with respect to its images",
                why="the generator learns a class only through this gradient",
                fix="use an extractor that is differentiable in the images",
                code="extractor-without-gradient",
            )
        for one in own:
            if one.label in present:
                total = total + (z[seen == one.label].mean(0) - one.mean.to(z)).square().sum()
    return total


def train(
    shape: GeneratorShape,
    prototypes: Sequence[ClassTarget],
    settings: MatchingSettings,
    key: keys.Key,
) -> Trained:
    """Train a generator on the classes that have a prototype; its images of other classes are arbitrary."""
    if not prototypes:
        raise DataError(
            "there are no prototypes to train a generator on",
            why="no client was asked for one, or every client declined",
            fix="let more clients take part, or let a prototype be made of fewer images",
            code="no-prototypes",
        )

    maker = generators.filled(generators.generator(shape), generators.init(shape, keys.fold(key, "generator")))
    weights = list(maker.parameters())
    optimiser = torch.optim.Adam(weights, settings.lr, BETAS, fused=True)
    source = keys.generator(keys.fold(key, "noise"))
    classes = torch.tensor(sorted({one.label for one in prototypes}))
    half = max(1, settings.batch // 2)
    scale, window, before, log = settings.diversity, [], float("inf"), []
    for step in range(1, settings.steps + 1):
        y = visited(classes, half, keys.fold(key, "labels", step))
        r1, r2 = (generators.normal(source, half, shape.noise) for _ in range(2))
        x = maker(torch.cat([r1, r2]), y.repeat(2))
        matched = discrepancy((x + 1) / 2, y.repeat(2), prototypes)
        spread = diversity(x[:half], x[half:], r1, r2, settings.sign)
        if scale is None:
            scale = AUTO * float(matched.detach())
        loss = matched + scale * spread
        found = torch.autograd.grad(loss, weights, allow_unused=True)  # of several generators, some may draw nothing
        for p, g in zip(weights, found, strict=True):
            p.grad = g
        optimiser.step()
        window.append(torch.stack([loss.detach(), matched.detach(), spread.detach()]))
        if len(window) == settings.plateau or step == settings.steps:
            means = torch.stack(window).mean(0).tolist()
            log.append(dict(zip(LOGGED, (step, *means), strict=True)))
            if means[0] > (1 - settings.gain) * before:
                break
            before, window = means[0], []
    return Trained(generators.read(maker), tuple(log))


def visited(classes: Tensor, count: int, key: keys.Key) -> Tensor:
    """Labels of one step: random classes, whose frequencies differ by one at most, each at least twice."""
    many = min(len(classes), max(1, count // 2))
    chosen = classes[keys.permutation(key, len(classes))[:many]]
    return chosen[torch.arange(count) % many]
