"""processors.admin.stuck: why a group is stuck, and freeing what it holds without undoing anything."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from popgate.context import Context, Principal
from popgate.errors import (
    BadRequest,
    GroupNotFound,
    NotFound,
    ReceiptExpired,
    Unsupported,
)
from popgate.groups.group_config import BROADCAST_GROUP
from popgate.ids.receipt import Receipt
from popgate.lite import LITE_BIND_TOPIC
from popgate.model import GroupStatus, Held, TopicConfig
from popgate.naming import member_group
from processors.admin.held_messages import HeldState, choose
from processors.clients.client_registry import ClientKind
from processors.members.broadcast import BROADCAST_CLIENT
from processors.requests import Receive


def held(**changes: Any) -> Held:
    made = Held(
        topic="orders",
        broker="fake",
        queue_id=0,
        offset=7,
        message_id="01ABC",
        message_group="",
        tag="",
        keys=(),
        receipt=Receipt(7, 1_000, 60_000, 0, 0, "fake", 0, 7).encode(),
        holder="client-1",
        since_ms=1_000,
        until_ms=61_000,
        attempt=1,
        renewals=0,
        waiting_behind=0,
    )
    return replace(made, **changes)


def standing(**changes: Any) -> GroupStatus:
    return replace(GroupStatus("readers", "orders", 0, 0, 0, 0, 0, 0, 0, False, 0, 0), **changes)


OPERATOR = Context(client_id="admin@127.0.0.1", door="admin", peer="127.0.0.1:9")


async def reasons(processor: Any) -> str:
    return " | ".join((await processor.stuck.explain(OPERATOR, "readers")).reasons)


async def test_a_group_that_is_done_is_not_stuck(broker, processor):
    broker.told_standing = standing()
    found = await processor.stuck.explain(OPERATOR, "readers")
    assert (found.group, found.enabled, found.consumers, found.grasps) == ("readers", True, 0, ())
    assert found.reasons == ("nothing waits: the group is done with everything",)


async def test_what_is_held_is_told_with_the_longest_first(broker, processor):
    broker.told_standing = standing(lag=5, in_flight=2, behind=3)
    broker.told_held = [held(offset=8, since_ms=9_000), held(since_ms=5_000)]
    found = await processor.stuck.explain(OPERATOR, "readers", "orders", limit=5)
    assert [grasp.held.since_ms for grasp in found.grasps] == [5_000, 9_000]
    assert broker.asked("held") == [("readers", "orders", 5)]
    assert any("kept back" in reason for reason in found.reasons)


async def test_nothing_is_looked_for_where_nothing_is_in_flight(broker, processor):
    broker.told_standing = standing(lag=5, unread=5)
    await processor.stuck.explain(OPERATOR, "readers")
    assert broker.asked("held") == []


async def test_messages_that_nobody_fetches_are_told_with_why(broker, processor, make_client):
    broker.told_standing = standing(lag=5, unread=5)
    assert "5 messages of topic orders can be given out, and no consumer" in await reasons(processor)
    processor.clients.register(
        make_client("c", kind=ClientKind.SIMPLE_CONSUMER, group="readers", topics=frozenset({"orders"}))
    )
    assert "nobody asks for them" in await reasons(processor)
    broker.told_standing = standing(lag=5, unread=5, receivers=1)
    assert "about to be given out" in await reasons(processor)


async def test_filters_a_full_queue_and_a_group_that_is_off_are_told(broker, processor):
    broker.told_standing = standing(lag=5, free=5, refused=5, receivers=1)
    assert "pass the filter of nobody" in await reasons(processor)
    broker.told_standing = standing(lag=9, unread=4, in_flight=5, full=True)
    assert "nothing new is given out there" in await reasons(processor)
    broker.kept_groups["readers"] = replace(broker.kept_groups["readers"], consume_enabled=False)
    assert "switched off" in await reasons(processor)


@pytest.mark.parametrize("account", ["", "anna"])
async def test_what_a_push_consumer_gave_back_rests_and_what_the_gateway_renewed_does_not(
    broker, processor, clock, context, make_client, message, account
):
    context = replace(context, principal=Principal(account))
    processor.clients.register(
        make_client(
            context.client_id,
            kind=ClientKind.PUSH_CONSUMER,
            group="readers",
            topics=frozenset({"orders"}),
            key=context.client_key,
        )
    )
    broker.told_standing = standing(lag=1, in_flight=1)
    now_ms = clock.now_ms()
    broker.told_held = [held(renewals=1, until_ms=now_ms + 9_000)]
    (grasp,) = (await processor.stuck.explain(OPERATOR, "readers")).grasps
    assert grasp.grip is HeldState.RESTING
    assert "rest after a failure, the first of them for 9.0 s more" in await reasons(processor)
    await processor.send(context, [message])
    (taken,) = await processor.receive(context, Receive("orders", "readers", auto_renew=True, wait_s=0))
    broker.told_held = [held(receipt=taken.receipt, since_ms=now_ms, renewals=3)]
    (grasp,) = (await processor.stuck.explain(OPERATOR, "readers")).grasps
    assert grasp.grip is HeldState.HELD


async def test_a_group_that_takes_lite_topics_is_looked_at_by_the_topic_that_it_is_bound_to(
    broker, processor
):
    broker.kept_topics["rooms"] = TopicConfig("rooms")
    bound = {LITE_BIND_TOPIC: "rooms"}
    broker.kept_groups["readers"] = replace(broker.kept_groups["readers"], attributes=bound)
    broker.told_standing = standing(lag=3, in_flight=1, behind=2)
    broker.told_held = [held(topic="rooms", lite_topic="a")]
    found = await processor.stuck.explain(OPERATOR, "readers")
    assert ("readers", "rooms", 20) in broker.asked("held")
    assert {one.topic for one in found.standings} == {"orders", "rooms"}
    assert any("of their lite topic is held" in reason for reason in found.reasons)
    broker.kept_groups["readers"] = replace(
        broker.kept_groups["readers"], attributes={LITE_BIND_TOPIC: "nowhere"}
    )
    assert {one.topic for one in (await processor.stuck.explain(OPERATOR, "readers")).standings} == {"orders"}


async def test_messages_at_the_same_place_of_two_lite_topics_are_told_apart_by_their_receipts(
    broker, processor
):
    broker.told_standing = standing(lag=2, in_flight=2)
    one, other = (Receipt(0, 1_000, 60_000, 0, 0, "fake", 1 << 20, 0, lite).encode() for lite in (1, 2))
    broker.told_held = [held(receipt=one, lite_topic="a"), held(receipt=other, lite_topic="b")]
    assert (
        choose("readers", (await processor.stuck.explain(OPERATOR, "readers")).grasps, other).held.lite_topic
        == "b"
    )


async def freed(broker: Any) -> list[Any]:
    return [what for name, what in broker.calls if name == "change_invisible"]


async def test_the_only_held_message_is_freed_once(broker, processor, clock, context, message, observer):
    await processor.send(context, [message])
    (taken,) = await processor.receive(context, Receive("orders", "readers", invisible_ms=60_000, wait_s=0))
    broker.told_standing = standing(lag=1, in_flight=1)
    broker.told_held = [
        held(offset=taken.offset, queue_id=taken.queue_id, receipt=taken.receipt, since_ms=clock.now_ms())
    ]
    found = await processor.stuck.free(OPERATOR, "readers")
    assert found.grasp.held.receipt == taken.receipt
    assert not found.dead_lettered
    assert len(await freed(broker)) == 1


async def test_scenario_04_a_release_by_an_operator_never_undoes_an_acknowledgement(
    broker, processor, clock, context, message
):
    """The message was listed, and acknowledged before the operator's word came: nothing returns."""
    await processor.send(context, [message])
    (taken,) = await processor.receive(context, Receive("orders", "readers", invisible_ms=60_000, wait_s=0))
    broker.told_standing = standing(lag=1, in_flight=1)
    broker.told_held = [
        held(offset=taken.offset, queue_id=taken.queue_id, receipt=taken.receipt, since_ms=clock.now_ms())
    ]
    assert await processor.ack(context, "orders", "readers", [taken.receipt]) == [None]
    with pytest.raises(ReceiptExpired):
        await processor.stuck.free(OPERATOR, "readers", which=taken.receipt)
    assert broker.messages["orders"] == []


