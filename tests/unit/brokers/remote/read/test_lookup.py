"""A look-up by place at a scripted broker. What is found by ids and keys is in the contract suite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from popgate.answers import AnswerTooLarge
from popgate.context import Context
from popgate.errors import BadRequest, NotFound
from popgate.testing.peers import ScriptedNameServer, ScriptedPeer
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.messages.hosts import pack_host
from popgate.wire.messages.records import encode_record

Cluster = tuple[ScriptedNameServer, dict[str, ScriptedPeer]]

HOST = pack_host("127.0.0.1:10911")
RECORD = encode_record(b"T", 1, 7, 500, b"body", b"", 0, 0, 1, HOST, 2, HOST)
VIEW = RequestCode.VIEW_MESSAGE_BY_ID


@pytest.fixture
async def finding(make_broker: Callable[..., Any]) -> Any:
    made: Any = await make_broker(quiet=True)
    return made


async def test_the_broker_that_is_named_is_asked(finding: Any, asking_cluster: Cluster) -> None:
    _, peers = asking_cluster
    peers["broker-b"].on(VIEW, lambda request: request.answer(ResponseCode.SUCCESS, body=RECORD))
    found = await finding.at_place(Context(), "broker-b", 500)
    assert (found.broker, found.topic, found.queue_id, found.offset) == ("broker-b", "T", 1, 7)
    # What begins there is another message, or none.
    with pytest.raises(NotFound):
        await finding.at_place(Context(), "broker-b", 501)


@pytest.mark.parametrize("body", [b"", b"nonsense", RECORD[:-1]])
async def test_what_is_no_message_is_not_found(finding: Any, asking_cluster: Cluster, body: bytes) -> None:
    _, peers = asking_cluster
    peers["broker-a"].on(VIEW, lambda request: request.answer(ResponseCode.SUCCESS, body=body))
    with pytest.raises(NotFound):
        await finding.at_place(Context(), "broker-a", 500)


async def test_a_refusal_is_not_found(finding: Any, asking_cluster: Cluster) -> None:
    _, peers = asking_cluster
    peers["broker-a"].on(VIEW, lambda request: request.answer(ResponseCode.SYSTEM_ERROR, "none there"))
    with pytest.raises(NotFound):
        await finding.at_place(Context(), "broker-a", 500)


async def test_a_broker_that_is_not_there_is_a_mistake(finding: Any) -> None:
    with pytest.raises(BadRequest, match="elsewhere"):
        await finding.at_place(Context(), "elsewhere", 500)


async def test_more_messages_than_fit_into_an_answer_cost_no_connection(
    make_broker: Callable[..., Any], asking_cluster: Cluster
) -> None:
    """A broker does not look at the size of what it returns: a gateway asks for fewer then."""
    _, peers = asking_cluster
    newest_first = [
        encode_record(b"T", 1, n, n, bytes(10_000), b"KEYS\x01k\x02", 0, 0, 1, HOST, 100 + n, HOST)
        for n in range(19, -1, -1)
    ]

    def query(request: Any) -> Any:
        most = int(request.fields["maxNum"])
        return request.answer(ResponseCode.SUCCESS, body=b"".join(newest_first[:most]))

    peers["broker-a"].on(RequestCode.QUERY_MESSAGE, query)
    peers["broker-b"].on(
        RequestCode.QUERY_MESSAGE, lambda request: request.answer(ResponseCode.QUERY_NOT_FOUND)
    )
    finding = await make_broker(quiet=True, max_frame_bytes=64 * 1024)
    found = await finding.find_by_key(Context(), "T", "k", begin_ms=0, end_ms=1_000, limit=20)
    assert [message.offset for message in found] == [19, 18, 17, 16, 15, 14]
    assert finding.figures()["connections_lost_total"] == 0


async def test_one_message_that_fits_into_no_answer_is_told(
    make_broker: Callable[..., Any], asking_cluster: Cluster
) -> None:
    _, peers = asking_cluster
    for peer in peers.values():
        peer.on(
            RequestCode.QUERY_MESSAGE,
            lambda request: request.answer(ResponseCode.SUCCESS, body=bytes(90_000)),
        )
    finding = await make_broker(quiet=True, max_frame_bytes=64 * 1024)
    with pytest.raises(AnswerTooLarge, match="answered QUERY_MESSAGE with 90000 bytes"):
        await finding.find_by_key(Context(), "T", "k", begin_ms=0, end_ms=1_000, limit=20)
    assert finding.figures()["connections_lost_total"] == 0
