"""What the report of a run says: true to the receipt, in words that do not promise more than the number. (How it looks:
test_pages.)
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from sordino import run
from sordino.accounting.statement import Guarantee
from sordino.accounting.words import described, merged, sentence, strength, subject
from sordino.report.frame import promises, style
from sordino.report.run_facts import gather
from sordino.report.run_page import page
from sordino.runs.listing import NOT_OF_SCORES, promise

ROW = Guarantee(
    unit="example", neighbours="replace", adversary="server", epsilon=1.0, delta=1e-5, status="proved", because=(),
    releases=3, accountant="gdp", accountants={"gdp": 1.0}, event=None,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "run"
    run(None, "rounds=3", "partition.clients=5", out=out)
    return out


def test_the_facts_are_those_of_the_receipt(folder: Path) -> None:
    facts = gather(folder)
    receipt = json.loads((folder / "privacy.json").read_text())
    assert {row["epsilon"] for row in facts.to_json()["guarantees"]} == {
        row["epsilon"] for row in receipt["guarantees"]
    }
    curve = next(c for c in facts.epsilon if c.unit == "example")
    assert [stop for stop, _ in curve.points] == [1, 2, 3]
    values = [value for _, value in curve.points]
    assert values == sorted(values)  # what was spent never falls
    assert values[-1] == pytest.approx(8.0, rel=1e-6)
    assert f" {sum(map(sum, facts.partition))} examples" in facts.lead
    assert "ε per example (replace), against" in page(facts)  # no epsilon without its neighbours


def test_words_say_the_number_and_the_subject() -> None:
    text = sentence(ROW, ["server"])
    assert "one example" in text
    assert "the server" in text
    assert "2.8 times" in text  # e, rounded up
    assert "1e-05" in text
    assert "Nothing is promised" in sentence(ROW.beside(epsilon=math.inf, status="none", because=("raw",)), ["server"])
    nominal = sentence(ROW.beside(status="nominal", nominal_epsilon=0.5, because=("no proof",)), ["server"])
    assert "proves nothing" in nominal
    assert "0.5" in nominal


def test_rows_merge_only_where_they_say_the_same() -> None:
    others = [
        ROW.beside(adversary="public"),
        ROW.beside(adversary="participants", epsilon=2.0),
    ]
    assert [by for _, by in merged([ROW, *others])] == [["server", "public"], ["participants"]]


def test_strength_has_no_word_stronger_than_the_number() -> None:
    words = [strength(e) for e in (0.1, 1, 3, 8, 50, math.inf)]
    assert words[0] == words[1] == "strong"
    assert len(dict.fromkeys(words)) == 5
    assert words[-1] == "no protection"


def test_the_promise_in_a_list_names_what_holds_and_what_does_not() -> None:
    assert promise([ROW.beside(epsilon=math.inf)], True) == "nothing promised"
    said = "ε 1 per example (replace), against the server, δ 1e-05, proved"
    assert promise([ROW], False) == f"{said}; {NOT_OF_SCORES}"
    assert promise([ROW], True) == f"{said} (simulation)"
    told = promise([ROW.beside(status="nominal", nominal_epsilon=0.5)], False)
    assert "ε 1 per example" in told
    assert "holds; nominal 0.5 proves nothing" in told
    wider = ROW.beside(unit="client", epsilon=3.0, adversary="public")
    assert promise([ROW, wider], False).startswith("ε 3 per client")


def test_a_described_row_hides_nothing_that_its_words_need() -> None:
    rows = [ROW.beside(adversary=by) for by in ("server", "public")]
    (told,) = described(rows, False)
    assert told.by == "the server and the public"
    assert told.words == sentence(rows[0], ["server", "public"])
    assert "event" not in told.to_json()
    assert subject(["server", "participants", "public"]) == "anyone"


def test_a_run_of_another_ledger_currency_has_no_nominal_curve(folder: Path) -> None:
    assert all(line.nominal is None for line in gather(folder).epsilon)


def test_data_without_classes_has_a_page(tmp_path: Path) -> None:
    settings = [
        "data={source='quadratic'}",
        "partition={scheme='natural'}",
        "algorithm=fedavg",
        "privacy={}",
        "rounds=2",
    ]
    run(None, *settings, out=tmp_path / "run")
    facts = gather(tmp_path / "run")
    assert facts.partition == ((1,),) * facts.clients  # one example each, of the one class
    assert facts.epsilon == ()
    assert "Examples of each client" in page(facts)


@pytest.mark.parametrize(
    ("epsilon", "kind"),
    [(1.0, "proved"), (4.0, "proved"), (8.0, "proved weak"), (43.0, "proved formality"), (math.inf, "proved")],
)
def test_what_is_proved_and_weak_does_not_look_safe(epsilon: float, kind: str) -> None:
    (box,) = described([ROW.beside(epsilon=epsilon)], simulated=False)
    assert f'<li class="{kind}">' in promises([box])
    rules = style()
    assert rules.index(".promises .proved {") < rules.index(".promises .weak {")  # the later rule holds
