"""One connection to one address: opened on demand, and reopened after it was lost.

After a failure it pauses, longer each time and with a random part, and requests fail at once
meanwhile: callers have other brokers. A connection that worked before it was lost is reopened without a
pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from brokers.channel import Channel
from brokers.remote.rpc.tls import BrokerTls
from brokers.remote.settings import RemoteSettings
from popgate.clock import Clock, Timer
from popgate.errors import BrokerUnavailable
from popgate.tls.shown_certificates import note_no_more, noted
from popgate.wire.frames.remoting import Command


@dataclass(slots=True, frozen=True)
class Means:
    """What all links are made with. `tls`: None: they are not secured. `host_of`: the name a certificate must
    have, by address."""

    clock: Clock
    settings: RemoteSettings
    chance: random.Random
    tls: BrokerTls | None
    host_of: Callable[[str], str]
    probe: Callable[[int], bytes]
    on_asked: Callable[[Connection, Channel, Command], None]
    on_opened: Callable[[str, int], None]
    on_lost: Callable[[str, int], None]


class Connection:
    """Link `number` to `address` ("host:port")."""

    def __init__(self, address: str, number: int, means: Means) -> None:
        self.address = address
        self.number = number
        self.channel: Channel | None = None
        self.used_at = means.clock.monotonic()
        self.trouble = ""
        """Why there is no connection, when the last attempt failed."""
        self.lost = 0
        self.lost_at = float("-inf")
        """When the last connection ended, or could not be opened, in loop seconds."""
        self.late = 0
        self.probes = 0
        self._means = means
        self._failures = 0
        self._rests_until = 0.0
        self._leaving: set[Channel] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._again: Timer | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<Connection {self.address}#{self.number} {self.channel!r} {self.trouble}>"

    @property
    def is_open(self) -> bool:
        return self.channel is not None and self.channel.open

    @property
    def is_good(self) -> bool:
        """Whether there is a connection on which something was answered."""
        return self.channel is not None and self.channel.open and self.channel.good

    @property
    def heard_at(self) -> float:
        """When the other side sent something over this connection, in loop seconds."""
        return self.channel.heard_at if self.channel is not None else float("-inf")

    @property
    def awaits_sign(self) -> bool:
        return self.channel is not None and self.channel.awaits_sign

    @property
    def in_flight(self) -> int:
        return sum(channel.in_flight for channel in self._channels())

    @property
    def queued(self) -> int:
        return sum(channel.queued for channel in self._channels())

    def figures(self) -> tuple[int, int, int, int, int]:
        """(in flight, not written, answers that came too late, signs of life asked for, connections lost)."""
        alive = self._channels()
        late = self.late + sum(channel.late for channel in alive)
        return (
            self.in_flight,
            self.queued,
            late,
            self.probes + sum(channel.probes for channel in alive),
            self.lost,
        )

    def usable(self, now: float) -> Channel:
        """The channel to ask on, perhaps still connecting. Raises BrokerUnavailable while it rests."""
        if self.channel is not None:
            return self.channel
        if self._closed:
            raise BrokerUnavailable(f"{self.address} cannot be reached: the link is closed")
        if now < self._rests_until:
            raise BrokerUnavailable(
                f"{self.address} cannot be reached: {self.trouble}"
                f" (tried again in {self._rests_until - now:.1f} s)"
            )
        return self._connect()

    def leave(self, channel: Channel) -> None:
        """The peer is going away: wait for pending responses, and send new requests elsewhere."""
        if self.channel is channel:
            self.channel = None
            self.trouble = "it asked its clients to go away"
            self._leaving.add(channel)
            self._rest(was_good=channel.good)
        channel.leave()

    def retire(self, why: str) -> None:
        """Close what there is, and connect no more."""
        self._closed = True
        if self._again is not None:
            self._again.cancel()
        for channel in self._channels():
            channel.close(why)

    async def close(self) -> None:
        self.retire("the gateway stops")
        connecting = list(self._connecting)
        for task in connecting:
            task.cancel()
        if connecting:
            await asyncio.wait(connecting)

    def _channels(self) -> list[Channel]:
        return [*self._leaving] if self.channel is None else [self.channel, *self._leaving]

    def _connect(self) -> Channel:
        means = self._means
        loop = asyncio.get_running_loop()
        if self._again is not None:
            self._again.cancel()
            self._again = None
        channel = Channel(
            self.address,
            loop=loop,
            clock=means.clock,
            settings=means.settings,
            probe=means.probe,
            on_asked=lambda source, command: means.on_asked(self, source, command),
            on_opened=self._opened,
            on_over=self._over,
        )
        self.channel = channel
        task = loop.create_task(self._open(channel))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return channel

    async def _open(self, channel: Channel) -> None:
        means = self._means
        limit = means.settings.connect_timeout_s
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        alarm = means.clock.call_later(limit, lambda: _cancel(task))
        try:
            await self._reach(channel)
        except asyncio.CancelledError:
            channel.close(f"no connection within {limit:g} s")
        except (OSError, ValueError, OverflowError) as error:  # the last for a port beyond 65,535
            channel.close(_reason(error))
        finally:
            alarm.cancel()

    async def _reach(self, channel: Channel) -> None:
        """Raises OSError, ValueError, OverflowError."""
        loop, tls = asyncio.get_running_loop(), self._means.tls
        host, _, port = self.address.rpartition(":")
        host = host.strip("[]")
        if tls is None:
            await loop.create_connection(lambda: channel, host, int(port))
            return
        context, name = tls.current(), self._means.host_of(self.address)
        with noted() as shown:
            try:
                transport, _ = await loop.create_connection(
                    lambda: channel, host, int(port), ssl=context, server_hostname=name
                )
            except ssl.SSLCertVerificationError as error:
                raise ConnectionError(tls.refused(self.address, error, shown)) from None
        note_no_more(context, transport)

    def _opened(self, channel: Channel) -> None:
        if self.channel is channel:
            self._means.on_opened(self.address, self.number)

    def _over(self, channel: Channel, why: str) -> None:
        self.late += channel.late
        self.probes += channel.probes
        self._leaving.discard(channel)
        if self.channel is not channel:
            return
        self.channel = None
        self.trouble = why
        self.lost += 1
        self._rest(was_good=channel.good)
        if not self._closed:
            self._means.on_lost(self.address, self.number)

    def _rest(self, *, was_good: bool) -> None:
        """Schedule the earliest next attempt, and the automatic one."""
        means, settings = self._means, self._means.settings
        now = self.lost_at = means.clock.monotonic()
        if was_good:
            self._failures = 0
            self._rests_until = now
        else:
            longest = min(settings.reconnect_first_s * 2**self._failures, settings.reconnect_longest_s)
            self._failures = min(self._failures + 1, 30)
            self._rests_until = now + longest * (0.5 + means.chance.random() / 2)
        if self._closed or now - self.used_at > settings.link_idle_s:
            return
        wait = self._rests_until - now + means.chance.random() * settings.reconnect_first_s
        self._again = means.clock.call_later(wait, self._try_again)

    def _try_again(self) -> None:
        self._again = None
        if self.channel is None and not self._closed:
            with contextlib.suppress(BrokerUnavailable):
                self.usable(self._means.clock.monotonic())


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


def _reason(error: Exception) -> str:
    """The words of the system or of TLS, without the address, which is named already."""
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno) if error.errno > 0 else str(error.strerror)
    return str(error) or type(error).__name__
