"""Clients spread over the ranks of torch.distributed: `torchrun --nproc-per-node 2 -m sordino run EXPERIMENT.toml
engine.executor=ranks`.

Every rank trains its share of the cohort and adds up its uploads; one all-reduce per round adds up these sums. Where
the server reads single uploads (robust sums, late clients, phases that rank models), or in a secure sum, every rank
sends its uploads one by one instead. Rank 0 is the server: it alone draws cohorts, keeps the ledger and writes the run
folder, and it commands the other ranks, phase after phase, until the run ends. Each rank computes on the device that
`engine.device` names.

Only lengths, JSON and wire messages cross: no object that would have to be unpickled. They travel by gloo, from CPU
memory. Sums travel by nccl, from one accelerator to the other, where every rank has one of its own; and by gloo where
there are none, or where ranks share one. Sums are in float64, so that the number of ranks moves a result by the
rounding of such additions and no more.
"""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load, save

from sordino import config, tree
from sordino.accounting.events import Json
from sordino.device import CPU, here, on
from sordino.engine import wire
from sordino.engine.commands import Command, End, Keep, Restore, Round, Score, decode_command, encode_command
from sordino.engine.executor import Answers, Executor, Scores, device_of
from sordino.errors import ConfigError, RunError
from sordino.fast import keep_freed_memory
from sordino.privacy.uplink import Summed
from sordino.receipts.folder import RunFolder
from sordino.runs.rounds import patience
from sordino.runs.simulation import Simulation, check_rows, reads_single_uploads, secret_of, simulated
from sordino.tree import Tree
from sordino.types import Params, Tensor, Terms

# a rank may compute for hours while others wait; one that dies closes its connections, which is noticed at once
PATIENCE = timedelta(days=1)
AHEAD = 1 << 26  # bytes of messages that a rank has sent, and rank 0 has not taken yet


class RankTeam:
    """All ranks of a run, seen from one of them."""

    def __init__(self) -> None:
        import torch.distributed.nn  # noqa: F401  # before there is a group: see `leave`

        dist.init_process_group("gloo", timeout=PATIENCE)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self._met = False
        self._adders: Any = None  # the group that adds on accelerators
        self._sent: deque[tuple[Any, Tensor]] = deque()  # what is on its way to rank 0

    def meet(self, device: str) -> None:
        """Exchange devices and agree on a backend for sums, once in a run."""
        if self._met:
            return
        self._met = True
        own_device = torch.device(device)
        digests = [torch.zeros(hashlib.sha256().digest_size, dtype=torch.uint8, device=CPU) for _ in range(self.world)]
        dist.all_gather(digests, _bytes(hashlib.sha256(_name_of(own_device, self.rank).encode()).digest()))
        alone = len({tuple(one.tolist()) for one in digests}) == self.world
        if own_device.type == "cuda" and alone and dist.is_nccl_available():
            self._adders = dist.new_group(backend="nccl", timeout=PATIENCE)

    def say(self, text: bytes, body: bytes = b"") -> None:
        """Send a text and bytes from rank 0 to all ranks."""
        with on(CPU):
            dist.broadcast(torch.tensor([len(text), len(body)]), 0)
            dist.broadcast(_bytes(text + body), 0)

    def hear(self) -> tuple[bytes, bytes]:
        with on(CPU):
            lengths = torch.zeros(2, dtype=torch.int64)
            dist.broadcast(lengths, 0)
            text, body = lengths.tolist()
            data = torch.empty(text + body, dtype=torch.uint8)
            dist.broadcast(data, 0)
        whole = data.numpy().tobytes()
        return whole[:text], whole[text:]

    def send(self, message: bytes) -> None:
        """Send a message to rank 0 without waiting, up to `AHEAD` bytes in flight."""
        with on(CPU):
            for data in (torch.tensor([len(message)]), _bytes(message)):
                self._sent.append((dist.isend(data, 0), data))
        self.flush(AHEAD)

    def flush(self, ahead: int = 0) -> None:
        """Wait until at most `ahead` bytes are in flight."""
        waiting = sum(data.nbytes for _, data in self._sent)
        while self._sent and waiting > ahead:
            sending, data = self._sent.popleft()
            sending.wait()
            waiting -= data.nbytes

    def take(self, rank: int) -> bytes:
        """Receive the next message of a rank."""
        with on(CPU):
            length = torch.zeros(1, dtype=torch.int64)
            dist.recv(length, rank)
            data = torch.empty(int(length), dtype=torch.uint8)
            dist.recv(data, rank)
        return data.numpy().tobytes()

    def wait(self) -> None:
        """Barrier: return when every rank has called it."""
        dist.barrier()

    def added(self, numbers: Tensor) -> Tensor:
        """The sum of `numbers` over all ranks."""
        if self._adders is not None:
            dist.all_reduce(numbers, group=self._adders)
            return numbers
        there = numbers.to(CPU)
        dist.all_reduce(there)
        return here(there)

    def sum(self, part: Tree) -> Tree:
        """The sum over all ranks of their trees of tensors, computed in float64."""
        return tree.unflat(self.added(torch.cat([leaf.double().reshape(-1) for leaf in tree.leaves(part)])), part)

    def leave(self) -> None:
        """Destroy the process group and drop the last reference to it, else its threads may crash Python at exit.

        `torch.distributed.nn` would keep one in the default arguments of its functions if it were first imported while
        there is a group, as building a network may do: it is imported before the group is made.
        """
        dist.destroy_process_group()
        joined.cache_clear()


