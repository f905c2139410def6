"""One self-contained page: opened from disk, no network, no server. Both pages share a frame, a style sheet and the
charts.

The line charts are uPlot's (vendored, MIT); everything else is drawn by charts.js.
"""

from __future__ import annotations

import html
import json
import re
from importlib.resources import files
from pathlib import Path

from sordino.accounting.facts import Fact
from sordino.errors import LedgerError
from sordino.ledger.files import atomic_write
from sordino.metrics.headlines import in_words
from sordino.receipts.folder import RunFolder
from sordino.receipts.receipt import bind_page
from sordino.report import palette, still
from sordino.report.markup import Html
from sordino.report.run_facts import EVALUATOR, EVALUATORS, RunFacts, gather

STYLES = ("vendor/uPlot.min.css", "web/page.css")
SCRIPTS = ("vendor/uPlot.iife.min.js", "web/page.js", "web/charts.js")  # of every page


def write(folder: Path, out: Path | None = None, facts: RunFacts | None = None, evaluator: bool = False) -> Path:
    """report.html in the run folder, bound to its receipt; or the file `out`, which nothing binds, and then the run is
    only read. From facts that were gathered before, where there are any.

    The page of a run with real noise may be shown. What its `evaluator` sees is another page, in the private folder.
    """
    told = gather(folder, evaluator) if facts is None else facts
    home = page_of(folder, evaluator)
    own, target = home.parent != folder, home if out is None else out
    target.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(target, page(told).encode(), private=own)
    if out is None and not own:
        try:
            bind_page(folder)
        except LedgerError:  # the receipt would not hold beside a page that its ledger does not know
            target.unlink()
            raise
    return target


def page_of(folder: Path, evaluator: bool) -> Path:
    """Where the page of a run lies: that of its evaluator in the private folder, where the run has one."""
    run = RunFolder(folder)
    return RunFolder(run.private).evaluators_page if evaluator and run.private.is_dir() else run.page_file


def page(facts: RunFacts) -> str:
    """The page of one run."""
    told = facts.beside(audit=None, attackers=None)  # their sections are taken over as they stand, without a script
    mark = f"{EVALUATOR}: " if facts.notice == EVALUATORS else ""
    return assemble(
        f"{mark}sordino: {facts.name}", told, still.of_run(facts), "web/curves.js", "web/prepared.js", "web/run.js"
    )


def assemble(title: str, facts: Fact, shown: Html, *scripts: str) -> str:
    """The frame with everything it needs inside, filled in one pass: what is put in is not looked at again. `shown` is
    there where no script runs.
    """
    styled = {**facts.to_json(), "colours": palette.SERIES, "dashes": palette.DASHES, "headlines": in_words()}
    inserts = {
        "PALETTE": palette.css(),
        "CSS": together(*STYLES),
        "SCRIPT": together(*SCRIPTS, *scripts),
        "TITLE": html.escape(title),
        "FACTS": in_script(styled),
        "SHOWN": shown,
    }
    return re.sub(r"/\*([A-Z]+)\*/", lambda place: inserts[place[1]], together("web/frame.html"))


def in_script(told: object) -> str:
    """JSON for a script element of a page."""
    # only "</" and "<!--" could end the element
    return json.dumps(told, separators=(",", ":")).replace("<", "\\u003c")


def together(*names: str) -> str:
    """Files of this room, one after another."""
    return "\n".join(files("sordino.report").joinpath(name).read_text(encoding="utf-8") for name in names)
