"""Bugs of clients that are computed in one call or by processes that help, and added up where they are computed."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, one

ADDED = "tests/engine/test_added_up.py"
OFTEN = "tests/engine/test_steered.py::test_how_often_somebody_took_part_divides_only_where_it_decides"
TRIED = "tests/engine/test_steered.py::test_a_trial_finds_the_differences_that_a_stack_bears"
FORKS = "tests/engine/test_forks.py"
TRAINER = "tests/algorithms/test_trainer.py"
CLEAN = "tests/algorithms/test_clean_process.py"


TOGETHER = [
    one(
        "a stack that counts for everybody what the first has done",
        "engine/stack.py",
        "[leaf.dim() > 0 or counts for leaf",
        "[leaf.dim() > 0 for leaf",
        OFTEN,
    ),
    one(
        "a trial that believes every stack",
        "engine/stack.py",
        "if not all(_near(a, b)",
        "if False and not all(_near(a, b)",
        TRIED,
    ),
    one(
        "a trial of the first round alone",
        "engine/stack.py",
        "else leaf + 1, first)",
        "else leaf, first)",
        TRIED,
    ),
    one(
        "a step that may be nobody's, and is not told so",
        "privacy/readers/padded_shard.py",
        "if batch.unasked:",
        "if False:",
        "tests/privacy/readers/test_padded_shard.py::test_what_only_one_client_can_answer_ends_the_stack",
    ),
    one(
        "a pooling that sends a gradient to the smaller of two",
        "tasks/written_out_backward.py",
        "threshold_backward.grad_input(g, b - a, 0",
        "threshold_backward.grad_input(g, a - b, 0",
        "tests/tasks/test_written_out_backward.py::test_a_pooling_by_halves_is_the_kernel_s_to_the_bit",
    ),
    one(
        "a large product without the rows that are left over",
        "fast/__init__.py",
        "yield slice(start, rows), False",
        "yield slice(start, start), False",
        "tests/fast/test_products.py::test_products_of_matrices_that_lie_across",
    ),
    one(
        "clients of a stack whose hidden dimension lies elsewhere",
        "fast/__init__.py",
        "one.movedim(at, 0)",
        "one",
        "tests/fast/test_products.py::test_a_rule_sees_all_clients_and_leaves_vmap_as_it_was",
    ),
    one(
        "a fork that is fed to the end, and waited for",
        "engine/forks.py",
        "return given <= kept + unit / 100",
        "return theirs <= own + unit / 2",
        "tests/engine/test_forks.py::test_a_unit_goes_to_whoever_ends_the_round_sooner",
    ),
    one(
        "all clients of a round held at once",
        "engine/site.py",
        "if self._ordered and len(terms) <= WINDOW:",
        "if len(terms) <= WINDOW:",
        f"{ADDED}::test_all_clients_of_a_round_are_held_only_where_they_are_put_in_order",
    ),
    one(
        "the first of many draws, whether it will do or not",
        "privacy/readers/episodes.py",
        "first = int(good.argmax()) if good.any() else -1",
        "first = 0 if good.any() else -1",
        "tests/synthesis/test_fedavg_prototypes.py::test_many_draws_at_once_are_those_of_one_after_the_other",
    ),
    one(
        "single uploads asked of helpers who add",
        "engine/site.py",
        "alone = now.apart or now.adds != self.adds",
        "alone = now.apart",
        f"{ADDED}::test_single_uploads_of_a_site_that_adds_are_not_asked_of_helpers_who_add",
    ),
    one(
        "added up though single uploads are looked at",
        "runs/simulation.py",
        " and not reads_single_uploads(setup)",
        "",
        f"{ADDED}::test_nobody_is_added_up_who_is_looked_at",
    ),
    one(
        "a unit that takes what is no number",
        "engine/site.py",
        "if held and not tree.finite(total) and not all(tree.finite(upload) for _, upload in held):",
        "if not clients:",
        f"{ADDED}::test_an_upload_that_is_no_number_is_told_by_its_client",
    ),
    one(
        "a personal clip that a unit does not hold",
        "engine/site.py",
        "reach=reach.__getitem__",
        "reach=lambda client: 1.0",
        f"{ADDED}::test_who_breaks_the_promise_of_a_clip_counts_for_nothing_in_a_unit",
    ),
    # processes that help
    one(
        "a fork writes out what its asker tells by coefficients",
        "fast/parallel.py",
        "if isinstance(leaf, Span) and leaf.index is EVERY:",
        "if False:",
        f"{FORKS}::test_forks_change_no_byte[coefficients]",
    ),
    one(
        "a fork keeps what its asker holds open",
        "engine/forks.py",
        "                    os.close(number)",
        "                    pass",
        f"{FORKS}::test_a_fork_ends_with_its_asker_and_holds_nothing_open",
    ),
    one(
        "answers lie where those of the unit before lay",
        "fast/parallel.py",
        "if t != self._round:",
        "if True:",
        f"{FORKS}::test_what_is_said_twice_in_a_round_lies_in_two_places",
    ),
    one(
        "a training function reads on where that of the client before has stopped",
        "privacy/readers/function_reader.py",
        "empty_input()  # where one client",
        "pass  # where one client",
        "tests/algorithms/test_trainer.py::test_it_has_nothing_to_read",
    ),
    one(
        "a training function that is called where it has been called before",
        "privacy/readers/function_reader.py",
        "return _in_fresh_process(lambda: to(rows))",
        "return to(rows)",
        f"{TRAINER}::test_nothing_of_one_client_reaches_the_next",
    ),
    one(
        "a training function that draws what nobody draws again",
        "algorithms/trainer.py",
        "with seeded(seed), torch.enable_grad()",
        "with torch.enable_grad()",
        f"{TRAINER}::test_draws_follow_the_run_the_round_and_the_client",
    ),
    one(
        "a training function that is believed to take no rows of others",
        "planning/accounts.py",
        "map(self.algorithm.rests_on, self.own_code)",
        "()",
        f"{TRAINER}::test_the_condition_says_what_the_process_leaves_open",
    ),
    one(
        "a guarantee for examples that a training function gets",
        "planning/prices.py",
        'if asked == "rows" and',
        "if False and",
        f"{TRAINER}::test_other_readers_are_refused",
    ),
    Mutant(
        "a clean process that computes in itself",
        "privacy/readers/function_reader.py",
        (
            ("answer(lambda: compute(stream.read()), end, parent)", "answer(lambda: found, end, parent)"),
            (
                "(end,), parent = ends, os.getpid()",
                '(end,), parent = ends, os.getpid()\n        found = compute(open(end, "rb", closefd=False).read())',
            ),
        ),
        (f"{CLEAN}::test_where_no_fork_computes_a_clean_process_does",),
    ),
    one(
        "a clean process that draws without the client's seed",
        "algorithms/clean_process.py",
        'header["round"], header["seed"]',
        'header["round"], 0',
        f"{CLEAN}::test_where_no_fork_computes_a_clean_process_does",
    ),
    one(
        "a text classifier whose rules are tried on padding alone",
        "tasks/supervised.py",
        "if (most := self.largest_token) > 0:",
        "if (most := self.largest_token) < 0:",
        "tests/tasks/test_language.py::test_the_rules_of_a_text_classifier_are_tried_on_tokens[False]",
    ),
]
