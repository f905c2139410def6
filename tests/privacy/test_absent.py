"""Who stays away changes neither the noise, nor the price, nor what is claimed of anybody; and delta is held against
those who are protected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from sordino import config, tree
from sordino.accounting.composition import parsed
from sordino.engine.server import FederatedServer
from sordino.errors import UnsoundGuarantee
from sordino.planning.prices import check_delta
from sordino.round import one_round
from sordino.runs.simulation import Simulation, simulated
from sordino.types import Examples, Terms
from tests.helpers.executors import Doing
from tests.helpers.personal_budgets import GROUPS, MECHANISMS, made
from tests.privacy.doubles import Still

QUADRATICS: dict[str, Any] = {
    "rounds": 4,
    "data": {"source": "quadratic", "clients": 5, "dim": 3},
    "partition": {"scheme": "natural"},
    "algorithm": {"name": "fedavg", "local_steps": 1, "batch_size": "full"},
    "privacy": {"epsilon": 8.0, "delta": 1e-3, "schedule": {"name": "linear_back"}},  # priced in milliseconds
}


def central(neighbours: str, cohort: dict[str, Any], weigh: bool = False) -> Simulation:
    client = [{"name": "clip", "radius": 1.0}, *([{"name": "weigh"}] if weigh else [])]
    uplink = {"client": client, "server": [{"name": "noise", "neighbours": neighbours}]}
    return simulated(config.validate(QUADRATICS | {"uplink": uplink, "cohort": cohort}))


COHORTS = {
    "visible": ("zero_out", {"name": "everyone"}, False),
    "visible, weighed": ("zero_out", {"name": "everyone"}, True),
    "hidden": ("zero_out", {"name": "poisson", "rate": 0.7}, False),
}


@pytest.mark.one_fast
@pytest.mark.parametrize("name", COHORTS)
def test_central_noise_does_not_shrink_with_those_who_stay_away(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in the mean of a round whether all answer, one does, or nobody; and of the size that the plan says."""
    parts = central(*COHORTS[name])

    def mean(answering: int, level: float) -> Any:
        monkeypatch.setattr(FederatedServer, "source", lambda self, t: Still(level))
        federation, clients = parts.federation(":memory:", "run"), parts.site("run")
        server = parts.setup.state("server")

        def some(t: int, down: Any, terms: Mapping[int, Terms]) -> Iterator[tuple[int, Any]]:
            whole = [answer for answer in clients.each(t, down, terms) if answer[0] < answering]
            yield from whole

        with federation.ledger:
            received = one_round(federation, server, 0, Doing(some)).received
        again = parts.federation(":memory:", "run")
        with again.ledger:
            now = again.open(0)
            now = again.reserve(now, again.prices(now, again.draw(now, server), False))
            std = again._noise_std(now.central, 0, tree.size(received.mean))  # type: ignore[arg-type]
            expected.append(std / again._denominator(now))
        return tree.flat(received.mean).double()

    expected: list[float] = []
    noises = [mean(answering, 1.0) - mean(answering, 0.0) for answering in (5, 1, 0)]
    assert len(set(expected)) == 1
    for noise in noises:
        assert noise.tolist() == pytest.approx([expected[0]] * len(noise), rel=1e-9)


@pytest.mark.one_fast
@pytest.mark.parametrize("name", ["hidden", "rates", "threshold"])
def test_an_empty_hidden_round_costs_what_a_full_one_does(name: str) -> None:
    if name == "hidden":
        parts = central(*COHORTS["hidden"])
    else:
        parts = made({"name": "pdp_prox", "mechanism": name}, MECHANISMS[name], GROUPS)
    paid = []
    for drawn in ([], [0, 1, 2]):
        federation = parts.federation(":memory:", "run")
        with federation.ledger as ledger:
            now = federation.open(0)
            now = federation.reserve(now, federation.prices(now, drawn, False))
            assert now.granted == drawn
            (entry,) = ledger.entries()
            paid.append((dict(entry.charges), entry.note, dict(federation.spent), now.central))
    empty, full = paid
    assert empty == full
    charges, _, spent, multiplier = empty
    assert charges
    assert all(any(charge) for charge in charges.values())
    assert spent
    assert multiplier is not None
    assert multiplier > 0


