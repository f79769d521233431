"""Resolves the positions of users, where a query starts and ends, to offsets by requests to the gateway."""

from __future__ import annotations

import re
from collections.abc import Sequence

from popgate.errors import Forbidden, GatewayError, TopicNotFound
from popgate.naming import with_namespace, without_namespace
from popgate.queue_client import QueueClient, QueuePlace
from popgate.spark.errors import Code, SparkSourceError, illegal_option
from popgate.spark.offsets import Offsets, named
from popgate.spark.options.source_options import EARLIEST, LATEST, Position, SourceOptions, Where
from popgate.spark.read.compaction import minimums_of


def queues_of(client: QueueClient, options: SourceOptions, *, running: bool = False) -> list[QueuePlace]:
    """All queues that are read now.

    Raises SparkSourceError for an assigned queue that does not exist, and for a topic named by an option
    without a readable queue, but neither if the query is `running`: then the queues may return.
    """
    if options.pattern:
        return _matching(client, options.pattern, options.gateway.namespace)
    queues = [
        queue for topic in options.topics for queue in _queues_of_topic(client, options, topic, running)
    ]
    if not options.assigned:
        return queues
    missing = sorted(set(options.assigned) - set(queues))
    if missing and not running:
        there = ", ".join(sorted({f"{each.broker}/{each.queue_id}" for each in queues})) or "none"
        raise illegal_option("assign", named(missing[0]), f"it is not there, the queues are {there}")
    return [queue for queue in options.assigned if queue not in missing]


def _queues_of_topic(
    client: QueueClient, options: SourceOptions, topic: str, running: bool
) -> list[QueuePlace]:
    try:
        queues = client.queues(topic)
    except TopicNotFound as error:
        raise _refused(error, options, "create it, or correct its name") from error
    if not queues and not running:
        closed = Forbidden(f"topic {topic} has no queue that may be read")
        raise _refused(closed, options, "give it permission to be read") from closed
    return queues


def _refused(error: GatewayError, options: SourceOptions, what_to_do: str) -> SparkSourceError:
    return SparkSourceError(
        Code.GATEWAY,
        f"{error.fault.name}: {error.sentence}; option {options.topics_option} names it: {what_to_do}"
        f" (option endpoints = {options.gateway.endpoints})",
    )


def _matching(client: QueueClient, pattern: str, namespace: str) -> list[QueuePlace]:
    matches = re.compile(pattern).fullmatch
    queues = []
    for topic in client.topics():
        if with_namespace(namespace, topic) != topic or not matches(without_namespace(namespace, topic)):
            continue
        try:
            queues += client.queues(topic)
        except TopicNotFound:
            # It was deleted since the list was made.
            continue
    return queues


def starts_of(
    client: QueueClient, options: SourceOptions, queues: Sequence[QueuePlace]
) -> dict[QueuePlace, int]:
    """The start of each queue. Raises SparkSourceError for an impossible position, and GatewayError."""
    position = options.start
    if position.where is Where.GROUP:
        committed = client.committed(options.group, queues)
        rest = [queue for queue in queues if queue not in committed]
        return {**committed, **_ends_of(client, options.fallback, rest)}
    if position.where in (Where.TIME, Where.TIMES):
        return _by_time(client, options, position, queues, "start")
    return _resolved(client, position, queues, "startingOffsets", absent=EARLIEST)


def ends_of(
    client: QueueClient, options: SourceOptions, queues: Sequence[QueuePlace]
) -> dict[QueuePlace, int]:
    """Where a batch ends on each queue. Raises as `starts_of`."""
    position = options.end
    if position.where in (Where.TIME, Where.TIMES):
        return _by_time(client, options, position, queues, "end")
    return _resolved(client, position, queues, "endingOffsets", absent=LATEST)


def sure_ends(client: QueueClient, begins: Offsets, ends: Offsets) -> dict[QueuePlace, int]:
    """The ends, those before their begin as masters tell them.

    A slave that stands in for its master may lack what was read already. Raises BrokerUnavailable where there
    is no master, so that it is waited for, and GatewayError.
    """
    behind = [queue for queue, end in ends.items() if end < begins[queue]]
    return {**ends, **(client.maximums(behind, of_masters=True) if behind else {})}


def earliest(client: QueueClient, queues: Sequence[QueuePlace]) -> dict[QueuePlace, int]:
    """The first offset that can be read, of each. Raises GatewayError."""
    return minimums_of(client, dict.fromkeys(queues, 0))


def _ends_of(client: QueueClient, where: Where, queues: Sequence[QueuePlace]) -> dict[QueuePlace, int]:
    return earliest(client, queues) if where is Where.EARLIEST else client.maximums(queues)


def _resolved(
    client: QueueClient, position: Position, queues: Sequence[QueuePlace], option: str, *, absent: int
) -> dict[QueuePlace, int]:
    """Resolve the given offsets and check them against the queues."""
    if position.where is not Where.OFFSETS:
        return _ends_of(client, position.where, queues)
    _check_known(position.offsets, queues, option)
    requested = {queue: position.offsets.get(queue, absent) for queue in queues}
    maximums = client.maximums(queues)
    minimums = earliest(client, [queue for queue, offset in requested.items() if offset == EARLIEST])
    resolved = {}
    for queue, offset in requested.items():
        if offset > maximums[queue]:
            raise SparkSourceError(
                Code.ILLEGAL_OFFSET,
                f"option {option} has {offset} for {named(queue)}, which ends at {maximums[queue]}",
            )
        resolved[queue] = (
            minimums[queue] if offset == EARLIEST else maximums[queue] if offset == LATEST else offset
        )
    return resolved


def _by_time(
    client: QueueClient, options: SourceOptions, position: Position, queues: Sequence[QueuePlace], edge: str
) -> dict[QueuePlace, int]:
    """The first offset stored at or after a time; queues without a time are read as a whole."""
    option = "startingOffsetsByTimestamp" if edge == "start" else "endingOffsetsByTimestamp"
    if position.where is Where.TIMES:
        _check_known(position.offsets, queues, option)
        times = {queue: position.offsets[queue] for queue in queues if queue in position.offsets}
    else:
        times = dict.fromkeys(queues, position.time_ms)
    offsets = client.offsets_at(times)
    rest = [queue for queue in queues if queue not in times]
    offsets |= earliest(client, rest) if edge == "start" else client.maximums(rest)
    if edge == "start" and options.past_is_error:
        maximums = client.maximums(list(times))
        late = [queue for queue in times if offsets[queue] >= maximums[queue]]
        if late:
            raise SparkSourceError(
                Code.ILLEGAL_OFFSET,
                f"{named(late[0])} has nothing stored at {times[late[0]]} ms or after; with"
                " startingOffsetsByTimestampStrategy=latest its end is taken",
            )
    return offsets


def _check_known(offsets: Offsets, queues: Sequence[QueuePlace], option: str) -> None:
    unknown = sorted(set(offsets) - set(queues))
    if unknown:
        raise SparkSourceError(
            Code.ILLEGAL_OFFSET, f"option {option} names {named(unknown[0])}, which is none of those read"
        )
