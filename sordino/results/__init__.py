"""Results in Python: runs, comparisons, sweeps, predictions, and files of attacks and audits.

Result of a run in Python: `sordino.run(...)` returns it, and `sordino.open_run(folder)` opens that of any run folder.

Facts are read from the folder when they are asked for. Accuracies of single clients are for the evaluator: they depend
on the clients' test data, and no epsilon covers them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from sordino.accounting.claims import Status, Subject
from sordino.accounting.composition import simulated
from sordino.accounting.statement import epsilons
from sordino.branches import part
from sordino.errors import extra
from sordino.ledger.books import EVERYONE, Entry, Op
from sordino.metrics import HEADLINES, Headline, PreparedRow, RoundRow
from sordino.metrics.measures import Metrics, final, headline, last_scored, scores, warnings
from sordino.receipts import Receipt
from sordino.receipts.folder import RunFolder, numbers
from sordino.results.markup import Html, joined, tag
from sordino.runs.listing import newest, promised
from sordino.runs.trackers import epsilon_name
from sordino.user_code import lent

if TYPE_CHECKING:
    import pandas
    from torch import Tensor


@dataclass(frozen=True, repr=False)
class Result:
    """Metrics and guarantees of a run: plain lists, data frames, the model, the page."""

    folder: Path
    notes: list[str] = field(default_factory=list)  # remarks that no table shows
    interrupted: bool = False
    objects: Mapping[str, object] = field(default_factory=dict)  # of this session, that the run was begun with

    @property
    def _run(self) -> RunFolder:
        return RunFolder(self.folder)

    @cached_property
    def metrics(self) -> list[RoundRow]:
        """One row per round, as in metrics.jsonl."""
        return self._run.metrics()

    @cached_property
    def preparation(self) -> list[PreparedRow]:
        """One row per round of the phases before the first round, as in preparation.jsonl; empty where there were
        none.
        """
        return self._run.prepared()

    @cached_property
    def receipt(self) -> Receipt:
        """Content of privacy.json: the guarantees, the spent budget, and the assumptions."""
        return self._run.receipt()

    @cached_property
    def candidates(self) -> str:
        """Warning to print beside every result where public images of the run (candidates) are not, or not known to be,
        those of a text-to-image model; else empty."""
        from sordino.results.preparation_facts import label_of

        return label_of(self._run.experiment)

    @property
    def accuracy(self) -> float | None:
        """Accuracy on all test examples, after the last evaluated round; None where the task has no accuracy."""
        return final(self.metrics, "accuracy")

    @property
    def score(self) -> tuple[Headline, float] | None:
        """The headline metric (name, wording, direction) and its value after the last evaluated round; None where no
        round was evaluated.
        """
        last = last_scored(self.metrics)
        return None if last is None else last.headline

    @property
    def promise(self) -> str:
        """The strongest guarantee in a line: epsilon, unit, neighbours, adversary, delta and status, marked where it is
        of a simulation.
        """
        found = newest(self._run, self.metrics)
        return "no receipt yet: the run is not finished" if found is None else promised(found)

    @property
    def model(self) -> dict[str, Tensor]:
        """The global model where the run last stopped: all that the network holds, for `net.load_state_dict`."""
        from sordino.engine.checkpoint import tensors
        from sordino.runs.bundle import no_model

        path = self._run.model_file
        if not path.exists():
            raise no_model(self.folder)
        return tensors(path)

    # data frames ----------------------------------------------------------------------------------------------------

    @cached_property
    def rounds(self) -> pandas.DataFrame:
        """One row per round: accuracy, loss, mean, deviation and worst tenth over clients, bytes, spent share of the
        budget.

        There is one column `epsilon_UNIT_NEIGHBOURS_ADVERSARY_STATUS` per finite guarantee, beside their `delta`, with
        values after a dozen of the rounds only: each of them is a composition of everything released until then, which
        may take a second.
        """
        rows = frame([numbers(row.to_json()) for row in self.metrics], ["round"], instead="`result.metrics`")
        entries, shares, population, delta = self._spending
        if shares:
            rows["spent_share"] = rows["round"].map(dict(zip(rounds_after(entries), shares, strict=True)))
        repeatable = simulated(entry.released for entry in entries)
        if lines := curve(entries, population, delta, self._run.environment.shares_scores):
            rows["delta"] = delta
        for line in lines:
            rows[epsilon_name(line, line.status, repeatable)] = rows["round"].map(dict(line.points))
        return rows

    @cached_property
    def clients(self) -> pandas.DataFrame:
        """One row per client: examples, rounds that it took part in and may take part in, budget spent and in total,
        and its accuracy (or loss)."""
        from sordino.receipts.receipt import spending

        with lent(self.objects):
            clients = spending(self.folder).by_client
        rows = frame([client.to_json() for client in clients], instead="`sordino privacy spent RUN --json`")
        rows["spent_share"] = [c.spent_share for c in clients]
        rows["spent"] = [_amount(c.spent) for c in clients]
        rows["granted"] = [math.inf if c.granted is None else _amount(c.granted) for c in clients]
        scored = next((row.clients for row in reversed(self.metrics) if row.clients is not None), None)
        if scored is not None and scored.each is not None:  # single clients are scored where there are not too many
            rows[scored.metric] = [math.nan if value is None else value for value in scored.each]
        return rows

    @cached_property
    def privacy(self) -> pandas.DataFrame:
        """One row per guarantee: what can still be learned about one `unit` by an `adversary`."""
        facts = "epsilon", "delta", "status", "nominal_epsilon", "accountant"
        rows = [
            {
                **dict(row.subject),
                **{name: getattr(row, name) for name in facts},
                "nominal_epsilon": math.nan if row.nominal_epsilon is None else row.nominal_epsilon,
                "simulated": self.receipt.simulated,
                "because": "; ".join(row.because),
                "releases": row.releases,
            }
            for row in self.receipt.guarantees
        ]
        columns = [*Subject.model_fields, *facts, "simulated", "because", "releases"]
        return frame(rows, columns, instead="`result.receipt`")

    @cached_property
    def _spending(self) -> tuple[list[Entry], list[float], int, float]:
        """Entries of the ledger, the largest share of a client's budget spent after each of them, the number of
        clients, and delta.
        """
        from sordino.receipts.newest import check_run
        from sordino.receipts.receipt import opened

        check_run(self._run)
        with lent(self.objects):
            parts, federation = opened(self.folder)
        try:
            entries = federation.entries()
        finally:
            federation.ledger.close()
        plan, spent, shares = federation.plan, Counter[tuple[str, int]](), []
        for entry in entries if plan.cap else ():
            spent.update({(who, i): part for who, amount in entry.charges.items() for i, part in enumerate(amount)})
            limits = {who: plan.cap if who == EVERYONE else plan.cap_of(int(who)) for who, _ in spent}
            shares.append(max((part / (limits[who] or ())[i] for (who, i), part in spent.items()), default=0.0))
        return entries, shares, len(federation.sizes), parts.experiment.privacy.delta

    # what a person sees ---------------------------------------------------------------------------------------------

    def report(self, out: str | Path | None = None) -> Path:
        """Write the page (report.html in the run folder, or `out`) and return its path."""
        write: Callable[[Path, Path | None], Path] = part("pages", "run")
        with lent(self.objects):
            return write(self.folder, None if out is None else Path(out))

    @property
    def _reached(self) -> str:
        last = last_scored(self.metrics)
        return "not evaluated yet" if last is None else last.in_words

    def __repr__(self) -> str:
        lines = [f"Result of {len(self.metrics)} rounds in {self.folder}", self._reached, *warnings(self.metrics)]
        lines += [self.promise, self.candidates]
        return "\n  ".join(filter(None, lines))

    def _repr_html_(self) -> str:
        remarks = (*warnings(self.metrics), self.promise, self.candidates, *self.notes)
        parts = [
            joined((tag("strong", self._reached), f" after {len(self.metrics)} rounds")),
            *filter(None, remarks),
            tag("code", str(self.folder)),
        ]
        return tag("div", _curve(self.metrics), *(tag("div", line) for line in parts), style="line-height:1.6")


def open_run(folder: str | Path, objects: Mapping[str, object] | None = None) -> Result:
    """Open a run folder: of a run that is finished, stopped, or still going on in another process. `objects`: Python
    objects that the run was begun with, by the names in its experiment.
    """
    run = RunFolder(Path(folder))
    run.check()
    return Result(run.path, run.notes(), objects=objects or {})


def _amount(parts: tuple[float, ...]) -> float | tuple[float, ...]:
    """A stored amount of privacy loss: one number, or a tuple with one number for each order of Rényi DP."""
    return parts[0] if len(parts) == 1 else parts


def _curve(metrics: Metrics, width: int = 260, height: int = 64) -> Html:
    """SVG of the headline score over rounds; empty where there are fewer than two points."""
    judged = HEADLINES[headline(metrics)]
    points = [(row.round, score) for row, score in scores(metrics)]
    rounds, values = [x for x, _ in points], [y for _, y in points]
    if len(points) < 2 or not all(map(math.isfinite, values)):
        return Html("")
    low, high = (0.0, 1.0) if judged.percent else (min(values), max(values))
    across, up = (rounds[-1] - rounds[0]) or 1, (high - low) or 1
    line = " ".join(f"{(x - rounds[0]) / across * width:.1f},{height - (y - low) / up * height:.1f}" for x, y in points)
    description = f"{judged.words} from {values[0]:.3g} in round {rounds[0]} to {values[-1]:.3g} in round {rounds[-1]}"
    axes = tag("path", d=f"M0,0V{height}H{width}", fill="none", stroke="currentColor", stroke_opacity=".3")
    curve = tag("polyline", points=line, fill="none", stroke="#2a78d6", stroke_width="2")
    size = {"width": f"{width + 4}", "height": f"{height + 4}", "viewBox": f"-2 -2 {width + 4} {height + 4}"}
    return tag("svg", axes, curve, role="img", aria_label=description, style="display:block", **size)


def frame(rows: Sequence[Mapping[str, object]], columns: Sequence[str] = (), *, instead: str) -> pandas.DataFrame:
    """Make a data frame of rows; `columns` are its columns where there are no rows. `instead`: where to find the same
    numbers without pandas, for the error if pandas is missing.
    """
    with extra("frames", "data frames", "pandas-missing", otherwise=f"; {instead} has the same numbers without pandas"):
        import pandas
    return pandas.DataFrame(list(rows), columns=None if rows else list(columns))


POINTS = 12  # of the epsilon curve: each is a full composition


Points = tuple[tuple[int, float], ...]  # (rounds, epsilon)


class Curve(Subject):
    """Epsilon over rounds for one guarantee, where it is finite. A preparation ends with round 0."""

    points: Points
    status: Status


def curve(entries: Sequence[Entry], population: int, delta: float, scored: bool | None = None) -> list[Curve]:
    """Epsilon over rounds: for each guarantee with a finite epsilon, its value after some of the rounds. `scored`: the
    server gets exact test scores, beside which nothing holds of a client against it.
    """
    points: dict[Subject, dict[int, float]] = {}
    status: dict[Subject, Status] = {}
    notes, ended = [entry.released for entry in entries], rounds_after(entries)
    for stop in stops(len(notes)):
        for subject, epsilon, how_far in epsilons(notes[:stop], population, delta):
            if scored and (subject.unit, subject.adversary) == ("client", "server"):
                continue
            points.setdefault(subject, {})[ended[stop - 1]] = epsilon
            status[subject] = how_far
    return [
        Curve(**dict(subject), points=tuple(found.items()), status=status[subject]) for subject, found in points.items()
    ]


def rounds_after(entries: Sequence[Entry]) -> list[int]:
    """The round that each ledger entry is about, by its name: a preparation has entries too, and a site none for the
    rounds that it missed. 0: of a preparation.
    """
    return [0 if (op := Op.of(entry.op)).phase else op.round + 1 for entry in entries]


def stops(rounds: int) -> list[int]:
    """Rounds after which epsilon is composed: a dozen, at even distances."""
    return sorted({max(1, round(rounds * i / POINTS)) for i in range(1, POINTS + 1)}) if rounds else []
