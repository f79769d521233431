"""What pops of a group left unfinished comes to those of the group that pull: nothing lost, nothing twice."""

from __future__ import annotations

import asyncio

import pytest

from brokers.capabilities import ReclaimsRetries, Redriven, RedrivesDeadLetters
from popgate.errors import GroupNotFound, TopicNotFound, Unsupported
from popgate.filters.compiled import compile_filter
from popgate.ids.message_id import encode_offset_message_id
from popgate.model import FilterKind, MessageType, Pop, StartFrom, TopicConfig

SECOND = 1_000
EVERYTHING = compile_filter(FilterKind.TAG, "*")


class Group:
    """A consumer group that pops, and then pulls as classic consumers do: from where it stands."""

    def __init__(self, user, topic, name):
        self.user = user
        self.topic = topic
        self.name = name
        self._next: dict[tuple[str, str, int], int] = {}

    async def pop(self, *, invisible_ms=60_000, count=32):
        return await self.user.pop(self.topic, self.name, invisible_ms=invisible_ms, max_messages=count)

    async def take(self, count, **how):
        return await self.user.collect(self.topic, self.name, count, **how)

    async def ack(self, *messages):
        await self.user.ack(self.topic, self.name, *messages)

    async def reclaim(self, **how):
        """All that there is to move now; how much that was."""
        reclaimer = self.user.broker.capability(ReclaimsRetries)
        assert reclaimer is not None
        moved = 0
        while True:
            step = await reclaimer.reclaim(self.user.context, self.name, self.topic, **how)
            moved += step.moved
            if not step.more:
                return moved

    async def reclaimed(self, count, **how):
        """Wait until so much was moved; brokers take their time until something came back."""
        moved = 0

        async def all_moved():
            nonlocal moved
            await self.user.pass_ms(self.user.either(SECOND, 200))
            moved += await self.reclaim(**how)
            return moved >= count

        await self.user.eventually(all_moved)
        assert moved == count

    async def pull(self, topic=""):
        """What is behind the group's position, and was not pulled here yet."""
        topic = topic or self.topic
        broker, context, found = self.user.broker, self.user.context, []
        try:
            queues = await self.user.queues(topic)
        except TopicNotFound:
            return []
        for queue in queues:
            place = (topic, queue.broker, queue.queue_id)
            if place not in self._next:
                position = await broker.committed(context, self.name, *place)
                bounds = await broker.bounds(context, *place)
                self._next[place] = bounds.minimum if position is None else position
            pulled = await broker.pull(
                context,
                *place,
                self._next[place],
                max_messages=100,
                max_bytes=1 << 24,
                passing=EVERYTHING,
                wait_until=None,
            )
            self._next[place] = pulled.next_offset
            found += pulled.messages
        return found

    async def retries(self):
        return await self.pull(f"%RETRY%{self.name}")

    async def pulled_retries(self, count):
        """So many, and no more, that came again for those who pull."""
        found = []

        async def enough():
            found.extend(await self.retries())
            if len(found) < count:
                await self.user.pass_ms(self.user.either(SECOND, 200))
            return len(found) >= count

        await self.user.eventually(enough)
        assert len(found) == count
        return found

    async def commit(self, *messages):
        """As one that pulled these, and nothing behind them."""
        behind = {}
        for message in messages:
            place = (message.topic, message.broker, message.queue_id)
            behind[place] = max(behind.get(place, 0), message.offset + 1)
        for place, offset in behind.items():
            await self.user.broker.commit(self.user.context, self.name, *place, offset)

    async def position_is_written(self, count):
        await self.user.is_written_down(self.topic, self.name, count)


@pytest.fixture
async def group(user):
    return Group(user, await user.topic(), await user.group())


def bodies(messages):
    return sorted(message.body.decode() for message in messages)


