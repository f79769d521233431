"""The worker's side of a gateway with several processes: the connections and messages it gets, and what it
reports.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from protocols.adapter import Listen
from protocols.handed_connections import Adopt
from proxy.lifetime.end_signals import EndSignals
from proxy.logs import logger
from proxy.metrics import Metrics
from proxy.metrics.merged_scrapes import lasting
from proxy.workers import counts
from proxy.workers.channel import REST_S
from proxy.workers.crew import ADMIN, Post, Role
from proxy.workers.joint_answers import Together, from_outside
from proxy.workers.roster import Roster, admin_socket

if TYPE_CHECKING:
    from proxy.config.settings import Settings

_log = logger("popgate.worker")
_ANSWER_S = 1.0
"""The timeout for the supervisor's confirmation that it sends no more admin connections."""


class _Connection(socket.socket):
    """A connection that was handed over; it is counted until its server closes it.

    asyncio closes the socket itself, uvloop detaches the descriptor and closes that.
    """

    __slots__ = ("_over",)

    def __init__(self, descriptor: int, over: Callable[[], None]) -> None:
        super().__init__(fileno=descriptor)
        self._over: Callable[[], None] | None = over

    def close(self) -> None:
        super().close()
        self._is_over()

    def detach(self) -> int:
        descriptor = super().detach()
        self._is_over()
        return descriptor

    def _is_over(self) -> None:
        over, self._over = self._over, None
        if over is not None:
            over()


class _Handed:
    """The connections of one door: a `protocols.handed_connections.Listener`."""

    def __init__(self, port: int, over: Callable[[], None]) -> None:
        self._port = port
        self._over = over
        self._adopt: Adopt | None = None
        self._adopting: set[asyncio.Task[Any]] = set()

    async def start(self, adopt: Adopt) -> int:
        self._adopt = adopt
        return self._port

    async def taken(self, longest_s: float) -> None:
        if self._adopting:
            await asyncio.wait(self._adopting, timeout=longest_s)

    def stop(self) -> None:
        self._adopt = None

    def came(self, descriptor: int) -> None:
        connection = _Connection(descriptor, self._over)
        if self._adopt is None:
            connection.close()
            return
        task = asyncio.get_running_loop().create_task(self._take(self._adopt, connection))
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    async def _take(self, adopt: Adopt, connection: _Connection) -> None:
        try:
            await adopt(connection)
        except OSError:
            connection.close()  # its client has gone already
        except BaseException:
            connection.close()
            raise


