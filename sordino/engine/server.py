"""The server's side of a run: everything `one_round` needs, and nothing of any client's data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sordino import tree
from sordino.algorithms.optional import Estimates, Home
from sordino.budget.noise_level import in_mean, of_reader, of_uplink
from sordino.budget.plan import Price
from sordino.budget.schedules import Adaptive
from sordino.engine.channels import SumAtSites
from sordino.engine.inbox import Inbox
from sordino.engine.mail import Mail
from sordino.engine.secure_sum import SecureSum
from sordino.planning.accounts import Accounts
from sordino.privacy.noise.sources import for_round
from sordino.privacy.uplink import Summed
from sordino.privacy.uplink.robust import fewest
from sordino.privacy.uplink.stages import Weigh
from sordino.sampling.stragglers import Crew
from sordino.tree import Tree
from sordino.types import NoiseSource, Received, Terms

STALL = 1.1  # a mean update within a tenth of its expected noise norm carries no visible signal


@dataclass(kw_only=True)
class Federation(Accounts):
    home: Home  # the server's own data
    _noise_norm: float = 0.0
    _coordinates: int = 0

    # the sum ----------------------------------------------------------------------------------------------------------

    def source(self, t: int) -> NoiseSource:
        return for_round(self.policy.noise, self.key, t)

    def terms(self, client: int, price: Price | None, epochs: int | None = None, part: float | None = None) -> Terms:
        """What one client is told of its round."""
        return Terms(
            largest=self.largest,
            # shares of one noise are all alike
            multiplier=self._central if self.algorithm.uplink.shared else None if price is None else price.multiplier,
            epochs=epochs,
            part=part,
            reach=self._reach(price),
            precision=self._precisions[client] if self._precisions else 1.0,
        )

    def _reach(self, price: Price | None) -> float:
        """A client under one noise for all may be as large as its own noise would have allowed."""
        personal = self.algorithm.uplink.personal and price is not None
        return self.plan.quietest / price.multiplier if personal and price is not None else 1.0

    def receive(
        self,
        t: int,
        answers: Iterable[tuple[int, Tree] | Summed] | Summed | SumAtSites,
        crew: Crew,
        down: Tree,
        prices: Mapping[int, Price | None],
        granted: Sequence[int] = (),
    ) -> tuple[Received[Tree], Mail]:
        mail, zero = Mail(), self.algorithm.zero(self.home.task, down)
        uploads: Tree = answers
        if isinstance(answers, Summed):
            length = self.inbox.length(t, down)
            mail.answered, mail.size = answers.who, sum(map(length, answers.who))
        elif not isinstance(answers, SumAtSites):
            uploads = self.inbox.open(t, answers, crew, down, mail)
        mail.payload = self.inbox.payload(t, down)
        self._coordinates, uplink = tree.size(zero), self.algorithm.uplink.at(t, down)
        source = self.source(t).child("server")
        if self.secure_sum is not None:
            uploads = self.secure_sum(t, uploads, granted, self.weights, uplink, zero, self._central, source, mail)
        received: Received[Tree] = uplink.receive(
            uploads,
            zero,
            self.weights,
            self._denominator,
            self._central,
            source,
            self.algorithm.reads_each,
            self._weight,
            lambda client: self._reach(prices.get(client)),
            lambda who: self._std(prices, who) if self.plan.offer and self.plan.offer.subject.unit == "client" else 0.0,
        )
        mail.answered.sort()  # units of clients come in an order of their own
        if len(mail.answered) < (least := fewest(uplink.robust)):
            came = len(mail.answered)
            self.inbox.remarks.append(
                f"round {t + 1}: {came} uploads came, the robust sum needs {least}: nothing changes"
            )
        mail.seal(received.mean)
        if self._adaptive:
            self._noise_norm = self._std(prices, mail.answered) * math.sqrt(self._coordinates)
        return received, mail

    def stalled(self, received: Received[Tree]) -> bool:
        """Has the model stopped moving beyond its noise? Reads released values and public scales only."""
        return self._adaptive and float(tree.norm(received.mean)) <= STALL * self._noise_norm

    @property
    def _adaptive(self) -> bool:
        return self.plan.budget is not None and isinstance(self.plan.budget.schedule, Adaptive)

    def _std(self, prices: Mapping[int, Price | None], answered: Iterable[int]) -> float:
        """Deviation of the noise in one coordinate of the mean upload, from the multipliers alone."""
        if self.plan.offer is None:
            return 0.0
        if self.plan.offer.subject.unit == "client" and self.algorithm.uplink.central:
            # one noise, over the public denominator, whoever answered
            return 0.0 if self._central is None else self._noise_std(self._central, 0) / self._denominator
        found = [(k, price.multiplier) for k in answered if (price := prices[k])]
        return in_mean([self._noise_std(z, self.sizes[k]) for k, z in found], [self.weights[k] for k, _ in found])

    def _noise_std(self, multiplier: float, size: int) -> float:
        """Of one coordinate of what is noised: one upload, or their sum."""
        assert self.plan.offer is not None
        if self.plan.offer.subject.unit != "client":
            read = of_reader(self.algorithm.read, self.algorithm.work, multiplier, size)
            step = Estimates.of(self.algorithm).step_size  # of a method that does not say, nothing is known
            return float(step * read.std) if read and step is not None else 0.0
        return of_uplink(self.algorithm.uplink, multiplier, self._coordinates).std

    @property
    def _denominator(self) -> float:
        """The public one: the weight that a cohort of the expected size would have."""
        if self._rates is not None:
            return math.fsum(rate * weight for rate, weight in zip(self._rates.tolist(), self.weights, strict=True))
        return self.cohort.expected(self.population) * self._weight / self.population

    @cached_property
    def inbox(self) -> Inbox:
        return Inbox(self.algorithm, self.home.task, self.run, self.config, self.secure_sum, self.called)

    @cached_property
    def secure_sum(self) -> SecureSum | None:
        return None if self.algorithm.uplink.secure is None else SecureSum(self.algorithm.uplink, self.run)

    @cached_property
    def largest(self) -> int:
        """The size of the largest client."""
        return max(self.sizes)

    @cached_property
    def weights(self) -> Sequence[float]:
        """The public weight of every client."""
        uplink = self.algorithm.uplink
        if self._precisions:
            return [uplink.weight(n, self.largest, p) for n, p in zip(self.sizes, self._precisions, strict=True)]
        return Weights(self.sizes, {size: uplink.weight(size, self.largest) for size in set(self.sizes)})

    @cached_property
    def _precisions(self) -> Sequence[float]:
        """Of every client's noise, where uploads are weighed by it."""
        weighed = any(isinstance(stage, Weigh) and stage.by == "precision" for stage in self.algorithm.uplink.client)
        return [self.plan.precision(k) for k in range(self.population)] if weighed else []

    @cached_property
    def _weight(self) -> float:
        """Of all clients together."""
        return math.fsum(self.weights)


@dataclass(frozen=True)
class Weights(Sequence[float]):
    """The weight of every client, by its size: sizes are fewer than clients."""

    sizes: Sequence[int]
    of: Mapping[int, float]

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, client: Any) -> Any:
        return self.of[self.sizes[client]]

    def __iter__(self) -> Iterator[float]:
        return map(self.of.__getitem__, self.sizes)
