"""What a SlaugFL run may choose beside its losses: who makes the prototypes, whether a momentum goes on, what is
written down and what each phase is said to promise.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from sordino import config, keys, tree
from sordino.accounting.claims import Unit
from sordino.accounting.statement import OfPhase, Promised
from sordino.accounting.words import by_phase
from sordino.algorithms.fedavg import Client, FedAvg
from sordino.algorithms.local_sgd import Walk
from sordino.algorithms.optional import ChecksServer
from sordino.engine import checkpoint
from sordino.errors import ConfigError, UnsoundGuarantee
from sordino.privacy.noise.sources import Counter
from sordino.privacy.uplink import Uplink
from sordino.receipts.folder import RunFolder
from sordino.receipts.verify import verify
from sordino.runs.run import start
from sordino.runs.simulation import simulated
from sordino.synthesis.slaug import Served
from sordino.synthesis.slaug.generator import skill
from sordino.synthesis.slaug.training import Calibrated, MomentumState
from sordino.types import Grant, Received
from tests.helpers import slaug_runs

RUN = slaug_runs.RUN | {"rounds": 3}
SLAUG = {
    "name": "slaug_fl",
    "lr": 0.05,
    "local_epochs": 1,
    "batch_size": 32,
    "prepare_epochs": 1,
    "keep": 6,
    "gan_epochs": 2,
}


def run(folder: Path, privacy: dict[str, Any] | None = None, **algorithm: Any) -> Path:
    start(config.validate(RUN | {"privacy": privacy or {}, "algorithm": {**SLAUG, **algorithm}}), folder)
    return folder


def model(folder: Path) -> dict[str, Tensor]:
    return safetensors.torch.load((folder / "model.safetensors").read_bytes())


def after(t: int, folder: Path, copies: Path) -> Any:
    """The server's state after a round; later ones would be dropped where it is looked up."""
    parts = simulated(config.load(folder / "experiment.toml"))
    copy = shutil.copytree(folder / "checkpoints", copies / folder.parent.name / str(t))
    loaded = checkpoint.load(copy, parts.setup.state, at=t)
    assert loaded is not None
    return loaded.trees["server"]


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Devices of unequal sizes send the prototypes of their drawn images."""
    return run(tmp_path_factory.mktemp("sent") / "run")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("served") / "run", proto_upload="server_side")


# prototypes of the server's own ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_prototypes_that_the_server_makes_are_those_that_devices_send(sent: Path, served: Path, tmp_path: Path) -> None:
    """The uplink carries a model and a device's number. Rounding grows from round to round: it is held to 1e-5 in the
    first.
    """
    a, b = after(1, sent, tmp_path), after(1, served, tmp_path)
    assert float(a.prototypes.norm()) > 1
    assert torch.allclose(a.prototypes, b.prototypes, atol=1e-5)
    assert bool((a.known == b.known).all())
    assert all(torch.allclose(model(sent)[name], value, atol=1e-2) for name, value in model(served).items())
    saved = [
        x["payload"] - y["payload"]
        for x, y in zip(rows(sent, "metrics.jsonl"), rows(served, "metrics.jsonl"), strict=True)
    ]
    classes, width = a.prototypes.shape
    assert saved == [4 * classes * (width + 1) - 4] * RUN["rounds"]


@pytest.mark.slow
def test_images_of_somebody_else_are_caught(sent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken twin draws the images of the device next door."""
    real = Served.update

    def update(self: Served, s: Any, r: Any, home: Any) -> Any:
        others = [up._replace(device=(up.device + 1) % RUN["partition"]["clients"]) for up in r.each]
        return real(self, s, type(r)(r.mean, r.participation, lambda: others), home)

    monkeypatch.setattr(Served, "update", update)
    folder = run(tmp_path / "twin", proto_upload="server_side")
    assert not torch.allclose(
        after(1, sent, tmp_path / "a").prototypes, after(1, folder, tmp_path / "b").prototypes, atol=1e-2
    )


@pytest.mark.parametrize("device", [float("nan"), -1.0, 5.0, 1e30])
def test_a_model_of_a_device_that_there_is_not_makes_no_prototype(device: float) -> None:
    parts = simulated(config.validate(RUN | {"algorithm": {**SLAUG, "proto_upload": "server_side"}}))
    s, up = (
        parts.setup.state("server"),
        parts.setup.algorithm.zero(parts.setup.task, parts.setup.algorithm.broadcast(parts.setup.state("server"))),
    )
    stray, own = up._replace(device=torch.tensor(device)), up._replace(device=torch.tensor(2.0))
    after, without = (
        parts.setup.algorithm.update(s, Received(up, 1.0, lambda sent=sent: sent), parts.home)
        for sent in ([own, stray], [own])
    )  # type: ignore[misc]
    assert torch.equal(after.prototypes, without.prototypes)
    assert bool(without.known.any())


