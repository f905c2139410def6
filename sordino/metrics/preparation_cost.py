"""Cost of a preparation (the phases before the training): bytes of its messages, as measured and by the publication's
formula, expressed in rounds of plain training; and the rounds that it saves on the way to a target score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sordino.accounting.facts import Fact, Number
from sordino.ledger.books import PUBLIC_TENSORS, TRAINING, Way
from sordino.metrics.measures import Metrics, bytes_to, rounds_to, scores, traffic
from sordino.metrics.rows import RoundLine, RoundRow

if TYPE_CHECKING:
    from sordino.types import Formula

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
        mine = [row for row in preparation if row.phase == phase]
        down, up = says.get(phase, ("", ""))
        if size := sum(row.bytes_down or 0 for row in mine):
            rows.append(sent(phase, "down", down, size))
        if size := sum(row.bytes_up or 0 for row in mine):
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
