"""Write privacy.json: guarantees and spent budget of a run, from its ledger alone; and the lifetime cost: the guarantee
for a person who is in every run on one ledger. `receipts.verify` recomputes all of privacy.json.
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

import numpy as np

from sordino.accounting.claims import UNIT
from sordino.accounting.composition import named, noised, of_a_run, parsed, simulated
from sordino.accounting.facts import FORMAT
from sordino.accounting.pricing import Counted
from sordino.accounting.statement import Guarantee, OfPhase, Promised, beside_scores, of_groups, statement
from sordino.errors import LedgerError, RunError
from sordino.ledger.books import TRAINING, Op
from sordino.ledger.files import atomic_write
from sordino.ledger.ledger import EVERYONE, Ledger
from sordino.ledger.storage import missing
from sordino.planning import Agreement, PublicNumbers
from sordino.planning.accounts import Accounts
from sordino.planning.phase import PlannedPhase, PlannedRun
from sordino.receipts import (
    Between,
    Environment,
    Group,
    Lifetime,
    OfClient,
    OfRun,
    Receipt,
    ReceiptBudget,
    Spending,
    seal,
)
from sordino.receipts.folder import RunFolder

T = TypeVar("T", int, float)
_log = logging.getLogger(__name__)

SIMULATED = "noise came from a seeded generator: a simulation, no guarantee for real data"
ON_GRID = (
    "noise came from the operating system on an integer grid; delta includes the difference between its sampling "
    "tables and the ideal distribution"
)
TUNING = (
    "choosing hyper-parameters, whom a round asks, or when a run ends, by what came of the same data "
    "is not accounted for"
)
ARITHMETIC = "sums of clipped gradients are exact up to floating-point rounding"
BUDGETS = "the budget of every client is public, and chosen without looking at its data"
EVALUATION = "test scores are not covered by epsilon: only the evaluator sees them"
AT_THE_SERVER = (
    "test metrics were computed on the server's own examples, or are scores that sites chose to share, which no noise "
    "covers"
)
LATE = "which sites answer in time does not depend on who else was drawn: sums under one noise differ in one client"
NOT_SHARED = "this site shared no test scores with the server"
OWN_MODELS = (
    "scores of clients' own models depend on their training examples, and nothing covers them: the evaluator, who sees "
    "them, is not in this table"
)


def receipt(setup: PlannedPhase, accounts: Accounts, environment: Environment, check: bool = False) -> Receipt:
    """Compute the receipt from the ledger alone, so that it can be recomputed; a round that was begun counts, finished
    or not. `check`: add the limits between which each exact epsilon must lie.
    """
    experiment, ledger = setup.experiment, accounts.ledger
    accounts.replay()
    notes = [entry.released for entry in accounts.entries()]
    rows = stated(notes, setup.public, experiment.privacy.delta, environment, check)
    seeded = simulated(notes) if notes else not accounts.policy.real
    budget = _budget(accounts, bool(environment.shares_scores))
    assumptions = assumed(notes, setup.public, environment, seeded, budget is not None)
    if setup.whole.budget is not None and setup.whole.budget.personal is not None:
        assumptions.append(BUDGETS)
    if setup.ways and not environment.site:
        assumptions.append(OWN_MODELS)
    if environment.site and accounts.policy.hidden and accounts.plan.everyone_pays:
        assumptions.append(LATE)
    return Receipt(
        format=FORMAT,
        run=accounts.run,
        config=accounts.config,
        simulated=seeded,
        rounds=len(notes),
        clients=len(accounts.members),
        guarantees=tuple(_as_published(setup, row, len(notes), budget) for row in rows),
        budget=budget,
        phases=_by_phase(setup, accounts) if setup.preparation else (),
        assumptions=tuple(assumptions),
        ledger_head=ledger.head(),
    )


def assumed(
    notes: Sequence[str], public: PublicNumbers, environment: Environment, seeded: bool, budgeted: bool = False
) -> list[str]:
    """Assumptions that follow from the files of a run, without its code. `budgeted`: noise is planned, and may still be
    to come. No guarantee covers test metrics."""
    drawn = [SIMULATED if seeded else ON_GRID] if noised(notes) or (budgeted and not notes) else []
    own = [] if environment.shares_scores else [NOT_SHARED]
    scored = [AT_THE_SERVER if environment.site else EVALUATION] if environment.clients is None else own
    about = [*drawn, TUNING, *[ARITHMETIC] * len(drawn), *scored, *public.assumed]
    return [*about, *filter(None, [environment.unwitnessed])]


def stated(
    notes: Sequence[str], public: PublicNumbers, delta: float, environment: Environment, check: bool
) -> list[Guarantee]:
    """Guarantees that follow from the releases in the ledger. If a site shares scores of its clients, which no noise
    covers, none is left for their test examples, nor for a client against the server.
    """
    rows = statement(notes, len(public.sizes), delta, check, public.rows_per_key)
    return beside_scores(rows, delta) if environment.shares_scores else rows


def write_receipt(folder: Path, setup: PlannedPhase, accounts: Accounts) -> Receipt:
    """Write the receipt with digests of the files beside it, and seal it in the ledger. An outdated report.html is
    deleted.
    """
    files = RunFolder(folder)
    made = receipt(setup, accounts, files.environment).beside(files=seal.digests(folder))
    if seal.still_shows(folder, made):
        made = _with_page(folder, made)
    elif files.page_file.is_file():
        files.page_file.unlink()
    return _sealed(folder, made, accounts)


def bind_page(folder: Path) -> bool:
    """Adds report.html to the files that the receipt covers. Returns False and does nothing if any other file is not
    the one that the run wrote, since sealing the page must not seal a replaced file with it.
    """
    try:
        stated_values, claimed = seal.claimed(folder), RunFolder(folder).receipt()
    except (OSError, ValueError, RunError):  # there is none, or none that can be read
        return False
    _, accounts = opened(folder, reading=False)
    with accounts.ledger as ledger:
        own = ledger.sealed(seal.digest(stated_values))
        others = [*seal.absent(folder, stated_values), *seal.wrong(folder, stated_values)]
        if not own or any(not line.startswith(seal.PAGE) for line in others):
            return False
        _sealed(folder, _with_page(folder, claimed), accounts)
    return True


def _with_page(folder: Path, made: Receipt) -> Receipt:
    return made.beside(files={**made.files, **seal.digests(folder, (seal.PAGE,))})


def _sealed(folder: Path, made: Receipt, accounts: Accounts) -> Receipt:
    accounts.ledger.seal(seal.digest(made.to_json()))
    made, files = made.beside(ledger_head=accounts.ledger.head()), RunFolder(folder)
    text = json.dumps(made.to_json(), indent=2).encode()
    if files.signature_file.is_file() and files.receipt_file.read_bytes() != text:
        files.signature_file.unlink()
        _log.warning("the signature of %s was of the receipt before: sign the new one", folder)
    atomic_write(files.receipt_file, text)
    return made


def _by_phase(setup: PlannedPhase, accounts: Accounts) -> tuple[OfPhase, ...]:
    """Privacy guarantees of each phase, given earlier releases; they show which phase makes an epsilon infinite."""
    notes: dict[str, list[str]] = {phase_setup.phase: [] for phase_setup in (*setup.preparation, setup)}
    for entry in accounts.entries():
        notes[Op.of(entry.op).phase].append(entry.released)
    public, delta = setup.public, setup.experiment.privacy.delta
    return tuple(
        OfPhase(
            phase=phase or TRAINING,
            releases=len(phase_setup),
            guarantees=tuple(
                map(Promised.of, statement(phase_setup, len(public.sizes), delta, rows_per_key=public.rows_per_key))
            ),
        )
        for phase, phase_setup in notes.items()
    )


def _as_published(setup: PlannedPhase, row: Guarantee, rounds: int, budget: ReceiptBudget | None) -> Guarantee:
    """A nominal guarantee with the publication's own epsilon added, and the epsilon that its formula gives for all
    rounds together; any other guarantee unchanged.
    """
    if row.status != "nominal" or row.unit == "person":
        return row
    gate = setup.algorithm.uplink.as_published if row.unit == "client" else setup.algorithm.read
    records = max(1, min(setup.public.sizes))
    if gate is not None and (found := gate.stated(rounds, setup.experiment.privacy.delta, records)) is not None:
        return row.beside(nominal_epsilon=found.epsilon, nominal_composed=found.composed)
    return row if budget is None else row.beside(nominal_epsilon=budget.epsilon * budget.spent_share.max)


def spending(folder: Path, most: int | None = None) -> Spending:
    """Spending of a run so far, from its ledger: guarantees, and one row per client, or `most` rows at even distances
    where there are more clients.
    """
    from sordino.receipts.newest import check_run  # not before: whoever verifies has no use for it

    check_run(RunFolder(folder))
    setup, accounts = opened(folder)
    try:
        made = receipt(setup, accounts, RunFolder(folder).environment)
        plan, books, members = accounts.plan, accounts.ledger, accounts.members
        paid = {name for entry in books.entries() for name in entry.charges}  # by any run on this ledger
        spent = {name: tuple(part / UNIT for part in books.spent(name)) for name in (*paid, EVERYONE)}
        clients = tuple(
            OfClient(
                client=k,
                name=setup.public.clients[k] if setup.public.clients else "",
                examples=accounts.sizes[k] if setup.experiment.privacy.public_sizes else None,
                participations=accounts.participations.get(accounts.payer(k), 0),
                planned=plan.participations[k],
                spent=spent[EVERYONE] if accounts.plan.one_price else spent.get(str(k), spent[EVERYONE]),
                granted=None if (cap := plan.cap_of(k)) is None else tuple(part / UNIT for part in cap),
                epsilon=None if plan.budget is None else plan.budget.of(k),
            )
            for k in (members[i] for i in some_of(len(members), most))
        )
    finally:
        accounts.ledger.close()
    return Spending(**dict(made), by_client=clients, currency=accounts.plan.currency.name)


def some_of(many: int, most: int | None) -> Sequence[int]:
    """Indices of `many` items, or of `most` of them at even distances where there are more."""
    return range(many) if most is None or many <= most else [i * many // most for i in range(most)]


def opened(folder: Path, reading: bool = True) -> tuple[PlannedPhase, Accounts]:
    """Opens the planned training of a run and its privacy accounts, without reading data or writing to the ledger."""
    files = RunFolder(folder)
    files.check()
    agreed = Agreement.read(folder)
    if not files.ledger.exists():
        raise missing(files.ledger)
    setup = PlannedRun(files.experiment, agreed.public, agreed.coordinates).phases[-1]
    run, clients = files.environment.run, files.environment.clients
    return setup, setup.accounts(Accounts, agreed.dataset, files.ledger, run, clients, reading)


def _budget(accounts: Accounts, shares_scores: bool) -> ReceiptBudget | None:
    """Privacy budget of the clients, and the share of it that is spent, counted in a quantity that adds up over rounds,
    such as rho of zCDP."""
    plan = accounts.plan
    if plan.cap is None or plan.budget is None:
        return None
    everyone, members = accounts.plan.one_price, accounts.members
    people = len(members)
    # by this run, in a shared ledger too
    spent = [share_of(accounts, client) for client in accounts.spent]
    participations = np.asarray(plan.participations)[np.asarray(members)]
    planned = dict(zip(*(found.tolist() for found in np.unique(participations, return_counts=True)), strict=True))
    personal = plan.budget.personal is not None
    return ReceiptBudget(
        epsilon=plan.budget.epsilon,
        delta=plan.budget.delta,
        currency=plan.currency.name,
        granted=tuple(part / UNIT for part in plan.cap),
        spent_share=_spread(_of_all(spent, 0.0, people, everyone)),
        participations_planned=_spread(planned),
        participations_used=_spread(_of_all(list(accounts.participations.values()), 0, people, everyone)),
        groups=_groups(accounts, shares_scores) if personal else (),
        subject=plan.offer.subject if plan.offer and personal else None,
    )


def share_of(accounts: Accounts, client: int) -> float:
    """The share of its budget that this client has spent."""
    limits, paid, pricing = accounts.plan.cap_of(client), accounts.spent.get(client), accounts.plan.pricing
    if limits is None or paid is None:
        return 0.0
    if isinstance(pricing, Counted):  # other phases spend budgets of their own
        return paid[pricing.place] / limits[pricing.place]
    return max(part / limit for part, limit in zip(paid, limits, strict=True))


def _groups(accounts: Accounts, shares_scores: bool) -> tuple[Group, ...]:
    """Clients grouped by their budget (epsilon), with the epsilon that each group has spent by the ledger's events
    (beside shared scores, see `beside_scores`), and the one that a publication claims.
    """
    plan = accounts.plan
    assert plan.offer is not None
    assert plan.budget is not None
    levels = plan.budget.levels()
    notes = [entry.released for entry in accounts.entries()]
    rows = of_groups(notes, len(accounts.sizes), plan.budget.delta, plan.offer.subject, list(levels.values()))
    if shares_scores:
        rows = [row and beside_scores([row], row.delta)[0] for row in rows]

    def claimed(level: float, members: Sequence[int]) -> float | None:
        return level * max(share_of(accounts, accounts.payer(k)) for k in members) if plan.claimed else None

    return tuple(
        Group(
            granted=level,
            clients=len(members),
            spent=0.0 if row is None else row.epsilon,
            status="none" if row is None else row.status,
            claimed=claimed(level, members),
            participations=_spread(Counter(accounts.participations.get(accounts.payer(k), 0) for k in members)),
        )
        for (level, members), row in zip(levels.items(), rows, strict=True)
    )


def _of_all(values: Sequence[T], otherwise: T, people: int, everyone: bool) -> Mapping[T, int]:
    """Counts clients by value. `values`: of the clients that took part (or, where everyone pays alike, of all); the
    remaining clients have the value `otherwise`."""
    counted = Counter(dict.fromkeys(values, people) if everyone else values)
    counted[otherwise] += people - counted.total()
    return counted


def _spread(counted: Mapping[T, int]) -> Between:
    """Least, median and largest of counted values."""
    values = sorted(value for value, count in counted.items() if count)
    ends, people = list(accumulate(counted[value] for value in values)), sum(counted.values())
    low, high = (values[bisect_right(ends, place)] for place in ((people - 1) // 2, people // 2))
    return Between(min=values[0], median=low if people % 2 else (low + high) / 2, max=values[-1])


SQLITE = b"SQLite format 3\0"
ONE_ROW = (
    "a person with several examples is not protected as a whole by a row about one: the receipts of the runs say what "
    "such a person loses in each of them, where the schema declares how many rows one can have"
)
SIMULATED_RUN = "at least one of the runs drew its noise from a seed: no guarantee for real data"
UNKNOWN_RUN = (
    "this user's state folder does not know all of these runs: if an older copy of the ledger lies here, nobody notices"
)


def lifetime(place: Path) -> Lifetime:
    """Guarantees and spending over every release on a ledger."""
    from sordino.receipts.newest import check_ledger

    place = place.resolve()  # a link to a run's ledger is that run's
    with open(place, "rb") as file:
        if file.read(len(SQLITE)) != SQLITE:
            raise RunError(
                f"{place} is neither a run folder nor a ledger",
                why="it is a file of another kind",
                fix="give a run folder (`sordino list` shows those in runs/), or the file that privacy.ledger names",
                code="not-a-run",
            )
    with Ledger.as_founded(place) as ledger:
        entries, delta, currency = list(ledger.entries()), ledger.scope.delta, ledger.scope.currency
        names, balances, dataset = ledger.scope.names, ledger.balances(), ledger.scope.dataset
    by_client = tuple(
        OfClient(
            client=client,
            name=names[client] if client < len(names) else "",
            examples=None,
            participations=None,
            planned=None,
            spent=tuple(part / UNIT for part in balances[str(client)][0]),
            granted=None if (cap := balances[str(client)][1]) is None else tuple(part / UNIT for part in cap),
            epsilon=None,
        )
        for client in sorted(int(name) for name in balances if name.isdecimal())
    )
    if delta is None:
        raise LedgerError(
            f"the ledger {place} has no delta",
            why="a statement needs the delta that the ledger was created with, and this ledger was created without one",
            fix="give a run folder, or a ledger that a private run of sordino created",
            code="ledger-without-delta",
        )
    # answers drawn once are drawn once per run; another run's are other ones, so each carries its run's name
    notes = [of_a_run(entry.released, Op.of(entry.op).run) for entry in entries]
    people = max((k + 1 for note in notes for k in named(parsed(note))), default=1)
    people = max(people, len(by_client), 1)
    runs = Counter(Op.of(entry.op).run for entry in entries)
    files = RunFolder(place.parent)
    whose = files.environment if files.own_ledger == place and files.environment_file.exists() else None
    known = check_ledger(place, dataset, runs, whose.site if whose else "")
    drawn = simulated(notes)
    rows = statement(notes, people, delta)
    if whose is not None and whose.shares_scores:
        rows = beside_scores(rows, delta)
    one_row = any(row.unit == "example" and row.finite for row in rows)
    return Lifetime(
        guarantees=tuple(rows),
        simulated=drawn,
        assumptions=(*[SIMULATED_RUN] * drawn, *[ONE_ROW] * one_row, *[UNKNOWN_RUN] * (not drawn and not known)),
        budget=None,
        runs=tuple(OfRun(run=run, releases=count) for run, count in runs.items()),
        by_client=by_client,
        currency=currency.name,
    )
