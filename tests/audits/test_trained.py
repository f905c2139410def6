"""The audit of what was trained: sound runs are not refuted, broken ones are, and what it cannot do is said.

A sound promise is refuted with probability 1e-3 per audit, over the choice of the seed. The broken runs were caught
with every one of ten seeds (experiments/audit_trained).
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path

import pytest
import torch

from sordino import config, keys
from sordino.accounting.accountants import best
from sordino.accounting.claims import Subject
from sordino.accounting.events import DiscreteGaussian, Event, Gaussian, Laplace, Repeat, Response
from sordino.accounting.gaussian_dp import epsilon_of
from sordino.accounting.statement import Guarantee
from sordino.audits.canaries import CanaryExamples
from sordino.audits.canary_replays import ScoredCanaries, earlier, placed, scores
from sordino.audits.canary_rounds import CanaryRounds
from sordino.audits.gates import HOLDS, VIOLATED
from sordino.audits.replay import BEGINNING, preparation
from sordino.audits.trained import (
    BLIND,
    NoiseRead,
    audit_trained,
    curve,
    epsilon_by_overlap,
    judged,
    noise_lacking,
    promised_itself,
    strongest,
)
from sordino.errors import SordinoError
from sordino.planning.planner import Planner
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.results.findings import TrainedAudit
from sordino.runs.run import start
from sordino.runs.simulation import settle, simulated
from tests.helpers.command_line import spoken

TINY = ("rounds=2", "data.train=512", "partition={scheme='iid',clients=4}")


@cache
def audited(*words: str) -> TrainedAudit:
    return audit_trained(config.load(None, [*TINY, *words]), canaries=256)


def promise(event: Event, epsilon: float, delta: float = 1e-5) -> Guarantee:
    return Guarantee(
        unit="example",
        neighbours="replace",
        adversary="server",
        epsilon=epsilon,
        delta=delta,
        accountant="gdp",
        accountants={},
        status="proved",
        because=(),
        releases=1,
        event=event,
    )


def made_up(mu: float, many: int, seed: int) -> ScoredCanaries:
    """Canaries as Gaussian noise shows them, `mu` deviations apart."""
    coins, none = keys.coin(keys.fold(keys.root(seed), "coins"), many, 0.5).bool(), torch.zeros(many).long()
    return ScoredCanaries(coins + keys.normal(keys.root(seed), many) / mu, coins, torch.ones(many), none, none)


@pytest.mark.one_fast
@pytest.mark.parametrize("mu", [0.7, 1.7])
def test_a_true_claim_is_not_refuted_and_a_third_of_its_noise_is(mu: float) -> None:
    """Of 15 sound runs one is refuted with probability 0.015; experiments/audit_trained plays 100 whole ones."""
    held = promise(Gaussian(1 / mu), epsilon_of(mu, 1e-5))
    assert not any(judged(held, made_up(mu, 200, seed)).refutes(held.epsilon) for seed in range(15))
    assert all(judged(held, made_up(3 * mu, 200, seed)).refutes(held.epsilon) for seed in range(5))


def test_what_needs_coins_alone_says_less_than_what_needs_independence() -> None:
    held = promise(Gaussian(1.0), epsilon_of(1.0, 1e-5))
    found = judged(held, made_up(1.0, 1000, 0))
    assert 0 < found.at_least_by_coins < found.at_least < held.epsilon


@pytest.mark.one_fast
@pytest.mark.parametrize(
    ("event", "wrong", "epsilon"),
    [(Gaussian(0.8), 0.5 * math.erfc(0.625 / math.sqrt(2)), epsilon_of(1.25, 1e-5)), (Laplace(0.5), 0.5 / math.e, 2.0)],
)
def test_neighbours_that_overlap_less_than_is_promised_lose_more(event: Event, wrong: float, epsilon: float) -> None:
    """At the share of wrong guesses that the promise allows the bound is the promise; below it is more, above less."""
    held = promise(event, epsilon)
    assert 0.98 * epsilon < epsilon_by_overlap(held, 1.002 * wrong) <= epsilon
    assert epsilon_by_overlap(held, 0.99 * wrong) > epsilon
    assert 0.5 * epsilon < epsilon_by_overlap(held, 1.2 * wrong) < 0.95 * epsilon
    assert epsilon_by_overlap(held, 0.5) == 0.0


def test_no_more_is_lost_than_noise_on_a_grid_loses() -> None:
    """As it was, a bound from below came from an accountant that bounds from above: of 4.38 that such noise loses, 4.7
    was found; and the claim 4.73, which holds with 5% less noise too, was called violated there."""
    event = Repeat(DiscreteGaussian(2.0), 4)
    claimed, lost = best(event, 1e-5, "replace").epsilon, epsilon_of(1.0, 1e-5)
    held, less = promise(event, claimed), epsilon_of(1.05, 1e-5)
    assert lost < less < claimed
    exact = judged(held, made_up(1.0, 100_000, 0))
    assert 0.95 * lost < exact.at_least <= lost
    assert 0 < epsilon_by_overlap(held, 1.002 * 0.5 * math.erfc(0.5 / math.sqrt(2))) <= lost
    assert not judged(held, made_up(1.05, 100_000, 0)).refutes(claimed)
    assert judged(held, made_up(1.2, 100_000, 0)).refutes(claimed)


def test_where_no_canary_took_part_nothing_is_lost() -> None:
    held, none = promise(Gaussian(1.0), epsilon_of(1.0, 1e-5)), made_up(1.0, 1, 0)
    found = judged(held, ScoredCanaries(*(each[:0] for each in none)))
    assert (found.canaries, found.at_least, found.at_least_by_coins) == (0, 0.0, 0.0)


def test_a_claim_that_is_not_gaussian_is_looked_at_at_several_deltas() -> None:
    held = promise(Response(2.0, 2), 2.0)
    points = curve(held)
    assert list(points) == sorted(points)
    assert points[1e-5] == 2.0
    assert list(points.values()) == sorted(points.values(), reverse=True)
    assert list(curve(promise(Gaussian(1.0), 3.0))) == [1e-5]
    # without noise, of a claim of 2: refuted at whatever delta presses hardest
    found = judged(held, made_up(1e9, 400, 1))
    assert found.right == 400
    assert found.at_least > found.claimed_there == points[found.at_delta]
    assert found.refutes(2.0)


def test_a_canary_in_few_releases_shows_as_much_noise_as_one_in_all() -> None:
    """Half of the canaries were in a quarter of the releases: their scores are twice as far off."""
    weight = torch.tensor([0.25, 1.0]).repeat(500).double()
    told = made_up(1.0, 1000, 3)
    there = told.there.double()
    told = told._replace(scores=there + (told.scores - there) / weight.sqrt(), weight=weight)
    reads = NoiseRead.of(Gaussian(1.0), "replace")
    assert 0.9 < noise_lacking(reads, told, 0.05) < 1
    assert noise_lacking(reads, told._replace(weight=torch.ones(1000).double()), 0.05) < 0.7  # not told apart


def test_a_canary_that_a_replay_asks_more_often_than_the_run_refutes_nothing() -> None:
    """Half of the canaries were in four releases of the one that is promised, and nobody's noise was too small."""
    weight = torch.tensor([1.0, 4.0]).repeat(500).double()
    told = made_up(1.0, 1000, 3)
    there = told.there.double()
    told = told._replace(scores=there + (told.scores - there) / weight.sqrt(), weight=weight, rounds=weight)
    held = promise(Gaussian(1.0), epsilon_of(1.0, 1e-5))
    found = judged(held, told)
    assert found.canaries == 500
    assert not found.refutes(held.epsilon)
    assert judged(held, told._replace(rounds=torch.ones(1000))).refutes(held.epsilon)  # the same, not told


