"""Topics and groups: made, changed, shown, deleted, made again."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace

import pytest

from brokers.traits import OrderScope
from popgate.errors import (
    AlreadyExists,
    BadRequest,
    GatewayError,
    GroupNotFound,
    IllegalReceipt,
    TopicNotFound,
    Unsupported,
)
from popgate.model import (
    CustomizedRetry,
    ExponentialRetry,
    GroupConfig,
    MessageType,
    Permission,
    StartFrom,
    TopicConfig,
)


def fresh(prefix):
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


TOPICS = [
    TopicConfig("x"),
    TopicConfig("x", (MessageType.FIFO,), 1, 1),
    TopicConfig("x", tuple(MessageType), 16, 16, Permission.READ),
    TopicConfig(
        "x", (MessageType.DELAY, MessageType.TRANSACTION), 3, 3, retention_ms=1_000, retention_bytes=1 << 40
    ),
    TopicConfig("x", attributes={"message.type": "NORMAL", "owner": "gr\u00fc\u00dfe"}),
]
GROUPS = [
    GroupConfig("x"),
    GroupConfig("x", ordered=True, max_attempts=1, start_from=StartFrom.LAST),
    GroupConfig("x", retry=CustomizedRetry((1, 20, 300), 0), consume_timeout_ms=1_000),
    GroupConfig("x", retry=ExponentialRetry(100, 5_000, 1.5), consume_enabled=False),
    GroupConfig("x", attributes={"owner": "gr\u00fc\u00dfe"}),
]


def named(config, name):
    return replace(config, name=name)


async def kept(user, change, config):
    """Make it so; False where the broker refuses what it cannot keep, and may."""
    try:
        await change(config)
    except Unsupported:
        assert not user.broker.traits.keeps_all_settings
        return False
    return True


def as_kept(user, shown, config):
    """What must be shown of a group: with the same rests after every attempt, and no shorter timeout."""
    if user.broker.traits.keeps_all_settings:
        return config
    attempts = range(1, 40)
    assert [shown.retry.delay_ms(n) for n in attempts] == [config.retry.delay_ms(n) for n in attempts]
    assert config.consume_timeout_ms <= shown.consume_timeout_ms < config.consume_timeout_ms + 60_000
    return replace(config, retry=shown.retry, consume_timeout_ms=shown.consume_timeout_ms)


async def test_plain_settings_are_kept_by_every_broker(user):
    topic, group = fresh("topic"), fresh("group")
    for count, kind in ((1, MessageType.NORMAL), (3, MessageType.FIFO)):
        config = TopicConfig(topic, (kind,), count, count, Permission.READ_WRITE)
        await (user.broker.create_topic if count == 1 else user.broker.update_topic)(config)
        assert await user.broker.topic(topic) == config
    for ordered, attempts in ((True, 1), (False, 17)):
        config = GroupConfig(
            group, ordered, attempts, CustomizedRetry((1_000, 2_000, 3_000)), 120_000, StartFrom.LAST
        )
        await (user.broker.create_group if ordered else user.broker.update_group)(config)
        assert await user.broker.group(group) == config


async def test_a_group_without_a_policy_of_its_own_rests_as_long_before_every_broker(user):
    """RocketMQ's ladder for retries of consumers: `messageDelayLevel` from its third level on."""
    config = await user.broker.group(await user.group())
    minutes = [*range(1, 11), 20, 30, 60, 120]
    assert config.retry.steps_ms() == (10_000, 30_000, *(one * 60_000 for one in minutes))
    assert [config.retry.delay_ms(attempt) for attempt in (1, 2, 16, 40)] == [
        10_000,
        30_000,
        *[7_200_000] * 2,
    ]


@pytest.mark.parametrize("config", TOPICS)
async def test_a_topic_is_shown_as_it_was_made_also_after_a_restart(user, config):
    config = named(config, fresh("topic"))
    if not await kept(user, user.broker.create_topic, config):
        return
    assert await user.broker.topic(config.name) == config
    assert config in await user.broker.topics()
    await user.restart()
    assert await user.broker.topic(config.name) == config


