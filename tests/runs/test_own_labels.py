"""Rows of a user's own whose labels are no classes: [task] says what they are, as it does for a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow
import pytest

import sordino
from sordino import config
from sordino.data.sources import RowSource, SourceRows
from sordino.errors import SordinoError, UnsoundGuarantee
from sordino.runs.population import Population

X = np.random.default_rng(0).normal(size=(60, 3))
Y = (X[:, 0] > 0).astype(int)
TINY: dict[str, Any] = {"algorithm": "fedavg", "rounds": 2, "partition": {"scheme": "iid", "clients": 3}}
MARKS = np.stack([X[:, 0] > 0, X[:, 1] > 0, X[:, 2] > 1], 1)
LABELLED: dict[str, tuple[dict[str, Any], Any, list[float]]] = {
    "regression": ({"range": [-2, 2]}, X[:, 0], [-2, 2]),
    "counts": ({"most": 3}, np.abs(X[:, 0]).round(), [0, 3]),
    "multi_label": ({"labels": ["a", "b", "c"]}, MARKS, [0, 1]),
}


@pytest.mark.one_fast
@pytest.mark.parametrize("task", LABELLED)
def test_rows_of_ones_own_have_the_labels_that_the_task_says(task: str, tmp_path: Path) -> None:
    """As a table of the same rows: equal labels, equal scores."""
    settings, y, reach = LABELLED[task]
    asked = {**TINY, "model": {"name": "logistic"}, "task": {"name": task, **settings}}
    own = sordino.run(data={"x": X, "y": y, "reach": (-4.0, 4.0)}, out=tmp_path / "own", **asked)
    names = settings.get("labels", ["y"])
    columns = {f"x{i}": X[:, i] for i in range(3)} | dict(zip(names, np.atleast_2d(y.T).astype(float), strict=True))
    said = {f"x{i}": '"number", range = [-4, 4]' for i in range(3)} | dict.fromkeys(names, f'"label", range = {reach}')
    schema = tmp_path / "s.toml"
    schema.write_text("\n".join(["[columns]", *(f"{name} = {{ kind = {told} }}" for name, told in said.items())]))
    named = {"schema": str(schema), **({} if task == "multi_label" else {"label": "y"})}
    table = sordino.run(data=pyarrow.table(columns), out=tmp_path / "table", **named, **asked)
    assert own.score == table.score
    assert own.score is not None
    assert own.score[0].name != "accuracy"


class Counted(RowSource):
    reach: ClassVar[tuple[float, float] | None] = (-4.0, 4.0)

    def rows(self, seed: int) -> SourceRows:
        return SourceRows(X, Y)


def test_with_real_noise_numbers_need_no_classes(tmp_path: Path) -> None:
    """The control: labels that are classes do."""
    data = {"source": f"{__name__}:Counted"}
    asked = {"data": data, "privacy": {"noise": "system"}, "partition": {"scheme": "iid", "clients": 3}}
    real = Population(config.validate({**asked, "task": {"name": "regression", "range": [-2.0, 2.0]}}))
    assert (real.dataset.classes, real.disclosures.learned_from_rows) == (0, ())
    with pytest.raises(UnsoundGuarantee) as refused:
        _ = Population(config.validate(asked)).dataset
    assert refused.value.code == "own-data-undeclared"


def test_labels_that_are_not_the_tasks_are_refused(tmp_path: Path) -> None:
    wrong = {"regression": MARKS, "counts": X[:, 0], "multi_label": X[:, :3], "classification": X[:, 0]}
    for task, y in wrong.items():
        settings = LABELLED[task][0] if task in LABELLED else {}
        with pytest.raises(SordinoError) as refused:
            sordino.run(data={"x": X, "y": y}, out=tmp_path / task, **{**TINY, "task": {"name": task, **settings}})
        assert refused.value.code == "own-rows-unfit", task
