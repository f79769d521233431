"""protocols.remoting.door: one table of all rooms, who signs a request, and what it is about."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Mapping
from typing import Any

import pytest

from popgate.clock import SystemClock
from popgate.context import Context
from popgate.errors import Unauthenticated
from popgate.kinds import NO_CREDENTIALS
from popgate.wire.frames.codes import RequestCode
from popgate.wire.frames.remoting import Command
from popgate.wire.frames.signature import UNIQUE_KEY_QUERY, V4_9_3, sign, signature
from protocols.remoting.door import Door, credentials_in, names_of
from protocols.remoting.requests import DoorContext, Handler, Request
from tests.unit.protocols.remoting.conftest import FakePeer


class Room:
    def __init__(self, *codes: int) -> None:
        self._codes = codes
        self.drained = 0

    def handlers(self) -> Mapping[int, Handler]:
        return dict.fromkeys(self._codes, self.serve)

    def drain(self) -> None:
        self.drained += 1

    async def serve(self, request: Request) -> Command:
        return request.answer()


def door_context() -> DoorContext:
    return DoorContext(None, SystemClock(), lambda _context: "")  # type: ignore[arg-type]


def test_every_room_serves_its_codes_and_is_told_of_a_drain() -> None:
    rooms = Room(1, 2), Room(3)
    door = Door(door_context(), rooms)

    door.drain()

    assert [code for code in range(5) if door.serves(code)] == [1, 2, 3]
    assert [room.drained for room in rooms] == [1, 1]


def test_no_two_rooms_serve_the_same_code() -> None:
    with pytest.raises(ValueError, match="two rooms serve the request code 2"):
        Door(door_context(), (Room(1, 2), Room(2)))


def asks(code: int, group: str, topic: str = "orders") -> Request:
    fields = {"consumerGroup": group, "topic": topic, "queueId": "0"}
    return Request(Command(code, 1, fields=fields), Context(), FakePeer())


class SlowPositions(Room):
    """Sets positions when it is told to, and answers in the order in which it is done."""

    def __init__(self) -> None:
        super().__init__(RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.QUERY_CONSUMER_OFFSET)
        self.open = asyncio.Event()
        self.done: list[str] = []

    async def serve(self, request: Request) -> Command:
        code, group = RequestCode(request.command.code), request.fields["consumerGroup"]
        if code is RequestCode.UPDATE_CONSUMER_OFFSET:
            await self.open.wait()
        self.done.append(f"{code.name} {group}")
        return request.answer()


async def test_who_asks_for_a_position_waits_for_what_was_told_before() -> None:
    positions = SlowPositions()
    door = Door(door_context(), (positions,))
    told = [asyncio.create_task(door.serve(asks(RequestCode.UPDATE_CONSUMER_OFFSET, "a"))) for _ in range(2)]
    # Tasks begin in the order in which they are made.
    asked = [
        asyncio.create_task(door.serve(asks(RequestCode.QUERY_CONSUMER_OFFSET, group))) for group in "ab"
    ]
    other = asyncio.create_task(door.serve(asks(RequestCode.QUERY_CONSUMER_OFFSET, "a", "others")))

    await asyncio.gather(asked[1], other)
    assert positions.done == ["QUERY_CONSUMER_OFFSET b", "QUERY_CONSUMER_OFFSET a"]
    assert not asked[0].done()

    positions.open.set()
    await asyncio.gather(*told, asked[0])
    assert positions.done[2:] == ["UPDATE_CONSUMER_OFFSET a"] * 2 + ["QUERY_CONSUMER_OFFSET a"]
    await door.serve(asks(RequestCode.QUERY_CONSUMER_OFFSET, "a"))


async def test_the_door_of_the_house_serves_what_clients_send(stage: Any) -> None:
    door = Door(stage.door_context)

    missing = [
        code.name
        for code in (
            *(RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE),
            *(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.HEART_BEAT),
            *(RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET),
            *(RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_CONSUMER_LIST_BY_GROUP),
            *(RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.END_TRANSACTION, RequestCode.LOCK_BATCH_MQ),
            *(RequestCode.POP_MESSAGE, RequestCode.ACK_MESSAGE, RequestCode.UNREGISTER_CLIENT),
        )
        if not door.serves(code)
    ]

    assert not missing


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, ("", "")),
        ({"topic": "t", "consumerGroup": "g"}, ("t", "g")),
        ({"a": "producers", "b": "t"}, ("t", "")),
        ({"topic": "t", "producerGroup": "producers"}, ("t", "")),
        ({"originTopic": "t", "group": "g"}, ("t", "g")),
    ],
)
def test_what_a_request_is_about(fields: dict[str, str], names: tuple[str, str]) -> None:
    assert names_of(fields) == names


@pytest.mark.parametrize("version", [V4_9_3, V4_9_3 + 1])
def test_the_signature_of_a_request_is_that_of_its_fields_and_its_body(version: int) -> None:
    fields = {"topic": "t", UNIQUE_KEY_QUERY: "true"}
    # Older clients leave it out.
    signed = {"topic": "t"} if version == V4_9_3 else fields
    fields = {**fields, **sign(signed, b"body", "key", "secret", "token")}

    found = credentials_in(Command(10, fields=fields, body=b"body", version=version))

    parts = {name: value for name, value in fields.items() if version > V4_9_3 or name != UNIQUE_KEY_QUERY}
    assert (found.access_key, found.token) == ("key", "token")
    assert found.signature == b64decode(signature(parts, b"body", "secret"))
    values = [value for name, value in sorted(parts.items()) if name != "Signature"]
    assert found.signed == "".join(values).encode() + b"body"


def test_the_vector_of_a_signature_is_proved() -> None:
    """Source: protocol facts 10."""
    fields = {"topic": "T", "queueId": "0", "AccessKey": "AK", "Signature": "qSsWxUbylmF/qK5mslhlpsg25EI="}

    found = credentials_in(Command(10, fields=fields, body=b"body"))

    assert (found.access_key, found.signed) == ("AK", b"AK0Tbody")
    assert found.proves("SECRET")
    assert not found.proves("secret")


@pytest.mark.parametrize("fields", [{"topic": "t"}, {"AccessKey": ""}, {"Signature": "MQ=="}])
def test_who_signs_nothing_offers_nothing(fields: dict[str, str]) -> None:
    assert credentials_in(Command(10, fields=fields)) is NO_CREDENTIALS


def test_a_key_without_a_signature_proves_nothing() -> None:
    found = credentials_in(Command(10, fields={"AccessKey": "key"}))

    assert (found.access_key, found.signature) == ("key", b"")
    assert not found.proves("")


@pytest.mark.parametrize("fields", [{"Signature": "%"}, {"Signature": "MQ==", "topic": "\ud800"}])
def test_a_signature_that_is_none(fields: dict[str, str]) -> None:
    with pytest.raises(Unauthenticated):
        credentials_in(Command(10, fields={"AccessKey": "key", **fields}))
