"""Secure sums as whole runs: FedAvg within the rounding of the fixed point, whatever carries the sum; what is broken
off, refused, promised and counted.

Bounds are closed forms. Statistical tests are seeded and say how likely a correct sampler fails them.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from executors import Doing
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.traces import differences, finished, interrupted

from sordino import config, tree
from sordino.algorithms.fedavg import FedAvg
from sordino.config import Experiment, gates
from sordino.engine import channels, checkpoint, wire
from sordino.engine.channels import Adder, Ciphertexts, Masks
from sordino.engine.mail import Mail
from sordino.engine.secure_sum import SecureSum
from sordino.engine.server import Federation
from sordino.errors import (
    BackendUnavailable,
    EmptyClient,
    EmptyRound,
    HeadroomExceeded,
    NonFiniteUpdate,
    RangeSaturation,
    ServerHoldsKey,
    SordinoError,
    UnsoundGuarantee,
)
from sordino.ledger.claims import Claim
from sordino.ledger.events import DiscreteGaussian, Event, Gaussian, NonPrivate, Nothing, Poisson
from sordino.ledger.ledger import State
from sordino.privacy.noise.sources import Counter
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.coordinate_laplace import ClipCoordinates, CoordinateLaplace
from sordino.privacy.uplink.fixed_point import Quantise
from sordino.privacy.uplink.rules import RAW, ROSTER
from sordino.privacy.uplink.secure_stages import (
    COUNTED,
    HONEST,
    OWN_NOISE,
    SHARED,
    SUM_OF_ALL,
    Aggregated,
    Encrypted,
    NoiseShare,
    SecureStage,
)
from sordino.privacy.uplink.stages import Clip, Stage, Weigh
from sordino.round import Outcome, one_round
from sordino.runs import ranks
from sordino.runs.receipt import opened
from sordino.runs.run import start
from sordino.runs.simulation import simulated
from sordino.runs.verify import verify
from sordino.secure import paillier, secagg
from sordino.secure.layout import Layout
from sordino.types import Grant, Received, Terms

Table = dict[str, Any]
ROUNDS, CLIENTS = 2, 5
TEST_KEY: Table = {"name": "paillier", "key_bits": 2048, "testing": True}
CLEAR: Table = {"name": "quantise", "range": 16.0}  # integers, added in the clear
CARRIERS: dict[str, Any] = {  # all of them exact
    "secagg": "secagg",
    "bfv": "bfv",
    "bfv, probe": {"name": "bfv", "mode": "probe"},
    "paillier": TEST_KEY,
    "paillier, probe": {**TEST_KEY, "mode": "probe"},
    "paillier, authority": {**TEST_KEY, "keys": "authority", "at_least": 3},
}
ALGORITHMS: dict[str, Table] = {
    "fedavg": {"name": "fedavg"},
    "fedprox": {"name": "fedprox", "mu": 0.1},
    "scaffold": {"name": "scaffold"},
}


def made(*uplink: Any, **tables: Any) -> Experiment:
    """A small run of clients of unequal size; `uplink` is its client side."""
    table: Table = {
        "rounds": ROUNDS,
        "partition": {"scheme": "dirichlet", "clients": CLIENTS, "alpha": 1.0},
        "model": {"name": "logistic"},
        "cohort": {"name": "everyone"},
        "privacy": {},
        "evaluation": {"every": 99, "final": 0},
        "engine": {"executor": "loop"},
        "uplink": list(uplink),
    }
    algorithm = {"name": "fedavg", "local_steps": 2, "batch_size": 16, "lr": 0.1} | tables.pop("algorithm", {})
    return config.validate(table | {"algorithm": algorithm} | tables)


@pytest.fixture(autouse=True)
def one_test_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys for tests and their tables are made once; keys of full length in every run."""
    generate = channels.GENERATE["paillier"]
    monkeypatch.setitem(
        channels.GENERATE, "paillier", lambda stage: key_for_tests() if stage.testing else generate(stage)
    )


@lru_cache
def key_for_tests() -> paillier.PaillierSecret:
    return paillier.generate(2048, testing=True)


class Watched:
    """Rounds in this process, one at a time, with what was sent in each."""

    def __init__(self, experiment: Experiment) -> None:
        torch.set_num_threads(experiment.engine.threads)  # as a run does: sums are cut otherwise by another number
        self.parts = simulated(experiment)
        self.federation: Federation = self.parts.federation(":memory:", "run")
        self.clients = self.parts.site("run")
        self.terms: Mapping[int, Terms] = {}
        self.uploads: dict[int, Any] = {}

    def round(self, server: Any, t: int) -> Outcome:
        return one_round(self.federation, server, t, Doing(self._execute))

    def rounds(self, count: int) -> Iterator[tuple[Any, Outcome]]:
        server = self.parts.setup.state("server")
        for t in range(count):
            outcome = self.round(server, t)
            yield server, outcome
            server = outcome.server

    def _execute(self, t: int, down: Any, terms: Mapping[int, Terms]) -> Iterator[tuple[int, Any]]:
        self.terms, self.uploads = terms, {}
        for k, upload in self.clients(t, down, terms):
            self.uploads[k] = upload
            yield k, upload


def model(folder: Path) -> torch.Tensor:
    return tree.flat(safetensors.torch.load_file(folder / "model.safetensors"))


