"""The Services of a rendered chart: HAProxy as balancer for TCP, which follows the endpoints.

A pod that leaves the endpoints gets no new connection; those that it has stay, as kube-proxy leaves them.
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from popgate.testing.variables import variables
from tests.support.proxies import command_of
from tests.support.waiting import PATIENCE_S, until

SYNC_S = 1.0
"""How much later than the endpoints their change is at work: kube-proxy gathers changes for as long
(`minSyncPeriod`)."""
_SLOTS = 24
"""More than there are pods at a time; one that has gone leaves its slot to another."""


class Service:
    """An address for each port of the pods, by its name. `ports`: the pods' own, by the same names."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder = folder
        self._listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in names}
        self.addresses = {name: f"127.0.0.1:{one.getsockname()[1]}" for name, one in self._listeners.items()}
        self.served: tuple[str, ...] = ()
        """Addresses of pods that get new connections now."""
        self._endpoints: tuple[str, ...] = ()
        self._news = asyncio.Event()
        self._slots: dict[str, int] = {}
        self._ports: Mapping[str, int] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._following: asyncio.Task[None] | None = None

    @property
    def endpoints(self) -> Sequence[str]:
        """Addresses of the pods that are to have new connections."""
        return self._endpoints

    @endpoints.setter
    def endpoints(self, addresses: Sequence[str]) -> None:
        if tuple(addresses) != self._endpoints:
            self._endpoints = tuple(addresses)
            self._news.set()

    async def start(self, ports: Mapping[str, int]) -> None:
        """Raises Missing where there is no HAProxy."""
        self._ports = ports
        program, environment = await asyncio.to_thread(command_of, "haproxy")
        (self._folder / "haproxy.cfg").write_text(self._configuration())
        with (self._folder / "haproxy.txt").open("wb") as words:
            self._process = await asyncio.create_subprocess_exec(
                *(program, "-db", "-f", str(self._folder / "haproxy.cfg")),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=words,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=[one.fileno() for one in self._listeners.values()],
                env={**variables(), **environment},
                cwd=self._folder,
            )
        await until(self._listens, seen=(self._folder / "haproxy.txt").read_text)
        self._following = asyncio.create_task(self._follow())

    def _configuration(self) -> str:
        parts = [
            f"""
global
    stats socket "{self._folder / "h"}" mode 600 level admin
defaults
    mode tcp
    retries 0
    timeout connect 10s
    timeout client 1h
    timeout server 1h
"""
        ]
        for name, listener in self._listeners.items():
            parts.append(
                f"""
frontend {name}
    bind fd@{listener.fileno()}
    default_backend {name}-pods
backend {name}-pods
    balance roundrobin
    server-template s 1-{_SLOTS} 127.0.0.1:{self._ports[name]} disabled
"""
            )
        return "".join(parts)

    async def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.returncode is None, (self._folder / "haproxy.txt").read_text()
        with contextlib.suppress(OSError):
            return "Name" in await self._ask("show info")
        return False

    async def _ask(self, *commands: str) -> str:
        """The answers of its runtime interface."""
        reader, writer = await asyncio.open_unix_connection(self._folder / "h")
        try:
            writer.write(";".join(commands).encode() + b"\n")
            return (await reader.read()).decode()
        finally:
            writer.close()

    async def _follow(self) -> None:
        while True:
            await self._news.wait()
            await asyncio.sleep(SYNC_S)  # nothing is awaited: it is what it is late by
            self._news.clear()
            wanted = self._endpoints
            for address in wanted:
                if address not in self._slots:
                    self._slots[address] = min({*range(1, _SLOTS + 1)} - {*self._slots.values()})
            commands = []
            for address, slot in self._slots.items():
                for name, port in self._ports.items():
                    server = f"{name}-pods/s{slot}"
                    if address in wanted:
                        commands.append(f"set server {server} addr {address} port {port}")
                    commands.append(f"set server {server} state {'ready' if address in wanted else 'maint'}")
            told = await self._ask(*commands)
            assert "No such" not in told, told
            self._slots = {address: slot for address, slot in self._slots.items() if address in wanted}
            self.served = wanted

    async def connections(self) -> dict[str, Counter[str]]:
        """By the name of a port, how many connections each pod that is served has, by its address."""
        rows = csv.DictReader((await self._ask("show stat")).lstrip("# ").splitlines())
        pods = {f"s{slot}": address for address, slot in self._slots.items()}
        found: dict[str, Counter[str]] = {name: Counter() for name in self._ports}
        for row in rows:
            name = row["pxname"].removesuffix("-pods")
            if name != row["pxname"] and row["svname"] in pods:
                found[name][pods[row["svname"]]] += int(row["scur"])
        return found

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), PATIENCE_S)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        for listener in self._listeners.values():
            listener.close()
