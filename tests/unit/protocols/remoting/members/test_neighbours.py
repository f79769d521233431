"""Gateways that share a broker: tools are told the same of all clients, whichever gateway they ask."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from brokers.relay import (
    ABOUT_CLIENTS,
    AsksGateways,
    BrokerAnswer,
    CommandHandler,
    Relayed,
    relayed_fields,
)
from popgate.context import Context
from popgate.errors import BrokerTimeout, GatewayError
from popgate.groups.verdict import Verdict
from popgate.ids.message_id import encode_offset_message_id, make_message_id
from popgate.model import FilterKind, Message
from popgate.wire.bodies.broker_stats import decode_producers
from popgate.wire.bodies.consumer_info import (
    CLIENT_VERSION,
    NAME_SERVERS,
    ConsumeResult,
    ConsumerRunningInfo,
    decode_positions,
    encode_offsets,
)
from popgate.wire.bodies.heartbeats import (
    ACTIVELY,
    BROADCASTING,
    Connection,
    ConsumerConnection,
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
    decode_producer_connections,
)
from popgate.wire.bodies.small_bodies import MessageQueue
from popgate.wire.frames.codes import RequestCode as Code
from popgate.wire.frames.codes import ResponseCode
from popgate.wire.frames.remoting import Command
from popgate.wire.messages.records import decode_record
from processors.clients.client_registry import ClientKind
from processors.messaging import MessagingProcessor
from protocols.remoting.clients.heartbeats import Heartbeats
from protocols.remoting.mapped.offsets import VIRTUAL
from protocols.remoting.members.members import Members
from protocols.remoting.requests import DoorContext
from protocols.remoting.tools.broker_status import BrokerStatusHandler
from protocols.remoting.tools.client_queries import ClientQueryHandler
from protocols.schemes import command_handler
from tests.unit.processors.conftest import FakeClient
from tests.unit.protocols.remoting.conftest import ADDRESS, Caller, FakePeer, Stage

CONSUMERS, PRODUCERS = Code.GET_CONSUMER_CONNECTION_LIST, Code.GET_PRODUCER_CONNECTION_LIST
INFO, CONSUME = Code.GET_CONSUMER_RUNNING_INFO, Code.CONSUME_MESSAGE_DIRECTLY
POSITIONS = Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
SUBSCRIPTION = SubscriptionData("orders", "a || b", tags=("a", "b"), codes=(97, 98), version=17)


class Shared(AsksGateways):
    """Asks all that answer, in this process. `asked` are the codes; of `silent` places nobody answers."""

    def __init__(self) -> None:
        self.handlers: list[CommandHandler] = []
        self.asked: list[int] = []
        self.silent: set[int] = set()

    async def ask_gateways(self, context: Context, code: int, fields: Mapping[str, str]) -> Relayed:
        assert code in ABOUT_CLIENTS
        self.asked.append(code)
        answers: dict[str, BrokerAnswer] = {}
        failures: dict[str, GatewayError] = {}
        for place, handler in enumerate(self.handlers):
            if place in self.silent:
                failures[f"gateway-{place}"] = BrokerTimeout("it hangs")
            else:
                answers[f"gateway-{place}"] = await handler(code, relayed_fields(code, fields))
        return Relayed(answers, failures)

    def on_command(self, handler: CommandHandler) -> None:
        self.handlers.append(handler)


class Gateway:
    """One of those that share the broker: rooms of its door, and a tool that asks at it."""

    def __init__(self, processor: MessagingProcessor, stage: Stage, shared: Shared) -> None:
        self.processor = processor
        processor.command_relay.serve(command_handler(processor, stage.clock), shared)
        door_context = DoorContext(processor, stage.clock, lambda _context: ADDRESS)
        self.heartbeats = Heartbeats(door_context)
        rooms = ClientQueryHandler(door_context), Members(door_context), BrokerStatusHandler(door_context)
        self.tool = Caller(*rooms, peer=FakePeer("10.9.9.9:9"))

    async def join(self, name: str, *groups: str, host: str = "10.1.1.1", **how: Any) -> FakePeer:
        """A classic client, a producer of `makers` and a consumer of the groups."""
        peer = FakePeer(f"{host}:{len(name)}", language="CPP", version=493)
        consumers = tuple(ConsumerData(group, (SUBSCRIPTION,), **how) for group in groups)
        body = HeartbeatData(name, ("makers",), consumers).encode()
        await Caller(self.heartbeats, peer=peer).ok(Code.HEART_BEAT, body=body)
        return peer

    def join_grpc(self, name: str, **how: Any) -> FakeClient:
        handle = FakeClient(name, **how)
        self.processor.clients.register(handle)
        return handle


class Town:
    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.shared = Shared()
        other = MessagingProcessor(stage.broker, clock=stage.clock)
        self.a = Gateway(stage.processor, stage, self.shared)
        self.b = Gateway(other, stage, self.shared)

    async def ask(self, code: int, fields: Mapping[str, object]) -> Command:
        """What both gateways answer: it must be the same."""
        one, other = await self.a.tool.ask(code, fields), await self.b.tool.ask(code, fields)
        assert (one.code, one.remark) == (other.code, other.remark)
        return one


@pytest.fixture
async def town(stage: Stage) -> AsyncIterator[Town]:
    await stage.topic("orders", queues=1)
    await stage.group()
    town = Town(stage)
    await town.b.processor.start()
    yield town
    await town.b.processor.stop()


async def stored(stage: Stage) -> tuple[str, str]:
    """The id of a message, and that of its place, as clients are told it at the doors."""
    message_id = make_message_id()
    await stage.processor.send(Context(), [Message("orders", b"body", message_id)])
    (found,) = await stage.processor.lookup.find_by_id(Context(), "orders", message_id)
    return message_id, encode_offset_message_id(ADDRESS, found.commit_offset)


async def test_scenario_14_consumers_are_shown_alike_by_all_gateways(town: Town) -> None:
    await town.a.join("classic", "readers", consume_type=ACTIVELY, model=BROADCASTING)
    filters = {"orders": (FilterKind.TAG, "*"), "parcels": (FilterKind.SQL92, "a > 1")}
    town.b.join_grpc("a-grpc", group="readers", subscriptions=filters)
    answers = [await one.tool.ok(CONSUMERS, {"consumerGroup": "readers"}) for one in (town.a, town.b)]
    assert answers[0].body == answers[1].body
    told = ConsumerConnection.decode(answers[0].body)
    assert told.connections == (
        Connection("a-grpc", language="JAVA"),
        Connection("classic", "10.1.1.1:7", "CPP", 493),
    )
    assert told.subscriptions["orders"] == SUBSCRIPTION
    assert told.subscriptions["parcels"].kind == "SQL92"
    assert (told.consume_type, told.model) == (ACTIVELY, BROADCASTING)


async def test_a_group_reads_as_its_classic_members_say(town: Town) -> None:
    """They count before others also where nothing but how it consumes is special of them."""
    await town.a.join("classic", "readers", consume_type=ACTIVELY)
    town.b.join_grpc("a-grpc", group="readers", kind=ClientKind.PUSH_CONSUMER)
    for gateway in (town.a, town.b):
        answer = await gateway.tool.ok(CONSUMERS, {"consumerGroup": "readers"})
        assert ConsumerConnection.decode(answer.body).consume_type == ACTIVELY


async def test_a_client_that_two_gateways_have_is_shown_once_and_alike(town: Town) -> None:
    """It came back to another one, and the first has not noticed yet that it went."""
    await town.a.join("classic", "readers", host="10.1.1.1")
    town.stage.clock.advance(5)
    await town.b.join("classic", "readers", host="10.2.2.2")
    for code, fields in ((CONSUMERS, {"consumerGroup": "readers"}), (PRODUCERS, {"producerGroup": "makers"})):
        answers = [(await gateway.tool.ok(code, fields)).body for gateway in (town.a, town.b)]
        assert answers[0] == answers[1]
        assert len(decode_producer_connections(answers[0])) == 1
    for gateway in (town.a, town.b):
        every = decode_producers((await gateway.tool.ok(Code.GET_ALL_PRODUCER_INFO)).body)
        assert [(one.address, seen_ms) for one, seen_ms in every["makers"]] == [
            ("10.2.2.2:7", town.stage.clock.now_ms())
        ], "where it was heard of last"


async def test_how_a_group_reads_is_told_by_who_has_none_of_it(town: Town) -> None:
    await town.a.join("classic", "readers", consume_type=ACTIVELY, model=BROADCASTING)
    answers = [await gateway.tool.ok(CONSUMERS, {"consumerGroup": "readers"}) for gateway in (town.a, town.b)]
    assert answers[0].body == answers[1].body
    assert ConsumerConnection.decode(answers[1].body).model == BROADCASTING
    refused = await town.ask(CONSUMERS, {"consumerGroup": "strangers"})
    assert refused.code == ResponseCode.CONSUMER_NOT_ONLINE


async def test_scenario_14_producers_are_shown_alike_by_all_gateways(town: Town) -> None:
    await town.a.join("one")
    await town.b.join("two")
    town.b.join_grpc("three", kind=ClientKind.PRODUCER, topics=frozenset({"makers"}))
    expected = {
        Connection("one", "10.1.1.1:3", "CPP", 493),
        Connection("two", "10.1.1.1:3", "CPP", 493),
        Connection("three", language="JAVA"),
    }
    asked = {"producerGroup": "makers"}
    assert (await town.a.tool.ok(PRODUCERS, asked)).body == (await town.b.tool.ok(PRODUCERS, asked)).body
    for gateway in (town.a, town.b):
        answer = await gateway.tool.ok(PRODUCERS, asked)
        assert set(decode_producer_connections(answer.body)) == expected
        every = decode_producers((await gateway.tool.ok(Code.GET_ALL_PRODUCER_INFO)).body)
        assert {(one.client_id, one.address) for one, _ in every["makers"]} == {
            (one.client_id, one.address) for one in expected
        }
        assert {seen_ms for _, seen_ms in every["makers"]} == {town.stage.clock.now_ms()}
    refused = await town.ask(PRODUCERS, {"producerGroup": "strangers"})
    assert refused.remark == "the producer group[strangers] not exist"


async def test_scenario_14_a_classic_client_of_another_gateway_says_what_it_runs(town: Town) -> None:
    peer = await town.a.join("classic", "readers")
    info = ConsumerRunningInfo({NAME_SERVERS: "there:1", CLIENT_VERSION: "V4"}, stacks="a stack")
    peer.answers = lambda *_: Command(0, body=info.encode())
    who = {"consumerGroup": "readers", "clientId": "classic", "jstackEnable": True}
    told = (await town.b.tool.ok(INFO, who)).body
    assert told == info.encode(), "it came by its own gateway"
    ((code, fields, _),) = peer.asked
    assert (code, fields["clientId"], fields["jstackEnable"]) == (INFO, "classic", "true")


async def test_scenario_14_a_grpc_client_of_another_gateway_is_asked_for_its_stack(town: Town) -> None:
    handle = town.a.join_grpc("grpc", group="readers", subscriptions={"orders": (FilterKind.TAG, "a")})
    who = {"consumerGroup": "readers", "clientId": "grpc", "jstackEnable": True}
    waiting = asyncio.ensure_future(town.b.tool.ok(INFO, who))
    await town.stage.until(lambda: handle.questions)
    handle.questions[0].answered("its stack")
    told = ConsumerRunningInfo.decode((await waiting).body)
    assert (told.stacks, told.properties[CLIENT_VERSION]) == ("its stack", "5.0.7")
    assert told.properties[NAME_SERVERS] == ADDRESS, "that of the gateway that was asked"
    assert [one.topic for one in told.subscriptions] == ["orders"]


@pytest.mark.parametrize("by_place", [False, True])
async def test_scenario_14_a_client_of_another_gateway_consumes_a_message(town: Town, by_place: bool) -> None:
    ids = await stored(town.stage)
    peer = await town.a.join("classic", "readers")
    well = ConsumeResult("CR_LATER", "well", 12)
    peer.answers = lambda *_: Command(0, body=well.encode())
    who = {"consumerGroup": "readers", "clientId": "classic", "msgId": ids[by_place], "topic": "orders"}
    assert ConsumeResult.decode((await town.b.tool.ok(CONSUME, who)).body) == well
    ((code, fields, body),) = peer.asked
    assert (code, fields["msgId"], fields["topic"]) == (CONSUME, ids[True], "orders")
    assert decode_record(body, verify=True).body == b"body"


async def test_a_grpc_client_of_another_gateway_consumes_a_message(town: Town) -> None:
    message_id, _ = await stored(town.stage)
    handle = town.a.join_grpc("grpc", group="readers")
    who = {"consumerGroup": "readers", "clientId": "grpc", "msgId": message_id, "topic": "orders"}
    waiting = asyncio.ensure_future(town.b.tool.ok(CONSUME, who))
    await town.stage.until(lambda: handle.questions)
    handle.questions[0].answered(Verdict.CONSUMED)
    assert ConsumeResult.decode((await waiting).body).result == "CR_SUCCESS"


async def test_scenario_14_where_all_members_stand_is_told_by_all_gateways(town: Town) -> None:
    queue = MessageQueue("orders", town.stage.broker.name, 0)
    await stored(town.stage)
    await town.stage.processor.offsets.commit(Context(), "readers", "orders", queue.broker, 0, 1)
    peers = [await town.a.join("one", "readers"), await town.b.join("other", "readers")]
    await town.b.join("silent", "readers")
    town.b.join_grpc("grpc", group="readers")
    for peer, at in zip(peers, (7, VIRTUAL + 5), strict=True):
        told = Command(0, body=encode_offsets({queue: at}, "messageQueueTable"))
        peer.answers = lambda *_, told=told: told
    for number, gateway in enumerate((town.a, town.b), start=1):
        waiting = asyncio.ensure_future(
            gateway.tool.ok(POSITIONS, {"topic": "orders", "group": "readers", "clientAddr": ""})
        )
        await town.stage.until(lambda number=number: len(peers[1].asked) == number)
        await town.stage.pass_s(5.5)
        # A number of a mapped group is told as the place where the group is.
        assert decode_positions((await waiting).body) == {"one": {queue: 7}, "other": {queue: 1}}
        assert [len(peer.asked) for peer in peers] == [number, number], "each is asked once"
    for name, expected in (("one", {"one": {queue: 7}}), ("grpc", None), ("nobody", None)):
        answer = await town.ask(POSITIONS, {"topic": "orders", "group": "readers", "clientAddr": name})
        if expected is not None:
            assert decode_positions(answer.body) == expected
        else:
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "No Any Consumer online" in answer.remark


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (INFO, {"consumerGroup": "readers", "clientId": "c"}),
        (CONSUME, {"consumerGroup": "readers", "clientId": "c", "topic": "orders"}),
        (PRODUCERS, {"producerGroup": "makers"}),
        (POSITIONS, {"topic": "orders", "group": "readers"}),
    ],
)
async def test_who_may_be_at_a_gateway_that_does_not_answer_is_not_called_absent(
    town: Town, code: int, fields: dict[str, str]
) -> None:
    town.shared.silent.add(1)
    message_id, _ = await stored(town.stage)
    answer = await town.a.tool.ask(code, {**fields, "msgId": message_id})
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "it hangs")
    # Of who is found elsewhere as much is told as there is.
    await town.a.join("c", "readers")
    if code == PRODUCERS:
        found = decode_producer_connections((await town.a.tool.ok(code, fields)).body)
        assert [one.client_id for one in found] == ["c"]


@pytest.mark.parametrize("code", [INFO, CONSUME])
@pytest.mark.parametrize(
    "who",
    [
        {"consumerGroup": "readers", "clientId": "nobody"},
        {"consumerGroup": "others", "clientId": "classic"},
    ],
)
async def test_who_is_nowhere_is_told(town: Town, code: int, who: dict[str, str]) -> None:
    await town.a.join("classic", "readers")
    message_id, _ = await stored(town.stage)
    refused = await town.ask(code, {**who, "msgId": message_id, "topic": "orders"})
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "not online" in refused.remark


async def test_why_a_client_of_another_gateway_does_not_answer_is_told(town: Town) -> None:
    peer = await town.a.join("classic", "readers")
    who = {"consumerGroup": "readers", "clientId": "classic"}
    waiting = asyncio.ensure_future(town.b.tool.ask(INFO, who))
    await town.stage.until(lambda: peer.asked)
    await town.stage.pass_s(5.5)
    answer = await town.stage.until(lambda: waiting.done() and waiting.result())
    assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT
    peer.full = True
    assert (await town.ask(INFO, who)).code == ResponseCode.SYSTEM_BUSY


async def test_a_client_that_is_here_is_asked_here(town: Town) -> None:
    peer = await town.b.join("classic", "readers")
    peer.answers = lambda *_: Command(0, body=ConsumerRunningInfo({}).encode())
    await town.b.tool.ok(INFO, {"consumerGroup": "readers", "clientId": "classic"})
    assert (len(peer.asked), town.shared.asked) == (1, [])
