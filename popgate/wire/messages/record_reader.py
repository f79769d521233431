"""Reads records from a stream of bytes that may be split anywhere."""

from __future__ import annotations

from struct import Struct

from popgate.errors import LocalWireError, PeerWireError
from popgate.wire.messages.buffer import Buffer
from popgate.wire.messages.records import MAGIC_V1, MAGIC_V2, SMALLEST_RECORD, Record, decode_record

LARGEST_RECORD = 64 * 1024 * 1024
"""The default limit for the bytes of one record."""

_unpack_start = Struct(">II").unpack_from


class RecordReader:
    """Reads records from a stream that is split anywhere; a `Wire` of `Record` events.

    A record above `largest` bytes is refused as soon as its length is known. After an error
    the machine is dead: the same error is raised again.
    """

    def __init__(self, *, largest: int = LARGEST_RECORD, verify: bool = False) -> None:
        self._buffer = Buffer()
        self._largest = largest
        self._verify = verify
        self._ended = False
        self._failure: PeerWireError | None = None

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        """Raises LocalWireError for bytes after the end."""
        if self._ended:
            raise LocalWireError("bytes came after the end of the stream")
        if len(data):
            self._buffer.append(data)
        else:
            self._ended = True

    def next_event(self) -> Record | None:
        """The next record; None: more bytes are needed, or the stream ended between two records."""
        if self._failure is not None:
            raise self._failure
        try:
            return self._next()
        except PeerWireError as error:
            self._failure = error
            self._buffer.clear()
            raise

    def data_to_send(self) -> list[bytes]:
        """Nothing: records are only read."""
        return []

    def _next(self) -> Record | None:
        buffer = self._buffer
        if len(buffer) >= 8:
            size, magic = _unpack_start(buffer.peek(8))
            if not SMALLEST_RECORD <= size <= self._largest:
                raise PeerWireError(
                    f"a record claims {size} bytes, {SMALLEST_RECORD} to {self._largest} are read"
                )
            if magic not in (MAGIC_V1, MAGIC_V2):
                raise PeerWireError(f"a record has the magic {magic:08x}")
            if len(buffer) >= size:
                return decode_record(buffer.take(size), verify=self._verify)
        if self._ended and len(buffer):
            raise PeerWireError(f"the stream ended inside a record, after {len(buffer)} bytes of it")
        return None
