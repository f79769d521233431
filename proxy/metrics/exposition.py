"""Renders a scrape: counters and current gauges, in the text format of Prometheus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from popgate import __version__
from popgate.build import is_compiled
from popgate.model import GroupStatus
from popgate.wire.bodies.query_reports import FIGURES, QueryReport, SourceLag
from proxy.metrics.counters import MetricsObserver, OfConnections, OfGroup, OfTopic
from proxy.metrics.group_status import Standings, Sum
from proxy.metrics.histograms import Histogram
from proxy.metrics.labels import OTHER
from proxy.metrics.loop import task_count
from proxy.metrics.names import SPECS
from proxy.metrics.spec import Spec

_FEW = 50
"""The number of topics and groups that are rendered within a few milliseconds."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Ages = Mapping[tuple[str, str], float]
"""By topic and group: how long the message held longest has been held, in seconds."""

_TOPIC_COUNTERS: tuple[tuple[str, Callable[[OfTopic], float]], ...] = (
    ("popgate_messages_sent_total", lambda counts: counts.messages),
    ("popgate_bytes_sent_total", lambda counts: counts.size),
    ("popgate_topic_failures_total", lambda counts: counts.failures),
)

_GROUP_COUNTERS: tuple[tuple[str, Callable[[OfGroup], float]], ...] = (
    ("popgate_messages_received_total", lambda counts: counts.messages),
    ("popgate_bytes_received_total", lambda counts: counts.size),
    ("popgate_receives_total", lambda counts: counts.receives),
    ("popgate_receives_empty_total", lambda counts: counts.empty),
    ("popgate_messages_acked_total", lambda counts: counts.acked),
    ("popgate_messages_ack_refused_total", lambda counts: counts.refused),
    ("popgate_messages_changed_total", lambda counts: counts.changed),
    ("popgate_messages_renewed_total", lambda counts: counts.renewed),
    ("popgate_messages_released_total", lambda counts: counts.released),
    ("popgate_messages_returned_total", lambda counts: counts.returned),
    ("popgate_messages_forwarded_total", lambda counts: counts.dead_lettered),
    ("popgate_group_failures_total", lambda counts: counts.failures),
)

_STANDING_GAUGES: tuple[tuple[str, str], ...] = (
    ("popgate_group_lag", "lag"),
    ("popgate_group_unread", "unread"),
    ("popgate_group_in_flight", "in_flight"),
    ("popgate_group_free", "free"),
    ("popgate_group_behind", "behind"),
    ("popgate_group_waiting", "receivers"),
)

_ALWAYS_TOLD = frozenset({"lag", "unread", "free"})
"""Known even if a broker does not report held messages; other values would be invented."""

_STANDING_COUNTERS: tuple[tuple[str, Callable[[GroupStatus], float]], ...] = (
    ("popgate_group_redeliveries_total", lambda standing: standing.redelivered),
    ("popgate_group_dead_letters_total", lambda standing: standing.dead_lettered),
)


_LAGS: tuple[tuple[str, Callable[[SourceLag], float]], ...] = (
    ("lag_min", lambda lag: lag.least),
    ("lag_max", lambda lag: lag.most),
    ("lag_avg", lambda lag: lag.mean),
)


