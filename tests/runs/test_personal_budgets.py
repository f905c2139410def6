"""Personal budgets in runs: they hold, are used, survive faults and kills; unfit combinations do not start."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sordino import tree
from sordino.accounting.accountants import exact_multiplier, sampled_multiplier
from sordino.accounting.composition import parsed
from sordino.accounting.gaussian_dp import epsilon_of
from sordino.algorithms.dp_prox import dp_prox
from sordino.budget.plans_by_budget import ThresholdPlan
from sordino.errors import ConfigError, SordinoError, UnsoundGuarantee
from sordino.ledger.ledger import Ledger
from sordino.privacy.noise.sources import for_client, for_round
from sordino.receipts.receipt import opened, receipt
from sordino.receipts.verify import verify
from sordino.results import open_run
from sordino.round import one_round
from sordino.runs.new_folder import environment_of
from sordino.runs.run import resume, start
from sordino.runs.simulation import Simulation
from sordino.sampling.by_budget import LostBudget, waste, wasted
from sordino.types import Grant
from tests.helpers.personal_budgets import DELTA, GROUPS, MECHANISMS, ROBIN, made
from tests.laws.traces import differences, finished, killed_at, trace


def ran(parts: Simulation, folder: Path) -> dict[str, Any]:
    start(parts.setup.experiment, folder)
    assert verify(folder) == []
    return open_run(folder).receipt


# budgets that hold ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mechanism", ["bounds", "local", *(pytest.param(name, marks=pytest.mark.slow) for name in ("rates", "threshold"))]
)
def test_every_budget_holds_and_is_used(mechanism: str, tmp_path: Path) -> None:
    made_ = made({"name": "pdp_prox", "mechanism": mechanism}, MECHANISMS[mechanism], GROUPS)
    groups = ran(made_, tmp_path / "run").budget.groups
    assert [g.granted for g in groups] == [1.0, 2.0, 4.0]
    assert [g.clients for g in groups] == [12, 8, 2]
    for group in groups:
        assert group.status == "proved"
        assert group.spent <= group.granted * (1 + 1e-6)
        if mechanism in ("bounds", "local"):  # exact composition over known counts: all of it
            assert group.spent == pytest.approx(group.granted, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "cost", ["one_round", *(pytest.param(c, marks=pytest.mark.slow) for c in ("share", "full_round"))]
)
def test_published_budgets_are_claimed_and_what_holds_is_said(cost: str, tmp_path: Path) -> None:
    parts = made(
        {"name": "pdp_prox", "mechanism": "published"}, {"name": "threshold_published", "cost": cost}, GROUPS, rounds=12
    )
    found = ran(parts, tmp_path / "run")
    groups = found.budget.groups
    _, federation = opened(tmp_path / "run")
    with federation.ledger as ledger:
        events: dict[int, float] = {}
        for entry in ledger.entries():
            for group in parsed(entry.note).releases:
                z = next(c["event"] for c in group["claims"] if c["unit"] == "client" and c["adversary"] == "server")
                for k in group["clients"]:
                    events[k] = events.get(k, 0.0) + z["noise_multiplier"] ** -2
    levels = parts.setup.plan.budget.levels()  # type: ignore[union-attr]
    for group in groups:
        true = max(epsilon_of(math.sqrt(events.get(k, 0.0)), DELTA) for k in levels[group.granted])
        assert group.spent == pytest.approx(true, rel=1e-3)
        assert group.claimed <= group.granted * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [12, pytest.param(60, marks=pytest.mark.slow)])
def test_published_dp_prox_plays_every_round_and_spends_what_it_was_granted(rounds: int, tmp_path: Path) -> None:
    """Accounted for as a Poisson sample of rate K/N, in which everybody pays for every round: nobody's own count of
    participations may end it.
    """
    epsilon, size, clients = 4.0, 5, 22
    cohort = {"name": "random", "size": size}
    parts = made({"name": "dp_prox", "variant": "published"}, cohort, epsilon, rounds, clients)
    found = ran(parts, tmp_path / "run")
    assert found.rounds == rounds
    assert [row.answered for row in open_run(tmp_path / "run").metrics] == [size] * rounds
    row = next(r for r in found.guarantees if (r.unit, r.adversary) == ("client", "participants"))
    assert (row.status, row.epsilon) == ("nominal", math.inf)
    assert row.nominal_epsilon is not None
    assert 0.9 * epsilon < row.nominal_epsilon <= epsilon
    planned = sampled_multiplier(epsilon, DELTA, size / clients, rounds, "pld")
    assert parts.setup.plan.quietest == pytest.approx(planned, rel=1e-3)
    assert planned < 0.9 * exact_multiplier(epsilon, DELTA, rounds)  # control: unsampled, it is another number


def test_personal_bounds_are_in_the_ratio_of_what_budgets_buy() -> None:
    parts = made(
        {"name": "pdp_prox", "clip": 1.0},
        ROBIN | {"size": 4},
        {"clients": {"0": 0.5, "1": 1.0, "2": 2.0, "3": 4.0}},
        rounds=10,
        clients=4,
    )
    federation = parts.federation(":memory:", "run")
    with federation.ledger:
        now = federation.open(0)
        prices = federation.prices(now, [0, 1, 2, 3], stalled=False)
        now = federation.reserve(now, prices)
        reach = [federation.terms(k, prices[k]).reach for k in range(4)]
        assert reach == pytest.approx([0.15375, 0.28981, 0.54226, 1.0], abs=1e-5)
        assert now.central == pytest.approx(prices[3].multiplier)  # type: ignore[union-attr]


@pytest.mark.slow
def test_a_hidden_plan_of_thresholds_charges_everybody() -> None:
    parts = made({"name": "pdp_prox", "mechanism": "threshold"}, MECHANISMS["threshold"], GROUPS)
    assert isinstance(parts.setup.plan, ThresholdPlan)
    federation, clients, server = parts.federation(":memory:", "run"), parts.site("run"), parts.setup.state("server")
    with federation.ledger as ledger:
        for t in range(6):
            server = one_round(federation, server, t, clients).server
        for entry in ledger.entries():
            assert len(entry.charges) == 22
        stated = receipt(parts.setup, federation, environment_of(parts.setup.experiment)).budget
        assert stated.participations_used.min == 6
    assert sampled_multiplier(1.0, DELTA, 0.1, 100) == pytest.approx(4.278, rel=0.01)


@pytest.mark.slow
def test_ten_thousand_rounds_take_nobody_over_its_cap() -> None:
    parts = made(
        {"name": "pdp_prox"}, {"name": "random", "size": 20, "t_plan": 40}, {"linspace": [0.3, 6.0], "levels": 20},
        rounds=10_000, clients=1000, data={"source": "quadratic", "clients": 1000, "dim": 2},
    )  # fmt: skip
    federation = parts.federation(":memory:", "run")
    with federation.ledger as ledger:
        for t in range(10_000):
            now = federation.open(t)
            federation.reserve(now, federation.prices(now, federation.draw(now), stalled=False))
        exhausted = 0
        for k in range(1000):
            gone, limit = ledger.spent(str(k))[0], parts.setup.plan.cap_of(k)
            assert limit is not None
            assert gone <= limit[0]
            exhausted += federation.participations.get(k, 0) == 40
        assert exhausted > 900
        ledger.check()


def test_an_exhausted_client_changes_no_bit() -> None:
    """Three participations are planned in six rounds: what a client holds after its last one is never looked at."""

    def model(poison: bool) -> torch.Tensor:
        parts = made({"name": "pdp_prox"}, {"name": "random", "size": 22, "t_plan": 3}, GROUPS)
        federation, clients = parts.federation(":memory:", "run"), parts.site("run")
        server = parts.setup.state("server")
        with federation.ledger:
            for t in range(6):
                if t == 3 and poison:
                    clients.shards = {k: clients.shards[k]._replace(x=clients.shards[k].x * 0 + 7) for k in range(22)}
                server = one_round(federation, server, t, clients).server
        return tree.flat(server.x)

    assert torch.equal(model(poison=False), model(poison=True))


# noise and bounds -----------------------------------------------------------------------------------------------------


def test_a_client_beyond_its_own_bound_adds_nothing(tmp_path: Path) -> None:
    parts = made(
        {"name": "pdp_prox", "clip": 1.0}, {"name": "everyone"}, {"clients": {"0": 1.0, "1": 4.0}}, rounds=2, clients=2
    )
    uplink = parts.setup.algorithm.uplink
    zero = {"w": torch.zeros(3)}
    full = {"w": torch.tensor([0.9, 0.0, 0.0])}
    whole = uplink.sum({0: full, 1: full}, zero, None, lambda k: 1.0)
    bounded = uplink.sum({0: full, 1: full}, zero, None, lambda k: 0.3 if k == 0 else 1.0)
    assert float(whole.total["w"][0]) == pytest.approx(1.8)
    assert float(bounded.total["w"][0]) == pytest.approx(0.9)


@pytest.mark.parametrize("placement", ["once", "per_client"])
def test_noise_comes_once_a_round_or_with_every_update(placement: str) -> None:
    """std of the noise in a mean: z C / den, or z C sqrt(|S|) / den; 10^5 coordinates, so 1% is 4.5 standard errors."""
    clip, z, cohort = 0.5, 0.8, 9
    uplink = dp_prox(clip, noise_placement=placement, multiplier=z).uplink  # type: ignore[arg-type]
    zero = {"w": torch.zeros(100_000)}
    grants = [Grant(k, 1, 1, for_client(for_round("counter", 7, 0), k), z) for k in range(cohort)]
    sent = {k: uplink.encode(zero, grant) for k, grant in enumerate(grants)}
    mean = uplink.receive(sent, zero, [1.0] * cohort, cohort, z, for_round("counter", 7, 0)).mean["w"]
    wanted = z * clip * (math.sqrt(cohort) if placement == "per_client" else 1) / cohort
    assert float(mean.double().std()) == pytest.approx(wanted, rel=0.01)


@pytest.mark.slow
def test_nobody_answers_and_the_noise_comes_all_the_same() -> None:
    parts = made(
        {"name": "pdp_prox", "mechanism": "rates"},
        MECHANISMS["rates"],
        GROUPS,
        stragglers={"share": 1.0, "policy": "drop"},
    )
    federation, clients, server = parts.federation(":memory:", "run"), parts.site("run"), parts.setup.state("server")
    with federation.ledger:
        outcome = one_round(federation, server, 0, clients)
    assert outcome.answered == []
    moved = tree.flat(tree.sub(outcome.server.x, server.x))
    z, q = parts.setup.plan.quietest, federation.open(0).rates
    assert q is not None
    assert float(moved.double().std()) == pytest.approx(z * 0.5 / q.sum(), rel=0.15)  # 610 coordinates
    assert isinstance(federation.ledger, Ledger)


@pytest.mark.slow
@pytest.mark.parametrize(
    "faults",
    [{"drop": 0.9, "slow": 0.1}, *(pytest.param(f, marks=pytest.mark.slow) for f in ({"drop": 0.5}, {"slow": 0.5}))],
)
@pytest.mark.parametrize("mechanism", ["rates", "bounds", "local"])
def test_faults_never_take_noise_away(mechanism: str, faults: dict[str, float]) -> None:
    """What the server releases is at least as noisy as the plan says, however many clients are lost or late; and they
    have paid.
    """
    algorithm = {"name": "pdp_prox", "mechanism": mechanism, "clip": 1e-6}  # hardly any signal: what is left is noise
    heard: list[list[float]] = []
    accounts: list[dict[int, Any]] = []
    for chaos in ({}, faults):
        parts = made(algorithm, MECHANISMS[mechanism], GROUPS, rounds=3, chaos=chaos)
        federation, clients, server = (
            parts.federation(":memory:", "run"),
            parts.site("run"),
            parts.setup.state("server"),
        )
        stds = []
        with federation.ledger:
            for t in range(3):
                outcome = one_round(federation, server, t, clients)
                moved, server = tree.flat(tree.sub(outcome.server.x, server.x)), outcome.server
                stds.append(float(moved.double().std()) / 1e-6)
                if chaos:
                    assert len(outcome.answered) < max(2, len(outcome.active))
            accounts.append({k: federation.spent.get(federation.payer(k)) for k in range(22)})
        heard.append(stds)
    assert accounts[0] == accounts[1]
    for sound, faulty in zip(*heard, strict=True):
        assert faulty == 0 or faulty > sound * 0.85  # nobody answered a local round: nothing is released


@pytest.mark.slow
def test_one_step_does_not_feel_mu_and_no_mu_is_fedavg() -> None:
    def model(**algorithm: Any) -> torch.Tensor:
        parts = made(algorithm, {"name": "everyone"}, None, rounds=2, clip=None, uplink={"client": []}, privacy={})
        federation, clients, server = (
            parts.federation(":memory:", "run"),
            parts.site("run"),
            parts.setup.state("server"),
        )
        with federation.ledger:
            for t in range(2):
                server = one_round(federation, server, t, clients).server
        return tree.flat(server.x)

    assert torch.equal(model(name="fedprox", mu=0.0, local_epochs=2), model(name="fedavg", local_epochs=2))
    one = {"local_steps": 1, "batch_size": "full"}
    assert torch.equal(model(name="fedprox", mu=5.0, **one), model(name="fedavg", **one))
    start_ = tree.flat(made({"name": "fedavg"}, ROBIN, None, clip=None, privacy={}).setup.state("server").x)
    far = [float((model(name="fedprox", mu=mu, local_epochs=5) - start_).norm()) for mu in (0.0, 1.0, 10.0)]
    assert far[0] > far[1] > far[2]  # the larger mu, the nearer to the start


@pytest.mark.slow
def test_a_killed_run_keeps_every_account(tmp_path: Path) -> None:
    parts = made(
        {"name": "pdp_prox"}, {"name": "random", "size": 11}, GROUPS, stragglers={"share": 0.5, "policy": "keep"}
    )
    whole = finished(parts.setup.experiment, tmp_path / "whole")
    with killed_at("computed", 3):
        start(parts.setup.experiment, tmp_path / "run")
    resume(tmp_path / "run")
    assert differences(whole, trace(tmp_path / "run")) == []


# refused --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "cohort", "epsilon", "code"),
    [
        ({"name": "dp_prox"}, {"name": "poisson", "rate": 0.5}, GROUPS, "personal-budgets-one-rate"),
        ({"name": "pdp_prox"}, {"name": "by_budget", "size": 5}, GROUPS, "personal-clip-hidden"),
        (
            {"name": "pdp_prox", "mechanism": "local"},
            {"name": "by_budget", "size": 5},
            GROUPS,
            "personal-cohort-needs-its-noise",
        ),
        (
            {"name": "pdp_prox", "mechanism": "rates"},
            {"name": "by_budget", "size": 5},
            None,
            "mechanism-without-budget",
        ),
        (
            {"name": "pdp_prox", "mechanism": "rates"},
            {"name": "by_budget", "size": 50},
            GROUPS,
            "cohort-larger-than-population",
        ),
        ({"name": "pdp_prox", "mechanism": "bounds", "literal": True}, ROBIN, 1.0, "literal-without-published"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    algorithm: dict[str, Any], cohort: dict[str, Any], epsilon: Any, code: str
) -> None:
    with pytest.raises(SordinoError) as refusal:
        _ = made(algorithm, cohort, epsilon, privacy={"epsilon": epsilon} if epsilon else {}).setup.plan
    assert refusal.value.code == code
    assert refusal.value.fix


HIDDEN = {"name": "noise", "neighbours": "zero_out"}
OWN = {"name": "noise", "neighbours": "zero_out"}


@pytest.mark.one_fast
@pytest.mark.parametrize(
    "cohort", [MECHANISMS["threshold"], MECHANISMS["rates"], {"name": "threshold_published"}], ids=lambda c: c["name"]
)
def test_a_personal_cohort_decides_exactly_one_noise(cohort: dict[str, Any]) -> None:
    clip = {"name": "clip", "radius": 0.5}

    def plan(typed: dict[str, float], noises: int) -> Any:
        published = cohort["name"] == "threshold_published"
        stages = [(OWN if published else HIDDEN) | typed][:noises]
        uplink = {"client": [clip, *stages]} if published else {"client": [clip], "server": stages}
        reader: dict[str, Any] = {"read": {"name": "noisy_gradient", "clip": 1.0}} if noises > 1 else {}
        algorithm = {"name": "fedavg", "local_steps": 1, "batch_size": "full"}
        return made(algorithm, cohort, GROUPS, clip=None, uplink=uplink, **reader).setup.plan

    typed: dict[str, float] = {"multiplier": 1.0}
    for offered, noises in ((typed, 1), ({}, 0), ({}, 2)):
        with pytest.raises(UnsoundGuarantee) as refusal:
            plan(offered, noises)
        assert refusal.value.code == "personal-cohort-needs-its-noise"
    assert plan({}, 1).offer is not None  # control: one noise, whose size is open


@pytest.mark.parametrize(
    "cohort", [ROBIN, {"name": "everyone"}, MECHANISMS["rates"], MECHANISMS["threshold"]], ids=lambda c: c["name"]
)
def test_the_literal_reading_needs_the_cohort_it_was_printed_with(cohort: dict[str, Any]) -> None:
    literal = {"name": "pdp_prox", "mechanism": "published", "literal": True}
    with pytest.raises(UnsoundGuarantee) as refusal:
        _ = made(literal, cohort, GROUPS).setup.plan
    assert refusal.value.code == "literal-needs-its-cohort"
    assert made(literal, {"name": "threshold_published"}, GROUPS).setup.plan.claimed  # control


@pytest.mark.parametrize(
    ("mechanism", "schedule"),
    [("rates", "adaptive"), ("rates", "linear_back"), ("threshold", "adaptive"), ("bounds", "adaptive")],
)
def test_rates_need_equal_rounds_and_clips_a_plan(mechanism: str, schedule: str) -> None:
    with pytest.raises(UnsoundGuarantee) as refusal:
        _ = made(
            {"name": "pdp_prox", "mechanism": mechanism},
            MECHANISMS[mechanism],
            GROUPS,
            privacy={"epsilon": GROUPS, "schedule": {"name": schedule}},
        ).setup.plan
    assert refusal.value.code == "personal-schedule"


def test_weights_of_waste_are_two_numbers() -> None:
    phi = np.array([0.1, 0.5, 1.0])
    sampling, noise = wasted(phi, 0.6)
    assert waste(phi, 0.6, LostBudget("fixed", (2.0, 3.0))) == pytest.approx(2 * sampling + 3 * noise)
    for bad in ([1.0], [1.0, -1.0], [1.0, math.inf], ["a", "b"]):
        with pytest.raises(ConfigError):
            _ = made(
                {"name": "pdp_prox", "mechanism": "threshold"}, {"name": "threshold", "waste_weights": bad}, GROUPS
            ).setup.plan


def test_a_share_beyond_the_whole_is_refused() -> None:
    with pytest.raises(ConfigError) as refusal:
        _ = made(
            {"name": "pdp_prox", "mechanism": "published"}, {"name": "threshold_published", "retire_below": 1.0}, GROUPS
        ).setup.plan
    assert refusal.value.code == "share-out-of-range"
