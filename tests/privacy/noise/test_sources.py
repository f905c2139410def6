"""The noise that the public calls really add: its law, its scale, and that no two draws share anything.

Each law test looks at 10^6 draws and rejects at p < 1e-6; the standard deviation must lie within 0.5% (7 standard
errors). Seeds are fixed for `counter`; `system` draws anew each time, at a false-alarm rate of 1e-6 per law and below
1e-11 per deviation.
"""

from __future__ import annotations

import multiprocessing as mp
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from sordino import keys, tree
from sordino.algorithms.fedavg import Client, FedAvg, Server
from sordino.audits.noise_sources import Weak
from sordino.privacy.noise import GaussianNoise, LaplaceNoise, NoiseLaw
from sordino.privacy.noise.sources import SECRET, Counter, SystemNoise, for_client, for_round, for_run
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.stages import Clip, Noise
from sordino.tasks.quadratic import Quadratic
from sordino.types import Examples, Grant, LocalWork, NoiseSource, Params
from tests.privacy.doubles import linear

DRAWS = 10**6
Z = 1.3
ONCE = LocalWork(1, None, None)
PARTS = [("values", 0), ("values", 1), ("labels", 0), ("labels", 1)]
Law = Literal["gaussian", "laplace"]
LAWS: dict[Law, NoiseLaw] = {"gaussian": GaussianNoise(), "laplace": LaplaceNoise()}
ORDER: dict[Law, Literal[1, 2]] = {"gaussian": 2, "laplace": 1}
Floats = NDArray[np.float64]


def from_reader(law: Law, source: NoiseSource, count: int) -> Floats:
    """Noise of one gradient over one example whose own gradient is 0, in units of the scale promised."""
    reader, size = NoisyGradient(0.4, LAWS[law]), 1
    rows = Examples(torch.zeros(size, count, dtype=torch.float64), torch.zeros(size))
    shard = reader.open(rows, Grant(0, size, size, source, Z), Quadratic(count))
    (batch,) = shard.batches(ONCE, keys.root(1))
    noise = tree.flat(batch.grad(linear, {"w": torch.zeros(count, dtype=torch.float64)}))
    return (noise / reader.noise_std(Z, size)).numpy()


def from_client(law: Law, source: NoiseSource, count: int) -> Floats:
    uplink = Uplink(client=(Clip(0.4, ORDER[law]), Noise(LAWS[law])))
    sent = uplink.encode({"w": torch.zeros(count, dtype=torch.float64)}, Grant(0, 1, 1, source, Z))
    return (tree.flat(sent) / (Z * 2 * 0.4)).numpy()


def from_server(law: Law, source: NoiseSource, count: int) -> Floats:
    uplink = Uplink(client=(Clip(0.4, ORDER[law]),), server=(Noise(LAWS[law], "zero_out"),))
    zero = {"w": torch.zeros(count, dtype=torch.float64)}
    mean = uplink.receive({}, zero, [1.0] * 3, 3.0, Z, source).mean
    return (tree.flat(mean) * 3.0 / (Z * 0.4)).numpy()


Release = Callable[[Law, NoiseSource, int], Floats]
RELEASES: dict[str, Release] = {"reader": from_reader, "client": from_client, "server": from_server}


def p_value(law: Law, noise: Floats) -> float:
    return float(stats.kstest(noise, {"gaussian": "norm", "laplace": "laplace"}[law], method="asymp").pvalue)


SOURCES: dict[str, NoiseSource] = {"counter": Counter(keys.word(keys.root(9))), "system": SystemNoise()}
# every place, law and source, and both laws from either source; the other combinations in the slow tier
FIRST = {
    ("client", "laplace", "system"),
    ("client", "gaussian", "counter"), ("server", "laplace", "counter"),
}  # fmt: skip


@pytest.mark.one_fast
@pytest.mark.parametrize(
    ("where", "law", "source"),
    [
        pytest.param(w, law, s, id=f"{w}-{law}-{n}", marks=[pytest.mark.slow] * ((w, law, n) not in FIRST))
        for w in RELEASES
        for law in LAWS
        for n, s in SOURCES.items()
    ],
)
def test_the_law_and_the_scale(where: str, law: Law, source: NoiseSource) -> None:
    noise = RELEASES[where](law, source, DRAWS)
    assert p_value(law, noise) > 1e-6
    if law == "gaussian":
        assert np.std(noise) == pytest.approx(1, rel=0.005)
    else:
        assert np.mean(np.abs(noise)) == pytest.approx(1, rel=0.005)
        assert np.var(noise) == pytest.approx(2, rel=0.02)  # its standard error is 0.22%
    assert abs(np.mean(noise)) < 0.01


