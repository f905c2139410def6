"""Flower is used in one version and in one form, and whoever has another is told why."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from sordino.errors import BackendUnavailable
from sordino.letters.flower import pinned
from sordino.letters.flower.pinned import PINNED, check_installed, refuse_stock

ROOM = Path(pinned.__file__).parent


def installed(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    def found(name: str) -> str:
        if version is None:
            raise PackageNotFoundError(name)
        return version

    monkeypatch.setattr(pinned, "version", found)


def test_the_pinned_version_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, PINNED)
    check_installed()


@pytest.mark.parametrize(
    ("version", "code"), [(None, "missing-flower-extra"), ("1.40.0", "other-flower"), ("1.42.0", "other-flower")]
)
def test_any_other_is_refused(monkeypatch: pytest.MonkeyPatch, version: str | None, code: str) -> None:
    installed(monkeypatch, version)
    with pytest.raises(BackendUnavailable) as refusal:
        check_installed()
    assert refusal.value.code == code
    assert PINNED in refusal.value.fix


def test_a_stock_server_is_refused_with_the_reason() -> None:
    refusal = refuse_stock("hub.example:9092")
    assert refusal.code == "stock-flower"
    assert "hub.example:9092" in refusal.what
    assert "code of that run" in refusal.why
    assert refusal.fix


def test_the_extra_has_the_pin() -> None:
    assert f'flower = ["flwr=={PINNED}"]' in (ROOM.parents[2] / "pyproject.toml").read_text()


def test_one_file_imports_flower() -> None:
    foreign = ("flwr", "uvicorn", "httpx", "google")
    importing = {
        file.name
        for file in ROOM.glob("*.py")
        for line in file.read_text().splitlines()
        if line.strip().startswith(tuple(f"{word} {name}" for word in ("import", "from") for name in foreign))
    }
    assert importing == {"interfaces.py"}
