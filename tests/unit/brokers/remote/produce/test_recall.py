"""Taking back delayed messages of a scripted cluster (protocol facts 3.9)."""

from __future__ import annotations

import base64

import pytest

from brokers.remote.broker import RemoteBroker
from brokers.remote.produce.recall import read_recall_handle
from popgate.context import Context
from popgate.errors import BadRequest, BrokerUnavailable, NotFound, TopicNotFound
from popgate.wire.frames.codes import RequestCode, ResponseCode

CONTEXT = Context(client_id="c")


def packed(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


HANDLE = packed("v1 T broker-a 1735689600001 01AB")


@pytest.fixture
async def broker(make_broker, asking_cluster) -> RemoteBroker:
    for peer in asking_cluster[1].values():
        peer.on(RequestCode.RECALL_MESSAGE, lambda request: request.answer(0, fields={"msgId": "01AB"}))
    return await make_broker()


def test_a_handle_of_rocketmqs_own_is_read():
    handle = "djEgRGVsYXlUb3BpYyBicm9rZXItYSAxNzM1Njg5NjAwMDAxIDAxQUI="  # protocol facts 10
    assert read_recall_handle(handle) == ("DelayTopic", "broker-a", 1_735_689_600_001, "01AB")


@pytest.mark.parametrize(
    "handle",
    [
        *("", "x", "====", "\u0661" * 8, "A" * 9_000, packed("v1 T b")),
        *(packed("v2 T b 1 i"), packed("v1 T b x i"), packed("v1 T b " + "9" * 40 + " i")),
    ],
)
async def test_a_malformed_handle_is_refused(broker, handle):
    with pytest.raises(BadRequest):
        await broker.recall(CONTEXT, "T", handle)


async def test_the_broker_of_the_handle_is_asked(broker, asking_cluster):
    assert await broker.recall(CONTEXT, "T", HANDLE) == "01AB"
    (request,) = asking_cluster[1]["broker-a"].of(RequestCode.RECALL_MESSAGE)
    assert (request.fields["topic"], request.fields["recallHandle"]) == ("T", HANDLE)
    assert request.fields["bname"] == "broker-a"


async def test_what_was_recalled_here_is_not_there_any_more(broker, asking_cluster):
    await broker.recall(CONTEXT, "T", HANDLE)
    with pytest.raises(NotFound):
        await broker.recall(CONTEXT, "T", HANDLE)
    assert len(asking_cluster[1]["broker-a"].of(RequestCode.RECALL_MESSAGE)) == 1


async def test_a_handle_of_another_topic_or_broker_reaches_nothing(broker):
    with pytest.raises(BadRequest):
        await broker.recall(CONTEXT, "T", packed("v1 U broker-a 1735689600001 01AB"))
    with pytest.raises(TopicNotFound):
        await broker.recall(CONTEXT, "unknown", HANDLE)
    with pytest.raises(NotFound):
        await broker.recall(CONTEXT, "T", packed("v1 T elsewhere 1735689600001 01AB"))


@pytest.mark.parametrize(
    ("code", "error"),
    [(ResponseCode.ILLEGAL_OPERATION, NotFound), (ResponseCode.SERVICE_NOT_AVAILABLE, BrokerUnavailable)],
)
async def test_a_refusal_is_told_and_may_be_tried_again(broker, asking_cluster, code, error):
    peer = asking_cluster[1]["broker-a"]
    peer.on(RequestCode.RECALL_MESSAGE, lambda request: request.answer(code, "too late"))
    for _ in range(2):
        with pytest.raises(error):
            await broker.recall(CONTEXT, "T", HANDLE)
