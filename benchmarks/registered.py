"""Ten million clients: python benchmarks/registered.py [CLIENTS] [--cohort 10000] [--rounds 4].

`sordino run` with a row of 16 pixels for each client, a budget of its own for each, and per-example noise. What is
measured: the seconds from one line of metrics to the next, the seconds until the first, and peak memory of the process
and its forks. Then the same run again, killed with SIGKILL after its second round and resumed: model and metrics must
be the same bytes, and the receipt but for the head of its ledger, which begins with a random key in every run. Exit
status 1 where they are not.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # also where this file is started by its path: other packages have a `benchmarks`

from benchmarks.meter import peak  # noqa: E402
from sordino.data.sources import RowSource, SourceRows  # noqa: E402

EQUAL = ("model.safetensors", "metrics.jsonl", "privacy.json")
RUNS = "whole", "cut"
HEAD = re.compile(rb'"ledger_head": "[0-9a-f]{64}"')
EXPERIMENT = """
rounds = {rounds}
data = {{source = "benchmarks.registered:Pixels", options = {{clients = {clients}}}}}
partition = {{scheme = "iid", clients = {clients}}}
model = {{name = "logistic"}}
cohort = {{name = "random", size = {cohort}}}
algorithm = {{name = "gaussian_gdp", lr = 0.5, clip = 1.0}}
privacy = {{epsilon = 8.0, delta = {delta}}}
evaluation = {{every = {rounds}}}
"""


class Pixels(RowSource):
    """A small image for each client."""

    classes = 2
    reach = (0.0, 255.0)

    def __init__(self, clients: int) -> None:
        self.clients = clients

    def rows(self, seed: int) -> SourceRows:
        return _drawn(self.clients, seed)

    def tests(self, seed: int) -> SourceRows:
        return _drawn(1000, seed + 1)


def _drawn(many: int, seed: int) -> SourceRows:
    x = np.random.default_rng(seed).integers(0, 256, (many, 4, 4, 1), dtype=np.uint8)
    return SourceRows(x, (x[:, 0, 0, 0] > 127).astype(np.int64))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clients", type=int, nargs="?", default=10**7)
    parser.add_argument("--cohort", type=int, default=10**4)
    parser.add_argument("--rounds", type=int, default=4)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        told = {**vars(asked), "delta": 1e-3 / asked.clients}
        (place / "many.toml").write_text(EXPERIMENT.format(**told))
        start, took, most = played(place, "whole", "run", "many.toml", "--out", "whole", "--quiet")
        print(f"{asked.clients:,} clients, {asked.cohort:,} a round: first round after {start:.1f} s, then", end=" ")
        print(", ".join(f"{one:.1f}" for one in took), f"s a round; at most {most / 1024:,.0f} MB", flush=True)
        played(place, "cut", "run", "many.toml", "--out", "cut", "--quiet", kill_after=2)
        played(place, "cut", "resume", "cut", "--quiet")
        whole, cut = ({name: HEAD.sub(b"", (place / run / name).read_bytes()) for name in EQUAL} for run in RUNS)
        other = [name for name in EQUAL if whole[name] != cut[name]]
        print(f"after kill -9 in round 3 and `resume`: {'other ' + ', '.join(other) if other else 'the same bytes'}")
    sys.exit(bool(other))


def played(folder: Path, out: str, *words: str, kill_after: int | None = None) -> tuple[float, list[float], int]:
    """Seconds until the first line of metrics, between each line and the next, and the peak in KB."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    began, lines, most = time.perf_counter(), list[float](), 0
    process = subprocess.Popen([sys.executable, "-m", "sordino", *words], cwd=folder, env=environment)
    metrics = folder / out / "metrics.jsonl"
    while process.poll() is None:
        most = max(most, peak(process.pid))
        done = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        lines += [time.perf_counter() - began] * (done - len(lines))
        if kill_after is not None and done >= kill_after:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return lines[0], [], most
        time.sleep(0.05)
    if process.returncode or kill_after is not None:
        raise SystemExit(f"sordino {' '.join(words)} ended with {process.returncode}")
    return lines[0], list(np.diff(lines)), most


if __name__ == "__main__":
    main()
