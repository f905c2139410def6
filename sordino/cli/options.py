"""Options that several verbs share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Kind(StrEnum):
    pdf = "pdf"
    png = "png"
    svg = "svg"


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", metavar="NAME", help="Tell it to tensorboard, mlflow, wandb or trackio too; repeatable."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Figures = Annotated[
    Kind | None, typer.Option("--figures", help="Also write figures for a paper (needs the plots extra).")
]
