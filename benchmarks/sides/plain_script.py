"""The script that a user of PyTorch writes for `benchmarks/whole_runs.py`: the plain loop, evaluated and saved.

Arguments: the file with the data, where to save, rounds, threads.
"""

from __future__ import annotations

import json
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

EVERY = 10
COHORT = 100


def main() -> None:
    file, out, rounds, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    held = load_file(file)
    x, y, test_x, test_y = images(held["x"]), held["y"], images(held["test_x"]), held["test_y"]
    ends = [0, *held["sizes"].cumsum(0).tolist()]
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))
    scores: list[float] = []
    for t in range(1, rounds + 1):
        one_round(net, x, y, ends)
        if t % EVERY == 0 or t == rounds:
            with torch.no_grad():
                scores.append(float((net(test_x).argmax(1) == test_y).float().mean()))
        save_file(net.state_dict(), f"{out}.safetensors")
    with open(f"{out}.json", "w") as found:
        json.dump(scores, found)


def one_round(net: nn.Module, x: Tensor, y: Tensor, ends: list[int]) -> None:
    start = {name: value.clone() for name, value in net.state_dict().items()}
    total = {name: torch.zeros_like(value) for name, value in start.items()}
    cohort = [int(k) for k in torch.randperm(len(ends) - 1)[:COHORT]]
    everybody = sum(ends[k + 1] - ends[k] for k in cohort)
    for k in cohort:
        mine_x, mine_y = x[ends[k] : ends[k + 1]], y[ends[k] : ends[k + 1]]
        net.load_state_dict(start)
        optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
        for rows in torch.randperm(len(mine_y)).split(10):
            optimiser.zero_grad()
            F.cross_entropy(net(mine_x[rows]), mine_y[rows]).backward()
            optimiser.step()
        for name, value in net.state_dict().items():
            total[name] += value * (len(mine_y) / everybody)
    net.load_state_dict(total)


def images(x: Tensor) -> Tensor:
    return x.reshape(len(x), 784).to(torch.float32).div_(127.5).sub_(1)


if __name__ == "__main__":
    main()
