"""popgate.testing.gateway: what users of popgate start in their own tests."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from popgate.testing import GatewayDidNotStart, GatewayProcess, running_gateway


async def test_a_gateway_runs_for_as_long_as_the_block() -> None:
    async with running_gateway() as gateway:
        assert gateway.endpoint.startswith("127.0.0.1:")
        with urllib.request.urlopen(f"{gateway.admin}/ready", timeout=10) as answer:
            assert json.load(answer) == {"state": "ready"}
        folder = gateway.data
        assert folder.is_dir()
    assert not folder.exists()
    assert repr(gateway).startswith("<GatewayProcess ended 0")


def test_a_gateway_that_does_not_start_tells_what_it_said(tmp_path: Path) -> None:
    gateway = GatewayProcess(tmp_path, options=["--set", "limits.max_body=1"])
    with pytest.raises(GatewayDidNotStart, match="ended with 2"):
        gateway.start()
    with pytest.raises(GatewayDidNotStart, match=r"did you mean limits\.max_body_bytes"):
        gateway.successor().start()


def test_settings_of_the_caller_are_not_passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POPGATE_DURABILITY", "nonsense")
    with (
        GatewayProcess(tmp_path, environment={"POPGATE_DURABILITY": "none"}) as gateway,
        urllib.request.urlopen(f"{gateway.admin}/api/settings", timeout=10) as answer,
    ):
        assert json.load(answer)["durability"] == "none"
    assert (tmp_path / "store").is_dir()


def test_before_the_start_there_is_no_process() -> None:
    gateway = GatewayProcess()
    with pytest.raises(RuntimeError, match="not started"):
        _ = gateway.pid
    gateway.close()
