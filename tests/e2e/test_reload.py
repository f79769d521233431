"""Settings of a whole gateway process change while it serves: by SIGHUP and through the admin port."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.testing import GatewayProcess
from tests.e2e.clients import Client
from tests.e2e.commands import run_command
from tests.e2e.load import LONGEST_S, Load
from tests.support.waiting import PATIENCE_S, until

ANY = "grpc://127.0.0.1:0"


class Configured:
    """A gateway that has its settings from a file, which a test writes anew."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.gateway = GatewayProcess(listen=(), options=("--config", str(file)))

    def write(self, *listen: str, more: str = "") -> None:
        self._file.write_text(f"listen = {json.dumps(listen or [ANY])}\n{more}")

    def hang_up(self) -> None:
        self.gateway.signal(signal.SIGHUP)

    async def ask(self, path: str, body: object = None) -> tuple[int, Any]:
        """Status and JSON, or text."""

        def fetch() -> tuple[int, Any]:
            data = None if body is None else json.dumps(body).encode()
            headers = {"Content-Type": "application/json"} if data else {}
            request = urllib.request.Request(self.gateway.admin + path, data, headers)
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                    kind, told, status = answer.headers["Content-Type"], answer.read(), answer.status
            except urllib.error.HTTPError as error:
                kind, told, status = error.headers["Content-Type"], error.read(), error.code
            return status, json.loads(told) if kind.startswith("application/json") else told.decode()

        return await asyncio.to_thread(fetch)

    async def reload(self) -> Any:
        """Raises AssertionError when it is refused."""
        status, told = await self.ask("/api/reload", {})
        assert status == 200, told
        return told

    async def listening(self) -> list[str]:
        """host:port of its listeners."""
        return [one.partition("://")[2] for one in (await self.ask("/api/version"))[1]["listening"]]

    async def until_listening(self, count: int) -> list[str]:
        async def so_many() -> bool:
            return len(await self.listening()) == count

        await until(so_many, LONGEST_S)
        return await self.listening()

    async def metric(self, name: str) -> float:
        text = (await self.ask("/metrics"))[1]
        return next(
            float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"{name} ")
        )


@pytest.fixture
async def configured(tmp_path: Path) -> AsyncIterator[Configured]:
    made = Configured(tmp_path / "popgate.toml")
    made.write()
    try:
        await asyncio.to_thread(made.gateway.start)
        yield made
    finally:
        await asyncio.to_thread(made.gateway.close)


@pytest.fixture
def port() -> Iterator[int]:
    """One that nobody is given by the system, and that whoever names it can have."""
    with socket.socket() as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        link.bind(("127.0.0.1", 0))
        yield link.getsockname()[1]


@asynccontextmanager
async def client_of(address: str, name: str = "one") -> AsyncIterator[Client]:
    client = Client(address, name)
    try:
        yield client
    finally:
        await client.channel.close()


def is_open(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), PATIENCE_S).close()
    except OSError:
        return False
    return True


async def test_scenario_32_listeners_come_move_and_go_and_those_that_stay_notice_nothing(
    configured: Configured, port: int
) -> None:
    (first,) = await configured.listening()
    moved = f"grpc+remoting://127.0.0.1:{port}"
    async with Load(configured.gateway) as load, client_of(first, "watch") as watch:
        stream, settings = watch.telemetry(pb.ClientType.PUSH_CONSUMER, "orders", "workers")
        await stream.write(settings)
        assert (await stream.read()).WhichOneof("command") == "settings"
        await load.more(20)
        configured.write(ANY, ANY)
        configured.hang_up()
        before, second = await configured.until_listening(2)
        assert before == first
        async with client_of(second) as client:
            await client.send("orders", b"by the second")
            configured.write(ANY, moved)
            told = await configured.reload()
            assert [one["name"] for one in told["changes"]] == ["listen"]
            assert await configured.listening() == [first, f"127.0.0.1:{port}"]
            async with client_of(f"127.0.0.1:{port}") as other:
                await other.send("orders", b"where it moved to")
            await until(lambda: not is_open(second), LONGEST_S)
        configured.write(ANY)
        configured.hang_up()
        assert await configured.until_listening(1) == [first]
        await until(lambda: not is_open(f"127.0.0.1:{port}"), LONGEST_S)
        await load.more(20)
        assert load.failed == [], "\n".join(load.failed)
        # A connection that is told to go keeps no stream.
        assert not stream.done()
        stream.cancel()


