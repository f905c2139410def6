"""LDP-FL: images are answered for by their holders, once, with their secret; and what that is worth."""

from __future__ import annotations

import json
import math
import stat
from collections import defaultdict
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import safetensors.torch
import torch

from sordino.accounting.composition import note
from sordino.accounting.events import DrawnOnce, Repeat, Response, from_json
from sordino.accounting.statement import Guarantee, statement
from sordino.engine.client_states import PreparedShards, Shards
from sordino.errors import ConfigError, DomainError, SordinoError
from sordino.partition import Scheme
from sordino.privacy.noise.sources import Counter
from sordino.privacy.readers.responses import Responses
from sordino.receipts.private import CLIENTS, FOLDER
from sordino.receipts.verify import verify
from sordino.runs.run import resume, start
from sordino.runs.simulation import secret_of, simulated
from sordino.transport import message
from sordino.types import Examples, LocalWork
from tests.algorithms.lc_fl_runs import EVERYONE, Rounds, made, rows_of, slow
from tests.laws import warm
from tests.laws.traces import Killed, die_after, differences, finished, interrupted, killed_at, parts_of

WORK = LocalWork(None, 1, 8)


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


@pytest.mark.slow
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
        assert image == (Repeat(value, 64 * most) if again else DrawnOnce("responses of image", Repeat(value, 64)))
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


@pytest.mark.slow
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


class Shuffled(Scheme):
    """The same rows for each client, in an order that no seed decides."""

    reads_labels: ClassVar[bool] = False

    def assign(self, labels: Any, group: Any, rng: Any) -> Any:
        return [np.random.default_rng().permutation(part) for part in np.array_split(np.arange(len(labels)), 6)]


def test_answers_drawn_once_are_for_the_same_rows_after_a_restart(seen: dict[int, set[bytes]], tmp_path: Path) -> None:
    """They are drawn for places: if each row came to another place, it would be answered for a second time, unpaid."""
    own = {"partition": {"scheme": "tests.algorithms.test_ldp_fl:Shuffled"}, "rounds": 2}
    with pytest.raises(Killed):
        start(made(LDP, **SYSTEM, **own), tmp_path / "run", die_after(1))
    resume(tmp_path / "run")
    assert {client: len(answers) for client, answers in seen.items()} == dict.fromkeys(range(6), 1)


@pytest.mark.one_fast
@pytest.mark.parametrize(
    ("left", "code"),
    [
        (None, "no-secret"),
        (b"", "run-file-damaged"),
        (bytes(31), "run-file-damaged"),
        (bytes(32), "another-secret"),
    ],
    ids=["gone", "empty", "cut", "of another run"],
)
def test_without_their_secret_clients_do_not_answer_from_the_seed(
    left: bytes | None, code: str, tmp_path: Path
) -> None:
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
    assert refusal.value.code == code
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
    monkeypatch.setattr(message, "subprocess", warm.stand_in())
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


def test_an_image_with_colours_pays_for_every_channel() -> None:
    """300 black images of 4 x 4 pixels in 3 colours, as 2 x 2 values: 12 of them move on their own, and 12 are paid."""
    reader = Responses(1.0, side=2).fitted((4, 4, 3), 10)
    black = Examples(torch.zeros(300, 4, 4, 3, dtype=torch.uint8), torch.zeros(300, dtype=torch.int64))
    answers = reader.prepare(black, Counter(3)).x.flatten(1).double()
    assert int(torch.linalg.matrix_rank(answers - answers.mean(0))) == 12
    assert guarantees(reader, 0.0)["image", "server"].epsilon == pytest.approx(12.0)
    assert Responses(1.0, "image", side=2).fitted((4, 4, 3), 10).each == pytest.approx(1 / 12)


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
