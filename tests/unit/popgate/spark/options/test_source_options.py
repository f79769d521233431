"""popgate.spark.options.source_options: what users say, read and refused."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from popgate.queue_client import QueuePlace
from popgate.spark.errors import Code, SparkSourceError
from popgate.spark.options.source_columns import COLUMNS, LEGACY
from popgate.spark.options.source_options import (
    EARLIEST,
    KNOWN,
    LATEST,
    NOT_YET,
    SINKS_ONLY,
    Where,
    read_source_options,
)

LEAST = {"endpoints": "gateway:8080", "topic": "orders"}
QUEUE = QueuePlace("orders", "broker-a", 0)


def read(*, streaming: bool = False, **given: str) -> Any:
    return read_source_options({**LEAST, **given}, streaming=streaming)


def refusal(code: Code, given: dict[str, str], *, streaming: bool = False) -> str:
    with pytest.raises(SparkSourceError) as refused:
        read_source_options(given, streaming=streaming)
    assert refused.value.code is code
    assert str(refused.value).startswith(f"[{code.value}] ")
    return str(refused.value)


def test_what_is_not_said_has_its_default() -> None:
    batch, stream = read(), read(streaming=True)
    assert batch.gateway.endpoints == ("gateway:8080",)
    assert (batch.topics, batch.assigned) == (("orders",), ())
    assert (batch.start.where, batch.end.where) == (Where.EARLIEST, Where.LATEST)
    assert (stream.start.where, stream.fallback) == (Where.LATEST, Where.LATEST)
    assert batch.fail_on_data_loss
    assert batch.numbers["maxOffsetsPerTrigger"] is None
    assert batch.numbers["minRecordsPerPartition"] is None
    assert stream.trigger_delay_s == 900
    assert batch.timeout_s == 30


def test_names_are_of_any_case() -> None:
    given = {
        "ENDPOINTS": "a:1;[::1]:2, c:3",
        "Subscribe": "x, y,x",
        "failondataloss": "FALSE",
        "PULLPIPELINE": "3",
    }
    found = read_source_options(given, streaming=True)
    assert found.gateway.endpoints == ("a:1", "[::1]:2", "c:3")
    assert found.topics == ("x", "y")
    assert not found.fail_on_data_loss
    assert found.number("pullPipeline") == 3


def test_every_name_is_of_one_kind() -> None:
    lower = [name.lower() for name in (*KNOWN, *NOT_YET)]
    assert len(lower) == len(set(lower))


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("startingOffset", "startingOffsets"),
        ("end-points", "endpoints"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("rocketmq.client.tls.certificates", "rocketmq.client.tls.certificate"),
        ("rocketmq.client.timeout", "rocketmq.client.connectTimeoutMs"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_known_one(name: str, near: str) -> None:
    assert f"did you mean {near}?" in refusal(Code.UNKNOWN_OPTION, {**LEAST, name: "1"})


@pytest.mark.parametrize("name", SINKS_ONLY)
def test_what_the_sink_has_alone_is_refused(name: str) -> None:
    sentence = refusal(Code.ILLEGAL_OPTION, {**LEAST, name.lower(): "1"})
    assert f"option {name} = '1': it is an option of the sink, leave it out" in sentence


def test_an_option_like_no_other_is_refused_with_all_there_are() -> None:
    assert "there are accessKey, arrowBatchBytes, arrowBatchRows" in refusal(
        Code.UNKNOWN_OPTION, {**LEAST, "zzz": "1"}
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"endpoints": "a:1", "subscribePattern": "or.*"},
            "option subscribePattern = 'or.*': with transport = grpc nobody lists the topics",
        ),
        (
            {**LEAST, "schemaStyle": "Legacy"},
            "option schemaStyle = 'Legacy': with transport = grpc messages come without their system",
        ),
    ],
)
def test_what_grpc_does_not_tell_is_refused(given: dict[str, str], says: str) -> None:
    sentence = refusal(Code.ILLEGAL_OPTION, {**given, "transport": "grpc"})
    assert says in sentence
    assert "take transport = remoting" in sentence
    read_source_options({**given, "transport": "remoting"}, streaming=False)


def test_everything_else_is_read_over_grpc() -> None:
    given = {**LEAST, "transport": "grpc", "schemaStyle": "default", "group": "g", "sql92": "a > 1"}
    options = read_source_options({**given, "startingTimestamp": "5", "idleTick": "5s"}, streaming=True)
    assert options.gateway.is_grpc
    assert options.commit_offsets


@pytest.mark.parametrize("name", NOT_YET)
def test_what_is_not_there_yet_is_refused_as_such(name: str) -> None:
    sentence = refusal(Code.UNSUPPORTED_OPTION, {**LEAST, name.upper(): "1"})
    assert "is not supported yet" in sentence


@pytest.mark.parametrize(
    ("given", "code", "says"),
    [
        ({"topic": "orders"}, Code.MISSING_OPTION, "endpoints is missing"),
        ({"endpoints": "a:1"}, Code.MISSING_OPTION, "topic, subscribe, subscribePattern and assign"),
        ({**LEAST, "endpoints": "a"}, Code.ILLEGAL_OPTION, "no host:port"),
        ({**LEAST, "topic": "a b"}, Code.ILLEGAL_OPTION, "only letters"),
        ({**LEAST, "subscribePattern": "b"}, Code.ILLEGAL_OPTION, "topic is given too"),
        ({"endpoints": "a:1", "subscribePattern": "a("}, Code.ILLEGAL_OPTION, "no regular expression"),
        ({"endpoints": "a:1", "subscribePattern": " "}, Code.ILLEGAL_OPTION, "matches no topic"),
        ({**LEAST, "subscribe": "b"}, Code.ILLEGAL_OPTION, "topic is given too"),
        ({**LEAST, "tag": "a", "sql92": "b"}, Code.ILLEGAL_OPTION, "tag is given too"),
        ({**LEAST, "startingOffsets": "group"}, Code.MISSING_OPTION, "needs the option group"),
        ({**LEAST, "commitOffsets": "true"}, Code.ILLEGAL_OPTION, "an option of streams"),
        ({**LEAST, "group": "a b"}, Code.ILLEGAL_OPTION, "only letters"),
        ({**LEAST, "accessKey": "a"}, Code.MISSING_OPTION, "together or not"),
        ({**LEAST, "failOnDataLoss": "1"}, Code.ILLEGAL_OPTION, "true or false"),
        ({**LEAST, "pullBatchSize": "0"}, Code.ILLEGAL_OPTION, "from 1 to 1024"),
        ({**LEAST, "pullBatchSize": "²"}, Code.ILLEGAL_OPTION, "whole number"),
        ({**LEAST, "startingTimestamp": "-1"}, Code.ILLEGAL_OPTION, "whole number"),
        ({**LEAST, "startingOffsets": "latest"}, Code.ILLEGAL_OPTION, "has nothing"),
        ({**LEAST, "endingOffsets": "earliest"}, Code.ILLEGAL_OPTION, "has nothing"),
        ({**LEAST, "startingOffsets": "{"}, Code.ILLEGAL_OPTION, "it has the form"),
        ({**LEAST, "startingOffsets": "[]"}, Code.ILLEGAL_OPTION, "it has the form"),
        ({**LEAST, "startingOffsets": '{"t":{"b":{"0":-3}}}'}, Code.ILLEGAL_OPTION, "at least -2"),
        ({**LEAST, "startingOffsets": '{"t":{"b":{"x":1}}}'}, Code.ILLEGAL_OPTION, "no number"),
        ({**LEAST, "startingOffsets": '{"t":{"b":{"0":true}}}'}, Code.ILLEGAL_OPTION, "no offset"),
        ({**LEAST, "startingOffsets": "{}"}, Code.ILLEGAL_OPTION, "names no queue"),
        ({**LEAST, "maxOffsetsPerTrigger": "5"}, Code.ILLEGAL_OPTION, "an option of streams"),
        ({**LEAST, "tag": "||"}, Code.ILLEGAL_OPTION, "option tag = '||': it names no tag"),
        ({**LEAST, "sql92": "a = = b"}, Code.ILLEGAL_OPTION, "option sql92 = 'a = = b': a property,"),
        ({**LEAST, "startingOffsetsFallback": "latest"}, Code.ILLEGAL_OPTION, "at positions of a group"),
        ({**LEAST, "startingOffsetsByTimestampStrategy": "latest"}, Code.ILLEGAL_OPTION, "begins at a time"),
        ({"endpoints": "a:1", "assign": '{"t":[0]}'}, Code.ILLEGAL_OPTION, "it has the form"),
        ({"endpoints": "a:1", "assign": '{"t":{"b":[-1]}}'}, Code.ILLEGAL_OPTION, "it has the form"),
        ({"endpoints": "a:1", "assign": "{}"}, Code.ILLEGAL_OPTION, "names no queue"),
    ],
)
def test_what_cannot_be_right_is_refused(given: dict[str, str], code: Code, says: str) -> None:
    assert says in refusal(code, given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            "at most maxOffsetsPerTrigger, which is 4",
        ),
        ({"minRecordsPerPartition": "5", "maxRecordsPerPartition": "4"}, "at most maxRecordsPerPartition"),
        ({"maxTriggerDelay": "5s"}, "without minOffsetsPerTrigger nothing waits"),
        ({"maxTriggerDelay": "5", "minOffsetsPerTrigger": "5"}, "it is a time as 15m: ms, s, m, h, d"),
        ({"maxTriggerDelay": "s", "minOffsetsPerTrigger": "5"}, "it is a time as 15m"),
        ({"maxTriggerDelay": "-1s", "minOffsetsPerTrigger": "5"}, "it is a time as 15m"),
        ({"maxTriggerDelay": "1.5h", "minOffsetsPerTrigger": "5"}, "it is a time as 15m"),
        ({"maxBytesPerTrigger": "0"}, "of bytes, or one with k, m or g"),
    ],
)
def test_limits_that_cannot_be_right_are_refused(given: dict[str, str], says: str) -> None:
    assert says in refusal(Code.ILLEGAL_OPTION, {**LEAST, **given}, streaming=True)


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("30s", 30), ("15m", 900), ("2h", 7200), ("1d", 86_400), ("0s", 0)]
)
def test_times_have_units(text: str, seconds: float) -> None:
    assert read(streaming=True, minOffsetsPerTrigger="2", maxTriggerDelay=text).trigger_delay_s == seconds


@pytest.mark.parametrize("name", ["maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"])
def test_a_batch_has_no_triggers(name: str) -> None:
    assert "an option of streams" in refusal(Code.ILLEGAL_OPTION, {**LEAST, name: "1"})


def test_a_stream_has_no_end() -> None:
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        assert "has no end" in refusal(Code.ILLEGAL_OPTION, {**LEAST, name: "latest"}, streaming=True)


def test_positions_follow_a_stream_with_a_group_unless_it_says_no() -> None:
    assert read(streaming=True, group="readers").commit_offsets
    assert not read(streaming=True, group="readers", commitOffsets="false").commit_offsets
    assert not read(streaming=True).commit_offsets
    assert not read(group="readers").commit_offsets
    told = refusal(Code.MISSING_OPTION, {**LEAST, "commitOffsets": "true"}, streaming=True)
    assert "needs the option group" in told


def test_columns_are_ours_or_the_old_ones() -> None:
    assert not read().legacy
    assert read(SchemaStyle="Legacy").legacy
    assert "it is one of default, legacy" in refusal(Code.ILLEGAL_OPTION, {**LEAST, "schemaStyle": "old"})


def test_offsets_are_told_by_queue() -> None:
    text = '{"orders":{"broker-a":{"0":-2,"1":-1,"2":23}}}'
    found = read(streaming=True, startingOffsets=text).start
    assert found.where is Where.OFFSETS
    assert found.offsets == {
        QUEUE: EARLIEST,
        QUEUE._replace(queue_id=1): LATEST,
        QUEUE._replace(queue_id=2): 23,
    }


def test_times_are_told_in_milliseconds() -> None:
    assert read(startingTimestamp="1700000000123").start.time_ms == 1_700_000_000_123
    found = read(endingOffsetsByTimestamp='{"orders":{"broker-a":{"0":5}}}').end
    assert (found.where, found.offsets) == (Where.TIMES, {QUEUE: 5})


def test_a_group_is_where_reading_begins_unless_something_else_is_said() -> None:
    assert read(group="readers").start.where is Where.GROUP
    assert read(group="readers", startingOffsets="group").start.where is Where.GROUP
    assert read(group="readers", startingOffsets="earliest").start.where is Where.EARLIEST


def test_queues_are_assigned() -> None:
    found = read_source_options(
        {"endpoints": "a:1", "assign": '{"t":{"b":[1,0]},"s":{"b":[2]}}'}, streaming=False
    )
    assert found.topics == ("s", "t")
    assert found.assigned == (("s", "b", 2), ("t", "b", 0), ("t", "b", 1))


NAMESPACE = {"rocketmq.client.namespace": "shop"}
IN_SHOP = QUEUE._replace(topic="shop%orders")


def test_topics_and_groups_are_named_without_their_namespace() -> None:
    found = read(group="readers", **NAMESPACE)
    assert (found.topics, found.group, found.gateway.namespace) == (
        *(("shop%orders",), "shop%readers", "shop"),
    )
    assert read(topic="orders, shop%orders,%RETRY%readers", **NAMESPACE).topics == (
        *("shop%orders", "%RETRY%shop%readers"),
    )
    text = '{"orders":{"broker-a":[0]}}'
    found = read_source_options({"endpoints": "a:1", "assign": text, **NAMESPACE}, streaming=False)
    assert (found.topics, found.assigned) == (("shop%orders",), (IN_SHOP,))


@pytest.mark.parametrize("topic", ["orders", "shop%orders"])
def test_offsets_name_topics_without_their_namespace(topic: str) -> None:
    text = f'{{"{topic}":{{"broker-a":{{"0":5}}}}}}'
    assert read(startingOffsets=text, **NAMESPACE).start.offsets == {IN_SHOP: 5}
    assert read(endingOffsetsByTimestamp=text, **NAMESPACE).end.offsets == {IN_SHOP: 5}


def test_offsets_do_not_name_a_topic_with_and_without_its_namespace() -> None:
    text = '{"orders":{"broker-a":{"0":5}},"shop%orders":{"broker-a":{"0":6}}}'
    told = refusal(Code.ILLEGAL_OPTION, {**LEAST, **NAMESPACE, "startingOffsets": text})
    assert "it names a topic with the namespace shop and without it" in told
    assert len(read(startingOffsets=text).start.offsets) == 2


def test_a_name_with_its_namespace_is_not_too_long() -> None:
    told = refusal(Code.ILLEGAL_OPTION, {**LEAST, **NAMESPACE, "topic": "x" * 123})
    assert "it has 128 characters, the limit is 127" in told
    assert "belongs to the system" in refusal(Code.ILLEGAL_OPTION, {**LEAST, **NAMESPACE, "topic": "TBW102"})


def test_options_go_to_executors_and_show_no_secret() -> None:
    found = read(accessKey="me", secretKey="hidden", **{"rocketmq.client.tls": "true"})
    assert pickle.loads(pickle.dumps(found)) == found
    assert "hidden" not in repr(found)


def test_a_failure_goes_through_pickle() -> None:
    error = SparkSourceError(Code.DATA_LOSS, "it [a] is gone")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.code) == (str(error), error.code)


@pytest.mark.parametrize(("text", "size"), [("100", 100), ("4k", 4096), ("4M", 4 << 20), ("1g", 1 << 30)])
def test_bytes_may_be_told_with_a_unit(text: str, size: int) -> None:
    assert read(arrowBatchBytes=text).number("arrowBatchBytes") == size


@pytest.mark.parametrize("text", ["0", "0k", "2g", "4mb", "k", "-1k", "4 m", "٤k", "1" * 5000 + "k"])
def test_bytes_that_are_none_are_refused(text: str) -> None:
    assert "1 to 1073741824 of bytes" in refusal(Code.ILLEGAL_OPTION, {**LEAST, "arrowBatchBytes": text})


def test_other_numbers_have_no_units() -> None:
    refusal(Code.ILLEGAL_OPTION, {**LEAST, "arrowBatchRows": "4k"})


def test_the_page_has_all_options_and_says_which_of_them_work() -> None:
    page = (Path(__file__).resolve().parents[5] / "docs" / "spark.md").read_text()
    page = page.partition("## Options\n")[2].partition("\n## ")[0]
    works, refused = set(), set()
    for names, state in re.findall(r"^\| (`[^|]*`) \| (works|refused) \|", page, re.MULTILINE):
        (works if state == "works" else refused).update(re.findall(r"`([^`]+)`", names))
    assert works == set(KNOWN)
    assert refused == set(NOT_YET)


def test_the_page_has_all_columns() -> None:
    page = (Path(__file__).resolve().parents[5] / "docs" / "spark.md").read_text()
    told = re.findall(r"^\| (`[^|]*`) \| ([a-z]\S*) \|", page.partition("## Options")[0], re.MULTILINE)
    columns = {
        name: kind.replace("&lt;", "<") for names, kind in told for name in re.findall(r"`(\w+)`", names)
    }
    assert columns == COLUMNS


def test_the_page_has_the_legacy_columns() -> None:
    page = (Path(__file__).resolve().parents[5] / "docs" / "spark.md").read_text()
    told = page.partition("`schemaStyle=legacy`")[2].partition("\n\n")[0]
    assert re.findall(r"`(\w+)`", told)[: len(LEGACY)] == list(LEGACY)
