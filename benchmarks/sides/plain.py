"""The loop a user of PyTorch writes: one model, a loop over clients, one optimiser each, weights averaged."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from benchmarks.meter import Meter
from benchmarks.workloads import floats, network


def main() -> None:
    meter = Meter()
    w, net = meter.w, network(meter.w)
    x, y = floats(meter.data.x), meter.data.y
    turn = iter(range(10**9))

    def step() -> None:
        start = {name: value.clone() for name, value in net.state_dict().items()}
        total = {name: torch.zeros_like(value) for name, value in start.items()}
        cohort = w.cohort_of(next(turn))
        for client in cohort:
            net.load_state_dict(start)
            optimiser = torch.optim.SGD(net.parameters(), lr=w.lr)
            mine_x, mine_y = x[w.rows(client)], y[w.rows(client)]
            for rows in w.batches(len(mine_y)):
                optimiser.zero_grad()
                F.cross_entropy(net(mine_x[rows]), mine_y[rows]).backward()
                optimiser.step()
            for name, value in net.state_dict().items():
                total[name] += value * w.share(client, cohort)
        net.load_state_dict(total)

    meter.drive(step, lambda: list(net.parameters()), f"torch {torch.__version__}")


if __name__ == "__main__":
    main()
