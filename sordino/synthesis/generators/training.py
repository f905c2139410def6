"""Training of ACGAN (Odena, Olah and Shlens, ICML 2017), the generator of SlaugFL's first scenario, in its
non-saturating form on logits.

The discriminator outputs whether an image is real, s, and its class, q. Each step trains the generator, then the
discriminator on the same images. Classes are balanced by showing the images of small ones more often.

Training of a generator on class prototypes alone: SlaugFL's second scenario (IEEE Transactions on Mobile Computing,
2024).

Images of a class, seen through the extractor that the class's prototype came from, should have that prototype as their
mean: a maximum mean discrepancy with a linear kernel. Means alone would give a single image per class, so images of one
label must also differ in proportion to their noise (Mao et al., "Mode seeking generative adversarial networks", CVPR
2019): 1/(ratio + 1e-5) is made small. The formula as printed makes the ratio itself small, which rewards equal images;
`sign = "literal"` implements that and shows the collapse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from sordino import keys
from sordino.errors import ConfigError, DataError
from sordino.synthesis import generators
from sordino.synthesis.generators import BETAS, GeneratorShape, GeneratorState, Trained

Score: TypeAlias = Callable[[Tensor, Tensor], float]
SCORED = 32  # images per class
ACGAN_LOGGED = ("generator", "epoch", "generator_loss", "discriminator_loss", "accuracy_on_fakes", "score")


@dataclass(frozen=True)
class AcganSettings:
    """Settings of ACGAN's training."""

    epochs: int = 500
    batch: int = 64
    lr: float = 2e-4
    weight_decay: float = 0.0
    checks: int = 10


def generator_loss(s: Tensor, q: Tensor, y: Tensor) -> Tensor:
    return (torch.nn.functional.softplus(-s).mean() + torch.nn.functional.cross_entropy(q, y)) / 2


def discriminator_loss(
    s_real: Tensor, q_real: Tensor, y_real: Tensor, s_fake: Tensor, q_fake: Tensor, y_fake: Tensor
) -> Tensor:
    real = torch.nn.functional.softplus(-s_real).mean() + torch.nn.functional.cross_entropy(q_real, y_real)
    fake = torch.nn.functional.softplus(s_fake).mean() + torch.nn.functional.cross_entropy(q_fake, y_fake)
    return (real + fake) / 4


def train_acgan(
    shape: GeneratorShape,
    images: Tensor,
    labels: Tensor,
    settings: AcganSettings,
    key: keys.Key,
    score: Score | None = None,
) -> Trained:
    """Train a generator on uint8 images, on their device. `score(images, labels)` measures the quality of drawn images;
    the best of the scored states is kept.
    """
    _refuse_missing(shape, labels)
    if shape.split == 1:
        return _train(shape, images, labels, settings, key, score)
    state: GeneratorState = {}
    log: list[Mapping[str, float]] = []
    for part in range(shape.split):
        first = part * shape.per
        own = (labels >= first) & (labels < first + shape.per)
        given = None if score is None else lambda images, labels, first=first: score(images, labels + first)
        one = _train(shape.one(), images[own], labels[own] - first, settings, keys.fold(key, part), given)
        state |= {f"{part}.{name}": value for name, value in one.state.items()}
        log += [{"generator": part, **row} for row in one.log]
    return Trained(state, tuple(log))


def _refuse_missing(shape: GeneratorShape, labels: Tensor) -> None:
    missing = set(range(shape.classes)) - set(labels.tolist())
    if missing:
        raise DataError(
            f"{len(missing)} of {shape.classes} classes have no images to train the generator on: "
            f"{', '.join(map(str, sorted(missing)[:5]))}",
            why="without images of a class, the generator would draw arbitrary pictures for it",
            fix="give candidates for every class, or leave these classes out; if algorithm.threshold removed the "
            "candidates, raise it",
            code="generator-class-missing",
        )


