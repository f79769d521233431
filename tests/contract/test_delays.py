"""Delayed messages: not early, as late as the broker says, and taken back in time (scenario 28)."""

from __future__ import annotations

import asyncio
import base64
import contextlib

import pytest

from popgate.errors import BadRequest, DelayTooLong, GatewayError, NotFound, TopicNotFound


@pytest.mark.every_durability
async def test_a_delayed_message_comes_at_its_time_and_not_before(user, texts, traits, properties_of):
    delay, early = user.either((10_000, 0), (20_000, traits.timer_precision_ms))
    topic, group = await user.topic(), await user.group()
    before = user.now_ms() + user.slow(delay)
    (sent,) = await user.send(topic, "a", delay_ms=delay, properties={"color": "red"}, tag="t", keys=["k"])
    due = user.now_ms() + user.slow(delay)
    assert sent.recall_handle
    message = await user.when_due(topic, group, before - early, late_ms=traits.timer_precision_ms)
    assert (message.body, message.attempt) == (b"a", 1)
    properties = properties_of(message)
    assert {
        "color": "red",
        "TAGS": "t",
        "KEYS": "k",
        "UNIQ_KEY": sent.message_id,
    }.items() <= properties.items()
    assert before - 1_000 <= int(properties["TIMER_DELIVER_MS"]) <= due + 1_000
    await user.ack(topic, group, message)
    await user.precision(user.either(100_000, 3_000))
    await user.nothing(topic, group)


@pytest.mark.also_in_real_time
async def test_a_delayed_message_comes_in_real_time(user, texts, traits):
    topic, group = await user.topic(), await user.group()
    delay = max(200, 3 * traits.timer_precision_ms)
    due = user.now_ms() + delay
    await user.send(topic, "a", delay_ms=delay)
    got = await user.pop(topic, group)
    assert got == [] or user.now_ms() >= due - traits.timer_precision_ms  # we stood still
    await user.precision(delay)
    assert texts(got or await user.collect(topic, group, 1)) == ["a"]


async def test_a_message_that_is_not_delayed_has_no_recall_handle(user):
    topic = await user.topic()
    (sent,) = await user.send(topic, "a")
    assert sent.recall_handle == ""


async def test_a_delivery_time_that_is_over_means_at_once(user, texts):
    topic, group = await user.topic(), await user.group()
    for delay in (-1, -1_000, -86_400_000 * 400):
        await user.send(topic, str(delay), delay_ms=delay)
    assert len(await user.collect(topic, group, 3)) == 3


async def test_delayed_messages_come_in_the_order_of_their_times(user, texts):
    unit = user.either(10_000, 7_000)
    topic, group = await user.topic(queues=1), await user.group()
    # Made at one time: who stands still between two of them changes their order.
    await user.put(*(user.message(topic, str(units), delay_ms=units * unit) for units in (3, 1, 2)))
    await user.precision(4 * unit)
    assert texts(await user.collect(topic, group, 3)) == ["1", "2", "3"]


async def test_times_close_together_are_told_apart_where_the_broker_is_that_exact(user, texts, traits):
    if traits.timer_precision_ms >= 1_000:
        user.differs("timers are coarse", "test_a_coarse_broker_says_when_a_message_is_due_and_keeps_to_it")
    user.moved_by_hand("test_a_delayed_message_comes_in_real_time")
    topic, group = await user.topic(), await user.group()
    apart = traits.timer_precision_ms + 10
    await user.send(topic, "a", delay_ms=5_000)
    await user.send(topic, "b", delay_ms=5_000 + apart)
    await user.precision(5_000)
    assert texts(await user.collect(topic, group, 1)) == ["a"]
    await user.nothing(topic, group)
    await user.pass_ms(apart)
    assert texts(await user.collect(topic, group, 1)) == ["b"]


async def test_a_coarse_broker_says_when_a_message_is_due_and_keeps_to_it(user, traits, properties_of):
    if traits.timer_precision_ms < 1_000:
        user.differs(
            "timers are exact",
            "test_times_close_together_are_told_apart_where_the_broker_is_that_exact",
        )
    topic, group = await user.topic(), await user.group()
    (sent,) = await user.send(topic, "a", delay_ms=15_000)
    # The broker's own words: when it comes to us says as much of the machine as of the broker.
    _, _, _, told, _ = base64.urlsafe_b64decode(sent.recall_handle).decode().split(" ")
    properties = properties_of(await user.one(topic, group))
    asked, due = int(properties["TIMER_DELIVER_MS"]), int(properties["TIMER_OUT_MS"])
    assert asked - traits.timer_precision_ms <= due <= asked
    assert int(told) == due + 1
    assert due <= int(properties["TIMER_DEQUEUE_MS"])
    await user.nothing(topic, group)


