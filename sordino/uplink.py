"""Gate 2: client -> server. One object owns the bound, the weights, the sum, the noise and the denominator.

Each client stage has a client half (`encode`) and a server half (`decode`, in reverse order, on the sum). Server stages act on the sum. The sum is taken
in float64 over clients in the order of their ids, so that arrival order cannot change a result.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from sordino import tree
from sordino.errors import ConfigError, UnsoundGuarantee
from sordino.ledger.events import Event, NonPrivate
from sordino.privacy.as_published import AsPublished
from sordino.privacy.layers import ClipLayers
from sordino.privacy.stages import Clip, Noise, Stage, Weigh, private
from sordino.products import Total
from sordino.tree import Tree
from sordino.types import ADVERSARIES, Adversary, Bound, Claim, Grant, Neighbours, Offer, Params, Received, Source

U = TypeVar("U")

RAW = "sees each upload, no client-level noise"
SUM = "sees sums of uploads, no client-level noise"
NOMINAL = "noise as published, whose size follows from no bound"


@dataclass(frozen=True)
class Summed:
    """Uploads that were added up where they were made: their sum in float64, and whose they are."""

    total: Tree
    who: list[int]


@dataclass(frozen=True)
class Uplink:
    """`client=(Clip(1), Noise())` is local privacy, `client=(Clip(1),), server=(Noise(neighbours="add_remove"),)` is central: one word apart.

    denominator: `received` divides by the weights that arrived (only without central noise), `expected` by a public constant.
    """

    client: tuple[Stage, ...] = (Weigh(),)
    server: tuple[Stage, ...] = ()
    denominator: Literal["received", "expected"] | None = (
        None  # None: expected where the server adds noise, else received
    )
    published: str = ""  # why a published set-up that is not proved is allowed all the same: said with every claim, whose status is `conditional`

    def __post_init__(self) -> None:
        if self.denominator is None:
            object.__setattr__(self, "denominator", "expected" if private(self.server) else "received")
        if self.denominator not in ("received", "expected"):
            raise ConfigError(
                f"denominator = {self.denominator!r}",
                fix='"expected", or "received" where the server adds no noise',
                code="unknown-denominator",
            )
        if any(not isinstance(stage, Noise) for stage in self.server):
            raise ConfigError(
                "a server stage that is no noise",
                why="only noise is added to the sum; a clip there would come too late to bound a client",
                fix="put the other stages into client = [...]",
                code="server-stage-not-noise",
            )
        if private(self.server) and self.denominator == "received" and not self.published:
            raise UnsoundGuarantee(
                "central noise with a realised denominator",
                why="the number of clients that answered depends on who is in the data, so dividing by it changes the sensitivity",
                fix='use denominator = "expected"',
                code="realised-denominator",
            )
        for local in private(self.client):
            if local.neighbours == "add_remove":
                raise UnsoundGuarantee(
                    "client-side noise with add_remove neighbours",
                    why="the server sees who uploads, so presence is not hidden; two different uploads lie up to 2 * radius apart",
                    fix='use neighbours = "replace" (or "zero_out")',
                    code="local-noise-add-remove",
                )
        seen_noise = False
        for stage in self.client:
            if seen_noise and isinstance(stage, Clip | ClipLayers):
                raise UnsoundGuarantee(
                    "a clip after the noise",
                    why="the bound must hold before noise is added; the noise would be sized for the wrong input",
                    fix="put Clip before Noise",
                    code="noise-before-clip",
                )
            seen_noise = seen_noise or isinstance(stage, Noise)
        if len(private(self.client)) + len(private(self.server)) > 1:
            raise UnsoundGuarantee(
                "two noise stages in one uplink",
                why="one promise, one noise",
                fix="keep one",
                code="two-noises",
            )

        personal = next((i for i, s in enumerate(self.client) if isinstance(s, Clip) and s.personal), len(self.client))
        if any(isinstance(stage, Clip | ClipLayers) for stage in self.client[personal + 1 :]):
            raise UnsoundGuarantee(
                "a clip behind a personal clip",
                why="it would give everybody the same radius again, and the server would take those with small budgets for cheats",
                fix="put the personal clip last",
                code="clip-behind-personal-clip",
            )
        if self.as_published is not None and self.noise() is not None:
            raise UnsoundGuarantee(
                "noise as published together with noise that is priced",
                why="the published stage bounds nothing and makes every claim nominal: a budget would be spent for nothing",
                fix="keep one of them",
                code="published-beside-noise",
            )
        if self.personal and not any(stage.neighbours != "add_remove" for stage in private(self.server)):
            raise UnsoundGuarantee(
                "a personal clip without central noise for visible clients",
                why="it spends each client's own budget under one noise: at the client, each adds its own noise instead; in a hidden cohort, each has its own rate",
                fix='server = [{name = "noise", neighbours = "zero_out"}], or take personal = true away',
                code="personal-clip-needs-central-noise",
            )

    # what it promises -------------------------------------------------------------------------------------------------------------

    def noise(self) -> Noise | None:
        stages = private(self.client) + private(self.server)
        return stages[0] if stages else None

    @property
    def as_published(self) -> AsPublished | None:
        """Noise that proves nothing."""
        return next((stage for stage in self.client if isinstance(stage, AsPublished)), None)

    @property
    def personal(self) -> bool:
        """Is every client bounded by what its own budget buys?"""
        return any(isinstance(stage, Clip) and stage.personal for stage in self.client)

    def offer(self, rate: float, hidden: bool) -> Offer | None:
        """`rate` and `hidden` describe the cohort: only a hidden Poisson cohort may amplify, and never against the server."""
        noise = self.noise()
        if noise is None:
            return None
        central = noise in self.server
        if central and hidden and noise.neighbours != "add_remove":
            raise UnsoundGuarantee(
                f"a hidden Poisson cohort with {noise.neighbours} neighbours",
                why="sampling by independent coins amplifies the promise of adding or removing a client, no other",
                fix='use neighbours = "add_remove"',
                code="poisson-needs-add-remove",
            )
        if central and not hidden and noise.neighbours == "add_remove" and not self.published:
            raise UnsoundGuarantee(
                "add_remove neighbours without a Poisson cohort",
                why="removing a client changes who else is drawn, so more than one summand changes",
                fix='use cohort = {name = "poisson", rate = ...}, or neighbours = "zero_out"',
                code="add-remove-needs-poisson",
            )
        amplified = central and (hidden or bool(self.published))
        return Offer(
            unit="client",
            neighbours=noise.neighbours,
            adversary="participants" if central else "server",
            mechanism=noise.mechanism,
            everyone_pays=amplified,
            rate=rate if amplified else 1.0,
        )

    def claims(self, multiplier: float | None, amplify: Callable[[Event, Adversary], Event]) -> list[Claim]:
        """`amplify` is the cohort's: what its sampler makes of an event against an adversary."""
        noise = self.noise()
        if (shown := self.as_published) is not None:
            return [Claim("client", "replace", a, NonPrivate(NOMINAL), "nominal", shown.reasons) for a in ADVERSARIES]
        if noise is None:
            return [_nothing("replace", a, RAW if a == "server" else SUM) for a in ADVERSARIES]
        used = noise.multiplier if noise.multiplier is not None else multiplier
        assert used is not None
        event, central = noise.mechanism.event(used * noise.louder), noise in self.server
        return [
            _nothing(noise.neighbours, a, RAW)
            if central and a == "server"
            else Claim(
                "client",
                noise.neighbours,
                a,
                amplify(event, a) if central else event,
                "conditional" if self.published else "proved",
                (*([self.published] if self.published else []), *self._assumed()),
            )
            for a in ADVERSARIES
        ]

    def _assumed(self) -> tuple[str, ...]:
        weighed = any(isinstance(stage, Weigh) and stage.by == "examples" for stage in self.client)
        return ("the number of examples of each client is public",) if weighed else ()

    # what changes from round to round -------------------------------------------------------------------------------------------

    @property
    def learns(self) -> bool:
        return any(stage.learns for stage in self.client)

    def begin(self, zero: Tree, model: Params) -> tuple[Tree, ...]:
        """What its stages start from, in their order."""
        return tuple(stage.begin(x, model) for stage, x in zip(self.client, self._looks(zero), strict=False))

    def at(self, t: int, down: Any) -> Uplink:
        """The uplink of round t, where its stages learn from what was released before."""
        public = down.public if self.learns else [()] * len(self.client)
        stages = tuple(stage.at(t, known) for stage, known in zip(self.client, public, strict=True))
        return self if all(map(operator.is_, stages, self.client)) else replace(self, client=stages)

    # what it does -----------------------------------------------------------------------------------------------------------------

    def bound(self, coordinates: int) -> Bound:
        bound = Bound()
        for stage in self.client:
            if isinstance(stage, Noise):
                stage.sensitivity(bound)
            bound = stage.bound(bound, coordinates)
        for central in private(self.server):
            central.sensitivity(bound)
        return bound

    def encode(self, upload: Tree, grant: Grant) -> Tree:
        bound, coordinates, x = Bound(), tree.size(upload), upload
        for stage in self.client:
            x = stage.encode(x, bound, grant)
            bound = stage.bound(bound, coordinates)
        return x

    def shape(self, upload: Tree) -> Tree:
        for stage in self.client:
            upload = stage.shape(upload)
        return upload

    def weight(self, size: int, largest: int, precision: float = 1.0) -> float:
        """The public weight of one client: the product of its stages' weights."""
        return math.prod(stage.weight(size, largest, precision) for stage in self.client)

    def receive(
        self,
        uploads: Mapping[int, U] | Iterable[tuple[int, U]] | Summed,
        zero: U,
        weights: Sequence[float],
        expected: float,
        multiplier: float | None,
        source: Source,
        each: bool = True,
        weight: float | None = None,
        reach: Callable[[int], float] = lambda client: 1.0,
        std: Callable[[list[int]], float] = lambda who: 0.0,
    ) -> Received[U]:
        """Sum, noise, decode, divide.

        Uploads may come one by one, in the order of their clients, and are let go once added, unless the algorithm reads `each`.
        `zero` is the contribution of nobody: it gives the shape, so that an empty round is legal. `weights` are the
        public weights of the whole population and `weight` their sum, where it is known; `expected` is the public denominator of the `expected` rule,
        `reach` the share of a personal clip that a client may use, `std` the deviation of the noise in the mean of those who answered.
        """
        bound = self.bound(tree.size(zero))
        kept: list[U] = []
        if not isinstance(uploads, Summed):
            keeps = each or any(stage.reads_each for stage in self.client)
            uploads = self.sum(uploads, zero, kept if keeps else None, reach)
        total, who = uploads.total, uploads.who
        for stage in private(self.server):
            used = stage.multiplier if stage.multiplier is not None else multiplier
            if used is None:  # every client abstained, in a cohort everybody sees: nobody is left to protect
                assert not who
                continue
            total = stage.release(total, bound, used, source)
        realised = math.fsum(weights[client] for client in who)
        denominator = expected if self.denominator == "expected" else realised
        divided = tree.map(lambda y: y / denominator if denominator > 0 else y, total)
        mean = tree.map(lambda y, leaf: y.to(leaf.dtype), self._decode(divided, zero), zero)
        public = self._learn(divided, zero, std(who), kept) if self.learns else ()
        # who took part is part of what central noise hides: the server learns the public expectation
        hidden = bool(private(self.server))
        everybody = math.fsum(weights) if weight is None else weight
        participation = expected / everybody if hidden else len(who) / len(weights)
        return Received(mean, participation, lambda: self._single(kept if each else None, zero), public)

    def sum(
        self,
        uploads: Mapping[int, U] | Iterable[tuple[int, U]],
        zero: U,
        kept: list[U] | None = None,
        reach: Callable[[int], float] = lambda client: 1.0,
    ) -> Summed:
        """What each client may add, added up; single uploads go into `kept`."""
        bound, who = self.bound(tree.size(zero)), []
        total = tree.map(_wide_zero, self.shape(zero))
        sums = [Total(leaf) for leaf in tree.leaves(total)]
        for client, upload in sorted(uploads.items()) if isinstance(uploads, Mapping) else uploads:
            for t, u in zip(sums, tree.leaves(self._admit(upload, bound, reach(client))), strict=True):
                t.add(u)
            who.append(client)
            if kept is not None:
                kept.append(upload)
        return Summed(tree.like(total, [t.sum() for t in sums]), who)

    def _admit(self, upload: Tree, bound: Bound, reach: float) -> Tree:
        """What one client adds to the sum: nothing where it broke the promise of its own stages. Honest uploads pass bit for bit."""
        if private(self.client):
            kept = tree.finite(upload)  # the bound held before the noise; only numbers can be asked for now
        elif math.isfinite(bound.l2):
            order = 1 if bound.l1 <= bound.l2 else 2
            kept = bool(tree.norm(upload, order) <= bound.of(order) * (reach if self.personal else 1.0))
        else:
            kept = True
        return upload if kept else tree.zeros_like(upload)

    def _looks(self, zero: Tree) -> list[Tree]:
        """The shape before every stage, and behind the last one."""
        looks = [zero]
        for stage in self.client:
            looks.append(stage.shape(looks[-1]))
        return looks

    def _decode(self, y: Tree, zero: Tree) -> Tree:
        for stage, like in zip(reversed(self.client), reversed(self._looks(zero)[:-1]), strict=True):
            y = stage.decode(y, like)
        return y

    def _learn(self, y: Tree, zero: Tree, std: float, each: list[Any]) -> tuple[Tree, ...]:
        found: list[Tree] = []
        for stage, like in zip(reversed(self.client), reversed(self._looks(zero)[:-1]), strict=True):
            found.append(stage.learn(y, like, std, each))
            y, each = stage.decode(y, like), [stage.decode(upload, like) for upload in each]
        return tuple(reversed(found))

    def _single(self, uploads: Sequence[U] | None, zero: U) -> list[U]:
        if private(self.server) or any(stage.aggregate_only for stage in self.client):
            raise UnsoundGuarantee(
                "this algorithm reads single uploads, but the uplink releases only their sum",
                why="the promise covers the noised sum, not what one client sent",
                fix="use an uplink without central noise or encryption, or another algorithm",
                code="aggregate-only",
            )
        if uploads is None:
            raise ConfigError(
                "this algorithm reads single uploads without saying so",
                why="they are let go as soon as they are added, so that a large cohort fits into memory",
                fix="set `reads_each = True` in the class of the algorithm",
                code="reads-each",
            )
        return [self._decode(upload, zero) for upload in uploads]


def _wide_zero(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf, dtype=torch.float64 if leaf.is_floating_point() else leaf.dtype)


def _nothing(neighbours: Neighbours, adversary: Adversary, text: str) -> Claim:
    return Claim("client", neighbours, adversary, NonPrivate(text), "none", (text,))
