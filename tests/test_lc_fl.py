"""LC-FL, LDP-FL and CDP-FL (Sun, Ding and Cheng 2024) as whole runs: what they draw, what they send, what their
receipts say, and who can be told apart all the same.
"""

from __future__ import annotations

import json
import math
import re
import stat
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import safetensors.torch
import torch
from executors import Doing
from laws import warm
from laws.traces import Killed, die_after, differences, finished, interrupted, killed_at, parts_of
from torch import Tensor

from sordino import config, keys, tree
from sordino.algorithms.fedavg import FedAvg, Server, Up
from sordino.algorithms.lc_fl import cdp_fl, lc_fl
from sordino.attacks.bound import Outputs, epsilon_lost, tuned
from sordino.config import Experiment
from sordino.data import Dataset, Split
from sordino.engine import processes, wire
from sordino.engine.shards import PreparedShards, Shards
from sordino.errors import ConfigError, DomainError, NonFiniteModel, SordinoError, UnsoundGuarantee
from sordino.ledger.accountants import epsilon_by
from sordino.ledger.calibrate import sampled_multiplier
from sordino.ledger.events import Event, Gaussian, Laplace, Once, Poisson, Repeat, Response, from_json
from sordino.ledger.notes import note
from sordino.ledger.statement import Guarantee, statement
from sordino.privacy.noise.privunit import parameters
from sordino.privacy.noise.sources import Counter, System
from sordino.privacy.readers.responses import Responses
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.coordinate_laplace import FLAGGED, OF_ONE_UPLOAD, UNBOUNDED, CoordinateLaplace, Flagged
from sordino.privacy.uplink.one_direction import OneDirection
from sordino.privacy.uplink.stages import Clip, Noise, Weigh
from sordino.round import one_round
from sordino.runs import population
from sordino.runs.private import CLIENTS, FOLDER, secret_of
from sordino.runs.run import Ended, resume, start
from sordino.runs.simulation import simulated
from sordino.runs.verify import verify
from sordino.types import Bound, Examples, Grant, NoiseSource, Received, Terms, Work

LC: dict[str, Any] = {"name": "lc_fl"}
SIX: dict[str, Any] = {"scheme": "iid", "clients": 6}
EVERYONE: dict[str, Any] = {"name": "everyone"}
POISSON: dict[str, Any] = {"name": "poisson", "rate": 0.5}
WORK = Work(None, 1, 8)
slow = pytest.mark.slow


def made(algorithm: Mapping[str, Any], **tables: Any) -> Experiment:
    table: dict[str, Any] = {
        "rounds": 3,
        "partition": SIX,
        "model": {"name": "mlp", "hidden": 8},
        "cohort": {"name": "random", "size": 3},
        "privacy": {},
        "evaluation": {"every": 3, "final": 1},
        "engine": {"executor": "loop"},
        "algorithm": algorithm,
    }
    return config.validate(table | tables)


class Rounds:
    """A run in this process, with all that went down and came up."""

    def __init__(self, experiment: Experiment, secret: bytes | None = None) -> None:
        self.parts = simulated(experiment)
        federation = self.parts.federation(":memory:", "run")
        self.clients, self.server = self.parts.site("run", secret=secret), self.parts.setup.state("server")
        self.down: list[Any] = []
        self.up: list[dict[int, Any]] = []
        self.received: list[Received[Any]] = []
        with federation.ledger:
            for t in range(experiment.rounds):
                outcome = one_round(federation, self.server, t, Doing(self._execute))
                self.server = outcome.server
                self.received.append(outcome.received)

    def _execute(self, t: int, down: Any, terms: Mapping[int, Terms]) -> Iterator[tuple[int, Any]]:
        self.down.append(down)
        self.up.append(dict(self.clients(t, down, terms)))
        return iter(self.up[-1].items())


def grant(source: NoiseSource, size: int = 1, largest: int = 1) -> Grant:
    return Grant(0, size, largest, source)


def mean_of(uplink: Uplink, uploads: list[Tensor], source: NoiseSource) -> Tensor:
    """By the gate, of clients that are equally large."""
    sent = {k: uplink.encode({"w": x}, grant(source.child("client", k))) for k, x in enumerate(uploads)}
    zero = {"w": torch.zeros_like(uploads[0])}
    mean: Any = uplink.receive(sent, zero, [1.0] * len(sent), len(sent), None, source.child("server")).mean
    found: Tensor = mean["w"]
    return found


