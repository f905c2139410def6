"""A slower device on a slower network than this machine's: waiting in place of them. Nothing that is computed or sent
changes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Emulated:
    latency_ms: float = 0.0  # each way
    down_mbit: float | None = None
    up_mbit: float | None = None
    compute: float = 1.0  # times slower

    def carried(self, messages: Iterable[bytes], answers: Iterator[bytes]) -> Iterator[bytes]:
        """Each answer as late as a device would be that is `compute` times as slow, behind such a network."""
        for message in messages:
            self._wait(message, self.down_mbit)
        begin = time.monotonic()
        for answer in answers:
            time.sleep((self.compute - 1) * (time.monotonic() - begin))
            self._wait(answer, self.up_mbit)
            yield answer
            begin = time.monotonic()

    def _wait(self, message: bytes, mbit: float | None) -> None:
        travel = 0.0 if mbit is None else 8 * len(message) / (mbit * 1e6)
        time.sleep(self.latency_ms / 1e3 + travel)
