"""ReceiveMessage, AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from popgate.model import CustomizedRetry, GroupConfig, Permission, TopicConfig
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.duration_pb2 import Duration
from processors.limits import Limits
from processors.requests import Said
from tests.support.waiting import PATIENCE_S

Code = pb.Code


def kinds(frames: list[Any]) -> list[str]:
    return [frame.WhichOneof("content") for frame in frames]


def handle(message: pb.Message) -> str:
    return message.system_properties.receipt_handle


async def test_the_elements_are_status_messages_and_delivery_time_one_of_each_in_an_element(
    client: Any, gateway: Any
) -> None:
    for _ in range(3):
        await client.send_one()
    frames = await client.frames()
    assert kinds(frames) == ["status", "message", "message", "message", "delivery_timestamp"]
    assert (frames[0].status.code, frames[0].status.message) == (Code.OK, "OK")
    assert frames[-1].delivery_timestamp.ToMilliseconds() == gateway.clock.now_ms()


async def test_an_empty_receive_has_a_status_and_a_delivery_time(client: Any) -> None:
    frames = await client.frames()
    assert kinds(frames) == ["status", "delivery_timestamp"]
    assert frames[0].status.code == Code.MESSAGE_NOT_FOUND


async def test_a_failed_receive_has_a_status_and_a_delivery_time(client: Any) -> None:
    frames = await client.frames("a b")
    assert kinds(frames) == ["status", "delivery_timestamp"]
    assert frames[0].status.code == Code.ILLEGAL_TOPIC


async def test_scenario_07_a_receive_is_served_before_any_settings(client: Any, gateway: Any) -> None:
    await client.send_one()
    assert len(gateway.processor.clients) == 0
    (message,) = await client.receive()
    assert (await client.ack(handle(message))).status.code == Code.OK


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": ""}, Code.ILLEGAL_TOPIC),
        ({"group": ""}, Code.ILLEGAL_CONSUMER_GROUP),
        ({"group": "g" * 121}, Code.ILLEGAL_CONSUMER_GROUP),
        ({"group": "CID_RMQ_SYS_x"}, Code.ILLEGAL_CONSUMER_GROUP),
        ({"topic": "", "group": ""}, Code.ILLEGAL_TOPIC),
        ({"invisible_duration": Duration(seconds=9)}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_duration": Duration(seconds=-1)}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_duration": Duration(seconds=12 * 3600 + 1)}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_duration": Duration(seconds=2**40)}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"expression": "||"}, Code.ILLEGAL_FILTER_EXPRESSION),
        ({"filter": pb.FilterType.SQL, "expression": "a ="}, Code.ILLEGAL_FILTER_EXPRESSION),
        ({"filter": pb.FilterType.SQL, "expression": ""}, Code.ILLEGAL_FILTER_EXPRESSION),
        ({"wait_ms": -1}, Code.ILLEGAL_POLLING_TIME),
    ],
)
async def test_a_receive_that_breaks_a_rule_is_told_which(
    client: Any, fields: dict[str, Any], code: int
) -> None:
    await client.send_one()
    frames = await client.frames(**fields)
    assert frames[0].status.code == code, frames
    assert frames[0].status.message


async def test_old_clients_do_not_get_a_code_they_do_not_know(town: Any, gateway: Any) -> None:
    old = town.client(gateway, client_version="5.0.2")
    assert await old.receive_status(wait_ms=-1) == Code.BAD_REQUEST


@pytest.mark.parametrize(
    "fields",
    [
        {"invisible_duration": Duration(seconds=10)},
        {"invisible_duration": Duration(seconds=12 * 3600)},
        {"batch_size": 1000},
        {"batch_size": 0},
        {"batch_size": -1},
        {"expression": ""},
        {"filter": pb.FilterType.FILTER_TYPE_UNSPECIFIED},
        {"auto_renew": True, "invisible_duration": Duration(seconds=1)},
        {"attempt_id": "x" * 100},
        {"wait_ms": None},
    ],
)
async def test_a_receive_at_the_limit_is_served(client: Any, fields: dict[str, Any]) -> None:
    await client.send_one()
    assert len(await client.receive(**fields)) == 1


async def test_no_answer_has_more_than_the_limit_of_messages(client: Any) -> None:
    await client.send(*(client.message() for _ in range(40)))
    assert len(await client.receive(batch_size=1000)) == 32


async def test_a_topic_or_group_that_is_not_there_and_not_made_is_told(town: Any) -> None:
    gateway = await town.gateway(limits=Limits(auto_create_topics=False, auto_create_groups=False))
    client = town.client(gateway)
    await gateway.broker.create_group(GroupConfig("g"))
    assert await client.receive_status() == Code.TOPIC_NOT_FOUND
    await gateway.broker.create_topic(TopicConfig("t"))
    assert await client.receive_status(group="other") == Code.CONSUMER_GROUP_NOT_FOUND
    assert await client.receive_status() == Code.MESSAGE_NOT_FOUND


async def test_a_topic_that_cannot_be_read_and_a_group_that_is_switched_off_are_forbidden(
    client: Any, gateway: Any
) -> None:
    await gateway.broker.create_topic(TopicConfig("closed", permission=Permission.WRITE))
    assert await client.receive_status("closed") == Code.FORBIDDEN
    await gateway.broker.create_group(GroupConfig("off", consume_enabled=False))
    assert await client.receive_status("t", "off") == Code.FORBIDDEN


async def test_filters_are_those_of_the_request(client: Any) -> None:
    await client.send_one(tag="A", body=b"a")
    await client.send_one(tag="B", body=b"b", properties={"size": "7"})
    assert [m.body for m in await client.receive(expression="B || C")] == [b"b"]
    sql = {"filter": pb.FilterType.SQL, "expression": "size > 5 AND TAGS = 'B'"}
    assert [m.body for m in await client.receive(group="h", **sql)] == [b"b"]


async def test_a_push_consumer_subscribes_to_a_tag_of_10_kb(client: Any) -> None:
    tag = "t" * 10_000
    await client.send_one(tag=tag, body=b"mine")
    await client.send_one(tag=tag + "u", body=b"another's")
    settings = client.subscribing()
    settings.subscription.subscriptions[0].expression.expression = tag
    stream = await client.introduce(settings)
    assert stream.settings.subscription.subscriptions[0].expression.expression == tag
    received = await client.receive(expression=tag, auto_renew=True)
    assert [message.body for message in received] == [b"mine"]


async def test_scenario_25_a_poll_shorter_than_five_seconds_waits_as_long_as_asked_and_no_longer(
    town: Any,
) -> None:
    gateway = await town.gateway(real_time=True)
    client = town.client(gateway)
    frames = await client.frames(wait_ms=30)
    assert frames[0].status.code == Code.MESSAGE_NOT_FOUND


@pytest.mark.parametrize("wait_ms", [60_000, None])
@pytest.mark.parametrize(
    ("language", "remaining", "margin"), [("RUST", 60.0, 1.0), ("JAVA", 60.0, 0.25), ("JAVA", 1.0, 0.2)]
)
async def test_scenario_25_an_empty_poll_is_answered_before_the_clients_deadline(
    town: Any, wait_ms: int | None, language: str, remaining: float, margin: float
) -> None:
    # As the Rust client does it: the deadline is the polling time, with no margin.
    gateway = await town.gateway(limits=town.for_long)
    client = town.client(gateway, language=language, client_version="5.0.0")
    request = client.receive_request(wait_ms=wait_ms)
    poll = asyncio.ensure_future(client.frames_within(gateway, remaining, request))
    await gateway_waits(gateway)
    await gateway.pass_s(remaining - margin - 0.001)
    assert not poll.done()
    await gateway.pass_s(0.002)
    frames = await poll
    assert kinds(frames) == ["status", "delivery_timestamp"]
    assert frames[0].status.code == Code.MESSAGE_NOT_FOUND


async def test_scenario_25_the_deadline_of_a_poll_is_that_of_its_call(town: Any) -> None:
    # The gateway's time is moved by hand, the client's deadline is of this machine's: both begin together.
    gateway = await town.gateway(limits=town.for_long)
    client = town.client(gateway, language="RUST", client_version="5.0.0")
    poll = asyncio.ensure_future(client.frames(wait_ms=None, timeout=60.0))
    await gateway_waits(gateway)
    await gateway.pass_s(1.0)
    assert gateway.processor.figures()["waiting_receives"] == 1
    await gateway.pass_s(59.0)
    assert (await poll)[0].status.code == Code.MESSAGE_NOT_FOUND


def go_settings(client: Any, wait: Duration | None) -> pb.Settings:
    settings = client.subscribing(pb.ClientType.SIMPLE_CONSUMER)
    settings.request_timeout.FromSeconds(3)
    if wait is not None:
        settings.subscription.long_polling_timeout.CopyFrom(wait)
    return settings


async def ends_at(gateway: Any, poll: asyncio.Future[Any], seconds: float) -> None:
    """The poll is answered as empty when so much time is over, and not 1 ms before."""
    await gateway_waits(gateway)
    await gateway.pass_s(seconds - 0.001)
    assert not poll.done()
    await gateway.pass_s(0.002)
    frames = await asyncio.wait_for(poll, PATIENCE_S)
    assert frames[0].status.code == Code.MESSAGE_NOT_FOUND


@pytest.mark.parametrize("listen", ["grpc://127.0.0.1:0", "grpc://127.0.0.1:0?transport=grpcio"])
@pytest.mark.parametrize("seconds", [5, 1])
async def test_a_poll_that_names_no_time_takes_that_of_the_settings(
    town: Any, listen: str, seconds: int
) -> None:
    """Go's simple consumer: its deadline is the time of its settings and 3 s more (7.8 s were waited)."""
    gateway = await town.gateway(listen=listen)
    client = town.client(gateway, language="GO", client_version="5.1.4")
    await client.introduce(go_settings(client, Duration(seconds=seconds)))
    request = client.receive_request(wait_ms=None)
    within = client.frames_within(gateway, seconds + 3.0, request)
    await ends_at(gateway, asyncio.ensure_future(within), seconds)
    called = asyncio.ensure_future(client.frames(wait_ms=None, timeout=3600.0))
    await ends_at(gateway, called, seconds)


