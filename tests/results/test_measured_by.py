"""Whose answers a score is of stands beside it everywhere, and scores of different models are not compared unsaid."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sordino
from sordino.report.comparison_page import gather as page_of
from sordino.results.comparison import Comparison
from sordino.results.comparison_table import as_latex, lines
from tests.helpers.command_line import Said

SMALL: Any = {
    "rounds": 2,
    "partition": {"scheme": "dirichlet", "alpha": 0.5, "clients": 3},
    "data": {"train": 120, "test": 60},
    "privacy": {},
}
BOTH = ({"name": "shared", "algorithm": {"name": "fedavg"}}, {"name": "own", "algorithm": {"name": "ditto"}})
CLIENT_BY_CLIENT, OWN = "global model, client by client", "clients' own models"


@pytest.fixture(scope="module")
def as_used(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Each method as its clients would use it."""
    out = tmp_path_factory.mktemp("measured") / "out"
    return sordino.compare(*({**SMALL, **one} for one in BOTH), 'evaluation.personal=["own"]', seeds=2, out=out)


def test_a_method_that_personalises_unasked_is_not_compared_with_one_that_does_not(
    tmp_path: Path, cli: Callable[..., Said]
) -> None:
    files = []
    for one, name in zip(BOTH, ("fedavg", "ditto"), strict=True):
        files.append(tmp_path / f"{one['name']}.toml")
        told = f'name = "{one["name"]}"\nrounds = 1\npartition = {{scheme = "iid", clients = 3}}\nalgorithm.name = "{name}"\n'
        files[-1].write_text(told)
    said = cli("compare", *files, "--out", tmp_path / "out", "--seeds", 1)
    assert (said.code, "unequal-comparison" in said.err) == (2, True)
    assert not (tmp_path / "out").exists()  # refused before anything was run
    asked = cli("compare", *files, "--out", tmp_path / "out", "--seeds", 1, 'evaluation.personal=["plain"]', "--json")
    assert asked.code == 0  # as the fix says
    assert {row["measured_by"] for row in json.loads(asked.out)} == {CLIENT_BY_CLIENT}


def test_writing_the_default_out_changes_nothing() -> None:
    told = {**SMALL, "algorithm": {"name": "ditto"}, "rounds": 1}
    with pytest.raises(sordino.errors.SordinoError) as refused:  # past the check of what is equal, on to the names
        sordino.compare({**told, "name": "a"}, {**told, "name": "a", "evaluation": {"personal": ["own"]}}, seeds=1)
    assert refused.value.code == "same-name"


@pytest.mark.slow
def test_a_table_of_both_says_whose_answers_they_are_and_gives_no_p(as_used: Comparison) -> None:
    assert [row.measured_by for row in as_used.table] == [CLIENT_BY_CLIENT, OWN]
    assert [row.p_against_first for row in as_used.table] == [None, None]
    head, shared, own = lines(as_used.table)
    at = head.index("measured by")
    assert (shared[at], own[at]) == (CLIENT_BY_CLIENT, OWN)
    assert OWN in as_latex(as_used.table)
    facts = page_of(as_used)
    assert [method.label for method in facts.methods] == [f"shared ({CLIENT_BY_CLIENT})", f"own ({OWN})"]
    page = as_used.report().read_text()
    assert "Global model, mean over seeds" not in page
    assert f"own ({OWN})" in page


@pytest.mark.slow
def test_where_all_are_measured_alike_the_caption_says_it_and_there_is_a_p(
    as_used: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    alike = [row.beside(measured_by=OWN) for row in as_used.table]
    assert "measured by" not in lines(alike)[0]
    assert f"measured by {OWN}" in as_latex(alike)
    monkeypatch.setattr(sordino.results.comparison_table, "paired_p", lambda ours, theirs: 0.04)
    second = as_used.methods[1]
    same = sordino.results.comparison_table.table([second, second.__class__("again", second.runs, [])])
    assert [row.measured_by for row in same] == [OWN, OWN]
    assert [row.p_against_first for row in same] == [None, 0.04]


@pytest.mark.slow
def test_everywhere_a_run_shows_its_score_it_says_whose_answers_it_is_of(
    as_used: Comparison, cli: Callable[..., Said]
) -> None:
    folder = as_used.folder / "own" / "seed-0"
    shown = cli("show", folder).out
    assert f"test accuracy, {OWN}" in shown
    assert "global" not in shown
    assert f"({OWN})" in cli("list", folder.parent).out
    assert f"({OWN})" in repr(sordino.open_run(folder))
    plain = as_used.folder / "shared" / "seed-0"
    assert f"test accuracy, {CLIENT_BY_CLIENT}" in cli("show", plain).out
    from sordino.report.run_facts import gather

    assert (gather(folder).model, gather(plain).model) == (OWN, CLIENT_BY_CLIENT)
