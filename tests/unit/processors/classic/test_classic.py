"""processors.classic.classic: what classic clients ask beside sends and pulls."""

from __future__ import annotations

from typing import Any

import pytest

from brokers.capabilities import CarriesReplies, FindsByPlace, GroupMember, TellsConsumers, TellsReaders
from brokers.resets import HoldsResets
from popgate.context import Context
from popgate.errors import (
    BadRequest,
    BodyTooLarge,
    BrokerUnavailable,
    Forbidden,
    GroupNotFound,
    IllegalGroup,
    TopicNotFound,
    Unsupported,
)
from popgate.kinds import Action, Resource, ResourceKind
from popgate.model import GroupConfig, Message, SendBack, Sent, StoredMessage
from popgate.naming import member_group
from popgate.testing.clock import MovableClock
from processors.limits import Limits
from processors.messaging import MessagingProcessor
from processors.policies.registry import Policies

CONTEXT = Context(client_id="c", door="remoting")
QUEUES = [("orders", "b", 0), ("orders", "b", 1)]
REPLY = StoredMessage("R", "b", 0, 0, 0, 0, 0, 0, "", 0, "", b"reply", b"")


@pytest.fixture
def cluster(broker: Any) -> Any:
    """The fake broker, which knows clients of others."""

    class Knowing(type(broker), TellsConsumers, CarriesReplies):  # type: ignore[misc]
        ids: list[str]
        told: list[GroupMember]
        handler: Any
        reply: Any

        async def consumers(self, group: str) -> list[str]:
            await self._called("consumers", group)
            return self.ids

        async def members(self, group: str) -> list[GroupMember]:
            await self._called("members", group)
            return self.told

        def on_members(self, handler: Any) -> None:
            self.handler = handler

        async def send_reply(self, context: Context, message: Message) -> Sent:
            await self._called("send_reply", message)
            return Sent(message.message_id, "b", 0, 0)

        def on_reply(self, handler: Any) -> None:
            self.reply = handler

    knowing = Knowing(broker.clock)
    knowing.kept_groups, knowing.kept_topics = broker.kept_groups, broker.kept_topics
    knowing.ids, knowing.told = [], []
    return knowing


@pytest.fixture
async def gateway(cluster: Any, clock: MovableClock) -> Any:
    processor = MessagingProcessor(cluster, clock=clock)
    await processor.start()
    yield processor
    await processor.stop()


async def test_a_message_is_sent_back(processor: MessagingProcessor, broker: Any, observer: Any) -> None:
    request = SendBack("readers", "b", 7, 3)
    await processor.classic.send_back(CONTEXT, request)
    assert broker.asked("send_back") == [request]
    assert observer.of("dead_lettered") == []
    await processor.classic.send_back(CONTEXT, SendBack("readers", "b", 7, -1))
    assert observer.of("dead_lettered") == [("%RETRY%readers", "readers")]


class NoSecrets:
    """A permission policy: nobody reads the topic `secret`, or the retries of the group `readers_`."""

    @staticmethod
    def allows(context: Context, action: Action, resource: Resource, now: float) -> bool:
        return resource.kind is not ResourceKind.TOPIC or resource.name not in ("secret", "%RETRY%readers_")


@pytest.mark.parametrize(
    "topic",
    [
        "orders",
        "%RETRY%readers",
        "%RETRY%readers_orders",
        "%RETRY%readers+orders",
        "secret",
        "%RETRY%readers_secret",
        "%RETRY%readers+secret",
        "%RETRY%readers_",
    ],
)
async def test_what_may_not_be_read_is_not_sent_back_either(
    broker: Any, clock: MovableClock, topic: str
) -> None:
    """A client names any place in the log of a broker, and the copy lies in a topic of its own group.

    `%RETRY%readers_secret` may also have what another group, `readers_secret`, failed at.
    """

    class Showing(type(broker), FindsByPlace):  # type: ignore[misc]
        async def at_place(self, context: Context, broker: str, commit_offset: int) -> StoredMessage:
            return StoredMessage(topic, broker, 0, 0, commit_offset, 0, 0, 0, "", 0, "", b"", b"")

    showing = Showing(clock)
    showing.kept_groups = broker.kept_groups
    processor = MessagingProcessor(showing, clock=clock, policies=Policies(authorizer=NoSecrets()))
    request = SendBack("readers", "b", 7, 3)
    if topic.endswith(("secret", "_")):
        with pytest.raises(Forbidden, match="no permission"):
            await processor.classic.send_back(CONTEXT, request)
        assert showing.asked("send_back") == []
    else:
        await processor.classic.send_back(CONTEXT, request)
        assert showing.asked("send_back") == [request]


