"""processors.admin.config_checks: settings that could not be kept to, or not be told, are refused."""

from __future__ import annotations

import pytest

from popgate.errors import BadRequest
from popgate.model import CustomizedRetry, ExponentialRetry, GroupConfig, TopicConfig
from processors.admin.config_checks import check_group_config, check_topic_config
from processors.limits import Limits

YEAR_MS = 366 * 86_400_000


@pytest.mark.parametrize(
    ("retry", "why"),
    [
        (CustomizedRetry((YEAR_MS + 1,)), "the limit is"),
        (CustomizedRetry((1, 10**24)), "the limit is"),
        (CustomizedRetry((1, -1)), "none below 0"),
        (ExponentialRetry(1, 10**24, 2.0), "the limit is"),
        (ExponentialRetry(1, 10, 1e300), "a multiplier >= 1 and <= 1000"),
        (ExponentialRetry(0, 10, float("inf")), "a multiplier"),
        (ExponentialRetry(0, 10, float("nan")), "a multiplier"),
        (ExponentialRetry(11, 10, 2.0), "initial <= maximum"),
    ],
)
def test_a_rest_that_no_clock_can_tell_is_refused(
    retry: CustomizedRetry | ExponentialRetry, why: str
) -> None:
    with pytest.raises(BadRequest, match=why):
        check_group_config(GroupConfig("g", retry=retry), Limits())


@pytest.mark.parametrize(
    "retry", [CustomizedRetry((0, YEAR_MS)), ExponentialRetry(0, YEAR_MS, 1000), ExponentialRetry(1, 1, 1)]
)
def test_what_is_allowed_is_a_time_at_every_attempt(retry: CustomizedRetry | ExponentialRetry) -> None:
    check_group_config(GroupConfig("g", retry=retry, max_attempts=10_000), Limits())
    assert all(0 <= retry.delay_ms(attempt) <= YEAR_MS for attempt in (1, 2, 33, 10_000))


@pytest.mark.parametrize(
    "config",
    [
        TopicConfig("t", read_queues=0),
        TopicConfig("t", write_queues=1025),
        TopicConfig("t", retention_ms=0),
        TopicConfig("t", retention_bytes=-1),
    ],
)
def test_topics_that_cannot_be_are_refused(config: TopicConfig) -> None:
    with pytest.raises(BadRequest):
        check_topic_config(config, Limits())
