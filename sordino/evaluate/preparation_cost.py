"""What a preparation cost: its messages beside formula (18) of SlaugFL (IEEE Transactions on Mobile Computing, 2024),
in rounds of plain training, and what is left of a target that was reached early."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from sordino.evaluate.measures import Metrics, rounds_to, scored, traffic
from sordino.evaluate.traffic import Sizes, bytes_to, charged_rounds, extra_parameters, ratio, upfront_rounds

Row = dict[str, Any]
VISIBLE = {"active", "bytes_down", "bytes_up"}  # of a cohort that is not hidden
HANDED = "handed"  # the phase of the one message to everybody before the first round
SENT = {
    "train": ("the first model, to everybody", "their own models"),
    "ask": ("requests for prototypes", "prototypes and refusals"),
    "pool": ("a public network, to everybody", "sums of features"),
    HANDED: ("the generator, to everybody", ""),
}
FLOAT = 4  # bytes
TENS = [k / 10 for k in range(1, 10)]
SHOWN = 4  # targets that were reached; then the next one, which was not


class Plain(NamedTuple):
    """A message of plain training: the model and a header."""

    message: int  # bytes, one way
    chosen: int  # clients of a round

    @property
    def round(self) -> int:
        return 2 * self.chosen * self.message


def in_front(preparation: Metrics) -> list[Row]:
    """What was sent and computed before the first round, as a round 0 that nobody evaluated: sums over rounds then
    begin with it.
    """
    if not preparation:
        return []
    names = ("bytes_down", "bytes_up", "payload")
    row: Row = {"round": 0, **{name: sum(each[name] for each in preparation) for name in names}}
    computing = [each for each in preparation if each["phase"] != HANDED]
    if all("device_flops" in each for each in computing):
        row["device_flops"] = sum(each["device_flops"] for each in computing)
    return [row]


def before(run: Metrics) -> float:
    """Bytes in front of the first round."""
    return traffic([row for row in run if row["round"] == 0])


def flops_until(runs: Sequence[Metrics]) -> dict[int, float]:
    """What devices had computed by the end of each round, mean over runs; nothing where one of them does not tell."""
    found: dict[int, list[float]] = {}
    for run in runs:
        if not all("device_flops" in row for row in run):
            return {}
        spent = 0.0
        for row in run:
            spent += row["device_flops"]
            found.setdefault(row["round"], []).append(spent)
    return {t: fmean(values) for t, values in found.items()}


def messages(preparation: Metrics, metrics: Metrics, plain: Plain, sizes: Sizes | None) -> list[Row]:
    """By phase and kind of message: what formula (18) counts, and what was sent beyond plain training."""
    counted = {} if sizes is None else formula(sizes)
    rows = []
    phases = list(dict.fromkeys(row["phase"] for row in preparation))
    # where no phase has made a generator, something else was handed out
    known = SENT if phases != [HANDED] else {HANDED: ("what everybody starts from", "")}
    for phase in phases:
        mine = [row for row in preparation if row["phase"] == phase]
        down, up = known.get(phase, ("", ""))
        for way, what in (("down", down), ("up", up)):
            if size := sum(row[f"bytes_{way}"] for row in mine):
                rows.append(_message(phase, way, what, size, counted))
    # of a hidden cohort nobody is shown how many were asked
    for way, who in (("down", "active"), ("up", "answered")) if all(row.keys() >= VISIBLE for row in metrics) else ():
        beyond = sum(row[f"bytes_{way}"] - row.get(who, 0) * plain.message for row in metrics)
        if beyond or ("training", way) in counted:
            rows.append(_message("training", way, "beside the model", beyond, counted))
    return rows


def formula(sizes: Sizes) -> dict[tuple[str, str], float]:
    """Parameters of each kind of message that formula (18) counts; together they are the formula."""
    prototypes = sizes.classes * sizes.prototype
    each = sizes.rounds * sizes.chosen * prototypes
    return {
        ("train", "up"): sizes.devices * sizes.model,
        ("ask", "up"): prototypes,
        (HANDED, "down"): sizes.devices * sizes.generator,
        ("training", "down"): each,
        ("training", "up"): each,
    }


def _message(phase: str, way: str, what: str, size: float, counted: Mapping[tuple[str, str], float]) -> Row:
    parameters = counted.get((phase, way))
    in_bytes = None if parameters is None else FLOAT * parameters
    return {
        "phase": phase,
        "way": way,
        "what": what,
        "parameters": parameters,
        "formula_bytes": in_bytes,
        "bytes": size,
    }


def charged(preparation: Metrics, metrics: Metrics, plain: Plain, sizes: Sizes | None) -> Row:
    """The preparation in rounds of plain training, measured and by the formula; and targets, with it and without."""
    spent = sum(row["bytes_down"] + row["bytes_up"] for row in preparation)
    found: Row = {"bytes": spent, "rounds": spent / plain.round, "plain_round": plain.round, "chosen": plain.chosen}
    if sizes is not None:
        found |= {"formula_parameters": extra_parameters(sizes), "formula_ratio": ratio(sizes)}
        found |= {"formula_rounds": upfront_rounds(sizes), "formula_over": sizes.rounds}
    found["targets"] = [_to(target, metrics, spent, plain, sizes) for target in targets(metrics)]
    return found


def targets(metrics: Metrics) -> list[float]:
    """The last tens of per cent that were reached, and the next one."""
    reached = max((row["accuracy"] for row in scored(metrics)), default=0.0)
    below, beyond = [t for t in TENS if t <= reached], [t for t in TENS if t > reached]
    return below[-SHOWN:] + beyond[:1] if scored(metrics) else []


def _to(target: float, metrics: Metrics, spent: int, plain: Plain, sizes: Sizes | None) -> Row:
    rounds, sent = rounds_to(target)(metrics), bytes_to(metrics, target)
    if rounds is None or sent is None:
        return {"target": target, "rounds": None}
    by_formula = None if sizes is None else charged_rounds(sizes._replace(rounds=rounds))
    return {
        "target": target,
        "rounds": int(rounds),
        "bytes": sent,
        "bytes_with": sent + spent,
        "charged": (sent + spent) / plain.round,
        "formula_charged": by_formula,
    }
