"""popgate.spark.options.sink_columns: which rows can be written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from popgate.spark.errors import Code, SparkSourceError
from popgate.spark.options.sink_columns import SINK_COLUMNS, check_sink_columns
from popgate.spark.options.sink_options import SinkOptions, read_sink_options
from popgate.spark.options.source_columns import COLUMNS

BODY = ("body", "binary")


def options(**given: str) -> SinkOptions:
    return read_sink_options({"endpoints": "a:1", **given})


def test_every_column_is_taken_in_each_of_its_types() -> None:
    for name, kinds in SINK_COLUMNS.items():
        for kind in kinds:
            columns = {"body": "binary", "queue_id": "int", name: kind}
            check_sink_columns(columns.items(), options(**({} if name == "topic" else {"topic": "t"})))


@pytest.mark.parametrize("kind", ["string", "binary", "bigint", "int", "smallint", "tinyint"])
def test_a_column_of_keys_may_have_any_name(kind: str) -> None:
    check_sink_columns([BODY, ("order", kind)], options(topic="t", dedupeKeyColumn="order"))


def test_a_known_column_may_be_the_key() -> None:
    for key in ("body", "message_id"):
        told = {"body": "binary", key: SINK_COLUMNS[key][0]}
        check_sink_columns(told.items(), options(topic="t", dedupeKeyColumn=key))


@pytest.mark.parametrize(
    ("columns", "given", "code", "says"),
    [
        ([], {"topic": "t"}, Code.ILLEGAL_SCHEMA, "column body is missing"),
        ([BODY], {}, Code.MISSING_OPTION, "option topic is missing"),
        ([BODY, ("topic", "string")], {"topic": "t"}, Code.ILLEGAL_OPTION, "have a column topic"),
        ([BODY, BODY], {"topic": "t"}, Code.ILLEGAL_SCHEMA, "column 'body' is there twice"),
        ([("body", "int")], {"topic": "t"}, Code.ILLEGAL_SCHEMA, "of the type binary or string, not 'int'"),
        ([BODY, ("tags", "string")], {"topic": "t"}, Code.ILLEGAL_SCHEMA, "did you mean tag?"),
        ([BODY, ("zzz", "string")], {"topic": "t"}, Code.ILLEGAL_SCHEMA, "there are topic, body"),
        ([BODY, ("broker_name", "string")], {"topic": "t"}, Code.ILLEGAL_SCHEMA, "needs a column queue_id"),
        *(
            (
                [BODY, ("queue_id", "int"), *more],
                {"topic": "t", "transport": "grpc"},
                Code.ILLEGAL_SCHEMA,
                "column queue_id cannot be written with transport = grpc: the gateway chooses",
            )
            for more in ([], [("broker_name", "string")])
        ),
        ([BODY], {"topic": "t", "dedupeKeyColumn": "id"}, Code.ILLEGAL_OPTION, "no such column but body"),
        ([BODY, ("id", "double")], {"topic": "t", "dedupeKeyColumn": "id"}, Code.ILLEGAL_SCHEMA, "'double'"),
        (
            [BODY, ("properties", "map<string,string>")],
            {"topic": "t", "dedupeKeyColumn": "properties"},
            Code.ILLEGAL_SCHEMA,
            "column 'properties' is of the type string",
        ),
        (
            [BODY, ("id", "int"), ("message_id", "string")],
            {"topic": "t", "dedupeKeyColumn": "id"},
            Code.ILLEGAL_OPTION,
            "have a column message_id",
        ),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(
    columns: list[tuple[str, str]], given: dict[str, str], code: Code, says: str
) -> None:
    with pytest.raises(SparkSourceError) as refused:
        check_sink_columns(columns, options(**given))
    assert refused.value.code is code
    assert says in str(refused.value)


@pytest.mark.parametrize("name", sorted(set(COLUMNS) - set(SINK_COLUMNS)))
def test_what_a_broker_or_a_consumer_says_cannot_be_written(name: str) -> None:
    with pytest.raises(SparkSourceError, match=f"column '{name}' is what the broker or the consumer makes"):
        check_sink_columns([BODY, (name, COLUMNS[name])], options(topic="t"))


def test_the_page_has_all_columns_of_the_sink() -> None:
    page = (Path(__file__).resolve().parents[5] / "docs" / "spark.md").read_text()
    part = page.partition("## Columns of the sink")[2].partition("\n## ")[0]
    told = {
        name: tuple(kind.replace("&lt;", "<") for kind in kinds.split(" or "))
        for names, kinds in re.findall(r"^\| (`[^|]*`) \| ([a-z][^|]*?) \|", part, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", names)
    }
    assert told == SINK_COLUMNS
