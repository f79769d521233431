"""protocols.grpc.codec.request_reader: what is too much is refused before it is made into objects."""

from __future__ import annotations

from typing import Any

import pytest

from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from protocols.grpc.codec.request_reader import TooLarge, Unreadable, reader_of

MIB = 1024 * 1024
EMPTY_ELEMENT = b"\x0a\x00"
"""Field 1, and nothing in it: of a send an empty message."""


@pytest.mark.parametrize(
    ("kind", "longest"),
    [
        (rpc.AckMessageRequest, 4 * MIB),
        (rpc.SyncLiteSubscriptionRequest, 4 * MIB),
        (rpc.ReceiveMessageRequest, 4 * MIB),
        (rpc.TelemetryCommand, 8 * MIB),
    ],
)
def test_a_request_without_messages_has_a_bound(kind: Any, longest: int) -> None:
    found = reader_of(kind)(bytes(longest + 1))
    assert isinstance(found, TooLarge)
    name = kind.DESCRIPTOR.name
    assert found.sentence == f"the {name} has {longest + 1} bytes, the limit is {longest}"
    # A field that nobody knows, so long that all of it has the size that is allowed.
    size = longest - 6
    varint = bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14 & 0x7F | 0x80, size >> 21])
    assert isinstance(reader_of(kind)(b"\xfa\x07" + varint + bytes(size)), kind)


def test_a_send_of_the_largest_body_is_read() -> None:
    message = pb.Message(topic=pb.Resource(name="t"), body=bytes(64 * MIB), user_properties={"k": "v"})
    request = rpc.SendMessageRequest(messages=[message])
    assert reader_of(rpc.SendMessageRequest)(request.SerializeToString()) == request


def test_a_send_of_many_messages_with_many_properties_is_read() -> None:
    properties = {f"key-{n}": "value" for n in range(100)}
    message = pb.Message(body=bytes(4_096), user_properties=properties)
    request = rpc.SendMessageRequest(messages=[message] * 1024)
    assert reader_of(rpc.SendMessageRequest)(request.SerializeToString()) == request


def test_a_send_of_more_messages_than_there_can_be_is_refused() -> None:
    found = reader_of(rpc.SendMessageRequest)(EMPTY_ELEMENT * MIB)
    assert isinstance(found, TooLarge)
    assert "more than 200000 fields" in found.sentence


def test_a_message_with_more_properties_than_there_can_be_is_refused() -> None:
    inner = b"\x12\x00" * MIB
    data = b"\x0a\x80\x80\x80\x01" + inner
    found = reader_of(rpc.SendMessageRequest)(data)
    assert isinstance(found, TooLarge)
    assert "more than 200000 fields" in found.sentence


def test_keys_without_end_are_refused() -> None:
    keys = pb.SystemProperties(keys=["k"] * (3 * MIB))
    request = rpc.SendMessageRequest(messages=[pb.Message(system_properties=keys)])
    found = reader_of(rpc.SendMessageRequest)(request.SerializeToString())
    assert isinstance(found, TooLarge)
    assert "bytes beside its messages' bodies, the limit is 8388608" in found.sentence


@pytest.mark.parametrize(
    "end",
    [
        b"\x0a",
        b"\x0a\x05ab",
        b"\x0a" + b"\xff" * 11,
        b"\x0a" + b"\xff" * 9 + b"\x01",  # in 64 bits it is a step back
        b"\x0b\x0c",
        b"\xff" * 11,
        b"\x09\x00",
        b"\x0d\x00",
        b"\x0a\x02\x22\x7f",
    ],
)
def test_large_noise_is_no_request(end: bytes) -> None:
    whole = rpc.SendMessageRequest(messages=[pb.Message(body=bytes(2 * MIB))]).SerializeToString()
    found = reader_of(rpc.SendMessageRequest)(whole + end)
    assert type(found) is Unreadable


def test_fields_that_nobody_knows_are_walked_over() -> None:
    whole = rpc.SendMessageRequest(messages=[pb.Message(body=bytes(2 * MIB))]).SerializeToString()
    more = (
        b"\x50\x07" + b"\x50" + b"\xff" * 9 + b"\x01" + b"\x51" + bytes(8) + b"\x55" + bytes(4) + b"\x52\x01x"
    )
    found = reader_of(rpc.SendMessageRequest)(whole + more)
    assert isinstance(found, rpc.SendMessageRequest)
    assert len(found.messages[0].body) == 2 * MIB
