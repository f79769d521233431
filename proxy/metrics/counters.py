"""The counters: the `Observer` of the processors, and the observers of the doors."""

from __future__ import annotations

from collections.abc import Callable

from popgate.errors import Fault
from popgate.model import Resolution
from proxy.metrics.histograms import COARSE, Histogram
from proxy.metrics.labels import OTHER, Capped


class OfTopic:
    """Counters of the sends to a topic."""

    __slots__ = ("failures", "messages", "seconds", "size")

    def __init__(self) -> None:
        self.messages = 0
        self.size = 0
        self.failures = 0
        self.seconds = Histogram(COARSE)

    def activity(self) -> float:
        return self.messages + self.failures + self.seconds.count


class OfGroup:
    """Counters of a group on a topic. `seconds`: of its acknowledgements."""

    __slots__ = (
        *("acked", "changed", "dead_lettered", "empty", "failures", "messages", "receives", "refused"),
        *("released", "renewed", "returned", "seconds", "size"),
    )

    def __init__(self) -> None:
        self.messages = 0
        self.size = 0
        self.receives = 0
        self.empty = 0
        self.acked = 0
        self.refused = 0
        self.changed = 0
        self.renewed = 0
        self.released = 0
        self.returned = 0
        self.dead_lettered = 0
        self.failures = 0
        self.seconds = Histogram(COARSE)

    def activity(self) -> float:
        return (
            self.receives
            + self.empty
            + self.seconds.count
            + self.changed
            + self.renewed
            + self.released
            + self.returned
            + self.dead_lettered
            + self.failures
        )


class OfConnections:
    """Implements `protocols.observers.ConnectionObserver`."""

    __slots__ = (
        "crowded",
        "handshakes_failed",
        "open",
        "open_calls",
        "open_handshakes",
        "refused",
        "refused_streams",
        "violations",
    )

    def __init__(self) -> None:
        self.open = 0
        self.open_calls = 0
        self.refused = 0
        self.refused_streams = 0
        self.crowded = 0
        self.open_handshakes = 0
        self.handshakes_failed = 0
        self.violations: dict[str, int] = {}

    def opened(self) -> None:
        self.open += 1

    def closed(self) -> None:
        self.open -= 1

    def calls(self, more: int) -> None:
        self.open_calls += more

    def turned_away(self) -> None:
        self.refused += 1

    def crowded_out(self) -> None:
        self.crowded += 1

    def handshakes(self, more: int) -> None:
        self.open_handshakes += more

    def handshake_failed(self) -> None:
        self.handshakes_failed += 1

    def violated(self, kind: str, count: int) -> None:
        self.violations[kind] = self.violations.get(kind, 0) + count

    def streams_refused(self, count: int) -> None:
        self.refused_streams += count


class OfSniffing(OfConnections):
    """Implements `protocols.observers.SniffingObserver`."""

    __slots__ = ("protocols",)

    def __init__(self) -> None:
        super().__init__()
        self.protocols: dict[tuple[str, str], int] = {}
        """Connections by protocol, and whether inside TLS."""

    def found(self, protocol: str, secured: bool) -> None:
        key = (protocol, "yes" if secured else "no")
        self.protocols[key] = self.protocols.get(key, 0) + 1


