"""SlaugFL: training with images that a generator draws. "SlaugFL: Efficient federated learning via selective GAN-based data augmentation", IEEE Transactions on
Mobile Computing, 2024. How the generator is made is in `slaug_prepare`; this file is the collaborative phase, with its dual calibration.

Each client draws, once, as many images as it has examples, all classes alike, and trains on both: cross-entropy of its own images, `synthetic` times that of drawn ones,
and `separation` times a contrast that pulls the means of its classes towards the prototypes of everybody. The prototypes come from drawn images alone.

Deviations: a client of n examples draws the rest of n / classes for random classes (the original drops it). Prototypes are averaged over all drawn images of a round. A
momentum starts afresh in every round. `label_mode = "shifted"`, with which the published numbers were made, gives drawn images labels of their own.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino import keys, tree
from sordino.algorithms.fedavg import Client
from sordino.algorithms.local_sgd import LocalSgd
from sordino.algorithms.slaug_generator import PLAIN, Kind, Recipe, generator_shape
from sordino.algorithms.slaug_pool import Pool
from sordino.algorithms.slaug_prepare import Ask, Train
from sordino.errors import ConfigError
from sordino.generators import acgan, matching
from sordino.generators.nets import Shape
from sordino.keys import Key
from sordino.phases import Phased
from sordino.privacy.beside import How
from sordino.privacy.classes import ClassSums, class_sums
from sordino.privacy.readers import NoisyGradient
from sordino.privacy.secure import Aggregated
from sordino.privacy.stages import Weigh
from sordino.tasks.contrast import class_means, separation
from sordino.tasks.drawn import all_alike, drawn
from sordino.types import Examples, Params, Received, Shard, Task
from sordino.uplink import Uplink

CLASSES = "classes"  # that the generator has learnt, beside its weights


class Server(NamedTuple):
    x: Params
    prototypes: Tensor  # [classes, d]
    known: Tensor  # which of them there are
    round: Tensor


class Up(NamedTuple):
    delta: Params
    sums: Tensor  # of the features of drawn images, by class; in parts of the client's size, so that weights make them a plain sum
    counts: Tensor


@dataclass(frozen=True)
class SlaugFL(LocalSgd):
    generator: Kind = "auto"
    scenario: Literal[1, 2] = 1
    synthetic: float = 0.5  # lambda_syn
    separation: float = 1.0  # lambda_sep
    temperature: float = 0.5  # beta
    label_mode: Literal["shared", "shifted"] = "shared"
    proto_scope: Literal["local", "local+syn", "sample"] = "local"
    rescale: Literal["fixed", "minmax"] = "fixed"
    match_steps: bool = False  # as many steps as without drawn images: half of each batch is drawn
    count: int | None = None  # of drawn images, for everybody; None: as many as a client has examples
    _shape: Shape = Shape("small", 10, 64, 16)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("synthetic", "separation"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(
                    f"{name} is {getattr(self, name)}", why="it is a finite number from 0 on", code="not-positive"
                )
        if not 0 < self.temperature < float("inf"):
            raise ConfigError(f"temperature is {self.temperature}", why="it is above 0", code="not-positive")
        if self.count is not None and self.count < 1:
            raise ConfigError(f"count is {self.count}", why="everybody draws at least one image", code="not-positive")

    def sized(self, shape: tuple[int, ...], classes: int) -> SlaugFL:
        return replace(self, _shape=generator_shape(self.generator, self.scenario, shape, classes))

    @property
    def heads(self) -> int:
        """Outputs of the network per class."""
        return 2 if self.label_mode == "shifted" else 1

    # what it starts from ----------------------------------------------------------------------------------------------------------

    def init(self, task: Task, key: Key) -> Server:
        x = task.init(key)
        return Server(
            x, torch.zeros(task.labels, task.width), torch.zeros(task.labels, dtype=torch.uint8), torch.tensor(0)
        )

    def begin(self, task: Task, key: Key, before: Any) -> Server:
        return self.init(task, key)  # models of the preparation are not used again

    def handed(self, before: Any) -> Params:
        return {**before.generator, CLASSES: torch.nonzero(before.learned).flatten()}

    def equip(self, task: Task, handed: Mapping[str, Tensor], size: int, key: Key) -> Examples:
        """Drawn once: as many images as the client has examples, all classes alike."""
        classes, state = handed[CLASSES], {name: value for name, value in handed.items() if name != CLASSES}
        labels = classes[all_alike(self.count or size, len(classes), keys.fold(key, "labels"))]
        return drawn(self._shape, state, labels, keys.fold(key, "noise"), self.rescale)

    def init_client(self, task: Task) -> Client:
        return Client(torch.tensor(0))

    # a round ----------------------------------------------------------------------------------------------------------------------

    def broadcast(self, s: Server) -> Server:
        return s

    def zero(self, down: Server) -> Up:
        sums = torch.zeros_like(down.prototypes)
        return Up(tree.zeros_like(down.x), sums, torch.zeros(len(sums)))

    def local(self, task: Task, down: Server, c: Client, shard: Shard, key: Key) -> tuple[Up, Client]:
        walk, public = self.walk(down.x, self.rate(down.round, c.participations)), shard.public
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
        sums, counts = self.prototypes(task, walk.y, shard)
        up = Up(tree.sub(walk.y, down.x), (sums / shard.size).float(), (counts / shard.size).float())
        return up, Client(c.participations + 1)

    def passes(self, size: int) -> float:
        public = self.count or size
        both = super().passes(size) if self.match_steps else super().passes(size) * (size + public) / size
        return both + public / 3  # and once through its drawn images, for their prototypes

    @property
    def how(self) -> How:
        """Drawn images come beside a client's own."""
        return "half" if self.match_steps else "union"

    def prototypes(self, task: Task, params: Params, shard: Shard) -> tuple[Tensor, Tensor]:
        """Sums of features by class, and of how many images: of drawn ones, so they say nothing that the model does not."""
        assert shard.public is not None
        return class_sums(lambda x: self._features(task, params, x), shard.public, task.labels)

    def update(self, s: Server, r: Received[Up]) -> Server:
        seen = r.mean.counts > 0
        fresh = r.mean.sums / torch.where(seen, r.mean.counts, 1.0)[:, None]
        return Server(
            tree.axpy(self.server_lr, r.mean.delta, s.x),
            torch.where(seen[:, None], fresh, s.prototypes),
            s.known | seen.to(torch.uint8),
            s.round + 1,
        )

    # the losses -------------------------------------------------------------------------------------------------------------------

    def loss(self, task: Task, down: Server, params: Params, own: Examples, public: Examples, draws: Tensor) -> Tensor:
        """Of one batch: L_cla + separation * L_sep."""
        n = len(own.y)
        z = task.features(params, torch.cat([own.x, public.x]), draws, plain=len(public.y))
        logits = task.head(params, z)
        total = z.new_zeros(())
        if n:
            total = total + F.cross_entropy(logits[:n], own.y)
        if len(public.y) and self.synthetic:
            total = total + self.synthetic * F.cross_entropy(logits[n:], self._names(task, public.y))
        if self._separates(down):
            labels = torch.cat([own.y, public.y])
            part = slice(None) if self.proto_scope == "local+syn" else slice(0, n)
            means, counts = class_means(z[part], labels[part], task.labels)
            there = torch.nonzero(counts).flatten()
            pulled = separation(means[there], there, down.prototypes, down.known.bool(), self.temperature)
            total = total + self.separation * pulled
        return total

    def _apart(self, task: Task, down: Server, walk: Any, shard: Shard, key: Key) -> None:
        """Losses of single examples: of the client's own through the reader, which may clip and noise them; of drawn ones as they are."""
        losses = partial(self._own_losses, task, down)
        for step in shard.mixed(self.work, key, self.how):
            g = step.batch.grad(losses, walk.y)
            walk(
                tree.axpy(
                    self.synthetic, public_gradient(task, walk.y, step.public, self._names(task, step.public.y)), g
                )
            )

    def _own_losses(self, task: Task, down: Server, params: Params, x: Tensor, y: Tensor, draws: Tensor) -> Tensor:
        z = task.features(params, x, draws)
        found = F.cross_entropy(task.head(params, z), y, reduction="none")
        if not self._separates(down):
            return found
        cosines = F.normalize(z, dim=1) @ F.normalize(down.prototypes.to(z.dtype), dim=1).T
        logits = torch.where(down.known.bool(), cosines / self.temperature, -torch.inf)
        pulled = F.cross_entropy(logits, y, reduction="none")
        return found + self.separation * torch.where(down.known[y].bool(), pulled, 0.0)

    def _separates(self, down: Server) -> bool:
        return bool(self.separation) and bool(down.known.any())

    def _names(self, task: Task, labels: Tensor) -> Tensor:
        """Labels of drawn images, as the network is told them."""
        return labels + task.labels if self.label_mode == "shifted" else labels

    def _features(self, task: Task, params: Params, x: Tensor) -> Tensor:
        with torch.no_grad():
            return task.features(params, x, None)


