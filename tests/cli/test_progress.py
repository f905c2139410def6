"""Progress: the live epsilon is the receipt's, it costs at most a twentieth of the time, and a pipe gets plain lines."""

from __future__ import annotations

import io
import json
import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from sordino import config
from sordino.accounting.claims import Subject
from sordino.accounting.facts import epsilon_text
from sordino.accounting.statement import Guarantee, statement
from sordino.cli import progress as module
from sordino.cli.progress import LiveSpending, ProgressSoFar, left, progress
from sordino.metrics import RoundRow, Scores
from sordino.receipts.receipt import opened
from sordino.runs.listing import NOT_OF_SCORES
from sordino.runs.play import Progress
from sordino.runs.run import start

ROUNDS = 6
FEW = [f"rounds={ROUNDS}", "partition=iid", "partition.clients=3", "evaluation.every=3", "evaluation.final=0"]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


# epsilon --------------------------------------------------------------------------------------------------------------


HELD = "ε 8 per example (replace), against the server, δ 1e-05, proved (simulation)"


def told(folder: Path, spending: LiveSpending, *overrides: str) -> list[str]:
    """What is said after each round of a real run."""
    said: list[str] = []
    start(config.load(None, [*FEW, *overrides]), folder, lambda step: said.append(spending.text(step)))
    return said


class Eager(LiveSpending):
    """Composes after every round, so that every number can be checked."""

    EVERY = 0.0
    SHARE = float("inf")


@pytest.mark.slow
def test_the_live_epsilon_is_the_statement_of_what_the_ledger_holds(tmp_path: Path) -> None:
    said = told(tmp_path / "run", Eager())
    setup, federation = opened(tmp_path / "run")
    notes = [entry.note for entry in federation.entries()]
    federation.ledger.close()
    for t, text in enumerate(said, 1):
        row = statement(notes[:t], 3, setup.experiment.privacy.delta)[0]
        assert (row.unit, row.adversary) == ("example", "server")
        held = f"ε {epsilon_text(row.epsilon)} per example (replace), against the server, δ 1e-05, proved (simulation)"
        assert text == f"{held}; {t / ROUNDS:.0%} of the budget is spent"
    receipt = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert said[-1].startswith(f"ε {epsilon_text(receipt['guarantees'][0]['epsilon'])} per")


def test_before_the_first_epsilon_the_spent_share_is_said(tmp_path: Path) -> None:
    said = told(tmp_path / "run", LiveSpending())
    # equal releases: each costs the same share
    assert said[:-1] == [f"{t / ROUNDS:.0%} of the budget is spent" for t in range(1, ROUNDS)]
    assert said[-1] == f"{HELD}; 100% of the budget is spent"  # the last line has the last epsilon


def test_an_older_epsilon_says_of_which_round_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    spending, said = LiveSpending(clock), []

    def watch(step: Progress) -> None:
        clock.now += 6.0
        said.append(spending.text(step))

    start(config.load(None, [*FEW, f"rounds={ROUNDS}"]), tmp_path / "run", watch)
    # a first composition is thought to take 0.5 s, so it waits for 10; on this clock it takes none, so the next waits
    # for 3
    assert said[0].endswith("% of the budget is spent")
    assert "ε" not in said[0]
    assert all(text.startswith("ε ") and "after round" not in text for text in said[1:])
    spending.EVERY = 1000.0
    monkeypatch.setattr(module, "spent_share", lambda step: 0.61)  # which is exact in every round
    later = SimpleNamespace(round=99, rounds=100, federation=SimpleNamespace(plan=spending_plan("example", 8.0)))
    told = spending.text(later)  # type: ignore[arg-type]
    assert told == f"{HELD} after round {ROUNDS}; 61% of the budget is spent"


@pytest.mark.parametrize("terminal", [False, True])
def test_what_is_waited_for_is_said(terminal: bool) -> None:
    out = io.StringIO()
    console, waiting = Console(file=out, force_terminal=terminal, width=90), logging.getLogger(module.WAITING)
    waiting.info("before")
    with progress(console):
        waiting.info("draws image %d", 1)
        waiting.info("draws image %d", 2)
    waiting.info("after")
    said = out.getvalue()
    assert f"draws image {2 if terminal else 1}" in said  # lines come now and then, a bar shows the newest
    assert "before" not in said
    assert "after" not in said


def test_nothing_is_claimed_without_a_mechanism(tmp_path: Path) -> None:
    assert set(told(tmp_path / "run", Eager(), "algorithm=fedavg")) == {"ε ∞: nothing is promised"}


@pytest.mark.slow
def test_without_a_budget_epsilon_stands_alone(tmp_path: Path) -> None:
    said = told(tmp_path / "run", Eager(), "algorithm.multiplier=3.0", "privacy={}")
    assert all(re.fullmatch(rf"ε [\d.]+ {re.escape(HELD[4:])}", text) for text in said)
    again = told(tmp_path / "again", LiveSpending(), "algorithm.multiplier=3.0", "privacy={}")
    assert (set(again[:-1]), again[-1]) == ({""}, said[-1])


ROW = Guarantee(
    unit="example", neighbours="replace", adversary="server", epsilon=1.0, delta=1e-5, status="proved", because=(),
    releases=3, accountant="gdp", accountants={"gdp": 1.0}, event=None,
)  # fmt: skip
EXAMPLE = Subject(unit="example", neighbours="replace", adversary="server")


