"""What the door answers in the place of a name server."""

from __future__ import annotations

import json

import pytest

from brokers.capabilities import BrokerPlace
from popgate.context import Context
from popgate.errors import BrokerUnavailable, TopicNotFound
from popgate.kinds import Principal, ResourceKind
from popgate.model import Permission, Queue
from popgate.wire.bodies.routes import ClusterInfo, QueueData, TopicRoute
from popgate.wire.bodies.small_bodies import TopicList
from popgate.wire.frames.codes import RequestCode, ResponseCode
from processors.limits import Limits
from processors.policies.registry import Policies
from protocols.remoting.codec.errors import Refused
from protocols.remoting.codec.marks import Origin
from protocols.remoting.consume.pull import PullHandler
from protocols.remoting.produce.send import SendHandler
from protocols.remoting.routing import Brokers, RouteHandler, broker_of
from tests.unit.protocols.remoting.conftest import ADDRESS, Caller, FakePeer, Refusing, Stage

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


@pytest.fixture
def caller(stage: Stage) -> Caller:
    return Caller(RouteHandler(stage.door_context))


async def route_of(caller: Caller, topic: str) -> TopicRoute:
    return TopicRoute.decode((await caller.ok(ROUTE, {"topic": topic, "acceptStandardJsonOnly": True})).body)


async def test_a_route_keeps_the_names_of_brokers_and_leads_here(stage: Stage, caller: Caller) -> None:
    await stage.topic("orders", 4)
    route = await route_of(caller, "orders")
    assert route.queues == (QueueData("popgate", 4, 4, 6),)
    [broker] = route.brokers
    assert (broker.name, broker.cluster, dict(broker.addresses)) == (
        "popgate",
        "DefaultCluster",
        {0: ADDRESS},
    )


@pytest.mark.parametrize("version", [273, 401, 479])
async def test_a_route_is_standard_json_for_every_client(stage: Stage, version: int) -> None:
    await stage.topic()
    caller = Caller(RouteHandler(stage.door_context), peer=FakePeer(version=version))
    body = (await caller.ok(ROUTE, {"topic": "orders"})).body
    assert json.loads(body)["brokerDatas"][0]["brokerAddrs"] == {"0": ADDRESS}


async def test_a_route_tells_what_a_topic_allows(stage: Stage, caller: Caller) -> None:
    await stage.topic("readable", 2, permission=Permission.READ)
    assert (await route_of(caller, "readable")).queues == (QueueData("popgate", 2, 2, 4),)


@pytest.mark.parametrize("template", ["TBW102", "AUTO_CREATE_TOPIC_KEY"])
async def test_the_template_of_new_topics_has_a_route_by_each_of_its_names(
    caller: Caller, template: str
) -> None:
    [queues] = (await route_of(caller, template)).queues
    assert (queues.broker, queues.perm) == ("popgate", 7)


@pytest.mark.parametrize("topic", ["unknown", "%DLQ%readers", "%RETRY%or ders", "%RETRY%", "x" * 300, "\x00"])
async def test_an_unknown_topic_has_no_route_and_is_not_made(
    stage: Stage, caller: Caller, topic: str
) -> None:
    answer = await caller.ask(ROUTE, {"topic": topic})
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert "No topic route info in name server for the topic" in answer.remark
    assert await stage.processor.metadata.topics(Context()) == []


async def test_a_deleted_topic_has_no_route(stage: Stage, caller: Caller) -> None:
    await stage.topic()
    await route_of(caller, "orders")
    await stage.processor.metadata.delete_topic(Context(), "orders")
    assert (await caller.ask(ROUTE, {"topic": "orders"})).code == ResponseCode.TOPIC_NOT_EXIST


async def test_the_template_of_new_topics_has_a_route(caller: Caller) -> None:
    assert (await route_of(caller, "TBW102")).queues == (QueueData("popgate", 8, 8, 7),)