async def test_a_broker_that_does_not_check_acknowledgements_frees_only_what_surely_is_not_done(
    broker, processor, clock, context, message, make_client
):
    """any-replica, section 1: it would bring an acknowledged message back."""
    broker.traits = replace(broker.traits, acks_are_checked=False)
    await processor.send(context, [message])
    (taken,) = await processor.receive(context, Receive("orders", "readers", invisible_ms=60_000, wait_s=0))
    broker.told_standing = standing(lag=1, in_flight=1)
    broker.told_held = [
        held(offset=taken.offset, queue_id=taken.queue_id, receipt=taken.receipt, since_ms=clock.now_ms())
    ]
    with pytest.raises(Unsupported):
        await processor.stuck.free(OPERATOR, "readers")
    assert await freed(broker) == []


async def test_which_one_is_meant_is_said_by_message_id_or_receipt(broker, processor):
    broker.told_standing = standing(lag=2, in_flight=2)
    broker.told_held = [held(), held(offset=8, message_id="01DEF")]
    with pytest.raises(BadRequest, match="holds 2 messages that fit"):
        await processor.stuck.free(OPERATOR, "readers")
    with pytest.raises(NotFound, match="01GHI"):
        await processor.stuck.free(OPERATOR, "readers", which="01GHI")
    older = Receipt(7, 500, 60_000, 0, 0, "fake", 0, 7).encode()
    with pytest.raises(ReceiptExpired, match="delivered again"):
        await processor.stuck.free(OPERATOR, "readers", which=older)
    with pytest.raises(BadRequest):
        await processor.stuck.free(OPERATOR, "readers", which="no handle at all")
    assert await freed(broker) == []


