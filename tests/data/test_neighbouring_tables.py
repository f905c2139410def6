"""Neighbouring tables teach the same before the noise, and one row moves nobody else."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino import config
from sordino.data import tabular
from sordino.data.dataset import CLASSES, Dataset, apart, stratified
from sordino.partition import SCHEMES, Labelled, Scheme
from sordino.runs import public_inputs
from sordino.runs.population import Population
from sordino.runs.simulation import Simulation
from tests.data.tables import DECLARED, Row, refused, saved, table

# neighbours -----------------------------------------------------------------------------------------------------------
ROWS = st.fixed_dictionaries(
    {
        "age": st.floats(-1e6, 1e6, allow_nan=False) | st.integers(-5, 200),
        "ward": st.sampled_from("ABCDE"),
        "status": st.sampled_from(["positive", "negative", "HIV-positive", "0"]),
        "smokes": st.sampled_from(["true", "false", "1", "0", "True"]),
        "note": st.sampled_from(["x", "1", "2020-01-01"]),
        "clinic": st.sampled_from(["North", "South"]),
        "outcome": st.sampled_from(["well", "ill", "worse"]),
    }
)


def held(path: Path, declared: str | None, scheme: Mapping[str, Any]) -> Population:
    """A run's data: private where there is a schema, simulated with columns that are learned."""
    data = {"source": "tabular", "path": str(path), "label": "outcome", "group": "clinic"}
    if declared is not None:
        (path.parent / "s.toml").write_text(declared)
        data["schema"] = str(path.parent / "s.toml")
    noise = "counter" if declared is None else "system"
    return Population(config.validate({"data": data, "partition": dict(scheme), "privacy": {"noise": noise}}))


def differing(first: Population, second: Population, row: int) -> set[str]:
    """What two tables that differ in one row have not in common, beside that row."""

    def places(of: Population) -> list[list[float]]:
        a, b = of.shares
        train, test = of.dataset.train.x[:, 0], of.dataset.test.x[:, 0]
        return [train[k].tolist() for k in a] + [test[k].tolist() for k in b]

    def others(data: Dataset) -> list[Any]:
        return [split.x[split.x[:, 0] != row].tolist() for split in (data.train, data.test)]

    facts: dict[str, Callable[[Population], Any]] = {
        "features": lambda of: of.dataset.shape,
        "classes": lambda of: (of.dataset.classes, of.dataset.class_names),
        "model": lambda of: {name: tuple(v.shape) for name, v in Simulation.of(of).setup.task.init(0).items()},  # type: ignore[attr-defined]
        "scale": lambda of: (of.dataset.mean, of.dataset.std),
        "owners": places,
        "other rows": lambda of: others(of.dataset),
    }
    return {name for name, fact in facts.items() if fact(first) != fact(second)}


NEIGHBOURS = (st.lists(ROWS, min_size=16, max_size=24), ROWS, st.integers(0, 15))


DIVISIONS: list[Row] = [
    {"scheme": "natural"},
    {"scheme": "iid", "clients": 3},
    {"scheme": "quantity", "clients": 2, "beta": 5.0},
]


def neighbours(folder: Path, rows: list[Row], other: Row, place: int) -> None:
    first = [{"place": i, **row, "clinic": ("North", "South")[i // 2 % 2]} for i, row in enumerate(rows)]
    second = [*first]
    second[place] = {**first[place], **other, "clinic": first[place]["clinic"]}
    files = saved(folder, first, "first.csv"), saved(folder, second, "second.csv")
    for scheme in DIVISIONS:
        one, two = (held(file, DECLARED, scheme) for file in files)
        assert differing(one, two, place) == set()
        assert one.disclosures.learned_from_rows == ()
        assert not one.disclosures.scaled_by_rows


@settings(deadline=None, max_examples=6)
@given(*NEIGHBOURS)
def test_neighbouring_tables_teach_the_same_before_the_noise(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], other: Row, place: int
) -> None:
    neighbours(tmp_path_factory.mktemp("neighbours"), rows, other, place)


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(*NEIGHBOURS)
def test_so_do_three_hundred_pairs(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], other: Row, place: int
) -> None:
    neighbours(tmp_path_factory.mktemp("neighbours"), rows, other, place)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"status": "HIV-positive"}, {"features", "model", "scale", "other rows"}),
        ({"outcome": "worse"}, {"classes", "model"}),
        ({"age": 119}, {"scale"}),
    ],
)
def test_a_learned_table_tells_one_row_from_another(change: Row, told: set[str], tmp_path: Path) -> None:
    first = [row | {"note": i} for i, row in enumerate(table())]
    second = [row | change if i == 7 else row for i, row in enumerate(first)]
    files = saved(tmp_path, first, "first.csv"), saved(tmp_path, second, "second.csv")
    twins = [held(file, None, {"scheme": "natural"}) for file in files]
    assert told <= differing(*twins, 7)
    assert twins[0].disclosures.learned_from_rows == (public_inputs.SCALING, public_inputs.COLUMNS, CLASSES)
    assert twins[0].disclosures.scaled_by_rows
    assert differing(*(held(file, DECLARED, {"scheme": "natural"}) for file in files), 7) == set()


