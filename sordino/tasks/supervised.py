"""Supervised learning: a network and a loss per labelled example, for classes, several labels, or numbers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cached_property, partial
from itertools import zip_longest

import torch
from torch import Tensor, nn

from sordino import keys
from sordino.errors import ConfigError, DataError
from sordino.fast.factored import ClientRows, Part, Ready
from sordino.fast.graphs import replayed
from sordino.privacy.readers.per_example_gradients import Sides, fast_sum, one_by_one, passes, slow_medians, slow_sum
from sordino.tasks.architecture import Architecture
from sordino.tasks.hidden_state import remembered, several
from sordino.tasks.losses import CrossEntropy, LossFunction, WrittenLoss, bits
from sordino.tasks.nets import bounded, largest_token
from sordino.tasks.network import InputSettings, NetworkOnRows
from sordino.tasks.written_out_backward import Chain, Slope
from sordino.types import Examples, Losses, Params


class Supervised(NetworkOnRows, ABC):
    """A network and the loss that it is trained with."""

    feature_radius: float | None = None
    scores: tuple[str, ...]  # metrics over all test examples together that suit its predictions
    always: tuple[str, ...] = ()  # those of them that are measured by default
    places = 0  # dimensions of an example over which it has outputs: 1 for each token of a text

    def __init__(self, net: nn.Module, inputs: InputSettings, loss: LossFunction) -> None:
        super().__init__(net, inputs, written_out=isinstance(loss, WrittenLoss))
        self._loss = loss
        self._tried: tuple[Losses, bool] | None = None  # the losses last tried, and whether the layer rules hold
        if self._chain is None and (found := self._pass(training=False).dim() - 2) != self.places:
            raise DataError(
                f"the model {self.name!r} gives outputs {'at each place of an example' if found else 'for an example'}",
                why="the next token is predicted at each place of a text; every other task, once for an example",
                fix='set task.name = "next_token"' if found else "return [texts, length, vocabulary]",
                code="model-outputs",
            )

    @property
    @abstractmethod
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that `score` returns, the main one first."""

    @abstractmethod
    def answers(self, outputs: Tensor) -> Tensor:
        """Predictions from network outputs: probabilities of classes or labels, or numbers."""

    def truth(self, y: Tensor) -> Tensor:
        """Labels in the form in which `answers` gives predictions."""
        return y

    @abstractmethod
    def constant(self, examples: Examples) -> float:
        """The main metric of the best constant prediction."""

    def targets(self, x: Tensor, y: Tensor) -> Tensor:
        """Targets of the loss: the labels; for a language model the inputs, which it predicts."""
        return y

    def all_outputs(self, params: Params, x: Tensor) -> Tensor:
        """Network outputs for any number of rows."""
        many = 128 if self._image else 1024  # rows whose activations fit the cache
        return torch.cat([self.predict(params, x[i : i + many]) for i in range(0, len(x), many)])

    @cached_property
    def labels(self) -> int:
        """Number of labels, at most the number of network outputs: a method may add outputs of its own."""
        return self.classes

    @abstractmethod
    def score(self, params: Params, examples: Examples) -> Mapping[str, Tensor]:
        """One value for each example, by metric."""

    @abstractmethod
    def _any_labels(self, many: int) -> Tensor:
        """Arbitrary valid labels, for probing a loss."""

    def losses(self, params: Params, x: Tensor, y: Tensor, keys: Tensor) -> Tensor:
        self._train_mode(keys)
        with self._seeded(keys), several():
            own = self._passed(params, True)
            logits = torch.func.functional_call(self._net, own, (self._inputs(x, params, keys),))
        return self._loss(logits, self.targets(x, y))

    def ready(self, x: Tensor, y: Tensor, whole: bool = False) -> tuple[Ready, Tensor]:
        """Rows and labels prepared once for `gradient`, to be cut into batches later. `whole`: these are all rows of a
        client, and all will be used.
        """
        scaled = self._scaled(x, torch.float32)
        if self._chain is None:
            return scaled.contiguous(), y
        labels = self._target(y, torch.float32)
        if whole and self._spans(len(y)):
            return ClientRows(scaled.flatten(1)), labels
        return scaled.to(self.precision), labels

    def gradient(
        self, params: Params, x: Ready, y: Tensor, draws: Callable[[], Tensor], share: Tensor | None = None
    ) -> Params:
        """The gradient of the mean loss over rows from `ready`, equal to autograd's gradient of `losses`; a network
        with written-out backward pass (`Chain`) builds no graph for it. `share`: the weight of each row in the mean,
        only where `pads`. The pass updates running statistics among `params`, whose gradient is zero.
        """
        kind = next(iter(params.values())).dtype
        drawn = draws() if self._drops or self._draws or self._augment is not None else None
        if self._chain is not None:
            return replayed(self, "gradient", self._of_chain, params, x, y, drawn, share)
        assert share is None
        if self._augment is not None:
            assert drawn is not None
            x = self._augment(x, drawn)
        x = x.to(kind)
        if self.statistics:
            return self._moved(params, x.contiguous(), y, drawn)
        self._train_mode(drawn)
        for name, p in self._trained:
            p.data = params[name]
        with self._seeded(drawn):
            value = self._loss(self._net(x.contiguous()), self.targets(x, y)).mean()
        back = torch.autograd.grad(value, [p for _, p in self._trained])
        return {name: g for (name, _), g in zip(self._trained, back, strict=True)}

    def _of_chain(self, params: Params, x: Ready, y: Tensor, drawn: Tensor | None, share: Tensor | None) -> Params:
        assert self._chain is not None
        kind = next(iter(params.values())).dtype
        if self._augment is not None:
            assert drawn is not None
            x = self._augment(x, drawn)
        if self.precision == torch.bfloat16:
            low = {name: value.to(self.precision) for name, value in params.items()}
            found = self._chain.gradient(low, x, y, drawn, self._slope, share)
            return {name: g.to(kind) for name, g in found.items()}
        if isinstance(x, Part) and y.dtype != kind:
            x = x.taken()
        if not isinstance(x, Part) and x.dtype != kind:
            x, y = x.to(kind), y.to(kind)
        return self._chain.gradient(params, x, y, drawn, self._slope, share)

    def _moved(self, params: Params, x: Tensor, y: Tensor, drawn: Tensor | None) -> Params:
        """The gradient of the mean loss; the pass updates the running statistics in `params`."""
        leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
        self._train_mode(drawn)
        with self._seeded(drawn), several():
            logits = torch.func.functional_call(self._net, self._passed(leaves, True), (x,))
            value = self._loss(logits, self.targets(x, y)).mean()
        back = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
        return dict(zip(leaves, back, strict=True))

    def _target(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """Labels as targets of the loss, in the form that the written-out backward pass takes (see
        `WrittenLoss.target`).
        """
        assert self._chain is not None
        assert isinstance(self._loss, WrittenLoss)
        return self._loss.target(y, self._chain.classes, dtype)

    @property
    def _slope(self) -> Slope:
        assert isinstance(self._loss, WrittenLoss)
        return self._loss.slope

    def pooled(self, params: Params, x: Tensor, y: Tensor, clip: float, order: int) -> Sides:
        """The input and the output gradient of every layer for the rows of many clients in one pass."""
        assert self._chain is not None
        kind = next(iter(params.values())).dtype
        tape = self._chain.tape(params, self._scaled(x, kind), self._target(y, kind), None, self._slope)
        return Sides([tape], clip, order, kind)

    def clipped_sum(
        self, losses: Losses, params: Params, batch: Examples, keys: Tensor, clip: float, order: int, solo: bool = False
    ) -> Params:
        """Sum of the examples' gradients, each clipped to `clip` in the given norm over all parameters jointly.

        All examples go through in one pass if every layer is known never to mix them; a user's own network or losses
        take one example at a time. `solo`: each goes through in a pass of its own (`passes`).
        """
        if self._chain is not None and losses == self.losses:
            return self._sides(self._chain, params, batch, keys, clip, order, solo).sum(params)
        total = None
        if self._ruled(losses, params):
            total = fast_sum(self._recorder, losses, params, batch, keys, clip, order, solo)
        return total or slow_sum(losses, params, batch, keys, clip, order, solo)

    def _sides(
        self, chain: Chain, params: Params, batch: Examples, keys: Tensor, clip: float | None, order: int, solo: bool
    ) -> Sides:
        kind = next(iter(params.values())).dtype
        x, y = self._seen(batch.x, kind, keys), self._target(batch.y, kind)
        each = passes(solo, x, y, keys if self._drops else None)
        return Sides([chain.tape(params, x, y, drawn, self._slope) for x, y, drawn in each], clip, order, kind)

    def check_used(self) -> None:
        """Refuses a trained parameter that no loss depends on, such as one of an adapter that is switched off."""
        if self._chain is not None:
            return
        leaves = {name: p.detach().requires_grad_() for name, p in self._trained}
        draws = keys.bits(keys.root(1), 3)
        total = self.losses(leaves | self._first, self._sample, self._any_labels(3), draws).sum()
        slopes = torch.autograd.grad(total, [*leaves.values()], allow_unused=True) if total.requires_grad else ()
        if idle := [name for name, slope in zip_longest(leaves, slopes) if slope is None]:
            raise ConfigError(
                f"no loss depends on the parameter {idle[0]}",
                why="it would be sent and made noisy in every round, and learn nothing",
                fix="use it in forward (an adapter must be switched on), or freeze it: requires_grad_(False)",
                code="unused-parameter",
            )

    @cached_property
    def remembers(self) -> str:
        params = {name: value.clone() for name, value in self._values.items()}
        y, draws = self._any_labels(3), keys.bits(keys.root(1), 3)
        some = self._sample
        rows = some, some // 2, self._most - some  # another pass over the same rows may change nothing
        return remembered(
            self._net, self._rest, [self._loss], params, *(partial(self.losses, params, x, y, draws) for x in rows)
        )

    def still(self, *asked: object, params: Params | None = None) -> AbstractContextManager[None]:
        return super().still(self._loss, *asked, params=params)

    def median_sum(
        self, losses: Losses, params: Params, batch: Examples, keys: Tensor
    ) -> tuple[Params, dict[str, float]]:
        """The sum of the examples' gradients, where each parameter's gradients are clipped to the median of their
        norms, and these medians. It gives no privacy guarantee.
        """
        if self._chain is None or losses != self.losses:
            return slow_medians(losses, params, batch, keys)
        sides = self._sides(self._chain, params, batch, keys, None, 2, False)
        return sides.sum(params), sides.radii

    def _ruled(self, losses: Losses, params: Params) -> bool:
        """True if the per-layer rules give the correct per-example gradients of these losses; tested once for each."""
        if self._recorder.supported and (self._tried is None or self._tried[0] != losses):
            self._tried = losses, self._rules_hold(losses, params)
        return self._tried is not None and self._tried[1]

    @cached_property
    def largest_token(self) -> int:
        """The largest token that the network can look up; 0 where its rows are no texts."""
        if self._image:
            return 0
        return largest_token(self._net, lambda most: self.predict(self._values, self._texts(most)))

    def _texts(self, most: int) -> Tensor:
        """Two random texts of tokens up to `most`, the second with padding behind it."""
        drawn = keys.uniform(keys.root(2), 2 * math.prod(self._shape)).reshape(2, -1)
        texts = (1 + drawn * most).floor().clamp_max(most)
        texts[1, texts.shape[1] // 2 :] = 0
        return texts.reshape(2, *self._shape).float()

    def _rules_hold(self, losses: Losses, params: Params) -> bool:
        # they assume that each layer is used once and owns its parameters, and that a loss reaches the parameters
        # through the layers only. This is tried on random rows; where the trial misleads, a gradient is wrong, but it
        # depends on one example alone, and is clipped
        x = self._sample
        if (most := self.largest_token) > 0:  # tokens are numbers from 1 on
            x = torch.cat([x, self._texts(most)])
        batch, draws = Examples(x, self._any_labels(len(x))), keys.bits(keys.root(1), len(x))
        try:
            fast = fast_sum(self._recorder, losses, params, batch, draws, 0.5, 2)
        except RuntimeError:  # an in-place operation on a layer's output
            return False
        slow = one_by_one(losses, params, batch, draws, 0.5, 2)
        return fast is not None and all(torch.allclose(fast[k], slow[k], rtol=1e-3, atol=1e-5) for k in slow)


class Classification(Supervised):
    """Classification by softmax cross-entropy."""

    scores = ("auroc", "f1", "calibration_error", "confusion")

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
        architecture: Architecture | None = None,
    ) -> None:
        """`labels`: number of classes, if the network has more outputs; `loss`: a loss per example that replaces
        cross-entropy; `keeps`: training starts from the network's own values, not from drawn ones.
        """
        inputs = InputSettings(name, shape, mean, std, image, precision, augment, keeps, architecture)
        super().__init__(net, inputs, CrossEntropy() if loss is None else loss)
        self._labels = labels
        self.feature_radius = bounded(net) if loss is None else None  # the bound on gradients holds for cross-entropy

    def _any_labels(self, many: int) -> Tensor:
        return torch.arange(many) % self.classes

    @cached_property
    def labels(self) -> int:
        return self.classes if self._labels is None else self._labels

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that `score` returns, the main one first."""
        return ("accuracy", "loss", *(("accuracy_of_all_outputs",) if self.classes > self.labels else ()))

    def answers(self, outputs: Tensor) -> Tensor:
        return outputs[:, : self.labels].double().softmax(1)

    def constant(self, examples: Examples) -> float:
        """The share of the most frequent class, which is the accuracy of the best constant prediction."""
        return int(torch.bincount(examples.y).max()) / len(examples.y)

    def score(self, params: Params, examples: Examples) -> Mapping[str, Tensor]:
        every = self.all_outputs(params, examples.x)
        logits = every[:, : self.labels]
        found = {
            "accuracy": (logits.argmax(1) == examples.y).double(),
            "loss": self._loss(logits, examples.y).double(),
        }
        if self.classes > self.labels:
            found["accuracy_of_all_outputs"] = (every.argmax(1) % self.labels == examples.y).double()
        return found


class MultiLabel(Supervised):
    """Multi-label classification. The label of an example is a whole number, whose i-th bit is the i-th label."""

    metrics = ("label_accuracy", "loss")
    scores = ("auroc", "f1")
    always = scores

    def answers(self, outputs: Tensor) -> Tensor:
        return torch.sigmoid(outputs.double())

    def truth(self, y: Tensor) -> Tensor:
        return bits(y, self.labels)

    def score(self, params: Params, examples: Examples) -> Mapping[str, Tensor]:
        outputs = self.all_outputs(params, examples.x)
        right = (outputs > 0) == self.truth(examples.y).bool()
        return {"label_accuracy": right.double().mean(1), "loss": self._loss(outputs, examples.y).double()}

    def constant(self, examples: Examples) -> float:
        """The accuracy if each label is always predicted as its most frequent value."""
        held = self.truth(examples.y).double().mean(0)
        return float(torch.maximum(held, 1 - held).mean())

    def _any_labels(self, many: int) -> Tensor:
        found: Tensor = torch.arange(many) % 2**self.labels
        return found


class Regression(Supervised):
    """Regression: prediction of a number in a declared range."""

    metrics = ("mean_absolute_error", "loss")
    scores = always = ("rmse", "r2")

    def __init__(
        self,
        net: nn.Module,
        inputs: InputSettings,
        loss: LossFunction,
        range: tuple[float, float],
        value: Callable[[Tensor], Tensor],
    ) -> None:
        """`value`: converts a network output to the unit of the label."""
        super().__init__(net, inputs, loss)
        self._range, self._value = range, value

    def answers(self, outputs: Tensor) -> Tensor:
        return self._value(outputs.double())[:, 0].clamp(*self._range)

    def score(self, params: Params, examples: Examples) -> Mapping[str, Tensor]:
        outputs = self.all_outputs(params, examples.x)
        distance = (self.answers(outputs) - examples.y.double()).abs()
        return {"mean_absolute_error": distance, "loss": self._loss(outputs, examples.y).double()}

    def constant(self, examples: Examples) -> float:
        """The mean absolute error of always predicting the mean."""
        y = examples.y.double()
        return float((y - y.mean()).abs().mean())

    def _any_labels(self, many: int) -> Tensor:
        return torch.linspace(*self._range, many).round()
