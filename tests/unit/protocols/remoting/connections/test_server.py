"""protocols.remoting.connections: bytes become requests, these responses, and drains lose nothing."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import time
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from popgate.clock import SystemClock
from popgate.context import Context, Principal
from popgate.errors import BrokerUnavailable, TopicNotFound, Unauthenticated
from popgate.kinds import Credentials
from popgate.testing.papers import Papers
from popgate.testing.remoting import ANSWER_S, RemotingClient
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.contract import TLS_FIRST
from popgate.wire.frames.headers import Serialization
from popgate.wire.frames.remoting import V5_3_1, Command, encode_command
from popgate.wire.frames.signature import sign, verify
from processors.budgets import Budgets
from protocols.observers import NullConnections
from protocols.remoting.connections import server as serving
from protocols.remoting.connections.connection import RemotingConnection
from protocols.remoting.connections.server import RemotingServer
from protocols.remoting.connections.write_queue import MOST_TOLD
from protocols.remoting.door import Door
from protocols.remoting.peer import MOST_ASKED
from protocols.remoting.requests import DoorContext, Handler, Request
from protocols.tls import Certificate
from tests.support.waiting import PATIENCE_S, until

ECHO, WAIT, FAIL, BUG, BIG = (
    int(RequestCode.GET_MAX_OFFSET),
    int(RequestCode.PULL_MESSAGE),
    int(RequestCode.GET_MIN_OFFSET),
    int(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP),
    int(RequestCode.QUERY_CONSUMER_OFFSET),
)
SEND = int(RequestCode.SEND_MESSAGE_V2)
OLD = V5_3_1


class Echo:
    """A room: echoes, waits, fails."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.waiting: list[asyncio.Future[None]] = []
        self.drained = False
        self.unwritten = 0

    def handlers(self) -> Mapping[int, Handler]:
        return {
            ECHO: self.echo,
            WAIT: self.wait,
            FAIL: self.fail,
            BUG: self.bug,
            BIG: self.big,
            SEND: self.echo,
        }

    def drain(self) -> None:
        self.drained = True
        self.go_on()

    def go_on(self) -> None:
        for one in self.waiting:
            if not one.done():
                one.set_result(None)
        self.waiting.clear()

    async def echo(self, request: Request) -> Command:
        self.requests.append(request)
        return request.answer(request.fields, request.command.body)

    async def wait(self, request: Request) -> Command:
        self.requests.append(request)

        def unwritten() -> None:
            self.unwritten += 1

        request.unwritten = unwritten
        if not self.drained:
            one = asyncio.get_running_loop().create_future()
            self.waiting.append(one)
            await one
        return request.answer(code=ResponseCode.PULL_NOT_FOUND)

    async def fail(self, request: Request) -> Command:
        raise TopicNotFound("nowhere")

    async def bug(self, request: Request) -> Command:
        raise RuntimeError("a bug")

    async def big(self, request: Request) -> Command:
        context = request.context
        assert context.allowance is not None
        size = int(request.fields["size"])
        context.allowance.add(size)
        return request.answer(body=bytes(size))


class Calls:
    def __init__(self) -> None:
        self.ended: Counter[tuple[str, str]] = Counter()
        self.about: list[tuple[str, str]] = []

    def answered(self, method: str, code: str, seconds: float) -> None:
        self.ended[method, code] += 1

    def refused(self, topic: str, group: str) -> None:
        self.about.append((topic, group))


class Connections(NullConnections):
    def __init__(self) -> None:
        self.open = 0
        self.violations: Counter[str] = Counter()
        self.away = 0

    def opened(self) -> None:
        self.open += 1

    def closed(self) -> None:
        self.open -= 1

    def violated(self, kind: str, count: int) -> None:
        self.violations[kind] += count

    def turned_away(self) -> None:
        self.away += 1


class House:
    """A server, its room, and the clients of a test."""

    def __init__(self, **options: Any) -> None:
        self.room = Echo()
        self.calls = Calls()
        self.seen = Connections()
        self.budgets = Budgets(process_bytes=1 << 26, group_bytes=1 << 26, connection_bytes=1 << 26)
        lent = DoorContext(None, SystemClock(), lambda context: context.local)  # type: ignore[arg-type]
        self.door = Door(lent, [self.room])
        self.door.calls = self.calls
        self.server = RemotingServer(
            self.door, self.budgets, "127.0.0.1", 0, **{"observer": self.seen, **options}
        )
        self.clients: list[RemotingClient] = []

    async def client(self, **how: Any) -> RemotingClient:
        client = await RemotingClient.connect("127.0.0.1", self.server.port, **how)
        self.clients.append(client)
        return client

    async def connection(self, client: RemotingClient) -> RemotingConnection:
        """The server's end."""
        assert client.transport is not None
        name = client.transport.get_extra_info("sockname")
        found: RemotingConnection = await until(
            lambda: next(
                (one for one in self.server.connections if one.peer.address == f"{name[0]}:{name[1]}"), None
            )
        )
        return found

    async def close(self) -> None:
        await self.server.stop()
        for client in self.clients:
            await client.close()


