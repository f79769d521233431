"""A few scenarios of each client with the transport that the other tests do not use.

All of them, with that one: sh tests/run.sh --long grpcio.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from popgate.testing.gateway import GatewayProcess
from tests.conformance import test_clients as checks
from tests.conformance.drivers import EMBEDDED, LANGUAGES, TABLE
from tests.conformance.gateways import CHECK_SOON, START_S, TRANSPORT, check_log, listen_by, options_of
from tests.conformance.stages import Stage

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(1800)]

OTHER = "http2" if TRANSPORT == "grpcio" else "grpcio"
SCENARIOS = ("normal", "empty_poll", "fifo_push", "transaction_check")
"""Calls, a long poll, a push consumer, and what is asked over the Telemetry stream."""
RUNS = [
    (language, scenario)
    for scenario in SCENARIOS
    for language in sorted(LANGUAGES)
    if TABLE[scenario][language] is True
]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp(OTHER)
    options = options_of(EMBEDDED, CHECK_SOON[EMBEDDED], None)
    gateway = GatewayProcess(folder / "data", listen=listen_by(OTHER), options=options)
    with gateway.start(START_S):
        stage = Stage(gateway, folder)
        try:
            for language, scenario in RUNS:
                stage.launch(language, scenario)
            yield stage
        finally:
            stage.close()
        check_log(gateway)


@pytest.mark.parametrize(("language", "scenario"), RUNS)
def test_the_other_transport_does_the_same(stage: Stage, language: str, scenario: str) -> None:
    getattr(checks, f"test_{scenario}")(stage.facts(language, scenario))