def rows(folder: Path) -> list[Table]:
    """metrics.jsonl without processor time."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in found:
        row.get("secure", {}).pop("cpu_seconds", None)
    return found


def equal(a: Any, b: Any) -> bool:
    """Bit for bit."""
    return all(
        torch.equal(x.reshape(-1).view(torch.uint8), y.reshape(-1).view(torch.uint8))
        for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True)
    )


# ---------------------------------------------------------------- the same as in the clear


def beyond(experiment: Experiment, plain: Experiment, steps: float = 0.0) -> float:
    """The largest difference of two means of the same round over the bound that is stated for it; `steps` more for an
    inexact scheme.
    """
    secret, clear = Watched(experiment), Watched(plain)
    server, worst = secret.parts.setup.state("server"), 0.0
    for t in range(experiment.rounds):
        ours, theirs = secret.round(server, t), clear.round(server, t)
        weights = [secret.federation.weights[k] for k in ours.answered]
        assert ours.answered == theirs.answered
        assert ours.secure["saturated"] == 0
        grid = secret.parts.setup.algorithm.uplink.grid
        bound = (len(weights) / 2 + steps) / (grid.scale * math.fsum(weights))
        for a, b in zip(tree.leaves(ours.received.mean), tree.leaves(theirs.received.mean), strict=True):
            slack = bound + 2.0**-23 * b.double().abs()  # both means are rounded to float32
            worst = max(worst, float(((a.double() - b.double()).abs() / slack).max()))
        server = ours.server
    return worst


QUICK = [("fedavg", "secagg"), ("fedavg", "ckks"), ("scaffold", "bfv"), ("fedprox", "paillier, probe")]
CARRIED = [(a, c) for a in ("fedavg", "scaffold", "fedprox") for c in ("secagg", "paillier, probe", "bfv", "ckks")]


@pytest.mark.parametrize(
    ("algorithm", "carrier"),
    [pytest.param(*pair, marks=[] if pair in QUICK else [pytest.mark.slow]) for pair in CARRIED],
)
def test_round_by_round_it_is_the_plain_algorithm_within_the_bound(algorithm: str, carrier: str) -> None:
    """Clients of unequal sizes: at most k / (2 s sum of a_i) in a coordinate of the mean; CKKS adds what its noise
    costs, sqrt(k) / 3 + 1/2 steps.
    """
    stage = CARRIERS.get(carrier, carrier)
    plain = made("weigh", algorithm=ALGORITHMS[algorithm])
    ours = made("weigh", {"name": "quantise", "range": 16.0}, stage, algorithm=ALGORITHMS[algorithm])
    inexact = math.sqrt(CLIENTS) / 3 + 0.5 if carrier == "ckks" else 0.0
    assert len(set(simulated(plain).setup.public.sizes)) > 1
    assert beyond(ours, plain, inexact) <= 1


def test_the_bound_catches_rounding_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken twin: half of the sums of five values rounded down are off by more than five halves."""
    monkeypatch.setattr(Layout, "encode", lambda self, x, who=-1: (np.floor(x * self.scale).astype(np.int64), 0))
    assert beyond(made("weigh", CLEAR, "secagg"), made("weigh")) > 1.2


@pytest.mark.parametrize(
    "algorithm", ["fedavg", *(pytest.param(a, marks=pytest.mark.slow) for a in ("fedprox", "scaffold"))]
)
def test_every_exact_carrier_trains_the_same_bits(algorithm: str, tmp_path: Path) -> None:
    """`full` and `probe`, keys of all and of one, masks: the model of integers added in the clear."""
    tables = {"algorithm": ALGORITHMS[algorithm]}
    start(made("weigh", CLEAR, **tables), tmp_path / "clear")
    carriers = CARRIERS if algorithm == "fedavg" else {"secagg": "secagg"}
    for name, stage in carriers.items():
        start(made("weigh", CLEAR, stage, **tables), tmp_path / name)
        assert equal(model(tmp_path / "clear"), model(tmp_path / name)), name
        mode = stage.get("mode", "full") if isinstance(stage, dict) else "full"
        assert {row["secure"]["mode"] for row in rows(tmp_path / name)} == {mode}
    start(made("weigh", {**CLEAR, "bits": 20}, "secagg", **tables), tmp_path / "coarse")  # control: another grid
    assert not equal(model(tmp_path / "clear"), model(tmp_path / "coarse"))


@pytest.mark.parametrize("name", [pytest.param("paillier_fl", marks=pytest.mark.slow), "lattice_fl", "secagg_fl"])
def test_the_presets_are_fedavg(name: str) -> None:
    given: Table = {"name": name, "local_steps": 1}
    given |= {"mode": "probe"} if name == "paillier_fl" else {}
    base = made()
    preset = base.model_copy(update={"uplink": None, "algorithm": base.algorithm | given})
    plain = base.model_copy(update={"uplink": None, "algorithm": base.algorithm | {"local_steps": 1}})
    assert beyond(preset, plain) <= 1


# ---------------------------------------------------------------- any tree, any weights


class Sums:
    """Uploads to their mean through one gate, without an experiment."""

    def __init__(self, uplink: Uplink) -> None:
        self.uplink, self._sum = uplink, SecureSum(uplink, "run")
        self.mail = Mail()

    def encoded(self, raw: Mapping[int, Any], sizes: Mapping[int, int], multiplier: float | None) -> dict[int, Any]:
        largest = max(sizes.values())
        return {
            k: self.uplink.encode(x, Grant(k, sizes[k], largest, Counter(1).child(k), multiplier))
            for k, x in raw.items()
        }

    def mean(
        self,
        raw: Mapping[int, Any],
        sizes: Mapping[int, int],
        multiplier: float | None = None,
        cohort: list[int] | None = None,
    ) -> Received[Any]:
        """Of clients 0, 1, ...; more than those in `raw` may have begun the round."""
        zero = tree.zeros_like(next(iter(raw.values())))
        weights = [self.uplink.weight(sizes[k], max(sizes.values())) for k in sorted(sizes)]
        cohort, sent = cohort or sorted(raw), self.encoded(raw, sizes, multiplier)
        self.mail, source = Mail(), Counter(2)
        summed = self._sum(0, iter(sent.items()), cohort, weights, self.uplink, zero, multiplier, source, self.mail)
        return self.uplink.receive(summed, zero, weights, math.fsum(weights), multiplier, source)


@st.composite
def federations(draw: st.DrawFn) -> tuple[dict[int, Any], dict[int, int], Layout]:
    layout = Layout(
        draw(st.sampled_from([8, 16, 24])), draw(st.sampled_from([6, 8])), draw(st.sampled_from([0.5, 4.0]))
    )
    shapes = draw(st.lists(st.lists(st.integers(1, 4), max_size=3), min_size=1, max_size=3))
    seed, people = draw(st.integers(0, 2**32 - 1)), draw(st.integers(2, 6))
    rng = torch.Generator().manual_seed(seed)
    raw = {
        k: {
            f"leaf{i}": (2 * torch.rand(shape, generator=rng, dtype=torch.float64) - 1) * layout.reach
            for i, shape in enumerate(shapes)
        }
        for k in range(people)
    }
    return raw, dict(enumerate(draw(st.lists(st.integers(1, 999), min_size=people, max_size=people)))), layout


@pytest.mark.parametrize("stage", [Aggregated(), Encrypted("bfv")], ids=["secagg", "bfv"])
@settings(deadline=None, derandomize=True, max_examples=15)
@given(federation=federations())
def test_any_sum_decodes_within_the_bound(
    stage: SecureStage, federation: tuple[dict[int, Any], dict[int, int], Layout]
) -> None:
    raw, sizes, layout = federation
    found = Sums(Uplink((Weigh(), Quantise(layout), stage))).mean(raw, sizes)
    weights = {k: n / max(sizes.values()) for k, n in sizes.items()}
    bound = len(raw) / (2 * layout.scale * math.fsum(weights.values()))
    for name, leaf in found.mean.items():
        exact = sum(weights[k] * raw[k][name] for k in raw) / math.fsum(weights.values())
        assert float((leaf - exact).abs().max()) <= bound * (1 + 1e-9)


