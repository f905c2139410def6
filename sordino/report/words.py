"""The guarantee in words that a person without mathematics can hold someone to."""

from __future__ import annotations

import json
import math
from typing import Any

WHO = {
    "server": "the server, which sees every message and who sent it",
    "participants": "the other participants, who see every model that is sent out",
    "public": "anyone who sees the published models",
}
ANYONE = "anyone: the server, the other participants, and whoever sees the published models"
WHAT = {
    "pixel": "one value of one image of one client",
    "image": "one image of one client, whose label is given",
    "example": "one example (one row, one image) of one client",
    "cell": "one cell, a fixed part of a client's examples",
    "client": "everything one client holds",
}
CHANGE = {
    "replace": "exchanging it for any other",
    "add_remove": "adding it or taking it away",
    "zero_out": "replacing its contribution by nothing",
}


def merged(rows: list[dict[str, Any]]) -> list[tuple[dict[str, Any], list[str]]]:
    """Rows that say the same to several adversaries, said once."""
    found: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for row in rows:
        same = {name: value for name, value in row.items() if name not in ("adversary", "releases", "event")}
        found.setdefault(json.dumps(same, sort_keys=True), (row, []))[1].append(row["adversary"])
    return list(found.values())


def described(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a page shows of a statement: merged, in words, without the events it was computed from."""
    hidden = ("event", "accountants", "adversary")
    return [
        {name: value for name, value in row.items() if name not in hidden}
        | {"by": subject(by), "words": sentence(row, by), "strength": strength(row["epsilon"])}
        for row, by in merged(rows)
    ]


def subject(adversaries: list[str]) -> str:
    """Against whom, in a few words."""
    names = {"server": "the server", "participants": "participants", "public": "the public"}
    return "anyone" if len(adversaries) == len(WHO) else " and ".join(names[a] for a in adversaries)


def sentence(row: dict[str, Any], adversaries: list[str]) -> str:
    """One row of the statement, said out loud."""
    who = ANYONE if len(adversaries) == len(WHO) else ", and against ".join(WHO[a] for a in adversaries)
    what = WHAT[row["unit"]]
    if row["epsilon"] == "inf" and "nominal_epsilon" in row:
        composed = row.get("nominal_composed", row["nominal_epsilon"])
        more = (
            f" (all rounds added up, the same formula gives {float(composed):.3g})"
            if composed != row["nominal_epsilon"]
            else ""
        )
        return (
            f"Nothing is promised about {what}, against {who}. The source's formula prints epsilon {float(row['nominal_epsilon']):.3g}{more}; "
            f"it proves nothing: {'; '.join(row['because'])}."
        )
    if row["epsilon"] == "inf":
        return f"Nothing is promised about {what}, against {who}: {'; '.join(row['because']) or 'no noise covers it'}."
    holds = (
        f"{CHANGE[row['neighbours']]} makes nothing they see more than {_times(row['epsilon'])} times as likely, "
        f"except for a chance of {row['delta']:.3g}"
    )
    if row["status"] == "nominal" and "nominal_epsilon" in row:
        return (
            f"About {what}, against {who}: the source's formula prints epsilon {float(row['nominal_epsilon']):.3g}. That number proves nothing "
            f"({'; '.join(row['because'])}). What does hold: {holds} (epsilon {row['epsilon']:.3g})."
        )
    because = f" This rests on: {'; '.join(row['because'])}." if row["because"] else ""
    return f"About {what}, against {who}: {holds}.{because}"


def by_phase(receipt: dict[str, Any]) -> list[str]:
    """What each phase of a run adds to the promise, and what that makes of the whole; nothing where there is one phase."""
    found: dict[str, list[str]] = {}  # what is said of which phases
    phases = receipt.get("phases", [])
    for phase in phases:
        finite = [row for row in phase["guarantees"] if row["epsilon"] != "inf"]
        promised = [
            f"epsilon {float(row['epsilon']):.3g} at delta {row['delta']:g} of one {row['unit']} ({row['neighbours']}) against {subject(by)}, {row['status']}"
            for row, by in merged(finite)
        ]
        reasons = dict.fromkeys(
            reason for row in phase["guarantees"] if row["adversary"] == "server" for reason in row["because"]
        )
        nothing = f"nothing is promised: {'; '.join(reasons) or 'no noise covers it'}"
        given = "given what went out before it, " if promised and phase is not phases[0] else ""
        text = given + ("; ".join(promised) or nothing) if phase["releases"] else "has released nothing"
        found.setdefault(text, []).append(phase["phase"])
    said = [f"{' and '.join(names)}: {text}." for text, names in found.items()]
    whole = {row["unit"] for row in receipt["guarantees"] if row["epsilon"] != "inf"}
    parts = {row["unit"]: None for phase in phases for row in phase["guarantees"] if row["epsilon"] != "inf"}
    lost = [
        f"No end-to-end guarantee of one {unit}: what one phase noises another one gives away."
        for unit in parts
        if unit not in whole
    ]
    return [*said, *lost]


def strength(epsilon: float | str) -> str:
    """How a number reads, without pretending that there is a threshold."""
    if epsilon == "inf":
        return "no protection"
    value = float(epsilon)
    grades = ((1, "strong"), (4, "moderate"), (10, "weak but real"))
    return next((word for limit, word in grades if value <= limit), "little more than a formality")


def _times(epsilon: float) -> str:
    factor = math.exp(min(epsilon, 700))
    if factor < 10:
        return f"{factor:.2g}"
    return f"{float(f'{factor:.3g}'):,.0f}" if factor < 1e6 else f"10^{epsilon / math.log(10):.0f}"
