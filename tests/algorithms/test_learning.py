"""An uplink that learns from round to round, around every kind of algorithm: those with hooks of their own keep them."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from sordino import config
from sordino.algorithms.algorithm import Algorithm
from sordino.algorithms.ditto import Ditto
from sordino.algorithms.fedavg import FedAvg
from sordino.algorithms.optional import FollowsPhase, OptionalSide, PerClientMessages, RequestsClients
from sordino.algorithms.phases import Phase
from sordino.algorithms.preset import Adapting, adapting
from sordino.config import Experiment
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.compression import BlockSum
from sordino.runs.play import Progress
from sordino.runs.run import resume, start
from sordino.synthesis.slaug.prepare import Ask, Train
from sordino.tasks.personalise import OwnModels
from tests.helpers.prepared_runs import TINY, tiny
from tests.laws.traces import differences, trace

LEARNS = {"client": [{"name": "block_sum", "rate": "dynamic"}, "weigh"]}
VHL: dict[str, Any] = {"name": "vhl", "local_epochs": 1, "per_class": 2, "source": "random_conv", "width": 8}


def made(name: str) -> Experiment:
    if name == "vhl":
        plain = {key: value for key, value in TINY.items() if key != "candidates"}
        return config.validate(plain | {"algorithm": VHL, "uplink": LEARNS})
    return tiny(uplink=LEARNS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vhl", "slaug_fl"])
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


SIDES: list[type] = [Algorithm, Phase, PerClientMessages, RequestsClients, FollowsPhase]


def test_whatever_takes_a_state_of_the_server_or_a_broadcast_is_asked_of_the_algorithm_itself() -> None:
    """It would be given the algorithm's state with what was learnt around it."""
    asked = {
        name
        for side in (*SIDES, *OptionalSide.__subclasses__())
        for name, value in vars(side).items()
        if inspect.isfunction(value) and {"s", "down", "before"} & inspect.signature(value).parameters.keys()
    }
    assert {"update", "broadcast", "over", "per_client_message", "requested_clients"} < asked
    # public tensors follow from the result of a phase, which is no state with anything around it
    assert asked - {"public_tensors"} <= vars(Adapting).keys()


def test_the_sides_of_an_algorithm_stay_behind_an_uplink_that_learns() -> None:
    for own in (Ask(), Train(), Ditto(), FedAvg()):
        wrapped = adapting(own.behind(uplink=Uplink(client=(BlockSum("dynamic"),))))
        assert isinstance(wrapped, Adapting)
        assert wrapped.takes_mean == own.takes_mean
        for side in (*OptionalSide.__subclasses__(), OwnModels, Phase):
            assert isinstance(wrapped, side) == isinstance(own, side), side
        assert isinstance(wrapped.behind(uplink=Uplink()), Adapting)
