"""Positions, locks, look-ups and standings, asked of scripted brokers."""

from __future__ import annotations

import json

import pytest

from popgate.context import Context
from popgate.errors import (
    BadRequest,
    BrokerUnavailable,
    Forbidden,
    GatewayError,
    GroupNotFound,
    IllegalOffset,
    TopicNotFound,
    Unsupported,
)
from popgate.ids.message_id import encode_offset_message_id
from popgate.model import Bounds, StartFrom
from popgate.wire.bodies.consumer_info import encode_offsets
from popgate.wire.bodies.small_bodies import MessageQueue
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.messages.hosts import pack_host
from popgate.wire.messages.properties import encode_properties
from popgate.wire.messages.records import encode_record

ME = Context(client_id="me")


class Cluster:
    """Two brokers with a queue of T each, and a group that may have positions there."""

    def __init__(self, servers, masters):
        self.servers = servers
        self.masters = masters
        servers.add_topic("T", queues=1)
        self.ends = {}
        self.positions = {}
        self.pending = False
        self.reset_to = 0
        self.resets = []
        self.pulls = []
        self.serves_resets = True
        self.pops = 0
        """How many messages a group pops as soon as it was reset."""
        for name, peer in masters.items():
            for code, script in {
                RequestCode.GET_MIN_OFFSET: lambda b, f: {"offset": str(self.end(b, f)[0])},
                RequestCode.GET_MAX_OFFSET: lambda b, f: {"offset": str(self.end(b, f)[1])},
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: lambda b, f: {"offset": "7"},
            }.items():
                peer.on(code, lambda r, name=name, script=script: r.answer(0, fields=script(name, r.fields)))
            peer.on(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, self.group)
            peer.on(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, self.groups)
            for code, script in {
                RequestCode.QUERY_CONSUMER_OFFSET: self.position,
                RequestCode.UPDATE_CONSUMER_OFFSET: self.commit,
                RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset,
                RequestCode.PULL_MESSAGE: self.pull,
            }.items():
                peer.on(code, lambda request, name=name, script=script: script(name, request))

    def end(self, broker, fields):
        return self.ends.get((fields["topic"], broker), (0, 10))

    def group(self, request):
        if request.fields["group"] not in ("g", "last"):
            return request.answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
        name = request.fields["group"]
        told = {"groupName": name, "consumeFromMinEnable": name == "g"}
        return request.answer(0, body=json.dumps(told).encode())

    def groups(self, request):
        return request.answer(
            0, body=json.dumps({"subscriptionGroupTable": {"g": {"groupName": "g"}}}).encode()
        )

    def position(self, broker, request):
        assert request.fields["setZeroIfNotFound"] == "false"
        found = self.positions.get((request.fields["topic"], broker))
        if found is None:
            return request.answer(ResponseCode.QUERY_NOT_FOUND, "boot first")
        return request.answer(0, fields={"offset": str(found)})

    def commit(self, broker, request):
        if self.pending:
            return request.answer(0, "Offset has been previously reset")
        self.positions[request.fields["topic"], broker] = int(request.fields["commitOffset"])
        return request.answer(0)

    def pull(self, broker, request):
        offset = int(request.fields["queueOffset"])
        self.pulls.append((broker, request.fields["consumerGroup"], offset))
        minimum, maximum = self.end(broker, request.fields)
        moved, self.pending = self.pending, False
        to = self.reset_to if moved else min(max(offset, minimum), maximum)
        moved = moved or to != offset
        return request.answer(
            ResponseCode.PULL_OFFSET_MOVED if moved else ResponseCode.PULL_NOT_FOUND,
            fields={"minOffset": str(minimum), "maxOffset": str(maximum), "nextBeginOffset": str(to)},
        )

    def reset(self, broker, request):
        fields = request.fields
        self.resets.append((broker, fields["topic"], int(fields["offset"])))
        if self.serves_resets:
            self.pending, self.reset_to = not self.pops, int(fields["offset"])
            self.positions[fields["topic"], broker] = int(fields["offset"]) + self.pops
            queue = MessageQueue(fields["topic"], broker, int(fields["queueId"]))
            return request.answer(0, body=encode_offsets({queue: int(fields["offset"])}))
        return request.answer(1, "no consumer for this group")