def public_gradient(task: Task, params: Params, public: Examples, labels: Tensor) -> Params:
    """Of the mean cross-entropy of examples that are nobody's secret, as they are."""
    if not len(labels):
        return tree.zeros_like(params)
    leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
    logits = task.head(leaves, task.features(leaves, public.x, None))
    found = torch.autograd.grad(F.cross_entropy(logits, labels), list(leaves.values()))
    return dict(zip(leaves, found, strict=True))


# the published settings ------------------------------------------------------------------------------------------------------------

COUNT = 200  # drawn images of a client whose size is nobody's business
PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper_text": {
        "momentum": 0.0,
        "rank": "recall",
        "probe": "test",
        "gan_lr": 0.01,
        "gan_decay": 1e-4,
        "diversity": "published",
    },
    "released_code": {
        "lr_decay": 1.0,
        "label_mode": "shifted",
        "proto_scope": "local+syn",
        "rank": "recall",
        "probe": "test",
        "rescale": "minmax",
        "diversity": "published",
    },
}


Variant = Literal["as_published", "secagg", "dp_proto_only", "pooled", "rigorous_a", "rigorous_b"]


def slaug_fl(
    variant: Variant = "as_published",
    preset: Literal["default", "paper_text", "released_code"] = "default",
    scenario: Literal[1, 2] = 1,
    generator: Kind = "auto",
    lr: float = 0.01,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    lr_decay: float = 0.998,
    local_epochs: int = 10,
    batch_size: int = 64,
    synthetic: float = 0.5,
    separation: float = 1.0,
    temperature: float = 0.5,
    label_mode: Literal["shared", "shifted"] = "shared",
    proto_scope: Literal["local", "local+syn", "sample"] = "local",
    rescale: Literal["fixed", "minmax"] = "fixed",
    match_steps: bool = False,
    prepare_epochs: int = 10,
    patience: int = 3,
    rank: Literal["f1", "recall"] = "f1",
    probe: Literal["holdout", "test", "candidates"] = "holdout",
    least: int = 1,
    prototypes: int | None = None,
    merge: Literal["mean_distance", "mean"] = "mean_distance",
    keep: int = 1000,
    threshold: float | None = None,
    gan_epochs: int = 500,
    gan_lr: float = 2e-4,
    gan_decay: float = 0.0,
    gan_batch: int = 64,
    match_updates: int = 10_000,
    match_lr: float = 2e-4,
    diversity: float | Literal["auto", "published"] = "auto",
    diversity_sign: Literal["reciprocal", "literal"] = "reciprocal",
    extractor: str | None = None,
    project: int = 32,
    clip: float = 1.0,
    rate: float = 0.1,
    private_steps: int = 10,
    count: int | None = None,
    share: float = 0.2,
) -> Phased:
    """Scenario 1 chooses candidates and trains an ACGAN on them, scenario 2 has prototypes alone. A preset fills in what is not set.

    as_published   models and prototypes go out as they are
    secagg         the same, but in the rounds of training only sums are opened
    dp_proto_only  prototypes are noised; models are not
    pooled         no models and no prototypes of single devices: sums of features of a public extractor
    rigorous_b     pooled, with noise, and noised gradients in training: private for every example, end to end
    rigorous_a     models trained by noised gradients, noised prototypes, noised gradients in training: likewise
    """
    chosen = {name: value for name, value in locals().items() if name != "preset"}
    defaults = {name: p.default for name, p in inspect.signature(slaug_fl).parameters.items()}
    chosen |= {name: value for name, value in PRESETS[preset].items() if chosen[name] == defaults[name]}
    return _composed(**chosen)


