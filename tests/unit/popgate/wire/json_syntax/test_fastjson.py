"""Texts: what RocketMQ 5.5.0 itself wrote, and protocol facts 5.8."""

from typing import Any

import pytest

from popgate.errors import LocalWireError, PeerWireError
from popgate.wire.json_syntax.fastjson import MOST_DEPTH, MOST_PARTS, dumps, dumps_keyed, loads, object_key

QUEUE_KEY = (("brokerName", "broker-a"), ("queueId", 0), ("topic", "T"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":[1,"x",null,true,1.5]}', {"a": [1, "x", None, True, 1.5]}),
        ('{0:"10.0.0.1:10911",1:"x"}', {"0": "10.0.0.1:10911", "1": "x"}),
        ('{-5:1,"b":2}', {"-5": 1, "b": 2}),
        (' { 0 : [ 1 , {2:3} ] , name : "v" } ', {"0": [1, {"2": 3}], "name": "v"}),
        ('{"{0:1}":{0:"{1:2}"}}', {"{0:1}": {"0": "{1:2}"}}),
        ('{0:"a\\"b,{\\\\"}', {"0": 'a"b,{\\'}),
        ('{0:"\\u4e2d\\n"}', {"0": "中\n"}),
        ('{{"brokerName":"broker-a","queueId":0,"topic":"T"}:12}', {QUEUE_KEY: 12}),
        ('{{"topic":"T","queueId":0,"brokerName":"broker-a"}:{}}', {QUEUE_KEY: {}}),
        ('{{"a":[1,{"b":[]}]}:3}', {(("a", (1, (("b", ()),))),): 3}),
        ("{0:{},1:[]}", {"0": {}, "1": []}),
        ("{0:-1.5e3,1:0}", {"0": -1500.0, "1": 0}),
        ("{0:1,0:2}", {"0": 2}),
        ("{true:1,null:2}", {"true": 1, "null": 2}),
    ],
)
def test_what_fastjson_writes_is_read(text: str, value: Any) -> None:
    assert loads(text.encode()) == value


def test_a_key_that_was_an_object_is_that_object_again() -> None:
    (key,) = loads(b'{{"brokerName":"broker-a","queueId":0,"topic":"T"}:12}')
    assert dict(key) == {"brokerName": "broker-a", "queueId": 0, "topic": "T"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "{0",
        "{0:",
        "{0:1",
        "{0:1,",
        "{0:1,}",
        "{0:1}}",
        "{0:1} x",
        "{0 1}",
        "{0:1 1:2}",
        "{:1}",
        "{0:'x'}",
        '{0:"x}',
        '{0:"\n"}',
        '{0:"\\ud800"}',
        '{0:1,"\\udc00":1}',
        "{0:NaN}",
        "{0:Infinity}",
        "{0:1e999}",
        "{0:-1.5e400}",
        "{0:nil}",
        "{0:01}",
        "{0:--1}",
        "[0:1]",
        "[1,",
        "{{:1}",
        "{{}",
        "{[1,2]:3}",
        "{0:" + "9" * 5000 + "}",
    ],
)
def test_damage_is_told(text: str) -> None:
    with pytest.raises(PeerWireError):
        loads(text.encode())


def test_what_is_no_utf_8_is_refused() -> None:
    with pytest.raises(PeerWireError):
        loads(b'{0:"\xff"}')


@pytest.mark.parametrize(("start", "end"), [(b"[", b"]"), (b'{"a":', b"}"), (b"{0:", b"}")])
def test_depth_is_bounded(start: bytes, end: bytes) -> None:
    value = loads(start * MOST_DEPTH + (b"" if start == b"[" else b"1") + end * MOST_DEPTH)
    for _ in range(MOST_DEPTH):
        (value,) = value.values() if isinstance(value, dict) else value or [1]
    assert value == 1
    for depth in (MOST_DEPTH + 1, 900, 5000, 200_000):
        with pytest.raises(PeerWireError):
            loads(start * depth + b"1" + end * depth)


def test_keys_are_as_bounded_as_values() -> None:
    with pytest.raises(PeerWireError, match="deep"):
        loads(b"{" * (MOST_DEPTH + 1) + b"}" * (MOST_DEPTH + 1))


def test_the_number_of_parts_is_bounded() -> None:
    assert len(loads(b"[" + b"1," * 1000 + b"1]")) == 1001
    with pytest.raises(PeerWireError, match="parts"):
        loads(b"[" + b"1," * MOST_PARTS + b"1]")


def test_references_are_resolved() -> None:
    assert loads(b'{"a":[{"x":1}],"b":{"$ref":"$.a[0]"}}') == {"a": [{"x": 1}], "b": {"x": 1}}
    assert loads(b'{0:{"x":1},1:{"$ref":"$.0"}}') == {"0": {"x": 1}, "1": {"x": 1}}


def test_objects_as_keys_are_written_as_fastjson_does() -> None:
    key = object_key({"topic": "T", "queueId": 0, "brokerName": "broker-a"})
    assert key == QUEUE_KEY
    written = dumps_keyed({"offsetTable": {key: {"maxOffset": 9}}, "topicPutTps": 0.0, "ä": [1, "x"]})
    assert (
        written
        == (
            '{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:{"maxOffset":9}},'
            '"topicPutTps":0.0,"ä":[1,"x"]}'
        ).encode()
    )
    assert loads(written)["offsetTable"] == {key: {"maxOffset": 9}}


def test_standard_json_is_written() -> None:
    assert dumps({"0": "x", "中": 1}) == '{"0":"x","中":1}'.encode()
    with pytest.raises(LocalWireError):
        dumps({QUEUE_KEY: 1})