async def test_scenario_28_the_longest_delay_is_taken_and_a_longer_one_told(user, traits):
    topic = await user.topic()
    await user.send(topic, "longest", delay_ms=traits.max_delay_ms - 1_000)
    with pytest.raises(DelayTooLong) as refused:
        await user.send(topic, "too long", delay_ms=traits.max_delay_ms + user.either(10_000, 60_000))
    assert refused.value.limit_ms == traits.max_delay_ms
    for absurd in (1 << 40, 1 << 62, 1 << 70):
        with pytest.raises(DelayTooLong):
            await user.send(topic, "absurd", delay_ms=absurd)


async def test_the_longest_delay_is_kept(user, texts, traits):
    user.moved_by_hand(
        "test_scenario_28_the_longest_delay_is_taken_and_a_longer_one_told",
        "test_a_delayed_message_comes_at_its_time_and_not_before",
    )
    topic, group = await user.topic(retention_ms=400 * 86_400_000), await user.group()
    await user.send(topic, "longest", delay_ms=traits.max_delay_ms - 1_000)
    await user.pass_ms(traits.max_delay_ms - 2_000)
    await user.nothing(topic, group)
    await user.precision(1_000)
    assert texts(await user.collect(topic, group, 1)) == ["longest"]


async def test_many_messages_due_at_once_all_come(user, texts):
    topic, group = await user.topic(), await user.group()
    for part in range(10):
        await user.put(*(user.message(topic, str(part * 100 + n), delay_ms=5_000) for n in range(100)))
    await user.precision(5_000)
    got = await user.collect(topic, group, 1_000, invisible_ms=600_000)
    assert sorted(map(int, texts(got))) == list(range(1_000))


async def test_a_delayed_message_is_seen_in_no_way_before(user, traits):
    delay = user.either(10_000, 25_000)
    topic, group = await user.topic(queues=1), await user.group()
    (queue,) = await user.queues(topic)
    broker, where = user.broker, (queue.broker, queue.queue_id)
    by_key = {"begin_ms": 0, "end_ms": user.now_ms() + 3_600_000, "limit": 10}
    with user.in_time(user.now_ms() + user.slow(delay) - traits.timer_precision_ms):
        (sent,) = await user.send(topic, "a", delay_ms=delay, keys=["key-of-a"])
        bounds = await broker.bounds(user.context, topic, *where)
        assert bounds.minimum == bounds.maximum
        assert await broker.find_by_id(user.context, topic, sent.message_id) == []
        assert await broker.find_by_key(user.context, topic, "key-of-a", **by_key) == []
        assert sum(p.lag for p in await broker.progress(group, topic)) == 0
    await user.precision(delay)
    assert (await user.one(topic, group)).body == b"a"
    by_id = await user.looked_up(lambda: broker.find_by_id(user.context, topic, sent.message_id))
    found = await user.looked_up(lambda: broker.find_by_key(user.context, topic, "key-of-a", **by_key))
    assert len(by_id) == len(found) == 1


async def test_a_recalled_message_never_comes(user, traits):
    topic, group = await user.topic(), await user.group()
    with user.in_time(user.now_ms() + user.slow(15_000) - traits.timer_precision_ms):
        (sent,) = await user.send(topic, "a", delay_ms=15_000)
        assert await user.broker.recall(user.context, topic, sent.recall_handle) == sent.message_id
    await user.precision(user.either(60_000, 20_000))
    await user.nothing(topic, group)


async def test_one_of_several_at_the_same_time_is_recalled(user, texts, traits):
    topic, group = await user.topic(), await user.group()
    delay = user.either(5_000, 15_000)
    with user.in_time(user.now_ms() + user.slow(delay) - traits.timer_precision_ms):
        messages = [user.message(topic, str(n), delay_ms=delay) for n in range(5)]
        sent = await user.put(*messages)
        await user.broker.recall(user.context, topic, sent[2].recall_handle)
    await user.precision(delay)
    assert sorted(texts(await user.collect(topic, group, 4))) == ["0", "1", "3", "4"]
    await user.nothing(topic, group)


async def test_a_message_is_recalled_once(user):
    topic = await user.topic()
    (sent,) = await user.send(topic, "a", delay_ms=60_000)
    await user.broker.recall(user.context, topic, sent.recall_handle)
    with pytest.raises(NotFound):
        await user.broker.recall(user.context, topic, sent.recall_handle)


async def test_a_delivered_message_cannot_be_recalled(user):
    topic, group = await user.topic(), await user.group()
    (sent,) = await user.send(topic, "a", delay_ms=1_000)
    await user.precision(1_000)
    message = await user.one(topic, group)
    with pytest.raises(NotFound):
        await user.broker.recall(user.context, topic, sent.recall_handle)
    await user.ack(topic, group, message)


