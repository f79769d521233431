"""proxy.supervision.supervisor: nothing that goes wrong with a renewal ends those that serve."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from proxy.app import CannotStart
from proxy.config.settings import Settings
from proxy.supervision import supervisor as module
from proxy.supervision.replacement import SIGNALS
from proxy.supervision.supervisor import Supervisor
from proxy.workers.channel import Channel
from proxy.workers.crew import Door, Member, Role, Stage
from tests.support.waiting import wait_until


@pytest.fixture
def supervisor(settings_for: Callable[..., Settings]) -> Iterator[Supervisor]:
    made = Supervisor(settings_for(), 2)
    made._told_ready = True
    yield made
    made._end()


def test_all_goes_on_where_no_process_can_be_made_to_look_at_what_is_new(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An upgrade may have taken the interpreter away.
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    supervisor._renew()
    assert supervisor._trial == 0
    assert not supervisor._again


def test_a_look_at_what_is_new_that_hangs_is_given_up(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the child that it has."""
    spawn = os.posix_spawn
    ends, others = os.pipe()

    def hang(program: str, _: list[str], environment: Any, *, setpgroup: int, **_more: Any) -> int:
        command = [program, "-S", "-c", "import os, signal; os.fork(); os.write(1, b'x'); signal.pause()"]
        theirs = [(os.POSIX_SPAWN_DUP2, others, 1)]
        pid = spawn(program, command, environment, setpgroup=setpgroup, file_actions=theirs)
        assert os.read(ends, 1) + os.read(ends, 1) == b"xx"
        return pid

    monkeypatch.setattr(os, "posix_spawn", hang)
    monkeypatch.setattr(module, "_TRIAL_S", 0.05)
    supervisor._renew()
    pid, status = supervisor._trial, 0
    os.close(others)

    def ended() -> int:
        nonlocal status
        supervisor._turning.over = False
        supervisor._turning.later(0.02, lambda: setattr(supervisor._turning, "over", True))
        supervisor._turning.run()
        gone, status = os.waitpid(pid, os.WNOHANG)
        return gone

    wait_until(ended)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    with os.fdopen(ends, "rb") as both:
        assert both.read() == b""  # it ends when nobody has the other end any more
    supervisor._tried(-signal.SIGKILL)
    assert supervisor._trial == 0


@pytest.fixture
def usual_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("usual_signals")
def test_no_signal_is_lost_while_the_program_is_loaded_anew(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One came in the same moment as the end of the trial, one while it went on."""
    seen: list[set[signal.Signals]] = []

    def execve(*_: Any) -> None:
        seen.append(signal.sigpending() & {*SIGNALS})
        raise OSError("not now")

    told: list[signal.Signals] = []

    def signalled(number: signal.Signals) -> None:
        told.append(number)
        if number is signal.SIGCHLD:
            supervisor._tried(0)
        supervisor._turning.over = {signal.SIGTERM, signal.SIGHUP} <= {*told}

    monkeypatch.setattr(os, "execve", execve)
    supervisor._turning.on_signals(SIGNALS, signalled)
    supervisor._trial = -1
    supervisor._signalled(signal.SIGHUP)
    signal.raise_signal(signal.SIGCHLD)
    signal.raise_signal(signal.SIGTERM)
    supervisor._turning.run()
    # It could not be loaded: this one hears them after all.
    assert seen == [{signal.SIGTERM, signal.SIGHUP}]
    assert not supervisor._again


@pytest.mark.usefixtures("usual_signals")
def test_hangups_that_its_starter_ignores_stay_ignored(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under `nohup` it serves on when its terminal closes, whoever hangs up."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    supervisor._turning.on_signals(SIGNALS, supervisor._signalled)
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    assert callable(signal.getsignal(signal.SIGTERM))
    # What the program that replaces it would be told by a hang-up is done before.
    monkeypatch.setattr(module, "spawn_trial", lambda _: 12_345)
    supervisor._trial = 1
    supervisor._renew()
    supervisor._tried(0)
    supervisor._tend_old_host()  # as after each event
    assert (supervisor._trial, supervisor._again) == (12_345, False)
    supervisor._trial = 0


def test_a_terminal_that_closes_may_hang_up_twice(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernel and shell both do, within milliseconds: the drain takes its time all the same."""
    cuts: list[float] = []
    monkeypatch.setattr(supervisor._processes, "stop", cuts.append)
    monkeypatch.setattr(supervisor, "_terminal", SimpleNamespace(is_gone=lambda: True))
    supervisor._signalled(signal.SIGHUP)
    assert supervisor._processes.leaving
    supervisor._signalled(signal.SIGHUP)
    assert cuts == []
    supervisor._signalled(signal.SIGINT)
    assert len(cuts) == 1


@contextmanager
def serving(supervisor: Supervisor, *doors: int) -> Iterator[None]:
    """A child that sleeps, and counts as a worker at these doors."""
    ours, theirs = Channel.pair()
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    with child, closing(theirs):
        supervisor._processes.take_over(
            Member(7, Role.WORKER, child.pid, ours, frozenset(doors), 0, time.monotonic(), Stage.READY)
        )
        try:
            yield
        finally:
            supervisor._processes.leaving = True  # nobody is to take its place
            supervisor._processes.over(child.pid, 0)
            child.kill()


def bound(supervisor: Supervisor) -> Door:
    """A new door, at a free port."""
    number = supervisor._staying.next_number()
    supervisor._doors.bind(number, "grpc://127.0.0.1:0")
    return next(door for door in supervisor._doors.served if door.number == number)


def test_an_address_that_no_process_serves_accepts_nobody(supervisor: Supervisor) -> None:
    """A reload named it, and no process could start with the new settings: a client would wait for good."""
    served, new = bound(supervisor), bound(supervisor)
    with serving(supervisor, served.number):
        supervisor._open()
        with socket.create_connection(("127.0.0.1", served.listen.port)):
            pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", new.listen.port))


@pytest.fixture
def contested(supervisor: Supervisor) -> Iterator[Door]:
    """A door at whose port somebody else began to listen first."""
    door = bound(supervisor)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", door.listen.port))
        other.listen()
        yield door


def test_an_address_that_somebody_took_meanwhile_costs_no_other(
    supervisor: Supervisor, contested: Door
) -> None:
    """Two sockets may be bound to one port, of which the first that listens has it."""
    served = bound(supervisor)
    with serving(supervisor, contested.number, served.number):
        supervisor._open()
        assert supervisor._doors.served == (served,)
        with socket.create_connection(("127.0.0.1", served.listen.port)):
            pass


def test_a_gateway_whose_address_somebody_took_meanwhile_says_so(
    supervisor: Supervisor, contested: Door
) -> None:
    """Two that are started at once with the same address."""
    supervisor._told_ready = False
    with serving(supervisor, contested.number):
        supervisor._open()
        assert isinstance(supervisor._failure, CannotStart)
        assert str(supervisor._failure) == (
            f"cannot listen at grpc://127.0.0.1:{contested.listen.port}: address already in use"
            " (choose another --listen)"
        )
        assert supervisor._processes.leaving