class Membership:
    """One process's view of its gateway. `attach` it to the loop before anything else is started."""

    def __init__(self, post: Post) -> None:
        self.post = post
        self.roster = Roster(post.number, post.folder)
        self.together = Together(self.roster)
        self.orphaned = False
        """Whether the supervisor is gone."""
        self.draining = False
        """Whether this process was told to end."""
        self._told_alone = False
        self.settings: Settings | None = None
        """As the supervisor has them; those of this process name its own way to the broker."""
        self.ends: float | None = None
        """The deadline of this process, if known; on the machine's monotonic clock."""
        self.on_leave: Callable[[], None] = _nothing
        """Called when the gateway is about to end as a whole, and serves on for a while."""
        self._doors = {door.number: _Handed(door.listen.port, self._connection_over) for door in post.doors}
        self._adopt_admin: Callable[[socket.socket], None] | None = None
        self._left_admin = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: EndSignals | None = None
        self._closed = 0
        self._took = 0
        """The number of the last received connection, until it is reported."""
        self._writing = False

    def __repr__(self) -> str:
        return f"<Membership {self.post.role.value} {self.post.number}>"

    @property
    def is_host(self) -> bool:
        """Whether this is the process of the embedded broker, which serves no clients."""
        return self.post.role is Role.HOST

    @property
    def is_alone(self) -> bool:
        """Whether the gateway stops as a whole, with its broker: no other process serves its clients."""
        return self._told_alone or (self.orphaned and bool(self.post.broker))

    @property
    def addresses(self) -> list[str]:
        """Where the gateway serves clients."""
        return [listen.url(listen.port) for listen in self.post.listens]

    @property
    def admin_path(self) -> Path:
        return admin_socket(self.post.folder, self.post.number)

    def accepting(self, listen: Listen) -> _Handed:
        """Where the connections of a door come from."""
        for door in self.post.doors:
            if (door.listen.host, door.listen.port, door.listen.path) == (
                listen.host,
                listen.port,
                listen.path,
            ):
                return self._doors[door.number]
        raise ValueError(f"{listen.url(listen.port)} is no door of this process")

    def serves_admin(self, adopt: Callable[[socket.socket], None]) -> None:
        """The admin pages are there: operators may be sent."""
        self._adopt_admin = adopt
        self.tell({"admin": True})

    async def leave_admin(self) -> None:
        """Ask for no more operators; wait, a second at most, until those that were on the way have come."""
        if self._adopt_admin is None or self.orphaned:
            return
        self.tell({"admin": False})
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._left_admin.wait(), _ANSWER_S)

    async def scrape(self, request: web.Request, metrics: Metrics) -> bytes:
        """The metrics of this process, also written to its file; for outside callers those of all."""
        outside = from_outside(request)
        own = await metrics.scrape(standings=outside)
        await asyncio.to_thread(self.keep, own)
        return await self.together.metrics(own) if outside else own

    def keep(self, text: bytes) -> None:
        """Write the counters, so that they survive the end of this process."""
        with contextlib.suppress(OSError):
            counts.keep(self.post.folder, self.post.number, lasting(text.decode()))

    # -- the supervisor ---------------------------------------------------------------------------

    def attach(self, loop: asyncio.AbstractEventLoop, ending: EndSignals) -> None:
        self._loop, self._ending = loop, ending
        loop.add_reader(self.post.channel.fileno(), self._hear)

    def detach(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self.post.channel.fileno())
            self._loop.remove_writer(self.post.channel.fileno())
        self.post.channel.close()

    def tell(self, message: dict[str, Any]) -> None:
        channel, loop = self.post.channel, self._loop
        try:
            channel.send(message)
        except OSError:
            return  # nobody is there: that is read
        if channel.kept and loop is not None and not loop.is_closed() and not self._writing:
            self._writing = True
            self._flush_later(loop)

    def _flush_later(self, loop: asyncio.AbstractEventLoop) -> None:
        channel = self.post.channel
        if channel.short:
            loop.remove_writer(channel.fileno())
            loop.call_later(REST_S, self._flush)
        else:
            loop.add_writer(channel.fileno(), self._flush)

    def _flush(self) -> None:
        channel, loop = self.post.channel, self._loop
        if loop is None or channel.fileno() < 0:
            return  # it was closed while it rested
        with contextlib.suppress(OSError):
            channel.flush()
            if channel.kept:
                self._flush_later(loop)
                return
        self._writing = False
        loop.remove_writer(channel.fileno())

    def _hear(self) -> None:
        assert self._loop is not None and self._ending is not None  # noqa: S101, PT018 - it is attached
        try:
            while (came := self.post.channel.receive()) is not None:
                self._heard(self._ending, *came)
            if self._took:
                took, self._took = self._took, 0
                self.tell({"took": took})
        except EOFError:
            self._loop.remove_reader(self.post.channel.fileno())
            self.orphaned = True
            self._left_admin.set()
            _log.error("the supervisor is gone: this process drains and ends")
            self._ending.begin()

    def _heard(self, ending: EndSignals, message: dict[str, Any], descriptor: int) -> None:
        if "door" in message:
            self._take(message["door"], message.get("number", 0), descriptor)
        elif "alive" in message:
            self.tell({"alive": True})
        elif "admin" in message:
            self._left_admin.set()
        elif "crew" in message:
            self.roster.hear(message["crew"])
        elif "drain" in message:
            self.draining = True
            self._told_alone = self._told_alone or message.get("alone", False)
            self.ends = message.get("ends", self.ends)
            ending.begin()
        elif "leave" in message:
            self.on_leave()
        elif "stop" in message:
            ending.cut()

    def _take(self, door: int, number: int, descriptor: int) -> None:
        if descriptor < 0:
            # This process has no room for one more: the system has closed what was handed over.
            self.tell({"full": number, **({"closed": 1} if door != ADMIN else {})})
            return
        self._took = number
        if door != ADMIN:
            self._doors[door].came(descriptor)
        elif self._adopt_admin is not None:
            self._adopt_admin(_Connection(descriptor, _nothing))
        else:
            os.close(descriptor)

    def _connection_over(self) -> None:
        self._closed += 1
        if self._closed == 1 and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon(self._tell_closed)

    def _tell_closed(self) -> None:
        closed, self._closed = self._closed, 0
        if self.post.channel.fileno() >= 0:
            self.tell({"closed": closed})


def _nothing() -> None:
    """Admin connections are not counted, and a process that does not serve yet does not report any."""
