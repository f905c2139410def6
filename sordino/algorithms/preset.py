"""Presets: methods defined as another method with other privacy mechanisms (a reader for gradients, an uplink for
uploads) and other defaults.

    @preset(FedAvg(lr=0.5))
    def noisy(base: FedAvg, clip: float = 1.0) -> FedAvg:
        return base.behind(NoisyGradient(clip, GaussianNoise()))

The function receives the base with the user's settings, so it can check every value that could break its guarantee. A
user may set the function's parameters, and every field of the base except its reader, its uplink and the `fixed` ones.
A parameter with the name of a field replaces that field, with a narrower type.

And algorithms behind an adaptive uplink (`adapting`): its rates or radii change from round to round, and are public,
because they are computed from releases. These values are broadcast with the model and stored in checkpoints beside the
algorithm's own state; the algorithm does not see them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from types import new_class
from typing import Any, Concatenate, Generic, Literal, NamedTuple, ParamSpec, TypeVar, cast, get_type_hints

from sordino.algorithms.algorithm import NAMES, AnyAlgorithm
from sordino.algorithms.local_sgd import AnyLocalSgd
from sordino.algorithms.optional import Home, PerClientMessages, RequestsClients, first_state
from sordino.algorithms.phases import AnyPhase, Facts, FeatureMean, Phased, Table
from sordino.errors import ConfigError
from sordino.keys import Key
from sordino.tree import Tree
from sordino.types import Params, Received, Shard, Task

B = TypeVar("B", bound=AnyLocalSgd)
K = TypeVar("K", bound=AnyAlgorithm)
M = TypeVar("M", bound=AnyAlgorithm | Phased)
P = ParamSpec("P")
GATES = ("read", "uplink")
CHOICE = "preset"  # the setting that chooses between sets of defaults, where there are several


class Preset(Generic[M]):
    """The callable that `preset` makes: its signature lists all settings."""

    __name__: str
    __signature__: inspect.Signature

    def __init__(
        self, made: Callable[..., M], base: AnyLocalSgd, fixed: tuple[str, ...], others: Mapping[str, AnyLocalSgd]
    ) -> None:
        functools.update_wrapper(self, made)
        self._made, self._bases, self._fixed = made, {"default": base, **others}, fixed
        hints = get_type_hints(type(base), include_extras=True)
        values = {f.name: (hints[f.name], getattr(base, f.name)) for f in fields(base) if _free(f.name)}
        _, *own = inspect.signature(made, eval_str=True).parameters.values()
        self._own = {parameter.name for parameter in own}
        self._inherited = values.keys() - {*fixed}
        listed = [p.replace(default=values[p.name][1]) if p.name in values else p for p in own]
        if others:
            values = {CHOICE: (Literal[("default", *others)], "default"), **values}
        listed += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for name, (kind, default) in values.items()
            if name not in {*fixed, *self._own}
        ]
        self.__signature__ = inspect.Signature(listed)
        self.__annotations__ = {p.name: p.annotation for p in listed}

    def __call__(self, *args: Any, **settings: Any) -> M:
        self.refuse_fixed(settings)
        given = self.__signature__.bind(*args, **settings).arguments
        base = self._bases[given.pop(CHOICE, "default")]
        base = base.having(**{name: value for name, value in given.items() if name in self._inherited})
        own = {name: value for name, value in given.items() if name in self._own}
        return self._made(base, **own | {name: getattr(base, name) for name in self._own & self._inherited})

    @property
    def base(self) -> str:
        """The name of the method that the preset is based on."""
        return NAMES.get(type(self._bases["default"]), type(self._bases["default"]).__name__)

    def refuse_fixed(self, names: Iterable[str]) -> None:
        """Raises an error if one of these settings is fixed by the preset."""
        for name in names:
            if name in self._fixed:
                raise ConfigError(
                    f"{self.__name__} has no key {name!r}",
                    why="the method itself fixes this value: with another one it would be another method",
                    fix=f"leave {name} out",
                    code="unknown-key",
                )


def preset(base: B, fixed: tuple[str, ...] = (), **others: B) -> Callable[[Callable[Concatenate[B, P], M]], Preset[M]]:
    """Decorator that turns a function into a method (an algorithm with a name). The function takes another method, the
    base, and returns an adapted copy of it. The base gives the defaults, and `fixed` names the fields that cannot be
    set. `others`: further bases with other defaults, by name, one of which the setting `preset` chooses. A user's
    setting overrides every default.
    """
    return lambda made: Preset(made, base, fixed, others)


def recast(kind: type[K], given: AnyAlgorithm) -> K:
    """An algorithm of class `kind` with the settings of `given`, which must have all its fields."""
    return kind(**{f.name: getattr(given, f.name) for f in fields(kind) if not f.name.startswith("_")})


def _free(name: str) -> bool:
    return name not in GATES and not name.startswith("_")


class Server(NamedTuple):
    """The algorithm's own state, and the public values of its adaptive uplink."""

    own: Tree
    public: Tree


