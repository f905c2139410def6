"""The audit: what a distinguisher can do with the outputs of the public release calls never exceeds what the gate's own
claim says.

Two worst-case neighbours, one threshold fixed beforehand, Clopper-Pearson limits for both errors at 1e-6 together: a
proved lower bound on the privacy that was lost (Nasr et al., USENIX Security 2023; Jagielski et al., NeurIPS 2020). An
audit that cannot catch noise that is 10% too small, or a claim sized for half the sensitivity, fails here itself. Noise
comes from `system` and so differs from run to run: false alarms 1e-6 per audit, however few the draws; the power
against the twins is above 0.999 each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor

from sordino.accounting import events
from sordino.accounting.accountants import best
from sordino.audits.lower_bounds import Outputs, epsilon_lost, mu_lost
from sordino.audits.noise_sources import Weak
from sordino.privacy.noise import GaussianNoise, LaplaceNoise
from sordino.privacy.noise.sources import SystemNoise
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.stages import Clip, Noise, Stage
from sordino.sampling import Everyone
from sordino.tasks.quadratic import Quadratic
from sordino.types import Claim, Examples, Grant, LocalWork, NoiseSource
from tests.privacy.doubles import linear

ONCE = LocalWork(1, None, None)
MANY, SOME, FEW = 10**5, 40_000, 4_000  # draws per side
pytestmark = pytest.mark.slow


def claimed_mu(claims: list[Claim]) -> float:
    """mu of the one Gaussian that the gate says an adversary at the server (else: a participant) sees."""
    claim = next(claim for claim in claims if not isinstance(claim.event, events.NonPrivate))
    assert claim.status == "proved"
    squared = 0.0
    for leaf, count in events.leaves(claim.event).items():
        assert isinstance(leaf, events.Gaussian)
        squared += count / leaf.noise_multiplier**2
    return math.sqrt(squared)


# ---------------------------------------------------------------- examples, through a reader


def gradients(
    reader: NoisyGradient, rows: Tensor, size: int, multiplier: float, source: NoiseSource, work: LocalWork
) -> Tensor:
    shard = reader.open(
        Examples(rows, torch.zeros(len(rows))), Grant(0, size, size, source, multiplier), Quadratic(size)
    )
    params = {"w": torch.zeros(size, dtype=torch.float64)}
    reads = [
        batch.grad(linear, params)["w"] * reader.denominator(size, work.batch(size)) for batch in shard.batches(work, 1)
    ]
    return torch.stack(reads).mean(0) if reader.sampling == "full" else torch.stack(reads).sum(0)


def from_reader(
    reader: NoisyGradient,
    multiplier: float,
    draws: int,
    source: Callable[[], NoiseSource] = SystemNoise,
    work: LocalWork = ONCE,
) -> Outputs:
    """Every coordinate is a worst-case pair of its own: example j alone has a gradient along coordinate j, far beyond
    the clip.

    So one release of 500 coordinates is 500 independent draws: what the other examples do never reaches coordinate j.
    Of examples that are zeroed out one is enough, since each takes a pass of its own.
    """
    d, clip = 500, reader.clip
    towards = 1e3 * torch.eye(d, dtype=torch.float64)
    without = {"replace": -towards, "zero_out": 0 * towards[:1]}[reader.neighbours]
    origin = -clip if reader.neighbours == "replace" else 0.0
    sides = [
        torch.cat([gradients(reader, rows, d, multiplier, source(), work) for _ in range(draws // d)])
        for rows in (without, towards)
    ]
    return Outputs(*((side - origin) / reader.sensitivity for side in sides))


@lru_cache
def drawn(neighbours: str, mu: float, draws: int) -> tuple[list[Claim], Outputs]:
    reader = NoisyGradient(0.7, neighbours=neighbours)  # type: ignore[arg-type]
    return reader.claims(ONCE, 500, 1 / mu), from_reader(reader, 1 / mu, draws)


@pytest.mark.parametrize(
    ("neighbours", "mu", "draws"),
    [
        pytest.param("replace", 2.0, SOME, id="replace-2.0"),
        *(pytest.param("replace", mu, MANY, id=f"replace-{mu}-many") for mu in (1.0, 2.0, 4.0)),
        # a pass for every example takes time; noise ten percent short would escape with probability 1e-8
        pytest.param("zero_out", 2.0, SOME // 2, id="zero_out-2.0"),
    ],
)
def test_a_gaussian_reader_loses_no_more_than_it_claims(neighbours: str, mu: float, draws: int) -> None:
    claims, outputs = drawn(neighbours, mu, draws)
    assert claimed_mu(claims) == pytest.approx(mu)
    assert 0.9 * mu < mu_lost(outputs) <= claimed_mu(claims)


@pytest.mark.parametrize(("mu", "draws"), [(4.0, SOME), (1.0, MANY), (4.0, MANY)])
def test_noise_ten_percent_short_is_flagged(mu: float, draws: int) -> None:
    reader = NoisyGradient(0.7)
    outputs = from_reader(reader, 1 / mu, draws, lambda: Weak(SystemNoise(), 1.1))
    assert mu_lost(outputs) > claimed_mu(reader.claims(ONCE, 500, 1 / mu))


def test_a_claim_for_half_the_sensitivity_is_flagged() -> None:
    _, outputs = drawn("replace", 2.0, SOME)  # noise for 2C ...
    halved = NoisyGradient(0.7).claims(ONCE, 500, 2 * (1 / 2.0))  # ... claimed as if it were for C
    assert mu_lost(outputs) > claimed_mu(halved)


def test_two_reads_cost_what_two_reads_lose() -> None:
    reader, mu, twice = NoisyGradient(0.7), 2.0, LocalWork(2, None, None)
    outputs = from_reader(reader, 1 / mu, MANY, work=twice)
    lost = mu_lost(outputs)
    assert 0.9 * math.sqrt(2) * mu < lost <= claimed_mu(reader.claims(twice, 500, 1 / mu))
    assert lost > claimed_mu(reader.claims(ONCE, 500, 1 / mu))  # the twin: an event composed once


def test_fixed_batches_lose_one_read_per_epoch() -> None:
    reader, mu, work = NoisyGradient(0.7, sampling="fixed_batches"), 2.0, LocalWork(1, None, 250)
    outputs = from_reader(reader, 1 / mu, MANY, work=work)
    # the other batch's noise is in the sum as well: only a lower bound that is loose by sqrt 2
    assert mu / math.sqrt(2) * 0.9 < mu_lost(outputs) <= claimed_mu(reader.claims(work, 500, 1 / mu))


def test_a_laplace_reader_loses_no_more_than_it_claims() -> None:
    reader, epsilon = NoisyGradient(0.7, LaplaceNoise()), 2.5
    claim = reader.claims(ONCE, 500, 1 / epsilon)[0]
    claimed = best(claim.event, 0, claim.neighbours).epsilon
    lost = epsilon_lost(from_reader(reader, 1 / epsilon, MANY), threshold=1.0, delta=0)
    assert 0.9 * epsilon < lost <= claimed
    weak = from_reader(reader, 1 / epsilon, MANY, lambda: Weak(SystemNoise(), 1.1))
    assert epsilon_lost(weak, threshold=1.0, delta=0) > claimed


def test_a_poisson_reader_loses_no_more_than_it_claims() -> None:
    # at this delta the best threshold is 0.83: that is where sampling and noise matter equally
    reader = NoisyGradient(0.7, sampling="poisson", rate=0.5, neighbours="zero_out")
    multiplier, delta, threshold = 0.4, 0.2567, 0.832
    claim = reader.claims(ONCE, 500, multiplier)[0]
    claimed = best(claim.event, delta, claim.neighbours).epsilon
    lost = epsilon_lost(from_reader(reader, multiplier, MANY), threshold, delta)
    assert 0.8 * claimed < lost <= claimed
    weak = from_reader(reader, multiplier, SOME, lambda: Weak(SystemNoise(), 1.1))
    assert epsilon_lost(weak, threshold, delta) > claimed
    unsampled = replace(reader, rate=1.0)  # the twin: everybody is read, a sample is claimed
    assert epsilon_lost(from_reader(unsampled, multiplier, FEW), threshold, delta) > claimed


# ---------------------------------------------------------------- clients, through an uplink


def from_client(uplink: Uplink, multiplier: float, draws: int, source: NoiseSource) -> Outputs:
    """One client's upload, far beyond the clip on either side; its children draw anew."""
    noise, radius = uplink.noise(), 0.3
    assert noise is not None
    origin = -radius if noise.neighbours == "replace" else 0.0
    far = {"w": torch.tensor([1e3], dtype=torch.float64)}
    other = {"w": far["w"] * (-1 if noise.neighbours == "replace" else 0)}
    grant = Grant(0, 1, 1, source, multiplier)
    sides = [torch.cat([uplink.encode(x, grant)["w"] for _ in range(draws)]) for x in (other, far)]
    return Outputs(*((side - origin) / noise.sensitivity(uplink.bound(1)) for side in sides))


