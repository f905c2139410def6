"""A network over rows: its inputs, its outputs, and the features that its last layer sees. The loss comes from
subclasses.

Images stay as decoded (uint8, channels last) until a batch is read.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from sordino import keys
from sordino.device import drawing, on_gpu
from sordino.errors import ConfigError
from sordino.fast import transforming
from sordino.privacy.readers.per_example_gradients import Recorder
from sordino.tasks.architecture import Architecture
from sordino.tasks.augment import AUGMENT
from sordino.tasks.features import Head, of_chain
from sordino.tasks.hidden_state import check_adapters, check_tables, coupling, of_calls, several, statistics, still
from sordino.tasks.nets import Dropout, keyed_dropout
from sordino.tasks.written_out_backward import Chain
from sordino.types import Params

STACK_WEIGHTS = 1 << 16  # largest model for stacks: larger ones lose more by cache misses than is saved by fewer calls
POOL_FLOATS = 6_000_000  # numbers in one pass over many clients' rows: about as many as the caches hold
GPU_FLOATS = 64 * POOL_FLOATS  # the same on a GPU, which they fill


class InputSettings(NamedTuple):
    """Settings by which rows become inputs of a network, independent of what it predicts."""

    name: str
    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    image: bool = False
    precision: torch.dtype = torch.float32
    augment: str = "none"
    keeps: bool = False  # training starts from the network's own values, not from random ones
    architecture: Architecture | None = None  # from which another process builds the network


def handed_out(net: nn.Module, state: Params) -> nn.Module:
    """The network with this `state_dict`, for training by another program: in training mode, with dropout from torch's
    own generator.
    """
    for one in net.modules():
        if isinstance(one, Dropout):
            one.keyed = False
    net.load_state_dict(state)
    return net.train()


class NetworkOnRows:
    """A network with raw rows as its inputs."""

    def __init__(self, net: nn.Module, inputs: InputSettings, written_out: bool = True) -> None:
        """`written_out`: whether the gradient of the loss is written out, so that no autograd graph is needed."""
        name, shape, mean, std, image, precision, augment, keeps, self.architecture = inputs
        self.name = name
        self._augment = AUGMENT[augment]
        self._net, self._image, self._shape = net, image, shape
        each = shape if image and len(mean) > shape[-1] else (-1,)  # statistics per pixel, or per channel or feature
        deviation = torch.tensor(std, dtype=torch.float64).clamp_min(1e-6).reshape(each)
        self._scale = (1 / (deviation * (255 if image else 1))).float()
        self._shift = (-torch.tensor(mean, dtype=torch.float64).reshape(each) / deviation).float()
        self._dropouts = keyed_dropout(net)
        self._drops = bool(self._dropouts)
        for module in net.modules():
            if getattr(module, "inplace", False):
                # same values, and the layer rules can read what came out
                module.inplace = False  # type: ignore[assignment]
            if isinstance(module, nn.Embedding | nn.EmbeddingBag):
                module.sparse = False  # same gradients, in a form that can be clipped
        check_tables(net)
        check_adapters(net)
        self.mixes_examples, self.statistics = coupling(net), statistics(net)
        self._names = [name for name, p in net.named_parameters() if p.requires_grad]
        if not self._names:
            raise ConfigError(
                f"the model {name!r} has no trainable parameters",
                why="there is nothing to learn",
                fix="leave requires_grad = True for at least one parameter",
                code="model-without-parameters",
            )
        self._trained = [(name, p) for name, p in net.named_parameters() if p.requires_grad]
        if pair := next((name for name, p in self._trained if p.is_complex()), ""):
            raise ConfigError(
                f"the parameter {pair} of the model {name!r} holds complex numbers",
                why="norms are bounded, noise is added and messages are written of real numbers alone",
                fix="hold real and imaginary part as two parameters, and join them in forward: torch.complex(a, b)",
                code="complex-parameters",
            )
        self._moving = [(name, net.get_buffer(name)) for name in self.statistics]
        self._held = {name: p.detach().clone() for name, p in (*self._trained, *self._moving)} if keeps else None
        self._rest = _state_entries(net, dict(self._trained), self.statistics)
        self._first = {name: value.clone() for name, value in self._moving}
        self._chain = Chain.of(net, shape) if written_out and not self.mixes_examples else None
        # bf16 pays where convolutions do the work; weights, sums and everything private stay in fp32
        self.precision = precision if self._chain is not None and self._chain.images else torch.float32
        self._recorder = Recorder(net)
        # attention and recurrent layers have dropouts of their own
        self._draws = self._chain is None and draws_numbers(self._pass)

    def init(self, key: keys.Key) -> Params:
        """Initial parameters: drawn from the key, or the network's own values where it keeps them."""
        if self._held is not None:
            return {name: value.clone() for name, value in self._held.items()}
        if self._chain is None:
            for _, p in self._trained:
                p.data = p.data.clone()  # `gradient` has put other weights there
        with torch.random.fork_rng(devices=[]), drawing():
            torch.default_generator.manual_seed(keys.word(key))
            for module in self._net.modules():
                reset = getattr(module, "reset_parameters", None)
                if callable(reset):
                    reset()
        for name, value in self._net.state_dict(keep_vars=True).items():
            if isinstance(kept := self._rest.get(name), Tensor):  # what is frozen, and buffers, stay as they were
                value.data.copy_(kept)
        drawn = {name: p.detach().clone() for name, p in self._trained}
        return drawn | {name: value.clone() for name, value in self._first.items()}

    def state_dict(self, params: Params) -> Params:
        """Everything that the network holds at these parameters, by the names of its own `state_dict`: also frozen
        values, and buffers as its constructor left them, except running statistics, which are the model's.
        """
        return {name: params[kept] if isinstance(kept, str) else kept for name, kept in self._rest.items()}

    def module(self, params: Params) -> nn.Module:
        """A copy of the network at these parameters, for training by another program."""
        return handed_out(copy.deepcopy(self._net), self.state_dict(params))

    def inputs(self, x: Tensor) -> Tensor:
        """Rows as the network takes them: (x - mean) / std, images as [n, c, h, w]."""
        return self._scaled(x, torch.float32).contiguous()

    def stacks(self, n: int) -> int:
        """Number of clients with n rows each that are trained in one call; 1 where a single client keeps the processor
        busy.
        """
        if self._chain is None or self._chain.images:
            return 1
        walks = self._spans(n)
        weights = 0 if walks else sum(p.numel() for _, p in self._trained)
        return 1 if weights > STACK_WEIGHTS else max(1, _pass_floats() // (n * self._floats + weights))

    @cached_property
    def room(self) -> int:
        if self._chain is None or self._drops or self._augment is not None:
            return 0
        return max(1, _pass_floats() // self._floats)

    @property
    def pads(self) -> bool:
        """True if a batch may contain padding rows: in a network with written-out backward pass (`Chain`), without
        dropout and augmentation, whose draws depend on a row's place in the batch.
        """
        return self._chain is not None and not self._drops and self._augment is None

    @property
    def replays(self) -> bool:
        """True if a pass depends on parameters, rows and draws alone, without a branch on a computed number, so that a
        CUDA graph can replay it.
        """
        return self._chain is not None

    @property
    def threads(self) -> bool:
        return not self._draws

    @cached_property
    def _floats(self) -> int:
        """Numbers that are read or written in a forward and backward pass over one row."""
        assert self._chain is not None
        one = torch.zeros(1, *self._shape, dtype=torch.uint8 if self._image else torch.float32)
        own = self._values
        return self._chain.floats(own, self._scaled(one, next(iter(own.values())).dtype))

    @cached_property
    def classes(self) -> int:
        if self._chain is not None:
            return self._chain.classes
        return self.predict(self._values, self._sample).shape[1]

    @cached_property
    def flops(self) -> int:
        """Floating-point operations of a forward and backward pass over one example; the backward pass counts as two
        forward passes.
        """
        self._net.eval()
        return 3 * count_flops(lambda: self._net(self._inputs(self._sample[:1], dict(self._trained))))

    def features(self, params: Params, x: Tensor, keys: Tensor | None = None, plain: int = 0) -> Tensor:
        """The input of the last linear layer [n, d], differentiable in `params`. With keys, one per example, the
        network is in training mode; without, it computes as in `predict`. The last `plain` images are not augmented.
        """
        if self._chain is not None and not transforming():  # torch.func does not go the chain's own way back
            kind = next(iter(params.values())).dtype
            low = keys is not None and self.precision == torch.bfloat16
            seen = self._seen(x, kind, keys, plain)
            return of_chain(self._chain, params, seen, keys, self.precision if low else kind)
        head = self._head  # before the mode is set: finding it sets its own
        self._train_mode(keys, keys is not None)
        with self._seeded(keys), several():
            own = self._passed(params, keys is not None)
            return head.input(self._net, own, self._inputs(x, params, keys, plain))

    def look(self, params: Params, x: Tensor) -> Tensor:
        """Features of images [n, c, h, w] with values from 0 to 1, differentiable with respect to the images."""
        head, scale, shift = self._head, 255 * self._across(self._scale), self._across(self._shift)
        self._net.eval()
        return head.input(self._net, params, (x * scale + shift).to(next(iter(params.values())).dtype))

    def image(self, seen: Tensor) -> Tensor:
        """Images [n, c, h, w] between 0 and 1 from standardised network inputs of the same shape: the inverse of the
        scaling in `look`.
        """
        return (seen - self._across(self._shift)) / (255 * self._across(self._scale))

    def _across(self, each: Tensor) -> Tensor:
        """A value per pixel or per channel, reshaped to broadcast over images [n, c, h, w]."""
        return each.movedim(-1, 0) if each.dim() == 3 else each.view(1, -1, 1, 1)

    @cached_property
    def width(self) -> int:
        """The number of features."""
        return self.features(self._values, self._sample).shape[1]

    @cached_property
    def learns_features(self) -> bool:
        """True if the input of the last layer depends on a trained parameter."""
        leaves = {name: p.detach().requires_grad_() for name, p in self._values.items()}
        return self.features(leaves, self._sample).requires_grad

    def head(self, params: Params, z: Tensor) -> Tensor:
        """Logits computed from features."""
        if self._chain is not None:
            logits, _ = self._chain.links[-1].forward(params, z, None)
            return logits
        return self._head.logits(params, z)

    @property
    def _values(self) -> Params:
        """Current values of the network's trained parameters and running statistics."""
        return {name: p.detach() for name, p in self._trained} | self._first

    @cached_property
    def _head(self) -> Head:
        return Head(self._net, self.name, self._inputs(self._sample, dict(self._trained)))

    @cached_property
    def _sample(self) -> Tensor:
        """Random rows for probing the network."""
        shape = (3, *self._shape)
        x = keys.uniform(keys.root(1), torch.Size(shape).numel()).reshape(shape)
        return (255 * x).to(torch.uint8) if self._image else x.float()

    @property
    def _most(self) -> int:
        """The largest value of an input in `_sample`."""
        return 255 if self._image else 1

    def predict(self, params: Params, x: Tensor) -> Tensor:
        if self._chain is not None:
            return self._chain.logits(params, self._scaled(x, next(iter(params.values())).dtype))
        self._net.eval()
        with torch.no_grad():
            out: Tensor = torch.func.functional_call(self._net, self._passed(params, False), (self._inputs(x, params),))
        return out

    def _passed(self, params: Params, training: bool) -> Params:
        """Parameters for one pass. A training pass updates running statistics: in place if a gradient is computed, else
        in a copy.
        """
        if not self.statistics:
            return params
        asked = torch.is_grad_enabled() and params[self._names[0]].requires_grad
        kept = {name: params[name].detach() for name in self.statistics}
        return {**params, **(kept if asked or not training else {n: value.clone() for n, value in kept.items()})}

    def still(self, *asked: object, params: Params | None = None) -> AbstractContextManager[None]:
        """Context that raises an error if the network, or a user's own functions `asked`, change state, or write to
        `params`, while gradients of single examples are computed.
        """
        if self._chain is not None and not of_calls(asked):
            return nullcontext()
        return still(self._net, self._rest, asked, params or {})

    def _train_mode(self, keys: Tensor | None, on: bool = True) -> None:
        """Switches training mode on or off, and gives each dropout layer one key per example."""
        self._net.train(on)
        for dropout in self._dropouts:
            dropout.keys = keys

    def _pass(self, training: bool = True) -> Tensor:
        self._net.train(training)
        with torch.no_grad():
            out: Tensor = self._net(self._inputs(self._sample, dict(self._trained)))
        return out

    def _seeded(self, drawn: Tensor | None) -> AbstractContextManager[None]:
        """Context that seeds random draws inside the network with the keys of its examples."""
        return nullcontext() if drawn is None or not self._draws else seeded(drawn)

    def _spans(self, n: int) -> bool:
        return self._chain is not None and self._augment is None and self._chain.spans(n)

    def _inputs(self, x: Tensor, params: Params, draws: Tensor | None = None, plain: int = 0) -> Tensor:
        # a user's own network may want to `view` its images, and some kernels of torch crash on other layouts
        return self._seen(x, next(iter(params.values())).dtype, draws, plain).contiguous()

    def _seen(self, x: Tensor, dtype: torch.dtype, draws: Tensor | None, plain: int = 0) -> Tensor:
        """Inputs of the network; with `draws` they are augmented, as in training, except the last `plain` ones."""
        scaled, some = self._scaled(x, dtype), len(x) - plain
        if draws is None or self._augment is None or not some:
            return scaled
        cut = self._augment(scaled[:some], draws[:some])
        return torch.cat([cut, scaled[some:]]) if plain else cut

    def _scaled(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Rows scaled as (x - mean) / std; images become [n, c, h, w] in channels-last memory, their layout on disk."""
        scaled = x.to(dtype, copy=True).mul_(self._scale.to(dtype)).add_(self._shift.to(dtype))
        if not self._image:
            return scaled
        n, height, width, channels = scaled.shape
        # with one channel both layouts are the same memory, and only the ordinary strides say so to every kernel
        return scaled.view(n, 1, height, width) if channels == 1 else scaled.movedim(-1, 1)


def _pass_floats() -> int:
    return GPU_FLOATS if on_gpu() else POOL_FLOATS


def _state_entries(net: nn.Module, trained: Params, moving: tuple[str, ...]) -> dict[str, Tensor | str]:
    """The entries of a network's `state_dict`, in order: for each the name of the model's parameter or statistic, or
    the frozen value itself.
    """
    names = {id(p): name for name, p in trained.items()} | {id(net.get_buffer(name)): name for name in moving}
    return {
        name: names.get(id(value)) or value.detach().clone()
        for name, value in net.state_dict(keep_vars=True).items()
        if isinstance(value, Tensor)
    }


def draws_numbers(passing: Callable[[], object]) -> bool:
    """True if a pass draws from torch's own generator, such as dropout inside an attention or a recurrent layer."""
    with torch.random.fork_rng(devices=[]), torch.no_grad(), drawing():
        before = torch.get_rng_state()
        passing()
        return not torch.equal(before, torch.get_rng_state())


@contextmanager
def seeded(drawn: Tensor) -> Iterator[None]:
    """Context that seeds torch's generator with the keys of all examples together, so that another process draws the
    same numbers, and restores its state afterwards.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.as_tensor(keys.fold(drawn, "own draws")).sum()))
        with drawing():
            yield


class _FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # to be skipped, a mode imports it
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        self.total += 0 if formula is None else formula(*args, **(kwargs or {}), out_val=out)
        return out


def count_flops(forward: Callable[[], object]) -> int:
    """Floating-point operations of a forward pass, by torch's own formulas, without importing torch's compiler, which
    would take a second in every process.
    """
    with _FlopCounter() as counting, torch.no_grad():  # type: ignore[no-untyped-call]
        forward()
    return int(counting.total)