@pytest.mark.parametrize("config", GROUPS)
async def test_a_group_is_shown_as_it_was_made_also_after_a_restart(user, config):
    config = named(config, fresh("group"))
    if not await kept(user, user.broker.create_group, config):
        return
    config = as_kept(user, await user.broker.group(config.name), config)
    assert await user.broker.group(config.name) == config
    assert config in await user.broker.groups()
    await user.restart()
    assert await user.broker.group(config.name) == config


@pytest.mark.parametrize("config", TOPICS)
async def test_a_topic_is_shown_as_it_was_changed(user, config):
    name = fresh("topic")
    await user.broker.create_topic(TopicConfig(name, read_queues=1, write_queues=1))
    if not await kept(user, user.broker.update_topic, named(config, name)):
        return
    assert await user.broker.topic(name) == named(config, name)
    await user.restart()
    assert await user.broker.topic(name) == named(config, name)


@pytest.mark.parametrize("config", GROUPS)
async def test_a_group_is_shown_as_it_was_changed(user, config):
    name = fresh("group")
    await user.broker.create_group(GroupConfig(name))
    if not await kept(user, user.broker.update_group, named(config, name)):
        return
    config = as_kept(user, await user.broker.group(name), named(config, name))
    assert await user.broker.group(name) == config
    await user.restart()
    assert await user.broker.group(name) == config


async def test_names_are_given_once(user):
    topic, group = await user.topic(), await user.group()
    with pytest.raises(AlreadyExists):
        await user.broker.create_topic(TopicConfig(topic))
    with pytest.raises(AlreadyExists):
        await user.broker.create_group(GroupConfig(group))


async def test_two_who_make_the_same_at_once_make_it_once(user):
    name = fresh("both")
    for make in (
        lambda: user.broker.create_topic(TopicConfig(name)),
        lambda: user.broker.create_group(GroupConfig(name)),
    ):
        outcomes = await asyncio.gather(*(make() for _ in range(4)), return_exceptions=True)
        assert outcomes.count(None) == 1
        assert sum(isinstance(o, AlreadyExists) for o in outcomes) == 3


async def test_unknown_names_are_told(user):
    for call in (
        user.broker.route,
        user.broker.topic,
        user.broker.delete_topic,
        lambda name: user.broker.update_topic(TopicConfig(name)),
    ):
        for name in ("no-such-thing", "", "\x00", "\udcff", "x" * 100_000):
            with pytest.raises(TopicNotFound):
                await call(name)
    for call in (
        user.broker.group,
        user.broker.delete_group,
        lambda name: user.broker.update_group(GroupConfig(name)),
        user.broker.topics_of,
    ):
        for name in ("no-such-thing", "", "\x00", "\udcff", "x" * 100_000):
            with pytest.raises(GroupNotFound):
                await call(name)


async def test_a_route_names_queues_permissions_and_types(user):
    topic = await user.topic(MessageType.FIFO, queues=5)
    route = await user.broker.route(topic)
    assert route.topic == topic
    assert route.message_types == (MessageType.FIFO,)
    assert len(route.writable) == len(route.readable) == len(set(route.queues)) == 5
    assert all(q.broker for q in route.queues)


async def test_a_route_follows_the_permission(user):
    topic = await user.topic(permission=Permission.READ)
    route = await user.broker.route(topic)
    assert len(route.readable) == 4
    assert route.writable == ()


async def test_a_topic_cannot_lose_queues(user, texts):
    topic, group = await user.topic(queues=4), await user.group()
    await user.put(*(user.message(topic, "a", queue=q) for q in await user.queues(topic)))
    with pytest.raises(BadRequest):
        await user.broker.update_topic(TopicConfig(topic, read_queues=2, write_queues=2))
    assert (await user.broker.topic(topic)).queues == 4
    assert len(await user.collect(topic, group, 4)) == 4


async def test_a_topic_of_no_queue_or_too_many_is_refused(user):
    for count in (0, -1, 1 << 20, 1 << 70):
        with pytest.raises(GatewayError):
            await user.broker.create_topic(TopicConfig(fresh("topic"), read_queues=count, write_queues=count))


