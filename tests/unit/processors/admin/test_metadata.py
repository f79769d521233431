from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from brokers.capabilities import BrokerPlace
from popgate.context import Context
from popgate.errors import (
    AlreadyExists,
    BadRequest,
    Fault,
    Forbidden,
    GroupNotFound,
    IllegalFilter,
    IllegalGroup,
    IllegalTopic,
    TooManyRequests,
    TopicNotFound,
    Unsupported,
)
from popgate.model import (
    Bounds,
    CustomizedRetry,
    ExponentialRetry,
    FilterKind,
    GroupConfig,
    Message,
    MessageType,
    StartFrom,
    TopicConfig,
)
from popgate.testing.clock import MovableClock
from processors.limits import Limits
from processors.messaging import MessagingProcessor
from processors.requests import Pull, Receive

Make = Callable[..., MessagingProcessor]


async def test_a_pull_reads_by_offset_within_the_limits(
    processor: MessagingProcessor, context: Context, broker: Any, clock: MovableClock, observer: Any
) -> None:
    await processor.send(context, [Message("orders", b"abc", message_id="m")])
    pulled = await processor.pull(
        context, Pull("orders", "fake", 0, 0, group="readers", max_messages=5000, max_bytes=1 << 40)
    )
    assert pulled.next_offset == 1
    assert broker.asked("pull") == [("orders", 0, 0, 1024, 64 * 1024 * 1024, None)]
    assert observer.of("pulled") == [("orders", "readers", 1, 3, 0.0)]


async def test_a_pull_waits_only_when_asked_to(
    processor: MessagingProcessor, context: Context, broker: Any, clock: MovableClock
) -> None:
    await processor.pull(context, Pull("orders", "fake", 0, 0, wait_s=3.0))
    assert broker.asked("pull")[0][5] == clock.monotonic() + 3.0


async def test_a_pull_that_cannot_be_is_refused(processor: MessagingProcessor, context: Context) -> None:
    with pytest.raises(BadRequest, match="queue id -1 is out of range"):
        await processor.pull(context, Pull("orders", "fake", -1, 0))
    with pytest.raises(BadRequest) as caught:
        await processor.pull(
            context, Pull("orders", "fake", 0, 0, filter_kind=FilterKind.SQL92, filter_expression="(")
        )
    assert caught.value.fault is Fault.ILLEGAL_FILTER


async def test_a_pull_makes_its_group_and_topic_on_first_use_as_a_receive_does(
    make_processor: Callable[..., MessagingProcessor], context: Context, broker: Any
) -> None:
    processor = make_processor(Limits(auto_create_topics=False, auto_create_groups=False))
    with pytest.raises(GroupNotFound):
        await processor.pull(context, Pull("bills", "fake", 0, 0, group="newcomers"))
    with pytest.raises(TopicNotFound):
        await processor.pull(context, Pull("bills", "fake", 0, 0))
    processor = make_processor(Limits())
    with pytest.raises(IllegalGroup):
        await processor.pull(context, Pull("bills", "fake", 0, 0, group=""))
    with pytest.raises(IllegalFilter):
        await processor.pull(context, Pull("bills", "fake", 0, 0, group="new", filter_expression="||"))
    assert "bills" not in broker.kept_topics
    assert "new" not in broker.kept_groups
    await processor.pull(context, Pull("bills", "fake", 0, 0, group="newcomers"))
    assert "bills" in broker.kept_topics
    assert "newcomers" in broker.kept_groups


async def test_a_group_that_is_switched_off_does_not_pull(
    processor: MessagingProcessor, context: Context, broker: Any
) -> None:
    await processor.metadata.create_group(context, GroupConfig("off", consume_enabled=False))
    with pytest.raises(Forbidden, match="consumer group off is not allowed to consume now"):
        await processor.pull(context, Pull("orders", "fake", 0, 0, group="off"))
    assert broker.asked("pull") == []


async def test_a_pull_of_a_topic_that_was_deleted_elsewhere_makes_it_anew_the_next_time(
    processor: MessagingProcessor, context: Context, broker: Any
) -> None:
    await processor.pull(context, Pull("orders", "fake", 0, 0))
    del broker.kept_topics["orders"]
    broker.failure = TopicNotFound("orders")
    with pytest.raises(TopicNotFound):
        await processor.pull(context, Pull("orders", "fake", 0, 0))
    broker.failure = None
    await processor.pull(context, Pull("orders", "fake", 0, 0))
    assert "orders" in broker.kept_topics