# ---------------------------------------------------------------- who drops out


EIGHT: Table = {"partition": {"scheme": "iid", "clients": 8}, "rounds": 4}


def test_the_sum_over_those_who_stay_is_the_sum_of_their_integers() -> None:
    """Lost and late clients and slow ones: the mean is that of the survivors' integers bit for bit, as many as they
    are.
    """
    tables = {**EIGHT, "chaos": {"drop": 0.15, "slow": 0.1}, "stragglers": {"share": 0.25, "policy": "keep"}}
    secret, dropped = Watched(made("weigh", CLEAR, {"name": "secagg", "threshold": 5}, **tables)), 0
    clear = Uplink((Weigh(), Quantise(Layout(reach=16.0))))
    for _, outcome in secret.rounds(6):
        if "aborted" in outcome.secure:
            continue
        zero = tree.zeros_like(outcome.received.mean)
        survivors = {k: secret.uploads[k] for k in outcome.answered}
        mean = clear.receive(survivors, zero, secret.federation.weights, 1.0, None, Counter(0)).mean
        assert equal(mean, outcome.received.mean)
        dropped += len(outcome.active) - len(survivors)
    assert dropped >= 3


def test_nobody_can_tell_from_the_sum_who_else_began_the_round() -> None:
    """None or three of those who began drop out: the same bits from the same survivors, and other bits from others."""
    rng = torch.Generator().manual_seed(1)
    raw = {k: {"w": torch.randn(300, generator=rng) / 9} for k in range(10)}
    sizes = {k: k + 1 for k in raw}
    survivors = {k: raw[k] for k in raw if k not in (1, 4, 6)}
    sums = Sums(Uplink((Weigh(), Aggregated())))
    few, all_began = sums.mean(survivors, sizes), sums.mean(survivors, sizes, cohort=list(raw))
    assert equal(few.mean, all_began.mean)
    assert sums.mail.answered == sorted(survivors)
    assert not equal(few.mean, sums.mean(raw, sizes).mean)


