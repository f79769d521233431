"""Values that are asked for once, served while they are old, and asked for anew behind the caller's back."""

from __future__ import annotations

import asyncio

import pytest

from brokers.remote.access.refreshing_cache import RefreshingCache
from popgate.errors import BrokerUnavailable, GroupNotFound


class Source:
    def __init__(self):
        self.asked = []
        self.values = {}
        self.failure = None
        self.gate = None

    async def ask(self, name):
        self.asked.append(name)
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        if name not in self.values:
            raise GroupNotFound(name)
        return self.values[name]


@pytest.fixture
def source():
    return Source()


@pytest.fixture
async def kept(source, clock):
    one = RefreshingCache(
        source.ask, clock, missing=GroupNotFound, refresh_s=20, expiry_s=300, missing_s=1, most=3
    )
    yield one
    await one.close()


async def test_a_value_is_asked_for_once_by_all_who_want_it(kept, source):
    source.values["g"] = 1
    source.gate = asyncio.Event()
    waiting = [asyncio.ensure_future(kept.of("g")) for _ in range(5)]
    await asyncio.sleep(0)
    source.gate.set()
    assert await asyncio.gather(*waiting) == [1] * 5
    assert await kept.of("g") == 1
    assert source.asked == ["g"]


async def test_an_old_value_is_served_while_a_newer_one_is_asked_for(kept, source, clock, loop_turns):
    source.values["g"] = 1
    await kept.of("g")
    source.values["g"] = 2
    clock.advance(19)
    assert await kept.of("g") == 1
    assert source.asked == ["g"]
    clock.advance(2)
    assert await kept.of("g") == 1
    await loop_turns()
    assert await kept.of("g") == 2
    assert source.asked == ["g", "g"]


async def test_an_old_value_stays_while_nobody_can_tell_a_newer_one(kept, source, clock, loop_turns):
    source.values["g"] = 1
    await kept.of("g")
    source.failure = BrokerUnavailable("gone")
    for _ in range(40):
        clock.advance(20)
        assert await kept.of("g") == 1
        await loop_turns()
    assert len(source.asked) == 41


async def test_a_value_that_nobody_wanted_for_long_is_asked_for_before_it_is_served(kept, source, clock):
    source.values["g"] = 1
    await kept.of("g")
    source.values["g"] = 2
    clock.advance(301)
    assert await kept.of("g") == 2


async def test_what_is_not_there_is_remembered_for_a_moment_only(kept, source, clock):
    for _ in range(3):
        with pytest.raises(GroupNotFound):
            await kept.of("g")
    assert source.asked == ["g"]
    source.values["g"] = 1
    clock.advance(1.1)
    assert await kept.of("g") == 1


async def test_what_was_deleted_is_missing_after_the_next_look(kept, source, clock, loop_turns):
    source.values["g"] = 1
    await kept.of("g")
    del source.values["g"]
    clock.advance(21)
    await kept.of("g")
    await loop_turns()
    with pytest.raises(GroupNotFound):
        await kept.of("g")


@pytest.mark.parametrize("name", ["", "with space", "ä", "x" * 513])
async def test_what_can_be_no_name_is_not_asked_for(kept, source, name):
    source.values[name] = 1
    for ask in (kept.of, kept.now):
        with pytest.raises(GroupNotFound):
            await ask(name)
    assert source.asked == []
    assert len(kept) == 0


async def test_a_failure_is_told_and_not_remembered(kept, source):
    source.failure = BrokerUnavailable("gone")
    with pytest.raises(BrokerUnavailable):
        await kept.of("g")
    source.failure, source.values["g"] = None, 1
    assert await kept.of("g") == 1


async def test_an_answer_from_before_a_change_is_not_kept(kept, source, loop_turns):
    source.values["g"] = 1
    source.gate = asyncio.Event()
    waiting = asyncio.ensure_future(kept.of("g"))
    await asyncio.sleep(0)
    kept.forget("g")
    source.gate.set()
    assert await waiting == 1
    await loop_turns()
    assert len(kept) == 0
    source.values["g"] = 2
    assert await kept.of("g") == 2


async def test_who_gives_up_waiting_spoils_it_for_nobody(kept, source):
    source.values["g"] = 1
    source.gate = asyncio.Event()
    gone, stays = (asyncio.ensure_future(kept.of("g")) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    source.gate.set()
    assert await stays == 1


async def test_what_was_used_longest_ago_makes_room(kept, source):
    source.values = {name: name for name in "abcd"}
    for name in "abca":
        await kept.of(name)
    await kept.of("d")
    assert len(kept) == 3
    source.asked.clear()
    await kept.of("a")
    assert source.asked == []
    await kept.of("b")
    assert source.asked == ["b"]


async def test_what_is_asked_ends_with_the_keeper(source, clock):
    kept = RefreshingCache(
        source.ask, clock, missing=GroupNotFound, refresh_s=20, expiry_s=300, missing_s=1, most=3
    )
    source.gate = asyncio.Event()
    waiting = asyncio.ensure_future(kept.of("g"))
    await asyncio.sleep(0)
    await kept.close()
    with pytest.raises(BrokerUnavailable, match="stops"):
        await waiting
