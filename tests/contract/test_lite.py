"""Lite topics: light queues within a topic, each client with those it subscribes to. Protocol facts 4.10."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from brokers.capabilities import LiteTopics
from popgate.context import Context, Principal
from popgate.errors import (
    BadRequest,
    GroupNotFound,
    IllegalReceipt,
    LiteSubscriptionQuotaExceeded,
    NotFound,
    ReceiptExpired,
    TopicNotFound,
    Unsupported,
)
from popgate.lite import LiteAction, LiteOrigin, LiteSync
from popgate.model import GroupConfig, MessageType, StartFrom, TopicConfig

BIND, EXPIRATION, MODEL = "lite.bind.topic", "lite.topic.expiration", "lite.sub.model"


class Client:
    """One client of a group: what it subscribes to, and what it gets."""

    def __init__(self, user, topic: str, group: str, name: str) -> None:
        self.user = user
        self.topic = topic
        self.group = group
        self.context = Context(client_id=name, peer="127.0.0.1:40404")

    async def sync(self, action: LiteAction, *names: str, **more) -> None:
        sync = LiteSync(self.topic, self.group, action, names, **more)
        await self.user.broker.subscribe_lite(self.context, sync)

    async def add(self, *names: str, **more) -> None:
        await self.sync(LiteAction.ADD, *names, **more)

    def request(self, at_most: int = 32, **how):
        return self.user.request(self.topic, self.group, at_most, **how)

    async def pop(self, at_most: int = 32, **how):
        return await self.user.broker.pop_lite(self.context, self.request(at_most, **how))

    async def bodies(self, at_most: int = 32, **how) -> list[str]:
        return [message.body.decode() for message in await self.pop(at_most, **how)]

    async def nothing(self) -> None:
        assert await self.bodies() == []

    async def ack(self, *messages) -> None:
        results = await self.user.broker.ack(
            self.context, self.topic, self.group, [message.receipt for message in messages]
        )
        assert results == [None] * len(messages)

    async def drain(self) -> list[str]:
        """Everything there is, acknowledged batch by batch."""
        seen = []
        while messages := await self.pop():
            seen += [message.body.decode() for message in messages]
            await self.ack(*messages)
        return seen


class Rooms:
    """A topic of lite topics, and a group that is bound to it."""

    def __init__(self, user, topic: str, group: str) -> None:
        self.user = user
        self.topic = topic
        self.group = group
        self.gone: list[tuple[str, str, str, str]] = []
        user.broker.on_lite_gone(lambda *what: self.gone.append(what))

    def client(self, name: str = "c1", group: str = "") -> Client:
        return Client(self.user, self.topic, group or self.group, name)

    async def send(self, room: str, *bodies: str) -> None:
        await self.user.send(self.topic, *bodies, lite_topic=room)

    async def names(self) -> list[str]:
        return [one.name for one in await self.user.broker.lite_topics(self.topic, "", 1000)]

    async def more(self, **settings) -> str:
        """Another group of the topic."""
        return await self.user.group(**{"attributes": {BIND: self.topic}, **settings})


@pytest.fixture
async def make_rooms(user):
    if not isinstance(user.broker, LiteTopics):
        user.differs("there are no lite topics", "test_a_broker_without_lite_topics_stores_nothing_for_one")

    async def make(*, attributes=None, group_attributes=None, **group) -> Rooms:
        topic = await user.topic(MessageType.LITE, attributes=attributes or {})
        bound = {BIND: topic, **(group_attributes or {})}
        return Rooms(user, topic, await user.group(attributes=bound, **group))

    return make


@pytest.fixture
async def rooms(make_rooms):
    return await make_rooms()


async def test_a_broker_without_lite_topics_stores_nothing_for_one(user):
    if isinstance(user.broker, LiteTopics):
        user.differs("there are lite topics", "test_a_client_gets_what_it_subscribes_to_and_nothing_else")
    topic = await user.topic()
    with pytest.raises(Unsupported):
        await user.put(user.message(topic, "a", lite_topic="room"))
    await user.nothing(topic, await user.group())


# -- who gets what


@pytest.mark.every_durability
async def test_a_client_gets_what_it_subscribes_to_and_nothing_else(rooms):
    one, two = rooms.client("one"), rooms.client("two")
    await one.add("a", "b")
    await two.add("c")
    for name in "abcd":
        await rooms.send(name, f"{name}1")
    assert sorted(await one.bodies()) == ["a1", "b1"]
    assert await two.bodies() == ["c1"]
    await rooms.client("three").nothing()


async def test_every_group_gets_its_own(rooms):
    other = rooms.client("x", await rooms.more())
    await rooms.client().add("a")
    await other.add("a")
    await rooms.send("a", "a1")
    assert await rooms.client().bodies() == ["a1"]
    assert await other.bodies() == ["a1"]


async def test_messages_from_before_the_subscription_come_too(rooms):
    await rooms.send("a", "a1", "a2")
    await rooms.client().add("a")
    assert await rooms.client().drain() == ["a1", "a2"]


async def test_a_group_that_starts_last_gets_what_comes_after_its_subscription(make_rooms):
    rooms = await make_rooms(start_from=StartFrom.LAST)
    await rooms.send("a", "before")
    await rooms.client().add("a", "new")
    await rooms.send("a", "after")
    await rooms.send("new", "first")
    assert sorted(await rooms.client().drain()) == ["after", "first"]


async def test_a_start_at_the_last_message_outlives_a_restart(make_rooms, user):
    rooms = await make_rooms(start_from=StartFrom.LAST)
    await rooms.client().add("a")
    await user.restart()
    await rooms.send("a", "a1")
    await rooms.client().add("a")
    assert await rooms.client().drain() == ["a1"]


async def test_a_message_of_a_lite_topic_is_found_and_tells_its_lite_topic(rooms, user, properties_of):
    [sent] = await user.send(rooms.topic, "a1", lite_topic="a")
    [found] = await user.broker.find_by_id(user.context, rooms.topic, sent.message_id)
    assert properties_of(found)["__LITE_TOPIC"] == "a"
    await rooms.client().add("a")
    [message] = await rooms.client().pop()
    assert properties_of(message)["__LITE_TOPIC"] == "a"
    assert (message.topic, message.attempt) == (rooms.topic, 1)


# -- order


@pytest.mark.every_durability
async def test_a_lite_topic_comes_in_its_order(rooms):
    await rooms.client().add("a", "b")
    for n in range(50):
        await rooms.send("ab"[n % 2], f"{'ab'[n % 2]}{n:02}")
    seen = await rooms.client().drain()
    for name in "ab":
        mine = [body for body in seen if body[0] == name]
        assert mine == sorted(mine)
        assert len(mine) == 25


async def test_a_held_message_keeps_those_behind_it_back_and_no_other_lite_topic(rooms):
    client = rooms.client()
    await client.add("a", "b")
    await rooms.send("a", "a1", "a2")
    [held] = await client.pop(1)
    await rooms.send("b", "b1")
    assert await client.bodies() == ["b1"]
    await client.nothing()
    await client.ack(held)
    assert await client.bodies() == ["a2"]


async def test_what_fails_comes_again_before_what_is_behind_it(rooms, user):
    client = rooms.client()
    await client.add("a")
    await rooms.send("a", "a1", "a2", "a3")
    first, second = await client.pop(2)
    await client.ack(second)
    await user.hide(rooms.topic, rooms.group, first.receipt, 1_000)
    await client.nothing()
    await user.lag(1_000)
    again = await client.pop()
    assert [(m.body, m.attempt) for m in again] == [(b"a1", 2), (b"a3", 1)]


async def test_two_clients_share_a_lite_topic_in_order(rooms):
    one, two = rooms.client("one"), rooms.client("two")
    await one.add("a")
    await two.add("a")
    await rooms.send("a", "a1", "a2")
    [held] = await one.pop(1)
    await two.nothing()
    await one.ack(held)
    assert await two.bodies() == ["a2"]


async def test_a_repeated_receive_gets_the_same_again(rooms):
    client = rooms.client()
    await client.add("a", "b")
    await rooms.send("a", "a1", "a2")
    first = await client.pop(attempt_id="try")
    again = await client.pop(attempt_id="try")
    assert [(m.body, m.receipt, m.attempt) for m in again] == [(m.body, m.receipt, 1) for m in first]
    await client.ack(first[0])
    assert await client.bodies(attempt_id="try") == ["a2"]
    assert await client.bodies(attempt_id="other") == []


# -- subscribing


async def test_a_subscription_is_taken_back(rooms):
    client = rooms.client()
    await client.add("a", "b")
    await client.sync(LiteAction.REMOVE, "a", "never")
    await rooms.send("a", "a1")
    await rooms.send("b", "b1")
    assert await client.bodies() == ["b1"]
    assert rooms.user.broker.lite_subscriptions("c1") == 1


async def test_a_whole_set_takes_the_place_of_what_was(rooms):
    client = rooms.client()
    await client.add("a", "b")
    await client.sync(LiteAction.REPLACE, "b", "c")
    for name in "abc":
        await rooms.send(name, f"{name}1")
    assert sorted(await client.bodies()) == ["b1", "c1"]
    await client.sync(LiteAction.REPLACE)
    assert rooms.user.broker.lite_subscriptions("c1") == 0


async def test_everything_is_taken_back_at_once(rooms):
    client = rooms.client()
    await client.add("a", "b", "c")
    await client.sync(LiteAction.CLEAR)
    await rooms.send("a", "a1")
    await client.nothing()
    assert rooms.user.broker.lite_subscriptions("c1") == 0


async def test_repeating_a_set_disturbs_nothing(rooms):
    client = rooms.client()
    await client.add("a")
    await rooms.send("a", "a1", "a2")
    [held] = await client.pop(1)
    await client.sync(LiteAction.REPLACE, "a")
    await client.nothing()
    await client.ack(held)
    assert await client.bodies() == ["a2"]


async def test_scenario_38_a_quota_binds_what_is_added_and_nothing_else(rooms):
    client = rooms.client()
    await client.add("a", "b", most=2)
    with pytest.raises(LiteSubscriptionQuotaExceeded, match="at most 2 lite topics"):
        await client.add("c", most=2)
    await client.add("a", most=2)
    await client.sync(LiteAction.REPLACE, "a", "b", most=1)
    await client.sync(LiteAction.REMOVE, "a", most=0)
    await client.add("c", most=2)
    with pytest.raises(LiteSubscriptionQuotaExceeded):
        await client.sync(LiteAction.REPLACE, "c", "d", "e", most=2)
    assert rooms.user.broker.lite_subscriptions("c1") == 1, "what was to go went"
    await client.sync(LiteAction.CLEAR, most=0)
    assert rooms.user.broker.lite_subscriptions("c1") == 0


async def test_scenario_38_whatever_was_deleted_can_be_left(rooms, user):
    client = rooms.client()
    await client.add("a", "b")
    await user.broker.delete_group(rooms.group)
    await client.sync(LiteAction.REMOVE, "a")
    await user.broker.delete_topic(rooms.topic)
    await client.sync(LiteAction.CLEAR)
    assert user.broker.lite_subscriptions("c1") == 0


async def test_scenario_38_a_client_that_leaves_leaves_all_of_its_lite_topics(rooms, user):
    client = rooms.client()
    await client.add(*(f"r{n}" for n in range(20)))
    user.broker.leave_lite("c1", said_so=True)
    assert user.broker.lite_subscriptions("c1") == 0
    await rooms.send("r7", "x")
    await client.nothing()


async def test_accounts_with_one_client_id_leave_each_other_alone(rooms, user):
    """Anybody may name a client's id."""
    anna, bert = rooms.client(), rooms.client()
    anna.context = replace(anna.context, principal=Principal("anna"), certificate=("CN:anna",))
    bert.context = replace(bert.context, principal=Principal("bert"), certificate=("CN:bert",))
    await anna.add("a")
    await bert.add("b")
    await rooms.send("a", "a1")
    await bert.nothing()
    for key in ("c1", bert.context.client_key):
        user.broker.leave_lite(key, said_so=True)
    await rooms.send("b", "b1")
    await bert.nothing()
    assert await anna.bodies() == ["a1"]
    assert user.broker.lite_subscriptions(anna.context.client_key) == 1


