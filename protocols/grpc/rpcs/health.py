"""gRPC's own health check (`grpc.health.v1`): whether this door accepts calls and its broker can serve them.

Orchestrators and load balancers use it, with neither a client id nor credentials. Source: the
comments of gRPC's health.proto.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from popgate.clock import Clock, SystemClock, Timer
from popgate.errors import shown
from popgate.pb.health_pb2 import HealthCheckRequest, HealthCheckResponse
from protocols.grpc.transport import CallFailed, CallStatus, ResponseStream

SERVICE = "grpc.health.v1.Health"

WHOLE: Final = ""
"""The name by which the server as a whole is asked for."""

_MOST_WATCHES = 1_024
_LOOK_S = 1.0
"""How often it is looked, while somebody watches, whether the broker can write."""

_Status = HealthCheckResponse.ServingStatus


class Health:
    """What one door says of itself, and of the services at it; `healthy` is whether its broker can write."""

    def __init__(
        self,
        services: Iterable[str],
        *,
        clock: Clock | None = None,
        healthy: Callable[[], bool] = lambda: True,
        most_watches: int = _MOST_WATCHES,
    ) -> None:
        self._clock = SystemClock() if clock is None else clock
        self._healthy = healthy
        self._looking: Timer | None = None
        self._services = frozenset((WHOLE, *services))
        self._most_watches = most_watches
        self._watches = 0
        self._serving = False
        self._over = False
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Health {'serving' if self._serving else 'not serving'} watches {self._watches}>"

    def check(self, request: HealthCheckRequest) -> HealthCheckResponse:
        """Raises CallFailed NOT_FOUND for a service that is not at this door."""
        status = self._status_of(request.service)
        if status == _Status.SERVICE_UNKNOWN:
            raise CallFailed(CallStatus.NOT_FOUND, f"there is no service {shown(request.service)} here")
        return HealthCheckResponse(status=status)

    async def watch(self, request: HealthCheckRequest, answers: ResponseStream[HealthCheckResponse]) -> None:
        """Write the status, and again whenever it changes, until the door closes.

        Raises CallFailed RESOURCE_EXHAUSTED, BrokenStream.
        """
        if self._watches >= self._most_watches:
            raise CallFailed(
                CallStatus.RESOURCE_EXHAUSTED,
                f"the limit of {self._most_watches} watches of the health is reached",
            )
        self._watches += 1
        self._look()
        last = None
        try:
            while True:
                changed, over = self._changed, self._over
                status = self._status_of(request.service)
                if status != last:
                    await answers.write(HealthCheckResponse(status=status))
                    last = status
                if over:
                    return
                await changed.wait()
        finally:
            self._watches -= 1
            if not self._watches and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    def start(self) -> None:
        """The door is open."""
        self._change(serving=True)

    def leave(self) -> None:
        """The door is about to close: report NOT_SERVING to checks and watches."""
        self._change(serving=False)

    def drain(self) -> None:
        """The door closes: report it to watches, and end their streams, so that they go elsewhere."""
        self._over = True
        self._change(serving=False)

    def _change(self, *, serving: bool) -> None:
        self._serving = serving
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _status_of(self, service: str) -> HealthCheckResponse.ServingStatus:
        if service not in self._services:
            return _Status.SERVICE_UNKNOWN
        return _Status.SERVING if self._serving and self._healthy() else _Status.NOT_SERVING

    def _look(self) -> None:
        """Re-evaluate for watches periodically: the broker's state sends no notification."""
        if self._looking is None and not self._over:
            self._looking = self._clock.call_later(_LOOK_S, self._looked)

    def _looked(self) -> None:
        self._looking = None
        self._wake()
        if self._watches:
            self._look()
