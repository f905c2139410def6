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
from typing import Any

import torch
import torch.distributed as dist

from sordino import config, keys, tree
from sordino.engine import checkpoint, wire
from sordino.engine.client import Clients
from sordino.engine.memory import keep_freed_memory
from sordino.errors import ConfigError, RunError
from sordino.keys import Key
from sordino.privacy.noise.sources import for_client
from sordino.privacy.uplink import Summed
from sordino.runs.private import secret_of
from sordino.runs.setup import Parts
from sordino.types import Grant, Params


def following() -> bool:
    """Is this a rank that is told what to do?"""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and os.environ.get("RANK", "0") != "0"


def follow() -> None:
    """Until rank 0 says that it is over."""
    _join()
    setup, text = _hear()
    share = Share(Parts(config.validate(tomllib.loads(text.decode()))), setup["run"], Path(setup["folder"]))
    command, message = _hear()
    while command["do"] != "end":
        share.obey(command, message)
        command, message = _hear()
    dist.destroy_process_group()


class Share:
    """One rank's clients: every world-th, from its own number on."""

    def __init__(self, parts: Parts, run: str, folder: Path) -> None:
        torch.set_num_threads(parts.experiment.engine.threads)
        keep_freed_memory()
        rank, world = dist.get_rank(), dist.get_world_size()
        self._parts, self._which = parts, range(rank, len(parts.sizes), world)
        self.clients: Clients = parts.clients(run, self._which, parts.states(folder), secret_of(folder))
        self._place = folder / f"clients-{rank}-of-{world}"

    def obey(self, command: Mapping[str, Any], message: bytes) -> Summed | torch.Tensor | None:
        if command["do"] == "round":
            return self._round(command, message)
        if command["do"] == "score":
            return self._score(command, message)
        if command["do"] == "save":
            checkpoint.save(self._place, command["step"], self.clients.states.trees(), {})
        else:
            if not self._place.exists():
                raise RunError(
                    f"there is no {self._place}",
                    why="the run was computed by another number of ranks, and each rank keeps its own clients",
                    fix="resume it with as many ranks as it began with: they are in the names of the clients-RANK-of-RANKS folders",
                    code="other-ranks",
                )
            loaded = checkpoint.load(self._place, self._parts.state, at=command["step"])
            assert loaded is not None
            self.clients.states = self._parts.states(self._place.parent, loaded)
        dist.barrier()
        return None

    def _round(self, command: Mapping[str, Any], message: bytes) -> Summed:
        parts, t, clients = self._parts, command["t"], self.clients
        noise, sizes = parts.experiment.privacy.noise, parts.sizes
        everyone = {int(k): value for k, value in command["grants"].items()}
        grants = {
            k: Grant(k, sizes[k], command["largest"], for_client(noise, parts.key, t, k), *everyone[k])
            for k in sorted(everyone)
            if k in self._which
        }
        a = parts.algorithm
        _, down = wire.decode(message, clients.header(t, -1), a.broadcast(a.init(parts.task, 0)))
        uploads = clients(t, down, grants, keys.fold(parts.key, "round", t))
        total = a.uplink.at(t, down).sum(uploads, a.zero(self._parts.task, down), reach=lambda k: grants[k].reach).total
        flat = torch.cat([leaf.double().reshape(-1) for leaf in tree.leaves(total)])
        dist.all_reduce(flat)
        return Summed(tree.unflat(flat, total), sorted(everyone))

    def _score(self, command: Mapping[str, Any], message: bytes) -> torch.Tensor:
        """A row for every client of the federation; sums, since each client's own rank alone has numbers for it."""
        width = command["models"] * len(command["ways"]) * len(self._parts.task.metrics)
        table = torch.zeros(len(self._parts.sizes), width, dtype=torch.float64)
        for k, row in self.clients.answer_scores(command, message).items():
            table[k] = torch.tensor(row, dtype=torch.float64)
        dist.all_reduce(table)
        return table


class Ranks:
    """The executor on rank 0."""

    def __init__(self, parts: Parts, run: str, folder: Path) -> None:
        _check(parts)
        _join()
        _say({"run": run, "folder": str(folder.resolve())}, parts.experiment.toml().encode())
        self._share = Share(parts, run, folder)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _say({"do": "end"})
        dist.destroy_process_group()

    def __call__(self, t: int, down: Any, grants: Mapping[int, Grant], key: Key) -> Summed:
        largest = max((grant.largest for grant in grants.values()), default=1)
        told = {str(k): list(grant.told()) for k, grant in grants.items()}
        message = wire.encode(self._share.clients.header(t, -1), down)
        found = self._all({"do": "round", "t": t, "largest": largest, "grants": told}, message)
        assert isinstance(found, Summed)
        return found

    def score(self, t: int, models: Sequence[Params], ways: Sequence[str]) -> dict[int, list[float]]:
        message = wire.encode(self._share.clients.header(t, -1), tuple(models))
        found = self._all({"do": "score", "t": t, "models": len(models), "ways": list(ways)}, message)
        assert isinstance(found, torch.Tensor)
        return dict(enumerate(found.tolist()))

    def save(self, step: int) -> None:
        self._all({"do": "save", "step": step})

    def restore(self, step: int) -> None:
        self._all({"do": "restore", "step": step})

    def _all(self, command: dict[str, Any], message: bytes = b"") -> Summed | torch.Tensor | None:
        _say(command, message)
        return self._share.obey(command, message)


def _check(parts: Parts) -> None:
    if "RANK" not in os.environ:
        raise ConfigError(
            'engine.executor = "ranks" outside torchrun',
            why="there is nobody to share the clients with",
            fix="torchrun --nproc-per-node 2 -m sordino run ...; or another executor",
            code="no-ranks",
        )
    slow, chaos = parts.experiment.stragglers, parts.experiment.chaos
    late = (slow.policy == "late" and slow.share > 0) or chaos.drop + chaos.slow > 0
    each = any(stage.reads_each for stage in parts.algorithm.uplink.client)
    each = each or parts.algorithm.uplink.secure is not None
    if late or each or parts.algorithm.reads_each:
        raise ConfigError(
            "this run needs single uploads, and ranks send sums",
            why="late uploads are left out of a sum one by one"
            if late
            else "the algorithm or its uplink reads each upload",
            fix='use engine.executor = "processes"',
            code="ranks-send-sums",
        )


def _join() -> None:
    dist.init_process_group("gloo")


def _say(command: Mapping[str, Any], body: bytes = b"") -> None:
    text = json.dumps(command).encode()
    dist.broadcast(torch.tensor([len(text), len(body)]), 0)
    dist.broadcast(torch.frombuffer(bytearray(text + body), dtype=torch.uint8), 0)


def _hear() -> tuple[dict[str, Any], bytes]:
    lengths = torch.zeros(2, dtype=torch.int64)
    dist.broadcast(lengths, 0)
    text, body = lengths.tolist()
    data = torch.empty(text + body, dtype=torch.uint8)
    dist.broadcast(data, 0)
    whole = data.numpy().tobytes()
    return json.loads(whole[:text]), whole[text:]
