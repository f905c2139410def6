"""CUAG-PFL and its baselines, gate by gate: noise as published in its size and in its absence, budgets that differ, and
what the rigorous variants are priced at.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from sordino import config, keys, tree
from sordino.accounting.accountants import best, exact_multiplier
from sordino.accounting.events import Gaussian, NonPrivate, Poisson, Repeat
from sordino.accounting.gaussian_dp import epsilon_of
from sordino.accounting.published import adaptive_scale, composed, limit_mu
from sordino.algorithms.cuag_pfl import cuag_pfl
from sordino.algorithms.udp import udp
from sordino.errors import ConfigError, InvalidBudget, UnsoundGuarantee
from sordino.privacy.noise.sources import Counter
from sordino.privacy.uplink.as_published import Discounted, OneFieldAsPublished, OwnNorm, UpdateLevel, UserLevel
from sordino.privacy.uplink.stages import ClipLayers, OneField
from sordino.runs.simulation import Simulation, simulated
from sordino.types import Bound, Grant, Received
from tests.privacy.doubles import Still

DELTA = 1e-5
EPSILON = epsilon_of(0.25, DELTA)
KAPPA = {
    1: 0.0284,
    2: 0.0336,
    5: 0.0444,
    10: 0.0574,
    30: 0.0919,
    50: 0.1166,
    100: 0.1625,
    150: 0.1980,
    200: 0.2280,
    300: 0.2786,
}
MANY = 1_000_000  # sample standard deviations of so many draws are within 1% of their own but for a chance of 1e-45


def grant(client: int = 0, size: int = 500, seed: int = 1) -> Grant:
    return Grant(client, size, size, Counter(seed))


def ones(size: int, norm: float) -> dict[str, Tensor]:
    return {"w": torch.full((size,), norm / math.sqrt(size), dtype=torch.float64)}


def noise_of(stage: Any, x: dict[str, Tensor], given: Grant) -> dict[str, Tensor]:
    sent = stage.encode(x, Bound(), given)
    return {name: sent[name] - x[name] for name in x}


# noise as published ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", KAPPA)
def test_noise_is_in_proportion_to_the_norm_of_what_it_hides(tau: int) -> None:
    """One deviation of `Still` is kappa C_l: four digits of the paper's setting, round tau counted from 1."""
    stage, x = OwnNorm().at(tau - 1, ()), {"w": torch.tensor([3.0, 4.0]), "b": torch.tensor([0.5])}
    found = noise_of(stage, x, replace(grant(), source=Still(1)))
    for name, norm in (("w", 5.0), ("b", 0.5)):
        assert [round(float(v) / norm, 4) for v in found[name]] == pytest.approx([KAPPA[tau]] * len(x[name]), abs=1e-4)


def test_the_sampled_deviation() -> None:
    stage = replace(OwnNorm(), _round=29)
    noise = noise_of(stage, ones(MANY, 2.5), grant())["w"]
    wanted = 2.5 * 2 * adaptive_scale(0.25, 30) / 50
    assert float(noise.std()) == pytest.approx(wanted, rel=0.01)
    assert float(noise.std()) != pytest.approx(
        2.5 * 2 * adaptive_scale(0.25, 31) / 50, rel=0.01
    )  # control: the next round
    assert abs(float(noise.mean())) < 6 * wanted / math.sqrt(MANY)
    as_variance = noise_of(replace(stage, variance_as_std=True), ones(MANY, 2.5), grant())["w"]
    assert float(as_variance.std()) == pytest.approx(wanted**2, rel=0.01)


def test_an_update_of_zero_is_not_hidden_at_all() -> None:
    x = {"w": torch.zeros(100), "b": torch.ones(3)}
    found = noise_of(OwnNorm(), x, grant())
    assert not found["w"].any()
    assert found["b"].any()
    fixed = noise_of(OwnNorm(clip=1.0), x, grant())
    assert fixed["w"].any()  # a fixed clip hides it


