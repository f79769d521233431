"""Vectors: protocol facts 10, and headers that RocketMQ 5.5.0 itself encoded."""

import json
from struct import pack
from typing import Any

import pytest

from popgate.errors import LocalWireError, PeerWireError
from popgate.wire.frames.headers import (
    LONGEST_HEADER,
    MOST_FIELDS,
    Serialization,
    decode_header,
    encode_header,
)

JSON, BINARY = Serialization.JSON, Serialization.ROCKETMQ
VECTOR = bytes.fromhex(
    "0069 00 01df 00000007 00000000 00000000 0000000c 0005 746f706963 00000001 54".replace(" ", "")
)
VECTOR_SAYS = (105, "JAVA", 479, 7, 0, "", {"topic": "T"})


def test_the_binary_vector_is_written_and_read() -> None:
    assert encode_header(BINARY, *VECTOR_SAYS) == VECTOR
    assert decode_header(BINARY, VECTOR) == VECTOR_SAYS


def test_json_is_written_as_java_writes_it() -> None:
    told = (105, "JAVA", 479, 7, 0, 'r"\n', {"topic": "T中", "acceptStandardJsonOnly": "true"})
    written = encode_header(JSON, *told)
    assert (
        written
        == (
            '{"code":105,"extFields":{"topic":"T中","acceptStandardJsonOnly":"true"},"flag":0,"language":"JAVA",'
            '"opaque":7,"remark":"r\\"\\n","serializeTypeCurrentRPC":"JSON","version":479}'
        ).encode()
    )
    assert decode_header(JSON, written) == told


@pytest.mark.parametrize("way", Serialization)
@pytest.mark.parametrize(
    "told",
    [
        (0, "PYTHON", 479, 0, 0, "", {}),
        (-1, "NODE_JS", 0, -1, 1, "why", {}),
        (
            32_767,
            "RUST",
            32_767,
            (1 << 31) - 1,
            3,
            "中 \x01\x02 🦊",
            {"": "", "k": "", "中": "文\x01", "q": '"'},
        ),
        (10, "OTHER", -1, -(1 << 31), 1, "x" * 5000, {str(n): str(n) * 50 for n in range(200)}),
    ],
)
def test_what_is_written_is_read(way: Serialization, told: Any) -> None:
    assert decode_header(way, encode_header(way, *told)) == told


@pytest.mark.parametrize("way", Serialization)
def test_a_language_that_nobody_knows_is_another_one(way: Serialization) -> None:
    header = encode_header(way, 1, "COBOL", 1, 1, 1, "", {})
    assert decode_header(way, header)[1] == "OTHER"


@pytest.mark.parametrize("number", [-1, 14, 127])
def test_a_language_number_that_nobody_knows_is_another_one(number: int) -> None:
    assert decode_header(BINARY, VECTOR[:2] + pack(">b", number) + VECTOR[3:])[1] == "OTHER"


@pytest.mark.parametrize("language", ["COBOL", 3, None, ["JAVA"]])
def test_a_language_that_is_no_known_name_is_another_one(language: object) -> None:
    assert decode_header(JSON, json.dumps({"code": 1, "language": language}).encode())[1] == "OTHER"


def test_what_a_json_header_does_not_say_is_zero_or_empty() -> None:
    assert decode_header(JSON, b"{}") == (0, "OTHER", 0, 0, 0, "", {})
    assert decode_header(JSON, b'{"remark":null,"extFields":null,"more":[{}]}') == (
        0,
        "OTHER",
        0,
        0,
        0,
        "",
        {},
    )


def test_fields_that_are_no_text_become_what_java_would_write() -> None:
    fields = decode_header(JSON, b'{"extFields":{"a":"x","b":1,"c":true,"d":false,"e":null,"f":1.5}}')[6]
    assert fields == {"a": "x", "b": "1", "c": "true", "d": "false", "f": "1.5"}


@pytest.mark.parametrize("code", [32_768, 200_050, -40_000])
def test_a_binary_header_cannot_carry_codes_of_more_than_16_bits(code: int) -> None:
    with pytest.raises(LocalWireError, match=f"cannot carry the code {code}.*use JSON"):
        encode_header(BINARY, code, "JAVA", 1, 1, 0, "", {})
    assert decode_header(JSON, encode_header(JSON, code, "JAVA", 1, 1, 0, "", {}))[0] == code


