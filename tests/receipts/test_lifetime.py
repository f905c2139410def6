"""What all runs on one ledger have spent together, and who is who in it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from sordino.accounting.claims import ZCDP, Claim, Subject
from sordino.accounting.composition import note
from sordino.accounting.events import Gaussian
from sordino.config import Experiment
from sordino.ledger.ledger import EqualCaps, Ledger, LedgerScope
from sordino.receipts.receipt import ONE_ROW, UNKNOWN_RUN, lifetime
from sordino.runs.new_folder import environment_of


def test_a_shared_ledger_says_the_names_of_clients(tmp_path: Path) -> None:
    """Whoever looks at it needs no run folder to know who has spent what; and one founded before names is read."""
    place, names = tmp_path / "shared.sqlite", ("Nord", "Süd")
    subject = Subject(unit="example", neighbours="replace", adversary="server")
    scope, each = LedgerScope("data", subject, 1e-5, ZCDP, names), EqualCaps(2, (1,))
    bare = replace(scope, names=())
    for file, founded, later in ((place, scope, bare), (tmp_path / "old.sqlite", bare, scope)):
        Ledger.open(file, founded, each=each).close()
        with Ledger.open(file, later, each=each) as ledger:
            ledger.reserve("run/0", {"1": (1,)}, b"", note([]))
        told = [(row.name, row.spent[0] > 0) for row in lifetime(file).by_client]
        assert told == ([("Nord", False), ("Süd", True)] if founded.names else [("", False), ("", True)])


def test_what_runs_cost_one_row_together_is_no_promise_about_a_person(tmp_path: Path) -> None:
    """Runs on one ledger may declare other numbers of rows, and their receipts say what a person loses."""
    for unit, said in (("example", [ONE_ROW]), ("client", [])):
        place, subject = tmp_path / f"{unit}.sqlite", Subject(unit=unit, neighbours="replace", adversary="server")
        claims = Claim.to_everyone(unit, "replace", Gaussian(9.0), "proved", ())
        with Ledger.open(place, LedgerScope("data", subject, 1e-5, ZCDP, ()), each=EqualCaps(1, (1,))) as ledger:
            ledger.reserve("run/0", {"0": (1,)}, b"", note([("*", claims)], "system"))
        found = lifetime(place)
        assert {row.unit for row in found.guarantees} == {unit}
        assert list(found.assumptions) == [*said, UNKNOWN_RUN]


def test_a_site_that_shares_scores_promises_no_more_by_its_ledger_than_by_its_receipt(tmp_path: Path) -> None:
    place, subject = tmp_path / "ledger.sqlite", Subject(unit="client", neighbours="replace", adversary="server")
    claims = Claim.to_everyone("client", "replace", Gaussian(9.0), "proved", ())
    with Ledger.open(place, LedgerScope("data", subject, 1e-5, ZCDP, ()), each=EqualCaps(1, (1,))) as ledger:
        ledger.reserve("run/0", {"0": (1,)}, b"", note([("*", claims)], "system"))
    (link := tmp_path / "elsewhere" / "link").parent.mkdir()
    link.symlink_to(place)
    for shares in (False, True):
        told = environment_of(Experiment()).beside(site="Nord", clients=(0,), shares_scores=shares)
        (tmp_path / "environment.json").write_text(json.dumps(told.to_json()), encoding="utf-8")
        for asked in (place, link):
            found = {(row.unit, row.adversary): row.finite for row in lifetime(asked).guarantees}
            assert found["client", "server"] is not shares
            assert found["client", "public"]
            assert (("test example", "server") in found) is shares
