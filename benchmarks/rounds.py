"""What one round costs on sordino and on everything else at hand, in the same run: python benchmarks/rounds.py [w1 w2
w3 w4 w5] [--peers DIR].

`workloads` says what is done, `sides/` how each side does it. Every side is a process of its own; they take turns, one
round each, and medians are compared. A side that did not learn the same in its warm-up round, or did not add the same
noise, did other work: it gets no ratio, and the exit status is 1. Peers live in environments of their own, DIR/pfl,
DIR/flower and DIR/fedlab; one that is not there is not guessed.

    --check    no timing, and next to no noise: do all sides learn the same?
    --device   where all sides compute, such as cuda: without limits, bf16 and sides of several threads
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # also where this file is started by its path: other packages have a `benchmarks`

from benchmarks.workloads import WORKLOADS, Workload  # noqa: E402

SHORT = 2.0  # seconds of a round: below that, what it finds in the caches counts
TOLERANCE = 0.1  # of what the reference learned, and of how far its weights moved


@dataclass(frozen=True)
class Side:
    name: str
    module: str
    options: Mapping[str, Any] = field(default_factory=dict)
    peer: str = ""  # the environment it needs
    reference: bool = False  # what the others are measured against: the best of these
    limit: bool = False  # arithmetic only: learns nothing


def plain(module: str, name: str) -> list[Side]:
    return [
        Side(f"{name}, {threads} thread{'s'[: threads - 1]}", module, {"threads": threads}, reference=True)
        for threads in (1, 2)
    ]


SORDINO, LIMIT = "benchmarks.sides.sordino_rounds", "benchmarks.sides.limit"
PEERS = [
    Side("pfl-research", "benchmarks.sides.pfl_research", peer="pfl"),
    Side("Flower on Ray", "benchmarks.sides.flower", peer="flower"),
    Side("FedLab", "benchmarks.sides.fedlab", peer="fedlab"),
]
LIMITS = [Side(f"limit, {kind}", LIMIT, {"precision": kind}, limit=True) for kind in ("fp32", "bf16")]
OPEN = plain("benchmarks.sides.plain", "plain loop")
# one line more, which lets torch multiply by oneDNN: in fp32 where the processor has no matrix units
ONEDNN = Side("plain loop, oneDNN", "benchmarks.sides.plain", {"threads": 1, "matmul": "medium"})
PRIVATE = [
    *plain("benchmarks.sides.opacus_hooks", "Opacus hooks"),
    Side("public client code", "benchmarks.sides.public_client_code"),
    Side("vmap over examples", "benchmarks.sides.vmap"),
]
NOISE = Side("limit, noise alone", LIMIT, {"precision": "noise"}, limit=True)
SIDES = {
    "w1": [*OPEN, Side("sordino", SORDINO), Side("sordino, fp32", SORDINO, {"precision": "fp32"}), *PEERS, *LIMITS],
    "w2": [
        *OPEN,
        ONEDNN,
        Side("sordino", SORDINO),
        Side("vmap over clients", "benchmarks.sides.vmap"),
        *PEERS,
        *LIMITS,
    ],
    "w2u": [*OPEN, ONEDNN, Side("sordino", SORDINO), Side("sordino, loop", SORDINO, {"executor": "loop"}), *PEERS[1:2]],
    "w3": [*PRIVATE, Side("sordino", SORDINO), Side("sordino, loop", SORDINO, {"executor": "loop"}), *LIMITS, NOISE],
    "w4": [*PRIVATE, Side("sordino", SORDINO), *LIMITS, NOISE],
    "w5": [Side("sordino", SORDINO), *LIMITS],
}


class Running:
    """One side at work in a process of its own."""

    def __init__(self, side: Side, w: Workload, python: Path, log: Path) -> None:
        self.side, self._log = side, log
        told = json.dumps({"workload": asdict(w), **side.options})
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [str(python), "-m", side.module, told],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                process_group=0,  # Ctrl-C is for the one who asks; what a side's libraries signal stays with it
            )
        self.ready: dict[str, Any] = {}
        self.rounds: list[dict[str, float]] = []

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()  # no more rounds: the side ends by itself
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def warm(self) -> None:
        """Until its first round is over."""
        self.ready = self._heard()

    def go(self) -> None:
        """A turn of this side. In a run a round follows a round. Whoever has waited for a turn has lost its caches, and
        on some machines its pages, so a short round is played once more, and the second one counts.
        """
        found = self._round()
        self.rounds.append(self._round() if found["wall"] < SHORT else found)

    def _round(self) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        found: dict[str, float] = self._heard()
        return found

    def _heard(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(
                f"{self.side.name} ended with status {self._process.wait()}:\n{self._log.read_text()[-2000:]}"
            )
        return json.loads(line)

    def median(self, what: str) -> float:
        return statistics.median(one[what] for one in self.rounds)


def interpreter(side: Side, peers: Path | None) -> Path | None:
    """None where the environment that a peer needs is not there."""
    if not side.peer:
        return Path(sys.executable)
    found = (peers or Path()) / side.peer / "bin" / "python"
    return found.absolute() if peers is not None and found.exists() else None


def measured(w: Workload, sides: Sequence[Side], repeats: int, peers: Path | None = None) -> list[dict[str, Any]]:
    """One row a side. With no repeats, only what each learned."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running: dict[str, Running] = {}
        for side in sides:
            python = interpreter(side, peers)
            if python is not None:  # all of them begin at once, and nobody is measured before all have begun
                log = folder / str(len(running))
                running[side.name] = stack.enter_context(Running(side, w, python, log))
        for one in [*running.values()]:
            try:
                one.warm()
            except SystemExit as error:
                if not one.side.peer:
                    raise
                print(error, file=sys.stderr)  # somebody else's package: the others go on
                del running[one.side.name]
        for _ in range(repeats):
            for one in running.values():
                one.go()
        there = {side.name for side in sides if interpreter(side, peers)}
        return [
            row(side, running.get(side.name), "did not run" if side.name in there else "not installed")
            for side in sides
        ]


