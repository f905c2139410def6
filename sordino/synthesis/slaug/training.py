"""SlaugFL: training with images that a generator draws. "SlaugFL: Efficient federated learning via selective GAN-based
data augmentation", IEEE Transactions on Mobile Computing, 2024. `prepare` makes the generator; this file
is the collaborative phase, with its dual calibration.

Each client draws, once, as many images as it has examples, equally many of each class, and trains on both:
cross-entropy of its own images, `synthetic` times that of drawn ones, and `separation` times a contrast that pulls the
means of its classes towards global prototypes. The prototypes come from drawn images alone.

Deviations: a client of n examples draws the rest of n / classes for random classes (the original drops it). Prototypes
are averaged over all drawn images of a round. A momentum starts afresh in every round, unless it is kept. `label_mode =
"shifted"`, with which the published numbers were made, gives drawn images labels of their own.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, Protocol, Self, TypeAlias

import torch
from torch import Tensor

from sordino import keys, tree
from sordino.algorithms.fedavg import Client
from sordino.algorithms.local_sgd import LocalSgd, Walk
from sordino.algorithms.optional import FitsData, FollowsPhase, Home, OtherReads, OwnLoss, PublicFacts, PublicTensors
from sordino.errors import COUNT, NOT_NEGATIVE, POSITIVE
from sordino.keys import Key
from sordino.privacy.readers import How, gradient
from sordino.privacy.readers.class_sums import class_sums
from sordino.synthesis import generators
from sordino.synthesis.generators import GeneratorShape
from sordino.synthesis.slaug.generator import Kind, generator_shape
from sordino.tasks.losses import class_means, separation
from sordino.types import D, Examples, Params, Received, S, Shard, Task, U, Use

CLASSES = "classes"  # learned by the generator, beside its weights


class Server(NamedTuple):
    """The server's state: the model, and the prototypes of its classes."""

    x: Params
    prototypes: Tensor  # [classes, d]
    known: Tensor  # which of them there are
    round: Tensor


class MomentumState(NamedTuple):
    """State of a client whose momentum continues in its next round."""

    participations: Tensor
    velocity: Params


State: TypeAlias = Client | MomentumState


class Start(Protocol):
    """Broadcast to a client at the start of a round."""

    @property
    def x(self) -> Params: ...
    @property
    def prototypes(self) -> Tensor: ...
    @property
    def known(self) -> Tensor: ...
    @property
    def round(self) -> Tensor: ...


class Up(NamedTuple):
    """Upload: the change of the local model, with sums and counts of features by class."""

    delta: Params
    # of the features of drawn images, by class; divided by the client's size, so that weighting restores plain sums
    sums: Tensor
    counts: Tensor


