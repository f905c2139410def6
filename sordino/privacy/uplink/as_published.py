"""Noise as published in CUAG-PFL and two of its baselines. None of it is a guarantee: these stages bound nothing, and
everything made with them says so.

    OwnNorm      N(0, (2 C_l sigma / B)^2) on every layer, C_l the layer's own norm (Li, Xiao and Chen, Chinese Journal
                 of Computers 2024, algorithm 4)
    UpdateLevel  the same for a fixed C and sigma, as that paper runs PriFedSync (Zheng et al., AISTATS 2021)
    UserLevel    clip to the median norm, noise that grows with the rounds (Wei et al., IEEE TMC 2022); Discounted: the
                 original's option of fewer rounds

Deviations: the median is that of the round before, since clients cannot know each other's norms before they send; each
upload carries its own norm.
"""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from sordino import keys, tree
from sordino.accounting.events import valid_delta
from sordino.accounting.gaussian_dp import epsilon_of
from sordino.accounting.published import (
    PublishedSetting,
    adaptive_scale,
    composed,
    limit_mu,
    prifedsync_mu,
    relative_noise,
    udp_multiplier,
)
from sordino.errors import COUNT, POSITIVE, SEVERAL, ConfigError, InvalidBudget, check_range
from sordino.privacy.noise import GaussianNoise
from sordino.privacy.uplink.stages import Clip, OneField, Stage, clip_factor
from sordino.tree import Tree
from sordino.types import Bound, Grant, Params, StatedEpsilon, Tensor

OWN_NORM = (
    "the noise follows the data: the clip is the identity, so the sensitivity is unbounded and an update of "
    "zero has no noise at all"
)
ONE_OF_B = "the whole update is treated as a mean of B clipped vectors, so the noise is B times too small"
NOT_STEPS = "local steps without noise are composed as if each had some, and amplified by sampling that the server sees"
PER_LAYER = "every layer is charged as if it were the only one"
EACH_ROUND = "the noise of a round is what would keep the budget if all rounds until then had had it, but they had less"
RAW_MEDIAN = "the median of raw norms is used without noise"
EXACT = "exact client state is sent beside the update"
UNHEARD = 1e300  # stands for a loss that is not known yet
ONE_RECORD = "the noise is sized for one record in a mean over all, not for a client"


@dataclass(frozen=True)
class AsPublished(Stage, ABC):
    """Base class of stages whose published epsilon proves nothing: its rows are nominal."""

    @property
    @abstractmethod
    def reasons(self) -> tuple[str, ...]:
        """The reasons why the published noise proves nothing."""

    def bound(self, bound: Bound, coordinates: int) -> Bound:
        return Bound()

    @abstractmethod
    def stated(self, rounds: int, delta: float, records: int) -> StatedEpsilon:
        """The guarantee that the paper states for the client with the fewest records."""


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        check_range(name, count, COUNT, "not-positive")