@pytest.fixture
def cluster(asking_cluster):
    return Cluster(*asking_cluster)


@pytest.fixture
async def parts(cluster, make_broker):
    return await make_broker(quiet=True)


HERE = ("T", "broker-a", 0)


async def test_bounds_are_those_of_the_queue(cluster, parts):
    cluster.ends["T", "broker-a"] = (3, 12)
    assert await parts.bounds(ME, *HERE) == Bounds(3, 12)
    with pytest.raises(BadRequest):
        await parts.bounds(ME, "T", "broker-a", 1)
    with pytest.raises(TopicNotFound):
        await parts.bounds(ME, "nope", "broker-a", 0)


async def test_an_answer_without_its_number_is_an_error(cluster, parts):
    cluster.masters["broker-a"].on(RequestCode.GET_MAX_OFFSET, lambda r: r.answer(0, fields={"offset": "x"}))
    with pytest.raises(BrokerUnavailable, match="without offset"):
        await parts.bounds(ME, *HERE)


@pytest.mark.parametrize(("told", "found"), [("7", 7), ("-1", 10), ("0", 2), ("99", 10)])
async def test_the_offset_at_a_time_is_within_the_bounds(cluster, parts, told, found):
    cluster.ends["T", "broker-a"] = (2, 10)
    peer = cluster.masters["broker-a"]
    peer.on(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, lambda r: r.answer(0, fields={"offset": told}))
    assert await parts.offset_at(ME, *HERE, 1 << 80) == found
    assert peer.of(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)[0].fields["timestamp"] == str((1 << 63) - 1)


async def test_a_position_is_told_set_and_refused_outside(cluster, parts):
    assert await parts.committed(ME, "g", *HERE) is None
    await parts.commit(ME, "g", *HERE, 4)
    assert await parts.committed(ME, "g", *HERE) == 4
    assert cluster.resets == []
    for offset in (-1, 11):
        with pytest.raises(IllegalOffset):
            await parts.commit(ME, "g", *HERE, offset)
    with pytest.raises(GroupNotFound):
        await parts.commit(ME, "nope", *HERE, 4)


async def test_a_commit_within_bounds_that_were_told_lately_asks_for_nothing_else(cluster, parts, clock):
    peer = cluster.masters["broker-a"]
    await parts.commit(ME, "g", *HERE, 4)
    before = len(peer.requests)
    await parts.commit(ME, "g", *HERE, 10)
    assert [r.code for r in peer.requests[before:]] == [RequestCode.UPDATE_CONSUMER_OFFSET]

    cluster.ends["T", "broker-a"] = (2, 12)
    await parts.commit(ME, "g", *HERE, 12)  # past what was told: looked at again
    assert await parts.committed(ME, "g", *HERE) == 12

    cluster.ends["T", "broker-a"] = (0, 3)  # the topic is another one by now
    clock.advance(61)
    with pytest.raises(IllegalOffset):
        await parts.commit(ME, "g", *HERE, 12)


async def test_a_commit_that_a_waiting_reset_swallowed_is_set_as_that_reset(cluster, parts):
    cluster.pending = True
    await parts.commit(ME, "g", *HERE, 4)
    assert cluster.resets == [("broker-a", "T", 4)]
    assert await parts.committed(ME, "g", *HERE) == 4


async def test_a_reader_that_has_not_heard_of_a_reset_is_told_where_to_go(cluster, parts):
    await parts.reset("g", "T", StartFrom.FIRST)
    cluster.resets.clear()
    assert await parts.commit_read(ME, "g", *HERE, 4) == 0
    assert (cluster.resets, cluster.pulls) == ([], [])
    assert await parts.committed(ME, "g", *HERE) == 0


