"""The audit of a run with a preparation: every phase is attacked for what it promises itself, and one that promises
nothing is named.

The noise is seeded. A sound claim is refuted with probability 1e-4 per subject, over the choice of the seed. At a rate
of 1 every claim is Gaussian: its twin, with 30% less noise, was caught with every one of ten seeds. At 0.2 each step's
sample is secret, and more trials are needed.
"""

from __future__ import annotations

import json
import math
from functools import cache

import pytest
import torch
from torch import Tensor

from sordino import config
from sordino.accounting.gaussian_dp import epsilon_of, mu_of
from sordino.audits.gates import EMPTY, Audit, audit
from sordino.audits.records import statistics
from sordino.config import Experiment
from sordino.privacy.noise.sources import Counter
from sordino.privacy.readers.class_sums import ClassSums, SumShard, class_sums
from sordino.runs.simulation import simulated
from sordino.types import Examples, Grant, Shard, Task
from tests.helpers.command_line import spoken

DELTA, TRIALS = 1e-4, 1_500
TINY = (
    "algorithm=slaug_fl",
    "rounds=1",
    'data={source="digits",probe=5}',
    'candidates={source="procedural",per_class=4}',
    'partition={scheme="iid",clients=3}',
    "private_steps=1",
)
EPSILON = {"rigorous_b": 20.0, "rigorous_a": 40.0, "dp_proto_only": 8.0, "as_published": None, "pooled": None}
PROMISES = {"rigorous_b": ["pool", "training"], "rigorous_a": ["train", "ask", "training"]}


def words(variant: str, rate: float = 1.0, epsilon: float | None = None) -> list[str]:
    budget = epsilon or EPSILON[variant]
    private = [f"privacy={{epsilon={budget},delta={DELTA}}}"] if budget else []
    return [*TINY, f"variant={variant}", f"algorithm.rate={rate}", *private]


def experiment(variant: str) -> Experiment:
    return config.load({}, words(variant))


@cache
def audited(variant: str, twin: bool = False) -> Audit:
    return audit(experiment(variant), TRIALS, twin=twin)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["rigorous_b", "rigorous_a"])
def test_every_phase_is_attacked_and_its_twin_is_caught(variant: str) -> None:
    found, twins = audited(variant), audited(variant, twin=True)
    assert [one.phase for one in found.subjects] == found.phases == PROMISES[variant]
    assert (found.verdict, twins.verdict, found.unprotected) == ("holds", "caught", [])
    for one, twin in zip(found.subjects, twins.subjects, strict=True):
        assert (one.unit, one.neighbours, one.verdict) == ("example", "zero_out", "holds")
        assert 0.5 * one.claimed_there < one.at_least <= one.claimed_there < math.inf
        assert twin.verdict == "caught"
        assert twin.at_least > twin.claimed_there == one.claimed_there


@pytest.mark.slow
@pytest.mark.parametrize("variant", PROMISES)
def test_secret_samples_are_caught_too(variant: str) -> None:
    tried = config.load({}, words(variant, rate=0.2, epsilon=12.0))
    found, twins = audit(tried, 30_000), audit(tried, 30_000, twin=True)
    assert [one.verdict for one in found.subjects] == ["holds"] * len(PROMISES[variant])
    assert [one.verdict for one in twins.subjects] == ["caught"] * len(PROMISES[variant])


@pytest.mark.slow
@pytest.mark.parametrize("variant", PROMISES)
def test_claims_are_those_of_each_phase_s_own_plan_and_share_one_budget(variant: str) -> None:
    parts, claimed = simulated(experiment(variant)), {one.phase: one.claimed for one in audited(variant).subjects}
    spent = 0.0
    for other in parts.setup.whole.phases:
        price = other.plan.price(0, 0, other.plan.currency.zero())
        assert price is not None
        # at a rate of 1, and with one read in a participation, each is one Gaussian release
        assert claimed[other.phase or "training"] == pytest.approx(epsilon_of(1 / price.multiplier, DELTA), rel=1e-3)
        spent += other.priced.participations[0] * mu_of(claimed[other.phase or "training"], DELTA) ** 2
    total = epsilon_of(math.sqrt(spent), DELTA)
    budget = EPSILON[variant]
    assert budget is not None
    assert 0.8 * budget < total <= budget
    assert len({round(epsilon, 6) for epsilon in claimed.values()}) == len(claimed)  # not the training's for all


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        ["algorithm=dp_prox", "variant=published", 'cohort={name="random",size=5}'],
        ["algorithm=gaussian_sampled", "variant=published", "rate=0.1", 'cohort={name="everyone"}'],
    ],
    ids=lambda method: method[0],
)
def test_a_published_number_is_the_part_of_the_budget_that_one_round_is_charged(method: list[str]) -> None:
    tried = config.load({}, [*method, "rounds=4", "privacy={epsilon=8.0}", 'partition={scheme="iid",clients=10}'])
    (one,) = audit(tried, 100).subjects
    assert (one.status, one.claimed) == ("nominal", pytest.approx(8.0 / 4))


# a phase that is broken, alone ----------------------------------------------------------------------------------------


