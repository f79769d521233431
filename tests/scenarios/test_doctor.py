"""Scenario 12: clients find the gateway behind port mappings and balancers; `popgate doctor` says if not.

Addresses of the loopback range stand for networks: 127.0.0.2 with another port, forwarded to the gateway,
is what a NodePort, a load balancer or `docker run -p` is to a client.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from popgate.testing import GatewayProcess
from tests.e2e.commands import run_command


@dataclass
class Seen:
    """What the doctor said: findings by their check."""

    code: int
    findings: list[dict[str, str]]
    err: str

    def __getitem__(self, check: str) -> dict[str, str]:
        (found,) = [one for one in self.findings if one["check"] == check]
        return found

    @property
    def levels(self) -> dict[str, str]:
        return {one["check"]: one["level"] for one in self.findings}

    @property
    def problems(self) -> list[str]:
        return [one["check"] for one in self.findings if one["level"] == "problem"]


def run(*arguments: object) -> tuple[int, str, str]:
    ended = run_command("doctor", *arguments)
    return ended.code, ended.out, ended.err


def doctor(address: str, *options: object, timeout: str = "60s") -> Seen:
    code, out, err = run(address, "-o", "json", "--timeout", timeout, *options)
    return Seen(code, json.loads(out), err)


class Forwarder:
    """Carries the connections of one address to another, bytes for bytes."""

    def __init__(self, host: str, target: str) -> None:
        self._target = target
        self._server = socket.create_server(
            (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
        port = self._server.getsockname()[1]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._open: list[socket.socket] = [self._server]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._server.accept()
                self._open.append(here)
                try:
                    there = self._reached()
                except OSError:
                    here.close()  # as a balancer does, and the next one is taken all the same
                    continue
                self._open.append(there)
                for one, other in ((here, there), (there, here)):
                    threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _reached(self) -> socket.socket:
        host, _, port = self._target.rpartition(":")
        return socket.create_connection((host.strip("[]"), int(port)))

    @staticmethod
    def _carry(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@pytest.fixture
def forward() -> Iterator[Callable[[str, str], str]]:
    made: list[Forwarder] = []

    def forward(host: str, target: str) -> str:
        made.append(Forwarder(host, target))
        return made[-1].address

    yield forward
    for one in made:
        one.close()


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayProcess]:
    with GatewayProcess(options=["--set", "limits.max_body_bytes=1MiB"]) as gateway:
        yield gateway


@pytest.fixture
def nobody() -> Iterator[int]:
    """A port where nothing listens, of all addresses of this machine; nobody else is given it meanwhile."""
    with socket.socket() as held:
        held.bind(("", 0))
        yield int(held.getsockname()[1])


ALL_WELL = {
    "port": "ok",
    "http2": "ok",
    "health": "ok",
    "route": "ok",
    "advertised": "ok",
    "limits": "ok",
    "round-trip": "ok",
    "clocks": "ok",
    "message-size": "ok",
    "long-poll": "ok",
}


def test_scenario_12_the_doctor_finds_nothing_wrong_where_all_is_well(
    gateway: GatewayProcess,
) -> None:
    seen = doctor(gateway.endpoint, "--admin", gateway.admin)
    assert seen.levels == {
        **ALL_WELL,
        "admin": "ok",
        "ready": "ok",
        "disk": seen["disk"]["level"],
        "repeats": "ok",
    }
    assert seen["repeats"]["what"] == "a repeated send is recognised for 10m"
    assert seen.code == (1 if seen.problems else 0)
    assert "1048576 bytes" in seen["limits"]["what"]
    assert "1048576 bytes" in seen["message-size"]["what"]
    code, out, err = run(gateway.endpoint)
    assert (code, err) == (0, "0 problems, 0 warnings\n")
    assert [line.split("\t")[:2] for line in out.splitlines()][-1] == ["ok", "long-poll"]


def test_scenario_12_a_look_leaves_nothing_behind_that_it_can_delete(gateway: GatewayProcess) -> None:
    from proxy.cli.console.admin_client import Gateway

    with Gateway(gateway.admin) as api:
        for kind in ("topics", "groups"):
            for one in api.get(kind)[kind]:
                api.delete(kind, one["name"])
        assert doctor(gateway.endpoint, "--admin", gateway.admin)["round-trip"]["level"] == "ok"
        assert (api.get("topics")["topics"], api.get("groups")["groups"]) == ([], [])
        unseen = doctor(gateway.endpoint, "--no-write", "--admin", gateway.admin)
        assert unseen.problems in ([], ["disk"])
        assert unseen.levels["round-trip"] == unseen.levels["route"] == "skipped"
        assert api.get("topics")["topics"] == []


def test_a_shorter_window_of_repeated_sends_is_a_warning() -> None:
    """More is sent within `embedded.dedup_window_s` than `embedded.dedup_max_ids`."""
    from proxy.cli.console.admin_client import Gateway

    with GatewayProcess(options=["--set", "embedded.dedup_max_ids=1024"]) as gateway:
        with Gateway(gateway.admin) as api:
            api.post("topics", body={"name": "t"})
            for _ in range(64):
                api.post("topics", "t", "messages", body={"messages": [{"body": "x"}] * 32})
        after = doctor(gateway.endpoint, "--no-write", "--admin", gateway.admin)
    assert after["repeats"]["level"] == "warning"
    assert after["repeats"]["what"].endswith(", not for 10m (embedded.dedup_window_s)")
    assert "embedded.dedup_max_ids" in after["repeats"]["advice"]


def test_a_certificate_that_nobody_can_verify_is_a_warning() -> None:
    with GatewayProcess(environment={"POPGATE_TLS__MODE": "optional"}) as gateway:
        seen = doctor(gateway.endpoint, "--admin", gateway.admin)
    assert seen.code == 0
    assert seen.levels["certificate"] == "warning"
    assert "set tls.certificate and tls.key" in seen["certificate"]["advice"]


def test_no_certificate_is_spoken_of_where_no_door_shows_one() -> None:
    listen = ("grpc://127.0.0.1:0?tls=false",)
    with GatewayProcess(listen=listen, environment={"POPGATE_TLS__MODE": "optional"}) as gateway:
        seen = doctor(gateway.endpoint, "--admin", gateway.admin)
    assert "admin" in seen.levels
    assert "certificate" not in seen.levels


@pytest.mark.parametrize("host", ["127.0.0.2", "::1"])
def test_scenario_12_behind_a_port_mapping_clients_are_told_the_address_they_dialled(
    gateway: GatewayProcess, forward: Callable[[str, str], str], host: str
) -> None:
    seen = doctor(forward(host, gateway.endpoint))
    assert (seen.code, seen.levels) == (0, ALL_WELL)


def test_scenario_12_the_door_may_listen_on_ipv6_alone() -> None:
    with GatewayProcess(listen=("grpc://[::1]:0",)) as gateway:
        seen = doctor(gateway.endpoint)
    assert (seen.code, seen.levels) == (0, ALL_WELL)


def test_scenario_12_by_a_name_with_several_addresses_each_is_looked_at(gateway: GatewayProcess) -> None:
    port = gateway.endpoint.rpartition(":")[2]
    seen = doctor(f"localhost:{port}")
    assert seen["dns"]["level"] == "ok"
    assert seen["advertised"]["level"] == "ok"
    assert seen.code == 0


def test_scenario_12_an_advertised_address_that_cannot_be_reached_is_told(nobody: int) -> None:
    nowhere = f"127.0.0.3:{nobody}"
    with GatewayProcess(options=["--set", f"advertised.address={nowhere}"]) as gateway:
        seen = doctor(gateway.endpoint)
    assert (seen.code, seen.problems) == (1, ["advertised"])
    assert (
        f"{nowhere}, which cannot be reached from here: nothing listens there" in seen["advertised"]["what"]
    )
    assert "advertised.address" in seen["advertised"]["advice"]


def test_scenario_12_an_advertised_address_that_is_another_one_and_works_is_a_warning(
    forward: Callable[[str, str], str],
) -> None:
    with GatewayProcess() as inner:
        balancer = forward("127.0.0.2", inner.endpoint)
        with GatewayProcess(options=["--set", f"advertised.address={balancer}"]) as gateway:
            seen = doctor(gateway.endpoint)
    assert (seen.code, seen["advertised"]["level"]) == (0, "warning")
    assert f"are told to use {balancer}" in seen["advertised"]["what"]


def test_scenario_12_what_stands_in_the_way_is_named(gateway: GatewayProcess, nobody: int) -> None:
    refused = doctor(f"127.0.0.1:{nobody}")
    assert (refused.code, refused.problems) == (1, ["port"])
    assert "nothing listens there" in refused["port"]["what"]

    unknown = doctor("no-such-host.invalid:8081")
    assert (unknown.code, unknown.problems) == (1, ["dns"])

    admin = doctor(gateway.admin.removeprefix("http://"))
    assert admin.problems == ["http2"]
    assert "speaks HTTP/1.1" in admin["http2"]["what"]
    assert "admin port" in admin["http2"]["advice"]
    with GatewayProcess(listen=("remoting://127.0.0.1:0",)) as classic:
        other = doctor(classic.endpoint)
    assert other.problems == ["http2"]
    assert "speaks remoting, not gRPC" in other["http2"]["what"]
    for wrong in ("gateway", "a:b", "http://127.0.0.1:8081", "127.0.0.1:8081/path"):
        assert run(wrong)[0] == 2


class Listener:
    """Takes connections and treats each in one way."""

    def __init__(self, treat: Callable[[socket.socket], None]) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._treat = treat
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Listener:
        self._thread.start()
        return self

    def __exit__(self, *_unused: object) -> None:
        # A thread that waits in accept is not woken by close alone.
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(100)
        for one in self._open:
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                taken, _ = self._server.accept()
                self._open.append(taken)
                with contextlib.suppress(OSError):
                    self._treat(taken)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost"]
    done = subprocess.run(
        [*command, "-keyout", key, "-out", certificate], capture_output=True, timeout=60, check=False
    )
    if done.returncode:
        pytest.skip("there is no openssl here to make a certificate with")
    return key, certificate


def test_scenario_12_tls_where_none_is_expected_is_named(certificate: tuple[Path, Path]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate[1], certificate[0])
    context.set_alpn_protocols(["h2"])

    def treat(taken: socket.socket) -> None:
        with context.wrap_socket(taken, server_side=True) as secured:
            secured.recv(1)

    with Listener(treat) as listener:
        seen = doctor(listener.address)
    assert seen.problems == ["http2"]
    assert "speaks TLS (TLSv1.3, h2)" in seen["http2"]["what"]


def _says_nothing(taken: socket.socket) -> None:
    """The connection stays open until the listener ends."""


def _says(words: bytes) -> Callable[[socket.socket], None]:
    def treat(taken: socket.socket) -> None:
        taken.sendall(words)
        taken.shutdown(socket.SHUT_WR)

    return treat


@pytest.mark.parametrize(
    ("treat", "said"),
    [
        (lambda taken: taken.close(), "closes connections without a word"),
        (_says_nothing, "says nothing for 3 s"),
        (_says(b"220 mail.example.com ESMTP\r\n"), "speaks something else: b'220 mail"),
        (_says(b"HTTP/1.0 400 Bad Request\r\n\r\n"), "speaks HTTP/1.1"),
    ],
)
def test_scenario_12_whatever_else_listens_there_is_named(treat: Any, said: str) -> None:
    with Listener(treat) as listener:
        # Short only where its end is waited for.
        seen = doctor(listener.address, timeout="3s" if treat is _says_nothing else "60s")
    assert (seen.code, seen.problems) == (1, ["http2"])
    assert said in seen["http2"]["what"]
    assert seen["http2"]["advice"]


def test_scenario_12_a_gateway_that_makes_no_topics_is_looked_at_by_a_topic_of_its_own() -> None:
    options = ["--set", "topics.auto_create=false", "--set", "groups.auto_create=false"]
    with GatewayProcess(options=options) as gateway:
        seen = doctor(gateway.endpoint)
        assert (seen.code, seen.problems) == (0, []), "nobody said that there is to be such a topic"
        assert "topic popgate-doctor has none" in seen["route"]["what"]
        assert "popgate topic create popgate-doctor" in seen["round-trip"]["advice"]
        seen = doctor(gateway.endpoint, "--topic", "missing")
        assert (seen.problems, seen["route"]["advice"]) == (
            ["route"],
            "popgate topic create missing, or name another one: --topic",
        )
        from proxy.cli.console.admin_client import Gateway

        with Gateway(gateway.admin) as api:
            for name in ("probe", "another"):
                api.post("topics", body={"name": name})
            for options in ((), ("--no-write",)):
                seen = doctor(gateway.endpoint, "--admin", gateway.admin, *options)
                # Its route is looked at as that of any, and what it leads to: nothing is sent to it.
                assert (seen.code, seen["route"]["what"]) == (0, "topic another has 8 queues")
                assert seen["advertised"]["level"] == "ok"
                assert seen["round-trip"]["level"] == "skipped"
            assert [one["name"] for one in api.get("topics")["topics"]] == ["another", "probe"]
            without_group = doctor(gateway.endpoint, "--topic", "probe")
            assert without_group.problems == ["round-trip"]
            assert "popgate group create popgate-doctor" in without_group["round-trip"]["advice"]
            api.post("groups", body={"name": "popgate-doctor"})
        seen = doctor(gateway.endpoint, "--topic", "another")
        assert (seen.code, seen.levels) == (0, ALL_WELL)


async def test_scenario_12_a_clock_that_is_wrong_is_told(world: Any) -> None:
    from protocols.probing import Level, Wish, find_prober

    world.clock.set_wall(world.clock.now_ms() + 90_000)
    gateway = await world.gateway()
    found = {}
    wish = Wish("127.0.0.1", gateway.port, patience_s=60.0)

    async def moving() -> None:
        while True:
            await asyncio.sleep(0.01)
            gateway.clock.advance(0.01)

    moves = asyncio.create_task(moving())
    try:
        async for finding in find_prober("grpc").probe(wish):
            found[finding.check] = finding
    finally:
        moves.cancel()
    assert found["clocks"].level is Level.WARNING
    assert "s ahead of this one" in found["clocks"].what


async def test_scenario_12_what_another_look_left_is_tidied_up_and_what_one_needs_is_left_to_it(
    world: Any,
) -> None:
    from protocols.probing import Level, Wish, find_prober

    gateway = await world.gateway()
    client = world.client(gateway)
    await client.send_one(topic="popgate-doctor", body=b"of another look")
    found = {}
    async for finding in find_prober("grpc").probe(Wish("127.0.0.1", gateway.port, patience_s=60.0)):
        found[finding.check] = finding.level
    assert found["round-trip"] is Level.OK
    # The other one's message is still there for it, and ours is not.
    left = await client.receive(topic="popgate-doctor", group="popgate-doctor")
    assert [message.body for message in left] == [b"of another look"], found


def test_scenario_12_a_door_for_classic_clients_is_looked_at_as_one_of_them_would() -> None:
    doors = ("grpc://127.0.0.1:0", "remoting://127.0.0.1:0")
    with GatewayProcess(listen=doors) as gateway:
        seen = doctor(gateway.addresses[1], "--admin", gateway.admin)
        assert (seen.code, seen.problems) == (0, [])
        assert {seen[check]["level"] for check in ("remoting", "route", "advertised", "round-trip")} == {"ok"}
        # What it made is taken away again.
        assert doctor(gateway.addresses[1], "--no-write", "--topic", "popgate-doctor").problems == ["route"]

        looked = doctor(gateway.addresses[1], "--no-write", "--topic", "no-such-topic")
        assert looked.problems == ["route"]
        assert "TOPIC_NOT_EXIST" in looked["route"]["what"]

        wrong = doctor(f"remoting://{gateway.endpoint}")
        assert wrong.problems == ["remoting"]
        assert "may be that of gRPC" in wrong["remoting"]["advice"]
    host, _, port = gateway.addresses[1].rpartition("/")[2].rpartition(":")
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((host, int(port)))
        gone = doctor(gateway.addresses[1])
    assert gone.problems == ["port"]


def test_scenario_12_a_door_that_tells_classic_clients_another_address_is_told(nobody: int) -> None:
    away = f"127.0.0.1:{nobody}"
    with GatewayProcess(listen=(f"remoting://127.0.0.1:0?advertised={away}",)) as gateway:
        seen = doctor(gateway.addresses[0])
    assert seen.problems == ["advertised"]
    assert f"told to use {away}, which cannot be reached from here" in seen["advertised"]["what"]
    assert f"?advertised={gateway.endpoint}" in seen["advertised"]["advice"]


def test_addresses_that_have_no_prober_are_refused() -> None:
    code, _, err = run("mqtt://127.0.0.1:1883")
    assert code == 2
    assert "cannot be looked at" in err
