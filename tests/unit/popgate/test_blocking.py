"""popgate.blocking: one connection, with the other end in the test's hands."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from popgate.blocking import BlockingConnection, Credentials, parse_endpoint
from popgate.errors import BadRequest, BrokerTimeout, BrokerUnavailable, Fault
from popgate.wire.frames.codes import ResponseCode
from popgate.wire.frames.remoting import Command, RemotingWire, encode_command
from popgate.wire.frames.signature import verify

LONG_S = 120.0
SHORT_S = 0.01
LARGE = 12 * 1024 * 1024


class Far:
    """The other end of a connection: it hears requests one by one and says what the test says."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(LONG_S)
        self.socket = sock
        self.wire = RemotingWire()

    def hear(self) -> Command:
        while (command := self.wire.next_event()) is None:
            self.wire.receive(self.socket.recv(65_536))
        return command

    def say(self, command: Command) -> None:
        self.socket.sendall(encode_command(command))


@pytest.fixture
def ends() -> Iterator[tuple[BlockingConnection, Far]]:
    near, far = socket.socketpair()
    with BlockingConnection(near, "far:1", timeout_s=LONG_S) as connection, far:
        yield connection, Far(far)


def test_answers_find_their_requests_in_any_order(ends: tuple[BlockingConnection, Far]) -> None:
    connection, far = ends
    numbers = [connection.start(code, {"n": str(code)}) for code in (11, 12, 13)]
    for request in reversed([far.hear() for _ in numbers]):
        far.say(request.answer(0, fields={"n": request.fields["n"]}, body=b"b%d" % request.code))

    answers = [connection.finish(number) for number in numbers]

    assert [answer.fields for answer in answers] == [{"n": "11"}, {"n": "12"}, {"n": "13"}]
    assert [answer.body for answer in answers] == [b"b11", b"b12", b"b13"]


def test_an_answer_in_pieces_is_one(ends: tuple[BlockingConnection, Far]) -> None:
    connection, far = ends
    number = connection.start(11, {})
    frame = encode_command(far.hear().answer(0, body=b"whole"))

    def drip() -> None:
        for byte in frame:
            far.socket.sendall(bytes((byte,)))

    dripping = threading.Thread(target=drip)
    dripping.start()
    try:
        assert connection.finish(number).body == b"whole"
    finally:
        dripping.join(LONG_S)


def test_more_than_the_socket_takes_is_written_while_an_answer_is_awaited(
    ends: tuple[BlockingConnection, Far],
) -> None:
    connection, far = ends
    number = connection.start(310, {}, bytes(LARGE))
    heard: list[int] = []

    def answer() -> None:
        request = far.hear()
        heard.append(len(request.body))
        far.say(request.answer(0))

    answering = threading.Thread(target=answer)
    answering.start()
    try:
        assert connection.finish(number).code == 0
    finally:
        answering.join(LONG_S)
    assert heard == [LARGE]


def test_who_does_not_answer_in_time_is_told_by_name_and_the_connection_stays(
    ends: tuple[BlockingConnection, Far],
) -> None:
    connection, far = ends
    late = connection.start(11, {})
    with pytest.raises(BrokerTimeout, match=r"far:1 did not answer within 0\.01 s") as timeout:
        connection.finish(late, timeout_s=SHORT_S)
    assert timeout.value.fault is Fault.BROKER_TIMEOUT

    next_one = connection.start(12, {})
    for request in (far.hear(), far.hear()):
        far.say(request.answer(0, remark=str(request.code)))

    assert connection.finish(next_one).remark == "12"
    assert connection.is_open
    with pytest.raises(BadRequest, match=f"no request {late} is under way"):
        connection.finish(late)


