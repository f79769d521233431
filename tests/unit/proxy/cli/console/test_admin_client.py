"""proxy.cli.console.admin_client: the connection of a command, and what becomes of it."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from proxy.cli.console.admin_client import Gateway
from proxy.cli.console.failure import Ended, Failure
from tests.support.waiting import PATIENCE_S

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
ANSWER = HEAD + b"Content-Length: 2\r\n\r\n{}"


class AdminPort:
    """Has these answers for the requests of each connection, and closes it behind them."""

    def __init__(self, *answers: list[bytes]) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._answers = answers
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self.requests: list[bytes] = []
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        with self._server, contextlib.suppress(OSError):
            self._server.settimeout(PATIENCE_S)
            for answers in self._answers:
                connection, _ = self._server.accept()
                with connection:
                    connection.settimeout(PATIENCE_S)
                    for answer in answers:
                        self.requests.append(_request(connection))
                        connection.sendall(answer)


def _request(connection: socket.socket) -> bytes:
    """The first line of one without a body."""
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        more = connection.recv(4096)
        if not more:
            raise ConnectionError("no request has come")
        data += more
    return data.partition(b"\r\n")[0]


@pytest.fixture
def port_with() -> Iterator[Callable[..., AdminPort]]:
    made: list[AdminPort] = []

    def make(*answers: list[bytes]) -> AdminPort:
        made.append(AdminPort(*answers))
        return made[-1]

    yield make
    for port in made:
        port.thread.join(PATIENCE_S)
        assert not port.thread.is_alive()


def test_a_kept_connection_that_the_gateway_has_closed_is_replaced(
    port_with: Callable[..., AdminPort],
) -> None:
    """It closes those that are idle for long, as while `send --lines` waits for the next line."""
    port = port_with([ANSWER], [ANSWER, ANSWER])
    with Gateway(port.url) as gateway:
        gateway.get("first")
        first = gateway._connection.sock
        assert select.select([first], [], [], PATIENCE_S)[0]  # its end has come
        gateway.get("second")
        second = gateway._connection.sock
        gateway.get("third")
        assert gateway._connection.sock is second is not first
    names = ("first", "second", "third")
    assert port.requests == [f"GET /api/{name} HTTP/1.1".encode() for name in names]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        HEAD + b"Content-Length: 20\r\n\r\n",
        HEAD + b'Content-Length: 20\r\n\r\n{"version": "5',
        HEAD + b'Transfer-Encoding: chunked\r\n\r\n14\r\n{"version": "5',
    ],
    ids=["nothing", "a head", "a part", "a part of a chunk"],
)
def test_a_gateway_that_ends_while_it_is_asked_is_gone(
    port_with: Callable[..., AdminPort], answer: bytes
) -> None:
    port = port_with([answer])
    with Gateway(port.url) as gateway, pytest.raises(Failure) as failed:
        gateway.get("version")
    assert failed.value.code is Ended.UNREACHABLE
    assert failed.value.sentence.startswith(f"no gateway answers at {port.url}: ")
