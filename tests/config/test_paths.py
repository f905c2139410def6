"""A run is looked at, and goes on, from any folder: its paths lead from where it began."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sordino import config
from tests.helpers.command_line import Said

Cli = Callable[..., Said]
ROWS = "age,site,ill\n" + "".join(f"{20 + i % 40},{'north' if i % 2 else 'south'},{i % 3 == 0:d}\n" for i in range(80))
TABLE = ("data.source=tabular", "data.path=rows.csv", "data.label=ill", "data.group=site", "rounds=2")
SHARED = ("rounds=2", "privacy.ledger=l.sqlite", "partition.clients=3")


@pytest.fixture
def began_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> Callable[..., Path]:
    """A run that begins in one folder; what follows is done in another."""

    def begin(*words: str) -> Path:
        here, there = tmp_path / "began", tmp_path / "elsewhere"
        here.mkdir()
        there.mkdir()
        monkeypatch.chdir(here)
        Path("rows.csv").write_text(ROWS)
        assert cli("run", *words, "--out", "runs/one", "-q").code == 0
        monkeypatch.chdir(there)
        return Path("../began/runs/one")

    return begin


def test_a_shared_ledger_is_the_same_from_everywhere(began_in: Callable[..., Path], cli: Cli, tmp_path: Path) -> None:
    run = began_in(*SHARED)
    for words in (
        ("resume", run, "-q"),
        ("privacy", "verify", run),
        ("privacy", "spent", run),
    ):
        found = cli(*words)
        assert found.code == 0, (words, found)
    assert os.listdir(".") == []  # no stray ledger is founded


def test_where_there_is_no_ledger_none_is_made(began_in: Callable[..., Path], cli: Cli, tmp_path: Path) -> None:
    """Also where the folder was moved without it: only a new run founds a ledger."""
    run = Path(shutil.move(began_in(*SHARED), "moved"))
    for words in (("resume", run), ("privacy", "verify", run), ("privacy", "spent", run), ("report", run)):
        found = cli(*words)
        assert (found.code, "ledger-missing" in found.err) == (5, True), (words, found)
        assert str(tmp_path) in found.err  # where it was looked for
    assert os.listdir(".") == ["moved"]
    text = (run / "experiment.toml").read_text()
    (run / "experiment.toml").write_text(text.replace('"l.sqlite"', json.dumps(str(tmp_path / "began" / "l.sqlite"))))
    assert cli("privacy", "verify", run).code == 0  # the path is in no digest


def test_rows_are_found_from_everywhere(began_in: Callable[..., Path], cli: Cli) -> None:
    run = began_in(*TABLE)
    for words in (("resume", run, "-q"), ("report", run), ("attack", run, "-a", "loss_threshold")):
        found = cli(*words)
        assert found.code == 0, (words, found)
    page = (run / "report.html").read_text()
    assert "rows.csv" in page
    assert "began/rows.csv" not in page  # it tells nobody where files lie


def test_together_they_may_be_moved(began_in: Callable[..., Path], cli: Cli, tmp_path: Path) -> None:
    began_in(*TABLE)
    shutil.move(tmp_path / "began", tmp_path / "archive")
    assert cli("report", tmp_path / "archive" / "runs" / "one").code == 0


def test_every_path_leads_from_there_and_the_digest_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {
        "data": {"source": "tabular", "path": ["a.csv", "/b.csv", "~/c.csv"], "schema": "s.toml", "label": "ill"},
        "privacy": {"epsilon": {"file": "budgets.csv"}, "ledger": "l.sqlite"},
        "engine": {"cache": "cache"},
    }
    given = config.load(table)
    monkeypatch.chdir(tmp_path)
    assert config.resolved(given, tmp_path / "run", "..") is given
    found, at = config.resolved(given, tmp_path / "run", "../there"), f"{tmp_path}/there"
    assert found.data.path == [f"{at}/a.csv", "/b.csv", "~/c.csv"]
    assert (found.data.schema, found.privacy.ledger, found.engine.cache) == (
        f"{at}/s.toml",
        f"{at}/l.sqlite",
        f"{at}/cache",
    )
    assert isinstance(found.privacy.epsilon, dict)
    assert found.privacy.epsilon == {"file": "budgets.csv"}  # it is in the digest, and read as
    assert config.resolved_table(found, found.privacy.epsilon) == {"file": f"{at}/budgets.csv"}
    assert config.resolved_table(found.model_copy(update={"seed": 1}), found.privacy.epsilon) == {
        "file": f"{at}/budgets.csv"
    }
    assert found.digest() == given.digest()


def test_a_name_on_the_hub_is_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = config.load({"data": {"source": "images", "path": "org/set", "download": True}})
    monkeypatch.chdir(tmp_path)
    assert config.resolved(given, tmp_path / "run", "../there").data.path == "org/set"
    (tmp_path / "there" / "org" / "set").mkdir(parents=True)
    assert config.resolved(given, tmp_path / "run", "../there").data.path == f"{tmp_path}/there/org/set"
