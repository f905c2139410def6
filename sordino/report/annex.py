"""One page for a data protection assessment: who is protected, from whom, how far, resting on what, checked how.

No script, no network, nothing to unfold: it can be printed and mailed. `printing` makes a PDF of it.
"""

from __future__ import annotations

import math

from sordino.accounting.belief import headline
from sordino.planning.agreement import FILE as AGREEMENT
from sordino.receipts.evidence import COLUMNS, FORGED, Evidence, table
from sordino.report.markup import Html, joined, listed, tag
from sordino.report.markup import table as made
from sordino.report.run_page import together

NOTHING = "Nothing is promised about anybody by this run."
READ = f"privacy.json, ledger.sqlite, experiment.toml, {AGREEMENT} and environment.json"


def page(found: Evidence) -> str:
    """The whole page."""
    title = f"Privacy annex: {found.experiment.name}"
    head = (
        Html('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        Html("<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"),
        tag("title", title),
        tag("style", Html(together("web/annex.css"))),
    )
    made_on = found.environment.started[:10] or "an unknown date"
    body = (
        *(tag("p", stamp, class_="stamp") for stamp in found.stamps),
        tag("h1", title),
        tag(
            "p",
            f"For a data protection assessment. Run {found.receipt.run} of {made_on}, sordino "
            f"{found.environment.sordino}. Made without any data, from {READ}.",
            class_="lead",
        ),
        tag("p", headline(found.receipt.guarantees, found.simulated) or NOTHING, class_="sentence"),
        made("What is promised", COLUMNS, table(found)),
        _columns(joined([_who(found), _how(found)]), _who_not(found)),
        _section("What this rests on", listed(_rests(found))),
        _columns(_checked(found), _unseen(found)),
        tag(
            "footer",
            f"Ledger head {found.receipt.ledger_head}. Experiment {found.receipt.config}.",
        ),
    )
    whole = tag("html", tag("head", *head), tag("body", tag("main", *body)), lang="en")
    return f"<!doctype html>\n{whole}\n"


def _who(found: Evidence) -> Html:
    kept = [row.words for row in found.rows if math.isfinite(row.epsilon)]
    if kept and not any(row.unit == "person" and math.isfinite(row.epsilon) for row in found.rows):
        kept.append(
            "A person who has several of these units is not protected as a whole by a promise about one of them."
        )
    return _section("Who is protected", listed(kept or [NOTHING]))


def _who_not(found: Evidence) -> Html:
    lost = [row.words for row in found.rows if not math.isfinite(row.epsilon)]
    return _section("Who is not", listed(lost)) if lost else Html("")


def _how(found: Evidence) -> Html:
    budget = found.receipt.budget
    lines = [f"{found.setting}.", *(f"{line[0].upper()}{line[1:]}." for line in found.noise)]
    if budget is not None:
        low, high = budget.spent_share.min, budget.spent_share.max
        share = f"{high:.0%}" if low == high else f"{low:.0%} to {high:.0%}"
        lines.append(f"Each client granted a budget, counted in {budget.currency}, and has spent {share} of it.")
    if found.noised:
        source = "a seed: a simulation" if found.simulated else "the operating system's entropy"
        lines.append(f"The noise comes from {source}. All releases of all rounds are added up by the accountant named.")
    return _section("What was computed", listed(lines))


def _rests(found: Evidence) -> list[str]:
    because = dict.fromkeys(why for row in found.rows if math.isfinite(row.epsilon) for why in row.because)
    return list(dict.fromkeys((*found.receipt.assumptions, *because, *found.public.void)))


def _checked(found: Evidence) -> Html:
    if found.verdict.wrong:
        return _section("What does not agree", listed(found.verdict.wrong))
    return _section("What was checked, and agrees", listed(found.verdict.agreed))


def _unseen(found: Evidence) -> Html:
    return joined(
        [
            _section("What was not looked at", listed(found.verdict.unseen)) if found.verdict.unseen else "",
            _section("What no receipt shows", listed(FORGED)),
        ]
    )


def _section(title: str, *inside: str) -> Html:
    return tag("section", tag("h2", title), *inside)


def _columns(*parts: Html) -> Html:
    return tag("div", *(tag("div", part) for part in parts), class_="columns")