Make = Callable[..., Any]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    houses = []

    async def made(**options: Any) -> House:
        house = House(**options)
        await house.server.start()
        houses.append(house)
        return house

    yield made
    for house in houses:
        await house.close()
        assert not len(house.budgets)
        assert house.seen.open == 0
        assert house.server.admission.count == 0


@pytest.fixture
async def house(make: Make) -> House:
    found: House = await make()
    return found


# -- requests and answers -----------------------------------------------------------------------------


@pytest.mark.parametrize("serialization", list(Serialization))
async def test_an_answer_has_the_number_and_the_encoding_of_its_request(
    house: House, serialization: Serialization
) -> None:
    client = await house.client(serialization=serialization)

    answer = await client.call(ECHO, {"topic": "t", "a": "ä"}, b"body")

    assert (answer.code, answer.body) == (ResponseCode.SUCCESS, b"body")
    assert answer.fields == {"topic": "t", "a": "ä"}
    assert answer.serialization is serialization


async def test_the_context_says_who_asks(house: House) -> None:
    client = await house.client(version=401, language="GO")
    assert client.transport is not None

    await client.call(ECHO)

    context, request = house.room.requests[0].context, house.room.requests[0]
    host, port = client.transport.get_extra_info("sockname")
    assert (context.door, context.language, context.client_version) == ("remoting", "GO", "401")
    assert (context.peer, context.local) == (f"{host}:{port}", f"127.0.0.1:{house.server.port}")
    assert context.deadline is None
    assert (request.peer.version, request.peer.language, request.peer.address) == (401, "GO", context.peer)


async def test_the_client_id_is_what_was_last_told(house: House) -> None:
    client = await house.client()
    await client.call(ECHO)
    house.room.requests[0].peer.client_id = "me@1"

    await client.call(ECHO)

    assert [one.context.client_id for one in house.room.requests] == ["", "me@1"]


async def test_bytes_may_come_one_by_one(house: House) -> None:
    client = await house.client()
    requests = [client.request(ECHO, {"n": str(n)}, b"x" * n) for n in range(3)]
    answers = [client.awaited(one) for one in requests]

    for byte in b"".join(map(encode_command, requests)):
        client.write(bytes((byte,)))
        await asyncio.sleep(0)

    assert [(await one).fields for one in answers] == [{"n": str(n)} for n in range(3)]


async def test_answers_may_come_in_another_order(house: House) -> None:
    client = await house.client()
    waits = client.start(WAIT)

    assert (await client.call(ECHO)).code == ResponseCode.SUCCESS
    assert not waits.done()
    await until(lambda: house.room.waiting)
    house.room.go_on()

    assert (await waits).code == ResponseCode.PULL_NOT_FOUND


