"""The remoting wire on a plain blocking socket, for Spark's executors and for scripts.

with BlockingConnection.connect("127.0.0.1:8080", timeout_s=10) as connection:
    ...

A connection belongs to one thread. Many requests may be in flight: `start` sends one, `finish` waits for its
response. Every wait has a deadline. Failures are `GatewayError`: the name of its `fault` is the stable code.
After BROKER_TIMEOUT it is unknown whether the request was executed.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType

from popgate.answers import error_of
from popgate.errors import (
    BadRequest,
    BrokerTimeout,
    BrokerUnavailable,
    Fault,
    GatewayError,
    PeerWireError,
    shown,
)
from popgate.wire.frames.codes import ResponseCode
from popgate.wire.frames.remoting import Command, RemotingWire, encode_command
from popgate.wire.frames.signature import sign

_READ_BYTES = 256 * 1024
_WANTS = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


@dataclass(frozen=True, slots=True)
class Credentials:
    """The key pair that signs requests."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str = field(default="", repr=False)


class BlockingConnection:
    """One connection to a gateway, or to anything else that speaks remoting.

    `timeout_s` is the time of each call that is given none of its own.
    """

    def __init__(
        self,
        sock: socket.socket,
        endpoint: str,
        *,
        timeout_s: float,
        credentials: Credentials | None = None,
    ) -> None:
        """Of a socket that is connected, and has shaken hands where TLS is spoken; it is ours from now on."""
        sock.setblocking(False)
        self.endpoint = endpoint
        self.timeout_s = timeout_s
        self.is_silent = False
        """Whether the last wait for a response ended without one."""
        self._socket = sock
        self._credentials = credentials
        self._wire = RemotingWire()
        self._selector = selectors.DefaultSelector()
        self._selector.register(sock, selectors.EVENT_READ)
        self._watched = selectors.EVENT_READ
        self._out: deque[memoryview] = deque()
        self._opaque = 0
        self._waiting: set[int] = set()
        self._answers: dict[int, Command] = {}
        self._failure: GatewayError | None = None

    @classmethod
    def connect(
        cls,
        endpoint: str,
        *,
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
        credentials: Credentials | None = None,
    ) -> BlockingConnection:
        """Connect to "host:port" within the time, the handshake of TLS included.

        Raises BadRequest (ILLEGAL_ACCESS_POINT) for another form, BrokerUnavailable, BrokerTimeout.
        """
        host, port = parse_endpoint(endpoint)
        deadline = time.monotonic() + timeout_s
        sock: socket.socket | None = None
        try:
            sock = socket.create_connection((host, port), timeout=timeout_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                sock.settimeout(max(deadline - time.monotonic(), 0.001))
                sock = tls.wrap_socket(sock, server_hostname=server_name or host)
            return cls(sock, endpoint, timeout_s=timeout_s, credentials=credentials)
        except (OSError, ValueError, UnicodeError) as error:
            if sock is not None:
                sock.close()
            if isinstance(error, TimeoutError):
                raise BrokerTimeout(f"{endpoint} did not take a connection within {timeout_s:g} s") from error
            raise BrokerUnavailable(f"no connection to {endpoint}: {error}") from error

    def __repr__(self) -> str:
        state = "open" if self._failure is None else "over"
        return f"<BlockingConnection {self.endpoint} {state}, in flight {len(self._waiting)}>"

    def __enter__(self) -> BlockingConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        """Whether it can be asked, as far as is known: the other side may have gone since."""
        return self._failure is None

    def is_quiet(self) -> bool:
        """Whether it is open and nothing is under way, with a look at whether the other side has gone."""
        if self._failure is None and not self._waiting:
            self._read()
        return self._failure is None and not self._waiting

    def close(self) -> None:
        """Idempotent. Waiting calls raise BrokerUnavailable."""
        self._fail(BrokerUnavailable(f"the connection to {self.endpoint} was closed"))

    # -- asking -----------------------------------------------------------------------------------

    def call(
        self,
        code: int,
        fields: Mapping[str, str],
        body: bytes = b"",
        *,
        timeout_s: float | None = None,
    ) -> Command:
        """The response, whatever its code. Raises what `start` and `finish` raise."""
        return self.finish(self.start(code, fields, body), timeout_s=timeout_s)

    def start(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> int:
        """Send a request; returns the number for `finish` or `forget`.

        As much as the socket accepts now is written, and the rest while a response is awaited.
        Raises BrokerUnavailable, and LocalWireError for what does not fit into a frame.
        """
        self._check()
        if self._credentials is not None:
            mine = self._credentials
            fields = {
                **fields,
                **sign(fields, body, mine.access_key, mine.secret_key, mine.security_token),
            }
        self._opaque = self._opaque + 1 & 0x7FFFFFFF
        command = Command(code, self._opaque, fields=dict(fields), body=body)
        self._out.append(memoryview(encode_command(command)))
        self._waiting.add(self._opaque)
        self._write()
        return self._opaque

    def finish(self, opaque: int, *, timeout_s: float | None = None) -> Command:
        """Wait for an answer, whatever its code.

        Raises BrokerUnavailable (the connection is over, or the gateway ends) and BrokerTimeout: the
        connection stays, and an answer that comes late is dropped.
        """
        within = self.timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + within
        while (answer := self._answers.pop(opaque, None)) is None:
            self._check()
            if opaque not in self._waiting:
                raise BadRequest(f"no request {opaque} is under way")
            if self._read() or self._write():
                # Who says something else all the time does not answer, either.
                is_over = opaque in self._waiting and time.monotonic() >= deadline
            else:
                is_over = not self._wait(deadline)
            if is_over:
                self.forget(opaque)
                self.is_silent = True
                raise BrokerTimeout(f"{self.endpoint} did not answer within {within:g} s")
        self.is_silent = False
        if answer.code == ResponseCode.GO_AWAY:
            gone = error_of(answer, broker=self.endpoint)
            self._fail(gone)
            raise gone
        return answer

    def forget(self, opaque: int) -> None:
        """Discard the response to this request."""
        self._waiting.discard(opaque)
        self._answers.pop(opaque, None)

    # -- inside -----------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._failure is not None:
            raise BrokerUnavailable(self._failure.sentence)

    def _fail(self, error: GatewayError) -> None:
        if self._failure is None:
            self._failure = error
            self._selector.close()
            self._socket.close()
            self._out.clear()
            self._waiting.clear()

    def _lost(self, why: object) -> None:
        self._fail(BrokerUnavailable(f"the connection to {self.endpoint} was lost: {why}"))

    def _write(self) -> bool:
        """Write what the socket accepts now; returns whether anything was written."""
        wrote = False
        while self._out and self._failure is None:
            try:
                count = self._socket.send(self._out[0])
            except _WANTS:
                return wrote
            except OSError as error:
                self._lost(error)
                return True
            wrote = True
            if count == len(self._out[0]):
                self._out.popleft()
            else:
                self._out[0] = self._out[0][count:]
        return wrote

    def _read(self) -> bool:
        """Process received bytes; returns whether there were any."""
        try:
            data = self._socket.recv(_READ_BYTES)
        except _WANTS:
            return False
        except OSError as error:
            self._lost(error)
            return True
        try:
            self._wire.receive(data)
            while (command := self._wire.next_event()) is not None:
                # What is asked of us has no meaning here: there is no group that we are a member of.
                if command.is_response and command.opaque in self._waiting:
                    self._waiting.discard(command.opaque)
                    self._answers[command.opaque] = command
        except PeerWireError as error:
            self._lost(f"it sent nonsense: {error}")
            return True
        if not data:
            self._lost("the other side closed it")
        return True

    def _wait(self, deadline: float) -> bool:
        """Until something can be read or written. False: the time is over."""
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
        if wanted != self._watched:
            self._selector.modify(self._socket, wanted)
            self._watched = wanted
        self._selector.select(left)
        return True


def parse_endpoint(text: str) -> tuple[str, int]:
    """Host and port of "host:port" or "[::1]:port". Raises BadRequest (ILLEGAL_ACCESS_POINT)."""
    host, _, port_text = text.strip().rpartition(":")
    port = int(port_text) if port_text.isascii() and port_text.isdigit() and len(port_text) <= 5 else 0
    bare = host.removeprefix("[").removesuffix("]")
    if not bare or not 0 < port < 65_536 or (":" in host and not host.startswith("[")):
        raise BadRequest(f"{shown(text)} is no host:port", Fault.ILLEGAL_ACCESS_POINT)
    return bare, port
