"""The columns of the source. A user's schema selects some of them, in any order; no others are decoded.

With `schemaStyle=legacy` they have the names and types of the RocketMQ connector for Spark 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Final

from popgate.errors import shown
from popgate.spark.errors import Code, SparkSourceError

COLUMNS: Final = {
    "topic": "string",
    "broker_name": "string",
    "queue_id": "int",
    "queue_offset": "bigint",
    "message_id": "string",
    "tag": "string",
    "keys": "array<string>",
    "message_group": "string",
    "body": "binary",
    "properties": "map<string,string>",
    "born_timestamp": "timestamp",
    "store_timestamp": "timestamp",
    "born_host": "string",
    "reconsume_times": "int",
    "message_type": "string",
    "delivery_timestamp": "timestamp",
    "lite_topic": "string",
    "priority": "int",
    "trace_context": "string",
    "flag": "int",
}
"""Names and Spark's types, in the order of the whole schema."""
ALL_PROPERTIES: Final = "all_properties"
"""Not a column by itself: the content of the legacy column properties."""
LEGACY: Final = {
    "topic": ("topic", "string"),
    "flag": ("flag", "int"),
    "body": ("body", "binary"),
    "properties": (ALL_PROPERTIES, "string"),
    "brokerName": ("broker_name", "string"),
    "queueId": ("queue_id", "int"),
    "queueOffset": ("queue_offset", "bigint"),
    "bornTimestamp": ("born_timestamp", "timestamp"),
    "storeTimestamp": ("store_timestamp", "timestamp"),
}
"""Our column and its type, by the legacy name, in the order of the whole schema."""
OF_THE_QUEUE: Final = ("topic", "broker_name", "queue_id")
"""The same for all messages of a queue: no record needs to be read for them."""
_ALWAYS: Final = frozenset(
    {
        *(*OF_THE_QUEUE, "queue_offset", "body", "properties", "store_timestamp", "born_host"),
        *("reconsume_times", "message_type", "flag", ALL_PROPERTIES),
    }
)
"""The columns that every message has; the others are null where it has none."""


def schema_text(*, legacy: bool) -> str:
    """All columns, as Spark's DDL has them: what a plain timestamp is there, is a matter of a setting."""
    kinds = _types(legacy).items()
    return ", ".join(f"{name} {kind.replace('timestamp', 'timestamp_ltz')}" for name, kind in kinds)


def check_columns(asked: Iterable[tuple[str, str, bool]], *, legacy: bool, ticks: bool = False) -> None:
    """Of names, types as Spark writes them (simpleString), and whether they may be null.

    `ticks`: there are rows that only have a time. Raises SparkSourceError (ILLEGAL_SCHEMA). Spark itself
    fails late for a name that is there twice or a null in a NOT NULL column, and its filters take such a
    null for a value.
    """
    types = _types(legacy)
    names = set[str]()
    for name, kind, nullable in asked:
        if name not in types:
            near = get_close_matches(name.lower(), types, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(types)}"
            raise SparkSourceError(Code.ILLEGAL_SCHEMA, f"column {shown(name)} is not known: {hint}")
        if kind != types[name]:
            raise SparkSourceError(
                Code.ILLEGAL_SCHEMA, f"column {name} is of the type {types[name]}, not {shown(kind)}"
            )
        if name in names:
            raise SparkSourceError(
                Code.ILLEGAL_SCHEMA, f"column {name} is there twice, leave one of them out"
            )
        names.add(name)
        ours = LEGACY[name][0] if legacy else name
        if not nullable and (ours not in _ALWAYS or (ticks and ours != "store_timestamp")):
            raise SparkSourceError(Code.ILLEGAL_SCHEMA, f"column {name} may be null, leave out NOT NULL")
    if not names:
        raise SparkSourceError(Code.ILLEGAL_SCHEMA, f"the schema has no column, there are {', '.join(types)}")


def _types(legacy: bool) -> Mapping[str, str]:
    return {name: kind for name, (_, kind) in LEGACY.items()} if legacy else COLUMNS
