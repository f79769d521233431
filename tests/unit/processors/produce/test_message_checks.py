"""Everything that can be wrong with a message: one test per rule, its fault and its limit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from popgate.errors import BadRequest, Fault, IllegalTopic
from popgate.model import Message, MessageType
from popgate.wire.messages.properties import decode_properties
from processors.limits import Limits
from processors.produce.message_checks import check_message, finish_message, topic_of

NOW_MS = 1_700_000_000_000


def made(**fields: object) -> Message:
    return Message(**{"topic": "orders", "body": b"coffee", "message_id": "01ABC", **fields})  # type: ignore[arg-type]


def check(message: Message, limits: Limits | None = None, max_delay_ms: int = 86_400_000) -> None:
    check_message(message, limits or Limits(), now_ms=NOW_MS, max_delay_ms=max_delay_ms)


def refused(message: Message, limits: Limits | None = None) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        check(message, limits)
    assert not caught.value.retryable
    return caught.value


def test_a_send_without_messages_is_corrupted() -> None:
    with pytest.raises(BadRequest, match="at least one message") as caught:
        topic_of([], Limits())
    assert caught.value.fault is Fault.MESSAGE_CORRUPTED


def test_a_send_to_an_illegal_topic_says_the_rule() -> None:
    with pytest.raises(IllegalTopic, match="only letters, digits"):
        topic_of([made(topic="a b")], Limits())


def test_a_topic_of_the_system_cannot_be_sent_to() -> None:
    with pytest.raises(IllegalTopic, match="belongs to the system"):
        topic_of([made(topic="RMQ_SYS_TRANS_HALF_TOPIC")], Limits())


def test_a_batch_that_mixes_topics_is_corrupted() -> None:
    with pytest.raises(BadRequest, match="orders and 'bills'") as caught:
        topic_of([made(), made(topic="bills")], Limits())
    assert caught.value.fault is Fault.MESSAGE_CORRUPTED


def test_the_topic_is_looked_at_before_the_mixture() -> None:
    with pytest.raises(IllegalTopic):
        topic_of([made(topic="a b"), made(topic="c d")], Limits())


def test_a_send_with_too_many_messages_names_the_limit() -> None:
    limits = Limits(max_messages_per_send=3)
    assert topic_of([made()] * 3, limits) == "orders"
    with pytest.raises(BadRequest, match="4 messages, the limit is 3"):
        topic_of([made()] * 4, limits)


@pytest.mark.parametrize(
    ("fields", "fault", "words"),
    [
        ({"body": b""}, Fault.BODY_EMPTY, "at least 1 byte"),
        ({"body": bytes(4_194_305)}, Fault.BODY_TOO_LARGE, "4194305 bytes, the limit is 4194304"),
        (
            {"user_properties": {str(n): "v" for n in range(129)}},
            Fault.PROPERTIES_TOO_LARGE,
            "129 user properties, the limit is 128",
        ),
        (
            {"user_properties": {"UNIQ_KEY": "v"}},
            Fault.ILLEGAL_PROPERTY_KEY,
            "'UNIQ_KEY'.*belongs to the system",
        ),
        ({"user_properties": {"": "v"}}, Fault.ILLEGAL_PROPERTY_KEY, "it|is empty"),
        ({"user_properties": {"a\x01": "v"}}, Fault.ILLEGAL_PROPERTY_KEY, "control character in its name"),
        ({"user_properties": {"a": "v\x02"}}, Fault.ILLEGAL_PROPERTY_KEY, "control character in its value"),
        ({"user_properties": {"a": "v\x9f"}}, Fault.ILLEGAL_PROPERTY_KEY, "control character in its value"),
        ({"tag": "  "}, Fault.ILLEGAL_TAG, "must not be blank"),
        ({"tag": "a|b"}, Fault.ILLEGAL_TAG, r"holds the character \|"),
        ({"tag": "a\n"}, Fault.ILLEGAL_TAG, "control character"),
        ({"keys": ("a", " ")}, Fault.ILLEGAL_KEY, "must not be blank"),
        ({"keys": ("a\x7f",)}, Fault.ILLEGAL_KEY, "control character"),
        (
            {"user_properties": {"k": "v" * 16_380}, "tag": "tag", "keys": ("key",)},
            Fault.PROPERTIES_TOO_LARGE,
            "16387 bytes .*, the limit is 16384",
        ),
        ({"message_id": ""}, Fault.ILLEGAL_MESSAGE_ID, "must not be blank"),
        ({"message_id": " "}, Fault.ILLEGAL_MESSAGE_ID, "must not be blank"),
        ({"message_id": "a\x01b"}, Fault.ILLEGAL_MESSAGE_ID, "control character"),
        ({"message_id": "a" * 256}, Fault.ILLEGAL_MESSAGE_ID, "256 bytes, the limit is 255"),
        (
            {"type": MessageType.TRANSACTION, "recovery_ms": 3_601_000},
            Fault.BAD_REQUEST,
            "3601 s, the limit is 3600 s",
        ),
        (
            {"deliver_at_ms": NOW_MS + 86_400_001},
            Fault.ILLEGAL_DELIVERY_TIME,
            r"86400001 ms ahead, the longest delay is 86400000 ms \(86400 s\)",
        ),
        ({"message_group": " "}, Fault.ILLEGAL_MESSAGE_GROUP, "must not be blank"),
        ({"message_group": "g" * 64}, Fault.ILLEGAL_MESSAGE_GROUP, "64 bytes, the limit is 63"),
        ({"message_group": "é" * 32}, Fault.ILLEGAL_MESSAGE_GROUP, "64 bytes, the limit is 63"),
        ({"message_group": "a\tb"}, Fault.ILLEGAL_MESSAGE_GROUP, "control character"),
    ],
)
def test_a_bad_message_is_refused_with_its_fault_and_its_limit(
    fields: dict[str, object], fault: Fault, words: str
) -> None:
    error = refused(made(**fields))
    assert error.fault is fault
    with pytest.raises(BadRequest, match=words):
        raise error


@pytest.mark.parametrize(
    "fields",
    [
        {"body": bytes(4_194_304)},
        {"user_properties": {str(n): "v" for n in range(128)}},
        {"user_properties": {"k": "v" * 16_377}, "tag": "tag", "keys": ("key",)},
        {"user_properties": {"größe": "日本語 😀"}},
        {"message_id": "a" * 255},
        {"type": MessageType.TRANSACTION, "recovery_ms": 3_600_000},
        {"recovery_ms": 3_601_000},
        {"deliver_at_ms": NOW_MS + 86_400_000},
        {"deliver_at_ms": NOW_MS - 5_000},
        {"deliver_at_ms": -5},
        {"message_group": "g" * 63},
        {"keys": ("", "a b")},
    ],
)
def test_a_message_at_its_limits_is_taken(fields: dict[str, object]) -> None:
    message = made(**fields)
    check(message)
    finish_message(message)
    assert message.properties


def test_of_two_faults_the_first_in_the_order_of_the_rules_is_told() -> None:
    everything_wrong: dict[str, object] = {
        "body": b"",
        "user_properties": {"UNIQ_KEY": "\x01"},
        "tag": "|",
        "keys": (" ",),
        "message_id": "",
        "type": MessageType.TRANSACTION,
        "recovery_ms": 1 << 40,
        "deliver_at_ms": 1 << 60,
        "message_group": " ",
    }
    repairs: list[tuple[Fault, dict[str, object]]] = [
        (Fault.BODY_EMPTY, {"body": b"b"}),
        (Fault.ILLEGAL_PROPERTY_KEY, {"user_properties": {"k": "v" * 16_384}}),
        (Fault.ILLEGAL_TAG, {"tag": "t"}),
        (Fault.ILLEGAL_KEY, {"keys": ()}),
        (Fault.PROPERTIES_TOO_LARGE, {"user_properties": {}}),
        (Fault.ILLEGAL_MESSAGE_ID, {"message_id": "id"}),
        (Fault.BAD_REQUEST, {"recovery_ms": 0}),
        (Fault.ILLEGAL_DELIVERY_TIME, {"deliver_at_ms": 0}),
        (Fault.ILLEGAL_MESSAGE_GROUP, {"message_group": ""}),
    ]
    for fault, repair in repairs:
        assert refused(made(**everything_wrong)).fault is fault
        everything_wrong.update(repair)
    check(made(**everything_wrong))


def test_an_empty_body_is_taken_where_the_setting_allows_it() -> None:
    check(made(body=b""), Limits(refuse_empty_bodies=False))


def test_the_broker_can_lower_the_longest_delay() -> None:
    with pytest.raises(BadRequest, match="the longest delay is 1000 ms"):
        check(made(deliver_at_ms=NOW_MS + 1001), max_delay_ms=1000)


def test_half_a_surrogate_pair_is_no_crash() -> None:
    message = made(user_properties={"k": "\ud800"}, tag="\udfff", message_group="\ud800")
    check(message)
    finish_message(message)
    assert decode_properties(message.properties)["k"] == "?"


def test_a_block_that_no_record_can_hold_is_refused_with_the_limit() -> None:
    message = made(trace_context="t" * 33_000)
    check(message)
    with pytest.raises(BadRequest, match="the limit is 32767") as caught:
        finish_message(message)
    assert caught.value.fault is Fault.PROPERTIES_TOO_LARGE


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, MessageType.NORMAL),
        ({"type": MessageType.FIFO}, MessageType.NORMAL),
        ({"type": MessageType.DELAY}, MessageType.NORMAL),
        ({"message_group": "g"}, MessageType.FIFO),
        ({"user_properties": {"__SHARDINGKEY": "g"}}, MessageType.FIFO),
        ({"message_group": "g", "deliver_at_ms": NOW_MS - 1}, MessageType.DELAY),
        ({"deliver_at_ms": NOW_MS + 5}, MessageType.DELAY),
        ({"priority": 0}, MessageType.PRIORITY),
        ({"lite_topic": "room-1"}, MessageType.LITE),
        (
            {"type": MessageType.TRANSACTION, "message_group": "g", "deliver_at_ms": NOW_MS},
            MessageType.TRANSACTION,
        ),
    ],
)
def test_the_type_of_a_message_comes_from_its_fields(fields: dict[str, object], kind: MessageType) -> None:
    message = made(**fields)
    check(message)
    assert message.type is kind


def test_the_stored_block_has_the_names_that_rocketmq_gives_them() -> None:
    message = made(
        type=MessageType.TRANSACTION,
        tag="hot",
        keys=("k1", "k2"),
        message_group="g",
        deliver_at_ms=NOW_MS + 5,
        recovery_ms=61_500,
        trace_context="trace",
        born_ms=NOW_MS,
        born_host="10.0.0.1:5",
        attempt=2,
        user_properties={"colour": "größe", "empty": "", "__RMQ.TRANSIENT.X": "y"},
    )
    check(message)
    finish_message(message)
    assert decode_properties(message.properties) == {
        "UNIQ_KEY": "01ABC",
        "PGROUP": "orders",
        "TAGS": "hot",
        "KEYS": "k1 k2",
        "__SHARDINGKEY": "g",
        "TRAN_MSG": "true",
        "CHECK_IMMUNITY_TIME_IN_SECONDS": "61",
        "TIMER_DELIVER_MS": str(NOW_MS + 5),
        "RECONSUME_TIME": "2",
        "TRACE_CONTEXT": "trace",
        "__BORNHOST": "10.0.0.1:5",
        "BORN_TIMESTAMP": str(NOW_MS),
        "colour": "größe",
    }
    assert message.sys_flag & 0x4


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"lite_topic": "a", "priority": 1}, "a message with a lite topic cannot have a priority"),
        ({"lite_topic": "a", "message_group": "g"}, "a lite topic cannot have a message group"),
        ({"lite_topic": "a", "deliver_at_ms": NOW_MS + 5}, "a lite topic cannot have a delivery time"),
        ({"lite_topic": "a", "type": MessageType.TRANSACTION}, "a lite topic cannot have a transaction"),
        ({"priority": 0, "message_group": "g"}, "a priority cannot have a message group"),
        ({"priority": 0, "user_properties": {"__SHARDINGKEY": "g"}}, "a priority cannot have a message"),
        ({"priority": 0, "deliver_at_ms": 1}, "a priority cannot have a delivery time"),
        ({"priority": 0, "type": MessageType.TRANSACTION}, "a priority cannot have a transaction"),
    ],
)
def test_what_would_decide_twice_is_refused(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadRequest, match=sentence) as caught:
        check(made(**fields))
    assert caught.value.fault is Fault.MESSAGE_TYPE_MISMATCH


@pytest.mark.parametrize("priority", [-1, -(1 << 31), 1 << 31])
def test_a_priority_that_cannot_be_is_refused_with_its_bounds(priority: int) -> None:
    with pytest.raises(BadRequest, match="at least 0 and at most 2147483647"):
        check(made(priority=priority))


@pytest.mark.parametrize("name", [" ", "a b", "a%b", "größe", "r" * 65, "r\n", "a.b"])
def test_a_lite_topic_has_a_name_by_the_rules(name: str) -> None:
    with pytest.raises(BadRequest) as caught:
        check(made(lite_topic=name))
    assert caught.value.fault is Fault.ILLEGAL_LITE_TOPIC


def test_priority_and_lite_topic_stand_in_the_block() -> None:
    for fields, entry in (
        ({"priority": 0}, b"_SYS_MSG_PRIORITY_\x010\x02"),
        ({"lite_topic": "room-1"}, b"__LITE_TOPIC\x01room-1\x02"),
    ):
        message = made(**fields)
        check(message)
        finish_message(message)
        assert entry in message.properties


@pytest.mark.parametrize("name", ["_SYS_MSG_PRIORITY_", "__LITE_TOPIC"])
def test_no_user_property_can_stand_for_a_priority_or_a_lite_topic(name: str) -> None:
    with pytest.raises(BadRequest, match="belongs to the system"):
        check(made(user_properties={name: "1"}))


def test_empty_keys_are_left_out() -> None:
    message = made(keys=("", "a", "", "b", ""))
    check(message)
    finish_message(message)
    assert decode_properties(message.properties)["KEYS"] == "a b"
    message = made(keys=("",) * 100_000)
    check(message)
    finish_message(message)
    assert "KEYS" not in decode_properties(message.properties)


def test_what_the_system_says_wins_over_a_user_property_of_the_same_name() -> None:
    message = made(message_group="real", user_properties={"__SHARDINGKEY": "claimed"})
    check(message)
    finish_message(message)
    assert decode_properties(message.properties)["__SHARDINGKEY"] == "real"


def test_texts_that_no_rule_covers_cannot_break_the_block() -> None:
    message = made(trace_context="a\x02UNIQ_KEY\x01evil", born_host="h\x01\x02", producer_group="p\x02x\x01y")
    check(message)
    finish_message(message)
    found = decode_properties(message.properties)
    assert found["UNIQ_KEY"] == "01ABC"
    assert found["TRACE_CONTEXT"] == "aUNIQ_KEYevil"
    assert "x" not in found


def test_a_block_that_the_door_made_is_stored_as_it_is() -> None:
    message = made(properties=b"UNIQ_KEY\x01X\x02", message_id="", tag="|")
    check(message)
    finish_message(message)
    assert message.properties == b"UNIQ_KEY\x01X\x02"


TEXT = st.text(st.characters(exclude_categories=()), max_size=20)


@settings(max_examples=100, deadline=None)
@given(
    properties=st.dictionaries(TEXT, TEXT, max_size=5),
    tag=TEXT,
    keys=st.lists(TEXT, max_size=3),
    message_group=TEXT,
    trace_context=TEXT,
    message_id=TEXT,
)
def test_any_text_is_refused_with_a_reason_or_stored_without_damage(
    properties: dict[str, str],
    tag: str,
    keys: list[str],
    message_group: str,
    trace_context: str,
    message_id: str,
) -> None:
    message = made(
        user_properties=properties,
        tag=tag,
        keys=tuple(keys),
        message_group=message_group,
        trace_context=trace_context,
        message_id=message_id,
    )
    try:
        check(message)
        finish_message(message)
    except BadRequest:
        return

    def stored(text: str) -> str:
        return text.encode("utf-8", "replace").decode()

    found = decode_properties(message.properties)
    assert found["UNIQ_KEY"] == stored(message_id)
    assert found.get("TAGS", "") == stored(tag)
    assert found.get("__SHARDINGKEY", "") == stored(message.message_group)
    for name, value in properties.items():
        # Halves of surrogate pairs are stored as "?", so that two names can become one.
        same = {stored(other) for twin, other in properties.items() if stored(twin) == stored(name)}
        assert not value or found[stored(name)] in same
