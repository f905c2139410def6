"""The notebooks run from top to bottom, are kept without outputs, and are found in the documentation."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.repository.following import DO, Block

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
MADE = ("clinic_net",)  # modules that a notebook writes
TOLD = {"unit", "neighbours", "adversary", "delta", "status"}  # what belongs to an epsilon

by_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code(path: Path) -> Iterator[str]:
    """Its cells, in order; magics of notebooks are not Python."""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            yield "".join(cell["source"])


def play(cells: Iterator[str]) -> int:
    """Cells one after another in one namespace, as the blocks of a page; how many there were."""
    names: dict[str, Any] = {"__name__": "__main__"}
    number = 0
    for number, cell in enumerate(cells, 1):
        DO["python"](Block("python", {}, cell, number), names)
    return number


def test_they_are_kept_clean_and_found() -> None:
    page = (ROOT / "docs" / "guide" / "python.md").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) == 4
    for path in NOTEBOOKS:
        assert f"examples/notebooks/{path.name}" in page
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells if "outputs" in cell)
        assert all(ast.parse(cell).body for cell in code(path))
        assert len({cell["id"] for cell in cells}) == len(cells)


def unsaid(cell: str) -> set[str]:
    """What a table of guarantees that shows epsilon leaves out of what belongs to it."""
    tables = [set(ast.literal_eval(found)) for found in re.findall(r"\.privacy\[(\[.*?\])\]", cell)]
    return {name for shown in tables if "epsilon" in shown for name in TOLD - shown}


def test_no_epsilon_stands_without_what_belongs_to_it() -> None:
    """Nor is a bound printed as the nearest number, which may be below it."""
    assert unsaid('result.privacy[["unit", "adversary", "epsilon", "delta"]]') == {"neighbours", "status"}
    for path in NOTEBOOKS:
        assert [(path.name, unsaid(cell)) for cell in code(path) if unsaid(cell)] == []
        assert not [cell for cell in code(path) if re.search(r"posterior:[ \d]*\.\d%", cell)], path.name


def test_a_cell_that_fails_is_noticed() -> None:
    assert play(iter(["x = 1", "assert x == 1"])) == 2
    with pytest.raises(AssertionError):
        play(iter(["x = 1", "assert x == 2"]))


@pytest.mark.slow
@by_notebook
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")  # modules lie in the current directory, as in a notebook
    try:
        assert play(code(path)) > 4
    finally:
        for name in MADE:
            sys.modules.pop(name, None)
        if plots := sys.modules.get("matplotlib.pyplot"):
            plots.close("all")
