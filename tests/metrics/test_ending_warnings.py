"""What nobody should overlook at the end of a run is said of itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

import sordino
from sordino.metrics import RoundRow
from sordino.metrics.measures import warnings
from tests.helpers.command_line import Said

TINY = ("rounds=2", "partition.clients=3", "data.train=120", "data.test=60")


def rows(*losses: float, **last: float) -> list[RoundRow]:
    found = [RoundRow(round=t, loss=loss, accuracy=0.5) for t, loss in enumerate(losses, 1)]
    return [*found[:-1], found[-1].beside(**last)]


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (rows(1.0, 0.9, majority=0.3), []),
        (rows(1.0, 0.9, majority=0.5), ["no better than a constant answer"]),
        (rows(1.0, 0.9, majority=0.6), ["no better than a constant answer"]),
        (rows(1.0, 10.1, majority=0.3), ["after 1 in round 1: the training has diverged"]),
        (rows(1.0, math.inf, majority=0.3), ["the training has diverged"]),
        (rows(1.0, math.nan, majority=0.3), ["the training has diverged"]),
        (rows(30.0, 25.0, majority=0.3), ["an answer at random has less"]),
        (rows(30.0, 25.0), []),  # no classifier
        (rows(1.0, 0.9, accuracy=None, mean_absolute_error=8.4, baseline=1.79), ["always the mean: 1.79"]),
        (rows(1.0, 0.9, accuracy=None, mean_absolute_error=1.7, baseline=1.79), []),
        ([RoundRow(round=1)], []),  # not evaluated
    ],
)
def test_an_end_that_is_nothing_is_said_to_be_so(run: list[RoundRow], said: list[str]) -> None:
    found = warnings(run)
    assert len(found) == len(said)
    assert all(part in line for part, line in zip(said, found, strict=True))


def test_a_run_that_diverges_says_so_at_its_end_in_show_and_in_its_report(
    tmp_path: Path, cli: Callable[..., Said]
) -> None:
    run = tmp_path / "run"
    ended = cli("run", *TINY, "algorithm=fedavg", "algorithm.lr=1e6", "--out", run)
    for said in (ended.out, cli("show", run).out):
        assert "the training has diverged" in " ".join(said.split())
    assert cli("report", run).code == 0
    assert "the training has diverged" in (run / "report.html").read_text()
    assert "the training has diverged" in repr(sordino.open_run(run))


def test_own_metrics_stand_in_the_table_and_in_the_report(
    tmp_path: Path, cli: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "judge.py").write_text("def top2(logits, labels):\n    return 0.125\n")
    monkeypatch.chdir(tmp_path)
    own = 'evaluation.metrics=["judge:top2"]'
    assert "test top2" in (said := cli("run", *TINY, own, "--out", "run").out)
    assert "0.1250" in said
    assert cli("report", "run").code == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<dt>top2</dt><dd>0.1250</dd>" in page
    refused = cli("run", *TINY, own, "algorithm=ditto", "--out", "own")
    assert (refused.code, "scores-of-one-model" in refused.err) == (2, True)