def from_server(uplink: Uplink, multiplier: float, draws: int, source: NoiseSource) -> Outputs:
    """The mean over two clients, one of which is replaced or not counted."""
    noise, expected, zero = uplink.noise(), 2.0, {"w": torch.zeros(1, dtype=torch.float64)}
    assert noise is not None
    far, still = ({"w": torch.tensor([x], dtype=torch.float64)} for x in (1e3, 0.0))
    gone: dict[str, dict[int, Any]] = {
        "replace": {0: still, 1: {"w": -far["w"]}},
        "zero_out": {0: still},
    }
    origin = -0.3 if noise.neighbours == "replace" else 0.0
    sides = []
    for crowd in (gone[noise.neighbours], {0: still, 1: far}):
        sent = {k: uplink.encode(x, Grant(k, 1, 1, source)) for k, x in crowd.items()}
        means = [uplink.receive(sent, zero, [1.0, 1.0], expected, multiplier, source).mean["w"] for _ in range(draws)]
        sides.append(torch.cat(means) * expected)
    return Outputs(*((side - origin) / noise.sensitivity(uplink.bound(1)) for side in sides))


def gaussian(neighbours: Any, *, central: bool) -> Uplink:
    clip, noise = Clip(0.3), Noise(GaussianNoise(), neighbours)
    client: tuple[Stage, ...] = (clip,) if central else (clip, noise)
    return Uplink(client, (noise,) if central else ())


