"""Groups of such clients that share messages: numbers of queues and numbers of messages at the same time."""

from __future__ import annotations

import pytest

from popgate.wire.bodies.heartbeats import ConsumerData, HeartbeatData, SubscriptionData
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.messages.records import Record, decode_records
from processors.limits import Limits
from protocols.remoting.codec.marks import OFFSET_BITS
from protocols.remoting.mapped.offsets import is_virtual
from tests.unit.protocols.remoting.virtual.conftest import GROUP, TOPIC, DoorCaller, Several

QUEUE = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 1}
"""The one of broker a, which came later."""


@pytest.fixture
def limits() -> Limits:
    return Limits(mapped_groups=("*",))


@pytest.fixture
async def member(several: Several) -> DoorCaller:
    """A push consumer of 4.9.4, the only member of a group that is mapped."""
    await several.layout(("b", 0), cluster="b")
    caller = several.caller()
    await caller.ok(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})
    await several.layout(("b", 0), ("a", 0))
    consumer = ConsumerData(GROUP, (SubscriptionData(TOPIC),))
    await caller.ok(RequestCode.HEART_BEAT, body=HeartbeatData("client@1", (), (consumer,)).encode())
    await caller.ok(RequestCode.QUERY_CONSUMER_OFFSET, QUEUE)
    await caller.ask(RequestCode.PULL_MESSAGE, pull(0))

    async def mapped() -> bool:
        await several.pass_s(0.1)
        return several.processor.mapped_groups.is_mapped(GROUP)

    await several.until(mapped)
    return caller


def pull(offset: int) -> dict[str, object]:
    asked = {"queueOffset": offset, "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0}
    return {**QUEUE, **asked, "subscription": "*", "subVersion": 0, "expressionType": "TAG"}


async def send(caller: DoorCaller, body: bytes) -> None:
    head = {"a": "makers", "b": TOPIC, "c": "TBW102", "d": 4, "e": 1, "f": 0, "g": 1, "h": 0, "i": ""}
    await caller.ok(RequestCode.SEND_MESSAGE_V2, head, body)


async def take(caller: DoorCaller) -> tuple[Record, int]:
    """A message, and the number that its reader goes on with."""
    begins = int((await caller.ok(RequestCode.QUERY_CONSUMER_OFFSET, QUEUE)).fields["offset"])
    answer = await caller.ok(RequestCode.PULL_MESSAGE, pull(begins))
    [record] = decode_records(answer.body, verify=True)
    return record, int(answer.fields["nextBeginOffset"])


async def test_a_message_has_the_number_of_its_queue_and_one_of_its_own(
    several: Several, member: DoorCaller
) -> None:
    await send(member, b"one")
    record, behind = await take(member)
    assert (record.body, record.queue_id) == (b"one", 1)
    assert is_virtual(record.offset)
    assert is_virtual(behind)
    assert record.commit_offset >> OFFSET_BITS == 1


async def test_a_commit_finishes_it_also_when_its_broker_just_went_away(
    several: Several, member: DoorCaller
) -> None:
    await send(member, b"one")
    _, behind = await take(member)
    await several.layout(("b", 0), ("a", 0), away="a")
    gone = await member.ask(RequestCode.PULL_MESSAGE, pull(behind))
    assert (gone.code, int(gone.fields["nextBeginOffset"])) == (ResponseCode.PULL_NOT_FOUND, behind)
    await member.ok(RequestCode.UPDATE_CONSUMER_OFFSET, {**QUEUE, "commitOffset": behind})
    await several.layout(("b", 0), ("a", 0))

    async def done() -> bool:
        await several.pass_s(1)
        return await several.broker.committed(member.context, GROUP, TOPIC, "a", 0) == 1

    await several.until(done)


async def test_what_is_sent_back_is_found_by_the_place_that_was_told(
    several: Several, member: DoorCaller
) -> None:
    await send(member, b"one")
    record, behind = await take(member)
    fields = {"group": GROUP, "delayLevel": 1, "originTopic": TOPIC, "originMsgId": "AA"}
    await member.ok(RequestCode.CONSUMER_SEND_MSG_BACK, {**fields, "offset": record.commit_offset})
    await member.ok(RequestCode.UPDATE_CONSUMER_OFFSET, {**QUEUE, "commitOffset": behind})

    async def came() -> list[Record]:
        await several.pass_s(1)
        answer = await member.ask(RequestCode.PULL_MESSAGE, pull(behind))
        return list(decode_records(answer.body, verify=True)) if answer.body else []

    [again] = await several.until(came)
    assert (again.body, again.queue_id, again.reconsume_times) == (b"one", 1, 1)
