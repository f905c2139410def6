"""Privacy accounts of a phase: sampled cohorts, prices, reservations, and the state of every release. The server
(`FederatedServer`) is a subclass."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sordino import keys, user_code
from sordino.accounting.claims import Policy
from sordino.accounting.composition import claims_in, named, note
from sordino.accounting.events import Event, NonPrivate, Poisson, draws_afresh
from sordino.algorithms.algorithm import AnyAlgorithm
from sordino.algorithms.optional import RequestsClients
from sordino.budget.plan import Plan, Price, grouped
from sordino.errors import BudgetExhausted, LedgerError
from sordino.ledger.books import Op, of_round
from sordino.ledger.ledger import EVERYONE, Entry, Ledger, State
from sordino.privacy.noise.sources import TABLE_ERROR
from sordino.privacy.uplink import Uplink
from sordino.sampling import Cohort, IndependentCohort, each_once
from sordino.sampling.draws import Seeded, Stragglers, SystemWords
from sordino.tree import Tree
from sordino.types import Adversary, Claim, Reader

STATES = "what {} states of its bound, its noise and its cost is true"
Groups = list[tuple[list[int] | str, list[Claim]]]  # who, and what is claimed about each of them


@dataclass(frozen=True)
class OpenRound:
    """One round in the privacy accounts. `open` creates it; `reserve` adds prices, clients that can pay, and
    the noise."""

    t: int
    rates: NDArray[np.float64] | None  # of its coins, where budgets are personal
    prices: Mapping[int, Price | None] = field(default_factory=dict)  # of all who were asked
    granted: Sequence[int] = ()  # the clients that could pay, and may take part
    central: float | None = None  # multiplier of its central noise
    draws: bool = False  # true: its release draws new noise


class LedgerRequest(NamedTuple):
    """Request of one round to the ledger: its charges and claims."""

    charges: dict[str, tuple[int, ...]]  # by principal
    groups: Groups
    due: Mapping[int, Price | None]  # clients whose counters change, with what they pay


@dataclass(kw_only=True)
class Accounts:
    """Privacy accounts of one phase: they draw cohorts, and reserve the budget of each round on a ledger."""

    algorithm: AnyAlgorithm
    cohort: Cohort
    stragglers: Stragglers
    plan: Plan
    ledger: Ledger
    sizes: Sequence[int]  # public number of examples of each client
    key: int  # of the phase's draws
    policy: Policy
    run: str  # id on the wire and in the ledger
    config: str  # digest of the experiment
    coordinates: int = 0  # of one upload
    called: Callable[[int], str] = str  # the name of a client, where it has one that may be shown
    void: tuple[str, ...] = ()  # why no claim holds, if that is so
    own_code: tuple[str, ...] = ()  # names of a user's own code that is shown rows
    conditions: tuple[str, ...] = ()  # of every claim of the run
    before: tuple[str, ...] = ()  # the names that earlier phases of the run have in the ledger
    only: tuple[int, ...] | None = None  # the clients whose accounts these are; None: all
    witness: Callable[[Ledger, str], None] = lambda ledger, op: None  # records an operation before anything leaves
    # of all earlier rounds, by the `payer` of a client; clients that never took part are not in them
    participations: dict[int, int] = field(default_factory=dict)
    spent: dict[int, tuple[int, ...]] = field(default_factory=dict)
    latest: dict[int, tuple[int, ...]] = field(default_factory=dict)  # the last charge

    @property
    def population(self) -> int:
        return len(self.sizes)

    @property
    def members(self) -> Sequence[int]:
        """The clients that these accounts are about: all, or those of one site."""
        return range(self.population) if self.only is None else self.only

    def payer(self, client: int) -> int:
        """Client under whose number this client's spending is recorded: 0 for all if everyone pays the same price."""
        return 0 if self.plan.one_price else client

    def op(self, t: int) -> str:
        return of_round(self.run, t)

    def open(self, t: int) -> OpenRound:
        """Opens round t, before its cohort is drawn; its sampling rates may depend on earlier spending."""
        return OpenRound(t, self.plan.rates(t, self.spent))

    def prices(self, now: OpenRound, active: Sequence[int], stalled: bool) -> dict[int, Price | None]:
        """Price of this round (noise multiplier and ledger charge) for each active client. A client that is missing
        from the result has no budget left, and abstains. `stalled`: the last update was no larger than its noise, so an
        adaptive schedule spends more.
        """
        if self.plan.pricing is None:
            return dict.fromkeys(active)
        if self.plan.one_price:
            return dict.fromkeys(active, self._shared_price(max(self.participations.values(), default=0)))
        priced = {
            k: self.plan.price(k, self.participations.get(k, 0), self._spent(k), stalled, self.latest.get(k))
            for k in active
        }
        return {k: price for k, price in priced.items() if price is not None}

    def _spent(self, client: int) -> tuple[int, ...]:
        return self.spent.get(client, self.plan.currency.zero())

    def may_be_asked(self, client: int) -> bool:
        """True if the plan allows this client another round, or has no prices."""
        asked = self.participations.get(self.payer(client), 0)
        return self.plan.pricing is None or asked < self.plan.participations[client]

    def draw(
        self,
        now: OpenRound,
        server: Tree = None,
        away: Callable[[int], bool] = lambda client: False,
        later: bool = False,
    ) -> list[int]:
        """Draws the cohort of a round: by a public order, by hidden sampling, by the plan's rates under personal
        budgets, or as requested by a phase of a preparation. A visible cohort has others in place of clients that are
        `away`; `later`: those without a replacement stay in and pay in advance, so that the round can ask them if
        others fail.
        """
        if isinstance(self.algorithm, RequestsClients):
            return each_once(sorted(self.algorithm.requested_clients(server)), self.population)
        if isinstance(self.cohort, IndependentCohort):
            # a secret cohort is not drawn from the seed, as the experiment shows it
            coins = SystemWords() if self.policy.secret_cohort else Seeded(keys.fold(self.key, "cohort", now.t))
            return self.cohort.toss(self.population, coins, now.rates)
        drawn = each_once(self.cohort.draw(now.t, self.population, self.key), self.population)
        return drawn if self.policy.hidden else self._redrawn(now.t, drawn, away, later)

    def _redrawn(self, t: int, drawn: list[int], away: Callable[[int], bool], later: bool) -> list[int]:
        """The visible cohort of `draw`, with others in place of clients that are `away`."""
        here = [k for k in drawn if not away(k)]
        if len(here) == len(drawn):
            return drawn
        order = keys.order(keys.word(keys.fold(self.key, "redraw", t)), self.population).tolist()
        others = (k for k in order if k not in drawn and not away(k))
        found = [*here, *itertools.islice(others, len(drawn) - len(here))]
        silent = (k for k in drawn if away(k)) if later else ()
        return sorted([*found, *itertools.islice(silent, len(drawn) - len(found))])

    def reserved_for_others(self, t: int, prices: Mapping[int, Price | None]) -> list[int] | None:
        """Clients, maybe none, for which an interrupted attempt at this round had reserved budget, if the round now
        asks others, as other clients can be reached or drawn. None if they are the same, or nothing was reserved."""
        if self.plan.everyone_pays or self.ledger.state(self.op(t)) is None:
            return None
        before = self.ledger.entry(self.op(t))
        return None if before.plan == self._digest(t, prices).hex() else sorted(named(before.parsed))

    def reserve(self, now: OpenRound, prices: Mapping[int, Price | None]) -> OpenRound:
        """Reserves the round's cost in the ledger, durably, before any data are read; returns the round with the
        clients that could pay.
        """
        asked = self._asked(now, prices)
        digest = self._digest(now.t, {} if self.plan.everyone_pays else prices)
        draws = any(draws_afresh(claim.event) for _, claims in asked.groups for claim in claims)
        text = note(asked.groups, self.policy.noise, self.config)
        granted = self.ledger.reserve(self.op(now.t), asked.charges, digest, text)
        if self.plan.everyone_pays and (len(granted) < len(asked.charges) or not asked.due):
            raise _exhausted(now.t)  # a client that cannot pay would be noticed
        clients = self._paid(asked, granted)
        central: float | None
        if self.plan.everyone_pays:  # noise is released even if no client was drawn
            clients, central = sorted(prices), next(price.multiplier for price in asked.due.values() if price)
        elif self.algorithm.uplink.personal:  # the same in every round: each client is bounded by what it paid
            central = self.plan.quietest
        else:  # one noise for all who paid, sized for the one who paid least
            central = max((price.multiplier for k in clients if (price := prices[k])), default=None)
        return replace(now, prices=prices, granted=clients, central=central, draws=draws)

    def _asked(self, now: OpenRound, prices: Mapping[int, Price | None]) -> LedgerRequest:
        """The round's request to the ledger. In a hidden cohort every client pays in every round, sampled or not, so
        that charges do not reveal who was sampled."""
        if self.plan.one_price:
            price = self._shared_price(now.t)
            return LedgerRequest({EVERYONE: price.charge}, self._of_all(now, price), {self.payer(0): price})
        if self.plan.everyone_pays:  # each its own price
            each = {k: self.plan.price(k, now.t, self._spent(k)) for k in range(self.population)}
            due = {k: price for k, price in each.items() if price is not None}
            charges = {str(k): price.charge for k, price in due.items() if any(price.charge)}
            return LedgerRequest(charges, self._of_all(now, due[0]) if due else [], due)
        charges = {str(k): price.charge for k, price in prices.items() if price is not None}
        return LedgerRequest(charges, self._said(now, prices), prices)

    def _paid(self, asked: LedgerRequest, granted: Collection[str]) -> list[int]:
        """Records the round's participation and spending for all clients that could pay, and returns these clients."""
        free = EVERYONE in granted
        clients = sorted(k for k in asked.due if free or str(k) not in asked.charges or str(k) in granted)
        for k in clients:
            self.participations[k] = self.participations.get(k, 0) + 1
            if price := asked.due[k]:
                self._charge(k, price.charge)
        return clients

    def _of_all(self, now: OpenRound, price: Price) -> Groups:
        """Claims of a round in which any client may have taken part: for all clients, grouped by what is claimed."""
        first, kind = self._by_size if now.rates is None else grouped(now.rates.data, self.sizes)
        made: dict[tuple[Claim, ...], list[int]] = {}
        for at, k in enumerate(first):
            made.setdefault(tuple(self._claims(now, k, price.multiplier)), []).append(at)
        if len(made) == 1 and now.rates is None:
            return [("*", list(*made))]
        return [(np.flatnonzero(np.isin(kind, kinds)).tolist(), list(claims)) for claims, kinds in made.items()]

    @cached_property
    def _by_size(self) -> tuple[list[int], NDArray[np.int64]]:
        return grouped(self.sizes)

    def _shared_price(self, t: int) -> Price:
        price = self.plan.price(0, t, self._spent(0), last=self.latest.get(0))
        if price is None:
            raise _exhausted(t)
        return price

    def _charge(self, client: int, charge: tuple[int, ...]) -> None:
        self.spent[client] = tuple(a + b for a, b in zip(self._spent(client), charge, strict=True))
        self.latest[client] = charge

    def entries(self) -> list[Entry]:
        """Ledger entries of this phase and of the phases before it, one for each round, for statements."""
        runs = {self.run, *self.before}
        return [entry for entry in self.ledger.entries() if Op.of(entry.op).name in runs]

    def replay(self, rounds: float = math.inf) -> None:
        """Rebuilds participation counts and spending of the rounds before `rounds` from the ledger, after a restart."""
        self.participations.clear()
        self.spent.clear()
        self.latest.clear()
        for entry in self.ledger.entries():
            op = Op.of(entry.op)
            if op.name not in (self.run, *self.before) or (op.name == self.run and op.round >= rounds):
                continue
            who = [self.payer(0)] if EVERYONE in entry.charges else named(entry.parsed)
            for k in who:
                charge = entry.charges.get(EVERYONE) or entry.charges.get(str(k))
                if op.name == self.run and (charge is not None or self.plan.pricing is None):
                    self.participations[k] = self.participations.get(k, 0) + 1
                if charge is not None:
                    self._charge(k, charge)

    def cut_off(self, t: int) -> list[int] | None:
        """Clients of an earlier attempt at this round that was interrupted after its noise was drawn; None if there was
        none.

        Seeded noise can be drawn again exactly. Real noise cannot: repeating the round would be a second release that
        nobody paid for, so the round is lost and its cost stays spent. If the round's claims involve no such noise, it
        is repeated without loss. A round whose release is already stored is refused: it was continued elsewhere.
        """
        state = self.ledger.state(self.op(t))
        if not self.policy.real or state is None or state is State.RESERVED:
            return None
        parsed = self.ledger.entry(self.op(t)).parsed
        if not any(draws_afresh(claim.event) for group in parsed.releases for claim in claims_in(group)):
            return None
        if state is not State.DRAWN:
            raise _elsewhere(t)
        self.replay(t + 1)
        return named(parsed)

    def begin(self, now: OpenRound) -> None:
        """Writes to the ledger, durably, that the round begins, before anything leaves a client or the server draws
        noise. From then on its noise counts as drawn, also for other processes with the same ledger. Does nothing
        without real noise."""
        if self.policy.real:
            first = self.ledger.drawn(self.op(now.t))
            if now.draws and not first:
                raise _elsewhere(now.t)
            if now.draws:
                self.witness(self.ledger, self.op(now.t))

    def publish(self, t: int, release: bytes) -> None:
        """Records a round's release in the ledger, by its digest: it is out, and can never have another content."""
        self.ledger.published(self.op(t), release)

    def _digest(self, t: int, prices: Mapping[int, Price | None]) -> bytes:
        plan = {str(k): price and [price.multiplier, list(price.charge)] for k, price in prices.items()}
        return hashlib.sha256(json.dumps([self.config, t, plan], sort_keys=True).encode()).digest()

    def _said(self, now: OpenRound, prices: Mapping[int, Price | None]) -> Groups:
        found: dict[tuple[float | None, int], list[int]] = {}
        groups: dict[tuple[Claim, ...], list[int]] = {}
        for k, price in sorted(prices.items()):
            kind = None if price is None else price.multiplier, self.sizes[k]
            if kind not in found:
                found[kind] = groups.setdefault(tuple(self._claims(now, k, kind[0])), [])
            found[kind].append(k)
        return [(clients, list(claims)) for claims, clients in groups.items()]

    def _claims(self, now: OpenRound, client: int, multiplier: float | None) -> list[Claim]:
        read, uplink, work, size = self.algorithm.read, self.algorithm.uplink, self.algorithm.work, self.sizes[client]
        # one noise for all who are in a sum, or every client's share of it
        sums = math.ceil(self.cohort.expected(self.population)) if uplink.shared else 1
        sent, held = uplink.claims(multiplier, self._amplifies(now, client)), read.claims(work, size, multiplier)
        if self.only is not None:  # a site's accounts trust no number of the server
            sent = list(map(uplink.trusted, sent))
        return [
            *(self._held(claim, max(1, read.reads(work, size)) * TABLE_ERROR, read) for claim in held),
            *(self._held(claim, sums * uplink.error, uplink) for claim in sent),
        ]

    def _held(self, claim: Claim, error: float, gate: Reader | Uplink) -> Claim:
        """The claim adjusted to these data and this noise: void if preprocessing read private rows, conditional if user
        code is involved, with a `drift` (total variation) if real noise is inexact."""
        if not claim.finite:
            return claim
        if self.void:
            return claim.beside(event=NonPrivate("; ".join(self.void)), status="none", because=self.void)
        if self.own_code and (claim.unit != "client" or len(self.members) > 1):  # clients of a process share a network
            claim = claim.resting_on(*map(self.algorithm.rests_on, self.own_code))
        stated = map(STATES.format, dict.fromkeys(user_code.parts(gate)))
        claim = claim.resting_on(*stated, *self.plan.conditions(claim.unit), *self.conditions)
        inexact = self.policy.real and draws_afresh(claim.event)
        return claim.beside(drift=error * self.coordinates) if inexact else claim

    def _amplifies(self, now: OpenRound, client: int) -> Callable[[Event, Adversary], Event]:
        """Function (event, adversary) -> event: amplification by hidden Poisson sampling at the client's own rate, or
        as the cohort scheme defines it."""
        if self.algorithm.uplink.published:  # as published, which assumes a coin for each client
            rate = self.cohort.expected(self.population) / self.population
        elif now.rates is None or not self.policy.hidden:
            return self.cohort.amplify
        else:
            rate = float(now.rates[client])
        return lambda event, adversary: event if adversary == "server" or rate == 1 else Poisson(rate, event)

    def skipping(self, clients: Sequence[int], most: int) -> Iterator[None]:
        """Tries the participation counts that these clients may have: the rounds they paid for, and up to `most` more,
        since a disconnected client has paid for fewer rounds than the server asked it in. Counts are set during each
        iteration, and restored after the last."""
        paid = {self.payer(k): self.participations.get(self.payer(k), 0) for k in clients}
        for missed in range(most + 1):
            self.participations.update({k: many + missed for k, many in paid.items()})
            yield
        self.participations.update(paid)

    def plans(self, t: int, entry: Entry, active: Sequence[int] | None = None, missed: int = 0) -> bool:
        """True if this ledger entry is what the experiment plans for round t, given the rounds before; the round then
        counts as paid.

        `active`: clients that the round asks; None if the experiment alone does not decide them: then the entry's own
        are used. `missed`: number of rounds that a client may have missed.
        """
        parsed = entry.parsed
        who = named(parsed) if active is None else active
        now = self.open(t)
        for _ in self.skipping(who, missed):
            for stalled in (False, True):  # the ledger does not record whether training stalled
                asked = self._asked(now, self.prices(now, who, stalled))
                charged = all(asked.charges.get(name) == charge for name, charge in entry.charges.items())
                if charged and json.loads(note(asked.groups))["releases"] == parsed.releases:
                    self._paid(asked, entry.charges.keys())
                    return True
        return False


def _exhausted(t: int) -> BudgetExhausted:
    return BudgetExhausted(
        f"the budget is already spent before round {t + 1}",
        why="in a hidden cohort every client pays for every round, so no client can pay any more",
        fix="run fewer rounds, or set a larger epsilon in a new run folder with a ledger of its own",
    )


def _elsewhere(t: int) -> LedgerError:
    return LedgerError(
        f"round {t + 1} has already been released elsewhere",
        why="this folder, or its ledger, is a copy of a run that continued elsewhere: here the same round would "
        "be released again, with fresh noise",
        fix="continue in the folder that holds the newest checkpoint",
        code="released-elsewhere",
    )