@dataclass(frozen=True)
class OwnNorm(AsPublished):
    """Noise in proportion to each layer's own norm, as published. mu: the published budget, or (lo, hi): `levels`
    evenly spaced budgets, dealt to the clients. sigma: a fixed noise scale, in place of mu. clip: a fixed radius, in
    place of the norm.
    """

    mu: float | tuple[float, float] = 0.25
    sigma: float | None = None
    clip: float | None = None
    scope: Literal["layer", "whole"] = "layer"
    batch: int = 50
    steps: int = 25
    rate: float = 0.1
    variance_as_std: bool = False  # a slip that would explain published accuracies: to find out, not to use
    levels: int = 100
    _round: int = 0

    def __post_init__(self) -> None:
        for mu in self.mu if isinstance(self.mu, tuple) else (self.mu,):
            adaptive_scale(mu, 1)  # refuses what is not a budget
        _check_counts(batch=self.batch, steps=self.steps, levels=self.levels)
        if isinstance(self.mu, tuple):
            check_range("levels between two budgets", self.levels, SEVERAL, "not-positive")
        for number in (self.clip, self.sigma):
            if number is not None:
                Clip(number)

    def at(self, t: int, public: Tree) -> Stage:
        return replace(self, _round=t)

    def encode(self, x: Tree, bound: Bound, grant: Grant) -> Tree:
        setting = self._setting(grant.size)
        scale = (
            self.sigma if self.sigma is not None else adaptive_scale(self._mu(grant.client), self._round + 1, setting)
        )
        whole = tree.norm(x) if self.scope == "whole" else None
        noisy = [self._noised(name, leaf, whole, relative_noise(scale, setting), grant) for name, leaf in tree.named(x)]
        return tree.like(x, noisy)

    def _noised(self, name: str, y: Tensor, whole: Tensor | None, relative: float, grant: Grant) -> Tensor:
        norm = torch.linalg.vector_norm(y.double()) if whole is None else whole
        if not torch.isfinite(norm):  # an update that is not a number counts as none
            return torch.zeros_like(y)
        if self.clip is not None:
            y = y * clip_factor(norm, self.clip, y.dtype)
        std = relative * (float(norm) if self.clip is None else self.clip)
        std = std**2 if self.variance_as_std else std
        return GaussianNoise().add(y, std, grant.source.child(name)).to(y.dtype) if std else y

    def _mu(self, client: int) -> float:
        if not isinstance(self.mu, tuple):
            return self.mu
        place = int(keys.permutation(keys.fold(keys.root(self.levels), "levels"), self.levels)[client % self.levels])
        return self.mu[0] + (self.mu[1] - self.mu[0]) * place / (self.levels - 1)

    def stated(self, rounds: int, delta: float, records: int) -> StatedEpsilon:
        mu, setting = max(self.mu) if isinstance(self.mu, tuple) else self.mu, self._setting(records)
        if self.sigma is not None:
            total = limit_mu(setting.product, rounds * self.steps, self.sigma)
            return StatedEpsilon(epsilon_of(total, delta), epsilon_of(total, delta))
        return StatedEpsilon(epsilon_of(mu, delta), epsilon_of(composed(mu, rounds), delta))

    @property
    def reasons(self) -> tuple[str, ...]:
        own = (OWN_NORM,) if self.clip is None else ()
        return (*own, ONE_OF_B, NOT_STEPS, PER_LAYER, *((EACH_ROUND,) if self.sigma is None else ()))

    def _setting(self, records: int) -> PublishedSetting:
        return PublishedSetting(self.rate, self.batch, records, self.steps)


@dataclass(frozen=True)
class UpdateLevel(OwnNorm):
    """Noise sized for a fixed clip and sigma, as published, which proves nothing."""

    sigma: float | None = 0.45
    clip: float | None = 1.0

    def stated(self, rounds: int, delta: float, records: int) -> StatedEpsilon:
        assert self.sigma is not None
        total = prifedsync_mu(rounds, self.sigma, self._setting(records))
        return StatedEpsilon(epsilon_of(total, delta), epsilon_of(total, delta))


@dataclass(frozen=True)
class UserLevel(AsPublished):
    """Clip to the median norm, with noise sized to keep epsilon "constant": for the rounds so far, so that it grows
    (`horizon` None), or for `horizon` rounds from the start.

    clip: a fixed norm, or None: the median norm of the round before; `first` in the first round.
    """

    epsilon: float = 10.0
    delta: float = 1e-5
    clip: float | None = None
    first: float = 1.0
    per: Literal["records", "batch"] = "records"  # what 2 C is divided by
    batch: int = 50
    rate: float = 0.1
    horizon: int | None = None
    _round: int = 0
    _radius: float = 0.0

    def __post_init__(self) -> None:
        check_range("epsilon", self.epsilon, POSITIVE, "epsilon-not-positive", error=InvalidBudget)
        valid_delta(self.delta)
        _check_counts(batch=self.batch, horizon=1 if self.horizon is None else self.horizon)
        Clip(self.first if self.clip is None else self.clip)

    reads_each = True

    def shape(self, x: Tree) -> Tree:
        return (x, torch.zeros(())) if self.learns else x

    def encode(self, x: Tree, bound: Bound, grant: Grant) -> Tree:
        noisy, norm = self._noised(x, grant)
        return (noisy, norm.float()) if self.learns else noisy

    def _noised(self, x: Tree, grant: Grant) -> tuple[Tree, Tensor]:
        radius, norm, multiplier = self._radius or self.clip or self.first, tree.norm(x), self._multiplier
        std = multiplier * 2 * radius / (grant.size if self.per == "records" else self.batch)
        if std == math.inf or not torch.isfinite(norm):
            return tree.zeros_like(x), norm
        noisy = [
            GaussianNoise()
            .add(leaf * clip_factor(norm, radius, leaf.dtype), std, grant.source.child(name))
            .to(leaf.dtype)
            for name, leaf in tree.named(x)
        ]
        return tree.like(x, noisy), norm

    @property
    def _multiplier(self) -> float:
        """Noise multiplier of this round: standard deviation over sensitivity."""
        return udp_multiplier(self.horizon or self._round + 1, self.epsilon, self.delta, self.rate)

    def decode(self, y: Tree, like: Tree) -> Tree:
        return y[0] if self.learns else y

    @property
    def learns(self) -> bool:
        return self.clip is None

    def begin(self, x: Tree, model: Params) -> Tree:
        return torch.tensor(self.first, dtype=torch.float64) if self.learns else ()

    def at(self, t: int, public: Tree) -> Stage:
        return replace(self, _round=t, _radius=float(public) if self.learns else 0.0)

    def learn(self, mean: Tree, like: Tree, std: float, each: Sequence[Tree]) -> Tree:
        return torch.tensor(self._median(each), dtype=torch.float64) if self.learns else ()

    def _median(self, each: Sequence[Tree]) -> float:
        norms = [norm for upload in each if math.isfinite(norm := float(upload[1]))]
        return (statistics.median(norms) if norms else 0.0) or self._radius

    @property
    def reasons(self) -> tuple[str, ...]:
        return (
            *((RAW_MEDIAN,) if self.clip is None else ()),
            ONE_RECORD,
            NOT_STEPS,
            *(() if self.horizon else (EACH_ROUND,)),
        )

    def stated(self, rounds: int, delta: float, records: int) -> StatedEpsilon:
        each = [
            1 / udp_multiplier(self.horizon or t, self.epsilon, self.delta, self.rate) for t in range(1, rounds + 1)
        ]
        return StatedEpsilon(self.epsilon, epsilon_of(math.sqrt(self.rate * math.fsum(mu**2 for mu in each)), delta))


