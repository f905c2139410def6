"""A page as a PDF, printed by a browser that is already there: no part of this library draws letters."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from sordino.errors import BackendUnavailable
from sordino.ledger.files import atomic_write

BROWSERS = (
    "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge", "msedge",
)  # fmt: skip
FLAGS = ("--headless", "--disable-gpu", "--no-first-run", "--no-pdf-header-footer", "--disable-background-networking")
PATIENCE = 120  # seconds
BY_HAND = "write it to a file ending in .html, open that in any browser, and print it to a PDF"


def as_pdf(page: str, out: Path) -> Path:
    """The page, printed. It may load nothing and run nothing."""
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
