"""Request handlers of sites in the server's own process, behind a carrier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sordino.transport.message import Arrived, Carrier, Writes

Reply = Callable[[bytes], bytes]


class InProcess(Carrier):
    """Carries a message to the handler of its receiver when somebody waits for the answer."""

    def __init__(self, handlers: Mapping[str, Reply]) -> None:
        self._handlers, self._waiting, self._sent = handlers, dict[int, tuple[str, Writes]](), 0

    def peers(self) -> frozenset[str]:
        return frozenset(self._handlers)

    @property
    def who(self) -> Sequence[str]:
        return list(self._handlers)

    def send(self, to: str, message: Writes) -> int:
        self._sent += 1
        self._waiting[self._sent] = to, message
        return self._sent

    def came(self, seconds: float) -> Sequence[Arrived]:
        if not self._waiting:
            return []
        ticket = next(iter(self._waiting))
        to, message = self._waiting.pop(ticket)
        return [Arrived(ticket, self._handlers[to](message()))]

    def cancel(self, ticket: int) -> None:
        self._waiting.pop(ticket, None)
