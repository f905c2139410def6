"""`sordino serve --simulate` and `sordino join --simulate`: one simulation on many hosts, which come and go. Nobody's
data are protected here: every host has all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sordino.config import Experiment
from sordino.deploy import invitation as invitations
from sordino.deploy.attending import Leave, attend_for
from sordino.deploy.identity import AllowList
from sordino.deploy.invitation import Invitation, Invited
from sordino.deploy.serving import BESIDE, INVITATION, SERVER
from sordino.engine import wire
from sordino.engine.checkpoint import atomic_write
from sordino.engine.choose_executor import check_between_machines
from sordino.engine.executor import Executor
from sordino.engine.memory import keep_freed_memory
from sordino.errors import ConfigError, UnsoundGuarantee
from sordino.ledger.notes import SYSTEM
from sordino.letters.attending import Says
from sordino.letters.carrier import Carrier
from sordino.letters.certificates import Certificates
from sordino.letters.host_desk import HostDesk
from sordino.letters.hosts import Hosts
from sordino.letters.letter import Letterhead
from sordino.letters.remote_sites import PARTING
from sordino.letters.rpc import Rpc
from sordino.runs.folder import RunFolder
from sordino.runs.founding import environment_of, found
from sordino.runs.interrupts import patience
from sordino.runs.phases import Methods, decided
from sordino.runs.play import Ended, Progress, play
from sordino.runs.servers_half import Begun
from sordino.runs.setup import Setup
from sordino.runs.simulation import Simulation, settle, simulated
from sordino.types import Params

ROOM, MANY = 1 << 26, 1000  # bytes of uploads, and clients, in one letter


@dataclass
class Farm:
    """How a simulation reaches its hosts; the same for all phases."""

    carrier: Carrier
    letterhead: Letterhead
    note: Callable[[str], None]
    stopped: Callable[[], bool] = lambda: False  # does somebody want the simulation to stop?
    hosts: Hosts | None = None  # of the phase that is played


@dataclass(frozen=True)
class SpreadSimulation(Simulation):
    """A simulation whose clients are computed on hosts."""

    farm: Farm = field(repr=False)

    def executor(
        self, folder: Path, place: Path, run: str, begun: Begun | None, handed: Params | None, stack: ExitStack
    ) -> Executor:
        states = self.setup.states(place, begun.loaded.trees if begun is not None else {})
        site, farm = self.site(run, states=states, handed=handed), self.farm
        most = max(1, min(MANY, ROOM // max(1, upload_bytes(self.setup))))
        farm.hosts = Hosts(
            farm.carrier, farm.letterhead, self.setup.stage, site, most, farm.note, lambda: farm.stopped()
        )
        return farm.hosts


@dataclass(frozen=True)
class Spreading:
    """What the server of a spread simulation is started with."""

    experiment: Experiment
    folder: Path
    identity: Ed25519PrivateKey = field(repr=False)
    allowed: Path  # the list of the hosts that are believed
    bind: str
    address: str = ""
    tls: Certificates | None = None


def upload_bytes(setup: Setup) -> int:
    """The bytes of one upload and one state."""
    algorithm, start = setup.algorithm, setup.algorithm.init_client(setup.task)
    zero = algorithm.zero(setup.task, algorithm.broadcast(setup.state("server")))
    return wire.payload_bytes(wire.schema(zero)) + wire.payload_bytes(wire.schema((start,)))


def spread(
    asked: Spreading, watch: Callable[[Progress], None] | None = None, note: Callable[[str], None] = lambda text: None
) -> Ended:
    """Plays a simulation on hosts, from where it stands to its end."""
    experiment = for_hosts(asked.experiment)
    plain = simulated(experiment)
    for phase in plain.setup.whole.phases:
        _ = phase.plan
        phase.algorithm.check(plain.home)
    if asked.folder.exists():
        RunFolder(asked.folder).check()
    environment = RunFolder(asked.folder).environment if asked.folder.exists() else environment_of(experiment)
    if environment.config != experiment.digest():
        raise ConfigError(
            f"{asked.folder} holds a run of another experiment",
            why="the same folder would hold rounds of both",
            fix="choose another --out, or put the old experiment back",
            code="run-exists",
        )
    known = AllowList(asked.allowed)
    most = 2 * (BESIDE + ROOM + max(map(upload_bytes, plain.setup.whole.phases)))
    carrier = Rpc(asked.bind, list(known), most, known.__contains__, asked.tls)
    letterhead = Letterhead(SERVER, environment.run, experiment.digest(), plain.dataset, asked.identity, known)
    half = SpreadSimulation(plain.setup, plain.home, plain.population, Farm(carrier, letterhead, note))
    if not asked.folder.exists():
        found(asked.folder, plain.setup, plain.agreement(), environment, b"", plain.home.story)
    told = Invited(
        format=invitations.FORMAT,
        run=environment.run,
        server=asked.address or asked.bind,
        server_key=asked.identity.public_key().public_bytes_raw().hex(),
        experiment=experiment.toml(),
        simulates=True,
    )
    atomic_write(asked.folder / INVITATION, Invitation(told).toml().encode())
    note(f"hosts join with {asked.folder / INVITATION}")
    with carrier, patience() as half.farm.stopped:
        ended = play(half, asked.folder, watch)
        if not ended.interrupted and half.farm.hosts is not None:
            half.farm.hosts.end(PARTING)
    return ended


def for_hosts(experiment: Experiment) -> Experiment:
    """The experiment as it is played on hosts."""
    experiment = settle(experiment)
    if experiment.privacy.noise == SYSTEM:
        raise UnsoundGuarantee(
            'privacy.noise = "system" in a simulation on many hosts',
            why="every host has everybody's data, so nobody is protected from any of them",
            fix='use privacy.noise = "counter" here, and `sordino serve --agreement` between real sites',
            code="hosts-only-simulate",
        )
    check_between_machines(experiment.engine.device)
    engine = decided(experiment.engine, Methods(experiment).training)
    return experiment.model_copy(update={"engine": engine.model_copy(update={"executor": "loop"})})


@dataclass(frozen=True)
class Host:
    """What a host is started with."""

    invitation: Path
    name: str
    identity: Ed25519PrivateKey = field(repr=False)
    data: Path | None = None  # where the experiment's data lie here, if not where it says
    address: str = ""
    certificates: Path | None = None
    with_code: bool = False  # may classes that the invitation names run here?


def lend(asked: Host, stop: Callable[[], bool], say: Says) -> bool:
    """Computes clients of a simulation until it is over or somebody stops it. Is it over?"""
    invitation = invitations.read(asked.invitation, asked.with_code)
    if not invitation.told.simulates:
        raise ConfigError(
            f"{asked.invitation} is an invitation to real sites",
            why="they take part with data of their own",
            fix="leave --simulate out, and give --data",
            code="not-a-simulation",
        )
    experiment = invitation.experiment
    if asked.data is None and experiment.data.path is not None:
        raise ConfigError(
            f"the simulation reads data from {experiment.data.path}",
            why="the server's operator chose that path, and on this machine it may hold something else",
            fix="say where the data lie here: --data PATH",
            code="host-needs-data",
        )
    if asked.data is not None:
        own = experiment.data.model_copy(update={"path": str(asked.data)})
        experiment = experiment.model_copy(update={"data": own})
    whole, told = simulated(experiment), invitation.told
    torch.set_num_threads(experiment.engine.threads)
    keep_freed_memory()
    known = {SERVER: invitation.server_key}
    letterhead = Letterhead(asked.name, told.run, experiment.digest(), whole.dataset, asked.identity, known)
    desk = HostDesk(letterhead, lambda stage: whole.at(stage).site(told.run))
    leave = Leave(lambda: desk.over, stop, say)
    attend_for(invitation, asked.name, asked, asked.invitation.parent, desk.answer, leave, 1 << 34)
    return desk.over