@pytest.mark.parametrize(
    "request_",
    [SendBack("readers", "b", -1), SendBack("readers", "b", 1 << 63), SendBack("readers", "b", 1, 1 << 31)],
)
async def test_numbers_out_of_range_are_refused(
    processor: MessagingProcessor, broker: Any, request_: SendBack
) -> None:
    with pytest.raises(BadRequest, match="out of range"):
        await processor.classic.send_back(CONTEXT, request_)
    assert broker.asked("send_back") == []


async def test_locks_are_asked_of_the_broker_for_groups_that_are_there(
    processor: MessagingProcessor, broker: Any, clock: MovableClock
) -> None:
    assert await processor.classic.lock(CONTEXT, "readers", "c", QUEUES) == QUEUES
    await processor.classic.unlock(CONTEXT, "readers", "c", QUEUES)
    with pytest.raises(IllegalGroup):
        await processor.classic.lock(CONTEXT, "no group", "c", QUEUES)
    with pytest.raises(BadRequest, match="the id of its client"):
        await processor.classic.lock(CONTEXT, "readers", "", QUEUES)
    with pytest.raises(BadRequest, match="the limit is"):
        await processor.classic.unlock(CONTEXT, "readers", "c", QUEUES * 10_000)
    strict = MessagingProcessor(broker, clock=clock, limits=Limits(auto_create_groups=False))
    with pytest.raises(GroupNotFound):
        await strict.classic.lock(CONTEXT, "others", "c", QUEUES)


async def test_who_reads_a_topic_is_asked_of_every_group_and_client(
    broker: Any, processor: MessagingProcessor, make_client: Any
) -> None:
    broker.kept_groups["late"] = GroupConfig("late")
    member = member_group("late", "digest")
    broker.kept_groups[member] = GroupConfig(member)
    processor.clients.register(make_client("c", group="now", topics=frozenset({"orders"})))
    assert await processor.group_members.readers_of(CONTEXT, "orders") == ["late", "now", "readers"]
    with pytest.raises(TopicNotFound):
        await processor.group_members.readers_of(CONTEXT, "unknown")


async def test_who_reads_a_topic_is_asked_of_a_broker_that_knows(
    broker: Any, clock: MovableClock, make_client: Any
) -> None:
    class Knowing(type(broker), TellsReaders):  # type: ignore[misc]
        async def readers(self, topic: str) -> list[str]:
            return [f"reader of {topic}"]

    knowing = Knowing(clock)
    knowing.kept_groups, knowing.kept_topics = broker.kept_groups, broker.kept_topics
    processor = MessagingProcessor(knowing, clock=clock)
    processor.clients.register(make_client("c", group="now", topics=frozenset({"orders"})))
    assert await processor.group_members.readers_of(CONTEXT, "orders") == ["now", "reader of orders"]


async def test_scenario_14_consumers_of_all_doors_and_replicas_are_told(
    cluster: Any, gateway: MessagingProcessor, make_client: Any
) -> None:
    gateway.clients.register(make_client("here", group="readers"))
    gateway.clients.register(make_client("both", group="readers"))
    gateway.clients.register(make_client("other", group="others"))
    cluster.ids = ["both", "elsewhere"]
    assert await gateway.group_members.consumers(CONTEXT, "readers") == ["both", "elsewhere", "here"]
    cluster.failure = BrokerUnavailable("nobody is there")
    with pytest.raises(BrokerUnavailable):
        await gateway.group_members.consumers(CONTEXT, "readers")


