"""What is learned: a network and its cross-entropy on images or tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property

import torch
from torch import Tensor, nn

from sordino import keys
from sordino.errors import ConfigError, UnsoundGuarantee
from sordino.lazy import ClientRows, Part, Ready
from sordino.privacy.readers.per_example_gradients import Recorder, Sides, fast_sum, one_by_one, slow_medians, slow_sum
from sordino.tasks.augment import AUGMENT
from sordino.tasks.draws import draws, seeded
from sordino.tasks.features import Head, of_chain, transformed
from sordino.tasks.flops import count as operations
from sordino.tasks.memory import coupling, remembered, still
from sordino.tasks.nets import bounded, keyed_dropout
from sordino.tasks.own_loss import LossFunction, cross_entropy
from sordino.tasks.written_out_backward import Chain
from sordino.types import Examples, Losses, Params

STACK_WEIGHTS = 1 << 16  # of one client: more of them leave the cache faster than calls are saved
POOL_FLOATS = 6_000_000  # of one pass over many clients' rows: about what the caches hold


class Classification:
    """Classification by softmax cross-entropy. Rows stay as they were decoded (uint8, channels last) until a batch
    is read.
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        name: str,
        shape: tuple[int, ...],
        mean: tuple[float, ...],
        std: tuple[float, ...],
        image: bool,
        precision: torch.dtype = torch.float32,
        augment: str = "none",
        labels: int | None = None,
        loss: LossFunction | None = None,
        keeps: bool = False,
    ) -> None:
        """`labels`: how many classes there are, where the network has outputs beyond them; `loss`: of each example, in
        place of cross-entropy; `keeps`: training starts from the network's own values, and not from drawn ones."""
        self.name, self._labels = name, labels
        self._loss: LossFunction = cross_entropy if loss is None else loss
        self._augment = AUGMENT[augment]
        self._net, self._image, self._shape = net, image, shape
        each = shape if image and len(mean) > shape[-1] else (-1,)  # for every pixel, or for a channel or feature
        deviation = torch.tensor(std, dtype=torch.float64).clamp_min(1e-6).reshape(each)
        self._scale = (1 / (deviation * (255 if image else 1))).float()
        self._shift = (-torch.tensor(mean, dtype=torch.float64).reshape(each) / deviation).float()
        self._dropouts = keyed_dropout(net)
        self._drops = bool(self._dropouts)
        for module in net.modules():
            if getattr(module, "inplace", False):
                # same values, and the layer rules can read what came out
                module.inplace = False  # type: ignore[assignment]
        self.mixes_examples = coupling(net)
        if self.mixes_examples:
            raise UnsoundGuarantee(
                f"the model has a {self.mixes_examples} layer",
                why="its running statistics mix the examples of a batch, and those of all clients, where no clip "
                "bounds it",
                fix="use nn.GroupNorm instead",
                code="batch-norm",
            )
        self.feature_radius = bounded(net) if loss is None else None  # it speaks of cross-entropy
        self._names = [name for name, p in net.named_parameters() if p.requires_grad]
        if not self._names:
            raise ConfigError(
                f"the model {name!r} has no trainable parameters",
                why="there is nothing to learn",
                fix="leave requires_grad = True for at least one parameter",
                code="model-without-parameters",
            )
        self._trained = [(name, p) for name, p in net.named_parameters() if p.requires_grad]
        self._held = {name: p.detach().clone() for name, p in self._trained} if keeps else None
        self._rest = _beside(net, dict(self._trained))
        self._chain = Chain.of(net, shape) if loss is None else None  # its way back is that of cross-entropy
        # bf16 pays where convolutions do the work; weights, sums and everything private stay in fp32
        self.precision = precision if self._chain is not None and self._chain.images else torch.float32
        self._recorder = Recorder(net)
        # attention and recurrent layers have dropouts of their own
        self._draws = self._chain is None and draws(self._pass)
        self._tried: tuple[Losses, bool] | None = None  # the losses last tried; do the layer rules hold for them?

    def init(self, key: keys.Key) -> Params:
        """The values that training starts from: drawn by the key, but where the network keeps its own."""
        if self._held is not None:
            return {name: value.clone() for name, value in self._held.items()}
        if self._chain is None:
            for _, p in self._trained:
                p.data = p.data.clone()  # `gradient` has put somebody's weights there
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(keys.word(key))  # of other devices nothing is drawn
            for module in self._net.modules():
                reset = getattr(module, "reset_parameters", None)
                if callable(reset):
                    reset()
        for name, value in self._net.state_dict(keep_vars=True).items():
            if isinstance(kept := self._rest.get(name), Tensor):  # what is frozen, and buffers, stay as they were
                value.data.copy_(kept)
        return {name: p.detach().clone() for name, p in self._trained}

    def state_dict(self, params: Params) -> Params:
        """All that the network holds at these parameters, by the names of its own `state_dict`: also what is frozen,
        and buffers as its constructor left them."""
        return {name: params[kept] if isinstance(kept, str) else kept for name, kept in self._rest.items()}

    def losses(self, params: Params, x: Tensor, y: Tensor, keys: Tensor) -> Tensor:
        self._net.train()
        for dropout in self._dropouts:
            dropout.keys = keys
        with self._seeded(keys):
            logits = torch.func.functional_call(self._net, params, (self._inputs(x, params, keys),))
        return self._loss(logits, y)

    def ready(self, x: Tensor, y: Tensor, whole: bool = False) -> tuple[Ready, Tensor]:
        """Rows and labels as `gradient` takes them: prepared once, cut into batches later. `whole` means all rows of
        a client, of which all will be used.
        """
        scaled = self._scaled(x, torch.float32)
        if self._chain is None:
            return scaled.contiguous(), y
        labels = self._one_hot(y, torch.float32)
        if whole and self._spans(len(y)):
            return ClientRows(scaled.flatten(1)), labels
        return scaled.to(self.precision), labels

    def gradient(self, params: Params, x: Ready, y: Tensor, draws: Callable[[], Tensor]) -> Params:
        """The gradient of the mean loss over rows that are `ready`. It is what autograd gives for `losses`, without
        a graph where the network is a chain.
        """
        kind = next(iter(params.values())).dtype
        drawn = draws() if self._drops or self._draws or self._augment is not None else None
        if self._augment is not None:
            assert drawn is not None
            x = self._augment(x, drawn)
        if self.precision == torch.bfloat16:
            assert self._chain is not None
            low = {name: value.to(self.precision) for name, value in params.items()}
            found = self._chain.gradient(low, x, y, drawn)
            return {name: g.to(kind) for name, g in found.items()}
        if isinstance(x, Part) and y.dtype != kind:
            x = x.taken()
        if not isinstance(x, Part) and x.dtype != kind:
            x, y = x.to(kind), y if self._chain is None else y.to(kind)
        if self._chain is not None:
            made: Params = self._chain.gradient(params, x, y, drawn)
            return made
        self._net.train()
        for dropout in self._dropouts:
            dropout.keys = drawn
        for name, p in self._trained:
            p.data = params[name]
        with self._seeded(drawn):
            value = self._loss(self._net(x.contiguous()), y).mean()
        back = torch.autograd.grad(value, [p for _, p in self._trained])
        return {name: g for (name, _), g in zip(self._trained, back, strict=True)}

    def _pass(self) -> None:
        self._net.train()
        self._net(self._inputs(self._sample, dict(self._trained)))

    def _seeded(self, drawn: Tensor | None) -> AbstractContextManager[None]:
        """What the network draws inside follows from the keys of its examples."""
        return nullcontext() if drawn is None or not self._draws else seeded(drawn)

    def _one_hot(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        assert self._chain is not None
        return torch.zeros(len(y), self._chain.classes, dtype=dtype).scatter(1, y[:, None], 1.0)

    def _spans(self, n: int) -> bool:
        return self._chain is not None and self._augment is None and self._chain.spans(n)

    def room(self, params: Params) -> int:
        if self._chain is None or self._drops or self._augment is not None:
            return 0
        return max(1, POOL_FLOATS // self._floats)

    def stacks(self, n: int) -> int:
        """How many clients of n rows are trained in one call; one where the arithmetic of a single client fills the
        processor.
        """
        if self._chain is None or self._chain.images:
            return 1
        walks = self._spans(n)
        weights = 0 if walks else sum(p.numel() for _, p in self._trained)
        return 1 if weights > STACK_WEIGHTS else max(1, POOL_FLOATS // (n * self._floats + weights))

    @cached_property
    def _floats(self) -> int:
        """Numbers that a pass over one row goes through."""
        assert self._chain is not None
        one = torch.zeros(1, *self._shape, dtype=torch.uint8 if self._image else torch.float32)
        own = {name: p.detach() for name, p in self._trained}
        return self._chain.floats(own, self._scaled(one, next(iter(own.values())).dtype))

    def pooled(self, params: Params, x: Tensor, y: Tensor, clip: float, order: int) -> Sides:
        """Both sides of every layer for many clients' rows at once."""
        assert self._chain is not None
        kind = next(iter(params.values())).dtype
        return Sides(self._chain.tape(params, self._scaled(x, kind), self._one_hot(y, kind), None), clip, order, kind)

    @cached_property
    def classes(self) -> int:
        if self._chain is not None:
            return self._chain.classes
        return self.predict({name: p.detach() for name, p in self._trained}, self._sample).shape[1]

    @cached_property
    def flops(self) -> int:
        """The operations of one example through the network, there and back; a way back counts as two ways there."""
        self._net.eval()
        return 3 * operations(lambda: self._net(self._inputs(self._sample[:1], dict(self._trained))))

    @cached_property
    def labels(self) -> int:
        return self.classes if self._labels is None else self._labels

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """The names of the values that `score` gives, the headline first."""
        return ("accuracy", "loss", *(("accuracy_of_all_outputs",) if self.classes > self.labels else ()))

    def features(self, params: Params, x: Tensor, keys: Tensor | None = None, plain: int = 0) -> Tensor:
        """The input of the last linear layer [n, d], differentiable in `params`. With keys, one per example, as in
        training; without, as in `predict`. The last `plain` images are never cut or mirrored.
        """
        if self._chain is not None and not transformed(
            next(iter(params.values())), x
        ):  # torch.func does not go the chain's own way back
            kind = next(iter(params.values())).dtype
            low = keys is not None and self.precision == torch.bfloat16
            seen = self._seen(x, kind, keys, plain)
            return of_chain(self._chain, params, seen, keys, self.precision if low else kind)
        head = self._head  # before the mode is set: finding it sets its own
        self._net.train(keys is not None)
        for dropout in self._dropouts:
            dropout.keys = keys
        with self._seeded(keys):
            return head.input(self._net, params, self._inputs(x, params, keys, plain))

    def look(self, params: Params, x: Tensor) -> Tensor:
        """Features of images [n, c, h, w] between 0 and 1, differentiable in them."""
        head, across = self._head, (1, -1, 1, 1)
        scale, shift = (255 * self._scale), self._shift
        if scale.dim() == 3:  # one for every pixel
            scale, shift = scale.movedim(-1, 0), shift.movedim(-1, 0)
        else:
            scale, shift = scale.view(across), shift.view(across)
        self._net.eval()
        return head.input(self._net, params, (x * scale + shift).to(next(iter(params.values())).dtype))

    @cached_property
    def width(self) -> int:
        """The number of features."""
        return self.features({name: p.detach() for name, p in self._trained}, self._sample).shape[1]

    def head(self, params: Params, z: Tensor) -> Tensor:
        """Logits from features."""
        if self._chain is not None:
            logits, _ = self._chain.links[-1].forward(params, z, None)
            return logits
        return self._head.logits(params, z)

    @cached_property
    def _head(self) -> Head:
        return Head(self._net, self.name, self._inputs(self._sample, dict(self._trained)))

    @cached_property
    def _sample(self) -> Tensor:
        """Random rows, to see what a network does."""
        shape = (3, *self._shape)
        x = keys.uniform(keys.root(1), torch.Size(shape).numel()).reshape(shape)
        return (255 * x).to(torch.uint8) if self._image else x.float()

    def predict(self, params: Params, x: Tensor) -> Tensor:
        if self._chain is not None:
            return self._chain.logits(params, self._scaled(x, next(iter(params.values())).dtype))
        self._net.eval()
        with torch.no_grad():
            out: Tensor = torch.func.functional_call(self._net, params, (self._inputs(x, params),))
        return out

    def score(self, params: Params, examples: Examples) -> Mapping[str, Tensor]:
        many = 128 if self._image else 1024  # rows whose activations fit the cache
        rows = [self.predict(params, examples.x[i : i + many]) for i in range(0, len(examples.y), many)]
        every = torch.cat(rows)
        logits = every[:, : self.labels]
        found = {
            "accuracy": (logits.argmax(1) == examples.y).double(),
            "loss": self._loss(logits, examples.y).double(),
        }
        if self.classes > self.labels:
            found["accuracy_of_all_outputs"] = (every.argmax(1) % self.labels == examples.y).double()
        return found

    def clipped_sum(
        self, losses: Losses, params: Params, batch: Examples, keys: Tensor, clip: float, order: int
    ) -> Params:
        """Sum of the examples' gradients, each clipped to `clip` in the given norm over all parameters jointly.

        All examples go through at once where each link of a chain is known to keep them apart; through anybody's own
        network or losses each goes alone.
        """
        if self._chain is not None and losses == self.losses:
            return self._sides(self._chain, params, batch, keys, clip, order).sum(params)
        total = None
        if self._ruled(losses, params):
            total = fast_sum(self._recorder, losses, params, batch, keys, clip, order)
        return total or slow_sum(losses, params, batch, keys, clip, order)

    def _sides(
        self, chain: Chain, params: Params, batch: Examples, keys: Tensor, clip: float | None, order: int
    ) -> Sides:
        kind = next(iter(params.values())).dtype
        x, y = self._seen(batch.x, kind, keys), self._one_hot(batch.y, kind)
        return Sides(chain.tape(params, x, y, keys if self._drops else None), clip, order, kind)

    def still(self) -> AbstractContextManager[None]:
        """Refuses a network that answers about single examples and is not the same afterwards."""
        return nullcontext() if self._chain is not None else still(self._net)

    @cached_property
    def remembers(self) -> str:
        params, y = {name: p.detach() for name, p in self._trained}, torch.zeros(3, dtype=torch.int64)
        return remembered(self._net, lambda: self.losses(params, self._sample, y, keys.bits(keys.root(1), 3)))

    def median_sum(
        self, losses: Losses, params: Params, batch: Examples, keys: Tensor
    ) -> tuple[Params, dict[str, float]]:
        """The sum of the examples' gradients, each parameter's cut to the median of its norms, and these medians. No
        promise can rest on it.
        """
        if self._chain is None or losses != self.losses:
            return slow_medians(losses, params, batch, keys)
        sides = self._sides(self._chain, params, batch, keys, None, 2)
        return sides.sum(params), sides.radii

    def _ruled(self, losses: Losses, params: Params) -> bool:
        """Do the layer rules give the gradients of these losses?"""
        if self._recorder.supported and (self._tried is None or self._tried[0] != losses):
            self._tried = losses, self._rules_hold(losses, params)
        return self._tried is not None and self._tried[1]

    def _inputs(self, x: Tensor, params: Params, draws: Tensor | None = None, plain: int = 0) -> Tensor:
        # somebody's own network may want to `view` its images, and some kernels of torch crash on other layouts
        return self._seen(x, next(iter(params.values())).dtype, draws, plain).contiguous()

    def _seen(self, x: Tensor, dtype: torch.dtype, draws: Tensor | None, plain: int = 0) -> Tensor:
        """With keys as in training."""
        scaled, some = self._scaled(x, dtype), len(x) - plain
        if draws is None or self._augment is None or not some:
            return scaled
        cut = self._augment(scaled[:some], draws[:some])
        return torch.cat([cut, scaled[some:]]) if plain else cut

    def _scaled(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """(x - mean) / std; images as [n, c, h, w] in channels-last memory, which is how they lie."""
        scaled = x.to(dtype, copy=True).mul_(self._scale.to(dtype)).add_(self._shift.to(dtype))
        if not self._image:
            return scaled
        n, height, width, channels = scaled.shape
        # with one channel both layouts are the same memory, and only the ordinary strides say so to every kernel
        return scaled.view(n, 1, height, width) if channels == 1 else scaled.movedim(-1, 1)

    def _rules_hold(self, losses: Losses, params: Params) -> bool:
        # they assume that each layer is used once and owns its parameters, and that a loss reaches the parameters
        # through the layers only:
        # try it on random rows. Where that deceives, a gradient is wrong; it stays one example's own, and clipped
        logits = self.predict(params, self._sample)
        batch = Examples(self._sample, torch.arange(3) % logits.shape[1])
        draws = keys.bits(keys.root(1), 3)
        try:
            fast = fast_sum(self._recorder, losses, params, batch, draws, 0.5, 2)
        except RuntimeError:  # an operation that overwrites what a layer gave
            return False
        slow = one_by_one(losses, params, batch, draws, 0.5, 2)
        return fast is not None and all(torch.allclose(fast[k], slow[k], rtol=1e-3, atol=1e-5) for k in slow)


def _beside(net: nn.Module, trained: Params) -> dict[str, Tensor | str]:
    """What a network's `state_dict` holds, in its order: the name of a trained parameter, or what nobody trains."""
    names = {id(p): name for name, p in trained.items()}
    return {
        name: names.get(id(value)) or value.detach().clone()
        for name, value in net.state_dict(keep_vars=True).items()
        if isinstance(value, Tensor)
    }
