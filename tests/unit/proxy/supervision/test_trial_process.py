"""proxy.supervision.trial_process: ports are taken before a supervisor becomes another program, or none."""

from __future__ import annotations

import errno
import os
import pickle
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.config.error import SettingsWrong
from proxy.config.handover import Settled, settle
from proxy.config.loader import load_settings
from proxy.supervision import trial
from proxy.supervision.doors import Doors
from proxy.supervision.poll_loop import PollLoop
from proxy.supervision.replacement import SETTINGS, SupervisorState, load_anew
from proxy.supervision.trial_process import bind_anew, why_failed
from proxy.workers.crew import ADMIN

ANY = "grpc://127.0.0.1:0"


class Bench:
    def __init__(self, folder: Path) -> None:
        self.turning = PollLoop()
        self.doors = Doors(self.turning, lambda *_: True)
        self.staying = SupervisorState(folder, b"secret")
        self.doors.bind(self.staying.next_number(), ANY)
        self.doors.bind(ADMIN, "http://127.0.0.1:0")

    def bind(self, *listen: str, admin: str = "http://127.0.0.1:0") -> str:
        settings = load_settings(
            environment={}, flags={"listen": list(listen), "admin": admin, "tls": {"mode": "off"}}
        )
        (self.staying.folder / SETTINGS).write_bytes(pickle.dumps(settle(settings)))
        return bind_anew(self.doors, self.staying)

    @property
    def urls(self) -> list[str]:
        return [door.url for door in self.doors.served]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.doors.close()
    made.turning.close()


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as link:
        link.bind(("127.0.0.1", 0))
        link.listen()
        yield link.getsockname()[1]


def test_new_addresses_are_bound_beside_those_that_are_held(bench: Bench) -> None:
    held = bench.doors.served
    assert bench.bind(ANY, "grpc://127.0.0.1:0?advertised=a:1", ANY) == ""
    assert bench.doors.served[0] == held[0]
    assert len(bench.urls) == 3
    assert (bench.staying.folder / SETTINGS).exists()


def test_another_protocol_at_a_port_that_is_held_needs_no_new_port(bench: Bench) -> None:
    """As in a gateway of one process. A port that the system chose is found by its protocol."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    bench.doors.bind(bench.staying.next_number(), f"grpc://127.0.0.1:{port}")
    before = bench.doors.served
    assert bench.bind(ANY, f"grpc+remoting://127.0.0.1:{port}") == ""
    assert bench.doors.served == before


@pytest.mark.parametrize(
    "left",
    [b"cproxy.config.enums\nOfTomorrow\n.", pickle.dumps(Settled(listeners=(ANY,)))],
    ids=["a class that is not here", "other names"],
)
def test_settings_of_another_version_are_left_to_its_program(bench: Bench, left: bytes) -> None:
    """An upgrade: what serves knows the values of its own version only, and goes on until it is replaced."""
    file = bench.staying.folder / SETTINGS
    file.write_bytes(left)
    assert bind_anew(bench.doors, bench.staying) == ""
    assert file.read_bytes() == left
    assert bench.urls == [ANY]


def test_a_port_that_is_taken_is_the_reason_and_none_is_kept(bench: Bench, taken: int) -> None:
    why = bench.bind(ANY, "grpc://127.0.0.1:0", f"grpc://127.0.0.1:{taken}")
    assert why == f"cannot listen at grpc://127.0.0.1:{taken}: address already in use"
    assert bench.urls == [ANY]
    assert not (bench.staying.folder / SETTINGS).exists()


def test_new_addresses_are_given_back_if_the_program_cannot_be_loaded_anew(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has changed then: no process that is made later is to serve them with the old settings."""

    def execve(*_: object) -> None:
        raise OSError("not now")

    monkeypatch.setattr(os, "execve", execve)
    assert bench.bind(ANY, "remoting://127.0.0.1:0") == ""
    assert bench.urls == [ANY, "remoting://127.0.0.1:0"]
    with pytest.raises(OSError, match="not now"):
        load_anew(bench.staying, bench.doors)
    assert bench.urls == [ANY]
    assert bench.doors.admin


def test_so_is_that_of_the_admin_port(bench: Bench, taken: int) -> None:
    before = bench.doors.admin
    assert "already in use" in bench.bind(ANY, admin=f"http://127.0.0.1:{taken}")
    assert bench.bind(ANY, admin="http://127.0.0.2:0") == ""
    assert bench.doors.admin == before


def test_how_a_reload_ended_is_noted(bench: Bench) -> None:
    good = bench.staying.reload
    bench.staying.note_reload("no luck")
    assert bench.staying.reload == {"count": 1, "at_ms": good["at_ms"], "reason": "no luck"}
    bench.staying.note_reload()
    assert (bench.staying.reload["count"], bench.staying.reload["reason"]) == (2, "")


def test_a_reload_is_no_good_one_before_the_broker_has_started(bench: Bench) -> None:
    """Its process is renewed last, and none of before is left that could go on."""
    staying = bench.staying
    staying.note_host("at the start this ends the gateway")
    assert staying.reload["reason"] == ""
    staying.generation = 1
    for _ in range(2):  # it is tried again and again
        staying.note_host("cannot be opened")
        assert (staying.reload["count"], staying.reload["reason"]) == (1, "cannot be opened")
    staying.note_host()
    assert (staying.reload["count"], staying.reload["reason"]) == (2, "")
    staying.note_host("it was there already")
    assert (staying.reload["count"], staying.reload["reason"]) == (2, "")


@pytest.mark.parametrize("place", ["file/store", "file", "kept/store"])
def test_a_folder_that_cannot_be_written_is_no_good_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "kept").mkdir()
    monkeypatch.setenv("_POPGATE_TRIAL", str(tmp_path / "trial"))
    monkeypatch.setattr(trial.os, "access", lambda path, _mode: path != tmp_path / "kept")
    for broker, data in ((f"embedded:{tmp_path / place}", tmp_path), ("embedded:", tmp_path / place)):
        settings = load_settings(environment={}, flags={"broker": broker, "data": data, "admin": "off"})
        with pytest.raises(SettingsWrong, match=f"cannot write in {tmp_path / place}"):
            trial.look(settle(settings))
    trial.look(settle(load_settings(environment={}, flags={"data": tmp_path / "new", "admin": "off"})))
    assert (tmp_path / "trial").exists()
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_looked_into_is_no_good_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    look = Path.stat

    def stat(path: Path, **options: bool) -> os.stat_result:
        if path.parent == kept:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return look(path, **options)

    monkeypatch.setattr(Path, "stat", stat)
    monkeypatch.setattr(trial.os, "access", lambda path, _mode: path != kept)
    settings = load_settings(environment={}, flags={"broker": f"embedded:{kept / 'store'}", "admin": "off"})
    with pytest.raises(SettingsWrong, match="cannot write in"):
        trial.look(settle(settings))


def test_a_trial_that_said_nothing_is_told_by_its_end(tmp_path: Path) -> None:
    assert why_failed(tmp_path, 3) == "the program does not start as it is now: it ended with 3"
