"""Texts: what RocketMQ 5.5.0 itself wrote."""

import pytest

from popgate.errors import PeerWireError
from popgate.wire.bodies.heartbeats import (
    POP,
    ClientCheck,
    Connection,
    ConsumerConnection,
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
    decode_producer_connections,
    encode_producer_connections,
)

SUBSCRIBED = (
    '{"classFilterMode":false,"codeSet":[2598919],"expressionType":"TAG","subString":"TagA||TagB",'
    '"subVersion":1700000000000,"tagsSet":["TagA"],"topic":"T"}'
)
SUBSCRIPTION = SubscriptionData("T", "TagA||TagB", "TAG", ("TagA",), (2_598_919,), 1_700_000_000_000)


def test_a_heartbeat_is_that_of_java() -> None:
    text = (
        '{"clientID":"cid","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","consumeType":'
        f'"CONSUME_POP","groupName":"g","messageModel":"CLUSTERING","subscriptionDataSet":[{SUBSCRIBED}],'
        '"unitMode":false}],"heartbeatFingerprint":0,"producerDataSet":[{"groupName":"pg"}],"withoutSub":false}'
    ).encode()
    heartbeat = HeartbeatData("cid", ("pg",), (ConsumerData("g", (SUBSCRIPTION,), POP),))
    assert HeartbeatData.decode(text) == heartbeat
    assert heartbeat.encode() == text


def test_a_heartbeat_of_the_second_kind_comes_back() -> None:
    heartbeat = HeartbeatData("c", (), (ConsumerData("g", unit_mode=True),), 77, True)
    assert HeartbeatData.decode(heartbeat.encode()) == heartbeat


def test_the_connections_of_a_group_are_those_of_java() -> None:
    text = (
        '{"connectionSet":[{"clientAddr":"10.0.0.9:1","clientId":"c","language":"JAVA","version":479}],'
        '"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY","messageModel":'
        f'"CLUSTERING","subscriptionTable":{{"T":{SUBSCRIBED}}}}}'
    ).encode()
    connections = ConsumerConnection((Connection("c", "10.0.0.9:1", "JAVA", 479),), {"T": SUBSCRIPTION})
    assert ConsumerConnection.decode(text) == connections
    assert connections.encode() == text


def test_the_connections_of_producers_come_back() -> None:
    connections = (Connection("c", "10.0.0.9:1", "JAVA", 479), Connection("d"))
    assert decode_producer_connections(encode_producer_connections(connections)) == connections


def test_the_check_of_a_client_comes_back() -> None:
    check = ClientCheck("c", "g", SubscriptionData("T", "a > 1", "SQL92", version=5))
    assert ClientCheck.decode(check.encode()) == check
    spaced = ClientCheck("c", "g", SubscriptionData("T"), "ns")
    assert ClientCheck.decode(spaced.encode()) == spaced


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b'{"clientID":1}',
        b'{"producerDataSet":{}}',
        b'{"producerDataSet":["g"]}',
        b'{"consumerDataSet":[{"subscriptionDataSet":[1]}]}',
        b'{"consumerDataSet":[{"subscriptionDataSet":[{"tagsSet":[1]}]}]}',
        b'{"consumerDataSet":[{"subscriptionDataSet":[{"codeSet":["x"]}]}]}',
        b'{"consumerDataSet":[{"subscriptionDataSet":[{"codeSet":[1.5]}]}]}',
        b'{0:1,"consumerDataSet":[{"subscriptionDataSet":[{"codeSet":[9223372036854775808]}]}]}',
        b'{"consumerDataSet":[{"subscriptionDataSet":[{"subVersion":1.5}]}]}',
        b'{"heartbeatFingerprint":[]}',
    ],
)
def test_a_damaged_heartbeat_is_refused(body: bytes) -> None:
    with pytest.raises(PeerWireError):
        HeartbeatData.decode(body)


def test_codes_of_tags_may_be_text() -> None:
    """As RocketMQ's classic client for Go writes them."""
    body = b'{"consumerDataSet":[{"subscriptionDataSet":[{"codeSet":["97","-98"],"tagsSet":["a","b"]}]}]}'
    (consumer,) = HeartbeatData.decode(body).consumers
    assert consumer.subscriptions[0].codes == (97, -98)