def test_a_fixed_clip_and_a_fixed_scale() -> None:
    """min(1, C/|y|) per layer, then 2 C sigma / B, whatever the norm was."""
    stage = OwnNorm(sigma=0.65, clip=0.5).at(7, ())
    quiet = OwnNorm(sigma=1e-30, clip=0.5)
    for norm in (0.1, 40.0):
        sent = stage.encode(ones(MANY, norm), Bound(), grant())["w"]
        base = quiet.encode(ones(MANY, norm), Bound(), grant())["w"]
        assert float(base.norm()) == pytest.approx(min(norm, 0.5), rel=1e-5)
        assert float((sent - base).std()) == pytest.approx(2 * 0.5 * 0.65 / 50, rel=0.01)
    level = UpdateLevel()
    noise = level.encode(ones(MANY, 40.0), Bound(), grant())["w"]
    assert float(noise.std()) == pytest.approx(0.018, rel=0.01)  # PriFedSync at update level


@pytest.mark.parametrize("clip", [None, 1.0])
def test_the_scope_of_the_norm(clip: float | None) -> None:
    x = {"a": torch.full((200_000,), 1.0, dtype=torch.float64), "b": torch.full((200_000,), 7.0, dtype=torch.float64)}
    norms = {name: float(leaf.norm()) for name, leaf in x.items()}
    whole = math.hypot(*norms.values())
    for scope in ("layer", "whole"):
        sent = OwnNorm(sigma=1.0, clip=clip, scope=scope).encode(x, Bound(), grant())
        for name, leaf in sent.items():
            norm = norms[name] if scope == "layer" else whole
            assert float(leaf.std()) == pytest.approx(2 / 50 * (norm if clip is None else clip), rel=0.01)
            kept = x[name] if clip is None else x[name] / norm
            assert float(leaf.mean()) == pytest.approx(
                float(kept.mean()), abs=6 * float(leaf.std()) / math.sqrt(200_000)
            )


def test_the_number_of_records_is_the_clients() -> None:
    """sigma = 1 / sqrt(ln(1 + mu^2 |D|^2 / (4 lambda^2 B^2 tau P)))."""
    for size in (100, 500, 2000):
        found = noise_of(OwnNorm(steps=10).at(4, ()), {"w": torch.ones(1)}, replace(grant(size=size), source=Still(1)))
        sigma = math.log(1 + 0.25**2 * size**2 / (4 * 0.1**2 * 50**2 * 5 * 10)) ** -0.5
        assert float(found["w"]) == pytest.approx(2 * sigma / 50, rel=1e-5)


def test_different_budgets_are_dealt_once_each() -> None:
    """100 values from 0.1 to 4 at even distances, in a shuffled order; read off from the noise."""
    stage, found = OwnNorm(mu=(0.1, 4.0)), []
    for client in range(100):
        noise = noise_of(stage, {"w": torch.ones(1, dtype=torch.float64)}, replace(grant(client), source=Still(1)))
        sigma = float(noise["w"]) * 50 / 2
        found.append(math.sqrt(0.01 * math.expm1(sigma**-2)))  # of the first round
    assert sorted(found) == pytest.approx([0.1 + 3.9 / 99 * i for i in range(100)], rel=1e-9)
    assert found != sorted(found)
    assert (
        abs(sum(i * mu for i, mu in enumerate(found)) / 100 - 49.5 * 2.05) < 4 * 28.9 * 1.14 / 10
    )  # no trend in the order
    assert stage.stated(300, DELTA, 500).epsilon == pytest.approx(epsilon_of(4.0, DELTA))


@pytest.mark.parametrize("mu", [0.0, -1.0, math.inf, (0.1, 0.0)])
def test_what_is_no_budget(mu: Any) -> None:
    with pytest.raises(InvalidBudget) as refusal:
        OwnNorm(mu=mu)
    assert refusal.value.code == "mu-not-positive"