class TestWhereTopicsAreNotMade:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(auto_create_topics=False)

    async def test_the_template_tells_producers_where_to_say_that_they_are_there(
        self, caller: Caller
    ) -> None:
        """And that nothing is made of it."""
        route = await route_of(caller, "TBW102")
        assert route.queues == (QueueData("popgate", 8, 8, 0),)
        assert [one.addresses for one in route.brokers] == [{0: ADDRESS}]


@pytest.mark.parametrize(
    "topic", ["DefaultCluster", "popgate", "%RETRY%readers", "DefaultCluster_REPLY_TOPIC"]
)
async def test_routes_of_what_clients_ask_before_it_is_there(
    stage: Stage, caller: Caller, topic: str
) -> None:
    assert (await route_of(caller, topic)).queues == (QueueData("popgate", 1, 1, 6),)
    assert await stage.processor.metadata.topics(Context()) == []
    assert await stage.processor.metadata.groups(Context()) == []


async def test_dead_letters_have_a_route_once_they_are_there(stage: Stage, caller: Caller) -> None:
    await stage.topic("%DLQ%readers", 1)
    assert (await route_of(caller, "%DLQ%readers")).queues == (QueueData("popgate", 1, 1, 6),)


async def test_the_cluster(caller: Caller) -> None:
    info = ClusterInfo.decode((await caller.ok(RequestCode.GET_BROKER_CLUSTER_INFO)).body)
    assert dict(info.clusters) == {"DefaultCluster": ("popgate",)}
    assert dict(info.brokers["popgate"].addresses) == {0: ADDRESS}


