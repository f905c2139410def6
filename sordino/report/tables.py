"""What a run says at its end, and what `show` and `privacy` print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sordino.report.words import by_phase

STATUS_STYLE = {"proved": "green", "conditional": "yellow", "asymptotic": "yellow", "nominal": "red", "none": "red"}


def bytes_text(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def epsilon_text(value: float | str) -> str:
    return "∞" if value == "inf" else f"{float(value):.3g}"


def summary(
    console: Console, metrics: Sequence[dict[str, Any]], receipt: dict[str, Any], before: RenderableType = ""
) -> None:
    """`before`: what is said of a preparation, if there was one."""
    console.print(results(metrics))
    if before:
        console.print(before)
    console.print(guarantees(receipt))
    budget = receipt["budget"]
    if budget:
        spent, used = budget["spent_share"], budget["exposures_used"]
        console.print(
            f"Budget per client: epsilon {granted_text(budget)} at delta {budget['delta']:g}, counted in {budget['currency']}; "
            f"spent {spent['min']:.1%} to {spent['max']:.1%} over {used['min']:g} to {used['max']:g} exposures."
        )
        if "groups" in budget:
            console.print(groups(budget))
    for line in receipt["assumptions"]:
        console.print(f"[dim]· {line}[/dim]")


def granted_text(budget: dict[str, Any]) -> str:
    levels = [group["granted"] for group in budget.get("groups", [])]
    return f"{levels[0]:g} to {levels[-1]:g}" if len(levels) > 1 else f"{budget['epsilon']:g}"


def groups(budget: dict[str, Any]) -> Table:
    """Clients that grant the same."""
    found, of = budget["groups"], budget["subject"]
    claimed = any(group["claimed"] is not None for group in found)
    who = f"epsilon of one {of['unit']} ({of['neighbours']}) against {of['adversary']}, at delta {budget['delta']:g}"
    table = Table(title=f"Personal budgets: {who}", title_justify="left", title_style="bold")
    for column in ("granted", "clients", "exposures", *(["claimed (nominal)"] if claimed else []), "spent", "status"):
        table.add_column(column, justify="right" if column != "status" else "left")
    for group in found:
        used, over = group["exposures"], group["spent"] != "inf" and group["spent"] > group["granted"] * (1 + 1e-9)
        between = f"{used['min']:g}" if used["min"] == used["max"] else f"{used['min']:g} to {used['max']:g}"
        style = "red" if over or group["spent"] == "inf" else STATUS_STYLE[group["status"]]
        table.add_row(
            f"{group['granted']:g}", str(group["clients"]), between,
            *([f"{group['claimed']:.3g}"] if claimed else []),
            f"[{style}]{epsilon_text(group['spent'])}[/{style}]", group["status"] + (", over budget" if over else ""),
        )  # fmt: skip
    return table


def results(metrics: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="Result", title_justify="left", title_style="bold")
    table.add_column("measure")
    table.add_column("value", justify="right")
    last = next((row for row in reversed(metrics) if "clients" in row or "accuracy" in row or "loss" in row), None)
    table.add_row("rounds", str(len(metrics)))
    if last is not None:
        if "accuracy" in last:
            table.add_row("test accuracy, global", f"{last['accuracy']:.2%}")
            recent = [row["accuracy"] for row in metrics[-10:] if "accuracy" in row]
            table.add_row(f"test accuracy, mean of last {len(recent)}", f"{sum(recent) / len(recent):.2%}")
        table.add_row("test loss", f"{last['loss']:.4f}")
        if "clients" in last:
            form = "{:.2%}" if last["clients"]["metric"] == "accuracy" else "{:.4f}"
            for name, text in (
                ("mean", "per-client mean"),
                ("std", "per-client std"),
                ("worst_tenth", "worst 10 % of clients"),
            ):
                table.add_row(f"{last['clients']['metric']}, {text}", form.format(last["clients"][name]))
    for name, found in (last or {}).get("also", {}).items():
        score = f"{found['accuracy']:.2%}" if "accuracy" in found else f"{found['loss']:.4f}"
        table.add_row(f"test, {name}", score)
    table.add_row("bytes down", bytes_text(sum(row.get("bytes_down", 0) for row in metrics)))
    table.add_row("bytes up", bytes_text(sum(row.get("bytes_up", 0) for row in metrics)))
    for name, value in secure(metrics):
        table.add_row(name, value)
    return table


def preparation(found: dict[str, Any]) -> Group:
    """What came before the first round, in a few lines; class by class it is on the page."""
    table = Table(title="Before round 1", title_justify="left", title_style="bold")
    table.add_column("measure")
    table.add_column("value", justify="right")
    classes, cost = found["classes"], found["cost"]
    asked = [device for row in classes for device in row["asked"]]
    if asked:
        answered = sum(any(device["answered"] for device in row["asked"]) for row in classes)
        table.add_row("classes with a prototype", f"{answered} of {len(classes)}")
        table.add_row("requests, declined", f"{len(asked)}, {sum(not device['answered'] for device in asked)}")
    if kept := sum(row["kept"] for row in classes):
        every = sum(row["candidates"] or 0 for row in classes)
        table.add_row("candidates kept", f"{kept} of {every}" if every else str(kept))
        shares = [mean_of(classes, share, count) for share, count in (("valid_kept", "kept"), ("valid", "candidates"))]
        if all(share is not None for share in shares):
            table.add_row("valid: kept, all (a simulation knows)", ", ".join(f"{share:.1%}" for share in shares))
    table.add_row("bytes sent", bytes_text(cost["bytes"]))
    table.add_row(f"as rounds of plain training, {cost['chosen']} clients", f"{cost['rounds']:.1f}")
    if "formula_rounds" in cost:
        table.add_row("the same by formula (18)", f"{cost['formula_rounds']:.1f}")
    for row in cost["targets"][-2:]:  # the last that was reached, and the next
        reached = "not reached" if row["rounds"] is None else f"{row['rounds']}, {row['charged']:.1f} with it"
        table.add_row(f"rounds to {row['target']:.0%}", reached)
    unread = f"whom it asked and what it kept is not told: {found['unread']}" if found["unread"] else ""
    return Group(table, *(Text(line, style="yellow") for line in (found["label"], unread) if line))


def mean_of(rows: Sequence[dict[str, Any]], share: str, count: str) -> float | None:
    """Over all that were counted."""
    known = [row for row in rows if row[share] is not None]
    total = sum(row[count] for row in known)
    return sum(row[share] * row[count] for row in known) / total if total else None


MODES = {"full": "every client", "probe": "one client a round, the others added in clear"}


def secure(metrics: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """What encrypted or masked sums cost, as measured: nothing is extrapolated to clients that were not encrypted."""
    rows = [row["secure"] for row in metrics if "secure" in row]
    if not rows:
        return []
    found = [("encrypted or masked", MODES[rows[-1]["mode"]])]
    if all("cpu_seconds" in row for row in rows):  # how long everybody took is not shown of a run with real noise
        cost = sum(sum(row["cpu_seconds"].values()) for row in rows) / len(rows)
        found.append(("its CPU seconds a round", f"{cost:.2g}"))
    if beyond := sum(row.get("saturated", 0) for row in rows):
        found.append(("values cut to the range", str(beyond)))
    if aborted := sum("aborted" in row for row in rows):
        found.append(("rounds broken off", str(aborted)))
    return found


def _printed(row: dict[str, Any]) -> str:
    """What the source prints, and what its own formula makes of all rounds, where that is something else."""
    text, composed = f"nominal {epsilon_text(row['nominal_epsilon'])}", row.get("nominal_composed")
    return text if composed in (None, row["nominal_epsilon"]) else f"{text}\ncomposed {epsilon_text(composed)}"


def guarantees(receipt: dict[str, Any]) -> Group:
    """The statement; reasons are numbered and said below it, once."""
    reasons: dict[str, int] = {}
    table = Table(title="What can still be learned about one ... by ...", title_justify="left", title_style="bold")
    for column in ("unit", "by", "epsilon", "delta", "neighbours", "status"):
        table.add_column(column, justify="right" if column in ("epsilon", "delta") else "left", no_wrap=True)
    table.add_column("by accountant, because")
    merged: dict[tuple[str, ...], list[str]] = {}
    for row in receipt["guarantees"]:
        told = [str(reasons.setdefault(reason, len(reasons) + 1)) for reason in row["because"]]
        counted = [row["accountant"]] if row["epsilon"] not in ("inf", 0.0) else []
        why = ", ".join([*counted, *([f"({' '.join(told)})"] if told else [])])
        epsilon = epsilon_text(row["epsilon"])
        if "nominal_epsilon" in row:
            epsilon = f"{_printed(row)}\nholds {epsilon}"
        facts = (row["unit"], epsilon, f"{row['delta']:.3g}", row["neighbours"], row["status"], why)
        merged.setdefault(facts, []).append(row["adversary"])
    for (unit, epsilon, delta, neighbours, status, why), adversaries in merged.items():
        style = STATUS_STYLE[status]
        by = "anyone" if len(adversaries) == 3 else "\n".join(adversaries)
        table.add_row(unit, by, epsilon, delta, neighbours, f"[{style}]{status}[/{style}]", why)
    notes = [Padding(Text(f"({number}) {reason}"), (0, 0, 0, 1)) for reason, number in reasons.items()]
    phases = [Padding(Text(line), (0, 0, 0, 1)) for line in by_phase(receipt)]
    return Group(table, *notes, *phases)


def spending(clients: Sequence[dict[str, Any]], currency: str) -> Table:
    table = Table(title=f"Spent, client by client, in {currency}", title_justify="left", title_style="bold")
    for column in ("client", "examples", "exposures", "planned", "spent", "granted"):
        table.add_column(column, justify="right")
    for row in clients:
        granted = "unlimited" if row["granted"] is None else ", ".join(f"{part:.4g}" for part in row["granted"])
        spent = ", ".join(f"{part:.4g}" for part in row["spent"])
        told = ("-" if row[name] is None else str(row[name]) for name in ("client", "examples", "exposures", "planned"))
        table.add_row(*told, spent, granted)
    return table
