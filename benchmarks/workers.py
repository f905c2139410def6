"""What worker processes bring on w1: python benchmarks/workers.py [--workers 1 2] [--repeats 5]. Whole runs, by the
public way of starting one.

Images lie on disk as parquet, as every worker reads them itself. The runs take turns; the first and the last round of
each are not counted: one warms up, the other evaluates and saves.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import sys
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # also where this file is started by its path: other packages have a `benchmarks`

from benchmarks import meter  # noqa: E402
from benchmarks.rounds import machine, markdown  # noqa: E402
from benchmarks.sides.sordino_rounds import table  # noqa: E402
from benchmarks.workloads import WORKLOADS, Data, data  # noqa: E402

RARELY = 10**6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=5, help="counted rounds, in all")
    parser.add_argument("--runs", type=int, default=2, help="runs they are divided among")
    parser.add_argument("--precision", default="auto")
    asked = parser.parse_args()
    w = replace(WORKLOADS["w1"], clients=20)
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SORDINO_CACHE"] = folder
        write(Path(folder) / "images", data(w))
        rounds = -(-asked.repeats // asked.runs) + 2
        experiment = table(w) | {
            "data": {"source": "images", "path": str(Path(folder) / "images")},
            "partition": {"scheme": "iid", "clients": w.clients},
            "evaluation": {"every": RARELY, "final": 0},
            "rounds": rounds,
        }
        taken: dict[int, list[list[float]]] = {count: [] for count in asked.workers}
        for turn in range(asked.runs):
            for count in asked.workers:
                engine = {"executor": "processes", "workers": count, "checkpoint_every": RARELY}
                table_of_run = experiment | {"engine": engine | {"precision": asked.precision}}
                taken[count] += run(table_of_run, Path(folder) / f"run-{turn}-{count}")
    cpu, wall = ({k: statistics.median(one[i] for one in taken[k]) for k in taken} for i in (0, 1))
    first = wall[asked.workers[0]]
    rows = [[str(k), f"{cpu[k]:.2f}", f"{wall[k]:.2f}", f"{first / wall[k]:.2f}x", str(len(taken[k]))] for k in taken]
    print(markdown(["workers", "CPU s", "wall s", "faster", "rounds"], rows))


def run(experiment: dict[str, Any], folder: Path) -> list[list[float]]:
    """CPU and wall seconds of the rounds between the first and the last."""
    from sordino import config
    from sordino.runs.run import start

    marks: list[tuple[float, float]] = []
    start(config.validate(experiment), folder, lambda progress: marks.append(meter.clocks()))
    return [[now - then for now, then in zip(after, before, strict=True)] for before, after in pairwise(marks[:-1])]


def write(folder: Path, held: Data) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    folder.mkdir()
    for split, x, y in (("train", held.x, held.y), ("test", held.held_x, held.held_y)):
        images = []
        for one in x.numpy():
            file = io.BytesIO()
            Image.fromarray(one).save(file, "PNG", compress_level=0)
            images.append(file.getvalue())
        pq.write_table(pa.table({"image": images, "label": y.tolist()}), folder / f"{split}.parquet")


if __name__ == "__main__":
    main()