def test_what_is_stated_and_what_its_rounds_add_up_to() -> None:
    assert OwnNorm().stated(300, DELTA, 500) == pytest.approx((0.9263, 2.567), abs=1e-3)
    fixed = OwnNorm(sigma=adaptive_scale(0.25, 300)).stated(300, DELTA, 500)
    assert fixed == pytest.approx((EPSILON, EPSILON))
    assert UpdateLevel().stated(300, DELTA, 500).epsilon == pytest.approx(10.2357, abs=1e-3)
    assert UserLevel().stated(300, DELTA, 500) == pytest.approx((10.0, epsilon_of(5.22, DELTA)), rel=2e-3)
    assert UserLevel().stated(300, DELTA, 500).composed == pytest.approx(35.2, abs=0.1)
    assert UserLevel(horizon=300).stated(300, DELTA, 500).composed == pytest.approx(10.5, abs=0.05)
    for stage in (
        OwnNorm(),
        OwnNorm(clip=1.0, sigma=1.0),
        UpdateLevel(),
        UserLevel(),
        OneFieldAsPublished(OwnNorm(), "delta"),
    ):
        assert len(stage.reasons) >= 2
        assert stage.bound(Bound(1.0, 1.0), 10) == Bound()  # it bounds nothing


# UDP ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("horizon", [None, 300])
@pytest.mark.parametrize("per", ["records", "batch"])
def test_udp_noise(horizon: int | None, per: Any) -> None:
    """2 C / n * sqrt(2 lambda tau ln(1/delta)) / epsilon, tau the round, or the horizon from the start."""
    for t in (0, 6):
        stage = UserLevel(clip=0.5, per=per, horizon=horizon).at(t, ())
        loud, still = (
            stage.encode(ones(9, 4.0), Bound(), replace(grant(size=200), source=Still(level))) for level in (1, 0)
        )
        tau = horizon or t + 1
        wanted = 2 * 0.5 / (200 if per == "records" else 50) * math.sqrt(2 * 0.1 * tau * math.log(1e5)) / 10
        assert float((loud["w"] - still["w"])[0]) == pytest.approx(wanted, rel=1e-9)
        assert float(still["w"].norm()) == pytest.approx(0.5, rel=1e-5)


def test_udp_clips_to_the_median_of_the_round_before() -> None:
    stage, x = UserLevel(first=2.0), ones(4, 1.0)
    assert stage.begin(x, x).tolist() == 2.0
    uploads = [stage.encode(ones(4, norm), Bound(), grant(k)) for k, norm in enumerate((1.0, 9.0, 3.0, 5.0))]
    assert float(stage.learn(uploads[0], x, 0.0, uploads)) == pytest.approx(4.0)
    assert float(stage.learn(uploads[0], x, 0.0, uploads[:3])) == pytest.approx(3.0)
    now = stage.at(1, torch.tensor(3.0))
    assert float(now.learn(uploads[0], x, 0.0, [])) == 3.0  # nobody came: it stays
    sent = now.encode(ones(4, 9.0), Bound(), replace(grant(), source=Still(0)))
    assert float(sent[0]["w"].norm()) == pytest.approx(3.0, rel=1e-5)
    made = udp().uplink
    task = simulated(digits({"name": "fedavg"})).setup.task
    zero = udp().zero(task, udp().init(task, 0))
    assert tree.size(made.shape(zero)) == tree.size(zero) + 1


class Uploaded(NamedTuple):
    delta: Any
    loss: Any


def test_udp_shrinks_its_horizon_where_the_loss_does_not_fall() -> None:
    """sigma_t^2 = (T - t) / (eps^2 / (2 lambda ln(1/delta)) - sum of the 1/sigma_i^2 before); T <- ceil(0.8 T) where
    the loss stood still.
    """
    stage, x = Discounted(horizon=10, first=4.0), Uploaded(ones(4, 2.0), torch.tensor(0.0))
    budget, spent, horizon, public = 10**2 / (2 * 0.1 * math.log(1e5)), 0.0, 10, stage.begin(x, x.delta)
    for t, (loss, then) in enumerate([(3.0, 10), (2.0, 10), (2.5, 8), (1.0, 8), (1.0, 7), (1.0, 6)]):
        now = stage.at(t, public)
        loud, still = (now.encode(x, Bound(), replace(grant(), source=Still(level))) for level in (1, 0))
        sigma = math.sqrt((horizon - t) / (budget - spent))
        radius = 4.0 if t == 0 else 2.0
        wanted = sigma * 2 * radius / 500
        assert float((loud[0].delta["w"] - still[0].delta["w"])[0]) == pytest.approx(wanted, rel=1e-9)
        assert float(loud[1]) == 2.0
        public = now.learn(loud, x, 0.0, [(Uploaded(x.delta, torch.tensor(loss)), torch.tensor(2.0))])
        spent, horizon = spent + sigma**-2, then
        assert public.tolist() == pytest.approx([2.0, horizon, spent, loss])
    over = stage.at(6, public).encode(x, Bound(), grant())
    assert not over[0].delta["w"].any()  # the horizon has come nearer than the round
    with pytest.raises(ConfigError) as refusal:
        Discounted()
    assert refusal.value.code == "discount-without-horizon"


