"""Official clients that speak TLS unless they are told not to, before a gateway that nobody told of TLS."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from popgate.testing.gateway import GatewayProcess
from popgate.testing.made import Missing
from protocols.grpc.pb import definition_pb2 as pb
from protocols.grpc.pb import service_pb2 as rpc
from tests.conformance import test_clients as checks
from tests.conformance.drivers import EMBEDDED
from tests.conformance.gateways import CHECK_SOON, START_S, check_log, options_of
from tests.conformance.go_channel import GoChannel
from tests.conformance.stages import Stage
from tests.conformance.test_go import Raw
from tests.support.needed import missing

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(1800)]

CLIENTS = ("java", "java-oldest")


@pytest.fixture(scope="module")
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("as-shipped")
    options = options_of(EMBEDDED, tuple(CHECK_SOON[EMBEDDED]), None)
    shipped = {"POPGATE_TLS__MODE": "optional"}
    with (
        GatewayProcess(folder / "data", options=options, environment=shipped).start(START_S) as gateway,
        # By address: what stands before a gateway for clients that cannot do without TLS is left out.
        contextlib.closing(
            Stage(gateway, folder, "shipped-", proxy=gateway.endpoint, params={"tls": "true"})
        ) as stage,
    ):
        for item in request.session.items:
            if isinstance(item, pytest.Function) and item.path == request.path and hasattr(item, "callspec"):
                stage.launch(item.callspec.params["official"], "normal")
        yield stage
        check_log(gateway)


@pytest.mark.parametrize("official", CLIENTS)
def test_messages_go_through(stage: Stage, official: str) -> None:
    checks.test_normal(stage.facts(official, "normal"))


def test_messages_go_through_over_the_tls_of_go(stage: Stage) -> None:
    """Go's client is in no registry: its own library of gRPC, connected as that client connects."""
    try:
        made = GoChannel(stage.gateway.endpoint)
    except Missing as what:
        missing(what)
    with made as channel:
        go, name = Raw(channel, "GO"), "shipped-go"
        host, _, port = stage.gateway.endpoint.rpartition(":")
        dialled = pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host=host, port=int(port))])
        route = go.call("QueryRoute", rpc.QueryRouteRequest(topic=pb.Resource(name=name), endpoints=dialled))
        assert {queue.broker.endpoints.addresses[0].port for queue in route.message_queues} == {int(port)}
        go.send(name, "the first one", "")
        (message,) = go.receive(name, name)
        assert message.body == b"the first one"
        go.ack(name, message)
        assert go.receive(name, name) == []
