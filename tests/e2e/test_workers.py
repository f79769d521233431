"""`popgate serve --workers 2`: connections are spread, the dead replaced, all renewed, none is left."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from popgate.pb import definition_pb2 as pb
from popgate.testing import GatewayProcess
from popgate.testing.gateway import GatewayDidNotStart
from tests.e2e.clients import Client
from tests.e2e.load import LONGEST_S, Load
from tests.support.waiting import PATIENCE_S, until

TWO = ("--workers", "2")
PATIENT = ("--set", f"shared.request_timeout_s={min(PATIENCE_S, 600):g}")  # at most 10 min
"""For the next process of the broker, where no call may fail: it may take its time on a busy machine."""


@asynccontextmanager
async def running(*options: str, **more: Any) -> AsyncIterator[GatewayProcess]:
    gateway = GatewayProcess(options=(*TWO, *options), **more)
    try:
        await asyncio.to_thread(gateway.start)
        yield gateway
    finally:
        await asyncio.to_thread(gateway.close)


async def ask(gateway: GatewayProcess, path: str, body: object = None) -> Any:
    """JSON, or text; of an error its JSON. Asked again when the process that was asked is gone."""

    def fetch() -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if data else {}
        request = urllib.request.Request(gateway.admin + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                kind, told = answer.headers["Content-Type"], answer.read()
        except urllib.error.HTTPError as error:
            kind, told = error.headers["Content-Type"], error.read()
        return json.loads(told) if kind.startswith("application/json") else told.decode()

    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(ConnectionError, http.client.HTTPException, urllib.error.URLError):
                return await asyncio.to_thread(fetch)
            await asyncio.sleep(0.02)


async def crew(gateway: GatewayProcess, role: str = "worker") -> list[dict[str, Any]]:
    told = await ask(gateway, "/health")
    return [one for one in told["processes"] if one["role"] == role and one["state"] == "ready"]


async def metric(gateway: GatewayProcess, series: str) -> float:
    """The sum of a metric's lines that begin so."""
    text = await ask(gateway, "/metrics")
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(series))


async def until_told(gateway: GatewayProcess, series: str, value: float) -> None:
    """Wait until a metric is that: a process that is slow to answer is left out of a sum."""

    async def told() -> bool:
        return await metric(gateway, series) == value

    await until(told, LONGEST_S)


async def until_answered(gateway: GatewayProcess, path: str, body: object = None, **wanted: Any) -> Any:
    """Wait until the answer says so, by the names of facts; the answer. It is put together likewise."""
    found: dict[str, Any] = {}

    async def told() -> bool:
        found.update(await ask(gateway, path, body))
        return wanted.items() <= found.items()

    await until(told, LONGEST_S)
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def clients_of(gateway: GatewayProcess, count: int) -> list[Client]:
    """So many, each with a connection that is open."""
    made = [Client(gateway.endpoint, f"client-{number}") for number in range(count)]
    for client in made:
        await client.send("orders", client.name.encode())
    return made


async def close(clients: list[Client]) -> None:
    for client in clients:
        await client.channel.close()


async def test_four_connections_are_two_for_each_of_two_workers() -> None:
    async with running() as gateway:
        clients = await clients_of(gateway, 4)
        await until(lambda: spread(gateway, [2, 2]), LONGEST_S)
        # Who went leaves room where it was.
        await close(clients[:2])
        await until(lambda: spread(gateway, [1, 1]), LONGEST_S)
        more = await clients_of(gateway, 3)
        await until(lambda: spread(gateway, [2, 3]), LONGEST_S)
        await close([*clients[2:], *more])
        await until(lambda: spread(gateway, [0, 0]), LONGEST_S)


async def spread(gateway: GatewayProcess, wanted: list[int]) -> bool:
    return sorted(one["connections"] for one in await crew(gateway)) == wanted


async def test_what_each_worker_counts_is_told_as_one_and_clients_of_both_are_found() -> None:
    async with running() as gateway:
        clients = await clients_of(gateway, 4)
        await until_told(gateway, 'popgate_messages_sent_total{topic="orders"}', 4)
        await until_told(gateway, 'popgate_request_duration_seconds_count{operation="send"}', 4)
        assert await metric(gateway, "popgate_workers ") == 2
        assert await metric(gateway, "popgate_ready ") == 1
        streams = []
        for client in clients:
            call, settings = client.telemetry(pb.ClientType.PUSH_CONSUMER, "orders", "workers")
            await call.write(settings)
            assert (await call.read()).WhichOneof("command") == "settings"
            streams.append(call)
        told = await until_answered(gateway, "/api/clients", count=4)
        assert [one["client_id"] for one in told["clients"]] == [client.name for client in clients]
        await until_told(gateway, "popgate_clients ", 4)
        await until_answered(gateway, "/api/groups/workers", clients=4)
        await until_answered(gateway, "/api/groups/workers/stuck", consumers=4)
        for client, call in zip(clients, streams, strict=True):
            path = f"/api/clients/{client.name}/reconnect"
            assert await ask(gateway, path, {}) == {"told": 1, "not_told": 0}
            assert (await call.read()).WhichOneof("command") == "reconnect_endpoints_command"
        answer = await until_answered(gateway, "/api/clients", {"reconnect": "all"}, told=4)
        assert answer == {"told": 4, "not_told": 0}
        assert (await ask(gateway, "/api/clients/nobody/reconnect", {}))["fault"] == "CLIENT_NOT_FOUND"
        await close(clients)


