"""Bugs of accountants, of rounding, of lists, and of a verifier that looks away."""

from __future__ import annotations

from tests.mutants.mutant import one

VERIFY = "tests/receipts/test_verify.py"


RECEIPTS = [
    one(
        "a sentence among the guarantees is overlooked",
        "receipts/verify.py",
        'if len(stated) < len(claimed["guarantees"]):',
        "if len(stated) < len(rows):",
        f"{VERIFY}::test_a_sentence_among_the_guarantees_is_no_row_and_no_receipt_holds_with_it",
    ),
    one(
        "drift below zero pays for that of other releases",
        "accounting/claims.py",
        "Field(default=0.0, ge=0.0)",
        "Field(default=0.0)",
        "tests/accounting/test_covering.py::test_noise_is_no_closer_to_its_law_than_exact",
    ),
    one(
        "a note speaks of the client True",
        "accounting/composition.py",
        "if {*map(type, numbers)} - {int} or not 0",
        "if not 0",
        "tests/ledger/test_records.py::test_a_note_that_says_no_release_is_named_and_nothing_is_stated",
    ),
    one(
        "a cap in a first record is text",
        "ledger/books.py",
        'partial(scope.currency.amount, what="a cap")',
        "tuple",
        "tests/ledger/test_records.py::test_a_first_record_of_other_types_founds_no_ledger",
    ),
    one(
        "noise on a grid is found to lose what bounds it from above",
        "audits/trained.py",
        "one = Gaussian(self.noise.noise_multiplier / factor)",
        "one = DiscreteGaussian(self.noise.noise_multiplier / factor)",
        "tests/audit/test_trained.py::test_no_more_is_lost_than_noise_on_a_grid_loses",
    ),
    one(
        "a score stands beside a real epsilon as if that covered it",
        "runs/listing.py",
        'return in_short(row, simulated) + ("" if simulated else f"; {NOT_OF_SCORES}")',
        "return in_short(row, simulated)",
        "tests/cli/test_simulation_said.py::test_no_real_epsilon_stands_beside_a_score_that_it_seems_to_cover",
    ),
    one(
        "every hidden cohort is one in which all pay",
        "receipts/verify.py",
        "if setup.policy.hidden and again.plan.everyone_pays:",
        "if setup.policy.hidden:",
        f"{VERIFY}::test_a_receipt_holds_where_coins_draw_and_only_the_drawn_pay",
    ),
    one(
        "a signature of an envelope is not looked at",
        "receipts/signature.py",
        "key.verify(bytes.fromhex(values[SIGNED]), signed_bytes(receipt))",
        "pass",
        "tests/receipts/test_exports.py::test_an_envelope_of_what_does_not_hold_is_not_made",
    ),
    one(
        "rounding in Fourier transforms takes nothing of delta",
        "accounting/accountants.py",
        "ROUNDING = 2.0**-50",
        "ROUNDING = 0.0",
        "tests/accounting/test_accountants.py::test_no_epsilon_of_composed_losses_is_below_the_exact_one",
    ),
    one(
        "noise on the grid is rounded to the nearest scale",
        "privacy/noise/sources.py",
        "math.ceil(scale / step * 1e9) / 1e9",
        "round(scale / step, 9)",
        "tests/privacy/noise/test_grid.py::test_no_noise_is_narrower_than_what_is_priced",
    ),
    one(
        "clients of a secret cohort share a call",
        "runs/setup.py",
        "if self.policy.secret_cohort or",
        "if",
        "tests/privacy/test_absent.py::test_in_a_secret_cohort_nobody_else_decides_how_an_upload_is_rounded",
    ),
    one(
        "clients of secret sizes share a call",
        "runs/setup.py",
        " or (self.policy.real and not self.experiment.privacy.public_sizes):",
        ":",
        "tests/privacy/test_absent.py::test_a_secret_size_does_not_decide_how_the_uploads_of_others_are_rounded",
    ),
    one(
        "a document of a site counts the units of all sites",
        "receipts/documents.py",
        "if among is None or k in among]",
        "]",
        "tests/receipts/test_registry.py::test_a_record_of_a_site_counts_its_own_units_alone",
    ),
    one(
        "a receipt of an earlier stop is shown as the run's",
        "receipts/newest.py",
        "return not copy.execute(LATER, later).fetchone()",
        "return True",
        f"{VERIFY}::test_a_receipt_of_a_run_that_went_on_is_called_that_in_one_line",
    ),
    one(
        "without the author's code a simulation may call itself real",
        "receipts/verify.py",
        'WITHOUT_CODE: tuple[str, ...] = ("run", "simulated", ',
        'WITHOUT_CODE: tuple[str, ...] = ("run", ',
        f"{VERIFY}::test_without_the_authors_code_what_the_files_tell_is_held_against_the_receipt",
    ),
    one(
        "a list adds up only runs that have a receipt",
        "runs/listing.py",
        "(one.guarantee or not one.promise)",
        "one.guarantee",
        "tests/cli/test_dead_ends.py::test_one_file_under_two_names_adds_up",
    ),
    one(
        "a list takes two spellings of a file for two files",
        "runs/listing.py",
        "{os.path.realpath(place)}",
        "{place}",
        "tests/cli/test_dead_ends.py::test_one_file_under_two_names_adds_up",
    ),
    one(
        "convex steps from weights that are larger than rounding allows",
        "privacy/readers/convex_stable.py",
        "FAR = 100.0",
        "FAR = 1e100",
        "tests/privacy/readers/test_convex_stable.py::test_large_weights_do_not_break_the_bound",
    ),
    one(
        "convex steps on features that are longer than rounding allows",
        "privacy/readers/convex_stable.py",
        "LONGEST = 1e3",
        "LONGEST = 1e100",
        "tests/privacy/test_refusals.py::test_an_unsafe_call_is_refused[a radius at which rounding outweighs an example]",
    ),
    one(
        "small numbers of half precision may be rounded up behind a clip",
        "privacy/uplink/stages.py",
        "torch.finfo(y.dtype).bits > 16",
        "True",
        "tests/privacy/uplink/test_sensitivity.py::test_many_small_numbers_of_half_precision_are_not_all_rounded_up",
    ),
    one(
        "a sampled discrete Gaussian that costs nothing at orders between two integers",
        "accounting/mechanisms.py",
        "known.get(order, math.inf)",
        "known.get(order, 0.0)",
        "tests/accounting/test_accountants.py::test_a_sampled_discrete_gaussian_is_known_at_whole_orders_alone",
    ),
    one(
        "accountants that contradict each other pass",
        "receipts/verify.py",
        " *_contradicted(again),",
        "",
        f"{VERIFY}::test_a_receipt_does_not_hold_where_what_is_called_exact_is_not",
    ),
    one(
        "an epsilon a hundredth below the ledger's passes",
        "receipts/verify.py",
        "rel_tol=1e-9",
        "rel_tol=1e-2",
        f"{VERIFY}::test_the_limits_of_an_exact_epsilon_need_not_be_told_and_no_other_bound_may_be_added",
    ),
    one(
        "noise of a seed passes for noise of the system",
        "receipts/verify.py",
        "elif parsed.noise != noise:",
        "elif False:",
        f"{VERIFY}::test_noise_that_is_not_that_of_the_experiment_is_named",
    ),
    one(
        "the releases of a preparation are not planned again",
        "receipts/verify.py",
        "for phase_setup in (*setup.preparation, setup):",
        "for phase_setup in (setup,):",
        "tests/runs/test_phases.py::test_a_release_of_the_preparation_that_is_not_planned_is_named",
    ),
    one(
        "a ledger by itself promises what shared scores have told",
        "receipts/receipt.py",
        "if whose is not None and whose.shares_scores:",
        "if False:",
        "tests/receipts/test_lifetime.py::"
        "test_a_site_that_shares_scores_promises_no_more_by_its_ledger_than_by_its_receipt",
    ),
    one(
        "a receipt without its ledger is printed like any other",
        "receipts/folder.py",
        "(*found.assumptions, UNCOMPARED)",
        "found.assumptions",
        "tests/receipts/test_verify.py"
        "::test_a_receipt_without_its_ledger_is_printed_as_one_that_nothing_was_compared_with",
    ),
    one(
        "the curve on the page of a site promises what shared scores have told",
        "results/__init__.py",
        "if scored and (subject.unit, subject.adversary)",
        "if False and (subject.unit, subject.adversary)",
        "tests/sites/test_most_spent.py::test_shared_scores_leave_nothing_of_test_examples_nor_of_a_client",
    ),
    one(
        "rounds of the training are counted from the first of a preparation",
        "results/__init__.py",
        "[0 if (op := Op.of(entry.op)).phase else op.round + 1 for entry in entries]",
        "[t for t, _ in enumerate(entries, 1)]",
        "tests/results/test_one_run.py::test_an_epsilon_stands_beside_the_round_that_its_ledger_entry_names",
    ),
    one(
        "rounds of a preparation make an old receipt look like the newest",
        "runs/listing.py",
        "if training_rounds(found) < len(rows)",
        "if found.rounds < len(rows)",
        "tests/receipts/test_run_folders.py"
        "::test_without_its_ledger_a_receipt_of_an_earlier_stop_is_known_by_its_rounds",
    ),
]
