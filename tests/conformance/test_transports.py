"""A few scenarios of each client with the transport that the other tests do not use.

All of them, with that one: TEST_GRPC_TRANSPORT=grpcio pytest tests/conformance.
"""

from __future__ import annotations

import importlib.util
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(1800)]

OTHER = "http2" if os.environ.get("TEST_GRPC_TRANSPORT") == "grpcio" else "grpcio"
SCENARIOS = ("normal", "empty_poll", "fifo_push", "transaction_check")
"""Calls, a long poll, a push consumer, and what is asked over the Telemetry stream."""
HERE = Path(__file__).parent
TABLE = tomllib.loads((HERE / "scenarios.toml").read_text())
RUNS = [
    (language, scenario)
    for scenario in SCENARIOS
    for language in ("java", "node", "python", "rust")
    if TABLE[scenario][language] is True
]


def _checks() -> Any:
    """What the scenarios' own tests look at."""
    spec = importlib.util.spec_from_file_location("conformance_checks", HERE / "test_clients.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


checks = _checks()


@pytest.fixture(scope="module")
def stage(by_transport: Any) -> Iterator[Any]:
    with by_transport(OTHER, RUNS) as stage:
        yield stage


@pytest.mark.parametrize(("language", "scenario"), RUNS)
def test_the_other_transport_does_the_same(stage: Any, language: str, scenario: str) -> None:
    getattr(checks, f"test_{scenario}")(stage.facts(language, scenario))
