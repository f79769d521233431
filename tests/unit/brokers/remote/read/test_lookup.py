"""A look-up by place at a scripted broker. What is found by ids and keys is in the contract suite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

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
