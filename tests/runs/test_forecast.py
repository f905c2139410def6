"""A run foreseen: its bytes, its promise, and a warning where nobody would be heard."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sordino import config
from sordino.accounting import pricing
from sordino.budget.plan import Plan
from sordino.planning.calculator import Question, answer, ask, bought
from sordino.planning.planner import Planner, PlanRow
from sordino.runs.forecast import Compared, Forecast, compare
from sordino.runs.run import start
from sordino.runs.setup import PhaseSetup
from sordino.runs.simulation import Simulation, simulated
from tests.helpers.planned import CLIP, Table

# a real experiment, foreseen ------------------------------------------------------------------------------------------
DIGITS: Table = {
    "rounds": 12,
    "partition": {"scheme": "iid", "clients": 12},
    "cohort": {"name": "round_robin", "size": 3},
    "privacy": {"epsilon": 4.0, "delta": 1e-5},
    "algorithm": {"name": "gaussian_gdp"},
    "evaluation": {"every": 100, "final": 1},
}


EXPERIMENTS: dict[str, Table] = {
    "in turn": {},
    "noise of the system": {"privacy": {"epsilon": 4.0, "noise": "system"}, "rounds": 2},
    "more turns than planned": {"cohort": {"name": "random", "size": 6, "t_plan": 4}},
    "late": {"cohort": {"name": "everyone"}, "stragglers": {"share": 0.4, "policy": "late"}, "rounds": 2},
    "dropped": {"cohort": {"name": "everyone"}, "stragglers": {"share": 0.4, "policy": "drop"}, "rounds": 2},
    "scaffold, no privacy": {"algorithm": {"name": "scaffold"}, "privacy": {}, "rounds": 2},
    "hidden": {
        "algorithm": {"name": "fedavg"},
        "cohort": {"name": "poisson", "rate": 0.3},
        "uplink": {"client": [CLIP], "server": [{"name": "noise", "neighbours": "zero_out", "multiplier": 2.0}]},
        "privacy": {},
    },
    "two shares": {"cohort": {"name": "round_robin", "size": 5}, "rounds": 3},
}


DEAR = {"hidden", "more turns than planned", "scaffold, no privacy"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in DEAR)) for n in EXPERIMENTS])
@pytest.mark.slow
def test_bytes_and_promise_are_those_of_the_run(name: str, tmp_path: Path) -> None:
    made = config.validate(DIGITS | EXPERIMENTS[name])
    foreseen = Forecast(simulated(made))
    traffic = foreseen.traffic()
    ended = start(made, tmp_path / "run")
    for way in ("bytes_down", "bytes_up"):
        assert traffic.to_json()[way] == sum(row.to_json()[way] for row in ended.metrics)
    for row, promised in zip(ended.receipt.guarantees, foreseen.planner.guarantees, strict=True):
        assert row.beside(nominal_epsilon=None) == promised
    if (budget := ended.receipt.budget) is not None:
        assert max(foreseen.planner.books.participations.values()) == budget.participations_used.max
        assert foreseen.setup.plan.participations[foreseen.planner.busiest] == budget.participations_planned.max


def test_messages_are_not_all_of_one_length() -> None:
    """A header spells its round and its sender out: who counts the first message only is wrong by a few bytes."""
    traffic = Forecast(simulated(config.validate(DIGITS))).traffic()
    assert traffic.bytes_down != 36 * traffic.bytes_per_message.down
    assert traffic.bytes_up != 36 * traffic.bytes_per_message.up


@pytest.mark.slow
def test_planning_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shared = tmp_path / "shared.sqlite"
    found = planned("rounds=3", f"privacy.ledger='{shared}'")
    assert found.rows[0].minutes > 0
    assert list(tmp_path.iterdir()) == []


def planned(*overrides: str) -> Compared:
    return compare(None, ["partition={scheme='iid', clients=6}", "privacy={epsilon=4.0, delta=1e-4}", *overrides])


KINDS = {
    "records": ["rounds=3"],
    "local": ["rounds=3", "algorithm={name='whole_update', radius=0.5}", "cohort={name='round_robin', size=6}"],
    "central": [
        "rounds=3",
        "algorithm=fedavg",
        "uplink={client=[{name='clip', radius=1.0}], server=[{name='noise', neighbours='zero_out'}]}",
    ],
    "a clip of its own": ["algorithm.clip=0.5", "rounds=4"],
}


@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.slow] * (k != "local")) for k in KINDS])
@pytest.mark.slow
def test_the_printed_commands_keep_the_promise(kind: str, tmp_path: Path) -> None:
    """Each is run as printed; its receipt promises at most what was asked, for the unit and the adversary of its row."""
    found = planned(*KINDS[kind])
    assert len(found.rows) >= 4
    assert {row.promise.unit for row in found.rows if row.promise} == {"client", "example"}
    for number, row in enumerate(found.rows):
        kept(row, row.run, tmp_path / str(number), 4.0)


@pytest.mark.slow
@pytest.mark.parametrize("cohort", [12, 6])
@pytest.mark.parametrize("unit", ["client", "example"])
def test_the_printed_numbers_are_those_of_the_run(unit: str, cohort: int, tmp_path: Path) -> None:
    """Without data: the same commands over a file of 12 equal clients, 650 parameters and 119 or 120 records each."""
    question = ask(
        epsilon=4.0, delta=1e-5, unit=unit, clients=12, cohort=cohort, rounds=4, parameters=650, records=120, clip=0.5
    )
    rows = answer(question)
    assert len(rows) >= 4
    for number, row in enumerate(rows):
        if row.question.records != 120:
            continue  # no command can make records
        run = ["partition={scheme='iid', clients=12}", *row.run]
        parts = kept(row, run, tmp_path / str(number), 4.0)
        noise = Planner(parts.setup).expected_noise
        assert noise is not None
        assert Planner(parts.setup).multiplier(0) == pytest.approx(row.noise_multiplier, rel=1e-4)
        if row.question.clients == 12:  # the same data for ten times the clients are fewer records for each
            assert noise.ratio == pytest.approx(row.noise_to_signal, rel=0.01)


def kept(row: PlanRow, run: Sequence[str], folder: Path, epsilon: float) -> Simulation:
    made = config.load(None, run)
    ended = start(made, folder)
    assert row.promise is not None
    promised = [held for held in ended.receipt.guarantees if held.subject == row.promise.subject]
    assert len(promised) == 1
    assert 0.9 * epsilon < promised[0].epsilon <= epsilon * (1 + 1e-9)  # and does not spend half of it either
    assert promised[0].status == "proved" == row.promise.status
    assert (len(ended.metrics), ended.receipt.clients) == (row.rounds, row.clients)
    return simulated(made)


def test_a_typed_noise_shows_what_it_buys_and_offers_nothing_else() -> None:
    found = compare(None, ["algorithm.multiplier=1.0", "privacy={}", "rounds=3"])
    assert len(found.rows) == 1
    assert found.rows[0].promise is not None
    assert found.rows[0].promise.epsilon == pytest.approx(bought(1.0, Question(1.0, 1e-5, "client", 2, 2, 3)), rel=1e-6)


@pytest.mark.slow
def test_where_nobody_takes_part_nothing_is_promised_to_cost() -> None:
    (row, *_) = compare(None, ["stragglers.share=1.0", "rounds=2"]).rows
    assert (row.promise and row.promise.epsilon, row.bytes, row.noise_to_signal) == (0.0, 0, None)


def test_what_this_data_cannot_do_is_said() -> None:
    """1,438 rows are not enough clients of ten rows for some; for others delta no longer lies below one over what is
    protected.
    """
    found = compare(
        None, ["partition={scheme='dirichlet', clients=100, alpha=100.0}", "rounds=2", "privacy.epsilon=4.0"]
    )
    assert [what for what, _ in found.impossible] == ["twice the clients, same data"]
    assert all(why for _, why in found.impossible)


def test_the_federation_that_would_be_heard_recalibrates_where_delta_must_fall() -> None:
    parts = simulated(
        config.validate(DIGITS | {"algorithm": {"name": "whole_update"}, "privacy": {"epsilon": 4.0, "delta": 1e-3}})
    )
    at = []

    def smaller(delta: float) -> PhaseSetup:
        at.append(delta)
        table = DIGITS | {"algorithm": {"name": "whole_update"}, "privacy": {"epsilon": 4.0, "delta": delta}}
        return simulated(config.validate(table)).setup

    for found in Planner(parts.setup).loud_enough(smaller):
        assert found.delta in at
        assert found.delta < 1 / found.clients <= 1e-3
        again = Planner(smaller(found.delta)).expected_noise
        assert again is not None
        assert again.ratio * math.sqrt(3 / found.cohort) == pytest.approx(found.noise_to_signal)
        assert found.noise_to_signal < found.below <= again.ratio * math.sqrt(3 / (found.cohort - 1))


# the start of a run ---------------------------------------------------------------------------------------------------
def test_a_run_that_will_hear_nothing_says_so(tmp_path: Path) -> None:
    loud = config.validate(DIGITS | {"algorithm": {"name": "whole_update"}, "rounds": 2})
    at_start: list[tuple[str, ...]] = []
    ended = start(loud, tmp_path / "run", lambda step: at_start.append(step.warned))
    (said,) = [note for note in ended.notes if "largest possible signal" in note]
    assert "such clients" in said
    assert said in at_start[0]
    assert said in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.parametrize("changes", [{}, {"algorithm": {"name": "fedavg"}, "privacy": {}}])
def test_nothing_is_said_where_the_signal_can_be_heard(changes: Table) -> None:
    parts = simulated(config.validate(DIGITS | {"cohort": {"name": "everyone"}, "rounds": 4} | changes))
    assert Planner(parts.setup).warnings == []


def test_the_warning_reads_public_numbers_and_calibrates_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = simulated(config.validate(DIGITS | {"algorithm": {"name": "whole_update"}}))
    _ = parts.setup.plan

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("called at the start of a run")

    for place, name in ((Plan, "rehearse"), (pricing, "sampled_multiplier"), (PhaseSetup, "accounts")):
        monkeypatch.setattr(place, name, never)
    assert len(Planner(parts.setup).warnings) == 1