def rows_of(receipt: Mapping[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["unit"], row["adversary"]): row for row in receipt["guarantees"]}


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


@pytest.mark.parametrize(("flip", "chance"), [(0.5, 0.75), (0.01, 0.505)])
def test_newflags_are_as_likely_as_published(flip: float, chance: float) -> None:
    """2,000 draws, five deviations: a false alarm in 1.7 million. The other reading lies 22 deviations away."""
    found = turned(flip, 2000)
    assert abs(found - chance) < 5 * math.sqrt(chance * (1 - chance) / 2000)
    assert abs(found - (1.255 - chance)) > 0.1


@slow
@pytest.mark.parametrize(("flip", "chance"), [(0.5, 0.75), (0.01, 0.505)])
def test_newflags_of_a_hundred_thousand_draws(flip: float, chance: float) -> None:
    """0.005 are 3.6 and 3.2 deviations: a false alarm in 700."""
    assert turned(flip, 100_000) == pytest.approx(chance, abs=0.005)


@pytest.mark.parametrize("target", ["aggregate_any", "per_client"])
def test_a_flag_of_one_stays_one_and_a_zero_stays_where_nobody_turns_it(target: Any) -> None:
    for wants, flip, noisy in ((1.0, 0.0, True), (1.0, 0.5, True), (0.0, 0.0, False), (0.0, 1.0, True)):
        uplink = lc_fl(wants=wants, flip=flip, noise_target=target).uplink
        found = [mean_of(uplink, [torch.zeros(3)] * 2, Counter(i)) for i in range(100)]
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
    """Mean size within 1 % and variance within 3 % of Laplace(beta): 10 and 13 deviations at a million draws."""
    x = x.double()
    size, spread = float(x.abs().mean()), float((x**2).mean())
    return abs(size / beta - 1) < 0.01 and abs(spread / (2 * beta**2) - 1) < 0.03


@pytest.mark.slow
@pytest.mark.parametrize("source", [Counter(5), System()], ids=["counter", "system"])
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
        monkeypatch.setattr(population, "SOURCES", {"digits": lambda **_: dataset})

    return give


STRIDE: dict[str, Any] = {"model": {"name": "cnn_stride"}, "partition": {"scheme": "iid", "clients": 2}, "rounds": 2}
QUICK: dict[str, Any] = {"local_steps": 1, "batch_size": 8}


def finished_with(receipt: Mapping[str, Any], unit: str, adversary: str) -> Event:
    return from_json(rows_of(receipt)[unit, adversary]["event"])


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


# answers --------------------------------------------------------------------------------------------------------------

LDP: dict[str, Any] = {"name": "ldp_fl", "local_steps": 2}


def read(**more: Any) -> dict[str, Any]:
    return {"algorithm": {"name": "fedavg", "local_steps": 2}, "read": {"name": "responses", **more}}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[int, set[bytes]]:
    """What clients of this process train on, by client: one element for each set of answers."""
    found: dict[int, set[bytes]] = defaultdict(set)
    whole = PreparedShards.__getitem__

    def looking(self: PreparedShards, client: int) -> Examples:
        examples = whole(self, client)
        found[client].add(examples.x.numpy().tobytes() + examples.y.numpy().tobytes())
        return examples

    monkeypatch.setattr(PreparedShards, "__getitem__", looking)
    return found


