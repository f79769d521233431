"""Lite topics and lite consumers over a real gRPC server. Protocol facts 4.10."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from popgate.errors import BadRequest
from popgate.lite import LiteAction, LiteOrigin
from popgate.model import GroupConfig, MessageType, TopicConfig
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.duration_pb2 import Duration
from processors.limits import Limits
from protocols.grpc.codec.lite import lite_sync_in

Code = pb.Code
ADD, REMOVE, REPLACE, CLEAR = (
    pb.LiteSubscriptionAction.PARTIAL_ADD,
    pb.LiteSubscriptionAction.PARTIAL_REMOVE,
    pb.LiteSubscriptionAction.COMPLETE_ADD,
    pb.LiteSubscriptionAction.COMPLETE_REMOVE,
)
LITE_KINDS = [pb.ClientType.LITE_PUSH_CONSUMER, pb.ClientType.LITE_SIMPLE_CONSUMER]


def sync_request(action: int, *names: str, topic: str = "t", group: str = "g", **more: Any) -> Any:
    return rpc.SyncLiteSubscriptionRequest(
        action=action,
        topic=pb.Resource(name=topic),
        group=pb.Resource(name=group),
        lite_topic_set=names,
        **more,
    )


async def sync(client: Any, action: int, *names: str, **more: Any) -> int:
    answer = await client.call("SyncLiteSubscription", sync_request(action, *names, **more))
    assert answer.status.message
    return answer.status.code


async def bodies(client: Any, **how: Any) -> list[bytes]:
    return [message.body for message in await client.receive(**how)]


@pytest.fixture
async def rooms(gateway: Any) -> Any:
    """A gateway with the topic t for lite topics; its groups are made on first use."""
    await gateway.broker.create_topic(TopicConfig("t", (MessageType.LITE,), attributes={}))
    return gateway


# -- settings


@pytest.mark.parametrize("kind", LITE_KINDS)
async def test_a_lite_consumer_is_told_its_quota_and_that_order_is_kept(
    rooms: Any, client: Any, kind: int
) -> None:
    stream = await client.introduce(client.subscribing(kind))
    told = stream.settings.subscription
    assert (told.lite_subscription_quota, told.max_lite_topic_size, told.fifo) == (1200, 64, True)
    assert (await rooms.broker.group("g")).attributes == {"lite.bind.topic": "t"}


async def test_the_quota_of_a_group_is_told(rooms: Any, client: Any) -> None:
    attributes = {"lite.bind.topic": "t", "lite.sub.client.quota": "7"}
    await rooms.broker.create_group(GroupConfig("g", attributes=attributes))
    stream = await client.introduce(client.subscribing(pb.ClientType.LITE_PUSH_CONSUMER))
    assert stream.settings.subscription.lite_subscription_quota == 7
    assert await sync(client, ADD, *(f"r{n}" for n in range(7))) == Code.OK
    assert await sync(client, ADD, "one-more") == Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED


async def test_an_ordinary_consumer_is_told_no_quota(rooms: Any, client: Any) -> None:
    stream = await client.introduce(client.subscribing(pb.ClientType.PUSH_CONSUMER))
    assert not stream.settings.subscription.HasField("lite_subscription_quota")
    assert not (await rooms.broker.group("g")).attributes


async def test_a_lite_topic_is_in_the_route_of_its_topic(rooms: Any, client: Any) -> None:
    route = await client.route()
    assert {tuple(queue.accept_message_types) for queue in route.message_queues} == {(pb.LITE,)}


# -- from sending to finishing


async def test_a_client_gets_messages_of_its_lite_topics_and_no_others(rooms: Any, client: Any) -> None:
    await client.introduce(client.subscribing(pb.ClientType.LITE_SIMPLE_CONSUMER))
    assert await sync(client, ADD, "room-1") == Code.OK
    for room in ("room-1", "room-2"):
        await client.send_one(body=room.encode(), lite_topic=room)
    [message] = await client.receive()
    system = message.system_properties
    assert (message.body, system.lite_topic, system.message_type) == (b"room-1", "room-1", pb.LITE)
    assert (await client.ack(system.receipt_handle)).status.code == Code.OK
    assert await bodies(client) == []
    assert await sync(client, ADD, "room-2") == Code.OK
    assert await bodies(client) == [b"room-2"]


async def test_an_acknowledgement_may_name_the_lite_topic(rooms: Any, client: Any) -> None:
    await sync(client, ADD, "a")
    await client.send_one(lite_topic="a")
    [message] = await client.receive()
    entry = rpc.AckMessageEntry(
        message_id=message.system_properties.message_id,
        receipt_handle=message.system_properties.receipt_handle,
        lite_topic="a",
    )
    request = rpc.AckMessageRequest(topic=pb.Resource(name="t"), group=pb.Resource(name="g"), entries=[entry])
    assert (await client.call("AckMessage", request)).status.code == Code.OK


async def test_a_suspended_message_comes_again_and_was_no_attempt(rooms: Any, client: Any) -> None:
    await sync(client, ADD, "a")
    await client.send_one(lite_topic="a")
    for _ in range(3):
        [message] = await client.receive()
        assert message.system_properties.delivery_attempt == 1
        request = rpc.ChangeInvisibleDurationRequest(
            topic=pb.Resource(name="t"),
            group=pb.Resource(name="g"),
            receipt_handle=message.system_properties.receipt_handle,
            invisible_duration=Duration(seconds=5),
            lite_topic="a",
            suspend=True,
        )
        assert (await client.call("ChangeInvisibleDuration", request)).status.code == Code.OK
        assert await bodies(client) == []
        rooms.clock.advance(6)
    [message] = await client.receive()
    assert message.system_properties.delivery_attempt == 1


async def test_a_message_goes_to_the_dead_letters_with_its_lite_topic(rooms: Any, client: Any) -> None:
    await sync(client, ADD, "a")
    await client.send_one(lite_topic="a")
    [message] = await client.receive()
    request = rpc.ForwardMessageToDeadLetterQueueRequest(
        topic=pb.Resource(name="t"),
        group=pb.Resource(name="g"),
        receipt_handle=message.system_properties.receipt_handle,
        message_id=message.system_properties.message_id,
        lite_topic="a",
    )
    assert (await client.call("ForwardMessageToDeadLetterQueue", request)).status.code == Code.OK
    [letter] = await client.receive("%DLQ%g", "readers-of-letters")
    assert letter.system_properties.lite_topic == "a"
    assert letter.system_properties.dead_letter_queue.topic == "t"


async def test_a_waiting_receive_is_woken_by_a_subscription(rooms: Any, client: Any) -> None:
    await client.introduce(client.subscribing(pb.ClientType.LITE_PUSH_CONSUMER))
    await client.send_one(body=b"early", lite_topic="a")
    waiting = asyncio.ensure_future(client.frames(wait_ms=15_000, auto_renew=True))
    while not rooms.processor.figures()["waiting_receives"]:
        await asyncio.sleep(0.001)
    assert await sync(client, ADD, "a") == Code.OK
    frames = await waiting
    assert [frame.message.body for frame in frames if frame.WhichOneof("content") == "message"] == [b"early"]


async def test_lite_topics_cannot_be_filtered(rooms: Any, client: Any) -> None:
    await sync(client, ADD, "a")
    assert await client.receive_status(expression="hot") == Code.ILLEGAL_FILTER_EXPRESSION


# -- the four actions


async def test_the_four_actions(rooms: Any, client: Any) -> None:
    subscriptions = rooms.processor.lite.subscriptions
    assert await sync(client, ADD, "a", "b") == Code.OK
    assert subscriptions("client-1") == 2
    assert await sync(client, REMOVE, "a") == Code.OK
    assert subscriptions("client-1") == 1
    assert await sync(client, REPLACE, "x", "y", "z", version=5) == Code.OK
    assert subscriptions("client-1") == 3
    assert await sync(client, CLEAR) == Code.OK
    assert subscriptions("client-1") == 0


async def test_where_to_begin_counts_for_additions_only(rooms: Any, client: Any) -> None:
    for n in range(3):
        await client.send_one(body=f"m{n}".encode(), lite_topic="a")
    tail = pb.OffsetOption(tail_n=1)
    assert await sync(client, ADD, "a", offset_option=tail) == Code.OK
    assert await bodies(client) == [b"m2"]
    other = client.like(client_id="client-2")
    assert await sync(other, REPLACE, "a", group="h", offset_option=tail) == Code.OK
    assert await bodies(other, group="h") == [b"m0", b"m1", b"m2"]


@pytest.mark.parametrize(
    ("option", "origin", "value"),
    [
        (None, LiteOrigin.LAST, 0),
        (pb.OffsetOption(), LiteOrigin.LAST, 0),
        (pb.OffsetOption(policy=pb.OffsetOption.LAST), LiteOrigin.LAST, 0),
        (pb.OffsetOption(policy=pb.OffsetOption.MIN), LiteOrigin.FIRST, 0),
        (pb.OffsetOption(policy=pb.OffsetOption.MAX), LiteOrigin.END, 0),
        (pb.OffsetOption(offset=5), LiteOrigin.OFFSET, 5),
        (pb.OffsetOption(tail_n=3), LiteOrigin.TAIL, 3),
        (pb.OffsetOption(timestamp=1_700_000_000_000), LiteOrigin.TIME, 1_700_000_000_000),
    ],
)
def test_every_way_to_say_where_to_begin(option: Any, origin: LiteOrigin, value: int) -> None:
    found = lite_sync_in(sync_request(ADD, "a", offset_option=option))
    assert (found.action, found.origin, found.value) == (LiteAction.ADD, origin, value)


@pytest.mark.parametrize(
    "option",
    [
        pb.OffsetOption(offset=-1),
        pb.OffsetOption(tail_n=-1),
        pb.OffsetOption(timestamp=-1),
        pb.OffsetOption(offset=(1 << 63) - 1),
        pb.OffsetOption(policy=77),
    ],
)
def test_a_place_that_cannot_be_is_refused(option: Any) -> None:
    with pytest.raises(BadRequest):
        lite_sync_in(sync_request(ADD, "a", offset_option=option))
    assert lite_sync_in(sync_request(REPLACE, "a", offset_option=option)).origin is LiteOrigin.LAST


async def test_an_action_that_is_none_is_refused(rooms: Any, client: Any) -> None:
    assert await sync(client, 9, "a") == Code.BAD_REQUEST


@pytest.mark.parametrize(
    ("names", "more", "code"),
    [
        (["a b"], {}, Code.ILLEGAL_LITE_TOPIC),
        ([""], {}, Code.ILLEGAL_LITE_TOPIC),
        (["r" * 65], {}, Code.ILLEGAL_LITE_TOPIC),
        (["a"], {"topic": "bad topic"}, Code.ILLEGAL_TOPIC),
        (["a"], {"group": "bad group"}, Code.ILLEGAL_CONSUMER_GROUP),
        (["a"], {"topic": "plain"}, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (["a"], {"group": "bound-elsewhere"}, Code.BAD_REQUEST),
        ([f"r{n}" for n in range(1201)], {}, Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED),
    ],
)
async def test_a_subscription_that_cannot_be_is_told_why(
    rooms: Any, client: Any, names: list[str], more: dict[str, str], code: int
) -> None:
    await rooms.broker.create_topic(TopicConfig("plain", (MessageType.NORMAL,)))
    await rooms.broker.create_group(GroupConfig("bound-elsewhere", attributes={"lite.bind.topic": "other"}))
    assert await sync(client, ADD, *names, **more) == code
    assert rooms.processor.lite.subscriptions("client-1") == 0


async def test_a_set_with_a_name_that_cannot_be_keeps_nobody_from_leaving_the_others(
    rooms: Any, client: Any
) -> None:
    await sync(client, ADD, "a", "b")
    assert await sync(client, REPLACE, "a", "no good") == Code.OK
    assert rooms.processor.lite.subscriptions("client-1") == 1


async def test_a_group_that_reads_a_topic_as_a_whole_is_not_made_one_for_its_lite_topics(
    gateway: Any, client: Any
) -> None:
    await gateway.broker.create_topic(TopicConfig("t"))
    assert await bodies(client) == []
    for body in (b"1", b"2"):
        await client.send_one(body=body)
    [first] = await client.receive(batch_size=1)
    other = client.like(client_id="client-2")
    await other.introduce(other.subscribing(pb.ClientType.LITE_PUSH_CONSUMER))
    assert await sync(other, ADD, "a") == Code.BAD_REQUEST
    assert not (await gateway.broker.group("g")).attributes
    assert (await client.ack(first.system_properties.receipt_handle)).status.code == Code.OK
    assert sorted([first.body, *await bodies(client)]) == [b"1", b"2"]


async def test_a_group_is_bound_by_hand_where_groups_are_not_made(town: Any) -> None:
    gateway = await town.gateway(limits=Limits(auto_create_groups=False))
    await gateway.broker.create_topic(TopicConfig("t", (MessageType.LITE,)))
    await gateway.broker.create_group(GroupConfig("g"))
    client = town.client(gateway)
    assert await sync(client, ADD, "a", group="nobody") == Code.CONSUMER_GROUP_NOT_FOUND
    assert await sync(client, ADD, "a") == Code.BAD_REQUEST
    assert await sync(client, REMOVE, "a") == Code.OK


async def test_a_topic_of_lite_topics_refuses_other_messages_and_other_topics_refuse_these(
    rooms: Any, client: Any
) -> None:
    await rooms.broker.create_topic(TopicConfig("plain", (MessageType.NORMAL,)))
    answer = await client.send(client.message("plain", lite_topic="a"))
    assert answer.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    answer = await client.send(client.message("t"))
    assert answer.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


# -- coming and going


async def test_a_client_is_told_when_a_lite_topic_goes(rooms: Any, client: Any) -> None:
    stream = await client.introduce(client.subscribing(pb.ClientType.LITE_PUSH_CONSUMER))
    await sync(client, ADD, "a", "b")
    await client.send_one(lite_topic="a")
    await rooms.broker.delete_lite_topic("t", "a")
    command = await asyncio.wait_for(stream.read(), 60)
    assert command.notify_unsubscribe_lite_command.lite_topic == "a"
    assert rooms.processor.lite.subscriptions("client-1") == 1


async def test_the_end_of_the_stream_takes_the_subscriptions_offline(rooms: Any, client: Any) -> None:
    attributes = {"lite.bind.topic": "t", "lite.sub.model": "Exclusive"}
    await rooms.broker.create_group(GroupConfig("g", attributes=attributes))
    other = client.like(client_id="client-2")
    stream = await client.introduce(client.subscribing(pb.ClientType.LITE_PUSH_CONSUMER))
    await sync(client, ADD, "a", "b")
    assert await sync(other, REPLACE, "a", "b") == Code.OK
    assert rooms.processor.lite.subscriptions("client-2") == 0, "it is another client's"
    await stream.done_writing()
    assert await stream.read() != stream.settings
    deadline = asyncio.get_running_loop().time() + 10
    while rooms.processor.lite.subscriptions("client-2") != 2:
        assert await sync(other, REPLACE, "a", "b") == Code.OK
        assert asyncio.get_running_loop().time() < deadline
    assert rooms.processor.lite.subscriptions("client-1") == 0


async def test_scenario_38_a_good_bye_leaves_every_lite_topic(rooms: Any, client: Any) -> None:
    await client.introduce(client.subscribing(pb.ClientType.LITE_PUSH_CONSUMER))
    await sync(client, ADD, *(f"r{n}" for n in range(50)))
    request = rpc.NotifyClientTerminationRequest(group=pb.Resource(name="g"))
    assert (await client.call("NotifyClientTermination", request)).status.code == Code.OK
    assert rooms.processor.lite.subscriptions("client-1") == 0


async def test_scenario_38_a_full_client_can_leave_and_then_subscribe_again(rooms: Any, client: Any) -> None:
    full = [f"r{n}" for n in range(1200)]
    assert await sync(client, REPLACE, *full) == Code.OK
    assert await sync(client, ADD, "more") == Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    assert await sync(client, REPLACE, *full) == Code.OK
    assert await sync(client, REMOVE, "r0") == Code.OK
    assert await sync(client, ADD, "more") == Code.OK


async def test_a_client_that_never_told_its_settings_is_served(rooms: Any, client: Any) -> None:
    assert await sync(client, ADD, "a") == Code.OK
    await client.send_one(body=b"hello", lite_topic="a")
    assert await bodies(client) == [b"hello"]


async def test_the_assignment_of_a_bound_group_is_one_queue_for_all(rooms: Any, client: Any) -> None:
    await rooms.broker.create_group(GroupConfig("g", ordered=True, attributes={"lite.bind.topic": "t"}))
    request = rpc.QueryAssignmentRequest(
        topic=pb.Resource(name="t"), group=pb.Resource(name="g"), endpoints=client.endpoints
    )
    answer = await client.call("QueryAssignment", request)
    assert [one.message_queue.id for one in answer.assignments] == [-1]


async def test_a_change_that_was_overtaken_by_a_newer_one_is_refused(
    rooms: Any, client: Any, town: Any
) -> None:
    assert await sync(client, REPLACE, "b", version=5) == Code.OK
    assert await sync(client, REPLACE, "a", version=4) == Code.BAD_REQUEST
    assert await sync(client, REPLACE, "b", version=5) == Code.OK  # repeated, since its answer was lost
    other = town.client(rooms, client_id="client-2")
    assert await sync(other, REPLACE, "c", version=1) == Code.OK
    assert await sync(client, ADD, "d") == Code.OK  # one that is not counted
    await client.send(*[client.message(body=name.encode(), lite_topic=name) for name in "abd"])
    assert sorted(await bodies(client)) == [b"b", b"d"]
    assert await sync(client, CLEAR, version=6) == Code.OK
