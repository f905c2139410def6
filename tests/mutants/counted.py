"""Bugs of what is counted or not, of public numbers, and of what follows from a claim."""

from __future__ import annotations

from tests.mutants.mutant import one

COUNTED = "tests/laws/test_counted_or_not.py"
READERS = "tests/privacy/readers"
COVERING = "tests/accounting/test_covering.py"
COMPRESSION = "tests/privacy/uplink/test_compression.py"


COUNTED_OR_NOT = [
    one(
        "a space makes two persons of one",
        "data/dataset.py",
        '" ".join(visible.split())',
        "name",
        "tests/data/test_tabular.py::test_one_person_in_two_spellings_is_refused",
    ),
    one(
        "a site divides by the rows at hand",
        "engine/site.py",
        "size = len(own.y) if site.sizes is None else site.sizes[k]",
        "size = len(own.y)",
        f"{COUNTED}::test_noise_that_is_scaled_by_the_rows_at_hand_is_found_out",
    ),
    one(
        "batches of the rows at hand",
        "privacy/readers/noisy_gradient.py",
        "n, reader = self.size, self._reader",
        "n, reader = len(self._examples.y), self._reader",
        f"{READERS}/test_sensitivity.py::test_a_reader_moves_by_its_sensitivity_and_never_further",
    ),
    one(
        "all rows in one pass, where one may be missing",
        "privacy/readers/__init__.py",
        'return reader.neighbours == "zero_out" and is_real(grant.source.name)',
        "return False",
        f"{READERS}/test_missing_example.py::test_one_example_less_moves_a_sum_by_its_clip",
    ),
    one(
        "cells of the rows at hand",
        "privacy/readers/episodes.py",
        "reader, n = self._reader, self.size",
        "reader, n = self._reader, len(self._examples.y)",
        f"{READERS}/test_episodes.py::test_an_example_that_is_not_there_leaves_the_others_in_their_cells",
    ),
    one(
        "a sample is amplified for a unit that is replaced",
        "accounting/events.py",
        'if neighbours != "zero_out":',
        "if False:",
        "tests/accounting/test_accountants.py::test_refusals",
    ),
    one(
        "replaced in one step",
        "accounting/composition.py",
        'return 2 if how == "zero_out" else None',
        'return 1 if how == "zero_out" else None',
        f"{COVERING}::test_a_claim_covers_what_so_many_of_its_changes_reach",
    ),
    one(
        "a sensing bound without the least rate",
        "privacy/uplink/sensing.py",
        "range(round(10 * self.least), round(10 * self.most) + 1)",
        "range(round(10 * self.least) + 1, round(10 * self.most) + 1)",
        f"{COMPRESSION}::test_the_bound_holds_at_every_rate_that_may_come_with_a_model",
    ),
    one(
        "a site believes the rates of a server",
        "privacy/uplink/stages.py",
        "if not all(least <= number <= most for number in told):",
        "if False:",
        f"{COMPRESSION}::test_the_bound_holds_at_every_rate_that_may_come_with_a_model",
    ),
    one(
        "rates are looked at after the round was paid",
        "sites/site_accounts.py",
        "        self._check_learned(phase, command, asked.messages)\n",
        "",
        "tests/sites/test_site_accounts.py::test_a_rate_that_the_bound_is_not_for_is_refused_and_costs_nothing",
    ),
    one(
        "two steps at e^epsilon delta",
        "accounting/composition.py",
        "if math.fsum(math.exp(i * epsilon) for i in range(number)) * held <= delta:",
        "if math.exp((number - 1) * epsilon) * held <= delta:",
        f"{COVERING}::test_two_steps_are_never_below_the_exact_price",
    ),
    one(
        "a person costs k epsilons at the delta of one example",
        "accounting/statement.py",
        "of_one_change(promise, delta, rows)",
        "of_one_change(promise, delta, 1)",
        f"{COVERING}::test_a_person_is_never_priced_below_the_exact_cost_of_all_its_rows",
    ),
    one(
        "receipts between sites have no row for a person",
        "sites/agreement_file.py",
        "            **data.about,\n",
        "            **data.about | {'rows_per_key': 1},\n",
        "tests/sites/test_persons.py::test_every_receipt_has_a_row_for_a_person_and_says_that_rows_elsewhere_add_to_it",
    ),
    one(
        "a search is priced for the fewest rows of a person",
        "results/sweeps.py",
        "rows_per_key=max(",
        "rows_per_key=min(",
        "tests/results/test_cost_of_a_search.py::test_a_search_over_declared_persons_says_what_all_rows_of_one_lose",
    ),
    one(
        "the factor of a promise rounded to the nearest",
        "accounting/words.py",
        "_cut(factor, 2 if factor < 10 else 3, math.ceil)",
        "_cut(factor, 2 if factor < 10 else 3, round)",
        "tests/accounting/test_words.py::test_the_factor_that_is_never_exceeded_is_rounded_up",
    ),
    one(
        "what two runs of a search draw once counts as one draw",
        "results/sweeps.py",
        "of_a_run(text, str(i))",
        "text",
        "tests/results/test_cost_of_a_search.py::test_what_each_run_draws_once_is_drawn_by_each",
    ),
    one(
        "an audit attacks the looser promise about a person",
        "audits/trained.py",
        "any(offer.unit == row.unit for offer in offers)",
        "bool(offers)",
        "tests/audit/test_trained.py::test_a_row_about_a_person_takes_the_place_of_no_row_that_is_attacked",
    ),
    one(
        "a person may have more rows than are counted",
        "data/columns.py",
        "if rows > said.rows:",
        "if False:",
        "tests/runs/test_people.py::test_more_rows_of_one_person_than_are_declared_are_refused",
    ),
    one(
        "a row that is as sure as its surest client",
        "accounting/statement.py",
        "status = max((each.status for each in costs), key=STATUSES.index)\n    if not",
        "status = min((each.status for each in costs), key=STATUSES.index)\n    if not",
        f"{COVERING}::test_a_row_is_no_surer_than_its_least_sure_client",
    ),
    one(
        "an epsilon while it runs that is as sure as its surest client",
        "accounting/statement.py",
        "status = max((each.status for each in costs), key=STATUSES.index)\n                found",
        "status = min((each.status for each in costs), key=STATUSES.index)\n                found",
        f"{COVERING}::test_a_row_is_no_surer_than_its_least_sure_client",
    ),
    one(
        "a plan forgets what a preparation spends",
        "planning/planner.py",
        "return [*self._before, *(",
        "return [*(",
        "tests/budget/test_phases.py::test_a_plan_of_phases_is_what_the_receipt_says",
    ),
    one(
        "a unit that is added loses like one that is removed",
        "accounting/mechanisms.py",
        "AdjacencyType.ADD if added else AdjacencyType.REMOVE",
        "AdjacencyType.REMOVE",
        "tests/accounting/test_accountants.py::test_losses_are_those_of_dp_accounting_to_the_bit[gaussian-1.0-0.1]",
    ),
    one(
        "a question in numbers plans for other clients than it asks about",
        "planning/calculator.py",
        'alike(records, experiment.partition["clients"])',
        'alike(records + 1, experiment.partition["clients"])',
        "tests/cli/test_privacy.py::test_the_numbers_of_a_plan_without_data",
    ),
    one(
        "a typed price that forgets its reads",
        "budget/plan.py",
        "cost([reads * part for part in self.pricing.cost(self.fixed)])",
        "cost([part for part in self.pricing.cost(self.fixed)])",
        "tests/budget/test_plan.py::test_a_typed_noise_pays_for_every_read",
    ),
    one(
        "noise that is planned for all of delta",
        "budget/plan.py",
        "return self.delta - max(self.lacking, self.aside)",
        "return self.delta",
        "tests/runs/test_delta.py::test_the_delta_of_a_receipt_is_the_one_that_was_granted",
    ),
    one(
        "runs that share a ledger and not the room for what their noise lacks",
        "runs/run.py",
        "whole.lacks(budget.epsilon, before)",
        "whole.lacks(budget.epsilon)",
        "tests/runs/test_delta.py::test_a_ledger_has_no_room_for_more_noise_than_its_runs_set_aside",
    ),
    one(
        "a search at the delta of one of its runs",
        "results/sweeps.py",
        "delta=whole, epsilon=epsilon",
        "delta=delta, epsilon=epsilon",
        "tests/results/test_cost_of_a_search.py::test_delta_has_what_the_noise_of_all_configurations_lacks",
    ),
    one(
        "typed noise for which nobody looks at delta",
        "planning/planner.py",
        "if found > delta:",
        "if found > 1.0:",
        "tests/runs/test_delta.py::test_typed_noise_that_needs_a_larger_delta_is_refused",
    ),
    one(
        "what the tables lack is on one side",
        "accounting/statement.py",
        "return (1 + math.exp(min(epsilon, 700.0))) * drift if drift else 0.0",
        "return drift if drift else 0.0",
        f"{COVERING}::test_what_the_noise_tables_lack_is_taken_out_of_delta",
    ),
    one(
        "what an adaptive schedule has spent is called proved",
        "planning/accounts.py",
        ", *self.plan.conditions(claim.unit)",
        "",
        "tests/runs/test_spending.py::test_spending_that_follows_from_releases_is_not_called_proved[adaptive-conditional]",
    ),
]
