"""The key of a message in a compacted topic, which keeps the newest message of each key.

Source: RocketMQ 5.3.3 (`SendMessageProcessor`: a message without key is refused; `CompactionLog`: an empty
body deletes).
"""

from __future__ import annotations

from popgate.errors import BadRequest, Fault
from popgate.model import CLEANUP_POLICY, COMPACTION
from popgate.wire.messages.properties import KEYS, find_property

_KEYS = KEYS.encode()


def check_compactable(topic: str, properties: bytes, lite_topic: str) -> None:
    """Of a message to a compacted topic. Raises BadRequest: it has no key, or a lite topic."""
    if not compaction_key_of(properties):
        raise BadRequest(
            f"the message has no key, and topic {topic} keeps the newest message of each key"
            f" ({CLEANUP_POLICY}={COMPACTION}): give it one",
            Fault.ILLEGAL_KEY,
        )
    if lite_topic:
        raise BadRequest(f"topic {topic} is compacted, and has no lite topics", Fault.ILLEGAL_LITE_TOPIC)


def compaction_key_of(properties: bytes) -> bytes:
    """The key of a message: all that its property KEYS says, as one; empty when that is blank."""
    keys = find_property(properties, _KEYS)
    return keys if keys and keys.strip() else b""
