"""Measures for tables of runs, from the metrics of one run or of several. None of them takes a run's best round. And
the cost of a preparation (the phases before the training): bytes of its messages, as measured and by the publication's
formula, expressed in rounds of plain training; and the rounds that it saves on the way to a target score.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from sordino.accounting.facts import Fact, Number
from sordino.ledger.books import PUBLIC_TENSORS, TRAINING, Way
from sordino.metrics import HEADLINES, Metric, RoundLine, RoundRow

if TYPE_CHECKING:
    from sordino.types import Formula


Metrics = Sequence[RoundRow]
Measure = Callable[[Metrics], float | None]


def headline(run: Metrics) -> Metric:
    """The name of the headline metric of a run."""
    return next((found[0].name for row in reversed(run) if (found := row.headline) is not None), "loss")


def scores(run: Metrics, metric: Metric | None = None) -> list[tuple[RoundRow, float]]:
    """The evaluated rounds, each with its score in this metric, by default the headline metric."""
    metric = headline(run) if metric is None else metric
    found = [(row, getattr(row, metric)) for row in run]
    return [(row, score) for row, score in found if score is not None]


def last_scored(run: Metrics) -> RoundRow | None:
    return next((row for row in reversed(run) if row.loss is not None), None)


DIVERGED = 10.0  # times the lowest test loss of the run, or a loss that no answer at random has
AT_RANDOM = 20.0  # of a classifier: it gives the truth a chance of exp(-20) on average


def warnings(run: Metrics) -> list[str]:
    """Warnings on how a run ended: no better than a constant prediction, or diverged."""
    last, found = last_scored(run), list[str]()
    if last is None or last.loss is None or last.headline is None:
        return found
    judged, value = last.headline
    if (constant := last.constant) is not None and not (value != constant and judged.reaches(value, constant)):
        found.append(
            f"test {judged.in_words(value)} is no better than a constant answer ({judged.constant}: "
            f"{judged.shown(constant)})"
        )
    lowest, at = min((row.loss, row.round) for row in run if row.loss is not None)
    if not last.loss <= DIVERGED * lowest:
        found.append(f"test loss {last.loss:.4g}, after {lowest:.4g} in round {at}: the training has diverged")
    elif last.majority is not None and last.loss > AT_RANDOM:
        found.append(f"test loss {last.loss:.4g}, and an answer at random has less: the training has diverged")
    return found


def final(run: Metrics, metric: Metric | None = None) -> float | None:
    return next((score for _, score in reversed(scores(run, metric))), None)


def last_ten(run: Metrics) -> float | None:
    found = [score for _, score in scores(run)[-10:]]
    return statistics.fmean(found) if found else None


def worst_tenth(run: Metrics) -> float | None:
    return next((row.clients.worst_tenth for row, _ in reversed(scores(run)) if row.clients is not None), None)


def at_round(wanted: int) -> Measure:
    """Measure: the score of the last evaluation at or before a round."""
    return lambda run: next((score for row, score in reversed(scores(run)) if row.round <= wanted), None)


def at_bytes(budget: float) -> Measure:
    """Measure: the score of the last evaluation before downloads and uploads together exceed `budget` bytes."""

    def measure(run: Metrics) -> float | None:
        scored, found = {row.round: score for row, score in scores(run)}, None
        for row, spent in zip(run, running_bytes(run), strict=True):
            if spent > budget:
                break
            found = scored.get(row.round, found)
        return found

    return measure


def rounds_to(target: float) -> Measure:
    return lambda run: next((float(row.round) for row, _ in _reaching(run, target)), None)


def bytes_to(target: float) -> Measure:
    def measure(run: Metrics) -> float | None:
        spent = dict(zip((row.round for row in run), running_bytes(run), strict=True))
        return next((spent[row.round] for row, _ in _reaching(run, target)), None)

    return measure


def _reaching(run: Metrics, target: float) -> Iterator[tuple[RoundRow, float]]:
    """The evaluated rounds whose score is at least as good as the target."""
    judged = HEADLINES[headline(run)]
    return ((row, score) for row, score in scores(run) if judged.reaches(score, target))


def traffic(run: Metrics) -> float:
    return next(iter(running_bytes(run)[-1:]), 0.0)


def running_bytes(run: Metrics) -> list[float]:
    """Bytes of downloads and uploads, added up to each round."""
    return [float(spent) for spent in accumulate(row.bytes for row in run)]


# over seeds -----------------------------------------------------------------------------------------------------------


def mean_std(values: Iterable[float]) -> tuple[float | None, float | None]:
    """Mean and standard deviation; None for the mean of no value, and for the deviation of fewer than two."""
    known = list(values)
    return statistics.fmean(known) if known else None, statistics.stdev(known) if len(known) > 1 else None


class Point(Fact):
    """One evaluated round: mean and deviation over the seeds that reached it, and the bytes sent until then."""

    round: int
    n: int
    mean: float | None
    std: float | None
    worst: float | None
    worst_std: float | None
    bytes: float | None
    flops: float | None  # computed by devices until then


def curve(runs: Sequence[Metrics], metric: Metric) -> list[Point]:
    found: dict[int, list[tuple[RoundRow, float, float]]] = {}
    for run in runs:
        spent = dict(zip((row.round for row in run), running_bytes(run), strict=True))
        for row, score in scores(run, metric):
            found.setdefault(row.round, []).append((row, score, spent[row.round]))
    points, computed = [], flops_until(runs)
    for t, seen in sorted(found.items()):
        mean, std = mean_std(score for _, score, _ in seen)
        worst, worst_std = mean_std(row.clients.worst_tenth for row, *_ in seen if row.clients is not None)
        sent, _ = mean_std(sent for *_, sent in seen)
        more = {"bytes": sent, "flops": computed.get(t)}
        points.append(Point(round=t, n=len(seen), mean=mean, std=std, worst=worst, worst_std=worst_std, **more))
    return points


def flops_until(runs: Sequence[Metrics]) -> dict[int, float]:
    """Floating-point operations of devices up to the end of each round, mean over runs; {} where a run does not report
    them.
    """
    found: dict[int, list[float]] = {}
    for run in runs:
        spent = 0.0
        for row in run:
            if row.device_flops is None:
                return {}
            spent += row.device_flops
            found.setdefault(row.round, []).append(spent)
    return {t: statistics.fmean(values) for t, values in found.items()}


def paired_p(a: Sequence[float], b: Sequence[float]) -> float | None:
    """P-value of a two-sided paired t-test over common seeds; None with fewer than two, or equal differences."""
    differences = [x - y for x, y in zip(a, b, strict=True)]
    if len(differences) < 2 or math.isclose(max(differences), min(differences), abs_tol=1e-12):
        return None
    from scipy.stats import ttest_rel

    return float(ttest_rel(a, b).pvalue)


FLOAT = 4  # bytes
TENS = [k / 10 for k in range(1, 10)]
SHOWN = 4  # targets that were reached; then the next one, which was not


class PlainRound(NamedTuple):
    """Cost of a round of plain training: the size of a message (the model and a header) and the number of clients."""

    message: int  # bytes, one way
    chosen: int  # clients of a round

    @property
    def round(self) -> int:
        return 2 * self.chosen * self.message


class MessageBytes(Fact):
    """Bytes of all messages of one kind, as measured, beside the numbers by a publication's formula."""

    phase: str
    way: Way
    what: str
    parameters: Number | None
    formula_bytes: Number | None
    bytes: int