@pytest.mark.parametrize(
    "uplink",
    [["weigh", "secagg"], [{"name": "clip", "radius": 0.5}, "weigh"], ["weigh", {"name": "block_sum", "rate": 0.3}]],
)
def test_a_server_that_does_not_see_whose_model_came_makes_no_prototypes(uplink: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        _ = simulated(
            config.validate(RUN | {"algorithm": {**SLAUG, "proto_upload": "server_side"}, "uplink": uplink})
        ).setup.plan
    assert refused.value.code == "server-side-needs-models"


def test_single_uploads_are_what_was_sent_before_it_was_weighed() -> None:
    """Whoever reads `each` gets a client's model, not one that shrank with the client."""
    uplink, zero, sizes = Uplink(), {"w": torch.zeros(5)}, [10, 40, 25]
    given = {k: {"w": keys.normal(keys.root(k), 5)} for k in range(3)}
    grants = [Grant(k, size, max(sizes), Counter(0)) for k, size in enumerate(sizes)]
    weights = [uplink.weight(size, max(sizes)) for size in sizes]
    uploads = {k: uplink.encode(x, grants[k]) for k, x in given.items()}
    received = uplink.receive(uploads, zero, weights, sum(weights), None, Counter(0), each=True)
    assert all(torch.allclose(up["w"], given[k]["w"], atol=1e-6) for k, up in enumerate(received.each))
    assert not torch.allclose(uploads[0]["w"], given[0]["w"])  # weighed on its way
    mean = sum(n * given[k]["w"] for k, n in enumerate(sizes)) / sum(sizes)
    assert torch.allclose(received.mean["w"].double(), mean.double(), atol=1e-6)


# a momentum that goes on ----------------------------------------------------------------------------------------------


def test_a_walk_in_two_halves_is_one_walk_where_its_momentum_goes_on() -> None:
    rule = FedAvg(lr=0.1, momentum=0.9)
    start_, pulls = {"w": torch.ones(4)}, [{"w": keys.normal(keys.root(i), 4)} for i in range(6)]
    whole = rule.walk(start_, 0.1)
    for g in pulls:
        whole(g)
    first = rule.walk(start_, 0.1)
    for g in pulls[:3]:
        first(g)
    second: Walk = rule.walk(first.y, 0.1, first.velocity)
    fresh: Walk = rule.walk(first.y, 0.1)
    for g in pulls[3:]:
        second(g)
        fresh(g)
    assert torch.allclose(second.y["w"], whole.y["w"])
    assert not torch.allclose(fresh.y["w"], whole.y["w"])


@pytest.mark.slow
def test_a_device_keeps_its_momentum_between_its_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins a round with what it ended its last one with, and as nothing in its first."""
    began: dict[int, list[float]] = {}
    ended: dict[int, float] = {}
    real = Calibrated.trained

    def trained(self: Calibrated, task: Any, down: Any, c: Any, shard: Any, key: Any) -> Any:
        assert isinstance(c, MomentumState)
        who = int(shard.public.x.long().sum())  # told apart by what they drew
        began.setdefault(who, []).append(float(tree.norm(c.velocity)) - ended.get(who, 0.0))
        y, after = real(self, task, down, c, shard, key)
        ended[who] = float(tree.norm(after.velocity))
        return y, after

    monkeypatch.setattr(Calibrated, "trained", trained)
    run(tmp_path / "run", keeps_momentum=True)
    assert 3 <= len(began) <= 5
    assert max(map(len, began.values())) > 1
    assert all(value == pytest.approx(0.0, abs=1e-6) for found in began.values() for value in found)
    assert min(ended.values()) > 0


@pytest.mark.slow
def test_without_it_nothing_is_kept(sent: Path) -> None:
    parts = simulated(config.load(sent / "experiment.toml"))
    assert parts.setup.algorithm.init_client(parts.setup.task) == Client(torch.tensor(0))
    code = simulated(config.validate(RUN | {"algorithm": {**SLAUG, "preset": "released_code", "probe": "test"}}))
    assert isinstance(code.setup.algorithm.init_client(code.setup.task), MomentumState)


def test_a_method_beside_real_noise_ranks_nobody_by_test_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its table of scores may be shown, and one label of a test example would change it."""
    table = RUN | {"algorithm": {**SLAUG, "variant": "rigorous_a", "probe": "test"}}
    real = {"epsilon": 8.0, "delta": 1e-4, "noise": "system"}
    one = simulated(config.validate(table | {"privacy": real}))
    train = one.preparation[0].setup.algorithm
    with pytest.raises(UnsoundGuarantee) as refused:
        ChecksServer.of(train).check(one.home)
    assert refused.value.code == "method-reads-tests"
    seeded = simulated(config.validate(table | {"privacy": real | {"noise": "counter"}}))
    ChecksServer.of(train).check(seeded.home)
    # the twin that lets it pass tells one label: the same model is scored otherwise
    task, tests = seeded.setup.task, seeded.home.tested
    model, y = task.init(0), tests.y.clone()
    said = task.predict(model, tests.x)[:, : task.labels].argmax(1)
    wrong = int((said != y).nonzero()[0])
    y[wrong] = said[wrong]
    first, second = (skill(task, model, tests._replace(y=labels)) for labels in (tests.y, y))
    assert not torch.equal(first.f1, second.f1)


# what a preparation writes down ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_tables_of_a_preparation_say_what_its_server_knows(sent: Path) -> None:
    train, ask = simulated(config.load(sent / "experiment.toml")).preparation
    ranked, asked = (
        checkpoint.load(sent / "preparation" / mine.setup.phase / "checkpoints", mine.setup.state).trees["server"]  # type: ignore[union-attr]
        for mine in (train, ask)
    )
    skill = rows(sent, "preparation/train/skill.jsonl")
    assert [row["device"] for row in skill] == list(range(5))
    assert torch.equal(torch.tensor([row["f1"] for row in skill], dtype=torch.float64), ranked.f1)
    slots = rows(sent, "preparation/ask/asked.jsonl")
    assert [row["class"] for row in slots] == list(range(10))
    assert all(ranked.f1[row["devices"][0], row["class"]] == ranked.f1[:, row["class"]].max() for row in slots)
    assert any(ranked.f1[:, c].max() > ranked.f1[:, c].min() for c in range(10))
    assert all(row["answered"] == (row["images"] > 0) for row in slots)
    log = rows(sent, "preparation/ask/generator.jsonl")
    assert [row["epoch"] for row in log] == [1, 2]
    assert all(row["generator_loss"] > 0 and 0 <= row["accuracy_on_fakes"] <= 1 for row in log)
    kept = rows(sent, "preparation/ask/kept.jsonl")
    assert [len(row["candidates"]) for row in kept] == [6] * 10
    assert [row["candidates"] for row in kept] == [[i for i in own if i >= 0] for own in asked.kept.tolist()]


# what each phase promises ---------------------------------------------------------------------------------------------


def promised(folder: Path) -> tuple[dict[str, bool], Sequence[str]]:
    """Of each phase, whether anything finite is promised; and what is said."""
    receipt = RunFolder(folder).receipt()
    finite = {phase.phase: any(row.finite for row in phase.guarantees) for phase in receipt.phases}
    return finite, by_phase(receipt.guarantees, receipt.phases, False)


BUDGET = {"epsilon": 4.0, "delta": 1e-5}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "privacy", "finite"),
    [
        ("as_published", {}, {"train": False, "ask": False, "training": False}),
        ("dp_proto_only", BUDGET, {"train": False, "ask": True, "training": False}),
        ("pooled", {}, {"pool": False, "training": False}),
        ("rigorous_b", BUDGET, {"pool": True, "training": True}),
        ("rigorous_a", BUDGET, {"train": True, "ask": True, "training": True}),
        ("secagg", {}, {"train": False, "ask": False, "training": False}),
    ],
)
def test_every_variant_says_phase_by_phase_what_it_promises(
    variant: str, privacy: dict[str, Any], finite: dict[str, bool], sent: Path, tmp_path: Path
) -> None:
    more = {"rounds": 1} if variant != "as_published" else {}
    folder = sent
    if more:
        folder = tmp_path / "run"
        start(config.validate(RUN | more | {"privacy": privacy, "algorithm": {**SLAUG, "variant": variant}}), folder)
    found, said = promised(folder)
    assert found == finite
    lines = {name: line for line in said for name in line.partition(":")[0].split(" and ")}
    assert set(finite) <= set(lines)
    for phase, holds in finite.items():
        line = lines[phase]
        assert ("ε" in line) == holds, phase
        assert ("nothing is promised" in line) == (not holds)
    broken = any(finite.values()) and not all(finite.values())
    assert any("No guarantee about one" in line for line in said) == broken
    assert verify(folder) == []


