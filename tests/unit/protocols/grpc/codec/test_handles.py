"""A message id or lite topic beside a handle that was delivered with another one is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from zlib import crc32

import pytest

from popgate.context import Context
from popgate.ids.receipt import parse_receipt
from popgate.model import GroupConfig, MessageType, TopicConfig
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.definition_pb2 import Code
from popgate.pb.duration_pb2 import Duration
from protocols.grpc.codec.handles import marked, marked_like, receipt_of, receipts_of

pytestmark = pytest.mark.usefixtures("reading")
NAMES: Any = {"topic": pb.Resource(name="t"), "group": pb.Resource(name="g")}
Settle = Callable[..., Awaitable[Any]]


async def ack(client: Any, handle: str, **fields: Any) -> Any:
    entry = rpc.AckMessageEntry(receipt_handle=handle, **fields)
    answer = await client.call("AckMessage", rpc.AckMessageRequest(entries=[entry], **NAMES))
    (result,) = answer.entries
    assert (result.receipt_handle, result.message_id) == (handle, fields.get("message_id", ""))
    return result.status


async def change(client: Any, handle: str, **fields: Any) -> Any:
    duration = Duration(seconds=300)
    request = rpc.ChangeInvisibleDurationRequest(
        receipt_handle=handle, invisible_duration=duration, **{**NAMES, **fields}
    )
    answer = await client.call("ChangeInvisibleDuration", request)
    assert answer.status.code == Code.OK or answer.receipt_handle == handle
    return answer.status


async def bury(client: Any, handle: str, **fields: Any) -> Any:
    request = rpc.ForwardMessageToDeadLetterQueueRequest(receipt_handle=handle, **{**NAMES, **fields})
    return (await client.call("ForwardMessageToDeadLetterQueue", request)).status


every = pytest.mark.parametrize("settle", [ack, change, bury])


async def taken(client: Any, count: int = 1, more: int = 0, **system: Any) -> list[Any]:
    """The system properties of so many new messages that the client holds, and of so many that come again."""
    for _ in range(count):
        await client.send_one(**system)
    messages = await client.receive(batch_size=32)
    assert len(messages) == count + more
    return [message.system_properties for message in messages]


@every
async def test_an_id_of_another_message_is_refused(client: Any, gateway: Any, settle: Settle) -> None:
    one, other = await taken(client, 2)
    status = await settle(client, one.receipt_handle, message_id=other.message_id)
    assert status.code == Code.INVALID_RECEIPT_HANDLE
    assert status.message.endswith(f"its message id is not '{other.message_id}'")
    await gateway.pass_s(31)
    again = {message.system_properties.message_id for message in await client.receive(batch_size=32)}
    assert again == {one.message_id, other.message_id}


@every
async def test_the_right_id_and_no_id_are_accepted(client: Any, settle: Settle) -> None:
    one, other = await taken(client, 2)
    assert (await settle(client, one.receipt_handle, message_id=one.message_id)).code == Code.OK
    assert (await settle(client, other.receipt_handle)).code == Code.OK


async def test_of_many_entries_only_the_wrong_are_refused(client: Any, gateway: Any) -> None:
    """Two of three are mixed up: the third is done, and the two are done when they are put right."""
    one, two, three = await taken(client, 3)
    entries = [
        rpc.AckMessageEntry(receipt_handle=system.receipt_handle, message_id=named.message_id)
        for system, named in ((one, two), (two, one), (three, three))
    ]
    answer = await client.call("AckMessage", rpc.AckMessageRequest(entries=entries, **NAMES))
    wrong = Code.INVALID_RECEIPT_HANDLE
    assert answer.status.code == Code.MULTIPLE_RESULTS
    assert [entry.status.code for entry in answer.entries] == [wrong, wrong, Code.OK]
    for entry, named in zip(answer.entries, (two, one, three), strict=True):
        assert entry.message_id == named.message_id
        assert entry.status.code == Code.OK or f"'{named.message_id}'" in entry.status.message
    for system in (one, two):
        assert (await ack(client, system.receipt_handle, message_id=system.message_id)).code == Code.OK
    await gateway.pass_s(31)
    assert await client.receive() == []


async def test_each_entry_has_its_own_status(client: Any, gateway: Any) -> None:
    """One delivery is over, and so is that of a handle from elsewhere; the third is finished."""
    (old,) = await taken(client)
    await gateway.pass_s(31)
    (new,) = await taken(client, 0, more=1)
    strange = marked(b"0 1 2 3 0 nowhere 3 4 5", new.message_id.encode()).decode()
    entries = [
        rpc.AckMessageEntry(receipt_handle=handle, message_id=new.message_id)
        for handle in (old.receipt_handle, strange, new.receipt_handle)
    ]
    assert old.message_id == new.message_id
    answer = await client.call("AckMessage", rpc.AckMessageRequest(entries=entries, **NAMES))
    assert answer.status.code == Code.MULTIPLE_RESULTS
    wrong = Code.INVALID_RECEIPT_HANDLE
    assert [entry.status.code for entry in answer.entries] == [wrong, wrong, Code.OK]
    for told, entry in zip(answer.entries, entries, strict=True):
        assert (told.message_id, told.receipt_handle) == (entry.message_id, entry.receipt_handle)


async def test_entries_that_are_all_finished_are_told_one_by_one(client: Any, gateway: Any) -> None:
    systems = await taken(client, 3)
    entries = [
        rpc.AckMessageEntry(receipt_handle=system.receipt_handle, message_id=system.message_id)
        for system in systems
    ]
    answer = await client.call("AckMessage", rpc.AckMessageRequest(entries=entries, **NAMES))
    assert answer.status.code == Code.OK
    for told, entry in zip(answer.entries, entries, strict=True):
        assert (told.message_id, told.receipt_handle) == (entry.message_id, entry.receipt_handle)
        assert told.status == answer.status
    await gateway.pass_s(31)
    assert await client.receive() == []


@pytest.mark.parametrize("settle", [change, bury])
async def test_a_wrong_name_is_refused_before_a_wrong_id(client: Any, settle: Settle) -> None:
    """As in an acknowledgement: nothing is said of a handle to a client that may not use its topic."""
    (system,) = await taken(client)
    bad = pb.Resource(name="a b")
    status = await settle(client, system.receipt_handle, message_id="other", topic=bad)
    assert status.code == Code.ILLEGAL_TOPIC


async def test_ids_are_compared_at_all_replicas_and_after_changes(town: Any, gateway: Any) -> None:
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
async def test_a_handle_without_a_mark_is_accepted_unchecked(client: Any, settle: Settle) -> None:
    """As RocketMQ's own proxy issues it; the new handle of a change has no mark either."""
    (system,) = await taken(client)
    receipt = system.receipt_handle.rpartition(" ")[0]
    changed = await client.change(receipt, 100)
    for handle in (receipt, changed.receipt_handle):
        assert len(handle.split(" ")) == 9
    assert (await settle(client, changed.receipt_handle, message_id="other", lite_topic="no")).code == Code.OK


