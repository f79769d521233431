"""proxy.cli.diagnosis.doctor: what it asks of the admin port."""

from __future__ import annotations

import socket

import pytest

from protocols.probing import Level, Wish
from proxy.cli.console import admin_client
from proxy.cli.diagnosis.doctor import _all


async def test_an_admin_port_that_hangs_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request would wait for as long as an answer may take."""
    monkeypatch.setattr(admin_client, "_ANSWER_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as hanging, socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
        closed.close()
        admin = f"http://127.0.0.1:{hanging.getsockname()[1]}"
        findings = [finding async for finding in _all("grpc", Wish("127.0.0.1", port, 0.1), admin)]
        hanging.setblocking(False)
        hanging.accept()[0].close()
        with pytest.raises(BlockingIOError):
            hanging.accept()
    (last,) = [finding for finding in findings if finding.check == "admin"]
    assert last is findings[-1]
    assert (last.level, "no answer in time" in last.what) == (Level.PROBLEM, True)
