"""Messages as a send request carries them (protocol facts 3.1, 5.5, 5.7)."""

from __future__ import annotations

import pytest

from brokers.remote.produce.send_request import PackedLoad, complete, send_request, sent
from popgate.errors import BadRequest, Fault, PeerWireError, PropertiesTooLarge
from popgate.ids.message_id import encode_offset_message_id
from popgate.messages.packed_messages import PackedMessages
from popgate.model import Message, MessageType
from popgate.wire.frames.codes import RequestCode
from popgate.wire.messages.batches import decode_batch
from popgate.wire.messages.properties import LONGEST_IN_BATCH, decode_properties, encode_properties


def message(body: bytes = b"body", topic: str = "T", **fields) -> Message:
    block = encode_properties({"UNIQ_KEY": "ID", "color": "red"})
    return Message(topic, body, message_id="ID", **{"properties": block, "born_ms": 77, **fields})


def test_one_message_has_the_short_names_of_version_two():
    code, fields, body = send_request([message(flag=-5, sys_flag=1, producer_group="P")], 3, 77)
    assert code == RequestCode.SEND_MESSAGE_V2
    assert body == b"body"
    assert fields == {
        "a": "P",
        "b": "T",
        "c": "T",
        "d": "4",
        "e": "3",
        "f": "1",
        "g": "77",
        "h": "-5",
        "i": "UNIQ_KEY\x01ID\x02color\x01red\x02",
        "j": "0",
        "k": "false",
        "m": "false",
    }


def test_over_grpc_the_producer_group_is_the_topic():
    assert send_request([message()], 0, 1)[1]["a"] == "T"


def test_flags_are_numbers_of_32_bits():
    assert send_request([message(flag=1 << 31)], 0, 1)[1]["h"] == str(-(1 << 31))
    assert send_request([message(flag=(1 << 40) + 9)], 0, 1)[1]["h"] == "9"


def test_a_half_message_says_so():
    assert send_request([message(type=MessageType.TRANSACTION)], 0, 1)[1]["f"] == "4"


def test_retries_lift_their_counts_out_of_the_properties():
    block = encode_properties({"RECONSUME_TIME": "3", "MAX_RECONSUME_TIMES": "16"})
    _, fields, _ = send_request([message(topic="%RETRY%G", properties=block)], 0, 1)
    assert (fields["j"], fields["l"]) == ("3", "16")
    _, fields, _ = send_request([message(topic="%RETRY%G")], 0, 1)
    assert fields["j"] == "0"
    assert "l" not in fields


def test_several_messages_are_a_batch():
    """Brokers up to 5.3.3 would give the properties of the header to each message of it, over its own."""
    block = encode_properties({"UNIQ_KEY": "of the first", "TAGS": "red"})
    code, fields, body = send_request([message(b"a", flag=1, properties=block), message(b"")], 2, 1)
    assert code == RequestCode.SEND_BATCH_MESSAGE
    assert (fields["m"], fields["i"]) == ("true", "")
    assert decode_batch(body)[0].properties == block
    assert [(item.flag, item.body) for item in decode_batch(body)] == [(1, b"a"), (0, b"")]


def test_a_message_without_a_body_is_a_batch_of_one():
    """A broker fails on a request without a body."""
    code, fields, body = send_request([message(b"")], 2, 1)
    assert (code, fields["m"]) == (RequestCode.SEND_BATCH_MESSAGE, "true")
    assert len(decode_batch(body)) == 1


@pytest.mark.parametrize(
    "fields", [{"deliver_at_ms": 5}, {"type": MessageType.TRANSACTION}, {"topic": "%RETRY%G"}]
)
def test_a_message_without_a_body_cannot_be_held_back(fields):
    with pytest.raises(BadRequest) as refused:
        send_request([message(b"", **fields)], 0, 1)
    assert refused.value.fault is Fault.BODY_EMPTY


def test_every_message_of_an_answer_has_its_own_offset():
    some = [f"ID{n}" for n in range(3)]
    told = {"queueId": "2", "queueOffset": "40", "msgId": "A,B,C", "transactionId": "ID"}
    assert [(one.queue_id, one.offset, one.broker) for one in sent(some, "b", told)] == [
        (2, 40, "b"),
        (2, 41, "b"),
        (2, 42, "b"),
    ]


def test_every_message_of_an_answer_has_its_own_place_where_somebody_asks_for_it():
    ids = [encode_offset_message_id("10.0.0.1:10911", place) for place in (5, 105)]
    told = {"queueId": "2", "queueOffset": "40", "msgId": ",".join(ids)}
    places = [(one.store_host, one.commit_offset) for one in sent(["A", "B"], "b", told, placed=True)]
    assert places == [("10.0.0.1:10911", 5), ("10.0.0.1:10911", 105)]
    assert [one.commit_offset for one in sent(["A", "B"], "b", told)] == [-1, -1]


