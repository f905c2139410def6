"""A thousand canaries in a hundred rounds, for the promises of several methods; five seeds where a replay is quick.

    python experiments/audit_trained/many.py MNIST_FOLDER

It writes many.md beside itself. Rows that lie in many.json are not measured again.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from sordino import config, keys
from sordino.accounting.statement import Guarantee
from sordino.attacks.member_inference import ALARMS, hits_at
from sordino.audits.trained import WRONG, judged, placed, scores, strongest
from sordino.planning.planner import Planner
from sordino.runs.simulation import Simulation, settle, simulated

HERE = Path(__file__).parent
RESULTS = HERE / "many.json"
WEAK = (1.1, 1.25, 1.5, 2.0, 3.0)
SHARES = [
    "cohort=everyone",
    'uplink=[{name="clip",radius=0.5},{name="noise_share",survivors=14,neighbours="zero_out"},"secagg"]',
]
ONE_STEP = ["algorithm.local_steps=1", "algorithm.batch_size=full"]
AT_8 = "privacy={epsilon=8.0,delta=1e-5}"


class Asked(NamedTuple):
    words: list[str]
    canaries: int
    seeds: int
    rows: int  # of MNIST
    clients: int


ROWS = {
    "gaussian_gdp": Asked(["rounds=100", "algorithm=gaussian_gdp", AT_8], 1000, 5, 4000, 20),
    "gaussian_sampled": Asked(
        ["rounds=100", "algorithm=gaussian_sampled", "algorithm.rate=0.2", AT_8], 1000, 5, 4000, 20
    ),
    "whole_update": Asked(["rounds=100", "algorithm=whole_update", *ONE_STEP, AT_8], 1000, 1, 20000, 2000),
    "fedavg, noise in shares, masked": Asked(
        ["rounds=10", "algorithm=fedavg", *ONE_STEP, *SHARES, AT_8], 200, 1, 1000, 20
    ),
}
HEADS = (
    "method",
    "promise",
    "canaries, rounds",
    "seeds",
    "at least, largest",
    "by coins alone, largest",
    "refuted",
    "found at 1%",
    "at 0.1%",
    "allowed",
    "caught: noise /",
    "CPU s a replay",
)


def main() -> None:
    images = Path(sys.argv[1])
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name, asked in ROWS.items():
        if name not in results:
            results[name] = measured(asked, images)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            print(name, results[name], flush=True)
    lines = [f"| {' | '.join(HEADS)} |", f"|{'---|' * len(HEADS)}"]
    lines += [f"| {' | '.join([name, *results[name]])} |" for name in ROWS]
    (HERE / "many.md").write_text(PAGE.format(wrong=WRONG, table="\n".join(lines)), encoding="utf-8")


def measured(asked: Asked, images: Path) -> list[str]:
    data = f"data={{source='images',path='{images}',standardise='fixed',train={asked.rows},test=1000}}"
    held = f"partition={{scheme='iid',clients={asked.clients}}}"
    simulation = simulated(settle(config.load(None, [data, held, "model.name=logistic", *asked.words])))
    promise = strongest([row for row in Planner(simulation.setup).guarantees if row.finite])[0]
    begun = time.process_time()
    sound = [played(simulation, promise, asked.canaries, 1.0, 1000 + seed) for seed in range(asked.seeds)]
    seconds = (time.process_time() - begun) / asked.seeds
    caught = (weak for weak in WEAK if played(simulation, promise, asked.canaries, weak, 0)["refuted"])
    most = [min(1.0, math.exp(promise.epsilon) * alarms + promise.delta) for alarms in ALARMS]
    rounds = simulation.setup.rounds
    return [
        f"{promise.unit}, {promise.neighbours}, {promise.adversary}: epsilon {promise.epsilon:.3g} at "
        f"{promise.delta:g}, {promise.status} (simulation)",
        f"{sound[0]['canaries']}, {rounds}",
        str(asked.seeds),
        "{at_least:.3g} at {at_delta:g} ({claimed_there:.3g} is claimed)".format(
            **max(sound, key=lambda one: one["at_least"] / one["claimed_there"])
        ),
        f"{max(one['by_coins'] for one in sound):.3g}",
        f"{sum(one['refuted'] for one in sound)} of {asked.seeds}",
        *(f"{max(one['hits'][i] for one in sound):.1%}" for i in range(len(ALARMS))),
        ", ".join(f"{one:.0%}" for one in most),
        f"{next(caught, 'none')}",
        f"{seconds:.0f}",
    ]


def played(simulation: Simulation, promise: Guarantee, wanted: int, weak: float, seed: int) -> dict[str, Any]:
    canaries = placed(simulation, promise, wanted, keys.fold(keys.root(seed), "many"))
    assert canaries is not None
    assert not canaries.unfit(), canaries.unfit()
    told, there = scores(canaries, weak)
    found = judged(promise, told, there)
    return {
        "canaries": found.canaries,
        "at_least": found.at_least,
        "at_delta": found.at_delta,
        "claimed_there": found.claimed_there,
        "by_coins": found.at_least_by_coins,
        "refuted": found.refutes(promise.epsilon),
        "hits": [hits_at(told[there], told[~there], alarms) for alarms in ALARMS],
    }


PAGE = """# A thousand canaries, a hundred rounds

MNIST, a logistic model. Every second row of a client (20 clients of 200 rows), or every second one of 2,000 clients,
is a canary in every round: a thousand canaries are 100,000 observations. In the last row 20 clients add noise in
shares behind the masks of secure aggregation, and 200 canaries come from 20 replays. A true promise is refuted with
probability {wrong:g} at most. **found at 1%**, **at 0.1%**: canaries told from absent ones at so many false alarms,
the largest of all seeds; **allowed**: the most that the promise allows there. **caught**: the first broken twin of
noise / 1.1, 1.25, 1.5, 2 and 3 that is refuted.

{table}

Written by `python experiments/audit_trained/many.py`.
"""


if __name__ == "__main__":
    main()
