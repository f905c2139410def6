"""Two pages of one run, each in one file that opens from disk.

`write` makes the report: guarantees, scores, spending and partition. `annex_page` makes the privacy annex for a data
protection assessment, as HTML or printed to a PDF: who is protected, from whom, how far, on which assumptions, and what
was checked. The annex has no script and nothing to unfold, and an installed browser prints its PDF.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sordino.accounting.facts import delta_text, epsilon_text
from sordino.accounting.words import headline
from sordino.cli.tables import SPENT, group_cells, spent_cells
from sordino.errors import BackendUnavailable, LedgerError
from sordino.ledger.files import atomic_write
from sordino.metrics import bytes_text
from sordino.metrics.measures import last_scored, last_ten, scores
from sordino.planning import AGREEMENT_FILE
from sordino.receipts.documents import COLUMNS, FORGED, Evidence
from sordino.receipts.documents import table as rows_of
from sordino.receipts.folder import RunFolder
from sordino.receipts.receipt import bind_page
from sordino.report import run_facts, sections
from sordino.report.charts import Axis, bars, heat, lines, number, percent
from sordino.report.frame import document, promises, self_contained, source, top
from sordino.report.run_facts import EVALUATOR, EVALUATORS, RunFacts, gather
from sordino.results.markup import Html, cards, folded, joined, listed, note, saved, scrolled, section, table, tag

MIXED = (
    "Total variation: how far a client's mix of labels is from that of all clients, 0 alike to 1. Effective classes: "
    "as many equally frequent classes would be as mixed."
)


def write(folder: Path, out: Path | None = None, facts: RunFacts | None = None, evaluator: bool = False) -> Path:
    """Write the page of a run: report.html in its folder, which becomes one of the files of its receipt; or the file
    `out`, for which the run is only read.

    The page of a run with real noise may be shown. What its `evaluator` sees is another page, in the private folder.
    """
    shown = gather(folder, evaluator) if facts is None else facts
    home = page_of(folder, evaluator)
    own, target = home.parent != folder, home if out is None else out
    target.parent.mkdir(mode=0o700 if own else 0o777, parents=True, exist_ok=True)
    atomic_write(target, page(shown).encode(), private=own)
    if out is None and not own:
        try:
            bind_page(folder)
        except LedgerError:  # the receipt would not hold beside a page that its ledger does not know
            target.unlink()
            raise
    return target


def page_of(folder: Path, evaluator: bool) -> Path:
    """The file of a run's page; with real noise the evaluator's lies in the private folder, in a copy without one too:
    report.html may be shown, and the receipt covers it."""
    run = RunFolder(folder)
    return RunFolder(run.private).evaluators_page if evaluator and run.experiment.privacy.real else run.page_file


def page(facts: RunFacts) -> str:
    mark = f"{EVALUATOR}: " if facts.notice == EVALUATORS else ""
    return self_contained(
        f"{mark}sordino: {facts.name}",
        top(facts.name, facts.lead, facts.notice, *facts.warnings),
        tag("dl", cards(_headline(facts)), class_="cards"),
        section("Privacy guarantees, by unit and adversary", promises(facts.guarantees)),
        section("Phase by phase", listed(facts.by_phase, class_="plain")),
        section("What this rests on", listed(facts.spent.assumptions, class_="plain")),
        "" if facts.audit is None else sections.audited(facts.audit),
        "" if facts.attackers is None else sections.attacked(facts.attackers),
        section("Learning", tag("div", *_learning(facts), class_="grid")),
        "" if facts.prepared is None else sections.preparation(facts.prepared),
        section("Privacy spent", tag("div", *_spent(facts), class_="grid")),
        _partition(facts),
        section("Do it again", *_again(facts)),
    )


def _headline(facts: RunFacts) -> list[tuple[str, str, str]]:
    """Cards with the headline numbers: the guarantee first, then scores, traffic last."""
    finite = [row for row in facts.guarantees if math.isfinite(row.epsilon)]
    best = next((row for row in finite if row.unit == "client"), next(iter(finite), None))
    if best is None:
        found = [("epsilon", "∞", "nothing is promised")]
    else:
        printed = best.nominal_epsilon
        small = (
            f"{best.standing}, δ {delta_text(best.delta)}"
            if printed is None
            else f"holds, δ {delta_text(best.delta)}; nominal {epsilon_text(printed)} proves nothing"
        )
        found = [(f"ε per {best.unit} ({best.neighbours}), against {best.by}", epsilon_text(best.epsilon), small)]
    last = last_scored(facts.metrics)
    if last is not None and last.headline is not None:
        judged, value = last.headline
        write = run_facts.written(judged)
        ten = min(len(scores(facts.metrics)), 10)
        found.append((f"test {judged.full}, final", write(value), ""))
        found.append((f"mean of last {ten}", write(last_ten(facts.metrics) or value), ""))
        if (constant := last.constant) is not None:
            found.append((judged.constant, write(constant), ""))
        found += [(name, f"{v:.4f}", "") for name, v in last.scores]
        if (of := last.clients) is not None:
            found.append(("mean over clients", write(of.mean), f"± {write(of.std)} between them"))
            found.append(("worst 10% of clients", write(of.worst_tenth), ""))
    if all(row.bytes_up is not None for row in facts.metrics):
        down, up = (sum(getattr(row, way) or 0 for row in facts.metrics) for way in ("bytes_down", "bytes_up"))
        before = f", {bytes_text(facts.prepared.cost.bytes)} before round 1" if facts.prepared else ""
        found.append(("sent down", bytes_text(down), f"{bytes_text(up)} up{before}"))
    return [*found, *((name, value, "") for name, value in facts.secure)]


def _learning(facts: RunFacts) -> list[Html]:
    last = last_scored(facts.metrics)
    rows = run_facts.whole(facts)
    sent = run_facts.traffic(rows) if facts.metrics else None
    if last is None:
        held = tag("p", "Scores of the model are for the evaluator of this run only.")
        return [held, *([lines(sent)] if sent else [])]
    judged = run_facts.judged_by(facts.metrics)
    drawn = [run_facts.score(facts.model, facts.metrics)]
    drawn += [
        chart for chart in (run_facts.score_over_bytes(facts), run_facts.score_over_compute(facts), sent) if chart
    ]
    found = list(map(lines, drawn))
    if last.clients is not None and last.clients.each is not None:
        each = [(facts.called(k), value) for k, value in enumerate(last.clients.each) if value is not None]
        each.sort(key=lambda one: one[1], reverse=not judged.higher)
        worst, write = max(1, math.ceil(len(each) / 10)), run_facts.written(judged)
        about = f"Test {judged.full} of the {facts.model} on each client's own share; the worst tenth stands out."
        axis = run_facts.score_axis(judged)._replace(label=f"{len(each)} clients")
        numbers = ("client", f"test {judged.words}"), [(name, write(value)) for name, value in each]
        found.insert(1, bars("Each client at the end, from worst to best", about, each, axis, numbers, worst))
    if last.confusion is not None:
        columns = ("true class", *(f"predicted {c}" for c in range(len(last.confusion))))
        counted: list[Sequence[str | int]] = [(str(c), *row) for c, row in enumerate(last.confusion)]
        found.append(tag("div", scrolled("Test examples by true and predicted class", columns, counted, whole=True)))
    return found


def _spent(facts: RunFacts) -> list[Html]:
    found = [lines(chart) for chart in run_facts.epsilons(facts)]
    endless = [f"one {row.unit}, against {row.by}" for row in facts.guarantees if not math.isfinite(row.epsilon)]
    if not found:
        found = [tag("p", "Nothing with a finite epsilon was released: no row of this run is protected.")]
        endless = []
    found += _budgets(facts)
    if endless:
        found.append(tag("p", f"Not drawn, because there is no finite epsilon: {'; '.join(endless)}."))
    return found


def _budgets(facts: RunFacts) -> list[Html]:
    granted = [one for one in facts.spent.by_client if one.granted]
    if not granted:
        return []
    budget = facts.spent.budget
    groups = () if budget is None else budget.groups
    claimed = any(group.claimed is not None for group in groups)
    rows = [(facts.called(one.client), *spent_cells(one)) for one in facts.spent.by_client]
    about = (
        "In the publication's own count of epsilon, which proves nothing: read the table below."
        if claimed
        else "In the publication's own count of epsilon, which proves nothing."
        if budget is not None and budget.nominal(facts.spent.guarantees)
        else f"In {facts.spent.currency}, the currency that adds up. A client whose budget is spent is not asked again."
    )
    spent = sorted(((facts.called(one.client), one.spent_share) for one in granted), key=lambda one: -one[1])
    axis = Axis(f"{len(spent)} of {facts.clients} clients, from most to least spent", percent, most=1.0)
    found = [bars("Spent of what each client granted", about, spent, axis, (SPENT, rows), limit="granted")]
    if budget is not None and groups and budget.subject is not None:
        title, heads, lost = group_cells(budget, facts.spent.simulated)
        caption = title + ("; what the publication's count claims, and what holds" if claimed else "")
        found.append(tag("div", scrolled(caption, heads, lost, whole=True), class_="row"))
    return found


def _partition(facts: RunFacts) -> Html:
    """Section on the partition: labels by client; empty where whoever reads the page must not know them."""
    counts = facts.partition
    if counts is None:
        return Html("")
    names, sizes = [facts.called(k) for k in range(len(counts))], [sum(row) for row in counts]
    if len(counts[0]) > 1:
        group = math.ceil(len(counts) / 120)
        mean = f"; each row is the mean of {group} neighbouring clients" if group > 1 else ""
        about = f"Training examples of each class that a client holds. Darker is more{mean}."
        drawn = heat("Labels of each client", about, counts, names)
    else:
        named = list(zip(names, map(float, sizes), strict=True))
        numbers = ("client", "examples"), list(zip(names, sizes, strict=True))
        drawn = bars("Examples of each client", "One bar per client.", named, Axis(f"{len(sizes)} clients"), numbers)
    unlike = [(name.replace("_", " "), number(value)) for name, value in (facts.heterogeneity or {}).items()]
    measured = scrolled("How different the clients are", ("measure", "value"), unlike, whole=True)
    return section("Partition among clients", tag("div", drawn, tag("figure", measured, note(MIXED)), class_="grid"))


def _again(facts: RunFacts) -> list[Html]:
    environment = json.dumps({**facts.environment.to_json(), "ledger_head": facts.spent.ledger_head}, indent=2)
    return [
        tag("p", "Save the configuration as experiment.toml and run:"),
        tag("pre", "\n".join(facts.commands), tabindex="0"),
        configuration("Configuration", facts.experiment),
        folded("Environment", tag("pre", environment, tabindex="0")),
    ]


def configuration(title: str, toml: str) -> Html:
    """The settings of an experiment, with a link that saves them."""
    return folded(title, saved("experiment.toml", toml), tag("pre", toml, tabindex="0"))


NOTHING = "Nothing is promised about anybody by this run."
READ = f"privacy.json, ledger.sqlite, experiment.toml, {AGREEMENT_FILE} and environment.json"
BROWSERS = (
    "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge", "msedge",
)  # fmt: skip
FLAGS = ("--headless", "--disable-gpu", "--no-first-run", "--no-pdf-header-footer", "--disable-background-networking")
PATIENCE = 120  # seconds
BY_HAND = "write it to a file ending in .html, open that in any browser, and print it to a PDF"


def annex_page(found: Evidence) -> str:
    """The privacy annex of a run, as HTML."""
    title = f"Privacy annex: {found.experiment.name}"
    policy = tag("meta", http_equiv="Content-Security-Policy", content="default-src 'none'; style-src 'unsafe-inline'")
    made_on = found.environment.started[:10] or "an unknown date"
    because = (why for row in found.rows if row.finite for why in row.because)
    rests = [*dict.fromkeys((*found.receipt.assumptions, *because, *found.public.void))]
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
        table("What is promised", COLUMNS, rows_of(found)),
        _columns(
            joined([_who(found), _how(found)]),
            section("Who is not", listed([row.words for row in found.rows if not row.finite])),
        ),
        section("What this rests on", listed(rests)),
        _columns(
            section("What does not agree", listed(found.verdict.wrong))
            or section("What was checked, and agrees", listed(found.verdict.agreed)),
            joined(
                [
                    section("What was not looked at", listed(found.verdict.unseen)),
                    section("What no receipt shows", listed(FORGED)),
                ]
            ),
        ),
        tag("footer", f"Ledger head {found.receipt.ledger_head}. Experiment {found.receipt.config}."),
    )
    return document(title, (policy, tag("style", source("annex.css"))), body)


def _who(found: Evidence) -> Html:
    kept = [row.words for row in found.rows if row.finite]
    if kept and not any(row.unit == "person" and row.finite for row in found.rows):
        kept.append(
            "A person who has several of these units is not protected as a whole by a promise about one of them."
        )
    return section("Who is protected", listed(kept or [NOTHING]))


def _how(found: Evidence) -> Html:
    budget = found.receipt.budget
    lines = [f"{found.setting}.", *(f"{line[0].upper()}{line[1:]}." for line in found.noise)]
    if budget is not None:
        low, high = budget.spent_share.min, budget.spent_share.max
        share = f"{high:.0%}" if low == high else f"{low:.0%} to {high:.0%}"
        count = budget.caveat(found.receipt.guarantees)
        lines.append(f"Each client granted a budget, counted in {budget.currency}, and has spent {share} of it{count}.")
    if found.noised:
        source = "a seed: a simulation" if found.simulated else "the operating system's entropy"
        lines.append(f"The noise comes from {source}. All releases of all rounds are added up by the accountant named.")
    return section("What was computed", listed(lines))


def _columns(*parts: Html) -> Html:
    return tag("div", *(tag("div", part) for part in parts), class_="columns")


def as_pdf(page: str, out: Path) -> Path:
    """Print a page to a PDF. It loads nothing and runs nothing."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        raise _cannot("no browser was found", f"one of {', '.join(BROWSERS[:3])} makes it")
    with tempfile.TemporaryDirectory() as place:
        source, target = Path(place) / "page.html", Path(place) / "page.pdf"
        source.write_text(page, encoding="utf-8")
        # browsers refuse their sandbox to root; the page has no script that it would hold back
        root = ["--no-sandbox"] if os.name == "posix" and os.geteuid() == 0 else []
        command = [browser, *FLAGS, *root, f"--user-data-dir={place}/profile", f"--print-to-pdf={target}"]
        try:
            subprocess.run([*command, source.as_uri()], capture_output=True, timeout=PATIENCE, check=True)
            printed = target.read_bytes()
        except (OSError, subprocess.SubprocessError) as error:
            raise _cannot(f"{browser} failed", str(error)) from None
    atomic_write(out, printed)
    return out


def _cannot(what: str, why: str) -> BackendUnavailable:
    return BackendUnavailable(f"a PDF cannot be printed: {what}", why=why, fix=BY_HAND, code="no-pdf-printer")
