"""Unsafe and impossible set-ups do not start: each is refused with a code of its own, what is wrong, and why or what to
do, before anything is written.

One table. A coverage test reads every refusal under sordino/ from the source, so that a new one must join the table or
name its reason.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import sordino
from sordino import config
from sordino.errors import PrivacyError, SordinoError
from sordino.round import one_round
from sordino.runs.simulation import simulated
from sordino.types import Terms, Work
from tests.helpers.executors import Doing
from tests.privacy.unsafe_calls import CALLS
from tests.privacy.unsafe_experiments import EXPERIMENTS
from tests.privacy.unsafe_parts import CLIP, POISSON, QUADRATICS, QUICK, budget, helpful, read_batches, up


@pytest.mark.parametrize("name", CALLS)
def test_an_unsafe_call_is_refused(name: str) -> None:
    code, make = CALLS[name]
    with pytest.raises(SordinoError) as refusal:
        make()
    helpful(refusal.value, code)


def test_what_was_reserved_may_be_read() -> None:
    read_batches(Work(1, None, None))
    read_batches(Work(1, None, 2))
    read_batches(Work(None, 5, None), reads=5)


def test_an_exhausted_hidden_cohort_reads_nothing_more() -> None:
    central = up([CLIP], [{"name": "noise", "neighbours": "add_remove"}])
    parts = simulated(config.validate({**QUADRATICS, **central, **budget(**QUICK), "cohort": POISSON, "rounds": 2}))
    federation, clients = parts.federation(":memory:", "run"), parts.site("run")
    server, read = parts.setup.state("server"), []

    def execute(t: int, message: bytes, terms: Mapping[int, Terms]) -> Any:
        read.append(t)
        return clients(t, message, terms)

    for t in (0, 1):
        server = one_round(federation, server, t, Doing(execute)).server
    with pytest.raises(SordinoError) as refusal:
        one_round(federation, server, 2, Doing(execute))
    helpful(refusal.value, "BudgetExhausted")
    assert read == [0, 1]


# ---------------------------------------------------------------- nothing is left out
KINDS: list[type[SordinoError]] = [PrivacyError, *PrivacyError.__subclasses__()]


REFUSALS = {kind.__name__ for kind in KINDS}


NOT_IN_A_TABLE = {
    "batch-norm": "test_batch_norm_is_refused",
    "schema-is-a-draft": "test_a_private_table_learns_nothing_from_its_rows",
    "partition-from-labels": "test_a_private_table_learns_nothing_from_its_rows",
    "BudgetExhausted": "test_an_exhausted_hidden_cohort_reads_nothing_more",
}


def raised_codes() -> Iterator[tuple[str, str]]:
    """(code, place) of every PrivacyError made under sordino/; codes made of parts keep their constant part."""
    root = Path(sordino.__file__).parent
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                given, kind, place = {k.arg: k.value for k in node.keywords}, node.func.id, path.relative_to(root)
                if kind in REFUSALS:
                    yield _constant(given.get("code"), kind), f"{place}:{node.lineno}"
                elif kind == "Rule" and ast.unparse(node.args[1]) in REFUSALS:
                    yield _constant(node.args[-1], kind), f"{place}:{node.lineno}"
                elif kind == "check_range" and "error" in given and ast.unparse(given["error"]) in REFUSALS:
                    yield _constant(node.args[3], kind), f"{place}:{node.lineno}"


def _constant(value: ast.expr | None, default: str) -> str:
    if value is None:
        return default
    if isinstance(value, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "*" for part in value.values)  # type: ignore[misc]
    assert isinstance(value, ast.Constant)
    return str(value.value)


def test_every_refusal_is_in_the_table() -> None:
    tried = {code for code, _ in EXPERIMENTS.values()} | {call.code for call in CALLS.values()} | set(NOT_IN_A_TABLE)
    parts = {f"*{code[code.index('-') :]}" for code in tried if "-" in code} | {"*-*"}
    left = {code: place for code, place in raised_codes() if code not in tried | parts}
    assert left == {}


def test_the_tables_are_large_and_their_codes_are_many() -> None:
    assert len(EXPERIMENTS) >= 40
    assert len({code for code, _ in EXPERIMENTS.values()}) >= 30
