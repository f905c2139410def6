"""`sordino doctor`: will runs be well here?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from sordino.cli.options import Json
from sordino.cli.screen import Screen, say

STYLES = {"ok": "green", "slow": "yellow", "broken": "bold red"}


def doctor(
    bench: Annotated[bool, typer.Option("--bench", help="Measure as well: about ten seconds.")] = False,
    as_json: Json = False,
) -> None:
    """Look at this machine: what it can do, what would be slow, what is broken (then the exit code is 2)."""
    from rich.table import Table

    from sordino.laws.machine import benched, engine, judge, measure

    facts = measure(Path("runs"))
    findings = [*judge(facts), *(benched(facts) if bench else ())]
    if as_json:
        told = {
            "facts": asdict(facts),
            "findings": [finding._asdict() for finding in findings],
            "engine": engine(facts, 20),
        }
        say(told)
    else:
        table = Table()
        for column in ("what", "", "found", "to do"):
            table.add_column(column)
        for f in findings:
            table.add_row(f.what, f"[{STYLES[f.state]}]{f.state}[/]", escape(f.says), escape(f.fix))
        Screen().print(table)
    if any(finding.state == "broken" for finding in findings):
        raise typer.Exit(2)