@pytest.mark.every_durability
async def test_a_deleted_topic_is_gone_with_all_it_had(user):
    topic, group = await user.topic(), await user.group()
    await user.send(topic, "a", "b", keys=["k"])
    held = await user.one(topic, group)
    await user.broker.delete_topic(topic)
    for call in (
        user.broker.topic(topic),
        user.broker.route(topic),
        user.pop(topic, group),
        user.send(topic, "c"),
        user.ack_handles(topic, group, held.receipt),
        user.hide(topic, group, held.receipt, 0),
        user.broker.progress(group, topic),
        user.broker.delete_topic(topic),
    ):
        with pytest.raises(TopicNotFound):
            await call
    assert topic not in {t.name for t in await user.broker.topics()}
    await user.lag(user.either(60_000, 31_000))
    await user.restart()
    with pytest.raises(TopicNotFound):
        await user.broker.topic(topic)


@pytest.mark.parametrize("restarted", [False, True])
async def test_scenario_08_a_topic_made_again_has_nothing_of_the_old_one(user, texts, restarted):
    if not user.broker.traits.deletes_everything:
        user.differs(
            "old handles and delayed messages reach into a topic made again",
            "test_a_topic_made_again_is_empty_where_old_handles_may_reach_into_it",
        )
    topic, group = await user.topic(queues=2), await user.group(max_attempts=1)
    config = await user.broker.topic(topic)
    old = await user.send(topic, *"abcd", keys=["k"])
    held = await user.collect(topic, group, 3, invisible_ms=5_000)
    (half,) = await user.send(topic, "half", transaction=True)
    (late,) = await user.send(topic, "late", delay_ms=5_000)
    await user.broker.delete_topic(topic)
    await user.broker.create_topic(config)
    if restarted:
        await user.restart()

    await user.nothing(topic, group)
    assert await user.broker.find_by_id(user.context, topic, old[0].message_id) == []
    by_key = await user.broker.find_by_key(
        user.context, topic, "k", begin_ms=0, end_ms=user.now_ms() + 1, limit=5
    )
    assert by_key == []

    queues = await user.queues(topic)
    await user.put(*(user.message(topic, f"new {n}", queue=queues[n % 2]) for n in range(8)))
    for message in held:  # with the same queues and offsets as new messages
        (answer,) = await user.ack_handles(topic, group, message.receipt)
        assert isinstance(answer, IllegalReceipt)
        with pytest.raises(IllegalReceipt):
            await user.hide(topic, group, message.receipt, 60_000)
        with pytest.raises(IllegalReceipt):
            await user.dead_letter(topic, group, message.receipt)
        assert await user.give_back(topic, group, message) == 0
    with pytest.raises(GatewayError):
        await user.commit(topic, half)
    with pytest.raises(GatewayError):
        await user.broker.recall(user.context, topic, late.recall_handle)
    got = await user.collect(topic, group, 8, invisible_ms=60_000)
    assert sorted(texts(got)) == [f"new {n}" for n in range(8)]
    for message in held:
        (answer,) = await user.ack_handles(topic, group, message.receipt)
        assert isinstance(answer, IllegalReceipt)
    await user.lag(30_000)
    await user.nothing(topic, group)
    await user.ack(topic, group, *got)
    await user.dead_letters(group, 0)


async def test_a_topic_made_again_is_empty_where_old_handles_may_reach_into_it(user, texts):
    if user.broker.traits.deletes_everything:
        user.differs(
            "nothing is left of a deleted topic",
            "test_scenario_08_a_topic_made_again_has_nothing_of_the_old_one",
        )
    topic, group = await user.topic(queues=1), await user.group()
    config = await user.broker.topic(topic)
    await user.send(topic, *"abcd")
    await user.ack(topic, group, *await user.collect(topic, group, 4))
    await user.is_written_down(topic, group, 4)
    await user.broker.delete_topic(topic)
    await user.broker.create_topic(config)
    (queue,) = await user.queues(topic)
    where = (topic, queue.broker, queue.queue_id)
    bounds = await user.broker.bounds(user.context, *where)
    assert bounds.minimum == bounds.maximum
    assert await user.broker.committed(user.context, group, *where) is None
    await user.nothing(topic, group)
    await user.send(topic, "new")
    assert texts(await user.collect(topic, group, 1)) == ["new"]
    await user.nothing(topic, group)


