"""Look-ups by key, by the sender's id, and by place."""

from __future__ import annotations

from typing import Any

import pytest

from popgate.context import Context
from popgate.ids.message_id import decode_offset_message_id
from popgate.model import Message
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command
from popgate.wire.messages.hosts import host_text
from popgate.wire.messages.records import decode_records
from protocols.remoting.produce.send import SendHandler
from protocols.remoting.tools.lookup import LookupHandler
from tests.unit.protocols.remoting.conftest import ADDRESS, Caller, Stage

QUERY, VIEW = RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID


def fields(key: str = "k1", **more: Any) -> dict[str, object]:
    return {
        "topic": "orders",
        "key": key,
        "maxNum": 64,
        "beginTimestamp": 0,
        "endTimestamp": (1 << 63) - 1,
        **more,
    }


def bodies(answer: Command) -> list[bytes]:
    return [record.body for record in decode_records(answer.body)]


@pytest.fixture
async def caller(stage: Stage) -> Caller:
    await stage.topic()
    return Caller(LookupHandler(stage.door_context), SendHandler(stage.door_context))


async def send(stage: Stage, body: bytes, message_id: str, *keys: str) -> None:
    await stage.processor.send(Context(), [Message("orders", body, message_id, keys=keys)])


async def test_by_key_the_newest_first(stage: Stage, caller: Caller) -> None:
    for at in range(3):
        await send(stage, b"m%d" % at, f"ID{at}", "k1", f"own{at}")
        stage.clock.advance(1)
    answer = await caller.ok(QUERY, fields())
    assert bodies(answer) == [b"m2", b"m1", b"m0"]
    assert bodies(await caller.ok(QUERY, fields(maxNum=2))) == [b"m2", b"m1"]
    assert bodies(await caller.ok(QUERY, fields("own1"))) == [b"m1"]
    newest = next(iter(decode_records(answer.body)))
    assert answer.fields["indexLastUpdateTimestamp"] == str(newest.store_ms)
    assert answer.fields["indexLastUpdatePhyoffset"] == str(newest.commit_offset)
    assert host_text(newest.store_host) == ADDRESS


async def test_by_key_in_a_time(stage: Stage, caller: Caller) -> None:
    began_ms = stage.clock.now_ms()
    for at in range(3):
        await send(stage, b"m%d" % at, f"ID{at}", "k1")
        stage.clock.advance(10)
    asked = fields(beginTimestamp=began_ms + 5_000, endTimestamp=began_ms + 15_000)
    assert bodies(await caller.ok(QUERY, asked)) == [b"m1"]


@pytest.mark.parametrize("how", [{"_UNIQUE_KEY_QUERY": True}, {"indexType": "U"}])
async def test_by_the_senders_id(stage: Stage, caller: Caller, how: dict[str, Any]) -> None:
    await send(stage, b"one", "ID1", "ID2")
    await send(stage, b"two", "ID2")
    assert bodies(await caller.ok(QUERY, fields("ID2", **how))) == [b"two"]
    assert bodies(await caller.ok(QUERY, fields("ID2"))) == [b"one"]
    late = fields("ID2", beginTimestamp=stage.clock.now_ms() + 1, **how)
    assert (await caller.ask(QUERY, late)).code == ResponseCode.QUERY_NOT_FOUND


async def test_by_the_id_of_its_place(stage: Stage, caller: Caller) -> None:
    header = {"a": "makers", "b": "orders", "e": 0, "f": 0, "g": 1, "h": 0, "i": "", "n": "popgate"}
    sent = await caller.ok(RequestCode.SEND_MESSAGE_V2, header, b"body")
    host, place = decode_offset_message_id(sent.fields["msgId"])
    assert host == ADDRESS
    # Clients before 5.1 name neither topic nor broker.
    assert bodies(await caller.ok(VIEW, {"offset": place})) == [b"body"]
    assert bodies(await caller.ok(VIEW, {"offset": place, "topic": "orders", "bname": "popgate"})) == [
        b"body"
    ]
    gone = await caller.ask(VIEW, {"offset": place + 1})
    assert gone.code == ResponseCode.SYSTEM_ERROR
    assert "can not find message" in gone.remark


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"key": "unknown"}, ResponseCode.QUERY_NOT_FOUND),
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"topic": None}, ResponseCode.SYSTEM_ERROR),
        ({"key": ""}, ResponseCode.SYSTEM_ERROR),
        ({"key": " "}, ResponseCode.MESSAGE_ILLEGAL),
        ({"key": "x" * 20_000}, ResponseCode.MESSAGE_ILLEGAL),
        ({"key": "x" * 2_000, "_UNIQUE_KEY_QUERY": True}, ResponseCode.MESSAGE_ILLEGAL),
        ({"maxNum": "all"}, ResponseCode.SYSTEM_ERROR),
        ({"beginTimestamp": "then"}, ResponseCode.SYSTEM_ERROR),
        ({"endTimestamp": -1}, ResponseCode.QUERY_NOT_FOUND),
    ],
)
async def test_what_is_not_found(stage: Stage, caller: Caller, more: dict[str, Any], code: int) -> None:
    await send(stage, b"one", "ID1", "k1")
    assert (await caller.ask(QUERY, fields(**more))).code == code


@pytest.mark.parametrize("offset", [None, "x", -1, (1 << 63) - 1, 1 << 63])
async def test_places_that_are_none(caller: Caller, offset: object) -> None:
    assert (await caller.ask(VIEW, {"offset": offset})).code == ResponseCode.SYSTEM_ERROR


async def test_a_broker_that_is_not_there_has_no_messages(caller: Caller) -> None:
    answer = await caller.ask(VIEW, {"offset": 0, "bname": "elsewhere"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "elsewhere" in answer.remark


async def test_an_answer_fits_into_a_frame(stage: Stage, caller: Caller) -> None:
    for at in range(5):
        await send(stage, bytes(3_500_000), f"ID{at}", "k1")
    answer = await caller.ok(QUERY, fields())
    assert 1 <= len(bodies(answer)) < 5
    assert len(answer.body) < 13 * 1024 * 1024
