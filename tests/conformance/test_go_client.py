"""The official Go client with its defaults: TLS, with a certificate that it does not verify.

It plays scenarios of the table that the clients of other languages play, a part of them (`go/scenarios.go`).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from popgate.testing.client_programs import Driver
from popgate.testing.made import Missing
from tests.conformance import test_clients as checks
from tests.conformance.drivers import BROKERS, go_client
from tests.conformance.gateways import CHECK_SOON, check_log
from tests.conformance.stages import ended_well, prepare
from tests.support.needed import missing

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(1800)]

SCENARIOS = {
    "normal": checks.test_normal,
    "bodies": checks.test_bodies,
    "batch_receive": checks.test_batch_receive,
    "early_receive": checks.test_early_receive,
    "subscriptions": checks.test_subscriptions,
    "empty_poll": checks.test_empty_poll,
    "fifo_simple": checks.test_fifo_simple,
    "fifo_push": checks.test_fifo_push,
    "delay": checks.test_delay,
    "recall": checks.test_recall,
    "transaction": checks.test_transaction,
    "transaction_check": checks.test_transaction_check,
    "tags": checks.test_tags,
    "sql92": checks.test_sql92,
    "change_invisible": checks.test_change_invisible,
    "nack": checks.test_nack,
    "push_consumer": checks.test_push_consumer,
    "push_shared": checks.test_push_shared,
    "push_retry": checks.test_push_retry,
    "dead_letter": checks.test_dead_letter,
}


@pytest.fixture(scope="module", params=BROKERS)
def driver(
    request: pytest.FixtureRequest, before: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Driver]:
    """The client's process, which plays all scenarios side by side; most of them wait most of the time."""
    try:
        program = go_client()
    except Missing as what:
        missing(what)
    with before(request.param, "tls.mode=optional", *CHECK_SOON[request.param]) as gateway:
        driver = Driver([str(program)], gateway.endpoint, tmp_path_factory.mktemp("go"))
        mark = uuid.uuid4().hex[:6]
        try:
            for scenario in SCENARIOS:
                driver.run(scenario, scenario, prepare(gateway, scenario, f"{mark}-go"))
            yield driver
        finally:
            driver.close()
        check_log(gateway)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_scenario_works(driver: Driver, scenario: str) -> None:
    facts = ended_well(lambda: (driver.wait(scenario, lambda facts: False), driver.last_words()))
    SCENARIOS[scenario](facts)
