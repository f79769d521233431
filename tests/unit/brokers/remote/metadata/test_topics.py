"""Topics of a cluster of scripted brokers: shown, made, changed."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from popgate.errors import (
    AlreadyExists,
    BadRequest,
    BrokerTimeout,
    BrokerUnavailable,
    TopicNotFound,
    Unsupported,
)
from popgate.model import MessageType, Permission, TopicConfig
from popgate.wire.frames.codes import RequestCode, ResponseCode

CREATE, CONFIG, ALL = (
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.GET_TOPIC_CONFIG,
    RequestCode.GET_ALL_TOPIC_CONFIG,
)


def told(name, queues=4, **attributes):
    return {"topicName": name, "readQueueNums": queues, "writeQueueNums": queues, "attributes": attributes}


def body(value):
    return json.dumps(value).encode()


class Cluster:
    """Brokers that keep topics as RocketMQ's do, and tell the name server of them."""

    def __init__(self, servers, masters):
        self.servers = servers
        self.masters = masters
        self.topics = {name: {"T": told("T")} for name in masters}
        self.tells = True
        for name, peer in masters.items():
            peer.on(CREATE, lambda request, name=name: self.create(name, request))
            peer.on(CONFIG, lambda request, name=name: self.config(name, request))
            peer.on(ALL, lambda request, name=name: self.all(name, request))

    def create(self, broker, request):
        fields = request.fields
        topic, queues = fields["topic"], int(fields["readQueueNums"])
        here = self.topics[broker].setdefault(topic, told(topic))
        here["readQueueNums"] = here["writeQueueNums"] = queues
        here["perm"] = int(fields["perm"])
        for change in filter(None, fields.get("attributes", "").split(",")):
            key, _, value = change[1:].partition("=")
            here["attributes"].pop(key, None)
            if change[0] == "+":
                here["attributes"][key] = value
        if self.tells:
            holders = [name for name in self.topics if topic in self.topics[name]]
            self.servers.add_topic(topic, *holders, queues=queues, perm=here["perm"])
        return request.answer(0)

    def config(self, broker, request):
        found = self.topics[broker].get(request.fields["topic"])
        if found is None:
            return request.answer(ResponseCode.TOPIC_NOT_EXIST, "No topic in this broker")
        return request.answer(0, body=body(found))

    def all(self, broker, request):
        return request.answer(0, body=body({"topicConfigTable": self.topics[broker]}))

    def asked(self, code):
        return sum(len(peer.of(code)) for peer in self.masters.values())


@pytest.fixture
def cluster(asking_cluster):
    return Cluster(*asking_cluster)


@pytest.fixture
async def topics(cluster, make_broker):
    return await make_broker(quiet=True)


async def passing(work, clock):
    """What it comes to, while time goes on."""
    task = asyncio.ensure_future(work)
    async with asyncio.timeout(60):
        while not task.done():
            clock.advance(0.05)
            await asyncio.sleep(0.001)
    return await task


async def test_a_topic_that_only_a_broker_knows_yet_is_left_as_it_is(cluster, topics, clock):
    """Name servers that were started anew tell of none; an operator's new topic is told of a moment later."""
    cluster.topics["broker-b"]["mine"] = told("mine", 16, **{"message.type": "FIFO"})
    making = asyncio.ensure_future(topics.create_topic(TopicConfig("mine", read_queues=8, write_queues=8)))
    async with asyncio.timeout(60):
        while cluster.asked(CONFIG) < 2:
            await asyncio.sleep(0.001)
    assert not making.done()
    cluster.servers.add_topic("mine", "broker-b", queues=16)
    with pytest.raises(AlreadyExists):
        await passing(making, clock)
    assert cluster.asked(CREATE) == 0
    assert cluster.topics["broker-b"]["mine"]["readQueueNums"] == 16


async def test_a_topic_that_no_name_server_ever_tells_of_is_not_made_anew(cluster, topics, clock):
    cluster.topics["broker-a"]["mine"] = told("mine", 16)
    with pytest.raises(BrokerTimeout):
        await passing(topics.create_topic(TopicConfig("mine", read_queues=8, write_queues=8)), clock)
    assert cluster.asked(CREATE) == 0


