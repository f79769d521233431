"""The service without a transport: what was not delivered, wherever the delivery broke."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import pytest

from popgate.context import Context
from popgate.model import GroupConfig
from popgate.pb import definition_pb2 as pb
from popgate.pb.service_pb2 import ReceiveMessageResponse
from protocols.grpc.service.service import MessagingService
from protocols.grpc.transport import BrokenStream

CONTEXT = Context(client_id="c", door="grpc", peer="10.0.0.1:5", connection="10.0.0.1:5")


class Breaking:
    """Takes so many elements, and fails at the next."""

    def __init__(self, takes: int, failure: BaseException, *, at_once: bool = False) -> None:
        self.taken: list[Any] = []
        self._takes = takes
        self._failure = failure
        self._at_once = at_once

    async def write(self, answer: Any) -> None:
        if len(self.taken) >= self._takes:
            raise self._failure
        self.taken.append(answer)

    async def write_bytes(self, answer: bytes) -> None:
        await self.write(ReceiveMessageResponse.FromString(answer))

    def write_at_once(self, answers: Sequence[bytes]) -> int:
        if not self._at_once:
            return 0
        some = answers[: self._takes - len(self.taken)]
        self.taken += map(ReceiveMessageResponse.FromString, some)
        return len(some)


class Stuck(Breaking):
    """Its client reads nothing."""

    def __init__(self) -> None:
        super().__init__(0, BrokenStream("gone"))
        self.asked = asyncio.Event()

    async def write(self, answer: Any) -> None:
        self.asked.set()
        await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("failure", [BrokenStream("gone"), asyncio.CancelledError()])
@pytest.mark.parametrize("takes", range(5))
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
async def test_scenario_03_whatever_was_not_written_is_there_again_with_no_attempt_counted(
    client: Any, gateway: Any, failure: BaseException, takes: int, ordered: bool, at_once: bool
) -> None:
    await gateway.broker.create_group(GroupConfig("g", max_attempts=1, ordered=ordered))
    for n in range(3):
        await client.send_one(body=b"%d" % n, message_group="a" if ordered else "")
    service = MessagingService(gateway.processor, gateway.clock)
    answers = Breaking(takes, failure, at_once=at_once)
    with pytest.raises(type(failure)):
        await service.receive_message(client.receive_request(auto_renew=True), CONTEXT, answers)
    delivered = [a.message.body for a in answers.taken if a.WhichOneof("content") == "message"]
    assert len(delivered) == max(takes - 1, 0)
    if ordered and delivered:
        # What was delivered is held, and holds back what comes after it.
        for taken in answers.taken[1:]:
            await client.ack(taken.message.system_properties.receipt_handle)
    again = await client.receive()
    assert sorted(m.body for m in again) == [b"%d" % n for n in range(len(delivered), 3)] or not ordered
    assert sorted([m.body for m in again] + delivered) == [b"0", b"1", b"2"]
    assert all(m.system_properties.delivery_attempt == 1 for m in again)


@pytest.mark.parametrize("takes", [3, 4, 5])
@pytest.mark.parametrize("at_once", [False, True])
async def test_an_answer_that_was_not_written_to_its_end_counts_as_cut_off(
    client: Any, gateway: Any, takes: int, at_once: bool
) -> None:
    """Also where all of its messages were: it fails, and then clients drop them."""
    for n in range(3):
        await client.send_one(body=b"%d" % n)
    answers = Breaking(takes, BrokenStream("gone"), at_once=at_once)
    service = MessagingService(gateway.processor, gateway.clock)
    with contextlib.nullcontext() if takes == 5 else pytest.raises(BrokenStream):
        await service.receive_message(client.receive_request(auto_renew=True), CONTEXT, answers)
    held = gateway.processor.auto_renewal.holdings.holder("c").deliveries
    assert [delivery.cut for delivery in held] == [takes < 5]


async def test_an_empty_receive_that_cannot_be_told_harms_nobody(client: Any, gateway: Any) -> None:
    service = MessagingService(gateway.processor, gateway.clock)
    with pytest.raises(BrokenStream):
        await service.receive_message(client.receive_request(), CONTEXT, Breaking(0, BrokenStream("gone")))
    assert await client.receive() == []


async def test_after_the_drain_a_receive_is_answered_empty_at_once(client: Any, gateway: Any) -> None:
    service = MessagingService(gateway.processor, gateway.clock)
    await client.send_one()
    service.drain()
    answers = Breaking(9, BrokenStream("gone"))
    await service.receive_message(client.receive_request(wait_ms=20_000), CONTEXT, answers)
    assert [a.WhichOneof("content") for a in answers.taken] == ["status", "delivery_timestamp"]
    assert answers.taken[0].status.code == pb.MESSAGE_NOT_FOUND
    assert len(await client.receive()) == 1


@pytest.mark.parametrize("hidden_first", [False, True])
async def test_what_a_client_cannot_take_is_hidden_and_not_returned_when_its_receive_ends(
    client: Any, gateway: Any, monkeypatch: pytest.MonkeyPatch, hidden_first: bool
) -> None:
    """A return would undo that it is hidden; a cluster would deliver it twice."""
    hide, asked, answered = gateway.broker.change_invisible, asyncio.Event(), asyncio.Event()

    async def hide_slowly(*of: Any, **more: Any) -> Any:
        handle = await hide(*of, **more) if hidden_first else None
        asked.set()
        await answered.wait()
        return handle or await hide(*of, **more)

    monkeypatch.setattr(gateway.broker, "change_invisible", hide_slowly)
    await client.send_one(body=bytes(4 * 1024 * 1024))
    service = MessagingService(gateway.processor, gateway.clock)
    context = Context(client_id="c", door="grpc", peer=CONTEXT.peer, language="RUST")
    answers = Breaking(9, BrokenStream("gone"))
    receive = asyncio.ensure_future(
        service.receive_message(client.receive_request(auto_renew=True), context, answers)
    )
    await asked.wait()
    receive.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receive
    await client.send_one(body=b"small")
    assert [message.body for message in await client.receive()] == [b"small"]
    answered.set()
    await gateway.processor.settlement.stop()  # it waits for what is under way
    await gateway.pass_s(10)  # the first rest of the group's policy
    assert [message.system_properties.delivery_attempt for message in await client.receive()] == [2]


async def test_a_receive_that_was_not_read_leaves_its_messages_to_its_repetition(
    client: Any, gateway: Any
) -> None:
    """Else the head of a message group is at two consumers, and the acknowledgement of one is refused."""
    await gateway.broker.create_group(GroupConfig("g", ordered=True))
    for body in (b"1", b"2"):
        await client.send_one(body=body, message_group="a")
    asked = {"auto_renew": True, "attempt_id": "one", "batch_size": 1}
    service, unread = MessagingService(gateway.processor, gateway.clock), Stuck()
    first = asyncio.ensure_future(service.receive_message(client.receive_request(**asked), CONTEXT, unread))
    await unread.asked.wait()
    (message,) = await client.receive(**asked)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await gateway.processor.settlement.stop()  # it waits for what is under way
    assert await client.receive(attempt_id="two") == []
    holders = gateway.processor.auto_renewal.holdings._holders.values()
    (held,) = (delivery for holder in holders for delivery in holder.deliveries)
    assert (len(held.newest), held.cut) == (1, False)
    answer = await client.ack(message.system_properties.receipt_handle)
    assert answer.status.code == pb.OK, answer
    assert [message.body for message in await client.receive(attempt_id="three")] == [b"2"]


async def test_a_repetition_that_was_not_read_is_cut_off_though_the_first_answer_was_written(
    client: Any, gateway: Any
) -> None:
    """Its client asked again as it had not got the first one, and is there: else it is renewed for hours."""
    await gateway.broker.create_group(GroupConfig("g", ordered=True))
    await client.send_one(body=b"1", message_group="a")
    asked = client.receive_request(auto_renew=True, attempt_id="one")
    service, unread = MessagingService(gateway.processor, gateway.clock), Stuck()
    await service.receive_message(asked, CONTEXT, Breaking(9, BrokenStream("gone")))
    again = asyncio.ensure_future(service.receive_message(asked, CONTEXT, unread))
    await unread.asked.wait()
    again.cancel()
    with pytest.raises(asyncio.CancelledError):
        await again
    await gateway.processor.settlement.stop()  # it waits for what is under way
    (held,) = gateway.processor.auto_renewal.holdings.holder("c").deliveries
    assert held.cut
