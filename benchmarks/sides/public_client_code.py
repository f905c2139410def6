"""Noise at every client as public research code writes it: a loop over the examples, a backward pass for each, clip,
add up, add noise.
"""

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
    clip = w.clip
    assert clip is not None

    def train(mine_x: torch.Tensor, mine_y: torch.Tensor) -> None:
        optimiser = torch.optim.SGD(net.parameters(), lr=w.lr)
        for _ in range(w.steps):
            total = [torch.zeros_like(p) for p in net.parameters()]
            for i in range(len(mine_y)):
                optimiser.zero_grad()
                F.cross_entropy(net(mine_x[i : i + 1]), mine_y[i : i + 1]).backward()
                torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
                for s, p in zip(total, net.parameters(), strict=True):
                    assert p.grad is not None
                    s += p.grad
            for s, p in zip(total, net.parameters(), strict=True):
                p.grad = (s + w.noise * torch.randn_like(s)) / len(mine_y)
            optimiser.step()

    def step() -> None:
        start = {name: value.clone() for name, value in net.state_dict().items()}
        mean = {name: torch.zeros_like(value) for name, value in start.items()}
        for client in w.cohort_of(next(turn)):
            net.load_state_dict(start)
            train(x[w.rows(client)], y[w.rows(client)])
            for name, value in net.state_dict().items():
                mean[name] += value / w.cohort
        net.load_state_dict(mean)

    meter.drive(step, lambda: list(net.parameters()), f"torch {torch.__version__}")


if __name__ == "__main__":
    main()