@pytest.mark.parametrize(
    "late", [pytest.param(False, id="lost"), pytest.param(True, id="late", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "stage", ["secagg", {**TEST_KEY, "keys": "authority", "at_least": 7, "mode": "probe"}], ids=["secagg", "authority"]
)
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_below_the_threshold_the_round_is_broken_off(algorithm: str, stage: Any, late: bool) -> None:
    """Eight begin, six or seven must stay: model and controls stay as they are bit for bit, and the next round goes on
    from them.
    """
    tables = {**EIGHT, "chaos": {"slow" if late else "drop": 0.35}, "algorithm": ALGORITHMS[algorithm]}
    aborted = opened_ = 0
    for before, outcome in Watched(made("weigh", stage, **tables)).rounds(8):
        if "aborted" in outcome.secure:
            aborted += 1
            assert outcome.answered == []
            assert all(equal(getattr(before, name), getattr(outcome.server, name)) for name in before._fields[:-1])
        else:
            opened_ += 1
            assert not equal(before.x, outcome.server.x)
    assert aborted >= 2
    assert opened_ >= 1


@pytest.mark.parametrize(
    "server",
    [
        pytest.param(True, id="noise of the server", marks=pytest.mark.slow),
        pytest.param(False, id="noise in shares"),
    ],
)
def test_what_a_broken_round_has_reserved_stays_spent(server: bool, tmp_path: Path) -> None:
    """Noise alone must not move the model either; the run goes on, says so, and its receipt counts all rounds."""
    clip, share = {"name": "clip", "radius": 1.0}, {"name": "noise_share", "survivors": 6, "neighbours": "zero_out"}
    noise = {"name": "noise", "neighbours": "zero_out"}
    uplink: Table = {"client": [clip, *([] if server else [share]), "secagg"], "server": [noise] if server else []}
    tables = {**EIGHT, "uplink": uplink, "chaos": {"drop": 0.3}, "privacy": {"epsilon": 8.0, "delta": 1e-3}}
    experiment = made(**tables)
    done = start(experiment, tmp_path / "run")
    assert len(done.metrics) == EIGHT["rounds"]
    broken = [row["round"] for row in rows(tmp_path / "run") if "aborted" in row["secure"]]
    assert 0 < len(broken) < EIGHT["rounds"]
    assert verify(tmp_path / "run") == []
    assert done.receipt.rounds == EIGHT["rounds"]
    assert done.receipt.budget.spent_share.max == pytest.approx(1.0, abs=1e-6)
    _, federation = opened(tmp_path / "run")
    with federation.ledger as ledger:
        entries = list(ledger.entries())
        assert [entry.state for entry in entries] == [State.PUBLISHED] * EIGHT["rounds"]
        for k in range(8):
            assert ledger.spent(str(k)) == tuple(
                map(sum, zip(*(entry.charges[str(k)] for entry in entries), strict=True))
            )
    for before, outcome in Watched(experiment).rounds(EIGHT["rounds"]):
        assert equal(before.x, outcome.server.x) == ("aborted" in outcome.secure)


def test_a_cohort_of_one_or_nobody_is_broken_off() -> None:
    """Coins may send nobody, or somebody alone: whose upload is not opened."""
    cohort = {"name": "poisson", "rate": 0.2}
    alone = 0
    for before, outcome in Watched(made("weigh", "secagg", cohort=cohort)).rounds(12):
        if len(outcome.active) < 2:
            alone += 1
            assert "aborted" in outcome.secure
            assert equal(before.x, outcome.server.x)
    assert alone >= 2


# ---------------------------------------------------------------- elsewhere, and again


SHARES: Table = {
    "uplink": {
        "client": [
            {"name": "clip", "radius": 0.5},
            {"name": "noise_share", "survivors": 4, "neighbours": "zero_out"},
            "secagg",
        ]
    },
    "privacy": {"epsilon": 8.0, "delta": 1e-3},
}
WEIGHED: Table = {"uplink": ["weigh", "secagg"], "algorithm": ALGORITHMS["scaffold"]}
PROBED: Table = {"uplink": ["weigh", {**TEST_KEY, "mode": "probe"}]}


def alike(a: Any, b: Any) -> list[str]:
    """What differs of two runs, processor time apart."""
    return [name for name in differences(a, b) if name != "metrics"]


@pytest.mark.slow
@pytest.mark.parametrize("tables", [SHARES, WEIGHED], ids=["shares", "scaffold"])
def test_client_processes_do_what_the_loop_does(tables: Table, tmp_path: Path, quick_workers: None) -> None:
    loop = finished(made(**tables), tmp_path / "loop")
    apart = finished(made(**tables, engine={"executor": "processes", "workers": 2}), tmp_path / "apart")
    assert set(alike(loop, apart)) <= {"head", "ledger", "receipt"}  # these hold the digest of the experiment
    assert rows(tmp_path / "loop") == rows(tmp_path / "apart")
    assert equal(model(tmp_path / "loop"), model(tmp_path / "apart"))


@pytest.mark.parametrize(
    "tables",
    [SHARES, *(pytest.param(t, marks=pytest.mark.slow) for t in (PROBED, WEIGHED))],
    ids=["shares", "paillier", "scaffold"],
)
def test_killed_anywhere_it_is_the_run_that_never_stopped(tables: Table, tmp_path: Path) -> None:
    """Keys and masks are new, the sum is not: the same bytes, counted the same."""
    whole = finished(made(**tables, rounds=4), tmp_path / "whole")
    assert alike(whole, interrupted(made(**tables, rounds=4), tmp_path / "again")) == []
    assert rows(tmp_path / "whole") == rows(tmp_path / "again")
    assert verify(tmp_path / "again") == []
    other = finished(made(**tables, rounds=4, seed=7), tmp_path / "other")
    assert {"model", "ledger", "server"} <= set(alike(whole, other))  # control


def test_ranks_refuse(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(SordinoError) as refusal:
        ranks.Ranks(simulated(made("weigh", "secagg")), "run", tmp_path)
    assert refusal.value.code == "ranks-send-sums"


# ---------------------------------------------------------------- what does not start

CLIP, NOISE = {"name": "clip", "radius": 1.0}, {"name": "noise"}
SHARE: Table = {"name": "noise_share", "survivors": 3, "neighbours": "zero_out", "multiplier": 1.0}
MANY: Table = {"partition": {"scheme": "iid", "clients": 300}}
LACE: Table = {"name": "coordinate_laplace", "target": "per_client"}
REFUSED: dict[str, tuple[str, Any, Table]] = {
    "weights behind fixed point": ("stage-behind-fixed-point", ["quantise", "weigh", "secagg"], {}),
    "a clip behind fixed point": ("stage-behind-fixed-point", ["quantise", CLIP, "bfv"], {}),
    "a clip behind the secure sum": ("secure-sum-not-last", ["secagg", CLIP], {}),
    "weights behind encryption": ("secure-sum-not-last", [TEST_KEY, "weigh"], {}),
    "two secure sums": ("secure-sum-not-last", ["secagg", "bfv"], {}),
    "shares in the clear": ("shares-need-secagg", [CLIP, SHARE], {}),
    "shares under encryption": ("shares-need-secagg", [CLIP, SHARE, "bfv"], {}),
    "shares before fixed point": ("share-off-the-grid", [CLIP, SHARE, "quantise", "secagg"], {}),
    "shares of Laplace noise": ("shares-are-gaussian", [CLIP, {**SHARE, "law": "laplace"}, "secagg"], {}),
    "shares of one": ("threshold-too-small", [CLIP, {**SHARE, "survivors": 1}, "secagg"], {}),
    "a threshold of one": ("threshold-too-small", [{"name": "secagg", "threshold": 1}], {}),
    "fewer opened than have noise": ("too-few-shares", [CLIP, SHARE, {"name": "secagg", "threshold": 2}], {}),
    "shares and noise of the server": (
        "two-noises",
        {"client": [CLIP, SHARE, "secagg"], "server": [{**NOISE, "neighbours": "zero_out", "multiplier": 1.0}]},
        {},
    ),
    "an authority for one": ("authority-opens-one", [{**TEST_KEY, "keys": "authority", "at_least": 1}], {}),
    "a key at the server": ("server-holds-key", [{**TEST_KEY, "server_has_key": True}], {}),
    "a lattice key at the server": ("server-holds-key", [{"name": "bfv", "server_has_key": True}], {}),
    "a short key": ("weak-key", [{"name": "paillier", "key_bits": 1024}], {}),
    "a key for tests": ("weak-key", [{"name": "paillier", "key_bits": 2048}], {}),
    "a shared lattice key": ("backend-unavailable", [{"name": "bfv", "keys": "threshold"}], {}),
    "CKKS sums opened for the server": ("ckks-opened-for-server", [{"name": "ckks", "keys": "authority"}], {}),
    "a sum of more than a slot holds": ("headroom-exceeded", ["weigh", "secagg"], MANY),
    "a sum of more than a slot of Paillier holds": ("headroom-exceeded", [TEST_KEY], MANY),
    "a hidden cohort that may be everybody": (
        "headroom-exceeded",
        ["secagg"],
        {**MANY, "cohort": {"name": "poisson", "rate": 0.1}},
    ),
    "a sum that wraps around a plaintext": (
        "plaintext-overflow",
        [{"name": "quantise", "headroom": 12}, "bfv"],
        {"partition": {"scheme": "iid", "clients": 600}},
    ),
    "an authority that would never open": ("cohort-below-threshold", [{**TEST_KEY, "keys": "authority"}], {}),
    "more must stay than can begin": ("cohort-below-threshold", [{"name": "secagg", "threshold": 6}], {}),
    "a sum of one": ("cohort-below-threshold", ["secagg"], {"cohort": {"name": "round_robin", "size": 1}}),
    "a median of norms that nobody reads": ("stage-reads-each", ["user_level", "secagg"], {}),
    "central noise for each upload": ("stage-reads-each", {"client": ["secagg"], "server": [LACE]}, {}),
    "an algorithm that reads each upload": (
        "aggregate-only",
        ["secagg"],
        {"algorithm": {"name": f"{__name__}:Greedy"}},
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_does_not_start(name: str, tmp_path: Path) -> None:
    """Before there is a folder, a key or an upload."""
    code, uplink, tables = REFUSED[name]
    experiment = made(**tables).model_copy(update={"uplink": uplink})
    with pytest.raises(SordinoError) as refusal:
        start(experiment, tmp_path / "run")
    assert refusal.value.code == code
    assert refusal.value.fix or refusal.value.why
    assert not (tmp_path / "run").exists()


def test_what_is_refused_for_many_is_played_by_few() -> None:
    """The limits are those of the largest round: 100 of 300, all of 256, and a lattice that has no authority's
    threshold.
    """
    for uplink, tables in (
        (["secagg"], {**MANY, "cohort": {"name": "random", "size": 100}}),
        (["secagg"], {"partition": {"scheme": "iid", "clients": 256}}),
        ([{"name": "quantise", "headroom": 12}, "secagg"], {"partition": {"scheme": "iid", "clients": 600}}),
        ([{"name": "quantise", "headroom": 12}, "bfv"], {"partition": {"scheme": "iid", "clients": 512}}),
        ([{"name": "user_level", "clip": 1.0}, "secagg"], {}),
    ):
        assert simulated(made(*uplink, **tables)).setup.plan.offer is None


@dataclass(frozen=True)
class Greedy(FedAvg):
    reads_each = True


class Sly(FedAvg):
    """Reads single uploads and does not say so."""

    def update(self, s: Any, r: Received[Any], home: Any) -> Any:
        assert len(r.each) > 0
        return super().update(s, r, home)


@pytest.mark.parametrize("stage", ["secagg", "bfv"])
def test_single_uploads_are_for_nobody(stage: str) -> None:
    watched = Watched(made("weigh", stage))
    sly = Sly(local_steps=1, batch_size=16, uplink=watched.parts.setup.algorithm.uplink)
    watched.federation.algorithm = watched.clients.algorithm = sly
    with pytest.raises(UnsoundGuarantee) as refusal:
        watched.round(watched.parts.setup.state("server"), 0)
    assert refusal.value.code == "aggregate-only"


@pytest.mark.parametrize(
    ("backend", "stage"), [("gmpy2", TEST_KEY), ("tenseal", "bfv"), ("tenseal", {"name": "ckks", "mode": "probe"})]
)
def test_without_the_package_there_is_no_sum(
    backend: str, stage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never one in the clear."""
    monkeypatch.setitem(sys.modules, backend, None)
    with pytest.raises(BackendUnavailable) as refusal:
        start(made("weigh", stage), tmp_path / "run")
    assert refusal.value.code == "backend-unavailable"
    assert not (tmp_path / "run").exists()


def test_the_half_that_adds_is_given_no_secret() -> None:
    secret = key_for_tests()
    with pytest.raises(ServerHoldsKey):
        Adder(secret)  # type: ignore[arg-type]
    with pytest.raises(EmptyRound) as refusal:
        Adder(secret.public).total()
    assert refusal.value.code == "empty-round"


@pytest.mark.parametrize(
    ("holders", "keys_"), [(paillier.PaillierSecret, "authority"), (paillier.PaillierPublic, "shared")]
)
def test_clients_of_an_authority_blind_with_its_public_key(
    holders: type, keys_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other half of the key would not do: who blinds with the secret one holds it."""

    def asked(self: Any, count: int) -> list[int]:
        raise AssertionError("blinded with the wrong half")

    stage = Encrypted(testing=True, key_bits=2048, keys=keys_, at_least=2)  # type: ignore[arg-type]
    uploads = [(k, np.full(40, k, np.int64)) for k in range(3)]
    layout = Layout(bits=16, reach=1.0)
    key_for_tests().public.encrypt(uploads[0][1], 0, layout)  # its tables are made
    monkeypatch.setattr(holders, "djn", asked)
    opened = Ciphertexts(stage, layout).sum(0, uploads, [0, 1, 2], 40, None)
    assert opened.total.tolist() == [3] * 40
    other = Encrypted(testing=True, key_bits=2048, keys="authority" if keys_ == "shared" else "shared", at_least=2)
    with pytest.raises(AssertionError, match="wrong half"):
        Ciphertexts(other, layout).sum(0, uploads, [0, 1, 2], 40, None)


# ---------------------------------------------------------------- what is no number, and what is too large


def test_what_is_no_number_names_its_client_and_its_place() -> None:
    """The index is that of the whole upload, over all its leaves."""
    uplink = Uplink((Weigh(), Aggregated()))
    for bad in (math.nan, math.inf):
        upload = {"a": torch.zeros(3, 4), "b": torch.tensor([0.0, bad, bad])}
        with pytest.raises(NonFiniteUpdate, match=r"client 6 .*index 13") as refusal:
            uplink.encode(upload, Grant(6, 1, 2, Counter(0)))
        assert refusal.value.code == "non-finite-update"


@pytest.mark.parametrize("stage", ["secagg", {**TEST_KEY, "mode": "probe"}], ids=["secagg", "paillier"])
def test_a_round_with_such_an_upload_leaves_the_model(
    stage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second round breaks: what is kept is the first one, and what the second one reserved stays reserved."""
    experiment, local = made("weigh", stage), FedAvg.local
    first = Watched(experiment).round(simulated(experiment).setup.state("server"), 0).server

    def broken(self: FedAvg, task: Any, down: Any, *rest: Any) -> Any:
        up, state = local(self, task, down, *rest)
        return (tree.scale(math.nan, up) if int(down.round) else up), state

    monkeypatch.setattr(FedAvg, "local", broken)
    with pytest.raises(NonFiniteUpdate, match=r"client 0 .*index 0"):
        start(experiment, tmp_path / "run")
    setup, federation = opened(tmp_path / "run")
    with federation.ledger as ledger:
        assert [entry.state for entry in ledger.entries()] == [State.PUBLISHED, State.RESERVED]
    kept = checkpoint.load(tmp_path / "run" / "checkpoints", setup.state)
    assert kept is not None
    assert equal(kept.trees["server"], first)
    assert len(rows(tmp_path / "run")) == 1


def test_values_beyond_the_range_are_counted_or_refused(tmp_path: Path) -> None:
    narrow = {"name": "quantise", "range": 1e-3}
    start(made("weigh", narrow, "secagg"), tmp_path / "run")
    watched = Watched(made("weigh", narrow, "secagg"))
    for row, (_, outcome) in zip(rows(tmp_path / "run"), watched.rounds(ROUNDS), strict=True):
        top = Layout().offset - 1
        cut = sum(int((leaf.abs() == top).sum()) for up in watched.uploads.values() for leaf in tree.leaves(up))
        assert row["secure"]["saturated"] == outcome.secure["saturated"] == cut > 0
    with pytest.raises(RangeSaturation) as refusal:
        start(made("weigh", {**narrow, "strict": True}, "secagg"), tmp_path / "strict")
    assert refusal.value.code == "range-saturation"
    assert not (tmp_path / "strict" / "model.safetensors").exists()
    start(made("weigh", {**CLEAR, "strict": True}, "secagg"), tmp_path / "wide")
    assert {row["secure"]["saturated"] for row in rows(tmp_path / "wide")} == {0}


def test_a_broken_round_is_not_judged_by_its_values() -> None:
    """Nothing was added, so nothing was added wrongly."""
    sums = Sums(Uplink((Quantise(Layout(reach=1e-3), strict=True), Aggregated(4))))
    raw = {k: {"w": torch.ones(9)} for k in range(3)}
    assert sums.mean(raw, dict.fromkeys(range(5), 1), cohort=list(range(5))).mean["w"].tolist() == [0.0] * 9
    assert "aborted" in sums.mail.secure


@pytest.mark.parametrize(
    ("stage", "limit", "code"),
    [
        (Aggregated(), 64, "headroom-exceeded"),
        (Encrypted("paillier", 2048, testing=True), 64, "headroom-exceeded"),
        (Encrypted("bfv"), 64, "plaintext-overflow"),
    ],
    ids=["secagg", "paillier", "bfv"],
)
def test_too_many_are_refused_before_anything_is_encrypted(stage: SecureStage, limit: int, code: str) -> None:
    """Whoever did not plan the run learns it in the round."""

    def nobody() -> Iterator[tuple[int, Any]]:
        raise AssertionError("an upload was asked for")
        yield

    layout = Layout(16, 6)
    channel = channels.channel(stage, layout, "run")
    with pytest.raises(HeadroomExceeded) as refusal:
        channel.sum(0, nobody(), range(limit + 1), 4, None)
    assert refusal.value.code == code


def test_noise_that_does_not_fit_is_refused_before_anything_is_masked() -> None:
    share = NoiseShare(neighbours="zero_out", multiplier=40.0, survivors=2)
    sums = Sums(Uplink((Clip(1.0), Quantise(Layout(24, 1)), share, Aggregated())))
    with pytest.raises(UnsoundGuarantee) as refusal:
        sums.mean({0: {"w": torch.zeros(3)}, 1: {"w": torch.zeros(3)}}, {0: 1, 1: 1})
    assert refusal.value.code == "no-room-for-noise"
    with pytest.raises(UnsoundGuarantee) as refusal:
        channels._pieces(np.array([1 << 40]), Layout(8, 4))
    assert refusal.value.code == "no-room-for-noise"
    narrow = NoiseShare(neighbours="zero_out", multiplier=1.0, survivors=4)
    with pytest.raises(UnsoundGuarantee) as refusal:
        Sums(Uplink((Clip(0.01), Quantise(Layout(8)), narrow, Aggregated()))).mean(
            {k: {"w": torch.zeros(1)} for k in range(4)}, dict.fromkeys(range(4), 1)
        )
    assert refusal.value.code == "share-too-narrow"


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.lists(st.integers(-(2**12), 2**12), min_size=1, max_size=9), st.integers(6, 12))
def test_noise_larger_than_an_upload_travels_in_pieces(noise: list[int], bits: int) -> None:
    layout = Layout(bits, 16)
    found = channels._pieces(np.array(noise), layout)
    assert np.array_equal(np.sum(found, axis=0), noise)
    assert all(np.abs(piece).max() < layout.offset for piece in found)


# ---------------------------------------------------------------- what is promised to whom

WORTH = 1.5  # a multiplier
PLACES: dict[str, tuple[tuple[Stage, ...], tuple[Stage, ...]]] = {
    "none": ((Weigh(),), ()),
    "server": ((Clip(1.0),), (gates.noise(neighbours="zero_out", multiplier=WORTH),)),
    "hidden": ((Clip(1.0),), (gates.noise(neighbours="add_remove", multiplier=WORTH),)),
    "client": ((Clip(1.0), gates.noise(multiplier=WORTH)), ()),
}
KINDS: dict[str, SecureStage] = {
    "paillier, shared": Encrypted("paillier"),
    "bfv, shared": Encrypted("bfv"),
    "ckks, shared": Encrypted("ckks"),
    "paillier, authority": Encrypted("paillier", keys="authority"),
    "bfv, authority": Encrypted("bfv", keys="authority"),
    "secagg": Aggregated(4),
}


def promised(uplink: Uplink) -> dict[str, Claim]:
    """As a hidden cohort of rate 0.1 would make them."""

    def amplify(event: Any, adversary: str) -> Any:
        return event if adversary == "server" else Poisson(0.1, event)

    return {claim.adversary: claim for claim in uplink.claims(None, amplify)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_what_each_adversary_is_promised(place: str, kind: str) -> None:
    (client, server), stage = PLACES[place], KINDS[kind]
    plain, ours = promised(Uplink(client, server)), promised(Uplink((*client, stage), server))
    may_break = place == "hidden" and not kind.endswith("shared")
    for adversary in ("participants", "public"):
        if kind == "secagg" and place == "hidden" and adversary == "participants":
            # they are told who takes part: nothing is sampled for them, and only what a client sends is hidden
            event = plain[adversary].event
            assert isinstance(event, Poisson)
            assert (ours[adversary].event, ours[adversary].neighbours) == (event.event, "zero_out")
            assert ROSTER in ours[adversary].because
            continue
        if may_break:  # who sees a round broken off learns how many came
            assert ours[adversary] == replace(
                plain[adversary], status="conditional", because=(*plain[adversary].because, COUNTED)
            )
        else:
            assert ours[adversary] == plain[adversary]
    if place == "client":  # its own noise protects each upload, whoever reads it
        assert ours["server"] == plain["server"]
        assert isinstance(ours["server"].event, Gaussian)
        return
    assert RAW in plain["server"].because
    claim = ours["server"]
    assert RAW not in claim.because
    if kind.endswith("shared"):
        assert (claim.event, claim.status) == (Nothing(), "conditional")
        assert SHARED in claim.because
    else:
        what = SUM_OF_ALL if place == "none" else OWN_NOISE
        assert (claim.event, claim.status) == (NonPrivate(what), "none")


@pytest.mark.parametrize("neighbours", ["add_remove", "zero_out", "replace"])
def test_noise_in_shares_protects_from_the_server_too(neighbours: Any) -> None:
    share = NoiseShare(neighbours=neighbours, multiplier=WORTH, survivors=4)
    ours = promised(Uplink((Clip(1.0), share, Aggregated())))
    central = promised(Uplink((Clip(1.0),), (gates.noise(neighbours=neighbours, multiplier=WORTH),)))
    server = ours["server"]
    assert (server.event, server.neighbours, server.status) == (DiscreteGaussian(WORTH), "zero_out", "conditional")
    assert HONEST in server.because
    assert any("add their share of the noise and tell nobody" in line for line in server.because)
    for adversary in ("participants", "public"):
        # the same noise in whole steps: its price is that of its Renyi divergence, not the continuous curve
        told = adversary == "participants" and neighbours == "add_remove"  # who takes part
        sampled: Event = DiscreteGaussian(WORTH)
        assert ours[adversary].event == (sampled if told else Poisson(0.1, sampled))
        assert central[adversary].event == Poisson(0.1, Gaussian(WORTH))
        assert ours[adversary].neighbours == ("zero_out" if told else neighbours)
        assert ours[adversary].status == "conditional"
        assert (COUNTED in ours[adversary].because) == (neighbours == "add_remove" and not told)


POISSON: Table = {"cohort": {"name": "poisson", "rate": 0.9}}
ALL_OF: dict[str, tuple[Table, Any, Any]] = {  # tables, what the server is promised, and everybody else
    "nothing, a probe": ({"uplink": PROBED["uplink"]}, ("inf", "none"), ("inf", "none")),
    "nothing, authority": (
        {"uplink": ["weigh", {"name": "bfv", "keys": "authority", "at_least": 3}]},
        ("inf", "none"),
        ("inf", "none"),
    ),
    "nothing, secagg": ({"uplink": ["weigh", "secagg"]}, ("inf", "none"), ("inf", "none")),
    "server, bfv": (
        {"uplink": {"client": [CLIP, "bfv"], "server": [{**NOISE, "neighbours": "zero_out", "multiplier": 5.0}]}},
        (0.0, "conditional"),
        (1, "proved"),
    ),
    "server, hidden, secagg": (
        {
            **POISSON,
            "partition": {"scheme": "iid", "clients": 60},  # so many that a round of one is out of the question
            "uplink": {
                "client": [CLIP, "secagg"],
                "server": [{**NOISE, "neighbours": "add_remove", "multiplier": 5.0}],
            },
        },
        ("inf", "none"),
        # who takes part is told who else does, so for participants nothing rests on how many came
        {"participants": (1, "proved"), "public": (1, "conditional")},
    ),
    "shares": (
        {"uplink": [CLIP, {**SHARE, "multiplier": 5.0}, "secagg"]},
        (1, "conditional"),
        (1, "conditional"),
    ),
    "clients, secagg": (
        {"uplink": [CLIP, {**NOISE, "multiplier": 5.0}, {"name": "quantise", "range": 99.0}, "secagg"]},
        (1, "proved"),
        (1, "proved"),
    ),
}


FEW = ("nothing, authority", "server, bfv", "clients, secagg")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FEW else [pytest.mark.slow]) for n in ALL_OF])
def test_the_receipt_says_it_and_verify_agrees(name: str, tmp_path: Path, cli: Any) -> None:
    tables, server, others = ALL_OF[name]
    start(made(**tables), tmp_path / "run")
    found = json.loads((tmp_path / "run" / "privacy.json").read_text())
    said = {
        row["adversary"]: (row["epsilon"] if row["epsilon"] in ("inf", 0.0) else 1, row["status"])
        for row in found["guarantees"]
        if row["unit"] == "client"
    }
    told = others if isinstance(others, dict) else {"participants": others, "public": others}
    assert said == {"server": server, **told}
    assert cli("privacy", "verify", str(tmp_path / "run")).code == 0
    for row in found["guarantees"]:
        row["status"] = "proved" if row["status"] in ("conditional", "none") else "conditional"
    (tmp_path / "run" / "privacy.json").write_text(json.dumps(found))
    assert verify(tmp_path / "run") != []


def test_laplace_noise_for_coordinates_is_priced_in_their_own_units() -> None:
    """The grid adds half a step a coordinate to the bound, and no more: steps are no units."""
    clip, noise = ClipCoordinates(0.1), CoordinateLaplace(0.1, 10.0)
    plain = Uplink((clip,), (noise,)).fitted(100, 5.0).server[0]
    gridded = Uplink((clip, Aggregated()), (noise,)).fitted(100, 5.0).server[0]
    assert isinstance(plain, CoordinateLaplace)
    assert isinstance(gridded, CoordinateLaplace)
    assert gridded._bound == pytest.approx(plain._bound + 50 / Layout().scale, rel=1e-12)


# ---------------------------------------------------------------- how much noise there is

D = 20_000  # coordinates: the deviation of a sample variance is sqrt(2 / D) = 1 % of it
ODD = 6 * math.sqrt(2 / D)  # six of them: false alarms 2e-9


def variance(sums: Sums, survivors: int, began: int, multiplier: float) -> float:
    """Of the noise in an opened sum of nothing, over that of one central noise of the same multiplier."""
    raw = {k: {"w": torch.zeros(D, dtype=torch.float64)} for k in range(survivors)}
    mean = sums.mean(raw, dict.fromkeys(range(began), 1), multiplier, list(range(began))).mean["w"]
    assert sums.mail.answered == list(range(survivors))
    whole = (
        multiplier * Layout().scale * 1.0 + multiplier * math.sqrt(D) / 2
    )  # steps: the norm of a client is s C + sqrt(d) / 2
    return float(((mean * began * Layout().scale) ** 2).mean()) / whole**2


def test_the_shares_of_those_who_stay_are_one_central_noise() -> None:
    """Exactly as many as must stay: the variance is that of the central noise. More: theirs too."""
    share = NoiseShare(neighbours="zero_out", survivors=4)
    sums = Sums(Uplink((Clip(1.0), share, Aggregated())))
    assert variance(sums, 4, 6, WORTH) == pytest.approx(1.0, abs=ODD)
    assert variance(sums, 6, 6, WORTH) == pytest.approx(6 / 4, abs=6 / 4 * ODD)


def test_shares_for_all_who_begin_are_caught() -> None:
    """The broken twin divides by 6, and 4 stay: a third of the noise is missing."""
    twin = Uplink((Clip(1.0), NoiseShare(neighbours="zero_out", survivors=6), Aggregated()))
    object.__setattr__(twin, "client", (*twin.client[:-1], Aggregated(4)))  # past the refusal
    found = variance(Sums(twin), 4, 6, WORTH)
    assert found == pytest.approx(4 / 6, abs=ODD)
    assert abs(found - 1) > 5 * ODD


@pytest.mark.parametrize("stage", [Encrypted("bfv"), Aggregated(2)], ids=["inside", "after opening"])
def test_noise_of_the_server_is_one_noise(stage: SecureStage) -> None:
    """Added to ciphertexts or to the opened sum: once."""
    sums = Sums(Uplink((Clip(1.0), stage), (gates.noise(neighbours="zero_out"),)))
    assert variance(sums, 3, 3, WORTH) == pytest.approx(1.0, abs=ODD)


@pytest.mark.parametrize("stage", [Encrypted("bfv"), Aggregated(2)], ids=["inside", "after opening"])
def test_laplace_noise_for_coordinates_is_one_noise(stage: SecureStage) -> None:
    """Who holds a key opens a noised sum: the noise went in before. Variance 2 beta^2, whose sample deviates by sqrt(5
    / D): false alarms 2e-9.
    """
    beta = 5e-3
    uplink = Uplink((ClipCoordinates(0.1), stage), (CoordinateLaplace(0.1, beta=beta),))
    sums, raw = Sums(uplink), {k: {"w": torch.zeros(D, dtype=torch.float64)} for k in range(3)}
    found = float((sums.mean(raw, dict.fromkeys(raw, 1)).mean["w"] ** 2).mean())
    assert found == pytest.approx(2 * beta**2, rel=6 * math.sqrt(5 / D))
    if isinstance(stage, Encrypted):
        zero, given = (
            {"w": torch.zeros(D, dtype=torch.float64)},
            iter(sums.encoded(raw, dict.fromkeys(raw, 1), None).items()),
        )
        summed = SecureSum(uplink, "run")(0, given, [0, 1, 2], [1.0] * 3, uplink, zero, None, Counter(2), Mail())
        assert summed.noised
        assert float(summed.total["w"].abs().double().mean()) > 0


def test_all_shares_of_a_round_have_one_multiplier() -> None:
    """Clients that come once and clients that come twice have other prices; their noise is cut for the dearest."""
    tables = SHARES | {
        "cohort": {"name": "round_robin", "size": 4},
        "rounds": 2,
        "partition": {"scheme": "iid", "clients": 6},
    }
    watched = Watched(made(**tables))
    for _, outcome in watched.rounds(2):
        assert len(outcome.answered) == 4
        assert {told.multiplier for told in watched.terms.values()} == {used := watched.federation._central}
        plan = watched.federation.plan
        own = [price.multiplier for k in watched.terms if (price := plan.price(k, 0, (0,)))]
        assert used == pytest.approx(max(own), rel=1e-9)
        assert min(own) < 0.9 * max(own)  # control: they would differ


def test_rounding_adds_half_a_step_in_every_coordinate_to_the_sensitivity() -> None:
    """s C + sqrt(d) / 2 in the 2-norm; an upload of halves that round up passes s C alone."""
    layout = Layout(10, 8)
    coordinates, steps = 4000, 0.5001
    radius = steps / layout.scale * math.sqrt(coordinates)
    uplink = Uplink((Clip(radius), Quantise(layout), NoiseShare(neighbours="zero_out", multiplier=9.0), Aggregated()))
    bound = Uplink((Clip(radius), Quantise(layout))).bound(coordinates).l2
    assert bound == pytest.approx(layout.scale * radius + math.sqrt(coordinates) / 2)
    assert uplink.client[2].sensitivity(Uplink((Clip(radius), Quantise(layout))).bound(coordinates)) == bound  # type: ignore[attr-defined]
    worst = {"w": torch.full((coordinates,), steps / layout.scale, dtype=torch.float64) * 1.001}
    rng, largest = torch.Generator().manual_seed(3), 0.0
    for upload in (worst, *({"w": torch.randn(coordinates, generator=rng)} for _ in range(5))):
        sent = Uplink((Clip(radius), Quantise(layout))).encode(upload, Grant(0, 1, 1, Counter(0)))
        largest = max(largest, float(sent["w"].double().norm()))
    assert layout.scale * radius < largest <= bound


# ---------------------------------------------------------------- how much travels


@pytest.mark.parametrize("stage", ["bfv", "ckks", TEST_KEY], ids=["bfv", "ckks", "paillier"])
def test_bytes_up_are_the_messages_that_were_added(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    take = Adder.take

    def counted(self: Adder, message: bytes, expected: Any) -> None:
        sent.append(len(message))
        take(self, message, expected)

    monkeypatch.setattr(Adder, "take", counted)
    for _, outcome in Watched(made("weigh", stage)).rounds(2):
        assert outcome.bytes_up == sum(sent[-CLIENTS:])
        assert outcome.payload == sent[-1]
    assert len(sent) == 2 * CLIENTS


def test_bytes_up_of_masks_are_all_that_clients_send(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    receive = secagg.Aggregator.receive

    def counted(self: secagg.Aggregator, data: bytes) -> None:
        sent.append(len(data))
        receive(self, data)

    monkeypatch.setattr(secagg.Aggregator, "receive", counted)
    for _, outcome in Watched(made("weigh", "secagg")).rounds(1):
        assert outcome.bytes_up == sum(sent)
        assert len(sent) == 4 * CLIENTS  # advert, shares, upload, answer


@pytest.mark.parametrize("keys_", ["shared", "authority"])
def test_who_holds_a_key_is_sent_the_sum(keys_: str) -> None:
    """The first model is everybody's; then it is the sum of the round before, or the model that an authority opened."""
    watched = Watched(made("weigh", {**TEST_KEY, "keys": keys_, "at_least": 2}))
    for t, (before, outcome) in enumerate(watched.rounds(3)):
        down = watched.parts.setup.algorithm.broadcast(before)
        plain = CLIENTS * wire.size(watched.federation.header(t, -1), wire.schema(down))
        assert outcome.bytes_down == (CLIENTS * outcome.payload if t and keys_ == "shared" else plain)


@pytest.mark.slow
def test_packed_paillier_is_twice_as_long_as_the_model() -> None:
    """28,938 parameters under 3,072 bits: 308 ciphertexts of 768 bytes."""
    size, layout = 28_938, Layout()
    channel = Ciphertexts(Encrypted(mode="probe"), layout)
    values = np.arange(size) - size // 2
    found = channel.sum(0, ((k, values) for k in range(3)), range(3), size, None)
    assert np.array_equal(found.total, 3 * values)
    header = found.payload - 308 * 768
    assert 0 < header < 200
    assert found.bytes_up == 3 * found.payload
    assert found.payload / (4 * size) <= 2.1


def test_masked_uploads_are_as_long_as_the_model() -> None:
    """Four bytes a value, and a guard; peers and headers cost the same whatever the size."""
    layout, cost = Layout(), {}
    for size in (1000, 5000):
        zeros = np.zeros(size, np.int64)
        found = Masks(Aggregated(), layout, "run").sum(0, ((k, zeros) for k in range(4)), range(4), size, None)
        cost[size] = found.payload
    assert cost[5000] - cost[1000] == 4 * 4000


def test_a_client_without_examples_is_refused_before_the_run(tmp_path: Path) -> None:
    few = {"scheme": "dirichlet", "clients": 60, "alpha": 0.01, "min_size": 0}
    with pytest.raises(EmptyClient) as refusal:
        start(config.validate({"partition": few, "algorithm": {"name": "secagg_fl"}, "privacy": {}}), tmp_path / "run")
    assert refusal.value.code == "empty-client"
    assert "client" in refusal.value.what
    assert not (tmp_path / "run").exists()
