"""Groups of a cluster of scripted brokers: shown, made, changed, deleted with what belongs to them."""

from __future__ import annotations

import asyncio
import json

import pytest

from popgate.errors import (
    AlreadyExists,
    BrokerBusy,
    BrokerUnavailable,
    GatewayError,
    GroupNotFound,
    TopicNotFound,
    Unsupported,
)
from popgate.model import GroupConfig, StartFrom
from popgate.wire.frames.codes import RequestCode, ResponseCode

SET, GET, ALL, DELETE = (
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
)


class Cluster:
    """Brokers that keep groups, positions and topics as RocketMQ's do."""

    def __init__(self, servers, masters):
        self.servers = servers
        self.masters = masters
        self.groups = {name: {"g": {"groupName": "g"}} for name in masters}
        self.read = {name: {"g": ["T", "%RETRY%g_T"]} for name in masters}
        self.deleted = []
        servers.on(RequestCode.DELETE_TOPIC_IN_NAMESRV, self.unname)
        for name, peer in masters.items():
            for code, script in {
                SET: self.set,
                GET: self.get,
                ALL: self.all,
                DELETE: self.delete,
                RequestCode.QUERY_TOPICS_BY_CONSUMER: self.topics,
                RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.readers,
                RequestCode.DELETE_TOPIC_IN_BROKER: self.delete_topic,
            }.items():
                peer.on(code, lambda request, name=name, script=script: script(name, request))

    def set(self, broker, request):
        told = json.loads(request.body)
        self.groups[broker][told["groupName"]] = told
        told["attributes"] = {key[1:]: value for key, value in told["attributes"].items() if key[0] == "+"}
        return request.answer(0)

    def get(self, broker, request):
        found = self.groups[broker].get(request.fields["group"])
        if found is None:
            return request.answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
        return request.answer(0, body=json.dumps(found).encode())

    def all(self, broker, request):
        return request.answer(0, body=json.dumps({"subscriptionGroupTable": self.groups[broker]}).encode())

    def delete(self, broker, request):
        assert request.fields["cleanOffset"] == "true"
        self.groups[broker].pop(request.fields["groupName"], None)
        self.read[broker].pop(request.fields["groupName"], None)
        return request.answer(0)

    def topics(self, broker, request):
        found = self.read[broker].get(request.fields["group"], [])
        return request.answer(0, body=json.dumps({"topicList": found}).encode())

    def readers(self, broker, request):
        found = [group for group, topics in self.read[broker].items() if request.fields["topic"] in topics]
        return request.answer(0, body=json.dumps({"groupList": found}).encode())

    def delete_topic(self, broker, request):
        self.deleted.append((broker, request.fields["topic"]))
        return request.answer(0)

    def unname(self, request):
        self.deleted.append(("name server", request.fields["topic"]))
        assert request.fields["clusterName"] == "DefaultCluster"
        self.servers.topics.pop(request.fields["topic"], None)
        return request.answer(0)


@pytest.fixture
def cluster(asking_cluster):
    return Cluster(*asking_cluster)


@pytest.fixture
async def facet(cluster, make_broker):
    return await make_broker(quiet=True)


async def test_a_group_is_asked_for_once(cluster, facet):
    for _ in range(4):
        assert await facet.group("g") == GroupConfig("g")
    assert sum(len(peer.of(GET)) for peer in cluster.masters.values()) == 1


@pytest.mark.parametrize("name", ["nope", "", "\x00", "\udcff", "x" * 100_000])
async def test_what_is_no_group_is_told_to_be_none(facet, name):
    calls = [facet.group, facet.delete_group, facet.topics_of]
    for call in (*calls, lambda name: facet.update_group(GroupConfig(name))):
        with pytest.raises(GroupNotFound):
            await call(name)


