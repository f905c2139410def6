"""What a preparation costs in bytes and operations: the messages' own sizes, and formula (18)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from sordino import config, tree
from sordino.accounting.composition import parsed
from sordino.algorithms.optional import PerClientMessages
from sordino.engine import wire
from sordino.planning.phase import PlannedPhase
from sordino.receipts.receipt import opened
from sordino.runs.setup import PhaseSetup, RunSetup
from sordino.runs.simulation import simulated
from sordino.synthesis import generators
from sordino.synthesis.slaug import prepare
from sordino.synthesis.slaug.messages import Sizes
from sordino.synthesis.slaug.training import Up as TrainingUp
from tests.helpers.prepared_runs import CLASSES, CLIENTS, COHORT, ROUNDS, rows_of


# what it costs --------------------------------------------------------------------------------------------------------
def built(planned: PlannedPhase) -> PhaseSetup:
    """The training with its model, of which a receipt needs none."""
    whole = planned.whole
    return RunSetup(whole.experiment, whole.public, whole.agreed).phases[-1]


@pytest.mark.slow
def test_device_flops_are_the_closed_form(once: Path) -> None:
    """Three times a forward pass for an example that is learned from, one for an example that is looked at."""
    parts, served = simulated(config.load(once / "experiment.toml")), {}
    _, federation = opened(once)
    with federation.ledger as ledger:
        for entry in ledger.entries():
            served[entry.op.partition(".")[2] or entry.op] = [
                k for group in parsed(entry.note).releases for k in group["clients"]
            ]
    forward = parts.setup.task.flops / 3
    # the small network: three convolutions of stride 2 on 8x8, then a linear layer; two operations for a product
    convolutions = [(16, 1 * 9, 16), (32, 16 * 9, 4), (64, 32 * 9, 1)]
    assert forward == sum(2 * out * read * pixels for out, read, pixels in convolutions) + 2 * 64 * CLASSES
    by_round = list(served.values())
    rows = rows_of(once)[:-1] + [json.loads(line) for line in (once / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == len(by_round)
    epochs = {"train": 2}
    for row, who in zip(rows, by_round, strict=True):
        n = sum(parts.setup.public.sizes[k] for k in who)
        looks = {
            "train": epochs["train"] * n * (3 * 0.7 + 0.3),  # learns from 70%, looks at the others after every epoch
            "ask": n * 0.3,  # what was held back, for a prototype
            None: 3 * 2 * n + n,  # both sets once, and drawn images for their prototypes
        }[row.get("phase")]
        assert row["device_flops"] == pytest.approx(forward * looks, rel=1e-12)


@pytest.mark.slow
def test_bytes_are_the_sizes_of_the_messages(once: Path) -> None:
    """Every message of the run again, encoded; none of the byte meter's own sums is used."""
    planned, federation = opened(once)
    setup = built(planned)
    run, digest = federation.run, setup.experiment.digest()
    with federation.ledger as ledger:
        who = {e.op: [k for group in parsed(e.note).releases for k in group["clients"]] for e in ledger.entries()}

    def message(phase: str, t: int, sender: int, tree_: Any) -> int:
        name = f"{run}.{phase}" if phase else run
        return len(wire.encode(wire.Header(name, digest, t, sender, "down" if sender < 0 else "up"), tree_))

    model, width = setup.task.init(0), setup.task.width
    one = torch.zeros(1, dtype=torch.int64)
    prototype = (one, torch.zeros(width), torch.zeros(1))
    state = setup.algorithm.init(setup.task, 0)
    told = {"train": prepare.Start(model, one[0]), "ask": prepare.ImageRequest(one), "": state}
    sent = {
        "train": prepare.Up(model, one[0]),
        "ask": prepare.Prototype(*prototype),
        "": TrainingUp(model, torch.zeros(CLASSES, width), torch.zeros(CLASSES)),
    }
    rows = rows_of(once)
    measured = rows[:-1] + [json.loads(line) for line in (once / "metrics.jsonl").read_text().splitlines()]
    for row, (op, clients) in zip(measured, who.items(), strict=True):
        name, _, t = op.rpartition("/")
        phase = name.partition(".")[2]
        assert row["bytes_down"] == sum(message(phase, int(t), -1, told[phase]) for _ in clients)
        assert row["bytes_up"] == sum(message(phase, int(t), k, sent[phase]) for k in clients)
        assert row["payload"] == sum(leaf.numel() * leaf.element_size() for leaf in tree.leaves(sent[phase]))
    tensors = safetensors.torch.load_file(once / "public.safetensors")
    envelope = len(wire.encode(wire.Header("public_tensors", digest, 0, -1, "down"), tensors))
    assert rows[-1]["bytes_down"] == CLIENTS * envelope


