"""Noise at every client with Opacus: per-example gradients by hooks, its optimiser clips and adds noise. One model,
wrapped once.
"""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F

from benchmarks.meter import Meter
from benchmarks.workloads import floats, network


def main() -> None:
    warnings.filterwarnings("ignore", message="Full backward hook")  # the images need no gradient
    meter = Meter()
    import opacus  # after what memory is measured against
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    w = meter.w
    clip = w.clip
    assert clip is not None
    net = GradSampleModule(network(w))
    x, y = floats(meter.data.x), meter.data.y
    turn = iter(range(10**9))

    def step() -> None:
        start = {name: value.clone() for name, value in net.state_dict().items()}
        mean = {name: torch.zeros_like(value) for name, value in start.items()}
        for client in w.cohort_of(next(turn)):
            net.load_state_dict(start)
            optimiser = DPOptimizer(
                torch.optim.SGD(net.parameters(), lr=w.lr),
                noise_multiplier=w.noise / clip,
                max_grad_norm=clip,
                expected_batch_size=w.examples,
            )
            for _ in range(w.steps):
                optimiser.zero_grad()
                F.cross_entropy(net(x[w.rows(client)]), y[w.rows(client)]).backward()
                optimiser.step()
            optimiser.zero_grad()
            for name, value in net.state_dict().items():
                mean[name] += value / w.cohort
        net.load_state_dict(mean)

    meter.drive(step, lambda: list(net.parameters()), f"opacus {opacus.__version__}")


if __name__ == "__main__":
    main()
