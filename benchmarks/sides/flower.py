"""Flower: an app as its PyTorch quickstart has it, on its Ray simulation, one thread for each of as many actors as
there are cores.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.meter import Meter
from benchmarks.workloads import Workload, data, floats, network


@cache
def loaded(w: Workload) -> tuple[Any, Tensor, Tensor]:
    """Once in every actor."""
    torch.set_num_threads(1)
    held = data(w)
    return network(w), floats(held.x), held.y


def train(w: Workload, arrays: dict[str, Tensor], client: int) -> dict[str, Tensor]:
    net, x, y = loaded(w)
    net.load_state_dict(arrays)
    optimiser = torch.optim.SGD(net.parameters(), lr=w.lr)
    mine_x, mine_y = x[w.rows(client)], y[w.rows(client)]
    for rows in w.batches(len(mine_y)):
        optimiser.zero_grad()
        F.cross_entropy(net(mine_x[rows]), mine_y[rows]).backward()
        optimiser.step()
    return dict(net.state_dict())


def main() -> None:
    os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0", OMP_NUM_THREADS="1")
    os.environ["PYTHONPATH"] = os.getcwd()  # for the actors
    meter = Meter()
    import flwr
    import ray
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    meter.leaving(ray.shutdown)
    w = meter.w
    spoken, client_app, server_app = asdict(w), ClientApp(), ServerApp()

    @client_app.train()
    def _train(message: Message, context: Context) -> Message:
        from benchmarks.sides.flower import train
        from benchmarks.workloads import Workload

        mine, client = Workload(**spoken), int(context.node_config["partition-id"])
        new = train(mine, message.content["arrays"].to_torch_state_dict(), client)
        content = {
            "arrays": ArrayRecord(new),
            "metrics": MetricRecord({"num-examples": mine.rows(client).stop - mine.rows(client).start}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    @server_app.main()
    def _serve(grid: Grid, context: Context) -> None:
        def pause(t: int, arrays: ArrayRecord) -> None:
            if t > 0:
                meter.ended(lambda: list(arrays.to_torch_state_dict().values()), f"flwr {flwr.__version__}")

        strategy = FedAvg(fraction_train=w.cohort / w.clients, fraction_evaluate=0.0)
        strategy.start(grid, ArrayRecord(network(w).state_dict()), num_rounds=10_000, evaluate_fn=pause)

    backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"include_dashboard": False}}
    run_simulation(server_app, client_app, num_supernodes=w.clients, backend_config=backend)
    sys.exit("Flower ended before it was told to")


if __name__ == "__main__":
    main()
