"""popgate.spark.options.sink_options: what users say of a sink, read and refused."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from popgate.spark.errors import Code, SparkSourceError
from popgate.spark.options.sink_options import SINK_KNOWN, read_sink_options
from popgate.spark.options.source_options import KNOWN, NOT_YET

LEAST = {"endpoints": "gateway:8080", "topic": "orders"}
NUMBERED = {
    "txnAppId": "app",
    "txnVersion": "7",
    "ledgerTopic": "books",
    "deliveryGuarantee": "effectively-once",
}


def refusal(code: Code, given: dict[str, str]) -> str:
    with pytest.raises(SparkSourceError) as refused:
        read_sink_options(given)
    assert refused.value.code is code
    return str(refused.value)


def test_what_is_not_said_has_its_default() -> None:
    found = read_sink_options(LEAST)
    assert (found.gateway.endpoints, found.topic, found.sink_id, found.dedupe_key) == (
        ("gateway:8080",),
        "orders",
        "",
        "",
    )
    assert (found.numbers["sendBatchRows"], found.numbers["sendBatchBytes"]) == (1024, 1 << 20)
    assert (found.numbers["sendInFlight"], found.timeout_s, found.numbers["send.numRetries"]) == (16, 30, 10)
    assert found.group == ""


def test_a_guarantee_says_what_it_needs() -> None:
    given = {**LEAST, "sinkId": "s", "ledgerTopic": "books"}
    found = read_sink_options({**given, "deliveryGuarantee": "Effectively-Once"})
    assert (found.has_ledger, found.transactional, found.ledger_topic) == (True, False, "books")
    found = read_sink_options({**given, "deliveryGuarantee": "transactional"})
    assert (found.has_ledger, found.transactional) == (True, True)
    assert not read_sink_options(LEAST).has_ledger


def test_topics_are_named_without_their_namespace() -> None:
    given = {**LEAST, "sinkId": "s", "ledgerTopic": "books", "deliveryGuarantee": "transactional"}
    found = read_sink_options({**given, "rocketmq.client.namespace": "shop"})
    assert (found.topic, found.ledger_topic, found.sink_id) == ("shop%orders", "shop%books", "s")
    full = {**given, "topic": "shop%orders", "ledgerTopic": "shop%books"}
    assert read_sink_options({**full, "rocketmq.client.namespace": "shop"}) == found
    assert read_sink_options({"endpoints": "a:1", "rocketmq.client.namespace": "shop"}).topic == ""


def test_a_batch_may_be_numbered() -> None:
    found = read_sink_options({**LEAST, **NUMBERED})
    assert (found.sink_id, found.version, read_sink_options(LEAST).version) == ("app", 7, -1)


def test_names_are_of_any_case_and_bytes_have_units() -> None:
    given = {"ENDPOINTS": "a:1", "sendbatchbytes": "2m", "DeliveryGuarantee": "At-Least-Once", "sinkid": "s"}
    found = read_sink_options(given)
    assert (found.topic, found.numbers["sendBatchBytes"], found.sink_id) == ("", 2 << 20, "s")


def test_what_spark_says_of_a_query_is_left_alone() -> None:
    assert read_sink_options({**LEAST, "checkpointLocation": "x", "queryName": "y"}) == read_sink_options(
        LEAST
    )


@pytest.mark.parametrize(
    ("given", "code", "says"),
    [
        ({"topic": "orders"}, Code.MISSING_OPTION, "endpoints is missing"),
        ({**LEAST, "topic": "a b"}, Code.ILLEGAL_OPTION, "only letters"),
        ({**LEAST, "topic": "a,b"}, Code.ILLEGAL_OPTION, "only letters"),
        ({**LEAST, "topic": ""}, Code.ILLEGAL_OPTION, "option topic = ''"),
        ({**LEAST, "secretKey": "a"}, Code.MISSING_OPTION, "together or not"),
        ({**LEAST, "sendBatchRow": "5"}, Code.UNKNOWN_OPTION, "did you mean sendBatchRows?"),
        ({**LEAST, "path": "orders"}, Code.UNKNOWN_OPTION, "option 'path' is not known"),
        (
            {**LEAST, "startingOffsets": "latest"},
            Code.ILLEGAL_OPTION,
            "an option of the source, leave it out",
        ),
        ({**LEAST, "sendBatchRows": "1025"}, Code.ILLEGAL_OPTION, "from 1 to 1024"),
        ({**LEAST, "sendBatchBytes": "5m"}, Code.ILLEGAL_OPTION, "from 1 to 4194304 of bytes"),
        ({**LEAST, "sendInFlight": "0"}, Code.ILLEGAL_OPTION, "from 1 to 64"),
        ({**LEAST, "sinkId": ""}, Code.ILLEGAL_OPTION, "1 to 255 printable"),
        ({**LEAST, "sinkId": "a\x01b"}, Code.ILLEGAL_OPTION, "1 to 255 printable"),
        ({**LEAST, **NUMBERED, "txnAppId": ""}, Code.ILLEGAL_OPTION, "option txnAppId = '': it has 1 to 255"),
        ({**LEAST, **NUMBERED, "sinkId": "s"}, Code.ILLEGAL_OPTION, "sinkId is given too"),
        (
            {**LEAST, **NUMBERED, "txnVersion": "-1"},
            Code.ILLEGAL_OPTION,
            "whole number from 0 to 92233720368",
        ),
        (
            {**LEAST, **NUMBERED, "deliveryGuarantee": "at-least-once"},
            *(Code.ILLEGAL_OPTION, "option txnVersion = '7': it needs deliveryGuarantee = effectively-once"),
        ),
        *(
            ({name: text for name, text in {**LEAST, **NUMBERED}.items() if name != left}, *missing)
            for left, missing in (
                ("txnAppId", (Code.MISSING_OPTION, "txnAppId and txnVersion are given together or not")),
                ("txnVersion", (Code.MISSING_OPTION, "txnAppId and txnVersion are given together or not")),
                ("ledgerTopic", (Code.MISSING_OPTION, "option ledgerTopic is missing")),
            )
        ),
        ({**LEAST, "dedupeKeyColumn": ""}, Code.ILLEGAL_OPTION, "names a column"),
        ({**LEAST, "deliveryGuarantee": "exactly-once"}, Code.ILLEGAL_OPTION, "it is one of at-least-once"),
        ({**LEAST, "deliveryGuarantee": "effectively-once"}, Code.MISSING_OPTION, "option sinkId is missing"),
        (
            {**LEAST, "deliveryGuarantee": "Transactional", "sinkId": "s"},
            Code.MISSING_OPTION,
            "option ledgerTopic is missing, deliveryGuarantee = transactional needs it: a compacted topic",
        ),
        (
            {**LEAST, "deliveryGuarantee": "transactional", "sinkId": "s", "ledgerTopic": "a b"},
            Code.ILLEGAL_OPTION,
            "option ledgerTopic = 'a b'",
        ),
        ({**LEAST, "ledgerTopic": "l"}, Code.ILLEGAL_OPTION, "it needs deliveryGuarantee = effectively-once"),
    ],
)
def test_what_cannot_be_right_is_refused(given: dict[str, str], code: Code, says: str) -> None:
    assert says in refusal(code, given)


@pytest.mark.parametrize("guarantee", ["effectively-once", "transactional"])
def test_a_ledger_needs_remoting(guarantee: str) -> None:
    given = {**LEAST, "deliveryGuarantee": guarantee, "sinkId": "s", "ledgerTopic": "l"}
    sentence = refusal(Code.ILLEGAL_OPTION, {**given, "transport": "grpc"})
    assert (
        f"option deliveryGuarantee = '{guarantee}': with transport = grpc nobody tells the settings"
        in sentence
    )
    assert read_sink_options({**given, "transport": "remoting"}).has_ledger
    assert read_sink_options({**LEAST, "transport": "grpc", "sinkId": "s"}).gateway.is_grpc


@pytest.mark.parametrize("name", NOT_YET)
def test_what_is_not_there_yet_is_refused_as_such(name: str) -> None:
    assert "is not supported yet" in refusal(Code.UNSUPPORTED_OPTION, {**LEAST, name: "1"})


@pytest.mark.parametrize("name", sorted(set(KNOWN) - set(SINK_KNOWN)))
def test_what_the_source_has_alone_is_refused(name: str) -> None:
    assert f"option {name} = '1'" in refusal(Code.ILLEGAL_OPTION, {**LEAST, name.upper(): "1"})


def test_options_go_to_executors_and_show_no_secret() -> None:
    found = read_sink_options({**LEAST, "accessKey": "me", "secretKey": "hidden"})
    assert pickle.loads(pickle.dumps(found)) == found
    assert "hidden" not in repr(found)


def test_the_page_has_all_options_of_the_sink() -> None:
    page = (Path(__file__).resolve().parents[5] / "docs" / "spark.md").read_text()
    told = set()
    rows = re.findall(r"^\| (`[^|]*`) \| works \|", page.partition("## Options of the sink")[2], re.MULTILINE)
    for names in rows:
        told.update(re.findall(r"`([^`]+)`", names))
    assert told == set(SINK_KNOWN)
