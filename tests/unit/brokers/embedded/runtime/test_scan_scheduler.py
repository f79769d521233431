"""Whoever looks through a backlog in vain keeps nobody else waiting for more than one look."""

from __future__ import annotations

import asyncio
from pathlib import Path

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.runtime.scan_scheduler import ScanScheduler
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.store import Durability
from popgate.context import Context
from popgate.filters.compiled import compile_filter
from popgate.model import FilterKind, GroupConfig, Message, Pop, TopicConfig
from popgate.testing import MovableClock
from popgate.wire.messages.properties import encode_properties

ME = Context(client_id="me")


async def test_one_has_its_turn_in_each_turn_of_the_loop_and_all_have_it_in_order() -> None:
    turns = ScanScheduler()
    had: list[int] = []

    async def look(number: int, times: int) -> None:
        for _ in range(times):
            await turns.next()
            had.append(number)

    looking = [asyncio.ensure_future(look(number, 3)) for number in range(4)]
    seen = [0]
    while not all(one.done() for one in looking):
        await asyncio.sleep(0)
        assert len(had) - seen[-1] <= 1
        seen.append(len(had))
    assert had[:4] == [0, 1, 2, 3]
    assert sorted(had) == sorted([0, 1, 2, 3] * 3)
    assert len(turns) == 0


async def test_one_that_is_cancelled_keeps_nobody_back() -> None:
    turns = ScanScheduler()
    first, second = (asyncio.ensure_future(turns.next()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert first.cancelled() or first.done()
    await turns.next()


async def started(path: Path, **settings: int) -> EmbeddedBroker:
    broker = EmbeddedBroker(
        path, clock=MovableClock(), settings=EmbeddedSettings(durability=Durability.NONE, **settings)
    )
    await broker.start()
    await broker.create_topic(TopicConfig("t", read_queues=1, write_queues=1))
    return broker


def message(number: int, group: str = "") -> Message:
    made = Message("t", b"%d" % number, message_id=f"m{number}", queue_id=0, message_group=group)
    properties = {"UNIQ_KEY": f"m{number}", "TAGS": "A", **({"__SHARDINGKEY": group} if group else {})}
    made.properties = encode_properties(properties)
    return made


async def test_many_pops_that_look_in_vain_let_a_send_through_after_a_look_or_two(tmp_path: Path) -> None:
    broker = await started(tmp_path / "store", max_scan=100)
    await broker.send(ME, [message(number) for number in range(5_000)])
    nothing = compile_filter(FilterKind.TAG, "B")
    for number in range(30):
        await broker.create_group(GroupConfig(f"g{number}"))
    pops = [
        asyncio.ensure_future(broker.pop(ME, Pop("t", f"g{number}", nothing, 30_000))) for number in range(30)
    ]
    reads = 0
    read = broker._engine.log.read

    def counted(*arguments: object) -> object:
        nonlocal reads
        for found in read(*arguments):  # type: ignore[arg-type]
            reads += 1
            yield found

    await asyncio.sleep(0)
    await asyncio.sleep(0)
    broker._engine.log.read = counted  # type: ignore[method-assign,assignment]
    turns = 0
    while not all(pop.done() for pop in pops):
        before = reads
        await asyncio.sleep(0)
        turns += 1
        assert reads - before <= 110, "more than one of them looked in one turn"
    assert [pop.result() for pop in pops] == [[]] * 30
    assert turns > 30
    await broker.stop()


async def test_a_group_that_becomes_ordered_is_changed_in_steps_and_keeps_its_order(tmp_path: Path) -> None:
    broker = await started(tmp_path / "store", max_scan=50)
    await broker.create_group(GroupConfig("g"))
    await broker.send(ME, [message(number, f"lane-{number % 3}") for number in range(400)])
    everything = compile_filter(FilterKind.TAG, "*")
    held = await broker.pop(ME, Pop("t", "g", everything, 30_000, max_messages=300))
    assert len(held) == 300
    await broker.update_group(GroupConfig("g", ordered=True))
    most = 0
    get = broker._engine.log.get
    reads = 0

    def counted(*arguments: object) -> object:
        nonlocal reads
        reads += 1
        return get(*arguments)  # type: ignore[arg-type]

    broker._engine.log.get = counted  # type: ignore[method-assign,assignment]
    pop = asyncio.ensure_future(broker.pop(ME, Pop("t", "g", everything, 30_000, max_messages=300)))
    while not pop.done():
        before = reads
        await asyncio.sleep(0)
        most = max(most, reads - before)
    # All lanes have held heads.
    assert pop.result() == []
    assert reads >= 300
    assert most <= 60
    await broker.ack(ME, "t", "g", [one.receipt for one in held])
    got = await broker.pop(ME, Pop("t", "g", everything, 30_000, max_messages=300))
    assert [int(one.body) for one in got] == list(range(300, 400))
    await broker.stop()
