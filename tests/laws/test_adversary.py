"""The standing adversary on every case of the laws, with real noise; and its twins, the program as it was, in each of
which it finds what a hostile review found.

A run is played with the same noise on two neighbours; see `adversary`. The fast tier takes one case of every kind, the
slow one all of them.
"""

from __future__ import annotations

import itertools
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sordino import config
from sordino.accounting import statement as statements
from sordino.accounting.composition import covered, read_notes
from sordino.config import Experiment
from sordino.data import tabular
from sordino.data.dataset import Dataset, stratified
from sordino.keys import fold, root
from sordino.planning import accounts
from sordino.runs import rounds
from sordino.runs.population import Population
from sordino.runs.simulation import simulated
from sordino.runs.witness import Witness
from sordino.sampling.draws import Seeded
from tests.laws import adversary
from tests.laws.adversary import Seen, draws_of_each_round, guessed, other_example, play, raw, tells_apart
from tests.laws.cases import CASES, CENTRAL, Case

FAST = ("gaussian_gdp", "ldp_fl")  # of the others the slow tier
EVERY = [pytest.param(case, id=case.name, marks=() if case.name in FAST else pytest.mark.slow) for case in CASES]
HIDDEN = ("poisson", "by_budget", "threshold")
OF_COINS = [
    pytest.param(case, id=case.name, marks=() if case.name == "central" else pytest.mark.slow)
    for case in CASES
    if case.cohort["name"] in HIDDEN
]


def real(case: Case, **more: Any) -> Experiment:
    return case.experiment(privacy=case.privacy | {"noise": "system"}, **more)


@pytest.mark.one_fast
@pytest.mark.parametrize("case", EVERY)
def test_nothing_that_is_left_tells_one_example_from_another(case: Case, tmp_path: Path) -> None:
    made = real(case)
    one = play(made, tmp_path / "one")
    other = play(made, tmp_path / "other", other_example(simulated(made)))
    found = tells_apart(one, other)
    if case.name == "lattice_fl":  # the length of its compressed ciphertexts is chance, on the same data too
        chance = tells_apart(one, play(made, tmp_path / "same"))
        found = [what for what in found if what not in chance]
    assert found == []
    assert [(t, k) for t, k, _ in one.sent] == [(t, k) for t, k, _ in other.sent]  # who sends, when, how often
    if not one.learns:
        assert [[*map(len, leaves)] for *_, leaves in one.sent] == [[*map(len, leaves)] for *_, leaves in other.sent]
    if ("example", "server") in one.finite:  # then nothing that is sent shows it without noise
        again = play(made, tmp_path / "again", stream=2)
        assert raw(one, again, other) == []


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=pytest.mark.slow)
        for case in CASES
        if case.protects in ("client", "central")
    ],
)
def test_nothing_that_is_left_tells_one_client_from_another(case: Case, tmp_path: Path) -> None:
    made = real(case)
    one, other = play(made, tmp_path / "one"), play(made, tmp_path / "other", other_example(simulated(made), rows=None))
    assert tells_apart(one, other) == []
    if ("client", "server") in one.finite:
        assert raw(one, play(made, tmp_path / "again", stream=2), other) == []


@pytest.mark.one_fast
@pytest.mark.parametrize("case", OF_COINS)
def test_nothing_that_is_left_tells_who_was_drawn(case: Case, tmp_path: Path) -> None:
    made = real(case)
    assert tells_apart(play(made, tmp_path / "one"), play(made, tmp_path / "other", flipped=True)) == []


# the twins: what the adversary finds in the program as it was
# -----------------------------------------------------------

BY_NAME = {case.name: case for case in CASES}


def sixty_coins() -> Experiment:
    """12 rounds of 5 coins at rate 0.5. The noise is typed: none that fits a budget has to be searched for."""
    gates = {**CENTRAL, "server": [{"name": "noise", "neighbours": "zero_out", "multiplier": 1.0}]}
    return BY_NAME["central"].experiment(rounds=12, privacy={"delta": 1e-3, "noise": "system"}, uplink=gates)


