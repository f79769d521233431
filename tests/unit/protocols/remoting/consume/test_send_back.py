"""What was pulled and could not be processed: it comes again, or is a dead letter."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from popgate.context import Context
from popgate.errors import GatewayError
from popgate.ids.message_id import encode_offset_message_id, make_message_id
from popgate.kinds import Principal, ResourceKind
from popgate.model import Message, Sent, StoredMessage
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.messages.properties import find_property
from processors.policies.registry import Policies
from processors.requests import Pull
from protocols.remoting.consume.send_back import SendBackHandler
from tests.unit.protocols.remoting.conftest import ADDRESS, Caller, Refusing, Stage

BACK = RequestCode.CONSUMER_SEND_MSG_BACK


@pytest.fixture
def room(stage: Stage) -> SendBackHandler:
    return SendBackHandler(stage.door_context)


async def sent(stage: Stage) -> Sent:
    await stage.topic("orders", queues=1)
    await stage.group("readers", max_attempts=3)
    (stored,) = await stage.processor.send(Context(), [Message("orders", b"body", make_message_id())])
    assert isinstance(stored, Sent)
    return stored


def back(offset: int, **more: object) -> dict[str, object]:
    return {
        "offset": offset,
        "group": "readers",
        "delayLevel": 0,
        "originMsgId": "AABB",
        "originTopic": "orders",
        "unitMode": False,
        "maxReconsumeTimes": 16,
        **more,
    }


async def lying_in(stage: Stage, topic: str) -> list[StoredMessage]:
    try:
        pull = Pull(topic, stage.broker.name, 0, 0)
        return (await stage.processor.pull(Context(), pull)).messages
    except GatewayError:
        return []


async def test_it_comes_again_after_ten_seconds(stage: Stage, room: SendBackHandler) -> None:
    first = await sent(stage)
    await Caller(room).ok(BACK, back(first.commit_offset))
    assert await lying_in(stage, "%RETRY%readers") == []
    await stage.pass_s(10.1)
    (message,) = await stage.until(lambda: lying_in(stage, "%RETRY%readers"))
    assert (message.body, message.reconsume_times) == (b"body", 1)
    assert find_property(message.properties, b"RETRY_TOPIC") == b"orders"
    # By this id whoever looks for the first one finds it: at the door's address.
    origin = encode_offset_message_id(ADDRESS, first.commit_offset)
    assert find_property(message.properties, b"ORIGIN_MESSAGE_ID") == origin.encode()
    # And again, after longer.
    await Caller(room).ok(BACK, back(message.commit_offset, originTopic="%RETRY%readers"))
    await stage.pass_s(31)

    async def both() -> bool:
        return len(await lying_in(stage, "%RETRY%readers")) == 2

    await stage.until(both)


async def test_in_a_broadcast_group_it_comes_again_to_who_sent_it_back(
    stage: Stage, room: SendBackHandler
) -> None:
    """If it came to all, each of them that fails again would send back each copy: ever more for ever more."""
    await stage.topic("orders", queues=1)
    await stage.group("readers", broadcast=True)
    (first,) = await stage.processor.send(Context(), [Message("orders", b"body", make_message_id())])
    assert isinstance(first, Sent)
    clients = [Caller(room, client_id=name) for name in ("a@1", "b@2")]
    offsets = [first.commit_offset] * 2
    for level in (1, 2):
        for client, offset in zip(clients, offsets, strict=True):
            await client.ok(BACK, back(offset, delayLevel=level))
        await stage.pass_s(6)

        async def both(count: int = 2 * level) -> bool:
            return len(await lying_in(stage, "%RETRY%readers")) == count

        await stage.until(both)
        for at, client in enumerate(clients):
            pull = Pull("%RETRY%readers", stage.broker.name, 0, 2 * level - 2, "readers")
            (message,) = (await stage.processor.pull(client.context, pull)).messages
            assert message.reconsume_times == level
            offsets[at] = message.commit_offset
    assert offsets[0] != offsets[1]


async def test_a_level_says_when(stage: Stage, room: SendBackHandler) -> None:
    first = await sent(stage)
    await Caller(room).ok(BACK, back(first.commit_offset, delayLevel=1, bname=stage.broker.name))
    await stage.pass_s(1.1)
    await stage.until(lambda: lying_in(stage, "%RETRY%readers"))


class TestOfAnotherAccount:
    """One that may not read the topic."""

    @pytest.fixture
    def policies(self) -> Policies:
        return Policies(authorizer=Refusing("stranger", ResourceKind.TOPIC))

    async def test_no_group_of_its_own_gets_a_copy(self, stage: Stage, room: SendBackHandler) -> None:
        first = await sent(stage)
        stranger = Caller(room)
        stranger.context.principal = Principal("stranger")
        refused = await stranger.ask(
            BACK, back(first.commit_offset, delayLevel=-1, bname=stage.broker.name, originTopic="mine")
        )
        assert refused.code == ResponseCode.NO_PERMISSION
        assert await lying_in(stage, "%DLQ%readers") == []

    async def test_who_may_read_it_sends_it_back(self, stage: Stage, room: SendBackHandler) -> None:
        first = await sent(stage)
        await Caller(room).ok(BACK, back(first.commit_offset, delayLevel=-1, bname=stage.broker.name))
        (message,) = await lying_in(stage, "%DLQ%readers")
        assert message.body == b"body"


@pytest.mark.parametrize("more", [{"delayLevel": -1}, {"maxReconsumeTimes": 0}])
async def test_it_is_a_dead_letter(stage: Stage, room: SendBackHandler, more: Mapping[str, object]) -> None:
    first = await sent(stage)
    await Caller(room).ok(BACK, back(first.commit_offset, **more))
    (message,) = await lying_in(stage, "%DLQ%readers")
    assert message.body == b"body"
    assert await lying_in(stage, "%RETRY%readers") == []


async def test_without_a_number_the_group_says_how_often(stage: Stage, room: SendBackHandler) -> None:
    offset = (await sent(stage)).commit_offset
    for times in (1, 2):
        await Caller(room).ok(BACK, back(offset, maxReconsumeTimes=None, delayLevel=1))
        await stage.pass_s(1.1)
        found: list[StoredMessage] = []

        async def look(found: list[StoredMessage] = found, times: int = times) -> bool:
            found[:] = await lying_in(stage, "%RETRY%readers")
            return len(found) == times

        await stage.until(look)
        offset = found[-1].commit_offset
    await Caller(room).ok(BACK, back(offset, maxReconsumeTimes=-1, delayLevel=1))
    assert len(await lying_in(stage, "%DLQ%readers")) == 1


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"offset": 12345}, ResponseCode.SYSTEM_ERROR),
        ({"offset": -1}, ResponseCode.SYSTEM_ERROR),
        ({"offset": 1 << 63}, ResponseCode.SYSTEM_ERROR),
        ({"offset": None}, ResponseCode.SYSTEM_ERROR),
        ({"group": "no good"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"group": None}, ResponseCode.SYSTEM_ERROR),
        ({"delayLevel": "soon"}, ResponseCode.SYSTEM_ERROR),
        ({"maxReconsumeTimes": 1 << 31}, ResponseCode.SYSTEM_ERROR),
        ({"bname": "elsewhere"}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_what_cannot_come_again(
    stage: Stage, room: SendBackHandler, wrong: Mapping[str, object], code: ResponseCode
) -> None:
    first = await sent(stage)
    refused = await Caller(room).ask(BACK, {**back(first.commit_offset), **wrong})
    assert refused.code == code, refused.remark
    assert refused.remark
    await stage.pass_s(60)
    assert await lying_in(stage, "%RETRY%readers") == []
    assert await lying_in(stage, "%DLQ%readers") == []


async def test_the_largest_number_of_retries(stage: Stage, room: SendBackHandler) -> None:
    first = await sent(stage)
    await Caller(room).ok(BACK, back(first.commit_offset, maxReconsumeTimes=(1 << 31) - 1))
    assert await lying_in(stage, "%DLQ%readers") == []
