"""Local training by a function of the user's own, `train(model, rows, round)`, in any library; the server averages.

The function gets the network at the weights of the round, and the rows of one client as the network takes them
(`rows.x`, `rows.y`). It returns the network, or a dictionary of arrays by the names of its parameters: the change is
the upload, and the uplink clips and noises it. Before each call the generators of Python, NumPy and torch are seeded
from the run, the round and the client. `local` is thus whatever the function does, `update` that of FedAvg.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from safetensors.torch import save

from sordino import keys, tree, user_code
from sordino.algorithms.algorithm import Algorithm
from sordino.algorithms.fedavg import Server, Up
from sordino.algorithms.optional import Estimates, FitsData, Home, OtherReads, PublicFacts
from sordino.device import on_gpu
from sordino.errors import ConfigError, OwnCodeError
from sordino.keys import Key
from sordino.privacy.readers.function_reader import FORK_CANNOT, FunctionReader, FunctionShard
from sordino.privacy.uplink import Uplink
from sordino.tasks.architecture import Architecture, seeded
from sordino.types import Examples, LocalWork, Params, Reader, Received, Shard, Task

if TYPE_CHECKING:
    from torch import Tensor, nn


ALONE = "{} takes the rows of other clients from nowhere else: no file, no global name, no network"


@dataclass(frozen=True)
class Trainer(
    Algorithm[Server, tuple[()], Server, Up],
    Estimates,
    FitsData,
    OtherReads,
    name="trainer",
    takes_mean=True,
    carries_statistics=True,
):
    of: str = ""  # type: ignore[assignment]  # module:function; a side is asked for at its own class
    read: Reader = FunctionReader()
    uplink: Uplink = Uplink()

    wants = "rows"

    work = LocalWork(1, None, None)  # what a function makes of its rows is its own

    def fitted(self, known: PublicFacts) -> Self:
        if not self.of:
            raise ConfigError(
                "algorithm = 'trainer' without a function that trains",
                why="the method is what this function does with a client's rows",
                fix='set algorithm.of = "module:function", in Python sordino.run(train=function)',
                code="trainer-without-function",
            )
        return self

    def rests_on(self, name: str) -> str:
        if name == self.of and isinstance(self.read, FunctionReader) and self.read.process == "fresh":
            return ALONE.format(name)
        return super().rests_on(name)

    def init(self, task: Task, key: Key) -> Server:
        return Server(task.init(key), torch.tensor(0))

    def init_client(self, task: Task) -> tuple[()]:
        _ = self._function  # one that is missing is missed before the first round
        if on_gpu() and self.read == FunctionReader() and self._apart(task) is None:
            raise OwnCodeError(**FORK_CANNOT)
        return ()

    def broadcast(self, s: Server) -> Server:
        return s

    def zero(self, task: Task, down: Server) -> Up:
        return Up(tree.zeros_like(down.x))

    def local(self, task: Task, down: Server, c: tuple[()], shard: Shard, key: Key) -> tuple[Up, tuple[()]]:
        assert isinstance(shard, FunctionShard), "a plan refuses every other reader"
        train, t, word = self._function, int(down.round), keys.word(key)

        def trained(rows: Examples) -> Params:
            return trained_by(train, task.module(down.x), down.x, rows, t, word)

        apart = None
        if (made := self._apart(task)) is not None:
            header = {"of": self.of, "round": t, "seed": word, "architecture": made.to_json(), "names": list(down.x)}
            apart = partial(request, header, task.state_dict(down.x), down.x)
        return Up(tree.sub(shard.passed_to(trained, apart), down.x)), ()

    def _apart(self, task: Task) -> Architecture | None:
        """The network's architecture, if another process can build it and import the training function; None if either
        was passed as an object, which only this process has.
        """
        made: Architecture | None = getattr(task, "architecture", None)
        return None if made is None or any(map(user_code.is_lent, (self.of, made.name))) else made

    def update(self, s: Server, r: Received[Up], home: Home) -> Server:
        return Server(tree.add(s.x, r.mean.delta), s.round + 1)

    def models(self, s: Server) -> Mapping[str, Params]:
        return {"global": s.x}

    def change(self, upload: Up) -> Params | None:
        return upload.delta

    @property
    def _function(self) -> Callable[[nn.Module, Examples, int], object]:
        return function_named(self.of)


def function_named(name: str) -> Callable[[nn.Module, Examples, int], object]:
    found: Callable[[nn.Module, Examples, int], object] = user_code.load(name, "training function")
    if not callable(found) or isinstance(found, type):
        raise ConfigError(
            f"algorithm.of = {name!r} is no function",
            why="it is called with the network, the rows of a client and the number of the round",
            fix="write def train(model, rows, round), which returns the model",
            code="trainer-not-a-function",
        )
    return found


def trained_by(
    train: Callable[[nn.Module, Examples, int], object],
    model: nn.Module,
    given: Params,
    rows: Examples,
    t: int,
    seed: int,
) -> Params:
    """Calls the user's training function with seeded generators; returns the trained values, by the names in
    `given`."""
    with seeded(seed), torch.enable_grad(), user_code.blamed():
        held = {n: v.clone() for n, v in model.state_dict().items() if isinstance(v, torch.Tensor)}
        frozen = {name for name, p in model.named_parameters() if name not in given}
        return _tensors(train(model, rows, t), given, held, frozen)


def request(header: Mapping[str, Any], state: Params, given: Params, rows: Examples) -> tuple[str, bytes]:
    """Encodes a call of a training function, to be sent to the clean process that runs it (`clean_process`)."""
    parts = {"state": state, "given": given, "rows": rows._asdict()}
    tensors = {
        f"{part}/{name}": v.detach().cpu().contiguous().clone() for part, of in parts.items() for name, v in of.items()
    }
    return "sordino.algorithms.clean_process", json.dumps(header).encode() + b"\n" + save(tensors)


def _tensors(returned: object, given: Params, held: Params, frozen: Set[str]) -> Params:
    """Trained values of the parameters in `given`, taken from the network or dictionary that a training function
    returned; an error if these do not fit. `held`: the network's values before. Values of `frozen` parameters must not
    have changed."""
    values: Mapping[str, Any]
    if isinstance(returned, torch.nn.Module):
        values = returned.state_dict(keep_vars=True)
    elif isinstance(returned, Mapping):
        values = returned
    else:
        raise _unfit("nothing (None)" if returned is None else f"an object of type {type(returned).__name__}")
    if strange := sorted(map(str, values.keys() - held.keys())):
        raise _unfit(f"{strange[0]}, which the network that it was given does not have")
    if missing := [name for name in given if name not in values]:
        raise _unfit(f"no {missing[0]}")
    for name in frozen & values.keys():
        if not torch.equal(_tensor(values[name], held[name]), held[name]):
            raise _unfit(
                f"another {name}, which is frozen, so no change of it is sent", "freeze it in the function, too"
            )
    found = {name: _tensor(values[name], like) for name, like in given.items()}
    if difference := tree.unlike(found, given):
        raise _unfit(difference)
    return found


def _tensor(value: Any, like: Tensor) -> Tensor:
    """A value as a tensor. Float arrays get the model's precision, as NumPy's default is another."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    array = np.asarray(value)
    return torch.tensor(array, dtype=like.dtype if array.dtype.kind == "f" else None)


def _unfit(what: str, fix: str = "") -> OwnCodeError:
    return OwnCodeError(
        f"your training function returned {what}",
        why="what it returns is compared with the network that it was given, and the difference is the client's upload",
        fix=fix
        or "return the model, or a dictionary with an array of the same shape for each of its trained parameters",
        code="trainer-result",
    )
