"""Trained audits behind every reader and stage: sound runs hold, and each broken twin is refuted.

A sound promise is refuted with probability 1e-3 per audit, over the choice of the seed. Seeds are fixed.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch

from sordino import config, keys
from sordino.accounting.accountants import best
from sordino.accounting.claims import Subject
from sordino.accounting.events import Repeat, Response
from sordino.audits.canary_replays import CanaryImageRounds, CanaryImages, placed, scores
from sordino.audits.gates import HOLDS, VIOLATED
from sordino.audits.replay import BEGINNING
from sordino.audits.trained import BLIND, audit_trained, epsilon_by_overlap, strongest
from sordino.engine.client_states import PreparedShards
from sordino.engine.server import FederatedServer
from sordino.planning.planner import Planner
from sordino.privacy.readers.convex_stable import ConvexStable
from sordino.privacy.readers.episodes import CellGradient
from sordino.privacy.readers.responses import composed_delta
from sordino.privacy.uplink.stages import Noise
from sordino.results.findings import AuditedPromise, TrainedAudit
from sordino.runs.simulation import Simulation, settle, simulated
from tests.audits.test_trained import promise

slow = pytest.mark.slow
FEW = ("rounds=2", "data.train=512", "partition={scheme='iid',clients=4}")
CLIENTS = ("rounds=2", "data.train=512", "partition={scheme='iid',clients=40}", "algorithm.local_steps=1")
BUDGETS = 'privacy={epsilon={groups={"2"=0.5,"8"=0.5}},delta=1e-5}'
FREE, EPISODES = "privacy={delta=1e-5}", ("rounds=1", "model=mlp", "algorithm.local_steps=1", "algorithm.batch_size=10")
NOISED = '{name="clip",radius=0.5},{name="noise",multiplier=1}'
RUNS: dict[str, tuple[str, ...]] = {
    "episodes": (*FEW, *EPISODES, "algorithm=prifedsync", "algorithm.level=step_level", "algorithm.sigma=2", FREE),
    "cells": (*FEW, *EPISODES, "algorithm=pfl_dyn", 'read={name="cells",clip=1,rate=0.5}'),
    "convex steps": (*FEW, "algorithm=convex_stable", "algorithm.local_steps=3", 'model={name="logistic",radius=4}'),
    "responses": (*FEW, "algorithm=fedavg", FREE, 'read={name="responses",epsilon=2,side=4}'),
    "responses, whole images": (
        *FEW,
        "algorithm=fedavg",
        FREE,
        'read={name="responses",epsilon=8,of="image",delta=1e-6,label_epsilon=2}',
    ),
    "a robust sum": (*CLIENTS, "algorithm=fedavg", FREE, f"uplink={{client=[{NOISED}],server=[{{name='krum',f=2}}]}}"),
    "budgets, a bound for each": (*CLIENTS, "algorithm=pdp_prox", BUDGETS),
    "budgets, noise of each": (*CLIENTS, "algorithm=pdp_prox", "algorithm.mechanism=local", BUDGETS),
    "budgets, a rate for each": (
        *CLIENTS,
        "algorithm=pdp_prox",
        "algorithm.mechanism=rates",
        "cohort={name='by_budget',size=10}",
        BUDGETS,
    ),
    "budgets, of rows": (*FEW, "algorithm=gaussian_gdp", BUDGETS),
}


def audited(name: str, *words: str) -> TrainedAudit:
    return audit_trained(config.load(None, [*RUNS[name], *words]), canaries=300)


@cache
def simulation(*words: str) -> Simulation:
    return simulated(settle(config.load(None, list(words))))


def units(found: TrainedAudit, verdict: str) -> list[tuple[str, float | None]]:
    return [(one.unit, one.budget) for one in found.promises if one.verdict == verdict]


@pytest.mark.one_fast
@pytest.mark.parametrize(
    ("name", "held"),
    [
        ("responses", [("image", None), ("pixel", None)]),
        ("budgets, of rows", [("example", 2.0), ("example", 8.0)]),
        ("episodes", [("example", None)]),
        ("cells", [("cell", None)]),
        ("convex steps", [("example", None)]),
        ("responses, whole images", [("example", None), ("image", None)]),
        ("a robust sum", [("client", None)]),
        ("budgets, a bound for each", [("client", 2.0), ("client", 8.0)]),
        ("budgets, noise of each", [("client", 2.0), ("client", 8.0)]),
        ("budgets, a rate for each", [("client", 2.0), ("client", 8.0)]),
    ],
)
def test_a_sound_run_holds_and_its_broken_twin_is_caught(name: str, held: list[tuple[str, float | None]]) -> None:
    found = audited(name)
    assert units(found, HOLDS) == held
    assert not units(found, VIOLATED)
    for one in found.promises:
        if one.verdict == HOLDS:
            assert one.played is not None
            assert one.power.twin is not None
            assert not one.played.refutes(one.claimed)
            assert one.power.twin.refutes(one.claimed)
            assert one.played.at_least > 0.05 * one.claimed


def halved(kind: type, name: str) -> property:
    own = getattr(kind, name)
    return property(lambda self: own.fget(self) / 2)


@pytest.mark.slow
def test_answers_that_are_drawn_again_behind_a_promise_of_once_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve rounds of new answers, of which one is paid for."""
    again = lambda self, t: PreparedShards(self._shards, self._reader, self._source, t)  # noqa: E731
    monkeypatch.setattr(PreparedShards, "at", again)
    found = audited("responses", "rounds=12")
    assert ("pixel", None) in units(found, VIOLATED)


@slow
def test_noise_for_half_an_episode_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CellGradient, "sensitivity", halved(CellGradient, "sensitivity"))
    assert units(audited("cells"), VIOLATED) == [("cell", None)]


