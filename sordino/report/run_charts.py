"""Line charts of one run: its score over rounds, bytes and compute, its traffic, and its epsilon. The page of a run and
the figures for papers draw the same charts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate

from sordino.metrics.measures import headline, last_scored, scores
from sordino.metrics.rows import HEADLINES, Headline, RoundRow, bytes_text, scaled
from sordino.report.charts import Axis, Line, LinePoint, Lines, Write, number, percent
from sordino.report.run_facts import RunFacts

ROUND = Axis("round")
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
    y = Axis("epsilon", number, f"ε at δ = {facts.delta:g}", zero=True)
    holds = Lines(
        "Epsilon that holds, over rounds",
        f"At delta {facts.delta:.3g}, for the client that spent most; one line per unit and adversary.",
        ROUND,
        y,
        [
            Line(f"one {of.unit}, against {of.by}: {of.standing}", [LinePoint(*point) for point in of.points])
            for of in facts.epsilon
        ],
    )
    nominal = [
        Line(f"one {of.unit}, against {of.by} (nominal)", [LinePoint(*point) for point in of.nominal])
        for of in facts.epsilon
        if of.nominal
    ]
    about = "The publication's own count of epsilon. It proves nothing: read the other chart."
    said = Lines("What the published formula gives", about, ROUND, y, nominal, unproved=True)
    return [*([holds] if facts.epsilon else []), *([said] if nominal else [])]


def whole(facts: RunFacts) -> list[RoundRow]:
    """All rounds; the preparation, if any, comes first as a round 0."""
    return [*([] if facts.before is None else [facts.before]), *facts.metrics]


def _sent(row: RoundRow) -> float | None:
    return None if row.bytes_down is None or row.bytes_up is None else row.bytes
