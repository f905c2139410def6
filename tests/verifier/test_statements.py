"""Statements of random releases, which no experiment has to make: every kind of event, parts about several units, drawn
noise that is inexact, and what is drawn once.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from sordino.accounting.statement import statement
from sordino.errors import UnsupportedEvent
from tests.verifier.test_receipts import epsilons, verify

Json = dict[str, Any]
PEOPLE = 4


def event(rng: random.Random, sampled: bool, depth: int = 2) -> Json:
    """A random event; `sampled`: perhaps on a secret sample, whose price takes seconds."""
    kinds = ["gaussian"] * 3 + ["discrete_gaussian", "laplace", "response"]
    kind = rng.choice(kinds + ["repeat", "once", "together"] * (depth > 0) + ["poisson"] * (sampled and depth > 0))
    if kind in ("gaussian", "discrete_gaussian"):
        return {"kind": kind, "noise_multiplier": round(rng.uniform(0.8, 9), 3)}
    if kind == "poisson":
        noise = rng.choice(["gaussian", "gaussian", "discrete_gaussian"])
        inner: Json = {"kind": noise, "noise_multiplier": round(rng.uniform(0.8, 9), 3)}
        inner = rng.choice([inner, {"kind": "laplace", "scale": 3.0}])
        return {"kind": kind, "rate": rng.choice([0.1, 0.5]), "event": inner}
    if kind == "together":
        parts = [event(rng, sampled, depth - 1) for _ in range(rng.randint(1, 2))]
        return {"kind": kind, "events": [*parts, {"kind": "nothing"}]}
    return {
        "laplace": lambda: {"kind": kind, "scale": round(rng.uniform(1, 20), 3)},
        "response": lambda: {"kind": kind, "epsilon": round(rng.uniform(0.05, 1), 3), "levels": rng.choice([2, 3, 16])},
        "repeat": lambda: {"kind": kind, "event": event(rng, sampled, depth - 1), "count": rng.randint(1, 5)},
        "once": lambda: {"kind": kind, "name": rng.choice("ab"), "event": event(rng, False, 0)},
    }[kind]()


def note(rng: random.Random, sampled: bool) -> str:
    """One release to everybody, or to some, with claims about one or two subjects."""
    releases = []
    for clients in ("*", sorted(rng.sample(range(PEOPLE), 2))):
        claims = []
        for unit in rng.sample(["example", "cell", "client", "client"], rng.randint(1, 2)):
            bare = rng.random() < 0.1
            told = {"kind": "non_private", "reason": "open"} if bare else event(rng, sampled)
            claims.append(
                {
                    "unit": unit,
                    "neighbours": "zero_out" if sampled else rng.choice(["replace", "zero_out"]),
                    "adversary": rng.choice(["server", "server", "public"]),
                    "event": told,
                    "status": "none" if bare else rng.choice(["proved", "conditional"]),
                    "because": rng.sample(["p", "q", "r"], rng.randint(0, 2)),
                    "drift": rng.choice([0.0, 0.0, 1e-9, 1e-5]),
                }
            )
        releases.append({"clients": clients, "claims": claims})
        if rng.random() < 0.6:
            break
    return json.dumps({"releases": releases, "noise": "system", "config": ""})


def compared(seed: int, sampled: bool) -> set[str]:
    """The accountants of a random statement, which both give; empty where both refuse an event."""
    rng = random.Random(seed)
    texts = [note(rng, sampled) for _ in range(rng.randint(1, 3))] * rng.randint(1, 2)
    delta, people = 10.0 ** -rng.randint(3, 6), rng.choice([1, 1, 3])
    try:
        rows = [row.to_json() for row in statement(texts, PEOPLE, delta, False, people)]
    except UnsupportedEvent:
        with pytest.raises(epsilons.NotChecked):
            verify.statement(verify.histories(list(map(json.loads, texts)), PEOPLE), delta, people)
        return set()
    said = verify.Verdict()
    said.rows("", rows, verify.statement(verify.histories(list(map(json.loads, texts)), PEOPLE), delta, people))
    assert said.wrong == [], seed
    return {row["accountant"] for row in rows}


@pytest.mark.slow
def test_random_statements_are_the_same() -> None:
    found = set().union(*(compared(seed, False) for seed in range(41, 60)))
    assert {"gdp", "pure", "rdp", "pld", "none", "sum of 2 kinds of claims"} <= found


@pytest.mark.slow
def test_many_random_statements_are_the_same() -> None:
    found = set().union(*(compared(seed, sampled) for sampled in (False, True) for seed in range(100, 160)))
    assert any(name.startswith("sum of 3") for name in found)
