"""Scenario 12: brokers that cannot be reached are named by `popgate doctor`, and not their name server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from popgate.testing import GatewayProcess
from popgate.testing.peers import scripted_cluster
from tests.e2e.commands import run_command


def doctor(gateway: GatewayProcess) -> dict[str, list[dict[str, Any]]]:
    """Findings by their check."""
    options = ("--admin", gateway.admin, "-o", "json", "--timeout", "60s")
    found: dict[str, list[dict[str, Any]]] = {}
    for one in json.loads(run_command("doctor", gateway.endpoint, *options).out):
        found.setdefault(one["check"], []).append(one)
    return found


async def test_scenario_12_a_broker_that_cannot_be_reached_is_named_and_not_the_name_server() -> None:
    async with scripted_cluster("broker-a", topics=["orders"]) as (servers, peers):
        broker = peers["broker-a"]
        quick = ("--set", "remote.request_timeout_s=1", "--set", "remote.probe_s=0.5")
        options = ("--broker", f"rocketmq://{servers.address}", "--workers", "1", *quick)
        gateway = await asyncio.to_thread(GatewayProcess(options=options).start)
        try:
            broker.silent = True
            found = await asyncio.to_thread(doctor, gateway)
        finally:
            await asyncio.to_thread(gateway.close)
        (told,) = found["broker"]
        assert told["level"] == "problem"
        assert told["what"].startswith("master broker-a does not answer: ")
        assert broker.address in told["what"]
        assert all(one["level"] != "problem" for one in found["name-server"])
        assert "cluster" not in found