def row(side: Side, ran: Running | None, absent: str) -> dict[str, Any]:
    head = {"side": side.name, "reference": side.reference, "limit": side.limit}
    if ran is None:
        return head | {"absent": absent}
    figures = {f"{what}_all": [one[what] for one in ran.rounds] for what in ("cpu", "wall")}
    medians = {what: ran.median(what) for what in ("cpu", "wall", "peak_kb")} if ran.rounds else {}
    return head | ran.ready | figures | medians


def guard(w: Workload, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Who did other work than the reference, and how it shows."""
    ran = [one for one in rows if not one.get("absent") and not one["limit"]]
    first = next((one for one in ran if one["reference"]), ran[0])
    found: list[str] = []
    for one in ran:
        shares = {"its weights moved": one["moved"] / first["moved"]}  # under noise: how much of that there was
        if w.noise < 1e-3:  # else one round's loss is mostly noise
            shares["it learned"] = learned(one) / learned(first)
        wrong = [
            f"{what} {share:.2f} times as much as {first['side']}"
            for what, share in shares.items()
            if abs(share - 1) > TOLERANCE
        ]
        one["other_work"] = bool(wrong)
        found += [f"{one['side']}: {line}" for line in wrong]
    return found


def learned(one: Mapping[str, Any]) -> float:
    return float(one["loss_before"] - one["loss"])


# what is printed -----------------------------------------------------------------------------------------------------

COLUMNS = [
    "side",
    "CPU s",
    "faster",
    "wall s",
    "faster",
    "peak MB",
    "of base",
    "of fp32 limit",
    "of bf16 limit",
    "loss",
    "moved",
]


def table(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """`faster`: than the best of the reference, in that measure. `of base`: peak memory over that with torch and the
    data alone.
    """
    references = [one for one in rows if one["reference"] and "cpu" in one]
    best = {what: min(one[what] for one in references) for what in ("cpu", "wall")} if references else {}
    limits = {
        kind: next((one.get("cpu") for one in rows if one["side"] == f"limit, {kind}"), None)
        for kind in ("fp32", "bf16")
    }
    return [line(one, best, limits) for one in rows]


def line(one: Mapping[str, Any], best: Mapping[str, float], limits: Mapping[str, float | None]) -> list[str]:
    if one.get("absent"):
        return [one["side"], one["absent"], *[""] * (len(COLUMNS) - 2)]
    cells = [one["side"]]
    for what in ("cpu", "wall"):
        cells.append(f"{one[what]:.3f}" if what in one else "")
        compared = what in one and what in best and not one["limit"] and not one["other_work"]
        cells.append(f"{best[what] / one[what]:.2f}x" if compared else "")
    peak = one.get("peak_kb")
    cells += [f"{peak / 1024:.0f}", f"{peak / one['base_kb']:.2f}x"] if peak else ["", ""]
    cells += [f"{limit / one['cpu']:.0%}" if limit and "cpu" in one else "" for limit in limits.values()]
    return cells + [f"{one[what]:.4f}" if what in one else "" for what in ("loss", "moved")]


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(cells[i]) for cells in [head, *rows]) for i in range(len(head))]
    lines = [head, [":" + "-" * (widths[0] - 1), *("-" * (w - 1) + ":" for w in widths[1:])], *rows]
    justified = [[c[0].ljust(widths[0]), *(v.rjust(w) for v, w in zip(c[1:], widths[1:], strict=True))] for c in lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in justified)


def machine() -> dict[str, str]:
    try:
        found = [one for one in Path("/proc/cpuinfo").read_text().splitlines() if one.startswith("model name")]
        processor = found[0].partition(":")[2].strip()
    except (OSError, IndexError):
        processor = platform.processor()
    load = ", ".join(f"{one:.2f}" for one in os.getloadavg())
    return {
        "processor": processor,
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
        "load average": load,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[*WORKLOADS], help=" ".join(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peers", type=Path, default=os.environ.get("SORDINO_PEERS"), help="or SORDINO_PEERS")
    parser.add_argument(
        "--only", nargs="+", metavar="WORD", help="sides whose name holds one of these, beside the reference"
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--device", default="cpu")
    asked, wrong = parser.parse_args(), False
    for name in asked.names:
        w = replace(WORKLOADS[name], device=asked.device)
        w = replace(w, multiplier=w.multiplier and 1e-6) if asked.check else w
        sides = [
            one
            for one in SIDES[name]
            if (not asked.only or one.reference or any(word in one.name for word in asked.only))
            and (asked.device == "cpu" or not (one.limit or "fp32" in one.name or one.options.get("threads", 1) > 1))
        ]
        before = machine()
        rows = measured(w, sides, 0 if asked.check else asked.repeats, asked.peers)
        found = guard(w, rows)
        wrong |= bool(found)
        if asked.json:
            print(json.dumps({"workload": name, "machine": before, "rows": rows, "other work": found}), flush=True)
            continue
        said = {one["says"]: None for one in rows if "says" in one}
        print(f"{name}: {', '.join(f'{key} {value}' for key, value in before.items())}; {', '.join(said)}")
        print(markdown(COLUMNS, table(rows)))
        print(
            "\n".join(f"NOT THE SAME WORK  {one}" for one in found) or "all sides did the same work",
            end="\n\n",
            flush=True,
        )
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
