"""brokers.shared.guest.lite: subscriptions through a guest."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from popgate.errors import TopicNotFound
from popgate.lite import LiteAction, LiteSync


def adding(*names: str) -> LiteSync:
    return LiteSync("t", "g", LiteAction.REPLACE, names)


async def test_what_a_client_subscribes_to_is_known_at_once_and_followed(place, soon) -> None:
    await place.open()
    guest = await place.visit()
    await guest.subscribe_lite(place.context, adding("a", "b"))
    assert guest.lite_subscriptions("c") == 2
    place.broker.subscriptions["c"] = 1
    await soon(lambda: guest.lite_subscriptions("c") == 1)
    place.broker.subscriptions["c"] = 0
    await soon(lambda: guest.lite_subscriptions("c") == 0)


async def test_a_subscription_that_failed_may_have_changed_something(place) -> None:
    await place.open()
    guest = await place.visit()
    place.broker.failure = TopicNotFound("t")
    with pytest.raises(TopicNotFound):
        await guest.subscribe_lite(place.context, adding("a"))
    assert guest.lite_subscriptions("c") == 1


async def test_who_pops_is_asked_about(place, soon) -> None:
    await place.open()
    guest = await place.visit()
    place.broker.subscriptions["c"] = 5
    popping = asyncio.create_task(guest.pop_lite(place.context, place.request()))
    await soon(lambda: guest.lite_subscriptions("c") == 5)
    popping.cancel()
    await asyncio.gather(popping, return_exceptions=True)


async def test_what_went_is_told_to_every_guest_and_counted(place, soon) -> None:
    await place.open()
    one, other = await place.visit(state_s=60.0), await place.visit(state_s=60.0)
    told: list[tuple[str, ...]] = []
    one.on_lite_gone(lambda *what: told.append(("one", *what)))
    other.on_lite_gone(lambda *what: told.append(("other", *what)))
    await one.subscribe_lite(place.context, adding("a", "b"))
    place.broker.gone("c", "g", "t", "a")
    await soon(lambda: len(told) == 2)
    assert sorted(told) == [("one", "c", "g", "t", "a"), ("other", "c", "g", "t", "a")]
    assert one.lite_subscriptions("c") == 1


async def test_who_leaves_is_forgotten_here_and_there(place, soon) -> None:
    await place.open()
    guest = await place.visit(state_s=60.0)
    await guest.subscribe_lite(place.context, adding("a"))
    guest.leave_lite("c", said_so=False)
    assert guest.lite_subscriptions("c") == 1, "it may come back"
    guest.leave_lite("c", said_so=True)
    assert guest.lite_subscriptions("c") == 0
    await soon(lambda: place.broker.left == [("c", False), ("c", True)])


async def test_the_clients_of_a_guest_that_is_gone_have_left_without_a_word(place, soon) -> None:
    await place.open()
    guest = await place.visit()
    for name in ("c1", "c2", "c3"):
        await guest.subscribe_lite(replace(place.context, client_id=name), adding("a"))
    guest.leave_lite("c2", said_so=True)
    await guest.stop()
    await soon(lambda: sorted(place.broker.left) == [("c1", False), ("c2", True), ("c3", False)])


async def test_no_more_clients_are_remembered_than_there_may_be(place) -> None:
    await place.open()
    guest = await place.visit(max_lite_clients=2, state_s=60.0)
    for name in ("c1", "c2", "c3"):
        await guest.subscribe_lite(replace(place.context, client_id=name), adding("a"))
    assert [guest.lite_subscriptions(name) for name in ("c1", "c2", "c3")] == [0, 1, 1]


async def test_the_rest_is_the_hosts(place) -> None:
    await place.open()
    guest = await place.visit()
    assert await guest.lite_topics("t", "", 10) == []
    await guest.delete_lite_topic("t", "a")
    assert place.broker.done == [("delete_lite_topic", ("t", "a"))]
