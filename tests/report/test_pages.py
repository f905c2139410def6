"""Both pages: one file each that loads nothing, says what the tables say, and is drawn by a real browser in both
themes.
"""

from __future__ import annotations

import html
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import sordino
from sordino.report import frame
from sordino.report.comparison_page import MethodFacts
from sordino.report.comparison_page import gather as page_of
from sordino.report.comparison_page import write as write_comparison
from sordino.report.run_facts import RunFacts, gather
from sordino.report.run_page import page
from sordino.results.comparison import Comparison
from sordino.results.comparison_table import shaped
from tests.helpers.browser import look

HOSTILE = "a </script><img src=x onerror=alert(1)> & 'b'"
METHODS = {
    "open": "[algorithm]\nname = 'fedavg'\n",
    HOSTILE: "[algorithm]\nname = 'gaussian_gdp'\nclip = 1.0\n[privacy]\nepsilon = 8.0\n",
    "published": "[algorithm]\nname = 'gaussian_sampled'\nvariant = 'published'\nrate = 0.1\n[privacy]\nepsilon = 8.0\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose formula says less than what holds: every part of the page has something to show."""
    out = tmp_path_factory.mktemp("pages") / "run"
    published = "algorithm={name='gaussian_sampled', variant='published', rate=0.1, clip=1.0, lr=2.0}"
    sordino.run(None, "rounds=4", "partition.clients=5", published, f'name="{HOSTILE}"', out=out)
    return out


@pytest.fixture(scope="module")
def facts(folder: Path) -> RunFacts:
    return gather(folder)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    place = tmp_path_factory.mktemp("compared")
    files = []
    for i, (name, text) in enumerate(METHODS.items()):
        files.append(place / f"{i}.toml")
        shared = f'name = "{name}"\nrounds = 2\n'
        files[-1].write_text(f"{shared}{text}[partition]\nscheme = 'iid'\nclients = 4\n")
    return sordino.compare(*files, seeds=2, out=place / "out")


@pytest.fixture(scope="module", params=["run", "comparison"])
def text(request: pytest.FixtureRequest, facts: RunFacts, compared: Comparison) -> str:
    return {"run": lambda: page(facts), "comparison": lambda: compared.report().read_text()}[request.param]()


@pytest.mark.slow
def test_a_page_needs_nothing_else(text: str) -> None:
    assert len(text.encode()) < 2_000_000
    assert not re.search(r"<[^>]*(src|href)\s*=\s*[\"'](?!data:)", text)
    assert not re.search(r"https?://", text)
    assert "default-src 'none'" in text  # and the browser would not let it


@pytest.mark.slow
def test_hostile_names_stay_text(text: str) -> None:
    assert html.escape(HOSTILE, quote=False) in text
    assert text.count("</script>") == 1
    assert "<img" not in text


def test_the_comparison_page_shows_the_table(compared: Comparison) -> None:
    facts, text = page_of(compared), compared.report().read_text()
    assert list(map(list, facts.table)) == shaped(compared.table)
    assert all(f">{html.escape(cell, quote=False)}</t" in text for row in facts.table for cell in row)
    for method, row in zip(facts.methods, compared.table, strict=True):
        assert method.curve[-1].mean == pytest.approx(row.measured["final"].mean)
        assert method.curve[-1].bytes == pytest.approx(row.measured["bytes"].mean)
        assert method.curve[-1].n == row.n == 2
    assert [method.name for method in facts.methods] == list(METHODS)
    assert html.escape(compared.command, quote=False) in text


def test_the_comparison_page_says_it_without_a_script(compared: Comparison) -> None:
    still = re.sub(r"<script.*?</script>", "", compared.report().read_text(), flags=re.S)
    for method in page_of(compared).methods:
        for row in method.guarantees:
            assert html.escape(row.words, quote=False) in still
            assert row.status == "nominal" or row.standing in still
    assert all(html.escape(line, quote=False) in still for line in compared.choosing)
    assert still.count("<polyline") == 4 * len(METHODS)


def test_points_are_where_epsilon_is_finite_and_nominal_stays_apart(compared: Comparison) -> None:
    points = {point.name: point for point in page_of(compared).points}
    assert "open" not in points
    assert points[HOSTILE].epsilon == pytest.approx(8.0)
    assert points[HOSTILE].nominal_epsilon is None
    assert points["published"].nominal_epsilon == pytest.approx(8.0)
    assert points["published"].epsilon > 8.0  # what holds is worse than what the formula prints


def test_what_was_held_equal_and_what_differs(compared: Comparison) -> None:
    facts = page_of(compared)
    assert {name for name, _ in facts.equal} >= {"data", "partition", "model", "cohort", "rounds", "evaluation"}
    assert "fedavg" in facts.methods[0].differs
    assert not any("partition" in method.differs for method in facts.methods)


def test_the_nominal_curve_is_not_the_one_that_holds(facts: RunFacts) -> None:
    (line,) = [c for c in facts.epsilon if c.unit == "example"]
    assert line.by == "anyone"
    assert line.nominal[-1][1] == pytest.approx(8.0)
    assert [t for t, _ in line.nominal] == [t for t, _ in line.points] == [1, 2, 3, 4]
    assert all(said < holds for (_, said), (_, holds) in zip(line.nominal, line.points, strict=True))


@pytest.mark.slow
def test_a_thousand_clients_over_many_rounds_fit(folder: Path, facts: RunFacts) -> None:
    clients, rounds = 1000, 200
    many = {"metric": "accuracy", "mean": 0.5, "std": 0.1, "worst_tenth": 0.2, "each": [0.123456789] * clients}
    (folder / "metrics.jsonl").rename(folder / "kept")
    rows = [
        {"round": t, "accuracy": 0.5, "loss": 1.0, "bytes_up": 10, "bytes_down": 10, "clients": many}
        for t in range(1, rounds + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    try:
        thin = gather(folder).metrics
    finally:
        (folder / "kept").rename(folder / "metrics.jsonl")
    assert [row.round for row in thin] == [row["round"] for row in rows]
    assert [i for i, row in enumerate(thin) if row.clients.each is not None] == [rounds - 1]
    by_client = tuple(facts.spent.by_client[0].beside(client=k) for k in range(clients))
    big = facts.beside(metrics=thin, spent=facts.spent.beside(by_client=by_client), partition=((1,) * 62,) * clients)
    assert len(page(big)) < 1_000_000


# colours --------------------------------------------------------------------------------------------------------------


def linear(colour: str) -> Any:
    values = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(a: str, b: str) -> float:
    """WCAG 2.2."""
    high, low = sorted((float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (a, b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


# Machado, Oliveira and Fernandes 2009, severity 1
BLIND = {
    "none": np.eye(3),
    "protan": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    "deutan": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
}  # fmt: skip


def lab(colour: str, eye: str) -> Any:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(BLIND[eye] @ linear(colour), 0, 1) / [0.9505, 1.0, 1.089]
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def nearest(colours: list[str], eye: str) -> float:
    return min(float(np.linalg.norm(lab(a, eye) - lab(b, eye))) for a, b in itertools.combinations(colours, 2))


@pytest.mark.parametrize("theme", [frame.LIGHT, frame.DARK], ids=["light", "dark"])
def test_colours_are_seen_and_told_apart(theme: dict[str, str]) -> None:
    assert contrast(theme["ink"], theme["paper"]) >= 7
    assert all(contrast(theme[name], theme["card"]) >= 4.5 for name in ("ink", "soft", "good", "mild", "warn", "c0"))
    assert all(contrast(theme[name], theme["card"]) >= 3 for name in frame.SERIES)
    # CIE 1976 distance; 2.3 is just noticeable, side by side
    assert min(nearest([theme[name] for name in frame.SERIES], eye) for eye in BLIND) > 14


def test_the_colour_check_sees_a_red_and_a_green_of_one_lightness() -> None:
    pair = ["#b8452c", "#6a7300"]
    assert nearest(pair, "none") > 40
    assert min(nearest(pair, eye) for eye in BLIND) < 14


# in a browser ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_browser_draws_a_run(facts: RunFacts, tmp_path: Path, theme: str) -> None:
    seen = look(page(facts), tmp_path, theme)
    assert seen.wrong == []
    raw = seen.raw
    assert raw["plots"] == [
        "Test accuracy", "Each client at the end, from worst to best", "Test accuracy over bytes sent", "Test accuracy over device compute", "Traffic",
        "Epsilon that holds, over rounds", "What the published formula gives", "Spent of what each client granted", "Labels of each client",
    ]  # fmt: skip
    assert raw["ground"] == rgb(getattr(frame, theme.upper())["paper"])
    assert raw["reading"].startswith("round 4: global model")  # by keyboard
    assert raw["tables"]["Test accuracy"][-1][1] == f"{facts.metrics[-1].accuracy:.1%}"
    (line,) = facts.epsilon
    assert float(raw["tables"]["Epsilon that holds, over rounds"][-1][1]) == pytest.approx(line.points[-1][1], rel=1e-3)
    assert float(raw["tables"]["What the published formula gives"][-1][1]) == pytest.approx(8.0)
    counts = [[int(v) for v in row[1:-1]] for row in raw["tables"]["Labels of each client"][1:]]
    assert counts == [list(row) for row in facts.partition]
    assert "nominal ε 8: proves nothing" in raw["badges"]
    assert "nominal: not a guarantee" in raw["badges"]
    assert HOSTILE in raw["text"]
    assert raw["dangling"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_browser_draws_a_comparison(compared: Comparison, tmp_path: Path, theme: str) -> None:
    seen = look(compared.report().read_text(), tmp_path, theme)
    assert seen.wrong == []
    raw = seen.raw
    assert raw["plots"] == [
        "Test accuracy over rounds", "Test accuracy over bytes sent", "Test accuracy over device compute", "Worst 10% of clients",
        "Accuracy and epsilon per example",
    ]  # fmt: skip
    assert raw["ground"] == rgb(getattr(frame, theme.upper())["paper"])
    assert raw["reading"].startswith("round 2: open ")
    (result,) = (rows for caption, rows in raw["tables"].items() if caption.startswith("target"))
    assert result == shaped(compared.table)
    assert all(sentence in raw["text"] for sentence in compared.choosing)
    assert compared.command in raw["text"]


@pytest.mark.slow
@pytest.mark.parametrize("width", [500, 820])
def test_narrow_windows_do_not_scroll_sideways(
    facts: RunFacts, compared: Comparison, tmp_path: Path, width: int
) -> None:
    for text in (page(facts), compared.report().read_text()):
        assert look(text, tmp_path, width=width).wrong == []


END = "ready(document);\n"  # of the script
BROKEN = {
    "throws": (lambda text: text.replace(END, f"{END} throw new Error('no');"), "error: Uncaught Error: no"),
    "fetches": (lambda text: text.replace(END, f"{END} fetch('http://127.0.0.1:9/x').catch(() => 0);"), "request: "),
    "fetches unhindered": (
        lambda text: re.sub(r"<meta http-equiv[^>]*>", "", text).replace(END, f"{END} new Image().src = 'http://127.0.0.1:9/x.png';"),
        "request: ",
    ),
    "draws nothing": (lambda text: re.sub(r"(<svg width=.100%[^>]*>).*?(</svg></div>)", r"\1\2", text, flags=re.S), "drawn: 0 of 9"),
    "is too wide": (lambda text: text.replace("<main", "<main style='min-width: 3000px'"), "wider"),
    "has no words for a chart": (lambda text: text.replace('role="img" ', ""), "charts without words: 9"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_the_probe_sees_a_broken_page(facts: RunFacts, tmp_path: Path, name: str) -> None:
    breaking, expected = BROKEN[name]
    whole = page(facts)
    broken = breaking(whole)
    assert broken != whole
    assert any(line.startswith(expected) for line in look(broken, tmp_path).wrong)


@pytest.mark.slow
def test_a_comparison_without_accuracy_is_drawn(compared: Comparison, tmp_path: Path) -> None:
    def lost(m: MethodFacts) -> MethodFacts:
        points = (p.beside(mean=3.0 - p.round, std=0.1, worst=None, worst_std=None) for p in m.curve)
        return m.beside(curve=tuple(points))

    methods = tuple(map(lost, page_of(compared).methods))
    facts = page_of(compared).beside(metric="loss", methods=methods, points=())
    seen = look(write_comparison(facts, tmp_path / "page.html").read_text(), tmp_path)
    assert seen.wrong == []
    assert seen.raw["plots"] == [f"Test loss over {what}" for what in ("rounds", "bytes sent", "device compute")]


def rgb(colour: str) -> str:
    return f"rgb({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))})"


DOCS = Path(__file__).parents[2] / "docs"
SHOTS = {"report-light.png": "LIGHT", "report-dark.png": "DARK", "comparison-light.png": "LIGHT"}


def check_pictures(images: Path) -> None:
    for name, theme in SHOTS.items():
        assert (images / name).stat().st_size < 300_000
        shot = Image.open(images / name).convert("RGB")
        assert shot.width >= 1000
        paper = getattr(frame, theme)["paper"]
        ground = tuple(int(paper[i : i + 2], 16) for i in (1, 3, 5))
        # few colours are kept, so the ground may be a shade off
        assert max(abs(a - b) for a, b in zip(shot.getpixel((2, 2)), ground, strict=True)) <= 3
        colours = shot.getcolors(1 << 20)
        assert len(colours) > 30  # something was drawn


def test_the_pictures_in_the_docs_are_those_of_the_pages() -> None:
    check_pictures(DOCS / "images")


@pytest.mark.slow
def test_the_pictures_can_be_made_again(tmp_path: Path) -> None:
    script = subprocess.run([sys.executable, DOCS / "screenshots.py", tmp_path], capture_output=True, text=True)
    assert script.returncode == 0, script.stderr
    check_pictures(tmp_path)
