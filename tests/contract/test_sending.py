"""Sending: what comes back, what is stored, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from popgate.errors import AlreadyExists, DelayTooLong, Forbidden, GatewayError, TopicNotFound
from popgate.filters.compiled import compile_filter
from popgate.messages.packed_messages import PackedMessages
from popgate.model import FilterKind, MessageType, Permission, Sent, TopicConfig


async def test_packed_messages_arrive_as_others_do(user, properties_of):
    topic, group = await user.topic(MessageType.NORMAL), await user.group()
    messages = [user.message(topic, text, tag="tag-a", properties={"n": text}) for text in ("1", "2", "3")]
    told = await user.broker.send_packed(user.context, PackedMessages.pack(topic, messages))
    assert [one.message_id for one in told] == [one.message_id for one in messages]
    assert len({(one.broker, one.queue_id, one.offset) for one in told}) == 3

    got = {one.body: one for one in await user.collect(topic, group, 3)}
    for message, sent in zip(messages, told, strict=True):
        one = got[message.body]
        assert (one.broker, one.queue_id, one.offset) == (sent.broker, sent.queue_id, sent.offset)
        assert properties_of(one).items() >= properties_of(message).items()


async def test_packed_messages_for_a_topic_that_is_not_there_are_refused(user):
    packed = PackedMessages.pack("Nowhere", [user.message("Nowhere", "1")])
    with pytest.raises(TopicNotFound):
        await user.broker.send_packed(user.context, packed)


@pytest.mark.every_durability
async def test_a_message_arrives_as_it_was_sent(user, properties_of):
    topic, group = await user.topic(MessageType.NORMAL), await user.group()
    message = user.message(
        topic,
        "grüße \x00 \u4f60\u597d".encode(),
        tag="tag-a",
        keys=("k1", "k2"),
        properties={"color": "blau", "größe": "10", "emoji": "\U0001f40d"},
    )
    message.flag = 7
    (sent,) = await user.put(message)
    assert sent.message_id == message.message_id

    got = await user.one(topic, group)
    assert got.body == message.body
    assert got.topic == topic
    assert (got.broker, got.queue_id, got.offset) == (sent.broker, sent.queue_id, sent.offset)
    assert got.broker in {queue.broker for queue in await user.queues(topic)}
    assert got.flag == 7
    assert got.born_ms == message.born_ms
    assert got.born_host == message.born_host
    assert abs(got.store_ms - user.now_ms()) < 60_000
    assert got.attempt == 1
    found = properties_of(got)
    for name, value in properties_of(message).items():
        assert found[name] == value


async def test_scenario_15_every_message_of_a_batch_has_its_own_result_in_order(user, texts):
    topic, group = await user.topic(), await user.group()
    messages = [user.message(topic, f"m{n}") for n in range(10)]
    results = await user.put(*messages)
    assert [r.message_id for r in results] == [m.message_id for m in messages]
    assert len({(r.broker, r.queue_id, r.offset) for r in results}) == 10
    assert sorted(texts(await user.collect(topic, group, 10))) == [f"m{n}" for n in range(10)]


async def test_messages_of_one_queue_have_growing_offsets_and_come_in_that_order(user, texts):
    topic, group = await user.topic(queues=1), await user.group()
    results = await user.send(topic, *"abcdefgh")
    offsets = [r.offset for r in results]
    assert offsets == list(range(offsets[0], offsets[0] + 8))
    assert texts(await user.collect(topic, group, 8)) == list("abcdefgh")


async def test_a_message_goes_to_the_queue_that_was_named(user):
    topic, group = await user.topic(queues=4), await user.group()
    for queue in await user.queues(topic):
        (sent,) = await user.put(user.message(topic, f"for {queue.queue_id}", queue=queue))
        assert (sent.broker, sent.queue_id) == (queue.broker, queue.queue_id)
        got = await user.one(topic, group, queue=queue)
        assert got.queue_id == queue.queue_id
        assert got.body == f"for {queue.queue_id}".encode()


async def test_without_a_queue_the_broker_takes_a_writable_one(user):
    topic = await user.topic(queues=3)
    ids = {q.queue_id for q in (await user.broker.route(topic)).writable}
    for sent in await user.send(topic, *(str(n) for n in range(20))):
        assert sent.queue_id in ids


async def test_a_queue_that_does_not_exist_is_refused(user):
    topic = await user.topic(queues=2)
    queue = (await user.queues(topic))[0]
    for wrong in (max(q.queue_id for q in await user.queues(topic)) + 1, 100_000, 1 << 40):
        message = user.message(topic, queue=queue)
        message.queue_id = wrong
        with pytest.raises(GatewayError):
            await user.put(message)
    group = await user.group()
    await user.nothing(topic, group)


async def test_sending_to_a_topic_that_does_not_exist_is_refused(user):
    with pytest.raises(TopicNotFound):
        await user.put(user.message("contract-there-is-no-such-topic"))


@pytest.mark.parametrize("permission", [Permission.READ, Permission.NONE])
async def test_sending_to_a_topic_that_is_not_writable_is_forbidden(user, permission):
    topic = await user.topic(permission=permission)
    with pytest.raises(Forbidden):
        await user.put(user.message(topic))


async def test_a_topic_may_lose_and_regain_the_right_to_be_written(user):
    topic = await user.topic(queues=1)
    await user.send(topic, "before")
    config = TopicConfig(topic, read_queues=1, write_queues=1, permission=Permission.READ)
    await user.broker.update_topic(config)
    with pytest.raises(Forbidden):
        await user.send(topic, "during")
    group = await user.group()
    assert (await user.one(topic, group)).body == b"before"
    await user.broker.update_topic(TopicConfig(topic, read_queues=1, write_queues=1))
    await user.send(topic, "after")
    assert (await user.one(topic, group)).body == b"after"


@pytest.mark.parametrize("body", [b"", b"x", bytes(range(256)), b"\x00" * 4096, b"z" * (4 * 1024 * 1024)])
async def test_bodies_of_every_size_and_byte_come_back(user, body):
    topic, group = await user.topic(queues=1), await user.group()
    await user.put(user.message(topic, body))
    assert (await user.one(topic, group)).body == body


async def test_long_names_and_many_properties_come_back(user, properties_of):
    name = "t" * 127
    with contextlib.suppress(AlreadyExists):  # the name leaves no room for one's own
        await user.broker.create_topic(TopicConfig(name, read_queues=1, write_queues=1))
    group = await user.group()
    many = {f"property-{n}": "v" * 100 for n in range(128)}
    await user.put(user.message(name, "long", properties=many))
    got = await user.one(name, group)
    assert many.items() <= properties_of(got).items()


async def test_a_message_that_is_wrong_does_not_spoil_the_others(user, texts, traits):
    topic, group = await user.topic(), await user.group()
    wrong = user.message(topic, "too late", delay_ms=traits.max_delay_ms + 60_000)
    results = await user.broker.send(
        user.context, [user.message(topic, "first"), wrong, user.message(topic, "last")]
    )
    assert isinstance(results[0], Sent)
    assert isinstance(results[1], DelayTooLong)
    assert isinstance(results[2], Sent)
    assert sorted(texts(await user.collect(topic, group, 2))) == ["first", "last"]


async def test_every_type_goes_into_a_topic_that_accepts_several(user, texts, traits):
    types = MessageType if traits.keeps_all_settings else ()  # that a topic takes all is not told then
    topic, group = await user.topic(*types, queues=2), await user.group()
    await user.put(user.message(topic, "normal"))
    await user.put(user.message(topic, "ordered", message_group="a"))
    await user.put(user.message(topic, "delayed", delay_ms=1_000))
    (half,) = await user.put(user.message(topic, "half", transaction=True))
    await user.commit(topic, half)
    await user.precision(1_000)
    assert sorted(texts(await user.collect(topic, group, 4))) == ["delayed", "half", "normal", "ordered"]


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancelled_send_is_done_or_not_done(user, turns):
    topic, group = await user.topic(), await user.group()
    sending = asyncio.ensure_future(user.send(topic, "one", "two"))
    for _ in range(turns):
        await asyncio.sleep(0)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    await user.settle()
    await user.send(topic, "three")
    bodies: list[bytes] = []

    async def all_or_nothing() -> bool:
        bodies.extend([m.body for m in await user.pop(topic, group)])
        return b"three" in bodies and len(bodies) != 2  # they may become visible one after the other

    await user.eventually(all_or_nothing)
    assert len(bodies) == len(set(bodies))
    assert len(bodies) in (1, 3)


async def test_many_senders_at_once_lose_nothing(user, texts):
    topic, group = await user.topic(), await user.group()
    await asyncio.gather(*(user.send(topic, f"{n}-a", f"{n}-b") for n in range(50)))
    got = await user.collect(topic, group, 100)
    assert sorted(texts(got)) == sorted(f"{n}-{x}" for n in range(50) for x in "ab")


async def test_an_empty_send_stores_nothing(user):
    topic, group = await user.topic(), await user.group()
    with contextlib.suppress(GatewayError):  # told that there was nothing in it: as good
        assert await user.broker.send(user.context, []) == []
    await user.nothing(topic, group)


async def test_messages_sent_together_to_one_queue_lie_side_by_side_and_tell_their_places(user, texts):
    topic = await user.topic(queues=3)
    queue = (await user.queues(topic))[1]
    names = [f"m{n}" for n in range(12)]
    sent = await user.put(*(user.message(topic, name, queue=queue) for name in names))
    first = sent[0].offset
    assert [one.offset for one in sent] == list(range(first, first + 12))
    assert {(one.broker, one.queue_id) for one in sent} == {(queue.broker, queue.queue_id)}
    places = [one.commit_offset for one in sent]
    assert places[0] >= 0
    assert places == sorted(set(places))
    pulled = await user.broker.pull(
        user.context,
        topic,
        queue.broker,
        queue.queue_id,
        first,
        max_messages=32,
        max_bytes=1 << 24,
        passing=compile_filter(FilterKind.TAG, "*"),
        wait_until=None,
    )
    assert texts(pulled.messages) == names
    assert [message.commit_offset for message in pulled.messages] == places