@pytest.mark.parametrize(
    "wait", [None, Duration(), Duration(seconds=-5), Duration(seconds=2**40)], ids=["none", "0", "-5", "huge"]
)
async def test_a_poll_without_any_time_ends_with_its_deadline(
    town: Any, gateway: Any, wait: Duration | None
) -> None:
    """Go sends 0 of a user who chose no time: answered at once, its loop would not rest."""
    client = town.client(gateway, language="GO")
    await client.introduce(go_settings(client, wait))
    within = client.frames_within(gateway, 3.0, client.receive_request(wait_ms=None))
    await ends_at(gateway, asyncio.ensure_future(within), 2.75)


async def test_a_poll_waits_to_its_deadline_where_the_settings_went_elsewhere(
    town: Any, gateway: Any
) -> None:
    client = town.client(gateway, language="GO")
    await client.introduce(go_settings(client, Duration(seconds=5)))
    beside = await town.gateway(beside=gateway)
    within = client.frames_within(beside, 8.0, client.receive_request(wait_ms=None))
    await ends_at(beside, asyncio.ensure_future(within), 7.75)


async def test_the_time_of_the_settings_outlives_their_stream(town: Any, gateway: Any) -> None:
    client = town.client(gateway, language="GO")
    stream = await client.introduce(go_settings(client, Duration(seconds=5)))
    stream.cancel()
    known = gateway.processor.clients
    await town.until(lambda: not known.get("client-1").alive)
    within = client.frames_within(gateway, 8.0, client.receive_request(wait_ms=None))
    await ends_at(gateway, asyncio.ensure_future(within), 5.0)