async def test_positions_are_kept_again_once_a_reader_began_there(cluster, parts):
    await parts.reset("g", "T", StartFrom.FIRST)
    assert await parts.begin_read(ME, "g", *HERE, 0) == 0
    assert cluster.pulls == [("broker-a", "g", 0)]
    assert await parts.commit_read(ME, "g", *HERE, 4) is None
    assert await parts.committed(ME, "g", *HERE) == 4
    # Where no reset is pending nothing is set.
    assert await parts.begin_read(ME, "g", *HERE, 3) == 3
    assert await parts.committed(ME, "g", *HERE) == 4


async def test_a_reader_that_was_sent_elsewhere_does_not_undo_a_newer_reset(cluster, parts):
    await parts.reset("g", "T", StartFrom.FIRST)
    await parts.reset_queue(ME, "g", *HERE, 7)
    assert await parts.begin_read(ME, "g", *HERE, 0) == 7
    assert await parts.committed(ME, "g", *HERE) == 7


async def test_a_reset_of_a_group_without_a_position_is_written_down_when_it_is_read(cluster, parts):
    cluster.pending, cluster.reset_to = True, 5
    assert await parts.begin_read(ME, "g", *HERE, 3) == 5
    assert await parts.committed(ME, "g", *HERE) == 5


async def test_a_reset_is_told_also_when_the_position_cannot_be_asked_for(cluster, parts):
    await parts.reset_queue(ME, "g", *HERE, 7)
    cluster.masters["broker-a"].on(
        RequestCode.QUERY_CONSUMER_OFFSET, lambda request: request.answer(ResponseCode.SYSTEM_BUSY)
    )
    assert await parts.begin_read(ME, "g", *HERE, 0) == 7


async def test_a_reader_beyond_the_bounds_sets_nothing(cluster, parts):
    await parts.commit(ME, "g", *HERE, 4)
    assert await parts.begin_read(ME, "g", *HERE, 99) == 99
    assert await parts.committed(ME, "g", *HERE) == 4
    # Where its group was reset to, it goes all the same.
    await parts.reset("g", "T", StartFrom.FIRST)
    assert await parts.begin_read(ME, "g", *HERE, 99) == 0


async def test_a_reset_of_one_queue(cluster, parts):
    await parts.reset_queue(ME, "g", *HERE, 4)
    assert cluster.resets == [("broker-a", "T", 4)]
    with pytest.raises(IllegalOffset):
        await parts.reset_queue(ME, "g", *HERE, 11)
    with pytest.raises(GroupNotFound):
        await parts.reset_queue(ME, "strangers", *HERE, 4)


async def test_a_reader_that_commits_where_a_reset_sends_it_has_gone_there(cluster, parts):
    await parts.reset("g", "T", StartFrom.FIRST)
    assert await parts.commit_read(ME, "g", *HERE, 0) is None
    assert await parts.commit_read(ME, "g", *HERE, 3) is None
    assert await parts.committed(ME, "g", *HERE) == 3
    with pytest.raises(IllegalOffset):
        await parts.commit_read(ME, "g", *HERE, 11)


async def test_a_reset_sets_every_queue_and_passes_over_the_retries(cluster, parts):
    cluster.servers.add_topic("%RETRY%g_T", "broker-b", queues=1)
    cluster.ends = {("T", "broker-a"): (2, 10), ("%RETRY%g_T", "broker-b"): (0, 5)}
    await parts.reset("g", "T", StartFrom.FIRST)
    assert cluster.resets == [("broker-a", "T", 2), ("broker-b", "T", 0), ("broker-b", "%RETRY%g_T", 5)]
    cluster.resets.clear()
    await parts.reset("g", "T", 1_700_000_000_000)
    assert cluster.resets[:2] == [("broker-a", "T", 7), ("broker-b", "T", 7)]


