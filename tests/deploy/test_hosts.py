"""A simulation on hosts that come and go gives the bits of one process."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sordino import config
from sordino.config import Experiment
from sordino.deploy.hosting import Farm, SpreadSimulation, for_hosts
from sordino.deploy.serving import settled
from sordino.errors import UnsoundGuarantee
from sordino.letters.carrier import Arrived
from sordino.letters.host_desk import HostDesk
from sordino.letters.hosts import Hosts
from sordino.letters.in_process import InProcess
from sordino.letters.letter import Letterhead
from sordino.runs.founding import environment_of, found
from sordino.runs.play import play
from sordino.runs.run import start
from sordino.runs.simulation import simulated
from sordino.types import Terms
from tests.laws.cases import BY_NAME
from tests.laws.traces import differences, trace

KEYS = {name: Ed25519PrivateKey.generate() for name in ("server", "a", "b", "c")}


class Leaving(InProcess):
    """Hosts that are lost with the letter they have, and come back with nothing."""

    def __init__(self, desks: Mapping[str, Callable[[bytes], bytes]], anew: Callable[[str], None], seed: int) -> None:
        super().__init__(desks)
        self._anew, self._chance, self._gone = anew, random.Random(seed), set[str]()

    def peers(self) -> frozenset[str]:
        return super().peers() - self._gone

    def came(self, seconds: float) -> Sequence[Arrived]:
        if self._gone and self._chance.random() < 0.5:
            self._gone.clear()
        if self._waiting and self._chance.random() < 0.3:
            ticket = next(iter(self._waiting))
            host, _ = self._waiting.pop(ticket)
            self._gone.add(host)
            self._anew(host)
            return []
        return super().came(seconds)


def spread(experiment: Experiment, place: Path, carried: Any = InProcess) -> list[str]:
    """Plays it on three hosts in this process; what was said."""
    experiment, notes = for_hosts(experiment), list[str]()
    plain, environment = simulated(experiment), environment_of(experiment)
    known = {name: key.public_key() for name, key in KEYS.items()}
    digest = experiment.digest()
    desks: dict[str, HostDesk] = {}

    def anew(name: str) -> None:
        head = Letterhead(name, environment.run, digest, plain.dataset, KEYS[name], known)
        desks[name] = HostDesk(head, lambda stage: simulated(experiment).at(stage).site(environment.run))

    for name in ("a", "b", "c"):
        anew(name)
    answers = {name: lambda letter, name=name: desks[name].answer(letter) for name in desks}
    carrier = carried(answers, anew) if carried is not InProcess else InProcess(answers)
    head = Letterhead("server", environment.run, digest, plain.dataset, KEYS["server"], known)
    half = SpreadSimulation(plain.setup, plain.home, plain.population, Farm(carrier, head, notes.append))
    found(place, plain.setup, plain.agreement(), environment, b"", plain.home.story)
    play(half, place)
    return notes


QUICK = ["scaffold", "gaussian_gdp"]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in BY_NAME if n != "secagg_fl"]
)
def test_hosts_train_what_one_process_trains(name: str, tmp_path: Path) -> None:
    start(BY_NAME[name].experiment(), tmp_path / "loop")
    spread(BY_NAME[name].experiment(), tmp_path / "hosts")
    assert differences(trace(tmp_path / "loop"), trace(tmp_path / "hosts")) == []


@pytest.mark.parametrize("name", ["scaffold", pytest.param("slaug_fl_rigorous_b", marks=pytest.mark.slow)])
def test_a_lost_host_is_asked_no_more_and_its_clients_move(name: str, tmp_path: Path) -> None:
    start(BY_NAME[name].experiment(), tmp_path / "loop")
    notes = spread(BY_NAME[name].experiment(), tmp_path / "hosts", lambda desks, anew: Leaving(desks, anew, 1))
    assert [note for note in notes if "move" in note]
    assert differences(trace(tmp_path / "loop"), trace(tmp_path / "hosts")) == []


def test_noise_of_the_system_is_not_for_hosts_that_have_everybodys_data() -> None:
    with pytest.raises(UnsoundGuarantee) as refusal:
        for_hosts(config.load(None, ["privacy.noise=system"]))
    assert refusal.value.code == "hosts-only-simulate"


def test_the_end_is_told_to_whoever_comes(tmp_path: Path) -> None:
    """A server that is started again finds no host at first; those of the last round are waited for, others not."""
    looks, told = [0], list[str]()

    class Late(InProcess):
        def peers(self) -> frozenset[str]:
            looks[0] += 1
            return frozenset({"a"} if looks[0] < 3 else {"a", "b"})

    head = Letterhead("server", "run", "0" * 64, "0" * 64, KEYS["server"], {})
    site: Any = None
    for last, expected in (({"a", "b"}, ["a", "b"]), ({"a"}, ["a"]), (set(), ["a", "b"])):
        looks[0] = 0
        hosts = Hosts(Late({k: lambda letter, k=k: told.append(k) or b"" for k in "ab"}), head, 0, site, 1)
        hosts._here = set(last)
        hosts.end(5.0 if last else 0.05)
        assert told == expected
        told.clear()


def test_where_no_host_is_there_a_first_signal_ends_it(tmp_path: Path) -> None:
    """Nobody is at work, so there is no round to wait for."""
    experiment = for_hosts(BY_NAME["scaffold"].experiment())
    plain, asked = simulated(experiment), iter([False, False, True])
    head = Letterhead("server", "run", experiment.digest(), plain.dataset, KEYS["server"], {})
    farm = Farm(InProcess({}), head, lambda text: None, lambda: next(asked))
    half = SpreadSimulation(plain.setup, plain.home, plain.population, farm)
    down = plain.setup.algorithm.broadcast(plain.setup.state("server"))
    with ExitStack() as stack:
        answers = half.executor(tmp_path, tmp_path, "run", None, None, stack)(0, down, {0: Terms(largest=1)})
        with pytest.raises(KeyboardInterrupt):
            list(answers)


def test_between_sites_every_round_has_a_checkpoint() -> None:
    """A site keeps its last three answers: a server may never have to go further back."""
    rare = config.load(None, ["engine.checkpoint_every=7"])
    assert settled(rare, rehearsal=True).engine.checkpoint_every == 1
