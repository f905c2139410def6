"""The privacy annex: one page for a data protection assessment, as HTML or printed to a PDF.

It states who is protected, from whom, how far, on which assumptions, and what was checked. No script, no network,
nothing to unfold. An installed browser prints the PDF: no part of this library typesets text."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from sordino.accounting.words import headline
from sordino.errors import BackendUnavailable
from sordino.ledger.files import atomic_write
from sordino.planning.agreement import FILE as AGREEMENT
from sordino.receipts.documents import COLUMNS, FORGED, Evidence
from sordino.receipts.documents import table as rows_of
from sordino.report.frame import document, source
from sordino.results.markup import Html, joined, listed, section, table, tag

NOTHING = "Nothing is promised about anybody by this run."
READ = f"privacy.json, ledger.sqlite, experiment.toml, {AGREEMENT} and environment.json"
BROWSERS = (
    "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge", "msedge",
)  # fmt: skip
FLAGS = ("--headless", "--disable-gpu", "--no-first-run", "--no-pdf-header-footer", "--disable-background-networking")
PATIENCE = 120  # seconds
BY_HAND = "write it to a file ending in .html, open that in any browser, and print it to a PDF"


def page(found: Evidence) -> str:
    """The privacy annex of a run, as HTML."""
    title = f"Privacy annex: {found.experiment.name}"
    policy = tag("meta", http_equiv="Content-Security-Policy", content="default-src 'none'; style-src 'unsafe-inline'")
    made_on = found.environment.started[:10] or "an unknown date"
    because = (why for row in found.rows if row.finite for why in row.because)
    rests = [*dict.fromkeys((*found.receipt.assumptions, *because, *found.public.void))]
    body = (
        *(tag("p", stamp, class_="stamp") for stamp in found.stamps),
        tag("h1", title),
        tag(
            "p",
            f"For a data protection assessment. Run {found.receipt.run} of {made_on}, sordino "
            f"{found.environment.sordino}. Made without any data, from {READ}.",
            class_="lead",
        ),
        tag("p", headline(found.receipt.guarantees, found.simulated) or NOTHING, class_="sentence"),
        table("What is promised", COLUMNS, rows_of(found)),
        _columns(
            joined([_who(found), _how(found)]),
            section("Who is not", listed([row.words for row in found.rows if not row.finite])),
        ),
        section("What this rests on", listed(rests)),
        _columns(
            section("What does not agree", listed(found.verdict.wrong))
            or section("What was checked, and agrees", listed(found.verdict.agreed)),
            joined(
                [
                    section("What was not looked at", listed(found.verdict.unseen)),
                    section("What no receipt shows", listed(FORGED)),
                ]
            ),
        ),
        tag("footer", f"Ledger head {found.receipt.ledger_head}. Experiment {found.receipt.config}."),
    )
    return document(title, (policy, tag("style", source("annex.css"))), body)


def _who(found: Evidence) -> Html:
    kept = [row.words for row in found.rows if row.finite]
    if kept and not any(row.unit == "person" and row.finite for row in found.rows):
        kept.append(
            "A person who has several of these units is not protected as a whole by a promise about one of them."
        )
    return section("Who is protected", listed(kept or [NOTHING]))


def _how(found: Evidence) -> Html:
    budget = found.receipt.budget
    lines = [f"{found.setting}.", *(f"{line[0].upper()}{line[1:]}." for line in found.noise)]
    if budget is not None:
        low, high = budget.spent_share.min, budget.spent_share.max
        share = f"{high:.0%}" if low == high else f"{low:.0%} to {high:.0%}"
        lines.append(f"Each client granted a budget, counted in {budget.currency}, and has spent {share} of it.")
    if found.noised:
        source = "a seed: a simulation" if found.simulated else "the operating system's entropy"
        lines.append(f"The noise comes from {source}. All releases of all rounds are added up by the accountant named.")
    return section("What was computed", listed(lines))


def _columns(*parts: Html) -> Html:
    return tag("div", *(tag("div", part) for part in parts), class_="columns")


def as_pdf(page: str, out: Path) -> Path:
    """Print a page to a PDF. It loads nothing and runs nothing."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        raise _cannot("no browser was found", f"one of {', '.join(BROWSERS[:3])} makes it")
    with tempfile.TemporaryDirectory() as place:
        source, target = Path(place) / "page.html", Path(place) / "page.pdf"
        source.write_text(page, encoding="utf-8")
        # browsers refuse their sandbox to root; the page has no script that it would hold back
        root = ["--no-sandbox"] if os.name == "posix" and os.geteuid() == 0 else []
        command = [browser, *FLAGS, *root, f"--user-data-dir={place}/profile", f"--print-to-pdf={target}"]
        try:
            subprocess.run([*command, source.as_uri()], capture_output=True, timeout=PATIENCE, check=True)
            printed = target.read_bytes()
        except (OSError, subprocess.SubprocessError) as error:
            raise _cannot(f"{browser} failed", str(error)) from None
    atomic_write(out, printed)
    return out


def _cannot(what: str, why: str) -> BackendUnavailable:
    return BackendUnavailable(f"a PDF cannot be printed: {what}", why=why, fix=BY_HAND, code="no-pdf-printer")
