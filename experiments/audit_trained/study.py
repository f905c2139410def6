"""How often `sordino audit --trained` refutes runs whose noise is as claimed, and runs whose noise is too small.

    python experiments/audit_trained/study.py [--sound 100] [--seeds 10] [--rows examples clients]

Every audit has canaries, coins and noise of its own. It writes results.json and table.md beside itself: rows that are
not asked for stay as they are. With 100 sound runs the rows of examples take eight minutes each on one core, those of
clients fifteen. For one audit in words: `sordino audit --trained`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import NamedTuple

from sordino import config, keys
from sordino.accounting.statement import Guarantee
from sordino.audits.trained import CANARIES, WRONG, judged, placed, scores, strongest
from sordino.planning.planner import Planner
from sordino.runs.simulation import Simulation, settle, simulated

ONE_STEP = ["algorithm.local_steps=1", "algorithm.batch_size=full"]
ROWS = {
    "examples": ["rounds=40"],
    "examples, epsilon 2": ["rounds=40", "privacy.epsilon=2"],
    "clients": ["algorithm=whole_update", "rounds=5", *ONE_STEP],
    "clients, noise at the server": ["algorithm=dp_prox", "cohort={name='poisson',rate=1.0}", "rounds=5", *ONE_STEP],
}
WEAK = (1.5, 2.0, 3.0)
HEADS = ("row", "promise", "canaries", "sound, refuted", "noise / 1.5", "noise / 2", "noise / 3", "CPU s for each")
RESULTS = Path(__file__).with_name("results.json")


class Refuted(NamedTuple):
    often: int
    of: int
    seconds: float  # of the processor, for each


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sound", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    asked = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in asked.rows:
        simulation = simulated(settle(config.load(None, ROWS[name])))
        promise = strongest([row for row in Planner(simulation.setup).guarantees if row.finite])[0]
        sound = refuted(simulation, promise, 1.0, range(1000, 1000 + asked.sound))
        twins = [refuted(simulation, promise, weak, range(asked.seeds)) for weak in WEAK]
        canaries = placed(simulation, promise, CANARIES, keys.root(0))
        assert canaries is not None
        held = f"{promise.unit}, {promise.neighbours}, {promise.adversary}"
        results[name] = [
            f"{held}: epsilon {promise.epsilon:.3g} at {promise.delta:g}, {promise.status} (simulation)",
            f"{len(canaries.owners) * canaries.replays} in {canaries.replays}",
            *(f"{one.often} of {one.of}" for one in (sound, *twins)),
            f"{twins[-1].seconds:.1f}",
        ]
        print(results[name], flush=True)
        RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    lines = [f"| {' | '.join(HEADS)} |", f"|{'---|' * len(HEADS)}"]
    lines += [f"| {' | '.join([name, *results[name]])} |" for name in ROWS if name in results]
    RESULTS.with_name("table.md").write_text(PAGE.format(wrong=WRONG, table="\n".join(lines)))


def refuted(simulation: Simulation, promise: Guarantee, weak: float, seeds: range) -> Refuted:
    """How many audits refute the promise, behind noise that is so many times too small."""
    often, begun = 0, time.process_time()
    for seed in seeds:
        canaries = placed(simulation, promise, CANARIES, keys.fold(keys.root(seed), "study"))
        assert canaries is not None
        often += judged(promise, *scores(canaries, weak)).refutes(promise.epsilon)
    return Refuted(often, len(seeds), (time.process_time() - begun) / max(1, len(seeds)))


PAGE = """# How often the audit of what was trained is right

Digits, 20 clients, logistic regression. Each row is a promise of a whole run; every audit plays the run again with
canaries in it (how many, and in how many replays). A sound run is refuted with probability {wrong:g} at most. The
broken twins have noise that is so many times too small behind the same claim.

{table}

Written by `python experiments/audit_trained/study.py`.
"""


if __name__ == "__main__":
    main()
