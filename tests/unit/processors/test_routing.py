from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from popgate.context import Context
from popgate.errors import (
    BadRequest,
    Fault,
    Forbidden,
    GroupNotFound,
    IllegalGroup,
    IllegalTopic,
    MessageTypeMismatch,
    TooManyRequests,
    TopicNotFound,
)
from popgate.model import GroupConfig, Message, MessageType, Permission, Queue, Route, TopicConfig
from popgate.testing.clock import MovableClock
from processors.limits import Limits
from processors.messaging import MessagingProcessor
from processors.policies.queue_selector import GroupsThenTurns
from processors.requests import Receive
from processors.routing import check_type, place, routed

Make = Callable[..., MessagingProcessor]


def route(*, types: tuple[MessageType, ...] = (), queues: int = 4, topic: str = "orders") -> Route:
    return Route(topic, types, tuple(Queue("b", index, Permission.READ_WRITE) for index in range(queues)))


async def test_an_unknown_topic_is_made_on_first_use_and_takes_every_type(
    processor: MessagingProcessor, broker: Any, observer: Any, context: Context
) -> None:
    found = await processor.route(context, "fresh")
    assert found.message_types == ()
    assert len(found.queues) == 8
    assert broker.kept_topics["fresh"] == TopicConfig("fresh")
    assert observer.of("created") == [("topic", "fresh")]


async def test_an_unknown_topic_is_not_found_where_topics_are_not_made(
    make_processor: Make, context: Context, observer: Any
) -> None:
    processor = make_processor(Limits(auto_create_topics=False))
    with pytest.raises(TopicNotFound, match="fresh"):
        await processor.route(context, "fresh")
    assert observer.of("failed") == [("route", Fault.TOPIC_NOT_FOUND)]


@pytest.mark.parametrize("topic", ["%DLQ%readers", "%RETRY%readers"])
async def test_topics_of_groups_are_never_made(
    processor: MessagingProcessor, context: Context, topic: str
) -> None:
    with pytest.raises(TopicNotFound):
        await processor.route(context, topic)


async def test_topics_of_the_system_are_refused(processor: MessagingProcessor, context: Context) -> None:
    with pytest.raises(IllegalTopic):
        await processor.route(context, "SCHEDULE_TOPIC_XXXX")


async def test_no_more_topics_are_made_than_the_limit(make_processor: Make, context: Context) -> None:
    processor = make_processor(Limits(max_auto_topics=2))
    await processor.route(context, "second")
    with pytest.raises(TooManyRequests, match="there are 2 topics, which is the limit"):
        await processor.route(context, "third")


async def test_no_more_groups_are_made_than_the_limit(make_processor: Make, context: Context) -> None:
    processor = make_processor(Limits(max_auto_groups=1))
    with pytest.raises(TooManyRequests, match="there are 1 groups, which is the limit"):
        await processor.assignments(context, "orders", "writers")
    assert await processor.settings(context, "writers") == GroupConfig("writers")


async def test_an_unknown_group_is_made_on_first_use(
    processor: MessagingProcessor, broker: Any, context: Context
) -> None:
    found = await processor.assignments(context, "orders", "writers")
    assert found.group == GroupConfig("writers") == broker.kept_groups["writers"]


async def test_an_unknown_group_is_not_found_where_groups_are_not_made(
    make_processor: Make, context: Context
) -> None:
    processor = make_processor(Limits(auto_create_groups=False))
    with pytest.raises(GroupNotFound):
        await processor.assignments(context, "orders", "writers")
    assert (await processor.settings(context, "writers")).max_attempts == 17


async def test_the_group_of_tools_is_there_also_where_groups_are_not_made(
    make_processor: Make, context: Context
) -> None:
    processor = make_processor(Limits(auto_create_groups=False))
    assigned = await processor.assignments(context, "orders", "TOOLS_CONSUMER")
    assert assigned.group.name == "TOOLS_CONSUMER"


async def test_an_illegal_group_name_says_the_rule(processor: MessagingProcessor, context: Context) -> None:
    with pytest.raises(IllegalGroup, match="121 characters, the limit is 120"):
        await processor.assignments(context, "orders", "g" * 121)
    with pytest.raises(IllegalGroup, match="belongs to the system"):
        await processor.settings(context, "CID_RMQ_SYS_x")


async def test_an_ordered_group_is_assigned_every_queue_and_others_one_of_each_broker(
    processor: MessagingProcessor, broker: Any, context: Context
) -> None:
    broker.kept_groups["strict"] = GroupConfig("strict", ordered=True)
    ordered = await processor.assignments(context, "orders", "strict")
    assert [queue.queue_id for queue in ordered.queues] == list(range(8))
    loose = await processor.assignments(context, "orders", "readers")
    assert [(queue.broker, queue.queue_id) for queue in loose.queues] == [("fake", -1)]


async def test_a_topic_without_readable_queues_is_forbidden_to_consumers(
    processor: MessagingProcessor, broker: Any, context: Context
) -> None:
    broker.kept_topics["inbox"] = TopicConfig("inbox", permission=Permission.WRITE)
    with pytest.raises(Forbidden, match="inbox has no readable queue"):
        await processor.assignments(context, "inbox", "readers")