@pytest.mark.slow
def test_the_totals_are_formula_18_and_what_it_leaves_out(once: Path) -> None:
    """Beyond the formula: the first broadcast, running statistics of the generator, counts and flags beside prototypes,
    requests and refusals, and envelopes.
    """
    parts = simulated(config.load(once / "experiment.toml"))
    rows, training = rows_of(once), [json.loads(line) for line in (once / "metrics.jsonl").read_text().splitlines()]
    d_m, d_p = tree.size(parts.setup.task.init(0)), parts.setup.task.width
    d_g = generators.parameters(parts.setup.algorithm._shape)
    sizes = Sizes(CLIENTS, COHORT, ROUNDS, CLASSES, d_m, d_g, d_p)
    formula = 4 * (sizes.parameters + sizes.rounds * sizes.round)
    measured = sum(row["bytes_down"] + row["bytes_up"] for row in (*rows, *training))

    asked = [row for row in rows if row["phase"] == "ask"]
    answers = sum(row["active"] for row in asked)
    with opened(once)[1].ledger as ledger:
        messages = sum(2 * row["active"] for row in (*rows[:-1], *training)) + CLIENTS
        assert len(list(ledger.entries())) == len(rows) - 1 + len(training)
    tensors = safetensors.torch.load_file(once / "public.safetensors")
    known = tensors.pop("classes")  # the classes that it draws
    statistics = sum(v.numel() for v in tensors.values()) - d_g
    beyond = (
        4 * CLIENTS * d_m  # the model that devices start from alone
        + CLIENTS * (4 * statistics + 8 * len(known))
        + 4 * (answers - CLASSES) * d_p  # prototypes of nothing: a refusal is as long as an answer
        + 2 * CLIENTS * 8  # its own number, which a device that trains alone is told and says
        + answers * (8 + 8 + 4)  # which class is asked for, and is told, of how many images
        + ROUNDS * COHORT * (4 * CLASSES + CLASSES + 8)  # counts up; flags and the number of the round down
    )
    assert sum(row["payload"] for row in asked) == len(asked) * (8 + 4 * d_p + 4)
    envelopes = measured - formula - beyond
    assert envelopes == _envelopes(once)
    assert 200 * messages < envelopes < 1000 * messages


def _envelopes(folder: Path) -> int:
    """Of every message: its length less that of its numbers, found from an empty one of the same header and schema."""
    planned, federation = opened(folder)
    setup = built(planned)
    digest = setup.experiment.digest()
    total = 0

    def envelope(name: str, t: int, sender: int, fields: Any) -> int:
        header = wire.Header(name, digest, t, sender, "down" if sender < 0 else "up")
        return wire.size(header, fields) - wire.payload_bytes(fields)

    with federation.ledger as ledger:
        for entry in ledger.entries():
            name, _, t = entry.op.rpartition("/")
            mine = next((p for p in setup.preparation if p.phase == name.partition(".")[2]), setup)
            algorithm = mine.algorithm
            down = algorithm.broadcast(mine.state("server"))
            for k in (k for group in parsed(entry.note).releases for k in group["clients"]):
                told = PerClientMessages.of(algorithm).per_client_message(down, k)
                if name.endswith("ask"):
                    told = type(told)(torch.zeros(1, dtype=torch.int64))
                total += envelope(name, int(t), -1, wire.schema(told))
                total += envelope(name, int(t), k, wire.schema(algorithm.zero(mine.task, down)))
    tensors = safetensors.torch.load_file(folder / "public.safetensors")
    return total + CLIENTS * envelope("public_tensors", 0, -1, wire.schema(tensors))
