"""A cache of connections to the gateway, kept by a process for its next task."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from popgate.blocking import BlockingConnection, Credentials
from popgate.errors import BrokerTimeout, BrokerUnavailable, Fault, GatewayError
from popgate.naming import TOOLS_GROUP
from popgate.queue_client import QueueClient
from popgate.spark.errors import Code, SparkSourceError, illegal_option
from popgate.spark.options.gateway_options import Gateway

if TYPE_CHECKING:
    from popgate.spark.grpc.connection import GrpcConnection

PASSING = frozenset(
    {
        *(Fault.BROKER_UNAVAILABLE, Fault.BROKER_TIMEOUT, Fault.BROKER_BUSY, Fault.TOO_MANY_REQUESTS),
        # The door's code for what a broker could not do without a word of why.
        Fault.INTERNAL,
    }
)
"""Faults that may be gone when the same is asked or sent again."""
_LONGEST_IDLE_S: Final = 60.0
"""The door closes connections that are silent for two minutes; proxies in between may be quicker."""


class GatewayOptions(Protocol):
    """How the gateway is reached, of the options of a source or a sink. `group` empty: any."""

    @property
    def gateway(self) -> Gateway: ...
    @property
    def group(self) -> str: ...
    @property
    def timeout_s(self) -> float: ...


_Connection: TypeAlias = "BlockingConnection | GrpcConnection"
_Key = tuple[int, Gateway, Credentials | None]
_idle: dict[_Key, tuple[float, _Connection]] = {}
"""One at most of each kind, and since when; by process, because Spark forks its workers.

Threads share it without a lock, which a fork might copy while it is held: a connection belongs to the thread
that has taken it out.
"""
_SILENT_S: Final = 60.0
_silent: Final[dict[str, float]] = {}
"""Endpoints that let a request or a connection wait until its time was over, and when."""


@contextmanager
def client_of(options: GatewayOptions, *, now: Callable[[], float] = time.monotonic) -> Iterator[QueueClient]:
    """A client for one piece of work; if that succeeds its connection is cached for a minute.

    Raises SparkSourceError with the sentence of the GatewayError, the code of its fault, and the endpoints.
    """
    gateway = options.gateway
    credentials = gateway.credentials()
    key = (os.getpid(), gateway, credentials)
    _close_older(now() - _LONGEST_IDLE_S)
    try:
        _, connection = _idle.pop(key, (0.0, None))
        if connection is None or not connection.is_quiet():
            connection = _connected(options, credentials, now)
        connection.timeout_s = options.timeout_s
        try:
            yield _client(connection, options.group or TOOLS_GROUP)
        except BaseException:
            connection.close()
            raise
        finally:
            # Also where the caller has caught the error, and closes the connection itself.
            if connection.is_silent:
                _silent[connection.endpoint] = now()
    except GatewayError as error:
        raise SparkSourceError(
            Code.GATEWAY, f"{error.fault.name}: {error.sentence} ({gateway.told(error.fault)})"
        ) from error
    kept = now(), connection
    while _idle.setdefault(key, kept) is not kept:
        _close_idle(key)


def passes(error: SparkSourceError) -> bool:
    """Whether an error that `client_of` raised is temporary (`PASSING`)."""
    cause = error.__cause__
    return isinstance(cause, GatewayError) and cause.fault in PASSING


def close_idle() -> None:
    """Close all cached connections and forget who was silent, for tests that check for open ones."""
    _silent.clear()
    while _idle:
        _idle.popitem()[1][1].close()


def _close_older(time_s: float) -> None:
    for key in [key for key, (since, _) in list(_idle.items()) if since < time_s]:
        _close_idle(key)


def _close_idle(key: _Key) -> None:
    _, connection = _idle.pop(key, (0.0, None))
    if connection is not None:
        connection.close()


def _client(connection: _Connection, group: str) -> QueueClient:
    if isinstance(connection, BlockingConnection):
        return QueueClient(connection, group=group)
    from popgate.spark.grpc.queue_client import GrpcQueueClient

    return GrpcQueueClient(connection, group=group)


def _connect_of(gateway: Gateway, credentials: Credentials | None) -> Callable[..., _Connection]:
    """How an endpoint is connected to. Raises SparkSourceError."""
    if not gateway.is_grpc:
        tls = gateway.tls
        return partial(
            BlockingConnection.connect,
            tls=None if tls is None else tls.context(),
            server_name=(tls.server_name or None) if tls is not None else None,
            credentials=credentials,
        )
    try:
        from popgate.spark.grpc.connection import GrpcConnection
    except ImportError as error:
        raise illegal_option(
            "transport", "grpc", f"it needs grpcio and protobuf on the driver and each executor: {error}"
        ) from error
    return partial(
        GrpcConnection.connect, tls=gateway.tls, credentials=credentials, namespace=gateway.namespace
    )


def _connected(
    options: GatewayOptions, credentials: Credentials | None, now: Callable[[], float]
) -> _Connection:
    """Connect to the first endpoint that accepts. Raises the error of the last one.

    One that hangs accepts connections, and answers nothing: those that did so lately come last.
    """
    gateway = options.gateway
    within = options.timeout_s if gateway.connect_timeout_s is None else gateway.connect_timeout_s
    connect = _connect_of(gateway, credentials)
    for endpoint in [endpoint for endpoint, since in list(_silent.items()) if since < now() - _SILENT_S]:
        _silent.pop(endpoint, None)
    last: BrokerUnavailable | BrokerTimeout = BrokerUnavailable("no endpoint is given")
    for endpoint in sorted(gateway.endpoints, key=lambda endpoint: _silent.get(endpoint, -math.inf)):
        try:
            return connect(endpoint, timeout_s=within)
        except BrokerTimeout as error:
            _silent[endpoint] = now()
            last = error
        except BrokerUnavailable as error:
            last = error
    # With the type that says whether the same may be asked again.
    raise type(last)(
        f"{last.sentence}; the driver and each executor connect to the gateway themselves"
    ) from last
