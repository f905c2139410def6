"""privacy.json: what this run promised and spent, to whom, under which assumptions; and `verify`, which believes none of it."""

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
from sordino.assemble import Parts
from sordino.engine.federation import Federation
from sordino.errors import LedgerError, RunError
from sordino.folder import check_is_run, read_environment
from sordino.ledger.currency import UNIT
from sordino.ledger.ledger import EVERYONE
from sordino.ledger.pricing import CountedPhase
from sordino.ledger.statement import of_groups, statement
from sordino.plan import Plan
from sordino.privacy.sources import TABLE_ERROR

T = TypeVar("T", int, float)

SIMULATED = "noise came from a seeded generator: a simulation, no guarantee for real data"
TUNING = "choosing hyper-parameters on the same data is not accounted for"
ARITHMETIC = "sums of clipped gradients are exact up to floating-point rounding"
SCALING = "inputs are scaled by the mean and deviation of all training data, whose release is not accounted for"
BUDGETS = "the budget of every client is public, and chosen without looking at its data"
EVALUATION = "test metrics were computed by the evaluator and are no releases"
OWN_MODELS = (
    "scores of clients' own models depend on their training examples: whoever reads metrics.jsonl is not in this table"
)


def receipt(parts: Parts, federation: Federation) -> dict[str, Any]:
    """From the ledger alone, so that it can be made again: a round that was begun counts, finished or not."""
    experiment, ledger = parts.experiment, federation.ledger
    federation.replay()
    notes = [entry.note for entry in federation.entries()]
    rows = statement(notes, len(federation.sizes), experiment.privacy.delta)
    simulated = federation.noise == "counter"
    budget, guarantees = _budget(parts, federation), [row.to_json() for row in rows]
    for row in guarantees:
        if row["status"] == "nominal":
            row |= _as_published(parts, row["unit"], len(notes), budget)
    assumptions = [SIMULATED if simulated else _table_error(parts), TUNING, ARITHMETIC, EVALUATION]
    if parts.dataset.classes and experiment.data.standardise != "fixed":
        assumptions.append(SCALING)
    if parts.budget is not None and parts.budget.personal is not None:
        assumptions.append(BUDGETS)
    if parts.evaluation().personal:
        assumptions.append(OWN_MODELS)
    return {
        "format": 1,
        "run": federation.run,
        "config": federation.config,
        "simulated": simulated,
        "rounds": len(notes),
        "clients": len(federation.sizes),
        "guarantees": guarantees,
        "budget": budget,
        **({"phases": _by_phase(parts, federation)} if parts.preparation else {}),
        "assumptions": assumptions,
        "ledger_head": ledger.head(),
    }


def _by_phase(parts: Parts, federation: Federation) -> list[dict[str, Any]]:
    """What the ledger holds of each phase, given what went out before it: whoever reads an infinity may ask whence it comes."""
    names = {f"{federation.run}.{mine.phase}": mine.phase for mine in parts.preparation} | {federation.run: "training"}
    notes: dict[str, list[str]] = {name: [] for name in names}
    for entry in federation.entries():
        notes[entry.op.rpartition("/")[0]].append(entry.note)
    shown = ("unit", "neighbours", "adversary", "epsilon", "delta", "status", "because")
    delta = parts.experiment.privacy.delta
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


def _as_published(parts: Parts, unit: str, rounds: int, budget: Mapping[str, Any] | None) -> dict[str, float | str]:
    """What the source's formula prints, and where its rounds do not add up to that, what the same formula gives for all of them."""
    gate = parts.algorithm.uplink.as_published if unit == "client" else parts.algorithm.read
    if (stated := getattr(gate, "stated", None)) is not None:
        found = stated(rounds, parts.experiment.privacy.delta, max(1, min(parts.sizes)))
        return {"nominal_epsilon": _number(found.epsilon), "nominal_composed": _number(found.composed)}
    return {"nominal_epsilon": budget["epsilon"] * budget["spent_share"]["max"]} if budget is not None else {}


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else "inf"  # JSON has no infinity


