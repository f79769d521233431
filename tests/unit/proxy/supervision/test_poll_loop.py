"""proxy.supervision.poll_loop: a loop of descriptors, times and signals."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from proxy.supervision import poll_loop as module
from proxy.supervision.poll_loop import READ, WRITE, PollLoop


@pytest.fixture
def turning() -> Iterator[PollLoop]:
    made = PollLoop()
    yield made
    made.close()


def test_times_ring_in_their_order_unless_they_are_cancelled(
    turning: PollLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    rung: list[str] = []

    def last() -> None:
        rung.append("last")
        turning.over = True

    now = time.monotonic()
    with monkeypatch.context() as still:  # all are of one moment, however long this takes
        still.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
        turning.later(0.02, last)
        turning.later(0.0, lambda: rung.append("first"))
        turning.later(0.01, lambda: rung.append("never")).cancel()
        turning.later(0.01, lambda: rung.append("second"))
    turning.run()
    assert rung == ["first", "second", "last"]


def test_a_descriptor_is_told_of_until_it_is_forgotten(turning: PollLoop) -> None:
    one, other = socket.socketpair()
    with one, other:
        heard: list[bytes] = []

        def came() -> None:
            heard.append(one.recv(1))
            if heard[-1] == b"3":
                turning.forget(one.fileno())
                turning.later(0.01, stop)

        def stop() -> None:
            turning.over = True

        turning.watch(one.fileno(), READ, came)
        other.send(b"1234")
        turning.run()
        assert heard == [b"1", b"2", b"3"]
        turning.forget(one.fileno())


def test_what_is_watched_for_can_be_changed(turning: PollLoop) -> None:
    one, other = socket.socketpair()
    with one, other:

        def writable() -> None:
            turning.watch(one.fileno(), READ, stop)
            other.send(b"x")

        def stop() -> None:
            turning.over = True

        turning.watch(one.fileno(), READ | WRITE, writable)
        turning.run()
        assert one.recv(1) == b"x"


def test_a_signal_is_told_between_two_pieces_of_work(turning: PollLoop) -> None:
    told: list[signal.Signals] = []

    def came(number: signal.Signals) -> None:
        told.append(number)
        turning.over = len(told) == 2

    turning.on_signals((signal.SIGUSR1, signal.SIGUSR2), came)

    def send() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR2)
        assert told == []

    turning.later(0.0, send)
    turning.run()
    assert sorted(told) == [signal.SIGUSR1, signal.SIGUSR2]
    turning.close()
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
