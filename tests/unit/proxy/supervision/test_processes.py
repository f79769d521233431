"""proxy.supervision.processes: what processes are told, and what becomes of those that do not answer."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.supervision import processes as module
from proxy.supervision.poll_loop import READ, PollLoop
from proxy.supervision.processes import Processes
from proxy.supervision.replacement import SupervisorState
from proxy.workers.channel import Channel
from proxy.workers.crew import ADMIN, Member, Role, Stage
from tests.support.memory_shortage import ShortOfMemory
from tests.support.waiting import wait_until


class Bench:
    """Processes of a supervisor that never is one: the members are children that sleep."""

    def __init__(self, folder: Path) -> None:
        self.turning = PollLoop()
        self.processes = Processes(
            self.turning,
            SupervisorState(folder, b"secret"),
            0.0,
            changed=lambda: None,
            ended=lambda member, code: None,
            returned=lambda door, connection: self.returned.append((door, connection)),
        )
        self.returned: list[tuple[int, socket.socket]] = []
        self.children: list[subprocess.Popen[bytes]] = []
        self.ends: list[Channel] = []

    def member(self, stage: Stage = Stage.READY) -> tuple[Member, Channel]:
        """One that was there before, and its end of the channel."""
        ours, theirs = Channel.pair()
        child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
        self.children.append(child)
        self.ends += ours, theirs
        made = Member(len(self.children), Role.WORKER, child.pid, ours, frozenset({1}), 0, 0.0, stage)
        self.processes.take_over(made)
        return made, theirs

    def answers(self, theirs: Channel) -> None:
        """From now on whoever has this end says that it lives, when it is asked."""

        def answer() -> None:
            while (came := theirs.receive()) is not None:
                if came[1] >= 0:
                    os.close(came[1])
                if "alive" in came[0]:
                    theirs.send({"alive": True})

        self.turning.watch(theirs.fileno(), READ, answer)

    def turn(self, seconds: float) -> None:
        self.turning.over = False

        def over() -> None:
            self.turning.over = True

        self.turning.later(seconds, over)
        self.turning.run()

    def ended(self, child: subprocess.Popen[bytes]) -> int | None:
        """Its code, when it ends while all goes on."""
        wait_until(lambda: child.poll() is not None, turn=lambda: self.turn(0.02))
        return child.poll()

    def close(self) -> None:
        for child in self.children:
            child.kill()
            child.communicate()
        for end in self.ends:
            end.close()
        for _, connection in self.returned:
            connection.close()
        self.turning.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def test_who_does_not_read_costs_no_memory_and_is_told_the_last_of_all(bench: Bench) -> None:
    member, theirs = bench.member()
    for _ in range(3_000):
        bench.processes.tell_all()
    bench.processes._staying.restarts = 17
    bench.processes.tell_all()
    assert member.channel.kept <= 1
    told: dict[str, Any] = {}
    while told.get("restarts") != 17:
        bench.turn(0.0)
        came = theirs.receive()
        assert came is not None
        told = came[0]["crew"]


def test_processes_are_told_that_a_renewal_is_under_way(bench: Bench) -> None:
    """Who asks for another reload is not answered before it is over."""
    bench.member()
    assert not bench.processes._told_of_all()["crew"]["renewing"]
    bench.processes._staying.generation += 1
    assert bench.processes._told_of_all()["crew"]["renewing"]


def test_what_there_was_no_memory_for_is_told_when_there_is(bench: Bench) -> None:
    """Else the process would hear nothing more, count as one that hangs, and be killed."""
    member, theirs = bench.member()
    end = ShortOfMemory(member.channel._end)
    member.channel._end = end  # type: ignore[assignment]
    bench.processes.tell(member, {"alive": True})
    bench.processes.tell(member, {"admin": False})
    bench.turn(0.1)
    assert len(end.failed) <= 8, "it was tried without a pause"
    end.short = False
    came = wait_until(theirs.receive, turn=lambda: bench.turn(0.01))
    assert came == ({"alive": True}, -1)
    assert theirs.receive() == ({"admin": False}, -1)
    assert member.channel.kept == 0


def test_who_was_draining_before_the_program_was_loaded_anew_is_killed_in_the_end(bench: Bench) -> None:
    bench.processes._patience_s = 0.05
    bench.member(Stage.DRAINING)
    assert bench.ended(bench.children[0]) == -signal.SIGKILL


def test_who_never_answers_gets_no_connections_and_is_killed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ASK_S", 0.02)
    hangs, _ = bench.member()
    lives, answering = bench.member()

    bench.answers(answering)
    bench.processes.ask()
    wait_until(lambda: hangs.silent, turn=lambda: bench.turn(0.01))
    lives.connections = 5
    with socket.socket() as connection:
        assert bench.processes.hand(1, connection.fileno())
    assert (hangs.connections, lives.connections) == (0, 6)
    assert bench.ended(bench.children[0]) == -signal.SIGKILL
    assert bench.children[1].poll() is None


def test_who_has_no_descriptor_left_gets_nothing_for_a_moment(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    member, theirs = bench.member()
    rests: list[Callable[[], None]] = []
    later = bench.turning.later

    def noted(seconds: float, work: Callable[[], None]) -> Any:
        if seconds == module._FULL_S:
            rests.append(work)
            return None
        return later(seconds, work)

    monkeypatch.setattr(bench.turning, "later", noted)
    with socket.socket() as connection:
        assert bench.processes.hand(1, connection.fileno())
        theirs.send({"full": 1, "closed": 1})
        while not member.full:
            bench.turn(0.0)
        assert member.connections == 0
        assert not bench.processes.hand(1, connection.fileno())
        (over,) = rests
        over()
        assert bench.processes.hand(1, connection.fileno())
    while (came := theirs.receive()) is not None:
        if came[1] >= 0:
            os.close(came[1])


def test_operators_go_elsewhere_too_where_a_process_has_no_descriptor_left(bench: Bench) -> None:
    """It would send each of them back at once, again and again."""
    (full, theirs), (other, others) = bench.member(), bench.member()
    full.has_admin = other.has_admin = True
    pairs = [socket.socketpair() for _ in range(2)]
    assert bench.processes.hand(ADMIN, pairs[0][0].fileno())
    theirs.send({"full": 1})
    wait_until(lambda: full.full, turn=lambda: bench.turn(0.0))
    assert bench.processes.hand(ADMIN, pairs[1][0].fileno())
    assert list(other.handed) == [2]
    others.send({"full": 2})
    wait_until(lambda: other.full, turn=lambda: bench.turn(0.0))
    assert not bench.processes.hand(ADMIN, pairs[0][0].fileno())
    assert [door for door, _ in bench.returned] == [ADMIN, ADMIN]
    for channel in (theirs, others):
        while (came := channel.receive()) is not None:
            if came[1] >= 0:
                os.close(came[1])
    for end in (*pairs[0], *pairs[1], *(back for _, back in bench.returned)):
        end.close()


def test_who_drains_by_itself_is_told_when_no_connection_comes_any_more(bench: Bench) -> None:
    """What was handed over before comes before that word: it need not be closed unserved."""
    _, theirs = bench.member()
    with socket.socket() as connection:
        assert bench.processes.hand(1, connection.fileno())
        theirs.send({"draining": True})
        heard: list[str] = []

        def hear() -> None:
            bench.turn(0.0)
            while (came := theirs.receive()) is not None:
                heard.extend(came[0])
                if came[1] >= 0:
                    os.close(came[1])

        wait_until(lambda: "drain" in heard, turn=hear)
        assert [one for one in heard if one != "crew"] == ["door", "number", "drain", "alone"]
        assert not bench.processes.hand(1, connection.fileno())


def test_who_drains_by_itself_as_all_do_is_told_that_nobody_else_serves(bench: Bench) -> None:
    """A signal to all processes: with the embedded broker no client is left to others until the end."""
    _, theirs = bench.member()
    bench.processes.leaving = bench.processes.alone = True
    theirs.send({"draining": True})
    heard: list[dict[str, Any]] = []

    def hear() -> None:
        bench.turn(0.0)
        while (came := theirs.receive()) is not None:
            heard.append(came[0])

    wait_until(lambda: any("drain" in message for message in heard), turn=hear)
    assert {"drain": True, "alone": True} in heard


def test_a_process_that_hears_the_signal_first_is_told_so_as_well(bench: Bench) -> None:
    """The signal to all reaches the supervisor a moment after it has read that a worker drains."""
    member, theirs = bench.member()
    theirs.send({"draining": True})
    bench.processes._turned(member)
    assert member.stage is Stage.DRAINING
    bench.processes.leaving = bench.processes.alone = True
    heard: list[dict[str, Any]] = []

    def hear() -> None:
        bench.turn(0.0)
        while (came := theirs.receive()) is not None:
            heard.append(came[0])

    wait_until(lambda: any("drain" in message for message in heard), turn=hear)
    assert [message for message in heard if "drain" in message] == [{"drain": True, "alone": True}]


def test_what_a_process_had_no_room_for_comes_back_whole(bench: Bench) -> None:
    member, theirs = bench.member()
    pairs = [socket.socketpair() for _ in range(3)]
    for connection, _ in pairs:
        assert bench.processes.hand(1, connection.fileno())
        connection.close()
    numbers = []
    for _ in pairs:
        came = theirs.receive()
        assert came is not None
        numbers.append(came[0]["number"])
        os.close(came[1])
    # The second one met a full process: the system closed what came.
    theirs.send({"full": numbers[1], "closed": 1})
    theirs.send({"took": numbers[2]})
    wait_until(lambda: not member.handed, turn=lambda: bench.turn(0.0))
    [(door, back)] = bench.returned
    assert door == 1
    back.send(b"still there")
    assert pairs[1][1].recv(100) == b"still there"
    # The others are the process's own now: it has closed them, and nobody keeps them open.
    assert (pairs[0][1].recv(1), pairs[2][1].recv(1)) == (b"", b"")
    assert member.connections == 2
    for _, client in pairs:
        client.close()


def test_connections_on_the_way_to_a_process_that_ends_are_closed(bench: Bench) -> None:
    member, theirs = bench.member()
    ours, client = socket.socketpair()
    assert bench.processes.hand(1, ours.fileno())
    ours.close()
    theirs.close()
    wait_until(lambda: member.gone, turn=lambda: bench.turn(0.0))
    assert client.recv(1) == b""
    client.close()


def test_operators_on_the_way_to_a_process_that_ends_are_for_another_one(bench: Bench) -> None:
    member, theirs = bench.member()
    member.has_admin = True
    pairs = [socket.socketpair() for _ in range(3)]
    for (connection, client), door in zip(pairs, (ADMIN, 1, ADMIN), strict=True):
        client.sendall(b"a question")
        assert bench.processes.hand(door, connection.fileno())
        connection.close()
    came = theirs.receive()
    assert came is not None
    os.close(came[1])
    theirs.send({"took": came[0]["number"]})  # the first one: that is its own business
    theirs.close()
    wait_until(lambda: member.gone, turn=lambda: bench.turn(0.0))
    [(door, back)] = bench.returned
    assert (door, back.recv(100)) == (ADMIN, b"a question")
    back.sendall(b"an answer")
    assert pairs[2][1].recv(100) == b"an answer"
    for _, client in pairs:
        client.close()


def test_who_leaves_the_operators_is_sent_no_more_of_them_and_told_when_the_last_one_has_come(
    bench: Bench,
) -> None:
    member, theirs = bench.member()
    theirs.send({"admin": True})
    wait_until(lambda: member.has_admin, turn=lambda: bench.turn(0.0))
    with socket.socket() as connection:
        assert bench.processes.hand(ADMIN, connection.fileno())
        theirs.send({"admin": False})
        heard: list[str] = []

        def hear() -> None:
            bench.turn(0.0)
            while (came := theirs.receive()) is not None:
                if came[1] >= 0:
                    os.close(came[1])
                heard.extend(word for word in came[0] if word in ("door", "admin"))

        wait_until(lambda: heard[-1:] == ["admin"], turn=hear)
        assert heard == ["door", "admin"]
        assert not bench.processes.hand(ADMIN, connection.fileno())


def test_no_more_copies_are_kept_than_fit_into_a_channel(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of an older program, which says nothing of numbers."""
    monkeypatch.setattr(module, "_MOST_HANDED", 4)
    member, theirs = bench.member()
    with socket.socket() as connection:
        for _ in range(9):
            assert bench.processes.hand(1, connection.fileno())
            came = theirs.receive()
            assert came is not None
            os.close(came[1])
    assert len(member.handed) == 4


def test_who_never_gets_ready_is_killed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASK_S", 0.01)
    monkeypatch.setattr(module, "_MOST_STARTING", {Role.WORKER: 5})
    hangs, theirs = bench.member(Stage.STARTING)
    bench.answers(bench.member(Stage.READY)[1])  # else it would be next, should the first one die slowly
    theirs.send({"admin": True})  # a word is not enough
    bench.processes.ask()
    assert bench.ended(bench.children[0]) == -signal.SIGKILL
    assert hangs.stage is Stage.STARTING
    assert bench.children[1].poll() is None