async def test_a_client_that_vanishes_is_forgotten_and_one_that_comes_back_is_not(rooms, user):
    user.moved_by_hand()
    one, two = rooms.client("one"), rooms.client("two")
    await one.add("a")
    await two.add("b")
    for name in ("one", "two"):
        user.broker.leave_lite(name, said_so=False)
    await two.nothing()
    await user.pass_ms(60_000)
    assert user.broker.lite_subscriptions("one") == 0
    assert user.broker.lite_subscriptions("two") == 1


async def test_a_client_that_is_silent_for_long_is_forgotten(rooms, user):
    user.moved_by_hand()
    await rooms.client().add("a")
    await user.pass_ms(100_000)
    assert user.broker.lite_subscriptions("c1") == 1
    await user.pass_ms(60_000)
    assert user.broker.lite_subscriptions("c1") == 0


async def test_who_may_not_subscribe_is_told_why(rooms, user):
    plain = await user.group()
    with pytest.raises(BadRequest, match=r"lite\.bind\.topic must name that topic"):
        await rooms.client(group=plain).add("a")
    with pytest.raises(GroupNotFound):
        await rooms.client(group="nobody").add("a")
    with pytest.raises(TopicNotFound):
        await Client(user, "nowhere", rooms.group, "c1").add("a")


