"""Evaluation of several models in several ways: the headline and what stands beside it, the same numbers by every path,
and names nobody knows.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sordino import config
from sordino.config import Experiment
from sordino.errors import SordinoError
from sordino.metrics import RoundRow
from sordino.privacy.noise.sources import Counter
from sordino.privacy.readers.open import Open
from sordino.receipts.folder import RunFolder
from sordino.report import run_facts
from sordino.runs.run import start
from sordino.runs.simulation import simulated
from sordino.tasks.personalise import WAYS
from sordino.transport import message
from sordino.types import Examples, Grant
from tests.laws import warm
from tests.runs.test_ranks import forked

BOTH = ["global", "aggregate"]
THREE = ["finetune", "plain", "proto"]


def made(name: str = "pfl_dyn", **tables: Any) -> Experiment:
    table: dict[str, Any] = {
        "rounds": 2,
        "partition": {"scheme": "active", "clients": 8, "k": 3},
        "model": {"name": "mlp", "hidden": 12},
        "cohort": {"name": "random", "size": 3},
        "privacy": {},
        "engine": {"executor": "loop"},
        "algorithm": {"name": name, "lr": 0.05, "local_steps": 3, "batch_size": 15},
    }
    return config.validate(table | tables)


def run(folder: Path, **tables: Any) -> list[RoundRow]:
    start(made(**tables), folder)
    return RunFolder(folder).metrics()


@pytest.mark.slow
def test_the_first_way_of_the_first_model_is_the_headline(tmp_path: Path) -> None:
    rows = run(tmp_path / "run", evaluation={"models": BOTH, "personal": THREE})
    names = [f"{model}, {way}" for model in BOTH for way in THREE]
    for row in rows:
        assert list(row.also) == names[1:]
        assert len(row.clients.each) == 8
        assert row.clients.mean == pytest.approx(statistics.fmean(row.clients.each))
        for beside in row.also.values():
            assert None not in (beside.accuracy, beside.loss, beside.clients)
            assert beside.clients.each is None  # the list is the headline's alone
        headlines = [row.accuracy, *(beside.accuracy for beside in row.also.values())]
        assert len(set(headlines)) > 3
    turned = run(tmp_path / "turned", evaluation={"models": BOTH[::-1], "personal": THREE[::-1]})
    assert turned[-1].accuracy == rows[-1].also["aggregate, proto"].accuracy
    assert rows[-1].measured == "clients' own models (finetune)"
    assert turned[-1].measured == "clients' own models (proto), from the aggregate model"
    assert turned[-1].also["global, finetune"].accuracy == rows[-1].accuracy
    assert turned[-1].also["global, plain"] == rows[-1].also["global, plain"]


def test_every_way_of_every_model_is_scored_by_its_own_client(tmp_path: Path) -> None:
    """Recomputed here, client by client, from the models that the server held: `own` is the algorithm's way, which is
    `proto`.
    """
    parts = simulated(made())
    clients, task = parts.site("run"), parts.setup.task
    server = parts.setup.state("server")
    start_, other = server.x, {name: value + 0.1 for name, value in server.x.items()}
    found = clients.score(0, [start_, other], ["own", *THREE])
    rows, tests = parts.population.shares
    assert sorted(found) == [k for k, test in enumerate(tests) if len(test)]
    for k, row in found.items():
        wanted = []
        shard = Open().open(clients.shards[k], Grant(k, len(rows[k]), len(rows[k]), Counter(0)), task)
        for params in (start_, other):
            for way in ("proto", *THREE):
                scores = WAYS[way](task, params, shard).score(clients.tests[k])
                wanted += [float(scores["accuracy"].mean()), float(scores["loss"].mean())]
        assert row == pytest.approx(wanted, rel=1e-12)
        assert row[:2] == row[6:8]
    assert not clients.states.trees()  # nothing is kept of it


@pytest.mark.parametrize("name", ["pfl_dyn", "fedavg"])
def test_plain_on_the_clients_is_the_shared_model(name: str, tmp_path: Path) -> None:
    """Through the clients' path and at the server: the same means, over examples and over clients."""
    parts = simulated(made(name, evaluation={"models": ["global"], "personal": ["plain"]}))
    evaluation, clients, server = parts.evaluation(), parts.site("run"), parts.setup.state("server")
    through, shared = (
        evaluation(0, server, clients.score),
        evaluation.evaluator(parts.setup.algorithm.models(server)["global"]),
    )
    assert not through.also
    assert through.accuracy == pytest.approx(shared.accuracy, rel=1e-12)
    assert through.loss == pytest.approx(shared.loss, rel=1e-6)
    for key in ("mean", "std", "worst_tenth", "each"):
        assert through.clients.to_json()[key] == pytest.approx(shared.clients.to_json()[key], rel=1e-12, abs=1e-15)