def test_images_are_answered_for_and_labels_and_tests_are_not() -> None:
    parts = simulated(made(LDP))
    clients, kept, values = parts.site("run"), 0, 0
    raw = Shards(parts.population.dataset.train, parts.population.shares[0], range(6))
    tests = Shards(parts.population.dataset.test, parts.population.shares[1], range(6))
    greys = {round(12.75 * i) for i in range(21)}
    for k in range(6):
        answers, given = clients.shards[k], raw[k]
        assert answers.y.numpy().tobytes() == given.y.numpy().tobytes()
        assert answers.x.dtype == torch.uint8
        assert set(answers.x.flatten().tolist()) <= greys
        own = ((given.x.long() * 40 + 255) // 510 * 12.75).round()
        kept += int((answers.x == own).sum())
        values += own.numel()
        assert clients.tests[k].x.numpy().tobytes() == tests[k].x.numpy().tobytes()
        assert clients.tests[k].y.numpy().tobytes() == tests[k].y.numpy().tobytes()
    p = math.exp(5) / (20 + math.exp(5))
    assert abs(kept / values - p) < 5 * math.sqrt(p * (1 - p) / values)  # a false alarm in 1.7 million


def test_accuracy_is_that_of_clean_images(tmp_path: Path) -> None:
    ended = start(made(LDP), tmp_path / "run")
    parts = simulated(made(LDP))
    clean = Examples(
        torch.from_numpy(parts.population.dataset.test.x), torch.from_numpy(parts.population.dataset.test.y)
    )
    model = safetensors.torch.load_file(tmp_path / "run" / "model.safetensors")
    found = float(parts.setup.task.score(model, clean)["accuracy"].mean())
    assert ended.metrics[-1].accuracy == pytest.approx(found, abs=1e-6)
    reader: Responses = parts.setup.algorithm.read
    noisy = float(parts.setup.task.score(model, reader.prepare(clean, Counter(1)))["accuracy"].mean())
    assert noisy != pytest.approx(found, abs=1e-3)


def test_answers_are_the_same_in_every_round_and_by_every_executor(seen: dict[int, set[bytes]], tmp_path: Path) -> None:
    for executor in ("loop", "stack", "pooled"):
        start(made(LDP, cohort=EVERYONE, engine={"executor": executor}), tmp_path / executor)
    assert sorted(seen) == list(range(6))
    assert all(len(answers) == 1 for answers in seen.values())
    start(made(LDP, cohort=EVERYONE, seed=1), tmp_path / "other")
    assert all(len(answers) == 2 for answers in seen.values())


def test_answers_of_every_round_cost_in_every_round(seen: dict[int, set[bytes]], tmp_path: Path) -> None:
    """Once a run: 5, whoever takes part how often. Again in every round: times the rounds of the client that took part
    most.
    """
    for redraw in ("run", "round"):
        seen.clear()
        ended = start(made(**{**read(redraw=redraw), "rounds": 4}), tmp_path / redraw)
        row = rows_of(ended.receipt.to_json())["pixel", "server"]
        most = row["releases"]
        assert 2 <= most <= 4
        again = redraw == "round"
        # one more set where clients are tested with what they hold
        assert max(map(len, seen.values())) in ((most, most + 1) if again else (1,))
        assert row["accountants"]["pure"] == (5.0 * most if again else 5.0)
        image = from_json(rows_of(ended.receipt.to_json())["image", "public"]["event"])
        value = Response(5.0, 21)
        assert image == (Repeat(value, 64 * most) if again else Once("responses of image", Repeat(value, 64)))
        assert not verify(tmp_path / redraw)


@pytest.mark.parametrize("more", [{}, {"redraw": "round"}], ids=["run", "round"])
@pytest.mark.slow
def test_a_run_that_was_killed_and_one_that_was_not_are_the_same(more: dict[str, Any], tmp_path: Path) -> None:
    experiment = made(**read(**more), rounds=4)
    whole = finished(experiment, tmp_path / "whole")
    assert differences(whole, interrupted(experiment, tmp_path / "again")) == []
    assert (tmp_path / "whole" / FOLDER / CLIENTS).exists() is False  # a simulation has none


def same_model(run: Rounds, folder: Path) -> bool:
    model = safetensors.torch.load_file(folder / "model.safetensors")
    return all(torch.equal(x, model[name]) for name, x in run.server.x.items())


SYSTEM: dict[str, Any] = {"privacy": {"noise": "system"}, "cohort": EVERYONE}


def test_real_answers_are_drawn_once_and_outlive_a_crash(seen: dict[int, set[bytes]], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with killed_at("computed", 1):
        start(made(LDP, **SYSTEM), folder)
    secret = folder / FOLDER / CLIENTS
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert len(secret.read_bytes()) == 32
    with pytest.raises(Killed):
        resume(folder, die_after(2))
    resume(folder)
    assert all(len(answers) == 1 for answers in seen.values())
    assert rows_of(json.loads((folder / "privacy.json").read_text()))["pixel", "server"]["accountants"]["pure"] == 5.0
    start(made(LDP, **SYSTEM), tmp_path / "other")
    assert all(len(answers) == 2 for answers in seen.values())
    # the secret and nothing else decides
    assert same_model(Rounds(made(LDP, **SYSTEM), secret_of(folder)), folder)
    assert not same_model(Rounds(made(LDP, **SYSTEM), secret_of(tmp_path / "other")), folder)


@pytest.mark.parametrize("left", [None, b"", bytes(31)], ids=["gone", "empty", "cut"])
def test_without_their_secret_clients_do_not_answer_from_the_seed(left: bytes | None, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with killed_at("computed", 1):
        start(made(LDP, **SYSTEM), folder)
    secret = folder / FOLDER / CLIENTS
    if left is None:
        secret.unlink()
    else:
        secret.write_bytes(left)
    with pytest.raises(SordinoError) as refusal:
        resume(folder)
    assert refusal.value.code == "no-secret"
    with pytest.raises(SordinoError) as refusal:
        _ = simulated(made(LDP, **SYSTEM)).site("run").shards[0]
    assert refusal.value.code == "no-secret"


def test_nobody_keeps_a_secret_for_nothing(tmp_path: Path) -> None:
    start(made({"name": "fedavg", "local_steps": 1}, rounds=1, **SYSTEM), tmp_path / "run")
    assert not (tmp_path / "run" / FOLDER / CLIENTS).exists()


@slow
@pytest.mark.parametrize("noise", ["counter", "system"])
def test_clients_of_their_own_processes_answer_the_same(
    noise: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "subprocess", warm.stand_in())
    table: dict[str, Any] = {"privacy": {"noise": noise}, "engine": {"executor": "processes", "workers": 2}}
    apart = finished(made(LDP, **table), tmp_path / "apart")
    assert same_model(Rounds(made(LDP, **table), secret_of(tmp_path / "apart")), tmp_path / "apart")
    if noise == "counter":
        loop = finished(made(LDP), tmp_path / "loop")
        assert loop.model == apart.model
        assert [entry.note for entry in loop.ledger] == [entry.note for entry in apart.ledger]


def guarantees(reader: Responses, delta: float = 1e-5) -> dict[tuple[str, str], Guarantee]:
    rows = statement([note([("*", reader.claims(WORK, 5, None))])] * 3, 4, delta)
    return {(row.unit, row.adversary): row for row in rows}


def test_an_image_s_budget_is_cut_over_its_values_and_a_label_has_its_own() -> None:
    whole = Responses(5.0, "image", label_epsilon=1.0, delta=1e-5).fitted((28, 28, 1), 10)
    assert whole.each == pytest.approx(0.1253, rel=0.01)
    rows = guarantees(whole)
    assert rows["image", "server"].epsilon == pytest.approx(5.0, rel=0.01)
    assert rows["example", "server"].accountants["pure"] == pytest.approx(784 * whole.each + 1.0)
    assert rows["image", "server"].epsilon < rows["example", "server"].epsilon < 6.05
    assert rows["example", "server"].status == "proved"
    pure = guarantees(Responses(5.0, "image", label_epsilon=1.0).fitted((28, 28, 1), 10), 0.0)
    assert pure["image", "server"].epsilon == pytest.approx(5.0)
    assert pure["example", "server"].epsilon == pytest.approx(6.0)
    assert pure["pixel", "server"].epsilon == pytest.approx(5 / 784)


def test_fewer_values_have_more_of_the_budget_each(tmp_path: Path) -> None:
    features = Responses(10.0, "image", delta=1e-5, side=7).fitted((28, 28, 1), 10)
    assert features.each == pytest.approx(0.7318, rel=0.001)
    assert Responses(5.0, "image", delta=1e-5, side=7).fitted((28, 28, 1), 10).each == pytest.approx(0.4392, rel=0.001)
    assert Responses(10.0, "image", side=7).fitted((28, 28, 1), 10).each == pytest.approx(10 / 49)
    assert guarantees(features)["image", "public"].epsilon == pytest.approx(10.0, rel=0.01)
    table = read(epsilon=10.0, of="image", delta=1e-5, side=4, label_epsilon=2.0)
    ended = start(made(**table), tmp_path / "run")
    rows = rows_of(ended.receipt.to_json())
    assert rows["image", "server"]["event"]["event"]["count"] == 16
    assert rows["example", "server"]["epsilon"] < 12.1
    parts = parts_of(tmp_path / "run")
    answers = parts.site("run").shards[0]
    assert answers.x.shape[1:] == (8, 8, 1)
    assert torch.equal(answers.x[:, ::2, ::2], answers.x[:, 1::2, 1::2])  # every value stands for four pixels
    raw = Shards(parts.population.dataset.train, parts.population.shares[0], range(6))[0]
    changed = float((answers.y != raw.y).float().mean())  # e^2 / (9 + e^2) = 0.45 keep their label
    assert 0.35 < changed < 0.75


def test_a_label_has_coins_of_its_own() -> None:
    """Images of one value: whether it was kept says nothing about the label. 4,000 of each, five deviations: a false
    alarm in 1.7 million.
    """
    reader = Responses(1.0, label_epsilon=1.0, levels=10).fitted((1, 1, 1), 10)
    given = Examples(torch.zeros(4000, 1, 1, 1, dtype=torch.uint8), torch.zeros(4000, dtype=torch.int64))
    answers = reader.prepare(given, Counter(1))
    kept = torch.stack([answers.x.flatten() == 0, answers.y == 0]).float()
    assert torch.all((kept.mean(1) > 0.2) & (kept.mean(1) < 0.27))  # e / (9 + e) = 0.23
    assert abs(float(torch.corrcoef(kept)[0, 1])) < 5 / math.sqrt(4000)


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        ({"epsilon": 0.0}, "response-epsilon", "epsilon"),
        ({"epsilon": -2.0}, "response-epsilon", "epsilon"),
        ({"epsilon": math.nan}, "wrong-type", "epsilon"),
        ({"epsilon": math.inf}, "wrong-type", "epsilon"),
        ({"label_epsilon": -1.0}, "response-epsilon", "epsilon"),
        ({"levels": 1}, "response-levels", "levels"),
        ({"levels": 257}, "response-levels", "levels"),
        ({"side": 0}, "response-side", "side"),
        ({"side": 9}, "response-side", "side"),
        ({"delta": 1e-5}, "delta-of-a-response", "delta"),
        ({"of": "image", "delta": 1.0}, "response-delta", "delta"),
        ({"of": "image", "delta": -1e-5}, "response-delta", "delta"),
        ({"of": "client"}, "wrong-type", "of"),
        ({"redraw": "never"}, "wrong-type", "redraw"),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else None,
)
def test_answers_that_nobody_can_give(more: dict[str, Any], code: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        start(made(**read(**more)), tmp_path / "run")
    assert caught.value.code == code
    assert said in caught.value.what
    assert not (tmp_path / "run").exists()


def test_tables_have_no_grey_values(tmp_path: Path) -> None:
    table = {"data": {"source": "synthetic", "clients": 6}, "partition": {"scheme": "natural"}}
    with pytest.raises(DomainError) as caught:
        start(made(LDP, **table), tmp_path / "run")
    assert caught.value.code == "response-not-images"
    assert "60" in caught.value.what
    assert not (tmp_path / "run").exists()


# one direction --------------------------------------------------------------------------------------------------------

PRIVUNIT: dict[str, Any] = {"uplink": [{"name": "clip", "radius": 1.0}, "privunit"]}


@pytest.mark.parametrize("cohort", [EVERYONE, POISSON], ids=["visible", "hidden"])
def test_directions_share_the_budget_and_add_up(cohort: dict[str, Any], tmp_path: Path) -> None:
    """Pure against everybody, also the server: 8 over four rounds are 2 for each. A hidden cohort hides nobody from a
    server that gets the uploads.
    """
    table = {"rounds": 4, "cohort": cohort, "privacy": {"epsilon": 8.0, "delta": 1e-3}, **PRIVUNIT}
    ended = start(made({"name": "fedavg", "local_steps": 2}, **table), tmp_path / "run")
    for adversary in ("server", "participants", "public"):
        row = rows_of(ended.receipt.to_json())["client", adversary]
        event = from_json(row["event"])
        assert isinstance(event, Repeat)
        assert isinstance(event.event, Response)  # and no sample of one
        assert event.event.levels == 2
        assert event.event.epsilon == pytest.approx(2.0, rel=1e-9)
        assert row["accountants"]["pure"] == pytest.approx(2.0 * event.count, rel=1e-9)
        assert row["accountants"]["pure"] <= 8.0
        assert row["neighbours"] == "replace"
        assert row["status"] == "proved"
    assert "pure" in ended.receipt.budget.currency


def test_a_direction_is_right_in_the_mean() -> None:
    """600 answers of 10 coordinates and length 1.822: a coordinate's mean deviates by 0.0235 radii, six times that is
    allowed: a false alarm in 50 million.
    """
    uplink = Uplink((Clip(2.0), OneDirection(multiplier=0.2)))
    x = {"w": torch.tensor([[3.0, 0.0], [0.0, -4.0]]), "b": torch.tensor([0.0, 0, 0, 12.0, 0, 0])}
    draws = [uplink.encode(x, grant(Counter(i))) for i in range(600)]
    drawn = torch.stack([tree.flat(draw) for draw in draws])
    wanted = 2.0 * tree.flat(x) / 13.0
    assert (drawn.mean(0) - wanted).abs().max() < 6 * 2.0 * 0.0235
    assert (drawn.mean(0) + wanted).abs().max() > 1.0  # the opposite would be seen
    length = 2.0 * parameters(10, 5.0).length
    assert torch.allclose(drawn.norm(dim=1), torch.full((600,), length), rtol=1e-3)
    nothing = uplink.encode(tree.zeros_like(x), grant(Counter(1)))
    assert float(tree.norm(nothing)) == pytest.approx(length, rel=1e-3)  # not even that it was empty


def test_directions_hide_nobody_s_presence_and_need_a_radius(tmp_path: Path) -> None:
    private: dict[str, Any] = {"privacy": {"epsilon": 8.0, "delta": 1e-3}}
    presence: Any = [{"name": "clip", "radius": 1.0}, {"name": "privunit", "neighbours": "add_remove"}]
    for uplink, code in ((presence, "local-noise-add-remove"), (["privunit"], "unbounded-sensitivity")):
        with pytest.raises(UnsoundGuarantee) as caught:
            start(made({"name": "fedavg"}, uplink=uplink, **private), tmp_path / "run")
        assert caught.value.code == code
        assert not (tmp_path / "run").exists()


# rigorous -------------------------------------------------------------------------------------------------------------

RIGOROUS = LC | {"variant": "rigorous", "local_epsilon": 10.0, "per": "image", "label_epsilon": 2.0, "local_steps": 2}
BUDGET: dict[str, Any] = {"rounds": 2, "cohort": POISSON, "privacy": {"epsilon": 5.0, "delta": 1e-3}}


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
        assert from_json(row["event"]) == Once(f"responses of {unit}", from_json(row["event"]["event"]))
    client = rows["client", "participants"]
    assert client["neighbours"] == "add_remove"
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
def test_rigorous_noise_needs_a_hidden_cohort_and_a_budget(name: str, tmp_path: Path) -> None:
    table: dict[str, Any] = {"name": name, "variant": "rigorous"}
    visible: dict[str, Any] = {"privacy": {"epsilon": 5.0, "delta": 1e-3}}
    for tables, code in (
        (visible, "add-remove-needs-poisson"),
        ({**visible, "cohort": EVERYONE}, "add-remove-needs-poisson"),
        ({"cohort": POISSON}, "mechanism-without-budget"),
    ):
        with pytest.raises(UnsoundGuarantee) as caught:
            start(made(table, **tables), tmp_path / "run")
        assert caught.value.code == code
        assert not (tmp_path / "run").exists()
    with pytest.raises(UnsoundGuarantee) as caught:  # the published noise takes no budget
        start(made({"name": name}, **visible), tmp_path / "run")
    assert caught.value.code == "budget-without-mechanism"


CENTRAL = {
    20: {0.5: 47.0, 1: 15.12, 2: 5.689, 4: 2.401, 8: 1.077},
    100: {0.5: 137.2, 1: 39.98, 2: 14.28, 4: 5.869, 8: 2.597},
}


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
    assert epsilon_by("pld", event, 1e-5, "add_remove") == pytest.approx(epsilon, rel=0.01)
    assert epsilon_by("rdp", event, 1e-5, "add_remove") > epsilon


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
