"""Results in Python: frames say what the files say, nothing hostile gets into a notebook, and a missing package is
named.
"""

from __future__ import annotations

import inspect
import json
import math
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import sordino
from sordino import config, results
from sordino.accounting.gaussian_dp import epsilon_of, mu_of
from sordino.config import Experiment
from sordino.errors import SordinoError
from sordino.metrics import RoundRow
from sordino.receipts.receipt import spending
from sordino.results import Result, curve, markup
from sordino.runs.listing import promise
from sordino.runs.simulation import simulated

pandas = pytest.importorskip("pandas", reason="the frames extra is not installed")

ROUNDS = 6
SMALL: dict[str, Any] = {"rounds": ROUNDS, "partition": {"scheme": "iid", "clients": 4}, "evaluation.every": 2}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return sordino.run(out=tmp_path_factory.mktemp("results") / "run", **SMALL, **{"evaluation.final": 1})


def files(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return rows, json.loads((folder / "privacy.json").read_text())


def same(a: Any, b: Any) -> bool:
    return (b is None and math.isnan(a)) or a == b


def wrong(result: Result) -> list[str]:
    """Where the frames differ from the files in the run folder, read here by other means."""
    rows, receipt = files(result.folder)
    found = []
    if list(result.rounds["round"]) != [row["round"] for row in rows]:
        found.append("rounds")
    for name in ("accuracy", "loss", "bytes_up", "bytes_down"):
        if not all(same(a, row.get(name)) for a, row in zip(result.rounds[name], rows, strict=True)):
            found.append(name)
    for name in ("mean", "std", "worst_tenth"):
        told = [row.get("clients", {}).get(name) for row in rows]
        if not all(map(same, result.rounds[f"clients_{name}"], told)):
            found.append(f"clients_{name}")
    last = result.rounds.iloc[-1]
    finite = [row for row in receipt["guarantees"] if row["epsilon"] != "inf"]
    columns = {
        f"epsilon_{row['unit']}_{row['neighbours']}_{row['adversary']}_{row['status']}_simulation": row["epsilon"]
        for row in finite
    }
    if finite and set(result.rounds["delta"]) != {row["delta"] for row in finite}:
        found.append("delta")
    if {name for name in result.rounds if name.startswith("epsilon")} != set(columns):
        found.append("epsilon columns")
    found += [name for name, value in columns.items() if last[name] != pytest.approx(value)]
    if receipt["budget"] and last["spent_share"] != pytest.approx(receipt["budget"]["spent_share"]["max"]):
        found.append("spent_share")
    for frame_row, row in zip(result.privacy.to_dict("records"), receipt["guarantees"], strict=True):
        for name in ("unit", "neighbours", "adversary", "delta", "status", "accountant", "releases"):
            if frame_row[name] != row[name]:
                found.append(f"privacy {name}")
        if frame_row["epsilon"] != float(row["epsilon"]):
            found.append("privacy epsilon")
    each = next(row["clients"]["each"] for row in reversed(rows) if "clients" in row)
    by_client = [client.to_json() for client in spending(result.folder).by_client]
    for i, (frame_row, row) in enumerate(zip(result.clients.to_dict("records"), by_client, strict=True)):
        if any(frame_row[name] != row[name] for name in ("client", "examples", "participations", "planned")):
            found.append("clients")
        if not same(frame_row.get("accuracy", frame_row.get("loss")), each[i]):
            found.append("client accuracy")
    return found


def test_frames_say_what_the_files_say(result: Result) -> None:
    assert wrong(result) == []
    assert len(result.rounds) == ROUNDS
    assert len(result.clients) == 4
    assert result.rounds["accuracy"].notna().sum() == 3  # every second round
    rows, receipt = files(result.folder)
    assert [row.to_json() for row in result.metrics] == rows
    assert result.receipt.to_json() == receipt
    assert result.accuracy == result.rounds["accuracy"].iloc[-1]


def test_frames_that_are_one_round_late_are_caught(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = result.metrics
    late = [before.beside(round=row.round) for before, row in zip([rows[0], *rows], rows, strict=False)]
    monkeypatch.setattr(results.RunFolder, "metrics", lambda run: late)
    assert "accuracy" in wrong(Result(result.folder))


def test_epsilon_grows_with_the_root_of_the_rounds(result: Result) -> None:
    # equal Gaussian releases: after t of T rounds mu is the budget's times sqrt(t / T), and t / T of its zCDP is spent
    mu = mu_of(8.0, 1e-5)
    for t, share, epsilon in zip(
        range(1, ROUNDS + 1),
        result.rounds["spent_share"],
        result.rounds["epsilon_example_replace_server_proved_simulation"],
        strict=True,
    ):
        assert share == pytest.approx(t / ROUNDS, rel=1e-4)
        assert epsilon == pytest.approx(epsilon_of(mu * math.sqrt(t / ROUNDS), 1e-5), rel=1e-3)


def test_an_epsilon_stands_beside_the_round_that_its_ledger_entry_names(result: Result) -> None:
    """A preparation has entries before the first round, and a site none for the rounds that it missed: counted through,
    the last round of the training would have the epsilon of an earlier one.
    """
    entries, shares, people, delta = result._spending
    names = ["a.pool/0", "a.pool/1", "a/0", "a/1", "a/4", "a/5"]
    prepared = [entry._replace(op=name) for entry, name in zip(entries, names, strict=True)]
    (line, *_), (plain, *_) = curve(prepared, people, delta), curve(entries, people, delta)
    spent = [epsilon for _, epsilon in plain.points]
    assert line.points == ((0, spent[1]), (1, spent[2]), (2, spent[3]), (5, spent[4]), (6, spent[5]))
    other = Result(result.folder)
    other.__dict__["_spending"] = prepared, shares, people, delta
    assert other.rounds["spent_share"].iloc[[0, 1, 4, 5]].tolist() == shares[2:]
    assert other.rounds["spent_share"].iloc[2:4].isna().all()


POISSON = {
    "algorithm": "fedavg",
    "cohort": {"name": "poisson", "rate": 0.5},
    "uplink": {
        "client": [{"name": "clip", "radius": 1.0}],
        "server": [{"name": "noise", "neighbours": "zero_out"}],
    },
    "privacy": {"epsilon": 4.0},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": "fedavg"},
        {"data.source": "quadratic", "algorithm": "fedavg", "partition": {"scheme": "natural"}},
        POISSON,
        {"algorithm": {"name": "gaussian_gdp", "multiplier": 2.0}, "privacy": {}},
        {
            "algorithm": {"name": "gaussian_sampled", "rate": 0.5},
            "privacy": {"epsilon": 4.0, "schedule": {"name": "linear_back"}},
        },
    ],
    ids=["no privacy", "no accuracy", "everyone pays", "no budget", "several orders"],
)
def test_frames_of_other_runs(changes: dict[str, Any], tmp_path: Path) -> None:
    made = sordino.run(out=tmp_path / "run", **{**SMALL, "rounds": 2, "evaluation.every": 1, **changes})
    if "accuracy" not in made.rounds:
        assert made.accuracy is None
        assert "loss" in repr(made)
        made.rounds["accuracy"] = math.nan
    assert wrong(made) == []
    assert ("(simulation)" in made.promise) == any(row.finite for row in made.receipt.guarantees)
    if made.receipt.budget is None:
        assert all(math.isinf(granted) for granted in made.clients["granted"])
        assert "spent_share" not in made.rounds


def test_the_model_scores_what_the_last_round_says(result: Result) -> None:
    parts = simulated(config.load(result.folder / "experiment.toml"))
    assert parts.evaluation().evaluator(result.model).accuracy == result.accuracy


def test_report_writes_the_page(result: Result, tmp_path: Path) -> None:
    assert result.report(tmp_path / "page.html").read_text().startswith("<!doctype html>")


# what a person sees ---------------------------------------------------------------------------------------------------


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found |= {tag, *(name for name, _ in attrs if name.startswith("on"))}

    def handle_data(self, data: str) -> None:
        self.text += data


OURS = {"div", "svg", "path", "polyline", "strong", "code"}


def test_a_result_says_what_it_reached_and_promised(result: Result) -> None:
    seen = Tags(result._repr_html_())
    for text in (repr(result), seen.text):
        assert f"{result.accuracy:.2%}" in text
        assert promise(result.receipt.guarantees, True) in text
        for part in ("ε 8 per example", "server", "δ 1e-05", "proved"):
            assert part in text
        assert str(result.folder) in text
    assert seen.found == OURS
    assert len(result._repr_html_()) < 4000


@pytest.mark.parametrize("escaping", [True, False], ids=["", "a twin that does not escape"])
def test_hostile_names_stay_text(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, escaping: bool
) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    folder = Path(shutil.copytree(result.folder, tmp_path / hostile))
    if not escaping:
        monkeypatch.setattr(markup.html, "escape", lambda text, quote=True: text)
    found = Tags(Result(folder, [f"</div>{hostile}"])._repr_html_()).found
    assert (found == OURS) == escaping


def test_too_few_points_draw_nothing(tmp_path: Path) -> None:
    assert results._curve([]) == ""
    assert results._curve([RoundRow(round=1, loss=1.0)]) == ""
    assert results._curve([RoundRow(round=1, loss=1.0), RoundRow(round=2, loss=math.nan)]) == ""
    assert "loss from 1 in round 1 to 0.5 in round 4" in results._curve(
        [RoundRow(round=1, loss=1.0), RoundRow(round=2), RoundRow(round=4, loss=0.5)]
    )


# runs on disk ---------------------------------------------------------------------------------------------------------


def test_a_finished_run_is_opened(result: Result) -> None:
    again = sordino.open_run(str(result.folder))
    assert again == result
    assert repr(again) == repr(result)
    assert again.rounds.equals(result.rounds)
    assert sordino.resume(result.folder).metrics == result.metrics


def test_a_killed_run_is_opened_as_far_as_it_went(result: Result, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(result.folder, tmp_path / "killed"))
    for name in ("privacy.json", "model.safetensors"):
        (folder / name).unlink()
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"round": 7, "accu')  # cut short
    killed = sordino.open_run(folder)
    assert killed.metrics == result.metrics
    assert len(killed.rounds) == ROUNDS
    assert "not finished" in repr(killed)
    for code, ask in {"no-receipt": lambda: killed.receipt, "no-model": lambda: killed.model}.items():
        with pytest.raises(SordinoError) as refusal:
            ask()
        assert refusal.value.code == code
        assert "sordino resume" in refusal.value.fix


def test_what_is_no_run_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(SordinoError) as refusal:
        sordino.open_run(tmp_path)
    assert refusal.value.code == "not-a-run"


# how a run is asked for -----------------------------------------------------------------------------------------------

FILE = 'rounds = 3\n[algorithm]\nname = "fedavg"\nlr = 0.05\n[partition]\nscheme = "iid"\nclients = 3\n'


def test_every_way_to_ask_means_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Experiment] = []
    monkeypatch.setattr(
        "sordino.runs.run.start", lambda experiment, folder, watch, **_: seen.append(experiment) or stop()
    )

    def stop() -> None:
        raise KeyboardInterrupt

    path, table = tmp_path / "mine.toml", {"rounds": 3, "algorithm": {"name": "fedavg", "lr": 0.05}}
    path.write_text(FILE)
    table |= {"name": "mine", "partition": {"scheme": "iid", "clients": 3}}
    unchanged = json.dumps(table)
    lr: dict[str, Any] = {"algorithm.lr": 0.2}
    for ask in (
        lambda: sordino.run(path, "rounds=9", "algorithm.lr=0.2"),
        lambda: sordino.run(str(path), rounds=9, **lr),
        lambda: sordino.run(table, "rounds=9", **lr),
        lambda: sordino.run(table, rounds=9, algorithm={"name": "fedavg", "lr": 0.2}),
        lambda: sordino.run(path, **lr, algorithm="fedavg", rounds=9),  # what chooses comes first, wherever it stands
    ):
        with pytest.raises(KeyboardInterrupt):
            ask()
    assert len({experiment.digest() for experiment in seen}) == 1
    assert seen[0].rounds == 9
    assert seen[0].algorithm["lr"] == 0.2
    assert json.dumps(table) == unchanged


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"round": 3}, "unknown-key"),
        ({"rounds": "3"}, "wrong-type"),
        ({"rounds.x": 3}, "wrong-type"),
        ({"algorithm.lrr": 1.0}, "unknown-key"),
        ({"track": ["tensorbored"]}, "unknown-tracker"),
    ],
)
def test_a_slip_is_said(settings: dict[str, Any], code: str, tmp_path: Path) -> None:
    with pytest.raises(SordinoError) as refusal:
        sordino.run(out=tmp_path / "run", **settings)
    assert refusal.value.code == code
    assert not (tmp_path / "run").exists()