@pytest.mark.parametrize("way", Serialization)
@pytest.mark.parametrize(
    "wrong",
    [
        {"remark": "\ud800"},
        {"fields": {"k": "\ud800"}},
        {"fields": {"\udfff": "v"}},
        {"remark": "x" * (LONGEST_HEADER + 1)},
        {"fields": {"k": b"v"}},
    ],
)
def test_what_does_not_fit_is_our_bug(way: Serialization, wrong: dict[str, Any]) -> None:
    told = {"code": 1, "language": "JAVA", "version": 1, "opaque": 1, "flag": 0, "remark": "", "fields": {}}
    with pytest.raises(LocalWireError):
        encode_header(way, **told | wrong)


@pytest.mark.parametrize("wrong", [{"version": 1 << 15}, {"opaque": 1 << 31}, {"fields": {"k" * 32_768: ""}}])
def test_what_does_not_fit_into_a_binary_header_is_our_bug(wrong: dict[str, Any]) -> None:
    told = {"code": 1, "language": "JAVA", "version": 1, "opaque": 1, "flag": 0, "remark": "", "fields": {}}
    with pytest.raises(LocalWireError, match="binary header"):
        encode_header(BINARY, **told | wrong)


def test_an_unknown_encoding_is_refused() -> None:
    with pytest.raises(PeerWireError, match="unknown way 2"):
        decode_header(2, b"{}")


@pytest.mark.parametrize("way", Serialization)
def test_a_header_above_the_limit_is_refused(way: Serialization) -> None:
    with pytest.raises(PeerWireError, match="the limit is"):
        decode_header(way, bytes(LONGEST_HEADER + 1))


@pytest.mark.parametrize("way", Serialization)
def test_more_fields_than_the_limit_are_refused(way: Serialization) -> None:
    def header(count: int) -> bytes:
        return encode_header(way, 1, "JAVA", 1, 1, 0, "", {str(n): "" for n in range(count)})

    assert len(decode_header(way, header(MOST_FIELDS))[6]) == MOST_FIELDS
    with pytest.raises(PeerWireError):
        decode_header(way, header(MOST_FIELDS + 1))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"null",
        b"\xff\xfe",
        b'{"code":1.5}',
        b'{"code":"1"}',
        b'{"code":null}',
        b'{"code":2147483648}',
        b'{"opaque":-2147483649}',
        b'{"flag":1e400}',
        b'{"version":123456789012345678901234567890}',
        b'{"version":NaN}',
        b'{"remark":7}',
        b'{"remark":"\\ud800"}',
        b'{"extFields":[]}',
        b'{"extFields":{"k":[]}}',
        b'{"extFields":{"k":{}}}',
        b'{"extFields":{"k":"\\udc00"}}',
        b'{"code":' + b"9" * 5000 + b"}",
        b'{"a":' * 5000,
        b"[" * 100_000,
    ],
)
def test_a_damaged_json_header_is_refused(data: bytes) -> None:
    with pytest.raises(PeerWireError):
        decode_header(JSON, data)


def changed(at: int, value: bytes) -> bytes:
    return VECTOR[:at] + value + VECTOR[at + len(value) :]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        VECTOR[:20],
        VECTOR[:-1],
        VECTOR + b"x",
        changed(13, b"\xff\xff\xff\xff"),
        changed(13, b"\x7f\xff\xff\xff"),
        changed(13, b"\0\0\0\x01"),
        changed(17, b"\xff\xff\xff\xff"),
        changed(17, b"\0\0\0\x0b"),
        changed(17, bytes(4)),
        changed(21, b"\xff\xff"),
        changed(21, b"\x7f\xff"),
        changed(21, b"\0\x06"),
        changed(23, b"\xff"),
        changed(28, b"\xff\xff\xff\xff"),
        changed(28, b"\0\0\0\x02"),
        changed(28, bytes(4)),
        changed(32, b"\xff"),
    ],
)
def test_a_damaged_binary_header_is_refused(data: bytes) -> None:
    with pytest.raises(PeerWireError):
        decode_header(BINARY, data)