@pytest.mark.every_durability
async def test_what_came_back_is_pulled_with_all_that_a_retry_says(group, properties_of):
    user = group.user
    (sent,) = await user.send(group.topic, "a", tag="t", keys=["k"], properties={"color": "red"})
    (first,) = await group.take(1)
    await group.position_is_written(1)
    await user.broker.change_invisible(user.context, group.topic, group.name, first.receipt, SECOND)
    await user.lag(SECOND)
    await group.reclaimed(1)
    (again,) = await group.pulled_retries(1)
    assert (again.topic, again.body) == (f"%RETRY%{group.name}", b"a")
    assert again.reconsume_times == 1
    assert (again.born_ms, again.born_host, again.flag) == (first.born_ms, first.born_host, first.flag)
    found = properties_of(again)
    expected = {
        "color": "red",
        "TAGS": "t",
        "KEYS": "k",
        "UNIQ_KEY": sent.message_id,
        "RETRY_TOPIC": group.topic,
    }
    assert expected.items() <= found.items()
    assert "ORIGIN_MESSAGE_ID" in found
    if user.broker.traits.redeliveries_keep_place:
        assert found["ORIGIN_MESSAGE_ID"] == encode_offset_message_id(first.store_host, first.commit_offset)
    assert not {"POP_CK", "1ST_POP_TIME", "ORIGIN_GROUP"} & set(found)
    assert await group.pull() == []
    assert await group.reclaim() == 0
    await user.lag(60_000 if user.site.movable else 0)
    await user.nothing(group.topic, group.name)


@pytest.mark.every_durability
async def test_who_pulls_on_gets_the_unfinished_and_the_new_and_nothing_of_what_is_done(group):
    user = group.user
    await user.send(group.topic, *(f"old-{n:02}" for n in range(20)))
    taken = await group.take(20)
    await group.position_is_written(20)
    unfinished = taken[::3]
    await group.ack(*(one for one in taken if one not in unfinished))
    receipts = [one.receipt for one in unfinished]
    await user.broker.give_back(user.context, group.topic, group.name, receipts)
    await group.reclaimed(len(unfinished))
    await user.send(group.topic, *(f"new-{n}" for n in range(5)))
    assert bodies(await group.pull()) == [f"new-{n}" for n in range(5)]
    assert bodies(await group.pulled_retries(len(unfinished))) == bodies(unfinished)


async def test_what_is_held_comes_when_its_time_is_over_and_its_holder_finishes_nothing_twice(group):
    user = group.user
    await user.send(group.topic, "a", "b", "c")
    invisible_ms = 10_000
    taken = await group.take(3, invisible_ms=invisible_ms)
    await group.position_is_written(3)
    await group.ack(*(one for one in taken if one.body == b"a"))
    if user.broker.traits.tells_deliveries:
        assert await group.reclaim() == 0  # somebody has them
        assert await group.reclaim(held=True) == 2
        assert await group.pull() == []
        assert await group.retries() == []
        await user.precision(invisible_ms)
    else:
        await group.reclaimed(2, held=True)
    again = await group.pulled_retries(2)
    assert bodies(again) == ["b", "c"]
    # Too late: that the message comes is neither undone nor done twice.
    await user.broker.give_back(user.context, group.topic, group.name, [one.receipt for one in taken])
    await user.lag(60_000 if user.site.movable else 0)
    assert await group.reclaim() == 0
    await user.nothing(group.topic, group.name)


async def test_several_at_once_move_nothing_twice(group):
    user = group.user
    await user.send(group.topic, *(f"{n:02}" for n in range(40)))
    taken = await group.take(40)
    await group.position_is_written(40)
    await user.broker.give_back(user.context, group.topic, group.name, [one.receipt for one in taken])
    moved = 0

    async def all_moved():
        nonlocal moved
        await user.pass_ms(user.either(SECOND, 200))
        moved += sum(await asyncio.gather(*(group.reclaim() for _ in range(4))))
        return moved >= 40

    await user.eventually(all_moved)
    assert moved == 40
    assert bodies(await group.pulled_retries(40)) == bodies(taken)
    assert await group.reclaim() == 0


async def test_a_group_without_anything_to_move_is_left_as_it_is(group):
    user = group.user
    assert await group.reclaim() == 0
    await user.send(group.topic, "a")
    assert await group.reclaim(held=True) == 0
    assert bodies(await group.take(1)) == ["a"]