@pytest.mark.one_fast
@pytest.mark.parametrize(
    ("law", "factor"),
    [
        ("gaussian", 1.02),
        ("laplace", 0.98),
        *(pytest.param(*p, marks=pytest.mark.slow) for p in (("gaussian", 0.98), ("laplace", 1.02))),
    ],
)
def test_a_scale_wrong_by_two_percent_is_rejected(law: Law, factor: float) -> None:
    noise = from_client(law, Weak(Counter(3), factor), DRAWS)
    assert p_value(law, noise) < 1e-6


@pytest.mark.parametrize("source", [Counter(4), SystemNoise()], ids=lambda s: s.name)
def test_a_tiny_scale_is_not_lost_in_single_precision(source: NoiseSource) -> None:
    sent = Uplink(client=(Clip(1e-30), Noise())).encode({"w": torch.zeros(10**5)}, Grant(0, 1, 1, source, 1e-3))
    assert float(sent["w"].double().std()) == pytest.approx(2e-33, rel=0.02, abs=0)


def test_a_cheap_bell_curve_is_rejected() -> None:
    # twelve uniforms: right mean, right deviation, thin tails
    noise = np.stack([keys.uniform(keys.fold(3, i), 10**5).numpy() for i in range(12)]).sum(0) - 6
    assert np.std(noise) == pytest.approx(1, rel=0.01)
    assert p_value("gaussian", np.tile(noise, 10)) < 1e-6


# ---------------------------------------------------------------- nothing is drawn twice


def drawn_in(seed: int, t: int, client: int, where: str) -> list[Floats]:
    """All noise of one client in one round, 1000 coordinates per layer; or the server's, where `client` is -1."""
    layers = {"a": torch.zeros(1000, dtype=torch.float64), "b": torch.zeros(20, 50, dtype=torch.float64)}
    key = keys.word(keys.root(seed))
    if where == "server":
        uplink = Uplink(client=(Clip(1.0),), server=(Noise(neighbours="zero_out"),))
        made = [uplink.receive({}, layers, [1.0], 1.0, 1.0, for_round("counter", key, t).child("server")).mean]
    elif where == "client":
        grant = Grant(client, 1, 1, for_client(for_round("counter", key, t), client), 1.0)
        made = [Uplink(client=(Clip(1.0), Noise())).encode(layers, grant)]
    else:
        rows = Examples(torch.zeros(1, 2000, dtype=torch.float64), torch.zeros(1))
        grant = Grant(client, 1, 1, for_client(for_round("counter", key, t), client), 1.0)
        shard = NoisyGradient(1.0).open(rows, grant, Quadratic(1))
        made = [batch.grad(linear, layers) for batch in shard.batches(LocalWork(None, 2, None), keys.root(1))]
    return [leaf.reshape(-1).numpy() for parts in made for leaf in tree.leaves(parts)]


GRID = [
    (seed, t, client, where)
    for seed in (0, 1)
    for t in (0, 1, 2)
    for client, where in ((-1, "server"), (0, "client"), (1, "client"), (7, "client"), (0, "read"), (1, "read"))
]


def independent(streams: list[Floats]) -> bool:
    """No 64-bit value twice, and no pair of streams correlated beyond 7 standard errors (1e-8 over all pairs)."""
    drawn = np.stack(streams)
    words = drawn.view(np.uint64)
    correlations = np.corrcoef(drawn) - np.eye(len(drawn))
    return len(np.unique(words)) == words.size and np.abs(correlations).max() < 7 / np.sqrt(drawn.shape[1])


@pytest.mark.slow
def test_rounds_clients_reads_layers_and_seeds_share_no_noise() -> None:
    streams = [noise for place in GRID for noise in drawn_in(*place)]
    assert len(streams) == 2 * 3 * (2 + 3 * 2 + 2 * 4)
    assert independent(streams)
    assert not independent([*streams, streams[5]])  # the same noise again
    assert not independent([*streams, streams[5] + 0.3 * streams[6]])  # or leaning on another


def test_the_same_place_draws_the_same_noise_again() -> None:
    assert all(
        np.array_equal(a, b) for a, b in zip(drawn_in(1, 2, 7, "client"), drawn_in(1, 2, 7, "client"), strict=True)
    )


