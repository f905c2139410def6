"""A branch is a folder that can be deleted: the rest imports and runs without it, and what only it does is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sordino.branches import BRANCHES
from tests.repository.test_house import ROOT, house

IMPORTED = """
import importlib, pkgutil, sordino.cli  # which loads the verbs of branches
for module in pkgutil.walk_packages(sordino.__path__, "sordino."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
        print(module.name)
"""
SMALL = ("run", "rounds=1", "partition.clients=2", "data.train=80", "data.test=40")
REFUSED = """
import sordino
for stage in ("secagg", "bfv"):
    try:
        sordino.run(rounds=1, uplink=["weigh", stage], out="run")
    except sordino.errors.ConfigError as error:
        print(error.code, error.what, error.why, sep="|")
"""


def without(branch: str, place: Path) -> Path:
    """A copy of the package that lacks the folder of a branch."""
    left_out = shutil.ignore_patterns("__pycache__")
    shutil.copytree(house.PACKAGE, place / "sordino", ignore=left_out)
    shutil.rmtree(place / "sordino" / branch)
    return place


def python(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(place), "COLUMNS": "200"}
    return subprocess.run([sys.executable, *arguments], cwd=place, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("branch", ["secagg"])
def test_the_rest_imports_and_runs_without_a_branch(branch: str, tmp_path: Path) -> None:
    place = without(branch, tmp_path)
    found = python(place, "-c", IMPORTED)
    assert found.returncode == 0, found.stderr
    modules = found.stdout.split()
    assert "sordino.runs.play" in modules
    assert not any(name.startswith(f"sordino.{branch}") for name in modules)
    ran = python(place, "-m", "sordino", *SMALL, "--out", "run")
    assert ran.returncode == 0, ran.stderr
    assert (place / "run" / "privacy.json").exists()


def test_an_import_of_a_branch_is_noticed(tmp_path: Path) -> None:
    """The negative control: one line in a room of the trunk."""
    place = without("secagg", tmp_path)
    with (place / "sordino" / "engine" / "channels.py").open("a") as file:
        file.write("\nfrom sordino.secagg import paillier\n")
    found = python(place, "-c", "import sordino.engine.channels")
    assert found.returncode == 1
    assert "No module named 'sordino.secagg'" in found.stderr


def test_a_secure_sum_without_its_branch_is_refused(tmp_path: Path) -> None:
    """Never one in the clear."""
    place = without("secagg", tmp_path)
    refused = python(place, "-c", REFUSED)
    assert refused.stdout.splitlines() == [
        f"no-branch|this installation has no '{way}' among its secure sums|it lacks secagg"
        for way in ("masked", "encrypted")
    ]
    assert not (place / "run").exists()


def test_the_contract_names_all_rooms_that_may_not_import_secagg() -> None:
    written = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    contract = next(one for one in written if one.get("forbidden_modules") == ["sordino.secagg"])
    rooms = {name for name in house.rooms() if name == "sites" or name not in BRANCHES}
    assert {name.removeprefix("sordino.") for name in contract["source_modules"]} == rooms