@dataclass(frozen=True)
class Calibrated(LocalSgd[S, State, D, U], OwnLoss, OtherReads, FitsData, PublicTensors, FollowsPhase, ABC):
    """Client training with generated images. Subclasses define what is uploaded."""

    generator: Kind = "auto"
    scenario: Literal[1, 2] = 1
    synthetic: Annotated[float, NOT_NEGATIVE] = 0.5  # lambda_syn
    separation: Annotated[float, NOT_NEGATIVE] = 1.0  # lambda_sep
    temperature: Annotated[float, POSITIVE] = 0.5  # beta
    label_mode: Literal["shared", "shifted"] = "shared"
    proto_scope: Literal["local", "local+syn", "sample"] = "local"
    rescale: Literal["fixed", "minmax"] = "fixed"
    keeps_momentum: bool = False  # from one round of a client to its next
    match_steps: bool = False  # as many steps as without drawn images: half of each batch is drawn
    count: Annotated[int | None, COUNT] = None  # of drawn images of each client; None: as many as a client has examples
    _shape: GeneratorShape = GeneratorShape("small", 10, 64, 16)

    def fitted(self, known: PublicFacts) -> Self:
        return replace(self, _shape=generator_shape(self.generator, self.scenario, known.shape, known.classes))

    @property
    def drawn_by(self) -> GeneratorShape:
        """Shape of the generator that draws the images."""
        return self._shape

    @property
    def heads(self) -> int:
        """Number of network outputs per class."""
        return 2 if self.label_mode == "shifted" else 1

    # start ------------------------------------------------------------------------------------------------------------

    def start(self, task: Task, key: Key) -> Server:
        """Initial state of the server; models of the preparation are not reused."""
        x = task.init(key)
        return Server(
            x, torch.zeros(task.labels, task.width), torch.zeros(task.labels, dtype=torch.uint8), torch.tensor(0)
        )

    def public_tensors(self, before: Any, home: Home) -> Params:
        return {**before.generator, CLASSES: torch.nonzero(before.learned).flatten()}

    def public_examples(self, task: Task, tensors: Mapping[str, Tensor], size: int, key: Key) -> Examples:
        """Generated images, drawn once: as many as the client has examples, evenly over classes."""
        classes, state = tensors[CLASSES], {name: value for name, value in tensors.items() if name != CLASSES}
        labels = classes[all_alike(self.count or size, len(classes), keys.fold(key, "labels"))]
        return Examples(
            generators.draw(self._shape, dict(state), labels, keys.fold(key, "noise"), self.rescale), labels
        )

    def init_client(self, task: Task) -> State:
        return (
            MomentumState(torch.tensor(0), tree.zeros_like(task.init(0)))
            if self.keeps_momentum
            else Client(torch.tensor(0))
        )

    @property
    def wants(self) -> Use:
        return "batches beside public examples" if self.proto_scope == "sample" else "single examples"

    # a round ----------------------------------------------------------------------------------------------------------

    def trained(self, task: Task, down: Start, c: State, shard: Shard, key: Key) -> tuple[Params, State]:
        public, going = shard.public, c.velocity if isinstance(c, MomentumState) else None
        walk = self.walk(down.x, self.rate(down.round, c.participations), going, task.statistics)
        assert public is not None
        if not len(public.y) and not self._separates(down):
            for batch in shard.batches(self.work, key):
                walk(batch.grad(task.losses, walk.y))
        elif self.proto_scope == "sample":
            self._apart(task, down, walk, shard, key)
        else:
            loss = partial(self.loss, task, down)
            for step in shard.mixed(self.work, key, self.how):
                walk(step.joint(loss, walk.y))
        times, velocity = c.participations + 1, walk.velocity
        after = Client(times) if going is None or velocity is None else MomentumState(times, velocity)
        return walk.y, after

    def passes(self, size: int) -> float:
        alone = super().passes(size)
        return alone if self.match_steps else alone * (size + (self.count or size)) / size

    @property
    def how(self) -> How:
        """Combination of generated images with a client's own in a batch: "half" or "union"."""
        return "half" if self.match_steps else "union"

    def advanced(self, s: Start, mean: Up) -> Server:
        seen = mean.counts > 0
        fresh = mean.sums / torch.where(seen, mean.counts, 1.0)[:, None]
        return Server(
            tree.axpy(self.server_lr, mean.delta, s.x),
            torch.where(seen[:, None], fresh, s.prototypes),
            s.known | seen.to(torch.uint8),
            s.round + 1,
        )

    # the losses -------------------------------------------------------------------------------------------------------

    def loss(self, task: Task, down: Start, params: Params, own: Examples, public: Examples, draws: Tensor) -> Tensor:
        """The loss of one batch: cross-entropy of the client's own and of generated images, plus `separation` times the
        contrast of class means with the prototypes.
        """
        n = len(own.y)
        z = task.features(params, torch.cat([own.x, public.x]), draws, plain=len(public.y))
        logits = task.head(params, z)
        total = z.new_zeros(())
        if n:
            total = total + torch.nn.functional.cross_entropy(logits[:n], own.y)
        if len(public.y) and self.synthetic:
            total = total + self.synthetic * torch.nn.functional.cross_entropy(logits[n:], self._names(task, public.y))
        if self._separates(down):
            labels = torch.cat([own.y, public.y])
            part = slice(None) if self.proto_scope == "local+syn" else slice(0, n)
            means, counts = class_means(z[part], labels[part], task.labels)
            there = torch.nonzero(counts).flatten()
            pulled = separation(means[there], there, down.prototypes, down.known.bool(), self.temperature)
            total = total + self.separation * pulled
        return total

    def _apart(self, task: Task, down: Start, walk: Walk, shard: Shard, key: Key) -> None:
        """Training on losses of single examples: gradients of the client's own examples may be clipped and noised by
        the reader; generated ones need no protection.
        """
        losses = partial(self._own_losses, task, down)
        for step in shard.mixed(self.work, key, self.how):
            g = step.batch.grad(losses, walk.y)
            walk(
                tree.axpy(
                    self.synthetic, public_gradient(task, walk.y, step.public, self._names(task, step.public.y)), g
                )
            )

    def _own_losses(self, task: Task, down: Start, params: Params, x: Tensor, y: Tensor, draws: Tensor) -> Tensor:
        z = task.features(params, x, draws)
        found = torch.nn.functional.cross_entropy(task.head(params, z), y, reduction="none")
        if not self._separates(down):
            return found
        cosines = (
            torch.nn.functional.normalize(z, dim=1)
            @ torch.nn.functional.normalize(down.prototypes.to(z.dtype), dim=1).T
        )
        logits = torch.where(down.known.bool(), cosines / self.temperature, -torch.inf)
        pulled = torch.nn.functional.cross_entropy(logits, y, reduction="none")
        return found + self.separation * torch.where(down.known[y].bool(), pulled, 0.0)

    def _separates(self, down: Start) -> bool:
        return bool(self.separation) and bool(down.known.any())

    def _names(self, task: Task, labels: Tensor) -> Tensor:
        """Labels of generated images for the loss: the same classes as real images, or (shifted) further outputs of the
        network.
        """
        return labels + task.labels if self.label_mode == "shifted" else labels

    def _features(self, task: Task, params: Params, x: Tensor) -> Tensor:
        with torch.no_grad():
            return task.features(params, x, None)


