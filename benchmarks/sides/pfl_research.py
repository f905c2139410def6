"""pfl-research: its FederatedAveraging on its SimulatedBackend, one process."""

from __future__ import annotations

from importlib.metadata import version
from itertools import cycle
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.meter import Meter
from benchmarks.workloads import floats, network


def main() -> None:
    meter = Meter()
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    w, net = meter.w, network(meter.w)
    x, y = floats(meter.data.x), meter.data.y

    class Shuffled(Dataset):
        def iter(self, batch_size: int | None) -> Any:
            mine_x, mine_y = self.raw_data
            return ([mine_x[rows], mine_y[rows]] for rows in w.batches(len(mine_y)))

    class Pause(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            meter.ended(lambda: list(net.parameters()), f"pfl {version('pfl')}")
            return False, Metrics()

    def loss(x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> torch.Tensor:
        return F.cross_entropy(net(x), y)

    def metrics(x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> Any:
        return {"loss": Weighted(loss(x, y).item() * len(y), len(y))}

    vars(net).update(loss=loss, metrics=metrics)  # which that framework calls
    turns = cycle(range(w.clients))
    users = FederatedDataset(lambda k: Shuffled([x[w.rows(k)], y[w.rows(k)]], user_id=str(k)), lambda: next(turns))
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(10_000, evaluation_frequency=100_000, train_cohort_size=w.cohort, val_cohort_size=0),
        SimulatedBackend(users, users),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=w.lr, local_batch_size=w.batch),
        callbacks=[Pause()],
    )


if __name__ == "__main__":
    main()
