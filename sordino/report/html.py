"""One self-contained page: opened from disk, no network, no server. The chart library is vendored (uPlot, MIT)."""

from __future__ import annotations

import html
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from sordino.engine.checkpoint import atomic_write
from sordino.report.facts import gather


def write(folder: Path, out: Path | None = None) -> Path:
    """report.html in the run folder, or elsewhere."""
    target = folder / "report.html" if out is None else out
    atomic_write(target, page(gather(folder)).encode())
    return target


def page(facts: dict[str, Any]) -> str:
    here = files("sordino.report")
    text = here.joinpath("page.html").read_text(encoding="utf-8")
    inserts = {
        "TITLE": html.escape(f"sordino: {facts['name']}"),
        "CHART_CSS": here.joinpath("vendor/uPlot.min.css").read_text(encoding="utf-8"),
        "CHART_JS": here.joinpath("vendor/uPlot.iife.min.js").read_text(encoding="utf-8"),
        # inside a script element only "</" and "<!--" could end it
        "FACTS": json.dumps(facts).replace("<", "\\u003c"),
    }
    for name, value in inserts.items():
        text = text.replace(f"/*{name}*/", value)
    return text
