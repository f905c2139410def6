"""Run folders of every format there ever was, as the version of their day wrote them: all verbs read them, and a stopped
one goes on to the model of a run that never stopped.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sordino.accounting.claims import Claim
from sordino.accounting.currency import ZCDP
from sordino.accounting.events import Gaussian, Poisson
from sordino.accounting.notes import note
from sordino.accounting.statement import Guarantee, statement
from sordino.ledger import books
from sordino.ledger.books import Charter
from sordino.ledger.ledger import Ledger
from sordino.runs.folder import RunFolder
from sordino.runs.run import resume, start
from sordino.runs.shapes import FORMAT
from sordino.runs.verify import verify
from tests.helpers.command_line import Said

GOLDEN = Path(__file__).parents[1] / "golden"
FORMATS = range(1, FORMAT + 1)


@pytest.fixture(params=FORMATS, ids="format {}".format)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The folders of one format, where they may be written to."""
    return Path(shutil.copytree(GOLDEN / f"format_{request.param}", tmp_path / "old"))


def test_the_receipt_of_an_old_run_holds_and_every_verb_reads_it(old: Path, cli: Callable[..., Said]) -> None:
    assert verify(old / "finished") == []
    for verb in (["show"], ["privacy", "spent"], ["report"], ["privacy", "verify"]):
        assert cli(*verb, old / "finished").code == 0, verb
    assert cli("list", old).code == 0


def test_an_old_run_that_was_stopped_goes_on(old: Path, tmp_path: Path) -> None:
    resume(old / "stopped")
    assert verify(old / "stopped") == []
    start(RunFolder(old / "stopped").experiment, tmp_path / "fresh")
    went_on, never_stopped = (load_file(RunFolder(one).model_file) for one in (old / "stopped", tmp_path / "fresh"))
    assert went_on.keys() == never_stopped.keys()
    for (
        name,
        weights,
    ) in never_stopped.items():  # the first rounds were played on another processor, which rounds otherwise
        assert torch.allclose(went_on[name], weights, rtol=1e-5, atol=1e-6), name


def test_a_folder_of_a_format_to_come_is_refused(old: Path, cli: Callable[..., Said]) -> None:
    for name, verbs in (("environment_file", ("privacy verify", "resume")), ("receipt_file", ("show",))):
        place = Path(shutil.copytree(old / "finished", old / name))
        file: Path = getattr(RunFolder(place), name)
        file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 99}))
        for verb in verbs:
            said = cli(*verb.split(), place)
            assert (said.code, "newer-run" in said.err) == (6, True), (verb, said)


def test_what_was_written_as_add_remove_is_read_as_zero_out(tmp_path: Path) -> None:
    """Of ledgers and receipts that were written under the old name: the same numbers, and the ledger keeps counting."""
    old = Charter("digits", "client", "add_remove", "participants", 1e-5, ZCDP)
    with pytest.MonkeyPatch.context() as then:
        then.setattr(books, "as_written", lambda neighbours: neighbours)
        Ledger.open(tmp_path / "ledger.sqlite", old, {"0": (10,)}).close()
    with Ledger.as_founded(tmp_path / "ledger.sqlite") as ledger:
        assert ledger.charter.neighbours == "zero_out"
    with Ledger.open(tmp_path / "ledger.sqlite", replace(old, neighbours="zero_out"), {"0": (10,)}):
        pass
    event = Poisson(0.1, Gaussian(1.0))
    text = note([("*", [Claim("client", "zero_out", "participants", event, "proved")])])
    (row,) = statement([text], 3, 1e-5)
    assert statement([text.replace("zero_out", "add_remove")], 3, 1e-5) == [row]
    assert Guarantee.model_validate(dict(row) | {"neighbours": "add_remove"}) == row
