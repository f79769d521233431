"""Servers are started, watched and ended; a program that stands in for Java shows how."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from popgate.testing.rocketmq import reaper as reaper_program
from popgate.testing.rocketmq.ports import free_ports, is_open
from popgate.testing.rocketmq.servers import JavaServer, Reaper, RocketMQDidNotStart

JAVA = """#!{python}
import os, signal, socket, sys, time
port, how = int(sys.argv[-2]), sys.argv[-1]
if how == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
listening = socket.socket()
listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
try:
    listening.bind(("127.0.0.1", port))
except OSError:
    raise SystemExit("java.net.BindException: Address already in use")
if how == "broken":
    raise SystemExit("it is broken")
listening.listen()
print("home is", os.environ["ROCKETMQ_HOME"], flush=True)
while True:
    listening.accept()[0].close()
"""


@pytest.fixture
def reaper():
    made = Reaper()
    yield made
    made.close()


@pytest.fixture
def make(tmp_path, monkeypatch, reaper):
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "java").write_text(JAVA.format(python=sys.executable))
    (tools / "java").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    made = []

    def make(how="well", ports=()):
        offered = list(ports)

        def arguments(server):
            server.port = server.port or (offered.pop(0) if offered else free_ports())
            return [str(server.port), how]

        folder = tmp_path / f"server-{len(made)}"
        folder.mkdir()
        server = JavaServer(
            "server",
            "Main",
            jars=tmp_path,
            folder=folder,
            reaper=reaper,
            arguments=arguments,
            says="home is",
            ready=lambda server: is_open(server.port),
            options=(),
        )
        made.append(server)
        return server

    yield make
    for server in made:
        server.kill()


def ended(pid):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def ended_or_a_zombie(server):
    deadline = time.monotonic() + 60
    while server.runs and time.monotonic() < deadline:
        time.sleep(0.01)
    return not server.runs


def test_it_is_ready_when_it_answers_and_comes_again_at_the_same_address(make):
    server = make().start()
    address = server.address
    assert server.runs
    assert is_open(server.port)
    assert f"home is {server.folder / 'home'}" in server.last_words()
    server.stop()
    assert not server.runs
    assert not is_open(server.port)
    server.start()
    assert server.address == address
    server.kill()
    assert not server.runs


def test_one_that_does_not_start_tells_its_last_words(make):
    with pytest.raises(RocketMQDidNotStart, match="it is broken"):
        make("broken").start()


def test_a_port_that_somebody_took_meanwhile_is_left_to_them(make):
    first = make().start()
    second = make(ports=[first.port]).start()
    assert second.port != first.port
    assert first.runs
    assert second.runs


def test_one_that_does_not_want_to_stop_is_killed(make, monkeypatch):
    monkeypatch.setattr("popgate.testing.rocketmq.servers.STOPPED_WITHIN_S", 0.2)
    server = make("stubborn").start()
    server.stop()
    assert not server.runs


def test_a_server_can_be_made_to_hang(make):
    server = make().start()
    server.signal(signal.SIGSTOP)
    server.signal(signal.SIGCONT)
    assert is_open(server.port)


def test_what_an_owner_left_is_ended_and_removed(make, reaper, tmp_path):
    folder = tmp_path / "left"
    folder.mkdir()
    server = make().start()
    reaper.tell(str(folder))
    reaper.close()
    server.wait(60)
    assert not folder.exists()


def test_an_owner_that_is_killed_leaves_nothing(tmp_path):
    words = (
        "import subprocess, sys, time\n"
        "from popgate.testing.rocketmq.servers import Reaper\n"
        "reaper = Reaper()\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'])\n"
        "reaper.tell(f'+{child.pid}')\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(1000)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE, text=True)
    child = int(owner.stdout.readline())
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert ended(child)


def test_one_that_ended_by_itself_can_be_started_again(make):
    server = make().start()
    os.kill(server.pid, signal.SIGKILL)
    assert ended_or_a_zombie(server)
    server.start()
    assert is_open(server.port)
    with pytest.raises(RuntimeError, match="runs already"):
        server.launch()


def test_a_process_that_got_the_number_of_another_one_is_left_alone(monkeypatch):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    starts = iter(["then", "now"])
    monkeypatch.setattr(reaper_program, "_start_of", lambda pid: next(starts, "now"))
    reaper_program.watch([f"+{child.pid}\n"])
    assert child.poll() is None
    monkeypatch.undo()
    reaper_program.watch([f"+{child.pid}\n"])
    assert child.wait(60) == -signal.SIGTERM


def test_what_has_ended_is_not_ended_again(reaper, tmp_path):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    reaper.tell(f"+{child.pid}")
    reaper.tell(f"-{child.pid}")
    reaper.close()
    assert child.poll() is None
    child.kill()
    child.wait()


def test_ports_are_adjacent_and_free():
    first = free_ports(4)
    assert not any(is_open(port) for port in range(first, first + 4))
