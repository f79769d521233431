"""Sends of one turn go together, and nobody sees it: each caller has its own outcomes, order and time."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brokers.remote.produce.send_batcher import MOST_BYTES, MOST_MESSAGES, Part, SendBatcher, may_lie_anywhere
from popgate.errors import GatewayError
from popgate.messages.packed_messages import PackedMessages
from popgate.model import Message, MessageType, Sent
from popgate.wire.messages.properties import LONGEST_IN_BATCH, encode_properties

ids = itertools.count()


def message(body: bytes = b"body", **fields) -> Message:
    message_id = f"ID{next(ids)}"
    block = encode_properties({"UNIQ_KEY": message_id, **fields.pop("more", {})})
    return Message(fields.pop("topic", "T"), body, message_id=message_id, properties=block, **fields)


class Requests:
    """What would be sent: the parts of every request; each message is stored at its place."""

    def __init__(self) -> None:
        self.all: list[list[Part]] = []

    async def send(self, parts) -> None:
        self.all.append(list(parts))
        await asyncio.sleep(0)
        for part in parts:
            if not part.done.done():
                part.done.set_result([Sent(name.decode(), "b", 0, 0) for name in part.packed.message_ids])

    @property
    def bodies(self) -> list[list[bytes]]:
        return [[one.body for part in parts for one in part.packed.unpack()] for parts in self.all]


def join(gathering: SendBatcher, messages: list[Message], until: float = 9.0):
    return gathering.join(PackedMessages.pack(messages[0].topic, messages), until)


@pytest.fixture
def requests() -> Requests:
    return Requests()


@pytest.fixture
def gathering(requests) -> SendBatcher:
    return SendBatcher(requests.send)


async def test_sends_of_one_turn_are_one_request(gathering, requests):
    first, second = [message(b"1")], [message(b"2"), message(b"3")]
    told = await asyncio.gather(join(gathering, first), join(gathering, second))
    assert requests.bodies == [[b"1", b"2", b"3"]]
    assert [[one.message_id for one in outcomes] for outcomes in told] == [
        [one.message_id for one in messages] for messages in (first, second)
    ]


async def test_a_later_turn_is_another_request(gathering, requests):
    await join(gathering, [message(b"1")])
    await join(gathering, [message(b"2")])
    assert requests.bodies == [[b"1"], [b"2"]]


@pytest.mark.parametrize(
    ("fields", "until"),
    [({"topic": "U"}, 9.0), ({"producer_group": "p"}, 9.0), ({"sys_flag": 1}, 9.0), ({}, 3.0)],
)
async def test_other_topics_senders_flags_and_deadlines_go_by_themselves(gathering, requests, fields, until):
    await asyncio.gather(join(gathering, [message()]), join(gathering, [message(**fields)], until))
    assert len(requests.all) == 2


async def test_a_request_has_its_bounds(gathering, requests):
    large = [join(gathering, [message(b"x" * (MOST_BYTES // 3))]) for _ in range(4)]
    await asyncio.gather(*large)
    assert [len(bodies) for bodies in requests.bodies] == [2, 2]
    requests.all.clear()
    await asyncio.gather(*(join(gathering, [message(), message()]) for _ in range(MOST_MESSAGES)))
    assert [len(bodies) for bodies in requests.bodies] == [MOST_MESSAGES, MOST_MESSAGES]


async def test_what_is_larger_than_a_request_may_be_goes_alone(gathering, requests):
    await asyncio.gather(
        join(gathering, [message(b"1")]),
        join(gathering, [message(b"x" * MOST_BYTES * 2)]),
        join(gathering, [message(b"3")]),
    )
    assert [len(bodies) for bodies in requests.bodies] == [1, 1, 1]


async def test_a_caller_who_goes_takes_nobody_along(gathering, requests):
    gone = join(gathering, [message(b"1")])
    stays = join(gathering, [message(b"2")])
    gone.cancel()
    assert len(await stays) == 1
    assert requests.bodies == [[b"2"]], "it went before anything was sent"


async def test_a_caller_who_goes_later_takes_nobody_along(gathering, requests):
    goes = join(gathering, [message(b"1")])
    stays = join(gathering, [message(b"2")])
    await asyncio.sleep(0)
    goes.cancel()
    assert len(await stays) == 1
    assert requests.bodies == [[b"1", b"2"]]


async def test_a_stop_waits_for_what_is_under_way(gathering, requests):
    sent = join(gathering, [message()])
    await asyncio.sleep(0)
    await gathering.stop()
    assert sent.done()


async def test_what_nobody_waits_for_is_tried_no_longer():
    began, ended = asyncio.Event(), asyncio.Event()

    async def forever(parts) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    gathering = SendBatcher(forever)
    callers = [
        asyncio.ensure_future(gathering.send(PackedMessages.pack("T", [message()]), 1e9)) for _ in range(2)
    ]
    await began.wait()
    callers[0].cancel()
    await asyncio.wait(callers[:1])
    assert not ended.is_set(), "the other one waits for it"
    callers[1].cancel()
    async with asyncio.timeout(60):
        await gathering.stop()
    assert ended.is_set()
    assert all(caller.cancelled() for caller in callers)


async def test_a_fault_of_our_own_is_told_and_cancels_nobody(caplog):
    async def broken(parts) -> None:
        raise ValueError("nobody thought of it")

    gathering = SendBatcher(broken)
    told = await asyncio.gather(
        join(gathering, [message()]), join(gathering, [message()]), return_exceptions=True
    )
    assert [type(one) for one in told] == [GatewayError, GatewayError]
    assert told[0] is not told[1]
    assert "nobody thought of it" in caplog.text


@pytest.mark.parametrize(
    "fields",
    [
        {"type": MessageType.FIFO, "message_group": "g"},
        {"message_group": "g"},
        {"type": MessageType.DELAY, "deliver_at_ms": 5},
        {"type": MessageType.TRANSACTION},
        {"type": MessageType.PRIORITY, "priority": 1},
        {"queue_id": 0},
        {"lite_topic": "l"},
        {"topic": "U"},
        {"more": {"DELAY": "3"}},
        {"more": {"WAIT": "false"}},
        {"more": {"WAIT": "true"}},
        {"more": {"long": "x" * LONGEST_IN_BATCH}},
    ],
)
def test_what_has_a_way_of_its_own_is_not_gathered(fields):
    assert not may_lie_anywhere("T", message(**fields))
    assert may_lie_anywhere("T", message())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    callers=st.lists(
        st.tuples(st.integers(1, 5), st.sampled_from(["T", "U"]), st.booleans(), st.booleans()), max_size=30
    )
)
async def test_whoever_goes_everything_is_sent_once_and_in_the_order_of_its_caller(callers):
    requests = Requests()
    gathering = SendBatcher(requests.send)
    told, sent = [], []
    for count, topic, goes, waits in callers:
        messages = [message(b"%d" % next(ids), topic=topic) for _ in range(count)]
        if not goes:
            sent.append((topic, [one.body for one in messages]))
        future = join(gathering, messages)
        told.append((future, goes, messages))
        if goes:
            future.cancel()
        if waits:
            await asyncio.sleep(0)
    await asyncio.gather(*(future for future, _, _ in told), return_exceptions=True)
    await gathering.stop()
    for topic in ("T", "U"):
        wanted = [body for one, bodies in sent for body in bodies if one == topic]
        asked = [part.packed for parts in requests.all for part in parts if part.packed.topic == topic]
        stored = [one.body for packed in asked for one in packed.unpack()]
        assert stored == wanted
    for future, goes, messages in told:
        if not goes:
            assert [one.message_id for one in future.result()] == [one.message_id for one in messages]
