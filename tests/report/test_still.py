"""A page without its scripts, as a mail gateway leaves it: the guarantee, the caveats, numbers, tables and curves."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

import sordino
from sordino.report.charts import Axis, Line, LinePoint, Lines, lines
from sordino.report.run_facts import RunFacts, gather
from sordino.report.run_page import page


class Page(HTMLParser):
    """Its words, and its pictures."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.words, self.inside, self.lines, self.hidden = "", list[str](), 0, ""
        self.feed(re.sub(r"<(script|style|head)\b.*?</\1>", "", source, flags=re.S))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.lines += tag == "polyline"
        self.inside.append("folded" if tag == "details" and ("open", "") not in attrs else tag)

    def handle_endtag(self, tag: str) -> None:
        while self.inside and self.inside.pop() not in (tag, "folded"):
            pass

    def handle_data(self, data: str) -> None:
        self.words += data
        if "folded" in self.inside or "noscript" in self.inside:
            self.hidden += data


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> RunFacts:
    out = tmp_path_factory.mktemp("still") / "run"
    sordino.run(None, "rounds=2", "partition.clients=3", "algorithm=gaussian_gdp", "privacy.epsilon=4", out=out)
    return gather(out)


def test_all_that_counts_is_there_without_a_script(facts: RunFacts) -> None:
    shown = Page(page(facts))
    told = [facts.name, facts.lead, facts.notice, *facts.spent.assumptions]
    told += [text for row in facts.guarantees for text in (row.words, row.belief, row.strength)]
    told += [f"{row.accuracy:.1%}" for row in facts.metrics if row.accuracy is not None]
    told += ["ε 4", "proved (simulation)", "Spent of what each client granted", facts.commands[0]]
    for text in told:
        assert text in shown.words, text
    assert shown.hidden == ""
    assert shown.lines >= 4  # three of accuracy, one of epsilon


def test_where_clients_have_names_they_are_said(facts: RunFacts) -> None:
    names = ("Nord <1>", "Süd", "West")
    shown = Page(page(facts.beside(names=names)))
    assert all(name in shown.words for name in names)
    assert [facts.called(0), facts.beside(names=names).called(1)] == ["0", "Süd"]


def test_a_page_with_real_noise_keeps_its_silence(facts: RunFacts) -> None:
    """No score of the evaluator is on a page that may be shown, with or without a script."""
    blind = facts.beside(metrics=tuple(row.beside(accuracy=None, loss=None, clients=None) for row in facts.metrics))
    shown = Page(page(blind))
    assert "for the evaluator of this run only" in shown.words
    assert not any(f"{row.accuracy:.1%}" in shown.words for row in facts.metrics if row.accuracy is not None)


def test_a_picture_has_no_hole_where_a_number_is_none() -> None:
    def drawn(*values: float) -> str:
        spots = [LinePoint(t, value) for t, value in enumerate(values)]
        return lines(Lines("loss", "", Axis("round"), Axis("loss"), [Line("one", spots), Line("none", [])]))

    (points,) = re.findall(r'points="([^"]*)"', drawn(2.0, float("nan"), 4.0))
    assert len(points.split()) == 2
    assert "nan" not in points
    assert drawn(float("inf")) == ""
    assert "<circle" in drawn(0.5)
