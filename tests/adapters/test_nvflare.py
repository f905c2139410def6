"""What an aggregator of NVFlare adds up. The package is not needed here."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sordino.adapters.nvflare import PrivateAggregator
from sordino.errors import SordinoError
from tests.adapters.malformed import MODEL
from tests.adapters.test_private_uplink import TERMS, states

DECLARED = {name: [list(one.shape), str(one.dtype)] for name, one in MODEL.items()}
ONES = {name: np.ones_like(one) for name, one in MODEL.items()}


def aggregator(folder: Path, **changes: Any) -> PrivateAggregator:
    return PrivateAggregator(str(folder / "server"), DECLARED, **{**TERMS, "clients": 5, "asked": 4, **changes})


def sent(params: Any = ONES, site: str = "a", kind: str = "DIFF") -> Any:
    return SimpleNamespace(params=params, params_type=SimpleNamespace(value=kind), meta={"client_name": site})


def test_a_server_adds_each_site_once_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = aggregator(tmp_path)
    caplog.set_level(logging.ERROR)
    found.reset_stats()
    wrong = [
        sent(kind="FULL", site="whole"),
        sent({**ONES, "loss": ONES["b"]}),
        sent({"w": ONES["w"]}),
        sent(None),
        sent(MODEL["w"]),
    ]
    for one in (*wrong, sent(), sent(), *(sent(site=f"s{i}") for i in range(9))):
        found.accept_model(one)
    assert [*found._changes] == ["a", "s0", "s1", "s2"]  # as many as are asked
    found.reset_stats()
    assert found._changes == {}
    assert states(tmp_path / "server") == []


def test_a_round_beyond_the_budget_does_not_begin(tmp_path: Path) -> None:
    found = aggregator(tmp_path)
    for _ in range(TERMS["rounds"]):
        found.reset_stats()
        found._uplink.of_server([], found._declared.zero, 4)
    with pytest.raises(SordinoError) as refusal:
        found.reset_stats()
    assert refusal.value.code == "BudgetExhausted"


def test_no_more_sites_are_asked_than_there_are(tmp_path: Path) -> None:
    with pytest.raises(SordinoError) as refusal:
        aggregator(tmp_path, asked=6)
    assert refusal.value.code == "out-of-range"
