"""The noise that is expected is the noise that comes."""

from __future__ import annotations

import math

import pytest

from sordino import config, tree
from sordino.engine import server
from sordino.planning.planner import Planner
from sordino.round import one_round
from sordino.runs.simulation import Simulation, simulated
from tests.helpers.planned import CLIP, WEIGH, Table

# the noise that comes -------------------------------------------------------------------------------------------------
DIM = 4000


QUADRATICS: Table = {
    "rounds": 2,
    "data": {"source": "quadratic", "clients": 6, "dim": DIM},
    "partition": {"scheme": "natural"},
    "privacy": {"epsilon": 0.02, "delta": 1e-3},
    "algorithm": {"name": "gaussian_gdp", "clip": 1.0, "lr": 0.5},
}


CENTRAL = {"client": [CLIP], "server": [{"name": "noise", "neighbours": "zero_out"}]}


HIDDEN = {"client": [CLIP, WEIGH], "server": [{"name": "noise", "neighbours": "zero_out"}]}


TWO_OF_SIX = {"name": "round_robin", "size": 2}


RISING: Table = {"privacy": {"epsilon": 0.02, "delta": 1e-3, "schedule": {"name": "linear_back"}}}


FEDAVG: Table = {"algorithm": {"name": "fedavg", "lr": 1e-9}}


NOISY: dict[str, Table] = {
    "records, one step": {},
    "records, spending more every round": RISING,
    "records, in turn": {"cohort": TWO_OF_SIX},
    "records, three steps": {"algorithm": {"name": "noisy_steps", "clip": 1.0, "lr": 0.5, "local_steps": 3}},
    "records, laplace": {"algorithm": {"name": "laplace", "clip": 1.0, "lr": 0.5}},
    "records, sampled": {"algorithm": {"name": "gaussian_sampled", "clip": 1.0, "lr": 0.5, "rate": 0.5}, **RISING},
    "clients, local": {"algorithm": {"name": "whole_update", "radius": 2.0}, "cohort": TWO_OF_SIX},
    "clients, local laplace": {"algorithm": {"name": "whole_update", "radius": 2.0, "noise": "laplace"}},
    "clients, central": {**FEDAVG, "uplink": CENTRAL, "cohort": TWO_OF_SIX},
    "clients, central, some slow": {**FEDAVG, "uplink": CENTRAL, "stragglers": {"share": 0.5, "policy": "drop"}},
    "clients, local, some slow": {
        "algorithm": {"name": "whole_update", "radius": 2.0},
        "stragglers": {"share": 0.5, "policy": "drop"},
    },
    "clients, central, hidden": {**FEDAVG, "uplink": HIDDEN, "cohort": {"name": "poisson", "rate": 0.4}, **RISING},
}


def parts_of(changes: Table) -> Simulation:
    return simulated(config.validate(QUADRATICS | changes))


def mean_norm(parts: Simulation) -> float:
    """Of what the second round releases: almost only noise at this budget, and the halfway participation of two."""
    federation, clients, server = parts.federation(":memory:", "run"), parts.site("run"), parts.setup.state("server")
    for t in range(2):
        outcome = one_round(federation, server, t, clients)
        server = outcome.server
    return float(tree.norm(outcome.received.mean))


def check_noise(name: str, expected: float) -> None:
    parts = parts_of(NOISY[name])
    made = mean_norm(parts)
    if name.startswith("records"):
        expected *= parts.setup.algorithm.lr
    # a Gaussian norm in 4,000 dimensions deviates by 1.2%, a Laplace one by 1.8%: 8% is over 4 deviations, and seeds
    # are fixed
    assert made == pytest.approx(expected, rel=0.08)


# variations of the others in how often somebody takes part
VARIED = {name for name in NOISY if name.endswith(("slow", "every round", "three steps", "in turn"))}


@pytest.mark.one_fast
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in VARIED)) for n in NOISY])
def test_the_expected_noise_is_the_noise(name: str) -> None:
    parts = parts_of(NOISY[name])
    noise = Planner(parts.setup).expected_noise
    assert noise is not None
    check_noise(name, noise.norm)


def test_the_check_finds_noise_that_is_averaged_wrongly() -> None:
    """Central noise taken for every client's own, as a rough estimate would, and the reverse."""
    for name, wrong in (("clients, central", math.sqrt(2)), ("clients, local", 1 / math.sqrt(2))):
        noise = Planner(parts_of(NOISY[name]).setup).expected_noise
        assert noise is not None
        with pytest.raises(AssertionError):
            check_noise(name, noise.norm * wrong)


def test_the_closed_form_of_central_noise() -> None:
    """std * sqrt(d) / cohort, against an update of at most the radius."""
    parts = parts_of(NOISY["clients, central"])
    noise, price = Planner(parts.setup).expected_noise, parts.setup.plan.price(0, 0, parts.setup.plan.currency.zero())
    assert noise is not None
    assert price is not None
    assert noise.norm == pytest.approx(price.multiplier * 2.0 * math.sqrt(DIM) / 2)
    assert noise.signal == 2.0


def test_convex_stable_noises_the_last_step_only() -> None:
    table = {
        "rounds": 1,
        "partition": {"scheme": "iid", "clients": 4},
        "model": {"name": "logistic", "radius": 4.0},
        "algorithm": {"name": "convex_stable", "radius": 4.0, "local_steps": 5, "lr": 0.1},
        "privacy": {"epsilon": 0.01, "delta": 1e-6},
    }
    parts = simulated(config.validate(table))
    noise, federation = Planner(parts.setup).expected_noise, parts.federation(":memory:", "run")
    assert noise is not None
    mean = one_round(federation, parts.setup.state("server"), 0, parts.site("run")).received.mean
    # 650 dimensions: a deviation of 2.8%, so 14% is five of them
    assert float(tree.norm(mean)) == pytest.approx(0.1 * noise.norm, rel=0.14)


@pytest.mark.parametrize("name", ["clients, central", "clients, central, hidden", "clients, local", "records, in turn"])
def test_an_adaptive_run_expects_the_noise_that_comes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mean updates that are nothing but noise are as long as the noise that is expected, within 8%."""
    adaptive = {"privacy": {"epsilon": 0.02, "delta": 1e-3, "schedule": {"name": "adaptive"}}}
    parts = parts_of(NOISY[name] | adaptive)

    def stalls(below: float) -> bool:
        monkeypatch.setattr(server, "STALL", below)
        return one_round(parts.federation(":memory:", "run"), parts.setup.state("server"), 0, parts.site("run")).stalled

    assert stalls(1.08)
    assert not stalls(0.92)