async def test_a_topic_deleted_while_it_is_used_harms_nobody(user):
    other, group = await user.topic(), await user.group()
    topic = await user.topic()
    await user.send(topic, *(str(n) for n in range(50)))
    held = await user.collect(topic, group, 20)
    work = [user.task(user.send(topic, "x")) for _ in range(5)]
    work += [user.task(user.pop(topic, group)) for _ in range(5)]
    work += [user.task(user.ack_handles(topic, group, *(m.receipt for m in held)))]
    work += [user.task(user.broker.delete_topic(topic))]
    work += [user.task(user.send(topic, "x")) for _ in range(5)]
    work += [user.task(user.pop(topic, group)) for _ in range(5)]
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        assert outcome is None or isinstance(outcome, (list, GatewayError)), outcome
    await user.send(other, "a")
    await user.ack(other, group, await user.one(other, group))
    await user.lag(user.either(60_000, 31_000))
    await user.restart()
    await user.nothing(other, group)


async def test_a_deleted_group_is_gone_and_begins_anew(user, texts):
    topic = await user.topic()
    group = await user.group(max_attempts=1)
    config = await user.broker.group(group)
    await user.send(topic, *"abc")
    a, b, c = await user.collect(topic, group, 3, invisible_ms=5_000)
    await user.ack(topic, group, a)
    await user.broker.delete_group(group)
    for call in (
        user.broker.group(group),
        user.pop(topic, group),
        user.ack_handles(topic, group, b.receipt),
        user.broker.progress(group, topic),
        user.broker.delete_group(group),
    ):
        with pytest.raises(GroupNotFound):
            await call
    assert group not in {g.name for g in await user.broker.groups()}
    await user.lag(user.either(60_000, 31_000))
    await user.broker.create_group(config)
    (answer,) = await user.ack_handles(topic, group, c.receipt)
    assert isinstance(answer, IllegalReceipt)
    again = await user.collect(topic, group, 3)
    assert sorted(texts(again)) == list("abc")
    assert {m.attempt for m in again} == {1}


async def test_a_group_made_again_begins_anew_with_the_last_message(user, texts):
    if not user.broker.traits.begins_at_the_end:
        user.differs(
            "its brokers decide where a group from the last message begins",
            "test_a_group_from_the_last_message_made_again_begins_where_a_new_one_does",
        )
    topic = await user.topic()
    group = await user.group(start_from=StartFrom.LAST)
    config = await user.broker.group(group)
    await user.send(topic, "before")
    await user.nothing(topic, group)
    await user.send(topic, "a")
    await user.ack(topic, group, await user.one(topic, group))
    await user.broker.delete_group(group)
    await user.broker.create_group(config)
    await user.nothing(topic, group)
    await user.send(topic, "b")
    assert texts(await user.collect(topic, group, 1)) == ["b"]
    await user.nothing(topic, group)


async def test_a_group_from_the_last_message_made_again_begins_where_a_new_one_does(user, texts):
    if user.broker.traits.begins_at_the_end:
        user.differs(
            "a start from the last message is exact",
            "test_a_group_made_again_begins_anew_with_the_last_message",
        )
    topic = await user.topic()
    group = await user.group(start_from=StartFrom.LAST)
    config = await user.broker.group(group)
    await user.send(topic, *"abc")
    # The topic is young: RocketMQ begins with its first message.
    await user.ack(topic, group, *await user.collect(topic, group, 3))
    await user.broker.delete_group(group)
    await user.broker.create_group(config)
    await user.send(topic, "d")
    assert sorted(texts(await user.collect(topic, group, 4))) == list("abcd")
    await user.nothing(topic, group)


