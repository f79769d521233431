"""popgate.sockets.unix_sockets: whose file it is."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from popgate.sockets.unix_sockets import UnixSocket, identity_of, parse_path, remove


@pytest.fixture
def path(socket_folder: Path) -> str:
    return str(socket_folder / "a.sock")


@pytest.fixture
def bound(path: str) -> Iterator[UnixSocket]:
    bound = UnixSocket(path)
    yield bound
    bound.link.close()


def test_only_this_user_may_connect_unless_it_is_said(bound: UnixSocket, socket_folder: Path) -> None:
    assert stat.S_IMODE(os.stat(bound.path).st_mode) == 0o600
    other = UnixSocket(str(socket_folder / "b.sock"), 0o660)
    assert stat.S_IMODE(os.stat(other.path).st_mode) == 0o660
    other.link.close()


def test_who_is_gone_is_replaced(bound: UnixSocket, path: str) -> None:
    bound.link.close()
    again = UnixSocket(path)
    again.link.listen()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
    again.link.close()


def test_who_listens_is_not(bound: UnixSocket, path: str) -> None:
    bound.link.listen()
    with pytest.raises(OSError, match=f"somebody listens at unix:{path} already"):
        UnixSocket(path)
    assert os.path.exists(path)


def test_who_listens_and_accepts_nobody_just_now_is_not(bound: UnixSocket, path: str) -> None:
    """Its backlog is full: it is busy, or hangs."""
    bound.link.listen(0)
    with ExitStack() as clients:
        refused = 0
        while not refused:
            client = clients.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            refused = client.connect_ex(path)
        assert refused == errno.EAGAIN
        with pytest.raises(OSError, match=f"somebody listens at unix:{path} already"):
            UnixSocket(path)
        assert os.path.exists(path)


def test_what_is_no_socket_stays(path: str) -> None:
    Path(path).write_text("precious")
    with pytest.raises(OSError, match=f"cannot listen at unix:{path}"):
        UnixSocket(path)
    assert Path(path).read_text() == "precious"


def test_a_folder_that_is_not_there(socket_folder: Path) -> None:
    with pytest.raises(OSError, match=r"cannot listen at unix:.*No such file"):
        UnixSocket(str(socket_folder / "nowhere" / "a.sock"))


def test_only_ones_own_is_removed(bound: UnixSocket, path: str) -> None:
    mine = identity_of(path)
    # Both are there at once, since the number of a file that is gone is given to the next one.
    other = UnixSocket(f"{path}.new")
    os.replace(other.path, path)
    bound.remove()
    assert os.path.exists(path)
    remove(path, mine)
    remove(path, None)
    assert os.path.exists(path)
    remove(path, identity_of(path))
    bound.remove()
    assert not os.path.exists(path)
    other.link.close()


@pytest.mark.parametrize(("rest", "path"), [("/a", "/a"), ("///a", "/a"), ("a/b", "a/b"), ("//a", "a")])
def test_paths(rest: str, path: str) -> None:
    assert parse_path(rest) == path


@pytest.mark.parametrize("rest", ["", "//", "/a\0b", "/" + "a" * 100, "/" + "ü" * 50])
def test_what_is_no_path(rest: str) -> None:
    with pytest.raises(ValueError, match="names no socket"):
        parse_path(rest)
