"""True pull on an embedded broker: filters, waiting, positions that come along."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from popgate.context import Context
from popgate.ids.message_id import make_message_id
from popgate.model import GroupConfig, Message, Permission
from popgate.wire.bodies.heartbeats import SubscriptionData
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command
from popgate.wire.messages.hosts import host_text
from popgate.wire.messages.records import COMPRESSED, decode_records
from processors.limits import Limits
from protocols.remoting.consume.pull import PullHandler
from protocols.remoting.requests import Peer
from tests.unit.protocols.remoting.conftest import ADDRESS, Caller, FakePeer, Stage

PULL, LITE = RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE
FOUND, NOTHING = ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND


def fields(offset: int = 0, **more: Any) -> dict[str, object]:
    """The header of a pull as Java 4.9.8 writes it; sysFlag 0x4: the filter comes along."""
    return {
        "consumerGroup": "readers",
        "topic": "orders",
        "queueId": 0,
        "queueOffset": offset,
        "maxMsgNums": 32,
        "sysFlag": 0x4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 15_000,
        "subscription": "*",
        "subVersion": 0,
        "expressionType": "TAG",
        "bname": "popgate",
        **more,
    }


def bodies(answer: Command) -> list[bytes]:
    return [record.body for record in decode_records(answer.body, verify=True)]


def places(answer: Command) -> tuple[int, int, int]:
    told = answer.fields
    assert told["suggestWhichBrokerId"] == "0"
    return int(told["nextBeginOffset"]), int(told["minOffset"]), int(told["maxOffset"])


@pytest.fixture
async def caller(stage: Stage) -> Caller:
    await stage.topic(queues=1)
    return Caller(PullHandler(stage.door_context))


async def send(stage: Stage, *texts: bytes, topic: str = "orders", **more: Any) -> None:
    """Messages in order; the text before a colon is the tag."""
    messages = [
        Message(
            topic,
            text,
            make_message_id(),
            tag=text.partition(b":")[0].decode() if b":" in text else "",
            born_host="10.1.1.1:5",
            **more,
        )
        for text in texts
    ]
    await stage.processor.send(Context(), messages)


@pytest.mark.parametrize("code", [PULL, LITE])
async def test_messages_are_read_from_an_offset_on(stage: Stage, caller: Caller, code: int) -> None:
    await send(stage, b"one", b"two", b"three")
    answer = await caller.ok(code, fields(1))
    assert answer.code == FOUND
    assert answer.remark == "FOUND"
    assert bodies(answer) == [b"two", b"three"]
    assert places(answer) == (3, 0, 3)


async def test_a_record_leads_back_here(stage: Stage, caller: Caller) -> None:
    await send(stage, b"one", sys_flag=COMPRESSED, flag=-3)
    [record] = decode_records((await caller.ok(PULL, fields())).body)
    assert host_text(record.store_host) == ADDRESS
    assert host_text(record.born_host) == "10.1.1.1:5"
    assert (record.topic, record.queue_id, record.offset) == ("orders", 0, 0)
    assert (record.sys_flag, record.flag, record.reconsume_times) == (COMPRESSED, -3, 0)
    assert record.commit_offset > 0


async def test_no_more_than_asked_for(stage: Stage, caller: Caller) -> None:
    await send(stage, *[b"x" * 1000] * 10)
    assert places(await caller.ok(PULL, fields(maxMsgNums=3)))[0] == 3
    assert places(await caller.ok(PULL, fields(maxMsgBytes=3_000)))[0] == 2
    # Always the first, however large it is, and whatever number is asked for.
    assert places(await caller.ok(PULL, fields(maxMsgBytes=1)))[0] == 1
    assert places(await caller.ok(PULL, fields(maxMsgNums=-5)))[0] == 1


async def test_tags_are_looked_at(stage: Stage, caller: Caller) -> None:
    await send(stage, b"paid:1", b"sent:2", b"lost:3", b"paid:4")
    answer = await caller.ok(PULL, fields(subscription="paid || lost"))
    assert bodies(answer) == [b"paid:1", b"lost:3", b"paid:4"]
    # As old clients say "everything".
    assert len(bodies(await caller.ok(PULL, fields(subscription=None, expressionType=None)))) == 4


async def test_a_tag_of_10_kb_is_looked_at(stage: Stage, caller: Caller) -> None:
    tag = "t" * 10_000
    await send(stage, f"{tag}:1".encode(), f"{tag}u:2".encode(), b"t:3")
    assert bodies(await caller.ok(PULL, fields(subscription=tag))) == [f"{tag}:1".encode()]


async def test_sql_is_looked_at(stage: Stage, caller: Caller) -> None:
    for price in (1, 20, 3, 40):
        await send(stage, b"m%d" % price, user_properties={"price": str(price)})
    answer = await caller.ok(PULL, fields(subscription="price > 10", expressionType="SQL92"))
    assert bodies(answer) == [b"m20", b"m40"]


@pytest.mark.parametrize(
    "more",
    [
        {"subscription": "price >", "expressionType": "SQL92"},
        {"subscription": "*", "expressionType": "REGEX"},
        {"subscription": "x" * 100_000},
    ],
)
async def test_a_filter_that_makes_no_sense_is_refused(caller: Caller, more: dict[str, Any]) -> None:
    assert (await caller.ask(PULL, fields(**more))).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_what_does_not_pass_is_passed_over(stage: Stage, caller: Caller) -> None:
    await send(stage, b"sent:1", b"sent:2")
    answer = await caller.ask(PULL, fields(subscription="paid"))
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert answer.remark == "NO_MATCHED_MESSAGE"
    assert places(answer) == (2, 0, 2)


async def test_at_the_end_there_is_nothing(stage: Stage, caller: Caller) -> None:
    await send(stage, b"one")
    answer = await caller.ask(PULL, fields(1))
    assert answer.code == NOTHING
    assert places(answer) == (1, 0, 1)


@pytest.mark.parametrize(
    ("sent", "offset", "then", "remark"),
    [
        (2, 7, 2, "OFFSET_OVERFLOW_BADLY"),
        (2, -1, 0, "OFFSET_TOO_SMALL"),
        (0, 5, 0, "NO_MESSAGE_IN_QUEUE"),
    ],
)
async def test_an_offset_outside_of_the_queue_moves(
    stage: Stage, caller: Caller, sent: int, offset: int, then: int, remark: str
) -> None:
    await send(stage, *[b"x"] * sent) if sent else None
    answer = await caller.ask(PULL, fields(offset, sysFlag=0x6))
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert answer.remark == remark
    assert places(answer) == (then, 0, sent)


class TestWaiting:
    @pytest.fixture(autouse=True)
    async def group(self, stage: Stage) -> None:
        await stage.group()

    async def start(
        self, stage: Stage, caller: Caller, offset: int = 0, **more: Any
    ) -> asyncio.Task[Command]:
        waiting = asyncio.ensure_future(caller.ask(PULL, fields(offset, **{"sysFlag": 0x6, **more})))
        await stage.pass_s(0)
        return waiting

    async def test_a_pull_waits_for_a_message(self, stage: Stage, caller: Caller) -> None:
        waiting = await self.start(stage, caller)
        await stage.pass_s(10)
        assert not waiting.done()
        await send(stage, b"one")
        await stage.until(waiting.done)
        assert bodies(waiting.result()) == [b"one"]

    async def test_a_pull_goes_on_waiting_for_one_that_passes(self, stage: Stage, caller: Caller) -> None:
        waiting = await self.start(stage, caller, subscription="paid")
        await stage.pass_s(1)
        await send(stage, b"sent:1")
        await stage.pass_s(1)
        assert not waiting.done()
        await send(stage, b"paid:2")
        await stage.until(waiting.done)
        answer = waiting.result()
        assert bodies(answer) == [b"paid:2"]
        assert places(answer)[0] == 2

    async def test_it_ends_in_time(self, stage: Stage, caller: Caller) -> None:
        waiting = await self.start(stage, caller)
        await stage.pass_s(14.5)
        assert not waiting.done()
        await stage.pass_s(1)
        await stage.until(waiting.done)
        assert waiting.result().code == NOTHING

    @pytest.mark.parametrize("more", [{"sysFlag": 0x4}, {"suspendTimeoutMillis": 0}])
    async def test_who_does_not_want_to_wait_does_not(
        self, stage: Stage, caller: Caller, more: dict[str, Any]
    ) -> None:
        assert (await (await self.start(stage, caller, **more))).code == NOTHING

    async def test_a_drain_ends_it(self, stage: Stage, caller: Caller) -> None:
        room = PullHandler(stage.door_context)
        draining = Caller(room)
        waiting = await self.start(stage, draining)
        await stage.pass_s(1)
        room.drain()
        answer = await waiting
        assert answer.code == NOTHING
        assert places(answer) == (0, 0, 0)
        # From now on nobody waits for messages; but who comes again at once does so a few times a second.
        waiting = await self.start(stage, draining)
        assert not waiting.done()
        await stage.pass_s(0.2)
        await stage.until(waiting.done)
        assert waiting.result().code == NOTHING
        await send(stage, b"one")
        assert bodies(await (await self.start(stage, draining))) == [b"one"]


class TestWithoutAFilterOfItsOwn:
    """Most pulls bring none along: it was told by the heartbeat."""

    def caller(self, stage: Stage, known: SubscriptionData | None) -> Caller:
        def subscriptions(group: str, topic: str, peer: Peer) -> SubscriptionData | None:
            assert (group, topic) == ("readers", "orders")
            assert isinstance(peer, FakePeer)
            return known

        return Caller(PullHandler(stage.door_context, subscriptions))

    async def test_what_the_heartbeat_told_counts(self, stage: Stage) -> None:
        await stage.topic(queues=1)
        await send(stage, b"paid:1", b"sent:2")
        caller = self.caller(stage, SubscriptionData("orders", "sent", version=5))
        asked = fields(sysFlag=0, subscription=None, expressionType=None, subVersion=5)
        assert bodies(await caller.ok(PULL, asked)) == [b"sent:2"]

    async def test_before_a_heartbeat_there_is_none(self, stage: Stage) -> None:
        await stage.topic(queues=1)
        answer = await self.caller(stage, None).ask(PULL, fields(sysFlag=0))
        assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST

    async def test_an_older_one_is_refused(self, stage: Stage) -> None:
        await stage.topic(queues=1)
        caller = self.caller(stage, SubscriptionData("orders", "sent", version=5))
        answer = await caller.ask(PULL, fields(sysFlag=0, subVersion=6))
        assert answer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST


class TestThePositionThatComesAlong:
    async def committed(self, stage: Stage) -> int | None:
        return await stage.processor.offsets.committed(Context(), "readers", "orders", "popgate", 0)

    async def test_it_is_kept(self, stage: Stage, caller: Caller) -> None:
        await send(stage, b"one", b"two")
        await caller.ok(PULL, fields(1, sysFlag=0x5, commitOffset=1))
        assert await self.committed(stage) == 1

    async def test_it_is_written_now_and_then(self, stage: Stage, caller: Caller) -> None:
        await send(stage, b"one", b"two", b"three")
        for offset in (1, 2):
            await caller.ok(PULL, fields(offset, sysFlag=0x5, commitOffset=offset))
        assert await self.committed(stage) == 1
        await stage.pass_s(1)
        await caller.ask(PULL, fields(3, sysFlag=0x5, commitOffset=3))
        assert await self.committed(stage) == 3

    async def test_without_the_flag_it_counts_for_nothing(self, stage: Stage, caller: Caller) -> None:
        await send(stage, b"one", b"two")
        await caller.ok(PULL, fields(1, commitOffset=1))
        assert not await self.committed(stage)

    @pytest.mark.parametrize("offset", [-1, 99])
    async def test_one_that_cannot_be_hinders_no_reading(
        self, stage: Stage, caller: Caller, offset: int
    ) -> None:
        await send(stage, b"one")
        assert bodies(await caller.ok(PULL, fields(sysFlag=0x5, commitOffset=offset))) == [b"one"]
        assert not await self.committed(stage)


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"topic": None}, ResponseCode.SYSTEM_ERROR),
        ({"consumerGroup": "read ers"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"consumerGroup": ""}, ResponseCode.SYSTEM_ERROR),
        ({"queueId": 1}, ResponseCode.SYSTEM_ERROR),
        ({"queueId": -1}, ResponseCode.SYSTEM_ERROR),
        ({"queueId": None}, ResponseCode.SYSTEM_ERROR),
        ({"queueOffset": "all"}, ResponseCode.SYSTEM_ERROR),
        ({"queueOffset": 1 << 64}, ResponseCode.SYSTEM_ERROR),
        ({"maxMsgNums": None}, ResponseCode.SYSTEM_ERROR),
        ({"bname": "elsewhere"}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_pulls_that_make_no_sense(
    stage: Stage, caller: Caller, more: dict[str, Any], code: int
) -> None:
    assert (await caller.ask(PULL, fields(**more))).code == code
    assert [topic.name for topic in await stage.processor.metadata.topics(Context())] == ["orders"]


async def test_who_names_no_broker_reads_from_the_only_one(stage: Stage, caller: Caller) -> None:
    await send(stage, b"one")
    assert bodies(await caller.ok(PULL, fields(bname=None))) == [b"one"]


async def test_a_group_that_is_switched_off_reads_nothing(stage: Stage, caller: Caller) -> None:
    await stage.processor.metadata.create_group(Context(), GroupConfig("readers", consume_enabled=False))
    assert (await caller.ask(PULL, fields())).code == ResponseCode.NO_PERMISSION


async def test_a_topic_that_is_not_readable_is_refused(stage: Stage, caller: Caller) -> None:
    await stage.topic("closed", permission=Permission.WRITE)
    assert (await caller.ask(PULL, fields(topic="closed"))).code == ResponseCode.NO_PERMISSION


class TestWhereGroupsAreNotMade:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(auto_create_groups=False)

    async def test_an_unknown_one_is_refused(self, caller: Caller) -> None:
        answer = await caller.ask(PULL, fields())
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