def test_the_same_promise_is_attacked_once_by_the_strongest() -> None:
    event = Repeat(Gaussian(2.0), 4)
    server, public = promise(event, 5.0), promise(event, 5.0).beside(adversary="public")
    client, void = promise(event, 5.0).beside(unit="client"), promise(event, math.inf)
    assert strongest([public, server, void]) == [server]
    assert strongest([server, client]) == [client]
    other = promise(Gaussian(9.0), 1.0).beside(adversary="public")
    assert strongest([server, other]) == [server, other]


def test_a_row_about_a_person_takes_the_place_of_no_row_that_is_attacked() -> None:
    """It is several steps of the row about one example, and an epsilon so large is refuted by nothing."""
    simulation = simulated(settle(config.load(None, ["algorithm=gaussian_gdp", "privacy.epsilon=8"])))
    row = promise(Repeat(Gaussian(2.0), 4), 5.0)
    assert promised_itself(simulation, row)
    assert not promised_itself(simulation, row.beside(unit="person", epsilon=50.0))


def test_a_sound_run_holds_and_its_broken_twin_is_caught() -> None:
    found = audited("algorithm=gaussian_gdp")
    (one,) = found.promises
    assert (one.verdict, found.verdict, one.replays) == (HOLDS, HOLDS, 1)
    assert one.played is not None
    assert one.power.twin is not None
    assert one.played.canaries == 256
    assert one.played.at_least <= one.claimed < one.power.twin.at_least
    assert one.power.caught in (1.25, 1.5)