async def test_a_large_request_comes_as_a_whole_and_counts_until_it_is_answered(house: House) -> None:
    client = await house.client()
    body = bytes(4 << 20)

    answer = await client.call(SEND, {"b": "t"}, body)

    assert answer.body == body
    assert answer.fields == {"b": "t", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    connection = await house.connection(client)
    assert (connection.unfinished, house.budgets.used) == (0, 0)


async def test_what_is_above_the_budgets_is_told_to_be_busy(make: Make) -> None:
    house = await make()
    house.budgets.connection_bytes = 1000
    client = await house.client()
    first, second = client.request(BIG, {"size": "900"}), client.request(SEND, {}, bytes(200))
    answers = [client.awaited(first), client.awaited(second)]

    # In one piece: the answer to the first is not written yet when the second is looked at.
    client.write(encode_command(first) + encode_command(second))

    assert (await answers[0]).code == ResponseCode.SUCCESS
    busy = await answers[1]
    assert busy.code == ResponseCode.SYSTEM_BUSY
    assert "bytes under way" in busy.remark
    assert house.calls.ended["SEND_MESSAGE_V2", "SYSTEM_BUSY"] == 1


@pytest.mark.parametrize(
    ("fields", "remark"), [({"a" * 70_000: ""}, ""), ({}, "a" * 70_000), ({"exp": "a" * 8_000}, "")]
)
async def test_a_long_poll_counts_with_all_of_its_header_but_a_little(
    house: House, fields: dict[str, str], remark: str
) -> None:
    """A connection may have thousands of them, and they wait for long."""
    client = await house.client()
    request = client.request(WAIT, fields)
    request.remark = remark
    answer = client.awaited(request)
    client.write(encode_command(request))
    await until(lambda: house.room.waiting)
    assert house.budgets.used >= 8_000
    house.room.go_on()
    assert (await answer).code == ResponseCode.PULL_NOT_FOUND
    assert house.budgets.used == 0


async def test_nobody_answers_a_one_way_request(house: House) -> None:
    client = await house.client()

    client.tell(ECHO)
    client.tell(FAIL)
    client.tell(77_777)
    await client.call(ECHO)

    assert len(client.heard) == 1
    assert len(house.room.requests) == 2


async def test_an_unknown_request_is_told_to_be_one(house: House) -> None:
    client = await house.client()

    answer = await client.call(77_777)

    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark == " request type 77777 not supported"
    assert house.calls.ended["UNKNOWN", "REQUEST_CODE_NOT_SUPPORTED"] == 1


async def test_failures_are_answers(house: House, caplog: pytest.LogCaptureFixture) -> None:
    client = await house.client()

    failed = await client.call(FAIL, {"topic": "nowhere", "consumerGroup": "g"})
    broken = await client.call(BUG)

    assert failed.code == ResponseCode.TOPIC_NOT_EXIST
    assert "nowhere" in failed.remark
    assert (broken.code, "bug" in broken.remark) == (ResponseCode.SYSTEM_ERROR, False)
    assert "a bug" in caplog.text
    assert house.calls.ended["GET_MIN_OFFSET", "TOPIC_NOT_EXIST"] == 1
    assert house.calls.about[0] == ("nowhere", "g")


async def test_an_answer_that_fits_into_no_frame_is_told_to_be_too_large(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    client = await house.client()

    answer = await client.call(BIG, {"size": str(16 << 20)})

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "cannot be written" in caplog.text


# -- what a peer may do -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        (17 << 20).to_bytes(4, "big"),
        (-5).to_bytes(4, "big", signed=True),
        bytes.fromhex("00000010 02000004") + bytes(12),
        bytes.fromhex("00000010 00ffffff") + bytes(12),
        bytes.fromhex("0000000c 00000008") + b"not json",
    ],
)
async def test_nonsense_ends_the_connection(house: House, said: bytes) -> None:
    client = await house.client()

    client.write(said)

    await client.until_over()
    assert house.seen.violations == {"bad_frame": 1}


