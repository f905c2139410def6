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
from sordino.types import LocalWork, Terms
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
    read_batches(LocalWork(1, None, None))
    read_batches(LocalWork(1, None, 2))
    read_batches(LocalWork(None, 5, None), reads=5)


@pytest.mark.slow
def test_an_exhausted_hidden_cohort_reads_nothing_more() -> None:
    central = up([CLIP], [{"name": "noise", "neighbours": "zero_out"}])
    parts = simulated(config.validate({**QUADRATICS, **central, **budget(**QUICK), "cohort": POISSON, "rounds": 2}))
    federation, clients = parts.federation(":memory:", "run"), parts.site("run")
    server, read = parts.setup.state("server"), []

    def execute(t: int, message: bytes, terms: Mapping[int, Terms]) -> Any:
        read.append(t)
        return clients.each(t, message, terms)

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
    "own-data-undeclared": "test_real_noise_wants_declared_rows_and_a_partition_without_labels",
    "own-cohort-amplifies": "test_a_cohort_of_ones_own_claims_no_amplification",
    "requests-without-coins": "test_no_coin_amplifies_a_choice",
    "schema-is-a-draft": "test_a_private_table_learns_nothing_from_its_rows",
    "sizes-move-rows": "test_a_visit_more_moves_no_visit_of_another_client",
    "method-reads-tests": "test_a_method_beside_real_noise_ranks_nobody_by_test_examples",
    "announces-rows": "test_no_server_and_no_site_plays_what_rows_decide",
    "partition-from-labels": "test_a_private_table_learns_nothing_from_its_rows",
    **dict.fromkeys(
        ["other-clients", "round-beyond-plan", "terms-beyond-plan"], "test_a_forged_round_is_refused_and_costs_nothing"
    ),
    "scores-beyond-plan": "test_a_site_scores_no_model_of_its_own_and_no_more_than_is_planned",
    "scores-of-own-models": "test_scores_of_own_models_are_not_shared",
    **dict.fromkeys(
        ["more-rounds-than-planned", "phase-beyond-plan"], "test_no_phase_is_asked_for_more_often_than_planned"
    ),
    "noise-needs-long-numbers": "test_where_numpy_has_no_long_numbers_tables_would_be_too_coarse_and_no_real_noise_is_drawn",
    "no-ledger-place": "test_a_server_that_says_nothing_of_its_ledger_is_refused",
    **dict.fromkeys(["not-for-sites", "scores-not-shared"], "test_what_is_not_for_sites_is_refused"),
    "above-own-cap": "test_a_plan_above_the_sites_own_cap_is_declined",
    **dict.fromkeys(
        ["seeded-noise-between-sites", "sizes-are-agreed"], "test_what_protects_nobody_is_not_played_between_sites"
    ),
    **dict.fromkeys(["clear-uploads", "other-uploads"], "test_a_site_sends_no_upload_in_clear"),
    "masks-need-one-broadcast": "test_masks_need_one_broadcast_for_all",
    "key-holder-has-clients": "test_no_site_holds_the_key",
    "other-public-key": "test_a_site_encrypts_under_no_key_but_the_holders",
    **dict.fromkeys(
        ["sum-of-too-few", "no-such-sum", "not-for-key-holders"],
        "test_the_holder_opens_no_sum_of_too_few_and_none_of_another_round",
    ),
    **dict.fromkeys(
        ["shared-key-between-sites", "probe-between-sites", "strict-between-sites"],
        "test_what_only_a_simulation_can_do_is_refused",
    ),
    "client-only-trains": "test_a_client_answers_nothing_but_training",
    **dict.fromkeys(
        ["clients-beyond-plan", "fixed-cohort-replaces"],
        "test_a_cohort_that_the_promise_does_not_cover_is_not_asked",
    ),
    "other-experiment": "test_a_site_answers_no_other_server_and_no_other_experiment",
    "secure-sum-elsewhere": "test_a_secure_sum_and_a_relative_folder_are_refused",
    "price-below-event": "test_a_law_whose_event_costs_more_than_its_price_is_not_planned",
    "BudgetExhausted": "test_an_exhausted_hidden_cohort_reads_nothing_more",
}


def raised_codes() -> Iterator[tuple[str, str]]:
    """(code, place) of every PrivacyError made under sordino/; codes made of parts keep their constant part."""
    root, makers = Path(sordino.__file__).parent, (*REFUSALS, "Rule", "check_range")
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if any(maker in text for maker in makers) else ():
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


@pytest.mark.slow
def test_every_refusal_is_in_the_table() -> None:
    tried = {code for code, _ in EXPERIMENTS.values()} | {call.code for call in CALLS.values()} | set(NOT_IN_A_TABLE)
    parts = {f"*{code[code.index('-') :]}" for code in tried if "-" in code} | {"*-*"}
    left = {code: place for code, place in raised_codes() if code not in tried | parts}
    assert left == {}


def test_the_tables_are_large_and_their_codes_are_many() -> None:
    assert len(EXPERIMENTS) >= 40
    assert len({code for code, _ in EXPERIMENTS.values()}) >= 30
