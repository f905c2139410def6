"""Methods, attacked: python experiments/attacked/attack.py MNIST_FOLDER. Writes table.md beside it.

Four attackers try each row: an audit of what one round loses; somebody who draws images from one client's update in
round 1, in which that client holds one image; somebody who asks of such an update, a thousand times, whether an image
of the attacker's choice was in it; and somebody who tells members by their loss under the released model. The same
method without its protection stands beside it, as the control. Rows that lie in results.json are not measured again.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from sordino import config
from sordino.accounting.facts import epsilon_text
from sordino.accounting.statement import Guarantee
from sordino.attacks.attack import assault
from sordino.attacks.attacked_run import AttackSettings
from sordino.audits.gates import NOTHING, audit
from sordino.errors import SordinoError
from sordino.planning.planner import Planner
from sordino.results.findings import AttackFinding
from sordino.runs.simulation import settle, simulated

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from reproduce import commit  # noqa: E402

RESULTS = HERE / "results.json"
TRIALS = 100_000  # draws of either side of each audit
# so many are needed to say more than the 10 that udp prints; the others make one draw a call
OTHERS = {
    "udp": 2_000_000,
    "fedavg, privunit": 5_000,
    "cuag_pfl, local_sample": 5_000,
    "prifedsync, step_level": 20_000,
}
ASKED = AttackSettings(images=1, victims=2, trials=1000)
FEWER = ASKED._replace(trials=100)  # without noise every release is the same
PICTURES = ("analytic", "inverting_gradients")
FULL = ["algorithm.local_steps=10", "algorithm.batch_size=full"]
FEW = ["algorithm.local_steps=10", "algorithm.batch_size=10"]
OPEN = ["privacy={}"]
AT_8 = ["privacy={epsilon=8.0,delta=1e-5}"]
SAMPLED = ["algorithm.rate=0.2", *AT_8]
POISSON = ["cohort={name='poisson',rate=0.5}", *AT_8]
ACTIVE = ["algorithm.local_steps=10", "algorithm.batch_size=8"]  # episodes: a support and a query of two classes
ANSWERS = [*FEW, *OPEN]
GROUPS = ["privacy={epsilon={groups={'8'=0.5,'16'=0.5}},delta=1e-5}"]
CANDIDATES = [
    "candidates={source='sklearn_digits',per_class=20}",
    "algorithm.gan_epochs=2",
    "algorithm.match_updates=10",
    *AT_8,
]
METHODS: dict[str, list[str]] = {
    "fedavg": ["algorithm=fedavg", *FEW, *OPEN],
    "fedavgm": ["algorithm=fedopt", "algorithm.server_optimizer=momentum", "algorithm.server_lr=1", *FEW, *OPEN],
    "fedprox": ["algorithm=fedprox", "algorithm.mu=0.1", *FEW, *OPEN],
    "scaffold": ["algorithm=scaffold", *FEW, *OPEN],
    "moon": ["algorithm=moon", *FEW, *OPEN],
    "ditto": ["algorithm=ditto", *FEW, *OPEN],
    "pfl_dyn": ["algorithm=pfl_dyn", *ACTIVE, *OPEN],
    "secagg_fl": ["algorithm=secagg_fl", *FEW, *OPEN],
    "laplace": ["algorithm=laplace", *AT_8],
    "gaussian_simple": ["algorithm=gaussian_simple", *AT_8],
    "gaussian_gdp": ["algorithm=gaussian_gdp", *AT_8],
    "gaussian_sampled": ["algorithm=gaussian_sampled", *SAMPLED],
    "gaussian_sampled, published": ["algorithm=gaussian_sampled", "algorithm.variant=published", *SAMPLED],
    "dp_sgd": ["algorithm=dp_sgd", *SAMPLED],
    "noisy_steps": ["algorithm=noisy_steps", *FULL, *AT_8],
    "convex_stable": ["algorithm=convex_stable", "model={name='logistic',radius=4.0}", *AT_8],
    "whole_update": ["algorithm=whole_update", *FEW, *AT_8],
    "fedavg, privunit": ["algorithm=fedavg", "uplink=[{name='clip',radius=1.0},'privunit']", *FEW, *AT_8],
    "dp_fedavg": ["algorithm=dp_fedavg", *FEW, *POISSON],
    "dp_prox": ["algorithm=dp_prox", *FEW, *POISSON],
    "dp_prox, published": ["algorithm=dp_prox", "algorithm.variant=published", "cohort={name='random',size=5}", *AT_8],
    "pdp_prox, local": ["algorithm=pdp_prox", "algorithm.mechanism=local", *FEW, *AT_8],
    "pdp_prox, bounds": ["algorithm=pdp_prox", "algorithm.mechanism=bounds", *FEW, *AT_8],
    "pdp_prox, rates": [
        "algorithm=pdp_prox",
        "algorithm.mechanism=rates",
        "cohort={name='by_budget',size=5}",
        *FEW,
        *GROUPS,
    ],
    "pdp_prox, threshold": ["algorithm=pdp_prox", "algorithm.mechanism=threshold", "cohort=threshold", *FEW, *GROUPS],
    "pdp_prox, published": [
        "algorithm=pdp_prox",
        "algorithm.mechanism=published",
        "cohort=threshold_published",
        *FEW,
        *GROUPS,
    ],
    "dp_scaffold": ["algorithm=dp_scaffold", "algorithm.local_steps=10", "algorithm.rate=0.2", *AT_8],
    "dp_scaffold, published": ["algorithm=dp_scaffold", "algorithm.variant=published", *FEW, *OPEN],
    "udp": ["algorithm=udp", *FEW, *OPEN],
    "prifedsync": ["algorithm=prifedsync", *ACTIVE, *OPEN],
    "prifedsync, step_level": ["algorithm=prifedsync", "algorithm.level=step_level", *ACTIVE, *OPEN],
    "cuag_pfl, published": ["algorithm=cuag_pfl", "algorithm.variant=published", *ACTIVE, *OPEN],
    "cuag_pfl, local_client": ["algorithm=cuag_pfl", "algorithm.variant=local_client", *ACTIVE, *AT_8],
    "cuag_pfl, local_sample": ["algorithm=cuag_pfl", "algorithm.variant=local_sample", *ACTIVE, *AT_8],
    "cuag_pfl, central_client": ["algorithm=cuag_pfl", "algorithm.variant=central_client", *ACTIVE, *POISSON],
    "ldp_fl": ["algorithm=ldp_fl", *ANSWERS],
    "ldp_fl, image": ["algorithm=ldp_fl", "algorithm.per=image", *ANSWERS],
    "lc_fl, published": ["algorithm=lc_fl", "algorithm.variant=published", *ANSWERS],
    "lc_fl, rigorous": ["algorithm=lc_fl", "algorithm.variant=rigorous", *FEW, *POISSON],
    "cdp_fl": ["algorithm=cdp_fl", *ANSWERS],
    "cdp_fl, rigorous": ["algorithm=cdp_fl", "algorithm.variant=rigorous", *FEW, *POISSON],
    "slaug_fl, rigorous_a": ["algorithm=slaug_fl", "algorithm.variant=rigorous_a", *CANDIDATES],
    "slaug_fl, rigorous_b": ["algorithm=slaug_fl", "algorithm.variant=rigorous_b", *CANDIDATES],
}
HEADS = (
    "method",
    "promise of the run",
    "one round: claimed, and lost at least",
    "PSNR",
    "without protection",
    "guess",
    "SSIM",
    "without protection",
    "found at 0.1%",
    "at 1%",
    "without protection",
    "members by loss",
    "without protection",
    "s",
    "commit",
)


def main() -> None:
    images = Path(sys.argv[1])
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in METHODS:
        if name not in results:
            results[name] = measured(name, images)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
            print(name, results[name], flush=True)
    write(results)


def measured(name: str, images: Path) -> dict[str, Any]:
    begun = time.process_time()
    experiment = settle(config.load(HERE / "mnist.toml", [*METHODS[name], f"data.path={images}"]))
    promise = promised(experiment)
    row: dict[str, Any] = {"promise": facts(promise), "one_round": one_round(experiment, OTHERS.get(name, TRIALS))}
    asked = ASKED if math.isfinite(promise.epsilon) or promise.status == "nominal" else FEWER
    for attack in (*PICTURES, "canary", "loss_threshold"):
        by = promise.adversary if attack in PICTURES else None
        try:
            (found,) = assault(experiment, names=[attack], asked=asked, by=by).found
            row[attack] = told(found)
        except SordinoError as error:
            row[attack] = {"verdict": "not tried", "why": error.what}
    return row | {"seconds": round(time.process_time() - begun), "commit": commit()}


def promised(experiment: config.Experiment) -> Guarantee:
    """The strongest finite row against the strongest adversary, else one with a printed number that proves nothing."""
    simulation = simulated(experiment)
    rows = Planner(simulation.setup).guarantees
    order = [(unit, by) for unit in ("client", "example", "image") for by in ("server", "participants", "public")]
    by = {(row.unit, row.adversary): row for row in rows}
    kept = [by[key] for key in order if key in by]
    finite = [row for row in kept if math.isfinite(row.epsilon)]
    return (finite or [row for row in kept if row.status == "nominal"] or kept)[0]


def facts(row: Guarantee) -> dict[str, Any]:
    return {
        "of": f"{row.unit}, {row.neighbours}, {row.adversary}",
        "epsilon": row.epsilon if math.isfinite(row.epsilon) else None,
        "delta": row.delta,
        "status": row.status,
        "nominal": row.nominal_epsilon,
    }


def one_round(experiment: config.Experiment, trials: int) -> list[Any]:
    """Each claim that was pressed: its unit, what it says, what was found, the verdict; or why there is none."""
    try:
        found = audit(experiment, trials=trials)
    except SordinoError as error:
        return [error.what]
    if not found.subjects:
        return [found.verdict]
    return [
        [one.unit, one.claimed_there, one.at_least, one.at_delta, one.verdict if one.attack else "not attacked"]
        for one in found.subjects
    ]


def told(finding: AttackFinding) -> dict[str, Any]:
    each = [[float(one.value), float(one.baseline), one.control] for one in finding.measured]
    return {"verdict": finding.verdict, "why": finding.why, "figures": each}


# the table ------------------------------------------------------------------------------------------------------------


def write(results: dict[str, Any]) -> None:
    lines = [line(name, results[name]) for name in METHODS if name in results]
    reasons: dict[str, list[str]] = {}
    for name in METHODS:
        row = results.get(name, {})
        attacks = [attack for attack in ("analytic", "canary", "loss_threshold") if attack in row]
        for attack in attacks:
            if row[attack]["verdict"] == "not tried":
                reasons.setdefault(f"`{attack}`: {row[attack]['why']}", []).append(name)
    why = [f"- {reason}: {', '.join(names)}." for reason, names in reasons.items()]
    table = ["| " + " | ".join(HEADS) + " |", "|" + "---|" * len(HEADS), *lines]
    (HERE / "table.md").write_text(
        PAGE.format(table="\n".join(table), why="\n".join(why), trials=TRIALS, done=len(lines), all=len(METHODS))
    )


def line(name: str, row: dict[str, Any]) -> str:
    promise = row["promise"]
    said = "none" if promise["epsilon"] is None else epsilon_text(promise["epsilon"])
    said += f" ({promise['of']}, delta {promise['delta']:g}, {promise['status']})"
    said += f"; prints {epsilon_text(promise['nominal'])}" if promise["nominal"] is not None else ""
    drawn = max((row[one] for one in PICTURES), key=lambda one: figures(one)[0][0])
    canary, members = figures(row["canary"]), figures(row["loss_threshold"])
    psnr, ssim, found, free = figures(drawn), figures(drawn), canary, canary
    cells = [
        name,
        said,
        "; ".join(map(pressed, row["one_round"])),
        *(shown(psnr[0][k], "{:.1f}") for k in (0, 2, 1)),
        *(shown(ssim[1][k], "{:.2f}") for k in (0, 2)),
        *(shown(found[k][0], "{:.1%}") for k in (2, 1)),
        shown(free[1][2], "{:.1%}"),
        *(shown(members[0][k], "{:.2f}") for k in (0, 2)),
        str(row["seconds"]),
        str(row["commit"]),
    ]
    return "| " + " | ".join(cells) + " |"


def figures(told: dict[str, Any]) -> list[list[float]]:
    """Value, guess and control of each figure; no number where nothing was tried."""
    nothing = [math.nan] * 3
    found = [[math.nan if one is None else one for one in each] for each in told.get("figures", [])]
    return [*found, *[nothing] * 3][: max(3, len(found))]


def shown(value: float, form: str) -> str:
    return "-" if math.isnan(value) else form.format(value)


def pressed(claim: Any) -> str:
    """What an audit found of one claim."""
    if isinstance(claim, str):
        return claim
    unit, claimed, least, delta, verdict = claim
    if verdict == NOTHING:
        word = "refuted" if least > claimed else NOTHING
        return f"{unit}: prints {claimed:.3g}, {max(0.0, least):.3g} at {delta:.2g}, {word}"
    if verdict == "not attacked":
        return f"{unit}: {claimed:.3g}, {verdict}"
    return f"{unit}: {claimed:.3g}, {max(0.0, least):.3g} at {delta:.2g}, {verdict}"


PAGE = """# Every method, attacked

