"""What attackers reached: the file that they leave, the pictures, and the section of the page."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import sordino
from sordino import config
from sordino.attacks.attack import assault
from sordino.attacks.attacked_run import AttackSettings
from sordino.attacks.reconstruction import row
from sordino.audits import replay
from sordino.errors import RunError
from sordino.report.run_facts import gather
from sordino.report.run_page import page
from sordino.results.findings import PictureRow, pixels, read_attacks, read_audit, sheet
from tests.helpers.command_line import Said

SETTINGS = {
    "rounds": 2,
    "partition": {"scheme": "iid", "clients": 3},
    "data": {"source": "digits", "train": 60},
    "algorithm": {"name": "gaussian_gdp", "multiplier": 4.0},
    "privacy": {"delta": 1e-5},
}
QUICK = ("--images", "1", "--attack", "analytic", "--attack", "label_shares")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("attacked") / "run"
    sordino.run(SETTINGS, out=out)
    return out


@pytest.mark.slow
def test_an_attack_leaves_a_file_for_its_owner_and_a_section(run: Path, cli: Callable[..., Said]) -> None:
    before = page(gather(run))
    assert "What attackers reached" not in before
    said = cli("attack", run, *QUICK, "--json")
    path = run / "attack.json"
    written = json.loads(path.read_text())
    assert json.loads(said.out) == written
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "images of the training data" in written["warning"]
    assert "the very bytes that the run's ledger holds" in written["replay"]
    assert [one["verdict"] for one in written["found"]] == ["stopped", "stopped"]
    assert {held["unit"] for held in written["found"][0]["promises"]} == {"example", "client"}
    shown = page(gather(run))
    for text in ("What attackers reached", "images of the training data", "From top to bottom: original", "<img src="):
        assert text in shown
    assert written["found"][0]["pictures"][0]["pixels"] not in shown  # pictures are there once
    assert not sordino.verify(run).wrong


def test_a_replay_that_differs_is_no_replay(run: Path) -> None:
    other = config.load(run / "experiment.toml", ["seed=5"])
    with pytest.raises(RunError) as refusal:
        assault(other, run, ("label_shares",), AttackSettings(images=1))
    assert refusal.value.code == "replay-differs"


@pytest.mark.slow
def test_a_replay_adds_up_as_the_run_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of a stack are added up together. Broken twin: one by one, which is rounded elsewhere."""
    given = {
        "rounds": 1,
        "partition": {"scheme": "iid", "clients": 60},
        "model": {"name": "mlp"},
        "cohort": {"name": "everyone"},
        "algorithm": {"name": "fedavg"},
        "privacy": {},
    }
    sordino.run(given, out=tmp_path / "run")
    own, settings = config.load(tmp_path / "run" / "experiment.toml"), AttackSettings(images=1)
    found = assault(own, tmp_path / "run", ("label_shares",), settings)
    assert "the very bytes that the run's ledger holds" in found.replay
    assert found.found[0].measured
    monkeypatch.setattr(replay, "adds", lambda setup: False)
    with pytest.raises(RunError) as refusal:
        assault(own, tmp_path / "run", ("label_shares",), settings)
    assert refusal.value.code == "replay-differs"


@pytest.mark.parametrize(("name", "reads"), [("attack.json", read_attacks), ("audit.json", read_audit)])
def test_an_edited_file_is_refused(tmp_path: Path, name: str, reads: Callable[[Path], object]) -> None:
    assert reads(tmp_path) is None
    (tmp_path / name).write_text('{"format": 1, "found": "everything"}')
    with pytest.raises(RunError) as refusal:
        reads(tmp_path)
    assert refusal.value.code == "run-file-damaged"


@pytest.mark.slow
def test_an_audit_leaves_a_file_and_a_section(run: Path, tmp_path: Path, cli: Callable[..., Said]) -> None:
    assert "What an audit found" not in page(gather(run))
    said = cli("audit", run, "--trained", "--canaries", 40, "--json")
    assert json.loads(said.out) == json.loads((run / "audit.json").read_text())
    found = read_audit(run)
    assert found is not None
    shown = page(gather(run))
    for text in ("What an audit found", found.verdict, found.promises[0].in_figures[3], "by coins alone"):
        assert text in shown
    assert not sordino.verify(run).wrong
    other = tmp_path / "other"
    sordino.run(SETTINGS, "rounds=1", out=other)
    shutil.copy(run / "audit.json", other)
    with pytest.raises(RunError, match="another experiment"):
        read_audit(other)


def test_pictures_are_the_images_side_by_side() -> None:
    import torch

    images = torch.tensor([0.0, 1.0]).reshape(2, 1, 1, 1).expand(-1, -1, 3, 2)
    one: PictureRow = row("original", images)
    assert pixels(one).shape == (2, 3, 2, 1)
    drawn = sheet([one, one])
    assert drawn[4 : 4 + 96, 4 : 4 + 64, :3].max() == 0  # 32 times as large
    assert drawn[4 : 4 + 96, 4 + 64 + 4 :, :3].min() == 255
    assert np.array_equal(drawn[4:100], drawn[104:200])


def test_an_attack_that_is_not_there_is_refused(cli: Callable[..., Said]) -> None:
    assert cli("attack", "--attack", "nonsense").code == 2
    listed = cli("attack", "--list").out
    assert "analytic" in listed
    assert "lira" in listed
