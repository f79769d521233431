"""Queue locks of classic ordered consumers: one client each, for 60 s from its last word."""

from __future__ import annotations

import pytest

from brokers.capabilities import LeasesQueues
from popgate.model import TopicConfig


class Door:
    """A group of consumers that lock the queues of one topic."""

    def __init__(self, user, topic, group, queues):
        self.user = user
        self.topic = topic
        self.group = group
        self.queues = [(topic, q.broker, q.queue_id) for q in queues]

    async def lock(self, client, *queues):
        return sorted(await self.user.broker.lock(self.user.context, self.group, client, queues))

    async def lease(self, owner, *queues):
        broker = self.user.broker
        leases = broker.capability(LeasesQueues)
        take = leases.lease if leases is not None else broker.lock
        return sorted(await take(self.user.context, self.group, owner, queues))

    async def end_lease(self, owner, *queues):
        broker = self.user.broker
        leases = broker.capability(LeasesQueues)
        give_up = leases.end_lease if leases is not None else broker.unlock
        await give_up(self.user.context, self.group, owner, queues)

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
    slowness = user.site.slowness  # the 60 s are the broker's own

    with user.in_time(user.now_ms() + 60_000):
        await door.lock("one", a)
        await user.pass_ms(user.either(59_000, 30_000) / slowness)
        assert await door.lock("two", a) == []
    with user.in_time(user.now_ms() + 60_000):
        assert await door.lock("one", a) == [a]
        await user.pass_ms(user.either(59_000, 40_000) / slowness)
        assert await door.lock("two", a) == []
    await user.pass_ms(user.either(2_000, 22_000))
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


async def test_a_lease_belongs_to_one_owner(door):
    a, b, _ = door.queues
    assert await door.lease("one", a, b) == sorted([a, b])
    assert await door.lease("two", a, b) == []
    assert await door.lease("one", a) == [a]
    await door.end_lease("two", a, b)
    assert await door.lease("two", a) == []
    await door.end_lease("one", a, b)
    assert await door.lease("two", a, b) == sorted([a, b])


async def test_what_is_sent_to_the_retries_of_a_group_that_has_leases_is_no_dead_letter(user, door):
    """A RocketMQ buries it while the group holds locks: leases must be something else there."""
    retries = f"%RETRY%{door.group}"
    await user.broker.create_topic(TopicConfig(retries, read_queues=1, write_queues=1))
    assert await door.lease("one", *door.queues) == sorted(door.queues)
    (sent,) = await user.put(user.message(retries, "again", properties={"RETRY_TOPIC": door.topic}))
    (queue,) = await user.queues(retries)

    async def arrived():
        bounds = await user.broker.bounds(user.context, retries, queue.broker, queue.queue_id)
        return bounds.maximum > bounds.minimum

    assert await user.eventually(arrived)
    assert sent.queue_id == queue.queue_id
