"""Messages that a classic consumer pulled and sends back: they come again from the group's retry topic."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from brokers.capabilities import Redriven, RedrivesDeadLetters
from popgate.errors import BadRequest, BrokerUnavailable, GatewayError, GroupNotFound, NotFound, TopicNotFound
from popgate.filters.compiled import compile_filter
from popgate.ids.message_id import encode_offset_message_id
from popgate.model import FilterKind, Queue, SendBack, Sent, StoredMessage, TopicConfig

SECOND = 1_000


class Consumer:
    """Pulls, as a classic consumer does, from a topic and from its group's retry topic."""

    def __init__(self, user, topic, group):
        self.user = user
        self.topic = topic
        self.group = group
        self._next: dict[tuple[str, int], int] = {}

    async def pull(self, topic: str) -> list[StoredMessage]:
        """What is new in a topic since the last call."""
        broker, found = self.user.broker, []
        try:
            queues: tuple[Queue, ...] = await self.user.queues(topic)
        except TopicNotFound:
            return []
        for queue in queues:
            where = (topic, queue.broker, queue.queue_id)
            place = (topic, queue.queue_id)
            start = self._next.get(place)
            if start is None:
                start = (await broker.bounds(self.user.context, *where)).minimum
            pulled = await broker.pull(
                self.user.context,
                *where,
                start,
                max_messages=32,
                max_bytes=1 << 24,
                passing=compile_filter(FilterKind.TAG, "*"),
                wait_until=None,
            )
            self._next[place] = pulled.next_offset
            found += pulled.messages
        return found

    async def one(self, topic: str = "") -> StoredMessage:
        (found,) = await self.user.eventually(lambda: self.pull(topic or self.topic))
        return found

    async def retries(self) -> list[StoredMessage]:
        """What came again meanwhile; time passes."""
        await self.user.pass_ms(self.user.either(SECOND, 200))
        return await self.pull(f"%RETRY%{self.group}")

    async def again(self) -> StoredMessage:
        (found,) = await self.user.eventually(self.retries)
        return found

    async def again_after(self, began_ms: int, rest_ms: int) -> StoredMessage:
        """What comes again when so much time has passed, and not before: as it looks where time is moved by
        hand, else as the broker wrote it down, for who looks may stand still."""
        if self.user.site.movable:
            await self.user.pass_ms(rest_ms - 100)
            await self.nothing_again()
            await self.user.precision(200)
            return await self.again()
        message = await self.again()
        assert message.store_ms >= began_ms + rest_ms
        return message

    async def nothing_again(self) -> None:
        assert await self.pull(f"%RETRY%{self.group}") == []

    async def send_back(self, message: StoredMessage, level: int = 1, **more) -> None:
        request = SendBack(self.group, message.broker, message.commit_offset, level, **more)
        await self.user.broker.send_back(self.user.context, request)


@pytest.fixture
async def consumer(user):
    return Consumer(user, await user.topic(queues=1), await user.group())


@pytest.mark.every_durability
async def test_a_message_that_is_sent_back_comes_again_from_the_retry_topic(user, consumer, properties_of):
    (sent,) = await user.send(consumer.topic, "a", tag="t", keys=["k"], properties={"color": "red"})
    first = await consumer.one()
    assert (first.reconsume_times, first.commit_offset >= 0) == (0, True)
    await consumer.send_back(first)
    again = await consumer.again()
    assert (again.topic, again.body, again.reconsume_times) == (f"%RETRY%{consumer.group}", b"a", 1)
    assert (again.born_ms, again.flag, again.sys_flag) == (first.born_ms, first.flag, first.sys_flag)
    expected = {
        "color": "red",
        "TAGS": "t",
        "KEYS": "k",
        "UNIQ_KEY": sent.message_id,
        "RETRY_TOPIC": consumer.topic,
        "ORIGIN_MESSAGE_ID": encode_offset_message_id(first.store_host, first.commit_offset),
    }
    assert expected.items() <= properties_of(again).items()
    assert await consumer.pull(consumer.topic) == []


