"""Tables of any library in memory: the same columns train the same model."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import sordino
from sordino.data import new_rows, tabular
from sordino.data.frames import in_memory
from sordino.data.schema import parsed
from sordino.errors import ConfigError, DataError, RunError
from sordino.planning import Agreement
from sordino.receipts.folder import RunFolder
from sordino.results import Result
from sordino.results.comparison import Comparison

DRAW = np.random.default_rng(0)
AGE = DRAW.normal(size=90)
COLUMNS: dict[str, Any] = {
    "age": AGE,
    "sex": DRAW.choice(["f", "m"], 90),
    "clinic": DRAW.choice(["north", "south"], 90),
    "ill": np.where(AGE + DRAW.normal(size=90) > 0, "yes", "no"),
}


class Frame:
    """A data frame of a library that nobody has heard of. Its texts are views, and one column is a category, as polars
    hands them over.
    """

    def __init__(self, table: pa.Table) -> None:
        texts = {name: table[name].cast(pa.string_view()) for name in ("clinic", "ill")}
        category = table["sex"].dictionary_encode().cast(pa.dictionary(pa.int32(), pa.string_view()))
        self._table = pa.table({"age": table["age"], "sex": category, **texts})

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


def of_pandas(table: pa.Table) -> Any:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = table.to_pandas()
    frame.index = pandas.Index([f"row {i}" for i in range(len(frame))], name="name")  # which is no column
    return frame


def of_polars(table: pa.Table) -> Any:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    return polars.from_arrow(table).with_columns(polars.col("sex").cast(polars.Categorical))


def of_datasets(table: pa.Table) -> Any:
    datasets = pytest.importorskip("datasets", reason="Hugging Face's datasets is not installed")
    backwards = datasets.Dataset(table.take(np.arange(len(table))[::-1]))
    return backwards.select(range(len(table) - 1, -1, -1))  # an order of its own


KINDS: dict[str, Callable[[pa.Table], Any]] = {
    "pandas": of_pandas,
    "polars": of_polars,
    "datasets": of_datasets,
    "any other": Frame,
}


def run(data: object, out: Path, **more: Any) -> Result:
    settings = {"label": "ill", "group": "clinic", "algorithm": "fedavg", "privacy": {}, "rounds": 2}
    return sordino.run(data=data, out=out, **settings | more)


@pytest.mark.one_fast
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_columns_train_the_same_model(kind: str, tmp_path: Path) -> None:
    table = pa.table(COLUMNS)
    frame = KINDS[kind](table)
    one, other = run(table, tmp_path / "arrow"), run(frame, tmp_path / "run")
    assert other.model.keys() == one.model.keys()
    assert all((other.model[name] == value).all() for name, value in one.model.items())
    assert sordino.resume(tmp_path / "run", data=frame).accuracy == one.accuracy
    rows = sordino.predict(tmp_path / "run", frame, data=frame)
    assert rows.labels == sordino.predict(tmp_path / "arrow", table, data=table).labels


def test_other_rows_are_no_continuation(tmp_path: Path) -> None:
    table = pa.table(COLUMNS)
    run(Frame(table), tmp_path / "run")
    with pytest.raises(RunError) as refused:
        sordino.resume(tmp_path / "run", data=Frame(table.slice(1)))
    assert refused.value.code == "edited-run"


def test_a_series_is_no_table(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    with pytest.raises(DataError) as refused:
        run(pandas.Series(AGE), tmp_path / "run")
    assert refused.value.code == "mixed-column"


def test_an_integer_that_no_table_holds_is_refused() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame({"code": pandas.Series([1, 10**30], dtype=object)})
    for read in (in_memory, lambda rows: new_rows.given(rows, {})):
        with pytest.raises(DataError):
            read(frame)


def compared(folder: Path, *frames: object) -> Comparison:
    """FedAvg and FedProx, each on a frame."""
    common = {"label": "ill", "group": "clinic", "privacy": {}, "rounds": 2}
    named = [
        {"name": name, "algorithm": {"name": name}, "data": frame} for name, frame in zip(METHODS, frames, strict=True)
    ]
    return sordino.compare(*(one | common for one in named), seeds=1, out=folder)


METHODS = ("fedavg", "fedprox")


def test_methods_are_compared_on_a_frame(tmp_path: Path) -> None:
    table = pa.table(COLUMNS)
    found = compared(tmp_path / "compared", table, table)
    alone = run(table, tmp_path / "alone")
    assert [method.name for method in found.methods] == [*METHODS]
    assert found.methods[0].runs[0][-1].accuracy == alone.accuracy
    assert found.report().exists()


def test_two_frames_are_no_fair_comparison(tmp_path: Path) -> None:
    """Both would be called `data`, and the second one would be trained on in both."""
    with pytest.raises(ConfigError) as refused:
        compared(tmp_path / "compared", pa.table(COLUMNS), pa.table(COLUMNS))
    assert refused.value.code == "two-objects-of-one-name"
    assert not (tmp_path / "compared").exists()


def test_a_public_table_is_a_natural_federation_by_one_of_its_columns(tmp_path: Path) -> None:
    """Penguins of three islands: no two of these have the same species."""
    penguins = pytest.importorskip("palmerpenguins", reason="palmerpenguins is not installed")
    frame = penguins.load_penguins()
    frame.to_csv(tmp_path / "penguins.csv", index=False)
    table = {"source": "tabular", "path": str(tmp_path / "penguins.csv"), "label": "species", "group": "island"}
    of_file = sordino.run(data={**table, "missing": "drop"}, rounds=3, out=tmp_path / "file")
    of_frame = sordino.run(data=frame.dropna(), label="species", group="island", rounds=3, out=tmp_path / "frame")
    for found in (of_file, of_frame):
        assert RunFolder(found.folder).experiment.partition["scheme"] == "natural"
        assert sorted(Agreement.read(found.folder).public.clients) == ["Biscoe", "Dream", "Torgersen"]
        assert found.accuracy > 0.4


ODD: dict[str, tuple[list[object], object]] = {
    "a fraction among decimals": ([Decimal(1 + i % 2) for i in range(40)], Decimal("1.25")),
    "a day among moments": ([datetime(2020, 1, 1 + i % 2) for i in range(40)], date(2020, 1, 3)),
    "a day among numbers": ([1 + i % 2 for i in range(40)], date(2020, 1, 3)),
    "a zone among moments": ([datetime(2020, 1, 1 + i % 2) for i in range(40)], datetime(2020, 1, 3, tzinfo=UTC)),
    "bytes among texts": ([str(1 + i % 2) for i in range(40)], b"1"),
}


@pytest.mark.parametrize("how", ODD)
def test_one_odd_cell_of_a_frame_changes_how_no_other_is_read(how: str) -> None:
    """As it was, all decimals got the digits of the longest, and all cells the type of the first."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    cells, odd = ODD[how]
    words = [*dict.fromkeys(map(str, cells)), "rest"]
    told = f"[columns]\ncode = {{ kind = 'levels', levels = {words}, other = 'rest' }}\n"
    schema = parsed(told + "ill = { kind = 'label', classes = ['0', '1'] }")

    def read(*first: object) -> list[list[float]]:
        held = pandas.Series([*first, *cells[len(first) :]], dtype=object)
        table = in_memory(pandas.DataFrame({"code": held, "ill": np.arange(40) % 2}))
        data = tabular.load(table, "ill", schema=schema)
        return [row.tolist() for part in (data.train, data.test) for row in part.x]

    plain = read()
    if isinstance(odd, Decimal):
        assert sum(one != other for one, other in zip(plain, read(odd), strict=True)) == 1
        return
    with pytest.raises(DataError) as refused:
        read(odd)
    assert (refused.value.code, "code has cells of several types" in refused.value.why) == ("mixed-column", True)


@pytest.mark.parametrize("kind", ["Timestamp", "Timedelta", "decimals"])
def test_one_odd_key_of_a_frame_moves_no_other_row(kind: str) -> None:
    """A nanosecond or a digit of one key gave more digits to all others, and so another coin for the test split."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")

    def key(i: int, digit: int = 0) -> Any:
        """The i-th key, with one digit more where it is to be odd."""
        if kind in ("Timestamp", "Timedelta"):
            return getattr(pandas, kind)(i * 10**9 * 3600 + digit, unit="ns").as_unit("ns" if digit else "us")
        return Decimal(i + 1).scaleb(-9) + (Decimal(digit).scaleb(-10) if digit else 0)

    def trained(odd: bool) -> set[float]:
        keys = [key(0, int(odd)), *map(key, range(1, 40))]
        table = in_memory(pandas.DataFrame({"visit": keys, "age": np.arange(40.0), "ill": np.arange(40) % 2}))
        data = tabular.load(table, "ill", key="visit")
        return {*map(float, data.train.x[:, 0])}

    assert trained(odd=False) ^ trained(odd=True) <= {0.0}