def test_noise_for_half_of_what_convex_steps_move_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ConvexStable.noise_std
    monkeypatch.setattr(ConvexStable, "noise_std", lambda *given: own(*given) / 2)
    assert units(audited("convex steps"), VIOLATED) == [("example", None)]


@slow
def test_noise_for_half_a_client_is_found_behind_a_robust_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Noise.sensitivity
    monkeypatch.setattr(Noise, "sensitivity", lambda *given: own(*given) / 2)
    assert units(audited("a robust sum"), VIOLATED) == [("client", None)]


@slow
def test_a_client_that_sends_more_than_its_budget_buys_is_found_by_the_promise_of_its_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All send what the largest budget buys: that is too much for those with the smallest."""
    monkeypatch.setattr(FederatedServer, "_reach", lambda self, price: 1.0)
    found = audited("budgets, a bound for each")
    assert (units(found, VIOLATED), units(found, HOLDS)) == ([("client", 2.0)], [("client", 8.0)])


def test_a_limit_on_the_steps_of_a_sound_run_refutes_nothing() -> None:
    """It comes after the noise, and scales both down: by itself that looks like little noise."""
    found = audit_trained(
        config.load(None, [*FEW, "algorithm=gaussian_gdp", "algorithm.most_grad=0.05", "privacy.epsilon=1"]),
        canaries=200,
    )
    assert found.verdict == HOLDS


# secure sums ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_encrypted_sum_shows_what_a_masked_one_shows() -> None:
    """To the bit: the replay adds the integers in clear."""
    pytest.importorskip("tenseal")
    noise = '{name="noise",multiplier=1,neighbours="zero_out"}'
    told = []
    for last in ('{name="bfv",keys="shared"}', '{name="bfv",keys="authority"}', '"secagg"'):
        made = simulation(
            *CLIENTS[:2],
            "partition={scheme='iid',clients=20}",
            *("algorithm=fedavg", "algorithm.local_steps=1", FREE),
            f'uplink={{client=[{{name="clip",radius=0.5}},{last}],server=[{noise}]}}',
        )
        row = strongest([row for row in Planner(made.setup).guarantees if row.finite])[0]
        told.append(scores(placed(made, row.subject, 16, keys.root(3)), 1.0).scores)
    assert torch.equal(told[0], told[2])
    assert torch.equal(told[1], told[2])


@pytest.mark.slow
def test_rows_behind_masks_are_hidden_by_the_noise_of_all_clients_and_that_is_said() -> None:
    """Of sixteen clients the sum has four times the noise that is promised: no twin comes near the promise."""
    found = audit_trained(
        config.load(
            None,
            [
                *("rounds=1", "data.train=512", "partition={scheme='iid',clients=16}", "algorithm=gaussian_gdp"),
                'uplink={client=[{name="quantise",range=20},{name="secagg"}]}',
            ],
        ),
        canaries=100,
    )
    (one,) = found.promises
    assert one.verdict == BLIND
    assert one.why.endswith("the noise of every client is in the sum that is seen, and one client's is promised")


# responses ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 16])
def test_wrong_guesses_give_the_epsilon_of_a_response(count: int) -> None:
    """At the share of wrong guesses that the best attacker makes the bound is the promise; below it is more."""
    event = Repeat(Response(2.0, 21), count)
    held = promise(event, best(event, 1e-5, "replace").epsilon)
    wrong = (1 - composed_delta(2.0, count, 0.0, 21)) / 2
    assert 0.9 * held.epsilon < epsilon_by_overlap(held, 1.002 * wrong) <= held.epsilon
    assert epsilon_by_overlap(held, 0.9 * wrong) > 0.98 * held.epsilon
    assert epsilon_by_overlap(held, 0.5) == 0.0


@pytest.mark.parametrize(
    ("unit", "more"), [("pixel", ""), ("pixel", ",side=4"), ("image", ""), ("example", ",label_epsilon=2")]
)
def test_true_answers_are_the_coins(unit: str, more: str) -> None:
    """Behind an epsilon that hides nothing a score is its coin, of every value, image and label."""
    reads = f'read={{name="responses",epsilon=30{more}}}'
    subject = Subject(unit=unit, neighbours="replace", adversary="server")
    canaries = CanaryImages(simulation(*FEW, "algorithm=fedavg", FREE, reads), subject, 40, keys.root(1))
    assert canaries.unfit() == ""
    rounds = CanaryImageRounds(canaries, 0, 1.0, BEGINNING)
    seen = rounds.scores()
    assert bool(seen.exposed.all())
    assert len(seen.each) == len(canaries.owners) >= 40
    assert torch.allclose(seen.each, rounds.coins.double(), atol=1e-6)


def test_a_value_that_moves_no_answer_is_no_canary() -> None:
    made = simulation(*FEW, "algorithm=fedavg", FREE, 'read={name="responses",epsilon=2,side=1,levels=3}')
    pixel = Subject(unit="pixel", neighbours="replace", adversary="server")
    assert "too many values are averaged" in CanaryImages(made, pixel, 40, keys.root(1)).unfit()
    assert CanaryImages(made, pixel.beside(unit="image"), 40, keys.root(1)).unfit() == ""


def test_a_row_says_whose_budget_it_is_about() -> None:
    one = AuditedPromise(
        **dict(promise(Response(2.0, 2), 2.0).subject),
        budget=2.0,
        claimed=2.0,
        delta=1e-5,
        status="proved",
        releases=1,
        replays=0,
        verdict="not attacked",
        why="",
    )
    assert one.in_figures[0] == "example, replace\nbudget 2"
