"""Bugs by which somebody is told what is not so, or what nobody but the owner of rows may know."""

from __future__ import annotations

from tests.mutants.hostile import DRAWN_TELLS, ONE_TELLS
from tests.mutants.mutant import one

OUTSIDE = "tests/data/test_outside.py"
HOLDING = "tests/laws/test_secret_rows.py::test_a_receipt_says_that_sizes_are_public_or_who_holds_anything"
BROUGHT = (
    "tests/laws/test_secret_rows.py::test_it_is_said_that_what_a_server_has_of_its_own_and_what_is_declared_are_public"
)
MEASURED = "tests/results/test_measured_by.py"

TOLD = [
    one(
        "trials that were dropped from a search are not named",
        "results/comparison.py",
        'path in self.folder.glob("*/seed-*") if RunFolder(path).begun',
        'path in self.folder.glob("*/seed-*") if not RunFolder(path).begun',
        "tests/results/test_comparison.py::test_runs_that_were_dropped_from_a_search_are_named",
    ),
    one(
        "a score among the metrics of the dashboard",
        "report/dashboard/run_state.py",
        "{}, run.run.experiment.rounds",
        "{}, run.run.metrics()[-1].loss",
        ONE_TELLS,
    ),
    one(
        "the traffic of a hidden cohort among the metrics of the dashboard",
        "report/dashboard/run_state.py",
        "{}, run.run.experiment.rounds",
        "{}, run.run.metrics()[-1].bytes",
        DRAWN_TELLS,
    ),
    one(
        "an evaluator's dashboard hands on what the evaluator may see",
        "report/dashboard/__init__.py",
        "WatchedRun(run.folder) if run.evaluator else run ",
        "run ",
        "tests/report/dashboard/test_prometheus.py::test_an_evaluators_dashboard_hands_on_no_more_than_any_other",
    ),
    one(
        "what rows hold lies in the public log",
        "runs/play.py",
        "(own, backend.remarks)",
        "(mine, backend.remarks)",
        f"{OUTSIDE}::test_slips_are_told_to_the_owner_and_stand_in_no_file_that_others_may_see",
    ),
    one(
        "a run begins although a clinic writes a column in its own way",
        "runs/run.py",
        "simulation.population.check()",
        "None",
        f"{OUTSIDE}::test_a_clinic_that_writes_in_its_own_way_stops_the_run_before_it_begins",
    ),
    one(
        "clients' own models are compared with a global one",
        "results/comparison.py",
        "return ways(Methods(experiment).training, experiment.evaluation.personal)",
        "return tuple(experiment.evaluation.personal)",
        f"{MEASURED}::test_a_method_that_personalises_unasked_is_not_compared_with_one_that_does_not",
    ),
    one(
        "a p-value between different ways of measuring",
        "results/comparison_table.py",
        "alike = method.measured_by == first.measured_by",
        "alike = True",
        f"{MEASURED}::test_a_table_of_both_says_whose_answers_they_are_and_gives_no_p",
    ),
    one(
        "a file in UTF-8 is read in the encoding of another",
        "data/table_files.py",
        "            _check_encoding(file, dialect)\n",
        "",
        f"{OUTSIDE}::test_a_file_in_utf_8_is_not_read_in_the_encoding_of_another",
    ),
    one(
        "a patient with several rows is said to be protected",
        "runs/public_inputs.py",
        "(SEVERAL.format(data.key),) if unsaid else",
        "(SEVERAL.format(data.key),) if False else",
        "tests/runs/test_people.py::"
        "test_where_a_key_repeats_everybody_is_told_whom_it_does_not_protect_and_the_owner_how_often",
    ),
    one(
        "a page that must not be shared looks like one that may",
        "report/run_facts.py",
        "EVALUATORS if all_ else HELD_BACK",
        '"" if all_ else HELD_BACK',
        "tests/report/test_evaluators_page.py::test_the_page_of_an_evaluator_is_stamped",
    ),
    one(
        "gaps are filled in training, and not in a prediction",
        "data/new_rows.py",
        'without_gaps(found, asked, "fill", fill,',
        'without_gaps(found, asked, "refuse", {},',
        "tests/results/test_prediction_files.py::test_a_gap_is_filled_as_in_training",
    ),
    one(
        "an empty round is said to leave a model that it moves",
        "runs/play.py",
        "if all(map(torch.equal, was, is_)):",
        "if was is not is_:",
        "tests/algorithms/test_fedopt.py::test_a_round_that_nobody_took_part_in_says_what_became_of_the_model",
    ),
    one(
        "a run that diverged is as good as any",
        "metrics/measures.py",
        "if not last.loss <= DIVERGED * lowest:",
        "if False:",
        "tests/metrics/test_ending_warnings.py::test_an_end_that_is_nothing_is_said_to_be_so",
    ),
    one(
        "a budget in a publication's count, told like one that is kept",
        "receipts/__init__.py",
        " or printed in [row.nominal_epsilon for row in rows]",
        "",
        "tests/cli/test_simulation_said.py::test_a_budget_that_a_publication_counts_says_so",
    ),
    one(
        "rows of one's own that may be scaled by each other, without a word",
        "runs/public_inputs.py",
        "own = (ALONE.format(rows),) if secret or named else ()",
        "own = ()",
        "tests/runs/test_own_parts.py::test_rows_that_were_scaled_by_each_other_are_said_to_be_made_one_by_one",
    ),
    one(
        "a table that may be scaled by its own rows, without a word",
        "runs/public_inputs.py",
        "if secret or named else ()",
        "if named else ()",
        f"{OUTSIDE}::test_that_a_run_began_tells_of_the_rows_and_its_receipt_says_so",
    ),
    one(
        "a record that was cut into windows is said to be protected",
        "runs/public_inputs.py",
        "copies = (COPIES,) if own and data.key is None else ()",
        "copies = ()",
        f"{OUTSIDE}::test_that_a_run_began_tells_of_the_rows_and_its_receipt_says_so",
    ),
    one(
        "a fraction makes other codes of all other rows of a frame",
        "data/frames.py",
        "if pa.types.is_decimal(column.type):",
        "if False:",
        "tests/data/test_frames.py::test_one_odd_cell_of_a_frame_changes_how_no_other_is_read",
    ),
    one(
        "an invitation has what the draft of a schema says of rows",
        "sites/agreement_file.py",
        'tomli_w.dumps(tomllib.loads(Path(str(data.schema)).expanduser().read_text(encoding="utf-8")))',
        'Path(str(data.schema)).expanduser().read_text(encoding="utf-8")',
        f"{OUTSIDE}::test_an_invitation_has_no_word_of_the_rows_that_a_schema_was_drafted_from",
    ),
    one(
        "the agreement has the size of a client, and no receipt says so",
        "runs/public_inputs.py",
        "sizes = ((SIZES if made.privacy.public_sizes else HOLDERS),) if secret else ()",
        "sizes = ()",
        HOLDING,
    ),
    one(
        "a client whose rows are all held back is missing, and no receipt says so",
        "runs/public_inputs.py",
        "(SIZES if made.privacy.public_sizes else HOLDERS),",
        "SIZES,",
        HOLDING,
    ),
    one(
        "own code that may fail at some rows, without a word",
        "runs/public_inputs.py",
        ", and to fail at none of them",
        "",
        "tests/runs/test_own_code.py::"
        "test_own_code_that_fails_at_some_rows_tells_them_and_every_receipt_says_that_it_is_trusted",
    ),
    one(
        "real noise from tables in short numbers",
        "privacy/noise/sources.py",
        "DIGITS = 64",
        "DIGITS = 53",
        "tests/privacy/noise/test_grid.py::"
        "test_where_numpy_has_no_long_numbers_tables_would_be_too_coarse_and_no_real_noise_is_drawn",
    ),
    one(
        "a run with real noise that begins where none can be drawn",
        "planning/planner.py",
        "            check_digits()\n",
        "            pass\n",
        "tests/runs/test_delta.py::test_a_machine_whose_tables_would_use_up_more_begins_no_run_with_real_noise",
    ),
    one(
        "a hidden cohort with a timeout",
        "planning/phase.py",
        "if self.policy.hidden and plan.everyone_pays and (engine.network.timeout_s or engine.deadline_s):",
        "if False:",
        "tests/privacy/test_unsafe_experiments.py::test_an_unsafe_experiment_does_not_start",
    ),
    one(
        "who is late between sites may follow from who was drawn, without a word",
        "receipts/receipt.py",
        "        assumptions.append(LATE)\n",
        "        pass\n",
        "tests/sites/test_most_spent.py::test_what_rests_on_the_server_is_conditional_in_a_sites_books",
    ),
    one(
        "in place of a lost folder another one randomises anew",
        "sites/join.py",
        ", more=more, secret=answers_key(asked)",
        ", more=more",
        "tests/sites/test_rolled_back.py::test_another_folder_for_a_run_draws_no_second_answers",
    ),
    one(
        "an invitation moves the cursor, and prints another plan than its own",
        "cli/__init__.py",
        'one if one.isprintable() else " " if one.isspace() else "?"',
        "one",
        "tests/sites/test_most_spent.py::test_an_invitation_prints_no_other_plan_than_its_own",
    ),
    one(
        "a site consents to a hidden cohort and is not told of who is late",
        "sites/join.py",
        ", *(LATE,) * whole.hides_cohorts",
        "",
        "tests/sites/test_most_spent.py::test_what_rests_on_the_server_is_conditional_in_a_sites_books",
    ),
    one(
        "trackers write down when each round of a secret cohort ended",
        "runs/trackers.py",
        "if step.setup.policy.secret_cohort:",
        "if False:",
        "tests/runs/test_trackers.py::test_when_a_round_of_a_secret_cohort_ended_is_told_to_no_tracker",
    ),
    one(
        "an annex tells a budget in a publication's count like one that is kept",
        "report/run_page.py",
        "count = budget.caveat(found.receipt.guarantees)",
        "count = ''",
        "tests/cli/test_simulation_said.py::test_a_budget_that_a_publication_counts_says_so",
    ),
    one(
        "while a run goes on, a budget in a publication's count is told like one that is kept",
        "cli/progress.py",
        "OWN_COUNT if plan.claimed or isinstance(plan.pricing, NominalPrice) else",
        "OWN_COUNT if plan.claimed else",
        "tests/cli/test_simulation_said.py::test_a_budget_that_a_publication_counts_says_so",
    ),
    one(
        "a monitor is told a budget in a publication's count like one that is kept",
        "report/dashboard/run_state.py",
        '{"status": "nominal"} if budget.nominal(now.spending.guarantees) else {}',
        "{}",
        "tests/cli/test_simulation_said.py::test_a_budget_that_a_publication_counts_says_so",
    ),
    one(
        "that a run began tells of rows, and no receipt says so",
        "runs/public_inputs.py",
        "fits = unread if self.source.schema is None else (FITS,)",
        "fits = unread",
        f"{OUTSIDE}::test_that_a_run_began_tells_of_the_rows_and_its_receipt_says_so",
    ),
    one(
        "that a run began tells of arrays in memory, and no receipt says so",
        "runs/public_inputs.py",
        "unread = (READS,) if secret else ()",
        "unread = ()",
        f"{OUTSIDE}::test_that_a_run_on_arrays_began_tells_of_the_rows_and_its_receipt_says_so",
    ),
    one(
        "a schema may be written from the rows, and no receipt says that it was not",
        "runs/public_inputs.py",
        "*(DECLARED,) * secret,",
        "",
        BROUGHT,
    ),
    one(
        "a table of scores tells of the server's examples, and no receipt between sites says so",
        "sites/own_data.py",
        "(*kept, *brought(self.experiment))",
        "kept",
        BROUGHT,
    ),
    one(
        "an extractor may have learned from the same people, and no receipt says so",
        "runs/public_inputs.py",
        'made.algorithm.get("extractor")',
        "None",
        BROUGHT,
    ),
]
