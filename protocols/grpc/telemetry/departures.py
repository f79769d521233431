"""Clients that announced their end, and Telemetry streams that they still open."""

from __future__ import annotations

from collections.abc import Callable

from popgate.clock import Clock, Timer

KNOWN_S = 60.0
"""How long a good-bye is remembered."""
SILENT_S = 20.0
"""Twice the time between the heartbeats of clients."""
_MOST = 10_000


class Departures:
    """Ends a stream that a client opened after it announced its end, unless a heartbeat follows.

    Java 5.0.0 reopens a broken stream while it closes, forgets the new one and waits for its end: its
    `close()` never returned (seen). A client may use an id again; then it sends heartbeats.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left: dict[str, float] = {}
        """When which client said good-bye, those who left first at the beginning."""

    def __repr__(self) -> str:
        return f"<Departures {len(self._left)}>"

    def left(self, client_key: str) -> None:
        """The client announced its end."""
        now = self._clock.monotonic()
        self._left.pop(client_key, None)
        while self._left:
            first = next(iter(self._left))
            if len(self._left) < _MOST and now - self._left[first] < KNOWN_S:
                break
            del self._left[first]
        self._left[client_key] = now

    def heard(self, client_key: str) -> None:
        """The client sent a heartbeat: it is there again."""
        self._left.pop(client_key, None)

    def watch(self, client_key: str, end: Callable[[], object]) -> Timer | None:
        """Call `end` in a while if a client of this id left lately and is not heard of; to be cancelled."""
        since = self._left.get(client_key)
        if since is None or self._clock.monotonic() - since >= KNOWN_S:
            return None

        def look() -> None:
            if self._left.get(client_key) == since:
                end()

        return self._clock.call_later(SILENT_S, look)
