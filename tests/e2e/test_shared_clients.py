"""Gateways that share an embedded broker, and workers: a tool at any of them sees and reaches all clients."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from popgate.ids.message_id import make_message_id
from popgate.pb import definition_pb2 as pb
from popgate.testing.gateway import GatewayProcess, running_gateway
from popgate.testing.remoting import RemotingClient
from popgate.wire.bodies.broker_stats import decode_producers
from popgate.wire.bodies.consumer_info import (
    ConsumeResult,
    ConsumerRunningInfo,
    decode_offsets,
    decode_positions,
    encode_offsets,
)
from popgate.wire.bodies.heartbeats import (
    Connection,
    ConsumerConnection,
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
    decode_producer_connections,
)
from popgate.wire.bodies.small_bodies import MessageQueue
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import VERSION, Command
from popgate.wire.messages.records import decode_record
from tests.e2e.clients import Client
from tests.e2e.test_workers import spread
from tests.support.waiting import PATIENCE_S, until

DOORS = ("grpc://127.0.0.1:0", "remoting://127.0.0.1:0")
LONGEST_S = 2 * PATIENCE_S
"""For processes that start one after the other, and clients that become known to each of them."""
PATIENT = [
    word
    for name, value in {"startup_timeout_s": 100, "request_timeout_s": 50}.items()
    for word in ("--set", f"shared.{name}={value}")
]
QUEUE = MessageQueue("orders", "broker", 0)
GRPC = Connection("over-grpc", language="JAVA")


class Member:
    """A classic client: a producer of `makers`, a consumer of `readers`, and a tool at its own gateway."""

    def __init__(self, name: str, connection: RemotingClient) -> None:
        self.name = name
        self.call = connection.call
        self.close = connection.close
        self.consumed: list[bytes] = []
        self.next_asked = connection.next_asked
        assert connection.transport is not None
        host, port = connection.transport.get_extra_info("sockname")
        self.told = Connection(name, f"{host}:{port}", "JAVA", VERSION)
        connection.replies = self.reply

    def reply(self, command: Command) -> Command:
        """What it answers to its gateway."""
        if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            return command.answer(0, body=ConsumerRunningInfo({"who": self.name}).encode())
        if command.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
            return command.answer(0, body=encode_offsets({QUEUE: len(self.name)}, "messageQueueTable"))
        assert command.code == RequestCode.CONSUME_MESSAGE_DIRECTLY, command
        self.consumed.append(decode_record(command.body).body)
        return command.answer(0, body=ConsumeResult("CR_LATER", f"{self.name} is busy", 3).encode())

    async def ok(self, code: int, **fields: str) -> bytes:
        """What its gateway answers to a tool. Raises AssertionError for a refusal."""
        answer = await self.call(code, fields)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return answer.body


async def join(gateway: GatewayProcess, name: str, topic: str = "orders", group: str = "readers") -> Member:
    address = next(one for one in gateway.addresses if one.startswith("remoting://"))
    connection = await RemotingClient.connect("127.0.0.1", int(address.rpartition(":")[2]))
    member = Member(name, connection)
    subscription = SubscriptionData(topic, "*", version=17)
    consumers = (ConsumerData(group, (subscription,)),)
    answer = await member.call(
        RequestCode.HEART_BEAT, body=HeartbeatData(name, ("makers",), consumers).encode()
    )
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return member


@asynccontextmanager
async def two_gateways(folder: Path, *options: str) -> AsyncIterator[tuple[GatewayProcess, GatewayProcess]]:
    """One that hosts the broker, and a guest of it."""
    share = ["--share-broker", f"unix:{folder}/s", *options]
    async with running_gateway(listen=DOORS, options=share) as host:
        guest_options = ["--broker", f"popgate+unix:{folder}/s", *PATIENT, *options]
        async with running_gateway(listen=DOORS, options=guest_options) as guest:
            yield host, guest


@asynccontextmanager
async def grpc_member(gateway: GatewayProcess) -> AsyncIterator[None]:
    client = Client(gateway.endpoint, GRPC.client_id)
    call, settings = client.telemetry(pb.ClientType.PUSH_CONSUMER, "orders", "readers")
    await call.write(settings)
    assert (await call.read()).WhichOneof("command") == "settings"
    try:
        yield
    finally:
        call.cancel()
        await client.channel.close()


async def holds(condition: Any) -> None:
    """Wait until nothing that it asserts is missing: processes tell each other of clients as they come."""

    async def without_failure() -> bool:
        with contextlib.suppress(AssertionError):
            await condition()
            return True
        return False

    await until(without_failure, LONGEST_S)
    await condition()


async def check_lists(members: Sequence[Member], *others: Connection) -> None:
    """A tool at the gateway of each member is told of all of them."""
    consumers, producers = {*(one.told for one in members), *others}, {one.told for one in members}
    for tool in members:
        body = await tool.ok(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="readers")
        told = ConsumerConnection.decode(body)
        assert set(told.connections) == consumers
        assert told.subscriptions["orders"].expression == "*"
        body = await tool.ok(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="makers")
        assert set(decode_producer_connections(body)) == producers
        every = decode_producers(await tool.ok(RequestCode.GET_ALL_PRODUCER_INFO))
        assert {one.address for one, _ in every["makers"]} == {one.address for one in producers}


async def check_questions(members: Sequence[Member]) -> None:
    """Each of them is reached from the gateway of each, and asked once."""
    for member in members:
        member.consumed.clear()
    fields = {"a": "makers", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
    # The id of its place names the gateway that was sent to, and others do not know that one.
    message_id = make_message_id()
    fields |= {"i": f"UNIQ_KEY\x01{message_id}\x02", "m": "false"}
    sent = await members[0].call(RequestCode.SEND_MESSAGE_V2, fields, b"body")
    assert sent.code == ResponseCode.SUCCESS, sent.remark
    for tool in members:
        for member in members:
            who = {"consumerGroup": "readers", "clientId": member.name}
            info = await tool.ok(RequestCode.GET_CONSUMER_RUNNING_INFO, **who, jstackEnable="false")
            assert ConsumerRunningInfo.decode(info).properties["who"] == member.name
            what = {"msgId": message_id, "topic": "orders"}
            body = await tool.ok(RequestCode.CONSUME_MESSAGE_DIRECTLY, **who, **what)
            assert ConsumeResult.decode(body) == ConsumeResult("CR_LATER", f"{member.name} is busy", 3)
        where = {"topic": "orders", "group": "readers", "clientAddr": ""}
        body = await tool.ok(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, **where)
        assert decode_positions(body) == {one.name: {QUEUE: len(one.name)} for one in members}
    for member in members:
        assert member.consumed == [b"body"] * len(members)


async def check_strangers(members: Sequence[Member]) -> None:
    for tool in members:
        who = {"consumerGroup": "readers", "clientId": "nobody"}
        answer = await tool.call(RequestCode.GET_CONSUMER_RUNNING_INFO, who)
        assert (answer.code, "not online" in answer.remark) == (ResponseCode.SYSTEM_ERROR, True)


async def test_scenario_14_tools_at_host_and_guest_see_and_ask_the_same_clients(socket_folder: Path) -> None:
    async with two_gateways(socket_folder) as gateways, grpc_member(gateways[0]):
        members = [
            await join(gateway, f"{place}-{number}")
            for place, gateway in enumerate(gateways)
            for number in range(2)
        ]
        await holds(lambda: check_lists(members, GRPC))
        await holds(lambda: check_questions(members))
        await check_strangers(members)
        gone = members.pop()
        await gone.close()
        await holds(lambda: check_lists(members, GRPC))
        for gateway in gateways:
            assert "Traceback" not in gateway.log
        for member in members:
            await member.close()


async def test_scenario_14_tools_at_all_workers_see_and_ask_the_same_clients() -> None:
    async with running_gateway(listen=DOORS, options=["--workers", "2", *PATIENT]) as gateway:
        members = [await join(gateway, f"c{number}") for number in range(4)]
        await until(lambda: spread(gateway, [2, 2]), LONGEST_S)
        await holds(lambda: check_lists(members))
        await holds(lambda: check_questions(members))
        await check_strangers(members)
        assert "Traceback" not in gateway.log
        for member in members:
            await member.close()


PLACE = {"consumerGroup": "readers", "topic": "orders", "queueId": "0", "bname": "popgate"}


async def position(tool: Member) -> int:
    return int((await tool.call(RequestCode.QUERY_CONSUMER_OFFSET, PLACE)).fields["offset"])


async def test_a_reset_at_one_gateway_reaches_a_reader_at_another(socket_folder: Path) -> None:
    """And is not undone by what that reader commits before it has heard."""
    pulled = ("--set", "remoting.pulled_groups=readers")
    async with two_gateways(socket_folder, *pulled) as gateways:
        tool, reader = [await join(gateway, f"c{place}") for place, gateway in enumerate(gateways)]
        fields = {"a": "makers", "b": "orders", "e": "0", "g": "0", "h": "0", "n": "popgate"}
        for _ in range(3):
            properties = f"UNIQ_KEY\x01{make_message_id()}\x02"
            sent = await reader.call(RequestCode.SEND_MESSAGE_V2, {**fields, "i": properties}, b"body")
            assert sent.code == ResponseCode.SUCCESS, sent.remark
        assert await position(reader) == 0
        await reader.ok(RequestCode.UPDATE_CONSUMER_OFFSET, **PLACE, commitOffset="3")
        assert await position(reader) == 3

        reset = {"topic": "orders", "group": "readers", "timestamp": "0", "isForce": "true"}
        await tool.ok(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **reset)
        await reader.ok(RequestCode.UPDATE_CONSUMER_OFFSET, **PLACE, commitOffset="3")
        while (notice := await reader.next_asked()).code != RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            assert notice.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        assert decode_offsets(notice.body) == {MessageQueue("orders", "popgate", 0): 0}
        assert await position(reader) == 0
        await reader.ok(RequestCode.UPDATE_CONSUMER_OFFSET, **PLACE, commitOffset="2")
        assert await position(reader) == 2
        for member in (tool, reader):
            await member.close()


@pytest.mark.parametrize("door", DOORS)
async def test_a_gateway_with_one_door_tells_of_its_clients(socket_folder: Path, door: str) -> None:
    """Also without a remoting door a gateway answers what tools want to know elsewhere."""
    share = ["--share-broker", f"unix:{socket_folder}/s"]
    async with running_gateway(listen=DOORS, options=share) as host:
        options = ["--broker", f"popgate+unix:{socket_folder}/s", *PATIENT]
        async with running_gateway(listen=(door,), options=options) as guest:
            tool = await join(host, "tool")
            async with contextlib.AsyncExitStack() as closing:
                if door.startswith("grpc"):
                    await closing.enter_async_context(grpc_member(guest))
                    expected = GRPC
                else:
                    other = await join(guest, "other")
                    closing.push_async_callback(other.close)
                    expected = other.told

                async def is_told() -> bool:
                    body = await tool.ok(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="readers")
                    return set(ConsumerConnection.decode(body).connections) == {tool.told, expected}

                await until(is_told, LONGEST_S)
            await tool.close()
