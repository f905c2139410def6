"""Block sums and layer rates: the paper's examples, linear algebra with the matrix written out, and the traffic to all
printed digits.
"""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sordino import config, keys, tree
from sordino.engine import wire
from sordino.engine.commands import Round
from sordino.errors import ConfigError, WireError
from sordino.privacy.noise.sources import Counter
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.compression import BlockSum, rate, rates, runs, spread, sums
from sordino.privacy.uplink.sensing import (
    Matrix,
    Sensing,
    adjoint,
    coherence,
    cosines,
    dct_ista,
    dct_omp,
    matrix,
    minnorm,
)
from sordino.privacy.uplink.stages import Clip, Noise
from sordino.runs.run import start
from sordino.runs.simulation import Simulation, simulated
from sordino.tasks.nets import cnn_wide
from sordino.types import Bound, Grant, Terms

GIB = 2**30
GRANT = Grant(0, 1, 1, Counter(1), 1.0)


def numbers(seed: int, *shape: int) -> Tensor:
    return keys.normal(keys.root(seed), torch.Size(shape).numel()).reshape(shape)


def matrix_of_runs(size: int, kept: float) -> Tensor:
    """Row by row, with nothing of the package but the lengths."""
    lengths = runs(size, kept).lengths().tolist()
    rows, at = torch.zeros(len(lengths), size, dtype=torch.float64), 0
    for row, length in zip(rows, lengths, strict=True):
        row[at : at + length] = 1
        at += length
    return rows


def test_the_worked_example() -> None:
    x = torch.arange(1.0, 11.0, dtype=torch.float64)
    y = sums(x, 0.3)
    assert y.tolist() == [10, 18, 27]
    assert float(y.norm()) == pytest.approx(33.95585, abs=1e-5)
    assert spread(y, x, 0.3).tolist() == [2.5] * 4 + [6.0] * 3 + [9.0] * 3


@pytest.mark.parametrize(
    ("size", "kept", "lengths"),
    [
        (10, 0.4, [3, 3, 2, 2]),
        (10, 0.2, [5, 5]),
        (64, 0.3, [4] * 7 + [3] * 12),
        (4, 0.4, [4]),
        (3, 0.2, [3]),
        (1, 0.2, [1]),
    ],
)
def test_the_lengths_of_runs(size: int, kept: float, lengths: list[int]) -> None:
    assert runs(size, kept).lengths().tolist() == lengths


