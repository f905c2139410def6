"""A run as its attackers meet it: what each of them sees of one round, behind the run's own gates and without them;
and, for the judges alone, the truth.

The attacked clients hold a few of their own images in the attacked round: the fewer, the less hides each of them. What
the attacker knows beside what was sent is public: the network, the method with its settings, how many images a client
holds, and images of the same kind from elsewhere (the test images, on which nobody trained).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from sordino import keys, tree
from sordino.accounting.claims import Adversary
from sordino.accounting.statement import Promised, statement
from sordino.algorithms.optional import Estimates, OtherReads
from sordino.attacks.poisoned import Lies, Poisoned
from sordino.audits.replay import Bare, Change, Heard, PlayedPreparation, Replay, Rounds, preparation, raw, unprotected
from sordino.errors import ConfigError
from sordino.keys import Key
from sordino.privacy.readers.beside_public import taken
from sordino.runs.rehearsal import Rehearsal
from sordino.runs.setup import Setup
from sordino.runs.simulation import Simulation
from sordino.types import Examples, Params, Task

MANY = 64  # images that an attacker seeks behind one update, at most
OWN = 1000  # images from elsewhere that an attacker has
EPISODE = 4  # images that a method needs which explains some by others
MEMBERS = 1000  # examples that were trained on, of those asked about


class MemberView(NamedTuple):
    """What an attacker has who asks of each of these examples whether it was trained on. It does not know which were.

    `shadow` trains the same run on a random half of everybody's rows, with noise of its own: the model, and which of
    the examples asked about were in it.
    """

    task: Task
    model: Params
    asked: Examples
    shadow: Callable[[int], tuple[Params, Tensor]]
    shadows: int
    key: Key


class UpdateView(NamedTuple):
    """What an attacker has of one client's round, or of a sum that the client is in. No row of anybody is in it."""

    task: Task
    before: Params  # the model that went down
    gradient: Params  # the mean gradient that the change of the model tells
    images: int  # that it is made of
    elsewhere: Tensor  # images that the attacker has, [n, c, h, w] between 0 and 1
    labels: Tensor  # of these
    key: Key  # of what the attack draws


class Victim(NamedTuple):
    """One attacked client: what the attacker sees, the same without protection, and, for the judge, what is true."""

    client: int
    view: UpdateView
    bare: UpdateView | None
    images: Tensor
    labels: Tensor


class MeanView(NamedTuple):
    """What an attacker has of a mean of features of one client's images of a class. No row of anybody is in it."""

    mean: Tensor
    looks: Callable[[Tensor], Tensor]  # the network that made the features, which the server knows
    label: int
    elsewhere: Tensor  # images that the attacker has, [n, c, h, w] between 0 and 1
    labels: Tensor  # of these
    key: Key


class AttackSettings(NamedTuple):
    """What the user chose."""

    round: int = 1  # counted from 1
    images: int = 4  # that each attacked client holds in this game; 0: all that it has
    victims: int = 2
    shadows: int = 8  # models that are trained to compare with
    trials: int = 1000  # releases of either side
    seed: int = 0
    attackers: float = 0.2  # of the clients, where some send something false


