"""A noise law of a user's own: written by subclassing alone, it gives a priced, calibrated and stated run, real noise,
and the refusals of every law.

Its draws are held against the logistic law at p < 1e-6, from a fixed seed (`counter`) and anew each time (`system`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from sordino.accounting.claims import Claim
from sordino.accounting.events import Event, Gaussian, Response
from sordino.accounting.pricing import NoisePricing, Pure
from sordino.algorithms.fedavg import FedAvg
from sordino.audits.gates import audit
from sordino.config import build, gates
from sordino.errors import ConfigError, PrivacyError, UnsoundGuarantee, UnsupportedEvent
from sordino.planning.accounts import STATES
from sordino.planning.planner import Planner
from sordino.privacy.noise import LAWS, GaussianNoise, IntegerNoiseLaw, LaplaceNoise, NoiseLaw, Steps
from sordino.privacy.noise.sources import TABLE_ERROR, Counter, SystemNoise
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.secure_stages import Aggregated, NoiseShare
from sordino.privacy.uplink.stages import Clip, Noise
from sordino.receipts.verify import examine, verify
from sordino.runs.run import start
from sordino.runs.simulation import simulated
from sordino.types import Grant
from tests.laws.cases import BY_NAME

HERE = "tests.privacy.noise.test_own_law"


@dataclass(frozen=True)
class LogisticNoise(NoiseLaw):
    """Its log density changes by at most |move| / scale, so one draw is (1/multiplier)-DP in the 1-norm."""

    order: ClassVar[Literal[1, 2]] = 1
    spread: ClassVar[float] = math.pi / math.sqrt(3)

    @property
    def pricing(self) -> NoisePricing:
        return Pure()

    def event(self, multiplier: float) -> Event:
        # no pure mechanism of this epsilon composes to more (Kairouz, Oh and Viswanath 2015)
        return Response(1 / multiplier, 2)

    def standard(self, shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        drawn = torch.empty((2, *shape), dtype=dtype).exponential_(generator=generator).log_()
        return drawn[0] - drawn[1]

    def in_steps(self, scale: float) -> Steps:
        half = math.ceil(44 * scale)
        middle = (np.arange(-half, half, dtype=np.longdouble) + 0.5) / np.longdouble(scale)
        weights = 1 / (np.cosh(0.5 / np.longdouble(scale)) + np.cosh(middle))
        return Steps.of(
            weights,
            lambda k: np.tanh((k + 0.5) / (2 * scale)) / scale,
            lambda k: (0.5 / scale / np.cosh((k + 0.5) / (2 * scale))) ** 2,
        )


class HalvedNoise(LogisticNoise):
    """The broken twin: half the noise that it is priced for."""

    def standard(self, shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        return super().standard(shape, dtype, generator) / 2


class CheapNoise(LogisticNoise):
    """The broken twin: its price is a hundredth less than its event costs."""

    def event(self, multiplier: float) -> Event:
        return Response(1.01 / multiplier, 2)


@dataclass(frozen=True)
class LouderNoise(GaussianNoise):
    """Another: it is priced as Gaussian noise, and costs as much as half of it."""

    def event(self, multiplier: float) -> Event:
        return Gaussian(multiplier / 2)


@dataclass(frozen=True)
class OwnEvent(Event):
    """A subclass that nobody else could read."""

    epsilon: float


class UnknownNoise(LogisticNoise):
    def event(self, multiplier: float) -> Event:
        return OwnEvent(1 / multiplier)


@dataclass(frozen=True)
class OfClients(FedAvg):
    uplink: Uplink = Uplink((Clip(1.0, 1), Noise(LogisticNoise())))


@dataclass(frozen=True)
class OfTheSum(FedAvg):
    uplink: Uplink = Uplink((Clip(1.0, 1),), (Noise(LogisticNoise(), "zero_out"),))


@dataclass(frozen=True)
class OfExamples(FedAvg):
    read: NoisyGradient = NoisyGradient(1.0, LogisticNoise())


@dataclass(frozen=True)
class Cheap(FedAvg):
    uplink: Uplink = Uplink((Clip(1.0, 1), Noise(CheapNoise())))


@dataclass(frozen=True)
class CheapForExamples(FedAvg):
    read: NoisyGradient = NoisyGradient(1.0, CheapNoise())


@dataclass(frozen=True)
class CheapOnASample(FedAvg):
    uplink: Uplink = Uplink((Clip(1.0),), (Noise(LouderNoise(), "zero_out"),))


@dataclass(frozen=True)
class Unknown(FedAvg):
    uplink: Uplink = Uplink((Clip(1.0, 1), Noise(UnknownNoise())))


@dataclass(frozen=True)
class UnknownAndTyped(FedAvg):
    uplink: Uplink = Uplink((Clip(1.0, 1), Noise(UnknownNoise(), multiplier=2.0)))


@dataclass(frozen=True)
class Halved(FedAvg):
    uplink: Uplink = Uplink((Clip(1.0, 1), Noise(HalvedNoise())))


def experiment(name: str, epsilon: Any = 8.0, schedule: Any = None, **more: Any) -> Any:
    method = {"name": f"{HERE}:{name}", "local_steps": 1, "batch_size": "full", "lr": 0.5}
    privacy = {
        "delta": 1e-5,
        **({"epsilon": epsilon} if epsilon else {}),
        **({"schedule": schedule} if schedule else {}),
    }
    return BY_NAME["laplace"].experiment(algorithm=method, privacy=privacy, **more)


@pytest.mark.one_fast
@pytest.mark.parametrize(("name", "unit"), [("OfClients", "client"), ("OfTheSum", "client"), ("OfExamples", "example")])
def test_an_own_law_is_priced_calibrated_and_stated(name: str, unit: str, tmp_path: Path) -> None:
    """The budget is spent and not exceeded; what is stated rests on the law's own word, in the plan, in the receipt,
    and where it is made again, with and without the code.
    """
    made = experiment(name)
    planned = simulated(made)
    granted, plan = made.privacy.epsilon, planned.setup.plan
    assert plan.quietest == pytest.approx(min(plan.participations) / granted, rel=1e-6)
    ended = start(made, tmp_path / "run")
    stated = [row for row in (*Planner(planned.setup).guarantees, *ended.receipt.guarantees) if row.finite]
    assert unit in {row.unit for row in stated}
    for row in stated:
        assert row.status == "conditional"
        assert STATES.format(f"{HERE}:LogisticNoise") in row.because
        assert row.unit != unit or 0.5 * granted < row.epsilon <= granted
    assert verify(tmp_path / "run") == []
    assert examine(tmp_path / "run", code=False).wrong == []


GROUPS = {"epsilon": {"groups": {"1": 0.5, "4": 0.5}}}
UNSOUND: dict[str, tuple[str, str, Any]] = {
    "of clients": ("price-below-event", "Cheap", {}),
    "of clients with budgets of their own": ("price-below-event", "Cheap", GROUPS),
    "as it goes": ("price-below-event", "Cheap", {"schedule": {"name": "adaptive", "start": 1.0}}),
    "of examples": ("price-below-event", "CheapForExamples", {}),
    "on a hidden sample": ("price-below-event", "CheapOnASample", {"cohort": {"name": "poisson", "rate": 0.5}}),
    "at rates by budget": (
        "personal-cohort-needs-its-noise",
        "CheapOnASample",
        {**GROUPS, "cohort": {"name": "by_budget", "size": 2}},
    ),
    "an event of its own": ("malformed-event", "Unknown", {}),
    "an event of its own, without a budget": ("malformed-event", "UnknownAndTyped", {"epsilon": None}),
}


@pytest.mark.one_fast
@pytest.mark.parametrize("law", UNSOUND)
def test_a_law_whose_event_costs_more_than_its_price_is_not_planned(law: str) -> None:
    """Nor one whose event the ledger cannot hold."""
    code, name, more = UNSOUND[law]
    made = experiment(name, **more)
    with pytest.raises(PrivacyError) as refused:
        _ = Planner(simulated(made).setup).guarantees
    assert refused.value.code == code
    assert refused.value.why
    assert refused.value.fix


def test_an_event_of_ones_own_is_written_into_no_ledger() -> None:
    for claim in Claim.to_everyone("client", "replace", OwnEvent(1.0), "conditional", ()):
        with pytest.raises(UnsupportedEvent, match="is not an event"):
            claim.to_json()


def noise(source: Any, many: int = 200_000) -> np.ndarray:
    sent = OfClients().uplink.encode({"w": torch.zeros(many, dtype=torch.float64)}, Grant(0, 1, 1, source, 1.7))
    return np.asarray(sent["w"]) / (1.7 * 2)


@pytest.mark.parametrize("source", [Counter(5), SystemNoise()])
def test_its_noise_is_drawn_in_simulations_and_for_people(source: Any) -> None:
    drawn = noise(source)
    assert stats.kstest(drawn, "logistic", method="asymp").pvalue > 1e-6
    assert stats.kstest(drawn * 1.05, "logistic", method="asymp").pvalue < 1e-6
    assert drawn.std() == pytest.approx(LogisticNoise.spread, rel=0.02)


def test_a_law_without_a_narrowest_grid_is_drawn_on_no_integers() -> None:
    class Unsaid(LaplaceNoise):
        narrowest = IntegerNoiseLaw.narrowest

    class Said(LaplaceNoise):
        narrowest = 100.0

    sums = torch.zeros(3, dtype=torch.int64)
    assert Said().add(sums, 100.0, Counter(1)).dtype == torch.int64
    for law, scale in ((Unsaid(), 1e9), (Said(), 99.0)):
        assert law.add(sums.double(), scale, Counter(1)).dtype == torch.float64
        with pytest.raises(PrivacyError) as refused:
            law.add(sums, scale, Counter(1))
        assert refused.value.code == "noise-too-narrow"


def test_its_steps_are_those_of_the_law() -> None:
    """Against sums of probabilities of the law; the fraction carries as the law inside a step says."""
    steps, scale = LogisticNoise().in_steps(4096.0), 4096.0
    exact = partial(stats.logistic.cdf, scale=scale)
    edges = steps.lowest + 1 + np.arange(len(steps.thresholds))
    assert np.abs(steps.thresholds / 2.0**64 - exact(edges)).max() < TABLE_ERROR
    for k in (-9000, -1, 0, 500, 20_000):
        (carried,) = steps.carry(np.array([k]), np.array([0.3]))
        assert carried == pytest.approx((exact(k + 1) - exact(k + 0.7)) / (exact(k + 1) - exact(k)), abs=1e-9)


@pytest.mark.slow
def test_an_audit_finds_half_of_the_noise() -> None:
    """The attack is chosen by the norm of the law, not by its name."""
    sound, short = (audit(experiment(name, 2.0, rounds=1), trials=2_000) for name in ("OfClients", "Halved"))
    assert sound.verdict != "VIOLATED"
    assert short.verdict == "VIOLATED"


REFUSED: dict[str, tuple[str, Any]] = {
    "a clip in another norm": ("noise-needs-l1-clip", lambda: NoisyGradient(1.0, LogisticNoise(), clip_order=2)),
    "no clip": ("unbounded-sensitivity", lambda: Uplink((Noise(LogisticNoise()),)).bound(3)),
    "shares": ("shares-are-gaussian", lambda: NoiseShare(LogisticNoise(), survivors=3)),
    "on integers of the server": (
        "stage-behind-fixed-point",
        lambda: Uplink((Clip(1.0, 1), Aggregated()), (Noise(LogisticNoise(), "zero_out"),)),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_where_every_law_is(name: str) -> None:
    code, made = REFUSED[name]
    with pytest.raises((UnsoundGuarantee, ConfigError)) as refused:
        made()
    assert refused.value.code == code


def test_the_library_s_laws_are_added_to_integers() -> None:
    """The control."""
    Uplink((Clip(1.0, 1), Aggregated()), (Noise(LaplaceNoise(), "zero_out"),))


@pytest.mark.parametrize("law", LAWS)
def test_a_row_is_all_that_settings_need_to_name_a_law(law: str) -> None:
    assert build({"name": "noise", "law": law}, gates.STAGES, "uplink").mechanism == LAWS[law]  # type: ignore[attr-defined]
    assert (
        build({"name": "noisy_gradient", "clip": 1.0, "law": law}, gates.READERS, "read").clip_order == LAWS[law].order
    )  # type: ignore[attr-defined]
    with pytest.raises(ConfigError):
        build({"name": "noise", "law": f"{law}s"}, gates.STAGES, "uplink")
