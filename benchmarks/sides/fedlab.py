"""FedLab: its serial trainer and its synchronous server, as in its standalone pipeline.

Importing it imports torchvision, of which nothing is used here; where that does not fit the torch at hand, an empty
stand-in takes its place.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import version
from unittest.mock import MagicMock

from torch import Tensor

from benchmarks.meter import Meter
from benchmarks.workloads import floats, network


def main() -> None:
    meter = Meter()
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        sys.modules |= {f"torchvision{part}": MagicMock() for part in ("", ".datasets", ".transforms", ".models")}
    from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
    from fedlab.contrib.algorithm.basic_server import SyncServerHandler

    w = meter.w
    x, y = floats(meter.data.x), meter.data.y

    class Shards:
        def get_dataloader(self, client: int, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
            mine_x, mine_y = x[w.rows(client)], y[w.rows(client)]
            return ((mine_x[rows], mine_y[rows]) for rows in w.batches(len(mine_y)))

    trainer = SGDSerialClientTrainer(network(w), w.clients)
    trainer.setup_dataset(Shards())
    trainer.setup_optim(epochs=1, batch_size=w.batch, lr=w.lr)
    server = SyncServerHandler(network(w), global_round=10**9, sample_ratio=w.cohort / w.clients)
    server.num_clients = w.clients
    turn = iter(range(10**9))

    def step() -> None:
        trainer.local_process(server.downlink_package, w.cohort_of(next(turn)))
        for upload in trainer.uplink_package:
            server.load(upload)

    meter.drive(step, lambda: list(server.model.parameters()), f"fedlab {version('fedlab')}")


if __name__ == "__main__":
    main()