async def test_tls_where_it_is_off_is_told_once_for_each_address(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        client = await house.client()
        client.write(TLS_FIRST + b"\x01\x02\x00" + bytes(32))
        await client.until_over()
    assert house.seen.violations == {"tls": 2}
    assert caplog.text.count("127.0.0.1 speaks TLS at 127.0.0.1:") == 1
    assert "set tls.mode to optional or required" in caplog.text


async def test_who_asks_too_much_at_once_is_not_read_for_a_while(make: Make) -> None:
    house = await make(max_requests=1)
    client = await house.client()
    # Not a code that may wait, so that it counts: it is served until the room lets it go.
    house.door._handlers[FAIL] = house.room.wait
    slow = client.start(FAIL)
    await until(lambda: house.room.waiting)
    await until(lambda: not (next(iter(house.server.connections)))._reading)

    later = client.start(ECHO)
    house.room.go_on()

    assert (await slow).code == ResponseCode.PULL_NOT_FOUND
    assert (await later).code == ResponseCode.SUCCESS


async def test_too_many_long_polls_are_told_to_be(make: Make) -> None:
    house = await make(max_requests=1)
    client = await house.client()
    polls = [client.start(WAIT) for _ in range(house.server.max_waiting)]
    await until(lambda: len(house.room.waiting) == len(polls))

    answer = await client.call(WAIT)

    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert answer.remark == "4 requests of this connection wait, which is the limit"
    assert (await client.call(ECHO)).code == ResponseCode.SUCCESS
    assert house.calls.ended["PULL_MESSAGE", "SYSTEM_BUSY"] == 1


async def test_who_reads_nothing_is_not_read_either_and_holds_what_it_was_answered(
    house: House,
) -> None:
    client = await house.client()
    assert client.transport is not None
    client.transport.pause_reading()
    size = 4 << 20
    answers = [client.start(BIG, {"size": str(size)}) for _ in range(4)]
    connection = await house.connection(client)

    await until(lambda: connection.paused and not connection._reading)
    held = house.budgets.used

    assert held >= size
    client.transport.resume_reading()
    assert [len((await one).body) for one in answers] == [size] * 4
    await until(lambda: connection._reading)
    assert house.budgets.used == 0


async def test_who_never_reads_is_cut_off(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "STUCK_S", 0.0)
    house = await make()
    client = await house.client()
    assert client.transport is not None
    client.transport.pause_reading()

    for _ in range(4):
        client.start(BIG, {"size": str(4 << 20)}).add_done_callback(lambda one: one.exception())

    await until(lambda: house.seen.violations["answers_unread"] == 1)
    await until(lambda: not house.server.connections)


async def test_a_request_that_does_not_go_on_is_cut_off(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "STUCK_S", 0.0)
    house = await make()
    client = await house.client()

    client.write(encode_command(client.request(ECHO, {}, bytes(100)))[:-1])

    await client.until_over()
    assert house.seen.violations["slow_requests"] == 1


async def test_who_holds_most_of_unfinished_requests_loses_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MOST_UNFINISHED", 3000)
    house = await make()
    small, large = await house.client(), await house.client()
    request = small.request(ECHO, {}, bytes(1000))
    answer = small.awaited(request)
    data = encode_command(request)
    small.write(data[:-1])
    connection = await house.connection(small)
    await until(lambda: connection.unfinished)

    large.write(encode_command(large.request(ECHO, {}, bytes(5000)))[:-1])

    await large.until_over()
    assert house.seen.violations == {"holding": 1}
    small.write(data[-1:])
    assert (await answer).body == bytes(1000)


async def test_an_idle_connection_is_closed_and_one_that_waits_is_not(make: Make) -> None:
    house = await make()
    waiting, idle = await house.client(), await house.client()
    poll = waiting.start(WAIT)
    await until(lambda: house.room.waiting)
    house.server._idle_s = 0.0

    await idle.until_over()

    assert not waiting.is_over
    house.room.go_on()
    assert (await poll).code == ResponseCode.PULL_NOT_FOUND
    await waiting.until_over()
    assert not house.seen.violations


async def test_more_connections_than_may_be_are_closed(make: Make) -> None:
    house = await make(max_connections=1)
    first = await house.client()
    await house.connection(first)

    second = await house.client()

    await second.until_over()
    assert house.seen.away == 1
    assert (await first.call(ECHO)).code == ResponseCode.SUCCESS


async def test_what_is_said_before_the_end_is_done(house: House) -> None:
    """As a producer does that says one-way how its transaction ends, and is shut down."""
    house.door._handlers[FAIL] = house.room.wait
    client = await house.client()
    client.tell(FAIL)
    await until(lambda: house.room.waiting)

    await client.close()
    await until(lambda: not house.server.connections)
    house.room.go_on()

    await until(lambda: house.calls.ended["GET_MIN_OFFSET", "PULL_NOT_FOUND"])
    assert not house.server.under_way.requests


async def test_the_end_of_a_connection_cancels_its_long_polls(house: House) -> None:
    client = await house.client()
    client.start(WAIT).add_done_callback(lambda one: one.exception())
    await until(lambda: house.room.waiting)

    await client.close()

    await until(lambda: house.calls.ended["PULL_MESSAGE", "CLIENT_GONE"])
    assert house.room.unwritten == 1
    assert not house.server.under_way.requests


async def test_who_left_is_gone_without_the_collector(house: House) -> None:
    client = await house.client()
    poll = client.start(WAIT)
    poll.add_done_callback(lambda one: one.exception())
    await client.call(ECHO)
    await client.call(FAIL)
    connection = weakref.ref(await house.connection(client))
    house.room.requests.clear()
    gc.disable()
    try:
        await client.close()
        await until(lambda: not house.server.connections and not house.server.under_way.requests)
        house.room.waiting.clear()
        await until(lambda: connection() is None)
    finally:
        gc.enable()


# -- what we ask --------------------------------------------------------------------------------------


async def test_the_peer_is_asked_and_told(house: House) -> None:
    client = await house.client()
    peer = (await house.connection(client)).peer

    assert peer.tell(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"})
    answer = peer.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, {"clientId": "c"}, b"?")

    told, asked = await client.next_asked(), await client.next_asked()
    assert (told.code, told.is_oneway, told.fields) == (40, True, {"consumerGroup": "g"})
    assert (asked.code, asked.is_oneway, asked.body) == (307, False, b"?")
    assert told.opaque != asked.opaque
    client.write(encode_command(asked.answer(ResponseCode.SUCCESS, body=b"!")))
    assert answer is not None
    assert (await answer).body == b"!"


async def test_an_answer_to_nothing_is_passed_over(house: House) -> None:
    client = await house.client()

    client.write(encode_command(Command(0, 4711, 1)))

    assert (await client.call(ECHO)).code == ResponseCode.SUCCESS


async def test_questions_fail_when_the_connection_ends(house: House) -> None:
    client = await house.client()
    peer = (await house.connection(client)).peer
    gone: list[int] = []
    peer.on_gone(lambda: gone.append(1))
    answer = peer.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, {})
    assert answer is not None

    await client.close()

    with pytest.raises(BrokerUnavailable):
        await answer
    assert gone == [1]
    assert not peer.alive
    assert peer.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, {}) is None
    assert not peer.tell(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {})
    peer.on_gone(lambda: gone.append(2))
    assert gone == [1, 2]


