"""Broadcast groups on the embedded broker: two replicas before one broker, on a clock moved by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from brokers.embedded.broker import EmbeddedBroker
from popgate.context import Context
from popgate.errors import BadRequest, Fault, GroupNotFound, IllegalGroup, TooManyRequests, Unsupported
from popgate.ids.message_id import make_message_id
from popgate.model import CustomizedRetry, GroupConfig, Message, StartFrom, StoredMessage
from popgate.naming import MEMBER_PREFIX, member_group, told_group
from popgate.testing.clock import MovableClock
from processors.limits import Limits
from processors.members.broadcast import LONGEST_BROADCAST_GROUP
from processors.messaging import MessagingProcessor
from processors.requests import Receive

ASKED = Receive("news", "screens", invisible_ms=30_000, wait_s=0.0)
ELSEWHERE = replace(ASKED, topic="gossip")
PUSHED = replace(ASKED, auto_renew=True, invisible_ms=None)
ANN, BOB, EVE = (Context(client_id=name, door="grpc") for name in ("ann@1", "bob@2", "eve@3"))
SCREENS = GroupConfig(
    "screens",
    broadcast=True,
    max_attempts=2,
    retry=CustomizedRetry((1_000,)),
    start_from=StartFrom.LAST,
    consume_timeout_ms=60_000,
)
LIMITS = Limits(broadcast_expiry_s=3_600, max_broadcast_members=2)


@pytest.fixture
async def broker(tmp_path: Path, clock: MovableClock) -> AsyncIterator[EmbeddedBroker]:
    broker = EmbeddedBroker(tmp_path / "data", clock=clock)
    await broker.start()
    yield broker
    await broker.stop()


@pytest.fixture
async def one(broker: EmbeddedBroker, clock: MovableClock) -> AsyncIterator[MessagingProcessor]:
    processor = MessagingProcessor(broker, clock=clock, limits=LIMITS)
    await processor.start()
    await processor.metadata.create_group(Context(), SCREENS)
    yield processor
    await processor.stop()


@pytest.fixture
async def other(one: MessagingProcessor, broker: EmbeddedBroker, clock: MovableClock) -> MessagingProcessor:
    return MessagingProcessor(broker, clock=clock, limits=LIMITS)


async def say(processor: MessagingProcessor, *bodies: bytes) -> None:
    await processor.send(Context(), [Message("news", body, message_id=make_message_id()) for body in bodies])


async def bodies(processor: MessagingProcessor, who: Context, asked: Receive = ASKED) -> list[bytes]:
    return sorted(message.body for message in await processor.receive(who, asked))


async def take(processor: MessagingProcessor, who: Context) -> StoredMessage:
    [message] = await processor.receive(who, ASKED)
    return message


async def test_every_client_gets_every_message_once(one: MessagingProcessor) -> None:
    for who in (ANN, BOB):
        assert await bodies(one, who) == []
    await say(one, b"rain", b"sun")
    for who in (ANN, BOB):
        messages = await one.receive(who, ASKED)
        assert sorted(message.body for message in messages) == [b"rain", b"sun"]
        assert await one.ack(who, "news", "screens", [message.receipt for message in messages]) == [
            None,
            None,
        ]
        assert await bodies(one, who) == []


async def test_who_joins_later_hears_what_is_said_from_then_on(one: MessagingProcessor) -> None:
    assert await bodies(one, ANN) == []
    await say(one, b"before")
    assert await bodies(one, BOB) == []
    await say(one, b"after")
    assert await bodies(one, BOB) == [b"after"]
    assert await bodies(one, ANN) == [b"after", b"before"]


async def test_a_cursor_is_found_by_every_replica(one: MessagingProcessor, other: MessagingProcessor) -> None:
    assert await bodies(one, ANN) == []
    await say(one, b"rain")
    message = await take(one, ANN)
    assert await other.ack(ANN, "news", "screens", [message.receipt]) == [None]
    assert await bodies(other, ANN) == []
    await say(one, b"sun")
    assert await bodies(other, ANN) == [b"sun"]


async def test_a_handle_is_good_for_its_own_client_only(one: MessagingProcessor) -> None:
    for who in (ANN, BOB):
        assert await bodies(one, who) == []
    await say(one, b"rain")
    message = await take(one, ANN)
    [refused] = await one.ack(BOB, "news", "screens", [message.receipt])
    assert refused is not None
    assert await bodies(one, BOB) == [b"rain"]


async def test_a_failure_comes_back_to_its_client_alone_then_to_the_dead_letters_of_the_group(
    one: MessagingProcessor, broker: EmbeddedBroker, clock: MovableClock
) -> None:
    for who in (ANN, BOB):
        assert await bodies(one, who) == []
    await say(one, b"rain")
    message = await take(one, BOB)
    assert await one.ack(BOB, "news", "screens", [message.receipt]) == [None]
    message = await take(one, ANN)
    await one.change_invisible(ANN, "news", "screens", message.receipt, 0)
    message = await take(one, ANN)
    assert message.attempt == 2
    await one.dead_letter(ANN, "news", "screens", message.receipt)
    assert await bodies(one, ANN) == []
    assert await bodies(one, BOB) == []
    assert "%DLQ%screens" in [topic.name for topic in await broker.topics()]


async def test_what_was_not_delivered_is_given_back_to_its_client(one: MessagingProcessor) -> None:
    for who in (ANN, BOB):
        assert await bodies(one, who) == []
    await say(one, b"rain")
    messages = await one.receive(ANN, PUSHED)
    await one.give_back(ANN, "news", "screens", messages)
    again = await take(one, ANN)
    assert (again.body, again.attempt) == (b"rain", 1)


async def test_members_are_seen_only_as_members_of_their_group(one: MessagingProcessor) -> None:
    for who in (BOB, ANN):
        await bodies(one, who)
    assert [group.name for group in await one.metadata.groups(Context())] == ["screens"]
    assert [member.client_id for member in await one.metadata.members(Context(), "screens")] == [
        "ann@1",
        "bob@2",
    ]
    with pytest.raises(GroupNotFound):
        await one.metadata.members(Context(), "nobody")
    with pytest.raises(IllegalGroup):
        await one.receive(ANN, replace(ASKED, group=f"{MEMBER_PREFIX}screens%00"))


async def test_a_client_that_stays_away_is_forgotten_and_one_that_polls_is_not(
    one: MessagingProcessor, clock: MovableClock
) -> None:
    for who in (ANN, BOB):
        assert await bodies(one, who) == []
    for _ in range(16):
        clock.advance(300)
        await bodies(one, ANN)
        await one.broadcast_groups.sweep()  # those that time brought may have found it before
    assert [member.client_id for member in await one.metadata.members(Context(), "screens")] == ["ann@1"]
    await say(one, b"rain")
    assert await bodies(one, ANN) == [b"rain"]
    assert await bodies(one, BOB) == [], "who was forgotten joins anew"


async def test_a_wall_clock_that_jumps_costs_nobody_its_cursor(
    one: MessagingProcessor, clock: MovableClock
) -> None:
    assert await bodies(one, ANN) == []
    await say(one, b"rain")
    clock.set_wall(clock.now_ms() + 86_400_000)
    await one.broadcast_groups.sweep()
    for _ in range(16):
        assert await bodies(one, ANN, ELSEWHERE) == []
        clock.advance(300)
        await one.broadcast_groups.sweep()
    assert await bodies(one, ANN) == [b"rain"]


async def test_clients_find_their_cursors_when_the_gateway_was_away_for_longer_than_the_expiry(
    one: MessagingProcessor, other: MessagingProcessor, clock: MovableClock
) -> None:
    assert await bodies(one, ANN) == []
    await one.stop()
    await say(other, b"rain")
    clock.advance(86_400)
    await other.broadcast_groups.sweep()
    assert await bodies(other, ANN) == [b"rain"]


async def test_a_reset_is_for_every_client(one: MessagingProcessor) -> None:
    await say(one, b"before")
    for who in (ANN, BOB):
        assert await bodies(one, who) == []
    await one.offsets.reset(Context(), "screens", "news", StartFrom.FIRST)
    for who in (ANN, BOB):
        assert await bodies(one, who) == [b"before"]


async def test_clients_of_a_broadcast_group_use_up_no_names_of_groups(
    one: MessagingProcessor, broker: EmbeddedBroker, clock: MovableClock
) -> None:
    few = MessagingProcessor(broker, clock=clock, limits=replace(LIMITS, max_auto_groups=2))
    for who in (ANN, BOB):
        await bodies(few, who)
    assert await bodies(few, ANN, replace(ASKED, group="another")) == []
    with pytest.raises(TooManyRequests, match="there are 2 groups, which is the limit"):
        await few.receive(ANN, replace(ASKED, group="one-more"))


async def test_a_broadcast_group_takes_no_lite_topics(one: MessagingProcessor) -> None:
    with pytest.raises(BadRequest, match="takes no lite topics"):
        await one.metadata.update_group(Context(), replace(SCREENS, attributes={"lite.bind.topic": "news"}))


async def test_a_forgotten_client_of_another_replica_joins_anew(
    one: MessagingProcessor, other: MessagingProcessor
) -> None:
    assert await bodies(one, ANN) == []
    await other.broadcast_groups.forget("screens")
    with pytest.raises(GroupNotFound, match="consumer group screens does not exist"):
        await one.receive(ANN, ASKED)
    assert await bodies(one, ANN) == []
    await say(one, b"rain")
    assert await bodies(one, ANN) == [b"rain"]


async def test_too_many_members_are_refused_and_a_receive_needs_a_client_id(one: MessagingProcessor) -> None:
    for who in (ANN, BOB):
        assert await bodies(one, who) == []
    with pytest.raises(TooManyRequests, match="has 2 members, which is the limit"):
        await one.receive(EVE, ASKED)
    with pytest.raises(BadRequest, match="needs a client id"):
        await one.receive(Context(), ASKED)


async def test_deleting_the_group_deletes_its_members(
    one: MessagingProcessor, broker: EmbeddedBroker
) -> None:
    for who in (ANN, BOB):
        assert await bodies(one, who) == []
    await one.metadata.delete_group(Context(), "screens")
    assert await broker.groups() == []


async def test_a_group_that_is_no_broadcast_group_any_more_has_one_cursor(one: MessagingProcessor) -> None:
    for who in (ANN, BOB):
        assert await bodies(one, who) == []
    await one.metadata.update_group(Context(), replace(SCREENS, broadcast=False, start_from=StartFrom.FIRST))
    assert await one.metadata.members(Context(), "screens") == []
    await say(one, b"rain")
    assert await bodies(one, ANN) == [b"rain"]
    assert await bodies(one, BOB) == []


async def test_settings_of_the_group_reach_its_members(
    one: MessagingProcessor, broker: EmbeddedBroker, clock: MovableClock
) -> None:
    assert await bodies(one, ANN) == []
    await one.metadata.update_group(Context(), replace(SCREENS, max_attempts=5))
    assert await bodies(one, ANN) == []
    [member] = [group for group in await broker.groups() if group.name.startswith(MEMBER_PREFIX)]
    assert (member.max_attempts, member.broadcast) == (5, False)


async def test_positions_are_those_of_the_client(one: MessagingProcessor) -> None:
    await say(one, b"rain")
    [queue] = [queue for queue in range(8) if (await one.offsets.bounds(ANN, "news", "", queue)).maximum]
    await one.offsets.commit(ANN, "screens", "news", "", queue, 1)
    assert await one.offsets.committed(ANN, "screens", "news", "", queue) == 1
    with pytest.raises(GroupNotFound):
        await one._broker.committed(BOB, member_group("screens", "00"), "news", "", queue)


async def test_who_has_not_received_has_no_position_also_where_groups_are_not_made(
    one: MessagingProcessor, broker: EmbeddedBroker, clock: MovableClock
) -> None:
    strict = MessagingProcessor(broker, clock=clock, limits=replace(LIMITS, auto_create_groups=False))
    await say(one, b"rain")
    [queue, *_] = (await one.route(ANN, "news")).queues
    assert await strict.offsets.committed(ANN, "screens", "news", queue.broker, queue.queue_id) is None
    with pytest.raises(GroupNotFound):
        await strict.offsets.committed(ANN, "nobody", "news", queue.broker, queue.queue_id)


async def test_a_dry_run_of_a_redrive_is_refused_as_the_redrive_itself(one: MessagingProcessor) -> None:
    for dry_run in (True, False):
        with pytest.raises(Unsupported, match="broadcast group"):
            await one.dead_letters.redrive(Context(), "screens", dry_run=dry_run)


async def test_a_long_name_is_refused(one: MessagingProcessor) -> None:
    with pytest.raises(BadRequest, match="at most 90 characters") as refused:
        await one.metadata.create_group(Context(), replace(SCREENS, name="g" * (LONGEST_BROADCAST_GROUP + 1)))
    assert refused.value.fault is Fault.BAD_REQUEST


def test_the_name_of_a_member_tells_its_group() -> None:
    assert told_group(member_group("a%b", "12ab")) == "a%b"
    assert told_group("plain") == "plain"
