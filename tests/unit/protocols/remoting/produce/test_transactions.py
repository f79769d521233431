"""Transactions of classic producers, on an embedded broker: ended by numbers, asked about, ended again."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from popgate.context import Context
from popgate.filters.compiled import compile_filter
from popgate.ids.message_id import decode_offset_message_id, make_message_id
from popgate.model import FilterKind, Message, MessageType, Pop, Sent, StoredMessage, TransactionCheck
from popgate.wire.bodies.heartbeats import HeartbeatData
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.headers import Serialization
from popgate.wire.frames.remoting import Command, RemotingWire, encode_command
from popgate.wire.messages.hosts import host_text
from popgate.wire.messages.properties import decode_properties
from popgate.wire.messages.records import decode_record
from protocols.remoting.clients.heartbeats import Heartbeats
from protocols.remoting.codec.marks import Origin
from protocols.remoting.produce.transactions import TransactionHandler, ask_producer
from tests.unit.protocols.remoting.conftest import ADDRESS, Caller, FakePeer, Stage

END, ASK = RequestCode.END_TRANSACTION, RequestCode.CHECK_TRANSACTION_STATE
UNKNOWN, COMMIT, ROLLBACK = 0, 8, 12


@pytest.fixture
def room(stage: Stage) -> TransactionHandler:
    return TransactionHandler(stage.door_context)


async def half(stage: Stage, group: str = "makers") -> Sent:
    await stage.topic("orders", queues=1)
    await stage.group("readers")
    message = Message(
        "orders",
        b"body",
        make_message_id(),
        MessageType.TRANSACTION,
        producer_group=group,
        user_properties={"colour": "red"},
    )
    (sent,) = await stage.processor.send(Context(), [message])
    assert isinstance(sent, Sent)
    return sent


def ended(sent: Sent, word: int, group: str = "makers", **more: object) -> dict[str, object]:
    """The fields that a client makes of the answer to its send."""
    return {
        "topic": "orders",
        "producerGroup": group,
        "tranStateTableOffset": sent.offset,
        "commitLogOffset": sent.commit_offset,
        "commitOrRollback": word,
        "fromTransactionCheck": False,
        "msgId": sent.message_id,
        "transactionId": sent.message_id,
        **more,
    }


async def received(stage: Stage) -> list[StoredMessage]:
    everything = compile_filter(FilterKind.TAG, "*")
    return await stage.broker.pop(Context(), Pop("orders", "readers", everything, 60_000))


async def test_a_commit_delivers(stage: Stage, room: TransactionHandler) -> None:
    sent = await half(stage)
    assert await received(stage) == []
    caller = Caller(room)
    await caller.ok(END, ended(sent, COMMIT))
    (message,) = await received(stage)
    assert message.body == b"body"
    # Once more is answered alike, the other way is not.
    await caller.ok(END, ended(sent, COMMIT))
    refused = await caller.ask(END, ended(sent, ROLLBACK))
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert await received(stage) == []


async def test_a_rollback_drops(stage: Stage, room: TransactionHandler) -> None:
    sent = await half(stage)
    await Caller(room).ok(END, ended(sent, ROLLBACK))
    assert await received(stage) == []
    refused = await Caller(room).ask(END, ended(sent, COMMIT))
    assert refused.code == ResponseCode.SYSTEM_ERROR


async def test_old_clients_name_neither_topic_nor_broker(stage: Stage, room: TransactionHandler) -> None:
    sent = await half(stage)
    fields = ended(sent, COMMIT)
    del fields["topic"]
    await Caller(room, peer=FakePeer(version=300)).ok(END, fields)
    assert len(await received(stage)) == 1


async def test_newer_clients_name_the_broker(stage: Stage, room: TransactionHandler) -> None:
    sent = await half(stage)
    refused = await Caller(room).ask(END, ended(sent, COMMIT, bname="elsewhere"))
    assert refused.code == ResponseCode.SYSTEM_ERROR
    await Caller(room).ok(END, ended(sent, COMMIT, bname=stage.broker.name))
    assert len(await received(stage)) == 1


async def test_who_does_not_know_ends_nothing(stage: Stage, room: TransactionHandler) -> None:
    sent = await half(stage)
    await Caller(room).ok(END, ended(sent, UNKNOWN, fromTransactionCheck=True))
    await Caller(room).ok(END, ended(sent, COMMIT))
    assert len(await received(stage)) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"producerGroup": "others"},
        {"commitLogOffset": 12345},
        {"tranStateTableOffset": 12345},
        {"commitLogOffset": -1},
        {"commitLogOffset": None},
        {"commitLogOffset": "x"},
        {"tranStateTableOffset": 1 << 63},
        {"commitOrRollback": 1},
        {"commitOrRollback": 16},
        {"producerGroup": None},
        {"topic": "parcels"},
    ],
)
async def test_what_names_no_half_message_ends_none(
    stage: Stage, room: TransactionHandler, wrong: Mapping[str, object]
) -> None:
    sent = await half(stage)
    refused = await Caller(room).ask(END, {**ended(sent, COMMIT), **wrong})
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert refused.remark
    assert await received(stage) == []


async def joined(stage: Stage, *groups: str, address: str = "10.1.1.1:1") -> FakePeer:
    peer = FakePeer(address)
    body = HeartbeatData(f"c@{address}", groups).encode()
    room = Heartbeats(stage.door_context, ask_producer)
    await Caller(room, peer=peer).ok(RequestCode.HEART_BEAT, body=body)
    return peer


async def test_a_producer_of_the_group_is_asked_and_its_answer_counts(
    stage: Stage, room: TransactionHandler
) -> None:
    other, peer = await joined(stage, "others", address="10.1.1.2:2"), await joined(stage, "makers")
    sent = await half(stage)
    for _ in range(60):
        await stage.pass_s(1)
        if peer.told:
            break
    ((code, fields, body), *_) = peer.told
    assert code == ASK
    assert other.told == []
    assert fields["topic"] == "orders"
    assert (fields["transactionId"], fields["bname"]) == (sent.message_id, stage.broker.name)
    record = decode_record(body, verify=True)
    assert (record.topic, record.body) == ("orders", b"body")
    here = decode_offset_message_id(fields["offsetMsgId"])
    assert here == (host_text(record.store_host), record.commit_offset)
    assert here == (ADDRESS, int(fields["commitLogOffset"]))
    properties = decode_properties(record.properties)
    assert (properties["PGROUP"], properties["UNIQ_KEY"]) == ("makers", sent.message_id)
    assert properties["colour"] == "red"
    answer = {
        "topic": fields["topic"],
        "producerGroup": properties["PGROUP"],
        "tranStateTableOffset": fields["tranStateTableOffset"],
        "commitLogOffset": fields["commitLogOffset"],
        "commitOrRollback": COMMIT,
        "fromTransactionCheck": True,
        "msgId": properties["UNIQ_KEY"],
        "transactionId": fields["transactionId"],
        "bname": fields["bname"],
    }
    await Caller(room, peer=peer).ok(END, answer)
    assert len(await received(stage)) == 1


async def test_who_is_asked_reads_what_it_is_told_in_both_encodings(stage: Stage) -> None:
    """The fields and the body are those of one message, and all of it is text that binary headers carry."""
    peer = await joined(stage, "makers")
    await half(stage)
    for _ in range(60):
        await stage.pass_s(1)
        if peer.told:
            break
    code, fields, body = peer.told[0]
    for serialization in Serialization:
        wire = RemotingWire()
        wire.receive(encode_command(Command(code, 1, 2, fields, body, serialization=serialization)))
        event = wire.next_event()
        assert event is not None
        assert (event.fields, event.body) == (fields, body)


async def test_a_producer_that_reads_nothing_is_passed_over(stage: Stage) -> None:
    stuck, well = await joined(stage, "makers"), await joined(stage, "makers", address="10.1.1.2:2")
    stuck.full = True
    await half(stage)
    for _ in range(60):
        await stage.pass_s(1)
        if well.told:
            break
    assert well.told
    assert stuck.told == []


async def test_a_check_without_a_place_is_not_for_classic_producers() -> None:
    peer = FakePeer()
    stored = StoredMessage("orders", "b", 0, 0, 0, 0, 0, 0, "", 0, "", b"", b"")
    check = TransactionCheck("orders", "makers", "id", stored, 1)
    assert not ask_producer(peer, check, Origin(ADDRESS))
    assert peer.told == []