@dataclass(frozen=True)
class Discounted(UserLevel):
    """User-level noise whose horizon shrinks to four fifths after a round in which the training loss did not fall. Each
    round spends an equal share of what is left of the budget.

    Uploads carry the raw loss, as `loss` beside `delta`. After the horizon only zeros are sent.
    """

    _horizon: float = 0.0
    _spent: float = 0.0  # sum of 1 / multiplier^2 of the rounds before
    _loss: float = UNHEARD

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.horizon is None or self.clip is not None:
            raise ConfigError(
                "rounds discounting needs a horizon and no fixed clip",
                why="it uses up a number of rounds that is known from the start, and it learns its clip from the "
                "median",
                fix="set horizon to the number of rounds, and leave clip out",
                code="discount-without-horizon",
            )

    def encode(self, x: Tree, bound: Bound, grant: Grant) -> Tree:
        noisy, norm = self._noised(x.delta, grant)
        return x._replace(delta=noisy), norm.float()

    @property
    def _multiplier(self) -> float:
        left = (self.epsilon**2) / (2 * self.rate * math.log(1 / self.delta)) - self._spent
        return math.sqrt((self._horizon - self._round) / left) if self._round < self._horizon and left > 0 else math.inf

    def begin(self, x: Tree, model: Params) -> Tree:
        return torch.tensor([self.first, float(self.horizon or 0), 0.0, UNHEARD], dtype=torch.float64)

    def at(self, t: int, public: Tree) -> Stage:
        radius, horizon, spent, loss = public.tolist()
        return replace(self, _round=t, _radius=radius, _horizon=horizon, _spent=spent, _loss=loss)

    def learn(self, mean: Tree, like: Tree, std: float, each: Sequence[Tree]) -> Tree:
        losses = [loss for upload in each if math.isfinite(loss := float(upload[0].loss))]
        loss = statistics.fmean(losses) if losses else self._loss
        horizon = self._horizon if loss < self._loss else math.ceil(0.8 * self._horizon)
        spent = self._spent + self._multiplier**-2
        return torch.tensor([self._median(each), horizon, spent, loss], dtype=torch.float64)


@dataclass(frozen=True)
class OneFieldAsPublished(OneField, AsPublished):
    """Published noise on one field of an upload, whose other fields carry exact client state. For diagnosis only."""

    @property
    def reasons(self) -> tuple[str, ...]:
        return EXACT, *self._noise.reasons

    def stated(self, rounds: int, delta: float, records: int) -> StatedEpsilon:
        return self._noise.stated(rounds, delta, records)

    @property
    def _noise(self) -> AsPublished:
        assert isinstance(self.stage, AsPublished)
        return self.stage
