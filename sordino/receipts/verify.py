"""Verify a receipt against its ledger, its experiment and the files beside it, without data or models; none of these is
trusted.

A receipt that holds shows: the chain is whole; every epsilon follows from the releases in it; every release is the one
that the experiment plans, with the planned noise at the planned price; the files are those that were sealed. It does
not show that ledger, receipt and files were not all written anew together. For that a site signs.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

from sordino import user_code
from sordino.accounting.accountants import EXACT, LIMITS
from sordino.accounting.claims import Subject
from sordino.accounting.composition import simulated
from sordino.accounting.events import Json
from sordino.algorithms.optional import RequestsClients
from sordino.config import Experiment
from sordino.ledger.books import Op
from sordino.ledger.ledger import Entry, Ledger, of_run
from sordino.planning import Agreement
from sordino.planning.accounts import Accounts
from sordino.planning.phase import PlannedPhase
from sordino.receipts import seal
from sordino.receipts.folder import RunFolder, no_receipt
from sordino.receipts.receipt import assumed, opened, receipt, stated

PRINTED = ("nominal_epsilon", "nominal_composed")
WITHOUT_CODE: tuple[str, ...] = ("run", "simulated", "rounds", "clients", "assumptions")
COMPARED = ("format", "run", "simulated", "rounds", "clients", "budget", "phases", "assumptions")


class Verdict(NamedTuple):
    """Result of a verification: disagreements, checks that could not be made, and checks that passed."""

    wrong: list[str]  # disagreements
    unseen: list[str]  # checks that could not be made, and why
    agreed: list[str]  # checks that passed; empty where any failed


def verify(folder: Path) -> list[str]:
    """List all disagreements; an empty list: the receipt holds. Code of the experiment's author is imported."""
    return examine(folder, code=True).wrong


def examine(folder: Path, key: Path | None = None, code: bool = False) -> Verdict:
    """Verify the receipt of a run folder. `key`: public key of the site that must have signed it. `code`: import an
    algorithm that is not sordino's, which runs its file.
    """
    claimed, files, unseen = _claimed(folder), RunFolder(folder), list[str]()
    experiment = files.experiment
    same = claimed.get("config") == experiment.digest()
    wrong = [] if same else ["experiment.toml is not the experiment of the receipt"]
    with Ledger.as_founded(files.ledger) as ledger:
        known = ledger.sealed(seal.digest(claimed))
        if not ledger.descends_from(str(claimed.get("ledger_head"))):
            wrong.append("the ledger went back behind the receipt: an older copy, or another ledger")
        if not known:
            wrong.append("the ledger knows no such receipt: it was changed after it was made, or made elsewhere")
        entries = of_run(ledger, str(claimed.get("run")))
        wrong += _edited(experiment, entries)
        delta = ledger.scope.delta
    agreed = ["the chain is whole", "every epsilon follows from it"]
    if not code and (own := sorted({*user_code.named([experiment.algorithm.get("name"), experiment.cohort])})):
        unseen.append(
            "the planned noise, the budget, the rows of phases, numbers that are only printed, and assumptions about "
            f"these: they follow from a user's own code ({', '.join(own)}), and --with-code would run it"
        )
        again, compared = _from_files(folder, entries, delta or 0.0, claimed.get("assumptions")), WITHOUT_CODE
    else:
        setup, federation = opened(folder)
        with federation.ledger:
            again, compared = receipt(setup, federation, files.environment, check=True).to_json(), COMPARED
        wrong += _replayed(setup, federation, entries, between=bool(files.environment.site))
        agreed.append("every release is the one that the experiment plans")
        wrong += [f"{name}: in the receipt only" for name in sorted(claimed.keys() - again.keys() - {"files"})]
    then, now = claimed.get("rounds"), again.get("rounds")
    if known and not wrong and isinstance(then, int) and isinstance(now, int) and then < now:
        went_on = f"the run goes on: this receipt is of round {then}, and the ledger knows {now} rounds"
        return Verdict([f"{went_on}; the next one is written when the run ends or is stopped"], unseen, [])
    wrong += [
        f"{name}: the ledger says {again.get(name)!r}, the receipt {claimed.get(name)!r}"
        for name in compared
        if not _same(again.get(name), claimed.get(name))
    ]
    rounds = sum(Op.of(entry.op).name == claimed.get("run") for entry in entries)
    if (played := len(files.public_metrics())) > rounds:
        wrong.append(f"metrics.jsonl tells of {played} rounds, the ledger of {rounds}")
    wrong += [*_guarantees(again, claimed), *_contradicted(again), *seal.wrong(folder, claimed)]
    if key is not None or files.signature_file.exists():
        from sordino.receipts import signature  # which loads `cryptography`; most receipts are not signed

        wrong += signature.wrong(folder, key)
    agreed.append("the files that are here are those that were sealed")
    if gone := seal.absent(folder, claimed):
        unseen.append(f"{', '.join(gone)}: the receipt knows the digest, and the file is not here")
    if key is None:
        unseen.append("who made the receipt: give --key, the public key of the site that signed it")
    else:
        agreed.append(f"{key.name} has signed it")
    return Verdict(wrong, unseen, [] if wrong else agreed)


