"""Messages in and out."""

from __future__ import annotations

import gzip
import sys
import zlib
from hashlib import md5, sha1

import lz4.frame
import pytest
import zstandard

from popgate.context import Context
from popgate.errors import BadRequest, Fault
from popgate.model import FilterKind, MessageType, Permission, Queue, Route, StoredMessage
from popgate.pb import definition_pb2 as pb
from popgate.pb.duration_pb2 import Duration
from popgate.pb.service_pb2 import PullMessageRequest, ReceiveMessageRequest
from popgate.pb.timestamp_pb2 import Timestamp
from popgate.wire.messages.properties import encode_properties
from protocols.grpc.codec.convert import message_in, message_out, millis_of, queue_out, receive_in, types_out
from protocols.grpc.service.offsets import pull_in

CONTEXT = Context(client_id="c", peer="10.1.2.3:4444")
NOW_MS = 1_700_000_000_000
GZIP = pb.Encoding.GZIP


def incoming(**fields: object) -> pb.Message:
    system = pb.SystemProperties(message_id="01AB", **fields)
    return pb.Message(topic=pb.Resource(name="Orders"), system_properties=system, body=b"hello")


def stored(properties: dict[str, str] | None = None, **fields: object) -> StoredMessage:
    values: dict[str, object] = {
        "topic": "Orders",
        "broker": "popgate",
        "queue_id": 3,
        "offset": 7,
        "commit_offset": 123456789,
        "sys_flag": 0,
        "flag": 0,
        "born_ms": 1_700_000_000_001,
        "born_host": "10.9.9.9:1",
        "store_ms": 1_700_000_000_002,
        "store_host": "10.0.0.1:10911",
        "body": b"hello",
        "properties": encode_properties({"UNIQ_KEY": "01AB"} if properties is None else properties),
        "attempt": 1,
        "receipt": "7 1700000000000 60000 0 0 popgate 3 7 123456789",
    }
    return StoredMessage(**(values | fields))  # type: ignore[arg-type]


def test_a_message_comes_in_with_all_its_fields() -> None:
    message = incoming(
        tag="A",
        keys=["k1", "k2"],
        born_timestamp=Timestamp(seconds=1_700_000_000, nanos=5_000_000),
        born_host="client-7",
        trace_context="00-ab",
        message_group="g",
    )
    message.user_properties["größe"] = "läuft"
    taken = message_in(message, CONTEXT, NOW_MS)
    assert (taken.topic, taken.body, taken.message_id) == ("Orders", b"hello", "01AB")
    assert (taken.tag, taken.keys, taken.message_group) == ("A", ("k1", "k2"), "g")
    assert taken.user_properties == {"größe": "läuft"}
    assert (taken.born_ms, taken.born_host) == (1_700_000_000_005, "client-7")
    assert (taken.trace_context, taken.producer_group) == ("00-ab", "Orders")
    assert (taken.sys_flag, taken.attempt, taken.queue_id, taken.properties) == (0, 0, -1, b"")


def test_a_message_without_a_born_host_is_born_at_the_end_of_its_connection() -> None:
    assert message_in(incoming(), CONTEXT, NOW_MS).born_host == "10.1.2.3:4444"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"born_timestamp": Timestamp(seconds=-1)},
        {"born_timestamp": Timestamp(seconds=2**62)},
        {"born_timestamp": Timestamp(seconds=-(2**62), nanos=-5)},
    ],
)
def test_a_message_that_does_not_say_when_it_was_born_was_born_now(fields: dict[str, object]) -> None:
    assert message_in(incoming(**fields), CONTEXT, NOW_MS).born_ms == NOW_MS


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, MessageType.NORMAL),
        ({"message_type": pb.MessageType.FIFO}, MessageType.NORMAL),
        ({"message_group": "g"}, MessageType.FIFO),
        ({"delivery_timestamp": Timestamp(seconds=5)}, MessageType.DELAY),
        ({"delivery_timestamp": Timestamp(seconds=5), "message_group": "g"}, MessageType.DELAY),
        ({"message_type": pb.MessageType.TRANSACTION}, MessageType.TRANSACTION),
        ({"message_type": pb.MessageType.TRANSACTION, "message_group": "g"}, MessageType.TRANSACTION),
    ],
)
def test_the_type_follows_from_the_fields(fields: dict[str, object], kind: MessageType) -> None:
    assert message_in(incoming(**fields), CONTEXT, NOW_MS).type is kind


