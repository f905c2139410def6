"""Live progress in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from sordino.training import Progress as Step


@contextmanager
def progress(console: Console) -> Iterator[Callable[[Step], None]]:
    if not console.is_terminal:
        yield _lines(console)
        return
    columns = (
        TextColumn("round"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.fields[live]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("rounds", total=None, live="")

        def watch(step: Step) -> None:
            bar.update(task, total=step.rounds, completed=step.round, live=_live(step))

        yield watch


def _lines(console: Console) -> Callable[[Step], None]:
    last = time.monotonic()

    def watch(step: Step) -> None:
        nonlocal last
        if time.monotonic() - last > 2 or step.round == step.rounds:
            last = time.monotonic()
            console.print(f"round {step.round}/{step.rounds}  {_live(step)}")

    return watch


def _live(step: Step) -> str:
    if "accuracy" in step.metrics:
        return f"accuracy {step.metrics['accuracy']:.2%}"
    return f"loss {step.metrics['loss']:.4f}" if "loss" in step.metrics else ""
