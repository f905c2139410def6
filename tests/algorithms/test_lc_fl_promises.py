"""What LC-FL and CDP-FL are worth against somebody who looks, as published and with rigorous noise."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sordino import keys
from sordino.accounting.accountants import epsilon_by, sampled_multiplier
from sordino.accounting.events import DrawnOnce, Event, Gaussian, Laplace, Poisson, Repeat, from_json
from sordino.algorithms.fedavg import FedAvg
from sordino.algorithms.lc_fl import cdp_fl, lc_fl
from sordino.audits.lower_bounds import Outputs, epsilon_lost, tuned
from sordino.data.dataset import Dataset, Split
from sordino.errors import UnsoundGuarantee
from sordino.privacy.noise.sources import Counter
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.coordinate_laplace import FLAGGED, OF_ONE_UPLOAD, UNBOUNDED, CoordinateLaplace
from sordino.privacy.uplink.stages import Noise
from sordino.receipts.verify import verify
from sordino.runs import declared_data
from sordino.runs.play import Ended
from sordino.runs.run import start
from sordino.runs.simulation import simulated
from tests.algorithms.lc_fl_runs import EVERYONE, LC, POISSON, made, mean_of, rows_of, slow
from tests.laws.traces import parts_of


# receipts -------------------------------------------------------------------------------------------------------------
@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """In place of the digits: noise of some shape."""

    def give(*shape: int) -> None:
        rng = np.random.default_rng(0)

        def split(n: int) -> Split:
            return Split(rng.integers(0, 256, (n, *shape), dtype=np.uint8), np.arange(n, dtype=np.int64) % 10)

        half = (0.5,) * shape[-1]
        dataset = Dataset("pictures", "image", 10, split(40), split(20), half, half)
        monkeypatch.setattr(declared_data, "SOURCES", {"digits": lambda **_: dataset})

    return give


STRIDE: dict[str, Any] = {"model": {"name": "cnn_stride"}, "partition": {"scheme": "iid", "clients": 2}, "rounds": 2}


QUICK: dict[str, Any] = {"local_steps": 1, "batch_size": 8}


def numbers_in(value: Any) -> Iterator[float]:
    if isinstance(value, Mapping | list):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from numbers_in(part)
    elif isinstance(value, int | float):
        yield float(value)
    elif isinstance(value, str) and not re.fullmatch(r"[0-9a-f-]{16,}", value):  # digests are no numbers
        yield from (float(found) for found in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])", value.replace(",", "")))


@pytest.mark.parametrize(("shape", "image"), [((28, 28, 1), 3920.0), ((32, 32, 3), 15360.0)])
def test_what_lc_fl_is_worth(
    shape: tuple[int, ...], image: float, pictures: Callable[..., None], tmp_path: Path
) -> None:
    """5 for a pixel, thousands for an image, nothing for an example or a client; and nowhere 5 + 10."""
    pictures(*shape)
    made_ = start(made(LC | QUICK, cohort=EVERYONE, **STRIDE), tmp_path / "run")
    receipt = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert receipt == made_.receipt.to_json()
    rows = rows_of(receipt)
    assert len(rows) == len(receipt["guarantees"]) == 12  # four units, three observers
    for adversary in ("server", "participants", "public"):
        pixel = rows["pixel", adversary]
        assert pixel["accountants"]["pure"] == 5.0
        assert pixel["epsilon"] == pytest.approx(5.0, abs=1e-4)
        assert rows["image", adversary]["epsilon"] == image
        assert rows["image", adversary]["event"] == rows["image", "server"]["event"]  # of the stronger one, never a sum
        assert rows["example", adversary]["epsilon"] == rows["client", adversary]["epsilon"] == "inf"
        assert rows["client", adversary]["status"] == rows["example", adversary]["status"] == "none"
    assert FLAGGED in rows["client", "participants"]["because"]
    assert 15.0 not in set(numbers_in(receipt))
    assert {5.0, image} <= set(numbers_in(receipt))
    assert not verify(tmp_path / "run")


def test_an_honest_sum_of_observers_would_be_seen() -> None:
    """The search above finds a 15 wherever it could be printed."""
    for place in ({"epsilon": 15}, {"because": ["a total of 15.0"]}, [["eps = 15, of which 5"]], "budget: 15"):
        assert 15.0 in set(numbers_in(place))
    assert 15.0 not in set(numbers_in({"run": "00150015-15150015", "x": "0.15 and 1.15 and 15.5 and 150 and a15"}))


def test_cdp_fl_costs_its_epsilon_for_every_coordinate_and_every_round(
    pictures: Callable[..., None], tmp_path: Path
) -> None:
    """289,380 a round for 28,938 coordinates, and nothing at all against the server."""
    pictures(28, 28, 1)
    for rounds in (1, 3):
        ended = start(
            made({"name": "cdp_fl", **QUICK}, cohort=EVERYONE, **{**STRIDE, "rounds": rounds}), tmp_path / f"{rounds}"
        )
        rows = rows_of(ended.receipt.to_json())
        assert ended.receipt.guarantees[0].unit == "example"  # no pixel, no image: nothing protects these
        assert rows["client", "server"]["epsilon"] == "inf"
        for adversary in ("participants", "public"):
            assert rows["client", adversary]["epsilon"] == pytest.approx(rounds * 289_380.0, rel=1e-9)
            assert rows["client", adversary]["status"] == "conditional"


def promised(algorithm: FedAvg, coordinates: int, least: float) -> tuple[Event, str, tuple[str, ...]]:
    stage = algorithm.uplink.fitted(coordinates, least).per_coordinate
    assert stage is not None
    return stage.promise()


def test_what_the_noise_of_the_server_promises() -> None:
    event, status, _ = promised(cdp_fl(), 100, 20.0)
    assert isinstance(event, Laplace)
    assert 1 / event.scale == pytest.approx(1000.0)
    assert status == "conditional"
    # a scale for the mean, and a cohort that weighs 20: 2 * 0.1 * 100 / (0.01 * 20)
    event, _, _ = promised(cdp_fl(beta=0.01), 100, 20.0)
    assert isinstance(event, Laplace)
    assert 1 / event.scale == pytest.approx(100.0)
    assert promised(cdp_fl(), 100, 0.0)[0] == promised(cdp_fl(), 100, 20.0)[0]  # also where a client may be empty
    for broken, why in (
        (cdp_fl(max_abs=None), UNBOUNDED),
        (lc_fl(max_abs=None), UNBOUNDED),
        (lc_fl(), FLAGGED),
        (lc_fl(wants=1.0, flip=1.0), FLAGGED),
    ):
        _, status, because = promised(broken, 100, 20.0)
        assert (status, because[0]) == ("none", why)
    each = Uplink((*cdp_fl().uplink.client,), (CoordinateLaplace(target="per_client"),))
    _, status, because = promised(FedAvg(0.1, None, 1, 8, uplink=each), 100, 20.0)
    assert (status, because[0]) == ("none", OF_ONE_UPLOAD)


# rigorous -------------------------------------------------------------------------------------------------------------
RIGOROUS = LC | {"variant": "rigorous", "local_epsilon": 10.0, "per": "image", "label_epsilon": 2.0, "local_steps": 2}


BUDGET: dict[str, Any] = {"rounds": 2, "cohort": POISSON, "privacy": {"epsilon": 5.0, "delta": 5e-4}}


@pytest.fixture(scope="module")
def rigorous(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return start(made(RIGOROUS, **BUDGET), tmp_path_factory.mktemp("lc_fl") / "run")


@pytest.mark.slow
def test_rigorous_lc_fl_makes_two_promises(rigorous: Ended) -> None:
    """To the server about images and examples, by their answers; to everybody else about whole clients, by noise."""
    rows = rows_of(rigorous.receipt.to_json())
    for unit, most in (("image", 10.0), ("example", 12.0)):
        row = rows[unit, "server"]
        assert row["neighbours"] == "replace"
        assert row["accountants"]["pure"] == pytest.approx(most)
        assert row["epsilon"] < most
        assert row["status"] == "proved"
        assert from_json(row["event"]) == DrawnOnce(f"responses of {unit}", from_json(row["event"]["event"]))
    client = rows["client", "participants"]
    assert client["neighbours"] == "zero_out"
    assert client["status"] == "proved"
    assert 4.9 < client["epsilon"] <= 5.0
    event = from_json(client["event"])
    assert isinstance(event, Repeat)
    assert event.count == 2
    assert isinstance(event.event, Poisson)
    assert isinstance(event.event.event, Gaussian)
    assert rows["client", "server"]["epsilon"] == "inf"
    assert 17.0 not in set(numbers_in(rigorous.receipt.to_json()))  # 12 to one observer and 5 to another are no 17
    assert not verify(rigorous.folder)


@pytest.mark.parametrize("name", ["lc_fl", "cdp_fl"])
def test_rigorous_noise_needs_a_budget_and_is_amplified_by_hidden_cohorts_only(name: str, tmp_path: Path) -> None:
    table: dict[str, Any] = {"name": name, "variant": "rigorous"}
    granted: dict[str, Any] = {"privacy": {"epsilon": 5.0, "delta": 1e-3}}
    for own, tables, code in (
        (table, {"cohort": POISSON}, "mechanism-without-budget"),
        ({"name": name}, {"privacy": {"epsilon": 5.0, "delta": 1e-5}}, "budget-without-mechanism"),  # published noise
    ):
        with pytest.raises(UnsoundGuarantee) as caught:
            start(made(own, **tables), tmp_path / "run")
        assert caught.value.code == code
        assert not (tmp_path / "run").exists()
    for cohort, hidden in ((EVERYONE, False), (POISSON, True)):
        algorithm = simulated(made(table, **granted, cohort=cohort)).setup.algorithm
        offer = algorithm.uplink.offer(0.5, hidden)
        assert offer is not None
        assert (offer.subject.neighbours, offer.rate, offer.everyone_pays) == (
            "zero_out",
            0.5 if hidden else 1.0,
            hidden,
        )


CENTRAL = {
    20: {0.5: 47.0, 1: 15.12, 2: 5.689, 4: 2.401, 8: 1.077},
    100: {0.5: 137.2, 1: 39.98, 2: 14.28, 4: 5.869, 8: 2.597},
}


@pytest.mark.one_fast
@pytest.mark.parametrize(
    ("rounds", "z", "epsilon"),
    [
        pytest.param(T, z, epsilon, marks=[] if (T, z) == (20, 1) else [slow])
        for T, row in CENTRAL.items()
        for z, epsilon in row.items()
    ],
)
def test_what_noise_of_half_the_clients_is_worth(rounds: int, z: float, epsilon: float) -> None:
    event = Repeat(Poisson(0.5, Gaussian(z)), rounds)
    assert epsilon_by("pld", event, 1e-5, "zero_out") == pytest.approx(epsilon, rel=0.01)
    assert epsilon_by("rdp", event, 1e-5, "zero_out") > epsilon


@slow
@pytest.mark.parametrize(
    ("epsilon", "rounds", "z"), [(10, 20, 1.3243), (5, 20, 2.2086), (1, 20, 8.5448), (10, 100, 2.6153)]
)
def test_how_much_noise_a_budget_needs(epsilon: float, rounds: int, z: float) -> None:
    assert sampled_multiplier(epsilon, 1e-5, 0.5, rounds, "pld") == pytest.approx(z, rel=0.01)


# attack ---------------------------------------------------------------------------------------------------------------
NUMBERS = 4  # of the attacked model


DRAWS = 400_000


def consecutive(direction: float) -> Tensor:
    """What an onlooker sees of a published round, model after model: four clients, of whom the first pulls every
    coordinate one way.

    The noise is drawn for each coordinate alone, so one release of a long model is many rounds of a short one.
    """
    uploads = [torch.full((DRAWS * NUMBERS,), direction), *[torch.zeros(DRAWS * NUMBERS)] * 3]
    return mean_of(lc_fl(wants=1.0).uplink, uploads, Counter(int(direction) + 5)).view(DRAWS, NUMBERS)


@pytest.mark.slow
def test_published_noise_does_not_hide_a_client() -> None:
    """More than 10 is lost with a model of four numbers, where 10 is the published budget; for one number alone 10 is
    true. False alarms: 1e-6.
    """
    beta, shift = 2 * 0.1 / 4 / 10, 0.1 / 4
    left, right = (((x + shift).abs() - (x - shift).abs()) / beta for x in map(consecutive, (-1.0, 1.0)))
    assert epsilon_lost(Outputs(left.sum(1), right.sum(1)), 0.0, 0.0) > 10
    alone = tuned(Outputs(left[:, 0], right[:, 0]), {1e-9: 10.0})
    assert 3 < alone.epsilon < 10


def test_rounds_that_flags_leave_without_noise_are_exact() -> None:
    """Two clients: one round of 16. 400 rounds, 5 deviations: a false alarm in 1.7 million."""
    uplink, secret = lc_fl().uplink, torch.tensor([0.03, -0.05, 0.07])
    found = [mean_of(uplink, [secret, torch.zeros(3)], Counter(t)) for t in range(400)]
    exact = sum(torch.allclose(x, secret / 2, rtol=0, atol=1e-8) for x in found)
    assert abs(exact - 25) < 5 * math.sqrt(400 / 16 * 15 / 16)


def watched(noise: Noise, bound: Any, quieter: float, z: float) -> Outputs:
    """Scores of one client's presence in two rounds: half of the rounds draw it, and what it pulls at is as long as the
    clip lets it.

    The noise is the same in every coordinate whatever the model, so one release of a long one is many rounds of one
    number.
    """

    def score(present: bool) -> Tensor:
        total = torch.zeros(DRAWS, dtype=torch.float64)
        for t in range(2):
            source = Counter(keys.word(keys.fold(int(present), "round", t)))
            there = source.child("coin").coins(DRAWS, 0.5).double() * present
            x = noise.release({"w": there * bound.l2}, bound, z / quieter, source)["w"] / bound.l2
            total += torch.log1p(torch.expm1((x - 0.5) / (z / quieter) ** 2) / 2)
        return total

    return Outputs(score(False), score(True))


@pytest.mark.slow
def test_rigorous_noise_keeps_its_promise_and_a_quarter_of_it_does_not(rigorous: Ended) -> None:
    """The claim is the receipt's. False alarms: 1e-6."""
    parts, row = parts_of(rigorous.folder), rows_of(rigorous.receipt.to_json())["client", "participants"]
    uplink, claimed = parts.setup.algorithm.uplink, {row["delta"]: row["epsilon"]}
    noise, z = uplink.noise(), row["event"]["event"]["event"]["noise_multiplier"]
    bound = uplink.bound(parts.setup.coordinates)
    honest, twin = (tuned(watched(noise, bound, quieter, z), claimed) for quieter in (1.0, 4.0))
    assert 2 < honest.epsilon < row["epsilon"] < twin.epsilon
