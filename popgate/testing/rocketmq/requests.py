"""A single request to a server of RocketMQ over a connection of its own, for starting and monitoring it."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from typing import Any

from popgate.wire.frames.codes import RequestCode
from popgate.wire.frames.remoting import Command, RemotingWire
from popgate.wire.json_syntax.fastjson import loads

ANSWERED_WITHIN_S = 60.0
"""On a machine of two cores a server of Java stands still for seconds, and answers all the same."""


def ask(
    address: str,
    code: int,
    fields: Mapping[str, str] | None = None,
    body: bytes = b"",
    *,
    timeout_s: float = ANSWERED_WITHIN_S,
) -> Command:
    """The answer, whatever it says. Raises OSError (also TimeoutError), PeerWireError."""
    host, _, port = address.rpartition(":")
    wire = RemotingWire()
    wire.send(Command(code, 1, fields=dict(fields or {}), body=body))
    end = time.monotonic() + timeout_s
    with socket.create_connection((host, int(port)), timeout_s) as connection:
        connection.sendall(b"".join(wire.data_to_send()))
        while True:
            answer = wire.next_event()
            if answer is not None and answer.is_response:
                return answer
            connection.settimeout(max(end - time.monotonic(), 0.001))
            data = connection.recv(1 << 16)
            if not data:
                raise ConnectionResetError(f"{address} closed the connection without an answer")
            wire.receive(data)


def addresses_known(name_server: str, *, timeout_s: float = ANSWERED_WITHIN_S) -> dict[str, dict[int, str]]:
    """The brokers that a name server knows: the addresses of each by broker id, 0 being the master.

    Raises OSError, PeerWireError.
    """
    answer = ask(name_server, RequestCode.GET_BROKER_CLUSTER_INFO, timeout_s=timeout_s)
    cluster_info: dict[str, Any] = loads(answer.body) if answer.body else {}
    return {
        name: {int(number): str(address) for number, address in entry["brokerAddrs"].items()}
        for name, entry in cluster_info.get("brokerAddrTable", {}).items()
    }
