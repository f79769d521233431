"""Official clients before a gateway with nginx (`grpc_pass`) or HAProxy between, plain and over TLS.

In the test command a few scenarios of each client, each by another way: every client goes every way once.
With TEST_PROXIES_ALL=true all of them go every way: sh tests/run.sh --long proxies.
"""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(1800)]

WAYS = ("nginx-plain", "nginx-tls", "haproxy-plain", "haproxy-tls")
CORE = ("normal", "empty_poll", "fifo_push", "transaction_check")
"""Calls, a long poll, a push consumer, and what is asked over the Telemetry stream."""
INSTEAD = {"fifo_push": "fifo_simple"}
"""For a client whose API has no push consumer."""
ELSEWHERE = ("by_address", "by_ipv6", "interrupted", "drained")
"""What needs other addresses of the gateway than that of a proxy, or other gateways."""
HERE = Path(__file__).parent
TABLE = tomllib.loads((HERE / "scenarios.toml").read_text())
LANGUAGES = tuple(tomllib.loads((HERE / "clients.toml").read_text()))


def core() -> list[tuple[str, str, str]]:
    runs = []
    for row, language in enumerate(LANGUAGES):
        for column, scenario in enumerate(CORE):
            played = scenario if TABLE[scenario][language] is True else INSTEAD[scenario]
            runs.append((language, played, WAYS[(row + column) % len(WAYS)]))
    return runs


def everything() -> list[tuple[str, str, str]]:
    return [
        (language, scenario, way)
        for way in WAYS
        for scenario, row in TABLE.items()
        for language in LANGUAGES
        if row[language] is True and scenario not in ELSEWHERE
    ]


FULL = os.environ.get("TEST_PROXIES_ALL") == "true"
RUNS = everything() if FULL else core()


def _checks() -> Any:
    """What the scenarios' own tests look at."""
    spec = importlib.util.spec_from_file_location("conformance_checks", HERE / "test_clients.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


checks = _checks()


Key = tuple[str, bool]
"""Of a stage: the way of its runs, or "" for all, and whether topics and groups are made on first use."""


def key_of(scenario: str, way: str) -> Key:
    """In the long form a stage has the runs of one way, which are as many as a stage has elsewhere."""
    return way if FULL else "", TABLE[scenario].get("creation", True)


@pytest.fixture(scope="module")
def stage(request: pytest.FixtureRequest, behind_proxies: Any) -> Iterator[Any]:
    key: Key = request.param
    runs = [(language, scenario, way) for language, scenario, way in RUNS if key_of(scenario, way) == key]
    with behind_proxies(runs, creation=key[1]) as stage:
        yield stage


@pytest.mark.parametrize(
    ("stage", "language", "scenario", "way"),
    [
        pytest.param(key_of(scenario, way), language, scenario, way, id=f"{language}-{scenario}-{way}")
        for language, scenario, way in RUNS
    ],
    indirect=["stage"],
)
def test_behind_a_proxy(stage: Any, language: str, scenario: str, way: str) -> None:
    check = getattr(checks, f"test_{scenario}")
    more = {"client": language} if "client" in inspect.signature(check).parameters else {}
    check(stage.facts(language, scenario, f"-{way}"), **more)


def test_every_client_goes_every_way() -> None:
    gone = {(language, way) for language, _, way in core()}
    assert gone == set(itertools.product(LANGUAGES, WAYS))
    assert {(language, scenario) for language, scenario, _ in core()} <= {
        (language, scenario) for language, scenario, _ in everything()
    }
