"""The books of a RocketMQ tell which acknowledgements it took, whatever gateways said of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from popgate.model import MessageType
from protocols.grpc.pb import definition_pb2 as pb
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
    taken: dict[bytes, Any] = {}
    # An acknowledgement comes into the log of an unordered one when its time is over.
    hidden = Duration(seconds=30 if ordered else 4)

    async def all_taken() -> bool:
        for message in await client.receive(pair.topic, pair.group, timeout=100, invisible_duration=hidden):
            taken.setdefault(message.body, message)
        return len(taken) == 3

    await until(all_taken)
    first, *rest = [taken[body] for body in sorted(taken)]
    books = RocketMQBooks(cluster.name_server)
    # One alone, whatever it is told: the first is the one that an ordered group can finish.
    await client.ack(handle(first), topic=pair.topic, group=pair.group)
    await until(lambda: books.took(pair.topic, noted(pair, first)))
    for message in rest:
        assert not await books.took(pair.topic, noted(pair, message))
    await client.ack(*(handle(message) for message in rest), topic=pair.topic, group=pair.group)
    for message in rest:
        await until(lambda message=message: books.took(pair.topic, noted(pair, message)))


@pytest.mark.parametrize(("lag", "dead", "took"), [(0, 0, True), (1, 0, False), (0, 1, False)])
def test_an_embedded_broker_has_finished_what_it_has_nothing_left_of(lag: int, dead: int, took: bool) -> None:
    asked = []

    async def ask(path: str) -> Any:
        asked.append(path)
        return {"topics": [{"lag": lag, "dead_lettered": dead}]}

    delivery = Delivery("g", "", 1, "", 0.0, 0.0, 0, 0, 0.0)
    assert asyncio.run(EmbeddedBooks(ask).took("t", delivery)) is took
    assert asked == ["/api/groups/g/stuck?topic=t"]
