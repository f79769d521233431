"""proxy.supervision.replacement: what a supervisor leaves to itself when its program is loaded anew."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.config.settings import Settings
from proxy.supervision.doors import Doors
from proxy.supervision.poll_loop import PollLoop
from proxy.supervision.replacement import SIGNALS, VARIABLE, SupervisorState, load_anew, stayed
from proxy.workers.channel import Channel
from proxy.workers.crew import Member, Role, Stage


@pytest.fixture
def doors() -> Iterator[Doors]:
    turning = PollLoop()
    made = Doors(turning, lambda door, descriptor: False)
    made.bind(4, "grpc://127.0.0.1:0?advertised=x:1")
    yield made
    made.close()
    turning.close()


@pytest.fixture
def staying() -> Iterator[SupervisorState]:
    made = SupervisorState.first()
    yield made
    for left in made.folder.iterdir():
        left.unlink()
    made.folder.rmdir()


def test_the_first_has_a_folder_of_its_own_and_a_secret(staying: SupervisorState) -> None:
    assert staying.folder.stat().st_mode & 0o777 == 0o700
    assert len(staying.secret) == 32
    assert [staying.next_number(), staying.next_number()] == [1, 2]
    assert stayed() is None


def test_sockets_find_room_where_the_usual_folder_has_a_long_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    folder = SupervisorState.first().folder
    assert len(str(folder / "admin-1234567")) <= 100
    folder.rmdir()


def test_who_ended_meanwhile_and_had_not_read_all_is_no_trouble(
    staying: SupervisorState, doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = Channel.pair()
    while not ours.kept:
        ours.send({"told": True})
    staying.members = [Member(7, Role.WORKER, 123, ours, frozenset({4}), 2, 50.0, Stage.READY)]

    def execve(*_: Any) -> None:
        raise OSError("not now")

    monkeypatch.setattr(os, "execve", execve)
    with pytest.raises(OSError, match="not now"):
        load_anew(staying, doors)
    theirs.close()
    monkeypatch.setenv(VARIABLE, str(staying.folder))
    again = stayed()
    assert again is not None
    with pytest.raises(EOFError):
        again.members[0].channel.receive()
    again.members[0].channel.close()
    ours._end.detach()  # it was the same descriptor


def test_what_waits_for_a_slow_process_is_told_though_nothing_is_loaded(
    staying: SupervisorState, doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = Channel.pair()
    sent = 0
    while ours.kept < 2:
        ours.send({"told": sent})
        sent += 1
    staying.members = [Member(7, Role.WORKER, 123, ours, frozenset({4}), 2, 50.0, Stage.READY)]

    def execve(*_: Any) -> None:
        raise OSError("not now")

    monkeypatch.setattr(os, "execve", execve)
    with pytest.raises(OSError, match="not now"):
        load_anew(staying, doors)
    heard: list[int] = []
    while (came := theirs.receive()) is not None:
        heard.append(came[0]["told"])
        ours.flush()
    assert heard == list(range(sent))
    ours.close()
    theirs.close()


def test_connections_that_no_process_could_take_are_there_again(
    staying: SupervisorState, doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the only worker has died and the next one is not ready yet."""
    doors.open([4])
    with socket.socket() as client:
        client.connect(("127.0.0.1", doors.served[0].listen.port))
        doors._accept(4)
        ((held,),) = doors.waiting().values()
        inheritable: list[bool] = []

        def execve(*_: Any) -> None:
            inheritable.append(held.get_inheritable())
            raise OSError("not now")

        monkeypatch.setattr(os, "execve", execve)
        with pytest.raises(OSError, match="not now"):
            load_anew(staying, doors)
        assert inheritable == [True]
        assert not held.get_inheritable()
        monkeypatch.setenv(VARIABLE, str(staying.folder))
        again = stayed()
        assert again is not None
        assert again.waiting == {4: [held.fileno()]}


class Full(io.StringIO):
    """Standard output on a full disk: what was said at the start still waits to be written."""

    def flush(self) -> None:
        raise OSError("no space left on device")


@pytest.mark.parametrize("output", [None, Full()], ids=["closed", "full"])
def test_a_standard_output_that_takes_nothing_is_no_reason_to_stay(
    staying: SupervisorState, doors: Doors, monkeypatch: pytest.MonkeyPatch, output: io.StringIO | None
) -> None:
    """Else no new settings are ever taken, and no other version."""

    def execve(*_: Any) -> None:
        raise OSError("not now")

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr(sys, "stdout", output)
    with pytest.raises(OSError, match="not now"):
        load_anew(staying, doors)