def test_a_run_behind_a_broken_gate_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NoisyGradient, "sensitivity", property(lambda self: self.clip / 2))
    found = audit_trained(config.load(None, [*TINY, "algorithm=gaussian_gdp"]), canaries=256)
    assert found.verdict == VIOLATED
    assert found.promises[0].power.caught is None  # no twin is needed


PREPARED = (
    "algorithm=slaug_fl",
    "variant=rigorous_b",
    "rounds=1",
    "private_steps=1",
    "algorithm.gan_epochs=1",
    "algorithm.rate=1.0",
    'data={source="digits",probe=5}',
    'candidates={source="procedural",per_class=4}',
    'partition={scheme="iid",clients=3}',
    "privacy={epsilon=10,delta=1e-4}",
)


@pytest.mark.slow
def test_canaries_are_in_the_phases_too_with_the_coins_of_the_replay() -> None:
    """Without noise a score is its coin, in the preparation as in the training."""
    made = simulated(config.load({}, PREPARED))
    subject = Subject(unit="example", neighbours="zero_out", adversary="server")
    canaries = CanaryExamples(made, subject, 60, keys.root(1))
    (early,) = earlier(canaries)
    phase = CanaryRounds(early, 0, 1e9, BEGINNING)
    told = phase.scores()
    training = CanaryRounds(canaries, 0, 1e9, phase.end)
    assert torch.equal(phase.coins, training.coins)
    for found in (told, training.scores(), training.scores().beside([told])):
        assert torch.allclose(found.each, phase.coins.double(), atol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("algorithm=whole_update", "algorithm.local_steps=1", "algorithm.batch_size=full", "rounds=1"),
        (
            "algorithm=dp_prox",
            "algorithm.local_steps=1",
            "algorithm.batch_size=full",
            "rounds=1",
            "cohort={name='poisson',rate=1.0}",
        ),
    ],
)
def test_clients_are_canaries_in_many_replays(words: tuple[str, ...]) -> None:
    found = audit_trained(config.load(None, [*TINY, "partition={scheme='iid',clients=20}", *words]), canaries=200)
    (one,) = found.promises
    assert (one.unit, one.replays, one.verdict) == ("client", 13, HOLDS)
    assert one.played is not None
    assert one.played.canaries == 208


@pytest.mark.slow
def test_a_run_of_which_nothing_can_be_found_has_no_power() -> None:
    """Guesses bound what is not Gaussian, and are never wrong here; Gaussian noise shows at any epsilon."""
    found = audited("algorithm=laplace", "privacy.epsilon=200")
    assert found.verdict == BLIND
    assert audited("algorithm=gaussian_gdp", "privacy.epsilon=200").verdict == HOLDS
    assert found.promises[0].power.missed == (1.25, 1.5, 2.0, 3.0)


# the verb -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_verb_says_claim_bound_power_and_what_each_needs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("audit", *TINY, "algorithm=gaussian_gdp", "--trained", "--canaries", 256)
    said = spoken(capsys, monkeypatch, *asked)
    words = " ".join(said.out.split())
    assert said.code == 0
    for part in ("example, replace", "server", "8, proved (simulation), at 1e-05", "Power: a broken twin with noise /"):
        assert part in words
    assert "of the whole run of 2 rounds" in words
    (one,) = audited("algorithm=gaussian_gdp").promises
    assert one.played is not None
    assert f"at 1e-05 ({one.played.at_least / 8:.0%})" in words
    assert "fair and independent coins, nothing else" in words
    found = json.loads(spoken(capsys, monkeypatch, *asked, "--json").out)
    assert found == audited("algorithm=gaussian_gdp").to_json()
    assert found["promises"][0]["power"]["twin"]["at_least"] > found["promises"][0]["claimed"]


