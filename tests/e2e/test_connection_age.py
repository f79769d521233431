"""`connections.max_age_s` of a whole gateway: an old connection is left, and no call notices."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from popgate.testing.frames import PREFACE, ping, settings, split, told, whole_and_rest
from popgate.testing.gateway import GatewayProcess
from tests.support.waiting import PATIENCE_S, wait_until


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayProcess]:
    with GatewayProcess(options=("--set", "connections.max_age_s=1")) as gateway:
        yield gateway


def heard_until_the_end(endpoint: str) -> list[str]:
    """What a peer without calls hears that answers pings, but for the greeting: a line for each frame."""
    host, _, port = endpoint.rpartition(":")
    lines: list[str] = []
    rest = b""
    with socket.create_connection((host, int(port)), PATIENCE_S) as link:
        link.sendall(PREFACE + settings())
        while some := link.recv(65_536):
            whole, rest = whole_and_rest(rest + some)
            for kind, flags, _, payload in split(whole):
                if kind == "PING" and not flags & 1:
                    link.sendall(ping(payload, ack=True))
            lines += [line for line in told(whole, lambda _: "") if line.startswith(("GOAWAY", "PING"))]
    return lines


def test_an_old_connection_is_left_in_two_steps_and_closed(gateway: GatewayProcess) -> None:
    lines = heard_until_the_end(gateway.endpoint)
    assert lines == [
        "GOAWAY 2147483647 NO_ERROR: the gateway asks its clients to connect anew",
        "PING popgate-",
        "GOAWAY 0 NO_ERROR",
    ]


def test_a_client_connects_anew_again_and_again_and_no_call_fails(gateway: GatewayProcess) -> None:
    states: list[grpc.ChannelConnectivity] = []
    with grpc.insecure_channel(gateway.endpoint, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        channel.subscribe(states.append, try_to_connect=True)
        health = health_pb2_grpc.HealthStub(channel)

        def connected_anew() -> bool:
            # Raises when a call fails.
            answer = health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            return states.count(grpc.ChannelConnectivity.READY) >= 3

        wait_until(connected_anew, seen=lambda: states)
