"""The app of the server. What makes it private stands between the two lines."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from quick.task import Net

PLACE = Path(os.environ["QUICK_PLACE"])
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(fraction_evaluate=0.0)
    if context.run_config["private"] == "server":
        # --------------------------------------------------------------------------------------------------------------
        from sordino.adapters.flower import PrivateStrategy

        strategy = PrivateStrategy(
            strategy, PLACE / "server", Net().state_dict(), epsilon=12.0, delta=1e-5, clip=1.0, rounds=2, clients=2
        )
        # --------------------------------------------------------------------------------------------------------------

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
        if number == 1 and context.run_config["kill"] == "server":
            os.kill(os.getpid(), signal.SIGKILL)
        return None

    start = ArrayRecord(Net().state_dict())
    result = strategy.start(grid, start, num_rounds=2, timeout=40, evaluate_fn=evaluate)
    told = {
        "moved": any((a.numpy() != start[name].numpy()).any() for name, a in result.arrays.items()),
        "metrics": sorted({key for record in result.train_metrics_clientapp.values() for key in record}),
    }
    (PLACE / "result.json").write_text(json.dumps(told))
