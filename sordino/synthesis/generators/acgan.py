"""Training of ACGAN (Odena, Olah and Shlens, ICML 2017), the generator of SlaugFL's first scenario, in its
non-saturating form on logits.

The discriminator outputs whether an image is real, s, and its class, q. Each step trains the generator, then
the discriminator on the same images. Classes are balanced by showing the images of small ones more often.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from sordino import keys
from sordino.errors import DataError
from sordino.synthesis import generators
from sordino.synthesis.generators import BETAS, GeneratorShape, GeneratorState, Trained

Score: TypeAlias = Callable[[Tensor, Tensor], float]
SCORED = 32  # images per class
LOGGED = ("generator", "epoch", "generator_loss", "discriminator_loss", "accuracy_on_fakes", "score")


@dataclass(frozen=True)
class AcganSettings:
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


def train(
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
            if len(at) < batch:  # the norms of a small rest would be a lottery; who falls in it changes by epoch
                break
            wanted = generators.integers(source, shape.classes, batch)
            fakes = maker(generators.normal(source, batch, shape.noise), wanted)
            s, q = judge(fakes)
            made = generator_loss(s, q, wanted)
            s_real, q_real = judge(x[at])
            judged = discriminator_loss(s_real, q_real, labels[at], s, q, wanted)  # one look at the fakes serves both
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
