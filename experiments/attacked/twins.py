"""How little missing noise an audit notices: python experiments/attacked/twins.py MNIST_FOLDER. Writes twins.md.

The methods of attack.py with a proved claim that an audit can attack, in a run of one round, which may
spend the whole budget. Its gates are attacked as they are, and with a tenth and with a thirty-third less noise behind
the same claim. Rows that lie in twins.json are not measured again.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from attack import METHODS

from sordino import config
from sordino.audits.gates import audit
from sordino.errors import SordinoError
from sordino.runs.simulation import settle

HERE = Path(__file__).parent
RESULTS = HERE / "twins.json"
TENTH, THIRD = 1 - 1 / 1.1, 1 - 1 / 1.03  # noise / 1.1 and noise / 1.03
# the classic formula holds below epsilon 1 only, and what is found of Laplace noise grows little above 2
OTHER = {"gaussian_simple": ["rounds=10"], "laplace": ["rounds=1", "privacy={epsilon=2.0,delta=1e-5}"]}
DRAWS = {TENTH: 10**5, THIRD: 10**6}
ONE_BY_ONE = ("fedavg, privunit", "cuag_pfl, local_sample")  # these make one draw a call
HEADS = (
    "method",
    "one round: claimed, and lost at least",
    "noise / 1.1, 10^5 draws",
    "noise / 1.03, 10^6 draws",
    "s",
)


def main() -> None:
    images = Path(sys.argv[1])
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name, words in METHODS.items():
        if name not in results and name not in ONE_BY_ONE:
            results[name] = measured([*words, *OTHER.get(name, ["rounds=1"]), f"data.path={images}"])
            RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            print(name, results[name], flush=True)
    lines = [f"| {' | '.join(HEADS)} |", f"|{'---|' * len(HEADS)}"]
    for name in METHODS:
        for subject in results.get(name, {}).get("subjects", []):
            told = [subject["sound"], *(subject[str(draws)] for draws in DRAWS.values())]
            lines.append(f"| {' | '.join([name, *told, str(results[name]['seconds'])])} |")
    (HERE / "twins.md").write_text(PAGE.format(table="\n".join(lines)), encoding="utf-8")


def measured(words: list[str]) -> dict[str, Any]:
    """Each proved claim: what was found of it, and of its twins."""
    begun = time.process_time()
    try:
        experiment = settle(config.load(HERE / "mnist.toml", words))
        sound = [one for one in audit(experiment, DRAWS[TENTH]).subjects if one.status != "nominal" and one.attack]
    except SordinoError as error:
        return {"why": error.what, "subjects": []}
    subjects: list[dict[str, str]] = []
    for one in sound:
        there = f"{one.claimed_there:.3g}, {one.at_least:.3g} at {one.at_delta:g}, {one.verdict}"
        subjects.append({"of": f"{one.unit}, {one.neighbours}", "sound": f"{one.unit}: {there}"})
    for short, draws in DRAWS.items() if sound else ():
        twins = audit(experiment, draws, twin=True, short=short).subjects
        for subject in subjects:
            (twin,) = (one for one in twins if f"{one.unit}, {one.neighbours}" == subject["of"])
            subject[str(draws)] = f"{twin.at_least:.3g} at {twin.at_delta:g}, {twin.verdict}"
    return {"subjects": subjects, "seconds": round(time.process_time() - begun)}


PAGE = """# How little missing noise an audit notices

The methods of [table.md](table.md) with a proved claim that an audit can attack, in a run whose only
round may spend the whole budget of epsilon 8 at delta 1e-5 (of Laplace noise 2; in `gaussian_simple`, whose
formula holds below 1 only, a tenth of 8). **holds**: the claim was not refuted, with 10^5 draws of either side.
**caught**: a twin with so much less noise behind the same claim was refuted, with 10^5 draws at noise / 1.1 and 10^6 at
noise / 1.03; **escaped**: it was not. Bounds are wrong with probability 1e-4 at most. PrivUnit and `local_sample` make
one draw a call and are left out.

{table}

Written by `python experiments/attacked/twins.py`.
"""


if __name__ == "__main__":
    main()