@pytest.mark.parametrize(
    ("time", "ms"),
    [
        (Timestamp(seconds=2, nanos=1), 2001),
        (Timestamp(seconds=2, nanos=3_000_000), 2003),
        (Timestamp(), 1),
        (Timestamp(seconds=-5), 1),
        (Timestamp(seconds=2**62), 2**62 * 1000),
    ],
)
def test_a_delivery_time_is_never_early_and_never_lost(time: Timestamp, ms: int) -> None:
    assert message_in(incoming(delivery_timestamp=time), CONTEXT, NOW_MS).deliver_at_ms == ms


def test_the_recovery_time_of_a_transaction_comes_in() -> None:
    message = incoming(
        message_type=pb.MessageType.TRANSACTION,
        orphaned_transaction_recovery_duration=Duration(seconds=30),
    )
    assert message_in(message, CONTEXT, NOW_MS).recovery_ms == 30_000


def test_a_packed_body_keeps_its_bytes_and_its_mark() -> None:
    message = incoming(body_encoding=GZIP)
    message.body = gzip.compress(b"hello")
    taken = message_in(message, CONTEXT, NOW_MS)
    assert (taken.body, taken.sys_flag) == (message.body, 1)


@pytest.mark.parametrize(
    ("kind", "checksum"),
    [
        (pb.DigestType.MD5, md5(b"hello").hexdigest()),
        (pb.DigestType.MD5, md5(b"hello").hexdigest().upper()),
        (pb.DigestType.SHA1, sha1(b"hello").hexdigest().upper()),
        (pb.DigestType.CRC32, f"{zlib.crc32(b'hello'):08X}"),
        (pb.DigestType.CRC32, f"{zlib.crc32(b'hello'):x}"),
        (pb.DigestType.CRC32, f"00{zlib.crc32(b'hello'):x}"),
        (pb.DigestType.MD5, ""),
        (pb.DigestType.DIGEST_TYPE_UNSPECIFIED, "whatever"),
        (77, "of a later version"),
    ],
)
def test_a_right_digest_passes(kind: pb.DigestType, checksum: str) -> None:
    message_in(incoming(body_digest=pb.Digest(type=kind, checksum=checksum)), CONTEXT, NOW_MS)


@pytest.mark.parametrize("kind", [pb.DigestType.MD5, pb.DigestType.SHA1, pb.DigestType.CRC32])
def test_a_wrong_digest_is_a_corrupted_message(kind: pb.DigestType) -> None:
    message = incoming(body_digest=pb.Digest(type=kind, checksum="0" * 32))
    with pytest.raises(BadRequest) as caught:
        message_in(message, CONTEXT, NOW_MS)
    assert caught.value.fault is Fault.MESSAGE_CORRUPTED
    assert "5 bytes" in caught.value.sentence


def test_a_lite_topic_comes_in_and_an_empty_one_is_not_taken_for_none() -> None:
    assert message_in(incoming(lite_topic="room-1"), CONTEXT, NOW_MS).lite_topic == "room-1"
    assert message_in(incoming(lite_topic=""), CONTEXT, NOW_MS).lite_topic == " "
    assert message_in(incoming(), CONTEXT, NOW_MS).lite_topic == ""


@pytest.mark.parametrize(
    ("fields", "priority"),
    [
        ({}, None),
        ({"priority": 3}, 3),
        ({"priority": -1}, -1),
        ({"priority": 0}, None),
        ({"priority": 0, "message_type": pb.MessageType.PRIORITY}, 0),
        ({"message_type": pb.MessageType.PRIORITY}, None),
    ],
)
def test_a_priority_of_zero_counts_when_the_message_says_that_it_has_one(
    fields: dict[str, object], priority: int | None
) -> None:
    assert message_in(incoming(**fields), CONTEXT, NOW_MS).priority == priority