@cache
def joined() -> RankTeam:
    """The ranks of this run, as seen from this process; the group is joined once, for all phases."""
    if "RANK" not in os.environ:
        raise ConfigError(
            'engine.executor = "ranks" was started without torchrun',
            why="torchrun starts the other ranks, which share the clients",
            fix="start it as torchrun --nproc-per-node 2 -m sordino run ..., or use another executor",
            code="no-ranks",
        )
    return RankTeam()


def local_rank() -> int:
    """The number of this rank among those of its machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def _name_of(device: torch.device, rank: int) -> str:
    """Name of an accelerator, unique over all machines; on the CPU, of this rank."""
    if device.type != "cuda":
        return f"rank {rank}"
    return str(torch.cuda.get_device_properties(device).uuid)


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


@dataclass(frozen=True)
class PhaseHeader:
    """Header with which rank 0 starts a phase; the experiment follows it, and the tensors that clients receive before
    the first round."""

    run: str
    folder: str
    place: str  # of the phase
    stage: int
    tensors: int  # bytes of the public tensors, which follow the experiment
    dataset: str  # digest of the rows
    data_key: str  # the key of that digest


def following() -> bool:
    """True on every rank but rank 0, which commands the others."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and os.environ.get("RANK", "0") != "0"


def follow() -> None:
    """Execute the commands of rank 0 until it ends the run. A first stop signal is for rank 0, which gets it too."""
    team = joined()
    header, experiment, tensors = _phase_head(team)
    given = config.validate(tomllib.loads(experiment.decode()))
    device = device_of(given.engine.device, local_rank())
    team.meet(device)
    with patience(), on(device):
        whole = simulated(given, bytes.fromhex(header.data_key))
        check_rows(whole, header.dataset)
        while True:
            phase = whole.at(header.stage)
            share = Share(team, phase, header, _unpacked(tensors))
            while not isinstance(command := decode_command((heard := team.hear())[0]), End):
                share.obey(command, heard[1])
            if not phase.setup.prepares:
                break
            header, experiment, tensors = _phase_head(team)
    team.leave()


def _phase_head(team: RankTeam) -> tuple[PhaseHeader, bytes, bytes]:
    text, body = team.hear()
    header = PhaseHeader(**json.loads(text))
    return header, body[: len(body) - header.tensors], body[len(body) - header.tensors :]


def _unpacked(tensors: bytes) -> Params | None:
    return {name: here(value) for name, value in load(tensors).items()} if tensors else None


class Share:
    """One rank's clients in one phase: every n-th client id from the rank's number on, for n ranks. It executes the
    same commands as a site, in step with the other ranks.
    """

    def __init__(self, team: RankTeam, simulation: Simulation, header: PhaseHeader, tensors: Params | None) -> None:
        torch.set_num_threads(simulation.setup.experiment.engine.threads)
        keep_freed_memory()
        place = Path(header.place)
        place.mkdir(parents=True, exist_ok=True)  # on another machine it may not be there
        self._team, self._clients = team, len(simulation.setup.public.sizes)
        self.sums = not reads_single_uploads(simulation.setup)
        which = range(team.rank, self._clients, team.world)
        folder = RunFolder(place).checkpoints / f"clients-{team.rank}-of-{team.world}"
        states, secret = simulation.setup.states(place), secret_of(Path(header.folder))
        self.site = simulation.site(header.run, which, states, secret, tensors, folder)

    def obey(self, command: Command, message: bytes) -> None:
        if isinstance(command, Round) and self.sums:
            self.summed(command, message)
        elif isinstance(command, Round):
            for _, upload in self.uploads(command, message):
                self._team.send(upload)
            self._team.flush()
        elif isinstance(command, Score):
            self.scores(command, message)
        else:
            self.stored(command)

    def stored(self, command: Command) -> None:
        folder = self.site.state_folder
        if isinstance(command, Restore) and folder is not None and not (Path(command.place) / folder.name).exists():
            raise RunError(
                f"there is no folder {Path(command.place) / folder.name}",
                why="the run was begun with another number of ranks, and each rank keeps its own clients",
                fix="resume with the original number of ranks: RANKS in the folder names clients-RANK-of-RANKS",
                code="other-ranks",
            )
        for _ in self.site.obey(command, []):
            pass
        self._team.wait()

    def summed(self, command: Round, message: bytes) -> Summed:
        """The sum of the uploads of all ranks."""
        site, t, everyone = self.site, command.t, sorted(command.terms)
        clients, down, a = self._mine(command), self._broadcast(t, message), self.site.algorithm
        uploads = site(t, down, clients).uploads
        total = a.uplink.at(t, down).sum(uploads, a.zero(site.task, down), reach=lambda k: clients[k].reach).total
        return Summed(self._team.sum(total), everyone)

    def uploads(self, command: Round, message: bytes) -> Iterator[tuple[int, bytes]]:
        """The upload of each client of this rank, as it goes over the wire."""
        t, clients = command.t, self._mine(command)
        for k, upload in self.site.each(t, self._broadcast(t, message), clients):
            yield k, wire.encode(self.site.header(t, k), tree.formed(upload))

    def _mine(self, command: Round) -> dict[int, Terms]:
        return {k: command.terms[k] for k in sorted(command.terms) if k in self.site.shards}

    def _broadcast(self, t: int, message: bytes) -> Tree:
        """The decoded broadcast, whole even where each client is sent only a part of it: every rank holds the data of
        all clients anyway."""
        a, site = self.site.algorithm, self.site
        _, down = wire.decode(message, site.header(t, -1), a.broadcast(a.init(site.task, 0)))
        return down

    def scores(self, command: Score, message: bytes) -> Tensor:
        """Scores with one row for every client of the federation, added up over ranks: a client's own rank alone fills
        its row.
        """
        width = command.models * len(command.ways) * len(self.site.task.metrics)
        found = self.site.scores(command, message)
        with on(CPU):
            table = torch.zeros(self._clients, width, dtype=torch.float64)
            for k, row in found.items():
                table[k] = torch.tensor(row, dtype=torch.float64)
        return self._team.added(here(table))


