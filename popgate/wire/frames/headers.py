"""The header of a remoting frame in its two encodings: JSON, and ROCKETMQ's own binary one.

Numbers are signed 32-bit; text is UTF-8; a header has at most 1 MiB and 1024 ext fields. The binary
encoding has 16 bits for code and version, so that the codes of pop and acknowledgement do not fit:
they are sent as JSON. Source: protocol facts 5.2, 5.3 and 9.5 (57).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from enum import IntEnum, unique
from struct import Struct
from typing import Final

from popgate.errors import LocalWireError, PeerWireError, shown
from popgate.wire.json_syntax.jsontext import no_json, not_written, parse, write

LONGEST_HEADER: Final = 1 << 20
MOST_FIELDS: Final = 1024
LANGUAGES: Final = (
    *("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS"),
    *("RUST", "NODE_JS"),
)
"""RocketMQ's names of languages; the place is the number of the binary encoding."""
OTHER: Final = "OTHER"

_LANGUAGE_NUMBERS: Final = {name: number for number, name in enumerate(LANGUAGES)}
_OTHER_NUMBER: Final = _LANGUAGE_NUMBERS[OTHER]
_HEAD: Final = Struct(">hbhiii")
"""code, language, version, opaque, flag, length of the remark"""
_pack_head, _unpack_head = _HEAD.pack, _HEAD.unpack_from
_pack_numbers: Final = Struct(">iiii").pack
_pack_short, _unpack_short = Struct(">h").pack, Struct(">h").unpack_from
_pack_length, _unpack_length = Struct(">i").pack, Struct(">i").unpack_from
_SMALLEST_BINARY: Final = _HEAD.size + 4
_LARGEST_SHORT: Final = 0x7FFF


@unique
class Serialization(IntEnum):
    """How a header is written; the values are those of the wire."""

    JSON = 0
    ROCKETMQ = 1


_JSON: Final = 0  # compared with a plain number, which is quicker

Header = tuple[int, str, int, int, int, str, dict[str, str]]
"""The fields of a header: code, language, version, opaque, flag, remark, ext fields."""


def decode_header(serialization: int, data: bytes) -> Header:
    """Decode a header. Raises PeerWireError for an unknown encoding, damage, and values above the limits."""
    if len(data) > LONGEST_HEADER:
        raise PeerWireError(f"a header has {len(data)} bytes, the limit is {LONGEST_HEADER}")
    if not 0 <= serialization < len(DECODERS):
        raise PeerWireError(f"a header is encoded in the unknown way {serialization}")
    return DECODERS[serialization](data)


def encode_header(
    serialization: int,
    code: int,
    language: str,
    version: int,
    opaque: int,
    flag: int,
    remark: str,
    fields: Mapping[str, str],
) -> bytes:
    """Encode a header. Raises LocalWireError for values that do not fit into the encoding."""
    if serialization == _JSON:
        data = _encode_json(code, language, version, opaque, flag, remark, fields)
    else:
        data = _encode_binary(code, language, version, opaque, flag, remark, fields)
    if len(data) > LONGEST_HEADER:
        raise LocalWireError(f"the header has {len(data)} bytes, the limit is {LONGEST_HEADER}")
    return data


def _decode_json(data: bytes) -> Header:
    try:
        values = parse(data)
    except ValueError as error:
        raise no_json(error) from error
    if values.__class__ is not dict:
        raise PeerWireError("a JSON header is no object")
    get = values.get
    code, version, opaque, flag = get("code", 0), get("version", 0), get("opaque", 0), get("flag", 0)
    try:
        _pack_numbers(code, version, opaque, flag)
    except struct.error as error:
        raise PeerWireError(
            f"a number of a JSON header is none or does not fit into 32 bits: {error}"
        ) from error
    remark = get("remark")
    if remark is None:
        remark = ""
    elif remark.__class__ is not str:
        raise PeerWireError("the remark of a JSON header is no text")
    language = get("language")
    if language.__class__ is not str or language not in _LANGUAGE_NUMBERS:
        language = OTHER
    fields = get("extFields")
    if fields is None:
        fields = {}
    else:
        if fields.__class__ is not dict or len(fields) > MOST_FIELDS:
            raise PeerWireError(f"the ext fields of a JSON header are no object of at most {MOST_FIELDS}")
        for value in fields.values():
            if value.__class__ is not str:
                fields = _texts(fields)
                break
    return code, language, version, opaque, flag, remark, fields


