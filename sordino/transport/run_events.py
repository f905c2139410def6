"""Events of a run between sites, which connect, disconnect, are asked and answer. Each is a line of events.jsonl."""

from __future__ import annotations

from typing import Literal, TypeAlias

from sordino.accounting.facts import Fact

What: TypeAlias = Literal[
    "started",
    "stopped",
    "over",
    "unlisted",
    "connected",
    "cut off",
    "accepted",
    "refused",
    "failed",
    "gathering",
    "asked",
    "answered",
    "waiting",
    "deadline",
    "closing",
    "dropped",
    "lost",
    "missing",
    "declined",
    "turned away",
    "displaced",
    "late",
]
# With a hidden cohort only these may be shown. Connections tell which sites cannot have answered; and the time at
# which a round begins tells how long the previous one took, which grows with the number of sites that were asked.
OF_NOBODY = frozenset[What]({"started", "stopped", "over"})
OF_ROUNDS = frozenset[What]({"asked", "answered"})  # many in every round
OF_OTHERS = frozenset[What]({"declined", "turned away", "displaced"})  # others can cause these as often as they like
WARNINGS = OF_OTHERS | {"refused", "failed", "waiting", "deadline", "dropped", "late"}
ROUTINE = OF_ROUNDS | {"started", "accepted"}  # a terminal shows a progress bar and the number of sites instead


class RunEvent(Fact):
    """One event of a run between sites, with the facts known about it."""

    at: str = ""  # UTC
    event: What
    site: str = ""  # the site that it is about; empty: the writer of the log
    sites: tuple[str, ...] = ()
    revoked: tuple[str, ...] = ()  # those of `sites` that may no longer connect
    phase: str = ""  # of a preparation
    round: int | None = None
    count: int | None = None  # sites that take part, or clients that have answered
    of: int | None = None
    needed: int | None = None
    more: int = 0  # number of such events since the last log line, which have no line of their own
    why: str = ""

    @property
    def words(self) -> str:
        """Text of the event for a person."""
        who, why = self.site or "this one", f": {self.why}" if self.why else ""
        where = f"{self.phase + ', ' if self.phase else ''}round {self.round}"
        gone = _without(self.sites) + (f"; {self.why}" if self.why else "")
        few = f"{self.count} of {self.of} clients have answered"
        return {
            "started": "started",
            "stopped": f"stopped{why}",
            "over": "the run is over",
            "unlisted": f"not on the list yet: {', '.join(self.sites)}; `sordino identity allow` puts them there",
            "connected": f"{self.site} is connected" if self.site else "connected to the server",
            "cut off": f"{who} is cut off{why}" if self.site else f"cut off from the server{why}",
            "accepted": f"{who} takes part",
            "refused": f"{who}{why or ' has refused'}" if self.site else f"refused by the server{why}",
            "failed": f"the work on a round failed{why}",
            "gathering": f"{self.count} of {self.of} sites are there",
            "asked": f"{where}: asked {', '.join(self.sites) or 'nobody'}",
            "answered": f"{where}: {self.site + ' has ' if self.site else ''}answered",
            "waiting": f"{where} waits: {few}, {self.needed} are needed{gone}{self._remedy}",
            "dropped": f"{where}{why or f': a client of {who} drops out'}",
            "lost": f"{self.count} rounds had left this site that its folder does not know: lost, but charged",
            "missing": f"waits for the {self.site}",
            "declined": f"this site does not do what the server asks{why}",
            "turned away": f"not let in{' as ' + self.site if self.site else ''}{why}{_more(self.more)}",
            "displaced": f"{who} connects anew{why}{_more(self.more)}",
            "closing": f"{where} ends, to stop: {few}{_without(self.sites)}",
            "late": f"an answer came too late{why}",
            "deadline": f"{where}: the deadline has passed, {few}; it goes on{gone}",
        }[self.event]

    @property
    def _remedy(self) -> str:
        """Advice to an operator whose round waits for sites that may never come back."""
        revoked = f"; revoked: {', '.join(self.revoked)}" if self.revoked else ""
        fewer = f" (such as --minimum {self.count})" if self.count else ""
        return (
            f"{revoked}; the round needs another site that was drawn for it, or, if those that are silent are gone for "
            f"good, stop here and give the same command with a smaller --minimum{fewer}"
        )


def _more(times: int) -> str:
    return f" (and {times} more that are not listed)" if times else ""


def _without(sites: tuple[str, ...]) -> str:
    return f"; no answer from {', '.join(sites)}" if sites else ""
