"""A gateway behind a real gRPC server, and a server whose answers the test gives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from popgate.spark.connections import close_idle
from tests.unit.popgate.spark.grpc.scripted import Scripted
from tests.unit.protocols.grpc.conftest import client, gateway, town  # noqa: F401 - fixtures


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    server = Scripted()
    yield server
    close_idle()
    server.stop()
