"""Networks by name: the library's own, or a class of the user's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from sordino import user_code
from sordino.errors import ConfigError, DataError, SordinoError
from sordino.tasks.nets import NETS


def build_net(name: str, shape: tuple[int, ...], classes: int, options: Mapping[str, object]) -> nn.Module:
    """A built-in network by name, or the user's own class as `module:Class` (no arguments but `options`)."""
    if ":" in name:
        return _users_own(name, options)
    if name not in NETS:
        raise ConfigError(
            f"no model called {name!r}",
            fix=f"use one of {', '.join(NETS)}, or your own class as module:Class",
            code="unknown-model",
        )
    return _built(name, lambda: NETS[name](shape, classes, **options))


def _users_own(path: str, options: Mapping[str, object]) -> nn.Module:
    cls = user_code.load(path, "model")
    if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
        raise ConfigError(
            f"{path!r} is not a torch.nn.Module class",
            fix="give the name of a class, not of an object",
            code="model-not-a-module",
        )
    return _built(path, lambda: cls(**options))


def _built(name: str, make: Callable[[], nn.Module]) -> nn.Module:
    try:
        return make()
    except SordinoError:
        raise
    except Exception as error:
        raise ConfigError(
            f"cannot build the model {name!r}: {user_code.told(error)}",
            fix="put the arguments that it takes into [model]; those of your own class into [model.options]",
            code="model-options",
        ) from error


def fits(net: nn.Module, name: str, shape: tuple[int, ...], classes: int) -> None:
    """Runs one blank example through, so that a mismatch is an error before training and not inside it."""
    blank = torch.zeros(2, *shape)
    try:
        net.eval()
        out = net(blank)
    except Exception as error:
        raise DataError(
            f"the model {name!r} does not fit examples of shape {'x'.join(map(str, shape))}",
            why=user_code.told(error),
            fix="choose a model for examples of this shape" + (", or resize the images" if len(shape) == 3 else ""),
            code="model-does-not-fit",
        ) from error
    if not isinstance(out, Tensor) or tuple(out.shape) != (2, classes):
        given = f"{tuple(out.shape[1:])}" if isinstance(out, Tensor) else f"a {type(out).__name__} as"
        raise DataError(
            f"the model {name!r} gives {given} outputs, but the data has {classes} classes",
            fix="let the model return one number (logit) for each class",
            code="model-outputs",
        )
