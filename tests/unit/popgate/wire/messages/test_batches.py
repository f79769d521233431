"""Vector: protocol facts 10; layout: 5.7."""

import pytest

from popgate.errors import LocalWireError, PeerWireError
from popgate.wire.messages.batches import BatchItem, decode_batch, encode_batch

VECTOR = bytes.fromhex("00000025 00000000 00000000 00000000 00000002 6869 000d 554e49515f4b455901 49443102")
ITEM = BatchItem(0, b"hi", b"UNIQ_KEY\x01ID1\x02")


def test_the_vector_is_written_and_read() -> None:
    assert encode_batch([ITEM]) == VECTOR
    assert decode_batch(VECTOR) == [ITEM]


def test_several_messages_come_back() -> None:
    items = [ITEM, BatchItem(-1, b"", b""), BatchItem(7, b"x" * 5000, b"a\x01b\x02")]
    assert decode_batch(encode_batch(items)) == items
    assert decode_batch(b"") == []


def test_messages_that_are_alike_but_for_one_thing_come_back() -> None:
    """What tells the lengths is packed once for messages of the same."""
    likes = [ITEM, ITEM, BatchItem(0, b"ho", b"UNIQ_KEY\x01ID2\x02")]
    for other in (ITEM._replace(flag=1), ITEM._replace(body=b"h"), ITEM._replace(properties=b"a\x01b\x02")):
        items = [*likes, other, other, *likes]
        assert decode_batch(encode_batch(items)) == items


def test_properties_too_long_for_the_layout_are_our_bug() -> None:
    with pytest.raises(LocalWireError):
        encode_batch([BatchItem(0, b"", bytes(32_768))])


def changed(at: int, value: bytes) -> bytes:
    return VECTOR[:at] + value + VECTOR[at + len(value) :]


@pytest.mark.parametrize(
    "data",
    [
        VECTOR[:-1],
        VECTOR + b"x",
        VECTOR[:10],
        changed(0, bytes(4)),
        changed(0, b"\0\0\0\x24"),
        changed(0, b"\xff\xff\xff\xff"),
        changed(16, b"\xff\xff\xff\xff"),
        changed(16, b"\0\0\0\x03"),
        changed(22, b"\xff\xff"),
        changed(22, b"\0\x0c"),
    ],
)
def test_damage_is_told(data: bytes) -> None:
    with pytest.raises(PeerWireError):
        decode_batch(data)