class Metrics(Collector):
    """Prometheus' collector: what `counters` counts, and what is only asked for.

    `figures` gives gauges and counters by name, `ages` how long groups hold messages, and
    `lag` is the event loop's; all are asked at the scrape only.
    """

    def __init__(
        self,
        *,
        max_topics: int = 200,
        max_groups: int = 500,
        forget_s: float = 3_600.0,
        figures: Callable[[], dict[str, float]] = dict,
        now: Callable[[], float] = time.monotonic,
        added: bool = False,
    ) -> None:
        self.counters = MetricsObserver(
            max_topics=max_topics, max_groups=max_groups, forget_s=forget_s, now=now, added=added
        )
        self.figures = figures
        self.ages: Callable[[int], Ages] = _nobody_holds
        self.queries: Callable[[], list[tuple[QueryReport, float]]] = list
        """Reports of streaming queries, and how many seconds ago the trigger of each ended."""
        self.lag: Histogram | None = None
        self.standings = Standings(most=max_groups, now=now)
        self._max_groups = max_groups
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        self._beside = (
            ProcessCollector(registry=self.registry),
            PlatformCollector(registry=self.registry),
            GCCollector(registry=self.registry),
        )

    async def scrape(self, *, standings: bool = True) -> bytes:
        """`text`, with the metrics of the broker, unless another process of the gateway reports them.

        Most of the rendering is done outside of the event loop.
        """
        if standings:
            await self.standings.refresh()
        moment = self._moment()
        if not standings:
            # Those of the last time that this process was asked for them: long ago, if it was at all.
            moment = replace(moment, standings=[], others=Sum())
        registry = _Told(moment, self._beside)
        if len(moment.topics) + len(moment.groups) <= _FEW:
            return generate_latest(registry)
        return await asyncio.to_thread(generate_latest, registry)

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        return _families(self._moment())

    def _moment(self) -> _Moment:
        counters = self.counters
        counters.topics.forget_idle()
        counters.groups.forget_idle()
        return _Moment(
            calls=list(counters.calls.items()),
            codes=list(counters.codes.items()),
            connections=(
                *_of_connections("grpc", "streams", counters.connections),
                *_of_connections("remoting", "requests", counters.remoting_connections),
                *_of_connections("sniffing", "", counters.sniffing),
            ),
            violations=(
                ("grpc", list(counters.connections.violations.items())),
                ("remoting", list(counters.remoting_connections.violations.items())),
                ("sniffing", list(counters.sniffing.violations.items())),
            ),
            protocols=list(counters.sniffing.protocols.items()),
            operations=counters.operations(),
            failures=[((op, fault.name), count) for (op, fault), count in counters.failures.items()],
            topics=[((topic,), figures) for topic, figures in counters.topics.items()],
            groups=list(counters.groups.items()),
            events=list(counters.events.items()),
            made=list(counters.made.items()),
            standings=list(self.standings),
            whole=self.standings.whole,
            others=self.standings.others,
            ages=list(self.ages(self._max_groups).items()),
            figures=list(self.figures().items()),
            queries=self.queries(),
            lag=self.lag,
            tasks=task_count(),
        )


def _of_connections(door: str, calls: str, of: OfConnections) -> Iterator[tuple[str, int]]:
    yield f"popgate_{door}_connections", of.open
    yield f"popgate_{door}_connections_refused_total", of.refused
    yield f"popgate_{door}_connections_crowded_total", of.crowded
    yield f"popgate_{door}_handshakes", of.open_handshakes
    yield f"popgate_{door}_handshakes_failed_total", of.handshakes_failed
    if calls:
        yield f"popgate_{door}_{calls}", of.open_calls
        yield f"popgate_{door}_{calls}_refused_total", of.refused_streams


@dataclass(slots=True, frozen=True)
class _Moment:
    """The values that are read on the loop; the rest of a scrape may run elsewhere."""

    calls: list[tuple[str, Histogram]]
    codes: list[tuple[tuple[str, str], int]]
    connections: tuple[tuple[str, int], ...]
    violations: tuple[tuple[str, list[tuple[str, int]]], ...]
    protocols: list[tuple[tuple[str, str], int]]
    operations: list[tuple[str, Histogram]]
    failures: list[tuple[tuple[str, str], int]]
    topics: list[tuple[tuple[str], OfTopic]]
    groups: list[tuple[tuple[str, str], OfGroup]]
    events: list[tuple[str, int]]
    made: list[tuple[str, int]]
    standings: list[GroupStatus]
    whole: bool
    others: Sum
    ages: list[tuple[tuple[str, str], float]]
    figures: list[tuple[str, float]]
    queries: list[tuple[QueryReport, float]]
    lag: Histogram | None
    tasks: int


class _Told(CollectorRegistry):
    """A registry of one moment, and of the process."""

    def __init__(self, moment: _Moment, beside: Iterable[Collector]) -> None:
        super().__init__(auto_describe=False)
        self._moment = moment
        self._beside = beside

    def collect(self) -> Iterator[Metric]:
        yield from _families(self._moment)
        for collector in self._beside:
            yield from collector.collect()