MNIST, 200 images over 10 clients, an MLP with 64 hidden units, 20 rounds with ten local steps where a method has them.
A budget is epsilon 8 at delta 1e-5. Written by `python experiments/attacked/attack.py`: {done} of {all} methods.

- **promise of the run**: epsilon of the whole run, its unit, neighbours and adversary, delta and status. What it
  *prints* is a number of its source that proves nothing.
- **one round**: epsilon that is claimed for one round, the lower bound that an audit found with {trials:,} draws
  of either side (2,000,000 for udp, 20,000 for `step_level`, 5,000 for PrivUnit and for `local_sample`), and the
  verdict. *refuted*: more is lost than the source prints. *holds*: this audit did not beat the claim; how much missing
  noise it would have noticed stands in [twins.md](twins.md), for a larger claim. *not attacked*: no worst case is known
  for this reader.
- **PSNR**, **SSIM**: an image, drawn from the update of a client that holds only this image; the better of `analytic`
  and `inverting_gradients`, mean of two clients. The attacker is the one whom the promise names, else the server. A
  guess is the mean of other images. 100 dB: the image itself.
- **found at 0.1%**, **at 1%**: how often `canary` finds an image of its choice in one such update, at so many false
  alarms; and the same at 1% without protection. The server looks, which a promise to `participants` does not cover.
- **members by loss**: area under the curve of `loss_threshold` for the released model; 0.5 is chance, and with 200
  members up to 0.56 is.

{table}

A dash: not tried. Why:

{why}
"""


if __name__ == "__main__":
    main()
