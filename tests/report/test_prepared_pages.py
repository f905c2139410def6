"""Pages and comparisons of runs that prepared: what the preparation cost is charged, and drawn."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from sordino.metrics.measures import flops_until, in_front, traffic
from sordino.receipts.folder import RunFolder
from sordino.report import figures
from sordino.report.comparison_page import gather as page_of
from sordino.report.run_facts import gather
from sordino.report.run_page import page
from sordino.results import comparison
from sordino.results.comparison import Comparison, Method, table
from sordino.results.comparison_table import as_latex, cell, lines, snippet, text
from sordino.runs.simulation import Simulation
from sordino.synthesis.public_images.store import PROXY
from tests.helpers.browser import look
from tests.report.prepared import run


@pytest.mark.slow
def test_the_figures_begin_with_the_preparation(folder: Path) -> None:
    from matplotlib.figure import Figure

    facts = gather(folder)
    rows = [*in_front(RunFolder(folder).prepared()), *RunFolder(folder).metrics()]
    for name, ends in (("score-bytes", traffic(rows) / 1e6), ("score-compute", flops_until([rows])[3] / 1e12)):
        axes = Figure().subplots()
        assert figures.RUN[name](facts, axes)
        (line,) = axes.get_lines()
        assert line.get_xdata()[-1] == pytest.approx(ends)
        assert list(line.get_ydata()) == pytest.approx([100 * row.accuracy for row in rows if row.accuracy is not None])
    axes = Figure().subplots()
    assert figures.RUN["traffic"](facts, axes)
    assert [line.get_xdata()[0] for line in axes.get_lines()] == [0, 0]
    untold = tuple(row.beside(device_flops=None) for row in facts.metrics)
    assert not figures.RUN["score-compute"](facts.beside(metrics=untold), Figure().subplots())


# compared -------------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def compared(folder: Path, parts: Simulation) -> Comparison:
    rows = RunFolder(folder).metrics()
    notes = (comparison._notes(folder),)
    slaug = Method("slaug", [[*in_front(RunFolder(folder).prepared()), *rows]], [], parts.setup.experiment, notes)
    return Comparison([slaug, Method("plain", [rows], [], ledgers=notes)], folder, "sordino compare ...", target=0.0)


def test_a_comparison_charges_the_preparation(compared: Comparison, folder: Path) -> None:
    slaug, plain = compared.table
    sent = sum(row.bytes for row in RunFolder(folder).prepared())
    assert (slaug.measured["before"].mean, plain.measured["before"].mean) == (sent, 0)
    assert (
        slaug.measured["bytes_to_target"].mean - plain.measured["bytes_to_target"].mean
        == slaug.measured["bytes"].mean - plain.measured["bytes"].mean
        == sent
    )
    assert slaug.measured["rounds_to_target"].mean == plain.measured["rounds_to_target"].mean
    assert (slaug.measured["at_equal_bytes"].mean is None) == (sent > plain.measured["bytes"].mean)
    assert "of them before round 1" in lines(compared.table)[0]
    assert "of them before round 1" not in lines([plain])[0]  # nobody prepared: nothing is said
    curves = {m.name: m.curve for m in page_of(compared).methods}
    extra = in_front(RunFolder(folder).prepared())[0].device_flops
    for ours, others in zip(curves["slaug"], curves["plain"], strict=True):
        assert ours.bytes - others.bytes == sent
        assert ours.flops - others.flops == pytest.approx(extra)


def test_not_reached_is_said(compared: Comparison) -> None:
    row, _ = table(compared.methods, target=1.01)
    assert [cell(row, name) for name in ("rounds_to_target", "bytes_to_target")] == ["not reached", "not reached"]
    half = Method("half", [run(0.9), run(0.1)], [])
    (row,) = table([half], target=0.5)
    assert cell(row, "rounds_to_target") == "1.0 (not reached: 1 of 2)"


def test_a_comparison_names_the_candidates_everywhere(compared: Comparison) -> None:
    console = Console(width=200, file=io.StringIO())
    console.print(text(compared.table))
    facts = page_of(compared)
    assert facts.candidates == (f"slaug: {PROXY}",)
    for said in (console.file.getvalue(), as_latex(compared.table), snippet(compared.table, [])):  # type: ignore[attr-defined]
        assert f"slaug: {PROXY}" in said
        assert "plain: " not in said


# the page -------------------------------------------------------------------------------------------------------------
def test_the_page_carries_its_pictures(folder: Path) -> None:
    whole = page(gather(folder))
    assert whole.count("data:image/png;base64,") == 30  # three strips for each of ten classes
    assert len(whole.encode()) < 1_000_000
    assert "img-src data:" in whole
    assert PROXY in whole


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_browser_draws_what_was_prepared(folder: Path, compared: Comparison, tmp_path: Path, theme: str) -> None:
    facts = gather(folder)
    seen = look(page(facts), tmp_path, theme)
    assert seen.wrong == []
    raw, found = seen.raw, facts.prepared
    assert {"Test accuracy over bytes sent", "Test accuracy over device compute"} <= set(raw["plots"])
    asked = raw["tables"]["Class by class: who was asked, best first, and what was kept"]
    assert [int(row[0]) for row in asked[1:]] == list(range(10))
    declined = sum(not device.answered for row in found.classes for device in row.asked)
    assert sum(row[1].count("declined") for row in asked[1:]) == declined > 0
    sent = raw["tables"]["Traffic beyond plain training, by kind of message"]
    assert f"{found.cost.formula_parameters:,}" in sent[-1]
    assert any(
        "not reached" in row
        for row in raw["tables"]["What it takes to reach an accuracy, in rounds of plain training and in bytes"]
    )
    assert PROXY in raw["text"]
    assert "Only a simulation may look that up" in raw["text"]
    seen = look(compared.report(tmp_path / "comparison.html").read_text(), tmp_path, theme)
    assert seen.wrong == []
    assert "Test accuracy over device compute" in seen.raw["plots"]
    assert f"slaug: {PROXY}" in seen.raw["text"]


@pytest.mark.slow
def test_the_page_of_a_narrow_window(folder: Path, tmp_path: Path) -> None:
    assert look(page(gather(folder)), tmp_path, width=500).wrong == []
