"""Every block in the documentation runs: pages are read from top to bottom in an empty directory, as a reader would
follow them.

    sh      each line is `sordino ...`, `python FILE`, or `cd FOLDER`; it must end with 0, or with the `exit=N` its
            fence names
    python  is executed; with `file=NAME` it is written instead
    toml    is an experiment: it is checked, and with `file=NAME` written, for the commands that follow;
            `file=NAME.schema.toml` is a table's schema
    text, json and mermaid are read by people only; `skip="reason"` keeps a block from being run, and wants its reason;
    `slow` leaves a block to the slow tier, which follows the whole page

Then the claims that are no blocks: cited tests exist, cited verbs and options exist, links lead somewhere, pictures are
those their script draws.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sordino.errors import DataError
from tests.repository.following import DOCS, ROOT, Broken, follow, script, spoken, wrong_commands

MADE = {"_build", "generated"}


PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(path for path in sorted(DOCS.rglob("*.md")) if not MADE & set(path.relative_to(DOCS).parts)),
    *sorted((ROOT / "examples").rglob("README.md")),
]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory; modules a page made are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    path, loaded = sys.path[:], set(sys.modules)
    sys.path.insert(0, "")  # as in a prompt: modules lie in the current directory
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - loaded:
        if str(getattr(sys.modules[name], "__file__", "") or "").startswith(str(tmp_path)):
            del sys.modules[name]


NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES]


def read(page: str, desk: Path, patient: bool = True) -> None:
    if page.startswith("examples/"):  # an example is read where it lies
        shutil.copytree((ROOT / page).parent, desk / "example")
        os.chdir(desk / "example")
    follow((ROOT / page).read_text(encoding="utf-8"), page, patient)


@pytest.mark.one_fast
@pytest.mark.parametrize("page", ["docs/guide/own-algorithm.md", "docs/guide/shell.md"])
def test_a_page_does_what_it_says(page: str, desk: Path) -> None:
    """What is quick of it, at every change: the slow tier follows all of all pages."""
    read(page, desk, patient=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", NAMES)
def test_a_page_does_all_that_it_says(page: str, desk: Path) -> None:
    read(page, desk)


BROKEN = {
    "a verb that is not there": "```sh\nsordino rn\n```\n",
    "an option that is not there": "```sh\nsordino run --no-such-option\n```\n",
    "a setting that is not there": "```sh\nsordino run algoritm=fedavg\n```\n",
    "an exit code that is another": "```sh exit=4\nsordino algorithms\n```\n",
    "a tool nobody promised": "```sh\ncurl example.org\n```\n",
    "a skip without a reason": "```sh skip=no\nsordino run\n```\n",
    "a language nobody named": "```\nsordino run\n```\n",
    "python that fails": "```python\nassert 1 + 1 == 3\n```\n",
    "python that does not parse": "```python file=task.py\nclass Net(\n```\n",
    "toml with an unknown key": "```toml\nroundz = 3\n```\n",
    "toml with an unknown algorithm": '```toml\n[algorithm]\nname = "fedavgg"\n```\n',
    "toml with an unknown parameter": '```toml\n[algorithm]\nname = "fedavg"\nmu = 1\n```\n',
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_page_is_noticed(text: str, desk: Path) -> None:
    with pytest.raises(Broken, match=r"page:3"):
        follow("A page.\n\n" + text)


def test_a_sound_page_is_followed_in_order(desk: Path) -> None:
    text = "```python file=one.py\nvalue = 3\n```\n\n```sh\npython one.py\n```\n\n````python\nfrom one import value\nassert value == 3\n````\n"
    assert follow(text) == 3


def test_a_slow_block_waits_for_the_slow_tier(desk: Path) -> None:
    text = "```sh slow\nsordino rn\n```\n"
    assert follow(text, patient=False) == 0
    with pytest.raises(Broken):
        follow(text)


# claims that are no blocks --------------------------------------------------------------------------------------------
LINK = re.compile(r"""(?:!?\[[^\]]*\]\(|src="|srcset=")([^)\s"]+)""")


def wrong_tests(text: str) -> list[str]:
    """Cited tests that do not exist: `tests/test_x.py` or `tests/test_x.py::test_name`."""
    wrong = []
    for file, name in re.findall(r"`(tests/[\w/.]*)(?:::(\w+))?`", text):
        path = ROOT / file
        defined = re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE) if path.is_file() else []
        if not path.exists() or (name and name not in defined):
            wrong.append(f"{file}::{name}")
    return wrong