async def test_scenario_32_a_wrong_file_changes_nothing_and_the_reason_is_told(
    configured: Configured,
) -> None:
    admin = configured.gateway.admin
    assert await configured.metric("popgate_config_last_reload_successful") == 1
    configured.write("grpc://127.0.0.1:0", ANY, more="[limits]\nmax_body_bytes = 'much'\n")
    status, told = await configured.ask("/api/reload", {})
    assert (status, told["fault"]) == (400, "BAD_REQUEST")
    assert "limits.max_body_bytes" in told["message"]
    assert "'much' is no size" in told["message"]
    assert len(await configured.listening()) == 1
    assert await configured.metric("popgate_config_last_reload_successful") == 0
    assert (await configured.ask("/ready"))[0] == 200
    status, told = await configured.ask("/api/reload")
    assert (told["successful"], "'much' is no size" in told["reason"]) == (False, True)
    (address,) = await configured.listening()
    looked = await asyncio.to_thread(run_command, "doctor", address, "--admin", admin)
    assert "the last reload of the settings failed" in looked.out, looked.out
    # The next good one counts.
    configured.write(ANY, more="[limits]\nmax_body_bytes = 3\n")
    ended = await asyncio.to_thread(run_command, "config", "reload", "--admin", admin)
    assert (ended.code, ended.out) == (0, "limits.max_body_bytes\t4194304\t3\tlive\n")
    assert await configured.metric("popgate_config_last_reload_successful") == 1
    async with client_of(address) as client:
        with pytest.raises(AssertionError, match="the limit is 3"):
            await client.send("orders", b"four")


async def test_scenario_32_a_port_that_is_taken_rolls_all_back(configured: Configured, port: int) -> None:
    (first,) = await configured.listening()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        async with Load(configured.gateway) as load:
            await load.more(10)
            configured.write(
                f"grpc://127.0.0.1:{port}",
                f"grpc://127.0.0.1:{number}",
                more="[limits]\nmax_body_bytes = 3\n",
            )
            status, told = await configured.ask("/api/reload", {})
            assert status == 400, told
            assert f"cannot listen at grpc://127.0.0.1:{number}: address already in use" in told["message"]
            assert await configured.listening() == [first]
            assert not is_open(f"127.0.0.1:{port}")
            assert (await configured.ask("/api/settings"))[1]["limits"]["max_body_bytes"] == 4 << 20
            await load.more(10)
            assert load.failed == [], "\n".join(load.failed)
    await configured.reload()
    assert await configured.listening() == [f"127.0.0.1:{port}", f"127.0.0.1:{number}"]


async def test_a_listener_takes_new_options_at_its_port_and_no_call_fails(
    configured: Configured, port: int
) -> None:
    address = f"127.0.0.1:{port}"
    configured.write(f"grpc://{address}")
    await configured.reload()
    configured.gateway.addresses[:] = [f"grpc://{address}"]
    async with Load(configured.gateway) as load:
        await load.more(10)
        configured.write(f"grpc://{address}?advertised=elsewhere:77", more="[connections]\nping_s = 30\n")
        told = await configured.reload()
        assert [one["name"] for one in told["changes"]] == ["listen", "connections.ping_s"]
        await load.more(20)
        async with client_of(address) as client:
            assert await advertised(client) == "elsewhere:77"
        # Of this listener nothing but the setting of the house is new now.
        configured.write(f"grpc://{address}?advertised=elsewhere:77", more="namespaces = 'prefixed'\n")
        await configured.reload()
        await load.more(20)
        assert load.failed == [], "\n".join(load.failed)


async def advertised(client: Client) -> str:
    request = rpc.QueryRouteRequest(topic=pb.Resource(name="orders"))
    answer = await client.unary("QueryRoute", request, rpc.QueryRouteResponse)
    place = answer.message_queues[0].broker.endpoints.addresses[0]
    return f"{place.host}:{place.port}"


async def test_what_needs_a_restart_is_named_each_time_and_does_not_count(configured: Configured) -> None:
    admin = configured.gateway.admin
    configured.write(more="[retention]\nage_s = '1d'\n[remote]\ntransaction_key = '0123456789abcdef'\n")
    for _ in range(2):
        told = await configured.reload()
        assert told["needs_restart"] == ["remote.transaction_key", "retention.age_s"]
        assert "0123456789abcdef" not in json.dumps(told)
    assert await configured.metric("popgate_config_restart_pending") == 2
    assert (await configured.ask("/api/settings"))[1]["retention"]["age_s"] == 259_200
    ended = await asyncio.to_thread(run_command, "config", "diff", "--admin", admin)
    assert ended.code == 1
    assert [line.split("\t") for line in ended.out.splitlines()] == [
        ["remote.transaction_key", "-", "********", "restart"],
        ["retention.age_s", "259200.0", "86400.0", "restart"],
    ]
    configured.write()
    ended = await asyncio.to_thread(run_command, "config", "diff", "--admin", admin, "-o", "json")
    assert (ended.code, json.loads(ended.out)) == (0, {"changes": []})