async def test_questions_are_bounded(house: House) -> None:
    client = await house.client()
    peer = (await house.connection(client)).peer

    asked = [peer.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, {}) for _ in range(MOST_ASKED + 1)]

    assert asked[-1] is None
    assert None not in asked[:-1]
    for one in asked[:-1]:
        assert one is not None
        one.cancel()
    await until(lambda: peer.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, {}))


async def test_who_reads_nothing_is_told_no_more(house: House) -> None:
    client = await house.client()
    assert client.transport is not None
    client.transport.pause_reading()
    peer = (await house.connection(client)).peer
    body = bytes(MOST_TOLD // 4)

    taken = 0
    deadline = time.monotonic() + ANSWER_S
    while peer.tell(RequestCode.CHECK_TRANSACTION_STATE, {}, body):
        taken += 1
        await asyncio.sleep(0)
        assert time.monotonic() < deadline

    client.transport.resume_reading()
    for _ in range(taken):
        assert len((await client.next_asked()).body) == len(body)
    await until(lambda: peer.tell(RequestCode.CHECK_TRANSACTION_STATE, {}, body))


async def test_a_peer_is_asked_in_its_own_encoding_as_far_as_that_carries(house: House) -> None:
    client = await house.client(serialization=Serialization.ROCKETMQ)
    await client.call(ECHO)
    peer = (await house.connection(client)).peer

    peer.tell(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {})
    peer.tell(RequestCode.NOTIFY_UNSUBSCRIBE_LITE, {})

    first, second = await client.next_asked(), await client.next_asked()
    assert first.serialization is Serialization.ROCKETMQ
    assert (second.serialization, second.code) == (Serialization.JSON, 200073)


# -- who asks -----------------------------------------------------------------------------------------


class Gatekeeper:
    def authenticate(self, context: Context, credentials: Credentials, now: float) -> Principal:
        if not credentials.access_key:
            raise Unauthenticated("say who you are")
        fields = {"topic": "t", "AccessKey": "key", "SecurityToken": "token"}
        signed = b"".join(fields[name].encode() for name in sorted(fields)) + b"body"
        if credentials.signed != signed or credentials.token != "token":
            raise Unauthenticated("wrong")
        return Principal(credentials.access_key)


async def test_who_asks_is_found_out_by_the_signature(house: House) -> None:
    house.door.authenticator = Gatekeeper()
    client = await house.client()
    fields = {"topic": "t"}
    fields |= sign(fields, b"body", "key", "secret", "token")
    assert verify(fields, b"body", "secret", client.version)

    assert (await client.call(ECHO, fields, b"body")).code == ResponseCode.SUCCESS
    assert house.room.requests[0].context.principal == Principal("key")
    for wrong in ({}, {**fields, "topic": "u"}, {**fields, "Signature": "%%%"}):
        assert (await client.call(ECHO, wrong, b"body")).code == ResponseCode.NO_PERMISSION
    assert len(house.room.requests) == 1


# -- other ways in ------------------------------------------------------------------------------------


async def test_the_proxy_protocol_says_who_connects(make: Make) -> None:
    house = await make(proxied=True)
    client = await house.client()
    request = client.request(ECHO)
    answer = client.awaited(request)

    client.write(b"PROXY TCP4 203.0.113.7 10.0.0.1 5000 8080\r\n" + encode_command(request))

    assert (await answer).code == ResponseCode.SUCCESS
    context = house.room.requests[0].context
    assert (context.peer, context.local) == ("203.0.113.7:5000", "10.0.0.1:8080")


@pytest.mark.parametrize("secured", [False, True])
async def test_connections_by_a_balancer_are_counted_where_they_come_from(
    make: Make, tmp_path: Path, secured: bool
) -> None:
    papers = Papers(tmp_path)
    tls = Certificate(*papers.pair("gateway")).current if secured else None
    house = await make(proxied=True, max_per_address=2, tls=tls)
    trusted = ssl.create_default_context(cafile=papers.authority)
    loop = asyncio.get_running_loop()

    async def from_(address: str) -> RemotingClient:
        link = socket.socket()
        link.setblocking(False)
        await loop.sock_connect(link, ("127.0.0.1", house.server.port))
        await loop.sock_sendall(link, f"PROXY TCP4 {address} 10.0.0.1 5000 8080\r\n".encode())
        client = RemotingClient()
        how: Any = {"ssl": trusted, "server_hostname": "127.0.0.1"} if secured else {}
        await loop.create_connection(lambda: client, sock=link, **how)
        house.clients.append(client)
        return client

    one, two = await from_("203.0.113.7"), await from_("203.0.113.7")
    other = await from_("203.0.113.8")
    for client in (one, two, other):
        assert (await client.call(ECHO)).code == ResponseCode.SUCCESS
    if secured:
        with pytest.raises(OSError, match=r"."):
            await from_("203.0.113.7")
    else:
        await (await from_("203.0.113.7")).until_over()
    await until(lambda: house.server.admission.count == 3)
    await one.close()
    await until(lambda: house.server.admission.count == 2)
    again = await from_("203.0.113.7")
    assert (await again.call(ECHO)).code == ResponseCode.SUCCESS
    for client in (two, other, again):
        await client.close()
    await until(lambda: house.server.admission.count == 0)
    assert not house.server.admission._places


@pytest.mark.parametrize("proxied", [True, False])
async def test_a_connection_without_the_header_that_was_promised_and_the_other_way_round(
    make: Make, proxied: bool
) -> None:
    house = await make(proxied=proxied)
    client = await house.client()
    said = encode_command(client.request(ECHO))

    client.write(said if proxied else b"PROXY TCP4 203.0.113.7 10.0.0.1 5000 8080\r\n" + said)

    await client.until_over()
    assert house.seen.violations == {"bad_proxy_header" if proxied else "bad_frame": 1}
    assert not house.room.requests


async def test_a_header_that_never_comes_is_not_waited_for(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "HANDSHAKE_S", 0.0)
    house = await make(proxied=True)
    client = await house.client()

    client.write(b"PROXY ")

    await client.until_over()
    assert house.seen.violations == {"slow_requests": 1}


async def test_tls(make: Make, tmp_path: Path) -> None:
    papers = Papers(tmp_path)
    certificate = Certificate(*papers.pair("gateway"))
    house = await make(tls=certificate.current)
    context = ssl.create_default_context(cafile=papers.authority)
    client = await house.client(tls=context)

    assert (await client.call(ECHO, {}, bytes(1 << 20))).body == bytes(1 << 20)

    plain = await house.client()
    plain.write(encode_command(plain.request(ECHO)))
    await plain.until_over()
    draining = asyncio.ensure_future(house.server.drain(PATIENCE_S))
    await client.until_over()
    await draining


async def test_requests_know_the_names_in_the_certificate_of_their_client(make: Make, tmp_path: Path) -> None:
    papers = Papers(tmp_path)
    certificate = Certificate(*papers.pair("gateway"), client_ca=papers.authority)
    house = await make(tls=certificate.current)
    context = ssl.create_default_context(cafile=papers.authority)
    context.load_cert_chain(*papers.pair("orders"))
    client = await house.client(tls=context)

    assert (await client.call(ECHO)).code == ResponseCode.SUCCESS

    named = house.room.requests[0].context.certificate
    assert named == ("CN:orders", "DNS:localhost", "IP Address:127.0.0.1")


async def test_requests_without_a_certificate_have_no_names_of_one(make: Make, tmp_path: Path) -> None:
    papers = Papers(tmp_path)
    for tls in (None, ssl.create_default_context(cafile=papers.authority)):
        house = await make(tls=Certificate(*papers.pair("gateway")).current if tls is not None else None)
        client = await house.client(tls=tls)
        assert (await client.call(ECHO)).code == ResponseCode.SUCCESS
        assert house.room.requests[0].context.certificate == ()


@pytest.mark.parametrize("at_once", [1, 5, 1000])
async def test_the_header_of_a_balancer_comes_before_the_handshake(
    make: Make, tmp_path: Path, at_once: int
) -> None:
    papers = Papers(tmp_path)
    house = await make(tls=Certificate(*papers.pair("gateway")).current, proxied=True)
    context = ssl.create_default_context(cafile=papers.authority)
    loop = asyncio.get_running_loop()
    link = socket.socket()
    link.setblocking(False)
    await loop.sock_connect(link, ("127.0.0.1", house.server.port))
    header = b"PROXY TCP4 203.0.113.7 10.0.0.1 5000 8080\r\n"
    for start in range(0, len(header), at_once):
        await loop.sock_sendall(link, header[start : start + at_once])
        await asyncio.sleep(0)
    client = RemotingClient()
    await loop.create_connection(lambda: client, sock=link, ssl=context, server_hostname="127.0.0.1")
    house.clients.append(client)

    assert (await client.call(ECHO)).code == ResponseCode.SUCCESS
    assert house.room.requests[0].context.peer == "203.0.113.7:5000"


async def test_a_handshake_where_a_header_was_promised(make: Make, tmp_path: Path) -> None:
    papers = Papers(tmp_path)
    house = await make(tls=Certificate(*papers.pair("gateway")).current, proxied=True)

    with pytest.raises(OSError, match=r"."):
        await house.client(tls=ssl.create_default_context(cafile=papers.authority))
    assert house.server.admission.count == 0


async def test_a_socket_in_the_file_system(make: Make, socket_folder: Path) -> None:
    path = str(socket_folder / "door")
    house = await make(path=path)
    client = await RemotingClient.connect("", 0, path=path)

    assert (await client.call(ECHO)).code == ResponseCode.SUCCESS
    assert house.room.requests[0].context.peer.startswith("unix:")
    await client.close()


async def test_connections_that_another_process_accepted(make: Make) -> None:
    class Elsewhere:
        adopt: Any = None
        stopped = False

        async def start(self, adopt: Any) -> int:
            self.adopt = adopt
            return 4711

        async def taken(self, longest_s: float) -> None:
            """Nobody is opening."""

        def stop(self) -> None:
            self.stopped = True

    elsewhere = Elsewhere()
    house = await make(listener=elsewhere)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)

    await elsewhere.adopt(ours)
    client = RemotingClient()
    theirs.setblocking(False)
    await client.loop.create_connection(lambda: client, sock=theirs)

    assert house.server.port == 4711
    assert (await client.call(ECHO)).code == ResponseCode.SUCCESS
    await house.server.drain(0)
    assert elsewhere.stopped
    await client.close()


