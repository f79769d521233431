"""The books of a RocketMQ tell which acknowledgements it took, whatever gateways said of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from popgate.model import MessageType
from protocols.grpc.pb import definition_pb2 as pb
from protocols.grpc.pb.definition_pb2 import Code
from protocols.grpc.pb.duration_pb2 import Duration
from tests.replicas.books import EmbeddedBooks, RocketMQBooks
from tests.replicas.ledger import Delivery
from tests.replicas.test_any_replica import A, all_stored, handle
from tests.support.waiting import until


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
    books = RocketMQBooks(cluster.name_server)
    # One alone, and the first: it is the one that an ordered group can finish.
    await until(lambda: finish(first))
    await until(lambda: books.took(pair.topic, noted(pair, held[first])))
    for body in rest:
        assert not await books.took(pair.topic, noted(pair, held[body]))
    await until(lambda: finish(*rest))
    for body in rest:
        await until(lambda body=body: books.took(pair.topic, noted(pair, held[body])))


@pytest.mark.parametrize(("lag", "dead", "took"), [(0, 0, True), (1, 0, False), (0, 1, False)])
def test_an_embedded_broker_has_finished_what_it_has_nothing_left_of(lag: int, dead: int, took: bool) -> None:
    asked = []

    async def ask(path: str) -> Any:
        asked.append(path)
        return {"topics": [{"lag": lag, "dead_lettered": dead}]}

    delivery = Delivery("g", "", 1, "", 0.0, 0.0, 0, 0, 0.0)
    assert asyncio.run(EmbeddedBooks(ask).took("t", delivery)) is took
    assert asked == ["/api/groups/g/stuck?topic=t"]
