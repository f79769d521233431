"""Rules for receives: invisible times, long polls, batch sizes, and what a client needs of its broker.

Sources: protocol facts 1.5, 2.3, 4.6; docs/clients.md on Go and Node.js.
"""

from __future__ import annotations

from typing import Final

from popgate.context import Context
from popgate.errors import BadRequest, Fault, Forbidden, shown
from popgate.filters.compiled import compile_filter
from popgate.model import GroupConfig, Pop
from popgate.naming import check_group
from processors.clients.client_registry import ClientHandle
from processors.limits import Limits
from processors.requests import Receive

_MARGIN_SHARE: Final = 0.2
"""Of a short deadline the margin is at most this part."""
_RUST_MARGINS: Final = 4
"""Margins of a poll of Rust's client: each is as long as its deadline, so every empty one ends there."""


def pop_of(context: Context, request: Receive, group: GroupConfig, limits: Limits, now: float) -> Pop:
    """The pop that answers a receive; `now` in loop seconds.

    Raises Forbidden (the group is switched off), IllegalFilter, BadRequest
    (ILLEGAL_INVISIBLE_TIME, ILLEGAL_POLLING_TIME).
    """
    check_enabled(group)
    return Pop(
        topic=request.topic,
        group=request.group,
        filter=compile_filter(request.filter_kind, request.filter_expression),
        invisible_ms=invisible_time(request, group, limits),
        max_messages=min(max(request.max_messages, 1), limits.max_receive_messages),
        max_bytes=min(limits.max_receive_bytes, request.max_bytes or limits.max_receive_bytes),
        ordered=group.ordered,
        wait_until=wait_until(context, request.wait_s, limits, now),
        attempt_id=request.attempt_id,
        # The Go client takes the next message of an answer while the one before it is retried.
        one_per_message_group=group.ordered and is_go(context),
        broker=request.broker,
        queue_id=request.queue_id,
    )


def check_enabled(group: GroupConfig) -> None:
    """Raises Forbidden when the group is switched off."""
    if not group.consume_enabled:
        raise Forbidden(f"consumer group {group.name} is not allowed to consume now")


def invisible_time(request: Receive, group: GroupConfig, limits: Limits) -> int:
    """For how long the messages are hidden, in ms.

    A consumer that leaves renewing to us gets the whole consume timeout, so that its handles
    are good for all of it through every replica (any-replica, section 1).
    """
    if request.auto_renew or request.invisible_ms is None:
        return group.consume_timeout_ms
    _check_invisible(request.invisible_ms, limits.min_invisible_ms, limits.max_invisible_ms)
    return request.invisible_ms


def _check_invisible(invisible_ms: int, least_ms: int, most_ms: int) -> None:
    if least_ms <= invisible_ms <= most_ms:
        return
    small = invisible_ms < least_ms
    raise BadRequest(
        f"the invisible time is {invisible_ms} ms, it must be at least {least_ms} ms"
        f" and at most {most_ms} ms",
        Fault.ILLEGAL_INVISIBLE_TIME,
        f"the invisibleTime is too {f'small. min is {least_ms}' if small else f'large. max is {most_ms}'}",
    )


def surely_held_until(asked: float, answered: float, invisible_ms: int) -> float:
    """Until when what a pop took is held, in loop seconds, or somewhat less; never more.

    A broker hides messages from when it takes them, which is somewhere between the question and the
    answer. Wall times say nothing about that: its clock is another one, and ours may be set. Of a
    pop that waited for long, no more than a part of the invisible time counts as gone.
    """
    hidden = invisible_ms / 1000
    return max(asked, answered - hidden * _MARGIN_SHARE) + hidden


def check_change(invisible_ms: int, limits: Limits) -> None:
    """Raises BadRequest ILLEGAL_INVISIBLE_TIME for a change outside 0 … the longest invisible time."""
    _check_invisible(invisible_ms, 0, limits.max_invisible_ms)


def wait_until(context: Context, wait_s: float | None, limits: Limits, now: float) -> float | None:
    """Until when a first message may be waited for, in loop seconds; None: not at all.

    As long as was asked, but an empty answer must be there before the deadline of the request;
    a deadline that is too short to wait makes an empty answer at once, not an error.
    """
    if wait_s is not None and not wait_s >= 0:
        raise BadRequest(
            f"the long polling time is {wait_s} s, it must be at least 0 s", Fault.ILLEGAL_POLLING_TIME
        )
    if context.deadline is None:
        wait = limits.default_wait_s if wait_s is None else wait_s
    else:
        left = max(context.deadline - now, 0.0)
        margin = limits.poll_margin_s * (_RUST_MARGINS if is_rust(context) else 1)
        room = left - min(margin, left * _MARGIN_SHARE)
        wait = room if wait_s is None else min(wait_s, room)
    wait = min(wait, limits.max_wait_s)
    return now + wait if wait > 0 else None


def is_go(context: Context) -> bool:
    return context.language.upper() in ("GO", "GOLANG")


def is_node(context: Context) -> bool:
    """Whether this is the Node.js client, which calls itself HTTP in its older versions."""
    language = context.language.upper()
    return language == "NODE_JS" or (language == "HTTP" and context.door == "grpc")


def is_rust(context: Context) -> bool:
    return context.language.upper() == "RUST"


def check_goodbye(client: ClientHandle | None, group: str) -> None:
    """Raises IllegalGroup; BadRequest if a consumer announces its end for another group than its own."""
    if not group or (client is not None and not client.group):
        return
    check_group(group)
    if client is not None and client.group != group:
        raise BadRequest(
            f"client {shown(client.client_id)} is known as a consumer of {client.group}, so it cannot say"
            f" good-bye to {group}"
        )
