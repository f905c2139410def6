"""A preparation taken over from another run is the one this run would have made: the same bytes after it, and the same
loss in its books.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sordino
from sordino import config
from sordino.engine import checkpoint
from sordino.errors import RunError
from sordino.ledger.ledger import Ledger, State
from sordino.planning.accounts import Accounts
from sordino.receipts.receipt import opened
from sordino.receipts.verify import verify
from sordino.report.run_facts import gather
from sordino.runs import preparation
from sordino.runs.run import resume, start
from sordino.synthesis.public_images.procedural import Procedural
from tests.helpers.command_line import Said
from tests.helpers.slaug_runs import RUN

SLAUG = {
    "name": "slaug_fl",
    "local_epochs": 1,
    "batch_size": 32,
    "prepare_epochs": 1,
    "scenario": 2,  # its generator depends on every prototype
    "match_updates": 5,
    "match_lr": 0.01,
    "private_steps": 1,
}
BUDGET = {"epsilon": 8.0, "delta": 1e-4}


def run(folder: Path, prepared: Path | None = None, **changes: Any) -> Path:
    table = RUN | {"algorithm": SLAUG} | changes
    if "algorithm" in changes:
        table["algorithm"] = SLAUG | changes["algorithm"]
    start(config.validate(table), folder, prepared=prepared)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("made") / "run")


def left(folder: Path) -> dict[str, Any]:
    """What a run leaves that may not depend on who prepared."""
    _, federation = opened(folder)
    with federation.ledger as ledger:
        books = [(e.op.partition(".")[2], e.state, e.charges, e.note, e.digest) for e in ledger.entries()]
    receipt = json.loads((folder / "privacy.json").read_text())
    files = ("model.safetensors", "public.safetensors", "preparation.jsonl", "metrics.jsonl")
    return {
        **{name: (folder / name).read_bytes() for name in files},
        "tables": {path.name: path.read_bytes() for path in folder.glob("preparation/*/*.jsonl")},
        "books": books,
        "guarantees": receipt["guarantees"],
        "phases": receipt["phases"],
        "budget": receipt["budget"],
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "privacy"),
    [("as_published", {}), ("rigorous_b", BUDGET)],
)
def test_what_was_taken_over_is_what_would_have_been_made(
    variant: str, privacy: dict[str, Any], made: Path, tmp_path: Path
) -> None:
    source = made if not privacy else run(tmp_path / "source", privacy=privacy, algorithm={"variant": variant})
    other = {"privacy": privacy, "algorithm": {"variant": variant, "synthetic": 0.1}}
    anew, taken = run(tmp_path / "anew", **other), run(tmp_path / "taken", source, **other)
    assert left(taken) == left(anew)
    assert left(taken)["model.safetensors"] != (source / "model.safetensors").read_bytes()  # the training is another
    assert verify(taken) == []
    before = left(taken)
    resume(taken)
    assert left(taken) == before


@pytest.mark.slow
def test_a_twin_that_takes_a_release_without_its_charges_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = {"privacy": BUDGET, "algorithm": {"variant": "rigorous_b"}}
    source, real = run(tmp_path / "source", **private), Ledger.reserve

    def free(self: Ledger, op: str, charges: Any, plan: bytes, note: str = "") -> Any:
        real(self, op, {} if "pool" in op else charges, plan, note)
        return charges.keys()

    monkeypatch.setattr(Ledger, "reserve", free)
    taken = run(tmp_path / "taken", source, **private)
    books = [charges for op, _, charges, *_ in left(taken)["books"] if "pool" in op]
    assert books == [{}]
    assert left(taken)["books"] != left(source)["books"]


@pytest.mark.slow
def test_a_page_does_not_say_where_on_this_machine_the_source_lies(made: Path, tmp_path: Path) -> None:
    taken = run(tmp_path / "taken", made, algorithm={"synthetic": 0.1})
    assert json.loads((taken / "environment.json").read_text())["prepared"] == str(made)
    assert gather(taken).environment.prepared == made.name


@pytest.mark.slow
def test_a_kill_between_two_phases_is_made_good(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = {"algorithm": {"separation": 0.0}}
    anew, real, saved = run(tmp_path / "anew", **other), checkpoint.save, list[Path]()

    def dies(directory: Path, *rest: Any) -> Path:
        if len(saved) == 1:  # the second phase is in the ledger, and nowhere else
            raise KeyboardInterrupt
        saved.append(directory)
        return real(directory, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(preparation.checkpoint, "save", dies)
        run(tmp_path / "taken", made, **other)
    assert not (tmp_path / "taken" / "model.safetensors").exists()
    resume(tmp_path / "taken")
    assert left(tmp_path / "taken") == left(anew)


@pytest.mark.slow
def test_another_preparation_hands_out_something_else(made: Path, tmp_path: Path) -> None:
    """What makes the law above one that can fail."""
    other = run(tmp_path / "other", algorithm={"prepare_epochs": 2})
    assert left(other)["public.safetensors"] != left(made)["public.safetensors"]


@pytest.fixture(scope="module")
def paid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("paid") / "run", privacy=BUDGET, algorithm={"variant": "dp_proto_only"})


@pytest.mark.slow
@pytest.mark.parametrize(
    "privacy",
    [
        pytest.param({**BUDGET, "epsilon": 0.5}, id="epsilon"),
        pytest.param({**BUDGET, "delta": 1e-6}, id="delta"),
    ],
)
def test_what_was_paid_from_another_budget_is_refused(privacy: dict[str, Any], paid: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError) as refused:
        run(tmp_path / "run", paid, privacy=privacy, algorithm={"variant": "dp_proto_only"})
    assert refused.value.code == "prepared-otherwise"
    assert "[privacy]" in str(refused.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_release_is_not_charged_twice_on_a_shared_ledger(paid: Path, tmp_path: Path) -> None:
    shared = {**BUDGET, "ledger": str(tmp_path / "shared.sqlite")}
    with pytest.raises(RunError) as refused:
        run(tmp_path / "run", paid, privacy=shared, algorithm={"variant": "dp_proto_only"})
    assert refused.value.code == "prepared-on-shared-ledger"


@pytest.mark.slow
def test_what_is_not_published_yet_is_not_taken(paid: Path, tmp_path: Path) -> None:
    """A source killed between its checkpoint and the publication."""
    source = shutil.copytree(paid, tmp_path / "source")
    _, federation = opened(source)
    with federation.ledger as ledger:
        entries = list(ledger.entries())

    stale = [e._replace(state=State.STORED) if e.op.endswith("ask/0") else e for e in entries]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Accounts, "entries", lambda self: stale)
        with pytest.raises(RunError) as refused:
            run(tmp_path / "run", source, privacy=BUDGET, algorithm={"variant": "dp_proto_only"})
    assert refused.value.code == "still-preparing"


@pytest.mark.slow
def test_candidates_are_neither_drawn_again_nor_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = {"scenario": 1, "keep": 6, "gan_epochs": 1}
    source = run(tmp_path / "source", algorithm=scenario)
    monkeypatch.setattr(Procedural, "build", lambda *_: pytest.fail("drawn again"))
    taken = run(tmp_path / "taken", source, algorithm={**scenario, "synthetic": 0.1})
    assert (taken / "candidates.json").read_bytes() == (source / "candidates.json").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": 1}, "[seed]"),
        ({"data": {**RUN["data"], "train": 230}}, "[data]"),
        ({"candidates": {"source": "procedural", "per_class": 13}}, "[candidates]"),
        ({"chaos": {"drop": 0.5}}, "[chaos]"),
        ({"algorithm": {"match_updates": 6}}, "how the preparation is done"),
        ({"algorithm": {"label_mode": "shifted"}}, "the outputs of the model"),
        ({"algorithm": {"variant": "dp_proto_only"}, "privacy": BUDGET}, "what a budget leaves for it"),
    ],
)
def test_another_preparation_is_refused_by_name(
    changes: dict[str, Any], named: str, made: Path, tmp_path: Path
) -> None:
    with pytest.raises(RunError) as refused:
        run(tmp_path / "run", made, **changes)
    assert refused.value.code == "prepared-otherwise"
    assert named in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_with_real_noise_none_is_reused(made: Path, tmp_path: Path) -> None:
    """Rows may be other people's, whom the copied ledger would charge."""
    real = {"epsilon": 8.0, "delta": 1e-4, "noise": "system"}
    with pytest.raises(RunError) as refused:
        run(tmp_path / "run", made, algorithm={"variant": "dp_proto_only"}, privacy=real)
    assert refused.value.code == "prepared-with-real-noise"
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_there_must_be_one_and_it_must_be_over(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError) as nothing:
        start(config.validate(RUN | {"algorithm": {"name": "fedavg"}}), tmp_path / "run", prepared=made)
    assert nothing.value.code == "nothing-prepared"
    with monkeypatch.context() as patch:
        patch.setattr("sordino.synthesis.slaug.generator.Recipe.make", _stopped)
        run(tmp_path / "stopped")
    with pytest.raises(RunError) as early:
        run(tmp_path / "run", tmp_path / "stopped")
    assert early.value.code == "still-preparing"
    with pytest.raises(RunError) as none:
        run(tmp_path / "run", tmp_path)
    assert none.value.code == "not-a-run"
    assert not (tmp_path / "run").exists()


def _stopped(*_: Any) -> Any:
    raise KeyboardInterrupt


@pytest.mark.slow
def test_from_the_command_line_and_from_python(made: Path, tmp_path: Path, cli: Callable[..., Said]) -> None:
    file = tmp_path / "e.toml"
    file.write_text(config.validate(RUN | {"algorithm": SLAUG}).toml())
    assert cli("run", file, "algorithm.synthetic=0.2", "--prepared", made, "--out", tmp_path / "a").code == 0
    result = sordino.run(file, "algorithm.synthetic=0.2", out=tmp_path / "b", prepared=made)
    assert left(tmp_path / "a") == left(result.folder)
