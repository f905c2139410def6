"""The server's side of a run: everything `one_round` needs, and nothing of any client's data."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino import keys, tree
from sordino.engine.cohort import Cohort
from sordino.engine.loudness import in_mean, of_reader, of_uplink
from sordino.engine.mail import Mail
from sordino.engine.messages import Messages
from sordino.engine.personal import Personal
from sordino.engine.secure_sum import SecureSum
from sordino.engine.stragglers import Crew, Stragglers
from sordino.engine.weights import Weights
from sordino.errors import BudgetExhausted
from sordino.ledger.events import Event, Poisson
from sordino.ledger.ledger import EVERYONE, Entry, Ledger
from sordino.ledger.schedules import Adaptive
from sordino.ledger.statement import note
from sordino.plan import Plan, Price
from sordino.privacy.sources import for_client, for_round
from sordino.privacy.stages import Weigh
from sordino.types import Adversary, Claim, Grant, Received, Source
from sordino.uplink import Summed

STALL = 1.1  # a mean update within a tenth of its expected noise norm carries no visible signal


@dataclass
class Federation(Messages):
    algorithm: Any
    cohort: Cohort
    stragglers: Stragglers
    plan: Plan
    ledger: Ledger
    sizes: Sequence[int]  # public number of examples of each client
    key: int
    noise: str  # "counter" (simulation) or "system"
    run: str  # id on the wire and in the ledger
    config: str  # digest of the experiment
    before: tuple[str, ...] = ()  # the names that earlier phases of the run have in the ledger
    # of rounds already played, under the `payer` of a client; who never took part is not in them
    exposures: dict[int, int] = field(default_factory=dict)
    spent: dict[int, tuple[int, ...]] = field(default_factory=dict)
    latest: dict[int, tuple[int, ...]] = field(default_factory=dict)  # the last charge
    remarks: list[str] = field(default_factory=list)
    _central: float | None = None  # multiplier of this round's central noise
    _noise_norm: float = 0.0
    _coordinates: int = 0
    _rates: NDArray[np.float64] | None = None  # of this round's coins, where budgets are personal

    @property
    def population(self) -> int:
        return len(self.sizes)

    @property
    def everyone_pays(self) -> bool:
        return self.plan.offer is not None and self.plan.offer.everyone_pays

    @property
    def all_alike(self) -> bool:
        """Has everybody paid the same, in every round?"""
        return self.everyone_pays and not self.plan.individual

    def payer(self, client: int) -> int:
        """Whose counters speak for this client: where all have paid the same, one set of counters serves them."""
        return 0 if self.all_alike else client

    def draw(self, t: int, server: Any = None, away: Callable[[int], bool] | None = None) -> list[int]:
        """The cohort: public order, hidden coins, or coins at the rates that the plan says; or those whom a phase of a preparation asks."""
        if hasattr(self.algorithm, "asks"):
            return sorted(self.algorithm.asks(server))
        self._rates = self.plan.rates(t, self.spent)
        if isinstance(self.cohort, Personal):
            return self.cohort.draw(t, self.population, self.key, self._rates)
        drawn = self.cohort.draw(t, self.population, self.key)
        return drawn if away is None or self.cohort.hidden else self._redrawn(t, drawn, away)

    def _redrawn(self, t: int, drawn: list[int], away: Callable[[int], bool]) -> list[int]:
        """In place of everybody who is known to be silent somebody else, where there is anybody; where coins are hidden nobody may be."""
        here = [k for k in drawn if not away(k)]
        if len(here) == len(drawn):
            return drawn
        order = keys.permutation(keys.fold(self.key, "redraw", t), self.population).tolist()
        others = (k for k in order if k not in drawn and not away(k))
        return sorted([*here, *itertools.islice(others, len(drawn) - len(here))])

    def op(self, t: int) -> str:
        return f"{self.run}/{t}"

    def round_key(self, t: int) -> keys.Key:
        return keys.fold(self.key, "round", t)

    # the ledger -----------------------------------------------------------------------------------------------------------------

    def prices(self, active: Sequence[int], stalled: bool) -> dict[int, Price | None]:
        """What this exposure costs each active client; a client missing from the result abstains."""
        if self.plan.pricing is None:
            return dict.fromkeys(active)
        if self.all_alike:
            return dict.fromkeys(active, self._shared_price(max(self.exposures.values(), default=0)))
        priced = {
            k: self.plan.price(k, self.exposures.get(k, 0), self._spent(k), stalled, self.latest.get(k)) for k in active
        }
        return {k: price for k, price in priced.items() if price is not None}

    def _spent(self, client: int) -> tuple[int, ...]:
        return self.spent.get(client, self.plan.currency.zero())

    def reserve(self, t: int, prices: Mapping[int, Price | None]) -> list[int]:
        """Durable before anything is read. Returns the clients that may take part."""
        if self.all_alike:
            return self._reserve_for_all(t, prices)
        if self.everyone_pays:
            return self._reserve_from_each(t, prices)
        charges = {str(k): price.charge for k, price in prices.items() if price is not None}
        granted = self.ledger.reserve(self.op(t), charges, self._digest(t, prices), self._note(prices))
        clients = sorted(k for k, price in prices.items() if price is None or str(k) in granted)
        self._remember(clients, prices)
        # one noise for all who paid: sized for the one who paid least, or the same in every round where each is bounded by what it paid
        self._central = max((price.multiplier for k in clients if (price := prices[k])), default=None)
        if self.algorithm.uplink.personal:
            self._central = self.plan.quietest
        return clients

    def _reserve_for_all(self, t: int, prices: Mapping[int, Price | None]) -> list[int]:
        # hidden participation: who was drawn must not show in who pays, so everyone pays in every round, drawn or not
        price = self._shared_price(t)
        granted = self.ledger.reserve(self.op(t), {EVERYONE: price.charge}, self._digest(t, {}), self._of_all(price))
        if EVERYONE not in granted:
            raise _exhausted(t)
        self._remember([self.payer(0)], {self.payer(0): price})
        self._central = price.multiplier  # released even where nobody was drawn
        return sorted(prices)

    def _reserve_from_each(self, t: int, prices: Mapping[int, Price | None]) -> list[int]:
        # everyone pays, drawn or not, and each its own price
        asked = {k: self.plan.price(k, t, self._spent(k)) for k in range(self.population)}
        due = {k: price for k, price in asked.items() if price is not None}
        charges = {str(k): price.charge for k, price in due.items() if any(price.charge)}
        granted = self.ledger.reserve(self.op(t), charges, self._digest(t, {}), self._of_all(due[0]) if due else "[]")
        if len(granted) < len(charges) or not due:
            raise _exhausted(t)
        self._remember(sorted(due), due)
        self._central = due[0].multiplier
        return sorted(prices)

    def _of_all(self, price: Price) -> str:
        """The claims of a round in which everybody may have taken part, each at its own rate."""
        if self._rates is None:
            return note([("*", self._claims(0, price.multiplier))])
        levels, which = np.unique(self._rates, return_inverse=True)
        groups = [np.flatnonzero(which == i).tolist() for i in range(len(levels))]
        return note([(clients, self._claims(clients[0], price.multiplier)) for clients in groups])

    def _shared_price(self, t: int) -> Price:
        price = self.plan.price(0, t, self._spent(0), last=self.latest.get(0))
        if price is None:
            raise _exhausted(t)
        return price

    def _remember(self, clients: Sequence[int], prices: Mapping[int, Price | None]) -> None:
        for k in clients:
            self.exposures[k] = self.exposures.get(k, 0) + 1
            if price := prices[k]:
                self._charge(k, price.charge)

    def _charge(self, client: int, charge: tuple[int, ...]) -> None:
        self.spent[client] = tuple(a + b for a, b in zip(self._spent(client), charge, strict=True))
        self.latest[client] = charge

    def entries(self) -> list[Entry]:
        """What the ledger holds of this run, one entry a round: what statements are made from."""
        mine = {self.run, *self.before}
        return [entry for entry in self.ledger.entries() if entry.op.rpartition("/")[0] in mine]

    def replay(self, rounds: float = math.inf) -> None:
        """Rebuild exposures and spending of the rounds before `rounds` from the ledger, after a restart."""
        self.exposures.clear()
        self.spent.clear()
        self.latest.clear()
        for entry in self.ledger.entries():
            run, _, t = entry.op.rpartition("/")
            if run not in (self.run, *self.before) or (run == self.run and int(t) >= rounds):
                continue
            if EVERYONE in entry.charges:
                who: list[int] = [self.payer(0)]
            else:
                who = [k for group in json.loads(entry.note) for k in group["clients"]]
            for k in who:
                charge = entry.charges.get(EVERYONE) or entry.charges.get(str(k))
                if run == self.run and (charge is not None or self.plan.pricing is None):
                    self.exposures[k] = self.exposures.get(k, 0) + 1
                if charge is not None:
                    self._charge(k, charge)

    def store(self, t: int, release: bytes) -> None:
        """Fix the one content this release will ever have."""
        self.ledger.drawn(self.op(t))
        self.ledger.stored(self.op(t), release)

    def publish(self, t: int) -> None:
        self.ledger.published(self.op(t))

    def _digest(self, t: int, prices: Mapping[int, Price | None]) -> bytes:
        plan = {
            str(k): None if price is None else [price.multiplier, list(price.charge)] for k, price in prices.items()
        }
        return hashlib.sha256(json.dumps([self.config, t, plan], sort_keys=True).encode()).digest()

    def _note(self, prices: Mapping[int, Price | None]) -> str:
        groups: dict[tuple[float | None, int], list[int]] = {}
        for k, price in sorted(prices.items()):
            multiplier = None if price is None else price.multiplier
            groups.setdefault((multiplier, self.algorithm.read.reads(self.algorithm.work, self.sizes[k])), []).append(k)
        return note([(clients, self._claims(clients[0], multiplier)) for (multiplier, _), clients in groups.items()])

    def _claims(self, client: int, multiplier: float | None) -> list[Claim]:
        return [
            *self.algorithm.read.claims(self.algorithm.work, self.sizes[client], multiplier),
            *self.algorithm.uplink.claims(multiplier, self._amplifies(client)),
        ]

    def _amplifies(self, client: int) -> Callable[[Event, Adversary], Event]:
        """What the sampler makes of an event, by adversary: a hidden coin at the client's own rate, or whatever the cohort says."""
        if self.algorithm.uplink.published:  # as if each client had tossed a coin
            rate = self.cohort.expected(self.population) / self.population
        elif self._rates is None or not self.cohort.hidden:
            return self.cohort.amplify
        else:
            rate = float(self._rates[client])
        return lambda event, adversary: event if adversary == "server" or rate == 1 else Poisson(rate, event)

    # the sum --------------------------------------------------------------------------------------------------------------------

    def source(self, t: int) -> Source:
        return for_round(self.noise, self.key, t)

    def grant(
        self, t: int, client: int, price: Price | None, epochs: int | None = None, part: float | None = None
    ) -> Grant:
        return Grant(
            client=client,
            size=self.sizes[client],
            largest=self.largest,
            source=for_client(self.noise, self.key, t, client),
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
        answers: Iterable[tuple[int, Any]] | Summed,
        crew: Crew,
        down: Any,
        prices: Mapping[int, Price | None],
        granted: Sequence[int] = (),
    ) -> tuple[Received[Any], Mail]:
        mail, zero = Mail(), self.algorithm.zero(down)
        if isinstance(answers, Summed):
            length = self._length(t, down)
            mail.answered, mail.size = answers.who, sum(map(length, answers.who))
            uploads: Any = answers
        else:
            uploads = self.open(t, answers, crew, down, mail)
        mail.payload = self.payload(t, down)
        self._coordinates, uplink = tree.size(zero), self.algorithm.uplink.at(t, down)
        source = self.source(t).child("server")
        if self.secure_sum is not None:
            uploads = self.secure_sum(t, uploads, granted, self.weights, uplink, zero, self._central, source, mail)
        received: Received[Any] = uplink.receive(
            uploads,
            zero,
            self.weights,
            self._denominator,
            self._central,
            source,
            getattr(self.algorithm, "reads_each", False),
            self._weight,
            lambda client: self._reach(prices.get(client)),
            lambda who: self._std(prices, who) if self.plan.offer and self.plan.offer.unit == "client" else 0.0,
        )
        mail.seal(received.mean)
        if self._adaptive:
            self._noise_norm = self._std(prices, mail.answered) * math.sqrt(self._coordinates)
        return received, mail

    def stalled(self, received: Received[Any]) -> bool:
        """Has the model stopped moving beyond its noise? Reads released values and public scales only."""
        return self._adaptive and float(tree.norm(received.mean)) <= STALL * self._noise_norm

    @property
    def _adaptive(self) -> bool:
        return self.plan.budget is not None and isinstance(self.plan.budget.schedule, Adaptive)

    def _std(self, prices: Mapping[int, Price | None], answered: Iterable[int]) -> float:
        """Deviation of the noise in one coordinate of the mean upload, from the multipliers alone."""
        if self.plan.offer is None:
            return 0.0
        if self.plan.offer.unit == "client" and self.algorithm.uplink.central:
            # one noise, over the public denominator, whoever answered
            return 0.0 if self._central is None else self._noise_std(self._central, 0) / self._denominator
        found = [(k, price.multiplier) for k in answered if (price := prices[k])]
        return in_mean([self._noise_std(z, self.sizes[k]) for k, z in found], [self.weights[k] for k, _ in found])

    def _noise_std(self, multiplier: float, size: int) -> float:
        """Of one coordinate of what is noised: one upload, or their sum."""
        assert self.plan.offer is not None
        if self.plan.offer.unit != "client":
            read = of_reader(self.algorithm.read, self.algorithm.work, multiplier, size)
            return float(self.algorithm.lr * read.std) if read else 0.0
        return of_uplink(self.algorithm.uplink, multiplier, self._coordinates).std

    @property
    def _denominator(self) -> float:
        """The public one: the weight that a cohort of the expected size would have."""
        if self._rates is not None:
            return math.fsum(rate * weight for rate, weight in zip(self._rates.tolist(), self.weights, strict=True))
        return self.cohort.expected(self.population) * self._weight / self.population

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


def _exhausted(t: int) -> BudgetExhausted:
    return BudgetExhausted(
        f"the budget is spent before round {t}",
        why="in a hidden cohort everyone pays for every round, so nobody can pay any more",
        fix="run fewer rounds, or found a new budget with a larger epsilon",
    )
