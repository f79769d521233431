"""Detects when no broker of the cluster can be reached, so that this can be reported."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from brokers.remote.cluster.brokers import KnownBrokers
from brokers.remote.rpc.connection_pool import ConnectionPool
from popgate.clock import Clock, Timer
from popgate.errors import GatewayError
from popgate.wire.bodies.heartbeats import HeartbeatData
from popgate.wire.frames.codes import RequestCode
from popgate.wire.frames.remoting import Command

_log = logging.getLogger(__name__)

AWAY_S = 10.0
"""For which no broker must have answered before that is told: elections and restarts are shorter."""
_LOOK_S = 1.0
_QUIET_S = 3.0
"""A gateway without clients has no connections: from then on brokers are asked for a sign of life."""
_MOST_ASKED = 8
"""In one look; with more brokers, others in the next."""
_MOST_NAMED = 5


class BrokerAbsence:
    """Looks each second. `away_s`: for how long no broker answered; `missing`: that, in a sentence."""

    def __init__(
        self, links: ConnectionPool, clusters: KnownBrokers, clock: Clock, *, name: str, answer_s: float
    ) -> None:
        self._links = links
        self._clusters = clusters
        self._clock = clock
        self._sign = HeartbeatData(name).encode()
        self._answer_s = answer_s
        self._since: float | None = None
        self._told = False
        self._timer: Timer | None = None
        self._asked: set[str] = set()
        self._turn = 0

    def __repr__(self) -> str:
        return f"<BrokerAbsence {self.away_s():.1f} s>"

    def start(self) -> None:
        self._timer = self._clock.call_later(_LOOK_S, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def away_s(self) -> float:
        """Seconds; 0 while a broker answers."""
        return 0.0 if self._since is None else self._clock.monotonic() - self._since

    def missing(self) -> str:
        """What is missing; empty while a broker responds, or while the absence is too short to report."""
        away_s = self.away_s()
        return f"no broker can be reached for {away_s:.0f} s: {self._troubles()}" if away_s >= AWAY_S else ""

    def _addresses(self) -> dict[str, str]:
        """The brokers' names by their addresses."""
        return {
            address: broker.name for broker in self._clusters.known() for address in broker.addresses.values()
        }

    def _look(self) -> None:
        self._timer = self._clock.call_later(_LOOK_S, self._look)
        addresses = self._addresses()
        if any(map(self._links.answers, addresses)):
            if self._told:
                _log.warning("brokers can be reached again, after %.0f s", self.away_s())
            self._since, self._told = None, False
            return
        if self._since is None:
            self._since = self._clock.monotonic()
        if self.away_s() >= _QUIET_S:
            self._ask(list(addresses))
        if self.away_s() >= AWAY_S and not self._told:
            self._told = True
            _log.warning("%s", self.missing())

    def _ask(self, addresses: list[str]) -> None:
        """A heartbeat without clients costs a broker nothing, and it is answered."""
        for _ in range(min(_MOST_ASKED, len(addresses))):
            address = addresses[self._turn % len(addresses)]
            self._turn += 1
            if address in self._asked:
                continue
            try:
                answer = self._links.ask(
                    address, RequestCode.HEART_BEAT, {}, self._sign, timeout_s=self._answer_s
                )
            except GatewayError:
                continue  # its link tells why
            self._asked.add(address)
            answer.add_done_callback(partial(self._answered, address))

    def _answered(self, address: str, answer: asyncio.Future[Command]) -> None:
        self._asked.discard(address)
        if not answer.cancelled():
            answer.exception()  # or the loop tells of it

    def _troubles(self) -> str:
        addresses = self._addresses()
        if not addresses:
            return "the name servers know none"
        sentences = [
            f"broker {name} at {address}: {self._links.trouble(address) or 'it does not answer'}"
            for address, name in list(addresses.items())[:_MOST_NAMED]
        ]
        more = len(addresses) - len(sentences)
        return "; ".join(sentences) + (f"; and {more} more" if more else "")
