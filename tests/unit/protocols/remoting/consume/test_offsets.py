"""Offsets of queues and positions of groups."""

from __future__ import annotations

from typing import Any

import pytest

from popgate.context import Context
from popgate.ids.message_id import make_message_id
from popgate.kinds import Action, Principal, ResourceKind
from popgate.model import Bounds, Message
from popgate.wire.frames.codes import RequestCode, ResponseCode
from processors.limits import Limits
from processors.policies.registry import Policies
from protocols.remoting.consume.offsets import OffsetHandler
from protocols.remoting.mapped.handler import Mapped
from tests.unit.protocols.remoting.conftest import Caller, Refusing, Stage

COMMITTED, COMMIT = RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET
SEARCH, EARLIEST = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, RequestCode.GET_EARLIEST_MSG_STORETIME
MAXIMUM, MINIMUM = RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET


def fields(**more: Any) -> dict[str, object]:
    return {"topic": "orders", "queueId": 0, "bname": "popgate", **more}


def of_group(**more: Any) -> dict[str, object]:
    return fields(consumerGroup="readers", **more)


@pytest.fixture
async def caller(stage: Stage) -> Caller:
    await stage.topic(queues=1)
    return Caller(OffsetHandler(stage.door_context))


async def send(stage: Stage, count: int) -> None:
    messages = [Message("orders", b"x", make_message_id()) for _ in range(count)]
    await stage.processor.send(Context(), messages)


async def offset(caller: Caller, code: int, asked: dict[str, object]) -> int:
    return int((await caller.ok(code, asked)).fields["offset"])


async def test_the_bounds_of_a_queue(stage: Stage, caller: Caller) -> None:
    assert await offset(caller, MAXIMUM, fields()) == 0
    await send(stage, 3)
    assert await offset(caller, MAXIMUM, fields(committed=True)) == 3
    assert await offset(caller, MINIMUM, fields()) == 0
    # Clients before 4.9.5 name no broker.
    assert await offset(caller, MAXIMUM, fields(bname=None)) == 3


@pytest.mark.parametrize(("asked", "of_master"), [({}, False), ({"ofMaster": "true"}, True)])
async def test_who_asks_for_the_end_of_a_master_gets_that(
    stage: Stage,
    caller: Caller,
    monkeypatch: pytest.MonkeyPatch,
    asked: dict[str, object],
    *,
    of_master: bool,
) -> None:
    heard = []

    async def bounds(*_: object, of_master: bool) -> Bounds:
        heard.append(of_master)
        return Bounds(0, 3)

    monkeypatch.setattr(stage.broker, "bounds", bounds)
    assert await offset(caller, MAXIMUM, fields(**asked)) == 3
    assert heard == [of_master]


async def test_offsets_by_time(stage: Stage, caller: Caller) -> None:
    times = []
    for _ in range(3):
        times.append(stage.clock.now_ms())
        await send(stage, 1)
        stage.clock.advance(1)
    for at, time_ms in enumerate(times):
        assert await offset(caller, SEARCH, fields(timestamp=time_ms)) == at
        assert await offset(caller, SEARCH, fields(timestamp=time_ms + 1)) == at + 1
    middle = times[1] + 500
    assert await offset(caller, SEARCH, fields(timestamp=middle, boundaryType="lower")) == 2
    assert await offset(caller, SEARCH, fields(timestamp=middle, boundaryType="upper")) == 1
    assert await offset(caller, SEARCH, fields(timestamp=times[2] + 9, boundaryType="upper")) == 3
    assert await offset(caller, SEARCH, fields(timestamp=-1)) == 0
    assert await offset(caller, SEARCH, fields(timestamp=0, boundaryType="UPPER")) == 0


async def test_when_the_first_message_was_stored(stage: Stage, caller: Caller) -> None:
    assert (await caller.ok(EARLIEST, fields())).fields["timestamp"] == "-1"
    stored_ms = stage.clock.now_ms()
    await send(stage, 1)
    stage.clock.advance(5)
    assert (await caller.ok(EARLIEST, fields())).fields["timestamp"] == str(stored_ms)


async def test_a_position_is_kept(stage: Stage, caller: Caller) -> None:
    await stage.group()
    await send(stage, 5)
    await caller.ok(COMMIT, of_group(commitOffset=3))
    assert await offset(caller, COMMITTED, of_group()) == 3
    # Also backwards, as RocketMQ has it.
    await caller.call(COMMIT, of_group(commitOffset=1), oneway=True)
    assert await offset(caller, COMMITTED, of_group()) == 1