async def test_the_time_of_a_poll_counts_before_that_of_the_settings(town: Any, gateway: Any) -> None:
    client = town.client(gateway)
    await client.introduce(go_settings(client, Duration(seconds=5)))
    within = client.frames_within(gateway, 8.0, client.receive_request(wait_ms=2_000))
    await ends_at(gateway, asyncio.ensure_future(within), 2.0)


@pytest.mark.parametrize("timeout", [None, 21_900 * 86_400.0])
async def test_no_deadline_and_one_in_years_are_both_fine(client: Any, gateway: Any, timeout: Any) -> None:
    polling = asyncio.ensure_future(client.frames(wait_ms=5_000, timeout=timeout))
    await gateway_waits(gateway)
    await gateway.pass_s(4)
    await client.send_one()
    frames = await polling
    assert kinds(frames) == ["status", "message", "delivery_timestamp"]


async def gateway_waits(gateway: Any, count: int = 1) -> None:
    async with asyncio.timeout(60):
        while gateway.processor.figures()["waiting_receives"] < count:
            await asyncio.sleep(0.001)


async def test_a_waiting_receive_gets_a_message_that_comes(client: Any, gateway: Any) -> None:
    await client.route()
    polling = asyncio.ensure_future(client.receive(wait_ms=20_000))
    await gateway_waits(gateway)
    await client.send_one(body=b"late")
    assert [m.body for m in await polling] == [b"late"]


