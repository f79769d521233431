"""Topics that are made where groups still have positions in an older one of the name."""

from __future__ import annotations

import asyncio
import json

import pytest

from popgate.errors import AlreadyExists, BadRequest, BrokerTimeout, Forbidden
from popgate.model import TopicConfig
from popgate.wire.frames.codes import RequestCode, ResponseCode
from tests.support.waiting import until

RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET


class Cluster:
    """Two brokers that keep topics, and positions of groups whether or not the topic is there."""

    def __init__(self, servers, masters):
        self.servers = servers
        self.masters = masters
        self.topics = set()
        self.positions = {}
        """By broker, group, topic and queue."""
        self.happened = []
        for name, peer in masters.items():
            for code, script in {
                RequestCode.UPDATE_AND_CREATE_TOPIC: self.create,
                RequestCode.GET_TOPIC_CONFIG: self.config,
                RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.readers,
                RequestCode.QUERY_CONSUMER_OFFSET: self.position,
                RESET: self.reset,
            }.items():
                peer.on(code, lambda request, name=name, script=script: script(name, request))

    def create(self, broker, request):
        topic = request.fields["topic"]
        self.happened.append(("created", broker))
        self.topics.add((broker, topic))
        holders = [holder for holder, held in self.topics if held == topic]
        self.servers.add_topic(topic, *holders, queues=int(request.fields["readQueueNums"]))
        return request.answer(0)

    def config(self, broker, request):
        topic = request.fields["topic"]
        if (broker, topic) not in self.topics:
            return request.answer(ResponseCode.TOPIC_NOT_EXIST, "No topic in this broker")
        return request.answer(0, body=json.dumps({"topicName": topic}).encode())

    def readers(self, broker, request):
        topic = request.fields["topic"]
        groups = sorted({key[1] for key in self.positions if key[0] == broker and key[2] == topic})
        return request.answer(0, body=json.dumps({"groupList": groups}).encode())

    def position(self, broker, request):
        fields = request.fields
        found = self.positions.get((broker, fields["consumerGroup"], fields["topic"], int(fields["queueId"])))
        if found is None:
            return request.answer(ResponseCode.QUERY_NOT_FOUND, "boot first")
        return request.answer(0, fields={"offset": str(found)})

    def reset(self, broker, request):
        fields = request.fields
        if fields["group"] == "gone":
            return request.answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "no such group")
        if fields["group"] == "barred":
            return request.answer(ResponseCode.NO_PERMISSION, "not yours")
        key = broker, fields["group"], fields["topic"], int(fields["queueId"])
        self.happened.append(("reset", *key))
        self.positions[key] = int(fields["offset"])
        return request.answer(0)


@pytest.fixture
def cluster(asking_cluster):
    return Cluster(*asking_cluster)


@pytest.fixture
async def directory(cluster, make_broker):
    return await make_broker(quiet=True)


async def test_groups_begin_a_topic_made_again_at_its_first_message(cluster, directory):
    old = {
        ("broker-a", "g", "new", 0): 7,
        ("broker-b", "g", "new", 1): 3,
        ("broker-b", "h", "new", 1): 1,
        ("broker-b", "h", "new", 0): 0,
        ("broker-b", "g", "other", 0): 9,
    }
    cluster.positions.update(old)
    await directory.create_topic(TopicConfig("new", read_queues=2, write_queues=2))
    assert cluster.positions == {key: 9 if key[2] == "other" else 0 for key in old}
    assert sorted(cluster.happened[:2]) == [("created", "broker-a"), ("created", "broker-b")]
    assert [event[1:] for event in cluster.happened[2:]] == [
        ("broker-a", "g", "new", 0),
        ("broker-b", "g", "new", 1),
        ("broker-b", "h", "new", 1),
    ]


async def test_queues_that_a_topic_gets_later_begin_at_their_first_messages_too(cluster, directory):
    """The older topic had more of them: who is given these later must not go on where it ended."""
    old = {("broker-a", "g", "new", queue_id): 7 for queue_id in (0, 1, 2, 6, 7)}
    cluster.positions.update(old)
    await directory.create_topic(TopicConfig("new", read_queues=2, write_queues=2))
    assert cluster.positions == dict.fromkeys(old, 0)


async def test_queues_without_positions_in_the_new_topic_hide_none_behind_it(cluster, directory):
    """A group that read few messages has positions in few queues."""
    old = {("broker-a", "g", "new", 1): 7, ("broker-a", "g", "new", 18): 1}
    cluster.positions.update(old)
    await directory.create_topic(TopicConfig("new", read_queues=16, write_queues=16))
    assert cluster.positions == dict.fromkeys(old, 0)


async def test_a_topic_that_is_there_keeps_the_positions_of_its_groups(cluster, directory):
    cluster.topics.add(("broker-a", "T"))
    cluster.positions["broker-a", "g", "T", 0] = 7
    with pytest.raises(AlreadyExists):
        await directory.create_topic(TopicConfig("T"))
    assert cluster.positions["broker-a", "g", "T", 0] == 7
    assert not cluster.happened


async def test_positions_that_come_as_the_topic_is_made_are_kept(cluster, directory):
    def made_and_read(request):
        cluster.positions["broker-a", "g", "new", 0] = 5
        return cluster.create("broker-a", request)

    cluster.masters["broker-a"].on(RequestCode.UPDATE_AND_CREATE_TOPIC, made_and_read)
    await directory.create_topic(TopicConfig("new", read_queues=1, write_queues=1))
    assert cluster.positions["broker-a", "g", "new", 0] == 5


