"""Comparisons: fair by construction, measures in closed form, nothing from the best round."""

from __future__ import annotations

import csv
import html
import io
import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import sordino
from sordino import config
from sordino.accounting.facts import epsilon_text
from sordino.accounting.gaussian_dp import epsilon_of, mu_of
from sordino.accounting.words import rounded_up
from sordino.cli.program import app
from sordino.errors import SordinoError
from sordino.metrics import RoundRow, ScoreSpread
from sordino.metrics.measures import (
    at_bytes,
    at_round,
    bytes_to,
    curve,
    final,
    last_ten,
    paired_p,
    rounds_to,
    traffic,
)
from sordino.receipts.folder import RunFolder
from sordino.results import comparison
from sordino.results.comparison import Comparison, Method, check_equal, compare, table
from sordino.results.comparison_table import as_csv, as_latex, lines, shaped, snippet
from sordino.results.sweeps import grid, split
from sordino.runs.play import Ended
from sordino.runs.simulation import simulated

ACCURACY = [0.1, 0.9, 0.4, 0.5]  # the best round is not the last


def rows(accuracy: list[float] = ACCURACY, size: int = 100) -> list[RoundRow]:
    clients = ScoreSpread(metric="accuracy", mean=0.5, std=0.1, worst_tenth=0.2, each=())
    return [
        RoundRow(round=i + 1, accuracy=a, loss=1.0, bytes_up=size, bytes_down=size, clients=clients)
        for i, a in enumerate(accuracy)
    ]


def test_measures_of_one_run() -> None:
    assert final(rows()) == 0.5
    assert last_ten(rows()) == pytest.approx(sum(ACCURACY) / 4)
    assert at_round(3)(rows()) == 0.4
    assert at_bytes(400)(rows()) == 0.9  # two rounds of 200 bytes
    assert at_bytes(399)(rows()) == 0.1
    assert at_bytes(1)(rows()) is None
    assert rounds_to(0.45)(rows()) == 2
    assert rounds_to(0.95)(rows()) is None
    assert bytes_to(0.45)(rows()) == 400
    assert bytes_to(0.95)(rows()) is None


def test_no_measure_is_the_best_round() -> None:
    method = Method("m", [rows(), rows([0.1, 0.95, 0.4, 0.5])], [])
    (row,) = table([method])
    flat = row.flat()
    assert all(flat[name] < 0.9 for name in ("final", "last_ten", "at_half_std", "at_equal_bytes"))


def test_the_paired_test_is_the_textbook_one() -> None:
    a, b = [0.9, 0.8, 0.85], [0.7, 0.75, 0.7]
    d = torch.tensor(a, dtype=torch.float64) - torch.tensor(b, dtype=torch.float64)
    t = float(d.mean() / (d.std() / 3**0.5))
    p = paired_p(a, b)
    assert p is not None
    # two degrees of freedom have a closed form: P(|T| > t) = 1 - t / sqrt(t^2 + 2)
    assert p == pytest.approx(1 - t / (t**2 + 2) ** 0.5)
    assert paired_p([0.5], [0.4]) is None
    assert paired_p([0.5, 0.6], [0.4, 0.5]) is None  # equal differences have no spread to judge by


def test_a_target_not_reached_is_counted() -> None:
    slow = rows([0.1, 0.1, 0.1, 0.2])
    found = table([Method("m", [rows(), slow], [])], target=0.45)[0]
    assert found.measured["rounds_to_target"].mean == 2
    assert found.measured["rounds_to_target"].n == 1
    assert lines([found])[1][7] == "2.0 (not reached: 1 of 2)"


@pytest.mark.parametrize("change", ["rounds=7", "partition.clients=7", "model=mlp", "cohort={name='random', size=3}"])
def test_unequal_experiments_are_not_compared(change: str) -> None:
    with pytest.raises(SordinoError) as refused:
        check_equal([config.load(None, ["name=a"]), config.load(None, ["name=b", change])])
    assert refused.value.code == "unequal-comparison"