async def test_an_address_that_is_taken_is_named(house: House) -> None:
    other = House()
    other.server._entrance.port = house.server.port

    with pytest.raises(OSError, match=f"cannot listen at remoting://127.0.0.1:{house.server.port}: "):
        await other.server.start()
    await other.close()


# -- drains -------------------------------------------------------------------------------------------


@pytest.fixture
def never_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection is ended since nothing came by it, and no answer that was held back is let go."""
    monkeypatch.setattr(serving, "QUIET_S", 10 * PATIENCE_S)
    monkeypatch.setattr(serving, "HOLD_S", 10 * PATIENCE_S)


@pytest.mark.usefixtures("never_quiet")
async def test_a_drain_ends_long_polls_and_sends_newer_clients_elsewhere(house: House) -> None:
    client = await house.client(version=V5_3_1 + 1)
    poll = client.start(WAIT)
    await until(lambda: house.room.waiting)

    draining = asyncio.ensure_future(house.server.drain(10 * PATIENCE_S))

    assert (await poll).code == ResponseCode.PULL_NOT_FOUND
    away = await client.call(ECHO)
    assert away.code == ResponseCode.GO_AWAY
    assert house.calls.ended["GET_MAX_OFFSET", "GO_AWAY"] == 1
    await client.close()
    await draining
    await house.server.stop()
    told = house.server.under_way.farewell()
    assert (told.connections, told.finished, told.cut_off) == (1, 1, 0)


@pytest.mark.usefixtures("never_quiet")
async def test_a_drain_serves_older_clients_and_what_is_one_way(house: House) -> None:
    old, new = await house.client(version=OLD), await house.client(version=OLD + 1)
    await house.connection(old)
    await house.connection(new)

    draining = asyncio.ensure_future(house.server.drain(10 * PATIENCE_S))
    await until(lambda: house.room.drained)
    assert (await old.call(ECHO)).code == ResponseCode.SUCCESS
    new.tell(ECHO, {}, b"one way")

    await until(lambda: [one.command.body for one in house.room.requests] == [b"", b"one way"])
    await old.close()
    await new.close()
    await draining


async def test_a_drain_ends_connections_by_which_nothing_comes(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "QUIET_S", 0.0)
    quiet, busy = await house.client(version=OLD), await house.client(version=OLD)
    await house.connection(quiet)
    busy.write(encode_command(busy.request(ECHO))[:-1])
    connection = await house.connection(busy)
    await until(lambda: connection.unfinished)

    draining = asyncio.ensure_future(house.server.drain(10 * PATIENCE_S))

    await quiet.until_over()
    assert not busy.is_over
    await busy.close()
    await draining


@pytest.mark.usefixtures("never_quiet")
async def test_a_drain_ends_who_asks_again_and_again_behind_an_answer(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no last moment here, so that nothing else ends it."""
    monkeypatch.setattr(serving, "LAST_S", 0.0)
    old = await house.client(version=OLD)
    connection = await house.connection(old)
    draining = asyncio.ensure_future(house.server.drain(2.0))
    answers = []

    while connection.left_at is None and not draining.done():
        answers.append((await old.call(ECHO)).code)

    assert {*answers} == {ResponseCode.SUCCESS}
    await old.until_over()
    await draining
    assert not house.server.connections