@pytest.mark.slow
def test_runs_tile_every_layer() -> None:
    for size in range(1, 2001):
        for tenths in range(1, 11):
            found = runs(size, tenths / 10)
            lengths = found.lengths()
            assert int(lengths.sum()) == size
            assert found.many == max(1, tenths * size // 10) == len(lengths)
            assert int(lengths.max() - lengths.min()) <= 1
            assert found.longest == int(lengths.max()) == int(lengths[0])  # the longer ones first


@pytest.mark.slow
@given(st.integers(1, 80), st.integers(1, 10), st.integers(0, 99))
def test_it_is_the_matrix(size: int, tenths: int, seed: int) -> None:
    kept, phi = tenths / 10, matrix_of_runs(size, tenths / 10)
    x, y = numbers(seed, size), numbers(seed + 1, len(phi))
    close(sums(x, kept), phi @ x)
    close(spread(y, x, kept), torch.linalg.pinv(phi) @ y)
    close(phi @ phi.T, torch.diag(runs(size, kept).lengths().double()))
    close(sums(spread(y, x, kept), kept), y)
    flat = spread(sums(x, kept), x, kept)
    close(spread(sums(flat, kept), x, kept), flat)  # idempotent, and exact where it is constant on runs
    close(float(sums(x, kept) @ y), float(x @ (phi.T @ y)))


SIZES = {
    4800: (960, 1440, 1920, 2400), 64: (12, 19, 25, 32), 102400: (20480, 30720, 40960, 51200), 614400: (122880, 184320, 245760, 307200),
    384: (76, 115, 153, 192), 73728: (14745, 22118, 29491, 36864), 192: (38, 57, 76, 96), 1920: (384, 576, 768, 960), 10: (2, 3, 4, 5),
}  # fmt: skip


def test_the_sizes_of_the_network_of_the_paper() -> None:
    for size, counts in SIZES.items():
        assert tuple(runs(size, kept).many for kept in (0.2, 0.3, 0.4, 0.5)) == counts


@pytest.mark.parametrize(("kept", "gib"), [(1.0, "0.8918"), (0.5, "0.4459"), (0.4, "0.3567"), (0.3, "0.2675")])
def test_traffic_to_all_printed_digits(kept: float, gib: str) -> None:
    """One client slot over 300 rounds, in the paper's own unit: four bytes a number."""
    net = cnn_wide((3, 32, 32), 10)
    update = {name: p.detach() for name, p in net.named_parameters()}
    sent = BlockSum(kept).shape(update)
    assert f"{4 * tree.size(sent) * 300 / GIB:.4f}" == gib


def vgg16() -> list[int]:
    """Sizes of the tensors of the standard layout, ten classes."""
    wide = [3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
    convolutions = [size for a, b in pairwise(wide) for size in (9 * a * b, b)]
    linear = [size for a, b in ((25088, 4096), (4096, 4096), (4096, 10)) for size in (a * b, b)]
    return convolutions + linear


@pytest.mark.parametrize(("kept", "gib"), [(0.5, 75.0468), (0.4, 60.0374), (0.3, 45.0281), (1.0, 150.0936)])
def test_traffic_of_the_large_network(kept: float, gib: float) -> None:
    assert sum(vgg16()) == 134301514
    floats = sum(runs(size, kept).many for size in vgg16())
    assert 4 * floats * 300 / GIB == pytest.approx(gib, abs=6e-5)


# as a stage -----------------------------------------------------------------------------------------------------------


@given(st.sampled_from([0.1, 0.25, 0.3, 0.5, 1.0]), st.integers(0, 60))
@settings(max_examples=40)
def test_the_bound_holds_and_is_needed(kept: float, seed: int) -> None:
    stage, x = BlockSum(kept), {"w": numbers(seed, 3, 17), "b": numbers(seed + 1, 7)}
    bound = stage.bound(Bound(l1=20.0, l2=1.0), tree.size(x))
    for order, limit in ((1, 20.0), (2, 1.0)):
        inside = tree.scale(float(limit / tree.norm(x, order)), x)
        assert float(tree.norm(stage.encode(inside, Bound(), GRANT), order)) <= bound.of(order) * (1 + 1e-9)
    aligned = {"w": torch.ones(40, dtype=torch.float64)}
    grown = float(tree.norm(stage.encode(aligned, Bound(), GRANT)) / tree.norm(aligned))
    assert grown == pytest.approx(math.sqrt(1 / kept), rel=0.1)  # what a bound without the factor would miss


def test_the_mean_is_reconstructed_once_and_commutes() -> None:
    uplink, zero = Uplink(client=(BlockSum(0.3),)), {"w": torch.zeros(4, 5, dtype=torch.float64)}
    uploads = {k: {"w": numbers(k, 4, 5)} for k in range(3)}
    sent = {k: uplink.encode(x, GRANT) for k, x in uploads.items()}
    assert sent[0]["w"].shape == (6,)
    received = uplink.receive(sent, zero, [1.0] * 3, 3.0, None, Counter(1))
    mean = torch.stack([x["w"] for x in uploads.values()]).mean(0)
    close(received.mean["w"], spread(sums(mean, 0.3), mean, 0.3))
    close(received.each[1]["w"], spread(sums(uploads[1]["w"], 0.3), mean, 0.3))


def test_noise_behind_it_is_sized_for_what_is_sent() -> None:
    before = Uplink(client=(Clip(1.0), BlockSum(0.2), Noise()))
    behind = Uplink(client=(BlockSum(0.2), Clip(1.0), Noise()))
    assert before.bound(100).l2 == pytest.approx(math.sqrt(10))
    assert behind.bound(100).l2 == 1.0


def made(rounds: int = 3, **uplink: Any) -> Simulation:
    return simulated(
        config.validate(
            {
                "rounds": rounds,
                "partition": {"scheme": "iid", "clients": 4},
                "cohort": {"name": "everyone"},
                "algorithm": {"name": "fedavg", "lr": 0.3},
                "privacy": {},
                "evaluation": {"final": 1},
                "uplink": {"client": [], **uplink},
            }
        )
    )


@pytest.mark.slow
def test_fewer_bytes_travel_and_all_of_them_are_counted(tmp_path: Path) -> None:
    def row(name: str, **uplink: Any) -> dict[str, Any]:
        start(made(**uplink).setup.experiment, tmp_path / name)
        return json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1])  # type: ignore[no-any-return]

    whole, half = row("whole"), row("half", client=[{"name": "block_sum", "rate": 0.5}])
    assert half["bytes_up"] < 0.75 * whole["bytes_up"]  # the network of the digits is small: headers count
    assert whole["bytes_down"] == half["bytes_down"]
    assert half["accuracy"] > 0.5
    everything = row("everything", client=[{"name": "block_sum", "rate": 1.0}])
    assert everything["accuracy"] == whole["accuracy"]  # a rate of 1 is no compression