def test_equal_seeds_mean_equal_starts() -> None:
    one, other = (
        simulated(config.load(None, [f"algorithm={name}", "privacy={}", "seed=4"])) for name in ("fedavg", "scaffold")
    )
    assert all((a == b).all() for a, b in zip(one.population.shares[0], other.population.shares[0], strict=True))
    assert torch.equal(one.setup.state("server").x["1.weight"], other.setup.state("server").x["1.weight"])
    assert one.setup.cohort.draw(3, 20, one.setup.key) == other.setup.cohort.draw(3, 20, other.setup.key)
    third = simulated(config.load(None, ["algorithm=fedavg", "privacy={}", "seed=5"]))
    assert not torch.equal(one.setup.state("server").x["1.weight"], third.setup.state("server").x["1.weight"])


@pytest.mark.slow
def test_a_comparison_runs_stops_and_goes_on(tmp_path: Path) -> None:
    files = []
    for name in ("fedavg", "scaffold"):
        files.append(tmp_path / f"{name}.toml")
        files[-1].write_text(f"rounds = 2\n[partition]\nscheme = 'iid'\nclients = 4\n[algorithm]\nname = '{name}'\n")
    found = compare(files, 2, tmp_path / "out")
    assert [m.name for m in found.methods] == ["fedavg", "scaffold"]
    assert all(len(m.runs) == 2 for m in found.methods)
    again = compare(files, 2, tmp_path / "out").table
    assert again == found.table
    assert (tmp_path / "out/fedavg/seed-0/model.safetensors").exists()
    text = list(csv.DictReader(io.StringIO(as_csv(again))))
    assert [line["method"] for line in text] == ["fedavg", "scaffold"]
    assert float(text[0]["final"]) == again[0].measured["final"].mean
    latex = as_latex(again)
    assert latex.count(r"\\") == 3
    files[0].write_text(files[0].read_text() + "lr = 0.2\n")
    with pytest.raises(SordinoError) as refused:
        compare(files, 2, tmp_path / "out")
    assert refused.value.code == "stale-comparison"


def test_a_curve_is_the_mean_over_the_seeds_that_got_there() -> None:
    points = curve([rows([0.2, 0.4]), rows([0.4, 0.8], size=200), rows([0.6])], "accuracy")
    assert [(p.round, p.n) for p in points] == [(1, 3), (2, 2)]
    assert [p.mean for p in points] == pytest.approx([0.4, 0.6])
    assert points[0].std == pytest.approx(0.2)  # sample deviation of 0.2, 0.4, 0.6
    assert points[1].bytes == pytest.approx((400 + 800) / 2)
    assert curve([rows([0.2])], "accuracy")[0].std is None
    assert traffic(rows()) == 800
    assert traffic([]) == 0


# sweeps ---------------------------------------------------------------------------------------------------------------


def test_values_are_split_at_outer_commas_only() -> None:
    assert split("0.01, 0.1") == ["0.01", "0.1"]
    assert split('{name = "random", size = 3}') == ['{name = "random", size = 3}']
    assert split('"a,b",c') == ['"a,b"', "c"]
    assert split("[1,2],[3]") == ["[1,2]", "[3]"]
    assert split('"it\'s, so",x') == ['"it\'s, so"', "x"]


def test_a_grid_has_every_combination_once() -> None:
    found = grid(["lr=0.1,0.2", "rounds=3", "algorithm.mu=1,2,3"])
    assert [s.label for s in found] == [f"lr={lr} mu={mu}" for lr in ("0.1", "0.2") for mu in (1, 2, 3)]
    assert all(s.overrides[1] == "rounds=3" for s in found)
    assert [s.label for s in grid(["algorithm=fedavg,scaffold"])] == ["fedavg", "scaffold"]
    assert [(s.label, s.overrides) for s in grid([])] == [("", ())]
    assert [s.label for s in grid(["rounds=3", "cohort={name='random', size=3}"])] == [""]


