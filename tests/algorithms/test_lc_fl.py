"""LC-FL, LDP-FL and CDP-FL (Sun, Ding and Cheng 2024) as whole runs: what they draw, what they send, what their
receipts say, and who can be told apart all the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from sordino import tree
from sordino.accounting.events import Event, Laplace, from_json
from sordino.algorithms.fedavg import FedAvg, Server, Up
from sordino.algorithms.lc_fl import cdp_fl, lc_fl
from sordino.engine import wire
from sordino.errors import ConfigError, NonFiniteModel
from sordino.privacy.noise.sources import Counter, SystemNoise
from sordino.privacy.uplink import Uplink, rules
from sordino.privacy.uplink.coordinate_laplace import ClipCoordinates, CoordinateLaplace, Flagged
from sordino.privacy.uplink.fixed_point import Layout, Quantise
from sordino.privacy.uplink.stages import Weigh
from sordino.runs.run import start
from sordino.types import Bound, Grant, NoiseSource, Received
from tests.algorithms.lc_fl_runs import EVERYONE, LC, Rounds, grant, made, mean_of, rows_of, slow


# flags ----------------------------------------------------------------------------------------------------------------
def turned(flip: float, draws: int) -> float:
    """How often one client's round has noise: its flag is tossed by the client, then by the server."""
    _, _, flag = lc_fl(flip=flip).uplink.client
    (stage,) = lc_fl(flip=flip).uplink.server
    assert isinstance(stage, CoordinateLaplace)
    zero, noised = {"w": torch.zeros(1)}, 0
    for i in range(draws):
        upload = flag.encode(zero, Bound(), grant(Counter(2 * i)))
        noised += bool(stage.release(upload, [1.0], [], 1.0, Counter(2 * i + 1)).x["w"])
    return noised / draws


@pytest.mark.one_fast
@pytest.mark.parametrize(("flip", "chance"), [(0.5, 0.75), (0.01, 0.505)])
def test_newflags_are_as_likely_as_published(flip: float, chance: float) -> None:
    """600 draws, five deviations: a false alarm in 1.7 million. The other reading lies 12 deviations away."""
    found = turned(flip, 600)
    assert abs(found - chance) < 5 * math.sqrt(chance * (1 - chance) / 600)
    assert abs(found - (1.255 - chance)) > 0.1


@slow
@pytest.mark.parametrize(("flip", "chance"), [(0.5, 0.75), (0.01, 0.505)])
def test_newflags_of_many_draws(flip: float, chance: float) -> None:
    """15,000 draws, five deviations as above: a chance that is 0.04 off is seen."""
    assert turned(flip, 15_000) == pytest.approx(chance, abs=5 * math.sqrt(chance * (1 - chance) / 15_000))


@pytest.mark.one_fast
@pytest.mark.parametrize("target", ["aggregate_any", "per_client"])
def test_a_flag_of_one_stays_one_and_a_zero_stays_where_nobody_turns_it(target: Any) -> None:
    for wants, flip, noisy in ((1.0, 0.0, True), (1.0, 0.5, True), (0.0, 0.0, False), (0.0, 1.0, True)):
        uplink = lc_fl(wants=wants, flip=flip, noise_target=target).uplink
        found = [mean_of(uplink, [torch.zeros(3)] * 2, Counter(i)) for i in range(30)]
        assert all((x != 0).all() if noisy else (x == 0).all() for x in found)


def test_flags_go_up_and_nothing_of_them_comes_down() -> None:
    """An upload is one number longer than without them; what goes down is, bit for bit, as long as FedAvg's, and tells
    the model alone.
    """
    run, plain = (Rounds(made(algorithm, cohort=EVERYONE, rounds=4)) for algorithm in (LC, {"name": "fedavg"}))
    flags = []
    for t in range(4):
        assert isinstance(run.down[t], Server)
        assert wire.schema(run.down[t]) == wire.schema(plain.down[t])
        assert run.received[t].public == ()
        for upload, other in zip(run.up[t].values(), plain.up[t].values(), strict=True):
            assert isinstance(upload, Flagged)
            assert tree.size(upload) == tree.size(other) + 1
        flags.append([int(upload.flag) for upload in run.up[t].values()])
    assert {flag for row in flags for flag in row} == {0, 1}
    assert len({tuple(row) for row in flags}) == 4  # tossed anew in every round
    for t in range(1, 4):  # the model that goes down is the last one and the mean, and no more
        step = tree.axpy(1.0, run.received[t - 1].mean.delta, run.down[t - 1].x)
        assert all(torch.equal(a, b) for a, b in zip(tree.leaves(step), tree.leaves(run.down[t].x), strict=True))


