"""privacy.json: what this run promised and spent, to whom, under which assumptions. `runs.verify` believes none of
it."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from sordino import config
from sordino.budget.plan import Plan
from sordino.engine.checkpoint import atomic_write
from sordino.engine.server import Federation
from sordino.errors import RunError
from sordino.ledger.currency import UNIT
from sordino.ledger.ledger import EVERYONE
from sordino.ledger.notes import SYSTEM, simulated
from sordino.ledger.pricing import CountedPhase
from sordino.ledger.statement import of_groups, statement
from sordino.ledger.storage import missing
from sordino.runs import seal
from sordino.runs.agreement import Agreement
from sordino.runs.folder import check_is_run, read_environment, read_receipt
from sordino.runs.home import ServersHome
from sordino.runs.setup import Setup, Whole

T = TypeVar("T", int, float)

SIMULATED = "noise came from a seeded generator: a simulation, no guarantee for real data"
ON_GRID = "noise came from the operating system on an integer grid; what its sampling tables lack of the ideal law is in delta"
TUNING = "choosing hyper-parameters on the same data is not accounted for"
ARITHMETIC = "sums of clipped gradients are exact up to floating-point rounding"
BUDGETS = "the budget of every client is public, and chosen without looking at its data"
EVALUATION = "test metrics were computed by the evaluator and are no releases"
OWN_MODELS = "scores of clients' own models depend on their training examples, and nothing covers them: the evaluator, who sees them, is not in this table"


def receipt(setup: Setup, federation: Federation) -> dict[str, Any]:
    """From the ledger alone, so that it can be made again: a round that was begun counts, finished or not."""
    experiment, ledger = setup.experiment, federation.ledger
    federation.replay()
    notes = [entry.note for entry in federation.entries()]
    rows = statement(notes, len(federation.sizes), experiment.privacy.delta)
    simulated_ = simulated(notes) if notes else federation.noise != SYSTEM
    budget, guarantees = _budget(setup, federation), [row.to_json() for row in rows]
    for row in guarantees:
        if row["status"] == "nominal":
            row |= _as_published(setup, row["unit"], len(notes), budget)
    assumptions = [SIMULATED if simulated_ else ON_GRID, TUNING, ARITHMETIC, EVALUATION, *setup.public.assumed]
    if setup.budget is not None and setup.budget.personal is not None:
        assumptions.append(BUDGETS)
    if setup.ways:
        assumptions.append(OWN_MODELS)
    return {
        "format": 2,
        "run": federation.run,
        "config": federation.config,
        "simulated": simulated_,
        "rounds": len(notes),
        "clients": len(federation.sizes),
        "guarantees": guarantees,
        "budget": budget,
        **({"phases": _by_phase(setup, federation)} if setup.preparation else {}),
        "assumptions": assumptions,
        "ledger_head": ledger.head(),
    }


def write_receipt(folder: Path, setup: Setup, federation: Federation) -> dict[str, Any]:
    """The receipt, bound to the files it is shown with; both are fixed in the ledger."""
    made = receipt(setup, federation)
    made["files"] = seal.digests(folder)
    if seal.still_shows(folder, made):
        made["files"] |= seal.digests(folder, (seal.PAGE,))
    return _sealed(folder, made, federation)


def bind_page(folder: Path) -> bool:
    """The page joins the files of the receipt, if all others still are what the run has written: a page must not seal
    what somebody put in their place.
    """
    try:
        claimed = read_receipt(folder)
    except RunError:
        return False
    _, federation = opened(folder)
    with federation.ledger as ledger:
        own = ledger.sealed(seal.digest(claimed))
        if not own or any(not line.startswith(seal.PAGE) for line in seal.wrong(folder, claimed)):
            return False
        claimed["files"] |= seal.digests(folder, (seal.PAGE,))
        _sealed(folder, claimed, federation)
    return True


def _sealed(folder: Path, made: dict[str, Any], federation: Federation) -> dict[str, Any]:
    federation.ledger.seal(seal.digest(made))
    made["ledger_head"] = federation.ledger.head()
    atomic_write(folder / "privacy.json", json.dumps(made, indent=2).encode())
    return made


def _by_phase(setup: Setup, federation: Federation) -> list[dict[str, Any]]:
    """What the ledger holds of each phase, given what went out before it: whoever reads an infinity may ask whence it
    comes.
    """
    names = {f"{federation.run}.{mine.phase}": mine.phase for mine in setup.preparation} | {federation.run: "training"}
    notes: dict[str, list[str]] = {name: [] for name in names}
    for entry in federation.entries():
        notes[entry.op.rpartition("/")[0]].append(entry.note)
    shown = ("unit", "neighbours", "adversary", "epsilon", "delta", "status", "because")
    delta = setup.experiment.privacy.delta
    return [
        {
            "phase": phase,
            "releases": len(notes[name]),
            "guarantees": [
                {field: row.to_json()[field] for field in shown}
                for row in statement(notes[name], len(federation.sizes), delta)
            ],
        }
        for name, phase in names.items()
    ]


def _as_published(setup: Setup, unit: str, rounds: int, budget: Mapping[str, Any] | None) -> dict[str, float | str]:
    """What the source's formula prints, and where its rounds do not add up to that, what the same formula gives for all
    of them.
    """
    gate = setup.algorithm.uplink.as_published if unit == "client" else setup.algorithm.read
    records = max(1, min(setup.public.sizes))
    if gate is not None and (found := gate.stated(rounds, setup.experiment.privacy.delta, records)) is not None:
        return {"nominal_epsilon": _number(found.epsilon), "nominal_composed": _number(found.composed)}
    return {"nominal_epsilon": budget["epsilon"] * budget["spent_share"]["max"]} if budget is not None else {}


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else "inf"  # JSON has no infinity


def spending(folder: Path, most: int | None = None) -> dict[str, Any]:
    """What a run has spent so far, from its ledger: guarantees, and one row per client; `most` rows where there are
    more, at even distances.
    """
    setup, federation = opened(folder)
    try:
        made = receipt(setup, federation)
        plan, ledger = federation.plan, federation.ledger
        paid = {name for entry in ledger.entries() for name in entry.charges}  # by any run on this ledger
        spent = {name: [part / UNIT for part in ledger.spent(name)] for name in (*paid, EVERYONE)}
        clients = [
            {
                "client": k,
                "examples": federation.sizes[k] if setup.experiment.privacy.public_sizes else None,
                "exposures": federation.exposures.get(federation.payer(k), 0),
                "planned": plan.exposures[k],
                "spent": spent[EVERYONE] if federation.all_alike else spent.get(str(k), spent[EVERYONE]),
                "granted": None if (cap := plan.cap_of(k)) is None else [part / UNIT for part in cap],
                "epsilon": None if plan.budget is None else plan.budget.of(k),
            }
            for k in some_of(len(federation.sizes), most)
        ]
    finally:
        federation.ledger.close()
    return {**made, "by_client": clients, "currency": federation.plan.currency.name}


def some_of(clients: int, most: int | None) -> Sequence[int]:
    """All clients, or `most` of them at even distances."""
    return range(clients) if most is None or clients <= most else [i * clients // most for i in range(most)]


def opened(folder: Path) -> tuple[Setup, Federation]:
    """What is public of a run, and its federation on the ledger it used: no data are read."""
    check_is_run(folder)
    run, place = read_environment(folder)["run"], ledger_of(folder)
    experiment, agreed = config.load(folder / "experiment.toml"), Agreement.read(folder)
    if not place.exists():
        raise missing(place)
    whole = Whole(experiment, agreed.public, agreed.coordinates)
    setup = whole.phases[-1]
    return setup, setup.federation(ServersHome(whole), agreed.dataset, place, run)


def ledger_of(folder: Path) -> Path:
    """Where a run keeps its books: in its folder, or on a ledger that it shares."""
    shared = config.load(folder / "experiment.toml").privacy.ledger
    return Path(shared) if shared else folder / "ledger.sqlite"


def _budget(setup: Setup, federation: Federation) -> dict[str, Any] | None:
    """Granted and spent, in the currency that adds up, over clients."""
    plan = federation.plan
    if plan.cap is None or plan.budget is None:
        return None
    everyone, people = federation.all_alike, len(federation.sizes)
    # by this run, in a shared ledger too
    spent = [share_of(federation, client) for client in federation.spent]
    planned = dict(zip(*(found.tolist() for found in np.unique(plan.exposures, return_counts=True)), strict=True))
    return {
        "epsilon": plan.budget.epsilon,
        "delta": plan.budget.delta,
        "currency": plan.currency.name,
        "granted": [part / UNIT for part in plan.cap],
        "spent_share": _spread(_of_all(spent, 0.0, people, everyone)),
        "exposures_planned": _spread(planned),
        "exposures_used": _spread(_of_all(list(federation.exposures.values()), 0, people, everyone)),
        **({"groups": _groups(federation), "subject": _subject_of(plan)} if plan.budget.personal is not None else {}),
    }


def _subject_of(plan: Plan) -> dict[str, str]:
    """Whose loss the groups tell, under which change, to whom."""
    assert plan.offer is not None
    return {"unit": plan.offer.unit, "neighbours": plan.offer.neighbours, "adversary": plan.offer.adversary}


def share_of(federation: Federation, client: int) -> float:
    """Of its budget, what this client has spent."""
    limits, paid, pricing = federation.plan.cap_of(client), federation.spent.get(client), federation.plan.pricing
    if limits is None or paid is None:
        return 0.0
    if isinstance(pricing, CountedPhase):  # what other phases have spent of theirs says nothing of what is left here
        return paid[pricing.place] / limits[pricing.place]
    return max(part / limit for part, limit in zip(paid, limits, strict=True))


def _groups(federation: Federation) -> list[dict[str, Any]]:
    """Clients that grant the same: what they lost, by the ledger's events, beside what they granted (or, as published,
    what is claimed).
    """
    plan = federation.plan
    assert plan.offer is not None
    assert plan.budget is not None
    levels = plan.budget.levels()
    notes = [entry.note for entry in federation.entries()]
    subject = (plan.offer.unit, plan.offer.neighbours, plan.offer.adversary)
    rows = of_groups(notes, len(federation.sizes), plan.budget.delta, subject, list(levels.values()))
    return [
        {
            "granted": level,
            "clients": len(members),
            "spent": 0.0 if row is None else row.to_json()["epsilon"],  # of the client that lost most
            "status": "none" if row is None else row.status,
            "claimed": level * max(share_of(federation, federation.payer(k)) for k in members)
            if plan.claimed
            else None,
            "exposures": _spread(Counter(federation.exposures.get(federation.payer(k), 0) for k in members)),
        }
        for (level, members), row in zip(levels.items(), rows, strict=True)
    ]


def _of_all(values: Sequence[T], otherwise: T, people: int, everyone: bool) -> Mapping[T, int]:
    """How many clients have each value: the counters of those who took part speak for themselves, or one for everyone;
    the others have nothing.
    """
    counted = Counter(dict.fromkeys(values, people) if everyone else values)
    counted[otherwise] += people - counted.total()
    return counted


def _spread(counted: Mapping[Any, int]) -> dict[str, float]:
    """Of so many clients with each value; a median as `statistics.median` defines it."""
    values = sorted(value for value, count in counted.items() if count)
    ends, people = list(accumulate(counted[value] for value in values)), sum(counted.values())
    low, high = (values[bisect_right(ends, place)] for place in ((people - 1) // 2, people // 2))
    return {"min": values[0], "median": low if people % 2 else (low + high) / 2, "max": values[-1]}