async def test_large_receives_count_as_long_as_they_wait(town: Any) -> None:
    """Their attempt ids may have some megabytes. Small ones wait without a limit of bytes."""
    gateway = await town.gateway(limits=Limits(connection_bytes=4 << 20))
    client, budgets = town.client(gateway), gateway.processor.budgets
    await client.route()
    waiting = []
    for count, size in enumerate((10_000, 3 << 20), 1):
        request = client.receive_request(wait_ms=20_000, attempt_id="x" * size)
        waiting.append(client.stream(request))
        await gateway_waits(gateway, count)
    assert 3 << 20 <= budgets.used < (3 << 20) + 1_000
    assert await client.receive_status(attempt_id="x" * (2 << 20)) == Code.TOO_MANY_REQUESTS
    assert await client.receive_status(attempt_id="x" * 10_000) == Code.MESSAGE_NOT_FOUND
    for call in waiting:
        call.cancel()
    await town.until(lambda: not budgets.used)


async def test_scenario_03_a_cancelled_receive_takes_nothing_with_it(town: Any, gateway: Any) -> None:
    client, other = town.client(gateway), town.client(gateway, client_id="client-2")
    await gateway.broker.create_group(GroupConfig("g", max_attempts=1))
    for cancelled in range(3):
        call = client.stream(client.receive_request(wait_ms=20_000))
        await gateway_waits(gateway)
        call.cancel()
        await town.until(lambda: gateway.processor.figures()["waiting_receives"] == 0)
        await other.send_one(body=b"%d" % cancelled)
        (message,) = await other.receive()
        assert message.system_properties.delivery_attempt == 1
        await other.ack(handle(message))


async def test_scenario_03_what_could_not_be_delivered_is_there_again_and_no_attempt_is_counted(
    town: Any, gateway: Any
) -> None:
    client, other = town.client(gateway), town.client(gateway, client_id="client-2")
    await gateway.broker.create_group(GroupConfig("g", max_attempts=1))
    # Far more than fits into the buffers of a connection that nobody reads.
    for n in range(12):
        await client.send_one(body=b"%02d" % n + bytes(2 * 1024 * 1024))
    call = client.stream(client.receive_request(batch_size=12))
    first = await call.read()
    assert first.status.code == Code.OK
    got = await call.read()
    call.cancel()

    async def rest() -> list[pb.Message]:
        return await other.receive(batch_size=1)

    seen = {got.message.body[:2]}
    deadline = asyncio.get_running_loop().time() + 60
    while len(seen) < 8:
        assert asyncio.get_running_loop().time() < deadline, f"only {len(seen)} came back"
        for message in await rest():
            assert message.system_properties.delivery_attempt == 1
            seen.add(message.body[:2])
            await other.ack(handle(message))
        await asyncio.sleep(0.02)


async def test_an_acknowledged_message_does_not_come_back(client: Any, gateway: Any) -> None:
    await client.send_one()
    (message,) = await client.receive()
    message_id = message.system_properties.message_id
    answer = await client.ack(handle(message), message_id=message_id)
    assert answer.status.code == Code.OK
    (entry,) = answer.entries
    assert (entry.message_id, entry.receipt_handle) == (message_id, handle(message))
    assert entry.status.code == Code.OK
    await gateway.pass_s(60)
    assert await client.receive() == []


async def test_a_second_acknowledgement_is_ok(client: Any) -> None:
    await client.send_one()
    (message,) = await client.receive()
    for _ in range(2):
        assert (await client.ack(handle(message))).status.code == Code.OK


@pytest.mark.parametrize(
    "bad", ["", "garbage", "1 2 3", "a b c d e f g h", "0 1 1 0 0 other 0 0 0", "x" * 1000, "\u0000"]
)
async def test_a_malformed_handle_is_an_invalid_handle_everywhere(client: Any, bad: str) -> None:
    await client.send_one()
    await client.receive()
    assert (await client.ack(bad)).status.code == Code.INVALID_RECEIPT_HANDLE
    assert (await client.change(bad, 5)).status.code == Code.INVALID_RECEIPT_HANDLE
    assert (await dead_letter(client, bad)).status.code == Code.INVALID_RECEIPT_HANDLE


