"""The channel between supervisor and worker: short JSON messages, each with at most one descriptor.

It is a pair of sockets that preserve message boundaries; when one side is closed, the other reads the end.
Both sides are the same program, so messages are checked for their form only.
"""

from __future__ import annotations

import array
import errno
import json
import socket
from collections import deque
from collections.abc import Mapping
from typing import Any

_LONGEST = 1 << 16
_SPACE = socket.CMSG_SPACE(array.array("i").itemsize)
_NO_MEMORY = frozenset({errno.ENOBUFS, errno.ENOMEM})
REST_S = 0.05
"""After how long a `short` end is written to again."""


class Channel:
    """One end. Nothing here blocks: unwritten messages are queued, in order, and written by `flush`."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._kept: deque[bytes] = deque()
        self.short = False
        """The system had no memory for a message: that this end can be written to says nothing."""

    def __repr__(self) -> str:
        return f"<Channel {self.fileno()} kept {len(self._kept)}>"

    @staticmethod
    def pair() -> tuple[Channel, Channel]:
        first, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return Channel(first), Channel(other)

    @staticmethod
    def of(descriptor: int) -> Channel:
        """An end that was inherited by its number."""
        end = socket.socket(fileno=descriptor)
        end.set_inheritable(False)
        return Channel(end)

    def fileno(self) -> int:
        return self._end.fileno()

    def set_inheritable(self, inheritable: bool) -> None:
        self._end.set_inheritable(inheritable)

    def close(self) -> None:
        self._end.close()

    @property
    def kept(self) -> int:
        """Messages that wait to be written."""
        return len(self._kept)

    def kept_messages(self) -> list[dict[str, Any]]:
        """Messages that could not be written yet, in order. They stay here, too."""
        return [json.loads(text) for text in self._kept]

    def send(self, message: Mapping[str, Any]) -> None:
        """Keeps it when it cannot be written now. Raises OSError when the other side is gone."""
        self._kept.append(json.dumps(message).encode())
        self.flush()

    def flush(self) -> None:
        """Raises OSError when the other side is gone."""
        self.short = False
        while self._kept:
            try:
                self._end.send(self._kept[0])
            except BlockingIOError:
                return  # the other side has not read enough
            except OSError as error:
                if error.errno not in _NO_MEMORY:
                    raise
                self.short = True
                return
            self._kept.popleft()

    def offer(self, message: bytes, descriptor: int) -> bool:
        """Hand over a descriptor; False, and nothing done, when there is no room. Raises OSError."""
        if self._kept:
            return False
        try:
            socket.send_fds(self._end, [message], [descriptor])
        except BlockingIOError:
            return False
        return True

    def receive(self) -> tuple[dict[str, Any], int] | None:
        """A message and its descriptor, or -1; None when there is none now. Raises EOFError at the end."""
        try:
            data, beside = self._read()
        except BlockingIOError:
            return None
        if not data:
            raise EOFError
        descriptor = -1
        for level, kind, packed in beside:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors = array.array("i")
                descriptors.frombytes(packed[: len(packed) - len(packed) % descriptors.itemsize])
                descriptor = descriptors[0] if descriptors else -1
        message: dict[str, Any] = json.loads(data)
        return message, descriptor

    def _read(self) -> tuple[bytes, list[tuple[int, int, bytes]]]:
        """Raises BlockingIOError, EOFError."""
        for _ in range(2):
            try:
                data, beside, _, _ = self._end.recvmsg(_LONGEST, _SPACE, socket.MSG_CMSG_CLOEXEC)
            except ConnectionError:
                continue  # it went without reading all; told once, and then comes what it said before
            return data, beside
        raise EOFError
