"""SlaugFL's preparation: devices ranked by class, prototypes from the best ones, and a generator made from these.
SlaugFL, IEEE Transactions on Mobile Computing, 2024, section "selective data collection".

    train    every device trains alone and uploads its model; the server tests all of them, class by class
    ask      for each class the best device is asked for a prototype, the mean feature of its held-back images of the
             class; if it declines, the next one is asked

Then the server makes a generator (`generator`). `pool` is the private variant, which replaces these two phases.
Deviations: a device that does not answer counts as declining. After `ranks` refusals a class has no prototype. Devices
are ranked by F1 by default: by recall, as published, the best device of a class may be one that assigns everything to
it. One device answers for one class per round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from sordino import keys, tree
from sordino.algorithms.algorithm import Algorithm
from sordino.algorithms.local_sgd import LocalSgd
from sordino.algorithms.optional import Home, OtherReads, PerClientMessages, PublicFacts, RequestsClients
from sordino.algorithms.phases import DeviceScores, Facts, Phase, PhaseMessages, RunNumbers
from sordino.errors import ConfigError, Range, RunError, check_range
from sordino.keys import Key
from sordino.privacy.uplink import Uplink
from sordino.synthesis.slaug.generator import (
    HANDS,
    PLAIN,
    Anchor,
    Broadcast,
    Rank,
    Recipe,
    TrainedGenerator,
    chosen,
    dimensions,
    projected_by,
    ranked,
    requests,
    seen,
    skill,
)
from sordino.synthesis.slaug.messages import (
    AskingState,
    DeviceModel,
    ImageRequest,
    ImageRequests,
    Prototype,
    Ranked,
    Sizes,
    Start,
    Up,
    formula,
    requests_of,
)
from sordino.tasks.personalise import training_loss
from sordino.types import Examples, LocalWork, Params, Received, Shard, Task

KEPT = 0.7  # share of a device's examples for training; the others are for early stopping and prototypes
ROUNDS = 2  # of asking that a device pays for, where it pays
FEWEST = 4  # examples that can be split


@dataclass(frozen=True)
class Train(
    LocalSgd[Ranked, DeviceModel, Any, Up],
    Phase[Ranked, DeviceModel, Any, Up],
    PerClientMessages,
    carries_statistics=True,
):
    """Phase in which devices train alone, with early stopping on held-back examples."""

    uplink: Uplink = PLAIN
    stops: bool = True  # early, by held-back examples
    patience: int = 3
    rank: Rank = "f1"
    probe: Literal["holdout", "test", "candidates"] = "holdout"
    ranks: int = 3
    clients: int = 0  # of the run
    name: ClassVar[str] = "train"
    rounds: ClassVar[int] = 1
    reads_each = True

    def fitted(self, known: PublicFacts) -> Train:
        return replace(self, clients=len(known.sizes))

    def init(self, task: Task, key: Key) -> Ranked:
        x, (devices, classes) = task.init(key), (self.clients, task.labels)
        table = torch.zeros(devices, classes, dtype=torch.float64)
        kept = tree.map(lambda leaf: leaf.new_zeros(self.ranks, classes, *leaf.shape), x)
        order = torch.zeros(self.ranks, classes, dtype=torch.int64)
        return Ranked(x, table, table, order, kept, torch.tensor(False))

    def begin(self, task: Task, key: Key, before: Any, home: Home) -> Ranked:
        return self.init(task, key)

    def check(self, home: Home) -> None:
        given_examples(self, home)
        if len(home.sizes) < self.ranks:
            raise ConfigError(
                f"{len(home.sizes)} clients, but {self.ranks} clients are ranked for each class",
                why="when the best client declines, the next one in the ranking is asked, so there must be enough of "
                "them",
                fix=f"use at least {self.ranks} clients",
                code="too-few-devices",
            )

    def over(self, s: Ranked) -> bool:
        return bool(s.trained)

    def init_client(self, task: Task) -> DeviceModel:
        return DeviceModel(task.init(0))

    def broadcast(self, s: Ranked) -> Broadcast:
        return Broadcast(s.x)

    def per_client_message(self, down: Broadcast, client: int) -> Start:
        return Start(down.x, torch.tensor(client))

    def zero(self, task: Task, down: Broadcast) -> Up:
        return Up(tree.zeros_like(down.x), torch.tensor(0))

    def passes(self, size: int) -> float:
        return super().passes(size) * (KEPT + (1 - KEPT) / 3)  # at most: it may stop early

    def local(self, task: Task, down: Start, c: DeviceModel, shard: Shard, key: Key) -> tuple[Up, DeviceModel]:
        learns, held = parts(shard) if self.stops else (shard, None)
        walk, best, least, tired = self.walk(down.x, self.lr, statistics=task.statistics), down.x, float("inf"), 0
        if not self.stops:  # with noise every read costs privacy: one pass, and no early stopping
            for batch in learns.batches(self.work, key):
                walk(batch.grad(task.losses, walk.y))
        for epoch in range((self.local_epochs or 1) if self.stops else 0):
            for batch in learns.batches(LocalWork(1, None, self.work.batch_size), keys.fold(key, "epoch", epoch)):
                walk(batch.grad(task.losses, walk.y))
            if held is None:
                continue
            found = float(training_loss(task, walk.y, held))
            if found < least:
                best, least, tired = tree.map(torch.clone, walk.y), found, 0
            elif (tired := tired + 1) == self.patience:
                break
        model = tree.formed(walk.y if held is None else best)
        return Up(tree.sub(model, down.x), down.device), DeviceModel(model)

    def update(self, s: Ranked, r: Received[Up], home: Home) -> Ranked:
        task, probe = home.task, given_examples(self, home)
        people = len(home.sizes)  # an upload that is not a device's model counts as no answer
        sent = {int(up.device): up.delta for up in r.each if 0 <= int(up.device) < people and tree.finite(up.delta)}
        if len(sent) < self.ranks:
            raise RunError(
                f"only {len(sent)} clients answered, but {self.ranks} clients are ranked for each class",
                why="when the best client declines, the next one in the ranking is asked, so there must be enough of "
                "them",
                fix="resume when more clients are back; if a shared ledger has no budget left for them, use another "
                "ledger or a larger budget",
                code="too-few-devices-answered",
            )
        recall, f1, sure = torch.zeros_like(s.recall), torch.zeros_like(s.f1), torch.full_like(s.recall, -1.0)
        for k, delta in sent.items():  # silent devices come last; one model at a time, as they may be large
            recall[k], f1[k], sure[k] = skill(task, tree.add(s.x, delta), probe)
        order = ranked(f1 if self.rank == "f1" else recall, sure)[: self.ranks]
        kept = {
            name: torch.stack([torch.stack([leaf + sent[k][name] for k in row]) for row in order.tolist()])
            for name, leaf in s.x.items()
        }
        return Ranked(s.x, recall, f1, order, kept, torch.tensor(True))

    def tables(self, s: Ranked) -> dict[str, list[dict[str, object]]]:
        """Table of recall and F1 score of each device's model, by class."""
        both = zip(s.recall.tolist(), s.f1.tolist(), strict=True)
        return {"skill": [{"device": k, "recall": recall, "f1": f1} for k, (recall, f1) in enumerate(both)]}

    @property
    def says(self) -> PhaseMessages:
        return PhaseMessages("the first model, to all clients", "their own models", HANDS, self.rank)

    def facts(self, s: Ranked, before: Facts) -> Facts:
        both = zip(s.f1.tolist(), s.recall.tolist(), strict=True)
        return before._replace(skills=[list(map(DeviceScores, *found)) for found in both])

    def counted(self, training: Algorithm[Any, Any, Any, Any], public: RunNumbers) -> Sizes | None:
        return formula(training, public)

    def models(self, s: Ranked) -> Mapping[str, Params]:
        return {"global": s.x}