@pytest.mark.parametrize(
    ("block", "kind", "fields"),
    [
        ({"__LITE_TOPIC": "room-1"}, pb.MessageType.LITE, {"lite_topic": "room-1"}),
        ({"_SYS_MSG_PRIORITY_": "0"}, pb.MessageType.PRIORITY, {"priority": 0}),
        ({"_SYS_MSG_PRIORITY_": "77"}, pb.MessageType.PRIORITY, {"priority": 77}),
        ({"_SYS_MSG_PRIORITY_": "2147483647"}, pb.MessageType.PRIORITY, {"priority": (1 << 31) - 1}),
        ({"_SYS_MSG_PRIORITY_": "2147483648"}, pb.MessageType.PRIORITY, {}),
        ({"_SYS_MSG_PRIORITY_": "urgent"}, pb.MessageType.PRIORITY, {}),
        ({"_SYS_MSG_PRIORITY_": "9" * 30}, pb.MessageType.PRIORITY, {}),
    ],
)
def test_lite_topic_and_priority_go_out_as_fields(
    block: dict[str, str], kind: int, fields: dict[str, object]
) -> None:
    message = message_out(stored({"UNIQ_KEY": "01", **block}))
    system = message.system_properties
    assert system.message_type == kind
    told = {name: getattr(system, name) for name in ("lite_topic", "priority") if system.HasField(name)}
    assert told == fields
    assert not message.user_properties


def test_a_message_goes_out_with_all_its_fields() -> None:
    properties = {
        "UNIQ_KEY": "01AB",
        "PGROUP": "Orders",
        "TAGS": "A",
        "KEYS": "k1 k2",
        "__SHARDINGKEY": "g",
        "TRACE_CONTEXT": "00-ab",
        "__BORNHOST": "client-7",
        "BORN_TIMESTAMP": "1700000000001",
        "größe": "läuft",
        "INNER_NUM": "2",
        "__transactionId__": "x",
    }
    topic = pb.Resource(resource_namespace="ns", name="Orders")
    out = message_out(stored(properties), topic)
    system = out.system_properties
    assert out.topic == topic
    assert dict(out.user_properties) == {"größe": "läuft"}
    assert (out.body, system.body_encoding) == (b"hello", pb.Encoding.IDENTITY)
    assert (system.body_digest.type, system.body_digest.checksum) == (
        pb.DigestType.MD5,
        "5D41402ABC4B2A76B9719D911017C592",
    )
    assert (system.tag, list(system.keys), system.message_id) == ("A", ["k1", "k2"], "01AB")
    assert (system.message_type, system.message_group) == (pb.MessageType.FIFO, "g")
    assert (system.born_host, system.store_host) == ("client-7", "10.0.0.1:10911")
    assert system.born_timestamp.ToMilliseconds() == 1_700_000_000_001
    assert system.store_timestamp.ToMilliseconds() == 1_700_000_000_002
    assert (system.queue_id, system.queue_offset, system.delivery_attempt) == (3, 7, 1)
    assert system.receipt_handle == "7 1700000000000 60000 0 0 popgate 3 7 123456789 8576f6e2"
    assert system.trace_context == "00-ab"
    assert system.invisible_duration.ToMilliseconds() == 60_000
    absent = ("dead_letter_queue", "delivery_timestamp", "lite_topic", "priority")
    assert [name for name in absent if system.HasField(name)] == []


def test_a_plain_message_has_no_fields_it_was_not_given() -> None:
    system = message_out(stored(receipt="", attempt=0)).system_properties
    absent = ("tag", "message_group", "trace_context", "receipt_handle", "delivery_timestamp")
    absent += ("invisible_duration",)
    assert [name for name in absent if system.HasField(name)] == []
    assert list(system.keys) == []
    assert (system.born_host, system.delivery_attempt) == ("10.9.9.9", 1)
    assert system.message_type == pb.MessageType.NORMAL


def test_a_message_read_by_offset_says_how_often_it_was_sent_back() -> None:
    assert (
        message_out(stored(receipt="", attempt=0, reconsume_times=2)).system_properties.delivery_attempt == 3
    )
    # A delivery counts itself.
    assert message_out(stored(attempt=2, reconsume_times=5)).system_properties.delivery_attempt == 2
    # As often as a producer says so.
    most = stored(receipt="", attempt=0, reconsume_times=(1 << 31) - 1)
    assert message_out(most).system_properties.delivery_attempt == (1 << 31) - 1


def test_a_message_without_an_id_of_its_own_is_named_by_its_place() -> None:
    out = message_out(stored({"TAGS": "A"}))
    assert out.system_properties.message_id == "0A00000100002A9F00000000075BCD15"


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({"TRAN_MSG": "true", "TIMER_DELIVER_MS": "5"}, pb.MessageType.TRANSACTION),
        ({"TRAN_MSG": "false"}, pb.MessageType.NORMAL),
        ({"TIMER_DELIVER_MS": "5", "__SHARDINGKEY": "g"}, pb.MessageType.DELAY),
        ({"DELAY": "3"}, pb.MessageType.DELAY),
        ({"TIMER_DELAY_SEC": "3"}, pb.MessageType.DELAY),
        ({"__SHARDINGKEY": "g"}, pb.MessageType.FIFO),
    ],
)
def test_the_type_that_goes_out_follows_from_the_properties(
    properties: dict[str, str], kind: pb.MessageType
) -> None:
    assert message_out(stored(properties)).system_properties.message_type == kind