async def dead_letter(client: Any, bad: str) -> Any:
    request = rpc.ForwardMessageToDeadLetterQueueRequest(
        topic=pb.Resource(name="t"), group=pb.Resource(name="g"), receipt_handle=bad
    )
    return await client.call("ForwardMessageToDeadLetterQueue", request)


async def test_scenario_04_an_expired_handle_is_told_and_finishes_nothing(client: Any, gateway: Any) -> None:
    await client.send_one()
    (message,) = await client.receive()
    await gateway.pass_s(31)
    answer = await client.ack(handle(message))
    assert answer.status.code == Code.INVALID_RECEIPT_HANDLE
    refused = await client.change(handle(message), 5)
    assert refused.status.code == Code.INVALID_RECEIPT_HANDLE
    # Clients put the answer's handle in the place of theirs, whatever the status.
    assert refused.receipt_handle == handle(message)
    assert (await dead_letter(client, handle(message))).status.code == Code.INVALID_RECEIPT_HANDLE
    (again,) = await client.receive()
    assert again.system_properties.delivery_attempt == 2


async def test_of_mixed_handles_each_has_its_own_status(client: Any) -> None:
    await client.send_one()
    (message,) = await client.receive()
    answer = await client.ack(handle(message), "garbage")
    assert answer.status.code == Code.MULTIPLE_RESULTS
    assert [e.status.code for e in answer.entries] == [Code.OK, Code.INVALID_RECEIPT_HANDLE]
    answer = await client.ack("garbage", "rubbish")
    assert answer.status.code == Code.INVALID_RECEIPT_HANDLE


async def test_an_acknowledgement_of_nothing_is_refused(client: Any) -> None:
    assert 40000 <= (await client.ack()).status.code < 50000


@pytest.mark.parametrize(("topic", "group", "code"), [("", "g", 40002), ("t", "", 40003), ("", "", 40002)])
async def test_names_are_checked_topic_first(client: Any, topic: str, group: str, code: int) -> None:
    assert (await client.ack("x", topic=topic, group=group)).status.code == code
    assert (await client.change("x", 5, topic, group)).status.code == code


async def test_a_changed_invisible_time_counts_from_now_and_both_handles_go_on_working(
    client: Any, gateway: Any
) -> None:
    await client.send_one()
    (message,) = await client.receive()
    answer = await client.change(handle(message), 5)
    assert answer.status.code == Code.OK
    assert answer.receipt_handle
    await gateway.pass_s(4)
    assert await client.receive() == []
    await gateway.pass_s(2)
    (message,) = await client.receive()
    assert message.system_properties.delivery_attempt == 2
    renewed = await client.change(handle(message), 300)
    await gateway.pass_s(100)
    assert (await client.ack(renewed.receipt_handle)).status.code == Code.OK
    assert (await client.ack(handle(message))).status.code == Code.OK
    await gateway.pass_s(300)
    assert await client.receive() == []


@pytest.mark.parametrize("seconds", [-1, 12 * 3600 + 1])
async def test_a_change_to_an_impossible_time_is_refused(client: Any, seconds: int) -> None:
    await client.send_one()
    (message,) = await client.receive()
    assert (await client.change(handle(message), seconds)).status.code == Code.ILLEGAL_INVISIBLE_TIME
    assert (await client.change(handle(message), 12 * 3600)).status.code == Code.OK


async def test_a_change_to_0_gives_the_message_back_at_once(client: Any) -> None:
    await client.send_one()
    (message,) = await client.receive()
    assert (await client.change(handle(message), 0)).status.code == Code.OK
    (again,) = await client.receive()
    assert again.system_properties.delivery_attempt == 2


