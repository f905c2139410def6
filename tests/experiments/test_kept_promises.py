"""What a published table says of a row's guarantee is what today's code plans for the row: a mistake in accounting that
was corrected must not live on in numbers that were kept before.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tables

from sordino import config
from sordino.planning.planner import Planner
from sordino.runs.simulation import settle, simulated
from tests.data.real_data import real

# without the thousand personal budgets, of which one plan takes a minute
KEPT = [
    file for file in sorted(Path(tables.__file__).parent.glob(f"*/{tables.RESULTS}")) if file.parent.name != "personal"
]


def chosen() -> dict[str, tuple[tables.Table, tables.Row, tables.Run]]:
    """The first kept row of each combination of names in an experiment's settings (algorithm, stages, cohort, ...)."""
    found = {}
    for table in (tables.read(file.parent) for file in KEPT):
        for row in table.sheet.row:
            run = next((one for one in table.of(row) if one.status != "none"), None)
            if run is not None:
                names = frozenset(re.findall(r'"(\w+)"', " ".join(row.set)))
                found.setdefault((table.sheet.experiment, names), (table, row, run))
    return {f"{table.name}: {row.name}": (table, row, run) for table, row, run in found.values()}


@pytest.mark.slow
@pytest.mark.parametrize(("table", "row", "run"), chosen().values(), ids=chosen())
def test_a_kept_guarantee_is_what_is_planned_today(
    table: tables.Table, row: tables.Row, run: tables.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(table.folder)  # metrics of the table's own
    words = [*row.set, f"seed={run.seed}"]
    if isinstance(path := config.load(table.experiment, words).data.path, str):
        words.append(f'data.path="{real(Path(path).name)}"')
    planner = Planner(simulated(settle(config.load(table.experiment, words))).setup)
    now = next(
        one for one in planner.guarantees if f"{one.unit}, {one.adversary}" == run.subject and one.status != "none"
    )
    assert (run.neighbours or now.neighbours, run.status) == (now.neighbours, now.status)
    # a plan is for the client that pays most: clients that were drawn less often than they may be have spent less
    assert 0.5 * float(now.epsilon) <= float(run.epsilon) <= float(now.epsilon) * (1 + 1e-3)
