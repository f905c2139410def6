"""What the phases of SlaugFL's preparation hold, what they send, and what they tell a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sordino.algorithms.algorithm import Algorithm
from sordino.algorithms.phases import Asked, DeviceSkill, RunNumbers
from sordino.synthesis.slaug.traffic import Sizes
from sordino.synthesis.slaug.training import Calibrated
from sordino.types import Params

if TYPE_CHECKING:
    from torch import Tensor


class Owner(NamedTuple):
    """What a device keeps between phases: its own model."""

    model: Params


class Ranked(NamedTuple):
    """What the server knows after `train`."""

    x: Params
    recall: Tensor  # [devices, classes]
    f1: Tensor
    order: Tensor  # [ranks, classes]: devices, the best first
    models: Params  # of these, [ranks, classes, ...]
    trained: Tensor  # has it been done?


class Start(NamedTuple):
    x: Params
    device: Tensor  # which one this is


class Up(NamedTuple):
    delta: Params
    device: Tensor


class Asking(NamedTuple):
    """Requests in a row: one for each slot, a class and whom to ask for it."""

    order: Tensor  # [ranks, classes]
    models: Params  # [ranks, classes, ...]
    slots: Tensor  # the class of each
    place: Tensor  # the rank that is asked, or has answered
    state: Tensor  # of each slot: 0 waiting, 1 answered, 2 nobody answers
    prototypes: Tensor  # [slots, d]
    counts: Tensor  # of images in each, as they were told
    generator: Params
    kept: Tensor  # numbers of the candidates that were chosen, -1 beyond
    learned: Tensor  # classes that the generator knows
    log: Tensor  # of its training


class Wish(NamedTuple):
    label: Tensor  # of the class that this device is asked for


class Wishes(NamedTuple):
    device: Tensor  # [slots]; -1 where nobody is asked now
    label: Tensor


class Prototype(NamedTuple):
    """A sum of features and how many images it is of; of no images: the device declines."""

    label: Tensor
    total: Tensor
    images: Tensor


def requests_of(s: Asking, skills: Sequence[Sequence[DeviceSkill]]) -> list[list[Asked]]:
    """The devices that were asked for each class, in their order: by rank, whatever slot was waiting. Nothing where
    nobody knows how good they are.
    """

    def of(label: int) -> list[Asked]:
        mine = s.slots == label
        ranks = set(s.place[mine & (s.state == 1)].tolist())
        last = int(s.place[mine].max()) if bool(mine.any()) else -1
        devices = s.order[: last + 1, label].tolist()
        return [Asked(k, rank in ranks, *skills[k][label]) for rank, k in enumerate(devices)]

    return [of(label) for label in range(s.order.shape[1])] if skills else []


def formula(training: Algorithm[Any, Any, Any, Any], public: RunNumbers) -> Sizes | None:
    """Formula (18), which knows of models that devices send and of a generator; nothing where none is trained on."""
    if not isinstance(training, Calibrated):
        return None
    from sordino.synthesis.generators import nets

    return Sizes(
        devices=public.devices,
        chosen=public.chosen,
        rounds=public.rounds,
        classes=public.classes,
        model=public.model,
        generator=nets.parameters(training.drawn_by),
        prototype=public.width,
    )
