"""Built-in networks: each takes a float image batch [n, c, h, w] or a table [n, features] and gives logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from sordino import keys
from sordino.errors import BELOW_ONE, ConfigError, DataError, Range, check_range
from sordino.tasks.transformer import transformer


class Dropout(nn.Module):
    """Dropout whose mask is a function of one key per example: the same in a loop, in a stack of clients and in another
    process.

    `whole_channels` drops feature maps. Masks do not depend on the data, so they cost no privacy.
    """

    def __init__(self, p: float = 0.5, whole_channels: bool = False) -> None:
        super().__init__()
        check_range("dropout", p, BELOW_ONE, "dropout-out-of-range", why="it is a probability")
        self.p, self.whole_channels = p, whole_channels
        self.keys: Tensor | None = None
        self.place = ""
        self.keyed = True  # False: masks come from torch's own generator

    def forward(self, x: Tensor) -> Tensor:
        if not self.keyed:
            return (torch.feature_dropout if self.whole_channels else torch.dropout)(x, self.p, self.training)
        mask = self.mask(x, self.keys) if self.training else None
        return x if mask is None else x * mask

    def mask(self, x: Tensor, draws: Tensor | None) -> Tensor | None:
        """The mask that `x` is multiplied by; None where nothing is dropped."""
        if draws is None or self.p == 0:
            return None
        shape = x.shape[:2] + (1,) * (x.dim() - 2) if self.whole_channels else x.shape
        key = torch.as_tensor(keys.fold(draws, self.place))
        if len(x) == len(draws):
            kept = keys.coin(key, shape[1:].numel(), 1 - self.p)
        else:  # rows are no examples, such as positions that come first: one mask, of all keys together
            kept = keys.coin(torch.sum(key), shape.numel(), 1 - self.p)
        return kept.reshape(shape).to(x.dtype) / (1 - self.p)


WHOLE = nn.Dropout1d | nn.Dropout2d | nn.Dropout3d


def keyed_dropout(module: nn.Module) -> list[Dropout]:
    """Replaces torch's dropout layers, which draw from the global generator, by keyed ones; returns all keyed ones."""
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Dropout | WHOLE):
            setattr(module, name, Dropout(child.p, isinstance(child, WHOLE)))
    for child in module.children():
        keyed_dropout(child)
    found = [m for m in module.modules() if isinstance(m, Dropout)]
    for index, dropout in enumerate(found):
        dropout.place = f"dropout{index}"
    return found


class Ball(nn.Module):
    """A layer that scales each row so that ||(x, 1)|| <= radius: a public bound on features, without statistics of
    the data.
    """

    def __init__(self, radius: float) -> None:
        super().__init__()
        check_range(
            "model.radius",
            radius,
            Range(above=1),
            "radius-out-of-range",
            why="it bounds the length of the features with a 1 appended, which is always above 1",
        )
        self.radius = radius

    def forward(self, x: Tensor) -> Tensor:
        limit = (self.radius**2 - 1) ** 0.5
        norm: Tensor = torch.linalg.vector_norm(x, dim=1, keepdim=True)
        scaled: Tensor = x * (limit / norm.clamp_min(limit))
        return torch.where(torch.isfinite(norm), scaled, 0.0)  # a row that is not a number counts as the origin


def logistic(shape: tuple[int, ...], classes: int, radius: float | None = None) -> nn.Module:
    """Logistic regression; `radius` bounds the features, as convex_stable needs it."""
    ball = [] if radius is None else [Ball(radius)]
    return nn.Sequential(nn.Flatten(), *ball, nn.Linear(prod(shape), classes))


def bounded(net: nn.Module) -> float | None:
    """The radius of a `Ball`, which bounds ||(features, 1)||, if the network is a `Ball` and a linear layer alone; else
    None.
    """
    layers = list(net) if type(net) is nn.Sequential else []
    if [type(m) for m in layers] != [nn.Flatten, Ball, nn.Linear]:
        return None
    return float(layers[1].radius)  # type: ignore[arg-type]


def largest_token(net: nn.Module, texts: Callable[[int], object]) -> int:
    """The largest token that the network's embeddings can look up; 0 without embeddings. `texts(most)` runs the network
    on texts with tokens from 1 to `most`.
    """
    tables = [m for m in net.modules() if isinstance(m, nn.Embedding)]
    for most in sorted({m.num_embeddings - 1 for m in tables} - {0}, reverse=True):
        hooks = [m.register_forward_pre_hook(_check_inside) for m in tables]
        try:
            texts(most)
        except IndexError:
            continue
        finally:
            for hook in hooks:
                hook.remove()
        return most
    return 0


def _check_inside(table: nn.Module, asked: tuple[Tensor, ...]) -> None:
    # on a GPU a look-up beyond a table ends the process
    if asked and not bool(((asked[0] >= 0) & (asked[0] < table.num_embeddings)).all()):  # type: ignore[operator]
        raise IndexError


