"""One RocketMQ for all test processes of a machine: the first starts it, and none leaves it behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from popgate.testing.made import Missing
from popgate.testing.rocketmq.asking import addresses_known
from popgate.testing.rocketmq.fetching import chosen_version, jars
from popgate.testing.rocketmq.ports import is_open

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
    places = tmp_path / "t"
    places.mkdir()
    started = []

    def start():
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", USE],
                env={**os.environ, "TMPDIR": str(places)},
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
    name_server, broker, folder = told.split()
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