async def test_all_topics(stage: Stage, caller: Caller) -> None:
    await stage.topic("orders")
    told = TopicList.decode((await caller.ok(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).body)
    assert set(told.topics) == {"orders", "TBW102", "DefaultCluster", "popgate"}


async def test_there_are_no_settings_of_a_name_server(caller: Caller) -> None:
    fields = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders"}
    assert (await caller.ask(RequestCode.GET_KV_CONFIG, fields)).code == ResponseCode.QUERY_NOT_FOUND


async def test_a_route_needs_a_topic(caller: Caller) -> None:
    assert (await caller.ask(ROUTE)).code == ResponseCode.SYSTEM_ERROR


class TestWhichBrokerIsMeant:
    QUEUES = (Queue("a", 0, Permission.READ_WRITE), Queue("b", 0, Permission.READ_WRITE))

    def test_the_one_that_is_named(self, caller: Caller) -> None:
        assert broker_of(caller.request(11, {"bname": "b"}), self.QUEUES) == "b"
        assert broker_of(caller.request(310, {"n": "b"}), self.QUEUES, field="n") == "b"

    def test_the_only_one(self, caller: Caller) -> None:
        assert broker_of(caller.request(11), self.QUEUES[:1]) == "a"

    @pytest.mark.parametrize("queues", [QUEUES, ()])
    def test_none_of_several(self, caller: Caller, queues: tuple[Queue, ...]) -> None:
        with pytest.raises(Refused) as refused:
            broker_of(caller.request(11), queues)
        assert refused.value.code == ResponseCode.VERSION_NOT_SUPPORTED


async def test_records_name_an_address_and_no_name(stage: Stage, caller: Caller) -> None:
    assert await Brokers(stage.door_context).origin(caller.context) == Origin(ADDRESS)
    named = stage.named("gateway.example:8080")
    assert await Brokers(named).origin(caller.context) == Origin(caller.context.local)


class TestInFrontOfSeveralBrokers:
    """As before a cluster: each has its name and queues, and all are here."""

    @pytest.fixture
    def caller(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Caller:
        async def brokers() -> list[BrokerPlace]:
            return [BrokerPlace("one", "a", (0, 2)), BrokerPlace("one", "b", (1,)), BrokerPlace("two", "c")]

        async def queues(_context: Context, topic: str) -> tuple[Queue, ...]:
            if topic != "orders":
                raise TopicNotFound(topic)
            both = Permission.READ_WRITE
            return (
                *(Queue("a", number, both) for number in range(2)),
                *(Queue("b", number, both) for number in range(3)),
                Queue("b", 3, Permission.READ),
            )

        monkeypatch.setattr(stage.processor.metadata, "known_brokers", brokers)
        monkeypatch.setattr(stage.processor.metadata, "queues", queues)
        return Caller(
            RouteHandler(stage.door_context), PullHandler(stage.door_context), SendHandler(stage.door_context)
        )

    async def test_a_route_has_all_of_them_with_their_queues(self, caller: Caller) -> None:
        route = await route_of(caller, "orders")
        assert route.queues == (QueueData("a", 2, 2, 6), QueueData("b", 4, 3, 6))
        told = {broker.name: dict(broker.addresses) for broker in route.brokers}
        assert told == {"a": {0: ADDRESS, 2: ADDRESS}, "b": {0: ADDRESS, 1: ADDRESS}}

    async def test_the_clusters(self, caller: Caller) -> None:
        info = ClusterInfo.decode((await caller.ok(RequestCode.GET_BROKER_CLUSTER_INFO)).body)
        assert {name: set(brokers) for name, brokers in info.clusters.items()} == {
            "one": {"a", "b"},
            "two": {"c"},
        }
        assert set(info.brokers) == {"a", "b", "c"}

    @pytest.mark.parametrize(
        ("topic", "brokers"),
        [("one", "ab"), ("two", "c"), ("b", "b"), ("%RETRY%readers", "abc"), ("TBW102", "abc")],
    )
    async def test_what_need_not_be_there(self, caller: Caller, topic: str, brokers: str) -> None:
        assert [queue.broker for queue in (await route_of(caller, topic)).queues] == [*brokers]

    async def test_ids_and_records_name_this_door(self, stage: Stage, caller: Caller) -> None:
        assert (await Brokers(stage.door_context).origin(caller.context)).host == ADDRESS

    async def test_clients_that_name_no_broker_are_told_why_not(self, caller: Caller) -> None:
        pull = {"consumerGroup": "g", "topic": "orders", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1}
        answer = await caller.ask(RequestCode.PULL_MESSAGE, pull)
        assert answer.code == ResponseCode.VERSION_NOT_SUPPORTED
        assert "4.9.5" in answer.remark
        send = {"a": "g", "b": "orders", "e": 0, "f": 0, "g": 1, "h": 0, "i": ""}
        answer = await caller.ask(RequestCode.SEND_MESSAGE_V2, send, b"body")
        assert answer.code == ResponseCode.VERSION_NOT_SUPPORTED


async def test_brokers_stay_known_while_none_answers(
    stage: Stage, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody() -> list[BrokerPlace]:
        raise BrokerUnavailable("no broker is known")

    known = Brokers(stage.door_context)
    before = await known.known()
    monkeypatch.setattr(stage.processor.metadata, "known_brokers", nobody)
    stage.clock.advance(2)
    assert await known.known() == before
    with pytest.raises(BrokerUnavailable):
        await Brokers(stage.door_context).known()


class TestOfAnAccountThatMayNotLook:
    """One with permissions for its topics and groups, and none for the cluster."""

    @pytest.fixture
    def policies(self) -> Policies:
        return Policies(authorizer=Refusing("maker", ResourceKind.CLUSTER))

    @pytest.fixture
    def maker(self, stage: Stage) -> Caller:
        maker = Caller(RouteHandler(stage.door_context), SendHandler(stage.door_context))
        maker.context.principal = Principal("maker")
        return maker

    async def test_it_sends_to_its_topic(self, stage: Stage, maker: Caller) -> None:
        await stage.topic("orders", queues=1)
        await maker.ok(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
        send = {"a": "makers", "b": "orders", "e": 0, "g": 1, "i": "", "n": "popgate"}
        await maker.ok(RequestCode.SEND_MESSAGE_V2, send, b"body")

    async def test_it_is_shown_no_broker_whoever_was_before(self, stage: Stage, maker: Caller) -> None:
        operator = Caller()
        operator.handlers = maker.handlers
        await operator.ok(RequestCode.GET_BROKER_CLUSTER_INFO)
        refused = await maker.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
        assert refused.code == ResponseCode.NO_PERMISSION