async def test_a_route_says_where_queues_are_and_what_they_take(cluster, topics):
    for broker in cluster.topics.values():
        broker["T"]["attributes"]["message.type"] = "FIFO"
    route = await topics.route("T")
    assert route.message_types == (MessageType.FIFO,)
    assert [(one.broker, one.queue_id) for one in route.queues] == [
        (broker, queue) for broker in ("broker-a", "broker-b") for queue in range(4)
    ]
    for _ in range(5):
        await topics.route("T")
    assert cluster.asked(CONFIG) == 1


async def test_every_request_says_which_broker_is_meant_and_that_queues_may_be_logic_ones(cluster, topics):
    await topics.topic("T")
    (request,) = [one for peer in cluster.masters.values() for one in peer.of(CONFIG)]
    assert request.fields["bname"] in ("broker-a", "broker-b")
    assert request.fields["lo"] == "true"


@pytest.mark.parametrize("name", ["nope", "", "\x00", "\udcff", "x" * 100_000, "a b"])
async def test_what_is_no_topic_is_told_to_be_none(topics, name):
    for call in (topics.route, topics.topic, lambda name: topics.update_topic(TopicConfig(name))):
        with pytest.raises(TopicNotFound):
            await call(name)


async def test_one_broker_that_is_down_does_not_hide_what_a_topic_takes(cluster, topics):
    await cluster.masters["broker-a"].stop()
    assert (await topics.route("T")).message_types == ()


async def test_that_nobody_tells_the_types_is_not_that_every_type_is_taken(cluster, topics):
    for master in cluster.masters.values():
        await master.stop()
    with pytest.raises(BrokerUnavailable):
        await topics.route("T")


async def test_who_only_reads_needs_no_types(cluster, topics):
    cluster.servers.add_topic("T", perm=4)
    for master in cluster.masters.values():
        await master.stop()
    route = await topics.route("T")
    assert len(route.readable) == 8
    assert route.writable == ()


async def test_a_slave_that_has_not_heard_of_a_topic_does_not_make_it_missing(cluster, topics):
    address = cluster.masters["broker-a"].address
    data = replace(cluster.servers.brokers["broker-a"], addresses={1: address})
    cluster.servers.brokers = {"broker-a": data}
    cluster.servers.add_topic("T", "broker-a", perm=6)
    cluster.topics["broker-a"].clear()
    topics.routes.forget("T")
    await topics.routes.clusters.refresh()
    with pytest.raises(BrokerUnavailable):
        await topics.topic("T")


