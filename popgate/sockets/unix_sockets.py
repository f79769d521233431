"""Unix domain sockets: bound even if a killed process left its file, and removed at the end."""

from __future__ import annotations

import contextlib
import os
import socket
import stat

LONGEST_PATH = 100
"""Bytes: the systems' limits for the path of a unix socket begin at 104."""


def parse_path(rest: str) -> str:
    """What follows the colon of a URL, as a path. Raises ValueError with a sentence for the operator."""
    path = rest[2:] if rest.startswith("//") else rest
    if not path or "\0" in path or len(path.encode("utf-8", "surrogateescape")) > LONGEST_PATH:
        raise ValueError(f"names no socket: a path of 1 to {LONGEST_PATH} bytes follows the colon")
    return path


def make_room(path: str) -> None:
    """Remove a stale socket file. Raises OSError if a process listens at it."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.stat(path).st_mode):
            if _answers(path):
                raise OSError(f"somebody listens at unix:{path} already")
            os.unlink(path)


class UnixSocket:
    """A socket that is bound to a path. `mode`: who may connect, as of a file."""

    def __init__(self, path: str, mode: int = 0o600) -> None:
        """Raises OSError with a sentence for the operator."""
        self.path = path
        make_room(path)
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            before = os.umask(0o177)
            try:
                link.bind(path)
            finally:
                os.umask(before)
            os.chmod(path, mode)
            self._identity = _identity(path)
        except OSError as error:
            link.close()
            raise OSError(f"cannot listen at unix:{path}: {error.strerror or error}") from error
        self.link = link

    def remove(self) -> None:
        """Remove the file, unless another process has taken the path since."""
        remove(self.path, self._identity)


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def identity_of(path: str) -> tuple[int, int] | None:
    """The identity of the file at a path; None: there is none."""
    try:
        return _identity(path)
    except OSError:
        return None


def remove(path: str, identity: tuple[int, int] | None) -> None:
    """Remove the file at a path if it is that one."""
    with contextlib.suppress(OSError):
        if identity is not None and identity_of(path) == identity:
            os.unlink(path)


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except BlockingIOError:
            return True  # it listens, and has not accepted for so long that no more may wait
        except OSError:
            return False
        return True
