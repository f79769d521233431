"""The header blocks of responses: of gRPC's, and of those to requests that are not gRPC's.

Source: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md, "Responses".
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from typing import Final, TypeAlias
from urllib.parse import quote

from protocols.grpc.http2.compression import GZIP
from protocols.grpc.http2.hpack.decoder import encode_fields

Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]
"""Values of names that end with `-bin` are any bytes."""

_OPENING: Final = ((":status", "200"), ("content-type", "application/grpc"))
HEADERS: Final = encode_fields(_OPENING)
HEADERS_GZIP: Final = encode_fields([*_OPENING, ("grpc-encoding", GZIP)])
FINE: Final = encode_fields([("grpc-status", "0")])
PLAIN_TEXT: Final = b"This port speaks gRPC: content-type application/grpc, method POST.\n"
PLAIN_HEADERS: Final = encode_fields(
    [(":status", "415"), ("content-type", "text/plain"), ("content-length", str(len(PLAIN_TEXT)))]
)
TOO_LARGE_HEADERS: Final = encode_fields([(":status", "431"), ("content-length", "0")])
_PRINTABLE: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
_LONGEST_SENTENCE: Final = 1024


def status_block(status: int, sentence: str) -> bytes:
    """What the end of a call says."""
    if status == 0:
        return FINE
    quoted = quote(sentence[:_LONGEST_SENTENCE], safe=_PRINTABLE, errors="replace")
    return encode_fields([("grpc-status", str(int(status))), ("grpc-message", quoted)])


def metadata_block(metadata: Metadata) -> bytes:
    """Raises LocalWireError for what cannot be sent."""
    return encode_fields(map(_coded, metadata)) if metadata else b""


def _coded(field: tuple[str, str | bytes]) -> tuple[str, str | bytes]:
    """Metadata as it is carried: base64 of bytes."""
    name, value = field
    if not name.endswith("-bin"):
        return field
    return name, b64encode(value.encode() if isinstance(value, str) else value).rstrip(b"=")