async def test_waiting_pulls_and_receives_are_bounded_together(
    make_processor: Callable[..., MessagingProcessor], context: Context, broker: Any, settle: Any
) -> None:
    processor = make_processor(Limits(max_waiting=1))
    broker.blocked = asyncio.Event()
    poll = asyncio.ensure_future(processor.pull(context, Pull("orders", "fake", 0, 0, wait_s=20.0)))
    await settle()
    assert processor.figures()["waiting_receives"] == 1
    with pytest.raises(TooManyRequests, match="limit of 1 waiting receives"):
        await processor.receive(context, Receive("orders", "readers"))
    with pytest.raises(TooManyRequests, match="limit of 1 waiting receives"):
        await processor.pull(context, Pull("orders", "fake", 0, 0))
    poll.cancel()
    await settle()
    assert processor.figures()["waiting_receives"] == 0


async def test_a_group_that_would_be_made_on_first_use_has_read_nothing(
    make_processor: Callable[..., MessagingProcessor], context: Context, broker: Any
) -> None:
    processor = make_processor(Limits(auto_create_groups=False))
    with pytest.raises(GroupNotFound):
        await processor.offsets.committed(context, "nobody", "orders", "fake", 1)
    assert broker.asked("bounds") == []
    processor = make_processor(Limits())
    assert await processor.offsets.committed(context, "nobody", "orders", "fake", 1) is None
    # The broker was asked for the queue too: what is wrong with that is told all the same.
    assert broker.asked("bounds") == [("orders", "fake", 1)]
    assert "nobody" not in broker.kept_groups


async def test_positions_are_asked_of_the_broker(
    processor: MessagingProcessor, context: Context, broker: Any
) -> None:
    assert await processor.offsets.bounds(context, "orders", "fake", 1) == Bounds(0, 7)
    assert await processor.offsets.offset_at(context, "orders", "fake", 1, 5) == 3
    assert await processor.offsets.committed(context, "readers", "orders", "fake", 1) == 4
    await processor.offsets.commit(context, "newcomers", "orders", "fake", 1, 6)
    assert broker.asked("commit") == [("newcomers", "orders", "fake", 1, 6)]
    assert "newcomers" in broker.kept_groups
    asked = len(broker.asked("bounds"))
    await processor.offsets.commit(context, "newcomers", "orders", "fake", 1, 7)
    assert len(broker.asked("bounds")) == asked, "asked for groups that would be made alone"
    with pytest.raises(BadRequest, match="offset -1 is out of range") as caught:
        await processor.offsets.commit(context, "readers", "orders", "fake", 1, -1)
    assert caught.value.fault is Fault.ILLEGAL_OFFSET


async def test_messages_are_found_by_id_and_by_key(
    processor: MessagingProcessor, context: Context, broker: Any
) -> None:
    await processor.send(context, [Message("orders", b"abc", message_id="m")])
    assert len(await processor.lookup.find_by_id(context, "orders", "m")) == 1
    await processor.lookup.find_by_key(context, "orders", "k", begin_ms=-5, end_ms=10, limit=1 << 30)
    assert broker.asked("find_by_key") == [("orders", "k", 0, 10, 1024)]
    with pytest.raises(BadRequest) as caught:
        await processor.lookup.find_by_id(context, "orders", " ")
    assert caught.value.fault is Fault.ILLEGAL_MESSAGE_ID
    with pytest.raises(BadRequest) as caught:
        await processor.lookup.find_by_key(context, "orders", "", begin_ms=0, end_ms=1, limit=1)
    assert caught.value.fault is Fault.ILLEGAL_KEY


async def test_what_lies_in_a_topic_of_the_system_can_be_read(
    processor: MessagingProcessor, context: Context
) -> None:
    assert await processor.lookup.find_by_id(context, "TRANS_CHECK_MAX_TIME_TOPIC", "m") == []
    with pytest.raises(IllegalTopic):
        await processor.lookup.find_by_id(context, "a b", "m")


async def test_topics_are_made_shown_changed_and_deleted(
    processor: MessagingProcessor, context: Context
) -> None:
    config = TopicConfig("bills", (MessageType.FIFO,), 2, 2)
    await processor.metadata.create_topic(context, config)
    with pytest.raises(AlreadyExists):
        await processor.metadata.create_topic(context, config)
    assert await processor.metadata.topic(context, "bills") == config
    assert {topic.name for topic in await processor.metadata.topics(context)} == {"orders", "bills"}
    await processor.metadata.update_topic(context, TopicConfig("bills", (), 4, 4))
    assert (await processor.metadata.topic(context, "bills")).queues == 4
    await processor.metadata.delete_topic(context, "bills")
    with pytest.raises(TopicNotFound):
        await processor.metadata.topic(context, "bills")