class Target(Fact):
    """An accuracy, and the round that reached it; None where no round did."""

    target: float
    rounds: int | None


class TargetReached(Target):
    """Cost of reaching a target."""

    rounds: int
    bytes: int
    bytes_with: int  # with the preparation in front
    charged: float  # in rounds of plain training
    formula_charged: float | None


class Cost(Fact):
    """Cost of a preparation in rounds of plain training, measured and by a formula; and rounds to target accuracies,
    with it and without.
    """

    bytes: int
    rounds: float
    plain_round: int
    chosen: int
    formula_parameters: Number | None = None
    formula_ratio: float | None = None
    formula_rounds: float | None = None
    formula_over: Number | None = None
    targets: tuple[TargetReached | Target, ...]


def in_front(preparation: Sequence[RoundLine]) -> list[RoundRow]:
    """Traffic and computation of a preparation, written as a round 0 without scores to put before the training's
    rounds; [] without a preparation.
    """
    if not preparation:
        return []
    computed = [row.device_flops for row in preparation if row.phase != PUBLIC_TENSORS]
    known = [flops for flops in computed if flops is not None]
    down, up, payload = zip(*((r.bytes_down or 0, r.bytes_up or 0, r.payload or 0) for r in preparation), strict=True)
    flops = sum(known) if len(known) == len(computed) else None
    return [RoundRow(round=0, bytes_down=sum(down), bytes_up=sum(up), payload=sum(payload), device_flops=flops)]


