"""Both ways of reading and writing, the installed one and the one without orjson, do the same."""

from collections.abc import Callable
from typing import Any

import pytest

from popgate.errors import LocalWireError, PeerWireError
from popgate.wire.json_syntax import jsontext
from popgate.wire.json_syntax.jsontext import dumps, dumps_plain, loads, loads_plain

READERS = pytest.mark.parametrize("read", [loads, loads_plain], ids=["installed", "plain"])
WRITERS = pytest.mark.parametrize("write", [dumps, dumps_plain], ids=["installed", "plain"])


def test_orjson_is_what_these_tests_compare_with() -> None:
    assert loads is not loads_plain
    assert jsontext.orjson is not None


@READERS
def test_json_is_read(read: Callable[[bytes], Any]) -> None:
    text = '{"a":[1,-2.5,true,false,null,"\\u00e4ö\\ud83e\\udd8a\\n"],"b":{},"c":9223372036854775807}'
    assert read(text.encode()) == {
        "a": [1, -2.5, True, False, None, "äö🦊\n"],
        "b": {},
        "c": (1 << 63) - 1,
    }


@WRITERS
def test_json_is_written_without_spaces(write: Callable[[Any], bytes]) -> None:
    value = {"b": 1, "a": ['ä\n\x01\x7f\b"\\/🦊', True, None, 1.5], "c": {}}
    assert write(value) == '{"b":1,"a":["ä\\n\\u0001\x7f\\b\\"\\\\/🦊",true,null,1.5],"c":{}}'.encode()


@READERS
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{0:1}",
        b"nul",
        b"[1,]",
        b"NaN",
        b"-Infinity",
        b"1e999",
        b"[-1.5e400]",
        b'"\\ud800"',
        b'{"\\udc00":1}',
        b'"\n"',
        b"\xff",
        b'"\xed\xa0\x80"',
        b"\xef\xbb\xbf{}",
        b"[" * 200_000,
        b'{"a":' * 100_000,
        b"{} {}",
    ],
)
def test_what_is_no_json_is_refused(read: Callable[[bytes], Any], data: bytes) -> None:
    with pytest.raises(PeerWireError):
        read(data)


@WRITERS
@pytest.mark.parametrize("value", ["\ud800", {"\udc00": 1}, {(1, 2): 3}, {1, 2}, b"x", object()])
def test_what_cannot_be_written_is_our_bug(write: Callable[[Any], bytes], value: object) -> None:
    with pytest.raises(LocalWireError):
        write(value)
