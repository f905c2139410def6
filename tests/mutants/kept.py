"""Bugs of what is kept on a disk: keys, ledgers, rows and receipts."""

from __future__ import annotations

from tests.mutants.mutant import one

SHARED = "tests/runs/test_shared_ledger.py"

KEPT = [
    one(
        "a short key is taken for a key",
        "runs/private.py",
        "if len(found) != size:",
        "if False:",
        f"{SHARED}::test_a_key_that_is_not_whole_is_refused",
    ),
    one(
        "every run goes on with the key that it drew itself",
        "runs/population.py",
        "cls(experiment, known.data_key if data_key is None else data_key)",
        "cls(experiment, known.data_key)",
        f"{SHARED}::test_runs_that_begin_at_once_found_one_ledger_under_one_key",
    ),
    one(
        "a ledger that is gone is begun again",
        "ledger/storage.py",
        "if left and not os.path.lexists(place):",
        "if False:",
        f"{SHARED}::test_a_ledger_that_is_gone_is_not_begun_again",
    ),
]