async def test_only_one_client_has_a_lite_topic_where_the_group_says_so(make_rooms):
    rooms = await make_rooms(group_attributes={MODEL: "Exclusive"})
    one, two = rooms.client("one"), rooms.client("two")
    await one.add("a")
    await two.add("a")
    assert rooms.gone == [("one", rooms.group, rooms.topic, "a")]
    await rooms.send("a", "a1")
    await one.nothing()
    assert await two.bodies() == ["a1"]
    await one.sync(LiteAction.REPLACE, "a")
    assert rooms.gone[1:] == [("one", rooms.group, rooms.topic, "a")], "it missed the word, and is told again"


# -- where to begin


@pytest.mark.parametrize(
    ("how", "bodies"),
    [
        ({"origin": LiteOrigin.FIRST}, ["a0", "a1", "a2", "a3", "a4"]),
        ({"origin": LiteOrigin.END}, []),
        ({"origin": LiteOrigin.LAST}, ["a2", "a3", "a4"]),
        ({"origin": LiteOrigin.OFFSET, "value": 3}, ["a3", "a4"]),
        ({"origin": LiteOrigin.OFFSET, "value": 99}, []),
        ({"origin": LiteOrigin.OFFSET, "value": -5}, ["a0", "a1", "a2", "a3", "a4"]),
        ({"origin": LiteOrigin.TAIL, "value": 2}, ["a3", "a4"]),
        ({"origin": LiteOrigin.TAIL, "value": 99}, ["a0", "a1", "a2", "a3", "a4"]),
        ({"origin": LiteOrigin.TAIL, "value": 0}, []),
    ],
)
async def test_a_client_may_say_where_to_begin(rooms, how, bodies):
    client = rooms.client()
    await client.add("a")
    await rooms.send("a", "a0", "a1", "a2", "a3", "a4")
    await client.ack(*await client.pop(2))
    await client.add("a", **how)
    assert await client.drain() == bodies


