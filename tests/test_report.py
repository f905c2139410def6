"""The report page: self-contained, true to the receipt, drawn by a real browser without an error or a request."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sordino import run
from sordino.report.facts import gather
from sordino.report.html import page, write
from sordino.report.words import merged, sentence, strength

ROW = {
    "unit": "example", "neighbours": "replace", "adversary": "server", "epsilon": 1.0, "delta": 1e-5, "status": "proved", "because": [], "releases": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "run"
    run(None, "rounds=3", "partition.clients=5", "name=a </script> name", out=out)
    return out


def test_the_page_needs_nothing_else(folder: Path) -> None:
    text = write(folder).read_text()
    assert len(text) < 2_000_000
    bare = text.replace("http://www.w3.org/2000/svg", "")  # the namespace of SVG, never fetched
    assert not re.search(r"(src|href)\s*=\s*[\"'](?!data:,)", bare)
    assert not re.search(r"https?://(?!github\.com/leeoniya)", bare)  # the chart library names its home in a comment
    assert "/*FACTS*/" not in text


def test_the_facts_survive_hostile_names(folder: Path) -> None:
    text = page(gather(folder))
    block = re.search(r'<script id="facts" type="application/json">(.*?)</script>', text, re.S)
    assert block is not None
    facts = json.loads(block.group(1))
    assert facts["name"] == "a </script> name"
    assert text.count("</script>") == 3


def test_the_facts_are_those_of_the_receipt(folder: Path) -> None:
    facts = gather(folder)
    receipt = json.loads((folder / "privacy.json").read_text())
    assert {row["epsilon"] for row in facts["guarantees"]} == {row["epsilon"] for row in receipt["guarantees"]}
    curve = next(c for c in facts["epsilon"] if c["unit"] == "example")
    assert [stop for stop, _ in curve["points"]] == [1, 2, 3]
    values = [value for _, value in curve["points"]]
    assert values == sorted(values)  # what was spent never falls
    assert values[-1] == pytest.approx(8.0, rel=1e-6)
    assert sum(map(sum, facts["partition"])) == facts["examples"]


def test_words_say_the_number_and_the_subject() -> None:
    text = sentence(ROW, ["server"])
    assert "one example" in text
    assert "the server" in text
    assert f"{math.e:.2g} times" in text
    assert "1e-05" in text
    assert "Nothing is promised" in sentence(
        {**ROW, "epsilon": "inf", "status": "none", "because": ["raw"]}, ["server"]
    )
    nominal = sentence({**ROW, "status": "nominal", "nominal_epsilon": 0.5, "because": ["no proof"]}, ["server"])
    assert "proves nothing" in nominal
    assert "0.5" in nominal


def test_rows_merge_only_where_they_say_the_same() -> None:
    others: list[dict[str, Any]] = [
        {**ROW, "adversary": "public"},
        {**ROW, "adversary": "participants", "epsilon": 2.0},
    ]
    assert [by for _, by in merged([ROW, *others])] == [["server", "public"], ["participants"]]


def test_strength_has_no_word_stronger_than_the_number() -> None:
    words = [strength(e) for e in (0.1, 1, 3, 8, 50, "inf")]
    assert words[0] == words[1] == "strong"
    assert len(dict.fromkeys(words)) == 5
    assert words[-1] == "no protection"


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_browser_draws_it(folder: Path, theme: str, tmp_path: Path) -> None:
    browser = shutil.which("chromium")
    assert browser is not None, "install chromium (.ci/run does)"
    source = write(folder, tmp_path / "report.html")
    # the page reports on itself: what went wrong, what it fetched, what it drew
    probe = """<script>addEventListener("load", () => setTimeout(() => { const drawn = [...document.querySelectorAll("canvas")].filter(c =>
      c.width && c.getContext("2d").getImageData(0, 0, c.width, c.height).data.some(v => v)).length;
      document.title = JSON.stringify({ errors: window.failures, fetched: performance.getEntriesByType("resource").length, drawn,
      wide: document.documentElement.scrollWidth <= innerWidth, promises: document.querySelectorAll("#promises li").length }); }, 500));</script>"""
    first = '<script>window.failures = []; addEventListener("error", e => window.failures.push(e.message));</script>'
    source.write_text(source.read_text().replace("<head>", f"<head>{first}").replace("</body>", f"{probe}</body>"))
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync"
    if theme == "dark":
        flags += " --blink-settings=preferredColorScheme=0"
    command = [
        browser,
        *flags.split(),
        f"--user-data-dir={tmp_path}/profile",
        "--window-size=1100,2000",
        "--virtual-time-budget=4000",
        "--dump-dom",
        source.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.S)
    assert title is not None
    seen = json.loads(title.group(1))
    assert seen["errors"] == []
    assert seen["fetched"] == 0
    assert seen["drawn"] >= 4  # accuracy, traffic, epsilon, partition
    assert seen["wide"]
    assert seen["promises"] == 3
