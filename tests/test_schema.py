"""What a table teaches before the noise: with a schema nothing.

Two neighbouring tables give models of one shape, one scale and one split; twins without a schema do not.
"""

from __future__ import annotations

import csv
import itertools
import tomllib
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import Said
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino import config
from sordino.data import Dataset, drafting, folders, images, schema, tabular
from sordino.data.dataset import STRATIFIED, apart, stratified
from sordino.errors import ConfigError, SordinoError
from sordino.partition.schemes import SCHEMES, Labelled, Scheme
from sordino.runs import public_inputs
from sordino.runs.population import Population
from sordino.runs.simulation import Simulation

ROOT = Path(__file__).parents[1]
Row = dict[str, Any]

DECLARED = """
[columns]
place = { kind = "number", range = [0, 100] }
age = { kind = "number", range = [0, 120] }
ward = { kind = "levels", levels = ["A", "B", "rest"], other = "rest" }
status = { kind = "levels", levels = ["positive", "negative"] }
smokes = { kind = "boolean" }
note = { kind = "ignored" }
clinic = { kind = "group", names = ["South", "North"] }
outcome = { kind = "label", classes = ["well", "ill", "worse"] }
"""


def saved(folder: Path, rows: Sequence[Row], name: str = "visits.csv") -> Path:
    with open(folder / name, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return folder / name


def table(count: int = 40, **changes: Any) -> list[Row]:
    rows = [
        {
            "place": i,
            "age": 20 + i,
            "ward": "AB"[i % 2],
            "status": ("positive", "negative")[i // 2 % 2],
            "smokes": ("true", "false")[i // 3 % 2],
            "note": f"remark {i}",
            "clinic": ("North", "South")[i % 2],
            "outcome": ("well", "ill")[i // 2 % 2],
        }
        for i in range(count)
    ]
    return [row | changes for row in rows]


def refused(load: Callable[[], object]) -> SordinoError:
    with pytest.raises(SordinoError) as caught:
        load()
    return caught.value


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
        assert one.learned_from_rows == ()
        assert not one.scaled_by_rows


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
        ({"age": "unknown"}, {"features", "model", "scale", "other rows"}),
    ],
)
def test_a_learned_table_tells_one_row_from_another(change: Row, told: set[str], tmp_path: Path) -> None:
    first = [row | {"note": i} for i, row in enumerate(table())]
    second = [row | change if i == 7 else row for i, row in enumerate(first)]
    files = saved(tmp_path, first, "first.csv"), saved(tmp_path, second, "second.csv")
    twins = [held(file, None, {"scheme": "natural"}) for file in files]
    assert told <= differing(*twins, 7)
    assert twins[0].learned_from_rows == (public_inputs.COLUMNS, public_inputs.CLASSES)
    assert twins[0].scaled_by_rows
    if change != {"age": "unknown"}:  # which is no number, and refused
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
        found = len(apart(10_000, keys, share, 3)[1])
        spread = 4 * (10_000 * share * (1 - share)) ** 0.5
        assert abs(found - 10_000 * share) < spread
        assert abs(len(apart(10_000, keys, share + 0.05, 3)[1]) - 10_000 * share) > spread
        train, test = apart(10_000, keys, share, 3)
        assert sorted([*train, *test]) == list(range(10_000))
        assert not np.array_equal(test, apart(10_000, keys, share, 4)[1])
    assert refused(lambda: apart(3, None, 1e-9, 0)).code == "empty-split"
    assert refused(lambda: apart(3, None, 1.0, 0)).code == "bad-test-fraction"


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


# what is declared -----------------------------------------------------------------------------------------------------


def declared(text: str = DECLARED) -> schema.TableSchema:
    return schema.parsed(text)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_columns_are_what_was_declared(suffix: str, tmp_path: Path) -> None:
    rows = table()
    rows[0] |= {"age": -40, "ward": "C", "status": "unheard of"}
    rows[1] |= {"age": 999}
    file = saved(tmp_path, rows)
    if suffix == ".parquet":
        typed = [row | {"smokes": row["smokes"] == "true", "age": float(row["age"])} for row in rows]
        file = tmp_path / "visits.parquet"
        pq.write_table(pa.Table.from_pylist([dict(reversed(row.items())) for row in typed]), file)
    data = tabular.load(file, "outcome", "clinic", schema=declared())
    assert (data.shape, data.classes, data.class_names) == ((8,), 3, ("well", "ill", "worse"))
    x = np.zeros((40, 8), np.float32)
    y, group = np.zeros(40, int), np.zeros(40, int)
    for split in (data.train, data.test):
        at = split.x[:, 0].astype(int)
        x[at], y[at], group[at] = split.x, split.y, split.group
    assert x[:3, 1].tolist() == [0, 120, 22]  # beyond the range: its nearer end
    assert x[:2, 2:5].tolist() == [[0, 0, 1], [0, 1, 0]]  # other = "rest"
    assert x[:3, 5:7].tolist() == [[0, 0], [1, 0], [0, 1]]  # no other: nothing
    assert x[:4, 7].tolist() == [1, 1, 1, 0]
    assert y[:4].tolist() == [0, 0, 1, 1]
    assert group[:2].tolist() == [1, 0]  # South comes first, as declared
    scaled = (x - np.array(data.mean)) / np.array(data.std)
    assert scaled[:, [0, 1, 7]].min() == -1
    assert scaled[:, [1, 7]].max() == 1
    assert np.array_equal(scaled[:, 2:7], x[:, 2:7])


def test_both_formats_are_the_same_data(tmp_path: Path) -> None:
    rows = table()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "visits.parquet")
    found = [
        tabular.load(f, "outcome", schema=declared()) for f in (saved(tmp_path, rows), tmp_path / "visits.parquet")
    ]
    assert found[0].fingerprint() == found[1].fingerprint()
    assert found[0].train.group is None  # a group that the experiment does not name is neither feature nor client


def test_a_declaration_is_part_of_the_fingerprint_its_wording_is_not(tmp_path: Path) -> None:
    file = saved(tmp_path, table())

    def fingerprint(text: str) -> str:
        return tabular.load(file, "outcome", schema=declared(text)).fingerprint()

    same = "# a remark\ndraft = true\n" + DECLARED.replace("range = [0, 120]", "range = [0.0, 120]")
    assert fingerprint(DECLARED) == fingerprint(same) != fingerprint(DECLARED.replace("120", "121"))


BAD_SCHEMAS = {
    'x = { kind = "text" }': "must be one of number, levels",
    "x = 3": "must be one of number, levels",
    'x = { kind = "number" }': "range = None is not",
    'x = { kind = "number", range = [3, 3] }': "the first is smaller",
    'x = { kind = "number", range = [0, inf] }': "two numbers",
    'x = { kind = "number", range = [false, true] }': "two numbers",
    'x = { kind = "number", range = [0, 1], levels = ["a"] }': "'levels' says nothing of kind 'number'",
    'x = { kind = "levels", levels = ["a", "a"] }': "different words",
    'x = { kind = "levels", levels = [] }': "different words",
    'x = { kind = "levels", levels = [0.5] }': "different words",
    'x = { kind = "levels", levels = ["a"], other = "b" }': "other = 'b' is not among its levels",
    'x = { kind = "boolean" }\ny = { kind = "label", classes = ["a"] }': "list of 2 or more",
    'x = { kind = "boolean" }\ny = { kind = "key" }\nz = { kind = "key" }': "only one column can be the key",
    'y = { kind = "label", classes = ["a", "b"] }': "no column is a feature",
    "": "no table [columns]",
}


@pytest.mark.parametrize("text", BAD_SCHEMAS)
def test_what_is_no_schema_is_refused_by_what_is_wrong(text: str, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(f"[columns]\n{text}\n")
    error = refused(lambda: schema.read(tmp_path / "s.toml"))
    assert error.code == "bad-schema"
    assert BAD_SCHEMAS[text] in error.why


def test_other_files_are_no_schemas(tmp_path: Path) -> None:
    for text, said in (
        ("[columns", "Expected"),
        ("rounds = 3", "no key 'rounds'"),
        ("draft = 1\n[columns]\na={kind='key'}", "draft = 1"),
    ):
        (tmp_path / "s.toml").write_text(text)
        error = refused(lambda: schema.read(tmp_path / "s.toml"))
        assert (error.code, said in error.why) == ("bad-schema", True)
    assert refused(lambda: schema.read(tmp_path / "none.toml")).code == "missing-schema"
    assert refused(lambda: schema.read(tmp_path)).code == "bad-schema"


ROWS_THAT_DO_NOT_FIT: list[tuple[Row, str]] = [
    ({"outcome": "dead"}, "outcome = 'dead' is no class that the schema declares: well, ill, worse (row 5 after"),
    ({"clinic": "Elsewhere"}, "clinic = 'Elsewhere' is no group"),
    ({"age": "unknown"}, "age = 'unknown' is no number (row 5 after"),
    ({"age": "inf"}, "age = 'inf' is not finite (row 5 after"),
    ({"smokes": "perhaps"}, "smokes = 'perhaps' is neither true"),
]


@pytest.mark.parametrize(("change", "said"), ROWS_THAT_DO_NOT_FIT)
def test_a_row_that_does_not_fit_is_refused_by_name(change: Row, said: str, tmp_path: Path) -> None:
    rows = table()
    rows[4] |= change
    error = refused(lambda: tabular.load(saved(tmp_path, rows), "outcome", "clinic", schema=declared()))
    assert error.code == "row-does-not-fit"
    assert said in error.what


COLUMNS_THAT_DO_NOT_FIT: dict[str, tuple[Row, Row, str]] = {  # code: (of the table, of load, what is said)
    "undeclared-column": ({"name": "Ann"}, {}, 'name = { kind = "ignored" }'),
    "missing-values": ({"ward": ""}, {}, "column ward is missing"),
    "schema-disagrees": ({}, {"label": "ward"}, "kind 'levels'"),
    "one-column-two-roles": ({}, {"group": "outcome"}, "the label and the group at once"),
}


@pytest.mark.parametrize("code", COLUMNS_THAT_DO_NOT_FIT)
def test_a_column_that_does_not_fit_is_refused(code: str, tmp_path: Path) -> None:
    changes, more, said = COLUMNS_THAT_DO_NOT_FIT[code]
    file = saved(tmp_path, table(**changes))
    error = refused(lambda: tabular.load(file, **{"label": "outcome", "schema": declared(), **more}))
    assert error.code == code
    assert said in str(error)


def test_a_declared_column_that_is_missing_is_refused(tmp_path: Path) -> None:
    rows = [{name: value for name, value in row.items() if name != "note"} for row in table()]
    error = refused(lambda: tabular.load(saved(tmp_path, rows), "outcome", schema=declared()))
    assert (error.code, "lacks note" in error.what) == ("missing-declared-column", True)
    dated = pa.table({"x": [date(2020, 1, 1)] * 9, "y": ["a", "b", "c"] * 3})
    pq.write_table(dated, tmp_path / "dates.parquet")
    said = declared(
        '[columns]\nx = { kind = "number", range = [0, 1] }\ny = { kind = "label", classes = ["a", "b", "c"] }'
    )
    error = refused(lambda: tabular.load(tmp_path / "dates.parquet", "y", schema=said))
    assert error.code == "unsupported-column-type"


def test_label_and_group_are_two_columns_without_a_schema_too(tmp_path: Path) -> None:
    file = saved(tmp_path, table())
    for more in ({"group": "outcome"}, {"key": "outcome"}, {"group": "clinic", "key": "clinic"}):
        assert refused(partial(tabular.load, file, "outcome", **more)).code == "one-column-two-roles"


# the draft ------------------------------------------------------------------------------------------------------------


def test_a_draft_fits_its_table_and_says_that_it_is_one(cli: Callable[..., Said], tmp_path: Path) -> None:
    odd = {'the "odd" column': "a'b\"c\\d", "größe": 1.5, "code": 7}
    rows = [row | odd | {"größe": 1.5 + i / 7} for i, row in enumerate(table())]
    file = saved(tmp_path, rows)
    words = ("data", "schema", file, "--label", "outcome", "--group", "clinic")
    printed = cli(*words).out
    found = declared(printed)
    assert found.draft
    assert "40 rows of 11 columns" in printed
    kinds = {name: said.kind for name, said in found.columns.items()}
    assert kinds == {
        "place": "number", "age": "number", "ward": "levels", "status": "levels", "smokes": "boolean", "note": "levels",
        "clinic": "group", "outcome": "label", 'the "odd" column': "levels", "größe": "number", "code": "number",
    }  # fmt: skip
    assert found.columns["outcome"].words == ("ill", "well")
    data = tabular.load(file, "outcome", "clinic", schema=found)
    plain = tabular.load(file, "outcome", "clinic")
    assert np.array_equal(data.train.x, plain.train.x)
    assert np.array_equal(data.test.y, plain.test.y)

    out = tmp_path / "visits.schema.toml"
    said = cli(*words, "--out", out)
    assert (said.code, out.read_text(encoding="utf-8")) == (0, printed)
    again = cli(*words, "--out", out)
    assert (again.code, "file-exists" in again.err) == (6, True)
    assert out.read_text(encoding="utf-8") == printed
    assert cli(*words, "--out", tmp_path / "no" / "folder.toml").code == 6
    assert "did you mean 'outcome'" in cli("data", "schema", file, "--label", "outcom").err


def test_identifiers_dates_and_gaps_are_left_to_a_person(tmp_path: Path) -> None:
    rows = [
        {
            "id": f"p{i}",
            "day": f"2020-01-{1 + i % 28:02}",
            "gap": "" if i % 2 else i,
            "key": i,
            "y": i % 2,
            "flag": i % 2,
        }
        for i in range(80)
    ]
    found = declared(drafting.draft(saved(tmp_path, rows), "y", key="key"))
    assert {name: said.kind for name, said in found.columns.items()} == {
        "id": "ignored", "day": "ignored", "gap": "number", "key": "key", "y": "label", "flag": "boolean",
    }  # fmt: skip
    nothing = saved(tmp_path, [{"y": i % 2} for i in range(9)], "n.csv")
    assert refused(lambda: drafting.draft(nothing, "y")).code == "no-features"


@given(st.floats(-1e9, 1e9), st.floats(0, 1e9))
def test_a_drafted_range_holds_the_rows_and_is_round(low: float, width: float) -> None:
    high = low + width
    first, last = drafting.outwards(low, high)
    assert first <= low <= high <= last
    assert last - first <= 3.001 * max(width, 2)  # no wider than a step at each end
    assert first < last


# what a run makes of it -----------------------------------------------------------------------------------------------


def experiment(tmp_path: Path, noise: str = "counter", partition: Row | None = None, **data: Any) -> Population:
    table_ = {"source": "tabular", "path": str(tmp_path / "visits.csv"), "label": "outcome", "group": "clinic", **data}
    made = {"data": table_, "partition": partition or {"scheme": "natural"}, "privacy": {"noise": noise}}
    return Population(config.validate(made))


def test_what_a_receipt_must_say_of_a_table(tmp_path: Path) -> None:
    saved(tmp_path, table())
    text = DECLARED.replace('note = { kind = "ignored" }', 'note = { kind = "key" }')
    (tmp_path / "s.toml").write_text(text)
    (tmp_path / "d.toml").write_text("draft = true\n" + text)
    good, drafted = str(tmp_path / "s.toml"), str(tmp_path / "d.toml")
    learned = (public_inputs.COLUMNS, public_inputs.CLASSES)
    cases: list[tuple[Row, tuple[str, ...], bool]] = [
        ({}, learned, True),
        ({"schema": "learned"}, learned, True),
        ({"schema": "learned", "noise": "system"}, learned, True),
        ({"schema": good}, (), False),
        ({"schema": good, "noise": "system"}, (), False),
        ({"schema": good, "standardise": "channel"}, (), True),
        ({"schema": drafted}, (public_inputs.DRAFTED,), False),
    ]
    for given_, reasons, scaled in cases:
        found = experiment(tmp_path, **given_)
        assert (found.learned_from_rows, found.scaled_by_rows) == (reasons, scaled), given_
        assert found.drawn_from_labels == (public_inputs.PLACES,)
        assert experiment(tmp_path, **given_, key="note").drawn_from_labels == ()
        x = found.dataset.train.x[:, 0].astype(np.float64)
        by_rows = found.dataset.mean[0] == pytest.approx(x.mean()) and found.dataset.std[0] == pytest.approx(x.std())
        assert by_rows == scaled
    dealt = experiment(tmp_path, partition={"scheme": "dirichlet", "clients": 2, "alpha": 5.0, "min_size": 1}, train=10)
    assert dealt.drawn_from_labels == (public_inputs.PLACES, public_inputs.PARTITION, public_inputs.RESERVED)
    evenly = experiment(tmp_path, partition={"scheme": "iid", "clients": 2})
    assert evenly.drawn_from_labels == (public_inputs.PLACES, public_inputs.DEALT)


def test_scaling_without_ranges_or_pixels_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, table())
    for how in ("fixed", "pixel"):
        error = refused(lambda h=how: experiment(tmp_path, standardise=h).dataset)  # type: ignore[misc]
        assert isinstance(error, ConfigError)
        assert error.code == "no-such-scaling"


def test_the_fix_of_a_missing_schema_is_a_command_that_runs(
    cli: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my visits.csv").write_bytes(saved(tmp_path, table()).read_bytes())
    error = refused(lambda: experiment(tmp_path, "system", path="my visits.csv").dataset)
    assert error.code == "table-without-schema"
    command = error.fix.split("`")[1]
    assert command == "sordino data schema 'my visits.csv' --label outcome --group clinic --out 'my visits.schema.toml'"
    assert (
        cli(
            "data",
            "schema",
            "my visits.csv",
            "--label",
            "outcome",
            "--group",
            "clinic",
            "--out",
            "my visits.schema.toml",
        ).code
        == 0
    )
    drafted = experiment(tmp_path, "system", path="my visits.csv", schema="my visits.schema.toml")
    assert refused(lambda: drafted.dataset).code == "schema-is-a-draft"
    text = Path("my visits.schema.toml").read_text(encoding="utf-8")
    Path("my visits.schema.toml").write_text(text.replace("draft = true\n", "", 2), encoding="utf-8")
    confirmed = experiment(tmp_path, "system", path="my visits.csv", schema="my visits.schema.toml")
    assert (confirmed.dataset.classes, confirmed.learned_from_rows) == (2, ())


def test_a_phase_and_a_worker_see_the_declared_table(tmp_path: Path) -> None:
    saved(tmp_path, table())
    (tmp_path / "s.toml").write_text(DECLARED)
    found = experiment(tmp_path, schema=str(tmp_path / "s.toml"))
    again = Population(config.validate(tomllib.loads(found.experiment.toml())))  # what a worker process reads
    assert again.dataset.fingerprint() == found.dataset.fingerprint()
    assert again.experiment.digest() == found.experiment.digest()


# images ---------------------------------------------------------------------------------------------------------------


def test_the_default_run_scales_by_public_numbers_and_says_what_labels_decided() -> None:
    default = Population(config.load(None))
    assert (default.dataset.mean, default.dataset.std) == ((0.5,), (0.5,))
    assert not default.scaled_by_rows
    assert default.learned_from_rows == ()
    assert default.drawn_from_labels == (STRATIFIED, public_inputs.PARTITION)
    measured = Population(
        config.load(None, ["data.standardise=channel", "partition={scheme='iid', clients=3}", "data.probe=2"])
    )
    assert measured.scaled_by_rows
    assert measured.dataset.mean[0] == pytest.approx(measured.dataset.train.x.mean() / 255, abs=0.01)
    assert measured.drawn_from_labels == (STRATIFIED, public_inputs.RESERVED)
    invented = Population(config.load(None, ["data=synthetic", "partition={scheme='natural'}", "data.clients=2"]))
    assert (invented.scaled_by_rows, invented.drawn_from_labels) == (False, ())


def test_image_folders_and_files_say_what_was_read_off_all_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image

    monkeypatch.setenv("SORDINO_CACHE", str(tmp_path / "cache"))
    for split, name, n in itertools.product(("train", "test"), ("a", "b"), range(4)):
        (tmp_path / "with" / split / name).mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), 10 * n).save(tmp_path / "with" / split / name / f"{n}.png")
    both = folders.load(tmp_path / "with", side=4, at_least=1)
    assert both.taken_as_public == (folders.SHAPE,)
    assert folders.load(
        tmp_path / "with" / "train", side=4, at_least=1, test_fraction=0.5, fraction=0.5
    ).taken_as_public == (
        folders.SHAPE,
        folders.DRAWN,
        STRATIFIED,
    )
    picture = (tmp_path / "with" / "train" / "a" / "0.png").read_bytes()
    for split in ("train", "test"):
        (tmp_path / "files").mkdir(exist_ok=True)
        pq.write_table(
            pa.table({"image": [picture] * 6, "label": [0, 1, 2] * 2}), tmp_path / "files" / f"{split}.parquet"
        )
    assert images.load(tmp_path / "files").taken_as_public == (images.CLASSES,)


def test_experiments_whose_rows_are_kept_say_how_they_scale() -> None:
    """The default has changed once: rows of a table that rest on it would silently become another experiment's."""
    for path in sorted((ROOT / "experiments").rglob("*.toml")):
        data = tomllib.loads(path.read_text(encoding="utf-8")).get("data")
        if data and data["source"] not in public_inputs.INVENTED:
            assert data.get("standardise") in ("fixed", "channel", "pixel"), path
