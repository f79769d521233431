"""popgate.testing.gateway: what users of popgate start in their own tests."""

from __future__ import annotations

import json
import signal
import socket
import sys
import urllib.request
from pathlib import Path

import pytest

from popgate.testing import GatewayDidNotStart, GatewayProcess, running_gateway
from tests.support.waiting import wait_until


async def test_a_gateway_runs_for_as_long_as_the_block() -> None:
    async with running_gateway() as gateway:
        assert gateway.endpoint.startswith("127.0.0.1:")
        with urllib.request.urlopen(f"{gateway.admin}/ready", timeout=60) as answer:
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
        urllib.request.urlopen(f"{gateway.admin}/api/settings", timeout=60) as answer,
    ):
        assert json.load(answer)["durability"] == "none"
    assert (tmp_path / "store").is_dir()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere two may not be bound to one port")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_nobody_else_is_given_the_ports_of_a_killed_one_before_its_successor_has_them(
    tmp_path: Path, workers: str
) -> None:
    with GatewayProcess(tmp_path, options=["--workers", workers]) as first:
        first.kill()
        host, _, port = first.endpoint.rpartition(":")
        second = first.successor()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((host, int(port)))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), 60)
        with second:
            assert (second.addresses, second.admin) == (first.addresses, first.admin)
            second.kill()
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind((host, int(port)))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere two may not be bound to one port")
def test_the_ports_are_kept_also_for_who_follows_one_that_ended_before_it_was_ready(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path) as first:
        first.kill()
        port = int(first.endpoint.rpartition(":")[2])
        second = first.successor(options=["--set", "limits.max_body=1"])
        with pytest.raises(GatewayDidNotStart):
            second.start()
        third = second.successor(options=())
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        with third:
            assert third.addresses == first.addresses


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere two may not be bound to one port")
def test_ports_that_are_held_are_nobody_elses_from_the_beginning_and_while_it_leaves(tmp_path: Path) -> None:
    first = GatewayProcess(
        tmp_path / "first", listen=("grpc://127.0.0.1:0?transport=http2",), holds_ports=True
    )
    with first:
        host, _, port = first.endpoint.rpartition(":")
        assert first.terminate() == 0
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((host, int(port)))
        with GatewayProcess(tmp_path / "other", listen=first.addresses) as other_one:
            assert other_one.addresses == first.addresses
        with first.successor() as second:
            assert second.addresses == first.addresses


def test_a_killed_one_and_those_that_it_made_end_as_one() -> None:
    """None sees another go: that would be told as an error, and is none of a crash."""
    with GatewayProcess(options=["--workers", "2"]) as gateway:
        made = gateway.processes
        assert gateway.kill() == -signal.SIGKILL
        assert len(made) == 3
        assert '"level": "error"' not in gateway.log
        assert '"level": "warning"' not in gateway.log


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_its_starter_ignores_reaches_it(number: signal.Signals) -> None:
    """As under `nohup`, and in the background of a shell."""
    # Restored as all signals are that a test changes.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with GatewayProcess() as gateway:
        gateway.signal(number)
        if number is signal.SIGHUP:  # a reload
            wait_until(lambda: "settings reloaded" in gateway.log, seen=lambda: gateway.log)
            gateway.signal(signal.SIGTERM)
        assert gateway.wait() == 0
        assert gateway.output.splitlines()[-1].startswith("stopped ")


def test_before_the_start_there_is_no_process() -> None:
    gateway = GatewayProcess()
    with pytest.raises(RuntimeError, match="not started"):
        _ = gateway.pid
    gateway.close()
