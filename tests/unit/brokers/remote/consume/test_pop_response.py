"""What a pop answer brings, and its receipts (protocol facts 4.1)."""

from __future__ import annotations

import pytest

from brokers.remote.consume.pop_response import read_popped
from brokers.remote.settle.broker_clocks import BrokerClocks
from popgate.errors import PeerWireError
from popgate.wire.frames.remoting import Command
from popgate.wire.messages.hosts import pack_host
from popgate.wire.messages.properties import encode_properties
from popgate.wire.messages.records import encode_record

POP_MS = 1_700_000_000_000


def record(
    offset: int, *, queue_id: int = 0, topic: str = "T", reconsumed: int = 0, **properties: str
) -> bytes:
    return encode_record(
        topic.encode(),
        queue_id,
        offset,
        4_096 + offset,
        b"body-%d" % offset,
        encode_properties({"UNIQ_KEY": f"ID{offset}", **properties}),
        sys_flag=0,
        flag=7,
        born_ms=5,
        born_host=pack_host("10.0.0.1:1"),
        store_ms=6,
        store_host=pack_host("10.0.0.2:2"),
        reconsume_times=reconsumed,
    )


def answer(*records: bytes, revive: int = 3, **fields: str) -> Command:
    told = {"popTime": str(POP_MS), "invisibleTime": "60000", "reviveQid": str(revive), "restNum": "9"}
    return Command(0, fields={**told, **fields}, body=b"".join(records))


@pytest.fixture
def read(clock):
    return lambda command: read_popped(command, "broker-a", "T", BrokerClocks(clock))


def test_the_header_tells_the_parts_of_the_receipts(read):
    info, (a, b) = read(
        answer(
            record(101, queue_id=2),
            record(0, queue_id=1),
            startOffsetInfo="0 2 100;0 1 0",
            msgOffsetInfo="0 2 100,101;0 1 0",
        )
    )
    assert info.rest == 9
    assert a.receipt == f"100 {POP_MS} 60000 3 0 broker-a 2 101 {4096 + 101}"  # protocol facts 10
    assert b.receipt == f"0 {POP_MS} 60000 3 0 broker-a 1 0 4096"
    assert (a.topic, a.broker, a.queue_id, a.offset, a.commit_offset) == ("T", "broker-a", 2, 101, 4197)
    assert (a.body, a.flag, a.born_ms, a.store_ms, a.attempt) == (b"body-101", 7, 5, 6, 1)
    assert (a.born_host, a.store_host) == ("10.0.0.1:1", "10.0.0.2:2")
    assert a.invisible_until_ms == POP_MS + 60_000


@pytest.mark.parametrize("kind", [1, 2])
def test_a_redelivery_brings_its_handle_along_and_shows_nothing_of_that(read, kind):
    handle = f"5 {POP_MS} 60000 3 {kind} broker-a 0 7"
    _, (message,) = read(
        answer(
            record(7, reconsumed=2, POP_CK=handle, ORIGIN_GROUP="G", color="red"),
            startOffsetInfo=f"{kind} 0 5",
            msgOffsetInfo=f"{kind} 0 7",
        )
    )
    assert message.receipt == f"{handle} 4103"
    assert message.attempt == 3
    assert message.topic == "T"
    assert message.properties == b"UNIQ_KEY\x01ID7\x02color\x01red\x02"


@pytest.mark.parametrize(
    "planted",
    [
        f"5 {POP_MS - 1} 60000 3 1 broker-a 0 7",
        f"5 {POP_MS} 60000 4 1 broker-a 0 7",
        f"5 {POP_MS} 60000 3 1 broker-b 0 7",
        f"5 {POP_MS} 60000 3 1 broker-a 1 7",
        f"5 {POP_MS} 60000 3 1 broker-a 0 8",
        "nonsense",
    ],
)
def test_a_handle_that_a_producer_planted_is_not_taken(read, planted):
    _, (message,) = read(answer(record(7, POP_CK=planted), startOffsetInfo="0 0 6", msgOffsetInfo="0 0 6,7"))
    assert message.receipt == f"6 {POP_MS} 60000 3 0 broker-a 0 7 4103"


