"""Server-sent events for an open dashboard page. Every event of a run is sent once and in order; after a break the
browser reports the last event that it has, and gets the rest."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from sordino.report.dashboard.page import of_event, regions
from sordino.report.dashboard.run_state import Now, Watched

AGAIN = 2000  # ms until a browser connects again


class Cursor(NamedTuple):
    """Position of a reader: how many events it has seen, and a digest of the last one."""

    events: int = 0
    digest: int = 0

    def __str__(self) -> str:
        return f"{self.events}.{self.digest:08x}"

    @classmethod
    def read(cls, text: str) -> Cursor:
        """The cursor that a text holds; the beginning where it holds none."""
        found = re.fullmatch(r"([0-9]{1,9})\.([0-9a-f]{8})", text)
        return cls() if found is None else cls(int(found[1]), int(found[2], 16))


def cursor(now: Now, events: int | None = None) -> Cursor:
    """The cursor after so many events; by default after all of them."""
    events = len(now.events) if events is None else events
    last = now.events[:events][-1:]
    return Cursor(events, zlib.crc32(json.dumps(last[0].to_json()).encode()) if last else 0)


class Listener:
    """One reader of the stream, and what it has been sent."""

    def __init__(self, at: Cursor) -> None:
        self.at = at
        self._regions: dict[str, str] = {}
        self._seen: Now | None = None

    def more(self, run: Watched, now: Now) -> Iterator[str]:
        """The messages that this reader lacks. Where the events that it has are not those of the run, it starts from
        the beginning.
        """
        if now is self._seen:
            return
        self._seen = now
        if cursor(now, self.at.events) != self.at or self.at.events > len(now.events):
            self.at = Cursor()
            yield message("anew", None, self.at)
        for i in range(self.at.events, len(now.events)):
            self.at = cursor(now, i + 1)
            yield message("event", of_event(now.events[i]), self.at)
        parts: dict[str, str] = {**regions(run, now)}
        if changed := {name: part for name, part in parts.items() if part != self._regions.get(name)}:
            self._regions = parts
            yield message("state", changed, self.at)


def message(name: str, content: object, at: Cursor) -> str:
    """One message of the stream. JSON has no line breaks, so no content can end a message."""
    return f"id: {at}\nevent: {name}\ndata: {json.dumps(content)}\n\n"
