"""One RocketMQ for all test processes of a machine: the first starts it, and none leaves it behind.

A program stands in for Java, as in `tests/unit/popgate/testing/rocketmq`: a second RocketMQ beside the one
that other tests share would take half of a small machine. Processes, ports, locks and folders are real.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from popgate.testing.made import Missing
from popgate.testing.rocketmq.downloads import chosen_version, jars
from popgate.testing.rocketmq.ports import is_open
from popgate.testing.rocketmq.requests import addresses_known
from popgate.testing.rocketmq.shared import FOLDER_VARIABLE

JAVA = """#!{python}
import json, socket, sys
from pathlib import Path
from popgate.testing.rocketmq.requests import ask
from popgate.wire.frames.codes import RequestCode
from popgate.wire.frames.remoting import RemotingWire

lines = Path(sys.argv[-1]).read_text().splitlines()
settings = dict(line.split("=", 1) for line in lines if "=" in line)
port = int(settings["listenPort"])
try:
    listening = socket.create_server(("127.0.0.1", port))
except OSError:
    raise SystemExit("java.net.BindException: Address already in use")
brokers = {{}}
if "brokerName" in settings:
    fields = {{"brokerName": settings["brokerName"], "brokerAddr": f"127.0.0.1:{{port}}"}}
    ask(settings["namesrvAddr"], RequestCode.REGISTER_BROKER, fields)
print("boot success", flush=True)
while True:
    connection, _ = listening.accept()
    wire = RemotingWire()
    with connection:
        while data := connection.recv(65536):
            wire.receive(data)
            while (request := wire.next_event()) is not None:
                if request.code == RequestCode.REGISTER_BROKER:
                    address = request.fields["brokerAddr"]
                    brokers[request.fields["brokerName"]] = {{"brokerAddrs": {{"0": address}}}}
                wire.send(request.answer(0, body=json.dumps({{"brokerAddrTable": brokers}}).encode()))
            connection.sendall(b"".join(wire.data_to_send()))
"""
"""A name server or a broker: it tells which brokers there are, and nothing else."""
USE = """
import sys
from popgate.testing.rocketmq import shared_rocketmq
with shared_rocketmq() as cluster:
    print(cluster.name_server, cluster.broker, cluster.folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def use(tmp_path):
    """Starts processes that use the cluster until their input ends; apart from everybody else's."""
    try:
        jars(chosen_version())
    except Missing as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(str(missing))
        pytest.skip(str(missing))
    places, tools = tmp_path / "t", tmp_path / "tools"
    places.mkdir()
    tools.mkdir()
    (tools / "java").write_text(JAVA.format(python=sys.executable))
    (tools / "java").chmod(0o755)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    started = []

    def start(folder=None):
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", USE],
                env={
                    **os.environ,
                    FOLDER_VARIABLE: str(folder or tmp_path / "locks"),
                    "TMPDIR": str(places),
                    "PATH": path,
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_processes_use_one_cluster_and_the_last_one_ends_it(use, tmp_path):
    first, second = use(), use()
    told = first.stdout.readline()
    assert second.stdout.readline() == told
    name_server, broker, folder = told.rstrip("\n").split(" ", 2)
    assert {0: broker} in addresses_known(name_server).values()
    first.kill()
    first.wait()
    assert {0: broker} in addresses_known(name_server).values()
    second.stdin.close()
    second.wait()
    deadline = time.monotonic() + 300
    while os.path.exists(folder) or is_open(int(name_server.rpartition(":")[2])):
        assert time.monotonic() < deadline, "the cluster was left behind"
        time.sleep(0.1)
    assert not is_open(int(broker.rpartition(":")[2]))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_processes_with_a_folder_of_their_own_share_with_nobody_else(use, tmp_path):
    ours, theirs = use(), use(tmp_path / "others")
    assert ours.stdout.readline() != theirs.stdout.readline()
