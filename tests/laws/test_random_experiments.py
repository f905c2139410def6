"""Experiments whose settings are drawn at random: each is refused before it has a folder, or its run holds. The receipt
is verified by the package and by the program that shares no code with it; killed and resumed, the model is the same.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from sordino.config import Experiment
from sordino.errors import SordinoError
from sordino.planning import phase
from sordino.receipts.verify import verify
from sordino.runs.run import resume, start
from tests.laws.cases import CASES
from tests.laws.traces import POINTS, killed_at
from tests.verifier.test_receipts import verify as verifier

Table = dict[str, Any]
CLIP, CENTRAL = {"name": "clip", "radius": 1.0}, {"name": "noise", "neighbours": "zero_out"}
CHANCE = ("cohort-below-threshold", "too-few-devices-answered", "model-not-finite", "update-not-finite")
CLIENT: list[Any] = [
    *(
        CLIP,
        {**CLIP, "order": 1},
        {**CLIP, "personal": True},
        {"name": "clip_layers", "radius": 1.0},
        "clip_coordinates",
    ),
    *("noise", {"name": "noise", "multiplier": 5.0}, {"name": "noise", "law": "laplace"}, "privunit", "flag"),
    *("weigh", "own_norm", "update_level", "user_level", "coordinate_laplace", "quantise", "secagg", "bfv"),
    *({"name": "block_sum", "rate": 0.5}, {"name": "noise_share", "survivors": 3}),
]
SERVER: list[Any] = [
    *(CENTRAL, CENTRAL, {"name": "noise", "neighbours": "replace"}, "coordinate_laplace", {"name": "median", "f": 1}),
    *({"name": "trimmed_mean", "f": 1}, {"name": "krum", "f": 1}, {"name": "norm_bound", "f": 1}),
]
BUDGETS: list[Any] = [0.5, 4.0, 8.0, 50.0, {"linspace": [4.0, 12.0], "levels": 3}]
CHOICES: dict[str, list[Any]] = {
    "cohort": [
        *(
            {"name": "everyone"},
            {"name": "random", "size": 2},
            {"name": "round_robin", "size": 2},
            {"name": "threshold"},
        ),
        *({"name": "poisson", "rate": rate} for rate in (0.3, 0.7, 1.0)),
        *({"name": "by_budget", "size": 2}, {"name": "threshold_published"}),
    ],
    "partition": [
        *({"scheme": "iid", "clients": count} for count in (1, 2, 7, 40)),
        *(
            {"scheme": "shards", "clients": 5},
            {"scheme": "power_law", "clients": 6},
            {"scheme": "long_tail", "clients": 5},
        ),
    ],
    "chaos": [{"drop": 0.4}, {"drop": 0.9}, {"slow": 0.5}],
    "stragglers": [{"share": 0.5}, {"share": 0.5, "policy": "partial"}, {"share": 0.9}],
    "evaluation": [{"every": 1, "final": 2}, {"every": 5, "final": 1}],
    "engine": [{"executor": "loop", "workers": 3, "checkpoint_every": 2}, {"executor": "stack"}, {"precision": "bf16"}],
    "read": ["responses", "median_clip", {"name": "noisy_gradient", "clip": 1.0}, {"name": "cells", "clip": 1.0}],
    "data": [{"source": "digits", "train": 240, "test": 60, "probe": 5}, {"source": "digits", "fraction": 0.2}],
    "model": [{"name": "logistic"}, {"name": "mlp", "hidden": 8}, {"name": "resnet18", "norm": "batch", "width": 2}],
    "algorithm": [{"local_steps": 2}, {"local_epochs": 2}, {"batch_size": "full"}, {"lr": 0.01}, {"server_lr": 0.5}],
    "rounds": [1, 2, 5],
}


def drawn(rng: Random) -> tuple[str, Table]:
    """A case of the laws, and what is changed in it."""
    case, changes = rng.choice(CASES), {"rounds": 3}
    for name in rng.sample([*CHOICES, "uplink", "privacy"], rng.choice((1, 2, 2, 3, 4))):
        if name == "uplink":
            first = [CLIP] if rng.random() < 0.5 else []
            changes[name] = {
                "client": first + [rng.choice(CLIENT) for _ in range(rng.choice((0, 1, 1, 2)))],
                "server": [rng.choice(SERVER) for _ in range(rng.choice((0, 1, 1, 2)))],
            }
            changes.setdefault("privacy", {"epsilon": 4.0, "delta": 1e-4})
        elif name == "privacy":
            law = {"name": rng.choice(["uniform", "linear_front", "linear_back", "adaptive"])}
            budget = {"epsilon": rng.choice(BUDGETS), "delta": rng.choice([1e-5, 1e-4, 0.0]), "schedule": law}
            changes[name] = budget if rng.random() < 0.8 else {}
        else:
            choice = rng.choice(CHOICES[name])
            changes[name] = {**case.algorithm, **choice} if name == "algorithm" else choice
    return case.name, changes


def experiments(seed: int, count: int) -> list[tuple[tuple[str, Table], Experiment]]:
    """Random experiments whose files are sound; plans may still refuse them."""
    rng, by_name, found = Random(seed), {case.name: case for case in CASES}, []
    while len(found) < count:
        name, changes = drawn(rng)
        try:
            found.append(((name, changes), by_name[name].experiment(**changes)))
        except SordinoError:
            continue
    return found


def refused_late(made: Experiment, folder: Path) -> str:
    """Code of a refusal that came when there was a folder; empty if there was none."""
    try:
        start(made, folder)
    except SordinoError as error:
        return error.code if folder.exists() and error.code not in CHANCE else ""
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_random_experiment_is_refused_at_once_or_its_run_holds(seed: int, tmp_path: Path) -> None:
    rng, held = Random(seed), 0
    for number, (told, made) in enumerate(experiments(seed, 30)):
        whole, cut = tmp_path / f"{number}", tmp_path / f"{number}-cut"
        assert refused_late(made, whole) == "", told
        if not (whole / "privacy.json").exists():
            continue
        held += 1
        assert verify(whole) == [], told
        assert verifier.examine(whole, None, None).wrong == [], told
        if made.rounds > 1 and rng.random() < 0.5:
            with killed_at(rng.choice(list(POINTS)), 1):
                start(made, cut)
            resume(cut)
            assert verify(cut) == [], told
            assert (cut / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes(), told
    assert held > 5


@pytest.mark.slow
def test_without_the_check_of_readers_some_are_refused_late(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(phase, "check_reads", lambda algorithm: None)
    made = [made for seed in range(4) for _, made in experiments(seed, 30) if made.read is not None]
    found = {late for number, one in enumerate(made) if (late := refused_late(one, tmp_path / f"{number}"))}
    assert any(code.endswith("-only") for code in found)
