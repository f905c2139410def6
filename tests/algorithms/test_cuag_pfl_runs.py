"""CUAG-PFL and its baselines as whole runs: rates that travel, the same bytes by every executor and after every crash,
and receipts that say what is not proved.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from sordino import config, tree
from sordino.accounting.gaussian_dp import epsilon_of
from sordino.accounting.published import composed
from sordino.algorithms import all_algorithms
from sordino.config import Experiment
from sordino.engine import wire
from sordino.engine.server import FederatedServer
from sordino.privacy.uplink.as_published import EACH_ROUND, NOT_STEPS, ONE_OF_B, OWN_NORM, PER_LAYER
from sordino.privacy.uplink.compression import rates, runs
from sordino.receipts.verify import verify
from sordino.round import Outcome, one_round
from sordino.runs.run import resume, start
from sordino.runs.simulation import simulated
from sordino.types import Params, Terms
from tests.helpers.command_line import Said
from tests.helpers.executors import Doing
from tests.laws.traces import differences, finished, interrupted, killed_at, trace

TWO = {"executor": "processes", "workers": 2}
POISSON = {"name": "poisson", "rate": 0.5}
PUBLISHED = {"name": "cuag_pfl", "variant": "published"}
CENTRAL = {"name": "cuag_pfl", "variant": "central_client", "adapt": 1.0, "multiplier": 0.5}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "published": (PUBLISHED, {}),
    "central": (CENTRAL, {"cohort": POISSON}),
    "udp": ({"name": "udp"}, {}),
    "cells": ({"name": "cuag_pfl", "variant": "local_sample", "cells": 4, "multiplier": 2.0}, {}),
}


def made(algorithm: Mapping[str, Any], **tables: Any) -> Experiment:
    table: dict[str, Any] = {
        "rounds": 3,
        "partition": {"scheme": "active", "clients": 8, "k": 3},
        "model": {"name": "mlp", "hidden": 12},
        "cohort": {"name": "random", "size": 3},
        "privacy": {},
        "evaluation": {"every": 3, "final": 1},
        "engine": {"executor": "loop"},
        "algorithm": {"lr": 0.05, "local_steps": 2, "batch_size": 15} | dict(algorithm),
    }
    return config.validate(table | tables)


class Watched:
    """Rounds in this process, with what was sent in each."""

    def __init__(self, experiment: Experiment) -> None:
        self.parts = simulated(experiment)
        self.federation: FederatedServer = self.parts.federation(":memory:", "run")
        self.clients, self.server = self.parts.site("run"), self.parts.setup.state("server")
        self.down: Any = None
        self.uploads: dict[int, Any] = {}

    def rounds(self, count: int) -> Iterator[Outcome]:
        with self.federation.ledger:
            for t in range(count):
                outcome = one_round(self.federation, self.server, t, Doing(self._execute))
                self.server = outcome.server
                yield outcome

    def _execute(self, t: int, down: Any, terms: Mapping[int, Terms]) -> Iterator[tuple[int, Any]]:
        self.down, self.uploads = down, {}
        for k, upload in self.clients.each(t, down, terms):
            self.uploads[k] = upload
            yield k, upload


# rates and radii that travel ------------------------------------------------------------------------------------------


@pytest.mark.one_fast
@pytest.mark.parametrize("algorithm", [PUBLISHED, {**PUBLISHED, "share": "sum_of_norms"}], ids=["whole", "sum"])
def test_rates_come_from_the_model_and_then_from_the_last_update(algorithm: dict[str, Any]) -> None:
    """They go down beside the model, and what comes up are as many numbers as they say: sum of m_l, four bytes each."""
    run = Watched(made(algorithm))
    share = algorithm.get("share", "norm_of_whole")
    looked: Params = run.server.own.x  # the model of the first round
    seen = []
    for t, outcome in enumerate(run.rounds(4)):
        norms = [float(leaf.double().norm()) for leaf in looked.values()]
        wanted = [round(10 * r) for r in rates(norms, share=share)]
        assert run.down.public[0].tolist() == wanted
        assert run.down.public[0].dtype == torch.uint8
        seen.append(wanted)
        kept = sum(runs(leaf.numel(), r / 10).many for leaf, r in zip(looked.values(), wanted, strict=True))
        assert len(run.uploads) == 3
        bytes_up = 0
        for k, upload in run.uploads.items():
            assert tree.size(upload) == kept < tree.size(looked)
            message = wire.encode(run.federation.inbox.header(t, k), upload)
            assert wire.payload_bytes(wire.schema(upload)) == 4 * kept
            bytes_up += len(message)
        assert outcome.bytes_up == bytes_up
        plain = wire.size(run.federation.inbox.header(t, -1), wire.schema(run.down.own))
        told = wire.size(run.federation.inbox.header(t, -1), wire.schema(run.down))
        assert told - plain == len(wanted)  # one byte a layer
        assert outcome.bytes_down == 3 * told
        looked = outcome.received.mean.delta
    assert len({tuple(each) for each in seen}) > 1  # they do change


def test_one_rate_for_all_says_nothing_and_changes_nothing() -> None:
    run = Watched(made({**PUBLISHED, "rate": 0.3}))
    for _ in run.rounds(2):
        x = run.server.x
        assert {tree.size(upload) for upload in run.uploads.values()} == {
            sum(runs(v.numel(), 0.3).many for v in x.values())
        }


@pytest.mark.slow
def test_radii_come_from_the_last_mean_beneath_its_noise() -> None:
    quiet = {**CENTRAL, "multiplier": 1e-3}  # so quiet that norms can be seen
    run, radii = Watched(made(quiet, cohort=POISSON, privacy={})), []
    for outcome in run.rounds(4):
        radii.append(run.down.public[1].tolist())
        assert run.server.public[1].shape == (4,)
        assert outcome.received.public[1].tolist() == run.server.public[1].tolist()
    assert radii[0] == [1.0] * 4
    assert radii[1] != radii[0]
    assert all(1e-3 <= radius <= 1e3 for each in radii for radius in each)


def test_udp_clips_to_the_median_norm_of_the_round_before() -> None:
    run, radius = Watched(made({"name": "udp"})), 1.0
    for _ in run.rounds(3):
        assert float(run.down.public[0]) == pytest.approx(radius)
        norms = sorted(float(upload[1]) for upload in run.uploads.values())
        assert all(tree.size(upload) == tree.size(run.server.own.x) + 1 for upload in run.uploads.values())
        radius = norms[1]
        assert float(run.server.public[0]) == pytest.approx(radius)


# the same bytes -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["published", "central"])
def test_other_processes_do_what_the_loop_does(name: str, tmp_path: Path, quick_workers: None) -> None:
    algorithm, tables = CASES[name]
    loop = finished(made(algorithm, **tables), tmp_path / "loop")
    with killed_at("published", 1):
        start(made(algorithm, **tables, engine=TWO), tmp_path / "apart")
    resume(tmp_path / "apart")
    assert differences(loop, trace(tmp_path / "apart")) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["published", *(pytest.param(c, marks=pytest.mark.slow) for c in list(CASES)[1:])])
def test_killed_anywhere_it_is_the_run_that_never_stopped(name: str, tmp_path: Path) -> None:
    algorithm, tables = CASES[name]
    whole = finished(made(algorithm, rounds=4, **tables), tmp_path / "whole")
    assert differences(whole, interrupted(made(algorithm, rounds=4, **tables), tmp_path / "again")) == []
    assert verify(tmp_path / "again") == []


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_noise_from_the_system_keeps_the_books_in_order(name: str, tmp_path: Path) -> None:
    algorithm, tables = CASES[name]
    room = {"delta": 1e-3} if name == "central" else {}  # for what its typed noise lacks of the ideal law
    run = start(made(algorithm, privacy={"noise": "system", **room}, **tables), tmp_path / "run")
    assert not run.receipt.simulated
    assert verify(tmp_path / "run") == []


@pytest.mark.one_fast
@pytest.mark.parametrize("name", CASES)
def test_the_order_of_clients_does_not_matter(name: str) -> None:
    """Backwards and one by one: noise and data order are keyed by round and client."""
    algorithm, tables = CASES[name]
    run = Watched(made(algorithm, **tables))
    terms: dict[int, Terms] = {}
    for _ in run.rounds(1):
        terms = {k: run.federation.terms(k, run.federation.plan.price(k, 0, (0,))) for k in run.uploads}
    fresh, uplink = run.parts.site("run"), run.parts.setup.algorithm.uplink
    alone: dict[int, Any] = {}
    for k in sorted(terms, reverse=True):
        alone |= dict(fresh.each(0, run.down, {k: terms[k]}))
    for k, upload in run.uploads.items():
        assert all(torch.equal(a, b) for a, b in zip(tree.leaves(upload), tree.leaves(alone[k]), strict=True))
    zero = run.parts.setup.algorithm.zero(run.parts.setup.task, run.down)
    means = [
        uplink.at(0, run.down).receive(given, zero, [1.0] * 8, 4.0, 0.5, run.federation.source(0)).mean
        for given in (alone, dict(sorted(alone.items())))
    ]
    assert all(torch.equal(a, b) for a, b in zip(*map(tree.leaves, means), strict=True))
    other = fresh.each(1, run.down, dict([next(iter(terms.items()))]))  # control: another round
    (k, upload), *_ = other
    assert not torch.equal(tree.leaves(upload)[0], tree.leaves(run.uploads[k])[0])


@pytest.mark.slow
def test_all_methods_see_the_same_clients_and_start_from_the_same_model() -> None:
    seen, models = set(), []
    for name in ("fedavg", "scaffold", "pfl_dyn", "udp", "prifedsync", "cuag_pfl"):
        table = {"name": name} | ({"variant": "published"} if name == "cuag_pfl" else {})
        assert name in all_algorithms()
        parts = simulated(made(table))
        federation = parts.federation(":memory:", "run")
        with federation.ledger:
            seen.add(tuple(tuple(federation.draw(federation.open(t))) for t in range(20)))
        models.append(tree.flat(next(iter(parts.setup.algorithm.models(parts.setup.state("server")).values()))))
    assert len(seen) == 1
    assert all(torch.equal(models[0], model) for model in models)
    other = simulated(made({"name": "fedavg"}, seed=1)).federation(":memory:", "run")
    with other.ledger:
        assert tuple(tuple(other.draw(other.open(t))) for t in range(20)) not in seen


# receipts -------------------------------------------------------------------------------------------------------------


def by_client(folder: Path) -> dict[str, dict[str, Any]]:
    found = json.loads((folder / "privacy.json").read_text())
    return {row["adversary"]: row for row in found["guarantees"] if row["unit"] == "client"}


def test_the_receipt_of_the_published_method(tmp_path: Path, cli: Any) -> None:
    """Infinite, nominal, with the printed epsilon, what it composes to over the rounds, and every reason."""
    run = start(made(PUBLISHED), tmp_path / "run")
    assert run.receipt.rounds == 3
    rows = by_client(tmp_path / "run")
    assert set(rows) == {"server", "participants", "public"}
    for row in rows.values():
        assert (row["epsilon"], row["status"]) == ("inf", "nominal")
        assert row["nominal_epsilon"] == pytest.approx(0.926, abs=5e-4)
        total = 0.25 * math.sqrt(1 + 1 / 2 + 1 / 3)
        assert row["nominal_composed"] == pytest.approx(epsilon_of(total, 1e-5), rel=1e-9)
        assert composed(0.25, 3) == pytest.approx(total)
        assert row["because"] == [OWN_NORM, ONE_OF_B, NOT_STEPS, PER_LAYER, EACH_ROUND]
    said: Said = cli("privacy", "verify", str(tmp_path / "run"))
    assert said.code == 0
    claimed = json.loads((tmp_path / "run" / "privacy.json").read_text())
    for row in claimed["guarantees"]:
        if row["status"] == "nominal":
            row["status"], row["epsilon"] = "proved", 0.926
    (tmp_path / "run" / "privacy.json").write_text(json.dumps(claimed))
    assert any("nominal" in wrong for wrong in verify(tmp_path / "run"))  # a nominal row is not believed to be proved


@pytest.mark.parametrize(
    ("algorithm", "tables", "neighbours", "adversaries"),
    [
        ({"name": "cuag_pfl", "variant": "local_client"}, {}, "replace", {"server", "participants", "public"}),
        pytest.param(
            {"name": "cuag_pfl"},
            {"cohort": POISSON},
            "zero_out",
            {"participants", "public"},
            marks=pytest.mark.slow,  # by loss distributions
        ),
    ],
)
def test_the_rigorous_variants_keep_their_budget(
    algorithm: dict[str, Any], tables: dict[str, Any], neighbours: str, adversaries: set[str], tmp_path: Path
) -> None:
    start(made(algorithm, privacy={"epsilon": 4.0, "delta": 1e-4}, **tables), tmp_path / "run")
    assert verify(tmp_path / "run") == []
    rows = by_client(tmp_path / "run")
    assert {a for a, row in rows.items() if row["epsilon"] != "inf"} == adversaries
    for adversary in adversaries:
        row = rows[adversary]
        assert (row["status"], row["neighbours"]) == ("proved", neighbours)
        assert 0 < row["epsilon"] <= 4.0 * (1 + 1e-9)
        assert "nominal_epsilon" not in row


@pytest.mark.parametrize("name", ["udp", "prifedsync"])
def test_the_baselines_as_published_are_nominal(name: str, tmp_path: Path) -> None:
    start(made({"name": name}), tmp_path / "run")
    rows = by_client(tmp_path / "run")
    assert {(row["epsilon"], row["status"]) for row in rows.values()} == {("inf", "nominal")}
    assert all(row["nominal_epsilon"] > 0 and row["because"] for row in rows.values())
    assert verify(tmp_path / "run") == []