def _from_files(folder: Path, entries: list[Entry], delta: float, assumptions: Any) -> Json:
    """Parts of a receipt that follow from the files of a run alone. `assumptions`: those of the receipt, which may be
    more than follow.
    """
    files, public, notes = RunFolder(folder), Agreement.read(folder).public, [entry.released for entry in entries]
    where, drawn = files.environment, simulated(notes) if notes else not files.experiment.privacy.real
    clients, least = public.sizes if where.clients is None else where.clients, assumed(notes, public, where, drawn)
    listed = assumptions if isinstance(assumptions, list) and all(one in assumptions for one in least) else least
    rows = [row.to_json() for row in stated(notes, public, delta, where, check=True)]
    found = where.run, drawn, len(notes), len(clients), listed
    return {**dict(zip(WITHOUT_CODE, found, strict=True)), "guarantees": rows}


def _guarantees(again: Json, claimed: Json) -> list[str]:
    found, wrong = {_subject(row): row for row in again["guarantees"]}, list[str]()
    rows = [row for row in claimed["guarantees"] if isinstance(row, dict)]
    stated = {_subject(row): row for row in rows}
    if len(stated) < len(claimed["guarantees"]):
        wrong.append("a guarantee is stated twice, or is no row")
    for subject in sorted(found.keys() | stated.keys()):
        a, b = found.get(subject), stated.get(subject)
        if a is None or b is None:
            wrong.append(f"{' / '.join(subject)}: in the {'receipt' if a is None else 'ledger'} only")
        else:
            wrong += [
                f"{' / '.join(subject)}: the ledger gives {name} {value!r}, the receipt says {b.get(name)!r}"
                for name, value in (dict.fromkeys(b) | a).items()
                if (name not in PRINTED or "budget" in again)
                and not _same(_as_far_as_stated(name, value, b), b.get(name))
            ]
    return wrong


def _contradicted(again: Json) -> list[str]:
    """Rows whose exact epsilon is outside its numerically integrated limits, or above another accountant's upper bound,
    by more than rounding explains: one of the two is mistaken.
    """
    return [
        f"{' / '.join(_subject(row))}: {name} gives {float(epsilon):.6g}, and what is called exact {float(exact):.6g}"
        for row in again["guarantees"]
        if (exact := row["accountants"].get(EXACT)) is not None
        for name, epsilon in row["accountants"].items()
        if _below(*((exact, epsilon) if name == LIMITS[0] else (epsilon, exact)))
    ]


def _below(a: float | str, b: float | str) -> bool:
    return float(a) < float(b) * (1 - 1e-6) - 1e-9


def _as_far_as_stated(name: str, value: Any, receipt: Json) -> Any:
    """The value computed from the ledger, without the numerical lower and upper limit of an exact epsilon where the
    receipt does not state them."""
    stated = receipt.get(name)
    if name != "accountants" or not isinstance(stated, dict) or EXACT not in stated:
        return value
    return {accountant: epsilon for accountant, epsilon in value.items() if accountant not in {*LIMITS} - {*stated}}


def _edited(experiment: Experiment, entries: list[Entry]) -> list[str]:
    """Releases made under another experiment, or with another noise, than experiment.toml says."""
    wrong, noise, digest = [], experiment.privacy.noise, experiment.digest()
    for entry in entries:
        parsed = entry.parsed
        if parsed.config != digest:
            wrong.append(f"{entry.op}: it was released by another experiment than experiment.toml")
        elif parsed.noise != noise:
            wrong.append(f"{entry.op}: its noise was {parsed.noise!r}, experiment.toml says {noise!r}")
    return wrong[:3]


def _replayed(setup: PlannedPhase, known: Accounts, entries: list[Entry], between: bool = False) -> list[str]:
    """Releases whose claims (noise included) or price are not those that the experiment plans; this also finds a ledger
    that was forged as a whole. `between`: sites took part, so absent clients were not asked, and a site may have missed
    rounds."""
    wrong: list[str] = []
    for phase_setup in (*setup.preparation, setup):
        with (again := phase_setup.accounts(Accounts, "", ":memory:", "again", known.only)).ledger:
            # in a ledger that was put back, published rounds come before reserved ones
            for entry in sorted(entries, key=lambda one: Op.of(one.op)[2]):
                _, phase, t = Op.of(entry.op)
                if phase != phase_setup.phase:
                    continue
                active = _active(phase_setup, again, t, between)
                missed = t if between and known.only is not None and not again.plan.everyone_pays else 0
                if t < 0 or not again.plans(t, entry, active, missed):
                    wrong.append(f"{entry.op}: its noise, its price or who took part is not what experiment.toml plans")
    return wrong[:3]


def _active(setup: PlannedPhase, again: Accounts, t: int, between: bool) -> list[int] | None:
    """Clients that a round asks, none where all pay for it, asked or not; None if the experiment alone does not decide
    them, because an algorithm requests clients, silent ones are replaced, or they were drawn in secret."""
    if isinstance(setup.algorithm, RequestsClients) or setup.experiment.engine.network.timeout_s is not None:
        return None
    if setup.policy.hidden and again.plan.everyone_pays:
        return []
    if between or setup.policy.secret_cohort:
        return None
    active = again.stragglers.split(again.draw(again.open(t)), t, again.key).active
    return [k for k in active if k in again.members]


def _claimed(folder: Path) -> Json:
    try:
        return seal.claimed(folder)
    except (OSError, ValueError, RecursionError) as error:
        raise no_receipt(folder, error) from None


def _subject(row: Json) -> tuple[str, ...]:
    return tuple(str(row.get(name)) for name in Subject.model_fields)


def _same(a: Any, b: Any) -> bool:
    """True if two values are equal and of one type, numbers up to rounding: accountants may add up in another order."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-9)
    return type(a) is type(b) and bool(a == b)