@pytest.mark.parametrize("told", ["", "nonsense", "A,B,C", ","])
def test_an_answer_that_tells_no_place_is_no_failure(told):
    fields = {"queueId": "2", "queueOffset": "40", "msgId": told}
    assert [one.commit_offset for one in sent(["A", "B"], "b", fields, placed=True)] == [-1, -1]


def test_a_recall_handle_is_passed_on():
    (one,) = sent(["ID"], "b", {"queueId": "0", "queueOffset": "0", "recallHandle": "RH"})
    assert (one.recall_handle, one.transaction_id) == ("RH", "")


@pytest.mark.parametrize(
    "told",
    [{}, {"queueId": "1"}, {"queueId": "x", "queueOffset": "1"}, {"queueId": "-1", "queueOffset": "0"}],
)
def test_an_answer_without_a_place_is_nonsense(told):
    with pytest.raises(PeerWireError):
        sent(["ID"], "b", told)


def test_a_complete_message_stays_as_it_is():
    one = message(born_ms=0)
    before = one.properties
    complete(one)
    assert one.properties == before


def test_what_is_missing_is_made():
    one = Message("T", b"x", tag="t", keys=("k", "l"), message_group="g", user_properties={"color": "red"})
    complete(one)
    assert one.message_id
    assert decode_properties(one.properties) == {
        "color": "red",
        "TAGS": "t",
        "KEYS": "k l",
        "__SHARDINGKEY": "g",
        "UNIQ_KEY": one.message_id,
    }
    nameless = Message("T", b"x", properties=b"color\x01red\x02")
    complete(nameless)
    assert decode_properties(nameless.properties)["UNIQ_KEY"] == nameless.message_id
    named = Message("T", b"x", properties=b"UNIQ_KEY\x01ID\x02")
    complete(named)
    assert named.message_id == "ID"


def test_the_sender_and_the_time_are_told_once():
    one = message(born_host="192.0.2.1:5", deliver_at_ms=9_000)
    complete(one)
    complete(one)
    told = decode_properties(one.properties)
    names = "__BORNHOST", "BORN_TIMESTAMP", "TIMER_DELIVER_MS"
    assert [told[name] for name in names] == ["192.0.2.1:5", "77", "9000"]
    assert {one.properties.count(name.encode()) for name in names} == {1}


@pytest.mark.parametrize("name", ["TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "DELAY"])
def test_a_time_that_the_door_told_stays(name):
    block = encode_properties({"UNIQ_KEY": "ID", name: "3"})
    one = message(deliver_at_ms=9_000, born_ms=0, properties=block)
    complete(one)
    assert decode_properties(one.properties) == {"UNIQ_KEY": "ID", name: "3"}


def test_packed_messages_of_several_callers_have_the_results_of_each():
    blocks = [encode_properties({"UNIQ_KEY": name}) for name in ("a", "b", "c")]
    load = PackedLoad(
        [
            PackedMessages("T", [b"a", b"b"], [b"1", b"2"], blocks[:2], [0, 0]),
            PackedMessages("T", [b"c"], [b"3"], blocks[2:], [0]),
        ]
    )
    answer = {"queueId": "3", "queueOffset": "70", "msgId": "x,y,z"}
    assert [*load.stored("broker", answer)] == sent(["a", "b", "c"], "broker", answer)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"queueId": "1"},
        {"queueId": "1", "queueOffset": "-1"},
        {"queueId": "1", "queueOffset": str(1 << 63)},
        {"queueId": str(1 << 31), "queueOffset": "1"},
        {"queueId": "one", "queueOffset": "1"},
    ],
)
def test_packed_messages_without_a_place_are_not_taken_for_stored(answer):
    load = PackedLoad([PackedMessages("T", [b"a", b"b"], [b"1", b"2"], [b"", b""], [0, 0])])
    with pytest.raises(PeerWireError):
        load.stored("broker", answer)


def test_a_block_that_cannot_be_stored_is_refused():
    with pytest.raises(PropertiesTooLarge):
        complete(message(properties=encode_properties({"UNIQ_KEY": "ID", "x": "y" * 40_000})))
    with pytest.raises(BadRequest):
        complete(Message("T", b"x", user_properties={"a": "b\x01c"}))


def test_a_sender_with_separators_in_its_name_breaks_nothing():
    one = message(born_host="a\x01b\x02c")
    complete(one)
    assert decode_properties(one.properties)["__BORNHOST"] == "abc"


def test_a_message_without_a_body_has_the_properties_that_a_batch_may_have():
    long = encode_properties({"UNIQ_KEY": "ID", "long": "x" * LONGEST_IN_BATCH})
    with pytest.raises(PropertiesTooLarge):
        send_request([message(b"", properties=long)], 0, 1)
    assert send_request([message(properties=long)], 0, 1)[0] == RequestCode.SEND_MESSAGE_V2