async def test_groups_need_no_topic_of_the_name_server_and_no_name_of_a_cluster(cluster, make_broker):
    """RocketMQ's proxy asks for topics with the names of its cluster and brokers (protocol facts 9.6)."""
    cluster.servers.topics.clear()
    cluster.servers.add_broker("broker-b", cluster.masters["broker-b"].address, cluster="of another name")
    facet = await make_broker(quiet=True)
    assert await facet.group("g") == GroupConfig("g")
    await facet.create_group(GroupConfig("new"))
    assert [sorted(groups) for groups in cluster.groups.values()] == [["g", "new"]] * 2
    assert cluster.servers.of(RequestCode.GET_ROUTEINFO_BY_TOPIC) == []


async def test_a_group_that_one_broker_has_is_there(cluster, facet):
    cluster.groups["broker-b"]["late"] = {"groupName": "late", "retryMaxTimes": 2}
    assert (await facet.group("late")).max_attempts == 3


async def test_a_group_is_missing_only_when_all_say_so(cluster, facet):
    await cluster.masters["broker-b"].stop()
    assert await facet.group("g") == GroupConfig("g")
    with pytest.raises(BrokerUnavailable):
        await facet.group("nope")


async def test_all_groups_are_told_but_those_of_the_system(cluster, facet):
    for name in ("TOOLS_CONSUMER", "CID_RMQ_SYS_x", "mine"):
        cluster.groups["broker-b"][name] = {"groupName": name}
    assert [one.name for one in await facet.groups()] == ["g", "mine"]
    await cluster.masters["broker-b"].stop()
    assert [one.name for one in await facet.groups()] == ["g"]


async def test_a_group_is_made_on_every_broker_and_once(cluster, facet):
    config = GroupConfig("new", ordered=True, max_attempts=3, start_from=StartFrom.LAST)
    with pytest.raises(GroupNotFound):
        await facet.group("new")
    outcomes = await asyncio.gather(*(facet.create_group(config) for _ in range(3)), return_exceptions=True)
    assert outcomes.count(None) == 1
    assert sum(isinstance(one, AlreadyExists) for one in outcomes) == 2
    assert await facet.group("new") == config
    assert all("new" in groups for groups in cluster.groups.values())
    # A broker may make a group of which it is asked by name.
    for peer in cluster.masters.values():
        codes = [one.code for one in peer.requests]
        assert codes.index(ALL) < codes.index(SET)


async def test_a_group_is_made_without_a_broker_that_is_down(cluster, facet):
    await cluster.masters["broker-b"].stop()
    await facet.create_group(GroupConfig("new"))
    assert await facet.group("new") == GroupConfig("new")
    await cluster.masters["broker-a"].stop()
    with pytest.raises(BrokerUnavailable):
        await facet.create_group(GroupConfig("newer"))


async def test_what_a_broker_refuses_is_refused(cluster, facet):
    remark = "java.lang.RuntimeException: unsupported key: owner, org.apache.rocketmq"
    cluster.masters["broker-b"].on(SET, lambda request: request.answer(1, remark))
    with pytest.raises(Unsupported, match="owner"):
        await facet.create_group(GroupConfig("new", attributes={"owner": "me"}))


async def test_a_group_is_changed_on_every_broker_also_where_it_was_missing(cluster, facet):
    del cluster.groups["broker-b"]["g"]
    cluster.groups["broker-a"]["g"]["groupSysFlag"] = 7
    await facet.group("g")
    await facet.update_group(GroupConfig("g", max_attempts=2))
    assert (await facet.group("g")).max_attempts == 2
    assert cluster.groups["broker-b"]["g"]["retryMaxTimes"] == 1
    assert cluster.groups["broker-a"]["g"]["groupSysFlag"] == 7


async def test_a_change_that_not_all_brokers_make_is_told(cluster, facet):
    cluster.masters["broker-b"].on(SET, lambda request: request.answer(ResponseCode.SYSTEM_BUSY, "later"))
    with pytest.raises(BrokerBusy, match="later"):
        await facet.update_group(GroupConfig("g", max_attempts=2))
    await cluster.masters["broker-b"].stop()
    with pytest.raises(BrokerUnavailable):
        await facet.update_group(GroupConfig("g", max_attempts=3))


