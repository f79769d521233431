"""What a client names beside a handle: another message id or lite topic than came with it is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from zlib import crc32

import pytest

from popgate.errors import IllegalReceipt
from popgate.model import GroupConfig, MessageType, TopicConfig
from popgate.receipt import parse_receipt
from processors.limits import Limits
from protocols.grpc.handles import marked, marked_alike, receipt_of, receipts_of
from protocols.grpc.pb import definition_pb2 as pb
from protocols.grpc.pb import service_pb2 as rpc
from protocols.grpc.pb.definition_pb2 import Code
from protocols.grpc.pb.duration_pb2 import Duration

NAMES: Any = {"topic": pb.Resource(name="t"), "group": pb.Resource(name="g")}
Settle = Callable[..., Awaitable[Any]]


async def ack(client: Any, handle: str, **said: Any) -> Any:
    entry = rpc.AckMessageEntry(receipt_handle=handle, **said)
    answer = await client.call("AckMessage", rpc.AckMessageRequest(entries=[entry], **NAMES))
    (result,) = answer.entries
    assert (result.receipt_handle, result.message_id) == (handle, said.get("message_id", ""))
    return result.status


async def change(client: Any, handle: str, **said: Any) -> Any:
    request = rpc.ChangeInvisibleDurationRequest(
        receipt_handle=handle, invisible_duration=Duration(seconds=300), **NAMES, **said
    )
    answer = await client.call("ChangeInvisibleDuration", request)
    assert answer.status.code == Code.OK or answer.receipt_handle == handle
    return answer.status


async def bury(client: Any, handle: str, **said: Any) -> Any:
    request = rpc.ForwardMessageToDeadLetterQueueRequest(receipt_handle=handle, **NAMES, **said)
    return (await client.call("ForwardMessageToDeadLetterQueue", request)).status


every = pytest.mark.parametrize("settle", [ack, change, bury])


async def taken(client: Any, count: int = 1, **system: Any) -> list[Any]:
    for _ in range(count):
        await client.send_one(**system)
    messages = await client.receive(batch_size=32)
    assert len(messages) == count
    return [message.system_properties for message in messages]


@every
async def test_an_id_of_another_message_is_refused(client: Any, gateway: Any, settle: Settle) -> None:
    one, other = await taken(client, 2)
    status = await settle(client, one.receipt_handle, message_id=other.message_id)
    assert status.code == Code.INVALID_RECEIPT_HANDLE
    assert f"has another id than the request names, '{other.message_id}'" in status.message
    assert f"at offset {one.queue_offset} of queue {one.queue_id} of broker popgate," in status.message
    await gateway.pass_s(31)
    again = {message.system_properties.message_id for message in await client.receive(batch_size=32)}
    assert again == {one.message_id, other.message_id}


@every
async def test_its_own_id_and_none_are_taken(client: Any, settle: Settle) -> None:
    one, other = await taken(client, 2)
    assert (await settle(client, one.receipt_handle, message_id=one.message_id)).code == Code.OK
    assert (await settle(client, other.receipt_handle)).code == Code.OK


async def test_of_many_ids_only_the_wrong_are_refused(client: Any, gateway: Any) -> None:
    """Two of three are mixed up: the third is done, and the two are done when they are put right."""
    one, two, three = await taken(client, 3)
    entries = [
        rpc.AckMessageEntry(receipt_handle=system.receipt_handle, message_id=said.message_id)
        for system, said in ((one, two), (two, one), (three, three))
    ]
    answer = await client.call("AckMessage", rpc.AckMessageRequest(entries=entries, **NAMES))
    wrong = Code.INVALID_RECEIPT_HANDLE
    assert answer.status.code == Code.MULTIPLE_RESULTS
    assert [entry.status.code for entry in answer.entries] == [wrong, wrong, Code.OK]
    assert [entry.message_id for entry in answer.entries] == [
        two.message_id,
        one.message_id,
        three.message_id,
    ]
    assert "another id" in answer.entries[0].status.message
    for system in (one, two):
        assert (await ack(client, system.receipt_handle, message_id=system.message_id)).code == Code.OK
    await gateway.pass_s(31)
    assert await client.receive() == []


async def test_the_id_is_compared_at_every_replica_and_after_every_change(town: Any, gateway: Any) -> None:
    here, there = town.client(gateway), town.client(await town.gateway(beside=gateway))
    one, other = await taken(here, 2)
    handle = one.receipt_handle
    for seconds, client in enumerate((there, here, there), 100):
        answer = await client.change(handle, seconds)
        assert answer.receipt_handle != handle
        handle = answer.receipt_handle
        for settle in (ack, change, bury):
            status = await settle(client, handle, message_id=other.message_id)
            assert status.code == Code.INVALID_RECEIPT_HANDLE
    assert (await ack(here, handle, message_id=one.message_id)).code == Code.OK


@every
async def test_handles_that_say_nothing_of_their_message_are_taken(client: Any, settle: Settle) -> None:
    """Of RocketMQ's own proxy, and of gateways of before: in a rolling upgrade they serve beside this one."""
    (system,) = await taken(client)
    receipt = system.receipt_handle.rpartition(" ")[0]
    assert (await settle(client, receipt, message_id="other", lite_topic="none")).code == Code.OK