async def test_a_route_is_asked_for_once_a_second(
    processor: MessagingProcessor, broker: Any, clock: MovableClock, context: Context
) -> None:
    for _ in range(3):
        await processor.route(context, "orders")
    assert len(broker.asked("route")) == 1
    clock.advance(1.5)
    await processor.route(context, "orders")
    assert len(broker.asked("route")) == 2


async def test_receives_ask_for_route_and_group_once_a_second(
    processor: MessagingProcessor, broker: Any, clock: MovableClock, context: Context
) -> None:
    request = Receive("orders", "readers", wait_s=0.0)
    for asked in (1, 2):
        for _ in range(3):
            await processor.receive(context, request)
        assert (len(broker.asked("route")), len(broker.asked("group"))) == (asked, asked)
        clock.advance(1.5)


async def test_a_change_through_this_replica_is_seen_at_once(
    processor: MessagingProcessor, context: Context
) -> None:
    await processor.route(context, "orders")
    await processor.metadata.update_topic(context, TopicConfig("orders", (MessageType.FIFO,), 9, 9))
    assert len((await processor.route(context, "orders")).queues) == 9
    await processor.assignments(context, "orders", "readers")
    await processor.metadata.update_group(context, GroupConfig("readers", ordered=True))
    assert (await processor.assignments(context, "orders", "readers")).group.ordered
    await processor.metadata.delete_topic(context, "orders")
    assert len((await processor.route(context, "orders")).queues) == 8


def test_a_topic_takes_its_types_only() -> None:
    check_type(MessageType.DELAY, route())
    check_type(MessageType.FIFO, route(types=(MessageType.FIFO, MessageType.NORMAL)))
    check_type(MessageType.DELAY, route(types=(MessageType.FIFO,), topic="%DLQ%readers"))
    with pytest.raises(
        MessageTypeMismatch, match="takes FIFO and DELAY messages, this one is NORMAL"
    ) as caught:
        check_type(MessageType.NORMAL, route(types=(MessageType.FIFO, MessageType.DELAY)))
    assert caught.value.fault is Fault.MESSAGE_TYPE_MISMATCH


def placed(messages: list[Message], where: Route, *, check_types: bool = True) -> list[int]:
    place(messages, routed(where), GroupsThenTurns().pick, 0.0, check_types=check_types)
    return [message.queue_id for message in messages]


def test_a_message_without_a_group_does_not_fit_a_fifo_topic() -> None:
    with pytest.raises(MessageTypeMismatch, match="this one is NORMAL"):
        placed([Message("orders", b"b")], route(types=(MessageType.FIFO,)))
    assert placed([Message("orders", b"b")], route(types=(MessageType.FIFO,)), check_types=False)


def test_a_message_group_keeps_its_queue_also_in_a_batch() -> None:
    def batch() -> list[Message]:
        return [Message("orders", b"b", message_group=name) for name in ("a", "b", "a", "c")]

    queues = placed(batch(), route(queues=8))
    assert queues[0] == queues[2]
    assert queues == placed(batch(), route(queues=8))
    assert queues[:1] == placed(batch()[:1], route(queues=8))


def test_a_batch_without_groups_stays_together_and_batches_take_turns() -> None:
    pick = GroupsThenTurns().pick
    seen = []
    for _ in range(4):
        messages = [Message("orders", b"b") for _ in range(3)]
        place(messages, routed(route()), pick, 0.0, check_types=True)
        assert len({message.queue_id for message in messages}) == 1
        seen.append(messages[0].queue_id)
    assert sorted(seen) == [0, 1, 2, 3]


def test_where_the_broker_chooses_only_what_the_client_chose_is_looked_at() -> None:
    def left(*messages: Message, where: Route | None = None) -> list[tuple[str, int]]:
        place(messages, routed(where or route()), None, 0.0, check_types=True)
        return [(message.broker, message.queue_id) for message in messages]

    plain, grouped = Message("orders", b"b"), Message("orders", b"b", message_group="g")
    first = Message("orders", b"b", priority=1)
    assert left(plain, grouped, first) == [("", -1)] * 3
    assert left(Message("orders", b"b", queue_id=3)) == [("", 3)]
    with pytest.raises(BadRequest):
        left(Message("orders", b"b", queue_id=99))
    with pytest.raises(MessageTypeMismatch):
        left(plain, where=route(types=(MessageType.FIFO,)))


def test_a_queue_that_the_client_chose_is_kept_if_it_is_one() -> None:
    assert placed([Message("orders", b"b", queue_id=3, broker="b")], route()) == [3]
    assert placed([Message("orders", b"b", queue_id=3)], route()) == [3]
    with pytest.raises(BadRequest, match="no writable queue 4"):
        placed([Message("orders", b"b", queue_id=4)], route())
    with pytest.raises(BadRequest, match="no writable queue 3 at broker 'other'"):
        placed([Message("orders", b"b", queue_id=3, broker="other")], route())


def test_a_topic_that_nobody_may_write_to_is_forbidden_to_producers() -> None:
    closed = Route("orders", (), (Queue("b", 0, Permission.READ),))
    with pytest.raises(Forbidden, match="orders has no writable queue"):
        placed([Message("orders", b"b")], closed)
