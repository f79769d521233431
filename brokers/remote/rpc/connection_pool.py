"""Channels to brokers and name servers by address; many requests are under way on each."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping

from brokers.channel import GATEWAY, Channel, Speaker
from brokers.remote.rpc.connection import Connection, Means
from brokers.remote.rpc.inbound import Handler, InboundRequests
from brokers.remote.rpc.tls import BrokerTls
from brokers.remote.settings import RemoteSettings
from popgate.clock import Clock, Timer
from popgate.errors import BrokerBusy, BrokerUnavailable
from popgate.wire.bodies.heartbeats import HeartbeatData
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command, encode_command

__all__ = ["ConnectionPool", "Handler"]

_log = logging.getLogger(__name__)

_SWEEP_S = 30.0


class ConnectionPool:
    """Every connection of the gateway to its cluster.

    Connection 0 of a broker is the one for everything that has no reason to choose; the others are there
    because a broker keeps one client per group and connection. All requests are signed where there are
    credentials.
    """

    def __init__(
        self, settings: RemoteSettings, clock: Clock, *, chance: random.Random | None = None
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._links: dict[tuple[str, int], Connection] = {}
        self._hosts: dict[str, str] = {}
        self._answering = InboundRequests(settings.max_asked)
        self._opened: list[Callable[[str, int], None]] = []
        self._lost: list[Callable[[str, int], None]] = []
        self._dropped = 0
        self._past = [0, 0, 0]
        """Late answers, signs of life and losses of links that are forgotten."""
        self._sweeper: Timer | None = None
        self._closed = False
        self._heartbeat = HeartbeatData(settings.name).encode()
        self.tls = BrokerTls(settings.tls, clock.monotonic) if settings.tls is not None else None
        """What connections are secured with; None: they are not."""
        self._means = Means(
            clock=clock,
            settings=settings,
            chance=chance or random.Random(),  # noqa: S311
            tls=self.tls,
            host_of=self._host_of,
            probe=self._probe,
            on_asked=self._asked,
            on_opened=self._tell_opened,
            on_lost=self._tell_lost,
        )

    def __repr__(self) -> str:
        is_open = sum(connection.is_open for connection in self._links.values())
        return f"<ConnectionPool {is_open} open of {len(self._links)}>"

    async def call(
        self,
        address: str,
        code: int,
        fields: Mapping[str, str],
        body: bytes = b"",
        *,
        timeout_s: float,
        link: int = 0,
        speaker: Speaker = GATEWAY,
    ) -> Command:
        """The response, whatever its code. `speaker`: the client in whose name the request is sent.

        Raises BrokerUnavailable when the request certainly was not done (no connection, closed before it
        was written, or the broker was told to go away before it looked at it), BrokerBusy likewise (too
        many wait on this link), BrokerTimeout when nobody knows (no answer in time, or the connection was
        lost after it was written).
        """
        clock = self._clock
        now = clock.monotonic()
        until = now + timeout_s
        if self._settings.credentials is not None:
            fields = self._signed(fields, body)
        connection = self._links.get((address, link)) or self._link(address, link)
        for _ in range(2):
            connection.used_at = now
            channel = connection.channel or connection.usable(now)
            waiting = channel.ask(code, fields, body, now, until - now, speaker)
            try:
                answer = await waiting.future
            except asyncio.CancelledError:
                channel.forget(waiting)
                raise
            if answer.code != ResponseCode.GO_AWAY:
                return answer
            # It said so before it looked at the request: another connection may be taken (5.13).
            connection.leave(channel)
            now = clock.monotonic()
        raise BrokerUnavailable(f"{address} asks its clients to go away")

    def ask(
        self, address: str, code: int, fields: Mapping[str, str], body: bytes = b"", *, timeout_s: float
    ) -> asyncio.Future[Command]:
        """As `call`, but returns a future; on link 0, and without a retry after GO_AWAY.

        Raises immediate failures, the future raises later ones. Do not cancel it: the outcome of the request
        would be unknown.
        """
        now = self._clock.monotonic()
        if self._settings.credentials is not None:
            fields = self._signed(fields, body)
        connection = self._links.get((address, 0)) or self._link(address, 0)
        connection.used_at = now
        channel = connection.channel or connection.usable(now)
        return channel.ask(code, fields, body, now, timeout_s).future

    def tell(
        self,
        address: str,
        code: int,
        fields: Mapping[str, str],
        body: bytes = b"",
        *,
        link: int = 0,
        speaker: Speaker = GATEWAY,
    ) -> None:
        """Send a request that is not answered; dropped, and counted, when there is no connection now.

        Then one is made in the background.
        """
        if self._settings.credentials is not None:
            fields = self._signed(fields, body)
        now = self._clock.monotonic()
        try:
            connection = self._links.get((address, link)) or self._link(address, link)
            connection.used_at = now
            channel = connection.channel or connection.usable(now)
            if channel.open:
                channel.tell(code, fields, body, speaker)
                return
        except (BrokerUnavailable, BrokerBusy):
            pass
        self._dropped += 1

    def on_request(self, code: int, handler: Handler) -> None:
        """Who answers requests of brokers with this code: (address, link, request) -> answer, or None.

        Others are answered with REQUEST_CODE_NOT_SUPPORTED. A oneway request gets no answer.
        """
        self._answering.handlers[code] = handler

    def on_open(self, handler: Callable[[str, int], None]) -> None:
        """Add a listener, called with (address, link) whenever a connection is opened or reopened."""
        self._opened.append(handler)

    def on_lost(self, handler: Callable[[str, int], None]) -> None:
        """Add a listener, called with (address, link) when a connection is lost, or could not be opened."""
        self._lost.append(handler)

    def is_open(self, address: str, link: int = 0) -> bool:
        connection = self._links.get((address, link))
        return connection is not None and connection.is_open

    def answers(self, address: str) -> bool:
        """Whether something was answered there since the last connection was lost."""
        connections = [connection for (where, _), connection in self._links.items() if where == address]
        good = [connection for connection in connections if connection.is_good]
        # One that is there again, and that nobody has used since, says nothing: only its loss counts.
        lost = [connection for connection in connections if connection.trouble and not connection.is_good]
        return bool(good) and (
            not lost
            or max(connection.heard_at for connection in good)
            > max(connection.lost_at for connection in lost)
        )

    def open_links(self) -> dict[str, int]:
        """How many connections there are to each address."""
        counts: dict[str, int] = {}
        for (address, _), connection in self._links.items():
            if connection.is_open:
                counts[address] = counts.get(address, 0) + 1
        return counts

    def connect(self, address: str, link: int = 0) -> None:
        """Begin to connect, if it is not done or resting, so that the next request need not wait."""
        now = self._clock.monotonic()
        try:
            connection = self._links.get((address, link)) or self._link(address, link)
            connection.used_at = now
            connection.usable(now)
        except BrokerUnavailable:
            pass

    def trouble(self, address: str, link: int = 0) -> str:
        """Why there is no connection; empty when there is one, or none was tried."""
        connection = self._links.get((address, link))
        return connection.trouble if connection is not None and not connection.is_open else ""

    def name(self, address: str, host: str) -> None:
        """The certificate at `address` must be of `host`: the address was found by that name.

        Beyond the bound the one that was told longest ago is forgotten: those in use are told repeatedly.
        It does not end with a connection, because the next one may be needed before the name is told again.
        """
        self._hosts.pop(address, None)
        if len(self._hosts) >= self._settings.max_addresses:
            del self._hosts[next(iter(self._hosts))]
        self._hosts[address] = host

    async def close(self) -> None:
        """End every connection; what waits fails."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in self._links.values():
            await connection.close()
        self._links.clear()
        await self._answering.close()

    def figures(self) -> dict[str, float]:
        flying, queued, late, probes, lost = 0, 0, *self._past
        for connection in self._links.values():
            each = connection.figures()
            flying, queued, late = flying + each[0], queued + each[1], late + each[2]
            probes, lost = probes + each[3], lost + each[4]
        return {
            "links": len(self._links),
            "links_open": sum(connection.is_open for connection in self._links.values()),
            "requests_in_flight": flying,
            "requests_queued": queued,
            "late_answers_total": late,
            "links_silent": sum(connection.awaits_sign for connection in self._links.values()),
            "probes_total": probes,
            "connections_lost_total": lost,
            "oneway_dropped_total": self._dropped,
            **(self.tls.figures() if self.tls is not None else {}),
        }

    def _link(self, address: str, number: int) -> Connection:
        if self._closed:
            raise BrokerUnavailable(f"{address} cannot be reached: the gateway stops")
        if not 0 <= number < self._settings.max_links:
            raise BrokerUnavailable(
                f"link {number} is beyond the {self._settings.max_links} links to a broker"
            )
        most = self._settings.max_addresses
        # Those of clients, of which there may be very many, take no room from those that all requests need.
        if len(self._links) >= most and (number or sum(not other for _, other in self._links) >= most):
            raise BrokerUnavailable(f"there are {len(self._links)} links already, which is the bound")
        connection = self._links[address, number] = Connection(address, number, self._means)
        if self._sweeper is None:
            self._sweeper = self._clock.call_later(_SWEEP_S, self._sweep)
        return connection

    def _sweep(self) -> None:
        """Close and remove links that have been idle for long."""
        self._sweeper = None
        oldest = self._clock.monotonic() - self._settings.link_idle_s
        for key, connection in list(self._links.items()):
            if connection.used_at < oldest and not connection.in_flight:
                del self._links[key]
                connection.retire("nobody used it for long")
                for place, count in enumerate(connection.figures()[2:]):
                    self._past[place] += count
        if self._links and not self._closed:
            self._sweeper = self._clock.call_later(_SWEEP_S, self._sweep)

    def _signed(self, fields: Mapping[str, str], body: bytes) -> Mapping[str, str]:
        # Loaded where there are credentials only.
        from popgate.wire.frames.signature import sign

        account = self._settings.credentials
        assert account is not None  # noqa: S101
        return {**fields, **sign(fields, body, account.access_key, account.secret_key)}

    def _probe(self, opaque: int) -> bytes:
        """A heartbeat without clients: brokers answer it from a pool of their own, name servers that they
        do not know it; either is a sign of life, and neither costs anything."""
        fields: Mapping[str, str] = {}
        if self._settings.credentials is not None:
            fields = self._signed(fields, self._heartbeat)
        return encode_command(
            Command(RequestCode.HEART_BEAT, opaque, fields=dict(fields), body=self._heartbeat)
        )

    def _host_of(self, address: str) -> str:
        tls = self._settings.tls
        if tls is not None and tls.server_name:
            return tls.server_name
        return self._hosts.get(address) or address.rpartition(":")[0].strip("[]")

    def _asked(self, link: Connection, channel: Channel, command: Command) -> None:
        self._answering.take(link.address, link.number, command, channel.answer)

    def _tell_opened(self, address: str, link: int) -> None:
        _tell(self._opened, address, link)

    def _tell_lost(self, address: str, link: int) -> None:
        _tell(self._lost, address, link)


def _tell(handlers: list[Callable[[str, int], None]], address: str, link: int) -> None:
    for handler in handlers:
        try:
            handler(address, link)
        except Exception:
            _log.exception("what follows from a link to %s failed", address)