class MetricsObserver:
    """Implements `processors.observer.Observer` and `protocols.observers.CallObserver`."""

    def __init__(
        self,
        *,
        max_topics: int,
        max_groups: int,
        forget_s: float,
        now: Callable[[], float],
        added: bool = False,
    ) -> None:
        """`added`: counters are added to those of other processes."""
        # Those of the hot path are at hand without a look-up.
        self._send, self._receive, self._empty, self._ack, self._change = (Histogram() for _ in range(5))
        self._operations = {
            "send": self._send,
            "receive": self._receive,
            "receive_empty": self._empty,
            "ack": self._ack,
            "change_invisible": self._change,
        }
        self.failures: dict[tuple[str, Fault], int] = {}
        self.events: dict[str, int] = {}
        self.made: dict[str, int] = {}
        self.calls: dict[str, Histogram] = {}
        self.codes: dict[tuple[str, str], int] = {}
        self.connections = OfConnections()
        self.remoting_connections = OfConnections()
        self.sniffing = OfSniffing()
        self.topics = Capped(OfTopic, OTHER, most=max_topics, forget_s=forget_s, now=now, added=added)
        self.groups = Capped(
            OfGroup, (OTHER, OTHER), most=max_groups, forget_s=forget_s, now=now, added=added
        )

    def operations(self) -> list[tuple[str, Histogram]]:
        """Requested operations, and their duration."""
        return [(operation, times) for operation, times in self._operations.items() if times.count]

    # -- the doors' calls -----------------------------------------------------------------------

    def answered(self, method: str, code: str, seconds: float) -> None:
        key = (method, code)
        self.codes[key] = self.codes.get(key, 0) + 1
        times = self.calls.get(method)
        if times is None:
            times = self.calls[method] = Histogram()
        times.add(seconds)

    def refused(self, topic: str, group: str) -> None:
        """Only known names have counters: a refused name may be arbitrary."""
        if group:
            self.groups.known((topic, group)).failures += 1
        elif topic:
            self.topics.known(topic).failures += 1

    # -- the Observer ---------------------------------------------------------------------------

    def sent(self, topic: str, count: int, size: int, seconds: float) -> None:
        self._send.add(seconds)
        figures = self.topics[topic]
        figures.messages += count
        figures.size += size
        figures.seconds.add(seconds)

    def received(self, topic: str, group: str, count: int, size: int, seconds: float) -> None:
        figures = self.groups[topic, group]
        if count:
            self._receive.add(seconds)
            figures.receives += 1
            figures.messages += count
            figures.size += size
        else:
            self._empty.add(seconds)
            figures.empty += 1

    def pulled(self, topic: str, group: str, count: int, size: int, seconds: float) -> None:
        self._lasted("pull" if count else "pull_empty", seconds)
        if count:
            figures = self.groups[topic, group]
            figures.receives += 1
            figures.messages += count
            figures.size += size

    def acked(self, topic: str, group: str, count: int, refused: int, seconds: float) -> None:
        self._ack.add(seconds)
        figures = self.groups[topic, group]
        figures.acked += count
        figures.refused += refused
        figures.seconds.add(seconds)

    def changed(self, topic: str, group: str, seconds: float) -> None:
        self._change.add(seconds)
        self.groups[topic, group].changed += 1

    def dead_lettered(self, topic: str, group: str) -> None:
        self._happened("dead_lettered", 1)
        self.groups[topic, group].dead_lettered += 1

    def redriven(self, group: str, count: int) -> None:
        self._happened("redriven", count)

    def returned(self, topic: str, group: str, count: int) -> None:
        self._happened("returned", count)
        self.groups[topic, group].returned += count

    def renewed(self, topic: str, group: str, count: int) -> None:
        self._happened("renewed", count)
        self.groups[topic, group].renewed += count

    def released(self, topic: str, group: str, count: int) -> None:
        self._happened("released", count)
        self.groups[topic, group].released += count

    def recalled(self, topic: str) -> None:
        self._happened("recalled", 1)

    def ended(self, topic: str, resolution: Resolution, seconds: float) -> None:
        self._lasted(f"end_transaction_{resolution.value}", seconds)

    def checked(self, topic: str, asked: bool) -> None:
        self._happened("transaction_check_asked" if asked else "transaction_check_unasked", 1)

    def created(self, kind: str, name: str) -> None:
        self.made[kind] = self.made.get(kind, 0) + 1

    def failed(self, operation: str, fault: Fault) -> None:
        key = (operation, fault)
        self.failures[key] = self.failures.get(key, 0) + 1

    def _lasted(self, operation: str, seconds: float) -> None:
        times = self._operations.get(operation)
        if times is None:
            times = self._operations[operation] = Histogram()
        times.add(seconds)

    def _happened(self, event: str, count: int) -> None:
        self.events[event] = self.events.get(event, 0) + count