async def test_a_client_may_begin_at_a_time(rooms, user):
    for n in range(4):
        await rooms.send("a", f"a{n}")
        await user.pass_ms(1_000)
        if n == 1:
            time_ms = user.now_ms()
            await user.pass_ms(1_000)
    await rooms.client().add("a", origin=LiteOrigin.TIME, value=time_ms)
    assert await rooms.client().drain() == ["a2", "a3"]


async def test_a_place_that_was_chosen_counts_for_messages_to_come(rooms):
    client = rooms.client()
    await rooms.send("a", "a0")
    await client.add("a", "b", origin=LiteOrigin.END)
    await rooms.send("a", "a1")
    await rooms.send("b", "b0")
    assert sorted(await client.drain()) == ["a1", "b0"]


async def test_going_back_makes_old_handles_worthless(rooms, user):
    client = rooms.client()
    await client.add("a")
    await rooms.send("a", "a0")
    [old] = await client.pop()
    await client.add("a", origin=LiteOrigin.FIRST)
    [new] = await client.pop()
    assert new.body == b"a0"
    with pytest.raises(IllegalReceipt):
        await user.hide(rooms.topic, rooms.group, old.receipt, 1_000)
    await client.ack(new)
    await client.nothing()


# -- deliveries


async def test_a_message_comes_back_when_its_time_is_over(rooms, user):
    client = rooms.client()
    await client.add("a")
    await rooms.send("a", "a1")
    [held] = await client.pop(invisible_ms=10_000)
    await user.lag(10_000)
    [again] = await client.pop()
    assert again.attempt == 2
    with pytest.raises(ReceiptExpired):
        await user.hide(rooms.topic, rooms.group, held.receipt, 1_000)
    await client.ack(again)
    await client.ack(again)
    await client.nothing()


