"""Questions of operators: by way of tools at this door, and by way of the house to classic clients."""

from __future__ import annotations

import asyncio

import pytest

from popgate.context import Context
from popgate.errors import ClientNotFound, ClientTimeout, Forbidden, GatewayError, Unsupported
from popgate.groups.verdict import Verdict
from popgate.ids.message_id import decode_offset_message_id, encode_offset_message_id, make_message_id
from popgate.kinds import Action
from popgate.model import FilterKind, Message, Sent
from popgate.wire.bodies.consumer_info import (
    CLIENT_VERSION,
    ConsumeResult,
    ConsumerRunningInfo,
    encode_offsets,
)
from popgate.wire.bodies.heartbeats import ConsumerData, HeartbeatData, SubscriptionData
from popgate.wire.bodies.small_bodies import MessageQueue
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command
from popgate.wire.json_syntax import fastjson
from popgate.wire.messages.hosts import host_text
from popgate.wire.messages.records import decode_record
from processors.clients.client_registry import ClientKind
from processors.clients.query import StackQuestion
from protocols.remoting.clients.heartbeats import Heartbeats
from protocols.remoting.tools import client_queries as asking
from protocols.remoting.tools.client_queries import ClientQueryHandler
from tests.unit.processors.conftest import FakeClient
from tests.unit.protocols.remoting.conftest import ADDRESS, Caller, FakePeer, Stage

INFO, CONSUME = RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY
POSITIONS = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
WHO = {"consumerGroup": "readers", "clientId": "c@1"}


@pytest.fixture
def room(stage: Stage) -> ClientQueryHandler:
    return ClientQueryHandler(stage.door_context)


@pytest.fixture
def tool(room: ClientQueryHandler) -> Caller:
    return Caller(room, peer=FakePeer("10.9.9.9:9"))


async def client(stage: Stage, answer: Command | None) -> FakePeer:
    """A consumer; None: it answers nothing."""
    peer = FakePeer()
    if answer is not None:
        peer.answers = lambda *_: answer
    consumers = (ConsumerData("readers", (SubscriptionData("nowhere"), SubscriptionData("orders"))),)
    body = HeartbeatData("c@1", ("makers",), consumers).encode()
    await Caller(Heartbeats(stage.door_context), peer=peer).ok(RequestCode.HEART_BEAT, body=body)
    return peer


def info(stacks: str = "") -> Command:
    return Command(0, body=ConsumerRunningInfo({"PROP_CLIENT_VERSION": "V5"}, stacks=stacks).encode())


def result(word: str) -> Command:
    return Command(0, body=ConsumeResult(word, "well", 12).encode())


async def stored(stage: Stage) -> str:
    """The id of the place of a message."""
    await stage.topic("orders", queues=1)
    (sent,) = await stage.processor.send(Context(), [Message("orders", b"body", make_message_id())])
    assert isinstance(sent, Sent)
    (found,) = await stage.processor.lookup.find_by_id(Context(), "orders", sent.message_id)
    return encode_offset_message_id(found.store_host, found.commit_offset)


async def test_a_tool_gets_the_clients_own_answer(stage: Stage, tool: Caller) -> None:
    peer = await client(stage, info("a stack"))
    answer = await tool.ok(INFO, {**WHO, "jstackEnable": True})
    assert ConsumerRunningInfo.decode(answer.body).stacks == "a stack"
    assert peer.asked == [(INFO, {**WHO, "jstackEnable": "true"}, b"")]


async def test_a_tool_gets_what_is_known_of_a_client_of_another_door(stage: Stage, tool: Caller) -> None:
    handle = FakeClient("grpc", group="readers", subscriptions={"orders": (FilterKind.TAG, "a")})
    stage.processor.clients.register(handle)
    waiting = asyncio.ensure_future(
        tool.ok(INFO, {"consumerGroup": "readers", "clientId": "grpc", "jstackEnable": True})
    )
    await stage.until(lambda: handle.questions)
    handle.questions[0].answered("its stack")
    told = ConsumerRunningInfo.decode((await waiting).body)
    assert (told.stacks, told.properties[CLIENT_VERSION]) == ("its stack", "5.0.7")
    assert [one.topic for one in told.subscriptions] == ["orders"]


@pytest.mark.parametrize(
    "who",
    [
        {"consumerGroup": "readers", "clientId": "nobody"},
        {"consumerGroup": "others", "clientId": "c@1"},
        {"consumerGroup": "makers", "clientId": "c@1"},
    ],
)
async def test_who_is_not_there_is_told(stage: Stage, tool: Caller, who: dict[str, str]) -> None:
    await client(stage, info())
    for code in (INFO, CONSUME):
        refused = await tool.ask(code, {**who, "msgId": "x"})
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "not online" in refused.remark


