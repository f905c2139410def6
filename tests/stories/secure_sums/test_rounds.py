"""Secure sums as whole runs: FedAvg within the rounding of the fixed point, whatever carries the sum; what is broken
off, refused, promised and counted.

Bounds are closed forms. Statistical tests are seeded and say how likely a correct sampler fails them.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino import tree
from sordino.config import Experiment
from sordino.ledger.ledger import State
from sordino.privacy.noise.sources import Counter
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.fixed_point import Layout, Quantise
from sordino.privacy.uplink.secure_stages import (
    Aggregated,
    Encrypted,
    SecureStage,
)
from sordino.privacy.uplink.stages import Weigh
from sordino.receipts.receipt import opened
from sordino.receipts.verify import verify
from sordino.runs.run import start
from sordino.runs.simulation import simulated
from tests.laws.test_executors import CLOSE, apart, paid
from tests.laws.traces import differences, finished, interrupted, trace
from tests.runs.test_ranks import forked
from tests.stories.secure_sums.sums import (
    CLEAR,
    CLIENTS,
    PROBED,
    SHARES,
    TEST_KEY,
    Sums,
    Table,
    Watched,
    equal,
    made,
    rows,
)

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


def model(folder: Path) -> torch.Tensor:
    return tree.flat(safetensors.torch.load_file(folder / "model.safetensors"))


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


@pytest.mark.one_fast
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


@pytest.mark.slow
def test_the_bound_catches_rounding_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken twin: half of the sums of five values rounded down are off by more than five halves."""
    monkeypatch.setattr(Layout, "encode", lambda self, x, who=-1: (np.floor(x * self.scale).astype(np.int64), 0))
    assert beyond(made("weigh", CLEAR, "secagg"), made("weigh")) > 1.2


@pytest.mark.slow
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


@pytest.mark.one_fast
@pytest.mark.parametrize("name", [pytest.param("paillier_fl", marks=pytest.mark.slow), "lattice_fl", "secagg_fl"])
def test_the_presets_are_fedavg(name: str) -> None:
    given: Table = {"name": name, "local_steps": 1}
    given |= {"mode": "probe"} if name == "paillier_fl" else {}
    base = made()
    preset = base.model_copy(update={"uplink": None, "algorithm": base.algorithm | given})
    plain = base.model_copy(update={"uplink": None, "algorithm": base.algorithm | {"local_steps": 1}})
    assert beyond(preset, plain) <= 1


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


@pytest.mark.one_fast
@pytest.mark.parametrize("stage", [Aggregated(), Encrypted("bfv")], ids=["secagg", "bfv"])
@settings(deadline=None, derandomize=True, max_examples=10)
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


@pytest.mark.slow
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
    assert sums.came.answered == sorted(survivors)
    assert not equal(few.mean, sums.mean(raw, sizes).mean)


@pytest.mark.slow
@pytest.mark.parametrize("late", [pytest.param(False, id="lost"), pytest.param(True, id="late")])
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "server",
    [
        pytest.param(True, id="noise of the server"),
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_an_empty_round_of_a_hidden_cohort_is_played_on_noise_alone(tmp_path: Path) -> None:
    """Broken off, it would show everybody that nobody was drawn: at a rate of 0.02 of 20 clients for 50 rounds, a delta
    of 1e-5 would be one of 2e-3. The noise is typed: a budget would size it for those who open sums, too.
    """
    grid: Table = {"name": "quantise", "bits": 20, "range": 2.0}
    tables: Table = {"rounds": 4, "cohort": {"name": "poisson", "rate": 0.15}, "privacy": {"delta": 1e-3}}
    for name, carrier in {"clear": [], "bfv": ["bfv"]}.items():
        server = [{"name": "noise", "neighbours": "zero_out", "multiplier": 1.0}]
        uplink = {"client": [{"name": "clip", "radius": 1.0}, grid, *carrier], "server": server}
        start(made(**tables, uplink=uplink), tmp_path / name)
    assert {row["active"] > 0 for row in rows(tmp_path / "bfv")} == {True, False}
    assert not any("aborted" in row["secure"] for row in rows(tmp_path / "bfv"))
    assert equal(model(tmp_path / "clear"), model(tmp_path / "bfv"))


WEIGHED: Table = {"uplink": ["weigh", "secagg"], "algorithm": ALGORITHMS["scaffold"]}


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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("tables", [PROBED, WEIGHED], ids=["paillier", "scaffold"])
def test_ranks_do_what_the_loop_does(tables: Table, tmp_path: Path) -> None:
    """Integers add up to the same, wherever their clients are: what is opened is theirs, bit for bit."""
    loop = finished(made(**tables, engine={"executor": "stack"}), tmp_path / "loop")  # as ranks train
    (tmp_path / "e.toml").write_text(made(**tables, engine={"executor": "ranks"}).toml())
    done = forked(2, "run", tmp_path / "e.toml", "--out", tmp_path / "ranks")
    assert done.returncode == 0, done.stderr
    assert [paid(entry) for entry in loop.ledger] == [paid(entry) for entry in trace(tmp_path / "ranks").ledger]
    assert apart(tmp_path / "loop", tmp_path / "ranks") < CLOSE
    assert [row["secure"] for row in rows(tmp_path / "loop")] == [row["secure"] for row in rows(tmp_path / "ranks")]
    assert verify(tmp_path / "ranks") == []


@pytest.mark.slow
def test_one_rank_opens_the_sum(one_rank: None, tmp_path: Path) -> None:
    loop = finished(made(**SHARES), tmp_path / "loop")
    rank = finished(made(**SHARES, engine={"executor": "ranks"}), tmp_path / "rank")
    assert [paid(entry) for entry in loop.ledger] == [paid(entry) for entry in rank.ledger]
    assert apart(tmp_path / "loop", tmp_path / "rank") < CLOSE