class Chatty:
    """A socket by which something that is no answer comes whenever it is read."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._told = encode_command(Command(40, 1, 2, {"consumerGroup": "readers"}))
        self._until = time.monotonic() + LONG_S / 10

    def recv(self, _size: int) -> bytes:
        assert time.monotonic() < self._until, "nobody looks at the time"
        return self._told

    def send(self, data: memoryview) -> int:
        return len(data)

    def close(self) -> None:
        self._sock.close()


def test_who_says_everything_but_the_answer_does_not_answer_in_time(
    ends: tuple[BlockingConnection, Far], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, _ = ends
    monkeypatch.setattr(connection, "_socket", Chatty(connection._socket))
    number = connection.start(11, {})
    with pytest.raises(BrokerTimeout, match="far:1 did not answer within"):
        connection.finish(number, timeout_s=SHORT_S)
    assert connection.is_silent


def test_what_is_asked_of_a_client_is_passed_over(ends: tuple[BlockingConnection, Far]) -> None:
    connection, far = ends
    number = connection.start(11, {})
    request = far.hear()
    far.say(Command(40, request.opaque))
    far.say(Command(0, request.opaque + 7, flag=1))
    far.say(request.answer(0, remark="mine"))

    assert connection.finish(number).remark == "mine"


def test_a_connection_that_ends_tells_all_who_wait(ends: tuple[BlockingConnection, Far]) -> None:
    connection, far = ends
    numbers = [connection.start(11, {}), connection.start(12, {})]
    far.say(far.hear().answer(0, remark="before the end"))
    far.socket.shutdown(socket.SHUT_WR)

    assert connection.finish(numbers[0]).remark == "before the end"
    with pytest.raises(BrokerUnavailable, match="the connection to far:1 was lost"):
        connection.finish(numbers[1])
    assert not connection.is_open
    with pytest.raises(BrokerUnavailable):
        connection.start(11, {})


@pytest.mark.parametrize(
    "nonsense", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, encode_command(Command(1))[:9] + b"\0" * 400]
)
def test_nonsense_ends_the_connection(ends: tuple[BlockingConnection, Far], nonsense: bytes) -> None:
    connection, far = ends
    number = connection.start(11, {})
    far.socket.sendall(nonsense)

    with pytest.raises(BrokerUnavailable, match="nonsense"):
        connection.finish(number)


def test_a_gateway_that_ends_sends_its_clients_away(ends: tuple[BlockingConnection, Far]) -> None:
    connection, far = ends
    number = connection.start(11, {})
    far.say(far.hear().answer(ResponseCode.GO_AWAY, remark="the gateway shuts down"))

    with pytest.raises(BrokerUnavailable, match="GO_AWAY") as gone:
        connection.finish(number)
    assert gone.value.retryable
    assert not connection.is_open


def test_requests_are_signed_with_credentials() -> None:
    near, far = socket.socketpair()
    credentials = Credentials("access", "secret", "token")
    with BlockingConnection(near, "far:1", timeout_s=LONG_S, credentials=credentials) as connection, far:
        connection.start(11, {"topic": "orders"}, b"body")
        request = Far(far).hear()

    assert request.fields["AccessKey"] == "access"
    assert request.fields["SecurityToken"] == "token"
    assert verify(request.fields, request.body, "secret", request.version)
    assert "secret" not in repr(credentials)
    assert "token" not in repr(credentials)


def test_a_closed_connection_says_so() -> None:
    near, far = socket.socketpair()
    connection = BlockingConnection(near, "far:1", timeout_s=LONG_S)
    connection.close()
    connection.close()
    far.close()

    with pytest.raises(BrokerUnavailable, match="was closed"):
        connection.call(11, {})
    assert repr(connection) == "<BlockingConnection far:1 over, in flight 0>"


def test_where_nobody_listens_no_connection_is_made() -> None:
    with socket.socket() as bound:
        # Bound and not listening: nobody else gets the port meanwhile.
        bound.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(BrokerUnavailable, match=f"no connection to {endpoint}"):
            BlockingConnection.connect(endpoint, timeout_s=LONG_S)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [("a:1", ("a", 1)), (" 127.0.0.1:8080 ", ("127.0.0.1", 8080)), ("[::1]:65535", ("::1", 65_535))],
)
def test_an_endpoint_is_host_and_port(text: str, parsed: tuple[str, int]) -> None:
    assert parse_endpoint(text) == parsed


@pytest.mark.parametrize(
    "text", ["", "a", ":1", "a:", "a:0", "a:65536", "a:1x", "a:²", "::1:80", "a:-1", "[]:80"]
)
def test_what_is_no_endpoint_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="is no host:port") as refused:
        parse_endpoint(text)
    assert refused.value.fault is Fault.ILLEGAL_ACCESS_POINT


def test_a_connection_is_quiet_when_it_is_open_and_owed_nothing(ends: tuple[BlockingConnection, Far]) -> None:
    connection, far = ends
    assert connection.is_quiet()
    number = connection.start(11, {})
    assert not connection.is_quiet()
    far.say(far.hear().answer(0))
    connection.finish(number)
    assert connection.is_quiet()


def test_a_connection_that_the_other_side_closed_is_not_quiet(ends: tuple[BlockingConnection, Far]) -> None:
    connection, far = ends
    far.socket.shutdown(socket.SHUT_RDWR)
    assert not connection.is_quiet()
    assert not connection.is_open
