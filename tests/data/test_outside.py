"""Values that a schema does not know are told to their owner, and to nobody else; a site that writes a column in its own
way stops before any budget is spent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sordino
from sordino.data import tabular
from sordino.data.schema import parsed
from sordino.errors import DataError
from sordino.runs.public_inputs import ALONE, COPIES, FITS, READS
from tests.data.tables import refused, saved
from tests.helpers.command_line import Said

SCHEMA = """
[columns]
sex = { kind = "levels", levels = ["m", "f"] }
town = { kind = "levels", levels = ["Köln", "Bonn", "rest"], other = "rest" }
creatinine = { kind = "number", range = [0, 10] }
died = { kind = "label", classes = ["0", "1"] }
"""
SITES = ("Nord", "Sud", "West")
MANY = 40


def rows(**changes: Callable[[int], object]) -> list[dict[str, Any]]:
    """Of one clinic; `changes` say what stands in row i of a column."""
    made = ({"sex": "mf"[i % 2], "town": "Köln", "creatinine": 1 + i % 3, "died": i // 2 % 2} for i in range(MANY))
    return [row | {name: said(i) for name, said in changes.items()} for i, row in enumerate(made)]


def study(folder: Path, schema: str = SCHEMA, **west: Callable[[int], object]) -> list[str]:
    """Three clinics, of which West may write in its own way; the words of a run with real noise."""
    (folder / "clinics").mkdir()
    for name in SITES:
        saved(folder / "clinics", rows(**(west if name == "West" else {})), f"{name}.csv")
    (folder / "schema.toml").write_text(schema, encoding="utf-8")
    data = {"source": "tabular", "path": folder / "clinics", "schema": folder / "schema.toml", "label": "died"}
    return [
        "rounds=1", "model=logistic", "algorithm=gaussian_gdp", "privacy.epsilon=2", "privacy.noise=system",
        *(f"data.{key}={value}" for key, value in data.items()),
    ]  # fmt: skip


ANOTHER_WAY: Mapping[str, tuple[dict[str, Callable[[int], object]], str]] = {
    "another coding": ({"sex": lambda i: "MF"[i % 2]}, "West: 40 of 40 values of sex are not a level that the schema"),
    "another unit": ({"creatinine": lambda i: 88.4 * (1 + i % 3)}, "values of creatinine lie outside [0, 10], such as"),
    "a quarter of them": ({"sex": lambda i: "?" if i % 4 == 0 else "m"}, "West: 10 of 40 values of sex"),
}


@pytest.mark.parametrize("how", ANOTHER_WAY)
def test_a_clinic_that_writes_in_its_own_way_stops_the_run_before_it_begins(
    how: str, tmp_path: Path, cli: Callable[..., Said]
) -> None:
    changes, said = ANOTHER_WAY[how]
    words = study(tmp_path, **changes)
    for more in ([], ["--dry-run"]):
        stopped = cli("run", *words, "--out", tmp_path / "run", *more)
        assert (stopped.code, "values-outside-schema" in stopped.err) == (3, True)
        assert said in stopped.err
    assert not (tmp_path / "run").exists()
    shown = cli("data", "list", *words)  # whose owner can see what it is
    assert shown.code == 0
    assert "(West" in shown.out


@pytest.mark.parametrize(
    ("schema", "changes"),
    [
        (SCHEMA.replace("[0, 10] }", '[0, 10], outside = "move" }'), {"creatinine": lambda i: 99}),
        (SCHEMA, {"town": lambda i: "Ulm"}),  # `other` is for these
    ],
)
def test_a_schema_that_says_so_lets_them_in(
    schema: str, changes: dict[str, Callable[[int], object]], tmp_path: Path, cli: Callable[..., Said]
) -> None:
    assert cli("run", *study(tmp_path, schema, **changes), "--out", tmp_path / "run", "--dry-run").code == 0


def test_writing_out_that_numbers_are_moved_declares_nothing_else() -> None:
    said = SCHEMA.replace("[0, 10] }", '[0, 10], outside = "move" }')
    assert parsed(said).digest == parsed(SCHEMA).digest


def test_slips_are_told_to_the_owner_and_stand_in_no_file_that_others_may_see(
    tmp_path: Path, cli: Callable[..., Said]
) -> None:
    words = study(tmp_path, sex=lambda i: "x" if i < 7 else "m")
    note = "sex: 7 of 120 values are not a level that the schema declares (West 7 of 40)"
    assert note in " ".join(cli("run", *words, "--dry-run").out.split())
    assert json.loads(cli("run", *words, "--dry-run", "--json").out)["remarks"][0].startswith(note)
    run = tmp_path / "run"
    assert note in " ".join(cli("run", *words, "--out", run).out.split())
    assert note in (run / "private" / "log.txt").read_text()
    public = [file for file in run.rglob("*") if file.is_file() and run / "private" not in file.parents]
    assert len(public) > 5
    assert not [file for file in public if b"7 of 40" in file.read_bytes() or b"7 of 120" in file.read_bytes()]
    assert note not in cli("privacy", "export", run, "--as", "annex", "--out", tmp_path / "annex.html").out
    assert "7 of 40" not in (tmp_path / "annex.html").read_text()


def test_that_a_run_began_tells_of_the_rows_and_its_receipt_says_so(tmp_path: Path, cli: Callable[..., Said]) -> None:
    """With nine values that the schema does not know it begins, with one more it does not."""

    def begins(many: int) -> bool:
        (place := tmp_path / str(many)).mkdir()
        words = study(place, sex=lambda i: "?" if i < many else "m")
        return cli("run", *words, "--out", place / "run").code == 0

    assert (begins(9), begins(10)) == (True, False)
    said = sordino.open_run(tmp_path / "9" / "run").receipt.assumptions
    assert FITS in said
    assert {ALONE.format("the table"), COPIES} <= {*said}  # nobody sees how a table was made


def test_that_no_two_names_look_alike_is_told_by_a_receipt_too(tmp_path: Path, cli: Callable[..., Said]) -> None:
    """A key with a space behind it is refused beside the same one without, and begins beside another one."""

    def begins(second: str) -> bool:
        (place := tmp_path / second.strip()).mkdir()
        words = study(place, SCHEMA + 'visit = { kind = "key" }\n')
        for name in SITES:
            keyed = rows(visit=lambda i, at=name: ["v1", second][i % 2] if at == "West" and i < 2 else f"{at}{i}")  # type: ignore[misc]
            saved(place / "clinics", keyed, f"{name}.csv")
        return cli("run", *words, "data.key=visit", "--out", place / "run").code == 0

    assert (begins("v1 "), begins("v2 ")) == (False, True)
    said = sordino.open_run(tmp_path / "v2" / "run").receipt.assumptions
    assert any("if two names of keys or clients look alike" in one for one in said)


def test_a_site_is_told_when_it_announces(tmp_path: Path, cli: Callable[..., Said]) -> None:
    words = study(tmp_path, sex=lambda i: "MF"[i % 2])
    experiment = tmp_path / "study.toml"
    data = {word.split("=")[0][5:]: word.split("=")[1] for word in words if word.startswith("data.")}
    told = sordino.config.load(
        {
            "name": "study", "rounds": 1, "data": data, "model": {"name": "logistic"}, "partition": {"scheme": "natural"},
            "algorithm": {"name": "gaussian_gdp"}, "privacy": {"epsilon": 2.0, "noise": "system"},
        }
    )  # fmt: skip
    experiment.write_text(told.toml(), encoding="utf-8")
    assert cli("identity", "new", tmp_path / "west").code == 0
    common = ["announce", experiment, "--name", "West", "--identity", tmp_path / "west"]
    stopped = cli("data", *common, "--data", tmp_path / "clinics" / "West.csv", "--out", tmp_path / "west.toml")
    assert (stopped.code, "values-outside-schema" in stopped.err) == (3, True)
    assert not (tmp_path / "west.toml").exists()
    saved(tmp_path, rows(sex=lambda i: "x" if i < 7 else "m"), "slips.csv")
    sent = cli("data", *common, "--data", tmp_path / "slips.csv", "--out", tmp_path / "west.toml")
    assert sent.code == 0
    assert "7 of 40 values" in " ".join(sent.err.split())
    assert "7 of 40" not in (tmp_path / "west.toml").read_text()


def test_a_label_that_is_a_number_counts_too(tmp_path: Path) -> None:
    from sordino.data.label_kinds import Numbers

    said = SCHEMA.replace('classes = ["0", "1"]', "range = [0, 1]")
    saved(tmp_path, rows(died=lambda i: 5), "one.csv")
    found = tabular.load(tmp_path / "one.csv", "died", schema=parsed(said), outcome=Numbers(0, 1))
    assert found.misfit is not None
    assert "values of died lie outside [0, 1], such as 5.0" in str(found.misfit)


def test_of_groups_that_nobody_declared_no_name_is_told(tmp_path: Path) -> None:
    said = SCHEMA + 'patient = { kind = "group" }\n'
    saved(tmp_path, rows(patient=lambda i: f"p{i % 4}", sex=lambda i: "x" if i < 3 else "m"), "one.csv")
    found = tabular.load(tmp_path / "one.csv", "died", "patient", schema=parsed(said))
    assert found.misfit is None  # three values are too few to tell of a site
    assert found.remarks == (
        "sex: 3 of 40 values are not a level that the schema declares: each is none of them: all zeros",
    )


def test_rows_in_memory_beyond_their_reach_are_told() -> None:
    from sordino.data.sources import load, rows_of

    given = {"x": np.array([[0.0, 2.0], [1.0, -7.0]] * 10), "y": np.array([0, 1] * 10), "classes": 2, "reach": (-1, 1)}
    assert load(rows_of(given), "mine", "fixed").remarks == (
        "x: 20 of 40 values lie outside [-1, 1], the declared reach: each is moved to its end",
    )


def test_a_file_in_utf_8_is_not_read_in_the_encoding_of_another(tmp_path: Path) -> None:
    for name, encoding in (("old", "cp1252"), ("new", "utf-8")):
        text = saved(tmp_path, rows(), f"{name}.csv").read_text(encoding="utf-8")
        (tmp_path / f"{name}.csv").write_text(text, encoding=encoding)
    both = [str(tmp_path / "old.csv"), str(tmp_path / "new.csv")]
    for encoding in (None, "cp1252"):
        load = partial(tabular.load, both, "died", schema=parsed(SCHEMA), encoding=encoding)
        assert refused(load).code == "wrong-encoding"
    fixed = tmp_path / "old.csv"
    fixed.write_text(fixed.read_text(encoding="cp1252"), encoding="utf-8")  # what iconv does
    assert tabular.load(both, "died", schema=parsed(SCHEMA)).remarks == ()
    plain = saved(tmp_path, rows(town=lambda i: "Bonn"), "plain.csv")
    assert tabular.load(plain, "died", schema=parsed(SCHEMA), encoding="cp1252").remarks == ()


def test_a_site_is_told_before_it_consents(
    tmp_path: Path, cli: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sordino import config
    from sordino.receipts.signature import private_key
    from sordino.sites import agreement_file as agreed
    from sordino.sites.agreement_file import invite

    study(tmp_path)
    mine = saved(tmp_path, rows(sex=lambda i: "x" if i < 7 else "m"), "mine.csv")
    data = {"source": "tabular", "path": str(mine), "schema": str(tmp_path / "schema.toml"), "label": "died"}
    told = config.load(
        {
            "rounds": 1, "data": data, "model": {"name": "logistic"}, "partition": {"scheme": "natural"},
            "algorithm": {"name": "gaussian_gdp"}, "privacy": {"epsilon": 2.0, "noise": "system"},
        }
    )  # fmt: skip
    (tmp_path / "study.toml").write_text(told.toml(), encoding="utf-8")
    for who in ("west", "server"):
        assert cli("identity", "new", tmp_path / who).code == 0
    own = ["--name", "West", "--identity", tmp_path / "west", "--data", mine]
    assert cli("data", "announce", tmp_path / "study.toml", *own, "--out", tmp_path / "west.toml").code == 0
    sites = agreed.read(tmp_path / "west.toml")
    invitation = invite("run", "localhost:9", private_key(tmp_path / "server"), told, sites)
    assert "7 of 40" not in invitation.toml()
    (tmp_path / "invitation.toml").write_text(invitation.toml(), encoding="utf-8")
    monkeypatch.setattr("typer.confirm", lambda *_, **__: False)
    said = cli("join", tmp_path / "invitation.toml", *own, "--out", tmp_path / "here")
    assert "7 of 40 values are not a level that the schema declares" in " ".join(said.err.split())
    assert "Declined" in said.err
    assert not (tmp_path / "here").exists()


def test_an_invitation_has_no_word_of_the_rows_that_a_schema_was_drafted_from(tmp_path: Path) -> None:
    """A draft tells its reader which cells are odd, and how many rows there are; as it was, all sites were told, too."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from sordino import config
    from sordino.data.inferred_columns import draft
    from sordino.sites.agreement_file import invite
    from sordino.sites.own_data import OwnData

    odd = saved(tmp_path, rows(creatinine=lambda i: "see letter" if i == 3 else 1 + i / 10), "odd.csv")
    confirmed = draft(str(odd), "died").replace("draft = true\n", "")
    (tmp_path / "schema.toml").write_text(confirmed, encoding="utf-8")
    mine = saved(tmp_path, rows(creatinine=lambda i: 1 + i / 10), "mine.csv")
    data = {"source": "tabular", "path": str(mine), "schema": str(tmp_path / "schema.toml"), "label": "died"}
    made = config.validate({"data": data, "privacy": {"noise": "system"}, "partition": {"scheme": "natural"}})
    sites = OwnData(made, mine, b"a key of the site").announced("West")
    sent = invite("run", "localhost:9", Ed25519PrivateKey.generate(), made, sites)
    assert sent.declared == parsed(confirmed)
    said = "see letter", "40 rows", "#"
    assert [text in confirmed for text in said] == [True, True, True]
    assert [text in sent.toml() for text in said] == [False, False, False]


def test_that_a_run_on_arrays_began_tells_of_the_rows_and_its_receipt_says_so(tmp_path: Path) -> None:
    """With a row that is not finite it does not begin; with its neighbour it does."""
    noise = {"name": "noise", "neighbours": "zero_out"}
    made = {"rounds": 1, "model": {"name": "logistic"}, "partition": {"scheme": "iid", "clients": 4}}
    made |= {"algorithm": {"name": "fedavg"}, "privacy": {"epsilon": 1.0, "delta": 1e-3, "noise": "system"}}
    made |= {"uplink": {"client": [{"name": "clip", "radius": 1.0}], "server": [noise]}}

    def start(cell: float) -> sordino.Result:
        x = np.full((40, 3), 0.5)
        x[7, 1] = cell
        rows = {"x": x, "y": np.arange(40) % 2, "classes": 2, "reach": (0.0, 1.0)}
        return sordino.run(made, data=rows, out=tmp_path / "run")

    with pytest.raises(DataError) as refused:
        start(np.nan)
    assert refused.value.code == "own-rows-unfit"
    assert READS in start(0.5).receipt.assumptions
