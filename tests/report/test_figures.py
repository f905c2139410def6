"""Figures for papers: the numbers of the facts, in vector text, the same file every time; and a plain word where
matplotlib is missing.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import sordino
from sordino.cli.program import app
from sordino.errors import SordinoError
from sordino.report import figures
from sordino.report.comparison_page import ComparisonFacts
from sordino.report.frame import LIGHT
from sordino.report.run_facts import gather

pytestmark = pytest.mark.slow  # they import matplotlib
pytest.importorskip("matplotlib")
POINT = {"n": 2, "std": 0.05, "worst": 0.3, "worst_std": None}
POINT_OF_ONE = {
    "unit": "example", "neighbours": "zero_out", "adversary": "server", "by": "anyone", "delta": 1e-5, "words": "", "strength": "", "belief": "",
    "assumes": [], "because": [],
}  # fmt: skip


def method(name: str, step: int) -> dict[str, Any]:
    curve = [{**POINT, "round": t, "mean": 0.1 * step * t, "bytes": 1e6 * step * t, "flops": None} for t in (1, 2, 3)]
    return {"name": name, "label": name, "curve": curve, "guarantees": [], "differs": "", "experiment": ""}


FACTS = ComparisonFacts.model_validate_json(json.dumps({
    "title": "", "lead": "", "notice": "", "metric": "accuracy", "seeds": 2, "caption": "", "measured_by": "global model", "candidates": [],
    "prepared": False, "table": [], "choosing": [], "equal": [], "command": "",
    "environment": {"sordino": "", "python": "", "platform": "", "cores": 1},
    "methods": [method("one", 1), method("a & <b> $x$", 2)],
    "points": [
        {**POINT_OF_ONE, "name": "one", "epsilon": 8.0, "status": "proved", "standing": "proved", "score": 0.3, "std": 0.01},
        {**POINT_OF_ONE, "name": "a & <b> $x$", "epsilon": 60.0, "nominal_epsilon": 8.0, "status": "nominal", "standing": "nominal", "score": 0.6, "std": None},
    ],
}))  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("figures") / "run"
    published = "algorithm={name='gaussian_sampled', variant='published', rate=0.1, clip=1.0, lr=2.0}"
    sordino.run(None, "rounds=3", "partition.clients=5", published, out=out)
    return out


def axes() -> Any:
    from matplotlib.figure import Figure

    return Figure().subplots()


def drawn(draw: Any, facts: Any) -> dict[str, list[float]]:
    """Label -> heights of each line."""
    place = axes()
    assert draw(facts, place)
    return {line.get_label(): list(line.get_ydata()) for line in place.get_lines()}


def legend(place: Any) -> list[str]:
    return [text.get_text().replace("\n", " ") for text in place.get_legend().get_texts()]


def test_a_run_is_drawn_from_its_facts(folder: Path) -> None:
    facts = gather(folder)
    lines = drawn(figures.RUN["score"], facts)
    assert lines["global model"] == pytest.approx([100 * row.accuracy for row in facts.metrics])
    lines = drawn(figures.RUN["epsilon"], facts)
    assert lines["one example (replace), against anyone: holds (simulation)"] == pytest.approx(
        [e for _, e in facts.epsilon[0].points]
    )
    assert lines["nominal: proves nothing"][-1] == pytest.approx(8.0)
    lines = drawn(figures.RUN["traffic"], facts)
    assert lines["up, from clients"][-1] == pytest.approx(sum(row.bytes_up for row in facts.metrics) / 1e6)


def test_every_epsilon_is_drawn_with_what_belongs_to_it(folder: Path) -> None:
    """In a paper a figure stands alone: a single line without a legend would be an epsilon of nobody."""
    place, facts = axes(), gather(folder)
    (line, *_) = facts.epsilon
    assert figures.RUN["epsilon"](facts.beside(epsilon=(line.beside(nominal=None),)), place)
    assert legend(place) == ["one example (replace), against anyone: holds (simulation)"]
    assert place.get_ylabel() == "ε at δ = 1e-05"
    place = axes()
    assert figures.COMPARISON["score-epsilon"](FACTS, place)
    for point in FACTS.points:
        assert f"{point.name} (per example, zero_out, against anyone, δ 1e-05, {point.standing})" in legend(place)


def test_no_margin_cuts_off_the_status_of_an_epsilon(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    inside: list[bool] = []

    def kept(figure: Any, *_: object, **__: object) -> None:
        (place,) = figure.axes
        figure.canvas.draw()
        if shown := place.get_legend():
            box, whole = shown.get_window_extent(), figure.bbox
            inside.append(box.x0 >= 0 and box.x1 <= whole.x1 and place.bbox.width > whole.width / 2)

    monkeypatch.setattr(Figure, "savefig", kept)
    facts = gather(folder)
    (line, *_) = facts.epsilon
    figures.of_run(facts.beside(epsilon=(line.beside(by="participants and the public"),)), folder / "kept")
    figures.of_comparison(FACTS, folder / "kept", "svg")
    assert len(inside) > 4
    assert all(inside)


def test_a_bubble_has_the_area_of_its_count(folder: Path) -> None:
    facts = gather(folder)
    place = axes()
    assert figures.RUN["partition"](facts, place)
    (bubbles,) = place.collections
    counts = [count for row in facts.partition for count in row if count]
    ratio = [size / count for size, count in zip(bubbles.get_sizes(), counts, strict=True) if size > 0.2]
    assert len(ratio) > 10
    assert max(ratio) == pytest.approx(min(ratio))


def test_nominal_looks_like_nothing_that_holds() -> None:
    place = axes()
    assert figures.COMPARISON["score-epsilon"](FACTS, place)
    cross = next(line for line in place.get_lines() if line.get_label() == "nominal: proves nothing")
    assert list(cross.get_xdata()) == [8.0]
    assert cross.get_marker() == "x"
    assert cross.get_color() == LIGHT["warn"]
    others = [line for line in place.get_lines() if line.get_marker() == "o"]
    assert [list(line.get_xdata()) for line in others] == [[8.0], [60.0]]
    assert all(line.get_color() != LIGHT["warn"] for line in others)


def test_whose_answers_are_drawn_stands_at_the_axis_and_in_the_legend() -> None:
    own = FACTS.methods[0].beside(label="one (clients' own models)")
    for draw in (figures.COMPARISON["score-rounds"], figures.COMPARISON["score-epsilon"]):
        place = axes()
        assert draw(FACTS.beside(measured_by="as each line says", methods=(own, FACTS.methods[1])), place)
        assert place.get_ylabel() == "test accuracy (%)\nas each line says"
    assert "one (clients' own models)" in drawn(figures.COMPARISON["score-rounds"], FACTS.beside(methods=(own,)))


def test_lines_repeat_neither_colour_nor_dash_together() -> None:
    styles = [(line["color"], str(line["linestyle"])) for line in map(figures.line, range(30))]
    assert len(set(styles)) == 30
    assert len({colour for colour, _ in styles[:6]}) == len({dash for _, dash in styles[:6]}) == 6


@pytest.mark.parametrize("kind", ["svg", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("pdf", "png"))])
def test_the_same_facts_give_the_same_files(tmp_path: Path, kind: str) -> None:
    once, again = (figures.of_comparison(FACTS, tmp_path / place, kind) for place in ("a", "b"))
    assert [path.name for path in once] == [f"accuracy-{over}.{kind}" for over in ("rounds", "bytes", "epsilon")]
    assert [a.read_bytes() for a in once] == [b.read_bytes() for b in again]


def test_text_stays_text_and_names_stay_names(tmp_path: Path) -> None:
    rounds, *_ = figures.of_comparison(FACTS, tmp_path, "svg")
    words = re.findall(r"<text[^>]*>([^<]*)</text>", rounds.read_text())
    assert "one" in words
    assert "round" in words
    assert "a &amp; &lt;b&gt; $x$" in words  # a dollar in a name is not mathematics


def test_a_figure_is_called_as_the_measure_that_it_shows(tmp_path: Path) -> None:
    """Of a regression no file says accuracy, neither in its name nor in it."""
    found = figures.of_comparison(FACTS.beside(metric="mean_absolute_error", points=()), tmp_path, "svg")
    assert [path.stem for path in found] == ["mean-absolute-error-rounds", "mean-absolute-error-bytes"]
    assert not any("accuracy" in path.read_text().lower() for path in found)


def test_what_cannot_be_drawn_is_left_out(tmp_path: Path) -> None:
    empty = FACTS.beside(points=())
    assert [path.stem for path in figures.of_comparison(empty, tmp_path, "pdf")] == [
        "accuracy-rounds",
        "accuracy-bytes",
    ]


def test_compute_is_drawn_of_the_methods_that_tell() -> None:
    one, other = FACTS.methods
    told = one.beside(curve=tuple(point.beside(flops=3e12 * point.round) for point in one.curve))
    place = axes()
    assert figures.COMPARISON["score-compute"](FACTS.beside(methods=(told, other)), place)
    (line,) = place.get_lines()
    assert (line.get_label(), list(line.get_xdata())) == ("one", [3.0, 6.0, 9.0])
    assert not figures.COMPARISON["score-compute"](FACTS, axes())


def test_a_kind_nobody_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SordinoError) as refused:
        figures.of_comparison(FACTS, tmp_path, "bmp")
    assert refused.value.code == "unknown-figure-kind"


def test_without_matplotlib_the_fix_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for draw in (lambda: figures.of_run(FACTS, tmp_path), lambda: figures.of_comparison(FACTS, tmp_path, "pdf")):
        with pytest.raises(SordinoError) as refused:
            draw()
        assert refused.value.code == "no-matplotlib"
        assert "pip install 'sordino[plots]'" in refused.value.fix


def test_the_report_verb_writes_them_beside_the_page(folder: Path) -> None:
    said = CliRunner().invoke(app, ["report", str(folder), "--figures", "svg"])
    assert said.exit_code == 0, said.output
    names = [Path(line).name for line in said.stdout.split()]
    drawn_ = ["accuracy", "accuracy-bytes", "accuracy-compute", "epsilon", "traffic", "partition"]
    assert names == ["report.html", *(f"{name}.svg" for name in drawn_)]
    assert all(Path(line).is_file() for line in said.stdout.split())
