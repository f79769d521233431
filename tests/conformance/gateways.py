"""Gateways for official clients: their doors, their settings before a broker, and what is asked of them."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

from popgate.testing.gateway import CREATE_ON_USE, GatewayProcess
from popgate.testing.made import Missing
from popgate.testing.rocketmq import SharedRocketMQ
from tests.conformance.drivers import CLUSTER, EMBEDDED

START_S = 240.0
"""For a gateway, on a machine that starts many other things."""


def check_log(gateway: GatewayProcess) -> None:
    """Nothing that clients do may look like an error of the gateway."""
    errors = [line for line in gateway.log.splitlines() if '"level": "error"' in line or "Traceback" in line]
    assert not errors, "\n".join(errors[:5])


def call_admin(address: str, path: str, body: object) -> Any:
    request = urllib.request.Request(
        f"{address}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            raise AssertionError(f"{path}: {refused.code} {refused.read().decode()}") from None


def _has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


HOSTS = ("127.0.0.1", "127.0.0.2", *(["[::1]"] if _has_ipv6() else []))
TRANSPORT = os.environ.get("TEST_GRPC_TRANSPORT", "http2")
"""What carries gRPC: `http2`, the gateway's own, or `grpcio`."""


def listen_by(transport: str) -> tuple[str, ...]:
    """Doors of the gateway: several, so that a client can be told the wrong one."""
    return tuple(f"grpc://{host}:0?transport={transport}" for host in HOSTS)


def dialled(addresses: Sequence[str], host: str) -> str:
    """The endpoint for a client that dials a host. Raises Missing where the machine has no such address."""
    ports = {
        at.rpartition(":")[0]: at.rpartition(":")[2] for at in (a.partition("://")[2] for a in addresses)
    }
    port = ports["127.0.0.1"] if host == "localhost" else ports.get(host)
    if port is None:
        raise Missing(f"this machine has no address {host}")
    return f"{host}:{port}"


CHECK_SOON = {
    EMBEDDED: ("transactions.first_check_s=3", "transactions.check_interval_s=3"),
    # Of the one time; the other one is the cluster's. For so long a transaction may be ended: one that a
    # driver ends itself, after a poll, was 11 s old on a busy machine.
    CLUSTER: ("remote.transaction_check_s=30",),
}
CREATE_NOTHING = ("topics.auto_create=false", "groups.auto_create=false")
PATIENT = ("remote.request_timeout_s=30", "remote.connect_timeout_s=30", "remote.probe_s=30")
"""A cluster that shares two cores with many clients is slow, and clients here wait for longer than 3 s."""


def options_of(broker: str, settings: Sequence[str], cluster: SharedRocketMQ | None) -> list[str]:
    """The flags of a gateway in front of a broker."""
    patience = PATIENT if broker == CLUSTER else ()
    options = [word for setting in (*settings, *patience) for word in ("--set", setting)]
    if broker == CLUSTER:
        assert cluster is not None
        creation = () if set(CREATE_NOTHING) <= set(settings) else CREATE_ON_USE
        options += ["--broker", cluster.url, *creation]
    return options