def test_without_a_promise_there_is_nothing_to_audit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = spoken(capsys, monkeypatch, "audit", "fedavg", *TINY, "--trained")
    assert (said.code, said.out) == (0, "fedavg: nothing to audit: infinity is claimed.\n")


@pytest.mark.slow
def test_a_response_of_pixels_is_not_called_a_claim_of_infinity() -> None:
    """The pixels of canary images are attacked; a whole image may lose more than any audit could find."""
    found = audit_trained(config.load(None, [*TINY, "algorithm=lc_fl"]), canaries=200)
    assert {one.unit: one.verdict for one in found.promises} == {"pixel": HOLDS, "image": BLIND}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--twin",), "not-with-trained"),
        (("--system",), "not-with-trained"),
        (("--trials", "500"), "not-with-trained"),
        (("--canaries", "10"), "too-few-canaries"),
        (("privacy.noise=system",), "attack-on-real-run"),
    ],
)
def test_what_has_no_meaning_is_refused(
    words: tuple[str, ...], code: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = spoken(capsys, monkeypatch, "audit", *TINY, "--trained", *words)
    assert said.code in (2, 4)
    assert code in said.err


def test_a_run_s_folder_is_played_again_and_nothing_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    start(config.load(None, [*TINY, "algorithm=gaussian_gdp"]), folder)
    before = sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*"))
    found = audit_trained(config.load(folder / "experiment.toml"), folder, canaries=256)
    assert found.verdict == HOLDS
    assert sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*")) == before


def test_a_preparation_that_lacks_something_is_refused_before_it_is_played() -> None:
    made = simulated(config.load({}, ["algorithm=slaug_fl", "variant=pooled", *TINY]))
    with pytest.raises(SordinoError) as refusal:
        preparation(made, bare=False)
    assert refusal.value.code in ("no-extractor", "no-candidates")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "weak"),
    [
        ("in shares", 3.0),
        pytest.param("in shares", 1.0, marks=pytest.mark.slow),
        pytest.param("at the server", 1.0, marks=pytest.mark.slow),
        pytest.param("at the server", 3.0, marks=pytest.mark.slow),
        pytest.param("of each client", 3.0, marks=pytest.mark.slow),
    ],
)
def test_canaries_are_seen_through_masks_as_closely_as_the_noise_in_their_sum_allows(where: str, weak: float) -> None:
    """Of 20 clients who each add a ninth of the variance the sum has 20 ninths of it, of 20 who add all of it 20 times.
    With 50 canaries the deviation is within 40% of the closed form but for 1e-4 of all seeds.
    """
    shares = {"name": "noise_share", "survivors": 10, "multiplier": 2.0, "neighbours": "zero_out"}
    noise = {"name": "noise", "multiplier": 2.0, "neighbours": "zero_out"}
    alone = [noise, {"name": "quantise", "range": 40.0}]  # noise first, then whole steps
    parts = {"in shares": [shares], "of each client": alone, "at the server": []}
    client = [{"name": "clip", "radius": 0.5}, *parts[where], {"name": "secagg"}]
    table = {"rounds": 2, "data": {"train": 512}, "cohort": {"name": "everyone"}, "privacy": {"delta": 1e-5}} | {
        "uplink": {"client": client, "server": [noise] if where == "at the server" else []},
        "algorithm": {"name": "fedavg", "local_steps": 1, "batch_size": "full"},
    }
    simulation = simulated(settle(config.load(table, [])))
    guarantees = [row for row in Planner(simulation.setup).guarantees if row.finite]
    canaries = placed(simulation, strongest(guarantees)[0].subject, 50, keys.root(5))
    told, there, *_ = scores(canaries, weak)
    off = (told - there.double()).square().mean().sqrt()
    louder = {"in shares": 20 / 9, "of each client": 20, "at the server": 1}[where]
    expected = 2.0 * math.sqrt(louder) / math.sqrt(2) / weak
    assert float(off) == pytest.approx(expected, rel=0.4)