async def test_a_connection_ends_behind_an_answer_when_nothing_else_is_under_way(house: House) -> None:
    old = await house.client(version=OLD)
    house.door._handlers[FAIL] = house.room.wait
    slow = old.start(FAIL)
    connection = await house.connection(old)
    await until(lambda: house.room.waiting)

    connection.leave_behind_an_answer()
    assert (await old.call(ECHO)).code == ResponseCode.SUCCESS
    assert (await old.call(ECHO)).code == ResponseCode.SUCCESS, "the other one is under way"
    house.room.go_on()

    assert (await slow).code == ResponseCode.PULL_NOT_FOUND
    await old.until_over()


async def test_nothing_but_an_answer_ends_a_connection_behind_one(house: House) -> None:
    """Neither what is written besides, nor a look at what is held back, nor GO_AWAY, which says enough."""
    old, other, new = (
        await house.client(version=OLD),
        await house.client(),
        await house.client(version=OLD + 1),
    )
    connection, newer = await house.connection(old), await house.connection(new)
    house.server._draining = True
    for each in (connection, newer):
        each.leave_behind_an_answer()
        each.go_on()
        assert each.peer.tell(int(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED), {})
    assert (await new.call(ECHO)).code == ResponseCode.GO_AWAY

    other.tell(ECHO, {}, b"the loop has come round")
    await until(lambda: house.room.requests)
    assert connection.left_at is newer.left_at is None
    assert (await old.call(ECHO)).code == ResponseCode.SUCCESS
    await old.until_over()