async def test_old_handles_reach_nothing_in_a_group_made_again(user, texts):
    if not user.broker.traits.deletes_everything:
        user.differs(
            "old handles reach into a group made again", "test_a_deleted_group_is_gone_and_begins_anew"
        )
    topic, group = await user.topic(queues=1), await user.group()
    config = await user.broker.group(group)
    await user.send(topic, *"ab")
    old = await user.collect(topic, group, 2)
    await user.broker.delete_group(group)
    await user.broker.create_group(config)
    await user.pass_ms(2)
    new = await user.collect(topic, group, 2, invisible_ms=5_000)
    for message in old:
        (answer,) = await user.ack_handles(topic, group, message.receipt)
        assert isinstance(answer, IllegalReceipt)
        assert await user.give_back(topic, group, message) == 0
    await user.nothing(topic, group)
    await user.lag(5_000)
    assert sorted(texts(await user.collect(topic, group, 2))) == sorted(texts(new))


async def test_a_group_that_changes_its_order_loses_nothing(user, texts):
    topic, group = await user.topic(queues=1), await user.group(ordered=True)
    await user.send_in_order(topic, "A1", "A2", "B1", "A3", "B2")
    await user.one(topic, group, invisible_ms=5_000)
    if user.broker.traits.order_scope is OrderScope.MESSAGE_GROUP:
        await user.one(topic, group, invisible_ms=5_000)  # of the other one
    await user.broker.update_group(GroupConfig(group, ordered=False))
    user.is_ordered(group, False)
    await user.lag(5_000)
    got = await user.collect(topic, group, 5)
    assert sorted(texts(got)) == ["A1", "A2", "A3", "B1", "B2"]


async def test_a_group_that_is_made_ordered_gets_what_waits_for_another_attempt(user, texts):
    if not user.broker.traits.ordered_groups_get_retries:
        user.differs(
            "what was popped before waits until the group is unordered again",
            "test_what_waits_for_another_attempt_is_there_when_a_group_is_unordered_again",
        )
    topic, group = await user.topic(queues=1), await user.group()
    await user.send_in_order(topic, "A1", "A2", "B1", "A3", "B2")
    got = await user.collect(topic, group, 5, invisible_ms=5_000)
    await user.broker.update_group(GroupConfig(group, ordered=True))
    user.is_ordered(group, True)
    await user.ack(topic, group, got[0])
    await user.lag(5_000)
    again = await user.collect(topic, group, 4)
    assert sorted(texts([got[0], *again])) == ["A1", "A2", "A3", "B1", "B2"]
    for letter in "AB":
        mine = [t for t in texts(again) if t[0] == letter]
        assert mine == sorted(mine)


async def test_what_waits_for_another_attempt_is_there_when_a_group_is_unordered_again(user, texts):
    topic, group = await user.topic(queues=1), await user.group()
    await user.send(topic, "a", "b")
    await user.collect(topic, group, 2, invisible_ms=1_000)
    await user.broker.update_group(GroupConfig(group, ordered=True))
    await user.lag(1_000)
    await user.broker.update_group(GroupConfig(group, ordered=False))
    assert sorted(texts(await user.collect(topic, group, 2))) == ["a", "b"]


async def test_attributes_and_limits_take_effect_at_once(user):
    topic, group = await user.topic(), await user.group(max_attempts=1)
    await user.broker.update_group(GroupConfig(group, max_attempts=3))
    await user.send(topic, "a")
    for attempt in (1, 2, 3):
        assert (await user.one(topic, group, invisible_ms=1_000)).attempt == attempt
        await user.lag(1_000)
    await user.nothing(topic, group)
    await user.dead_letters(group, 1)


async def test_figures_are_numbers_under_plain_names(user):
    topic = await user.topic()
    await user.send(topic, "a")
    figures = user.broker.figures()
    for name, value in figures.items():
        assert name.replace("_", "").isalnum()
        assert isinstance(value, (int, float))


async def test_the_broker_names_itself_and_its_traits(user, traits):
    assert user.broker.name
    assert traits.timer_precision_ms >= 0
    assert traits.redelivery_lag_ms >= 0
    assert traits.max_delay_ms > 0
