"""SlaugFL: training with images that a generator draws. "SlaugFL: Efficient federated learning via selective GAN-based
data augmentation", IEEE Transactions on Mobile Computing, 2024.

This file composes a preparation that makes the generator (`prepare`, or `pool`, then `generator`) and the training with
it (`training`, or `Served`). The private variants are ours; so is `default`, where the paper's text and its released
code disagree.

Where the server computes the prototypes of generated images ("privacy-free" prototypes), they depend only on the
uploaded model and on images that the generator draws with a public key, so devices need not send them. This costs the
server a pass over all generated images of a round, and needs an uplink that shows it each model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from sordino import keys, tree
from sordino.algorithms.optional import Home, PerClientMessages
from sordino.algorithms.phases import Phased
from sordino.algorithms.preset import preset, recast
from sordino.errors import COUNT, POSITIVE, ConfigError, Range
from sordino.keys import Key
from sordino.privacy.readers.class_sums import ClassSums, class_sums
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.secure_stages import Aggregated
from sordino.privacy.uplink.stages import Weigh
from sordino.synthesis import generators
from sordino.synthesis.generators.training import AcganSettings, MatchingSettings
from sordino.synthesis.slaug.generator import PLAIN, Recipe
from sordino.synthesis.slaug.pool import Pool
from sordino.synthesis.slaug.prepare import Ask, Train
from sordino.synthesis.slaug.training import Calibrated, Server, SlaugFL, State, Up
from sordino.types import Params, Received, Shard, Task

P = TypeVar("P", Train, Pool)
DRAWN = 200  # drawn images of a client whose size is private
Variant = Literal["as_published", "secagg", "dp_proto_only", "pooled", "rigorous_a", "rigorous_b"]


@dataclass(frozen=True)
class Settings(SlaugFL):
    """Settings of SlaugFL's training and of its preparation."""

    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 5e-4
    lr_decay: float = 0.998
    local_epochs: int | None = 10
    batch_size: int = 64
    proto_upload: Literal["devices", "server_side"] = "devices"
    prepare_epochs: int = 10
    patience: int = 3
    rank: Literal["f1", "recall"] = "f1"
    probe: Literal["holdout", "test", "candidates"] = "holdout"
    least: int = 1
    prototypes: int | None = None
    merge: Literal["mean_distance", "mean"] = "mean_distance"
    keep: Annotated[int, COUNT] = 1000
    threshold: Annotated[float | None, Range(above=0, most=2)] = None  # a cosine distance; none: any
    gan_epochs: Annotated[int, COUNT] = 500
    gan_lr: Annotated[float, POSITIVE] = 2e-4
    gan_decay: float = 0.0
    gan_batch: Annotated[int, COUNT] = 64
    match_updates: Annotated[int, COUNT] = 10_000
    match_lr: Annotated[float, POSITIVE] = 2e-4
    diversity: float | Literal["auto", "published"] = "auto"
    diversity_sign: Literal["reciprocal", "literal"] = "reciprocal"
    extractor: str | None = None
    project: int = 32
    share: float = 0.2  # of a budget, for each phase of the preparation

    def recipe(self) -> Recipe:
        """Settings by which the server trains the generator."""
        diversity = self.diversity if isinstance(self.diversity, float) else None
        gan = AcganSettings(self.gan_epochs, self.gan_batch, self.gan_lr, weight_decay=self.gan_decay)
        match = MatchingSettings(
            self.match_updates, self.gan_batch, self.match_lr, diversity=diversity, sign=self.diversity_sign
        )
        published = self.diversity == "published"
        return Recipe(self.generator, self.scenario, self.keep, self.merge, gan, match, self.threshold, published)

    def training(self) -> SlaugFL | Served:
        """The training phase, before a variant adds clip and noise."""
        return recast(SlaugFL, self) if self.proto_upload == "devices" else recast(Served, self)

    def alone(self) -> Train:
        """The phase in which every device trains a model of its own."""
        return self._like(Train(patience=self.patience, rank=self.rank, probe=self.probe))

    def pool(self) -> Pool:
        """The phase before training that is differentially private: it takes sums of features, no models of devices."""
        return self._like(Pool(recipe=self.recipe(), project=self.project, extractor=self.extractor))

    def _like(self, phase: P) -> P:
        return phase.having(
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            batch_size=self.batch_size,
            local_epochs=self.prepare_epochs,
        )


