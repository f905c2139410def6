"""`sordino doctor`: what is well is called ok, and everything that would stop or slow a run is called so, by its own
line.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sordino import config
from sordino.cli import doctor, main
from sordino.cli.doctor import GB, MachineFacts, engine, judge, measure

WELL = MachineFacts(
    python="3.12.1",
    torch="2.6",
    torch_threads=2,
    cores=4,
    memory=8 * GB,
    processor="x86_64",
    bf16=False,
    accelerator="",
    place="/home/me",
    disk_free=50 * GB,
    write_ms=2.0,
    write_error="",
    extras={"plots": []},
    noise_error="",
    encoding="utf-8",
    terminal=True,
)

ILLS: dict[str, tuple[str, str, dict[str, Any]]] = {  # line, state, what differs
    "an old Python": ("Python", "broken", {"python": "3.10.4"}),
    "one core": ("cores", "slow", {"cores": 1}),
    "part of a core": ("cores", "slow", {"cores": 0.5}),
    "little memory": ("memory", "slow", {"memory": 0.5 * GB}),
    "a slow disk": ("disk", "slow", {"write_ms": 80.0}),
    "a full disk": ("disk", "broken", {"disk_free": 0.01 * GB}),
    "a disk that cannot be written": ("disk", "broken", {"write_ms": None, "write_error": "Read-only file system"}),
    "no entropy": ("noise", "broken", {"noise_error": "no random source"}),
    "a terminal of 1970": ("terminal", "broken", {"encoding": "ascii"}),
    "a terminal of nowhere": ("terminal", "broken", {"encoding": "klingon"}),
}


def test_a_good_machine_is_ok() -> None:
    assert {finding.state for finding in judge(WELL)} == {"ok"}


@pytest.mark.parametrize("name", ILLS)
def test_every_ill_has_its_line_its_word_and_a_fix(name: str) -> None:
    line, state, changes = ILLS[name]
    ill = {finding.what: finding for finding in judge(replace(WELL, **changes)) if finding.state != "ok"}
    assert set(ill) == {line}
    assert ill[line].state == state
    assert ill[line].fix


def test_an_extra_that_is_missing_is_no_illness_and_says_how_to_get_it() -> None:
    lines = {finding.what: finding for finding in judge(replace(WELL, extras={"plots": ["matplotlib"], "hub": []}))}
    assert lines["extra plots"].state == lines["extra hub"].state == "ok"
    assert "matplotlib" in lines["extra plots"].says
    assert lines["extra plots"].fix == "pip install 'sordino[plots]'"
    assert lines["extra hub"].fix == ""


def test_the_extras_are_those_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    named = [
        "torch>=2",
        'no-such-thing>=1; extra == "dreams"',
        "torch; extra == 'solid'",
        'torch[x]>=2 ; extra == "solid"',
    ]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: named)
    assert doctor._extras() == {"dreams": ["no-such-thing"], "solid": []}


def test_measuring_leaves_nothing_behind(tmp_path: Path) -> None:
    facts = measure(tmp_path / "runs" / "not" / "there")
    assert facts.place == str(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert facts.write_ms is not None
    assert facts.write_ms > 0
    assert facts.noise_error == ""
    assert 0 < facts.cores <= (os.cpu_count() or 1)
    assert facts.memory > 0


def test_a_place_that_takes_no_files_is_broken() -> None:
    facts = measure(Path("/proc/self"))
    assert facts.write_ms is None
    assert facts.write_error
    assert {f.what for f in judge(facts) if f.state == "broken"} >= {"disk"}


def test_a_source_that_repeats_itself_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "urandom", bytes)
    assert doctor._noise() == "the random source repeats itself"


def test_a_container_has_the_cores_and_the_memory_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    words = {
        "cpu.max": "50000 100000",
        "memory.max": "3000000",
        "memory.current": "1000000",
        "meminfo": "MemAvailable: 9000 kB",
    }
    monkeypatch.setattr(doctor, "_words", lambda path: words[path.name].split())
    assert doctor._cores() == 0.5
    assert doctor._memory() == 2_000_000
    words |= {"cpu.max": "max 100000", "memory.max": "max"}
    assert doctor._cores() >= 1
    assert doctor._memory() == 9000 * 1024


@pytest.mark.parametrize("cores", [0.5, 1, 4, 64])
def test_the_engine_it_advises_is_a_legal_one(cores: float) -> None:
    made = config.validate({"engine": engine(replace(WELL, cores=cores), clients=20)}).engine
    assert 1 <= made.workers <= max(1, min(cores, 20))


@pytest.mark.parametrize(("place", "code"), [(".", 0), ("/proc/self", 2)])
def test_the_command(
    place: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path if place == "." else place)
    answers = []
    for words in (["doctor"], ["doctor", "--json"]):
        monkeypatch.setattr(sys, "argv", ["sordino", *words])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == code
        answers.append(capsys.readouterr().out)
    table, found = answers[0], json.loads(answers[1])
    assert all(finding["what"] in table for finding in found["findings"])
    assert ("broken" in table) == (code == 2)
    assert set(found) == {"facts", "findings", "engine"}
