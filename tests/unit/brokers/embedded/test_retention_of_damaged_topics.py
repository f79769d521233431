"""Retention goes on when a topic cannot be read: one damaged topic keeps no other one's old messages."""

from typing import Any

import pytest

from brokers.embedded.storage.keys import INDEX, MESSAGES, SIZES, message_key
from popgate.errors import BrokerUnavailable

Parts = Any
HOUR_S = 3600


def damage(parts: Parts, monkeypatch: pytest.MonkeyPatch, topic: Any, space: str) -> None:
    """Make a topic's keys of one keyspace unreadable, as a block with a wrong checksum does."""
    prefix = message_key(topic.id, 0, 0)[:4]
    first = parts.store.first

    def damaged_first(asked: str, begin: bytes, end: bytes | None = None) -> tuple[bytes, bytes] | None:
        if asked == space and begin.startswith(prefix):
            raise BrokerUnavailable("the store cannot be read: corruption")
        found: tuple[bytes, bytes] | None = first(asked, begin, end)
        return found

    monkeypatch.setattr(parts.store, "first", damaged_first)


async def round_of(parts: Parts) -> None:
    parts.retention._next_ms = parts.clock.now_ms()
    await parts.run(parts.retention)


@pytest.mark.parametrize("space", [MESSAGES, SIZES])
async def test_a_damaged_topic_keeps_no_other_one_from_losing_its_old_messages(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, space: str
) -> None:
    damaged = await parts.topic("A", retention_ms=HOUR_S * 1000)
    sound = await parts.topic("B", retention_ms=HOUR_S * 1000)
    for topic in (damaged, sound):
        for number in range(3):
            parts.send(topic, 0, f"{topic.name}{number}")
    await parts.store.commit()
    parts.clock.advance(2 * HOUR_S)
    damage(parts, monkeypatch, damaged, space)
    await round_of(parts)
    assert sound.queues[0].minimum == 3
    assert parts.delivered(sound) == []
    # What is said of the damaged one is what is in the store.
    assert len(parts.delivered(damaged)) == 3 - damaged.queues[0].minimum
    if space == MESSAGES:
        assert damaged.queues[0].minimum == 0
        assert any(damaged.id == int.from_bytes(key[4:8], "big") for key, _ in parts.store.scan(INDEX, b""))
