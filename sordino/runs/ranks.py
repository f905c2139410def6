"""Clients spread over the ranks of torch.distributed: `torchrun --nproc-per-node 2 -m sordino run EXPERIMENT.toml
engine.executor=ranks`.

Every rank trains its share of the cohort and adds its uploads up; one all-reduce a round adds the sums. Rank 0 is the
server: it alone draws cohorts, keeps the ledger and writes the run folder; the others do what it says until it ends.
Sums are in float64, so that the number of ranks moves a result by the rounding of such additions and no more. Only
lengths, JSON and wire messages are broadcast: no object crosses that would have to be unpickled.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import torch
import torch.distributed as dist

from sordino import config, tree
from sordino.engine import wire
from sordino.engine.commands import Command, End, Keep, Restore, Round, Score, packed, parsed
from sordino.engine.executor import Executor, Scores
from sordino.engine.memory import keep_freed_memory
from sordino.errors import ConfigError, RunError
from sordino.ledger.events import Json
from sordino.privacy.uplink import Summed
from sordino.runs.private import secret_of
from sordino.runs.setup import Setup
from sordino.runs.simulation import Simulation, simulated
from sordino.tree import Tree
from sordino.types import Params, Terms


def following() -> bool:
    """Is this a rank that is told what to do?"""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and os.environ.get("RANK", "0") != "0"


def follow() -> None:
    """Until rank 0 says that it is over."""
    _join()
    setup, text = _hear()
    told = json.loads(setup)
    share = Share(simulated(config.validate(tomllib.loads(text.decode()))), told["run"], Path(told["folder"]))
    while not isinstance(command := parsed((heard := _hear())[0]), End):
        share.obey(command, heard[1])
    dist.destroy_process_group()


class Share:
    """One rank's clients, every world-th from its own number on: a site whose answers are added to those of others."""

    def __init__(self, simulation: Simulation, run: str, folder: Path) -> None:
        torch.set_num_threads(simulation.setup.experiment.engine.threads)
        keep_freed_memory()
        rank, world = dist.get_rank(), dist.get_world_size()
        self._clients = len(simulation.setup.public.sizes)
        which, shelf = range(rank, self._clients, world), folder / f"clients-{rank}-of-{world}"
        self.site = simulation.site(run, which, simulation.setup.states(folder), secret_of(folder), shelf=shelf)

    def obey(self, command: Command, message: bytes) -> Summed | torch.Tensor | None:
        if isinstance(command, Round):
            return self._round(command, message)
        if isinstance(command, Score):
            return self._score(command, message)
        if isinstance(command, Restore) and self.site.shelf is not None and not self.site.shelf.exists():
            raise RunError(
                f"there is no folder {self.site.shelf}",
                why="the run was begun with another number of ranks, and each rank keeps its own clients",
                fix="resume with the number of ranks it began with: it is in the names of the clients-RANK-of-RANKS "
                "folders",
                code="other-ranks",
            )
        for _ in self.site.obey(command, []):
            pass
        dist.barrier()
        return None

    def _round(self, command: Round, message: bytes) -> Summed:
        site, t, everyone = self.site, command.t, sorted(command.terms)
        mine = {k: command.terms[k] for k in everyone if k in site.shards}
        a = site.algorithm
        _, down = wire.decode(message, site.header(t, -1), a.broadcast(a.init(site.task, 0)))
        uploads = site(t, down, mine)
        total = a.uplink.at(t, down).sum(uploads, a.zero(site.task, down), reach=lambda k: mine[k].reach).total
        flat = torch.cat([leaf.double().reshape(-1) for leaf in tree.leaves(total)])
        dist.all_reduce(flat)
        return Summed(tree.unflat(flat, total), everyone)

    def _score(self, command: Score, message: bytes) -> torch.Tensor:
        """A row for every client of the federation; sums, since each client's own rank alone has numbers for it."""
        width = command.models * len(command.ways) * len(self.site.task.metrics)
        table = torch.zeros(self._clients, width, dtype=torch.float64)
        for k, row in self.site.scores(command, message).items():
            table[k] = torch.tensor(row, dtype=torch.float64)
        dist.all_reduce(table)
        return table


class Ranks(Executor):
    """The executor on rank 0."""

    def __init__(self, simulation: Simulation, run: str, folder: Path, handed: bool = False) -> None:
        """`handed`: were clients given something before the first round?"""
        if handed or simulation.setup.prepares:
            raise RunError(
                'a preparation under executor = "ranks"',
                why="ranks share one phase of a run, and this one has several",
                fix='executor = "processes", or "loop"',
                code="ranks-cannot-prepare",
            )
        _check(simulation.setup)
        _join()
        told = {"run": run, "folder": str(folder.resolve())}
        _say(json.dumps(told).encode(), simulation.setup.experiment.toml().encode())
        self._share = Share(simulation, run, folder)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _say(packed(End()))
        dist.destroy_process_group()

    def __call__(self, t: int, down: Tree, terms: Mapping[int, Terms]) -> Summed:
        added = self._all(Round(t, dict(terms)), wire.encode(self._share.site.header(t, -1), down))
        assert isinstance(added, Summed)
        return added

    def score(self, t: int, models: Sequence[Params], ways: Sequence[str]) -> Scores:
        message = wire.encode(self._share.site.header(t, -1), tuple(models))
        table = self._all(Score(t, len(models), list(ways)), message)
        assert isinstance(table, torch.Tensor)
        return dict(enumerate(table.tolist()))

    def keep(self, step: int) -> Json:
        self._all(Keep(step))
        return {}

    def restore(self, step: int, place: Path) -> None:
        self._all(Restore(step, str(place)))

    def _all(self, command: Command, message: bytes = b"") -> Summed | torch.Tensor | None:
        _say(packed(command), message)
        return self._share.obey(command, message)


def _check(setup: Setup) -> None:
    if "RANK" not in os.environ:
        raise ConfigError(
            'engine.executor = "ranks" was started without torchrun',
            why="there is no other rank to share the clients with",
            fix="start it as torchrun --nproc-per-node 2 -m sordino run ..., or use another executor",
            code="no-ranks",
        )
    slow, chaos = setup.experiment.stragglers, setup.experiment.chaos
    late = (slow.policy == "late" and slow.share > 0) or chaos.drop + chaos.slow > 0
    each = any(stage.reads_each for stage in (*setup.algorithm.uplink.client, *setup.algorithm.uplink.server))
    each = each or setup.algorithm.uplink.secure is not None
    if late or each or setup.algorithm.reads_each:
        raise ConfigError(
            "this run needs single uploads, but ranks send only sums",
            why="late uploads are left out of a sum one by one"
            if late
            else "the algorithm or its uplink reads each upload",
            fix='set engine.executor = "processes"',
            code="ranks-send-sums",
        )


def _join() -> None:
    dist.init_process_group("gloo")


def _say(text: bytes, body: bytes = b"") -> None:
    dist.broadcast(torch.tensor([len(text), len(body)]), 0)
    dist.broadcast(torch.frombuffer(bytearray(text + body), dtype=torch.uint8), 0)


def _hear() -> tuple[bytes, bytes]:
    lengths = torch.zeros(2, dtype=torch.int64)
    dist.broadcast(lengths, 0)
    text, body = lengths.tolist()
    data = torch.empty(text + body, dtype=torch.uint8)
    dist.broadcast(data, 0)
    whole = data.cpu().numpy().tobytes()
    return whole[:text], whole[text:]
