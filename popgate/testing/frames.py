"""HTTP/2 frames built by hand and shown as text, for tests of readers and writers (RFC 9113)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

KINDS = (
    "DATA", "HEADERS", "PRIORITY", "RST_STREAM", "SETTINGS",
    "PUSH_PROMISE", "PING", "GOAWAY", "WINDOW_UPDATE", "CONTINUATION",
)  # fmt: skip
CODES = (
    "NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT",
    "STREAM_CLOSED", "FRAME_SIZE_ERROR", "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR",
    "CONNECT_ERROR", "ENHANCE_YOUR_CALM",
)  # fmt: skip
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SHOWN = 40


def frame(kind: str, number: int = 0, payload: bytes = b"", *, flags: int = 0) -> bytes:
    """Any frame."""
    return frame_of(KINDS.index(kind), number, payload, flags=flags)


def frame_of(kind: int, number: int, payload: bytes, *, flags: int = 0) -> bytes:
    """A frame of a kind that may not exist."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + number.to_bytes(4, "big") + payload


def settings(values: Mapping[int, int] | None = None, *, ack: bool = False) -> bytes:
    body = b"".join(
        key.to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in (values or {}).items()
    )
    return frame("SETTINGS", 0, body, flags=int(ack))


def headers(number: int, block: bytes, *, end: bool = False, more: bool = False) -> bytes:
    """`end`: of the stream. `more`: a CONTINUATION follows."""
    return frame("HEADERS", number, block, flags=int(end) | (0 if more else 4))


def continuation(number: int, block: bytes, *, more: bool = False) -> bytes:
    return frame("CONTINUATION", number, block, flags=0 if more else 4)


def data(number: int, payload: bytes = b"", *, end: bool = False) -> bytes:
    return frame("DATA", number, payload, flags=int(end))


def padded(whole: bytes, padding: int) -> bytes:
    """The same frame of DATA or HEADERS with so many bytes of padding."""
    payload = bytes((padding,)) + whole[9:] + bytes(padding)
    kind, flags, number = whole[3], whole[4], int.from_bytes(whole[5:9], "big")
    return frame_of(kind, number, payload, flags=flags | 8)


def window_update(number: int, more: int) -> bytes:
    return frame("WINDOW_UPDATE", number, more.to_bytes(4, "big"))


def reset(number: int, code: str = "CANCEL") -> bytes:
    return frame("RST_STREAM", number, CODES.index(code).to_bytes(4, "big"))


def ping(payload: bytes = b"12345678", *, ack: bool = False) -> bytes:
    return frame("PING", 0, payload, flags=int(ack))


def framed(message: bytes, *, flag: int = 0) -> bytes:
    """A message of gRPC in its own frame; flag 1: it is compressed."""
    return bytes((flag,)) + len(message).to_bytes(4, "big") + message


def split(sent: bytes) -> Iterator[tuple[str, int, int, bytes]]:
    """Kind, flags, stream and payload of each frame of the given bytes, which are complete frames."""
    at = 0
    while at < len(sent):
        size = int.from_bytes(sent[at : at + 3], "big")
        payload = sent[at + 9 : at + 9 + size]
        assert len(payload) == size, "a frame is not there as a whole"  # noqa: S101
        yield KINDS[sent[at + 3]], sent[at + 4], int.from_bytes(sent[at + 5 : at + 9], "big"), payload
        at += 9 + size


def whole_and_rest(sent: bytes) -> tuple[bytes, bytes]:
    """The complete frames at the beginning, and the remaining bytes."""
    end = at = 0
    while at + 9 <= len(sent):
        at += 9 + int.from_bytes(sent[at : at + 3], "big")
        if at <= len(sent):
            end = at
    return sent[:end], sent[end:]


def told(sent: bytes, read_block: Callable[[bytes], str]) -> list[str]:
    """A line for each frame: "HEADERS 1 end …", "DATA 1 b'…'", "GOAWAY 0 CANCEL: why".

    `read_block` tells a header block as text.
    """
    return [_line(*frame, read_block) for frame in split(sent)]


def _line(kind: str, flags: int, number: int, payload: bytes, read_block: Callable[[bytes], str]) -> str:
    end = " end" if flags & 1 else ""
    if kind == "DATA":
        shown = repr(payload) if len(payload) <= _SHOWN else f"{len(payload)} bytes"
        return f"DATA {number}{end} {shown}"
    if kind == "HEADERS":
        return f"HEADERS {number}{end} {read_block(payload)}"
    ack = " ack" if flags & 1 else ""
    if kind == "SETTINGS":
        values = [payload[at : at + 6] for at in range(0, len(payload), 6)]
        return f"SETTINGS{ack}" + "".join(
            f" {int.from_bytes(setting[:2], 'big')}={int.from_bytes(setting[2:], 'big')}"
            for setting in values
        )
    if kind == "PING":
        return f"PING{ack} {payload.decode('latin-1')}"
    first = int.from_bytes(payload[:4], "big")
    if kind == "GOAWAY":
        code = CODES[int.from_bytes(payload[4:8], "big")]
        return f"GOAWAY {first} {code}: {payload[8:].decode()}".rstrip(": ")
    return f"{kind} {number} {CODES[first] if kind == 'RST_STREAM' else first}"