async def test_the_topics_of_a_group_are_those_of_all_brokers_without_its_retries(cluster, facet):
    cluster.read["broker-b"]["g"] = ["U"]
    assert await facet.topics_of("g") == ["T", "U"]


async def test_the_readers_of_a_topic_are_those_that_the_brokers_know_which_answer(cluster, facet):
    cluster.read["broker-b"]["late"] = ["T"]
    assert await facet.readers("T") == ["g", "late"]
    assert await facet.readers("U") == []
    assert await facet.readers("no name") == []
    await cluster.masters["broker-b"].stop()
    assert await facet.readers("T") == ["g"]
    await cluster.masters["broker-a"].stop()
    with pytest.raises(BrokerUnavailable):
        await facet.readers("T")


async def test_a_topic_that_is_told_as_its_own_reader_has_none_of_that_name(cluster, facet):
    """RocketMQ 5.3.3 tells it so while a client subscribes to it."""
    cluster.read["broker-a"]["T"] = ["T"]
    assert await facet.readers("T") == ["g"]
    cluster.groups["broker-b"]["T"] = {"groupName": "T"}
    assert await facet.readers("T") == ["T", "g"]


async def test_a_group_is_deleted_with_its_retries(cluster, facet):
    cluster.servers.add_topic("%RETRY%g_T", "broker-a")
    await facet.group("g")
    await facet.delete_group("g")
    assert all("g" not in groups for groups in cluster.groups.values())
    assert cluster.deleted == [("broker-a", "%RETRY%g_T"), ("name server", "%RETRY%g_T")]
    with pytest.raises(GroupNotFound):
        await facet.group("g")


async def test_a_group_is_deleted_with_retries_that_name_servers_do_not_know_yet(cluster, facet):
    """Else the next group of this name would receive them."""

    def config(request):
        if request.fields["topic"] != "%RETRY%g+T":
            return request.answer(ResponseCode.TOPIC_NOT_EXIST)
        return request.answer(0, body=b'{"topicName":"%RETRY%g+T","readQueueNums":1}')

    cluster.servers.add_topic("%RETRY%g_T", "broker-a")
    cluster.masters["broker-b"].on(RequestCode.GET_TOPIC_CONFIG, config)
    await facet.delete_group("g")
    assert sorted(cluster.deleted) == [
        ("broker-a", "%RETRY%g_T"),
        ("broker-b", "%RETRY%g+T"),
        ("name server", "%RETRY%g_T"),
    ]


async def test_a_group_stays_when_its_retries_cannot_be_found(cluster, facet):
    """Once it is gone a repeated call would not come to them."""
    cluster.masters["broker-b"].on(
        RequestCode.GET_TOPIC_CONFIG, lambda request: request.answer(ResponseCode.SYSTEM_ERROR, "no")
    )
    with pytest.raises(GatewayError):
        await facet.delete_group("g")
    assert all("g" in groups for groups in cluster.groups.values())
    assert not cluster.deleted


async def test_retries_are_deleted_when_others_cannot_be_deleted(cluster, facet):
    def refuse_one(request):
        if request.fields["topic"] == "%RETRY%g_T":
            return request.answer(ResponseCode.SYSTEM_ERROR, "no")
        return cluster.delete_topic("broker-a", request)

    for topic in ("%RETRY%g_T", "%RETRY%g+T"):
        cluster.servers.add_topic(topic, "broker-a")
    cluster.masters["broker-a"].on(RequestCode.DELETE_TOPIC_IN_BROKER, refuse_one)
    with pytest.raises(GatewayError):
        await facet.delete_group("g")
    assert cluster.deleted == [("broker-a", "%RETRY%g+T"), ("name server", "%RETRY%g+T")]