def test_the_delivery_time_of_a_delayed_message_goes_out() -> None:
    out = message_out(stored({"TIMER_DELIVER_MS": "1700000000123"}))
    assert out.system_properties.delivery_timestamp.ToMilliseconds() == 1_700_000_000_123
    for odd in ("-1x", "9" * 5000, "²"):
        out = message_out(stored({"TIMER_DELIVER_MS": odd}))
        assert not out.system_properties.HasField("delivery_timestamp")


@pytest.mark.parametrize(("ms", "told"), [(-1, 0), (2**63 - 1, 253_402_300_799_999), (0, 0)])
def test_a_time_that_cannot_be_told_goes_out_as_the_nearest_that_can(ms: int, told: int) -> None:
    system = message_out(stored(born_ms=ms, store_ms=ms)).system_properties
    assert system.born_timestamp.ToMilliseconds() == system.store_timestamp.ToMilliseconds() == told


def test_a_dead_letter_tells_where_it_came_from() -> None:
    out = message_out(stored({"DLQ_ORIGIN_TOPIC": "Orders", "DLQ_ORIGIN_MESSAGE_ID": "01"}))
    assert out.system_properties.dead_letter_queue == pb.DeadLetterQueue(topic="Orders", message_id="01")
    out = message_out(stored({"DLQ_ORIGIN_TOPIC": "Orders"}))
    assert not out.system_properties.HasField("dead_letter_queue")


def test_a_gzip_body_is_passed_as_it_is_with_the_digest_of_its_bytes() -> None:
    body = gzip.compress(b"hello" * 100)
    out = message_out(stored(body=body, sys_flag=1))
    assert (out.body, out.system_properties.body_encoding) == (body, GZIP)
    assert out.system_properties.body_digest.checksum == md5(body).hexdigest().upper()


@pytest.mark.parametrize(
    ("packed", "sys_flag"),
    [
        (zlib.compress(b"hello" * 100), 0x1),
        (zlib.compress(b"hello" * 100), 0x301),
        (lz4.frame.compress(b"hello" * 100), 0x101),
        (zstandard.compress(b"hello" * 100), 0x201),
    ],
)
def test_a_body_that_most_clients_cannot_unpack_is_unpacked(packed: bytes, sys_flag: int) -> None:
    out = message_out(stored(body=packed, sys_flag=sys_flag))
    assert (out.body, out.system_properties.body_encoding) == (b"hello" * 100, pb.Encoding.IDENTITY)
    assert out.system_properties.body_digest.checksum == md5(b"hello" * 100).hexdigest().upper()


def test_a_body_that_says_it_is_packed_and_is_not_is_passed_as_it_is() -> None:
    out = message_out(stored(body=b"plain", sys_flag=1))
    assert (out.body, out.system_properties.body_encoding) == (b"plain", GZIP)


def test_a_body_is_passed_as_it_is_where_its_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    body = zstandard.compress(b"hello" * 100)
    out = message_out(stored(body=body, sys_flag=0x201))
    assert (out.body, out.system_properties.body_encoding) == (body, GZIP)


@pytest.mark.parametrize("mebibytes", [5, 65])
def test_a_bomb_is_not_unpacked(mebibytes: int) -> None:
    """The largest body that brokers take by default comes through, whatever it was packed to."""
    bomb = zlib.compress(bytes(mebibytes << 20))
    out = message_out(stored(body=bomb, sys_flag=1))
    assert (out.body, out.system_properties.body_encoding) == (bomb, GZIP)
    out = message_out(stored(body=zlib.compress(bytes(4 << 20)), sys_flag=1))
    assert (len(out.body), out.system_properties.body_encoding) == (4 << 20, pb.Encoding.IDENTITY)


def test_an_unmarked_body_is_never_touched() -> None:
    body = zlib.compress(b"hello")
    out = message_out(stored(body=body, sys_flag=0))
    assert (out.body, out.system_properties.body_encoding) == (body, pb.Encoding.IDENTITY)