async def test_a_held_message_can_be_held_for_longer(rooms, user):
    client = rooms.client()
    await client.add("a")
    await rooms.send("a", "a1")
    [held] = await client.pop(invisible_ms=10_000)
    handle = await user.hide(rooms.topic, rooms.group, held.receipt, 60_000)
    await user.lag(30_000)
    await client.nothing()
    await client.ack(replace(held, receipt=handle))
    await user.lag(60_000)
    await client.nothing()


async def test_what_reached_nobody_was_no_attempt(rooms, user):
    client = rooms.client()
    await client.add("a")
    await rooms.send("a", "a1", "a2")
    held = await client.pop()
    assert await user.give_back(rooms.topic, rooms.group, *held) == 2
    again = await client.pop()
    assert [(m.body, m.attempt) for m in again] == [(b"a1", 1), (b"a2", 1)]
    assert await user.give_back(rooms.topic, rooms.group, *held) == 0


async def test_a_suspended_message_rests_and_was_no_attempt(rooms, user):
    client = rooms.client()
    await client.add("a")
    await rooms.send("a", "a1", "a2")
    for _ in range(5):
        [held] = await client.pop(1)
        assert (held.body, held.attempt) == (b"a1", 1)
        await user.broker.change_invisible(
            client.context, rooms.topic, rooms.group, held.receipt, 5_000, suspend=True
        )
        with pytest.raises(ReceiptExpired):
            await user.hide(rooms.topic, rooms.group, held.receipt, 1_000)
        await client.nothing()
        await user.lag(5_000)
    assert await client.bodies() == ["a1", "a2"]


async def test_suspending_is_for_ordinary_topics_too(user):
    if user.before("5.5.0"):
        user.differs("a suspension is an attempt", "test_a_suspended_message_is_not_buried_where_that_counts")
    topic, group = await user.topic(), await user.group(max_attempts=1)
    await user.send(topic, "m")
    for _ in range(3):
        held = await user.one(topic, group)
        assert held.attempt == 1
        await user.broker.change_invisible(user.context, topic, group, held.receipt, 2_000, suspend=True)
        await user.nothing(topic, group)
        await user.lag(2_000)
    await user.dead_letters(group, 0)


async def test_a_suspended_message_is_not_buried_where_that_counts(user):
    """As long as this replica knows of it (any-replica, section 1)."""
    if not user.before("5.5.0"):
        user.differs("a suspension is no attempt", "test_suspending_is_for_ordinary_topics_too")
    topic, group = await user.topic(), await user.group(max_attempts=1)
    await user.send(topic, "m")
    for _ in range(3):
        held = await user.one(topic, group)
        await user.broker.change_invisible(user.context, topic, group, held.receipt, 2_000, suspend=True)
        await user.nothing(topic, group)
        await user.lag(2_000)
    await user.dead_letters(group, 0)


async def test_what_fails_too_often_is_a_dead_letter_and_tells_its_lite_topic(
    make_rooms, user, properties_of
):
    rooms = await make_rooms(max_attempts=2)
    client = rooms.client()
    await client.add("a")
    await rooms.send("a", "bad", "good")
    for _ in range(2):
        await client.pop(1, invisible_ms=10_000)
        await user.lag(10_000)
    assert await client.bodies() == ["good"]
    [letter] = await user.dead_letters(rooms.group, 1)
    assert letter.body == b"bad"
    assert properties_of(letter)["__LITE_TOPIC"] == "a"
    assert properties_of(letter)["DLQ_ORIGIN_TOPIC"] == rooms.topic


async def test_a_message_can_be_made_a_dead_letter(rooms, user):
    client = rooms.client()
    await client.add("a")
    await rooms.send("a", "bad", "good")
    [held] = await client.pop(1)
    await user.dead_letter(rooms.topic, rooms.group, held.receipt)
    assert await client.bodies() == ["good"]
    assert [m.body for m in await user.dead_letters(rooms.group, 1)] == [b"bad"]


@pytest.mark.parametrize("lite_id", [0, 2, 1 << 40])
async def test_a_forged_handle_finishes_nothing(rooms, user, lite_id):
    client = rooms.client()
    await client.add("a")
    await rooms.send("a", "a1")
    [held] = await client.pop()
    forged = f"{held.receipt.rpartition(' ')[0]} {lite_id}"
    [result] = await user.broker.ack(client.context, rooms.topic, rooms.group, [forged])
    assert isinstance(result, IllegalReceipt)