@pytest.mark.parametrize(("group", "warned"), [("gone", False), ("barred", True)])
async def test_a_topic_is_made_although_a_position_stays(cluster, directory, caplog, group, warned):
    cluster.positions["broker-a", group, "new", 0] = 2
    cluster.positions["broker-b", "g", "new", 0] = 2
    await directory.create_topic(TopicConfig("new", read_queues=1, write_queues=1))
    assert cluster.positions["broker-b", "g", "new", 0] == 0
    assert ("broker broker-a may keep old positions in topic new" in caplog.text) is warned


async def test_a_topic_is_made_although_a_broker_does_not_tell_its_readers(cluster, directory, caplog):
    cluster.masters["broker-b"].on(
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, lambda request: request.answer(1, "not now")
    )
    cluster.positions["broker-a", "g", "new", 0] = 2
    await directory.create_topic(TopicConfig("new", read_queues=1, write_queues=1))
    assert cluster.positions["broker-a", "g", "new", 0] == 0
    assert "broker broker-b may keep old positions in topic new" in caplog.text


async def test_positions_are_reset_also_of_a_topic_that_is_not_listed(cluster, directory, clock):
    """When it is asked for again it is there, and nobody looks at positions any more."""
    cluster.positions["broker-a", "g", "new", 0] = 7
    cluster.servers.add_topic = lambda *_args, **_more: None
    making = asyncio.ensure_future(directory.create_topic(TopicConfig("new", read_queues=1, write_queues=1)))
    await until(making.done, turn=lambda: clock.advance(0.05), pause_s=0.001)
    with pytest.raises(BrokerTimeout, match="the name servers do not tell it yet"):
        await making
    assert cluster.positions["broker-a", "g", "new", 0] == 0


async def test_positions_are_reset_where_one_broker_alone_makes_the_topic(cluster, directory):
    cluster.positions["broker-a", "g", "new", 0] = 7
    cluster.positions["broker-b", "g", "new", 0] = 7
    cluster.masters["broker-b"].on(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        lambda request: request.answer(ResponseCode.NO_PERMISSION, "not yours"),
    )
    with pytest.raises(Forbidden):
        await directory.create_topic(TopicConfig("new", read_queues=1, write_queues=1))
    assert cluster.positions["broker-a", "g", "new", 0] == 0
    assert cluster.positions["broker-b", "g", "new", 0] == 7


async def test_positions_stay_at_a_broker_that_may_have_the_topic(cluster, directory):
    """It does not say whether it has it: it may, after a restart of all name servers."""
    cluster.positions["broker-a", "g", "new", 0] = 7
    cluster.positions["broker-b", "g", "new", 0] = 7
    cluster.masters["broker-b"].on(
        RequestCode.GET_TOPIC_CONFIG, lambda request: request.answer(ResponseCode.SYSTEM_BUSY, "not now")
    )
    await directory.create_topic(TopicConfig("new", read_queues=1, write_queues=1))
    assert cluster.positions["broker-a", "g", "new", 0] == 0
    assert cluster.positions["broker-b", "g", "new", 0] == 7


async def test_a_group_of_others_keeps_nobody_from_a_new_beginning(cluster, directory, caplog):
    """The account of the gateway may have no rights on it."""

    def position(request):
        if request.fields["consumerGroup"] == "a":
            return request.answer(ResponseCode.NO_PERMISSION, "not yours")
        return cluster.position("broker-a", request)

    cluster.masters["broker-a"].on(RequestCode.QUERY_CONSUMER_OFFSET, position)
    for group in ("a", "g"):
        cluster.positions["broker-a", group, "new", 0] = 7
    await directory.create_topic(TopicConfig("new", read_queues=1, write_queues=1))
    assert cluster.positions == {("broker-a", "a", "new", 0): 7, ("broker-a", "g", "new", 0): 0}
    assert "broker broker-a may keep old positions in topic new" in caplog.text


async def test_a_silent_broker_is_waited_for_once(cluster, make_broker, clock):
    """Its readers are asked for while it is asked for the topic: who sends to a new one waits for both."""
    directory = await make_broker(quiet=True, request_timeout_s=3.0, probe_s=30.0)

    async def never(_request):
        await asyncio.Event().wait()

    for code in (RequestCode.GET_TOPIC_CONFIG, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO):
        cluster.masters["broker-b"].on(code, never)
    began = clock.monotonic()
    making = asyncio.ensure_future(directory.create_topic(TopicConfig("new", read_queues=1, write_queues=1)))
    await until(lambda: bool(cluster.happened), turn=lambda: clock.advance(0.05), pause_s=0.001)
    assert clock.monotonic() - began < 4.5
    await until(making.done, turn=lambda: clock.advance(0.05), pause_s=0.001)
    await making


async def test_a_topic_that_another_gateway_makes_meanwhile_keeps_its_positions(cluster, directory):
    seen = asyncio.Event()

    async def readers(request):
        await seen.wait()
        return cluster.readers("broker-a", request)

    cluster.masters["broker-a"].on(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, readers)
    making = asyncio.ensure_future(directory.create_topic(TopicConfig("new", read_queues=1, write_queues=1)))
    await until(
        lambda: all(peer.of(RequestCode.GET_TOPIC_CONFIG) for peer in cluster.masters.values()),
        pause_s=0.001,
    )
    cluster.topics.add(("broker-a", "new"))
    cluster.servers.add_topic("new", "broker-a", queues=1)
    cluster.positions["broker-a", "g", "new", 0] = 5
    seen.set()
    with pytest.raises(AlreadyExists):
        await making
    assert cluster.positions["broker-a", "g", "new", 0] == 5


async def test_no_broker_is_asked_about_what_is_no_topic(cluster, directory):
    with pytest.raises(BadRequest):
        await directory.create_topic(TopicConfig("\x00"))
    assert not any(peer.of(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO) for peer in cluster.masters.values())
