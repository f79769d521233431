"""Connections of a process to the gateway, kept for the next task that comes to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from popgate.blocking import BlockingConnection, Credentials
from popgate.errors import BrokerUnavailable, Fault, GatewayError
from popgate.queue_client import TOOLS_GROUP, QueueClient
from popgate.spark.errors import Code, SparkSourceError

PASSING = frozenset(
    {
        *(Fault.BROKER_UNAVAILABLE, Fault.BROKER_TIMEOUT, Fault.BROKER_BUSY, Fault.TOO_MANY_REQUESTS),
        # The door's code for what a broker could not do without a word of why.
        Fault.INTERNAL,
    }
)
"""Faults that may be gone when the same is asked or sent again."""


class Reaching(Protocol):
    """How the gateway is reached, of the options of a source or a sink. `group` empty: any."""

    @property
    def endpoints(self) -> tuple[str, ...]: ...
    @property
    def access_key(self) -> str: ...
    @property
    def secret_key(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def timeout_s(self) -> float: ...


_Key = tuple[int, tuple[str, ...], str, str]
_idle: dict[_Key, BlockingConnection] = {}
"""One at most of each kind; by process, because Spark forks its workers."""


@contextmanager
def client_of(options: Reaching) -> Iterator[QueueClient]:
    """A client for one piece of work; its connection is kept when that ends well.

    Raises SparkSourceError: what a GatewayError says, with the code of its fault, and which endpoints it was.
    """
    key = (os.getpid(), options.endpoints, options.access_key, options.secret_key)
    try:
        connection = _idle.pop(key, None)
        if connection is None or not connection.is_quiet():
            connection = _connected(options)
        try:
            yield QueueClient(connection, group=options.group or TOOLS_GROUP)
        except BaseException:
            connection.close()
            raise
    except GatewayError as error:
        raise SparkSourceError(
            Code.GATEWAY, f"{error.fault.name}: {error.sentence} (option endpoints = {options.endpoints})"
        ) from error
    other = _idle.get(key)
    if other is not None:
        other.close()
    _idle[key] = connection


def passes(error: SparkSourceError) -> bool:
    """Whether what `client_of` raised is one of the `PASSING`."""
    cause = error.__cause__
    return isinstance(cause, GatewayError) and cause.fault in PASSING


def close_idle() -> None:
    """Close what is kept; for tests, and for programs that look for what they left open."""
    while _idle:
        _idle.popitem()[1].close()


def _connected(options: Reaching) -> BlockingConnection:
    """To the first endpoint that takes a connection. Raises what the last one raised."""
    credentials = Credentials(options.access_key, options.secret_key) if options.access_key else None
    last: GatewayError = BrokerUnavailable("no endpoint is given")
    for endpoint in options.endpoints:
        try:
            return BlockingConnection.connect(endpoint, timeout_s=options.timeout_s, credentials=credentials)
        except GatewayError as error:
            last = error
    raise last