class Ranks(Executor):
    """Executor that computes the clients of a phase on all ranks of torch.distributed, commanded from rank 0."""

    def __init__(self, simulation: Simulation, run: str, folder: Path, place: Path, tensors: Params | None) -> None:
        setup = simulation.setup
        self._team, self._last = joined(), not setup.prepares
        sent = b"" if tensors is None else save({name: value.cpu().contiguous() for name, value in tensors.items()})
        where, rows = (str(folder.resolve()), str(place.resolve())), simulation.population
        header = PhaseHeader(run, *where, setup.stage, len(sent), simulation.dataset, rows.data_key.hex())
        self._team.say(json.dumps(asdict(header)).encode(), setup.experiment.toml().encode() + sent)
        self._team.meet(device_of(setup.experiment.engine.device, local_rank()))
        self._share = Share(self._team, simulation, header, tensors)
        self._owed: deque[int] = deque()  # clients of other ranks whose uploads are not received yet
        self._begun = 0  # what was begun together and is not over: cut off half-way, others wait for what will not come

    def __exit__(self, *_: object) -> None:
        if self._begun:  # they end when this process does
            return
        self._tell(End())
        if self._last:
            self._team.leave()

    def __call__(self, t: int, down: Tree, terms: Mapping[int, Terms]) -> Answers:
        command, message = Round(t, dict(terms)), wire.encode(self._share.site.header(t, -1), down)
        if not self._share.sums:
            return Answers(self._gathered(command, message))
        with self._whole():
            self._tell(command, message)
            return Answers([self._share.summed(command, message)])

    def _gathered(self, command: Round, message: bytes) -> Iterator[tuple[int, bytes]]:
        """Uploads of all ranks in the order of client ids. No rank begins before the first one is asked for."""
        own, world = self._share.uploads(command, message), self._team.world
        with self._whole():
            self._tell(command, message)
            self._owed.extend(k for k in sorted(command.terms) if k % world)
        for k in sorted(command.terms):
            yield (k, self._next()) if k % world else next(own)

    def _next(self) -> bytes:
        with self._whole():
            return self._team.take(self._owed.popleft() % self._team.world)

    def score(self, t: int, models: Sequence[Params], ways: Sequence[str]) -> Scores:
        message = wire.encode(self._share.site.header(t, -1), tuple(models))
        command = Score(t, len(models), list(ways))
        with self._whole():
            self._tell(command, message)
            return dict(enumerate(self._share.scores(command, message).tolist()))

    def keep(self, step: int) -> Json:
        self._stored(Keep(step))
        return {}

    def restore(self, step: int, place: Path) -> None:
        self._stored(Restore(step, str(place.resolve())))

    def _stored(self, command: Command) -> None:
        with self._whole():
            self._tell(command)
            self._share.stored(command)

    def _tell(self, command: Command, message: bytes = b"") -> None:
        while self._owed:  # after an aborted round: drop the uploads that were sent for it
            self._next()
        with self._whole():
            self._team.say(encode_command(command), message)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Context for a step that all ranks must finish together; after an error in it, `__exit__` does not wait for
        the others.
        """
        self._begun += 1
        yield
        self._begun -= 1