# -- waiting


async def test_a_waiting_client_is_woken_by_its_own_lite_topics_only(rooms, user):
    one, two = rooms.client("one"), rooms.client("two")
    await one.add("a")
    await two.add("b")
    waiting = [asyncio.ensure_future(client.bodies(wait_ms=20_000)) for client in (one, two)]
    await user.site.turn()
    await rooms.send("b", "b1")
    assert await waiting[1] == ["b1"]
    assert not waiting[0].done()
    await rooms.send("a", "a1")
    assert await waiting[0] == ["a1"]


async def test_a_client_that_waits_before_it_subscribes_is_woken(rooms, user):
    await rooms.send("a", "a1")
    client = rooms.client()
    waiting = asyncio.ensure_future(client.bodies(wait_ms=20_000))
    await user.site.turn()
    await client.add("a")
    assert await waiting == ["a1"]


async def test_what_becomes_free_wakes_who_waits(rooms, user):
    one, two = rooms.client("one"), rooms.client("two")
    await one.add("a")
    await two.add("a")
    await rooms.send("a", "a1", "a2")
    [held] = await one.pop(1)
    waiting = asyncio.ensure_future(two.bodies(wait_ms=20_000))
    await user.site.turn()
    await one.ack(held)
    assert await waiting == ["a2"]


async def test_a_message_whose_time_is_over_wakes_who_waits(rooms, user):
    one, two = rooms.client("one"), rooms.client("two")
    await one.add("a")
    await two.add("a")
    await rooms.send("a", "a1")
    await one.pop(invisible_ms=10_000)
    waiting = asyncio.ensure_future(two.bodies(wait_ms=20_000))
    await user.site.turn()
    await user.lag(10_000)
    assert await waiting == ["a1"]


async def test_two_receives_of_a_client_share_the_work(rooms, user):
    client = rooms.client()
    await client.add("a", "b")
    waiting = [asyncio.ensure_future(client.bodies(1, wait_ms=20_000)) for _ in range(2)]
    await user.site.turn()
    await rooms.send("a", "a1")
    await rooms.send("b", "b1")
    assert sorted(await asyncio.gather(*waiting)) == [["a1"], ["b1"]]


async def test_an_empty_wait_ends_in_time(rooms, user):
    client = rooms.client()
    await client.add("a")
    waiting = asyncio.ensure_future(client.bodies(wait_ms=5_000))
    await user.site.turn()
    await user.pass_ms(5_000)
    assert await waiting == []


async def test_a_cancelled_pop_holds_nothing(rooms, user):
    client = rooms.client()
    await client.add("a")
    await rooms.send("a", "a1")
    for _ in range(3):
        pop = asyncio.ensure_future(client.pop())
        await asyncio.sleep(0)
        pop.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pop
    [message] = await client.pop()
    assert message.attempt == 1


async def test_a_deleted_topic_or_group_ends_the_wait(rooms, user):
    client = rooms.client()
    await client.add("a")
    waiting = asyncio.ensure_future(client.pop(wait_ms=20_000))
    await user.site.turn()
    await user.broker.delete_group(rooms.group)
    with pytest.raises(GroupNotFound):
        await waiting


# -- what lasts


@pytest.mark.every_durability
async def test_messages_and_progress_outlive_a_restart(rooms, user):
    client = rooms.client()
    await client.add("a", "b")
    await rooms.send("a", "a1", "a2", "a3")
    await rooms.send("b", "b1")
    taken = {message.body: message for message in await client.pop()}
    await client.ack(taken[b"a1"], taken[b"b1"])
    await user.restart()
    await client.sync(LiteAction.REPLACE, "a", "b")
    await client.nothing()
    await client.ack(taken[b"a2"])
    await user.lag(30_000)
    [again] = await client.pop()
    assert (again.body, again.attempt) == (b"a3", 2)
    await rooms.send("a", "a4")
    await client.ack(again)
    assert await client.drain() == ["a4"]


async def test_a_dead_letter_is_made_after_a_restart_though_nobody_pops(make_rooms, user):
    rooms = await make_rooms(max_attempts=1)
    client = rooms.client()
    await client.add("a")
    await rooms.send("a", "bad")
    await client.pop(invisible_ms=10_000)
    await user.restart()
    await user.lag(10_000)
    assert [m.body for m in await user.dead_letters(rooms.group, 1)] == [b"bad"]


