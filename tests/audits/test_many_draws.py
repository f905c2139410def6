"""Many draws of one call of a gate: what a call for each would give, and no noise that two of them share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sordino import config, tree
from sordino.audits import clients
from sordino.audits.gates import CAUGHT, HOLDS, audit
from sordino.audits.noise_sources import Silent, Weak
from sordino.privacy.noise import GaussianNoise, discrete_gaussian, rounded_laplace
from sordino.privacy.noise.sources import Counter
from sordino.privacy.uplink.stages import Clip, Noise
from sordino.runs.simulation import simulated
from sordino.types import Grant, Params


def stand(words: list[str]) -> clients.AttackerPosition:
    parts = simulated(config.load({}, words))
    return clients.AttackerPosition(parts.setup, parts.federation(":memory:", "audit"), 0, None)


AT_CLIENTS = ["algorithm=whole_update", "multiplier=0.5", 'model={name="mlp",hidden=4}']
AT_THE_SERVER = [
    "algorithm=dp_prox",
    "multiplier=0.5",
    'cohort={name="poisson",rate=0.5}',
    'model={name="mlp",hidden=4}',
]


def test_a_thousand_draws_of_one_call_are_what_a_call_for_each_gives() -> None:
    """Where the noise is a fixed number of its scales, to the last bit; where it is drawn, in its size, and no two
    draws alike.
    """
    place = stand(AT_CLIENTS)
    once = tree.flat(place.uplink.encode(place.upload(1e3), replace(place.grant, source=Silent(2.0)))).double()
    release = place.encoded(1e3)
    quiet, seen = release(Silent(2.0)), release(Counter(3))
    assert quiet.shape == (clients.MANY, len(once))
    assert bool((quiet == once).all())
    assert len(torch.unique(seen[:, 0])) == clients.MANY
    assert float(seen.std(0).mean()) == pytest.approx(float((once - release(Silent())[0]).mean()) / 2, rel=0.01)
    alike = torch.corrcoef(seen.T[:20]).fill_diagonal_(0).abs()
    assert float(alike.max()) < 0.2  # six deviations: numbers of a draw are independent, too


@pytest.mark.slow
def test_hidden_coins_fall_in_no_order() -> None:
    """A quarter of the draws chooses a threshold that the others are held against: both must be alike."""
    far = stand(AT_THE_SERVER).summed(1e3, 0.5)(Counter(4))[:, 0]
    here = (far > far.median()).double()
    assert 0.3 < float(here[: clients.MANY // 4].mean()) < 0.7


ON_A_GRID = [
    *('partition={scheme="iid",clients=4}', "algorithm=fedavg", "algorithm.local_steps=1", "privacy={}", "rounds=1"),
    'uplink={client=[{name="clip",radius=0.5},"secagg"],server=[{name="noise",multiplier=1,neighbours="zero_out"}]}',
]


@pytest.mark.parametrize("law", [discrete_gaussian, rounded_laplace])
def test_noise_on_a_grid_of_a_silent_source_is_a_step_at_most(law: Callable[..., NDArray[np.int64]]) -> None:
    """Words that are all small would be 45 scales away, which a Gaussian never accepts."""
    for scale in (1.5, 4096.0, 1e9):
        assert np.abs(law(Silent(), 100, scale)).max() <= 1


def test_a_twin_on_a_grid_has_less_noise() -> None:
    """Words are no smaller in a twin, so that its scale is, though the grid becomes too coarse for a promise."""
    place = stand(ON_A_GRID)
    release = place.summed(0.0, 1.0)
    whole, less = (float(release(source).std()) for source in (Counter(1), Weak(Counter(1), 1e4)))
    assert less == pytest.approx(whole / 1e4, rel=0.5)


@pytest.mark.slow
def test_an_audit_of_noise_on_a_grid_ends_and_catches_a_twin() -> None:
    found = [audit(config.load({}, ON_A_GRID), trials=300, twin=twin, short=0.9).verdict for twin in (False, True)]
    assert found == [HOLDS, CAUGHT]


def own(self: Clip, x: Params, bound: object, grant: object) -> Params:
    return tree.map(lambda leaf: leaf + torch.randn(leaf.shape), x)


def counted(self: Noise, x: Params, bound: object, grant: Grant) -> Params:
    return tree.map(lambda leaf: leaf + float(grant.source.noisy(GaussianNoise(), torch.zeros(1), 1.0)), x)


@pytest.mark.parametrize(("owner", "broken"), [(Clip, own), (Noise, counted)])
def test_a_gate_that_would_give_all_draws_the_same_noise_makes_one_at_a_time(
    owner: type, broken: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise of its own, outside its source; and a source's noise made into a plain number."""
    monkeypatch.setattr(owner, "encode", broken)
    release = stand(AT_CLIENTS).encoded(1.0)
    assert len(release(Counter(1))) == 1
    assert not torch.equal(release(Counter(1)), release(Counter(2)))
