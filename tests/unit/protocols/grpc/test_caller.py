"""protocols.grpc.caller: a look at a topic that is in use, and two looks at once."""

from __future__ import annotations

from typing import Any

from protocols.grpc.caller import Caller
from protocols.probing import Wish


async def test_a_topic_in_use_keeps_no_look_from_its_message(town: Any) -> None:
    gateway = await town.gateway(real_time=True)
    client = town.client(gateway)
    wish = Wish(host="127.0.0.1", port=gateway.port, topic="orders", patience_s=60.0)
    async with Caller(wish) as caller:
        for _ in range(2):
            sent, _ = await caller.send("round-trip", b"how are you?")
            found, _, _ = await caller.receive(sent)
            assert found is not None
            assert found.body == b"how are you?"
            for start in range(0, 1_000, 100):
                await client.send(*[client.message("orders", b"%d" % n) for n in range(start, start + 100)])
    assert [topic.name for topic in await gateway.broker.topics()] == ["orders"], "no dead letters"


async def test_two_looks_at_once_leave_each_other_their_messages(town: Any) -> None:
    gateway = await town.gateway(real_time=True)
    wish = Wish(host="127.0.0.1", port=gateway.port, topic="orders", patience_s=60.0)
    async with Caller(wish) as one, Caller(wish) as other:
        first, _ = await one.send("round-trip", b"one")
        second, _ = await other.send("round-trip", b"other")
        found, _, _ = await other.receive(second)
        assert found is not None
        assert found.body == b"other"
        found, _, _ = await one.receive(first)
        assert found is not None
        assert found.body == b"one"
