"""Progress of a run, live in a terminal, in plain lines elsewhere: round, score, time left, and epsilon so far."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

if TYPE_CHECKING:
    from sordino.budget.plan import Plan
    from sordino.metrics import Scores
    from sordino.runs.play import Progress as Step

EVERY = 2.0  # seconds between plain lines
SELDOM = 10.0  # between those that only say what is waited for
WAITING = "sordino.waiting"  # logger of work that takes long before a round


@contextmanager
def progress(console: Console) -> Iterator[Callable[[Step], None]]:
    spending, reached, price = LiveSpending(), ProgressSoFar(), Text("loading the data and the model", style="dim")
    if console.quiet:
        yield lambda step: None
        return
    if not is_live(console):
        with _waiting(_now_and_then(console)):
            yield _lines(console, spending, reached)
        return
    bar = rounds_bar(console)
    task = bar.add_task("", total=None, reached="")
    with (
        Live(Group(bar, price), console=console, transient=True, refresh_per_second=4),
        _waiting(lambda text: setattr(price, "plain", text)),
    ):
        begun = False

        def watch(step: Step) -> None:
            nonlocal begun
            if step.metrics.phase:
                price.plain = before_round_1(step)
                return
            if not begun:  # a resumed run begins in the middle: what is done already says nothing about the speed
                bar.reset(task, total=step.rounds, completed=step.round, reached=reached.text(step.metrics))
                begun = True
                for note in step.warned:
                    bar.console.print(f"note {note}", highlight=False, markup=False)
            bar.update(task, completed=step.round, reached=reached.text(step.metrics))
            price.plain = spending.text(step)

        yield watch


class _ProgressHandler(logging.Handler):
    """Log handler that passes messages about long-running work on to the progress display."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(record.getMessage())


@contextmanager
def _waiting(tell: Callable[[str], None]) -> Iterator[None]:
    log, handler = logging.getLogger(WAITING), _ProgressHandler(tell)
    before = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


def _now_and_then(console: Console) -> Callable[[str], None]:
    last = -math.inf

    def tell(text: str) -> None:
        nonlocal last
        if time.monotonic() - last > SELDOM:
            last = time.monotonic()
            with contextlib.suppress(OSError):
                console.print(text, highlight=False, markup=False, soft_wrap=True)

    return tell


def rounds_bar(console: Console) -> Progress:
    columns = (TextColumn("round"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[reached]}"))
    return Progress(*columns, TimeRemainingColumn(), console=console, transient=True)


def is_live(console: Console) -> bool:
    """True for a terminal, or a notebook that can redraw."""
    return console.is_terminal or (console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None)


def left(seconds: float) -> str:
    """Time that is left, in the two largest units."""
    if not math.isfinite(seconds):
        return ""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours} h {m:02} min left" if hours else f"{m} min {s:02} s left" if m else f"{s} s left"


def _lines(console: Console, spending: LiveSpending, reached: ProgressSoFar) -> Callable[[Step], None]:
    last = time.monotonic()
    first: tuple[float, int] | None = None

    def say(line: str) -> None:
        with contextlib.suppress(OSError):  # a run goes on where its progress cannot be printed
            console.print(line, highlight=False, markup=False, soft_wrap=True)

    def watch(step: Step) -> None:
        nonlocal last, first
        if step.metrics.phase:
            say(before_round_1(step))
            return
        now, done = time.monotonic(), reached.text(step.metrics)
        if first is None:
            first = now, step.round
            for note in step.warned:
                say(f"note {note}")
        if now - last > EVERY or step.round == step.rounds:
            rate = (step.round - first[1]) / (now - first[0]) if now > first[0] else 0.0
            remaining = left((step.rounds - step.round) / rate) if rate and step.round < step.rounds else ""
            parts = [part for part in (done, spending.text(step), remaining) if part]
            say(f"round {step.round}/{step.rounds}  {'  '.join(parts)}")
            last = time.monotonic()

    return watch


def before_round_1(step: Step) -> str:
    row = step.metrics
    return f"before round 1: {row.phase} {row.round}, {row.answered} of {row.active} clients answered"


class ProgressSoFar:
    """Text of the newest score, shown until another round is evaluated."""

    def __init__(self) -> None:
        self._text = ""

    def text(self, row: Scores) -> str:
        self._text = row.in_words or self._text
        return self._text


class LiveSpending:
    """Epsilon while a run goes on: the receipt's own statement, composed from the ledger so far.

    Composing a statement takes from milliseconds to seconds, so the next one waits twenty times as long as the last one
    took: at most 5 % of a run, and once more after its last round. In between, an older epsilon is shown with its
    round. The share of the budget that is spent is exact and free.
    """

    SHARE = 0.05
    EVERY = 3.0  # seconds, at least

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last, self._cost = clock(), 0.5  # seconds: what a first statement may take
        self._said = ""
        self._round = 0

    def text(self, step: Step) -> str:
        plan = step.federation.plan
        if plan.offer is None:
            return "no budget pays for this noise" if step.setup.priced.promises else "ε ∞: nothing is promised"
        if step.round == step.rounds or self._clock() - self._last >= max(self.EVERY, self._cost / self.SHARE):
            self._compose(step)
        share = f"{spent_share(step):.0%} of the budget is spent{_own_count(plan)}" if plan.budget else ""
        if not self._said:
            return share
        late = "" if self._round == step.round else f" after round {self._round}"
        return f"{self._said}{late}" + (f"; {share}" if share else "")

    def _compose(self, step: Step) -> None:
        from sordino.accounting.composition import simulated
        from sordino.accounting.statement import statement
        from sordino.runs.listing import promise

        begun, federation = self._clock(), step.federation
        notes = [entry.released for entry in federation.entries()]
        rows = statement(notes, federation.population, step.setup.experiment.privacy.delta)
        offer = federation.plan.offer
        assert offer is not None
        self._said = next((promise([row], simulated(notes)) for row in rows if row.subject == offer.subject), "")
        self._last, self._round = self._clock(), step.round
        self._cost = self._last - begun


def _own_count(plan: Plan) -> str:
    """Words behind the share of a budget that a publication counts, which proves nothing."""
    from sordino.accounting.pricing import NominalPrice
    from sordino.receipts import OWN_COUNT

    return OWN_COUNT if plan.claimed or isinstance(plan.pricing, NominalPrice) else ""


def spent_share(step: Step) -> float:
    """Largest share of its budget that any client has spent, by the ledger's own sums."""
    from sordino.receipts.receipt import share_of

    shares = [share_of(step.federation, client) for client in step.federation.spent]
    return max(shares, default=0.0)
