"""A slower device on a slower network than this machine's: waiting in place of them. Nothing that is computed or sent
changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Emulated:
    latency_ms: float = 0.0  # each way
    down_mbit: float | None = None
    up_mbit: float | None = None
    compute: float = 1.0  # times slower

    def behind(self, answer: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
        """The same answers, each as late as from a device that is `compute` times as slow, behind such a network."""
        if self == Emulated():
            return answer

        def late(letter: bytes) -> bytes:
            self._wait(len(letter), self.down_mbit)
            begin = time.monotonic()
            said = answer(letter)
            time.sleep((self.compute - 1) * (time.monotonic() - begin))
            self._wait(len(said), self.up_mbit)
            return said

        return late

    def receive(self, size: int) -> None:
        """What everybody is handed once comes on the same way."""
        self._wait(size, self.down_mbit)

    def _wait(self, size: int, mbit: float | None) -> None:
        travel = 0.0 if mbit is None else 8 * size / (mbit * 1e6)
        time.sleep(self.latency_ms / 1e3 + travel)
