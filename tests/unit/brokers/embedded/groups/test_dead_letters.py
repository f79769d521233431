"""brokers.embedded.groups.dead_letters: what a dead letter says of where it came from."""

from __future__ import annotations

import pytest

from brokers.embedded.groups.dead_letters import _with_origin
from popgate.ids.message_id import encode_offset_message_id
from popgate.wire.messages.hosts import pack_host
from popgate.wire.messages.properties import LONGEST_BLOCK, decode_properties, encode_properties
from popgate.wire.messages.records import Record, decode_record, encode_record

HOST = "10.0.0.1:10911"


def record(**properties: str) -> Record:
    host = pack_host(HOST)
    block = encode_properties(properties)
    return decode_record(encode_record(b"T", 0, 3, 4103, b"body", block, 0, 0, 1, host, 2, host, 1))


def told(found: Record, topic: bytes = b"T") -> dict[str, str]:
    return decode_properties(_with_origin(found, topic, b"ID"))


def test_it_says_where_it_came_from_to_clients_of_both_doors() -> None:
    assert told(record(a="b", WAIT="true")) == {
        "a": "b",
        "DLQ_ORIGIN_TOPIC": "T",
        "DLQ_ORIGIN_MESSAGE_ID": "ID",
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": encode_offset_message_id(HOST, 4103),
        "WAIT": "false",
    }


def test_where_it_came_from_first_stays() -> None:
    before = {"DLQ_ORIGIN_TOPIC": "first", "DLQ_ORIGIN_MESSAGE_ID": "id", "ORIGIN_MESSAGE_ID": "place"}
    assert told(record(**before, RETRY_TOPIC="first"), b"second") == {
        **before,
        "RETRY_TOPIC": "second",
        "WAIT": "false",
    }


@pytest.mark.parametrize(
    ("spare", "added"),
    [
        (0, set()),
        (20, {"RETRY_TOPIC"}),
        (50, {"DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"}),
        (80, {"DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "RETRY_TOPIC", "WAIT"}),
        (200, {"DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "WAIT"}),
    ],
)
def test_it_says_only_what_there_is_room_for(spare: int, added: set[str]) -> None:
    size = LONGEST_BLOCK - len(encode_properties({"big": "x"})) + 1 - spare
    big = "x" * size
    found = told(record(big=big))
    assert found["big"] == big
    assert found.keys() - {"big"} == added
    assert len(encode_properties(found)) <= LONGEST_BLOCK