@pytest.mark.parametrize("bad", [0.0, -0.1, 1.5, True, math.nan])
def test_a_rate_is_a_share(bad: float) -> None:
    with pytest.raises(ConfigError) as refusal:
        BlockSum(bad)
    assert refusal.value.code == "rate-out-of-range"


# random measurements --------------------------------------------------------------------------------------------------


def sparse(atoms: int, among: int, seed: int, size: int = 512) -> Tensor:
    """A few waves of the cosine transform, all of them among the lowest."""
    s = torch.zeros(size, dtype=torch.float64)
    s[keys.permutation(keys.root(seed), among)[:atoms]] = numbers(seed + 1, atoms)
    return cosines(size) @ s


def test_waves_are_orthonormal_and_scipys() -> None:
    from scipy import fft

    close(cosines(64).T @ cosines(64), torch.eye(64, dtype=torch.float64))
    x = numbers(3, 64)
    close(cosines(64).T @ x, torch.from_numpy(fft.dct(x.numpy(), norm="ortho")))


@pytest.mark.parametrize("kind", ["gaussian", "bernoulli"])
def test_reconstructions_by_their_definitions(kind: Any) -> None:
    by, x = matrix(kind, 153, 512, 0), numbers(1, 2, 512)
    y = x @ by.phi.T
    close(minnorm(y, by), x @ by.phi.T @ torch.linalg.pinv(by.phi).T)
    close(minnorm(minnorm(y, by) @ by.phi.T, by), minnorm(y, by))
    close(adjoint(y, by), x @ by.phi.T @ by.phi)
    assert float(minnorm(y, by).square().sum() / x.square().sum()) == pytest.approx(
        153 / 512, abs=0.05
    )  # of white numbers


@pytest.mark.parametrize("kept", [0.2, 0.3, 0.4, 0.5])
def test_pursuit_finds_scattered_waves_behind_a_random_matrix_and_not_behind_block_sums(kept: float) -> None:
    scattered, low = sparse(20, 512, 5), sparse(20, 128, 6)
    rows = math.floor(kept * 512)
    random, blocks = matrix("gaussian", rows, 512, 1), Matrix(matrix_of_runs(512, kept))

    def error(x: Tensor, by: Matrix) -> float:
        return float((dct_omp((by.phi @ x)[None], by)[0] - x).norm() / x.norm())

    assert error(scattered, random) < 1e-6
    assert error(scattered, blocks) > 0.3
    assert (error(low, blocks) < 1e-6) == (kept >= 0.3)