def _composed(**given: Any) -> Phased:
    variant: str = given["variant"]
    private = variant.startswith("rigorous")
    sgd = {name: given[name] for name in ("lr", "momentum", "weight_decay", "batch_size")}
    gan = acgan.Settings(given["gan_epochs"], given["gan_batch"], given["gan_lr"], weight_decay=given["gan_decay"])
    match = matching.Settings(
        given["match_updates"],
        given["gan_batch"],
        given["match_lr"],
        diversity=given["diversity"] if isinstance(given["diversity"], float) else None,
        sign=given["diversity_sign"],
    )
    as_text = given["diversity"] == "published"
    recipe = Recipe(
        given["generator"], given["scenario"], given["keep"], given["merge"], gan, match, given["threshold"], as_text
    )
    noisy = NoisyGradient(given["clip"], sampling="poisson", rate=given["rate"], neighbours="add_remove")
    steps = {"local_steps": given["private_steps"]} if private else {"local_epochs": given["local_epochs"]}
    names = ("scenario", "generator", "lr_decay", "synthetic", "separation", "temperature", "label_mode", "rescale")
    more = ("match_steps", "proto_scope", "count")
    training = SlaugFL(**sgd, **steps, **{name: given[name] for name in (*names, *more)})
    if private:  # the sum of losses of single examples is all that can be clipped; a public number of drawn images tells nobody's size
        training = replace(training, proto_scope="sample", count=given["count"] or COUNT, uplink=PLAIN, read=noisy)
    if variant == "secagg":
        training = replace(training, uplink=Uplink((Weigh(), Aggregated())))
    epochs = {"local_epochs": given["prepare_epochs"]}
    if variant in ("pooled", "rigorous_b"):
        pool = Pool(**sgd, **epochs, recipe=recipe, project=given["project"], extractor=given["extractor"])
        pool = replace(pool, read=ClassSums(1.0)) if private else pool
        return Phased((pool,), training, (given["share"],))
    alone = Train(**sgd, **epochs, patience=given["patience"], rank=given["rank"], probe=given["probe"])
    ask = Ask(recipe=recipe, least=given["least"], prototypes=given["prototypes"])
    if variant in ("dp_proto_only", "rigorous_a"):
        ask = replace(ask, read=ClassSums(1.0), project=given["project"])
    if private:
        alone = replace(alone, local_epochs=None, local_steps=given["private_steps"], stops=False, read=noisy)
    return Phased((alone, ask), training, (given["share"], given["share"]))