def test_what_is_no_setting_is_refused_as_in_a_run(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("rounds = 1\n")
    with pytest.raises(SordinoError) as refused:
        compare([tmp_path / "a.toml"], 1, tmp_path / "out", ["lr", "mu=1,2"])
    assert refused.value.code == "bad-override"


@pytest.mark.parametrize("override", ["seed=1,2", "name=a,b"])
def test_what_is_no_parameter_is_not_swept(override: str) -> None:
    with pytest.raises(SordinoError) as refused:
        grid([override])
    assert refused.value.code == "not-swept"


def test_a_bare_key_of_the_algorithm_goes_to_the_algorithm() -> None:
    assert config.load(None, ["lr=0.3"]) == config.load(None, ["algorithm.lr=0.3"])
    # whatever its place among the others
    assert config.load(None, ["mu=0.5", "algorithm=fedprox"]).algorithm == {"name": "fedprox", "mu": 0.5}
    assert config.load(None, ["seed=3"]).seed == 3


@pytest.mark.parametrize(
    ("overrides", "code", "fix"),
    [
        (["lr=0.1,0.2"], "sweep-in-a-run", "sordino compare EXPERIMENT.toml --set lr=0.1,0.2"),
        (["mu=0.1"], "unknown-key", ""),  # not of this algorithm
        (["clients=3"], "unknown-key", ""),  # of another section
        (["algorithm=gaussian_sampled", "cohort={name='poisson', rate=0.1}", "rate=0.2"], "ambiguous-key", "algorithm.rate"),
    ],
)  # fmt: skip
def test_a_bare_key_that_is_unclear_is_refused(overrides: list[str], code: str, fix: str) -> None:
    with pytest.raises(SordinoError) as refused:
        config.load(None, overrides)
    assert refused.value.code == code
    assert fix in refused.value.fix


def test_a_list_for_a_number_says_how_to_sweep() -> None:
    with pytest.raises(SordinoError) as refused:
        _ = simulated(config.load(None, ["lr=[0.1, 0.2]"])).setup.algorithm
    assert refused.value.code == "wrong-type"
    assert "--set lr=0.1,0.2" in refused.value.fix


# what a search costs --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    place = tmp_path_factory.mktemp("sweep")
    (place / "a.toml").write_text(
        "rounds = 2\n[partition]\nscheme = 'iid'\nclients = 4\n[algorithm]\nname = 'gaussian_gdp'\nclip = 1.0\n[privacy]\nepsilon = 2.0\n"
    )
    return sordino.compare(place / "a.toml", "lr=0.5,1.0,2.0", seeds=2, out=place / "out")


@pytest.mark.slow
def test_a_target_that_a_constant_reaches_says_nothing(sweep: Comparison) -> None:
    assert "no better than a constant answer (" in replace(sweep, target=0.05).choosing[-1]
    assert "constant" not in " ".join(replace(sweep, target=0.9).choosing)


@pytest.mark.slow
def test_a_sweep_is_one_method_per_value_and_says_what_it_cost(sweep: Comparison) -> None:
    assert [row.method for row in sweep.table] == ["a lr=0.5", "a lr=1.0", "a lr=2.0"]
    assert [method.experiment.algorithm["lr"] for method in sweep.methods] == [0.5, 1.0, 2.0]
    examples = [row for row in sweep.search if row.unit == "example"]
    single = next(row.epsilon for row in sweep.methods[0].promise if row.unit == "example")
    # the budget is exact: mu of one run is known from its epsilon
    mu = mu_of(single, 1e-5)
    assert [row.epsilon for row in examples] == pytest.approx([epsilon_of(mu * 3**0.5, 1e-5)] * 3, rel=1e-6)
    told = " ".join(sweep.choosing)
    assert "3 configurations of one sweep" in told
    assert "Tuning is not accounted for" in told
    assert f"epsilon {rounded_up(examples[0].epsilon):g}" in told
    assert f"epsilon {epsilon_text(examples[0].every_seed)}" in told
    assert "lr=0.5,1.0,2.0" in sweep.command


@pytest.mark.slow
def test_runs_that_were_dropped_from_a_search_are_named(sweep: Comparison) -> None:
    """A trial that failed, was stopped, or whose file is named no more lies there all the same, and has been paid."""
    assert "Not counted" not in " ".join(sweep.choosing)
    (gone, *kept), seeds = sweep.methods, len(sweep.methods[0].runs)
    told = next(line for line in replace(sweep, methods=kept).choosing if line.startswith("Not counted"))
    assert f"{seeds} other runs" in told
    assert f"{gone.name}/seed-0" in told


@pytest.mark.slow
def test_the_command_of_a_comparison_makes_it_again(sweep: Comparison) -> None:
    words = shlex.split(sweep.command)
    assert words[:2] == ["sordino", "compare"]
    again = CliRunner().invoke(app, [*words[1:], "--format", "json", "--quiet"])
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout) == [row.to_json() for row in sweep.table]


