"""Tables of a run's result, guarantees and spending, for `run`, `show` and `privacy`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sordino.accounting.claims import Status, standing
from sordino.accounting.facts import delta_text, epsilon_text
from sordino.accounting.statement import Guarantee, OfPhase
from sordino.accounting.words import by_phase, headline
from sordino.cli import note, titled
from sordino.metrics import HEADLINES, RoundRow, bytes_text
from sordino.metrics.measures import TargetReached, last_scored, scores, warnings
from sordino.receipts import OfClient, Receipt, ReceiptBudget

if TYPE_CHECKING:
    from sordino.cli.bench import Profile
    from sordino.results.preparation_facts import Preparation

STATUS_STYLE: Mapping[Status, str] = {
    "proved": "green",
    "conditional": "yellow",
    "nominal": "red",
    "none": "red",
}

SLACK = 1 + 1e-9  # of rounding, before a budget counts as overspent


def summary(console: Console, metrics: Sequence[RoundRow], receipt: Receipt, before: RenderableType = "") -> None:
    """Print the result and the guarantees of a run. `before`: the table of its preparation, if there was one."""
    console.print(results(metrics))
    note(console, warnings(metrics))
    if before:
        console.print(before)
    console.print(guarantees(receipt.guarantees, receipt.simulated, receipt.phases))
    if (budget := receipt.budget) is not None:
        console.print(
            f"Budget of each client: epsilon {granted_text(budget)} at delta {budget.delta:g}, counted in "
            f"{budget.currency}; {_spent_text(budget)}{budget.caveat(receipt.guarantees)}."
        )
        if budget.groups:
            console.print(groups(budget, receipt.simulated))
    for line in receipt.assumptions:
        console.print(f"[dim]· {escape(line)}[/dim]", highlight=False)


def times(seen: Profile, metrics: Sequence[RoundRow]) -> RenderableType:
    """Table of the seconds that each kind of work in a run took."""
    from sordino.cli.bench import reach
    from sordino.engine.executor import cores

    table = Table("where the time went", "seconds", "a round", "share", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for kind, seconds in seen.shares.items():
        table.add_row(
            kind, f"{seconds:.2f}", f"{1e3 * seconds / max(1, len(metrics)):.1f} ms", f"{seconds / seen.seconds:.0%}"
        )
    done = sum(row.device_flops or 0.0 for row in metrics) / seen.seconds
    text = f"{seen.seconds:.1f} s in all for {len(metrics)} rounds."
    if done:
        most = reach(cores())
        text += (
            f" Clients computed {done / 1e9:.2g} billion operations a second, {done / most:.1%} of the "
            f"{most / 1e9:.0f} that matrix products reach on all cores of this machine."
        )
    return Group(table, text)


def _spent_text(budget: ReceiptBudget) -> str:
    """Share of their budgets that clients have spent, and in how many rounds."""
    least, most = (f"{share:.1%}".replace(".0%", "%") for share in (budget.spent_share.min, budget.spent_share.max))
    few, many = budget.participations_used.min, budget.participations_used.max
    rounds = f"{few:g} round{'s' * (few != 1)}" if few == many else f"{few:g} to {many:g} rounds"
    if least != most:
        return f"clients spent {least} to {most} of it in {rounds}"
    return f"every client spent {'all' if most == '100%' else most} of it in {rounds}"


def granted_text(budget: ReceiptBudget) -> str:
    levels = [group.granted for group in budget.groups]
    return f"{levels[0]:g} to {levels[-1]:g}" if len(levels) > 1 else f"{budget.epsilon:g}"


def groups(budget: ReceiptBudget, simulated: bool) -> Table:
    """Table of personal budgets, one row for all clients with the same epsilon."""
    title, heads, rows = group_cells(budget, simulated)
    table = titled(title, *heads, left=0)
    table.columns[-1].justify = "left"
    for group, (*cells, spent, status) in zip(budget.groups, rows, strict=True):
        style = "red" if group.spent > group.granted * SLACK else STATUS_STYLE[group.status]
        table.add_row(*cells, f"[{style}]{spent}[/{style}]", status)
    return table


def group_cells(budget: ReceiptBudget, simulated: bool) -> tuple[str, list[str], list[list[str]]]:
    """Title, heads and rows of a table of personal budgets, in the terminal or on a page."""
    claimed, of = any(group.claimed is not None for group in budget.groups), budget.subject
    assert of is not None
    who = f"epsilon of one {of.unit} ({of.neighbours}) against {of.adversary}, at delta {budget.delta:g}"
    nominal = ["claimed (nominal)"] if claimed else []
    rows = []
    for group in budget.groups:
        used, over = group.participations, group.granted * SLACK < group.spent < math.inf
        rows.append(
            [
                f"{group.granted:g}",
                str(group.clients),
                f"{used.min:g}" if used.min == used.max else f"{used.min:g} to {used.max:g}",
                *([epsilon_text(group.claimed or 0.0)] if claimed else []),
                epsilon_text(group.spent),
                standing(group.status, simulated) + (", over budget" if over else ""),
            ]
        )
    return f"Personal budgets: {who}", ["granted", "clients", "participations", *nominal, "spent", "status"], rows


def results(metrics: Sequence[RoundRow]) -> Table:
    table = titled("Result", "measure", "value")
    last = last_scored(metrics)
    table.add_row("rounds", str(len(metrics)))
    if last is not None:
        if (best := last.headline) is not None and best[0].name != "loss":
            judged, value = best
            table.add_row(f"test {judged.full}, {last.measured}", judged.shown(value))
            # empty where a run stopped early and none of its last rounds was scored
            if recent := [score for _, score in scores(metrics[-10:], judged.name)]:
                mean = sum(recent) / len(recent)
                table.add_row(f"test {judged.words}, mean of last {len(recent)}", judged.shown(mean))
            if last.constant is not None:
                table.add_row(judged.constant, judged.shown(last.constant))
        table.add_row("test loss", f"{last.loss:.4f}")
        for name, value in last.scores:
            table.add_row(f"test {name}", f"{value:.4f}")
        if (found := last.clients) is not None:
            judged = HEADLINES[found.metric]
            for text, value in (
                ("per-client mean", found.mean),
                ("per-client std", found.std),
                ("worst 10% of clients", found.worst_tenth),
            ):
                table.add_row(f"{judged.words}, {text}", judged.shown(value))
        for name, other in last.also.items():
            table.add_row(f"test, {name}", "" if (one := other.headline) is None else one[0].shown(one[1]))
    if last is not None and last.confusion is not None and len(last.confusion) <= 12:
        for at, counts in enumerate(last.confusion):
            table.add_row(f"of true class {at}, predicted as each", " ".join(map(str, counts)))
    table.add_row("bytes down", bytes_text(sum(row.bytes_down or 0 for row in metrics)))
    table.add_row("bytes up", bytes_text(sum(row.bytes_up or 0 for row in metrics)))
    for name, sentence in secure(metrics):
        table.add_row(name, sentence)
    return table


def preparation(found: Preparation) -> Group:
    """Table of a preparation (phases before round 1) in a few lines; the HTML report shows it class by class."""
    table = titled("Before round 1", "measure", "value")
    classes, cost = found.classes, found.cost
    asked = [device for row in classes for device in row.asked]
    if asked:
        answered = sum(any(device.answered for device in row.asked) for row in classes)
        table.add_row("classes with a prototype", f"{answered} of {len(classes)}")
        table.add_row("requests, declined", f"{len(asked)}, {sum(not device.answered for device in asked)}")
    if kept := sum(row.kept for row in classes):
        every = sum(row.candidates or 0 for row in classes)
        table.add_row("candidates kept", f"{kept} of {every}" if every else str(kept))
        of_kept = mean_of([(row.valid_kept, row.kept) for row in classes])
        of_all = mean_of([(row.valid, row.candidates or 0) for row in classes])
        if of_kept is not None and of_all is not None:
            table.add_row("valid: of kept, of all (only a simulation knows)", f"{of_kept:.1%}, {of_all:.1%}")
    table.add_row("bytes sent", bytes_text(cost.bytes))
    table.add_row(f"as rounds of plain training, {cost.chosen} clients", f"{cost.rounds:.1f}")
    if cost.formula_rounds is not None:
        table.add_row("the same, by the count in SlaugFL's paper", f"{cost.formula_rounds:.1f}")
    for row in cost.targets[-2:]:  # the last that was reached, and the next
        reached = f"{row.rounds}, {row.charged:.1f} with it" if isinstance(row, TargetReached) else "not reached"
        table.add_row(f"rounds to {row.target:.0%}", reached)
    unread = f"this table cannot say whom it asked and what it kept: {found.unread}" if found.unread else ""
    return Group(table, *(Text(line, style="yellow") for line in (found.label, unread) if line))


def mean_of(parts: Sequence[tuple[float | None, int]]) -> float | None:
    """Mean of shares, each weighted by the count beside it; None where no share is known."""
    known = [(share, count) for share, count in parts if share is not None]
    total = sum(count for _, count in known)
    return sum(share * count for share, count in known) / total if total else None


MODES = {"full": "every client", "probe": "one client a round, the others added in clear"}


def secure(metrics: Sequence[RoundRow]) -> list[tuple[str, str]]:
    """Measured cost of encrypted or masked sums; only of clients that were really encrypted, without extrapolation."""
    rows = [row.secure for row in metrics if row.secure is not None]
    if not rows:
        return []
    found = [("encrypted or masked", MODES[rows[-1].mode])]
    seconds = [row.cpu_seconds for row in rows if row.cpu_seconds is not None]
    if len(seconds) == len(rows):  # with real noise, clients' times are not shown
        found.append(("its CPU seconds a round", f"{sum(sum(cost.values()) for cost in seconds) / len(rows):.2g}"))
    if beyond := sum(row.saturated or 0 for row in rows):
        found.append(("values cut to the range", str(beyond)))
    if aborted := sum(bool(row.aborted) for row in rows):
        found.append(("rounds broken off", str(aborted)))
    return found


def guarantees(rows: Sequence[Guarantee], simulated: bool, phases: Sequence[OfPhase] = ()) -> Group:
    """Table of the guarantees; reasons are numbered, and each is listed once below it."""
    reasons: dict[str, int] = {}
    table = titled("Privacy guarantees, by unit and adversary")
    table.show_edge = table.pad_edge = False
    for column in ("unit", "by", "epsilon", "delta", "neighbours"):
        table.add_column(column, justify="right" if column in ("epsilon", "delta") else "left", no_wrap=True)
    table.add_column("status", min_width=len("(simulation)"))
    table.add_column("why", min_width=len("gdp, (1)"))
    merged: dict[tuple[str, str, str, str, Status, str], list[str]] = {}
    for row in rows:
        numbers = [str(reasons.setdefault(reason, len(reasons) + 1)) for reason in row.because]
        counted = [row.accountant] if 0 < row.epsilon < math.inf else []
        why = ", ".join([*counted, *([f"({' '.join(numbers)})"] if numbers else [])])
        facts = (row.unit, _epsilons(row), delta_text(row.delta), row.neighbours, row.status, why)
        merged.setdefault(facts, []).append(row.adversary)
    for (unit, epsilon, delta, neighbours, status, why), adversaries in merged.items():
        style = STATUS_STYLE[status]
        by = "anyone" if len(adversaries) == 3 else "\n".join(adversaries)
        table.add_row(
            unit, by, epsilon, delta, neighbours, f"[{style}]{standing(status, simulated)}[/{style}]", escape(why)
        )
    notes = [Padding(Text(f"({number}) {reason}"), (0, 0, 0, 1)) for reason, number in reasons.items()]
    sentences = [*by_phase(rows, phases, simulated), headline(rows, simulated)]
    return Group(table, *notes, *(Padding(Text(line), (0, 0, 0, 1)) for line in sentences if line))


def _epsilons(row: Guarantee) -> str:
    """Text of a guarantee's epsilon. For a published formula, first the epsilons that it claims (as printed, and
    composed over all rounds), then the one that holds."""
    holds, printed, composed = epsilon_text(row.epsilon), row.nominal_epsilon, row.nominal_composed
    if printed is None:
        return holds
    more = "" if composed is None or composed == printed else f"\ncomposed {epsilon_text(composed)}"
    return f"nominal {epsilon_text(printed)}{more}\nholds {holds}"


SPENT = "client", "examples", "participations", "planned", "spent", "granted"


def spending(clients: Sequence[OfClient], currency: str) -> Table:
    table = titled(f"Spent, client by client, in {currency}", *SPENT, left=0)
    for row in clients:
        table.add_row(escape(row.name) or str(row.client), *spent_cells(row))
    return table


def spent_cells(row: OfClient) -> list[str]:
    """Cells of a client in the table of spending, after its name: examples, rounds, spent and granted budget."""
    cells = ["-" if count is None else str(count) for count in (row.examples, row.participations, row.planned)]
    return [*cells, _amounts(row.spent), "unlimited" if row.granted is None else _amounts(row.granted)]


@lru_cache
def _amounts(parts: tuple[float, ...]) -> str:
    return ", ".join(epsilon_text(part, 4) for part in parts)  # in some currencies a part is an epsilon
