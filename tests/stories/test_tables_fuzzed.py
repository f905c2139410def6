"""Whatever an experiment says: it is refused in words, or it runs. Never a traceback, never a folder that is left half
made."""

from __future__ import annotations

import random
import shutil
import traceback
import warnings
from pathlib import Path

import pytest

from sordino import config
from sordino.errors import SordinoError
from sordino.runs.run import start
from sordino.runs.simulation import simulated
from tests.stories.table_fuzzer import table

FAST, WHOLE = 20, 400


def ends(seed: int, folder: Path) -> str:
    """How one of them ends: ran, a code, or the traceback."""
    try:
        made = config.load(table(random.Random(seed)))
        _ = simulated(made).setup.plan
        start(made, folder)
    except SordinoError as error:
        return error.code if error.what else "Traceback of a refusal without words"
    except Exception:  # all of them are tried, then all that went wrong is told
        return traceback.format_exc(limit=-3)
    return "ran"


def found(seeds: range, folder: Path) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ended = []
        for seed in seeds:
            ended.append(ends(seed, folder / "run"))
            shutil.rmtree(folder / "run", ignore_errors=True)
    assert list(folder.iterdir()) == []
    return ended


@pytest.mark.slow
def test_a_few_tables_are_refused_or_run(tmp_path: Path) -> None:
    ended = found(range(FAST), tmp_path)
    assert [one for one in ended if "Traceback" in one] == []
    assert ended.count("ran") >= 1  # it gets that far
    assert len(set(ended)) >= 8  # and is refused for many reasons


@pytest.mark.slow
def test_many_tables_are_refused_or_run(tmp_path: Path) -> None:
    ended = found(range(FAST, WHOLE), tmp_path)
    assert [one for one in ended if "Traceback" in one] == []
    assert ended.count("ran") > 13