def public_gradient(task: Task, params: Params, public: Examples, labels: Tensor) -> Params:
    """Gradient of the mean cross-entropy of public examples, without clip or noise."""
    if not len(labels):
        return tree.zeros_like(params)

    def loss(leaves: Params) -> Tensor:
        return torch.nn.functional.cross_entropy(task.head(leaves, task.features(leaves, public.x, None)), labels)

    return gradient(loss, params)


@dataclass(frozen=True)
class SlaugFL(Calibrated[Server, Server, Up], carries_statistics=True):
    """SlaugFL as published: devices send prototypes of their drawn images beside their models."""

    def init(self, task: Task, key: Key) -> Server:
        return self.start(task, key)

    def begin(self, task: Task, key: Key, before: Any, home: Home) -> Server:
        return self.start(task, key)

    def broadcast(self, s: Server) -> Server:
        return s

    def zero(self, task: Task, down: Server) -> Up:
        sums = torch.zeros_like(down.prototypes)
        return Up(tree.zeros_like(down.x), sums, torch.zeros(len(sums)))

    def change(self, upload: Up) -> Params | None:
        return upload.delta

    def passes(self, size: int) -> float:
        # and once through its drawn images, for their prototypes
        return super().passes(size) + (self.count or size) / 3

    def local(self, task: Task, down: Server, c: State, shard: Shard, key: Key) -> tuple[Up, State]:
        y, after = self.trained(task, down, c, shard, key)
        sums, counts = self.prototype_sums(task, y, shard)
        return Up(tree.sub(y, down.x), (sums / shard.size).float(), (counts / shard.size).float()), after

    def prototype_sums(self, task: Task, params: Params, shard: Shard) -> tuple[Tensor, Tensor]:
        """Sums of features of generated images by class, with numbers of images; they reveal no more than the model
        does.
        """
        assert shard.public is not None
        return class_sums(lambda x: self._features(task, params, x), shard.public, task.labels)

    def update(self, s: Server, r: Received[Up], home: Home) -> Server:
        return self.advanced(s, r.mean)


def all_alike(number: int, classes: int, key: Key) -> Tensor:
    """Labels of `number` images, evenly over classes: equally many of each class, at least one, and random classes for
    the rest.
    """
    labels = torch.arange(classes).repeat_interleave(max(1, number // classes))
    rest = number % classes if number >= classes else 0
    return torch.cat([labels, keys.permutation(key, classes)[:rest]])
