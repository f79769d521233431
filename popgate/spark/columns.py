"""The columns of the source. A user's schema may have some of them, in any order: no others are decoded."""

from __future__ import annotations

from collections.abc import Iterable
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
    "lite_topic": "string",
    "priority": "int",
    "trace_context": "string",
    "flag": "int",
}
"""Names and Spark's types, in the order of the whole schema."""
OF_THE_QUEUE: Final = ("topic", "broker_name", "queue_id")
"""The same for all messages of a queue: no record needs to be read for them."""


def schema_text() -> str:
    """All columns, as Spark's DDL has them."""
    return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())


def check_columns(asked: Iterable[tuple[str, str]]) -> None:
    """Of names and types as Spark writes them (simpleString). Raises SparkSourceError (ILLEGAL_SCHEMA)."""
    for name, kind in asked:
        if name not in COLUMNS:
            near = get_close_matches(name.lower(), COLUMNS, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(COLUMNS)}"
            raise SparkSourceError(Code.ILLEGAL_SCHEMA, f"column {shown(name)} is not known: {hint}")
        if kind != COLUMNS[name]:
            raise SparkSourceError(
                Code.ILLEGAL_SCHEMA, f"column {name} is of the type {COLUMNS[name]}, not {shown(kind)}"
            )