def _texts(fields: dict[str, object]) -> dict[str, str]:
    """Ext fields of which some are no text: numbers and truth values as Java writes them, nulls left out."""
    texts = {}
    for name, value in fields.items():
        if value is True or value is False:
            texts[name] = "true" if value else "false"
        elif isinstance(value, str | int | float):
            texts[name] = str(value)
        elif value is not None:
            raise PeerWireError(f"the ext field {shown(name)} of a JSON header is no text")
    return texts


def _encode_json(
    code: int, language: str, version: int, opaque: int, flag: int, remark: str, fields: Mapping[str, str]
) -> bytes:
    if language not in _LANGUAGE_NUMBERS:
        language = OTHER
    try:
        ext_fields = b'"extFields":%b,' % write(fields) if fields else b""
        remark_text = b'"remark":%b,' % write(remark) if remark else b""
    except TypeError as error:
        raise not_written(error) from error
    return (
        b'{"code":%d,%b"flag":%d,"language":"%b","opaque":%d,%b"serializeTypeCurrentRPC":"JSON","version":%d}'
        % (code, ext_fields, flag, language.encode(), opaque, remark_text, version)
    )


def _decode_binary(data: bytes) -> Header:
    end = len(data)
    if end < _SMALLEST_BINARY:
        raise PeerWireError(f"a binary header needs {_SMALLEST_BINARY} bytes, there are {end}")
    code, language, version, opaque, flag, length = _unpack_head(data)
    at = _HEAD.size
    if not 0 <= length <= end - _SMALLEST_BINARY:
        raise PeerWireError(f"a binary header of {end} bytes claims a remark of {length}")
    fields: dict[str, str] = {}
    try:
        remark = data[at : at + length].decode() if length else ""
        at += length
        (length,) = _unpack_length(data, at)
        at += 4
        if length != end - at and (length > 0 or at != end):
            raise PeerWireError(f"a binary header claims {length} bytes of fields, there are {end - at}")
        while at < end:
            (length,) = _unpack_short(data, at)
            if length < 0:
                raise PeerWireError("the name of a field of a binary header has a negative length")
            value_at = at + 6 + length
            name = data[at + 2 : value_at - 4].decode()
            (length,) = _unpack_length(data, value_at - 4)
            at = value_at + length
            if length < 0 or at > end:
                raise PeerWireError(f"the value of a field of a binary header claims {length} bytes")
            fields[name] = data[value_at:at].decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise PeerWireError(f"a binary header is cut off or no UTF-8: {error}") from error
    if len(fields) > MOST_FIELDS:
        raise PeerWireError(f"a binary header has {len(fields)} fields, the limit is {MOST_FIELDS}")
    known = 0 <= language < len(LANGUAGES)
    return code, LANGUAGES[language] if known else OTHER, version, opaque, flag, remark, fields


def _encode_binary(
    code: int, language: str, version: int, opaque: int, flag: int, remark: str, fields: Mapping[str, str]
) -> bytes:
    if not -_LARGEST_SHORT <= code <= _LARGEST_SHORT:
        raise LocalWireError(f"a binary header cannot carry the code {code}: it has 16 bits for it, use JSON")
    try:
        text = remark.encode()
        parts = [
            _pack_head(
                code, _LANGUAGE_NUMBERS.get(language, _OTHER_NUMBER), version, opaque, flag, len(text)
            ),
            text,
            b"",
        ]
        size = 0
        for name, value in fields.items():
            name_bytes, value_bytes = name.encode(), value.encode()
            size += 6 + len(name_bytes) + len(value_bytes)
            parts += (_pack_short(len(name_bytes)), name_bytes, _pack_length(len(value_bytes)), value_bytes)
        parts[2] = _pack_length(size)
    except (struct.error, UnicodeEncodeError, AttributeError) as error:
        raise LocalWireError(f"this does not fit into a binary header: {error}") from error
    return b"".join(parts)


DECODERS: tuple[Callable[[bytes], Header], ...] = (_decode_json, _decode_binary)
"""By Serialization, for callers that have checked the length."""
