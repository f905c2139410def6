"""What a round between real sites costs beside the same round in one process: python benchmarks/sites.py [--rounds 8]

A server and four sites, each a process of its own with its own file and its own certificates, over gRPC on this
machine; and the loop of the simulator, in the same run. The model has 797,962 parameters (3.19 MB each way and client),
a client makes one step on 20 images. What is counted is from the end of one round to the end of the next, disk
included: the server keeps its checkpoint and ledger, every site its ledger, its state and its answer. Memory is the
largest that a process has held; start-up is from the first command until all sites are there.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # also where this file is started by its path: other packages have a `benchmarks`

from benchmarks.rounds import machine, markdown  # noqa: E402

SITES, IMAGES = 4, 25  # of which a fifth is for tests
WARM = 1  # rounds that are not counted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--algorithm", default="fedavg")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each, in turns")
    asked = parser.parse_args()
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    taken: dict[str, list[float]] = {"one process": [], "between sites": []}
    facts: list[dict[str, float]] = []
    for _ in range(asked.repeats):
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            experiment = prepared(place, asked.rounds + WARM, asked.algorithm)
            taken["one process"] += simulated(place, experiment)
            seconds, found = between(place)
            taken["between sites"] += seconds
            facts.append(found)
    base = statistics.median(taken["one process"])
    rows = [
        [
            name,
            f"{statistics.median(found):.3f}",
            f"{max(found):.3f}",
            f"{statistics.median(found) / base:.2f}x",
            str(len(found)),
        ]
        for name, found in taken.items()
    ]
    print(markdown(["", "s a round", "the longest", "of one process", "rounds"], rows))
    for name in facts[0]:
        print(f"{name}: {statistics.median(fact[name] for fact in facts):.1f}")


def table(rounds: int, algorithm: str) -> dict[str, Any]:
    return {
        "name": "sites",
        "rounds": rounds,
        "partition": {"scheme": "iid", "clients": SITES},
        "data": {"source": "images", "classes": [str(digit) for digit in range(10)], "colours": False},
        "model": {"name": "cnn_wide"},
        "algorithm": {"name": algorithm, "local_steps": 1, "batch_size": 20, "lr": 0.05},
        "privacy": {},
        "evaluation": {"every": 10**6, "final": 0},
        "engine": {"executor": "loop", "precision": "fp32"},
    }


def prepared(place: Path, rounds: int, algorithm: str) -> Any:
    """Files, keys, certificates and an agreement, as people would make them."""
    from sordino import config
    from sordino.receipts.signature import generate, private_key, public_key
    from sordino.sites import agreement_file as agreed
    from sordino.sites import identity
    from sordino.sites.join import data_key
    from sordino.sites.own_data import OwnData

    experiment = config.validate(table(rounds, algorithm))
    write(place / "all", SITES * IMAGES, 0)
    generate(place / "server")
    parts = []
    for k in range(SITES):
        name = f"site-{k}"
        generate(place / name)
        write(place / f"{name}-data", IMAGES, 1 + k)
        identity.allow(place / "sites.toml", name, public_key(place / f"{name}.pub"))
        own = OwnData(experiment, place / f"{name}-data", data_key(private_key(place / name)))
        parts.append(own.announced(name))
    (place / "agreement.toml").write_text(agreed.merged(parts).toml())
    (place / "experiment.toml").write_text(experiment.toml())
    identity.make_certificates(place / "certs", ["localhost"], [f"site-{k}" for k in range(SITES)], 2)
    made = table(rounds, algorithm)
    return config.validate(made | {"data": {**made["data"], "path": str(place / "all")}})


def write(folder: Path, images: int, seed: int) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    folder.mkdir()
    rng = np.random.default_rng(seed)
    for split, many in (("train", images), ("test", max(10, images // 5))):
        encoded = []
        for pixels in rng.integers(0, 256, (many, 28, 28), dtype=np.uint8):
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, "png")
            encoded.append({"bytes": file.getvalue(), "path": None})
        labels = np.arange(many) % 10
        pq.write_table(pa.table({"image": encoded, "label": labels}), folder / f"{split}.parquet")


def simulated(place: Path, experiment: Any) -> list[float]:
    from sordino.runs.run import start

    ends: list[float] = []
    start(experiment, place / "loop", lambda progress: ends.append(time.perf_counter()))
    return gaps(ends)


def gaps(ends: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(ends)][WARM - 1 :]


def between(place: Path) -> tuple[list[float], dict[str, float]]:
    from sordino import config
    from sordino.receipts.signature import private_key
    from sordino.sites.serve import ServeOptions, serve
    from sordino.transport.sites import Patience
    from sordino.transport.tls import of_server

    ends: list[float] = []
    used: list[float] = []
    ready: list[float] = []
    options = ServeOptions(
        experiment=config.load(place / "experiment.toml"),
        agreement=place / "agreement.toml",
        folder=place / "run",
        identity=private_key(place / "server"),
        allowed=place / "sites.toml",
        bind=f"localhost:{port()}",
        tls=of_server(place / "certs"),
        patience=Patience(timeout=60.0, minimum=SITES),
        rehearsal=True,
    )

    def hears(event: Any) -> None:
        if event.event == "gathering" and event.count == SITES:
            ready.append(time.perf_counter())

    def played(_: Any) -> None:
        ends.append(time.perf_counter())
        used.append(time.process_time())

    def invited(invitation: Path) -> None:
        stack.enter_context(sites(place, peaks))

    begin, peaks = time.perf_counter(), list[float]()
    with contextlib.ExitStack() as stack:
        serve(options, played, hears, invited)
    facts = {
        "the server's CPU, ms a site and round": 1000 * statistics.median(gaps(used)) / SITES,
        "start-up, s": ready[0] - begin if ready else float("nan"),
        "server and simulator, peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "a site, peak MB": max(peaks),
    }
    return gaps(ends), facts


def port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def sites(place: Path, peaks: list[float]) -> Iterator[None]:
    """Processes of their own, started as their users would start them."""
    started = []
    for k in range(SITES):
        name = f"site-{k}"
        words = ["join", place / "run" / "invitation.toml", "--data", place / f"{name}-data", "--name", name]
        words += ["--identity", place / name, "--certificates", place / "certs" / name, "--out", place / f"{name}-run"]
        command = [sys.executable, "-m", "sordino", *map(str, words), "--rehearsal", "--yes", "-q"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))
    try:
        yield
        for process in started:
            _, status, usage = os.wait4(process.pid, 0)
            assert status == 0, status
            peaks.append(usage.ru_maxrss / 1024)
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                process.kill()


if __name__ == "__main__":
    main()