class Down(NamedTuple):
    """The algorithm's own broadcast, and the public values of its adaptive uplink."""

    own: Tree
    public: Tree


class Adapting:
    """Wrapper that gives an algorithm an adaptive uplink. The server's state becomes a pair: the algorithm's state and
    the uplink's. Methods that take or return a state or a broadcast pass `own` its part of it; all others are
    inherited.
    """

    own: AnyAlgorithm

    def init(self, task: Task, key: Key) -> Server:
        return self._first(task, self.own.init(task, key))

    def begin(self, task: Task, key: Key, before: Any, home: Home) -> Server:
        return self._first(task, first_state(self.own, task, key, before, home))

    def _first(self, task: Task, server: Tree) -> Server:
        zero = self.own.zero(task, self.own.broadcast(server))
        model = next(iter(self.own.models(server).values()), {})  # a phase may hold none
        return Server(server, self.own.uplink.begin(zero, model))

    def broadcast(self, s: Server) -> Down:
        return Down(self.own.broadcast(s.own), s.public)

    def per_client_message(self, down: Down, client: int) -> Down:
        return Down(PerClientMessages.of(self.own).per_client_message(down.own, client), down.public)

    def requested_clients(self, s: Server) -> Sequence[int]:
        return RequestsClients.of(self.own).requested_clients(s.own)

    def zero(self, task: Task, down: Down) -> Tree:
        return self.own.zero(task, down.own)

    def local(self, task: Task, down: Down, c: Tree, shard: Shard, key: Key) -> tuple[Tree, Tree]:
        return self.own.local(task, down.own, c, shard, key)

    def update(self, s: Server, r: Received[Tree], home: Home) -> Server:
        return Server(self.own.update(s.own, r, home), r.public)

    def models(self, s: Server) -> Mapping[str, Params]:
        return self.own.models(s.own)

    def behind(self, *gates: Any, **named: Any) -> AnyAlgorithm:
        return _around(self.own.behind(*gates, **named))

    # of a phase -------------------------------------------------------------------------------------------------------

    @property
    def _phase(self) -> AnyPhase:
        return cast("AnyPhase", self.own)

    def over(self, s: Server) -> bool:
        return self._phase.over(s.own)

    def result(self, s: Server) -> Any:
        return self._phase.result(s.own)

    def means(self, s: Server, task: Task) -> Sequence[FeatureMean]:
        return self._phase.means(s.own, task)

    def tables(self, s: Server) -> Mapping[str, Table]:
        return self._phase.tables(s.own)

    def facts(self, s: Server, before: Facts) -> Facts:
        return self._phase.facts(s.own, before)


def adapting(own: AnyAlgorithm) -> AnyAlgorithm:
    """The algorithm itself, or an `Adapting` wrapper of it if its uplink is adaptive."""
    return _around(own) if own.uplink.learns else own


def _around(own: AnyAlgorithm) -> AnyAlgorithm:
    made: AnyAlgorithm = object.__new__(_class(type(own)))
    vars(made).update(vars(own), own=own)
    return made


@cache
def _class(own: type[AnyAlgorithm]) -> type[AnyAlgorithm]:
    """A class for an algorithm with an adaptive uplink: a subclass of `Adapting` and of the algorithm's class, whose
    optional features it has."""
    words = {"takes_mean": own.takes_mean, "carries_statistics": own.carries_statistics}
    return cast("type[AnyAlgorithm]", new_class(f"Adapting{own.__name__}", (Adapting, own), words))