def mlp(shape: tuple[int, ...], classes: int, hidden: int = 200) -> nn.Module:
    """A multilayer perceptron with one hidden layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), hidden), nn.ReLU(), nn.Linear(hidden, classes))


def _image(shape: tuple[int, ...], name: str, smallest: int) -> tuple[int, int]:
    if len(shape) != 3 or min(shape[1:]) < smallest or shape[1] != shape[2]:
        raise DataError(
            f"the model {name!r} does not fit examples of shape {'x'.join(map(str, shape))}",
            why=f"it needs square images of at least {smallest}x{smallest}",
            fix='use model.name = "mlp" or "logistic", or another data set',
            code="model-does-not-fit",
        )
    return shape[0], shape[1]


def cnn(shape: tuple[int, ...], classes: int, dropout: float = 0.5) -> nn.Module:
    """Two 5x5 convolutions, 10 and 20 channels, and 50 hidden units: 21,840 parameters on 28x28 grey images."""
    channels, side = _image(shape, "cnn", 16)
    last = ((side - 4) // 2 - 4) // 2
    return nn.Sequential(
        nn.Conv2d(channels, 10, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, 5),
        Dropout(dropout, whole_channels=True),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(20 * last * last, 50),
        nn.ReLU(),
        Dropout(dropout),
        nn.Linear(50, classes),
    )


def cnn_wide(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two 5x5 convolutions of 64 channels and 384-192 hidden units: 797,962 parameters on 3x32x32 images of 10
    classes.
    """
    channels, side = _image(shape, "cnn_wide", 16)
    last = ((side - 4) // 2 - 4) // 2
    return nn.Sequential(
        nn.Conv2d(channels, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * last * last, 384),
        nn.ReLU(),
        nn.Linear(384, 192),
        nn.ReLU(),
        nn.Linear(192, classes),
    )


def _two_convolutions(shape: tuple[int, ...], classes: int, name: str, pool: bool) -> nn.Module:
    channels, side = _image(shape, name, 4)
    layers: list[nn.Module] = []
    for width in (16, 32):
        layers += [nn.Conv2d(channels, width, 5, stride=1 if pool else 2, padding=2), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if pool else []
        channels = width
    last = side // 4 if pool else (side + 3) // 4  # a pooling rounds sizes down, a stride up
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * last * last, classes))


