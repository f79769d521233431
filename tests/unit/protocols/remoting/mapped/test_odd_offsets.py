"""Whatever offsets a member tells, it is answered, and nothing is finished or lost by it."""

from __future__ import annotations

import itertools

import pytest

from popgate.context import Context
from popgate.wire.frames.codes import RequestCode, ResponseCode
from protocols.remoting.mapped.offsets import END, VIRTUAL
from tests.unit.protocols.remoting.conftest import Stage
from tests.unit.protocols.remoting.mapped.conftest import BROKER, GROUP, TOPIC, Member, bodies, send

ODD = [
    -(1 << 63),
    -(1 << 60),
    -1,
    0,
    1,
    (1 << 31) - 1,
    1 << 59,
    VIRTUAL - 1,
    VIRTUAL,
    VIRTUAL + 1,
    END - 1,
    END,
    1 << 61,
    1 << 62,
    (1 << 63) - 1,
]
ANSWERS = {
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
}


async def test_pulls_and_commits_of_odd_offsets_lose_nothing(stage: Stage, member: Member) -> None:
    await send(stage, b"one", b"two")
    for offset, commit in itertools.product(ODD, ODD):
        # What is given in between lies above all that is committed, or its pull is repeated.
        answer = await member.pull(offset, commit=commit, wait=False)
        assert answer.code in ANSWERS, answer.remark
        await member.pull(0, wait=False)
    for queue_id in (-1, 1, (1 << 31) - 1):
        assert (await member.pull(VIRTUAL, wait=False, queue_id=queue_id)).code not in ANSWERS

    async def all_there() -> bool:
        await stage.pass_s(1)
        found = await member.take()
        return bodies(found) == [b"one", b"two"]

    await stage.until(all_there)
    assert await stage.processor.offsets.committed(Context(), GROUP, TOPIC, BROKER, 0) == 0


@pytest.mark.parametrize("offset", ["", "x", "1e3", "0x10", " 1", "9" * 30, str(1 << 63), "\u0661"])
async def test_what_is_no_offset_is_refused(member: Member, offset: str) -> None:
    fields = {**member._queue(0, TOPIC), "maxMsgNums": 1, "sysFlag": 5, "subscription": "*"}
    for named in (
        {"queueOffset": offset, "commitOffset": 1},
        {"queueOffset": VIRTUAL, "commitOffset": offset},
    ):
        answer = await member.ask(RequestCode.PULL_MESSAGE, {**fields, **named})
        assert answer.code == ResponseCode.SYSTEM_ERROR
    answer = await member.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**fields, "commitOffset": offset})
    assert answer.code == ResponseCode.SYSTEM_ERROR