def test_everything_is_there_again(
    staying: SupervisorState, doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = Channel.pair()
    gone, other = Channel.pair()
    gone.close()
    other.close()
    staying.members = [
        Member(7, Role.WORKER, 123, ours, frozenset({4}), 2, 50.0, Stage.READY, True, 9, ready_at=60.0),
        Member(8, Role.HOST, 124, gone, frozenset(), 2, 50.0, gone=True),
    ]
    staying.members[0].is_guest = True
    staying.generation, staying.restarts, staying.share = 3, 5, "unix:/s"
    staying.share_setting = "unix:/t"
    seen: dict[str, Any] = {}

    def execve(program: str, arguments: list[str], environment: dict[str, str]) -> None:
        seen["environment"] = environment
        seen["held back"] = set(SIGNALS) <= signal.pthread_sigmask(signal.SIG_BLOCK, [])
        seen["inherited"] = os.get_inheritable(ours.fileno())
        raise OSError("not now")

    monkeypatch.setattr(os, "execve", execve)
    with pytest.raises(OSError, match="not now"):
        load_anew(staying, doors)
    assert seen["held back"]
    assert seen["inherited"]
    # It failed: all is as it was.
    assert not os.get_inheritable(ours.fileno())
    assert not set(SIGNALS) & signal.pthread_sigmask(signal.SIG_BLOCK, [])
    monkeypatch.setenv(VARIABLE, seen["environment"][VARIABLE])
    again = stayed()
    assert again is not None
    assert VARIABLE not in os.environ
    assert (again.folder, again.secret, again.generation) == (staying.folder, staying.secret, 3)
    assert (again.restarts, again.share, again.number) == (5, "unix:/s", staying.number)
    assert again.share_setting == "unix:/t"
    (member,) = again.members
    assert (member.number, member.pid, member.role, member.serves) == (7, 123, Role.WORKER, {4})
    assert (member.stage, member.has_admin, member.connections) == (Stage.READY, True, 9)
    assert member.is_guest
    assert member.ready_at is not None
    assert member.ready_at - member.since == pytest.approx(10.0)
    member.channel.send({"still": "there"})
    assert theirs.receive() == ({"still": "there"}, -1)
    ((door, links),) = again.doors
    assert door == doors.served[0]
    assert links == [link.fileno() for link in doors.sockets()[4][1]]
    assert stayed() is None
    theirs.close()
    member.channel.close()
    ours._end.detach()  # it was the same descriptor


@pytest.mark.parametrize("tells", [True, False], ids=["this", "a version that does not tell"])
def test_the_file_of_a_socket_is_known_again(
    staying: SupervisorState, doors: Doors, monkeypatch: pytest.MonkeyPatch, socket_folder: Path, tells: bool
) -> None:
    def execve(*_: Any) -> None:
        raise OSError("not now")

    doors.bind(5, f"grpc+unix:{socket_folder}/s")
    door, _ = doors.sockets()[5]
    monkeypatch.setattr(os, "execve", execve)
    with pytest.raises(OSError, match="not now"):
        load_anew(staying, doors)
    if not tells:
        file = staying.folder / "staying"
        state = json.loads(file.read_text())
        del state["files"]
        file.write_text(json.dumps(state))
    monkeypatch.setenv(VARIABLE, str(staying.folder))
    again = stayed()
    assert again is not None
    assert door.file is not None
    assert again.doors[-1][0] == door


@pytest.mark.parametrize(("role", "share"), [(Role.HOST, "unix:/a/broker"), (Role.WORKER, "")])
def test_the_place_of_a_broker_goes_with_all_who_need_it(
    staying: SupervisorState, doors: Doors, monkeypatch: pytest.MonkeyPatch, role: Role, share: str
) -> None:
    """Workers of a later one would look for it there before its process serves."""
    ours, theirs = Channel.pair()
    staying.share = "unix:/a/broker"
    staying.members = [Member(7, role, 123, ours, frozenset(), 2, 50.0, Stage.READY)]

    def execve(*_: Any) -> None:
        raise OSError("not now")

    monkeypatch.setattr(os, "execve", execve)
    with pytest.raises(OSError, match="not now"):
        load_anew(staying, doors)
    monkeypatch.setenv(VARIABLE, str(staying.folder))
    again = stayed()
    assert again is not None
    assert again.share == share
    again.members[0].channel.close()
    theirs.close()
    ours._end.detach()  # it was the same descriptor


def test_a_place_of_the_broker_that_new_settings_change_waits_for_a_restart(
    staying: SupervisorState, settings_for: Callable[..., Settings]
) -> None:
    """Guests know the one from before, and nobody would be told that it is still served there."""
    before = settings_for(share_broker="unix:/a/broker")
    after = settings_for(share_broker="")
    assert staying.place_of_broker(before.share_broker) == "unix:/a/broker"
    staying.share = "unix:/a/broker"
    waiting: list[list[str]] = []
    for settings in (before, after, before, settings_for(broker="rocketmq://127.0.0.1:1")):
        staying.note_waiting(settings)
        staying.note_reload("something else is wrong")
        waiting.append(staying.reload["waiting"])
    assert waiting == [[], ["share_broker"], [], []]
    assert staying.place_of_broker(after.share_broker) == "unix:/a/broker"
    staying.share = ""
    assert staying.place_of_broker(after.share_broker) == f"unix:{staying.folder}/broker"
    # A port that the system chose is that of the setting.
    staying.place_of_broker("tcp://127.0.0.1:0")
    staying.share = "tcp://127.0.0.1:4321"
    staying.note_waiting(settings_for(share_broker="tcp://127.0.0.1:0"))
    assert staying.reload["waiting"] == []