async def test_what_is_not_there_is_told(group):
    user = group.user
    reclaimer = user.broker.capability(ReclaimsRetries)
    with pytest.raises(GroupNotFound):
        await reclaimer.reclaim(user.context, "group-that-is-not-there", group.topic)
    with pytest.raises(TopicNotFound):
        await reclaimer.reclaim(user.context, group.name, "contract-topic-that-is-not-there")


async def test_a_group_that_begins_at_the_end_of_topics_gets_what_came_back_to_it(user):
    group = Group(user, await user.topic(), await user.group(start_from=StartFrom.LAST))
    await user.nothing(group.topic, group.name)
    await user.send(group.topic, "a", "b")
    taken = await group.take(2)
    await group.position_is_written(2)
    await user.broker.give_back(user.context, group.topic, group.name, [one.receipt for one in taken])
    await group.reclaimed(2)
    assert bodies(await group.pulled_retries(2)) == ["a", "b"]


@pytest.mark.parametrize("known", [True, False], ids=["locked here", "locked elsewhere"])
async def test_of_a_group_that_reads_in_order_from_now_on_nothing_is_buried(group, known, properties_of):
    """A broker may take what is sent to the retries of a group that holds locks for a dead letter."""
    user = group.user
    await user.send(group.topic, "a", "b")
    taken = await group.take(2)
    await group.position_is_written(2)
    await user.broker.give_back(user.context, group.topic, group.name, [one.receipt for one in taken])
    (queue, *_) = await user.queues(group.topic)
    place = (group.topic, queue.broker, queue.queue_id)
    assert await user.broker.lock(user.context, group.name, "orderly", [place]) == [place]
    if not known:
        await user.restart()
    await group.reclaimed(2)
    found = await group.pulled_retries(2)
    assert bodies(found) == ["a", "b"]
    assert {properties_of(one)["RETRY_TOPIC"] for one in found} == {group.topic}
    try:
        buried = await group.pull(f"%DLQ%{group.name}")
    except TopicNotFound:
        buried = []
    # One shows where the others would go, where that was not known: it is in both places.
    assert len(buried) <= (0 if known else 1)


async def test_there_and_back_again_nothing_is_lost(group):
    """A group pops, pulls, and pops once more, and never finishes all it has."""
    user = group.user
    done = []
    await user.send(group.topic, *(f"first-{n}" for n in range(8)))
    taken = await group.take(8)
    await group.position_is_written(8)
    await group.ack(*taken[:5])
    done += taken[:5]
    await user.broker.give_back(user.context, group.topic, group.name, [one.receipt for one in taken[5:]])
    await group.reclaimed(3)
    await user.send(group.topic, *(f"second-{n}" for n in range(8)))
    pulled = await group.pull()
    assert bodies(pulled) == [f"second-{n}" for n in range(8)]
    by_place = {}
    for message in pulled:
        by_place.setdefault((message.broker, message.queue_id), []).append(message)
    finished = [messages[0] for messages in by_place.values()]
    await group.commit(*finished)
    done += finished
    retries = await group.pulled_retries(3)
    await group.commit(retries[0])
    done.append(retries[0])
    rest = sorted({*bodies([*taken, *pulled])} - {*bodies(done)})
    # Of a topic that cannot be popped its consumers go on pulling.
    pops_all = user.broker.traits.pops_group_retries
    found = await group.take(len(rest) - 2)
    found += await user.collect(f"%RETRY%{group.name}", group.name, 2) if pops_all else retries[1:]
    assert bodies(found) == rest


async def test_what_classic_consumers_sent_back_is_popped_hidden_and_finished_as_anything(user):
    """A group that is popped has its retries popped, too: they come back where they were."""
    if not user.broker.traits.pops_group_retries:
        user.differs("retries of groups cannot be popped", "test_retries_of_groups_are_popped_or_refused")
    name = await user.group()
    topic = f"%RETRY%{name}"
    group = Group(user, await user.topic(), name)
    await user.send(group.topic, "a", "b")
    taken = await group.take(2)
    await group.position_is_written(2)
    await user.broker.give_back(user.context, group.topic, name, [one.receipt for one in taken])
    await group.reclaimed(2)
    found = await user.collect(topic, name, 2)
    assert {one.topic for one in found} == {topic}
    one, other = sorted(found, key=lambda message: message.body)
    await user.ack(topic, name, one)
    await user.broker.change_invisible(user.context, topic, name, other.receipt, SECOND)
    await user.lag(SECOND)
    again = await user.one(topic, name)
    assert (again.body, again.topic) == (b"b", topic)
    longer = await user.broker.change_invisible(user.context, topic, name, again.receipt, 60_000)
    assert await user.broker.ack(user.context, topic, name, [longer]) == [None]
    await user.lag(60_000 if user.site.movable else 0)
    await user.nothing(topic, name)