@pytest.mark.parametrize(("language", "asked"), [("HTTP", 0), ("NODE_JS", 0), ("NODE_JS", 0.01)])
async def test_a_push_consumer_of_node_that_gives_up_gets_its_groups_rest(
    town: Any, gateway: Any, language: str, asked: float
) -> None:
    retry = CustomizedRetry((1_000, 7_000), first_step=0)
    await gateway.broker.create_group(GroupConfig("g", retry=retry))
    client = town.client(gateway, language=language)
    stream = await client.introduce(client.subscribing())
    assert stream.settings.backoff_policy.WhichOneof("strategy") == "exponential_backoff"
    await client.send_one()
    for attempt, rest in ((1, 1), (2, 7)):
        (message,) = await client.receive(auto_renew=True)
        assert message.system_properties.delivery_attempt == attempt
        assert (await client.change(handle(message), asked)).status.code == Code.OK
        await gateway.pass_s(rest - 0.5)
        assert await client.receive() == []
        await gateway.pass_s(1)


async def test_a_simple_consumer_of_node_gets_what_its_user_asked_for(town: Any, gateway: Any) -> None:
    client = town.client(gateway, language="NODE_JS")
    await client.introduce(client.subscribing(pb.ClientType.SIMPLE_CONSUMER))
    await client.send_one()
    (message,) = await client.receive()
    assert (await client.change(handle(message), 0)).status.code == Code.OK
    assert len(await client.receive()) == 1


async def test_attempts_that_are_used_up_end_in_the_dead_letters(client: Any, gateway: Any) -> None:
    await gateway.broker.create_group(GroupConfig("g", max_attempts=2))
    entry = await client.send_one(body=b"poison", properties={"k": "v"})
    for attempt in (1, 2):
        (message,) = await client.receive()
        assert message.system_properties.delivery_attempt == attempt
        await gateway.pass_s(31)
    assert await client.receive() == []
    (dead,) = await client.receive("%DLQ%g", "undertaker")
    assert (dead.body, dead.system_properties.message_id) == (b"poison", entry.message_id)
    assert dict(dead.user_properties) == {"k": "v"}
    origin = dead.system_properties.dead_letter_queue
    assert (origin.topic, origin.message_id) == ("t", entry.message_id)


async def test_a_message_is_sent_to_the_dead_letters_on_request(client: Any, gateway: Any) -> None:
    await client.send_one(body=b"poison")
    (message,) = await client.receive()
    assert (await dead_letter(client, handle(message))).status.code == Code.OK
    await gateway.pass_s(31)
    assert await client.receive() == []
    (dead,) = await client.receive("%DLQ%g", "undertaker")
    assert dead.body == b"poison"


async def test_a_delivery_tells_for_how_long_it_is_hidden(client: Any) -> None:
    await client.send_one()
    (message,) = await client.receive(invisible_duration=Duration(seconds=41, nanos=5_000_000))
    told = message.system_properties
    assert told.invisible_duration.ToMilliseconds() == 41_005


async def test_what_a_client_says_of_a_delivery_beside_its_handle_is_kept_for_operators(
    client: Any, gateway: Any
) -> None:
    """Every field that does not say which delivery it is, and every RPC that has one."""
    stream = await client.introduce(client.subscribing())
    await client.send_one()
    (message,) = await client.receive()
    names: Any = {"topic": pb.Resource(name="t"), "group": pb.Resource(name="g")}
    common: Any = {**names, "message_id": "m", "lite_topic": "l"}
    # Without its mark, so that nothing is compared.
    receipt = handle(message).rpartition(" ")[0]
    answer = await client.call(
        "ChangeInvisibleDuration",
        rpc.ChangeInvisibleDurationRequest(
            receipt_handle=receipt, invisible_duration=Duration(seconds=30), **common
        ),
    )
    last = gateway.processor.clients.last_settled
    assert (answer.status.code, last("client-1").what) == (Code.OK, "change_invisible")
    assert last("client-1").said == Said("m", "l")
    entry = rpc.AckMessageEntry(receipt_handle="none", message_id="n", lite_topic="k")
    await client.call("AckMessage", rpc.AckMessageRequest(entries=[entry], **names))
    assert (last("client-1").what, last("client-1").answer) == ("ack", "ILLEGAL_RECEIPT")
    assert last("client-1").said == Said("n", "k")
    request = rpc.ForwardMessageToDeadLetterQueueRequest(
        receipt_handle=answer.receipt_handle, delivery_attempt=7, max_delivery_attempts=5, **common
    )
    answer = await client.call("ForwardMessageToDeadLetterQueue", request)
    assert (answer.status.code, last("client-1").what) == (Code.OK, "dead_letter")
    assert (last("client-1").said, last("client-1").answer) == (Said("m", "l", 7, 5), "OK")
    stream.cancel()


