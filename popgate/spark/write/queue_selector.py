"""Selects the queue of a row: the named one, that of its message group, or the next one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from popgate.errors import Forbidden, TopicNotFound
from popgate.ids.hashes import consistent_hash, java_hash
from popgate.model import CLEANUP_POLICY, COMPACTION
from popgate.queue_client import QueueClient, QueuePlace

_TEMPLATE: Final = "TBW102"
"""The topic whose route a topic gets that is made on first use. Source: protocol facts 7.8."""
ANY: Final = -1
"""In the place of a queue: the gateway chooses."""


def writable_queues(client: QueueClient, topic: str) -> tuple[QueuePlace, ...]:
    """By broker name and number, the order of gateways; none: the first message creates the topic.

    Raises TopicNotFound (topics are not created), Forbidden (no queue is writable), and the client's errors.
    """
    try:
        route = client.route(topic)
    except TopicNotFound:
        if not brokers_of_new_topics(client):
            raise
        return ()
    queues = sorted(
        QueuePlace(topic, each.broker, number)
        for each in route.queues
        if each.writable
        for number in range(each.write_queues)
    )
    if not queues:
        raise Forbidden(f"topic {topic} has no queue that may be written to")
    return tuple(queues)


def is_compacted(client: QueueClient, topic: str) -> bool:
    """Whether of each key in a queue the newest message alone stays. Raises as `QueueClient.topic_config`."""
    return client.topic_config(topic).attributes.get(CLEANUP_POLICY) == COMPACTION


def brokers_of_new_topics(client: QueueClient) -> list[str]:
    """Where a topic may be made that is not there. Raises as `QueueClient.route`."""
    try:
        route = client.route(_TEMPLATE)
    except TopicNotFound:
        return []
    return sorted(each.broker for each in route.queues if each.writable)


def queue_of_group(group: str, queues: Sequence[QueuePlace]) -> QueuePlace:
    """As all producers choose it. Source: protocol facts 3.2."""
    return queues[consistent_hash(java_hash(group), len(queues))]


def named_queue(queues: Sequence[QueuePlace], broker: str, queue_id: int) -> QueuePlace | str:
    """The queue that a row names; otherwise why there is none, as the end of a sentence."""
    matches = [each for each in queues if each.queue_id == queue_id and broker in ("", each.broker)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        brokers = ", ".join(each.broker for each in matches)
        return f"is {queue_id}, which is a queue of several brokers ({brokers}): broker_name says of which"
    where = f" at broker {broker}" if broker else ""
    return f"is {queue_id}, the topic {queues[0].topic} has no such queue{where} to write to"
