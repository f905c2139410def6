"""Facts of one run for its page and figures, gathered from its folder; and the line charts that both draw: its score
over rounds, bytes and compute, its traffic, and its epsilon.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path

from sordino import config
from sordino.accounting.claims import UNIT, standing
from sordino.accounting.composition import noised
from sordino.accounting.facts import Fact, Number, delta_text, epsilon_text
from sordino.accounting.words import Described, by_phase, described, merged, subject
from sordino.cli.tables import secure
from sordino.ledger.ledger import Entry
from sordino.metrics import HEADLINES, Headline, RoundRow, bytes_text, scaled
from sordino.metrics.evaluation import measured_by
from sordino.metrics.measures import headline, in_front, last_scored, scores, warnings
from sordino.partition.row_numbers import summary, table
from sordino.receipts import Environment, ReceiptBudget, Spending
from sordino.receipts.folder import RunFolder
from sordino.receipts.receipt import opened, some_of, spending
from sordino.report.charts import Axis, Line, LinePoint, Lines, Write, number, percent
from sordino.results import Curve, Points, curve, rounds_after, stops
from sordino.results import preparation_facts as preparation
from sordino.results.findings import AttackResults, TrainedAudit, read_attacks, read_audit
from sordino.results.preparation_facts import Preparation
from sordino.runs.listing import newest
from sordino.runs.population import Population
from sordino.runs.setup import RunSetup
from sordino.runs.simulation import simulated

LISTED = 10_000  # clients that a page shows: of more, so many at even distances


class DrawnCurve(Curve):
    """Epsilon over rounds: one line for all adversaries with the same epsilon. `nominal`: the epsilons that a
    published formula prints, which prove nothing.
    """

    by: str
    nominal: Points | None
    standing: str  # the status, as it is shown


class RunFacts(Fact):
    """Data of one run from which its page and figures are drawn."""

    name: str
    lead: str
    notice: str  # shown on top: it must not be overlooked
    warnings: tuple[str, ...]  # on how the run ended
    guarantees: tuple[Described, ...]
    by_phase: tuple[str, ...]
    delta: Number
    epsilon: tuple[DrawnCurve, ...]
    spent: Spending
    model: str  # the model that is scored
    metrics: tuple[RoundRow, ...]
    before: RoundRow | None  # traffic and compute before round 1
    prepared: Preparation | None
    secure: tuple[tuple[str, str], ...]
    clients: int
    names: tuple[str, ...]  # of the clients; none: they are known by their numbers
    partition: tuple[tuple[int, ...], ...] | None
    heterogeneity: dict[str, Number] | None
    experiment: str  # TOML
    commands: tuple[str, ...]
    environment: Environment
    audit: TrainedAudit | None = None
    attackers: AttackResults | None = None

    def called(self, client: int) -> str:
        """The name of a client, or its number."""
        return self.names[client] if client < len(self.names) else str(client)


HELD_BACK = (
    "This page holds what may be shown of this run. Accuracies, and who holds what, are for its evaluator only "
    "(sordino report --evaluator)."
)
EVALUATOR = "EVALUATOR ONLY"
EVALUATORS = (
    f"{EVALUATOR}: not to be shared. No epsilon covers the scores and the counts of rows on this page; what may be "
    "shown is report.html in the run folder."
)
SIMULATED = (
    "A simulation: the noise came from a seed. The numbers describe what the same run promises with real noise; this "
    "run itself protects nobody."
)
NO_NOISE = "This method draws no noise, so it promises nothing."


def gather(folder: Path, evaluator: bool = False) -> RunFacts:
    """The facts of a run that its page shows. With real noise these are facts that its guarantees allow to be shown,
    and no data are read; for its `evaluator` also scores and counts of rows.
    """
    run = RunFolder(folder)
    newest(run)  # refuses one that does not hold: a page beside it would be taken for its proof
    setup, federation = opened(folder)
    try:
        entries = federation.entries()
    finally:
        federation.ledger.close()
    all_ = evaluator or not federation.policy.real
    spent = spending(folder, LISTED)
    metrics = run.metrics() if all_ else run.public_metrics()
    simulation = simulated(setup.experiment) if all_ else None
    counts, unlike = (None, None) if simulation is None else _counts(simulation.population)
    training = RunSetup(setup.experiment, setup.public, setup.whole.agreed).phases[-1]
    public, known = setup.public, None if simulation is None else simulation.population.sizes
    home, where = None if simulation is None else simulation.home, run.environment
    experiment, notes = setup.experiment, [entry.released for entry in entries]
    examples = sum(known or public.sizes) if known or experiment.privacy.public_sizes else "some"
    candidates, delta = preparation.label_of(experiment), experiment.privacy.delta
    spent_curve = curve(entries, len(public.sizes), delta, where.shares_scores)
    return RunFacts(
        name=experiment.name,
        lead=(
            f"{experiment.algorithm['name']} on {experiment.data.source}: {len(public.sizes)} clients, {examples} "
            f"examples, {setup.coordinates} parameters, {len(metrics)} rounds. {public.note}"
            + (f" Candidates: {candidates}." if candidates else "")
        ),
        notice=(SIMULATED if noised(notes) else NO_NOISE) if spent.simulated else EVALUATORS if all_ else HELD_BACK,
        warnings=tuple(warnings(metrics)),
        guarantees=described(spent.guarantees, spent.simulated),
        by_phase=by_phase(spent.guarantees, spent.phases, spent.simulated),
        delta=delta,
        epsilon=_drawn(spent_curve, _published_epsilons(entries, spent.budget), spent.simulated),
        spent=spent,
        model=measured_by(metrics, setup.algorithm, setup.ways, experiment.evaluation.models),
        metrics=_thin(metrics),
        before=next(iter(in_front(run.prepared())), None),
        prepared=preparation.gather(folder, training, home, rounds=metrics),
        secure=tuple(secure(metrics)),
        clients=len(public.sizes),
        names=public.clients,
        partition=counts,
        heterogeneity=unlike,
        # paths as written in the file: resolved ones would disclose folders of this machine
        experiment=config.load(run.experiment_file).toml(),
        commands=(
            f"sordino run experiment.toml --out {shlex.quote(folder.name)}",
            f"sordino privacy verify {shlex.quote(folder.name)}",
        ),
        environment=where.beside(prepared=Path(where.prepared).name) if where.prepared else where,  # no paths in pages
        audit=read_audit(folder) if all_ else None,
        attackers=read_attacks(folder) if all_ else None,
    )


def _counts(population: Population) -> tuple[tuple[tuple[int, ...], ...], dict[str, Number]]:
    """Counts of labels by client, and measures of how much clients differ."""
    rows, labels = population.shares[0], population.counted
    shown = rows if len(rows) <= LISTED else [rows[k] for k in some_of(len(rows), LISTED)]
    classes = max(population.dataset.classes, 1)
    return tuple(map(tuple, table(labels, shown, classes).tolist())), dict(summary(labels, rows, classes))


def _thin(metrics: Sequence[RoundRow]) -> tuple[RoundRow, ...]:
    """The rounds, with the scores of single clients in the last one that has them: those of every round would not fit
    in a page.
    """
    last = max((i for i, row in enumerate(metrics) if row.clients is not None), default=-1)
    return tuple(
        row if row.clients is None or i == last else row.beside(clients=row.clients.beside(each=None))
        for i, row in enumerate(metrics)
    )


def _drawn(curves: Sequence[Curve], printed: Points, simulated: bool) -> tuple[DrawnCurve, ...]:
    return tuple(
        DrawnCurve(
            **dict(line),
            by=subject(by),
            nominal=printed if line.status == "nominal" and printed else None,
            standing=standing("holds" if line.status == "nominal" else line.status, simulated),
        )
        for line, by in merged(curves)
    )


def _published_epsilons(entries: Sequence[Entry], budget: ReceiptBudget | None) -> Points:
    """Nominal epsilon over rounds, as the published methods count: the budget's epsilon, times the share of it that
    the client which took part most often has spent.
    """
    if budget is None:
        return ()
    points, at, ended = dict[int, float](), stops(len(entries)), rounds_after(entries)
    spent: list[Counter[str]] = [Counter() for _ in budget.granted]
    for t, entry in enumerate(entries, start=1):
        for principal, amount in entry.charges.items():
            for total, part in zip(spent, amount, strict=True):
                total[principal] += part
        if t in at:
            most = zip(spent, budget.granted, strict=True)
            shares = [max(total.values(), default=0) / UNIT / limit for total, limit in most]
            points[ended[t - 1]] = budget.epsilon * max(shares)
    return tuple(points.items())


ROUND = Axis("round")
EPSILON = partial(epsilon_text, digits=4)
SENT = Axis("sent", bytes_text, "MB sent, both directions", 1e6, zero=True)
COMPUTED = Axis(
    "computed",
    lambda flops: scaled(flops, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP")),
    "TFLOP computed by devices",
    1e12,
    zero=True,
)
TRAFFIC = Axis("sent", bytes_text, "MB sent", 1e6, zero=True)


def judged_by(rows: Sequence[RoundRow]) -> Headline:
    """The metric by which the last evaluated round is judged."""
    last = last_scored(rows)
    return HEADLINES[headline([] if last is None else [last])]


def written(judged: Headline) -> Write:
    """Function that writes a score on a page: in per cent, or as a plain number."""
    return percent if judged.percent else number


def score_axis(judged: Headline, paper: str = "") -> Axis:
    unit, most = (0.01, 1.0) if judged.percent else (1.0, math.inf)
    return Axis(f"test {judged.full}", written(judged), paper or judged.axis, unit, most=most)


def score(model: str, rows: Sequence[RoundRow]) -> Lines:
    """The score of each evaluated round, and how it spreads over clients."""
    judged = judged_by(rows)
    scored = scores(rows, judged.name)
    clients = [(row.round, row.clients) for row, _ in scored if row.clients is not None]
    return Lines(
        f"Test {judged.full}",
        "Band: mean over clients ± one standard deviation. Every point is this round's, never the best so far.",
        ROUND,
        score_axis(judged),
        (
            Line(model, [LinePoint(row.round, value) for row, value in scored]),
            Line("mean over clients", [LinePoint(t, of.mean, of.std) for t, of in clients]),
            Line("worst 10% of clients", [LinePoint(t, of.worst_tenth) for t, of in clients]),
        ),
    )


def score_over_bytes(facts: RunFacts) -> Lines | None:
    return _over(facts, SENT, "over bytes sent", "Both directions, as serialised.", _sent)


def score_over_compute(facts: RunFacts) -> Lines | None:
    about = "Of all devices together, counted from public sizes: operations of the network, there and back."
    return _over(facts, COMPUTED, "over device compute", about, lambda row: row.device_flops)


def _over(facts: RunFacts, x: Axis, over: str, about: str, cost: Callable[[RoundRow], float | None]) -> Lines | None:
    """The score against a cost added up over rounds, from the cost of the preparation on; None where a round does not
    report its cost.
    """
    rows, judged = whole(facts), judged_by(facts.metrics)
    spent = [known for row in rows if (known := cost(row)) is not None]
    if last_scored(facts.metrics) is None or len(spent) < len(rows):
        return None
    until = dict(zip((row.round for row in rows), accumulate(spent), strict=True))
    begins = "" if facts.before is None else f" Before round 1: {x.write(spent[0])}."
    spots = [LinePoint(until[row.round], value) for row, value in scores(rows, judged.name)]
    return Lines(f"Test {judged.full} {over}", about + begins, x, score_axis(judged), [Line(facts.model, spots)])


def traffic(rows: Sequence[RoundRow]) -> Lines | None:
    """Bytes added up over rounds; None for a hidden cohort, whose size they would disclose."""
    if not rows or any(_sent(row) is None for row in rows):
        return None
    both = (
        ("down, to clients", [row.bytes_down or 0 for row in rows]),
        ("up, from clients", [row.bytes_up or 0 for row in rows]),
    )
    return Lines(
        "Traffic",
        "Bytes as serialised, added up over rounds and clients.",
        ROUND,
        TRAFFIC,
        [
            Line(label, [LinePoint(row.round, total) for row, total in zip(rows, accumulate(sizes), strict=True)])
            for label, sizes in both
        ],
    )


def epsilons(facts: RunFacts) -> list[Lines]:
    """Charts of epsilon over rounds: of the proved one and, separately, of the one that a published formula gives,
    which proves nothing."""
    y = Axis("epsilon", EPSILON, f"ε at δ = {delta_text(facts.delta)}", zero=True)
    holds = Lines(
        "Epsilon that holds, over rounds",
        f"At delta {delta_text(facts.delta)}, for the client that spent most; one line per unit, change and adversary.",
        ROUND,
        y,
        [
            Line(
                f"one {of.unit} ({of.neighbours}), against {of.by}: {of.standing}",
                [LinePoint(*point) for point in of.points],
            )
            for of in facts.epsilon
        ],
    )
    nominal = [
        Line(f"one {of.unit} ({of.neighbours}), against {of.by} (nominal)", [LinePoint(*point) for point in of.nominal])
        for of in facts.epsilon
        if of.nominal
    ]
    about = "The publication's own count of epsilon. It proves nothing: read the other chart."
    nominal_lines = Lines("What the published formula gives", about, ROUND, y, nominal, unproved=True)
    return [*([holds] if facts.epsilon else []), *([nominal_lines] if nominal else [])]


def whole(facts: RunFacts) -> list[RoundRow]:
    """All rounds; the preparation, if any, comes first as a round 0."""
    return [*([] if facts.before is None else [facts.before]), *facts.metrics]


def _sent(row: RoundRow) -> float | None:
    return None if row.bytes_down is None or row.bytes_up is None else row.bytes
