"""Sweeps: an experiment with several values of a parameter, and the privacy cost that the search would have had.

Trying k configurations on the same data and keeping one releases all k: their sequential composition bounds what the
choice reveals (Dwork and Roth 2014, 3.5; Papernot and Steinke 2022 show that no choice is free).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sordino.accounting.claims import ADVERSARIES, Status, Subject, standing
from sordino.accounting.composition import of_a_run, read_notes, simulated
from sordino.accounting.facts import Epsilon, delta_text, epsilon_text
from sordino.accounting.statement import Guarantee, statement
from sordino.accounting.words import merged, rounded_up, subject
from sordino.config import CHOOSERS
from sordino.errors import ConfigError

OPENING, CLOSING, QUOTES = "[{(", "]})", "\"'"
NOT_SWEPT = {"seed": "seeds are what `--seeds N` is for", "name": "the name of a method comes from its values"}


class Setting(NamedTuple):
    """One combination of the values of a sweep: its label, and the overrides that set it."""

    label: str  # "lr=0.01 mu=1", empty without a sweep
    overrides: tuple[str, ...]


def grid(overrides: Iterable[str]) -> list[Setting]:
    """Every combination of the listed values; an override with one value belongs to all of them."""
    listed = [(override, *_values(override)) for override in overrides]
    swept = {key for _, key, values in listed if len(values) > 1}
    for key in swept & NOT_SWEPT.keys():
        raise ConfigError(
            f"{key} cannot have several values", why=NOT_SWEPT[key], fix=f"give one value of {key}", code="not-swept"
        )
    found = []
    options = ([f"{key}={v}" for v in values] if key in swept else [override] for override, key, values in listed)
    for choice in itertools.product(*options):
        label = " ".join(_short(part) for part, (_, key, _) in zip(choice, listed, strict=True) if key in swept)
        found.append(Setting(label, choice))
    return found


def _short(part: str) -> str:
    """Short form of a setting: lr=0.01 for algorithm.lr=0.01, fedprox for algorithm=fedprox."""
    key, _, value = part.partition("=")
    return value.strip("\"'") if key in CHOOSERS else part.removeprefix("algorithm.")


def _values(override: str) -> tuple[str, list[str]]:
    key, equals, text = override.partition("=")
    if not equals:
        return override, []  # the loader says what is wrong with it
    return key.strip(), split(text)


def split(text: str) -> list[str]:
    """Split a text at commas outside of brackets and quotes: 0.1,0.2 is two values, {size = 3, name = "a,b"} is one."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in QUOTES:
            quote = letter
        depth += 0 if quote else (letter in OPENING) - (letter in CLOSING)
        if letter == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


# what the search would have cost --------------------------------------------------------------------------------------


class Composed(Subject):
    """Upper bound on the privacy loss by all configurations together, for one unit against one adversary."""

    status: Status
    simulated: bool  # may the noise of any of them be drawn again from a seed?
    delta: float
    epsilon: Epsilon  # one seed of each configuration: what a search on real data would be
    every_seed: Epsilon  # all that was run here


class Notes(NamedTuple):
    """Ledger notes of one run, which describe its releases."""

    texts: Sequence[str]
    population: int  # clients
    rows_per_key: int = 1  # at most, of one person


def composed(seeds: Sequence[Sequence[Notes]], delta: float) -> list[Composed]:
    """Privacy guarantees of all configurations' ledgers together, for the seed with the largest privacy loss. `seeds`
    holds, for each seed, one ledger per configuration.

    Within a seed every client holds the same examples, so its releases compose exactly. Between seeds the examples are
    dealt anew; at delta / n, the epsilons of n seeds add up to one at delta, whichever client held them. Delta becomes
    larger than asked where real noise lacks more of its ideal law than that.
    """
    once = [_united(seed, delta) for seed in seeds]
    shared = [_united(seed, delta / len(seeds)) for seed in seeds] if len(seeds) > 1 else once
    found, repeatable = [], any(simulated(notes.texts) for seed in seeds for notes in seed)
    for key, row in once[0].items():
        if all(key in rows for rows in once):
            epsilon = max(rows[key].epsilon for rows in once)
            total = sum(rows[key].epsilon for rows in shared)
            whole = max(delta, *(rows[key].delta for rows in once), sum(rows[key].delta for rows in shared))
            found.append(
                Composed(
                    **dict(key), status=row.status, simulated=repeatable, delta=whole, epsilon=epsilon, every_seed=total
                )
            )
    return found


def _united(configurations: Sequence[Notes], delta: float) -> dict[Subject, Guarantee]:
    """Privacy guarantees of all configurations together, against those adversaries for whom all configurations make
    claims about the same units and neighbours; other claims would first have to be converted by group privacy."""
    spoken = [keys for notes in configurations if (keys := _claimed_subjects(notes))]
    population = max(notes.population for notes in configurations)
    # what one run draws once another draws anew
    texts = (of_a_run(text, str(i)) for i, notes in enumerate(configurations) for text in notes.texts)
    rows = statement(texts, population, delta, rows_per_key=max(notes.rows_per_key for notes in configurations))
    alike = {
        adversary
        for adversary in ADVERSARIES
        if len({frozenset(key for key in keys if key.adversary == adversary) for keys in spoken}) == 1
    }
    return {row.subject: row for row in rows if row.adversary in alike}


def _claimed_subjects(notes: Notes) -> set[Subject]:
    claims = (
        c for releases in read_notes(notes.texts, notes.population).values() for release in releases for c in release
    )
    return {claim.subject for claim in claims}


def choosing(search: Sequence[Composed], methods: int, seeds: int, sweep: bool) -> list[str]:
    """Sentences on the privacy cost of choosing among the configurations that were tried, for the page, the terminal
    and the notebook. `sweep`: they are of one sweep.
    """
    what = "configurations of one sweep were" if sweep else "methods were"
    sentences = [
        f"{methods} {what} tried on the same data. Tuning is not accounted for: choosing among them costs privacy that "
        "no row shows.",
        "No selection was made here: every row is the end of its runs, on test data, and no validation clients were "
        "set aside. No epsilon covers the scores: they are exact, and a test example under one seed may be a training "
        "example under another.",
    ]
    finite = [row for row in search if row.epsilon != math.inf]
    if not finite:
        return [*sentences, "No finite epsilon covers all of them together: at least one of them promises nothing."]
    for row, by in merged(finite):
        text = (
            f"Charged as a whole, all {methods} together cost at most epsilon {rounded_up(row.epsilon):g} at delta "
            f"{delta_text(row.delta)} about one {row.unit}, against {subject(by)} ({row.neighbours}; "
            f"{standing(row.status, row.simulated)}; one seed each, composed by the ledger's accountants)"
        )
        if seeds > 1:
            text += f"; with the {seeds} seeds of each that were run here, epsilon {epsilon_text(row.every_seed)}"
        if row.status == "nominal":
            text += ". That is what holds; the formulas of nominal rows are not added up"
        sentences.append(text + ".")
    return sentences