class ClipsTheSum(SumShard):
    """Of a class as a whole: one example far away turns it around, which moves it twice as far as is noised."""

    def by_class(self, of, classes: int) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
        sums, counts = class_sums(of, self._examples, classes)
        clip, multiplier = self._reader.clip, self._grant.multiplier
        assert multiplier is not None
        cut = sums * (clip / torch.linalg.vector_norm(sums, dim=1, keepdim=True)).clamp(max=1.0)
        return self._reader.mechanism.add(cut, multiplier * clip, self._grant.source.child("classes")), counts


def turned(self: ClassSums, examples: Examples, grant: Grant, task: Task) -> Shard:
    return ClipsTheSum(self, examples, grant, task)


BROKEN = {
    "half the noise": ("sensitivity", property(lambda self: self.clip / 2)),
    "the sum is clipped": ("open", turned),
}


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "phase"), [("rigorous_b", "pool"), ("rigorous_a", "ask")])
@pytest.mark.parametrize("name", BROKEN)
def test_a_phase_that_is_broken_alone_is_refuted_alone(
    variant: str, phase: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ClassSums, *BROKEN[name])
    found = audit(experiment(variant), TRIALS)
    assert {one.phase: one.verdict for one in found.subjects} == {
        other: "VIOLATED" if other == phase else "holds" for other in PROMISES[variant]
    }
    assert found.verdict == "VIOLATED"


def test_counts_are_part_of_what_is_told() -> None:
    # at a multiplier of 1/2 two neighbours are two deviations apart, of sums and counts together: false alarms 1e-4
    outputs = statistics(ClassSums(clip=3.0, count=2.0), 0.5).outputs(4_000, Counter(7))
    apart = float((outputs.with_.mean() - outputs.without.mean()) / outputs.without.std())
    assert apart == pytest.approx(2.0, abs=4 * 2 * math.sqrt(2 / 4_000))


# a phase that promises nothing ----------------------------------------------------------------------------------------


def test_what_holds_in_one_phase_does_not_hold_for_a_run_that_shows_its_models() -> None:
    found = audited("dp_proto_only")
    assert [(one.phase, one.verdict) for one in found.subjects] == [("ask", "holds")]
    assert (found.phases, found.unprotected) == (["train", "ask", "training"], ["train", "training"])
    assert found.verdict == "holds in part"
    twin = audited("dp_proto_only", twin=True)
    assert (twin.verdict, twin.unprotected) == ("caught", ["train", "training"])


@pytest.mark.parametrize("variant", ["as_published", "pooled"])
def test_phases_in_the_clear_are_all_named(variant: str) -> None:
    found = audited(variant)
    assert (found.subjects, found.verdict) == ([], EMPTY)
    assert (
        found.unprotected == found.phases == (["pool", "training"] if variant == "pooled" else PROMISES["rigorous_a"])
    )


# the verb -------------------------------------------------------------------------------------------------------------


def test_the_verb_goes_through_the_phases(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    said = spoken(capsys, monkeypatch, "audit", *words("dp_proto_only"), "--trials", TRIALS)
    lines = said.out.splitlines()
    assert said.code == 0
    told = [line for line in lines if line.startswith("phase ")]
    assert told == [f"phase train: {EMPTY}", "phase ask:", f"phase training: {EMPTY}"]
    assert "the run as a whole is not protected" in " ".join(lines)
    assert "this attack did not do better" not in said.out

    said = spoken(capsys, monkeypatch, "audit", *words("as_published"))
    assert said.out.splitlines() == [
        *(f"phase {phase}: {EMPTY}" for phase in PROMISES["rigorous_a"]),
        f"slaug_fl: {EMPTY}.",
    ]


def test_one_object_says_which_phase_and_which_are_without_protection(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = spoken(capsys, monkeypatch, "audit", *words("dp_proto_only"), "--trials", TRIALS, "--json")
    found = json.loads(said.out)
    assert (found["verdict"], found["unprotected"]) == ("holds in part", ["train", "training"])
    assert [one["phase"] for one in found["subjects"]] == ["ask"]


def test_a_run_of_one_phase_does_not_speak_of_phases(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = ("gaussian_gdp", "multiplier=0.5", "privacy={delta=1e-5}", "--trials", 300)
    assert "phase" not in spoken(capsys, monkeypatch, "audit", *alone).out
    found = json.loads(spoken(capsys, monkeypatch, "audit", *alone, "--json").out)
    assert (found["phases"], found["unprotected"]) == (["training"], [])
    assert [one["phase"] for one in found["subjects"]] == ["training"]


def test_a_plan_that_prices_a_round_by_its_rates_is_audited() -> None:
    """As published: before the first round has its threshold, there is no price, and the audit stopped with an
    error.
    """
    cohort, budgets = 'cohort={name="threshold_published"}', 'privacy.epsilon={groups={"2"=0.5,"4"=0.5}}'
    asked = ["algorithm=pdp_prox", "mechanism=published", "rounds=2", cohort, budgets]
    (one,) = audit(config.load({}, asked), 5_000).subjects
    assert (one.status, one.verdict) == ("proved", "holds")