async def test_a_closed_terminal_ends_it_and_an_open_one_does_not(tmp_path: Path) -> None:
    """SIGHUP means two things: it is asked whether there was a terminal, and whether it is gone."""
    process, ours = _serve_at_a_terminal(tmp_path, "--set", "stopping.lame_duck_s=0")
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        await asyncio.to_thread(_read_until, process.stdout, b"ready")
        process.send_signal(signal.SIGHUP)
        await asyncio.to_thread(_read_until, process.stderr, b"settings reloaded")
        assert process.poll() is None
        os.close(ours)
        ours = -1
        process.send_signal(signal.SIGHUP)
        assert await asyncio.to_thread(process.wait, LONGEST_S) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.communicate()
        if ours >= 0:
            os.close(ours)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("closes", [False, True], ids=["asked", "terminal closed"])
async def test_a_hang_up_before_it_is_loaded(tmp_path: Path, workers: int, closes: bool) -> None:
    """It waits until the gateway can tell what it means: by default it would end the process."""
    process, ours = _serve_at_a_terminal(tmp_path, "--workers", str(workers))
    try:
        await until(lambda: _handles(process.pid, signal.SIGTERM))
        if closes:
            os.close(ours)
            ours = -1
        else:
            process.send_signal(signal.SIGHUP)
            assert process.stdout is not None
            await asyncio.to_thread(_read_until, process.stdout, b"ready")
            process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, LONGEST_S) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.communicate()
        if ours >= 0:
            os.close(ours)


_NOSY = """
import os
import subprocess

class Nosy:
    def __init__(self):
        if "_POPGATE_SETTINGS" not in os.environ:
            with open(os.environ["NOSY"], "w") as file:
                subprocess.run(["grep", "SigBlk", "/proc/self/status"], stdout=file, check=True)
"""


def test_what_a_plug_in_runs_does_not_hold_hang_ups_back(tmp_path: Path) -> None:
    """It is made while the gateway starts, and programs inherit what is blocked, for good."""
    package, seen = tmp_path / "nosy-1.dist-info", tmp_path / "seen"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: nosy\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[popgate.policies.identity]\nnosy = nosy:Nosy\n")
    (tmp_path / "nosy.py").write_text(_NOSY)
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    environment = {"PYTHONPATH": path, "NOSY": str(seen), "POPGATE_POLICIES__IDENTITY": "nosy"}
    with GatewayProcess(environment=environment):
        assert int(seen.read_text().split()[1], 16) & (1 << signal.SIGHUP - 1) == 0


def _handles(pid: int, number: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    (mask,) = (line.split()[1] for line in lines if line.startswith("SigCgt:"))
    return bool(int(mask, 16) >> (number - 1) & 1)


def _serve_at_a_terminal(folder: Path, *options: str) -> tuple[subprocess.Popen[bytes], int]:
    """A gateway that starts with a terminal as its standard input, and our end of that terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "popgate", "serve", "--data", str(folder / "data"), "--admin", "off"]
    process = subprocess.Popen(
        [*command, "--listen", ANY, "--set", "tls.mode=off", *options],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if not name.startswith("POPGATE_")},
        preexec_fn=_at_a_terminal,
        start_new_session=True,
    )
    os.close(theirs)
    return process, ours


def _at_a_terminal() -> None:
    """In a process that was just made: standard input is its terminal, and SIGHUP counts."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _read_until(stream: Any, word: bytes) -> None:
    if not any(word in line for line in stream):
        raise AssertionError(f"it never said {word!r}")


async def test_a_client_that_waits_at_a_listener_that_goes_is_answered(configured: Configured) -> None:
    configured.write(ANY, ANY)
    await configured.reload()
    _, second = await configured.listening()
    async with client_of(second) as client:
        await client.send("orders", b"x")
        poll = asyncio.ensure_future(client.receive("quiet", "sleepers", 20))

        async def waiting() -> bool:
            return await configured.metric("popgate_waiting_receives") == 1

        await until(waiting, LONGEST_S)
        configured.write(ANY)
        await configured.reload()
        assert await asyncio.wait_for(poll, PATIENCE_S) == (pb.MESSAGE_NOT_FOUND, [])
        with contextlib.suppress(grpc.aio.AioRpcError):
            await client.send("orders", b"y")
