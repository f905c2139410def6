"""Costs of an adapter beside the round that it protects: python benchmarks/adapters.py [--repeats 5].

Two clients, 7 million parameters, one local epoch of 1,000 examples in batches of 32, on the processor, one thread. A
round is two local trainings; the adapter's part is what a mod or a filter does at each client (compare, clip, noise,
books, receipt), or what a strategy does at the server for both. No adapter costs less than one draw of noise alone. Two
networks: a perceptron, whose epoch is as short as 7 million parameters allow, and a convolutional network. Medians of
CPU seconds, turns taken.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import nn  # noqa: E402

from sordino.adapters.private_uplink import (  # noqa: E402
    DeclaredArrays,
    PrivateUplink,
    UplinkTerms,
)
from sordino.privacy.noise import GaussianNoise  # noqa: E402
from sordino.privacy.noise.sources import SystemNoise  # noqa: E402

CLIENTS, EXAMPLES, BATCH = 2, 1_000, 32


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3072, 1800), nn.ReLU(), nn.Linear(1800, 800), nn.ReLU(), nn.Linear(800, 10)
    )


def convolutions() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 64), (64, 128), (128, 256), (256, 512), (512, 1024)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(8, after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 700), nn.ReLU(), nn.Linear(700, 10))


def epoch(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    optimiser = torch.optim.SGD(net.parameters(), 0.01)
    for rows in torch.randperm(len(x)).split(BATCH):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimiser.step()


def seconds(what: Callable[[], object]) -> float:
    start = time.process_time()
    what()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = torch.randn(EXAMPLES, 3, 32, 32), torch.randint(10, (EXAMPLES,))
    for made in (perceptron, convolutions):
        measure(made, x, y, asked.repeats)


def measure(made: Callable[[], nn.Module], x: torch.Tensor, y: torch.Tensor, repeats: int) -> None:
    net = made()
    state = {name: value.numpy().copy() for name, value in net.state_dict().items()}
    declared = DeclaredArrays(state)
    training, client, server, noise = list[float](), list[float](), list[float](), list[float]()
    flat = torch.zeros(declared.coordinates)
    with tempfile.TemporaryDirectory() as place:
        # epsilon 1: what real noise lacks of the ideal law grows by e^epsilon, and counts for each parameter
        terms = UplinkTerms(epsilon=1.0, delta=1e-5, clip=1.0, rounds=repeats)

        def at_a_client() -> None:
            uplink = PrivateUplink(f"{place}/client", declared.coordinates, terms, "client")
            uplink.check_left()
            after = {name: value.numpy() for name, value in net.state_dict().items()}
            declared.moved(state, uplink.of_client(declared.change(state, after)))

        def at_the_server() -> None:
            after = {name: value.numpy() for name, value in net.state_dict().items()}
            uplink.check_left()
            uploads = (declared.change(state, after) for _ in range(CLIENTS))
            declared.moved(state, uplink.of_server(uploads, declared.zero, CLIENTS))

        uplink = PrivateUplink(f"{place}/server", declared.coordinates, terms._replace(clients=CLIENTS), "server")
        for _ in range(repeats):
            training.append(seconds(lambda: epoch(net, x, y)))
            client.append(seconds(at_a_client))
            server.append(seconds(at_the_server))
            noise.append(seconds(lambda: SystemNoise().noisy(GaussianNoise(), flat, 1.0)))
    one, local, central, least = map(statistics.median, (training, client, server, noise))
    print(f"{made.__name__}, {declared.coordinates:,} parameters: an epoch takes {one:.2f} s")
    print(f"  at each client {local:.3f} s, {local / one:.1%} of a round")
    print(f"  at the server {central:.3f} s, {central / (CLIENTS * one):.1%} of the round of both")
    print(f"  noise alone {least:.3f} s")


if __name__ == "__main__":
    main()
