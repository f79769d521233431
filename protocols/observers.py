"""The interface by which doors report calls and connections to the metrics: one plain call for each."""

from __future__ import annotations

from typing import Protocol


class CallObserver(Protocol):
    """Implemented by the metrics. Calls are cheap and never raise."""

    def answered(self, method: str, code: str, seconds: float) -> None:
        """A call ended after so long; `code` is the status of its answer, in the protocol's own word."""

    def refused(self, topic: str, group: str) -> None:
        """A call about these ended badly; names are as they came and may be anything, or empty."""


class ConnectionObserver(Protocol):
    """Implemented by the metrics. Calls are cheap and never raise."""

    def opened(self) -> None:
        """A connection is there."""

    def closed(self) -> None:
        """One of these is not any more."""

    def calls(self, more: int) -> None:
        """So many calls more are open, or fewer, than a second ago."""

    def turned_away(self) -> None:
        """One more was refused: there were too many."""

    def crowded_out(self) -> None:
        """One more was refused: there were too many from its address."""

    def handshakes(self, more: int) -> None:
        """So many handshakes of TLS more are under way, or fewer."""

    def handshake_failed(self) -> None:
        """One ended without a connection."""

    def violated(self, kind: str, count: int) -> None:
        """So many connections, or calls, were ended for breaking a rule or going beyond a bound."""

    def streams_refused(self, count: int) -> None:
        """So many calls were refused, since their connection had too many open."""


class SniffingObserver(ConnectionObserver, Protocol):
    """Of addresses that are shared: a connection is one of these until it is known what it speaks."""

    def found(self, protocol: str, secured: bool) -> None:
        """One speaks this protocol, inside of TLS or not, and is its door's from now on."""


class NullConnections:
    """Counts nothing."""

    __slots__ = ()

    def opened(self) -> None: ...
    def closed(self) -> None: ...
    def calls(self, more: int) -> None: ...
    def turned_away(self) -> None: ...
    def crowded_out(self) -> None: ...
    def handshakes(self, more: int) -> None: ...
    def handshake_failed(self) -> None: ...
    def violated(self, kind: str, count: int) -> None: ...
    def streams_refused(self, count: int) -> None: ...


class NullSniffing(NullConnections):
    """Counts nothing."""

    __slots__ = ()

    def found(self, protocol: str, secured: bool) -> None: ...


class NullCalls:
    """Counts nothing."""

    __slots__ = ()

    def answered(self, method: str, code: str, seconds: float) -> None: ...
    def refused(self, topic: str, group: str) -> None: ...
