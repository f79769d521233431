"""What a gateway does with the time in which it must be gone: clients first, then everything is closed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from popgate.testing import MovableClock
from proxy.app import App, build
from proxy.config.settings import Settings
from proxy.lifetime.end_signals import Signals, ended_in
from proxy.supervision.work import _guests_gone
from tests.support.waiting import PATIENCE_S, until


class Door:
    """Tells until when it was to serve."""

    def __init__(self) -> None:
        self.until: list[float] = []
        self.left = False

    def leave(self) -> None:
        self.left = True

    async def drain(self, deadline: float, ends: float | None = None) -> None:
        self.until.append(deadline)


class Endless:
    """Never closes by itself."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.let_go = False

    async def stop(self) -> None:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.let_go = True


def built(
    settings_for: Callable[..., Settings], drain_s: float, lame_duck_s: float = 0.0
) -> tuple[App, MovableClock, Any]:
    clock = MovableClock()
    app = build(settings_for(stopping={"drain_s": drain_s, "lame_duck_s": lame_duck_s}), clock=clock)
    door: Any = Door()
    app.doors = [door]
    return app, clock, door


@pytest.mark.parametrize(("drain_s", "clients_s"), [(0, 0), (1, 0.9), (10, 9), (60, 59), (3600, 3599)])
async def test_clients_are_served_for_all_of_the_time_but_what_closing_needs(
    settings_for: Callable[..., Settings], drain_s: float, clients_s: float
) -> None:
    app, clock, door = built(settings_for, drain_s)
    begin = clock.monotonic()
    await app.drain()
    assert door.until == [pytest.approx(begin + clients_s)]


async def test_a_door_that_fails_to_drain_keeps_no_other_from_it_and_all_is_closed(
    settings_for: Callable[..., Settings],
) -> None:
    app, _, door = built(settings_for, 10)

    class Broken(Door):
        async def drain(self, deadline: float, ends: float | None = None) -> None:
            raise OSError("it is broken")

    app.doors = [Broken(), door]
    with capture_logs() as logs:
        await app.drain()
    assert len(door.until) == 1
    assert [line["event"] for line in logs] == ["a listener could not be drained"]


@pytest.mark.parametrize(
    ("wanted_s", "drain_s", "lame_s"), [(5, 10, 5), (5, 4, 2), (0, 10, 0), (3, 3600, 3), (5, 0, 0)]
)
async def test_everything_is_served_on_before_the_doors_close_for_half_of_the_time_at_most(
    settings_for: Callable[..., Settings], wanted_s: float, drain_s: float, lame_s: float
) -> None:
    app, clock, door = built(settings_for, drain_s, wanted_s)
    begin = clock.monotonic()
    draining = asyncio.ensure_future(app.drain())
    await asyncio.sleep(0)
    if lame_s:
        clock.advance(lame_s - 0.001)
        await asyncio.sleep(0)
        assert (app.condition(), door.left, door.until) == ("draining", True, [])
        clock.advance(0.001)
    await draining
    assert door.left is bool(lame_s)
    # Part of the time to end in: it does not begin anew.
    assert door.until == [pytest.approx(begin + drain_s - min(drain_s / 10, 1))]