@dataclass(frozen=True)
class Ask(
    LocalSgd[AskingState, DeviceModel, Any, Prototype],
    Phase[AskingState, DeviceModel, Any, Prototype],
    OtherReads,
    PerClientMessages,
    RequestsClients,
    carries_statistics=True,
):
    """Phase in which the server asks the best devices for prototypes, and makes the generator."""

    uplink: Uplink = PLAIN
    recipe: Recipe = Recipe()
    least: float = 1  # images that a prototype needs
    project: int = 0  # features to so many dimensions, of length 1 each; 0: as they are
    prototypes: int | None = None  # S; None: one for each class
    ranks: int = 3
    known: PublicFacts | None = field(default=None, repr=False, compare=False)
    name: ClassVar[str] = "ask"
    wants = "sums"
    reads_each = True

    @property
    def rounds(self) -> int:
        """The number of rounds that a device's privacy budget covers at most; after them it no longer answers."""
        return ROUNDS

    def init(self, task: Task, key: Key) -> AskingState:
        classes, count = task.labels, self.prototypes or task.labels
        kept = tree.map(lambda leaf: leaf.new_zeros(self.ranks, classes, *leaf.shape), task.init(key))
        whole = torch.zeros(count, dtype=torch.int64)
        order = torch.zeros(self.ranks, classes, dtype=torch.int64)
        empty = torch.zeros(count, dimensions(self, task))
        return AskingState(order, kept, whole, whole, whole, empty, torch.zeros(count), *self.recipe.template())

    def begin(self, task: Task, key: Key, before: Ranked, home: Home) -> AskingState:
        slots, place = requests(task.labels, self.prototypes or task.labels, key)
        return self.init(task, key)._replace(order=before.order, models=before.models, slots=slots, place=place)

    def matrix(self, task: Task) -> Tensor | None:
        return projected_by(self, task) if self.project else None

    def warnings(self, home: Home) -> list[str]:
        random = (
            "no client has 4 images, and fewer are not split: "
            "there are no prototypes, and candidates are taken at random"
        )
        return self.recipe.warnings(home.story) + ([] if self._answers(home) else [random])

    def check(self, home: Home) -> None:
        self.recipe.check(home)
        if self.recipe.scenario == 2 and not self._answers(home):
            raise ConfigError(
                "no client can make a prototype, and the generator has no other training data",
                why=f"a prototype needs at least {FEWEST} images that a client holds back",
                fix="use fewer clients or more data, or set scenario = 1 with a [candidates] table",
                code="nobody-holds-back",
            )

    def _answers(self, home: Home) -> bool:
        """True if some client can make a prototype: it has enough images to hold some back, or prototypes are noised
        and so use all images.
        """
        return self.read.offer() is not None or max(home.sizes) >= FEWEST

    def over(self, s: AskingState) -> bool:
        return bool((s.state != 0).all()) and bool(s.state.numel())

    def fitted(self, known: PublicFacts) -> Ask:
        classes = known.classes
        count, most = self.prototypes or classes, self.ranks * classes
        why = f"for each class at most {self.ranks} clients are asked"
        fix = f"set a number from 1 to {most}, or leave it out for one prototype of each class"
        check_range("prototypes", count, Range(least=1, most=most), "prototypes-out-of-range", why=why, fix=fix)
        return replace(self, recipe=self.recipe.fitted(known), known=known)

    def init_client(self, task: Task) -> DeviceModel:
        return DeviceModel(task.init(0))

    def requested_clients(self, s: AskingState) -> Sequence[int]:
        wishes = self.broadcast(s)
        return wishes.device[wishes.device >= 0].tolist()

    def broadcast(self, s: AskingState) -> ImageRequests:
        """Requests for prototypes in this round: at most one of those that wait per device and per class, since an
        answer names its class and not its device.
        """
        device, busy, named = torch.full_like(s.slots, -1), set[int](), set[int]()
        for i, (label, place, state) in enumerate(
            zip(s.slots.tolist(), s.place.tolist(), s.state.tolist(), strict=True)
        ):
            k = int(s.order[place, label]) if state == 0 else -1
            if k >= 0 and k not in busy and label not in named:
                device[i] = k
                busy.add(k)
                named.add(label)
        return ImageRequests(device, s.slots)

    def per_client_message(self, down: ImageRequests, client: int) -> ImageRequest:
        asked = down.label[down.device == client][:1]
        return ImageRequest(asked if len(asked) else asked.new_full((1,), -1))  # one shape for all clients

    def zero(self, task: Task, down: ImageRequests) -> Prototype:
        total = torch.zeros(dimensions(self, task))
        return Prototype(torch.zeros(1, dtype=torch.int64), total, torch.zeros(1))

    def passes(self, size: int) -> float:
        return size * (1 - KEPT) / 3

    def local(
        self, task: Task, down: ImageRequest, c: DeviceModel, shard: Shard, key: Key
    ) -> tuple[Prototype, DeviceModel]:
        _, held = parts(shard)
        label = int(down.label)
        sums, counts = (held or shard).by_class(lambda x: seen(task, c.model, x, self.matrix(task)), task.labels)
        total, count = sums[label].float(), counts[label].float().reshape(1)
        if torch.isnan(count):  # without counts: only a direction is sent
            count = torch.ones(1)
        elif float(count) < self.least or (held is None and self.read.offer() is None):
            # decided on released values alone; without held-back examples there is no prototype
            total, count = torch.zeros_like(total), torch.zeros_like(count)
        return Prototype(down.label, total, count), c

    def update(self, s: AskingState, r: Received[Prototype], home: Home) -> AskingState:
        came = {int(up.label): up for up in r.each if float(up.images) > 0 and tree.finite(up)}
        asked = self.broadcast(s).device >= 0
        place, state, prototypes, counts = (t.clone() for t in (s.place, s.state, s.prototypes, s.counts))
        for i in torch.nonzero(asked).flatten().tolist():
            up = came.get(int(s.slots[i]))
            if up is not None:
                state[i], prototypes[i], counts[i] = 1, up.total / up.images, up.images[0]
                continue
            same = s.slots == s.slots[i]
            following = int(place[same].max()) + 1
            state[i], place[i] = (2, place[i]) if following >= self.ranks else (0, following)
        s = s._replace(place=place, state=state, prototypes=prototypes, counts=counts)
        if not self.over(s):
            return s
        made = self.recipe.make(home, self.means(s, home.task))
        return s._replace(**made._asdict())

    def tables(self, s: AskingState) -> dict[str, list[dict[str, object]]]:
        """Tables of the requests for prototypes with their answers, and of the generator's training."""
        answered, place = (s.state == 1).tolist(), s.place.tolist()
        asked = [
            {
                "class": label,
                "devices": s.order[: place[i] + 1, label].tolist(),
                "answered": answered[i],
                "images": float(s.counts[i]),
            }
            for i, label in enumerate(s.slots.tolist())
        ]
        return {"asked": asked, **self.recipe.tables(TrainedGenerator(s.generator, s.kept, s.learned, s.log))}

    says = PhaseMessages("requests for prototypes", "prototypes and refusals", HANDS)

    def facts(self, s: AskingState, before: Facts) -> Facts:
        asked = requests_of(s, before.skills)
        return before._replace(asked=asked, kept=chosen(s.kept))

    def means(self, s: AskingState, task: Task) -> list[Anchor]:
        found = []
        for i in torch.nonzero(s.state == 1).flatten().tolist():
            label, place = int(s.slots[i]), int(s.place[i])
            model = {name: leaf[place, label] for name, leaf in s.models.items()}
            whose = int(s.order[place, label])
            found.append(Anchor(label, s.prototypes[i], task, model, self.matrix(task), whose))
        return found

    def models(self, s: AskingState) -> Mapping[str, Params]:
        return {}


# shared by the phases -------------------------------------------------------------------------------------------------


def parts(shard: Shard) -> tuple[Shard, Shard | None]:
    """A device's training examples and its held-back ones (None if it has too few)."""
    if shard.size < FEWEST:
        return shard, None
    return shard.split(KEPT, keys.root(0))


def given_examples(phase: Train, home: Home) -> Examples:
    """Labelled examples on which the server tests the devices' models."""
    sources = {"holdout": "probe", "test": "tested", "candidates": "candidates"}
    found: Examples | None = getattr(home, sources[phase.probe])
    if found is None:
        raise ConfigError(
            f"probe = {phase.probe!r}, but the server has no probe",
            why="the server ranks clients by the scores of their models on its own labelled examples",
            fix='set data.probe = 50, or probe = "candidates" with a [candidates] table',
            code="no-probe",
        )
    return found
