"""What a client's certificate names it reaches whoever decides what it may do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from popgate.context import ANONYMOUS, Context, Principal
from popgate.kinds import Credentials
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.testing.papers import Papers
from protocols.tls import Certificate


class Noting:
    """An authenticator that believes everybody, and keeps what it was asked with."""

    def __init__(self) -> None:
        self.contexts: list[Context] = []

    def authenticate(self, context: Context, credentials: Credentials, now: float) -> Principal:
        self.contexts.append(context)
        return ANONYMOUS


@pytest.mark.parametrize("transport", ["http2", "grpcio"])
async def test_a_request_knows_the_names_in_the_certificate_of_its_client(
    town: Any, tmp_path: Path, transport: str
) -> None:
    papers, noting = Papers(tmp_path), Noting()
    gateway = await town.gateway(
        listen=f"grpc://127.0.0.1:0?tls=true&transport={transport}",
        certificate=Certificate(*papers.pair("gateway"), client_ca=papers.authority),
        authenticator=noting,
    )
    certificate, key = papers.pair("orders")
    credentials = grpc.ssl_channel_credentials(
        papers.authority.read_bytes(), key.read_bytes(), certificate.read_bytes()
    )
    async with grpc.aio.secure_channel(gateway.address, credentials) as channel:
        ask = channel.unary_unary(
            "/apache.rocketmq.v2.MessagingService/Heartbeat",
            request_serializer=rpc.HeartbeatRequest.SerializeToString,
            response_deserializer=rpc.HeartbeatResponse.FromString,
        )
        await ask(rpc.HeartbeatRequest(client_type=pb.PRODUCER), metadata=(("x-mq-client-id", "a"),))
    (context,) = noting.contexts
    assert context.certificate == ("CN:orders", "DNS:localhost", "IP Address:127.0.0.1")


async def test_a_request_in_the_clear_has_no_names_of_a_certificate(town: Any) -> None:
    noting = Noting()
    client = town.client(await town.gateway(authenticator=noting))
    await client.route()
    assert noting.contexts[-1].certificate == ()