async def test_attempts_grow_and_the_first_place_is_remembered(user, consumer, properties_of):
    await user.send(consumer.topic, "a")
    message = await consumer.one()
    origin = encode_offset_message_id(message.store_host, message.commit_offset)
    for times in range(1, user.either(6, 3)):
        await consumer.send_back(message)
        message = await consumer.again()
        assert message.reconsume_times == times
        assert properties_of(message)["ORIGIN_MESSAGE_ID"] == origin
        assert properties_of(message)["RETRY_TOPIC"] == consumer.topic


async def test_it_is_seen_after_the_time_of_its_delay_level(user, consumer):
    await user.send(consumer.topic, "a")
    message = await consumer.one()
    before = user.now_ms()
    await consumer.send_back(message, 2)
    message = await consumer.again_after(before, 5_000)
    if user.site.movable:
        await consumer.send_back(message, 99)
        await user.pass_ms(7_199 * SECOND)
        await consumer.nothing_again()
        await user.precision(SECOND)
        assert (await consumer.again()).reconsume_times == 2


async def test_without_a_level_the_delay_grows_with_the_attempts(user, consumer):
    await user.send(consumer.topic, "a")
    message = await consumer.one()
    for rest in user.either((10, 30, 60, 120), (10,)):
        before = user.now_ms()
        await consumer.send_back(message, 0)
        message = await consumer.again_after(before, rest * SECOND)


async def test_the_last_attempt_ends_in_the_dead_letters(user, consumer, properties_of, texts):
    await user.send(consumer.topic, "a", properties={"color": "red"})
    message = await consumer.one()
    await consumer.send_back(message, max_attempts=2)
    message = await consumer.again()
    await consumer.send_back(message, max_attempts=2)
    letters = Consumer(user, f"%DLQ%{consumer.group}", consumer.group)
    letter = await letters.one()
    assert (letter.body, properties_of(letter)["color"]) == (b"a", "red")
    assert properties_of(letter)["RETRY_TOPIC"] == consumer.topic
    if user.broker.traits.dead_letters_name_origin:
        assert properties_of(letter)["DLQ_ORIGIN_TOPIC"] == consumer.topic
    await user.pass_ms(2 * SECOND)
    await consumer.nothing_again()


async def test_the_attempts_of_the_group_count_where_the_consumer_says_none(user):
    consumer = Consumer(user, await user.topic(queues=1), await user.group(max_attempts=1))
    await user.send(consumer.topic, "a")
    await consumer.send_back(await consumer.one())
    assert (await Consumer(user, f"%DLQ%{consumer.group}", consumer.group).one()).body == b"a"


async def test_a_negative_level_makes_a_dead_letter_at_once(user, consumer):
    await user.send(consumer.topic, "a")
    await consumer.send_back(await consumer.one(), -1)
    assert (await Consumer(user, f"%DLQ%{consumer.group}", consumer.group).one()).body == b"a"
    await consumer.nothing_again()


async def test_what_was_sent_back_survives_a_restart(user, consumer):
    await user.send(consumer.topic, "a")
    await consumer.send_back(await consumer.one(), 2)
    await user.restart()
    assert (await consumer.again()).body == b"a"


async def test_two_groups_send_back_for_themselves(user, consumer):
    other = Consumer(user, consumer.topic, await user.group())
    await user.send(consumer.topic, "a")
    await consumer.send_back(await consumer.one())
    await other.send_back(await other.one())
    assert (await consumer.again()).reconsume_times == 1
    assert (await other.again()).reconsume_times == 1
    await user.pass_ms(2 * SECOND)
    await consumer.nothing_again()
    await other.nothing_again()