def spending(folder: Path, most: int | None = None) -> dict[str, Any]:
    """What a run has spent so far, from its ledger: guarantees, and one row per client; `most` rows where there are more, at even distances."""
    parts, federation = opened(folder)
    try:
        made = receipt(parts, federation)
        plan, ledger = federation.plan, federation.ledger
        paid = {name for entry in ledger.entries() for name in entry.charges}  # by any run on this ledger
        spent = {name: [part / UNIT for part in ledger.spent(name)] for name in (*paid, EVERYONE)}
        clients = [
            {
                "client": k,
                "examples": federation.sizes[k],
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


def opened(folder: Path) -> tuple[Parts, Federation]:
    """A run's parts and its federation on the ledger it used."""
    check_is_run(folder)
    run = read_environment(folder)["run"]
    parts = Parts(config.load(folder / "experiment.toml"))
    shared = parts.experiment.privacy.ledger
    place = Path(shared) if shared else folder / "ledger.sqlite"
    if not place.exists():
        raise LedgerError(
            f"the ledger {place} is gone", why="without it nothing can be verified", code="ledger-missing"
        )
    return parts, parts.federation(place, run)


def _table_error(parts: Parts) -> str:
    return (
        "noise came from the operating system on an integer grid; sampling tables add at most "
        f"{parts.coordinates * TABLE_ERROR:.1e} to delta per release"
    )


def _budget(parts: Parts, federation: Federation) -> dict[str, Any] | None:
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
    """Clients that grant the same: what they lost, by the ledger's events, beside what they granted (or, as published, what is claimed)."""
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
    """How many clients have each value: the counters of those who took part speak for themselves, or one for everyone; the others have nothing."""
    counted = Counter(dict.fromkeys(values, people) if everyone else values)
    counted[otherwise] += people - counted.total()
    return counted


def _spread(counted: Mapping[Any, int]) -> dict[str, float]:
    """Of so many clients with each value; a median as `statistics.median` defines it."""
    values = sorted(value for value, count in counted.items() if count)
    ends, people = list(accumulate(counted[value] for value in values)), sum(counted.values())
    low, high = (values[bisect_right(ends, place)] for place in ((people - 1) // 2, people // 2))
    return {"min": values[0], "median": low if people % 2 else (low + high) / 2, "max": values[-1]}


def verify(folder: Path) -> list[str]:
    """Recompute the receipt from the ledger; returns what does not agree (nothing: the receipt holds)."""
    claimed = _claimed(folder)
    parts, federation = opened(folder)
    wrong = []
    if claimed.get("config") != parts.experiment.digest():
        wrong.append("experiment.toml is not the experiment of the receipt")
    try:
        if not federation.ledger.descends_from(str(claimed.get("ledger_head"))):
            wrong.append("the ledger went back behind the receipt: an older copy, or another ledger")
        again = json.loads(json.dumps(receipt(parts, federation)))
    finally:
        federation.ledger.close()
    wrong += [f"{name}: in the receipt only" for name in sorted(claimed.keys() - again.keys())]
    for name in ("format", "run", "simulated", "rounds", "clients", "budget", "phases", "assumptions"):
        if name == "phases" and name not in claimed:
            continue  # receipts did not always tell them
        if not _same(again.get(name), claimed.get(name)):
            wrong.append(f"{name}: the ledger says {again.get(name)!r}, the receipt {claimed.get(name)!r}")
    found = {_subject(row): row for row in again["guarantees"]}
    rows = [row for row in claimed.get("guarantees", []) if isinstance(row, dict)]
    stated = {_subject(row): row for row in rows}
    if len(stated) < len(rows):
        wrong.append("a guarantee is stated twice")
    for subject in sorted(found.keys() | stated.keys()):
        a, b = found.get(subject), stated.get(subject)
        if a is None or b is None:
            wrong.append(f"{' / '.join(subject)}: in the {'receipt' if a is None else 'ledger'} only")
        else:
            wrong += [
                f"{' / '.join(subject)}: the ledger gives {name} {value!r}, the receipt says {b.get(name)!r}"
                for name, value in (dict.fromkeys(b) | a).items()
                if not _same(value, b.get(name))
            ]
    return wrong


def _claimed(folder: Path) -> dict[str, Any]:
    try:
        claimed = json.loads((folder / "privacy.json").read_text())
        if not isinstance(claimed, dict) or not isinstance(claimed.get("guarantees"), list):
            raise ValueError("it is not an object with guarantees")
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(
            f"{folder} has no readable receipt", why=str(error), fix="finish or resume the run first", code="no-receipt"
        ) from None
    return claimed


def _subject(row: dict[str, Any]) -> tuple[str, str, str]:
    return str(row.get("unit")), str(row.get("neighbours")), str(row.get("adversary"))


def _same(a: Any, b: Any) -> bool:
    """Equal, numbers up to rounding: an accountant may take another path through the same events."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=1e-9)
    return bool(a == b)
