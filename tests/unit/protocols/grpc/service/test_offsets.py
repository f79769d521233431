"""PullMessage, UpdateOffset, GetOffset, QueryOffset."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from popgate.context import Context
from popgate.model import GroupConfig, Permission, TopicConfig
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.duration_pb2 import Duration
from popgate.pb.timestamp_pb2 import Timestamp
from processors.limits import Limits
from protocols.grpc.service.service import MessagingService
from protocols.grpc.transport import BrokenStream

Code = pb.Code


def kinds(frames: list[Any]) -> list[str]:
    return [frame.WhichOneof("content") for frame in frames]


def bodies(frames: list[Any]) -> list[bytes]:
    return [frame.message.body for frame in frames if frame.WhichOneof("content") == "message"]


@pytest.fixture
async def shelf(gateway: Any, client: Any) -> list[bytes]:
    """Messages at the offsets 0 to 4 of the only queue of topic t."""
    await gateway.broker.create_topic(TopicConfig("t", read_queues=1, write_queues=1))
    texts = [b"a", b"b", b"c", b"d", b"e"]
    for n, body in enumerate(texts):
        await client.send_one(body=body, tag="odd" if n % 2 else "even", properties={"n": str(n)})
        await gateway.pass_s(1.0)
    return texts


async def update(client: Any, offset: int, group: str = "g", **where: Any) -> pb.Status:
    request = rpc.UpdateOffsetRequest(
        group=pb.Resource(name=group), message_queue=client.queue(**where), offset=offset
    )
    return (await client.call("UpdateOffset", request)).status


async def get(client: Any, group: str = "g", **where: Any) -> rpc.GetOffsetResponse:
    request = rpc.GetOffsetRequest(group=pb.Resource(name=group), message_queue=client.queue(**where))
    return await client.call("GetOffset", request)


async def query(client: Any, policy: int, at: Timestamp | None = None, **where: Any) -> Any:
    request = rpc.QueryOffsetRequest(
        message_queue=client.queue(**where), query_offset_policy=policy, timestamp=at
    )
    return await client.call("QueryOffset", request)


# -- PullMessage --------------------------------------------------------------------------------


@pytest.mark.usefixtures("shelf")
async def test_the_elements_are_status_messages_and_next_offset_one_of_each_in_an_element(
    client: Any,
) -> None:
    frames = await client.pull(1, batch_size=3)
    assert kinds(frames) == ["status", "message", "message", "message", "next_offset"]
    assert (frames[0].status.code, frames[0].status.message) == (Code.OK, "OK")
    assert [frame.message.system_properties.queue_offset for frame in frames[1:4]] == [1, 2, 3]
    assert frames[-1].next_offset == 4


async def test_a_queue_is_read_from_end_to_end_by_its_next_offsets(client: Any, shelf: list[bytes]) -> None:
    offset, found = 0, []
    while offset < len(shelf):
        frames = await client.pull(offset, batch_size=2)
        found += bodies(frames)
        assert frames[-1].next_offset > offset
        offset = frames[-1].next_offset
    assert found == shelf


async def test_a_pulled_message_is_whole_and_has_no_receipt_handle(client: Any, shelf: list[bytes]) -> None:
    request = client.pull_request(batch_size=1)
    request.message_queue.topic.resource_namespace = "space"
    frames = [frame async for frame in client.stream(request)]
    message = frames[1].message
    assert message.topic == pb.Resource(name="t", resource_namespace="space")
    assert (message.body, dict(message.user_properties)) == (shelf[0], {"n": "0"})
    system = message.system_properties
    assert (system.tag, system.queue_id, system.delivery_attempt) == ("even", 0, 1)
    assert not system.HasField("receipt_handle")
    assert not system.HasField("invisible_duration")
    assert system.body_digest.checksum


async def test_pulling_takes_nothing_and_moves_no_group(client: Any, shelf: list[bytes]) -> None:
    for _ in range(2):
        assert bodies(await client.pull()) == shelf
    assert (await get(client)).status.code == Code.OFFSET_NOT_FOUND
    assert [message.body for message in await client.receive()] == shelf
    assert bodies(await client.pull()) == shelf


async def test_a_pull_at_the_end_finds_nothing_which_is_no_failure(client: Any, shelf: list[bytes]) -> None:
    frames = await client.pull(len(shelf))
    assert kinds(frames) == ["status", "next_offset"]
    assert frames[0].status.code == Code.OK
    assert frames[1].next_offset == len(shelf)


@pytest.mark.usefixtures("shelf")
@pytest.mark.parametrize(("offset", "nearest"), [(-1, 0), (-(1 << 63), 0), (6, 5), ((1 << 63) - 1, 5)])
async def test_an_offset_outside_of_the_bounds_is_told_them_and_where_to_go_on(
    client: Any, offset: int, nearest: int
) -> None:
    frames = await client.pull(offset, wait_ms=20_000)
    assert kinds(frames) == ["status", "next_offset"]
    assert frames[0].status.code == Code.ILLEGAL_OFFSET
    assert frames[0].status.message == f"offset {offset} is outside of 0 to 5"
    assert frames[1].next_offset == nearest
    assert (await client.pull(frames[1].next_offset))[0].status.code == Code.OK


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"expression": "odd"}, [b"b", b"d"]),
        ({"expression": "odd || even", "batch_size": 2}, [b"a", b"b"]),
        ({"expression": ""}, [b"a", b"b", b"c", b"d", b"e"]),
        ({"filter": pb.FilterType.FILTER_TYPE_UNSPECIFIED, "expression": "odd"}, [b"b", b"d"]),
        ({"filter": pb.FilterType.SQL, "expression": "n > 2 OR TAGS = 'odd'"}, [b"b", b"d", b"e"]),
    ],
)
@pytest.mark.usefixtures("shelf")
async def test_filters_are_those_of_the_request(
    client: Any, fields: dict[str, Any], found: list[bytes]
) -> None:
    assert bodies(await client.pull(**fields)) == found


async def test_what_a_filter_leaves_out_is_passed_by(client: Any, shelf: list[bytes]) -> None:
    frames = await client.pull(expression="none")
    assert kinds(frames) == ["status", "next_offset"]
    assert frames[0].status.code == Code.OK
    assert frames[1].next_offset == len(shelf)


async def test_no_pull_has_more_than_the_limit_of_messages(town: Any) -> None:
    gateway = await town.gateway(limits=Limits(max_pull_messages=3, new_topic_queues=1))
    client = town.client(gateway)
    await client.send(*(client.message() for _ in range(40)))
    assert len(bodies(await client.pull(batch_size=1 << 30))) == 3
    gateway = await town.gateway(limits=Limits(new_topic_queues=1))
    client = town.client(gateway)
    await client.send(*(client.message() for _ in range(40)))
    for unsaid in (0, -1, -(1 << 31)):
        assert len(bodies(await client.pull(batch_size=unsaid))) == 32
    assert len(bodies(await client.pull(batch_size=1000))) == 40


@pytest.mark.usefixtures("shelf")
@pytest.mark.parametrize(
    ("fields", "code", "sentence"),
    [
        ({"topic": ""}, Code.ILLEGAL_TOPIC, "must not be blank"),
        ({"topic": "a b"}, Code.ILLEGAL_TOPIC, "only letters"),
        ({"topic": "", "group": ""}, Code.ILLEGAL_TOPIC, "must not be blank"),
        ({"group": ""}, Code.ILLEGAL_CONSUMER_GROUP, "must not be blank"),
        ({"group": "g" * 121}, Code.ILLEGAL_CONSUMER_GROUP, "the limit is 120"),
        ({"group": "CID_RMQ_SYS_x"}, Code.ILLEGAL_CONSUMER_GROUP, "belongs to the system"),
        ({"queue_id": -1}, Code.BAD_REQUEST, "queue id -1 is out of range"),
        ({"queue_id": 1}, Code.BAD_REQUEST, "topic t has no queue 1, its queues are 0 to 0"),
        ({"broker": "other"}, Code.BAD_REQUEST, "topic t has no queues on broker 'other'"),
        ({"expression": "||"}, Code.ILLEGAL_FILTER_EXPRESSION, "illegal filter"),
        ({"filter": pb.FilterType.SQL, "expression": "a ="}, Code.ILLEGAL_FILTER_EXPRESSION, "a ="),
        ({"wait_ms": -1}, Code.ILLEGAL_POLLING_TIME, "at least 0 s"),
    ],
)
async def test_a_pull_that_breaks_a_rule_is_told_which(
    client: Any, fields: dict[str, Any], code: int, sentence: str
) -> None:
    frames = await client.pull(**fields)
    assert kinds(frames) == ["status"]
    assert frames[0].status.code == code, frames
    assert sentence in frames[0].status.message


async def test_a_pull_makes_its_topic_and_group_where_a_receive_would(town: Any) -> None:
    gateway = await town.gateway()
    client = town.client(gateway)
    frames = await client.pull(topic="new", group="newcomers")
    assert (kinds(frames), frames[-1].next_offset) == (["status", "next_offset"], 0)
    assert (await gateway.broker.group("newcomers")).name == "newcomers"
    closed = await town.gateway(limits=Limits(auto_create_topics=False, auto_create_groups=False))
    client = town.client(closed)
    await closed.broker.create_group(GroupConfig("g"))
    assert [frame.status.code for frame in await client.pull()] == [Code.TOPIC_NOT_FOUND]
    await closed.broker.create_topic(TopicConfig("t"))
    assert [f.status.code for f in await client.pull(group="h")] == [Code.CONSUMER_GROUP_NOT_FOUND]
    assert (await client.pull())[0].status.code == Code.OK


async def test_a_topic_that_is_not_readable_and_a_group_that_is_switched_off_are_told(
    client: Any, gateway: Any
) -> None:
    await gateway.broker.create_topic(TopicConfig("closed", permission=Permission.WRITE))
    await gateway.broker.create_topic(TopicConfig("open"))
    await gateway.broker.create_group(GroupConfig("off", consume_enabled=False))
    assert [f.status.code for f in await client.pull(topic="closed")] == [Code.FORBIDDEN]
    assert [f.status.code for f in await client.pull(topic="open", group="off")] == [Code.FORBIDDEN]


@pytest.mark.usefixtures("shelf")
async def test_a_pull_without_a_client_id_has_a_status_and_nothing_else(client: Any) -> None:
    frames = await client.like(client_id=" ").pull()
    assert [frame.status.code for frame in frames] == [Code.CLIENT_ID_REQUIRED]


async def test_a_bug_in_a_pull_is_told_without_details(
    client: Any, gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any) -> None:
        raise ZeroDivisionError("details")

    monkeypatch.setattr(gateway.processor, "pull", broken)
    (frame,) = await client.pull()
    assert frame.status.code == Code.INTERNAL_SERVER_ERROR
    assert "details" not in frame.status.message


# -- waiting ------------------------------------------------------------------------------------


async def waiting(town: Any, gateway: Any, count: int = 1) -> None:
    await town.until(lambda: gateway.processor.figures()["waiting_receives"] == count)


async def test_an_arrival_ends_a_waiting_pull(
    town: Any, client: Any, gateway: Any, shelf: list[bytes]
) -> None:
    polls = [asyncio.ensure_future(client.pull(len(shelf), wait_ms=20_000, group=g)) for g in "gh"]
    await waiting(town, gateway, 2)
    await client.send_one(body=b"f")
    for poll in polls:
        frames = await poll
        assert (bodies(frames), frames[-1].next_offset) == ([b"f"], 6)


async def test_a_waiting_pull_is_answered_when_its_time_is_over(
    town: Any, client: Any, gateway: Any, shelf: list[bytes]
) -> None:
    poll = asyncio.ensure_future(client.pull(len(shelf), wait_ms=300, timeout=None))
    await waiting(town, gateway)
    await gateway.pass_s(0.299)
    assert gateway.processor.figures()["waiting_receives"] == 1
    await gateway.pass_s(0.001)
    frames = await poll
    assert (kinds(frames), frames[0].status.code) == (["status", "next_offset"], Code.OK)


@pytest.mark.parametrize(("remaining", "margin"), [(60.0, 0.25), (1.0, 0.2)])
async def test_a_pull_is_answered_before_its_deadline_however_long_it_may_wait(
    town: Any, remaining: float, margin: float
) -> None:
    gateway = await town.gateway(limits=town.for_long)
    client = town.client(gateway)
    request = client.pull_request(wait_ms=town.long_ms)
    poll = asyncio.ensure_future(client.frames_within(gateway, remaining, request))
    await waiting(town, gateway)
    await gateway.pass_s(remaining - margin - 0.001)
    assert not poll.done()
    await gateway.pass_s(0.002)
    frames = await poll
    assert (kinds(frames), frames[0].status.code) == (["status", "next_offset"], Code.OK)


async def test_the_deadline_of_a_pull_is_that_of_its_call(town: Any) -> None:
    # The gateway's time is moved by hand, the client's deadline is of this machine's: both begin together.
    gateway = await town.gateway(limits=town.for_long)
    poll = asyncio.ensure_future(town.client(gateway).pull(wait_ms=town.long_ms, timeout=60.0))
    await waiting(town, gateway)
    await gateway.pass_s(1.0)
    assert gateway.processor.figures()["waiting_receives"] == 1
    await gateway.pass_s(59.0)
    assert (await poll)[0].status.code == Code.OK


@pytest.mark.parametrize("wait_ms", [None, 0])
async def test_a_pull_that_asks_for_no_waiting_does_not_wait(
    client: Any, shelf: list[bytes], wait_ms: int | None
) -> None:
    # The clock stands still: a pull that waited would never be answered.
    frames = await client.pull(len(shelf), wait_ms=wait_ms)
    assert frames[-1].next_offset == len(shelf)


async def test_a_client_that_leaves_a_waiting_pull_leaves_nothing_behind(
    town: Any, client: Any, gateway: Any, shelf: list[bytes]
) -> None:
    poll = asyncio.ensure_future(client.pull(len(shelf), wait_ms=20_000))
    await waiting(town, gateway)
    poll.cancel()
    await waiting(town, gateway, 0)
    await town.until(lambda: gateway.broker.figures()["waiting_pops"] == 0)


async def test_draining_answers_waiting_pulls_which_go_on_elsewhere(town: Any) -> None:
    gateway = await town.gateway(real_time=True, limits=town.for_long)
    client = town.client(gateway)
    poll = asyncio.ensure_future(client.pull(wait_ms=town.long_ms, timeout=None))
    await waiting(town, gateway)
    await gateway.adapter.drain(gateway.clock.monotonic() + 60)
    frames = await poll
    assert (kinds(frames), frames[0].status.code) == (["status", "next_offset"], Code.OK)
    assert frames[1].next_offset == 0


async def test_a_pull_that_cannot_be_delivered_ends(client: Any, gateway: Any, shelf: list[bytes]) -> None:
    class Gone:
        taken = 0

        async def write(self, _: Any) -> None:
            if self.taken == 2:
                raise BrokenStream("gone")
            self.taken += 1

    service = MessagingService(gateway.processor, gateway.clock)
    with pytest.raises(BrokenStream):
        await service.pull_message(client.pull_request(), Context(client_id="c"), Gone())
    assert bodies(await client.pull()) == shelf


# -- UpdateOffset and GetOffset -----------------------------------------------------------------


@pytest.mark.usefixtures("shelf")
async def test_what_was_committed_is_told_and_received_from(client: Any) -> None:
    assert (await update(client, 3)).code == Code.OK
    answer = await get(client)
    assert (answer.status.code, answer.offset) == (Code.OK, 3)
    assert [message.body for message in await client.receive()] == [b"d", b"e"]
    assert (await get(client, group="other")).status.code == Code.OFFSET_NOT_FOUND


@pytest.mark.usefixtures("shelf")
async def test_a_position_may_go_backwards_and_what_is_held_is_not_done(client: Any) -> None:
    assert (await update(client, 5)).code == Code.OK
    assert (await update(client, 0)).code == Code.OK
    messages = await client.receive(batch_size=2)
    handles = [message.system_properties.receipt_handle for message in messages]
    assert (await get(client)).offset == 0
    await client.ack(handles[0])
    assert (await get(client)).offset == 1
    await client.ack(handles[1])
    assert (await get(client)).offset == 2


@pytest.mark.usefixtures("shelf")
@pytest.mark.parametrize("offset", [-1, 6, -(1 << 63), (1 << 63) - 1])
async def test_an_offset_outside_of_the_bounds_is_not_committed(client: Any, offset: int) -> None:
    assert (await update(client, 2)).code == Code.OK
    status = await update(client, offset)
    assert status.code == Code.ILLEGAL_OFFSET
    assert str(offset) in status.message
    assert (await get(client)).offset == 2


@pytest.mark.usefixtures("shelf")
async def test_a_group_that_never_read_the_queue_has_no_offset(client: Any, gateway: Any) -> None:
    await gateway.broker.create_group(GroupConfig("idle"))
    for group in ("idle", "unknown"):
        answer = await get(client, group=group)
        assert answer.status.code == Code.OFFSET_NOT_FOUND
        sentence = f"consumer group {group} has no offset at queue 0 of topic t on broker 'popgate'"
        assert answer.status.message == f"{sentence}: it never read it"
    assert [group.name for group in await gateway.broker.groups()] == ["idle"]


@pytest.mark.usefixtures("shelf")
@pytest.mark.parametrize(
    ("where", "code"),
    [
        ({"topic": ""}, Code.ILLEGAL_TOPIC),
        ({"topic": "unknown"}, Code.TOPIC_NOT_FOUND),
        ({"group": ""}, Code.ILLEGAL_CONSUMER_GROUP),
        ({"queue_id": -1}, Code.BAD_REQUEST),
        ({"queue_id": 1}, Code.BAD_REQUEST),
        ({"queue_id": (1 << 31) - 1}, Code.BAD_REQUEST),
        ({"broker": "other"}, Code.BAD_REQUEST),
    ],
)
async def test_positions_of_what_is_not_there_are_refused(
    client: Any, gateway: Any, where: dict[str, Any], code: int
) -> None:
    assert (await update(client, 0, **where)).code == code
    for group in (where.get("group", "g"), where.get("group", "unknown")):
        assert (await get(client, **{**where, "group": group})).status.code == code
    if "group" not in where:
        assert (await query(client, pb.BEGINNING, **where)).status.code == code
    assert [topic.name for topic in await gateway.broker.topics()] == ["t"]


async def test_a_group_that_is_not_made_on_first_use_is_not_found(town: Any) -> None:
    gateway = await town.gateway(limits=Limits(auto_create_groups=False))
    client = town.client(gateway)
    await gateway.broker.create_topic(TopicConfig("t"))
    assert (await update(client, 0)).code == Code.CONSUMER_GROUP_NOT_FOUND
    assert (await get(client)).status.code == Code.CONSUMER_GROUP_NOT_FOUND


# -- QueryOffset --------------------------------------------------------------------------------


@pytest.mark.usefixtures("shelf")
async def test_the_first_and_the_last_offset_are_told(client: Any) -> None:
    answer = await query(client, pb.BEGINNING)
    assert (answer.status.code, answer.offset) == (Code.OK, 0)
    answer = await query(client, pb.END)
    assert (answer.status.code, answer.offset) == (Code.OK, 5)
    assert (await query(client, pb.END, broker="")).offset == 5


@pytest.mark.usefixtures("shelf")
async def test_the_offset_at_a_time_is_that_of_the_first_message_stored_then_or_later(client: Any) -> None:
    stored = [frame.message.system_properties.store_timestamp for frame in (await client.pull())[1:-1]]
    for offset, at in enumerate(stored):
        assert (await query(client, pb.TIMESTAMP, at)).offset == offset
        later = Timestamp(seconds=at.seconds, nanos=at.nanos + 1)
        assert (await query(client, pb.TIMESTAMP, later)).offset == offset + 1
    for seconds, offset in ((0, 0), (-1, 0), (-(1 << 63), 0), (1 << 40, 5), ((1 << 63) - 1, 5)):
        assert (await query(client, pb.TIMESTAMP, Timestamp(seconds=seconds))).offset == offset


@pytest.mark.usefixtures("shelf")
async def test_an_offset_by_no_time_or_by_no_known_policy_is_refused(client: Any) -> None:
    answer = await query(client, pb.TIMESTAMP)
    assert (answer.status.code, answer.status.message) == (
        Code.BAD_REQUEST,
        "an offset by time needs a timestamp",
    )
    answer = await query(client, 77)
    assert answer.status.code == Code.BAD_REQUEST
    assert "no offset policy 77" in answer.status.message


async def test_a_polling_time_that_no_clock_can_wait_for_is_cut(town: Any) -> None:
    gateway = await town.gateway()
    request = town.client(gateway).pull_request(message_queue=pb.MessageQueue(topic=pb.Resource(name="t")))
    request.long_polling_timeout.CopyFrom(Duration(seconds=(1 << 63) - 1))
    poll = town.client(gateway).stream(request, None)
    await waiting(town, gateway)
    await gateway.pass_s(gateway.processor.limits.max_wait_s)
    assert kinds([frame async for frame in poll]) == ["status", "next_offset"]


async def test_an_update_at_a_topic_that_is_not_there_makes_no_group(gateway: Any, client: Any) -> None:
    update = rpc.UpdateOffsetRequest(
        group=pb.Resource(name="newcomers"), message_queue=client.queue("nowhere"), offset=0
    )
    assert (await client.call("UpdateOffset", update)).status.code == Code.TOPIC_NOT_FOUND
    await client.send_one()
    update.message_queue.CopyFrom(client.queue(queue_id=77))
    assert (await client.call("UpdateOffset", update)).status.code == Code.BAD_REQUEST
    assert await gateway.broker.groups() == []
