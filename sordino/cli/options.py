"""Options that several verbs share."""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import Annotated, TextIO

import typer


class Kind(StrEnum):
    pdf = "pdf"
    png = "png"
    svg = "svg"


class _Heard(logging.StreamHandler[TextIO]):
    """What --verbose has put there."""


def _listen(asked: bool) -> None:
    """Shows what the library tells Python's logging."""
    log = logging.getLogger("sordino")
    for old in [handler for handler in log.handlers if isinstance(handler, _Heard)]:
        log.removeHandler(old)
    if asked:
        shown = _Heard()
        shown.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        log.addHandler(shown)
        log.setLevel(logging.INFO)


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", metavar="NAME", help="Tell it to tensorboard, mlflow, wandb or trackio too; repeatable."),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", callback=_listen, expose_value=False, help="Say on standard error what is decided, and why."
    ),
]
Encoding = Annotated[str | None, typer.Option(help="How letters are written: utf-8, cp1252, latin-1, ...")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Figures = Annotated[
    Kind | None, typer.Option("--figures", help="Also write figures for a paper (needs the plots extra).")
]
