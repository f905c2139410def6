"""SlaugFL on ten devices, each a process behind a network of its own: python experiments/slaug_devices/devices.py
IMAGES. Writes table.md beside it.

IMAGES is the folder of MNIST. Ten processes of this machine stand for the devices: each waits as long as its messages
would take on its way, and for its own slowness. What it sends and receives, and the model, must be those of one
process; the program stops where they are not.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sordino import config
from sordino.config import Experiment
from sordino.receipts.folder import RunFolder
from sordino.results import open_run
from sordino.runs import simulation
from sordino.runs.run import start
from sordino.runs.site_process import SlowNetwork
from sordino.transport.message import Arrived, Pipes, Writes, peek

HERE, ROUNDS, DEVICES = Path(__file__).parent, 10, 10
PRESET = HERE.parent / "slaug_small" / "mnist.toml"
SMALLER = (
    "partition.clients=10",
    "cohort.size=2",
    f"rounds={ROUNDS}",
    f"evaluation.every={ROUNDS}",
    "evaluation.final=1",
)
NETWORK: dict[str, list[float]] = {
    "latency_ms": [5, 5, 10, 10, 20, 20, 40, 40, 80, 80],
    "down_mbit": [100, 100, 50, 50, 20, 20, 10, 10, 5, 5],
    "up_mbit": [50, 50, 20, 20, 10, 10, 5, 5, 2, 2],
    "compute": [1, 2, 1, 2, 1, 2, 1, 2, 1, 2],
}
PLAIN = "momentum=0.0, lr=0.1, weight_decay=5e-4, lr_decay=0.998, local_epochs=3, batch_size=32"
METHODS: dict[str, tuple[str, ...]] = {
    "FedAvg": (f'algorithm={{name="fedavg", {PLAIN}}}',),
    "VHL": (f'algorithm={{name="vhl", {PLAIN}, source="random_conv", per_class=50, width=16, noise_batch=32}}',),
    "SlaugFL S1": ("algorithm.momentum=0.0", "algorithm.lr=0.1", "algorithm.gan_epochs=10"),
}


class Metered(Pipes):
    """Counts what each process is sent in rounds and answers, and how long it takes."""

    phases: list[Metered] = []  # noqa: RUF012 (of the run that goes on)

    def __init__(self, commands: Sequence[Sequence[str]]) -> None:
        super().__init__(commands)
        self.messages, self.down, self.up = Counter[str](), Counter[str](), Counter[str]()
        self.seconds: dict[str, float] = dict.fromkeys(self.peers(), 0.0)
        self._asked: dict[int, tuple[str, float]] = {}
        Metered.phases.append(self)

    def send(self, to: str, message: Writes) -> int:
        written, begun = message(), time.monotonic()
        ticket = super().send(to, lambda: written)
        if peek(written).said.get("do") == "round":
            self.messages[to] += 1
            self.down[to] += len(written)
            self._asked[ticket] = (to, begun)
        return ticket

    def came(self, seconds: float) -> Sequence[Arrived]:
        answers = super().came(seconds)
        for answer in answers:
            if (asked := self._asked.pop(answer.ticket, None)) is not None:
                to, begun = asked
                self.up[to] += len(answer.message)
                self.seconds[to] += time.monotonic() - begun
        return answers

    def on_the_way(self, device: int) -> float:
        """Seconds that its messages travel, without what it computes."""
        line, peer = SlowNetwork(**NET.of(device)), str(device)
        assert line.down_mbit is not None
        assert line.up_mbit is not None
        bits = self.down[peer] / line.down_mbit + self.up[peer] / line.up_mbit
        return self.messages[peer] * 2 * line.latency_ms / 1e3 + 8 * bits / 1e6


NET = config.validate({"engine": {"executor": "processes", "network": NETWORK}}).engine.network


@dataclasses.dataclass(frozen=True)
class Measured:
    """One method: a run in ten processes, which trained the model of one process."""

    name: str
    preparation: list[Metered]
    training: Metered
    handed: int  # bytes that every device is handed once, before the training
    accuracy: float
    seconds: float


def experiment(words: tuple[str, ...], images: str, apart: bool) -> Experiment:
    engine = ["engine.executor=processes", f"engine.workers={DEVICES}"] if apart else ["engine.executor=loop"]
    engine += [f"engine.network.{name}={told}" for name, told in NETWORK.items()] if apart else []
    return config.load(PRESET, [*SMALLER, *words, f'data.path="{images}"', *engine])


def measured(name: str, words: tuple[str, ...], images: str) -> Measured:
    with tempfile.TemporaryDirectory() as place:
        start(experiment(words, images, apart=False), Path(place) / "one")
        Metered.phases.clear()
        begun = time.monotonic()
        start(experiment(words, images, apart=True), Path(place) / "ten")
        took = time.monotonic() - begun
        one, ten = RunFolder(Path(place) / "one"), RunFolder(Path(place) / "ten")
        if one.model_file.read_bytes() != ten.model_file.read_bytes():
            raise SystemExit(f"{name}: ten devices trained another model than one process")
        handed = ten.tensors_file.stat().st_size if ten.tensors_file.exists() else 0
        accuracy = open_run(Path(place) / "ten").accuracy
    *before, last = Metered.phases
    assert accuracy is not None
    return Measured(name, list(before), last, handed, accuracy, took)


def total(phases: Sequence[Metered], what: str) -> int:
    return sum(sum(getattr(phase, what).values()) for phase in phases)


def line(cells: Sequence[Any]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def mb(size: float) -> str:
    return f"{size / 1e6:.2f}"


def summary(found: Sequence[Measured]) -> list[str]:
    heads = ["method", "accuracy", "preparation, MB up / down", "handed once, MB", "training, MB up / down"]
    heads += ["in all, beside FedAvg", "the slowest way, s", "the run, s", "the model of one process"]
    lines = [line(heads), line(["---"] * len(heads))]

    def whole(one: Measured) -> int:
        return sum(total([*one.preparation, one.training], way) for way in ("up", "down")) + DEVICES * one.handed

    for one in found:
        every = [*one.preparation, one.training]
        slowest = max(sum(phase.on_the_way(d) for phase in every) for d in range(DEVICES))
        cells = [one.name, f"{one.accuracy:.1%}"]
        cells += [
            f"{mb(total(one.preparation, 'up'))} / {mb(total(one.preparation, 'down'))}",
            mb(DEVICES * one.handed),
        ]
        cells += [f"{mb(total([one.training], 'up'))} / {mb(total([one.training], 'down'))}"]
        cells += [f"{whole(one) / whole(found[0]) - 1:+.1%}", f"{slowest:.1f}", f"{one.seconds:.0f}", "the same bytes"]
        lines.append(line(cells))
    return lines


def each(found: Sequence[Measured]) -> list[str]:
    heads = ["method", "device", "ms, Mbit/s down, up, times slower", "rounds"]
    heads += [
        f"{when}: {what}" for when in ("preparation", "training") for what in ("MB up / down", "s on the way, in all")
    ]
    lines = [line(heads), line(["---"] * len(heads))]
    for one in found:
        for device in range(DEVICES):
            peer, way = str(device), [f"{values[device]:g}" for values in NETWORK.values()]
            cells = [one.name, device, ", ".join(way), one.training.messages[peer]]
            for phases in (one.preparation, [one.training]):
                sent, read = (sum(getattr(phase, what)[peer] for phase in phases) for what in ("up", "down"))
                cells += [f"{mb(sent)} / {mb(read)}"] if sent else ["-"]
                waits = (sum(p.on_the_way(device) for p in phases), sum(p.seconds[peer] for p in phases))
                cells += [f"{waits[0]:.1f}, {waits[1]:.1f}"] if sent else ["-"]
            lines.append(line(cells))
    return lines


def main() -> None:
    (images,) = sys.argv[1:]
    simulation.Pipes = Metered  # type: ignore[attr-defined]
    found = [measured(name, words, images) for name, words in METHODS.items()]
    told = [
        f"MNIST at 16x16 as in `slaug_small`, ten devices, two a round, {ROUNDS} rounds, seed 0. What is asked here is "
        "what travels and how long it takes, so the generator is trained for ten epochs, and VHL draws 50 images of a "
        "class by a small network; longer runs are in `slaug_fair`. Bytes are those of messages, headers included. "
        "Seconds on the way follow from bytes; all other seconds are those of two cores that had other work beside.",
        "\n".join(summary(found)),
        "Each device, over all its messages:",
        "\n".join(each(found)),
    ]
    (HERE / "table.md").write_text("\n\n".join(told) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