async def test_a_recall_of_another_topic_reaches_nothing(user, texts):
    topic, other, group = await user.topic(), await user.topic(), await user.group()
    (sent,) = await user.send(topic, "a", delay_ms=5_000)
    with pytest.raises((BadRequest, NotFound)):
        await user.broker.recall(user.context, other, sent.recall_handle)
    with pytest.raises((TopicNotFound, BadRequest)):
        await user.broker.recall(user.context, "no-such-topic", sent.recall_handle)
    await user.precision(5_000)
    assert texts(await user.collect(topic, group, 1)) == ["a"]


def handle(*words: object) -> str:
    return base64.urlsafe_b64encode(" ".join(map(str, words)).encode("utf-8", "surrogatepass")).decode()


@pytest.mark.parametrize(
    "make",
    [
        lambda topic, broker: "",
        lambda topic, broker: "no base64 at all!",
        lambda topic, broker: "\udcff\x00",
        lambda topic, broker: "A" * 100_000,
        lambda topic, broker: "====",
        lambda topic, broker: handle("v1"),
        lambda topic, broker: handle("v2", topic, broker, 1, "id"),
        lambda topic, broker: handle("v1", topic, broker, "soon", "id"),
        lambda topic, broker: handle("v1", topic, broker, -5, "id"),
        lambda topic, broker: handle("v1", topic, broker, "9" * 40, "id"),
        lambda topic, broker: base64.urlsafe_b64encode(b"v1 \xff\xfe \xfd 1 id").decode(),
    ],
)
async def test_a_malformed_recall_handle_is_told_so(user, make):
    topic = await user.topic()
    with pytest.raises(BadRequest):
        await user.broker.recall(user.context, topic, make(topic, user.broker.name))


async def test_a_well_formed_recall_of_nothing_is_not_found(user):
    topic = await user.topic()
    invented = handle("v1", topic, user.broker.name, user.now_ms() + 5_000, "F" * 32)
    with pytest.raises(NotFound):
        await user.broker.recall(user.context, topic, invented)


@pytest.mark.parametrize("turns", range(5))
async def test_a_cancelled_recall_is_done_or_not_done(user, traits, turns):
    topic, group = await user.topic(), await user.group()
    with user.in_time(user.now_ms() + user.slow(15_000) - traits.timer_precision_ms):
        (sent,) = await user.send(topic, "a", delay_ms=15_000)
        recalling = asyncio.ensure_future(user.broker.recall(user.context, topic, sent.recall_handle))
        for _ in range(turns):
            await asyncio.sleep(0)
        recalling.cancel()
        await asyncio.gather(recalling, return_exceptions=True)
        await user.settle()
        with contextlib.suppress(NotFound):  # the cancelled one did it
            await user.broker.recall(user.context, topic, sent.recall_handle)
    await user.precision(user.either(60_000, 20_000))
    await user.nothing(topic, group)


async def test_a_recall_at_the_moment_of_delivery_ends_in_one_of_both(user, texts):
    topic, group = await user.topic(), await user.group()
    delay = user.either(5_000, 15_000)
    sent = await user.put(*(user.message(topic, str(n), delay_ms=delay) for n in range(20)))
    recalls = [user.task(user.broker.recall(user.context, topic, s.recall_handle)) for s in sent[:10]]
    await user.precision(delay)
    recalls += [user.task(user.broker.recall(user.context, topic, s.recall_handle)) for s in sent[10:]]
    outcomes = await asyncio.gather(*recalls, return_exceptions=True)
    recalled = sum(1 for o in outcomes if isinstance(o, str))
    assert all(isinstance(o, (str, GatewayError)) for o in outcomes)
    got = await user.collect(topic, group, 20 - recalled)
    assert len(set(texts(got))) == 20 - recalled
    await user.nothing(topic, group)


async def test_a_delayed_message_with_a_message_group_keeps_it(user, texts):
    topic, group = await user.topic(queues=1), await user.group(ordered=True)
    message = user.message(topic, "A1", message_group="A", delay_ms=1_000)
    await user.put(message)
    await user.precision(1_000)

    async def is_there() -> bool:
        return await user.readable(topic) > 0

    await user.eventually(is_there)
    await user.send_in_order(topic, "A2")
    held = await user.one(topic, group)
    assert held.body == b"A1"
    await user.nothing(topic, group)
    await user.ack(topic, group, held)
    assert texts(await user.collect(topic, group, 1)) == ["A2"]


async def test_delayed_messages_of_a_deleted_topic_are_gone(user, traits):
    if not traits.deletes_everything:
        user.differs(
            "delayed messages of a deleted topic come in the one made again",
            "test_a_topic_made_again_is_empty_where_old_handles_may_reach_into_it",
        )
    topic, group = await user.topic(), await user.group()
    (sent,) = await user.send(topic, "a", delay_ms=5_000)
    config = await user.broker.topic(topic)
    await user.broker.delete_topic(topic)
    await user.broker.create_topic(config)
    await user.precision(user.either(60_000, 20_000))
    await user.nothing(topic, group)
    with pytest.raises((NotFound, BadRequest)):
        await user.broker.recall(user.context, topic, sent.recall_handle)
