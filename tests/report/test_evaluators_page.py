"""The page that must not be shared says so: by its name, in its title, on its top; the one that may be has none of it."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import sordino
from sordino.report import run_page
from tests.helpers.command_line import Said

REAL = ("rounds=1", "partition.clients=3", "data.train=120", "data.test=60", "privacy.noise=system")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sordino.run(None, *REAL, out=tmp_path_factory.mktemp("evaluated") / "run").folder


def test_the_page_of_an_evaluator_is_stamped(run: Path, cli: Callable[..., Said]) -> None:
    said = cli("report", run, "--evaluator").out.strip()
    assert said == str(run / "private" / "evaluator-only.html")
    text = Path(said).read_text()
    assert "<title>EVALUATOR ONLY: sordino:" in text
    assert '<p class="notice">EVALUATOR ONLY: not to be shared.' in text
    assert Path(said).stat().st_mode & 0o077 == 0
    assert cli("report", run).code == 0
    assert "EVALUATOR ONLY" not in (run / "report.html").read_text()


def test_a_page_elsewhere_leaves_the_run_as_it_is(run: Path, tmp_path: Path, cli: Callable[..., Said]) -> None:
    """So that a page can be made of an archive that is read-only. The control: without --out the folder changes."""

    def state() -> dict[Path, tuple[int, bytes]]:
        files = [run, *run.rglob("*")]
        return {file: (file.stat().st_mtime_ns, file.read_bytes() if file.is_file() else b"") for file in files}

    before, pages = state(), tmp_path / "new" / "pages"
    assert cli("report", run, "--out", pages).out.strip() == str(pages / "report.html")
    assert cli("report", run, "--evaluator", "--out", pages).out.strip() == str(pages / "evaluator-only.html")
    assert state() == before
    assert "EVALUATOR ONLY" not in (pages / "report.html").read_text()
    assert (pages / "evaluator-only.html").stat().st_mode & 0o077 == 0
    assert cli("report", run, run, "--out", pages).code == 2
    assert cli("report", run).code == 0
    assert state() != before


def test_in_a_copy_of_the_files_that_may_be_shown_it_is_no_report(
    run: Path, tmp_path: Path, cli: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin, which asks whether there is a private folder, writes it as report.html and seals it."""

    def written(copy: Path) -> str:
        shutil.copytree(run, copy, ignore=shutil.ignore_patterns("private", "checkpoints", "data.key", "report.html"))
        page = Path(cli("report", copy, "--evaluator").out.strip())
        assert "EVALUATOR ONLY" in page.read_text()
        return str(page.relative_to(copy))

    before = run.joinpath("privacy.json").read_bytes()
    assert written(tmp_path / "one") == "private/evaluator-only.html"
    assert (tmp_path / "one" / "private").stat().st_mode & 0o077 == 0
    assert (tmp_path / "one" / "privacy.json").read_bytes() == before
    monkeypatch.setattr(run_page, "page_of", lambda folder, evaluator: folder / "report.html")
    assert written(tmp_path / "twin") == "report.html"
    sealed = json.loads((tmp_path / "twin" / "privacy.json").read_text())["files"]["report.html"]
    assert sealed == hashlib.sha256((tmp_path / "twin" / "report.html").read_bytes()).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("real", [True, False])
def test_figures_of_scores_that_no_epsilon_covers_are_for_their_owner(
    real: bool, run: Path, tmp_path: Path, cli: Callable[..., Said]
) -> None:
    """Of a run, and of a comparison, wherever they are written; the control may be read, as the user's mask says."""
    pytest.importorskip("matplotlib")
    given = REAL if real else (*REAL[:-1], "privacy.noise=counter")
    mine = run if real else sordino.run(None, *given, out=tmp_path / "run").folder
    cli("report", mine, "--evaluator", "--figures", "svg", "--out", tmp_path / "page")
    both = sordino.compare({"name": "a"}, {"name": "b"}, *given, "privacy.epsilon=8", seeds=1, out=tmp_path / "both")
    drawn = [*(tmp_path / "page" / "figures").iterdir(), *both.figures("svg")]
    assert {"partition", "accuracy-epsilon"} <= {path.stem.removeprefix("evaluator-only-") for path in drawn}
    assert {path.name.startswith("evaluator-only-") for path in drawn} == {real}
    assert {bool(path.stat().st_mode & 0o077) for path in drawn} == {not real}


@pytest.mark.slow
def test_figures_of_an_evaluator_lie_beside_that_page(run: Path, cli: Callable[..., Said]) -> None:
    pytest.importorskip("matplotlib")
    assert cli("report", run, "--evaluator", "--figures", "svg").code == 0
    assert (run / "private" / "figures" / "evaluator-only-accuracy.svg").is_file()
    assert not (run / "figures").exists()


def test_a_comparison_of_runs_that_protect_somebody_is_stamped_too(tmp_path: Path) -> None:
    both = sordino.compare({"name": "a"}, {"name": "b"}, *REAL, "privacy.epsilon=8", seeds=1, out=tmp_path / "real")
    page = both.report()
    assert "EVALUATOR ONLY: not to be shared" in page.read_text()
    assert page.stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_the_dashboard_calls_no_run_with_real_noise_simulated(run: Path) -> None:
    from sordino.report.dashboard.page import page
    from sordino.report.dashboard.run_state import WatchedRun

    watched = WatchedRun(run)
    until = time.monotonic() + 30
    while (now := watched.look()).spending is None and time.monotonic() < until:
        time.sleep(0.2)  # a thread of its own works it out
    text = page(watched, now, "0.00000000")
    lead = text.partition('class="lead">')[2].partition("</p>")[0]
    assert lead.endswith("3 clients; in one place.")
    assert "against anyone" in text
    assert "against the server<" not in text