async def test_groups_are_made_shown_changed_and_deleted(
    processor: MessagingProcessor, context: Context
) -> None:
    config = GroupConfig("strict", ordered=True)
    await processor.metadata.create_group(context, config)
    with pytest.raises(AlreadyExists):
        await processor.metadata.create_group(context, config)
    assert await processor.metadata.group(context, "strict") == config
    assert {group.name for group in await processor.metadata.groups(context)} == {"readers", "strict"}
    await processor.metadata.update_group(context, GroupConfig("strict"))
    assert not (await processor.metadata.group(context, "strict")).ordered
    await processor.metadata.delete_group(context, "strict")
    with pytest.raises(GroupNotFound):
        await processor.metadata.group(context, "strict")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (TopicConfig("t", read_queues=0), "0 read queues, it must be at least 1 and at most 1024"),
        (TopicConfig("t", write_queues=1025), "1025 write queues"),
        (TopicConfig("t", retention_ms=0), "retention is 0 ms"),
        (TopicConfig("t", retention_bytes=-1), "retention is -1 bytes"),
        (TopicConfig("a b"), "only letters, digits"),
        (TopicConfig("TBW102"), "belongs to the system"),
    ],
)
async def test_topic_settings_that_cannot_be_are_refused(
    processor: MessagingProcessor, context: Context, config: TopicConfig, words: str
) -> None:
    for operation in (processor.metadata.create_topic, processor.metadata.update_topic):
        with pytest.raises(BadRequest, match=words):
            await operation(context, config)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (GroupConfig("g", max_attempts=0), "0 attempts, it must be at least 1"),
        (GroupConfig("g", max_attempts=10_001), "at most 10000"),
        (GroupConfig("g", consume_timeout_ms=999), "at least 1000 ms"),
        (GroupConfig("g", consume_timeout_ms=43_200_001), "at most 43200000 ms"),
        (GroupConfig("g", retry=CustomizedRetry(())), "at least one delay"),
        (GroupConfig("g", retry=CustomizedRetry((1, -1))), "none below 0"),
        (GroupConfig("g", retry=ExponentialRetry(5, 4)), "initial <= maximum"),
        (GroupConfig("g", retry=ExponentialRetry(multiplier=0.5)), "multiplier >= 1"),
        (GroupConfig("g", retry=ExponentialRetry(multiplier=float("nan"))), "multiplier >= 1"),
    ],
)
async def test_group_settings_that_cannot_be_are_refused(
    processor: MessagingProcessor, context: Context, config: GroupConfig, words: str
) -> None:
    for operation in (processor.metadata.create_group, processor.metadata.update_group):
        with pytest.raises(BadRequest, match=words):
            await operation(context, config)


async def test_a_group_name_that_cannot_be_is_refused(
    processor: MessagingProcessor, context: Context
) -> None:
    with pytest.raises(IllegalGroup):
        await processor.metadata.create_group(context, GroupConfig("a b"))


async def test_progress_and_reset_reach_the_broker(
    processor: MessagingProcessor, context: Context, broker: Any
) -> None:
    (progress,) = await processor.metadata.progress(context, "readers", "orders")
    assert progress.lag == 6
    assert await processor.metadata.topics_of(context, "readers") == ["orders"]
    assert await processor.offsets.reset(context, "readers", "orders", StartFrom.LAST) == {
        (broker.name, 0): 4
    }
    await processor.offsets.reset(context, "readers", "orders", 17)
    assert broker.asked("reset") == [("readers", "orders", StartFrom.LAST), ("readers", "orders", 17)]
    with pytest.raises(BadRequest, match="time -1 ms is out of range"):
        await processor.offsets.reset(context, "readers", "orders", -1)


async def test_asking_for_a_topic_does_not_make_it(
    make_processor: Make, context: Context, broker: Any
) -> None:
    processor = make_processor(Limits())
    with pytest.raises(TopicNotFound):
        await processor.metadata.topic(context, "fresh")
    assert "fresh" not in broker.kept_topics


async def test_a_broker_that_is_none_of_many_is_told_by_its_name(
    processor: MessagingProcessor, context: Context
) -> None:
    assert [*await processor.metadata.brokers(context)] == [BrokerPlace("DefaultCluster", "fake", (0,))]


async def test_a_broker_that_finds_nothing_by_place_says_so(
    processor: MessagingProcessor, context: Context
) -> None:
    with pytest.raises(Unsupported):
        await processor.lookup.at_place(context, "fake", 7)
