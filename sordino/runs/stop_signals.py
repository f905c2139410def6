"""Stop signals: the first Ctrl-C or SIGTERM waits for the end of the round, so nothing is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

_PATIENT: list[Callable[[], bool]] = []  # the outermost, which holds the signals of this process


@contextlib.contextmanager
def patience() -> Iterator[Callable[[], bool]]:
    """Delay a first Ctrl-C to the end of the round; a second one stops at once.

    SIGTERM does the same, and SIGHUP too unless `nohup` had it ignored. SIGQUIT ends at once. Nested calls share the
    outermost one.
    """
    pressed = 0
    if _PATIENT:
        yield _PATIENT[-1]
        return

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed += 1
        if pressed > 1:
            raise KeyboardInterrupt
        again = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        with contextlib.suppress(OSError):  # the terminal may be gone
            os.write(2, f"stopping after this round; {again} again stops at once\n".encode())

    if threading.current_thread() is not threading.main_thread():  # only the main thread has signals to wait for
        yield lambda: False
        return
    waits: list[int] = [signal.SIGINT, signal.SIGTERM]
    known = signal.Signals.__members__  # Windows has no signals of terminals
    if "SIGHUP" in known and signal.getsignal(known["SIGHUP"]) is not signal.SIG_IGN:
        waits.append(known["SIGHUP"])
    before = {number: signal.signal(number, press) for number in waits}
    if "SIGQUIT" in known:
        before[known["SIGQUIT"]] = signal.signal(known["SIGQUIT"], signal.SIG_DFL)
    _PATIENT.append(lambda: pressed > 0)
    try:
        yield _PATIENT[-1]
    finally:
        _PATIENT.clear()
        for number, action in before.items():
            signal.signal(number, action)
