"""The admin server: aiohttp, with errors as JSON and bounded requests.

It has no authentication, so a web page must not be able to use the browser of an operator: requests with a
body must be `application/json` (which needs a preflight that is never granted), modifying requests must not
come from a page of another origin, and while the port listens on loopback only, the host name of the request
must be an address, `localhost`, or one of `api.hosts` (against DNS rebinding).
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from popgate.context import Context
from popgate.errors import BadRequest, Forbidden, GatewayError, shown
from protocols.adapter import Listen, joined
from protocols.drain import LongPolls
from proxy.admin.web.json_forms import error_out
from proxy.admin.web.statuses import status_of

_log = logging.getLogger("popgate.admin")
_UNASKED_S = 1.0
"""How long a server that stops waits for the request of a connection that was handed to it."""
_LOOK_S = 0.01
_MANY_UNASKED = 100

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Middleware = Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]


def context_of(request: web.Request) -> Context:
    """The circumstances of a request on the admin port; its caller is anonymous."""
    name = request.transport.get_extra_info("peername") if request.transport is not None else None
    peer = joined(name[0], name[1]) if name else ""
    trace = request.headers.get("traceparent", "")[:256]
    client_id = f"admin@{name[0] if name else ''}"
    return Context(client_id=client_id, door="admin", peer=peer, traceparent=trace)


class _HttpLog(logging.LoggerAdapter[logging.Logger]):
    """aiohttp's log. A request that is no HTTP is its sender's fault: a line, and no traceback of ours."""

    def exception(
        self, msg: object, *args: object, exc_info: Any = True, stacklevel: int = 1, **more: Any
    ) -> None:
        if isinstance(exc_info, HttpProcessingError):
            why = " ".join(str(exc_info.message).split())
            self.warning("a request was no HTTP: %s", shown(why, 120), stacklevel=stacklevel + 1)
        else:
            super().exception(msg, *args, exc_info=exc_info, stacklevel=stacklevel + 1, **more)


class AdminServer:
    """Serves `routes` at one address, from `start` to `stop`; `waits` are those that a drain ends.

    With a `path` it listens at a socket in the file system instead, and is handed the connections to its
    address (`adopt`).
    """

    def __init__(
        self,
        listen: Listen,
        routes: Iterable[web.RouteDef],
        *,
        max_request_bytes: int,
        hosts: Sequence[str],
        waits: LongPolls,
        path: str = "",
        middlewares: Sequence[Middleware] = (),
    ) -> None:
        self._listen = listen
        self._waits = waits
        self._hosts = frozenset(host.lower() for host in hosts)
        self._loopback = _is_loopback(listen.host)
        layers: list[Any] = [self._guard, *middlewares]
        application = web.Application(client_max_size=max_request_bytes, middlewares=layers)
        application.add_routes(routes)
        # A caller that goes away ends its request: a receive that waits must not take a message for nobody.
        self._runner = web.AppRunner(
            application,
            access_log=None,
            logger=_HttpLog(logging.getLogger("popgate.admin.http")),
            handle_signals=False,
            handler_cancellation=True,
            keepalive_timeout=75.0,
            shutdown_timeout=2.0,
        )
        self._path = path
        self._adopting: set[asyncio.Task[Any]] = set()
        self._unasked: set[web.RequestHandler] = set()
        """Those that were handed over, and from which no request has come yet."""
        self.before_stop: Callable[[], Awaitable[None]] | None = None
        """Stops the hand-over of further connections."""
        self._draining = False
        self.wanted = listen.url(listen.port)
        self.address = ""

    def __repr__(self) -> str:
        return f"<AdminServer {self.address or 'closed'}>"

    async def start(self) -> None:
        """Listen. Raises OSError."""
        await self._runner.setup()
        if self._path:
            await web.UnixSite(self._runner, self._path).start()
            return
        site = web.TCPSite(self._runner, self._listen.host, self._listen.port)
        await site.start()
        port = self._runner.addresses[0][1]
        self.address = f"http://{joined(self._listen.host, port)}"

    def adopt(self, connection: socket.socket) -> None:
        """Serve a connection that was accepted elsewhere."""
        server, loop = self._runner.server, asyncio.get_running_loop()
        if server is None:
            connection.close()
            return
        task = loop.create_task(self._take(loop, server, connection))
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    async def _take(self, loop: asyncio.AbstractEventLoop, server: Any, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it is gone already
            await loop.connect_accepted_socket(partial(self._open, server), connection)

    def _open(self, server: web.Server) -> web.RequestHandler:
        if len(self._unasked) > _MANY_UNASKED:
            self._has_unasked()
        handler = server()
        self._unasked.add(handler)
        return handler

    def allow_hosts(self, hosts: Sequence[str]) -> None:
        """The names under which it may be reached while it listens on loopback only."""
        self._hosts = frozenset(host.lower() for host in hosts)

    def drain(self) -> None:
        """Answer waiting receives, and make new ones return at once; all other requests are served."""
        self._waits.end()
        self._draining = True

    async def stop(self) -> None:
        """Connections that were handed over a moment ago are answered: their request is on the way."""
        if self.before_stop is not None:
            await self.before_stop()
        ends = asyncio.get_running_loop().time() + _UNASKED_S
        # Operators' connections tell nobody when they are asked first.
        while self._has_unasked() and asyncio.get_running_loop().time() < ends:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        await self._runner.cleanup()
        self.address = ""

    def _has_unasked(self) -> bool:
        """Whether there are any. Closed ones are removed."""
        self._unasked = {request for request in self._unasked if request.transport is not None}
        return bool(self._unasked or self._adopting)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._unasked.discard(request.protocol)
        answer = await self._guarded(request, handler)
        if self._draining and not answer.prepared:
            answer.force_close()
        return answer

    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self._check_host(request)
            self._check_origin(request)
            return await handler(request)
        except GatewayError as error:
            return web.json_response(error_out(error), status=status_of(error.fault))
        except web.HTTPException as error:
            return web.json_response(
                {"fault": _FAULTS.get(error.status, "BAD_REQUEST"), "message": _sentence(error, request)},
                status=error.status,
                headers={name: value for name, value in error.headers.items() if name == "Allow"},
            )
        except ConnectionError:
            raise
        except Exception:
            _log.exception("an admin request failed: %s %s", request.method, request.match_info.route.name)
            return web.json_response(
                {"fault": "INTERNAL", "message": "the gateway failed; its log says why"}, status=500
            )

    def _check_host(self, request: web.Request) -> None:
        if not self._loopback:
            return
        try:
            host = request.url.host or ""
        except ValueError:
            raise BadRequest(f"the header Host names no host: {shown(request.host)}") from None
        if host == "localhost" or host.lower() in self._hosts or _is_address(host):
            return
        raise BadRequest(f"the admin port is not known by the name {host!r}; names are set in api.hosts")

    def _check_origin(self, request: web.Request) -> None:
        """Browsers send the origin of a modifying request; requests without one are accepted."""
        origin = request.headers.get("Origin")
        if origin is None or request.method in ("GET", "HEAD"):
            return
        try:
            parts = urlsplit(origin)
        except ValueError:
            parts = urlsplit("null")
        if parts.netloc and (parts.netloc.lower() == request.host.lower() or parts.hostname in self._hosts):
            return
        raise Forbidden(f"a page of {shown(origin)} may change nothing here; hosts are set in api.hosts")


_FAULTS = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED", 413: "BODY_TOO_LARGE"}


def _sentence(error: web.HTTPException, request: web.Request) -> str:
    if error.status == 404:
        return f"there is nothing at {request.path[:200]!r}"
    if error.status == 405:
        return f"{request.method} is not possible at {request.path[:200]!r}"
    return error.text or error.reason


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