async def test_scenario_02_a_repeated_ordered_receive_gets_the_same_again_and_another_gets_nothing(
    client: Any, gateway: Any
) -> None:
    await gateway.broker.create_group(GroupConfig("o", ordered=True))
    for n in range(2):
        await client.send_one(body=b"%d" % n, message_group="a")
    first = await client.receive(group="o", attempt_id="one", batch_size=1)
    again = await client.receive(group="o", attempt_id="one", batch_size=1)
    assert [m.body for m in first] == [m.body for m in again] == [b"0"]
    assert [handle(m) for m in first] == [handle(m) for m in again]
    assert again[0].system_properties.delivery_attempt == 1
    assert await client.receive(group="o", attempt_id="two") == []
    await client.ack(handle(first[0]), group="o")
    assert [m.body for m in await client.receive(group="o", attempt_id="two")] == [b"1"]


@pytest.mark.parametrize(("language", "most"), [("JAVA", 4), ("GO", 1)])
async def test_go_never_gets_two_messages_of_one_message_group_together(
    town: Any, gateway: Any, language: str, most: int
) -> None:
    await gateway.broker.create_group(GroupConfig("o", ordered=True))
    client = town.client(gateway, language=language)
    for n in range(4):
        await client.send_one(body=b"%d" % n, message_group="a")
    assert len(await client.receive(group="o")) == most


async def test_scenario_01_a_handle_is_good_at_every_replica_also_when_the_first_is_gone(
    town: Any, gateway: Any
) -> None:
    other = await town.gateway(beside=gateway)
    here, there = town.client(gateway), town.client(other)
    for _ in range(3):
        await here.send_one()
    first, second, third = await here.receive(auto_renew=True)
    renewed = await there.change(handle(first), 100)
    assert renewed.status.code == Code.OK
    await gateway.stop()
    assert (await there.ack(handle(first))).status.code == Code.OK
    assert (await there.ack(handle(second))).status.code == Code.OK
    assert (await dead_letter(there, handle(third))).status.code == Code.OK
    await other.pass_s(3600)
    assert await there.receive() == []


async def test_a_namespace_comes_back_as_the_client_sent_it(client: Any) -> None:
    await client.send_one()
    request = client.receive_request()
    request.message_queue.topic.resource_namespace = "ns"
    (message,) = [frame.message async for frame in client.stream(request) if frame.HasField("message")]
    assert message.topic == pb.Resource(resource_namespace="ns", name="t")


LIMIT = 4 * 1024 * 1024


@pytest.mark.parametrize("language", ["HTTP", "NODE_JS", "RUST", "DOTNET"])
async def test_what_a_client_cannot_receive_fails_its_attempt_and_keeps_nothing_else_back(
    client: Any, gateway: Any, language: str
) -> None:
    small_client = client.like(language=language, client_id="client-2")
    for body in (b"before", b"x" * LIMIT, b"y" * (LIMIT - 65_536), b"after"):
        await client.send_one(body=body)
    found = await small_client.receive()
    assert sorted(len(one.body) for one in found) == [5, 6, LIMIT - 65_536]
    await small_client.ack(*map(handle, found))
    assert await small_client.receive() == [], "it is not there again at once"
    await gateway.pass_s(10)  # the first rest of the group's policy
    assert await small_client.receive() == []
    await gateway.pass_s(30)  # the second one
    (large,) = await client.receive()
    assert (len(large.body), large.system_properties.delivery_attempt) == (LIMIT, 3)


async def test_what_nobody_can_receive_ends_among_the_dead_letters(client: Any, gateway: Any) -> None:
    await gateway.broker.create_group(GroupConfig("g", max_attempts=2))
    await client.send_one(body=b"x" * LIMIT)
    rust = client.like(language="RUST", client_id="client-2")
    assert [frame.status.code for frame in (await rust.frames())[:1]] == [Code.OK]
    await gateway.pass_s(10)
    await rust.receive()
    await gateway.pass_s(30)
    assert await rust.receive() == []
    (dead,) = await client.receive("%DLQ%g", "g2")
    assert len(dead.body) == LIMIT


async def test_a_client_without_that_limit_gets_the_largest_body(client: Any) -> None:
    await client.send_one(body=b"x" * LIMIT)
    (message,) = await client.receive()
    assert len(message.body) == LIMIT
