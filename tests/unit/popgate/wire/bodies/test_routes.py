"""Texts: what RocketMQ 5.5.0 itself wrote, and protocol facts 5.8 and 6.2."""

import pytest

from popgate.errors import PeerWireError
from popgate.wire.bodies.routes import (
    MOST_QUEUES,
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicRoute,
    decode_route,
    encode_route,
)
from popgate.wire.bodies.static_topics import QueueMapping

RAW = (
    '{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"broker-a",'
    '"cluster":"C","enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a",'
    '"perm":6,"readQueueNums":8,"topicSysFlag":0,"writeQueueNums":8}]'
)
STATIC = (
    ',"topicQueueMappingByBroker":{"broker-a":{"bname":"broker-a","currIdMap":{0:0,1:5},"dirty":false,'
    '"epoch":100,"scope":"__global__","topic":"T","totalQueues":4}}}'
)
BROKER = BrokerData("C", "broker-a", {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"})
ROUTE = TopicRoute((QueueData("broker-a", 8, 8),), (BROKER,))
MAPPING = QueueMapping("T", "__global__", 4, "broker-a", 100, False, {0: 0, 1: 5})


def quoted(text: str) -> bytes:
    for number in "01":
        text = text.replace(f"{{{number}:", f'{{"{number}":').replace(f",{number}:", f',"{number}":')
    return text.encode()


def test_a_route_is_read_with_and_without_quotes() -> None:
    assert decode_route(f"{RAW}}}".encode()) == ROUTE
    assert decode_route(quoted(f"{RAW}}}")) == ROUTE


def test_a_route_is_written_as_a_name_server_does_with_quotes() -> None:
    assert encode_route(ROUTE) == quoted(f"{RAW}}}")


def test_the_route_of_a_static_topic_is_read_and_written() -> None:
    route = decode_route((RAW + STATIC).encode())
    assert route == TopicRoute(ROUTE.queues, ROUTE.brokers, mappings={"broker-a": MAPPING})
    assert route.encode() == quoted(RAW + STATIC)


def test_everything_of_a_route_comes_back() -> None:
    route = TopicRoute(
        (QueueData("a", 1, 2, 4, 3), QueueData("b", 0, 0, 0)),
        (BrokerData("C", "a", {}, "zone-1", True), BrokerData("", "b", {3: "x:1"})),
        "a:4;b:2",
        {"a": MAPPING},
        {"a": ("filter:1",)},
    )
    assert decode_route(route.encode()) == route


def test_what_a_route_does_not_say_is_empty() -> None:
    assert decode_route(b"{}") == TopicRoute()
    assert decode_route(b'{"orderTopicConf":null,"queueDatas":null,"more":1}') == TopicRoute()


def test_perm_bits_say_who_may_do_what() -> None:
    assert [
        (q.readable, q.writable) for q in (QueueData("a", 1, 1, perm) for perm in (0, 2, 4, 6, 7, 9))
    ] == [
        (False, False),
        (False, True),
        (True, False),
        (True, True),
        (True, True),
        (False, False),
    ]


def test_the_master_is_the_broker_with_id_0() -> None:
    assert BROKER.master == "10.0.0.1:10911"
    assert BrokerData("C", "a", {1: "slave:1"}).master is None
    assert ROUTE.broker("broker-a") == BROKER
    assert ROUTE.broker("other") is None


def test_the_queues_of_ordered_topics() -> None:
    assert TopicRoute(order_conf="broker-a:4;b:8;").order_queues() == {"broker-a": 4, "b": 8}
    assert TopicRoute().order_queues() == {}


@pytest.mark.parametrize("conf", ["a", "a:", "a:x", "a:-1", f"a:{MOST_QUEUES + 1}", "a:1;;b"])
def test_an_order_of_another_form_is_refused(conf: str) -> None:
    with pytest.raises(PeerWireError):
        TopicRoute(order_conf=conf).order_queues()


def test_the_clusters_are_read_and_written() -> None:
    raw = (
        '{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":'
        '"broker-a","cluster":"C","enableActingMaster":false}},"clusterAddrTable":{"C":["broker-a"]}}'
    )
    info = ClusterInfo.decode(raw.encode())
    assert info == ClusterInfo({"broker-a": BROKER}, {"C": ("broker-a",)})
    assert info.encode() == quoted(raw)
    assert ClusterInfo.decode(b"{}") == ClusterInfo()


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b'{"queueDatas":{}}',
        b'{"queueDatas":[1]}',
        b'{"queueDatas":[{"brokerName":1}]}',
        b'{"queueDatas":[{"readQueueNums":-1}]}',
        b'{"queueDatas":[{"readQueueNums":2147483647}]}',
        b'{"queueDatas":[{"writeQueueNums":65537}]}',
        b'{"queueDatas":[{"perm":-6}]}',
        b'{"brokerDatas":[{"brokerAddrs":{"x":"a"}}]}',
        b'{"brokerDatas":[{"brokerAddrs":{"0":1}}]}',
        b'{"brokerDatas":[{"brokerAddrs":{"0":null}}]}',
        b'{"brokerDatas":[{"brokerAddrs":[]}]}',
        b'{"brokerDatas":[{"brokerAddrs":{{"a":1}:"x"}}]}',
        b'{"orderTopicConf":1}',
        b'{"filterServerTable":{"a":[1]}}',
        b'{"filterServerTable":{{"a":1}:["b"]}}',
        b'{"topicQueueMappingByBroker":{"a":[]}}',
        b'{"topicQueueMappingByBroker":{"a":{"totalQueues":70000}}}',
        b'{"topicQueueMappingByBroker":{"a":{"currIdMap":{"x":1}}}}',
        b'{"topicQueueMappingByBroker":{"a":{"currIdMap":{"1":"x"}}}}',
    ],
)
def test_a_damaged_route_is_refused(body: bytes) -> None:
    with pytest.raises(PeerWireError):
        decode_route(body)


@pytest.mark.parametrize(
    "body",
    [
        b"1",
        b'{"brokerAddrTable":[]}',
        b'{"clusterAddrTable":{"C":"a"}}',
        b'{"clusterAddrTable":{{"a":1}:["b"]}}',
    ],
)
def test_damaged_clusters_are_refused(body: bytes) -> None:
    with pytest.raises(PeerWireError):
        ClusterInfo.decode(body)