def test_what_is_drawn_once_in_a_run_is_each_client_s_own_and_the_same_again() -> None:
    """64 coins of every client, of its values and its labels, in two blocks: by one secret all of them are other
    ones."""
    secret = bytes(range(SECRET))

    def drawn() -> list[list[bool]]:
        mine = [for_run("system", 0, secret, k).child(what, block) for k in (0, 1) for what, block in PARTS]
        return [source.coins(64, 0.5).tolist() for source in mine]

    assert distinct(drawn())
    assert drawn() == drawn()
    assert distinct([*drawn(), for_run("system", 0, secret[::-1], 0).child(*PARTS[0]).coins(64, 0.5).tolist()])


def one_process(source: SystemNoise, out: Connection) -> None:
    out.send([source.coins(64, 0.5).tolist(), source.child("any").coins(64, 0.5).tolist()])


def coins_of_processes(method: Literal["fork", "spawn"], sources: list[Any]) -> list[list[bool]]:
    context: Any = mp.get_context(method)
    drawn: list[list[bool]] = []
    for source in sources:
        here, there = context.Pipe()
        process = context.Process(target=one_process, args=(source, there))
        process.start()
        drawn += here.recv()
        process.join()
    return drawn


def distinct(streams: list[list[bool]]) -> bool:
    """64 fair coins each: a repetition by chance has probability below 1e-16."""
    return len({tuple(stream) for stream in streams}) == len(streams)


@pytest.mark.slow
def test_the_system_source_never_repeats() -> None:
    constructed = [SystemNoise().coins(64, 0.5).tolist() for _ in range(2000)]
    assert distinct(constructed)
    parent = SystemNoise()
    used = [parent.coins(64, 0.5).tolist()]
    shared = coins_of_processes("fork", [parent] * 8)  # one object, copied into 8 processes
    assert distinct([*used, *shared, parent.coins(64, 0.5).tolist()])


def test_a_forked_stream_without_a_guard_is_caught() -> None:
    assert not distinct(coins_of_processes("fork", [Frozen()] * 2))


class Frozen(SystemNoise):
    """A twin whose stream a fork copies."""

    def __init__(self) -> None:
        super().__init__()
        self._stream_at_birth = super()._words(10**4)
        self._at = 0

    def _words(self, count: int) -> NDArray[np.uint64]:
        self._at += count
        return self._stream_at_birth[self._at - count : self._at]

    def child(self, *parts: int | str) -> NoiseSource:
        return self


def test_no_word_of_the_system_ends_a_stream_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that begins at a random block has its last one at any time: of a million numbers one draw in 17,000 then
    failed, and its round was lost."""
    for byte in (b"\0", b"\xff"):
        monkeypatch.setattr(os, "urandom", lambda size, byte=byte: byte * size)
        drawn = SystemNoise().words(10**4)
        assert len(drawn.unique()) == len(drawn)


@pytest.mark.slow
def test_spawned_processes_share_no_stream() -> None:
    assert distinct(coins_of_processes("spawn", [SystemNoise() for _ in range(3)]))


# ---------------------------------------------------------------- where it is added


@pytest.mark.slow
def test_noise_on_the_parameters_is_noise_on_the_gradient() -> None:
    # one step from w: w - eta (g + noise) is (w - eta g) + noise of eta times the scale, the same stream in both
    eta, clip, n, dim = 0.3, 2.0, 5, 40
    x = torch.randn(n, dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rows, w = Examples(x, torch.zeros(n)), {"w": torch.ones(dim, dtype=torch.float64)}
    reader, source = NoisyGradient(clip), Counter(12)
    algorithm = FedAvg(eta, None, 1, "full", read=reader)

    class Linear(Quadratic):
        def losses(self, params: Params, x: Tensor, y: Tensor, keys: Tensor) -> Tensor:
            return linear(params, x, y, keys)

    def delta(std: float) -> Tensor:
        grant = Grant(0, n, n, source, std)
        shard = reader.open(rows, grant, Linear(dim))
        state, down = Client(torch.tensor(0)), Server(w, torch.tensor(0))
        return tree.formed(algorithm.local(Linear(dim), down, state, shard, keys.root(1))[0]).delta["w"]

    silent = delta(1e-300)
    on_parameters = source.child("read", 0).child("w").noisy(GaussianNoise(), silent, eta * 2 * clip / n * Z)
    flipped = 2 * silent - on_parameters  # the step goes against the gradient, so the noise comes with its sign turned
    torch.testing.assert_close(delta(Z), flipped, rtol=1e-9, atol=1e-12)
