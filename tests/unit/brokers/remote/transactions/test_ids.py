from dataclasses import replace

import pytest

from brokers.remote.transactions.ids import (
    Half,
    half_properties,
    make_transaction_id,
    producer_group_of,
    read_transaction_id,
    sent_half,
)
from popgate.errors import IllegalTransactionId, PeerWireError, PropertiesTooLarge
from popgate.ids.message_id import encode_offset_message_id
from popgate.ids.transaction_ids import seal
from popgate.model import EndTransaction, Message, Resolution
from popgate.wire.messages.properties import decode_properties

SECRET = b"s" * 32
HALF = Half("broker-a", "T", "T", "01AB", 4096, 7, 1_700_000_000_000, 30)


def ending(transaction: str, *, topic: str = "T", message_id: str = "") -> EndTransaction:
    return EndTransaction(topic, transaction, message_id, Resolution.COMMIT)


@pytest.mark.parametrize(
    "half",
    [
        HALF,
        replace(HALF, checked=True),
        replace(HALF, producer_group="another group"),
        replace(HALF, topic="shop%orders", producer_group="é" * 40, message_id="a.b-c"),
        replace(HALF, commit_offset=(1 << 63) - 1, queue_offset=0, born_ms=0),
    ],
)
def test_an_id_is_read_as_it_was_made(half: Half) -> None:
    made = make_transaction_id(SECRET, half)
    assert read_transaction_id([SECRET], ending(made, topic=half.topic)) == half
    assert read_transaction_id([b"newer", SECRET], ending(made, topic="", message_id=half.message_id)) == half


def test_every_changed_character_of_an_id_is_noticed() -> None:
    made = make_transaction_id(SECRET, HALF)
    for at in range(len(made)):
        for other in "0Az-=":
            if other != made[at]:
                with pytest.raises(IllegalTransactionId, match="was not given out"):
                    read_transaction_id([SECRET], ending(made[:at] + other + made[at + 1 :]))


def test_an_id_is_of_one_topic_and_one_message() -> None:
    made = make_transaction_id(SECRET, HALF)
    with pytest.raises(IllegalTransactionId, match="belongs to topic T"):
        read_transaction_id([SECRET], ending(made, topic="U"))
    with pytest.raises(IllegalTransactionId, match="belongs to message"):
        read_transaction_id([SECRET], ending(made, message_id="01AC"))


@pytest.mark.parametrize("place", ["1f", "x", "AAAA", "A" * 34, "____", "A" * 45])
def test_an_id_of_the_embedded_broker_with_the_same_key_is_refused(place: str) -> None:
    with pytest.raises(IllegalTransactionId, match="does not know"):
        read_transaction_id([SECRET], ending(seal(SECRET, place, "M")))


def test_the_answer_of_a_send_says_where_the_half_message_is() -> None:
    offset_id = encode_offset_message_id("10.0.0.1:10911", 123456789)
    message = Message("T", b"", message_id="M", producer_group="G")
    half = sent_half(
        message, broker="b", offset_message_id=offset_id, queue_offset=5, born_ms=9, check_after_s=7
    )
    assert half == Half("b", "T", "G", "M", 123456789, 5, 9, 7)
    assert half.open_until_ms == 7_009


@pytest.mark.parametrize(
    ("offset_id", "queue_offset"),
    [("", 1), ("zz", 1), (encode_offset_message_id("10.0.0.1:1", -1), 1), ("0" * 32, -1)],
)
def test_an_answer_that_names_no_place_is_the_brokers_fault(offset_id: str, queue_offset: int) -> None:
    with pytest.raises(PeerWireError):
        sent_half(
            Message("T", b""),
            broker="b",
            offset_message_id=offset_id,
            queue_offset=queue_offset,
            born_ms=9,
            check_after_s=7,
        )


def test_the_producer_group_is_the_topic_where_nothing_else_is_said() -> None:
    assert producer_group_of(Message("T", b"", producer_group="G")) == "G"
    assert producer_group_of(Message("T", b"", properties=b"PGROUP\x01H\x02")) == "H"
    assert producer_group_of(Message("T", b"")) == "T"


@pytest.mark.parametrize(
    ("recovery_ms", "seconds"),
    [(0, "35"), (-1, "35"), (1, "6"), (999, "6"), (1000, "6"), (1001, "7"), (3_600_000, "305")],
)
def test_every_half_message_says_when_it_may_be_asked_about(recovery_ms: int, seconds: str) -> None:
    block = b"CHECK_IMMUNITY_TIME_IN_SECONDS\x010\x02k\x01v\x02"
    message = Message("T", b"", recovery_ms=recovery_ms, properties=block)
    assert decode_properties(half_properties(message, 30)) == {
        "k": "v",
        "TRAN_MSG": "true",
        "PGROUP": "T",
        "CHECK_IMMUNITY_TIME_IN_SECONDS": seconds,
    }


def test_a_half_message_without_room_for_that_is_refused() -> None:
    message = Message("T", b"", properties=b"k\x01" + b"v" * 32_760 + b"\x02")
    with pytest.raises(PropertiesTooLarge):
        half_properties(message, 30)
