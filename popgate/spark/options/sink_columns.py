"""The columns of the sink. Columns that a message cannot hold are refused by name, before any send."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

from popgate.errors import shown
from popgate.spark.errors import Code, SparkSourceError, illegal_option
from popgate.spark.options.sink_options import SinkOptions
from popgate.spark.options.source_columns import COLUMNS

SINK_COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "topic": ("string",),
    "body": ("binary", "string"),
    "tag": ("string",),
    "keys": ("array<string>", "string"),
    "message_group": ("string",),
    "properties": ("map<string,string>",),
    "delivery_timestamp": ("timestamp",),
    "priority": ("int",),
    "lite_topic": ("string",),
    "broker_name": ("string",),
    "queue_id": ("int",),
    "message_id": ("string",),
}
"""Names and Spark's types."""
_NOT_HALF: Final = ("message_group", "delivery_timestamp", "priority", "lite_topic")
"""Columns that half messages cannot have."""
_NOT_FOUND: Final = ("delivery_timestamp", "lite_topic")
"""Columns of messages that cannot be found in their topic after they were sent."""
_NOT_OVER_GRPC: Final = ("queue_id", "broker_name")
"""Columns of places, which a send over gRPC does not choose."""
_KEY_TYPES: Final = ("string", "binary", "bigint", "int", "smallint", "tinyint")
"""Types of a key column: they have one text for each value."""


def check_sink_columns(schema: Iterable[tuple[str, str]], options: SinkOptions) -> None:
    """Of names and types as Spark writes them (simpleString).

    Raises SparkSourceError (ILLEGAL_SCHEMA, MISSING_OPTION, ILLEGAL_OPTION).
    """
    columns = list(schema)
    names = [name for name, _ in columns]
    for name, kind in columns:
        if names.count(name) > 1:
            raise SparkSourceError(Code.ILLEGAL_SCHEMA, f"column {shown(name)} is there twice")
        if name in SINK_COLUMNS:
            _check_type(name, kind, SINK_COLUMNS[name])
        elif name != options.dedupe_key:
            raise SparkSourceError(Code.ILLEGAL_SCHEMA, f"column {shown(name)} {_not_taken(name)}")
        if name == options.dedupe_key:
            _check_type(name, kind, _KEY_TYPES)
    _check_whole(names, options)


def _check_whole(names: list[str], options: SinkOptions) -> None:
    """Check combinations: missing columns, and columns that exclude each other or an option."""
    if "body" not in names:
        raise SparkSourceError(Code.ILLEGAL_SCHEMA, "column body is missing, a binary or a string")
    if "topic" in names and options.topic:
        raise illegal_option("topic", options.topic, "the rows have a column topic, leave one of them out")
    if "topic" not in names and not options.topic:
        raise SparkSourceError(
            Code.MISSING_OPTION, "option topic is missing, and the rows have no such column"
        )
    if "broker_name" in names and "queue_id" not in names:
        raise SparkSourceError(Code.ILLEGAL_SCHEMA, "column broker_name needs a column queue_id beside it")
    refused = [name for name in _NOT_HALF if name in names] if options.transactional else []
    if refused:
        raise SparkSourceError(
            Code.ILLEGAL_SCHEMA,
            f"column {refused[0]} cannot be written with deliveryGuarantee = {options.guarantee}: half"
            " messages have none, select others, or take effectively-once",
        )
    refused = [name for name in _NOT_FOUND if name in names] if options.has_ledger else []
    if refused:
        raise SparkSourceError(
            Code.ILLEGAL_SCHEMA,
            f"column {refused[0]} cannot be written with deliveryGuarantee = {options.guarantee}: such"
            " messages are not in their topic when they were sent, and could not be found there when a batch"
            " comes again",
        )
    places = [name for name in _NOT_OVER_GRPC if name in names] if options.gateway.is_grpc else []
    if places:
        raise SparkSourceError(
            Code.ILLEGAL_SCHEMA,
            f"column {places[0]} cannot be written with transport = grpc: the gateway chooses queues"
            " there, select others, or take transport = remoting",
        )
    key = options.dedupe_key
    if key and key not in names:
        raise illegal_option("dedupeKeyColumn", key, f"the rows have no such column but {', '.join(names)}")
    if key and key != "message_id" and "message_id" in names:
        raise illegal_option(
            "dedupeKeyColumn", key, "the rows have a column message_id, leave one of them out"
        )


def _check_type(name: str, kind: str, allowed: tuple[str, ...]) -> None:
    if kind not in allowed:
        raise SparkSourceError(
            Code.ILLEGAL_SCHEMA,
            f"column {shown(name)} is of the type {' or '.join(allowed)}, not {shown(kind)}",
        )


def _not_taken(name: str) -> str:
    if name in COLUMNS:
        return "is what the broker or the consumer makes of a message, and cannot be written: select others"
    near = get_close_matches(name.lower(), SINK_COLUMNS, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(SINK_COLUMNS)}"
    return f"cannot be written: {hint}"
