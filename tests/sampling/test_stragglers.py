"""Slow clients: how many, which, how much they still do; the same for every compared method."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sordino import config, keys
from sordino.algorithms.fedavg import FedAvg
from sordino.engine import stack
from sordino.engine.site import Site
from sordino.errors import ConfigError
from sordino.runs.run import start
from sordino.runs.simulation import simulated
from sordino.sampling.draws import Stragglers
from sordino.types import Terms
from tests.helpers.executors import answers_of

KEY = keys.root(2)
TEN = list(range(20, 30))
quick = settings(deadline=None, derandomize=True, max_examples=80)


@pytest.mark.parametrize(("share", "active"), [(0.0, 10), (0.5, 5), (0.9, 1), (1.0, 0), (0.25, 8), (0.35, 6)])
def test_how_many_are_left(share: float, active: int) -> None:
    """n = round half to even of m (1 - s): 7.5 becomes 8, 6.5 becomes 6."""
    turnout = Stragglers(share, "drop").split(TEN, 0, KEY)
    assert len(turnout.active) == active
    assert len(Stragglers(share, "late").split(TEN, 0, KEY).late) == 10 - active
    assert len(Stragglers(share, "keep", 5).split(TEN, 0, KEY).epochs) == 10 - active


@quick
@given(st.lists(st.integers(0, 99), unique=True, max_size=12), st.floats(0, 1), st.integers(0, 50), st.integers(2, 9))
def test_the_policies_agree_on_who_is_slow(cohort: list[int], share: float, t: int, epochs: int) -> None:
    drop, late, keep = (Stragglers(share, policy, epochs).split(cohort, t, KEY) for policy in ("drop", "late", "keep"))
    slow = set(cohort) - set(drop.active)
    assert late.late == slow == set(keep.epochs)
    assert late.active == keep.active == cohort
    assert not drop.late
    assert not drop.epochs
    assert not keep.late
    assert not late.epochs
    assert all(1 <= effort < epochs for effort in keep.epochs.values())
    assert drop.active == [k for k in cohort if k in drop.active]  # the order of the cohort is kept


@quick
@given(
    st.sets(st.integers(0, 99), min_size=1, max_size=12), st.integers(0, 99), st.floats(0, 1), st.integers(0, 50),
    st.sampled_from(["drop", "late", "keep"]), st.sampled_from([None, 5]),
)  # fmt: skip
def test_in_a_hidden_cohort_nobodys_fate_depends_on_who_else_was_drawn(
    drawn: set[int], other: int, share: float, t: int, policy: Any, epochs: int | None
) -> None:
    """Otherwise a client that leaves would change what others send, and one clip would not bound that."""

    def fates(cohort: set[int]) -> dict[int, Any]:
        turnout = Stragglers(share, policy, epochs, own_fate=True).split(sorted(cohort), t, KEY)
        return {
            k: (k in turnout.active, k in turnout.late, turnout.epochs.get(k), turnout.parts.get(k))
            for k in drawn - {other}
        }

    assert fates(drawn | {other}) == fates(drawn - {other})


def test_where_the_cohort_is_seen_a_share_is_exact_and_fates_hang_together() -> None:
    """The broken twin of the law above: what it would find."""
    policy = Stragglers(0.5, "drop")
    left = {tuple(k for k in policy.split(TEN[:9], t, KEY).active) for t in range(20)}
    with_one_more = {tuple(k for k in policy.split(TEN, t, KEY).active if k != TEN[9]) for t in range(20)}
    assert left != with_one_more


def test_who_is_slow_changes_from_round_to_round_and_with_the_seed_only() -> None:
    policy = Stragglers(0.5)
    rounds = [tuple(policy.split(TEN, t, KEY).active) for t in range(30)]
    assert rounds == [tuple(policy.split(TEN, t, KEY).active) for t in range(30)]
    assert len(set(rounds)) > 20
    assert rounds != [tuple(policy.split(TEN, t, keys.root(3)).active) for t in range(30)]


def test_everybody_is_slow_equally_often_and_does_every_effort_equally_often() -> None:
    """Chi-squared, p > 1e-6 each; a fixed set and the efforts' complement are rejected."""
    slow: Counter[int] = Counter()
    efforts: Counter[int] = Counter()
    for t in range(2000):
        turnout = Stragglers(0.3, "keep", 6).split(TEN, t, KEY)
        slow.update(turnout.epochs.keys())
        efforts.update(turnout.epochs.values())
    assert sorted(slow) == TEN
    assert sorted(efforts) == [1, 2, 3, 4, 5]
    # three of ten without replacement: counts vary less than independent ones, so a fair draw passes even more surely
    assert stats.chisquare(list(slow.values())).pvalue > 1e-6
    assert stats.chisquare(list(efforts.values())).pvalue > 1e-6
    assert stats.chisquare([900, *[600] * 8, 300]).pvalue < 1e-6  # negative control at this size


