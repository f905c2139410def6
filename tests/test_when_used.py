"""A library that is loaded when something of it is first used."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sordino.branches import when_used


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package that nobody has loaded, with a part of its own, and a module that imports it."""
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "heavy_one"
    package.mkdir()
    (package / "__init__.py").write_text("VALUE = 7\n")
    (package / "part.py").write_text("import heavy_one\nWHOLE = heavy_one.VALUE\n")
    (tmp_path / "light_one.py").write_text("import heavy_one\ndef value():\n    return heavy_one.VALUE\n")
    (tmp_path / "eager_one.py").write_text("import heavy_one.part\nWHOLE = heavy_one.part.WHOLE\n")
    for name in ("heavy_one", "heavy_one.part", "light_one", "eager_one"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "heavy_one"


def test_to_import_costs_nothing_and_to_use_loads(library: str) -> None:
    with when_used(library):
        import light_one  # type: ignore[import-not-found]
    assert library not in sys.modules  # others look there for what is loaded
    assert light_one.value() == 7
    assert sys.modules[library].VALUE == 7


def test_a_part_of_it_loads_the_whole_first(library: str) -> None:
    with when_used(library):
        import eager_one  # type: ignore[import-not-found]

        assert eager_one.WHOLE == 7
        assert sys.modules[library].VALUE == 7


def test_what_is_loaded_stays_itself(library: str) -> None:
    import heavy_one  # type: ignore[import-not-found]

    with when_used(library):
        assert sys.modules[library] is heavy_one
