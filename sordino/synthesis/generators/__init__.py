"""Networks that draw labelled images or features from noise: SlaugFL's conditional image generators (IEEE Transactions
on Mobile Computing, 2024). A generator's state is a plain dict of float32 tensors.

`strong` is the generator of ACGAN (Odena, Olah and Shlens, ICML 2017) on 32x32 images, `weak` the one of FedFTG (Zhang
et al., CVPR 2022), `small` one for 16x16 images and training on a CPU. Networks are built on the meta device and filled
from a state: no random number is drawn without a key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino import keys
from sordino.device import CPU, here
from sordino.errors import ConfigError, NonFiniteModel

DRAWN_AT_ONCE = 256
GeneratorState: TypeAlias = dict[str, Tensor]
BETAS = (0.5, 0.999)  # of Adam, by which generators are trained


class Trained(NamedTuple):
    """A trained generator's state and log: one mapping per epoch or window of steps."""

    state: GeneratorState
    log: tuple[Mapping[str, float], ...]


@dataclass(frozen=True)
class GeneratorShape:
    """Kind, input and output of a generator. `split`: number of generators among which the classes are divided, with
    consecutive ids each.
    """

    kind: Literal["strong", "weak", "small"]
    classes: int
    noise: int
    side: int = 32
    channels: int = 3
    split: int = 1

    def __post_init__(self) -> None:
        if self.side % 4 or self.side < 8 or (self.kind == "strong" and self.side != 32):
            raise ConfigError(
                f"a {self.kind!r} generator cannot make images of {self.side}x{self.side}",
                why="it doubles the size of an image a fixed number of times",
                fix='use side = 32 for "strong", and a multiple of 4, at least 8, for the others',
                code="generator-side",
            )
        assert self.classes % self.split == 0, "each generator draws as many classes"

    @property
    def per(self) -> int:
        """Number of classes of each generator."""
        return self.classes // self.split

    def one(self) -> GeneratorShape:
        return replace(self, classes=self.per, split=1)


class MixedInput(nn.Module):
    """Input layer that multiplies noise by an embedding of the label."""

    def __init__(self, shape: GeneratorShape) -> None:
        super().__init__()
        self.embed = nn.Embedding(shape.classes, shape.noise)

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        times: Tensor = self.embed(labels) * noise
        return times


