"""What a package index and other systems see of the project."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import sordino

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_page_of_a_package_index_has_no_link_that_leads_nowhere() -> None:
    hook = PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(r"\]\((?!https?://)", text)  # the control: the clone's page has such links
    for one in hook["substitutions"]:
        text = re.sub(one["pattern"], one["replacement"], text)
    assert re.findall(r"\]\((?!https?://)[^)]*\)|<img[^>]*>", text) == []
    assert "*differential-privacy* guarantee" in text


def test_what_a_release_holds_is_there_and_fits_together() -> None:
    for name in (
        "LICENSE",
        "NOTICE",
        "CITATION.cff",
        "SECURITY.md",
        "CODE_OF_CONDUCT.md",
        "CHANGELOG.md",
        "Dockerfile",
    ):
        assert (ROOT / name).stat().st_size > 200, name
    assert (ROOT / "sordino" / "py.typed").exists()
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {sordino.__version__}\n" in citation
    licence = PYPROJECT["project"]["license"]
    assert f"license: {licence}\n" in citation
    foreign = {"digits.bin.gz", *(file.name for file in (ROOT / "sordino").rglob("*LICENSE*"))}
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    assert all(name in notice for name in foreign)


@pytest.mark.slow
def test_what_is_imported_at_start_needs_nothing_that_only_linux_has() -> None:
    """As on Windows: no fcntl, resource, termios or pwd. What needs a lock says so."""
    program = (
        "import sys; sys.modules.update(dict.fromkeys(['fcntl', 'resource', 'termios', 'pwd', 'grp']))\n"
        "import sordino.errors, sordino.cli.program, sordino.receipts.folder, sordino.runs.stop_signals\n"
        "from sordino.ledger.storage import lock\n"
        "try: lock(0)\n"
        "except sordino.errors.SordinoError as error: print(error.code)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert said.stdout.strip() == "no-file-locks", said.stderr