async def test_a_reset_passes_over_retries_that_name_servers_do_not_know_yet(cluster, parts):
    """A broker tells them of a new retry topic with its next registration only."""

    def config(request):
        if request.fields["topic"] != "%RETRY%g+T":
            return request.answer(ResponseCode.TOPIC_NOT_EXIST)
        return request.answer(0, body=b'{"topicName":"%RETRY%g+T","readQueueNums":1}')

    cluster.masters["broker-b"].on(RequestCode.GET_TOPIC_CONFIG, config)
    cluster.ends = {("%RETRY%g+T", "broker-b"): (0, 5)}
    await parts.reset("g", "T", StartFrom.FIRST)
    assert cluster.resets == [("broker-a", "T", 0), ("broker-b", "T", 0), ("broker-b", "%RETRY%g+T", 5)]
    # An account may have rights on the retry topics that there are, and on no others.
    cluster.masters["broker-b"].on(
        RequestCode.GET_TOPIC_CONFIG, lambda request: request.answer(ResponseCode.NO_PERMISSION, "no")
    )
    cluster.resets.clear()
    await parts.reset("g", "T", StartFrom.FIRST)
    assert cluster.resets == [("broker-a", "T", 0), ("broker-b", "T", 0)]
    cluster.masters["broker-b"].on(RequestCode.GET_TOPIC_CONFIG, lambda request: request.answer(1, "no"))
    cluster.resets.clear()
    with pytest.raises(GatewayError, match="SYSTEM_ERROR"):
        await parts.reset("g", "T", StartFrom.FIRST)
    assert cluster.resets == []


async def test_a_reset_tells_what_it_set(cluster, parts):
    cluster.ends = {("T", "broker-a"): (2, 10)}
    assert await parts.reset("g", "T", StartFrom.FIRST) == {("broker-a", 0): 2, ("broker-b", 0): 0}
    assert await parts.reset("g", "T", StartFrom.LAST) == {("broker-a", 0): 10, ("broker-b", 0): 10}


async def test_a_position_from_which_pops_have_moved_on_is_not_set_again(cluster, parts):
    cluster.servers.add_topic("wide", "broker-a", queues=2)
    cluster.pops = 3
    assert await parts.reset("g", "wide", StartFrom.FIRST) == {("broker-a", 0): 0, ("broker-a", 1): 0}
    assert cluster.positions["wide", "broker-a"] == 3


async def test_of_the_only_queue_the_position_says_whether_it_was_set(cluster, parts):
    """A broker that leaves resets to clients would answer the same."""
    cluster.pops = 3
    await parts.reset("g", "T", StartFrom.FIRST)
    assert cluster.positions["T", "broker-a"] == 0


async def test_a_broker_that_leaves_resets_to_clients_gets_the_position(cluster, parts):
    cluster.serves_resets = False
    await parts.reset("g", "T", StartFrom.LAST)
    assert cluster.positions == {("T", "broker-a"): 10, ("T", "broker-b"): 10}


async def test_an_account_that_may_not_reset_is_refused(cluster, parts):
    """Committing the offset in its place would answer with success, and leave what pops hold."""
    for peer in cluster.masters.values():
        peer.on(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            lambda request: request.answer(ResponseCode.NO_PERMISSION, "User:u has no permission"),
        )
    with pytest.raises(Forbidden, match="User:u has no permission"):
        await parts.reset("g", "T", StartFrom.LAST)
    assert cluster.positions == {}


async def test_a_position_that_cannot_be_set_is_told(cluster, parts):
    cluster.serves_resets, cluster.pending = False, True
    with pytest.raises(BrokerUnavailable, match="keeps the position"):
        await parts.reset("g", "T", StartFrom.LAST)


async def test_a_slave_that_knows_no_position_does_not_say_that_there_is_none(cluster, parts):
    address = cluster.masters["broker-a"].address
    data = cluster.servers.brokers["broker-a"]
    await parts.group("g")
    cluster.servers.brokers["broker-a"] = type(data)(data.cluster, data.name, {1: address})
    cluster.servers.add_topic("T", queues=1)
    parts.routes.forget("T")
    await parts.routes.clusters.refresh()
    with pytest.raises(BrokerUnavailable, match="no master"):
        await parts.committed(ME, "g", *HERE)