def claims_of(uplink: Uplink, multiplier: float) -> list[Claim]:
    return uplink.claims(multiplier, Everyone().amplify)


def audit_uplink(neighbours: str, central: bool, mu: float, draws: int, factor: float) -> tuple[float, float]:
    """(mu that honest noise loses, mu that noise divided by `factor` loses)."""
    uplink, release = gaussian(neighbours, central=central), from_server if central else from_client
    assert claimed_mu(claims_of(uplink, 1 / mu)) == pytest.approx(mu)
    return (
        mu_lost(release(uplink, 1 / mu, draws, SystemNoise())),
        mu_lost(release(uplink, 1 / mu, draws, Weak(SystemNoise(), factor))),
    )


@pytest.mark.parametrize(
    ("neighbours", "central"),
    [("replace", False), ("zero_out", False), ("replace", True), ("zero_out", True)],
)
def test_every_uplink_loses_no_more_than_it_claims(neighbours: str, central: bool) -> None:
    # every draw is a call of its own here, so there are fewer: a twin whose noise is divided by 1.25 escapes with
    # probability 2e-9, and honest noise shows less than 3.3 with probability 1e-9
    honest, weak = audit_uplink(neighbours, central, mu=4.0, draws=FEW, factor=1.25)
    assert 3.3 < honest <= 4 < weak


def test_noise_three_percent_short_is_flagged_by_many_more_draws() -> None:
    """It escapes with probability below 1e-20: the bound lies ten of its deviations above the claim."""
    reader, mu, draws = NoisyGradient(0.7), 2.0, 4 * MANY
    claimed = claimed_mu(reader.claims(ONCE, 500, 1 / mu))
    assert mu_lost(from_reader(reader, 1 / mu, draws)) <= claimed
    assert mu_lost(from_reader(reader, 1 / mu, draws, lambda: Weak(SystemNoise(), 1.03))) > claimed