async def test_a_worker_that_dies_is_replaced_and_what_it_counted_stays() -> None:
    async with running() as gateway:
        clients = await clients_of(gateway, 4)
        await until_told(gateway, "popgate_messages_sent_total{", 4)
        before = [one["pid"] for one in await crew(gateway)]
        os.kill(before[0], signal.SIGKILL)
        await until(lambda: replaced(gateway, before[0]), LONGEST_S)
        assert await metric(gateway, "popgate_worker_restarts_total ") == 1
        # Also of one that is slow to answer what it told before is known.
        assert await metric(gateway, "popgate_messages_sent_total{") == 4
        more = await clients_of(gateway, 2)
        await until_told(gateway, "popgate_messages_sent_total{", 6)
        assert before[1] in [one["pid"] for one in await crew(gateway)]
        await until(lambda: "killed by SIGKILL" in gateway.log, LONGEST_S)
        await close([*clients, *more])


async def replaced(gateway: GatewayProcess, pid: int) -> bool:
    there = [one["pid"] for one in await crew(gateway)]
    return len(there) == 2 and pid not in there


async def test_the_process_of_the_broker_is_replaced_too() -> None:
    async with running(*PATIENT) as gateway:
        clients = await clients_of(gateway, 2)
        (host,) = await crew(gateway, "host")
        os.kill(host["pid"], signal.SIGKILL)

        async def there() -> bool:
            hosts = await crew(gateway, "host")
            return bool(hosts) and hosts[0]["pid"] != host["pid"]

        await until(there, LONGEST_S)
        for client in clients:
            await client.send("orders", b"after")
        got = await clients[0].receive("orders", "all", 5)
        assert got[0] == pb.OK
        await close(clients)


async def test_scenario_32_a_hangup_renews_all_processes_in_turn_and_no_call_fails() -> None:
    async with running(*PATIENT) as gateway, Load(gateway) as load:
        await load.more(100)
        before = {one["pid"] for role in ("worker", "host") for one in await crew(gateway, role)}
        for _ in range(2):
            gateway.signal(signal.SIGHUP)

            async def renewed(before: set[int] = before) -> bool:
                told = (await ask(gateway, "/health"))["processes"]
                there = {one["pid"] for one in told if one["state"] == "ready"}
                return len(there) == len(told) == 3 and not there & before

            await until(renewed, LONGEST_S)
            before = {one["pid"] for role in ("worker", "host") for one in await crew(gateway, role)}
            await load.more(100)
        assert load.failed == [], "\n".join(load.failed)
        # What those that ended counted is still told.
        sent = load.sent

        async def all_told() -> bool:
            return await metric(gateway, "popgate_messages_sent_total{") >= sent

        await until(all_told, LONGEST_S)
        assert await metric(gateway, "popgate_worker_restarts_total ") == 0


async def test_scenario_32_a_hangup_takes_new_settings_and_wrong_ones_change_nothing(tmp_path: Path) -> None:
    file = tmp_path / "popgate.toml"
    file.write_text("workers = 2\n")
    gateway = GatewayProcess(options=("--config", str(file)))
    with gateway:
        client = (await clients_of(gateway, 1))[0]
        before = [one["pid"] for one in await crew(gateway)]
        file.write_text("workers = 'many'\n")
        gateway.signal(signal.SIGHUP)
        await until(lambda: "all goes on as it was" in gateway.log, LONGEST_S)
        assert "workers" in gateway.log
        assert [one["pid"] for one in await crew(gateway)] == before
        file.write_text("workers = 3\n[limits]\nmax_body_bytes = 3\n")
        gateway.signal(signal.SIGHUP)

        async def grown() -> bool:
            there = {one["pid"] for one in await crew(gateway)}
            return len(there) == 3 and not there & set(before)

        await until(grown, LONGEST_S)
        fresh = Client(gateway.endpoint, "fresh")
        with pytest.raises(AssertionError, match="the limit is 3"):
            await fresh.send("orders", b"four")

        async def moved() -> bool:
            """Its connection ends when the process drains that has it, and not before."""
            try:
                await client.send("orders", b"four")
            except grpc.aio.AioRpcError:
                return False
            except AssertionError as refused:
                return "the limit is 3" in str(refused)
            return False

        await until(moved, LONGEST_S)
        await close([client, fresh])