@pytest.mark.parametrize(("told", "kept"), [(-1, 0), (99, 5)])
async def test_a_position_outside_of_the_queue_is_the_nearest_within(
    stage: Stage, caller: Caller, told: int, kept: int
) -> None:
    await stage.group()
    await send(stage, 5)
    await caller.ok(COMMIT, of_group(commitOffset=told))
    assert await offset(caller, COMMITTED, of_group(setZeroIfNotFound=False)) == kept


class TestAFreshGroup:
    async def test_it_begins_at_0_while_the_queue_is_empty(self, stage: Stage, caller: Caller) -> None:
        # Else it asks for the end next, and what is sent in between is lost to it.
        assert await offset(caller, COMMITTED, of_group()) == 0
        await stage.group()
        assert await offset(caller, COMMITTED, of_group()) == 0

    async def test_it_begins_at_0_while_everything_is_young(self, stage: Stage, caller: Caller) -> None:
        await send(stage, 3)
        assert await offset(caller, COMMITTED, of_group()) == 0

    async def test_it_chooses_itself_where_there_is_an_older_past(self, stage: Stage, caller: Caller) -> None:
        await send(stage, 3)
        stage.clock.advance(3_700)
        assert (await caller.ask(COMMITTED, of_group())).code == ResponseCode.QUERY_NOT_FOUND

    async def test_it_is_told_of_none_when_it_wants_to_know(self, caller: Caller) -> None:
        answer = await caller.ask(COMMITTED, of_group(setZeroIfNotFound=False))
        assert answer.code == ResponseCode.QUERY_NOT_FOUND


@pytest.mark.parametrize("code", [COMMITTED, COMMIT, SEARCH, EARLIEST, MAXIMUM, MINIMUM])
@pytest.mark.parametrize(
    ("more", "answer"),
    [
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"topic": ""}, ResponseCode.SYSTEM_ERROR),
        ({"queueId": 1}, ResponseCode.SYSTEM_ERROR),
        ({"queueId": -1}, ResponseCode.SYSTEM_ERROR),
        ({"queueId": "x"}, ResponseCode.SYSTEM_ERROR),
        ({"bname": "elsewhere"}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_queues_that_are_not_there(
    stage: Stage, caller: Caller, code: int, more: dict[str, Any], answer: int
) -> None:
    await stage.group()
    asked = {**of_group(commitOffset=0, timestamp=0), **more}
    assert (await caller.ask(code, asked)).code == answer
    assert [topic.name for topic in await stage.processor.metadata.topics(Context())] == ["orders"]


class TestOfAnAccountThatMayReadAlone:
    """One with the permission to subscribe as the group, and none to look at its settings."""

    @pytest.fixture
    def policies(self) -> Policies:
        return Policies(authorizer=Refusing("reader", ResourceKind.GROUP, Action.GET))

    async def test_its_positions_are_kept(self, stage: Stage, caller: Caller) -> None:
        await stage.group()
        await send(stage, 3)
        caller.context.principal = Principal("reader")
        await caller.ok(COMMIT, of_group(commitOffset=2))
        assert await offset(caller, COMMITTED, of_group()) == 2


async def test_a_position_makes_no_group(caller: Caller) -> None:
    answer = await caller.ask(COMMIT, of_group(commitOffset=0))
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


@pytest.mark.parametrize("group", [None, "", "read ers"])
async def test_positions_need_a_group(caller: Caller, group: str | None) -> None:
    asked = fields(consumerGroup=group, commitOffset=0)
    assert (await caller.ask(COMMITTED, asked)).code != ResponseCode.SUCCESS
    assert (await caller.ask(COMMIT, asked)).code != ResponseCode.SUCCESS


class TestOfAGroupThatMayBeMapped:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(mapped_groups=("*",))

    @pytest.mark.parametrize("name", ["consumerGroup", "bname"])
    async def test_no_endless_name_is_kept(self, stage: Stage, name: str) -> None:
        """Who asks for a position may be a member that reads the queue from now on."""
        await stage.topic(queues=1)
        mapped = Mapped(stage.door_context)
        caller = Caller(OffsetHandler(stage.door_context, mapped))
        refused = await caller.ask(COMMITTED, {**of_group(), name: "n" * 100_000})
        assert refused.code != ResponseCode.SUCCESS
        assert len(refused.remark) < 1_000
        assert not mapped.proofs._seen
        await caller.ok(COMMITTED, of_group())
        assert mapped.proofs._seen
