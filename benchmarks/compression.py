"""What compressing an update costs, against the local training that made it, and what is sent: python
benchmarks/compression.py [--repeats 9] [--vgg].

Time: the CNN of 797,962 parameters, 25 steps of two batches of 50 random images, one thread; encoding at the client and
rebuilding at the server, turns taken; medians of CPU seconds. Traffic: 300 rounds of one client that takes part in
each, counted on messages as they are written, without their envelopes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from sordino import tree  # noqa: E402
from sordino.algorithms import all_algorithms  # noqa: E402
from sordino.algorithms.algorithm import Algorithm  # noqa: E402
from sordino.engine import wire  # noqa: E402
from sordino.engine.executor import decide  # noqa: E402
from sordino.privacy.noise.sources import Counter  # noqa: E402
from sordino.privacy.readers.open import Open  # noqa: E402
from sordino.tasks.nets import NETS  # noqa: E402
from sordino.tasks.supervised import Classification  # noqa: E402
from sordino.types import Bound, Examples, Grant  # noqa: E402

KINDS: dict[str, dict[str, Any]] = {
    "block sums, r = 0.3": {"variant": "no_noise", "rate": 0.3},
    "block sums, r = 0.5": {"variant": "no_noise", "rate": 0.5},
    "block sums, r = 0.3, published noise": {"variant": "published", "rate": 0.3},
    "block sums, r = 0.3, clipped layers, local noise": {"variant": "local_client", "rate": 0.3, "multiplier": 1.0},
    "Gaussian blocks, r = 0.3": {"variant": "no_noise", "matrix": "gaussian", "rate": 0.3},
    "Gaussian blocks, r = 0.3, dct_ista": {
        "variant": "no_noise",
        "matrix": "gaussian",
        "rate": 0.3,
        "reconstruct": "dct_ista",
    },
}
PUBLISHED = {
    "cnn_wide": {1.0: 0.8918, 0.5: 0.4459, 0.4: 0.3567, 0.3: 0.2675},
    "vgg16": {0.5: 75.0468, 0.4: 60.0375, 0.3: 45.0281},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--vgg", action="store_true", help="the traffic of VGG16 too: takes 2 GB of memory")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    costs(asked.repeats)
    traffic(["cnn_wide", "vgg16"] if asked.vgg else ["cnn_wide"])


def costs(repeats: int) -> None:
    precision = torch.bfloat16 if decide("loop", "auto", False)[1] == "bf16" else torch.float32
    task = Classification(
        NETS["cnn_wide"]((3, 32, 32), 10),
        name="cnn_wide",
        shape=(32, 32, 3),
        mean=(0.5,) * 3,
        std=(0.25,) * 3,
        image=True,
        precision=precision,
        augment="crop_flip",
    )
    drawn = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (500, 32, 32, 3), generator=drawn, dtype=torch.uint8)
    examples, grant = Examples(x, torch.arange(500) % 3), Grant(0, 500, 500, Counter(1), 1.0)
    trained = all_algorithms()["pfl_dyn"]()
    assert isinstance(trained, Algorithm)  # it has one phase
    down, state = trained.broadcast(trained.init(task, 1)), trained.init_client(task)

    def train() -> Any:
        return trained.local(task, down, state, Open().open(examples, grant, task), 7)[0]

    upload, ways = train(), {name: all_algorithms()["cuag_pfl"](**given).uplink for name, given in KINDS.items()}

    def through(uplink: Any) -> Callable[[], Any]:
        def both() -> Any:
            sent = uplink.encode(upload, grant)
            return tree.map(torch.clone, uplink._decode(tree.map(torch.Tensor.double, sent), upload))

        return both

    sides = [train, *map(through, ways.values())]
    for side in sides:
        side()
    taken = [[_seconds(side) for side in sides] for _ in range(repeats)]
    training, *rest = (statistics.median(column) for column in zip(*taken, strict=True))
    print(f"local training ({str(precision).removeprefix('torch.')}): {training:.3f} s\n")
    print("| encode and rebuild | s | of the training |\n| :-- | --: | --: |")
    for name, each in zip(ways, rest, strict=True):
        print(f"| {name} | {each:.4f} | {each / training:.2%} |", flush=True)


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def traffic(models: list[str]) -> None:
    print("\n| model | kept | numbers per round | GiB in 300 rounds | published |\n| :-- | --: | --: | --: | --: |")
    for name in models:
        net = NETS[name]((3, 32, 32), 10)
        upload = {name: p.detach() for name, p in net.named_parameters()}
        for rate, published in PUBLISHED[name].items():
            uplink = all_algorithms()["cuag_pfl"](variant="no_noise", rate=rate).uplink
            sent = uplink.client[0].encode(upload, Bound(), Grant(0, 1, 1, Counter(1)))
            fields, header = wire.schema(sent), wire.Header("traffic", "00" * 32, 0, 0, "up")
            size = wire.payload_bytes(fields)
            assert len(wire.encode(header, sent)) == wire.size(header, fields)  # what is counted is what is written
            print(f"| {name} | {rate} | {size // 4} | {300 * size / 2**30:.4f} | {published} |", flush=True)


if __name__ == "__main__":
    main()