@preset(
    Settings(),
    fixed=("local_steps",),
    paper_text=Settings(momentum=0.0, rank="recall", probe="test", gan_lr=0.01, gan_decay=1e-4, diversity="published"),
    released_code=Settings(
        lr_decay=1.0,
        keeps_momentum=True,
        label_mode="shifted",
        proto_scope="local+syn",
        rank="recall",
        probe="test",
        rescale="minmax",
        diversity="published",
    ),
)
def slaug_fl(
    base: Settings, variant: Variant = "as_published", clip: float = 1.0, rate: float = 0.1, private_steps: int = 10
) -> Phased:
    """Scenario 1 selects public images and trains an ACGAN on them; scenario 2 trains a generator from prototypes. A
    preset gives the defaults. Only the rigorous variants use `clip`, `rate` and `private_steps`.

    as_published   models and prototypes are sent unprotected
    secagg         the same, with secure aggregation in the rounds of training
    dp_proto_only  prototypes are noised; models are not
    pooled         no models and no prototypes of single devices: sums of features of a public extractor
    rigorous_b     pooled, with noise, and noised gradients in training: private for every example, end to end
    rigorous_a     models trained by noised gradients, noised prototypes, noised gradients in training: likewise
    """
    private, training = variant.startswith("rigorous"), base.training()
    noisy = NoisyGradient(clip, sampling="poisson", rate=rate, neighbours="zero_out")
    if private:
        # only sums of losses of single examples can be clipped; a public number of drawn images hides client sizes
        training = training.having(proto_scope="sample", count=base.count or DRAWN, local_steps=private_steps)
        training = training.behind(noisy, PLAIN)
    if variant == "secagg":
        training = training.behind(uplink=Uplink((Weigh(), Aggregated())))
    if variant in ("pooled", "rigorous_b"):
        pool = base.pool().behind(ClassSums(1.0)) if private else base.pool()
        return Phased((pool,), training, (base.share,))
    alone, ask = base.alone(), Ask(recipe=base.recipe(), least=base.least, prototypes=base.prototypes)
    if variant in ("dp_proto_only", "rigorous_a"):
        ask = replace(ask, read=ClassSums(1.0), project=base.project)
    if private:
        alone = alone.having(local_steps=private_steps, stops=False).behind(noisy)
    return Phased((alone, ask), training, (base.share, base.share))


class PrototypeState(NamedTuple):
    """State of the server between rounds, for a server that computes the prototypes itself."""

    x: Params
    prototypes: Tensor
    known: Tensor
    round: Tensor
    generator: Params
    learned: Tensor


class Broadcast(NamedTuple):
    """Broadcast to one device: model and prototypes, and its number."""

    x: Params
    prototypes: Tensor
    known: Tensor
    round: Tensor
    device: Tensor  # its number


class Model(NamedTuple):
    """Upload of one device: the change of its model, and its number."""

    delta: Params
    device: Tensor


@dataclass(frozen=True)
class Served(Calibrated[PrototypeState, Any, Model], PerClientMessages, carries_statistics=True):
    """SlaugFL whose server computes the prototypes of generated images."""

    reads_each = True

    def __post_init__(self) -> None:
        super().__post_init__()
        changed = [stage for stage in self.uplink.client if not isinstance(stage, Weigh)]
        if changed or self.uplink.server:
            raise ConfigError(
                'proto_upload = "server_side" with an uplink that changes the uploads',
                why="the server computes prototypes from the unchanged model of each client, and must know which "
                "client sent it",
                fix='set proto_upload = "devices", or leave the uplink out',
                code="server-side-needs-models",
            )

    def init(self, task: Task, key: Key) -> PrototypeState:
        learned = torch.ones(task.labels, dtype=torch.uint8)
        return PrototypeState(*self.start(task, key), generators.init(self._shape, 0), learned)

    def begin(self, task: Task, key: Key, before: Any, home: Home) -> PrototypeState:
        return PrototypeState(*self.start(task, key), before.generator, before.learned)

    def broadcast(self, s: PrototypeState) -> Server:
        return Server(*s[:4])

    def per_client_message(self, down: Server, client: int) -> Broadcast:
        return Broadcast(*down, torch.tensor(float(client)))

    def zero(self, task: Task, down: Server) -> Model:
        return Model(tree.zeros_like(down.x), torch.tensor(0.0))

    def local(self, task: Task, down: Broadcast, c: State, shard: Shard, key: Key) -> tuple[Model, State]:
        y, after = self.trained(task, down, c, shard, key)
        return Model(tree.sub(y, down.x), down.device), after

    def update(self, s: PrototypeState, r: Received[Model], home: Home) -> PrototypeState:
        task, public_tensors = home.task, self.public_tensors(s, home)
        sums, counts = s.prototypes.new_zeros(s.prototypes.shape).double(), torch.zeros(len(s.known)).double()
        sizes = home.sizes
        for up in r.each:
            if not (tree.finite(up) and 0 <= (k := round(float(up.device))) < len(sizes)):
                continue  # not the model of a client
            model = tree.add(s.x, up.delta)
            images = self.public_examples(task, public_tensors, sizes[k], keys.fold(home.key, "equip", k))
            of_rows, many = class_sums(partial(self._features, task, model), images, task.labels)
            sums, counts = sums + of_rows, counts + many
        after = self.advanced(s, Up(r.mean.delta, sums.float(), counts.float()))
        return PrototypeState(*after, s.generator, s.learned)
