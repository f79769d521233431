"""One process hosts a broker, others are its guests: any of them can finish any message."""

from __future__ import annotations

import contextlib
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from popgate.testing import GatewayDidNotStart, GatewayProcess
from tests.support.waiting import PATIENCE_S, wait_until

LONGEST_S = 2 * PATIENCE_S
"""For a host and its guests, four processes that start at the same time."""
POLL_MS = 150_000
"""Of who waits until something else happens, however long that takes."""


class Refused(Exception):
    """With the code of the answer."""


class Gateway(GatewayProcess):
    """A process that is asked at its admin port."""

    def ask(self, path: str, value: Any = None, *, method: str = "") -> Any:
        """The answer. Raises Refused for one that is none, ConnectionError, URLError."""
        data = json.dumps(value).encode() if value is not None else None
        method = method or ("POST" if data else "GET")
        request = urllib.request.Request(
            f"{self.admin}{path}", data=data, headers={"content-type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=LONGEST_S) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise Refused(error.code) from None
        return json.loads(text) if text else None

    def send(self, topic: str, *bodies: str) -> None:
        messages = [{"body": body} for body in bodies]
        for result in self.ask(f"/api/topics/{topic}/messages", {"messages": messages})["results"]:
            assert "message_id" in result, result

    def receive(self, topic: str, group: str, *, wait_ms: int = 500) -> list[Any]:
        asked = {"group": group, "max_messages": 32, "wait_ms": wait_ms, "invisible_ms": 600_000}
        found: list[Any] = self.ask(f"/api/topics/{topic}/receive", asked)["messages"]
        return found

    def ack(self, topic: str, group: str, *messages: Any) -> None:
        receipts = [message["receipt"] for message in messages]
        answer = self.ask(f"/api/topics/{topic}/ack", {"group": group, "receipts": receipts})
        assert answer["results"] == [None] * len(receipts)

    def is_ready(self) -> bool:
        try:
            return bool(self.ask("/ready")["state"] == "ready")
        except (Refused, urllib.error.URLError, ConnectionError):
            return False

    def is_back(self) -> bool:
        """Whether all its workers are ready and have reached their host: `/ready` is of one of them."""
        told = self.figures()
        connected, silent = told.get("popgate_broker_host_connected"), told.get("popgate_workers_silent", 0)
        return (connected, silent) == (1, 0) and self.is_ready()

    def waiting_pops(self) -> int:
        """How many receives wait at its broker, whoever they came by."""
        return int(self.figures()["popgate_broker_waiting_pops"])

    def figures(self) -> dict[str, float]:
        """Its metrics that have no labels, of all its processes."""
        with urllib.request.urlopen(f"{self.admin}/metrics", timeout=LONGEST_S) as answer:
            text = answer.read().decode()
        return {name: float(value) for name, value in re.findall(r"^(\w+) (\S+)$", text, re.MULTILINE)}


class Town:
    """A host and its guests, on a socket in a folder."""

    def __init__(self, folder: Path, closing: contextlib.ExitStack) -> None:
        self.folder = folder
        self.closing = closing
        self.socket = folder / "s"

    def host(self) -> Gateway:
        return self.started(Gateway(self.folder / "host", options=["--share-broker", f"unix:{self.socket}"]))

    def guests(self, count: int, request_timeout_s: int = 50) -> list[Gateway]:
        """As shipped they wait 10 s for their host, as long as a busy machine may stand still."""
        times = {"startup_timeout_s": 100, "request_timeout_s": request_timeout_s}
        patient = [word for name, value in times.items() for word in ("--set", f"shared.{name}={value}")]
        for most in ("limits.max_wait_s", "api.max_wait_s"):
            patient += ["--set", f"{most}={POLL_MS // 1000}"]
        url = f"popgate+unix:{self.socket}"
        with ThreadPoolExecutor(count) as pool:
            made = [Gateway(options=["--broker", url, *patient]) for _ in range(count)]
            return list(pool.map(self.started, made))

    def started(self, gateway: Gateway) -> Gateway:
        self.closing.callback(gateway.close)
        gateway.start()
        return gateway


@pytest.fixture
def town(socket_folder: Path) -> Iterator[Town]:
    with contextlib.ExitStack() as closing:
        yield Town(socket_folder, closing)


def bodies(messages: list[Any]) -> list[str]:
    return sorted(message["body"] for message in messages)


def test_any_guest_finishes_any_message_whoever_is_killed(town: Town) -> None:
    """Sent through A, received through B, finished through C, with A and then B killed in between."""
    town.host()
    a, b, c = town.guests(3)
    a.send("t", *(f"m{number}" for number in range(20)))
    got = b.receive("t", "g")
    assert bodies(got) == sorted(f"m{number}" for number in range(20))
    a.send("t", "after")
    a.kill()
    c.ack("t", "g", *got[:10])
    b.kill()
    c.ack("t", "g", *got[10:])
    assert bodies(c.receive("t", "g", wait_ms=5_000)) == ["after"]
    assert c.receive("t", "g") == []


def test_guests_follow_their_host_when_it_is_killed_and_comes_back(town: Town) -> None:
    host = town.host()
    a, b = town.guests(2, request_timeout_s=10)  # one of them is asked while there is no host
    a.send("t", "one", "two")
    (held, _) = b.receive("t", "g")
    host.kill()
    for guest in (a, b):
        wait_until(lambda guest=guest: not guest.is_ready(), LONGEST_S)
    with pytest.raises(Refused, match="503"):
        a.send("t", "lost?")
    town.host()
    for guest in (a, b):
        wait_until(guest.is_back, LONGEST_S)
    a.ack("t", "g", held)
    a.send("t", "three")
    assert bodies(b.receive("t", "g", wait_ms=5_000)) == ["three"]


def test_a_killed_guest_holds_nothing_that_it_waited_for(town: Town) -> None:
    """Its waiting receives are gone with it: what comes afterwards goes to those who are there."""
    host = town.host()
    a, b = town.guests(2)
    a.send("t", "first")
    assert bodies(a.receive("t", "g", wait_ms=5_000)) == ["first"]
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(a.receive, "t", "g", wait_ms=POLL_MS) for _ in range(4)]
        wait_until(lambda: host.waiting_pops() >= 4, LONGEST_S)
        a.kill()
        wait_until(lambda: host.waiting_pops() == 0, LONGEST_S)
        b.send("t", *(f"m{number}" for number in range(8)))
        assert bodies(b.receive("t", "g", wait_ms=5_000)) == [f"m{number}" for number in range(8)]
        for one in waiting:
            assert one.exception() is not None


def test_a_drained_host_ends_waits_and_tells_its_guests(town: Town) -> None:
    host = town.host()
    (a,) = town.guests(1)
    a.send("t", "first")
    assert len(a.receive("t", "g", wait_ms=5_000)) == 1
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(a.receive, "t", "g", wait_ms=POLL_MS)
        wait_until(lambda: host.waiting_pops() == 1, LONGEST_S)
        assert host.terminate() == 0
        with contextlib.suppress(Refused):
            assert waiting.result() == []
    wait_until(lambda: not a.is_ready(), LONGEST_S)
    assert "stopped " in host.output
    assert "Traceback" not in host.log
    assert "Traceback" not in a.log
    assert not town.socket.exists()
    assert a.terminate() == 0, "without its host, too"


def test_beyond_this_machine_a_secret_is_needed_and_proved(town: Town) -> None:
    with pytest.raises(GatewayDidNotStart, match="only with a secret"):
        town.started(Gateway(options=["--share-broker", "tcp://0.0.0.0:0"]))
    secret = town.folder / "secret"
    secret.write_text("correct horse\n")
    host = Gateway(options=["--share-broker", "tcp://0.0.0.0:0", "--set", f"shared.secret_file={secret}"])
    town.started(host)
    (address,) = [line for line in host.output.splitlines() if line.startswith("sharing ")]
    url = f"popgate://127.0.0.1:{address.rpartition(':')[2]}"
    with pytest.raises(GatewayDidNotStart, match="does not know the secret"):
        town.started(Gateway(options=["--broker", url, "--set", "shared.secret=wrong"]))
    friend = Gateway(options=["--broker", url, "--set", f"shared.secret_file={secret}"])
    town.started(friend)
    friend.send("t", "hello")
    assert bodies(host.receive("t", "g", wait_ms=5_000)) == ["hello"]
    assert "correct horse" not in host.log + friend.log + host.output