async def test_scenario_32_a_reload_through_the_admin_port_renews_all_or_says_why_not(tmp_path: Path) -> None:
    file = tmp_path / "popgate.toml"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"listen = ['grpc://127.0.0.1:0', 'grpc://127.0.0.1:{taken.getsockname()[1]}']\n"
        file.write_text("workers = 2\nlisten = ['grpc://127.0.0.1:0']\n")
        async with running(*PATIENT, "--config", str(file), listen=()) as gateway, Load(gateway) as load:
            await load.more(20)
            before = {one["pid"] for one in await crew(gateway)}
            for wrong, why in (
                ("[limits]\nmax_body_bytes = 'many'\n", "'many' is no size"),
                (f"workers = 2\n{listen}", "address already in use"),
            ):
                file.write_text(wrong)
                refused = await ask(gateway, "/api/reload", {})
                assert refused["fault"] == "BAD_REQUEST"
                assert why in refused["message"]

                async def told_by_all(why: str = why) -> bool:
                    return why in (await ask(gateway, "/api/reload"))["reason"]

                await until(told_by_all, LONGEST_S)
                assert {one["pid"] for one in await crew(gateway)} == before
            assert await metric(gateway, "popgate_config_last_reload_successful ") == 0
            assert (await ask(gateway, "/api/version"))["listening"] == gateway.addresses
            taken.close()
            told = await ask(gateway, "/api/reload", {})
            assert {one["name"]: one["effect"] for one in told["changes"]} == {"listen": "renewal"}

            async def renewed() -> bool:
                there = {one["pid"] for one in await crew(gateway)}
                listening = (await ask(gateway, "/api/version"))["listening"]
                return len(there) == 2 and not there & before and len(listening) == 2

            await until(renewed, LONGEST_S)
            assert await metric(gateway, "popgate_config_last_reload_successful ") == 1
            await load.more(20)
            assert load.failed == [], "\n".join(load.failed)


async def test_the_words_at_the_end_are_the_sum_of_all_workers() -> None:
    async with running("--set", "limits.max_wait_s=300") as gateway:
        clients = await clients_of(gateway, 4)
        polls = [asyncio.ensure_future(one.receive("quiet", "sleepers", 300)) for one in clients]
        await until(lambda: waiting(gateway, 4), LONGEST_S)
        made = gateway.processes
        gateway.signal(signal.SIGTERM)
        for code, messages in await asyncio.wait_for(asyncio.gather(*polls), PATIENCE_S):
            assert (code, messages) == (pb.MESSAGE_NOT_FOUND, [])
        assert await asyncio.to_thread(gateway.wait) == 0
        told = dict(re.findall(r"(\w+)=(\d+)", gateway.output.splitlines()[-1]))
        assert (told["connections"], told["requests_finished"], told["requests_cut_off"]) == ("4", "4", "0")
        assert not any(is_running(pid) for pid in made)
        await close(clients)


async def waiting(gateway: GatewayProcess, count: int) -> bool:
    return await metric(gateway, "popgate_waiting_receives ") == count


async def test_no_process_outlives_a_supervisor_that_was_killed(socket_folder: Path) -> None:
    async with running(environment={"TMPDIR": str(socket_folder)}) as gateway:
        clients = await clients_of(gateway, 4)
        made = gateway.processes
        assert len(made) == 3
        assert [path.stat().st_mode & 0o777 for path in socket_folder.glob("popgate-*")] == [0o700]
        os.kill(gateway.pid, signal.SIGKILL)
        await close(clients)
        await until(lambda: not any(is_running(pid) for pid in made), LONGEST_S)
        await until(lambda: not list(socket_folder.glob("popgate-*")), LONGEST_S)
        # A successor has the ports and the store.
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.to_thread(gateway.wait)
        with gateway.successor() as after:
            late = Client(after.endpoint, "late")
            assert (await late.receive("orders", "late", 5))[0] == pb.OK
            await late.channel.close()


async def test_grpc_aio_serves_with_several_workers_by_one_port() -> None:
    async with running(listen=("grpc://127.0.0.1:0?transport=grpcio",)) as gateway:
        clients = await clients_of(gateway, 8)
        await until_told(gateway, "popgate_messages_sent_total{", 8)
        await close(clients)


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--listen", "odd://127.0.0.1:1"), 2, "there is no protocol 'odd'"),
        (("--workers", "-1"), 2, "workers"),
        (("--workers", "1000"), 2, "workers"),
        (
            ("--broker", "popgate+unix:/nowhere/at/all", "--set", "shared.startup_timeout_s=0.1"),
            5,
            "/nowhere/at/all",
        ),
    ],
)
async def test_what_cannot_be_is_told_and_ends_all(options: tuple[str, ...], code: int, said: str) -> None:
    gateway = GatewayProcess(options=(*TWO, *options))
    try:
        with pytest.raises(GatewayDidNotStart, match=f"ended with {code}"):
            await asyncio.to_thread(gateway.start)
        assert said in gateway.log
        assert "Traceback" not in gateway.log
    finally:
        gateway.close()


async def test_a_port_that_is_taken_is_told_once(tmp_path: Path) -> None:
    async with running() as gateway:
        other = GatewayProcess(tmp_path, listen=(gateway.addresses[0],), options=TWO)
        with pytest.raises(GatewayDidNotStart, match=r"(?s)ended with 5.*address already in use.*--listen"):
            await asyncio.to_thread(other.start)
        other.close()
