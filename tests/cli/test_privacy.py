"""`sordino privacy plan`: the whole conversation as JSON, tables that fit, and what is refused."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from sordino.cli.tables import spent_cells
from sordino.planning.calculator import ask, asked
from sordino.receipts import OfClient
from tests.helpers.command_line import Said


# the conversation -----------------------------------------------------------------------------------------------------
@pytest.fixture
def cli(cli: Callable[..., Said]) -> Callable[..., Said]:
    return partial(cli, "privacy", "plan")


RECORDS = ("--unit", "example", "--clients", 20, "--cohort", 20, "--rounds", 100)


ALL = ("--clients", 50, "--cohort", 50, "--rounds", 10)


def test_json_is_the_whole_conversation(cli: Callable[..., Said]) -> None:
    there = json.loads(cli(*ALL, "--epsilon", 2, "--json").out)
    z = there["answer"]["noise_multiplier"]
    back = json.loads(cli(*ALL, "--noise-multiplier", z, "--json").out)
    assert back["answer"]["promise"]["epsilon"] == pytest.approx(2, rel=1e-6)
    assert back["question"]["noise_multiplier"] == z
    for said in (there, back):
        assert set(said) == {"question", "answer", "alternatives", "warning", "enough"}
        assert "many rounds may still learn" in said["warning"]
        assert [way["below"] for way in said["enough"]] == [1.0, 0.3]
        assert all(row["run"] and row["bytes"] > 0 for row in (said["answer"], *said["alternatives"]))


def test_the_numbers_of_a_plan_without_data() -> None:
    answered = asked(ask(epsilon=1, unit="example", clients=100, cohort=20, rounds=100)).to_json()
    assert answered["participations"] == 20
    assert answered["noise_multiplier"] == pytest.approx(16.684, rel=1e-4)  # sqrt(20)/mu(1, 1e-5), mu = 0.26805
    assert answered["promise"]["status"] == "proved"
    # noise of 2 z / 600 on each of 21,840 coordinates, averaged over 20 clients; a mean clipped gradient is at most 1
    assert answered["noise_to_signal"] == pytest.approx(2 * 16.684 / 600 * math.sqrt(21_840 / 20), rel=1e-4)
    assert answered["bytes"] == 2 * 4 * 21_840 * 20 * 100


def test_json_of_an_experiment(cli: Callable[..., Said], tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        "rounds = 3\n[partition]\nscheme = 'iid'\nclients = 6\n[privacy]\nepsilon = 4.0\n[algorithm]\nname = 'gaussian_gdp'\n"
    )
    said = json.loads(cli(file, "rounds=2", "--json").out)
    assert said["answer"]["rounds"] == 2
    assert said["answer"]["run"] == [str(file), "rounds=2"]
    assert all(row["run"][0] == str(file) for row in said["alternatives"])
    assert "estimate" in said["timing"]
    assert said["answer"]["promise"]["epsilon"] == pytest.approx(4.0)


@pytest.mark.one_fast
@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("asked_for", [(*ALL, "--epsilon", 2), (*RECORDS, "--noise-multiplier", 9), ("rounds=2",)])
def test_the_tables_fit(
    asked_for: tuple[object, ...], width: int, cli: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"COLUMNS": width, "LINES": 40, "TERM": "dumb"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(Console, "is_terminal", True)
    said = cli(*asked_for)
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    assert max(len(line) for line in lines if "sordino run" not in line) <= width
    (head,) = [i for i, line in enumerate(lines) if "set-up" in line]
    cut = itertools.takewhile(lambda line: "To run" not in line, lines[head:])
    assert not any("…" in line for line in cut)
    for column in ("against", "neighbours", "clients", "cohort", "rounds", "MB"):
        assert column in " ".join(lines[head - 2 : head + 1])


@pytest.mark.parametrize(
    ("arguments", "code", "name"),
    [
        (("--epsilon", "-1"), 4, "epsilon-not-positive"),
        (("--epsilon", "nan"), 4, "epsilon-not-positive"),
        (("--epsilon", "inf"), 4, "epsilon-not-finite"),
        (("--epsilon", "1", "--delta", "0"), 4, "delta-out-of-range"),
        (("--epsilon", "1", "--delta", "0.5"), 4, "delta-too-large"),
        (("--epsilon", "1", "--clients", "0"), 2, "out-of-range"),
        (("--epsilon", "1", "--clients", "10", "--cohort", "11"), 2, "cohort-too-large"),
        (("--epsilon", "1", "--rounds", "0"), 2, "out-of-range"),
        (("--epsilon", "1", "--parameters", "-5"), 2, "out-of-range"),
        (("--epsilon", "1", "--clip", "nan"), 2, "clip-not-positive"),
        (("--epsilon", "1", "--noise-multiplier", "1"), 2, "one-direction"),
        (("--rounds", "10"), 2, "one-direction"),
        (("--noise-multiplier", "-1"), 4, "noise-not-positive"),
        (("--noise-multiplier", "0.001"), 4, "noise-buys-nothing"),
        (("--epsilon", "1e-9", "--delta", "1e-99", "--unit", "example"), 4, "budget-below-unit"),
        (("rounds=3", "--epsilon", "1"), 2, "two-questions"),
        (("nowhere.toml",), 2, "no-file"),
        (("rounds=0",), 2, "out-of-range"),
        (("rounds=2", "privacy.delta=0.5"), 4, "delta-too-large"),
    ],
)
def test_an_impossible_plan_is_refused(
    arguments: tuple[str, ...], code: int, name: str, cli: Callable[..., Said]
) -> None:
    said = cli(*arguments)
    assert said.code == code, said.err
    assert name in said.err
    assert "Traceback" not in said.err
    assert said.out == ""


def test_what_a_client_has_spent_is_never_shown_as_less() -> None:
    """In the currency of Laplace noise it is an epsilon."""
    row = OfClient(
        client=0, examples=1, participations=1, planned=1, spent=(1.00004,), granted=(2.0, 3.50001), epsilon=2.0
    )
    assert spent_cells(row)[-2:] == ["1.001", "2, 3.501"]