@pytest.mark.slow
def test_what_is_not_asked_for_is_the_algorithms_own(tmp_path: Path) -> None:
    own = run(tmp_path / "own")
    said = run(tmp_path / "said", evaluation={"models": ["global"], "personal": ["proto"]})
    assert own == said
    shared = run(tmp_path / "shared", name="fedavg")
    plain = run(tmp_path / "plain", name="fedavg", evaluation={"personal": ["plain"]})
    for a, b in zip(shared, plain, strict=True):
        assert a.clients.each == pytest.approx(b.clients.each)
    other = run(tmp_path / "other", evaluation={"models": BOTH[::-1], "personal": ["plain"]})
    assert other[-1].measured == "aggregate model, client by client"
    assert other[-1].measured in other[-1].in_words
    assert run_facts.gather(tmp_path / "other").model == other[-1].measured
    both = run(tmp_path / "both", evaluation={"models": BOTH})  # own names bear no way
    assert list(both[-1].also) == ["aggregate"]
    assert both[-1].accuracy == own[-1].accuracy


@pytest.mark.slow
def test_client_processes_score_what_the_loop_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message, "subprocess", warm.stand_in())
    asked = {"models": BOTH, "personal": THREE}
    loop = run(tmp_path / "loop", evaluation=asked)
    apart = run(tmp_path / "apart", evaluation=asked, engine={"executor": "processes", "workers": 2})
    assert loop == apart


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["stack", "pooled"])
def test_other_executors_score_nearly_the_same(executor: str, tmp_path: Path) -> None:
    asked = {"models": BOTH, "personal": THREE}
    loop = run(tmp_path / "loop", evaluation=asked)
    other = run(tmp_path / executor, evaluation=asked, engine={"executor": executor})
    assert other[-1].also["global, plain"].loss == pytest.approx(loop[-1].also["global, plain"].loss, rel=1e-4)


@pytest.mark.slow
def test_ranks_score_their_own_clients(tmp_path: Path) -> None:
    """Two ranks, each with half of the clients, against the loop."""
    asked = {"models": BOTH, "personal": THREE}
    loop = run(tmp_path / "loop", evaluation=asked)
    (tmp_path / "e.toml").write_text(made(evaluation=asked, engine={"executor": "ranks"}).toml())
    done = forked(2, "run", tmp_path / "e.toml", "--out", tmp_path / "ranks")
    assert done.returncode == 0, done.stderr
    together = RunFolder(tmp_path / "ranks").metrics()
    for a, b in zip(loop, together, strict=True):
        for x, y in zip([a, *a.also.values()], [b, *b.also.values()], strict=True):
            assert x.loss == pytest.approx(y.loss, rel=1e-4)
            assert x.clients.mean == pytest.approx(y.clients.mean, abs=0.05)
    assert [list(row.also) for row in loop] == [list(row.also) for row in together]


@pytest.mark.parametrize(
    ("evaluation", "code", "named"),
    [
        ({"models": ["globl"]}, "unknown-model-of-server", "aggregate"),
        ({"models": ["global", "mean"], "personal": ["plain"]}, "unknown-model-of-server", "global"),
    ],
)
def test_names_nobody_knows(evaluation: dict[str, Any], code: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(SordinoError) as refusal:
        start(made(evaluation=evaluation), tmp_path / "run")
    assert refusal.value.code == code
    assert named in refusal.value.fix


@pytest.mark.parametrize("evaluation", [{"models": ["globl"]}])
def test_names_nobody_knows_start_nothing(evaluation: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(SordinoError):
        start(made(evaluation=evaluation), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_it_is_written_as_plain_json(tmp_path: Path) -> None:
    """Among the tests of a device may be a class that it was never shown."""
    devices = {"source": "synthetic", "clients": 20, "largest": 60}
    run(
        tmp_path / "run",
        name="fedavg",
        data=devices,
        partition={"scheme": "natural"},
        evaluation={"personal": ["proto"]},
    )

    def refuse(word: str) -> Any:
        raise AssertionError(word)

    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)


def test_who_has_nothing_to_learn_from_is_scored_with_the_shared_model() -> None:
    """Not with zeros, which would be a score that nobody got."""
    clients = simulated(made(evaluation={"personal": ["proto"]})).site("run")
    algorithm, task = clients.algorithm, clients.task
    params = next(iter(algorithm.models(algorithm.init(task, 1)).values()))
    own = clients.shards[0]
    bare = replace(clients, shards={0: Examples(own.x[:0], own.y[:0])}, tests={0: clients.tests[0]})
    scored = task.score(params, clients.tests[0])
    wanted = [float(scored[name].mean()) for name in task.metrics]
    assert bare.score(0, [params], ["proto"]) == {0: wanted}
    assert clients.score(0, [params], ["proto"])[0] != wanted


def test_the_evaluator_says_the_same_on_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sordino.fast.parallel.HEAVY", 0)
    monkeypatch.setattr("sordino.metrics.evaluation.PART", 64)
    whole = simulated(config.validate({"privacy": {}, "algorithm": {"name": "fedavg"}, "engine": {"workers": 3}}))
    several = whole.evaluation().evaluator
    assert several.threads is not None
    assert several.threads.many == 3
    params = whole.setup.state("server").x
    assert several(params) == replace(several, threads=None)(params)