class JoinedInput(nn.Module):
    """Input layer in which one half of the output is linear in the noise, the other half in the label."""

    def __init__(self, shape: GeneratorShape) -> None:
        super().__init__()
        self.classes, half = shape.classes, 64 * (shape.side // 4) ** 2
        self.noise, self.label = nn.Linear(shape.noise, half), nn.Linear(shape.classes, half)

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        one_hot = F.one_hot(labels, self.classes).to(noise.dtype)
        return torch.cat([self.noise(noise), self.label(one_hot)], 1)


class Generator(nn.Module):
    """Network that draws an image, or features, from noise and a label."""

    def __init__(self, mix: nn.Module, *body: nn.Module) -> None:
        super().__init__()
        self.mix, self.body = mix, nn.Sequential(*body, nn.Tanh())

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        """Images [n, c, h, w] in -1..1."""
        out: Tensor = self.body(self.mix(noise, labels))
        return out


class Several(nn.ModuleList):
    """Several generators of `per` consecutive classes each; the label of an image selects the generator."""

    def __init__(self, parts: list[nn.Module], per: int) -> None:
        super().__init__(parts)
        self.per = per

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        owner = labels // self.per
        places = [torch.nonzero(owner == i).flatten() for i in range(len(self))]
        made = [part(noise[at], labels[at] % self.per) for part, at in zip(self, places, strict=True) if len(at)]
        return torch.cat(made)[torch.argsort(torch.cat(places))]


def norm(width: int, running: bool = True) -> nn.BatchNorm2d:
    made = nn.BatchNorm2d(width, track_running_stats=running)
    made.num_batches_tracked = None  # an integer that only an average without momentum reads
    return made


def _doubled(inputs: int, outputs: int) -> nn.Module:
    return nn.ConvTranspose2d(inputs, outputs, 4, 2, 1, bias=False)


def _strong(shape: GeneratorShape) -> Generator:
    layers: list[nn.Module] = [nn.Linear(shape.noise, 384), nn.Unflatten(1, (384, 1, 1))]
    layers += [nn.ConvTranspose2d(384, 192, 4, bias=False), norm(192), nn.ReLU()]
    for inputs, outputs in ((192, 96), (96, 48)):
        layers += [_doubled(inputs, outputs), norm(outputs), nn.ReLU()]
    return Generator(MixedInput(shape), *layers, _doubled(48, shape.channels))


def _small(shape: GeneratorShape) -> Generator:
    side = shape.side // 4
    layers = [nn.Linear(shape.noise, 128 * side**2), nn.Unflatten(1, (128, side, side)), norm(128), nn.ReLU()]
    layers += [_doubled(128, 64), norm(64), nn.ReLU()]
    return Generator(MixedInput(shape), *layers, _doubled(64, shape.channels))


def _weak(shape: GeneratorShape) -> Generator:
    side = shape.side // 4
    layers: list[nn.Module] = [nn.Unflatten(1, (128, side, side)), norm(128)]
    for width in (128, 64):
        layers += [
            nn.Conv2d(128, width, 3, padding=1),
            norm(width),
            nn.LeakyReLU(0.2),
            nn.Upsample(None, 2),
        ]
    return Generator(JoinedInput(shape), *layers, nn.Conv2d(64, shape.channels, 3, padding=1))


KINDS: dict[str, Callable[[GeneratorShape], Generator]] = {"strong": _strong, "small": _small, "weak": _weak}


def generator(shape: GeneratorShape) -> nn.Module:
    """A generator on the meta device: its layers without weights."""
    with torch.device("meta"):
        return (
            KINDS[shape.kind](shape)
            if shape.split == 1
            else Several([generator(shape.one()) for _ in range(shape.split)], shape.per)
        )


def parameters(shape: GeneratorShape) -> int:
    """Number of trainable parameters; running statistics do not count."""
    return sum(p.numel() for p in generator(shape).parameters())


def init(shape: GeneratorShape, key: keys.Key) -> GeneratorState:
    return fresh_state(generator(shape), key)


def fresh_state(net: nn.Module, key: keys.Key) -> GeneratorState:
    """Initial state: weights N(0, 0.02), scales of norms N(1, 0.02), embeddings N(0, 1) as they multiply noise, biases
    and means 0, variances 1.
    """
    state = {}
    for path, module in net.named_modules():
        for name, value in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            place = f"{path}.{name}"
            if name == "weight":
                mean, std = float(isinstance(module, nn.BatchNorm2d)), 1.0 if isinstance(module, nn.Embedding) else 0.02
                z = normal(keys.generator(keys.fold(key, place)), *value.shape)
                state[place] = mean + std * z
            else:
                state[place] = torch.ones(value.shape) if name == "running_var" else torch.zeros(value.shape)
    return state


def filled(net: Any, state: GeneratorState) -> Any:
    """The network with a copy of the state, in the channels-last layout."""
    plan = net.state_dict()  # it records that no batches are counted, which a plain dict does not
    plan.update({name: value.clone() for name, value in state.items()})
    net.load_state_dict(plan, assign=True)
    return net.to(memory_format=torch.channels_last)


def read(net: nn.Module) -> GeneratorState:
    state = {k: v.detach().clone().contiguous() for k, v in net.state_dict().items()}
    if not all(bool(v.isfinite().all()) for v in state.values()):
        raise NonFiniteModel(
            "the generator is no longer finite",
            why="its training diverged: a weight became NaN or infinite",
            fix="lower the learning rate of the generator",
            code="generator-not-finite",
        )
    return state


@torch.no_grad()
def draw(
    shape: GeneratorShape,
    state: GeneratorState,
    labels: Tensor,
    key: keys.Key,
    rescale: Literal["fixed", "minmax"] = "fixed",
) -> Tensor:
    """One image per label, uint8 [n, h, w, c]. Image i depends on (key, i) and its label alone.

    `fixed` maps -1..1 to 0..255; `minmax` stretches every image to the whole range.
    """
    net = filled(generator(shape), state).eval()
    rows = keys.bits(key, len(labels))
    made = [torch.empty(0, shape.side, shape.side, shape.channels, dtype=torch.uint8)]
    for start in range(0, len(labels), DRAWN_AT_ONCE):
        at = slice(start, start + DRAWN_AT_ONCE)
        x = net(keys.normal(rows[at], shape.noise).float(), labels[at])
        made.append(pixels(x) if rescale == "fixed" else pixels(_stretched(x)))
    return torch.cat(made)


def pixels(x: Tensor) -> Tensor:
    """Images [n, c, h, w] from -1 to 1, converted to bytes [n, h, w, c]."""
    return ((x + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).movedim(1, -1).contiguous()


def _stretched(x: Tensor) -> Tensor:
    low, high = x.amin((1, 2, 3), True), x.amax((1, 2, 3), True)
    return 2 * (x - low) / (high - low).clamp_min(1e-6) - 1


# discriminator --------------------------------------------------------------------------------------------------------


class Halved(nn.Module):
    """Dropout with rate one half, by random bits from the random stream of its training."""

    source: torch.Generator

    def forward(self, x: Tensor) -> Tensor:
        drawn = words(self.source, -(-x.numel() // 8)).to(x.device)
        kept = drawn.view(torch.int8)[: x.numel()].as_strided(x.shape, x.stride()) >= 0
        return x * kept.to(x.dtype).mul_(2)


class Discriminator(nn.Module):
    """Discriminator: a logit for real against generated images, and logits of the classes."""

    def __init__(self, shape: GeneratorShape) -> None:
        super().__init__()
        widths = (16, 32, 64, 128, 256, 512) if shape.side > 16 else (16, 32, 64)
        layers: list[nn.Module] = []
        inputs, side = shape.channels, shape.side
        for i, width in enumerate(widths):
            stride = 2 if i % 2 == 0 else 1
            normed = [norm(width, running=False)] if i else []
            layers += [nn.Conv2d(inputs, width, 3, stride, 1, bias=False), *normed, nn.LeakyReLU(0.2), Halved()]
            inputs, side = width, -(-side // stride)
        self.body = nn.Sequential(*layers, nn.Flatten())
        self.real, self.label = nn.Linear(inputs * side**2, 1), nn.Linear(inputs * side**2, shape.classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.body(x)
        return self.real(z).flatten(), self.label(z)

    def drop_by(self, source: torch.Generator) -> None:
        for module in self.modules():
            if isinstance(module, Halved):
                module.source = source


def discriminator(shape: GeneratorShape) -> Discriminator:
    with torch.device("meta"):
        return Discriminator(shape)


def normal(source: torch.Generator, *shape: int) -> Tensor:
    return here(torch.randn(*shape, generator=source, device=CPU))


def uniform(source: torch.Generator, *shape: int) -> Tensor:
    return here(torch.rand(*shape, generator=source, device=CPU))


def integers(source: torch.Generator, below: int, *shape: int) -> Tensor:
    return here(torch.randint(below, shape, generator=source, device=CPU))


def words(source: torch.Generator, count: int) -> Tensor:
    """Integers of 64 random bits."""
    return here(torch.empty(count, dtype=torch.int64, device=CPU).random_(-(2**63), None, generator=source))
