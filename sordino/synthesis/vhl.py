"""VHL, virtual homogeneity learning. Tang, Zhang, Shi, He, Han and Chu, ICML 2022.

All clients hold the same images of pure noise, drawn by an untrained generator. These have classes of their own, and
the features of real images are pulled towards those of noise images of the same class number.

Deviations: noise images are scaled like the data, not by 0.5 and 0.25. The server sends the seed of the set.

Noise images. `stylegan` has the architecture of StyleGAN2 (Karras et al., CVPR 2020) with random weights. A class is
a mean latent and, per layer, a mean of the injected noise; its images scatter around both. `random_conv` is a small
stand-in without styles. Neither has seen any data.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import ceil, log2, sqrt
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from sordino import keys, tree
from sordino.algorithms.fedavg import Client, FedAvg, Server, Up
from sordino.algorithms.optional import FitsData, Home, OtherReads, OwnLoss, PublicFacts, PublicTensors
from sordino.errors import ConfigError
from sordino.keys import Key
from sordino.synthesis import generators
from sordino.tasks.losses import supervised_contrast
from sordino.types import Examples, Params, Shard, Task


@dataclass(frozen=True)
class VHL(FedAvg, OwnLoss, FitsData, PublicTensors, OtherReads, name="vhl", takes_mean=True, carries_statistics=True):
    noise_batch: int = 64  # noise images in every step
    per_class: int = 2000
    source: Source = "stylegan"
    width: int = 512  # of the generator
    noise_weight: float = 1.0
    pull: float = 1.0
    among_noise: float = 0.1
    pull_epochs: int = 5  # first epochs of a round, in which features are pulled
    temperature: float = 0.07
    _shape: tuple[int, ...] = ()

    heads = 2  # noise images have classes of their own
    wants = "single examples"  # its loss joins them with noise images

    def fitted(self, known: PublicFacts) -> VHL:
        shape = known.shape
        if len(shape) != 3:
            raise ConfigError(
                f"vhl over examples of shape {'x'.join(map(str, shape))}",
                why="vhl trains on artificial images beside the clients' own examples, so these must be images too",
                fix="use another data.source, or another algorithm",
                code="not-images",
            )
        return replace(self, _shape=(*shape, known.classes))

    def public_tensors(self, before: Any, home: Home) -> Params:
        return {"seed": torch.tensor(keys.signed(keys.word(keys.fold(home.key, "vhl"))))}

    def public_examples(self, task: Task, tensors: Mapping[str, Tensor], size: int, key: Key) -> Examples:
        side, _, channels, classes = self._shape
        seed, device = int(tensors["seed"]) % (1 << 64), torch.get_default_device()
        return _made(classes, self.per_class, side, channels, seed, self.source, self.width, device)

    def local(self, task: Task, down: Server, c: Client, shard: Shard, key: Key) -> tuple[Up, Client]:
        walk = self.walk(down.x, self.rate(down.round, c.participations), statistics=task.statistics)
        each = self.work.count(shard.size) // (self.work.epochs or 1)  # steps of an epoch
        for step, both in enumerate(shard.mixed(self.work, key, self.noise_batch)):
            walk(both.joint(partial(self._loss, task, step < each * self.pull_epochs), walk.y))
        return Up(tree.sub(walk.y, down.x)), Client(c.participations + 1)

    def passes(self, size: int) -> float:
        return super().passes(size) + self.work.count(size) * self.noise_batch

    def _loss(self, task: Task, pulls: bool, params: Params, own: Examples, noise: Examples, draws: Tensor) -> Tensor:
        n = len(own.y)
        z = task.features(params, torch.cat([own.x, noise.x]), draws)
        logits = task.head(params, z)
        total = torch.nn.functional.cross_entropy(logits[:n], own.y)
        total = total + self.noise_weight * torch.nn.functional.cross_entropy(logits[n:], noise.y + task.labels)
        if pulls:
            both = torch.cat([z[:n], z[n:].detach()])
            total = total + self.pull * supervised_contrast(both, torch.cat([own.y, noise.y]), self.temperature)
            total = total + self.among_noise * supervised_contrast(z[n:], noise.y, self.temperature)
        return total


waiting = logging.getLogger("sordino.waiting")  # shown by the command line

Source = Literal["stylegan", "random_conv"]
AT_ONCE = 100
LEAK = 2**0.5  # keeps the variance through a leaky ReLU


@dataclass(frozen=True)
class Latents:
    """Size of a latent vector, and standard deviations of class means and of the images within a class."""

    size: int
    between: float
    within: float


FEW, MANY = Latents(64, 0.3, 0.3), Latents(256, 0.5, 0.2)  # as published for 10 and for 100 classes


@lru_cache(maxsize=2)
def _made(
    classes: int, per_class: int, side: int, channels: int, key: int, source: Source, width: int, device: torch.device
) -> Examples:
    """Noise images with labels on the default device, the same for all clients and so made once in a process."""
    return Examples(*noise_set(classes, per_class, side, channels, key, source, width=width))


def noise_set(
    classes: int,
    per_class: int,
    side: int,
    channels: int,
    key: keys.Key,
    source: Source = "stylegan",
    *,
    width: int = 512,
) -> tuple[Tensor, Tensor]:
    """Noise images, uint8 [n, h, w, c], and labels, class by class. `width`: number of feature maps (`random_conv` has
    64); time grows with its square.
    """
    latents = FEW if classes <= 50 else MANY
    made = []
    with torch.no_grad():
        draw = SOURCES[source](classes, latents, side, channels, keys.fold(key, source), width)
        means = latents.between * generators.normal(keys.generator(keys.fold(key, "means")), classes, latents.size)
        for c in range(classes):
            waiting.info("draws images of noise, once for all clients: class %d of %d", c + 1, classes)
            draws = keys.generator(keys.fold(key, "class", c))
            for start in range(0, per_class, AT_ONCE):
                count = min(AT_ONCE, per_class - start)
                scatter = generators.normal(draws, count, latents.size)
                x = draw(c, means[c] + latents.within * scatter, draws)
                made.append(generators.pixels(torch.nn.functional.interpolate(x, (side, side), mode="area")))
    return torch.cat(made), torch.arange(classes).repeat_interleave(per_class)


Draw: TypeAlias = "Callable[[int, Tensor, torch.Generator], Tensor]"


def _doublings(side: int) -> int:
    """Number of doublings from 4x4 to at least the side."""
    return max(0, ceil(log2(side / 4)))


def _weights(key: keys.Key, place: str, *shape: int) -> Tensor:
    """Random weights, scaled so that outputs have the variance of inputs."""
    fan = torch.Size(shape[1:]).numel()
    return generators.normal(keys.generator(keys.fold(key, place)), *shape) / sqrt(fan)


def _doubled(x: Tensor) -> Tensor:
    return torch.nn.functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)


def _leaky(x: Tensor) -> Tensor:
    return torch.nn.functional.leaky_relu(x, 0.2) * LEAK


def _stylegan(classes: int, latents: Latents, side: int, channels: int, key: keys.Key, width: int) -> Draw:
    """A StyleGAN2: styles scale the input of every convolution and are divided out of its output; images are summed
    over the resolutions.
    """
    doublings = _doublings(side)
    layers = 1 + 2 * doublings
    mapping = _weights(key, "mapping", latents.size, latents.size)
    constant = generators.normal(keys.generator(keys.fold(key, "constant")), 1, width, 4, 4)
    styles = [_weights(key, f"style{i}", width, latents.size) for i in range(layers)]
    filters = [_weights(key, f"filter{i}", width, width, 3, 3) for i in range(layers)]
    shades = [_weights(key, f"shade{i}", width, latents.size) for i in range(doublings + 1)]
    colours = [_weights(key, f"colour{i}", channels, width, 1, 1) for i in range(doublings + 1)]
    levels = spread_rows(classes, layers, keys.fold(key, "levels"))

    def draw(c: int, z: Tensor, draws: torch.Generator) -> Tensor:
        w = _leaky((z * torch.rsqrt(z.square().mean(1, True) + 1e-8)) @ mapping.T)
        x, image = constant.expand(len(z), -1, -1, -1), torch.zeros(())
        for i in range(layers):
            x = _doubled(x) if i % 2 else x
            style = 1 + w @ styles[i].T
            x = torch.nn.functional.conv2d(x * style[:, :, None, None], filters[i], padding=1)
            power = style.square() @ filters[i].square().sum((2, 3)).T
            x = x * torch.rsqrt(power + 1e-8)[:, :, None, None]
            noise = generators.normal(draws, *x.shape)
            x = _leaky(x + float(levels[c, i]) + 0.1 / layers * noise)
            if i % 2 == 0:
                shade = 1 + w @ shades[i // 2].T
                coloured = torch.nn.functional.conv2d(x * shade[:, :, None, None], colours[i // 2])
                image = (_doubled(image) if i else image) + coloured
        return image / image.new_tensor(doublings + 1.0).sqrt() / 2

    return draw


def spread_rows(classes: int, layers: int, key: keys.Key) -> Tensor:
    """Random unit vectors by class, optimised by 500 gradient steps for nearly uncorrelated columns."""
    rows = generators.normal(keys.generator(key), classes, layers).requires_grad_()
    others = 1 - torch.eye(layers)
    optimiser = torch.optim.SGD([rows], lr=0.5, momentum=0.9)
    with torch.enable_grad():
        for _ in range(500):
            unit = torch.nn.functional.normalize(rows)
            loss = ((unit.T @ unit).square() * others).mean() / max(1, classes - 1)
            (rows.grad,) = torch.autograd.grad(loss, [rows])
            optimiser.step()
    return torch.nn.functional.normalize(rows).detach()


def _random_conv(classes: int, latents: Latents, side: int, channels: int, key: keys.Key, width: int) -> Draw:
    width, doublings = min(width, 64), _doublings(side)
    first = _weights(key, "first", width * 16, latents.size)
    filters = [_weights(key, f"filter{i}", width, width, 3, 3) for i in range(doublings)]
    last = _weights(key, "last", channels, width, 3, 3)

    def draw(c: int, z: Tensor, draws: torch.Generator) -> Tensor:
        x = _leaky((torch.nn.functional.normalize(z) * sqrt(latents.size)) @ first.T).view(len(z), width, 4, 4)
        for weight in filters:
            x = _leaky(torch.nn.functional.conv2d(_doubled(x), weight, padding=1))
        return torch.tanh(torch.nn.functional.conv2d(x, last, padding=1))

    return draw


SOURCES: dict[str, Callable[..., Draw]] = {"stylegan": _stylegan, "random_conv": _random_conv}
