"""Properties (laws) that `sordino check` tests on a model: those of a network that private methods and executors
assume, on random rows.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sordino import keys
from sordino.checks.trial import Broken, require
from sordino.errors import DataError
from sordino.tasks import Classify, NextToken, Regress
from sordino.tasks.architecture import Architecture, build_net
from sordino.tasks.language import LanguageModel
from sordino.tasks.network import InputSettings
from sordino.tasks.supervised import Supervised
from sordino.types import Examples, Params

if TYPE_CHECKING:
    from sordino.checks.parts import PartTrial

ROWS, USUAL, SEED = 5, 10, 11


class ModelScene(NamedTuple):
    """A network as a run uses it, with rows, labels, and a key for each row."""

    task: Supervised
    params: Params
    rows: Examples
    draws: Tensor

    @property
    def ways(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """Functions that compute outputs for rows, by description: in prediction and in training."""
        return {
            "as it predicts": lambda x: self.task.predict(self.params, x),
            "in training": lambda x: self.losses(x=x).detach(),
        }

    def losses(self, params: Params | None = None, x: Tensor | None = None, draws: Tensor | None = None) -> Tensor:
        return self.task.losses(
            self.params if params is None else params,
            self.rows.x if x is None else x,
            self.rows.y,
            self.draws if draws is None else draws,
        )


def scene(trial: PartTrial) -> ModelScene:
    """Build task, parameters and rows anew, as another process would."""
    task = task_of(trial)
    require(
        not task.mixes_examples,
        f"its {task.mixes_examples} layer mixes the rows of a batch, so no private method takes it",
        "use nn.GroupNorm or nn.LayerNorm; a run without any guarantee accepts it",
    )
    y = torch.arange(ROWS) % max(2, task.classes)
    return ModelScene(task, task.init(0), Examples(_inputs(task, trial, 1), y), keys.bits(keys.root(3), ROWS))


def task_of(trial: PartTrial) -> Supervised:
    outputs, image = _outputs(trial), len(trial.inputs) == 3
    _disturb_generators()
    try:
        net = Architecture(name=trial.name, options=trial.options, inputs=trial.inputs, outputs=outputs[-1]).built(SEED)
    except DataError as error:
        if error.code != "model-does-not-fit":
            raise
        raise Broken(error.what, "say what it takes: --inputs 30, or of images --inputs 3x32x32") from None
    shape = (*trial.inputs[1:], trial.inputs[0]) if image else trial.inputs
    half = 0.5 if image else 0.0
    inputs = InputSettings(trial.name, shape, (half,) * shape[-1], (half or 1.0,) * shape[-1], image, keeps=True)
    if len(outputs) == 2:
        return NextToken(outputs[1]).built(net, inputs, None, ())
    problem = Regress((-1.0, 1.0)) if outputs == (1,) else Classify()
    return problem.built(net, inputs, None, [str(k) for k in range(outputs[0])])


def _outputs(trial: PartTrial) -> tuple[int, ...]:
    """Shape of the outputs that the network has for an example; the usual number if it cannot be run."""
    net = build_net(trial.name, trial.inputs, USUAL, trial.options).eval()
    with contextlib.suppress(Exception), torch.no_grad():
        return tuple(net(torch.zeros(2, *trial.inputs)).shape[1:])
    return (USUAL,)


def _inputs(task: Supervised, trial: PartTrial, seed: int) -> Tensor:
    """Random rows that the network accepts; for a network on tokens, texts without padding."""
    rows = rows_of(trial.inputs, seed)
    return (rows * task.largest_token).floor() + 1 if task.largest_token else rows


def rows_of(inputs: tuple[int, ...], seed: int, many: int = ROWS) -> Tensor:
    """Random rows of numbers between 0 and 1, which a text model accepts as token numbers, too; images as bytes,
    channels last.
    """
    image = len(inputs) == 3
    shape = (many, *inputs[1:], inputs[0]) if image else (many, *inputs)
    x = keys.uniform(keys.root(seed), torch.Size(shape).numel()).reshape(shape)
    return (255 * x).to(torch.uint8) if image else x.float()


def _disturb_generators() -> None:
    """Put every random generator into another state."""
    some = random.SystemRandom().randrange(10**6)
    random.seed(some)
    np.random.seed(some)
    torch.manual_seed(some)


def _close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-3, atol=1e-5)


# the laws -------------------------------------------------------------------------------------------------------------


def takes_rows(trial: PartTrial) -> None:
    _ = scene(trial)


def begins_alike(trial: PartTrial) -> None:
    one, other = (scene(trial).params for _ in range(2))
    differs = next((name for name in one if not torch.equal(one[name], other[name])), None)
    require(
        differs is None,
        f"made twice from the same seed, it begins with other values of {differs}",
        "draw from torch's, numpy's or Python's generator, which are seeded; not from the clock or the system",
    )


def each_alone(trial: PartTrial) -> None:
    at = scene(trial)
    for when, answer in at.ways.items():
        found = answer(at.rows.x)
        for i in range(ROWS):
            others = _inputs(at.task, trial, 2)
            others[i] = at.rows.x[i]
            require(
                _close(answer(others)[i], found[i]),
                f"{when}, the answer about a row is another one beside other rows",
                "compute it from that row alone: no mean, maximum or attention over the first dimension; nn.GroupNorm "
                "or nn.LayerNorm in place of statistics of a batch",
            )
    if isinstance(at.task, LanguageModel):
        kept, others = trial.inputs[0] // 2, _inputs(at.task, trial, 2)
        others[:, :kept] = at.rows.x[:, :kept]
        one, other = (at.task.predict(at.params, x)[:, :kept] for x in (at.rows.x, others))
        require(
            _close(one, other),
            "the answer at a place of a text changes with the tokens behind it",
            "mask attention, so that it looks back only: else a token is told what it should predict",
        )


def answers_again(trial: PartTrial) -> None:
    at = scene(trial)
    for when, answer in at.ways.items():
        _disturb_generators()
        one = answer(at.rows.x)
        _disturb_generators()
        require(
            torch.equal(one, answer(at.rows.x)),
            f"{when}, the same rows and keys get another answer",
            "draw from torch's generator, and only where self.training is true",
        )


def follows_its_parameters(trial: PartTrial) -> None:
    used, fresh = scene(trial), scene(trial)
    other = {name: value + 0.1 * (value.abs() + 0.1) for name, value in used.params.items()}
    before = used.losses()
    wanted, found = fresh.losses(other), used.losses(other)
    require(
        torch.equal(wanted, found) and torch.equal(before, used.losses()),
        "after a pass with other parameters it does not answer as a new one would",
        "compute everything from the parameters in forward, and keep nothing that follows from them",
    )
    name = used.task.remembers
    require(not name, f"a pass changes its {name}", "keep nothing of the rows: no counters, no running statistics")


def has_finite_gradients(trial: PartTrial) -> None:
    found = _slopes(scene(trial))
    idle = next((name for name, g in found.items() if g is None), None)
    require(idle is None, f"the parameter {idle} plays no part in the answer", "use it, or freeze it (requires_grad)")
    slopes = [g for g in found.values() if g is not None]
    require(all(bool(g.isfinite().all()) for g in slopes), "a gradient is not finite", "avoid divisions by 0")
    require(any(bool(g.any()) for g in slopes), "all gradients are 0", "let the answer follow from the parameters")


def adds_up(trial: PartTrial) -> None:
    at = scene(trial)
    each = [_whole(_slopes(at, slice(i, i + 1))) for i in range(ROWS)]
    norms = torch.stack([nn.utils.get_total_norm([*one.values()]) for one in each])
    clip = float(norms.median())  # some are cut, and some are not
    cut = (clip / norms.clamp_min(1e-12)).clamp_max(1.0)
    found = {"clipped": (cut, at.task.clipped_sum(at.task.losses, at.params, at.rows, at.draws, clip, 2))}
    if torch.equal(at.losses(), at.losses(draws=at.draws + 1)):  # what is drawn for several rows is drawn together
        found["added up"] = torch.ones(ROWS), _whole(_slopes(at))
    for how, (scales, sums) in found.items():
        for name, value in sums.items():
            wanted = torch.stack([scale * one[name] for scale, one in zip(scales, each, strict=True)]).sum(0)
            require(
                _close(value, wanted),
                f"taken one by one and {how}, the gradients of {name} are others than taken together",
                "use every layer once in a pass, and let neither an answer nor its gradient follow from another row",
            )


def _slopes(at: ModelScene, rows: slice = slice(None)) -> dict[str, Tensor | None]:
    """Gradient of the summed losses, by parameter; None for parameters that do not enter them."""
    leaves = {name: value.clone().requires_grad_() for name, value in at.params.items()}
    losses = at.task.losses(leaves, at.rows.x[rows], at.rows.y[rows], at.draws[rows])
    return dict(zip(leaves, torch.autograd.grad(losses.sum(), [*leaves.values()], allow_unused=True), strict=True))


def _whole(found: dict[str, Tensor | None]) -> Params:
    return {name: g for name, g in found.items() if g is not None}


LAWS = {
    "repeats": ("the same seed makes the same network", begins_alike),
    "draws": ("with the same keys it draws the same, and without keys nothing", answers_again),
    "per example": ("the answer about a row follows from that row alone", each_alone),
    "functional": ("it follows the parameters that it is given, and remembers nothing", follows_its_parameters),
    "gradient": ("every parameter has a finite gradient", has_finite_gradients),
    "adds up": ("gradients of single rows, clipped or not, add up to those taken together", adds_up),
}
