"""A guest's pop that is cancelled at any moment: what its host took for it is there again at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from brokers.embedded.broker import EmbeddedBroker
from brokers.port import Broker
from brokers.shared.broker import SharedBroker
from brokers.shared.host.host import BrokerHost
from brokers.shared.settings import SharedSettings
from popgate.context import Context
from popgate.filters.compiled import EVERYTHING
from popgate.model import GroupConfig, Message, Pop, StoredMessage, TopicConfig
from popgate.testing.clock import MovableClock
from tests.support.interleaving import cancelled_before
from tests.support.memory_network import MemoryNetwork

CONTEXT = Context(client_id="c")
BODIES = [b"a", b"b"]
MOST_CALLBACKS = 500
"""More than any of these pops takes."""


class Place:
    """A host and its guest in one loop, connected in memory."""

    def __init__(self, folder: Path) -> None:
        self.clock = MovableClock()
        self.network = MemoryNetwork()
        self.own = EmbeddedBroker(folder, clock=self.clock)

    async def open(self) -> None:
        self.network.serve(asyncio.get_running_loop())
        await self.own.start()
        # Time stands still: nothing is asked on its own account in between.
        settings = SharedSettings(state_s=1e9, heartbeat_s=1e9)
        self.host = BrokerHost(self.own, "tcp://127.0.0.1:0", clock=self.clock, settings=settings)
        await self.host.start()
        url = self.host.address.replace("tcp:", "popgate:")
        self.guest = SharedBroker(url, clock=self.clock, settings=settings)
        await self.guest.start()
        await self.quiet()

    async def close(self) -> None:
        await self.guest.stop()
        await self.host.stop()
        await self.own.stop()

    async def quiet(self) -> None:
        """Let everything happen that needs no time."""

        async def work() -> None:
            for _ in range(50):
                await asyncio.sleep(0)

        await self.network.turn(work)

    async def full_topic(self, name: str) -> None:
        await self.own.create_topic(TopicConfig(name))
        await self.own.send(CONTEXT, [Message(name, body, body.decode()) for body in BODIES])
        await self.quiet()

    def pop(self, topic: str, wait_s: float | None = None) -> Pop:
        until = None if wait_s is None else self.clock.monotonic() + wait_s
        return Pop(topic, "G", EVERYTHING, 30_000, wait_until=until)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    made = Place(tmp_path / "store")
    await made.open()
    await made.own.create_group(GroupConfig("G", max_attempts=1))
    yield made
    await made.close()


def bodies(messages: list[StoredMessage]) -> list[bytes]:
    return sorted(message.body for message in messages)


@pytest.mark.parametrize("side", ["own", "guest"])
async def test_a_pop_cancelled_at_any_moment_holds_nothing(place: Place, side: str) -> None:
    broker: Broker = getattr(place, side)
    for moment in range(MOST_CALLBACKS):
        topic = f"T{moment}"
        await place.full_topic(topic)
        taken = await cancelled_before(moment, broker.pop(CONTEXT, place.pop(topic)))
        if taken is not None:
            assert bodies(taken) == BODIES
            break
        await place.quiet()
        again = await broker.pop(CONTEXT, place.pop(topic))
        assert bodies(again) == BODIES, f"cancelled before callback {moment}"
        assert [message.attempt for message in again] == [1, 1]
    assert 0 < moment < MOST_CALLBACKS - 1


@pytest.mark.parametrize("side", ["own", "guest"])
async def test_a_pop_that_waited_and_is_cancelled_at_any_moment_holds_nothing(
    place: Place, side: str
) -> None:
    """The moment of its cancellation is counted from the arrival of the message it waits for."""
    broker: Broker = getattr(place, side)
    for moment in range(MOST_CALLBACKS):
        topic = f"T{moment}"
        await place.own.create_topic(TopicConfig(topic))
        popping = asyncio.ensure_future(broker.pop(CONTEXT, place.pop(topic, wait_s=20.0)))
        await place.quiet()
        assert not popping.done()
        sending = asyncio.ensure_future(place.own.send(CONTEXT, [Message(topic, b"a", "a")]))
        taken = await cancelled_before(moment, popping)
        await sending
        if taken is not None:
            assert bodies(taken) == [b"a"]
            break
        await place.quiet()
        again = await broker.pop(CONTEXT, place.pop(topic))
        assert bodies(again) == [b"a"], f"cancelled before callback {moment}"
    assert 0 < moment < MOST_CALLBACKS - 1


async def test_a_guest_forgets_a_pop_that_was_never_written(place: Place) -> None:
    """Otherwise its stop would wait for an answer that cannot come."""
    await place.full_topic("T")
    channel = place.guest._link._channel
    assert channel is not None
    channel.pause_writing()  # the host does not read
    popping = asyncio.ensure_future(place.guest.pop(CONTEXT, place.pop("T")))
    await place.quiet()
    popping.cancel()
    await place.quiet()
    channel.resume_writing()
    assert popping.cancelled()
    assert not place.guest._taking
    assert bodies(await place.guest.pop(CONTEXT, place.pop("T"))) == BODIES
