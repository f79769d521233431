"""Offsets by time of a logic queue: each piece is asked for its own, by the number of its physical queue."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from popgate.context import Context
from popgate.errors import BrokerUnavailable, TopicNotFound
from popgate.wire.bodies.routes import BrokerData, QueueData, TopicRoute
from popgate.wire.bodies.static_topics import QueueMapping, QueuePiece
from popgate.wire.frames.codes import RequestCode, ResponseCode

ME = Context(client_id="me")
SEARCH = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
OLD = QueuePiece(0, 3, "broker-a", logic_offset=0)
NEW = QueuePiece(1, 5, "broker-b", logic_offset=10_000)
"""As RocketMQ keeps them: it never learns where a piece ended."""


class Cluster:
    """A static topic S whose queue 1 went from queue 3 of broker-a to queue 5 of broker-b."""

    def __init__(self, servers, masters):
        self.masters = masters
        self.pieces = [OLD, NEW]
        self.found = {"broker-a": 0, "broker-b": 0}
        self.ends = {"broker-a": 30, "broker-b": 20}
        brokers = tuple(BrokerData("c", name, {0: peer.address}) for name, peer in masters.items())
        queues = tuple(QueueData(name, 8, 8) for name in masters)
        mappings = {
            name: QueueMapping("S", "__global__", 2, name, 1, current={1: 5} if name == "broker-b" else {})
            for name in masters
        }
        servers.topics["S"] = TopicRoute(queues, brokers, mappings=mappings)
        for name, peer in masters.items():
            peer.on(SEARCH, lambda r, name=name: r.answer(0, fields={"offset": str(self.found[name])}))
            peer.on(RequestCode.GET_MAX_OFFSET, lambda r, name=name: self.end(r, name))
        leader = masters["broker-b"]
        leader.on(RequestCode.GET_TOPIC_CONFIG, self.config)
        leader.on(RequestCode.GET_MIN_OFFSET, lambda r: r.answer(0, fields={"offset": "1"}))

    def end(self, request, name):
        """Of the physical queue of a piece, or of the whole queue."""
        end = self.ends[name] if request.fields.get("lo") == "false" else 10_020
        return request.answer(0, fields={"offset": str(end)})

    def config(self, request):
        assert (request.fields["topic"], request.fields["lo"]) == ("S", "true")
        hosted = QueueMapping("S", "__global__", 2, "broker-b", 1, hosted={1: tuple(self.pieces)}).table()
        told = {"topicName": "S", "readQueueNums": 8, "writeQueueNums": 8, "mappingDetail": hosted}
        return request.answer(0, body=json.dumps(told).encode())

    def asked(self, broker):
        return [(one.fields["queueId"], one.fields["lo"]) for one in self.masters[broker].of(SEARCH)]


@pytest.fixture
def cluster(asking_cluster):
    return Cluster(*asking_cluster)


@pytest.fixture
async def broker(cluster, make_broker):
    return await make_broker(quiet=True)


@pytest.mark.parametrize(
    ("old", "new", "offset"),
    [
        pytest.param(20, 7, 20, id="in the older piece"),
        pytest.param(0, 7, 1, id="before the older piece, whose first message is gone"),
        pytest.param(29, 7, 29, id="the last of the older piece"),
        pytest.param(30, 12, 10_012, id="behind the older piece"),
        pytest.param(30, 0, 10_000, id="the first of the newer piece"),
        pytest.param(-1, 12, 10_012, id="a broker that says so where it has nothing so new"),
        pytest.param(-1, -1, 10_020, id="no message is so new"),
    ],
)
async def test_the_first_piece_that_has_the_message_tells_its_offset(cluster, broker, old, new, offset):
    cluster.found = {"broker-a": old, "broker-b": new}
    assert await broker.offset_at(ME, "S", "broker-b", 1, 1_000) == offset
    assert cluster.asked("broker-a") == [("3", "false")]
    assert cluster.asked("broker-b") == ([] if 0 <= old < 30 else [("5", "false")])


async def test_a_piece_that_nothing_was_written_to_is_passed_over(cluster, broker):
    cluster.ends["broker-a"] = 0
    cluster.found = {"broker-a": 0, "broker-b": 12}
    assert await broker.offset_at(ME, "S", "broker-b", 1, 1_000) == 10_012


async def test_what_was_written_to_an_old_queue_after_its_piece_does_not_count(cluster, broker):
    cluster.pieces = [OLD, replace(NEW, logic_offset=30)]
    cluster.ends["broker-a"] = 40
    cluster.found = {"broker-a": 35, "broker-b": 12}
    assert await broker.offset_at(ME, "S", "broker-b", 1, 1_000) == 42


async def test_a_piece_that_does_not_begin_at_the_beginning_of_its_queue(cluster, broker):
    cluster.pieces = [replace(OLD, start_offset=2), replace(NEW, start_offset=7)]
    cluster.found = {"broker-a": 20, "broker-b": 0}
    assert await broker.offset_at(ME, "S", "broker-b", 1, 1_000) == 18
    cluster.found["broker-a"] = 30
    assert await broker.offset_at(ME, "S", "broker-b", 1, 1_000) == 10_000


@pytest.mark.parametrize(
    "known",
    [
        pytest.param([OLD], id="before the remap"),
        pytest.param([OLD, replace(NEW, logic_offset=-1)], id="in the middle of it"),
        pytest.param([], id="nothing of the queue"),
    ],
)
async def test_a_broker_that_leads_the_queue_no_longer_is_not_believed(cluster, broker, known):
    cluster.pieces = known
    with pytest.raises(BrokerUnavailable, match="queue 1 of topic S moves"):
        await broker.offset_at(ME, "S", "broker-b", 1, 1_000)
    assert cluster.asked("broker-a") == cluster.asked("broker-b") == []


async def test_a_route_from_before_a_remap_is_looked_up_again(cluster, broker, asking_cluster):
    servers, masters = asking_cluster
    now = servers.topics["S"]
    mappings = {
        name: QueueMapping("S", "__global__", 2, name, 1, current={1: 3} if name == "broker-a" else {})
        for name in masters
    }
    servers.topics["S"] = replace(now, mappings=mappings)
    masters["broker-a"].on(RequestCode.GET_MIN_OFFSET, lambda r: r.answer(0, fields={"offset": "1"}))
    masters["broker-a"].on(RequestCode.GET_TOPIC_CONFIG, cluster.config)  # it knows the pieces, and moved
    assert (await broker.bounds(ME, "S", "broker-a", 1)).minimum == 1
    servers.topics["S"] = now
    cluster.found = {"broker-a": 30, "broker-b": 12}
    assert await broker.offset_at(ME, "S", "broker-a", 1, 1_000) == 10_012


async def test_a_queue_of_too_many_pieces_is_refused(cluster, broker):
    cluster.pieces = [*(replace(OLD, generation=number) for number in range(64)), NEW]
    with pytest.raises(BrokerUnavailable, match="has 65 pieces, the limit is 64"):
        await broker.offset_at(ME, "S", "broker-b", 1, 1_000)


async def test_what_a_broker_refuses_is_told(cluster, broker):
    cluster.masters["broker-a"].on(SEARCH, lambda r: r.answer(ResponseCode.SERVICE_NOT_AVAILABLE, "not now"))
    with pytest.raises(BrokerUnavailable, match=r"broker-a.*not now"):
        await broker.offset_at(ME, "S", "broker-b", 1, 1_000)
    leader = cluster.masters["broker-b"]
    leader.on(RequestCode.GET_TOPIC_CONFIG, lambda r: r.answer(ResponseCode.TOPIC_NOT_EXIST, "gone"))
    with pytest.raises(TopicNotFound):
        await broker.offset_at(ME, "S", "broker-b", 1, 1_000)
    leader.on(RequestCode.GET_TOPIC_CONFIG, lambda r: r.answer(0, body=b'{"mappingDetail": 1}'))
    with pytest.raises(BrokerUnavailable, match="makes no sense"):
        await broker.offset_at(ME, "S", "broker-b", 1, 1_000)