def federation(algorithm: dict[str, Any], **changes: Any) -> config.Experiment:
    table = {
        "rounds": 5,
        "partition": {"scheme": "iid", "clients": 10},
        "algorithm": algorithm,
        "privacy": {},
        "cohort": {"name": "random", "size": 6},
        "stragglers": {"share": 0.5, "policy": "drop"},
        "evaluation": {"every": 100, "final": 1},
    }
    return config.validate(table | changes)


METHODS: list[dict[str, Any]] = [
    {"algorithm": {"name": "fedavg"}},
    {"algorithm": {"name": "fedprox", "mu": 0.5}},
    {"algorithm": {"name": "scaffold", "local_steps": 2}},
    {"algorithm": {"name": "gaussian_gdp"}, "privacy": {"epsilon": 2.0}},
    {"algorithm": {"name": "whole_update"}, "privacy": {"epsilon": 2.0, "delta": 1e-3}},
]


def test_all_methods_see_the_same_clients() -> None:
    """Cohort and stragglers of every round, method by method; another seed gives others."""

    def seen(**changes: Any) -> list[list[int]]:
        parts = simulated(federation(**changes))
        run = parts.federation(":memory:", "run")
        return [run.stragglers.split(run.cohort.draw(t, 10, run.key), t, run.key).active for t in range(5)]

    first, *others = [seen(**method) for method in METHODS]
    assert all(len(active) == 3 for active in first)
    assert others == [first] * (len(METHODS) - 1)
    assert seen(**METHODS[0], seed=1) != first


def test_partial_work_is_that_many_epochs(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Client code takes ceil(n / B) steps per granted epoch; the slow ones fewer than E, the others E."""
    steps: dict[tuple[int, int], int] = {}
    granted: dict[tuple[int, int], int | None] = {}
    whole, local, count = Site.__call__, FedAvg.direction, [0]
    monkeypatch.setattr(stack, "_agree", lambda *asked: True)  # steps of a trial are no client's

    def counted(self: Any, g: Any, y: Any, x: Any) -> Any:
        count[0] += 1
        return local(self, g, y, x)

    def watched(self: Any, t: int, down: Any, terms: Mapping[int, Terms]) -> Any:
        for k, one in sorted(terms.items()):
            count[0] = 0
            yield from whole(self, t, down, {k: one}).uploads
            steps[t, k], granted[t, k] = count[0], one.epochs

    monkeypatch.setattr(FedAvg, "direction", counted)
    monkeypatch.setattr(Site, "__call__", answers_of(watched))
    made = federation(
        {"name": "fedavg", "local_epochs": 4, "batch_size": 50}, stragglers={"share": 0.5, "policy": "keep"}
    )
    start(made, tmp_path / "run")
    sizes = simulated(made).setup.public.sizes
    assert all(steps[t, k] == -(-sizes[k] // 50) * (granted[t, k] or 4) for t, k in steps)
    assert sum(effort is not None for effort in granted.values()) == 5 * 3
    assert set(granted.values()) <= {None, 1, 2, 3}


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_is_a_share(share: float) -> None:
    with pytest.raises(ConfigError) as refusal:
        Stragglers(share)
    assert refusal.value.code == "share-out-of-range"


@pytest.mark.parametrize("epochs", [None, 1])
def test_without_partial_work_there_is_nothing_to_keep(epochs: int | None) -> None:
    with pytest.raises(ConfigError) as refusal:
        Stragglers(0.5, "keep", epochs, divisible=False)  # noisy reads are paid for as a whole
    assert refusal.value.code == "no-partial-work"
    assert Stragglers(0.0, "keep", epochs, divisible=False).split(TEN, 0, KEY).active == TEN


@pytest.mark.parametrize("epochs", [None, 1])
def test_one_epoch_is_kept_in_part(epochs: int | None) -> None:
    parts = [Stragglers(0.5, "keep", epochs).split(TEN, t, KEY).parts for t in range(200)]
    assert all(len(part) == 5 for part in parts)
    drawn = [share for part in parts for share in part.values()]
    assert 0 < min(drawn) < 0.01
    assert 0.99 < max(drawn) < 1
    # of 6 batches any number from 1 to 6, each as often as another: 1000 draws, 7 standard deviations
    counts = np.bincount([math.ceil(share * 6) for share in drawn], minlength=7)
    assert counts[0] == 0
    assert abs(counts[1:] - 1000 / 6).max() < 7 * math.sqrt(1000 / 6)


def test_faults_strike_after_the_round_was_reserved() -> None:
    lose, delay = 0.3, 0.2
    turnouts = [Stragglers(faults=(lose, delay)).split(TEN, t, KEY) for t in range(500)]
    assert all(turnout.active == TEN and not turnout.lost & turnout.late for turnout in turnouts)
    lost, late = (sum(len(getattr(turnout, name)) for turnout in turnouts) / 5000 for name in ("lost", "late"))
    assert lost == pytest.approx(lose, abs=0.05)
    assert late == pytest.approx(delay, abs=0.05)
    # a client's fate does not depend on who else is there
    few = [Stragglers(faults=(lose, delay)).split(TEN[3:5], t, KEY) for t in range(500)]
    assert all(small.lost == turnout.lost & set(TEN[3:5]) for small, turnout in zip(few, turnouts, strict=True))