def test_udp_on_the_model_clips_the_weights() -> None:
    parts = simulated(digits({"name": "fedavg"}))
    made, task = udp(clip=1.0, clip_target="model"), parts.setup.task
    server = made.init(task, 1)
    model = tree.scale(0.5, server.x)
    assert tree.finite(
        made.update(
            server, Received(made.zero(parts.setup.task, server)._replace(delta=model), 0.1, list), parts.home
        ).x
    )
    after = made.update(
        server, Received(made.zero(parts.setup.task, server)._replace(delta=model), 0.1, list), parts.home
    )
    assert all(torch.equal(after.x[name], model[name]) for name in model)
    nobody = made.update(server, Received(made.zero(parts.setup.task, server), 0.0, list), parts.home)
    assert all(torch.equal(nobody.x[name], server.x[name]) for name in model)


# the rigorous variants ------------------------------------------------------------------------------------------------


def digits(algorithm: dict[str, Any], **tables: Any) -> config.Experiment:
    table = {
        "rounds": 300,
        "partition": {"scheme": "iid", "clients": 100},
        "model": {"name": "mlp", "hidden": 8},
        "cohort": {"name": "round_robin", "size": 10},
        "privacy": {},
        "algorithm": algorithm,
    }
    return config.validate(table | tables)


def variant(name: str, cohort: dict[str, Any], **options: Any) -> Simulation:
    budget = {"epsilon": EPSILON, "delta": DELTA}
    return simulated(digits({"name": "cuag_pfl", "variant": name} | options, cohort=cohort, privacy=budget))


def test_a_client_against_the_server() -> None:
    """30 participations of one client at mu = 0.25: sqrt(30)/0.25; every participation costs mu^2/60."""
    assert pytest.approx(0.926, abs=5e-4) == EPSILON
    parts = variant("local_client", {"name": "round_robin", "size": 10})
    assert set(parts.setup.plan.participations) == {30}
    price = parts.setup.plan.price(3, 0, parts.setup.plan.currency.zero())
    assert price is not None
    assert price.multiplier == pytest.approx(21.909, abs=1e-3)
    assert price.multiplier == pytest.approx(math.sqrt(30) / 0.25, rel=1e-6)
    assert exact_multiplier(EPSILON, DELTA, 300) == pytest.approx(69.3, abs=0.05)  # full participation
    event = Repeat(Gaussian(price.multiplier), 30)
    assert best(event, DELTA, "replace").epsilon == pytest.approx(EPSILON, rel=1e-6)


def test_participation_31_is_refused() -> None:
    parts = variant("local_client", {"name": "round_robin", "size": 10})
    federation = parts.federation(":memory:", "run")
    with federation.ledger as ledger:
        for t in range(30):
            now = federation.open(t)
            prices = federation.prices(now, [3], stalled=False)
            assert federation.reserve(now, prices).granted == [3]
        assert federation.prices(federation.open(30), [3], stalled=False) == {}  # the plan has nothing left
        assert ledger.reserve("run/30", {"3": prices[3].charge}, b"x" * 32) == frozenset()  # type: ignore[union-attr]
        assert ledger.reserve("run/31", {"4": prices[3].charge}, b"y" * 32) == {"4"}  # type: ignore[union-attr]


