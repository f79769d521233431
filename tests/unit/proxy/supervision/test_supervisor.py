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
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from popgate.sockets.unix_sockets import UnixSocket
from proxy.app import CannotStart
from proxy.config.settings import Settings
from proxy.supervision import supervisor as module
from proxy.supervision.doors import Doors
from proxy.supervision.replacement import SIGNALS, SupervisorState
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
def test_a_program_that_cannot_be_loaded_is_no_good_reload(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operators are told when settings were last taken, and when the last attempt failed."""

    def execve(*_: Any) -> None:
        raise OSError("not now")

    monkeypatch.setattr(os, "execve", execve)
    supervisor._staying.reload = {"count": 3, "at_ms": 1_000, "reason": ""}
    supervisor._tried(0)
    reload = supervisor._staying.reload
    assert (reload["count"], reload["at_ms"]) == (4, 1_000)
    assert reload["reason"].startswith("the program cannot be loaded anew")


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
    monkeypatch.setattr(supervisor, "_make", lambda _: None)
    supervisor._trial = 1
    supervisor._renew()
    supervisor._tried(0)
    supervisor._tend()  # as after each event
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


def left_behind(supervisor: Supervisor, url: str, *, listens: bool = True) -> Door:
    """A door at which the program from before has listened."""
    doors, number = Doors(supervisor._turning, lambda *_: False), supervisor._staying.next_number()
    doors.bind(number, url)
    door, links = doors.sockets()[number]
    for link in links if listens else ():
        link.listen()
    supervisor._staying.doors.append((door, [link.detach() for link in links]))
    return door


def test_an_address_that_new_settings_omit_is_served_while_a_process_does(
    supervisor: Supervisor, socket_folder: Path
) -> None:
    """Should no process start with them, clients would have no address at all."""
    named = left_behind(supervisor, "grpc://127.0.0.1:0")
    omitted = left_behind(supervisor, "remoting://127.0.0.1:0")
    file = left_behind(supervisor, f"grpc+unix:{socket_folder}/s")
    with serving(supervisor, named.number, omitted.number, file.number):
        supervisor._take_doors()
        supervisor._open()
        # No process that is made now is to serve them.
        assert supervisor._doors.served == (named,)
        for door in (named, omitted):
            with socket.create_connection(("127.0.0.1", door.listen.port)):
                pass
        (worker,) = supervisor._processes
        worker.stage = Stage.DRAINING
        supervisor._open()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", omitted.listen.port))
        assert list(socket_folder.iterdir()) == []
        with socket.create_connection(("127.0.0.1", named.listen.port)):
            pass


def test_the_file_of_an_address_stays_whose_options_new_settings_change(
    supervisor: Supervisor, socket_folder: Path
) -> None:
    """No process started with the ones before, so that nobody listened there, and the path was bound anew."""
    path = socket_folder / "s"
    left_behind(supervisor, f"grpc+unix:{path}", listens=False)
    path.unlink()
    named = left_behind(supervisor, f"grpc+unix:{path}?mode=660")
    supervisor._settings.__dict__["listen"] = (named.url,)
    with serving(supervisor, named.number):
        supervisor._take_doors()
        supervisor._open()
        assert supervisor._doors.served == (named,)
        assert path.stat().st_mode & 0o777 == 0o660
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_a_path_that_is_of_another_gateway_is_left_alone(supervisor: Supervisor, socket_folder: Path) -> None:
    """The file was removed while it was served, and somebody else listens there now."""
    path = socket_folder / "s"
    before = left_behind(supervisor, f"grpc+unix:{path}")
    path.unlink()
    other = UnixSocket(str(path), 0o666)
    other.link.listen()
    supervisor._settings.__dict__["listen"] = (before.url,)
    with serving(supervisor, before.number), closing(other.link):
        supervisor._take_doors()
        supervisor._open()
        assert supervisor._doors.served == ()
        assert path.stat().st_mode & 0o777 == 0o666
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
        other.remove()


def test_a_socket_that_is_served_takes_other_options(supervisor: Supervisor, socket_folder: Path) -> None:
    """It cannot be bound again: somebody listens there, who is this gateway."""
    path = socket_folder / "s"
    before = left_behind(supervisor, f"grpc+unix:{path}")
    assert path.stat().st_mode & 0o777 == 0o600
    url = f"grpc+unix:{path}?mode=660"
    supervisor._settings.__dict__["listen"] = (url,)
    with serving(supervisor, before.number):
        supervisor._take_doors()
        supervisor._open()
        (door,) = supervisor._doors.served
        assert (door.number, door.url) == (before.number, url)
        assert path.stat().st_mode & 0o777 == 0o660
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_a_renewal_is_taken_though_no_process_of_the_last_one_starts(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They die one after the other without a word, and what was corrected would never be read."""
    monkeypatch.setattr(module, "spawn_trial", lambda _: 12_345)
    monkeypatch.setattr(module, "kill_trial", lambda _: None)
    monkeypatch.setattr(supervisor, "_make", lambda _: None)
    supervisor._staying.generation = 1
    ours, theirs = Channel.pair()
    nobody = 1 << 22
    """The number of no process."""
    with serving(supervisor), closing(theirs):
        new = Member(8, Role.WORKER, nobody, ours, frozenset(), 1, time.monotonic())
        supervisor._processes.take_over(new)
        supervisor._signalled(signal.SIGHUP)
        assert (supervisor._trial, supervisor._again) == (0, True)
        supervisor._processes.over(nobody, -signal.SIGKILL)
        supervisor._tend()  # as after each event
        assert (supervisor._trial, supervisor._again) == (12_345, False)


def test_what_started_before_a_renewal_failed_stays_beside_the_old_ones(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is drained for settings with which the next one cannot start."""
    drained: list[Member] = []
    monkeypatch.setattr(supervisor._processes, "drain", lambda member, **_: drained.append(member))
    monkeypatch.setattr(supervisor, "_make", lambda _: None)
    supervisor._staying.generation = 1
    with serving(supervisor):
        (old,) = supervisor._processes
        ends = [Channel.pair() for _ in range(2)]
        new, failing = (
            Member(number, Role.WORKER, (1 << 22) + number, ours, frozenset(), 1, time.monotonic(), stage)
            for number, (ours, _), stage in zip((8, 9), ends, (Stage.READY, Stage.STARTING), strict=True)
        )
        for member in (new, failing):
            supervisor._processes.take_over(member)
        failing.failure = "no memory", False
        supervisor._processes.over(failing.pid, 1)
        supervisor._tend()
        assert [member.generation for member in supervisor._processes] == [1, 1]
        assert {*supervisor._processes} == {old, new}
        assert drained == []
        assert supervisor._staying.reload["reason"] == "no memory"
        supervisor._processes.leaving = True
        supervisor._processes.over(new.pid, 0)
        for _, theirs in ends:
            theirs.close()


def test_a_broker_process_that_is_killed_at_its_start_is_no_good_reload(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says nothing. The one of before, which became ready meanwhile, has not the settings of now."""
    monkeypatch.setattr(supervisor, "_make", lambda _: None)
    supervisor._staying.generation = 1
    ends = [Channel.pair() for _ in range(2)]
    old, new = (
        Member(number, Role.HOST, (1 << 22) + number, ours, frozenset(), number, time.monotonic())
        for number, (ours, _) in enumerate(ends)
    )
    for member in (old, new):
        supervisor._processes.take_over(member)
    supervisor._processes._heard(old, {"ready": "unix:/nowhere"})
    old.stage = Stage.DRAINING
    supervisor._processes.over(old.pid, 0)
    assert supervisor._staying.reload["reason"] == ""
    for _ in range(2):
        supervisor._ended_unasked(new, -signal.SIGKILL)
        reload = supervisor._staying.reload
        assert (reload["count"], reload["reason"]) == (1, "a host process killed by SIGKILL")
    supervisor._processes._heard(new, {"ready": "unix:/nowhere"})
    assert supervisor._staying.reload["reason"] == ""
    supervisor._processes.leaving = True
    supervisor._processes.over(new.pid, 0)
    for _, theirs in ends:
        theirs.close()


def test_a_reload_asked_for_meanwhile_is_taken_though_a_worker_is_missing(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be missing because it cannot start with the settings that are to be corrected."""
    monkeypatch.setattr(module, "spawn_trial", lambda _: 12_345)
    monkeypatch.setattr(module, "kill_trial", lambda _: None)
    monkeypatch.setattr(supervisor, "_make", lambda _: None)
    supervisor._trial = 1
    supervisor._signalled(signal.SIGHUP)
    supervisor._tried(1)  # the settings were wrong when they were read
    supervisor._tend()
    assert (supervisor._trial, supervisor._again) == (12_345, False)


def test_who_dials_when_all_workers_drain_already_is_refused(supervisor: Supervisor) -> None:
    """A signal to all processes, as systemd sends it: the time in which they would serve on is over."""
    door = bound(supervisor)
    with serving(supervisor, door.number):
        supervisor._open()
        supervisor._leave(lame_s=5.0)
        with socket.create_connection(("127.0.0.1", door.listen.port)):
            pass
        (worker,) = supervisor._processes
        supervisor._processes._drains(worker)  # it said so
        supervisor._tend()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", door.listen.port))


def test_workers_of_a_broker_that_is_new_wait_for_its_process(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reload may name an embedded broker where there was a cluster: until it serves, nobody knows where."""
    made: list[Role] = []
    monkeypatch.setattr(supervisor, "_make", made.append)
    supervisor._staying.generation = 1
    ours, theirs = Channel.pair()
    with serving(supervisor), closing(theirs):
        supervisor._tend()
        assert made == [Role.HOST]
        host = Member(8, Role.HOST, 1 << 22, ours, frozenset(), 1, time.monotonic())
        supervisor._processes.take_over(host)
        supervisor._tend()
        assert made == [Role.HOST]
        theirs.send({"ready": "unix:/somewhere/broker"})
        supervisor._processes._turned(host)
        assert made == [Role.HOST, Role.WORKER]
        assert supervisor._post(Role.WORKER, 9, theirs).broker == "popgate+unix:/somewhere/broker"
        # While it is being made again, workers are made all the same: they wait for it a while.
        del made[:]
        supervisor._processes.over(host.pid, 1)
        supervisor._tend()
        assert made == [Role.HOST, Role.WORKER]


def test_the_process_of_a_broker_stays_as_long_as_a_worker_needs_it(
    settings_for: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reload names a cluster, and no worker can start before it: those of before go on."""
    supervisor = Supervisor(settings_for(broker="rocketmq://127.0.0.1:1"), 1, SupervisorState.first())
    drained: list[Member] = []
    monkeypatch.setattr(supervisor._processes, "drain", lambda member, **_: drained.append(member))
    monkeypatch.setattr(supervisor, "_make", lambda _: None)
    supervisor._staying.generation = 1
    ends = [Channel.pair() for _ in range(2)]
    with serving(supervisor):
        (old,) = supervisor._processes
        old.is_guest = True
        host, new = (
            Member(number, role, (1 << 22) + number, ours, frozenset(), generation, time.monotonic(), stage)
            for number, role, (ours, _), generation, stage in (
                (8, Role.HOST, ends[0], 0, Stage.READY),
                (9, Role.WORKER, ends[1], 1, Stage.STARTING),
            )
        )
        for member in (host, new):
            supervisor._processes.take_over(member)
        new.failure = "no name server can be reached", False
        supervisor._processes.over(new.pid, 1)
        supervisor._tend()
        assert drained == []
        old.is_guest = False  # as if it were one of the next settings
        supervisor._tend()
        assert drained == [host]
        supervisor._processes.leaving = True
        supervisor._processes.over(host.pid, 0)
    for _, theirs in ends:
        theirs.close()
    supervisor._end()
