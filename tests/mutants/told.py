"""Bugs by which somebody is told what is not so, or what nobody but the owner of rows may know."""

from __future__ import annotations

from tests.mutants.mutant import one

OUTSIDE = "tests/data/test_outside.py"
MEASURED = "tests/results/test_measured_by.py"

TOLD = [
    one(
        "what rows hold lies in the public log",
        "runs/play.py",
        "(own, half.remarks)",
        "(mine, half.remarks)",
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
        "results/comparison.py",
        "alike = method.measured_by == first.measured_by",
        "alike = True",
        f"{MEASURED}::test_a_table_of_both_says_whose_answers_they_are_and_gives_no_p",
    ),
]