async def test_a_start_that_is_given_up_has_a_deadline(
    settings_for: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, clock, _ = built(settings_for, 10)
    app.doors = []
    endless = Endless()
    monkeypatch.setattr(app.broker, "start", asyncio.Event().wait)
    monkeypatch.setattr(app.broker, "stop", endless.stop)
    starting = asyncio.ensure_future(app.start())
    await until(lambda: app.admin is None or bool(app.admin_address))
    starting.cancel()
    await endless.asked.wait()
    clock.advance(10)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(starting, PATIENCE_S)
    assert endless.let_go


async def test_the_time_counts_from_when_the_process_was_told(settings_for: Callable[..., Settings]) -> None:
    app, clock, door = built(settings_for, 10)
    told = clock.monotonic()
    clock.advance(1)  # a worker asks its supervisor first whether anything is on the way to it
    await app.drain(told)
    assert door.until == [pytest.approx(told + 9)]


async def test_the_broker_is_closed_first_and_then_nobody_waits_for_a_collector_longer_than_there_is_time(
    settings_for: Callable[..., Settings], capsys: pytest.CaptureFixture[str]
) -> None:
    clock = MovableClock()
    app = build(settings_for(stopping={"drain_s": 10, "lame_duck_s": 0}), clock=clock)
    await app.start()
    collector: Any = Endless()
    app.tracing = collector
    await app.drain()
    stopping = asyncio.ensure_future(app.stop())
    async with asyncio.timeout(PATIENCE_S):
        await collector.asked.wait()
        assert "closed" in repr(app.broker)
        assert not stopping.done()
        clock.advance(10)
        await stopping
        await until(lambda: collector.let_go, pause_s=0.0)
    assert app.state == "stopped"
    assert "not closed in time" in capsys.readouterr().out


async def test_work_is_ended_in_its_time_and_what_it_raises_is_raised() -> None:
    clock = MovableClock()

    async def fail() -> None:
        raise ValueError("on purpose")

    async def succeed() -> None:
        await asyncio.sleep(0)

    assert await ended_in(succeed(), None, clock)
    assert await ended_in(succeed(), 5, clock)
    for longest_s in (None, 5.0):
        with pytest.raises(ValueError, match="on purpose"):
            await ended_in(fail(), longest_s, clock)
    endless = Endless()
    ending = asyncio.ensure_future(ended_in(endless.stop(), 5, clock))
    await endless.asked.wait()
    clock.advance(5)
    assert not await ending


async def test_the_process_of_the_broker_waits_for_its_guests_no_longer_than_leaves_time_to_close(
    settings_for: Callable[..., Settings],
) -> None:
    app, clock, _ = built(settings_for, 10)

    class Host:
        asked = 0

        def figures(self) -> dict[str, float]:
            self.asked += 1
            return {"shared_guests": 1}

    host: Any = Host()
    app.host = host
    waiting = asyncio.ensure_future(_guests_gone(app, clock.monotonic()))
    async with asyncio.timeout(PATIENCE_S):
        await until(lambda: host.asked, pause_s=0.0)
        clock.advance(9.5)  # guests are served for 9 s, and close
        await waiting


async def test_each_part_that_hangs_is_left_alone_in_time_for_the_next_one(
    settings_for: Callable[..., Settings], capsys: pytest.CaptureFixture[str]
) -> None:
    clock = MovableClock()
    app = build(settings_for(stopping={"drain_s": 10, "lame_duck_s": 0}), clock=clock)
    await app.start()
    hanging: list[Any] = [Endless(), Endless()]
    broker = app.broker
    await app.drain()
    end = clock.monotonic() + 10
    app.processor, app.broker = hanging
    stopping = asyncio.ensure_future(app.stop())
    async with asyncio.timeout(PATIENCE_S):
        for one in hanging:
            await one.asked.wait()
            assert clock.monotonic() < end, "there is time left for this part"
            clock.advance(5 if one is hanging[0] else 10)
        await stopping
    assert [one.let_go for one in hanging] == [True, True]
    assert capsys.readouterr().out.count("not closed in time") == 2
    await broker.stop()


async def test_a_terminal_that_closes_may_say_so_more_than_once() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signals = Signals(asyncio.get_running_loop())
    cut = asyncio.create_task(signals.second_of(asyncio.Event().wait()))  # type: ignore[arg-type]
    for _ in range(2):
        signal.raise_signal(signal.SIGHUP)
        await signals.wait()
    assert not cut.done()
    signal.raise_signal(signal.SIGTERM)
    assert not await cut
    signals.close()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


async def test_without_an_end_signals_are_as_they_were() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signals = Signals(asyncio.get_running_loop())
    signals.close()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