def before(run: Metrics) -> float:
    """Bytes sent before the first round."""
    return traffic([row for row in run if row.round == 0])


def messages(
    preparation: Sequence[RoundLine],
    metrics: Metrics,
    plain: PlainRound,
    formula: Formula | None,
    says: Mapping[str, tuple[str, str]],
) -> list[MessageBytes]:
    """Bytes of each phase's messages, down and up, as measured and by the publication's formula; for the training,
    those that plain training would not send. `says`: descriptions of what goes down and up in each phase.
    """
    counted = {} if formula is None else formula.messages

    def sent(phase: str, way: Way, what: str, size: int) -> MessageBytes:
        parameters = counted.get((phase, way))
        in_bytes = None if parameters is None else FLOAT * parameters
        return MessageBytes(phase=phase, way=way, what=what, parameters=parameters, formula_bytes=in_bytes, bytes=size)

    rows = []
    for phase in dict.fromkeys(row.phase for row in preparation):
        of_phase = [row for row in preparation if row.phase == phase]
        down, up = says.get(phase, ("", ""))
        if size := sum(row.bytes_down or 0 for row in of_phase):
            rows.append(sent(phase, "down", down, size))
        if size := sum(row.bytes_up or 0 for row in of_phase):
            rows.append(sent(phase, "up", up, size))
    if any(None in (row.active, row.bytes_down, row.bytes_up) for row in metrics):
        return rows  # the size of a hidden cohort is not shown
    beside = "beside the model"
    down_, up_ = (
        sum((row.bytes_down or 0) - (row.active or 0) * plain.message for row in metrics),
        sum((row.bytes_up or 0) - (row.answered or 0) * plain.message for row in metrics),
    )
    if down_ or (TRAINING, "down") in counted:
        rows.append(sent(TRAINING, "down", beside, down_))
    if up_ or (TRAINING, "up") in counted:
        rows.append(sent(TRAINING, "up", beside, up_))
    return rows


def charged(preparation: Sequence[RoundLine], metrics: Metrics, plain: PlainRound, formula: Formula | None) -> Cost:
    spent = sum(row.bytes for row in preparation)
    found = Cost(
        bytes=spent,
        rounds=spent / plain.round,
        plain_round=plain.round,
        chosen=plain.chosen,
        targets=tuple(_to(target, metrics, spent, plain, formula) for target in targets(metrics)),
    )
    if formula is None:
        return found
    return found.beside(
        formula_parameters=formula.parameters,
        formula_ratio=formula.ratio,
        formula_rounds=formula.upfront,
        formula_over=formula.rounds,
    )


def targets(metrics: Metrics) -> list[float]:
    """Target accuracies: the highest multiples of 10 % that were reached, and the next one."""
    found = scores(metrics, "accuracy")
    reached = max((score for _, score in found), default=0.0)
    below, beyond = [t for t in TENS if t <= reached], [t for t in TENS if t > reached]
    return below[-SHOWN:] + beyond[:1] if found else []


def _to(target: float, metrics: Metrics, spent: int, plain: PlainRound, formula: Formula | None) -> Target:
    rounds, sent = rounds_to(target)(metrics), bytes_to(target)(metrics)
    if rounds is None or sent is None:
        return Target(target=target, rounds=None)
    return TargetReached(
        target=target,
        rounds=int(rounds),
        bytes=int(sent),
        bytes_with=int(sent) + spent,
        charged=(int(sent) + spent) / plain.round,
        formula_charged=None if formula is None else formula.charged(int(rounds)),
    )