@pytest.mark.slow
def test_a_client_against_everybody_but_the_server() -> None:
    parts = variant("central_client", {"name": "poisson", "rate": 0.1})
    assert parts.setup.plan.quietest == pytest.approx(7.05, rel=0.02)
    cells = variant("local_sample", {"name": "round_robin", "size": 10})
    assert cells.setup.plan.quietest == pytest.approx(21.9, rel=0.02)  # 30 rounds of 25 steps at a rate of 0.2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "scale", "steps", "epsilon"),
    [
        (0.1, 6.964, 300, 0.939),  # what the published noise would be worth, added centrally
        (0.1, 7.05, 300, 0.926),
        (0.02, 6.9641, 7500, 0.929),  # a DP-SGD granted to it, at the last round's scale in all rounds
        (0.2, 21.9, 750, 0.929),  # cells
        (0.1, 10.95, 750, 0.934),
        (0.1, 0.45, 750, 136.5),  # PriFedSync as seen by the server
        (0.1, 2.0, 750, 7.0),  # DP-SCAFFOLD
    ],
)
def test_what_an_exact_accountant_says(rate: float, scale: float, steps: int, epsilon: float) -> None:
    assert best(Repeat(Poisson(rate, Gaussian(scale)), steps), DELTA, "zero_out").epsilon == pytest.approx(
        epsilon, rel=0.02
    )


def test_the_limit_theorem_beside_it() -> None:
    assert epsilon_of(limit_mu(0.1, 300, 6.964), DELTA) == pytest.approx(0.926, abs=1e-3)
    assert epsilon_of(limit_mu(0.02, 7500, 6.9641), DELTA) == pytest.approx(0.926, abs=1e-3)


@pytest.mark.parametrize(("name", "neighbours"), [("local_client", "replace"), ("central_client", "zero_out")])
def test_variants_clip_what_is_sent_and_noise_it_for_its_bound(name: Any, neighbours: str) -> None:
    uplink = cuag_pfl(name, clip=0.3, rate=0.4).uplink
    x = {"w": 50 * keys.normal(keys.root(1), 60).view(6, 10), "b": 50 * keys.normal(keys.root(2), 10)}
    noise = uplink.noise()
    assert noise is not None
    assert noise.neighbours == neighbours
    assert uplink.bound(70).l2 == 1.0
    fewer, layers = uplink.client[:2]
    assert isinstance(layers, ClipLayers)
    assert layers.shares == "energy"
    sent = layers.encode(fewer.encode(x, Bound(), grant()), Bound(), grant())
    assert tree.size(sent) == 24 + 4
    for leaf in layers.decode(sent, fewer.shape(x)).values():
        assert float(leaf.norm()) == pytest.approx(0.3, rel=1e-5)  # |y_l| = C_l where the clip bites


# what they claim ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", [cuag_pfl("published"), udp(), cuag_pfl("published", server_state="oracle")])
def test_as_published_nothing_is_proved(made: Any) -> None:
    claims = made.uplink.claims(None, lambda event, adversary: event)
    assert [c.adversary for c in claims] == ["server", "participants", "public"]
    for claim in claims:
        assert claim.status == "nominal"
        assert isinstance(claim.event, NonPrivate)
        assert claim.because == made.uplink.as_published.reasons
    assert made.uplink.offer(0.1, hidden=False) is None
    assert composed(0.25, 300) == pytest.approx(0.6266, abs=1e-4)


def test_the_oracle_leaves_no_variant_its_promise() -> None:
    """Exact client state beside the update: noise needs a bound that is not there any more."""
    assert isinstance(cuag_pfl("published", server_state="oracle").uplink.as_published, OneFieldAsPublished)
    for variant in ("central_client", "local_client", "local_sample"):
        with pytest.raises(UnsoundGuarantee) as refusal:
            cuag_pfl(variant, server_state="oracle")
        assert refusal.value.code == "oracle-leaks"
    uplink = cuag_pfl("no_noise", server_state="oracle").uplink
    assert all(type(stage) is OneField for stage in uplink.client)
    assert [claim.status for claim in uplink.claims(None, lambda e, a: e)] == ["none"] * 3
