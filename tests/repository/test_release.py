"""What a package index and other systems see of the project."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import sordino
from tests.adapters.environments import made

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


OLDEST = ("partition", "privacy/noise", "accounting", "config", "cli", "runs/test_catalogue.py")


@pytest.mark.slow
def test_it_runs_with_the_oldest_versions_that_it_asks_for(tmp_path_factory: pytest.TempPathFactory) -> None:
    """But for torch, whose old builds come with gigabytes of CUDA; and the catalogue was written by a new pydantic."""
    project = PYPROJECT["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["data"]]
    oldest = " ".join(one.replace(">=", "==") + ".*" for one in needed if not one.startswith("torch"))
    place = made("oldest", oldest, tmp_path_factory)
    which = ["-n", "0", "-q", "-k", "not is_what_the_code_says", *(f"tests/{one}" for one in OLDEST)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    said = subprocess.run(
        [place / "python", "-m", "pytest", *which], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert said.returncode == 0, said.stdout


WORKFLOWS = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / ".github/workflows").iterdir()}
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
PYTHONS = {one.rpartition(" ")[2] for one in PYPROJECT["project"]["classifiers"] if "Python :: 3." in one}


def rows(job: dict[str, Any]) -> list[dict[str, str]]:
    """Rows of a job's matrix; one empty row where it has none."""
    return job.get("strategy", {}).get("matrix", {}).get("include", [{}])  # type: ignore[no-any-return]


def wrong(text: str) -> Iterator[str]:
    """Whatever a workflow names and does not exist, or grants although the job does not publish."""
    found = yaml.safe_load(text)
    if found["permissions"] != {"contents": "read"}:
        yield "permissions"
    for name, job in found["jobs"].items():
        if job.get("permissions", {}) != {} and name != "publish":
            yield f"permissions of {name}"
        if not set([job["needs"]] if "needs" in job else []) <= found["jobs"].keys():
            yield f"needs of {name}"
        for step in job["steps"]:
            uses, run, version = (
                step.get("uses", "@v1"),
                step.get("run", ""),
                step.get("with", {}).get("python-version"),
            )
            if not re.search(r"@(v[0-9]+|release/v[0-9]+)$", uses):
                yield f"{uses} has no version"
            if "secrets." in str(step) or "token" in str(step):
                yield f"a secret in {name}"
            for row in rows(job):
                if (
                    version is not None
                    and version.replace("${{ matrix.python }}", row.get("python", "")) not in PYTHONS
                ):
                    yield f"Python {row or version}"
                said = run.replace("${{ matrix.targets }}", row.get("targets", "")).split()
                if said[:1] == ["make"] and not {word for word in said[1:] if "=" not in word} <= TARGETS:
                    yield f"make {said[1:]}"


def test_workflows_name_what_exists_and_may_no_more_than_they_must() -> None:
    assert {name: list(wrong(text)) for name, text in WORKFLOWS.items()} == {"check.yml": [], "release.yml": []}
    check = yaml.safe_load(WORKFLOWS["check.yml"])["jobs"]
    made = {target for job in check.values() for row in rows(job) for target in row.get("targets", "").split()} | {
        "slow"
    }
    here = re.findall(r"^make ([a-z]+)$", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)
    assert made == set(here)
    assert "make slow" in check["slow"]["steps"][-1]["run"]
    assert {row["python"] for row in rows(check["make"])} == PYTHONS
    systems = {row["system"] for row in rows(yaml.safe_load(WORKFLOWS["release.yml"])["jobs"]["try"])}
    assert systems == {"ubuntu-latest", "macos-latest", "windows-latest"}


@pytest.mark.parametrize(
    ("name", "broken", "by"),
    [
        ("check.yml", 'python: "3.12"', 'python: "3.10"'),
        ("check.yml", "targets: demo check docs test", "targets: demo lint"),
        ("check.yml", "make slow", "make slower"),
        ("check.yml", "permissions: {contents: read}", "permissions: write-all"),
        ("release.yml", "actions/checkout@v5", "actions/checkout@main"),
        ("release.yml", "gh-action-pypi-publish@release/v1", "gh-action-pypi-publish@release/v1\n        with: {password: \"${{ secrets.KEY }}\"}"),
        ("release.yml", "needs: try", "needs: tried"),
    ],
)  # fmt: skip
def test_a_workflow_that_names_something_else_is_noticed(name: str, broken: str, by: str) -> None:
    assert broken in WORKFLOWS[name]
    assert list(wrong(WORKFLOWS[name].replace(broken, by))) != []


def test_a_tag_of_another_version_publishes_nothing() -> None:
    steps = yaml.safe_load(WORKFLOWS["release.yml"])["jobs"]["build"]["steps"]
    (said,) = [step["run"] for step in steps if "GITHUB_REF_NAME" in step.get("run", "")]
    for tag, code in ((f"v{sordino.__version__}", 0), (f"v{sordino.__version__}0", 1), ("v9", 1), ("v", 1)):
        done = subprocess.run(
            ["sh", "-c", said], cwd=ROOT, env={"GITHUB_REF_NAME": tag, "PATH": "/usr/bin:/bin"}, check=False
        )
        assert done.returncode == code, tag
    runs = [step.get("run", "") for step in steps]
    assert runs.index(said) < runs.index("python -m build")
