"""Requests to brokers by name: the address, the deadline, and the fields that every request carries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Final, cast

from brokers.remote.cluster.routes import Routes
from brokers.remote.rpc.connection_pool import ConnectionPool
from brokers.remote.settings import RemoteSettings
from popgate.answers import error_of
from popgate.clock import Clock, pause
from popgate.context import Context
from popgate.errors import BrokerTimeout, BrokerUnavailable, GatewayError
from popgate.wire.frames.codes import ResponseCode
from popgate.wire.frames.remoting import Command

_SUCCESS: Final = frozenset({int(ResponseCode.SUCCESS)})
_BUSY_S: Final = 3.0
"""How long a broker may be busy before its answer is returned."""
_FIRST_REST_S: Final = 0.1
_LONGEST_REST_S: Final = 1.0


class _CallbackRequest:
    """A request of `BrokerClient.ask`.

    No nested functions hold this: compiled, those of one call are a circle, which would keep everything that
    the callback has until the collector comes.
    """

    __slots__ = ("address", "broker", "callback", "code", "fields", "until")

    def __init__(
        self,
        broker: str,
        code: int,
        fields: Mapping[str, str],
        callback: Callable[[Command | Exception], None],
        until: float,
    ) -> None:
        self.broker = broker
        self.code = code
        self.fields = fields
        self.callback = callback
        self.until = until
        self.address = ""
        """Where it was asked first."""


class BrokerClient:
    """Requests to brokers by name. A part that needs a certain link or address uses the pool itself."""

    def __init__(self, links: ConnectionPool, routes: Routes, settings: RemoteSettings, clock: Clock) -> None:
        self._links = links
        self._routes = routes
        self._settings = settings
        self._clock = clock
        self._asking: set[asyncio.Task[Command]] = set()

    def time_left(self, context: Context | None, timeout_s: float | None = None) -> float:
        """Seconds for a request: `timeout_s` (None: the setting), or less when the caller has less.

        Raises BrokerUnavailable when the caller's time is over.
        """
        limit = self._settings.request_timeout_s if timeout_s is None else timeout_s
        if context is not None and context.deadline is not None:
            limit = min(limit, context.deadline - self._clock.monotonic())
            if limit <= 0:
                raise BrokerUnavailable("the caller's time is over, nothing was asked")
        return limit

    async def call(
        self,
        broker: str,
        code: int,
        fields: Mapping[str, str],
        body: bytes = b"",
        *,
        context: Context | None = None,
        timeout_s: float | None = None,
        reading: bool = False,
        link: int = 0,
        named: str = "bname",
    ) -> Command:
        """A broker's answer, whatever its code; `named` is the field that has the broker's name.

        Raises as `ConnectionPool.call`. A broker that cannot be reached, or says that it is not the one to
        ask, is asked for at the name servers at once.
        """
        clusters = self._routes.clusters
        data = clusters.get(broker)
        if data is None:
            await clusters.refresh()
        # Nearly always the master, which needs no second look.
        address = data.master if data is not None and not reading else None
        if address is None:
            address = clusters.address(broker, reading=reading)
        try:
            answer = await self._links.call(
                address,
                code,
                {**fields, named: broker},
                body,
                timeout_s=self.time_left(context, timeout_s),
                link=link,
            )
        except (BrokerUnavailable, BrokerTimeout):
            clusters.suspect(broker)
            raise
        if answer.code in _MOVED:
            clusters.refused(broker, address)
        return answer

    async def call_patiently(
        self,
        broker: str,
        code: int,
        fields: Mapping[str, str],
        body: bytes = b"",
        *,
        context: Context | None = None,
    ) -> Command:
        """As `call`; asked again for up to `_BUSY_S` while the broker is busy.

        A busy broker has not processed the request, so any request may be repeated.
        """
        until = self._clock.monotonic() + _BUSY_S
        rest = _FIRST_REST_S
        while True:
            answer = await self.call(broker, code, fields, body, context=context)
            if answer.code != ResponseCode.SYSTEM_BUSY or self._clock.monotonic() + rest > until:
                return answer
            await pause(self._clock, rest)
            rest = min(rest * 2, _LONGEST_REST_S)

    def ask(
        self,
        broker: str,
        code: int,
        fields: Mapping[str, str],
        callback: Callable[[Command | Exception], None],
        *,
        timeout_s: float,
    ) -> None:
        """As `call`, with a callback, which gets the response, or the exception of `call`, maybe at once.

        A task is created only if the broker has to be found first, or has sent GO_AWAY.
        """
        request = _CallbackRequest(broker, code, fields, callback, self._clock.monotonic() + timeout_s)
        clusters = self._routes.clusters
        data = clusters.get(broker)
        if data is None:
            self._find_and_ask(request)
            return
        try:
            address = request.address = data.master or clusters.address(broker)
            asked = self._links.ask(address, code, {**fields, "bname": broker}, timeout_s=timeout_s)
        except GatewayError as error:
            if isinstance(error, BrokerUnavailable):
                clusters.suspect(broker)
            callback(error)
            return
        asked.add_done_callback(partial(self._answered, request))

    def _find_and_ask(self, request: _CallbackRequest) -> None:
        left = request.until - self._clock.monotonic()
        calling = self.call(request.broker, request.code, request.fields, timeout_s=left)
        task = asyncio.get_running_loop().create_task(calling)
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        task.add_done_callback(lambda done: request.callback(_outcome(done)))

    def _answered(self, request: _CallbackRequest, done: asyncio.Future[Command]) -> None:
        answer = _outcome(done)
        clusters = self._routes.clusters
        if isinstance(answer, Exception):
            if isinstance(answer, (BrokerUnavailable, BrokerTimeout)):
                clusters.suspect(request.broker)
        elif answer.code == ResponseCode.GO_AWAY:
            self._find_and_ask(request)
            return
        elif answer.code in _MOVED:
            clusters.refused(request.broker, request.address)
        request.callback(answer)

    async def done(
        self,
        broker: str,
        code: int,
        fields: Mapping[str, str],
        body: bytes = b"",
        *,
        context: Context | None = None,
        timeout_s: float | None = None,
        reading: bool = False,
        link: int = 0,
        named: str = "bname",
        topic: str = "",
        group: str = "",
        also: Collection[int] = (),
    ) -> Command:
        """As `call`, for an answer with SUCCESS or a code in `also`. Raises `error_of` all others."""
        answer = await self.call(
            broker,
            code,
            fields,
            body,
            context=context,
            timeout_s=timeout_s,
            reading=reading,
            link=link,
            named=named,
        )
        if answer.code not in _SUCCESS and answer.code not in also:
            raise error_of(answer, broker=broker, topic=topic, group=group)
        return answer


def _outcome(done: asyncio.Future[Command]) -> Command | Exception:
    if done.cancelled():
        return BrokerTimeout("the gateway stops")
    # Not raised, lest the error holds on to frames that hold on to it.
    error = done.exception()
    return done.result() if error is None else cast("Exception", error)


_MOVED: Final = frozenset({int(ResponseCode.NOT_LEADER_FOR_QUEUE), int(ResponseCode.SERVICE_NOT_AVAILABLE)})
"""Answers after which the master may be another one."""
