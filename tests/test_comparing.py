"""Comparisons: fair by construction, measures in closed form, nothing from the best round."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from sordino import config
from sordino.assemble import Parts
from sordino.comparing import (
    Method,
    at_bytes,
    at_round,
    bytes_to,
    check_equal,
    compare,
    final,
    last_ten,
    paired_p,
    rounds_to,
    table,
)
from sordino.errors import SordinoError
from sordino.report.compared import as_csv, as_latex, lines

ACCURACY = [0.1, 0.9, 0.4, 0.5]  # the best round is not the last


def rows(accuracy: list[float] = ACCURACY, size: int = 100) -> list[dict[str, Any]]:
    clients = {"metric": "accuracy", "mean": 0.5, "std": 0.1, "worst_tenth": 0.2, "each": []}
    return [
        {"round": i + 1, "accuracy": a, "loss": 1.0, "bytes_up": size, "bytes_down": size, "clients": clients}
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
    assert all(row[name] < 0.9 for name in ("final", "last_ten", "at_half_std", "at_equal_bytes"))


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
    assert found["rounds_to_target"] == 2
    assert found["rounds_to_target_n"] == 1
    assert "(1 of 2)" in lines([found])[1][7]


@pytest.mark.parametrize("change", ["rounds=7", "partition.clients=7", "model=mlp", "cohort={name='random', size=3}"])
def test_unequal_experiments_are_not_compared(change: str) -> None:
    with pytest.raises(SordinoError) as refused:
        check_equal([config.load(None, ["name=a"]), config.load(None, ["name=b", change])])
    assert refused.value.code == "unequal-comparison"


def test_equal_seeds_mean_equal_starts() -> None:
    one, other = (
        Parts(config.load(None, [f"algorithm={name}", "privacy={}", "seed=4"])) for name in ("fedavg", "scaffold")
    )
    assert all((a == b).all() for a, b in zip(one.shares[0], other.shares[0], strict=True))
    assert torch.equal(one.state("server").x["1.weight"], other.state("server").x["1.weight"])
    assert one.cohort.draw(3, 20, one.key) == other.cohort.draw(3, 20, other.key)
    third = Parts(config.load(None, ["algorithm=fedavg", "privacy={}", "seed=5"]))
    assert not torch.equal(one.state("server").x["1.weight"], third.state("server").x["1.weight"])


def test_a_comparison_runs_stops_and_goes_on(tmp_path: Path) -> None:
    files = []
    for name in ("fedavg", "scaffold"):
        files.append(tmp_path / f"{name}.toml")
        files[-1].write_text(f"rounds = 2\n[partition]\nscheme = 'iid'\nclients = 4\n[algorithm]\nname = '{name}'\n")
    methods = compare(files, 2, tmp_path / "out")
    assert [m.name for m in methods] == ["fedavg", "scaffold"]
    assert all(len(m.runs) == 2 for m in methods)
    again = table(compare(files, 2, tmp_path / "out"))
    assert json.dumps(again) == json.dumps(table(methods))
    assert (tmp_path / "out/fedavg/seed-0/model.safetensors").exists()
    text = list(csv.DictReader(io.StringIO(as_csv(again))))
    assert [line["method"] for line in text] == ["fedavg", "scaffold"]
    assert float(text[0]["final"]) == again[0]["final"]
    latex = as_latex(again)
    assert latex.count(r"\\") == 3
    files[0].write_text(files[0].read_text() + "lr = 0.2\n")
    with pytest.raises(SordinoError) as refused:
        compare(files, 2, tmp_path / "out")
    assert refused.value.code == "stale-comparison"
