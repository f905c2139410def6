"""`sordino ...` in the process of the tests: what it said, and how it ended."""

from __future__ import annotations

import sys
from functools import cache
from typing import NamedTuple

import pytest
import typer.main

from sordino.cli import main

# typer builds all commands anew at every call, which takes longer than most of them do
built = cache(typer.main.get_command)


class Said(NamedTuple):
    code: int
    out: str
    err: str


def spoken(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object) -> Said:
    monkeypatch.setattr(sys, "argv", ["sordino", *map(str, arguments)])
    monkeypatch.setattr(typer.main, "get_command", built)
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr()
    return Said(end.value.code if isinstance(end.value.code, int) else int(end.value.code is not None), *said)
