"""popgate.spark.guarantees.half_messages before a gateway that takes requests and does not answer."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from popgate.blocking import BlockingConnection
from popgate.errors import GatewayError
from popgate.queue_client import HalfMessage, QueueClient
from popgate.spark.errors import Code, SparkSourceError
from popgate.spark.guarantees.half_messages import commit_halves, drop_halves
from popgate.spark.options.sink_options import SinkOptions, read_sink_options
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command, RemotingWire, encode_command

SHORT_S = 0.1
HALVES = [HalfMessage("t", "b", at, 100 + at, f"id{at}") for at in range(6)]


class Gateways:
    """The far end of each connection that was asked for."""

    def __init__(self) -> None:
        self.near: list[BlockingConnection] = []
        self.far: list[socket.socket] = []
        self.answers = 0
        """So many requests of the next connection are answered; the others never."""
        self._open = ExitStack()

    def close(self) -> None:
        self._open.close()

    @contextmanager
    def connect(self, _options: Any) -> Iterator[QueueClient]:
        near, far = socket.socketpair()
        connection = self._open.enter_context(BlockingConnection(near, "far:1", timeout_s=SHORT_S))
        self.near.append(connection)
        self.far.append(self._open.enter_context(far))
        for opaque in range(1, self.answers + 1):
            request = Command(RequestCode.END_TRANSACTION, opaque)
            far.sendall(encode_command(request.answer(ResponseCode.SUCCESS)))
        try:
            yield QueueClient(connection)
        except GatewayError as error:
            raise SparkSourceError(Code.GATEWAY, error.sentence) from error

    def heard(self, number: int) -> list[str]:
        """The ids of the half messages that were to be ended by this connection."""
        far, wire, ids = self.far[number], RemotingWire(), []
        far.setblocking(False)
        wire.receive(far.recv(1 << 20))
        while (command := wire.next_event()) is not None:
            ids.append(command.fields["msgId"])
        return ids


@pytest.fixture
def gateways() -> Iterator[Gateways]:
    made = Gateways()
    yield made
    made.close()


def given(in_flight: int) -> SinkOptions:
    told = {"endpoints": "a:1", "topic": "t", "sinkId": "s", "ledgerTopic": "l", "sendTimeoutMs": "100"}
    told |= {"deliveryGuarantee": "transactional", "sendInFlight": str(in_flight)}
    return read_sink_options(told)


def test_an_abort_waits_once_for_a_gateway_that_hangs(gateways: Gateways) -> None:
    """And not once for each half message, of which a batch may have a hundred thousand."""
    assert drop_halves(HALVES, given(2), connect=gateways.connect) == len(HALVES)
    assert gateways.heard(0) == ["id0", "id1"]


def test_an_abort_counts_what_was_answered_before_the_gateway_hung(gateways: Gateways) -> None:
    gateways.answers = 3
    assert drop_halves(HALVES, given(4), connect=gateways.connect) == 3


def test_a_commit_leaves_a_connection_that_does_not_answer(gateways: Gateways) -> None:
    def there(topics: set[str]) -> dict[str, set[str]]:
        gateways.answers = len(HALVES)
        return {topic: {"id0"} for topic in topics}

    options = given(len(HALVES))
    commit_halves(HALVES, options, there, lambda: None, connect=gateways.connect, rest=lambda _seconds: None)
    assert [connection.is_open for connection in gateways.near] == [False, True]
    assert gateways.heard(1) == ["id1", "id2", "id3", "id4", "id5"]


def test_nothing_is_committed_when_another_driver_came_while_the_way_was_sought(gateways: Gateways) -> None:
    def check() -> None:
        if gateways.near:
            raise SparkSourceError(Code.LEDGER, "another driver has come")

    with pytest.raises(SparkSourceError, match="another driver has come"):
        commit_halves(HALVES, given(2), lambda _topics: {}, check, connect=gateways.connect)
    gateways.near[0].close()
    assert gateways.far[0].recv(1) == b""
