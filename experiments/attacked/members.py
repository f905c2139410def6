"""Who was trained on: python experiments/attacked/members.py MNIST_FOLDER. Writes members.md beside it.

1,000 members and 1,000 others are told apart by their losses under the released model, and by comparing those with 64
shadow models (LiRA). The same method without its protection stands beside it. Three seeds: of the run, of the members,
and of the shadows. Rows that lie in members.json are not measured again.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from sordino import config
from sordino.accounting.facts import epsilon_text
from sordino.attacks.attack import assault
from sordino.attacks.attacked_run import AttackSettings
from sordino.results.findings import AttackFinding
from sordino.runs.simulation import settle

HERE = Path(__file__).parent
RESULTS = HERE / "members.json"
SEEDS = (0, 1, 2)
SHADOWS = 64
ATTACKS = ("loss_threshold", "lira")
# a thousand images of which a network learns more by heart than it should
SETTING = ["data.train=1000", "algorithm.local_epochs=5", "algorithm.batch_size=10", "algorithm.lr=0.1"]
AT_8 = ["privacy={epsilon=8.0,delta=1e-5}"]
METHODS = {
    "fedavg": ["algorithm=fedavg", "privacy={}"],
    "whole_update": ["algorithm=whole_update", *AT_8],
    "dp_fedavg": ["algorithm=dp_fedavg", "cohort={name='poisson',rate=0.5}", *AT_8],
    "noisy_steps": ["algorithm=noisy_steps", "algorithm.batch_size=100", *AT_8],
}
HEADS = (
    "method",
    "attack",
    "area",
    "found at 1%",
    "at 0.1%",
    "area without protection",
    "at 1%",
    "at 0.1%",
    "bound",
)


def main() -> None:
    images = Path(sys.argv[1])
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for seed in SEEDS:
        for name, words in METHODS.items():
            for attack in ATTACKS:
                row = f"{name}, {attack}, seed {seed}"
                if row not in results:
                    results[row] = measured([*SETTING, *words, f"seed={seed}", f"data.path={images}"], attack, seed)
                    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
                    print(row, results[row], flush=True)
    write(results)


def measured(words: list[str], attack: str, seed: int) -> dict[str, Any]:
    begun = time.process_time()
    experiment = settle(config.load(HERE / "mnist.toml", words))
    (found,) = assault(experiment, names=[attack], asked=AttackSettings(shadows=SHADOWS, seed=seed)).found
    return told(found) | {"seconds": round(time.process_time() - begun)}


def told(found: AttackFinding) -> dict[str, Any]:
    area, one, tenth = found.measured
    bound = found.roc.bound if found.roc else None
    row: dict[str, Any] = {
        name: [round(each.value, 4), None if each.control is None else round(each.control, 4)]
        for name, each in {"area": area, "at 1%": one, "at 0.1%": tenth}.items()
    }
    return row | {"verdict": found.verdict, "bound": bound.model_dump(mode="json") if bound else {}}


def write(results: dict[str, Any]) -> None:
    lines = [f"| {' | '.join(HEADS)} |", f"|{'---|' * len(HEADS)}"]
    for name in METHODS:
        for attack in ATTACKS:
            rows = [results[f"{name}, {attack}, seed {seed}"] for seed in SEEDS]
            lines.append(f"| {' | '.join([name, attack, *cells(rows), bounds(rows[0]['bound'])])} |")
    (HERE / "members.md").write_text(PAGE.format(shadows=SHADOWS, table="\n".join(lines)), encoding="utf-8")


def cells(rows: list[dict[str, Any]]) -> list[str]:
    found = []
    for side in (0, 1):
        for name, form in (("area", "{:.3f} ± {:.3f}"), ("at 1%", "{:.1%} ± {:.1%}"), ("at 0.1%", "{:.1%} ± {:.1%}")):
            values = [row[name][side] for row in rows]
            found.append(form.format(statistics.fmean(values), statistics.stdev(values)))
    return found


def bounds(held: dict[str, Any]) -> str:
    """The most that a promise of an example allows to be found, at 1% and at 0.1% false alarms."""
    if not held or held["epsilon"] in (None, "inf"):
        return "none"
    epsilon, delta = float(held["epsilon"]), float(held["delta"])
    most = [min(1.0, 2.718281828459045**epsilon * alarms + delta) for alarms in (0.01, 0.001)]
    return f"{most[0]:.0%}, {most[1]:.0%} (epsilon {epsilon_text(epsilon)}, delta {delta:g}, {held['status']})"


PAGE = """# Who was trained on

MNIST, 1,000 images over 10 clients, an MLP with 64 hidden units, 20 rounds of 5 local epochs. Asked about are these
1,000 members and 1,000 test images. `loss_threshold` takes a low loss for a member; `lira` compares the loss with
those of {shadows} shadow models, each of which is the whole run, trained on a random half of the rows. A budget is
epsilon 8 at delta 1e-5. Mean ± standard deviation over three seeds. **bound**: the most that the promise about one
example allows to be found at 1% and at 0.1% false alarms; a promise about a client covers its examples.

{table}

Written by `python experiments/attacked/members.py`.
"""


if __name__ == "__main__":
    main()