def test_a_unit_that_one_phase_protects_and_the_run_does_not_is_named() -> None:
    """Though the run promises something about another unit."""

    def row(unit: Unit, epsilon: float) -> Promised:
        return Promised(
            unit=unit,
            neighbours="zero_out",
            adversary="server",
            epsilon=epsilon,
            delta=1e-5,
            status="none" if epsilon == math.inf else "proved",
            because=(),
        )

    whole = (row("example", math.inf), row("client", 2.0))
    phases = (
        OfPhase(phase="ask", releases=1, guarantees=(row("example", 1.0),)),
        OfPhase(phase="training", releases=1, guarantees=whole),
    )
    lost = [line for line in by_phase(whole, phases, False) if "No guarantee" in line]
    assert lost == [
        "No guarantee about one example for the run as a whole: one phase protects it with noise, "
        "another phase gives it away."
    ]


@pytest.mark.slow
def test_a_receipt_that_lends_a_phase_a_promise_is_caught(sent: Path, tmp_path: Path) -> None:
    """The words come from the ledger alone: a number typed into the receipt does not verify."""
    place = sent / "privacy.json"
    honest = place.read_text()
    receipt = json.loads(honest)
    receipt["phases"][0]["guarantees"][0]["epsilon"] = 1.0
    place.write_text(json.dumps(receipt))
    try:
        assert any(line.startswith("phases:") for line in verify(sent))
    finally:
        place.write_text(honest)
