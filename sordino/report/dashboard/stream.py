"""What the page is told while it is open: server-sent events. Everything that happened comes once and in order; after a
break the browser says how far it was, and gets the rest.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from sordino.report.dashboard.facts import Now, Watched
from sordino.report.dashboard.page import of_event, of_round, regions

AGAIN = 2000  # ms until a browser connects again


class Cursor(NamedTuple):
    """How far a reader is: so many events and rounds, and a digest of the last of each."""

    events: int = 0
    rounds: int = 0
    digest: int = 0

    def __str__(self) -> str:
        return f"{self.events}.{self.rounds}.{self.digest:08x}"

    @classmethod
    def read(cls, text: str) -> Cursor:
        """The cursor in a text; the beginning, where there is none."""
        found = re.fullmatch(r"([0-9]{1,9})\.([0-9]{1,9})\.([0-9a-f]{8})", text)
        return cls() if found is None else cls(int(found[1]), int(found[2]), int(found[3], 16))


def cursor(now: Now, events: int | None = None, rounds: int | None = None) -> Cursor:
    """Where a reader is who has so many; who has all, if nothing is said."""
    events, rounds = len(now.events) if events is None else events, len(now.rows) if rounds is None else rounds
    last = [*now.events[:events][-1:], *now.rows[:rounds][-1:]]
    return Cursor(events, rounds, zlib.crc32(json.dumps([one.to_json() for one in last]).encode()) if last else 0)


class Listener:
    """What one reader has been told."""

    def __init__(self, at: Cursor) -> None:
        self.at = at
        self._regions: dict[str, str] = {}
        self._seen: Now | None = None

    def more(self, run: Watched, now: Now) -> Iterator[str]:
        """The messages that this reader lacks. A run that goes on from a checkpoint may have taken rounds back: then it
        is told from the beginning.
        """
        if now is self._seen:
            return
        self._seen = now
        if cursor(now, self.at.events, self.at.rounds) != self.at or self._beyond(now):
            self.at = Cursor()
            yield message("anew", None, self.at)
        for i in range(self.at.events, len(now.events)):
            self.at = cursor(now, i + 1, self.at.rounds)
            yield message("event", of_event(now.events[i]), self.at)
        for i in range(self.at.rounds, len(now.rows)):
            self.at = cursor(now, self.at.events, i + 1)
            yield message("round", of_round(now.rows[i]), self.at)
        parts: dict[str, str] = {**regions(run, now)}
        if changed := {name: part for name, part in parts.items() if part != self._regions.get(name)}:
            self._regions = parts
            yield message("state", changed, self.at)

    def _beyond(self, now: Now) -> bool:
        return self.at.events > len(now.events) or self.at.rounds > len(now.rows)


def message(name: str, told: object, at: Cursor) -> str:
    """One message of a stream. JSON has no line breaks, so nothing that is told can end it."""
    return f"id: {at}\nevent: {name}\ndata: {json.dumps(told)}\n\n"