async def test_redeliveries_and_dead_letters_have_the_id_of_their_mark(client: Any, gateway: Any) -> None:
    await gateway.broker.create_group(GroupConfig("g", max_attempts=2))
    (first,) = await taken(client)
    await gateway.pass_s(31)
    (message,) = await client.receive()
    second = message.system_properties
    assert (second.message_id, second.delivery_attempt) == (first.message_id, 2)
    assert (await change(client, second.receipt_handle, message_id=second.message_id)).code == Code.OK
    assert (await bury(client, second.receipt_handle, message_id=second.message_id)).code == Code.OK
    (letter,) = await client.receive("%DLQ%g", "undertaker")
    system = letter.system_properties
    answer = await client.ack(
        system.receipt_handle, topic="%DLQ%g", group="undertaker", message_id=system.message_id
    )
    assert answer.status.code == Code.OK


@every
@pytest.mark.parametrize("version", ["00", "01"])
async def test_an_id_that_its_client_cut_is_accepted(client: Any, settle: Settle, version: str) -> None:
    """Java leaves out the first two of 34 characters if they are 00, Python before 5.0.8 always."""
    (one,), (other,) = await taken(client, message_id=version + "7F" * 16), await taken(client)
    assert (await settle(client, one.receipt_handle, message_id="7F" * 16)).code == Code.OK
    status = await settle(client, other.receipt_handle, message_id="7F" * 16)
    assert status.code == Code.INVALID_RECEIPT_HANDLE


@every
async def test_a_new_id_of_the_python_client_is_accepted(client: Any, settle: Settle) -> None:
    """Its `Producer.send` writes a new id into a message that was received, and is then acknowledged."""
    python = client.like(language="PYTHON")
    (system,) = await taken(python)
    new_id = "01" + "7F" * 16
    for sender, message_id in ((client, new_id), (python, "other")):
        status = await settle(sender, system.receipt_handle, message_id=message_id)
        assert status.code == Code.INVALID_RECEIPT_HANDLE
    assert (await settle(python, system.receipt_handle, message_id=new_id)).code == Code.OK


