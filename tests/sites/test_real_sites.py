"""Real processes, each with its own file, over gRPC with certificates: the bits and the books of the simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sordino.receipts.verify import verify
from tests.helpers.between_sites import ledger_of, model_of
from tests.helpers.real_sites import Trial
from tests.laws.cases import BY_NAME

SLOW = pytest.mark.slow
MASKED = {"uplink": {"client": ["clip_coordinates", "weigh", "secagg"], "server": ["coordinate_laplace"]}}
BFV = {"name": "bfv", "keys": "authority", "at_least": 2}
ENCRYPTED = {"uplink": {"client": ["clip_coordinates", "weigh", BFV], "server": ["coordinate_laplace"]}}
NAMES = [
    "gaussian_gdp",
    *(
        pytest.param(n, marks=SLOW)
        for n in ("scaffold", "cuag_pfl_local_client", "lc_fl", "slaug_fl_rigorous_b", "pdp_prox_bounds", "secagg_fl")
    ),
]


@SLOW
@pytest.mark.parametrize("table", [MASKED, ENCRYPTED], ids=["masked", "encrypted"])
def test_so_does_lc_fl_under_a_secure_sum(table: dict[str, Any], tmp_path: Path) -> None:
    everyone = {"cohort": {"name": "everyone"}}
    same(Trial.of(BY_NAME["lc_fl"], tmp_path, **everyone, **table))


@pytest.mark.one_fast
@pytest.mark.parametrize("name", NAMES)
def test_real_sites_train_what_the_simulation_trains(name: str, tmp_path: Path) -> None:
    same(Trial.of(BY_NAME[name], tmp_path))


def same(trial: Trial) -> None:
    loop, tmp_path = trial.simulated(), trial.place
    try:
        trial.played()
    finally:
        trial.kill_all()
    assert model_of(trial.folder) == model_of(loop)
    assert ledger_of(trial.folder) == ledger_of(loop)
    assert verify(trial.folder) == []
    for k in range(trial.sites):
        own = tmp_path / f"site-{k}-run"
        assert verify(own) == []
        assert model_of(own) == model_of(loop)  # every site is given what was trained
        if (loop / "model.json").exists():
            assert (own / "model.json").read_bytes() == (loop / "model.json").read_bytes()
        mine = {entry.op: entry.charges for entry in ledger_of(own)}
        for entry in ledger_of(loop):
            if str(k) in entry.charges:
                assert mine[entry.op] == {str(k): entry.charges[str(k)]}
