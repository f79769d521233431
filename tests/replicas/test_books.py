"""The books of a RocketMQ tell which acknowledgements it took, whatever gateways said of them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from popgate.ids.receipt import OF_RETRY_V1, OF_TOPIC, Receipt
from popgate.model import MessageType
from popgate.naming import pop_retry_topic_v1
from popgate.pb import definition_pb2 as pb
from popgate.pb.definition_pb2 import Code
from popgate.pb.duration_pb2 import Duration
from popgate.wire.messages.properties import encode_properties
from popgate.wire.messages.records import Record
from tests.replicas import books
from tests.replicas.books import EmbeddedBooks, RocketMQBooks
from tests.replicas.ledger import Delivery
from tests.replicas.test_any_replica import A, all_stored, handle
from tests.support.waiting import until

RETRIES = pop_retry_topic_v1("g", "t")


def noted(pair: Any, message: Any) -> Delivery:
    return Delivery(pair.group, "", 1, "", 0.0, 0.0, 0, 0, 0.0, handle=handle(message))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("ordered", [False, True], ids=["unordered", "ordered"])
async def test_only_what_was_acknowledged_is_in_the_books(pair: Any, cluster: Any, ordered: bool) -> None:
    await pair.make(MessageType.FIFO if ordered else MessageType.NORMAL, ordered=ordered)
    client = pair.client(A)
    more = {"message_type": pb.MessageType.FIFO, "message_group": "lane"} if ordered else {}
    for number in range(3):
        await client.send_one(pair.topic, b"%d" % number, **more)
    await until(lambda: all_stored(pair, 3))
    held: dict[bytes, Any] = {}
    done: list[bytes] = []
    # An acknowledgement comes into the log of an unordered one when its time is over.
    hidden = Duration(seconds=30 if ordered else 4)

    async def receive() -> None:
        for message in await client.receive(pair.topic, pair.group, timeout=100, invisible_duration=hidden):
            held[message.body] = message

    async def finish(*wanted: bytes) -> bool:
        """Acknowledge the newest deliveries; those that are too late come again, and are not sent."""
        await receive()
        if len(held) < 3:
            return False
        for body in wanted:
            if body not in done:
                answer = await client.ack(handle(held[body]), topic=pair.topic, group=pair.group)
                done.extend([body] * (answer.status.code == Code.OK))
        return set(wanted) <= set(done)

    first, *rest = [b"0", b"1", b"2"]
    its_books = RocketMQBooks(cluster.name_server)
    # One alone, and the first: it is the one that an ordered group can finish.
    await until(lambda: finish(first))
    await until(lambda: its_books.took(pair.topic, noted(pair, held[first])))
    for body in rest:
        assert not await its_books.took(pair.topic, noted(pair, held[body]))
    await until(lambda: finish(*rest))
    for body in rest:
        await until(lambda body=body: its_books.took(pair.topic, noted(pair, held[body])))


def record(
    topic: str,
    queue_id: int,
    offset: int,
    body: bytes = b"",
    *,
    at_ms: int,
    times: int = 1,
    **properties: str,
) -> Record:
    return Record(
        *(topic, queue_id, offset, 0, body, encode_properties({"UNIQ_KEY": "id", **properties})),
        *(0, 0, at_ms, ("127.0.0.1", 1), at_ms, ("127.0.0.1", 2), times, 0, 0, 0),
    )


@pytest.mark.parametrize(
    ("ended_ms", "twins", "ended"),
    [(1_030, (), True), (8_999, (), True), (9_000, (), False), (1_030, (6,), False), (None, (), False)],
    ids=["given back", "just in time", "too late", "another came of it before", "never ended"],
)
def test_a_redelivery_is_of_a_pop_that_was_ended_in_time(
    monkeypatch: pytest.MonkeyPatch, ended_ms: int | None, twins: tuple[int, ...], ended: bool
) -> None:
    """Popped at 1,000 ms for 8 s, and revived at 11,000 ms to place 7 of the group's retries."""
    retries = [record(RETRIES, 0, offset, at_ms=11_000, **{"1ST_POP_TIME": "1000"}) for offset in (*twins, 7)]
    key = "t@1@703@g@1000@broker-a@ack"
    log = [] if ended_ms is None else [record("log", 0, 1, b'{"ao":703}', at_ms=ended_ms, KEYS=key)]
    topics = {"t": [record("t", 1, 703, at_ms=900)], RETRIES: retries}

    def found(_: str, topic: str, asked: str) -> list[Record]:
        return topics.get(topic, log if asked == key else [])

    monkeypatch.setattr(books, "addresses_known", lambda _: {"broker-a": {0: "127.0.0.1:1"}})
    monkeypatch.setattr(books, "_found", found)
    monkeypatch.setattr(books, "_at", lambda *_: retries[-1])
    again = Receipt(7, 11_500, 8_000, 0, OF_RETRY_V1, "broker-a", 0, 7)
    delivery = Delivery("g", "", 1, "", 0.0, 0.0, 0, 0, 8.0, handle=again.encode())
    assert asyncio.run(RocketMQBooks("").was_ended("t", delivery)) is ended
    first = again._replace(topic_type=OF_TOPIC).encode()
    assert not asyncio.run(RocketMQBooks("").was_ended("t", replace(delivery, handle=first)))


def test_all_revivals_of_a_message_are_found_by_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    retries = [
        record(RETRIES, queue, offset, at_ms=at_ms, times=times, **{"1ST_POP_TIME": str(at_ms - 8_000)})
        for queue, offset, at_ms, times in ((0, 7, 11_000, 1), (1, 3, 12_500, 0))
    ]
    monkeypatch.setattr(books, "addresses_known", lambda _: {"broker-a": {0: "127.0.0.1:1"}})
    monkeypatch.setattr(
        books, "_found", lambda _, topic, key: retries if (topic, key) == (RETRIES, "id") else []
    )
    monkeypatch.setattr(books, "_at", lambda _, topic, group, receipt: retries[receipt.queue_id])
    read = Delivery(
        "g",
        "",
        1,
        "",
        0.0,
        0.0,
        0,
        0,
        8.0,
        handle=Receipt(3, 9, 8_000, 0, OF_TOPIC, "broker-a", 1, 3).encode(),
    )
    again = replace(read, handle=Receipt(3, 9, 8_000, 0, OF_RETRY_V1, "broker-a", 1, 3).encode())
    its_books = RocketMQBooks("")
    assert asyncio.run(its_books.revivals("t", [read])) == []
    first, second = asyncio.run(its_books.revivals("t", [read, again]))
    assert (first.place, second.place) == ((0, 7), (1, 3))
    assert (first.times, second.times) == (1, 0)
    # As the machine's monotonic clock has it.
    assert first.stored - first.popped == pytest.approx(8.0)
    assert second.stored - first.stored == pytest.approx(1.5, abs=0.1)
    assert first.stored - 11.0 == pytest.approx(time.monotonic() - time.time(), abs=5.0)


@pytest.mark.parametrize(("lag", "dead", "took"), [(0, 0, True), (1, 0, False), (0, 1, False)])
def test_an_embedded_broker_has_finished_what_it_has_nothing_left_of(lag: int, dead: int, took: bool) -> None:
    asked = []

    async def ask(path: str) -> Any:
        asked.append(path)
        return {"topics": [{"lag": lag, "dead_lettered": dead}]}

    delivery = Delivery("g", "", 1, "", 0.0, 0.0, 0, 0, 0.0)
    assert asyncio.run(EmbeddedBooks(ask).took("t", delivery)) is took
    assert asked == ["/api/groups/g/stuck?topic=t"]
