"""A simulation protects nobody: wherever a verb prints that something is proved, it says so beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sordino
from sordino.results.comparison_table import FORMATS
from sordino.runs.listing import NOT_OF_SCORES
from tests.helpers.command_line import Said

TINY = ("rounds=1", "partition.clients=3", "model=logistic", "evaluation.final=1")
PLAN = ("algorithm=gaussian_gdp", "privacy.epsilon=8", *TINY)
# what the verbs say of a run RUN in a folder PLACE; each prints a status
VERBS: dict[str, tuple[str, ...]] = {
    "list": ("list", "PLACE"),
    "show": ("show", "RUN"),
    "watch": ("watch", "RUN", "--once"),
    "watch --json": ("watch", "RUN", "--json"),
    "spent": ("privacy", "spent", "RUN", "--by-client"),
    "spent, of a ledger": ("privacy", "spent", "RUN/ledger.sqlite"),
}
BARE = re.compile(r"\b(proved|conditional)\b(?! \(simulation\))")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulation, and the same with real noise."""
    made = tmp_path_factory.mktemp("said")
    for noise in ("counter", "system"):
        sordino.run(None, *PLAN, f"privacy.noise={noise}", out=made / noise / "run")
    return made


def said(cli: Callable[..., Said], place: Path, words: tuple[str, ...]) -> str:
    found = {"PLACE": str(place), "RUN": str(place / "run")}
    asked = [re.sub("PLACE|RUN", lambda name: found[name[0]], word) for word in words]
    return " ".join(cli(*asked).out.split())


@pytest.mark.parametrize("verb", VERBS)
def test_a_simulation_stands_beside_proved(
    verb: str, cli: Callable[..., Said], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = said(cli, place / "counter", VERBS[verb])
    assert "proved (simulation)" in text
    assert not BARE.search(text)
    real = said(cli, place / "system", VERBS[verb])
    assert "proved" in real
    assert "(simulation)" not in real


def test_a_budget_that_a_publication_counts_says_so(cli: Callable[..., Said], place: Path) -> None:
    """Clients spent all of epsilon 8, beside a row that says nominal 8, which proves nothing."""
    from sordino.receipts import documents
    from sordino.receipts.receipt import spending
    from sordino.report.dashboard.page import regions
    from sordino.report.dashboard.run_state import RunMoment, WatchedRun, metrics
    from sordino.report.run_facts import gather
    from sordino.report.run_page import annex_page, page
    from sordino.runs import trackers

    own = "the publication's own count, which proves nothing"
    budget = re.compile(r"Budget of each client: .*?\.(?= )")
    (proved,) = budget.findall(said(cli, place / "counter", ("show", "RUN")))
    assert own not in proved
    published = ("algorithm=gaussian_sampled", "algorithm.variant=published", "privacy.epsilon=8", *TINY)
    run = place / "published" / "run"
    assert f"100% of the budget is spent, by {own}" in " ".join(cli("run", *published, "--out", str(run)).err.split())
    (nominal,) = budget.findall(said(cli, place / "published", ("show", "RUN")))
    assert nominal.endswith(f"{own}.")
    assert "own count of epsilon, which proves nothing." in page(gather(run))
    assert f"of it, by {own}." in annex_page(documents.gather(run, None, code=False, anyway=False))
    assert own in regions(WatchedRun(run), RunMoment("finished", spending=spending(run)))["spent"]
    assert own in said(cli, place / "published", ("privacy", "spent", "RUN", "--by-client"))
    for folder, labels in ((run, '{status="nominal"}'), (place / "counter" / "run", "")):
        told = metrics(WatchedRun(folder), RunMoment("finished", spending=spending(folder)))
        assert re.search(rf"^sordino_budget_left_ratio{re.escape(labels)} ", told, re.MULTILINE)
        receipt = sordino.open_run(folder).receipt
        assert f"spent_share{'_nominal' * bool(labels)}" in trackers._promised(receipt)


@pytest.mark.parametrize("verb", [("show", "RUN"), ("privacy", "spent", "RUN")])
def test_json_says_it_in_the_object_that_has_the_rows(
    verb: tuple[str, ...], cli: Callable[..., Said], place: Path
) -> None:
    def having_rows(told: Any) -> list[dict[str, Any]]:
        parts = list(told.values()) if isinstance(told, dict) else told if isinstance(told, list) else []
        return [told] * (isinstance(told, dict) and "guarantees" in told) + [
            o for part in parts for o in having_rows(part)
        ]

    for noise in ("counter", "system"):
        found = having_rows(json.loads(said(cli, place / noise, (*verb, "--json"))))
        whole = [one for one in found if "phase" not in one]
        assert whole
        assert all(one["simulated"] == (noise == "counter") for one in whole)
        listed = json.loads(said(cli, place / noise, ("list", "PLACE", "--json")))
        assert [one["simulated"] for one in listed] == [noise == "counter"]


def test_a_plan_and_an_audit_say_it_too(cli: Callable[..., Said], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for verb in (("privacy", "plan", *PLAN), ("audit", "--trials", "200", *PLAN)):
        told = " ".join(cli(*verb).out.split())
        assert "proved (simulation)" in told, verb
        assert not BARE.search(told.replace("Status proved", "")), verb


def test_a_comparison_says_it_in_every_format(place: Path) -> None:
    from sordino.results.comparison import Method, table
    from sordino.results.comparison_table import as_csv, as_latex, shaped

    run = sordino.open_run(place / "counter" / "run")
    rows = table([Method("one", [run.metrics], run.receipt.guarantees, run._run.experiment)])
    for told in (as_csv(rows), as_latex(rows), str(shaped(rows))):
        assert "proved (simulation)" in told
        assert not BARE.search(told)
    assert rows[0].to_json()["simulated"]


def test_no_real_epsilon_stands_beside_a_score_that_it_seems_to_cover(
    cli: Callable[..., Said], place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A score is an exact answer about people's rows; beside it stood only the epsilon of the training, "proved"."""
    monkeypatch.setenv("COLUMNS", "300")
    tiny = [*PLAN, "privacy.noise=system"]
    (tmp_path / "a.toml").write_text('name = "a"', encoding="utf-8")
    compared = sordino.compare(tmp_path / "a.toml", "lr=0.1,0.2", *tiny, seeds=1, out=tmp_path / "compared")
    result = sordino.open_run(place / "system" / "run")
    texts = {
        "list": said(cli, place / "system", ("list", "PLACE")),
        "watch": said(cli, place / "system", ("watch", "RUN", "--once")),
        "run": cli("run", *tiny, "--out", str(tmp_path / "run")).err,
        "in Python": repr(result),
        "in a notebook": result._repr_html_(),
        "a comparison in a notebook": compared._repr_html_(),
        **{form: write(compared.table) for form, write in FORMATS.items()},
        "its JSON": json.dumps([row.to_json() for row in compared.table], ensure_ascii=False),
    }
    assert all(re.search("accuracy|last.ten|last 10", text) for text in texts.values())
    assert {name for name, text in texts.items() if f"proved; {NOT_OF_SCORES}" not in text} == set()
    assert "No epsilon covers the scores" in " ".join(compared.choosing)
    assert "test scores are not covered by epsilon" in said(cli, place / "system", ("show", "RUN"))
