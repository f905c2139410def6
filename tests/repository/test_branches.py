"""A branch is a folder that can be deleted: the rest imports and runs without it, and what only it does is refused."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sordino.branches import BRANCHES
from tests.helpers.branch_users import listed
from tests.repository.test_house import house

ROOT = Path(__file__).parents[2]
IMPORTED = """
import importlib, pkgutil, sordino.cli  # which loads the verbs of branches
for module in pkgutil.walk_packages(sordino.__path__, "sordino."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
        print(module.name)
"""
SPOKEN = """
import sys, sordino.cli
for line in sys.stdin:
    sys.argv = ["sordino", *line.split()]
    try:
        sordino.cli.main()
    except SystemExit as end:
        print(f"\\n{line.strip()}: {end.code or 0}", file=sys.stderr)
"""
SMALL = ("run", "rounds=1", "partition.clients=2", "data.train=80", "data.test=40")
VERBS = {"sites": ("serve", "identity"), "report": ("report",), "audits": ("audit",), "attacks": ("attack",)}
REFUSED = """
import sordino
for stage in ("secagg", "bfv"):
    try:
        sordino.run(rounds=1, uplink=["weigh", stage], out="run")
    except sordino.errors.ConfigError as error:
        print(error.code, error.what, error.why, sep="|")
"""


def without(place: Path, *branches: str) -> Path:
    """A copy of the package that lacks the folders of branches."""
    shutil.copytree(house.PACKAGE, place / "sordino")
    for branch in branches:
        shutil.rmtree(place / "sordino" / branch)
    return place


def python(place: Path, *arguments: str, said: str = "") -> subprocess.CompletedProcess[str]:
    command, environment = [sys.executable, *arguments], os.environ | {"PYTHONPATH": str(place), "COLUMNS": "200"}
    return subprocess.run(command, cwd=place, env=environment, input=said, capture_output=True, text=True)


GONE = [
    pytest.param(BRANCHES, id="all"),
    # attacks are made of what audits know
    *(pytest.param(("audits", "attacks") if name == "audits" else (name,), id=name) for name in BRANCHES),
]


@pytest.mark.one_fast
@pytest.mark.slow
@pytest.mark.parametrize("gone", GONE)
def test_the_rest_imports_and_runs_without_a_branch(gone: tuple[str, ...], tmp_path: Path) -> None:
    place = without(tmp_path, *gone)
    imported = python(place, "-c", IMPORTED)
    assert imported.returncode == 0, imported.stderr
    modules = imported.stdout.split()
    assert "sordino.runs.play" in modules
    assert not any(name.split(".")[1] in gone for name in modules)
    commands = [" ".join((*SMALL, "--out", "run")), "show run", "privacy verify run"]
    refused = [verb for branch in gone for verb in VERBS.get(branch, ())]
    said = python(place, "-c", SPOKEN, said="\n".join(commands + refused)).stderr
    for command in commands:
        assert f"\n{command}: 0\n" in said, said
    for verb in refused:
        end = f"\n{verb}: 2\n"
        assert end in said, said
        _, found, why = said.partition(end)[0].rpartition(f"there is no command '{verb}' here  (no-branch)")
        assert found
        assert all(branch in why for branch in gone)


@pytest.mark.slow
def test_the_trunk_imports_no_branch_and_attacks_alone_another_one() -> None:
    asked = {(room, name) for room, names in house.imports().items() for name in names if name in BRANCHES}
    assert asked == {("attacks", "audits")}


@pytest.mark.slow
def test_an_import_of_a_branch_is_noticed(tmp_path: Path) -> None:
    """The negative control: one line in a room of the trunk."""
    place = without(tmp_path, "secagg")
    with (place / "sordino" / "privacy" / "uplink" / "channels.py").open("a") as file:
        file.write("\nfrom sordino.secagg import paillier\n")
    found = python(place, "-c", "import sordino.privacy.uplink.channels")
    assert found.returncode == 1
    assert "No module named 'sordino.secagg'" in found.stderr


@pytest.mark.slow
def test_a_secure_sum_without_its_branch_is_refused(tmp_path: Path) -> None:
    """Never one in the clear."""
    place = without(tmp_path, "secagg")
    refused = python(place, "-c", REFUSED)
    assert refused.stdout.splitlines() == [
        f"no-branch|this installation has no '{way}' among its secure sums|it lacks secagg"
        for way in ("masked", "encrypted")
    ]
    assert not (place / "run").exists()


def test_every_test_that_is_left_out_without_branches_is_there() -> None:
    for entry in listed():
        file, _, name = entry.partition("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        assert not name or f"def {name.partition('[')[0]}(" in text, entry


@pytest.mark.slow
def test_the_tests_of_the_trunk_pass_without_any_branch(tmp_path: Path) -> None:
    """Of those in its own rooms all but the few that use a branch, by name or by import."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in files.rstrip("\0").split("\0"):
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    for branch in BRANCHES:
        shutil.rmtree(tmp_path / "sordino" / branch)
    alone = ["-n", "0", "-p", "no:cacheprovider", "--assert", "plain", "-o", "faulthandler_timeout=300"]
    ran = python(tmp_path, "-m", "pytest", *alone)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
    passed = re.search(r"(\d+) passed", ran.stdout)
    assert passed
    assert int(passed[1]) >= 3_000
