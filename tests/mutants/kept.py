"""Bugs of what is kept on a disk: keys, ledgers, rows and receipts."""

from __future__ import annotations

from tests.mutants.mutant import one

DAMAGED = "tests/stories/test_damaged_runs.py::test_a_damaged_run_is_told_in_a_line_with_what_to_do"
SHARED = "tests/runs/test_shared_ledger.py"
CRASHES = "tests/ledger/test_crashes.py"
RECORDS = "tests/ledger/test_records.py"
SYSTEMS = "tests/ledger/test_systems.py"
ENCRYPTED = "tests/sites/test_encrypted_sums.py"
ROLLED = "tests/sites/test_rolled_back.py"

KEPT = [
    one(
        "a stop forgets the rounds since the last checkpoint",
        "runs/rounds.py",
        "if self.unsaved is not None:",
        "if False:",
        "tests/runs/test_resume.py::test_control_c_stops_at_a_point_from_which_it_continues[loop]",
    ),
    one(
        "a spent budget forgets the rounds since the last checkpoint",
        "runs/rounds.py",
        "            self._save_last()\n            raise",
        "            raise",
        "tests/runs/test_spending.py::test_a_run_whose_budget_is_spent_keeps_its_last_round",
    ),
    one(
        "single uploads are refused when a round has been paid",
        "planning/prices.py",
        "if reads_each and uplink.sum_only:",
        "if False:",
        "tests/laws/test_accepted.py::test_what_no_round_could_compute_is_refused_before_a_folder"
        "[fedgen-noise on the sum-aggregate-only]",
    ),
    one(
        "a loss of private and public examples together asks for batches",
        "synthesis/vhl.py",
        'wants = "single examples"',
        'wants = "batches"',
        "tests/laws/test_accepted.py::test_what_no_round_could_compute_is_refused_before_a_folder"
        "[vhl-noise on gradients-reader-does-not-give]",
    ),
    one(
        "what clients keep lies beside what may be shown",
        "runs/site_process.py",
        "RunFolder(Path(place)).checkpoints / ",
        "Path(place) / ",
        "tests/transport/test_pipes.py::test_what_clients_keep_lies_among_what_is_not_shown",
    ),
    one(
        "a client process that leaves a note of its labels",
        "runs/site_process.py",
        "    kept = RunFolder",
        "    print(mine.population.dataset.train.y.sum(), file=open(Path(place) / f'labels-{first}.txt', 'w'))\n"
        "    kept = RunFolder",
        "tests/laws/test_adversary.py::test_client_processes_leave_nothing_that_tells_one_visit_from_another"
        "[gaussian_gdp]",
    ),
    one(
        "figures of private scores look like those that may be shown",
        "report/figures.py",
        "facts.notice.startswith(EVALUATOR)",
        "False",
        "tests/report/test_evaluators_page.py::test_figures_of_scores_that_no_epsilon_covers_are_for_their_owner[True]",
    ),
    one(
        "the page of an evaluator is the report of a copy without a private folder",
        "report/run_page.py",
        "evaluator and run.experiment.privacy.real",
        "evaluator and run.private.is_dir()",
        "tests/report/test_evaluators_page.py::test_in_a_copy_of_the_files_that_may_be_shown_it_is_no_report",
    ),
    one(
        "the folder of a new ledger is not synced",
        "ledger/storage.py",
        "            return\n    sync(place.parent)\n",
        "            return\n",
        f"{CRASHES}::test_after_any_power_cut_what_was_told_is_kept_and_nothing_else",
    ),
    one(
        "the second record of a commit hangs on the one before the first",
        "ledger/ledger.py",
        "head = link(head, body)",
        "head = link(self._books.head, body)",
        "tests/ledger/test_ledger.py::test_states_go_forward_and_each_is_a_record",
    ),
    one(
        "a checkpoint is a copy of the state before it is a file",
        "engine/checkpoint.py",
        "*(_bytes_of(leaf) for _, leaf in leaves)",
        "*(bytes(_bytes_of(leaf)) for _, leaf in leaves)",
        "tests/engine/test_checkpoint.py::test_a_checkpoint_is_a_file_of_the_library_and_copies_no_state",
    ),
    one(
        "a process at work keeps their messages from the others",
        "transport/message.py",
        "self._unsent[to].put(message)",
        "write(self._processes[to].stdin, message())",
        "tests/transport/test_pipes.py::test_a_process_at_work_keeps_no_message_from_the_others",
    ),
    one(
        "whoever asks a process that has ended once more waits for ever",
        "transport/message.py",
        "            self._came.put((peer, frame))  # whoever",
        "            # whoever",
        "tests/transport/test_pipes.py::test_a_worker_that_dies_is_told_and_the_run_goes_on_later",
    ),
    one(
        "a file is renamed before it is synced",
        "ledger/files.py",
        "                os.fsync(file.fileno())\n",
        "",
        f"{CRASHES}::test_a_file_is_replaced_whole_or_not_at_all",
    ),
    one(
        "bytes behind a record's end are not looked at",
        "accounting/facts.py",
        "read_json = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_number).decode",
        "read_json = lambda text: json.JSONDecoder(object_pairs_hook=_once).raw_decode(text)[0]",
        f"{RECORDS}::test_what_could_be_read_in_two_ways_is_no_record",
    ),
    one(
        "of a name that a record has twice the last value counts",
        "accounting/facts.py",
        "if len(made := dict(pairs)) < len(pairs):",
        "if not isinstance(made := dict(pairs), dict):",
        f"{RECORDS}::test_what_could_be_read_in_two_ways_is_no_record",
    ),
    one(
        "a record may refund",
        "ledger/books.py",
        'self.scope.currency.charge(tuple(amount), what="a charge")',
        "pass",
        f"{RECORDS}::test_what_could_be_read_in_two_ways_is_no_record",
    ),
    one(
        "a short key is taken for a key",
        "receipts/private.py",
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
        "an interval of eight trials as if there were thousands",
        "attacks/methods/members.py",
        "stdtrit(trials - 1, alpha / 2)",
        "stdtrit(1e9, alpha / 2)",
        "tests/audit/test_separation.py::test_intervals_of_eight_are_those_of_eight",
    ),
    one(
        "a ledger that has two names",
        "ledger/storage.py",
        "if place.stat().st_nlink > 1:",
        "if place.stat().st_nlink < 1:",
        "tests/ledger/test_storage.py::test_a_ledger_with_a_second_name_is_refused",
    ),
    one(
        "a ledger that is gone is begun again",
        "ledger/storage.py",
        "if left and not os.path.lexists(place):",
        "if False:",
        f"{SHARED}::test_a_ledger_that_is_gone_is_not_begun_again",
    ),
    one(
        "the locks of Windows lock nothing",
        "ledger/files.py",
        "msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)",
        "pass",
        f"{SYSTEMS}::test_of_two_who_open_a_file_one_is_refused",
        f"{SYSTEMS}::test_a_run_folder_and_a_ledger_have_one_writer",
    ),
    one(
        "nobody reads what Windows has locked",
        "ledger/files.py",
        "_LOCKED = 1 << 30",
        "_LOCKED = 0",
        f"{SYSTEMS}::test_of_two_who_open_a_file_one_is_refused",
    ),
    one(
        "a directory is synced where none can be opened",
        "ledger/files.py",
        'if not hasattr(os, "O_DIRECTORY"):',
        "if False:",
        f"{SYSTEMS}::test_without_all_that_a_run_has_the_same_model",
    ),
    one(
        "an edited receipt is shown",
        "receipts/seal.py",
        "(said,)).fetchone():",
        "(said,)).fetchone() or (0,):",
        f"{DAMAGED}[privacy.json-smaller-show-5-its ledger has sealed another one]",
    ),
    one(
        "what was found before the training is not sealed",
        "receipts/seal.py",
        "(*FILES, *_tables(folder))",
        "FILES",
        "tests/runs/test_phases.py::test_what_the_server_found_before_the_training_belongs_to_the_receipt",
    ),
    one(
        "a file of zeros has no rows",
        "receipts/folder.py",
        'if cut.startswith("\\0") and not lines:',
        "if False:",
        f"{DAMAGED}[metrics.jsonl-zeros-show-6-full of zeros]",
    ),
    one(
        "a page outlives the run that it shows",
        "receipts/receipt.py",
        "elif mine.page_file.is_file():",
        "elif False:",
        "tests/stories/test_stopped_runs.py::test_what_was_made_of_it_does_not_outlive_it[False]",
    ),
    one(
        "a resumed run founds a ledger that is not there",
        "runs/run.py",
        "if experiment.privacy.ledger or mine.ledger.exists():",
        "if mine.ledger.exists():",
        "tests/config/test_paths.py::test_where_there_is_no_ledger_none_is_made",
    ),
    one(
        "a side that has signed begins with a server that shows it nothing",
        "sites/site_accounts.py",
        "self._shown = self._shown or bool(returned) or not self._place()",
        "self._shown = True",
        f"{ROLLED}::test_a_site_that_has_signed_begins_with_no_server_that_shows_it_nothing",
    ),
    one(
        "a key holder opens sums before it was shown what it has signed",
        "sites/key_holder.py",
        "            self.head.require()\n",
        "",
        f"{ENCRYPTED}::test_a_holder_that_was_started_again_opens_nothing_before_it_was_shown_what_it_has_signed",
    ),
    one(
        "a key holder goes on from an older copy",
        "sites/key_holder.py",
        "if signed.length > len(self._opened) or signed.head not in self._opened.values():",
        "if False:",
        f"{ENCRYPTED}::test_a_second_sum_of_a_round_is_not_opened_not_even_after_a_restart",
    ),
    one(
        "a key holder signs a sum that its folder does not know yet",
        "sites/key_holder.py",
        "opened = {**self._opened, name: digest}",
        "self._opened[name] = digest; opened = self._opened",
        f"{ENCRYPTED}::test_a_holder_signs_no_sum_that_its_full_disk_did_not_take",
    ),
    one(
        "a scale for the mean shrinks with the clients that are left",
        "privacy/uplink/coordinate_laplace.py",
        "self.beta * max(math.fsum(weights), self._least)",
        "self.beta * math.fsum(weights)",
        "tests/algorithms/test_lc_fl.py::test_a_client_alone_in_its_cohort_has_the_noise_that_is_claimed",
    ),
    one(
        "a light client adds more than published noise is for",
        "privacy/uplink/coordinate_laplace.py",
        "links.per_coordinate is not None and _weighs_first(links)",
        "False",
        "tests/privacy/test_unsafe_experiments.py::test_an_unsafe_experiment_does_not_start["
        "weights before the clip, under noise as published]",
    ),
    one(
        "delta is held against the noise that a budget pays for alone",
        "planning/prices.py",
        "return [claim for claim in made if claim.finite and claim.event != NoAccess()]",
        "return []",
        "tests/privacy/test_unsafe_experiments.py::test_an_unsafe_experiment_does_not_start["
        "delta of more than one over the images, under randomised response]",
    ),
    one(
        "clients at other rates pay from the same account",
        "budget/plans_by_budget.py",
        "rates by budget {who} z=",
        "rates by budget z=",
        "tests/budget/test_client_budgets.py::test_other_rates_for_the_same_clients_are_another_currency",
    ),
    one(
        "an adaptive schedule is planned as if training never stalled",
        "planning/planner.py",
        "stalled=True",
        "stalled=False",
        "tests/budget/test_plan.py::test_no_run_costs_more_than_an_adaptive_schedule_is_planned_to",
    ),
    one(
        "a plan is of those whom its own coins drew",
        "planning/planner.py",
        "(books.policy.secret_cohort and not books.plan.everyone_pays)",
        "False",
        "tests/budget/test_plan.py::test_secret_coins_may_draw_anybody",
    ),
    one(
        "a record may refuse who could pay",
        "ledger/books.py",
        "if not refused <= asked.keys() - self.granted(asked):",
        "if False:",
        "tests/ledger/test_records.py::test_what_could_be_read_in_two_ways_is_no_record[who could pay is refused]",
    ),
    one(
        "who could not pay counts as if it had taken part",
        "ledger/books.py",
        "return canonical(told._asdict()) if self.refused else self.note",
        "return self.note",
        "tests/runs/test_shared_ledger.py::test_who_could_not_pay_loses_nothing",
    ),
    one(
        "one noise for all budgets, that of the largest",
        "budget/plan.py",
        "return self.personal is None and isinstance(self.schedule, Uniform)",
        "return isinstance(self.schedule, Uniform)",
        "tests/budget/test_client_budgets.py::test_nobody_is_planned_to_lose_more_than_it_granted[dp_sgd-uniform]",
    ),
    one(
        "noise that no budget pays for is drawn again",
        "runs/witness.py",
        "any(draws_afresh(claim.event) for claim in told)",
        "False",
        "tests/runs/test_witness.py::test_noise_that_no_budget_pays_for_is_not_drawn_again_either",
    ),
    one(
        "single uploads are read beside published noise of the server",
        "privacy/uplink/__init__.py",
        "return self.central or self.per_coordinate is not None",
        "return self.central",
        "tests/privacy/test_refusals.py::test_an_unsafe_call_is_refused[one upload of a sum with published noise]",
    ),
]