@every
async def test_where_ids_are_not_compared_no_handle_tells_them(town: Any, settle: Settle) -> None:
    """Also after a change, so that older gateways read them; those of the others are read all the same."""
    comparing = await town.gateway()
    client = town.client(await town.gateway(beside=comparing, limits=Limits(check_message_ids=False)))
    marked_one, _ = await taken(town.client(comparing), 2)
    assert (await settle(client, marked_one.receipt_handle, message_id="other")).code == Code.OK
    (system,) = await taken(client)
    assert len(system.receipt_handle.split(" ")) == 9
    renewed = (await client.change(system.receipt_handle, 100)).receipt_handle
    assert len(renewed.split(" ")) == 9
    assert (await settle(client, renewed, message_id="other")).code == Code.OK


async def test_a_handle_goes_with_its_message_through_a_retry_and_to_the_dead_letters(
    client: Any, gateway: Any
) -> None:
    await gateway.broker.create_group(GroupConfig("g", max_attempts=2))
    (first,) = await taken(client)
    await gateway.pass_s(31)
    (message,) = await client.receive()
    second = message.system_properties
    assert (second.message_id, second.delivery_attempt) == (first.message_id, 2)
    assert (await change(client, second.receipt_handle, message_id=second.message_id)).code == Code.OK
    assert (await bury(client, second.receipt_handle, message_id=second.message_id)).code == Code.OK
    (letter,) = await client.receive("%DLQ%g", "undertaker")
    entry = rpc.AckMessageEntry(
        receipt_handle=letter.system_properties.receipt_handle,
        message_id=letter.system_properties.message_id,
    )
    names: Any = {"topic": pb.Resource(name="%DLQ%g"), "group": pb.Resource(name="undertaker")}
    answer = await client.call("AckMessage", rpc.AckMessageRequest(entries=[entry], **names))
    assert answer.status.code == Code.OK


@every
async def test_an_id_of_34_characters_that_java_cuts_is_taken(client: Any, settle: Settle) -> None:
    """Its `MessageIdImpl` leaves out the two characters of a version when they are 00."""
    one, other = await taken(client, 1, message_id="00" + "7F" * 16), await taken(client, 1)
    assert (await settle(client, one[0].receipt_handle, message_id="7F" * 16)).code == Code.OK
    status = await settle(client, other[0].receipt_handle, message_id="7F" * 16)
    assert status.code == Code.INVALID_RECEIPT_HANDLE


