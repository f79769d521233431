"""Replies: to a client that waits here, to one elsewhere, to nobody."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping

import pytest

from popgate.model import StoredMessage
from popgate.wire.bodies.heartbeats import HeartbeatData
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command
from popgate.wire.messages.properties import decode_properties, encode_properties
from protocols.remoting.clients.heartbeats import Heartbeats
from protocols.remoting.produce.reply import ReplyMessageHandler
from tests.unit.processors.conftest import FakeClient
from tests.unit.protocols.remoting.conftest import ADDRESS, Caller, FakePeer, Stage

LONG, SHORT = RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2
PUSH = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
TOPIC = "DefaultCluster_REPLY_TOPIC"


@pytest.fixture
def room(stage: Stage) -> ReplyMessageHandler:
    return ReplyMessageHandler(stage.door_context)


def properties(client_id: str = "asker@1") -> str:
    told = {"CORRELATION_ID": "77", "REPLY_TO_CLIENT": client_id, "MSG_TYPE": "reply", "TTL": "3000"}
    return encode_properties(told).decode()


def reply(**more: object) -> dict[str, object]:
    return {
        "a": "makers",
        "b": TOPIC,
        "c": "TBW102",
        "d": 4,
        "e": 3,
        "f": 1,
        "g": 1_700_000_000_000,
        "h": 9,
        "i": properties(),
        **more,
    }


async def asker(stage: Stage, client_id: str = "asker@1", code: int | None = 0) -> FakePeer:
    """A client that waits; `code`: what it answers to a reply, None: nothing."""
    peer = FakePeer()
    if code is not None:
        peer.answers = lambda *_: Command(code, remark="well")
    body = HeartbeatData(client_id, ("askers",)).encode()
    await Caller(Heartbeats(stage.door_context), peer=peer).ok(RequestCode.HEART_BEAT, body=body)
    return peer


def replier(room: ReplyMessageHandler) -> Caller:
    return Caller(room, peer=FakePeer("10.2.2.2:22"), client_id="replier")


async def test_a_reply_reaches_who_waits_here(stage: Stage, room: ReplyMessageHandler) -> None:
    peer = await asker(stage)
    answer = await replier(room).ok(SHORT, reply(), b"the answer")
    assert answer.fields["queueId"] == "3"
    ((code, fields, body),) = peer.asked
    assert (code, body) == (PUSH, b"the answer")
    assert (fields["topic"], fields["producerGroup"], fields["sysFlag"]) == (TOPIC, "askers", "1")
    assert (fields["bornTimestamp"], fields["bornHost"], fields["flag"]) == (
        "1700000000000",
        "10.2.2.2:22",
        "9",
    )
    told = decode_properties(fields["properties"].encode())
    assert told["CORRELATION_ID"] == "77"
    assert told["PUSH_REPLY_TIME"] == fields["storeTimestamp"] == str(stage.clock.now_ms())


async def test_the_long_names_are_understood(stage: Stage, room: ReplyMessageHandler) -> None:
    peer = await asker(stage)
    names = {
        "a": "producerGroup",
        "b": "topic",
        "e": "queueId",
        "f": "sysFlag",
        "g": "bornTimestamp",
        "h": "flag",
        "i": "properties",
    }
    fields = {names[name]: value for name, value in reply().items() if name in names}
    await replier(room).ok(LONG, fields, b"x")
    assert len(peer.asked) == 1


async def test_a_reply_may_be_empty(stage: Stage, room: ReplyMessageHandler) -> None:
    peer = await asker(stage)
    await replier(room).ok(SHORT, reply())
    ((_, _, body),) = peer.asked
    assert body == b""


async def test_a_client_of_another_protocol_with_its_id_takes_no_reply(
    stage: Stage, room: ReplyMessageHandler
) -> None:
    """Anybody may name that id."""
    peer = await asker(stage)
    other = FakeClient("asker@1", group="others")
    stage.processor.clients.register(other)
    await replier(room).ok(SHORT, reply(), b"the answer")
    assert len(peer.asked) == 1


async def test_nobody_waits(room: ReplyMessageHandler) -> None:
    refused = await replier(room).ask(SHORT, reply(), b"x")
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "asker@1" in refused.remark


async def test_who_left_waits_no_more(stage: Stage, room: ReplyMessageHandler) -> None:
    (await asker(stage)).close()
    assert (await replier(room).ask(SHORT, reply(), b"x")).code == ResponseCode.SYSTEM_ERROR


async def test_who_refuses_a_reply(stage: Stage, room: ReplyMessageHandler) -> None:
    await asker(stage, code=1)
    refused = await replier(room).ask(SHORT, reply(), b"x")
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "asker@1" in refused.remark


async def test_who_cannot_take_a_reply(stage: Stage, room: ReplyMessageHandler) -> None:
    peer = await asker(stage)
    peer.full = True
    assert (await replier(room).ask(SHORT, reply(), b"x")).code == ResponseCode.SYSTEM_ERROR


async def test_who_is_silent_is_not_waited_for_long(stage: Stage, room: ReplyMessageHandler) -> None:
    peer = await asker(stage, code=None)
    waiting = asyncio.ensure_future(replier(room).ask(SHORT, reply(), b"x"))
    await stage.until(lambda: peer.asked)
    await stage.pass_s(3.5)
    answer = await stage.until(lambda: waiting.done() and waiting.result())
    assert isinstance(answer, Command)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert [one.cancelled() or one.done() for one in peer.open] == [True]


async def test_who_leaves_meanwhile(stage: Stage, room: ReplyMessageHandler) -> None:
    peer = await asker(stage, code=None)
    waiting = asyncio.ensure_future(replier(room).ask(SHORT, reply(), b"x"))
    await stage.until(lambda: peer.asked)
    peer.close()
    answer = await stage.until(lambda: waiting.done() and waiting.result())
    assert isinstance(answer, Command)
    assert answer.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize(
    "wrong",
    [
        {"i": ""},
        {"i": "REPLY_TO_CLIENT"},
        {"i": properties("x" * 2000)},
        {"b": None},
        {"e": "x"},
        {"f": 1 << 40},
    ],
)
async def test_replies_that_cannot_be(
    stage: Stage, room: ReplyMessageHandler, wrong: Mapping[str, object]
) -> None:
    peer = await asker(stage)
    refused = await replier(room).ask(SHORT, reply(**wrong), b"x")
    assert refused.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.MESSAGE_ILLEGAL)
    assert peer.asked == []


async def test_a_reply_that_is_too_large(stage: Stage, room: ReplyMessageHandler) -> None:
    peer = await asker(stage)
    body = bytes(stage.processor.limits.max_body_bytes + 1)
    assert (await replier(room).ask(SHORT, reply(), body)).code == ResponseCode.MESSAGE_ILLEGAL
    assert peer.asked == []


def pushed() -> StoredMessage:
    """What a broker of a cluster hands on."""
    return StoredMessage(
        TOPIC,
        "b",
        0,
        0,
        0,
        0,
        0,
        5,
        "no address",
        6,
        "10.0.0.1:10911",
        b"x",
        properties().encode(),
    )


async def test_what_a_broker_hands_on(stage: Stage, room: ReplyMessageHandler) -> None:
    assert room.push("asker@1", pushed()) is False
    peer = await asker(stage)
    taken = room.push("asker@1", pushed())
    assert inspect.isawaitable(taken)
    assert await taken
    ((_, fields, _),) = peer.asked
    assert (fields["bornHost"], fields["storeHost"]) == ("0.0.0.0:0", ADDRESS)
    peer.full = True
    assert room.push("asker@1", pushed()) is False
    peer.close()
    assert room.push("asker@1", pushed()) is False
