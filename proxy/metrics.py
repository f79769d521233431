"""What happened, in numbers: an `Observer` that counts cheaply and is read when somebody scrapes.

A call costs a few dictionary and list steps; Prometheus' own objects are made at the scrape.
Labels are bounded: operations and faults are closed sets, topics and groups have a setting
(`metrics.max_topics`), and what comes later is counted together as `_other`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from popgate.errors import Fault
from popgate.model import Resolution

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OTHER = "_other"

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds in seconds; a long poll ends in the last ones."""

_BUCKET_NAMES = (*(str(bound) for bound in BUCKETS), "+Inf")


class Duration:
    """A histogram of one operation."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * len(_BUCKET_NAMES)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds

    def cumulated(self) -> list[tuple[str, float]]:
        running = 0
        pairs = []
        for name, count in zip(_BUCKET_NAMES, self.counts, strict=True):
            running += count
            pairs.append((name, float(running)))
        return pairs


class Flow:
    """Messages and bytes of one topic, or of one topic and group, in one direction."""

    __slots__ = ("messages", "size")

    def __init__(self) -> None:
        self.messages = 0
        self.size = 0


class Flows:
    """`Flow` by labels, at most `most` of them; the others share one whose labels are all `_other`."""

    __slots__ = ("_labels", "_most", "_table")

    def __init__(self, labels: int, most: int) -> None:
        self._table: dict[tuple[str, ...], Flow] = {}
        self._labels = labels
        self._most = most

    def __getitem__(self, key: tuple[str, ...]) -> Flow:
        flow = self._table.get(key)
        if flow is None:
            if len(self._table) >= self._most:
                key = (OTHER,) * self._labels
            flow = self._table.setdefault(key, Flow())
        return flow

    def items(self) -> Iterable[tuple[tuple[str, ...], Flow]]:
        return self._table.items()


class Metrics(Collector):
    """Implements `processors.observing.Observer` and Prometheus' collector.

    `figures` gives gauges by name; it is asked at the scrape only.
    """

    def __init__(
        self,
        *,
        max_topics: int = 200,
        figures: Callable[[], dict[str, float]] = dict,
    ) -> None:
        self.figures = figures
        self._durations: dict[str, Duration] = {}
        self._failures: dict[tuple[str, Fault], int] = {}
        self._events: dict[str, int] = {}
        self._sent = Flows(1, max_topics)
        self._received = Flows(2, max_topics)
        self._acked = Flows(2, max_topics)
        self._refused = Flows(2, max_topics)
        self._created: dict[str, int] = {}
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)

    # -- the Observer ---------------------------------------------------------------------------

    def sent(self, topic: str, count: int, size: int, seconds: float) -> None:
        self._lasted("send", seconds)
        _flow(self._sent[(topic,)], count, size)

    def received(self, topic: str, group: str, count: int, size: int, seconds: float) -> None:
        self._lasted("receive" if count else "receive_empty", seconds)
        if count:
            _flow(self._received[(topic, group)], count, size)

    def pulled(self, topic: str, group: str, count: int, size: int, seconds: float) -> None:
        self._lasted("pull" if count else "pull_empty", seconds)
        if count:
            _flow(self._received[(topic, group)], count, size)

    def acked(self, topic: str, group: str, count: int, refused: int, seconds: float) -> None:
        self._lasted("ack", seconds)
        _flow(self._acked[(topic, group)], count, 0)
        if refused:
            _flow(self._refused[(topic, group)], refused, 0)

    def changed(self, topic: str, group: str, seconds: float) -> None:
        self._lasted("change_invisible", seconds)

    def dead_lettered(self, topic: str, group: str) -> None:
        self._happened("dead_lettered", 1)

    def returned(self, topic: str, group: str, count: int) -> None:
        self._happened("returned", count)

    def renewed(self, topic: str, group: str, count: int) -> None:
        self._happened("renewed", count)

    def released(self, topic: str, group: str, count: int) -> None:
        self._happened("released", count)

    def recalled(self, topic: str) -> None:
        self._happened("recalled", 1)

    def ended(self, topic: str, resolution: Resolution, seconds: float) -> None:
        self._lasted(f"end_transaction_{resolution.value}", seconds)

    def checked(self, topic: str, asked: bool) -> None:
        self._happened("transaction_check_asked" if asked else "transaction_check_unasked", 1)

    def created(self, kind: str, name: str) -> None:
        self._created[kind] = self._created.get(kind, 0) + 1

    def failed(self, operation: str, fault: Fault) -> None:
        key = (operation, fault)
        self._failures[key] = self._failures.get(key, 0) + 1

    def _lasted(self, operation: str, seconds: float) -> None:
        duration = self._durations.get(operation)
        if duration is None:
            duration = self._durations[operation] = Duration()
        duration.add(seconds)

    def _happened(self, event: str, count: int) -> None:
        self._events[event] = self._events.get(event, 0) + count

    # -- the scrape -----------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        duration = HistogramMetricFamily(
            "popgate_request_duration_seconds", "Time of answered requests.", labels=["operation"]
        )
        for operation, one in self._durations.items():
            duration.add_metric([operation], one.cumulated(), one.total)
        yield duration
        failures = CounterMetricFamily(
            "popgate_request_failures",
            "Requests, or messages of one, that were refused or failed.",
            labels=["operation", "fault"],
        )
        for (operation, fault), count in self._failures.items():
            failures.add_metric([operation, fault.name], count)
        yield failures
        yield from self._flows("sent", "Messages stored", self._sent, ["topic"], sizes=True)
        yield from self._flows(
            "received", "Messages given out", self._received, ["topic", "group"], sizes=True
        )
        yield from self._flows("acked", "Deliveries finished", self._acked, ["topic", "group"])
        yield from self._flows("ack_refused", "Handles refused", self._refused, ["topic", "group"])
        events = CounterMetricFamily(
            "popgate_message_events",
            "Messages that were dead-lettered, recalled, renewed by the gateway, returned or released.",
            labels=["event"],
        )
        for event, count in self._events.items():
            events.add_metric([event], count)
        yield events
        created = CounterMetricFamily(
            "popgate_created", "Topics and groups made on first use.", labels=["kind"]
        )
        for kind, count in self._created.items():
            created.add_metric([kind], count)
        yield created
        for name, value in self.figures().items():
            about = name.replace("_", " ") + ", at this moment."
            yield GaugeMetricFamily(f"popgate_{name}", about, float(value))

    def _flows(
        self, name: str, about: str, flows: Flows, labels: list[str], *, sizes: bool = False
    ) -> Iterator[Metric]:
        messages = CounterMetricFamily(f"popgate_messages_{name}", f"{about}.", labels=labels)
        size = CounterMetricFamily(f"popgate_bytes_{name}", f"{about}, bytes of their bodies.", labels=labels)
        for key, flow in flows.items():
            messages.add_metric(list(key), flow.messages)
            size.add_metric(list(key), flow.size)
        yield messages
        if sizes:
            yield size


def _flow(flow: Flow, messages: int, size: int) -> None:
    flow.messages += messages
    flow.size += size
