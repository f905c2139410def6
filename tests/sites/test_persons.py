"""Persons with several rows, between sites: one schema for all, a row for a person in every receipt, and a bound that
each site can check in its own table only.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sordino import config
from sordino.accounting.statement import SCORES, SEVERAL, Guarantee
from sordino.config import Experiment
from sordino.errors import ConfigError, DataError
from sordino.receipts.folder import RunFolder
from sordino.receipts.verify import examine, verify
from sordino.runs.population import Population
from sordino.sites.agreement_file import merged
from sordino.sites.own_data import OwnData
from tests.data.tables import saved
from tests.helpers.between_sites import Federated
from tests.sites.test_most_spent import shown, words

SCHEMA = """
[columns]
patient = { kind = "key"ROWS }
age = { kind = "number", range = [0, 110] }
died = { kind = "label", classes = ["0", "1"] }
"""


def study(place: Path, rows: str = ", rows = 3") -> Experiment:
    """Sixty visits of twenty patients."""
    place.mkdir(exist_ok=True)
    file = saved(place, [{"patient": f"p{i % 20}", "age": 20 + i, "died": i % 2} for i in range(60)])
    (place / "schema.toml").write_text(SCHEMA.replace("ROWS", rows))
    words = [
        "rounds=1", "model=logistic", "data.source=tabular", f"data.path={file}", "data.label=died", "data.key=patient",
        f"data.schema={place / 'schema.toml'}", "privacy.noise=system", "privacy.epsilon=1", "algorithm=gaussian_gdp",
        "partition={scheme='iid',clients=2}",
    ]  # fmt: skip
    return config.load(None, words)


def persons(rows: list[Guarantee] | tuple[Guarantee, ...]) -> dict[str, Guarantee]:
    return {row.adversary: row for row in rows if row.unit == "person"}


def test_every_receipt_has_a_row_for_a_person_and_says_that_rows_elsewhere_add_to_it(tmp_path: Path) -> None:
    between = Federated(study(tmp_path), tmp_path / "run")
    proposed = shown(between, max_epsilon=1.0)
    planned, before = persons(proposed.guarantees), words(proposed)
    proposed.check()
    assert min(row.epsilon for row in planned.values()) > 3
    assert "one person" in before
    assert "(this site allows 1 per example)" in before  # and no cap of a person
    between.play()
    for site, folder in [(site, between.place / site) for site in between.agreed.sites] + [("", between.folder)]:
        receipt = RunFolder(folder).receipt() if not site else between.member(site).receipt()
        rows = persons(receipt.guarantees)
        assert rows.keys() == planned.keys() == {"server", "participants", "public"}
        for adversary, row in rows.items():
            example = next(one for one in receipt.guarantees if (one.unit, one.adversary) == ("example", adversary))
            assert 3 * example.epsilon < row.epsilon <= planned[adversary].epsilon * (1 + 1e-9)
            assert SEVERAL.format(3) in row.because
        assert verify(folder) == []
        if site:
            between.stop(site)


def test_beside_shared_scores_nothing_is_promised_of_a_person_against_the_server(tmp_path: Path) -> None:
    """A key alone decides whether all rows of a patient are held back: then the server gets exact scores of them all.
    As it was, 3.5 of a person stood beside these scores, proved."""
    between = Federated(study(tmp_path), tmp_path / "run", shares_scores=True)
    held = Population(between.experiment).dataset
    trained, tested = ({int(age - 20) % 20 for age in part.x[:, 0]} for part in (held.train, held.test))
    assert tested
    assert not trained & tested  # whole patients
    planned = persons(shown(between, shares_scores=True).guarantees)
    between.play()
    receipt, folder = between.member("site-0").receipt(), between.place / "site-0"
    between.stop("site-0")
    for rows in (planned, persons(receipt.guarantees)):
        assert {adversary for adversary, row in rows.items() if row.finite} == {"participants", "public"}
        assert rows["server"].because == (SCORES,)
    assert verify(folder) == []
    assert examine(folder).wrong == []


def test_a_site_that_declares_no_rows_of_a_person_agrees_with_none_that_does(tmp_path: Path) -> None:
    """Its rows of one person are not counted, so a promise about a person would be nobody's."""
    sites = {
        name: OwnData(made := study(tmp_path / name, rows), Path(str(made.data.path)), b"a key")
        for name, rows in (("three", ", rows = 3"), ("silent", ""))
    }
    announced = {name: own.announced(name) for name, own in sites.items()}
    assert {name: told.data.rows_per_key for name, told in announced.items()} == {"three": 3, "silent": 1}
    assert any("not protected as a whole" in said for said in announced["silent"].data.assumed)
    with pytest.raises(ConfigError) as refused:
        merged([*announced.values()])
    assert refused.value.code == "sites-differ"
    # an agreement of a server's own making: each site compares it with what it has announced
    for name, rows in (("three", 2), ("silent", 3)):
        told = announced[name]
        other = told.beside(data=told.data.beside(rows_per_key=rows))
        with pytest.raises(DataError) as refusal:
            sites[name].check(other, 0)
        assert refusal.value.code == "other-data"
        sites[name].check(told, 0)
    assert replace(sites["three"], key=b"another key").announced("three").data == announced["three"].data


def test_the_rows_of_a_site_are_not_two_clients(tmp_path: Path) -> None:
    """Under two names the same patients would lose twice what each of the two receipts calls proved."""
    mine, others = (
        OwnData(made := study(tmp_path / name, ""), Path(str(made.data.path)), key)
        for name, key in (("mine", b"a key"), ("others", b"another key"))
    )
    ward = mine.announced("ward", "hospital")
    assert len(merged([ward, others.announced("other", "clinic")]).clients) == 2
    with pytest.raises(ConfigError) as refused:
        merged([ward, mine.announced("clinic", "hospital")])
    assert refused.value.code == "bad-agreement"
    assert "the same rows" in refused.value.why