async def test_bounds_of_a_master_are_told_by_no_slave(cluster, parts):
    cluster.ends["T", "broker-a"] = (3, 12)
    assert await parts.bounds(ME, *HERE, of_master=True) == Bounds(3, 12)
    address = cluster.masters["broker-a"].address
    data = cluster.servers.brokers["broker-a"]
    cluster.servers.brokers["broker-a"] = type(data)(data.cluster, data.name, {1: address})
    cluster.servers.add_topic("T", queues=1)
    parts.routes.forget("T")
    await parts.routes.clusters.refresh()
    assert await parts.bounds(ME, *HERE) == Bounds(3, 12)
    with pytest.raises(BrokerUnavailable, match="no master"):
        await parts.bounds(ME, *HERE, of_master=True)


async def test_bounds_of_a_master_are_told_by_no_slave_that_acts_for_it(cluster, parts, monkeypatch):
    monkeypatch.setattr(parts.routes, "is_acting", lambda broker: broker == "broker-a")
    assert await parts.bounds(ME, *HERE) == Bounds(0, 10)
    with pytest.raises(BrokerUnavailable, match="a slave acts for it"):
        await parts.bounds(ME, *HERE, of_master=True)


# -- how far groups are -----------------------------------------------------------------------------


async def test_progress_tells_every_queue_and_the_retries(cluster, parts):
    cluster.servers.add_topic("%RETRY%g+T", "broker-b", queues=1)
    cluster.positions = {("T", "broker-a"): 4, ("%RETRY%g+T", "broker-b"): 9}
    found = await parts.progress("g", "T")
    assert [(one.broker, one.committed, one.frontier, one.lag, one.retry) for one in found] == [
        ("broker-a", 4, 4, 6, False),
        ("broker-b", 0, 0, 10, False),
        ("broker-b", 9, 9, 1, True),
    ]
    standing = await parts.standing("g", "T")
    assert (standing.lag, standing.unread, standing.free, standing.in_flight) == (17, 16, 1, 0)


async def test_a_group_that_begins_at_the_end_has_nothing_to_do_before_it_reads(cluster, parts):
    assert [one.lag for one in await parts.progress("last", "T")] == [0, 0]


async def test_what_a_group_holds_is_said_not_to_be_told(parts):
    with pytest.raises(Unsupported):
        await parts.held("g", "T", 5)
    with pytest.raises(GroupNotFound):
        await parts.held("nope", "T", 5)
    with pytest.raises(TopicNotFound):
        await parts.held("g", "nope", 5)


def stats(*rows):
    """As fastjson writes a table whose keys are objects."""
    entries = ",".join(
        f'{{"brokerName":"b","queueId":{n},"topic":"{topic}"}}:{{"brokerOffset":{end},"consumerOffset":{at}}}'
        for n, (topic, end, at) in enumerate(rows)
    )
    return f'{{"consumeTps":0.0,"offsetTable":{{{entries}}}}}'.encode()


async def test_standings_go_group_by_group_with_retries_at_their_topic(cluster, parts):
    topics = json.dumps({"topicList": ["T", "%RETRY%g_T", "%RETRY%g"]}).encode()
    a, b = cluster.masters["broker-a"], cluster.masters["broker-b"]
    a.on(RequestCode.QUERY_TOPICS_BY_CONSUMER, lambda r: r.answer(0, body=topics))
    b.on(RequestCode.QUERY_TOPICS_BY_CONSUMER, lambda r: r.answer(0, body=b'{"topicList":[]}'))
    rows = stats(("T", 9, 4), ("T", 3, -1), ("%RETRY%g_T", 2, 1), ("%RETRY%g", 5, 5))
    a.on(RequestCode.GET_CONSUME_STATS, lambda r: r.answer(0, body=rows))
    found, after = await parts.standings(0, 100)
    assert after is None
    assert {one.topic: (one.lag, one.unread, one.free) for one in found} == {
        "T": (9, 8, 1),
        "%RETRY%g": (0, 0, 0),
    }
    assert a.of(RequestCode.GET_CONSUME_STATS)[0].fields["topicList"] == "T;%RETRY%g_T;%RETRY%g"
    assert await parts.standings(5, 100) == ([], None)