async def test_who_is_silent_is_not_waited_for_long(stage: Stage, tool: Caller) -> None:
    peer = await client(stage, None)
    waiting = asyncio.ensure_future(tool.ask(INFO, WHO))
    await stage.until(lambda: peer.asked)
    await stage.pass_s(5.5)
    answer = await stage.until(lambda: waiting.done() and waiting.result())
    assert isinstance(answer, Command)
    assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT


async def test_who_leaves_meanwhile(stage: Stage, tool: Caller) -> None:
    peer = await client(stage, None)
    waiting = asyncio.ensure_future(tool.ask(INFO, WHO))
    await stage.until(lambda: peer.asked)
    peer.close()
    answer = await stage.until(lambda: waiting.done() and waiting.result())
    assert isinstance(answer, Command)
    assert "not online" in answer.remark


async def test_who_takes_nothing(stage: Stage, tool: Caller) -> None:
    (await client(stage, info())).full = True
    assert (await tool.ask(INFO, WHO)).code == ResponseCode.SYSTEM_BUSY


async def test_questions_have_a_bound(stage: Stage, tool: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    await client(stage, info())
    monkeypatch.setattr(asking, "MOST_OPEN", 0)
    assert (await tool.ask(INFO, WHO)).code == ResponseCode.SYSTEM_BUSY


@pytest.mark.parametrize("topic", [None, "orders"])
async def test_a_message_is_looked_up_and_handed_to_the_client(
    stage: Stage, tool: Caller, topic: str | None
) -> None:
    message_id = await stored(stage)
    peer = await client(stage, result("CR_LATER"))
    answer = await tool.ok(CONSUME, {**WHO, "msgId": message_id, "topic": topic})
    assert ConsumeResult.decode(answer.body) == ConsumeResult("CR_LATER", "well", 12)
    ((code, fields, body),) = peer.asked
    here = encode_offset_message_id(ADDRESS, decode_offset_message_id(message_id)[1])
    assert (code, fields["msgId"], fields["topic"]) == (CONSUME, here, "orders")
    assert (fields["brokerName"], fields["clientId"]) == (stage.broker.name, "c@1")
    record = decode_record(body, verify=True)
    assert (record.body, host_text(record.store_host)) == (b"body", ADDRESS)


async def test_ids_that_name_this_door_are_those_of_places_too(stage: Stage, tool: Caller) -> None:
    """As clients make them of what they pull here: the store host is told as this address."""
    _, offset = decode_offset_message_id(await stored(stage))
    peer = await client(stage, result("CR_SUCCESS"))
    await tool.ok(CONSUME, {**WHO, "msgId": encode_offset_message_id(ADDRESS, offset)})
    assert decode_record(peer.asked[0][2]).body == b"body"
    elsewhere = encode_offset_message_id("10.7.7.7:7", offset)
    assert (await tool.ask(CONSUME, {**WHO, "msgId": elsewhere})).code == ResponseCode.QUERY_NOT_FOUND


async def test_a_client_of_another_door_consumes(stage: Stage, tool: Caller) -> None:
    message_id = await stored(stage)
    handle = FakeClient("grpc", group="readers", topics=frozenset({"orders"}))
    stage.processor.clients.register(handle)
    fields = {"consumerGroup": "readers", "clientId": "grpc", "msgId": message_id}
    for verdict, word in (
        (Verdict.CONSUMED, "CR_SUCCESS"),
        (Verdict.FAILED, "CR_LATER"),
        (Verdict.CORRUPTED, "CR_THROW_EXCEPTION"),
    ):
        handle.questions.clear()
        waiting = asyncio.ensure_future(tool.ok(CONSUME, fields))
        await stage.until(lambda: handle.questions)
        handle.questions[0].answered(verdict)
        assert ConsumeResult.decode((await waiting).body).result == word


@pytest.mark.parametrize("more", [{"msgId": "AABB"}, {"msgId": "AABB", "topic": "nowhere"}, {}])
async def test_a_message_that_is_not_there(stage: Stage, tool: Caller, more: dict[str, str]) -> None:
    await stored(stage)
    peer = await client(stage, result("CR_SUCCESS"))
    refused = await tool.ask(CONSUME, {**WHO, **more})
    assert refused.code != ResponseCode.SUCCESS
    assert peer.asked == []


# -- by way of the house, as the gRPC door and the administration ask -----------------------------


async def test_the_house_asks_for_a_stack(stage: Stage) -> None:
    await client(stage, info("a stack"))
    assert await stage.processor.client_queries.stack(Context(), "c@1") == "a stack"


@pytest.mark.parametrize(
    ("word", "verdict"),
    [("CR_SUCCESS", Verdict.CONSUMED), ("CR_COMMIT", Verdict.CONSUMED), ("CR_LATER", Verdict.FAILED)],
)
async def test_the_house_has_a_message_consumed(stage: Stage, word: str, verdict: Verdict) -> None:
    message_id = await stored(stage)
    peer = await client(stage, result(word))
    told = await stage.processor.client_queries.verify(Context(), "c@1", "readers", "orders", message_id)
    assert told is verdict
    assert decode_record(peer.asked[0][2]).body == b"body"


@pytest.mark.parametrize("answer", [Command(1, remark="no stack"), Command(0, body=b"{"), Command(0)])
async def test_an_answer_that_is_none(stage: Stage, answer: Command) -> None:
    await client(stage, answer)
    with pytest.raises(GatewayError, match="c@1") as raised:
        await stage.processor.client_queries.stack(Context(), "c@1")
    assert not isinstance(raised.value, ClientTimeout | ClientNotFound)


async def test_the_house_is_told_that_a_client_left(stage: Stage) -> None:
    peer = await client(stage, None)
    waiting = asyncio.ensure_future(stage.processor.client_queries.stack(Context(), "c@1"))
    await asyncio.sleep(0)
    assert peer.asked
    peer.close()
    with pytest.raises(ClientNotFound):
        await waiting


async def test_who_stops_waiting_is_not_answered(stage: Stage) -> None:
    peer = await client(stage, None)
    waiting = asyncio.ensure_future(stage.processor.client_queries.stack(Context(), "c@1"))
    await asyncio.sleep(0)
    assert peer.asked
    waiting.cancel()
    await asyncio.wait([waiting])
    await asyncio.sleep(0)
    assert [one.cancelled() for one in peer.open] == [True]


@pytest.mark.parametrize("stacks", [False, True])
async def test_a_client_is_asked_what_it_runs_for_the_operator_of_a_cluster(
    stage: Stage, stacks: bool
) -> None:
    body = ConsumerRunningInfo({"who": "me"}).encode()
    peer = await client(stage, Command(0, body=body))
    queries = stage.processor.client_queries
    assert await queries.running_info("c@1", "readers", with_stacks=stacks) == body
    ((code, fields, _),) = peer.asked
    assert (code, fields["jstackEnable"]) == (INFO, str(stacks).lower())
    for wrong in (Command(1, remark="no"), Command(0, body=b"{")):
        peer.answers = lambda *_, wrong=wrong: wrong
        with pytest.raises(GatewayError):
            await queries.running_info("c@1", "readers", with_stacks=stacks)


async def test_producers_are_asked_nothing(stage: Stage) -> None:
    await client(stage, info("a stack"))
    (producer,) = stage.processor.clients.producers_in("makers")
    assert producer.kind is ClientKind.PRODUCER
    question = StackQuestion()
    assert producer.ask(question)
    with pytest.raises(Unsupported):
        await question.answer


async def test_what_classic_clients_cannot_be_told(stage: Stage) -> None:
    await client(stage, info())
    (consumer,) = stage.processor.clients.consumers_of("readers")
    assert not consumer.reconnect()
    assert not consumer.leave_lite("room")
    consumer.refresh()


async def test_where_the_members_of_a_group_stand(stage: Stage, tool: Caller) -> None:
    queue = MessageQueue("orders", "b", 2)
    told = Command(0, body=encode_offsets({queue: 7}, "messageQueueTable"))
    peer = await client(stage, told)
    ask = {"topic": "orders", "group": "readers", "clientAddr": ""}
    answer = await tool.ok(POSITIONS, ask)
    (positions,) = fastjson.loads(answer.body)["consumerTable"].values()
    assert {MessageQueue.of_key(key): at for key, at in positions.items()} == {queue: 7}
    assert peer.asked == [
        (RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": "orders", "group": "readers"}, b"")
    ]
    # One that tells nothing is left out.
    for wrong in (Command(1, remark="no"), Command(0, body=b"{")):
        peer.answers = lambda *_, wrong=wrong: wrong
        answer = await tool.ok(POSITIONS, {**ask, "clientAddr": "c@1"})
        assert fastjson.loads(answer.body) == {"consumerTable": {}}
    peer.full = True
    assert fastjson.loads((await tool.ok(POSITIONS, ask)).body) == {"consumerTable": {}}
    assert (await tool.ask(POSITIONS, {**ask, "clientAddr": "c@2"})).code == ResponseCode.SYSTEM_ERROR
    assert (await tool.ask(POSITIONS, {**ask, "group": "strangers"})).code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("code", [INFO, CONSUME, POSITIONS])
async def test_who_may_not_look_at_a_group_asks_no_client_of_it(
    stage: Stage, tool: Caller, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = await client(stage, info())
    asked: list[tuple[Action, str]] = []

    def refuse(_context: Context, action: Action, *, topic: str = "", group: str = "") -> None:
        asked.append((action, group))
        raise Forbidden("no")

    monkeypatch.setattr(stage.processor.command_relay, "_admit", refuse)
    fields = {**WHO, "msgId": await stored(stage), "topic": "orders", "group": "readers"}
    assert (await tool.ask(code, fields)).code == ResponseCode.NO_PERMISSION
    assert asked == [(Action.UPDATE if code == CONSUME else Action.GET, "readers")]
    assert not peer.asked