async def test_a_group_made_again_begins_anew(rooms, user):
    await rooms.client().add("a")
    await rooms.send("a", "a1")
    assert await rooms.client().drain() == ["a1"]
    await user.broker.delete_group(rooms.group)
    await user.broker.create_group(GroupConfig(rooms.group, attributes={BIND: rooms.topic}))
    await rooms.client().nothing()
    await rooms.client().add("a")
    assert await rooms.client().drain() == ["a1"]


async def test_a_topic_made_again_has_none_of_the_old_lite_topics(rooms, user):
    client = rooms.client()
    await client.add("a")
    await rooms.send("a", "a1")
    [old] = await client.pop()
    await user.broker.delete_topic(rooms.topic)
    assert rooms.gone == [("c1", rooms.group, rooms.topic, "a")]
    await user.broker.create_topic(TopicConfig(rooms.topic, (MessageType.LITE,)))
    assert await rooms.names() == []
    await client.add("a")
    await client.nothing()
    await rooms.send("a", "new")
    [result] = await user.broker.ack(client.context, rooms.topic, rooms.group, [old.receipt])
    assert isinstance(result, IllegalReceipt) or await client.bodies() == ["new"]


# -- what goes


async def test_an_idle_lite_topic_goes_and_its_clients_are_told(make_rooms, user):
    user.moved_by_hand()
    rooms = await make_rooms(attributes={EXPIRATION: "10"})
    client = rooms.client()
    await client.add("old", "busy")
    await rooms.send("old", "x")
    await rooms.send("busy", "y")
    assert sorted(await client.drain()) == ["x", "y"]
    await user.pass_ms(9 * 60_000)
    await client.sync(LiteAction.REPLACE, "old", "busy")
    await rooms.send("busy", "z")
    assert await rooms.names() == ["busy", "old"]
    await user.pass_ms(2 * 60_000)
    assert await rooms.names() == ["busy"]
    assert rooms.gone == [("c1", rooms.group, rooms.topic, "old")]
    assert user.broker.lite_subscriptions("c1") == 1


async def test_a_lite_topic_of_an_old_name_begins_anew(make_rooms, user):
    user.moved_by_hand()
    rooms = await make_rooms(attributes={EXPIRATION: "10"})
    client = rooms.client()
    await client.add("a")
    await rooms.send("a", "old", "older")
    held = await client.pop()
    await user.pass_ms(11 * 60_000)
    assert await rooms.names() == []
    await client.add("a")
    await client.nothing()
    await rooms.send("a", "new")
    results = await user.broker.ack(
        client.context, rooms.topic, rooms.group, [message.receipt for message in held]
    )
    assert all(isinstance(result, IllegalReceipt) for result in results)
    assert await client.drain() == ["new"]


async def test_without_an_expiration_a_lite_topic_stays(rooms, user):
    user.moved_by_hand()
    await rooms.send("a", "a1")
    await user.pass_ms(40 * 24 * 3_600_000)
    assert await rooms.names() == ["a"]


async def test_a_new_expiration_counts_for_lite_topics_that_are_there(rooms, user):
    user.moved_by_hand()
    for n in range(300):
        await rooms.send(f"r{n}", "x")
    config = await user.broker.topic(rooms.topic)
    await user.broker.update_topic(replace(config, attributes={EXPIRATION: "5"}))
    await user.pass_ms(6 * 60_000)
    assert await rooms.names() == []


async def test_an_expiration_of_before_a_restart_still_counts(make_rooms, user):
    user.moved_by_hand()
    rooms = await make_rooms(attributes={EXPIRATION: "10"})
    await rooms.send("a", "x")
    await user.restart()
    await user.pass_ms(11 * 60_000)
    assert await rooms.names() == []


async def test_a_lite_topic_can_be_deleted(rooms, user):
    client = rooms.client()
    await client.add("a")
    await rooms.send("a", "a1")
    await user.broker.delete_lite_topic(rooms.topic, "a")
    assert rooms.gone == [("c1", rooms.group, rooms.topic, "a")]
    assert await rooms.names() == []
    await client.nothing()
    with pytest.raises(NotFound):
        await user.broker.delete_lite_topic(rooms.topic, "a")
    await rooms.send("a", "a2")
    await client.add("a")
    assert await client.drain() == ["a2"]