# which rows are held back ---------------------------------------------------------------------------------------------
def of_test(path: Path, name: str, **more: Any) -> set[Any]:
    """The numbers in `name` of the rows that are held back."""
    data = tabular.load(path, "outcome", **more)
    with open(path, newline="", encoding="utf-8") as file:
        at = [column for column in next(csv.reader(file)) if column not in ("outcome", more.get("key"))].index(name)
    return set(data.test.x[:, at].astype(int).tolist())


def test_one_outcome_moves_nobody_where_a_stratified_split_moves_many(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [{"place": i, "outcome": int(y)} for i, y in enumerate(rng.random(400) < 0.3)]
    changed = [row | {"outcome": 1 - row["outcome"]} if row["place"] == 11 else row for row in rows]
    before, after = (of_test(saved(tmp_path, found), "place") for found in (rows, changed))
    assert before == after
    labels = [np.array([row["outcome"] for row in found]) for found in (rows, changed)]
    twins = [set(stratified(y, 0.2, 0)[1].tolist()) for y in labels]
    assert len(twins[0] ^ twins[1]) > 20


def test_a_key_holds_a_row_in_its_place(tmp_path: Path) -> None:
    rows = [{"visit": f"v{i}", "place": i, "outcome": i % 2} for i in range(300)]
    whole = of_test(saved(tmp_path, rows), "place", key="visit")
    assert 0 < len(whole) < 300
    for left in (rows[1:], rows[:150] + rows[151:], rows[::-1], rows[50:]):
        found = of_test(saved(tmp_path, left), "place", key="visit")
        assert found == whole & {row["place"] for row in left}
    # without a key a row that leaves moves those behind it; one that comes last moves none
    rows = [{"place": i, "outcome": i % 2} for i in range(300)]
    by_place = of_test(saved(tmp_path, rows), "place")
    assert of_test(saved(tmp_path, rows[1:]), "place") != by_place - {0}
    more = [*rows, *({"place": 300 + i, "outcome": 0} for i in range(40))]
    assert {place for place in of_test(saved(tmp_path, more), "place") if place < 300} == by_place


def test_rows_of_one_key_stay_together_as_they_are_written(tmp_path: Path) -> None:
    rows = [{"person": f"{i // 5:03}", "place": i // 5, "outcome": i % 2} for i in range(200)]
    data = tabular.load(saved(tmp_path, rows), "outcome", key="person")
    assert data.shape == (1,)  # a key is no feature
    assert set(data.train.x[:, 0].tolist()).isdisjoint(data.test.x[:, 0].tolist())
    held = of_test(saved(tmp_path, rows), "place", key="person")
    rows[0]["person"] = rows[1]["person"] = "somebody"  # 004 stays 004, and does not become 4 or a word
    assert of_test(saved(tmp_path, rows), "place", key="person") - {0} == held - {0}


def test_so_many_are_held_back_as_asked() -> None:
    """Of 10,000 coins, within four standard deviations. The seed is fixed: no false alarm. Control: another share."""
    for keys, share in itertools.product((None, [str(i) for i in range(10_000)]), (0.2, 0.5)):
        found = len(apart([10_000], keys, share, 3)[1])
        spread = 4 * (10_000 * share * (1 - share)) ** 0.5
        assert abs(found - 10_000 * share) < spread
        assert abs(len(apart([10_000], keys, share + 0.05, 3)[1]) - 10_000 * share) > spread
        train, test = apart([10_000], keys, share, 3)
        assert sorted([*train, *test]) == list(range(10_000))
        assert not np.array_equal(test, apart([10_000], keys, share, 4)[1])
    assert refused(lambda: apart([3], None, 1e-9, 0)).code == "empty-split"


PARTITIONS: dict[str, Row] = {
    "iid": {"clients": 5},
    "dirichlet": {"clients": 5, "alpha": 0.5, "min_size": 1},
    "shards": {"clients": 5},
    "classes": {"clients": 5, "k": 2},
    "active": {"clients": 5, "k": 2},
    "quantity": {"clients": 5, "beta": 5.0},
    "long_tail": {"clients": 5, "rho": 0.5, "min_size": 1},
    "power_law": {"clients": 4, "least": 2},
    "natural": {},
}


class Few:
    def __init__(self, y: Any, group: Any) -> None:
        self.y, self.group = y, group


@pytest.mark.parametrize("name", SCHEMES)
def test_a_scheme_says_whether_a_label_moves_others(name: str) -> None:
    scheme: Scheme = SCHEMES[name](**PARTITIONS[name])
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(4), 60))
    group = np.arange(240) % 5

    def owners(y: Any) -> list[Any]:
        rng, everybody = np.random.default_rng(1), Few(y, group)
        known: Labelled = everybody
        rows = scheme.assign(y, group, rng)
        tests = scheme.match(known, rows, known, rng)
        return [{int(row): int(who) for row, who in zip(r.numbers, r.owners, strict=True)} for r in (rows, tests)]

    moved = 0
    for row in range(0, 240, 40):
        changed = labels.copy()
        changed[row] = (changed[row] + 1) % 4
        for before, after in zip(owners(labels), owners(changed), strict=True):
            moved += sum(before.get(other) != after.get(other) for other in range(240) if other != row)
    assert (moved > 0) == scheme.reads_labels
