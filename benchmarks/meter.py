"""What a side speaks: it is told the workload, does one warm-up round, and then one round for every line `go`.

    python -m benchmarks.sides.NAME '{"workload": {...}, "threads": 1, ...}'

It answers in lines of JSON. First: memory before it began, its loss on the fixed batch after the warm-up round and how
far its weights moved. Then for every round CPU seconds, wall seconds and peak memory, of the process and all its
descendants.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.workloads import Workload, data, floats, network

TICK = os.sysconf("SC_CLK_TCK")


class Meter:
    def __init__(self) -> None:
        told = json.loads(sys.argv[1])
        self.w = Workload(**{**told["workload"], "shape": tuple(told["workload"]["shape"])})
        self.options: dict[str, Any] = told
        self._leave: Callable[[], Any] = lambda: None
        # what a library prints is no answer
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        torch.set_num_threads(told.get("threads", 1))
        torch.set_float32_matmul_precision(told.get("matmul", "highest"))
        self.data = data(self.w)
        self._base = fresh_peak()
        self._began: tuple[float, float] | None = None

    def leaving(self, do: Callable[[], Any]) -> None:
        """What to do when there is no other round."""
        self._leave = do

    def drive(self, step: Callable[[], Any], weights: Callable[[], Sequence[Tensor] | None], says: str) -> NoReturn:
        """For a side that can be stepped from outside."""
        while True:
            step()
            self.ended(weights, says)

    def ended(self, weights: Callable[[], Sequence[Tensor] | None], says: str) -> None:
        """After every round: say what it took, wait for the next `go`. The first one is the warm-up."""
        if self._began is None:
            self._answer(base_kb=self._base, says=says, **self._learned(weights()))
        else:
            self._wait()
            cpu, wall = (now - then for now, then in zip(clocks(), self._began, strict=True))
            self._answer(cpu=cpu, wall=wall, peak_kb=peak())
        if sys.stdin.readline().strip() != "go":
            self._leave()
            os._exit(0)  # some libraries keep threads that would outlive a return
        self._wait()
        self._began = clocks()

    def _wait(self) -> None:
        """Until an accelerator has done what it was asked for: clocks are read only then."""
        if self.w.device != "cpu":
            torch.cuda.synchronize()

    def _answer(self, **said: Any) -> None:
        print(json.dumps(said), file=self._answers, flush=True)

    def _learned(self, weights: Sequence[Tensor] | None) -> dict[str, float]:
        if weights is None:
            return {}
        net = network(self.w)
        with torch.no_grad():
            before = self._loss(net)
            moved = 0.0
            for p, value in zip(net.parameters(), weights, strict=True):
                moved += float((value - p).square().sum())
                p.copy_(value)
            after = self._loss(net)
        return {"loss_before": float(before), "loss": float(after), "moved": moved**0.5}

    def _loss(self, net: nn.Module) -> Tensor:
        # a few at a time: what is looked at from outside must not be the peak that is measured
        x, y = self.data.held_x.split(50), self.data.held_y.split(50)
        return torch.stack([F.cross_entropy(net(floats(a)), b) for a, b in zip(x, y, strict=True)]).mean()


def clocks() -> tuple[float, float]:
    """CPU seconds of this process and all its descendants, wall seconds."""
    waited = os.times()
    cpu = time.process_time() + waited.children_user + waited.children_system
    for pid in _descendants(os.getpid()):
        fields = _read(pid, "stat").rpartition(")")[2].split()
        cpu += sum(map(int, fields[11:15])) / TICK  # its own time and that of the children it has waited for
    return cpu, time.perf_counter()


def peak(root: int | None = None) -> int:
    """KB, of this process or of `root`, and all descendants. What several processes share is counted once, at the root:
    pages of files, common memory, and what a fork has of the process that it comes from, until one of them writes to
    it. A descendant adds what is its own now, and what it has had beyond that.
    """
    root = os.getpid() if root is None else root
    peak = _memory(root, "status").get("VmHWM", 0)
    for pid in _descendants(root):
        one, shares = _memory(pid, "status"), _memory(pid, "smaps_rollup")
        if one and shares:
            peak += one["VmHWM"] - one["VmRSS"] + shares["Private_Clean"] + shares["Private_Dirty"]
    return peak


def fresh_peak() -> int:
    """Forget the peak so far: it counts from here."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def _memory(pid: int, table: str) -> dict[str, int]:
    """KB, by name; nothing where the process has ended."""
    fields = (line.split() for line in _read(pid, table).splitlines() if line)
    return {name[:-1]: int(rest[0]) for name, *rest in fields if rest[1:] == ["kB"]}


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _read(int(entry.name), "stat")):
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    return list(_below(root, children))


def _below(pid: int, children: dict[int, list[int]]) -> Iterator[int]:
    for child in children.get(pid, []):
        yield child
        yield from _below(child, children)


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return ""
