"""Heartbeats: who is known, for how long, as what; and what a client can say that is refused."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from popgate.context import Context
from popgate.kinds import Principal, ResourceKind
from popgate.model import FilterKind, StoredMessage, TransactionCheck
from popgate.wire.bodies.heartbeats import (
    ACTIVELY,
    BROADCASTING,
    ClientCheck,
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
)
from popgate.wire.frames.codes import RequestCode, ResponseCode
from processors.clients.client_registry import ClientKind
from processors.limits import Limits
from processors.policies.registry import Policies
from protocols.remoting.clients import heartbeats
from protocols.remoting.clients.heartbeats import Heartbeats
from protocols.remoting.clients.remoting_client import RemotingClient, consumer_key, producer_key
from protocols.remoting.codec.marks import Origin
from protocols.remoting.requests import Peer
from tests.unit.protocols.remoting.conftest import Caller, FakePeer, Refusing, Stage

BEAT, LEAVE, CHECK = (
    RequestCode.HEART_BEAT,
    RequestCode.UNREGISTER_CLIENT,
    RequestCode.CHECK_CLIENT_CONFIG,
)


def consumer(group: str = "readers", *topics: str, **settings: Any) -> ConsumerData:
    subscriptions = tuple(SubscriptionData(topic, "a || b", tags=("a", "b"), version=7) for topic in topics)
    return ConsumerData(group, subscriptions, **settings)


def beat(
    *consumers: ConsumerData, producers: tuple[str, ...] = (), client_id: str = "c@1", **settings: Any
) -> bytes:
    return HeartbeatData(client_id, producers, consumers, **settings).encode()


@pytest.fixture
def room(stage: Stage) -> Heartbeats:
    return Heartbeats(stage.door_context)


async def test_a_client_is_known_as_a_member_of_each_of_its_groups(stage: Stage, room: Heartbeats) -> None:
    caller = Caller(room)
    await caller.ok(
        BEAT,
        body=beat(
            consumer("readers", "orders"), consumer("pullers", consume_type=ACTIVELY), producers=("makers",)
        ),
    )
    clients = stage.processor.clients
    (reader,) = clients.consumers_of("readers")
    (puller,) = clients.consumers_of("pullers")
    (maker,) = clients.producers_in("makers")
    assert (reader.kind, puller.kind, maker.kind) == (
        ClientKind.PUSH_CONSUMER,
        ClientKind.PULL_CONSUMER,
        ClientKind.PRODUCER,
    )
    assert {one.client_id for one in (reader, puller, maker)} == {"c@1"}
    assert reader.subscriptions == {"orders": (FilterKind.TAG, "a || b")}
    assert reader.topics == {"orders"}
    assert (reader.language, reader.alive) == ("JAVA", True)
    assert caller.peer.client_id == "c@1"
    assert len(clients) == 3


async def test_two_groups_of_one_name_are_two_memberships(stage: Stage, room: Heartbeats) -> None:
    await Caller(room).ok(BEAT, body=beat(consumer("both"), producers=("both",)))
    assert len(stage.processor.clients.consumers_of("both")) == 1
    assert len(stage.processor.clients.producers_in("both")) == 1


async def test_the_same_heartbeat_again_changes_nothing(stage: Stage, room: Heartbeats) -> None:
    caller = Caller(room)
    body = beat(consumer("readers", "orders"), producers=("makers",))
    await caller.ok(BEAT, body=body)
    first = stage.processor.clients.consumers_of("readers")
    told: list[str] = []
    stage.processor.clients.on_members = told.append
    for _ in range(3):
        await caller.ok(BEAT, body=body)
    assert stage.processor.clients.consumers_of("readers") == first
    assert len(stage.processor.clients) == 2
    assert told == []


async def test_a_heartbeat_makes_the_group_and_its_retry_topic(stage: Stage, room: Heartbeats) -> None:
    await Caller(room).ok(BEAT, body=beat(consumer("fresh")))
    assert (await stage.processor.metadata.group(Context(), "fresh")).name == "fresh"
    (queue,) = await stage.processor.metadata.queues(Context(), "%RETRY%fresh")
    assert queue.queue_id == 0


async def test_other_subscriptions_take_the_place_of_the_first(stage: Stage, room: Heartbeats) -> None:
    caller = Caller(room)
    await caller.ok(BEAT, body=beat(consumer("readers", "orders")))
    await caller.ok(BEAT, body=beat(consumer("readers", "parcels")))
    (reader,) = stage.processor.clients.consumers_of("readers")
    assert reader.topics == {"parcels"}
    assert room.subscriptions("readers", "orders", caller.peer) is None
    told = room.subscriptions("readers", "parcels", caller.peer)
    assert told is not None
    assert (told.expression, told.version) == ("a || b", 7)


async def test_a_filter_is_that_of_the_client_or_the_newest_of_its_group(
    stage: Stage, room: Heartbeats
) -> None:
    one, other = Caller(room), Caller(room, peer=FakePeer("10.1.1.2:2"))
    for caller, version, expression in ((one, 1, "x"), (other, 2, "y")):
        subscription = SubscriptionData("orders", expression, version=version)
        await caller.ok(BEAT, body=beat(ConsumerData("readers", (subscription,)), client_id=f"c{version}"))
    expressions = [
        told.expression if (told := room.subscriptions("readers", "orders", peer)) is not None else None
        for peer in (one.peer, other.peer, FakePeer(), None)
    ]
    assert expressions == ["x", "y", "y", "y"]
    assert room.subscriptions("strangers", "orders", one.peer) is None


async def test_who_ends_the_connection_is_forgotten(stage: Stage, room: Heartbeats) -> None:
    caller = Caller(room)
    await caller.ok(BEAT, body=beat(consumer("readers", "orders"), producers=("makers",)))
    caller.peer.close()
    assert len(stage.processor.clients) == 0
    assert room.subscriptions("readers", "orders", caller.peer) is None
    assert repr(room) == "<Heartbeats connections 0>"


async def test_a_client_that_came_back_survives_its_old_connection(stage: Stage, room: Heartbeats) -> None:
    old, new = Caller(room), Caller(room, peer=FakePeer("10.1.1.1:50002"))
    body = beat(consumer("readers"))
    await old.ok(BEAT, body=body)
    await new.ok(BEAT, body=body)
    old.peer.close()
    (reader,) = stage.processor.clients.consumers_of("readers")
    assert isinstance(reader, RemotingClient)
    assert reader.peer is new.peer


async def test_one_of_two_connections_is_enough(stage: Stage, room: Heartbeats) -> None:
    one, other = Caller(room), Caller(room, peer=FakePeer("10.1.1.1:50002"))
    body = beat(consumer("readers"))
    await one.ok(BEAT, body=body)
    await other.ok(BEAT, body=body)
    other.peer.close()
    await one.ok(BEAT, body=body)
    (reader,) = stage.processor.clients.consumers_of("readers")
    assert isinstance(reader, RemotingClient)
    assert reader.peer is one.peer


async def test_a_good_bye_ends_one_membership(stage: Stage, room: Heartbeats) -> None:
    caller = Caller(room)
    await caller.ok(BEAT, body=beat(consumer("both"), consumer("other"), producers=("both",)))
    await caller.ok(LEAVE, {"clientID": "c@1", "consumerGroup": "both"})
    clients = stage.processor.clients
    assert clients.consumers_of("both") == []
    assert len(clients.producers_in("both")) == 1
    await caller.ok(LEAVE, {"clientID": "c@1", "producerGroup": "both", "consumerGroup": "other"})
    assert len(clients) == 0


async def test_nobody_says_good_bye_for_others(stage: Stage, room: Heartbeats) -> None:
    await Caller(room).ok(BEAT, body=beat(consumer("readers")))
    stranger = Caller(room, peer=FakePeer("10.6.6.6:6"))
    await stranger.ok(LEAVE, {"clientID": "c@1", "consumerGroup": "readers"})
    assert len(stage.processor.clients.consumers_of("readers")) == 1
    refused = await stranger.ask(LEAVE, {"consumerGroup": "readers"})
    assert refused.code == ResponseCode.SYSTEM_ERROR


async def test_a_group_that_is_not_told_any_more_is_left_after_a_while(
    stage: Stage, room: Heartbeats
) -> None:
    caller = Caller(room)
    await caller.ok(BEAT, body=beat(consumer("readers"), consumer("other")))
    stage.clock.advance(60)
    await caller.ok(BEAT, body=beat(consumer("readers")))
    assert len(stage.processor.clients.consumers_of("other")) == 1
    stage.clock.advance(61)
    await caller.ok(BEAT, body=beat(consumer("readers")))
    assert stage.processor.clients.consumers_of("other") == []
    assert len(stage.processor.clients.consumers_of("readers")) == 1


async def test_a_heartbeat_without_subscriptions_keeps_those_before(room: Heartbeats) -> None:
    caller = Caller(room)
    full = await caller.ok(BEAT, body=beat(consumer("readers", "orders"), fingerprint=5))
    assert full.fields == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "false"}
    short = await caller.ok(BEAT, body=beat(consumer("readers"), fingerprint=5, without_subscriptions=True))
    assert short.fields["IS_SUB_CHANGE"] == "false"
    assert room.subscriptions("readers", "orders", caller.peer) is not None


async def test_a_gateway_that_does_not_know_the_subscriptions_asks_for_them(
    stage: Stage, room: Heartbeats
) -> None:
    """As after a restart: clients tell only that nothing changed."""
    caller = Caller(room)
    body = beat(consumer("readers"), fingerprint=5, without_subscriptions=True)
    for _ in range(2):
        short = await caller.ok(BEAT, body=body)
        assert short.fields["IS_SUB_CHANGE"] == "true"
    assert len(stage.processor.clients.consumers_of("readers")) == 1
    await caller.ok(BEAT, body=beat(consumer("readers", "orders"), fingerprint=5))
    short = await caller.ok(BEAT, body=body)
    assert short.fields["IS_SUB_CHANGE"] == "false"
    assert room.subscriptions("readers", "orders", caller.peer) is not None


async def test_broadcasting_is_told_on(stage: Stage, room: Heartbeats) -> None:
    await Caller(room).ok(BEAT, body=beat(consumer("readers", model=BROADCASTING), producers=("makers",)))
    assert [one.broadcast for one in stage.processor.clients.consumers_of("readers")] == [True]
    assert [one.broadcast for one in stage.processor.clients.producers_in("makers")] == [False]


async def test_the_producer_that_every_client_is_does_not_count(stage: Stage, room: Heartbeats) -> None:
    await Caller(room).ok(BEAT, body=beat(producers=("CLIENT_INNER_PRODUCER",)))
    assert len(stage.processor.clients) == 0


async def test_an_illegal_group_is_refused_and_the_others_are_taken(stage: Stage, room: Heartbeats) -> None:
    refused = await Caller(room).ask(BEAT, body=beat(consumer("no good"), consumer("readers")))
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert "'no good'" in refused.remark
    assert len(stage.processor.clients) == 1


class TestWithoutNewGroups:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(auto_create_groups=False)

    async def test_a_group_that_is_not_there_has_no_members(self, stage: Stage, room: Heartbeats) -> None:
        await stage.group("readers")
        refused = await Caller(room).ask(BEAT, body=beat(consumer("strangers"), consumer("readers")))
        assert refused.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert stage.processor.clients.consumers_of("strangers") == []
        assert len(stage.processor.clients.consumers_of("readers")) == 1


class TestOfAnotherAccount:
    @pytest.fixture
    def policies(self) -> Policies:
        return Policies(authorizer=Refusing("stranger"))

    async def test_who_may_not_read_takes_the_place_of_nobody(self, stage: Stage, room: Heartbeats) -> None:
        await Caller(room).ok(BEAT, body=beat(consumer("readers")))
        stranger = Caller(room, peer=FakePeer("10.1.1.2:2"))
        stranger.context.principal = Principal("stranger")
        told: list[str] = []
        stage.processor.clients.on_members.add(told.append)
        refused = await stranger.ask(BEAT, body=beat(consumer("readers")))
        assert refused.code == ResponseCode.NO_PERMISSION
        (reader,) = stage.processor.clients.consumers_of("readers")
        assert reader.alive
        assert not room.shares(stranger.peer, "readers")
        assert told == []


class TestOfAnAccountThatMayNotSend:
    @pytest.fixture
    def policies(self) -> Policies:
        return Policies(authorizer=Refusing("stranger", ResourceKind.TOPIC))

    half = StoredMessage("orders", "popgate", 0, 0, 0, 0, 0, 0, "", 0, "", b"half", b"")
    check = TransactionCheck("orders", "makers", "t1", half, 1)

    def both(self, stage: Stage) -> tuple[Caller, Caller, list[Peer]]:
        """One that may send, one that may not, and who of them was asked about half messages."""
        asked: list[Peer] = []

        def ask(peer: Peer, _check: TransactionCheck, _origin: Origin) -> bool:
            asked.append(peer)
            return True

        room = Heartbeats(stage.door_context, ask)
        maker, stranger = Caller(room), Caller(room, peer=FakePeer("10.1.1.2:2"))
        stranger.context.principal = Principal("stranger")
        return maker, stranger, asked

    async def test_it_is_shown_no_half_message(self, stage: Stage) -> None:
        maker, stranger, asked = self.both(stage)
        for caller, client_id in ((stranger, "s@1"), (maker, "c@1")):
            await caller.ok(BEAT, body=beat(producers=("makers",), client_id=client_id))
        for _ in range(2):
            assert stage.processor.check_router.ask(self.check)
        assert asked == [maker.peer, maker.peer]

    @pytest.mark.parametrize("first", ["stranger", "maker"])
    async def test_it_keeps_no_check_from_the_client_whose_id_it_says(self, stage: Stage, first: str) -> None:
        maker, stranger, asked = self.both(stage)
        for caller in (stranger, maker, stranger) if first == "stranger" else (maker, stranger, maker):
            await caller.ok(BEAT, body=beat(producers=("makers",), client_id="c@1"))
        assert stage.processor.check_router.ask(self.check)
        assert asked == [maker.peer]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"\xff\xfe",
        b'{"clientID":7}',
        b'{"clientID":""}',
        b'{"clientID":"a\\nb"}',
        b'{"clientID":"c","consumerDataSet":[7]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":{"a":1}}]}',
        b'{"clientID":"c","producerDataSet":[{"groupName":""}]}',
        b'{"clientID":"c","producerDataSet":[{"groupName":"a\\nb"}]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":""}]}',
        b'{"clientID":"' + b"x" * 256 + b'"}',
        b" " * (heartbeats.LARGEST_HEARTBEAT + 1),
    ],
)
async def test_nonsense_is_refused(stage: Stage, room: Heartbeats, body: bytes) -> None:
    refused = await Caller(room).ask(BEAT, body=body)
    assert refused.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.MESSAGE_ILLEGAL)
    assert refused.remark
    assert len(stage.processor.clients) == 0


async def test_the_groups_of_a_connection_are_bounded(
    stage: Stage, room: Heartbeats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "MOST_GROUPS", 3)
    caller = Caller(room)
    refused = await caller.ask(BEAT, body=beat(producers=("p1", "p2", "p3", "p4")))
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert len(stage.processor.clients) == 0
    await caller.ok(BEAT, body=beat(producers=("p1", "p2")))
    refused = await caller.ask(BEAT, body=beat(producers=("p1", "p2"), client_id="c@2"))
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert len(stage.processor.clients) == 3
    # Those that were left without a word make room.
    stage.clock.advance(121)
    await caller.ok(BEAT, body=beat(producers=("q1", "q2")))
    assert len(stage.processor.clients) == 2


async def test_what_is_kept_of_a_connection_is_bounded(
    stage: Stage, room: Heartbeats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "LARGEST_HEARTBEAT", 10_000)
    caller = Caller(room)
    long = ConsumerData("readers", (SubscriptionData("orders", "x" * 6_000),))
    await caller.ok(BEAT, body=beat(long))
    await caller.ok(BEAT, body=beat(long))
    other = ConsumerData("others", long.subscriptions)
    refused = await caller.ask(BEAT, body=beat(other, client_id="c@2"))
    assert refused.code == ResponseCode.SYSTEM_BUSY
    await caller.ok(LEAVE, {"clientID": "c@1", "consumerGroup": "readers"})
    await caller.ok(BEAT, body=beat(other, client_id="c@2"))
    assert [one.client_id for one in stage.processor.clients.all()] == ["c@2"]


@pytest.mark.parametrize("name", ["consume_type", "model", "start_from"])
async def test_words_for_how_a_group_reads_count_as_well(stage: Stage, room: Heartbeats, name: str) -> None:
    """Words for how a group reads are kept, also those that are not known."""
    caller, words = Caller(room), "w" * (heartbeats.LARGEST_HEARTBEAT * 2 // 3)
    await caller.ok(BEAT, body=beat(consumer("readers", **{name: words})))
    refused = await caller.ask(BEAT, body=beat(consumer("others", **{name: words})))
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert stage.processor.clients.consumers_of("others") == []


class TestFewTopics:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(max_topics_per_client=2)

    async def test_a_group_with_too_many_topics_is_refused(self, stage: Stage, room: Heartbeats) -> None:
        refused = await Caller(room).ask(BEAT, body=beat(consumer("readers", "a", "b", "c")))
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert len(stage.processor.clients) == 0


def checked(expression: str, kind: str = "TAG") -> bytes:
    return ClientCheck("c@1", "readers", SubscriptionData("orders", expression, kind)).encode()


@pytest.mark.parametrize(
    ("expression", "kind"), [("*", "TAG"), ("a || b", "TAG"), ("a > 1 AND b IS NOT NULL", "SQL92")]
)
async def test_a_filter_that_is_understood(room: Heartbeats, expression: str, kind: str) -> None:
    await Caller(room).ok(CHECK, body=checked(expression, kind))


@pytest.mark.parametrize(("expression", "kind"), [("a >", "SQL92"), ("a = 1", "XPATH")])
async def test_a_filter_that_is_not(room: Heartbeats, expression: str, kind: str) -> None:
    refused = await Caller(room).ask(CHECK, body=checked(expression, kind))
    assert refused.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert expression in refused.remark


@pytest.mark.parametrize("body", [b"", b"7", json.dumps({"subscriptionData": []}).encode()])
async def test_a_check_of_nonsense(room: Heartbeats, body: bytes) -> None:
    refused = await Caller(room).ask(CHECK, body=body)
    assert refused.code == ResponseCode.SYSTEM_ERROR


async def test_a_good_bye_counts_though_a_heartbeat_is_not_over(
    stage: Stage, room: Heartbeats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first group is yet to be made when the client leaves the second, and goes on in the first."""
    caller = Caller(room)
    prepare, asked, go_on = stage.processor.classic.prepare_group, asyncio.Event(), asyncio.Event()

    async def slow(context: Context, group: str) -> None:
        asked.set()
        await go_on.wait()
        await prepare(context, group)

    monkeypatch.setattr(stage.processor.classic, "prepare_group", slow)
    beating = asyncio.ensure_future(caller.call(BEAT, body=beat(consumer("readers"), consumer("others"))))
    await asked.wait()
    await caller.ok(LEAVE, {"clientID": "c@1", "consumerGroup": "others"})
    go_on.set()
    await beating
    clients = stage.processor.clients
    assert len(clients.consumers_of("readers")) == 1
    assert clients.consumers_of("others") == []


async def test_a_client_that_left_while_it_was_taken_in_is_not_known(stage: Stage, room: Heartbeats) -> None:
    peer = FakePeer()
    peer.close()
    await Caller(room, peer=peer).call(BEAT, body=beat(consumer("readers"), producers=("makers",)))
    assert len(stage.processor.clients) == 0
    assert repr(room) == "<Heartbeats connections 0>"


def test_keys_differ() -> None:
    assert consumer_key("c", "g") != producer_key("c", "g")
