"""A training function in forks of a clean process, where a fork of the run's own cannot compute."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch

from sordino.errors import SordinoError
from sordino.privacy.readers import function_reader
from tests.algorithms.test_trainer import others_wrote, play, refusal  # noqa: F401
from tests.helpers import trainers

if not sys.platform.startswith("linux"):
    pytest.skip("processes are forked, on Linux alone", allow_module_level=True)


@pytest.fixture
def used_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has differentiated where it sees one."""
    monkeypatch.setattr(function_reader, "_CANNOT_FORK", {function_reader.NO_FORK})
    monkeypatch.setattr(function_reader, "_in_fresh_process", None)


@pytest.mark.slow
def test_where_no_fork_computes_a_clean_process_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, used_an_accelerator: None
) -> None:
    """The same bytes as in a fork, also of a function that draws; and nothing of one client reaches the next."""
    apart = {of: play(of, tmp_path / of) for of in ("draws", "sgd", "remembers")}
    monkeypatch.undo()
    for of in ("draws", "sgd"):
        assert torch.equal(apart[of], play(of, tmp_path / f"{of} in forks"))
    assert torch.equal(apart["remembers"], apart["sgd"])
    assert not trainers._SEEN


@pytest.mark.slow
def test_it_has_nothing_to_read(tmp_path: Path, others_wrote: None, used_an_accelerator: None) -> None:  # noqa: F811
    """In a clean process that was started anew."""
    for started in function_reader._CLEAN.values():
        started.end()
    assert torch.equal(play("reads", tmp_path / "reads"), play("sgd", tmp_path / "sgd"))


@pytest.mark.slow
def test_an_error_in_a_clean_process_is_told_with_its_place(tmp_path: Path, used_an_accelerator: None) -> None:
    for of, code in (("fails", "own-code"), ("ends", "trainer-ended"), ("fails", "own-code")):
        with pytest.raises(SordinoError) as refused:
            play(of, tmp_path / f"{of}-{code}", rounds=1)
        assert refused.value.code == code
        shutil.rmtree(tmp_path / f"{of}-{code}")
    assert "trainers.py" in refused.value.what + refused.value.why


def test_a_clean_process_knows_no_function_of_a_session(used_an_accelerator: None) -> None:
    assert refusal(trainers.sgd).code == "no-fresh-process"