def test_an_upload_at_its_bound_is_not_dropped_for_its_flag() -> None:
    """The server admits the flag beside the clipped coordinates: with few of them it is most of an upload's length."""
    uplink = lc_fl(wants=1.0, beta=1e-9).uplink
    found = mean_of(uplink, [torch.full((5,), 9.0), torch.full((5,), 9.0)], Counter(1))
    assert torch.allclose(found, torch.full((5,), 0.1), atol=1e-6)
    # a cheat is dropped as before
    cheat: dict[int, Any] = {0: Flagged({"w": torch.full((5,), 2.0)}, torch.ones(1))}
    nothing = uplink.receive(cheat, {"w": torch.zeros(5)}, [1.0], 1.0, None, Counter(1)).mean["w"]
    assert torch.allclose(nothing, torch.zeros(5), atol=1e-6)


# weights --------------------------------------------------------------------------------------------------------------
def test_three_clients_of_three_sizes_have_the_mean_of_fedavg() -> None:
    uplink, sizes, models = Uplink((Weigh(),)), [1, 2, 3], [6.0, 3.0, 1.0]
    weights = [uplink.weight(n, 3) for n in sizes]
    total = math.fsum(weights)
    assert abs(math.fsum(weight / total for weight in weights) - 1) < 1e-12
    sent = {
        k: uplink.encode({"w": torch.full((4,), x)}, grant(Counter(0), n, 3))
        for k, (n, x) in enumerate(zip(sizes, models, strict=True))
    }
    found = uplink.receive(sent, {"w": torch.zeros(4)}, weights, total, None, Counter(0)).mean["w"]
    assert found.tolist() == [2.5] * 4
    misprinted = sum(6 / n * x for n, x in zip(sizes, models, strict=True))
    assert misprinted == 47.0


@dataclass(frozen=True)
class ReciprocalPrinted(FedAvg):
    """The printed sum of (1 / w_i) M_i, for clients that are equally large."""

    reads_each: ClassVar[bool] = True

    def update(self, s: Server, r: Received[Up], home: Any) -> Server:
        models = [tree.add(s.x, up.delta) for up in r.each]
        grown = tree.zeros_like(s.x)
        for model in models:
            grown = tree.axpy(float(len(models)), model, grown)
        return Server(grown, s.round + 1)


@pytest.mark.slow
def test_the_misprinted_weights_never_pass_silently(tmp_path: Path) -> None:
    """With six equal clients the model grows 36 times a round. The same run with the right weights learns."""
    table = {"lr": 0.5, "local_steps": 2, "batch_size": 32}
    many: dict[str, Any] = {"rounds": 30, "cohort": EVERYONE, "evaluation": {"every": 10, "final": 1}}
    name = f"{ReciprocalPrinted.__module__}:ReciprocalPrinted"
    with pytest.raises(NonFiniteModel) as caught:
        start(made({"name": name, **table}, **many), tmp_path / "printed")
    assert caught.value.code == "model-not-finite"
    assert re.search(r"round \d+", caught.value.what)
    right = start(made({"name": "fedavg", **table}, **many), tmp_path / "right")
    assert right.metrics[-1].accuracy > 0.7


# noise ----------------------------------------------------------------------------------------------------------------
def laplace(x: Tensor, beta: float) -> bool:
    """Mean size within 1% and variance within 3% of Laplace(beta): 10 and 13 deviations at a million draws."""
    x = x.double()
    size, spread = float(x.abs().mean()), float((x**2).mean())
    return abs(size / beta - 1) < 0.01 and abs(spread / (2 * beta**2) - 1) < 0.03


@pytest.mark.slow
@pytest.mark.parametrize("source", [Counter(5), SystemNoise()], ids=["counter", "system"])
def test_fifty_equal_clients_as_published(source: NoiseSource) -> None:
    """beta = 2 * 0.1 * max w / 10 = 4e-4 in the mean, whether flags decide or not; a tenth more or less would be seen,
    and so would other noise.
    """
    million = 1_000_000
    for uplink in (lc_fl(wants=1.0).uplink, cdp_fl().uplink):
        assert laplace(mean_of(uplink, [torch.zeros(million)] * 2, source), 1e-2)
    stage = CoordinateLaplace()
    noise = stage.release({"w": torch.zeros(million)}, [1.0] * 50, [], 1.0, source)["w"] / 50
    assert laplace(noise, 4e-4)
    assert not laplace(noise, 4.4e-4)
    assert not laplace(torch.randn(million) * 4e-4 * math.sqrt(2), 4e-4)


def test_the_largest_weight_decides_and_beta_may_be_given() -> None:
    zeros = {"w": torch.zeros(1_000_000)}
    weights = [1.0, 0.5, 0.25, 0.25]  # in the mean: 0.5, 0.25, 0.125, 0.125
    assert laplace(
        CoordinateLaplace(0.1, 10.0).release(zeros, weights, [], 1.0, Counter(1))["w"] / 2, 2 * 0.1 * 0.5 / 10
    )
    assert laplace(CoordinateLaplace(beta=0.03).release(zeros, weights, [], 1.0, Counter(2))["w"] / 2, 0.03)
    steps = CoordinateLaplace(beta=0.03).release(zeros, weights, [], 1000.0, Counter(2))["w"] / 2
    assert laplace(steps, 30.0)  # on a fixed point of 1,000 steps a unit


