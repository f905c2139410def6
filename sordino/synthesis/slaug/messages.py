"""States and messages of SlaugFL's preparation, and its traffic by the published formula, counted in parameters.

Formula (18) of SlaugFL (IEEE Transactions on Mobile Computing, 2024). M devices send a model of d_m parameters and get
a generator of d_g, C class prototypes of d_p are sent once, and in each of T rounds K devices get and send C of them
beside the model:

    M (d_m + d_g) + C d_p + 2 T K C d_p                       more than FedAvg's 2 T K d_m
    R_e = M (d_m + d_g) / (2 T K d_m) + C d_p / d_m           the published ratio: without the prototypes that are sent
                                                              once

The formula does not count the first broadcast, running statistics and headers, so reports show the measured bytes
beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sordino.algorithms.algorithm import Algorithm
from sordino.algorithms.phases import AskedDevice, DeviceScores, RunNumbers
from sordino.ledger.books import PUBLIC_TENSORS, TRAINING
from sordino.synthesis import generators
from sordino.synthesis.slaug.training import Calibrated
from sordino.types import Message, Params

if TYPE_CHECKING:
    from torch import Tensor


class DeviceModel(NamedTuple):
    """State of a device between phases: the model that it trained."""

    model: Params


class Ranked(NamedTuple):
    """State of the server in the phase `train`: recall and F1 score of each device's model by class, and the best
    devices' models.
    """

    x: Params
    recall: Tensor  # [devices, classes]
    f1: Tensor
    order: Tensor  # [ranks, classes]: devices, the best first
    models: Params  # of these, [ranks, classes, ...]
    trained: Tensor  # true once the round is over


class Start(NamedTuple):
    """Broadcast: the model to train, and the number of the device."""

    x: Params
    device: Tensor  # its number


class Up(NamedTuple):
    """Upload: the change of the local model, and the number of the device."""

    delta: Params
    device: Tensor


class AskingState(NamedTuple):
    """State of the server during `ask`. A slot is one prototype to be collected: its class, and the device to ask for
    it.
    """

    order: Tensor  # [ranks, classes]
    models: Params  # [ranks, classes, ...]
    slots: Tensor  # the class of each
    place: Tensor  # rank of the device that is asked, or has answered
    state: Tensor  # of each slot: 0 waiting, 1 answered, 2 unanswered
    prototypes: Tensor  # [slots, d]
    counts: Tensor  # numbers of images in each, as received
    generator: Params
    kept: Tensor  # numbers of the candidates that were chosen, -1 beyond
    learned: Tensor  # classes that the generator knows
    log: Tensor  # of its training


class ImageRequest(NamedTuple):
    """Request for a prototype of one class."""

    label: Tensor  # of the requested class


class ImageRequests(NamedTuple):
    """Requests for prototypes, one for each slot."""

    device: Tensor  # [slots]; -1 without a request now
    label: Tensor


class Prototype(NamedTuple):
    """A sum of features and its number of images; with zero images the device declines the request."""

    label: Tensor
    total: Tensor
    images: Tensor


def requests_of(s: AskingState, skills: Sequence[Sequence[DeviceScores]]) -> list[list[AskedDevice]]:
    """Devices that were asked for a prototype of each class, the best one first; empty if no device has been scored."""

    def of(label: int) -> list[AskedDevice]:
        of_label = s.slots == label
        ranks = set(s.place[of_label & (s.state == 1)].tolist())
        last = int(s.place[of_label].max()) if bool(of_label.any()) else -1
        devices = s.order[: last + 1, label].tolist()
        return [AskedDevice(k, rank in ranks, *skills[k][label]) for rank, k in enumerate(devices)]

    return [of(label) for label in range(s.order.shape[1])] if skills else []


def formula(training: Algorithm[Any, Any, Any, Any], public: RunNumbers) -> Sizes | None:
    """SlaugFL's traffic by its published formula (18), from public numbers of the run; None for a training without
    drawn images."""
    if not isinstance(training, Calibrated):
        return None
    return Sizes(**public._asdict(), generator=generators.parameters(training.drawn_by))


class Sizes(NamedTuple):
    """Numbers of devices, rounds and parameters from which SlaugFL's published formula (18) computes its traffic."""

    devices: int
    chosen: int  # per round
    rounds: float  # fractional for a mean over seeds
    classes: int
    model: int  # parameters
    generator: int
    width: int  # dimensions of a prototype

    @property
    def round(self) -> int:
        """Parameters sent in one round of FedAvg, in both directions."""
        return 2 * self.chosen * self.model

    @property
    def messages(self) -> dict[Message, float]:
        """Parameters sent in each kind of message; their sum is formula (18)."""
        prototypes = self.classes * self.width
        each = self.rounds * self.chosen * prototypes
        return {
            ("train", "up"): self.devices * self.model,
            ("ask", "up"): prototypes,
            (PUBLIC_TENSORS, "down"): self.devices * self.generator,
            (TRAINING, "down"): each,
            (TRAINING, "up"): each,
        }

    @property
    def parameters(self) -> float:
        """Parameters sent beyond those of FedAvg over all rounds: formula (18)."""
        return sum(self.messages.values())

    @property
    def ratio(self) -> float:
        """The published ratio R_e: extra traffic as a share of FedAvg's over all rounds, without the prototypes that
        are sent once. It falls with the number of rounds.
        """
        return self.upfront / self.rounds + self.classes * self.width / self.model

    @property
    def upfront(self) -> float:
        """Traffic before round 1 (models up, generators down), as a number of rounds of FedAvg."""
        return self.devices * (self.model + self.generator) / self.round

    def charged(self, rounds: float) -> float:
        """Traffic of this many rounds, with all that SlaugFL sends beyond FedAvg, as a number of rounds of FedAvg."""
        return rounds + self._replace(rounds=rounds).parameters / self.round
