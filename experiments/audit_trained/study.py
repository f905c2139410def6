"""How near `sordino audit --trained` comes to the truth, how often it refutes sound runs, and what noise it misses.

    python experiments/audit_trained/study.py [--seeds 10] [--rows examples clients]

Every audit has canaries, coins and noise of its own. Sound audits are also redrawn a thousand times from the law of a
replay: coins, samples and noise anew, without training. It writes results.json and table.md beside itself: rows that
are not asked for stay as they are. For one audit in words: `sordino audit --trained`.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import NamedTuple

import torch

from sordino import config, keys
from sordino.accounting.statement import Guarantee
from sordino.audits.canary_replays import ScoredCanaries, placed, scores
from sordino.audits.trained import WRONG, NoiseRead, judged, strongest
from sordino.planning.planner import Planner
from sordino.results.findings import ReplayedCanaries
from sordino.runs.simulation import Simulation, settle, simulated

ONE_STEP = ["algorithm.local_steps=1", "algorithm.batch_size=full"]
FEDERATION = ["data={source='synthetic',clients=1000,largest=60}", "partition={scheme='natural'}"]
AT_2, AT_8 = ([f"privacy={{epsilon={epsilon},delta=1e-5}}"] for epsilon in (2.0, 8.0))
UPDATES = ["algorithm=whole_update", "rounds=5", *ONE_STEP]
CENTRAL = ["algorithm=dp_prox", "cohort={name='poisson',rate=1.0}", "rounds=5", *ONE_STEP]


class Row(NamedTuple):
    words: list[str]
    canaries: int = 1000


ROWS = {
    "one release": Row(["algorithm=gaussian_gdp", "rounds=1", "algorithm.local_steps=1", *AT_8], 10_000),
    "examples": Row(["rounds=40", *AT_8]),
    "examples, epsilon 2": Row(["rounds=40", *AT_2]),
    "clients": Row([*FEDERATION, *UPDATES, *AT_8], 600),
    "clients, epsilon 2": Row([*FEDERATION, *UPDATES, *AT_2], 600),
    "clients, noise at the server": Row([*FEDERATION, *CENTRAL, *AT_8], 600),
    "clients, noise at the server, epsilon 2": Row([*FEDERATION, *CENTRAL, *AT_2], 600),
}
WEAK = (1.1, 1.25)
REDRAWN = 1000
HEADS = (
    "row",
    "promise",
    "canaries",
    "at least, median",
    "sound, refuted",
    "redrawn, refuted",
    *(f"noise / {weak:g}" for weak in WEAK),
    "CPU s for each",
)
RESULTS = Path(__file__).with_name("results.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    asked = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in asked.rows:
        results[name] = measured(ROWS[name], asked.seeds)
        print(name, results[name], flush=True)
        RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    lines = [f"| {' | '.join(HEADS)} |", f"|{'---|' * len(HEADS)}"]
    lines += [f"| {' | '.join([name, *results[name]])} |" for name in ROWS if name in results]
    RESULTS.with_name("table.md").write_text(PAGE.format(wrong=WRONG, many=REDRAWN, table="\n".join(lines)))


def measured(row: Row, seeds: int) -> list[str]:
    simulation = simulated(settle(config.load(None, row.words)))
    promise = strongest([row for row in Planner(simulation.setup).guarantees if row.finite])[0]
    begun = time.process_time()
    told = [played(simulation, promise, row.canaries, 1.0, 1000 + seed) for seed in range(seeds)]
    sound = [judged(promise, one) for one in told]
    seconds = (time.process_time() - begun) / seeds
    again = [judged(promise, redrawn(promise, told[0], seed)) for seed in range(REDRAWN)]
    twins = [
        [judged(promise, played(simulation, promise, row.canaries, weak, seed)) for seed in range(seeds)]
        for weak in WEAK
    ]
    canaries = placed(simulation, promise.subject, row.canaries, keys.root(0))
    held = f"{promise.unit}, {promise.neighbours}, {promise.adversary}"
    middle = sorted(one.at_least for one in sound)[seeds // 2]
    return [
        f"{held}: epsilon {promise.epsilon:.3g} at {promise.delta:g}, {promise.status} (simulation)",
        f"{len(canaries.owners) * canaries.replays} in {canaries.replays}",
        f"{middle:.3g} ({middle / promise.epsilon:.0%})",
        *(refuted(promise, found) for found in (sound, again, *twins)),
        f"{seconds:.1f}",
    ]


def played(simulation: Simulation, promise: Guarantee, wanted: int, weak: float, seed: int) -> ScoredCanaries:
    """Scores behind noise that is `weak` times too small."""
    canaries = placed(simulation, promise.subject, wanted, keys.fold(keys.root(seed), "study"))
    return scores(canaries, weak)


def refuted(promise: Guarantee, found: list[ReplayedCanaries]) -> str:
    return f"{sum(one.refutes(promise.epsilon) for one in found)} of {len(found)}"


def redrawn(promise: Guarantee, told: ScoredCanaries, seed: int, weak: float = 1.0) -> ScoredCanaries:
    """Scores of as many canaries: coins, samples and noise anew, from the law of the promise. `weak`: factor by which
    the noise is too small.
    """
    assert promise.event is not None
    reads, many = NoiseRead.of(promise.event, promise.neighbours), len(told.scores)
    random = torch.Generator().manual_seed(seed)
    there = torch.rand(many, generator=random) < 0.5
    worth = [one.times * (one.rate / one.noise.noise_multiplier) ** 2 for one in reads]
    drawn = torch.zeros(many).double()
    for one, share in zip(reads, worth, strict=True):  # how often each canary was drawn, over how often is expected
        often = torch.rand(one.times, many, generator=random).lt(one.rate).double().mean(0) / one.rate
        drawn += share / math.fsum(worth) * often
    noise = torch.randn(many, generator=random).double() / math.sqrt(math.fsum(worth)) / weak
    drawn_again = there * drawn + noise * (told.weight.max() / told.weight).sqrt()
    return told._replace(scores=drawn_again, there=there)


PAGE = """# How near an audit of what was trained comes to the truth, and how often it is wrong

Examples: digits, 20 clients, logistic regression. Clients: 1,000 synthetic devices, of which 600 are canaries. Each row
is a promise of a whole run; every audit plays the run again with canaries in it (how many, and in how many replays).
**At least**: the lower bound on epsilon, and its share of the claim. A sound run is refuted with probability {wrong:g}
at most; **redrawn**: {many} sound audits, whose scores were drawn from the law of a replay. The broken twins have noise
that is so many times too small behind the same claim.

{table}

Written by `python experiments/audit_trained/study.py`.
"""


if __name__ == "__main__":
    main()