def _train(
    shape: GeneratorShape, images: Tensor, labels: Tensor, settings: AcganSettings, key: keys.Key, score: Score | None
) -> Trained:
    x = (images.float() / 127.5 - 1).movedim(-1, 1).contiguous(memory_format=torch.channels_last)
    source = keys.generator(keys.fold(key, "draws"))
    judge = generators.discriminator(shape)
    maker = generators.filled(generators.generator(shape), generators.init(shape, keys.fold(key, "generator")))
    judge = generators.filled(judge, generators.fresh_state(judge, keys.fold(key, "discriminator")))
    judge.drop_by(source)
    makes, judges = _adam(maker, settings), _adam(judge, settings)
    classes = torch.arange(shape.classes).repeat_interleave(SCORED)
    due = {settings.epochs * (i + 1) // settings.checks for i in range(settings.checks)} if score is not None else set()
    best: tuple[float, GeneratorState] = (float("-inf"), {})
    log, batch = [], min(settings.batch, shape.classes * int(labels.bincount().max()))
    for epoch in range(1, settings.epochs + 1):
        order = balanced(labels, shape.classes, epoch, keys.fold(key, "order"))
        seen = []
        for at in torch.split(order, batch):
            if len(at) < batch:  # norms of a small last batch would be unreliable; its images change by epoch
                break
            wanted = generators.integers(source, shape.classes, batch)
            fakes = maker(generators.normal(source, batch, shape.noise), wanted)
            s, q = judge(fakes)
            made = generator_loss(s, q, wanted)
            s_real, q_real = judge(x[at])
            judged = discriminator_loss(s_real, q_real, labels[at], s, q, wanted)  # one pass serves both
            for_maker, for_judge = _gradient(made, maker, keep=True), _gradient(judged, judge)
            _step(makes, for_maker)
            _step(judges, for_judge)
            seen.append(torch.stack([made.detach(), judged.detach(), (q.argmax(1) == wanted).float().mean()]))
        means = torch.stack(seen).mean(0).tolist()
        row = dict(zip(("generator_loss", "discriminator_loss", "accuracy_on_fakes"), means, strict=True))
        if epoch in due:
            assert score is not None
            state = generators.read(maker)
            row["score"] = score(generators.draw(shape, state, classes, keys.fold(key, "scored")), classes)
            best = max(best, (row["score"], state), key=lambda pair: pair[0])
        log.append({"epoch": epoch, **row})
    return Trained(best[1] or generators.read(maker), tuple(log))


def balanced(labels: Tensor, classes: int, epoch: int, key: keys.Key) -> Tensor:
    """Indices of an epoch's images in random order, as many of each class as the largest has. Images of a small class
    repeat.
    """
    members = [torch.nonzero(labels == c).flatten() for c in range(classes)]
    most = max(map(len, members))
    cycle = torch.arange(epoch * most, (epoch + 1) * most)
    every = torch.cat([own[cycle % len(own)] for own in members])
    return every[keys.permutation(keys.fold(key, epoch), len(every))]


def _adam(net: nn.Module, settings: AcganSettings) -> torch.optim.Optimizer:
    return torch.optim.Adam(net.parameters(), settings.lr, BETAS, weight_decay=settings.weight_decay, fused=True)


def _gradient(loss: Tensor, net: nn.Module, keep: bool = False) -> list[Tensor]:
    """Gradients with respect to the parameters of this network alone."""
    return list(torch.autograd.grad(loss, list(net.parameters()), retain_graph=keep))


def _step(optimiser: torch.optim.Optimizer, gradients: list[Tensor]) -> None:
    for p, g in zip(optimiser.param_groups[0]["params"], gradients, strict=True):
        p.grad = g
    optimiser.step()


Extract: TypeAlias = Callable[[Tensor], Tensor]
AUTO = 0.03  # of the discrepancy before any step
MATCHING_LOGGED = ("step", "loss", "discrepancy", "diversity")


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


def train_matching(
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
            log.append(dict(zip(MATCHING_LOGGED, (step, *means), strict=True)))
            if means[0] > (1 - settings.gain) * before:
                break
            before, window = means[0], []
    return Trained(generators.read(maker), tuple(log))


def visited(classes: Tensor, count: int, key: keys.Key) -> Tensor:
    """Labels of one step: random classes, whose frequencies differ by one at most, each at least twice."""
    many = min(len(classes), max(1, count // 2))
    chosen = classes[keys.permutation(key, len(classes))[:many]]
    return chosen[torch.arange(count) % many]