@every
async def test_a_lite_topic_of_another_message_is_refused(client: Any, gateway: Any, settle: Settle) -> None:
    await gateway.broker.create_topic(TopicConfig("t", (MessageType.LITE,), attributes={}))
    request = rpc.SyncLiteSubscriptionRequest(action=pb.PARTIAL_ADD, lite_topic_set=["a", "b"], **NAMES)
    assert (await client.call("SyncLiteSubscription", request)).status.code == Code.OK
    (one,), (other,) = await taken(client, lite_topic="a"), await taken(client, lite_topic="b")
    status = await settle(client, one.receipt_handle, message_id=one.message_id, lite_topic="b")
    assert status.code == Code.INVALID_RECEIPT_HANDLE
    assert status.message.endswith("its lite topic is not 'b'")
    for system, lite_topic in ((one, "a"), (other, "")):
        status = await settle(
            client, system.receipt_handle, message_id=system.message_id, lite_topic=lite_topic
        )
        assert status.code == Code.OK


@every
async def test_a_lite_topic_of_a_message_without_one_is_refused(client: Any, settle: Settle) -> None:
    (system,) = await taken(client)
    status = await settle(client, system.receipt_handle, lite_topic="a")
    assert status.code == Code.INVALID_RECEIPT_HANDLE


# -- the text


RECEIPT = "100 1700000000000 60000 3 0 broker-a 2 101 4096"
JAVA = Context(language="JAVA")


def entry(handle: str, message_id: str = "", lite_topic: str = "") -> rpc.AckMessageEntry:
    return rpc.AckMessageEntry(receipt_handle=handle, message_id=message_id, lite_topic=lite_topic)


def read(one: rpc.AckMessageEntry) -> str:
    """The receipt of an entry, alone and as one of many; blank if it is refused."""
    receipts, errors = receipts_of([one], [one.receipt_handle], [one.message_id], JAVA)
    receipt, error = receipt_of(one, JAVA)
    assert receipts == [receipt]
    assert (error is None) == (errors == {}) == (receipt != "")
    return receipt


@pytest.mark.parametrize(
    "message_id", ["01ABC", "0A0B0C0D00002A9F0000000000000001", "01" * 17, "ä ö", "x" * 255]
)
@pytest.mark.parametrize("lite_topic", [None, "room"])
def test_a_mark_is_short_and_goes_with_the_receipt(message_id: str, lite_topic: str | None) -> None:
    handle = marked(RECEIPT.encode(), message_id.encode(), lite_topic and lite_topic.encode()).decode()
    assert len(handle) <= len(RECEIPT) + (9 if lite_topic is None else 18)
    for one in (entry(handle, message_id, lite_topic or ""), entry(handle, message_id), entry(handle)):
        assert read(one) == RECEIPT
    for one in (entry(handle, "other"), entry(handle, message_id, "other")):
        assert read(one) == ""
    assert parse_receipt(handle) == parse_receipt(RECEIPT)
    newer = RECEIPT.replace("60000", "300000")
    assert read(entry(marked_like(newer, handle), message_id)) == newer
    assert marked_like(newer, RECEIPT) == newer


@pytest.mark.parametrize("message_id", ["", "01ABC"])
@pytest.mark.parametrize("mark", ["", "x", "123456789", "1.", ".1", "1.2.3", "A", "-1", "1\n"])
def test_what_is_no_mark_is_left_to_be_refused(mark: str, message_id: str) -> None:
    assert read(entry(f"{RECEIPT} {mark}", message_id)) == f"{RECEIPT} {mark}"


def test_an_empty_id_takes_nothing_from_a_handle() -> None:
    """Its check sum is 0, as the place of a log's first message."""
    first = "0 1700000000000 60000 3 0 broker-a 0 0 0"
    assert read(entry(first)) == first


def test_a_last_field_equal_to_the_mark_can_be_missed() -> None:
    """The place in the log may be the check sum of the id by chance; a receipt is good without it."""
    message_id = next(name for name in map(str, range(1_000)) if f"{crc32(name.encode()):x}".isdigit())
    handle = f"{RECEIPT.rpartition(' ')[0]} {crc32(message_id.encode()):x}"
    (receipt,), errors = receipts_of([entry(handle, message_id)], [handle], [message_id], JAVA)
    assert not errors
    assert parse_receipt(receipt)[:8] == parse_receipt(RECEIPT)[:8]
