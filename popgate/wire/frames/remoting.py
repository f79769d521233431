"""Remoting: frames of one command each, for clients, servers and blocking sockets alike.

A frame is its length, the length of its header with the encoding in the high byte, the header, and the
body. Answers carry the `opaque` of their request and come in any order. Source: protocol facts 5.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Final

from popgate.errors import LocalWireError, PeerWireError
from popgate.wire.frames.contract import TLS_FIRST
from popgate.wire.frames.headers import DECODERS, LONGEST_HEADER, Serialization, encode_header

VERSION: Final = 479
"""V5_3_3, the version that is sent by default."""
V4_9_4: Final = 401
"""From this version on a name server writes standard JSON, with keys in quotes."""
V4_9_5: Final = 403
"""From this version on clients of RocketMQ 4 name the broker that they mean, by `bname` or `n`."""
V5_0_0, V5_1_0 = 412, 433
"""Those of RocketMQ 5 do so from 5.1.0 on: 5.0.0 (the first is its snapshot) in pulls and with positions, and
not in sends, send-backs and ends of transactions (protocol facts 7.7)."""
V5_3_1: Final = 475
"""Clients above this version understand the answer GO_AWAY."""
LARGEST_FRAME: Final = 16 * 1024 * 1024
"""Bytes behind the first length, the limit of RocketMQ."""
_LARGEST_SKIPPED: Final = 320 * 1024 * 1024
"""More than the most messages of one answer, 64, have with 4 MiB each; less than what begins as TLS does."""
_TLS: Final = int.from_bytes(TLS_FIRST, "big")
IS_RESPONSE: Final = 1
IS_ONEWAY: Final = 2

_LENGTHS: Final = Struct(">iI")
_pack_lengths, _unpack_lengths = _LENGTHS.pack, _LENGTHS.unpack_from
_SERIALIZATIONS: Final = (Serialization.JSON, Serialization.ROCKETMQ)


def names_brokers(version: int) -> bool:
    """Whether clients of this version name the broker that they mean in all their requests."""
    return V4_9_5 <= version < V5_0_0 or version >= V5_1_0


@dataclass(slots=True, init=False)
class Command:
    """A request or an answer. `code` of a request is a RequestCode, of an answer a ResponseCode.

    `fields` None: an empty dict of its own. `skipped`: bytes of a body that was too large to be read.
    """

    code: int
    opaque: int
    flag: int
    fields: dict[str, str]
    body: bytes
    remark: str
    language: str
    version: int
    serialization: Serialization
    skipped: int

    # Written out, because mypyc does not compile what a dataclass makes: a request has at least four.
    def __init__(
        self,
        code: int,
        opaque: int = 0,
        flag: int = 0,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
        remark: str = "",
        language: str = "PYTHON",
        version: int = VERSION,
        serialization: Serialization = Serialization.JSON,
        skipped: int = 0,
    ) -> None:
        self.code = code
        self.opaque = opaque
        self.flag = flag
        self.fields = {} if fields is None else fields
        self.body = body
        self.remark = remark
        self.language = language
        self.version = version
        self.serialization = serialization
        self.skipped = skipped

    @property
    def is_response(self) -> bool:
        return self.flag & IS_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """Whether the sender expects no response, so that none may be sent."""
        return self.flag & IS_ONEWAY != 0

    def answer(
        self, code: int, remark: str = "", fields: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Command:
        """The answer to this request: same `opaque`, same encoding."""
        return Command(
            code,
            self.opaque,
            IS_RESPONSE,
            {} if fields is None else dict(fields),
            body,
            remark,
            serialization=self.serialization,
        )


def encode_command(command: Command) -> bytes:
    """The whole frame. Raises LocalWireError for values that do not fit into it."""
    serialization, body = command.serialization, command.body
    header = encode_header(
        serialization,
        command.code,
        command.language,
        command.version,
        command.opaque,
        command.flag,
        command.remark,
        command.fields,
    )
    length = len(header)
    size = 4 + length + len(body)
    if size > LARGEST_FRAME:
        raise LocalWireError(f"the frame has {size} bytes, remoting takes {LARGEST_FRAME}")
    return b"".join((_pack_lengths(size, serialization << 24 | length), header, body))


class TlsSpoken(PeerWireError):
    """The other side speaks TLS, and this one does not: as a length its first bytes are far too large."""


class RemotingWire:
    """One side of a connection; a `Wire` of `Command` events.

    A frame above `max_frame` bytes is refused as soon as its length is known; with `skips` an answer of that
    kind is a command without its body, which is dropped as it comes (`Command.skipped`). After an error the
    machine is dead: the same error is raised again. A protocol sniffer may check the first length of a
    connection; this machine reads nothing but remoting.
    """

    __slots__ = ("_at", "_data", "_ended", "_failure", "_max_frame", "_most", "_out", "_skipping", "_tail")

    def __init__(self, max_frame: int = LARGEST_FRAME, *, skips: bool = False) -> None:
        self._max_frame = max_frame
        self._most = _LARGEST_SKIPPED if skips else max_frame
        self._skipping = 0
        """Bytes that are still to be dropped."""
        self._data = b""
        self._at = 0
        self._tail = bytearray()
        """What came behind `_data`. The two are joined when a frame is complete, so that each byte of
        a large frame is copied twice, however small the pieces are in which it comes."""
        self._out: list[bytes] = []
        self._ended = False
        self._failure: PeerWireError | None = None

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        """Raises LocalWireError for bytes after the end."""
        if self._ended:
            raise LocalWireError("bytes came after the end of the stream")
        if self._skipping and len(data):
            dropped = min(self._skipping, len(data))
            self._skipping -= dropped
            data = data[dropped:]
            if not len(data):
                return
        if not len(data):
            self._ended = True
        elif self._failure is not None:
            return
        elif self._at == len(self._data) and not self._tail:
            self._data, self._at = bytes(data), 0
        else:
            self._tail += data

    def next_event(self) -> Command | None:
        """The next command; None: more bytes are needed, or the stream ended between two commands."""
        if self._failure is not None:
            raise self._failure
        try:
            return self._next()
        except PeerWireError as error:
            self._failure = error
            self._data, self._at, self._tail = b"", 0, bytearray()
            raise

    @property
    def unfinished(self) -> int:
        """Bytes that came of a frame whose rest has not."""
        return len(self._data) - self._at + len(self._tail) + self._skipping

    def send(self, command: Command) -> None:
        """Raises LocalWireError for what does not fit into a frame."""
        self._out.append(encode_command(command))

    def data_to_send(self) -> list[bytes]:
        out, self._out = self._out, []
        return out

    def _next(self) -> Command | None:
        data, at = self._data, self._at
        there = len(data) - at
        if there >= 8:
            size, word = _unpack_lengths(data, at)
            length, serialization = word & 0xFFFFFF, word >> 24
            if not 4 + length <= size <= self._max_frame or length > LONGEST_HEADER or serialization > 1:
                self._check(size, word)
                if size > self._max_frame:
                    return self._skip(size, word, there + len(self._tail))
            end = at + 4 + size
            if end <= len(data):
                # An idle connection holds nothing of what it was sent last.
                self._data, self._at = (b"", 0) if end == len(data) else (data, end)
                body = at + 8 + length
                code, language, version, opaque, flag, remark, fields = DECODERS[serialization](
                    data[at + 8 : body]
                )
                return Command(
                    code,
                    opaque,
                    flag,
                    fields,
                    data[body:end],
                    remark,
                    language,
                    version,
                    _SERIALIZATIONS[serialization],
                )
        if there or self._tail:
            return self._next_of_pieces(there)
        return None

    def _next_of_pieces(self, there: int) -> Command | None:
        """The next command, when the `there` bytes of `_data` are not the whole of it."""
        start = self._data[self._at : self._at + 8]
        start += bytes(self._tail[: 8 - len(start)])
        available = there + len(self._tail)
        if len(start) == 8:
            size, word = _unpack_lengths(start)
            self._check(size, word)
            if size > self._max_frame:
                return self._skip(size, word, available)
            if available >= size + 4:
                self._data, self._at = self._data[self._at :] + self._tail, 0
                self._tail = bytearray()
                return self._next()
        elif len(start) >= 4:
            # Who sends four bytes only learns that they are wrong as well.
            self._check(int.from_bytes(start[:4], "big", signed=True), 0)
        self._unfinished(available)
        return None

    def _skip(self, size: int, word: int, available: int) -> Command | None:
        """The command of a frame that is too large to be read, as soon as its header is there."""
        length = word & 0xFFFFFF
        if available < 8 + length:
            self._unfinished(available)
            return None
        there = self._data[self._at :] + self._tail
        self._data, self._at, self._tail = there[size + 4 :], 0, bytearray()
        self._skipping = max(size + 4 - available, 0)
        code, language, version, opaque, flag, remark, fields = DECODERS[word >> 24](there[8 : 8 + length])
        skipped = size - 4 - length
        command = Command(code, opaque, flag, fields, b"", remark, language, version, skipped=skipped)
        if not command.is_response:
            raise PeerWireError(f"a request has {size} bytes, 4 to {self._max_frame} are read")
        return command

    def _unfinished(self, available: int) -> None:
        if self._ended:
            raise PeerWireError(f"the stream ended inside a frame, after {available} bytes of it")

    def _check(self, size: int, word: int) -> None:
        """Refuse lengths that cannot be right, or are above the limits."""
        if not 4 <= size <= self._most:
            if size >> 16 == _TLS:
                raise TlsSpoken("what came is a handshake of TLS, which is not spoken here")
            raise PeerWireError(f"a frame claims {size} bytes, 4 to {self._max_frame} are read")
        length = word & 0xFFFFFF
        if length > size - 4 or length > LONGEST_HEADER or word >> 24 > 1:
            raise PeerWireError(f"a frame of {size} bytes claims a header of {length}, encoding {word >> 24}")
