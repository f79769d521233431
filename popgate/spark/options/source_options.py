"""The options of the source, parsed and checked before any request is sent."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, unique
from typing import Any, Final

from popgate.errors import IllegalFilter, IllegalGroup
from popgate.filters.compiled import compile_filter
from popgate.model import FilterKind
from popgate.naming import check_group, with_namespace
from popgate.queue_client import QueuePlace
from popgate.spark.errors import Code, SparkSourceError, illegal_option
from popgate.spark.offsets import LARGEST_OFFSET, LARGEST_QUEUE, flat
from popgate.spark.options.gateway_options import SHARED, Gateway, gateway_of, refuse_over_grpc
from popgate.spark.options.option_values import (
    at_most_one,
    duration_s,
    named,
    namespace_of,
    number,
    one_of,
    topic_of,
    truth,
)

LATEST: Final = -1
EARLIEST: Final = -2
"""In the place of an offset, as Spark's Kafka source has them."""
_MOST: Final = 1_000_000_000
_START: Final = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_END: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_QUEUES: Final = ("topic", "subscribe", "subscribePattern", "assign")
_NUMBERS: Final = {
    # name: least, most, default
    "maxOffsetsPerTrigger": (1, _MOST, None),
    "maxBytesPerTrigger": (1, 1 << 50, None),
    "minOffsetsPerTrigger": (1, _MOST, None),
    "minPartitions": (1, 100_000, None),
    "maxRecordsPerPartition": (1, _MOST, None),
    "minRecordsPerPartition": (1, _MOST, None),
    "pullBatchSize": (1, 1024, 1024),
    "pullPipeline": (1, 64, 8),
    "pullTimeoutMs": (100, 3_600_000, 30_000),
    "arrowBatchRows": (1, 1_000_000, 8192),
    "arrowBatchBytes": (1, 1 << 30, 4 << 20),
    "fetchOffset.numRetries": (0, 100_000, 15),
    "fetchOffset.retryIntervalMs": (0, 3_600_000, 100),
}
KNOWN: Final = (
    *(*SHARED, "group", "commitOffsets", "failOnDataLoss", "tag", "sql92", "startingOffsetsFallback"),
    *("maxTriggerDelay", "schemaStyle", "waitForTopic", "idleTick"),
    *("startingOffsetsByTimestampStrategy", *_QUEUES, *_START, *_END, *_NUMBERS),
)
NOT_YET: Final = ("pushdown", "rules", "rulesVersion")
"""Of the design, and of no effect yet."""
SINKS_ONLY: Final = (
    *("deliveryGuarantee", "sinkId", "txnAppId", "txnVersion", "ledgerTopic", "dedupeKeyColumn"),
    *("sendBatchRows", "sendBatchBytes", "sendInFlight"),
    *("sendTimeoutMs", "send.numRetries", "send.retryIntervalMs"),
)
"""Those of the sink (`popgate.spark.options.sink_options`)."""
_STREAMS_ONLY: Final = (
    *("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
    *("commitOffsets", "idleTick"),
)


@unique
class Where(Enum):
    """How a start or an end is specified."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSETS = "offsets"
    TIME = "time"
    TIMES = "times"
    GROUP = "group"


@dataclass(frozen=True, slots=True)
class Position:
    """Where to begin or to end. `offsets` are offsets (or EARLIEST, LATEST) or times in ms, by queue."""

    where: Where
    offsets: Mapping[QueuePlace, int] = field(default_factory=dict)
    time_ms: int = 0


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All options, with their defaults.

    `assigned` is empty where whole topics are read. `pattern`, where it is given, is matched by the topics'
    whole names, those of a namespace without it, and `topics` is empty.
    """

    gateway: Gateway
    topics: tuple[str, ...]
    topics_option: str
    """The one that names them."""
    pattern: str
    assigned: tuple[QueuePlace, ...]
    start: Position
    end: Position
    fallback: Where
    """The start of queues for which the group has no position."""
    past_is_error: bool
    """Whether a time at which nothing was stored yet is refused as a start."""
    group: str
    commit_offsets: bool
    """Whether the group's positions follow a stream."""
    fail_on_data_loss: bool
    tag: str
    sql92: str
    legacy: bool
    """Whether columns are those of the connector for Spark 2."""
    trigger_delay_s: float
    """So long a batch may wait for as many offsets as it should have at least."""
    wait_for_topic_s: float = 0.0
    """So long a query waits when it starts for a topic that is not there."""
    idle_tick_s: float = 0.0
    """After so long without a message a stream has a row that says so; 0: none."""
    numbers: Mapping[str, int | None] = field(default_factory=dict)
    """By the option's name."""

    def number(self, name: str) -> int:
        """Of an option that has a default."""
        number = self.numbers[name]
        if number is None:
            raise KeyError(name)
        return number

    @property
    def filter(self) -> tuple[str, str]:
        """The expression for brokers, and its kind."""
        return (self.sql92, "SQL92") if self.sql92 else (self.tag or "*", "TAG")

    @property
    def timeout_s(self) -> float:
        """For each answer of the gateway."""
        return self.number("pullTimeoutMs") / 1000


def read_source_options(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Raises SparkSourceError."""
    options = named(given, KNOWN, others=SINKS_ONLY, side="sink", not_yet=NOT_YET)
    at_most_one(options, _QUEUES)
    at_most_one(options, _START)
    at_most_one(options, _END)
    at_most_one(options, ("tag", "sql92"))
    for name in _END if streaming else _STREAMS_ONLY:
        if name in options:
            kind = "a stream has no end" if streaming else "it is an option of streams"
            raise illegal_option(name, options[name], f"{kind}, leave it out")
    if "waitForTopic" in options and "subscribePattern" in options:
        raise illegal_option("waitForTopic", options["waitForTopic"], "subscribePattern waits for nothing")
    gateway = gateway_of(options)
    if gateway.is_grpc:
        _check_grpc(options)
    _check_filter(options)
    topics, assigned = _queues(options)
    group = with_namespace(namespace_of(options), options.get("group", ""))
    if group:
        try:
            check_group(group)
        except IllegalGroup as error:
            raise illegal_option("group", options["group"], error.sentence) from error
    commit_offsets = truth(options, "commitOffsets", default=bool(group))
    if commit_offsets and not group:
        raise SparkSourceError(Code.MISSING_OPTION, "commitOffsets = true needs the option group")
    fallbacks = ("latest", "earliest") if streaming else ("earliest", "latest")
    numbers = {
        name: number(options, name, least, most, default) for name, (least, most, default) in _NUMBERS.items()
    }
    _check_limits(options, numbers)
    start = _start(options, group, streaming=streaming)
    for name, places, why in (
        ("startingOffsetsFallback", (Where.GROUP,), "nothing begins at positions of a group"),
        ("startingOffsetsByTimestampStrategy", (Where.TIME, Where.TIMES), "nothing begins at a time"),
    ):
        if name in options and start.where not in places:
            raise illegal_option(name, options[name], f"{why}, leave it out")
    return SourceOptions(
        gateway=gateway,
        topics=topics,
        topics_option=next(name for name in _QUEUES if name in options),
        pattern=options.get("subscribePattern", ""),
        assigned=assigned,
        start=start,
        end=_end(options),
        fallback=Where(one_of(options, "startingOffsetsFallback", fallbacks)),
        past_is_error=one_of(options, "startingOffsetsByTimestampStrategy", ("error", "latest")) == "error",
        group=group,
        commit_offsets=commit_offsets and streaming,
        fail_on_data_loss=truth(options, "failOnDataLoss", default=True),
        tag=options.get("tag", ""),
        sql92=options.get("sql92", ""),
        legacy=is_legacy(options),
        trigger_delay_s=duration_s(options, "maxTriggerDelay", "15m"),
        wait_for_topic_s=duration_s(options, "waitForTopic", "0s"),
        idle_tick_s=duration_s(options, "idleTick", "0s"),
        numbers=numbers,
    )


def is_legacy(given: Mapping[str, str]) -> bool:
    """Which columns there are, which Spark asks before all else; names are of any case."""
    lower = {name.lower(): value.strip() for name, value in given.items()}
    style = {"schemaStyle": lower.get("schemastyle", "default")}
    return one_of(style, "schemaStyle", ("default", "legacy")) == "legacy"


def _check_grpc(options: Mapping[str, str]) -> None:
    """Refuse what gRPC has no request, or no field, for."""
    if "subscribePattern" in options:
        pattern = options["subscribePattern"]
        raise refuse_over_grpc("subscribePattern", pattern, "nobody lists the topics: name them by topic")
    if is_legacy(options):
        style = options["schemaStyle"]
        raise refuse_over_grpc("schemaStyle", style, "messages come without their system properties")


def _check_filter(options: Mapping[str, str]) -> None:
    for name, kind in (("tag", FilterKind.TAG), ("sql92", FilterKind.SQL92)):
        try:
            if options.get(name):
                compile_filter(kind, options[name])
        except IllegalFilter as error:
            place = f", at character {error.position}" if error.position >= 0 else ""
            raise illegal_option(name, options[name], f"{error.why}{place}") from error


def _check_limits(options: Mapping[str, str], numbers: Mapping[str, int | None]) -> None:
    """Checks that minimums are below maximums, and that waiting options have a minimum."""
    for least, most in (
        ("minOffsetsPerTrigger", "maxOffsetsPerTrigger"),
        ("minRecordsPerPartition", "maxRecordsPerPartition"),
    ):
        low, high = numbers[least], numbers[most]
        if low is not None and high is not None and low > high:
            raise illegal_option(least, options[least], f"it is at most {most}, which is {high}")
    if "maxTriggerDelay" in options and numbers["minOffsetsPerTrigger"] is None:
        raise illegal_option(
            "maxTriggerDelay", options["maxTriggerDelay"], "without minOffsetsPerTrigger nothing waits"
        )


# -- values -----------------------------------------------------------------------------------------


def _queues(options: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[QueuePlace, ...]]:
    """Topics, and the queues where only some are read."""
    if "assign" in options:
        assigned = _assigned(options)
        return tuple(sorted({each.topic for each in assigned})), assigned
    if "subscribePattern" in options:
        _check_pattern(options["subscribePattern"])
        return (), ()
    name = "topic" if "topic" in options else "subscribe"
    text = options.get(name, "")
    topics = [each.strip() for each in text.split(",") if each.strip()]
    if not topics:
        raise SparkSourceError(
            Code.MISSING_OPTION, f"one of the options {', '.join(_QUEUES[:-1])} and {_QUEUES[-1]} is needed"
        )
    return tuple(dict.fromkeys(topic_of(options, name, topic) for topic in topics)), ()


def _check_pattern(text: str) -> None:
    if not text:
        raise illegal_option("subscribePattern", text, "it matches no topic")
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise illegal_option("subscribePattern", text, f"it is no regular expression: {error}") from error


def _assigned(options: Mapping[str, str]) -> tuple[QueuePlace, ...]:
    text, form = options["assign"], 'it has the form {"topic":{"broker":[0,1]}}'
    brokers_by_topic = _json("assign", text, form)
    queues = set()
    for name, brokers in brokers_by_topic.items():
        topic = topic_of(options, "assign", name)
        if not isinstance(brokers, dict):
            raise illegal_option("assign", text, form)
        for broker, numbers in brokers.items():
            if not isinstance(numbers, list) or not all(_is_queue(number) for number in numbers):
                raise illegal_option("assign", text, form)
            queues |= {QueuePlace(topic, broker, number) for number in numbers}
    if not queues:
        raise illegal_option("assign", text, "it names no queue")
    return tuple(sorted(queues))


def _is_queue(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= LARGEST_QUEUE


def _start(options: Mapping[str, str], group: str, *, streaming: bool) -> Position:
    default = "latest" if streaming else "earliest"
    if group and not any(name in options for name in _START):
        return Position(Where.GROUP)
    if options.get("startingOffsets", "").lower() == Where.GROUP.value:
        if not group:
            raise SparkSourceError(Code.MISSING_OPTION, "startingOffsets = group needs the option group")
        return Position(Where.GROUP)
    position = _position(options, _START, default)
    if not streaming and (position.where is Where.LATEST or LATEST in position.offsets.values()):
        raise illegal_option(
            "startingOffsets",
            options["startingOffsets"],
            "a batch that begins at the latest offset has nothing",
        )
    return position


def _end(options: Mapping[str, str]) -> Position:
    position = _position(options, _END, "latest")
    if position.where is Where.EARLIEST or EARLIEST in position.offsets.values():
        raise illegal_option(
            "endingOffsets", options["endingOffsets"], "a batch that ends at the earliest offset has nothing"
        )
    return position


def _position(options: Mapping[str, str], names: tuple[str, str, str], default: str) -> Position:
    by_offset, by_time, by_times = names
    if by_time in options:
        time_ms = number(options, by_time, 0, LARGEST_OFFSET, 0)
        return Position(Where.TIME, time_ms=time_ms or 0)
    if by_times in options:
        return Position(Where.TIMES, _by_queue(options, by_times, least=0))
    text = options.get(by_offset, default)
    if text.lower() in (Where.EARLIEST.value, Where.LATEST.value):
        return Position(Where(text.lower()))
    return Position(Where.OFFSETS, _by_queue(options, by_offset, least=EARLIEST))


def _by_queue(options: Mapping[str, str], name: str, *, least: int) -> dict[QueuePlace, int]:
    text, namespace = options[name], namespace_of(options)
    form = 'it has the form {"topic":{"broker":{"0":23}}}' + (
        "" if least == 0 else ", or is earliest or latest"
    )
    document = _json(name, text, form)
    try:
        offsets = flat(document, least=least)
    except SparkSourceError as error:
        raise illegal_option(name, text, f"{form}; {error}") from error
    if not offsets:
        raise illegal_option(name, text, "it names no queue")
    placed = {each._replace(topic=with_namespace(namespace, each.topic)): at for each, at in offsets.items()}
    if len(placed) < len(offsets):
        raise illegal_option(name, text, f"it names a topic with the namespace {namespace} and without it")
    return placed


def _json(name: str, text: str, form: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise illegal_option(name, text, form) from error
    if not isinstance(document, dict):
        raise illegal_option(name, text, form)
    return document
