"""popgate.spark.options.source_columns: which schemas of users are accepted."""

from __future__ import annotations

import pytest

from popgate.spark.errors import Code, SparkSourceError
from popgate.spark.options.source_columns import COLUMNS, LEGACY, check_columns

BODY = ("body", "binary", True)


def test_any_columns_in_any_order_are_accepted() -> None:
    check_columns([(name, kind, True) for name, kind in reversed(COLUMNS.items())], legacy=False)
    check_columns([(name, kind, True) for name, (_, kind) in LEGACY.items()], legacy=True, ticks=True)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ([("Body", "binary", True)], "column 'Body' is not known: did you mean body"),
        ([("body", "string", True)], "column body is of the type binary, not 'string'"),
        ([BODY, ("tag", "string", True), BODY], "column body is there twice"),
        ([], "the schema has no column, there are topic,"),
        ([BODY, ("tag", "string", False)], "column tag may be null, leave out NOT NULL"),
    ],
)
def test_what_cannot_be_is_refused(asked: list[tuple[str, str, bool]], says: str) -> None:
    with pytest.raises(SparkSourceError, match=says) as refused:
        check_columns(asked, legacy=False)
    assert refused.value.code is Code.ILLEGAL_SCHEMA


def test_not_null_is_for_what_every_message_has() -> None:
    """Spark would take a null for a value: its filters would, and others fail without a word of why."""
    always = [("body", "binary", False), ("queue_id", "int", False), ("store_timestamp", "timestamp", False)]
    check_columns(always, legacy=False)
    check_columns([("properties", "string", False), ("brokerName", "string", False)], legacy=True)
    with pytest.raises(SparkSourceError, match="bornTimestamp may be null"):
        check_columns([("bornTimestamp", "timestamp", False)], legacy=True)


def test_of_a_tick_the_time_alone_is_never_null() -> None:
    check_columns([("store_timestamp", "timestamp", False), BODY], legacy=False, ticks=True)
    with pytest.raises(SparkSourceError, match="column body may be null"):
        check_columns([("body", "binary", False)], legacy=False, ticks=True)
