"""Views of a run for its attackers: the observations of one round, with the run's own clip and noise and without them;
and the ground truth, for judges alone.

In the attacked round the attacked clients train on a few of their images only: the fewer there are, the less they hide
each other. Beside the messages an attacker knows public facts only: the network, the method with its settings, the
number of images of each client, and other images of the same kind (the test images, on which no client trains).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from sordino import keys, tree
from sordino.accounting.claims import Adversary
from sordino.accounting.statement import Promised, statement
from sordino.algorithms.optional import Estimates, OtherReads
from sordino.attacks.poisoned import Manipulations, Poisoned
from sordino.audits.replay import (
    Change,
    RecordedRound,
    Replay,
    ReplayedPreparation,
    Rounds,
    UnprotectedRounds,
    preparation,
    raw,
    unprotected,
)
from sordino.errors import ConfigError
from sordino.keys import Key
from sordino.planning.planner import Planner
from sordino.privacy.readers import taken
from sordino.runs.setup import PhaseSetup
from sordino.runs.simulation import Simulation
from sordino.types import Examples, Params, Task

T = TypeVar("T")
MANY = 64  # most images that an attacker reconstructs from one update
OWN = 1000  # images of its own that an attacker has
EPISODE = 4  # fewest images for a method with episodes
MEMBERS = 1000  # members among the examples of membership inference


class MemberView(NamedTuple):
    """View of membership inference: a model, and examples of which the attacker must tell whether they were trained on.

    `shadow` trains the same run on a random half of all rows, with noise of its own; it returns the model, and which of
    the view's examples it was trained on.
    """

    task: Task
    model: Params
    asked: Examples
    shadow: Callable[[int], tuple[Params, Tensor]]
    shadows: int
    key: Key


class UpdateView(NamedTuple):
    """View of one client's update, or of a sum that includes it. It holds no rows of clients."""

    task: Task
    before: Params  # the broadcast model
    gradient: Params  # mean gradient, computed from the change of the model
    images: int  # number of images from which it was computed
    elsewhere: Tensor  # images that the attacker has, [n, c, h, w] between 0 and 1
    labels: Tensor  # of these
    key: Key  # of the attack's own randomness


class Victim(NamedTuple):
    """One attacked client: the attacker's view, the same view without protection, and the true images."""

    client: int
    view: UpdateView
    bare: UpdateView | None
    images: Tensor
    labels: Tensor


class MeanView(NamedTuple):
    """View of a mean of features over one client's images of a class. It holds no rows of clients."""

    mean: Tensor
    looks: Callable[[Tensor], Tensor]  # the feature extractor, which the server knows
    label: int
    elsewhere: Tensor  # images that the attacker has, [n, c, h, w] between 0 and 1
    labels: Tensor  # of these
    key: Key


class AttackSettings(NamedTuple):
    """Settings that all attacks share, such as the attacked round and the number of attacked clients."""

    round: int = 1  # counted from 1
    images: int = 4  # images of each attacked client in the attacked round; 0: all that it has
    victims: int = 2
    shadows: int = 8  # shadow models
    trials: int = 1000  # releases of either side
    seed: int = 0
    attackers: float = 0.2  # share of malicious clients


