"""An uplink that learns from round to round, around every kind of algorithm: those with hooks of their own keep them."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from sordino import config
from sordino.algorithms.algorithm import Algorithm
from sordino.algorithms.learning import Adapting, AdaptingPhase
from sordino.algorithms.phases import Phase
from sordino.config import Experiment
from sordino.runs.play import Progress
from sordino.runs.run import resume, start
from tests.helpers.prepared_runs import TINY, tiny
from tests.laws.traces import differences, trace

LEARNS = {"client": [{"name": "block_sum", "rate": "dynamic"}, "weigh"]}
VHL: dict[str, Any] = {"name": "vhl", "local_epochs": 1, "per_class": 2, "source": "random_conv", "width": 8}


def made(name: str) -> Experiment:
    if name == "vhl":
        plain = {key: value for key, value in TINY.items() if key != "candidates"}
        return config.validate(plain | {"algorithm": VHL, "uplink": LEARNS})
    return tiny(uplink=LEARNS)


@pytest.mark.parametrize("name", ["vhl", pytest.param("slaug_fl", marks=pytest.mark.slow)])
def test_hooks_of_an_algorithm_are_asked_behind_an_uplink_that_learns(name: str, tmp_path: Path) -> None:
    """It trains, and stopped after a round it goes on to the same bytes: what was learnt is in the checkpoint."""
    whole = start(made(name), tmp_path / "whole")
    assert [row.answered for row in whole.metrics] == [3, 3]

    def stop(step: Progress) -> None:
        if step.round == 1:
            raise KeyboardInterrupt

    assert start(made(name), tmp_path / "stopped", stop).interrupted
    resume(tmp_path / "stopped")
    assert differences(trace(tmp_path / "whole"), trace(tmp_path / "stopped")) == []


@pytest.mark.parametrize(("wrapper", "interface"), [(Adapting, Algorithm), (AdaptingPhase, Phase)])
def test_every_hook_is_passed_on(wrapper: type, interface: type) -> None:
    """A hook that is declared and not passed on would answer for the wrapper, and never be asked of the algorithm."""
    hooks = {name for base in (Algorithm, interface) for name in vars(base) if not name.startswith("_")}
    own = {name for base in (wrapper, Adapting) for name in vars(base)}
    hooks -= {"takes_mean", "carries_statistics"}  # promises of the method itself, which a plan asks
    assert hooks <= own
    for name in hooks:
        assert "own." in inspect.getsource(member(wrapper, name)), name


def member(of: type, name: str) -> Any:
    found = next(vars(base)[name] for base in of.__mro__ if name in vars(base))
    return found.fget if isinstance(found, property) else found
