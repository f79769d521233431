"""HTTP/2's numbers, and the violations of its rules by a peer. Source: RFC 9113 sections 6 and 7."""

from __future__ import annotations

from enum import IntEnum, unique
from typing import Final

from popgate.errors import PeerWireError

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client says first (RFC 9113 section 3.4)."""

# Plain numbers, since frames are told apart on the hot path (section 6).
DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
WITH_PRIORITY: Final = 0x20

LEAST_MAX_FRAME: Final = 16_384
MOST_MAX_FRAME: Final = (1 << 24) - 1
FIRST_WINDOW: Final = 65_535
MOST_WINDOW: Final = (1 << 31) - 1
LAST_STREAM: Final = (1 << 31) - 1


@unique
class Setting(IntEnum):
    """Section 6.5.2."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


@unique
class ErrorCode(IntEnum):
    """Section 7."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11


@unique
class Flood(IntEnum):
    """Kinds of frames that a peer can send too often. Names, in lower case, are values of a label."""

    RESETS = 0
    CONTINUATIONS = 1
    SETTINGS = 2
    PINGS = 3
    EMPTY_FRAMES = 4
    WINDOW_UPDATES = 5
    PRIORITIES = 6
    BOMBS = 7
    """Headers and messages that are far larger than they came."""


_KINDS: Final = {
    ErrorCode.COMPRESSION_ERROR: "compression",
    ErrorCode.FLOW_CONTROL_ERROR: "flow_control",
    ErrorCode.FRAME_SIZE_ERROR: "frame_size",
}


class Http2Error(PeerWireError):
    """A connection error: the peer is sent `code` and the reason, and the connection closes (section 5.4.1).

    `kind`: one of a few words, for metrics.
    """

    def __init__(self, sentence: str, code: ErrorCode = ErrorCode.PROTOCOL_ERROR, kind: str = "") -> None:
        super().__init__(sentence)
        self.code = code
        self.kind = kind or _KINDS.get(code, "protocol")


class FloodError(Http2Error):
    """A peer sent more frames that cost work and carry nothing than any well-behaved peer sends."""

    def __init__(self, flood: Flood, sentence: str) -> None:
        super().__init__(sentence, ErrorCode.ENHANCE_YOUR_CALM, flood.name.lower())
        self.flood = flood


class StreamError(Exception):
    """One stream cannot go on; the connection can (section 5.4.2)."""

    def __init__(self, stream_id: int, sentence: str, code: ErrorCode = ErrorCode.PROTOCOL_ERROR) -> None:
        super().__init__(sentence)
        self.stream_id = stream_id
        self.code = code
