"""Official Java and Go clients, which use TLS by default, with a gateway that has no setting for TLS."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from popgate.testing.gateway import GatewayProcess
from tests.conformance import test_clients as checks
from tests.conformance.drivers import EMBEDDED
from tests.conformance.gateways import CHECK_SOON, START_S, check_log, options_of
from tests.conformance.stages import Stage

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(1800)]

CLIENTS = ("java", "java-oldest", "go")


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