async def test_retries_of_groups_are_popped_or_refused(user):
    name, other = await user.group(), await user.group()
    await user.broker.create_topic(TopicConfig(f"%RETRY%{name}", read_queues=1, write_queues=1))
    for group in (name, other):
        pop = Pop(f"%RETRY%{name}", group, EVERYTHING, 60_000)
        if user.broker.traits.pops_group_retries:
            assert await user.broker.pop(user.context, pop) == []
        else:
            with pytest.raises(Unsupported):
                await user.broker.pop(user.context, pop)


async def test_redriven_dead_letters_are_moved_as_new(user, properties_of):
    if not isinstance(user.broker, RedrivesDeadLetters):
        user.differs("nothing is redriven", "test_dead_letters_are_consumed_like_any_message")
    group = Group(user, await user.topic(), await user.group())
    await user.send(group.topic, "a", "b")
    for message in await group.take(2):
        await user.dead_letter(group.topic, group.name, message.receipt)
    results = await user.broker.redrive(user.context, group.name, user.broker.name, 0, [0, 1])
    assert all(isinstance(one, Redriven) for one in results)
    await user.one(group.topic, group.name)  # one is held, the other was never delivered
    assert await group.reclaim(held=True) == 2
    await user.precision(60_000)
    found = await group.pulled_retries(2)
    assert sorted((one.body, one.reconsume_times) for one in found) == [(b"a", 1), (b"b", 0)]
    for one in found:
        told = properties_of(one)
        assert (told["RETRY_TOPIC"], told["REDRIVE_COUNT"]) == (group.topic, "1")
    await user.nothing(group.topic, group.name)
    await user.restart()
    await user.nothing(group.topic, group.name)
    assert await group.reclaim(held=True) == 0


async def test_of_an_ordered_group_only_redriven_letters_are_moved(user):
    if not isinstance(user.broker, RedrivesDeadLetters):
        user.differs(
            "nothing is redriven",
            "test_who_pulls_on_gets_the_unfinished_and_the_new_and_nothing_of_what_is_done",
        )
    group = Group(user, await user.topic(MessageType.FIFO), await user.group(ordered=True))
    for body in ("a", "b", "c"):
        await user.send(group.topic, body, message_group="m")
    first = await user.one(group.topic, group.name)
    await user.dead_letter(group.topic, group.name, first.receipt)
    await user.broker.redrive(user.context, group.name, user.broker.name, 0, [0])
    assert await group.reclaim(held=True) == 1
    assert bodies(await group.pulled_retries(1)) == ["a"]
    assert bodies(await group.take(2)) == ["b", "c"]


async def test_more_than_one_step_moves_is_moved(user):
    if not user.broker.traits.tells_deliveries:
        user.differs("what comes back takes its time", "test_several_at_once_move_nothing_twice")
    group = Group(user, await user.topic(queues=1), await user.group())
    await user.send(group.topic, *(f"{n:03}" for n in range(600)))
    taken = await group.take(600)
    await user.broker.give_back(user.context, group.topic, group.name, [one.receipt for one in taken])
    assert await group.reclaim() == 600
    (progress,) = await user.broker.progress(group.name, group.topic)
    assert (progress.committed, progress.waiting, progress.in_flight) == (600, 0, 0)
    standing = await user.broker.standing(group.name, group.topic)
    assert (standing.lag, standing.free) == (0, 0)
    await user.restart()
    (progress,) = await user.broker.progress(group.name, group.topic)
    assert (progress.committed, progress.lag) == (600, 0)
    found = []
    while len(found) < 600:
        some = await group.retries()
        assert some
        found += some
    assert [one.body for one in found] == [b"%03d" % n for n in range(600)]