def spending_plan(unit: str, epsilon: float) -> Any:
    return SimpleNamespace(
        offer=SimpleNamespace(subject=EXAMPLE.beside(unit=unit)),
        budget=SimpleNamespace(epsilon=epsilon),
        cap_of=lambda client: (10,),
        pricing=None,
        claimed=False,
    )


@pytest.mark.parametrize(
    ("status", "text"),
    [
        ("proved", "proved"),
        ("conditional", "conditional"),
        ("nominal", "holds; nominal 0.5 proves nothing"),
    ],
)
def test_the_status_is_said(status: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = 0.5 if status == "nominal" else None
    row = ROW.beside(epsilon=41.0, status=status, nominal_epsilon=printed)
    monkeypatch.setattr("sordino.accounting.statement.statement", lambda *_: [row])
    said = Eager().text(made_up(1))
    row_said = f"ε 41 per example (replace), against the server, δ 1e-05, {text}"
    assert said == f"{row_said}; {NOT_OF_SCORES}; 10% of the budget is spent"


def made_up(round: int) -> Any:
    federation = SimpleNamespace(plan=spending_plan("example", 8.0), entries=list, population=1, spent={0: (round,)})
    setup = SimpleNamespace(experiment=SimpleNamespace(privacy=SimpleNamespace(delta=1e-5)))
    return SimpleNamespace(round=round, rounds=10, federation=federation, setup=setup)


class Greedy(LiveSpending):
    """The broken twin: looks at the clock, but not at what it costs."""

    SHARE = float("inf")


def share_of_time(kind: type[LiveSpending], cost: float, round_time: float, monkeypatch: pytest.MonkeyPatch) -> float:
    clock, composed = Clock(), 0.0

    def slow(*_: Any) -> list[Any]:
        nonlocal composed
        clock.now += cost
        composed += cost
        return [ROW]

    monkeypatch.setattr("sordino.accounting.statement.statement", slow)
    spending = kind(clock)
    for t in range(int(1000 * max(cost, 1) / round_time)):
        clock.now += round_time
        spending.text(made_up(t))
    assert composed > 0
    return composed / clock.now


@pytest.mark.parametrize("round_time", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("cost", [0.01, 0.3, 5.0])
@pytest.mark.slow
def test_epsilon_costs_at_most_a_twentieth_of_the_time(
    cost: float, round_time: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert share_of_time(LiveSpending, cost, round_time, monkeypatch) <= 0.05 + 1e-9


def test_a_greedy_twin_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert share_of_time(Greedy, 5.0, 1.0, monkeypatch) > 0.3


# lines and bars -------------------------------------------------------------------------------------------------------


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock))
    return clock


WARNED = ("the noise drowns the signal",)


def step(round: int, row: dict[str, float] | None = None) -> Any:
    return SimpleNamespace(
        **{**vars(made_up(round)), "metrics": RoundRow(round=round, **(row or {})), "warned": WARNED}
    )


def test_a_pipe_gets_plain_lines_with_the_time_left(time: Clock) -> None:
    out = io.StringIO()
    with progress(Console(file=out, width=40)) as watch:
        for t in range(1, 11):
            time.now += 1.5
            watch(step(t, {"accuracy": t / 10, "loss": 1.0} if t % 2 else {}))
    lines = out.getvalue().splitlines()  # none is folded, none holds an escape sequence
    assert lines.pop(0) == f"note {WARNED[0]}"  # once, before the first round is told
    assert lines[0] == "round 2/10  accuracy 10.00%  20% of the budget is spent  12 s left"
    assert lines[-1] == "round 10/10  accuracy 90.00%  100% of the budget is spent"
    assert len(lines) == 5
    assert "\x1b" not in out.getvalue()


def test_a_resumed_run_is_not_taken_for_a_fast_one(time: Clock) -> None:
    out = io.StringIO()
    with progress(Console(file=out)) as watch:
        for t in (8, 9):
            time.now += 60
            watch(step(t))
    assert "1 min 00 s left" in out.getvalue()


def test_a_terminal_gets_a_bar_and_the_price(tmp_path: Path) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=90)
    with progress(console) as watch:
        start(config.load(None, FEW), tmp_path / "run", watch)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    assert f"/{ROUNDS} ━" in text
    assert "accuracy" in text
    assert "ε 8 per example (replace), against the server" in text


def test_quiet_is_quiet_and_composes_nothing() -> None:
    out = io.StringIO()
    with progress(Console(file=out, quiet=True, force_terminal=True)) as watch:
        watch(object())  # type: ignore[arg-type]
    assert out.getvalue() == ""


def test_the_newest_score_stays() -> None:
    reached = ProgressSoFar()
    assert [reached.text(row) for row in (Scores(), Scores(loss=2.0), Scores(accuracy=0.5, loss=1.0), Scores())] == [
        "",
        "loss 2.0000",
        "accuracy 50.00%",
        "accuracy 50.00%",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s left"), (59.4, "59 s left"), (61, "1 min 01 s left"), (7260, "2 h 01 min left"), (float("inf"), "")],
)
def test_time_left_in_words(seconds: float, text: str) -> None:
    assert left(seconds) == text