@pytest.mark.parametrize("page", NAMES)
def test_what_a_page_cites_is_there(page: str) -> None:
    path = ROOT / page
    text = path.read_text(encoding="utf-8")
    assert wrong_commands(text) == []
    assert wrong_tests(text) == []
    for target in LINK.findall(spoken(text)):
        place = target.partition("#")[0]
        if place and "://" not in target and "generated/" not in target:
            assert (path.parent / place).exists(), target


def test_the_readme_is_short_and_both_walks_are_found_from_the_first_pages() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 131
    assert [line for line in readme.splitlines() if len(line) > 120] == []
    for first in (readme, (DOCS / "index.md").read_text(encoding="utf-8")):
        assert {"hospital.md", "compare.md"} <= {Path(target).name for target in LINK.findall(spoken(first))}


def test_what_is_not_there_is_noticed() -> None:
    assert wrong_commands("`sordino rn` and `sordino privacy plna` and `sordino run --sed 3`") == [
        "sordino rn",
        "sordino privacy plna",
        "sordino run --sed 3",
    ]
    assert wrong_commands("`sordino privacy spent RUN --by-client`") == []
    assert wrong_tests("`tests/repository/test_docs.py::test_nothing` `tests/gone.py`") == [
        "tests/repository/test_docs.py::test_nothing",
        "tests/gone.py::",
    ]
    assert wrong_tests("`tests/repository/test_docs.py::test_what_is_not_there_is_noticed` `tests/laws/`") == []


def test_pains_and_features_are_all_answered() -> None:
    text = (DOCS / "pains.md").read_text(encoding="utf-8")
    pains, features = text.split("## The ten features")
    assert [int(n) for n in re.findall(r"^\| (\d+) \|", pains, re.MULTILINE)] == list(range(1, 16))
    assert [int(n) for n in re.findall(r"^\| (\d+) \|", features, re.MULTILINE)] == list(range(1, 11))
    for line in re.findall(r"^\| \d+ \|.*$", text, re.MULTILINE):
        shown = line.rstrip(" |").rpartition(" | ")[2]
        assert "not yet" in shown or wrong_tests(shown) == [], line
        assert "not yet" in shown or re.search(r"`(sordino|tests/|make|python) ?[^`]+`", shown), (
            f"nothing shows it: {line}"
        )


def test_the_pictures_are_those_their_script_draws() -> None:
    pictures = script("pictures").PICTURES
    for name, draw in pictures.items():
        assert (DOCS / "images" / f"{name}.svg").read_text(encoding="utf-8") == draw(), (
            f"python docs/pictures.py ({name})"
        )


@pytest.mark.slow
def test_generated_pages_say_what_receipts_say(tmp_path: Path) -> None:
    """Two algorithms whose promises are known from their papers; the rest is the same code."""
    made = script("generate")
    assert "| example | replace | server | 0.9 | `proved` |" in made.algorithm("gaussian_gdp")
    assert "| client | replace | server | ∞ | `none` |" in made.algorithm("gaussian_gdp")
    assert "`proved`" not in made.algorithm("fedavg")
    assert "| client | replace | server | 0.9 | `proved` |" in made.algorithm("whole_update")


FETCHED = re.compile(r"""<(?:script|img|link|iframe)[^>]*?(?:src|href)="((?:https?:)?//[^"]+)""")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """As `make docs` has built it, without a warning, where nothing has changed since; else it is built here."""
    made, sources = DOCS / "_build" / "whole", [ROOT / "sordino", DOCS, ROOT / "experiments"]
    files = [file for source in sources for kind in ("py", "md", "toml", "css") for file in source.rglob(f"*.{kind}")]
    newest = max(file.stat().st_mtime for file in files if not MADE & set(file.parts))
    if made.exists() and made.stat().st_mtime > newest:
        return DOCS / "_build" / "html"
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", "-d", str(tmp_path / "trees")]
    subprocess.run([*command, str(DOCS), str(tmp_path / "site")], check=True)
    return tmp_path / "site"


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_fetches_nothing(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(PAGES)
    assert [found for page in pages for found in FETCHED.findall(page.read_text(encoding="utf-8"))] == []
    assert FETCHED.findall('<script src="https://cdn.example/x.js">') == ["https://cdn.example/x.js"]


def test_a_missing_extra_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from sordino.data import SOURCES

    for module in ("tabular", "table_files", "cells", "inferred_columns", "columns"):
        monkeypatch.delitem(sys.modules, f"sordino.data.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match="pyarrow") as refused:
        SOURCES["tabular"](path="visits.csv", label="outcome")
    assert refused.value.code == "missing-data-extra"
    assert "sordino[data]" in refused.value.fix