async def test_many_at_once_all_come_again(user, consumer, texts):
    names = [f"m{n}" for n in range(32)]
    await user.send(consumer.topic, *names)
    found: list[StoredMessage] = []

    async def all_there() -> bool:
        found.extend(await consumer.pull(consumer.topic))
        return len(found) == len(names)

    async def all_again() -> bool:
        found.extend(await consumer.retries())
        return len(found) == len(names)

    await user.eventually(all_there)
    await asyncio.gather(*(consumer.send_back(message) for message in found))
    found.clear()
    await user.eventually(all_again)
    assert sorted(texts(found)) == sorted(names)


async def test_what_cannot_be_sent_back_is_refused(user, consumer):
    await user.send(consumer.topic, "a")
    message = await consumer.one()
    with pytest.raises(NotFound):
        await consumer.send_back(replace(message, commit_offset=message.commit_offset + (1 << 40)))
    with pytest.raises(GroupNotFound):
        await Consumer(user, consumer.topic, "no-such-group").send_back(message)
    with pytest.raises((BadRequest, BrokerUnavailable)):
        await consumer.send_back(replace(message, broker="no-such-broker"))
    await user.pass_ms(2 * SECOND)
    await consumer.nothing_again()


async def test_a_consumer_may_send_to_its_retry_topic_itself(user, consumer, properties_of):
    """What the Java client does when its request was not answered, and when it reads in order."""
    retries = f"%RETRY%{consumer.group}"
    await user.broker.create_topic(TopicConfig(retries, read_queues=1, write_queues=1))
    counts = {"RETRY_TOPIC": consumer.topic, "RECONSUME_TIME": "2", "MAX_RECONSUME_TIMES": "2"}
    (again,) = await user.put(replace(user.message(retries, "again", properties=counts), attempt=2))
    assert isinstance(again, Sent)
    found = await consumer.again()
    assert (found.body, found.reconsume_times) == (b"again", 2)
    counts["RECONSUME_TIME"] = "3"
    (result,) = await user.broker.send(
        user.context, [replace(user.message(retries, "spent", properties=counts), attempt=3)]
    )
    assert not isinstance(result, GatewayError)
    letter = await Consumer(user, f"%DLQ%{consumer.group}", consumer.group).one()
    assert (letter.body, properties_of(letter)["RETRY_TOPIC"]) == (b"spent", consumer.topic)
    await consumer.nothing_again()


async def test_the_position_in_the_retry_topic_is_the_groups_own(user, consumer):
    await user.send(consumer.topic, "a")
    await consumer.send_back(await consumer.one())
    again = await consumer.again()
    where = (f"%RETRY%{consumer.group}", again.broker, again.queue_id)
    assert await user.broker.committed(user.context, consumer.group, *where) is None
    await user.broker.commit(user.context, consumer.group, *where, again.offset + 1)
    await user.positions_are_kept()
    assert await user.broker.committed(user.context, consumer.group, *where) == again.offset + 1
    await user.restart()
    assert await user.broker.committed(user.context, consumer.group, *where) == again.offset + 1


async def test_a_dead_letter_that_was_sent_back_is_redriven_to_where_it_is_pulled_from(
    user, consumer, properties_of
):
    if not isinstance(user.broker, RedrivesDeadLetters):
        user.differs("nothing is redriven", "test_a_negative_level_makes_a_dead_letter_at_once")
    await user.send(consumer.topic, "a")
    await consumer.send_back(await consumer.one(), -1)
    (result,) = await user.broker.redrive(user.context, consumer.group, "", 0, [0])
    assert isinstance(result, Redriven)
    assert (result.topic, result.retry_topic) == (consumer.topic, f"%RETRY%{consumer.group}")
    again = await consumer.again()
    assert (again.body, again.reconsume_times, again.offset) == (b"a", 0, result.offset)
    assert properties_of(again)["RETRY_TOPIC"] == consumer.topic
    await consumer.send_back(again)
    assert (await consumer.again()).reconsume_times == 1