@dataclass(frozen=True)
class AttackedRun:
    """One run under attack: what its attackers observe (views), computed on first use."""

    simulation: Simulation
    asked: AttackSettings = field(default=AttackSettings())
    by: Adversary | None = None  # in place of the adversary that each attack names

    @property
    def setup(self) -> PhaseSetup:
        return self.simulation.setup

    @property
    def key(self) -> Key:
        return keys.fold(keys.root(self.asked.seed), "attack")

    # kind of run ------------------------------------------------------------------------------------------------------

    @property
    def without_classes(self) -> str:
        """Reason why attacks on classification do not fit this run; empty if they do."""
        return "" if self.setup.public.classes else "the run has no classes"

    @property
    def without_images(self) -> str:
        """Reason why attacks on images do not fit this run; empty if they do."""
        return self.without_classes or ("" if self.setup.public.kind == "image" else "the run has no images")

    @cached_property
    def has_control(self) -> bool:
        """True if the method can run without its protection."""
        try:
            unprotected(self.setup.method)
        except ConfigError:
            return False
        return True

    @property
    def protected(self) -> bool:
        """True if the run protects examples or uploads, by clip, noise or other steps. Otherwise the run is its own
        control."""
        gates = self.setup.algorithm
        return not gates.read.plain or gates.uplink != unprotected(gates).uplink

    def beside_control(self, play: Callable[[bool], T]) -> tuple[T, T | None]:
        """The result of an attack on the run, and on the same run without protection (None if the method cannot run
        without it). `play` is called with True for the run without protection."""
        seen = play(False)
        if not self.protected:
            return seen, seen
        return seen, play(True) if self.has_control else None

    @cached_property
    def promises(self) -> tuple[Promised, ...]:
        """Privacy guarantees of the whole run, computed from its plan."""
        return tuple(map(Promised.of, Planner(self.setup).guarantees))

    @cached_property
    def of_round(self) -> tuple[Promised, ...]:
        """Privacy guarantees of the attacked round alone."""
        delta = self.setup.experiment.privacy.delta
        return tuple(map(Promised.of, statement([self.seen.note], len(self.setup.public.sizes), delta)))

    def against(self, adversary: Adversary) -> tuple[Promised, ...]:
        return tuple(held for held in self.promises if held.adversary == adversary)

    # the attacked round -----------------------------------------------------------------------------------------------

    def rounds(self, bare: bool, change: Change | None = None) -> Rounds:
        """The run, replayed up to the attacked round; `bare`: without protection, after a protected preparation."""
        kind = UnprotectedRounds if bare else Replay
        return _agreeing(kind(self.simulation, change, start=self.prepared.start)).until(self.asked.round - 1)

    @cached_property
    def prepared(self) -> ReplayedPreparation:
        """Result of the preparation (the phases before the training), replayed to its end."""
        return preparation(self.simulation, bare=False)

    @cached_property
    def clients(self) -> tuple[int, ...]:
        """The attacked clients: those participants of the round that have most images."""
        rounds = self.rounds(bare=False)
        here = rounds.federation.draw(rounds.federation.open(rounds.t), rounds.server)
        return tuple(sorted(here, key=lambda k: (-len(raw(self.simulation)[k].y), k))[: self.asked.victims])

    @cached_property
    def rows(self) -> dict[int, Examples]:
        """Rows on which each attacked client trains in the attacked round: a few of its own."""
        every, found = raw(self.simulation), {}
        for client in self.clients:
            own = every[client]
            order = keys.permutation(keys.fold(self.key, "rows", client), len(own.y))
            episodes = OtherReads.of(self.setup.algorithm).wants == "episodes"
            if episodes:
                order = of_two_classes(order, own.y)
            few = max(self.asked.images, EPISODE) if episodes else self.asked.images
            found[client] = taken(own, order[:few]) if few and self.asked.images else own
        return found

    def changed(self, client: int, own: Examples) -> Examples:
        return self.rows.get(client, own)

    @cached_property
    def seen(self) -> RecordedRound:
        """The messages of the attacked round, protected as in the run."""
        return self.rounds(False, self.changed).round()

    @cached_property
    def bare(self) -> RecordedRound | None:
        """The messages of the attacked round without protection; None if the method cannot run so."""
        if not self.protected:
            return self.seen
        if not self.has_control:
            return None
        return self.rounds(True, self.changed).round()

    @cached_property
    def elsewhere(self) -> Examples:
        """Images that the attacker has of its own: some test images, on which no client trains."""
        held = self.tested
        return taken(held, keys.permutation(keys.fold(self.key, "elsewhere"), len(held.y))[:OWN])

    def victims(self, adversary: Adversary) -> list[Victim]:
        """Views of the attacked clients; empty if this adversary observes nothing of the model."""
        found = []
        for client, rows in self.rows.items():
            view = self._view(self.seen, client, adversary)
            if view is None:
                continue
            bare = None if self.bare is None else self._view(self.bare, client, "server")
            found.append(Victim(client, view, bare, pictures(rows.x), rows.y))
        return found

    def _view(self, heard: RecordedRound, client: int, adversary: Adversary) -> UpdateView | None:
        """A view of the client's single upload if the adversary is a server that can read it, else of the sum; None if
        neither reveals a change of the model.
        """
        change, many = heard.each.get(client) if adversary == "server" else None, len(self.rows[client].y)
        if change is None:
            change, held = heard.together, {k: len(rows.y) for k, rows in self.rows.items()}
            many = sum(held.get(k, self.setup.public.sizes[k]) for k in heard.answered)
        if change is None:
            return None
        gradient = tree.scale(-1 / self._distance(len(self.rows[client].y)), change)
        return self._update(heard.before, gradient, min(many, MANY), keys.fold(self.key, "view", client))

    def _update(self, before: Params, gradient: Params, images: int, key: Key) -> UpdateView:
        known = self.elsewhere
        return UpdateView(self.setup.task, before, gradient, images, pictures(known.x), known.y, key)

    def sided(self, bare: bool, number: int, much: Callable[[Tensor], Tensor]) -> list[tuple[UpdateView, bool]]:
        """Views of all uploads in replay number `number`, for property inference, each with a random coin that decides
        on which images the client trains: the half with most of the property that `much` measures, or the other half.
        `bare`: without protection.
        """
        key = keys.fold(self.key, "sided", number)
        coins = keys.coin(key, len(self.setup.public.sizes), 0.5).tolist()

        def half(client: int, own: Examples) -> Examples:
            order = much(pictures(own.x)).argsort(descending=bool(coins[client]), stable=True)
            return taken(own, order[: max(1, len(own.y) // 2)])

        kind = UnprotectedRounds if bare else Replay
        rounds = _agreeing(kind(self.simulation, half, keys.word(key), self.prepared.start))
        rounds.until(self.asked.round - 1)
        heard, found = rounds.round(), []
        for client, change in heard.each.items():
            held = max(1, len(raw(self.simulation)[client].y) // 2)
            gradient = tree.scale(-1 / self._distance(held), change)
            found.append((self._update(heard.before, gradient, min(held, MANY), key), bool(coins[client])))
        return found

    # prototypes of a preparation --------------------------------------------------------------------------------------

    def means(self, bare: bool) -> list[tuple[MeanView, Tensor]]:
        """Views of the means of features that the server received, each with the client's images of that class, for the
        judge. `bare`: without protection.
        """
        messages = preparation(self.simulation, bare=True) if bare else self.prepared
        every, found = raw(self.simulation), []
        own = pictures(self.elsewhere.x)
        for number, one in enumerate(messages.means):
            rows = every[one.client]
            key = keys.fold(self.key, "mean", number)
            view = MeanView(one.mean.float(), one.looks, one.label, own, self.elsewhere.y, key)
            found.append((view, pictures(rows.x[rows.y == one.label])))
        return [(view, images) for view, images in found if len(images)]

    # the released model -----------------------------------------------------------------------------------------------

    def _played(self, bare: bool, change: Change | None = None, key: int | None = None) -> Params:
        """The final model of the run, all rounds replayed; `bare`: without protection."""
        kind = UnprotectedRounds if bare else Replay
        return kind(self.simulation, change, key).until(self.setup.rounds).model()

    def members(self, bare: bool) -> tuple[MemberView, Tensor]:
        """View for membership inference: the final model, and examples of which some were trained on; and for the
        judge, which ones. `bare`: the model is that of the run without protection.
        """
        every, known = raw(self.simulation), self.elsewhere
        owners = [(k, i) for k in every for i in range(len(every[k].y))]
        order = keys.permutation(keys.fold(self.key, "members"), len(owners))[:MEMBERS].tolist()
        picked = [owners[i] for i in order]
        pictures = [taken(every[k], torch.tensor([i])) for k, i in picked]
        asked = known._replace(
            x=torch.cat([*(one.x for one in pictures), known.x]), y=torch.cat([*(one.y for one in pictures), known.y])
        )
        inside = torch.arange(len(asked.y)) < len(picked)

        def shadow(number: int) -> tuple[Params, Tensor]:
            key = keys.fold(self.key, "shadow", number)

            def kept(client: int, many: int) -> Tensor:
                return keys.coin(keys.fold(key, "kept", client), many, 0.5).bool()

            def half(client: int, own: Examples) -> Examples:
                rows = kept(client, len(own.y)).nonzero()[:, 0]
                return taken(own, rows if len(rows) else torch.arange(1))

            has = {k: kept(k, len(every[k].y)) for k in every}
            # non-members count as trained on in half of the shadow models, too, so both are compared with as many
            had = keys.coin(keys.fold(key, "others"), len(asked.y), 0.5).bool()
            had[: len(picked)] = torch.tensor([bool(has[k][i]) for k, i in picked])
            return self._played(bare, half, keys.word(key)), had

        model = self._played(bare)
        return MemberView(self.setup.task, model, asked, shadow, self.asked.shadows, self.key), inside

    # a run with malicious clients -------------------------------------------------------------------------------------

    @cached_property
    def malicious(self) -> frozenset[int]:
        """The malicious clients of a poisoning attack: a random share of all clients."""
        many = len(self.setup.public.sizes)
        order = keys.permutation(keys.fold(self.key, "liars"), many).tolist()
        return frozenset(order[: max(1, round(self.asked.attackers * many))])

    def poisoned(self, lies: Manipulations, plain: bool) -> Params:
        """The final model of the run with malicious clients; `plain`: aggregated by the plain mean."""
        return Poisoned(self.simulation, lies, self.malicious, plain, self.prepared.start).played()

    @cached_property
    def undisturbed(self) -> tuple[Params, Params]:
        """Final models of the run without malicious clients: with its own aggregation, and with the plain mean."""
        honest = Manipulations(lambda client, own: own, lambda upload, moment: upload)
        own, plain = (
            Poisoned(self.simulation, honest, frozenset(), kind, self.prepared.start) for kind in (False, True)
        )
        model = own.played()
        return model, plain.played() if self.setup.algorithm.uplink.robust else model

    @cached_property
    def tested(self) -> Examples:
        """All test examples."""
        held, rows = self.simulation.population.named.test, next(iter(raw(self.simulation).values()))
        return rows._replace(x=torch.from_numpy(held.x[:]), y=torch.from_numpy(held.y[:]))

    def _distance(self, images: int) -> float:
        """Step size times number of steps, both public: the factor from a client's gradient to its change of the
        model."""
        algorithm = self.setup.algorithm
        return (Estimates.of(algorithm).step_size or 1.0) * algorithm.work.count(images)


def _agreeing(rounds: Rounds) -> Rounds:
    """Sets, in a replay, each client's size to the number of rows that it trains on in the attack, in place of the
    announced one. Returns the replay.
    """
    rounds.site = replace(rounds.site, sizes=None)
    return rounds


def of_two_classes(order: Tensor, labels: Tensor) -> Tensor:
    """Reorders row numbers: two rows of one class and two of another come first, where there are enough."""
    front: list[int] = []
    for label in dict.fromkeys(labels[order].tolist()):
        same = order[labels[order] == label][: EPISODE // 2].tolist()
        front += same if len(same) == EPISODE // 2 and len(front) < EPISODE else []
    return torch.tensor([*front, *(row for row in order.tolist() if row not in front)])


def pictures(x: Tensor) -> Tensor:
    """Images [n, c, h, w] between 0 and 1 from decoded rows."""
    return (x.float() / 255).movedim(-1, 1)