@pytest.mark.slow
def test_coins_from_the_seed_are_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Item 1. Fair guesses are right 30 times of 60, more than 51 times with a chance below 1e-8."""
    made = sixty_coins()
    assert guessed(made, tmp_path / "run") < 52 / 60
    here = itertools.cycle(range(made.rounds))  # the plan draws a cohort for each round, and then the run does

    def public(*_: Any) -> Seeded:
        return Seeded(fold(root(made.seed), "cohort", next(here)))

    monkeypatch.setattr(accounts, "SystemWords", public)
    assert guessed(made, tmp_path / "twin") == 1.0


@pytest.mark.slow
def test_two_runs_with_one_seed_draw_different_cohorts(tmp_path: Path) -> None:
    """60 fair coins agree by chance once in 2^60."""
    drawn: list[list[list[int]]] = []
    for name in ("one", "two"):
        cohorts: list[list[int]] = []
        whole = accounts.Accounts.draw

        def draw(self: Any, *given: Any, whole: Any = whole, cohorts: Any = cohorts) -> list[int]:
            cohorts.append(whole(self, *given))
            return cohorts[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(accounts.Accounts, "draw", draw)
            from sordino.runs.run import start

            start(sixty_coins(), tmp_path / name)
        drawn.append(cohorts)
    assert drawn[0] != drawn[1]


def rows_alone(texts: Any, population: int, delta: float) -> list[Any]:
    """The statement as it was: every row made of the releases that speak of its subject, blind for the others."""
    (releases, *_) = read_notes(texts, population).values()
    spoken = dict.fromkeys(claim.subject for release in releases for claim in release)
    found = []
    for subject in spoken:
        seen = [release for release in releases if covered(release, subject)]
        if seen:
            found.append(statements._row(subject, [seen], delta))
    return found


@pytest.mark.slow
def test_a_raw_upload_beside_answers_is_found_out(tmp_path: Path) -> None:
    """Item 4. SlaugFL with a reader of answers: its preparation sends models of the images as they are. No row may
    speak of a pixel, and the adversary shows why."""
    case = BY_NAME["slaug_fl"]
    made = real(case, read={"name": "responses", "epsilon": 5.0})
    one, again = play(made, tmp_path / "one"), play(made, tmp_path / "again", stream=2)
    other = play(made, tmp_path / "other", other_example(simulated(made)))
    naked = raw(one, again, other)
    assert any(t.startswith("train/") for t, _ in naked)  # the preparation's uploads show the image
    assert not any(unit in ("pixel", "image", "example") for unit, _ in one.finite)
    notes = [json.dumps(note) for *_, note in one.left["ledger"]]
    claimed = {row.unit for row in rows_alone(notes, 5, 1e-5) if row.epsilon < float("inf")}
    assert "pixel" in claimed  # what was printed, beside the raw upload


@pytest.mark.slow
def test_an_unkeyed_digest_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Item 7. The adversary knows all rows but one and tries 20 values of it."""

    def found(folder: Path) -> list[int]:
        left = b"".join(
            path.read_bytes() for path in folder.rglob("*") if path.is_file() and "private" not in path.parts
        )
        parts = simulated(config.load(folder / "experiment.toml"))
        tried = []
        for value in range(20):
            guess = other_value(parts.population.dataset, value)
            if guess.fingerprint(b"").encode() in left:
                tried.append(value)
        return tried

    made = real(BY_NAME["gaussian_gdp"])
    truth = int(np.asarray(simulated(made).population.dataset.train.x)[0, 4, 4, 0])

    def other_value(data: Dataset, value: int) -> Dataset:
        from dataclasses import replace

        x = np.array(data.train.x)
        x[0, 4, 4, 0] = value
        return replace(data, train=data.train._replace(x=x))

    play(made, tmp_path / "run")
    assert found(tmp_path / "run") == []
    unkeyed = property(lambda self: self.dataset.fingerprint())
    monkeypatch.setattr(Population, "fingerprint", unkeyed)
    play(made, tmp_path / "twin")
    assert found(tmp_path / "twin") == ([truth] if truth < 20 else [])
    assert truth < 20


