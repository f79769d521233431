"""proxy.running: what signals do, seen with an app that does nothing but say what was asked of it."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from proxy.app import CannotStart
from proxy.running import _serve


class FakeApp:
    """Stays in the steps named in `slow` until it is cancelled."""

    addresses = ("grpc://127.0.0.1:1", "grpc://127.0.0.1:2")
    shared_at = ""
    admin_address = "http://127.0.0.1:3"
    drain_s = 10.0
    lame_s = 5.0

    def __init__(self, *slow: str, fails: BaseException | None = None) -> None:
        self.slow = slow
        self.fails = fails
        self.steps: list[str] = []

    async def _step(self, name: str) -> None:
        self.steps.append(name)
        if name in self.slow:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.steps.append(f"{name} cut short")
                raise
        if name == "start" and self.fails:
            raise self.fails

    async def start(self) -> None:
        await self._step("start")

    async def drain(self) -> None:
        await self._step("drain")

    async def stop(self) -> None:
        await self._step("stop")

    def farewell(self) -> dict[str, int]:
        return {"connections": 3, "requests_cut_off": 1}


async def reached(app: FakeApp, step: str) -> None:
    async with asyncio.timeout(60):
        while step not in app.steps:
            await asyncio.sleep(0)


async def served(app: Any) -> asyncio.Task[None]:
    return asyncio.create_task(_serve(app))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_and_stops(number: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    app = FakeApp()
    task = await served(app)
    await reached(app, "start")
    while "ready" not in (out := capsys.readouterr().out):
        await asyncio.sleep(0)
    assert out.splitlines() == [
        "listening grpc://127.0.0.1:1",
        "listening grpc://127.0.0.1:2",
        "admin http://127.0.0.1:3",
        "ready",
    ]
    os.kill(os.getpid(), number)
    await asyncio.wait_for(task, 60)
    assert app.steps == ["start", "drain", "stop"]
    assert capsys.readouterr().out.splitlines()[-1] == "stopped connections=3 requests_cut_off=1"


async def test_a_second_signal_hurries() -> None:
    app = FakeApp("drain")
    task = await served(app)
    await reached(app, "start")
    os.kill(os.getpid(), signal.SIGTERM)
    await reached(app, "drain")
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.wait_for(task, 60)
    assert app.steps == ["start", "drain", "drain cut short", "stop"]


async def test_a_signal_while_starting_stops_too(capsys: pytest.CaptureFixture[str]) -> None:
    """And has a deadline, too."""
    app = FakeApp("start")
    ends: list[float] = []
    task = asyncio.create_task(_serve(app, ends.append))  # type: ignore[arg-type]
    await reached(app, "start")
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(task, 60)
    assert app.steps == ["start", "start cut short", "stop"]
    assert ends == [app.drain_s]
    assert "ready" not in capsys.readouterr().out


async def test_a_start_that_fails_is_told_and_signals_are_as_before() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(CannotStart, match="no luck"):
        await _serve(FakeApp(fails=CannotStart("no luck")))  # type: ignore[arg-type]
    assert signal.getsignal(signal.SIGTERM) == before
