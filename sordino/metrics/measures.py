"""Measures for tables of runs, from the metrics of one run or of several. None of them takes a run's best round."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from sordino.accounting.facts import Fact
from sordino.metrics.rows import HEADLINES, Metric, RoundRow

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