@pytest.mark.slow
@pytest.mark.parametrize("what", ["active", "device_flops", "bytes_up", "scores"])
def test_a_row_that_tells_is_found_out(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Item 8. How many were drawn, what they computed and sent; and how good the model is on the test data, client by
    client."""
    made, whole = real(BY_NAME["central"]), rounds.shown
    names = ("accuracy", "loss", "clients") if what == "scores" else (what,)

    def telling(row: Any, hidden: bool) -> dict[str, Any]:
        told = row.to_json()
        return whole(row, hidden) | {name: told[name] for name in names if name in told}

    monkeypatch.setattr(rounds, "shown", telling)
    one = play(made, tmp_path / "one")
    told = play(made, tmp_path / "other", flipped=True)
    assert "metrics.jsonl" in tells_apart(one, told)


@pytest.mark.slow
def test_labels_of_clients_in_a_page_are_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Item 8. The picture of who holds what is made of exact counts."""
    from sordino.report import run_facts

    made, whole = real(BY_NAME["gaussian_gdp"]), run_facts.gather

    def relabelled(data: Dataset) -> Dataset:
        from dataclasses import replace

        y = np.array(data.train.y)
        y[np.asarray(held[0][1])[0]] = 9
        return replace(data, train=data.train._replace(y=y))

    held = simulated(made).population.shares  # the partition is taken as public, and said to be
    monkeypatch.setattr(Population, "shares", held)
    one, other = play(made, tmp_path / "one"), play(made, tmp_path / "other", relabelled)
    assert tells_apart(one, other) == []
    monkeypatch.setattr(adversary, "gather", lambda folder: whole(folder, evaluator=True))
    one, other = play(made, tmp_path / "first"), play(made, tmp_path / "second", relabelled)
    assert "facts of the report" in tells_apart(one, other)


def clinics(tmp_path: Path, changed: bool) -> Path:
    """A table of 60 rows; in its twin one outcome is another."""
    rng, kept = np.random.default_rng(7), tabular.apart([60], None, 0.2, 0)[0][0]
    lines = ["age,clinic,outcome"]
    for i in range(60):
        outcome = rng.integers(2)
        lines.append(
            f"{rng.integers(20, 90)},{'north' if i % 3 else 'south'},{1 - outcome if changed and i == kept else outcome}"
        )
    path = tmp_path / f"visits{changed:d}.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


SCHEMA = """
[columns]
age = { kind = "number", range = [0, 120] }
clinic = { kind = "group" }
outcome = { kind = "label", classes = ["0", "1"] }
"""


def of_clinics(tmp_path: Path, name: str, changed: bool, **more: Any) -> Seen:
    (tmp_path / "visits.schema.toml").write_text(SCHEMA)
    (tmp_path / "visits.csv").write_text(clinics(tmp_path, changed).read_text())
    data = {"source": "tabular", "path": str(tmp_path / "visits.csv"), "label": "outcome", "group": "clinic"}
    table = {
        "rounds": 2,
        "data": data | {"schema": str(tmp_path / "visits.schema.toml")},
        "partition": {"scheme": "natural"},
        "algorithm": {"name": "gaussian_gdp", "clip": 1.0, "lr": 0.5},
        "privacy": {"epsilon": 4.0, "delta": 1e-5, "noise": "system"},
        "engine": {"executor": "loop"},
    }
    return play(config.validate(table | more), tmp_path / name)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_workers")
@pytest.mark.parametrize("method", ["gaussian_gdp", "dp_scaffold", "whole_update", "ditto"])
def test_client_processes_leave_nothing_that_tells_one_visit_from_another(method: str, tmp_path: Path) -> None:
    """They draw noise of their own, of which nothing may be seen either. The twin is a mutant."""
    more: dict[str, Any] = {"engine": {"executor": "processes", "workers": 2}, "algorithm": {"name": method}}
    if method == "ditto":
        more["privacy"] = {"noise": "system"}  # nothing is promised, and what clients keep is not shown
    one, other = of_clinics(tmp_path, "one", False, **more), of_clinics(tmp_path, "other", True, **more)
    assert tells_apart(one, other) == []
    assert not one.sent  # all was computed elsewhere


@pytest.mark.slow
def test_a_split_that_looks_at_outcomes_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Item 9. One outcome is another: nobody else's rows move. Under the old split the others' sizes and uploads move
    with it."""
    seen = partial(of_clinics, tmp_path)

    def others(one: Seen, other: Seen) -> set[int]:
        """Clients whose first upload differs: of all but one the data are the same, and so is the noise."""
        pairs = itertools.takewhile(lambda pair: pair[0][0] == "/0", zip(one.sent, other.sent, strict=True))
        return {k for (_, k, mine), (_, _, theirs) in pairs if mine != theirs}

    one, other = seen("one", False), seen("other", True)
    assert tells_apart(one, other) == []
    assert len(others(one, other)) == 1

    def by_outcome(rows: int, keys: Any, fraction: float, seed: int) -> Any:
        lines = (tmp_path / "visits.csv").read_text().splitlines()[1:]
        return stratified(np.array([int(line.rpartition(",")[2]) for line in lines]), fraction, seed)

    monkeypatch.setattr(tabular, "apart", by_outcome)
    one, other = seen("first", False), seen("second", True)
    assert tells_apart(one, other) or len(others(one, other)) > 1


@pytest.mark.slow
def test_a_folder_that_is_put_back_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its place, three times, by somebody who says that it has moved: one draw of each round. In the program as it
    was each restore draws again what was left of the run, and many draws would average the noise away.
    """
    made = real(BY_NAME["gaussian_gdp"], cohort={"name": "everyone"}, rounds=3)
    assert draws_of_each_round(made, tmp_path / "run", 3) == [1, 1, 1]
    monkeypatch.setattr(Witness, "check", lambda self, ledger, moved: set())
    assert draws_of_each_round(made, tmp_path / "twin", 3) == [1, 4, 4]