async def test_what_was_held_back_goes_out_before_a_connection_ends_behind_an_answer(
    house: House,
) -> None:
    old = await house.client(version=OLD)
    connection = await house.connection(old)
    house.server._draining = house.room.drained = True
    held = old.start(WAIT)
    await until(lambda: house.room.requests)
    assert (await old.call(ECHO)).code == ResponseCode.SUCCESS

    connection.leave_behind_an_answer()
    last = old.start(ECHO)

    assert ((await held).code, (await last).code) == (ResponseCode.PULL_NOT_FOUND, ResponseCode.SUCCESS)
    await old.until_over()


@pytest.mark.usefixtures("never_quiet")
async def test_an_old_client_that_finds_nothing_does_not_ask_in_circles(house: House) -> None:
    """Without a pause each answer of a drain would be followed by the same request, as fast as both can."""
    old = await house.client(version=OLD)
    poll = old.start(WAIT)
    await until(lambda: house.room.waiting)
    draining = asyncio.ensure_future(house.server.drain(10 * PATIENCE_S))
    await poll

    again = old.start(WAIT)
    assert (await old.call(ECHO)).code == ResponseCode.SUCCESS

    assert not again.done(), "it was asked first, and found nothing"
    (await house.connection(old)).leave()
    assert (await again).code == ResponseCode.PULL_NOT_FOUND
    await old.until_over()
    await draining


@pytest.mark.usefixtures("never_quiet")
async def test_what_was_held_back_is_let_go_after_a_while(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "HOLD_S", 0.0)
    old = await house.client(version=OLD)
    await house.connection(old)
    draining = asyncio.ensure_future(house.server.drain(10 * PATIENCE_S))
    await until(lambda: house.room.drained)

    assert (await old.call(WAIT)).code == ResponseCode.PULL_NOT_FOUND
    await old.close()
    await draining


async def test_what_is_under_way_in_the_last_moment_is_answered(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "LAST_S", PATIENCE_S)
    old = await house.client(version=OLD)
    house.door._handlers[FAIL] = house.room.wait
    slow = old.start(FAIL)
    await until(lambda: house.room.waiting)
    waiting = list(house.room.waiting)
    house.room.waiting.clear()

    draining = asyncio.ensure_future(house.server.drain(2 * PATIENCE_S))
    connection = await house.connection(old)
    await until(lambda: house.room.drained)
    # The first half of the time is over at once: it is as if it were the last moment.
    connection.leave()
    unserved = old.start(ECHO)
    unserved.add_done_callback(lambda one: one.exception())
    old.tell(ECHO, {}, b"one way")
    await until(lambda: house.room.requests[-1].command.body == b"one way")
    waiting[0].set_result(None)

    assert (await slow).code == ResponseCode.PULL_NOT_FOUND
    await old.until_over()
    with pytest.raises(ConnectionError):
        await unserved
    await draining


async def test_what_lasts_longer_than_a_drain_is_cut_off(house: House) -> None:
    client = await house.client()
    house.door._handlers[FAIL] = house.room.wait
    client.start(FAIL).add_done_callback(lambda one: one.exception())
    await until(lambda: house.room.waiting)
    house.room.waiting.clear()

    await house.server.drain(0)
    await house.server.stop(0.2)

    await client.until_over()
    assert house.server.under_way.farewell().cut_off == 1