def cnn_stride(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two 5x5 convolutions of stride 2, 16 and 32 channels, and a linear head: 28,938 parameters on 28x28 grey images,
    34,538 on 3x32x32.
    """
    return _two_convolutions(shape, classes, "cnn_stride", pool=False)


def cnn_pool(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two 5x5 convolutions with 2x2 max-pooling, 16 and 32 channels, and a linear head: as many parameters as
    `cnn_stride`.
    """
    return _two_convolutions(shape, classes, "cnn_pool", pool=True)


VGG16 = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def vgg16(shape: tuple[int, ...], classes: int, dropout: float = 0.5) -> nn.Module:
    """VGG-16 (Simonyan and Zisserman, ICLR 2015, configuration D) on images of 32x32 or more: 134,301,514 parameters
    for 10 classes.
    """
    channels, _ = _image(shape, "vgg16", 32)
    layers: list[nn.Module] = []
    for block in VGG16:
        for width in block:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    layers += [nn.AdaptiveAvgPool2d(7), nn.Flatten()]
    for inputs in (channels * 49, 4096):
        layers += [nn.Linear(inputs, 4096), nn.ReLU(), Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(4096, classes))


class MeanPool(nn.Module):
    """Mean over height and width."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.mean(x, dim=(2, 3))


def cnn_norm(shape: tuple[int, ...], classes: int, groups: int = 4, width: int = 16) -> nn.Module:
    """Three strided 3x3 convolutions of 1, 2 and 4 times `width` channels with GroupNorm, which never mixes examples,
    and a linear head.
    """
    channels, _ = _image(shape, "cnn_norm", 8)
    layers: list[nn.Module] = []
    for wide in (width, 2 * width, 4 * width):
        layers += [nn.Conv2d(channels, wide, 3, stride=2, padding=1), nn.GroupNorm(groups, wide), nn.ReLU()]
        channels = wide
    return nn.Sequential(*layers, MeanPool(), nn.Linear(channels, classes))


def projected(net: nn.Module, width: int = 256) -> nn.Sequential:
    """The network with MOON's projection head (Li, He and Song, CVPR 2021), Linear(d, d), ReLU, Linear(d, width),
    inserted before a new classifier; the body is unchanged.
    """
    layers = list(net) if isinstance(net, nn.Sequential) else []
    last = layers[-1] if layers else None
    if not isinstance(last, nn.Linear):
        raise ConfigError(
            "the model has no place for a projection head",
            why="the head goes before the last linear layer of a torch.nn.Sequential, and this model has none",
            fix="choose a built-in model, or set the algorithm to contrast the features themselves",
            code="no-place-for-projection",
        )
    d = last.in_features
    head = (nn.Linear(d, d), nn.ReLU(), nn.Linear(d, width), nn.Linear(width, last.out_features))
    return nn.Sequential(*layers[:-1], *head)


# ResNet-18: a 3x3 stem, four stages of two basic blocks, mean pool, linear head ---------------------------------------

Norm = Literal["group", "batch", "none"]
STAGES = ((1, 1), (2, 2), (4, 2), (8, 2))  # times the width, and the stride of the first block


def _convolution(inputs: int, outputs: int, side: int, stride: int, norm: Norm, groups: int) -> nn.Sequential:
    """A convolution followed by its norm, or with a bias where there is no norm."""
    convolution = nn.Conv2d(inputs, outputs, side, stride, padding=side // 2, bias=norm == "none")
    if norm == "none":
        return nn.Sequential(convolution)
    return nn.Sequential(convolution, nn.GroupNorm(groups, outputs) if norm == "group" else nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """Residual block: two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where the shapes differ."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm, groups: int) -> None:
        super().__init__()
        self.first = _convolution(inputs, outputs, 3, stride, norm, groups)
        self.second = _convolution(outputs, outputs, 3, 1, norm, groups)
        same = stride == 1 and inputs == outputs
        self.short = nn.Identity() if same else _convolution(inputs, outputs, 1, stride, norm, groups)

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.second(torch.relu(self.first(x)))
        return torch.relu(inner + self.short(x))


def resnet18(
    shape: tuple[int, ...], classes: int, norm: Norm = "group", groups: int = 32, width: int = 64
) -> nn.Sequential:
    """ResNet-18 (He et al., CVPR 2016) for images of 32x32: 3x3 stem, no max-pooling, GroupNorm or (in runs without a
    privacy guarantee) BatchNorm, 11,173,962 parameters for 10 classes.
    """
    if norm not in get_args(Norm):
        raise ConfigError(
            f"resnet18 has no norm {norm!r}",
            fix='set norm = "group" or "none"; "batch" only in a run without any guarantee',
            code="resnet-norm",
        )
    layers: list[nn.Module] = [*_convolution(shape[0], width, 3, 1, norm, groups), nn.ReLU()]
    inputs = width
    for times, stride in STAGES:
        layers += [
            Block(inputs, times * width, stride, norm, groups),
            Block(times * width, times * width, 1, norm, groups),
        ]
        inputs = times * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


class WordMean(nn.Module):
    """The mean of the embeddings of a text's words; token 0 stands for no word, and pads a text."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(tokens, width, padding_idx=0)

    def forward(self, x: Tensor) -> Tensor:
        which = x.long().clamp(0, self.words.num_embeddings - 1)
        there = (which > 0).to(self.words.weight.dtype)[..., None]
        found: Tensor = (self.words(which) * there).sum(1) / there.sum(1).clamp_min(1)
        return found


class TextsAndInputs(nn.Module):
    """The mean word embedding of each text in a row, followed by all its other inputs. `texts`: where each text begins
    among the inputs, and its length.
    """

    def __init__(self, tokens: int, width: int, texts: Sequence[tuple[int, int]], inputs: int) -> None:
        super().__init__()
        self.mean, self._texts = WordMean(tokens, width), texts
        words = {at for first, length in texts for at in range(first, first + length)}
        self._others = [at for at in range(inputs) if at not in words]

    def forward(self, x: Tensor) -> Tensor:
        means = [self.mean(x[:, first : first + length]) for first, length in self._texts]
        return torch.cat([*means, x[:, self._others]], 1)


def text(
    shape: tuple[int, ...],
    classes: int,
    tokens: int,
    width: int = 32,
    texts: Sequence[tuple[int, int]] | None = None,
) -> nn.Module:
    """Text classifier: a linear layer on the mean of the embeddings of a text's words, of which there are `tokens`
    different ones. `texts`: where each text begins among the inputs and its length; all other inputs go to the linear
    layer too.
    """
    for name, given in (("tokens", tokens), ("width", width)):
        check_range(f"model.{name}", given, Range(least=1), "text-model-size")
    if len(shape) != 1:
        raise DataError(
            "the model 'text' does not fit images",
            why="it reads the words of a text, as a table's schema declares them",
            fix="choose a model for images",
            code="model-does-not-fit",
        )
    if texts is None:
        return nn.Sequential(WordMean(tokens, width), nn.Linear(width, classes))
    (inputs,) = shape
    if not all(0 <= first < first + length <= inputs for first, length in texts):
        raise DataError(
            f"model.texts = {[list(place) for place in texts]!r} with {inputs} inputs",
            why="each is [first, length], the first input of a text and their number; one of these is empty, or "
            "reaches beyond the inputs of a row",
            fix="set what the schema declares, or leave it out where a row is nothing but text",
            code="model-does-not-fit",
        )
    beside = inputs - sum(length for _, length in texts)
    return nn.Sequential(TextsAndInputs(tokens, width, texts, inputs), nn.Linear(width * len(texts) + beside, classes))


NETS: dict[str, Callable[..., nn.Module]] = {
    "logistic": logistic,
    "mlp": mlp,
    "cnn": cnn,
    "cnn_wide": cnn_wide,
    "cnn_norm": cnn_norm,
    "cnn_stride": cnn_stride,
    "cnn_pool": cnn_pool,
    "vgg16": vgg16,
    "resnet18": resnet18,
    "text": text,
    "transformer": transformer,
}