def test_shrinkage_explains_sparse_waves_better_than_the_least_norm() -> None:
    by, x = matrix("gaussian", 204, 512, 2), sparse(10, 512, 8)
    y = (by.phi @ x)[None]
    ista, least = (float((rebuild(y, by)[0] - x).norm() / x.norm()) for rebuild in (dct_ista, minnorm))
    assert ista < 0.15 < 0.5 < least


@pytest.mark.one_fast
@pytest.mark.parametrize(
    ("kept", "cosine", "fourier"),
    [
        (0.1, 4.687, 3.317),
        (0.2, 3.463, 2.449),
        (0.3, 2.828, 2.0),
        (0.4, 2.449, 1.732),
        (0.5, 2.0, 1.414),
        (0.9, 2.0, 1.414),
    ],
)
def test_coherence_of_block_sums_and_of_random_rows(kept: float, cosine: float, fourier: float) -> None:
    phi, waves = matrix_of_runs(512, kept), torch.fft.fft(torch.eye(512, dtype=torch.complex128)) / math.sqrt(512)
    assert coherence(phi, cosines(512)) == pytest.approx(cosine, abs=6e-3)
    assert coherence(phi, waves) == pytest.approx(fourier, abs=6e-3)
    for kind in ("gaussian", "bernoulli"):
        random = matrix(kind, len(phi), 512, 3).phi  # type: ignore[arg-type]
        assert 3.8 < coherence(random, cosines(512)) < 5.6
        assert 2.8 < coherence(random, waves) < 4.2


@pytest.mark.parametrize("reconstruct", ["minnorm", "adjoint", "dct_ista", "dct_omp"])
def test_sensing_as_a_stage(reconstruct: Any) -> None:
    stage = Sensing(rate=0.5, block=32, reconstruct=reconstruct, seed=4)
    x = {"w": numbers(1, 10, 7).float(), "b": numbers(2, 3).float()}  # two blocks and a part, and less than one
    sent = stage.encode(x, Bound(), GRANT)
    assert tree.size(sent) == tree.size(stage.shape(x)) == 16 + 16 + 3 + 1
    back = stage.decode(sent, x)
    assert {name: leaf.shape for name, leaf in back.items()} == {name: leaf.shape for name, leaf in x.items()}
    if reconstruct == "minnorm":
        close(stage.encode(back, Bound(), GRANT)["w"].double(), sent["w"].double(), 1e-5)
    other = Sensing(rate=0.5, block=32, seed=5).encode(x, Bound(), GRANT)
    assert not torch.allclose(other["w"], sent["w"])  # another seed, another matrix


@pytest.mark.parametrize("kind", ["gaussian", "bernoulli"])
def test_the_bound_of_sensing_holds(kind: Any) -> None:
    stage = Sensing(0.4, kind=kind, block=24)
    bound = stage.bound(Bound(l1=9.0, l2=1.0), 100)
    for size in (24, 100, 11):
        by = matrix(kind, math.floor(0.4 * min(size, 24)), min(size, 24), 0)
        worst = torch.linalg.svd(by.phi).Vh[0]
        x = {"w": torch.cat([worst, torch.zeros(size - len(worst), dtype=torch.float64)])}
        stretched = float(tree.norm(stage.encode(x, Bound(), GRANT)))
        assert stretched <= bound.l2
        assert stretched == pytest.approx(by.stretch, rel=1e-6)
    assert Sensing().bound(Bound(), 10).l2 == math.inf


TENTHS = [(2, 5), (3, 3), (1, 10)]