def _families(moment: _Moment) -> Iterator[Metric]:
    yield _histograms("popgate_rpc_duration_seconds", _by_one(moment.calls))
    yield _counters("popgate_rpc_answers_total", moment.codes)
    for name, number in moment.connections:
        yield _plain(name, number)
    for door, kinds in moment.violations:
        yield _counters(f"popgate_{door}_violations_total", _by_one(kinds))
    yield _counters("popgate_sniffing_found_total", moment.protocols)
    yield _histograms("popgate_request_duration_seconds", _by_one(moment.operations))
    yield _counters("popgate_request_failures_total", moment.failures)
    for name, of_topic in _TOPIC_COUNTERS:
        yield _counters(name, ((key, of_topic(counts)) for key, counts in moment.topics))
    yield _histograms(
        "popgate_send_duration_seconds", ((key, counts.seconds) for key, counts in moment.topics)
    )
    for name, of_group in _GROUP_COUNTERS:
        yield _counters(name, ((key, of_group(counts)) for key, counts in moment.groups))
    yield _histograms(
        "popgate_ack_duration_seconds", ((key, counts.seconds) for key, counts in moment.groups)
    )
    yield from _of_standings(moment)
    yield _gauges("popgate_build_info", [((__version__, "yes" if is_compiled() else "no"), 1)])
    yield _counters("popgate_message_events_total", _by_one(moment.events))
    yield _counters("popgate_created_total", _by_one(moment.made))
    for name, value in moment.figures:
        yield _plain(f"popgate_{name}", float(value))
    yield from _of_queries(moment.queries)
    if moment.lag is not None:
        yield _histograms("popgate_event_loop_lag_seconds", [((), moment.lag)])
    yield _plain("popgate_event_loop_tasks", moment.tasks)


def _of_standings(moment: _Moment) -> Iterator[Metric]:
    for name, attribute in _STANDING_GAUGES:
        if not moment.whole and attribute not in _ALWAYS_TOLD:
            continue
        family = _family(name)
        for standing in moment.standings:
            family.add_metric([standing.topic, standing.group], getattr(standing, attribute))
        if moment.others.groups:
            family.add_metric([OTHER, OTHER], getattr(moment.others, attribute))
        yield family
    for name, of_standing in _STANDING_COUNTERS if moment.whole else ():
        yield _counters(
            name, (((standing.topic, standing.group), of_standing(standing)) for standing in moment.standings)
        )
    ages = _family("popgate_group_renew_age_seconds")
    for (topic, group), age in moment.ages:
        ages.add_metric([topic, group], age)
    yield ages


def _of_queries(queries: list[tuple[QueryReport, float]]) -> Iterator[Metric]:
    for name, of_source in _LAGS:
        lags = _family(f"popgate_spark_{name}")
        for report, _ in queries:
            for source in report.sources:
                lags.add_metric([report.query, str(source.number)], of_source(source))
        yield lags
    for name, (kind, _) in FIGURES.items():
        samples = [((report.query,), report.figures[name]) for report, _ in queries if name in report.figures]
        family = _counters if kind == "counter" else _gauges
        yield family(f"popgate_spark_{name}", samples)
    yield _gauges("popgate_spark_trigger_age_seconds", (((report.query,), age) for report, age in queries))


def _nobody_holds(_most: int) -> Ages:
    return {}


Counted = TypeVar("Counted")


def _by_one(items: Iterable[tuple[str, Counted]]) -> Iterable[tuple[tuple[str], Counted]]:
    return (((label,), value) for label, value in items)


def _spec(name: str) -> Spec:
    """A figure that is not in the list is a gauge: another broker may have figures of its own."""
    spec = SPECS.get(name)
    return spec if spec is not None else Spec(name, "gauge", name.replace("_", " ") + ", at this moment.")


def _family(name: str) -> GaugeMetricFamily:
    spec = _spec(name)
    return GaugeMetricFamily(name, spec.about, labels=spec.labels)


def _counters(name: str, values: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    spec = _spec(name)
    family = CounterMetricFamily(name, spec.about, labels=spec.labels)
    for labels, value in values:
        family.add_metric(list(labels), value)
    return family


def _gauges(name: str, values: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    family = _family(name)
    for labels, value in values:
        family.add_metric(list(labels), value)
    return family


def _histograms(name: str, values: Iterable[tuple[tuple[str, ...], Histogram]]) -> Metric:
    spec = _spec(name)
    family = HistogramMetricFamily(name, spec.about, labels=spec.labels)
    for labels, times in values:
        family.add_metric(list(labels), times.cumulated(), times.total)
    return family


def _plain(name: str, value: float) -> Metric:
    spec = _spec(name)
    if spec.kind == "counter":
        return CounterMetricFamily(name, spec.about, value=value)
    return GaugeMetricFamily(name, spec.about, value=value)