@every
async def test_a_lite_topic_of_another_message_is_refused(client: Any, gateway: Any, settle: Settle) -> None:
    await gateway.broker.create_topic(TopicConfig("t", (MessageType.LITE,), attributes={}))
    request = rpc.SyncLiteSubscriptionRequest(action=pb.PARTIAL_ADD, lite_topic_set=["a", "b"], **NAMES)
    assert (await client.call("SyncLiteSubscription", request)).status.code == Code.OK
    (one,), (other,) = await taken(client, lite_topic="a"), await taken(client, lite_topic="b")
    status = await settle(client, one.receipt_handle, message_id=one.message_id, lite_topic="b")
    assert status.code == Code.INVALID_RECEIPT_HANDLE
    assert status.message.endswith("is not of the request's lite topic, 'b'")
    for system, lite_topic in ((one, "a"), (other, "")):
        status = await settle(
            client, system.receipt_handle, message_id=system.message_id, lite_topic=lite_topic
        )
        assert status.code == Code.OK


@every
async def test_a_lite_topic_of_a_message_that_has_none_is_refused(client: Any, settle: Settle) -> None:
    (system,) = await taken(client)
    status = await settle(client, system.receipt_handle, lite_topic="a")
    assert status.code == Code.INVALID_RECEIPT_HANDLE


# -- the text


RECEIPT = "100 1700000000000 60000 3 0 broker-a 2 101 4096"


def entry(handle: str, message_id: str = "", lite_topic: str = "") -> rpc.AckMessageEntry:
    return rpc.AckMessageEntry(receipt_handle=handle, message_id=message_id, lite_topic=lite_topic)


@pytest.mark.parametrize("message_id", ["01ABC", "0A0B0C0D00002A9F0000000000000001", "ä ö", "x" * 255])
@pytest.mark.parametrize("lite_topic", [None, "room"])
def test_a_mark_is_short_and_goes_with_the_receipt(message_id: str, lite_topic: str | None) -> None:
    handle = marked(RECEIPT.encode(), message_id.encode(), lite_topic and lite_topic.encode()).decode()
    assert len(handle) <= len(RECEIPT) + (9 if lite_topic is None else 18)
    for one in (entry(handle, message_id, lite_topic or ""), entry(handle, message_id), entry(handle)):
        assert read(one) == (RECEIPT, "")
    for one in (entry(handle, "other"), entry(handle, message_id, "other")):
        assert read(one) == ("", "refused")
        assert receipt_of(one, compare=False) == RECEIPT
    assert parse_receipt(handle) == parse_receipt(RECEIPT)
    newer = RECEIPT.replace("60000", "300000")
    assert read(entry(marked_alike(newer, handle), message_id)) == (newer, "")
    assert marked_alike(newer, RECEIPT) == newer


def read(one: rpc.AckMessageEntry) -> tuple[str, str]:
    """What one entry, or one of many, is read as, and whether it is refused."""
    (receipt,), refused = receipts_of([one], [one.receipt_handle], [one.message_id], compare=True)
    if refused:
        with pytest.raises(IllegalReceipt):
            receipt_of(one, compare=True)
    else:
        assert receipt_of(one, compare=True) == receipt
    return receipt, "refused" if refused else ""


@pytest.mark.parametrize("mark", ["", "x", "123456789", "1.", ".1", "1.2.3", "A", "-1", "1\n"])
def test_what_is_no_mark_is_left_to_be_refused(mark: str) -> None:
    assert read(entry(f"{RECEIPT} {mark}")) == (f"{RECEIPT} {mark}", "")


def test_an_id_that_is_none_takes_nothing_from_a_handle() -> None:
    """Its check sum is 0, as the place of a log's first message."""
    first = "0 1700000000000 60000 3 0 broker-a 0 0 0"
    assert read(entry(first)) == (first, "")


def test_a_last_field_that_looks_like_the_mark_is_read_over() -> None:
    """The place in the log may be the check sum of the id by chance; a receipt is good without it."""
    message_id = next(name for name in map(str, range(1_000)) if f"{crc32(name.encode()):x}".isdigit())
    handle = f"{RECEIPT.rpartition(' ')[0]} {crc32(message_id.encode()):x}"
    (receipt,), refused = receipts_of([entry(handle, message_id)], [handle], [message_id], compare=True)
    assert not refused
    assert parse_receipt(receipt)[:8] == parse_receipt(RECEIPT)[:8]
