"""The original topic of a retry or a dead letter, where a broker reports the last one.

When a broker copies a message that returned from a pop, the copy names the retry topic as its origin, to
which no client subscribes. Source: protocol facts 4.2 and 7.8 (CONSUMER_SEND_MSG_BACK).
"""

from __future__ import annotations

from popgate.naming import DEAD_LETTER_PREFIX, RETRY_PREFIX, pop_retry_topic_v1, pop_retry_topic_v2
from popgate.wire.messages.properties import RETRY_TOPIC, find_property, set_property

_RETRY_TOPIC = RETRY_TOPIC.encode()


def true_origin(topic: str, properties: bytes) -> bytes:
    """The properties of a message that was read from `topic`, with RETRY_TOPIC as consumers know it."""
    if topic.startswith(RETRY_PREFIX):
        group = topic.removeprefix(RETRY_PREFIX)
    elif topic.startswith(DEAD_LETTER_PREFIX):
        group = topic.removeprefix(DEAD_LETTER_PREFIX)
    else:
        return properties
    retry_topic = find_property(properties, _RETRY_TOPIC)
    if retry_topic is None or b"\x01" in retry_topic:  # a client may have written anything
        return properties
    for make in (pop_retry_topic_v2, pop_retry_topic_v1):
        retries = make(group, "").encode()
        if retry_topic.startswith(retries) and len(retry_topic) > len(retries):
            return set_property(properties, _RETRY_TOPIC, retry_topic[len(retries) :])
    return properties
