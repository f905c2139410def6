"""A method that chooses its clients itself: no coin amplifies its promise, and what is stated rests on the choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

import sordino
from sordino.accounting.gaussian_dp import delta_of, epsilon_of
from sordino.algorithms.fedavg import FedAvg
from sordino.algorithms.optional import RequestsClients
from sordino.errors import UnsoundGuarantee
from sordino.planning.phase import CHOOSES
from sordino.receipts.verify import verify
from sordino.runs.forecast import Forecast
from sordino.runs.simulation import simulated
from tests.helpers.prepared_runs import CLIENTS, TINY, tiny

DELTA = 1e-3
UPLOADS = {
    "rounds": 3,
    "model": "logistic",
    "partition": {"scheme": "iid", "clients": 12},
    "uplink": {
        "client": [{"name": "clip", "radius": 1.0}],
        "server": [{"name": "noise", "neighbours": "zero_out", "multiplier": 1.0}],
    },
    "privacy": {"delta": DELTA},
}


@dataclass(frozen=True)
class Favourite(FedAvg, RequestsClients):
    """It asks client 0 as long as a number of the released model is small: the state decides, not a coin."""

    def requested_clients(self, s: Any) -> Sequence[int]:
        return [0] if float(next(iter(s.x.values())).flatten()[0]) < 1e3 else [1]


@pytest.mark.parametrize(
    "cohort",
    [
        {"name": "poisson", "rate": 0.1},
        {"name": "by_budget", "size": 3},
        {"name": "threshold"},
    ],
)
def test_no_coin_amplifies_a_choice(cohort: dict[str, Any], tmp_path: Path) -> None:
    more = {} if cohort["name"] == "poisson" else {"privacy": {"delta": DELTA, "epsilon": 4.0}}
    with pytest.raises(UnsoundGuarantee) as refusal:
        sordino.run(out=tmp_path / "run", algorithm=Favourite, **{**UPLOADS, "cohort": cohort, **more})
    assert refusal.value.code == "requests-without-coins"
    assert not (tmp_path / "run").exists()


def test_what_is_stated_of_a_choice_rests_on_it(tmp_path: Path) -> None:
    ended = sordino.run(out=tmp_path / "run", algorithm=Favourite, **{**UPLOADS, "cohort": "everyone"})
    found = next(row for row in ended.receipt.guarantees if row.unit == "client" and row.epsilon < 99)
    assert found.epsilon == pytest.approx(epsilon_of(3**0.5, DELTA), rel=1e-9)
    assert found.status == "conditional"
    assert CHOOSES in found.because
    assert verify(tmp_path / "run") == []


def test_what_a_choice_may_lose_is_more_than_its_rounds_say() -> None:
    """By integration, for noise of multiplier 1 and two rounds, of which the second takes place if what was released
    looks like the client's: the delta at the stated epsilon is larger, and at the epsilon of both rounds it is not."""
    one, both = (epsilon_of(rounds**0.5, DELTA) for rounds in (1, 2))
    loss, width = np.linspace(-12, 13, 250_001, retstep=True)

    def lost(stop: float, go_on: float) -> float:
        """Delta where a run that stops after one round states `stop`, and the other one `go_on`."""
        ended = np.maximum(0, 1 - np.exp(stop - loss))
        two = norm.sf((go_on - loss - 0.5) / 1.0) - np.exp(go_on - loss) * norm.sf(go_on - loss + 0.5)
        return float((norm.pdf(loss, 0.5, 1.0) * np.maximum(ended, two)).sum() * width)

    assert lost(100.0, one) == pytest.approx(delta_of(one, 2**0.5), rel=1e-4)  # always two rounds
    assert lost(one, both) == pytest.approx(1.7 * DELTA, rel=0.01)
    assert lost(both, both) == pytest.approx(DELTA, rel=1e-3)


@pytest.mark.parametrize(("variant", "status"), [("rigorous_a", "conditional"), ("rigorous_b", "proved")])
def test_a_preparation_that_asks_the_best_devices_names_the_whole_budget(variant: str, status: str) -> None:
    experiment = tiny(
        algorithm={**TINY["algorithm"], "variant": variant},
        cohort={"name": "round_robin", "size": CLIENTS},
        privacy={"epsilon": 8.0, "delta": 1e-4},
    )
    rows = [row for row in Forecast(simulated(experiment)).planner.guarantees if row.epsilon < 99]
    assert {row.status for row in rows} == {status}
    whole = f"{CHOOSES}; the whole budget, epsilon 8.0 per example (zero_out), pays for every round that there may be"
    assert all((whole in row.because) == (status == "conditional") for row in rows)
    assert all(row.epsilon <= 8.0 * (1 + 1e-6) for row in rows)
