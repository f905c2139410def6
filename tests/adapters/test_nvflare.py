"""What an aggregator of NVFlare adds up. The package is not needed here."""

from __future__ import annotations

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


def sent(params: Any = ONES, site: str = "a", kind: str = "DIFF", **meta: Any) -> Any:
    return SimpleNamespace(params=params, params_type=SimpleNamespace(value=kind), meta={"client_name": site, **meta})


WRONG = [
    (sent(kind="FULL", site="whole"), "not-a-change"),
    (sent({**ONES, "loss": ONES["b"]}), "array-not-declared"),
    (sent({"w": ONES["w"]}), "array-not-declared"),
    (sent(None), "array-not-declared"),
    (sent(MODEL["w"]), "array-not-declared"),
    (sent({**ONES, "w": b"sealed"}, PROCESSED_ALGORITHM="HE_CKKS"), "secure-sum-elsewhere"),
]


def refused(found: PrivateAggregator, model: Any) -> str:
    with pytest.raises(SordinoError) as refusal:
        found.accept_model(model)
    return refusal.value.code


def test_a_server_adds_each_site_once_and_nothing_else(tmp_path: Path) -> None:
    found = aggregator(tmp_path)
    found.reset_stats()
    for model, code in WRONG:
        assert refused(found, model) == code
    found.accept_model(sent())
    assert refused(found, sent()) == "clients-beyond-plan"
    for i in range(9):
        if i < 3:
            found.accept_model(sent(site=f"s{i}"))
        else:
            assert refused(found, sent(site=f"s{i}")) == "clients-beyond-plan"
    assert [*found._changes] == ["a", "s0", "s1", "s2"]  # as many as are asked
    found.reset_stats()
    assert found._changes == {}
    assert states(tmp_path / "server") == []


@pytest.mark.parametrize(("model", "code"), WRONG)
def test_a_round_of_refused_results_alone_is_not_paid_for(model: Any, code: str, tmp_path: Path) -> None:
    """As where a filter of the job encrypts what every site sends."""
    found = aggregator(tmp_path)
    found.reset_stats()
    for site in ("a", "b"):
        model.meta["client_name"] = site
        assert refused(found, model) == code
    with pytest.raises(SordinoError) as refusal:
        found.aggregate_model()
    assert refusal.value.code == code
    assert states(tmp_path / "server") == []
    found.reset_stats()
    assert found._refusal is None


def test_a_round_that_nobody_answers_is_not_paid_for(tmp_path: Path) -> None:
    found = aggregator(tmp_path)
    found.reset_stats()
    with pytest.raises(SordinoError) as refusal:
        found.aggregate_model()
    assert refusal.value.code == "nobody-answered"
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
