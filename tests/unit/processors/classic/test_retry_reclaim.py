"""processors.classic.retry_reclaim: when what came back to a group that popped is moved, and for whom."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from brokers.capabilities import GroupMember, Reclaimed, ReclaimsRetries, TellsConsumers
from popgate.context import Context
from popgate.errors import BrokerUnavailable
from popgate.model import Bounds, GroupConfig, Reading, TopicConfig
from popgate.testing.clock import MovableClock
from processors.clients.client_registry import ClientKind
from processors.limits import Limits
from processors.messaging import MessagingProcessor

CONTEXT = Context(client_id="c", door="remoting")
UNKNOWN, CONCURRENT, PULL, NEUTRAL = Reading.UNKNOWN, Reading.CONCURRENT, Reading.TRUE_PULL, Reading.NEUTRAL
RETRIES = "%RETRY%readers"


@pytest.fixture
def cluster(broker: Any) -> Any:
    """The fake broker with messages to move, by topic, and members `elsewhere`."""

    class Moving(type(broker), TellsConsumers, ReclaimsRetries):  # type: ignore[misc]
        def __init__(self, clock: MovableClock) -> None:
            super().__init__(clock)
            self.elsewhere: list[GroupMember] = []
            self.to_move: dict[str, int] = {}
            self.steps: list[tuple[str, bool]] = []
            self.fails: BaseException | None = None
            self.waits: asyncio.Event | None = None
            self.positions: dict[str, tuple[int | None, Bounds]] = {}

        async def consumers(self, group: str) -> list[str]:
            return [one.client_id for one in self.elsewhere]

        async def members(self, group: str) -> list[GroupMember]:
            return self.elsewhere

        def on_members(self, handler: Any) -> None:
            self.handler = handler

        async def reclaim(self, context: Context, group: str, topic: str, *, held: bool = False) -> Reclaimed:
            assert group == "readers"
            self.steps.append((topic, held))
            if self.waits is not None:
                await self.waits.wait()
            if self.fails is not None:
                raise self.fails
            await self.topic(topic)
            left = self.to_move.get(topic, 0)
            moved = min(left, 10)
            self.to_move[topic] = left - moved
            return Reclaimed(moved, more=left > moved)

        async def committed(
            self, context: Context, group: str, topic: str, broker: str, queue_id: int
        ) -> int | None:
            return self.positions[topic][0] if topic in self.positions else 4

        async def bounds(
            self, context: Context, topic: str, broker: str, queue_id: int, *, of_master: bool = False
        ) -> Bounds:
            return self.positions[topic][1]

    moving = Moving(broker.clock)
    moving.kept_groups, moving.kept_topics = broker.kept_groups, broker.kept_topics
    for topic in ("orders", RETRIES):
        moving.kept_topics[topic] = TopicConfig(topic, read_queues=1, write_queues=1)
    moving.kept_groups["readers"] = GroupConfig("readers")
    return moving


class House:
    def __init__(self, processor: MessagingProcessor, cluster: Any, clock: MovableClock, make: Any) -> None:
        self.processor = processor
        self.cluster = cluster
        self.clock = clock
        self._make = make

    def join(self, name: str = "one", reading: Reading = UNKNOWN, **more: Any) -> Any:
        settings = {"topics": frozenset({"orders"}), "kind": ClientKind.PUSH_CONSUMER, **more}
        client = self._make(name, group="readers", key=f"{name} readers", reading=reading, **settings)
        self.processor.clients.register(client)
        return client

    def leave(self, client: Any) -> None:
        self.processor.clients.unregister(client.key)

    async def turn(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def pass_s(self, seconds: float = 0.5) -> None:
        await self.clock.run(seconds, self.turn)

    def steps(self) -> list[tuple[str, bool]]:
        """Of the topic itself, since the last call."""
        found, self.cluster.steps = self.cluster.steps, []
        return [one for one in found if one[0] == "orders"]

    async def fall_back(self) -> Any:
        """A group that is mapped, then a member joins that comes from elsewhere."""
        client = self.join()
        self.processor.mapped_groups.told(client.key, CONCURRENT)
        await self.pass_s(2)
        assert self.processor.mapped_groups.is_mapped("readers")
        assert self.steps() == []
        self.cluster.elsewhere = [GroupMember("direct", False, UNKNOWN)]
        self.processor.clients.members_changed("readers")
        return client


@pytest.fixture
def limits() -> Limits:
    return Limits()


@pytest.fixture
async def house(cluster: Any, clock: MovableClock, make_client: Any, limits: Limits) -> Any:
    processor = MessagingProcessor(cluster, clock=clock, limits=limits)
    await processor.start()
    yield House(processor, cluster, clock, make_client)
    await processor.stop()


mapped = pytest.mark.parametrize("limits", [Limits(mapped_groups=("readers",))])


async def test_the_first_classic_consumer_gets_what_came_back_and_then_it_is_looked_now_and_then(
    house: House,
) -> None:
    house.cluster.to_move["orders"] = 25
    client = house.join()
    await house.pass_s()
    assert house.steps() == [("orders", True)] * 3
    assert house.processor.figures()["reclaimed_retries_total"] == 25
    house.join("two")
    await house.pass_s(120)
    looks = house.steps()
    assert 5 <= len(looks) <= 10
    assert set(looks) == {("orders", False)}
    house.leave(client)
    await house.pass_s(120)
    assert len(house.steps()) in (3, 4, 5)
    house.processor.clients.unregister("two readers")
    await house.pass_s(120)
    assert house.steps() == []
    assert len(house.processor.retry_reclaimer) == 0


@pytest.mark.parametrize(
    "more",
    [
        {"reading": NEUTRAL},
        {"reading": PULL, "broadcast": True},
        {"reading": PULL, "kind": ClientKind.PULL_CONSUMER},
    ],
)
async def test_for_others_nothing_is_looked_for(house: House, more: Any) -> None:
    house.join(**more)
    await house.pass_s(60)
    assert house.cluster.steps == []


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_group_of_which_some_pop_is_left_alone_until_they_are_gone(
    house: House, elsewhere: bool
) -> None:
    popping = None
    if elsewhere:
        house.cluster.elsewhere = [GroupMember("popping", True, NEUTRAL)]
    else:
        popping = house.join("popping", NEUTRAL)
    house.join()
    await house.pass_s(60)
    assert house.cluster.steps == []
    house.cluster.elsewhere = []
    if popping is not None:
        house.leave(popping)
    await house.pass_s(60)
    assert house.steps()[0] == ("orders", True)


@mapped
async def test_a_group_that_falls_back_gets_what_it_held_before_its_positions_are_told(house: House) -> None:
    house.cluster.waits = asyncio.Event()
    await house.fall_back()
    await house.pass_s(0.4)
    assert not house.processor.mapped_groups.is_mapped("readers")
    told = asyncio.ensure_future(house.processor.offsets.committed(CONTEXT, "readers", "orders", "fake", 0))
    await house.pass_s(0.4)
    assert house.cluster.steps
    assert not told.done()
    house.cluster.waits.set()
    assert await told == 4
    assert house.steps() == [("orders", True)]


@mapped
async def test_positions_wait_for_a_while_at_most(house: House) -> None:
    house.cluster.waits = asyncio.Event()
    await house.fall_back()
    told = asyncio.ensure_future(house.processor.offsets.committed(CONTEXT, "readers", "orders", "fake", 0))
    await house.pass_s(10)
    assert told.done()
    house.cluster.waits.set()


@mapped
async def test_a_mapped_group_and_one_that_may_be_about_to_be_are_left_alone(house: House) -> None:
    client = house.join()
    await house.pass_s(60)
    assert house.cluster.steps == []
    house.processor.mapped_groups.told(client.key, CONCURRENT)
    await house.pass_s(60)
    assert house.processor.mapped_groups.is_mapped("readers")
    assert house.cluster.steps == []


@mapped
async def test_a_group_that_cannot_be_mapped_gets_what_came_back(house: House) -> None:
    house.cluster.elsewhere = [GroupMember("direct", False, UNKNOWN)]
    house.join()
    await house.pass_s()
    assert house.steps() == [("orders", True)]


async def test_what_fails_is_tried_again(house: House) -> None:
    house.cluster.fails = BrokerUnavailable("not now")
    house.join()
    await house.pass_s()
    assert house.cluster.steps == [(RETRIES, True)]
    house.cluster.fails = ValueError("a bug")
    await house.pass_s(2)
    house.cluster.fails = None
    house.cluster.to_move["orders"] = 3
    house.cluster.steps.clear()
    await house.pass_s(30)
    assert house.steps()[0] == ("orders", True)
    assert house.processor.retry_reclaimer.moved == 3


async def test_a_topic_that_is_gone_keeps_no_other_back(house: House) -> None:
    house.cluster.to_move["orders"] = 1
    house.join(topics=frozenset({"gone", "orders"}))
    await house.pass_s()
    assert house.steps() == [("orders", True)]
    assert house.processor.retry_reclaimer.moved == 1


@pytest.fixture
def far(cluster: Any) -> Any:
    """A broker that tells no deliveries, as a cluster does."""
    cluster.traits = replace(cluster.traits, tells_deliveries=False)
    return cluster


def lies(far: Any, position: int | None, maximum: int, name: str = "%RETRY%readers_orders") -> None:
    far.kept_topics[name] = TopicConfig(name, read_queues=1, write_queues=1)
    far.positions[name] = position, Bounds(0, maximum)


async def test_a_cluster_is_asked_to_move_only_where_something_lies_unread(far: Any, house: House) -> None:
    house.join()
    await house.pass_s(60)
    assert far.steps == []
    lies(far, 5, 5)
    await house.pass_s(60)
    assert far.steps == []
    lies(far, None, 5, "%RETRY%readers+orders")
    await house.pass_s(60)
    assert house.steps()[0][0] == "orders"
    assert await house.processor.offsets.committed(CONTEXT, "readers", "orders", "fake", 0) == 4


async def test_a_cluster_is_not_asked_for_retries_of_the_retries_that_classic_clients_subscribe_to(
    far: Any, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    route, asked = far.route, []

    async def told(topic: str) -> Any:
        asked.append(topic)
        return await route(topic)

    monkeypatch.setattr(far, "route", told)
    house.join(topics=frozenset({"orders", RETRIES}))
    await house.pass_s()
    assert sorted(asked) == ["%RETRY%readers+orders", "%RETRY%readers_orders"]


async def test_a_broker_that_is_away_keeps_nobody_from_what_lies_at_others(
    far: Any, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "%RETRY%readers+orders"
    lies(far, 0, 5, name)
    route, committed, asked = far.route, far.committed, []

    async def with_another(topic: str) -> Any:
        if topic != name:
            return await route(topic)
        places = [("away", 0), ("away", 1), ("fake", 0)]
        return SimpleNamespace(readable=[SimpleNamespace(broker=one, queue_id=n) for one, n in places])

    async def of(context: Context, group: str, topic: str, broker: str, queue_id: int) -> int | None:
        asked.append((broker, queue_id))
        if broker == "away":
            raise BrokerUnavailable("not now")
        return cast("int | None", await committed(context, group, topic, broker, queue_id))

    monkeypatch.setattr(far, "route", with_another)
    monkeypatch.setattr(far, "committed", of)
    house.join()
    await house.pass_s()
    assert house.steps() == [("orders", True)]
    assert asked == [("away", 0), ("fake", 0)]


async def test_where_others_may_pop_only_what_nobody_takes_is_moved(far: Any, house: House) -> None:
    far.elsewhere = [GroupMember("elsewhere", False, UNKNOWN)]
    house.join()
    for position in range(0, 50, 5):
        lies(far, position, 100)
        await house.pass_s(20)
    assert far.steps == []
    await house.pass_s(90)
    assert house.steps()


async def test_a_processor_that_stops_finishes_what_it_moves(house: House) -> None:
    house.cluster.waits = asyncio.Event()
    house.cluster.to_move["orders"] = 15
    house.cluster.kept_topics.pop(RETRIES)
    house.join()
    await house.pass_s()
    stopping = asyncio.ensure_future(house.processor.retry_reclaimer.stop())
    await house.turn()
    assert not stopping.done()
    house.cluster.waits.set()
    await stopping
    assert len(house.cluster.steps) <= 2
    house.join("late")
    await house.pass_s(60)
    assert len(house.cluster.steps) <= 2


async def test_a_processor_that_stops_begins_with_no_more_groups(
    house: House, monkeypatch: pytest.MonkeyPatch, make_client: Any
) -> None:
    go_on, asked = asyncio.Event(), []

    async def members(group: str) -> list[GroupMember]:
        asked.append(group)
        await go_on.wait()
        return [GroupMember("popping", True, NEUTRAL)]

    monkeypatch.setattr(house.cluster, "members", members)
    for number in range(50):
        more = {"kind": ClientKind.PUSH_CONSUMER, "reading": UNKNOWN, "topics": frozenset({"orders"})}
        house.processor.clients.register(make_client("c", group=f"g{number}", key=f"c g{number}", **more))
    await house.pass_s(2)
    begun = len(asked)
    stopping = asyncio.ensure_future(house.processor.retry_reclaimer.stop())
    await house.turn()
    go_on.set()
    await stopping
    assert begun
    assert len(asked) == begun


@mapped
async def test_who_joins_while_all_others_are_gone_is_not_forgotten(
    house: House, monkeypatch: pytest.MonkeyPatch, make_client: Any
) -> None:
    go_on, given_back = asyncio.Event(), asyncio.Event()

    async def members(group: str) -> list[GroupMember]:
        if group == "other":
            await go_on.wait()
            return [GroupMember("popping", True, NEUTRAL)]
        return list(house.cluster.elsewhere)

    async def give_back() -> None:
        await given_back.wait()

    monkeypatch.setattr(house.cluster, "members", members)
    house.processor.retry_reclaimer.after(give_back)
    more = {"kind": ClientKind.PUSH_CONSUMER, "reading": UNKNOWN, "topics": frozenset({"orders"})}
    house.processor.clients.register(make_client("c", group="other", key="c other", **more))
    await house.turn()
    client = await house.fall_back()
    await house.pass_s(0.5)
    house.leave(client)
    go_on.set()
    await house.pass_s(0.5)
    house.join("late")
    given_back.set()
    await house.pass_s(60)
    assert len(house.processor.retry_reclaimer) == 2
    assert house.steps()
