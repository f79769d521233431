"""brokers.remote.produce.reply: replies out to whoever waits, and in for clients of this replica."""

from __future__ import annotations

from typing import Any

import pytest

from popgate.context import Context
from popgate.errors import BadRequest, BrokerUnavailable, GatewayError, NotFound, TopicNotFound
from popgate.model import Message, StoredMessage
from popgate.testing.peers import PeerConnection, ScriptedNameServer, ScriptedPeer
from popgate.wire.frames.codes import RequestCode
from popgate.wire.frames.remoting import Command
from popgate.wire.messages.properties import encode_properties

REPLY, PUSH = int(RequestCode.SEND_REPLY_MESSAGE_V2), int(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
CONTEXT = Context(client_id="c")
BLOCK = encode_properties({"REPLY_TO_CLIENT": "asker", "CORRELATION_ID": "7", "UNIQ_KEY": "M"})
Cluster = tuple[ScriptedNameServer, dict[str, ScriptedPeer]]


@pytest.fixture
def master(asking_cluster: Cluster) -> ScriptedPeer:
    servers, masters = asking_cluster
    servers.add_topic("DefaultCluster_REPLY_TOPIC", "broker-a", queues=1)
    return masters["broker-a"]


@pytest.fixture
async def broker(make_broker: Any, master: ScriptedPeer) -> Any:
    return await make_broker()


@pytest.fixture
async def line(broker: Any, master: ScriptedPeer) -> PeerConnection:
    broker.connections.connect(master.address)
    await master.until(lambda: bool(master.connections))
    return master.connections[0]


def reply(**more: Any) -> Message:
    return Message("DefaultCluster_REPLY_TOPIC", b"answer", message_id="M", properties=BLOCK, **more)


@pytest.mark.parametrize("broker_name", ["", "broker-a"])
async def test_a_reply_goes_to_a_broker_of_the_cluster(
    broker: Any, master: ScriptedPeer, broker_name: str
) -> None:
    master.on(REPLY, lambda request: request.answer(0, fields={"msgId": "0", "queueId": "0"}))
    sent = await broker.send_reply(CONTEXT, reply(broker=broker_name, producer_group="g"))
    assert (sent.message_id, sent.broker) == ("M", "broker-a")
    (asked,) = master.of(REPLY)
    assert asked.body == b"answer"
    assert asked.fields["a"] == "g"
    assert asked.fields["b"] == "DefaultCluster_REPLY_TOPIC"
    assert asked.fields["i"].encode() == BLOCK
    assert asked.fields["n"] == "broker-a"


async def test_a_reply_that_did_not_arrive_is_told_as_such(broker: Any, master: ScriptedPeer) -> None:
    told = "push reply message fail, channel of <asker> not found."
    master.on(REPLY, lambda request: request.answer(1, told))
    with pytest.raises(NotFound, match=r"did not reach client 'asker'.*not found"):
        await broker.send_reply(CONTEXT, reply())
    master.on(REPLY, lambda request: request.answer(16, "no"))
    with pytest.raises(GatewayError, match="NO_PERMISSION"):
        await broker.send_reply(CONTEXT, reply())


async def test_a_reply_that_cannot_go_anywhere_is_refused(broker: Any, asking_cluster: Cluster) -> None:
    with pytest.raises(BadRequest, match="REPLY_TO_CLIENT"):
        await broker.send_reply(CONTEXT, Message("DefaultCluster_REPLY_TOPIC", b"x"))
    with pytest.raises(TopicNotFound):
        await broker.send_reply(CONTEXT, Message("Other_REPLY_TOPIC", b"x", properties=BLOCK))
    with pytest.raises(BrokerUnavailable):
        await broker.send_reply(CONTEXT, reply(broker="gone"))


PUSHED = {
    "topic": "DefaultCluster_REPLY_TOPIC",
    "producerGroup": "g",
    "queueId": "0",
    "sysFlag": "1",
    "flag": "3",
    "bornTimestamp": "5",
    "bornHost": "10.0.0.1:1",
    "storeHost": "10.0.0.2:2",
    "storeTimestamp": "6",
    "properties": BLOCK.decode(),
}


async def test_a_reply_for_a_client_here_is_handed_to_it(broker: Any, line: PeerConnection) -> None:
    got: list[tuple[str, StoredMessage]] = []

    def take(client_id: str, message: StoredMessage) -> bool:
        got.append((client_id, message))
        return True

    broker.on_reply(take)
    answer = await line.ask(Command(PUSH, fields=dict(PUSHED), body=b"answer"))
    assert answer.code == 0
    ((client_id, message),) = got
    assert client_id == "asker"
    assert message == StoredMessage(
        "DefaultCluster_REPLY_TOPIC", "broker-a", 0, 0, 0, 1, 3, 5, "10.0.0.1:1", 6, "10.0.0.2:2",
        b"answer", BLOCK,
    )  # fmt: skip


async def test_a_reply_that_nobody_waits_for_is_refused(broker: Any, line: PeerConnection) -> None:
    answer = await line.ask(Command(PUSH, fields=dict(PUSHED)))
    assert (answer.code, answer.remark) == (1, "client 'asker' does not wait here")
    broker.on_reply(lambda client_id, message: False)
    assert (await line.ask(Command(PUSH, fields={}))).code == 1


@pytest.mark.parametrize("fields", [{"queueId": "x"}, {"properties": "k\x01" + "v" * 40_000}])
async def test_scenario_24_a_reply_that_makes_no_sense_is_refused(
    line: PeerConnection, fields: dict[str, str]
) -> None:
    answer = await line.ask(Command(PUSH, fields={**PUSHED, **fields}))
    assert answer.code == 1
    assert "cannot be read" in answer.remark
