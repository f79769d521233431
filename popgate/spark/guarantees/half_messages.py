"""Commits the half messages of a batch, or rolls them back."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from popgate.errors import GatewayError
from popgate.queue_client import HalfMessage, QueueClient
from popgate.spark.connections import PASSING, client_of
from popgate.spark.errors import Code, SparkSourceError
from popgate.spark.options.sink_options import SinkOptions

Connect = Callable[[Any], AbstractContextManager[QueueClient]]
Visible = Callable[[set[str]], Mapping[str, set[str]]]
"""Ids of the messages that are in these topics, by topic."""
_LONGEST_REST_S: Final = 5.0


def commit_halves(
    halves: Sequence[HalfMessage],
    options: SinkOptions,
    visible: Visible,
    check: Callable[[], None],
    *,
    connect: Connect = client_of,
    rest: Callable[[float], None] = time.sleep,
) -> None:
    """Commit all of them. Raises SparkSourceError; then the batch is repeated, and sends what is missing.

    After a commit without a response its outcome is unknown, and a RocketMQ broker may deliver a message
    twice whose commit is repeated: `visible` returns the messages that are delivered. `check` raises
    SparkSourceError when another driver has taken over; it is called before each group of concurrent commits
    (the option `sendInFlight`).
    """
    left, times = deque(halves), 0
    while left:
        lot = [left.popleft() for _ in range(min(options.numbers["sendInFlight"], len(left)))]
        failed, error = _end(lot, options, connect, commit=True, check=check)
        if error is None:
            times = 0
            continue
        if error.fault not in PASSING or times == options.numbers["send.numRetries"]:
            raise SparkSourceError(
                Code.GATEWAY,
                f"{error.fault.name}: {error.sentence} ({len(failed) + len(left)} of {len(halves)} half"
                f" messages could not be committed, {options.gateway.told(error.fault)})",
            ) from error
        rest(min(options.numbers["send.retryIntervalMs"] / 1000 * 2 ** min(times, 20), _LONGEST_REST_S))
        times += 1
        there = visible({half.topic for half in failed})
        left.extendleft(half for half in reversed(failed) if half.message_id not in there[half.topic])


def drop_halves(halves: Sequence[HalfMessage], options: SinkOptions, *, connect: Connect = client_of) -> int:
    """Roll back as many as possible; return the number of failures. The broker drops what is left."""
    failed, _ = _end(halves, options, connect, commit=False)
    return len(failed)


def _end(
    halves: Sequence[HalfMessage],
    options: SinkOptions,
    connect: Connect,
    *,
    commit: bool,
    check: Callable[[], None] = lambda: None,
) -> tuple[list[HalfMessage], GatewayError | None]:
    """Those that failed, and why the first of them did."""
    failed: list[HalfMessage] = []
    first: GatewayError | None = None
    done = 0
    try:
        with connect(options) as client:
            for lot in _lots(halves, options.numbers["sendInFlight"]):
                # Behind the connection, which may have taken long.
                check()
                asked = [(half, client.start_end(half, commit=commit)) for half in lot]
                for half, opaque in asked:
                    try:
                        client.finish_end(opaque, half, timeout_s=options.timeout_s)
                    except GatewayError as error:
                        first = first or error
                        failed.append(half)
                        if client.connection.is_silent:
                            # Its time is waited for once, and not by each of them. What has come counts.
                            client.connection.close()
                    done += 1
    except SparkSourceError as error:
        if not isinstance(error.__cause__, GatewayError):
            raise
        first = first or error.__cause__
    return [*failed, *halves[done:]], first


def _lots(halves: Sequence[HalfMessage], size: int) -> Iterator[Sequence[HalfMessage]]:
    for begin in range(0, len(halves), size):
        yield halves[begin : begin + size]