@dataclass(frozen=True)
class AttackedRun:
    """Everything that attacks on one run share. What is not asked for is not computed."""

    simulation: Simulation
    asked: AttackSettings = field(default=AttackSettings())
    by: Adversary | None = None  # another attacker than the attacks name themselves

    @property
    def setup(self) -> Setup:
        return self.simulation.setup

    @property
    def key(self) -> Key:
        return keys.fold(keys.root(self.asked.seed), "attack")

    # what kind of run it is -------------------------------------------------------------------------------------------

    @property
    def without_classes(self) -> str:
        """Why attacks on what is classified do not fit; nothing where they do."""
        return "" if self.setup.public.classes else "the run has no classes"

    @property
    def without_images(self) -> str:
        """Why attacks that draw images do not fit; nothing where they do."""
        return self.without_classes or ("" if self.setup.public.kind == "image" else "the run has no images")

    @cached_property
    def has_control(self) -> bool:
        """Can the method be run without its protection?"""
        try:
            unprotected(self.setup.method)
        except ConfigError:
            return False
        return True

    @property
    def protected(self) -> bool:
        """Is there anything between the data and an attacker? Else the run is its own control."""
        gates = self.setup.algorithm
        return not gates.read.plain or gates.uplink != unprotected(gates).uplink

    @cached_property
    def promises(self) -> tuple[Promised, ...]:
        """What the whole run promises, from its plan."""
        return tuple(map(Promised.of, Rehearsal(self.setup, self.simulation.home).guarantees))

    @cached_property
    def of_round(self) -> tuple[Promised, ...]:
        """What the attacked round promises by itself."""
        delta = self.setup.experiment.privacy.delta
        return tuple(map(Promised.of, statement([self.seen.note], len(self.setup.public.sizes), delta)))

    def against(self, adversary: Adversary) -> tuple[Promised, ...]:
        return tuple(held for held in self.promises if held.adversary == adversary)

    # the attacked round -----------------------------------------------------------------------------------------------

    def rounds(self, bare: bool, change: Change | None = None) -> Rounds:
        """The run as it stands before the attacked round. Its preparation is always its own."""
        kind = Bare if bare else Replay
        return _agreeing(kind(self.simulation, change, start=self.prepared.start)).until(self.asked.round - 1)

    @cached_property
    def prepared(self) -> PlayedPreparation:
        """What came before the training, where there is a preparation."""
        return preparation(self.simulation, bare=False)

    @cached_property
    def clients(self) -> tuple[int, ...]:
        """Who is attacked: of those who take part in that round the ones with most images."""
        rounds = self.rounds(bare=False)
        here = rounds.federation.draw(rounds.t, rounds.server)
        return tuple(sorted(here, key=lambda k: (-len(raw(self.simulation)[k].y), k))[: self.asked.victims])

    @cached_property
    def rows(self) -> dict[int, Examples]:
        """The images of every attacked client in this game: some of its own."""
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
    def seen(self) -> Heard:
        """The round as its gates let it pass."""
        return self.rounds(False, self.changed).round()

    @cached_property
    def bare(self) -> Heard | None:
        """The same round of the same run without protection."""
        if not self.protected:
            return self.seen
        if not self.has_control:
            return None
        return self.rounds(True, self.changed).round()

    @cached_property
    def elsewhere(self) -> Examples:
        """What an attacker has of the same kind: test images, on which nobody trained."""
        held = self.tested
        return taken(held, keys.permutation(keys.fold(self.key, "elsewhere"), len(held.y))[:OWN])

    def victims(self, adversary: Adversary) -> list[Victim]:
        """The attacked clients as this attacker sees them; none where nothing reaches it that tells of a model."""
        found = []
        for client, rows in self.rows.items():
            view = self._view(self.seen, client, adversary)
            if view is None:
                continue
            bare = None if self.bare is None else self._view(self.bare, client, "server")
            found.append(Victim(client, view, bare, pictures(rows.x), rows.y))
        return found

    def _view(self, heard: Heard, client: int, adversary: Adversary) -> UpdateView | None:
        """The server reads single uploads, where it can; everybody else, and a server that cannot, their sum."""
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
        """Every upload of the round in which each client holds the half of its images that has most of a property, or
        the other half, as its coin says; and, for the judge, the coin. `number`: of the replay, which has coins and
        noise of its own.
        """
        key = keys.fold(self.key, "sided", number)
        coins = keys.coin(key, len(self.setup.public.sizes), 0.5).tolist()

        def half(client: int, own: Examples) -> Examples:
            order = much(pictures(own.x)).argsort(descending=bool(coins[client]), stable=True)
            return taken(own, order[: max(1, len(own.y) // 2)])

        kind = Bare if bare else Replay
        rounds = _agreeing(kind(self.simulation, half, keys.word(key), self.prepared.start))
        rounds.until(self.asked.round - 1)
        heard, found = rounds.round(), []
        for client, change in heard.each.items():
            held = max(1, len(raw(self.simulation)[client].y) // 2)
            gradient = tree.scale(-1 / self._distance(held), change)
            found.append((self._update(heard.before, gradient, min(held, MANY), key), bool(coins[client])))
        return found

    # what a preparation tells -----------------------------------------------------------------------------------------

    def means(self, bare: bool) -> list[tuple[MeanView, Tensor]]:
        """The means of features that the server was told; and, for the judge, the client's images of that class."""
        told = preparation(self.simulation, bare=True) if bare else self.prepared
        every, found = raw(self.simulation), []
        own = pictures(self.elsewhere.x)
        for number, one in enumerate(told.means):
            rows = every[one.client]
            key = keys.fold(self.key, "mean", number)
            view = MeanView(one.mean.float(), one.looks, one.label, own, self.elsewhere.y, key)
            found.append((view, pictures(rows.x[rows.y == one.label])))
        return [(view, images) for view, images in found if len(images)]

    # the released model -----------------------------------------------------------------------------------------------

    def _played(self, bare: bool, change: Change | None = None, key: int | None = None) -> Params:
        """The model that the whole run releases."""
        kind = Bare if bare else Replay
        return kind(self.simulation, change, key).until(self.setup.rounds).model()

    def members(self, bare: bool) -> tuple[MemberView, Tensor]:
        """The released model, examples to ask about, and, for the judge, which of them were trained on."""
        every, known = raw(self.simulation), self.elsewhere
        owners = [(k, i) for k in every for i in range(len(every[k].y))]
        order = keys.permutation(keys.fold(self.key, "members"), len(owners))[:MEMBERS].tolist()
        picked = [owners[i] for i in order]
        mine = [taken(every[k], torch.tensor([i])) for k, i in picked]
        asked = known._replace(
            x=torch.cat([*(one.x for one in mine), known.x]), y=torch.cat([*(one.y for one in mine), known.y])
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
            # others are left out of as many models, so that they are compared with as few
            had = keys.coin(keys.fold(key, "others"), len(asked.y), 0.5).bool()
            had[: len(picked)] = torch.tensor([bool(has[k][i]) for k, i in picked])
            return self._played(bare, half, keys.word(key)), had

        model = self._played(bare)
        return MemberView(self.setup.task, model, asked, shadow, self.asked.shadows, self.key), inside

    # a run with clients that lie --------------------------------------------------------------------------------------

    @cached_property
    def liars(self) -> frozenset[int]:
        """Who sends something false: a share of the clients, drawn at random."""
        many = len(self.setup.public.sizes)
        order = keys.permutation(keys.fold(self.key, "liars"), many).tolist()
        return frozenset(order[: max(1, round(self.asked.attackers * many))])

    def poisoned(self, lies: Lies, plain: bool) -> Params:
        """The model that the whole run releases with these clients in it."""
        return Poisoned(self.simulation, lies, self.liars, plain, self.prepared.start).played()

    @cached_property
    def undisturbed(self) -> tuple[Params, Params]:
        """The models of the run without attackers: with its own sum, and with the plain one."""
        honest = Lies(lambda client, own: own, lambda upload, moment: upload)
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
        """How far a client walks per unit of gradient: its step, as often as it takes one. Both are public."""
        algorithm = self.setup.algorithm
        return (Estimates.of(algorithm).step_size or 1.0) * algorithm.work.count(images)


def _agreeing(rounds: Rounds) -> Rounds:
    """The same, where each client has agreed to the number of rows that it holds in this game."""
    rounds.site = replace(rounds.site, sizes=None)
    return rounds


def of_two_classes(order: Tensor, labels: Tensor) -> Tensor:
    """The same rows, with two of a class and two of another one in front, where there are such."""
    front: list[int] = []
    for label in dict.fromkeys(labels[order].tolist()):
        same = order[labels[order] == label][: EPISODE // 2].tolist()
        front += same if len(same) == EPISODE // 2 and len(front) < EPISODE else []
    return torch.tensor([*front, *(row for row in order.tolist() if row not in front)])


def pictures(x: Tensor) -> Tensor:
    """Images [n, c, h, w] between 0 and 1 from rows as they were decoded."""
    return (x.float() / 255).movedim(-1, 1)