@pytest.mark.slow
def test_the_page_is_written_where_the_runs_are(sweep: Comparison) -> None:
    assert sweep.report() == sweep.folder / "comparison.html"
    words = shlex.split(sweep.command)[1:]
    said = CliRunner().invoke(app, [*words, "--format", "html", "--quiet"])
    assert said.stdout.strip() == str(sweep.folder / "comparison.html")


def test_a_frame_holds_the_table(sweep: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    frame = sweep.frame()
    assert list(frame["method"]) == [row.method for row in sweep.table]
    assert list(frame["final"]) == [row.measured["final"].mean for row in sweep.table]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(SordinoError) as refused:
        sweep.frame()
    assert refused.value.code == "pandas-missing"


def test_a_notebook_shows_the_table_and_what_must_be_said(sweep: Comparison) -> None:
    shown = sweep._repr_html_()
    for line in lines(sweep.table):
        assert all(f">{html.escape(text, quote=False)}</t" in shown for text in line)
    assert html.escape(sweep.choosing[0], quote=False) in shown
    hostile = snippet([sweep.table[0].beside(method="<b>x</b>")], ["<i>said</i>"])
    assert "<b>" not in hostile
    assert "<i>" not in hostile


def test_a_stopped_comparison_does_not_go_on_with_the_next_run(
    sweep: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []

    def stopped(experiment: config.Experiment, folder: Path, watch: Any) -> Ended:
        ran.append(folder)
        return Ended(folder, [], RunFolder(sweep.folder / sweep.methods[0].name / "seed-0").receipt(), [], True)

    monkeypatch.setattr(comparison, "_run", stopped)
    said = CliRunner().invoke(app, shlex.split(sweep.command)[1:])
    assert said.exit_code == 130
    assert "continues" in said.stderr
    assert len(ran) == 1


@pytest.mark.slow
def test_a_method_promises_what_its_weakest_seed_does(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(
        "rounds = 2\ncohort = {name = 'random', size = 2}\n[partition]\nscheme = 'iid'\nclients = 5\n"
        "[algorithm]\nname = 'gaussian_gdp'\nclip = 1.0\n[privacy]\nepsilon = 2.0\n"
    )
    # whether a client is drawn twice in two rounds is up to the seed
    found = compare([path], 6, tmp_path / "out", ["lr=0.5,1.0"])
    for method in found.methods:
        receipts = [json.loads(p.read_text()) for p in (tmp_path / "out" / method.name).glob("*/privacy.json")]
        each = [float(row["epsilon"]) for r in receipts for row in r["guarantees"] if row["unit"] == "example"]
        assert min(each) < max(each)  # else this shows nothing
        assert {row.epsilon for row in method.promise if row.unit == "example"} == {max(each)}
        assert len(method.promise) == len(receipts[0]["guarantees"])


def test_one_experiment_alone_is_no_comparison(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("rounds = 1\n")
    for files in ([tmp_path / "a.toml"], []):
        with pytest.raises(SordinoError) as refused:
            compare(files, 1, tmp_path / "out")
        assert refused.value.code == "too-few-to-compare"


def test_names_become_folders_that_stay_inside(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(
        "name = '../../x'\nrounds = 1\n[partition]\nscheme = 'iid'\nclients = 3\n[algorithm]\nname = 'fedavg'\n"
    )
    compare([path], 1, tmp_path / "out", ["lr=0.1,0.2"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.toml", "out"]
    assert len(list((tmp_path / "out").iterdir())) == 2


def test_few_methods_stand_side_by_side_with_the_same_cells() -> None:
    made = [table([Method(str(i), [rows()], [])])[0] for i in range(6)]
    assert shaped(made) == lines(made)
    turned = shaped(made[:5])
    assert turned[0] == ["method", "0", "1", "2", "3", "4"]
    assert [[line[k] for line in turned] for k in range(6)] == lines(made[:5])