@pytest.mark.slow
def test_a_client_is_told_its_own_rate_and_no_others() -> None:
    """The claims of a round with personal rates: of every group at the rate at which its own coins were tossed."""
    parts = made({"name": "pdp_prox", "mechanism": "rates"}, MECHANISMS["rates"], GROUPS)
    federation = parts.federation(":memory:", "run")
    with federation.ledger as ledger:
        now = federation.open(0)
        rates = now.rates
        assert rates is not None
        assert len(np.unique(rates)) == 3
        federation.reserve(now, {})
        (entry,) = ledger.entries()
    told: dict[int, set[float]] = {}
    for group in parsed(entry.note).releases:
        for claim in group["claims"]:
            if claim["unit"] == "client" and claim["adversary"] in ("participants", "public"):
                for k in group["clients"]:
                    told.setdefault(k, set()).add(claim["event"]["rate"])
    assert told == {k: {float(rate)} for k, rate in enumerate(rates)}


@pytest.mark.parametrize(("unit", "protected"), [("example", 1000), ("cell", 1000), ("client", 10)])
def test_delta_is_held_against_those_who_are_protected(unit: Any, protected: int) -> None:
    """Ten clients of a hundred examples: 0.01 promises something to clients and nothing to examples."""

    def check(delta: float) -> None:
        privacy = config.validate(QUADRATICS | {"privacy": {"epsilon": 1.0, "delta": delta}}).privacy
        check_delta(unit, False, privacy, 10, 1000)

    check(0.999 / protected)
    for delta in (1 / protected, 1.001 / protected):
        with pytest.raises(UnsoundGuarantee) as refusal:
            check(delta)
        assert refusal.value.code == "delta-too-large"
        assert str(protected) in refusal.value.what


@pytest.mark.parametrize("noise", ["system", "counter"])
def test_in_a_secret_cohort_nobody_else_decides_how_an_upload_is_rounded(noise: str) -> None:
    """Nine clients and eight of them: what the eight send is the same to the bit. Beside noise from a seed, which
    protects nobody, several are computed in one call: there, on our machines, it moves by 1e-4 of the clip."""
    table = {
        "partition": {"scheme": "iid", "clients": 60},
        "model": {"name": "logistic"},
        "cohort": {"name": "poisson", "rate": 0.4},
        "algorithm": {"name": "dp_prox", "clip": 1.0, "mu": 0.0, "local_epochs": 5, "batch_size": 8, "lr": 5.0},
        "privacy": {"epsilon": 8.0, "delta": 1e-3, "noise": noise},
        "engine": {"executor": "stack", "workers": 1},
    }
    parts = simulated(config.validate(table), b"x" * 32)
    algorithm = parts.setup.algorithm
    down = algorithm.broadcast(algorithm.init(parts.setup.task, parts.setup.key))

    def sent(who: range) -> dict[int, Any]:
        terms = dict.fromkeys(who, Terms(largest=max(parts.setup.public.sizes)))
        return {k: tree.flat(tree.formed(upload)) for k, upload in parts.site("run").each(0, down, terms)}

    whole, fewer = sent(range(9)), sent(range(1, 9))
    moved = max(float((whole[k] - upload).norm()) for k, upload in fewer.items())
    assert parts.site("run").sharing == ("loop" if noise == "system" else "stack")
    assert moved == 0 if noise == "system" else moved < 0.1


@pytest.mark.parametrize("noise", ["system", "counter"])
def test_a_secret_size_does_not_decide_how_the_uploads_of_others_are_rounded(noise: str) -> None:
    """The largest of nine clients loses rows: of eight that are computed in one call another one is left over, and what
    it sends is rounded in another way (here by 1e-6 of its clip), unless each is computed alone."""
    table = {
        "partition": {"scheme": "iid", "clients": 9},
        "model": {"name": "logistic"},
        "algorithm": {"name": "dp_fedavg", "neighbours": "replace", "local_epochs": 5, "batch_size": 8, "lr": 5.0},
        "privacy": {"epsilon": 8.0, "delta": 1e-3, "noise": noise, "public_sizes": False},
        "engine": {"executor": "stack", "workers": 1},
    }
    parts = simulated(config.validate(table), b"x" * 32)
    algorithm = parts.setup.algorithm
    down = algorithm.broadcast(algorithm.init(parts.setup.task, parts.setup.key))

    def sent(rows: int) -> dict[int, Any]:
        site = parts.site("run")
        site.shards = {k: Examples(*(part[: rows if k == 0 else 40] for part in site.shards[k])) for k in range(9)}
        found = site.each(0, down, dict.fromkeys(range(9), Terms()))
        return {k: tree.flat(tree.formed(upload)) for k, upload in found}

    whole, fewer = sent(40), sent(39)
    assert not torch.equal(whole.pop(0), fewer.pop(0))
    assert parts.site("run").sharing == ("loop" if noise == "system" else "stack")
    assert noise != "system" or all(torch.equal(upload, fewer[k]) for k, upload in whole.items())
