"""Queue locks of classic ordered consumers: one client each, for 60 s from its last word."""

from __future__ import annotations

import pytest


class Door:
    """A group of consumers that lock the queues of one topic."""

    def __init__(self, user, topic, group, queues):
        self.user = user
        self.topic = topic
        self.group = group
        self.queues = [(topic, q.broker, q.queue_id) for q in queues]

    async def lock(self, client, *queues):
        return sorted(await self.user.broker.lock(self.user.context, self.group, client, queues))

    async def unlock(self, client, *queues):
        await self.user.broker.unlock(self.user.context, self.group, client, queues)


@pytest.fixture
async def door(user):
    topic = await user.topic(queues=3)
    return Door(user, topic, await user.group(), await user.queues(topic))


async def test_a_lock_belongs_to_one_client(door):
    a, b, c = door.queues
    assert await door.lock("one", a, b) == sorted([a, b])
    assert await door.lock("two", a, b, c) == [c]
    assert await door.lock("one", a, b, c) == sorted([a, b])


async def test_a_lock_given_up_is_free(door):
    a, b, _ = door.queues
    await door.lock("one", a, b)
    await door.unlock("two", a, b)
    assert await door.lock("two", a, b) == []
    await door.unlock("one", a)
    assert await door.lock("two", a, b) == [a]


async def test_a_lock_lasts_60_seconds_from_its_last_renewal(user, door):
    a, *_ = door.queues
    await door.lock("one", a)
    await user.pass_ms(user.either(59_000, 20_000))
    assert await door.lock("two", a) == []
    assert await door.lock("one", a) == [a]
    await user.pass_ms(user.either(59_000, 45_000))
    assert await door.lock("two", a) == []
    await user.pass_ms(user.either(2_000, 17_000))
    assert await door.lock("two", a) == [a]
    assert await door.lock("one", a) == []


async def test_locks_of_two_groups_are_strangers(user, door):
    a, *_ = door.queues
    other = await user.group()
    await door.lock("one", a)
    assert await user.broker.lock(user.context, other, "two", [a]) == [a]


async def test_a_lock_does_not_keep_others_from_popping(user, door):
    await door.lock("one", *door.queues)
    await user.send(door.topic, "a")
    await user.ack(door.topic, door.group, await user.one(door.topic, door.group))


async def test_queues_that_do_not_exist_are_not_locked_for_ever(user, door):
    """Whatever is answered, a flood of invented names must not grow what the broker keeps."""
    before = user.broker.figures()
    invented = [(f"topic-{n}", "broker", n) for n in range(2_000)]
    await door.lock("one", *invented)
    await user.pass_ms(120_000 if user.site.movable else 10)
    await door.lock("one", door.queues[0])
    after = user.broker.figures()
    for name in before:
        if "lock" in name:
            assert after[name] <= before[name] + 1
