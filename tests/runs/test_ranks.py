"""Clients spread over ranks: the rounds of the loop, one sum instead of many uploads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino import tree
from sordino.errors import SordinoError
from sordino.privacy.uplink import Uplink
from sordino.runs import ranks
from sordino.runs.run import start
from sordino.runs.verify import verify
from sordino.types import Grant
from tests.laws.cases import BY_NAME, CASES
from tests.laws.test_executors import CLOSE, apart, paid
from tests.laws.traces import finished, trace


def torchrun(count: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    return subprocess.run(
        [*launcher, "-m", "sordino", *map(str, arguments), "-q"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("scaffold", 2), ("central", 3), ("gaussian_gdp", 2)])
def test_ranks_do_what_the_loop_does(name: str, count: int, tmp_path: Path) -> None:
    case = BY_NAME[name]
    alone = finished(case.experiment(), tmp_path / "loop")
    (tmp_path / "e.toml").write_text(case.experiment(engine={"executor": "ranks"}, rounds=4).toml())
    done = torchrun(count, "run", tmp_path / "e.toml", "--out", tmp_path / "ranks")
    assert done.returncode == 0, done.stderr
    together = trace(tmp_path / "ranks")
    assert [paid(entry) for entry in alone.ledger] == [paid(entry) for entry in together.ledger]
    assert apart(tmp_path / "loop", tmp_path / "ranks") < CLOSE
    assert verify(tmp_path / "ranks") == []
    assert len(list((tmp_path / "ranks").glob("clients-*"))) == count
    if name == "scaffold":  # a finished run resumes to itself, with as many ranks as it began with
        again = torchrun(count, "resume", tmp_path / "ranks")
        assert again.returncode == 0, again.stderr
        assert trace(tmp_path / "ranks") == together
        refused = torchrun(1, "resume", tmp_path / "ranks")
        assert refused.returncode != 0
        assert "other-ranks" in refused.stderr


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.integers(1, 7), st.integers(1, 4))
def test_sums_of_parts_are_the_sum(clients: int, parts: int) -> None:
    """However the clients are divided, what the server makes of the sums is what it makes of the uploads."""
    uplink, rng = Uplink(), torch.Generator().manual_seed(clients)
    zero = {"w": torch.zeros(5), "b": torch.zeros(2, 3)}
    raw = {k: tree.map(lambda leaf: torch.randn(leaf.shape, generator=rng), zero) for k in range(clients)}
    sent = {k: uplink.encode(raw[k], Grant(k, k + 1, clients, None)) for k in raw}  # type: ignore[arg-type]
    weights = [uplink.weight(k + 1, clients) for k in range(clients)]
    whole = uplink.receive(sent, zero, weights, 1.0, None, None)  # type: ignore[arg-type]
    shares = [uplink.sum(((k, sent[k]) for k in sent if k % parts == i), zero) for i in range(parts)]
    total: Any = shares[0].total
    for share in shares[1:]:
        total = tree.add(total, share.total)
    summed = type(shares[0])(total, sorted(k for share in shares for k in share.who))
    again = uplink.receive(summed, zero, weights, 1.0, None, None, each=False)  # type: ignore[arg-type]
    assert again.participation == whole.participation
    for a, b in zip(tree.leaves(whole.mean), tree.leaves(again.mean), strict=True):
        assert torch.allclose(a, b, rtol=1e-6, atol=1e-7)
    with pytest.raises(SordinoError) as refusal:
        _ = again.each
    assert refusal.value.code == "reads-each"


def test_without_torchrun_there_are_no_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert not ranks.following()
    with pytest.raises(SordinoError) as refusal:
        start(CASES[0].experiment(engine={"executor": "ranks"}), tmp_path / "run")
    assert refusal.value.code == "no-ranks"


def test_who_is_late_cannot_be_taken_out_of_a_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    made = CASES[0].experiment(engine={"executor": "ranks"}, stragglers={"share": 0.5, "policy": "late"})
    with pytest.raises(SordinoError) as refusal:
        start(made, tmp_path / "run")
    assert refusal.value.code == "ranks-send-sums"


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("udp", {}),  # a median of norms
        ("fedavg", {"uplink": {"server": [{"name": "median", "f": 1}]}, "cohort": {"name": "everyone"}}),
    ],
)
def test_some_need_single_uploads(
    name: str, more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(SordinoError) as refusal:
        start(BY_NAME[name].experiment(engine={"executor": "ranks"}, **more), tmp_path / "run")
    assert refusal.value.code == "ranks-send-sums"