@pytest.mark.one_fast
@pytest.mark.parametrize(("least", "most"), TENTHS)
@pytest.mark.parametrize("kind", ["block_sum", "gaussian", "bernoulli"])
def test_the_bound_holds_at_every_rate_that_may_come_with_a_model(kind: Any, least: int, most: int) -> None:
    """The longest vector that a layer of any size becomes, at every rate, over the bound of dynamic rates."""
    ends: dict[str, Any] = {"rate": "dynamic", "least": least / 10, "most": most / 10}
    stage = BlockSum(**ends) if kind == "block_sum" else Sensing(**ends, kind=kind, block=24)
    limit = stage.bound(Bound(l1=99.0, l2=1.0), 100).l2
    reached = 0.0
    for tenths in range(least, most + 1):
        now = stage.at(0, torch.tensor([tenths], dtype=torch.uint8))
        for size in range(1, 60):
            rows = torch.eye(size, dtype=torch.float64)
            whole = torch.stack([now.encode({"w": row}, Bound(), GRANT)["w"] for row in rows])
            reached = max(reached, float(torch.linalg.matrix_norm(whole, 2)))
    assert reached <= limit * (1 + 1e-9)
    if kind != "block_sum":  # whose bound is the next whole number
        assert reached > limit * (1 - 1e-6)
    for tenths in (0, least - 1, most + 1, 255):
        with pytest.raises(WireError) as refused:
            stage.at(0, torch.tensor([least, tenths], dtype=torch.uint8))
        assert refused.value.code == "learned-beyond-plan"


def test_sensing_settings_that_are_none() -> None:
    for bad in ({"rate": 0.0}, {"rate": 2.0}, {"block": 0}):
        with pytest.raises(ConfigError):
            Sensing(**bad)  # type: ignore[arg-type]


def test_a_client_with_another_seed_is_not_understood() -> None:
    """The seed is part of the experiment, whose digest every message carries: a matrix that differs is found before it
    is used.
    """

    def parts(seed: int) -> Simulation:
        sensing = {"name": "sensing", "rate": 0.5, "seed": seed}
        given: dict[str, Any] = {"algorithm": {"name": "fedavg"}, "uplink": {"client": [sensing]}, "rounds": 1}
        return simulated(config.validate({"partition": {"scheme": "iid", "clients": 4}, "privacy": {}} | given))

    here, there = parts(1), parts(2)
    down = here.setup.algorithm.broadcast(here.setup.state("server"))
    command = Round(0, {0: Terms(largest=here.setup.public.largest)})
    message = wire.encode(here.site("run").header(0, -1), down)
    assert len(list(here.site("run").obey(command, [message]))) == 1
    with pytest.raises(WireError) as refusal:
        list(there.site("run").obey(command, [message]))
    assert refusal.value.code == "foreign-config"


# layer rates ----------------------------------------------------------------------------------------------------------


def test_the_published_rule_is_v_shaped() -> None:
    shares = (0, 0.05, 0.06, 0.14, 0.15, 0.1999, 0.2, 0.25, 0.26, 0.35, 0.36, 0.44, 0.45, 0.9)
    wanted = (0.5, 0.5, 0.4, 0.4, 0.3, 0.3, 0.2, 0.2, 0.3, 0.3, 0.4, 0.4, 0.5, 0.5)
    assert tuple(rate(share) for share in shares) == wanted
    switches = [s / 1000 for s in range(1, 1000) if rate(s / 1000) != rate((s - 1) / 1000)]
    assert switches == [0.055, 0.146, 0.2, 0.251, 0.351, 0.45]
    monotone = [0.2, 0.2, 0.2, 0.3, 0.4, *[0.5] * 6]
    assert [rate(s / 100, rule="monotone") for s in range(0, 101, 10)] == monotone


def test_shares_of_layers() -> None:
    norms = [3.0, 4.0]
    assert rates(norms) == [rate(0.6), rate(0.8)]
    assert rates(norms, share="sum_of_norms") == [rate(3 / 7), rate(4 / 7)]
    assert rates([0.0, 0.0]) == [0.5, 0.5]
    for bad in ({"least": 0.0}, {"most": 1.2}, {"least": 0.6}):
        with pytest.raises(ConfigError):
            rates(norms, **bad)  # type: ignore[arg-type]


def close(a: Any, b: Any, tolerance: float = 1e-9) -> None:
    assert torch.allclose(torch.as_tensor(a), torch.as_tensor(b), rtol=tolerance, atol=tolerance)
