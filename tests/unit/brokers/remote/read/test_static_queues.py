"""Offsets by time of a logic queue: each piece is asked for its own, by the number of its physical queue."""

from __future__ import annotations

import json

import pytest

from popgate.context import Context
from popgate.errors import BrokerUnavailable, TopicNotFound
from popgate.wire.bodies.routes import BrokerData, QueueData, TopicRoute
from popgate.wire.bodies.static_topics import QueueMapping, QueuePiece
from popgate.wire.frames.codes import RequestCode, ResponseCode

ME = Context(client_id="me")
SEARCH = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
OLD = QueuePiece(0, 3, "broker-a", logic_offset=0, start_offset=2, end_offset=32)
NEW = QueuePiece(1, 5, "broker-b", logic_offset=10_000, start_offset=7)


class Cluster:
    """A static topic S whose queue 1 went from queue 3 of broker-a to queue 5 of broker-b."""

    def __init__(self, servers, masters):
        self.masters = masters
        self.pieces = [OLD, NEW]
        self.found = {"broker-a": 0, "broker-b": 0}
        brokers = tuple(BrokerData("c", name, {0: peer.address}) for name, peer in masters.items())
        queues = tuple(QueueData(name, 8, 8) for name in masters)
        mappings = {
            name: QueueMapping("S", "__global__", 2, name, 1, current={1: 5} if name == "broker-b" else {})
            for name in masters
        }
        servers.topics["S"] = TopicRoute(queues, brokers, mappings=mappings)
        for name, peer in masters.items():
            peer.on(SEARCH, lambda r, name=name: r.answer(0, fields={"offset": str(self.found[name])}))
        leader = masters["broker-b"]
        leader.on(RequestCode.GET_TOPIC_CONFIG, self.config)
        for code, bound in ((RequestCode.GET_MIN_OFFSET, 1), (RequestCode.GET_MAX_OFFSET, 10_020)):
            leader.on(code, lambda r, bound=bound: r.answer(0, fields={"offset": str(bound)}))

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
        pytest.param(20, 7, 18, id="in the older piece"),
        pytest.param(0, 7, 1, id="before the older piece"),
        pytest.param(31, 7, 29, id="the last of the older piece"),
        pytest.param(32, 7, 10_000, id="behind the older piece"),
        pytest.param(40, 12, 10_005, id="in the newer piece, and its old queue was written to again"),
        pytest.param(32, 0, 10_000, id="the newer piece does not begin at the beginning of its queue"),
        pytest.param(-1, -1, 10_020, id="no message is so new"),
    ],
)
async def test_the_first_piece_that_has_the_message_tells_its_offset(cluster, broker, old, new, offset):
    cluster.found = {"broker-a": old, "broker-b": new}
    assert await broker.offset_at(ME, "S", "broker-b", 1, 1_000) == offset
    assert cluster.asked("broker-a") == [("3", "false")]
    assert cluster.asked("broker-b") == ([] if 0 <= old < 32 else [("5", "false")])


async def test_a_piece_whose_place_is_not_known_yet_is_left_out(cluster, broker):
    cluster.pieces = [OLD, QueuePiece(1, 5, "broker-b", logic_offset=-1)]
    cluster.found["broker-a"] = 32
    assert await broker.offset_at(ME, "S", "broker-b", 1, 1_000) == 10_020
    assert cluster.asked("broker-b") == []


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