def test_a_client_alone_in_its_cohort_has_the_noise_that_is_claimed() -> None:
    """The claim is of a cohort that weighs at least 3; who is left when the others drop out has no less noise."""
    stage = CoordinateLaplace(beta=0.03).fitted(bound := 0.5, 3.0)
    event, _, _ = stage.promise()
    assert isinstance(event, Laplace)
    alone = stage.release({"w": torch.zeros(1_000_000)}, [1.0], [], 1.0, Counter(3))["w"]
    assert laplace(alone, event.scale * 2 * bound)


@pytest.mark.parametrize("first", ["clip", "weight"])
def test_a_light_client_adds_no_more_than_the_noise_of_its_round_is_for(
    first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round of clients that weigh a tenth of the largest has a tenth of the noise. A weight before the clip, which is
    refused, takes nothing from what a client adds: it loses ten times what is claimed."""
    monkeypatch.setattr(rules, "PER_COORDINATE_RULES", ())
    order = (ClipCoordinates(0.1), Weigh()) if first == "clip" else (Weigh(), ClipCoordinates(0.1))
    uplink = Uplink(order, (CoordinateLaplace(0.1, 1.0),)).fitted(4, 1.0)
    stage = uplink.per_coordinate
    assert stage is not None
    event, _, _ = stage.promise()
    assert isinstance(event, Laplace)
    light = Grant(0, size=10, largest=100, source=Counter(0))
    sent = [uplink.encode({"w": torch.full((4,), sign * 1e6)}, light)["w"] for sign in (1, -1)]
    lost = float((sent[0] - sent[1]).abs().sum()) / stage._scale([uplink.weight(10, 100)])
    assert lost == pytest.approx((1 if first == "clip" else 10) / event.scale, rel=1e-4)


@pytest.mark.parametrize(("radius", "layout"), [(0.1, Layout(bits=8)), (10.0, Layout())], ids=["rounded", "cut"])
def test_integers_of_a_light_client_lose_no_more_than_is_claimed(radius: float, layout: Layout) -> None:
    """Rounding, and the end of the range, come behind the weight: a client of a twentieth adds more than a twentieth of
    the bound. Under noise as wide as the largest weight of its round, as of real numbers, it would lose too much.
    """
    client = (ClipCoordinates(radius), Weigh(), Quantise(layout))
    uplink = Uplink(client, (CoordinateLaplace(radius, 1.0),)).fitted(4, 0.05)
    stage = uplink.per_coordinate
    assert stage is not None
    event, _, _ = stage.promise()
    assert isinstance(event, Laplace)
    light = Grant(0, size=50, largest=1000, source=Counter(0))
    sent = [uplink.encode({"w": torch.full((4,), sign * 1e6)}, light)["w"] for sign in (1, -1)]
    moved = float((sent[0] - sent[1]).abs().sum()) / uplink.scale
    assert moved / stage._scale([0.05]) <= 1 / event.scale
    assert moved / replace(stage, _grid=False)._scale([0.05]) > 1.4 / event.scale


@pytest.mark.slow
def test_noise_of_single_uploads_is_nearly_gone_in_their_mean() -> None:
    """Deviation beta sqrt(2 * 0.75 / 50) = 0.173 beta, with 0.75 of 50 flags set: over 60 rounds within 5 deviations, 5
    %. Added once it would be 1.414 beta.
    """
    uplink, zeros = lc_fl(noise_target="per_client").uplink, [torch.zeros(300)] * 50
    variance = math.fsum(float((mean_of(uplink, zeros, Counter(t)).double() ** 2).mean()) for t in range(60)) / 60
    assert math.sqrt(variance) == pytest.approx(math.sqrt(2 * 0.75 / 50) * 4e-4, rel=0.05)


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("local_epsilon", 0.0, "response-epsilon"),
        ("local_epsilon", -1.0, "response-epsilon"),
        ("label_epsilon", 0.0, "response-epsilon"),
        ("central_epsilon", 0.0, "not-positive"),
        ("central_epsilon", math.nan, "wrong-type"),
        ("central_epsilon", math.inf, "wrong-type"),
        ("beta", 0.0, "not-positive"),
        ("flip", 1.01, "probability-out-of-range"),
        ("wants", -0.01, "probability-out-of-range"),
        ("max_abs", 0.0, "clip-not-positive"),
        ("noise_target", "some", "wrong-type"),
    ],
)
def test_numbers_that_are_none(field: str, value: Any, code: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        start(made(LC | {field: value}), tmp_path / "run")
    assert caught.value.code == code
    assert str(value) in caught.value.what
    assert field.removeprefix("local_").removeprefix("central_").removeprefix("label_").removeprefix("max_abs") in str(
        caught.value
    )
    assert not (tmp_path / "run").exists()


def finished_with(receipt: Mapping[str, Any], unit: str, adversary: str) -> Event:
    return from_json(rows_of(receipt)[unit, adversary]["event"])
