"""Who knows what: the server's half of a simulation reaches no row of a client, and a site obeys commands alone."""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sordino import config
from sordino.engine import wire
from sordino.engine.checkpoint import digest_trees
from sordino.engine.commands import Command, End, Keep, Restore, Round, Score, decode_command, encode_command
from sordino.errors import UnsoundGuarantee, WireError
from sordino.round import one_round
from sordino.runs.simulation import simulated
from sordino.types import Terms

SMALL = {
    "rounds": 2,
    "partition": {"scheme": "iid", "clients": 4},
    "cohort": {"name": "everyone"},
    "algorithm": {"name": "fedavg"},
    "privacy": {},
}


def reached(start: object) -> Iterator[object]:
    """Everything that somebody who holds an object can get hold of, but for code and modules."""
    seen: dict[int, object] = {id(start): start}  # kept, so that no other thing takes its number
    waiting = [start]
    while waiting:
        one = waiting.pop()
        yield one
        parts = list(one.__closure__ or ()) if isinstance(one, FunctionType) else gc.get_referents(one)
        parts += [one.detach().numpy()] if isinstance(one, torch.Tensor) else []
        for part in parts:
            if id(part) not in seen and not isinstance(part, type | ModuleType):
                seen[id(part)] = part
                waiting.append(part)


def rows_in(start: object, data: np.ndarray[Any, Any]) -> bool:
    return any(isinstance(one, np.ndarray) and np.shares_memory(one, data) for one in reached(start))


@pytest.mark.one_fast
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "gaussian_gdp", "fedgen"])
def test_the_server_s_backend_holds_no_row_of_a_client(algorithm: str) -> None:
    table = SMALL | {"algorithm": {"name": algorithm}}
    if algorithm == "gaussian_gdp":
        table |= {"privacy": {"epsilon": 4.0, "delta": 1e-4}}
    simulation = simulated(config.validate(table))
    rows = np.asarray(simulation.population.named.train.x)
    federation = simulation.federation(":memory:", "run")
    server = simulation.setup.state("server")
    server = one_round(federation, server, 0, simulation.site("run")).server
    for held in (simulation.setup, simulation.home, federation, server):
        assert not rows_in(held, rows)
    assert rows_in(simulation.population, rows)  # the search finds them where they are
    assert rows_in(simulation.site("run"), rows)


finite = st.floats(allow_nan=False)
terms = st.builds(
    Terms,
    largest=st.integers(1, 10**9),
    multiplier=st.none() | finite,
    epochs=st.none() | st.integers(1, 99),
    part=st.none() | finite,
    reach=finite,
    precision=finite,
)
commands = st.one_of(
    st.builds(Round, t=st.integers(0), terms=st.dictionaries(st.integers(0, 10**6), terms), apart=st.booleans()),
    st.builds(Score, t=st.integers(0), models=st.integers(1, 9), ways=st.lists(st.text(max_size=5))),
    st.builds(Keep, step=st.integers(0)),
    st.builds(Restore, step=st.integers(0), place=st.text()),
    st.just(End()),
)


@given(commands)
def test_a_command_arrives_as_it_was_sent(command: Command) -> None:
    """To the bit, in every field, by name: an order of fields is nobody's business."""
    assert decode_command(encode_command(command)) == command
    shuffled = dict(reversed(json.loads(encode_command(command)).items()))
    assert decode_command(json.dumps(shuffled).encode()) == command


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"do": "dance"}',
        b'{"do": "keep"}',
        b'{"do": "keep", "step": "many"}',
        b'{"do": "round", "t": 0, "terms": {"0": [1, 2]}}',
    ],
)
def test_what_is_no_command_is_refused(frame: bytes) -> None:
    with pytest.raises(WireError) as refusal:
        decode_command(frame)
    assert refusal.value.code == "no-command"
    assert refusal.value.fix


def test_a_site_says_over_the_wire_what_it_says_in_the_same_process() -> None:
    """Terms by name and its own size: nothing else of a grant has to travel."""
    simulation = simulated(config.validate(SMALL | {"engine": {"executor": "loop"}}))
    setup, federation = simulation.setup, simulation.federation(":memory:", "run")
    down = setup.algorithm.broadcast(setup.state("server"))
    here, there = simulation.site("run"), simulation.site("run")
    told = {k: federation.terms(k, None) for k in range(4)}
    message = wire.encode(here.header(0, -1), down)
    answers = list(there.obey(decode_command(encode_command(Round(0, told))), [message]))
    direct = [wire.encode(here.header(0, k), upload) for k, upload in here.each(0, down, told)]
    assert answers == direct
    again = list(simulation.site("run").obey(Round(0, told | {0: Terms(largest=2 * told[0].largest)}), [message]))
    assert [a == b for a, b in zip(again, direct, strict=True)] == [False, True, True, True]  # terms matter


def test_states_that_a_site_keeps_in_its_folder_come_back(tmp_path: Path) -> None:
    """The server's checkpoint holds none of them: what is not in the folder is lost in a crash."""
    simulation = simulated(config.validate(SMALL | {"algorithm": {"name": "scaffold", "local_steps": 1}}))
    site, federation = (
        simulation.site("run", state_folder=tmp_path / "clients"),
        simulation.federation(":memory:", "run"),
    )
    one_round(federation, simulation.setup.state("server"), 0, site)
    assert list(site.obey(Keep(1), [])) == [b"kept"]
    again = simulation.site("run", state_folder=tmp_path / "clients")
    assert digest_trees(again.states.trees()) != digest_trees(site.states.trees())
    assert list(again.obey(Restore(1, str(tmp_path)), [])) == [b"restored"]
    assert digest_trees(again.states.trees()) == digest_trees(site.states.trees())


def test_a_site_has_its_own_clients_and_no_others() -> None:
    shards = simulated(config.validate(SMALL)).site("run", range(1, 4, 2)).shards
    assert [k in shards for k in range(4)] == [False, True, False, True]
    assert sorted(shards) == [1, 3]


def test_sizes_that_are_nobodys_business_reach_no_server() -> None:
    """The plan of such a run follows from ones; where a weight would need the truth it is refused, private or not."""
    secret = {"privacy": {"public_sizes": False}}
    with pytest.raises(UnsoundGuarantee) as refusal:
        _ = simulated(config.validate(SMALL | secret)).setup.plan
    assert refusal.value.code == "sizes-not-public"
    open_ = simulated(config.validate(SMALL | secret | {"uplink": {"client": []}}))
    _ = open_.setup.plan
    assert set(open_.federation(":memory:", "run").sizes) == {1}
    assert min(open_.population.sizes) > 1
    assert open_.site("run").sizes is None  # each client counts its own rows: the ones of the plan are not their number
    public = simulated(config.validate(SMALL))
    assert list(public.site("run").sizes or ()) == list(public.population.sizes)  # the control: what was agreed
    outcome = one_round(open_.federation(":memory:", "run"), open_.setup.state("server"), 0, open_.site("run"))
    assert len(outcome.answered) == 4
    assert math.isfinite(float(next(iter(outcome.server.x.values())).sum()))