async def test_only_those_of_this_replica_are_known_where_the_broker_knows_none(
    processor: MessagingProcessor, make_client: Any
) -> None:
    processor.clients.register(make_client("here", group="readers"))
    assert await processor.group_members.consumers(CONTEXT, "readers") == ["here"]


async def test_changes_elsewhere_are_told_like_those_here(cluster: Any, gateway: MessagingProcessor) -> None:
    changed: list[str] = []
    gateway.clients.on_members.add(changed.append)
    cluster.handler("readers")
    assert changed == ["readers"]


async def test_a_group_is_prepared_with_its_retry_topic(processor: MessagingProcessor, broker: Any) -> None:
    for _ in range(2):
        await processor.classic.prepare_group(CONTEXT, "newcomers")
    assert "newcomers" in broker.kept_groups
    topic = broker.kept_topics["%RETRY%newcomers"]
    assert (topic.read_queues, topic.write_queues) == (1, 1)


async def test_a_reply_goes_by_way_of_the_broker(cluster: Any, gateway: MessagingProcessor) -> None:
    message = Message("DefaultCluster_REPLY_TOPIC", b"x", message_id="M")
    assert (await gateway.classic.reply(CONTEXT, message)).message_id == "M"
    assert cluster.asked("send_reply") == [message]
    with pytest.raises(BodyTooLarge):
        await gateway.classic.reply(
            CONTEXT, Message("DefaultCluster_REPLY_TOPIC", b"x" * 5_000_000, message_id="M")
        )


async def test_replies_for_clients_here_go_to_whoever_hands_them_over(
    cluster: Any, gateway: MessagingProcessor
) -> None:
    assert not cluster.reply("c", REPLY)
    handed: list[tuple[str, StoredMessage]] = []

    def hand(client_id: str, message: StoredMessage) -> bool:
        handed.append((client_id, message))
        return True

    gateway.classic.on_reply(hand)
    assert cluster.reply("c", REPLY)
    assert handed == [("c", REPLY)]


async def test_a_broker_that_carries_no_replies_says_so(processor: MessagingProcessor) -> None:
    with pytest.raises(Unsupported):
        await processor.classic.reply(CONTEXT, Message("DefaultCluster_REPLY_TOPIC", b"x", message_id="M"))


class TestResets:
    """Positions of readers, at brokers that hold resets and at others."""

    @pytest.fixture
    def holder(self, broker: Any) -> Any:
        class Holder(type(broker), HoldsResets):  # type: ignore[misc]
            async def begin_read(self, context: Context, *words: Any) -> int:
                await self._called("begin_read", words)
                return 7

            async def commit_read(self, context: Context, *words: Any) -> int | None:
                await self._called("commit_read", words)
                return 7

            async def reset_queue(self, context: Context, *words: Any) -> None:
                await self._called("reset_queue", words)

        holder = Holder(broker.clock)
        holder.kept_groups, holder.kept_topics = broker.kept_groups, broker.kept_topics
        return holder

    async def test_are_the_brokers_business_where_it_holds_them(self, holder: Any) -> None:
        processor = MessagingProcessor(holder, clock=holder.clock)
        place = "readers", "orders", "fake", 0, 3
        assert await processor.offsets.begin_read(CONTEXT, *place) == 7
        assert await processor.offsets.commit_read(CONTEXT, *place) == 7
        await processor.offsets.reset_queue(CONTEXT, *place)
        assert [call for call in holder.calls if call[0] in HoldsResets.__abstractmethods__] == [
            ("begin_read", place),
            ("commit_read", place),
            ("reset_queue", place),
        ]
        with pytest.raises(BadRequest, match="the offset -1 is out of range"):
            await processor.offsets.commit_read(CONTEXT, *place[:4], -1)

    async def test_are_positions_elsewhere(self, processor: MessagingProcessor, broker: Any) -> None:
        place = "readers", "orders", "fake", 0, 3
        assert await processor.offsets.begin_read(CONTEXT, *place) == 3
        assert await processor.offsets.commit_read(CONTEXT, *place) is None
        await processor.offsets.reset_queue(CONTEXT, *place)
        assert len(broker.asked("commit")) == 2