async def test_stale_positions_are_deleted_before_a_group_is_made(cluster, facet):
    """A broker stores the position of a pop after it answered, also when the group was deleted in between."""
    cluster.read["broker-b"]["new"] = ["T"]
    cluster.read["broker-a"]["newer"] = ["T"]
    await facet.create_group(GroupConfig("new"))
    assert "new" not in cluster.read["broker-b"]
    assert all("new" in groups for groups in cluster.groups.values())
    assert cluster.read["broker-a"] == {"g": ["T", "%RETRY%g_T"], "newer": ["T"]}
    assert [len(peer.of(DELETE)) for peer in cluster.masters.values()] == [0, 1]


async def test_positions_stored_while_a_group_is_deleted_are_deleted(cluster, facet):
    def delete_and_store_late(request):
        answer = cluster.delete("broker-a", request)
        if len(cluster.masters["broker-a"].of(DELETE)) == 1:
            cluster.read["broker-a"]["g"] = ["T"]
        return answer

    cluster.masters["broker-a"].on(DELETE, delete_and_store_late)
    await facet.delete_group("g")
    assert all("g" not in read for read in cluster.read.values())


async def test_positions_of_a_group_that_another_gateway_makes_are_kept(cluster, facet):
    """It is in the list of groups by the time the positions are known."""

    def made_elsewhere(request):
        cluster.groups["broker-a"]["new"] = {"groupName": "new"}
        cluster.read["broker-a"]["new"] = ["T"]
        return cluster.topics("broker-a", request)

    cluster.masters["broker-a"].on(RequestCode.QUERY_TOPICS_BY_CONSUMER, made_elsewhere)
    await facet.create_group(GroupConfig("new"))
    assert cluster.read["broker-a"]["new"] == ["T"]
    assert not cluster.masters["broker-a"].of(DELETE)


async def test_a_group_is_made_although_a_broker_does_not_tell_positions(cluster, facet, caplog):
    cluster.masters["broker-b"].on(
        RequestCode.QUERY_TOPICS_BY_CONSUMER, lambda request: request.answer(1, "not now")
    )
    await facet.create_group(GroupConfig("new"))
    assert all("new" in groups for groups in cluster.groups.values())
    assert "broker broker-b may keep old positions of group new" in caplog.text


async def test_a_topic_is_deleted_everywhere_with_the_retries_of_its_readers(cluster, facet):
    cluster.servers.add_topic("%RETRY%g_T", "broker-a")
    cluster.servers.add_topic("%RETRY%h_T", "broker-a")
    await facet.delete_topic("T")
    assert set(cluster.deleted) == {
        ("broker-a", "T"),
        ("broker-b", "T"),
        ("name server", "T"),
        ("broker-a", "%RETRY%g_T"),
        ("name server", "%RETRY%g_T"),
    }
    with pytest.raises(TopicNotFound):
        await facet.delete_topic("T")


async def test_a_topic_that_a_broker_would_bring_back_is_told_not_to_be_deleted(cluster, facet):
    await cluster.masters["broker-b"].stop()
    with pytest.raises(BrokerUnavailable):
        await facet.delete_topic("T")
    assert ("name server", "T") not in cluster.deleted
    await cluster.masters["broker-b"].start()
    facet.clock.advance(10)
    await facet.delete_topic("T")


async def test_a_topic_whose_master_is_gone_is_not_deleted(cluster, facet):
    cluster.servers.brokers["broker-b"] = cluster.servers.add_broker("broker-b")
    address = cluster.masters["broker-b"].address
    data = cluster.servers.add_broker("broker-b", address)
    cluster.servers.brokers["broker-b"] = type(data)(data.cluster, data.name, {1: address})
    cluster.servers.add_topic("T")
    facet.routes.forget("T")
    with pytest.raises(BrokerUnavailable, match="no master"):
        await facet.delete_topic("T")
    assert cluster.deleted == []
