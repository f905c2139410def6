"""A model card: Markdown with the front matter that model hubs read, and the promise in the middle of it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from sordino.accounting.belief import headline
from sordino.receipts.as_yaml import as_yaml
from sordino.receipts.evidence import COLUMNS, FORGED, Evidence, table

TASKS = {"image": "image-classification", "table": "tabular-classification"}
BY_HAND = "*No file of the run knows this: write it here.*"


def card(found: Evidence) -> str:
    """The card, for README.md beside a model."""
    promised = any(row.finite for row in found.receipt.guarantees)
    said = {"federated-learning": True, "differential-privacy": promised, "simulation": found.simulated}
    tags = [tag for tag, holds in said.items() if holds]
    top = {
        "library_name": "sordino",
        "pipeline_tag": TASKS[found.public.kind],
        "tags": tags,
        "model_name": found.experiment.name,
    }
    matter = as_yaml(top)
    kept = [row.words for row in found.rows if math.isfinite(row.epsilon)]
    lost = [row.words for row in found.rows if not math.isfinite(row.epsilon)]
    verdict = found.verdict
    parts = [
        f"---\n{matter}---",
        f"# {_plain(found.experiment.name)}",
        *(f"> **{stamp}**" for stamp in found.stamps),
        f"{_plain(found.setting)}.",
        "## Intended use",
        BY_HAND,
        "## Privacy",
        _plain(headline(found.receipt.guarantees, found.simulated) or "Nothing is promised about anybody."),
        _table(COLUMNS, table(found)),
        *_section("### Protected", kept),
        *_section("### Not protected", lost),
        *_section("### Noise", found.noise),
        *_section("## Limitations and assumptions", [*found.receipt.assumptions, *found.public.void]),
        *_section("## What does not agree", verdict.wrong),
        *_section("## What was checked, and agrees", verdict.agreed),
        *_section("## What was not looked at", verdict.unseen),
        *_section("## What no receipt shows", FORGED),
        f"Run `{found.receipt.run}`, sordino {found.environment.sordino}, ledger head `{found.receipt.ledger_head}`. "
        "`sordino privacy verify` checks the receipt without any data.",
    ]
    return "\n\n".join(parts) + "\n"


def _section(title: str, lines: Iterable[str]) -> list[str]:
    said = "\n".join(f"- {_plain(line)}" for line in lines)
    return [title, said] if said else []


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(columns)
    lines = [head, ["---"] * len(head), *(list(map(_plain, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _plain(text: str) -> str:
    """Words of a run's files stay words: no markup, no line of their own."""
    flat = " ".join(text.split())
    return "".join(f"\\{one}" if one in "\\`*_<>[]#|" else one for one in flat)
