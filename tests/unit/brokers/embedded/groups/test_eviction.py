"""What idle groups have of topics leaves memory, and nobody can tell by what is delivered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.store import Durability
from popgate.context import Context
from popgate.errors import GroupNotFound
from popgate.filters.compiled import compile_filter
from popgate.model import FilterKind, GroupConfig, Message, Pop, StoredMessage, TopicConfig
from popgate.naming import pop_retry_topic_v2
from popgate.testing import MovableClock
from popgate.wire.messages.properties import encode_properties

FORGET_S = 60
SETTINGS = EmbeddedSettings(durability=Durability.NONE, forget_after_ms=FORGET_S * 1000)
ME = Context(client_id="me")


class Town:
    def __init__(self, path: Path) -> None:
        self.clock = MovableClock()
        self.path = path
        self.sent = 0
        self.broker = EmbeddedBroker(path, clock=self.clock, settings=SETTINGS)

    async def restart(self) -> None:
        await self.broker.stop()
        self.broker = EmbeddedBroker(self.path, clock=self.clock, settings=SETTINGS)
        await self.broker.start()

    @property
    def in_memory(self) -> set[tuple[str, str]]:
        return {(share.topic.name, share.group.name) for share in self.broker._engine.shares}

    async def send(self, topic: str, group: str = "") -> str:
        self.sent += 1
        name = f"m{self.sent}"
        message = Message(topic, name.encode(), message_id=name, queue_id=0, message_group=group)
        properties = {"UNIQ_KEY": name, **({"__SHARDINGKEY": group} if group else {})}
        message.properties = encode_properties(properties)
        await self.broker.send(ME, [message])
        return name

    async def pop(self, topic: str, group: str, count: int = 32, **more: object) -> list[StoredMessage]:
        everything = compile_filter(FilterKind.TAG, "*")
        return await self.broker.pop(
            ME,
            Pop(topic, group, everything, 30_000, max_messages=count, **more),  # type: ignore[arg-type]
        )

    async def bodies(self, topic: str, group: str) -> list[str]:
        return [message.body.decode() for message in await self.pop(topic, group)]

    async def finish(self, topic: str, group: str, messages: list[StoredMessage]) -> None:
        results = await self.broker.ack(ME, topic, group, [message.receipt for message in messages])
        assert results == [None] * len(messages)

    async def pass_s(self, seconds: float) -> None:
        async def turn() -> None:
            for _ in range(4):
                await asyncio.sleep(0)

        await self.clock.run(seconds, turn)


@pytest.fixture
async def town(tmp_path: Path) -> AsyncIterator[Town]:
    made = Town(tmp_path / "store")
    await made.broker.start()
    await made.broker.create_topic(TopicConfig("t", read_queues=2, write_queues=2))
    await made.broker.create_group(GroupConfig("g"))
    yield made
    await made.broker.stop()


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_group_that_rests_leaves_memory_and_goes_on_where_it_was(town: Town, ordered: bool) -> None:
    await town.broker.create_group(GroupConfig("o", ordered=True))
    group = "o" if ordered else "g"
    await town.send("t", "a")
    messages = await town.pop("t", group)
    await town.finish("t", group, messages)
    before = await town.broker.progress(group, "t")
    await town.pass_s(3 * FORGET_S)
    assert town.in_memory == set()
    # Looks at it bring nothing back.
    assert await town.broker.progress(group, "t") == before
    assert await town.broker.topics_of(group) == ["t"]
    assert (await town.broker.standing(group, "t")).lag == 0
    assert [one.group for one in (await town.broker.standings(0, 100))[0]] == [group]
    assert town.in_memory == set()
    # Finishing what was finished is no error, and the first message does not come again.
    assert await town.broker.ack(ME, "t", group, [messages[0].receipt]) == [None]
    second = await town.send("t", "a")
    assert (await town.broker.standing(group, "t")).lag == 1
    assert await town.bodies("t", group) == [second]


async def test_what_is_held_or_rests_stays(town: Town) -> None:
    await town.send("t")
    (message,) = await town.pop("t", "g")
    # Hidden for longer than a few rounds take.
    receipt = await town.broker.change_invisible(ME, "t", "g", message.receipt, 1_000_000)
    await town.pass_s(5 * FORGET_S)
    assert town.in_memory == {("t", "g")}
    message.receipt = receipt
    await town.finish("t", "g", [message])
    await town.pass_s(3 * FORGET_S)
    assert town.in_memory == set()


async def test_who_waits_is_not_forgotten_and_is_woken(town: Town) -> None:
    until = town.clock.monotonic() + 10 * FORGET_S
    waiting = asyncio.ensure_future(town.pop("t", "g", wait_until=until))
    await town.pass_s(5 * FORGET_S)
    assert town.in_memory == {("t", "g")}
    name = await town.send("t")
    assert [one.body.decode() for one in await waiting] == [name]


async def test_who_comes_back_gets_no_handle_that_was_given_out_before(town: Town) -> None:
    await town.send("t")
    (message,) = await town.pop("t", "g")
    await town.finish("t", "g", [message])
    await town.pass_s(3 * FORGET_S)
    await town.broker.commit(ME, "g", "t", "popgate", 0, 0)
    (again,) = await town.pop("t", "g")
    assert again.offset == message.offset
    assert again.receipt != message.receipt
    assert (await town.broker.ack(ME, "t", "g", [message.receipt]))[0] is not None
    await town.finish("t", "g", [again])


async def test_a_restart_reads_into_memory_only_what_is_unfinished(town: Town) -> None:
    for name in ("idle", "busy"):
        await town.broker.create_group(GroupConfig(name))
    await town.send("t")
    await town.finish("t", "idle", await town.pop("t", "idle"))
    (held,) = await town.pop("t", "busy")
    await town.restart()
    assert town.in_memory == {("t", "busy")}
    assert await town.bodies("t", "idle") == []
    await town.finish("t", "busy", [held])


async def test_a_share_of_a_retry_topic_goes_and_comes_with_the_one_that_reads_it(town: Town) -> None:
    retry = pop_retry_topic_v2("g", "t")
    await town.broker.create_topic(TopicConfig(retry, read_queues=1, write_queues=1))
    await town.send("t")
    name = await town.send(retry)
    messages = await town.pop("t", "g")
    messages += await town.pop("t", "g")
    assert {one.body.decode() for one in messages} == {"m1", name}
    await town.pass_s(1.0)
    await town.restart()
    assert town.in_memory == {("t", "g"), (retry, "g")}
    await town.finish("t", "g", messages)
    await town.pass_s(3 * FORGET_S)
    assert town.in_memory == set()
    assert await town.broker.topics_of("g") == ["t"]
    more = await town.send(retry)
    assert await town.bodies("t", "g") == [more]
    await town.pass_s(3 * FORGET_S)
    await town.broker.delete_group("g")
    assert retry not in [topic.name for topic in await town.broker.topics()]


async def test_a_forgotten_group_can_be_deleted_and_made_anew(town: Town) -> None:
    await town.send("t")
    await town.finish("t", "g", await town.pop("t", "g"))
    await town.pass_s(3 * FORGET_S)
    await town.broker.delete_group("g")
    with pytest.raises(GroupNotFound):
        await town.pop("t", "g")
    await town.broker.create_group(GroupConfig("g"))
    assert await town.bodies("t", "g") == ["m1"]


async def test_many_groups_that_came_and_went_leave_nothing_behind(town: Town) -> None:
    await town.send("t")
    for number in range(1_500):
        await town.broker.create_group(GroupConfig(f"g{number}"))
        await town.finish("t", f"g{number}", await town.pop("t", f"g{number}"))
    assert len(town.in_memory) == 1_500
    await town.pass_s(3 * FORGET_S)
    assert town.in_memory == set()
    assert await town.bodies("t", "g7") == []
    assert town.broker.figures()["unfinished_deliveries"] == 0
