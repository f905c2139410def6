"""What a user waits for: python benchmarks/whole_runs.py DATA [--rounds 200] [--repeats 3] [--start-up 7].

DATA holds MNIST as train.parquet and test.parquet. `sordino run` of w2u on real clients (a Dirichlet split of
concentration 0.3 over 1,000 of them, 100 in a round, an MLP, batches of 10, one epoch), evaluated every 10 rounds and
at the end, saved in every round, from the command to its end; beside it a plain script that does the same. The script
is given the pixels and the clients' rows in one file, where sordino reads the parquet files and divides them. Both take
turns.

Then the start-up: `sordino run rounds=1`, the digits. Beside it a process that only imports torch, the least that
anything with torch takes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # also where this file is started by its path: other packages have a `benchmarks`

from benchmarks.rounds import machine, markdown  # noqa: E402

Taken = list[tuple[float, float]]  # wall and CPU seconds, turn after turn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--start-up", type=int, default=7)
    asked = parser.parse_args()
    print(", ".join(f"{name} {value}" for name, value in machine().items()), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"SORDINO_CACHE": f"{folder}/cache", "PYTHONPATH": str(ROOT)}
        if asked.repeats:
            whole_runs(Path(folder), asked.data.resolve(), asked.rounds, asked.repeats)
        if asked.start_up:
            start_up(Path(folder), asked.start_up)


def whole_runs(folder: Path, data: Path, rounds: int, repeats: int) -> None:
    experiment = folder / "w2u.toml"
    experiment.write_text(W2U.format(rounds=rounds, data=json.dumps(str(data))))
    prepare(experiment, folder / "plain.safetensors")
    sordino(folder, "first", str(experiment), "rounds=1", "--quiet")()  # fills the caches of files
    sides = {f"plain script, {n} thread{'s'[: n - 1]}": plain(folder, rounds, n) for n in (1, 2)}
    sides["sordino run"] = sordino(folder, "w2u", str(experiment), "--quiet")
    show(turns(sides, repeats))
    for line in ("plain-1", "plain-2"):
        print(f"{line}: accuracy {json.loads((folder / f'{line}.json').read_text())[-1]:.4f}")
    last = [json.loads(line) for line in (folder / "w2u" / "metrics.jsonl").read_text().splitlines()][-1]
    print("sordino:", {name: value for name, value in last.items() if "accuracy" in name})


def start_up(folder: Path, repeats: int) -> None:
    digits = sordino(folder, "digits", "rounds=1", "--quiet")
    digits()
    show(turns({"import torch": command("-c", "import torch"), "sordino run rounds=1": digits}, repeats))


def sordino(folder: Path, name: str, *words: str) -> Callable[[], object]:
    turn = iter(range(10**6))

    def run() -> None:
        out = folder / f"{name}-{next(turn)}"
        command("-m", "sordino", "run", *words, "--out", str(out))()
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(out)

    return run


def plain(folder: Path, rounds: int, threads: int) -> Callable[[], object]:
    file = str(folder / "plain.safetensors")
    return command(
        "-m", "benchmarks.sides.plain_script", file, str(folder / f"plain-{threads}"), f"{rounds}", f"{threads}"
    )


def command(*words: str) -> Callable[[], object]:
    return lambda: subprocess.run([sys.executable, *words], check=True, cwd=ROOT)


def turns(sides: dict[str, Callable[[], Any]], repeats: int) -> dict[str, Taken]:
    taken: dict[str, Taken] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, side in sides.items():
            before, used = time.perf_counter(), cpu()
            side()
            taken[name].append((time.perf_counter() - before, cpu() - used))
    return taken


def cpu() -> float:
    """Of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def show(taken: dict[str, Taken]) -> None:
    medians = {name: [statistics.median(column) for column in zip(*each, strict=True)] for name, each in taken.items()}
    reference = min(wall for name, (wall, _) in medians.items() if not name.startswith("sordino"))
    rows = [
        [name, f"{wall:.2f}", f"{reference / wall:.2f}x", f"{used:.2f}", spread(taken[name])]
        for name, (wall, used) in medians.items()
    ]
    print(markdown(["side", "wall s", "faster", "CPU s", "all, wall s"], rows), flush=True)


def spread(each: Taken) -> str:
    return " ".join(f"{wall:.2f}" for wall, _ in sorted(each))


def prepare(experiment: Path, file: Path) -> None:
    """What the plain script is given: pixels, labels, and whose row each is."""
    import numpy as np
    from safetensors.numpy import save_file

    from sordino import config
    from sordino.runs.population import Population

    population = Population(config.load(experiment, []))
    train, test, rows = population.dataset.train, population.dataset.test, population.shares[0]
    order = np.concatenate(list(rows))
    held: Sequence[tuple[str, Any]] = (
        ("x", np.asarray(train.x)[order]),
        ("y", np.asarray(train.y)[order]),
        ("sizes", np.array([len(part) for part in rows])),
        ("test_x", np.asarray(test.x)),
        ("test_y", np.asarray(test.y)),
    )
    save_file({name: np.ascontiguousarray(value) for name, value in held}, file)


W2U = """
rounds = {rounds}
data = {{source = "images", path = {data}}}
partition = {{scheme = "dirichlet", alpha = 0.3, clients = 1000}}
model = {{name = "mlp", hidden = 200}}
cohort = {{name = "random", size = 100}}
algorithm = {{name = "fedavg", lr = 0.1, batch_size = 10, local_epochs = 1}}
privacy = {{}}
evaluation = {{every = 10, final = 1}}
"""


if __name__ == "__main__":
    main()