async def test_the_last_attempt_that_is_freed_becomes_a_dead_letter(
    broker, processor, clock, context, message
):
    await processor.send(context, [message])
    (taken,) = await processor.receive(context, Receive("orders", "readers", invisible_ms=60_000, wait_s=0))
    broker.told_standing = standing(lag=1, in_flight=1)
    most = broker.kept_groups["readers"].max_attempts
    broker.told_held = [
        held(
            offset=taken.offset,
            queue_id=taken.queue_id,
            receipt=taken.receipt,
            since_ms=clock.now_ms(),
            attempt=most,
        )
    ]
    assert (await processor.stuck.free(OPERATOR, "readers", which="01ABC")).dead_lettered


async def test_a_group_that_does_not_exist_is_told_so(processor):
    with pytest.raises(GroupNotFound):
        await processor.stuck.explain(OPERATOR, "no-such-group")
    with pytest.raises(GroupNotFound):
        await processor.stuck.free(OPERATOR, "no-such-group")


# -- broadcast groups


def members(broker: Any, in_flight: dict[str, int]) -> None:
    """Makes `readers` a broadcast group of these clients, each with so many messages in flight."""
    config = replace(broker.kept_groups["readers"], broadcast=True)
    broker.kept_groups["readers"] = config
    names = {}
    for client in in_flight:
        name = names[client] = member_group("readers", client)
        told = {BROADCAST_GROUP: "readers", BROADCAST_CLIENT: client}
        broker.kept_groups[name] = replace(config, name=name, broadcast=False, attributes=told)
    by_group = {names[client]: count for client, count in in_flight.items()}

    async def one_standing(group: str, topic: str) -> GroupStatus:
        count = by_group[group]
        return replace(standing(lag=count + 1, unread=1, in_flight=count), group=group, topic=topic)

    broker.standing = one_standing


async def test_a_broadcast_group_is_told_client_by_client_those_that_hold_something_first(broker, processor):
    members(broker, {"ann@1": 0, "bob@2": 1, "eve@3": 2})
    broker.told_held = [held()]
    found = await processor.stuck.explain(OPERATOR, "readers")
    assert [(one.client_id, one.lag, one.in_flight) for one in found.members] == [
        ("eve@3", 3, 2),
        ("bob@2", 2, 1),
        ("ann@1", 1, 0),
    ]
    assert [grasp.client for grasp in found.grasps] == ["eve@3", "bob@2"]
    assert [group for group, _, _ in broker.asked("held")] == [
        member_group("readers", "eve@3"),
        member_group("readers", "bob@2"),
    ]
    assert [(one.group, one.lag, one.in_flight) for one in found.standings] == [("readers", 6, 3)]
    told = "a broadcast group of 3 clients: 2 of them hold something: eve@3 (2 messages), bob@2 (1 message)"
    assert told in found.reasons
    (alone,) = (await processor.stuck.explain(OPERATOR, "readers", client="bob@2")).members
    assert alone.client_id == "bob@2"
    with pytest.raises(NotFound, match="zoe@4"):
        await processor.stuck.explain(OPERATOR, "readers", client="zoe@4")


async def test_of_a_large_broadcast_group_so_many_clients_are_asked_what_they_hold(broker, processor):
    """Those that hold nothing are not asked, and those that hold the most come first."""
    members(broker, {f"c{number:03}@1": number % 100 for number in range(200)})
    found = await processor.stuck.explain(OPERATOR, "readers", limit=7)
    assert len(broker.asked("held")) == 64
    assert [one.in_flight for one in found.members] == [99, 99, 98, 98, 97, 97, 96]
    assert any("198 of them hold something" in reason and "and others" in reason for reason in found.reasons)


async def test_a_member_that_is_forgotten_meanwhile_is_left_out(broker, processor):
    members(broker, {"ann@1": 0, "bob@2": 1})
    there = broker.standing

    async def ask(group: str, topic: str) -> GroupStatus:
        if group == member_group("readers", "ann@1"):
            raise GroupNotFound(group)
        return await there(group, topic)

    broker.standing = ask
    assert [one.client_id for one in (await processor.stuck.explain(OPERATOR, "readers")).members] == [
        "bob@2"
    ]


async def test_a_client_is_asked_for_of_broadcast_groups_only(broker, processor):
    with pytest.raises(BadRequest, match="no broadcast group"):
        await processor.stuck.explain(OPERATOR, "readers", client="ann@1")
