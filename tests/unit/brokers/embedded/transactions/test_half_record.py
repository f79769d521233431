from typing import Any

import pytest

from brokers.embedded.transactions.half_record import Half, decode_half, without_transaction
from popgate.wire.messages.properties import decode_properties
from popgate.wire.messages.records import TRANSACTION_COMMIT, decode_record

Parts = Any


@pytest.mark.parametrize("group", ["", "group", "Gruppe ä"])
def test_a_state_is_read_as_it_was_written(group: str) -> None:
    half = Half(7, 1023, 1_700_000_000_000, (1 << 63) - 1, 1_700_000_006_000, 15, group)
    assert decode_half(half.encode()) == half


async def test_the_delivered_record_is_the_half_without_its_mark(parts: Parts) -> None:
    topic = await parts.topic()
    prepared = parts.record(topic, "m", b"body", TRAN_MSG="true", TAGS="a")
    record = decode_record(without_transaction(prepared, b"T", TRANSACTION_COMMIT, 77), verify=True)
    assert decode_properties(record.properties) == {"UNIQ_KEY": "m", "TAGS": "a"}
    assert (record.topic, record.body, record.sys_flag & 0xC, record.prepared_offset) == ("T", b"body", 8, 77)
    assert record.born_ms == decode_record(prepared).born_ms


async def test_what_does_not_fit_is_left_out_and_the_message_kept(parts: Parts) -> None:
    topic = await parts.topic()
    full = parts.record(topic, "m", b"body", LONG="x" * 32_740)
    record = decode_record(without_transaction(full, b"G", 0, 1, ((b"REAL_TOPIC", b"T" * 100),)))
    assert set(decode_properties(record.properties)) == {"UNIQ_KEY", "LONG"}
