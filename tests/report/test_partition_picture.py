"""`sordino data plot`: the picture of a partition."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sordino import config
from sordino.partition.row_numbers import table
from sordino.report.partition_picture import LARGEST, LEVELS, NAMED, Frame, svg
from sordino.runs.population import Population
from tests.helpers.command_line import Said

SVG = "{http://www.w3.org/2000/svg}"


def drawn(counts: Any, **more: Any) -> ET.Element:
    return ET.fromstring(svg(np.asarray(counts), "Who holds <what> & why", **more))


def bubbles(picture: ET.Element) -> dict[tuple[int, int], float]:
    """(client, label) -> area, read back from where the circles lie."""
    found = {}
    for circle in picture.iter(f"{SVG}circle"):
        title = circle.find(f"{SVG}title")
        if title is not None:
            client, label = re.fullmatch(r"client (\d+), label (\d+): .*", title.text or "").groups()  # type: ignore[union-attr]
            found[int(client), int(label)] = float(circle.attrib["r"]) ** 2
    return found


def shaded(picture: ET.Element) -> dict[float, int]:
    """Opacity -> cells."""
    return {
        float(path.attrib["fill-opacity"]): path.attrib["d"].count("M")
        for path in picture.iter(f"{SVG}path")
        if "fill-opacity" in path.attrib
    }


def counts_of(clients: int, classes: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 60, (clients, classes)) * (rng.random((clients, classes)) < 0.6)


def test_the_area_of_a_bubble_is_its_count() -> None:
    counts = counts_of(12, 10)
    areas = bubbles(drawn(counts))
    assert set(areas) == set(map(tuple, np.argwhere(counts).tolist()))
    for (client, label), area in areas.items():
        assert area / areas[np.unravel_index(counts.argmax(), counts.shape)] == pytest.approx(  # type: ignore[index]
            counts[client, label] / counts.max(), abs=0.01
        )


@pytest.mark.parametrize(("clients", "classes"), [(100, 10), (1000, 10), (20, 100), (3000, 2)])
def test_where_bubbles_would_be_dust_every_cell_is_shaded(clients: int, classes: int) -> None:
    counts = counts_of(clients, classes)
    assert Frame(clients, classes).radius < LARGEST
    picture = drawn(counts)
    assert bubbles(picture) == {}
    wanted = np.ceil(LEVELS * np.sqrt(counts[counts > 0] / counts.max())) / LEVELS
    levels, cells = np.unique(np.round(wanted, 3), return_counts=True)
    assert shaded(picture) == dict(zip(levels.tolist(), cells.tolist(), strict=True))
    text = " ".join(element.text or "" for element in picture.iter(f"{SVG}text"))
    assert ("most frequent label" in text) == (clients > NAMED)


@pytest.mark.parametrize("clients", [1, 2, 20, 100, 1000])
def test_a_picture_needs_nothing_and_has_title_axes_and_legend(clients: int) -> None:
    text = svg(counts_of(clients, 10), "A & B <c>")
    picture = ET.fromstring(text)
    said = [element.text or "" for element in picture.iter(f"{SVG}text")]
    assert "A & B <c>" in said
    assert {"label", "examples of a label", "of each client"} <= set(said)
    assert any(line.startswith("client") for line in said)
    assert {str(c) for c in range(10)} <= set(said)
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert not {"script", "image", "use", "foreignObject"} & {
        element.tag.removeprefix(SVG) for element in picture.iter()
    }
    assert "prefers-color-scheme: dark" in text
    width, height = float(picture.attrib["width"]), float(picture.attrib["height"])
    for element in picture.iter():
        for name, end in (("x", width), ("cx", width), ("y", height), ("cy", height)):
            if name in element.attrib:
                assert 0 <= float(element.attrib[name]) <= end
    assert len(text) < 600_000


def test_nobody_with_nothing_is_drawn_too() -> None:
    assert bubbles(drawn(np.zeros((3, 2), int))) == {}
    assert not math.isnan(float(drawn([[5]], names=["all"]).attrib["height"]))


def test_names_of_classes_have_the_room_they_need() -> None:
    names = ["bus", "non-motorized_vehicle", "x" * 60]
    picture = drawn(counts_of(12, 3), names=names)
    said = {element.text: float(element.attrib["x"]) for element in picture.iter(f"{SVG}text") if "x" in element.attrib}
    cut = next(text for text in said if text and text.startswith("xxx"))
    assert len(cut) < 40
    for name in (*names[:2], cut):
        assert said[name] >= 30 + 7 * len(name)  # right-aligned: so far from the edge, past the name of the axis
    first = min(float(c.attrib["cx"]) for c in picture.iter(f"{SVG}circle"))
    assert first > said[cut]
    titles = [c.findtext(f"{SVG}title") or "" for c in picture.iter(f"{SVG}circle")]
    assert any(names[2] in title for title in titles)  # in full


def test_the_command_draws(cli: Callable[..., Said], tmp_path: Path) -> None:
    said = cli("data", "plot", "partition.clients=5", "--out", tmp_path / "mine.svg")
    assert (said.code, said.out) == (0, f"{tmp_path / 'mine.svg'}\n")
    counts = table((held := Population(config.load(None, ["partition.clients=5"]))).dataset.train.y, held.shares[0], 10)
    assert set(bubbles(ET.fromstring((tmp_path / "mine.svg").read_text()))) == set(
        map(tuple, np.argwhere(counts).tolist())
    )
    assert (
        cli("data", "plot", "data.source=quadratic", "partition={scheme='natural'}", "--out", tmp_path / "q.svg").code
        == 0
    )


def test_a_folder_that_is_not_there_is_named(
    cli: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = cli("data", "plot", "--out", "no/such/folder/p.svg")
    assert (answer.code, "not-writable" in answer.err, list(tmp_path.iterdir())) == (6, True, [])
