"""Two or four of 20 clients send something false, and the server adds up in different ways. Three seeds.

Run python experiments/robust/attack.py: it writes table.md beside it, in half an hour on one core. Sums that lie in
results.json are not measured again.
"""

from __future__ import annotations

import json
import statistics
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sordino import config
from sordino.attacks.attacked_run import AttackedRun, AttackSettings
from sordino.attacks.methods.malicious_clients import (
    Backdoor,
    LabelFlip,
    ModelReplacement,
    Poisoning,
    Scaling,
    SignFlip,
    accuracy,
)
from sordino.runs.simulation import simulated

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
CLIENTS = 20
SEEDS = (0, 1, 2)
ATTACKS: tuple[Poisoning, ...] = (SignFlip(), Scaling(), LabelFlip(), ModelReplacement(), Backdoor())
DEALT: dict[str, Any] = {"scheme": "iid", "clients": CLIENTS}
UNEQUAL: dict[str, Any] = {"scheme": "dirichlet", "clients": CLIENTS, "alpha": 1.0}
SETTINGS: dict[str, tuple[int, dict[str, Any]]] = {  # how many attack, and who holds what
    "2 of 20 attack, rows dealt at random": (2, DEALT),
    "4 of 20 attack, rows dealt at random": (4, DEALT),
    "4 of 20 attack, classes dealt by Dirichlet 1.0": (4, UNEQUAL),
}
HEADS = (
    "sum",
    "nobody attacks",
    *(attack.called() for attack in ATTACKS),
    "below plain",
    "below itself",
    "trigger obeyed",
)


def sums(f: int) -> dict[str, list[dict[str, Any]]]:
    """The ways to add up, for so many attackers."""
    median, trimmed, nnm, krum, bound = (
        {"name": name, "f": f} for name in ("median", "trimmed_mean", "nnm", "krum", "norm_bound")
    )
    return {
        "plain": [],
        "median": [median],
        "trimmed_mean": [trimmed],
        "krum": [krum],
        "krum, keep = 8": [{**krum, "keep": 8}],
        "nnm, median": [nnm, median],
        "nnm, trimmed_mean": [nnm, trimmed],
        "norm_bound": [bound],
    }


def figures(server: list[dict[str, Any]], f: int, partition: dict[str, Any], seed: int) -> list[float]:
    """Accuracy in %: without attackers, and under each attack; then how often the trigger is obeyed."""
    table = tomllib.loads((HERE / "digits.toml").read_text(encoding="utf-8")) | {"seed": seed, "partition": partition}
    table["uplink"] = {"client": [], "server": server}
    run = AttackedRun(simulated(config.validate(table)), AttackSettings(attackers=f / CLIENTS))
    models = [run.undisturbed[0], *(run.poisoned(attack.lies(run), plain=False) for attack in ATTACKS)]
    return [*(accuracy(run, model) for model in models), Backdoor().obeyed(run, models[-1])]


def row(name: str, found: Sequence[Sequence[float]], clean: float) -> list[str]:
    cells = [f"{statistics.fmean(each):.1f} ± {statistics.stdev(each):.1f}" for each in zip(*found, strict=True)]
    means = [round(statistics.fmean(each), 1) for each in zip(*found, strict=True)]
    worst = min(means[1:-1])
    return [name, *cells[:-1], f"{round(clean, 1) - worst:.1f}", f"{means[0] - worst:.1f}", cells[-1]]


def measured() -> dict[str, dict[str, list[list[float]]]]:
    """The figures of each setting and sum, one list a seed."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for called, (f, partition) in SETTINGS.items():
        here = results.setdefault(called, {})
        for name, server in sums(f).items():
            if name not in here:
                here[name] = [[round(one, 3) for one in figures(server, f, partition, seed)] for seed in SEEDS]
                RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
                print(called, name, here[name], flush=True)
    return results


def main() -> None:
    text = ""
    for called, found in measured().items():
        clean = statistics.fmean(one[0] for one in found["plain"])
        lines = [list(HEADS), ["---"] * len(HEADS), *(row(name, each, clean) for name, each in found.items())]
        text += f"## {called}\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n\n"
    said = (
        "Accuracies and triggers in %, mean ± standard deviation over seeds 0, 1 and 2. In points, under the worst "
        "attack: what is lost below the plain sum that nobody attacks, and below the same sum that nobody attacks.\n"
    )
    (HERE / "table.md").write_text(text + said, encoding="utf-8")


if __name__ == "__main__":
    main()
