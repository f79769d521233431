"""Messages as records."""

from __future__ import annotations

import pytest

from popgate.errors import LocalWireError
from popgate.ids.queue_numbers import QueueNumbers
from popgate.model import StoredMessage
from popgate.wire.messages.hosts import host_text
from popgate.wire.messages.records import BORN_HOST_V6, COMPRESSED, STORE_HOST_V6, decode_records
from protocols.remoting.codec.marks import Marks, Origin
from protocols.remoting.codec.records import encode_all, encode_numbered, encode_stored

HERE = Origin("127.0.0.1:1")
MESSAGE = StoredMessage(
    topic="orders",
    broker="a",
    queue_id=3,
    offset=7,
    commit_offset=99,
    sys_flag=COMPRESSED,
    flag=-5,
    born_ms=1_000,
    born_host="10.1.1.1:5",
    store_ms=2_000,
    store_host="10.2.2.2:6",
    body=b"closed",
    properties=b"UNIQ_KEY\x01ID1\x02",
)


def like(**more: object) -> StoredMessage:
    table = {name: getattr(MESSAGE, name) for name in StoredMessage.__dataclass_fields__}
    return StoredMessage(**{**table, **more})


def test_a_record_has_everything() -> None:
    [record] = decode_records(encode_stored(MESSAGE, HERE), verify=True)
    assert (record.topic, record.queue_id, record.offset, record.commit_offset) == ("orders", 3, 7, 99)
    assert (record.body, record.properties) == (MESSAGE.body, MESSAGE.properties)
    assert (record.sys_flag, record.flag, record.reconsume_times) == (COMPRESSED, -5, 0)
    assert (record.born_ms, record.store_ms) == (1_000, 2_000)
    assert (host_text(record.born_host), host_text(record.store_host)) == ("10.1.1.1:5", HERE.host)


def test_the_door_may_be_at_an_address_of_ipv6() -> None:
    [record] = decode_records(encode_stored(MESSAGE, Origin("[::1]:8080")))
    assert host_text(record.store_host) == "[::1]:8080"
    assert record.sys_flag == COMPRESSED | STORE_HOST_V6
    assert record.sys_flag & BORN_HOST_V6 == 0


@pytest.mark.parametrize(("attempt", "before", "told"), [(0, 0, 0), (0, 2, 2), (1, 0, 0), (3, 1, 2)])
def test_a_record_tells_how_often_a_message_came_before(attempt: int, before: int, told: int) -> None:
    [record] = decode_records(encode_stored(like(attempt=attempt, reconsume_times=before), HERE))
    assert record.reconsume_times == told


def test_records_stand_one_behind_the_other() -> None:
    records = [*decode_records(encode_all([MESSAGE, like(offset=8)], HERE))]
    assert [record.offset for record in records] == [7, 8]
    assert {host_text(record.store_host) for record in records} == {HERE.host}
    assert encode_all([], HERE) == b""


def test_places_are_marked_where_there_are_several_brokers() -> None:
    marks = Marks(QueueNumbers([("b", 0), ("a", 0)]))
    origin = Origin("127.0.0.1:1", marks)
    messages = [MESSAGE, like(broker="b"), like(broker="c"), like(commit_offset=-1)]
    places = [marks.marked("a", 99), 99, marks.marked("c", 99), -1]
    assert [one.commit_offset for one in decode_records(encode_all(messages, origin))] == places
    numbered = encode_numbered(messages, range(5, 9), 2, origin)
    records = list(decode_records(numbered, verify=True))
    assert [one.commit_offset for one in records] == places
    assert [(one.queue_id, one.offset) for one in records] == [(2, 5), (2, 6), (2, 7), (2, 8)]
    assert {host_text(one.store_host) for one in records} == {origin.host}


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(LocalWireError):
        encode_stored(like(properties=bytes(40_000)), HERE)