def test_a_redelivery_without_its_handle_is_found_by_its_place(read):
    _, (fresh, again) = read(
        answer(record(7), record(7), startOffsetInfo="0 0 7;1 0 3", msgOffsetInfo="0 0 7;1 0 7")
    )
    assert fresh.receipt.split(" ")[4] == "0"
    assert again.receipt.split(" ")[:5] == ["3", str(POP_MS), "60000", "3", "1"]


@pytest.mark.parametrize(("topic", "kind"), [("%RETRY%G_T", "1"), ("%RETRY%G+T", "2"), ("T", "0")])
def test_some_brokers_tell_the_retry_topic_itself(read, topic, kind):
    _, (message,) = read(
        answer(record(7, topic=topic), startOffsetInfo=f"{kind} 0 7", msgOffsetInfo=f"{kind} 0 7")
    )
    assert message.receipt.split(" ")[4] == kind
    assert message.topic == "T"


def test_an_old_broker_tells_no_places(read):
    _, (message,) = read(answer(record(7)))
    assert message.receipt == f"7 {POP_MS} 60000 3 0 broker-a 0 7 4103"


def test_attempts_of_an_ordered_group_are_counted_by_the_broker(read):
    _, messages = read(
        answer(
            *(record(offset) for offset in (4, 5, 6)),
            revive=999,
            startOffsetInfo="0 0 4",
            msgOffsetInfo="0 0 4,5,6",
            orderCountInfo="0 0 1;0 qo0%4 3;0 qo0%5 0",
        )
    )
    assert [message.attempt for message in messages] == [4, 1, 2]


def test_counts_mean_nothing_outside_of_ordered_groups(read):
    _, (message,) = read(answer(record(4), msgOffsetInfo="0 0 4", orderCountInfo="0 0 9"))
    assert message.attempt == 1


@pytest.mark.parametrize(("told", "born_ms"), [("77", 77), ("x", 5), ("9" * 16, 5), ("-1", 5)])
def test_when_it_was_born_is_in_the_properties(read, told, born_ms):
    _, (message,) = read(answer(record(7, BORN_TIMESTAMP=told)))
    assert message.born_ms == born_ms


def test_who_sent_it_is_in_the_properties(read):
    _, (message,) = read(answer(record(7, __BORNHOST="192.0.2.1:7")))
    assert message.born_host == "192.0.2.1:7"


@pytest.mark.parametrize(
    "broken",
    [
        answer(b"x"),
        answer(record(1)[:-1]),
        answer(popTime="soon"),
        answer(startOffsetInfo="0 0"),
        answer(msgOffsetInfo="0 0 x"),
        answer(orderCountInfo="0 qo0 3"),
    ],
)
def test_nonsense_is_told(read, broken):
    with pytest.raises(PeerWireError):
        read(broken)


@pytest.mark.parametrize(("reconsumed", "kind", "attempt"), [(17, 0, 1), (18, 1, 2)])
def test_dead_letters_do_not_go_on_counting_the_attempts_of_the_group_that_gave_them_up(
    clock, reconsumed, kind, attempt
):
    """Else a reader's first delivery would be one too many, and bury them again."""
    topic = "%DLQ%G"
    told = answer(
        record(7, topic="%RETRY%R_%DLQ%G" if kind else topic, reconsumed=reconsumed, ORIGIN_GROUP="G"),
        startOffsetInfo=f"{kind} 0 7",
        msgOffsetInfo=f"{kind} 0 7",
    )
    _, (message,) = read_popped(told, "broker-a", topic, BrokerClocks(clock))
    assert message.attempt == attempt
    assert message.properties == b"UNIQ_KEY\x01ID7\x02"


@pytest.mark.parametrize("kind", [1, 2])
def test_retries_that_are_popped_themselves_have_receipts_of_their_topic(kind, clock):
    """A broker tells them as retries; their own topic is the one that was asked for, and is to be told."""
    topic = f"%RETRY%G{'_+'[kind - 1]}T"
    _, (message,) = read_popped(
        answer(
            record(7, topic=topic, reconsumed=2, RETRY_TOPIC=topic),
            startOffsetInfo=f"{kind} 0 5",
            msgOffsetInfo=f"{kind} 0 7",
        ),
        "broker-a",
        topic,
        BrokerClocks(clock),
    )
    assert message.receipt == f"5 {POP_MS} 60000 3 0 broker-a 0 7 4103"
    assert (message.topic, message.attempt) == (topic, 3)