async def test_a_group_whose_brokers_do_not_all_answer_has_no_standing(cluster, parts):
    await cluster.masters["broker-b"].stop()
    assert await parts.standings(0, 100) == ([], None)


@pytest.mark.parametrize("nonsense", [b"[]", b'{"offsetTable":{"a":{}}}', b'{"offsetTable":7}', b"{{"])
async def test_standings_that_make_no_sense_are_left_out(cluster, parts, nonsense):
    for peer in cluster.masters.values():
        peer.on(RequestCode.QUERY_TOPICS_BY_CONSUMER, lambda r: r.answer(0, body=b'{"topicList":["T"]}'))
        peer.on(RequestCode.GET_CONSUME_STATS, lambda r: r.answer(0, body=nonsense))
    assert await parts.standings(0, 100) == ([], None)


# -- locks ------------------------------------------------------------------------------------------


def locks(request):
    told = json.loads(request.body)
    return request.answer(0, body=json.dumps({"lockOKMQSet": told["mqSet"]}).encode())


async def test_locks_go_to_each_queues_broker_and_only_for_queues_that_there_are(cluster, parts):
    for peer in cluster.masters.values():
        peer.on(RequestCode.LOCK_BATCH_MQ, locks)
        peer.on(RequestCode.UNLOCK_BATCH_MQ, lambda r: r.answer(0))
    wanted = [
        ("T", "broker-a", 0),
        ("T", "broker-b", 0),
        ("T", "broker-b", 9),
        ("T", "x", 0),
        ("nope", "x", 0),
    ]
    assert await parts.lock(ME, "g", "c\udcff", wanted) == wanted[:2]
    assert await parts.lock(ME, "nope", "c", wanted) == []
    (asked,) = cluster.masters["broker-a"].of(RequestCode.LOCK_BATCH_MQ)
    told = json.loads(asked.body)
    assert told["mqSet"] == [{"brokerName": "broker-a", "queueId": 0, "topic": "T"}]
    assert (told["clientId"], told["consumerGroup"], told["onlyThisBroker"]) == ("c?", "g", False)
    await parts.unlock(ME, "g", "c", wanted)
    assert len(cluster.masters["broker-b"].of(RequestCode.UNLOCK_BATCH_MQ)) == 1


async def test_a_broker_that_is_down_locks_nothing_and_spoils_nothing(cluster, parts):
    cluster.masters["broker-a"].on(RequestCode.LOCK_BATCH_MQ, locks)
    cluster.masters["broker-a"].on(RequestCode.UNLOCK_BATCH_MQ, lambda r: r.answer(0))
    wanted = [("T", "broker-a", 0), ("T", "broker-b", 0)]
    await parts.group("g")
    await cluster.masters["broker-b"].stop()
    assert await parts.lock(ME, "g", "c", wanted) == wanted[:1]
    with pytest.raises(BrokerUnavailable):
        await parts.lock(ME, "g", "c", wanted[1:])
    with pytest.raises(BrokerUnavailable):
        await parts.unlock(ME, "g", "c", wanted)


async def test_a_flood_of_invented_topics_is_not_looked_up(cluster, parts):
    assert await parts.lock(ME, "g", "c", [(f"no-{n}", "b", 0) for n in range(500)]) == []
    assert len(cluster.servers.of(RequestCode.GET_ROUTEINFO_BY_TOPIC)) < 50


# -- look-ups ---------------------------------------------------------------------------------------


def record(offset, store_ms, *, topic=b"T", host="127.0.0.1:1", **properties):
    return encode_record(
        topic,
        0,
        offset,
        100 * offset,
        b"x",
        encode_properties(properties),
        sys_flag=0,
        flag=0,
        born_ms=1,
        born_host=pack_host(host),
        store_ms=store_ms,
        store_host=pack_host(host),
    )


def answers(*records):
    return lambda request: request.answer(0, body=b"".join(records))


def finds_nothing(request):
    return request.answer(ResponseCode.QUERY_NOT_FOUND, "can not find message")