async def test_brokers_before_5_0_declare_nothing(cluster, topics):
    for master in cluster.masters.values():
        master.on(CONFIG, lambda request: request.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
    assert await topics.topic("T") == TopicConfig("T", (), 4, 4)


@pytest.mark.parametrize("nonsense", [b"", b"[]", b"{", body({"topicName": 7}), b"\xff"])
async def test_settings_that_make_no_sense_are_as_if_nobody_had_told(cluster, topics, nonsense):
    for master in cluster.masters.values():
        master.on(CONFIG, lambda request: request.answer(0, body=nonsense))
    with pytest.raises(BrokerUnavailable):
        await topics.topic("T")


async def test_all_topics_are_told_but_those_of_the_system(cluster, topics):
    names = ["SCHEDULE_TOPIC_XXXX", "rmq_sys_x", "RMQ_SYS_y", "TBW102", "broker-a", "DefaultCluster"]
    names += ["DefaultCluster_REPLY_TOPIC", "%RETRY%g", "mine"]
    cluster.topics["broker-a"] |= {name: told(name, 2) for name in names}
    cluster.topics["broker-b"]["mine"] = told("mine", 8)
    found = await topics.topics()
    assert [(one.name, one.queues) for one in found] == [("%RETRY%g", 2), ("T", 4), ("mine", 8)]


async def test_a_broker_that_is_down_is_left_out_of_the_list(cluster, topics):
    await cluster.masters["broker-a"].stop()
    assert [one.name for one in await topics.topics()] == ["T"]
    await cluster.masters["broker-b"].stop()
    with pytest.raises(BrokerUnavailable):
        await topics.topics()


async def test_a_topic_is_made_on_every_broker_and_seen_at_once(cluster, topics, clock):
    config = TopicConfig("new", (MessageType.DELAY,), 2, 2)
    await passing(topics.create_topic(config), clock)
    assert await topics.topic("new") == config
    assert len((await topics.route("new")).queues) == 4
    assert cluster.asked(CREATE) == 2
    with pytest.raises(AlreadyExists):
        await topics.create_topic(config)
    assert cluster.asked(CREATE) == 2


async def test_who_is_patient_with_requests_is_patient_with_new_topics(cluster, make_broker, clock):
    """A broker writes them to its disk before it answers: it has 10 s, or as long as any request may take."""
    topics = await make_broker(quiet=True, request_timeout_s=30.0, probe_s=30.0)
    written = asyncio.Event()

    async def slow(request):
        await written.wait()
        return cluster.create("broker-a", request)

    cluster.masters["broker-a"].on(CREATE, slow)
    making = asyncio.ensure_future(topics.create_topic(TopicConfig("new", (), 2, 2)))
    async with asyncio.timeout(60):
        while cluster.asked(CREATE) < 2:
            await asyncio.sleep(0.001)
    clock.advance(20.0)
    written.set()
    await passing(making, clock)
    assert len((await topics.route("new")).queues) == 4


async def test_it_is_done_when_the_name_server_tells_it(cluster, topics, clock):
    cluster.tells = False
    making = asyncio.ensure_future(topics.create_topic(TopicConfig("new", (), 2, 2)))
    for _ in range(20):
        clock.advance(0.05)
        await asyncio.sleep(0.002)
    assert not making.done()
    cluster.servers.add_topic("new", queues=2)
    await passing(making, clock)


async def test_that_the_name_server_never_tells_it_is_told(cluster, topics, clock):
    cluster.tells = False
    with pytest.raises(BrokerTimeout, match="name servers"):
        await passing(topics.create_topic(TopicConfig("new")), clock)


async def test_a_broker_that_is_down_does_without_the_new_topic(cluster, topics, clock):
    await cluster.masters["broker-b"].stop()
    await passing(topics.create_topic(TopicConfig("new")), clock)
    assert {one.broker for one in (await topics.route("new")).queues} == {"broker-a"}


async def test_what_a_broker_refuses_is_refused(cluster, topics):
    cluster.masters["broker-b"].on(CREATE, lambda request: request.answer(1, "unsupported key: owner"))
    with pytest.raises(Unsupported, match="owner"):
        await topics.create_topic(TopicConfig("new", attributes={"owner": "me"}))
    known = "value is not in set: [FIFO, NORMAL]"
    cluster.masters["broker-b"].on(CREATE, lambda request: request.answer(1, known))
    with pytest.raises(Unsupported, match="type 'PRIORITY' at broker broker-b"):
        await topics.create_topic(TopicConfig("other", (MessageType.PRIORITY,)))


async def test_a_topic_is_changed_on_every_broker(cluster, topics, clock):
    config = TopicConfig("T", (MessageType.NORMAL,), 6, 6, Permission.READ)
    await topics.topic("T")
    await passing(topics.update_topic(config), clock)
    assert await topics.topic("T") == config
    route = await topics.route("T")
    assert (len(route.readable), route.writable) == (12, ())


async def test_queues_are_not_taken_away(cluster, topics):
    with pytest.raises(BadRequest, match="4 queues"):
        await topics.update_topic(TopicConfig("T", (), 3, 4))
    assert cluster.asked(CREATE) == 0


async def test_a_change_that_not_all_brokers_make_is_told(cluster, topics):
    cluster.masters["broker-b"].on(CREATE, lambda request: request.answer(ResponseCode.SYSTEM_BUSY, "later"))
    with pytest.raises(Exception, match="later"):
        await topics.update_topic(TopicConfig("T", (), 6, 6))
    await cluster.masters["broker-b"].stop()
    with pytest.raises(BrokerUnavailable):
        await topics.update_topic(TopicConfig("T", (), 8, 8))
