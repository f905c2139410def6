"""Networks by name: the library's own, or a class of the user's."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sordino import user_code
from sordino.accounting.facts import Fact
from sordino.device import drawing
from sordino.errors import ConfigError, DataError, SordinoError

if TYPE_CHECKING:
    from torch import nn


class Architecture(Fact):
    """All settings that a network is built from, so that the same one can be built again."""

    name: str
    options: Mapping[str, Any] = {}
    inputs: tuple[int, ...]  # of one example, as the network sees it: channels first
    outputs: int
    projection: int = 0  # the width of a projection head before the classifier; 0 for none

    @property
    def is_own(self) -> bool:
        return user_code.is_own(self.name)

    def built(self, seed: int) -> nn.Module:
        """The network, built and tried on inputs of its shape. Its constructor draws from the seed alone, so that it is
        the same in every process and after every restart.
        """
        with seeded(seed):
            net = build_net(self.name, self.inputs, self.outputs, self.options)
            if self.projection:
                from sordino.tasks.nets import projected

                net = projected(net, self.projection)
            fits(net, self.name, self.inputs, self.outputs)  # lazy layers draw when they see their first example
        return net


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds the random generators of Python, NumPy and torch inside the block; restores their states afterwards."""
    plain, numbers = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            with drawing():
                yield
    finally:
        random.setstate(plain)
        np.random.set_state(numbers)


def build_net(name: str, shape: tuple[int, ...], classes: int, options: Mapping[str, object]) -> nn.Module:
    """A built-in network by name, or the user's own as `module:Class` or `module:function` (with `options`)."""
    if ":" in name:
        return _users_own(name, options)
    from sordino.tasks.nets import NETS

    if name not in NETS:
        raise ConfigError(
            f"no model called {name!r}",
            fix=f"use one of {', '.join(NETS)}, or your own class as module:Class",
            code="unknown-model",
        )
    return _built(name, lambda: NETS[name](shape, classes, **options))


def _users_own(path: str, options: Mapping[str, object]) -> nn.Module:
    make = user_code.load(path, "model")
    if isinstance(make, torch.nn.Module) or not callable(make):
        raise _no_module(path, f"it is an object of type {type(make).__name__}")
    net = _built(path, lambda: make(**options))
    if not isinstance(net, torch.nn.Module):
        raise _no_module(path, f"what it makes is of type {type(net).__name__}")
    user_code.made_of(map(type, net.modules()))
    return net


def _no_module(path: str, why: str) -> ConfigError:
    return ConfigError(
        f"{path!r} does not make a torch.nn.Module",
        why=why,
        fix="give the name of a Module class, or of a function that returns a Module",
        code="model-not-a-module",
    )


def _built(name: str, make: Callable[[], nn.Module]) -> nn.Module:
    try:
        return make()
    except SordinoError:
        raise
    except Exception as error:
        raise ConfigError(
            f"cannot build the model {name!r}: {user_code.described(error)}",
            fix="put the arguments that it takes into [model]; those of your own class into [model.options]",
            code="model-options",
        ) from error


def fits(net: nn.Module, name: str, shape: tuple[int, ...], classes: int) -> None:
    """Runs two blank examples through the network, so that wrong shapes are an error before training, not during it."""
    blank = torch.zeros(2, *shape)
    try:
        net.eval()
        out = net(blank)
    except Exception as error:
        if not isinstance(error, RuntimeError) and (own := user_code.blame(error)) is not None:
            raise own from error  # a slip in its code, and no matter of shapes
        raise DataError(
            f"the model {name!r} does not fit examples of shape {'x'.join(map(str, shape))}",
            why=user_code.described(error),
            fix="choose a model for examples of this shape"
            + (", or resize the images" if len(shape) == 3 else ": logistic, mlp, or one of your own"),
            code="model-does-not-fit",
        ) from error
    if not isinstance(out, torch.Tensor) or tuple(out.shape) not in ((2, classes), (2, *shape, classes)):
        raise _outputs(out, name, classes)


WRAPPER = """put it into a module that returns the tensor of logits alone:
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = ...  # the model
        def forward(self, x):
            return self.net(x).logits  # or what is called so in its answer"""


def _outputs(out: object, name: str, classes: int) -> DataError:
    if isinstance(out, torch.Tensor):
        return DataError(
            f"the model {name!r} gives {tuple(out.shape[1:])} outputs, and {classes} are needed",
            fix="let the model return one number for each class, or for each label; one where a number is predicted",
            code="model-outputs",
        )
    return DataError(
        f"the model {name!r} gives an object of type {type(out).__name__}, and no tensor",
        why=f"a loss needs one number (logit) for each of the {classes} classes",
        fix=WRAPPER,
        code="model-outputs",
    )