def test_a_receive_comes_in_with_all_its_fields() -> None:
    request = ReceiveMessageRequest(
        group=pb.Resource(name="g"),
        message_queue=pb.MessageQueue(topic=pb.Resource(name="t"), id=-1, broker=pb.Broker(name="popgate")),
        filter_expression=pb.FilterExpression(type=pb.FilterType.SQL, expression="a = 1"),
        batch_size=5,
        invisible_duration=Duration(seconds=15, nanos=500_000_000),
        long_polling_timeout=Duration(seconds=2, nanos=500_000_000),
        attempt_id="try",
    )
    receive = receive_in(request)
    assert (receive.topic, receive.group, receive.broker, receive.queue_id) == ("t", "g", "popgate", -1)
    assert (receive.filter_kind, receive.filter_expression) == (FilterKind.SQL92, "a = 1")
    assert (receive.max_messages, receive.invisible_ms, receive.wait_s) == (5, 15_500, 2.5)
    assert (receive.attempt_id, receive.auto_renew) == ("try", False)


def test_what_a_receive_leaves_out_is_left_to_the_processor() -> None:
    receive = receive_in(ReceiveMessageRequest(auto_renew=True, batch_size=-3))
    assert (receive.invisible_ms, receive.wait_s, receive.auto_renew) == (None, None, True)
    assert (receive.max_messages, receive.filter_kind) == (32, FilterKind.TAG)


def test_a_request_that_waits_has_a_bounded_number_of_addresses() -> None:
    """It is kept as it was read, and one of two bytes takes 24 times that."""
    queue = pb.MessageQueue()
    queue.broker.endpoints.addresses.extend([pb.Address()] * 1024)
    assert receive_in(ReceiveMessageRequest(message_queue=queue)).max_messages == 32
    assert pull_in(PullMessageRequest(message_queue=queue)).max_messages == 32
    queue.broker.endpoints.addresses.add()
    with pytest.raises(BadRequest, match="1025 addresses, the limit is 1024"):
        receive_in(ReceiveMessageRequest(message_queue=queue))
    with pytest.raises(BadRequest, match="1025 addresses"):
        pull_in(PullMessageRequest(message_queue=queue))


@pytest.mark.parametrize(
    ("duration", "ms"),
    [
        (Duration(), 0),
        (Duration(nanos=1), 1),
        (Duration(seconds=1, nanos=1_000_000), 1001),
        (Duration(seconds=-1), -1000),
        (Duration(seconds=-1, nanos=-500_000_000), -1500),
    ],
)
def test_durations_are_whole_milliseconds(duration: Duration, ms: int) -> None:
    assert millis_of(duration) == ms


def test_a_queue_has_a_broker_with_id_0_and_never_an_unspecified_type() -> None:
    queue = Queue("popgate", 2, Permission.READ_WRITE)
    topic = pb.Resource(resource_namespace="ns", name="t")
    endpoints = pb.Endpoints(scheme=pb.AddressScheme.IPv4)
    every = types_out(Route("t", (), (queue,)), Context(), lite=True)
    out = queue_out(queue, every, topic, endpoints)
    assert (out.topic, out.id, out.permission) == (topic, 2, pb.Permission.READ_WRITE)
    assert (out.broker.name, out.broker.id, out.broker.endpoints) == ("popgate", 0, endpoints)
    assert list(out.accept_message_types) == [
        pb.MessageType.NORMAL,
        pb.MessageType.FIFO,
        pb.MessageType.DELAY,
        pb.MessageType.TRANSACTION,
        pb.MessageType.LITE,
        pb.MessageType.PRIORITY,
    ]
    typed = types_out(Route("t", (MessageType.FIFO,), (queue,)), Context(), lite=True)
    only = queue_out(queue, typed, topic, endpoints)
    assert list(only.accept_message_types) == [pb.MessageType.FIFO]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Permission.NONE, pb.Permission.NONE),
        (Permission.READ, pb.Permission.READ),
        (Permission.WRITE, pb.Permission.WRITE),
        (Permission.READ_WRITE, pb.Permission.READ_WRITE),
    ],
)
def test_permissions_go_out(ours: Permission, theirs: pb.Permission) -> None:
    queue = Queue("popgate", 0, ours)
    assert queue_out(queue, (), pb.Resource(), pb.Endpoints()).permission == theirs