async def test_only_what_really_has_the_id_or_the_key_is_found(cluster, parts):
    a, b = cluster.masters["broker-a"], cluster.masters["broker-b"]
    same_hash = (
        record(3, 9, UNIQ_KEY="other", KEYS="kk k3"),
        record(4, 9, topic=b"U", UNIQ_KEY="id", KEYS="k"),
    )
    a.on(RequestCode.QUERY_MESSAGE, answers(record(1, 5, UNIQ_KEY="id", KEYS="j k"), *same_hash))
    b.on(RequestCode.QUERY_MESSAGE, answers(record(2, 7, UNIQ_KEY="id", KEYS="k")))
    found = await parts.find_by_id(ME, "T", "id")
    assert [(one.broker, one.offset) for one in found] == [("broker-b", 2), ("broker-a", 1)]
    assert a.of(RequestCode.QUERY_MESSAGE)[0].fields["_UNIQUE_KEY_QUERY"] == "true"
    for begin, end, limit, offsets in ((0, 9, 9, [2, 1]), (6, 9, 9, [2]), (0, 6, 9, [1]), (0, 9, 1, [2])):
        found = await parts.find_by_key(ME, "T", "k", begin_ms=begin, end_ms=end, limit=limit)
        assert [one.offset for one in found] == offsets
    assert "_UNIQUE_KEY_QUERY" not in a.of(RequestCode.QUERY_MESSAGE)[1].fields


async def test_one_broker_is_enough_for_a_look_up_and_none_is_not(cluster, parts):
    cluster.masters["broker-a"].on(RequestCode.QUERY_MESSAGE, finds_nothing)
    await cluster.masters["broker-b"].stop()
    assert await parts.find_by_id(ME, "T", "id") == []
    await cluster.masters["broker-a"].stop()
    with pytest.raises(BrokerUnavailable):
        await parts.find_by_id(ME, "T", "id")


@pytest.mark.parametrize("text", ["", "\udcff", "k" * 40_000])
async def test_what_no_message_can_have_is_not_asked_for(cluster, parts, text):
    assert await parts.find_by_id(ME, "T", text) == []
    assert await parts.find_by_key(ME, "T", text, begin_ms=0, end_ms=9, limit=9) == []
    assert await parts.find_by_key(ME, "T", "k", begin_ms=9, end_ms=0, limit=9) == []
    assert await parts.find_by_key(ME, "T", "k", begin_ms=0, end_ms=9, limit=0) == []
    assert cluster.masters["broker-a"].of(RequestCode.QUERY_MESSAGE) == []


async def test_an_offset_id_leads_to_its_broker_and_to_no_address_outside_of_the_cluster(cluster, parts):
    view = RequestCode.VIEW_MESSAGE_BY_ID
    a = cluster.masters["broker-a"]
    for peer in cluster.masters.values():
        peer.on(RequestCode.QUERY_MESSAGE, finds_nothing)
        peer.on(view, answers(record(7, 5)))
    found = await parts.find_by_id(ME, "T", encode_offset_message_id(a.address, 700))
    assert [(one.broker, one.offset) for one in found] == [("broker-a", 7)]
    assert (len(a.of(view)), len(cluster.masters["broker-b"].of(view))) == (1, 0)
    for host, offset in (("127.0.0.1:9", 700), (a.address, 701), (a.address, -1)):
        assert await parts.find_by_id(ME, "T", encode_offset_message_id(host, offset)) == []
    a.on(view, lambda request: request.answer(0, body=b"\1" * 300))
    assert await parts.find_by_id(ME, "T", encode_offset_message_id(a.address, 700)) == []
    a.on(view, lambda request: request.answer(1, "can not find message by the offset"))
    assert await parts.find_by_id(ME, "T", encode_offset_message_id(a.address, 700)) == []


async def test_damaged_messages_are_an_error(cluster, parts):
    for peer in cluster.masters.values():
        peer.on(RequestCode.QUERY_MESSAGE, lambda request: request.answer(0, body=b"\0" * 200))
    with pytest.raises(BrokerUnavailable, match="no sense"):
        await parts.find_by_id(ME, "T", "id")