async def test_messages_that_are_too_old_go_and_the_rest_comes(rooms, user):
    user.moved_by_hand()
    config = await user.broker.topic(rooms.topic)
    await user.broker.update_topic(replace(config, retention_ms=3_600_000))
    await rooms.send("a", *(f"old {n}" for n in range(400)))
    await user.pass_ms(2 * 3_600_000)
    await rooms.send("a", "new")
    await rooms.client().add("a")
    assert await rooms.client().drain() == ["new"]
    await user.pass_ms(3_600_000)
    [state] = await user.broker.lite_topics(rooms.topic, "", 10)
    assert state.minimum >= 400


async def test_lite_topics_are_listed_by_name_page_by_page(rooms):
    for name in ("b", "a", "c", "ab"):
        await rooms.send(name, "x")
    await rooms.client().add("a")
    first = await rooms.user.broker.lite_topics(rooms.topic, "", 2)
    assert [(one.name, one.maximum, one.subscribers) for one in first] == [("a", 1, 1), ("ab", 1, 0)]
    rest = await rooms.user.broker.lite_topics(rooms.topic, "ab", 10)
    assert [one.name for one in rest] == ["b", "c"]


# -- what operators see


async def test_a_held_message_is_told_with_its_lite_topic_and_its_holder_and_is_freed(rooms, user):
    client = rooms.client("holder")
    await client.add("a", "b")
    await rooms.send("a", "a1", "a2", "a3")
    [sent] = await user.send(rooms.topic, "b1", lite_topic="b", keys=("k",))
    [first] = await client.pop(1, invisible_ms=60_000)
    await user.hide(rooms.topic, rooms.group, first.receipt, 60_000)
    [second] = await client.pop(invisible_ms=60_000)
    for _ in range(2):
        [one, other] = await user.broker.held(rooms.group, rooms.topic, 9)
        assert [(h.lite_topic, h.holder, h.attempt, h.topic) for h in (one, other)] == [
            ("a", "holder", 1, rooms.topic),
            ("b", "holder", 1, rooms.topic),
        ]
        assert (one.waiting_behind, other.waiting_behind) == (2, 0)
        assert (one.renewals, other.renewals) == (1, 0)
        assert (other.message_id, other.keys) == (sent.message_id, ("k",))
        assert (other.queue_id, other.offset) == (second.queue_id, second.offset)
        assert other.receipt == second.receipt
        assert other.until_ms == second.invisible_until_ms
        assert one.since_ms <= other.since_ms <= user.now_ms()
        standing = await user.broker.standing(rooms.group, rooms.topic)
        assert (standing.lag, standing.in_flight, standing.behind, standing.unread) == (4, 2, 2, 0)
        await user.restart()
    assert await user.broker.held(rooms.group, rooms.topic, 1) == [one]
    await user.hide(rooms.topic, rooms.group, one.receipt, 0)
    await user.lag()
    await client.add("a", "b")
    assert [(m.body, m.attempt) for m in await client.pop(1)] == [(b"a1", 2)]
    with pytest.raises(ReceiptExpired):
        await user.hide(rooms.topic, rooms.group, one.receipt, 0)


async def test_what_of_lite_topics_is_finished_given_back_or_of_another_group_is_not_held(rooms, user):
    client, group = rooms.client(), await rooms.more()
    await client.add("a", "b", "c")
    await rooms.client("x", group).add("a")
    for name in "abc":
        await rooms.send(name, f"{name}1")
    taken = {m.body: m for m in await client.pop()}
    await client.ack(taken[b"a1"])
    await user.broker.give_back(client.context, rooms.topic, rooms.group, [taken[b"b1"].receipt])
    assert [h.lite_topic for h in await user.broker.held(rooms.group, rooms.topic, 9)] == ["c"]
    assert await user.broker.held(group, rooms.topic, 9) == []
    mine = await user.broker.standing(rooms.group, rooms.topic)
    assert (mine.lag, mine.free, mine.in_flight) == (2, 1, 1)
    others = await user.broker.standing(group, rooms.topic)
    assert (others.lag, others.unread) == (1, 1)
    assert await rooms.client("x", group).drain() == ["a1"]
    assert (await user.broker.standing(group, rooms.topic)).lag == 0