def test_paths_may_be_paths(tmp_path: Path) -> None:
    with pytest.raises(SordinoError) as refusal:
        sordino.run(data={"source": "tabular", "label": "y"}, out=tmp_path / "r", **{"data.path": tmp_path / "no.csv"})
    assert "no.csv" in str(refusal.value)


def test_no_key_of_an_experiment_is_hidden_by_a_parameter() -> None:
    assert not set(Experiment.model_fields) & set(inspect.signature(sordino.run).parameters)


def test_progress_is_shown_only_where_it_is_wanted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few: dict[str, Any] = {**SMALL, "rounds": 1}
    sordino.run(out=tmp_path / "quiet", **few)
    assert capsys.readouterr() == ("", "")
    sordino.run(out=tmp_path / "shown", progress=True, **few)
    said = capsys.readouterr()
    assert said.out == ""
    assert "round 1/1" in said.err


# packages -------------------------------------------------------------------------------------------------------------


def test_without_pandas_the_frames_say_what_to_install(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    fresh = Result(result.folder)
    for name in ("rounds", "clients", "privacy"):
        with pytest.raises(SordinoError) as refusal:
            getattr(fresh, name)
        assert refusal.value.code == "pandas-missing"
        assert "sordino[frames]" in refusal.value.fix
    assert fresh.metrics == result.metrics
    assert "proved" in repr(fresh)


def test_importing_sordino_loads_nothing_heavy() -> None:
    code = (
        "import sys, sordino; sordino.run, sordino.plan, sordino.verify, sordino.audit, sordino.compare; "
        "print({'torch', 'numpy', 'pandas', 'scipy', 'pydantic', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_python_verifies(result: Result, tmp_path: Path) -> None:
    assert sordino.verify(result.folder).wrong == []
    with pytest.raises(SordinoError, match="receipt"):
        sordino.verify(tmp_path)


@pytest.mark.slow
def test_python_plans_audits_and_compares_tables(tmp_path: Path) -> None:
    small = {"rounds": 1, "data": {"train": 60, "test": 30}, "partition": SMALL["partition"]}
    planned = sordino.plan(small, "algorithm=gaussian_gdp", **{"privacy.epsilon": 2.0})
    assert planned.rows[0].promise.epsilon == pytest.approx(2.0)
    assert planned.rows[0].rounds == 1
    assert [row.rounds for row in sordino.plan(rounds=4).rows][:1] == [4]
    attacked = sordino.audit(small, "algorithm=gaussian_gdp", trials=200, **{"privacy.epsilon": 2.0})
    assert attacked.subjects
    assert attacked.verdict != "VIOLATED"
    played = sordino.audit_trained(small, "algorithm=gaussian_gdp", canaries=40, **{"privacy.epsilon": 2.0})
    assert [one.claimed for one in played.promises] == [pytest.approx(2.0)]
    assert played.verdict not in ("", "VIOLATED")
    table = {**small, "algorithm": {"name": "fedavg"}}
    other = {**table, "name": "two", "algorithm": {"name": "fedprox"}}
    compared = sordino.compare({**table, "name": "one"}, other, seeds=1, out=tmp_path / "c")
    assert [row.method for row in compared.table] == ["one", "two"]
    assert "experiments/one.toml" in compared.command  # it can be made again
    assert list(tmp_path.iterdir()) == [tmp_path / "c"]
