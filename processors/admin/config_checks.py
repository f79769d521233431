"""Checks of the settings of topics and groups."""

from __future__ import annotations

from popgate.errors import BadRequest
from popgate.model import CustomizedRetry, GroupConfig, TopicConfig
from processors.limits import Limits
from processors.members.broadcast import check_broadcast

_LONGEST_REST_MS = 366 * 86_400_000
"""What a failed message may rest: longer ones some clients cannot even be told."""

_LARGEST_MULTIPLIER = 1_000
"""Its 32nd power is a number still."""


def check_topic_config(config: TopicConfig, limits: Limits) -> None:
    """Raises BadRequest."""
    most = limits.max_queues
    for access, queues in (("read", config.read_queues), ("write", config.write_queues)):
        if not 1 <= queues <= most:
            raise BadRequest(
                f"the topic has {queues} {access} queues, it must be at least 1 and at most {most}"
            )
    for unit, value in (("ms", config.retention_ms), ("bytes", config.retention_bytes)):
        if value is not None and value <= 0:
            raise BadRequest(f"the retention is {value} {unit}, it must be above 0")


def check_group_config(config: GroupConfig, limits: Limits) -> None:
    """Raises BadRequest."""
    check_broadcast(config)
    if not 1 <= config.max_attempts <= limits.max_attempts:
        raise BadRequest(
            f"the group has {config.max_attempts} attempts, it must be at least 1"
            f" and at most {limits.max_attempts}"
        )
    if not 1_000 <= config.consume_timeout_ms <= limits.max_invisible_ms:
        raise BadRequest(
            f"the consume timeout is {config.consume_timeout_ms} ms, it must be at least 1000 ms"
            f" and at most {limits.max_invisible_ms} ms"
        )
    retry = config.retry
    if isinstance(retry, CustomizedRetry):
        if not retry.delays_ms or min(retry.delays_ms) < 0 or retry.first_step < 0:
            raise BadRequest("a customized retry policy needs at least one delay, and none below 0")
        longest_ms = max(retry.delays_ms)
    else:
        fits = retry.max_ms >= retry.initial_ms >= 0 and 1 <= retry.multiplier <= _LARGEST_MULTIPLIER
        if not fits:
            raise BadRequest(
                "an exponential retry policy needs 0 <= initial <= maximum"
                f" and a multiplier >= 1 and <= {_LARGEST_MULTIPLIER}"
            )
        longest_ms = retry.max_ms
    if longest_ms > _LONGEST_REST_MS:
        raise BadRequest(
            f"a failed message would rest for up to {longest_ms} ms, the limit is {_LONGEST_REST_MS} ms"
        )
